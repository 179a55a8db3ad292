// SPDX-License-Identifier: Apache-2.0
#include "image/sass/graph.h"

#include <algorithm>
#include <bit>

namespace gpurecover::image::sass {
namespace {

// About 100 MB.
constexpr std::size_t kMaxNodes = 1u << 20;

}  // namespace

const KernelParameter* Graph::parameter(std::uint64_t at, std::uint32_t size) const {
  for (const KernelParameter& p : kernel->parameters) {
    if (at >= p.offset && at + size <= std::uint64_t{p.offset} + p.size)
      return &p;
  }
  return nullptr;
}

Id Graph::leaf(Op op, std::uint8_t width, std::uint64_t imm) {
  auto& map = leaves_[width == 1 ? 0 : width == 32 ? 1 : 2];
  // Constants may have any value; the others are small numbers.
  const std::uint64_t key = op == Op::kConst ? imm * 2 : (imm * 64 + static_cast<int>(op)) * 2 + 1;
  if (op == Op::kConst && imm > ~std::uint64_t{0} / 2) {
    // The key would not hold it: such constants are not shared.
    Node n;
    n.op = op;
    n.width = width;
    n.imm = imm;
    nodes.push_back(n);
    return static_cast<Id>(nodes.size() - 1);
  }
  const auto [it, is_new] = map.try_emplace(key, static_cast<Id>(nodes.size()));
  if (is_new) {
    Node n;
    n.op = op;
    n.width = width;
    n.imm = imm;
    nodes.push_back(n);
  }
  return it->second;
}

Id Graph::simpler(Op op, std::uint8_t width, const Id* a, std::uint64_t imm) {
  auto known = [&](int k) { return nodes[a[k]].op == Op::kConst; };
  auto value = [&](int k) { return nodes[a[k]].imm; };
  auto is = [&](int k, std::uint64_t v) { return known(k) && value(k) == v; };
  auto word = [&](std::uint64_t v) { return constant(v & 0xFFFFFFFF); };
  switch (op) {
    case Op::kAdd3: {
      if ((imm & kExtended) != 0)
        return kNoId;
      std::uint64_t sum = 0;
      Id other = kNoId;
      bool negated = false;
      for (int k = 0; k < 3; ++k) {
        const bool minus = (imm >> k & 1) != 0;
        if (known(k)) {
          sum += minus ? 0 - value(k) : value(k);
        } else if (other == kNoId) {
          other = a[k];
          negated = minus;
        } else {
          return kNoId;
        }
      }
      if (other == kNoId)
        return word(sum);
      return !negated && (sum & 0xFFFFFFFF) == 0 ? other : kNoId;
    }
    case Op::kMad: {
      const bool minus = (imm & 1) != 0, minus_c = (imm & 2) != 0;
      if ((known(0) && known(1)) || is(0, 0) || is(1, 0)) {
        const std::uint64_t product = known(0) && known(1) ? value(0) * value(1) : 0;
        const std::uint64_t p = minus ? 0 - product : product;
        if (known(2))
          return word(p + (minus_c ? 0 - value(2) : value(2)));
        if ((p & 0xFFFFFFFF) == 0 && !minus_c)
          return a[2];
      }
      if (!minus && !minus_c && is(2, 0)) {
        if (is(0, 1))
          return a[1];
        if (is(1, 1))
          return a[0];
      }
      return kNoId;
    }
    case Op::kLogic: {
      // Operands that are known, or that the table does not look at, drop out.
      std::uint32_t table = static_cast<std::uint32_t>(imm) & 0xFF;
      static constexpr std::uint32_t kMasks[3] = {0xF0, 0xCC, 0xAA};
      for (int k = 0; k < 3; ++k) {
        const std::uint32_t m = kMasks[k];
        const int shift = 4 >> k;
        const std::uint32_t ones = (table & m) | ((table & m) >> shift);
        const std::uint32_t zeros = (table & ~m) | ((table & ~m) << shift);
        if (is(k, 0))
          table = zeros & 0xFF;
        if (is(k, 0xFFFFFFFF))
          table = ones & 0xFF;
      }
      if (table == 0)
        return word(0);
      if (table == 0xFF)
        return word(~0u);
      for (int k = 0; k < 3; ++k) {
        if (table == kMasks[k])
          return a[k];
      }
      if (known(0) && known(1) && known(2)) {
        std::uint32_t r = 0;
        for (int bit = 0; bit < 32; ++bit) {
          const auto index =
              ((value(0) >> bit & 1) << 2) | ((value(1) >> bit & 1) << 1) | (value(2) >> bit & 1);
          r |= (table >> index & 1) << bit;
        }
        return word(r);
      }
      return kNoId;
    }
    case Op::kShiftLeft:
    case Op::kShiftRight:
      if (is(0, 0))
        return a[0];
      if (!known(1))
        return kNoId;
      {
        const std::uint64_t n =
            (imm & 1) != 0 ? value(1) & 31 : std::min<std::uint64_t>(value(1), 32);
        if (n == 0)
          return a[0];
        if (op == Op::kShiftLeft) {
          if (n == 32)
            return word(0);
          return known(0) ? word(value(0) << n) : kNoId;
        }
        const bool is_signed = (imm & 2) != 0;
        if (n == 32 && !is_signed)
          return word(0);
        if (!known(0))
          return kNoId;
        return is_signed ? word(static_cast<std::uint64_t>(
                               static_cast<std::int64_t>(static_cast<std::int32_t>(value(0))) >> n))
                         : word(value(0) >> n);
      }
    case Op::kFunnel:
      if (known(0) && known(1))
        return word(((value(1) << 32) | value(0)) >> imm);
      return kNoId;
    case Op::kPermute:
      if (is(1, 0x3210))
        return a[0];
      if (is(1, 0x7654))
        return a[2];
      return kNoId;
    case Op::kSelect:
      if (known(0))
        return value(0) != 0 ? a[1] : a[2];
      if (a[1] == a[2] || nodes[a[2]].op == Op::kUndef)
        return a[1];
      if (nodes[a[1]].op == Op::kUndef)
        return a[2];
      return kNoId;
    case Op::kUniform:
      return known(0) ? a[0] : kNoId;
    case Op::kLow:
      if (known(0))
        return word(value(0));
      return nodes[a[0]].op == Op::kPack ? resolve(nodes[a[0]].args[0]) : kNoId;
    case Op::kHigh:
      if (known(0))
        return word(value(0) >> 32);
      return nodes[a[0]].op == Op::kPack ? resolve(nodes[a[0]].args[1]) : kNoId;
    case Op::kNot:
      if (known(0))
        return constant(value(0) ^ 1, 1);
      return nodes[a[0]].op == Op::kNot ? resolve(nodes[a[0]].args[0]) : kNoId;
    case Op::kAnd:
      if (is(0, 0) || is(1, 1))
        return a[0];
      if (is(1, 0) || is(0, 1))
        return a[1];
      return a[0] == a[1] ? a[0] : kNoId;
    case Op::kOr:
      if (is(0, 1) || is(1, 0))
        return a[0];
      if (is(1, 1) || is(0, 0))
        return a[1];
      return a[0] == a[1] ? a[0] : kNoId;
    case Op::kXor:
      if (is(1, 0))
        return a[0];
      return is(0, 0) ? a[1] : kNoId;
    case Op::kAdd:
      if (known(0) && known(1))
        return constant(value(0) + value(1), 64);
      if (is(0, 0))
        return a[1];
      return is(1, 0) ? a[0] : kNoId;
    case Op::kSub:
      if (known(0) && known(1))
        return constant(value(0) - value(1), 64);
      return is(1, 0) ? a[0] : kNoId;
    case Op::kWide:
      if (is(0, 0) || is(1, 0))
        return constant(0, 64);
      if (known(0) && known(1) && (imm & 2) == 0)
        return constant(value(0) * value(1), 64);
      return kNoId;
    default:
      (void)width;
      return kNoId;
  }
}

Id Graph::make(std::uint32_t block, std::uint32_t slot, Op op, std::uint8_t width,
               std::initializer_list<Id> args, std::uint64_t imm, bool flag) {
  Node n;
  n.op = op;
  n.width = width;
  n.imm = imm;
  n.flag = flag;
  n.block = block;
  n.slot = slot;
  for (const Id a : args)
    n.args[n.count++] = resolve(a);
  // One form for a choice by a predicate and by its opposite.
  while (op == Op::kSelect && nodes[n.args[0]].op == Op::kNot) {
    n.args[0] = resolve(nodes[n.args[0]].args[0]);
    std::swap(n.args[1], n.args[2]);
  }
  if (!flag || op != Op::kAdd3) {
    if (const Id s = simpler(op, width, n.args.data(), imm); s != kNoId)
      return s;
  }
  if (nodes.size() >= kMaxNodes) {
    too_large = true;
    return leaf(Op::kUndef, width, 0);
  }
  nodes.push_back(n);
  const Id id = static_cast<Id>(nodes.size() - 1);
  blocks[block].slots[slot].push_back(id);
  return id;
}

bool Graph::simplify() {
  bool changed = false;
  const auto count = static_cast<Id>(nodes.size());
  for (Id id = 0; id < count; ++id) {
    if (nodes[id].replaced != kNoId || nodes[id].count == 0)
      continue;
    bool moved = false;
    for (int k = 0; k < nodes[id].count; ++k) {
      const Id a = resolve(nodes[id].args[k]);
      moved |= a != nodes[id].args[k];
      nodes[id].args[k] = a;
    }
    if (!moved || nodes[id].op == Op::kEffect)
      continue;
    const Node n = nodes[id];
    // A sum whose carries are used stays what it is.
    if (!(n.flag && n.op == Op::kAdd3)) {
      if (const Id s = simpler(n.op, n.width, n.args.data(), n.imm); s != kNoId && s != id) {
        nodes[id].replaced = s;
        changed = true;
        continue;
      }
    }
    if (n.op != Op::kMad || n.imm != 0)
      continue;
    const int k = nodes[n.args[0]].op == Op::kConst ? 0 : 1;
    const Node factor = nodes[n.args[k]];
    if (factor.op != Op::kConst || !std::has_single_bit(factor.imm))
      continue;
    const Id other = n.args[1 - k];
    if (factor.imm == 1) {
      const Id zero = constant(0);
      nodes[id].op = Op::kAdd3;
      nodes[id].args = {other, n.args[2], zero, kNoId, kNoId};
    } else if (is_const(n.args[2], 0)) {
      const Id amount = constant(static_cast<std::uint64_t>(std::countr_zero(factor.imm)));
      nodes[id].op = Op::kShiftLeft;
      nodes[id].args = {other, amount, kNoId, kNoId, kNoId};
      nodes[id].count = 2;
    } else {
      continue;
    }
    changed = true;
  }
  return changed;
}

Id Graph::negation(std::uint32_t block, std::uint32_t slot, Id predicate) {
  return make(block, slot, Op::kNot, 1, {predicate});
}

}  // namespace gpurecover::image::sass
