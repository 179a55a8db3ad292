// SPDX-License-Identifier: Apache-2.0
#include <regex.h>

#include <cstddef>

#include "classifier/rules.h"

namespace gpurecover::classifier {
namespace {

constexpr std::string_view kRegexPrefix = "regex:";
constexpr std::size_t kMaxPattern = 512;
constexpr int kMaxNesting = 32;
// glibc expands repetitions when it compiles: the product of nested counts is what it costs.
constexpr long kMaxRepetition = 1000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Finds what regcomp would refuse without saying where, and what it would take but then need a lot
// of time or memory for.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<PatternError> scan() {
    std::size_t open[kMaxNesting];
    int depth = 0;
    long repetition = 1;
    bool repeatable = false;  // something precedes that an operator can repeat
    while (at_ < text_.size()) {
      const std::size_t start = at_;
      const char c = text_[at_++];
      switch (c) {
        case '\\':
          if (at_ == text_.size())
            return PatternError{start, "'\\' at the end"};
          if (is_digit(text_[at_]))
            return PatternError{start, "back-references are not supported"};
          ++at_;
          repeatable = true;
          break;
        case '[':
          if (!skip_bracket())
            return PatternError{start, "'[' without ']'"};
          repeatable = true;
          break;
        case '(':
          if (depth == kMaxNesting)
            return PatternError{start, "parentheses nested deeper than 32"};
          open[depth++] = start;
          repeatable = false;
          break;
        case ')':
          if (depth == 0)
            return PatternError{start, "')' without '('"};
          if (text_[start - 1] == '(' && open[depth - 1] == start - 1)
            return PatternError{start - 1, "empty '()'"};
          --depth;
          repeatable = true;
          break;
        case '|':
          repeatable = false;
          break;
        case '^':
        case '$':
          repeatable = false;
          break;
        case '{': {
          long count = 0;
          const char* what = skip_interval(count);
          if (what)
            return PatternError{start, what};
          repetition *= std::max(count, 1L);
          if (repetition > kMaxRepetition)
            return PatternError{start, "repetition counts too large (1000 in all)"};
        }
          [[fallthrough]];
        case '*':
        case '+':
        case '?':
          if (!repeatable)
            return PatternError{start, std::string("nothing before '") + c + "' to repeat"};
          // "a**" is legal, but only a mistake or an attack stacks them.
          repeatable = false;
          break;
        case '\0':
          return PatternError{start, "a zero byte"};
        default:
          repeatable = true;
      }
    }
    if (depth != 0)
      return PatternError{open[depth - 1], "'(' without ')'"};
    return std::nullopt;
  }

 private:
  // After '['. A ']' that comes first is an ordinary character, and classes nest: [^]a[:digit:]].
  bool skip_bracket() {
    if (at_ < text_.size() && text_[at_] == '^')
      ++at_;
    if (at_ < text_.size() && text_[at_] == ']')
      ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == ']')
        return true;
      if (c == '\0')
        return false;
      if (c == '[' && at_ < text_.size() &&
          (text_[at_] == ':' || text_[at_] == '.' || text_[at_] == '=')) {
        const char close[] = {text_[at_], ']'};
        const std::size_t end = text_.find(std::string_view(close, 2), at_ + 1);
        if (end == std::string_view::npos)
          return false;
        at_ = end + 2;
      }
    }
    return false;
  }

  // After '{': N}, N,} or N,M}.
  const char* skip_interval(long& count) {
    constexpr const char* kForm =
        "'{' is not followed by a count and '}'; write '\\{' for the sign";
    long least = 0, most = 0;
    if (!number(least))
      return kForm;
    most = least;
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      if (at_ < text_.size() && text_[at_] != '}' && !number(most = 0))
        return kForm;
    }
    if (at_ == text_.size() || text_[at_] != '}')
      return kForm;
    ++at_;
    if (most < least)
      return "the counts in '{}' are the wrong way round";
    count = most;
    return nullptr;
  }

  bool number(long& value) {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) {
      if (value <= kMaxRepetition)
        value = 10 * value + (text_[at_] - '0');
      ++at_;
    }
    return at_ != start;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

struct Pattern::Regex {
  regex_t compiled;
  bool valid = false;
  Regex() = default;
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  ~Regex() {
    if (valid)
      regfree(&compiled);
  }
};

tl::expected<Pattern, PatternError> Pattern::compile(std::string_view text) {
  Pattern pattern;
  if (text == "*")
    return pattern.text_ = text, pattern;
  if (text.empty())
    return tl::unexpected(PatternError{0, "empty pattern; write '*' for every kernel"});

  if (!text.starts_with(kRegexPrefix)) {
    if (text.size() > 4096)
      return tl::unexpected(PatternError{0, "name longer than 4096 bytes"});
    for (std::string_view sign : {"::", "<"})
      if (const auto at = text.find(sign);
          at != std::string_view::npos && !text.starts_with("operator"))
        return tl::unexpected(
            PatternError{at, "'" + std::string(sign) +
                                 "' in an exact name; give the base name, which has no "
                                 "namespaces, template arguments or parameters"});
    for (std::string_view sign : {"*", "?", "["})
      if (const auto at = text.find(sign);
          at != std::string_view::npos && !text.starts_with("operator"))
        return tl::unexpected(PatternError{
            at, "'" + std::string(sign) +
                    "' has no meaning in an exact name; write 'regex:' and a regular expression"});
    pattern.kind_ = Kind::exact;
    pattern.text_ = text;
    return pattern;
  }

  const std::string_view expression = text.substr(kRegexPrefix.size());
  if (expression.empty())
    return tl::unexpected(PatternError{text.size(),
                                       "empty regular expression; write '*' for every "
                                       "kernel"});
  if (expression.size() > kMaxPattern)
    return tl::unexpected(PatternError{kRegexPrefix.size() + kMaxPattern,
                                       "regular expression longer than 512 bytes"});
  if (auto error = Scanner(expression).scan()) {
    error->offset += kRegexPrefix.size();
    return tl::unexpected(*std::move(error));
  }
  auto regex = std::make_shared<Regex>();
  const std::string terminated(expression);
  const int status = regcomp(&regex->compiled, terminated.c_str(), REG_EXTENDED | REG_NOSUB);
  if (status != 0) {
    char message[128] = "";
    regerror(status, &regex->compiled, message, sizeof message);
    return tl::unexpected(PatternError{kRegexPrefix.size(), message});
  }
  regex->valid = true;
  pattern.kind_ = Kind::regex;
  pattern.text_ = text;
  pattern.regex_ = std::move(regex);
  return pattern;
}

bool Pattern::matches(std::string_view base_name) const {
  switch (kind_) {
    case Kind::any:
      return true;
    case Kind::exact:
      return base_name == text_;
    case Kind::regex:
      break;
  }
  if (base_name.empty())  // not known: "regex:.*" says nothing about it either
    return false;
  const std::string terminated(base_name);
  return regexec(&regex_->compiled, terminated.c_str(), 0, nullptr, 0) == 0;
}

}  // namespace gpurecover::classifier
