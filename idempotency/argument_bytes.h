// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "idempotency/access_summary.h"
#include "idempotency/memory_map.h"

namespace gpurecover::idempotency {

// Bytes [begin, end) of a kernel's parameter block.
struct ArgumentBytes {
  std::uint32_t begin = 0, end = 0;
  // Of the 8 bytes at each fourth byte from `begin` on it matters only what live memory they point
  // to, and whether they are 0: an array of pointers that is indexed at run time.
  bool pointers = false;
  bool operator==(const ArgumentBytes&) const = default;
};

// The bytes of the parameter block that a verdict by this summary can depend on, inside the block;
// those with `pointers` and the others are each sorted and merged. Launches that differ in the
// other bytes only have the same verdict. Programs pass structs by value with padding and unused
// parts that nobody has written, so such launches are common. Thread-safe.
std::vector<ArgumentBytes> argument_bytes(const KernelSummary& summary);

// What matters of a parameter block, put together in `out`: launches of one kernel for which this
// is equal have the same verdict, as long as the map's generation, read before this is called, and
// the dimensions are the same. `pieces` lie inside the block. Thread-safe.
void put_together(std::span<const ArgumentBytes> pieces, std::span<const std::byte> args,
                  const MemoryMap& map, std::vector<std::byte>& out);

}  // namespace gpurecover::idempotency
