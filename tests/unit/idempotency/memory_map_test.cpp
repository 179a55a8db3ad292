// SPDX-License-Identifier: Apache-2.0
#include "idempotency/memory_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

namespace gpurecover::idempotency {
namespace {

Allocation allocation(std::uint64_t address, std::uint64_t size, std::uint64_t owner = 1) {
  Allocation a;
  a.address = address;
  a.size = size;
  a.owner = owner;
  return a;
}

TEST(MemoryMap, FindsTheAllocationAround) {
  MemoryMap map;
  map.insert(allocation(0x1000, 0x100));
  map.insert(allocation(0x1100, 0x100));
  EXPECT_FALSE(map.find(0xfff));
  EXPECT_EQ(map.find(0x1000).found[0].address, 0x1000u);
  EXPECT_EQ(map.find(0x10ff).found[0].address, 0x1000u);
  EXPECT_EQ(map.find(0x1100).found[0].address, 0x1100u);
  EXPECT_EQ(map.find(0x1100).count, 1u);
  EXPECT_FALSE(map.find(0x1200));
  EXPECT_FALSE(map.find(0));
  EXPECT_FALSE(map.find(~0ull));
}

TEST(MemoryMap, AGapBelongsToBothNeighbours) {
  MemoryMap map;
  Allocation a = allocation(0x1000, 0x100), b = allocation(0x1200, 0x100);
  a.gap_after = 0x100;
  b.gap_before = 0x100;
  map.insert(a);
  map.insert(b);
  EXPECT_EQ(map.find(0x10ff).count, 1u);
  const FindResult r = map.find(0x1180);
  ASSERT_EQ(r.count, 2u);
  EXPECT_EQ(r.found[0].address, 0x1000u);
  EXPECT_EQ(r.found[1].address, 0x1200u);
  EXPECT_EQ(map.find(0x1100).count, 2u);
  EXPECT_EQ(map.find(0x1200).count, 1u);
  EXPECT_FALSE(map.find(0x1300));
}

TEST(MemoryMap, ANewAllocationReplacesStaleOnes) {
  MemoryMap map;
  map.insert(allocation(0x1000, 0x100));
  map.insert(allocation(0x2000, 0x100));
  map.insert(allocation(0x3000, 0x100));
  map.insert(allocation(0x10ff, 0xf02));  // touches the first and the second
  EXPECT_EQ(map.size(), 2u);
  EXPECT_FALSE(map.find(0x1000));
  EXPECT_EQ(map.find(0x2000).found[0].address, 0x10ffu);
  EXPECT_TRUE(map.find(0x3000));
  map.insert(allocation(0x3000, 0x10));
  EXPECT_EQ(map.find(0x3000).found[0].size, 0x10u);
}

TEST(MemoryMap, ErasesByBaseRangeAndOwner) {
  MemoryMap map;
  map.insert(allocation(0x1000, 0x100, 1));
  map.insert(allocation(0x2000, 0x100, 2));
  map.insert(allocation(0x3000, 0x100, 2));
  EXPECT_FALSE(map.erase(0x1001));
  EXPECT_EQ(map.erase(0x1000)->size, 0x100u);
  EXPECT_FALSE(map.erase(0x1000));
  EXPECT_EQ(map.erase_range(0x20ff, 1), 1u);
  EXPECT_EQ(map.erase_range(0x2000, 0), 0u);
  EXPECT_EQ(map.erase_owner(1), 0u);
  EXPECT_EQ(map.erase_owner(2), 1u);
  EXPECT_EQ(map.size(), 0u);
}

TEST(MemoryMap, TheGenerationGrowsWithEveryChangeOnly) {
  MemoryMap map;
  std::uint64_t last = map.generation();
  auto grew = [&] {
    const std::uint64_t now = map.generation();
    const bool g = now > last;
    last = now;
    return g;
  };
  map.insert(allocation(0x1000, 0x100));
  EXPECT_TRUE(grew());
  map.insert(allocation(0x1000, 0x100));
  EXPECT_TRUE(grew());
  (void)map.find(0x1000);
  (void)map.erase(1);
  (void)map.erase_range(0x8000, 0x1000);
  (void)map.snapshot();
  EXPECT_FALSE(grew());
  (void)map.erase(0x1000);
  EXPECT_TRUE(grew());
}

TEST(MemoryMap, TheEndOfTheAddressSpaceDoesNotWrap) {
  MemoryMap map;
  map.insert(allocation(~0ull - 0xff, 0x1000));
  EXPECT_TRUE(map.find(~0ull - 1));
  EXPECT_FALSE(map.find(0x10));
  map.insert(allocation(0x5000, 0));  // holds one byte, so that it can be found and erased
  EXPECT_TRUE(map.find(0x5000));
}

TEST(MemoryMap, AgreesWithASimpleModel) {
  const unsigned seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  MemoryMap map;
  std::map<int, int> owner_of_byte;  // byte → base of its allocation
  for (int step = 0; step < 3000; ++step) {
    const int at = static_cast<int>(random() % 200), size = 1 + static_cast<int>(random() % 20);
    if (random() % 3 != 0) {
      map.insert(allocation(at, size));
      std::map<int, int> kept;
      std::vector<int> stale;
      for (int b = at; b < at + size; ++b) {
        if (owner_of_byte.contains(b))
          stale.push_back(owner_of_byte[b]);
      }
      std::erase_if(owner_of_byte, [&](const auto& item) {
        return std::find(stale.begin(), stale.end(), item.second) != stale.end();
      });
      for (int b = at; b < at + size; ++b)
        owner_of_byte[b] = at;
    } else {
      (void)map.erase(at);
      std::erase_if(owner_of_byte, [&](const auto& item) { return item.second == at; });
    }
    for (int b = 0; b < 225; ++b) {
      const FindResult r = map.find(b);
      ASSERT_EQ(static_cast<bool>(r), owner_of_byte.contains(b)) << step << " " << b;
      if (r) {
        ASSERT_EQ(r.found[0].address, static_cast<std::uint64_t>(owner_of_byte[b]));
      }
    }
  }
}

TEST(MemoryMap, ReadersAndAWriterTogether) {
  MemoryMap map;
  map.insert(allocation(0x100000, 0x1000));
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      std::uint64_t last = 0;
      while (!stop) {
        const std::uint64_t now = map.generation();
        if (now < last || !map.find(0x100800))
          ++wrong;
        last = now;
        for (const Allocation& a : map.snapshot()) {
          if (a.size != 0x1000)
            ++wrong;
        }
      }
    });
  }
  for (int i = 0; i < 5000; ++i) {
    map.insert(allocation(0x200000 + 0x1000 * (i % 7), 0x1000));
    (void)map.erase(0x200000 + 0x1000 * ((i + 3) % 7));
  }
  stop = true;
  for (std::thread& r : readers)
    r.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace gpurecover::idempotency
