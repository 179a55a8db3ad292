// SPDX-License-Identifier: Apache-2.0
#include "recovery/launch_log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace gpurecover::recovery {
namespace {

struct Log {
  Log() : words(LaunchLog::kWordBytes) { log.set_words(words.data()); }
  // A launch that the driver takes; returns its marker.
  std::uint32_t launch(std::uint64_t stream, bool replayable = true, bool taken = true) {
    StreamLog& s = log.stream(stream, 0);
    const std::uint32_t marker = s.begin(log.next_order(), [&](LoggedLaunch& entry) {
      entry.replayable = replayable;
      entry.kernel = &names[stream];
    });
    s.end(marker, taken);
    return marker;
  }
  // What the device does when a launch is complete.
  void complete(std::uint64_t stream, std::uint32_t marker) {
    log.stream(stream, 0).word()->store(marker);
  }
  Frontier frontier() {
    return frontier_of(
        log, [](const void* kernel) { return *static_cast<const std::string*>(kernel); },
        [](const LoggedLaunch&) { return std::string("not idempotent"); });
  }
  alignas(64) std::vector<std::byte> words;
  std::map<std::uint64_t, std::string> names{{10, "ten"}, {20, "twenty"}, {30, "thirty"}};
  LaunchLog log;
};

TEST(LaunchLogTest, WhatIsCompleteIsNotToDo) {
  Log log;
  EXPECT_TRUE(log.frontier().recoverable);
  EXPECT_TRUE(log.frontier().to_do.empty());
  const auto first = log.launch(10);
  const auto second = log.launch(10);
  const auto third = log.launch(10);
  EXPECT_FALSE(log.log.stream(10, 0).idle());
  EXPECT_EQ(log.frontier().to_do.size(), 3U);
  log.complete(10, first);
  const Frontier frontier = log.frontier();
  ASSERT_EQ(frontier.to_do.size(), 2U);
  EXPECT_EQ(frontier.to_do[0].marker, second);
  EXPECT_TRUE(frontier.may_have_run[0]);
  EXPECT_FALSE(frontier.may_have_run[1]) << "what is behind the first incomplete never began";
  log.complete(10, third);
  EXPECT_TRUE(log.log.stream(10, 0).idle());
  EXPECT_TRUE(log.frontier().to_do.empty());
}

TEST(LaunchLogTest, TheFirstOfEveryStreamDecides) {
  Log log;
  const auto done = log.launch(10);
  log.launch(20, false);
  log.launch(10, true);
  log.complete(10, done);
  Frontier frontier = log.frontier();
  EXPECT_FALSE(frontier.recoverable);
  EXPECT_EQ(frontier.reason, "not idempotent");
  EXPECT_EQ(frontier.kernel, &log.names[20]);

  // Behind another one it never began, so what it does to its input is of no concern.
  Log other;
  other.launch(20, true);
  other.launch(20, false);
  frontier = other.frontier();
  EXPECT_TRUE(frontier.recoverable);
  ASSERT_EQ(frontier.to_do.size(), 2U);
  EXPECT_TRUE(frontier.may_have_run[0]);
  EXPECT_FALSE(frontier.may_have_run[1]);
}

TEST(LaunchLogTest, WorkIsDoneAgainInTheOrderOfIssue) {
  Log log;
  for (const std::uint64_t stream : {20, 10, 30, 10, 20, 30, 10}) {
    log.launch(stream);
  }
  const Frontier frontier = log.frontier();
  ASSERT_EQ(frontier.to_do.size(), 7U);
  for (std::size_t i = 1; i < frontier.to_do.size(); ++i) {
    EXPECT_LT(frontier.to_do[i - 1].order, frontier.to_do[i].order);
  }
}

TEST(LaunchLogTest, ARefusedLaunchNeverWas) {
  Log log;
  log.launch(10, false, false);
  EXPECT_TRUE(log.log.stream(10, 0).idle());
  const auto marker = log.launch(10);
  log.launch(10, false, false);
  EXPECT_EQ(log.frontier().to_do.size(), 1U);
  EXPECT_TRUE(log.frontier().recoverable);
  log.complete(10, marker);
  EXPECT_TRUE(log.log.stream(10, 0).idle());
}

TEST(LaunchLogTest, TwoThreadsOnOneStreamAreNotOrdered) {
  Log log;
  StreamLog& stream = log.log.stream(10, 0);
  const auto fill = [&](LoggedLaunch& entry) {
    entry.replayable = true;
    entry.kernel = &log.names[10];
  };
  const auto a = stream.begin(log.log.next_order(), fill);
  const auto b = stream.begin(log.log.next_order(), fill);
  stream.end(b, true);
  stream.end(a, true);
  Frontier frontier = log.frontier();
  EXPECT_FALSE(frontier.recoverable);
  EXPECT_NE(frontier.reason.find("two threads"), std::string::npos) << frontier.reason;
  // Once waited for, the stream is as good as any.
  stream.all_complete();
  log.launch(10);
  frontier = log.frontier();
  EXPECT_TRUE(frontier.recoverable);
  EXPECT_EQ(frontier.to_do.size(), 1U);
}

TEST(LaunchLogTest, AnObstacleStandsInTheWayWhereverItIs) {
  Log log;
  log.launch(10);
  StreamLog& stream = log.log.stream(10, 0);
  const auto marker = stream.begin(log.log.next_order(), [&](LoggedLaunch& entry) {
    entry.replayable = true;
    entry.obstacle = "an event";
    entry.kernel = &log.names[10];
  });
  RemoteLaunch copy;
  EXPECT_FALSE(stream.copy_of(marker, copy));
  stream.end(marker, true);
  EXPECT_FALSE(log.frontier().recoverable);
  EXPECT_NE(log.frontier().reason.find("an event"), std::string::npos);
}

TEST(LaunchLogTest, WithoutAMarkerOnlyOneLaunchIsKnown) {
  StreamLog stream(10, nullptr);
  const std::string name = "k";
  const auto launch = [&](std::uint64_t order) {
    const auto marker = stream.begin(order, [&](LoggedLaunch& entry) {
      entry.replayable = true;
      entry.kernel = &name;
    });
    stream.end(marker, true);
  };
  launch(1);
  EXPECT_FALSE(stream.incomplete()[0].unordered);
  launch(2);
  EXPECT_TRUE(stream.incomplete()[0].unordered);
  stream.all_complete();
  EXPECT_TRUE(stream.idle());
}

TEST(LaunchLogTest, AStreamsHandleThatComesAgainIsAnotherStream) {
  Log log;
  StreamLog* before = &log.log.stream(10, 0);
  const auto marker = log.launch(10);
  log.complete(10, marker);
  log.log.forget(10);
  EXPECT_TRUE(log.log.streams().empty());
  StreamLog* after = &log.log.stream(10, 0);
  EXPECT_NE(before, after);
  EXPECT_EQ(after->word()->load(), 0U);
  EXPECT_TRUE(after->idle());
  // One whose last number has not arrived keeps its word to itself.
  log.launch(10);
  auto* word = log.log.stream(10, 0).word();
  log.log.forget(10);
  EXPECT_NE(log.log.stream(10, 0).word(), word);
}

TEST(LaunchLogTest, PerThreadStreamsAreApart) {
  Log log;
  EXPECT_NE(&log.log.stream(2, 7), &log.log.stream(2, 8));
  EXPECT_EQ(&log.log.stream(2, 7), &log.log.stream(2, 7));
}

// Random programs on random streams, with the device at a random place in each: what is to do is
// what a plain list of all launches says, also past the ring's size and the words' number.
TEST(LaunchLogTest, AgreesWithAPlainList) {
  constexpr unsigned kSeed = 20261130;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    Log log;
    struct Launch {
      std::uint64_t stream;
      std::uint32_t marker;
      bool replayable;
    };
    std::vector<Launch> all;
    std::map<std::uint64_t, std::uint32_t> reached;
    const int count = 1 + static_cast<int>(random() % 100);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t stream = 10 * (1 + random() % 3);
      const bool replayable = random() % 4 != 0;
      all.push_back({stream, log.launch(stream, replayable), replayable});
      if (random() % 3 == 0) {
        // The device finishes one more launch of some stream.
        const std::uint64_t of = 10 * (1 + random() % 3);
        for (const Launch& launch : all) {
          if (launch.stream == of && launch.marker > reached[of]) {
            reached[of] = launch.marker;
            log.complete(of, launch.marker);
            break;
          }
        }
      }
    }
    std::vector<Launch> wanted;
    std::map<std::uint64_t, bool> begun;
    bool recoverable = true;
    for (const Launch& launch : all) {
      if (launch.marker > reached[launch.stream]) {
        if (!begun[launch.stream]) {
          begun[launch.stream] = true;
          recoverable &= launch.replayable;
        }
        wanted.push_back(launch);
      }
    }
    const Frontier frontier = log.frontier();
    EXPECT_EQ(frontier.recoverable, recoverable);
    ASSERT_EQ(frontier.to_do.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(frontier.to_do[i].marker, wanted[i].marker);
      EXPECT_EQ(frontier.to_do[i].kernel, &log.names[wanted[i].stream]);
    }
  }
}

TEST(LaunchLogTest, ThreadsLaunchOnStreamsOfTheirOwn) {
  Log log;
  for (std::uint64_t stream = 100; stream < 104; ++stream) {
    log.names[stream] = "k";
  }
  std::vector<std::thread> threads;
  for (std::uint64_t stream = 100; stream < 104; ++stream) {
    threads.emplace_back([&log, stream] {
      for (int i = 0; i < 1000; ++i) {
        const auto marker = log.launch(stream);
        if (i % 3 == 0) {
          log.complete(stream, marker);
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  // 999 is the last that was completed.
  EXPECT_TRUE(log.frontier().to_do.empty());
}

}  // namespace
}  // namespace gpurecover::recovery
