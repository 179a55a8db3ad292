// SPDX-License-Identifier: Apache-2.0
#include "cli/report/events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/report/file.h"

namespace gpurecover::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string rfc3339(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(since - seconds);
  const std::time_t whole = seconds.count();
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     micros.count());
}

EventLog::~EventLog() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

tl::expected<void, std::string> EventLog::open(const std::string& path) {
  if (auto prepared = ReportFile::prepare(path); !prepared) {
    return failure(prepared.error());
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd_ < 0) {
    return failure("cannot write " + path + ": " + std::strerror(errno));
  }
  return {};
}

void EventLog::write(std::string_view event, Fields fields) {
  if (fd_ < 0) {
    return;
  }
  Json line = Json::object();
  line["seq"] = ++sequence_;
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start_;
  line["mono_s"] = std::round(since.count() * 1e6) / 1e6;
  line["time"] = rfc3339(std::chrono::system_clock::now());
  line["event"] = event;
  for (const auto& [name, value] : fields) {
    std::visit([&line, &name = name](const auto& it) { line[std::string(name)] = it; }, value);
  }
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n > 0) {
      rest.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      // A full disk ends the log; the run goes on.
      ::close(fd_);
      fd_ = -1;
      return;
    }
  }
}

void EventLog::write_fault(std::int64_t pid, const protocol::FaultRecord& fault) {
  write("fault", {{"pid", pid},
                  {"kernel", fault.kernel},
                  {"launch", fault.launch},
                  {"stream", fault.stream},
                  {"code", std::int64_t{fault.code}},
                  {"name", fault.name},
                  {"phase", fault.phase},
                  {"injected", fault.injected},
                  {"rule", fault.rule},
                  {"class", fault.cls},
                  {"verdict", fault.verdict},
                  {"trust", fault.trust},
                  {"action", fault.action},
                  {"attempts", std::uint64_t{fault.attempts}},
                  {"repeats", fault.repeats},
                  {"outcome", fault.outcome},
                  {"reason", fault.reason},
                  {"message", fault.message},
                  {"detect_ms", fault.detect_ms},
                  {"recover_ms", fault.recover_ms},
                  {"repeat", fault.repeat}});
}

}  // namespace gpurecover::cli
