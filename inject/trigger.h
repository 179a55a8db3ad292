// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "inject/plan.h"

namespace gpurecover::inject {

// Decides at which matching launches a fault fires. Safe to call from any thread, without a lock;
// the same sequence of calls gives the same answers, since `--prob` hashes the seed with the number
// of the match instead of drawing from shared state.
class Trigger {
 public:
  explicit Trigger(const Fault& fault) : fault_(fault) {}

  // To be called once for each launch that matches the fault's kernel pattern. The number of this
  // match (from 1) if the fault fires at it, else 0.
  std::uint64_t on_match();

  // The fault that on_match announced could not be made: the next match that wants to may fire.
  void take_back() { fired_.fetch_sub(1, std::memory_order_relaxed); }

  // Whether further matches can still fire: lets the agent skip the pattern test for good.
  bool exhausted() const;

  std::uint64_t matched() const { return matched_.load(std::memory_order_relaxed); }
  std::uint64_t fired() const { return fired_.load(std::memory_order_relaxed); }

 private:
  bool wants(std::uint64_t match) const;
  const Fault fault_;
  std::atomic<std::uint64_t> matched_{0};
  std::atomic<std::uint64_t> fired_{0};
};

// A well-mixed function of two numbers; the source of all our seeded choices (splitmix64's
// finalizer, public domain, S. Vigna).
std::uint64_t mix(std::uint64_t seed, std::uint64_t index);

}  // namespace gpurecover::inject
