// SPDX-License-Identifier: Apache-2.0
//
// Blocks, dominators and loops of a function's code. Internal to idempotency/.
#pragma once

#include <cstdint>
#include <vector>

#include "image/ptx_ir.h"

namespace gpurecover::idempotency {

struct Edge {
  std::uint32_t from = 0, to = 0;  // blocks; `to` may be ControlFlow::exit
  // Taken if this predicate register, read at the end of `from`, is true (or false: negated).
  std::uint32_t guard = image::ptx::kNoIndex;
  bool negated = false;
};

struct Block {
  std::uint32_t first = 0, last = 0;   // instructions [first, last)
  std::vector<std::uint32_t> in, out;  // edges
  std::uint32_t idom = image::ptx::kNoIndex;
  std::uint32_t order = image::ptx::kNoIndex;  // in reverse post-order; kNoIndex: never reached
  std::uint32_t loop = image::ptx::kNoIndex;   // the innermost
  std::uint32_t depth = 0;                     // in the dominator tree
  std::uint32_t post_idom = image::ptx::kNoIndex;
};

struct Loop {
  std::uint32_t header = 0;
  std::uint32_t parent = image::ptx::kNoIndex;
  std::vector<std::uint32_t> latches;  // edges back to the header
  std::vector<std::uint32_t> entries;  // edges into the header from outside
  std::vector<std::uint32_t> exits;    // edges out of the loop
};

struct ControlFlow {
  std::vector<Block> blocks;  // 0 is the entry; the last one is `exit`, which has no instructions
  std::vector<Edge> edges;
  std::vector<Loop> loops;
  std::vector<std::uint32_t> block_of;       // per instruction
  std::vector<std::uint32_t> reverse_order;  // blocks that are reached, in reverse post-order
  std::uint32_t exit = 0;

  bool dominates(std::uint32_t above, std::uint32_t below) const;
  bool post_dominates(std::uint32_t below, std::uint32_t above) const;
  bool inside(std::uint32_t block, std::uint32_t loop) const;
  // Whether `inner` is `outer` or nested in it.
  bool nested(std::uint32_t inner, std::uint32_t outer) const;
};

// False where the code has a jump whose targets are not known, a cycle that is not a natural loop,
// or more blocks than are worth the time; then `out` is of no use.
bool build_control_flow(const image::ptx::Function& function, ControlFlow& out);

}  // namespace gpurecover::idempotency
