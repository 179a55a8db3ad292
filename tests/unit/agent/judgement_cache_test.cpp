// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "cupti/agent/thread_state.h"

namespace gpurecover::agent {
namespace {

bool holds(const JudgementCache& cache, std::size_t place, std::uint32_t what) {
  return cache[place].dimensions[0] == what || cache[place + 1].dimensions[0] == what;
}

// Two launches in turn do not drive one another out, whichever places their hashes name.
TEST(JudgementCacheTest, KeepsTheLastTwoOfAPair) {
  for (std::uint64_t first = 0; first < JudgementCache::kPlaces; ++first) {
    for (const std::uint64_t second : {first, first ^ 1, first + JudgementCache::kPlaces}) {
      const auto cache = std::make_unique<JudgementCache>();
      const std::size_t a = JudgementCache::place_of(first), b = JudgementCache::place_of(second);
      ASSERT_LT(a + 1, JudgementCache::kPlaces);
      cache->make_room(a).dimensions[0] = 1;
      cache->make_room(b).dimensions[0] = 2;
      EXPECT_TRUE(holds(*cache, a, 1)) << first << " and " << second;
      EXPECT_TRUE(holds(*cache, b, 2)) << first << " and " << second;
      // A third one takes the place of the oldest.
      cache->make_room(b).dimensions[0] = 3;
      EXPECT_TRUE(holds(*cache, b, 2));
      EXPECT_TRUE(holds(*cache, b, 3));
    }
  }
}

}  // namespace
}  // namespace gpurecover::agent
