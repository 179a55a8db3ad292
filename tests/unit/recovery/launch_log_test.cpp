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
    return begin(stream, replayable).end(taken);
  }
  // Between begin and end of a launch that shares no region, whose marker the caller writes.
  struct UnderWay {
    StreamLog& stream;
    Issue issue;
    std::uint32_t end(bool taken = true, bool marked = false) {
      stream.end(issue.number, taken, marked);
      return issue.number;
    }
  };
  UnderWay begin(std::uint64_t stream, bool replayable = true, const AccessSets* sets = nullptr,
                 const char* obstacle = nullptr) {
    UnderWay under_way{log.stream(stream, 0), {}};
    LaunchTraits traits;
    traits.replayable = replayable;
    traits.sets = sets;
    under_way.stream.begin(log.next_order(), traits, under_way.issue, [&](LaunchRecord& entry) {
      entry.kernel = &names[stream];
      entry.obstacle = obstacle;
    });
    return under_way;
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
  auto a = log.begin(10);
  auto b = log.begin(10);
  b.end();
  a.end();
  Frontier frontier = log.frontier();
  EXPECT_FALSE(frontier.recoverable);
  EXPECT_NE(frontier.reason.find("two threads"), std::string::npos) << frontier.reason;
  // Once waited for, the stream is as good as any.
  stream.complete_until(stream.settled());
  log.launch(10);
  frontier = log.frontier();
  EXPECT_TRUE(frontier.recoverable);
  EXPECT_EQ(frontier.to_do.size(), 1U);
}

TEST(LaunchLogTest, AnObstacleStandsInTheWayWhereverItIs) {
  Log log;
  log.launch(10);
  auto launch = log.begin(10, true, nullptr, "an event");
  RemoteLaunch copy;
  EXPECT_FALSE(launch.stream.copy_of(launch.issue.number, copy));
  launch.end();
  EXPECT_FALSE(log.frontier().recoverable);
  EXPECT_NE(log.frontier().reason.find("an event"), std::string::npos);
}

TEST(LaunchLogTest, WithoutAMarkerNothingIsKnown) {
  LaunchLog log;  // without words
  StreamLog& stream = log.stream(10, 0);
  EXPECT_EQ(stream.word(), nullptr);
  Issue issue;
  LaunchTraits traits;
  traits.replayable = true;
  traits.mark_behind = true;
  stream.begin(1, traits, issue, [](LaunchRecord&) {});
  EXPECT_FALSE(issue.mark_behind);
  stream.end(issue.number, true, false);
  ASSERT_EQ(stream.incomplete().launches.size(), 1U);
  EXPECT_TRUE(stream.incomplete().launches[0].unordered);
  stream.complete_until(stream.settled());
  EXPECT_TRUE(stream.idle());
}

AccessSets sets_of(std::uint64_t key, idempotency::Range read, idempotency::Range write) {
  AccessSets sets;
  sets.key = key;
  sets.reads = {read};
  sets.writes = {write};
  return sets;
}

TEST(LaunchLogTest, LaunchesThatLeaveEachOthersInputAloneShareARegion) {
  Log log;
  const AccessSets first = sets_of(1, {0, 8}, {8, 16}), second = sets_of(2, {8, 16}, {16, 24}),
                   third = sets_of(3, {16, 24}, {0, 8});
  auto a = log.begin(10, true, &first);
  EXPECT_FALSE(a.issue.mark_before);
  a.end();
  auto b = log.begin(10, true, &second);
  EXPECT_FALSE(b.issue.mark_before) << "what the first reads is not written";
  b.end();
  Frontier frontier = log.frontier();
  ASSERT_EQ(frontier.to_do.size(), 2U);
  EXPECT_TRUE(frontier.may_have_run[0]);
  EXPECT_TRUE(frontier.may_have_run[1]);
  auto c = log.begin(10, true, &third);
  ASSERT_TRUE(c.issue.mark_before) << "it writes what the first reads";
  EXPECT_EQ(*c.issue.mark_before, b.issue.number);
  c.end();
  frontier = log.frontier();
  ASSERT_EQ(frontier.to_do.size(), 3U);
  EXPECT_FALSE(frontier.may_have_run[2]);
  log.complete(10, *c.issue.mark_before);
  frontier = log.frontier();
  ASSERT_EQ(frontier.to_do.size(), 1U);
  EXPECT_EQ(frontier.to_do[0].marker, c.issue.number);
}

// Two buffers in turn: after a few regions of one launch, copies take the place of markers.
TEST(LaunchLogTest, CopiesTakeThePlaceOfMarkersWhereMemoryIsRewritten) {
  Log log;
  StreamLog& stream = log.log.stream(10, 0);
  const AccessSets there = sets_of(1, {0, 512}, {512, 1024}),
                   back = sets_of(2, {512, 1024}, {0, 512});
  std::size_t markers = 0, copies = 0;
  std::uint32_t last = 0;
  for (int i = 0; i < 10 * static_cast<int>(Region::kMaxLaunches); ++i) {
    if (stream.wants_store()) {
      stream.give_store(0x10000, 4096);
    }
    auto launch = log.begin(10, true, i % 2 == 0 ? &there : &back);
    if (launch.issue.mark_before) {
      ++markers;
      log.complete(10, *launch.issue.mark_before);
    }
    for (const KeptCopy& copy : launch.issue.keep) {
      ++copies;
      EXPECT_GE(copy.copy, 0x10000U);
      EXPECT_LE(copy.copy + copy.range.end - copy.range.begin, 0x11000U);
      log.complete(10, copy.marker);
    }
    last = launch.end();
  }
  EXPECT_LT(markers + 2 * copies, 60U);
  EXPECT_GT(copies, 4U);
  EXPECT_GT(stream.copies(), 0U);
  Frontier frontier = log.frontier();
  EXPECT_EQ(frontier.copies.size(), stream.copies());
  // A writer of another stream makes them worthless.
  const AccessSets elsewhere = sets_of(3, {4096, 4097}, {4096, 4097});
  stream.void_copies(&elsewhere);
  EXPECT_TRUE(log.frontier().recoverable);
  stream.void_copies(&there);
  EXPECT_FALSE(log.frontier().recoverable);
  log.complete(10, last);
  stream.complete_until(stream.settled());
  EXPECT_TRUE(stream.idle());
  EXPECT_EQ(log.log.copies(), 0U);
  EXPECT_EQ(log.log.unmarked(), 0U);
}

// A copy that could not be made: the launch that needed it was refused too (the context is dead),
// or ran all the same.
TEST(LaunchLogTest, WithoutItsCopyALaunchSpoilsItsRegion) {
  for (const bool taken : {false, true}) {
    Log log;
    StreamLog& stream = log.log.stream(10, 0);
    const AccessSets there = sets_of(1, {0, 512}, {512, 1024}),
                     back = sets_of(2, {512, 1024}, {0, 512});
    bool failed = false;
    for (int i = 0; !failed; ++i) {
      ASSERT_LT(i, 100);
      if (stream.wants_store()) {
        stream.give_store(0x10000, 4096);
      }
      auto launch = log.begin(10, true, i % 2 == 0 ? &there : &back);
      if (launch.issue.mark_before) {
        log.complete(10, *launch.issue.mark_before);
      }
      if (!launch.issue.keep.empty()) {
        failed = true;
        stream.copies_failed(launch.issue.keep.front().marker);
        launch.end(taken);
        // A later number does not make it one that is there.
        log.complete(10, launch.issue.keep.front().marker);
      } else {
        launch.end();
      }
    }
    const Frontier frontier = log.frontier();
    EXPECT_EQ(frontier.recoverable, !taken) << frontier.reason;
    EXPECT_TRUE(frontier.copies.empty());
    EXPECT_FALSE(frontier.to_do.empty());
    EXPECT_TRUE(log.begin(10, true, &there).issue.mark_before) << "nobody joins that region";
  }
}

// Where the rewritten memory is large, a marker is cheaper, and no store is asked for.
TEST(LaunchLogTest, LargeMemoryIsNotCopied) {
  Log log;
  const std::uint64_t size = 16 << 20;
  const AccessSets there = sets_of(1, {0, size}, {size, 2 * size}),
                   back = sets_of(2, {size, 2 * size}, {0, size});
  for (int i = 0; i < 100; ++i) {
    auto launch = log.begin(10, true, i % 2 == 0 ? &there : &back);
    EXPECT_EQ(launch.issue.mark_before.has_value(), i > 0);
    launch.end();
  }
  EXPECT_FALSE(log.log.stream(10, 0).wants_store());
}

// The later number may come into the stream first: it must not vouch for the earlier launch.
TEST(LaunchLogTest, AMarkerSaysNothingOfALaunchThatIsStillBeingIssued) {
  Log log;
  auto a = log.begin(10);
  auto b = log.begin(10);
  EXPECT_FALSE(b.issue.mark_before);
  b.end();
  EXPECT_FALSE(log.log.stream(10, 0).begin_mark()) << "the other thread is not done";
  a.end();
  auto c = log.begin(10);
  ASSERT_TRUE(c.issue.mark_before);
  EXPECT_EQ(*c.issue.mark_before, b.issue.number);
  c.end();
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

// Arguments and attributes of any size, in places that had others before.
TEST(LaunchLogTest, KeepsEveryArgument) {
  Log log;
  StreamLog& stream = log.log.stream(10, 0);
  const auto bytes = [](std::size_t size, int seed) {
    std::vector<std::byte> out(size);
    for (std::size_t i = 0; i < size; ++i) {
      out[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
    }
    return out;
  };
  const std::size_t sizes[] = {0, 1, 39, 40, 41, 100, 4000, 8, 0, 32};
  std::vector<std::uint32_t> numbers;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 10; ++i) {
      Issue issue;
      LaunchTraits traits;
      traits.replayable = true;
      stream.begin(log.log.next_order(), traits, issue, [&](LaunchRecord& record) {
        record.kernel = &log.names[10];
        record.function = static_cast<std::uint64_t>(i);
        record.grid[1] = 5;
        record.block[2] = 3;
        record.shared_bytes = 77;
        record.cooperative = i % 2 != 0;
        record.set_arguments(bytes(sizes[i], round + i));
        if (i % 3 == round % 3) {
          record.attributes() = bytes(static_cast<std::size_t>(i), 9);
        }
      });
      stream.end(issue.number, true, false);
      numbers.push_back(issue.number);
    }
    const auto launches = stream.incomplete().launches;
    ASSERT_EQ(launches.size(), 10U);
    for (int i = 0; i < 10; ++i) {
      const LoggedLaunch& launch = launches[static_cast<std::size_t>(i)];
      EXPECT_EQ(launch.launch.function, static_cast<std::uint64_t>(i));
      EXPECT_EQ(launch.launch.stream, 10U);
      EXPECT_EQ(launch.launch.grid[1], 5U);
      EXPECT_EQ(launch.launch.block[2], 3U);
      EXPECT_EQ(launch.launch.shared_bytes, 77U);
      EXPECT_EQ(launch.launch.cooperative, i % 2 != 0);
      EXPECT_EQ(launch.launch.arguments, bytes(sizes[i], round + i));
      EXPECT_EQ(launch.launch.attributes, i % 3 == round % 3 ? bytes(static_cast<std::size_t>(i), 9)
                                                             : std::vector<std::byte>());
      EXPECT_EQ(launch.launch.marker_value, launch.marker);
      EXPECT_EQ(launch.launch.marker, reinterpret_cast<std::uint64_t>(stream.word()));
    }
    log.complete(10, numbers.back());
    EXPECT_TRUE(stream.idle());
  }
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
