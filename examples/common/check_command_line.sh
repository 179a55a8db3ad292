#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_command_line.sh PROGRAM: what an example answers to --help and to bad usage; none of it
# needs a GPU.
program=$1
failed=0

# expect STATUS PATTERN ARGS…: the exit status, and a line of output that matches.
expect() {
  status=$1 pattern=$2
  shift 2
  output=$("$program" "$@" 2>&1)
  got=$?
  if [ $got -ne "$status" ]; then
    echo "FAIL: $program $*: exit $got, expected $status: $output"
    failed=1
  elif ! printf '%s\n' "$output" | grep -q -e "$pattern"; then
    echo "FAIL: $program $*: no line matches '$pattern': $output"
    failed=1
  fi
}

expect 0 '^usage: ' --help
expect 0 ' --size ' --size 5 --help
expect 2 "unknown argument '--sise'" --sise 5
expect 2 "unknown argument 'x'" x
expect 2 "value is missing after '--size'" --size
for value in 0 -1 12x '' 0x10 99999999999999999999 1e3 ' 5'; do
  expect 2 "takes a whole number from [0-9]* to [0-9]*, not '$value'" --size "$value"
done
exit $failed
