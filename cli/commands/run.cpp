// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/run_options.h"
#include "cli/supervisor/supervisor.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation& invocation) {
  const auto options = read_run_options(invocation);
  return options ? run_app(*options) : fail(options.error());
}

}  // namespace

Verb run_verb() {
  return {.name = "run",
          .help = help::run,
          .options = run_option_list(),
          .app = Tail::kRequired,
          .run = run};
}

}  // namespace gpurecover::cli
