// SPDX-License-Identifier: Apache-2.0
#include "classifier/kernel_name.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>

namespace gpurecover::classifier {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_name_char(char c) {
  return is_digit(c) || is_upper(c) || (c >= 'a' && c <= 'z') || c == '_' || c == '$' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Reads the base name straight from a mangled one (Itanium C++ ABI, section 5.1). The library's
// demangler would do, but it gives up on names of more than 1024 bytes, which templates of linear
// algebra exceed. Knows what names of kernels are made of (a kernel is a free function, not an
// operator nor a member of a local class) and leaves the rest to the caller.
class MangledName {
 public:
  explicit MangledName(std::string_view text) : text_(text) {}

  std::optional<std::string_view> base() {
    if (!take("_Z"))
      return std::nullopt;
    if (!take('N')) {
      take("St");
      take('L');
      return source_name();
    }
    while (at_ < text_.size() && (peek() == 'K' || peek() == 'V' || peek() == 'r'))
      ++at_;
    std::optional<std::string_view> last;
    while (at_ < text_.size()) {
      if (take('E'))
        return last;
      if (is_digit(peek()) || peek() == 'L') {
        take('L');
        last = source_name();
        if (!last)
          return std::nullopt;
      } else if (take('I')) {
        if (!skip_until_end(0))
          return std::nullopt;
      } else if (take('B')) {
        if (!source_name())
          return std::nullopt;
      } else if (peek() == 'S') {
        if (!skip(0))
          return std::nullopt;
        last.reset();
      } else {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr int kMaxDepth = 200;

  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size())
      return false;
    ++at_;
    return true;
  }
  bool take(std::string_view prefix) {
    if (!text_.substr(at_).starts_with(prefix))
      return false;
    at_ += prefix.size();
    return true;
  }

  std::optional<std::string_view> source_name() {
    std::size_t length = 0;
    const std::size_t start = at_;
    while (is_digit(peek()) && length <= text_.size())
      length = 10 * length + static_cast<std::size_t>(text_[at_++] - '0');
    if (at_ == start || length == 0 || length > text_.size() - at_)
      return std::nullopt;
    const std::string_view name = text_.substr(at_, length);
    at_ += length;
    return name;
  }

  bool skip_until_end(int depth) {
    while (at_ < text_.size()) {
      if (take('E'))
        return true;
      if (!skip(depth))
        return false;
    }
    return false;
  }

  // One element of a type or template argument, without its tail where that parses as elements of
  // its own. Expressions are not followed.
  bool skip(int depth) {
    if (depth > kMaxDepth || at_ >= text_.size())
      return false;
    if (is_digit(peek()))
      return source_name().has_value();
    const char c = text_[at_++];
    switch (c) {
      case 'N':
      case 'I':
      case 'J':
      case 'F':
      case 'Z':
        return skip_until_end(depth + 1);
      case 'L':
        if (take("_Z"))
          return skip_until_end(depth + 1);
        if (!skip_literal_type(depth + 1))
          return false;
        while (at_ < text_.size() && peek() != 'E')
          ++at_;
        return take('E');
      case 'S':
        if (std::string_view("tabsiod").find(peek()) != std::string_view::npos)
          return ++at_, true;
        while (is_digit(peek()) || is_upper(peek()))
          ++at_;
        return take('_');
      case 'T':
        while (is_digit(peek()))
          ++at_;
        return take('_');
      case 'D':
        if (peek() == 'T' || peek() == 't' || peek() == 'O' || peek() == 'w' || peek() == 'v')
          return false;
        return at_++ < text_.size();
      case 'U':
        if (take('l')) {
          if (!skip_until_end(depth + 1))
            return false;
          while (is_digit(peek()))
            ++at_;
          return take('_');
        }
        if (take('t')) {
          while (is_digit(peek()))
            ++at_;
          return take('_');
        }
        return source_name().has_value();
      case 'A':
        while (is_digit(peek()))
          ++at_;
        return take('_');
      case 'u':
        return source_name().has_value();
      case 'X':
        return false;
      default:
        // Qualifiers and builtin types are one letter; '_' ends discriminators.
        return (c >= 'a' && c <= 'z') ||
               std::string_view("PROKVGCMB_").find(c) != std::string_view::npos;
    }
  }

  bool skip_literal_type(int depth) {
    if (peek() == 'P' || peek() == 'K' || peek() == 'R' || peek() == 'V' || peek() == 'O') {
      ++at_;
      return depth <= kMaxDepth && skip_literal_type(depth + 1);
    }
    return skip(depth);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The bytes of an operator's symbol at `at`, which follows "operator".
std::size_t operator_symbol(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.starts_with("()") || rest.starts_with("[]"))
    return 2;
  std::size_t n = 0;
  while (n < rest.size() && n < 3 &&
         std::string_view("<>=-*+/%&|^~!,").find(rest[n]) != std::string_view::npos)
    ++n;
  // operator< <int>: the blank separates; operator<<int> cannot be told and is read as a shift.
  return n;
}

bool at_operator(std::string_view text, std::size_t at) {
  constexpr std::string_view kWord = "operator";
  return text.substr(at).starts_with(kWord) && (at == 0 || !is_name_char(text[at - 1])) &&
         (at + kWord.size() == text.size() || !is_name_char(text[at + kWord.size()]));
}

// The position after the bracket that closes the one at `at`, or the end.
std::size_t skip_brackets(std::string_view text, std::size_t at) {
  std::string open;
  while (at < text.size()) {
    const char c = text[at];
    if (at_operator(text, at)) {
      at += 8;
      at += operator_symbol(text, at);
      continue;
    }
    if (c == '(' || c == '{' || c == '[') {
      open += c;
    } else if (c == '<') {
      open += c;
    } else if (c == ')' || c == '}' || c == ']') {
      const char match = c == ')' ? '(' : c == '}' ? '{' : '[';
      while (!open.empty() && open.back() != match)
        open.pop_back();
      if (!open.empty())
        open.pop_back();
    } else if (c == '>' && !open.empty() && open.back() == '<' && text[at - 1] != '-') {
      open.pop_back();
    }
    ++at;
    if (open.empty())
      return at;
  }
  return at;
}

struct Free {
  void operator()(char* p) const { std::free(p); }
};

}  // namespace

std::string base_name_of_demangled(std::string_view text) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  std::size_t start = 0;
  std::size_t end = std::string_view::npos;  // where the template arguments of the component begin
  std::size_t at = 0;
  while (at < text.size()) {
    if (text.substr(at).starts_with(kAnonymous)) {
      at += kAnonymous.size();
    } else if (text.substr(at).starts_with("[abi:")) {
      end = std::min(end, at);
      at = skip_brackets(text, at);
    } else if (at_operator(text, at)) {
      start = at;
      at += 8;
      at += operator_symbol(text, at);
      end = std::string_view::npos;
    } else if (text.substr(at).starts_with("::")) {
      at += 2;
      start = at;
      end = std::string_view::npos;
    } else if (text[at] == ' ') {
      ++at;
      // The return type goes before; a blank before '(' or '<' is only decoration.
      if (at < text.size() && text[at] != '(' && text[at] != '<' && text[at] != '[') {
        start = at;
        end = std::string_view::npos;
      }
    } else if (text[at] == '<' || text[at] == '{') {
      if (text[at] == '<' && end == std::string_view::npos)
        end = at;
      at = skip_brackets(text, at);
    } else if (text[at] == '(') {
      // The parameters, unless a name follows: "f(int)::{lambda()#1}::operator()() const".
      const std::size_t after = skip_brackets(text, at);
      std::size_t next = after;
      if (text.substr(next).starts_with(" const"))
        next += 6;
      if (!text.substr(next).starts_with("::")) {
        end = std::min(end, at);
        break;
      }
      at = next;
    } else {
      ++at;
    }
  }
  std::string_view base = text.substr(start, std::min(end, text.size()) - start);
  while (!base.empty() && base.back() == ' ')
    base.remove_suffix(1);
  return std::string(base.empty() ? text : base);
}

std::string kernel_base_name(std::string_view mangled) {
  if (!mangled.starts_with("_Z"))
    return std::string(mangled);
  if (const auto base = MangledName(mangled).base())
    return std::string(*base);
  int status = 0;
  const std::string terminated(mangled);
  const std::unique_ptr<char, Free> demangled(
      abi::__cxa_demangle(terminated.c_str(), nullptr, nullptr, &status));
  if (status != 0 || !demangled)
    return std::string(mangled);
  return base_name_of_demangled(demangled.get());
}

}  // namespace gpurecover::classifier
