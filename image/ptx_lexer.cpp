// SPDX-License-Identifier: Apache-2.0
#include "image/ptx_lexer.h"

namespace gpurecover::image::ptx {
namespace {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_follow(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$';
}
constexpr bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v';
}

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) {
  while (!text_.empty() && text_.back() == '\0') {
    text_.remove_suffix(1);
  }
}

Token Lexer::make(TokenKind kind, std::size_t begin, std::size_t end) const {
  Token t;
  t.kind = kind;
  t.text = text_.substr(begin, end - begin);
  t.line = line_;
  t.column = static_cast<std::uint32_t>(begin - line_start_ + 1);
  return t;
}

void Lexer::skip_line() {
  while (pos_ < text_.size() && text_[pos_] != '\n') {
    ++pos_;
  }
}

bool Lexer::skip_blank() {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (is_blank(c)) {
      ++pos_;
      if (c == '\n') {
        ++line_;
        line_start_ = pos_;
      }
    } else if (c == '/' && pos_ + 1 < text_.size() && text_[pos_ + 1] == '/') {
      skip_line();
    } else if (c == '/' && pos_ + 1 < text_.size() && text_[pos_ + 1] == '*') {
      const std::size_t end = text_.find("*/", pos_ + 2);
      if (end == std::string_view::npos) {
        return false;
      }
      for (; pos_ < end; ++pos_) {
        if (text_[pos_] == '\n') {
          ++line_;
          line_start_ = pos_ + 1;
        }
      }
      pos_ = end + 2;
    } else {
      break;
    }
  }
  return true;
}

Token Lexer::next() {
  if (!skip_blank()) {
    const Token t = make(TokenKind::kBad, pos_, pos_ + 2);
    pos_ = text_.size();
    return t;
  }
  if (pos_ >= text_.size()) {
    return make(TokenKind::kEnd, pos_, pos_);
  }
  const std::size_t begin = pos_;
  const char c = text_[pos_];
  auto follow = [&] {
    while (pos_ < text_.size() && is_follow(text_[pos_])) {
      ++pos_;
    }
  };
  if (is_digit(c)) {
    follow();
    // 9.0, 1.5e-3; a hexadecimal number has no fraction.
    if (pos_ + 1 < text_.size() && text_[pos_] == '.' && is_digit(text_[pos_ + 1])) {
      ++pos_;
      follow();
    }
    if (pos_ + 1 < text_.size() && (text_[pos_ - 1] == 'e' || text_[pos_ - 1] == 'E') &&
        (text_[pos_] == '-' || text_[pos_] == '+') && is_digit(text_[pos_ + 1]) &&
        text_.substr(begin, pos_ - begin).find('.') != std::string_view::npos) {
      ++pos_;
      follow();
    }
    return make(TokenKind::kNumber, begin, pos_);
  }
  if (is_follow(c) || (c == '%' && pos_ + 1 < text_.size() && is_follow(text_[pos_ + 1]))) {
    ++pos_;
    follow();
    return make(TokenKind::kIdentifier, begin, pos_);
  }
  if (c == '.' && pos_ + 1 < text_.size() && is_follow(text_[pos_ + 1])) {
    ++pos_;
    const std::size_t word = pos_;
    follow();
    while (pos_ + 2 < text_.size() && text_[pos_] == ':' && text_[pos_ + 1] == ':' &&
           is_follow(text_[pos_ + 2])) {
      pos_ += 2;
      follow();
    }
    return make(TokenKind::kDotWord, word, pos_);
  }
  if (c == '"') {
    const std::size_t end = text_.find_first_of("\"\n", pos_ + 1);
    if (end == std::string_view::npos || text_[end] == '\n') {
      const Token t = make(TokenKind::kBad, begin, begin + 1);
      pos_ = text_.size();
      return t;
    }
    pos_ = end + 1;
    return make(TokenKind::kString, begin + 1, end);
  }
  ++pos_;
  static constexpr std::string_view kPunctuation = "{}[]()<>,;:+-*/!~@|=#&^%?.";
  return make(kPunctuation.find(c) != std::string_view::npos ? TokenKind::kPunct : TokenKind::kBad,
              begin, pos_);
}

}  // namespace gpurecover::image::ptx
