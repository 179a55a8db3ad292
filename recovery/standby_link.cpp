// SPDX-License-Identifier: Apache-2.0
#include "recovery/standby_link.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "cupti/protocol/channel.h"
#include "cupti/protocol/standby.h"
#include "recovery/call_codec.h"
#include "recovery/standby/lane.h"

namespace gpurecover::recovery {
namespace {

using protocol::Channel;
using protocol::LaneRequest;
using protocol::MessageType;
using std::chrono::milliseconds;

// cuda.h's numbers; the agent's side makes no CUDA call.
constexpr std::int32_t kErrorInvalidValue = 1;
constexpr std::int32_t kErrorNotPermitted = 800;

constexpr char kGone[] = "the standby is gone";

// When a process began, in clock ticks since boot; with the pid this names it for good. 0: it has
// ended, or there is none.
std::uint64_t start_time(std::int32_t pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return 0;
  }
  char text[1024];
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (n <= 0) {
    return 0;
  }
  text[n] = '\0';
  // The name in parentheses may hold anything; 20 fields after it comes the start time.
  const char* at = std::strrchr(text, ')');
  if (at != nullptr && (std::strncmp(at, ") Z", 3) == 0 || std::strncmp(at, ") X", 3) == 0)) {
    return 0;
  }
  for (int field = 0; at != nullptr && field < 20; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  return at != nullptr ? std::strtoull(at + 1, nullptr, 10) : 0;
}

// The standby as a process. Its descriptor lives among the app's, which may close it and open its
// own under the same number: so it is looked at before it is trusted.
class Process {
 public:
  explicit Process(std::int32_t pid) : pid_(pid), started_(start_time(pid)) {
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    pidfd_ = fd >= 0 ? protocol::move_out_of_the_way(fd) : -1;
  }
  ~Process() {
    if (still_ours()) {
      ::close(pidfd_);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool valid() const { return pidfd_ >= 0 && started_ != 0; }
  std::int32_t pid() const { return pid_; }
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  void forget() { dead_.store(true, std::memory_order_release); }

  // Whether the kernel has ended it. Costs a system call.
  bool ended() {
    if (!dead() && has_ended(milliseconds(0))) {
      forget();
    }
    return dead();
  }

  void kill() {
    forget();
    if (still_ours()) {
      ::syscall(SYS_pidfd_send_signal, pidfd_, SIGKILL, nullptr, 0);
      has_ended(kKillTime);
      return;
    }
    // Our descriptor is lost. A new one first, then the look whether it is the same process.
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    if (fd < 0) {
      return;
    }
    if (start_time(pid_) == started_) {
      ::syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
      wait_for_end(fd, kKillTime);
    }
    ::close(fd);
  }

 private:
  static constexpr milliseconds kKillTime{10'000};

  bool still_ours() const {
    if (pidfd_ < 0) {
      return false;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd_);
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      return false;
    }
    char text[512];
    const ssize_t n = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char* at = std::strstr(text, "Pid:");
    // -1 once it has been reaped: still a pidfd, and no other process's.
    const long pid = at != nullptr ? std::strtol(at + 4, nullptr, 10) : 0;
    return pid == pid_ || pid == -1;
  }
  static bool wait_for_end(int fd, milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    for (;;) {
      pollfd entry{fd, POLLIN, 0};
      const auto left =
          std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
      const int ready = ::poll(&entry, 1, std::max(0, static_cast<int>(left.count())));
      if (ready > 0) {
        return (entry.revents & POLLIN) != 0;
      }
      if (ready == 0 || errno != EINTR) {
        return false;
      }
    }
  }
  bool has_ended(milliseconds time) {
    if (pidfd_ >= 0 && wait_for_end(pidfd_, time)) {
      // The number may be the app's own by now, and readable.
      return still_ours() || start_time(pid_) != started_;
    }
    return !still_ours() && start_time(pid_) != started_;
  }

  const std::int32_t pid_;
  const std::uint64_t started_;
  int pidfd_ = -1;
  std::atomic<bool> dead_{false};
};

// One thread's way to the standby.
class Lane {
 public:
  static std::unique_ptr<Lane> make(std::shared_ptr<Process> process, int& fd) {
    fd = static_cast<int>(
        ::syscall(SYS_memfd_create, "gpurecover-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) {
      return nullptr;
    }
    void* memory = MAP_FAILED;
    if (::ftruncate(fd, sizeof(LaneShared)) == 0 &&
        // Neither side can cut it under the other's feet.
        ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
      memory = ::mmap(nullptr, sizeof(LaneShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) {
      ::close(fd);
      return nullptr;
    }
    auto* shared = static_cast<LaneShared*>(memory);
    shared->magic = kLaneMagic;
    shared->version = protocol::kProtocolVersion;
    return std::unique_ptr<Lane>(new Lane(std::move(process), shared));
  }
  ~Lane() {
    // A forked child shares the memory with its parent, whose lane this is.
    if (::getpid() == owner_) {
      hand_over(shared_->state, LaneShared::kClosed, shared_->standby_sleeps);
    }
    ::munmap(shared_, sizeof(LaneShared));
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::byte* window() { return shared_->window; }

  // One request and its answer. False if the standby is gone.
  bool ask(LaneRequest type, std::span<const std::byte> payload, std::int32_t& code,
           std::vector<std::byte>& answer) {
    answer.clear();
    if (process_->dead() || ::getpid() != owner_) {
      return false;
    }
    if (payload.size() > kLanePayload) {
      code = kErrorInvalidValue;
      text_answer("more than a call to the standby can carry", answer);
      return true;
    }
    if (std::exchange(busy_, true)) {
      // A signal handler that interrupted this thread's own call.
      code = kErrorNotPermitted;
      text_answer("a call from a signal handler, within another call", answer);
      return true;
    }
    struct Reset {
      bool& flag;
      ~Reset() { flag = false; }
    } const reset{busy_};
    shared_->type = static_cast<std::uint32_t>(type);
    shared_->size = static_cast<std::uint32_t>(payload.size());
    if (!payload.empty()) {
      std::memcpy(shared_->payload, payload.data(), payload.size());
    }
    hand_over(shared_->state, LaneShared::kRequest, shared_->standby_sleeps);
    if (!wait_for_answer()) {
      return false;
    }
    code = shared_->code;
    const std::uint32_t size = std::min(shared_->size, kLanePayload);
    answer.assign(shared_->payload, shared_->payload + size);
    return true;
  }

 private:
  Lane(std::shared_ptr<Process> process, LaneShared* shared)
      : process_(std::move(process)), shared_(shared), owner_(::getpid()) {}

  static void text_answer(const char* text, std::vector<std::byte>& answer) {
    const auto* bytes = reinterpret_cast<const std::byte*>(text);
    answer.assign(bytes, bytes + std::strlen(text));
  }

  bool wait_for_answer() {
    if (spin_while(shared_->state, LaneShared::kRequest)) {
      return shared_->state.load() == LaneShared::kAnswer;
    }
    // A killed standby wakes nobody: look for it at intervals, long ones only for work that is
    // long.
    constexpr std::int64_t kFirst = 1'000'000;
    constexpr std::int64_t kLongest = 8'000'000;
    std::int64_t interval = kFirst;
    bool gone = false;
    shared_->app_sleeps.store(1);
    while (shared_->state.load() == LaneShared::kRequest) {
      futex_wait(shared_->state, LaneShared::kRequest, interval);
      if (shared_->state.load() == LaneShared::kRequest && process_->ended()) {
        gone = true;
        break;
      }
      interval = std::min(interval * 2, kLongest);
    }
    shared_->app_sleeps.store(0);
    return !gone && shared_->state.load() == LaneShared::kAnswer;
  }

  std::shared_ptr<Process> process_;
  LaneShared* shared_;
  pid_t owner_;
  bool busy_ = false;
};

// The calling thread's lane, and to which link it leads: a second standby may follow a first. The
// pointer is trivial, so that calls may still come after the thread's destructors have run; a lane
// made that late is never freed.
struct ThreadLane {
  std::uint64_t link = 0;
  std::unique_ptr<Lane> lane;
};
thread_local ThreadLane* this_threads_lane = nullptr;

struct AtThreadEnd {
  bool armed = false;
  ~AtThreadEnd() { delete std::exchange(this_threads_lane, nullptr); }
};
thread_local AtThreadEnd at_thread_end;

std::atomic<std::uint64_t> next_link{1};

std::string to_text(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

struct StandbyLink::State {
  const std::uint64_t id = next_link.fetch_add(1);
  std::shared_ptr<Process> process;
  milliseconds patience{0};
  std::atomic<bool> abandoned{false};
  std::mutex mutex;  // of the channel
  Channel channel;
  std::string why;  // guarded by mutex: why it was given up

  Answer gone() {
    Answer answer;
    answer.reason = kGone;
    return answer;
  }

  // Sends a question and waits for its answer. `more` takes what find_global wants of it.
  template <class Message>
  Answer ask(MessageType type, const Message& message, int fd,
             protocol::StandbyAnswer* more = nullptr) {
    const std::lock_guard lock(mutex);
    Answer answer;
    if (can_ask(answer)) {
      answer = receive(channel.send(type, protocol::encode(message), patience, fd), more);
    }
    return answer;
  }

  // The same for several, which neither side's buffers may fill up with.
  template <class Message>
  Answer ask_many(MessageType type, std::span<const std::pair<Message, int>> messages) {
    constexpr std::size_t kAtOnce = 16;
    const std::lock_guard lock(mutex);
    Answer first;
    if (!can_ask(first)) {
      return first;
    }
    first.sent = true;
    while (!messages.empty()) {
      const auto some = messages.first(std::min(messages.size(), kAtOnce));
      messages = messages.subspan(some.size());
      std::size_t sent = 0;
      while (sent < some.size() &&
             channel.send(type, protocol::encode(some[sent].first), patience, some[sent].second)) {
        ++sent;
      }
      for (std::size_t i = 0; i < some.size(); ++i) {
        const Answer answer = receive(i < sent, nullptr);
        if (!answer.sent) {
          return answer;
        }
        if (first.ok() && !answer.ok()) {
          first = answer;
        }
      }
      if (!first.ok()) {
        break;
      }
    }
    return first;
  }

  // The mutex is held. False with the answer if there is nobody to ask.
  bool can_ask(Answer& answer) {
    if (!abandoned && !process->dead()) {
      return true;
    }
    answer = gone();
    if (!abandoned && !why.empty()) {
      answer.reason += ": " + why;
    }
    return false;
  }

  // The mutex is held. The answer to what has been `sent`; without one, the standby is ended.
  Answer receive(bool sent, protocol::StandbyAnswer* more) {
    protocol::Frame frame;
    const Channel::Status status =
        sent ? channel.receive(frame, patience) : Channel::Status::kClosed;
    if (frame.fd >= 0) {
      ::close(frame.fd);
    }
    auto decoded = status == Channel::Status::kFrame && frame.type == MessageType::kAnswer
                       ? protocol::decode<protocol::StandbyAnswer>(frame.body)
                       : std::nullopt;
    if (!decoded) {
      why = status == Channel::Status::kNothing  ? "it did not answer in time"
            : status == Channel::Status::kClosed ? "its connection ended"
                                                 : "it answered what is no answer";
      process->kill();
      channel.close();
      Answer answer = gone();
      answer.reason += ": " + why;
      return answer;
    }
    Answer answer;
    answer.sent = true;
    answer.code = decoded->code;
    answer.reason = decoded->reason;
    if (more != nullptr) {
      *more = std::move(*decoded);
    }
    return answer;
  }

  Lane* lane(std::string& reason) {
    if (abandoned || process->dead()) {
      reason = kGone;
      return nullptr;
    }
    if (this_threads_lane != nullptr && this_threads_lane->link == id) {
      return this_threads_lane->lane.get();
    }
    int fd = -1;
    std::unique_ptr<Lane> made = Lane::make(process, fd);
    if (!made) {
      reason = std::string("no shared memory for a way to the standby: ") + std::strerror(errno);
      return nullptr;
    }
    const Answer answer = ask(MessageType::kAddLane, Empty{}, fd);
    ::close(fd);
    if (!answer.ok()) {
      reason = answer.reason;
      return nullptr;
    }
    if (this_threads_lane == nullptr) {
      this_threads_lane = new ThreadLane;
      at_thread_end.armed = true;  // constructs it, which registers its destructor
    }
    this_threads_lane->link = id;
    this_threads_lane->lane = std::move(made);
    return this_threads_lane->lane.get();
  }

  struct Empty {
    template <class Archive>
    void fields(Archive& /*a*/) {}
  };

  Answer ask_lane(LaneRequest type, std::span<const std::byte> payload,
                  std::vector<std::byte>& results) {
    Answer answer;
    Lane* own = lane(answer.reason);
    if (own == nullptr) {
      return answer;
    }
    if (!own->ask(type, payload, answer.code, results)) {
      process->ended();
      answer.reason = kGone;
      return answer;
    }
    answer.sent = true;
    if (answer.code != 0) {
      answer.reason = to_text(results);
      results.clear();
    }
    return answer;
  }

  Answer load(MessageType type, std::uint64_t handle, std::span<const std::byte> image) {
    Answer answer;
    // By a file: images of hundreds of MiB exist.
    const int fd = static_cast<int>(::syscall(SYS_memfd_create, "gpurecover-image", MFD_CLOEXEC));
    std::size_t done = 0;
    while (fd >= 0 && done < image.size()) {
      const ssize_t n = ::write(fd, image.data() + done, image.size() - done);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (errno != EINTR) {
        break;
      }
    }
    if (fd < 0 || done < image.size()) {
      answer.sent = !abandoned && !process->dead();
      answer.code = 2;  // CUDA_ERROR_OUT_OF_MEMORY
      answer.reason = std::string("no room for a module's image: ") + std::strerror(errno);
    } else {
      protocol::ImageLoad message;
      message.handle = handle;
      message.size = image.size();
      answer = ask(type, message, fd);
    }
    if (fd >= 0) {
      ::close(fd);
    }
    return answer;
  }
};

StandbyLink::StandbyLink() : state_(std::make_unique<State>()) {}

std::unique_ptr<StandbyLink> StandbyLink::open(int socket, milliseconds patience,
                                               std::string& error) {
  std::unique_ptr<StandbyLink> link(new StandbyLink);
  State& state = *link->state_;
  const int fd = socket >= 0 ? protocol::move_out_of_the_way(socket) : -1;
  state.channel = Channel(fd);
  state.patience = patience;
  protocol::Frame frame;
  const Channel::Status status = state.channel.receive(frame, patience);
  if (frame.fd >= 0) {
    ::close(frame.fd);
  }
  if (status != Channel::Status::kFrame) {
    error = status == Channel::Status::kNothing ? "the standby did not say hello in time"
                                                : "the standby ended before it said hello";
    return nullptr;
  }
  const auto hello = frame.type == MessageType::kStandbyHello
                         ? protocol::decode<protocol::StandbyHello>(frame.body)
                         : std::nullopt;
  if (!hello || hello->version != protocol::kProtocolVersion ||
      hello->fingerprint != table_fingerprint()) {
    error = "the standby is of another version";
    return nullptr;
  }
  if (!hello->error.empty()) {
    error = "the standby cannot work: " + hello->error;
    return nullptr;
  }
  state.process = std::make_shared<Process>(hello->pid);
  if (!state.process->valid()) {
    error = "the standby's process cannot be watched";
    return nullptr;
  }
  return link;
}

StandbyLink::~StandbyLink() {
  if (state_->process && !state_->abandoned) {
    kill();
  }
}

std::int32_t StandbyLink::pid() const {
  return state_->process->pid();
}

bool StandbyLink::alive() const {
  return !state_->abandoned && !state_->process->ended();
}

void StandbyLink::kill() {
  if (!state_->abandoned) {
    state_->process->kill();
  }
}

void StandbyLink::abandon() {
  // No lock: in a forked child another thread of the parent may hold it for ever.
  state_->abandoned = true;
  state_->process->forget();
  state_->channel.close();
}

namespace {

protocol::Setup setup_message(const StandbySetup& setup, bool later) {
  protocol::Setup message;
  message.device_uuid = setup.device_uuid;
  message.device = setup.device;
  message.context_flags = setup.context_flags;
  message.arena = setup.arena;
  message.arena_size = setup.arena_size;
  message.later = later;
  return message;
}

}  // namespace

Answer StandbyLink::setup(const StandbySetup& setup) {
  return state_->ask(MessageType::kSetup, setup_message(setup, false), -1);
}

Answer StandbyLink::begin_setup(const StandbySetup& setup) {
  return state_->ask(MessageType::kSetup, setup_message(setup, true), -1);
}

Answer StandbyLink::finish_setup(SetupTimes* times) {
  protocol::StandbyAnswer more;
  Answer answer = state_->ask(MessageType::kFinishSetup, State::Empty{}, -1, &more);
  if (times != nullptr) {
    *times = {more.context_ms, more.map_ms};
  }
  return answer;
}

Answer StandbyLink::map_memory(std::uint64_t address, std::uint64_t size, int fd) {
  return state_->ask(MessageType::kMapMemory, protocol::MemoryRange{address, size, 0}, fd);
}

Answer StandbyLink::map_memories(std::span<const Memory> memories) {
  std::vector<std::pair<protocol::MemoryRange, int>> messages;
  for (const Memory& memory : memories) {
    messages.emplace_back(protocol::MemoryRange{memory.address, memory.size, 0}, memory.fd);
  }
  return state_->ask_many<protocol::MemoryRange>(MessageType::kMapMemory, messages);
}

Answer StandbyLink::unmap_memory(std::uint64_t address, std::uint64_t size) {
  return state_->ask(MessageType::kUnmapMemory, protocol::MemoryRange{address, size, 0}, -1);
}

Answer StandbyLink::map_host(std::uint64_t address, std::uint64_t size, std::uint32_t flags,
                             int fd) {
  return state_->ask(MessageType::kMapHost, protocol::MemoryRange{address, size, flags}, fd);
}

Answer StandbyLink::unmap_host(std::uint64_t address, std::uint64_t size) {
  return state_->ask(MessageType::kUnmapHost, protocol::MemoryRange{address, size, 0}, -1);
}

Answer StandbyLink::load_module(std::uint64_t handle, std::span<const std::byte> image) {
  return state_->load(MessageType::kLoadModule, handle, image);
}

Answer StandbyLink::load_library(std::uint64_t handle, std::span<const std::byte> image) {
  return state_->load(MessageType::kLoadLibrary, handle, image);
}

Answer StandbyLink::find_global(std::uint64_t owner, bool library, const std::string& name,
                                std::uint64_t& address, std::uint64_t& size) {
  protocol::FindGlobal message;
  message.owner = owner;
  message.library = library;
  message.name = name;
  protocol::StandbyAnswer more;
  Answer answer = state_->ask(MessageType::kFindGlobal, message, -1, &more);
  if (answer.ok()) {
    address = more.address;
    size = more.size;
  }
  return answer;
}

Answer StandbyLink::call(std::span<const std::byte> encoded, std::vector<std::byte>& results) {
  return state_->ask_lane(LaneRequest::kCall, encoded, results);
}

Answer StandbyLink::launch(const RemoteLaunch& launch) {
  std::vector<std::byte> results;
  return state_->ask_lane(LaneRequest::kLaunch, protocol::encode(launch), results);
}

ReplayAnswer StandbyLink::replay(const RemoteReplay& replay) {
  std::vector<std::byte> results;
  const Answer answer = state_->ask_lane(LaneRequest::kReplay, protocol::encode(replay), results);
  ReplayAnswer out;
  out.sent = answer.sent;
  out.code = answer.code;
  out.reason = answer.reason;
  if (!answer.sent || answer.code != 0) {
    return out;
  }
  const auto result = protocol::decode<protocol::ReplayResult>(results);
  if (!result) {
    kill();
    out.sent = false;
    out.reason = "the standby answered what is no answer";
    return out;
  }
  out.recovered = result->recovered;
  out.refused = result->refused;
  out.code = result->code;
  out.reason = result->reason;
  return out;
}

Answer StandbyLink::prepare(std::uint64_t function) {
  std::vector<std::byte> results;
  protocol::PrepareLaunch message;
  message.function = function;
  return state_->ask_lane(LaneRequest::kPrepare, protocol::encode(message), results);
}

Answer StandbyLink::copy_in(std::uint64_t device, const void* host, std::uint64_t size,
                            std::uint64_t stream) {
  Answer answer;
  answer.sent = true;
  std::vector<std::byte> results;
  const auto* from = static_cast<const std::byte*>(host);
  std::uint64_t done = 0;
  do {
    Lane* lane = state_->lane(answer.reason);
    if (lane == nullptr) {
      answer.sent = false;
      return answer;
    }
    const std::uint64_t piece = std::min<std::uint64_t>(size - done, kLaneWindow);
    if (piece != 0) {
      std::memcpy(lane->window(), from + done, piece);
    }
    const protocol::LaneCopy message{.to = device + done, .size = piece, .stream = stream};
    answer = state_->ask_lane(LaneRequest::kCopyIn, protocol::encode(message), results);
    done += piece;
  } while (answer.ok() && done < size);
  return answer;
}

Answer StandbyLink::copy_out(void* host, std::uint64_t device, std::uint64_t size,
                             std::uint64_t stream) {
  Answer answer;
  std::vector<std::byte> results;
  auto* to = static_cast<std::byte*>(host);
  std::uint64_t done = 0;
  do {
    Lane* lane = state_->lane(answer.reason);
    if (lane == nullptr) {
      answer.sent = false;
      return answer;
    }
    const std::uint64_t piece = std::min<std::uint64_t>(size - done, kLaneWindow);
    const protocol::LaneCopy message{.from = device + done, .size = piece, .stream = stream};
    answer = state_->ask_lane(LaneRequest::kCopyOut, protocol::encode(message), results);
    if (answer.ok() && piece != 0) {
      std::memcpy(to + done, lane->window(), piece);
    }
    done += piece;
  } while (answer.ok() && done < size);
  return answer;
}

Answer StandbyLink::copy(std::uint64_t to, std::uint64_t from, std::uint64_t size,
                         std::uint64_t stream, bool async) {
  std::vector<std::byte> results;
  const protocol::LaneCopy message{to, from, size, stream, async};
  return state_->ask_lane(LaneRequest::kCopy, protocol::encode(message), results);
}

}  // namespace gpurecover::recovery
