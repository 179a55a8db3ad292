// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "classifier/rules.h"

namespace gpurecover::classifier {
namespace {

using ::testing::HasSubstr;

bool matches(const char* pattern, std::string_view name) {
  const auto compiled = Pattern::compile(pattern);
  EXPECT_TRUE(compiled) << pattern << ": " << compiled.error().what;
  return compiled && compiled->matches(name);
}

TEST(Pattern, Star) {
  EXPECT_TRUE(matches("*", "gemm"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(Pattern::compile("*")->matches_everything());
}

TEST(Pattern, ExactBaseName) {
  EXPECT_TRUE(matches("gemm", "gemm"));
  EXPECT_FALSE(matches("gemm", "sgemm"));
  EXPECT_FALSE(matches("gemm", "Gemm"));
  EXPECT_FALSE(matches("gemm", ""));
  EXPECT_TRUE(matches("operator<", "operator<"));
}

TEST(Pattern, RegexIsSearchedFor) {
  EXPECT_TRUE(matches("regex:gemm", "ampere_sgemm_128"));
  EXPECT_FALSE(matches("regex:^gemm", "ampere_sgemm_128"));
  EXPECT_TRUE(matches("regex:^(scale|saxpy)(_v[0-9]{1,3})?$", "saxpy_v12"));
  EXPECT_FALSE(matches("regex:^(scale|saxpy)(_v[0-9]{1,3})?$", "saxpy_v1234"));
  EXPECT_TRUE(matches("regex:a[]x]b", "a]b"));
  EXPECT_TRUE(matches("regex:[[:digit:]]+x", "12x"));
  EXPECT_FALSE(matches("regex:.*", ""));  // a name that is not known matches '*' only
}

TEST(Pattern, ErrorsNameThePlace) {
  struct Case {
    const char* text;
    std::size_t offset;
    const char* what;
  };
  const Case cases[] = {
      {"", 0, "empty pattern"},
      {"regex:", 6, "empty regular expression"},
      {"regex:a(b", 7, "'(' without ')'"},
      {"regex:ab)", 8, "')' without '('"},
      {"regex:a[bc", 7, "'[' without ']'"},
      {"regex:a[[:digit:", 7, "'[' without ']'"},
      {"regex:*a", 6, "nothing before '*'"},
      {"regex:a|+b", 8, "nothing before '+'"},
      {"regex:a\\", 7, "'\\' at the end"},
      {"regex:(a)\\1", 9, "back-references"},
      {"regex:a{", 7, "'{' is not followed"},
      {"regex:a{2,1}", 7, "wrong way round"},
      {"regex:a{1001}", 7, "too large"},
      {"regex:((a{50}){50}){50}", 14, "too large"},
      {"regex:a**", 8, "nothing before '*'"},
      {"regex:()", 6, "empty '()'"},
      {"regex:[b-a]", 6, ""},  // found by the library, which does not say where
      {"regex:[[:nonsense:]]", 6, ""},
      {"gemm*", 4, "regex:"},
      {"at::native::gemm", 2, "base name"},
      {"gemm<float>", 4, "base name"},
  };
  for (const Case& c : cases) {
    const auto pattern = Pattern::compile(c.text);
    ASSERT_FALSE(pattern) << c.text;
    EXPECT_EQ(pattern.error().offset, c.offset) << c.text << ": " << pattern.error().what;
    EXPECT_THAT(pattern.error().what, HasSubstr(c.what)) << c.text;
    EXPECT_FALSE(pattern.error().what.empty());
  }
}

TEST(Pattern, CostlyExpressionsAreRefused) {
  EXPECT_FALSE(Pattern::compile("regex:" + std::string(513, 'a')));
  EXPECT_TRUE(Pattern::compile("regex:" + std::string(512, 'a')));
  EXPECT_FALSE(Pattern::compile("regex:" + std::string(100, '(') + "a" + std::string(100, ')')));
  EXPECT_FALSE(Pattern::compile("regex:a" + std::string(400, '*')));
  std::string repeated = "a";
  for (int i = 0; i < 20; ++i)
    repeated = "(" + repeated + "{9})";
  EXPECT_FALSE(Pattern::compile("regex:" + repeated));
  EXPECT_TRUE(matches("regex:^a{8,99}$", std::string(50, 'a')));
  EXPECT_TRUE(matches("regex:^(a{2,}b){500}$", [] {
    std::string text;
    for (int i = 0; i < 500; ++i)
      text += "aaab";
    return text;
  }()));
  // Exponential for a backtracking matcher.
  EXPECT_FALSE(matches("regex:^(a+)+$", std::string(2000, 'a') + "b"));
  EXPECT_FALSE(matches("regex:^(a|a)*$", std::string(2000, 'a') + "b"));
}

TEST(Pattern, ZeroBytes) {
  EXPECT_FALSE(Pattern::compile(std::string_view("regex:a\0(", 9)));
  EXPECT_FALSE(matches("regex:b", std::string_view("a\0b", 3)));
}

TEST(Pattern, CopiesShareTheExpression) {
  std::vector<Pattern> copies;
  {
    const auto pattern = Pattern::compile("regex:^x");
    ASSERT_TRUE(pattern);
    copies.assign(3, *pattern);
  }
  EXPECT_TRUE(copies[2].matches("xy"));
  EXPECT_FALSE(copies[0].matches("yx"));
}

}  // namespace
}  // namespace gpurecover::classifier
