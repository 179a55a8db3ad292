// SPDX-License-Identifier: Apache-2.0
#include "softgpu/device/memory.h"

#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <random>
#include <thread>

namespace gpurecover::softgpu {
namespace {

using Verdict = DeviceMemory::Verdict;
constexpr uint8_t kR = DeviceMemory::kRead, kW = DeviceMemory::kWrite;
constexpr uint64_t kMiB = 1ull << 20;

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ASSERT_TRUE(memory().Init(2, 256 * kMiB, false, &why)) << why;
  }
  static Memory& memory() { return Memory::Get(); }
  static Verdict Check(uint64_t address, uint32_t size, uint8_t need, int device = 0) {
    return memory().view(device)->Check(address, size, need);
  }
  static CUmemAllocationProp Properties() {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return p;
  }
  static CUmemAccessDesc Access(CUmemAccess_flags flags, int device = 0) {
    CUmemAccessDesc a{};
    a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a.location.id = device;
    a.flags = flags;
    return a;
  }
};

TEST_F(MemoryTest, SmallAllocationsShareAPageAndLargeOnesDoNot) {
  const uint64_t a = memory().Allocate(1000, MemoryKind::kDevice, 0, nullptr);
  const uint64_t b = memory().Allocate(1000, MemoryKind::kDevice, 0, nullptr);
  EXPECT_EQ(b - a, 1024u);
  const uint64_t c = memory().Allocate(3 * kMiB, MemoryKind::kDevice, 0, nullptr);
  EXPECT_EQ(c % kGranularity, 0u);
  for (uint64_t address : {a, b, c})
    EXPECT_TRUE(memory().Free(address, Memory::Bit(MemoryKind::kDevice)));
}

TEST_F(MemoryTest, StrayAccessIsToldFromFault) {
  const uint64_t a = memory().Allocate(1000, MemoryKind::kDevice, 0, nullptr);
  EXPECT_EQ(Check(a, 4, kR | kW), Verdict::kOk);
  EXPECT_EQ(Check(a + 992, 8, kW), Verdict::kOk);
  EXPECT_EQ(Check(a + 1000, 1, kR), Verdict::kStray);
  EXPECT_EQ(Check(a + 996, 8, kR), Verdict::kStray);
  EXPECT_EQ(Check(a + kGranularity, 4, kR), Verdict::kFault);
  EXPECT_EQ(Check(0, 4, kR), Verdict::kFault);
  EXPECT_EQ(Check(~0ull - 3, 4, kR), Verdict::kFault);
  memory().Free(a, Memory::Bit(MemoryKind::kDevice));
  EXPECT_EQ(Check(a, 4, kR), Verdict::kFault);
}

TEST_F(MemoryTest, EveryByteOfALargeAllocationIsGoodAndTheNextOneIsNot) {
  const uint64_t size = 5 * kMiB + 12;
  const uint64_t a = memory().Allocate(size, MemoryKind::kDevice, 0, nullptr);
  for (uint64_t at = 0; at < size; at += 4)
    ASSERT_EQ(Check(a + at, 4, kW), Verdict::kOk) << at;
  EXPECT_EQ(Check(a + size, 4, kW), Verdict::kStray);
  memory().Free(a, Memory::Bit(MemoryKind::kDevice));
}

TEST_F(MemoryTest, OtherDeviceNeedsPeerAccess) {
  const uint64_t a = memory().Allocate(4096, MemoryKind::kDevice, 0, nullptr);
  EXPECT_EQ(Check(a, 4, kR, 1), Verdict::kFault);
  memory().SetPeer(0, 1, true);
  EXPECT_EQ(Check(a, 4, kR, 1), Verdict::kOk);
  const uint64_t b = memory().Allocate(4096, MemoryKind::kDevice, 0, nullptr);
  EXPECT_EQ(Check(b, 4, kR, 1), Verdict::kOk);
  memory().SetPeer(0, 1, false);
  EXPECT_EQ(Check(a, 4, kR, 1), Verdict::kFault);
  const uint64_t m = memory().Allocate(4096, MemoryKind::kManaged, 0, nullptr);
  EXPECT_EQ(Check(m, 4, kR | kW, 1), Verdict::kOk);
  for (uint64_t address : {a, b, m})
    memory().Free(address, Memory::Bit(MemoryKind::kDevice) | Memory::Bit(MemoryKind::kManaged));
}

TEST_F(MemoryTest, CapacityIsABound) {
  const uint64_t before = memory().used(0);
  EXPECT_EQ(memory().Allocate(300 * kMiB, MemoryKind::kDevice, 0, nullptr), 0u);
  const uint64_t a = memory().Allocate(200 * kMiB, MemoryKind::kDevice, 0, nullptr);
  ASSERT_NE(a, 0u);
  CUmemGenericAllocationHandle h{};
  EXPECT_EQ(memory().Create(64 * kMiB, Properties(), &h), CUDA_ERROR_OUT_OF_MEMORY);
  memory().Free(a, Memory::Bit(MemoryKind::kDevice));
  EXPECT_EQ(memory().used(0), before);
}

TEST_F(MemoryTest, RandomAllocationsNeverOverlapAndKeepTheirContent) {
  std::mt19937 random(20261130);
  std::map<uint64_t, std::pair<uint64_t, uint8_t>> live;
  for (int step = 0; step < 3000; ++step) {
    if (live.size() < 100 && random() % 3) {
      const uint64_t size = 1 + random() % (random() % 8 ? 5000 : 3'000'000);
      const uint64_t a = memory().Allocate(size, MemoryKind::kDevice, 0, nullptr);
      if (!a)
        continue;
      auto next = live.lower_bound(a);
      ASSERT_TRUE(next == live.end() || a + size <= next->first);
      ASSERT_TRUE(next == live.begin() ||
                  std::prev(next)->first + std::prev(next)->second.first <= a);
      const auto value = static_cast<uint8_t>(random());
      memset(reinterpret_cast<void*>(a), value, size);
      live[a] = {size, value};
    } else if (!live.empty()) {
      auto it = std::next(live.begin(), static_cast<long>(random() % live.size()));
      const auto [size, value] = it->second;
      const auto* bytes = reinterpret_cast<const uint8_t*>(it->first);
      ASSERT_EQ(bytes[0], value);
      ASSERT_EQ(bytes[size - 1], value);
      ASSERT_EQ(Check(it->first + size - 1, 1, kW), Verdict::kOk);
      ASSERT_TRUE(memory().Free(it->first, Memory::Bit(MemoryKind::kDevice)));
      live.erase(it);
    }
  }
  for (auto& [address, rest] : live)
    memory().Free(address, Memory::Bit(MemoryKind::kDevice));
}

TEST_F(MemoryTest, RegisteredHostMemoryIsGoodByWholePages) {
  void* host = mmap(nullptr, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto a = reinterpret_cast<uint64_t>(host);
  EXPECT_EQ(Check(a, 4, kR), Verdict::kFault);
  ASSERT_EQ(memory().Register(a + 100, 5000, CU_MEMHOSTREGISTER_READ_ONLY, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Check(a, 4, kR), Verdict::kOk);
  EXPECT_EQ(Check(a, 4, kW), Verdict::kFault);
  EXPECT_EQ(Check(a + 8188, 4, kR), Verdict::kOk);
  EXPECT_EQ(Check(a + 8192, 4, kR), Verdict::kFault);
  ASSERT_EQ(memory().Unregister(a + 100), CUDA_SUCCESS);
  EXPECT_EQ(Check(a, 4, kR), Verdict::kFault);
  munmap(host, 4 * 4096);
  EXPECT_EQ(memory().Register(a, 4096, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, ReservationsGoWhereTheyAreWanted) {
  // The arena that a recovery agent reserves, and one elsewhere.
  for (const uint64_t wish : {0x5500'0000'0000ull, 0x5520'0000'0000ull}) {
    uint64_t at = 0;
    ASSERT_EQ(memory().Reserve(1ull << 37, 0, wish, &at), CUDA_SUCCESS);
    EXPECT_EQ(at, wish);
    EXPECT_EQ(memory().Unreserve(at, 1ull << 37), CUDA_SUCCESS);
  }
  uint64_t all = 0;
  ASSERT_EQ(memory().Reserve(1ull << 38, 0, 0x5500'0000'0000, &all), CUDA_SUCCESS);
  EXPECT_EQ(all, 0x5500'0000'0000ull);
  EXPECT_EQ(memory().Unreserve(all, 1ull << 38), CUDA_SUCCESS);
}

TEST_F(MemoryTest, AccessIsByDeviceAndByPermission) {
  uint64_t at = 0;
  CUmemGenericAllocationHandle h{};
  ASSERT_EQ(memory().Reserve(4 * kMiB, 0, 0, &at), CUDA_SUCCESS);
  ASSERT_EQ(memory().Create(4 * kMiB, Properties(), &h), CUDA_SUCCESS);
  ASSERT_EQ(memory().Map(at, 4 * kMiB, 0, h), CUDA_SUCCESS);
  EXPECT_EQ(Check(at, 4, kR), Verdict::kFault);
  auto access = Access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_EQ(memory().SetAccess(at, 4 * kMiB, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(Check(at, 4, kR), Verdict::kOk);
  EXPECT_EQ(Check(at, 4, kW), Verdict::kFault);
  EXPECT_EQ(Check(at, 4, kR, 1), Verdict::kFault);
  access = Access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1);
  ASSERT_EQ(memory().SetAccess(at, 4 * kMiB, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(Check(at + 4 * kMiB - 4, 4, kW, 1), Verdict::kOk);
  EXPECT_EQ(memory().Unmap(at, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(Check(at, 4, kR, 1), Verdict::kFault);
  EXPECT_EQ(memory().Release(h), CUDA_SUCCESS);
  EXPECT_EQ(memory().Release(h), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(memory().Unreserve(at, 4 * kMiB), CUDA_SUCCESS);
}

TEST_F(MemoryTest, ReservationsFarAwayWorkToo) {
  uint64_t at = 0;
  CUmemGenericAllocationHandle h{};
  ASSERT_EQ(memory().Reserve(2 * kMiB, 0, 0x5a00'0000'0000, &at), CUDA_SUCCESS);
  ASSERT_EQ(memory().Create(2 * kMiB, Properties(), &h), CUDA_SUCCESS);
  ASSERT_EQ(memory().Map(at, 2 * kMiB, 0, h), CUDA_SUCCESS);
  auto access = Access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(memory().SetAccess(at, 2 * kMiB, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(Check(at, 16, kR | kW), Verdict::kOk);
  EXPECT_EQ(Check(at + 2 * kMiB, 4, kR), Verdict::kFault);
  EXPECT_EQ(memory().Unmap(at, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(Check(at, 4, kR), Verdict::kFault);
  EXPECT_EQ(memory().Unreserve(at, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(memory().Release(h), CUDA_SUCCESS);
}

// The fence: a writer that checks every access stops at an unmap, is not killed by a signal, and
// writes nothing more into the memory once the call has returned.
TEST_F(MemoryTest, UnmapStopsARunningWriter) {
  for (int round = 0; round < 20; ++round) {
    uint64_t at = 0, second = 0;
    CUmemGenericAllocationHandle h{};
    ASSERT_EQ(memory().Reserve(2 * kMiB, 0, 0, &at), CUDA_SUCCESS);
    ASSERT_EQ(memory().Reserve(2 * kMiB, 0, 0, &second), CUDA_SUCCESS);
    ASSERT_EQ(memory().Create(2 * kMiB, Properties(), &h), CUDA_SUCCESS);
    ASSERT_EQ(memory().Map(at, 2 * kMiB, 0, h), CUDA_SUCCESS);
    ASSERT_EQ(memory().Map(second, 2 * kMiB, 0, h), CUDA_SUCCESS);
    auto access = Access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ASSERT_EQ(memory().SetAccess(at, 2 * kMiB, &access, 1), CUDA_SUCCESS);
    std::atomic<bool> started{false};
    std::thread writer([&] {
      for (uint32_t n = 1;; ++n) {
        if (Check(at + 4096, 4, kW) != Verdict::kOk)
          return;
        std::atomic_ref(*reinterpret_cast<uint32_t*>(at + 4096)).store(n);
        started = true;
      }
    });
    while (!started)
      std::this_thread::yield();
    ASSERT_EQ(memory().Unmap(at, 2 * kMiB), CUDA_SUCCESS);
    // Another mapping of the same memory shows what is really in it.
    const auto word = std::atomic_ref(*reinterpret_cast<uint32_t*>(second + 4096));
    const uint32_t after = word;
    writer.join();
    EXPECT_EQ(word.load(), after);
    EXPECT_GT(after, 0u);
    EXPECT_EQ(memory().Unmap(second, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(memory().Unreserve(at, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(memory().Unreserve(second, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(memory().Release(h), CUDA_SUCCESS);
  }
}

}  // namespace
}  // namespace gpurecover::softgpu
