#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows what gpurecover does, on the examples: an undisturbed run, a fault that is recovered, one
# that is refused because it must be, and the report. Builds first.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
install_packages
check_toolkit
configure release
build release

bin=$root/build/bin/gpurecover
examples=$root/build/examples
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

say "what is here: gpurecover doctor"
"$bin" doctor || true

# The device that `--device auto` settles on, from the report of a run of nothing.
"$bin" run -q --report "$out/none.json" -- true 2>"$out/none.log" || true
device=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["device"]["kind"])' \
  "$out/none.json")
if [ "$device" = none ]; then
  say "there is no CUDA device here, so there is nothing to show"
  cat <<'TEXT'
The demonstration needs a machine with an NVIDIA GPU and its driver (580 or newer for CUDA 13); in
a container, start it with the GPU: docker run --gpus all. Then run scripts/demo.sh again.
TEXT
  exit 0
fi

checksum() { sed -n 's/.*\(checksum=[^ ]*\).*/\1/p' "$1" | tail -n 1; }
show() {
  echo "\$ $*" | sed "s#$bin#gpurecover#; s#$root/##g"
}
failed=0
expect() { # WHAT GOT WANTED
  if [ "$2" = "$3" ]; then
    echo "   -> $1: $2, as it should be"
  else
    echo "   -> $1: $2, but it should be $3"
    failed=1
  fi
}
outcome() {
  python3 -c 'import json, sys
print(" ".join(f["outcome"] for f in json.load(open(sys.argv[1]))["faults"]) or "no fault")' "$1"
}
# Where the software device runs the program, it is on the library path; alone it is not.
alone=("$bin" run -q --level observe --)
[ "$device" = soft ] || alone=()

say "1. A program alone, then under protection, undisturbed ($device device)"
show "${alone[@]}" "$examples/heat2d"
"${alone[@]}" "$examples/heat2d" | tee "$out/alone.txt"
show "$bin" run --report "$out/run.json" -- "$examples/heat2d"
"$bin" run --report "$out/run.json" -- "$examples/heat2d" | tee "$out/run.txt"
expect "result" "$(checksum "$out/run.txt")" "$(checksum "$out/alone.txt")"

say "2. An uncorrectable memory error in the middle: the launch is executed again"
show "$bin" inject --kernel '*' --error ecc --nth 7 --seed 1 -- "$examples/heat2d"
"$bin" inject --kernel '*' --error ecc --nth 7 --seed 1 --report "$out/ecc.json" -- \
  "$examples/heat2d" | tee "$out/ecc.txt"
expect "result" "$(checksum "$out/ecc.txt")" "$(checksum "$out/alone.txt")"
expect "outcome" "$(outcome "$out/ecc.json")" recovered-replay

say "3. The same in a kernel that overwrites its own input: refused, and the program is told"
show "$bin" inject --kernel '*' --error ecc --nth 2 --seed 1 -- "$examples/saxpy_inplace"
status=0
"$bin" inject --kernel '*' --error ecc --nth 2 --seed 1 --report "$out/refused.json" -- \
  "$examples/saxpy_inplace" || status=$?
expect "exit status" "$([ "$status" -ne 0 ] && echo "not 0")" "not 0"
expect "outcome" "$(outcome "$out/refused.json")" refused

say "4. The report of the second run"
show "$bin" report run.json --format markdown
"$bin" report "$out/ecc.json" --format markdown
exit "$failed"
