#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks that need a real NVIDIA GPU, from a prebuilt stage/ folder (scripts/stage.sh), with
# every command bounded in time:
#
#   tests/gpu/run.sh [--stage DIR] [--out DIR] [--jobs N] [--total SECONDS] [SECTION…]
#
# Sections, in this order; all of them by default:
#   matrix      gpu-2-matrix.txt           each example x fault kind x damage x launch
#   oom         gpu-3-oom.txt              out of memory at a launch is retried
#   not-fired   gpu-4-not-fired.txt        plans that fired and that did not
#   bench       gpu-5-launch-overhead.*    what a launch costs
#   torch       gpu-6-pytorch.txt          a PyTorch training
#   takeover    gpu-4-takeover.txt         sticky faults survived
#   torch-takeover  gpu-4-torch-takeover.txt   a PyTorch training survives one
#   steering    gpu-4-steering.txt         what programs see of their memory, and what it costs
#   takeover-time  gpu-4-takeover-time.*   how long a takeover takes with 64 GiB and 100 modules
#
# Needs python3 (standard library; torch for `torch`) and coreutils. Exit status: 0 all pass,
# 1 something failed or was not run, 2 bad usage.
set -u
export PYTHONDONTWRITEBYTECODE=1
here=$(dirname "$0")
stage=stage out=gpu-results jobs=8 total=540
sections=()

usage() {
  sed -n '3,22s/^# \{0,1\}//p' "$0"
}

while [ $# -gt 0 ]; do
  case $1 in
    --stage | --out | --jobs | --total)
      [ $# -ge 2 ] || { echo "run.sh: a value is missing after $1" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2 ;;
    --help | -h) usage; exit 0 ;;
    matrix | oom | not-fired | bench | torch | takeover | torch-takeover | steering | takeover-time)
      sections+=("$1"); shift ;;
    *) echo "run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
[ ${#sections[@]} -gt 0 ] || sections=(matrix oom not-fired bench torch takeover torch-takeover steering takeover-time)
for number in "$jobs" "$total"; do
  case $number in
    '' | *[!0-9]* | 0*) echo "run.sh: not a positive whole number: '$number'" >&2; exit 2 ;;
  esac
done
[ -x "$stage/bin/gpurecover" ] || {
  echo "run.sh: not there: $stage/bin/gpurecover (build, then scripts/stage.sh)" >&2
  exit 2
}
mkdir -p "$out" || exit 2

timeout -k 5 30 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader ||
  echo "run.sh: nvidia-smi does not answer" >&2

# The launch bound benchmark is alone on the machine; the time that is left is shared out as it
# goes, so that a section that hangs cannot take all of it from those behind.
declare -A share=([matrix]=240 [oom]=90 [not-fired]=90 [bench]=210 [torch]=240 [takeover]=240 [torch-takeover]=200 [steering]=150 [takeover-time]=300)
failed=0
for section in "${sections[@]}"; do
  left=$((total - SECONDS))
  limit=${share[$section]}
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -lt 10 ]; then
    echo "NOT RUN $section: the total of $total s is used up"
    failed=1
    continue
  fi
  # A section ends itself at its limit; the outer bound is for one that does not.
  outer=(timeout -k 25 $((limit + 5)))
  common=(--stage "$stage" --out "$out" --limit "$limit" --jobs "$jobs")
  case $section in
    bench)
      text=$out/gpu-5-launch-overhead.txt
      command=(python3 "$stage/bench/launch_overhead.py" --stage "$stage"
        --json "$out/gpu-5-launch-overhead.json" --text "$text" --timeout 30)
      rm -f "$text"
      "${outer[@]}" "${command[@]}"
      status=$?
      # Without a figure, the file says why.
      [ -s "$text" ] || echo "not measured (exit $status)" >"$text"
      printf '\nsource: %s\ncommand: %s\nexit status %d: %s\n' \
        "$(cat "$stage/COMMIT" 2>/dev/null || echo unknown)" "${command[*]}" "$status" \
        "$([ $status -eq 0 ] && echo PASS || echo FAIL)" >>"$text" ;;
    torch) "${outer[@]}" python3 "$here/pytorch.py" "${common[@]}"; status=$? ;;
    steering) "${outer[@]}" bash "$here/steering.sh" "$stage" "$out/gpu-4-steering.txt"; status=$? ;;
    torch-takeover) "${outer[@]}" python3 "$here/torch_takeover.py" "${common[@]}"; status=$? ;;
    takeover-time) "${outer[@]}" python3 "$here/takeover_time.py" "${common[@]}"; status=$? ;;
    # Many contexts at a time make each of them slow.
    takeover)
      "${outer[@]}" python3 "$here/takeover.py" --stage "$stage" --out "$out" --limit "$limit" \
        --jobs 6 --each 60
      status=$? ;;
    not-fired) "${outer[@]}" python3 "$here/not_fired.py" "${common[@]}"; status=$? ;;
    *) "${outer[@]}" python3 "$here/$section.py" "${common[@]}"; status=$? ;;
  esac
  [ $status -eq 0 ] || { echo "FAIL $section (exit $status)"; failed=1; }
done
echo "run.sh: $([ $failed -eq 0 ] && echo PASS || echo FAIL), $SECONDS s, results in $out"
exit $failed
