// SPDX-License-Identifier: Apache-2.0
//
// Registers have 32 bits, addresses 64. Two words that were computed side by side (a sum and the
// sum with its carry, two selections by one predicate, two joins of one block, …) are one value;
// here it is found. Every step is an equality: the value made has exactly the two words. Where
// there is none, the pair stays a pair, which no analysis takes for a pointer.
#include <algorithm>
#include <map>

#include "image/sass/graph.h"

namespace gpurecover::image::sass {
namespace {

constexpr int kMaxDepth = 400;
constexpr std::size_t kMaxSteps = 500'000'000;

class Widener {
 public:
  explicit Widener(Graph& graph) : g_(graph), words_(driver_words(graph.code->sm)) {}

  void run() {
    for (Id id = 0; id < g_.nodes.size() && !g_.too_large; ++id) {
      if (g_[id].replaced != kNoId)
        continue;
      if (g_[id].op == Op::kPack) {
        const Id low = g_.resolve(g_[id].args[0]), high = g_.resolve(g_[id].args[1]);
        const Id w = pair(low, high, 0);
        if (w != id)
          g_[id].replaced = w;
      } else if (g_[id].op == Op::kCompareHigh) {
        compare(id);
      }
    }
    for (Id id = 0; id < g_.nodes.size(); ++id) {
      if (g_[id].replaced == kNoId && g_[id].op == Op::kAdd)
        window(id);
    }
  }

 private:
  bool is(Id id, Op op) { return g_[id].op == op; }
  bool constant(Id id) { return is(id, Op::kConst); }
  Id arg(Id id, int k) { return g_.resolve(g_[id].args[k]); }
  static bool is_leaf(Op op) {
    switch (op) {
      case Op::kConst:
      case Op::kUndef:
      case Op::kParam:
      case Op::kDriver:
      case Op::kSpecial:
      case Op::kStackEnd:
      case Op::kSharedHigh:
      case Op::kConstantWord:
      case Op::kSymbol:
        return true;
      default:
        return false;
    }
  }

  struct Place {
    std::uint32_t block = 0, slot = 0;
    std::size_t index = 0;  // in the slot, behind this
  };
  // The later of two places, one of which dominates the other.
  static bool before(const Graph& g, const Place& a, const Place& b) {
    if (a.block != b.block)
      return g.blocks[a.block].depth < g.blocks[b.block].depth;
    if (a.slot != b.slot)
      return a.slot < b.slot;
    return a.index < b.index;
  }
  Place place_of(Id id) {
    const Node& n = g_[id];
    if (is_leaf(n.op))
      return {};
    const auto& slot = g_.blocks[n.block].slots[n.slot];
    const auto it = std::find(slot.begin(), slot.end(), id);
    steps_ += static_cast<std::size_t>(it - slot.begin());
    if (steps_ > kMaxSteps)
      g_.too_large = true;
    return {n.block, n.slot, static_cast<std::size_t>(it - slot.begin()) + 1};
  }
  // A new value right behind the last of its arguments.
  Id make(Op op, std::uint8_t width, std::initializer_list<Id> args, std::uint64_t imm = 0,
          bool flag = false, Id and_behind = kNoId) {
    Place p;
    for (const Id a : args) {
      const Place q = place_of(g_.resolve(a));
      if (before(g_, p, q))
        p = q;
    }
    if (and_behind != kNoId) {
      const Place q = place_of(and_behind);
      if (before(g_, p, q))
        p = q;
    }
    const std::size_t size = g_.blocks[p.block].slots[p.slot].size();
    const Id id = g_.make(p.block, p.slot, op, width, args, imm, flag);
    auto& slot = g_.blocks[p.block].slots[p.slot];
    // Joins stand first in their slot, in front of everything else.
    if (slot.size() > size) {
      std::size_t index = p.index;
      if (p.slot == 0) {
        while (index < size && g_[slot[index]].op == Op::kPhi)
          ++index;
      }
      std::rotate(slot.begin() + static_cast<std::ptrdiff_t>(index), slot.end() - 1, slot.end());
    }
    return id;
  }
  Id constant64(std::uint64_t v) { return g_.constant(v, 64); }

  static std::uint64_t key(Id low, Id high) { return (std::uint64_t{low} << 32) | high; }

  Id pair(Id low, Id high, int depth) {
    low = g_.resolve(low);
    high = g_.resolve(high);
    const auto it = memo_.find(key(low, high));
    if (it != memo_.end())
      return g_.resolve(it->second);
    Id id = depth > kMaxDepth || g_.too_large ? kNoId : find(low, high, depth);
    if (id == kNoId)
      id = raw_pair(low, high);
    memo_[key(low, high)] = id;
    return g_.resolve(id);
  }
  Id raw_pair(Id low, Id high) {
    const Id id = make(Op::kPack, 64, {low, high});
    return id;
  }

  // Whether two words look, at first sight, like the words of one value.
  bool natural(Id low, Id high) {
    const Node &a = g_[low], &b = g_[high];
    if (b.op == Op::kConst && (b.imm == 0 || a.op == Op::kConst))
      return true;
    if (a.op == Op::kLow)
      return b.op == Op::kHigh && arg(low, 0) == arg(high, 0);
    if (b.op == Op::kSharedHigh)
      return true;
    if (b.op == Op::kShiftRight && b.imm == 2 && arg(high, 0) == low &&
        g_.is_const(arg(high, 1), 31))
      return true;
    if (a.op == Op::kShiftLeft)
      return b.op == Op::kFunnel && arg(low, 0) == arg(high, 0);
    if (a.op != b.op)
      return a.op == Op::kAdd3 ? linked(low, high) : a.op == Op::kFunnel && b.op == Op::kShiftRight;
    switch (a.op) {
      case Op::kParam:
      case Op::kDriver:
      case Op::kConstantWord:
        return b.imm == a.imm + 4;
      case Op::kPhi:
        return a.block == b.block;
      case Op::kSelect:
        return arg(low, 0) == arg(high, 0);
      case Op::kAdd3:
        return linked(low, high);
      case Op::kUniform:
      case Op::kLogic:
        return true;
      default:
        return false;
    }
  }
  // The upper word takes the carry of the lower one.
  bool linked(Id low, Id high) {
    if (!is(high, Op::kAdd3) || (g_[high].imm & kExtended) == 0)
      return false;
    for (int k = 3; k < 5; ++k) {
      const Id c = arg(high, k);
      if (is(c, Op::kCarry) && arg(c, 0) == low)
        return true;
    }
    return false;
  }

  Id find(Id low, Id high, int depth) {
    const Node a = g_[low], b = g_[high];
    if (a.op == Op::kConst && b.op == Op::kConst)
      return constant64((b.imm << 32) | a.imm);
    if (a.op == Op::kUndef && b.op == Op::kUndef)
      return g_.leaf(Op::kUndef, 64, 0);
    if (a.op == Op::kLow && b.op == Op::kHigh && arg(low, 0) == arg(high, 0))
      return arg(low, 0);
    if (a.op == Op::kParam && b.op == Op::kParam && b.imm == a.imm + 4 &&
        g_.parameter(a.imm, 8) != nullptr)
      return g_.leaf(Op::kParam, 64, a.imm);
    if (a.op == Op::kDriver && b.op == Op::kDriver && b.imm == a.imm + 4)
      return g_.leaf(Op::kDriver, 64, a.imm);
    // Both words in one variable: else they are neighbours by chance.
    if (a.op == Op::kConstantWord && b.op == Op::kConstantWord && b.imm == a.imm + 4 &&
        g_.code->constant_at(a.imm) == g_.code->constant_at(b.imm + 3))
      return g_.leaf(Op::kConstantWord, 64, a.imm);
    if (g_.is_const(high, 0))
      return make(Op::kUnsigned, 64, {low});
    if (b.op == Op::kShiftRight && (b.imm & 2) != 0 && arg(high, 0) == low &&
        g_.is_const(arg(high, 1), 31))
      return make(Op::kSigned, 64, {low});
    if (b.op == Op::kSharedHigh)
      return make(Op::kShared, 64, {low});
    if (linked(low, high)) {
      if (const Id s = sum(low, high, depth); s != kNoId)
        return s;
    }
    if (a.op == Op::kSelect && b.op == Op::kSelect && arg(low, 0) == arg(high, 0)) {
      const Id yes = pair(arg(low, 1), arg(high, 1), depth + 1);
      const Id no = pair(arg(low, 2), arg(high, 2), depth + 1);
      return make(Op::kSelect, 64, {arg(low, 0), yes, no});
    }
    if (a.op == Op::kSelect && is_leaf(b.op) && natural(arg(low, 1), high) &&
        natural(arg(low, 2), high)) {
      const Id yes = pair(arg(low, 1), high, depth + 1), no = pair(arg(low, 2), high, depth + 1);
      return make(Op::kSelect, 64, {arg(low, 0), yes, no});
    }
    if (a.op == Op::kPhi && b.op == Op::kPhi && a.block == b.block)
      return join(low, high, depth);
    if (a.op == Op::kUniform && b.op == Op::kUniform)
      return make(Op::kUniform, 64, {pair(arg(low, 0), arg(high, 0), depth + 1)});
    if (a.op == Op::kShiftLeft && g_.is_const(arg(low, 1), g_[arg(low, 1)].imm) && a.imm == 0) {
      const std::uint64_t n = g_[arg(low, 1)].imm;
      if (constant(arg(low, 1)) && n > 0 && n < 32) {
        if (b.op == Op::kFunnel && arg(high, 0) == arg(low, 0) && b.imm == 32 - n)
          return make(Op::kLeft, 64, {pair(arg(low, 0), arg(high, 1), depth + 1)}, n);
        if (b.op == Op::kShiftRight && arg(high, 0) == arg(low, 0) &&
            g_.is_const(arg(high, 1), 32 - n))
          return make(Op::kLeft, 64,
                      {make((b.imm & 2) != 0 ? Op::kSigned : Op::kUnsigned, 64, {arg(low, 0)})}, n);
      }
    }
    if (a.op == Op::kConst && a.imm == 0 && b.op == Op::kShiftLeft && constant(arg(high, 1)) &&
        g_[arg(high, 1)].imm < 32) {
      return make(Op::kLeft, 64, {make(Op::kUnsigned, 64, {arg(high, 0)})},
                  g_[arg(high, 1)].imm + 32);
    }
    if (a.op == Op::kFunnel && b.op == Op::kShiftRight && arg(low, 1) == arg(high, 0) &&
        g_.is_const(arg(high, 1), a.imm))
      return make(Op::kRight, 64, {pair(arg(low, 0), arg(low, 1), depth + 1)}, a.imm,
                  (b.imm & 2) != 0);
    if (const Id l = logic(low, high, depth); l != kNoId)
      return l;
    if (const Id r = raised(low, high, depth); r != kNoId)
      return r;
    return product(low, high, depth);
  }

  Id join(Id low, Id high, int depth) {
    const std::uint32_t block = g_[low].block;
    const std::vector<Id> lows = g_.phis[g_[low].imm], highs = g_.phis[g_[high].imm];
    if (lows.size() != highs.size() || lows.empty())
      return kNoId;
    // Where only the lower words differ, this is no join of its own.
    const Id phi = g_.make(block, 0, Op::kPhi, 64, {}, g_.phis.size());
    if (g_.too_large)
      return kNoId;
    auto& slot = g_.blocks[block].slots[0];
    std::rotate(slot.begin(), slot.end() - 1, slot.end());
    const std::size_t index = g_.phis.size();
    g_.phis.emplace_back();
    memo_[key(low, high)] = phi;
    std::vector<Id> args;
    args.reserve(lows.size());
    for (std::size_t k = 0; k < lows.size(); ++k)
      args.push_back(pair(lows[k], highs[k], depth + 1));
    Id only = kNoId;
    bool trivial = true;
    for (Id& a : args) {
      a = g_.resolve(a);
      if (a == phi || a == only)
        continue;
      trivial &= only == kNoId;
      only = a;
    }
    g_.phis[index] = std::move(args);
    if (trivial && only != kNoId)
      g_[phi].replaced = only;
    return phi;
  }

  struct Term {
    Id id = kNoId;
    bool negated = false;
  };
  // The sums whose carries go into the upper word; low is one of them, and another may be a term of
  // it. Their other terms are the lower terms.
  bool lower_terms(Id id, std::vector<std::pair<Id, int>>& carries, std::vector<Term>& terms,
                   int depth) {
    int taken = 0;
    for (auto& [of, which] : carries) {
      if (of == id) {
        taken = which;
        which = 0;
      }
    }
    const Node n = g_[id];
    std::size_t own = 0;
    for (int k = 0; k < 3; ++k) {
      const bool negated = (n.imm >> k & 1) != 0;
      const Id a = arg(id, k);
      if (!negated && g_.is_const(a, 0))
        continue;
      ++own;
      const bool inner = !negated && depth < 3 && is(a, Op::kAdd3) &&
                         std::any_of(carries.begin(), carries.end(),
                                     [&](const auto& c) { return c.first == a && c.second != 0; });
      if (inner) {
        if (!lower_terms(a, carries, terms, depth + 1))
          return false;
      } else {
        terms.push_back({a, negated});
      }
    }
    // Both carries, or one where there can be no second.
    return taken == 3 || (taken == 1 && own <= 2);
  }

  // lower: a sum without a carry in; upper: likewise, with the carries of the lower.
  Id sum(Id low, Id high, int depth) {
    const Node b = g_[high];
    std::vector<Term> lower, upper;
    for (int k = 0; k < 3; ++k) {
      const bool negated = (b.imm >> k & 1) != 0;
      if (negated || !g_.is_const(arg(high, k), 0))
        upper.push_back({arg(high, k), negated});
    }
    std::vector<std::pair<Id, int>> carries;
    for (int k = 3; k < 5; ++k) {
      const Id c = arg(high, k);
      if (g_.is_const(c, 0))
        continue;
      if (!is(c, Op::kCarry))
        return kNoId;
      const Id of = arg(c, 0);
      const int which = 1 << g_[c].imm;
      const auto it = std::find_if(carries.begin(), carries.end(),
                                   [&](const auto& x) { return x.first == of; });
      if (it == carries.end()) {
        carries.emplace_back(of, which);
      } else if ((it->second & which) != 0) {
        return kNoId;
      } else {
        it->second |= which;
      }
    }
    if (!lower_terms(low, carries, lower, 0) ||
        std::any_of(carries.begin(), carries.end(), [](const auto& c) { return c.second != 0; }))
      return kNoId;
    // A product in the upper word is its own term there; the lower one has none like it.
    const Id zero = g_.constant(0);
    while (lower.size() < upper.size())
      lower.push_back({zero, false});
    while (upper.size() < lower.size())
      upper.push_back({zero, false});
    const std::size_t n = lower.size();
    if (n == 0 || n > 5)
      return kNoId;
    std::vector<std::size_t> order(n), best;
    for (std::size_t k = 0; k < n; ++k)
      order[k] = k;
    int best_score = -1;
    do {
      int score = 0;
      for (std::size_t k = 0; k < n; ++k) {
        const Term &l = lower[k], &u = upper[order[k]];
        if (l.negated != u.negated) {
          score = -100;
          break;
        }
        score += natural(l.id, u.id) ? 1 : 0;
      }
      if (score > best_score) {
        best_score = score;
        best = order;
      }
    } while (std::next_permutation(order.begin(), order.end()));
    if (best_score < 0)
      return kNoId;
    Id total = kNoId;
    for (const bool minus : {false, true}) {
      for (std::size_t k = 0; k < n; ++k) {
        if (lower[k].negated != minus)
          continue;
        const Id term = pair(lower[k].id, upper[best[k]].id, depth + 1);
        if (minus) {
          total =
              make(Op::kSub, 64, {total == kNoId ? constant64(0) : total, term}, 0, false, high);
        } else {
          total = total == kNoId ? term : make(Op::kAdd, 64, {total, term}, 0, false, high);
        }
      }
    }
    return total;
  }

  // Both words by the same table of two operands; or one word by a constant.
  Id logic(Id low, Id high, int depth) {
    auto two = [&](Id id, Id& x, Id& y) -> int {
      if (!is(id, Op::kLogic))
        return -1;
      // Which of the three operands matter, and the table of those two.
      const std::uint32_t t = static_cast<std::uint32_t>(g_[id].imm);
      struct Known {
        std::uint32_t table;
        int a, b, how;
      };
      static constexpr Known kTables[] = {
          {0xC0, 0, 1, 0}, {0xA0, 0, 2, 0}, {0x88, 1, 2, 0}, {0xFC, 0, 1, 1}, {0xFA, 0, 2, 1},
          {0xEE, 1, 2, 1}, {0x3C, 0, 1, 2}, {0x5A, 0, 2, 2}, {0x66, 1, 2, 2},
      };
      for (const Known& k : kTables) {
        if (k.table == t) {
          x = arg(id, k.a);
          y = arg(id, k.b);
          return k.how;
        }
      }
      return -1;
    };
    Id a0 = kNoId, b0 = kNoId, a1 = kNoId, b1 = kNoId;
    const int how_low = two(low, a0, b0), how_high = two(high, a1, b1);
    if (how_low >= 0 && how_low == how_high) {
      if (!natural(a0, a1) && natural(a0, b1))
        std::swap(a1, b1);
      return make(Op::kBits, 64, {pair(a0, a1, depth + 1), pair(b0, b1, depth + 1)},
                  static_cast<std::uint64_t>(how_low));
    }
    auto one_word = [&](int how, Id x, Id y, bool lower, Id other) -> Id {
      if (constant(x))
        std::swap(x, y);
      if (!constant(y) || (lower ? !natural(x, other) : !natural(other, x)))
        return kNoId;
      const std::uint64_t keep = how == 0 ? 0xFFFFFFFF : 0;
      const std::uint64_t mask = lower ? (keep << 32) | g_[y].imm : (g_[y].imm << 32) | keep;
      const Id whole = lower ? pair(x, other, depth + 1) : pair(other, x, depth + 1);
      return make(Op::kBits, 64, {whole, constant64(mask)}, static_cast<std::uint64_t>(how));
    };
    if (how_low >= 0 && how_high < 0)
      return one_word(how_low, a0, b0, true, high);
    if (how_high >= 0 && how_low < 0)
      return one_word(how_high, a1, b1, false, low);
    return kNoId;
  }

  // low = words of u + y, where u is below 2^32; high = its upper word + t: (t:u) + y.
  Id raised(Id low, Id high, int depth) {
    if (!is(low, Op::kLow) || !is(high, Op::kAdd3) || g_[high].imm != 0)
      return kNoId;
    const Id full = arg(low, 0);
    if (!is(full, Op::kAdd))
      return kNoId;
    Id t = kNoId, from_full = kNoId;
    for (int k = 0; k < 3; ++k) {
      const Id a = arg(high, k);
      if (g_.is_const(a, 0))
        continue;
      Id& into = from_full == kNoId && is(a, Op::kHigh) && arg(a, 0) == full ? from_full : t;
      if (into != kNoId)
        return kNoId;
      into = a;
    }
    if (t == kNoId || from_full == kNoId)
      return kNoId;
    for (int k = 0; k < 2; ++k) {
      const Id u = arg(full, k);
      if (is(u, Op::kUnsigned))
        return make(Op::kAdd, 64, {pair(arg(u, 0), t, depth + 1), arg(full, 1 - k)}, 0, false,
                    high);
    }
    return kNoId;
  }

  // A product of 64-bit values: the lower words in full, and the crosswise products above.
  Id product(Id low, Id high, int depth) {
    if (!is(low, Op::kLow))
      return kNoId;
    const Id full = arg(low, 0);
    Id wide = full, addend = kNoId;
    if (is(full, Op::kAdd)) {
      wide = arg(full, 0);
      addend = arg(full, 1);
    }
    if (!is(wide, Op::kWide) || (g_[wide].imm & 2) != 0)
      return kNoId;
    std::vector<std::pair<Id, Id>> crosswise;
    bool has_high = false;
    std::vector<Id> open{high};
    while (!open.empty() && crosswise.size() <= 2) {
      const Id id = open.back();
      open.pop_back();
      const Node n = g_[id];
      if (n.op == Op::kHigh && arg(id, 0) == full) {
        if (has_high)
          return kNoId;
        has_high = true;
      } else if (n.op == Op::kMad && n.imm == 0) {
        crosswise.emplace_back(arg(id, 0), arg(id, 1));
        if (!g_.is_const(arg(id, 2), 0))
          open.push_back(arg(id, 2));
      } else if (n.op == Op::kAdd3 && n.imm == 0) {
        for (int k = 0; k < 3; ++k) {
          if (!g_.is_const(arg(id, k), 0))
            open.push_back(arg(id, k));
        }
      } else {
        return kNoId;
      }
    }
    if (!has_high || crosswise.empty() || crosswise.size() > 2)
      return kNoId;
    const Id a0 = arg(wide, 0), b0 = arg(wide, 1);
    Id a1 = kNoId, b1 = kNoId;
    for (const auto& [x, y] : crosswise) {
      // One factor is a lower word of one side; the other is the upper word of the other side.
      if ((x == b0 || y == b0) && a1 == kNoId) {
        a1 = x == b0 ? y : x;
      } else if ((x == a0 || y == a0) && b1 == kNoId) {
        b1 = x == a0 ? y : x;
      } else {
        return kNoId;
      }
    }
    const Id zero = g_.constant(0);
    const Id a = pair(a0, a1 == kNoId ? zero : a1, depth + 1);
    const Id b = pair(b0, b1 == kNoId ? zero : b1, depth + 1);
    const Id m = make(Op::kMultiply, 64, {a, b}, 0, false, high);
    return addend == kNoId ? m : make(Op::kAdd, 64, {m, addend}, 0, false, high);
  }

  // Comparisons of 64-bit values: the upper words, and the lower ones where those are equal.
  void compare(Id id) {
    const Id before = arg(id, 2);
    const Node upper = g_[id], lower = g_[before];
    if (lower.op != Op::kCompare || (lower.imm & ~std::uint64_t{7}) != 0 ||
        (lower.imm & 7) != (upper.imm & 7))
      return;
    const Id a = pair(arg(before, 0), arg(id, 0), 0), b = pair(arg(before, 1), arg(id, 1), 0);
    const Id c = make(Op::kCompare, 1, {a, b}, (upper.imm & 15) | kCompare64, false, id);
    g_[id].replaced = c;
  }

  // The generic address of local or shared memory is that of its window plus the address in it.
  void window(Id id) {
    for (int k = 0; k < 2; ++k) {
      const Id base = arg(id, k), other = arg(id, 1 - k);
      if (!is(base, Op::kDriver))
        continue;
      const bool local = g_[base].imm == words_.local_window;
      const bool shared = words_.shared_window != 0 && g_[base].imm == words_.shared_window;
      if (!local && !shared)
        continue;
      Id word = kNoId;
      if (is(other, Op::kUnsigned) || is(other, Op::kSigned)) {
        word = arg(other, 0);
      } else {
        word = make(Op::kLow, 32, {other});
      }
      g_[id].replaced = make(local ? Op::kLocal : Op::kShared, 64, {word}, 0, false, id);
      return;
    }
  }

  Graph& g_;
  const DriverWords& words_;
  std::unordered_map<std::uint64_t, Id> memo_;
  std::size_t steps_ = 0;
};

}  // namespace

void widen(Graph& graph) {
  Widener(graph).run();
}

}  // namespace gpurecover::image::sass
