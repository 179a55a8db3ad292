// SPDX-License-Identifier: Apache-2.0
#include "classifier/rules.h"

#include <gmock/gmock.h>

#include <limits>
#include <type_traits>

namespace gpurecover::classifier {
namespace {

using ::testing::HasSubstr;

Rule rule(std::string id, std::vector<std::int32_t> codes, Action action) {
  Rule r;
  r.id = std::move(id);
  r.codes = std::move(codes);
  r.action = action;
  r.max_attempts = action == Action::replay || action == Action::retry ? 2 : 0;
  return r;
}

Query query(std::int32_t code, Phase phase = Phase::run, std::string_view kernel = "gemm",
            std::vector<SeenXid> xids = {}) {
  return {code, phase, kernel, std::move(xids)};
}

TEST(Words, RoundTrip) {
  for (std::string_view word : words_of<Class>())
    EXPECT_EQ(to_string(*from_word<Class>(word)), word);
  for (std::string_view word : words_of<Scope>())
    EXPECT_EQ(to_string(*from_word<Scope>(word)), word);
  for (std::string_view word : words_of<Action>())
    EXPECT_EQ(to_string(*from_word<Action>(word)), word);
  for (std::string_view word : words_of<Phase>())
    EXPECT_EQ(to_string(*from_word<Phase>(word)), word);
  for (std::string_view word : words_of<Trust>())
    EXPECT_EQ(to_string(*from_word<Trust>(word)), word);
  EXPECT_EQ(to_string(Action::return_), "return");
  EXPECT_EQ(to_string(static_cast<Action>(77)), "?");
  EXPECT_FALSE(from_word<Action>("Return"));
}

TEST(ArgRef, RoundTrip) {
  for (const char* text :
       {"arg0", "arg12", "arg1[0:4096]", "arg2.field@16", "arg2.ptr@8[64:128]", "arg0[0:1]"}) {
    const auto ref = parse_arg_ref(text);
    ASSERT_TRUE(ref) << text << ": " << ref.error();
    EXPECT_EQ(to_string(*ref), text);
    EXPECT_EQ(*parse_arg_ref(to_string(*ref)), *ref);
  }
  const auto ref = parse_arg_ref("arg2.ptr@8[64:128]");
  EXPECT_EQ(ref->index, 2U);
  EXPECT_EQ(ref->field, "ptr");
  EXPECT_EQ(ref->field_offset, 8U);
  EXPECT_EQ(ref->begin, 64U);
  EXPECT_EQ(ref->end, 128U);
}

TEST(ArgRef, Refused) {
  for (const char* text : {"",
                           "arg",
                           "0",
                           "arg-1",
                           "argx",
                           "arg0 ",
                           " arg0",
                           "arg0[",
                           "arg0[0]",
                           "arg0[4:4]",
                           "arg0[5:4]",
                           "arg0[0:4",
                           "arg0.",
                           "arg0.f",
                           "arg0.@4",
                           "arg0.f@",
                           "arg0.f@99999",
                           "arg99999",
                           "arg0[0:99999999999999999999]",
                           "arg99999999999999999999",
                           "arg0[-1:4]",
                           "arg0[0:4]x"}) {
    const auto ref = parse_arg_ref(text);
    ASSERT_FALSE(ref) << text;
    EXPECT_THAT(ref.error(), HasSubstr("arg0[0:4096]")) << text;
  }
}

TEST(Match, FirstMatchWinsWhole) {
  RuleSet rules;
  rules.rules = {rule("a", {214}, Action::return_), rule("b", {214, 700}, Action::replay),
                 rule("c", {}, Action::stop)};
  rules.rules[1].backoff_us = 10;
  EXPECT_EQ(match(rules, query(214)).rule_id(), "a");
  EXPECT_EQ(match(rules, query(214)).action, Action::return_);
  EXPECT_EQ(match(rules, query(214)).max_attempts, 0U);  // nothing is taken from b
  EXPECT_EQ(match(rules, query(214)).backoff_us, 0U);
  EXPECT_EQ(match(rules, query(700)).rule, &rules.rules[1]);
  EXPECT_EQ(match(rules, query(700)).action, Action::replay);
  EXPECT_EQ(match(rules, query(1)).action, Action::stop);
}

TEST(Match, AlwaysADecision) {
  const RuleSet none;
  for (int code = -5; code < 1100; ++code) {
    const Match m = match(none, query(code));
    EXPECT_EQ(m.action, Action::return_);
    EXPECT_EQ(m.rule, nullptr);
    EXPECT_EQ(m.rule_id(), "none");
    EXPECT_EQ(m.message(), "");
  }
  EXPECT_EQ(match(none, query(214)).cls, Class::hardware);
  EXPECT_EQ(match(none, query(214)).scope, Scope::context);
  EXPECT_EQ(match(none, query(2)).cls, Class::resource);
  EXPECT_EQ(match(none, query(2)).scope, Scope::launch);
}

TEST(Match, ActionsHaveTheirPhase) {
  RuleSet rules;
  rules.rules = {rule("again", {2}, Action::retry), rule("replay", {2}, Action::replay)};
  EXPECT_EQ(match(rules, query(2, Phase::launch)).rule_id(), "again");
  EXPECT_EQ(match(rules, query(2, Phase::run)).rule_id(), "replay");

  rules.rules = {rule("launch-only", {2}, Action::return_), rule("rest", {}, Action::stop)};
  rules.rules[0].phase = Phase::launch;
  EXPECT_EQ(match(rules, query(2, Phase::launch)).rule_id(), "launch-only");
  EXPECT_EQ(match(rules, query(2, Phase::run)).rule_id(), "rest");
}

TEST(Match, Kernel) {
  RuleSet rules;
  rules.rules = {rule("exact", {}, Action::replay), rule("regex", {}, Action::return_)};
  rules.rules[0].kernel = "gemm";
  rules.rules[1].kernel = "regex:^scale";
  EXPECT_EQ(match(rules, query(214, Phase::run, "gemm")).rule_id(), "exact");
  EXPECT_EQ(match(rules, query(214, Phase::run, "scale_v2")).rule_id(), "regex");
  EXPECT_EQ(match(rules, query(214, Phase::run, "other")).rule_id(), "none");
  EXPECT_EQ(match(rules, query(214, Phase::run, "")).rule_id(), "none");
}

TEST(Match, XidWithinTheWindow) {
  RuleSet rules;
  rules.rules = {rule("xid", {214}, Action::replay)};
  rules.rules[0].xids = {94, 95};
  rules.rules[0].window_us = 5'000'000;
  const auto id = [&](std::vector<SeenXid> seen) {
    return std::string(match(rules, query(214, Phase::run, "gemm", std::move(seen))).rule_id());
  };
  EXPECT_EQ(id({}), "none");
  EXPECT_EQ(id({{94, 0}}), "xid");
  EXPECT_EQ(id({{13, 0}, {95, -1}}), "xid");
  EXPECT_EQ(id({{13, 0}}), "none");
  EXPECT_EQ(id({{94, -5'000'000}}), "xid");
  EXPECT_EQ(id({{94, -5'000'001}}), "none");
  EXPECT_EQ(id({{94, 1'000'000}}), "xid");
  EXPECT_EQ(id({{94, 1'000'001}}), "none");
  EXPECT_EQ(id({{94, std::numeric_limits<std::int64_t>::min()}}), "none");
  EXPECT_EQ(id({{94, std::numeric_limits<std::int64_t>::max()}}), "none");
}

// A rule set comes to the agent over a socket: nothing in it may lead to a re-execution that no
// valid rule orders.
TEST(Match, BrokenRulesReturn) {
  RuleSet rules;
  rules.rules = {rule("broken", {214}, Action::replay), rule("next", {214}, Action::replay)};
  rules.rules[0].kernel = "regex:((";
  EXPECT_EQ(match(rules, query(214)).rule_id(), "broken");
  EXPECT_EQ(match(rules, query(214)).action, Action::return_);

  rules.rules = {rule("nonsense", {214}, static_cast<Action>(99))};
  EXPECT_EQ(match(rules, query(214)).action, Action::return_);

  rules.rules = {rule("wrong-phase", {2}, Action::replay)};
  rules.rules[0].phase = Phase::launch;
  EXPECT_EQ(match(rules, query(2, Phase::launch)).action, Action::return_);

  rules.rules = {rule("huge", {214}, Action::replay)};
  rules.rules[0].max_attempts = ~0U;
  rules.rules[0].backoff_us = ~0ULL;
  EXPECT_EQ(match(rules, query(214)).max_attempts, kMaxAttempts);
  EXPECT_EQ(match(rules, query(214)).wait_us(4'000'000'000U), kMaxBackoffUs);
}

TEST(Match, BackoffDoubles) {
  Match m;
  m.backoff_us = 10'000;
  EXPECT_EQ(m.wait_us(1), 10'000U);
  EXPECT_EQ(m.wait_us(2), 20'000U);
  EXPECT_EQ(m.wait_us(3), 40'000U);
  EXPECT_EQ(m.wait_us(100), kMaxBackoffUs);
  m.backoff_us = 0;
  EXPECT_EQ(m.wait_us(100), 0U);
}

TEST(Match, RulesOverrideClassAndScope) {
  RuleSet rules;
  rules.rules = {rule("a", {214}, Action::return_)};
  EXPECT_EQ(match(rules, query(214)).cls, Class::hardware);
  rules.rules[0].cls = Class::environment;
  rules.rules[0].scope = Scope::node;
  EXPECT_EQ(match(rules, query(214)).cls, Class::environment);
  EXPECT_EQ(match(rules, query(214)).scope, Scope::node);
}

TEST(Facts, FirstMatch) {
  RuleSet rules;
  rules.kernels.resize(3);
  rules.kernels[0].name = "regex:((";  // broken: declares nothing
  rules.kernels[0].idempotent = true;
  rules.kernels[1].name = "regex:^my_";
  rules.kernels[2].name = "*";
  EXPECT_EQ(find_fact(rules, "my_scale"), &rules.kernels[1]);
  EXPECT_EQ(find_fact(rules, "other"), &rules.kernels[2]);
  rules.kernels.pop_back();
  EXPECT_EQ(find_fact(rules, "other"), nullptr);
}

// An archive as the codec of the wire is one: counts what it is handed, so that a member that is
// added and not handed over is noticed.
struct Sizes {
  std::size_t bytes = 0;
  template <class T>
  void operator()(T& member) {
    if constexpr (requires { member.fields(*this); }) {
      member.fields(*this);
    } else {
      bytes = (bytes + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T);
    }
  }
};

template <class T>
void expect_all_members_are_fields() {
  T value{};
  Sizes sizes;
  value.fields(sizes);
  EXPECT_EQ((sizes.bytes + alignof(T) - 1) / alignof(T) * alignof(T), sizeof(T));
}

TEST(Fields, EveryMember) {
  expect_all_members_are_fields<Rule>();
  expect_all_members_are_fields<ArgRef>();
  expect_all_members_are_fields<KernelFact>();
  expect_all_members_are_fields<RuleSet>();
}

}  // namespace
}  // namespace gpurecover::classifier
