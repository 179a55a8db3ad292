// SPDX-License-Identifier: Apache-2.0
#include "classifier/rules_toml.h"

// toml++ asserts on malformed input that it would refuse properly a few lines on ("[\n["), and with
// NDEBUG it makes the same conditions assumptions, which is undefined behaviour. With both out of
// the way, such input is an ordinary error.
#undef NDEBUG
#define TOML_ASSERT(expr) static_cast<void>(0)
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
// Values of a rule file nest two deep; nodes are destroyed by recursion.
#define TOML_MAX_NESTED_VALUES 16
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <tuple>

#include "classifier/catalogue.h"
#include "classifier/suggest.h"

namespace gpurecover::embedded {
extern const std::string_view default_rules;
}

namespace gpurecover::classifier {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxEntries = 1000;    // of [[rule]], and of [[kernel]]
constexpr std::size_t kMaxDotsPerLine = 64;  // dotted keys nest tables, see above
constexpr std::uint64_t kMaxWindowUs = 3'600'000'000;
constexpr std::int64_t kMaxXid = 999;
constexpr std::uint32_t kDefaultAttempts = 1;

using Words = std::vector<std::string_view>;

const Words kTopKeys{"schema", "idempotency", "rule", "kernel"};
const Words kIdempotencyKeys{"trust"};
const Words kRuleKeys{"id",           "match",   "class",   "scope", "action",
                      "max_attempts", "backoff", "message", "source"};
const Words kMatchKeys{"cuda", "xid", "kernel", "phase", "window"};
const Words kKernelKeys{"name", "reads", "writes", "idempotent"};

// Text of the file inside a message: one line, no control characters, bounded.
std::string shown(std::string_view text) {
  constexpr std::size_t kMax = 100;
  std::string out;
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  // Not in the middle of a character.
  if (text.size() > kMax) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80)
      out.pop_back();
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xc0)
      out.pop_back();
    out += "...";
  }
  return out;
}

std::string quoted(std::string_view text) {
  return "'" + shown(text) + "'";
}

std::string list_of(const Words& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i)
    out.append(i == 0 ? "" : i + 1 == words.size() ? " or " : ", ").append(words[i]);
  return out;
}

std::string instead(std::string_view word, const Words& valid) {
  const std::string_view near = nearest(word, valid);
  return near.empty() ? "; valid: " + list_of(valid)
                      : "; did you mean '" + std::string(near) + "'?";
}

std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return node.is_array_of_tables() ? "an array of tables" : "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a float";
    case toml::node_type::boolean:
      return "a boolean";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
    case toml::node_type::none:
      break;
  }
  return "nothing";
}

struct Place {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
};

Place place(const toml::source_region& source) {
  return {std::max<std::uint32_t>(source.begin.line, 1),
          std::max<std::uint32_t>(source.begin.column, 1)};
}
Place place(const toml::node& node) {
  return place(node.source());
}

bool valid_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  ParsedRules read(std::string_view text) {
    if (text_is_readable(text)) {
      const toml::parse_result result = toml::parse(text);
      if (result)
        document(result.table());
      else
        report(place(result.error().source()), syntax_error(result.error().description()));
    }
    std::stable_sort(out_.problems.begin(), out_.problems.end(),
                     [](const Problem& a, const Problem& b) {
                       return std::tie(a.line, a.column) < std::tie(b.line, b.column);
                     });
    return std::move(out_);
  }

 private:
  void report(Place at, std::string what) {
    out_.problems.push_back({std::string(file_), at.line, at.column, std::move(what)});
  }

  // Refuses what the parser could not take in bounded time and stack.
  bool text_is_readable(std::string_view text) {
    if (text.size() > kMaxFileBytes)
      return report({}, "the file is larger than 1 MiB"), false;
    std::uint32_t line = 1;
    std::size_t dots = 0;
    for (const char c : text) {
      if (c == '\n') {
        ++line;
        dots = 0;
      } else if (c == '.' && ++dots > kMaxDotsPerLine) {
        return report({line, 1}, "more than 64 dots in one line"), false;
      }
    }
    return true;
  }

  // The key in its own table: "kernel" for "match.kernel", which is how messages call it.
  static std::string_view leaf(std::string_view key) {
    return key.substr(key.starts_with("match.") ? 6 : 0);
  }

  static std::string syntax_error(std::string_view description) {
    if (description.find("TOML_MAX_NESTED_VALUES") != std::string_view::npos)
      return "values nested more than 16 deep";
    return "not valid TOML: " + shown(description);
  }

  void check_keys(const toml::table& table, const Words& valid, std::string_view in) {
    for (const auto& [key, node] : table) {
      const std::string_view word = key.str();
      if (std::find(valid.begin(), valid.end(), word) == valid.end())
        report(place(key.source()), "unknown key " + quoted(word) + (in.empty() ? "" : " in ") +
                                        std::string(in) + instead(word, valid));
    }
  }

  template <class T>
  auto typed(const toml::node* node, std::string_view key, std::string_view wanted)
      -> decltype(node->as<T>()) {
    if (!node)
      return nullptr;
    if (const auto* value = node->as<T>())
      return value;
    report(place(*node), quoted(key) + " must be " + std::string(wanted) + ", not " +
                             std::string(type_name(*node)));
    return nullptr;
  }

  std::optional<std::string> text_of(const toml::table& table, std::string_view key) {
    const auto* value = typed<std::string>(table.get(leaf(key)), key, "a string");
    if (!value)
      return std::nullopt;
    return value->get();
  }

  template <class Enum>
  std::optional<Enum> word_of(const toml::node& node, std::string_view key,
                              std::string_view wanted = "a string") {
    const auto* text = typed<std::string>(&node, key, wanted);
    if (!text)
      return std::nullopt;
    const auto value = from_word<Enum>(text->get());
    if (!value)
      report(place(node), "unknown " + std::string(leaf(key)) + " " + quoted(text->get()) +
                              instead(text->get(), words_of<Enum>()));
    return value;
  }

  template <class Enum>
  std::optional<Enum> word_of(const toml::table& table, std::string_view key) {
    const toml::node* node = table.get(leaf(key));
    return node ? word_of<Enum>(*node, key) : std::nullopt;
  }

  std::optional<std::uint64_t> duration(const toml::table& table, std::string_view key,
                                        std::uint64_t limit) {
    const toml::node* node = table.get(leaf(key));
    const auto* text =
        typed<std::string>(node, key, "a duration in quotes, such as \"10ms\" or \"1s\"");
    if (!text)
      return std::nullopt;
    const auto value = parse_duration(text->get(), limit);
    if (!value) {
      report(place(*node), quoted(key) + ": " + value.error());
      return std::nullopt;
    }
    return *value;
  }

  std::optional<std::string> pattern(const toml::table& table, std::string_view key) {
    const auto text = text_of(table, key);
    if (!text)
      return std::nullopt;
    const auto compiled = Pattern::compile(*text);
    if (!compiled) {
      report(place(*table.get(leaf(key))),
             quoted(key) + ": " + shown(compiled.error().what) + " (at character " +
                 std::to_string(compiled.error().offset + 1) + " of " + quoted(*text) + ")");
      return std::nullopt;
    }
    return text;
  }

  void document(const toml::table& root) {
    check_keys(root, kTopKeys, "");
    if (const toml::node* schema = root.get("schema")) {
      const auto* number = typed<std::int64_t>(schema, "schema", "the integer 1");
      if (number && number->get() != 1)
        report(place(*schema), "schema " + std::to_string(number->get()) +
                                   " is not known; this version reads schema = 1");
    } else {
      report({}, "'schema' is missing; begin the file with: schema = 1");
    }
    if (const auto* table =
            typed<toml::table>(root.get("idempotency"), "idempotency", "a table: [idempotency]"))
      idempotency(*table);

    each(root, "rule", [this](const toml::table& table) { rule(table); });
    each(root, "kernel", [this](const toml::table& table) { kernel(table); });
    find_unreachable();
  }

  template <class Function>
  void each(const toml::table& root, std::string_view key, Function function) {
    const std::string wanted = "an array of tables: [[" + std::string(key) + "]]";
    const auto* array = typed<toml::array>(root.get(key), key, wanted);
    if (!array)
      return;
    std::size_t count = 0;
    for (const toml::node& node : *array) {
      if (++count > kMaxEntries)
        return report(place(node), "more than 1000 [[" + std::string(key) + "]] in one file");
      if (const auto* table = typed<toml::table>(&node, key, wanted))
        function(*table);
    }
  }

  void idempotency(const toml::table& table) {
    check_keys(table, kIdempotencyKeys, "[idempotency]");
    const auto* list = typed<toml::array>(table.get("trust"), "trust", "an array of words");
    if (!list)
      return;
    out_.has_trust = true;
    out_.rules.trust.clear();
    for (const toml::node& node : *list) {
      const auto value = word_of<Trust>(node, "trust", "an array of words");
      if (!value)
        continue;
      if (out_.rules.trusts(*value))
        report(place(node), quoted(to_string(*value)) + " is listed twice");
      else
        out_.rules.trust.push_back(*value);
    }
  }

  void codes(const toml::table& table, Rule& rule) {
    const toml::node* list_node = table.get("cuda");
    const auto* list =
        typed<toml::array>(list_node, "match.cuda",
                           "an array of names or numbers, such as [\"CUDA_ERROR_ASSERT\", 700]");
    if (!list)
      return;
    if (list->empty())
      report(place(*list_node),
             "'match.cuda' is empty and matches nothing; leave it out to match "
             "every error");
    for (const toml::node& node : *list) {
      const CodeInfo* info = nullptr;
      if (const auto* number = node.as<std::int64_t>()) {
        if (number->get() >= 0 && number->get() <= 100'000)
          info = find_code(static_cast<std::int32_t>(number->get()));
        if (!info) {
          report(place(node), "no CUDA error has the number " + std::to_string(number->get()));
          continue;
        }
      } else if (const auto* name = node.as<std::string>()) {
        info = find_code(std::string_view(name->get()));
        if (!info) {
          const std::string_view near = nearest_code_name(name->get());
          report(place(node), "no CUDA error has the name " + quoted(name->get()) +
                                  (near.empty() ? "; the names are as in cuda.h, such as "
                                                  "CUDA_ERROR_ECC_UNCORRECTABLE"
                                                : "; did you mean '" + std::string(near) + "'?"));
          continue;
        }
      } else {
        report(place(node), "'match.cuda' holds names or numbers of CUDA errors, not " +
                                std::string(type_name(node)));
        continue;
      }
      const std::string name = std::string(info->name()) + " (" + std::to_string(info->code) + ")";
      if (info->code == 0)
        report(place(node), name + " is success; no rule is asked about it");
      else if (std::find(rule.codes.begin(), rule.codes.end(), info->code) != rule.codes.end())
        report(place(node), name + " is listed twice");
      else
        code_places_.emplace_back(info, place(node)), rule.codes.push_back(info->code);
    }
  }

  void xids(const toml::table& table, Rule& rule) {
    const toml::node* list_node = table.get("xid");
    const auto* list =
        typed<toml::array>(list_node, "match.xid", "an array of numbers, such as [94]");
    if (!list)
      return;
    if (list->empty())
      report(place(*list_node),
             "'match.xid' is empty and matches nothing; leave it out if no Xid "
             "is needed");
    for (const toml::node& node : *list) {
      const auto* number = typed<std::int64_t>(&node, "match.xid", "an array of numbers");
      if (!number)
        continue;
      const std::int64_t xid = number->get();
      if (xid < 1 || xid > kMaxXid)
        report(place(node), std::to_string(xid) + " is no Xid; they are from 1 to 999");
      else if (std::find(rule.xids.begin(), rule.xids.end(), xid) != rule.xids.end())
        report(place(node), "Xid " + std::to_string(xid) + " is listed twice");
      else
        rule.xids.push_back(static_cast<std::int32_t>(xid));
    }
  }

  void rule(const toml::table& table) {
    const Place here = place(table);
    const std::size_t problems_before = out_.problems.size();
    Rule rule;
    rule.file = file_;
    rule.line = here.line;
    code_places_.clear();
    check_keys(table, kRuleKeys, "[[rule]]");

    if (!table.contains("id")) {
      report(here, "this [[rule]] has no 'id'; give it a name of its own: id = \"...\"");
    } else if (auto id = text_of(table, "id")) {
      const Place at = place(*table.get("id"));
      if (!valid_id(*id))
        report(at,
               "id " + quoted(*id) + " is not made of 1 to 64 letters, digits, '-', '_' and '.'");
      else if (*id == "none")
        report(at, "id 'none' stands for no rule in reports; choose another");
      else if (const auto taken = std::find_if(out_.rules.rules.begin(), out_.rules.rules.end(),
                                               [&](const Rule& r) { return r.id == *id; });
               taken != out_.rules.rules.end())
        report(at, "id " + quoted(*id) + " is taken by the rule in line " +
                       std::to_string(taken->line) + "; choose another");
      rule.id = *std::move(id);
    }

    const toml::table* match =
        typed<toml::table>(table.get("match"), "match", "a table: match.cuda = [...]");
    if (match) {
      check_keys(*match, kMatchKeys, "'match'");
      codes(*match, rule);
      xids(*match, rule);
      if (auto text = pattern(*match, "match.kernel"))
        rule.kernel = *std::move(text);
      rule.phase = word_of<Phase>(*match, "match.phase");
      if (const auto window = duration(*match, "match.window", kMaxWindowUs))
        rule.window_us = *window;
      if (match->contains("window") && !match->contains("xid"))
        report(place(*match->get("window")),
               "'match.window' says how long an Xid counts; without 'match.xid' it has no effect");
    }

    rule.cls = word_of<Class>(table, "class");
    rule.scope = word_of<Scope>(table, "scope");
    for (std::string_view key : {"message", "source"})
      if (auto text = text_of(table, key))
        (key == "message" ? rule.message : rule.source) = *std::move(text);

    if (!table.contains("action")) {
      report(here, "this [[rule]] has no 'action'; it is one of " + list_of(words_of<Action>()));
    } else if (const auto value = word_of<Action>(table, "action")) {
      rule.action = *value;
      action(table, match, rule);
    }
    // A rule with problems is kept for messages, but is no ground to call others unreachable.
    sound_.push_back(out_.problems.size() == problems_before);
    out_.rules.rules.push_back(std::move(rule));
  }

  // What the action asks of the rest of the rule.
  void action(const toml::table& table, const toml::table* match, Rule& rule) {
    const Place at = place(*table.get("action"));
    const std::string name = quoted(to_string(rule.action));
    const bool again = rule.action == Action::replay || rule.action == Action::retry;
    if (again)
      rule.max_attempts = kDefaultAttempts;
    if (const toml::node* node = table.get("max_attempts")) {
      const auto* number = typed<std::int64_t>(node, "max_attempts", "an integer");
      if (number && !again)
        report(place(*node), "'max_attempts' has no effect with action " + name + "; leave it out");
      else if (number && (number->get() < 1 || number->get() > std::int64_t{kMaxAttempts}))
        report(place(*node),
               "'max_attempts' is from 1 to 100, not " + std::to_string(number->get()) +
                   (number->get() == 0 ? "; for none, write action = \"return\"" : ""));
      else if (number)
        rule.max_attempts = static_cast<std::uint32_t>(number->get());
    }
    if (const auto backoff = duration(table, "backoff", kMaxBackoffUs)) {
      if (!again)
        report(place(*table.get("backoff")),
               "'backoff' has no effect with action " + name + "; leave it out");
      else
        rule.backoff_us = *backoff;
    }

    if (rule.action == Action::replay && rule.phase == Phase::launch)
      report(at,
             "'replay' is for the run phase, and this rule is for the launch phase only; write "
             "action = \"retry\"");
    if (rule.action == Action::retry && rule.phase == Phase::run)
      report(at,
             "'retry' is for the launch phase, and this rule is for the run phase only; write "
             "action = \"replay\"");
    for (const auto& [info, code_at] : code_places_) {
      const std::string code = std::string(info->name()) + " (" + std::to_string(info->code) + ")";
      if (info->sticky != Sticky::no && effective_phase(rule) == Phase::launch)
        report(code_at, code +
                            " is sticky and always of the run phase: this rule never matches it" +
                            (rule.action == Action::retry && !(match && match->contains("phase"))
                                 ? "; write action = \"replay\""
                                 : ""));
      else if (info->nature == Nature::none && again)
        report(code_at, code + " is not an error; there is nothing to " +
                            std::string(to_string(rule.action)));
    }
  }

  void arguments(const toml::table& table, std::string_view key, std::vector<ArgRef>& out) {
    const auto* list =
        typed<toml::array>(table.get(key), key, "an array of arguments, such as [\"arg0\"]");
    if (!list)
      return;
    for (const toml::node& node : *list) {
      const auto* text = typed<std::string>(&node, key, "an array of strings");
      if (!text)
        continue;
      auto ref = parse_arg_ref(text->get());
      if (!ref)
        report(place(node), shown_error(ref.error()));
      else if (std::find(out.begin(), out.end(), *ref) != out.end())
        report(place(node), quoted(text->get()) + " is listed twice");
      else
        out.push_back(*std::move(ref));
    }
  }

  // parse_arg_ref quotes the file's text as it is.
  static std::string shown_error(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); i += 100)
      out += shown(std::string_view(text).substr(i, 100));
    return out;
  }

  void kernel(const toml::table& table) {
    const Place here = place(table);
    const std::size_t problems_before = out_.problems.size();
    KernelFact fact;
    fact.file = file_;
    fact.line = here.line;
    check_keys(table, kKernelKeys, "[[kernel]]");
    if (!table.contains("name"))
      report(here, "this [[kernel]] has no 'name'; give a base name, \"regex:...\" or \"*\"");
    else if (auto name = pattern(table, "name"))
      fact.name = *std::move(name);
    arguments(table, "reads", fact.reads);
    arguments(table, "writes", fact.writes);
    if (const auto* value = typed<bool>(table.get("idempotent"), "idempotent", "true or false"))
      fact.idempotent = value->get();

    const bool ranges = table.contains("reads") || table.contains("writes");
    if (table.contains("idempotent") && ranges)
      report(place(*table.get("idempotent")),
             "'idempotent' stands instead of 'reads' and 'writes', not beside them; leave one out");
    else if (!table.contains("idempotent") && !ranges)
      report(here, "this [[kernel]] declares nothing; give 'reads' and 'writes', or 'idempotent'");
    else if (ranges && !table.contains("writes"))
      report(place(*table.get("reads")),
             "'reads' without 'writes'; list what the kernel writes (writes = [] if nothing)");

    if (out_.problems.size() != problems_before)
      return;
    const auto own = Pattern::compile(fact.name);
    for (std::size_t i = 0; i < out_.rules.kernels.size(); ++i) {
      const KernelFact& earlier = out_.rules.kernels[i];
      const Pattern& other = fact_patterns_[i];
      if (other.matches_everything() || earlier.name == fact.name ||
          (own && own->is_exact() && other.matches(fact.name))) {
        report(here, "this [[kernel]] is never used: the one in line " +
                         std::to_string(earlier.line) +
                         " matches all that it matches; move it up "
                         "or remove it");
        return;
      }
    }
    fact_patterns_.push_back(own ? *own : Pattern());
    out_.rules.kernels.push_back(std::move(fact));
  }

  void find_unreachable() {
    Coverage coverage;
    for (std::size_t i = 0; i < out_.rules.rules.size(); ++i) {
      if (!sound_[i])
        continue;
      const Rule& rule = out_.rules.rules[i];
      if (const Rule* by = coverage.covering(rule))
        report({rule.line, 1},
               "rule " + quoted(rule.id) +
                   " is unreachable: earlier rules take all that it matches, the first of them " +
                   quoted(by->id) + " in line " + std::to_string(by->line) +
                   "; move it up or remove it");
      coverage.add(rule);
    }
  }

  std::string file_;
  ParsedRules out_;
  std::vector<bool> sound_;                                     // of each rule: no problem in it
  std::vector<std::pair<const CodeInfo*, Place>> code_places_;  // of the rule being read
  std::vector<Pattern> fact_patterns_;
};

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class List, class Function>
std::string toml_array(const List& list, Function function) {
  std::string out = "[";
  for (std::size_t i = 0; i < list.size(); ++i)
    out += (i == 0 ? "" : ", ") + function(list[i]);
  return out + "]";
}

bool includes(const std::vector<std::int32_t>& all, const std::vector<std::int32_t>& part) {
  return std::all_of(part.begin(), part.end(), [&](std::int32_t value) {
    return std::find(all.begin(), all.end(), value) != all.end();
  });
}

}  // namespace

std::string to_string(const Problem& problem) {
  return problem.file + ":" + std::to_string(problem.line) + ":" + std::to_string(problem.column) +
         ": " + problem.what;
}

ParsedRules parse_rules(std::string_view text, std::string_view file) {
  return Reader(file).read(text);
}

std::string_view default_rules_text() {
  return embedded::default_rules;
}

const RuleSet& default_rules() {
  static const RuleSet rules = parse_rules(default_rules_text(), kDefaultRulesName).rules;
  return rules;
}

void Coverage::add(const Rule& rule) {
  auto pattern = Pattern::compile(rule.kernel);
  entries_.push_back({&rule, pattern ? std::optional(*std::move(pattern)) : std::nullopt});
}

const Rule* Coverage::covering(const Rule& later) const {
  const auto own = Pattern::compile(later.kernel);
  // The rules that cover `later` but perhaps for some codes and phases.
  std::vector<const Rule*> candidates;
  for (const Entry& entry : entries_) {
    const Rule& earlier = *entry.rule;
    if (!entry.pattern)
      continue;
    const bool kernel = entry.pattern->matches_everything() || earlier.kernel == later.kernel ||
                        (own && own->is_exact() && entry.pattern->matches(later.kernel));
    const bool xid =
        earlier.xids.empty() || (!later.xids.empty() && includes(earlier.xids, later.xids) &&
                                 earlier.window_us >= later.window_us);
    if (kernel && xid)
      candidates.push_back(&earlier);
  }
  if (candidates.empty())
    return nullptr;

  const Rule* first = nullptr;
  const auto taken = [&](std::optional<std::int32_t> code, Phase phase) {
    for (const Rule* earlier : candidates) {
      const auto theirs = effective_phase(*earlier);
      const bool has_code =
          earlier->codes.empty() || (code && std::find(earlier->codes.begin(), earlier->codes.end(),
                                                       *code) != earlier->codes.end());
      if (has_code && (!theirs || *theirs == phase)) {
        if (!first)
          first = earlier;
        return true;
      }
    }
    return false;
  };
  const auto phase = effective_phase(later);
  const auto all_phases_taken = [&](std::optional<std::int32_t> code) {
    for (const Phase p : {Phase::launch, Phase::run}) {
      if (phase && *phase != p)
        continue;
      if (p == Phase::launch && code && is_sticky(*code))
        continue;  // does not occur
      if (!taken(code, p))
        return false;
    }
    return true;
  };
  if (later.codes.empty())
    return all_phases_taken(std::nullopt) ? first : nullptr;
  for (const std::int32_t code : later.codes)
    if (!all_phases_taken(code))
      return nullptr;
  return first;
}

RuleSet combine(const ParsedRules& user, const RuleSet& built_in) {
  RuleSet out = user.rules;
  if (!user.has_trust)
    out.trust = built_in.trust;
  Coverage coverage;
  for (const Rule& rule : user.rules.rules)
    coverage.add(rule);
  for (const Rule& rule : built_in.rules) {
    const bool replaced = std::any_of(user.rules.rules.begin(), user.rules.rules.end(),
                                      [&](const Rule& own) { return own.id == rule.id; });
    if (replaced || coverage.covering(rule))
      continue;
    coverage.add(rule);
    out.rules.push_back(rule);
  }
  out.kernels.insert(out.kernels.end(), built_in.kernels.begin(), built_in.kernels.end());
  return out;
}

std::string dump(const RuleSet& rules, bool show_origin) {
  const auto quote_word = [](auto value) { return toml_string(to_string(value)); };
  const auto origin = [&](const std::string& file, std::uint32_t line) {
    return show_origin && !file.empty() ? "# " + shown(file) + ":" + std::to_string(line) + "\n"
                                        : std::string();
  };
  std::string out =
      "schema = 1\n\n[idempotency]\ntrust = " + toml_array(rules.trust, quote_word) + "\n";
  for (const Rule& rule : rules.rules) {
    out += "\n" + origin(rule.file, rule.line) + "[[rule]]\nid = " + toml_string(rule.id) + "\n";
    if (!rule.codes.empty())
      out +=
          "match.cuda = " +
          toml_array(rule.codes,
                     [](std::int32_t code) {
                       return find_code(code) ? toml_string(code_name(code)) : std::to_string(code);
                     }) +
          "\n";
    if (!rule.xids.empty())
      out += "match.xid = " +
             toml_array(rule.xids, [](std::int32_t xid) { return std::to_string(xid); }) + "\n";
    if (rule.kernel != "*")
      out += "match.kernel = " + toml_string(rule.kernel) + "\n";
    if (rule.phase)
      out += "match.phase = " + quote_word(*rule.phase) + "\n";
    if (rule.window_us != kDefaultWindowUs)
      out += "match.window = " + toml_string(format_duration(rule.window_us)) + "\n";
    if (rule.cls)
      out += "class = " + quote_word(*rule.cls) + "\n";
    if (rule.scope)
      out += "scope = " + quote_word(*rule.scope) + "\n";
    out += "action = " + quote_word(rule.action) + "\n";
    if (rule.action == Action::replay || rule.action == Action::retry)
      out += "max_attempts = " + std::to_string(rule.max_attempts) + "\n";
    if (rule.backoff_us != 0)
      out += "backoff = " + toml_string(format_duration(rule.backoff_us)) + "\n";
    if (!rule.message.empty())
      out += "message = " + toml_string(rule.message) + "\n";
    if (!rule.source.empty())
      out += "source = " + toml_string(rule.source) + "\n";
  }
  const auto arg = [](const ArgRef& ref) { return toml_string(to_string(ref)); };
  for (const KernelFact& fact : rules.kernels) {
    out +=
        "\n" + origin(fact.file, fact.line) + "[[kernel]]\nname = " + toml_string(fact.name) + "\n";
    if (fact.idempotent) {
      out += std::string("idempotent = ") + (*fact.idempotent ? "true" : "false") + "\n";
    } else {
      out += "reads = " + toml_array(fact.reads, arg) + "\n";
      out += "writes = " + toml_array(fact.writes, arg) + "\n";
    }
  }
  return out;
}

tl::expected<std::uint64_t, std::string> parse_duration(std::string_view text,
                                                        std::uint64_t limit_us) {
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::uint64_t scale = unit == "us"   ? 1
                              : unit == "ms" ? 1'000
                              : unit == "s"  ? 1'000'000
                              : unit == "m"  ? 60'000'000
                                             : 0;
  if (error == std::errc::result_out_of_range || (scale != 0 && count > limit_us / scale))
    return tl::unexpected(quoted(text) + " is more than " + format_duration(limit_us));
  if (error != std::errc() || scale == 0)
    return tl::unexpected(quoted(text) +
                          " is no duration; write a whole number and us, ms, s or m, such as "
                          "\"10ms\"");
  return count * scale;
}

std::string format_duration(std::uint64_t us) {
  if (us != 0 && us % 60'000'000 == 0)
    return std::to_string(us / 60'000'000) + "m";
  if (us != 0 && us % 1'000'000 == 0)
    return std::to_string(us / 1'000'000) + "s";
  if (us != 0 && us % 1'000 == 0)
    return std::to_string(us / 1'000) + "ms";
  return std::to_string(us) + (us == 0 ? "s" : "us");
}

}  // namespace gpurecover::classifier
