// SPDX-License-Identifier: Apache-2.0
#include "classifier/verbs.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "classifier/catalogue.h"
#include "classifier/rules_toml.h"

namespace gpurecover::classifier {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

FileText file(std::string path, std::string text) {
  return {std::move(path), std::move(text)};
}
FileText missing(std::string path) {
  return {std::move(path), tl::unexpected(std::string("No such file or directory"))};
}

const char* const kGoodFile =
    "schema = 1\n"
    "[[rule]]\n"
    "id = 'gemm-stop'\n"
    "match.cuda = [214]\n"
    "match.kernel = 'gemm'\n"
    "action = 'stop'\n"
    "[[rule]]\n"
    "id = 'contained'\n"
    "match.cuda = [226]\n"
    "match.xid = [94]\n"
    "action = 'replay'\n";
const char* const kBadFile = "schema = 1\n[[rule]]\nid = 'a'\nactoin = 'stop'\nbackof = '1s'\n";

TEST(RulesCheck, ExitCodes) {
  EXPECT_EQ(rules_check({file("a.toml", kGoodFile)}).exit_code, 0);
  EXPECT_EQ(rules_check({file("a.toml", kBadFile)}).exit_code, 1);
  EXPECT_EQ(rules_check({missing("a.toml")}).exit_code, 2);
  EXPECT_EQ(rules_check({missing("a.toml"), file("b.toml", kBadFile)}).exit_code, 2);
  EXPECT_EQ(rules_check({file("b.toml", kBadFile), missing("a.toml")}).exit_code, 2);
  EXPECT_EQ(rules_check({file("b.toml", kBadFile), file("a.toml", kGoodFile)}).exit_code, 1);
  EXPECT_EQ(rules_check({}).exit_code, 125);
}

TEST(RulesCheck, ListsEveryProblemOfEveryFile) {
  const VerbResult result =
      rules_check({file("b.toml", kBadFile), missing("c.toml"), file("a.toml", kGoodFile)});
  EXPECT_EQ(
      result.out,
      "b.toml:2:1: this [[rule]] has no 'action'; it is one of replay, retry, return or stop\n"
      "b.toml:4:1: unknown key 'actoin' in [[rule]]; did you mean 'action'?\n"
      "b.toml:5:1: unknown key 'backof' in [[rule]]; did you mean 'backoff'?\n"
      "b.toml: 3 problems\n"
      "a.toml: good (2 rules, 0 kernels)\n");
  EXPECT_EQ(result.err, "cannot read c.toml: No such file or directory\n");
}

TEST(RulesDump, BuiltIn) {
  EXPECT_EQ(rules_dump({}, false).out, default_rules_text());
  const VerbResult effective = rules_dump({}, true);
  EXPECT_EQ(effective.exit_code, 0);
  EXPECT_TRUE(parse_rules(effective.out, "f").ok());
}

TEST(RulesDump, OfAFile) {
  const VerbResult own = rules_dump(file("my.toml", kGoodFile), false);
  EXPECT_THAT(own.out, AllOf(HasSubstr("gemm-stop"), Not(HasSubstr("ecc-uncorrectable"))));
  const VerbResult effective = rules_dump(file("my.toml", kGoodFile), true);
  EXPECT_THAT(effective.out, AllOf(HasSubstr("# my.toml:2\n[[rule]]\nid = \"gemm-stop\""),
                                   HasSubstr("ecc-uncorrectable")));
  EXPECT_TRUE(parse_rules(effective.out, "f").ok());
  EXPECT_EQ(rules_dump(file("my.toml", kBadFile), true).exit_code, 1);
  EXPECT_THAT(rules_dump(file("my.toml", kBadFile), true).err, HasSubstr("my.toml:4:1: unknown"));
  EXPECT_EQ(rules_dump(missing("my.toml"), true).exit_code, 2);
}

ExplainOptions explain_of(std::string cuda) {
  ExplainOptions options;
  options.cuda = std::move(cuda);
  return options;
}

TEST(RulesExplain, WinnerAndLosers) {
  ExplainOptions options = explain_of("214");
  options.file = file("my.toml", kGoodFile);
  options.kernel = "_ZN2ns6otherkEPf";  // not a valid length: taken as it is
  VerbResult result = rules_explain(options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rule      ecc-uncorrectable (configs/default.toml:"));
  EXPECT_THAT(result.out, HasSubstr("gemm-stop (my.toml:2) is for kernels gemm"));
  EXPECT_THAT(result.out, HasSubstr("everything-else (configs/default.toml:"));
  EXPECT_THAT(result.out, HasSubstr("would match too, but comes later"));

  options.kernel = "_Z4gemmPf";
  result = rules_explain(options);
  EXPECT_THAT(result.out, HasSubstr("rule      gemm-stop (my.toml:2)"));
  EXPECT_THAT(result.out, HasSubstr("kernel gemm"));
  EXPECT_THAT(result.out, HasSubstr("ecc-uncorrectable (configs/default.toml:"));
}

TEST(RulesExplain, ReplacedRulesAndXids) {
  ExplainOptions options = explain_of("CUDA_ERROR_CONTAINED");
  options.file = file("my.toml", kGoodFile);
  VerbResult result = rules_explain(options);
  EXPECT_THAT(result.out, HasSubstr("rule      everything-else"));
  EXPECT_THAT(result.out, HasSubstr("contained (my.toml:7) needs Xid 94"));
  EXPECT_THAT(result.out, HasSubstr("replaced by the rule of the same id at my.toml:7"));
  options.xids = {"94"};
  result = rules_explain(options);
  EXPECT_THAT(result.out, HasSubstr("rule      contained (my.toml:7)"));
}

TEST(RulesExplain, PhaseIsAssumedFromTheCode) {
  EXPECT_THAT(rules_explain(explain_of("2")).out, HasSubstr("phase launch (assumed"));
  EXPECT_THAT(rules_explain(explain_of("2")).out,
              HasSubstr("retry, up to 3 times, first after 10ms"));
  EXPECT_THAT(rules_explain(explain_of("700")).out, HasSubstr("phase run (assumed"));
  ExplainOptions options = explain_of("2");
  options.phase = "run";
  EXPECT_THAT(rules_explain(options).out, HasSubstr("rule      out-of-memory ("));
  EXPECT_THAT(rules_explain(options).out, HasSubstr("launch-out-of-memory"));
  EXPECT_THAT(rules_explain(options).out, HasSubstr("is for the launch phase"));
}

TEST(RulesExplain, Json) {
  ExplainOptions options = explain_of("700");
  options.format = Format::json;
  options.kernel = "bad\xff";
  const json parsed = json::parse(rules_explain(options).out);
  EXPECT_EQ(parsed["schema"], "gpurecover.explain/1");
  EXPECT_EQ(parsed["name"], "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(parsed["decision"]["rule"], "illegal-address");
  EXPECT_EQ(parsed["decision"]["action"], "replay");
  EXPECT_EQ(parsed["losers"].size() + 1, default_rules().rules.size());
}

TEST(RulesExplain, BadUsage) {
  EXPECT_EQ(rules_explain({}).exit_code, 125);
  const VerbResult wrong = rules_explain(explain_of("CUDA_ERROR_ILLEGAL_ADRESS"));
  EXPECT_EQ(wrong.exit_code, 125);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'CUDA_ERROR_ILLEGAL_ADDRESS'?"));
  ExplainOptions options = explain_of("700");
  options.phase = "runn";
  EXPECT_THAT(rules_explain(options).err, HasSubstr("did you mean 'run'?"));
  EXPECT_EQ(rules_explain(options).exit_code, 125);
  options = explain_of("700");
  options.xids = {"ninety"};
  EXPECT_EQ(rules_explain(options).exit_code, 125);
  options = explain_of("700");
  options.file = file("my.toml", kBadFile);
  EXPECT_EQ(rules_explain(options).exit_code, 1);
  options.file = missing("my.toml");
  EXPECT_EQ(rules_explain(options).exit_code, 2);
}

TEST(Classify, EveryCodeIsAnswered) {
  for (const CodeInfo& info : all_codes()) {
    if (info.code == 0)
      continue;
    ClassifyOptions options;
    options.cuda = {std::to_string(info.code)};
    const VerbResult text = classify(options);
    EXPECT_EQ(text.exit_code, 0);
    EXPECT_THAT(text.out, HasSubstr(info.meaning));
    options.format = Format::json;
    const json parsed = json::parse(classify(options).out);
    EXPECT_EQ(parsed["codes"][0]["code"], info.code);
    EXPECT_EQ(parsed["codes"][0]["decisions"].size(), is_sticky(info.code) ? 1U : 2U);
    EXPECT_FALSE(parsed["codes"][0]["source"].get<std::string>().empty());
  }
}

TEST(Classify, EveryXidIsAnswered) {
  ClassifyOptions options;
  options.format = Format::json;
  for (int xid = 1; xid <= kLastXid + 1; ++xid)
    options.xids.push_back(std::to_string(xid));
  const json parsed = json::parse(classify(options).out);
  ASSERT_EQ(parsed["xids"].size(), options.xids.size());
  EXPECT_EQ(parsed["xids"][93]["xid"], 94);
  EXPECT_EQ(parsed["xids"][93]["rerun"], "same-gpu");
  EXPECT_EQ(parsed["xids"][0]["nvidia_action"], "CONTACT_SUPPORT");  // unused
  EXPECT_EQ(parsed["xids"][kLastXid]["nvidia_action"], "unknown");   // newer
}

TEST(Classify, Text) {
  ClassifyOptions options;
  options.cuda = {"cudaErrorECCUncorrectable"};
  options.xids = {"94"};
  const VerbResult result = classify(options);
  EXPECT_THAT(result.out,
              HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE (214, cudaErrorECCUncorrectable)\n"));
  EXPECT_THAT(result.out, HasSubstr("replay, up to 2 times"));
  EXPECT_THAT(result.out, HasSubstr("Xid 94\n"));
  EXPECT_THAT(result.out, HasSubstr("RESTART_APP"));
}

TEST(Classify, BadUsage) {
  EXPECT_EQ(classify({}).exit_code, 125);
  ClassifyOptions options;
  options.cuda = {"0"};
  EXPECT_EQ(classify(options).exit_code, 125);
  options.cuda = {"banana"};
  EXPECT_EQ(classify(options).exit_code, 125);
  EXPECT_THAT(classify(options).err, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  options.cuda = {"700"};
  options.xids = {"0"};
  EXPECT_EQ(classify(options).exit_code, 125);
  options.xids.clear();
  options.file = file("my.toml", kBadFile);
  EXPECT_EQ(classify(options).exit_code, 125);
  options.file = missing("my.toml");
  EXPECT_EQ(classify(options).exit_code, 125);
}

}  // namespace
}  // namespace gpurecover::classifier
