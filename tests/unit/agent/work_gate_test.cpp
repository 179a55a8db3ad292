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

// Callers that enqueue and workers that need the device for themselves, all at once.
TEST(WorkGate, NobodyIsUnderWayWhileOneWorks) {
  WorkGate gate(kLong);
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
