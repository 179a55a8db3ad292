// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/driver.h"

#include <dlfcn.h>

namespace gpurecover::driver_api {

bool load_driver(Driver& driver, std::string& error) {
  // Opened once more and never closed: the app may not unload it beneath us.
  void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) {
    error = "libcuda.so.1 is not loaded in this process";
    return false;
  }
  const auto get =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    error = "the driver has no cuGetProcAddress_v2; a driver of CUDA 12.5 or newer is needed";
    return false;
  }
  constexpr int kVersion = 12050;
#define X(name)                                                                        \
  {                                                                                    \
    void* address = nullptr;                                                           \
    if (get(#name, &address, kVersion, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr) !=  \
            CUDA_SUCCESS ||                                                            \
        address == nullptr) {                                                          \
      error = "the driver has no " #name "; a driver of CUDA 12.5 or newer is needed"; \
      return false;                                                                    \
    }                                                                                  \
    driver.name = reinterpret_cast<decltype(driver.name)>(address);                    \
  }
  GPURECOVER_DRIVER_FUNCTIONS(X)
#undef X
  return true;
}

}  // namespace gpurecover::driver_api
