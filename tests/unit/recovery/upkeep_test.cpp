// SPDX-License-Identifier: Apache-2.0
//
// What a warm standby has and what it should have, in every order of events that matters, and then
// with real threads in any order.
#include "recovery/upkeep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

namespace gpurecover::recovery {
namespace {

using std::chrono::milliseconds;
using Piece = Upkeep::Piece;
using What = Upkeep::Task::What;

constexpr milliseconds kLong{20'000};

Piece device(std::uint64_t address, std::uint64_t handle, std::uint64_t size = 4096) {
  Piece piece;
  piece.address = address;
  piece.size = size;
  piece.handle = handle;
  return piece;
}

// The worker's part of a hand-over that goes well.
void hand_over(Upkeep& upkeep, std::uint64_t handle) {
  const Upkeep::Task task = upkeep.next();
  ASSERT_EQ(task.what, What::kHandOver);
  EXPECT_EQ(task.piece.handle, handle);
  EXPECT_TRUE(upkeep.read(task.serial));
  upkeep.handed_over(task.serial, true);
}

std::vector<std::uint64_t> handles_of(const std::vector<Piece>& pieces) {
  std::vector<std::uint64_t> out;
  for (const Piece& piece : pieces) {
    out.push_back(piece.handle);
  }
  std::sort(out.begin(), out.end());
  return out;
}
using Handles = std::vector<std::uint64_t>;

TEST(UpkeepTest, HandsOverInTheOrderOfMaking) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x3000, 1));
  upkeep.made(device(0x1000, 2));
  hand_over(upkeep, 1);
  hand_over(upkeep, 2);
  EXPECT_EQ(upkeep.next().what, What::kNothing);
  EXPECT_EQ(handles_of(upkeep.kept()), (Handles{1, 2}));
}

TEST(UpkeepTest, WhatGoesBeforeItsTimeIsNeverHandedOver) {
  Upkeep upkeep{milliseconds(60'000)};
  upkeep.made(device(0x1000, 1));
  const Upkeep::Task task = upkeep.next();
  EXPECT_EQ(task.what, What::kNothing);
  EXPECT_LT(task.until, Upkeep::Clock::now() + milliseconds(61'000));
  upkeep.gone(0x1000);
  EXPECT_EQ(upkeep.next().until, Upkeep::Clock::time_point::max());
}

TEST(UpkeepTest, LetsGoBeforeAnythingElseIsHandedOver) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  hand_over(upkeep, 1);
  upkeep.gone(0x1000);
  // Others at the same addresses, and over them.
  upkeep.made(device(0x1000, 2, 0x8000));
  EXPECT_EQ(upkeep.kept().size(), 0U);
  EXPECT_EQ(handles_of(upkeep.stale()), Handles{1});
  const Upkeep::Task task = upkeep.next();
  ASSERT_EQ(task.what, What::kLetGo);
  EXPECT_EQ(task.piece.handle, 1U);
  EXPECT_EQ(task.piece.size, 4096U);
  EXPECT_EQ(upkeep.next().what, What::kLetGo) << "until it is done";
  upkeep.let_go_of(task.serial);
  hand_over(upkeep, 2);
  EXPECT_EQ(handles_of(upkeep.kept()), Handles{2});
}

TEST(UpkeepTest, WhatGoesWhileItIsHandedOverIsLetGoOf) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  const Upkeep::Task task = upkeep.next();
  ASSERT_TRUE(upkeep.read(task.serial));
  upkeep.gone(0x1000);  // between the export and the standby's answer
  upkeep.made(device(0x1000, 2));
  upkeep.handed_over(task.serial, true);
  EXPECT_EQ(upkeep.kept().size(), 0U);
  const Upkeep::Task next = upkeep.next();
  ASSERT_EQ(next.what, What::kLetGo);
  EXPECT_EQ(next.serial, task.serial);
  upkeep.let_go_of(next.serial);
  hand_over(upkeep, 2);
}

TEST(UpkeepTest, WhatTheStandbyCouldNotTakeIsNotKeptAndNotTriedAgain) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  upkeep.made(device(0x2000, 2));
  for (const bool went_meanwhile : {false, true}) {
    const Upkeep::Task task = upkeep.next();
    ASSERT_EQ(task.what, What::kHandOver);
    EXPECT_TRUE(upkeep.read(task.serial));
    if (went_meanwhile) {
      upkeep.gone(task.piece.address);
    }
    upkeep.handed_over(task.serial, false);
  }
  EXPECT_EQ(upkeep.next().what, What::kNothing);
  EXPECT_TRUE(upkeep.kept().empty());
  EXPECT_TRUE(upkeep.stale().empty());
}

TEST(UpkeepTest, NobodyUnmakesWhatIsBeingRead) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  upkeep.made(device(0x2000, 2));
  const Upkeep::Task task = upkeep.next();
  ASSERT_EQ(task.piece.handle, 1U);
  upkeep.gone(0x2000);  // another one: at once
  std::atomic<bool> read{false};
  std::thread program([&] {
    upkeep.gone(0x1000);
    EXPECT_TRUE(read) << "it went while its handle was in use";
  });
  std::this_thread::yield();
  read = true;
  EXPECT_TRUE(upkeep.read(task.serial)) << "it cannot have gone meanwhile";
  program.join();
  upkeep.handed_over(task.serial, true);
  EXPECT_EQ(upkeep.next().what, What::kLetGo);
}

TEST(UpkeepTest, AHandOverThatIsGivenUpWaitsForNobody) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  const Upkeep::Task task = upkeep.next();
  std::thread program([&] { upkeep.gone(0x1000); });
  upkeep.handed_over(task.serial, false);  // an exception, before it was read
  program.join();
  EXPECT_TRUE(upkeep.stale().empty());
}

TEST(UpkeepTest, AShortageWaitsUntilNothingFreeIsHeld) {
  Upkeep upkeep{milliseconds(0)};
  EXPECT_TRUE(upkeep.let_go(milliseconds(0)));
  upkeep.made(device(0x1000, 1));
  hand_over(upkeep, 1);
  EXPECT_TRUE(upkeep.let_go(milliseconds(0))) << "what lives is nobody's to take";
  EXPECT_EQ(upkeep.outstanding(0), 0U);
  upkeep.gone(0x1000);
  EXPECT_EQ(upkeep.outstanding(0), 4096U);
  EXPECT_EQ(upkeep.outstanding(1), 0U);
  EXPECT_FALSE(upkeep.let_go(milliseconds(1)));
  std::thread program([&] { EXPECT_TRUE(upkeep.let_go(kLong)); });
  upkeep.let_go_of(upkeep.next().serial);
  program.join();
  EXPECT_EQ(upkeep.outstanding(0), 0U);
}

TEST(UpkeepTest, AStandbyThatIsGoneHoldsNothing) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  hand_over(upkeep, 1);
  upkeep.gone(0x1000);
  std::thread program([&] { EXPECT_TRUE(upkeep.let_go(kLong)); });
  upkeep.close();
  program.join();
  upkeep.made(device(0x2000, 2));
  upkeep.gone(0x2000);
  upkeep.touch();
  EXPECT_EQ(upkeep.next().what, What::kEnd);
  EXPECT_TRUE(upkeep.kept().empty());
  EXPECT_TRUE(upkeep.stale().empty());
}

TEST(UpkeepTest, APauseLeavesThingsAsTheyAre) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  upkeep.made(device(0x2000, 2));
  hand_over(upkeep, 1);
  hand_over(upkeep, 2);
  upkeep.made(device(0x3000, 3));
  upkeep.gone(0x1000);
  const std::function<void()> wait = [&] { upkeep.wait(Upkeep::Clock::time_point::max()); };
  std::thread worker([&] {
    for (upkeep.let_go_of(upkeep.next().serial); upkeep.next().what != What::kEnd;) {
      wait();
    }
  });
  upkeep.gone(0x2000);
  upkeep.pause();
  worker.join();
  EXPECT_EQ(upkeep.next().what, What::kEnd);
  EXPECT_TRUE(upkeep.kept().empty());
}

TEST(UpkeepTest, AForkFindsNoDescriptorAtHand) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  upkeep.made(device(0x2000, 2));
  const Upkeep::Task task = upkeep.next();
  upkeep.read(task.serial);
  std::atomic<bool> closed{false};
  std::thread program([&] {
    upkeep.begin_fork(kLong);
    EXPECT_TRUE(closed);
    EXPECT_EQ(upkeep.next().what, What::kNothing) << "none is made during a fork";
    upkeep.end_fork();
  });
  std::this_thread::yield();
  closed = true;
  upkeep.handed_over(task.serial, true);
  program.join();
  hand_over(upkeep, 2);
  // Nobody is kept for long.
  upkeep.made(device(0x3000, 3));
  EXPECT_EQ(upkeep.next().what, What::kHandOver);
  upkeep.begin_fork(milliseconds(1));
  upkeep.end_fork();
  // Nor for pinned memory, whose file the program has open itself.
  Upkeep pinned{milliseconds(0)};
  Piece piece = device(0x1000, 0);
  piece.host = true;
  pinned.made(piece);
  EXPECT_EQ(pinned.next().what, What::kHandOver);
  pinned.begin_fork(kLong);
}

TEST(UpkeepTest, WhatLivedBeforeIsAdopted) {
  Upkeep upkeep{milliseconds(0)};
  upkeep.made(device(0x1000, 1));
  upkeep.adopt([] { return std::vector<Piece>{device(0x1000, 1), device(0x2000, 2)}; });
  hand_over(upkeep, 1);
  hand_over(upkeep, 2);
  EXPECT_EQ(upkeep.next().what, What::kNothing) << "none of them twice";
}

TEST(UpkeepTest, ATouchIsSeenOnceAndInTime) {
  Upkeep at_once{milliseconds(0)};
  Upkeep::Clock::time_point due;
  EXPECT_FALSE(at_once.touched(due));
  EXPECT_EQ(due, Upkeep::Clock::time_point::max());
  at_once.touch();
  at_once.touch();
  at_once.wait(Upkeep::Clock::time_point::max());  // there is something to do
  EXPECT_TRUE(at_once.touched(due));
  EXPECT_FALSE(at_once.touched(due));
  Upkeep later{milliseconds(60'000)};
  later.touch();
  EXPECT_FALSE(later.touched(due));
  EXPECT_LT(due, Upkeep::Clock::time_point::max());
}

// Threads that make and unmake memory, one that forks, one that runs short of it, and a worker, as
// in a real process. The driver and the standby are maps that notice every mistake: a handle that
// is read after its release, memory that is mapped over other memory, memory that nobody lets go
// of.
TEST(UpkeepTest, AnyOrder) {
  constexpr int kThreads = 3;
  constexpr int kSteps = 1500;
  constexpr std::uint64_t kPlaces = 6;  // of each thread
  for (const int settle_ms : {0, 1}) {
    const std::uint32_t seed = 20261130U + static_cast<std::uint32_t>(settle_ms);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Upkeep upkeep{milliseconds(settle_ms)};
    std::mutex mutex;
    std::set<std::uint64_t> handles;        // that the driver knows
    std::map<std::uint64_t, Piece> mapped;  // by the standby
    std::atomic<std::uint64_t> next_handle{1};
    std::atomic<int> at_hand{0};

    std::thread worker([&] {
      std::mt19937 random(seed);
      for (;;) {
        const Upkeep::Task task = upkeep.next();
        switch (task.what) {
          case What::kEnd:
            return;
          case What::kNothing:
            upkeep.wait(task.until);
            break;
          case What::kLetGo: {
            const std::lock_guard lock(mutex);
            EXPECT_EQ(mapped.erase(task.piece.address), 1U);
            upkeep.let_go_of(task.serial);
            break;
          }
          case What::kHandOver: {
            {
              const std::lock_guard lock(mutex);
              EXPECT_TRUE(handles.contains(task.piece.handle)) << "a handle that was released";
            }
            std::this_thread::yield();
            {
              const std::lock_guard lock(mutex);
              EXPECT_TRUE(handles.contains(task.piece.handle)) << "released while it was read";
            }
            ++at_hand;
            bool takes = upkeep.read(task.serial) && random() % 16 != 0;
            if (takes) {
              const std::lock_guard lock(mutex);
              const auto after = mapped.lower_bound(task.piece.address);
              EXPECT_TRUE(after == mapped.end() ||
                          task.piece.address + task.piece.size <= after->first);
              EXPECT_TRUE(after == mapped.begin() ||
                          std::prev(after)->first + std::prev(after)->second.size <=
                              task.piece.address);
              mapped[task.piece.address] = task.piece;
            }
            --at_hand;
            upkeep.handed_over(task.serial, takes);
            break;
          }
        }
      }
    });

    std::vector<std::map<std::uint64_t, std::uint64_t>> living(kThreads);  // address -> handle
    std::vector<std::thread> program;
    for (int t = 0; t < kThreads; ++t) {
      program.emplace_back([&, t] {
        std::mt19937 random(seed + static_cast<std::uint32_t>(t) + 1);
        auto& mine = living[static_cast<std::size_t>(t)];
        for (int step = 0; step < kSteps; ++step) {
          // Pieces of one or two places, so that new ones lie across older ones.
          const std::uint64_t place = random() % (kPlaces - 1);
          const std::uint64_t size = (1 + random() % 2) * 0x1000;
          const std::uint64_t address =
              0x100000 * (static_cast<std::uint64_t>(t) + 1) + place * 0x1000;
          bool gone = false;
          for (const std::uint64_t at : {address - 0x1000, address, address + 0x1000}) {
            if (const auto found = mine.find(at); found != mine.end()) {
              upkeep.gone(at);
              const std::lock_guard lock(mutex);
              handles.erase(found->second);
              mine.erase(found);
              gone = true;
            }
          }
          if (!gone || random() % 2 == 0) {
            const std::uint64_t handle = next_handle++;
            {
              const std::lock_guard lock(mutex);
              handles.insert(handle);
            }
            upkeep.made(device(address, handle, size));
            mine[address] = handle;
          }
          if (random() % 32 == 0) {
            std::this_thread::yield();
          }
        }
      });
    }
    std::thread others([&] {
      for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(upkeep.let_go(kLong));
        upkeep.begin_fork(kLong);
        EXPECT_EQ(at_hand, 0);
        std::this_thread::yield();
        upkeep.end_fork();
      }
    });
    for (std::thread& thread : program) {
      thread.join();
    }
    others.join();
    EXPECT_TRUE(upkeep.let_go(kLong));
    upkeep.pause();
    worker.join();
    EXPECT_TRUE(upkeep.wait_for_reader(kLong));

    // What is kept is what the standby has, and lives.
    std::map<std::uint64_t, std::uint64_t> alive;
    for (const auto& mine : living) {
      alive.insert(mine.begin(), mine.end());
    }
    std::size_t count = 0;
    for (const auto& list : {upkeep.kept(), upkeep.stale()}) {
      for (const Piece& piece : list) {
        ASSERT_TRUE(mapped.contains(piece.address));
        EXPECT_EQ(mapped[piece.address].handle, piece.handle);
        ++count;
      }
    }
    EXPECT_EQ(count, mapped.size());
    for (const Piece& piece : upkeep.kept()) {
      ASSERT_TRUE(alive.contains(piece.address));
      EXPECT_EQ(alive[piece.address], piece.handle);
    }
  }
}

}  // namespace
}  // namespace gpurecover::recovery
