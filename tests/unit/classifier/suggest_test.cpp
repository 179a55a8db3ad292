// SPDX-License-Identifier: Apache-2.0
#include "classifier/suggest.h"

#include <gtest/gtest.h>

#include <string>

namespace gpurecover::classifier {
namespace {

TEST(Suggest, NearestByEditDistance) {
  const std::vector<std::string_view> words{"backoff", "action", "class", "max_attempts", "id"};
  EXPECT_EQ(nearest("bakoff", words), "backoff");
  EXPECT_EQ(nearest("acton", words), "action");
  EXPECT_EQ(nearest("atcion", words), "action");  // neighbours swapped
  EXPECT_EQ(nearest("CLASS", words), "class");
  EXPECT_EQ(nearest("max-attempts", words), "max_attempts");
  EXPECT_EQ(nearest("ids", words), "id");
}

TEST(Suggest, NothingNear) {
  EXPECT_EQ(nearest("zebra", {"backoff", "action"}), "");
  EXPECT_EQ(nearest("", {"backoff"}), "");
  EXPECT_EQ(nearest("x", {"y"}), "");  // nothing in common
  EXPECT_EQ(nearest("word", {}), "");
  EXPECT_EQ(nearest(std::string(1000000, 'a'), {"a"}), "");
}

}  // namespace
}  // namespace gpurecover::classifier
