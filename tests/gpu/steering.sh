#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What programs see of steered memory, and what it costs, alone and under `run`, side by side:
#
#   tests/gpu/steering.sh STAGE FILE
#
# steering_program prints sizes, codes and attributes of every kind of allocation, with addresses made
# comparable; what may differ is in docs/steering.md. Exit status: 0 all measured and alike.
set -u
[ $# -eq 2 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
stage=$1 file=$2 failed=0
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
{
  echo "Steered memory: what programs see, and what it costs"
  echo
  echo "date     $(date -u '+%Y-%m-%d %H:%M UTC')"
  echo "card     $(timeout -k 1 10 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
  echo "source   $(cat "$stage/COMMIT" 2>/dev/null || echo unknown)"
  echo "agent    sha256 $(sha256sum "$stage/lib/gpurecover/libgpurecover.so" | cut -d' ' -f1)"
  echo
  for mode in queries host order full vmm; do
    timeout -k 3 40 "$stage/tests/steering_program" $mode >"$scratch/alone" 2>&1
    alone=$?
    timeout -k 3 40 "$stage/bin/gpurecover" run -q -- "$stage/tests/steering_program" $mode >"$scratch/run" 2>&1
    run=$?
    lines=$(wc -l <"$scratch/alone")
    if [ $alone -ne 0 ] || [ $run -ne 0 ] || [ "$lines" -eq 0 ]; then
      echo "FAIL steering_program $mode: exit $alone alone, $run under run, $lines lines"
      tail -3 "$scratch/run"
      failed=1
    elif diff "$scratch/alone" "$scratch/run" >"$scratch/diff"; then
      echo "PASS steering_program $mode: $lines lines, all alike"
    else
      echo "DIFF steering_program $mode: $lines lines, alone (<) and under run (>):"
      cat "$scratch/diff"
    fi
  done
  echo
  timeout -k 3 120 python3 "$stage/bench/allocation.py" --stage "$stage" || { echo "not measured"; failed=1; }
} >"$file"
cat "$file"
exit $failed
