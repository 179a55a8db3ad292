// SPDX-License-Identifier: Apache-2.0
//
// Machine code (SASS) of sm_75, 80, 86, 87, 89, 90, 100, 103 and 120 as the IR of ptx_ir.h, so that
// what is said of PTX can be said of it. Pure; never throws; every read stays inside the cubin;
// time and memory are bounded.
//
// What is promised of a lifted kernel:
//  - Every access to global, generic, constant, shared and local memory is there, with its address
//    computed exactly from parameters, special registers and loaded values where the instructions
//    between are known, and from the result of `opaque` where only their register effects are.
//  - Each virtual register is assigned once, or is one of the copies into which the values of a
//    join flow. Halves of a 64-bit value that is made by carry chains, pairs of selects or pairs of
//    joins come out as the 64-bit instruction that they are; the rewriting is exact, so that two
//    words that do not belong together never look like one pointer.
//  - Functions of the kernel's section are inlined at each call.
// A kernel with an instruction, or a form of one, that is not known is refused with the reason.
//
// Sources of the encodings: public assemblers and disassemblers of the field's free drivers, and
// what ptxas 13.0 makes of small kernels, register by register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "image/image.h"
#include "image/ptx_ir.h"

namespace gpurecover::image::sass {

struct TracedInstruction;  // trace.h
struct Code;               // sections of a cubin, see code.h

// The largest function, with everything that is inlined into it, in instructions.
inline constexpr std::size_t kMaxInstructions = 400'000;

class MachineCode {
 public:
  // `cubin` must outlive the result. Error: not a cubin, damaged, or of an architecture that is not
  // known ("machine code for sm_70: not known").
  static tl::expected<MachineCode, Error> open(std::span<const std::byte> cubin);

  std::uint32_t sm() const;

  // A module with the kernel as its only entry, and the variables that it names. Variables carry
  // name, space and size; none is initialised. Instruction::line is the offset of the machine
  // instruction in its section, divided by 16, plus 1. Error: why not, fit for users
  // ("instruction 0x352 at offset 0x70 is not known").
  tl::expected<ptx::Module, std::string> lift(std::string_view kernel) const;

  // What is taken from each instruction that can be reached, in the order of translation; those of
  // functions that are called come once for each call. `why_not`: as the error of `lift`, empty if
  // there is none; the instructions up to there are in the result.
  std::vector<TracedInstruction> trace(std::string_view kernel, std::string& why_not) const;

 private:
  std::shared_ptr<const Code> code_;
};

}  // namespace gpurecover::image::sass
