// SPDX-License-Identifier: Apache-2.0
// Conversions between floating-point formats, by their bits.
//
// Everything here has internal linkage and is always inlined: units compiled for different
// instruction sets include it.
#pragma once

#include <cstdint>

#define GPURECOVER_INLINE inline __attribute__((always_inline))
#define GPURECOVER_LOCAL [[maybe_unused]] static inline __attribute__((always_inline))

namespace gpurecover::softgpu::interp {

// Rounding in the low bits of a mode: 0 nearest even, 1 to zero, 2 down, 3 up.
inline constexpr uint32_t kRoundMask = 3;

template <class To, class From>
GPURECOVER_LOCAL To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Rounds to a format with `kMant` stored bits of mantissa, least normal exponent kEmin and exponent
// code kTop for infinities.
template <int kMant, int kEmin, uint32_t kTop>
GPURECOVER_LOCAL uint32_t RoundTo(double x, uint32_t rounding) {
  const uint64_t bits = Bits<uint64_t>(x);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63);
  const int code = static_cast<int>(bits >> 52) & 0x7FF;
  const uint64_t fraction = bits & ((1ull << 52) - 1);
  if (code == 0x7FF) {
    if (fraction)
      return (kTop << kMant) | ((1u << kMant) - 1);
    return (kTop << kMant) | (sign ? kTop + 1 : 0) << kMant;
  }
  const uint32_t sign_bit = sign ? (kTop + 1) << kMant : 0;
  const uint64_t significand = code ? fraction | (1ull << 52) : fraction;
  if (!significand)
    return sign_bit;
  const int exponent = (code ? code : 1) - 1023;
  const int scale = exponent < kEmin ? kEmin : exponent;
  int shift = scale - kMant - (exponent - 52);
  if (shift > 60)
    shift = 60;
  const uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((1ull << shift) - 1);
  const uint64_t half = 1ull << (shift - 1);
  bool up = false;
  switch (rounding & kRoundMask) {
    case 0:
      up = rest > half || (rest == half && (kept & 1));
      break;
    case 1:
      break;
    case 2:
      up = sign && rest;
      break;
    default:
      up = !sign && rest;
  }
  uint64_t encoded = (static_cast<uint64_t>(scale - kEmin) << kMant) + kept + up;
  const uint64_t infinity = static_cast<uint64_t>(kTop) << kMant;
  if (encoded >= infinity) {
    const bool to_infinity = (rounding & kRoundMask) == 0 ||
                             ((rounding & kRoundMask) == 2 && sign) ||
                             ((rounding & kRoundMask) == 3 && !sign);
    encoded = to_infinity ? infinity : infinity - 1;
  }
  return static_cast<uint32_t>(encoded) | sign_bit;
}

GPURECOVER_LOCAL float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t body = h & 0x7FFFu;
  uint32_t bits;
  if (body >= 0x7C00)
    bits = 0x7F800000u | (body << 13);
  else if (body >= 0x0400)
    bits = (body << 13) + (112u << 23);
  else
    bits = Bits<uint32_t>(static_cast<float>(static_cast<int>(body)) * 0x1p-24f);
  return Bits<float>(bits | sign);
}
GPURECOVER_LOCAL uint16_t DoubleToHalf(double x, uint32_t rounding) {
  return static_cast<uint16_t>(RoundTo<10, -14, 31>(x, rounding));
}
GPURECOVER_LOCAL uint16_t DoubleToBf(double x, uint32_t rounding) {
  return static_cast<uint16_t>(RoundTo<7, -126, 255>(x, rounding));
}
GPURECOVER_LOCAL float FlushF32(float x) {
  const uint32_t bits = Bits<uint32_t>(x);
  return Bits<float>((bits & 0x7F800000u) ? bits : bits & 0x80000000u);
}

}  // namespace gpurecover::softgpu::interp
