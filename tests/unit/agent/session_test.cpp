// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/session.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "cupti/protocol/codec.h"

namespace gpurecover::agent {
namespace {

using protocol::MessageType;
using std::chrono::milliseconds;
constexpr milliseconds kSoon{5000};

// A supervisor for one connection, in a thread of the test.
class Supervisor {
 public:
  explicit Supervisor(std::function<void(protocol::Channel&)> serve) {
    folder_ =
        std::filesystem::temp_directory_path() / ("gpurecover-test-" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
    path_ = folder_ / "socket";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.string().copy(address.sun_path, sizeof address.sun_path - 1);
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    ::setenv(protocol::kEnvSession, path_.c_str(), 1);
    thread_ = std::jthread([this, serve = std::move(serve)] {
      protocol::Channel channel(::accept(listener_, nullptr, nullptr));
      serve(channel);
    });
  }
  ~Supervisor() {
    thread_.join();
    ::close(listener_);
    std::filesystem::remove_all(folder_);
    ::unsetenv(protocol::kEnvSession);
  }

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
  int listener_ = -1;
  std::jthread thread_;
};

int make_page(std::size_t size, std::uint32_t version = protocol::kProtocolVersion) {
  const int fd = ::memfd_create("page", MFD_CLOEXEC);
  EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
  const std::uint32_t head[2] = {protocol::kSharedPageMagic, version};
  EXPECT_EQ(::pwrite(fd, head, sizeof head, 0), static_cast<ssize_t>(sizeof head));
  return fd;
}

protocol::Config good_config() {
  protocol::Config config;
  config.session = "test";
  static const classifier::RuleSet rules;
  config.rules = protocol::encode(rules);
  config.plan = protocol::encode(std::vector<inject::Fault>{{.kernel = "k"}});
  return config;
}

void greet(protocol::Channel& channel, const protocol::Config& config, int page) {
  protocol::Frame frame;
  ASSERT_EQ(channel.receive(frame, kSoon), protocol::Channel::Status::kFrame);
  ASSERT_EQ(frame.type, MessageType::kHello);
  EXPECT_EQ(protocol::decode<protocol::Hello>(frame.body)->pid, ::getpid());
  ASSERT_TRUE(channel.send(MessageType::kConfig, protocol::encode(config), kSoon, page));
}

TEST(Session, OutsideASessionThereIsNothingToSay) {
  ::unsetenv(protocol::kEnvSession);
  Session session;
  std::string error;
  EXPECT_FALSE(session.join(error));
  EXPECT_EQ(error, "");
}

TEST(Session, JoinsCountsAndReports) {
  const int page = make_page(sizeof(protocol::SharedPage));
  std::vector<MessageType> seen;
  {
    Supervisor supervisor([&](protocol::Channel& channel) {
      greet(channel, good_config(), page);
      protocol::Frame frame;
      while (channel.receive(frame, kSoon) == protocol::Channel::Status::kFrame) {
        seen.push_back(frame.type);
      }
    });
    Session session;
    std::string error;
    ASSERT_TRUE(session.join(error)) << error;
    EXPECT_EQ(session.initial_plan().size(), 1U);
    const std::uint32_t reason = session.reason_id("because");
    EXPECT_EQ(session.reason_id("because"), reason);
    EXPECT_NE(session.reason_id("for another reason"), reason);
    const std::uint32_t row = session.kernel_row("k");
    EXPECT_EQ(session.kernel_row("k"), row);
    EXPECT_NE(row, 0U);
    session.page().kernels[row].launches[0][1].fetch_add(3);
    session.page().kernels[row].launches[2][0].fetch_add(1);
    EXPECT_EQ(session.launches(), 4U);
    session.call_without_row(7, "cuSomething");
    session.call_without_row(7, "cuSomething");
    session.abandon();
  }
  EXPECT_EQ(seen, (std::vector<MessageType>{MessageType::kReason, MessageType::kReason,
                                            MessageType::kCall}));
  // What the agent counted is in the supervisor's page.
  auto* mapped = static_cast<protocol::SharedPage*>(
      ::mmap(nullptr, sizeof(protocol::SharedPage), PROT_READ, MAP_SHARED, page, 0));
  EXPECT_EQ(mapped->calls[7].load(), 2U);
  ::munmap(mapped, sizeof(protocol::SharedPage));
  ::close(page);
}

TEST(Session, TooManyReasonsShareTheLastRow) {
  const int page = make_page(sizeof(protocol::SharedPage));
  {
    Supervisor supervisor([&](protocol::Channel& channel) {
      greet(channel, good_config(), page);
      protocol::Frame frame;
      while (channel.receive(frame, kSoon) == protocol::Channel::Status::kFrame) {
      }
    });
    Session session;
    std::string error;
    ASSERT_TRUE(session.join(error)) << error;
    std::uint32_t last = 0;
    for (std::size_t i = 0; i < protocol::kMaxReasons + 50; ++i) {
      last = session.reason_id("reason " + std::to_string(i));
      ASSERT_LT(last, protocol::kMaxReasons);
    }
    EXPECT_EQ(last, protocol::kMaxReasons - 1);
    session.abandon();
  }
  ::close(page);
}

TEST(Session, ANewPlanIsTakenOnceItIsAnnounced) {
  const int page = make_page(sizeof(protocol::SharedPage));
  auto* shared = static_cast<protocol::SharedPage*>(
      ::mmap(nullptr, sizeof(protocol::SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0));
  {
    std::atomic<bool> sent{false};
    std::atomic<bool> done{false};
    Supervisor supervisor([&](protocol::Channel& channel) {
      greet(channel, good_config(), page);
      protocol::PlanUpdate update;
      update.plan = protocol::encode(std::vector<inject::Fault>{{.kernel = "later"}});
      ASSERT_TRUE(channel.send(MessageType::kPlan, protocol::encode(update), kSoon));
      shared->plan_generation.fetch_add(1);
      sent = true;
      sent.notify_all();
      done.wait(false);
    });
    Session session;
    std::string error;
    ASSERT_TRUE(session.join(error)) << error;
    sent.wait(false);
    std::vector<inject::Fault> plan;
    ASSERT_TRUE(session.take_new_plan(plan));
    ASSERT_EQ(plan.size(), 1U);
    EXPECT_EQ(plan[0].kernel, "later");
    EXPECT_FALSE(session.take_new_plan(plan));
    done = true;
    done.notify_all();
    session.abandon();
  }
  ::munmap(shared, sizeof(protocol::SharedPage));
  ::close(page);
}

TEST(Session, AStandbyIsAskedForAndWhatComesMeanwhileIsKept) {
  const int page = make_page(sizeof(protocol::SharedPage));
  auto* shared = static_cast<protocol::SharedPage*>(
      ::mmap(nullptr, sizeof(protocol::SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0));
  {
    Supervisor supervisor([&](protocol::Channel& channel) {
      greet(channel, good_config(), page);
      for (const char* error : {"", "no program"}) {
        protocol::Frame frame;
        ASSERT_EQ(channel.receive(frame, kSoon), protocol::Channel::Status::kFrame);
        ASSERT_EQ(frame.type, MessageType::kStandby);
        ASSERT_GE(frame.fd, 0);
        protocol::PlanUpdate update;
        update.plan = protocol::encode(std::vector<inject::Fault>{{.kernel = "meanwhile"}});
        ASSERT_TRUE(channel.send(MessageType::kPlan, protocol::encode(update), kSoon));
        shared->plan_generation.fetch_add(1);
        protocol::StandbyStarted started;
        started.pid = *error == '\0' ? 7 : 0;
        started.error = error;
        EXPECT_EQ(::write(frame.fd, "x", 1), 1);
        ::close(frame.fd);
        ASSERT_TRUE(channel.send(MessageType::kStandbyStarted, protocol::encode(started), kSoon));
      }
    });
    Session session;
    std::string error;
    ASSERT_TRUE(session.join(error)) << error;
    const int socket = session.start_standby(error);
    ASSERT_GE(socket, 0) << error;
    char byte = 0;
    EXPECT_EQ(::read(socket, &byte, 1), 1);
    ::close(socket);
    EXPECT_EQ(session.start_standby(error), -1);
    EXPECT_NE(error.find("no program"), std::string::npos) << error;
    std::vector<inject::Fault> plan;
    ASSERT_TRUE(session.take_new_plan(plan));
    EXPECT_EQ(plan.size(), 2U);
    EXPECT_EQ(session.start_standby(error), -1) << "the supervisor is gone";
    session.abandon();
  }
  ::munmap(shared, sizeof(protocol::SharedPage));
  ::close(page);
}

// Whatever a supervisor answers, the app goes on, unprotected.
TEST(Session, BadAnswersAreRefusedWithAReason) {
  struct Case {
    const char* name;
    std::size_t page_size;
    std::uint32_t version;
    bool good_rules;
  };
  for (const Case& c :
       {Case{"short page", 100, protocol::kProtocolVersion, true},
        Case{"other version", sizeof(protocol::SharedPage), 99, true},
        Case{"bad rules", sizeof(protocol::SharedPage), protocol::kProtocolVersion, false}}) {
    SCOPED_TRACE(c.name);
    const int page = make_page(c.page_size, c.version);
    {
      Supervisor supervisor([&](protocol::Channel& channel) {
        auto config = good_config();
        if (!c.good_rules) {
          config.rules.assign(5, std::byte{0xff});
        }
        greet(channel, config, page);
      });
      Session session;
      std::string error;
      EXPECT_FALSE(session.join(error));
      EXPECT_NE(error, "");
    }
    ::close(page);
  }
  {
    Supervisor supervisor([](protocol::Channel& channel) { channel.close(); });
    Session session;
    std::string error;
    EXPECT_FALSE(session.join(error));
    EXPECT_NE(error, "");
  }
  ::setenv(protocol::kEnvSession, "/nonexistent/socket", 1);
  Session session;
  std::string error;
  EXPECT_FALSE(session.join(error));
  EXPECT_NE(error, "");
  ::unsetenv(protocol::kEnvSession);
}

}  // namespace
}  // namespace gpurecover::agent
