// SPDX-License-Identifier: Apache-2.0
// A program that speaks the session protocol as the agent in a CUDA program would, driven by its
// arguments, one step each, fields separated by '|':
//   version|N  connect  raw  attach  passive|WHY  kernel|ROW|NAME|VERDICT|TRUST|REASON
//   launch|ROW|VERDICT|PROTECTED|COUNT  reason|ID|TEXT|COUNT  call|ID|NAME|COUNT
//   fault|OUTCOME|KERNEL|INJECTED  fired|I|N  matched|I|N  notice|SEVERITY|TEXT
//   config  takeover  standby  plan  say|TEXT  line  garbage  huge  unknown  fork  close  exit|N
//   kill|SIGNAL
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "classifier/rules.h"
#include "cupti/protocol/channel.h"
#include "cupti/protocol/codec.h"
#include "cupti/protocol/messages.h"
#include "cupti/protocol/shared_page.h"
#include "cupti/protocol/standby.h"
#include "inject/plan.h"

using namespace gpurecover;

namespace {

constexpr std::chrono::seconds kTimeout{20};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "fake agent: %s\n", why.c_str());
  std::exit(99);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == '|') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  out.resize(8);
  return out;
}

struct Agent {
  std::uint32_t version = protocol::kProtocolVersion;
  protocol::Channel channel;
  protocol::SharedPage* page = nullptr;
  protocol::Config config;
  protocol::Channel standby_socket;

  template <class Message>
  void send(protocol::MessageType type, const Message& message) {
    if (!channel.send(type, protocol::encode(message), kTimeout)) {
      fail("the supervisor is gone");
    }
  }

  void open() {
    const char* path = std::getenv(protocol::kEnvSession);
    channel = protocol::Channel::connect(path == nullptr ? "" : path);
    if (!channel.valid()) {
      fail("no session");
    }
  }

  void connect() {
    open();
    protocol::Hello hello;
    hello.version = version;
    hello.pid = ::getpid();
    hello.executable = "fake_agent";
    send(protocol::MessageType::kHello, hello);
    protocol::Frame frame;
    if (channel.receive(frame, kTimeout) != protocol::Channel::Status::kFrame) {
      fail("no answer");
    }
    if (frame.type == protocol::MessageType::kRefused) {
      std::printf("refused: %s\n", protocol::decode<protocol::Notice>(frame.body)->text.c_str());
      std::fflush(stdout);
      return;
    }
    auto decoded = protocol::decode<protocol::Config>(frame.body);
    if (frame.type != protocol::MessageType::kConfig || !decoded || frame.fd < 0) {
      fail("no configuration");
    }
    config = *decoded;
    void* memory = ::mmap(nullptr, sizeof(protocol::SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                          frame.fd, 0);
    if (memory == MAP_FAILED) {
      fail("no page");
    }
    page = static_cast<protocol::SharedPage*>(memory);
    if (page->magic != protocol::kSharedPageMagic || page->version != protocol::kProtocolVersion) {
      fail("not a page of this version");
    }
    // The page must not be shrinkable: the supervisor would die by it.
    if (::ftruncate(frame.fd, 0) == 0) {
      fail("the page could be cut");
    }
    ::close(frame.fd);
  }

  // Asks for a standby and waits for its hello; it then lives as long as this process.
  void standby() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0 ||
        !channel.send(protocol::MessageType::kStandby, {}, kTimeout, ends[1])) {
      fail("cannot ask for a standby");
    }
    ::close(ends[1]);
    protocol::Frame frame;
    if (channel.receive(frame, kTimeout) != protocol::Channel::Status::kFrame ||
        frame.type != protocol::MessageType::kStandbyStarted) {
      fail("no answer about a standby");
    }
    const auto started = protocol::decode<protocol::StandbyStarted>(frame.body);
    standby_socket = protocol::Channel(ends[0]);
    protocol::Frame first;
    const auto hello = standby_socket.receive(first, kTimeout) == protocol::Channel::Status::kFrame
                           ? protocol::decode<protocol::StandbyHello>(first.body)
                           : std::nullopt;
    std::printf("started=%d error=%s hello=%s same=%d\n", started->pid, started->error.c_str(),
                hello ? hello->error.c_str() : "none", hello && hello->pid == started->pid);
    std::fflush(stdout);
  }

  void step(const std::string& text) {
    const auto f = split(text);
    const auto number = [&](std::size_t i) { return std::strtoull(f[i].c_str(), nullptr, 0); };
    using protocol::MessageType;
    if (f[0] == "version") {
      version = static_cast<std::uint32_t>(number(1));
    } else if (f[0] == "connect") {
      connect();
    } else if (f[0] == "raw") {
      open();
    } else if (f[0] == "attach") {
      send(MessageType::kAttached,
           protocol::Attached{true, "", "soft", "Fake device", "13.0", "9.0", 130001});
      page->active = 1;
    } else if (f[0] == "passive") {
      send(MessageType::kAttached, protocol::Attached{.active = false, .reason = f[1]});
    } else if (f[0] == "kernel") {
      protocol::KernelInfo info;
      info.row = static_cast<std::uint32_t>(number(1));
      info.name = f[2];
      info.symbol = f[2];
      info.verdict = static_cast<protocol::VerdictKind>(number(3));
      info.trust = f[4];
      info.reason = f[5];
      info.reads = {"arg0"};
      info.writes = {"arg1"};
      send(MessageType::kKernel, info);
    } else if (f[0] == "launch") {
      page->kernels[number(1)].launches[number(2)][number(3)] += number(4);
    } else if (f[0] == "reason") {
      send(MessageType::kReason, protocol::ReasonInfo{static_cast<std::uint32_t>(number(1)), f[2]});
      page->reasons[number(1)] += number(3);
    } else if (f[0] == "call") {
      send(MessageType::kCall, protocol::CallInfo{static_cast<std::uint32_t>(number(1)), f[2]});
      page->calls[number(1)] += number(3);
    } else if (f[0] == "fault") {
      protocol::FaultRecord fault;
      fault.outcome = f[1];
      fault.kernel = f[2];
      fault.injected = number(3) != 0;
      fault.launch = 3;
      fault.stream = "legacy";
      fault.code = 214;
      fault.name = "CUDA_ERROR_ECC_UNCORRECTABLE";
      fault.phase = "run";
      fault.rule = "ecc";
      fault.cls = "hardware";
      fault.verdict = "idempotent";
      fault.trust = "bounded";
      fault.action = "replay";
      fault.attempts = 1;
      fault.recover_ms = 0.25;
      if (fault.outcome == "refused") {
        fault.reason = "it clobbers arg0";
      }
      if (fault.injected) {
        fault.repeat = "--kernel " + f[2] + " --error ecc --nth 3 --seed 9";
      }
      send(MessageType::kFault, fault);
    } else if (f[0] == "fired") {
      page->fired[number(1)] += number(2);
    } else if (f[0] == "matched") {
      page->matched[number(1)] += number(2);
    } else if (f[0] == "notice") {
      send(MessageType::kNotice,
           protocol::Notice{static_cast<protocol::Severity>(number(1)), f[2]});
    } else if (f[0] == "config") {
      const auto rules = protocol::decode<classifier::RuleSet>(config.rules);
      const auto plan = protocol::decode<std::vector<inject::Fault>>(config.plan);
      if (!rules || !plan) {
        fail("the configuration does not decode");
      }
      std::printf("session=%s level=%d verbosity=%d rules=%zu", config.session.c_str(),
                  static_cast<int>(config.level), config.verbosity, rules->rules.size());
      for (const auto& fault : *plan) {
        std::printf(" plan=%s/%s/%d/%d", fault.kernel.c_str(), fault.kind.c_str(), fault.code,
                    static_cast<int>(fault.nth));
      }
      std::printf("\n");
      std::fflush(stdout);
    } else if (f[0] == "plan") {
      protocol::Frame frame;
      if (channel.receive(frame, kTimeout) != protocol::Channel::Status::kFrame ||
          frame.type != MessageType::kPlan) {
        fail("no plan");
      }
      const auto update = protocol::decode<protocol::PlanUpdate>(frame.body);
      const auto plan = protocol::decode<std::vector<inject::Fault>>(update->plan);
      // Sent before it is announced: the announcement may still be on its way.
      for (int i = 0; i < 2000 && page->plan_generation == 0; ++i) {
        ::usleep(1000);
      }
      std::printf("armed=%s generation=%u\n", plan->at(0).kernel.c_str(),
                  page->plan_generation.load());
      std::fflush(stdout);
    } else if (f[0] == "takeover") {
      std::printf("standby=%d no_steer=%d\n", static_cast<int>(config.standby), config.no_steer);
      std::fflush(stdout);
    } else if (f[0] == "standby") {
      standby();
    } else if (f[0] == "say") {
      std::printf("%s\n", f[1].c_str());
      std::fflush(stdout);
    } else if (f[0] == "line") {
      char buffer[256];
      if (std::fgets(buffer, sizeof buffer, stdin) == nullptr) {
        fail("end of stdin");
      }
    } else if (f[0] == "garbage") {
      const char bytes[] = "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n";
      [[maybe_unused]] const ssize_t n = ::write(channel.fd(), bytes, sizeof bytes);
    } else if (f[0] == "huge") {
      channel.send(MessageType::kNotice, std::vector<std::byte>(3U << 20), kTimeout);
    } else if (f[0] == "unknown") {
      send(static_cast<MessageType>(999), protocol::Notice{});
    } else if (f[0] == "badkernel") {
      protocol::KernelInfo info;
      info.row = protocol::kMaxKernels;
      send(MessageType::kKernel, info);
    } else if (f[0] == "fork") {
      // The child is another process of the session; the rest of the steps is its own.
      const pid_t pid = ::fork();
      if (pid != 0) {
        int status = 0;
        ::waitpid(pid, &status, 0);
        std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
      }
      channel.close();
      page = nullptr;
    } else if (f[0] == "close") {
      channel.close();
    } else if (f[0] == "exit") {
      std::fflush(stdout);
      ::_exit(static_cast<int>(number(1)));
    } else if (f[0] == "kill") {
      ::kill(::getpid(), static_cast<int>(number(1)));
    } else {
      fail("no such step: " + text);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  Agent agent;
  for (int i = 1; i < argc; ++i) {
    agent.step(argv[i]);
  }
  return 0;
}
