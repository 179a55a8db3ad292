// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/run_options.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation&) {
  return fail(
      "verify is not available in this version: it is the oracle that runs every launch twice and "
      "compares; until then compare a program's output under `gpurecover inject` with its own");
}

}  // namespace

Verb verify_verb() {
  Verb verb{.name = "verify", .help = help::verify, .app = Tail::kOptional, .run = run};
  verb.options = run_option_list();
  return verb;
}

}  // namespace gpurecover::cli
