// SPDX-License-Identifier: Apache-2.0
#include "recovery/decision.h"

#include <gtest/gtest.h>

namespace gpurecover::recovery {
namespace {

Failure replayable() {
  Failure f;
  f.code = 214;
  f.phase = Phase::kRun;
  f.action = Action::kReplay;
  f.max_attempts = 2;
  f.injected = true;
  f.context_healthy = true;
  f.verdict = Verdict::kIdempotent;
  f.trusted = true;
  f.trust = "bounded";
  return f;
}

Failure retryable() {
  Failure f = replayable();
  f.code = 2;
  f.phase = Phase::kLaunch;
  f.action = Action::kRetry;
  f.verdict = Verdict::kUnknown;
  f.trusted = false;
  return f;
}

TEST(Decision, AForgedRunPhaseErrorOfAnIdempotentLaunchIsReplayed) {
  EXPECT_EQ(decide(replayable()).step, Step::kReplay);
}

TEST(Decision, ALaunchThatNeverRanIsRetriedWhateverItsVerdict) {
  EXPECT_EQ(decide(retryable()).step, Step::kRetry);
}

// Each condition by itself turns recovery off, with a reason for the user.
TEST(Decision, EachConditionCounts) {
  struct Case {
    const char* name;
    void (*spoil)(Failure&);
    Step step;
  };
  const Case cases[] = {
      {"observe", [](Failure& f) { f.observe_only = true; }, Step::kReturn},
      {"stopped", [](Failure& f) { f.stopped = true; }, Step::kReturn},
      {"return", [](Failure& f) { f.action = Action::kReturn; }, Step::kReturn},
      {"stop", [](Failure& f) { f.action = Action::kStop; }, Step::kReturn},
      {"no attempts", [](Failure& f) { f.max_attempts = 0; }, Step::kReturn},
      {"dead context", [](Failure& f) { f.context_healthy = false; }, Step::kDecline},
      {"clobbers",
       [](Failure& f) {
         f.verdict = Verdict::kClobbers;
         f.verdict_reason = "x";
       },
       Step::kRefuse},
      {"unknown",
       [](Failure& f) {
         f.verdict = Verdict::kUnknown;
         f.verdict_reason = "x";
       },
       Step::kRefuse},
      {"trust", [](Failure& f) { f.trusted = false; }, Step::kRefuse},
      {"host", [](Failure& f) { f.writes_host_visible = true; }, Step::kRefuse},
      {"many launches", [](Failure& f) { f.one_launch = false; }, Step::kRefuse},
      {"phase", [](Failure& f) { f.phase = Phase::kLaunch; }, Step::kReturn},
  };
  for (const Case& c : cases) {
    Failure f = replayable();
    c.spoil(f);
    EXPECT_EQ(decide(f).step, c.step) << c.name;
    EXPECT_FALSE(decide(f).reason.empty()) << c.name;
  }
}

TEST(Decision, RetryNeedsTheLaunchPhaseAHealthyContextAndOneLaunch) {
  Failure f = retryable();
  f.phase = Phase::kRun;
  EXPECT_EQ(decide(f).step, Step::kReturn);
  f = retryable();
  f.context_healthy = false;
  EXPECT_EQ(decide(f).step, Step::kDecline);
  f = retryable();
  f.one_launch = false;
  EXPECT_EQ(decide(f).step, Step::kReturn);
}

TEST(Decision, AddressFaultsNeedProofUnlessTheirCauseIsKnown) {
  for (const int code : {700, 714, 715, 716, 717, 718, 719}) {
    Failure f = replayable();
    f.code = code;
    EXPECT_EQ(decide(f).step, Step::kReplay) << code;  // injected: the token lifts the rule
    f.strict = true;
    EXPECT_EQ(decide(f).step, Step::kReturn) << code;
    f.exact_and_in_bounds = true;
    EXPECT_EQ(decide(f).step, Step::kReplay) << code;
    f.injected = false;
    f.strict = false;
    f.exact_and_in_bounds = false;
    EXPECT_EQ(decide(f).step, Step::kReturn) << code;
  }
  for (const int code : {214, 220, 226, 702, 710, 999}) {
    EXPECT_FALSE(is_address_fault(code)) << code;
  }
}

}  // namespace
}  // namespace gpurecover::recovery
