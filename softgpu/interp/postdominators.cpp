// SPDX-License-Identifier: Apache-2.0
#include "softgpu/interp/postdominators.h"

#include <algorithm>

namespace gpurecover::softgpu::interp {
namespace {

using image::ptx::Function;
using image::ptx::Instruction;
using image::ptx::kNoIndex;
using image::ptx::Opcode;
using image::ptx::OperandKind;

bool EndsBlock(const Instruction& i) {
  return i.opcode == Opcode::kBra || i.opcode == Opcode::kBrx || i.opcode == Opcode::kRet ||
         i.opcode == Opcode::kExit || i.opcode == Opcode::kTrap;
}

// Targets of a branch, appended to `targets`.
void Targets(const Function& f, const Instruction& i, std::vector<uint32_t>& targets) {
  const auto operands = f.operands_of(i);
  if (i.opcode == Opcode::kBra && !operands.empty() && operands[0].kind == OperandKind::kLabel)
    targets.push_back(operands[0].index);
  if (i.opcode == Opcode::kBrx && operands.size() > 1 && operands[1].kind == OperandKind::kSymbol &&
      operands[1].symbol_kind == image::ptx::SymbolKind::kBranchTable) {
    const auto& table = f.tables[operands[1].index];
    if (!table.is_call)
      targets.insert(targets.end(), table.targets.begin(), table.targets.end());
  }
}

}  // namespace

std::vector<uint32_t> ReconvergencePoints(const Function& f) {
  const uint32_t n = static_cast<uint32_t>(f.code.size());
  std::vector<uint32_t> result(n, n);
  if (n == 0)
    return result;

  std::vector<uint8_t> leader(n + 1, 0);
  leader[0] = leader[n] = 1;
  std::vector<uint32_t> targets;
  for (uint32_t i = 0; i < n; ++i)
    if (EndsBlock(f.code[i])) {
      leader[i + 1] = 1;
      targets.clear();
      Targets(f, f.code[i], targets);
      for (uint32_t t : targets)
        leader[t] = 1;
    }
  // Block b begins at start[b]; the last one, at n, is the exit.
  std::vector<uint32_t> block_of(n + 1), start;
  for (uint32_t i = 0; i <= n; ++i) {
    if (leader[i])
      start.push_back(i);
    block_of[i] = static_cast<uint32_t>(start.size() - 1);
  }
  const uint32_t blocks = static_cast<uint32_t>(start.size()), exit = blocks - 1;
  std::vector<std::vector<uint32_t>> successors(blocks), predecessors(blocks);
  for (uint32_t b = 0; b < exit; ++b) {
    const uint32_t last = start[b + 1] - 1;
    const Instruction& i = f.code[last];
    auto& s = successors[b];
    if (i.opcode == Opcode::kBra || i.opcode == Opcode::kBrx) {
      targets.clear();
      Targets(f, i, targets);
      for (uint32_t t : targets)
        s.push_back(block_of[t]);
      if (i.guard != kNoIndex)
        s.push_back(b + 1);
    } else if (EndsBlock(i)) {
      s.push_back(exit);
      if (i.guard != kNoIndex)
        s.push_back(b + 1);
    } else {
      s.push_back(b + 1);
    }
    std::sort(s.begin(), s.end());
    s.erase(std::unique(s.begin(), s.end()), s.end());
  }
  for (uint32_t b = 0; b < blocks; ++b)
    for (uint32_t s : successors[b])
      predecessors[s].push_back(b);

  // Blocks from which the end cannot be reached (endless loops) get an edge to it.
  auto reach = [&](std::vector<uint8_t>& seen, std::vector<uint32_t>& order) {
    seen.assign(blocks, 0);
    order.clear();
    std::vector<std::pair<uint32_t, uint32_t>> stack{{exit, 0}};
    seen[exit] = 1;
    while (!stack.empty()) {
      auto& [b, next] = stack.back();
      if (next < predecessors[b].size()) {
        const uint32_t p = predecessors[b][next++];
        if (!seen[p]) {
          seen[p] = 1;
          stack.emplace_back(p, 0);
        }
      } else {
        order.push_back(b);
        stack.pop_back();
      }
    }
  };
  std::vector<uint8_t> seen;
  std::vector<uint32_t> order;
  reach(seen, order);
  bool added = false;
  for (uint32_t b = 0; b < blocks; ++b)
    if (!seen[b]) {
      successors[b].push_back(exit);
      predecessors[exit].push_back(b);
      added = true;
    }
  if (added)
    reach(seen, order);

  // Cooper, Harvey, Kennedy on the reversed graph.
  std::vector<uint32_t> rank(blocks);
  for (uint32_t k = 0; k < order.size(); ++k)
    rank[order[k]] = k;
  std::vector<uint32_t> ipdom(blocks, kNoIndex);
  ipdom[exit] = exit;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t k = order.size(); k-- > 0;) {
      const uint32_t b = order[k];
      if (b == exit)
        continue;
      uint32_t meet = kNoIndex;
      for (uint32_t s : successors[b]) {
        if (ipdom[s] == kNoIndex)
          continue;
        if (meet == kNoIndex) {
          meet = s;
          continue;
        }
        uint32_t x = meet, y = s;
        while (x != y) {
          while (rank[x] < rank[y])
            x = ipdom[x];
          while (rank[y] < rank[x])
            y = ipdom[y];
        }
        meet = x;
      }
      if (meet != ipdom[b]) {
        ipdom[b] = meet;
        changed = true;
      }
    }
  }
  for (uint32_t b = 0; b < exit; ++b) {
    const uint32_t last = start[b + 1] - 1;
    if (EndsBlock(f.code[last]) && ipdom[b] != kNoIndex)
      result[last] = start[ipdom[b]];
  }
  return result;
}

}  // namespace gpurecover::softgpu::interp
