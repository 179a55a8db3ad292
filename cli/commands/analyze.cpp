// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/run_options.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation&) {
  return fail(
      "analyze is not available in this version: kernels are analysed while the program runs; "
      "`gpurecover run --report FILE` lists their verdicts");
}

}  // namespace

Verb analyze_verb() {
  Verb verb{.name = "analyze",
            .help = help::analyze,
            .operand = "FILE",
            .max_operands = 4096,
            .run = run};
  verb.options = {{.names = {"--format"},
                   .kind = Kind::kChoice,
                   .metavar = "FORMAT",
                   .choices = {"text", "json"}}};
  return verb;
}

}  // namespace gpurecover::cli
