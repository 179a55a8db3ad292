// SPDX-License-Identifier: Apache-2.0
// Stands before the real CUPTI, which GPURECOVER_CUPTI names, and tells the benchmark which
// callback has subscribed. Only the functions that the agent asks for.
#include <cupti.h>
#include <dlfcn.h>

#include <cstdlib>

#define TAP_EXPORT extern "C" __attribute__((visibility("default")))

TAP_EXPORT CUpti_CallbackFunc tap_callback;
TAP_EXPORT void* tap_userdata;
CUpti_CallbackFunc tap_callback = nullptr;
void* tap_userdata = nullptr;

namespace {

template <class F>
F real(const char* name) {
  static void* const library = [] {
    const char* path = std::getenv("GPURECOVER_CUPTI");
    return path != nullptr && *path != '\0' ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  }();
  return library != nullptr ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
}

}  // namespace

#define FORWARD(name, ...)                            \
  const auto function = real<decltype(&name)>(#name); \
  return function != nullptr ? function(__VA_ARGS__) : CUPTI_ERROR_UNKNOWN

TAP_EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber,
                                      CUpti_CallbackFunc callback, void* userdata) {
  tap_callback = callback;
  tap_userdata = userdata;
  FORWARD(cuptiSubscribe, subscriber, callback, userdata);
}
TAP_EXPORT CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                           CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  FORWARD(cuptiEnableCallback, enable, subscriber, domain, cbid);
}
TAP_EXPORT CUptiResult cuptiGetVersion(uint32_t* version) {
  FORWARD(cuptiGetVersion, version);
}
TAP_EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  FORWARD(cuptiGetResultString, result, text);
}
