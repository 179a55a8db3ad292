// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gpurecover::recovery {

// Where memory lies inside one range of addresses: a sub-allocator that knows addresses only and
// makes no system call and no CUDA call. The caller makes memory ("chunks") where the arena says
// and hands it in; the arena cuts small allocations out of shared chunks and gives each large one a
// chunk of its own. Not thread-safe. Nothing throws but for want of memory (std::bad_alloc).
//
// Between two allocations of a shared chunk lies a gap of at least kGap bytes; after each chunk, a
// hole of `hole` bytes in which nothing is ever made, so that an access that far out of bounds
// faults as it does without an arena.
class Arena {
 public:
  static constexpr std::uint64_t kAlignment = 512;  // what cuMemAlloc gives (an H200, driver 580)
  static constexpr std::uint64_t kGap = 512;
  static constexpr std::uint64_t kLarge = 1 << 20;  // from here on an allocation has its own chunk

  struct Options {
    std::uint64_t base = 0x5500'0000'0000;
    std::uint64_t size = std::uint64_t{1} << 38;
    std::uint64_t granularity = 2 << 20;      // chunks begin and end at multiples of it
    std::uint64_t hole = 2 << 20;             // a multiple of granularity
    std::uint64_t shared_chunk = 2 << 20;     // the first one of an owner; later ones are larger,
    std::uint64_t largest_shared = 32 << 20;  // up to this
    std::uint64_t cache = 256 << 20;          // bytes of empty chunks kept for each place
  };

  struct Chunk {
    std::uint64_t address = 0;
    std::uint64_t size = 0;    // without its hole
    int place = 0;             // the device, or whatever chunks may not be moved between
    std::uint64_t handle = 0;  // the caller's
    bool operator==(const Chunk&) const = default;
  };

  struct Block {
    std::uint64_t address = 0;
    std::uint64_t size = 0;   // as asked for
    std::uint64_t room = 0;   // bytes that it occupies, without the gap
    std::uint64_t chunk = 0;  // address of its chunk
    int place = 0;
    std::uint64_t owner = 0;
    // As idempotency::Allocation wants them: how far a pointer may stray and still be taken for one
    // of this block.
    std::uint64_t gap_before = 0, gap_after = 0;
  };

  explicit Arena(const Options& options);

  // Cuts a block of `size` bytes (at least 1) out of what is there; nullopt if a new chunk is
  // needed. Blocks of different owners share no chunk.
  std::optional<Block> allocate(std::uint64_t size, int place, std::uint64_t owner);
  // Where the caller may make a chunk for such a block, `handle` still 0. The addresses are taken
  // until `add` and the chunk's end, or `give_back`. nullopt: no addresses left.
  std::optional<Chunk> reserve(std::uint64_t size, int place, std::uint64_t owner);
  // The chunk was made. The block that it was made for is cut out of it at once, so that no other
  // thread takes the room.
  Block add(const Chunk& chunk, std::uint64_t size, std::uint64_t owner);
  // A chunk that was not made, or has been unmade: its addresses may be used again.
  void give_back(const Chunk& chunk);

  // Frees the block that begins at `address`; false if there is none. Chunks that are to be unmade
  // are added to `released`; they keep their addresses until `give_back`.
  bool free(std::uint64_t address, std::vector<Chunk>& released);
  // All blocks of an owner, whose chunks go too.
  void free_owner(std::uint64_t owner, std::vector<Chunk>& released);
  // Empties the cache of a place (an out-of-memory is about to be reported).
  void drain(int place, std::vector<Chunk>& released);
  // Another size for a live block, if it has room for that; the address stays.
  bool resize(std::uint64_t address, std::uint64_t size);

  // The block that holds the byte, or null.
  const Block* find(std::uint64_t address) const;
  // The chunk of a live block.
  const Chunk& chunk_of(const Block& block) const { return chunks_.at(block.chunk).chunk; }
  // Whether the byte lies in a chunk, allocated or not.
  bool in_chunk(std::uint64_t address) const;
  bool in_range(std::uint64_t address) const { return address - base_ < size_; }
  // Bytes that a block of this size occupies.
  std::uint64_t room_of(std::uint64_t size) const;

  std::vector<Chunk> chunks() const;      // cached ones included, by address
  std::uint64_t cached(int place) const;  // bytes of empty chunks kept
  std::uint64_t held(int place) const;    // bytes of all chunks
  const std::map<std::uint64_t, Block>& blocks() const { return blocks_; }
  std::uint64_t base() const { return base_; }
  std::uint64_t size() const { return size_; }

  // For tests: whether all of what this class promises holds.
  bool consistent() const;

 private:
  using Pool = std::pair<int, std::uint64_t>;  // place, owner
  struct ChunkState {
    Chunk chunk;
    bool shared = false;
    bool empty = false;  // in the cache
    std::uint64_t owner = 0;
    std::map<std::uint64_t, std::uint64_t> holes;  // shared: free address -> bytes
  };
  Block cut(ChunkState& state, std::uint64_t hole, std::uint64_t size);
  Block take_whole(ChunkState& state, std::uint64_t size, std::uint64_t owner);
  void share(ChunkState& state, std::uint64_t owner);
  void add_hole(ChunkState& state, std::uint64_t address, std::uint64_t size);
  void remove_hole(ChunkState& state, std::uint64_t address);
  void put_aside(ChunkState& state, std::vector<Chunk>& released);
  void uncache(ChunkState& state);
  std::uint64_t chunk_size(std::uint64_t size, int place, std::uint64_t owner) const;
  void add_free(std::uint64_t address, std::uint64_t size);
  void remove_free(std::map<std::uint64_t, std::uint64_t>::iterator at);

  const std::uint64_t base_, size_;
  const Options options_;
  std::map<std::uint64_t, ChunkState> chunks_;
  std::map<std::uint64_t, Block> blocks_;
  std::map<Pool, std::set<std::pair<std::uint64_t, std::uint64_t>>> holes_;  // size, address
  std::map<Pool, std::uint64_t> shared_bytes_;
  std::map<int, std::set<std::pair<std::uint64_t, std::uint64_t>>> empty_;  // size, address
  std::map<int, std::uint64_t> cached_, held_;
  // Addresses in no chunk and no hole after one.
  std::map<std::uint64_t, std::uint64_t> free_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_by_size_;
};

}  // namespace gpurecover::recovery
