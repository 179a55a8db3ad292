// SPDX-License-Identifier: Apache-2.0
//
// Machine instructions put together by hand, for tests.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace gpurecover::image::sass::assembler {

struct Word {
  std::uint64_t low = 0, high = 0;
};
// Fields as (first bit, count, value).
struct Bits {
  unsigned first, count;
  std::uint64_t value;
};
inline Word word(std::initializer_list<Bits> fields) {
  Word w;
  for (const Bits& f : fields) {
    for (unsigned k = 0; k < f.count; ++k) {
      if ((f.value >> k & 1) == 0)
        continue;
      const unsigned at = f.first + k;
      (at < 64 ? w.low : w.high) |= std::uint64_t{1} << (at % 64);
    }
  }
  return w;
}
inline constexpr std::uint64_t kAlways = 7;
// `op` with the guard (7: always; 8 added: negated).
inline Word op(std::uint32_t opcode, std::initializer_list<Bits> fields,
               std::uint64_t guard = kAlways) {
  Word w = word({{0, 12, opcode}, {12, 4, guard}});
  const Word f = word(fields);
  w.low |= f.low;
  w.high |= f.high;
  return w;
}

// The instructions that the tests below need, for sm_80.
inline Word exit_() {
  return op(0x94d, {{87, 3, 7}});
}
inline Word mov_const(unsigned d, unsigned byte, std::uint64_t guard = kAlways) {
  return op(0xa02, {{16, 8, d}, {38, 16, byte}, {72, 4, 15}}, guard);
}
inline Word mov_imm(unsigned d, std::uint32_t v, std::uint64_t guard = kAlways) {
  return op(0x802, {{16, 8, d}, {32, 32, v}, {72, 4, 15}}, guard);
}
inline Word load_global(unsigned d, unsigned a, unsigned size = 4, std::uint64_t guard = kAlways) {
  return op(0x981,
            {{16, 8, d},
             {24, 8, a},
             {32, 8, 4},
             {72, 1, 1},
             {73, 3, size},
             {76, 1, 1},
             {81, 3, 7},
             {84, 3, 1},
             {90, 2, 3}},
            guard);
}
inline Word store_global(unsigned a, unsigned s, std::uint64_t guard = kAlways) {
  return op(0x986,
            {{24, 8, a},
             {32, 8, s},
             {64, 8, 4},
             {72, 1, 1},
             {73, 3, 4},
             {76, 1, 1},
             {84, 3, 1},
             {90, 2, 3}},
            guard);
}
inline Word set_predicate(unsigned p, unsigned a, unsigned b) {  // a < b, signed
  return op(0x20c, {{24, 8, a},
                    {32, 8, b},
                    {68, 3, 7},
                    {73, 1, 1},
                    {76, 3, 1},
                    {81, 3, p},
                    {84, 3, 7},
                    {87, 3, 7}});
}
inline Word add_low(unsigned d, unsigned p, unsigned a,
                    std::uint32_t imm) {  // IADD3 d, p, a, imm, RZ
  return op(0x810, {{16, 8, d},
                    {24, 8, a},
                    {32, 32, imm},
                    {64, 8, 255},
                    {77, 4, 15},
                    {81, 3, p},
                    {84, 3, 7},
                    {87, 4, 15}});
}
inline Word add_high(unsigned d, unsigned p, unsigned a, std::uint32_t imm) {  // IADD3.X
  return op(0x810, {{16, 8, d},
                    {24, 8, a},
                    {32, 32, imm},
                    {64, 8, 255},
                    {74, 1, 1},
                    {77, 4, 15},
                    {81, 3, 7},
                    {84, 3, 7},
                    {87, 3, p}});
}

}  // namespace gpurecover::image::sass::assembler
