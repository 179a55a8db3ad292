// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "cupti/protocol/channel.h"
#include "cupti/protocol/codec.h"
#include "cupti/protocol/messages.h"
#include "inject/plan.h"

namespace gpurecover::protocol {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSoon{2000};

FaultRecord some_fault() {
  FaultRecord fault;
  fault.kernel = "gemm";
  fault.launch = 42;
  fault.code = 214;
  fault.injected = true;
  fault.detect_ms = 1.5;
  fault.outcome = "recovered-replay";
  return fault;
}

TEST(Codec, RoundTripsEveryKindOfField) {
  inject::Fault fault{.kernel = "k", .kind = "ecc", .code = 214, .probability = 0.5};
  fault.at = inject::Point{.block = 1, .thread = 2, .instruction = 3};
  const std::vector<inject::Fault> plan{fault, {}};
  const auto back = decode<std::vector<inject::Fault>>(encode(plan));
  ASSERT_TRUE(back);
  ASSERT_EQ(back->size(), 2U);
  EXPECT_EQ((*back)[0].kernel, "k");
  EXPECT_EQ((*back)[0].at->instruction, 3U);
  EXPECT_FALSE((*back)[1].at);
}

TEST(Codec, TruncatedOrLongerMessagesAreRefused) {
  auto bytes = encode(some_fault());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode<FaultRecord>(std::span(bytes).first(size))) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode<FaultRecord>(bytes));
}

TEST(Codec, RandomBytesAreNeverMoreThanRefused) {
  constexpr unsigned kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 200);
    for (auto& byte : bytes) {
      byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    }
    (void)decode<KernelInfo>(bytes);
    (void)decode<Config>(bytes);
    (void)decode<std::vector<inject::Fault>>(bytes);
  }
}

std::pair<Channel, Channel> pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Channel(fds[0]), Channel(fds[1])};
}

TEST(Channel, CarriesMessagesInOrderAndADescriptor) {
  auto [a, b] = pair();
  const int memory = ::memfd_create("page", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(memory, 4096), 0);
  ASSERT_TRUE(a.send(MessageType::kFault, encode(some_fault()), kSoon));
  ASSERT_TRUE(a.send(MessageType::kConfig, encode(Config{}), kSoon, memory));
  Frame frame;
  ASSERT_EQ(b.receive(frame, kSoon), Channel::Status::kFrame);
  EXPECT_EQ(frame.type, MessageType::kFault);
  EXPECT_EQ(decode<FaultRecord>(frame.body)->launch, 42U);
  EXPECT_EQ(frame.fd, -1);
  ASSERT_EQ(b.receive(frame, kSoon), Channel::Status::kFrame);
  ASSERT_GE(frame.fd, 0);
  EXPECT_EQ(::lseek(frame.fd, 0, SEEK_END), 4096);
  ::close(frame.fd);
  ::close(memory);
  EXPECT_EQ(b.receive(frame, milliseconds(0)), Channel::Status::kNothing);
}

TEST(Channel, LargeMessagesPassWhileTheOtherEndReads) {
  auto [a, b] = pair();
  Config config;
  config.rules.assign(5 << 20, std::byte{7});
  std::jthread sender([&a = a, &config] {
    EXPECT_TRUE(a.send(MessageType::kConfig, encode(config), std::chrono::seconds(20)));
  });
  Frame frame;
  ASSERT_EQ(b.receive(frame, std::chrono::seconds(20)), Channel::Status::kFrame);
  EXPECT_EQ(decode<Config>(frame.body)->rules.size(), config.rules.size());
}

TEST(Channel, ASendNobodyReadsEndsByItsTimeout) {
  auto [a, b] = pair();
  EXPECT_FALSE(a.send(MessageType::kConfig, std::vector<std::byte>(8 << 20), milliseconds(50)));
  EXPECT_FALSE(a.valid());
}

TEST(Channel, AGonePeerIsClosedWithoutASignal) {
  auto [a, b] = pair();
  b.close();
  EXPECT_FALSE(a.send(MessageType::kFault, encode(some_fault()), kSoon));
  auto [c, d] = pair();
  c.close();
  Frame frame;
  EXPECT_EQ(d.receive(frame, kSoon), Channel::Status::kClosed);
}

TEST(Channel, ForeignBytesCloseIt) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  Channel channel(fds[0]);
  const char text[] = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::write(fds[1], text, sizeof text), static_cast<ssize_t>(sizeof text));
  Frame frame;
  EXPECT_EQ(channel.receive(frame, kSoon), Channel::Status::kClosed);
  ::close(fds[1]);
}

// A program closes all descriptors and opens its own: nothing of ours may reach them.
TEST(Channel, ADescriptorThatIsAnothersNowIsNeitherWrittenNorReadNorClosed) {
  enum class Use { kSend, kReceive, kClose, kDestroy, kMoveAway };
  for (const Use use : {Use::kSend, Use::kReceive, Use::kClose, Use::kDestroy, Use::kMoveAway}) {
    SCOPED_TRACE(static_cast<int>(use));
    int ours[2];
    int theirs[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ours), 0);
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, theirs), 0);
    ASSERT_EQ(::write(theirs[1], "x", 1), 1);
    const int number = ours[0];
    {
      Channel channel(number);
      ASSERT_EQ(::dup2(theirs[0], number), number);
      Frame frame;
      switch (use) {
        case Use::kSend:
          EXPECT_FALSE(channel.send(MessageType::kNotice, encode(Notice{}), kSoon));
          break;
        case Use::kReceive:
          EXPECT_EQ(channel.receive(frame, milliseconds(0)), Channel::Status::kClosed);
          break;
        case Use::kClose:
          channel.close();
          break;
        case Use::kDestroy:
          break;
        case Use::kMoveAway:
          channel = Channel();
          break;
      }
    }
    char byte = 0;
    EXPECT_EQ(::recv(theirs[1], &byte, 1, MSG_DONTWAIT), -1) << "written to";
    EXPECT_EQ(::recv(number, &byte, 1, MSG_DONTWAIT), 1) << "read or closed";
    EXPECT_EQ(byte, 'x');
    for (const int fd : {number, ours[1], theirs[0], theirs[1]}) {
      ::close(fd);
    }
  }
}

TEST(Channel, ItsDescriptorIsOutOfTheAppsWay) {
  const std::string path = testing::TempDir() + "gpurecover-channel-" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  const int lowest = ::dup(listener);
  ::close(lowest);
  const Channel channel = Channel::connect(path);
  EXPECT_TRUE(channel.valid());
  EXPECT_GT(channel.fd(), STDERR_FILENO);
  const int next = ::dup(listener);
  EXPECT_EQ(next, lowest) << "the app gets the numbers that it gets alone";
  ::close(next);
  ::close(listener);
  ::unlink(path.c_str());
}

TEST(Channel, ConnectingToNobodyIsInvalid) {
  EXPECT_FALSE(Channel::connect("/nonexistent/gpurecover.sock").valid());
  EXPECT_FALSE(Channel::connect(std::string(300, 'x')).valid());
}

}  // namespace
}  // namespace gpurecover::protocol
