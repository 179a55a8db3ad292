// SPDX-License-Identifier: Apache-2.0
// Loaded by CUDA_INJECTION64_PATH: one subscriber, as the agent has, that does nothing until
// after_fault asks for a mode.
#include <cupti.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cupti/driver_api/params_size.h"

namespace {

enum Mode { kOff = 0, kLook = 1, kZero = 2 };
int mode = kOff;
decltype(&cuptiEnableDomain) enable_domain = nullptr;
CUpti_SubscriberHandle subscriber = nullptr;
// Of the call under way; the questions are asked by one thread, one call at a time.
unsigned char saved[4096];
std::uint32_t saved_correlation = 0;
std::uint32_t saved_size = 0;
unsigned long long callbacks = 0;

void CUPTIAPI callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId cbid, const void* raw) {
  if (mode == kOff || domain != CUPTI_CB_DOMAIN_DRIVER_API) {
    return;
  }
  ++callbacks;
  const auto& data = *static_cast<const CUpti_CallbackData*>(raw);
  auto* params = const_cast<void*>(data.functionParams);
  const std::uint32_t size = gpurecover::driver_api::params_size(cbid);
  if (params == nullptr || size == 0 || size > sizeof saved) {
    return;
  }
  if (data.callbackSite == CUPTI_API_ENTER) {
    // A call from within another one is left as it is.
    if (saved_correlation != 0) {
      return;
    }
    std::memcpy(saved, params, size);
    saved_correlation = data.correlationId;
    saved_size = size;
    if (mode == kZero) {
      std::memset(params, 0, size);
    }
  } else if (saved_correlation == data.correlationId) {
    std::memcpy(params, saved, saved_size);
    saved_correlation = 0;
  }
}

void* open_cupti() {
  const char* chosen = std::getenv("GPURECOVER_CUPTI");
  const char* const names[] = {chosen != nullptr ? chosen : "",
                               "libcupti.so.13",
                               "/usr/local/cuda/lib64/libcupti.so.13",
                               "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                               "libcupti.so.12",
                               "/usr/local/cuda/lib64/libcupti.so.12",
                               "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12"};
  for (const char* name : names) {
    if (name[0] == '\0') {
      continue;
    }
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
  }
  return nullptr;
}

}  // namespace

// Turns the callbacks of the whole driver domain on (1: copy the parameters; 2: zero them from
// enter to exit) or off (0). Returns CUPTI's code.
extern "C" __attribute__((visibility("default"))) int after_fault_mode(int wanted) {
  mode = kOff;
  saved_correlation = 0;
  if (enable_domain == nullptr) {
    return -1;
  }
  const int code = enable_domain(wanted != kOff ? 1 : 0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
  mode = wanted;
  return code;
}

extern "C" __attribute__((visibility("default"))) unsigned long long after_fault_callbacks() {
  return callbacks;
}

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  void* cupti = open_cupti();
  if (cupti == nullptr) {
    std::fprintf(stderr, "after_fault: no libcupti found; GPURECOVER_CUPTI may name it\n");
    return 1;
  }
  const auto subscribe =
      reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(cupti, "cuptiSubscribe"));
  enable_domain = reinterpret_cast<decltype(&cuptiEnableDomain)>(dlsym(cupti, "cuptiEnableDomain"));
  const int code = subscribe == nullptr ? -1 : subscribe(&subscriber, callback, nullptr);
  if (code != CUPTI_SUCCESS) {
    std::fprintf(stderr, "after_fault: cuptiSubscribe fails with %d\n", code);
    enable_domain = nullptr;
    return 1;
  }
  return 1;
}
