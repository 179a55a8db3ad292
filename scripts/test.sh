#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything into build/ and runs all tests that need no GPU (those that need one skip
# themselves and say so). From a fresh clone; installs missing Debian packages where it may.
#
#   scripts/test.sh [CTEST-OPTION...]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
install_packages
check_toolkit
configure release
build release
say "testing: ctest -LE sweep $*"
cd "$root/build"
ctest --output-on-failure --no-tests=error -j"$(nproc)" -LE sweep "$@"
say "done: everything passed; the program is build/bin/gpurecover"
