// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run_options.h"

namespace gpurecover::cli {

// Runs the app under a session and returns the exit status for gpurecover, or does not return:
// where the app was killed by a signal, this process ends by the same one.
int run_app(const RunOptions& options);

}  // namespace gpurecover::cli
