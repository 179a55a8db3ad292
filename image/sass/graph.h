// SPDX-License-Identifier: Apache-2.0
//
// The values of one kernel in single-assignment form. Registers are 32 bits wide; 64-bit values are
// found by widen.cpp. Internal to image/sass/.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "image/ptx_ir.h"
#include "image/sass/code.h"

namespace gpurecover::image::sass {

using Id = std::uint32_t;
inline constexpr Id kNoId = 0xFFFFFFFFu;

// Comments: what args and imm are. All arithmetic is modulo 2^width.
enum class Op : std::uint8_t {
  // Leaves: the same wherever they are read. They belong to the entry block.
  kConst,         // imm; width 1, 32 or 64
  kUndef,         // never written
  kParam,         // imm: byte in the parameter block; width 32 or 64
  kDriver,        // imm: byte in constant bank 0; width 32 or 64
  kSpecial,       // imm: SpecialRegister | component << 8
  kStackEnd,      // the thread's stack pointer at the start
  kConstantWord,  // imm: byte in constant bank 3, the program's; width 32 or 64
  kSharedHigh,    // upper word of generic addresses of shared memory
  kSymbol,        // imm: index of a symbol of the module; its address; width 64
  // Width 32.
  kAdd3,        // args a, b, c, then for extended ones two carries; imm: kNegate…, kExtended
  kMad,         // a * b + c; imm bit 0: negate the product, bit 1: negate c
  kLogic,       // of a, b, c by the table in imm
  kShiftLeft,   // a << b; imm bit 0: the amount is taken modulo 32, else 32 and more give 0
  kShiftRight,  // a >> b; imm bit 0 as above, bit 1: signed
  kFunnel,      // low word of (b:a) >> imm; 0 < imm < 32
  kMin,
  kMax,      // imm bit 1: signed
  kSelect,   // p ? a : b (args p, a, b); any width
  kPermute,  // bytes of a, c by the selector b (args a, b, c)
  kUniform,  // a of some lane of the warp; width 32 or 64
  kLow,
  kHigh,  // words of the 64-bit a
  // Any width: nothing is known of it.
  kOpaque,
  kResult,  // args[0]: kEffect; imm: which of its results
  kPhi,     // imm: index in Graph::phis
  // Width 1.
  kCarry,         // of args[0], a kAdd3 that is not extended; imm 0 or 1
  kCompare,       // a ? b; imm: see kCompare…; of 32-bit or 64-bit values
  kCompareFloat,  // of 32-bit floating point a, b; imm: as in the instruction, 0-15
  kCompareHigh,   // upper words a, b; args[2]: the result of the lower words
  kNot,
  kAnd,
  kOr,
  kXor,
  // Width 64.
  kPack,  // low, high
  kAdd,
  kSub,       // a, b
  kWide,      // a * b in full; imm bit 1: signed
  kMultiply,  // a * b of 64-bit values
  kLeft,      // a << imm
  kRight,     // a >> imm; flag: signed
  kBits,      // 64-bit logic of a, b; imm: 0 and, 1 or, 2 xor
  kSigned,
  kUnsigned,  // extensions of a 32-bit value
  kLocal,
  kShared,  // generic address of the 32-bit address a
  // No value.
  kEffect,  // imm: index in Graph::effects
};

// In kAdd3: which terms are negated; in extended ones, which are complemented.
inline constexpr std::uint64_t kNegateA = 1, kNegateB = 2, kNegateC = 4, kExtended = 8;
// In comparisons: bits 0-2 as in the instruction (1 lt, 2 eq, 3 le, 4 gt, 5 ne, 6 ge).
inline constexpr std::uint64_t kCompareSigned = 8, kCompare64 = 16;

struct Node {
  Op op = Op::kUndef;
  std::uint8_t width = 32;
  std::uint8_t count = 0;
  bool flag = false;
  std::array<Id, 5> args{kNoId, kNoId, kNoId, kNoId, kNoId};
  std::uint64_t imm = 0;
  std::uint32_t block = 0, slot = 0;
  Id replaced = kNoId;  // by this value, everywhere
};

// An instruction that does more than compute a value.
struct Effect {
  ptx::Opcode opcode = ptx::Opcode::kUnknown;
  ptx::Space space = ptx::Space::kGeneric, space2 = ptx::Space::kGeneric;
  ptx::Type type = ptx::Type::kNone;
  std::uint8_t vector = 1;
  ptx::ModifierSet modifiers;
  bool has_operation = false;
  ptx::Modifier operation = ptx::Modifier::kAdd;
  Id guard = kNoId;  // kNoId: always
  // Addresses: of width 64 for global and generic, 32 for shared and local; kNoId: none. With
  // `whole_block` the first is an offset into the parameter block, with `symbol` into that
  // variable.
  Id address = kNoId, address2 = kNoId;
  std::int64_t offset = 0, offset2 = 0;
  bool whole_block = false;
  std::uint32_t symbol = kNoId;
  std::vector<Id> data;  // words; pairs of them are one datum where the type has 64 bits
  std::uint32_t results = 0;
  std::uint8_t result_width = 32;
  std::uint32_t line = 0;
  std::string text;
};

enum class End : std::uint8_t { kNext, kBranch, kExit, kTrap };
struct Block {
  std::vector<std::vector<Id>> slots;  // one per instruction, the first for joins
  std::vector<std::uint32_t> lines;    // of the slots
  End end = End::kNext;
  Id condition = kNoId;  // kBranch: to `target` if true, else to `next`
  std::uint32_t target = kNoId, next = kNoId;
  std::vector<std::uint32_t> predecessors;
  std::uint32_t dominator = kNoId, depth = 0;      // immediate dominator; depth in the tree
  std::uint32_t context = 0, first = 0, last = 0;  // instructions [first, last)
};

struct Graph {
  const Code* code = nullptr;
  const CubinKernel* kernel = nullptr;
  std::vector<Node> nodes;
  std::vector<std::vector<Id>> phis;  // in the order of the block's predecessors
  std::vector<Effect> effects;
  std::vector<Block> blocks;  // 0 is the entry; all are reachable
  bool too_large = false;

  Id resolve(Id id) {
    Id at = id;
    while (nodes[at].replaced != kNoId)
      at = nodes[at].replaced;
    while (nodes[id].replaced != kNoId) {
      const Id next = nodes[id].replaced;
      nodes[id].replaced = at;
      id = next;
    }
    return at;
  }
  Node& operator[](Id id) { return nodes[id]; }
  bool is_const(Id id, std::uint64_t value) {
    const Node& n = nodes[resolve(id)];
    return n.op == Op::kConst && n.imm == value;
  }
  std::uint32_t param_bytes() const { return kernel->param_bytes; }
  // The parameter that holds the bytes [at, at + size) alone, or nullptr.
  const KernelParameter* parameter(std::uint64_t at, std::uint32_t size) const;

  // A leaf; equal ones are one.
  Id leaf(Op op, std::uint8_t width, std::uint64_t imm);
  Id constant(std::uint64_t value, std::uint8_t width = 32) {
    return leaf(Op::kConst, width, width == 32 ? value & 0xFFFFFFFF : value);
  }
  // A new value at the end of the slot, simplified where it is a simpler one.
  Id make(std::uint32_t block, std::uint32_t slot, Op op, std::uint8_t width,
          std::initializer_list<Id> args, std::uint64_t imm = 0, bool flag = false);
  Id negation(std::uint32_t block, std::uint32_t slot, Id predicate);
  // What became a constant only when joins were complete may make other values simpler. Returns
  // whether anything changed.
  bool simplify();

 private:
  Id simpler(Op op, std::uint8_t width, const Id* args, std::uint64_t imm);
  std::unordered_map<std::uint64_t, Id> leaves_[3];
};

// Finds the 64-bit values behind pairs of words: every kPack that is used becomes what it is.
void widen(Graph& graph);

// The graph as IR. Empty reason: done.
std::string emit(Graph& graph, ptx::Module& module);

}  // namespace gpurecover::image::sass
