// SPDX-License-Identifier: Apache-2.0
//
// May a launch be executed again after it ran in part? Yes, if no byte that it may write is a byte
// whose earlier value it may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "idempotency/access_summary.h"
#include "idempotency/memory_map.h"

namespace gpurecover::idempotency {

struct Range {
  std::uint64_t begin = 0, end = 0;  // device addresses, end excluded
  // Every byte that may be touched there is in it by the address's own expression, without any
  // assumption about the program. Else: the allocation of a pointer, or what of it can be meant.
  bool exact = false;
  bool operator==(const Range& o) const { return begin == o.begin && end == o.end; }
};

// Where a loaded module's variables lie; the agent answers from the driver.
class SymbolRanges {
 public:
  virtual ~SymbolRanges() = default;
  // The address and size of a module variable, nullopt if it cannot be told. Must not throw. Called
  // without the map's lock, so that it may ask the driver.
  virtual std::optional<Range> find(std::string_view name) const = 0;
};

enum class VerdictKind : std::uint8_t { kIdempotent, kClobbers, kUnknown };
enum class Trust : std::uint8_t { kProved, kBounded, kDeclared, kObserved };
std::string_view name_of(VerdictKind kind);  // "idempotent", "clobbers", "unknown"
std::string_view name_of(Trust trust);       // "proved", "bounded", "declared", "observed"

// What deciding works with. A verdict keeps it from one launch to the next, so that it allocates
// nothing; copies go without.
class Workshop;
class WorkshopHolder {
 public:
  WorkshopHolder() = default;
  WorkshopHolder(const WorkshopHolder&) {}
  WorkshopHolder(WorkshopHolder&&) noexcept {}
  WorkshopHolder& operator=(const WorkshopHolder&) { return *this; }
  WorkshopHolder& operator=(WorkshopHolder&&) noexcept { return *this; }
  ~WorkshopHolder();
  Workshop& get();  // made at the first call; throws std::bad_alloc

 private:
  Workshop* workshop_ = nullptr;
};

struct Verdict {
  VerdictKind kind = VerdictKind::kUnknown;
  Trust trust = Trust::kBounded;
  std::string reason;  // empty for kIdempotent
  // Sorted, merged. Valid for all kinds; of kUnknown they are what is known, not all. `reads`
  // leaves out what a thread reads only after it has written it itself: `covered`.
  std::vector<Range> reads, writes, clobbered, covered;
  // Bytes that the launch, if it completes, has surely written, whatever it read before; sorted,
  // merged, inside `writes`. Not all of them are found.
  std::vector<Range> must_writes;
  // Every access of the launch, whatever its verdict, is exact and inside live allocations: it
  // cannot have caused an address fault. Trust is `proved` only then.
  bool all_in_bounds = false;
  // `reads` and `writes` hold everything that the launch may touch. Not so where a declaration says
  // no more than that it may run again.
  bool ranges_complete = false;
  bool proved_clobber = false;       // kClobbers by a read-modify-write through a known pointer
  bool writes_host_visible = false;  // some write range is memory that the host may look at
  bool writes_anything = false;      // the kernel has a write that is not through a null pointer

  WorkshopHolder workshop;

  void clear();  // keeps capacity
};

// Decides for one launch of `dimensions`. `args` is the packed parameter block (PTX offsets); bytes
// beyond its end make the verdict unknown. `out` is overwritten; reuse it, then a typical call
// allocates nothing. The map is read under one lock, so the answer belongs to one generation.
//
// Trust is `proved` if every address could be expressed and lies inside live allocations, else
// `bounded`: the assumption is that the program makes no access outside the allocation that a
// pointer points into. A summary by declaration gives `declared`.
void decide(const KernelSummary& summary, std::span<const std::byte> args,
            const LaunchDimensions& dimensions, const MemoryMap& map, const SymbolRanges& symbols,
            Verdict& out);
Verdict decide(const KernelSummary& summary, std::span<const std::byte> args,
               const LaunchDimensions& dimensions, const MemoryMap& map,
               const SymbolRanges& symbols);

// Decides with a declaration beside an analysis (nullptr: there is none). The declaration gives the
// verdict, except that a proved clobber of the analysis stands.
void decide_with_declaration(const KernelSummary* analysed, const KernelSummary& declared,
                             std::span<const std::byte> args, const LaunchDimensions& dimensions,
                             const MemoryMap& map, const SymbolRanges& symbols, Verdict& out);

// --- Declared facts (rule file, [[kernel]]) ---

struct Declaration {
  bool idempotent = false;  // then reads and writes must be empty
  // "arg0": the allocation that argument 0 points into. "arg1[0:4096]": bytes 0 to 4095 from where
  // argument 1 points. "arg2.field@16": the pointer at byte 16 of by-value argument 2. Both may be
  // combined: "arg2.field@16[0:64]".
  std::vector<std::string> reads, writes;
};

// Checks the words only, without a kernel: nullopt, or what is wrong and how it would be right.
std::optional<std::string> check_declared_range(std::string_view text);

struct ArgumentSlot {
  std::uint32_t offset = 0, size = 0;  // bytes, in the parameter block
};
// Makes the summary. `layout` is the kernel's parameters in order. Errors name the faulty word.
tl::expected<KernelSummary, std::string> declare(std::string_view kernel, const Declaration& facts,
                                                 std::span<const ArgumentSlot> layout);

}  // namespace gpurecover::idempotency
