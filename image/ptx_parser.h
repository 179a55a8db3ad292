// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "image/ptx_ir.h"

namespace gpurecover::image::ptx {

// Where and why a text is not PTX that we can read.
struct ParseError {
  std::uint32_t line = 0, column = 0;  // from 1
  std::string what;                    // "unknown register %r7"
  std::string remedy;                  // "declare it with .reg before its use"
  // "file:line:col: what; remedy"
  std::string message(std::string_view file) const;
};

// Parses a whole PTX module, as written by nvcc and clang or by hand. Comments, trailing NULs,
// .loc, .file, .pragma and debug sections are skipped. Unknown opcodes and unknown modifiers are
// kept (Opcode::kUnknown, Instruction::has_unknown_modifier); unknown syntax is an error.
//
// Time is linear in the text, memory is bounded by a constant factor of the text plus 16 MiB of
// initialised data, and by 8 million instructions; nesting is bounded (256). Never throws, not even
// for want of memory (that is an error too). Thread-safe: no shared state.
tl::expected<Module, ParseError> parse(std::string_view text);

// Only the header, in constant time: enough to tell which device the text is for.
struct Header {
  std::uint32_t version_major = 0, version_minor = 0;
  std::uint32_t sm = 0;
  std::string suffix;
};
tl::expected<Header, ParseError> parse_header(std::string_view text);

}  // namespace gpurecover::image::ptx
