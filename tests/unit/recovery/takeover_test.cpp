// SPDX-License-Identifier: Apache-2.0
//
// What a takeover comes to when any of its steps ends in any way, at any attempt.
#include "recovery/takeover.h"

#include <gtest/gtest.h>

#include <array>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpurecover::recovery {
namespace {

enum Which { kCheck, kFence, kFrontier, kStart, kMap, kMemory, kRestore, kReplay, kCommit, kSteps };
enum class How { kDone, kDecline, kRefuse, kRepeats, kThrow, kNoMemory };

// Does what it is told, and notes what it was asked.
class Scripted final : public TakeoverSteps {
 public:
  // At the `at`-th time that `step` comes (from 1), it ends so; otherwise well.
  Scripted(Which step, int at, How how) : step_(step), at_(at), how_(how) {}

  StepResult check() override { return run(kCheck); }
  StepResult fence() override { return run(kFence); }
  StepResult read_frontier() override { return run(kFrontier); }
  StepResult start() override {
    EXPECT_FALSE(standby_) << "the one before was not ended";
    standby_ = true;  // also where the step fails, there may be half a one
    return run(kStart);
  }
  StepResult map() override { return with_standby(kMap); }
  StepResult check_memory() override { return with_standby(kMemory); }
  StepResult restore() override { return with_standby(kRestore); }
  StepResult replay() override { return with_standby(kReplay); }
  StepResult commit() override {
    const StepResult result = with_standby(kCommit);
    committed_ = result.end == StepEnd::kDone;
    return result;
  }
  void abandon() noexcept override { standby_ = false; }

  bool standby_ = false;
  bool committed_ = false;
  std::array<int, kSteps> count_{};
  std::vector<Which> order_;

 private:
  StepResult with_standby(Which which) {
    EXPECT_TRUE(standby_);
    return run(which);
  }
  StepResult run(Which which) {
    order_.push_back(which);
    if (++count_[which] != at_ || which != step_) {
      // A replay that failed once has its reason; the next attempt may do.
      return StepResult::done();
    }
    switch (how_) {
      case How::kDone:
        return StepResult::done();
      case How::kDecline:
        return StepResult::decline("why");
      case How::kRefuse:
        return StepResult::refuse("why");
      case How::kRepeats:
        return StepResult::repeats("why");
      case How::kThrow:
        throw std::runtime_error("why");
      case How::kNoMemory:
        throw std::bad_alloc();
    }
    return StepResult::done();
  }
  const Which step_;
  const int at_;
  const How how_;
};

TEST(TakeoverTest, GoesThroughItsStepsInOrder) {
  Scripted steps(kSteps, 0, How::kDone);
  const TakeoverResult result = take_over(steps, 1);
  EXPECT_EQ(result.end, TakeoverEnd::kRecovered);
  EXPECT_EQ(result.attempts, 1U);
  EXPECT_FALSE(result.repeats);
  EXPECT_TRUE(result.reason.empty());
  EXPECT_TRUE(steps.standby_);
  EXPECT_TRUE(steps.committed_);
  const std::vector<Which> all{kCheck,  kFence,   kFrontier, kStart, kMap,
                               kMemory, kRestore, kReplay,   kCommit};
  EXPECT_EQ(steps.order_, all);
}

// Every step, every way to fail, every number of attempts allowed: unless it recovered, there is no
// standby left, nothing was committed, and the end says why.
TEST(TakeoverTest, AFailureOfAnyStepGivesTheErrorBack) {
  for (int step = kCheck; step < kSteps; ++step) {
    for (const How how :
         {How::kDecline, How::kRefuse, How::kRepeats, How::kThrow, How::kNoMemory}) {
      for (std::uint32_t attempts = 1; attempts <= 3; ++attempts) {
        const auto which = static_cast<Which>(step);
        if (how == How::kRepeats && which != kReplay) {
          continue;  // only a replay can
        }
        SCOPED_TRACE("step " + std::to_string(step) + ", way " +
                     std::to_string(static_cast<int>(how)) + ", attempts " +
                     std::to_string(attempts));
        Scripted steps(which, 1, how);
        const TakeoverResult result = take_over(steps, attempts);
        if (how == How::kRepeats && attempts > 1) {
          EXPECT_EQ(result.end, TakeoverEnd::kRecovered);
          EXPECT_EQ(result.attempts, 2U);
          EXPECT_TRUE(result.repeats);
          EXPECT_EQ(steps.count_[kStart], 2);
          EXPECT_EQ(steps.count_[kFence], 1);
          EXPECT_TRUE(steps.committed_);
          continue;
        }
        EXPECT_NE(result.end, TakeoverEnd::kRecovered);
        EXPECT_FALSE(steps.standby_);
        EXPECT_FALSE(steps.committed_);
        EXPECT_FALSE(result.reason.empty());
        EXPECT_EQ(result.end, how == How::kRefuse    ? TakeoverEnd::kRefused
                              : how == How::kRepeats ? TakeoverEnd::kReturned
                                                     : TakeoverEnd::kDeclined);
        // Nothing comes after the step that failed.
        EXPECT_EQ(steps.order_.back(), which);
        EXPECT_EQ(steps.order_.size(), static_cast<std::size_t>(step) + 1);
      }
    }
  }
}

TEST(TakeoverTest, AFaultThatAlwaysRepeatsEndsWithTheAttempts) {
  class Always final : public TakeoverSteps {
   public:
    StepResult check() override { return StepResult::done(); }
    StepResult fence() override { return StepResult::done(); }
    StepResult read_frontier() override { return StepResult::done(); }
    StepResult start() override { return StepResult::done(); }
    StepResult map() override { return StepResult::done(); }
    StepResult check_memory() override { return StepResult::done(); }
    StepResult restore() override { return StepResult::done(); }
    StepResult replay() override { return StepResult::repeats("again"); }
    StepResult commit() override { return StepResult::done(); }
    void abandon() noexcept override { ++abandoned_; }
    int abandoned_ = 0;
  } steps;
  const TakeoverResult result = take_over(steps, 3);
  EXPECT_EQ(result.end, TakeoverEnd::kReturned);
  EXPECT_EQ(result.attempts, 3U);
  EXPECT_TRUE(result.repeats);
  EXPECT_EQ(steps.abandoned_, 3);
}

TEST(TakeoverTest, WithoutAnAttemptNothingIsStarted) {
  Scripted steps(kSteps, 0, How::kDone);
  EXPECT_EQ(take_over(steps, 0).end, TakeoverEnd::kDeclined);
  EXPECT_EQ(steps.count_[kStart], 0);
}

}  // namespace
}  // namespace gpurecover::recovery
