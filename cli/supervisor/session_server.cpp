// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/session_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "cli/fault_options.h"
#include "cupti/protocol/codec.h"
#include "cupti/protocol/shared_page.h"

namespace gpurecover::cli {
namespace {

using protocol::Frame;
using protocol::MessageType;
using protocol::SharedPage;

constexpr std::chrono::milliseconds kSendTimeout{1000};
constexpr std::chrono::milliseconds kAtOnce{0};
// Agents' messages are a few kilobytes; a larger one is no message of theirs. Bounds what decoding
// can be made to allocate.
constexpr std::size_t kMaxBody = 1U << 20;
constexpr std::size_t kMaxPeers = 1024;
// How much of one peer is handled before the others and the app's signals get their turn.
constexpr std::size_t kTurn = 256;
// Drained after the app's end: more than any process leaves in a socket buffer.
constexpr std::size_t kDrain = 1U << 20;
constexpr std::size_t kMaxLeavers = 256;
constexpr std::uint64_t kMaxFaultLines = 50;
constexpr std::size_t kMaxDifferentNotices = 1000;

std::string with_count(std::string text, std::uint64_t count, const char* what) {
  return count > 1 ? fmt::format("{} ({} {}s)", text, count, what) : text;
}

}  // namespace

// A process's counters: a sealed memfd, so that the process cannot shrink it under our feet.
struct SessionServer::Page {
  int fd = -1;
  SharedPage* page = nullptr;

  static std::unique_ptr<Page> make() {
    auto out = std::make_unique<Page>();
    out->fd = ::memfd_create("gpurecover-counters", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (out->fd < 0 || ::ftruncate(out->fd, sizeof(SharedPage)) != 0) {
      return nullptr;
    }
    ::fcntl(out->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    void* memory =
        ::mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED, out->fd, 0);
    if (memory == MAP_FAILED) {
      return nullptr;
    }
    // The file is all zeros, which is every counter's first value.
    out->page = static_cast<SharedPage*>(memory);
    out->page->magic = protocol::kSharedPageMagic;
    out->page->version = protocol::kProtocolVersion;
    return out;
  }
  ~Page() {
    if (page != nullptr) {
      ::munmap(page, sizeof(SharedPage));
    }
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

SessionServer::SessionServer(SessionSettings settings, std::vector<inject::Fault> plan,
                             Tally& tally, EventLog& events, const Output& output)
    : settings_(std::move(settings)),
      plan_(std::move(plan)),
      tally_(tally),
      events_(events),
      output_(output) {
  update_plan();
}

SessionServer::~SessionServer() {
  if (listener_ >= 0) {
    ::close(listener_);
  }
}

void SessionServer::update_plan() {
  std::vector<std::string> repeats;
  for (const inject::Fault& fault : plan_) {
    repeats.push_back(settings_.repeat(fault_options(fault)));
  }
  tally_.set_plan(plan_, repeats);
}

tl::expected<void, std::string> SessionServer::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return failure("the session socket's path is too long: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0 ||
      ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(listener_, SOMAXCONN) != 0) {
    return failure("cannot open the session socket " + path + ": " + std::strerror(errno));
  }
  return {};
}

void SessionServer::add_to(std::vector<pollfd>& entries) const {
  if (accepting_) {
    entries.push_back({listener_, POLLIN, 0});
  }
  for (const auto& [fd, peer] : peers_) {
    entries.push_back({fd, POLLIN, 0});
  }
  for (const Leaver& leaver : leavers_) {
    entries.push_back({leaver.pidfd, POLLIN, 0});
  }
}

void SessionServer::handle(const std::vector<pollfd>& entries) {
  const bool all = pending_;
  pending_ = false;
  for (const pollfd& entry : entries) {
    if (entry.fd == listener_) {
      if (entry.revents != 0) {
        accept_peers();
      }
      continue;
    }
    if (const auto leaver = std::find_if(leavers_.begin(), leavers_.end(),
                                         [&](const Leaver& one) { return one.pidfd == entry.fd; });
        leaver != leavers_.end()) {
      if (entry.revents != 0) {
        end(*leaver);
        leavers_.erase(leaver);
      }
      continue;
    }
    const auto found = peers_.find(entry.fd);
    if (found != peers_.end() && (all || entry.revents != 0) && !serve(found->second, kTurn)) {
      drop(entry.fd);
    }
  }
}

void SessionServer::accept_peers() {
  while (peers_.size() < kMaxPeers) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      // Out of descriptors: asking again at once would spin. A connection that ends frees one.
      if (errno == EMFILE || errno == ENFILE) {
        accepting_ = peers_.empty();
      }
      return;
    }
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 ||
        credentials.uid != ::geteuid()) {
      ::close(fd);
      continue;
    }
    Peer peer;
    peer.channel = protocol::Channel(fd);
    peer.pid = credentials.pid;
    peers_.emplace(fd, std::move(peer));
  }
  accepting_ = false;
}

bool SessionServer::serve(Peer& peer, std::size_t limit) {
  for (std::size_t i = 0; i < limit; ++i) {
    Frame frame;
    switch (peer.channel.receive(frame, kAtOnce)) {
      case protocol::Channel::Status::kNothing:
        return true;
      case protocol::Channel::Status::kClosed:
        return false;
      case protocol::Channel::Status::kFrame:
        break;
    }
    const bool good = frame.body.size() <= kMaxBody && handle_message(peer, frame);
    if (frame.fd >= 0) {
      ::close(frame.fd);
    }
    if (!good) {
      if (!peer.channel.valid()) {
        return false;  // it went away while it was answered
      }
      output_.detail(
          fmt::format("process {}: a message that this version does not know", peer.pid));
      events_.write("peer-refused",
                    {{"pid", peer.pid}, {"reason", std::string("not a message of this version")}});
      return false;
    }
  }
  pending_ = true;
  return true;
}

void SessionServer::drop(int fd) {
  const auto found = peers_.find(fd);
  if (found == peers_.end()) {
    return;
  }
  Peer& peer = found->second;
  if (peer.is_agent) {
    // The connection ends before the process does, and after a broken one it may go on for long:
    // its counters are read when it is gone.
    Leaver leaver{peer.process, peer.pid, std::move(peer.page), peer.pidfd};
    if (leaver.pidfd < 0) {
      end(leaver);
    } else {
      if (leavers_.size() >= kMaxLeavers) {
        end(leavers_.front());
        leavers_.erase(leavers_.begin());
      }
      leavers_.push_back(std::move(leaver));
    }
  }
  peers_.erase(found);
  accepting_ = true;
}

void SessionServer::end(Leaver& leaver) {
  tally_.end_process(leaver.process);
  events_.write("process-ended", {{"pid", leaver.pid}});
  if (leaver.pidfd >= 0) {
    ::close(leaver.pidfd);
  }
}

bool SessionServer::handle_message(Peer& peer, const Frame& frame) {
  const auto from_agent = [&] { return peer.is_agent; };
  switch (frame.type) {
    case MessageType::kHello:
      return !peer.is_agent && hello(peer, frame);
    case MessageType::kAttached: {
      auto message = protocol::decode<protocol::Attached>(frame.body);
      if (!from_agent() || !message) {
        return false;
      }
      attached(peer, *message);
      return true;
    }
    case MessageType::kKernel: {
      auto message = protocol::decode<protocol::KernelInfo>(frame.body);
      if (!from_agent() || !message || !tally_.kernel(peer.process, *message)) {
        return false;
      }
      events_.write("kernel", {{"pid", peer.pid},
                               {"name", message->name},
                               {"symbol", message->symbol},
                               {"verdict", std::string(word(message->verdict))},
                               {"trust", message->trust},
                               {"reason", message->reason},
                               {"reads", message->reads},
                               {"writes", message->writes}});
      output_.detail(fmt::format("kernel {}: {}{}", message->name, word(message->verdict),
                                 message->reason.empty() ? "" : ": " + message->reason));
      return true;
    }
    case MessageType::kReason: {
      auto message = protocol::decode<protocol::ReasonInfo>(frame.body);
      return from_agent() && message && tally_.reason(peer.process, std::move(*message));
    }
    case MessageType::kCall: {
      auto message = protocol::decode<protocol::CallInfo>(frame.body);
      if (!from_agent() || !message || !tally_.call(peer.process, *message)) {
        return false;
      }
      events_.write("call-without-row", {{"pid", peer.pid}, {"name", message->name}});
      return true;
    }
    case MessageType::kFault:
      return from_agent() && fault(peer, frame);
    case MessageType::kNotice: {
      auto message = protocol::decode<protocol::Notice>(frame.body);
      if (!from_agent() || !message || message->severity > protocol::Severity::kError) {
        return false;
      }
      events_.write("notice", {{"pid", peer.pid},
                               {"severity", std::string(word(message->severity))},
                               {"text", message->text}});
      // Many processes say the same: once is enough.
      if (said_.size() < kMaxDifferentNotices && ++said_[message->text] == 1) {
        output_.say(message->severity, message->text);
      }
      return true;
    }
    case MessageType::kStatusRequest: {
      protocol::Notice answer;
      answer.text = status_ ? status_() : "";
      return peer.channel.send(MessageType::kStatus, protocol::encode(answer), kSendTimeout);
    }
    case MessageType::kArm:
      return arm(peer, frame);
    case MessageType::kStandby:
      return from_agent() && standby(peer, frame);
    default:
      return false;
  }
}

bool SessionServer::standby(Peer& peer, const Frame& frame) {
  protocol::StandbyStarted answer;
  if (frame.fd < 0 || !start_standby_) {
    answer.error = "the request came without a socket";
  } else if (const auto started = start_standby_(frame.fd, peer.pid)) {
    answer.pid = *started;
  } else {
    answer.error = started.error();
  }
  events_.write(
      "standby",
      {{"pid", peer.pid}, {"standby", std::int64_t{answer.pid}}, {"error", answer.error}});
  return peer.channel.send(MessageType::kStandbyStarted, protocol::encode(answer), kSendTimeout);
}

bool SessionServer::hello(Peer& peer, const Frame& frame) {
  const auto message = protocol::decode<protocol::Hello>(frame.body);
  if (!message) {
    // An agent of another version may say more than this one knows; the number comes first.
    protocol::Reader reader(frame.body);
    std::uint32_t version = 0;
    reader(version);
    return refuse(peer, fmt::format("protocol version {}, this gpurecover speaks {}", version,
                                    protocol::kProtocolVersion));
  }
  if (message->version != protocol::kProtocolVersion) {
    return refuse(peer, fmt::format("protocol version {}, this gpurecover speaks {}",
                                    message->version, protocol::kProtocolVersion));
  }
  peer.page = Page::make();
  if (!peer.page) {
    return refuse(peer, std::string("no memory for its counters: ") + std::strerror(errno));
  }
  if (peer.pid == 0) {
    peer.pid = message->pid;  // of a process in another pid namespace
  } else {
    peer.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(peer.pid), 0));
  }
  peer.is_agent = true;
  peer.process = tally_.add_process(peer.pid, message->executable, peer.page->page);
  events_.write("process", {{"pid", peer.pid}, {"executable", message->executable}});
  protocol::Config config;
  config.session = settings_.name;
  config.level = settings_.level;
  config.verbosity = settings_.verbosity;
  config.standby = settings_.standby;
  config.no_steer = settings_.no_steer;
  config.analysis_dir = settings_.analysis_dir;
  config.rules = settings_.rules;
  config.plan = protocol::encode(plan_);
  const bool sent = peer.channel.send(MessageType::kConfig, protocol::encode(config), kSendTimeout,
                                      peer.page->fd);
  ::close(std::exchange(peer.page->fd, -1));  // mapped here; the process has its own
  return sent;
}

bool SessionServer::refuse(Peer& peer, const std::string& why) {
  output_.warning(fmt::format("process {} runs unprotected: {}", peer.pid, why));
  events_.write("peer-refused", {{"pid", peer.pid}, {"reason", why}});
  protocol::Notice notice;
  notice.severity = protocol::Severity::kError;
  notice.text = why;
  return peer.channel.send(MessageType::kRefused, protocol::encode(notice), kSendTimeout);
}

void SessionServer::attached(Peer& peer, const protocol::Attached& message) {
  tally_.attached(peer.process, message);
  events_.write("attached", {{"pid", peer.pid},
                             {"active", message.active},
                             {"reason", message.reason},
                             {"device_kind", message.device_kind},
                             {"device_name", message.device_name},
                             {"driver", message.driver},
                             {"cc", message.cc},
                             {"cupti_version", std::uint64_t{message.cupti_version}}});
  if (message.active) {
    output_.detail(fmt::format("process {}: attached, {} {}, driver {}, compute capability {}",
                               peer.pid, message.device_kind, message.device_name, message.driver,
                               message.cc));
  } else if (said_.size() < kMaxDifferentNotices &&
             ++said_["unprotected: " + message.reason] == 1) {
    output_.warning(fmt::format("process {} runs unprotected: {}", peer.pid, message.reason));
  }
}

bool SessionServer::fault(Peer& peer, const Frame& frame) {
  auto message = protocol::decode<protocol::FaultRecord>(frame.body);
  if (!message) {
    return false;
  }
  if (!message->repeat.empty()) {
    message->repeat = settings_.repeat(message->repeat);
  }
  if (!tally_.fault(peer.process, *message)) {
    return false;
  }
  events_.write_fault(peer.pid, *message);
  ++faults_said_;
  if (faults_said_ <= kMaxFaultLines) {
    std::string line = fmt::format("fault: {} ({}) at kernel {}", message->name, message->code,
                                   message->kernel.empty() ? "?" : message->kernel);
    if (message->launch > 0) {
      line += fmt::format(", launch {}", message->launch);
    }
    line += message->injected ? ", injected: " : ": ";
    line += message->outcome;
    if (message->outcome.starts_with("recovered")) {
      line += with_count(fmt::format(" in {:.3f} ms", message->recover_ms), message->attempts,
                         "attempt");
    } else if (!message->reason.empty()) {
      line += ": " + message->reason;
    }
    if (!message->rule.empty()) {
      line += fmt::format(" [rule {}, {}]", message->rule, message->cls);
    }
    output_.warning(line);
    if (!message->steps.empty()) {
      std::string steps = "its steps, in ms:";
      for (const auto& step : message->steps) {
        steps += fmt::format(" {} {:.3f},", step.name, step.ms);
      }
      steps.pop_back();
      output_.detail(steps);
    }
    if (!message->message.empty()) {
      output_.info(message->message);
    }
    if (!message->repeat.empty()) {
      output_.warning("repeat it: " + message->repeat);
    }
  } else if (faults_said_ == kMaxFaultLines + 1) {
    output_.warning("further faults are counted, not printed; --report lists them");
  }
  return true;
}

bool SessionServer::arm(Peer& peer, const Frame& frame) {
  auto request = protocol::decode<protocol::ArmRequest>(frame.body);
  auto faults =
      request ? protocol::decode<std::vector<inject::Fault>>(request->plan) : std::nullopt;
  protocol::Notice answer;
  if (!faults || faults->empty()) {
    answer.text = "the request holds no fault that this version reads";
  } else if (plan_.size() + faults->size() > protocol::kMaxFaultSpecs) {
    answer.text = fmt::format("a session takes {} faults, {} are armed already",
                              protocol::kMaxFaultSpecs, plan_.size());
  } else {
    plan_.insert(plan_.end(), faults->begin(), faults->end());
    update_plan();
    for (const inject::Fault& fault : *faults) {
      events_.write("armed", {{"kernel", fault.kernel},
                              {"kind", fault.kind},
                              {"code", std::int64_t{fault.code}},
                              {"by", peer.pid}});
      output_.info(
          fmt::format("armed by process {}: {} at kernel {}", peer.pid, fault.kind, fault.kernel));
    }
    protocol::PlanUpdate update;
    update.plan = protocol::encode(*faults);
    std::vector<int> gone;
    for (auto& [fd, other] : peers_) {
      if (!other.is_agent) {
        continue;
      }
      if (other.channel.send(MessageType::kPlan, protocol::encode(update), kSendTimeout)) {
        other.page->page->plan_generation.fetch_add(1, std::memory_order_release);
      } else {
        gone.push_back(fd);
      }
    }
    for (const int fd : gone) {
      drop(fd);
    }
  }
  return peer.channel.send(MessageType::kArmed, protocol::encode(answer), kSendTimeout);
}

void SessionServer::drain() {
  // Whoever connected and wrote before the app ended is in the backlog and the buffers now.
  accepting_ = true;
  accept_peers();
  std::vector<int> fds;
  for (const auto& [fd, peer] : peers_) {
    fds.push_back(fd);
  }
  for (const int fd : fds) {
    serve(peers_.at(fd), kDrain);
  }
  for (const int fd : fds) {
    drop(fd);
  }
  for (Leaver& leaver : leavers_) {
    end(leaver);
  }
  leavers_.clear();
  if (listener_ >= 0) {
    ::close(listener_);
    listener_ = -1;
  }
}

}  // namespace gpurecover::cli
