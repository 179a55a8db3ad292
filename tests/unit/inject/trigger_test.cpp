// SPDX-License-Identifier: Apache-2.0
#include "inject/trigger.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace gpurecover::inject {
namespace {

std::vector<std::uint64_t> firings(const Fault& fault, int matches) {
  Trigger trigger(fault);
  std::vector<std::uint64_t> out;
  for (int i = 0; i < matches; ++i) {
    if (const std::uint64_t match = trigger.on_match(); match != 0) {
      out.push_back(match);
    }
  }
  EXPECT_EQ(trigger.matched(), static_cast<std::uint64_t>(matches));
  EXPECT_EQ(trigger.fired(), out.size());
  return out;
}

TEST(Trigger, NthCountsFromOne) {
  EXPECT_EQ(firings({.nth = 1, .times = 1}, 5), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(firings({.nth = 3, .times = 1}, 5), (std::vector<std::uint64_t>{3}));
  EXPECT_TRUE(firings({.nth = 6, .times = 1}, 5).empty());
}

TEST(Trigger, NthWithTimesFiresAtConsecutiveMatches) {
  EXPECT_EQ(firings({.nth = 2, .times = 3}, 9), (std::vector<std::uint64_t>{2, 3, 4}));
}

TEST(Trigger, EveryKeepsFiring) {
  EXPECT_EQ(firings({.every = 3}, 10), (std::vector<std::uint64_t>{3, 6, 9}));
  EXPECT_EQ(firings({.every = 3, .times = 2}, 10), (std::vector<std::uint64_t>{3, 6}));
}

TEST(Trigger, ProbabilityIsRepeatableAndNearItsMean) {
  const Fault fault{.probability = 0.25, .seed = 7};
  const auto first = firings(fault, 10000);
  EXPECT_EQ(first, firings(fault, 10000));
  EXPECT_NEAR(static_cast<double>(first.size()), 2500, 250);
  EXPECT_NE(first, firings({.probability = 0.25, .seed = 8}, 10000));
  EXPECT_TRUE(firings({.probability = 0}, 100).empty());
  EXPECT_EQ(firings({.probability = 1}, 100).size(), 100U);
}

TEST(Trigger, ThreadsNeverFireTooOften) {
  const Fault fault{.every = 1, .times = 100};
  Trigger trigger(fault);
  std::atomic<int> fired{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) {
          fired += trigger.on_match() != 0;
        }
      });
    }
  }
  EXPECT_EQ(fired.load(), 100);
  EXPECT_TRUE(trigger.exhausted());
}

TEST(Trigger, AFaultThatCouldNotBeMadeFiresAtTheNextMatch) {
  Trigger trigger(Fault{.nth = 2, .times = 1});
  EXPECT_EQ(trigger.on_match(), 0U);
  EXPECT_EQ(trigger.on_match(), 2U);
  trigger.take_back();
  EXPECT_FALSE(trigger.exhausted());
  EXPECT_EQ(trigger.on_match(), 3U);
  EXPECT_EQ(trigger.on_match(), 0U);
}

TEST(Plan, RepeatLineNamesTheMatchAndSurvivesTheShell) {
  Fault fault{.kernel = "regex:^it's", .kind = "ecc", .code = 214, .every = 4, .seed = 9};
  fault.at = Point{.block = 1, .thread = 2, .instruction = 3};
  EXPECT_EQ(repeat_options(fault, 12),
            "--kernel 'regex:^it'\\''s' --error ecc --how code --damage scribble --nth 12 --seed 9"
            " --at block=1,thread=2,instr=3");
}

TEST(Plan, WordsParseBack) {
  for (const Damage damage : {Damage::kNone, Damage::kWhole, Damage::kPartial, Damage::kScribble}) {
    EXPECT_EQ(parse_damage(word(damage)), damage);
  }
  for (const How how : {How::kCode, How::kLatch, How::kFault}) {
    EXPECT_EQ(parse_how(word(how)), how);
  }
  EXPECT_FALSE(parse_damage("scribbled"));
}

}  // namespace
}  // namespace gpurecover::inject
