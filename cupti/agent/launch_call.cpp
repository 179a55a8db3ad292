// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/launch_call.h"

#include <cupti.h>

namespace gpurecover::agent {
namespace {

using driver_api::Hook;

template <class Params>
void read_dimensions(LaunchCall& call, const Params& p) {
  call.function = p.f;
  call.grid[0] = p.gridDimX;
  call.grid[1] = p.gridDimY;
  call.grid[2] = p.gridDimZ;
  call.block[0] = p.blockDimX;
  call.block[1] = p.blockDimY;
  call.block[2] = p.blockDimZ;
  call.shared_bytes = p.sharedMemBytes;
  call.stream = p.hStream;
  call.kernel_params = p.kernelParams;
}

// For the forms that do not set every field.
void forget(LaunchCall& call) {
  LaunchCall fresh;
  fresh.form = call.form;
  fresh.cbid = call.cbid;
  fresh.params = call.params;
  call = fresh;
}

}  // namespace

void read_launch(Hook form, std::uint32_t cbid, const void* params, LaunchCall& call) {
  call.form = form;
  call.cbid = cbid;
  // The struct is CUPTI's own copy of the arguments; CUPTI declares it const, but what is changed
  // in it takes effect, which the agent has probed at its start.
  call.params = const_cast<void*>(params);
  switch (form) {
    case Hook::kLaunchKernel: {
      const auto& p = *static_cast<const cuLaunchKernel_params*>(params);
      read_dimensions(call, p);
      call.graph = nullptr;
      call.extra = p.extra;
      call.config = nullptr;
      break;
    }
    case Hook::kLaunchCooperative:
      read_dimensions(call, *static_cast<const cuLaunchCooperativeKernel_params*>(params));
      call.graph = nullptr;
      call.extra = nullptr;
      call.config = nullptr;
      break;
    case Hook::kLaunchKernelEx: {
      const auto& p = *static_cast<const cuLaunchKernelEx_params*>(params);
      forget(call);
      call.function = p.f;
      call.kernel_params = p.kernelParams;
      call.extra = p.extra;
      call.config = p.config;
      if (p.config != nullptr) {
        call.grid[0] = p.config->gridDimX;
        call.grid[1] = p.config->gridDimY;
        call.grid[2] = p.config->gridDimZ;
        call.block[0] = p.config->blockDimX;
        call.block[1] = p.config->blockDimY;
        call.block[2] = p.config->blockDimZ;
        call.shared_bytes = p.config->sharedMemBytes;
        call.stream = p.config->hStream;
      }
      break;
    }
    case Hook::kGraphLaunch: {
      const auto& p = *static_cast<const cuGraphLaunch_params*>(params);
      forget(call);
      call.graph = p.hGraph;
      call.stream = p.hStream;
      break;
    }
    default:
      forget(call);
      break;
  }
}

void suppress(const LaunchCall& call, CUlaunchConfig& config) {
  switch (call.form) {
    case Hook::kLaunchKernel:
      static_cast<cuLaunchKernel_params*>(call.params)->gridDimX = 0;
      break;
    case Hook::kLaunchCooperative:
      static_cast<cuLaunchCooperativeKernel_params*>(call.params)->gridDimX = 0;
      break;
    case Hook::kLaunchKernelEx:
      if (call.config != nullptr) {
        config = *call.config;
        config.gridDimX = 0;
        static_cast<cuLaunchKernelEx_params*>(call.params)->config = &config;
      }
      break;
    case Hook::kGraphLaunch:
      static_cast<cuGraphLaunch_params*>(call.params)->hGraph = nullptr;
      break;
    default:
      break;
  }
}

void restore(const LaunchCall& call) {
  switch (call.form) {
    case Hook::kLaunchKernel:
      static_cast<cuLaunchKernel_params*>(call.params)->gridDimX = call.grid[0];
      break;
    case Hook::kLaunchCooperative:
      static_cast<cuLaunchCooperativeKernel_params*>(call.params)->gridDimX = call.grid[0];
      break;
    case Hook::kLaunchKernelEx:
      static_cast<cuLaunchKernelEx_params*>(call.params)->config = call.config;
      break;
    case Hook::kGraphLaunch:
      static_cast<cuGraphLaunch_params*>(call.params)->hGraph = call.graph;
      break;
    default:
      break;
  }
}

CUresult relaunch(const driver_api::Driver& driver, const LaunchCall& call) {
  switch (call.form) {
    case Hook::kLaunchKernel:
      return driver.cuLaunchKernel(call.function, call.grid[0], call.grid[1], call.grid[2],
                                   call.block[0], call.block[1], call.block[2], call.shared_bytes,
                                   call.explicit_stream(), call.kernel_params, call.extra);
    case Hook::kLaunchCooperative:
      return driver.cuLaunchCooperativeKernel(
          call.function, call.grid[0], call.grid[1], call.grid[2], call.block[0], call.block[1],
          call.block[2], call.shared_bytes, call.explicit_stream(), call.kernel_params);
    case Hook::kLaunchKernelEx: {
      if (call.config == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      CUlaunchConfig config = *call.config;
      config.hStream = call.explicit_stream();
      return driver.cuLaunchKernelEx(&config, call.function, call.kernel_params, call.extra);
    }
    case Hook::kGraphLaunch:
      return driver.cuGraphLaunch(call.graph, call.explicit_stream());
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace gpurecover::agent
