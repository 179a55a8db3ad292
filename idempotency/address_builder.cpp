// SPDX-License-Identifier: Apache-2.0
//
// From PTX to the steps of an AddressProgram: values in static single assignment form, found on
// demand from the addresses and conditions that are of interest; then the steps in an order in
// which each comes after what it needs, a loop's bound before what is in the loop.
#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <unordered_map>

#include "idempotency/address_program.h"
#include "idempotency/control_flow.h"
#include "idempotency/written_registers.h"

namespace gpurecover::idempotency {

namespace ptx = image::ptx;
using ptx::Function;
using ptx::Instruction;
using ptx::kNoIndex;
using ptx::Modifier;
using ptx::Opcode;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::SymbolKind;
using ptx::Type;

namespace {

constexpr std::size_t kMaxNodes = 120'000, kMaxSteps = 4'000, kMaxSites = 2'000;
constexpr std::uint64_t kMaxWork = 8'000'000;
constexpr int kMaxDepth = 200;

enum class NodeKind : std::uint8_t {
  kStep,  // computed as `step` says
  kPhi,   // one of `phis_[payload]`
  kUnpackLow,
  kUnpackHigh,
  kAddCarryOut,  // the lower half of a sum whose carry the next one takes
  kAddCarryIn,   // c is the node whose carry it takes
  kSubCarryOut,
  kSubCarryIn,
  kParamAddress,  // byte `low` of the parameter block
  // Predicates.
  kCompare,
  kAnd,
  kOr,
  kNot,
  kTrue,
  kOpaquePredicate,
};

struct Node {
  NodeKind kind = NodeKind::kStep;
  StepKind step = StepKind::kOpaque;
  Relation relation = Relation::kLess;
  std::uint8_t width = 32, from = 0, bytes = 0;
  bool is_signed = false;
  std::uint32_t a = kNoIndex, b = kNoIndex, c = kNoIndex, d = kNoIndex;
  std::uint32_t block = 0, context = 0;
  std::uint32_t payload = kNoIndex;
  std::int64_t low = 0, high = 0;
};

struct Phi {
  std::uint32_t block = 0, reg = 0;
  bool pending = true;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> parts;  // node, edge
};

struct ContextNode {
  std::uint32_t parent = 0;
  std::uint32_t loop = kNoIndex;  // of a loop's header
  // Else: a condition, the predicate `node`, or that of `edge`.
  std::uint32_t node = kNoIndex, edge = kNoIndex;
  bool negated = false;
  std::uint32_t emitted = kNoIndex;
};

struct Key {
  std::array<std::uint64_t, 7> words{};
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& k) const {
    std::uint64_t h = 0x9e3779b97f4a7c15u;
    for (const std::uint64_t w : k.words)
      h = (h ^ w) * 0xff51afd7ed558ccdu, h ^= h >> 32;
    return h;
  }
};

class Builder {
 public:
  Builder(const ptx::Module& module, const Function& f, std::span<const AccessPlace> places,
          std::span<const std::string> symbols)
      : module_(module), f_(f), places_(places), symbols_(symbols) {}

  std::shared_ptr<const AddressProgram> run() {
    if (places_.empty() || places_.size() > kMaxSites || !build_control_flow(f_, cf_))
      return nullptr;
    collect_definitions();
    make_contexts();
    std::vector<std::uint32_t> addresses(places_.size(), kNoIndex), sizes(places_.size(), kNoIndex),
        contexts(places_.size(), 0);
    for (std::size_t k = 0; k < places_.size(); ++k) {
      const AccessPlace& p = places_[k];
      const std::uint32_t block = cf_.block_of[p.instruction];
      if (cf_.blocks[block].order == kNoIndex)
        continue;
      addresses[k] = address(p.operand, p.instruction);
      if (p.bytes == 0 && p.size != kNoIndex)
        sizes[k] = operand(p.size, p.instruction, 32);
      contexts[k] = context_of(p.instruction);
    }
    for (std::uint32_t c = 0; c < contexts_.size() && !over_; ++c) {
      ContextNode& node = contexts_[c];
      if (node.edge != kNoIndex) {
        const Edge& e = cf_.edges[node.edge];
        const std::uint32_t n = value_at(e.guard, cf_.blocks[e.from].last, e.from);
        contexts_[c].node = n;
      }
    }
    drain();
    simplify_phis();
    rewrite_packs();
    drain();
    simplify_phis();
    for (Node& n : nodes_) {
      // What did not become part of a whole is a value of its own.
      if (n.kind == NodeKind::kAddCarryOut || n.kind == NodeKind::kSubCarryOut) {
        n.step = n.kind == NodeKind::kAddCarryOut ? StepKind::kAdd : StepKind::kSub;
        n.kind = NodeKind::kStep;
      } else if (n.kind == NodeKind::kUnpackLow) {
        n.step = StepKind::kTruncate;
        n.kind = NodeKind::kStep;
      }
    }
    find_inductions();
    if (over_)
      return nullptr;

    program_ = std::make_shared<AddressProgram>();
    program_->symbols.resize(6);
    program_->contexts.push_back(0);
    contexts_[0].emitted = 0;
    program_->loops.resize(cf_.loops.size());
    for (std::uint32_t l = 0; l < cf_.loops.size(); ++l) {
      program_->loops[l].symbol = new_symbol(l);
      program_->loops[l].parent = cf_.loops[l].parent;
    }
    slot_.assign(nodes_.size(), kNoIndex);
    loop_state_.assign(cf_.loops.size(), 0);
    bool any = false;
    for (std::size_t k = 0; k < places_.size(); ++k) {
      Site site;
      if (addresses[k] != kNoIndex && (places_[k].bytes != 0 || sizes[k] != kNoIndex)) {
        site.context = emit_context(contexts[k]);
        const std::uint32_t slot = emit(addresses[k]);
        site.bytes = places_[k].bytes;
        if (site.bytes == 0)
          site.byte_slot = emit(sizes[k]);
        if (slot != kNoIndex && program_->steps[slot].kind != StepKind::kOpaque) {
          site.address = slot;
          any = true;
          if (places_[k].writes && !places_[k].reads && places_[k].bytes != 0)
            find_musts(places_[k].instruction, site);
        }
        const Instruction& i = f_.code[places_[k].instruction];
        // A load that goes past the caches of the writes would not be sure to see them.
        if (places_[k].reads && !places_[k].writes && i.opcode == Opcode::kLd &&
            !i.has(Modifier::kNc) && i.space != Space::kConst) {
          site.earlier_writes = writes_before(k, contexts);
        }
      }
      program_->sites.push_back(std::move(site));
    }
    return any && !over_ ? program_ : nullptr;
  }

 private:
  // --- Registers ---

  void collect_definitions() {
    definitions_.resize(f_.registers.size());
    auto define = [&](std::uint32_t reg, std::uint32_t n) {
      auto& list = definitions_[reg];
      if (list.empty() || list.back() != n)
        list.push_back(n);
    };
    for (std::uint32_t n = 0; n < f_.code.size(); ++n) {
      const Instruction& i = f_.code[n];
      for_each_written(f_, i, [&](std::uint32_t, const Operand& o) { define(o.index, n); });
      if (i.operand_count != 0) {
        const Operand& o = f_.operands[i.first_operand];
        if (o.pair != kNoIndex && writes_first_operand(i.opcode))
          define(o.pair, n);
        if (i.opcode == Opcode::kCall) {
          for (const Operand& r : f_.members_of(o)) {
            if (r.kind == OperandKind::kRegister)
              define(r.index, n);
          }
        }
      }
    }
  }

  unsigned register_width(std::uint32_t reg) const {
    const ptx::Register& r = f_.registers[reg];
    return r.type == Type::kPred ? 1 : 8 * ptx::size_of(r.type);
  }

  // The value of `reg` before instruction `position` of `block` is executed.
  std::uint32_t value_at(std::uint32_t reg, std::uint32_t position, std::uint32_t block) {
    const auto& definitions = definitions_[reg];
    if (definitions.size() == 1) {
      const std::uint32_t n = definitions[0], from = cf_.block_of[n];
      if (cf_.blocks[from].order != kNoIndex &&
          (from == block ? n < position : cf_.dominates(from, block)) &&
          (f_.code[n].guard == kNoIndex)) {
        return definition(n, reg);
      }
    }
    for (;;) {
      if (++work_ > kMaxWork) {
        over_ = true;
        return unknown(reg, block);
      }
      const auto it = std::lower_bound(definitions.begin(), definitions.end(), position);
      if (it != definitions.begin() && *(it - 1) >= cf_.blocks[block].first)
        return definition(*(it - 1), reg);
      std::uint32_t from = kNoIndex;
      bool several = block == 0;
      for (const std::uint32_t e : cf_.blocks[block].in) {
        if (cf_.blocks[cf_.edges[e].from].order == kNoIndex)
          continue;
        several |= from != kNoIndex;
        from = cf_.edges[e].from;
      }
      if (block == 0)
        return unknown(reg, block);  // never given a value, or the code begins with a loop
      if (several)
        return phi(block, reg);
      block = from;
      position = cf_.blocks[from].last;
    }
  }

  std::uint32_t phi(std::uint32_t block, std::uint32_t reg) {
    const std::uint64_t key = (std::uint64_t{block} << 32) | reg;
    const auto [it, is_new] = phi_of_.try_emplace(key, 0);
    if (!is_new)
      return it->second;
    Node n;
    n.kind = NodeKind::kPhi;
    n.width = static_cast<std::uint8_t>(register_width(reg));
    n.block = block;
    n.context = block_context_[block];
    n.payload = static_cast<std::uint32_t>(phis_.size());
    Phi p;
    p.block = block;
    p.reg = reg;
    phis_.push_back(std::move(p));
    const std::uint32_t id = append(n);
    phi_of_[key] = id;
    return id;
  }

  void drain() {
    for (std::size_t k = 0; k < phis_.size() && !over_; ++k) {
      if (!phis_[k].pending)
        continue;
      phis_[k].pending = false;
      const std::uint32_t block = phis_[k].block, reg = phis_[k].reg;
      for (const std::uint32_t e : cf_.blocks[block].in) {
        const std::uint32_t from = cf_.edges[e].from;
        if (cf_.blocks[from].order == kNoIndex)
          continue;
        const std::uint32_t node = value_at(reg, cf_.blocks[from].last, from);
        phis_[k].parts.emplace_back(node, e);
      }
    }
  }

  std::uint32_t resolve(std::uint32_t n) {
    while (n < alias_.size() && alias_[n] != n)
      n = alias_[n] = alias_[alias_[n]];
    return n;
  }

  // A phi of one value, or of one value and itself, is that value.
  void simplify_phis() {
    for (bool changed = true; changed && !over_;) {
      changed = false;
      for (std::uint32_t n = 0; n < nodes_.size(); ++n) {
        if (nodes_[n].kind != NodeKind::kPhi || alias_[n] != n)
          continue;
        std::uint32_t only = kNoIndex;
        bool several = false;
        for (const auto& [part, edge] : phis_[nodes_[n].payload].parts) {
          ++work_;
          const std::uint32_t v = resolve(part);
          if (v == n || v == only)
            continue;
          several |= only != kNoIndex;
          only = v;
        }
        if (!several && only != kNoIndex) {
          alias_[n] = only;
          changed = true;
        }
      }
      if (work_ > kMaxWork)
        over_ = true;
    }
  }

  // --- Nodes ---

  std::uint32_t append(const Node& n) {
    if (nodes_.size() >= kMaxNodes)
      over_ = true;
    nodes_.push_back(n);
    alias_.push_back(static_cast<std::uint32_t>(nodes_.size() - 1));
    return alias_.back();
  }

  // Alike nodes are one, if they are computed under the same conditions.
  std::uint32_t shared(const Node& n) {
    Key k;
    k.words = {static_cast<std::uint64_t>(n.kind) |
                   std::uint64_t{static_cast<std::uint8_t>(n.step)} << 8 |
                   std::uint64_t{static_cast<std::uint8_t>(n.relation)} << 16 |
                   std::uint64_t{n.width} << 24 | std::uint64_t{n.from} << 32 |
                   std::uint64_t{n.bytes} << 40 | std::uint64_t{n.is_signed} << 48,
               (std::uint64_t{n.a} << 32) | n.b,
               (std::uint64_t{n.c} << 32) | n.d,
               (std::uint64_t{n.context} << 32) | cf_.blocks[n.block].loop,
               static_cast<std::uint64_t>(n.low),
               static_cast<std::uint64_t>(n.high),
               n.payload};
    const auto [it, is_new] = shared_.try_emplace(k, 0);
    if (is_new)
      it->second = append(n);
    return it->second;
  }

  std::uint32_t constant(std::int64_t value, unsigned width) {
    Node n;
    n.step = StepKind::kConst;
    n.width = static_cast<std::uint8_t>(width);
    n.low = value;
    return shared(n);
  }
  // One place's value, whatever it is; never shared.
  std::uint32_t opaque(unsigned width, std::uint32_t block, std::int64_t low, std::int64_t high) {
    Node n;
    n.step = StepKind::kOpaque;
    n.width = static_cast<std::uint8_t>(width);
    n.block = block;
    n.low = low;
    n.high = high;
    return append(n);
  }
  std::uint32_t opaque(unsigned width, std::uint32_t block) {
    if (width <= 1) {
      Node n;
      n.kind = NodeKind::kOpaquePredicate;
      n.width = 1;
      n.block = block;
      return append(n);
    }
    if (width >= 64)
      return opaque(width, block, INT64_MIN, INT64_MAX);
    return opaque(width, block, 0, static_cast<std::int64_t>((std::uint64_t{1} << width) - 1));
  }
  std::uint32_t unknown(std::uint32_t reg, std::uint32_t block) {
    const unsigned w = register_width(reg);
    return opaque(w == 0 || w > 64 ? 64 : w, block);
  }
  std::uint32_t make(StepKind kind, unsigned width, std::uint32_t block, std::uint32_t context,
                     std::uint32_t a, std::uint32_t b = kNoIndex, bool is_signed = false) {
    Node n;
    n.step = kind;
    n.width = static_cast<std::uint8_t>(width);
    n.is_signed = is_signed;
    n.block = block;
    n.context = context;
    n.a = a;
    n.b = b;
    return shared(n);
  }

  // --- Operands ---

  std::uint32_t address(std::uint32_t pool, std::uint32_t position) {
    const Operand& o = f_.operands[pool];
    const std::uint32_t block = cf_.block_of[position];
    if (o.kind != OperandKind::kAddress)
      return kNoIndex;
    std::uint32_t base = kNoIndex;
    if (o.base == ptx::AddressBase::kRegister) {
      if (register_width(o.index) != 64 || f_.registers[o.index].vector != 1)
        return kNoIndex;
      base = value_at(o.index, position, block);
    } else if (o.base == ptx::AddressBase::kSymbol) {
      Operand symbol_only = o;
      symbol_only.offset = 0;
      base = symbol(symbol_only);
    } else {
      return constant(o.offset, 64);
    }
    if (base == kNoIndex || o.offset == 0)
      return base;
    return make(StepKind::kAdd, 64, block, block_context_[block], base, constant(o.offset, 64));
  }

  std::uint32_t symbol(const Operand& o) {
    Node n;
    n.width = 64;
    if (o.symbol_kind == SymbolKind::kParameter && f_.entry) {
      n.kind = NodeKind::kParamAddress;
      n.low = f_.params[o.index].offset + o.offset;
      return shared(n);
    }
    const ptx::Variable* v = o.symbol_kind == SymbolKind::kVariable ? &module_.variables[o.index]
                             : o.symbol_kind == SymbolKind::kLocal  ? &f_.locals[o.index]
                                                                    : nullptr;
    if (v == nullptr || (v->space != Space::kGlobal && v->space != Space::kConst))
      return kNoIndex;
    const auto it = std::find(symbols_.begin(), symbols_.end(), v->name);
    if (it == symbols_.end())
      return kNoIndex;
    n.step = StepKind::kSymbol;
    n.a = static_cast<std::uint32_t>(it - symbols_.begin());
    n.low = o.offset;
    return shared(n);
  }

  std::uint32_t operand(std::uint32_t pool, std::uint32_t position, unsigned width) {
    const Operand& o = f_.operands[pool];
    const std::uint32_t block = cf_.block_of[position], context = block_context_[block];
    switch (o.kind) {
      case OperandKind::kRegister: {
        if (o.has_component || f_.registers[o.index].vector != 1)
          return opaque(width, block);
        const unsigned w = register_width(o.index);
        if (w < width || w > 64 || (w == 1) != (width == 1))
          return opaque(width, block);
        std::uint32_t v = value_at(o.index, position, block);
        if (width == 1) {
          if (!o.negated)
            return v;
          return negation(v);
        }
        if (w > width)
          v = make(StepKind::kTruncate, width, block, context, v);
        if (o.arithmetic_negated)
          v = make(StepKind::kSub, width, block, context, constant(0, width), v);
        return v;
      }
      case OperandKind::kImmediate:
        if (width == 1) {
          Node n;
          n.kind = NodeKind::kTrue;
          n.width = 1;
          const std::uint32_t t = shared(n);
          return o.imm != 0 ? t : negation(t);
        }
        if (o.is_float)
          break;
        return constant(static_cast<std::int64_t>(o.imm), width);
      case OperandKind::kSpecial: {
        if (o.special == ptx::SpecialRegister::kWarpSize)
          return constant(32, width);
        Node n;
        n.width = 32;
        const bool of_launch =
            o.special == ptx::SpecialRegister::kTid || o.special == ptx::SpecialRegister::kCtaid ||
            o.special == ptx::SpecialRegister::kNtid || o.special == ptx::SpecialRegister::kNctaid;
        if (of_launch && o.component < 3 && width <= 32) {
          n.step = StepKind::kSpecial;
          n.a = static_cast<std::uint32_t>(o.special);
          n.b = o.component;
          const std::uint32_t v = shared(n);
          return width == 32 ? v : make(StepKind::kTruncate, width, block, context, v);
        }
        if (o.special == ptx::SpecialRegister::kLaneid && width >= 16)
          return opaque(width, block, 0, 31);
        return opaque(width, block);
      }
      case OperandKind::kSymbol: {
        const std::uint32_t v = width == 64 ? symbol(o) : kNoIndex;
        return v == kNoIndex ? opaque(width, block) : v;
      }
      default:
        break;
    }
    return opaque(width, block);
  }

  std::uint32_t negation(std::uint32_t predicate) {
    Node n;
    n.kind = NodeKind::kNot;
    n.width = 1;
    n.a = predicate;
    n.block = nodes_[predicate].block;
    return shared(n);
  }

  // --- Instructions ---

  std::uint32_t definition(std::uint32_t n, std::uint32_t reg) {
    const std::uint64_t key = (std::uint64_t{n} << 32) | reg;
    if (const auto it = definition_of_.find(key); it != definition_of_.end())
      return it->second;
    const Instruction& i = f_.code[n];
    const std::uint32_t block = cf_.block_of[n];
    std::uint32_t value = kNoIndex;
    if (over_ || ++work_ > kMaxWork || depth_ > kMaxDepth) {
      value = unknown(reg, block);
    } else {
      ++depth_;
      value = compute(n, i, reg);
      const unsigned width = register_width(reg);
      if (value == kNoIndex || nodes_[value].width != width || f_.registers[reg].vector != 1)
        value = unknown(reg, block);
      if (i.guard != kNoIndex) {
        const std::uint32_t old = value_at(reg, n, block);
        const std::uint32_t p = value_at(i.guard, n, block);
        value =
            width == 1 ? unknown(reg, block) : select(p, i.guard_negated, value, old, width, block);
      }
      --depth_;
    }
    definition_of_[key] = value;
    return value;
  }

  std::uint32_t select(std::uint32_t p, bool negated, std::uint32_t yes, std::uint32_t no,
                       unsigned width, std::uint32_t block) {
    Node n;
    n.step = StepKind::kSelect;
    n.width = static_cast<std::uint8_t>(width);
    n.a = yes;
    n.b = no;
    n.c = condition_context(block_context_[block], p, negated);
    n.d = condition_context(block_context_[block], p, !negated);
    n.block = block;
    n.context = block_context_[block];
    return shared(n);
  }

  static bool is_integer(Type t) {
    switch (t) {
      case Type::kB8:
      case Type::kB16:
      case Type::kB32:
      case Type::kB64:
      case Type::kU8:
      case Type::kU16:
      case Type::kU32:
      case Type::kU64:
      case Type::kS8:
      case Type::kS16:
      case Type::kS32:
      case Type::kS64:
        return true;
      default:
        return false;
    }
  }
  static unsigned bits(Type t) { return 8 * ptx::size_of(t); }

  // What `i` puts into `reg`; kNoIndex: something.
  std::uint32_t compute(std::uint32_t n, const Instruction& i, std::uint32_t reg) {
    if (i.has_unknown_modifier || i.operand_count == 0)
      return kNoIndex;
    const std::uint32_t first = i.first_operand;
    const Operand& to = f_.operands[first];
    const std::uint32_t block = cf_.block_of[n], context = block_context_[block];
    const unsigned w = bits(i.type);
    const bool is_signed = ptx::is_signed_integer(i.type);
    auto in = [&](std::uint32_t k, unsigned width) {
      return k < i.operand_count ? operand(first + k, n, width) : opaque(width, block);
    };
    auto binary = [&](StepKind kind) {
      if (!is_integer(i.type) || i.has(Modifier::kSat) || i.has(Modifier::kRelu))
        return kNoIndex;
      return make(kind, w, block, context, in(1, w), in(2, w), is_signed);
    };
    const bool plain_destination =
        to.kind == OperandKind::kRegister && to.index == reg && !to.has_component;
    switch (i.opcode) {
      case Opcode::kMov:
        return move(n, i, reg);
      case Opcode::kSetp:
        return compare(n, i, reg);
      case Opcode::kLd:
      case Opcode::kLdu:
        return load(n, i, reg);
      default:
        break;
    }
    if (!plain_destination)
      return kNoIndex;
    if (i.type == Type::kPred) {
      if (i.opcode == Opcode::kNot)
        return negation(in(1, 1));
      if (i.opcode == Opcode::kXor) {
        // With a constant; else it is no matter of comparisons that hold all together.
        for (std::uint32_t k = 1; k <= 2 && i.operand_count == 3; ++k) {
          const Operand& o = f_.operands[first + k];
          if (o.kind == OperandKind::kImmediate)
            return o.imm != 0 ? negation(in(3 - k, 1)) : in(3 - k, 1);
        }
      }
      if (i.opcode != Opcode::kAnd && i.opcode != Opcode::kOr)
        return kNoIndex;
      return logical(i.opcode == Opcode::kAnd, in(1, 1), in(2, 1), block);
    }
    switch (i.opcode) {
      case Opcode::kCvta:
        return i.space == Space::kGlobal || i.space == Space::kConst || i.space == Space::kGeneric
                   ? in(1, 64)
                   : kNoIndex;
      case Opcode::kAdd:
      case Opcode::kSub: {
        const bool add = i.opcode == Opcode::kAdd;
        if (!i.has(Modifier::kCc))
          return binary(add ? StepKind::kAdd : StepKind::kSub);
        if (!is_integer(i.type))
          return kNoIndex;
        Node c;
        c.kind = add ? NodeKind::kAddCarryOut : NodeKind::kSubCarryOut;
        c.width = static_cast<std::uint8_t>(w);
        c.a = in(1, w);
        c.b = in(2, w);
        c.block = block;
        c.context = context;
        return append(c);
      }
      case Opcode::kAddc:
      case Opcode::kSubc: {
        // The carry comes from the instruction before that sets it.
        std::uint32_t from = n;
        while (from > cf_.blocks[block].first && !f_.code[from - 1].has(Modifier::kCc))
          --from;
        if (from == cf_.blocks[block].first || !is_integer(i.type))
          return kNoIndex;
        --from;
        const Instruction& low = f_.code[from];
        const Operand& low_to = f_.operands[low.first_operand];
        if (low.guard != kNoIndex || low_to.kind != OperandKind::kRegister)
          return kNoIndex;
        Node c;
        c.kind = i.opcode == Opcode::kAddc ? NodeKind::kAddCarryIn : NodeKind::kSubCarryIn;
        c.width = static_cast<std::uint8_t>(w);
        c.a = in(1, w);
        c.b = in(2, w);
        c.c = definition(from, low_to.index);
        c.block = block;
        c.context = context;
        return append(c);
      }
      case Opcode::kNeg:
        if (!is_integer(i.type))
          return kNoIndex;
        return make(StepKind::kSub, w, block, context, constant(0, w), in(1, w));
      case Opcode::kNot:
        if (!is_integer(i.type))
          return kNoIndex;
        return make(StepKind::kXor, w, block, context, in(1, w), constant(-1, w));
      case Opcode::kAbs:
        if (!is_integer(i.type))
          return kNoIndex;
        return make(StepKind::kAbs, w, block, context, in(1, w), kNoIndex, true);
      case Opcode::kMul:
      case Opcode::kMad: {
        if (!is_integer(i.type) || i.has(Modifier::kSat))
          return kNoIndex;
        const bool wide = i.has(Modifier::kWide), high = i.has(Modifier::kHi);
        const unsigned result = wide ? 2 * w : w;
        if (result > 64)
          return kNoIndex;
        const std::uint32_t product = make(wide   ? StepKind::kMulWide
                                           : high ? StepKind::kMulHigh
                                                  : StepKind::kMul,
                                           result, block, context, in(1, w), in(2, w), is_signed);
        if (i.opcode == Opcode::kMul)
          return i.has(Modifier::kCc) ? kNoIndex : product;
        if (i.has(Modifier::kCc))
          return kNoIndex;
        return make(StepKind::kAdd, result, block, context, product, in(3, result));
      }
      case Opcode::kShl:
        return make(StepKind::kShl, w, block, context, in(1, w), in(2, 32));
      case Opcode::kShr:
        return make(StepKind::kShr, w, block, context, in(1, w), in(2, 32), is_signed);
      case Opcode::kDiv:
        return binary(StepKind::kDiv);
      case Opcode::kRem: {
        const std::uint32_t quotient = binary(StepKind::kDiv);
        if (quotient == kNoIndex)
          return kNoIndex;
        Node r = nodes_[quotient];
        r.step = StepKind::kRem;
        r.c = quotient;
        return shared(r);
      }
      case Opcode::kAnd:
        return binary(StepKind::kAnd);
      case Opcode::kOr:
        return binary(StepKind::kOr);
      case Opcode::kXor:
        return binary(StepKind::kXor);
      case Opcode::kMin:
        return binary(StepKind::kMin);
      case Opcode::kMax:
        return binary(StepKind::kMax);
      case Opcode::kSelp:
        if (w < 16 || w > 64 || i.operand_count < 4)
          return kNoIndex;
        return select(in(3, 1), false, in(1, w), in(2, w), w, block);
      case Opcode::kPopc:
      case Opcode::kClz:
        return opaque(32, block, 0, 64);
      case Opcode::kBfe: {
        if (is_signed || !is_integer(i.type))
          return kNoIndex;
        const auto& o = f_.operands;
        if (i.operand_count < 4 || o[first + 2].kind != OperandKind::kImmediate ||
            o[first + 3].kind != OperandKind::kImmediate) {
          return kNoIndex;
        }
        const std::uint64_t length = o[first + 3].imm & 0xFF;
        const std::uint32_t moved =
            make(StepKind::kShr, w, block, context, in(1, w),
                 constant(static_cast<std::int64_t>(o[first + 2].imm & 0xFF), 32));
        if (length >= w)
          return moved;
        return make(StepKind::kAnd, w, block, context, moved,
                    constant(static_cast<std::int64_t>((std::uint64_t{1} << length) - 1), w));
      }
      case Opcode::kLop3: {
        if (i.operand_count < 5 || f_.operands[first + 4].kind != OperandKind::kImmediate)
          return kNoIndex;
        switch (f_.operands[first + 4].imm & 0xFF) {
          case 0xC0:
            return make(StepKind::kAnd, 32, block, context, in(1, 32), in(2, 32));
          case 0xFC:
            return make(StepKind::kOr, 32, block, context, in(1, 32), in(2, 32));
          case 0x3C:
            return make(StepKind::kXor, 32, block, context, in(1, 32), in(2, 32));
          default:
            return kNoIndex;
        }
      }
      case Opcode::kShf: {
        // One word of two that are shifted to the right.
        const Operand& amount = f_.operands[first + i.operand_count - 1];
        if (i.operand_count != 4 || amount.kind != OperandKind::kImmediate ||
            !i.has(Modifier::kR) || i.type != Type::kB32) {
          return kNoIndex;
        }
        const auto by = static_cast<std::int64_t>(amount.imm & 31);
        if (by == 0 || amount.imm > 31)
          return kNoIndex;
        return make(StepKind::kOr, 32, block, context,
                    make(StepKind::kShr, 32, block, context, in(1, 32), constant(by, 32)),
                    make(StepKind::kShl, 32, block, context, in(2, 32), constant(32 - by, 32)));
      }
      case Opcode::kCvt: {
        if (!is_integer(i.type) || !is_integer(i.type2) || i.has(Modifier::kSat))
          return kNoIndex;
        const unsigned from = bits(i.type2), target = register_width(reg);
        const std::uint32_t source = in(1, from);
        std::uint32_t v = source;
        if (w < from)
          v = make(StepKind::kTruncate, w, block, context, v);
        // To the type by the sign of the source, then to the register by that of the type.
        if (w > from)
          v = extend(v, from, w, ptx::is_signed_integer(i.type2), block, context);
        if (target > w)
          v = extend(v, w, target, is_signed, block, context);
        return v;
      }
      default:
        return kNoIndex;
    }
  }

  std::uint32_t extend(std::uint32_t v, unsigned from, unsigned to, bool is_signed,
                       std::uint32_t block, std::uint32_t context) {
    Node n;
    n.step = StepKind::kExtend;
    n.width = static_cast<std::uint8_t>(to);
    n.from = static_cast<std::uint8_t>(from);
    n.is_signed = is_signed;
    n.a = v;
    n.block = block;
    n.context = context;
    return shared(n);
  }

  std::uint32_t logical(bool is_and, std::uint32_t a, std::uint32_t b, std::uint32_t block) {
    Node n;
    n.kind = is_and ? NodeKind::kAnd : NodeKind::kOr;
    n.width = 1;
    n.a = a;
    n.b = b;
    n.block = block;
    return shared(n);
  }

  std::uint32_t move(std::uint32_t n, const Instruction& i, std::uint32_t reg) {
    if (i.operand_count != 2)
      return kNoIndex;
    const std::uint32_t block = cf_.block_of[n], context = block_context_[block];
    const Operand& to = f_.operands[i.first_operand];
    const Operand& from = f_.operands[i.first_operand + 1];
    const unsigned w = i.type == Type::kPred ? 1 : bits(i.type);
    if (to.kind == OperandKind::kVector) {
      if (w != 64 || to.count != 2 || from.kind != OperandKind::kRegister)
        return kNoIndex;
      const bool low = f_.operands[to.first].kind == OperandKind::kRegister &&
                       f_.operands[to.first].index == reg;
      const bool high = f_.operands[to.first + 1].kind == OperandKind::kRegister &&
                        f_.operands[to.first + 1].index == reg;
      if (low == high)
        return kNoIndex;
      Node u;
      u.kind = low ? NodeKind::kUnpackLow : NodeKind::kUnpackHigh;
      u.width = 32;
      u.a = operand(i.first_operand + 1, n, 64);
      u.block = block;
      u.context = context;
      return shared(u);
    }
    if (to.kind != OperandKind::kRegister || to.has_component)
      return kNoIndex;
    if (from.kind == OperandKind::kVector) {
      if (w != 64 || from.count != 2)
        return kNoIndex;
      return make(StepKind::kPack, 64, block, context, operand(from.first, n, 32),
                  operand(from.first + 1, n, 32));
    }
    if (w != register_width(reg))
      return kNoIndex;
    return operand(i.first_operand + 1, n, w);
  }

  // The bits of a floating-point operand.
  std::uint32_t float_operand(std::uint32_t pool, std::uint32_t position, unsigned width) {
    const Operand& o = f_.operands[pool];
    if (o.kind == OperandKind::kImmediate && o.is_float) {
      if (o.float_bits == width)
        return constant(static_cast<std::int64_t>(o.imm), width);
      if (o.float_bits == 64 && width == 32) {
        const auto value = static_cast<float>(std::bit_cast<double>(o.imm));
        return constant(std::bit_cast<std::int32_t>(value), 32);
      }
      return opaque(width, cf_.block_of[position]);
    }
    if (o.arithmetic_negated)
      return opaque(width, cf_.block_of[position]);
    return operand(pool, position, width);
  }

  // A predicate that was made a number, compared again: that predicate, its opposite, or a
  // constant. kNoIndex: it is something else.
  std::uint32_t as_predicate(const Node& c) {
    std::uint32_t chosen = resolve(c.a), number = resolve(c.b);
    Relation relation = c.relation;
    auto is_number = [&](std::uint32_t n) {
      return nodes_[n].kind == NodeKind::kStep && nodes_[n].step == StepKind::kConst;
    };
    if (is_number(chosen)) {
      if (relation != Relation::kEqual && relation != Relation::kNotEqual)
        return kNoIndex;
      std::swap(chosen, number);
    }
    const Node x = nodes_[chosen];
    if (x.kind != NodeKind::kStep || x.step != StepKind::kSelect || !is_number(number) ||
        !is_number(resolve(x.a)) || !is_number(resolve(x.b)) ||
        (relation != Relation::kEqual && relation != Relation::kNotEqual)) {
      return kNoIndex;
    }
    auto truth = [&](std::uint32_t n) {
      const unsigned unused = 64 - c.width;
      const auto bits = [&](std::uint32_t k) {
        return static_cast<std::uint64_t>(nodes_[resolve(k)].low) << unused;
      };
      return (bits(n) == bits(number)) == (relation == Relation::kEqual);
    };
    const bool yes = truth(x.a), no = truth(x.b);
    if (yes == no) {
      Node t;
      t.kind = NodeKind::kTrue;
      t.width = 1;
      const std::uint32_t v = shared(t);
      return yes ? v : negation(v);
    }
    const ContextNode& condition = contexts_[x.c];
    if (condition.node == kNoIndex)
      return kNoIndex;
    return condition.negated == yes ? negation(condition.node) : condition.node;
  }

  std::uint32_t compare(std::uint32_t n, const Instruction& i, std::uint32_t reg) {
    const std::uint32_t first = i.first_operand, block = cf_.block_of[n];
    const bool is_float = i.type == Type::kF32 || i.type == Type::kF64;
    if (i.operand_count < 3 || (!is_float && !is_integer(i.type)))
      return kNoIndex;
    const Operand& to = f_.operands[first];
    const bool is_first = to.kind == OperandKind::kRegister && to.index == reg;
    if (is_first == (to.pair == reg))
      return kNoIndex;
    Node c;
    c.kind = NodeKind::kCompare;
    c.is_signed = ptx::is_signed_integer(i.type);
    c.from = is_float ? kOrdered : kNotFloat;
    ptx::Compare how = i.compare;
    if (is_float) {
      static constexpr std::pair<ptx::Compare, ptx::Compare> kWithout[] = {
          {ptx::Compare::kEqu, ptx::Compare::kEq}, {ptx::Compare::kNeu, ptx::Compare::kNe},
          {ptx::Compare::kLtu, ptx::Compare::kLt}, {ptx::Compare::kLeu, ptx::Compare::kLe},
          {ptx::Compare::kGtu, ptx::Compare::kGt}, {ptx::Compare::kGeu, ptx::Compare::kGe}};
      for (const auto& [unordered, ordered] : kWithout) {
        if (how == unordered) {
          how = ordered;
          c.from = kUnordered;
          break;
        }
      }
    }
    switch (how) {
      case ptx::Compare::kEq:
        c.relation = Relation::kEqual;
        break;
      case ptx::Compare::kNe:
        c.relation = Relation::kNotEqual;
        break;
      case ptx::Compare::kLo:
        c.is_signed = false;
        [[fallthrough]];
      case ptx::Compare::kLt:
        c.relation = Relation::kLess;
        break;
      case ptx::Compare::kLs:
        c.is_signed = false;
        [[fallthrough]];
      case ptx::Compare::kLe:
        c.relation = Relation::kLessEqual;
        break;
      case ptx::Compare::kHi:
        c.is_signed = false;
        [[fallthrough]];
      case ptx::Compare::kGt:
        c.relation = Relation::kGreater;
        break;
      case ptx::Compare::kHs:
        c.is_signed = false;
        [[fallthrough]];
      case ptx::Compare::kGe:
        c.relation = Relation::kGreaterEqual;
        break;
      default:
        return kNoIndex;
    }
    c.width = static_cast<std::uint8_t>(bits(i.type));
    c.a = is_float ? float_operand(first + 1, n, c.width) : operand(first + 1, n, c.width);
    c.b = is_float ? float_operand(first + 2, n, c.width) : operand(first + 2, n, c.width);
    if (const std::uint32_t p = is_float ? kNoIndex : as_predicate(c); p != kNoIndex)
      return finish_compare(n, i, p, is_first, block);
    c.block = block;
    c.context = block_context_[block];
    c.payload = c.width;  // what is compared; a predicate itself has one bit
    c.width = 1;
    return finish_compare(n, i, shared(c), is_first, block);
  }
  std::uint32_t finish_compare(std::uint32_t n, const Instruction& i, std::uint32_t v,
                               bool is_first, std::uint32_t block) {
    const std::uint32_t first = i.first_operand;
    if (!is_first)
      v = negation(v);
    if (i.bool_op == ptx::BoolOp::kNone)
      return v;
    if (i.operand_count < 4 || i.bool_op == ptx::BoolOp::kXor)
      return kNoIndex;
    return logical(i.bool_op == ptx::BoolOp::kAnd, v, operand(first + 3, n, 1), block);
  }

  std::uint32_t load(std::uint32_t n, const Instruction& i, std::uint32_t reg) {
    const std::uint32_t block = cf_.block_of[n];
    const unsigned w = bits(i.type), target = register_width(reg);
    if (i.operand_count < 2 || w == 0 || w > 64)
      return kNoIndex;
    const Operand& to = f_.operands[i.first_operand];
    std::uint32_t element = 0;
    if (to.kind == OperandKind::kVector) {
      std::uint32_t seen = 0;
      for (std::uint32_t k = 0; k < to.count; ++k) {
        if (f_.operands[to.first + k].kind == OperandKind::kRegister &&
            f_.operands[to.first + k].index == reg) {
          element = k;
          ++seen;
        }
      }
      if (seen != 1)
        return kNoIndex;
    } else if (to.kind != OperandKind::kRegister || to.has_component || i.vector != 1) {
      return kNoIndex;
    }
    const bool is_signed = ptx::is_signed_integer(i.type);
    const Operand& from = f_.operands[i.first_operand + 1];
    if (i.space == Space::kParam && f_.entry && from.kind == OperandKind::kAddress &&
        !(from.base == ptx::AddressBase::kSymbol && from.symbol_kind != SymbolKind::kParameter)) {
      const std::uint32_t a = address(i.first_operand + 1, n);
      std::int64_t at = -1;
      if (a != kNoIndex) {
        const Node& x = nodes_[a];
        if (x.kind == NodeKind::kParamAddress) {
          at = x.low;
        } else if (x.kind == NodeKind::kStep && x.step == StepKind::kAdd &&
                   nodes_[x.a].kind == NodeKind::kParamAddress &&
                   nodes_[x.b].kind == NodeKind::kStep && nodes_[x.b].step == StepKind::kConst) {
          at = nodes_[x.a].low + nodes_[x.b].low;
        }
      }
      if (at >= 0 && at < (1 << 20) && target >= w && target <= 64) {
        Node p;
        p.step = StepKind::kParam;
        p.width = static_cast<std::uint8_t>(target);
        p.bytes = static_cast<std::uint8_t>(w / 8);
        p.is_signed = is_signed;
        p.a = static_cast<std::uint32_t>(at) + element * (w / 8);
        return shared(p);
      }
      return kNoIndex;
    }
    // From memory: of what is narrower than the register, the bounds are known.
    if (!is_integer(i.type) || target <= w || target > 64)
      return kNoIndex;
    const std::int64_t span = std::int64_t{1} << (is_signed ? w - 1 : w);
    return opaque(target, block, is_signed ? -span : 0, span - 1);
  }

  // --- Contexts ---

  void make_contexts() {
    contexts_.emplace_back();
    block_context_.assign(cf_.blocks.size(), 0);
    edge_context_.assign(cf_.edges.size(), kNoIndex);
    loop_of_header_.assign(cf_.blocks.size(), kNoIndex);
    for (std::uint32_t l = 0; l < cf_.loops.size(); ++l)
      loop_of_header_[cf_.loops[l].header] = l;
    for (const std::uint32_t b : cf_.reverse_order) {
      const Block& block = cf_.blocks[b];
      // The one way in, those from within its own loop aside.
      std::uint32_t only = kNoIndex;
      bool several = false;
      for (const std::uint32_t e : block.in) {
        const std::uint32_t from = cf_.edges[e].from;
        if (cf_.blocks[from].order == kNoIndex || cf_.blocks[from].order >= block.order)
          continue;
        several |= only != kNoIndex;
        only = e;
      }
      std::uint32_t c = 0;
      if (only != kNoIndex && !several) {
        c = edge_context(only);
      } else if (block.idom != kNoIndex) {
        c = block_context_[block.idom];
      }
      if (loop_of_header_[b] != kNoIndex) {
        ContextNode node;
        node.parent = c;
        node.loop = loop_of_header_[b];
        c = static_cast<std::uint32_t>(contexts_.size());
        contexts_.push_back(node);
      }
      block_context_[b] = c;
    }
    for (std::uint32_t e = 0; e < cf_.edges.size(); ++e) {
      if (cf_.blocks[cf_.edges[e].from].order != kNoIndex)
        edge_context(e);
    }
  }

  std::uint32_t edge_context(std::uint32_t e) {
    if (edge_context_[e] != kNoIndex)
      return edge_context_[e];
    const Edge& edge = cf_.edges[e];
    std::uint32_t c = block_context_[edge.from];
    bool certain = edge.guard != kNoIndex;
    for (const std::uint32_t other : cf_.blocks[edge.from].out)
      certain &= other == e || cf_.edges[other].to != edge.to;
    if (certain) {
      ContextNode node;
      node.parent = c;
      node.edge = e;
      node.negated = edge.negated;
      c = static_cast<std::uint32_t>(contexts_.size());
      contexts_.push_back(node);
    }
    return edge_context_[e] = c;
  }

  std::uint32_t condition_context(std::uint32_t parent, std::uint32_t predicate, bool negated) {
    const std::uint64_t key =
        (std::uint64_t{parent} << 33) | (std::uint64_t{predicate} << 1) | (negated ? 1 : 0);
    const auto [it, is_new] = condition_context_.try_emplace(key, 0);
    if (is_new) {
      ContextNode node;
      node.parent = parent;
      node.node = predicate;
      node.negated = negated;
      it->second = static_cast<std::uint32_t>(contexts_.size());
      contexts_.push_back(node);
    }
    return it->second;
  }

  std::uint32_t context_of(std::uint32_t instruction) {
    const Instruction& i = f_.code[instruction];
    const std::uint32_t block = cf_.block_of[instruction];
    if (i.guard == kNoIndex)
      return block_context_[block];
    return condition_context(block_context_[block], value_at(i.guard, instruction, block),
                             i.guard_negated);
  }

  bool is_ancestor(std::uint32_t above, std::uint32_t below) const {
    while (below != above && below != 0)
      below = contexts_[below].parent;
    return below == above;
  }

  // The writes that the thread has surely made when it comes to place k.
  std::vector<std::uint32_t> writes_before(std::size_t k,
                                           const std::vector<std::uint32_t>& contexts) {
    std::vector<std::uint32_t> found;
    const std::uint32_t at = places_[k].instruction, block = cf_.block_of[at];
    for (std::uint32_t w = 0; w < places_.size() && found.size() < 16; ++w) {
      const AccessPlace& p = places_[w];
      const std::uint32_t from = cf_.block_of[p.instruction];
      if (!p.writes || p.reads || p.bytes == 0 || cf_.blocks[from].order == kNoIndex ||
          f_.code[p.instruction].opcode != Opcode::kSt) {
        continue;
      }
      const bool before = from == block ? p.instruction < at : cf_.dominates(from, block);
      if (before &&
          (f_.code[p.instruction].guard == kNoIndex || is_ancestor(contexts[w], contexts[k]))) {
        found.push_back(w);
      }
    }
    return found;
  }

  // --- Halves of 64-bit values ---

  const Node& at(std::uint32_t n) { return nodes_[resolve(n)]; }
  bool is_constant(std::uint32_t n, std::int64_t value) {
    const Node& x = at(n);
    return x.kind == NodeKind::kStep && x.step == StepKind::kConst && x.low == value;
  }

  void rewrite_packs() {
    for (std::uint32_t n = 0; n < nodes_.size() && !over_; ++n) {
      if (nodes_[n].kind != NodeKind::kStep || nodes_[n].step != StepKind::kPack ||
          alias_[n] != n) {
        continue;
      }
      const std::uint32_t whole = join_halves(n);
      if (whole != kNoIndex && whole != n)
        alias_[n] = whole;
    }
  }

  // The 64-bit value that the two halves of pack `n` come from, if it can be seen.
  std::uint32_t join_halves(std::uint32_t n) {
    const Node pack = nodes_[n];
    const std::uint32_t l = resolve(pack.a), h = resolve(pack.b);
    const Node low = nodes_[l], high = nodes_[h];
    auto again = [&](std::uint32_t x, std::uint32_t y) {
      return make(StepKind::kPack, 64, pack.block, pack.context, x, y);
    };
    if (low.kind == NodeKind::kUnpackLow && high.kind == NodeKind::kUnpackHigh &&
        resolve(low.a) == resolve(high.a)) {
      return resolve(low.a);
    }
    if (is_constant(h, 0))
      return extend(l, 32, 64, false, pack.block, pack.context);
    if (high.kind == NodeKind::kStep && high.step == StepKind::kShr && high.is_signed &&
        resolve(high.a) == l && is_constant(high.b, 31)) {
      return extend(l, 32, 64, true, pack.block, pack.context);
    }
    const bool sum = low.kind == NodeKind::kAddCarryOut && high.kind == NodeKind::kAddCarryIn;
    const bool difference =
        low.kind == NodeKind::kSubCarryOut && high.kind == NodeKind::kSubCarryIn;
    if ((sum || difference) && resolve(high.c) == l) {
      return make(sum ? StepKind::kAdd : StepKind::kSub, 64, pack.block, pack.context,
                  again(low.a, high.a), again(low.b, high.b));
    }
    if (low.kind == NodeKind::kStep && high.kind == NodeKind::kStep) {
      if (low.step == StepKind::kMul && high.step == StepKind::kMulHigh &&
          resolve(low.a) == resolve(high.a) && resolve(low.b) == resolve(high.b)) {
        return make(StepKind::kMulWide, 64, pack.block, pack.context, low.a, low.b, high.is_signed);
      }
      if (low.step == StepKind::kParam && high.step == StepKind::kParam && low.bytes == 4 &&
          high.bytes == 4 && high.a == low.a + 4) {
        Node p = low;
        p.width = 64;
        p.bytes = 8;
        return shared(p);
      }
      if (low.step == StepKind::kSelect && high.step == StepKind::kSelect && low.c == high.c &&
          low.d == high.d) {
        Node s = low;
        s.width = 64;
        s.a = again(low.a, high.a);
        s.b = again(low.b, high.b);
        return shared(s);
      }
    }
    if (low.kind == NodeKind::kPhi && high.kind == NodeKind::kPhi && low.block == high.block &&
        std::equal(phis_[low.payload].parts.begin(), phis_[low.payload].parts.end(),
                   phis_[high.payload].parts.begin(), phis_[high.payload].parts.end(),
                   [](const auto& x, const auto& y) { return x.second == y.second; })) {
      Phi p;
      p.block = low.block;
      p.pending = false;
      Node phi;
      phi.kind = NodeKind::kPhi;
      phi.width = 64;
      phi.block = low.block;
      phi.context = low.context;
      const std::uint64_t key = (std::uint64_t{l} << 32) | h;
      const auto [it, is_new] = packed_phi_.try_emplace(key, 0);
      if (!is_new)
        return it->second;
      phi.payload = static_cast<std::uint32_t>(phis_.size());
      phis_.push_back(p);
      const std::uint32_t id = append(phi);
      packed_phi_[key] = id;
      for (std::size_t k = 0; k < phis_[low.payload].parts.size(); ++k) {
        const auto [x, edge] = phis_[low.payload].parts[k];
        const std::uint32_t y = phis_[high.payload].parts[k].first;
        const std::uint32_t from = cf_.edges[edge].from;
        const std::uint32_t part = make(StepKind::kPack, 64, from, block_context_[from], x, y);
        phis_[phi.payload].parts.emplace_back(part, edge);
      }
      return id;
    }
    return kNoIndex;
  }

  // --- Loops ---

  // Whether `n` has one value while `loop` runs.
  bool is_fixed(std::uint32_t n, std::uint32_t loop, int depth = 0) {
    n = resolve(n);
    const Node& x = nodes_[n];
    ++work_;
    if (!cf_.inside(x.block, loop))
      return true;
    if (depth > 24 || x.kind == NodeKind::kPhi)
      return false;
    if (x.kind == NodeKind::kStep) {
      switch (x.step) {
        case StepKind::kConst:
        case StepKind::kParam:
        case StepKind::kSpecial:
        case StepKind::kSymbol:
          return true;
        case StepKind::kOpaque:
        case StepKind::kSelect:
        case StepKind::kMerge:
        case StepKind::kInduction:
        case StepKind::kLoop:
        case StepKind::kCondition:
          return false;
        default:
          break;
      }
    }
    for (const std::uint32_t o : {x.a, x.b}) {
      if (o != kNoIndex && !is_fixed(o, loop, depth + 1))
        return false;
    }
    return x.kind == NodeKind::kStep;
  }

  // A fixed value, computed before the loop: there it needs nothing of the loop.
  std::uint32_t hoist(std::uint32_t n, std::uint32_t loop, std::uint32_t block,
                      std::uint32_t context) {
    n = resolve(n);
    Node x = nodes_[n];
    if (!cf_.inside(x.block, loop) || (x.a == kNoIndex && x.b == kNoIndex) ||
        x.step == StepKind::kParam || x.step == StepKind::kSpecial || x.step == StepKind::kSymbol) {
      return n;
    }
    x.block = block;
    x.context = context;
    if (x.a != kNoIndex)
      x.a = hoist(x.a, loop, block, context);
    if (x.b != kNoIndex)
      x.b = hoist(x.b, loop, block, context);
    if (x.step == StepKind::kRem && x.c != kNoIndex)
      x.c = hoist(x.c, loop, block, context);
    return shared(x);
  }

  // Turns header phis that grow by the same amount in each pass into inductions.
  void find_inductions() {
    const auto count = static_cast<std::uint32_t>(nodes_.size());
    for (std::uint32_t n = 0; n < count && !over_; ++n) {
      if (nodes_[n].kind != NodeKind::kPhi || alias_[n] != n)
        continue;
      const std::uint32_t loop = loop_of_header_[nodes_[n].block];
      if (loop == kNoIndex)
        continue;
      const std::vector<std::pair<std::uint32_t, std::uint32_t>> parts =
          phis_[nodes_[n].payload].parts;
      std::uint32_t next = kNoIndex;
      bool good = nodes_[n].width > 1;
      std::vector<std::pair<std::uint32_t, std::uint32_t>> starts;
      for (const auto& [part, edge] : parts) {
        const std::uint32_t v = resolve(part);
        if (cf_.inside(cf_.edges[edge].from, loop)) {
          good &= next == kNoIndex || next == v;
          next = v;
        } else {
          starts.emplace_back(v, edge);
        }
      }
      if (!good || next == kNoIndex || starts.empty())
        continue;
      const unsigned width = nodes_[n].width;
      const std::uint32_t header = nodes_[n].block;
      const std::uint32_t outside = cf_.edges[starts[0].second].from;
      const std::uint32_t context = contexts_[block_context_[header]].parent;
      std::uint32_t step = constant(0, width);
      for (int hops = 0; next != n && good; ++hops) {
        const Node x = nodes_[next];
        const bool adds = x.kind == NodeKind::kStep && x.step == StepKind::kAdd;
        const bool subtracts = x.kind == NodeKind::kStep && x.step == StepKind::kSub;
        if ((!adds && !subtracts) || hops > 64) {
          good = false;
        } else if (is_fixed(x.b, loop)) {
          step = make(x.step, width, outside, context, step, hoist(x.b, loop, outside, context));
          next = resolve(x.a);
        } else if (adds && is_fixed(x.a, loop)) {
          step = make(StepKind::kAdd, width, outside, context, step,
                      hoist(x.a, loop, outside, context));
          next = resolve(x.b);
        } else {
          good = false;
        }
      }
      if (!good)
        continue;
      std::uint32_t start = starts[0].first;
      for (const auto& [v, edge] : starts)
        good &= v == start;
      if (!good) {
        // Several ways into the loop: what they bring is put together before it.
        Node merge;
        merge.kind = NodeKind::kPhi;
        merge.width = static_cast<std::uint8_t>(width);
        merge.block = outside;
        merge.context = context;
        merge.payload = static_cast<std::uint32_t>(phis_.size());
        Phi p;
        p.block = outside;
        p.pending = false;
        p.parts = starts;
        phis_.push_back(std::move(p));
        start = append(merge);
        forced_merge_.push_back(start);
      }
      Node& phi = nodes_[n];
      phi.kind = NodeKind::kStep;
      phi.step = StepKind::kInduction;
      phi.a = start;
      phi.b = step;
      phi.c = loop;
    }
  }

  // Whether `n` is a sum of what loop's counter moves and what is fixed. Widening is looked through
  // once, at the top: then the narrow value is what is compared.
  bool moves_with(std::uint32_t n, std::uint32_t loop, int depth = 0) {
    const Node x = at(n);
    if (depth > 24 || x.kind != NodeKind::kStep)
      return false;
    switch (x.step) {
      case StepKind::kInduction:
        return x.c == loop;
      case StepKind::kAdd:
      case StepKind::kSub:
      case StepKind::kMul:
        return (moves_with(x.a, loop, depth + 1) && is_fixed(x.b, loop)) ||
               (moves_with(x.b, loop, depth + 1) && is_fixed(x.a, loop));
      case StepKind::kShl:
        return moves_with(x.a, loop, depth + 1) && is_fixed(x.b, loop);
      case StepKind::kTruncate:
        return moves_with(x.a, loop, depth + 1);
      default:
        return false;
    }
  }

  // --- Steps ---

  std::uint32_t new_symbol(std::uint32_t loop) {
    program_->symbols.push_back({loop});
    return static_cast<std::uint32_t>(program_->symbols.size() - 1);
  }

  std::uint32_t push(Step s, std::uint32_t loop) {
    if (program_->steps.size() >= kMaxSteps) {
      over_ = true;
      return 0;
    }
    s.symbol = new_symbol(loop);
    program_->steps.push_back(s);
    return static_cast<std::uint32_t>(program_->steps.size() - 1);
  }

  std::uint32_t emit_opaque(std::uint32_t n) {
    const Node& x = nodes_[n];
    Step s;
    s.kind = StepKind::kOpaque;
    s.width = x.width;
    s.low = x.width >= 64 ? INT64_MIN : 0;
    s.high =
        x.width >= 64 ? INT64_MAX : static_cast<std::int64_t>((std::uint64_t{1} << x.width) - 1);
    return slot_[n] = push(s, cf_.blocks[x.block].loop);
  }

  std::uint32_t emit(std::uint32_t id) {
    const std::uint32_t n = resolve(id);
    static constexpr std::uint32_t kUnderWay = kNoIndex - 1;
    if (slot_.size() < nodes_.size())
      slot_.resize(nodes_.size(), kNoIndex);
    if (slot_[n] == kUnderWay) {
      // Only what goes round a loop in a way not understood needs itself.
      return emit_opaque(n);
    }
    if (slot_[n] != kNoIndex)
      return slot_[n];
    if (over_ || depth_ > kMaxDepth)
      return emit_opaque(n);
    const Node x = nodes_[n];
    const std::uint32_t loop = cf_.blocks[x.block].loop;
    if (x.kind == NodeKind::kPhi) {
      const bool forced =
          std::find(forced_merge_.begin(), forced_merge_.end(), n) != forced_merge_.end();
      if (loop_of_header_[x.block] != kNoIndex && !forced)
        return emit_opaque(n);
    } else if (x.kind != NodeKind::kStep) {
      return emit_opaque(n);
    }
    slot_[n] = kUnderWay;
    ++depth_;
    Step s;
    s.kind = x.step;
    s.width = x.width;
    s.from = x.from;
    s.bytes = x.bytes;
    s.is_signed = x.is_signed;
    s.low = x.low;
    s.high = x.high;
    const bool plain =
        x.kind == NodeKind::kStep &&
        (x.step == StepKind::kOpaque || x.step == StepKind::kConst || x.step == StepKind::kParam ||
         x.step == StepKind::kSpecial || x.step == StepKind::kSymbol);
    if (plain) {
      s.a = x.a;
      s.b = x.b;
    } else {
      if (x.kind == NodeKind::kStep && x.step == StepKind::kInduction) {
        // Its loop's bound needs it: that comes later.
        s.a = emit(x.a);
        s.b = emit(x.b);
        s.c = x.c;
      } else {
        if (loop != kNoIndex)
          prepare(loop);
        s.context = emit_context(x.context);
        if (x.kind == NodeKind::kPhi) {
          s.kind = StepKind::kMerge;
          std::vector<MergePart> parts;
          const auto ways = phis_[x.payload].parts;  // more may be made meanwhile
          for (const auto& [part, edge] : ways) {
            MergePart p;
            p.context = emit_context(edge_context_[edge]);
            p.slot = emit(part);
            parts.push_back(p);
          }
          s.a = static_cast<std::uint32_t>(program_->parts.size());
          s.b = static_cast<std::uint32_t>(parts.size());
          // Values that come together in one place in one way.
          s.d = phis_[x.payload].parts.empty() ? kNoIndex : phis_[x.payload].parts[0].second;
          program_->parts.insert(program_->parts.end(), parts.begin(), parts.end());
        } else {
          if (x.step == StepKind::kSelect) {
            s.c = emit_context(x.c);
            s.d = emit_context(x.d);
          } else if (x.c != kNoIndex) {
            s.c = emit(x.c);
          }
          if (x.a != kNoIndex)
            s.a = emit(x.a);
          if (x.b != kNoIndex)
            s.b = emit(x.b);
        }
      }
    }
    --depth_;
    if (slot_[n] != kUnderWay)
      return slot_[n];  // it needed itself
    slot_[n] = push(s, loop);
    return slot_[n];
  }

  struct Atom {
    std::uint32_t compare = 0;
    bool negated = false;
  };
  // The comparisons that must all hold for the predicate to be true (or false).
  void atoms(std::uint32_t predicate, bool negated, std::vector<Atom>& out, int depth = 0) {
    const std::uint32_t n = resolve(predicate);
    const Node& x = nodes_[n];
    if (depth > 24 || out.size() > 32)
      return;
    switch (x.kind) {
      case NodeKind::kNot:
        return atoms(x.a, !negated, out, depth + 1);
      case NodeKind::kAnd:
      case NodeKind::kOr:
        if ((x.kind == NodeKind::kAnd) == !negated) {
          const std::uint32_t b = x.b;
          atoms(x.a, negated, out, depth + 1);
          atoms(b, negated, out, depth + 1);
        }
        return;
      case NodeKind::kCompare:
        out.push_back({n, negated});
        return;
      default:
        return;
    }
  }

  static Relation inverse(Relation r) {
    static constexpr Relation kInverse[] = {Relation::kGreaterEqual, Relation::kGreater,
                                            Relation::kLessEqual,    Relation::kLess,
                                            Relation::kNotEqual,     Relation::kEqual};
    return kInverse[static_cast<int>(r)];
  }

  // A predicate that comes from several places, some of them constants, as the comparison of a
  // number with zero; kNoIndex: it is none.
  std::uint32_t as_number(std::uint32_t n, int depth = 0) {
    const auto [it, is_new] = number_of_.try_emplace(n, kNoIndex);
    if (!is_new)
      return it->second;
    const Node x = nodes_[n];
    if (x.width != 1 || loop_of_header_[x.block] != kNoIndex)
      return kNoIndex;
    Phi p;
    p.block = x.block;
    p.pending = false;
    bool any = false;
    const auto ways = phis_[x.payload].parts;
    for (const auto& [part, edge] : ways) {
      std::uint32_t v = resolve(part);
      bool truth = true;
      for (int hops = 0; nodes_[v].kind == NodeKind::kNot && hops < 8; ++hops) {
        truth = !truth;
        v = resolve(nodes_[v].a);
      }
      std::uint32_t value = kNoIndex;
      if (nodes_[v].kind == NodeKind::kTrue) {
        value = constant(truth ? 1 : 0, 32);
      } else if (truth && nodes_[v].kind == NodeKind::kPhi && depth < 8) {
        if (const std::uint32_t inner = as_number(v, depth + 1); inner != kNoIndex)
          value = nodes_[inner].a;
      }
      any |= value != kNoIndex;
      if (value == kNoIndex)
        value = opaque(32, cf_.edges[edge].from, 0, 1);
      p.parts.emplace_back(value, edge);
    }
    if (!any)
      return kNoIndex;
    Node phi;
    phi.kind = NodeKind::kPhi;
    phi.width = 32;
    phi.block = x.block;
    phi.context = x.context;
    phi.payload = static_cast<std::uint32_t>(phis_.size());
    phis_.push_back(std::move(p));
    Node c;
    c.kind = NodeKind::kCompare;
    c.relation = Relation::kNotEqual;
    c.width = 1;
    c.payload = 32;
    c.block = x.block;
    c.context = x.context;
    c.a = append(phi);
    c.b = constant(0, 32);
    return number_of_[n] = append(c);
  }

  // What holds where the predicate is true (or false), into the program's context `id`.
  void emit_conditions(std::uint32_t predicate, bool negated, std::uint32_t id, int depth) {
    std::uint32_t n = resolve(predicate);
    if (depth > 24 || over_)
      return;
    if (nodes_[n].kind == NodeKind::kPhi) {
      n = as_number(n);
      if (n == kNoIndex)
        return;
    }
    const Node x = nodes_[n];
    switch (x.kind) {
      case NodeKind::kNot:
        return emit_conditions(x.a, !negated, id, depth + 1);
      case NodeKind::kAnd:
      case NodeKind::kOr: {
        if ((x.kind == NodeKind::kAnd) == !negated) {
          emit_conditions(x.a, negated, id, depth + 1);
          return emit_conditions(x.b, negated, id, depth + 1);
        }
        if (either_ > 3)
          return;
        ++either_;
        Step s;
        s.kind = StepKind::kEither;
        s.context = id;
        for (const bool first : {true, false}) {
          const auto side = static_cast<std::uint32_t>(program_->contexts.size());
          program_->contexts.push_back(id);
          (first ? s.c : s.d) = side;
          emit_conditions(first ? x.a : x.b, negated, side, depth + 1);
        }
        --either_;
        push(s, kNoIndex);
        return;
      }
      case NodeKind::kTrue: {
        if (!negated)
          return;
        // Nobody comes here: 0 ≠ 0.
        Step s;
        s.kind = StepKind::kCondition;
        s.relation = Relation::kNotEqual;
        s.a = s.b = emit(constant(0, 32));
        s.context = id;
        push(s, kNoIndex);
        return;
      }
      case NodeKind::kCompare: {
        Step s;
        s.kind = StepKind::kCondition;
        s.relation = negated ? inverse(x.relation) : x.relation;
        if (x.from != kNotFloat)
          s.from = (x.from == kOrdered) == negated ? kUnordered : kOrdered;
        s.is_signed = x.is_signed;
        s.width = static_cast<std::uint8_t>(x.payload);
        s.a = emit(x.a);
        s.b = emit(x.b);
        s.context = id;
        push(s, kNoIndex);
        return;
      }
      default:
        return;
    }
  }

  std::uint32_t emit_context(std::uint32_t c) {
    // From the root down: chains are long in code with many early exits.
    std::vector<std::uint32_t> chain;
    for (std::uint32_t k = c; contexts_[k].emitted == kNoIndex; k = contexts_[k].parent)
      chain.push_back(k);
    while (!chain.empty()) {
      const std::uint32_t k = chain.back();
      chain.pop_back();
      if (contexts_[k].emitted != kNoIndex)
        continue;
      const auto id = static_cast<std::uint32_t>(program_->contexts.size());
      program_->contexts.push_back(contexts_[contexts_[k].parent].emitted);
      contexts_[k].emitted = id;
      if (contexts_[k].loop != kNoIndex) {
        prepare(contexts_[k].loop);
        continue;
      }
      if (contexts_[k].node == kNoIndex)
        continue;
      emit_conditions(contexts_[k].node, contexts_[k].negated, id, 0);
    }
    return contexts_[c].emitted;
  }

  // --- What is surely written ---

  // Adds the comparisons that hold exactly when the predicate is true (or false); false: it is made
  // of something else too.
  bool add_musts(std::uint32_t predicate, bool negated, std::uint32_t loop, bool behind,
                 std::vector<MustCondition>& out, int depth = 0) {
    const std::uint32_t n = resolve(predicate);
    const Node x = nodes_[n];
    if (depth > 24 || out.size() > 16)
      return false;
    switch (x.kind) {
      case NodeKind::kNot:
        return add_musts(x.a, !negated, loop, behind, out, depth + 1);
      case NodeKind::kAnd:
      case NodeKind::kOr:
        return (x.kind == NodeKind::kAnd) == !negated &&
               add_musts(x.a, negated, loop, behind, out, depth + 1) &&
               add_musts(x.b, negated, loop, behind, out, depth + 1);
      case NodeKind::kTrue:
        return !negated;
      case NodeKind::kCompare: {
        if (x.from != kNotFloat)
          return false;
        MustCondition m;
        m.relation = negated ? inverse(x.relation) : x.relation;
        m.width = static_cast<std::uint8_t>(x.payload);
        m.is_signed = x.is_signed;
        m.context = emit_context(x.context);
        m.a = emit(x.a);
        m.b = emit(x.b);
        m.loop = loop;
        m.behind = behind;
        out.push_back(m);
        return true;
      }
      default:
        return false;
    }
  }
  bool add_musts_of_edge(std::uint32_t e, std::uint32_t loop, bool behind,
                         std::vector<MustCondition>& out) {
    const Edge& edge = cf_.edges[e];
    if (edge.guard == kNoIndex)
      return true;
    const ContextNode& c = contexts_[edge_context_[e]];
    return c.edge == e && c.node != kNoIndex && add_musts(c.node, c.negated, loop, behind, out);
  }

  // The one edge out of the loop; kNoIndex: it is left in several ways, or goes round in several.
  std::uint32_t only_exit(std::uint32_t loop) const {
    const Loop& l = cf_.loops[loop];
    return l.exits.size() == 1 && l.latches.size() == 1 &&
                   cf_.dominates(cf_.edges[l.exits[0]].from, cf_.edges[l.latches[0]].from) &&
                   cf_.blocks[cf_.edges[l.exits[0]].from].loop == loop
               ? l.exits[0]
               : kNoIndex;
  }

  // Whether a thread at `above` comes to `below` whatever happens, in the same pass of `loop`.
  bool always_reaches(std::uint32_t above, std::uint32_t below, std::uint32_t loop) const {
    if (!cf_.post_dominates(below, above))
      return false;
    if (loop == kNoIndex)
      return true;
    const std::uint32_t exit = only_exit(loop);
    if (exit == kNoIndex || !cf_.dominates(below, cf_.edges[cf_.loops[loop].latches[0]].from))
      return false;
    const std::uint32_t leaves = cf_.edges[exit].from;
    return cf_.dominates(below, leaves) || (leaves != above && cf_.dominates(leaves, above));
  }

  // From the write up to the entry: at each step the thread either comes down always, or exactly
  // when the condition of the one way holds.
  void find_musts(std::uint32_t instruction, Site& site) {
    const Instruction& i = f_.code[instruction];
    const std::uint32_t start = cf_.block_of[instruction];
    if (i.opcode != Opcode::kSt || i.has(Modifier::kAsync) || i.has(Modifier::kBulk))
      return;
    site.block = start;
    site.loop = cf_.blocks[start].loop;
    std::vector<MustCondition> musts;
    if (i.guard != kNoIndex) {
      const std::uint32_t c = context_of(instruction);
      if (!add_musts(contexts_[c].node, i.guard_negated, kNoIndex, false, musts))
        return;
    }
    std::vector<std::uint32_t> tested;  // loops whose condition is met on the way
    for (std::uint32_t at = start; at != 0;) {
      const std::uint32_t headed = loop_of_header_[at];
      if (headed != kNoIndex && cf_.inside(start, headed)) {
        const std::uint32_t exit = only_exit(headed);
        if (exit == kNoIndex)
          return;
        if (std::find(tested.begin(), tested.end(), headed) == tested.end()) {
          // Tested after the write: at the end of each pass.
          std::uint32_t stays = kNoIndex;
          for (const std::uint32_t e : cf_.blocks[cf_.edges[exit].from].out) {
            if (e == exit)
              continue;
            if (stays != kNoIndex)
              return;
            stays = e;
          }
          if (stays == kNoIndex || !add_musts_of_edge(stays, headed, true, musts))
            return;
        }
      }
      std::uint32_t above = cf_.blocks[at].idom;
      // A loop on the way that is over by now is seen as a whole.
      std::uint32_t whole = kNoIndex;
      for (std::uint32_t l = cf_.blocks[above].loop; l != kNoIndex; l = cf_.loops[l].parent) {
        if (!cf_.inside(start, l))
          whole = l;
      }
      if (whole != kNoIndex)
        above = cf_.loops[whole].header;
      const std::uint32_t around =
          cf_.blocks[at].loop == kNoIndex ? kNoIndex : common_loop(above, at);
      if (always_reaches(above, at, around)) {
        at = above;
        continue;
      }
      if (whole != kNoIndex)
        return;
      std::uint32_t only = kNoIndex;
      for (const std::uint32_t e : cf_.blocks[at].in) {
        const std::uint32_t from = cf_.edges[e].from;
        if (cf_.blocks[from].order == kNoIndex || cf_.blocks[from].order >= cf_.blocks[at].order)
          continue;
        if (only != kNoIndex)
          return;
        only = e;
      }
      if (only == kNoIndex || cf_.edges[only].from != above)
        return;
      std::uint32_t loop = kNoIndex;
      if (around != kNoIndex) {
        const std::uint32_t exit = only_exit(around);
        if (exit != kNoIndex && cf_.edges[exit].from == above) {
          loop = around;
          tested.push_back(around);
        }
      }
      if (!add_musts_of_edge(only, loop, false, musts))
        return;
      at = above;
    }
    site.must_write = true;
    site.first_must = static_cast<std::uint32_t>(program_->musts.size());
    site.must_count = static_cast<std::uint32_t>(musts.size());
    program_->musts.insert(program_->musts.end(), musts.begin(), musts.end());
  }

  // The innermost loop that both blocks are in.
  std::uint32_t common_loop(std::uint32_t a, std::uint32_t b) const {
    std::uint32_t l = cf_.blocks[a].loop;
    while (l != kNoIndex && !cf_.inside(b, l))
      l = cf_.loops[l].parent;
    return l;
  }

  // Bounds the counter of `loop`, after those of the loops around it.
  void prepare(std::uint32_t loop) {
    if (loop_state_[loop] != 0 || over_)
      return;
    loop_state_[loop] = 1;
    const Loop& l = cf_.loops[loop];
    if (l.parent != kNoIndex)
      prepare(l.parent);
    const std::uint32_t own = block_context_[l.header];
    const std::uint32_t entry = emit_context(contexts_[own].parent);
    program_->loops[loop].entry = entry;
    program_->loops[loop].context = emit_context(own);

    // Conditions that hold on every way back.
    std::unordered_map<std::uint32_t, std::uint32_t> seen;
    for (const std::uint32_t e : l.latches) {
      for (std::uint32_t c = edge_context_[e]; c != own && c != 0; c = contexts_[c].parent)
        ++seen[c];
    }
    std::vector<std::uint32_t> common;
    for (const auto& [c, times] : seen) {
      if (times == l.latches.size() && contexts_[c].loop == kNoIndex &&
          contexts_[c].node != kNoIndex) {
        common.push_back(c);
      }
    }
    std::sort(common.begin(), common.end());
    std::vector<LoopCondition> conditions;
    for (const std::uint32_t c : common) {
      std::vector<Atom> all;
      atoms(contexts_[c].node, contexts_[c].negated, all);
      for (const Atom& atom : all) {
        const Node x = nodes_[atom.compare];
        if (x.from != kNotFloat)
          continue;
        Relation relation = atom.negated ? inverse(x.relation) : x.relation;
        std::uint32_t moving = resolve(x.a), fixed = resolve(x.b);
        if (is_fixed(moving, loop)) {
          std::swap(moving, fixed);
          static constexpr Relation kSwapped[] = {Relation::kGreater, Relation::kGreaterEqual,
                                                  Relation::kLess,    Relation::kLessEqual,
                                                  Relation::kEqual,   Relation::kNotEqual};
          relation = kSwapped[static_cast<int>(relation)];
        }
        LoopCondition k;
        k.relation = relation;
        k.is_signed = k.fixed_signed = x.is_signed;
        k.width = static_cast<std::uint8_t>(x.payload);
        if (const Node& m = nodes_[moving]; m.kind == NodeKind::kStep &&
                                            m.step == StepKind::kExtend &&
                                            (!m.is_signed || x.is_signed)) {
          k.width = m.from;
          k.is_signed = m.is_signed;
          moving = resolve(m.a);
        }
        if (!is_fixed(fixed, loop) || !moves_with(moving, loop))
          continue;
        if (!l.entries.empty()) {
          fixed = hoist(fixed, loop, cf_.edges[l.entries[0]].from, contexts_[own].parent);
        }
        k.moving = emit(moving);
        k.fixed = emit(fixed);
        conditions.push_back(k);
      }
    }
    program_->loops[loop].first = static_cast<std::uint32_t>(program_->conditions.size());
    program_->loops[loop].count = static_cast<std::uint32_t>(conditions.size());
    program_->conditions.insert(program_->conditions.end(), conditions.begin(), conditions.end());
    std::vector<MergePart> ways;
    for (const std::uint32_t e : l.entries) {
      if (l.header == 0)
        break;  // the kernel begins there
      if (edge_context_[e] == kNoIndex)
        continue;  // nobody comes there
      MergePart p;
      p.context = emit_context(edge_context_[e]);
      ways.push_back(p);
    }
    program_->loops[loop].first_way = static_cast<std::uint32_t>(program_->parts.size());
    program_->loops[loop].ways = static_cast<std::uint32_t>(ways.size());
    program_->parts.insert(program_->parts.end(), ways.begin(), ways.end());
    Step s;
    s.kind = StepKind::kLoop;
    s.a = loop;
    push(s, kNoIndex);
    loop_state_[loop] = 2;
  }

  const ptx::Module& module_;
  const Function& f_;
  std::span<const AccessPlace> places_;
  std::span<const std::string> symbols_;
  ControlFlow cf_;
  std::vector<std::vector<std::uint32_t>> definitions_;  // per register: instructions, ascending
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> alias_;  // per node: what stands for it
  std::vector<Phi> phis_;
  std::unordered_map<std::uint64_t, std::uint32_t> phi_of_, definition_of_, condition_context_,
      packed_phi_, number_of_;
  std::unordered_map<Key, std::uint32_t, KeyHash> shared_;
  std::vector<ContextNode> contexts_;  // 0: no condition
  std::vector<std::uint32_t> block_context_, edge_context_, loop_of_header_, forced_merge_;
  std::vector<std::uint32_t> slot_;
  std::vector<std::uint8_t> loop_state_;
  std::shared_ptr<AddressProgram> program_;
  std::uint64_t work_ = 0;
  int depth_ = 0, either_ = 0;
  bool over_ = false;
};

}  // namespace

std::shared_ptr<const AddressProgram> build_address_program(const ptx::Module& module,
                                                            const Function& kernel,
                                                            std::span<const AccessPlace> places,
                                                            std::span<const std::string> symbols) {
  return Builder(module, kernel, places, symbols).run();
}

}  // namespace gpurecover::idempotency
