// SPDX-License-Identifier: Apache-2.0
//
// Tokens of PTX. Internal to the parser.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpurecover::image::ptx {

enum class TokenKind : std::uint8_t {
  kIdentifier,  // %r1, $L__BB0_1, add, _
  kDotWord,     // .global, .L2::128B; text is without the dot
  kNumber,      // 12, 0x1FU, 0f3F800000, 9.0
  kString,      // text is without the quotes
  kPunct,       // one character
  kEnd,
  kBad,  // a character that is not PTX, or an unterminated comment or string
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;
  std::uint32_t line = 1, column = 1;

  bool is(char c) const { return kind == TokenKind::kPunct && text[0] == c; }
  bool is_word(std::string_view w) const { return kind == TokenKind::kDotWord && text == w; }
};

// Reads tokens one by one, in time linear in the text. Never reads outside it.
class Lexer {
 public:
  explicit Lexer(std::string_view text);
  Token next();
  // Skips to the end of the line that the last token ended on.
  void skip_line();

 private:
  bool skip_blank();  // false: an unterminated comment
  Token make(TokenKind kind, std::size_t begin, std::size_t end) const;

  std::string_view text_;
  std::size_t pos_ = 0;
  std::size_t line_start_ = 0;
  std::uint32_t line_ = 1;
};

}  // namespace gpurecover::image::ptx
