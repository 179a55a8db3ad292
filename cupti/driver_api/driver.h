// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <string>

// The driver calls that gpurecover itself makes, as function pointers: nothing links libcuda, so
// that a program without a driver still starts, and one on softgpu uses that.
namespace gpurecover::driver_api {

// Functions asked for in their CUDA 12.5 form, whose declarations CUDA 13's cuda.h still has.
#define GPURECOVER_DRIVER_FUNCTIONS(X) \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuCtxGetCurrent)                   \
  X(cuCtxSetCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxSynchronize)                  \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetUuid)                   \
  X(cuDevicePrimaryCtxGetState)        \
  X(cuStreamSynchronize)               \
  X(cuStreamQuery)                     \
  X(cuStreamWriteValue32)              \
  X(cuStreamIsCapturing)               \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuModuleLoadData)                  \
  X(cuModuleGetFunction)               \
  X(cuModuleGetGlobal)                 \
  X(cuLibraryLoadData)                 \
  X(cuLibraryGetGlobal)                \
  X(cuLibraryGetKernel)                \
  X(cuFuncGetModule)                   \
  X(cuFuncGetName)                     \
  X(cuFuncGetParamInfo)                \
  X(cuKernelGetLibrary)                \
  X(cuKernelGetName)                   \
  X(cuKernelGetParamInfo)              \
  X(cuLaunchKernel)                    \
  X(cuLaunchKernelEx)                  \
  X(cuLaunchCooperativeKernel)         \
  X(cuGraphLaunch)                     \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemGetAddressRange)              \
  X(cuMemcpyDtoDAsync)                 \
  X(cuMemcpyDtoHAsync)                 \
  X(cuMemcpyHtoDAsync)                 \
  X(cuMemsetD8Async)                   \
  X(cuMemAllocPitch)                   \
  X(cuMemCreate)                       \
  X(cuMemRelease)                      \
  X(cuMemMap)                          \
  X(cuMemUnmap)                        \
  X(cuMemSetAccess)                    \
  X(cuMemAddressReserve)               \
  X(cuMemAddressFree)                  \
  X(cuMemExportToShareableHandle)      \
  X(cuMemRetainAllocationHandle)       \
  X(cuMemHostAlloc)                    \
  X(cuMemFreeHost)                     \
  X(cuMemHostRegister)                 \
  X(cuMemHostUnregister)               \
  X(cuMemAllocAsync)                   \
  X(cuMemAllocFromPoolAsync)           \
  X(cuMemFreeAsync)                    \
  X(cuDeviceTotalMem)                  \
  X(cuDeviceGetMemPool)                \
  X(cuDeviceGetDefaultMemPool)         \
  X(cuStreamGetId)                     \
  X(cuEventCreate)                     \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventSynchronize)                \
  X(cuEventDestroy)

struct Driver {
#define X(name) decltype(&::name) name = nullptr;
  GPURECOVER_DRIVER_FUNCTIONS(X)
#undef X
};

// Resolves all of Driver from the libcuda.so.1 that the process has loaded already; it loads none.
// False with the reason (a driver older than CUDA 12.5, a function it lacks). Makes no call that
// needs an initialised driver, so it works from within cuInit. Any thread.
bool load_driver(Driver& driver, std::string& error);

// While it lives, the calling thread's stream capture mode is relaxed, so that our calls neither
// fail nor spoil a capture of the app's (cuda.h, cuThreadExchangeStreamCaptureMode).
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace gpurecover::driver_api
