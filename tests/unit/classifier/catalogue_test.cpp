// SPDX-License-Identifier: Apache-2.0
#include "classifier/catalogue.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

namespace gpurecover::classifier {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// number -> name, of the enumerators of a header that look like `pattern`.
std::map<int, std::string> enumerators(const char* header, const char* pattern) {
  std::ifstream in(header);
  EXPECT_TRUE(in) << header;
  const std::regex line_form("^\\s*,?\\s*(" + std::string(pattern) +
                             ")\\s*=\\s*([0-9]+)\\s*,?\\s*$");
  std::map<int, std::string> found;
  std::smatch parts;
  for (std::string line; std::getline(in, line);)
    if (std::regex_match(line, parts, line_form))
      found.emplace(std::stoi(parts[2]), parts[1]);
  return found;
}

TEST(Catalogue, HasEveryCodeOfTheDriverHeader) {
  const auto header = enumerators(CUDA_H, "CUDA_(?:SUCCESS|ERROR_[A-Z0-9_]+)");
  ASSERT_GE(header.size(), 90U) << "cuda.h was not understood";
  for (const auto& [number, name] : header) {
    const CodeInfo* info = find_code(number);
    ASSERT_NE(info, nullptr) << name << " = " << number << " is missing";
    ASSERT_NE(info->driver_name, nullptr) << name;
    EXPECT_EQ(info->driver_name, name) << number;
    EXPECT_EQ(find_code(name), info);
  }
}

TEST(Catalogue, HasEveryCodeOfTheRuntimeHeader) {
  auto header = enumerators(DRIVER_TYPES_H, "cuda(?:Success|Error[A-Za-z0-9]+)");
  ASSERT_GE(header.size(), 120U) << "driver_types.h was not understood";
  header.erase(10000);  // the base of a range of codes that is no longer in use
  for (const auto& [number, name] : header) {
    const CodeInfo* info = find_code(number);
    ASSERT_NE(info, nullptr) << name << " = " << number << " is missing";
    ASSERT_NE(info->runtime_name, nullptr) << name;
    EXPECT_EQ(info->runtime_name, name) << number;
    EXPECT_EQ(find_code(name), info);
  }
}

TEST(Catalogue, InventsNoCode) {
  const auto driver = enumerators(CUDA_H, "CUDA_(?:SUCCESS|ERROR_[A-Z0-9_]+)");
  const auto runtime = enumerators(DRIVER_TYPES_H, "cuda(?:Success|Error[A-Za-z0-9]+)");
  for (const CodeInfo& info : all_codes()) {
    EXPECT_EQ(info.driver_name != nullptr, driver.count(info.code) == 1) << info.code;
    EXPECT_EQ(info.runtime_name != nullptr, runtime.count(info.code) == 1) << info.code;
  }
}

// The header says in words which errors end the process: "must be terminated and relaunched".
TEST(Catalogue, StickyWhereTheDriverHeaderSaysSo) {
  std::ifstream in(CUDA_H);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto begin = text.find("typedef enum cudaError_enum");
  ASSERT_NE(begin, std::string::npos);
  const std::string codes = text.substr(begin, text.find("} CUresult", begin) - begin);
  const std::regex entry("/\\*\\*([^/]*)\\*/\\s*(CUDA_[A-Z_0-9]+)\\s*=\\s*([0-9]+)");
  std::set<int> said;
  for (std::sregex_iterator it(codes.begin(), codes.end(), entry), end; it != end; ++it) {
    const std::string words = std::regex_replace((*it)[1].str(), std::regex("[\\s*]+"), " ");
    if (words.find("be terminated and relaunched") != std::string::npos)
      said.insert(std::stoi((*it)[3]));
  }
  EXPECT_GE(said.size(), 11U) << "cuda.h was not understood";
  said.insert(710);  // in other words: the context must be destroyed
  std::set<int> ours;
  for (const CodeInfo& info : all_codes())
    if (info.sticky == Sticky::documented || info.sticky == Sticky::measured)
      ours.insert(info.code);
  EXPECT_EQ(ours, said);
}

TEST(Catalogue, CodesAscendAndAreSourced) {
  int last = -1;
  for (const CodeInfo& info : all_codes()) {
    EXPECT_GT(info.code, last);
    last = info.code;
    EXPECT_TRUE(info.driver_name || info.runtime_name) << info.code;
    EXPECT_GT(std::string_view(info.meaning).size(), 5U) << info.code;
    EXPECT_FALSE(std::string_view(info.source).empty()) << info.code;
    EXPECT_TRUE(std::string_view(info.date).starts_with("20")) << info.code;
  }
}

TEST(Catalogue, FindsAnySpelling) {
  for (const char* spelling : {"CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "214",
                               "cuda_error_ecc_uncorrectable", "CudaErrorEccUncorrectable"}) {
    ASSERT_NE(find_code(std::string_view(spelling)), nullptr) << spelling;
    EXPECT_EQ(find_code(std::string_view(spelling))->code, 214);
  }
  for (const char* spelling :
       {"", "10", "-1", "214x", " 214", "99999999999999999999", "CUDA_ERROR_", "0x2"})
    EXPECT_EQ(find_code(std::string_view(spelling)), nullptr) << spelling;
}

TEST(Catalogue, SuggestsTheNearestName) {
  EXPECT_EQ(nearest_code_name("CUDA_ERROR_ECC_UNCORECTABLE"), "CUDA_ERROR_ECC_UNCORRECTABLE");
  EXPECT_EQ(nearest_code_name("cudaErrorIllegalAdress"), "cudaErrorIllegalAddress");
  EXPECT_EQ(nearest_code_name("ecc_uncorrectable"), "CUDA_ERROR_ECC_UNCORRECTABLE");
  EXPECT_EQ(nearest_code_name("banana"), "");
}

TEST(Catalogue, Stickiness) {
  for (int code : {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999})
    EXPECT_TRUE(is_sticky(code)) << code;
  for (int code : {0, 1, 2, 9, 98, 209, 304, 600, 701, 720, 802, 900, 909, 912, 12345, -1})
    EXPECT_FALSE(is_sticky(code)) << code;
}

TEST(Catalogue, XidsAscendAndAreSourced) {
  int last = 0;
  for (const XidInfo& info : all_xids()) {
    EXPECT_GT(info.xid, last);
    EXPECT_LE(info.xid, kLastXid);
    last = info.xid;
    EXPECT_FALSE(std::string_view(info.meaning).empty());
    EXPECT_FALSE(std::string_view(info.bucket).empty());
    EXPECT_FALSE(std::string_view(info.source).empty());
    EXPECT_FALSE(advice(info.rerun).empty());
  }
  ASSERT_NE(find_xid(94), nullptr);
  EXPECT_EQ(find_xid(94)->rerun, Rerun::same_gpu);
  EXPECT_EQ(find_xid(95)->rerun, Rerun::after_reset);
  EXPECT_EQ(find_xid(79)->rerun, Rerun::after_reboot);
  EXPECT_EQ(find_xid(1), nullptr);
  EXPECT_EQ(find_xid(-5), nullptr);
}

TEST(ErrorKinds, ShortWords) {
  const std::map<std::string, int> expected{{"oom", 2},
                                            {"ecc", 214},
                                            {"nvlink", 220},
                                            {"contained", 226},
                                            {"illegal-address", 700},
                                            {"timeout", 702},
                                            {"assert", 710},
                                            {"misaligned", 716},
                                            {"launch-failure", 719}};
  for (const auto& [word, code] : expected) {
    const auto kind = parse_error_kind(word);
    ASSERT_TRUE(kind) << word;
    EXPECT_EQ(kind->name, word);
    EXPECT_EQ(kind->code, code);
    EXPECT_EQ(kind->sticky, code != 2);
    EXPECT_EQ(kind->special, ErrorKind::Special::none);
    // The other spellings of the same code are the same kind.
    EXPECT_EQ(*parse_error_kind(std::to_string(code)), *kind);
    EXPECT_EQ(*parse_error_kind(find_code(code)->driver_name), *kind);
    EXPECT_EQ(*parse_error_kind(find_code(code)->runtime_name), *kind);
  }
  EXPECT_EQ(parse_error_kind("hang")->special, ErrorKind::Special::hang);
  EXPECT_EQ(parse_error_kind("bitflip")->special, ErrorKind::Special::bitflip);
  for (std::string_view word : error_kind_words())
    EXPECT_TRUE(parse_error_kind(word)) << word;
}

TEST(ErrorKinds, EveryErrorOfTheDriver) {
  for (const CodeInfo& info : all_codes()) {
    if (info.code == 0 || !info.driver_name)
      continue;
    const auto kind = parse_error_kind(info.driver_name);
    ASSERT_TRUE(kind) << info.driver_name;
    EXPECT_EQ(kind->code, info.code);
    EXPECT_EQ(kind->sticky, is_sticky(info.code));
  }
}

TEST(ErrorKinds, RefusalsSayWhatWouldDo) {
  EXPECT_THAT(parse_error_kind("eec").error(), HasSubstr("did you mean 'ecc'?"));
  EXPECT_THAT(parse_error_kind("CUDA_ERROR_ILLEGAL_ADRESS").error(),
              HasSubstr("did you mean 'CUDA_ERROR_ILLEGAL_ADDRESS'?"));
  EXPECT_THAT(parse_error_kind("xyzzy-plugh").error(), HasSubstr("bitflip"));
  EXPECT_THAT(parse_error_kind("0").error(), HasSubstr("success"));
  EXPECT_THAT(parse_error_kind("12345").error(), HasSubstr("12345"));
  EXPECT_THAT(parse_error_kind("9").error(), HasSubstr("runtime"));
  EXPECT_FALSE(parse_error_kind(""));
  EXPECT_FALSE(parse_error_kind(std::string(100000, 'e')));
}

}  // namespace
}  // namespace gpurecover::classifier
