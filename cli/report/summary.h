// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cli/result.h"
#include "cupti/protocol/messages.h"

// The run summary (DESIGN section 10), as data. Every report format is rendered from it.
namespace gpurecover::cli {

inline constexpr std::string_view kRunSchema = "gpurecover.run/1";

std::string_view word(protocol::VerdictKind kind);
std::optional<protocol::VerdictKind> parse_verdict(std::string_view text);
std::string_view word(protocol::Level level);
std::string_view word(protocol::Severity severity);

// Which of the totals a fault's outcome belongs to; null for a word that is no outcome.
struct Totals;
std::uint64_t Totals::*outcome_total(std::string_view outcome);

struct DeviceInfo {
  std::string kind;  // "cuda", "soft" or "none"
  std::string name;
  std::string driver;
  std::string cc;
};

struct ExitInfo {
  std::optional<int> code;  // exactly one of code and signal, once the app has ended
  std::optional<int> signal;
  std::string origin;  // app, signal, watchdog, gpurecover; empty while it runs
};

struct Totals {
  std::uint64_t launches = 0;
  std::uint64_t kernels = 0;
  std::uint64_t idempotent = 0;
  std::uint64_t clobbers = 0;
  std::uint64_t unknown = 0;
  std::uint64_t protected_ = 0;
  std::uint64_t unprotected = 0;
  std::uint64_t snapshotted = 0;
  std::uint64_t faults = 0;
  std::uint64_t recovered = 0;
  std::uint64_t returned = 0;
  std::uint64_t refused = 0;
  std::uint64_t declined = 0;
  std::uint64_t not_fired = 0;
  std::uint64_t silent = 0;
};

// A member that is left out where there is nothing to say.
struct OptionalText {
  std::string text;
};

struct KernelSummary {
  std::string name;
  std::uint64_t launches = 0;
  std::string verdict;
  std::string trust;
  std::string reason;
  std::vector<std::string> reads;
  std::vector<std::string> writes;
  OptionalText analysis;  // the side file that its summary is from
};

struct FaultSummary {
  std::int64_t pid = 0;  // 0: of no process (not fired)
  protocol::FaultRecord record;
};

struct ProcessSummary {
  std::int64_t pid = 0;
  std::string executable;
  bool active = false;
  std::string reason;  // why it is not active
  std::uint32_t cupti_version = 0;
  std::uint64_t launches = 0;
};

struct RunSummary {
  std::string tool;
  std::vector<std::string> command;
  std::string session;
  std::string level;
  std::string started;  // wall time, RFC 3339
  DeviceInfo device;
  ExitInfo exit;
  double wall_s = 0;
  Totals totals;
  std::map<std::string, std::uint64_t> unprotected_reasons;
  std::vector<KernelSummary> kernels;
  std::vector<FaultSummary> faults;
  std::map<std::string, std::uint64_t> calls_without_row;
  std::vector<ProcessSummary> processes;
};

// What the contract promises of the totals: idempotent, clobbers and unknown add up to launches,
// protected and unprotected too, and the six outcomes add up to faults. The error names the sum.
tl::expected<void, std::string> check_totals(const Totals& totals);

// Reads a summary back. Any bytes are safe. The error names the member and what is wrong with it.
tl::expected<RunSummary, std::string> parse_summary(std::string_view json);

// The few lines for a human at the end of a run.
std::string human_summary(const RunSummary& summary);

}  // namespace gpurecover::cli
