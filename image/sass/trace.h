// SPDX-License-Identifier: Apache-2.0
//
// What the decoder takes from each machine instruction: to be held against other disassemblers.
// Not used when kernels are judged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpurecover::image::sass {

// Registers are named "R4", "UR4", "P0", "UP0", their fixed ones "RZ", "URZ", "PT", "UPT".
struct TracedInstruction {
  std::uint32_t offset = 0;  // bytes, in the kernel's section
  std::uint32_t opcode = 0;  // 12 bits
  std::string guard;         // "!P0"; "?P0": of which predicates is not certain; empty: none
  // In the order in which the decoder takes them; words of pairs one by one. Constants as "0x8" and
  // "c[0x0][0x210]", predicates with "!" where they are negated.
  std::vector<std::string> reads;
  std::vector<std::string> writes;     // surely
  std::vector<std::string> may_write;  // perhaps
  bool opaque = false;                 // of some result nothing is known
  // "memory" (what and where), "offset", "bytes", "negated" (mask of operands), "compare", "table",
  // "shift", "target" …
  std::map<std::string, std::int64_t> numbers;
  std::string memory;  // "ld.global", "st.shared", "atom.global" …; empty: no access
};

// The mnemonic that the tables of the decoder take an opcode for; empty: not known on `sm`.
std::string_view mnemonic(std::uint32_t opcode, std::uint32_t sm);

}  // namespace gpurecover::image::sass
