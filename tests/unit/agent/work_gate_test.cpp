// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/work_gate.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace gpurecover::agent {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60000};

struct Member {
  explicit Member(WorkGate& gate) : gate(gate) { gate.add(lane); }
  ~Member() { gate.remove(lane); }
  WorkGate& gate;
  WorkGate::Lane lane;
};

// Both kinds of barrier, where the kernel offers the cheaper one.
class WorkGateWithBarriers : public testing::TestWithParam<WorkGate::Barriers> {};
INSTANTIATE_TEST_SUITE_P(, WorkGateWithBarriers,
                         testing::Values(WorkGate::Barriers::kWorkers,
                                         WorkGate::Barriers::kEveryCalls),
                         [](const auto& info) {
                           return info.param == WorkGate::Barriers::kWorkers ? "Workers"
                                                                             : "EveryCalls";
                         });

TEST_P(WorkGateWithBarriers, NeverMoreThanWhatWasAskedFor) {
  const WorkGate gate(kLong, GetParam());
  if (GetParam() == WorkGate::Barriers::kEveryCalls) {
    EXPECT_EQ(gate.barriers(), WorkGate::Barriers::kEveryCalls);
  }
  RecordProperty("barriers", static_cast<int>(gate.barriers()));
}

// One enters as often as it can, the other begins at any moment of that, and nobody waits: then it
// is no wonder if they meet, but of the two at least one knows. Without a barrier on the caller's
// side, or by the worker for it, neither would: the caller's store is held up by others before it,
// of memory that is in no cache.
TEST_P(WorkGateWithBarriers, OfTwoAtLeastOneSeesTheOther) {
  WorkGate gate(milliseconds(0), GetParam());
  constexpr int kRounds = 100000;
  std::vector<char> met(kRounds + 1);
  std::vector<char> unnoticed(kRounds + 1);
  std::atomic<int> working{0};  // the round, while it works
  std::atomic<bool> running{false};
  std::atomic<bool> done{false};
  {
    std::jthread caller([&] {
      Member self(gate);
      std::vector<char> cold(16 << 20);
      std::size_t at = 0;
      while (!done.load(std::memory_order_relaxed)) {
        for (int store = 0; store < 8; ++store) {
          at = (at + 4099 * 64) % cold.size();
          *static_cast<volatile char*>(&cold[at]) = 1;
        }
        gate.enter(self.lane);
        for (int look = 0; look < 100; ++look) {
          met[working.load(std::memory_order_relaxed)] = 1;
        }
        gate.leave(self.lane);
        running.store(true, std::memory_order_relaxed);
        running.notify_one();
      }
    });
    running.wait(false);
    Member self(gate);
    for (int round = 1; round <= kRounds; ++round) {
      gate.enter(self.lane);
      if (gate.begin(self.lane)) {
        for (int store = 0; store < 100; ++store) {
          working.store(round, std::memory_order_relaxed);
        }
        working.store(0);
        unnoticed[round] = gate.undisturbed();
        gate.end();
      }
      gate.leave(self.lane);
    }
    done = true;
  }
  for (int round = 1; round <= kRounds; ++round) {
    ASSERT_FALSE(met[round] && unnoticed[round]) << "round " << round;
  }
}

// Callers that enqueue and workers that need the device for themselves, all at once.
TEST_P(WorkGateWithBarriers, NobodyIsUnderWayWhileOneWorks) {
  WorkGate gate(kLong, GetParam());
  std::atomic<int> calls{0};
  std::atomic<int> workers{0};
  std::atomic<int> met{0};
  std::atomic<int> worked{0};
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Member self(gate);
        for (int round = 0; round < kRounds; ++round) {
          gate.enter(self.lane);
          if ((round + t) % 10 == 0) {
            ASSERT_TRUE(gate.begin(self.lane));
            met += workers.fetch_add(1) != 0 || calls.load() != 0;
            std::this_thread::yield();
            met += calls.load() != 0;
            ++worked;
            workers.fetch_sub(1);
            gate.end();
          } else {
            calls.fetch_add(1);
            met += workers.load() != 0;
            calls.fetch_sub(1);
          }
          gate.leave(self.lane);
        }
      });
    }
  }
  EXPECT_EQ(met, 0);
  EXPECT_EQ(worked, kThreads * kRounds / 10);
  EXPECT_TRUE(gate.undisturbed());
}

TEST(WorkGate, TheWorkersOwnCallsPass) {
  WorkGate gate(milliseconds(0));
  Member self(gate);
  gate.enter(self.lane);
  ASSERT_TRUE(gate.begin(self.lane));
  gate.pass(self.lane);
  gate.enter(self.lane);
  EXPECT_TRUE(gate.undisturbed());
  gate.end();
  gate.leave(self.lane);
}

TEST(WorkGate, ACallThatDoesNotEndKeepsWorkFromBeginning) {
  WorkGate gate(milliseconds(1));
  Member self(gate);
  Member other(gate);
  gate.enter(other.lane);
  gate.enter(self.lane);
  EXPECT_FALSE(gate.begin(self.lane));
  EXPECT_TRUE(self.lane.busy) << "the call itself goes on";
  gate.leave(other.lane);
  EXPECT_TRUE(gate.begin(self.lane));
  gate.end();
}

TEST(WorkGate, WhoLosesPatienceGoesInAndTheWorkerKnows) {
  for (const bool only_waits : {false, true}) {
    WorkGate gate(milliseconds(1));
    Member self(gate);
    Member other(gate);
    gate.enter(self.lane);
    ASSERT_TRUE(gate.begin(self.lane));
    ASSERT_TRUE(gate.undisturbed());
    only_waits ? gate.pass(other.lane) : gate.enter(other.lane);
    EXPECT_FALSE(gate.undisturbed());
    gate.end();
    gate.leave(other.lane);
    EXPECT_TRUE(gate.begin(self.lane));
    EXPECT_TRUE(gate.undisturbed()) << "the next work is another's";
    gate.end();
  }
}

}  // namespace
}  // namespace gpurecover::agent
