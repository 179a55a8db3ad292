// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/classifier_verbs.h"
#include "cli/commands/commands.h"
#include "cli/help/help.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation& invocation) {
  if (invocation.has("--log")) {
    return fail("--log is not available in this version: give the Xids of the log by --xid");
  }
  classifier::ClassifyOptions options;
  options.file = rules_file(invocation);
  options.cuda = invocation.all("--cuda");
  options.xids = invocation.all("--xid");
  options.kernel = invocation.value("--kernel");
  options.phase = invocation.value("--phase");
  options.format = format_of(invocation);
  return show(classifier::classify(options));
}

}  // namespace

Verb classify_verb() {
  return {.name = "classify",
          .help = help::classify,
          .options = {{.names = {"--cuda"}, .metavar = "CODE", .repeated = true},
                      {.names = {"--xid"}, .metavar = "N", .repeated = true},
                      {.names = {"--log"}, .metavar = "FILE"},
                      {.names = {"--rules"}, .metavar = "FILE"},
                      {.names = {"-k", "--kernel", "--kernel-name"}, .metavar = "NAME"},
                      phase_option(),
                      format_option()},
          .run = run};
}

}  // namespace gpurecover::cli
