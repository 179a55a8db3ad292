// SPDX-License-Identifier: Apache-2.0
#include "recovery/standby/standby_driver.h"

#include <dlfcn.h>

namespace gpurecover::recovery {

bool StandbyDriver::load(std::string& error) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    error = why != nullptr ? why : "libcuda.so.1 cannot be opened";
    return false;
  }
  if (!driver_api::load_driver(common, error)) {
    return false;
  }
  const auto get =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  constexpr int kVersion = 12050;
#define X(name)                                                                       \
  {                                                                                   \
    void* address = nullptr;                                                          \
    if (get(#name, &address, kVersion, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr) != \
            CUDA_SUCCESS ||                                                           \
        address == nullptr) {                                                         \
      error = "the driver has no " #name;                                             \
      return false;                                                                   \
    }                                                                                 \
    this->name = reinterpret_cast<decltype(this->name)>(address);                     \
  }
  GPURECOVER_STANDBY_FUNCTIONS(X)
#undef X
  symbol = [library](const std::string& name) { return dlsym(library, name.c_str()); };
  return true;
}

}  // namespace gpurecover::recovery
