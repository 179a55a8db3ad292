// SPDX-License-Identifier: Apache-2.0
// A thin runtime over softgpu's driver, for programs built with `nvcc -cudart shared`: what their
// compiled stubs call, and the calls that programs use. It works through the driver's entry points
// only, so that a subscriber of driver callbacks sees what it sees under NVIDIA's runtime.
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/hooks.h"
// After cuda.h: the driver's calls keep the names that programs use.
#include "cudart_api.h"
#include "softgpu/cudart/call.h"

namespace gpurecover::softgpu {

thread_local bool PerThreadStreams::active_ = false;

namespace {

/// One registered device image of the program.
struct Image {
  void* wrapper = nullptr;
  CUlibrary library = nullptr;
  cudaError_t failed = cudaSuccess;
  struct Managed {
    void** host;
    std::string name;
  };
  std::vector<Managed> managed;
};

struct Symbol {
  Image* image = nullptr;
  std::string name;
  size_t size = 0;
  void* kernel = nullptr;  // CUkernel, once looked up
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Image>> images;
  std::map<const void*, Symbol> functions;
  std::map<const void*, Symbol> variables;
  static Registry& Get() {
    static Registry* registry = new Registry;  // images unregister after static destructors
    return *registry;
  }
};

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
std::atomic<unsigned> resets{0};  // a thread that has not seen the last one retains anew
thread_local unsigned seen_resets = 0;
thread_local std::vector<Configuration> configurations;

cudaError_t From(CUresult result) {
  return static_cast<cudaError_t>(result);
}

/// The thread has a context: its device's primary one, if it made none current itself.
cudaError_t NeedContext() {
  CUcontext context = nullptr;
  if (const CUresult result = cuInit(0)) {
    return result == CUDA_ERROR_NO_DEVICE ? cudaErrorNoDevice : From(result);
  }
  if (const CUresult result = cuCtxGetCurrent(&context))
    return From(result);
  const unsigned now = resets;
  if (context && seen_resets == now)
    return cudaSuccess;
  seen_resets = now;
  // Measured: a process that a fault has ended is told that its devices are unavailable.
  if (cuDevicePrimaryCtxRetain(&context, current_device) != CUDA_SUCCESS)
    return cudaErrorDevicesUnavailable;
  if (const CUresult result = cuCtxSetCurrent(context))
    return From(result);
  const char* loading = getenv("CUDA_MODULE_LOADING");
  if (loading && strcmp(loading, "EAGER") == 0) {
    Registry& registry = Registry::Get();
    std::lock_guard lock(registry.mutex);
    for (auto& image : registry.images) {
      CUmodule module = nullptr;
      if (!image->library)
        cuLibraryLoadData(&image->library, image->wrapper, nullptr, nullptr, 0, nullptr, nullptr,
                          0);
      if (image->library)
        cuLibraryGetModule(&module, image->library);
    }
  }
  return cudaSuccess;
}

#define NEED_CONTEXT()                                               \
  do {                                                               \
    if (const cudaError_t need = NeedContext(); need != cudaSuccess) \
      return need;                                                   \
  } while (0)

CUstream StreamOf(cudaStream_t stream) {
  return !stream && PerThreadStreams::active() ? CU_STREAM_PER_THREAD
                                               : reinterpret_cast<CUstream>(stream);
}

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

/// Loads the image when it is first needed; the registry's lock is held.
cudaError_t LoadImage(Image& image) {
  if (!image.library && image.failed == cudaSuccess)
    image.failed = From(
        cuLibraryLoadData(&image.library, image.wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
  return image.failed;
}

cudaError_t KernelOf(const void* function, CUkernel* out) {
  Registry& registry = Registry::Get();
  std::lock_guard lock(registry.mutex);
  auto it = registry.functions.find(function);
  if (it == registry.functions.end()) {
    // A cudaKernel_t may stand where a function may.
    *out = reinterpret_cast<CUkernel>(const_cast<void*>(function));
    const char* name = nullptr;
    return function && cuKernelGetName(&name, *out) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidDeviceFunction;
  }
  Symbol& symbol = it->second;
  if (!symbol.kernel) {
    if (const cudaError_t result = LoadImage(*symbol.image))
      return result;
    CUkernel kernel = nullptr;
    if (cuLibraryGetKernel(&kernel, symbol.image->library, symbol.name.c_str()) != CUDA_SUCCESS)
      return cudaErrorInvalidDeviceFunction;
    symbol.kernel = kernel;
  }
  *out = static_cast<CUkernel>(symbol.kernel);
  return cudaSuccess;
}

cudaError_t VariableOf(const void* symbol, CUdeviceptr* address, size_t* size) {
  Registry& registry = Registry::Get();
  CUlibrary library = nullptr;
  std::string name;
  {
    std::lock_guard lock(registry.mutex);
    auto it = registry.variables.find(symbol);
    if (it == registry.variables.end())
      return cudaErrorInvalidSymbol;
    if (const cudaError_t result = LoadImage(*it->second.image))
      return result;
    library = it->second.image->library;
    name = it->second.name;
  }
  return From(cuLibraryGetGlobal(address, size, library, name.c_str()));
}

bool GoodConfiguration(dim3 grid, dim3 block) {
  return grid.x && grid.y && grid.z && block.x && block.y && block.z && grid.y <= 65535 &&
         grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 && block.z <= 64 &&
         static_cast<uint64_t>(block.x) * block.y * block.z <= 1024;
}

/// The runtime names what the driver calls an invalid value.
cudaError_t LaunchError(CUresult result, dim3 grid, dim3 block) {
  return result == CUDA_ERROR_INVALID_VALUE && !GoodConfiguration(grid, block)
             ? cudaErrorInvalidConfiguration
             : From(result);
}

cudaError_t LaunchHandle(void* kernel, dim3 grid, dim3 block, void** args, size_t shared,
                         cudaStream_t stream) {
  return LaunchError(
      cuLaunchKernel(static_cast<CUfunction>(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                     block.z, static_cast<unsigned>(shared), StreamOf(stream), args, nullptr),
      grid, block);
}

cudaError_t CopySync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (PerThreadStreams::active()) {
    if (const cudaError_t result = rt::cudaMemcpyAsync(to, from, bytes, kind, nullptr))
      return result;
    return From(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  }
  switch (kind) {
    case cudaMemcpyHostToHost:
      memmove(to, from, bytes);
      return cudaSuccess;
    case cudaMemcpyHostToDevice:
      return From(cuMemcpyHtoD(Address(to), from, bytes));
    case cudaMemcpyDeviceToHost:
      return From(cuMemcpyDtoH(to, Address(from), bytes));
    case cudaMemcpyDeviceToDevice:
      return From(cuMemcpyDtoD(Address(to), Address(from), bytes));
    case cudaMemcpyDefault:
      return From(cuMemcpy(Address(to), Address(from), bytes));
    default:
      return cudaErrorInvalidMemcpyDirection;
  }
}

CUDA_MEMCPY2D Rectangle(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t width, size_t height, cudaMemcpyKind kind) {
  CUDA_MEMCPY2D c{};
  auto type = [&](bool host) {
    return kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED
           : host                    ? CU_MEMORYTYPE_HOST
                                     : CU_MEMORYTYPE_DEVICE;
  };
  c.srcMemoryType = type(kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice);
  c.dstMemoryType = type(kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost);
  c.srcHost = from;
  c.srcDevice = Address(from);
  c.srcPitch = from_pitch;
  c.dstHost = to;
  c.dstDevice = Address(to);
  c.dstPitch = to_pitch;
  c.WidthInBytes = width;
  c.Height = height;
  return c;
}

bool GoodKind(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

SoftgpuHookTable* Hooks() {
  return &softgpu_hook_table;
}

struct ErrorRow {
  cudaError_t code;
  const char* name;
  const char* text;
};
const ErrorRow kErrors[] = {
#include "cudart_errors.inc"
};

const ErrorRow* FindError(cudaError_t error) {
  for (const ErrorRow& row : kErrors)
    if (row.code == error)
      return &row;
  return nullptr;
}

}  // namespace

cudaError_t NotSupported(const char* name) {
  const char* verbose = getenv("GPURECOVER_SOFT_VERBOSE");
  if (verbose && *verbose && strcmp(verbose, "0") != 0)
    fprintf(stderr, "softgpu: %s is not supported\n", name);
  return cudaErrorNotSupported;
}

cudaError_t Keep(cudaError_t result) {
  if (result != cudaSuccess && result != cudaErrorNotReady)
    last_error = result;
  return result;
}

void RuntimeCallback(uint32_t site, uint32_t cbid, const char* name, const void* params,
                     cudaError_t* result, uint64_t* data, uint32_t* id) {
  if (cbid && Hooks()->enabled(CUPTI_CB_DOMAIN_RUNTIME_API, cbid))
    Hooks()->runtime_callback(site, cbid, name, params, result, nullptr, data, id);
}

namespace rt {

// --- errors, devices ---

cudaError_t cudaGetLastError() {
  const cudaError_t result = last_error;
  last_error = cudaSuccess;
  return result;
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version)
    return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return From(cuDriverGetVersion(version));
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (const CUresult result = cuInit(0))
    return From(result);
  return From(cuDeviceGetCount(count));
}

cudaError_t cudaSetDevice(int device) {
  int count = 0;
  if (const cudaError_t result = rt::cudaGetDeviceCount(&count))
    return result;
  if (device < 0 || device >= count)
    return cudaErrorInvalidDevice;
  current_device = device;
  CUcontext context = nullptr;
  CUdevice now = 0;
  if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
      cuCtxGetDevice(&now) == CUDA_SUCCESS && now == device)
    return cudaSuccess;
  if (cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
    return cudaErrorDevicesUnavailable;
  return From(cuCtxSetCurrent(context));
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  const int before = current_device;
  if (const cudaError_t result = rt::cudaSetDevice(device))
    return result;
  return rt::cudaSetDevice(before);
}

cudaError_t cudaGetDevice(int* device) {
  if (!device)
    return cudaErrorInvalidValue;
  CUdevice now = 0;
  *device =
      cuInit(0) == CUDA_SUCCESS && cuCtxGetDevice(&now) == CUDA_SUCCESS ? now : current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  if (const CUresult result = cuInit(0))
    return From(result);
  return From(cuDevicePrimaryCtxSetFlags(current_device, flags & 0x1f));
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  NEED_CONTEXT();
  return From(cuCtxGetFlags(flags));
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const CUresult result = cuInit(0))
    return From(result);
  return From(cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!p)
    return cudaErrorInvalidValue;
  if (const CUresult result = cuInit(0))
    return From(result);
  *p = {};
  if (const CUresult result = cuDeviceGetName(p->name, sizeof p->name, device))
    return From(result);
  auto get = [&](int attribute) {
    int value = 0;
    cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device);
    return value;
  };
  CUuuid uuid{};
  cuDeviceGetUuid(&uuid, device);
  memcpy(&p->uuid, &uuid, sizeof uuid);
  cuDeviceTotalMem(&p->totalGlobalMem, device);
  p->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  p->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  p->warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  p->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  p->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  for (int i = 0; i < 3; ++i) {
    p->maxThreadsDim[i] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    p->maxGridSize[i] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
  }
  p->totalConstMem = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  p->major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  p->minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  p->textureAlignment = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  p->texturePitchAlignment = get(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
  p->multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  p->canMapHostMemory = get(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  p->surfaceAlignment = get(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT);
  p->concurrentKernels = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
  p->ECCEnabled = get(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  p->pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  p->pciDeviceID = get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  p->pciDomainID = get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  p->asyncEngineCount = get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  p->unifiedAddressing = get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  p->memoryBusWidth = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  p->l2CacheSize = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  p->maxThreadsPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  p->streamPrioritiesSupported = get(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
  p->globalL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED);
  p->localL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED);
  p->sharedMemPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  p->regsPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  p->managedMemory = get(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  p->hostNativeAtomicSupported = get(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
  p->pageableMemoryAccess = get(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
  p->concurrentManagedAccess = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
  p->computePreemptionSupported = get(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED);
  p->canUseHostPointerForRegisteredMem =
      get(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  p->cooperativeLaunch = get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  p->sharedMemPerBlockOptin = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  p->maxBlocksPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  p->reservedSharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  p->hostRegisterSupported = get(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  p->memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  p->ipcEventSupported = get(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (const CUresult result = cuInit(0))
    return From(result);
  return From(cuDeviceGetPCIBusId(text, length, device));
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  if (const CUresult result = cuInit(0))
    return From(result);
  return From(cuDeviceGetByPCIBusId(device, text));
}

cudaError_t cudaDeviceSynchronize() {
  NEED_CONTEXT();
  return From(cuCtxSynchronize());
}

cudaError_t cudaDeviceReset() {
  if (const CUresult result = cuInit(0))
    return From(result);
  const CUresult result = cuDevicePrimaryCtxReset(current_device);
  ++resets;
  return From(result);
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  NEED_CONTEXT();
  return From(cuCtxGetLimit(value, static_cast<CUlimit>(limit)));
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  NEED_CONTEXT();
  return From(cuCtxSetLimit(static_cast<CUlimit>(limit), value));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  NEED_CONTEXT();
  return From(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  NEED_CONTEXT();
  return From(cuCtxGetCacheConfig(reinterpret_cast<CUfunc_cache*>(config)));
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache config) {
  NEED_CONTEXT();
  return From(cuCtxSetCacheConfig(static_cast<CUfunc_cache>(config)));
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const CUresult result = cuInit(0))
    return From(result);
  return From(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  NEED_CONTEXT();
  CUcontext context = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&context, peer))
    return From(result);
  return From(cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  NEED_CONTEXT();
  CUcontext context = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&context, peer))
    return From(result);
  const CUresult result = cuCtxDisablePeerAccess(context);
  cuDevicePrimaryCtxRelease(peer);
  return From(result);
}

cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** address,
                                             unsigned int version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found{};
  const CUresult result =
      cuGetProcAddress(symbol, address, static_cast<int>(version), flags, &found);
  if (status)
    *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return From(result);
}

// --- memory ---

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  NEED_CONTEXT();
  if (!pointer)
    return cudaErrorInvalidValue;
  if (!bytes) {
    *pointer = nullptr;
    return cudaSuccess;
  }
  return From(cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), bytes));
}

cudaError_t cudaFree(void* pointer) {
  NEED_CONTEXT();
  return pointer ? From(cuMemFree(Address(pointer))) : cudaSuccess;
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  NEED_CONTEXT();
  return From(cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(pointer), pitch, width, height, 4));
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(pointer), bytes, flags));
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuMemHostAlloc(pointer, bytes, flags));
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return rt::cudaHostAlloc(pointer, bytes, 0);
}

cudaError_t cudaFreeHost(void* pointer) {
  NEED_CONTEXT();
  return From(cuMemFreeHost(pointer));
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuMemHostRegister(pointer, bytes, flags));
}

cudaError_t cudaHostUnregister(void* pointer) {
  NEED_CONTEXT();
  return From(cuMemHostUnregister(pointer));
}

cudaError_t cudaHostGetDevicePointer(void** out, void* pointer, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuMemHostGetDevicePointer(reinterpret_cast<CUdeviceptr*>(out), pointer, flags));
}

cudaError_t cudaHostGetFlags(unsigned int* flags, void* pointer) {
  NEED_CONTEXT();
  return From(cuMemHostGetFlags(flags, pointer));
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  NEED_CONTEXT();
  return From(cuMemGetInfo(free_bytes, total));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  NEED_CONTEXT();
  return CopySync(to, from, bytes, kind);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  NEED_CONTEXT();
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return From(cuMemcpyHtoDAsync(Address(to), from, bytes, StreamOf(stream)));
    case cudaMemcpyDeviceToHost:
      return From(cuMemcpyDtoHAsync(to, Address(from), bytes, StreamOf(stream)));
    case cudaMemcpyDeviceToDevice:
      return From(cuMemcpyDtoDAsync(Address(to), Address(from), bytes, StreamOf(stream)));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return From(cuMemcpyAsync(Address(to), Address(from), bytes, StreamOf(stream)));
    default:
      return cudaErrorInvalidMemcpyDirection;
  }
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  NEED_CONTEXT();
  if (!GoodKind(kind))
    return cudaErrorInvalidMemcpyDirection;
  const CUDA_MEMCPY2D copy = Rectangle(to, to_pitch, from, from_pitch, width, height, kind);
  return From(cuMemcpy2DUnaligned(&copy));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  NEED_CONTEXT();
  if (!GoodKind(kind))
    return cudaErrorInvalidMemcpyDirection;
  const CUDA_MEMCPY2D copy = Rectangle(to, to_pitch, from, from_pitch, width, height, kind);
  return From(cuMemcpy2DAsync(&copy, StreamOf(stream)));
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  NEED_CONTEXT();
  return From(cuMemcpy(Address(to), Address(from), bytes));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuMemcpyAsync(Address(to), Address(from), bytes, StreamOf(stream)));
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  NEED_CONTEXT();
  return From(cuMemsetD8(Address(to), static_cast<unsigned char>(value), bytes));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  NEED_CONTEXT();
  return From(
      cuMemsetD8Async(Address(to), static_cast<unsigned char>(value), bytes, StreamOf(stream)));
}

cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  NEED_CONTEXT();
  return From(cuMemsetD2D8(Address(to), pitch, static_cast<unsigned char>(value), width, height));
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuMemsetD2D8Async(Address(to), pitch, static_cast<unsigned char>(value), width,
                                height, StreamOf(stream)));
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, StreamOf(stream)));
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, pool,
                                      StreamOf(stream)));
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuMemFreeAsync(Address(pointer), StreamOf(stream)));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  NEED_CONTEXT();
  return From(cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  NEED_CONTEXT();
  return From(cuDeviceGetMemPool(pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  NEED_CONTEXT();
  return From(cuDeviceSetMemPool(device, pool));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  NEED_CONTEXT();
  return From(cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  NEED_CONTEXT();
  return From(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  NEED_CONTEXT();
  return From(cuMemPoolTrimTo(pool, bytes));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  NEED_CONTEXT();
  if (!out)
    return cudaErrorInvalidValue;
  *out = {};
  unsigned type = 0;
  int managed = 0, ordinal = -2;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &ordinal};
  if (const CUresult result = cuPointerGetAttributes(3, which, values, Address(pointer)))
    return From(result);
  void* address = const_cast<void*>(pointer);
  out->device = ordinal;
  if (managed) {
    out->type = cudaMemoryTypeManaged;
    out->devicePointer = out->hostPointer = address;
  } else if (type == CU_MEMORYTYPE_HOST) {
    out->type = cudaMemoryTypeHost;
    out->devicePointer = out->hostPointer = address;
  } else if (type == CU_MEMORYTYPE_DEVICE) {
    out->type = cudaMemoryTypeDevice;
    out->devicePointer = address;
  } else {
    out->type = cudaMemoryTypeUnregistered;
    out->hostPointer = address;
  }
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
  NEED_CONTEXT();
  size_t size = 0;
  return VariableOf(symbol, reinterpret_cast<CUdeviceptr*>(out), &size);
}

cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  NEED_CONTEXT();
  CUdeviceptr address = 0;
  return VariableOf(symbol, &address, size);
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  NEED_CONTEXT();
  CUdeviceptr address = 0;
  size_t size = 0;
  if (const cudaError_t result = VariableOf(symbol, &address, &size))
    return result;
  if (offset > size || bytes > size - offset)
    return cudaErrorInvalidValue;
  return rt::cudaMemcpyAsync(reinterpret_cast<void*>(address + offset), from, bytes, kind, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  NEED_CONTEXT();
  CUdeviceptr address = 0;
  size_t size = 0;
  if (const cudaError_t result = VariableOf(symbol, &address, &size))
    return result;
  if (offset > size || bytes > size - offset)
    return cudaErrorInvalidValue;
  return rt::cudaMemcpyAsync(to, reinterpret_cast<void*>(address + offset), bytes, kind, stream);
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  NEED_CONTEXT();
  CUdeviceptr address = 0;
  size_t size = 0;
  if (const cudaError_t result = VariableOf(symbol, &address, &size))
    return result;
  if (offset > size || bytes > size - offset)
    return cudaErrorInvalidValue;
  return CopySync(reinterpret_cast<void*>(address + offset), from, bytes, kind);
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  NEED_CONTEXT();
  CUdeviceptr address = 0;
  size_t size = 0;
  if (const cudaError_t result = VariableOf(symbol, &address, &size))
    return result;
  if (offset > size || bytes > size - offset)
    return cudaErrorInvalidValue;
  return CopySync(to, reinterpret_cast<void*>(address + offset), bytes, kind);
}

// --- streams and events ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuStreamCreate(stream, flags));
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return rt::cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  NEED_CONTEXT();
  return From(cuStreamCreateWithPriority(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuStreamSynchronize(StreamOf(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuStreamQuery(StreamOf(stream)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuStreamWaitEvent(StreamOf(stream), event, flags));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  NEED_CONTEXT();
  return From(cuStreamGetPriority(StreamOf(stream), priority));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  NEED_CONTEXT();
  return From(cuStreamGetFlags(StreamOf(stream), flags));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  NEED_CONTEXT();
  return From(cuStreamGetId(StreamOf(stream), id));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  NEED_CONTEXT();
  return From(
      cuStreamIsCapturing(StreamOf(stream), reinterpret_cast<CUstreamCaptureStatus*>(status)));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return From(cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  NEED_CONTEXT();
  return From(cuLaunchHostFunc(StreamOf(stream), function, data));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned int flags) {
  NEED_CONTEXT();
  return From(cuStreamAddCallback(StreamOf(stream), reinterpret_cast<CUstreamCallback>(callback),
                                  data, flags));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return rt::cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  NEED_CONTEXT();
  return From(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  NEED_CONTEXT();
  return From(cuEventRecord(event, StreamOf(stream)));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  NEED_CONTEXT();
  return From(cuEventRecordWithFlags(event, StreamOf(stream), flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  NEED_CONTEXT();
  return From(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  NEED_CONTEXT();
  return From(cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  NEED_CONTEXT();
  return From(cuEventElapsedTime(milliseconds, start, end));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  NEED_CONTEXT();
  return From(cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  NEED_CONTEXT();
  CUipcEventHandle raw;
  memcpy(&raw, &handle, sizeof raw);
  return From(cuIpcOpenEventHandle(event, raw));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  NEED_CONTEXT();
  return From(cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), Address(pointer)));
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  NEED_CONTEXT();
  CUipcMemHandle raw;
  memcpy(&raw, &handle, sizeof raw);
  return From(cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(pointer), raw, flags));
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  NEED_CONTEXT();
  return From(cuIpcCloseMemHandle(Address(pointer)));
}

// --- kernels ---

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args,
                             size_t shared, cudaStream_t stream) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return LaunchHandle(kernel, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** args,
                                        size_t shared, cudaStream_t stream) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return LaunchError(cuLaunchCooperativeKernel(
                         reinterpret_cast<CUfunction>(kernel), grid.x, grid.y, grid.z, block.x,
                         block.y, block.z, static_cast<unsigned>(shared), StreamOf(stream), args),
                     grid, block);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** args) {
  NEED_CONTEXT();
  if (!config)
    return cudaErrorInvalidValue;
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));
  CUlaunchConfig c{};
  c.gridDimX = config->gridDim.x;
  c.gridDimY = config->gridDim.y;
  c.gridDimZ = config->gridDim.z;
  c.blockDimX = config->blockDim.x;
  c.blockDimY = config->blockDim.y;
  c.blockDimZ = config->blockDim.z;
  c.sharedMemBytes = static_cast<unsigned>(config->dynamicSmemBytes);
  c.hStream = StreamOf(config->stream);
  c.attrs = reinterpret_cast<CUlaunchAttribute*>(config->attrs);
  c.numAttrs = config->numAttrs;
  return LaunchError(cuLaunchKernelEx(&c, reinterpret_cast<CUfunction>(kernel), args, nullptr),
                     config->gridDim, config->blockDim);
}

cudaError_t cudaGetKernel(cudaKernel_t* out, const void* function) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  const cudaError_t result = KernelOf(function, &kernel);
  if (result == cudaSuccess)
    *out = reinterpret_cast<cudaKernel_t>(kernel);
  return result;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* out, const void* function) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return From(cuKernelGetFunction(reinterpret_cast<CUfunction*>(out), kernel));
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return From(cuKernelGetName(name, kernel));
}

cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset, size_t* size) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return From(cuKernelGetParamInfo(kernel, index, offset, size));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
  NEED_CONTEXT();
  if (!out)
    return cudaErrorInvalidValue;
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  *out = {};
  CUdevice device = 0;
  cuCtxGetDevice(&device);
  auto get = [&](CUfunction_attribute attribute) {
    int value = 0;
    cuKernelGetAttribute(&value, attribute, kernel, device);
    return value;
  };
  out->sharedSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  out->constSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  out->localSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  out->maxThreadsPerBlock = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  out->numRegs = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
  out->ptxVersion = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  out->binaryVersion = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  out->cacheModeCA = get(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
  out->maxDynamicSharedSizeBytes = get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  out->preferredShmemCarveout = get(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  CUdevice device = 0;
  cuCtxGetDevice(&device);
  return From(
      cuKernelSetAttribute(static_cast<CUfunction_attribute>(attribute), value, kernel, device));
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  return KernelOf(function, &kernel);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* function,
                                                                   int threads, size_t shared,
                                                                   unsigned int flags) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return From(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, reinterpret_cast<CUfunction>(kernel), threads, shared, flags));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, size_t shared) {
  return rt::cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads,
                                                                    shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function,
                                                      int blocks, int threads) {
  NEED_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t result = KernelOf(function, &kernel))
    return result;
  return From(cuOccupancyAvailableDynamicSMemPerBlock(bytes, reinterpret_cast<CUfunction>(kernel),
                                                      blocks, threads));
}

}  // namespace rt
}  // namespace gpurecover::softgpu

using namespace gpurecover::softgpu;

// What a program's compiled stubs call (crt/host_runtime.h, crt/device_functions.h).
extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorRow* row = FindError(error);
  return row ? row->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorRow* row = FindError(error);
  return row ? row->text : "unrecognized error code";
}

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                            cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name,
                            int limit, uint3* tid, uint3* bid, dim3* block, dim3* grid, int* warp);
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int ext,
                       size_t size, int constant, int global);
void __cudaRegisterManagedVar(void** handle, void** host, char* device, const char* name, int ext,
                              size_t size, int constant, int global);
void __cudaRegisterHostVar(void** handle, const char* name, char* host, size_t size);
void __cudaRegisterUnifiedTable(void** handle, void* table);
char __cudaInitModule(void** handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream);
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                                    size_t shared, cudaStream_t stream);

void** __cudaRegisterFatBinary(void* wrapper) {
  Registry& registry = Registry::Get();
  std::lock_guard lock(registry.mutex);
  registry.images.push_back(std::make_unique<Image>());
  registry.images.back()->wrapper = wrapper;
  return reinterpret_cast<void**>(registry.images.back().get());
}

void __cudaRegisterFatBinaryEnd(void**) {}

// The process is ending, or a library is unloaded: its stubs are not called any more.
void __cudaUnregisterFatBinary(void** handle) {
  Registry& registry = Registry::Get();
  auto* image = reinterpret_cast<Image*>(handle);
  std::lock_guard lock(registry.mutex);
  std::erase_if(registry.functions, [&](auto& f) { return f.second.image == image; });
  std::erase_if(registry.variables, [&](auto& v) { return v.second.image == image; });
  if (image->library)
    cuLibraryUnload(image->library);
  std::erase_if(registry.images, [&](auto& i) { return i.get() == image; });
}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Registry& registry = Registry::Get();
  std::lock_guard lock(registry.mutex);
  registry.functions[host] = {reinterpret_cast<Image*>(handle), name, 0, nullptr};
}

void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t size, int,
                       int) {
  Registry& registry = Registry::Get();
  std::lock_guard lock(registry.mutex);
  registry.variables[host] = {reinterpret_cast<Image*>(handle), name, size, nullptr};
}

void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int, size_t size,
                              int, int) {
  Registry& registry = Registry::Get();
  std::lock_guard lock(registry.mutex);
  auto* image = reinterpret_cast<Image*>(handle);
  image->managed.push_back({host, name});
  registry.variables[host] = {image, name, size, nullptr};
}

void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
void __cudaRegisterUnifiedTable(void**, void*) {}

char __cudaInitModule(void** handle) {
  auto* image = reinterpret_cast<Image*>(handle);
  if (NeedContext() != cudaSuccess)
    return 0;
  Registry& registry = Registry::Get();
  {
    std::lock_guard lock(registry.mutex);
    if (Keep(LoadImage(*image)) != cudaSuccess)
      return 0;
  }
  for (const Image::Managed& m : image->managed) {
    CUdeviceptr address = 0;
    size_t size = 0;
    if (cuLibraryGetManaged(&address, &size, image->library, m.name.c_str()) == CUDA_SUCCESS)
      *m.host = reinterpret_cast<void*>(address);
  }
  return 1;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty())
    return Keep(cudaErrorMissingConfiguration);
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  // Called once for each stub, and its failure is not looked at: the launch will say it again. The
  // registered function itself stands for its kernel until then.
  CUkernel found = nullptr;
  const cudaError_t need = NeedContext();
  const cudaError_t result = need != cudaSuccess ? need : KernelOf(function, &found);
  *kernel = result == cudaSuccess ? reinterpret_cast<cudaKernel_t>(found)
                                  : reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return Keep(result);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream) {
  if (const cudaError_t result = NeedContext())
    return Keep(result);
  Registry& registry = Registry::Get();
  bool is_function = false;
  {
    std::lock_guard lock(registry.mutex);
    is_function = registry.functions.contains(kernel);
  }
  if (is_function) {
    CUkernel found = nullptr;
    if (const cudaError_t result = KernelOf(kernel, &found))
      return Keep(result);
    kernel = reinterpret_cast<cudaKernel_t>(found);
  }
  return Keep(LaunchHandle(kernel, grid, block, args, shared, stream));
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                                    size_t shared, cudaStream_t stream) {
  PerThreadStreams scope;
  return __cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}

}  // extern "C"
