// SPDX-License-Identifier: Apache-2.0
// The rule file: text to RuleSet and back. Not for the agent. Reads only the text that it is given;
// safe on any bytes; throws nothing but std::bad_alloc. Thread-safe.
#pragma once

#include <string>
#include <string_view>
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

// Whether `earlier` leaves `later` nothing to match. Kernel patterns: `*` covers all, a pattern
// covers an exact name that it matches, and itself.
bool covers(const Rule& earlier, const Rule& later);

}  // namespace gpurecover::classifier
