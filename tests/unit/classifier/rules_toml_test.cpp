// SPDX-License-Identifier: Apache-2.0
#include "classifier/rules_toml.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "classifier/catalogue.h"

namespace gpurecover::classifier {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<fs::path> toml_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".toml")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string all_of(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems)
    text += to_string(problem) + "\n";
  return text;
}

RuleSet good(std::string_view text) {
  ParsedRules parsed = parse_rules(text, "test.toml");
  EXPECT_EQ(all_of(parsed.problems), "") << text;
  return std::move(parsed.rules);
}

RuleSet without_origin(RuleSet rules) {
  for (Rule& rule : rules.rules)
    rule.file.clear(), rule.line = 0;
  for (KernelFact& fact : rules.kernels)
    fact.file.clear(), fact.line = 0;
  return rules;
}

Match decide(const RuleSet& rules, std::int32_t code, Phase phase = Phase::run,
             std::string_view kernel = "gemm") {
  return match(rules, {code, phase, kernel, {}});
}

TEST(RuleFile, EveryConfigIsGood) {
  const auto files = toml_files(CONFIGS_DIR);
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files)
    EXPECT_EQ(all_of(parse_rules(contents(file), file.string()).problems), "");
}

TEST(RuleFile, ValidExamplesReadBack) {
  const auto files = toml_files(CORPUS_DIR "/valid");
  ASSERT_GE(files.size(), 3U);
  for (const fs::path& file : files) {
    const RuleSet rules = good(contents(file));
    EXPECT_EQ(without_origin(good(dump(rules, true))), without_origin(rules)) << file;
  }
}

TEST(RuleFile, ExamplesOfTheDocumentationAreGood) {
  const std::string page = contents(RULES_MD);
  const std::string fence = "```toml\n";
  int count = 0;
  for (auto at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1)) {
    const auto begin = at + fence.size();
    good(page.substr(begin, page.find("```", begin) - begin));
    ++count;
  }
  EXPECT_GE(count, 4);
}

// Each file holds one kind of problem; beside it lies what is said of it.
TEST(RuleFile, EveryKindOfProblemIsReported) {
  const auto files = toml_files(CORPUS_DIR "/invalid");
  ASSERT_GE(files.size(), 45U);
  for (const fs::path& file : files) {
    const auto parsed = parse_rules(contents(file), file.filename().string());
    EXPECT_FALSE(parsed.ok()) << file;
    fs::path expected = file;
    expected.replace_extension(".expected");
    EXPECT_EQ(all_of(parsed.problems), contents(expected));
  }
}

TEST(RuleFile, ReadsEveryKey) {
  const RuleSet rules = good(R"(
schema = 1
[idempotency]
trust = ["proved", "observed"]
[[rule]]
id = "contained-ecc"
match.cuda = ["CUDA_ERROR_ECC_UNCORRECTABLE", 226, "cudaErrorNvlinkUncorrectable"]
match.xid = [94, 95]
match.kernel = "regex:gemm"
match.phase = "run"
match.window = "7s"
class = "hardware"
scope = "device"
action = "replay"
max_attempts = 2
backoff = "250us"
message = "m"
source = "s"
[[kernel]]
name = "regex:^my_scale"
reads = ["arg0", "arg2.field@16"]
writes = ["arg1[0:4096]"]
[[kernel]]
name = "other"
idempotent = false
)");
  EXPECT_THAT(rules.trust, ElementsAre(Trust::proved, Trust::observed));
  ASSERT_EQ(rules.rules.size(), 1U);
  const Rule& rule = rules.rules[0];
  EXPECT_EQ(rule.id, "contained-ecc");
  EXPECT_THAT(rule.codes, ElementsAre(214, 226, 220));
  EXPECT_THAT(rule.xids, ElementsAre(94, 95));
  EXPECT_EQ(rule.kernel, "regex:gemm");
  EXPECT_EQ(rule.phase, Phase::run);
  EXPECT_EQ(rule.window_us, 7'000'000U);
  EXPECT_EQ(rule.cls, Class::hardware);
  EXPECT_EQ(rule.scope, Scope::device);
  EXPECT_EQ(rule.action, Action::replay);
  EXPECT_EQ(rule.max_attempts, 2U);
  EXPECT_EQ(rule.backoff_us, 250U);
  EXPECT_EQ(rule.message, "m");
  EXPECT_EQ(rule.source, "s");
  EXPECT_EQ(rule.file, "test.toml");
  EXPECT_EQ(rule.line, 5U);
  ASSERT_EQ(rules.kernels.size(), 2U);
  EXPECT_EQ(rules.kernels[0].reads[1].field_offset, 16U);
  EXPECT_EQ(rules.kernels[0].writes[0].end, 4096U);
  EXPECT_EQ(rules.kernels[1].idempotent, false);
  EXPECT_EQ(rules.kernels[1].line, 23U);
}

TEST(RuleFile, Defaults) {
  const RuleSet rules = good("schema = 1\n[[rule]]\nid = 'a'\naction = 'replay'\n");
  EXPECT_THAT(rules.trust, ElementsAre(Trust::proved, Trust::bounded, Trust::declared));
  EXPECT_EQ(rules.rules[0].max_attempts, 1U);
  EXPECT_EQ(rules.rules[0].window_us, 5'000'000U);
  EXPECT_EQ(rules.rules[0].kernel, "*");
  EXPECT_EQ(effective_phase(rules.rules[0]), Phase::run);
}

TEST(RuleFile, RulesKeepTheirOrder) {
  std::string text = "schema = 1\n";
  for (const char* id : {"zebra", "apple", "mango", "banana"})
    text += std::string("[[rule]]\nid = '") + id + "'\nmatch.kernel = '" + id +
            "'\naction = 'return'\n";
  std::vector<std::string> ids;
  for (const Rule& rule : good(text).rules)
    ids.push_back(rule.id);
  EXPECT_THAT(ids, ElementsAre("zebra", "apple", "mango", "banana"));
}

TEST(RuleFile, Durations) {
  EXPECT_EQ(parse_duration("250us", 1'000'000), 250U);
  EXPECT_EQ(parse_duration("10ms", 1'000'000), 10'000U);
  EXPECT_EQ(parse_duration("1s", 1'000'000), 1'000'000U);
  EXPECT_EQ(parse_duration("2m", 600'000'000), 120'000'000U);
  EXPECT_EQ(parse_duration("0s", 0), 0U);
  for (const char* text : {"", "s", "10", "10 ms", "-1s", "+1s", "1.5s", "1h", "1S", "00:00:30",
                           "1s ", "18446744073709551615s", "99999999999999999999s", "2s"})
    EXPECT_FALSE(parse_duration(text, 1'000'000)) << text;
  for (const std::uint64_t us : {0ULL, 1ULL, 999ULL, 1000ULL, 1001ULL, 1'000'000ULL, 60'000'000ULL,
                                 61'000'000ULL, 600'000'000ULL})
    EXPECT_EQ(parse_duration(format_duration(us), us), us);
}

TEST(RuleFile, DumpReadsBackToTheSame) {
  const RuleSet& defaults = default_rules();
  for (const bool origin : {false, true}) {
    EXPECT_EQ(without_origin(good(dump(defaults, origin))), without_origin(defaults));
    const std::string once = dump(defaults, false);
    EXPECT_EQ(dump(good(once), false), once);
  }
}

std::string random_text(std::mt19937& random) {
  static const std::string alphabet = "ab \"\\'\n\t#[]=\x7f\x01\xc3\xa4";
  std::string text;
  for (auto n = random() % 8; n > 0; --n) {
    const auto i = random() % (alphabet.size() - 1);
    if (i == alphabet.size() - 2)
      text += "\xc3\xa4";
    else
      text += alphabet[i];
  }
  return text;
}

TEST(RuleFile, DumpOfAnyRulesReadsBack) {
  std::mt19937 random(20261130);
  for (int round = 0; round < 200; ++round) {
    RuleSet rules;
    rules.trust = {static_cast<Trust>(random() % 4)};
    const auto count = random() % 4;
    for (unsigned i = 0; i < count; ++i) {
      Rule rule;
      rule.id = "r" + std::to_string(i);
      rule.codes = {static_cast<std::int32_t>(700 + i)};
      if (random() % 2)
        rule.xids = {static_cast<std::int32_t>(1 + random() % 900)};
      if (!rule.xids.empty() && random() % 2)
        rule.window_us = random() % 3'600'000'000;
      rule.kernel = random() % 2 ? "*" : "regex:^k" + std::to_string(i) + "\\.[\"\\\\#]+$";
      if (random() % 2)
        rule.cls = static_cast<Class>(random() % 5);
      if (random() % 2)
        rule.scope = static_cast<Scope>(random() % 4);
      rule.action = static_cast<Action>(random() % 4);
      if (rule.action == Action::retry)
        rule.codes = {static_cast<std::int32_t>(800 + i)};
      if (rule.action == Action::retry || rule.action == Action::replay) {
        rule.max_attempts = 1 + random() % 100;
        rule.backoff_us = random() % 600'000'000;
      }
      rule.message = random_text(random);
      rule.source = random_text(random);
      rules.rules.push_back(rule);
    }
    if (random() % 2) {
      KernelFact fact;
      fact.name = "k";
      fact.reads = {*parse_arg_ref("arg2.ptr@8[64:128]")};
      fact.writes = {*parse_arg_ref("arg0"), *parse_arg_ref("arg1[0:1]")};
      rules.kernels.push_back(fact);
      fact = {};
      fact.name = "l";
      fact.idempotent = random() % 2 == 0;
      rules.kernels.push_back(fact);
    }
    const std::string text = dump(rules, false);
    EXPECT_EQ(without_origin(good(text)), rules) << text;
  }
}

TEST(RuleFile, OriginsAreComments) {
  ParsedRules user = parse_rules(
      "schema = 1\n[[rule]]\nid = 'mine'\nmatch.cuda = [214]\naction = 'stop'\n", "my\nfile.toml");
  const std::string text = dump(combine(user, default_rules()), true);
  EXPECT_THAT(text, HasSubstr("# my\\x0afile.toml:2\n[[rule]]\nid = \"mine\""));
  EXPECT_THAT(text, HasSubstr("# configs/default.toml:"));
  good(text);
}

TEST(Combine, UserRulesComeFirst) {
  const ParsedRules user = parse_rules(
      "schema = 1\n[[rule]]\nid = 'mine'\nmatch.cuda = [214]\nmatch.kernel = 'gemm'\n"
      "action = 'stop'\n",
      "user.toml");
  ASSERT_TRUE(user.ok());
  const RuleSet rules = combine(user, default_rules());
  EXPECT_EQ(decide(rules, 214, Phase::run, "gemm").rule_id(), "mine");
  EXPECT_EQ(decide(rules, 214, Phase::run, "other").rule_id(), "ecc-uncorrectable");
  EXPECT_EQ(rules.rules.size(), default_rules().rules.size() + 1);
  EXPECT_EQ(rules.trust, default_rules().trust);
}

TEST(Combine, SameIdReplaces) {
  const ParsedRules user = parse_rules(
      "schema = 1\n[[rule]]\nid = 'contained'\nmatch.cuda = [214]\nmatch.kernel = 'gemm'\n"
      "action = 'stop'\n",
      "user.toml");
  ASSERT_TRUE(user.ok());
  const RuleSet rules = combine(user, default_rules());
  EXPECT_EQ(decide(rules, 226).rule_id(), "everything-else");
  EXPECT_EQ(rules.rules.size(), default_rules().rules.size());
}

TEST(Combine, WhatCanNoLongerMatchIsDropped) {
  const ParsedRules user = parse_rules(
      "schema = 1\n[idempotency]\ntrust = ['proved']\n[[rule]]\nid = 'mine'\naction = 'return'\n",
      "user.toml");
  ASSERT_TRUE(user.ok());
  const RuleSet rules = combine(user, default_rules());
  EXPECT_EQ(rules.rules.size(), 1U);
  EXPECT_THAT(rules.trust, ElementsAre(Trust::proved));
}

// Whatever a user's file holds, the rules in force decide as the two lists one after the other.
TEST(Combine, DroppingChangesNoDecision) {
  const char* files[] = {
      "schema = 1\n[[rule]]\nid = 'a'\nmatch.cuda = [214, 2]\naction = 'return'\n",
      "schema = 1\n[[rule]]\nid = 'a'\nmatch.phase = 'launch'\naction = 'stop'\n",
      "schema = 1\n[[rule]]\nid = 'a'\nmatch.kernel = 'gemm'\naction = 'replay'\n",
      "schema = 1\n[[rule]]\nid = 'a'\nmatch.cuda = [2]\naction = 'replay'\n",
      "schema = 1\n[[rule]]\nid = 'a'\nmatch.xid = [94]\naction = 'replay'\n",
  };
  for (const char* file : files) {
    const ParsedRules user = parse_rules(file, "user.toml");
    ASSERT_TRUE(user.ok()) << all_of(user.problems);
    RuleSet plain = user.rules;
    plain.rules.insert(plain.rules.end(), default_rules().rules.begin(),
                       default_rules().rules.end());
    const RuleSet combined = combine(user, default_rules());
    EXPECT_EQ(without_origin(good(dump(combined, true))), without_origin(combined));
    for (const CodeInfo& info : all_codes())
      for (const Phase phase : {Phase::launch, Phase::run})
        for (const char* kernel : {"gemm", "other", ""})
          for (const std::vector<SeenXid>& xids : {std::vector<SeenXid>{}, {{94, 0}}}) {
            if (phase == Phase::launch && is_sticky(info.code))
              continue;
            const Query query{info.code, phase, kernel, xids};
            EXPECT_EQ(match(combined, query).rule_id(), match(plain, query).rule_id())
                << file << info.code;
          }
  }
}

TEST(DefaultRules, AreAsDocumented) {
  const RuleSet& rules = default_rules();
  const std::set<int> replayed{214, 220, 226, 700, 702, 714, 715, 716, 717, 718, 719};
  for (const CodeInfo& info : all_codes()) {
    if (info.code == 0)
      continue;
    const Match run = decide(rules, info.code, Phase::run);
    EXPECT_EQ(run.action, replayed.count(info.code) ? Action::replay : Action::return_)
        << info.code;
    EXPECT_EQ(run.max_attempts > 0, replayed.count(info.code) == 1) << info.code;
    const Match launch = decide(rules, info.code, Phase::launch);
    EXPECT_EQ(launch.action, info.code == 2 ? Action::retry : Action::return_) << info.code;
  }
  const Match oom = decide(rules, 2, Phase::launch);
  EXPECT_GE(oom.max_attempts, 2U);
  EXPECT_GT(oom.backoff_us, 0U);
  EXPECT_THAT(rules.trust, ElementsAre(Trust::proved, Trust::bounded, Trust::declared));
}

TEST(DefaultRules, NameEveryClassifiedCodeAndTheirSource) {
  // The codes of which something is known that bears on recovery.
  const int classified[] = {2,   46,  100, 101, 201, 709, 214, 220, 226, 304, 600, 700, 702,
                            710, 714, 715, 716, 717, 718, 719, 721, 911, 9,   98,  209, 701,
                            720, 912, 802, 803, 804, 805, 806, 807, 808, 809, 810, 900, 901,
                            902, 903, 904, 905, 906, 907, 908, 909, 916, 999};
  std::set<int> named;
  for (const Rule& rule : default_rules().rules) {
    named.insert(rule.codes.begin(), rule.codes.end());
    EXPECT_FALSE(rule.message.empty()) << rule.id;
    EXPECT_THAT(rule.source, ::testing::ContainsRegex("20[0-9][0-9]-[0-9][0-9]")) << rule.id;
    EXPECT_TRUE(rule.cls.has_value() || rule.codes.empty()) << rule.id;
  }
  for (const int code : classified)
    EXPECT_TRUE(named.count(code)) << code;
}

TEST(Coverage, NeedsTheSameXids) {
  const RuleSet rules = good(R"(
schema = 1
[[rule]]
id = "with-xid"
match.cuda = [214]
match.xid = [94, 95]
action = "replay"
[[rule]]
id = "without"
match.cuda = [214]
action = "replay"
)");
  Coverage coverage;
  coverage.add(rules.rules[0]);
  EXPECT_EQ(coverage.covering(rules.rules[1]), nullptr);
  Rule narrower = rules.rules[0];
  narrower.xids = {95};
  EXPECT_EQ(coverage.covering(narrower), &rules.rules[0]);
  narrower.window_us += 1;
  EXPECT_EQ(coverage.covering(narrower), nullptr);
}

TEST(RuleFile, SurvivesAnyBytes) {
  EXPECT_FALSE(parse_rules("", "f").ok());
  EXPECT_FALSE(parse_rules(std::string(2'000'000, '['), "f").ok());
  EXPECT_FALSE(parse_rules(std::string(1'000'000, '['), "f").ok());
  EXPECT_FALSE(parse_rules(std::string(1'000'000, '\n') + "[", "f").ok());
  EXPECT_FALSE(parse_rules(std::string(1000, '\0'), "f").ok());
  std::string nested = "schema = 1\n";
  for (int i = 0; i < 5000; ++i)
    nested += "x = {a.b.c.d.e = [\n";
  EXPECT_FALSE(parse_rules(nested, "f").ok());
  std::string headers = "schema = 1\n";
  for (int i = 0; i < 2000; ++i)
    headers += "[a" + std::to_string(i) + ".b.c.d]\n";
  EXPECT_FALSE(parse_rules(headers, "f").ok());
}

// Characters of every range, where a key, a value and a blank may be: in a sanitized build, the
// parser's own undefined behaviour shows here.
TEST(RuleFile, SurvivesAnyCharacter) {
  for (std::uint32_t c = 1; c < 0x11000; c += c < 0x500 ? 1 : c < 0x3100 ? 7 : 61) {
    std::string utf8;
    if (c < 0x80)
      utf8 += static_cast<char>(c);
    else if (c < 0x800)
      utf8 += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    else if (c < 0x10000)
      utf8 += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
               static_cast<char>(0x80 | (c & 63))};
    else
      utf8 += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
               static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    for (const char* form : {"@", "a@ = 1", "a = @", "a = 1@", "[[@a]]"}) {
      std::string text = form;
      text.replace(text.find('@'), 1, utf8);
      EXPECT_FALSE(parse_rules(text, "f").ok());
    }
  }
}

TEST(RuleFile, ManyRulesAreRefusedInTime) {
  std::string text = "schema = 1\n";
  for (int i = 0; i < 1500; ++i)
    text += "[[rule]]\nid = 'r" + std::to_string(i) + "'\nmatch.kernel = 'k" + std::to_string(i) +
            "'\naction = 'return'\n";
  const ParsedRules parsed = parse_rules(text, "f");
  ASSERT_EQ(parsed.problems.size(), 1U) << all_of(parsed.problems);
  EXPECT_THAT(parsed.problems[0].what, HasSubstr("more than 1000"));
}

TEST(RuleFile, DamagedFiles) {
  std::mt19937 random(20261130);
  const std::string original(default_rules_text());
  for (int i = 0; i < 100; ++i) {
    std::string text = original.substr(0, random() % original.size());
    for (int n = 0; n < 3 && !text.empty(); ++n)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    const ParsedRules parsed = parse_rules(text, "f");
    for (const Problem& problem : parsed.problems) {
      EXPECT_EQ(problem.what.find('\n'), std::string::npos);
      EXPECT_GE(problem.line, 1U);
      EXPECT_GE(problem.column, 1U);
    }
  }
}

}  // namespace
}  // namespace gpurecover::classifier
