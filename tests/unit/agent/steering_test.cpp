// SPDX-License-Identifier: Apache-2.0
//
// Steering against a driver made of functions that keep account. What a program sees of it is
// tested end to end (tests/e2e/soft/steering_test.py).
#include "cupti/agent/steering.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>

namespace gpurecover::agent {
namespace {

using idempotency::AllocationKind;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr auto kSticky = CUDA_ERROR_LAUNCH_FAILED;

CUcontext context_number(std::uint64_t n) {
  return reinterpret_cast<CUcontext>(n);
}

// The driver, as far as steering calls it. Every function first asks steering something that takes
// its lock: were it held across the call, the test would not end.
struct Fake {
  Steering* steering = nullptr;
  CUcontext current = context_number(1);
  std::uint64_t reserve_at = 0;  // where the reservation comes out; 0: where it was wished
  CUresult reserve_code = CUDA_SUCCESS;
  bool reserved = false;
  std::uint64_t capacity = 64 * kMiB, used = 0;
  CUresult access_code = CUDA_SUCCESS, sync_code = CUDA_SUCCESS, register_code = CUDA_SUCCESS;
  bool exportable = true;
  int syncs = 0, plain_allocs = 0, plain_host_allocs = 0;
  std::map<CUmemGenericAllocationHandle, std::pair<std::uint64_t, int>> handles;  // bytes, count
  std::map<std::uint64_t, CUmemGenericAllocationHandle> mapped;
  std::map<std::uint64_t, std::set<int>> access;
  std::set<std::uint64_t> registered;
  std::map<CUevent, bool> events;  // passed?
  std::uint64_t next = 1;

  void look() const {
    if (steering != nullptr) {
      steering->memory();
    }
  }
};
Fake* fake = nullptr;

driver_api::Driver driver() {
  driver_api::Driver d;
  d.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  d.cuCtxGetCurrent = [](CUcontext* out) {
    *out = fake->current;
    return CUDA_SUCCESS;
  };
  d.cuCtxSetCurrent = [](CUcontext context) {
    fake->look();
    fake->current = context;
    return CUDA_SUCCESS;
  };
  // Context 1 and 2 are on device 0, 3 on device 1.
  d.cuCtxGetDevice = [](CUdevice* out) {
    fake->look();
    *out = fake->current == context_number(3) ? 1 : 0;
    return CUDA_SUCCESS;
  };
  d.cuCtxSynchronize = [] {
    fake->look();
    ++fake->syncs;
    return fake->sync_code;
  };
  d.cuDeviceGetAttribute = [](int* out, CUdevice_attribute, CUdevice) {
    *out = 0;
    return CUDA_SUCCESS;
  };
  d.cuDeviceTotalMem = [](std::size_t* out, CUdevice) {
    *out = fake->capacity;
    return CUDA_SUCCESS;
  };
  d.cuMemAddressReserve = [](CUdeviceptr* out, std::size_t, std::size_t, CUdeviceptr wish,
                             unsigned long long) {
    fake->look();
    *out = fake->reserve_at != 0 ? fake->reserve_at : wish;
    fake->reserved = fake->reserve_code == CUDA_SUCCESS;
    return fake->reserve_code;
  };
  d.cuMemAddressFree = [](CUdeviceptr, std::size_t) {
    fake->reserved = false;
    return CUDA_SUCCESS;
  };
  d.cuMemCreate = [](CUmemGenericAllocationHandle* out, std::size_t size,
                     const CUmemAllocationProp* properties, unsigned long long) {
    fake->look();
    if (properties->requestedHandleTypes != 0 && !fake->exportable) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (fake->used + size > fake->capacity) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake->used += size;
    *out = fake->next++;
    fake->handles[*out] = {size, 1};
    return CUDA_SUCCESS;
  };
  d.cuMemRelease = [](CUmemGenericAllocationHandle handle) {
    fake->look();
    const auto at = fake->handles.find(handle);
    if (at == fake->handles.end()) {
      ADD_FAILURE() << "a handle released twice";
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (--at->second.second == 0) {
      fake->used -= at->second.first;
      fake->handles.erase(at);
    }
    return CUDA_SUCCESS;
  };
  d.cuMemRetainAllocationHandle = [](CUmemGenericAllocationHandle* out, void* address) {
    fake->look();
    *out = fake->mapped.at(reinterpret_cast<std::uint64_t>(address));
    ++fake->handles.at(*out).second;
    return CUDA_SUCCESS;
  };
  d.cuMemMap = [](CUdeviceptr at, std::size_t, std::size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
    fake->look();
    EXPECT_TRUE(fake->mapped.emplace(at, handle).second) << "mapped twice";
    return CUDA_SUCCESS;
  };
  d.cuMemUnmap = [](CUdeviceptr at, std::size_t) {
    fake->look();
    EXPECT_EQ(fake->mapped.erase(at), 1U) << "not mapped";
    fake->access.erase(at);
    return CUDA_SUCCESS;
  };
  d.cuMemSetAccess = [](CUdeviceptr at, std::size_t, const CUmemAccessDesc* what,
                        std::size_t count) {
    fake->look();
    for (std::size_t i = 0; fake->access_code == CUDA_SUCCESS && i < count; ++i) {
      if (what[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        fake->access[at].erase(what[i].location.id);
      } else {
        fake->access[at].insert(what[i].location.id);
      }
    }
    return fake->access_code;
  };
  d.cuMemAlloc = [](CUdeviceptr* out, std::size_t) {
    fake->look();
    ++fake->plain_allocs;
    *out = 0x7000'0000'0000;
    return CUDA_SUCCESS;
  };
  d.cuMemHostAlloc = [](void** out, std::size_t, unsigned) {
    ++fake->plain_host_allocs;
    *out = fake;
    return CUDA_SUCCESS;
  };
  d.cuMemHostRegister = [](void* at, std::size_t, unsigned) {
    fake->look();
    if (fake->register_code == CUDA_SUCCESS) {
      fake->registered.insert(reinterpret_cast<std::uint64_t>(at));
    }
    return fake->register_code;
  };
  d.cuMemHostUnregister = [](void* at) {
    fake->look();
    fake->registered.erase(reinterpret_cast<std::uint64_t>(at));
    return CUDA_SUCCESS;
  };
  static CUmemoryPool const pool = reinterpret_cast<CUmemoryPool>(0x99);
  d.cuDeviceGetMemPool = [](CUmemoryPool* out, CUdevice) {
    *out = pool;
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetDefaultMemPool = [](CUmemoryPool* out, CUdevice device) {
    *out = pool;
    return device < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  };
  d.cuStreamGetId = [](CUstream stream, unsigned long long* id) {
    *id = reinterpret_cast<std::uint64_t>(stream);
    return CUDA_SUCCESS;
  };
  d.cuEventCreate = [](CUevent* out, unsigned) {
    fake->look();
    *out = reinterpret_cast<CUevent>(fake->next++);
    fake->events[*out] = false;
    return CUDA_SUCCESS;
  };
  d.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
  d.cuEventQuery = [](CUevent event) {
    fake->look();
    return fake->events.at(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  d.cuEventSynchronize = [](CUevent event) {
    fake->events.at(event) = true;
    return CUDA_SUCCESS;
  };
  d.cuEventDestroy = [](CUevent event) {
    EXPECT_EQ(fake->events.erase(event), 1U);
    return CUDA_SUCCESS;
  };
  return d;
}

struct Recorder final : Steering::Sink {
  bool map_memory(const SteeredMemory& one, std::string& error) override {
    error = "no";
    fake->look();
    mapped.push_back(one.address);
    return good;
  }
  void unmap_memory(const SteeredMemory& one) override { unmapped.push_back(one.address); }
  bool map_host(const SharedHost& one, std::string&) override {
    hosts.push_back(one.address);
    return good;
  }
  void unmap_host(const SharedHost&) override {}
  CUresult synchronize() override {
    ++syncs;
    return code;
  }
  std::vector<std::uint64_t> mapped, unmapped, hosts;
  bool good = true;
  int syncs = 0;
  CUresult code = CUDA_SUCCESS;
};

// Has a share of everything that is made, and lets go of what is gone only when it is made to.
struct Share final : Steering::Watcher {
  void made(const SteeredMemory& memory) noexcept override {
    fake->look();
    EXPECT_TRUE(fake->mapped.contains(memory.address) && fake->handles.contains(memory.handle));
    EXPECT_TRUE(held.emplace(memory.address, memory).second) << "made twice";
    ++fake->handles.at(memory.handle).second;
  }
  void made(const SharedHost& host) noexcept override {
    EXPECT_TRUE(fake->registered.contains(host.address));
    EXPECT_TRUE(hosts.insert(host.address).second);
  }
  void gone(std::uint64_t address) noexcept override {
    fake->look();
    if (hosts.erase(address) != 0) {
      EXPECT_TRUE(fake->registered.contains(address)) << "too late";
      return;
    }
    const auto at = held.find(address);
    if (at == held.end()) {
      return;
    }
    EXPECT_GE(fake->handles.at(at->second.handle).second, 2) << "too late";
    left.push_back(at->second);
    held.erase(at);
  }
  bool let_go() noexcept override {
    for (const SteeredMemory& one : left) {
      release(one);
    }
    left.clear();
    ++asked;
    return true;
  }
  std::uint64_t outstanding(int device) noexcept override {
    std::uint64_t bytes = 0;
    for (const SteeredMemory& one : left) {
      bytes += one.device == device ? one.size : 0;
    }
    return bytes;
  }
  static void release(const SteeredMemory& one) {
    auto& [size, count] = fake->handles.at(one.handle);
    if (--count == 0) {
      fake->used -= size;
      fake->handles.erase(one.handle);
    }
  }
  std::map<std::uint64_t, SteeredMemory> held;
  std::vector<SteeredMemory> left;
  std::set<std::uint64_t> hosts;
  int asked = 0;
};

class SteeringTest : public testing::Test {
 protected:
  SteeringTest() {
    fake = &driver_state_;
    driver_state_.steering = &steering_;
    steering_.start(driver(), Steering::Options());
    steering_.enable(true);
  }

  // The app's call, from enter to exit; `answer`: the driver's to what it is given.
  template <class Params>
  CUresult call(const char* name, Params& params, CUresult answer, bool capturing = false) {
    const driver_api::Call* row = driver_api::find(std::string_view(name));
    if (row == nullptr) {
      ADD_FAILURE() << name;
      return CUDA_ERROR_UNKNOWN;
    }
    CUpti_CallbackData data{};
    data.functionParams = &params;
    data.context = driver_state_.current;
    data.correlationId = ++correlation_;
    const Params before = params;
    steering_.enter(state_, *row, data, capturing);
    steered_ = state_.active;
    changed_ = std::memcmp(&before, &params, sizeof params) != 0;
    CUresult result = answer;
    if (state_.active) {
      steering_.leave(state_, *row, data, false, result);
    }
    EXPECT_EQ(std::memcmp(&before, &params, sizeof params), 0) << "parameters not put back";
    steering_.after(*row, data, result);
    return result;
  }
  CUresult alloc(CUdeviceptr* out, std::size_t size, CUresult answer = CUDA_ERROR_INVALID_VALUE,
                 bool capturing = false) {
    cuMemAlloc_v2_params p{};
    p.dptr = out;
    p.bytesize = size;
    return call("cuMemAlloc_v2", p, answer, capturing);
  }
  CUresult free(CUdeviceptr address, CUresult answer = CUDA_ERROR_INVALID_VALUE,
                bool capturing = false) {
    cuMemFree_v2_params p{};
    p.dptr = address;
    return call("cuMemFree_v2", p, answer, capturing);
  }
  CUresult alloc_async(CUdeviceptr* out, std::size_t size, std::uint64_t stream,
                       CUresult answer = CUDA_SUCCESS) {
    cuMemAllocAsync_params p{};
    p.dptr = out;
    p.bytesize = size;
    p.hStream = reinterpret_cast<CUstream>(stream);
    return call("cuMemAllocAsync", p, answer);
  }
  CUresult free_async(CUdeviceptr address, std::uint64_t stream) {
    cuMemFreeAsync_params p{};
    p.dptr = address;
    p.hStream = reinterpret_cast<CUstream>(stream);
    return call("cuMemFreeAsync", p, CUDA_ERROR_INVALID_VALUE);
  }

  Fake driver_state_;
  idempotency::MemoryMap memory_;
  std::vector<std::string> notices_;
  Steering steering_{memory_, [this](const std::string& text) { notices_.push_back(text); }};
  SteeredCall state_;
  std::uint32_t correlation_ = 0;
  bool steered_ = false, changed_ = false;
};

TEST_F(SteeringTest, AllocatesInTheArenaWhatTheDriverWasKeptFromAllocating) {
  CUdeviceptr a = 0, b = 0;
  EXPECT_EQ(alloc(&a, 1000), CUDA_SUCCESS);
  EXPECT_TRUE(changed_);
  EXPECT_EQ(alloc(&b, 3 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(a, Steering::Options().arena);
  ASSERT_EQ(steering_.memory().size(), 2U);
  EXPECT_EQ(steering_.memory()[1].address, b);
  EXPECT_EQ(steering_.memory()[1].size, 4 * kMiB);
  idempotency::Allocation allocation;
  allocation.address = a;
  EXPECT_TRUE(steering_.describe(allocation));
  EXPECT_GE(allocation.gap_after, 512U);
  EXPECT_EQ(free(a), CUDA_SUCCESS);
  EXPECT_EQ(free(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(steered_);
  EXPECT_EQ(free(b + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free(b), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.syncs, 2);
  EXPECT_TRUE(notices_.empty());
}

TEST_F(SteeringTest, TheAppsOwnErrorsStayItsOwn) {
  CUdeviceptr a = 5;
  EXPECT_EQ(alloc(&a, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(changed_);
  EXPECT_EQ(alloc(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(changed_);
  // More than the device has is refused by the driver.
  EXPECT_EQ(alloc(&a, std::size_t{1} << 50, CUDA_ERROR_OUT_OF_MEMORY), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(changed_);
  EXPECT_EQ(alloc(&a, 16, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(alloc(&a, 16, kSticky), kSticky);
  EXPECT_EQ(a, 5U);
  EXPECT_TRUE(steering_.memory().empty());
  cuMemAllocPitch_v2_params p{};
  std::size_t pitch = 0;
  p.dptr = &a;
  p.pPitch = &pitch;
  p.WidthInBytes = 100;
  p.Height = 3;
  p.ElementSizeBytes = 3;
  EXPECT_EQ(call("cuMemAllocPitch_v2", p, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(changed_);
  p.ElementSizeBytes = 16;
  EXPECT_EQ(call("cuMemAllocPitch_v2", p, CUDA_ERROR_INVALID_VALUE), CUDA_SUCCESS);
  EXPECT_EQ(pitch, 512U);
}

TEST_F(SteeringTest, WithoutTheAddressRangeNothingIsSteeredAndOneLineSaysSo) {
  for (const bool elsewhere : {true, false}) {
    Fake state;
    fake = &state;
    notices_.clear();
    state.reserve_at = elsewhere ? 0x1000'0000'0000 : 0;
    state.reserve_code = elsewhere ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    Steering other(memory_, [this](const std::string& text) { notices_.push_back(text); });
    other.start(driver(), Steering::Options());
    other.enable(true);
    for (int i = 0; i < 2; ++i) {
      CUdeviceptr a = 0;
      cuMemAlloc_v2_params p{};
      p.dptr = &a;
      p.bytesize = 16;
      CUpti_CallbackData data{};
      data.functionParams = &p;
      data.context = context_number(1);
      other.enter(state_, *driver_api::find("cuMemAlloc_v2"), data, false);
      EXPECT_FALSE(state_.active);
      EXPECT_EQ(p.bytesize, 16U);
    }
    EXPECT_FALSE(state.reserved);
    ASSERT_EQ(notices_.size(), 1U);
    EXPECT_TRUE(notices_[0].starts_with("takeover is not possible: "));
    EXPECT_FALSE(other.obstacle().empty());
  }
}

TEST_F(SteeringTest, OffMeansOff) {
  steering_.enable(false);
  CUdeviceptr a = 0;
  EXPECT_EQ(alloc(&a, 16, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_FALSE(changed_);
  EXPECT_FALSE(driver_state_.reserved);
}

TEST_F(SteeringTest, BeforeItReportsOutOfMemoryItGivesUpWhatItKeeps) {
  CUdeviceptr a = 0, b = 0, c = 0;
  ASSERT_EQ(alloc(&a, 40 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(free(a), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.used, 40 * kMiB);
  EXPECT_EQ(alloc(&b, 60 * kMiB), CUDA_SUCCESS);  // the kept chunk has to go for it
  EXPECT_EQ(driver_state_.used, 60 * kMiB);
  EXPECT_EQ(alloc(&c, 20 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(alloc(&c, 4 * kMiB), CUDA_SUCCESS);
  // The app's own cuMemCreate finds the room too.
  ASSERT_EQ(free(b), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemCreate_params p{};
  p.handle = &handle;
  p.size = 50 * kMiB;
  p.prop = &properties;
  EXPECT_EQ(call("cuMemCreate", p, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
}

TEST_F(SteeringTest, WhoeverHasAShareOfMemoryIsToldAndLetsGoBeforeThereIsNoRoom) {
  Share share;
  CUdeviceptr a = 0, b = 0, c = 0;
  steering_.set_watcher(&share);
  ASSERT_EQ(alloc(&a, 40 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(alloc(&b, 1000), CUDA_SUCCESS);
  ASSERT_EQ(alloc(&c, 1000), CUDA_SUCCESS);  // of the same chunk
  EXPECT_EQ(share.held.size(), 2U);
  ASSERT_EQ(free(c), CUDA_SUCCESS);
  ASSERT_EQ(free(b), CUDA_SUCCESS);
  ASSERT_EQ(free(a), CUDA_SUCCESS);
  EXPECT_EQ(share.held.size(), 2U) << "empty chunks are kept, and its share with them";
  EXPECT_EQ(share.asked, 0);
  // Their room is needed: they go, and it is asked to let go before the driver is tried again.
  ASSERT_EQ(alloc(&a, 60 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(share.asked, 1);
  EXPECT_EQ(share.held.size(), 1U);
  EXPECT_EQ(alloc(&b, 20 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(share.asked, 2);
  // What is gone for the program and has not gone from the device yet counts as free.
  ASSERT_EQ(free(a), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemCreate_params p{};
  p.handle = &handle;
  p.size = 50 * kMiB;
  p.prop = &properties;
  EXPECT_EQ(call("cuMemCreate", p, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
  EXPECT_EQ(share.asked, 3);
  driver_state_.current = context_number(3);  // of another device
  driver_state_.capacity = 1024 * kMiB;
  share.let_go();
  ASSERT_EQ(alloc(&c, 300 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(free(c), CUDA_SUCCESS);  // more than is kept
  EXPECT_TRUE(share.held.empty());
  std::size_t free_bytes = 100;
  std::size_t total = 0;
  cuMemGetInfo_v2_params info{};
  info.free = &free_bytes;
  info.total = &total;
  EXPECT_EQ(call("cuMemGetInfo_v2", info, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 100 + 300 * kMiB);
  share.let_go();
  EXPECT_EQ(driver_state_.used, 50 * kMiB) << "nothing but the app's own";
}

TEST_F(SteeringTest, WhoeverHasAShareIsToldOfMappingsAndPinnedMemory) {
  Share share;
  steering_.set_watcher(&share);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemCreate_params create{};
  create.handle = &handle;
  create.size = 2 * kMiB;
  create.prop = &properties;
  driver_state_.exportable = false;
  ASSERT_EQ(call("cuMemCreate", create, CUDA_ERROR_NOT_SUPPORTED), CUDA_SUCCESS);
  driver_state_.mapped[0x6000'0000'0000] = handle;
  cuMemMap_params map{};
  map.ptr = 0x6000'0000'0000;
  map.size = 2 * kMiB;
  map.handle = handle;
  ASSERT_EQ(call("cuMemMap", map, CUDA_SUCCESS), CUDA_SUCCESS);
  ASSERT_TRUE(share.held.contains(map.ptr));
  EXPECT_EQ(share.held[map.ptr].handle, handle);
  cuMemUnmap_params unmap{};
  unmap.ptr = map.ptr;
  unmap.size = map.size;
  ASSERT_EQ(call("cuMemUnmap", unmap, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_TRUE(share.held.empty());
  map.offset = 4096;  // not whole: not handed over at a fault either
  ASSERT_EQ(call("cuMemMap", map, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_TRUE(share.held.empty());

  void* pinned = nullptr;
  cuMemHostAlloc_params host{};
  host.pp = &pinned;
  host.bytesize = 80 * kMiB;  // more than is kept
  CUdeviceptr first = 0;
  ASSERT_EQ(alloc(&first, 16), CUDA_SUCCESS);
  ASSERT_EQ(call("cuMemHostAlloc", host, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(share.hosts.size(), 1U);
  const SharedHost block = steering_.hosts()[0];
  const int fd = steering_.copy_fd(block);
  EXPECT_GE(fd, 0);
  ::close(fd);
  cuMemFreeHost_params free_host{};
  free_host.p = pinned;
  ASSERT_EQ(call("cuMemFreeHost", free_host, CUDA_ERROR_INVALID_VALUE), CUDA_SUCCESS);
  EXPECT_TRUE(share.hosts.empty());
  EXPECT_EQ(steering_.copy_fd(block), -1) << "it may be another file's by now";
}

TEST_F(SteeringTest, KeptMemoryCountsAsFree) {
  CUdeviceptr a = 0;
  ASSERT_EQ(alloc(&a, 8 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(free(a), CUDA_SUCCESS);
  std::size_t free_bytes = 100, total = 0;
  cuMemGetInfo_v2_params p{};
  p.free = &free_bytes;
  p.total = &total;
  EXPECT_EQ(call("cuMemGetInfo_v2", p, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, 100 + 8 * kMiB);
}

TEST_F(SteeringTest, WhereTheArenaCannotServeTheDriverDoes) {
  driver_state_.access_code = CUDA_ERROR_NOT_SUPPORTED;
  CUdeviceptr a = 0;
  EXPECT_EQ(alloc(&a, 16), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.plain_allocs, 1);
  EXPECT_TRUE(driver_state_.mapped.empty());
  EXPECT_TRUE(driver_state_.handles.empty());
  EXPECT_EQ(notices_.size(), 1U);
  idempotency::Allocation allocation;
  allocation.address = a;
  allocation.size = 16;
  memory_.insert(allocation);
  EXPECT_NE(steering_.obstacle().find("outside the arena"), std::string::npos);
}

TEST_F(SteeringTest, AnErrorThatAFreeMeetsIsItsResultAndNothingIsFreed) {
  CUdeviceptr a = 0;
  ASSERT_EQ(alloc(&a, 16), CUDA_SUCCESS);
  driver_state_.sync_code = kSticky;
  EXPECT_EQ(free(a), kSticky);
  driver_state_.sync_code = CUDA_SUCCESS;
  EXPECT_EQ(free(a), CUDA_SUCCESS);
}

TEST_F(SteeringTest, AFreeWaitsForTheContextThatTheMemoryIsOf) {
  CUdeviceptr a = 0;
  ASSERT_EQ(alloc(&a, 16), CUDA_SUCCESS);
  driver_state_.current = context_number(2);
  EXPECT_EQ(free(a), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.syncs, 2);
  EXPECT_EQ(driver_state_.current, context_number(2));
}

TEST_F(SteeringTest, NothingIsWaitedForWhileAStreamCaptures) {
  CUdeviceptr a = 0, b = 0;
  ASSERT_EQ(alloc(&a, 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(free(a, CUDA_ERROR_INVALID_VALUE, true), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.syncs, 0);
  EXPECT_EQ(free(a, CUDA_ERROR_INVALID_VALUE, true), CUDA_ERROR_INVALID_VALUE);  // twice
  ASSERT_EQ(alloc(&b, 8 * kMiB, CUDA_ERROR_INVALID_VALUE, true), CUDA_SUCCESS);
  EXPECT_NE(a, b);
  ASSERT_EQ(free(b), CUDA_SUCCESS);  // the capture is over
  EXPECT_GE(driver_state_.syncs, 1);
  CUdeviceptr c = 0;
  ASSERT_EQ(alloc(&c, 8 * kMiB), CUDA_SUCCESS);
  EXPECT_TRUE(c == a || c == b);
}

TEST_F(SteeringTest, StreamOrderedMemoryIsFreedWhenItsStreamHasPassed) {
  CUdeviceptr a = 0, b = 0, c = 0;
  ASSERT_EQ(alloc_async(&a, 8 * kMiB, 0x10), CUDA_SUCCESS);
  ASSERT_EQ(free_async(a, 0x10), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.syncs, 0);  // what the stream waits for may be this thread's to do
  EXPECT_EQ(free_async(a, 0x10), CUDA_ERROR_INVALID_VALUE);
  // Another stream does not get it before it has passed, the same one does.
  ASSERT_EQ(alloc_async(&b, 8 * kMiB, 0x20), CUDA_SUCCESS);
  EXPECT_NE(b, a);
  ASSERT_EQ(alloc_async(&c, 8 * kMiB - 100, 0x10), CUDA_SUCCESS);
  EXPECT_EQ(c, a);
  EXPECT_TRUE(driver_state_.events.empty());
  ASSERT_EQ(free_async(c, 0x10), CUDA_SUCCESS);
  driver_state_.events.begin()->second = true;
  ASSERT_EQ(alloc_async(&a, 8 * kMiB, 0x20), CUDA_SUCCESS);
  EXPECT_EQ(a, c);
  // A size that neither the kept nor the free room serves: then it is waited for.
  ASSERT_EQ(free_async(a, 0x20), CUDA_SUCCESS);
  EXPECT_EQ(alloc(&c, 56 * kMiB), CUDA_SUCCESS);
  EXPECT_TRUE(driver_state_.events.empty());
}

TEST_F(SteeringTest, PoolsThatOthersMayShareAreLeftAlone) {
  CUdeviceptr a = 0;
  cuMemAllocFromPoolAsync_params p{};
  p.dptr = &a;
  p.bytesize = 16;
  p.pool = reinterpret_cast<CUmemoryPool>(0x55);
  EXPECT_EQ(call("cuMemAllocFromPoolAsync", p, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_FALSE(changed_);
  CUmemPoolProps properties{};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemPoolCreate_params create{};
  create.pool = &p.pool;
  create.poolProps = &properties;
  EXPECT_EQ(call("cuMemPoolCreate", create, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(call("cuMemAllocFromPoolAsync", p, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_TRUE(changed_);
}

TEST_F(SteeringTest, PeersReachAllChunksOfADeviceAndLaterOnes) {
  CUdeviceptr a = 0, b = 0, c = 0;
  ASSERT_EQ(alloc(&a, 2 * kMiB), CUDA_SUCCESS);
  driver_state_.current = context_number(3);
  ASSERT_EQ(alloc(&c, 2 * kMiB), CUDA_SUCCESS);
  cuCtxEnablePeerAccess_params enable{};
  enable.peerContext = context_number(1);
  ASSERT_EQ(call("cuCtxEnablePeerAccess", enable, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.access.at(a), (std::set<int>{0, 1}));
  EXPECT_EQ(driver_state_.access.at(c), (std::set<int>{1}));
  driver_state_.current = context_number(1);
  ASSERT_EQ(alloc(&b, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.access.at(b), (std::set<int>{0, 1}));
  driver_state_.current = context_number(3);
  cuCtxDisablePeerAccess_params disable{};
  disable.peerContext = context_number(1);
  ASSERT_EQ(call("cuCtxDisablePeerAccess", disable, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.access.at(b), (std::set<int>{0}));
}

TEST_F(SteeringTest, AContextTakesItsMemoryAlong) {
  CUdeviceptr a = 0, b = 0;
  ASSERT_EQ(alloc(&a, 16), CUDA_SUCCESS);
  driver_state_.current = context_number(2);
  ASSERT_EQ(alloc(&b, 16), CUDA_SUCCESS);
  steering_.context_gone(context_number(1));
  EXPECT_EQ(free(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(steered_);
  EXPECT_EQ(free(b), CUDA_SUCCESS);
}

TEST_F(SteeringTest, PinnedHostMemoryIsASharedFile) {
  void* p = nullptr;
  cuMemHostAlloc_params alloc{};
  alloc.pp = &p;
  alloc.bytesize = 5000;
  alloc.Flags = CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_PORTABLE;
  ASSERT_EQ(call("cuMemHostAlloc", alloc, CUDA_SUCCESS), CUDA_SUCCESS);
  static_cast<char*>(p)[4999] = 1;
  ASSERT_EQ(steering_.hosts().size(), 1U);
  EXPECT_EQ(steering_.hosts()[0].flags, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(steering_.hosts()[0].address, reinterpret_cast<std::uint64_t>(p));
  unsigned flags = 0;
  cuMemHostGetFlags_params get{};
  get.pFlags = &flags;
  get.p = p;
  EXPECT_EQ(call("cuMemHostGetFlags", get, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(flags, 7U);
  EXPECT_EQ(steering_.obstacle(), "");
  cuMemFreeHost_params free{};
  free.p = p;
  EXPECT_EQ(call("cuMemFreeHost", free, CUDA_ERROR_INVALID_VALUE), CUDA_SUCCESS);
  EXPECT_EQ(call("cuMemFreeHost", free, CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(steered_);
  driver_state_.register_code = CUDA_ERROR_OUT_OF_MEMORY;
  alloc.bytesize = 9 * kMiB;
  EXPECT_EQ(call("cuMemHostAlloc", alloc, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.plain_host_allocs, 1);
}

TEST_F(SteeringTest, TheAppsOwnPhysicalMemoryIsMadeExportableWhereItCanBe) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuMemCreate_params p{};
  p.handle = &handle;
  p.size = 2 * kMiB;
  p.prop = &properties;
  driver_state_.exportable = false;
  EXPECT_EQ(call("cuMemCreate", p, CUDA_ERROR_NOT_SUPPORTED), CUDA_SUCCESS);  // tried again
  EXPECT_TRUE(changed_);
  EXPECT_EQ(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  driver_state_.mapped[0x6000'0000'0000] = handle;
  cuMemMap_params map{};
  map.ptr = 0x6000'0000'0000;
  map.size = 2 * kMiB;
  map.handle = handle;
  ASSERT_EQ(call("cuMemMap", map, CUDA_SUCCESS), CUDA_SUCCESS);
  ASSERT_EQ(steering_.memory().size(), 1U);
  EXPECT_EQ(driver_state_.handles.at(handle).second, 2);
  idempotency::Allocation allocation;
  allocation.address = map.ptr;
  allocation.size = map.size;
  allocation.kind = AllocationKind::kVirtual;
  memory_.insert(allocation);
  EXPECT_EQ(steering_.obstacle(), "");
  cuMemUnmap_params unmap{};
  unmap.ptr = map.ptr;
  unmap.size = map.size;
  ASSERT_EQ(call("cuMemUnmap", unmap, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.handles.at(handle).second, 1);
  map.offset = 4096;
  ASSERT_EQ(call("cuMemMap", map, CUDA_SUCCESS), CUDA_SUCCESS);
  EXPECT_NE(steering_.obstacle(), "");
}

TEST_F(SteeringTest, WhatCannotBeCarriedOverIsNamed) {
  EXPECT_EQ(steering_.obstacle(), "");
  const std::pair<AllocationKind, const char*> kinds[] = {
      {AllocationKind::kManaged, "managed"},
      {AllocationKind::kHostRegistered, "registered"},
      {AllocationKind::kIpcImport, "another process"},
      {AllocationKind::kStreamOrdered, "pool"},
      {AllocationKind::kPinnedHost, "no shared file"},
      {AllocationKind::kExternal, "external"},
  };
  for (const auto& [kind, word] : kinds) {
    idempotency::Allocation allocation;
    allocation.address = 0x7100'0000'0000;
    allocation.size = 4096;
    allocation.kind = kind;
    memory_.insert(allocation);
    EXPECT_NE(steering_.obstacle().find(word), std::string::npos) << steering_.obstacle();
    memory_.erase(allocation.address);
  }
  struct {
    CUarray* out = nullptr;
    const CUDA_ARRAY_DESCRIPTOR* what = nullptr;
  } array;
  call("cuArrayCreate_v2", array, CUDA_SUCCESS);
  EXPECT_EQ(steering_.obstacle(), "an array is in use");
  call("cuArrayDestroy", array, CUDA_SUCCESS);
  EXPECT_EQ(steering_.obstacle(), "");
}

TEST_F(SteeringTest, AfterTheFenceNothingIsMappedHereAndTheSinkIsTold) {
  CUdeviceptr a = 0, b = 0, c = 0;
  ASSERT_EQ(alloc(&a, 16), CUDA_SUCCESS);
  ASSERT_EQ(alloc(&b, 4 * kMiB), CUDA_SUCCESS);
  Recorder sink;
  steering_.set_sink(&sink);
  std::string error;
  ASSERT_TRUE(steering_.fence(false, error)) << error;
  EXPECT_TRUE(driver_state_.mapped.empty());
  EXPECT_EQ(driver_state_.handles.size(), 2U);
  EXPECT_EQ(steering_.memory().size(), 2U);
  // Not taken over yet: the sticky code is the app's.
  EXPECT_EQ(alloc(&c, 16, kSticky), kSticky);
  steering_.set_taken_over(true);
  EXPECT_EQ(alloc(&c, 6 * kMiB, kSticky), CUDA_SUCCESS);
  EXPECT_EQ(sink.mapped, std::vector<std::uint64_t>{c});
  EXPECT_TRUE(driver_state_.mapped.empty());
  EXPECT_EQ(free(b, kSticky), CUDA_SUCCESS);
  EXPECT_EQ(sink.syncs, 1);
  EXPECT_EQ(driver_state_.syncs, 0);
  sink.code = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_EQ(free(c, kSticky), CUDA_ERROR_ILLEGAL_ADDRESS);
  sink.code = CUDA_SUCCESS;
  sink.good = false;
  EXPECT_EQ(alloc(&b, 20 * kMiB, kSticky), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(driver_state_.handles.size(), 2U);
  std::uint64_t start = 0;
  cuPointerGetAttribute_params p{};
  p.data = &start;
  p.attribute = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
  p.ptr = c + 100;
  EXPECT_EQ(call("cuPointerGetAttribute", p, CUDA_ERROR_INVALID_VALUE), CUDA_SUCCESS);
  EXPECT_EQ(start, c);
}

TEST_F(SteeringTest, WhereNothingRunsTheFenceLeavesMappedWhatIsUnmappedWhenItIsUnmade) {
  CUdeviceptr a = 0, b = 0, c = 0;
  driver_state_.capacity = 1024 * kMiB;
  ASSERT_EQ(alloc(&a, 4 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(alloc(&b, 300 * kMiB), CUDA_SUCCESS);  // more than is kept
  Recorder sink;
  steering_.set_sink(&sink);
  std::string error;
  ASSERT_TRUE(steering_.fence(true, error)) << error;
  EXPECT_EQ(driver_state_.mapped.size(), 2U);
  steering_.set_taken_over(true);
  EXPECT_EQ(alloc(&c, 310 * kMiB, kSticky), CUDA_SUCCESS);
  EXPECT_EQ(sink.mapped, std::vector<std::uint64_t>{c});
  EXPECT_EQ(driver_state_.mapped.size(), 2U) << "what is new is not this process's to use";
  EXPECT_EQ(free(b, kSticky), CUDA_SUCCESS);
  EXPECT_FALSE(driver_state_.mapped.contains(b)) << "its memory would not be free";
  EXPECT_EQ(driver_state_.mapped.size(), 1U);
  EXPECT_EQ(free(c, kSticky), CUDA_SUCCESS);
  EXPECT_EQ(driver_state_.mapped.size(), 1U);
  EXPECT_EQ(driver_state_.handles.size(), 1U);
}

// The app's own mappings after a fault: this process's driver and the standby both have them.
TEST_F(SteeringTest, MappingsOfTheProgramAreMadeAndUnmadeInTheStandbyToo) {
  constexpr std::uint64_t kBase = 0x6000'0000'0000;
  driver_state_.exportable = false;
  const auto map_at = [&](std::uint64_t address) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties{};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    cuMemCreate_params create{};
    create.handle = &handle;
    create.size = 2 * kMiB;
    create.prop = &properties;
    EXPECT_EQ(call("cuMemCreate", create, CUDA_ERROR_NOT_SUPPORTED), CUDA_SUCCESS);
    driver_state_.mapped[address] = handle;
    cuMemMap_params map{};
    map.ptr = address;
    map.size = 2 * kMiB;
    map.handle = handle;
    return call("cuMemMap", map, CUDA_SUCCESS);
  };
  const auto unmap_at = [&](std::uint64_t address) {
    const bool there = driver_state_.mapped.erase(address) != 0;
    cuMemUnmap_params unmap{};
    unmap.ptr = address;
    unmap.size = 2 * kMiB;
    return call("cuMemUnmap", unmap, there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
  };
  ASSERT_EQ(map_at(kBase), CUDA_SUCCESS);
  std::string error;
  ASSERT_TRUE(steering_.fence(false, error)) << error;
  EXPECT_TRUE(driver_state_.mapped.empty());
  Recorder sink;
  steering_.set_sink(&sink);
  steering_.set_taken_over(true);
  ASSERT_EQ(map_at(kBase + 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(sink.mapped, std::vector<std::uint64_t>{kBase + 8 * kMiB});
  sink.good = false;
  EXPECT_EQ(map_at(kBase + 16 * kMiB), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_FALSE(driver_state_.mapped.contains(kBase + 16 * kMiB));
  EXPECT_EQ(unmap_at(kBase + 4 * kMiB), CUDA_ERROR_INVALID_VALUE) << "nobody's";
  EXPECT_EQ(unmap_at(kBase), CUDA_SUCCESS) << "for the program it was still mapped";
  EXPECT_EQ(unmap_at(kBase), CUDA_ERROR_INVALID_VALUE) << "not twice";
  EXPECT_EQ(unmap_at(kBase + 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(sink.unmapped, (std::vector<std::uint64_t>{kBase, kBase + 8 * kMiB}));
}

}  // namespace
}  // namespace gpurecover::agent
