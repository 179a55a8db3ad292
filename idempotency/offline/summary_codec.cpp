// SPDX-License-Identifier: Apache-2.0
#include "idempotency/offline/summary_codec.h"

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "idempotency/address_program.h"

namespace gpurecover::idempotency {
namespace {

// The analysis stops far below these (kMaxSteps and kMaxSites of address_builder.cpp).
constexpr std::size_t kMaxSteps = 16'384, kMaxSites = 8'192, kMaxContexts = 16'384;
constexpr std::size_t kMaxAccesses = 65'536, kMaxParamBytes = 1u << 20;

constexpr AccessKind last_of(AccessKind) {
  return AccessKind::kReadModifyWrite;
}
constexpr MemorySpace last_of(MemorySpace) {
  return MemorySpace::kGeneric;
}
constexpr RootKind last_of(RootKind) {
  return RootKind::kUnknown;
}
constexpr Origin last_of(Origin) {
  return Origin::kDeclaration;
}
constexpr StepKind last_of(StepKind) {
  return StepKind::kEither;
}
constexpr Relation last_of(Relation) {
  return Relation::kNotEqual;
}

template <class T, class U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

// What a struct consists of, once for writing and reading. The structured bindings are there so
// that a member which is added and not listed here does not compile: it would be lost.
void fields(auto& a, Is<Root> auto& x) {
  auto& [kind, param_offset, param_size, symbol, address] = x;
  a(kind), a(param_offset), a(param_size), a(symbol), a(address);
}
void fields(auto& a, Is<Alternative> auto& x) {
  auto& [roots, subtracted, has_other_terms, may_hide_pointer] = x;
  a(roots), a(subtracted), a(has_other_terms), a(may_hide_pointer);
}
void fields(auto& a, Is<Access> auto& x) {
  auto& [kind, space, element_bytes, alternatives, line, range_begin, range_end, sites] = x;
  a(kind), a(space), a(element_bytes), a(alternatives), a(line), a(range_begin), a(range_end);
  a(sites);
}
void fields(auto& a, Is<Step> auto& x) {
  auto& [kind, relation, width, from, bytes, is_signed, op_a, op_b, op_c, op_d, context, symbol,
         low, high] = x;
  a(kind), a(relation), a(width), a(from), a(bytes), a(is_signed), a(op_a), a(op_b), a(op_c);
  a(op_d), a(context), a(symbol), a(low), a(high);
}
void fields(auto& a, Is<LoopCondition> auto& x) {
  auto& [moving, fixed, relation, width, is_signed, fixed_signed] = x;
  a(moving), a(fixed), a(relation), a(width), a(is_signed), a(fixed_signed);
}
void fields(auto& a, Is<LoopInfo> auto& x) {
  auto& [symbol, context, entry, parent, first, count, first_way, ways] = x;
  a(symbol), a(context), a(entry), a(parent), a(first), a(count), a(first_way), a(ways);
}
void fields(auto& a, Is<MergePart> auto& x) {
  auto& [slot, context] = x;
  a(slot), a(context);
}
void fields(auto& a, Is<MustCondition> auto& x) {
  auto& [op_a, op_b, relation, width, is_signed, context, loop, behind] = x;
  a(op_a), a(op_b), a(relation), a(width), a(is_signed), a(context), a(loop), a(behind);
}
void fields(auto& a, Is<Site> auto& x) {
  auto& [address, context, bytes, byte_slot, earlier_writes, must_write, first_must, must_count,
         block, loop] = x;
  a(address), a(context), a(bytes), a(byte_slot), a(earlier_writes), a(must_write), a(first_must);
  a(must_count), a(block), a(loop);
}
void fields(auto& a, Is<SymbolInfo> auto& x) {
  auto& [loop] = x;
  a(loop);
}
void fields(auto& a, Is<AddressProgram> auto& x) {
  auto& [steps, parts, conditions, musts, loops, contexts, symbols, sites] = x;
  a(steps), a(parts), a(conditions), a(musts), a(loops), a(contexts), a(symbols), a(sites);
}
void fields(auto& a, Is<KernelSummary> auto& x) {
  auto& [name, origin, param_bytes, accesses, symbols, symbol_bytes, addresses, defeats,
         machine_code, exact_param_bytes, complete, declared_idempotent] = x;
  a(name), a(origin), a(param_bytes), a(accesses), a(symbols), a(symbol_bytes), a(addresses);
  a(defeats), a(machine_code), a(exact_param_bytes), a(complete), a(declared_idempotent);
}

// Numbers in seven bits per byte, the lowest first; what is signed with its sign lowest; 32 bits
// one higher, for most that are not small are kNoSlot.
class Writer {
 public:
  std::string out;

  void operator()(std::uint64_t v) {
    for (; v >= 0x80; v >>= 7)
      out += static_cast<char>(0x80 | (v & 0x7f));
    out += static_cast<char>(v);
  }
  void operator()(std::uint32_t v) { (*this)(std::uint64_t{v + 1u}); }
  void operator()(std::uint8_t v) { (*this)(std::uint64_t{v}); }
  void operator()(bool v) { (*this)(std::uint64_t{v}); }
  void operator()(std::int64_t v) {
    const auto u = static_cast<std::uint64_t>(v);
    (*this)((u << 1) ^ (v < 0 ? ~std::uint64_t{0} : 0));
  }
  void operator()(const std::string& v) {
    (*this)(std::uint64_t{v.size()});
    out += v;
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(E v) { (*this)(static_cast<std::uint8_t>(v)); }
  template <class T>
  void operator()(const std::vector<T>& v) {
    (*this)(std::uint64_t{v.size()});
    for (const T& x : v)
      (*this)(x);
  }
  template <class T>
  void operator()(const std::shared_ptr<const T>& v) {
    (*this)(v != nullptr);
    if (v != nullptr)
      (*this)(*v);
  }
  template <class T>
  requires std::is_class_v<T>
  void operator()(const T& v) { fields(*this, v); }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool finished() const { return good_ && rest_.empty(); }

  void operator()(std::uint64_t& v) {
    v = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (rest_.empty() || shift > 63)
        return fail();
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && byte > 1)
        return fail();
      v |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80)
        return;
    }
  }
  void operator()(std::uint32_t& v) { v = static_cast<std::uint32_t>(below(0xFFFFFFFFu)) - 1u; }
  void operator()(std::uint8_t& v) { v = static_cast<std::uint8_t>(below(0xFF)); }
  void operator()(bool& v) { v = below(1) != 0; }
  void operator()(std::int64_t& v) {
    std::uint64_t u = 0;
    (*this)(u);
    v = static_cast<std::int64_t>((u >> 1) ^ (0 - (u & 1)));
  }
  void operator()(std::string& v) {
    const std::uint64_t size = below(rest_.size());
    if (size > rest_.size())
      return fail();
    v.assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(E& v) { v = static_cast<E>(below(static_cast<std::uint64_t>(last_of(E())))); }
  // Every element takes at least one byte, so that their number is bounded by those left.
  template <class T>
  void operator()(std::vector<T>& v) {
    const std::uint64_t size = below(rest_.size());
    for (std::uint64_t k = 0; k < size && good_; ++k) {
      v.emplace_back();
      (*this)(v.back());
    }
  }
  template <class T>
  void operator()(std::shared_ptr<const T>& v) {
    if (below(1) == 0)
      return;
    auto made = std::make_shared<T>();
    (*this)(*made);
    v = std::move(made);
  }
  template <class T>
  requires std::is_class_v<T>
  void operator()(T& v) { fields(*this, v); }

 private:
  void fail() {
    good_ = false;
    rest_ = {};
  }
  std::uint64_t below(std::uint64_t most) {
    std::uint64_t v = 0;
    (*this)(v);
    if (v > most) {
      fail();
      return 0;
    }
    return v;
  }

  std::string_view rest_;
  bool good_ = true;
};

bool in(std::uint32_t first, std::uint32_t count, std::size_t size) {
  return std::uint64_t{first} + count <= size;
}
bool is_width(unsigned w) {
  return w >= 1 && w <= 64;
}

bool well_formed(const Root& r, const KernelSummary& s) {
  switch (r.kind) {
    case RootKind::kGlobalSymbol:
    case RootKind::kConstSymbol:
      return r.symbol < s.symbols.size();
    case RootKind::kParameter:
    case RootKind::kAnyParameter:
      return r.param_offset <= kMaxParamBytes && r.param_size <= kMaxParamBytes;
    default:
      return true;
  }
}

// A step takes what earlier steps have made.
bool well_formed(const AddressProgram& p, const Step& s, std::uint32_t at) {
  const bool a = s.a < at, b = s.b < at;
  if (!is_width(s.width) || s.context >= p.contexts.size())
    return false;
  switch (s.kind) {
    case StepKind::kConst:
      return true;
    case StepKind::kLoop:
      return s.a < p.loops.size();
    case StepKind::kCondition:
      return a && b && s.from <= kUnordered;
    case StepKind::kEither:
      return s.c < p.contexts.size() && s.d < p.contexts.size();
    case StepKind::kTruncate:
      return a;
    default:
      break;
  }
  if (s.symbol >= p.symbols.size())
    return false;
  switch (s.kind) {
    case StepKind::kOpaque:
    case StepKind::kSpecial:
    case StepKind::kSymbol:
      return true;
    case StepKind::kParam:
      return s.bytes >= 1 && s.bytes <= 8;
    case StepKind::kAbs:
      return a;
    case StepKind::kExtend:
      return a && is_width(s.from);
    case StepKind::kMulWide:
    case StepKind::kPack:
      return a && b && s.width >= 2;
    case StepKind::kRem:
      return a && b && s.c < at;
    case StepKind::kSelect:
      return a && b && s.c < p.contexts.size() && s.d < p.contexts.size();
    case StepKind::kMerge:
      if (!in(s.a, s.b, p.parts.size()))
        return false;
      for (std::uint32_t k = 0; k < s.b; ++k) {
        if (p.parts[s.a + k].slot >= at)
          return false;
      }
      return true;
    case StepKind::kInduction:
      return a && b && s.c < p.loops.size();
    default:
      return a && b;
  }
}

bool well_formed(const AddressProgram& p) {
  const std::size_t steps = p.steps.size(), contexts = p.contexts.size();
  if (steps > kMaxSteps || p.sites.size() > kMaxSites || contexts == 0 || contexts > kMaxContexts ||
      p.symbols.size() < 6 || p.contexts[0] != 0) {
    return false;
  }
  for (std::size_t c = 1; c < contexts; ++c) {
    if (p.contexts[c] >= c)
      return false;
  }
  for (const SymbolInfo& s : p.symbols) {
    if (s.loop != kNoSlot && s.loop >= p.loops.size())
      return false;
  }
  for (std::size_t l = 0; l < p.loops.size(); ++l) {
    const LoopInfo& loop = p.loops[l];
    if (loop.symbol < 6 || loop.symbol >= p.symbols.size() || loop.context >= contexts ||
        loop.entry >= contexts || !in(loop.first, loop.count, p.conditions.size()) ||
        !in(loop.first_way, loop.ways, p.parts.size())) {
      return false;
    }
    // The way out ends.
    std::size_t depth = 0;
    for (std::uint32_t outer = loop.parent; outer != kNoSlot; outer = p.loops[outer].parent) {
      if (outer >= p.loops.size() || ++depth > p.loops.size())
        return false;
    }
  }
  for (const LoopCondition& c : p.conditions) {
    if (c.moving >= steps || c.fixed >= steps || !is_width(c.width))
      return false;
  }
  for (const MergePart& part : p.parts) {
    if (part.context >= contexts)
      return false;
  }
  for (std::size_t k = 0; k < steps; ++k) {
    if (!well_formed(p, p.steps[k], static_cast<std::uint32_t>(k)))
      return false;
    if (p.steps[k].kind != StepKind::kLoop)
      continue;
    const LoopInfo& loop = p.loops[p.steps[k].a];
    for (std::uint32_t c = 0; c < loop.count; ++c) {
      const LoopCondition& condition = p.conditions[loop.first + c];
      if (condition.moving >= k || condition.fixed >= k)
        return false;
    }
  }
  for (const MustCondition& m : p.musts) {
    if (m.a >= steps || m.b >= steps || !is_width(m.width) || m.context >= contexts ||
        (m.loop != kNoSlot && m.loop >= p.loops.size())) {
      return false;
    }
  }
  for (const Site& s : p.sites) {
    if ((s.address != kNoSlot && s.address >= steps) || s.context >= contexts ||
        (s.byte_slot != kNoSlot && s.byte_slot >= steps) ||
        !in(s.first_must, s.must_count, p.musts.size()) ||
        (s.loop != kNoSlot && s.loop >= p.loops.size()) || (s.must_write && s.address == kNoSlot)) {
      return false;
    }
    for (const std::uint32_t w : s.earlier_writes) {
      if (w >= p.sites.size())
        return false;
    }
  }
  return true;
}

}  // namespace

bool well_formed(const KernelSummary& s) {
  if (s.origin != Origin::kAnalysis || s.accesses.size() > kMaxAccesses ||
      (s.addresses != nullptr && !well_formed(*s.addresses))) {
    return false;
  }
  for (const Access& a : s.accesses) {
    if (a.alternatives.empty() || a.range_begin != 0 || a.range_end != 0)
      return false;
    for (const Alternative& alternative : a.alternatives) {
      for (const auto* roots : {&alternative.roots, &alternative.subtracted}) {
        for (const Root& r : *roots) {
          if (!well_formed(r, s))
            return false;
        }
      }
    }
    for (const std::uint32_t site : a.sites) {
      if (s.addresses != nullptr && site >= s.addresses->sites.size())
        return false;
    }
  }
  return true;
}

std::string encode_summary(const KernelSummary& summary) {
  Writer writer;
  writer(summary);
  return std::move(writer.out);
}

std::optional<KernelSummary> decode_summary(std::string_view bytes) {
  KernelSummary summary;
  Reader reader(bytes);
  reader(summary);
  if (!reader.finished() || !well_formed(summary))
    return std::nullopt;
  return summary;
}

}  // namespace gpurecover::idempotency
