// SPDX-License-Identifier: Apache-2.0
// A library that a driver loads by CUDA_INJECTION64_PATH. It finds the callback interface as an
// agent does, and does to calls what a test asks by SOFTGPU_TEST_INJECTION:
//   "log"       prints every driver call, enter and exit, and every resource event
//   "exit=N"    puts N in place of what cuMemFree_v2 returns
//   "size=N"    allocates N bytes whatever cuMemAlloc_v2 was asked for
//   "suppress"  makes cuMemAlloc_v2 fail by asking for 0 bytes, and answers itself
//   "nested"    calls the driver from inside the callback of cuMemAlloc_v2
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

namespace {

std::string mode;
thread_local bool inside = false;
CUresult (*driver_alloc)(CUdeviceptr*, size_t) = nullptr;

void Callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* raw) {
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    const auto* r = static_cast<const CUpti_ResourceData*>(raw);
    printf("resource %u context %d\n", id, r->context != nullptr);
    if (id == CUPTI_CBID_RESOURCE_MODULE_LOADED) {
      const auto* m = static_cast<const CUpti_ModuleResourceData*>(r->resourceDescriptor);
      printf("image %d\n", m->cubinSize > 4 && memcmp(m->pCubin, "\177ELF", 4) == 0);
    }
    return;
  }
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API)
    return;
  const auto* data = static_cast<const CUpti_CallbackData*>(raw);
  const bool exit = data->callbackSite == CUPTI_API_EXIT;
  auto* result = static_cast<CUresult*>(data->functionReturnValue);
  if (mode == "log") {
    printf("%s %s", data->functionName, exit ? "exit" : "enter");
    if (exit)
      printf(" %d same %d", *result, *data->correlationData == data->correlationId);
    else
      *data->correlationData = data->correlationId;
    printf(" %s\n", data->symbolName ? data->symbolName : "-");
    return;
  }
  if (mode.rfind("exit=", 0) == 0 && exit && id == CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2)
    *result = static_cast<CUresult>(atoi(mode.c_str() + 5));
  if (id != CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2)
    return;
  auto* params = const_cast<cuMemAlloc_v2_params*>(
      static_cast<const cuMemAlloc_v2_params*>(data->functionParams));
  if (mode.rfind("size=", 0) == 0 && !exit)
    params->bytesize = static_cast<size_t>(atoll(mode.c_str() + 5));
  if (mode == "suppress") {
    if (!exit) {
      params->bytesize = 0;
    } else {
      printf("driver said %d\n", *result);
      if (params->dptr)
        *params->dptr = 0x1234000;
      *result = CUDA_SUCCESS;
    }
  }
  if (mode == "nested") {
    // Calls from inside a callback arrive at the callback, too; a guard is the subscriber's affair.
    if (inside) {
      printf("nested %s\n", exit ? "exit" : "enter");
      return;
    }
    inside = true;
    CUdeviceptr p = 0;
    printf("own allocation %d\n", driver_alloc(&p, 64));
    inside = false;
  }
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* text = getenv("SOFTGPU_TEST_INJECTION");
  mode = text ? text : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  void* cupti = dlopen("libcupti.so.13", RTLD_NOW);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cupti || !driver) {
    printf("%s\n", dlerror());
    return 0;
  }
  auto subscribe = reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(cupti, "cuptiSubscribe"));
  auto enable = reinterpret_cast<decltype(&cuptiEnableDomain)>(dlsym(cupti, "cuptiEnableDomain"));
  driver_alloc =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(driver, "cuMemAlloc_v2"));
  CUpti_SubscriberHandle subscriber = nullptr, second = nullptr;
  const CUptiResult first = subscribe(&subscriber, Callback, nullptr);
  printf("subscribed %d, again %d\n", first, subscribe(&second, Callback, nullptr));
  enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
  enable(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE);
  return 1;
}
