// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/run_options.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation&) {
  return fail(
      "campaign is not available in this version: repeat `gpurecover inject` with different --nth "
      "or --seed");
}

}  // namespace

Verb campaign_verb() {
  Verb verb{.name = "campaign",
            .help = help::campaign,
            .operand = "SPEC",
            .max_operands = 1,
            .app = Tail::kOptional,
            .run = run};
  verb.options = run_option_list();
  verb.options.push_back({.names = {"--out"}, .metavar = "DIR"});
  return verb;
}

}  // namespace gpurecover::cli
