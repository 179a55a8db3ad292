// SPDX-License-Identifier: Apache-2.0
// Kernel launches.
#include <string.h>

#include <algorithm>

#include "driver_api.h"
#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {
namespace {

struct Launch {
  Dim3 grid, block, cluster;
  uint32_t shared = 0;
  bool cooperative = false;
};

/// Copies the arguments into one block, from either form of passing them.
CUresult PackParameters(const KernelInfo& info, void** kernel_params, void** extra,
                        std::vector<uint8_t>* out) {
  out->assign(info.parameter_bytes, 0);
  if (kernel_params && extra)
    return CUDA_ERROR_INVALID_VALUE;
  if (extra) {
    const uint8_t* buffer = nullptr;
    const size_t* size = nullptr;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END && i < 16; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
        buffer = static_cast<const uint8_t*>(extra[i + 1]);
      else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
        size = static_cast<const size_t*>(extra[i + 1]);
      else
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (info.parameters.empty())
      return CUDA_SUCCESS;
    if (!buffer || !size)
      return CUDA_ERROR_INVALID_VALUE;
    memcpy(out->data(), buffer, std::min(*size, out->size()));
    return CUDA_SUCCESS;
  }
  if (info.parameters.empty())
    return CUDA_SUCCESS;
  if (!kernel_params)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < info.parameters.size(); ++i) {
    const ParameterInfo& p = info.parameters[i];
    if (p.offset + p.size > out->size())
      return CUDA_ERROR_INVALID_VALUE;
    memcpy(out->data() + p.offset, kernel_params[i], p.size);
  }
  return CUDA_SUCCESS;
}

/// The armed fault that this launch is to have, if any. Launches are counted as they are issued.
bool TakeFault(const std::string& kernel, ArmedFault* out) {
  State& state = State::Get();
  std::lock_guard lock(state.tools_mutex);
  ++state.launches;
  for (auto it = state.armed.begin(); it != state.armed.end();) {
    auto here = it++;
    if (!here->kernel.empty() && here->kernel != kernel)
      continue;
    if (--here->launches_left == 0) {
      *out = *here;
      state.armed.erase(here);
      return true;
    }
  }
  return false;
}

std::string Describe(const std::string& kernel, const LaunchResult& r) {
  std::string text = "kernel " + kernel + ": ";
  text += r.message.empty() ? "failed with code " + std::to_string(r.code) : r.message;
  char where[160];
  snprintf(where, sizeof where, " (block %llu, thread %u, instruction %llu",
           static_cast<unsigned long long>(r.block), r.thread,
           static_cast<unsigned long long>(r.instruction));
  text += where;
  if (r.address) {
    snprintf(where, sizeof where, ", %s of %u bytes at 0x%llx",
             r.access_was_write ? "write" : "read", r.access_bytes,
             static_cast<unsigned long long>(r.address));
    text += where;
  }
  if (!r.location.empty())
    text += ", " + r.location;
  return text + ")";
}

CUresult Issue(const Launch& launch, CUstream stream_handle, const void* handle,
               void** kernel_params, void** extra) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunction(handle, &function))
    return result;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  const KernelInfo& info = function->info();
  const auto& [grid, block, cluster, shared, cooperative] = launch;
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      block.count() > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  if (block.count() > info.max_threads)
    return CUDA_ERROR_INVALID_VALUE;
  const uint32_t allowed = std::max<int>(function->attributes.max_dynamic_shared,
                                         (48 << 10) - static_cast<int>(info.static_shared_bytes));
  if (shared > allowed || info.static_shared_bytes + shared > (227u << 10) ||
      (function->attributes.max_dynamic_shared == (48 << 10) &&
       info.static_shared_bytes + shared > (48u << 10)))
    return CUDA_ERROR_INVALID_VALUE;
  if (cluster.count() > 1)
    return NotSupported("a launch in clusters");
  if (cooperative) {
    int resident = 0;
    api::cuOccupancyMaxActiveBlocksPerMultiprocessor(&resident,
                                                     reinterpret_cast<CUfunction>(function.get()),
                                                     static_cast<int>(block.count()), shared);
    if (grid.count() > static_cast<uint64_t>(resident) * 16)
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  if (stream->context->device != function->module->context->device)
    return CUDA_ERROR_INVALID_HANDLE;
  auto parameters = std::make_shared<std::vector<uint8_t>>();
  if (const CUresult result = PackParameters(info, kernel_params, extra, parameters.get()))
    return result;
  function->loaded = true;
  State& state = State::Get();
  ArmedFault armed;
  const bool has_fault = TakeFault(info.name, &armed);

  // The module lives as long as its launches.
  auto module = state.modules.Find(function->module);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  Operation operation;
  operation.kind = Operation::Kind::kKernel;
  operation.run = [=, context = stream->context->shared_from_this(), queue = stream->queue,
                   index = function->index, launch = launch] {
    State& state = State::Get();
    const KernelInfo& info = module->instance.program->kernels()[index];
    LaunchRequest request;
    request.module = &module->instance;
    request.kernel = index;
    request.grid = launch.grid;
    request.block = launch.block;
    request.dynamic_shared_bytes = launch.shared;
    request.parameters = *parameters;
    request.cooperative = launch.cooperative;
    request.memory = Memory::Get().view(context->device);
    request.record_accesses = state.record;
    request.step_budget = state.step_budget;
    request.cancel = &context->cancel;
    if (has_fault)
      request.fault = armed.plan;
    request.print = [context](std::string_view text) {
      std::lock_guard lock(context->print_mutex);
      context->printed.append(text);
    };
    request.print_error = [](std::string_view text) {
      fwrite(text.data(), 1, text.size(), stderr);
    };
    LaunchResult result = state.executor->Run(request);
    const bool healthy = has_fault && armed.healthy && result.fault_fired;
    {
      std::lock_guard lock(state.tools_mutex);
      state.fired += result.fault_fired;
      state.strays += result.stray_accesses;
      if (request.record_accesses) {
        state.last_reads = std::move(result.reads);
        state.last_writes = std::move(result.writes);
      }
      if (result.code) {
        state.last_code = result.code;
        state.last_message = Describe(info.name, result);
      }
    }
    if (state.verbose && result.code)
      Say(Describe(info.name, result));
    if (state.verbose && result.stray_accesses) {
      char text[160];
      snprintf(text, sizeof text,
               ": %llu accesses outside every allocation, the first at 0x%llx; a device does not "
               "notice them",
               static_cast<unsigned long long>(result.stray_accesses),
               static_cast<unsigned long long>(result.first_stray));
      Say("kernel " + info.name + text);
    }
    if (result.code && !healthy)
      Engine::Get().Raise(queue, result.code, Describe(info.name, result));
  };
  softgpu::Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

}  // namespace

namespace api {

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void** params, void** extra) {
  return Issue({{gx, gy, gz}, {bx, by, bz}, {}, shared, false}, stream, f, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                   unsigned int bx, unsigned int by, unsigned int bz,
                                   unsigned int shared, CUstream stream, void** params) {
  return Issue({{gx, gy, gz}, {bx, by, bz}, {}, shared, true}, stream, f, params, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (!config || (config->numAttrs && !config->attrs))
    return CUDA_ERROR_INVALID_VALUE;
  Launch launch{{config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ},
                {},
                config->sharedMemBytes,
                false};
  CUevent event = nullptr;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& a = config->attrs[i];
    switch (static_cast<int>(a.id)) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        launch.cooperative = a.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        launch.cluster = {a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z};
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        event = a.value.programmaticEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        event = a.value.launchCompletionEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        return CUDA_ERROR_NOT_SUPPORTED;
      default:
        break;  // hints about caches, priorities, scheduling
    }
  }
  const CUresult result = Issue(launch, config->hStream, f, params, extra);
  // An event that a kernel triggers early may as well be triggered when the kernel has ended.
  if (result == CUDA_SUCCESS && event)
    return api::cuEventRecord(event, config->hStream);
  return result;
}

}  // namespace api
}  // namespace gpurecover::softgpu
