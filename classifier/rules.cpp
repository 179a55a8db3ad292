// SPDX-License-Identifier: Apache-2.0
#include "classifier/rules.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "classifier/catalogue.h"

namespace gpurecover::classifier {
namespace {

template <class Enum>
std::string_view word(Enum value) {
  const auto index = static_cast<std::size_t>(value);
  const auto& words = words_of<Enum>();
  return index < words.size() ? words[index] : std::string_view("?");
}

// A number at the front of `text`, which is shortened by it.
template <class Int>
bool take_number(std::string_view& text, Int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data())
    return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix))
    return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool contains(const std::vector<std::int32_t>& list, std::int32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool xid_seen(const Rule& rule, const std::vector<SeenXid>& seen) {
  return std::any_of(seen.begin(), seen.end(), [&](const SeenXid& s) {
    const bool in_time =
        s.at_us <= 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(s.at_us) <= rule.window_us
                     : s.at_us <= kWindowAfterUs;
    return in_time && contains(rule.xids, s.xid);
  });
}

}  // namespace

// Never destroyed: the application may launch kernels while its statics are being destroyed.
template <>
const std::vector<std::string_view>& words_of<Class>() {
  static const auto& words = *new std::vector<std::string_view>{"hardware", "program", "resource",
                                                                "environment", "consequence"};
  return words;
}
template <>
const std::vector<std::string_view>& words_of<Scope>() {
  static const auto& words =
      *new std::vector<std::string_view>{"launch", "context", "device", "node"};
  return words;
}
template <>
const std::vector<std::string_view>& words_of<Action>() {
  static const auto& words =
      *new std::vector<std::string_view>{"replay", "retry", "return", "stop"};
  return words;
}
template <>
const std::vector<std::string_view>& words_of<Phase>() {
  static const auto& words = *new std::vector<std::string_view>{"launch", "run"};
  return words;
}
template <>
const std::vector<std::string_view>& words_of<Trust>() {
  static const auto& words =
      *new std::vector<std::string_view>{"proved", "bounded", "declared", "observed"};
  return words;
}

std::string_view to_string(Class value) {
  return word(value);
}
std::string_view to_string(Scope value) {
  return word(value);
}
std::string_view to_string(Action value) {
  return word(value);
}
std::string_view to_string(Phase value) {
  return word(value);
}
std::string_view to_string(Trust value) {
  return word(value);
}

template <class Enum>
std::optional<Enum> from_word(std::string_view text) {
  const auto& words = words_of<Enum>();
  const auto it = std::find(words.begin(), words.end(), text);
  if (it == words.end())
    return std::nullopt;
  return static_cast<Enum>(it - words.begin());
}
template std::optional<Class> from_word<Class>(std::string_view);
template std::optional<Scope> from_word<Scope>(std::string_view);
template std::optional<Action> from_word<Action>(std::string_view);
template std::optional<Phase> from_word<Phase>(std::string_view);
template std::optional<Trust> from_word<Trust>(std::string_view);

tl::expected<ArgRef, std::string> parse_arg_ref(std::string_view text) {
  constexpr const char* kForms =
      "; write 'arg0', 'arg0[0:4096]' (bytes) or 'arg0.field@16' (byte offset in the struct)";
  const std::string shown = "'" + std::string(text.substr(0, 80)) + "'";
  const auto wrong = [&](const std::string& why) {
    return tl::unexpected(shown + " names no argument: " + why + kForms);
  };
  // The largest parameter space of a kernel is 32764 bytes: more arguments there cannot be.
  constexpr std::uint32_t kMaxParameterBytes = 32764;

  ArgRef ref;
  if (!take(text, "arg") || !take_number(text, ref.index))
    return wrong("it does not begin with 'arg' and a number");
  if (ref.index >= kMaxParameterBytes)
    return wrong("no kernel has so many arguments");
  if (take(text, ".")) {
    const auto end = static_cast<std::size_t>(
        std::find_if_not(text.begin(), text.end(), is_name_char) - text.begin());
    ref.field = text.substr(0, end);
    text.remove_prefix(end);
    std::uint32_t offset = 0;
    if (ref.field.empty() || !take(text, "@") || !take_number(text, offset))
      return wrong("after '.' come the member's name, '@' and its byte offset");
    if (offset >= kMaxParameterBytes)
      return wrong("no parameter is so large");
    ref.field_offset = offset;
  }
  if (take(text, "[")) {
    std::uint64_t begin = 0, end = 0;
    if (!take_number(text, begin) || !take(text, ":") || !take_number(text, end) ||
        !take(text, "]"))
      return wrong("a range is '[BEGIN:END]' in bytes");
    if (begin >= end)
      return wrong("the range is empty");
    ref.begin = begin;
    ref.end = end;
  }
  if (!text.empty())
    return wrong("'" + std::string(text.substr(0, 40)) + "' is left over");
  return ref;
}

std::string to_string(const ArgRef& ref) {
  std::string text = "arg" + std::to_string(ref.index);
  if (ref.field_offset)
    text +=
        "." + (ref.field.empty() ? "field" : ref.field) + "@" + std::to_string(*ref.field_offset);
  if (ref.begin && ref.end)
    text += "[" + std::to_string(*ref.begin) + ":" + std::to_string(*ref.end) + "]";
  return text;
}

bool RuleSet::trusts(Trust value) const {
  return std::find(trust.begin(), trust.end(), value) != trust.end();
}

std::uint64_t Match::wait_us(std::uint32_t attempt) const {
  std::uint64_t wait = std::min(backoff_us, kMaxBackoffUs);
  for (std::uint32_t i = 1; i < attempt && wait != 0 && wait < kMaxBackoffUs; ++i)
    wait = std::min(2 * wait, kMaxBackoffUs);
  return wait;
}

std::optional<Phase> effective_phase(const Rule& rule) {
  if (rule.phase)
    return rule.phase;
  if (rule.action == Action::replay)
    return Phase::run;
  if (rule.action == Action::retry)
    return Phase::launch;
  return std::nullopt;
}

Mismatch compare(const Rule& rule, const Query& query) {
  if (!rule.codes.empty() && !contains(rule.codes, query.code))
    return Mismatch::code;
  if (const auto phase = effective_phase(rule); phase && *phase != query.phase)
    return Mismatch::phase;
  const auto pattern = Pattern::compile(rule.kernel);
  if (pattern && !pattern->matches(query.kernel))
    return Mismatch::kernel;
  if (!rule.xids.empty() && !xid_seen(rule, query.xids))
    return Mismatch::xid;
  return Mismatch::none;
}

Match match(const RuleSet& rules, const Query& query) {
  Match result;
  result.cls = class_of_code(query.code);
  result.scope = scope_of_code(query.code);
  for (const Rule& rule : rules.rules) {
    if (compare(rule, query) != Mismatch::none)
      continue;
    result.rule = &rule;
    result.cls = rule.cls.value_or(result.cls);
    result.scope = rule.scope.value_or(result.scope);
    // A rule set that came over a socket may hold anything; what is not a valid order to re-execute
    // is none.
    const bool again = (rule.action == Action::replay && query.phase == Phase::run) ||
                       (rule.action == Action::retry && query.phase == Phase::launch);
    if (again && Pattern::compile(rule.kernel)) {
      result.action = rule.action;
      result.max_attempts = std::min(rule.max_attempts, kMaxAttempts);
      result.backoff_us = std::min(rule.backoff_us, kMaxBackoffUs);
    } else if (rule.action == Action::stop) {
      result.action = Action::stop;
    }
    break;
  }
  return result;
}

const KernelFact* find_fact(const RuleSet& rules, std::string_view base_name) {
  for (const KernelFact& fact : rules.kernels) {
    const auto pattern = Pattern::compile(fact.name);
    if (pattern && pattern->matches(base_name))
      return &fact;
  }
  return nullptr;
}

}  // namespace gpurecover::classifier
