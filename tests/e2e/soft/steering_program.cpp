// SPDX-License-Identifier: Apache-2.0
//
// What a program sees of its memory: run alone and under `gpurecover run`, its output must be the
// same. Addresses are printed as offsets, handles and ids by what they equal. One mode:
//
//   queries   attributes, ranges, bad frees, sizes that no device has
//   host      pinned host memory
//   order     stream-ordered memory
//   capture   allocations while a stream captures
//   full      allocates until there is no room, frees, goes on; twice
//   vmm       memory of cuMemCreate of the program's own
//   sharing   what cuIpcGetMemHandle answers (differs under steering: docs/steering.md)
//   threads   allocations and frees of several threads, contents checked
//
// It runs on a GPU too: nothing here knows which device it is.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

// clang-format off
#define FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
  X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemAllocPitch_v2) X(cuMemGetInfo_v2) \
  X(cuMemGetAddressRange_v2) X(cuPointerGetAttribute) X(cuPointerGetAttributes) \
  X(cuPointerSetAttribute) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemsetD8_v2) \
  X(cuMemHostAlloc) X(cuMemAllocHost_v2) X(cuMemFreeHost) X(cuMemHostGetFlags) \
  X(cuMemHostGetDevicePointer_v2) X(cuMemHostRegister_v2) X(cuMemHostUnregister) \
  X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemAllocFromPoolAsync) X(cuMemPoolCreate) \
  X(cuMemPoolDestroy) X(cuDeviceGetDefaultMemPool) X(cuStreamCreate) X(cuStreamDestroy_v2) \
  X(cuStreamSynchronize) X(cuMemcpyDtoHAsync_v2) X(cuMemsetD8Async) X(cuStreamBeginCapture_v2) \
  X(cuStreamEndCapture) X(cuThreadExchangeStreamCaptureMode) X(cuMemCreate) X(cuMemRelease) \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) \
  X(cuMemRetainAllocationHandle) X(cuMemGetAllocationGranularity) X(cuIpcGetMemHandle)
// clang-format on
#define X(name) void* name##_p;
FUNCTIONS(X)
#undef X
#define CU(name) (reinterpret_cast<decltype(&::name)>(name##_p))

CUcontext the_context;
CUdevice the_device;

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) {
    std::printf("failed %s: %d\n", what, static_cast<int>(code));
    std::exit(2);
  }
}
#define MUST(call) must(call, #call)
#define SAY(call) std::printf("%s = %d\n", #call, static_cast<int>(call))

void attributes_of(const char* name, CUdeviceptr address, CUdeviceptr base) {
  std::printf("-- %s\n", name);
  const auto number = [&](const char* what, CUpointer_attribute attribute, std::size_t bytes) {
    std::uint64_t value = 0;
    const CUresult code = CU(cuPointerGetAttribute)(&value, attribute, address);
    std::printf("%s: %d", what, static_cast<int>(code));
    if (code == CUDA_SUCCESS) {
      if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) {
        std::printf(value == reinterpret_cast<std::uint64_t>(the_context) ? " the context"
                    : value == 0                                          ? " none"
                                                                          : " another");
      } else if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
                 attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID) {
        std::printf(value != 0 ? " an id" : " 0");
      } else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                 attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                 attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                 attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR) {
        std::printf(" base%+lld", static_cast<long long>(value - base));
      } else if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
        CUmemoryPool pool = nullptr;
        CU(cuDeviceGetDefaultMemPool)(&pool, the_device);
        std::printf(value == 0                                       ? " none"
                    : value == reinterpret_cast<std::uint64_t>(pool) ? " the default pool"
                                                                     : " another");
      } else {
        std::printf(" %lld", bytes == 4 ? static_cast<long long>(static_cast<int>(value))
                                        : static_cast<long long>(value));
      }
    }
    std::printf("\n");
  };
  number("context", CU_POINTER_ATTRIBUTE_CONTEXT, 8);
  number("type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4);
  number("device pointer", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 8);
  number("host pointer", CU_POINTER_ATTRIBUTE_HOST_POINTER, 8);
  number("sync memops", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4);
  number("buffer id", CU_POINTER_ATTRIBUTE_BUFFER_ID, 8);
  number("managed", CU_POINTER_ATTRIBUTE_IS_MANAGED, 4);
  number("ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4);
  number("range start", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 8);
  number("range size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8);
  number("mapped", CU_POINTER_ATTRIBUTE_MAPPED, 4);
  number("handle types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 8);
  number("rdma capable", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 4);
  number("access", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 4);
  number("pool", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 8);
  // Where allocations lie beside each other is the allocator's own business.
  CUdeviceptr mapping = 0, start_of = 0;
  std::size_t mapped = 0, bytes = 0;
  const CUresult known[] = {
      CU(cuPointerGetAttribute)(&mapped, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address),
      CU(cuPointerGetAttribute)(&mapping, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address),
      CU(cuPointerGetAttribute)(&start_of, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address),
      CU(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)};
  std::printf("mapping: %d %d", known[0], known[1]);
  if (std::count(std::begin(known), std::end(known), CUDA_SUCCESS) == 4) {
    std::printf(" contains it %d, of whole pages %d",
                mapping <= start_of && start_of + bytes <= mapping + mapped,
                mapping % (2 << 20) == 0 && mapped % (2 << 20) == 0);
  }
  std::printf("\n");
  number("block id", CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 8);

  // What cudart's cudaPointerGetAttributes asks.
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
  CUcontext context = nullptr;
  unsigned type = 77, managed = 77;
  CUdeviceptr device = 77, host = 77;
  int ordinal = 77;
  std::size_t size = 77;
  unsigned long long id = 77;
  void* data[] = {&context, &type, &device, &host, &managed, &ordinal, &size, &id};
  const CUresult code = CU(cuPointerGetAttributes)(8, which, data, address);
  std::printf("all: %d %s %u %lld %lld %u %d %zu %d\n", static_cast<int>(code),
              context == the_context ? "the context"
              : context == nullptr   ? "none"
                                     : "another",
              type, device == 0 ? 0LL : static_cast<long long>(device - base),
              host == 0 ? -1LL : static_cast<long long>(host - base), managed, ordinal, size,
              id != 0);
  CUdeviceptr start = 0;
  std::size_t length = 0;
  const CUresult range = CU(cuMemGetAddressRange_v2)(&start, &length, address);
  std::printf("address range: %d", static_cast<int>(range));
  if (range == CUDA_SUCCESS) {
    std::printf(" base%+lld %zu", static_cast<long long>(start - base), length);
  }
  std::printf(" | %d %d\n",
              static_cast<int>(CU(cuMemGetAddressRange_v2)(nullptr, &length, address)),
              static_cast<int>(CU(cuMemGetAddressRange_v2)(&start, nullptr, address)));
}

void queries() {
  CUdeviceptr a = 0, b = 0, c = 0, d = 0;
  SAY(CU(cuMemAlloc_v2)(&a, 0));
  SAY(CU(cuMemAlloc_v2)(nullptr, 16));
  SAY(CU(cuMemAlloc_v2)(&a, std::size_t{1} << 50));
  SAY(CU(cuMemAlloc_v2)(&a, ~std::size_t{0}));
  std::printf("untouched %d\n", a == 0);
  SAY(CU(cuMemAlloc_v2)(&a, 1));
  SAY(CU(cuMemAlloc_v2)(&b, 1000));
  SAY(CU(cuMemAlloc_v2)(&c, (3 << 20) + 4));
  std::printf("aligned %d\n", a % 512 == 0 && b % 512 == 0 && c % 512 == 0);
  attributes_of("one byte", a, a);
  attributes_of("small", b, b);
  attributes_of("its middle", b + 500, b);
  attributes_of("large", c, c);
  attributes_of("its last byte", c + (3 << 20) + 3, c);
  attributes_of("nobody's", 0x1234, 0);
  std::uint64_t first = 0, second = 0;
  CU(cuPointerGetAttribute)(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, a);
  CU(cuPointerGetAttribute)(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, b);
  std::printf("ids differ %d\n", first != second);
  int on = 1;
  SAY(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b));
  int sync = -1, other = -1;
  CU(cuPointerGetAttribute)(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b);
  CU(cuPointerGetAttribute)(&other, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, c);
  std::printf("sync memops %d, another's %d\n", sync, other);
  SAY(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, b));
  SAY(CU(cuPointerGetAttribute)(nullptr, CU_POINTER_ATTRIBUTE_BUFFER_ID, b));
  SAY(CU(cuMemGetAddressRange_v2)(nullptr, nullptr, b));
  CUmemGenericAllocationHandle handle = 0;
  SAY(CU(cuMemRetainAllocationHandle)(&handle, reinterpret_cast<void*>(c)));

  std::size_t pitch = 0;
  SAY(CU(cuMemAllocPitch_v2)(&d, &pitch, 100, 10, 3));
  SAY(CU(cuMemAllocPitch_v2)(&d, &pitch, 0, 10, 4));
  SAY(CU(cuMemAllocPitch_v2)(&d, nullptr, 100, 10, 4));
  SAY(CU(cuMemAllocPitch_v2)(&d, &pitch, std::size_t{1} << 45, std::size_t{1} << 30, 4));
  SAY(CU(cuMemAllocPitch_v2)(&d, &pitch, 100, 10, 4));
  std::printf("pitch %zu\n", pitch);
  attributes_of("pitched", d, d);

  SAY(CU(cuMemFree_v2)(0));
  SAY(CU(cuMemFree_v2)(b + 16));
  SAY(CU(cuMemFree_v2)(c + (1 << 20)));
  SAY(CU(cuMemFree_v2)(0x1234));
  SAY(CU(cuMemFree_v2)(b));
  SAY(CU(cuMemFree_v2)(b));
  attributes_of("freed", b, b);
  SAY(CU(cuMemFreeHost)(reinterpret_cast<void*>(c)));
  SAY(CU(cuMemFree_v2)(c));
  SAY(CU(cuMemFree_v2)(c));
  SAY(CU(cuMemFree_v2)(d));
  SAY(CU(cuMemFree_v2)(a));

  std::size_t before = 0, after = 0, total = 0;
  MUST(CU(cuMemGetInfo_v2)(&before, &total));
  MUST(CU(cuMemAlloc_v2)(&a, 64 << 20));
  MUST(CU(cuMemGetInfo_v2)(&after, &total));
  std::printf("64 MiB taken %d\n", before - after >= (60U << 20) && before - after <= (68U << 20));
  MUST(CU(cuMemFree_v2)(a));
  MUST(CU(cuMemGetInfo_v2)(&after, &total));
  std::printf("and given back %d\n", before - after <= (4U << 20) || after >= before);
}

void host() {
  void* p = nullptr;
  void* q = nullptr;
  void* r = nullptr;
  SAY(CU(cuMemHostAlloc)(&p, 0, 0));
  std::printf("null %d\n", p == nullptr);
  SAY(CU(cuMemHostAlloc)(&p, 4096, 64));
  SAY(CU(cuMemHostAlloc)(nullptr, 4096, 0));
  SAY(CU(cuMemAllocHost_v2)(&p, 5000));
  SAY(CU(cuMemHostAlloc)(&q, 3 << 20, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  SAY(CU(cuMemHostAlloc)(&r, 100, CU_MEMHOSTALLOC_WRITECOMBINED));
  for (void* one : {p, q, r}) {
    unsigned flags = 77;
    SAY(CU(cuMemHostGetFlags)(&flags, one));
    std::printf("flags %u\n", flags);
    CUdeviceptr device = 0;
    SAY(CU(cuMemHostGetDevicePointer_v2)(&device, one, 0));
    std::printf("same %d\n", device == reinterpret_cast<CUdeviceptr>(one));
    SAY(CU(cuMemHostGetDevicePointer_v2)(&device, one, 1));
    attributes_of("pinned", device, device);
    attributes_of("its middle", device + 50, device);
    std::memset(one, 0x5a, 100);
  }
  // Written by the device, read by the host, and the other way.
  CUdeviceptr memory = 0;
  std::vector<char> back(5000);
  MUST(CU(cuMemAlloc_v2)(&memory, 5000));
  MUST(CU(cuMemsetD8_v2)(reinterpret_cast<CUdeviceptr>(p), 3, 5000));
  MUST(CU(cuCtxSynchronize)());
  std::printf("set %d %d\n", static_cast<char*>(p)[0], static_cast<char*>(p)[4999]);
  static_cast<char*>(p)[4999] = 9;
  MUST(CU(cuMemcpyHtoD_v2)(memory, p, 5000));
  MUST(CU(cuMemcpyDtoH_v2)(back.data(), memory, 5000));
  std::printf("copied %d %d\n", back[0], back[4999]);
  MUST(CU(cuMemFree_v2)(memory));
  SAY(CU(cuMemHostRegister_v2)(p, 4096, 0));
  SAY(CU(cuMemHostUnregister)(p));
  SAY(CU(cuMemHostUnregister)(static_cast<char*>(p) + 512));
  SAY(CU(cuMemFree_v2)(reinterpret_cast<CUdeviceptr>(p)));
  SAY(CU(cuMemFreeHost)(static_cast<char*>(p) + 16));
  SAY(CU(cuMemFreeHost)(nullptr));
  char mine[64];
  SAY(CU(cuMemFreeHost)(mine));
  SAY(CU(cuMemFreeHost)(p));
  SAY(CU(cuMemFreeHost)(p));
  SAY(CU(cuMemFreeHost)(q));
  SAY(CU(cuMemFreeHost)(r));
  unsigned flags = 0;
  SAY(CU(cuMemHostGetFlags)(&flags, r));
  // Many small ones, as loaders of data have.
  std::vector<void*> many(2000);
  for (std::size_t i = 0; i < many.size(); ++i) {
    MUST(CU(cuMemHostAlloc)(&many[i], 1 + i * 7 % 9000, CU_MEMHOSTALLOC_PORTABLE));
    std::memset(many[i], static_cast<int>(i), 1 + i * 7 % 9000);
  }
  bool right = true;
  for (std::size_t i = 0; i < many.size(); ++i) {
    right = right && static_cast<unsigned char*>(many[i])[i * 7 % 9000] == i % 256;
    MUST(CU(cuMemFreeHost)(many[i]));
  }
  std::printf("many %d\n", right);
}

void order() {
  CUstream stream = nullptr, other = nullptr;
  MUST(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  MUST(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
  CUdeviceptr a = 0, b = 0;
  SAY(CU(cuMemAllocAsync)(&a, 0, stream));
  SAY(CU(cuMemAllocAsync)(nullptr, 16, stream));
  SAY(CU(cuMemAllocAsync)(&a, std::size_t{1} << 50, stream));
  SAY(CU(cuMemAllocAsync)(&a, 4096, stream));
  SAY(CU(cuMemAllocAsync)(&b, 4096, nullptr));
  attributes_of("stream-ordered", a, a);
  SAY(CU(cuMemFreeAsync)(0x1234, stream));
  SAY(CU(cuMemFreeAsync)(a + 16, stream));
  SAY(CU(cuMemsetD8Async)(a, 7, 4096, stream));
  std::vector<unsigned char> back(4096);
  SAY(CU(cuMemcpyDtoHAsync_v2)(back.data(), a, 4096, stream));
  SAY(CU(cuMemFreeAsync)(a, stream));
  SAY(CU(cuStreamSynchronize)(stream));
  std::printf("content %d\n", back[0] == 7 && back[4095] == 7);
  SAY(CU(cuMemFreeAsync)(a, stream));
  SAY(CU(cuMemFree_v2)(b));
  // Memory of one kind freed the other way.
  MUST(CU(cuMemAlloc_v2)(&a, 4096));
  SAY(CU(cuMemFreeAsync)(a, stream));
  MUST(CU(cuStreamSynchronize)(stream));
  // A loop of temporaries: the room does not grow, the contents stay apart.
  bool right = true;
  for (int i = 0; i < 500; ++i) {
    CUdeviceptr x = 0, y = 0;
    MUST(CU(cuMemAllocAsync)(&x, 100000, stream));
    MUST(CU(cuMemAllocAsync)(&y, 100000, other));
    right = right && x != y;
    MUST(CU(cuMemsetD8Async)(x, static_cast<unsigned char>(i), 100000, stream));
    MUST(CU(cuMemsetD8Async)(y, static_cast<unsigned char>(i + 1), 100000, other));
    if (i % 50 == 0) {
      unsigned char at[2] = {};
      MUST(CU(cuMemcpyDtoHAsync_v2)(&at[0], x + 99999, 1, stream));
      MUST(CU(cuMemcpyDtoHAsync_v2)(&at[1], y + 99999, 1, other));
      MUST(CU(cuStreamSynchronize)(stream));
      MUST(CU(cuStreamSynchronize)(other));
      right = right && at[0] == i % 256 && at[1] == (i + 1) % 256;
    }
    MUST(CU(cuMemFreeAsync)(x, stream));
    MUST(CU(cuMemFreeAsync)(y, other));
  }
  MUST(CU(cuStreamSynchronize)(stream));
  MUST(CU(cuStreamSynchronize)(other));
  std::printf("loop %d\n", right);

  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = the_device;
  CUmemoryPool pool = nullptr;
  MUST(CU(cuMemPoolCreate)(&pool, &properties));
  SAY(CU(cuMemAllocFromPoolAsync)(&a, 4096, pool, stream));
  attributes_of("from a pool", a, a);
  SAY(CU(cuMemFreeAsync)(a, stream));
  SAY(CU(cuStreamSynchronize)(stream));
  SAY(CU(cuMemPoolDestroy)(pool));
  SAY(CU(cuStreamDestroy_v2)(stream));
  SAY(CU(cuStreamDestroy_v2)(other));
}

void capture() {
  CUstream stream = nullptr;
  MUST(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr kept = 0;
  MUST(CU(cuMemAlloc_v2)(&kept, 4096));
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    std::printf("mode %d\n", static_cast<int>(mode));
    CUdeviceptr a = 0;
    CUgraph graph = nullptr;
    MUST(CU(cuStreamBeginCapture_v2)(stream, mode));
    const CUresult code = CU(cuMemAlloc_v2)(&a, 4096);
    std::printf("alloc %d\n", static_cast<int>(code));
    SAY(CU(cuMemsetD8Async)(kept, 1, 16, stream));
    if (code == CUDA_SUCCESS) {
      SAY(CU(cuMemFree_v2)(a));
    }
    SAY(CU(cuStreamEndCapture)(stream, &graph));
    MUST(CU(cuMemAlloc_v2)(&a, 4096));
    SAY(CU(cuMemFree_v2)(a));
  }
  SAY(CU(cuMemFree_v2)(kept));
}

void full() {
  for (int round = 0; round < 2; ++round) {
    std::vector<CUdeviceptr> all;
    CUresult code = CUDA_SUCCESS;
    for (std::size_t size = std::size_t{256} << 20; size >= (std::size_t{1} << 20); size /= 4) {
      CUdeviceptr one = 0;
      while ((code = CU(cuMemAlloc_v2)(&one, size)) == CUDA_SUCCESS && all.size() < 100000) {
        all.push_back(one);
      }
    }
    std::size_t free = 0, total = 0;
    MUST(CU(cuMemGetInfo_v2)(&free, &total));
    std::printf("full %d, nearly nothing free %d\n", static_cast<int>(code), free < total / 10);
    CUdeviceptr one = 0;
    SAY(CU(cuMemAlloc_v2)(&one, total / 4));
    for (std::size_t i = 0; i < all.size(); i += 2) {
      MUST(CU(cuMemFree_v2)(all[i]));
    }
    // What was freed serves sizes that it was not freed with.
    SAY(CU(cuMemAlloc_v2)(&one, total / 4));
    MUST(CU(cuMemsetD8_v2)(one, 5, total / 4));
    SAY(CU(cuCtxSynchronize)());
    SAY(CU(cuMemFree_v2)(one));
    for (std::size_t i = 1; i < all.size(); i += 2) {
      MUST(CU(cuMemFree_v2)(all[i]));
    }
    SAY(CU(cuMemAlloc_v2)(&one, total / 2));
    SAY(CU(cuMemFree_v2)(one));
  }
}

void vmm() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = the_device;
  std::size_t unit = 0;
  MUST(CU(cuMemGetAllocationGranularity)(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle handle = 0;
  SAY(CU(cuMemCreate)(&handle, 0, &properties, 0));
  SAY(CU(cuMemCreate)(&handle, unit, nullptr, 0));
  SAY(CU(cuMemCreate)(&handle, std::size_t{1} << 50, &properties, 0));
  SAY(CU(cuMemCreate)(&handle, unit, &properties, 0));
  std::printf("asked for %d\n", static_cast<int>(properties.requestedHandleTypes));
  CUdeviceptr at = 0;
  SAY(CU(cuMemAddressReserve)(&at, 4 * unit, 0, 0, 0));
  SAY(CU(cuMemMap)(at, unit, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  SAY(CU(cuMemSetAccess)(at, unit, &access, 1));
  SAY(CU(cuMemsetD8_v2)(at, 1, unit));
  SAY(CU(cuCtxSynchronize)());
  SAY(CU(cuMemRelease)(handle));
  SAY(CU(cuMemFree_v2)(at));
  std::size_t before = 0, after = 0, total = 0;
  MUST(CU(cuMemGetInfo_v2)(&before, &total));
  SAY(CU(cuMemUnmap)(at, unit));
  MUST(CU(cuMemGetInfo_v2)(&after, &total));
  std::printf("given back %d\n", after >= before + unit);
  SAY(CU(cuMemAddressFree)(at, 4 * unit));
}

void sharing() {
  CUdeviceptr a = 0;
  MUST(CU(cuMemAlloc_v2)(&a, 4096));
  int capable = -1;
  SAY(CU(cuPointerGetAttribute)(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
  std::printf("capable %d\n", capable);
  CUipcMemHandle handle;
  SAY(CU(cuIpcGetMemHandle)(&handle, a));
  SAY(CU(cuIpcGetMemHandle)(&handle, 0x1234));
  SAY(CU(cuMemFree_v2)(a));
}

void threads() {
  std::vector<std::thread> all;
  std::vector<int> wrong(4);
  for (unsigned t = 0; t < 4; ++t) {
    all.emplace_back([t, &wrong] {
      MUST(CU(cuCtxSetCurrent)(the_context));
      std::mt19937 random(t);
      struct Piece {
        CUdeviceptr address;
        std::size_t size;
        unsigned char value;
      };
      std::vector<Piece> pieces;
      const auto check = [&](const Piece& piece) {
        for (const std::size_t at : {std::size_t{0}, piece.size - 1}) {
          unsigned char value = 0;
          MUST(CU(cuMemcpyDtoH_v2)(&value, piece.address + at, 1));
          wrong[t] += value != piece.value;
        }
        MUST(CU(cuMemFree_v2)(piece.address));
      };
      for (int i = 0; i < 300; ++i) {
        if (pieces.size() < 20 && random() % 3 != 0) {
          Piece piece{0, 1 + random() % (std::size_t{1} << (random() % 23)),
                      static_cast<unsigned char>(random())};
          MUST(CU(cuMemAlloc_v2)(&piece.address, piece.size));
          MUST(CU(cuMemsetD8_v2)(piece.address, piece.value, piece.size));
          pieces.push_back(piece);
        } else if (!pieces.empty()) {
          const std::size_t at = random() % pieces.size();
          check(pieces[at]);
          pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      for (const Piece& piece : pieces) {
        check(piece);
      }
    });
  }
  for (auto& one : all) {
    one.join();
  }
  std::printf("wrong %d\n", wrong[0] + wrong[1] + wrong[2] + wrong[3]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 77;
  }
#define X(name) name##_p = dlsym(library, #name);
  FUNCTIONS(X)
#undef X
  MUST(CU(cuInit)(0));
  MUST(CU(cuDeviceGet)(&the_device, 0));
  CUdeviceptr none = 0;
  SAY(CU(cuMemAlloc_v2)(&none, 16));  // without a context
  MUST(CU(cuDevicePrimaryCtxRetain)(&the_context, the_device));
  MUST(CU(cuCtxSetCurrent)(the_context));
  const struct {
    const char* name;
    void (*run)();
  } modes[] = {{"queries", queries}, {"host", host}, {"order", order},     {"capture", capture},
               {"full", full},       {"vmm", vmm},   {"sharing", sharing}, {"threads", threads}};
  for (const auto& one : modes) {
    if (mode == one.name) {
      one.run();
      std::printf("end\n");
      return 0;
    }
  }
  std::fprintf(stderr, "no such mode: %s\n", mode.c_str());
  return 2;
}
