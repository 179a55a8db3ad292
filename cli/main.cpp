// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/output.h"

int main(int argc, char** argv) {
  try {
    return gpurecover::cli::dispatch(
        std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const std::exception& error) {
    return gpurecover::cli::fail(std::string("internal error: ") + error.what());
  }
}
