// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "classifier/verbs.h"
#include "cli/exit_codes.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report/file.h"

// What `rules` and `classify` share.
namespace gpurecover::cli {

inline Option format_option() {
  return {.names = {"--format"},
          .kind = Kind::kChoice,
          .metavar = "FORMAT",
          .choices = {"text", "json"}};
}

inline Option phase_option() {
  return {.names = {"--phase"},
          .kind = Kind::kChoice,
          .metavar = "PHASE",
          .choices = {"launch", "run"}};
}

inline classifier::Format format_of(const Invocation& invocation) {
  return invocation.value("--format") == "json" ? classifier::Format::json
                                                : classifier::Format::text;
}

inline std::optional<classifier::FileText> rules_file(const Invocation& invocation) {
  if (!invocation.has("--rules")) {
    return std::nullopt;
  }
  const std::string path = invocation.value("--rules");
  return classifier::FileText{path, read_file(path)};
}

inline int show(const classifier::VerbResult& result) {
  if (!result.err.empty()) {
    Output().error(result.err);
  }
  return print(result.out) ? result.exit_code : int{kOurError};
}

}  // namespace gpurecover::cli
