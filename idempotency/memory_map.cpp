// SPDX-License-Identifier: Apache-2.0
#include "idempotency/memory_map.h"

#include <algorithm>
#include <limits>
#include <mutex>

namespace gpurecover::idempotency {
namespace {

std::uint64_t saturating_end(std::uint64_t address, std::uint64_t size) {
  const std::uint64_t left = std::numeric_limits<std::uint64_t>::max() - address;
  return address + std::min(size, left);
}

}  // namespace

std::string_view name_of(AllocationKind kind) {
  switch (kind) {
    case AllocationKind::kDevice:
      return "device";
    case AllocationKind::kPitched:
      return "pitched";
    case AllocationKind::kManaged:
      return "managed";
    case AllocationKind::kPinnedHost:
      return "pinned-host";
    case AllocationKind::kHostRegistered:
      return "host-registered";
    case AllocationKind::kVirtual:
      return "virtual";
    case AllocationKind::kStreamOrdered:
      return "stream-ordered";
    case AllocationKind::kArray:
      return "array";
    case AllocationKind::kIpcImport:
      return "ipc-import";
    case AllocationKind::kModuleGlobal:
      return "module-global";
    case AllocationKind::kExternal:
      return "external";
  }
  return "?";
}

std::size_t MemoryMap::erase_overlaps_locked(std::uint64_t begin, std::uint64_t end) {
  auto it = allocations_.lower_bound(begin);
  if (it != allocations_.begin()) {
    const auto before = std::prev(it);
    if (before->second.end() > begin) {
      it = before;
    }
  }
  std::size_t n = 0;
  while (it != allocations_.end() && it->first < end) {
    it = allocations_.erase(it);
    ++n;
  }
  return n;
}

void MemoryMap::insert(const Allocation& allocation) {
  Allocation a = allocation;
  a.size = std::max<std::uint64_t>(a.size, 1);
  a.size = saturating_end(a.address, a.size) - a.address;
  if (a.size == 0) {
    return;  // the very last byte of the address space is no allocation
  }
  std::map<std::uint64_t, Allocation> one;
  one.emplace(a.address, a);  // what can fail, before anything changes
  const std::unique_lock lock(mutex_);
  erase_overlaps_locked(a.address, a.end());
  allocations_.insert(one.extract(one.begin()));
  // Before the generation says so: whoever has read that finds these at least.
  const std::uint64_t low = a.address - std::min(a.gap_before, a.address);
  const std::uint64_t high = saturating_end(a.end(), a.gap_after);
  lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), low), std::memory_order_relaxed);
  highest_.store(std::max(highest_.load(std::memory_order_relaxed), high),
                 std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

std::optional<Allocation> MemoryMap::erase(std::uint64_t address) {
  const std::unique_lock lock(mutex_);
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) {
    return std::nullopt;
  }
  const Allocation a = it->second;
  allocations_.erase(it);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  return a;
}

std::size_t MemoryMap::erase_range(std::uint64_t address, std::uint64_t size) {
  const std::unique_lock lock(mutex_);
  const std::size_t n =
      size == 0 ? 0 : erase_overlaps_locked(address, saturating_end(address, size));
  if (n != 0) {
    generation_.fetch_add(1, std::memory_order_acq_rel);
  }
  return n;
}

std::size_t MemoryMap::erase_owner(std::uint64_t owner) {
  const std::unique_lock lock(mutex_);
  const std::size_t n =
      std::erase_if(allocations_, [owner](const auto& item) { return item.second.owner == owner; });
  if (n != 0) {
    generation_.fetch_add(1, std::memory_order_acq_rel);
  }
  return n;
}

FindResult MemoryMap::find_locked(std::uint64_t address) const {
  FindResult r;
  const auto after = allocations_.upper_bound(address);
  if (after != allocations_.begin()) {
    const Allocation& a = std::prev(after)->second;
    if (address - a.address < a.size) {
      r.found[r.count++] = a;
      return r;
    }
    if (address - a.end() < a.gap_after) {
      r.found[r.count++] = a;
    }
  }
  if (after != allocations_.end()) {
    const Allocation& b = after->second;
    if (b.address - address <= b.gap_before) {
      r.found[r.count++] = b;
    }
  }
  return r;
}

FindResult MemoryMap::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  return find_locked(address);
}

std::vector<Allocation> MemoryMap::snapshot() const {
  const std::shared_lock lock(mutex_);
  std::vector<Allocation> all;
  all.reserve(allocations_.size());
  for (const auto& [address, a] : allocations_) {
    all.push_back(a);
  }
  return all;
}

std::size_t MemoryMap::size() const {
  const std::shared_lock lock(mutex_);
  return allocations_.size();
}

}  // namespace gpurecover::idempotency
