// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/work_gate.h"

#include <gtest/gtest.h>

#include <thread>

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

// One enters as often as it can, the other begins at any moment of that. Without a barrier on the
// caller's side or by the worker for it, both go in: the caller's store is held up behind another,
// of a word that the worker writes too.
TEST_P(WorkGateWithBarriers, OfTwoAtLeastOneSeesTheOther) {
  WorkGate gate(kLong, GetParam());
  std::atomic<bool> working{false};
  std::atomic<int> calls{0};
  std::atomic<bool> done{false};
  alignas(64) std::atomic<int> contended{0};
  alignas(64) int met = 0;
  int begun = 0;
  constexpr int kRounds = 300;
  {
    std::jthread caller([&] {
      Member self(gate);
      for (int call = 1; !done.load(std::memory_order_relaxed); ++call) {
        contended.store(call, std::memory_order_relaxed);
        gate.enter(self.lane);
        for (int look = 0; look < 50; ++look) {
          met += working.load(std::memory_order_relaxed);
        }
        gate.leave(self.lane);
        calls.store(call, std::memory_order_relaxed);
      }
    });
    Member self(gate);
    for (int round = 0; round < kRounds; ++round) {
      // Not while it still naps because of the last round.
      for (const int before = calls.load(); calls.load() < before + 10;) {
        std::this_thread::yield();
      }
      gate.enter(self.lane);
      for (int moment = 0; moment <= round % 32; ++moment) {
        contended.store(moment, std::memory_order_relaxed);
      }
      begun += gate.begin(self.lane);
      for (int look = 0; look < 20; ++look) {
        working.store(true);
      }
      working.store(false);
      gate.end();
      gate.leave(self.lane);
    }
    done = true;
  }
  EXPECT_EQ(begun, kRounds);
  EXPECT_EQ(met, 0);
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
