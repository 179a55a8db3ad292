// SPDX-License-Identifier: Apache-2.0
// The floor that launch_overhead measures against: a library loaded by CUDA_INJECTION64_PATH that
// subscribes to CUPTI, enables the callbacks of the launch calls and does nothing in them but
// count, so that the benchmark can prove that they ran. What a launch costs above this is ours.
#include <cupti.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

// Written by the launching thread, read at exit; a plain increment, as an atomic one would weigh
// as much as what is measured.
std::uint64_t calls = 0;

void CUPTIAPI callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {
  __atomic_store_n(&calls, __atomic_load_n(&calls, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

// CUPTI by dlopen: the toolkit's folder differs from machine to machine, and GPURECOVER_CUPTI,
// where it is set, names the file.
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
    if (name[0] == '\0')
      continue;
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return library;
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  void* cupti = open_cupti();
  if (cupti == nullptr) {
    std::fprintf(stderr, "empty_callback: no libcupti found; GPURECOVER_CUPTI may name it\n");
    return 1;
  }
  const auto subscribe =
      reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(cupti, "cuptiSubscribe"));
  const auto enable =
      reinterpret_cast<decltype(&cuptiEnableCallback)>(dlsym(cupti, "cuptiEnableCallback"));
  CUpti_SubscriberHandle subscriber;
  const CUptiResult code = subscribe == nullptr || enable == nullptr
                               ? CUPTI_ERROR_UNKNOWN
                               : subscribe(&subscriber, callback, nullptr);
  if (code != CUPTI_SUCCESS) {
    std::fprintf(stderr, "empty_callback: cuptiSubscribe fails with %d\n", static_cast<int>(code));
    return 1;
  }
  for (const CUpti_CallbackId id :
       {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz})
    enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  std::atexit([] {
    std::fprintf(stderr, "empty_callback_calls=%llu\n", static_cast<unsigned long long>(calls));
  });
  return 1;
}
