// SPDX-License-Identifier: Apache-2.0
// What every exported driver function does around its implementation: the callback of a subscriber
// at entry and exit, and the answers that a process without cuInit, a forked one or a poisoned one
// gives before any implementation is asked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "softgpu/driver/cuda_headers.h"

namespace gpurecover::softgpu {

struct ApiRow {
  const char* name;
  uint32_t cbid;  // CUPTI_DRIVER_TRACE_CBID_…, 0: none
  bool early;     // answers before cuInit
  bool faulted;   // answers in a poisoned process
};
extern const ApiRow kApiRows[];
extern const size_t kApiRowCount;

inline constexpr size_t kMaxCbid = 2048;
/// Which driver callbacks the subscriber wants, by callback id.
extern std::atomic<uint8_t> driver_callbacks[kMaxCbid];

/// CUDA_SUCCESS, or what the call answers without being asked.
CUresult Admit(const ApiRow& row);

/// Says on stderr, if asked to, that `name` is not implemented.
CUresult NotSupported(const char* name);

/// While it lives, this thread's null stream is the per-thread default stream.
class PerThreadDefaultStream {
 public:
  PerThreadDefaultStream() : before_(active_) { active_ = true; }
  ~PerThreadDefaultStream() { active_ = before_; }
  static bool active() { return active_; }

 private:
  static thread_local bool active_;
  bool before_;
};

/// Enter and exit of one call, for the subscriber.
class CallbackScope {
 public:
  CallbackScope(const ApiRow& row, const void* params);
  void Exit(CUresult* result);

 private:
  void Send(uint32_t site, CUresult* result);
  const ApiRow& row_;
  const void* params_;
  const char* symbol_ = nullptr;
  uint64_t correlation_data_ = 0;
  uint32_t correlation_id_;
};

template <class Implementation>
CUresult Gate(const ApiRow& row, Implementation&& implementation) {
  if (const CUresult refused = Admit(row); refused != CUDA_SUCCESS)
    return refused;
  try {
    return implementation();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

template <class Implementation>
CUresult Call(size_t index, const void* params, Implementation&& implementation) {
  const ApiRow& row = kApiRows[index];
  if (!driver_callbacks[row.cbid].load(std::memory_order_relaxed)) [[likely]]
    return Gate(row, implementation);
  CallbackScope scope(row, params);
  CUresult result = Gate(row, implementation);
  scope.Exit(&result);
  return result;
}

}  // namespace gpurecover::softgpu
