#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes stage/, a small stripped copy of a build that runs on another machine (tests/gpu/run.sh):
#
#   scripts/stage.sh [BUILD [STAGE]]      default: build stage, under the project's root
#
# Layout as in the build: bin/, lib/gpurecover/, examples/, bench/, tests/after_fault/; and COMMIT, what
# it was made of.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build}
stage=${2:-$root/stage}
limit_mib=64

[ $# -le 2 ] || { echo "usage: stage.sh [BUILD [STAGE]]" >&2; exit 2; }
for needed in bin/gpurecover lib/gpurecover/libgpurecover.so examples/vector_add bench/launch_overhead.py; do
  [ -e "$build/$needed" ] || { echo "stage.sh: not built: $build/$needed" >&2; exit 1; }
done
# Only what an earlier call made is replaced.
if [ -e "$stage" ] && [ ! -f "$stage/COMMIT" ]; then
  echo "stage.sh: $stage is there and was not made by this script; remove it or name another" >&2
  exit 1
fi
new=$stage.new
rm -rf "$new"
mkdir -p "$new/bin" "$new/lib/gpurecover" "$new/examples" "$new/bench"

cp "$build/bin/gpurecover" "$new/bin/"
cp -r "$build/lib/gpurecover/." "$new/lib/gpurecover/"
find "$new/lib" -name '*.a' -delete
for file in "$build"/examples/*; do
  if [ -f "$file" ] && [ -x "$file" ]; then cp "$file" "$new/examples/"; fi
done
# For the software device: the same checks run from the same stage.
if [ -d "$build/examples/shared" ]; then
  mkdir "$new/examples/shared"
  for file in "$build"/examples/shared/*; do
    if [ -f "$file" ] && [ -x "$file" ]; then cp "$file" "$new/examples/shared/"; fi
  done
fi
cp "$build/bench/launch_overhead.py" "$new/bench/"
# Not there where the toolkit has no CUPTI headers; the benchmark then says so.
if [ -e "$build/bench/libempty_callback.so" ]; then
  cp "$build/bench/libempty_callback.so" "$new/bench/"
fi
for file in bench_launch_path libcupti_tap.so allocation_program allocation.py; do
  if [ -e "$build/bench/$file" ]; then cp "$build/bench/$file" "$new/bench/"; fi
done
mkdir "$new/tests"
for file in steering_program takeover_time; do
  if [ -x "$build/tests/$file" ]; then cp "$build/tests/$file" "$new/tests/"; fi
done
if [ -x "$build/tests/after_fault/after_fault" ]; then
  cp -r "$build/tests/after_fault" "$new/tests/"
fi

# The symbols that dlsym and the loader use stay; the nvcc forms keep their fatbins.
find "$new" -type f | while IFS= read -r file; do
  if [ "$(head -c 4 "$file" | od -An -tx1 | tr -d ' ')" = 7f454c46 ]; then
    strip --strip-unneeded "$file"
  fi
done

commit=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
if [ -n "$(git -C "$root" status --porcelain 2>/dev/null)" ]; then commit="$commit, with changes"; fi
echo "$commit" >"$new/COMMIT"
kib=$(du -sk "$new" | cut -f1)
if [ "$kib" -gt $((limit_mib * 1024)) ]; then
  echo "stage.sh: $kib KiB, more than $limit_mib MiB; left in $new" >&2
  exit 1
fi
rm -rf "$stage"
mv "$new" "$stage"
echo "$stage: $kib KiB of $commit"
