// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands/classifier_verbs.h"
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/report/summary.h"
#include "cli/supervisor/client.h"

namespace gpurecover::cli {
namespace {

int run(const Invocation& invocation) {
  const auto answer =
      ask_session(invocation.value("--session"), protocol::MessageType::kStatusRequest, {},
                  protocol::MessageType::kStatus);
  if (!answer) {
    return fail(answer.error());
  }
  if (invocation.value("--format") == "json") {
    return print(*answer) ? kOk : kOurError;
  }
  const auto summary = parse_summary(*answer);
  if (!summary) {
    return fail("the session's answer: " + summary.error());
  }
  const std::string text =
      fmt::format("session {}: {}\nrunning for {:.1f} s, device {}\n{}\n", summary->session,
                  shell_join(summary->command), summary->wall_s,
                  summary->device.name.empty() ? summary->device.kind : summary->device.name,
                  human_summary(*summary));
  return print(text) ? kOk : kOurError;
}

}  // namespace

Verb status_verb() {
  return {.name = "status",
          .help = help::status,
          .options = {{.names = {"--session"}, .metavar = "NAME"}, format_option()},
          .run = run};
}

}  // namespace gpurecover::cli
