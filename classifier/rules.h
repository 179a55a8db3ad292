// SPDX-License-Identifier: Apache-2.0
// Rules as data, and the decision that they give for one failed launch.
//
// This half of the classifier is linked into the injected agent: no TOML, no file access, nothing
// thrown out of it except std::bad_alloc, and safe on any content of a RuleSet, however it came.
// All functions are pure; objects may be read from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace gpurecover::classifier {

// What a fault is held to come from.
enum class Class : std::uint8_t { hardware, program, resource, environment, consequence };
// What is lost by it.
enum class Scope : std::uint8_t { launch, context, device, node };
// What is done about it. `replay` is for the run phase (the kernel may have run in part), `retry`
// for the launch phase (it never ran); `stop` is `return_` and no further recovery in the session.
enum class Action : std::uint8_t { replay, retry, return_, stop };
enum class Phase : std::uint8_t { launch, run };
// How an idempotency verdict was reached; see `[idempotency] trust`.
enum class Trust : std::uint8_t { proved, bounded, declared, observed };

// The words of the rule file ("return", not "return_"); "?" for a value outside the enum.
std::string_view to_string(Class value);
std::string_view to_string(Scope value);
std::string_view to_string(Action value);
std::string_view to_string(Phase value);
std::string_view to_string(Trust value);

// All words of one enum, in the order of its values.
template <class Enum>
const std::vector<std::string_view>& words_of();

// The value of a word; nothing if there is none such. Instantiated for the five enums above.
template <class Enum>
std::optional<Enum> from_word(std::string_view word);

inline constexpr std::uint64_t kDefaultWindowUs = 5'000'000;  // before the error
inline constexpr std::int64_t kWindowAfterUs = 1'000'000;     // after the error, not configurable
inline constexpr std::uint32_t kMaxAttempts = 100;
inline constexpr std::uint64_t kMaxBackoffUs = 600'000'000;  // of one wait, doubling included

// One [[rule]]. `fields` hands every member to an archive, so that one codec outside this component
// can carry rules over a socket in either direction.
struct Rule {
  std::string id;
  std::vector<std::int32_t> codes;  // CUDA error numbers; empty: any
  std::vector<std::int32_t> xids;   // at least one must have been seen; empty: not asked
  std::string kernel = "*";         // a Pattern
  // Absent: run for `replay`, launch for `retry`, both for the others (see effective_phase).
  std::optional<Phase> phase;
  // Absent: what the catalogue says of the code in question.
  std::optional<Class> cls;
  std::optional<Scope> scope;
  Action action = Action::return_;
  std::uint32_t max_attempts = 0;  // re-executions per fault, the first run not counted
  std::uint64_t backoff_us = 0;    // wait before the first re-execution; doubled for each further
  std::uint64_t window_us = kDefaultWindowUs;  // how long before the error an Xid still counts
  std::string message;
  std::string source;  // where the knowledge comes from
  std::string file;    // origin, for messages
  std::uint32_t line = 0;

  template <class Archive>
  void fields(Archive& a) {
    a(id);
    a(codes);
    a(xids);
    a(kernel);
    a(phase);
    a(cls);
    a(scope);
    a(action);
    a(max_attempts);
    a(backoff_us);
    a(window_us);
    a(message);
    a(source);
    a(file);
    a(line);
  }
  bool operator==(const Rule&) const = default;
};

// The memory behind a kernel argument: `arg1`, `arg1[0:4096]`, `arg2.field@16`, `arg2.p@8[0:64]`.
struct ArgRef {
  std::uint32_t index = 0;  // position of the kernel parameter, from 0
  // The pointer is a member of a struct passed by value: its byte offset there, and its name, which
  // is for the reader only.
  std::optional<std::uint32_t> field_offset;
  std::string field;
  // Bytes [begin, end) from the pointer's value; absent: its whole allocation.
  std::optional<std::uint64_t> begin;
  std::optional<std::uint64_t> end;

  template <class Archive>
  void fields(Archive& a) {
    a(index);
    a(field_offset);
    a(field);
    a(begin);
    a(end);
  }
  bool operator==(const ArgRef&) const = default;
};

tl::expected<ArgRef, std::string> parse_arg_ref(std::string_view text);
std::string to_string(const ArgRef& ref);

// One [[kernel]]: what its author declares of it. Either reads and writes, from which the verdict
// follows, or `idempotent`.
struct KernelFact {
  std::string name;  // a Pattern
  std::vector<ArgRef> reads;
  std::vector<ArgRef> writes;
  std::optional<bool> idempotent;
  std::string file;
  std::uint32_t line = 0;

  template <class Archive>
  void fields(Archive& a) {
    a(name);
    a(reads);
    a(writes);
    a(idempotent);
    a(file);
    a(line);
  }
  bool operator==(const KernelFact&) const = default;
};

struct RuleSet {
  std::vector<Trust> trust{Trust::proved, Trust::bounded, Trust::declared};
  std::vector<Rule> rules;
  std::vector<KernelFact> kernels;

  bool trusts(Trust value) const;

  template <class Archive>
  void fields(Archive& a) {
    a(trust);
    a(rules);
    a(kernels);
  }
  bool operator==(const RuleSet&) const = default;
};

struct PatternError {
  std::size_t offset = 0;  // byte in the pattern's text
  std::string what;
};

// A kernel pattern: an exact base name (see kernel_name.h), `regex:` and a POSIX extended regular
// expression that is searched for in the base name, or `*`.
class Pattern {
 public:
  // Refuses what could make matching slow or deep: expressions of more than 512 bytes, deep
  // nesting, large repetition counts, back-references.
  static tl::expected<Pattern, PatternError> compile(std::string_view text);

  // Costs a comparison, or one regexec: callers keep the answer per kernel.
  bool matches(std::string_view base_name) const;
  bool matches_everything() const { return kind_ == Kind::any; }
  bool is_exact() const { return kind_ == Kind::exact; }
  const std::string& text() const { return text_; }

 private:
  enum class Kind : std::uint8_t { any, exact, regex };
  struct Regex;
  Kind kind_ = Kind::any;
  std::string text_;
  std::shared_ptr<const Regex> regex_;
};

struct SeenXid {
  std::int32_t xid = 0;
  std::int64_t at_us = 0;  // relative to the error; negative: before it
};

struct Query {
  std::int32_t code = 0;
  Phase phase = Phase::run;
  std::string_view kernel;  // base name; empty if not known: then only `*` matches
  std::vector<SeenXid> xids;
};

// A decision. Always one: where no rule matches, the error is returned.
struct Match {
  const Rule* rule = nullptr;  // null: no rule matched; else points into the rule set asked
  Class cls = Class::program;
  Scope scope = Scope::launch;
  Action action = Action::return_;
  std::uint32_t max_attempts = 0;
  std::uint64_t backoff_us = 0;

  std::string_view rule_id() const { return rule ? std::string_view(rule->id) : "none"; }
  std::string_view message() const { return rule ? std::string_view(rule->message) : ""; }
  // Microseconds to wait before re-execution `attempt` (from 1): backoff_us, doubled each time.
  std::uint64_t wait_us(std::uint32_t attempt) const;
};

// The phase that a rule asks for: its own, or else the one that its action is for.
std::optional<Phase> effective_phase(const Rule& rule);

// Why a rule does not match, or that it does; the order is the one in which they are tested.
enum class Mismatch : std::uint8_t { none, code, phase, kernel, xid };
// A rule whose pattern does not compile is held to match, see match().
Mismatch compare(const Rule& rule, const Query& query);

// The first rule that matches wins whole. A rule that matches but whose kernel pattern does not
// compile gives the safe decision: return. The result points into `rules`.
Match match(const RuleSet& rules, const Query& query);

// The first [[kernel]] whose name matches, or null.
const KernelFact* find_fact(const RuleSet& rules, std::string_view base_name);

}  // namespace gpurecover::classifier
