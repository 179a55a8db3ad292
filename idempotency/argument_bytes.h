// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "idempotency/access_summary.h"

namespace gpurecover::idempotency {

// Bytes [begin, end) of a kernel's parameter block.
struct ArgumentBytes {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const ArgumentBytes&) const = default;
};

// The bytes of the parameter block that a verdict by this summary can depend on: sorted, merged,
// inside the block. Launches that differ in the other bytes only have the same verdict. Programs
// pass structs by value with padding and unused parts that nobody has written, so such launches are
// common. Thread-safe.
std::vector<ArgumentBytes> argument_bytes(const KernelSummary& summary);

}  // namespace gpurecover::idempotency
