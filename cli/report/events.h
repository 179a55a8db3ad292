// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "cli/result.h"
#include "cupti/protocol/messages.h"

namespace gpurecover::cli {

// "2026-11-30T12:34:56.789012Z"
std::string rfc3339(std::chrono::system_clock::time_point time);

// The event log: JSON Lines, each line written by one write, so that it is good up to the last
// whole line whatever happens. Every line has seq (from 1, without gaps), mono_s (seconds since the
// start of the run), time (wall clock) and event. Until opened, events go nowhere.
class EventLog {
 public:
  using Value = std::variant<std::string, std::int64_t, std::uint64_t, double, bool,
                             std::vector<std::string>>;
  using Fields = std::initializer_list<std::pair<std::string_view, Value>>;

  EventLog() = default;
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  ~EventLog();

  // Replaces an old file, whole, at once.
  tl::expected<void, std::string> open(const std::string& path);
  bool is_open() const { return fd_ >= 0; }

  void write(std::string_view event, Fields fields);
  // A fault, with the words of the run summary.
  void write_fault(std::int64_t pid, const protocol::FaultRecord& fault);

 private:
  int fd_ = -1;
  std::uint64_t sequence_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace gpurecover::cli
