// SPDX-License-Identifier: Apache-2.0
// The rule file: text to RuleSet and back. Not for the agent. Reads only the text that it is given;
// safe on any bytes; throws nothing but std::bad_alloc. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "classifier/rules.h"

namespace gpurecover::classifier {

struct Problem {
  std::string file;
  std::uint32_t line = 1;    // from 1
  std::uint32_t column = 1;  // from 1, in code points
  std::string what;          // one line: what is wrong; the nearest valid word or the remedy
  bool operator==(const Problem&) const = default;
};
// "rules.toml:7:1: unknown key 'bogus'; did you mean 'backoff'?"
std::string to_string(const Problem& problem);

struct ParsedRules {
  RuleSet rules;  // what could be read, also if there are problems: for messages only
  bool has_trust = false;
  std::vector<Problem> problems;  // every one, by line and column
  bool ok() const { return problems.empty(); }
};

// `file` is the name for messages and for Rule::file.
ParsedRules parse_rules(std::string_view text, std::string_view file);

// The built-in rules, configs/default.toml.
inline constexpr std::string_view kDefaultRulesName = "configs/default.toml";
std::string_view default_rules_text();
const RuleSet& default_rules();

// The rules in force: the user's come first, then the built-in ones. A built-in rule of the same id
// is replaced; one that the user's rules leave nothing to match is dropped. `[idempotency] trust`
// of the user's file replaces the built-in one.
RuleSet combine(const ParsedRules& user, const RuleSet& built_in);

// Text that parse_rules reads back to the same rules (but for file and line). With `show_origin`, a
// comment before each rule says where it comes from.
std::string dump(const RuleSet& rules, bool show_origin);

// The rules so far, to ask whether they leave a further one nothing to match. Looks at every pair
// of code and phase by itself, so that several rules together can leave nothing. Kernel patterns:
// `*` covers all, any pattern covers the exact names that it matches, and its own text.
class Coverage {
 public:
  // The first rule involved, or null if `later` can still match something. The pointer is to the
  // rule that was added, which must be alive still.
  const Rule* covering(const Rule& later) const;
  void add(const Rule& rule);

 private:
  struct Entry {
    const Rule* rule;
    std::optional<Pattern> pattern;  // nothing: does not compile, covers nothing
  };
  std::vector<Entry> entries_;
};

// "250us", "10ms", "1s", "2m" to microseconds, at most `limit_us`; the error is a sentence.
tl::expected<std::uint64_t, std::string> parse_duration(std::string_view text,
                                                        std::uint64_t limit_us);
// The shortest exact form of it.
std::string format_duration(std::uint64_t us);

}  // namespace gpurecover::classifier
