#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The agent exports its entry point and nothing else, and needs libc and the loader only: it must
# not bring libraries or symbols into the programs it is loaded into.
set -eu
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | sed 's/@.*//')
if [ "$exported" != InitializeInjection ]; then
  echo "exports: $exported" >&2
  exit 1
fi
# Sanitizers bring their own runtime; the shipped build has none.
if nm -D "$1" | grep -q -e __asan_ -e __tsan_; then
  exit 0
fi
needed=$(readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p')
for library in $needed; do
  case $library in
    libc.so.6 | libm.so.6 | ld-linux-x86-64.so.2) ;;
    *) echo "needs $library" >&2; exit 1 ;;
  esac
done
