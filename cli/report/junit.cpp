// SPDX-License-Identifier: Apache-2.0
// JUnit XML as Surefire and nextest write it: one suite for the run, a case for the program and one
// for each fault. A recovered fault is a pass with a <flakyFailure>.
#include <fmt/format.h>

#include "cli/output.h"
#include "cli/report/renderer.h"

namespace gpurecover::cli {
namespace {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      case '\n':
        out += "&#10;";
        break;
      case '\t':
        out += "&#9;";
        break;
      default:
        // XML 1.0 has no other control characters, not even escaped.
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

struct Case {
  std::string name;
  std::string body;
  double seconds = 0;
  bool failed = false;
  bool skipped = false;
};

Case program_case(const RunSummary& summary) {
  Case out{.name = "program", .seconds = summary.wall_s};
  std::string how;
  if (summary.exit.signal) {
    how = fmt::format("killed by signal {}", *summary.exit.signal);
  } else if (summary.exit.code.value_or(0) != 0) {
    how = fmt::format("exit status {}", *summary.exit.code);
  }
  if (!how.empty()) {
    out.failed = true;
    out.body = fmt::format("<failure message=\"{}\" type=\"{}\"/>", escape(how),
                           escape(summary.exit.origin));
  }
  return out;
}

Case fault_case(const protocol::FaultRecord& fault, std::size_t number) {
  Case out;
  out.name = fmt::format("fault {}: {} at {}", number, fault.name, fault.kernel);
  out.seconds = (fault.detect_ms + fault.recover_ms) / 1000;
  const std::string message =
      escape(fault.reason.empty() ? fault.outcome : fault.outcome + ": " + fault.reason);
  const std::string repeat = fault.repeat.empty() ? "" : escape("repeat: " + fault.repeat);
  const auto element = [&](std::string_view name) {
    return fmt::format("<{0} message=\"{1}\" type=\"{2}\">{3}</{0}>", name, message,
                       escape(fault.name), repeat);
  };
  const auto total = outcome_total(fault.outcome);
  if (total == &Totals::recovered) {
    out.body = element("flakyFailure");
  } else if (total == &Totals::not_fired) {
    out.skipped = true;
    out.body = fmt::format("<skipped message=\"{}\"/>", message);
  } else {
    out.failed = true;
    out.body = element("failure");
  }
  return out;
}

class JunitRenderer : public Renderer {
 public:
  std::string render(const RunSummary& summary) const override {
    std::vector<Case> cases{program_case(summary)};
    for (std::size_t i = 0; i < summary.faults.size(); ++i) {
      cases.push_back(fault_case(summary.faults[i].record, i + 1));
    }
    std::size_t failed = 0;
    std::size_t skipped = 0;
    std::string body;
    for (const Case& item : cases) {
      failed += item.failed ? 1 : 0;
      skipped += item.skipped ? 1 : 0;
      body += fmt::format(
          "    <testcase classname=\"gpurecover.run\" name=\"{}\" time=\"{:.6f}\">{}"
          "</testcase>\n",
          escape(item.name), item.seconds, item.body);
    }
    const std::string counts =
        fmt::format("tests=\"{}\" failures=\"{}\" errors=\"0\" time=\"{:.6f}\"", cases.size(),
                    failed, summary.wall_s);
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"gpurecover\" {}>\n"
        "  <testsuite name=\"{}\" {} skipped=\"{}\" timestamp=\"{}\">\n{}  </testsuite>\n"
        "</testsuites>\n",
        counts, escape(shell_join(summary.command)), counts, skipped, escape(summary.started),
        body);
  }
};

}  // namespace

std::unique_ptr<Renderer> make_junit_renderer() {
  return std::make_unique<JunitRenderer>();
}

}  // namespace gpurecover::cli
