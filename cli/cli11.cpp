// SPDX-License-Identifier: Apache-2.0
// The only translation unit that includes CLI11: it takes long to compile.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/options.h"

namespace gpurecover::cli::detail {

tl::expected<RawOptions, std::string> parse_words(const std::vector<Option>& options,
                                                  const std::vector<std::string>& words) {
  CLI::App app;
  app.set_help_flag();  // `--help` is answered before, from cli/help
  app.allow_extras();
  std::vector<std::pair<std::string_view, CLI::Option*>> made;
  for (const Option& option : options) {
    std::string names;
    for (const std::string_view name : option.names) {
      names += (names.empty() ? "" : ",") + std::string(name);
    }
    CLI::Option* added = nullptr;
    if (option.kind == Kind::kFlag) {
      added = app.add_flag(names)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    } else {
      // Without allow_extra_args(false) CLI11 2.1.2 swallows the next words and takes '[a,b]'
      // apart.
      added = app.add_option(names)->expected(1)->allow_extra_args(false)->multi_option_policy(
          CLI::MultiOptionPolicy::TakeAll);
    }
    made.emplace_back(option.key(), added);
  }
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return failure(error.what());
  }
  RawOptions raw;
  for (const auto& [key, option] : made) {
    if (option->count() > 0) {
      raw.values[key] = option->results();
    }
  }
  raw.rest = app.remaining();
  return raw;
}

}  // namespace gpurecover::cli::detail
