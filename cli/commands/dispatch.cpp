// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/commands/commands.h"
#include "cli/exit_codes.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/version.h"

namespace gpurecover::cli {
namespace {

int print_help(std::string_view text) {
  return print(text) ? kOk : kOurError;
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

// The first word of each verb, once.
std::vector<std::string_view> first_words() {
  std::vector<std::string_view> out;
  for (const Verb& verb : all_verbs()) {
    const std::string_view first = verb.name.substr(0, verb.name.find(' '));
    if (out.empty() || out.back() != first) {
      out.push_back(first);
    }
  }
  return out;
}

int unknown_verb(const SplitArguments& words) {
  const std::string& word = words.ours.front();
  if (word.starts_with("-")) {
    return fail("unknown option '" + word + "'; see `gpurecover --help`");
  }
  const std::string near = did_you_mean(word, first_words());
  if (!near.empty()) {
    return fail("unknown command '" + word + "'" + near);
  }
  std::vector<std::string> app = words.ours;
  app.insert(app.end(), words.app.begin(), words.app.end());
  return fail("unknown command '" + word + "'; to run a program: gpurecover run -- " +
              shell_join(app));
}

}  // namespace

const std::vector<Verb>& all_verbs() {
  static const std::vector<Verb> verbs = [] {
    std::vector<Verb> out{run_verb(), inject_verb(), verify_verb(), analyze_verb(),
                          classify_verb()};
    for (Verb& verb : rules_verbs()) {
      out.push_back(std::move(verb));
    }
    for (Verb& verb :
         std::vector<Verb>{campaign_verb(), report_verb(), status_verb(), doctor_verb()}) {
      out.push_back(std::move(verb));
    }
    return out;
  }();
  return verbs;
}

int dispatch(const std::vector<std::string>& arguments) {
  SplitArguments words = split_arguments(arguments);
  if (words.ours.empty()) {
    if (words.has_separator && !words.app.empty()) {
      return fail("what to do with the program? gpurecover run -- " + shell_join(words.app));
    }
    Output().error("what to do?");
    return fail(help::gpurecover);
  }
  std::string name = words.ours.front();
  if (name == "--version" || name == "-V") {
    return print("gpurecover " + std::string(version()) + "\n") ? kOk : kOurError;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    if (words.ours.size() == 1) {
      return print_help(help::gpurecover);
    }
    words.ours.erase(words.ours.begin());
    words.ours.emplace_back("--help");
    name = words.ours.front();
  }
  const auto& verbs = all_verbs();
  const auto with_first_word = [&](const Verb& verb) {
    return verb.name.substr(0, verb.name.find(' ')) == name;
  };
  auto verb = std::find_if(verbs.begin(), verbs.end(), with_first_word);
  if (verb == verbs.end()) {
    return unknown_verb(words);
  }
  words.ours.erase(words.ours.begin());
  if (asks_for_help(words.ours)) {
    return print_help(verb->help);
  }
  if (verb->name.find(' ') != std::string_view::npos) {
    std::vector<std::string_view> seconds;
    std::string list;
    for (const Verb& other : verbs) {
      if (with_first_word(other)) {
        seconds.push_back(other.name.substr(name.size() + 1));
        list += (list.empty() ? "" : ", ") + std::string(seconds.back());
      }
    }
    if (words.ours.empty()) {
      return fail("`gpurecover " + name + "` needs one of " + list);
    }
    const std::string full = name + " " + words.ours.front();
    verb = std::find_if(verbs.begin(), verbs.end(),
                        [&](const Verb& other) { return other.name == full; });
    if (verb == verbs.end()) {
      return fail("unknown command '" + full + "'" + did_you_mean(words.ours.front(), seconds) +
                  "; `gpurecover " + name + "` needs one of " + list);
    }
    words.ours.erase(words.ours.begin());
  }
  const auto invocation = parse(*verb, words);
  if (!invocation) {
    return fail(invocation.error());
  }
  return verb->run(*invocation);
}

}  // namespace gpurecover::cli
