// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/commands.h"
#include "cli/exit_codes.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/report/file.h"
#include "cli/report/renderer.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation& invocation) {
  const std::string& path = invocation.operands.front();
  const std::string format = invocation.value("--format");
  const auto renderer = make_renderer(format);
  if (!renderer) {
    return fail("--format " + format +
                " is not available in this version; use json, junit or markdown");
  }
  const auto text = read_file(path);
  if (!text) {
    return fail(path + ": " + text.error());
  }
  const auto summary = parse_summary(*text);
  if (!summary) {
    return fail(path + ": " + summary.error());
  }
  const std::string rendered = renderer->render(*summary);
  if (!invocation.has("--output")) {
    return print(rendered) ? kOk : kOurError;
  }
  // Only now: the input itself may be what is replaced.
  const auto file = ReportFile::prepare(invocation.value("--output"));
  if (!file) {
    return fail("--output: " + file.error());
  }
  const auto written = file->write(rendered);
  return written ? kOk : fail(written.error());
}

}  // namespace

Verb report_verb() {
  return {.name = "report",
          .help = help::report,
          .options = {{.names = {"--format"},
                       .kind = Kind::kChoice,
                       .metavar = "FORMAT",
                       .choices = {"json", "junit", "markdown", "html", "prometheus"},
                       .required = true},
                      {.names = {"-o", "--output"}, .metavar = "FILE"}},
          .operand = "SUMMARY.json",
          .min_operands = 1,
          .max_operands = 1,
          .run = run};
}

}  // namespace gpurecover::cli
