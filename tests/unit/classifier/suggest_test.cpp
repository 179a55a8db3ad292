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

// However the candidates are ordered, the least distance wins: what is skipped to save time could
// not have won.
TEST(Suggest, OrderOfCandidatesDoesNotMatter) {
  const std::vector<std::string_view> words{"cudaErrorIllegalState", "cudaErrorIllegalAddress",
                                            "cudaErrorIllegalInstruction", "cudaErrorInvalidPc"};
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::vector<std::string_view> turned(words.begin() + static_cast<std::ptrdiff_t>(i),
                                         words.end());
    turned.insert(turned.end(), words.begin(), words.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(nearest("cudaErrorIlegalAdress", turned), "cudaErrorIllegalAddress");
    EXPECT_EQ(nearest("cudaErrorIllegalSatte", turned), "cudaErrorIllegalState");
  }
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
