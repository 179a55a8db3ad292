// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cupti/driver_api/driver.h"
#include "cupti/driver_api/driver_api.h"

namespace gpurecover::agent {

// One launch, whichever form of call it came by. Refers to the app's own arguments, so it is valid
// only while the app's call lasts.
struct LaunchCall {
  driver_api::Hook form = driver_api::Hook::kLaunchKernel;
  std::uint32_t cbid = 0;         // CUPTI's number of the call
  void* params = nullptr;         // CUPTI's parameter struct of the call
  CUfunction function = nullptr;  // a CUfunction or a CUkernel
  CUgraphExec graph = nullptr;
  unsigned grid[3] = {0, 0, 0};
  unsigned block[3] = {0, 0, 0};
  unsigned shared_bytes = 0;
  CUstream stream = nullptr;  // as the app gave it
  void** kernel_params = nullptr;
  void** extra = nullptr;
  const CUlaunchConfig* config = nullptr;

  // The stream by a handle that means the same in every form of a call.
  CUstream explicit_stream() const {
    if (stream != nullptr) {
      return stream;
    }
    return driver_api::per_thread_stream(cbid) ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  }
};

// Reads the call from CUPTI's parameters, whatever `call` was before; `form` is one of the launch
// hooks. Every launch passes here, hence the place to write to instead of a result.
void read_launch(driver_api::Hook form, std::uint32_t cbid, const void* params, LaunchCall& call);

// Makes the driver refuse the call that is about to be made: a grid of no blocks, or no graph.
// `config` must live until restore; nothing of the app's own is written to.
void suppress(const LaunchCall& call, CUlaunchConfig& config);
// Puts the parameters back as they were.
void restore(const LaunchCall& call);

// Launches again with the same arguments; the driver's code.
CUresult relaunch(const driver_api::Driver& driver, const LaunchCall& call);

}  // namespace gpurecover::agent
