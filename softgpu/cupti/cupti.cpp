// SPDX-License-Identifier: Apache-2.0
// The callback interface over softgpu's hook table: what an injected agent needs. Activities,
// counters, sampling and profiling do not exist here and answer CUPTI_ERROR_NOT_SUPPORTED.
#include <cupti.h>
#include <cupti_pcsampling.h>
#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <mutex>

#include "softgpu/hooks.h"

namespace {

struct Name {
  uint32_t id;
  const char* text;
};
const Name kDriverNames[] = {
#include "cupti_driver_names.inc"
};
const Name kRuntimeNames[] = {
#include "cupti_runtime_names.inc"
};
struct ResultName {
  CUptiResult code;
  const char* name;
  const char* text;
};
const ResultName kResults[] = {
#include "cupti_results.inc"
};

std::mutex mutex;
CUpti_SubscriberHandle current = nullptr;
thread_local CUptiResult last_error = CUPTI_SUCCESS;

CUptiResult Keep(CUptiResult result) {
  if (result != CUPTI_SUCCESS)
    last_error = result;
  return result;
}

/// The table of the driver that this process uses; null if that is not softgpu's.
SoftgpuHookTable* Hooks() {
  static std::atomic<SoftgpuHookTable*> found{nullptr};
  if (SoftgpuHookTable* table = found.load(std::memory_order_acquire))
    return table;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver)
    return nullptr;
  auto* table = static_cast<SoftgpuHookTable*>(dlsym(driver, "softgpu_hook_table"));
  if (!table || table->size < sizeof(SoftgpuHookTable) || table->version != 1)
    return nullptr;
  found.store(table, std::memory_order_release);
  return table;
}

uint32_t LastId(uint32_t domain) {
  switch (domain) {
    case CUPTI_CB_DOMAIN_DRIVER_API:
      return kDriverNames[sizeof kDriverNames / sizeof kDriverNames[0] - 1].id;
    case CUPTI_CB_DOMAIN_RUNTIME_API:
      return kRuntimeNames[sizeof kRuntimeNames / sizeof kRuntimeNames[0] - 1].id;
    case CUPTI_CB_DOMAIN_RESOURCE:
      return CUPTI_CBID_RESOURCE_SIZE - 1;
    case CUPTI_CB_DOMAIN_SYNCHRONIZE:
      return CUPTI_CBID_SYNCHRONIZE_SIZE - 1;
    case CUPTI_CB_DOMAIN_STATE:
      return CUPTI_CBID_STATE_SIZE - 1;
    case CUPTI_CB_DOMAIN_NVTX:
      return 63;
    default:
      return 0;
  }
}

bool GoodDomain(uint32_t domain) {
  return domain >= CUPTI_CB_DOMAIN_DRIVER_API && domain <= CUPTI_CB_DOMAIN_STATE;
}

CUptiResult Subscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                      void* userdata) {
  if (!subscriber || !callback)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  SoftgpuHookTable* hooks = Hooks();
  if (!hooks)
    return Keep(CUPTI_ERROR_NOT_INITIALIZED);
  std::lock_guard lock(mutex);
  if (current)
    return Keep(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  static char handles[1];  // only the address matters
  current = reinterpret_cast<CUpti_SubscriberHandle>(handles);
  hooks->set_subscriber(callback, userdata);
  *subscriber = current;
  return CUPTI_SUCCESS;
}

void DisableAll(SoftgpuHookTable* hooks) {
  for (uint32_t domain = CUPTI_CB_DOMAIN_DRIVER_API; domain <= CUPTI_CB_DOMAIN_STATE; ++domain)
    for (uint32_t id = 1; id <= LastId(domain); ++id)
      hooks->enable(domain, id, 0);
}

}  // namespace

extern "C" {

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                           void* userdata) {
  return Subscribe(subscriber, callback, userdata);
}

#ifdef CUPTI_SUBSCRIBER_NAME_MAX_LEN
CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                              void* userdata, CUpti_SubscriberParams* params) {
  static char name[CUPTI_SUBSCRIBER_NAME_MAX_LEN + 1];
  if (params && params->structSize < offsetof(CUpti_SubscriberParams, oldSubscriberName))
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  const CUptiResult result = Subscribe(subscriber, callback, userdata);
  std::lock_guard lock(mutex);
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && params &&
      params->structSize >= sizeof(CUpti_SubscriberParams) && params->oldSubscriberName &&
      params->oldSubscriberSize > 0) {
    strncpy(params->oldSubscriberName, name, params->oldSubscriberSize - 1);
    params->oldSubscriberName[params->oldSubscriberSize - 1] = 0;
  }
  if (result == CUPTI_SUCCESS) {
    name[0] = 0;
    if (params && params->subscriberName)
      strncpy(name, params->subscriberName, CUPTI_SUBSCRIBER_NAME_MAX_LEN);
  }
  return result;
}
#endif

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  std::lock_guard lock(mutex);
  if (!subscriber || subscriber != current)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  SoftgpuHookTable* hooks = Hooks();
  DisableAll(hooks);
  hooks->set_subscriber(nullptr, nullptr);
  current = nullptr;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiFinalize() {
  std::lock_guard lock(mutex);
  if (SoftgpuHookTable* hooks = Hooks(); hooks && current) {
    DisableAll(hooks);
    hooks->set_subscriber(nullptr, nullptr);
  }
  current = nullptr;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  std::lock_guard lock(mutex);
  if (!subscriber || subscriber != current || !GoodDomain(domain) || id == 0 || id > LastId(domain))
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  Hooks()->enable(domain, id, enable != 0);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle subscriber,
                              CUpti_CallbackDomain domain) {
  std::lock_guard lock(mutex);
  if (!subscriber || subscriber != current || !GoodDomain(domain))
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  for (uint32_t id = 1; id <= LastId(domain); ++id)
    Hooks()->enable(domain, id, enable != 0);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableAllDomains(uint32_t enable, CUpti_SubscriberHandle subscriber) {
  for (int domain = CUPTI_CB_DOMAIN_DRIVER_API; domain <= CUPTI_CB_DOMAIN_STATE; ++domain)
    if (const CUptiResult result =
            cuptiEnableDomain(enable, subscriber, static_cast<CUpti_CallbackDomain>(domain)))
      return result;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackState(uint32_t* enable, CUpti_SubscriberHandle subscriber,
                                  CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  std::lock_guard lock(mutex);
  if (!enable || !subscriber || subscriber != current || !GoodDomain(domain) || id == 0 ||
      id > LastId(domain))
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  *enable = Hooks()->enabled(domain, id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiSupportedDomains(size_t* count, CUpti_DomainTable* table) {
  static CUpti_CallbackDomain domains[] = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API,
                                           CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CB_DOMAIN_SYNCHRONIZE};
  if (!count || !table)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  *count = sizeof domains / sizeof domains[0];
  *table = domains;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char** name) {
  if (!name)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  auto find = [&](const Name* rows, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (rows[i].id == id) {
        *name = rows[i].text;
        return CUPTI_SUCCESS;
      }
    }
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  };
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
    return find(kDriverNames, sizeof kDriverNames / sizeof kDriverNames[0]);
  if (domain == CUPTI_CB_DOMAIN_RUNTIME_API)
    return find(kRuntimeNames, sizeof kRuntimeNames / sizeof kRuntimeNames[0]);
  return Keep(CUPTI_ERROR_INVALID_PARAMETER);
}

CUptiResult cuptiGetVersion(uint32_t* version) {
  if (!version)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  if (!text)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  for (const ResultName& row : kResults) {
    if (row.code == result) {
      *text = row.name;
      return CUPTI_SUCCESS;
    }
  }
  return Keep(CUPTI_ERROR_INVALID_PARAMETER);
}

CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** text) {
  if (!text)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  for (const ResultName& row : kResults) {
    if (row.code == result) {
      *text = row.text;
      return CUPTI_SUCCESS;
    }
  }
  return Keep(CUPTI_ERROR_INVALID_PARAMETER);
}

CUptiResult cuptiGetLastError() {
  const CUptiResult result = last_error;
  last_error = CUPTI_SUCCESS;
  return result;
}

CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  if (!timestamp)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  *timestamp =
      static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetContextId(CUcontext context, uint32_t* id) {
  SoftgpuHookTable* hooks = Hooks();
  if (!id)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  if (!hooks)
    return Keep(CUPTI_ERROR_NOT_INITIALIZED);
  *id = hooks->context_id(context);
  return *id ? CUPTI_SUCCESS : Keep(CUPTI_ERROR_INVALID_CONTEXT);
}

CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread,
                               uint32_t* id) {
  SoftgpuHookTable* hooks = Hooks();
  if (!id)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  if (!hooks)
    return Keep(CUPTI_ERROR_NOT_INITIALIZED);
  *id = hooks->stream_id(context, !stream && per_thread ? CU_STREAM_PER_THREAD : stream);
  return *id ? CUPTI_SUCCESS : Keep(CUPTI_ERROR_INVALID_STREAM);
}

CUptiResult cuptiGetStreamId(CUcontext context, CUstream stream, uint32_t* id) {
  return cuptiGetStreamIdEx(context, stream, 0, id);
}

// Equal images have equal values, which is all that its users need.
CUptiResult cuptiGetCubinCrc(CUpti_GetCubinCrcParams* params) {
  if (!params || !params->cubin || !params->cubinSize)
    return Keep(CUPTI_ERROR_INVALID_PARAMETER);
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto* bytes = static_cast<const unsigned char*>(params->cubin);
  for (size_t i = 0; i < params->cubinSize; ++i)
    hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  params->cubinCrc = hash;
  return CUPTI_SUCCESS;
}

}  // extern "C"
