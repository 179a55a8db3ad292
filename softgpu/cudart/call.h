// SPDX-License-Identifier: Apache-2.0
// What every exported runtime function does around its implementation: the thread's last error, and
// the subscriber's callbacks.
#pragma once

#include <cstdint>

#include "softgpu/cudart/headers.h"

namespace gpurecover::softgpu {

/// While it lives, this thread's null stream is the per-thread default stream.
class PerThreadStreams {
 public:
  PerThreadStreams() : before_(active_) { active_ = true; }
  ~PerThreadStreams() { active_ = before_; }
  static bool active() { return active_; }

 private:
  static thread_local bool active_;
  bool before_;
};

/// "not supported", and a line on stderr if asked for.
cudaError_t NotSupported(const char* name);

/// Keeps an error as the thread's last one; answers that are no errors are not kept.
cudaError_t Keep(cudaError_t result);

/// Sends enter (site 0) or exit (site 1) to the driver's hook table.
void RuntimeCallback(uint32_t site, uint32_t cbid, const char* name, const void* params,
                     cudaError_t* result, uint64_t* data, uint32_t* id);

template <class Implementation>
cudaError_t Call(uint32_t cbid, const char* name, const void* params,
                 Implementation&& implementation) {
  uint64_t data = 0;
  uint32_t id = 0;
  RuntimeCallback(0, cbid, name, params, nullptr, &data, &id);
  cudaError_t result = Keep(implementation());
  RuntimeCallback(1, cbid, name, params, &result, &data, &id);
  return result;
}

}  // namespace gpurecover::softgpu
