// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cli/result.h"

// Verbs and their options, as data. What an option is for stands in cli/help/VERB.md, which is also
// what `--help` prints; a unit test holds the two lists together.
namespace gpurecover::cli {

enum class Kind : std::uint8_t { kFlag, kText, kCount, kReal, kChoice };

struct Option {
  std::vector<std::string_view> names;  // with their dashes; the first long one is its key
  Kind kind = Kind::kText;
  std::string_view metavar;               // empty for flags
  std::vector<std::string_view> choices;  // of kChoice
  bool repeated = false;
  bool required = false;

  std::string_view key() const;
};

struct Invocation;

enum class Tail : std::uint8_t { kNone, kOptional, kRequired };

struct Verb {
  std::string_view name;  // "run", "rules check"
  std::string_view help;
  std::vector<Option> options;
  std::string_view operand;  // metavar of operands, empty: takes none
  std::size_t min_operands = 0;
  std::size_t max_operands = 0;
  Tail app = Tail::kNone;  // whether `-- APP [ARGS…]` follows
  int (*run)(const Invocation&) = nullptr;
};

// A parsed command line.
struct Invocation {
  const Verb* verb = nullptr;
  std::map<std::string_view, std::vector<std::string>>
      values;  // by key; a flag has an empty string
  std::vector<std::string> operands;
  std::vector<std::string> app;

  bool has(std::string_view key) const { return values.contains(key); }
  // The last value given, or `otherwise`.
  std::string value(std::string_view key, std::string_view otherwise = {}) const;
  std::vector<std::string> all(std::string_view key) const;
  std::uint64_t count(std::string_view key, std::uint64_t otherwise) const;
  double real(std::string_view key, double otherwise) const;
};

// argv without the program's name, cut at the first `--`: what is ours and what is the app's. The
// app's half is never parsed, so its words arrive byte for byte.
struct SplitArguments {
  std::vector<std::string> ours;
  std::vector<std::string> app;
  bool has_separator = false;
};
SplitArguments split_arguments(const std::vector<std::string>& words);

// The words after the verb, parsed and validated. The error is a sentence with the nearest valid
// word or the corrected command.
tl::expected<Invocation, std::string> parse(const Verb& verb, const SplitArguments& words);

// For verbs and words in general: "; did you mean 'run'?", or nothing if none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

namespace detail {
struct RawOptions {
  std::map<std::string_view, std::vector<std::string>> values;
  std::vector<std::string> rest;  // words that belong to no option, in order
};
// The only place that knows CLI11 (cli11.cpp).
tl::expected<RawOptions, std::string> parse_words(const std::vector<Option>& options,
                                                  const std::vector<std::string>& words);
}  // namespace detail

}  // namespace gpurecover::cli
