// SPDX-License-Identifier: Apache-2.0
// Markdown for a pull request or a job summary.
#include <fmt/format.h>

#include "cli/output.h"
#include "cli/report/renderer.h"

namespace gpurecover::cli {
namespace {

// Text inside a table cell: nothing in it may end the cell or start markup.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
      continue;
    }
    if (std::string_view("\\|`*_<>[]#&").find(c) != std::string_view::npos) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : ", ") + word;
  }
  return out;
}

// A code block whose content may hold backticks.
std::string code_block(const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) {
    fence += '`';
  }
  return fence + "\n" + text + "\n" + fence + "\n";
}

std::string ending(const ExitInfo& exit) {
  if (exit.signal) {
    return fmt::format("killed by signal {}", *exit.signal);
  }
  return exit.code ? fmt::format("exit status {}", *exit.code) : "still running";
}

class MarkdownRenderer : public Renderer {
 public:
  std::string render(const RunSummary& summary) const override {
    std::string out = "# GPU fault report\n\n" + code_block(shell_join(summary.command)) + "\n";
    const DeviceInfo& device = summary.device;
    out += fmt::format("{} after {:.3f} s, on {}{}{}.\n\n", ending(summary.exit), summary.wall_s,
                       device.kind.empty() ? "no device" : cell(device.kind),
                       device.name.empty() ? "" : " " + cell(device.name),
                       device.driver.empty() ? "" : " (CUDA driver " + cell(device.driver) + ")");
    for (const std::string_view line : lines(human_summary(summary))) {
      out += fmt::format("- {}\n", cell(line));
    }
    if (!summary.faults.empty()) {
      out +=
          "\n## Faults\n\n| Kernel | Launch | Error | Injected | Rule | Verdict | Outcome | Why | "
          "Recovery, ms |\n|---|---|---|---|---|---|---|---|---|\n";
      for (const FaultSummary& fault : summary.faults) {
        const protocol::FaultRecord& record = fault.record;
        out += fmt::format("| {} | {} | {} ({}) | {} | {} | {} | {} | {} | {:.3f} |\n",
                           cell(record.kernel), record.launch, cell(record.name), record.code,
                           record.injected ? "yes" : "no", cell(record.rule), cell(record.verdict),
                           cell(record.outcome), cell(record.reason), record.recover_ms);
      }
      std::string repeats;
      for (const FaultSummary& fault : summary.faults) {
        if (!fault.record.repeat.empty()) {
          repeats += (repeats.empty() ? "" : "\n") + fault.record.repeat;
        }
      }
      if (!repeats.empty()) {
        out += "\nTo repeat them:\n\n" + code_block(repeats);
      }
    }
    if (!summary.kernels.empty()) {
      out +=
          "\n## Kernels\n\n| Kernel | Launches | Verdict | Trust | Why | Reads | Writes |\n"
          "|---|---|---|---|---|---|---|\n";
      for (const KernelSummary& kernel : summary.kernels) {
        out +=
            fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", cell(kernel.name),
                        kernel.launches, cell(kernel.verdict), cell(kernel.trust),
                        cell(kernel.reason), cell(join(kernel.reads)), cell(join(kernel.writes)));
      }
    }
    return out;
  }

 private:
  static std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> out;
    std::size_t at = 0;
    while (at <= text.size()) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      out.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }
};

}  // namespace

std::unique_ptr<Renderer> make_markdown_renderer() {
  return std::make_unique<MarkdownRenderer>();
}

}  // namespace gpurecover::cli
