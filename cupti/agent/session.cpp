// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/session.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cupti/protocol/codec.h"

namespace gpurecover::agent {
namespace {

using protocol::MessageType;
using std::chrono::milliseconds;

// A supervisor answers within microseconds; one that takes this long is stopped or gone, and the
// app is not to wait for it any longer.
constexpr milliseconds kHandshake{5000};
constexpr milliseconds kSend{1000};

}  // namespace

std::string executable_path() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : std::string();
}

void Session::complain(std::string_view text) {
  std::string line = "gpurecover: ";
  line += text;
  line += '\n';
  // One write, so that lines of several processes do not mix; nothing to be done if it fails.
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

bool Session::join(std::string& error) {
  const char* path = std::getenv(protocol::kEnvSession);
  if (path == nullptr || *path == '\0') {
    return false;
  }
  channel_ = protocol::Channel::connect(path);
  if (!channel_.valid()) {
    error = "the session's supervisor is gone, so this process runs unprotected";
    return false;
  }
  protocol::Hello hello;
  hello.pid = ::getpid();
  hello.executable = executable_path();
  protocol::Frame frame;
  if (!channel_.send(MessageType::kHello, protocol::encode(hello), kHandshake) ||
      channel_.receive(frame, kHandshake) != protocol::Channel::Status::kFrame) {
    error = "the supervisor did not answer, so this process runs unprotected";
    return false;
  }
  if (frame.type == MessageType::kRefused) {
    const auto why = protocol::decode<protocol::Notice>(frame.body);
    error = "the supervisor refused this process, which runs unprotected: " +
            (why ? why->text : std::string("no reason given"));
    return false;
  }
  const auto config = frame.type == MessageType::kConfig
                          ? protocol::decode<protocol::Config>(frame.body)
                          : std::nullopt;
  const auto rules = config ? protocol::decode<classifier::RuleSet>(config->rules) : std::nullopt;
  const auto plan =
      config ? protocol::decode<std::vector<inject::Fault>>(config->plan) : std::nullopt;
  struct stat status {};
  if (!config || !rules || !plan || frame.fd < 0 || ::fstat(frame.fd, &status) != 0 ||
      status.st_size < static_cast<off_t>(sizeof(protocol::SharedPage))) {
    if (frame.fd >= 0) {
      ::close(frame.fd);
    }
    error = "the supervisor is of another version, so this process runs unprotected";
    return false;
  }
  void* page = ::mmap(nullptr, sizeof(protocol::SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                      frame.fd, 0);
  ::close(frame.fd);
  if (page == MAP_FAILED) {
    error = "no memory for the session's counters, so this process runs unprotected";
    return false;
  }
  page_ = static_cast<protocol::SharedPage*>(page);
  if (page_->magic != protocol::kSharedPageMagic || page_->version != protocol::kProtocolVersion) {
    error = "the supervisor is of another version, so this process runs unprotected";
    return false;
  }
  config_ = *config;
  rules_ = *rules;
  plan_ = *plan;
  return true;
}

void Session::send(MessageType type, const std::vector<std::byte>& body) {
  const std::lock_guard lock(channel_mutex_);
  if (lost_ || channel_.send(type, body, kSend)) {
    return;
  }
  lost_ = true;
  complain(
      "the connection to the supervisor is gone; the app goes on, but nothing is reported any "
      "more");
}

std::uint32_t Session::reason_id(std::string_view text) {
  std::uint32_t id = 0;
  {
    const std::lock_guard lock(names_mutex_);
    if (const auto at = reasons_.find(text); at != reasons_.end()) {
      return at->second;
    }
    // The last row takes all reasons beyond the table's end.
    id = static_cast<std::uint32_t>(reasons_.size());
    if (id >= protocol::kMaxReasons - 1) {
      id = protocol::kMaxReasons - 1;
      text = "(other reasons)";
    }
    reasons_.emplace(text, id);
  }
  protocol::ReasonInfo info;
  info.id = id;
  info.text = text;
  send(MessageType::kReason, protocol::encode(info));
  return id;
}

std::uint32_t Session::kernel_row(const std::string& symbol) {
  const std::lock_guard lock(names_mutex_);
  if (const auto at = rows_.find(symbol); at != rows_.end()) {
    return at->second;
  }
  const std::size_t row = rows_.size() + 1;  // row 0 takes what is beyond the table's end
  if (row >= protocol::kMaxKernels) {
    return 0;
  }
  rows_.emplace(symbol, static_cast<std::uint32_t>(row));
  return static_cast<std::uint32_t>(row);
}

void Session::attached(const protocol::Attached& message) {
  page_->active = message.active ? 1 : 0;
  send(MessageType::kAttached, protocol::encode(message));
}

void Session::kernel(const protocol::KernelInfo& message) {
  send(MessageType::kKernel, protocol::encode(message));
}

void Session::fault(const protocol::FaultRecord& message) {
  send(MessageType::kFault, protocol::encode(message));
}

void Session::notice(protocol::Severity severity, std::string text) {
  protocol::Notice notice;
  notice.severity = severity;
  notice.text = std::move(text);
  send(MessageType::kNotice, protocol::encode(notice));
}

void Session::call_without_row(std::uint32_t id, std::string_view name) {
  if (id >= protocol::kMaxCalls) {
    return;
  }
  if (page_->calls[id].fetch_add(1, std::memory_order_relaxed) == 0) {
    protocol::CallInfo info;
    info.id = id;
    info.name = name;
    send(MessageType::kCall, protocol::encode(info));
  }
}

std::uint64_t Session::launches() const {
  std::uint64_t sum = 0;
  for (const auto& kernel : page_->kernels) {
    for (const auto& verdict : kernel.launches) {
      for (const auto& count : verdict) {
        sum += count.load(std::memory_order_relaxed);
      }
    }
  }
  return sum;
}

int Session::start_standby(std::string& error) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    error = std::string("no socket to a standby: ") + std::strerror(errno);
    return -1;
  }
  const int ours = protocol::move_out_of_the_way(ends[0]);
  const auto give_up = [&](std::string why) {
    if (ours >= 0) {
      ::close(ours);
    }
    error = std::move(why);
    return -1;
  };
  const std::lock_guard lock(channel_mutex_);
  const bool sent = ours >= 0 && !lost_ && channel_.send(MessageType::kStandby, {}, kSend, ends[1]);
  ::close(ends[1]);
  if (!sent) {
    return give_up("the supervisor, which starts standbys, is gone");
  }
  const auto deadline = std::chrono::steady_clock::now() + kHandshake;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    protocol::Frame frame;
    switch (channel_.receive(frame, std::max(left, milliseconds(0)))) {
      case protocol::Channel::Status::kNothing:
        // Its answer may still come, to be thrown away by whoever reads next.
        return give_up("the supervisor did not start a standby in time");
      case protocol::Channel::Status::kClosed:
        return give_up("the supervisor, which starts standbys, is gone");
      case protocol::Channel::Status::kFrame:
        break;
    }
    if (frame.fd >= 0) {
      ::close(frame.fd);
      frame.fd = -1;
    }
    if (frame.type != MessageType::kStandbyStarted) {
      early_.push_back(std::move(frame));
      continue;
    }
    const auto started = protocol::decode<protocol::StandbyStarted>(frame.body);
    if (!started || !started->error.empty() || started->pid <= 0) {
      return give_up("no standby was started: " +
                     (started ? started->error : std::string("the answer is of another version")));
    }
    return ours;
  }
}

bool Session::take_new_plan(std::vector<inject::Fault>& plan) {
  const std::uint32_t generation = page_->plan_generation.load();
  const std::lock_guard lock(channel_mutex_);
  if (plan_generation_.exchange(generation) == generation) {
    return false;  // another thread has taken it
  }
  bool any = false;
  // The message was sent before the generation was raised.
  std::vector<protocol::Frame> frames = std::exchange(early_, {});
  protocol::Frame next;
  while (channel_.receive(next, milliseconds(0)) == protocol::Channel::Status::kFrame) {
    if (next.fd >= 0) {
      ::close(next.fd);
      next.fd = -1;
    }
    frames.push_back(std::move(next));
  }
  for (const protocol::Frame& frame : frames) {
    const auto update = frame.type == MessageType::kPlan
                            ? protocol::decode<protocol::PlanUpdate>(frame.body)
                            : std::nullopt;
    const auto faults =
        update ? protocol::decode<std::vector<inject::Fault>>(update->plan) : std::nullopt;
    if (faults) {
      plan.insert(plan.end(), faults->begin(), faults->end());
      any = true;
    }
  }
  return any;
}

void Session::abandon() {
  // No lock: in a forked child another thread of the parent may hold it for ever.
  lost_ = true;
  channel_.close();
}

}  // namespace gpurecover::agent
