// SPDX-License-Identifier: Apache-2.0
//
// The control flow of retry; replay itself works on device memory and is tested end to end.
#include "recovery/replay.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpurecover::recovery {
namespace {

TEST(Retry, StopsAtTheFirstSuccess) {
  int calls = 0;
  std::vector<std::uint32_t> waits;
  Relaunch relaunch;
  relaunch.code = 2;
  relaunch.max_attempts = 5;
  relaunch.wait_us = [&](std::uint32_t attempt) {
    waits.push_back(attempt);
    return std::uint64_t{1};
  };
  relaunch.launch = [&] { return ++calls < 3 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; };
  const Result result = retry(relaunch);
  EXPECT_TRUE(result.recovered);
  EXPECT_EQ(result.attempts, 3U);
  EXPECT_EQ(waits, (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(Retry, GivesUpAfterTheAttemptsOfTheRuleAndSaysThatItRepeats) {
  Relaunch relaunch;
  relaunch.code = 2;
  relaunch.max_attempts = 2;
  relaunch.launch = [] { return CUDA_ERROR_OUT_OF_MEMORY; };
  const Result result = retry(relaunch);
  EXPECT_FALSE(result.recovered);
  EXPECT_FALSE(result.refused);
  EXPECT_TRUE(result.repeats);
  EXPECT_EQ(result.attempts, 2U);
  EXPECT_FALSE(result.reason.empty());
}

}  // namespace
}  // namespace gpurecover::recovery
