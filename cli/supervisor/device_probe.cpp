// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/device_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cupti/protocol/codec.h"
#include "cupti/protocol/messages.h"

namespace gpurecover::cli {
namespace {

using Clock = std::chrono::steady_clock;

// DeviceProbe on its way through the pipe.
struct Answer {
  DeviceProbe probe;
  template <class Archive>
  void fields(Archive& a) {
    a(probe.driver_found);
    a(probe.driver_error);
    a(probe.driver_version);
    a(probe.devices);
    a(probe.names);
    a(probe.cupti_path);
    a(probe.cupti_error);
    a(probe.cupti_version);
    a(probe.agent_loads);
    a(probe.agent_error);
  }
};

std::string loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void probe_driver(const ProbeRequest& request, DeviceProbe& probe) {
  void* driver = ::dlopen(request.driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    probe.driver_error = loader_error();
    return;
  }
  probe.driver_found = true;
  auto* init = symbol<int(unsigned)>(driver, "cuInit");
  auto* count = symbol<int(int*)>(driver, "cuDeviceGetCount");
  auto* version = symbol<int(int*)>(driver, "cuDriverGetVersion");
  auto* name = symbol<int(char*, int, int)>(driver, "cuDeviceGetName");
  auto* attribute = symbol<int(int*, int, int)>(driver, "cuDeviceGetAttribute");
  if (init == nullptr || count == nullptr) {
    probe.driver_error = request.driver + " is no CUDA driver";
    return;
  }
  int number = 0;
  if (version != nullptr && version(&number) == 0) {
    probe.driver_version = version_text(number);
  }
  if (const int code = init(0); code != 0) {
    probe.driver_error = fmt::format("cuInit answers {}", code);
    return;
  }
  if (const int code = count(&probe.devices); code != 0) {
    probe.devices = 0;
    probe.driver_error = fmt::format("cuDeviceGetCount answers {}", code);
    return;
  }
  if (probe.devices <= 0) {
    probe.driver_error = "the driver sees no device";
  }
  for (int device = 0; device < probe.devices && device < 64; ++device) {
    char text[256] = "unnamed";
    int major = 0;
    int minor = 0;
    if (name != nullptr) {
      name(text, sizeof text, device);
    }
    if (attribute != nullptr) {
      // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h.
      attribute(&major, 75, device);
      attribute(&minor, 76, device);
    }
    probe.names.push_back(fmt::format("{}, compute capability {}.{}", text, major, minor));
  }
}

void probe_cupti(const ProbeRequest& request, DeviceProbe& probe) {
  void* cupti = ::dlopen("libcupti.so.13", RTLD_LAZY | RTLD_LOCAL);
  if (cupti == nullptr) {
    probe.cupti_error = loader_error();
    if (!request.cupti.empty()) {
      cupti = ::dlopen(request.cupti.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (cupti == nullptr) {
        probe.cupti_error = loader_error();
      }
    }
  }
  if (cupti == nullptr) {
    return;
  }
  link_map* map = nullptr;
  if (::dlinfo(cupti, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) {
    probe.cupti_path = map->l_name;
  }
  auto* version = symbol<int(std::uint32_t*)>(cupti, "cuptiGetVersion");
  std::uint32_t number = 0;
  if (request.cupti_version && version != nullptr && version(&number) == 0) {
    // CUPTI 13.0.1 says 130001; before 12.8 it counted APIs from 1.
    probe.cupti_version =
        number >= 10000 ? fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100)
                        : std::to_string(number);
  }
}

void probe_agent(const ProbeRequest& request, DeviceProbe& probe) {
  void* agent = ::dlopen(request.agent.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (agent == nullptr) {
    probe.agent_error = loader_error();
  } else if (::dlsym(agent, "InitializeInjection") == nullptr) {
    probe.agent_error = request.agent + " has no InitializeInjection";
  } else {
    probe.agent_loads = true;
  }
}

[[noreturn]] void answer_and_exit(const ProbeRequest& request, int out) {
  // The app's signals are ours to answer, not this process's; a Ctrl-C ends it by default.
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A driver that starts here must not load an agent, of us or of anybody.
  ::unsetenv(protocol::kEnvInjection);
  // What libraries print on load is not the app's output.
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
  }
  Answer answer;
  probe_cupti(request, answer.probe);
  if (!request.agent.empty()) {
    probe_agent(request, answer.probe);
  }
  if (request.devices) {
    probe_driver(request, answer.probe);
  }
  const std::vector<std::byte> bytes = protocol::encode(answer);
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::write(out, bytes.data() + sent, bytes.size() - sent);
    if (n <= 0 && errno != EINTR) {
      ::_exit(1);
    }
    sent += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  // No destructors: the driver's own may wait for the device.
  ::_exit(0);
}

}  // namespace

DeviceProbe probe_device(const ProbeRequest& request, std::chrono::milliseconds timeout) {
  DeviceProbe failed;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    failed.failure = std::string("no pipe: ") + std::strerror(errno);
    return failed;
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    answer_and_exit(request, ends[1]);
  }
  ::close(ends[1]);
  if (pid < 0) {
    failed.failure = std::string("no process: ") + std::strerror(errno);
    ::close(ends[0]);
    return failed;
  }
  std::vector<std::byte> bytes;
  bool timed_out = false;
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{ends[0], POLLIN, 0};
    const int ready = left > 0 ? ::poll(&entry, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready <= 0) {
      timed_out = true;
      break;
    }
    std::byte buffer[4096];
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n > 0) {
      bytes.insert(bytes.end(), buffer, buffer + n);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  ::close(ends[0]);
  if (timed_out) {
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (timed_out) {
    failed.failure = fmt::format("the driver did not answer within {} s", timeout.count() / 1000);
    return failed;
  }
  auto answer = protocol::decode<Answer>(bytes);
  if (!answer) {
    failed.failure = WIFSIGNALED(status)
                         ? fmt::format("loading the driver ended by signal {}", WTERMSIG(status))
                         : std::string("loading the driver ended the process");
    return failed;
  }
  answer->probe.answered = true;
  return answer->probe;
}

}  // namespace gpurecover::cli
