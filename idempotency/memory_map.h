// SPDX-License-Identifier: Apache-2.0
//
// The live memory of a process as its driver calls describe it: an interval map from device address
// to allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <vector>

namespace gpurecover::idempotency {

enum class AllocationKind : std::uint8_t {
  kDevice,
  kPitched,
  kManaged,
  kPinnedHost,
  kHostRegistered,
  kVirtual,
  kStreamOrdered,
  kArray,
  kIpcImport,
  kModuleGlobal,
  kExternal,
};
std::string_view name_of(AllocationKind kind);

struct Allocation {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  // bytes, at least 1 (0 is stored as 1)
  AllocationKind kind = AllocationKind::kDevice;
  bool host_visible = false;  // the host may read or write it without a driver call
  std::uint64_t owner = 0;    // context, or whatever the caller keeps apart
  // Unusable bytes that follow and precede this allocation (sub-allocators): a pointer into a gap
  // may be an out-of-range pointer of either neighbour, and counts as both.
  std::uint64_t gap_after = 0, gap_before = 0;

  std::uint64_t end() const { return address + size; }
  bool operator==(const Allocation&) const = default;
};

// What an address lies in: none, one allocation, or two when it is in a gap between neighbours.
struct FindResult {
  Allocation found[2];
  std::uint32_t count = 0;
  explicit operator bool() const { return count != 0; }
  std::span<const Allocation> all() const { return {found, count}; }
};

// Thread-safe: any number of readers, one writer at a time. Nothing throws except insert and
// snapshot for want of memory (std::bad_alloc); insert then leaves the map as it was.
class MemoryMap {
 public:
  MemoryMap() = default;
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  // Adds an allocation. Older ones that overlap it are removed: the driver does not hand out live
  // memory twice, so they are stale. An address range that would wrap around is cut at 2^64 - 1.
  void insert(const Allocation& allocation);
  // Removes the allocation that begins at `address`; nullopt if there is none.
  std::optional<Allocation> erase(std::uint64_t address);
  // Removes every allocation that overlaps [address, address + size); returns how many.
  std::size_t erase_range(std::uint64_t address, std::uint64_t size);
  // Removes all allocations of one owner (a destroyed context); returns how many.
  std::size_t erase_owner(std::uint64_t owner);

  // What `address` lies in; one past the end of an allocation is outside it (unless in its gap).
  FindResult find(std::uint64_t address) const;

  std::vector<Allocation> snapshot() const;  // sorted by address
  std::size_t size() const;

  // Grows with every change, never repeats; readable without a lock. A verdict that was computed
  // wholly between two reads of the same generation is valid for that generation.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  // Whether `find` may find something at the address: false is for sure, as of the latest
  // generation that this thread has read before. Without a lock; a few instructions.
  bool may_find(std::uint64_t address) const {
    return address >= lowest_.load(std::memory_order_relaxed) &&
           address <= highest_.load(std::memory_order_relaxed);
  }

 private:
  friend class MemoryReader;
  FindResult find_locked(std::uint64_t address) const;
  std::size_t erase_overlaps_locked(std::uint64_t begin, std::uint64_t end);

  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, Allocation> allocations_;
  std::atomic<std::uint64_t> generation_{1};
  // All that was ever in an allocation or its gaps lies between them; they only move apart.
  std::atomic<std::uint64_t> lowest_{~std::uint64_t{0}}, highest_{0};
};

// Holds the read lock, so that several look-ups see one state. Do not call the map's own functions
// while it lives.
class MemoryReader {
 public:
  explicit MemoryReader(const MemoryMap& map) : map_(map), lock_(map.mutex_) {}
  FindResult find(std::uint64_t address) const { return map_.find_locked(address); }

 private:
  const MemoryMap& map_;
  std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace gpurecover::idempotency
