// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/classifier_verbs.h"
#include "cli/commands/commands.h"
#include "cli/help/help.h"

namespace gpurecover::cli {
namespace {

int check(const Invocation& invocation) {
  std::vector<classifier::FileText> files;
  for (const std::string& path : invocation.operands) {
    files.push_back({path, read_file(path)});
  }
  return show(classifier::rules_check(files));
}

int dump(const Invocation& invocation) {
  return show(classifier::rules_dump(rules_file(invocation), invocation.has("--effective")));
}

int explain(const Invocation& invocation) {
  classifier::ExplainOptions options;
  options.file = rules_file(invocation);
  options.cuda = invocation.value("--cuda");
  options.kernel = invocation.value("--kernel");
  options.phase = invocation.value("--phase");
  options.xids = invocation.all("--xid");
  options.format = format_of(invocation);
  return show(classifier::rules_explain(options));
}

}  // namespace

std::vector<Verb> rules_verbs() {
  const Option rules{.names = {"--rules"}, .metavar = "FILE"};
  return {
      {.name = "rules check",
       .help = help::rules,
       .operand = "FILE",
       .min_operands = 1,
       .max_operands = 4096,
       .run = check},
      {.name = "rules dump",
       .help = help::rules,
       .options = {{.names = {"--effective"}, .kind = Kind::kFlag}, rules},
       .run = dump},
      {.name = "rules explain",
       .help = help::rules,
       .options = {rules,
                   {.names = {"--cuda"}, .metavar = "CODE", .required = true},
                   {.names = {"-k", "--kernel", "--kernel-name"}, .metavar = "NAME"},
                   phase_option(),
                   {.names = {"--xid"}, .metavar = "N", .repeated = true},
                   format_option()},
       .run = explain},
  };
}

}  // namespace gpurecover::cli
