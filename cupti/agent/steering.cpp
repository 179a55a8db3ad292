// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/steering.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace gpurecover::agent {
namespace {

using driver_api::Hook;
using idempotency::AllocationKind;

// The parameters are CUPTI's copies; what is written here is what the driver reads.
template <class T>
T& as(const void* params) {
  return *static_cast<T*>(const_cast<void*>(params));
}

// No element size of cuMemAllocPitch: the driver answers 1 (an H200, driver 580).
constexpr unsigned kNoElementSize = 3;
// No address of anybody's: the driver's frees answer 1 to it (the same).
constexpr CUdeviceptr kNoAddress = 0x1234;
constexpr std::uint64_t kPitch = 512;  // of which pitches are multiples (the same)
constexpr std::size_t kMaxHostFiles = 256;
constexpr std::uint64_t kHostGranularity = 64 << 10;

std::uint64_t number(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

// What a driver answers that has refused a call because of what was put into it, or has done
// nothing because there was nothing to do.
bool did_nothing(CUresult result) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE;
}

std::size_t size_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return 4;
    default:
      return 8;
  }
}

template <class T>
void put(void* value, T what) {
  std::memcpy(value, &what, sizeof what);
}

}  // namespace

Steering::Steering(const idempotency::MemoryMap& memory, Notice notice)
    : memory_(memory), notice_(std::move(notice)) {}

Steering::~Steering() {
  for (const auto& [address, file] : files_) {
    ::munmap(reinterpret_cast<void*>(address), file.host.size);
    if (ours(file)) {
      ::close(file.host.fd);
    }
  }
}

void Steering::start(const driver_api::Driver& driver, const Options& options) {
  driver_ = driver;
  options_ = options;
}

void Steering::say_once(std::atomic<bool>& said, const std::string& text) {
  if (!said.exchange(true)) {
    notice_(text);
  }
}

bool Steering::ready() {
  std::call_once(reserving_, [this] {
    const driver_api::RelaxedCapture relaxed(driver_);
    CUdeviceptr address = 0;
    const CUresult code = driver_.cuMemAddressReserve(
        &address, static_cast<std::size_t>(options_.arena_size), 0, options_.arena, 0);
    if (code == CUDA_SUCCESS && address == options_.arena) {
      Arena::Options arena;
      arena.base = options_.arena;
      arena.size = options_.arena_size;
      Arena::Options host;
      host.base = options_.host_arena;
      host.size = options_.host_arena_size;
      host.granularity = kHostGranularity;
      host.hole = kHostGranularity;
      host.cache = 64 << 20;
      const Lock lock(mutex_);
      arena_.emplace(arena);
      host_arena_.emplace(host);
      state_.store(State::kOn, std::memory_order_release);
      return;
    }
    if (code == CUDA_SUCCESS) {
      driver_.cuMemAddressFree(address, static_cast<std::size_t>(options_.arena_size));
    }
    state_.store(State::kOff, std::memory_order_release);
    notice_("takeover is not possible: the address range that device memory must lie in " +
            (code == CUDA_SUCCESS
                 ? std::string("is taken")
                 : "could not be reserved, error " + std::to_string(static_cast<int>(code))));
  });
  return state_.load(std::memory_order_acquire) == State::kOn;
}

std::optional<int> Steering::device_of(CUcontext context, CUcontext current) {
  {
    const Lock lock(mutex_);
    if (const auto at = devices_.find(context); at != devices_.end()) {
      return at->second;
    }
  }
  CUdevice device = 0;
  if (context != current && driver_.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  const CUresult code = driver_.cuCtxGetDevice(&device);
  if (context != current) {
    driver_.cuCtxSetCurrent(current);
  }
  if (code != CUDA_SUCCESS) {
    return std::nullopt;
  }
  const Lock lock(mutex_);
  devices_[context] = device;
  return device;
}

std::uint64_t Steering::total_memory(int device) {
  {
    const Lock lock(mutex_);
    if (const auto at = totals_.find(device); at != totals_.end()) {
      return at->second;
    }
  }
  std::size_t total = 0;
  if (driver_.cuDeviceTotalMem(&total, device) != CUDA_SUCCESS) {
    return 0;
  }
  const Lock lock(mutex_);
  return totals_[device] = total;
}

// Pools whose memory others cannot get at but by the device's own access.
bool Steering::steers(CUmemoryPool pool, int device) {
  CUmemoryPool plain = nullptr;
  if (pool == nullptr) {
    return false;
  }
  if (driver_.cuDeviceGetDefaultMemPool(&plain, device) == CUDA_SUCCESS && plain == pool) {
    return true;
  }
  const Lock lock(mutex_);
  const auto at = pools_.find(pool);
  return at != pools_.end() && at->second == device;
}

void Steering::enter(SteeredCall& state, const driver_api::Call& call,
                     const CUpti_CallbackData& data, bool capturing) {
  state.active = false;
  if (!enabled()) {
    return;
  }
  const void* params = data.functionParams;
  CUcontext const context = data.context;
  bool steer = false;
  switch (call.hook) {
    case Hook::kAllocDevice:
    case Hook::kAllocPitch:
    case Hook::kAllocHost:
    case Hook::kHostAlloc:
    case Hook::kFreeDevice:
    case Hook::kFreeHost:
      capturing_.store(capturing, std::memory_order_relaxed);
      break;
    default:
      break;
  }
  switch (call.hook) {
    case Hook::kAllocDevice: {
      auto& p = as<cuMemAlloc_v2_params>(params);
      if (p.dptr == nullptr || p.bytesize == 0 || context == nullptr || !ready()) {
        return;
      }
      const auto device = device_of(context, context);
      // One that no device has room for is refused by the driver itself.
      if (!device || p.bytesize > total_memory(*device)) {
        return;
      }
      state.saved[0] = number(p.dptr);
      state.saved[1] = p.bytesize;
      state.device_out = 0;
      p.dptr = &state.device_out;
      p.bytesize = 0;
      steer = true;
      break;
    }
    case Hook::kAllocPitch: {
      auto& p = as<cuMemAllocPitch_v2_params>(params);
      const auto element = p.ElementSizeBytes;
      if (p.dptr == nullptr || p.pPitch == nullptr || p.WidthInBytes == 0 || p.Height == 0 ||
          (element != 4 && element != 8 && element != 16) || context == nullptr || !ready()) {
        return;
      }
      const auto device = device_of(context, context);
      const std::uint64_t total = device ? total_memory(*device) : 0;
      if (p.WidthInBytes > total || p.Height > total ||
          (p.WidthInBytes + kPitch - 1) / kPitch * kPitch > total / p.Height) {
        return;
      }
      state.saved[0] = number(p.dptr);
      state.saved[1] = number(p.pPitch);
      state.saved[2] = element;
      state.device_out = 0;
      p.dptr = &state.device_out;
      p.pPitch = &state.pitch_out;
      p.ElementSizeBytes = kNoElementSize;
      steer = true;
      break;
    }
    case Hook::kAllocAsync:
    case Hook::kAllocFromPool: {
      // Both begin alike.
      auto& p = as<cuMemAllocAsync_params>(params);
      if (capturing || p.dptr == nullptr || p.bytesize == 0 || context == nullptr || !ready()) {
        return;
      }
      const auto device = device_of(context, context);
      if (!device || p.bytesize > total_memory(*device)) {
        return;
      }
      CUmemoryPool pool = nullptr;
      if (call.hook == Hook::kAllocFromPool) {
        pool = as<cuMemAllocFromPoolAsync_params>(params).pool;
      } else if (driver_.cuDeviceGetMemPool(&pool, *device) != CUDA_SUCCESS) {
        return;
      }
      if (!steers(pool, *device)) {
        return;
      }
      state.saved[0] = number(p.dptr);
      state.saved[1] = p.bytesize;
      state.saved[2] = number(pool);
      state.device_out = 0;
      p.dptr = &state.device_out;
      p.bytesize = 0;
      steer = true;
      break;
    }
    case Hook::kFreeDevice:
    case Hook::kFreeAsync: {
      auto& p = as<cuMemFree_v2_params>(params);  // cuMemFreeAsync begins alike
      if (state_.load(std::memory_order_acquire) != State::kOn ||
          (call.hook == Hook::kFreeAsync && capturing)) {
        return;
      }
      const Lock lock(mutex_);
      const auto at = metas_.find(p.dptr);
      if (at == metas_.end() || at->second.freeing) {
        return;  // a bad free, or another's memory: the driver's to answer
      }
      state.saved[0] = p.dptr;
      if (call.hook == Hook::kFreeAsync) {
        p.dptr = kNoAddress;
      }
      steer = true;
      break;
    }
    case Hook::kAllocHost:
    case Hook::kHostAlloc: {
      auto& p = as<cuMemHostAlloc_params>(params);  // cuMemAllocHost begins alike
      const unsigned flags = call.hook == Hook::kHostAlloc ? p.Flags : 0;
      // While a stream captures, the driver has more to say than is known here.
      if (capturing || p.pp == nullptr || p.bytesize == 0 ||
          (flags & ~static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                                          CU_MEMHOSTALLOC_WRITECOMBINED)) != 0 ||
          context == nullptr || p.bytesize > options_.host_arena_size / 2 || !ready()) {
        return;
      }
      state.saved[0] = number(p.pp);
      state.saved[1] = p.bytesize;
      state.saved[2] = flags;
      state.host_out = nullptr;
      p.pp = &state.host_out;
      p.bytesize = 0;
      steer = true;
      break;
    }
    case Hook::kFreeHost: {
      const auto& p = as<cuMemFreeHost_params>(params);
      if (state_.load(std::memory_order_acquire) != State::kOn) {
        return;
      }
      const Lock lock(mutex_);
      const auto at = host_metas_.find(number(p.p));
      if (at == host_metas_.end() || at->second.freeing) {
        return;
      }
      state.saved[0] = number(p.p);
      steer = true;
      break;
    }
    case Hook::kHostUnregister: {
      // Our own registration is not the app's to undo: to it this is memory of cuMemHostAlloc.
      auto& p = as<cuMemHostUnregister_params>(params);
      if (number(p.p) - options_.host_arena >= options_.host_arena_size ||
          !steered_address(number(p.p))) {
        return;
      }
      state.saved[0] = number(p.p);
      {
        const Lock lock(mutex_);
        const auto at = host_metas_.find(number(p.p));
        state.saved[1] = at != host_metas_.end() && !at->second.freeing ? 1 : 0;
      }
      p.p = &state.host_out;
      steer = true;
      break;
    }
    case Hook::kCreate: {
      auto& p = as<cuMemCreate_params>(params);
      if (p.prop == nullptr || p.prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
          (p.prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        return;
      }
      state.saved[0] = number(p.prop);
      state.properties = *p.prop;
      state.properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(
          state.properties.requestedHandleTypes | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      p.prop = &state.properties;
      steer = true;
      break;
    }
    default:
      return;
  }
  state.correlation = data.correlationId;
  state.active = steer;
}

void Steering::leave(SteeredCall& state, const driver_api::Call& call,
                     const CUpti_CallbackData& data, bool per_thread, CUresult& result) {
  state.active = false;
  const void* params = data.functionParams;
  CUcontext const context = data.context;
  const bool mine = did_nothing(result) || taken_over_.load(std::memory_order_acquire);
  const driver_api::RelaxedCapture relaxed(driver_);
  const auto stream_of = [per_thread](CUstream stream) {
    return stream != nullptr ? stream : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  };
  Meta meta;
  meta.context = context;
  switch (call.hook) {
    case Hook::kAllocDevice: {
      auto& p = as<cuMemAlloc_v2_params>(params);
      p.dptr = reinterpret_cast<CUdeviceptr*>(state.saved[0]);
      p.bytesize = state.saved[1];
      if (!mine) {
        return;
      }
      if (state.device_out != 0) {
        driver_.cuMemFree(state.device_out);
      }
      result = allocate_device(p.dptr, p.bytesize, meta, nullptr);
      if (result == kNotHere) {
        result = driver_.cuMemAlloc(p.dptr, p.bytesize);
      }
      break;
    }
    case Hook::kAllocPitch: {
      auto& p = as<cuMemAllocPitch_v2_params>(params);
      p.dptr = reinterpret_cast<CUdeviceptr*>(state.saved[0]);
      p.pPitch = reinterpret_cast<std::size_t*>(state.saved[1]);
      p.ElementSizeBytes = static_cast<unsigned>(state.saved[2]);
      if (!mine) {
        return;
      }
      if (state.device_out != 0) {
        driver_.cuMemFree(state.device_out);
      }
      const std::uint64_t pitch = (p.WidthInBytes + kPitch - 1) / kPitch * kPitch;
      result = allocate_device(p.dptr, pitch * p.Height, meta, nullptr);
      if (result == CUDA_SUCCESS) {
        *p.pPitch = pitch;
      } else if (result == kNotHere) {
        result =
            driver_.cuMemAllocPitch(p.dptr, p.pPitch, p.WidthInBytes, p.Height, p.ElementSizeBytes);
      }
      break;
    }
    case Hook::kAllocAsync:
    case Hook::kAllocFromPool: {
      auto& p = as<cuMemAllocAsync_params>(params);
      p.dptr = reinterpret_cast<CUdeviceptr*>(state.saved[0]);
      p.bytesize = state.saved[1];
      if (!mine) {
        return;
      }
      const bool from_pool = call.hook == Hook::kAllocFromPool;
      CUstream const stream =
          stream_of(from_pool ? as<cuMemAllocFromPoolAsync_params>(params).hStream : p.hStream);
      auto* const pool = reinterpret_cast<CUmemoryPool>(state.saved[2]);
      if (state.device_out != 0) {
        driver_.cuMemFreeAsync(state.device_out, stream);
      }
      meta.stream_ordered = true;
      meta.pool = pool;
      result = allocate_device(p.dptr, p.bytesize, meta, stream);
      if (result == kNotHere) {
        result = driver_.cuMemAllocFromPoolAsync(p.dptr, p.bytesize, pool, stream);
      }
      break;
    }
    case Hook::kFreeDevice:
      if (mine) {
        result = free_device(state.saved[0], context);
      }
      break;
    case Hook::kFreeAsync: {
      auto& p = as<cuMemFreeAsync_params>(params);
      p.dptr = state.saved[0];
      if (mine) {
        result = free_in_order(state.saved[0], stream_of(p.hStream), context);
      }
      break;
    }
    case Hook::kAllocHost:
    case Hook::kHostAlloc: {
      auto& p = as<cuMemHostAlloc_params>(params);
      p.pp = reinterpret_cast<void**>(state.saved[0]);
      p.bytesize = state.saved[1];
      if (!mine) {
        return;
      }
      if (state.host_out != nullptr) {
        driver_.cuMemFreeHost(state.host_out);
      }
      const auto flags = static_cast<std::uint32_t>(state.saved[2]);
      if (allocate_host(p.pp, p.bytesize, flags, context)) {
        result = CUDA_SUCCESS;
      } else if (taken_over_.load()) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
      } else {
        result = driver_.cuMemHostAlloc(p.pp, p.bytesize, flags);
      }
      break;
    }
    case Hook::kFreeHost:
      if (mine) {
        result = free_host(state.saved[0], context);
      }
      break;
    case Hook::kHostUnregister:
      as<cuMemHostUnregister_params>(params).p = reinterpret_cast<void*>(state.saved[0]);
      if (mine || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
        result =
            state.saved[1] != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
      }
      break;
    case Hook::kCreate: {
      auto& p = as<cuMemCreate_params>(params);
      p.prop = reinterpret_cast<const CUmemAllocationProp*>(state.saved[0]);
      // The app asked for no descriptor: where the driver has none to give, it is not to notice.
      if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        result = driver_.cuMemCreate(p.handle, p.size, p.prop, p.flags);
      } else if (result == CUDA_ERROR_OUT_OF_MEMORY && drain(p.prop->location.id)) {
        result = driver_.cuMemCreate(p.handle, p.size, &state.properties, p.flags);
      }
      break;
    }
    default:
      break;
  }
}

// --- device memory ---

CUresult Steering::allocate(CUdeviceptr* address, std::size_t size) {
  CUcontext context = nullptr;
  if (address == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (driver_.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr || !ready()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Meta meta;
  meta.context = context;
  const CUresult code = allocate_device(address, size, meta, nullptr);
  return code == kNotHere ? CUDA_ERROR_OUT_OF_MEMORY : code;
}

CUresult Steering::free(CUdeviceptr address) {
  CUcontext context = nullptr;
  driver_.cuCtxGetCurrent(&context);
  return free_device(address, context);
}

CUresult Steering::allocate_device(CUdeviceptr* out, std::uint64_t size, Meta meta,
                                   CUstream stream) {
  const auto device = device_of(meta.context, meta.context);
  if (!device) {
    return kNotHere;
  }
  meta.device = *device;
  if (meta.stream_ordered && !taken_over_.load(std::memory_order_acquire)) {
    unsigned long long id = 0;
    if (driver_.cuStreamGetId(stream, &id) == CUDA_SUCCESS) {
      if (const auto address = reuse(id, size, meta)) {
        *out = *address;
        return CUDA_SUCCESS;
      }
    }
  }
  settle_deferred(false);
  std::uint64_t address = 0;
  const CUresult code = take(size, meta, address);
  if (code == CUDA_SUCCESS) {
    *out = address;
  } else if (code == kNotHere) {
    if (fenced()) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    say_once(said_full_,
             "takeover is not possible while some device memory lies outside the arena, which "
             "could not take it");
  }
  return code;
}

CUresult Steering::take(std::uint64_t size, const Meta& meta, std::uint64_t& address) {
  const std::uint64_t owner = number(meta.context);
  const auto note = [&](const Arena::Block& block) {
    Meta& entry = metas_[block.address];
    entry = meta;
    entry.id = next_id_++;
    address = block.address;
  };
  for (bool again = true;; again = false) {
    std::optional<Arena::Chunk> chunk;
    {
      const Lock lock(mutex_);
      if (const auto block = arena_->allocate(size, meta.device, owner)) {
        note(*block);
        return CUDA_SUCCESS;
      }
      chunk = arena_->reserve(size, meta.device, owner);
    }
    CUresult code = kNotHere;
    if (chunk) {
      code = make(*chunk);
      const Lock lock(mutex_);
      if (code == CUDA_SUCCESS) {
        note(arena_->add(*chunk, size, owner));
      } else {
        arena_->give_back(*chunk);
      }
    }
    if (code == CUDA_SUCCESS) {
      // A peer may have been let in while the chunk was made.
      return widen(meta.device);
    }
    if ((code != CUDA_ERROR_OUT_OF_MEMORY && chunk) || !again || !drain(meta.device)) {
      return code == CUDA_ERROR_OUT_OF_MEMORY ? code : kNotHere;
    }
  }
}

std::set<int> Steering::reaching(int device) const {
  std::set<int> devices{device};
  for (const auto& [contexts, pair] : peers_) {
    if (pair.second == device) {
      devices.insert(pair.first);
    }
  }
  for (const auto& [from, to] : pool_peers_) {
    if (to == device) {
      devices.insert(from);
    }
  }
  return devices;
}

CUresult Steering::set_access(const Arena::Chunk& chunk, const std::set<int>& devices,
                              CUmemAccess_flags flags) {
  std::vector<CUmemAccessDesc> access;
  for (const int device : devices) {
    CUmemAccessDesc one{};
    one.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    one.location.id = device;
    one.flags = flags;
    access.push_back(one);
  }
  return driver_.cuMemSetAccess(chunk.address, chunk.size, access.data(), access.size());
}

CUresult Steering::make(Arena::Chunk& chunk) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = chunk.place;
  // As plain memory is, where the device can.
  int rdma = 0;
  if (driver_.cuDeviceGetAttribute(&rdma,
                                   CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                   chunk.place) == CUDA_SUCCESS &&
      rdma != 0) {
    properties.allocFlags.gpuDirectRDMACapable = 1;
  }
  CUmemGenericAllocationHandle handle = 0;
  CUresult code = driver_.cuMemCreate(&handle, chunk.size, &properties, 0);
  if (code != CUDA_SUCCESS) {
    return code;
  }
  chunk.handle = handle;
  const bool mapped = !fenced();
  if (mapped) {
    code = driver_.cuMemMap(chunk.address, chunk.size, 0, handle, 0);
    if (code == CUDA_SUCCESS) {
      std::set<int> devices;
      {
        const Lock lock(mutex_);
        devices = reaching(chunk.place);
      }
      code = set_access(chunk, devices, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      if (code != CUDA_SUCCESS || fenced()) {
        // The fence may not have seen this chunk.
        driver_.cuMemUnmap(chunk.address, chunk.size);
      }
    }
  }
  if (code == CUDA_SUCCESS) {
    if (Sink* const sink = sink_.load(std::memory_order_acquire)) {
      std::string error;
      if (!sink->map_memory({chunk.address, chunk.size, chunk.place, handle}, error) && fenced()) {
        notice_("device memory could not be handed to the standby: " + error);
        code = CUDA_ERROR_OUT_OF_MEMORY;
      }
    }
  }
  if (code != CUDA_SUCCESS) {
    driver_.cuMemRelease(handle);
  } else if (Watcher* const w = watcher()) {
    w->made(SteeredMemory{chunk.address, chunk.size, chunk.place, handle});
  }
  return code;
}

void Steering::unmake(const std::vector<Arena::Chunk>& chunks) {
  for (const Arena::Chunk& chunk : chunks) {
    if (Watcher* const w = watcher()) {
      w->gone(chunk.address);
    }
    if (Sink* const sink = sink_.load(std::memory_order_acquire)) {
      sink->unmap_memory({chunk.address, chunk.size, chunk.place, chunk.handle});
    }
    bool mapped = !fenced();
    if (!mapped) {
      const Lock lock(mutex_);
      mapped = left_mapped_.erase(chunk.address) != 0;
    }
    const bool gone = !mapped || driver_.cuMemUnmap(chunk.address, chunk.size) == CUDA_SUCCESS;
    driver_.cuMemRelease(chunk.handle);
    if (gone) {
      const Lock lock(mutex_);
      arena_->give_back(chunk);
    }
  }
}

bool Steering::drain(int device) {
  bool any = settle_deferred(true);
  std::vector<Arena::Chunk> released;
  {
    const Lock lock(mutex_);
    if (arena_) {
      arena_->drain(device, released);
    }
  }
  any = any || !released.empty();
  unmake(released);
  if (Watcher* const w = watcher()) {
    any = w->let_go() || any;
  }
  return any;
}

// Waits for what may use the memory, as the driver's own frees do.
CUresult Steering::synchronize(CUcontext context, CUcontext current) {
  if (taken_over_.load(std::memory_order_acquire)) {
    Sink* const sink = sink_.load(std::memory_order_acquire);
    return sink != nullptr ? sink->synchronize() : CUDA_SUCCESS;
  }
  CUresult code = current != nullptr ? driver_.cuCtxSynchronize() : CUDA_SUCCESS;
  if (code == CUDA_SUCCESS && context != current && context != nullptr &&
      driver_.cuCtxSetCurrent(context) == CUDA_SUCCESS) {
    code = driver_.cuCtxSynchronize();
    driver_.cuCtxSetCurrent(current);
  }
  return code;
}

std::optional<Steering::Meta> Steering::begin_free(std::uint64_t address) {
  const Lock lock(mutex_);
  const auto at = metas_.find(address);
  if (at == metas_.end() || at->second.freeing) {
    return std::nullopt;
  }
  at->second.freeing = true;
  return at->second;
}

void Steering::cancel_free(std::uint64_t address) {
  const Lock lock(mutex_);
  if (const auto at = metas_.find(address); at != metas_.end()) {
    at->second.freeing = false;
  }
}

void Steering::finish_free(std::uint64_t address) {
  std::vector<Arena::Chunk> released;
  {
    const Lock lock(mutex_);
    metas_.erase(address);
    arena_->free(address, released);
  }
  unmake(released);
}

CUresult Steering::free_device(std::uint64_t address, CUcontext current) {
  const auto meta = begin_free(address);
  if (!meta) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (capturing_.load(std::memory_order_relaxed) && !taken_over_.load(std::memory_order_acquire)) {
    // Nothing may be waited for while a stream captures; it goes when none does.
    const Lock lock(mutex_);
    deferred_.push_back({address, 0, 0, meta->context, nullptr});
    return CUDA_SUCCESS;
  }
  const CUresult code = synchronize(meta->context, current);
  if (code != CUDA_SUCCESS) {
    cancel_free(address);
    return code;
  }
  finish_free(address);
  settle_deferred(false);
  return CUDA_SUCCESS;
}

CUresult Steering::free_in_order(std::uint64_t address, CUstream stream, CUcontext current) {
  const auto meta = begin_free(address);
  if (!meta) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (taken_over_.load(std::memory_order_acquire)) {
    const CUresult code = synchronize(meta->context, current);
    if (code == CUDA_SUCCESS) {
      finish_free(address);
    } else {
      cancel_free(address);
    }
    return code;
  }
  // Not waited for: what the stream waits for may be this thread's to do.
  unsigned long long id = 0;
  CUevent event = nullptr;
  CUresult code = driver_.cuStreamGetId(stream, &id);
  if (code == CUDA_SUCCESS) {
    code = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  }
  if (code == CUDA_SUCCESS) {
    code = driver_.cuEventRecord(event, stream);
  }
  if (code != CUDA_SUCCESS) {
    if (event != nullptr) {
      driver_.cuEventDestroy(event);
    }
    cancel_free(address);
    return code;
  }
  const Lock lock(mutex_);
  const auto at = arena_->blocks().find(address);
  const std::uint64_t room = at != arena_->blocks().end() ? at->second.room : 0;
  deferred_.push_back({address, room, id, meta->context, event});
  return CUDA_SUCCESS;
}

// In the same stream the next user comes after the last one by itself.
std::optional<std::uint64_t> Steering::reuse(std::uint64_t stream, std::uint64_t size,
                                             const Meta& meta) {
  Deferred found;
  {
    const Lock lock(mutex_);
    const std::uint64_t room = arena_->room_of(size);
    const auto at = std::find_if(deferred_.begin(), deferred_.end(), [&](const Deferred& one) {
      return one.event != nullptr && one.stream == stream && one.context == meta.context &&
             one.room == room;
    });
    if (at == deferred_.end() || !arena_->resize(at->address, size)) {
      return std::nullopt;
    }
    found = *at;
    deferred_.erase(at);
    Meta& entry = metas_[found.address];
    entry = meta;
    entry.id = next_id_++;
  }
  driver_.cuEventDestroy(found.event);
  return found.address;
}

// Lets go of what was freed in stream order and has passed. True if anything was.
bool Steering::settle_deferred(bool wait) {
  std::vector<Deferred> mine;
  {
    const Lock lock(mutex_);
    if (deferred_.empty()) {
      return false;
    }
    mine.swap(deferred_);
  }
  bool any = false;
  bool synchronized = false;
  std::vector<Deferred> kept;
  for (const Deferred& one : mine) {
    bool passed = false;
    if (taken_over_.load(std::memory_order_acquire)) {
      // The events are dead. What was pending has been done by the standby, or is waited for.
      synchronized = synchronized || synchronize(nullptr, nullptr) == CUDA_SUCCESS;
      passed = synchronized;
    } else if (one.event == nullptr) {
      CUcontext current = nullptr;
      driver_.cuCtxGetCurrent(&current);
      passed = !capturing_.load(std::memory_order_relaxed) &&
               synchronize(one.context, current) == CUDA_SUCCESS;
    } else {
      passed = (wait ? driver_.cuEventSynchronize(one.event) : driver_.cuEventQuery(one.event)) ==
               CUDA_SUCCESS;
      if (passed) {
        driver_.cuEventDestroy(one.event);
      }
    }
    if (passed) {
      finish_free(one.address);
      any = true;
    } else {
      kept.push_back(one);
    }
  }
  const Lock lock(mutex_);
  // In front: the older ones first.
  deferred_.insert(deferred_.begin(), kept.begin(), kept.end());
  return any;
}

void Steering::context_gone(CUcontext context) {
  if (state_.load(std::memory_order_acquire) != State::kOn) {
    return;
  }
  std::vector<Arena::Chunk> released, released_host;
  {
    const Lock lock(mutex_);
    std::erase_if(metas_, [&](const auto& item) { return item.second.context == context; });
    std::erase_if(host_metas_, [&](const auto& item) { return item.second.context == context; });
    std::erase_if(deferred_, [&](const auto& item) { return item.context == context; });
    std::erase_if(peers_, [&](const auto& item) {
      return item.first.first == context || item.first.second == context;
    });
    devices_.erase(context);
    arena_->free_owner(number(context), released);
    host_arena_->free_owner(number(context), released_host);
    // What is kept of it is registered with a context that is no more.
    std::set<int> places;
    for (const auto& [address, file] : files_) {
      if (file.context == context) {
        places.insert(static_cast<int>(file.host.flags));
      }
    }
    for (const int place : places) {
      host_arena_->drain(place, released_host);
    }
  }
  unmake(released);
  unmake_host(released_host);
}

// --- pinned host memory ---

bool Steering::ours(const HostFile& file) {
  struct stat status {};
  return ::fstat(file.host.fd, &status) == 0 && status.st_ino == file.inode &&
         status.st_dev == file.device;
}

bool Steering::make_host(const Arena::Chunk& chunk, std::uint32_t flags, CUcontext context) {
  HostFile file;
  const int made = ::memfd_create("gpurecover-pinned", MFD_CLOEXEC);
  if (made < 0) {
    return false;
  }
  // Out of the way of the low numbers, which programs hand out by themselves.
  const int moved = ::fcntl(made, F_DUPFD_CLOEXEC, 512);
  file.host.fd = moved >= 0 ? moved : made;
  if (moved >= 0) {
    ::close(made);
  }
  file.host.address = chunk.address;
  file.host.size = chunk.size;
  file.host.flags = flags & (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  file.context = context;
  struct stat status {};
  auto* const wanted = reinterpret_cast<void*>(chunk.address);
  void* at = MAP_FAILED;
  if (::ftruncate(file.host.fd, static_cast<off_t>(chunk.size)) == 0 &&
      ::fstat(file.host.fd, &status) == 0) {
    at = ::mmap(wanted, chunk.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
                file.host.fd, 0);
  }
  if (at != MAP_FAILED && at != wanted) {
    ::munmap(at, chunk.size);
    at = MAP_FAILED;
  }
  file.inode = status.st_ino;
  file.device = status.st_dev;
  bool good = at != MAP_FAILED;
  if (good) {
    // A forked child has no part in it, as with the driver's own.
    ::madvise(at, chunk.size, MADV_DONTFORK);
    good = fenced() || driver_.cuMemHostRegister(at, chunk.size, file.host.flags) == CUDA_SUCCESS;
    if (good) {
      if (Sink* const sink = sink_.load(std::memory_order_acquire)) {
        std::string error;
        good = sink->map_host(file.host, error) || !fenced();
        if (!good) {
          notice_("pinned host memory could not be handed to the standby: " + error);
        }
      }
    }
    if (!good) {
      ::munmap(at, chunk.size);
    }
  }
  if (!good) {
    ::close(file.host.fd);
    return false;
  }
  if (Watcher* const w = watcher()) {
    w->made(file.host);
  }
  const Lock lock(mutex_);
  files_[chunk.address] = file;
  return true;
}

void Steering::unmake_host(const std::vector<Arena::Chunk>& chunks) {
  for (const Arena::Chunk& chunk : chunks) {
    HostFile file;
    {
      const Lock lock(mutex_);
      const auto at = files_.find(chunk.address);
      if (at == files_.end()) {
        continue;
      }
      file = at->second;
      files_.erase(at);
    }
    if (Watcher* const w = watcher()) {
      w->gone(chunk.address);
    }
    if (Sink* const sink = sink_.load(std::memory_order_acquire)) {
      sink->unmap_host(file.host);
    }
    auto* const at = reinterpret_cast<void*>(chunk.address);
    driver_.cuMemHostUnregister(at);  // refused where its context is gone
    ::munmap(at, chunk.size);
    if (ours(file)) {
      ::close(file.host.fd);
    }
    const Lock lock(mutex_);
    host_arena_->give_back(chunk);
  }
}

bool Steering::allocate_host(void** out, std::uint64_t size, std::uint32_t flags,
                             CUcontext context) {
  const int place =
      static_cast<int>(flags & (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  const auto owner = number(context);
  const auto note = [&](const Arena::Block& block) {
    HostMeta& entry = host_metas_[block.address];
    entry.context = context;
    entry.flags = flags;
    entry.id = next_id_++;
    entry.freeing = false;
    *out = reinterpret_cast<void*>(block.address);
  };
  std::optional<Arena::Chunk> chunk;
  {
    const Lock lock(mutex_);
    if (const auto block = host_arena_->allocate(size, place, owner)) {
      // A kept chunk is registered with the context that it was made in.
      const auto file = files_.find(block->chunk);
      if (file != files_.end() && file->second.context == context) {
        note(*block);
        return true;
      }
      std::vector<Arena::Chunk> none;
      host_arena_->free(block->address, none);
    }
    if (files_.size() < kMaxHostFiles) {
      chunk = host_arena_->reserve(size, place, owner);
    }
  }
  if (chunk && make_host(*chunk, flags, context)) {
    const Lock lock(mutex_);
    note(host_arena_->add(*chunk, size, owner));
    return true;
  }
  if (chunk) {
    const Lock lock(mutex_);
    host_arena_->give_back(*chunk);
  }
  say_once(said_host_, "takeover is not possible while some pinned host memory is no shared file");
  return false;
}

CUresult Steering::free_host(std::uint64_t address, CUcontext current) {
  CUcontext context = nullptr;
  {
    const Lock lock(mutex_);
    const auto at = host_metas_.find(address);
    if (at == host_metas_.end() || at->second.freeing) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    at->second.freeing = true;
    context = at->second.context;
  }
  const bool waits =
      !capturing_.load(std::memory_order_relaxed) || taken_over_.load(std::memory_order_acquire);
  const CUresult code = waits ? synchronize(context, current) : CUDA_SUCCESS;
  std::vector<Arena::Chunk> released;
  {
    const Lock lock(mutex_);
    if (code != CUDA_SUCCESS) {
      if (const auto at = host_metas_.find(address); at != host_metas_.end()) {
        at->second.freeing = false;
      }
      return code;
    }
    if (!waits) {
      return CUDA_SUCCESS;  // stays: it may be in use, and nothing may be waited for
    }
    host_metas_.erase(address);
    host_arena_->free(address, released);
  }
  unmake_host(released);
  return CUDA_SUCCESS;
}

// --- what the app asks, and what else it does with memory ---

bool Steering::steered_address(std::uint64_t address) const {
  return state_.load(std::memory_order_acquire) == State::kOn &&
         (address - options_.arena < options_.arena_size ||
          address - options_.host_arena < options_.host_arena_size);
}

// Of an address at which nothing is allocated: as an H200's driver says of any such. `mapped`: it
// lies beside others, in device memory that the driver has not given back.
Steering::Said Steering::nobodys(CUpointer_attribute attribute, bool mapped, void* value) {
  if (mapped && attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
    return Said::kNobody;
  }
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      std::memset(value, 0, size_of(attribute));
      return Said::kValue;
    default:
      return Said::kNobody;
  }
}

Steering::Said Steering::attribute(CUpointer_attribute attribute, std::uint64_t address,
                                   void* value) const {
  const Lock lock(mutex_);
  if (address - options_.host_arena < options_.host_arena_size) {
    const Arena::Block* const block = host_arena_->find(address);
    const auto at = block != nullptr ? host_metas_.find(block->address) : host_metas_.end();
    if (at == host_metas_.end() || at->second.freeing) {
      return nobodys(attribute, false, value);
    }
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_CONTEXT:
        put(value, at->second.context);
        return Said::kValue;
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        put(value, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
        return Said::kValue;
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        put(value, address);
        return Said::kValue;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        put(value, block->address);
        return Said::kValue;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        put(value, block->size);
        return Said::kValue;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        put(value, at->second.id);
        return Said::kValue;
      default:
        return Said::kNotOurs;
    }
  }
  const Arena::Block* const block = arena_->find(address);
  const auto at = block != nullptr ? metas_.find(block->address) : metas_.end();
  if (at == metas_.end() || at->second.freeing) {
    return nobodys(attribute, arena_->in_chunk(address), value);
  }
  const Meta& meta = at->second;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      put(value, meta.stream_ordered ? nullptr : meta.context);  // a pool belongs to a device
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      if (!meta.stream_ordered) {
        return Said::kNotOurs;
      }
      put(value, 0);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      put(value, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      put(value, address);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      put(value, meta.sync_memops);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      put(value, meta.id);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      put(value, 0);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      put(value, meta.device);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      // The truth, and what makes libraries take another way: see kShared below.
      put(value, 0);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      put(value, block->address);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      put(value, block->size);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      put(value, 1);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      put(value, std::uint64_t{0});
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      put(value, meta.pool);
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      if (!fenced()) {
        return Said::kNotOurs;
      }
      put(value, static_cast<int>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
      return Said::kValue;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: {
      const auto chunk = arena_->chunk_of(*block);
      put(value, attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE ? chunk.size : chunk.address);
      return Said::kValue;
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return Said::kNone;
    default:
      return Said::kNotOurs;
  }
}

void Steering::after(const driver_api::Call& call, const CUpti_CallbackData& data,
                     CUresult& result) {
  if (!enabled()) {
    return;
  }
  const void* params = data.functionParams;
  const bool done = result == CUDA_SUCCESS;
  const bool over = taken_over_.load(std::memory_order_acquire);
  switch (call.hook) {
    case Hook::kMemInfo: {
      const auto& p = as<cuMemGetInfo_v2_params>(params);
      const auto device =
          done && data.context != nullptr ? device_of(data.context, data.context) : std::nullopt;
      if (device && p.free != nullptr && state_.load(std::memory_order_acquire) == State::kOn) {
        Watcher* const w = watcher();
        *p.free += w != nullptr ? w->outstanding(*device) : 0;
        const Lock lock(mutex_);
        *p.free += arena_->cached(*device);
      }
      break;
    }
    case Hook::kAddressRange: {
      const auto& p = as<cuMemGetAddressRange_v2_params>(params);
      if (!steered_address(p.dptr) || !(over || did_nothing(result))) {
        break;
      }
      std::uint64_t base = 0;
      std::uint64_t size = 0;
      if (attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p.dptr, &base) != Said::kValue ||
          attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, p.dptr, &size) != Said::kValue) {
        result = CUDA_ERROR_NOT_FOUND;
        break;
      }
      if (p.pbase != nullptr) {
        *p.pbase = base;
      }
      if (p.psize != nullptr) {
        *p.psize = size;
      }
      result = CUDA_SUCCESS;
      break;
    }
    case Hook::kPointerAttribute: {
      const auto& p = as<cuPointerGetAttribute_params>(params);
      if (p.data == nullptr || !steered_address(p.ptr) || !(over || did_nothing(result))) {
        break;
      }
      switch (attribute(p.attribute, p.ptr, p.data)) {
        case Said::kValue:
          result = CUDA_SUCCESS;
          break;
        case Said::kNone:
        case Said::kNobody:
          result = CUDA_ERROR_INVALID_VALUE;
          break;
        case Said::kNotOurs:
          break;
      }
      break;
    }
    case Hook::kPointerAttributes: {
      const auto& p = as<cuPointerGetAttributes_params>(params);
      if (!(done || over) || p.attributes == nullptr || p.data == nullptr ||
          !steered_address(p.ptr)) {
        break;
      }
      for (unsigned i = 0; i < p.numAttributes; ++i) {
        if (p.data[i] == nullptr) {
          continue;
        }
        const CUpointer_attribute which = p.attributes[i];
        const Said said = attribute(which, p.ptr, p.data[i]);
        // What the driver says where there is nothing to say (an H200, driver 580).
        if (said == Said::kNobody && which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
          put(p.data[i], -2);
        } else if (said == Said::kNobody && which == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
          put(p.data[i], p.ptr);
        } else if (said == Said::kNobody || said == Said::kNone) {
          std::memset(p.data[i], 0, size_of(which));
        }
      }
      result = CUDA_SUCCESS;
      break;
    }
    case Hook::kSetPointerAttribute: {
      const auto& p = as<cuPointerSetAttribute_params>(params);
      // Memory of cuMemCreate has none that could be set: "not supported".
      if (p.value == nullptr || p.ptr - options_.arena >= options_.arena_size ||
          !steered_address(p.ptr) ||
          !(over || did_nothing(result) || result == CUDA_ERROR_NOT_SUPPORTED)) {
        break;
      }
      if (p.attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        result = CUDA_ERROR_INVALID_VALUE;
        break;
      }
      const Lock lock(mutex_);
      const Arena::Block* const block = arena_->find(p.ptr);
      const auto at = block != nullptr ? metas_.find(block->address) : metas_.end();
      if (at == metas_.end() || at->second.freeing) {
        result = CUDA_ERROR_INVALID_VALUE;
        break;
      }
      std::memcpy(&at->second.sync_memops, p.value, sizeof at->second.sync_memops);
      at->second.sync_memops = at->second.sync_memops != 0 ? 1 : 0;
      result = CUDA_SUCCESS;
      break;
    }
    case Hook::kHostFlags: {
      const auto& p = as<cuMemHostGetFlags_params>(params);
      const std::uint64_t address = number(p.p);
      if (p.pFlags == nullptr || !steered_address(address) || !(over || did_nothing(result))) {
        break;
      }
      const Lock lock(mutex_);
      const Arena::Block* const block = host_arena_->find(address);
      const auto at = block != nullptr ? host_metas_.find(block->address) : host_metas_.end();
      if (at == host_metas_.end() || at->second.freeing) {
        result = CUDA_ERROR_INVALID_VALUE;
        break;
      }
      // All pinned memory is mapped where addresses are unified (an H200 says so too).
      *p.pFlags = at->second.flags | CU_MEMHOSTALLOC_DEVICEMAP;
      result = CUDA_SUCCESS;
      break;
    }
    case Hook::kHostDevicePointer: {
      const auto& p = as<cuMemHostGetDevicePointer_v2_params>(params);
      const std::uint64_t address = number(p.p);
      if (p.pdptr == nullptr || p.Flags != 0 || !steered_address(address) ||
          !(over || did_nothing(result))) {
        break;
      }
      std::uint64_t base = 0;
      if (address - options_.host_arena >= options_.host_arena_size ||
          attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address, &base) != Said::kValue) {
        result = CUDA_ERROR_INVALID_VALUE;
        break;
      }
      *p.pdptr = address;
      result = CUDA_SUCCESS;
      break;
    }
    case Hook::kHostRegister:
      if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
          steered_address(number(as<cuMemHostRegister_v2_params>(params).p))) {
        result = CUDA_ERROR_INVALID_VALUE;  // as for memory of cuMemHostAlloc
      }
      break;
    case Hook::kShared:
      if (call.name == "cuIpcGetMemHandle" &&
          as<cuIpcGetMemHandle_params>(params).dptr - options_.arena < options_.arena_size &&
          steered_address(as<cuIpcGetMemHandle_params>(params).dptr)) {
        std::uint64_t base = 0;
        if (attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                      as<cuIpcGetMemHandle_params>(params).dptr, &base) == Said::kValue) {
          say_once(said_ipc_,
                   "this program shares device memory by cuIpcGetMemHandle, which memory that can "
                   "be taken over does not support; run it with --no-steer");
          result = CUDA_ERROR_NOT_SUPPORTED;
        } else {
          result = CUDA_ERROR_INVALID_VALUE;
        }
      }
      break;
    case Hook::kHandleRetain: {
      // Plain memory has no handle (1), so steered memory has none for the app.
      const auto& p = as<cuMemRetainAllocationHandle_params>(params);
      if (done && p.handle != nullptr && steered_address(number(p.addr))) {
        driver_.cuMemRelease(*p.handle);
        result = CUDA_ERROR_INVALID_VALUE;
      }
      break;
    }
    case Hook::kCreate: {
      const auto& p = as<cuMemCreate_params>(params);
      if (done && p.handle != nullptr && p.prop != nullptr) {
        Created created;
        created.size = p.size;
        created.device =
            p.prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? p.prop->location.id : -1;
        const Lock lock(mutex_);
        created_[*p.handle] = created;
      }
      break;
    }
    case Hook::kMap:
      if (done) {
        result = after_map(params);
      }
      break;
    case Hook::kUnmap:
      if (done || unmapped_by_fence(params)) {
        after_unmap(params);
        result = CUDA_SUCCESS;
      }
      break;
    case Hook::kPeerEnable:
      if (done) {
        result =
            after_peer(data.context, as<cuCtxEnablePeerAccess_params>(params).peerContext, true);
      }
      break;
    case Hook::kPeerDisable:
      if (done) {
        after_peer(data.context, as<cuCtxDisablePeerAccess_params>(params).peerContext, false);
      }
      break;
    case Hook::kPoolCreate: {
      const auto& p = as<cuMemPoolCreate_params>(params);
      if (done && p.pool != nullptr && p.poolProps != nullptr &&
          p.poolProps->handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
          p.poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        const Lock lock(mutex_);
        pools_[*p.pool] = p.poolProps->location.id;
      }
      break;
    }
    case Hook::kPoolDestroy:
      if (done) {
        const Lock lock(mutex_);
        pools_.erase(as<cuMemPoolDestroy_params>(params).pool);
      }
      break;
    case Hook::kPoolAccess: {
      const auto& p = as<cuMemPoolSetAccess_params>(params);
      if (!done || p.map == nullptr) {
        break;
      }
      int owner = -1;
      {
        const Lock lock(mutex_);
        const auto at = pools_.find(p.pool);
        owner = at != pools_.end() ? at->second : -1;
      }
      // A device's default pool is the other kind that is steered.
      for (CUdevice device = 0; owner < 0; ++device) {
        CUmemoryPool plain = nullptr;
        if (driver_.cuDeviceGetDefaultMemPool(&plain, device) != CUDA_SUCCESS) {
          break;
        }
        owner = plain == p.pool ? device : -1;
      }
      if (owner < 0) {
        break;
      }
      {
        const Lock lock(mutex_);
        for (std::size_t i = 0; i < p.count; ++i) {
          if (p.map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              p.map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
            pool_peers_.emplace(p.map[i].location.id, owner);
          }
        }
      }
      result = widen(owner);
      break;
    }
    case Hook::kArrayCreate:
      if (done) {
        arrays_.fetch_add(1, std::memory_order_relaxed);
      }
      break;
    case Hook::kArrayDestroy:
      if (done) {
        arrays_.fetch_sub(1, std::memory_order_relaxed);
      }
      break;
    default:
      break;
  }
}

// Gives every device that reaches this one access to all of its chunks.
CUresult Steering::widen(int device) {
  if (state_.load(std::memory_order_acquire) != State::kOn || fenced()) {
    return CUDA_SUCCESS;
  }
  const driver_api::RelaxedCapture relaxed(driver_);
  std::set<int> devices;
  std::vector<Arena::Chunk> chunks;
  {
    const Lock lock(mutex_);
    devices = reaching(device);
    if (devices.size() > 1) {
      chunks = arena_->chunks();
    }
  }
  CUresult code = CUDA_SUCCESS;
  for (const Arena::Chunk& chunk : chunks) {
    if (chunk.place == device && code == CUDA_SUCCESS) {
      code = set_access(chunk, devices, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
  return code;
}

CUresult Steering::after_peer(CUcontext context, CUcontext peer, bool enabled) {
  const auto from = device_of(context, context);
  const auto to = device_of(peer, context);
  if (!from || !to) {
    return CUDA_SUCCESS;
  }
  {
    const Lock lock(mutex_);
    if (enabled) {
      peers_[{context, peer}] = {*from, *to};
    } else {
      peers_.erase({context, peer});
    }
  }
  if (enabled) {
    return widen(*to);
  }
  std::vector<Arena::Chunk> chunks;
  {
    const Lock lock(mutex_);
    if (!arena_ || fenced() || reaching(*to).contains(*from)) {
      return CUDA_SUCCESS;
    }
    chunks = arena_->chunks();
  }
  for (const Arena::Chunk& chunk : chunks) {
    if (chunk.place == *to) {
      set_access(chunk, {*from}, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
  return CUDA_SUCCESS;
}

// The memory is kept by a handle of our own while it is mapped: the app's may be released by then.
CUresult Steering::after_map(const void* params) {
  const auto& p = as<cuMemMap_params>(params);
  Mapping mapping;
  mapping.size = p.size;
  CUmemGenericAllocationHandle handle = 0;
  if (driver_.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(p.ptr)) ==
      CUDA_SUCCESS) {
    mapping.handle = handle;
  }
  {
    const Lock lock(mutex_);
    if (const auto at = created_.find(p.handle); at != created_.end()) {
      mapping.device = at->second.device;
      mapping.whole = mapping.device >= 0 && p.offset == 0 && at->second.size == p.size;
    }
    mappings_[p.ptr] = mapping;
  }
  const SteeredMemory memory{p.ptr, p.size, mapping.device, mapping.handle};
  Watcher* const w = watcher();
  if (w != nullptr && mapping.whole && mapping.handle != 0) {
    w->made(memory);
  }
  if (Sink* const sink = sink_.load(std::memory_order_acquire)) {
    std::string error = "only a part of an allocation is mapped, or it is not of cuMemCreate";
    if (!mapping.whole || !sink->map_memory(memory, error)) {
      notice_("cuMemMap, after a takeover: " + error);
      driver_.cuMemUnmap(p.ptr, p.size);
      {
        const Lock lock(mutex_);
        mappings_.erase(p.ptr);
      }
      if (mapping.handle != 0) {
        driver_.cuMemRelease(mapping.handle);
      }
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

// The driver finds nothing where the fence has been; for the program its mappings are there.
bool Steering::unmapped_by_fence(const void* params) const {
  const auto& p = as<cuMemUnmap_params>(params);
  if (!fenced()) {
    return false;
  }
  const Lock lock(mutex_);
  std::uint64_t end = p.ptr;
  for (auto at = mappings_.find(p.ptr);
       at != mappings_.end() && at->first == end && !at->second.here; ++at) {
    end += at->second.size;
    if (end - p.ptr >= p.size) {
      return end - p.ptr == p.size;
    }
  }
  return false;
}

void Steering::after_unmap(const void* params) {
  const auto& p = as<cuMemUnmap_params>(params);
  std::vector<SteeredMemory> gone;
  {
    const Lock lock(mutex_);
    for (auto at = mappings_.lower_bound(p.ptr);
         at != mappings_.end() && at->first - p.ptr < p.size;) {
      gone.push_back({at->first, at->second.size, at->second.device, at->second.handle});
      at = mappings_.erase(at);
    }
  }
  for (const SteeredMemory& memory : gone) {
    if (Watcher* const w = watcher()) {
      w->gone(memory.address);
    }
    if (Sink* const sink = sink_.load(std::memory_order_acquire)) {
      sink->unmap_memory(memory);
    }
    if (memory.handle != 0) {
      driver_.cuMemRelease(memory.handle);
    }
  }
}

bool Steering::describe(idempotency::Allocation& allocation) const {
  if (!steered_address(allocation.address)) {
    return false;
  }
  const Lock lock(mutex_);
  const Arena& arena =
      allocation.address - options_.arena < options_.arena_size ? *arena_ : *host_arena_;
  const Arena::Block* const block = arena.find(allocation.address);
  if (block == nullptr || block->address != allocation.address) {
    return false;
  }
  allocation.gap_before = block->gap_before;
  allocation.gap_after = block->gap_after;
  return true;
}

// --- takeover ---

std::vector<SteeredMemory> Steering::memory() const {
  std::vector<SteeredMemory> all;
  const Lock lock(mutex_);
  if (arena_) {
    for (const Arena::Chunk& chunk : arena_->chunks()) {
      all.push_back({chunk.address, chunk.size, chunk.place, chunk.handle});
    }
  }
  for (const auto& [address, mapping] : mappings_) {
    all.push_back({address, mapping.size, mapping.device, mapping.handle});
  }
  return all;
}

std::vector<SharedHost> Steering::hosts() const {
  std::vector<SharedHost> all;
  const Lock lock(mutex_);
  for (const auto& [address, file] : files_) {
    all.push_back(file.host);
  }
  return all;
}

std::string Steering::obstacle() const {
  if (!enabled()) {
    return "memory is not steered in this process";
  }
  if (state_.load(std::memory_order_acquire) == State::kOff) {
    return "the address range that device memory must lie in is not free";
  }
  for (const auto& allocation : memory_.snapshot()) {
    const std::string size = " (" + std::to_string(allocation.size) + " bytes)";
    switch (allocation.kind) {
      case AllocationKind::kModuleGlobal:
        break;
      case AllocationKind::kManaged:
        return "managed memory is in use" + size;
      case AllocationKind::kHostRegistered:
        return "the program has registered host memory of its own" + size;
      case AllocationKind::kArray:
        return "an array is in use";
      case AllocationKind::kIpcImport:
        return "memory of another process is in use" + size;
      case AllocationKind::kExternal:
        return "external memory is in use" + size;
      case AllocationKind::kVirtual: {
        const Lock lock(mutex_);
        const auto at = mappings_.find(allocation.address);
        if (at == mappings_.end() || at->second.handle == 0) {
          return "memory that the program mapped itself cannot be handed over" + size;
        }
        if (!at->second.whole) {
          return "the program has mapped a part of an allocation, or no device memory" + size;
        }
        break;
      }
      case AllocationKind::kPinnedHost:
        if (!steered_address(allocation.address)) {
          return "pinned host memory that is no shared file is in use" + size;
        }
        break;
      case AllocationKind::kStreamOrdered:
      case AllocationKind::kDevice:
      case AllocationKind::kPitched:
        if (!steered_address(allocation.address)) {
          return allocation.kind == AllocationKind::kStreamOrdered
                     ? "memory of a pool of the driver's is in use" + size
                     : "device memory outside the arena is in use" + size;
        }
        break;
    }
    if (allocation.host_visible && allocation.kind != AllocationKind::kPinnedHost &&
        allocation.kind != AllocationKind::kModuleGlobal) {
      return "device memory is shared with others" + size;
    }
  }
  if (arrays_.load(std::memory_order_relaxed) > 0) {
    return "an array is in use";
  }
  const Lock lock(mutex_);
  for (const auto& [address, file] : files_) {
    if (!ours(file)) {
      return "the program has closed the file behind pinned host memory";
    }
  }
  return {};
}

bool Steering::fence(bool drained, std::string& error) {
  fenced_.store(true, std::memory_order_release);
  if (drained) {
    const Lock lock(mutex_);
    if (arena_) {
      for (const Arena::Chunk& chunk : arena_->chunks()) {
        left_mapped_.insert(chunk.address);
      }
    }
    return true;
  }
  bool all = true;
  for (const SteeredMemory& one : memory()) {
    const CUresult code = driver_.cuMemUnmap(one.address, one.size);
    if (code != CUDA_SUCCESS) {
      error = "cuMemUnmap returned " + std::to_string(static_cast<int>(code));
      all = false;
    }
  }
  const Lock lock(mutex_);
  for (auto& [address, mapping] : mappings_) {
    mapping.here = false;
  }
  return all;
}

int Steering::export_fd(const SteeredMemory& memory) const {
  int fd = -1;
  if (memory.handle == 0 ||
      driver_.cuMemExportToShareableHandle(
          &fd, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS) {
    return -1;
  }
  return fd;
}

int Steering::copy_fd(const SharedHost& host) const {
  const Lock lock(mutex_);
  const auto at = files_.find(host.address);
  if (at == files_.end() || at->second.host.fd != host.fd || !ours(at->second)) {
    return -1;
  }
  return ::fcntl(host.fd, F_DUPFD_CLOEXEC, 512);
}

}  // namespace gpurecover::agent
