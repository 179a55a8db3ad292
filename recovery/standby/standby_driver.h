// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <functional>
#include <string>

#include "cupti/driver_api/driver.h"

namespace gpurecover::recovery {

// What only the standby asks its driver for, in CUDA 12.5's form.
#define GPURECOVER_STANDBY_FUNCTIONS(X) \
  X(cuInit)                             \
  X(cuDeviceGet)                        \
  X(cuDeviceGetCount)                   \
  X(cuDeviceGetUuid)                    \
  X(cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxSetFlags)         \
  X(cuKernelGetFunction)                \
  X(cuLibraryLoadData)                  \
  X(cuMemAddressFree)                   \
  X(cuMemAddressReserve)                \
  X(cuMemHostRegister)                  \
  X(cuMemHostUnregister)                \
  X(cuMemImportFromShareableHandle)     \
  X(cuMemMap)                           \
  X(cuMemRelease)                       \
  X(cuMemSetAccess)                     \
  X(cuMemUnmap)                         \
  X(cuMemcpyAsync)                      \
  X(cuMemcpyHtoDAsync)                  \
  X(cuStreamWriteValue32)

struct StandbyDriver {
#define X(name) decltype(&::name) name = nullptr;
  GPURECOVER_STANDBY_FUNCTIONS(X)
#undef X
  driver_api::Driver common;
  // An exported function, or null.
  std::function<void*(const std::string&)> symbol;

  // Opens libcuda.so.1 as the dynamic loader finds it, and resolves all of this. False with the
  // reason.
  bool load(std::string& error);
};

}  // namespace gpurecover::recovery
