#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# First contact with a GPU: attach, one undisturbed run, one recovery, one refusal, all with -v.
# tests/gpu/smoke.sh [STAGE]; exit status 0 if each behaves.
set -u
stage=${1:-stage}
g="timeout -k 5 60 $stage/bin/gpurecover"
failed=0
check() {  # what, expected status, status
  if [ "$2" -eq "$3" ]; then echo "smoke: $1: ok"; else echo "smoke: $1: status $3"; failed=1; fi
}
$g doctor; check doctor 0 $?
for form in "" _cudart; do
  timeout -k 5 30 "$stage/examples/vector_add$form"; check "native vector_add$form" 0 $?
  $g run -v -- "$stage/examples/vector_add$form"; check "run vector_add$form" 0 $?
  $g inject -v --kernel '*' --error ecc --nth 2 -- "$stage/examples/vector_add$form"
  check "recovery vector_add$form" 0 $?
  $g inject -v --kernel '*' --error ecc --nth 2 -- "$stage/examples/saxpy_inplace$form"
  check "refusal saxpy_inplace$form" 1 $?
done
exit $failed
