// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "classifier/suggest.h"
#include "cli/output.h"

namespace gpurecover::cli {
namespace {

template <class Number>
bool parse_number(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end && !text.empty();
}

const Option* find_option(const Verb& verb, std::string_view name) {
  for (const Option& option : verb.options) {
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end()) {
      return &option;
    }
  }
  return nullptr;
}

// Where the app's words begin in a command line that lacks its `--`; words.size() if nowhere.
std::size_t first_operand(const Verb& verb, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() < 2 || word[0] != '-') {
      return i;
    }
    const Option* option = find_option(verb, word);
    if (option != nullptr && option->kind != Kind::kFlag) {
      ++i;
    }
  }
  return words.size();
}

std::string corrected(const Verb& verb, const std::vector<std::string>& words, std::size_t at) {
  std::vector<std::string> ours(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at));
  std::vector<std::string> app(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  std::string out = "gpurecover " + std::string(verb.name);
  if (!ours.empty()) {
    out += " " + shell_join(ours);
  }
  return out + " -- " + shell_join(app);
}

std::string help_hint(const Verb& verb) {
  return "see `gpurecover " + std::string(verb.name) + " --help`";
}

tl::expected<void, std::string> check_value(const Option& option, const std::string& text) {
  const std::string key(option.key());
  switch (option.kind) {
    case Kind::kFlag:
    case Kind::kText:
      return {};
    case Kind::kCount: {
      std::uint64_t value = 0;
      if (!parse_number(text, value)) {
        return failure(key + " takes a whole number from 0, not '" + text + "'");
      }
      return {};
    }
    case Kind::kReal: {
      double value = 0;
      if (!parse_number(text, value) || !std::isfinite(value)) {
        return failure(key + " takes a number, not '" + text + "'");
      }
      return {};
    }
    case Kind::kChoice: {
      if (std::find(option.choices.begin(), option.choices.end(), text) != option.choices.end()) {
        return {};
      }
      std::string valid;
      for (const std::string_view choice : option.choices) {
        valid += (valid.empty() ? "" : ", ") + std::string(choice);
      }
      return failure(key + " takes one of " + valid + ", not '" + text + "'" +
                     did_you_mean(text, option.choices));
    }
  }
  return {};
}

}  // namespace

std::string_view Option::key() const {
  for (const std::string_view name : names) {
    if (name.starts_with("--")) {
      return name;
    }
  }
  return names.front();
}

std::string Invocation::value(std::string_view key, std::string_view otherwise) const {
  const auto found = values.find(key);
  return found == values.end() || found->second.empty() ? std::string(otherwise)
                                                        : found->second.back();
}

std::vector<std::string> Invocation::all(std::string_view key) const {
  const auto found = values.find(key);
  return found == values.end() ? std::vector<std::string>{} : found->second;
}

std::uint64_t Invocation::count(std::string_view key, std::uint64_t otherwise) const {
  std::uint64_t number = 0;
  return has(key) && parse_number(value(key), number) ? number : otherwise;
}

double Invocation::real(std::string_view key, double otherwise) const {
  double number = 0;
  return has(key) && parse_number(value(key), number) ? number : otherwise;
}

SplitArguments split_arguments(const std::vector<std::string>& words) {
  SplitArguments split;
  const auto separator = std::find(words.begin(), words.end(), "--");
  split.ours.assign(words.begin(), separator);
  if (separator != words.end()) {
    split.has_separator = true;
    split.app.assign(separator + 1, words.end());
  }
  return split;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::string_view near = classifier::nearest(word, candidates);
  return near.empty() ? "" : "; did you mean '" + std::string(near) + "'?";
}

tl::expected<Invocation, std::string> parse(const Verb& verb, const SplitArguments& words) {
  if (verb.app != Tail::kNone && verb.operand.empty() && !words.has_separator) {
    const std::size_t at = first_operand(verb, words.ours);
    if (at < words.ours.size()) {
      return failure("the program comes after `--`: " + corrected(verb, words.ours, at));
    }
  }
  auto raw = detail::parse_words(verb.options, words.ours);
  if (!raw) {
    return failure(raw.error() + "; " + help_hint(verb));
  }
  Invocation invocation;
  invocation.verb = &verb;
  invocation.app = words.app;
  for (std::string& word : raw->rest) {
    if (word.size() > 1 && word[0] == '-') {
      std::vector<std::string_view> names;
      for (const Option& option : verb.options) {
        names.insert(names.end(), option.names.begin(), option.names.end());
      }
      const std::string name = word.substr(0, word.find('='));
      return failure("unknown option '" + name + "'" + did_you_mean(name, names) + "; " +
                     help_hint(verb));
    }
    invocation.operands.push_back(std::move(word));
  }
  for (const Option& option : verb.options) {
    const auto found = raw->values.find(option.key());
    if (found == raw->values.end()) {
      if (option.required) {
        return failure(std::string(option.key()) + " " + std::string(option.metavar) +
                       " is required; " + help_hint(verb));
      }
      continue;
    }
    if (!option.repeated && option.kind != Kind::kFlag && found->second.size() > 1) {
      return failure(std::string(option.key()) + " is given more than once");
    }
    for (const std::string& text : found->second) {
      if (auto good = check_value(option, text); !good) {
        return failure(good.error());
      }
    }
    invocation.values[option.key()] = std::move(found->second);
  }
  if (invocation.operands.size() > verb.max_operands) {
    return failure("unexpected '" + invocation.operands[verb.max_operands] + "'; " +
                   help_hint(verb));
  }
  if (invocation.operands.size() < verb.min_operands) {
    return failure(std::string(verb.operand) + " is missing; " + help_hint(verb));
  }
  if (verb.app == Tail::kNone && words.has_separator) {
    return failure("`gpurecover " + std::string(verb.name) + "` takes no program after `--`");
  }
  if (verb.app == Tail::kRequired && words.app.empty()) {
    return failure("which program? gpurecover " + std::string(verb.name) +
                   " [options] -- APP [ARGS...]");
  }
  if (words.has_separator && words.app.empty()) {
    return failure("nothing comes after `--`: name the program to run");
  }
  return invocation;
}

}  // namespace gpurecover::cli
