#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_no_driver.sh PROGRAM: without a CUDA driver an example says so, exits 1 and prints no
# result. 77 (skipped) where there is a driver.
program=$1
output=$("$program" 2>&1)
status=$?
has_driver() {
  [ $status -eq 0 ] || (ldconfig -p || /sbin/ldconfig -p) 2>/dev/null | grep -q 'libcuda\.so\.1 '
}
if has_driver; then
  echo "skipped: there is a CUDA driver"
  exit 77
fi
case $output in
  *"no CUDA driver (libcuda.so.1)"*) ;;
  *) echo "FAIL: no word of the missing driver: $output"; exit 1 ;;
esac
case $output in
  *checksum=*) echo "FAIL: a result without a device: $output"; exit 1 ;;
esac
[ $status -eq 1 ] || { echo "FAIL: exit $status, expected 1: $output"; exit 1; }
