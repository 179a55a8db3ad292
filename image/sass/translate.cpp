// SPDX-License-Identifier: Apache-2.0
#include "image/sass/translate.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <functional>
#include <optional>

#include "image/sass/flow.h"
#include "image/sass/lift.h"
#include "image/sass/trace.h"
#include "image/sass/word.h"

namespace gpurecover::image::sass {
namespace {

using ptx::Modifier;
using ptx::Opcode;
using ptx::Space;
using ptx::Type;

// Variables: what an instruction can write.
constexpr std::uint32_t kGeneral = 0, kUniformRegister = 256, kPredicate = 512,
                        kUniformPredicate = 520;
constexpr std::uint32_t kZeroRegister = 255;
// Values that flow into joins, and steps of finding dominators.
constexpr std::size_t kMaxJoined = 8u << 20, kMaxDominatorSteps = 200'000'000;

// Operands of arithmetic instructions lie in three places; which holds what is the form (bits
// 9-11).
struct Operands {
  Id a = kNoId, b = kNoId, c = kNoId;
  bool negate_b = false, negate_c = false;  // by the place
};

class Translator {
 public:
  Translator(const Code& code, const CubinKernel& kernel, const Flow& flow, Graph& graph,
             std::vector<TracedInstruction>* trace)
      : code_(code),
        kernel_(kernel),
        flow_(flow),
        g_(graph),
        words_(driver_words(code.sm)),
        trace_(trace) {
    if (const auto it = code.sections.find(".nv.constant2." + kernel.name);
        it != code.sections.end()) {
      literals_ = code.elf.sections[it->second].data;
      for (const ElfSection& s : code.elf.sections) {
        if ((s.type == 4 || s.type == 9) && s.info == it->second && !s.data.empty())
          literals_ = {};  // what the driver puts there is not known
      }
    }
  }

  std::string run() {
    const std::vector<std::uint32_t> order = reverse_postorder();
    dominators(order);
    if (g_.too_large)
      return "the kernel is too large or too tangled to be analysed";
    done_.assign(g_.blocks.size(), false);
    for (const std::uint32_t b : order) {
      translate_block(b);
      if (!refusal_.empty())
        return refusal_;
      done_[b] = true;
      if (g_.too_large)
        return "the kernel is too large or too tangled to be analysed";
    }
    while (!deferred_.empty()) {
      const auto [phi, variable] = deferred_.back();
      deferred_.pop_back();
      fill(phi, variable, 0);
      if (g_.too_large)
        return "the kernel is too large or too tangled to be analysed";
    }
    // A join of one value, and of itself, is that value. Each pass may uncover more.
    for (int pass = 0; pass < 32; ++pass) {
      bool changed = false;
      for (const Id phi : all_phis_) {
        if (g_[phi].replaced == kNoId)
          changed |= drop_if_trivial(phi);
      }
      changed |= g_.simplify();
      if (!changed)
        break;
    }
    return check_returns();
  }

 private:
  void refuse(const std::string& why) {
    if (refusal_.empty()) {
      char at[48];
      std::snprintf(at, sizeof at, " (machine code offset 0x%x)", pc_ * 16);
      refusal_ = why + at;
    }
  }
  void unknown_instruction(const char* what = "instruction") {
    char text[64];
    std::snprintf(text, sizeof text, "%s 0x%03x of sm_%u is not known", what, w_.opcode(),
                  code_.sm);
    refuse(text);
  }

  // Whether bits 72-91 hold more than the fields named, each as first bit and count. What a bit
  // means that was never seen with an instruction is not known, so that the instruction is not
  // either.
  struct Field {
    unsigned first, count;
  };
  bool has_others(std::initializer_list<Field> fields) {
    std::uint64_t allowed = 0;
    for (const Field& f : fields)
      allowed |= ((std::uint64_t{1} << f.count) - 1) << (f.first - 72);
    if ((w_.bits(72, 20) & ~allowed) == 0)
      return false;
    unknown_instruction("form of instruction");
    return true;
  }

  // --- Order ---

  std::vector<std::uint32_t> reverse_postorder() const {
    std::vector<std::uint32_t> order;
    std::vector<std::uint8_t> state(g_.blocks.size(), 0);
    std::vector<std::uint32_t> stack{0};
    while (!stack.empty()) {
      const std::uint32_t b = stack.back();
      const Block& block = g_.blocks[b];
      if (state[b] == 0)
        state[b] = 1;
      bool descended = false;
      // The second successor first, so that the first comes first in the result.
      for (; state[b] <= 2 && !descended; ++state[b]) {
        const std::uint32_t to = state[b] == 1 ? block.target : block.next;
        if (to != kNoId && state[to] == 0) {
          stack.push_back(to);
          descended = true;
        }
      }
      if (!descended) {
        order.push_back(b);
        stack.pop_back();
      }
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

  // Cooper, Harvey and Kennedy: immediate dominators by intersection along the order.
  void dominators(const std::vector<std::uint32_t>& order) {
    std::vector<std::uint32_t> number(g_.blocks.size(), 0);
    for (std::uint32_t i = 0; i < order.size(); ++i)
      number[order[i]] = i;
    g_.blocks[0].dominator = 0;
    std::size_t steps = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (const std::uint32_t b : order) {
        if (b == 0)
          continue;
        std::uint32_t best = kNoId;
        for (const std::uint32_t p : g_.blocks[b].predecessors) {
          if (g_.blocks[p].dominator == kNoId)
            continue;
          if (best == kNoId) {
            best = p;
            continue;
          }
          std::uint32_t x = p, y = best;
          while (x != y) {
            if (++steps > kMaxDominatorSteps) {
              g_.too_large = true;
              return;
            }
            (number[x] > number[y] ? x : y) = g_.blocks[number[x] > number[y] ? x : y].dominator;
          }
          best = x;
        }
        if (g_.blocks[b].dominator != best) {
          g_.blocks[b].dominator = best;
          changed = true;
        }
      }
    }
    for (const std::uint32_t b : order)
      g_.blocks[b].depth = b == 0 ? 0 : g_.blocks[g_.blocks[b].dominator].depth + 1;
  }

  // --- Variables ---

  static std::uint8_t width_of(std::uint32_t variable) { return variable >= kPredicate ? 1 : 32; }
  Id& definition(std::uint32_t block, std::uint32_t variable) {
    return definitions_.try_emplace((std::uint64_t{block} << 10) | variable, kNoId).first->second;
  }

  Id read(std::uint32_t block, std::uint32_t variable, int depth) {
    std::vector<std::uint32_t> path;
    Id value = kNoId;
    for (std::uint32_t b = block;;) {
      if (const Id d = definition(b, variable); d != kNoId) {
        value = g_.resolve(d);
        break;
      }
      const auto& from = g_.blocks[b].predecessors;
      path.push_back(b);
      if (from.empty()) {
        value = g_.leaf(Op::kUndef, width_of(variable), 0);
        break;
      }
      if (from.size() == 1) {
        b = from[0];
        continue;
      }
      const Id phi = new_phi(b, width_of(variable));
      definition(b, variable) = phi;
      const bool sealed =
          std::all_of(from.begin(), from.end(), [&](std::uint32_t p) { return done_[p]; });
      if (sealed && depth < 64) {
        fill(phi, variable, depth + 1);
      } else {
        deferred_.emplace_back(phi, variable);
      }
      value = g_.resolve(phi);
      break;
    }
    for (const std::uint32_t b : path) {
      Id& d = definition(b, variable);
      if (d == kNoId)
        d = value;
    }
    return value;
  }

  Id new_phi(std::uint32_t block, std::uint8_t width) {
    const Id phi = g_.make(block, 0, Op::kPhi, width, {}, g_.phis.size());
    if (!g_.too_large) {
      g_.phis.emplace_back();
      all_phis_.push_back(phi);
    }
    return phi;
  }
  void fill(Id phi, std::uint32_t variable, int depth) {
    if (g_.too_large)
      return;
    const std::vector<std::uint32_t> from = g_.blocks[g_[phi].block].predecessors;
    std::vector<Id> args;
    args.reserve(from.size());
    joined_ += from.size();
    if (joined_ > kMaxJoined) {
      g_.too_large = true;
      return;
    }
    for (const std::uint32_t p : from)
      args.push_back(read(p, variable, depth));
    g_.phis[g_[phi].imm] = std::move(args);
    drop_if_trivial(phi);
  }
  bool drop_if_trivial(Id phi) {
    Id only = kNoId;
    for (Id& a : g_.phis[g_[phi].imm]) {
      a = g_.resolve(a);
      if (a == phi || a == only)
        continue;
      if (only != kNoId)
        return false;
      only = a;
    }
    if (only == kNoId)
      return false;  // not filled yet
    g_[phi].replaced = only;
    return true;
  }

  // --- Reading and writing in the instruction at hand ---

  Id make(Op op, std::initializer_list<Id> args, std::uint64_t imm = 0, std::uint8_t width = 32,
          bool flag = false) {
    return g_.make(block_, slot_, op, width, args, imm, flag);
  }
  Id opaque(std::uint8_t width = 32) { return make(Op::kOpaque, {}, 0, width); }

  // --- For image/sass/trace.h ---

  static std::string name_of_variable(std::uint32_t v) {
    return v >= kUniformPredicate  ? "UP" + std::to_string(v - kUniformPredicate)
           : v >= kPredicate       ? "P" + std::to_string(v - kPredicate)
           : v >= kUniformRegister ? "UR" + std::to_string(v - kUniformRegister)
                                   : "R" + std::to_string(v);
  }
  static const char* name_of_space(Space space) {
    switch (space) {
      case Space::kGlobal:
        return "global";
      case Space::kShared:
      case Space::kSharedCluster:
        return "shared";
      case Space::kLocal:
        return "local";
      case Space::kConst:
        return "const";
      case Space::kParam:
        return "param";
      default:
        return "generic";
    }
  }
  void trace_read(const std::string& what) {
    if (trace_ != nullptr)
      trace_->back().reads.push_back(what);
  }
  void trace_number(const char* what, std::int64_t value) {
    if (trace_ != nullptr)
      trace_->back().numbers[what] = value;
  }
  Id immediate(std::uint64_t value) {
    if (trace_ != nullptr) {
      char text[24];
      std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
      trace_read(text);
    }
    return g_.constant(value);
  }

  // What a value is where the guard holds.
  Id under_guard(Id value) {
    value = g_.resolve(value);
    if (guard_ == kNoId)
      return value;
    const Node& guard = g_[guard_];
    const Id opposite = guard.op == Op::kNot ? g_.resolve(guard.args[0]) : kNoId;
    for (;;) {
      const Node& n = g_[value];
      if (n.op != Op::kSelect)
        return value;
      const Id p = g_.resolve(n.args[0]);
      const Node& condition = g_[p];
      if (p == guard_) {
        value = g_.resolve(n.args[1]);
      } else if (p == opposite ||
                 (condition.op == Op::kNot && g_.resolve(condition.args[0]) == guard_)) {
        value = g_.resolve(n.args[2]);
      } else {
        return value;
      }
    }
  }
  Id variable(std::uint32_t v) { return under_guard(read(block_, v, 0)); }
  Id general(std::uint32_t r) {
    if (trace_ != nullptr)
      trace_read(r == kZeroRegister ? "RZ" : name_of_variable(kGeneral + r));
    return r == kZeroRegister ? g_.constant(0) : variable(kGeneral + r);
  }
  std::uint32_t uniform_zero() const { return code_.sm >= 100 ? 255 : 63; }
  Id uniform(std::uint32_t r) {
    if (code_.sm < 100)
      r &= 63;
    if (trace_ != nullptr)
      trace_read(r == uniform_zero() ? "URZ" : name_of_variable(kUniformRegister + r));
    return r == uniform_zero() ? g_.constant(0) : variable(kUniformRegister + r);
  }
  Id general_field(unsigned at) { return general(static_cast<std::uint32_t>(w_.bits(at, 8))); }
  Id uniform_field(unsigned at) { return uniform(static_cast<std::uint32_t>(w_.bits(at, 8))); }
  Id next_general(unsigned at) {
    const auto r = static_cast<std::uint32_t>(w_.bits(at, 8));
    if (r == kZeroRegister)
      return general(r);
    if (r == 254) {
      refuse("a pair of registers ends past the last one");
      return g_.constant(0);
    }
    return general(r + 1);
  }
  Id next_uniform(unsigned at) {
    const auto r = static_cast<std::uint32_t>(w_.bits(at, 8)) & (code_.sm < 100 ? 63u : 255u);
    return uniform(r == uniform_zero() ? r : r + 1);
  }
  Id pair(Id low, Id high) { return make(Op::kPack, {low, high}, 0, 64); }
  Id general_pair(unsigned at) {
    const Id low = general_field(at);
    return pair(low, next_general(at));
  }
  Id uniform_pair(unsigned at) {
    const Id low = uniform_field(at);
    return pair(low, next_uniform(at));
  }

  Id predicate(unsigned at, unsigned negated_at, bool is_uniform = false) {
    const auto p = static_cast<std::uint32_t>(w_.bits(at, 3));
    if (trace_ != nullptr) {
      const std::string name = p != 7 ? name_of_variable(kPredicate + p) : "PT";
      trace_read((w_.bit(negated_at) ? "!" : "") + std::string(is_uniform ? "U" : "") + name);
    }
    Id v = p == 7 ? g_.constant(1, 1) : variable((is_uniform ? kUniformPredicate : kPredicate) + p);
    return w_.bit(negated_at) ? make(Op::kNot, {v}, 0, 1) : v;
  }

  void write(std::uint32_t v, Id value) {
    if (trace_ != nullptr) {
      const Node& n = g_[g_.resolve(value)];
      const bool of_whole = n.op == Op::kLow || n.op == Op::kHigh;
      trace_->back().opaque |= (of_whole ? g_[g_.resolve(n.args[0])] : n).op == Op::kOpaque;
    }
    if (trace_ != nullptr)
      (may_ ? trace_->back().may_write : trace_->back().writes).push_back(name_of_variable(v));
    if (guard_ != kNoId) {
      const Id guard = guard_;
      guard_ = kNoId;
      const Id old = read(block_, v, 0);
      guard_ = guard;
      value = g_.make(block_, slot_, Op::kSelect, width_of(v), {guard, value, old});
    }
    definition(block_, v) = value;
  }
  void write_general(std::uint32_t r, Id value) {
    if (r < kZeroRegister)
      write(kGeneral + r, value);
  }
  void write_uniform(std::uint32_t r, Id value) {
    if (code_.sm < 100)
      r &= 63;
    if (r != uniform_zero())
      write(kUniformRegister + r, value);
  }
  void write_to(bool is_uniform, unsigned at, unsigned index, Id value) {
    auto r = static_cast<std::uint32_t>(w_.bits(at, 8));
    const std::uint32_t zero = is_uniform ? uniform_zero() : kZeroRegister;
    if (is_uniform && code_.sm < 100)
      r &= 63;
    if (r == zero)
      return;
    if (r + index >= zero) {
      refuse("a result ends past the last register");
      return;
    }
    is_uniform ? write_uniform(r + index, value) : write_general(r + index, value);
  }
  void write_result(Id value, bool is_uniform = false) { write_to(is_uniform, 16, 0, value); }
  void write_result64(Id value, bool is_uniform = false, unsigned index = 0) {
    write_to(is_uniform, 16, index, make(Op::kLow, {value}));
    write_to(is_uniform, 16, index + 1, make(Op::kHigh, {value}));
  }
  // `count` registers of which nothing is known any more.
  void write_opaque(unsigned count, bool is_uniform = false, unsigned at = 16) {
    for (unsigned k = 0; k < count; ++k)
      write_to(is_uniform, at, k, opaque());
  }
  // One register; sm_120 has integer instructions of 64 bits, which may write the next one too.
  void write_opaque_word() {
    write_opaque(1);
    const auto r = static_cast<std::uint32_t>(w_.bits(16, 8));
    may_ = true;
    if (code_.sm >= 120 && r < 254)
      write_general(r + 1, make(Op::kSelect, {opaque(1), opaque(), read(block_, r + 1, 0)}));
    may_ = false;
  }
  // The same, where it is not certain that all of them are written.
  void may_write_opaque(unsigned count, bool is_uniform = false, unsigned at = 16) {
    const auto r =
        static_cast<std::uint32_t>(w_.bits(at, 8)) & (is_uniform && code_.sm < 100 ? 63u : 255u);
    const std::uint32_t zero = is_uniform ? uniform_zero() : kZeroRegister;
    may_ = true;
    for (unsigned k = 0; k < count && r + k < zero; ++k) {
      const std::uint32_t v = (is_uniform ? kUniformRegister : kGeneral) + r + k;
      const Id old = read(block_, v, 0);
      // An old value that nobody set is no reason to keep it.
      write(v, g_.make(block_, slot_, Op::kSelect, 32, {opaque(1), opaque(), old}));
    }
    may_ = false;
  }
  void write_predicate(unsigned at, Id value, bool is_uniform = false) {
    const auto p = static_cast<std::uint32_t>(w_.bits(at, 3));
    if (p != 7)
      write((is_uniform ? kUniformPredicate : kPredicate) + p, value);
  }

  void may_write_predicate(unsigned at) {
    may_ = true;
    write_predicate(at, opaque(1));
    may_ = false;
  }

  // --- Constant banks ---

  std::optional<std::uint32_t> parameter_byte(std::uint32_t offset, std::uint32_t size) const {
    if (kernel_.param_base == 0 || offset < kernel_.param_base ||
        offset - kernel_.param_base + size > kernel_.param_bytes)
      return std::nullopt;
    return offset - kernel_.param_base;
  }
  Id special(ptx::SpecialRegister r, std::uint32_t component) {
    return g_.leaf(Op::kSpecial, 32, static_cast<std::uint64_t>(r) | component << 8);
  }

  Id bank_word(std::uint32_t bank, std::uint32_t offset) {
    if (trace_ != nullptr) {
      char text[40];
      std::snprintf(text, sizeof text, "c[0x%x][0x%x]", bank, offset);
      trace_read(text);
    }
    if (bank == 0) {
      if (const auto at = parameter_byte(offset, 4))
        return g_.leaf(Op::kParam, 32, *at);
      if (offset % 4 == 0 && offset >= words_.block_dimensions &&
          offset < words_.block_dimensions + 12)
        return special(ptx::SpecialRegister::kNtid, (offset - words_.block_dimensions) / 4);
      if (offset % 4 == 0 && offset >= words_.grid_dimensions &&
          offset < words_.grid_dimensions + 12)
        return special(ptx::SpecialRegister::kNctaid, (offset - words_.grid_dimensions) / 4);
      if (offset == words_.stack_end)
        return g_.leaf(Op::kStackEnd, 32, 0);
      return g_.leaf(Op::kDriver, 32, offset);
    }
    if (bank == 2 && offset % 4 == 0 && std::uint64_t{offset} + 4 <= literals_.size())
      return g_.constant(load_at<std::uint32_t>(literals_, offset));
    if (bank == 3)
      return g_.leaf(Op::kConstantWord, 32, offset);
    if (bank == 4) {
      if (const auto it = code_.addresses.find(offset); it != code_.addresses.end())
        return make(Op::kLow, {g_.leaf(Op::kSymbol, 64, it->second)});
      if (offset >= 4) {
        if (const auto it = code_.addresses.find(offset - 4); it != code_.addresses.end())
          return make(Op::kHigh, {g_.leaf(Op::kSymbol, 64, it->second)});
      }
    }
    return g_.leaf(Op::kDriver, 32, (std::uint64_t{bank} << 20) | offset);
  }
  void constant_address(Effect& e, std::uint32_t offset) {
    e.symbol = code_.constant_at(offset);
    e.offset = offset;
    if (e.symbol < code_.symbols.size())
      e.offset -= static_cast<std::int64_t>(code_.symbols[e.symbol].value);
  }

  // The program's constant memory is read, whatever becomes of the value.
  void read_constants(std::uint32_t offset, const Type type, unsigned vector) {
    Effect e;
    e.opcode = Opcode::kLd;
    e.space = Space::kConst;
    e.type = type;
    e.vector = static_cast<std::uint8_t>(vector);
    e.results = vector;
    e.result_width = ptx::size_of(type) == 8 ? 64 : 32;
    constant_address(e, offset);
    effect(std::move(e));
  }
  // The same of the operand of an arithmetic instruction.
  void read_constant_operand() {
    if (form() != 3 && form() != 5)
      return;
    if (w_.bit(91))
      return refuse("a constant bank chosen at run time");
    if (w_.bits(54, 5) != 3)
      return;
    const std::uint32_t base = w_.opcode() & 0x1ff;
    const bool wide = base == 0x025 || (base >= 0x028 && base <= 0x02b) ||
                      (base >= 0x049 && base <= 0x04b) || (base >= 0x110 && base <= 0x113);
    read_constants(static_cast<std::uint32_t>(w_.bits(38, 16)), wide ? Type::kB64 : Type::kB32, 1);
  }

  // The operand in bits 32-63 of form 3 or 5.
  Id bank_operand() {
    if (w_.bit(91)) {
      refuse("a constant bank chosen at run time");
      return g_.constant(0);
    }
    return bank_word(static_cast<std::uint32_t>(w_.bits(54, 5)),
                     static_cast<std::uint32_t>(w_.bits(38, 16)));
  }

  // --- Effects ---

  Id effect(Effect e) {
    e.guard = guard_;
    e.line = pc_ + 1;
    if (trace_ != nullptr && trace_->back().memory.empty()) {
      TracedInstruction& t = trace_->back();
      t.memory = std::string(ptx::name_of(e.opcode)) + "." + name_of_space(e.space);
      t.numbers["offset"] = e.offset;
      t.numbers["offset2"] = e.offset2;
      t.numbers["bytes"] = ptx::size_of(e.type) * e.vector;
      t.numbers["signed"] = e.type == Type::kS8 || e.type == Type::kS16;
    }
    const Id id = g_.make(block_, slot_, Op::kEffect, 0, {}, g_.effects.size());
    if (!g_.too_large)
      g_.effects.push_back(std::move(e));
    return id;
  }
  Id result(Id of, std::uint64_t k, std::uint8_t width = 32) {
    return make(Op::kResult, {of}, k, width);
  }

  // --- Arithmetic ---

  Operands operands(bool is_uniform = false) {
    return operands_in(w_.opcode() >> 9, is_uniform, false);
  }
  // Of instructions with two sources, whose bits of the third mean other things.
  Operands two_operands(bool is_uniform = false) {
    return operands_in(w_.opcode() >> 9, is_uniform, true);
  }
  Operands operands_in(std::uint32_t form, bool is_uniform, bool only_two) {
    auto last = [&](unsigned at) {
      return only_two ? g_.constant(0) : is_uniform ? uniform_field(at) : general_field(at);
    };
    auto reg = [&](unsigned at) { return is_uniform ? uniform_field(at) : general_field(at); };
    Operands o;
    o.a = reg(24);
    const bool negate_middle = w_.bit(63), negate_last = w_.bit(75);
    switch (form) {
      case 1:
        o.b = reg(32);
        o.c = last(64);
        o.negate_b = negate_middle;
        o.negate_c = negate_last;
        break;
      case 2:
        o.b = reg(64);
        o.c = immediate(w_.bits(32, 32));
        o.negate_b = negate_last;
        break;
      case 3:
        o.b = reg(64);
        o.c = bank_operand();
        o.negate_b = negate_last;
        o.negate_c = negate_middle;
        break;
      case 4:
        o.b = immediate(w_.bits(32, 32));
        o.c = last(64);
        o.negate_c = negate_last;
        break;
      case 5:
        o.b = bank_operand();
        o.c = last(64);
        o.negate_b = negate_middle;
        o.negate_c = negate_last;
        break;
      case 6:
        o.b = uniform_field(32);
        o.c = last(64);
        o.negate_b = negate_middle;
        o.negate_c = negate_last;
        break;
      case 7:
        o.b = reg(64);
        o.c = uniform_field(32);
        o.negate_b = negate_last;
        o.negate_c = negate_middle;
        break;
      default:
        unknown_instruction();
        o.b = o.c = g_.constant(0);
        break;
    }
    return o;
  }
  std::uint32_t form() const { return w_.opcode() >> 9; }
  // Instructions of two sources have no place for a third.
  bool two_sources() {
    if (form() == 1 || form() == 4 || form() == 5 || form() == 6)
      return true;
    unknown_instruction("form of instruction");
    return false;
  }
  // The single source of moves and conversions, in bits 32-63.
  Id source(bool is_uniform = false) {
    switch (form()) {
      case 1:
        return is_uniform ? uniform_field(32) : general_field(32);
      case 4:
        return immediate(w_.bits(32, 32));
      case 5:
        return bank_operand();
      case 6:
        return uniform_field(32);
      default:
        unknown_instruction();
        return g_.constant(0);
    }
  }
  // The upper word beside the operand in bits 64-71; zero where the operand is.
  Id upper_of_last(bool is_uniform) { return is_uniform ? next_uniform(64) : next_general(64); }

  void add3(bool is_uniform) {
    if (has_others({{72, 1}, {74, 2}, {77, 15}}))
      return;
    const Operands o = operands(is_uniform);
    std::uint64_t imm =
        (w_.bit(72) ? kNegateA : 0) | (o.negate_b ? kNegateB : 0) | (o.negate_c ? kNegateC : 0);
    trace_number("negated", static_cast<std::int64_t>(imm));
    trace_number("extended", w_.bit(74));
    Id sum = kNoId;
    const bool carries = w_.bits(81, 3) != 7 || w_.bits(84, 3) != 7;
    if (w_.bit(74)) {
      sum = make(Op::kAdd3,
                 {o.a, o.b, o.c, predicate(87, 90, is_uniform), predicate(77, 80, is_uniform)},
                 imm | kExtended);
      write_predicate(81, opaque(1), is_uniform);
      write_predicate(84, opaque(1), is_uniform);
    } else {
      sum = make(Op::kAdd3, {o.a, o.b, o.c}, imm, 32, carries);
      if (carries) {
        write_predicate(81, make(Op::kCarry, {sum}, 0, 1), is_uniform);
        write_predicate(84, make(Op::kCarry, {sum}, 1, 1), is_uniform);
      }
    }
    write_result(sum, is_uniform);
  }

  // a << shift, or with the upper word: bits 32-63 of (upper:a) << shift.
  Id shifted(Id a, Id upper, std::uint32_t shift, bool high) {
    if (high && shift != 0 && g_.is_const(upper, 0))
      return make(Op::kShiftRight, {a, g_.constant(32 - shift)});
    if (!high)
      return make(Op::kShiftLeft, {a, g_.constant(shift)});
    if (shift == 0)
      return upper;
    return make(Op::kFunnel, {a, upper}, 32 - shift);
  }

  void lea(bool is_uniform) {
    if (has_others({{72, 12}, {87, 5}}))
      return;
    const Operands o = operands(is_uniform);
    const bool high = w_.bit(80);
    const auto shift = static_cast<std::uint32_t>(w_.bits(75, 5));
    // The last operand has no sign bits of its own: they hold the shift.
    const bool negate_b = form() != 4 && form() != 2 && form() != 3 && form() != 7 && w_.bit(63);
    trace_number("negated", (w_.bit(72) ? 1 : 0) | (negate_b ? 2 : 0));
    trace_number("shift", shift);
    trace_number("high", high);
    trace_number("extended", w_.bit(74));
    trace_number("sign-extended", w_.bit(73));
    Id addend = o.b, upper = o.c;
    if (form() == 2 || form() == 3 || form() == 7) {
      if ((form() == 3 || form() == 7) && w_.bit(63)) {
        return unknown_instruction("form of instruction");
      }
    }
    if (w_.bit(73))
      upper = make(Op::kShiftRight, {o.a, g_.constant(31)}, 2);
    const Id term = shifted(o.a, upper, shift, high);
    const std::uint64_t imm = (w_.bit(72) ? kNegateA : 0) | (negate_b ? kNegateB : 0);
    const bool carries = w_.bits(81, 3) != 7;
    if (w_.bit(74)) {
      const Id sum =
          make(Op::kAdd3,
               {term, addend, g_.constant(0), predicate(87, 90, is_uniform), g_.constant(0, 1)},
               imm | kExtended);
      write_predicate(81, opaque(1), is_uniform);
      return write_result(sum, is_uniform);
    }
    const Id sum = make(Op::kAdd3, {term, addend, g_.constant(0)}, imm, 32, carries);
    if (carries)
      write_predicate(81, make(Op::kCarry, {sum}, 0, 1), is_uniform);
    write_result(sum, is_uniform);
  }

  void mad(bool is_uniform) {
    if (has_others({{72, 4}, {81, 3}, {87, 5}}))
      return;
    const Operands o = operands(is_uniform);
    const bool minus = w_.bit(72) != o.negate_b;
    trace_number("negated", (minus ? 1 : 0) | (o.negate_c ? 4 : 0));
    trace_number("extended", w_.bit(74));
    Id value = kNoId;
    if (w_.bit(74)) {
      const Id product = make(Op::kMad, {o.a, o.b, g_.constant(0)}, minus ? 1 : 0);
      value = make(Op::kAdd3,
                   {product, o.c, g_.constant(0), predicate(87, 90, is_uniform), g_.constant(0, 1)},
                   kExtended | (o.negate_c ? kNegateB : 0));
    } else if (g_.is_const(o.a, 0) || g_.is_const(o.b, 0)) {
      value = make(Op::kAdd3, {o.c, g_.constant(0), g_.constant(0)}, o.negate_c ? kNegateA : 0);
    } else if (!minus && g_.is_const(o.c, 0) && g_[o.b].op == Op::kConst &&
               std::has_single_bit(g_[o.b].imm)) {
      value = make(Op::kShiftLeft,
                   {o.a, g_.constant(static_cast<std::uint64_t>(std::countr_zero(g_[o.b].imm)))});
    } else if (!minus && g_.is_const(o.a, 1)) {
      value = make(Op::kAdd3, {o.b, o.c, g_.constant(0)}, o.negate_c ? kNegateB : 0);
    } else if (!minus && g_.is_const(o.b, 1)) {
      value = make(Op::kAdd3, {o.a, o.c, g_.constant(0)}, o.negate_c ? kNegateB : 0);
    } else {
      value = make(Op::kMad, {o.a, o.b, o.c}, (minus ? 1 : 0) | (o.negate_c ? 2 : 0));
    }
    write_predicate(81, opaque(1), is_uniform);
    write_result(value, is_uniform);
  }

  void mad_wide(bool is_uniform) {
    if (has_others({{72, 4}, {81, 3}, {87, 5}}))
      return;
    const Operands o = operands(is_uniform);
    const std::uint32_t f = form();
    // The addend is a pair.
    Id high = g_.constant(0);
    switch (f) {
      case 1:
      case 4:
      case 5:
      case 6:
        high = upper_of_last(is_uniform);
        break;
      case 3:
        high = bank_word(static_cast<std::uint32_t>(w_.bits(54, 5)),
                         static_cast<std::uint32_t>(w_.bits(38, 16)) + 4);
        break;
      case 7:
        high = next_uniform(32);
        break;
      default:
        return unknown_instruction("form of instruction");
    }
    const bool minus = w_.bit(72) != o.negate_b;
    trace_number("negated", (minus ? 1 : 0) | (o.negate_c ? 4 : 0));
    trace_number("extended", w_.bit(74));
    trace_number("signed", w_.bit(73));
    if (w_.bit(74) || minus || o.negate_c) {
      write_predicate(81, opaque(1), is_uniform);
      return write_result64(opaque(64), is_uniform);
    }
    const Op extension = w_.bit(73) ? Op::kSigned : Op::kUnsigned;
    const Id product = g_.is_const(o.a, 1)   ? make(extension, {o.b}, 0, 64)
                       : g_.is_const(o.b, 1) ? make(extension, {o.a}, 0, 64)
                                             : make(Op::kWide, {o.a, o.b}, w_.bit(73) ? 2 : 0, 64);
    const Id addend = pair(o.c, high);
    write_predicate(81, opaque(1), is_uniform);
    if (g_.is_const(product, 0)) {
      write_to(is_uniform, 16, 0, o.c);
      return write_to(is_uniform, 16, 1, high);
    }
    if (g_.is_const(o.c, 0) && g_.is_const(high, 0))
      return write_result64(product, is_uniform);
    write_result64(make(Op::kAdd, {product, addend}, 0, 64), is_uniform);
  }

  // The upper word of a product. An addend would be a pair of registers.
  void mad_high(bool is_uniform) {
    const bool plain = (w_.bits(72, 4) & ~2u) == 0;
    if (w_.bits(81, 3) != 7)
      write_predicate(81, opaque(1), is_uniform);
    const Operands o = operands(is_uniform);
    if (!plain || o.negate_b || o.negate_c || !g_.is_const(o.c, 0))
      return write_opaque(1, is_uniform);
    const Id product = make(Op::kWide, {o.a, o.b}, w_.bit(73) ? 2 : 0, 64);
    write_result(make(Op::kHigh, {product}), is_uniform);
  }

  void absolute() {
    const bool by_value = form() == 4;
    if (w_.bits(72, 20) != 0 || (!by_value && w_.bits(62, 2) != 0) || form() == 2 || form() == 3 ||
        form() == 7)
      return write_opaque_word();
    const Id x = source();
    const Id minus = make(Op::kAdd3, {x, g_.constant(0), g_.constant(0)}, kNegateA);
    write_result(make(Op::kMax, {x, minus}, 2));
  }

  // VIADDMNMX: the lesser or greater of a + b and c.
  void add_minimum() {
    // Bits 73 and above: halves, comparisons with zero …
    if ((w_.bits(72, 15) & ~std::uint64_t{1}) != 0)
      return write_opaque_word();
    const Operands o = operands();
    const Node smaller = g_[predicate(87, 90)];
    if (smaller.op != Op::kConst || o.negate_c)
      return write_opaque(1);
    const Id sum = make(Op::kAdd3, {o.a, o.b, g_.constant(0)}, o.negate_b ? kNegateB : 0);
    trace_number("signed", w_.bit(72));
    trace_number("negated", o.negate_b ? 2 : 0);
    write_result(make(smaller.imm != 0 ? Op::kMin : Op::kMax, {sum, o.c}, w_.bit(72) ? 2 : 0));
  }

  void compare_float(bool is_uniform) {
    if (form() == 2 || form() == 3 || form() == 7) {
      write_predicate(81, opaque(1), is_uniform);
      return write_predicate(84, opaque(1), is_uniform);
    }
    const Operands o = two_operands(is_uniform);
    const std::uint64_t how = w_.bits(76, 4);
    // Signs and absolute values are not followed.
    const bool plain = w_.bits(72, 2) == 0 && (form() == 4 || w_.bits(62, 2) == 0);
    trace_number("compare", static_cast<std::int64_t>(how));
    const Id test = !plain      ? opaque(1)
                    : how == 0  ? g_.constant(0, 1)
                    : how == 15 ? g_.constant(1, 1)
                                : make(Op::kCompareFloat, {o.a, o.b}, how, 1);
    const Id other = predicate(87, 90, is_uniform);
    const Id first = combine(w_.bits(74, 2), test, other);
    const Id second = combine(w_.bits(74, 2), make(Op::kNot, {test}, 0, 1), other);
    write_predicate(81, first, is_uniform);
    write_predicate(84, second, is_uniform);
  }

  void shift(bool is_uniform) {
    if (has_others({{73, 4}, {80, 1}, {91, 1}}))
      return;
    const Operands o = operands(is_uniform);
    if (form() != 2 && form() != 4 && w_.bit(63))
      return unknown_instruction("form of instruction");
    const auto type = w_.bits(73, 2);  // 0 s64, 1 u64, 2 s32, 3 u32
    const bool wide = type < 2, is_signed = type == 0 || type == 2, wrap = w_.bit(75),
               right = w_.bit(76), high = w_.bit(80);
    trace_number("type", static_cast<std::int64_t>(type));
    trace_number("wrap", wrap);
    trace_number("right", right);
    trace_number("high", high);
    const Node& amount = g_[o.b];
    if (amount.op != Op::kConst) {
      if (!right && !high && !wide)
        return write_result(make(Op::kShiftLeft, {o.a, o.b}, wrap ? 1 : 0), is_uniform);
      if (right && high && !wide)
        return write_result(make(Op::kShiftRight, {o.c, o.b}, (wrap ? 1 : 0) | (is_signed ? 2 : 0)),
                            is_uniform);
      return write_result(opaque(), is_uniform);
    }
    const std::uint64_t limit = wide ? 64 : 32;
    const std::uint64_t n =
        wrap ? amount.imm & (limit - 1) : std::min<std::uint64_t>(amount.imm, limit);
    auto sign = [&] {
      return is_signed ? make(Op::kShiftRight, {o.c, g_.constant(31)}, 2) : g_.constant(0);
    };
    Id value = kNoId;
    if (!right && !high) {
      value = n >= 32 ? g_.constant(0) : make(Op::kShiftLeft, {o.a, g_.constant(n)});
    } else if (!right) {
      value = n == 0    ? o.c
              : n < 32  ? make(Op::kFunnel, {o.a, o.c}, 32 - n)
              : n == 64 ? g_.constant(0)
                        : make(Op::kShiftLeft, {o.a, g_.constant(n - 32)});
    } else if (high) {
      value = n >= 32 ? sign() : make(Op::kShiftRight, {o.c, g_.constant(n)}, is_signed ? 2 : 0);
    } else {
      value = n == 0    ? o.a
              : n < 32  ? make(Op::kFunnel, {o.a, o.c}, n)
              : n == 64 ? sign()
                        : make(Op::kShiftRight, {o.c, g_.constant(n - 32)}, is_signed ? 2 : 0);
    }
    write_result(value, is_uniform);
  }

  void logic(bool is_uniform) {
    if (has_others({{72, 8}, {81, 3}, {87, 5}}))
      return;
    const Operands o = operands(is_uniform);
    if (form() != 2 && form() != 4 && w_.bit(63))
      return unknown_instruction("form of instruction");
    trace_number("table", static_cast<std::int64_t>(w_.bits(72, 8)));
    const Id value = make(Op::kLogic, {o.a, o.b, o.c}, w_.bits(72, 8));
    if (w_.bits(81, 3) != 7) {
      // Whether any bit is set, or the predicate of the operand holds.
      const Id other = g_.resolve(predicate(87, 90, is_uniform));
      write_predicate(
          81, g_.is_const(other, 0) ? make(Op::kCompare, {value, g_.constant(0)}, 5, 1) : opaque(1),
          is_uniform);
    }
    write_result(value, is_uniform);
  }

  Id combine(std::uint64_t how, Id a, Id b) {
    switch (how) {
      case 0:
        return make(Op::kAnd, {a, b}, 0, 1);
      case 1:
        return make(Op::kOr, {a, b}, 0, 1);
      case 2:
        return make(Op::kXor, {a, b}, 0, 1);
      default:
        return opaque(1);
    }
  }
  // sm_120 has instructions of 64-bit operands, in pairs of registers.
  Id wide_operand(bool is_uniform) {
    switch (form()) {
      case 1:
        return is_uniform ? uniform_pair(32) : general_pair(32);
      case 4:
        immediate(w_.bits(32, 32));
        return g_.constant(static_cast<std::uint64_t>(w_.signed_bits(32, 32)), 64);
      case 6:
        return uniform_pair(32);
      default:
        unknown_instruction("form of instruction");
        return g_.constant(0, 64);
    }
  }

  void compare(bool is_uniform) {
    const bool wide = code_.sm >= 120 && w_.bit(80);
    if (!two_sources() || has_others({{72, 7}, {80, wide ? 1u : 0u}, {81, 11}}))
      return;
    Operands o;
    if (wide) {
      if (w_.bit(72) || (form() != 4 && w_.bit(63)))
        return unknown_instruction("form of instruction");
      o.a = is_uniform ? uniform_pair(24) : general_pair(24);
      o.b = wide_operand(is_uniform);
      // How a constant of 32 bits is widened does not matter where it is not negative.
      if (form() == 4 && w_.bit(63))
        o.b = kNoId;
    } else {
      o = two_operands(is_uniform);
    }
    const std::uint64_t how = w_.bits(76, 3);
    trace_number("compare", static_cast<std::int64_t>(how));
    trace_number("signed", w_.bit(73));
    trace_number("extended", w_.bit(72));
    trace_number("combine", static_cast<std::int64_t>(w_.bits(74, 2)));
    trace_number("wide", wide);
    trace_number("negated", o.negate_b ? 2 : 0);
    Id test = kNoId;
    if (o.negate_b || o.b == kNoId) {
      test = opaque(1);
    } else if (how == 0 || how == 7) {
      test = g_.constant(how == 7 ? 1 : 0, 1);
    } else if (w_.bit(72)) {
      test = make(Op::kCompareHigh, {o.a, o.b, predicate(68, 71, is_uniform)},
                  how | (w_.bit(73) ? kCompareSigned : 0), 1);
    } else {
      test = make(Op::kCompare, {o.a, o.b},
                  how | (w_.bit(73) ? kCompareSigned : 0) | (wide ? kCompare64 : 0), 1);
    }
    const Id other = predicate(87, 90, is_uniform);
    const Id first = combine(w_.bits(74, 2), test, other);
    const Id second = combine(w_.bits(74, 2), make(Op::kNot, {test}, 0, 1), other);
    write_predicate(81, first, is_uniform);
    write_predicate(84, second, is_uniform);
  }

  Id table_of(std::uint32_t table, Id a, Id b, Id c) {
    // By the first operand: what the table says where it is true, and where not.
    auto of_one = [&](std::uint32_t t, Id x) -> Id {  // bit 1: where x, bit 0: where not
      switch (t & 3) {
        case 0:
          return g_.constant(0, 1);
        case 1:
          return make(Op::kNot, {x}, 0, 1);
        case 2:
          return x;
        default:
          return g_.constant(1, 1);
      }
    };
    auto choose = [&](Id p, Id x, Id y) {
      if (x == y)
        return x;
      const Id yes = make(Op::kAnd, {p, x}, 0, 1);
      return make(Op::kOr, {yes, make(Op::kAnd, {make(Op::kNot, {p}, 0, 1), y}, 0, 1)}, 0, 1);
    };
    auto of_two = [&](std::uint32_t t) { return choose(b, of_one(t >> 2, c), of_one(t, c)); };
    return choose(a, of_two(table >> 4), of_two(table));
  }
  void predicate_logic(bool is_uniform) {
    if (has_others({{72, 19}, {91, is_uniform ? 1u : 0u}}))
      return;
    const Id a = predicate(87, 90, is_uniform), b = predicate(77, 80, is_uniform);
    const Id c = predicate(68, 71, is_uniform || w_.bit(67));
    const auto first = static_cast<std::uint32_t>(w_.bits(64, 3) | w_.bits(72, 5) << 3);
    const auto second = static_cast<std::uint32_t>(w_.bits(16, 8));
    trace_number("table", first);
    trace_number("table2", second);
    const Id x = w_.bits(81, 3) != 7 ? table_of(first, a, b, c) : kNoId;
    const Id y = w_.bits(84, 3) != 7 ? table_of(second, a, b, c) : kNoId;
    if (x != kNoId)
      write_predicate(81, x, is_uniform);
    if (y != kNoId)
      write_predicate(84, y, is_uniform);
  }

  // IMNMX says at bit 73, VIMNMX at bit 72 that it is signed.
  void minimum(unsigned signed_at, bool is_uniform = false) {
    auto predicates = [&] {
      write_predicate(81, opaque(1), is_uniform);
      write_predicate(84, opaque(1), is_uniform);
    };
    if (code_.sm >= 120 && w_.bit(74)) {
      predicates();
      return write_opaque(2, is_uniform);
    }
    if (!two_sources())
      return;
    if (signed_at == 72 && w_.bit(73)) {  // of halves
      predicates();
      return is_uniform ? write_opaque(2, true) : write_opaque_word();
    }
    if (has_others({{signed_at, 1}, {77, 4}, {81, 11}}))
      return;
    const Operands o = two_operands(is_uniform);
    trace_number("signed", w_.bit(signed_at));
    trace_number("negated", o.negate_b ? 2 : 0);
    const Node smaller = g_[predicate(87, 90, is_uniform)];
    if (signed_at == 72 || code_.sm >= 120)
      predicates();
    if (smaller.op != Op::kConst || o.negate_b)
      return write_opaque(1, is_uniform);
    write_result(
        make(smaller.imm != 0 ? Op::kMin : Op::kMax, {o.a, o.b}, w_.bit(signed_at) ? 2 : 0),
        is_uniform);
  }

  void move(bool is_uniform) {
    const bool wide = code_.sm >= 120 && w_.bit(80);
    if (has_others({{72, 4}, {80, wide ? 1u : 0u}, {91, 1}}))
      return;
    if (!wide)
      return write_result(source(is_uniform), is_uniform);
    if (form() == 4)
      return write_opaque(2, is_uniform);
    write_result64(wide_operand(is_uniform), is_uniform);
  }

  // 64-bit adds: IADD.64 and UIADD3.64.
  void add64(bool is_uniform) {
    const bool known = is_uniform ? w_.bits(73, 4) == 0 && w_.bits(77, 14) == 0x3FFF
                                  : w_.bits(73, 8) == 1 && w_.bits(81, 3) == 7 &&
                                        w_.bits(84, 3) == 0 && w_.bits(87, 4) == 0xF;
    if (!known)
      return unknown_instruction("form of instruction");
    const Id a = is_uniform ? uniform_pair(24) : general_pair(24);
    const Id b = wide_operand(is_uniform);
    const bool negate_a = w_.bit(72), negate_b = form() != 4 && w_.bit(63);
    trace_number("negated", (negate_a ? 1 : 0) | (negate_b ? 2 : 0));
    // A third operand, or a sum of two negated ones.
    const bool third =
        is_uniform && w_.bits(64, 8) != 255 && (code_.sm >= 100 || w_.bits(64, 6) != 63);
    if (third || (negate_a && negate_b))
      return write_result64(opaque(64), is_uniform);
    write_result64(negate_a   ? make(Op::kSub, {b, a}, 0, 64)
                   : negate_b ? make(Op::kSub, {a, b}, 0, 64)
                              : make(Op::kAdd, {a, b}, 0, 64),
                   is_uniform);
  }

  // Half-precision arithmetic is also how the compiler loads constants: -0 * 0 + constant.
  void half_fma() {
    const std::uint32_t f = form();
    const bool zero_product = w_.bits(24, 8) == kZeroRegister &&
                              (f == 2 ? w_.bits(64, 8) : w_.bits(32, 8)) == kZeroRegister;
    const auto value = static_cast<std::uint32_t>(w_.bits(32, 32));
    // Bits 73, 76-80: absolute value, saturation, flush to zero, other formats.
    const bool plain = (w_.bits(73, 8) & 0xF9) == 0 && !w_.bit(85);
    auto changes = [](std::uint32_t half) {
      // Not a number: what comes out is another one. Minus zero: its sign may be lost.
      return ((half & 0x7C00) == 0x7C00 && (half & 0x3FF) != 0) || half == 0x8000;
    };
    if (f == 2 && zero_product && plain && !changes(value & 0xFFFF) && !changes(value >> 16))
      return write_result(g_.constant(value));
    write_opaque(1);
  }

  void select(bool is_uniform) {
    if (has_others({{87, 5}}))
      return;
    const std::uint32_t f = form();
    if (f == 2 || f == 3 || f == 7) {
      // sm_120: of pairs.
      if (code_.sm < 120)
        return unknown_instruction("form of instruction");
      if (f != 3 || is_uniform || w_.bits(40, 24) != 0)
        return write_opaque(2, is_uniform);
      const Id p = predicate(87, 90);
      const Id a = general_field(24), a_high = next_general(24);
      const Id b = general_field(32), b_high = next_general(32);
      const Id low = make(Op::kSelect, {p, a, b}), high = make(Op::kSelect, {p, a_high, b_high});
      write_to(false, 16, 0, low);
      return write_to(false, 16, 1, high);
    }
    const Operands o = two_operands(is_uniform);
    if (o.negate_b)
      return unknown_instruction("form of instruction");
    write_result(make(Op::kSelect, {predicate(87, 90, is_uniform), o.a, o.b}), is_uniform);
  }

  void permute(bool is_uniform) {
    if (has_others({{72, 3}, {91, 1}}))
      return;
    const Operands o = operands(is_uniform);
    if (w_.bits(72, 3) != 0)
      return write_result(opaque(), is_uniform);
    write_result(make(Op::kPermute, {o.a, o.b, o.c}), is_uniform);
  }

  void special_register(bool is_uniform) {
    if (has_others({{72, 8}}))
      return;
    using S = ptx::SpecialRegister;
    const auto n = static_cast<std::uint32_t>(w_.bits(72, 8));
    trace_number("special", n);
    Id v = kNoId;
    if (n >= 0x21 && n <= 0x23) {
      v = special(S::kTid, n - 0x21);
    } else if (n >= 0x25 && n <= 0x27) {
      v = special(S::kCtaid, n - 0x25);
    } else if (n == 0) {
      v = special(S::kLaneid, 0);
    } else if (n == 0x2f) {
      v = g_.leaf(Op::kSharedHigh, 32, 0);
    } else if (n == 0xff) {
      v = g_.constant(0);
    } else {
      v = opaque();
    }
    write_result(v, is_uniform);
  }

  // --- Memory ---

  struct Size {
    Type type = Type::kNone;
    unsigned words = 1;
  };
  std::optional<Size> size_of_access() {
    switch (w_.bits(73, 3)) {
      case 0:
        return Size{Type::kU8, 1};
      case 1:
        return Size{Type::kS8, 1};
      case 2:
        return Size{Type::kU16, 1};
      case 3:
        return Size{Type::kS16, 1};
      case 4:
        return Size{Type::kB32, 1};
      case 5:
        return Size{Type::kB64, 2};
      case 6:
        return Size{Type::kB64, 4};
      default:
        unknown_instruction("form of instruction");
        return std::nullopt;
    }
  }

  // Where an instruction with a uniform register says that the register describes the access, and
  // is no part of the address.
  enum class Kind { kAccess, kReduction, kAtomic, kFloatAtomic };
  bool described(Kind kind) const {
    if (code_.sm < 80)
      return false;
    if (kind == Kind::kAccess)
      return w_.bit(76);
    if (code_.sm < 100)
      return w_.bit(71);
    switch (kind) {
      case Kind::kReduction:
        return w_.bit(81) && w_.bit(90);
      case Kind::kAtomic:
        return w_.bit(63) && w_.bit(76);
      default:
        return w_.bit(63) && w_.bit(90);
    }
  }
  std::int64_t displacement(Kind kind, unsigned uniform_at) const {
    const bool short_one =
        code_.sm >= 100 && uniform_at != 0 && (kind == Kind::kAtomic || kind == Kind::kFloatAtomic);
    return w_.signed_bits(40, short_one ? 23 : 24);
  }

  // The 64-bit address of a global or generic access: registers at 24-31, and a uniform register at
  // `uniform_at` (0: none) that is added or describes the access.
  Id global_address(unsigned uniform_at, Kind kind) {
    auto not_known = [&] {
      unknown_instruction("form of instruction");
      return g_.constant(0, 64);
    };
    if (!w_.bit(72))
      return not_known();
    const bool none = w_.bits(24, 8) == kZeroRegister;
    // Opcodes with a place for a uniform register have one, the others do not; but for LD.
    const std::uint32_t op = w_.opcode();
    if (kind == Kind::kAccess && op != 0x980 && w_.bit(91) != (uniform_at != 0))
      return not_known();
    if (uniform_at == 0 || !w_.bit(91))
      return general_pair(24);
    // Bit 90 says that the registers are a pair; in atomics it is part of the operation.
    const bool tells_width = kind == Kind::kAccess || kind == Kind::kReduction;
    if (described(kind))
      return tells_width && !w_.bit(90) && !none ? not_known() : general_pair(24);
    if (code_.sm >= 100 && kind != Kind::kAccess)
      return not_known();
    const Id base = uniform_pair(uniform_at);
    if (none)
      return base;
    if (!tells_width)
      return not_known();
    const Id index =
        w_.bit(90) ? general_pair(24) : make(Op::kUnsigned, {general_field(24)}, 0, 64);
    return make(Op::kAdd, {index, base}, 0, 64);
  }

  Id small_address(unsigned uniform_at, bool scaled) {
    Id a = general_field(24);
    if (scaled && w_.bits(78, 2) != 0)
      a = make(Op::kShiftLeft, {a, g_.constant(w_.bits(78, 2) + 1)});
    if (uniform_at != 0 && w_.bit(91))
      a = make(Op::kAdd3, {a, uniform_field(uniform_at), g_.constant(0)});
    return a;
  }

  // Generic accesses without a uniform register have a displacement of 32 bits.
  std::int64_t access_displacement(Space space) const {
    return space == Space::kGeneric && !w_.bit(91) ? w_.signed_bits(32, 32)
                                                   : w_.signed_bits(40, 24);
  }

  void finish_load(Effect e, const Size& size, bool is_uniform = false) {
    e.type = size.type;
    e.vector = static_cast<std::uint8_t>(size.words == 4 ? 2 : 1);
    e.results = size.words == 4 ? 2 : 1;
    e.result_width = size.words == 1 ? 32 : 64;
    const std::uint32_t count = e.results;
    const std::uint8_t width = e.result_width;
    const Id id = effect(std::move(e));
    for (std::uint32_t k = 0; k < count; ++k) {
      if (width == 32) {
        write_result(result(id, k), is_uniform);
      } else {
        write_result64(result(id, k, 64), is_uniform, 2 * k);
      }
    }
  }
  void load(Space space, unsigned uniform_at) {
    if (has_others({{72, 15}, {90, 2}}))
      return;
    const auto size = size_of_access();
    if (!size)
      return;
    Effect e;
    e.opcode = Opcode::kLd;
    e.space = space;
    e.offset = access_displacement(space);
    const bool small = space == Space::kShared || space == Space::kLocal;
    if (small && code_.sm >= 80 && w_.bit(76))  // a descriptor
      return unknown_instruction("form of instruction");
    e.address = small ? small_address(uniform_at, space == Space::kShared)
                      : global_address(uniform_at, Kind::kAccess);
    if (space == Space::kGlobal) {
      write_predicate(81, opaque(1));
    } else if (space == Space::kGeneric && w_.bits(81, 3) != 0 && w_.bits(81, 3) != 7) {
      return unknown_instruction("form of instruction");
    }
    finish_load(std::move(e), *size);
  }
  void data_words(Effect& e, unsigned at, unsigned count) {
    const auto r = static_cast<std::uint32_t>(w_.bits(at, 8));
    if (r != kZeroRegister && r + count > kZeroRegister)
      return refuse("data end past the last register");
    auto word = [&](unsigned k) { return r == kZeroRegister ? g_.constant(0) : general(r + k); };
    if (count == 1)
      e.data.push_back(word(0));
    for (unsigned k = 0; k + 1 < count; k += 2)
      e.data.push_back(pair(word(k), word(k + 1)));
  }
  void store(Space space, unsigned uniform_at) {
    if (has_others({{72, 15}, {90, 2}}))
      return;
    const auto size = size_of_access();
    if (!size)
      return;
    Effect e;
    e.opcode = Opcode::kSt;
    e.space = space;
    e.type = size->type;
    e.vector = static_cast<std::uint8_t>(size->words == 4 ? 2 : 1);
    e.offset = access_displacement(space);
    const bool small = space == Space::kShared || space == Space::kLocal;
    if (small && code_.sm >= 80 && w_.bit(76))  // a descriptor
      return unknown_instruction("form of instruction");
    e.address = small ? small_address(uniform_at, space == Space::kShared)
                      : global_address(uniform_at, Kind::kAccess);
    // Where the displacement takes bits 32-63, the data come from the field behind.
    data_words(e, space == Space::kGeneric && !w_.bit(91) ? 64 : 32, size->words);
    effect(std::move(e));
  }

  // Words of the operand and of the result.
  std::optional<unsigned> atomic_words(bool is_float) {
    if (is_float) {
      // f16x2, x4, x8; bf16x2, x4, x8; then from 9: f32, x2, x4 with and without flushing, f64.
      static constexpr unsigned kWords[16] = {1, 2, 4, 1, 2, 4, 0, 0, 0, 1, 2, 4, 1, 2, 4, 2};
      const unsigned words = kWords[w_.bits(73, 4)];
      if (words == 0) {
        unknown_instruction("form of instruction");
        return std::nullopt;
      }
      return words;
    }
    switch (w_.bits(73, 3)) {
      case 0:
      case 1:
        return 1;
      case 2:
        return 2;
      case 3:
        return code_.sm >= 90 ? 2 : 1;
      case 4:
        return code_.sm >= 90 ? 4 : 1;
      case 5:
      case 6:
        if (code_.sm < 90)
          return 2;
        [[fallthrough]];
      default:
        unknown_instruction("form of instruction");
        return std::nullopt;
    }
  }
  void atomic(Space space, unsigned uniform_at, bool returns, bool swaps, bool is_float) {
    const auto words = atomic_words(is_float);
    if (!words)
      return;
    Effect e;
    e.opcode = returns ? Opcode::kAtom : Opcode::kRed;
    e.space = space;
    e.type = *words == 1 ? Type::kB32 : *words == 2 ? Type::kB64 : Type::kB128;
    e.has_operation = true;
    static constexpr Modifier kOperations[] = {Modifier::kAdd, Modifier::kMin, Modifier::kMax,
                                               Modifier::kInc, Modifier::kDec, Modifier::kAnd,
                                               Modifier::kOr,  Modifier::kXor, Modifier::kExch};
    const auto how = swaps || is_float ? 0 : w_.bits(87, returns ? 4 : 3);
    // What is not an exchange only matters as a read and a write of one place.
    e.operation = swaps                          ? Modifier::kCas
                  : how < std::size(kOperations) ? kOperations[how]
                                                 : Modifier::kAdd;
    const Kind kind = !returns ? Kind::kReduction : is_float ? Kind::kFloatAtomic : Kind::kAtomic;
    const bool small = space == Space::kShared;
    e.offset = small ? w_.signed_bits(40, 24) : displacement(kind, uniform_at);
    e.address = small ? small_address(uniform_at, true) : global_address(uniform_at, kind);
    data_words(e, 32, *words);
    if (swaps)
      data_words(e, 64, *words);
    if (!returns) {
      effect(std::move(e));
      return;
    }
    if (!small)
      write_predicate(81, opaque(1));
    if (*words > 2) {
      effect(std::move(e));
      return write_opaque(4);
    }
    finish_load(std::move(e), Size{e.type, *words});
  }

  void load_bank(bool is_uniform) {
    const auto size = size_of_access();
    if (!size)
      return;
    const auto bank = static_cast<std::uint32_t>(w_.bits(54, 5));
    const bool wide_offset = is_uniform && code_.sm >= 100;
    std::uint32_t offset =
        static_cast<std::uint32_t>(wide_offset ? w_.bits(37, 17) : w_.bits(38, 16));
    const bool indexed = w_.opcode() == 0xabb;  // ULDC: with a uniform register
    if (has_others({{73, 3}, {91, wide_offset || indexed ? 1u : 0u}}))
      return;
    if (indexed && !w_.bit(91))
      return unknown_instruction("form of instruction");
    Id index = g_.constant(0);
    if (is_uniform) {
      if (code_.sm >= 100 || indexed)
        index = uniform_field(24);
    } else {
      index = general_field(24);
    }
    index = g_.resolve(index);
    if (g_[index].op != Op::kConst)
      return load_bank_at(bank, offset, index, *size, is_uniform);
    offset += static_cast<std::uint32_t>(g_[index].imm);
    if (size->words >= 2 || size->type == Type::kB32) {
      if (bank == 3)
        read_constants(offset, size->type, size->words == 4 ? 2 : 1);
      for (unsigned k = 0; k < size->words; ++k)
        write_to(is_uniform, 16, k, bank_word(bank, offset + 4 * k));
      return;
    }
    Effect e;
    e.opcode = Opcode::kLd;
    e.space = Space::kParam;
    e.whole_block = true;
    if (bank == 0 && parameter_byte(offset, ptx::size_of(size->type))) {
      e.offset = offset - kernel_.param_base;
      return finish_load(std::move(e), *size, is_uniform);
    }
    if (bank == 3) {
      e.space = Space::kConst;
      e.whole_block = false;
      constant_address(e, offset);
      return finish_load(std::move(e), *size, is_uniform);
    }
    write_opaque(1, is_uniform);
  }
  void load_bank_at(std::uint32_t bank, std::uint32_t offset, Id index, const Size& size,
                    bool is_uniform) {
    if (bank == 0 && kernel_.param_base != 0) {
      Effect e;
      e.opcode = Opcode::kLd;
      e.space = Space::kParam;
      e.whole_block = true;
      e.address = index;
      e.offset = static_cast<std::int64_t>(offset) - kernel_.param_base;
      return finish_load(std::move(e), size, is_uniform);
    }
    if (bank == 3) {
      // Which variable is read is the program's business: any.
      constexpr std::size_t kMost = 256;
      if (code_.constants.size() > kMost)
        return refuse("constant memory of more than 256 variables, indexed at run time");
      for (const std::uint32_t k : code_.constants) {
        Effect e;
        e.opcode = Opcode::kLd;
        e.space = Space::kConst;
        e.type = size.type;
        e.vector = static_cast<std::uint8_t>(size.words == 4 ? 2 : 1);
        e.results = size.words == 4 ? 2 : 1;
        e.result_width = size.words == 1 ? 32 : 64;
        e.symbol = k;
        e.address = index;
        e.offset =
            static_cast<std::int64_t>(offset) - static_cast<std::int64_t>(code_.symbols[k].value);
        effect(std::move(e));
      }
    }
    write_opaque(size.words, is_uniform);
  }

  // cp.async: global memory at the registers in 24-31 and 12 bits of displacement, shared memory at
  // 16-23 and 20 bits.
  void copy_async() {
    if (!w_.bit(76))
      return unknown_instruction("form of instruction");
    Effect e;
    e.opcode = Opcode::kCp;
    e.space = Space::kShared;
    e.space2 = Space::kGlobal;
    e.modifiers.set(static_cast<std::size_t>(Modifier::kAsync));
    e.address = general_field(16);
    e.offset = w_.signed_bits(44, 20);
    e.address2 = general_pair(24);
    e.offset2 = w_.signed_bits(32, 12);
    const std::uint64_t size = code_.sm >= 100 ? w_.bits(74, 2) : w_.bits(73, 3) - 4;
    if (size > 2)
      return unknown_instruction("form of instruction");
    e.data.push_back(g_.constant(std::uint64_t{4} << size));
    effect(std::move(e));
  }

  void bulk_copy(bool reduces) {
    Effect e;
    e.opcode = Opcode::kCp;
    e.modifiers.set(static_cast<std::size_t>(Modifier::kAsync));
    e.modifiers.set(static_cast<std::size_t>(Modifier::kBulk));
    const bool to_shared = w_.bit(73), to_global = w_.bit(74);
    if (to_shared == to_global)
      return unknown_instruction("form of instruction");
    if (reduces)
      e.modifiers.set(static_cast<std::size_t>(Modifier::kReduce));
    if (to_global) {
      e.space = Space::kGlobal;
      e.space2 = Space::kShared;
      e.address = uniform_pair(32);
      e.address2 = uniform_field(24);
    } else {
      if (reduces)
        return unknown_instruction("form of instruction");
      e.space = Space::kSharedCluster;
      e.space2 = Space::kGlobal;
      e.address = uniform_field(32);
      e.address2 = uniform_pair(24);
    }
    e.data.push_back(opaque());  // the size
    effect(std::move(e));
  }
  void simple_effect(Opcode opcode, const char* text,
                     std::initializer_list<Modifier> modifiers = {}) {
    Effect e;
    e.opcode = opcode;
    e.text = text;
    for (const Modifier m : modifiers)
      e.modifiers.set(static_cast<std::size_t>(m));
    effect(std::move(e));
  }

  // A store of what is not followed into shared memory.
  void shared_store_of_pieces(Id address) {
    Effect e;
    e.opcode = Opcode::kSt;
    e.space = Space::kShared;
    e.type = Type::kB32;
    e.address = address;
    e.data.push_back(opaque());
    effect(std::move(e));
  }

  // --- Instructions ---

  // What only computes values that are not followed: the number of registers written.
  std::optional<unsigned> opaque_words() const {
    switch (w_.opcode() & 0x1ff) {
      case 0x008:  // FSEL
      case 0x009:  // FMNMX
      case 0x00a:  // FSET
      case 0x015:  // VABSDIFF4
      case 0x01a:  // SGXT
      case 0x01b:  // BMSK
      case 0x020:  // FMUL
      case 0x021:  // FADD
      case 0x022:  // FSWZADD
      case 0x023:  // FFMA
      case 0x026:  // IDP
      case 0x030:  // HADD2
      case 0x032:  // HMUL2
      case 0x033:  // HSET2
      case 0x038:  // I2I
      case 0x039:  // I2IP
      case 0x03a:  // MOVM
      case 0x03e:  // F2FP
      case 0x040:  // HMNMX2
      case 0x043:  // F2IP
      case 0x045:  // I2FP
      case 0x100:  // FLO
      case 0x101:  // BREV
      case 0x104:  // F2F
      case 0x105:  // F2I
      case 0x106:  // I2F
      case 0x107:  // FRND
      case 0x108:  // MUFU
      case 0x109:  // POPC
        return 1;
      case 0x028:  // DMUL
      case 0x029:  // DADD
      case 0x02b:  // DFMA
        return 2;
      case 0x110:  // F2F
      case 0x111:  // F2I
      case 0x112:  // I2F
      case 0x113:  // FRND
        return w_.bits(75, 2) == 3 ? 2 : 1;
      case 0x00f:  // VIMNMX3
      case 0x076:  // FMNMX3
        return code_.sm >= 100 ? std::optional(1u) : std::nullopt;
      case 0x049:  // FFMA2
      case 0x04b:  // FMUL2
        return code_.sm == 100 || code_.sm == 103 ? std::optional(2u) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

  // Instructions with a 12-bit opcode of their own. False: not one of them.
  bool own_opcode() {
    switch (w_.opcode()) {
      // Nothing that matters here.
      case 0x918:  // NOP
      case 0x941:  // BSYNC
      case 0x942:  // BREAK
      case 0x945:  // BSSY
      case 0x946:  // YIELD
      case 0x348:  // WARPSYNC
      case 0x548:
      case 0x948:
      case 0x91b:  // ENDCOLLECTIVE
      case 0x91a:  // DEPBAR
      case 0x9af:  // LDGDEPBAR
      case 0x9ab:  // ERRBAR
      case 0x5ab:  // CGAERRBAR
      case 0x992:  // MEMBAR
      case 0x35d:  // NANOSLEEP
      case 0x75d:
      case 0x95d:
      case 0x356:  // BMOV to a barrier
      case 0xf55:
      case 0xf56:
      case 0x31d:  // BAR
      case 0x51d:
      case 0x91d:
      case 0xb1d:
      case 0xf1d:
      case 0x3c6:  // FENCE
      case 0x9b7:  // UTMACMDFLUSH
      case 0x9b9:  // UTMACCTL
      case 0x9b0:  // ARRIVES
      case 0x9c7:  // UCGABAR_ARV
      case 0xdc7:  // UCGABAR_WAIT
      case 0x3bc:  // UBLKPF
      case 0x95c:  // BPT
      case 0x947:  // BRA
      case 0x547:
      case 0x94d:  // EXIT
      case 0x944:  // CALL.REL
      case 0x950:  // RET
      case 0x949:  // BRX
      case 0x958:  // BRXU
        return true;
      case 0x98f:  // CCTL
        cache_control();
        return true;
      case 0x343:  // CALL.ABS
        call_absolute();
        return true;

      case 0x381:
        load(Space::kGlobal, 0);
        return true;
      case 0x981:
        load(Space::kGlobal, 32);
        return true;
      case 0x980:
        load(Space::kGeneric, 32);
        return true;
      case 0x983:
        load(Space::kLocal, 32);
        return true;
      case 0x984:
        load(Space::kShared, 32);
        return true;
      case 0x386:
        store(Space::kGlobal, 0);
        return true;
      case 0x986:
        store(Space::kGlobal, 64);
        return true;
      case 0x385:
        store(Space::kGeneric, 0);
        return true;
      case 0x985:
        store(Space::kGeneric, 64);
        return true;
      case 0x387:
        store(Space::kLocal, 0);
        return true;
      case 0x987:
        store(Space::kLocal, 64);
        return true;
      case 0x388:
        store(Space::kShared, 0);
        return true;
      case 0x988:
        store(Space::kShared, 64);
        return true;
      case 0x3a8:
        atomic(Space::kGlobal, 0, true, false, false);
        return true;
      case 0x9a8:
        atomic(Space::kGlobal, 64, true, false, false);
        return true;
      case 0x3a9:
        atomic(Space::kGlobal, 0, true, true, false);
        return true;
      case 0x38a:
        atomic(Space::kGeneric, 0, true, false, false);
        return true;
      case 0x98a:
        atomic(Space::kGeneric, 64, true, false, false);
        return true;
      case 0x38b:
        atomic(Space::kGeneric, 0, true, true, false);
        return true;
      case 0x98e:
        atomic(Space::kGlobal, 64, false, false, false);
        return true;
      case 0x3a3:
        atomic(Space::kGlobal, 0, true, false, true);
        return true;
      case 0x9a3:
        atomic(Space::kGlobal, 64, true, false, true);
        return true;
      case 0x9a2:
        atomic(Space::kGeneric, 64, true, false, true);
        return true;
      case 0x9a6:
        atomic(Space::kGlobal, 64, false, false, true);
        return true;
      case 0x38c:
        atomic(Space::kShared, 0, true, false, false);
        return true;
      case 0x98c:
        atomic(Space::kShared, 64, true, false, false);
        return true;
      case 0x38d:
        atomic(Space::kShared, 0, true, true, false);
        return true;
      case 0xf8c:  // ATOMS.POPC.INC, ATOMS.ARRIVE
        shared_store_of_pieces(small_address(64, true));
        may_write_opaque(2);
        return true;
      case 0x58d:  // ATOMS.CAST: whether it is done, in predicates
        if (code_.sm < 100)
          return false;
        shared_store_of_pieces(general_field(24));
        may_write_opaque(2);
        for (const unsigned at : {81u, 84u, 87u})
          may_write_predicate(at);
        return true;
      case 0x83b:  // LDSM
        write_opaque(w_.bits(72, 2) == 0 ? 1 : w_.bits(72, 2) == 1 ? 2 : 4);
        return true;
      case 0x844:  // STSM
        shared_store_of_pieces(general_field(24));
        return true;
      case 0xfae:
        copy_async();
        return true;
      case 0xb82:
        load_bank(false);
        return true;
      case 0xab9:
      case 0xabb:
        if (code_.sm >= 100)
          return false;
        load_bank(true);
        return true;
      case 0x7ac:
        if (code_.sm < 100)
          return false;
        load_bank(true);
        return true;

      case 0x3ba:
        bulk_copy(false);
        return true;
      case 0x3bb:
        bulk_copy(true);
        return true;
      case 0x5b4:
        simple_effect(Opcode::kCp, "UTMALDG", {Modifier::kAsync, Modifier::kTensor});
        return true;
      case 0x3b5:
        simple_effect(Opcode::kCp, "UTMASTG", {Modifier::kAsync, Modifier::kTensor});
        return true;
      case 0x3b6:
        simple_effect(Opcode::kCp, "UTMAREDG", {Modifier::kAsync, Modifier::kTensor});
        return true;
      case 0x5b2:  // SYNCS.EXCH
        shared_store_of_pieces(uniform_field(24));
        may_write_opaque(2, true);
        return true;
      case 0x9a7:  // SYNCS
      case 0x5a7:
        // The barrier may be named by a general register, a uniform one, or both.
        shared_store_of_pieces(opaque());
        may_write_opaque(2);
        may_write_predicate(81);
        return true;
      case 0x82d:
        simple_effect(Opcode::kGriddepcontrol, "PREEXIT");
        return true;
      case 0x82e:
        simple_effect(Opcode::kGriddepcontrol, "ACQBULK");
        return true;
      case 0x82f:  // ELECT
        may_write_opaque(1, true);
        write_predicate(81, opaque(1));
        return true;

      case 0x361:
      case 0xb60:
      case 0xf60:
      case 0xd61:
      case 0x364:
      case 0xb63:
      case 0xf63:
      case 0xd64:
      case 0x367:
      case 0xb66:
      case 0xf66:
      case 0xd67:
      case 0xb6c:
      case 0xf6c:
      case 0x36d:
      case 0xd6d:
        simple_effect(Opcode::kTex, "TEX");
        write_opaque_texture();
        return true;
      case 0x36a:
      case 0xb69:
      case 0xf69:
      case 0x370:
      case 0xb6f:
      case 0xf6f:
        write_opaque_texture();  // level of detail, queries
        return true;
      case 0x998:
      case 0x99a:
      case 0xb98:
      case 0xb99:
      case 0xf98:
      case 0xf99:
        simple_effect(Opcode::kSuld, "SULD");
        may_write_opaque(4);
        return true;
      case 0x99c:
      case 0x99e:
      case 0xb9b:
      case 0xb9d:
      case 0xf9b:
      case 0xf9d:
        simple_effect(Opcode::kSust, "SUST");
        return true;
      case 0x394:
      case 0x396:
      case 0x3a0:
        simple_effect(Opcode::kSured, "SUATOM");
        may_write_opaque(2);
        return true;

      case 0x919:  // S2R
        special_register(false);
        return true;
      case 0x9c3:  // S2UR
        special_register(true);
        return true;
      case 0x805:  // CS2R
        if (w_.bits(72, 8) == 0xff) {
          write_result(g_.constant(0));
          if (w_.bit(80))
            write_to(false, 16, 1, g_.constant(0));
        } else {
          write_opaque(w_.bit(80) ? 2 : 1);
        }
        return true;
      case 0x8cb:  // CS2UR
        write_opaque(w_.bit(80) ? 2 : 1, true);
        return true;
      case 0x31c:  // B2R
        write_opaque(1);
        write_predicate(81, opaque(1));
        return true;
      case 0x355:  // BMOV from a barrier
        write_opaque(1);
        return true;
      case 0x34e:
      case 0x94e:  // LEPC
        write_opaque(2);
        return true;
      case 0x803:  // P2R
        write_opaque(1);
        return true;
      case 0x804:  // R2P
        for (std::uint32_t p = 0; p < 7; ++p)
          write(kPredicate + p, opaque(1));
        return true;
      case 0x204:
        for (std::uint32_t p = 0; p < 7; ++p)
          write(kPredicate + p, opaque(1));
        return true;
      case 0x883:
      case 0x884:  // UP2UR and its kin
        may_write_opaque(1, true);
        return true;
      case 0x806:  // VOTE
        write_opaque(1);
        write_predicate(81, opaque(1));
        return true;
      case 0x886:  // VOTEU
        write_opaque(1, true);
        write_predicate(81, opaque(1), true);
        return true;
      case 0x389:
      case 0x589:
      case 0x989:
      case 0xf89:  // SHFL
        write_opaque(1);
        write_predicate(81, opaque(1));
        return true;
      case 0x3a1:  // MATCH
        write_opaque(1);
        write_predicate(81, opaque(1));
        return true;
      case 0x3c4:  // REDUX
        write_opaque(1, true);
        return true;
      case 0x2cc:  // CREDUX: of which file its register is depends on the form
        if (code_.sm < 100)
          return false;
        may_write_opaque(1, true);
        may_write_opaque(1, false);
        return true;
      case 0x3c2:
      case 0x2ca:  // R2UR
        if (w_.opcode() == 0x2ca ? code_.sm < 90 : code_.sm >= 100)
          return false;
        if (has_others({{81, 3}}))
          return true;
        write_predicate(81, opaque(1));
        write_result(make(Op::kUniform, {general_field(24)}), true);
        return true;
      case 0x3aa:
      case 0x9aa:  // QSPC
        may_write_opaque(1);
        write_predicate(81, opaque(1));
        return true;
      case 0x81c:
        predicate_logic(false);
        return true;
      case 0x89c:
        predicate_logic(true);
        return true;

      case 0x402:
      case 0x482:  // MOV.64, UMOV.64 of a constant
        if (code_.sm < 120)
          return false;
        {
          const std::uint64_t v = w_.bits(24, 64);
          immediate(v);
          const bool is_uniform = w_.opcode() == 0x482;
          write_to(is_uniform, 16, 0, g_.constant(v));
          write_to(is_uniform, 16, 1, g_.constant(v >> 32));
        }
        return true;
      default:
        return false;
    }
  }
  void write_opaque_texture() {
    may_write_opaque(4);
    may_write_opaque(4, false, 64);
    write_predicate(81, opaque(1));
  }

  void cache_control() {
    const auto how = w_.bits(87, 4);
    // 0, 1: prefetch; 2 write back; 3, 4, 6: invalidate; 7, 8: write back all. What else there is
    // may discard data.
    if (how > 8 || how == 5) {
      Effect e;
      e.opcode = Opcode::kDiscard;
      e.space = Space::kGlobal;
      e.address = general_pair(24);
      effect(std::move(e));
    }
  }

  void call_absolute() {
    Effect e;
    e.opcode = Opcode::kCall;
    e.address = general_pair(24);
    effect(std::move(e));
    // By the calling convention the upper registers survive; the result comes in the first ones.
    for (std::uint32_t r = 0; r < 16; ++r)
      write(kGeneral + r, opaque());
    for (std::uint32_t p = 0; p < 7; ++p)
      write(kPredicate + p, opaque(1));
  }

  void step() {
    if (w_.bits(92, 13) != 0)
      return unknown_instruction("form of instruction");
    if (own_opcode())
      return;
    read_constant_operand();
    if (const auto words = opaque_words()) {
      if (form() == 0)
        return unknown_instruction();
      const std::uint32_t base = w_.opcode() & 0x1ff;
      const bool integer =
          base == 0x01a || base == 0x01b || base == 0x100 || base == 0x101 || base == 0x109;
      return integer ? write_opaque_word() : write_opaque(*words);
    }
    const bool hopper = code_.sm >= 90;
    switch (w_.opcode() & 0x1ff) {
      case 0x002:
        if (w_.bits(72, 4) != 0xF)
          return unknown_instruction("form of instruction");
        return move(false);
      case 0x082:
        if (w_.bits(72, 4) != 0)
          return unknown_instruction("form of instruction");
        return move(true);
      case 0x007:
        return select(false);
      case 0x087:
        return select(true);
      case 0x00b:
        return compare_float(false);
      case 0x02a:  // DSETP
      case 0x034:  // HSETP2
        write_predicate(81, opaque(1));
        return write_predicate(84, opaque(1));
      case 0x102:  // FCHK
        return write_predicate(81, opaque(1));
      case 0x00c:
        return compare(false);
      case 0x08c:
        return compare(true);
      case 0x010:
        return add3(false);
      case 0x090:
        return add3(true);
      case 0x011:
        return lea(false);
      case 0x091:
        return lea(true);
      case 0x012:
        return logic(false);
      case 0x092:
        return logic(true);
      case 0x016:
        return permute(false);
      case 0x096:
        return permute(true);
      case 0x017:
        return minimum(73);
      case 0x048:
        return hopper ? minimum(72) : unknown_instruction();
      case 0x019:
        return shift(false);
      case 0x099:
        return shift(true);
      case 0x024:
        return mad(false);
      case 0x0a4:
        return mad(true);
      case 0x025:
        return mad_wide(false);
      case 0x0a5:
        return mad_wide(true);
      case 0x027:
        return mad_high(false);
      case 0x0a7:
        return mad_high(true);
      case 0x013:
        return absolute();
      case 0x031:
        return half_fma();
      case 0x035:
        return code_.sm >= 100 ? (code_.sm >= 120 ? add64(false) : unknown_instruction())
                               : half_fma();
      case 0x036: {  // VIADD
        if (!hopper)
          return unknown_instruction();
        if (!two_sources())
          return;
        if (w_.bit(75))
          return write_opaque_word();  // of halves
        if (has_others({{72, 1}, {91, 1}}))
          return;
        const Operands o = two_operands();
        trace_number("negated", (w_.bit(72) ? 1 : 0) | (o.negate_b ? 2 : 0));
        return write_result(make(Op::kAdd3, {o.a, o.b, g_.constant(0)},
                                 (w_.bit(72) ? kNegateA : 0) | (o.negate_b ? kNegateB : 0)));
      }
      case 0x046:  // VIADDMNMX
        return hopper ? add_minimum() : unknown_instruction();
      case 0x04a:
        if (code_.sm == 100 || code_.sm == 103)
          return write_opaque(2);  // FADD2
        return code_.sm >= 120 && w_.bit(91) ? minimum(72, true) : unknown_instruction();
      // Floating point of the uniform data path.
      case 0x04d:  // UIABS
      case 0x050:  // UFMNMX
      case 0x051:  // UFSEL
      case 0x052:  // UFSET
      case 0x054:  // UFADD
      case 0x055:  // UFFMA
      case 0x056:  // UFMUL
      case 0x05a:  // UI2F
      case 0x05d:  // UFRND
      case 0x05e:  // UI2FP
        return uniform_float() ? write_opaque(1, true) : unknown_instruction();
      case 0x053:  // UFSETP
        return uniform_float() ? compare_float(true) : unknown_instruction();
      case 0x097:
        return add64(true);
      case 0x09a:  // USGXT
      case 0x09b:  // UBMSK
      case 0x0bd:  // UFLO
      case 0x0be:  // UBREV
      case 0x0bf:  // UPOPC
        write_opaque(1, true);
        return;
      // Matrix instructions: two or four registers, by the shape.
      case 0x037:  // IMMA
      case 0x03c:  // HMMA
      case 0x03d:  // BMMA
        return may_write_opaque(4);
      case 0x07a:  // QMMA
        return code_.sm >= 89 ? may_write_opaque(4) : unknown_instruction();
      case 0x03f:  // DMMA
        return may_write_opaque(code_.sm >= 90 ? 8 : 4);
      default:
        return unknown_instruction();
    }
  }

  // Their operands are uniform registers and constants.
  bool uniform_float() const {
    return code_.sm >= 120 && w_.bit(91) && (form() == 1 || form() == 2 || form() == 4);
  }

  void translate_block(std::uint32_t b) {
    block_ = b;
    const Block& block = g_.blocks[b];
    const std::uint32_t first = block.first, last = block.last;
    if (b == 0)
      return;
    if (first == last && block.end == End::kBranch) {
      slot_ = 0;
      guard_ = kNoId;
      const Id condition = opaque(1);
      g_.blocks[b].condition = condition;
    }
    for (std::uint32_t pc = first; pc < last && refusal_.empty(); ++pc) {
      pc_ = pc;
      w_ = flow_.word(pc);
      slot_ = static_cast<std::uint32_t>(g_.blocks[b].slots.size());
      g_.blocks[b].slots.emplace_back();
      g_.blocks[b].lines.push_back(pc + 1);
      if (trace_ != nullptr) {
        trace_->emplace_back();
        trace_->back().offset = pc * 16;
        trace_->back().opcode = w_.opcode();
        trace_flow();
      }
      set_guard();
      if (guard_ == kNoId || !g_.is_const(guard_, 0))
        step();
      if (pc + 1 == last)
        finish_block(b);
    }
  }
  void trace_flow() {
    const Flow::Step s = flow_.step(pc_);
    if (s.kind == Flow::Step::kJump || s.kind == Flow::Step::kBranch || s.kind == Flow::Step::kCall)
      trace_number("target", std::int64_t{s.target} * 16);
  }
  static bool is_uniform_float(std::uint32_t base) {
    return base == 0x04a || base == 0x04d || (base >= 0x050 && base <= 0x05e);
  }
  void set_guard() {
    guard_ = kNoId;
    const auto p = static_cast<std::uint32_t>(w_.bits(12, 3));
    const bool negated = w_.bit(15);
    if (p == 7 && !negated)
      return;
    const std::uint32_t op = w_.opcode(), base = op & 0x1ff;
    // Instructions of the uniform data path have predicates of their own; of those that read or
    // write both, it is not certain which they mean.
    const bool is_uniform = (base >= 0x080 && base < 0x0c0 && op != 0x886) ||
                            (code_.sm >= 120 && is_uniform_float(base)) || op == 0xab9 ||
                            op == 0xabb || op == 0x7ac;
    const bool in_doubt = op == 0x9c3 || op == 0x886 || op == 0x3c2 || op == 0x2ca || op == 0x3c4 ||
                          op == 0x2cc || op == 0x82f || op == 0x3ba || op == 0x3bb || op == 0x5b2;
    if (trace_ != nullptr) {
      const std::string name = p == 7 ? "PT" : name_of_variable(kPredicate + p);
      const char* kind = in_doubt ? "?" : is_uniform ? "U" : "";
      trace_->back().guard = (negated ? "!" : "") + std::string(kind) + name;
    }
    Id g = p == 7     ? g_.constant(1, 1)
           : in_doubt ? opaque(1)
                      : read(block_, (is_uniform ? kUniformPredicate : kPredicate) + p, 0);
    if (negated)
      g = make(Op::kNot, {g}, 0, 1);
    g = g_.resolve(g);
    if (!g_.is_const(g, 1))
      guard_ = g;
  }

  // The condition of the branch, or of the exit, that ends the block.
  void finish_block(std::uint32_t b) {
    Block& block = g_.blocks[b];
    if (block.end != End::kBranch)
      return;
    const Flow::Step s = flow_.step(pc_);
    Id condition = kNoId;
    if (s.in_doubt || s.kind == Flow::Step::kTable) {
      condition = opaque(1);
    } else {
      const Id guard = guard_ == kNoId ? g_.constant(1, 1) : guard_;
      guard_ = kNoId;
      Id second = g_.constant(1, 1);
      if (w_.opcode() == 0x547) {
        second =
            w_.bits(24, 3) == 7
                ? g_.constant(1, 1)
                : read(block_, kUniformPredicate + static_cast<std::uint32_t>(w_.bits(24, 3)), 0);
        if (w_.bit(27))
          second = make(Op::kNot, {second}, 0, 1);
      }
      second = make(Op::kAnd, {second, predicate(87, 90)}, 0, 1);
      condition = make(Op::kAnd, {guard, second}, 0, 1);
    }
    g_.blocks[b].condition = condition;
  }

  // Every return goes back to where its inlined call came from: the register must say so.
  std::string check_returns() {
    for (const Flow::Return& r : flow_.returns()) {
      const std::uint32_t b = r.block;
      if (b == kNoId)
        continue;
      w_ = flow_.word(r.pc);
      pc_ = r.pc;
      const auto reg = static_cast<std::uint32_t>(w_.bits(24, 8));
      const Id value =
          reg == kZeroRegister ? g_.constant(0) : g_.resolve(read(b, kGeneral + reg, 0));
      // RET.REL: the register holds the offset in the function that the displacement leads to.
      const std::int64_t base = flow_.displacement(r.pc);
      const Node& n = g_[value];
      if (n.op != Op::kConst ||
          base + static_cast<std::int64_t>(n.imm) != std::int64_t{r.back_to} * 16) {
        refuse("a return to a place that is not known");
        return refusal_;
      }
    }
    return {};
  }

  const Code& code_;
  const CubinKernel& kernel_;
  const Flow& flow_;
  Graph& g_;
  const DriverWords& words_;
  std::span<const std::byte> literals_;
  std::unordered_map<std::uint64_t, Id> definitions_;
  std::vector<bool> done_;
  std::vector<std::pair<Id, std::uint32_t>> deferred_;
  std::vector<Id> all_phis_;
  std::size_t joined_ = 0;
  std::string refusal_;
  Word w_;
  std::uint32_t pc_ = 0, block_ = 0, slot_ = 0;
  Id guard_ = kNoId;
  std::vector<TracedInstruction>* trace_ = nullptr;
  bool may_ = false;  // for the trace: what is written now is perhaps not
};

}  // namespace

std::string translate(const Code& code, const CubinKernel& kernel, Graph& graph,
                      std::vector<TracedInstruction>* trace) {
  graph.code = &code;
  graph.kernel = &kernel;
  Flow flow(code, kernel);
  if (std::string why = flow.build(graph); !why.empty())
    return why;
  return Translator(code, kernel, flow, graph, trace).run();
}

}  // namespace gpurecover::image::sass
