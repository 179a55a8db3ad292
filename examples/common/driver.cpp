// SPDX-License-Identifier: Apache-2.0
// gpu.h by the driver API. The driver is opened at run time: a program linked to it does not even
// start, and so cannot say what is missing, where there is none.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/gpu.h"

// The kernels of this example, PTX text; generated when the example is built.
extern const char kernel_ptx[];

namespace gpu {
namespace {

// The calls used, under their plain names: cuda.h maps those to the versioned ones, here and where
// they are called.
// clang-format off
#define EXAMPLE_DRIVER_CALLS(X)                                                             \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain)                    \
  X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction)         \
  X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuLaunchKernel) X(cuLaunchKernelEx)          \
  X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyHtoD)             \
  X(cuMemcpyDtoH) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemsetD8) X(cuStreamCreate) \
  X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuEventCreate)           \
  X(cuEventDestroy) X(cuEventRecord)
// clang-format on

// cuGetProcAddress names a call as it was at this version: the signatures above have not changed
// between it and the newest toolkit.
constexpr int kDriverVersion = 12000;

struct Driver {
#define EXAMPLE_DECLARE(name) decltype(&::name) name;
  EXAMPLE_DRIVER_CALLS(EXAMPLE_DECLARE)
#undef EXAMPLE_DECLARE
} driver;

[[noreturn]] void fail(CUresult code, const char* call) {
  const char* name = nullptr;
  if (driver.cuGetErrorName == nullptr || driver.cuGetErrorName(code, &name) != CUDA_SUCCESS)
    name = nullptr;
  std::fprintf(stderr, "CUDA error %d (%s) in %s\n", static_cast<int>(code),
               name != nullptr ? name : "unknown", call);
  std::exit(1);
}

void check(CUresult code, const char* call) {
  if (code != CUDA_SUCCESS)
    fail(code, call);
}

// `call(arguments)`, checked.
#define EXAMPLE_CHECK(call, ...) check(driver.call(__VA_ARGS__), #call)

void load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "no CUDA driver (libcuda.so.1): %s\n", dlerror());
    std::exit(1);
  }
  const auto find =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    std::fprintf(stderr, "the CUDA driver (libcuda.so.1) is too old: no cuGetProcAddress_v2\n");
    std::exit(1);
  }
#define EXAMPLE_FIND(name)                                                           \
  {                                                                                  \
    void* address = nullptr;                                                         \
    const CUresult code =                                                            \
        find(#name, &address, kDriverVersion, CU_GET_PROC_ADDRESS_DEFAULT, nullptr); \
    if (code != CUDA_SUCCESS || address == nullptr) {                                \
      std::fprintf(stderr, "the CUDA driver (libcuda.so.1) has no " #name "\n");     \
      std::exit(1);                                                                  \
    }                                                                                \
    driver.name = reinterpret_cast<decltype(&::name)>(address);                      \
  }
  EXAMPLE_DRIVER_CALLS(EXAMPLE_FIND)
#undef EXAMPLE_FIND
}

CUdeviceptr device_pointer(const void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

}  // namespace

void init() {
  load_driver();
  EXAMPLE_CHECK(cuInit, 0);
  CUdevice device;
  EXAMPLE_CHECK(cuDeviceGet, &device, 0);
  CUcontext context;
  EXAMPLE_CHECK(cuDevicePrimaryCtxRetain, &context, device);
  EXAMPLE_CHECK(cuCtxSetCurrent, context);
}

void* allocate(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXAMPLE_CHECK(cuMemAlloc, &p, bytes);
  return reinterpret_cast<void*>(p);
}

void release(void* device) {
  EXAMPLE_CHECK(cuMemFree, device_pointer(device));
}

void* allocate_pinned(std::size_t bytes) {
  void* p = nullptr;
  EXAMPLE_CHECK(cuMemHostAlloc, &p, bytes, 0);
  return p;
}

void release_pinned(void* host) {
  EXAMPLE_CHECK(cuMemFreeHost, host);
}

void copy_in(void* device, const void* host, std::size_t bytes) {
  EXAMPLE_CHECK(cuMemcpyHtoD, device_pointer(device), host, bytes);
}

void copy_out(void* host, const void* device, std::size_t bytes) {
  EXAMPLE_CHECK(cuMemcpyDtoH, host, device_pointer(device), bytes);
}

void copy_in_async(void* device, const void* host, std::size_t bytes, CUstream_st* stream) {
  EXAMPLE_CHECK(cuMemcpyHtoDAsync, device_pointer(device), host, bytes, stream);
}

void copy_out_async(void* host, const void* device, std::size_t bytes, CUstream_st* stream) {
  EXAMPLE_CHECK(cuMemcpyDtoHAsync, host, device_pointer(device), bytes, stream);
}

void set_zero(void* device, std::size_t bytes) {
  EXAMPLE_CHECK(cuMemsetD8, device_pointer(device), 0, bytes);
}

CUstream_st* create_stream() {
  CUstream stream;
  EXAMPLE_CHECK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  return stream;
}

void destroy_stream(CUstream_st* stream) {
  EXAMPLE_CHECK(cuStreamDestroy, stream);
}

void synchronize(CUstream_st* stream) {
  EXAMPLE_CHECK(cuStreamSynchronize, stream);
}

void synchronize() {
  EXAMPLE_CHECK(cuCtxSynchronize);
}

CUevent_st* create_event() {
  CUevent event;
  EXAMPLE_CHECK(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  return event;
}

void destroy_event(CUevent_st* event) {
  EXAMPLE_CHECK(cuEventDestroy, event);
}

void record(CUevent_st* event, CUstream_st* stream) {
  EXAMPLE_CHECK(cuEventRecord, event, stream);
}

void wait(CUstream_st* stream, CUevent_st* event) {
  EXAMPLE_CHECK(cuStreamWaitEvent, stream, event, 0);
}

void* find_kernel(const char* name, LaunchForm form) {
  if (form == LaunchForm::library_kernel) {
    static CUlibrary library = nullptr;
    if (library == nullptr)
      EXAMPLE_CHECK(cuLibraryLoadData, &library, kernel_ptx, nullptr, nullptr, 0, nullptr, nullptr,
                    0);
    CUkernel kernel;
    EXAMPLE_CHECK(cuLibraryGetKernel, &kernel, library, name);
    return kernel;
  }
  static CUmodule module = nullptr;
  if (module == nullptr)
    EXAMPLE_CHECK(cuModuleLoadData, &module, kernel_ptx);
  CUfunction function;
  EXAMPLE_CHECK(cuModuleGetFunction, &function, module, name);
  return function;
}

void launch(void* kernel, LaunchForm form, const LaunchSize& size, void** arguments,
            const std::size_t* sizes, const std::size_t* alignments, std::size_t count) {
  // cuLaunchKernel takes a CUkernel in place of a CUfunction (driver API manual, cuLaunchKernel).
  const auto function = static_cast<CUfunction>(kernel);
  const Dim& g = size.grid;
  const Dim& b = size.block;
  switch (form) {
    case LaunchForm::kernel_params:
    case LaunchForm::library_kernel:
      EXAMPLE_CHECK(cuLaunchKernel, function, g.x, g.y, g.z, b.x, b.y, b.z, size.shared_bytes,
                    size.stream, arguments, nullptr);
      break;
    case LaunchForm::extra: {
      std::string buffer;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t a = alignments[i];
        buffer.resize((buffer.size() + a - 1) / a * a);
        buffer.append(static_cast<const char*>(arguments[i]), sizes[i]);
      }
      std::size_t bytes = buffer.size();
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                       &bytes, CU_LAUNCH_PARAM_END};
      EXAMPLE_CHECK(cuLaunchKernel, function, g.x, g.y, g.z, b.x, b.y, b.z, size.shared_bytes,
                    size.stream, nullptr, extra);
      break;
    }
    case LaunchForm::launch_ex: {
      CUlaunchConfig config = {};
      config.gridDimX = g.x;
      config.gridDimY = g.y;
      config.gridDimZ = g.z;
      config.blockDimX = b.x;
      config.blockDimY = b.y;
      config.blockDimZ = b.z;
      config.sharedMemBytes = size.shared_bytes;
      config.hStream = size.stream;
      EXAMPLE_CHECK(cuLaunchKernelEx, &config, function, arguments, nullptr);
      break;
    }
  }
}

}  // namespace gpu
