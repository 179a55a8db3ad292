// SPDX-License-Identifier: Apache-2.0
//
// One machine instruction, 128 bits. Internal to image/sass/.
#pragma once

#include <cstdint>

namespace gpurecover::image::sass {

struct Word {
  std::uint64_t low = 0, high = 0;

  // Bits [first, first + count), count at most 64.
  constexpr std::uint64_t bits(unsigned first, unsigned count) const {
    std::uint64_t v = 0;
    if (first >= 64) {
      v = high >> (first - 64);
    } else if (first == 0) {
      v = low;
    } else {
      v = (low >> first) | (high << (64 - first));
    }
    return count >= 64 ? v : v & ((std::uint64_t{1} << count) - 1);
  }
  constexpr std::int64_t signed_bits(unsigned first, unsigned count) const {
    return static_cast<std::int64_t>(bits(first, count) << (64 - count)) >> (64 - count);
  }
  constexpr bool bit(unsigned n) const { return bits(n, 1) != 0; }
  constexpr std::uint32_t opcode() const { return static_cast<std::uint32_t>(bits(0, 12)); }
};

}  // namespace gpurecover::image::sass
