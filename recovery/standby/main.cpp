// SPDX-License-Identifier: Apache-2.0
//
// gpurecover-standby: makes driver calls for a program whose own CUDA is dead. Started by the
// supervisor, with its end of a socket pair as descriptor 3; the other end is the program's.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>

#include "cupti/protocol/channel.h"
#include "cupti/protocol/codec.h"
#include "cupti/protocol/standby.h"
#include "recovery/call_codec.h"
#include "recovery/standby/lane.h"
#include "recovery/standby/standby.h"

namespace gpurecover::recovery {
namespace {

using protocol::MessageType;

constexpr int kSocket = 3;
constexpr std::chrono::milliseconds kForEver{-1};
constexpr std::chrono::milliseconds kSend{10'000};

void say(const std::string& text) {
  const std::string line = "gpurecover: standby: " + text + "\n";
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

// Nothing of the program's terminal, output or job control is this process's.
void leave_the_app_alone() {
  ::setsid();
  ::prctl(PR_SET_NAME, "gpurecover-stby");
  for (const int signal :
       {SIGINT, SIGHUP, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGPIPE, SIGUSR1, SIGUSR2}) {
    ::signal(signal, SIG_IGN);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDWR);
  if (null >= 0) {
    ::dup2(null, STDIN_FILENO);
    if (::fcntl(STDERR_FILENO, F_GETFD) < 0) {
      ::dup2(null, STDERR_FILENO);
    }
  }
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::close_range(kSocket + 1, ~0U, 0);
  ::fcntl(kSocket, F_SETFD, FD_CLOEXEC);
  // The driver is not to load an agent here.
  ::unsetenv(protocol::kEnvInjection);
  ::unsetenv(protocol::kEnvSession);
}

// Ends this process with the program, whatever the other threads are doing. The socket's other end
// closes with it, unless a child of its holds it too; then its pidfd tells.
void watch_app() {
  ucred peer{};
  socklen_t size = sizeof peer;
  int pidfd = -1;
  if (::getsockopt(kSocket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0) {
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
    if (pidfd < 0 && errno == ESRCH) {
      ::_exit(0);
    }
  }
  std::thread([pidfd] {
    for (;;) {
      pollfd entries[2] = {{kSocket, POLLRDHUP, 0}, {pidfd, POLLIN, 0}};
      if (::poll(entries, 2, -1) > 0) {
        ::_exit(0);
      }
    }
  }).detach();
}

// A lane's thread: serves until the app's thread ends.
void serve_lane(Standby& standby, LaneShared* shared) {
  {
    Standby::LaneThread lane;
    lane.window = shared->window;
    std::vector<std::byte> request;
    std::vector<std::byte> answer;
    std::uint32_t seen = shared->state.load();
    for (;;) {
      while (seen != LaneShared::kRequest && seen != LaneShared::kClosed) {
        if (!spin_while(shared->state, seen)) {
          shared->standby_sleeps.store(1);
          if (shared->state.load() == seen) {
            futex_wait(shared->state, seen, -1);
          }
          shared->standby_sleeps.store(0);
        }
        seen = shared->state.load();
      }
      if (seen == LaneShared::kClosed) {
        break;
      }
      const std::uint32_t type = shared->type;
      const std::uint32_t size = std::min(shared->size, kLanePayload);
      request.assign(shared->payload, shared->payload + size);
      const CUresult code = standby.serve(lane, type, request, answer);
      // Reasons and results are far smaller.
      answer.resize(std::min<std::size_t>(answer.size(), kLanePayload));
      std::copy(answer.begin(), answer.end(), shared->payload);
      shared->size = static_cast<std::uint32_t>(answer.size());
      shared->code = code;
      std::uint32_t expected = LaneShared::kRequest;
      if (shared->state.compare_exchange_strong(expected, LaneShared::kAnswer)) {
        seen = LaneShared::kAnswer;
        if (shared->app_sleeps.load() != 0) {
          futex_wake(shared->state);
        }
      } else {
        seen = expected;
      }
    }
    standby.leave(lane);
  }
  ::munmap(shared, sizeof(LaneShared));
}

protocol::StandbyAnswer add_lane(Standby& standby, int fd) {
  protocol::StandbyAnswer answer;
  answer.code = CUDA_ERROR_INVALID_VALUE;
  answer.reason = "a lane without its memory";
  struct stat status {};
  const int seals = fd >= 0 ? ::fcntl(fd, F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &status) != 0 ||
      status.st_size < static_cast<off_t>(sizeof(LaneShared))) {
    return answer;
  }
  void* memory = ::mmap(nullptr, sizeof(LaneShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    answer.reason = std::string("a lane's memory cannot be mapped: ") + std::strerror(errno);
    return answer;
  }
  auto* shared = static_cast<LaneShared*>(memory);
  if (shared->magic != kLaneMagic || shared->version != protocol::kProtocolVersion) {
    ::munmap(memory, sizeof(LaneShared));
    answer.reason = "a lane of another version";
    return answer;
  }
  try {
    std::thread([&standby, shared] { serve_lane(standby, shared); }).detach();
  } catch (const std::exception& error) {
    ::munmap(memory, sizeof(LaneShared));
    answer.code = CUDA_ERROR_OUT_OF_MEMORY;
    answer.reason = std::string("no thread for a lane: ") + error.what();
    return answer;
  }
  answer.code = CUDA_SUCCESS;
  answer.reason.clear();
  return answer;
}

int run() {
  leave_the_app_alone();
  protocol::Channel channel(kSocket);
  if (!channel.valid()) {
    say("it is started by gpurecover, not by hand");
    return 125;
  }
  watch_app();
  StandbyDriver driver;
  protocol::StandbyHello hello;
  hello.fingerprint = table_fingerprint();
  hello.pid = ::getpid();
  const bool loaded = driver.load(hello.error);
  if (!channel.send(MessageType::kStandbyHello, protocol::encode(hello), kSend) || !loaded) {
    return 1;
  }
  // Lives as long as the process: lanes use it.
  auto& standby = *new Standby(driver);
  for (;;) {
    protocol::Frame frame;
    if (channel.receive(frame, kForEver) != protocol::Channel::Status::kFrame) {
      return 0;
    }
    protocol::StandbyAnswer answer;
    if (frame.type == MessageType::kAddLane) {
      answer = add_lane(standby, frame.fd);
      if (frame.fd >= 0) {
        ::close(frame.fd);
      }
    } else {
      answer = standby.control(frame);
    }
    if (!channel.send(MessageType::kAnswer, protocol::encode(answer), kSend)) {
      return 0;
    }
  }
}

}  // namespace
}  // namespace gpurecover::recovery

int main() {
  // No exit(): other threads are in the driver.
  int status = 125;
  try {
    status = gpurecover::recovery::run();
  } catch (const std::exception& error) {
    gpurecover::recovery::say(error.what());
  }
  ::_exit(status);
}
