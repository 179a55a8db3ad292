// SPDX-License-Identifier: Apache-2.0
#include "idempotency/control_flow.h"

#include <algorithm>
#include <utility>

namespace gpurecover::idempotency {

namespace ptx = image::ptx;
using ptx::Instruction;
using ptx::kNoIndex;
using ptx::Opcode;

namespace {

constexpr std::size_t kMaxBlocks = 20'000, kMaxEdges = 80'000, kMaxLoops = 512;

bool ends_thread(const Instruction& i) {
  return i.opcode == Opcode::kExit || i.opcode == Opcode::kRet || i.opcode == Opcode::kTrap;
}
bool ends_block(const Instruction& i) {
  return i.opcode == Opcode::kBra || i.opcode == Opcode::kBrx || ends_thread(i);
}

bool split(const ptx::Function& f, ControlFlow& cf) {
  const auto size = static_cast<std::uint32_t>(f.code.size());
  std::vector<bool> leader(size + 1, false);
  leader[0] = true;
  for (std::uint32_t n = 0; n < size; ++n) {
    const Instruction& i = f.code[n];
    if (!ends_block(i))
      continue;
    leader[n + 1] = true;
    for (const ptx::Operand& o : f.operands_of(i)) {
      if (o.kind == ptx::OperandKind::kLabel)
        leader[o.index] = true;
      if (o.kind == ptx::OperandKind::kSymbol && o.symbol_kind == ptx::SymbolKind::kBranchTable) {
        for (const std::uint32_t t : f.tables[o.index].targets) {
          if (f.tables[o.index].is_call || t > size)
            return false;
          leader[t] = true;
        }
      }
    }
  }
  cf.block_of.resize(size);
  for (std::uint32_t n = 0; n < size; ++n) {
    if (leader[n]) {
      if (cf.blocks.size() >= kMaxBlocks)
        return false;
      if (!cf.blocks.empty())
        cf.blocks.back().last = n;
      cf.blocks.emplace_back();
      cf.blocks.back().first = n;
    }
    cf.block_of[n] = static_cast<std::uint32_t>(cf.blocks.size() - 1);
  }
  if (cf.blocks.empty())
    return false;
  cf.blocks.back().last = size;
  cf.exit = static_cast<std::uint32_t>(cf.blocks.size());
  cf.blocks.emplace_back();
  cf.blocks.back().first = cf.blocks.back().last = size;

  bool good = true;
  auto connect = [&](std::uint32_t from, std::uint32_t instruction, std::uint32_t guard, bool neg) {
    const std::uint32_t to = instruction >= size ? cf.exit : cf.block_of[instruction];
    if (cf.edges.size() >= kMaxEdges) {
      good = false;
      return;
    }
    const auto e = static_cast<std::uint32_t>(cf.edges.size());
    cf.edges.push_back({from, to, guard, neg});
    cf.blocks[from].out.push_back(e);
    cf.blocks[to].in.push_back(e);
  };
  for (std::uint32_t b = 0; b < cf.exit && good; ++b) {
    const std::uint32_t last = cf.blocks[b].last;
    const Instruction& i = f.code[last - 1];
    if (!ends_block(i)) {
      connect(b, last, kNoIndex, false);
      continue;
    }
    const bool guarded = i.guard != kNoIndex;
    if (ends_thread(i)) {
      connect(b, size, i.guard, i.guard_negated);
    } else if (i.opcode == Opcode::kBra) {
      if (i.operand_count < 1 || f.operands[i.first_operand].kind != ptx::OperandKind::kLabel)
        return false;
      connect(b, f.operands[i.first_operand].index, i.guard, i.guard_negated);
    } else {
      const ptx::Operand* table = nullptr;
      for (const ptx::Operand& o : f.operands_of(i)) {
        if (o.kind == ptx::OperandKind::kSymbol && o.symbol_kind == ptx::SymbolKind::kBranchTable)
          table = &o;
      }
      if (table == nullptr)
        return false;
      std::vector<std::uint32_t> targets = f.tables[table->index].targets;
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      for (const std::uint32_t t : targets)
        connect(b, t, i.guard, i.guard_negated);
    }
    if (guarded)
      connect(b, last, i.guard, !i.guard_negated);
  }
  return good;
}

// Reverse post-order from `start` along `out` edges (or against them).
std::vector<std::uint32_t> order_from(const ControlFlow& cf, std::uint32_t start, bool backward) {
  std::vector<std::uint32_t> post;
  std::vector<bool> seen(cf.blocks.size(), false);
  std::vector<std::pair<std::uint32_t, std::size_t>> stack{{start, 0}};
  seen[start] = true;
  while (!stack.empty()) {
    auto& [block, next] = stack.back();
    const auto& edges = backward ? cf.blocks[block].in : cf.blocks[block].out;
    if (next == edges.size()) {
      post.push_back(block);
      stack.pop_back();
      continue;
    }
    const Edge& e = cf.edges[edges[next++]];
    const std::uint32_t to = backward ? e.from : e.to;
    if (!seen[to]) {
      seen[to] = true;
      stack.emplace_back(to, 0);
    }
  }
  std::reverse(post.begin(), post.end());
  return post;
}

// Cooper, Harvey and Kennedy's iteration. `idom` per block; kNoIndex where there is none.
std::vector<std::uint32_t> dominators(const ControlFlow& cf,
                                      const std::vector<std::uint32_t>& order, bool backward) {
  std::vector<std::uint32_t> rank(cf.blocks.size(), kNoIndex), idom(cf.blocks.size(), kNoIndex);
  for (std::uint32_t k = 0; k < order.size(); ++k)
    rank[order[k]] = k;
  idom[order[0]] = order[0];
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t k = 1; k < order.size(); ++k) {
      const Block& block = cf.blocks[order[k]];
      std::uint32_t best = kNoIndex;
      for (const std::uint32_t e : backward ? block.out : block.in) {
        std::uint32_t p = backward ? cf.edges[e].to : cf.edges[e].from;
        if (rank[p] == kNoIndex || idom[p] == kNoIndex)
          continue;
        if (best == kNoIndex) {
          best = p;
          continue;
        }
        while (best != p) {
          while (rank[p] > rank[best])
            p = idom[p];
          while (rank[best] > rank[p])
            best = idom[best];
        }
      }
      if (best != idom[order[k]]) {
        idom[order[k]] = best;
        changed = true;
      }
    }
  }
  idom[order[0]] = kNoIndex;
  return idom;
}

bool find_loops(ControlFlow& cf) {
  std::vector<std::uint32_t> loop_of_header(cf.blocks.size(), kNoIndex);
  for (std::uint32_t e = 0; e < cf.edges.size(); ++e) {
    const Edge& edge = cf.edges[e];
    if (cf.blocks[edge.from].order == kNoIndex ||
        cf.blocks[edge.to].order > cf.blocks[edge.from].order) {
      continue;
    }
    if (!cf.dominates(edge.to, edge.from))
      return false;  // a cycle with two ways in
    std::uint32_t& l = loop_of_header[edge.to];
    if (l == kNoIndex) {
      if (cf.loops.size() >= kMaxLoops)
        return false;
      l = static_cast<std::uint32_t>(cf.loops.size());
      cf.loops.emplace_back();
      cf.loops.back().header = edge.to;
    }
    cf.loops[l].latches.push_back(e);
  }
  // Inner loops before outer ones: their headers come later.
  std::vector<std::uint32_t> order(cf.loops.size());
  for (std::uint32_t l = 0; l < order.size(); ++l)
    order[l] = l;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return cf.blocks[cf.loops[a].header].order > cf.blocks[cf.loops[b].header].order;
  });
  std::vector<std::uint32_t> work;
  for (const std::uint32_t l : order) {
    Loop& loop = cf.loops[l];
    auto visit = [&](std::uint32_t block) {
      // The outermost loop found so far that the block lies in becomes a part of this one.
      std::uint32_t inner = cf.blocks[block].loop;
      if (inner == kNoIndex) {
        cf.blocks[block].loop = l;
        work.push_back(block);
        return;
      }
      while (inner != l && cf.loops[inner].parent != kNoIndex)
        inner = cf.loops[inner].parent;
      if (inner == l)
        return;
      cf.loops[inner].parent = l;
      work.push_back(cf.loops[inner].header);
    };
    visit(loop.header);
    work.clear();
    for (const std::uint32_t e : loop.latches) {
      if (cf.edges[e].from != loop.header)
        visit(cf.edges[e].from);
    }
    while (!work.empty()) {
      const std::uint32_t block = work.back();
      work.pop_back();
      for (const std::uint32_t e : cf.blocks[block].in) {
        const std::uint32_t from = cf.edges[e].from;
        if (cf.blocks[from].order != kNoIndex && from != loop.header)
          visit(from);
      }
    }
  }
  for (std::uint32_t e = 0; e < cf.edges.size(); ++e) {
    const Edge& edge = cf.edges[e];
    if (cf.blocks[edge.from].order == kNoIndex)
      continue;
    const std::uint32_t headed = loop_of_header[edge.to];
    if (headed != kNoIndex && !cf.inside(edge.from, headed))
      cf.loops[headed].entries.push_back(e);
    for (std::uint32_t l = cf.blocks[edge.from].loop; l != kNoIndex && !cf.inside(edge.to, l);
         l = cf.loops[l].parent) {
      cf.loops[l].exits.push_back(e);
    }
  }
  return true;
}

}  // namespace

bool ControlFlow::dominates(std::uint32_t above, std::uint32_t below) const {
  while (blocks[below].depth > blocks[above].depth)
    below = blocks[below].idom;
  return above == below;
}

bool ControlFlow::post_dominates(std::uint32_t below, std::uint32_t above) const {
  while (above != below && blocks[above].post_idom != kNoIndex)
    above = blocks[above].post_idom;
  return above == below;
}

bool ControlFlow::nested(std::uint32_t inner, std::uint32_t outer) const {
  while (inner != kNoIndex && inner != outer)
    inner = loops[inner].parent;
  return inner == outer;
}

bool ControlFlow::inside(std::uint32_t block, std::uint32_t loop) const {
  return loop != kNoIndex && nested(blocks[block].loop, loop);
}

bool build_control_flow(const ptx::Function& function, ControlFlow& cf) {
  if (function.code.empty() || !split(function, cf))
    return false;
  cf.reverse_order = order_from(cf, 0, false);
  for (std::uint32_t k = 0; k < cf.reverse_order.size(); ++k)
    cf.blocks[cf.reverse_order[k]].order = k;
  const std::vector<std::uint32_t> idom = dominators(cf, cf.reverse_order, false);
  for (const std::uint32_t b : cf.reverse_order) {
    cf.blocks[b].idom = idom[b];
    cf.blocks[b].depth = idom[b] == kNoIndex ? 0 : cf.blocks[idom[b]].depth + 1;
  }
  // Blocks that no thread leaves (endless loops) have no post-dominator.
  const std::vector<std::uint32_t> post = dominators(cf, order_from(cf, cf.exit, true), true);
  for (std::uint32_t b = 0; b < cf.blocks.size(); ++b)
    cf.blocks[b].post_idom = post[b];
  return find_loops(cf);
}

}  // namespace gpurecover::idempotency
