// SPDX-License-Identifier: Apache-2.0
#include "cli/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/report/renderer.h"

namespace gpurecover::cli {
namespace {

using protocol::VerdictKind;

constexpr std::array<std::pair<VerdictKind, std::string_view>, 3> kVerdicts{
    {{VerdictKind::kIdempotent, "idempotent"},
     {VerdictKind::kClobbers, "clobbers"},
     {VerdictKind::kUnknown, "unknown"}}};

constexpr std::array<std::pair<std::string_view, std::uint64_t Totals::*>, 8> kOutcomes{
    {{"recovered-replay", &Totals::recovered},
     {"recovered-takeover", &Totals::recovered},
     {"recovered-epoch", &Totals::recovered},
     {"returned", &Totals::returned},
     {"refused", &Totals::refused},
     {"declined", &Totals::declined},
     {"not-fired", &Totals::not_fired},
     {"silent", &Totals::silent}}};

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

}  // namespace

std::string_view word(VerdictKind kind) {
  for (const auto& [value, text] : kVerdicts) {
    if (value == kind) {
      return text;
    }
  }
  return "unknown";
}

std::optional<VerdictKind> parse_verdict(std::string_view text) {
  for (const auto& [value, candidate] : kVerdicts) {
    if (candidate == text) {
      return value;
    }
  }
  return std::nullopt;
}

std::string_view word(protocol::Level level) {
  switch (level) {
    case protocol::Level::kObserve:
      return "observe";
    case protocol::Level::kReplay:
      return "replay";
    case protocol::Level::kFull:
      break;
  }
  return "full";
}

std::string_view word(protocol::Severity severity) {
  switch (severity) {
    case protocol::Severity::kInfo:
      return "info";
    case protocol::Severity::kWarning:
      return "warning";
    case protocol::Severity::kError:
      break;
  }
  return "error";
}

std::uint64_t Totals::*outcome_total(std::string_view outcome) {
  for (const auto& [text, total] : kOutcomes) {
    if (text == outcome) {
      return total;
    }
  }
  return nullptr;
}

tl::expected<void, std::string> check_totals(const Totals& totals) {
  const auto differ = [](std::string_view parts, std::uint64_t sum, std::string_view whole,
                         std::uint64_t value) {
    return failure(fmt::format("totals: {} add up to {}, but {} is {}", parts, sum, whole, value));
  };
  const std::uint64_t verdicts = totals.idempotent + totals.clobbers + totals.unknown;
  if (verdicts != totals.launches) {
    return differ("idempotent, clobbers and unknown", verdicts, "launches", totals.launches);
  }
  const std::uint64_t protection = totals.protected_ + totals.unprotected;
  if (protection != totals.launches) {
    return differ("protected and unprotected", protection, "launches", totals.launches);
  }
  const std::uint64_t outcomes = totals.recovered + totals.returned + totals.refused +
                                 totals.declined + totals.not_fired + totals.silent;
  if (outcomes != totals.faults) {
    return differ("recovered, returned, refused, declined, not_fired and silent", outcomes,
                  "faults", totals.faults);
  }
  return {};
}

std::string human_summary(const RunSummary& summary) {
  const Totals& totals = summary.totals;
  std::string out;
  if (totals.launches == 0) {
    const auto active = std::count_if(summary.processes.begin(), summary.processes.end(),
                                      [](const ProcessSummary& process) { return process.active; });
    out += active > 0                  ? "no kernel was launched"
           : summary.processes.empty() ? "nothing here used CUDA: nothing to protect"
                                       : "no process was protected";
  } else {
    out += fmt::format(
        "{} of {}, {} protected ({:.1f}%)", counted(totals.launches, "launch"),
        counted(totals.kernels, "kernel"), totals.protected_,
        100.0 * static_cast<double>(totals.protected_) / static_cast<double>(totals.launches));
  }
  std::vector<std::pair<std::uint64_t, std::string_view>> reasons;
  for (const auto& [reason, launches] : summary.unprotected_reasons) {
    reasons.emplace_back(launches, reason);
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr std::size_t kShown = 3;
  for (std::size_t i = 0; i < std::min(reasons.size(), kShown); ++i) {
    out += fmt::format("\nnot protected: {}: {}", counted(reasons[i].first, "launch"),
                       reasons[i].second);
  }
  if (reasons.size() > kShown) {
    out += fmt::format("\nnot protected: {} more", counted(reasons.size() - kShown, "reason"));
  }
  if (totals.faults > 0) {
    out += "\n" + counted(totals.faults, "fault") + ":";
    const std::pair<std::uint64_t, std::string_view> parts[] = {
        {totals.recovered, "recovered"}, {totals.returned, "returned to the app"},
        {totals.refused, "refused"},     {totals.declined, "declined"},
        {totals.not_fired, "not fired"}, {totals.silent, "silent"}};
    const char* separator = " ";
    for (const auto& [count, text] : parts) {
      if (count > 0) {
        out += fmt::format("{}{} {}", separator, count, text);
        separator = ", ";
      }
    }
  }
  if (!summary.calls_without_row.empty()) {
    std::uint64_t calls = 0;
    for (const auto& [name, count] : summary.calls_without_row) {
      calls += count;
    }
    out += fmt::format("\n{} of the driver that this version does not know: {}{}",
                       counted(calls, "call"), summary.calls_without_row.begin()->first,
                       summary.calls_without_row.size() > 1 ? ", ..." : "");
  }
  return out;
}

std::unique_ptr<Renderer> make_renderer(std::string_view format) {
  if (format == "json") {
    return make_json_renderer();
  }
  if (format == "junit") {
    return make_junit_renderer();
  }
  if (format == "markdown") {
    return make_markdown_renderer();
  }
  return nullptr;
}

const std::vector<std::string_view>& report_formats() {
  static const std::vector<std::string_view> formats{"json", "junit", "markdown"};
  return formats;
}

}  // namespace gpurecover::cli
