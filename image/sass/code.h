// SPDX-License-Identifier: Apache-2.0
//
// What lifting needs of a cubin besides its instructions: constant banks, symbols, relocations.
// Internal to image/sass/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <unordered_map>
#include <vector>

#include "image/cubin.h"
#include "image/elf.h"
#include "image/image.h"

namespace gpurecover::image::sass {

// A variable or function of the module.
struct Symbol {
  std::string_view name;
  std::uint32_t section = 0;  // 0: outside the module
  std::uint64_t value = 0;    // offset in its section
  std::uint64_t size = 0;
  bool function = false;
};

struct Code {
  std::uint32_t sm = 0;
  Cubin cubin;
  Elf elf;
  std::vector<Symbol> symbols;  // as in .symtab, so that relocations can name them
  std::unordered_map<std::string_view, std::uint32_t> sections;  // name → index
  std::uint32_t constant_section = 0;                            // .nv.constant3, 0: none
  std::vector<std::uint32_t> constants;                          // symbols in it, sorted by value
  // .nv.constant4: offset → symbol whose address the driver puts there (8 bytes).
  std::map<std::uint64_t, std::uint32_t> addresses;

  // The variable in constant memory around an offset; kNoConstant: none has a name there.
  static constexpr std::uint32_t kNoConstant = 0xFFFFFFFE;
  std::uint32_t constant_at(std::uint64_t offset) const;
};

tl::expected<Code, Error> read_code(std::span<const std::byte> cubin);

// Words of constant bank 0 below the parameters, by architecture. Found by compiling kernels that
// use them, for each architecture named.
struct DriverWords {
  std::uint32_t block_dimensions = 0;  // ntid.x; .y and .z follow
  std::uint32_t grid_dimensions = 0;   // nctaid.x; .y and .z follow
  std::uint32_t stack_end = 0;         // 32 bits: where the stack of a thread begins, downwards
  std::uint32_t local_window = 0;      // 64 bits: generic address of local memory
  std::uint32_t shared_window = 0;     // 64 bits: of shared memory; 0: none, see kSharedWindowHigh
  std::uint32_t descriptor = 0;        // 64 bits: attributes of global accesses; no address
};
const DriverWords& driver_words(std::uint32_t sm);

}  // namespace gpurecover::image::sass
