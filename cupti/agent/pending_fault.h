// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "idempotency/verdict.h"

namespace gpurecover::agent {

struct Kernel;

// An injected fault that the app has not met yet: the device makes it for real (`--how fault`) or
// every later call is made to report it (`--how latch`). Whoever meets the next sticky error of
// this code knows by it that the error is this fault, whose cause is known.
struct PendingFault {
  std::int32_t code = 0;
  // The token of DESIGN section 5 is withheld: decide as if the fault were real.
  bool strict = false;
  Kernel* kernel = nullptr;      // whose launch failed; never null
  std::uint64_t launch = 0;      // its number, as FaultRecord::launch
  CUstream stream = nullptr;     // LaunchCall::explicit_stream
  bool one_launch = false;       // of a single kernel, not of a graph
  std::string repeat;            // the options that repeat it
  std::uint32_t spec = 0;        // which fault of the plan
  std::uint64_t noise_seed = 0;  // of the damage: noise for a check must not equal it
  idempotency::Verdict verdict;  // of the launch, by its arguments and the memory map of then
};

// The faults on their way, in the order of their making. Thread-safe.
class PendingFaults {
 public:
  void add(PendingFault fault) {
    const std::lock_guard lock(mutex_);
    faults_.push_back(std::move(fault));
  }

  // Takes the oldest fault of this code: the error is told once, to the first who meets it.
  std::optional<PendingFault> take(std::int32_t code) {
    const std::lock_guard lock(mutex_);
    for (auto at = faults_.begin(); at != faults_.end(); ++at) {
      if (at->code == code) {
        std::optional<PendingFault> found(std::move(*at));
        faults_.erase(at);
        return found;
      }
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::vector<PendingFault> faults_;
};

}  // namespace gpurecover::agent
