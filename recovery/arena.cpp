// SPDX-License-Identifier: Apache-2.0
#include "recovery/arena.h"

#include <algorithm>

namespace gpurecover::recovery {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 62;  // no size above it is ever served

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Arena::Arena(const Options& options) : base_(options.base), size_(options.size), options_(options) {
  add_free(base_, size_);
}

std::uint64_t Arena::room_of(std::uint64_t size) const {
  size = std::min(std::max<std::uint64_t>(size, 1), kMost);
  return size < kLarge ? round_up(size, kAlignment) : round_up(size, options_.granularity);
}

std::optional<Arena::Block> Arena::allocate(std::uint64_t size, int place, std::uint64_t owner) {
  const std::uint64_t room = room_of(size);
  const auto empty = empty_.find(place);
  if (size < kLarge) {
    const Pool pool{place, owner};
    if (const auto holes = holes_.find(pool); holes != holes_.end()) {
      // Best fit.
      const auto hole = holes->second.lower_bound({room + kGap, 0});
      if (hole != holes->second.end()) {
        ChunkState& state = std::prev(chunks_.upper_bound(hole->second))->second;
        return cut(state, hole->second, size);
      }
    }
    if (empty != empty_.end()) {
      const auto at = empty->second.lower_bound({options_.shared_chunk, 0});
      if (at != empty->second.end() && at->first <= options_.largest_shared) {
        ChunkState& state = chunks_.find(at->second)->second;
        uncache(state);
        share(state, owner);
        return cut(state, state.chunk.address, size);
      }
    }
    return std::nullopt;
  }
  if (empty == empty_.end()) {
    return std::nullopt;
  }
  // A kept chunk that is a little larger serves too; its rest counts as gap.
  const auto at = empty->second.lower_bound({room, 0});
  if (at == empty->second.end() || at->first - room > room / 8) {
    return std::nullopt;
  }
  ChunkState& state = chunks_.find(at->second)->second;
  uncache(state);
  return take_whole(state, size, owner);
}

std::uint64_t Arena::chunk_size(std::uint64_t size, int place, std::uint64_t owner) const {
  if (size >= kLarge) {
    return room_of(size);
  }
  // Half of what the owner has, so that neither many chunks are made nor much is held in vain.
  const auto held = shared_bytes_.find({place, owner});
  const std::uint64_t half = held == shared_bytes_.end() ? 0 : held->second / 2;
  const std::uint64_t wanted = std::clamp(half, options_.shared_chunk, options_.largest_shared);
  return round_up(std::max(wanted, room_of(size) + kGap), options_.granularity);
}

std::optional<Arena::Chunk> Arena::reserve(std::uint64_t size, int place, std::uint64_t owner) {
  Chunk chunk;
  chunk.place = place;
  chunk.size = chunk_size(size, place, owner);
  const std::uint64_t needed = chunk.size + options_.hole;
  const auto best = free_by_size_.lower_bound({needed, 0});
  if (best == free_by_size_.end()) {
    return std::nullopt;
  }
  const auto range = free_.find(best->second);
  chunk.address = range->first;
  const std::uint64_t left = range->second - needed;
  remove_free(range);
  if (left != 0) {
    add_free(chunk.address + needed, left);
  }
  return chunk;
}

Arena::Block Arena::add(const Chunk& chunk, std::uint64_t size, std::uint64_t owner) {
  ChunkState& state = chunks_[chunk.address];
  state.chunk = chunk;
  held_[chunk.place] += chunk.size;
  if (size >= kLarge) {
    return take_whole(state, size, owner);
  }
  share(state, owner);
  return cut(state, chunk.address, size);
}

void Arena::give_back(const Chunk& chunk) {
  std::uint64_t address = chunk.address;
  std::uint64_t size = chunk.size + options_.hole;
  const auto after = free_.lower_bound(address);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      address = before->first;
      size += before->second;
      remove_free(before);
    }
  }
  if (after != free_.end() && address + size == after->first) {
    size += after->second;
    remove_free(after);
  }
  add_free(address, size);
}

bool Arena::free(std::uint64_t address, std::vector<Chunk>& released) {
  const auto at = blocks_.find(address);
  if (at == blocks_.end()) {
    return false;
  }
  const Block block = at->second;
  blocks_.erase(at);
  ChunkState& state = chunks_.find(block.chunk)->second;
  if (state.shared) {
    add_hole(state, block.address, block.room + kGap);
    if (state.holes.size() != 1 || state.holes.begin()->second != state.chunk.size) {
      return true;
    }
    remove_hole(state, state.chunk.address);
    shared_bytes_[{state.chunk.place, state.owner}] -= state.chunk.size;
    state.shared = false;
  }
  put_aside(state, released);
  return true;
}

void Arena::free_owner(std::uint64_t owner, std::vector<Chunk>& released) {
  std::vector<std::uint64_t> addresses;
  for (const auto& [address, block] : blocks_) {
    if (block.owner == owner) {
      addresses.push_back(address);
    }
  }
  for (const std::uint64_t address : addresses) {
    free(address, released);
  }
  std::erase_if(holes_, [&](const auto& item) { return item.first.second == owner; });
  std::erase_if(shared_bytes_, [&](const auto& item) { return item.first.second == owner; });
}

void Arena::drain(int place, std::vector<Chunk>& released) {
  const auto empty = empty_.find(place);
  if (empty == empty_.end()) {
    return;
  }
  for (const auto& [size, address] : empty->second) {
    released.push_back(chunks_.find(address)->second.chunk);
    chunks_.erase(address);
    held_[place] -= size;
  }
  empty_.erase(empty);
  cached_[place] = 0;
}

bool Arena::resize(std::uint64_t address, std::uint64_t size) {
  const auto at = blocks_.find(address);
  if (at == blocks_.end() || room_of(size) > at->second.room ||
      (size < kLarge) != (at->second.size < kLarge)) {
    return false;
  }
  Block& block = at->second;
  block.gap_after += block.size;
  block.gap_after -= std::max<std::uint64_t>(size, 1);
  block.size = std::max<std::uint64_t>(size, 1);
  return true;
}

const Arena::Block* Arena::find(std::uint64_t address) const {
  auto at = blocks_.upper_bound(address);
  if (at == blocks_.begin()) {
    return nullptr;
  }
  const Block& block = std::prev(at)->second;
  return address - block.address < block.size ? &block : nullptr;
}

bool Arena::in_chunk(std::uint64_t address) const {
  auto at = chunks_.upper_bound(address);
  return at != chunks_.begin() && address - std::prev(at)->first < std::prev(at)->second.chunk.size;
}

std::vector<Arena::Chunk> Arena::chunks() const {
  std::vector<Chunk> all;
  all.reserve(chunks_.size());
  for (const auto& [address, state] : chunks_) {
    all.push_back(state.chunk);
  }
  return all;
}

std::uint64_t Arena::cached(int place) const {
  const auto at = cached_.find(place);
  return at == cached_.end() ? 0 : at->second;
}

std::uint64_t Arena::held(int place) const {
  const auto at = held_.find(place);
  return at == held_.end() ? 0 : at->second;
}

Arena::Block Arena::cut(ChunkState& state, std::uint64_t hole, std::uint64_t size) {
  Block block;
  block.address = hole;
  block.size = std::max<std::uint64_t>(size, 1);
  block.room = room_of(size);
  block.chunk = state.chunk.address;
  block.place = state.chunk.place;
  block.owner = state.owner;
  // What precedes is the gap after another block, rounding included.
  block.gap_before = kGap + kAlignment;
  block.gap_after = block.room - block.size + kGap;
  const std::uint64_t bytes = state.holes.at(hole);
  blocks_.emplace(block.address, block);
  remove_hole(state, hole);
  if (bytes > block.room + kGap) {
    add_hole(state, hole + block.room + kGap, bytes - block.room - kGap);
  }
  return block;
}

Arena::Block Arena::take_whole(ChunkState& state, std::uint64_t size, std::uint64_t owner) {
  Block block;
  block.address = state.chunk.address;
  block.size = size;
  block.room = state.chunk.size;
  block.chunk = state.chunk.address;
  block.place = state.chunk.place;
  block.owner = owner;
  block.gap_before = kGap + kAlignment;
  block.gap_after = block.room - block.size + kGap;
  state.owner = owner;
  blocks_.emplace(block.address, block);
  return block;
}

void Arena::share(ChunkState& state, std::uint64_t owner) {
  state.shared = true;
  state.owner = owner;
  shared_bytes_[{state.chunk.place, owner}] += state.chunk.size;
  add_hole(state, state.chunk.address, state.chunk.size);
}

void Arena::add_hole(ChunkState& state, std::uint64_t address, std::uint64_t size) {
  const auto after = state.holes.lower_bound(address);
  if (after != state.holes.end() && address + size == after->first) {
    size += after->second;
    remove_hole(state, after->first);
  }
  const auto next = state.holes.lower_bound(address);
  if (next != state.holes.begin()) {
    const auto [begin, bytes] = *std::prev(next);
    if (begin + bytes == address) {
      remove_hole(state, begin);
      address = begin;
      size += bytes;
    }
  }
  state.holes.emplace(address, size);
  holes_[{state.chunk.place, state.owner}].emplace(size, address);
}

void Arena::remove_hole(ChunkState& state, std::uint64_t address) {
  const auto at = state.holes.find(address);
  holes_[{state.chunk.place, state.owner}].erase({at->second, address});
  state.holes.erase(at);
}

void Arena::put_aside(ChunkState& state, std::vector<Chunk>& released) {
  const Chunk chunk = state.chunk;
  std::uint64_t& kept = cached_[chunk.place];
  if (chunk.size > options_.cache || kept > options_.cache - chunk.size) {
    held_[chunk.place] -= chunk.size;
    chunks_.erase(chunk.address);
    released.push_back(chunk);
    return;
  }
  kept += chunk.size;
  state.empty = true;
  state.owner = 0;
  empty_[chunk.place].emplace(chunk.size, chunk.address);
}

void Arena::uncache(ChunkState& state) {
  state.empty = false;
  cached_[state.chunk.place] -= state.chunk.size;
  empty_[state.chunk.place].erase({state.chunk.size, state.chunk.address});
}

void Arena::add_free(std::uint64_t address, std::uint64_t size) {
  free_.emplace(address, size);
  free_by_size_.emplace(size, address);
}

void Arena::remove_free(std::map<std::uint64_t, std::uint64_t>::iterator at) {
  free_by_size_.erase({at->second, at->first});
  free_.erase(at);
}

bool Arena::consistent() const {
  std::uint64_t end = base_;
  std::map<int, std::uint64_t> cached, held;
  std::size_t holes = 0;
  for (const auto& [address, state] : chunks_) {
    const Chunk& chunk = state.chunk;
    if (address != chunk.address || address < end || address % options_.granularity != 0 ||
        chunk.size == 0 || chunk.size % options_.granularity != 0) {
      return false;
    }
    end = address + chunk.size + options_.hole;
    held[chunk.place] += chunk.size;
    std::uint64_t at = address;  // blocks and holes cover a shared chunk without overlap
    auto block = blocks_.lower_bound(address);
    auto hole = state.holes.begin();
    if (state.shared) {
      bool after_hole = false;
      while (at < address + chunk.size) {
        if (block != blocks_.end() && block->first == at) {
          if (block->second.owner != state.owner || block->second.chunk != address ||
              block->second.room < block->second.size) {
            return false;
          }
          at += block->second.room + kGap;
          ++block;
          after_hole = false;
        } else if (hole != state.holes.end() && hole->first == at && !after_hole) {
          const auto pool = holes_.find({chunk.place, state.owner});
          if (pool == holes_.end() || !pool->second.contains({hole->second, at})) {
            return false;
          }
          at += hole->second;
          ++hole;
          ++holes;
          after_hole = true;  // neighbouring holes are one
        } else {
          return false;
        }
      }
      if (at != address + chunk.size || hole != state.holes.end()) {
        return false;
      }
    } else if (state.empty) {
      cached[chunk.place] += chunk.size;
      const auto empty = empty_.find(chunk.place);
      if (empty == empty_.end() || !empty->second.contains({chunk.size, address}) ||
          (block != blocks_.end() && block->first < address + chunk.size)) {
        return false;
      }
    } else if (block == blocks_.end() || block->first != address ||
               block->second.size > chunk.size || block->second.room != chunk.size) {
      return false;
    }
  }
  if (end > base_ + size_) {
    return false;
  }
  for (const auto& [place, bytes] : held) {
    if (bytes != this->held(place) || cached[place] != this->cached(place) ||
        cached[place] > options_.cache) {
      return false;
    }
  }
  std::size_t indexed = 0;
  for (const auto& [pool, set] : holes_) {
    indexed += set.size();
  }
  std::uint64_t previous = 0;
  for (const auto& [address, size] : free_) {
    if (size == 0 || (previous != 0 && address <= previous) ||
        !free_by_size_.contains({size, address}) || in_chunk(address)) {
      return false;
    }
    previous = address + size;
  }
  return indexed == holes && free_.size() == free_by_size_.size();
}

}  // namespace gpurecover::recovery
