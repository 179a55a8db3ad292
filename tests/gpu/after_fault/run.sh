#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a process whose context is dead still answers, asked of the GPU at hand, in at most 150 s:
#
#   tests/gpu/after_fault/run.sh STAGE OUT [SECTION…]
#
# STAGE: made by scripts/stage.sh. OUT/after_fault.txt: a line `section | question | answer` for
# each question, sorted by section; OUT/after_fault.log: what the driver said beside them.
set -u
[ $# -ge 2 ] || { sed -n '3,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
stage=$1 out=$2
shift 2
program=$stage/tests/after_fault/after_fault
[ -x "$program" ] || { echo "run.sh: not there: $program (build, then scripts/stage.sh)" >&2; exit 2; }
mkdir -p "$out" || exit 2
raw=$(mktemp) || exit 2
trap 'rm -f "$raw"' EXIT
AFTER_FAULT_JOBS=${AFTER_FAULT_JOBS:-8} timeout -k 5 135 "$program" "$@" >"$raw" 2>"$out/after_fault.log"
status=$?
{
  echo "# $(timeout -k 1 5 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)"
  echo "# source: $(cat "$stage/COMMIT" 2>/dev/null || echo unknown)"
  echo "# exit status $status after $SECONDS s$([ $status -eq 124 ] && echo ': not finished')"
  LC_ALL=C sort -s -t'|' -k1,1 "$raw"
} >"$out/after_fault.txt"
echo "$out/after_fault.txt: $(grep -vc '^#' "$out/after_fault.txt") answers, exit status $status, $SECONDS s"
exit $status
