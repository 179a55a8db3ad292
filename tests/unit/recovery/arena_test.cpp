// SPDX-License-Identifier: Apache-2.0
#include "recovery/arena.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace gpurecover::recovery {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// Makes the chunks that the arena asks for, as its user does, and keeps the account of them.
class Maker {
 public:
  explicit Maker(const Arena::Options& options = {}) : arena(options), options_(options) {}

  std::optional<Arena::Block> allocate(std::uint64_t size, int place = 0, std::uint64_t owner = 1) {
    if (auto block = arena.allocate(size, place, owner)) {
      return block;
    }
    auto chunk = arena.reserve(size, place, owner);
    if (!chunk) {
      return std::nullopt;
    }
    chunk->handle = ++handles;
    EXPECT_TRUE(made.emplace(chunk->address, *chunk).second);
    ++created;
    return arena.add(*chunk, size, owner);
  }
  bool free(std::uint64_t address) {
    std::vector<Arena::Chunk> released;
    const bool was = arena.free(address, released);
    unmake(released);
    return was;
  }
  void unmake(const std::vector<Arena::Chunk>& released) {
    for (const auto& chunk : released) {
      const auto at = made.find(chunk.address);
      ASSERT_NE(at, made.end());
      EXPECT_EQ(at->second, chunk);  // the handle comes back as it was given
      made.erase(at);
      arena.give_back(chunk);
    }
  }
  void drain(int place = 0) {
    std::vector<Arena::Chunk> released;
    arena.drain(place, released);
    unmake(released);
  }

  Arena arena;
  std::map<std::uint64_t, Arena::Chunk> made;
  std::uint64_t handles = 0;
  int created = 0;

 private:
  const Arena::Options options_;
};

TEST(Arena, SmallAllocationsShareAChunkAlignedAndApart) {
  Maker maker;
  const auto a = maker.allocate(1);
  const auto b = maker.allocate(1000);
  const auto c = maker.allocate(512);
  EXPECT_EQ(maker.made.size(), 1U);
  EXPECT_EQ(a->address, Arena::Options().base);
  for (const auto& block : {*a, *b, *c}) {
    EXPECT_EQ(block.address % Arena::kAlignment, 0U);
    EXPECT_GE(block.gap_after, Arena::kGap);
  }
  EXPECT_GE(b->address, a->address + a->size + Arena::kGap);
  EXPECT_GE(c->address, b->address + b->size + Arena::kGap);
  // Every byte of a gap is near enough to both neighbours to be taken for either's.
  EXPECT_EQ(a->address + a->size + a->gap_after, b->address);
  EXPECT_LE(b->address - b->gap_before, a->address + a->size);
}

TEST(Arena, ALargeAllocationHasAChunkOfItsOwnAndAHoleAfterIt) {
  Maker maker;
  const auto a = maker.allocate(3 * kMiB + 5);
  const auto b = maker.allocate(kMiB);
  EXPECT_EQ(maker.made.size(), 2U);
  EXPECT_EQ(maker.made.at(a->address).size, 4 * kMiB);
  EXPECT_EQ(a->address % (2 * kMiB), 0U);
  EXPECT_EQ(b->address, a->address + 6 * kMiB);
  EXPECT_FALSE(maker.arena.in_chunk(a->address + 4 * kMiB));
  EXPECT_TRUE(maker.arena.in_chunk(a->address + 4 * kMiB - 1));
}

TEST(Arena, WhatIsFreedIsUsedAgain) {
  Maker maker;
  const auto small = maker.allocate(5000);
  const auto large = maker.allocate(8 * kMiB);
  ASSERT_TRUE(maker.free(small->address));
  ASSERT_TRUE(maker.free(large->address));
  EXPECT_FALSE(maker.free(large->address));
  EXPECT_EQ(maker.arena.cached(0), 10 * kMiB);
  EXPECT_EQ(maker.allocate(8 * kMiB - 3)->address, large->address);
  EXPECT_EQ(maker.allocate(6000)->address, small->address);
  EXPECT_EQ(maker.created, 2);
  // A much smaller one does not take a large chunk away, another device's does not either.
  maker.free(large->address);
  maker.allocate(2 * kMiB);
  maker.allocate(8 * kMiB, 1);
  EXPECT_EQ(maker.created, 4);
}

TEST(Arena, FreesOnlyWhatBeginsThere) {
  Maker maker;
  const auto a = maker.allocate(5000);
  EXPECT_FALSE(maker.free(a->address + 512));
  EXPECT_FALSE(maker.free(0x1234));
  EXPECT_TRUE(maker.free(a->address));
  EXPECT_FALSE(maker.free(a->address));
}

TEST(Arena, FindsWhatHoldsAByte) {
  Maker maker;
  const auto a = maker.allocate(100);
  EXPECT_EQ(maker.arena.find(a->address)->address, a->address);
  EXPECT_EQ(maker.arena.find(a->address + 99)->address, a->address);
  EXPECT_EQ(maker.arena.find(a->address + 100), nullptr);
  EXPECT_TRUE(maker.arena.in_chunk(a->address + 100));
  EXPECT_EQ(maker.arena.find(a->address - 1), nullptr);
}

TEST(Arena, OwnersShareNoChunkAndGoAsAWhole) {
  Maker maker;
  const auto a = maker.allocate(100, 0, 1);
  const auto b = maker.allocate(100, 0, 2);
  maker.allocate(4 * kMiB, 0, 2);
  EXPECT_NE(a->chunk, b->chunk);
  std::vector<Arena::Chunk> released;
  maker.arena.free_owner(2, released);
  maker.unmake(released);
  EXPECT_EQ(maker.arena.blocks().size(), 1U);
  EXPECT_TRUE(maker.arena.consistent());
}

TEST(Arena, TheCacheHasALimitAndIsDrained) {
  Arena::Options options;
  options.cache = 8 * kMiB;
  Maker maker(options);
  const auto a = maker.allocate(6 * kMiB);
  const auto b = maker.allocate(6 * kMiB);
  maker.free(a->address);
  EXPECT_EQ(maker.made.size(), 2U);
  maker.free(b->address);
  EXPECT_EQ(maker.made.size(), 1U);
  EXPECT_EQ(maker.arena.cached(0), 6 * kMiB);
  maker.drain();
  EXPECT_TRUE(maker.made.empty());
  EXPECT_EQ(maker.arena.held(0), 0U);
}

TEST(Arena, SaysWhenItHasNoAddressesLeftAndGoesOn) {
  Arena::Options options;
  options.size = 16 * kMiB;
  Maker maker(options);
  const auto a = maker.allocate(6 * kMiB);
  const auto b = maker.allocate(4 * kMiB);
  EXPECT_FALSE(maker.allocate(1));
  EXPECT_FALSE(maker.allocate(std::uint64_t{1} << 50));
  EXPECT_FALSE(maker.allocate(~std::uint64_t{0}));
  maker.free(a->address);
  maker.drain();
  maker.free(b->address);
  maker.drain();
  EXPECT_TRUE(maker.allocate(14 * kMiB));
}

TEST(Arena, AChunkThatWasNotMadeGivesItsAddressesBack) {
  Maker maker;
  const auto chunk = maker.arena.reserve(kMiB, 0, 1);
  EXPECT_NE(maker.arena.reserve(kMiB, 0, 1)->address, chunk->address);
  maker.arena.give_back(*chunk);
  EXPECT_EQ(maker.arena.reserve(kMiB, 0, 1)->address, chunk->address);
}

TEST(Arena, AnotherSizeWithinTheSameRoom) {
  Maker maker;
  const auto a = maker.allocate(1000);
  EXPECT_TRUE(maker.arena.resize(a->address, 600));
  EXPECT_EQ(maker.arena.find(a->address + 600), nullptr);
  EXPECT_EQ(maker.arena.find(a->address)->gap_after, a->gap_after + 400);
  EXPECT_FALSE(maker.arena.resize(a->address, 1025));
  EXPECT_FALSE(maker.arena.resize(a->address + 512, 1));
}

TEST(Arena, SharedChunksGrowWithWhatTheirOwnerHas) {
  Maker maker;
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(maker.allocate(1024));
  }
  // 150 MiB with the gaps: more would be a chunk for every few blocks.
  EXPECT_LE(maker.made.size(), 20U);
  EXPECT_LE(maker.arena.held(0), 200 * kMiB);
}

// Random traces against a plain model: no overlap, the gap kept, alignment, all bytes accounted
// for, and address space that does not go to pieces.
TEST(Arena, RandomTraces) {
  std::random_device device;
  for (int round = 0; round < 12; ++round) {
    const unsigned seed = round < 10 ? 1000U + static_cast<unsigned>(round) : device();
    std::printf("seed %u\n", seed);
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Arena::Options options;
    options.size = std::uint64_t{1} << 33;
    options.cache = (random() % 3) * 32 * kMiB;
    if (round % 3 == 1) {
      options.granularity = 64 << 10;
      options.hole = 64 << 10;
    }
    Maker maker(options);
    std::map<std::uint64_t, Arena::Block> live;
    std::uint64_t bytes = 0;
    for (int step = 0; step < 8000; ++step) {
      const bool grow = random() % 100 < (step / 1000 % 2 == 0 ? 65U : 35U);
      if (grow && bytes < (std::uint64_t{1} << 32)) {
        const std::uint64_t size = random() % 8 == 0
                                       ? random() % (48 * kMiB)
                                       : random() % (std::uint64_t{1} << (random() % 21));
        const int place = static_cast<int>(random() % 2);
        const std::uint64_t owner = 1 + random() % 3;
        const auto block = maker.allocate(size, place, owner);
        ASSERT_TRUE(block) << bytes << " bytes live";
        ASSERT_EQ(block->address % Arena::kAlignment, 0U);
        ASSERT_EQ(block->place, place);
        ASSERT_EQ(block->owner, owner);
        ASSERT_EQ(block->size, std::max<std::uint64_t>(size, 1));
        const auto chunk = maker.made.find(block->chunk);
        ASSERT_NE(chunk, maker.made.end());
        ASSERT_EQ(chunk->second.place, place);
        ASSERT_LE(block->address + block->size, chunk->first + chunk->second.size);
        const auto next = live.upper_bound(block->address);
        if (next != live.end()) {
          ASSERT_GE(next->first, block->address + block->size + Arena::kGap);
        }
        if (next != live.begin()) {
          const auto& before = std::prev(next)->second;
          ASSERT_GE(block->address, before.address + before.size + Arena::kGap);
        }
        live.emplace(block->address, *block);
        bytes += block->size;
      } else if (!live.empty()) {
        auto at = live.lower_bound(live.begin()->first +
                                   random() % (live.rbegin()->first - live.begin()->first + 1));
        if (random() % 500 == 0) {
          const std::uint64_t owner = at->second.owner;
          std::vector<Arena::Chunk> released;
          maker.arena.free_owner(owner, released);
          maker.unmake(released);
          std::erase_if(live, [&](const auto& item) {
            bytes -= item.second.owner == owner ? item.second.size : 0;
            return item.second.owner == owner;
          });
        } else {
          ASSERT_TRUE(maker.free(at->first));
          bytes -= at->second.size;
          live.erase(at);
        }
      }
      if (random() % 300 == 0) {
        maker.drain(static_cast<int>(random() % 2));
      }
      if (step % 64 == 0) {
        ASSERT_TRUE(maker.arena.consistent());
        ASSERT_EQ(maker.arena.blocks().size(), live.size());
        ASSERT_EQ(maker.arena.chunks().size(), maker.made.size());
      }
    }
    for (const auto& [address, block] : live) {
      ASSERT_TRUE(maker.free(address));
    }
    maker.drain(0);
    maker.drain(1);
    EXPECT_TRUE(maker.made.empty());
    EXPECT_TRUE(maker.arena.consistent());
    // All in one piece again.
    EXPECT_TRUE(maker.arena.reserve(options.size - options.hole, 0, 1));
  }
}

}  // namespace
}  // namespace gpurecover::recovery
