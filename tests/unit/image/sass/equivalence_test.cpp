// SPDX-License-Identifier: Apache-2.0
// Random instruction sequences, written here, executed twice: as machine instructions on 32-bit
// registers, by a few lines that know nothing of lifting, and as the lifted IR. Whatever the IR
// does not call opaque must be equal. Pairs of instructions that make 64-bit values are frequent.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "image/elf.h"
#include "image/sass/lift.h"
#include "tests/unit/image/sass/assembler.h"

namespace gpurecover::image::sass {
namespace {

using namespace assembler;
using ptx::Opcode;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

constexpr unsigned kBase = 0x160, kRegisters = 12, kPredicates = 5;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

struct Machine {
  U32 r[256] = {};
  bool p[8] = {false, false, false, false, false, false, false, true};
  std::vector<U64> stored;
  U32 reg(unsigned n) const { return n == 255 ? 0 : r[n]; }
  bool pred(unsigned n) const { return p[n & 7] != (n >= 8); }
  void set(unsigned n, U32 v) {
    if (n != 255)
      r[n] = v;
  }
  void set_pred(unsigned n, bool v) {
    if (n != 7)
      p[n] = v;
  }
};

// One instruction, and what it does.
struct Step {
  Word word;
  std::function<void(Machine&)> run;
};

class Generator {
 public:
  explicit Generator(U32 seed) : random_(seed) {}

  std::vector<Step> program(std::size_t length, const std::vector<U32>& params) {
    // Registers begin as words of the parameters.
    for (unsigned k = 0; k < kRegisters; ++k) {
      const U32 v = params[k % params.size()];
      add(
          mov_const(k, kBase + 4 * (k % static_cast<unsigned>(params.size()))),
          [k, v](Machine& m) { m.set(k, v); }, kAlways);
    }
    // So do the predicates, and the registers that pairs are computed in: what nobody wrote has no
    // value.
    for (unsigned k = 0; k < kPredicates; ++k) {
      add(
          op(0x20c, {{24, 8, k},
                     {32, 8, k + 1},
                     {68, 3, 7},
                     {76, 3, 1},
                     {81, 3, k},
                     {84, 3, 7},
                     {87, 3, 7}}),
          [k](Machine& m) { m.set_pred(k, m.r[k] < m.r[k + 1]); }, kAlways);
    }
    for (unsigned k = 13; k < 16; ++k)
      copy(k, k - 13, kAlways);
    while (steps_.size() < length) {
      switch (below(14)) {
        case 0:
          sum64();
          break;
        case 1:
          lea64();
          break;
        case 2:
          shift64();
          break;
        case 3:
          select64();
          break;
        case 4:
          compare64();
          break;
        case 5:
          wide();
          break;
        case 6:
          logic64();
          break;
        case 7:
          add3();
          break;
        case 8:
          logic();
          break;
        case 9:
          shift();
          break;
        case 10:
          mad();
          break;
        case 11:
          permute();
          break;
        case 12:
          minimum();
          break;
        default:
          compare();
          break;
      }
    }
    // The address is a parameter; what is stored is compared.
    add(
        mov_const(20, kBase), [](Machine&) {}, kAlways);
    add(
        mov_const(21, kBase + 4), [](Machine&) {}, kAlways);
    for (unsigned k = 0; k < kRegisters; k += 2) {
      const Word w = op(0x986, {{24, 8, 20},
                                {32, 8, k},
                                {64, 8, 4},
                                {72, 1, 1},
                                {73, 3, 5},
                                {76, 1, 1},
                                {84, 3, 1},
                                {90, 2, 3}});
      add(
          w, [k](Machine& m) { m.stored.push_back(m.r[k] | U64{m.r[k + 1]} << 32); }, kAlways);
    }
    add(
        op(0x94d, {{87, 3, 7}}), [](Machine&) {}, kAlways);
    return std::move(steps_);
  }

 private:
  U32 below(U32 n) { return static_cast<U32>(random_() % n); }
  unsigned reg() { return below(10) == 0 ? 255 : below(kRegisters); }
  unsigned to() { return below(kRegisters); }
  unsigned even() { return below(kRegisters / 2) * 2; }
  unsigned pred() { return below(kPredicates); }
  // A guard for the steps to come, usually none.
  U64 guard() { return below(4) == 0 ? pred() + 8 * below(2) : kAlways; }
  void add(Word w, std::function<void(Machine&)> run, U64 guard) {
    w.low = (w.low & ~U64{0xF000}) | guard << 12;
    steps_.push_back({w, [run = std::move(run), guard](Machine& m) {
                        if (m.pred(static_cast<unsigned>(guard)))
                          run(m);
                      }});
  }

  // d = a + b + c; carries into p, q where given.
  void add3_of(unsigned d, unsigned p, unsigned q, unsigned a, unsigned b, unsigned c, unsigned neg,
               U64 g) {
    const Word w = op(0x210, {{16, 8, d},
                              {24, 8, a},
                              {32, 8, b},
                              {63, 1, neg >> 1 & 1u},
                              {64, 8, c},
                              {72, 1, neg & 1u},
                              {75, 1, neg >> 2 & 1u},
                              {77, 4, 15},
                              {81, 3, p},
                              {84, 3, q},
                              {87, 4, 15}});
    add(
        w,
        [=](Machine& m) {
          const unsigned in[3] = {a, b, c};
          U64 sum = 0;
          for (int k = 0; k < 3; ++k)
            sum += (neg >> k & 1) != 0 ? (U64{1} << 32) - m.reg(in[k]) : m.reg(in[k]);
          m.set(d, static_cast<U32>(sum));
          m.set_pred(p, sum >> 32 >= 1);
          m.set_pred(q, sum >> 32 >= 2);
        },
        g);
  }
  void add3x_of(unsigned d, unsigned p, unsigned q, unsigned a, unsigned b, unsigned c,
                unsigned neg, U64 g) {
    const Word w = op(0x210, {{16, 8, d},
                              {24, 8, a},
                              {32, 8, b},
                              {63, 1, neg >> 1 & 1u},
                              {64, 8, c},
                              {72, 1, neg & 1u},
                              {74, 1, 1},
                              {75, 1, neg >> 2 & 1u},
                              {77, 3, q},
                              {80, 1, q == 7},
                              {81, 3, 7},
                              {84, 3, 7},
                              {87, 3, p},
                              {90, 1, p == 7}});
    add(
        w,
        [=](Machine& m) {
          const unsigned in[3] = {a, b, c};
          U32 sum = 0;
          for (int k = 0; k < 3; ++k)
            sum += (neg >> k & 1) != 0 ? ~m.reg(in[k]) : m.reg(in[k]);
          sum += (p != 7 && m.p[p] ? 1 : 0) + (q != 7 && m.p[q] ? 1 : 0);
          m.set(d, sum);
        },
        g);
  }
  void add3() { add3_of(to(), 7, 7, reg(), reg(), reg(), below(8) & 5, guard()); }
  void sum64() {
    const U64 g = guard();
    // Not into what is still to be read.
    const unsigned d = even(), a = even(), b = even(), c = even();
    const unsigned p = pred(), q = (p + 1) % kPredicates;
    if ((g & 7) == p || (g & 7) == q)
      return;
    const unsigned low = below(2) == 0 ? d : 12, neg = below(3) == 0 ? 2 : 0;
    if (below(3) == 0) {
      add3_of(13, p, q, a, b, c, neg, g);
      add3x_of(14, p, q, a + 1, b + 1, c + 1, neg, g);
    } else if (below(4) == 0) {  // the carry of another sum, sometimes
      add3_of(13, p, 7, a, b, 255, neg, g);
      add3_of(15, p, 7, c, b, 255, 0, g);
      add3x_of(14, p, 7, a + 1, b + 1, 255, neg, g);
    } else {
      add3_of(13, p, 7, a, b, 255, neg, g);
      add3x_of(14, p, 7, b + 1, a + 1, 255, neg == 0 ? 0 : 1, g);
    }
    (void)low;
    copy(d, 13, g);
    copy(d + 1, 14, g);
  }
  void copy(unsigned d, unsigned s, U64 g) {
    add(
        op(0x202, {{16, 8, d}, {32, 8, s}, {72, 4, 15}}), [=](Machine& m) { m.set(d, m.reg(s)); },
        g);
  }

  void lea64() {
    const U64 g = guard();
    const unsigned d = even(), a = even(), b = even(), p = pred(), s = below(6);
    if ((g & 7) == p)
      return;
    const bool sx = below(2) == 0;
    add(
        op(0x211, {{16, 8, 13},
                   {24, 8, a},
                   {32, 8, b},
                   {64, 8, 255},
                   {75, 5, s},
                   {81, 3, p},
                   {87, 4, 15}}),
        [=](Machine& m) {
          const U64 sum = U64{static_cast<U32>(m.reg(a) << s)} + m.reg(b);
          m.set(13, static_cast<U32>(sum));
          m.set_pred(p, sum >> 32 != 0);
        },
        g);
    add(
        op(0x211, {{16, 8, 14},
                   {24, 8, a},
                   {32, 8, b + 1},
                   {64, 8, sx ? 255 : a + 1},
                   {73, 1, sx},
                   {74, 1, 1},
                   {75, 5, s},
                   {80, 1, 1},
                   {81, 3, 7},
                   {87, 3, p}}),
        [=](Machine& m) {
          const U64 x =
              sx ? static_cast<U64>(static_cast<std::int64_t>(static_cast<std::int32_t>(m.reg(a))))
                 : U64{m.reg(a + 1)} << 32 | m.reg(a);
          m.set(14, static_cast<U32>((x << s) >> 32) + m.reg(b + 1) + (m.p[p] ? 1 : 0));
        },
        g);
    copy(d, 13, g);
    copy(d + 1, 14, g);
  }

  // type: 0 s64, 1 u64, 2 s32, 3 u32.
  void shift_of(unsigned d, unsigned low, U32 amount, unsigned high, unsigned type, bool wrap,
                bool right, bool upper, U64 g) {
    add(
        op(0x819, {{16, 8, d},
                   {24, 8, low},
                   {32, 32, amount},
                   {64, 8, high},
                   {73, 2, type},
                   {75, 1, wrap},
                   {76, 1, right},
                   {80, 1, upper}}),
        [=](Machine& m) {
          const U32 limit = type < 2 ? 64 : 32;
          const U32 n = wrap ? amount & (limit - 1) : std::min(amount, limit);
          const bool is_signed = type == 0 || type == 2;
          const U64 x = U64{m.reg(high)} << 32 | m.reg(low);
          U64 y = 0;
          if (!right) {
            y = n >= 64 ? 0 : x << n;
          } else if (is_signed) {
            y = static_cast<U64>(static_cast<std::int64_t>(x) >> std::min<U32>(n, 63));
          } else {
            y = n >= 64 ? 0 : x >> n;
          }
          m.set(d, static_cast<U32>(upper ? y >> 32 : y));
        },
        g);
  }
  void shift() {
    shift_of(to(), reg(), below(70), reg(), below(4), below(4) == 0, below(2) == 0, below(2) == 0,
             guard());
  }
  void shift64() {
    const U64 g = guard();
    const unsigned a = even(), d = even();
    const U32 n = 1 + below(31);
    if (below(2) == 0) {
      shift_of(13, a, n, 255, 3, false, false, false, g);
      shift_of(14, a, n, a + 1, 1, false, false, true, g);
    } else {
      const unsigned type = below(2);
      shift_of(13, a, n, a + 1, type, false, true, false, g);
      shift_of(14, 255, n, a + 1, type == 0 ? 2 : 3, false, true, true, g);
    }
    copy(d, 13, g);
    copy(d + 1, 14, g);
  }

  void select_of(unsigned d, unsigned a, unsigned b, unsigned p, U64 g) {
    add(
        op(0x207, {{16, 8, d}, {24, 8, a}, {32, 8, b}, {87, 4, p}}),
        [=](Machine& m) { m.set(d, m.pred(p) ? m.reg(a) : m.reg(b)); }, g);
  }
  void select64() {
    const U64 g = guard();
    const unsigned d = even(), a = even(), b = even(), p = pred() + 8 * below(2);
    select_of(13, a, b, p, g);
    select_of(14, a + 1, b + 1, below(5) == 0 ? pred() : p, g);
    copy(d, 13, g);
    copy(d + 1, 14, g);
  }

  static bool holds(unsigned how, std::int64_t a, std::int64_t b) {
    switch (how) {
      case 1:
        return a < b;
      case 2:
        return a == b;
      case 3:
        return a <= b;
      case 4:
        return a > b;
      case 5:
        return a != b;
      case 6:
        return a >= b;
      default:
        return how == 7;
    }
  }
  void compare() {
    const unsigned a = reg(), b = reg(), p = pred(), q = pred(), how = below(8), other = pred(),
                   combine = below(3);
    const bool is_signed = below(2) == 0;
    add(
        op(0x20c, {{24, 8, a},
                   {32, 8, b},
                   {68, 3, 7},
                   {73, 1, is_signed},
                   {74, 2, combine},
                   {76, 3, how},
                   {81, 3, p},
                   {84, 3, p == q ? 7 : q},
                   {87, 3, other}}),
        [=](Machine& m) {
          const bool t = is_signed ? holds(how, static_cast<std::int32_t>(m.reg(a)),
                                           static_cast<std::int32_t>(m.reg(b)))
                                   : holds(how, m.reg(a), m.reg(b));
          const bool o = m.pred(other);
          auto with = [&](bool x) {
            return combine == 0 ? x && o : combine == 1 ? x || o : x != o;
          };
          m.set_pred(p, with(t));
          m.set_pred(p == q ? 7 : q, with(!t));
        },
        kAlways);
  }
  void compare64() {
    const unsigned a = even(), b = even(), p = pred(), how = 1 + below(6);
    const bool is_signed = below(2) == 0;
    const unsigned q = (p + 1) % kPredicates;
    add(
        op(0x20c,
           {{24, 8, a}, {32, 8, b}, {68, 3, 7}, {76, 3, how}, {81, 3, q}, {84, 3, 7}, {87, 3, 7}}),
        [=](Machine& m) { m.set_pred(q, holds(how, m.reg(a), m.reg(b))); }, kAlways);
    add(
        op(0x20c, {{24, 8, a + 1},
                   {32, 8, b + 1},
                   {68, 3, q},
                   {72, 1, 1},
                   {73, 1, is_signed},
                   {76, 3, how},
                   {81, 3, p},
                   {84, 3, 7},
                   {87, 3, 7}}),
        [=](Machine& m) {
          // Where the upper words are equal, the lower ones decide.
          const U32 x = m.reg(a + 1), y = m.reg(b + 1);
          const bool upper =
              is_signed ? holds(how, static_cast<std::int32_t>(x), static_cast<std::int32_t>(y))
                        : holds(how, x, y);
          m.set_pred(p, x == y ? m.p[q] : upper);
        },
        kAlways);
  }

  void wide() {
    const U64 g = guard();
    const unsigned d = even(), a = reg(), b = reg();
    const unsigned c = below(3) == 0 ? 255 : even();
    const bool is_signed = below(2) == 0;
    add(
        op(0x225, {{16, 8, d},
                   {24, 8, a},
                   {32, 8, b},
                   {64, 8, c},
                   {73, 1, is_signed},
                   {81, 3, 7},
                   {87, 4, 15}}),
        [=](Machine& m) {
          const U64 product =
              is_signed ? static_cast<U64>(std::int64_t{static_cast<std::int32_t>(m.reg(a))} *
                                           static_cast<std::int32_t>(m.reg(b)))
                        : U64{m.reg(a)} * m.reg(b);
          const U64 sum = product + (c == 255 ? 0 : U64{m.reg(c + 1)} << 32 | m.reg(c));
          m.set(d, static_cast<U32>(sum));
          m.set(d + 1, static_cast<U32>(sum >> 32));
        },
        g);
  }
  void mad() {
    const unsigned d = to(), a = reg(), b = reg(), c = reg(), neg_c = below(2), neg = below(2);
    const U64 g = guard();
    add(
        op(0x224, {{16, 8, d},
                   {24, 8, a},
                   {32, 8, b},
                   {63, 1, neg},
                   {64, 8, c},
                   {73, 1, 1},
                   {75, 1, neg_c},
                   {81, 3, 7},
                   {87, 4, 15}}),
        [=](Machine& m) {
          const U32 product = m.reg(a) * m.reg(b);
          m.set(d, (neg != 0 ? 0 - product : product) + (neg_c != 0 ? 0 - m.reg(c) : m.reg(c)));
        },
        g);
  }

  static U32 table_of(unsigned table, U32 a, U32 b, U32 c) {
    U32 r = 0;
    for (int k = 0; k < 32; ++k)
      r |= (table >> ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1)) & 1) << k;
    return r;
  }
  void logic_of(unsigned d, unsigned a, unsigned b, unsigned c, unsigned table, U64 g) {
    add(
        op(0x212, {{16, 8, d},
                   {24, 8, a},
                   {32, 8, b},
                   {64, 8, c},
                   {72, 8, table},
                   {81, 3, 7},
                   {87, 4, 15}}),
        [=](Machine& m) { m.set(d, table_of(table, m.reg(a), m.reg(b), m.reg(c))); }, g);
  }
  void logic() { logic_of(to(), reg(), reg(), reg(), below(256), guard()); }
  void logic64() {
    const U64 g = guard();
    static constexpr unsigned kTables[] = {0xC0, 0xFC, 0x3C, 0xA0, 0x88};
    const unsigned table = kTables[below(5)], d = even(), a = even(), b = even(), c = even();
    logic_of(13, a, b, c, table, g);
    if (below(3) == 0) {
      copy(14, a + 1, g);
    } else {
      logic_of(14, a + 1, b + 1, c + 1, table, g);
    }
    copy(d, 13, g);
    copy(d + 1, 14, g);
  }
  void permute() {
    const unsigned d = to(), a = reg(), c = reg();
    const U32 selector = below(0x10000);
    add(
        op(0x816, {{16, 8, d}, {24, 8, a}, {32, 32, selector}, {64, 8, c}}),
        [=](Machine& m) {
          const U64 x = U64{m.reg(c)} << 32 | m.reg(a);
          U32 r = 0;
          for (int k = 0; k < 4; ++k) {
            const U32 n = selector >> (4 * k) & 15;
            U32 byte = static_cast<U32>(x >> (8 * (n & 7))) & 0xFF;
            if ((n & 8) != 0)
              byte = (byte & 0x80) != 0 ? 0xFF : 0;
            r |= byte << (8 * k);
          }
          m.set(d, r);
        },
        guard());
  }
  void minimum() {
    const unsigned d = to(), a = reg(), b = reg();
    const bool is_signed = below(2) == 0, smaller = below(2) == 0;
    add(
        op(0x217,
           {{16, 8, d}, {24, 8, a}, {32, 8, b}, {73, 1, is_signed}, {87, 3, 7}, {90, 1, !smaller}}),
        [=](Machine& m) {
          const U32 x = m.reg(a), y = m.reg(b);
          const bool less =
              is_signed ? static_cast<std::int32_t>(x) < static_cast<std::int32_t>(y) : x < y;
          m.set(d, less == smaller ? x : y);
        },
        guard());
  }

  std::mt19937 random_;
  std::vector<Step> steps_;
};

// The lifted code, as far as straight-line code goes; nullopt: opaque.
class Evaluator {
 public:
  Evaluator(const ptx::Module& m, const std::vector<U32>& params)
      : f_(m.functions.front()), params_(params), values_(f_.registers.size()) {}

  std::vector<std::optional<U64>> stored;

  std::string run() {
    for (const ptx::Instruction& i : f_.code) {
      if (std::string why = step(i); !why.empty())
        return why;
    }
    return {};
  }

 private:
  using Value = std::optional<U64>;
  static U64 mask(Type t) {
    const U32 bytes = ptx::size_of(t);
    return t == Type::kPred ? 1 : bytes >= 8 ? ~U64{0} : (U64{1} << (8 * bytes)) - 1;
  }
  Value read(const Operand& o) {
    switch (o.kind) {
      case OperandKind::kRegister:
        return values_[o.index];
      case OperandKind::kImmediate:
        return o.imm;
      case OperandKind::kVector: {
        const Value low = read(f_.operands[o.first]), high = read(f_.operands[o.first + 1]);
        if (!low || !high)
          return std::nullopt;
        return (*low & 0xFFFFFFFF) | *high << 32;
      }
      default:
        return std::nullopt;
    }
  }
  std::string step(const ptx::Instruction& i) {
    const auto o = f_.operands_of(i);
    auto in = [&](std::size_t k) -> Value {
      const Value v = read(o[k]);
      return v ? Value(*v & mask(i.type)) : v;
    };
    auto out = [&](Value v, Type t) {
      if (v)
        v = *v & mask(t);
      values_[o[0].index] = v;
      return std::string();
    };
    auto with = [&](auto&& compute) -> std::string {
      Value a = in(1), b = o.size() > 2 ? in(2) : Value(0), c = o.size() > 3 ? in(3) : Value(0);
      return out(a && b && c ? Value(compute(*a, *b, *c)) : std::nullopt, i.type);
    };
    auto sign = [&](U64 v) {
      return mask(i.type) == 0xFFFFFFFF ? std::int64_t{static_cast<std::int32_t>(v)}
                                        : static_cast<std::int64_t>(v);
    };
    const bool is_signed = ptx::is_signed_integer(i.type);
    switch (i.opcode) {
      case Opcode::kExit:
        return {};
      case Opcode::kLd: {
        U64 v = 0;
        std::memcpy(&v,
                    reinterpret_cast<const char*>(params_.data()) + f_.params[o[1].index].offset +
                        o[1].offset,
                    ptx::size_of(i.type));
        return out(v, i.type);
      }
      case Opcode::kSt: {
        const Operand& data = o[1];
        if (data.kind == OperandKind::kVector) {
          stored.push_back(read(data));
        } else {
          stored.push_back(read(data));
        }
        return {};
      }
      case Opcode::kOpaque:
        return out(std::nullopt, i.type);
      case Opcode::kMov:
        return out(read(o[1]), i.type);
      case Opcode::kBra:
        return {};  // to the next block: there is no other
      case Opcode::kAdd:
        return with([](U64 a, U64 b, U64) { return a + b; });
      case Opcode::kSub:
        return with([](U64 a, U64 b, U64) { return a - b; });
      case Opcode::kNeg:
        return with([](U64 a, U64, U64) { return 0 - a; });
      case Opcode::kMul: {
        if (!i.has(ptx::Modifier::kWide))
          return with([](U64 a, U64 b, U64) { return a * b; });
        const Value a = in(1), b = in(2);
        if (!a || !b)
          return out(std::nullopt, Type::kB64);
        return out(is_signed ? static_cast<U64>(sign(*a) * sign(*b)) : *a * *b, Type::kB64);
      }
      case Opcode::kMad:
        return with([](U64 a, U64 b, U64 c) { return a * b + c; });
      case Opcode::kAnd:
        return with([](U64 a, U64 b, U64) { return a & b; });
      case Opcode::kOr:
        return with([](U64 a, U64 b, U64) { return a | b; });
      case Opcode::kXor:
        return with([](U64 a, U64 b, U64) { return a ^ b; });
      case Opcode::kNot:
        return with([](U64 a, U64, U64) { return ~a; });
      case Opcode::kLop3: {
        const Value a = in(1), b = in(2), c = in(3);
        if (!a || !b || !c)
          return out(std::nullopt, i.type);
        U32 r = 0;
        for (int k = 0; k < 32; ++k)
          r |= static_cast<U32>(
              (o[4].imm >> ((*a >> k & 1) * 4 + (*b >> k & 1) * 2 + (*c >> k & 1)) & 1) << k);
        return out(r, i.type);
      }
      case Opcode::kShl:
        return with([&](U64 a, U64 b, U64) { return b >= 8 * ptx::size_of(i.type) ? 0 : a << b; });
      case Opcode::kShr:
        return with([&](U64 a, U64 b, U64) {
          const U64 bits = 8 * ptx::size_of(i.type);
          if (is_signed)
            return static_cast<U64>(sign(a) >> std::min(b, bits - 1));
          return b >= bits ? 0 : a >> b;
        });
      case Opcode::kShf:
        return with([](U64 a, U64 b, U64 c) { return (b << 32 | a) >> (c & 31); });
      case Opcode::kMin:
      case Opcode::kMax:
        return with([&](U64 a, U64 b, U64) {
          const bool less = is_signed ? sign(a) < sign(b) : a < b;
          return less == (i.opcode == Opcode::kMin) ? a : b;
        });
      case Opcode::kSelp: {
        const Value p = read(o[3]);
        if (!p)
          return out(std::nullopt, i.type);
        return out(in((*p & 1) != 0 ? 1 : 2), i.type);
      }
      case Opcode::kPrmt:
        return with([](U64 a, U64 b, U64 c) {
          const U64 x = b << 32 | a;
          U64 r = 0;
          for (int k = 0; k < 4; ++k) {
            const U64 n = c >> (4 * k) & 15;
            U64 byte = x >> (8 * (n & 7)) & 0xFF;
            if ((n & 8) != 0)
              byte = (byte & 0x80) != 0 ? 0xFF : 0;
            r |= byte << (8 * k);
          }
          return r;
        });
      case Opcode::kCvt: {
        Value v = read(o[1]);
        if (v) {
          *v &= mask(i.type2);
          if (i.type2 == Type::kS32)
            v = static_cast<U64>(std::int64_t{static_cast<std::int32_t>(*v)});
        }
        return out(v, i.type);
      }
      case Opcode::kSetp: {
        const Value a = in(1), b = in(2);
        if (!a || !b)
          return out(std::nullopt, Type::kPred);
        const std::int64_t order =
            is_signed ? (sign(*a) > sign(*b)) - (sign(*a) < sign(*b)) : (*a > *b) - (*a < *b);
        switch (i.compare) {
          case ptx::Compare::kLt:
            return out(order < 0, Type::kPred);
          case ptx::Compare::kLe:
            return out(order <= 0, Type::kPred);
          case ptx::Compare::kEq:
            return out(order == 0, Type::kPred);
          case ptx::Compare::kNe:
            return out(order != 0, Type::kPred);
          case ptx::Compare::kGt:
            return out(order > 0, Type::kPred);
          case ptx::Compare::kGe:
            return out(order >= 0, Type::kPred);
          default:
            return "comparison";
        }
      }
      default:
        return "instruction " + std::string(ptx::name_of(i.opcode));
    }
  }

  const ptx::Function& f_;
  const std::vector<U32>& params_;
  std::vector<Value> values_;
};

TEST(Equivalence, LiftedCodeComputesWhatTheInstructionsDo) {
  std::ifstream in(BUILT_DIR "/sass_80.cubin", std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string original = text.str();
  if (original.empty())
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  // A kernel with room for the code, and 24 bytes of parameters: three pointers.
  constexpr const char* kKernel = "atomics";
  constexpr std::size_t kParamWords = 5;
  std::size_t known = 0, all = 0, values64 = 0;
  const U32 first = 20260101;
  for (U32 round = 0; round < 1500; ++round) {
    const U32 seed = first + round;
    std::mt19937 random(seed);
    std::vector<U32> params(kParamWords);
    static constexpr U32 kEdges[] = {0, 1, 2, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFE};
    for (U32& p : params)
      p = random() % 3 == 0 ? kEdges[random() % std::size(kEdges)] : static_cast<U32>(random());
    const std::vector<Step> program = Generator(seed).program(44, params);
    std::vector<std::byte> cubin(original.size());
    std::memcpy(cubin.data(), original.data(), original.size());
    const auto elf = read_elf(cubin);
    ASSERT_TRUE(elf);
    for (const ElfSection& s : elf->sections) {
      if (s.name != std::string(".text.") + kKernel)
        continue;
      ASSERT_LE(program.size() * 16, s.data.size());
      for (std::size_t k = 0; k < program.size(); ++k) {
        std::memcpy(cubin.data() + s.offset + 16 * k, &program[k].word.low, 8);
        std::memcpy(cubin.data() + s.offset + 16 * k + 8, &program[k].word.high, 8);
      }
    }
    Machine machine;
    for (const Step& s : program)
      s.run(machine);
    const auto module = MachineCode::open(cubin)->lift(kKernel);
    ASSERT_TRUE(module) << "seed " << seed << ": " << module.error();
    Evaluator evaluator(*module, params);
    const std::string why = evaluator.run();
    ASSERT_EQ(why, "") << "seed " << seed;
    ASSERT_EQ(evaluator.stored.size(), machine.stored.size()) << "seed " << seed;
    for (std::size_t k = 0; k < machine.stored.size(); ++k) {
      ++all;
      if (!evaluator.stored[k])
        continue;
      ++known;
      ASSERT_EQ(*evaluator.stored[k], machine.stored[k])
          << "seed " << seed << ", registers " << 2 * k << " and " << 2 * k + 1;
    }
    for (const ptx::Instruction& i : module->functions.front().code)
      values64 += i.opcode == Opcode::kAdd && i.type == Type::kS64 ? 1 : 0;
  }
  // Not by calling everything opaque, nor by leaving every pair a pair.
  EXPECT_GT(known, all * 8 / 10);
  EXPECT_GT(values64, 1000U);
}

}  // namespace
}  // namespace gpurecover::image::sass
