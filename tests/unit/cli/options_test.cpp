// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include "cli/commands/commands.h"
#include "cli/fault_options.h"
#include "cli/output.h"
#include "cli/run_options.h"

namespace gpurecover::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// "-k, --kernel, --kernel-name PATTERN", as the help pages write an option.
std::string written(const Option& option) {
  std::string out;
  for (const std::string_view name : option.names) {
    out += (out.empty() ? "" : ", ") + std::string(name);
  }
  return option.metavar.empty() ? out : out + " " + std::string(option.metavar);
}

std::set<std::string> options_of_page(std::string_view page) {
  static const std::regex item("^\\* `(-[^`]*)`:");
  std::set<std::string> out;
  std::istringstream lines{std::string(page)};
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, item)) {
      EXPECT_TRUE(out.insert(match[1]).second) << "twice in its page: " << match[1];
    }
  }
  return out;
}

TEST(Help, EveryOptionIsOnItsPageAndEveryOptionOfAPageExists) {
  std::map<std::string_view, std::set<std::string>> taken;
  std::set<std::string> of_run;
  for (const Option& option : run_option_list()) {
    of_run.insert(written(option));
  }
  for (const Verb& verb : all_verbs()) {
    auto& options = taken[verb.help];
    for (const Option& option : verb.options) {
      options.insert(written(option));
    }
  }
  for (const auto& [page, options] : taken) {
    std::set<std::string> described = options_of_page(page);
    // Pages of verbs that run a program refer to the page of `run` for its options.
    if (page.find("options of `gpurecover run` apply") != std::string_view::npos ||
        page.find("options of\n`gpurecover run` apply") != std::string_view::npos) {
      described.insert(of_run.begin(), of_run.end());
    }
    EXPECT_EQ(described, options) << page.substr(0, page.find('\n'));
  }
}

TEST(Help, EveryVerbHasAPageThatNamesIt) {
  for (const Verb& verb : all_verbs()) {
    const std::string first(verb.name.substr(0, verb.name.find(' ')));
    EXPECT_TRUE(verb.help.starts_with("# gpurecover " + first + "\n")) << verb.name;
    EXPECT_NE(verb.run, nullptr) << verb.name;
  }
}

TEST(Help, ChoicesAreOnThePage) {
  for (const Verb& verb : all_verbs()) {
    if (verb.help.find("Not in this version") != std::string_view::npos) {
      continue;
    }
    for (const Option& option : verb.options) {
      if (verb.name == "inject" &&
          std::any_of(run_option_list().begin(), run_option_list().end(),
                      [&](const Option& other) { return other.names == option.names; })) {
        continue;
      }
      for (const std::string_view choice : option.choices) {
        EXPECT_THAT(std::string(verb.help), HasSubstr("`" + std::string(choice) + "`"))
            << verb.name << " " << option.key();
      }
    }
  }
}

TEST(SplitArguments, CutsAtTheFirstSeparatorOnly) {
  const auto split = split_arguments({"run", "-q", "--", "app", "--", "-x", ""});
  EXPECT_THAT(split.ours, ElementsAre("run", "-q"));
  EXPECT_THAT(split.app, ElementsAre("app", "--", "-x", ""));
  EXPECT_TRUE(split.has_separator);
  EXPECT_FALSE(split_arguments({"run"}).has_separator);
}

const Verb& verb_named(std::string_view name) {
  for (const Verb& verb : all_verbs()) {
    if (verb.name == name) {
      return verb;
    }
  }
  throw std::runtime_error("no such verb");
}

tl::expected<Invocation, std::string> parse_line(const std::string& name,
                                                 const std::vector<std::string>& words) {
  return parse(verb_named(name), split_arguments(words));
}

TEST(Parse, ValuesArriveAsTheyAre) {
  // CLI11 takes '[a,b]' for a list and 'k=v' for a pair unless told otherwise.
  for (const char* value :
       {"[a,b]", "", " ", "a,b", "{x}", "--nth", "-1", "a=b", "'q'", "\xff", "[]", "%%"}) {
    const auto parsed =
        parse_line("inject", {"--kernel", value, "--error", "ecc", "--nth", "2", "--", "app"});
    ASSERT_TRUE(parsed) << value << ": " << parsed.error();
    EXPECT_EQ(parsed->value("--kernel"), value);
    EXPECT_EQ(parsed->count("--nth", 0), 2U);
  }
}

TEST(Parse, EqualsSignAndShortForms) {
  const auto parsed = parse_line("inject", {"-k", "x", "--error=ecc", "-q", "--", "app"});
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_EQ(parsed->value("--kernel"), "x");
  EXPECT_EQ(parsed->value("--error"), "ecc");
  EXPECT_TRUE(parsed->has("--quiet"));
  EXPECT_EQ(parse_line("inject", {"--kernel-name", "y", "--error", "1"})->value("--kernel"), "y");
}

TEST(Parse, RepeatedOptions) {
  const auto parsed = parse_line("classify", {"--xid", "31", "--xid", "94"});
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_THAT(parsed->all("--xid"), ElementsAre("31", "94"));
  EXPECT_FALSE(parse_line("run", {"--name", "a", "--name", "b", "--", "x"}));
}

TEST(Parse, NumbersAreCheckedWhole) {
  for (const char* bad : {"", "x", "1x", " 1", "+1", "-1", "1.5", "18446744073709551616", "0x10"}) {
    EXPECT_FALSE(parse_line("inject", {"-k", "k", "--error", "ecc", "--nth", bad, "--", "a"}))
        << bad;
  }
  for (const char* bad : {"", "x", "inf", "nan", "1e999", "0.5x"}) {
    EXPECT_FALSE(parse_line("inject", {"-k", "k", "--error", "ecc", "--prob", bad, "--", "a"}))
        << bad;
  }
}

TEST(Parse, TheCorrectedCommandIsTheOneMeant) {
  const auto wrong = parse_line("run", {"--report", "r.json", "-v", "my app", "--size", "3"});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error(), HasSubstr("gpurecover run --report r.json -v -- 'my app' --size 3"));
}

TEST(FaultOptions, WhatIsPrintedIsReadBackTheSame) {
  const std::vector<std::vector<std::string>> lines{
      {"-k", "it's", "--error", "ecc"},
      {"-k", "regex:^a b$", "--error", "oom", "--damage", "none", "--every", "3", "--seed", "1"},
      {"-k", "*", "--error", "700", "--prob", "0.015625", "--times", "4", "--strict"},
      {"-k", "x", "--error", "CUDA_ERROR_LAUNCH_FAILED", "--nth", "18446744073709551615"},
  };
  for (const auto& line : lines) {
    const auto first = read_fault(*parse_line("inject", line));
    ASSERT_TRUE(first) << first.error();
    const std::string printed = fault_options(first->fault);
    // As a shell would take it apart.
    std::vector<std::string> words;
    FILE* shell = ::popen(("printf '%s\\n' " + printed).c_str(), "r");
    ASSERT_NE(shell, nullptr);
    char buffer[4096];
    while (std::fgets(buffer, sizeof buffer, shell) != nullptr) {
      words.emplace_back(buffer, std::strlen(buffer) - 1);
    }
    ::pclose(shell);
    const auto invocation = parse_line("inject", words);
    ASSERT_TRUE(invocation) << printed << ": " << invocation.error();
    const auto second = read_fault(*invocation);
    ASSERT_TRUE(second) << printed << ": " << second.error();
    EXPECT_FALSE(second->seed_drawn);
    EXPECT_EQ(fault_options(second->fault), printed);
    EXPECT_EQ(second->fault.kernel, first->fault.kernel);
    EXPECT_EQ(second->fault.code, first->fault.code);
    EXPECT_EQ(second->fault.nth, first->fault.nth);
    EXPECT_EQ(second->fault.times, first->fault.times);
    EXPECT_EQ(second->fault.probability, first->fault.probability);
  }
}

TEST(FaultOptions, Defaults) {
  const auto request =
      read_fault(*parse_line("inject", {"-k", "k", "--error", "ecc", "--", "app"}));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->fault.nth, 1U);
  EXPECT_EQ(request->fault.times, 1U);
  EXPECT_EQ(request->fault.how, inject::How::kCode);
  EXPECT_EQ(request->fault.damage, inject::Damage::kScribble);
  EXPECT_TRUE(request->fault.sticky);
  EXPECT_TRUE(request->seed_drawn);
  EXPECT_EQ(
      read_fault(*parse_line("inject", {"-k", "k", "--error", "ecc", "--every", "2"}))->fault.times,
      0U);
}

TEST(ShellQuote, OnlyWhereNeeded) {
  EXPECT_EQ(shell_join({"a", "b c", "", "it's", "$x", "--k=v", "~"}),
            "a 'b c' '' 'it'\\''s' '$x' --k=v '~'");
}

}  // namespace
}  // namespace gpurecover::cli
