// SPDX-License-Identifier: Apache-2.0
// Allocation, pointer attributes, copies, sets, stream-ordered allocation, legacy IPC, and the
// virtual memory calls.
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "driver_api.h"
#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {
namespace {

constexpr uint8_t kR = DeviceMemory::kRead, kW = DeviceMemory::kWrite;
constexpr unsigned kDeviceKinds =
    Memory::Bit(MemoryKind::kDevice) | Memory::Bit(MemoryKind::kManaged);

CUcontext HandleOf(const std::shared_ptr<Context>& context) {
  return reinterpret_cast<CUcontext>(context.get());
}

CUresult Allocate(CUdeviceptr* out, uint64_t bytes, MemoryKind kind, unsigned flags = 0) {
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  const uint64_t address =
      Memory::Get().Allocate(bytes, kind, context->device, HandleOf(context), flags);
  if (!address)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *out = address;
  return CUDA_SUCCESS;
}

/// Some device of ours holds this address (pinned host memory included).
bool Known(uint64_t address) {
  Allocation a;
  return Memory::Get().Find(address, &a);
}

/// One end of a copy: device memory must be mapped, host memory is taken as it is.
bool GoodEnd(uint64_t address, uint64_t bytes, int device, uint8_t need, bool must_be_device) {
  if (!bytes)
    return true;
  if (!address)
    return false;
  Allocation a;
  if (!Memory::Get().Find(address, &a))
    return !must_be_device;
  if (a.kind == MemoryKind::kRegistered || a.kind == MemoryKind::kHost)
    return true;
  if (bytes > a.size - (address - a.base)) {
    // A copy may run over several mappings that lie side by side, but not out of mapped memory.
    return a.kind == MemoryKind::kMapped && Memory::Get().Accessible(address, bytes, device, need);
  }
  // Copies reach other devices' memory without peer access.
  return a.kind != MemoryKind::kMapped || Memory::Get().Accessible(address, bytes, device, need) ||
         (a.device >= 0 && Memory::Get().Accessible(address, bytes, a.device, need));
}

enum class Side { kHost, kDevice, kEither };

/// The common form of all linear copies. `blocking`: the caller's form is the synchronous one.
CUresult Copy(uint64_t to, Side to_side, uint64_t from, Side from_side, uint64_t bytes,
              CUstream stream_handle, bool blocking) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  const int device = stream->context->device;
  if (!GoodEnd(to, bytes, device, kW, to_side == Side::kDevice) ||
      !GoodEnd(from, bytes, device, kR, from_side == Side::kDevice))
    return CUDA_ERROR_INVALID_VALUE;
  if (!bytes)
    return CUDA_SUCCESS;
  Memory& memory = Memory::Get();
  const bool from_pageable = !memory.Pinned(from, 1);
  const bool to_pageable = !memory.Pinned(to, 1);
  Operation operation;
  operation.kind = Operation::Kind::kCopy;
  void* target = reinterpret_cast<void*>(to);
  if (from_pageable && !to_pageable) {
    // The source may change once the call has returned: its content is taken now.
    const char* source = reinterpret_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(source, source + bytes);
    operation.run = [staged, target, bytes] { memcpy(target, staged->data(), bytes); };
    // Also the synchronous form returns when the content is taken.
    Issue(stream, std::move(operation));
    return CUDA_SUCCESS;
  }
  const void* source = reinterpret_cast<const void*>(from);
  operation.run = [target, source, bytes] { memmove(target, source, bytes); };
  Allocation a, b;
  const bool inside_device = memory.Find(from, &a) && memory.Find(to, &b) &&
                             a.kind != MemoryKind::kHost && a.kind != MemoryKind::kRegistered &&
                             b.kind != MemoryKind::kHost && b.kind != MemoryKind::kRegistered;
  // Into pageable memory even the asynchronous form returns when the bytes are there.
  if (to_pageable || (blocking && !inside_device))
    return IssueAndWait(stream, std::move(operation));
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

template <class T>
CUresult Set(CUdeviceptr to, uint64_t pitch, T value, uint64_t width, uint64_t height,
             CUstream stream_handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  if (!width || !height)
    return CUDA_SUCCESS;
  if (height == 1)
    pitch = width * sizeof(T);
  if (to % sizeof(T) || pitch % sizeof(T) || pitch < width * sizeof(T) ||
      !GoodEnd(to, pitch * (height - 1) + width * sizeof(T), stream->context->device, kW, true))
    return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.run = [=] {
    for (uint64_t row = 0; row < height; ++row) {
      T* line = reinterpret_cast<T*>(to + row * pitch);
      std::fill(line, line + width, value);
    }
  };
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

/// 2D and 3D copies of linear memory, as rows.
CUresult CopyBox(const CUDA_MEMCPY3D& box, CUstream stream_handle, bool blocking) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  if (box.srcMemoryType == CU_MEMORYTYPE_ARRAY || box.dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return NotSupported("copies from and to arrays");
  const uint64_t width = box.WidthInBytes, height = box.Height, depth = box.Depth;
  if (!width || !height || !depth)
    return CUDA_SUCCESS;
  const uint64_t from_pitch = box.srcPitch ? box.srcPitch : width;
  const uint64_t to_pitch = box.dstPitch ? box.dstPitch : width;
  const uint64_t from_rows = box.srcHeight ? box.srcHeight : height;
  const uint64_t to_rows = box.dstHeight ? box.dstHeight : height;
  if ((height > 1 || depth > 1) && (from_pitch < width || to_pitch < width))
    return CUDA_ERROR_INVALID_VALUE;
  if (depth > 1 && (from_rows < height || to_rows < height))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t from = box.srcMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(box.srcHost)
                                                          : box.srcDevice;
  uint64_t to = box.dstMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(box.dstHost)
                                                        : box.dstDevice;
  from += box.srcXInBytes + box.srcY * from_pitch + box.srcZ * from_pitch * from_rows;
  to += box.dstXInBytes + box.dstY * to_pitch + box.dstZ * to_pitch * to_rows;
  const uint64_t from_bytes = ((depth - 1) * from_rows + height - 1) * from_pitch + width;
  const uint64_t to_bytes = ((depth - 1) * to_rows + height - 1) * to_pitch + width;
  const int device = stream->context->device;
  if (!GoodEnd(from, from_bytes, device, kR, box.srcMemoryType == CU_MEMORYTYPE_DEVICE) ||
      !GoodEnd(to, to_bytes, device, kW, box.dstMemoryType == CU_MEMORYTYPE_DEVICE))
    return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.run = [=] {
    for (uint64_t z = 0; z < depth; ++z)
      for (uint64_t y = 0; y < height; ++y)
        memmove(reinterpret_cast<void*>(to + (z * to_rows + y) * to_pitch),
                reinterpret_cast<const void*>(from + (z * from_rows + y) * from_pitch), width);
  };
  Memory& memory = Memory::Get();
  // Pageable memory is not staged here: the call waits, which no program can tell from staging.
  if (blocking || !memory.Pinned(from, 1) || !memory.Pinned(to, 1))
    return IssueAndWait(stream, std::move(operation));
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUDA_MEMCPY3D ToBox(const CUDA_MEMCPY2D& c) {
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = c.srcXInBytes;
  box.srcY = c.srcY;
  box.srcMemoryType = c.srcMemoryType;
  box.srcHost = c.srcHost;
  box.srcDevice = c.srcDevice;
  box.srcPitch = c.srcPitch;
  box.dstXInBytes = c.dstXInBytes;
  box.dstY = c.dstY;
  box.dstMemoryType = c.dstMemoryType;
  box.dstHost = c.dstHost;
  box.dstDevice = c.dstDevice;
  box.dstPitch = c.dstPitch;
  box.WidthInBytes = c.WidthInBytes;
  box.Height = c.Height;
  box.Depth = 1;
  return box;
}

/// What an IPC handle of plain memory says.
struct IpcMemory {
  char magic[8];
  int pid;
  int fd;
  uint64_t offset;
  uint64_t size;
  int device;
};
constexpr char kIpcMagic[8] = {'s', 'o', 'f', 't', 'm', 'e', 'm', '1'};

CUresult PointerAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Allocation a;
  const bool found = Memory::Get().Find(address, &a);
  // As an H200 says it: of an address that is free beside others it knows less than of one where
  // nothing ever was, and memory is mapped by the 2 MiB.
  const bool beside = !found && Memory::Get().Beside(address);
  constexpr uint64_t kMapped = 2 << 20;
  const bool host = a.kind == MemoryKind::kHost || a.kind == MemoryKind::kRegistered;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUcontext*>(data) = a.pool ? nullptr : a.context;  // a pool is a device's
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<unsigned*>(data) = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(data) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!found || (!host && a.kind != MemoryKind::kManaged))
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = reinterpret_cast<void*>(address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<int*>(data) = a.sync_memops;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<unsigned long long*>(data) = a.id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<int*>(data) = a.kind == MemoryKind::kManaged;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      auto context = State::Get().contexts.Find(a.context);
      *static_cast<int*>(data) = a.device >= 0 ? a.device : context ? context->device : -2;
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = found && a.kind == MemoryKind::kDevice && !a.pool;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(data) = a.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<size_t*>(data) = a.size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      if (beside)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<int*>(data) = found;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      if (beside)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<unsigned long long*>(data) =
          found && a.physical ? a.physical->properties.requestedHandleTypes : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      if (beside)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<int*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<int*>(data) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      if (beside)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUmemoryPool*>(data) = static_cast<CUmemoryPool>(a.pool);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      if (!found || host)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<size_t*>(data) =
          (a.base + a.size + kMapped - 1) / kMapped * kMapped - a.base / kMapped * kMapped;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      if (!found || host)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(data) = a.base / kMapped * kMapped;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      if (!found)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<unsigned long long*>(data) = a.id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// Bytes that a value of the attribute takes, for those that answer "nothing" to unknown pointers.
size_t AttributeSize(CUpointer_attribute attribute) {
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

}  // namespace

namespace api {

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  if (!free_bytes || !total)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  *total = Memory::Get().capacity();
  *free_bytes = *total - Memory::Get().used(context->device);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return Allocate(out, bytes, MemoryKind::kDevice);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                            unsigned int element) {
  if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t row = (width + 511) / 512 * 512;
  if (row < width || row > (~0ull) / height)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Allocate(out, row * height, MemoryKind::kDevice);
  if (result == CUDA_SUCCESS)
    *pitch = row;
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  return Allocate(out, bytes, MemoryKind::kManaged, flags);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  if (!address)
    return CUDA_SUCCESS;
  Allocation a;
  if (!Memory::Get().Find(address, &a) || a.base != address ||
      !(Memory::Bit(a.kind) & kDeviceKinds))
    return CUDA_ERROR_INVALID_VALUE;
  // Freed memory must not be in use: the call waits, as the device's does.
  if (const CUresult result = SynchronizeDevice(std::max(a.device, 0)))
    return result;
  return Memory::Get().Free(address, kDeviceKinds) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Allocation a;
  if (!Memory::Get().Find(address, &a))
    return CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = a.base;
  if (size)
    *size = a.size;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned int flags) {
  if (flags & ~7u)
    return CUDA_ERROR_INVALID_VALUE;
  if (out && !bytes) {
    *out = nullptr;
    return CUDA_SUCCESS;
  }
  CUdeviceptr address = 0;
  const CUresult result = Allocate(out ? &address : nullptr, bytes, MemoryKind::kHost, flags);
  if (result == CUDA_SUCCESS)
    *out = reinterpret_cast<void*>(address);
  return result;
}

CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  return api::cuMemHostAlloc(out, bytes, 0);
}

CUresult cuMemFreeHost(void* pointer) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  if (!pointer)
    return CUDA_SUCCESS;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Allocation a;
  if (!Memory::Get().Find(address, &a) || a.base != address || a.kind != MemoryKind::kHost)
    return CUDA_ERROR_INVALID_VALUE;
  for (const Device& device : State::Get().devices)
    if (const CUresult result = SynchronizeDevice(device.index))
      return result;
  Memory::Get().Free(address, Memory::Bit(MemoryKind::kHost));
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned int flags) {
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  Allocation a;
  if (!Memory::Get().Find(reinterpret_cast<uint64_t>(pointer), &a) ||
      (a.kind != MemoryKind::kHost && a.kind != MemoryKind::kRegistered))
    return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  if (!flags)
    return CUDA_ERROR_INVALID_VALUE;
  Allocation a;
  if (!Memory::Get().Find(reinterpret_cast<uint64_t>(pointer), &a) ||
      (a.kind != MemoryKind::kHost && a.kind != MemoryKind::kRegistered))
    return CUDA_ERROR_INVALID_VALUE;
  // With unified addresses, all pinned memory is mapped.
  *flags = a.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  if (flags & ~15u)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
    return NotSupported("CU_MEMHOSTREGISTER_IOMEMORY");
  return Memory::Get().Register(reinterpret_cast<uint64_t>(pointer), bytes, flags,
                                HandleOf(context));
}

CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  return api::cuMemHostRegister_v2(pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void* pointer) {
  for (const Device& device : State::Get().devices)
    if (const CUresult result = SynchronizeDevice(device.index))
      return result;
  return Memory::Get().Unregister(reinterpret_cast<uint64_t>(pointer));
}

// --- pointer attributes ---

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (!data)
    return CUDA_ERROR_INVALID_VALUE;
  return PointerAttribute(data, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  if (!count || !attributes || !data)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] <= 0 || attributes[i] > CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)
      return CUDA_ERROR_INVALID_VALUE;
    // An attribute that a pointer does not have is answered with nothing, not with an error.
    if (PointerAttribute(data[i], attributes[i], address) != CUDA_SUCCESS) {
      memset(data[i], 0, AttributeSize(attributes[i]));
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *static_cast<int*>(data[i]) = -2;
      else if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && !Known(address))
        *static_cast<void**>(data[i]) = reinterpret_cast<void*>(address);
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr address) {
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !Known(address))
    return CUDA_ERROR_INVALID_VALUE;
  Memory::Get().SetSyncMemops(address, *static_cast<const unsigned*>(value) != 0);
  return CUDA_SUCCESS;
}

// --- linear copies ---

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(to, Side::kEither, from, Side::kEither, bytes, nullptr, true);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kEither, from, Side::kEither, bytes, stream, false);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return Copy(to, Side::kDevice, reinterpret_cast<uint64_t>(from), Side::kHost, bytes, nullptr,
              true);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kDevice, reinterpret_cast<uint64_t>(from), Side::kHost, bytes, stream,
              false);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return Copy(reinterpret_cast<uint64_t>(to), Side::kHost, from, Side::kDevice, bytes, nullptr,
              true);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(reinterpret_cast<uint64_t>(to), Side::kHost, from, Side::kDevice, bytes, stream,
              false);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(to, Side::kDevice, from, Side::kDevice, bytes, nullptr, true);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kDevice, from, Side::kDevice, bytes, stream, false);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return Copy(to, Side::kDevice, from, Side::kDevice, bytes, nullptr, true);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                           CUstream stream) {
  return Copy(to, Side::kDevice, from, Side::kDevice, bytes, stream, false);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy ? CopyBox(ToBox(*copy), nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return api::cuMemcpy2D_v2(copy);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy ? CopyBox(ToBox(*copy), stream, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy ? CopyBox(*copy, nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy ? CopyBox(*copy, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

// --- sets ---

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return Set<uint8_t>(to, 0, value, count, 1, nullptr);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return Set<uint16_t>(to, 0, value, count, 1, nullptr);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  return Set<uint32_t>(to, 0, value, count, 1, nullptr);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return Set<uint8_t>(to, 0, value, count, 1, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return Set<uint16_t>(to, 0, value, count, 1, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return Set<uint32_t>(to, 0, value, count, 1, stream);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                         size_t height) {
  return Set<uint8_t>(to, pitch, value, width, height, nullptr);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                          size_t height) {
  return Set<uint16_t>(to, pitch, value, width, height, nullptr);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                          size_t height) {
  return Set<uint32_t>(to, pitch, value, width, height, nullptr);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream) {
  return Set<uint8_t>(to, pitch, value, width, height, stream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                            size_t height, CUstream stream) {
  return Set<uint16_t>(to, pitch, value, width, height, stream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                            size_t height, CUstream stream) {
  return Set<uint32_t>(to, pitch, value, width, height, stream);
}

// --- managed memory: nothing moves ---

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice, CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  Allocation a;
  if (!bytes || !Memory::Get().Find(address, &a) || a.kind != MemoryKind::kManaged)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned int flags,
                               CUstream stream) {
  return flags ? CUDA_ERROR_INVALID_VALUE : api::cuMemPrefetchAsync(address, bytes, 0, stream);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise, CUdevice) {
  Allocation a;
  if (!bytes || !Memory::Get().Find(address, &a) || a.kind != MemoryKind::kManaged)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation) {
  return api::cuMemAdvise(address, bytes, advice, 0);
}

// --- stream-ordered allocation ---

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool handle,
                                 CUstream stream_handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  if (!bytes) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  auto pool = State::Get().pools.Find(handle);
  if (!pool)
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t address =
      Memory::Get().Allocate(bytes, MemoryKind::kDevice, pool->device,
                             reinterpret_cast<CUcontext>(stream->context), 0, pool.get());
  if (!address)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t used = pool->used += bytes;
  uint64_t high = pool->used_high;
  while (high < used && !pool->used_high.compare_exchange_weak(high, used)) {
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream_handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  return api::cuMemAllocFromPoolAsync(
      out, bytes,
      reinterpret_cast<CUmemoryPool>(State::Get().devices[stream->context->device].pool.get()),
      stream_handle);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream_handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  if (!address)
    return CUDA_SUCCESS;
  Allocation a;
  if (!Memory::Get().Find(address, &a) || a.base != address || a.kind != MemoryKind::kDevice)
    return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.run = [address, bytes = a.size, pool = a.pool] {
    if (auto p = State::Get().pools.Find(pool))
      p->used -= bytes;
    Memory::Get().Free(address, Memory::Bit(MemoryKind::kDevice));
  };
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  *out = reinterpret_cast<CUmemoryPool>(State::Get().devices[device].default_pool.get());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  *out = reinterpret_cast<CUmemoryPool>(State::Get().devices[device].pool.get());
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  if (const CUresult result = NeedDevice(device))
    return result;
  auto pool = State::Get().pools.Find(handle);
  if (!pool || pool->device != device)
    return CUDA_ERROR_INVALID_VALUE;
  State::Get().devices[device].pool = std::move(pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  if (!out || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(properties->location.id))
    return result;
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return NotSupported("a shareable memory pool");
  auto pool = std::make_shared<Pool>();
  pool->device = properties->location.id;
  pool->properties = *properties;
  State::Get().pools.Add(pool);
  *out = reinterpret_cast<CUmemoryPool>(pool.get());
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  State& state = State::Get();
  for (Device& device : state.devices) {
    if (reinterpret_cast<CUmemoryPool>(device.default_pool.get()) == handle)
      return CUDA_ERROR_INVALID_VALUE;
    if (reinterpret_cast<CUmemoryPool>(device.pool.get()) == handle)
      device.pool = device.default_pool;
  }
  return state.pools.Take(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return State::Get().pools.Find(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  auto pool = State::Get().pools.Find(handle);
  if (!pool || !value)
    return CUDA_ERROR_INVALID_VALUE;
  auto* number = static_cast<int*>(value);
  auto* bytes = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *number = pool->reuse_event;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *number = pool->reuse_opportunistic;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *number = pool->reuse_internal;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *bytes = pool->release_threshold;
      return CUDA_SUCCESS;
    // Memory goes back when it is freed: what is reserved is what is used.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *bytes = pool->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *bytes = pool->used_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  auto pool = State::Get().pools.Find(handle);
  if (!pool || !value)
    return CUDA_ERROR_INVALID_VALUE;
  const int number = *static_cast<int*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_event = number;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_opportunistic = number;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_internal = number;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value))
        return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used.load();
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// --- legacy IPC ---

CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  IpcMemory ipc{};
  memcpy(ipc.magic, kIpcMagic, sizeof ipc.magic);
  ipc.pid = getpid();
  if (!Memory::Get().PlainFile(address, &ipc.fd, &ipc.offset, &ipc.size, &ipc.device))
    return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof ipc <= sizeof *out);
  memset(out, 0, sizeof *out);
  memcpy(out, &ipc, sizeof ipc);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  IpcMemory ipc;
  memcpy(&ipc, &handle, sizeof ipc);
  if (memcmp(ipc.magic, kIpcMagic, sizeof ipc.magic) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (ipc.pid == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;  // a process does not open its own
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc.pid, ipc.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return CUDA_ERROR_MAP_FAILED;
  const uint64_t address =
      Memory::Get().MapImported(fd, ipc.offset, ipc.size, context->device, HandleOf(context));
  close(fd);
  if (!address)
    return CUDA_ERROR_MAP_FAILED;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  return api::cuIpcOpenMemHandle_v2(out, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  for (const Device& device : State::Get().devices)
    if (const CUresult result = SynchronizeDevice(device.index))
      return result;
  return Memory::Get().UnmapImported(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// --- virtual memory management ---

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  if (!granularity || !properties)
    return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!out || !properties || flags)
    return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Create(size, *properties, out);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Memory::Get().Release(handle);
}

CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  const CUresult result = Memory::Get().Reserve(size, alignment, wish, &address);
  if (result == CUDA_SUCCESS)
    *out = address;
  return result;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return Memory::Get().Unreserve(address, size);
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Map(address, size, offset, handle);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return Memory::Get().Unmap(address, size);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* descriptors,
                        size_t count) {
  return Memory::Get().SetAccess(address, size, descriptors, count);
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  if (!flags || !location)
    return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().GetAccess(address, *location, flags);
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  return Memory::Get().Export(handle, static_cast<int*>(out));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  return Memory::Get().Import(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), out);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Retain(reinterpret_cast<uint64_t>(address), out);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out,
                                                CUmemGenericAllocationHandle handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Properties(handle, out);
}

}  // namespace api
}  // namespace gpurecover::softgpu
