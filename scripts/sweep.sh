#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What takes too long for every change: the fuzz targets (short runs), and the unit tests and
# takeovers under address, undefined-behaviour and thread sanitizers. Each build has a folder of its own.
#
#   scripts/sweep.sh [fuzz|asan|tsan|sweep|tsan-takeovers ...]     default: all but the last
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
fuzzer_runtime=$(clang -print-file-name=libclang_rt.fuzzer-x86_64.a 2>/dev/null || true)
case $fuzzer_runtime in
  /*) ;;
  *) fuzzer_runtime=/nonexistent ;;
esac
install_packages "libclang-rt-dev:$fuzzer_runtime"
check_toolkit

fuzz() {
  configure fuzz
  local targets
  mapfile -t targets < <(targets_in "$root/build-fuzz" fuzz 'fuzz_[A-Za-z0-9_]*')
  build fuzz --target "${targets[@]}"
  say "fuzzing: 20 s each"
  (cd "$root/build-fuzz" && ctest --output-on-failure --no-tests=error -L fuzz)
}

sanitized() { # PRESET PATTERN: of the unit tests' names
  configure "$1"
  # The unit tests alone: that is what the sanitizers are for, and it keeps the build short.
  local targets target
  mapfile -t targets < <(targets_in "$root/build-$1" tests '[A-Za-z0-9_]*_test' | grep -E "$2")
  build "$1" --target "${targets[@]}"
  say "testing under $1: ${targets[*]}"
  for target in "${targets[@]}"; do
    (cd "$root/build-$1" && timeout 600 "tests/$target" --gtest_brief=1)
  done
}

# Takeovers with the agent, the standby and the app built so; the device in software and the
# supervisor are those of the ordinary build, for speed.
takeovers() { # PRESET EXAMPLE...
  local preset=$1
  shift
  [ -x "$root/build/bin/gpurecover" ] || { configure release && build release; }
  build "$preset" --target gpurecover_so gpurecover_standby_program "${@/#/example_}"
  local stage=$root/build-$preset/takeovers
  rm -rf "$stage"
  mkdir -p "$stage/bin" "$stage/lib/gpurecover" "$stage/examples"
  cp "$root/build/bin/gpurecover" "$stage/bin/"
  cp -r "$root/build/lib/gpurecover/soft" "$root/build-$preset"/lib/gpurecover/* "$stage/lib/gpurecover/"
  local example only=()
  for example in "$@"; do
    cp "$root/build-$preset/examples/$example" "$stage/examples/"
    only+=(--only "$example")
  done
  say "takeovers under $preset"
  # What a driver keeps until the process ends is no leak of ours.
  (cd "$root" && ASAN_OPTIONS=detect_leaks=0 \
    TSAN_OPTIONS=suppressions="$root/scripts/tsan_softgpu.supp" python3 -B tests/gpu/takeover.py --stage "$stage" \
    --device soft --out "$stage/results" --limit 300 --jobs 2 "${only[@]}")
}

sweep() {
  [ -d "$root/build" ] || { configure release && build release; }
  say "the long tests of the ordinary build"
  (cd "$root/build" && ctest --output-on-failure -L sweep)
}

[ $# -gt 0 ] || set -- fuzz asan tsan sweep
for part in "$@"; do
  case $part in
    fuzz) fuzz ;;
    # What is loaded into the app. The others' sanitized builds (interpreter, TOML, command line)
    # take longer than all the rest: name them here when they are worked on.
    asan)
      sanitized asan '^(agent|classifier|driver_api|idempotency|image|inject|protocol|recovery)_test$'
      takeovers asan vector_add two_streams ;;
    # What threads of its own the app meets. softgpu is left out: its kernels may race by design.
    tsan) sanitized tsan '^(agent|inject|protocol|recovery)_test$' ;;
    # By request: two minutes of takeovers.
    tsan-takeovers)
      configure tsan
      takeovers tsan vector_add two_streams ;;
    sweep) sweep ;;
    *)
      echo "sweep.sh: unknown part '$part'; it knows fuzz, asan, tsan, sweep and tsan-takeovers" >&2
      exit 2
      ;;
  esac
done
say "done: $*"
