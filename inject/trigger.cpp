// SPDX-License-Identifier: Apache-2.0
#include "inject/trigger.h"

#include <cmath>

namespace gpurecover::inject {

std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

bool Trigger::wants(std::uint64_t match) const {
  if (fault_.nth != 0) {
    return match >= fault_.nth;
  }
  if (fault_.every != 0) {
    return match % fault_.every == 0;
  }
  // The top 53 bits make a double in [0, 1) without rounding.
  return std::ldexp(static_cast<double>(mix(fault_.seed, match) >> 11), -53) < fault_.probability;
}

std::uint64_t Trigger::on_match() {
  const std::uint64_t match = matched_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!wants(match)) {
    return 0;
  }
  std::uint64_t fired = fired_.load(std::memory_order_relaxed);
  do {
    if (fault_.times != 0 && fired >= fault_.times) {
      return 0;
    }
  } while (!fired_.compare_exchange_weak(fired, fired + 1, std::memory_order_relaxed));
  return match;
}

bool Trigger::exhausted() const {
  return fault_.times != 0 && fired_.load(std::memory_order_relaxed) >= fault_.times;
}

}  // namespace gpurecover::inject
