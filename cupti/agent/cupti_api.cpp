// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/cupti_api.h"

#include <dlfcn.h>

namespace gpurecover::agent {

bool load_cupti(Cupti& cupti, const std::string& path, std::string& error) {
  constexpr char kName[] = "libcupti.so.13";
  // What the app has loaded comes first: a second copy of CUPTI would not see the same driver
  // hooks.
  void* library = dlopen(kName, RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr && !path.empty()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    error =
        "CUPTI (libcupti.so.13) was not found; it comes with the CUDA toolkit, `gpurecover "
        "doctor` tells where it was looked for";
    return false;
  }
#define X(name)                                                               \
  cupti.name = reinterpret_cast<decltype(cupti.name)>(dlsym(library, #name)); \
  if (cupti.name == nullptr) {                                                \
    error = "the CUPTI that was found has no " #name;                         \
    return false;                                                             \
  }
  GPURECOVER_CUPTI_FUNCTIONS(X)
#undef X
  return true;
}

}  // namespace gpurecover::agent
