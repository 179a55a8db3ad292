// SPDX-License-Identifier: Apache-2.0
// Contexts: primary and created ones, the thread's stack of them, limits, peers.
#include <string.h>

#include <algorithm>

#include "driver_api.h"
#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {
namespace {

// Programs call CUDA from destructors too, when what they left to the thread's end is gone already:
// the flag has no destructor, so it can still be asked then.
thread_local bool stack_is_gone = false;
struct Stack : std::vector<std::shared_ptr<Context>> {
  ~Stack() { stack_is_gone = true; }
};
thread_local Stack stack;

CUcontext HandleOf(const std::shared_ptr<Context>& context) {
  return reinterpret_cast<CUcontext>(context.get());
}

/// What a context has when it begins, or begins anew: a primary context keeps its handle over
/// resets.
void Begin(Context& context) {
  context.limits = {{CU_LIMIT_STACK_SIZE, 1024},
                    {CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20},
                    {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
                    {CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2},
                    {CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048},
                    {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64},
                    {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0}};
  auto legacy = std::make_shared<Stream>();
  legacy->kind = Stream::Kind::kLegacy;
  legacy->context = &context;
  legacy->id = 1;
  legacy->queue = Engine::Get().Create(context.device);
  context.legacy = std::move(legacy);
  context.destroyed = false;
  SendContextCreated(context);
}

std::shared_ptr<Context> NewContext(int device, unsigned flags, bool primary) {
  State& state = State::Get();
  auto context = std::make_shared<Context>();
  context->id = state.next_context_id++;
  context->device = device;
  context->flags = flags;
  context->primary = primary;
  state.contexts.Add(context);
  Begin(*context);
  return context;
}

/// Ends what the context owns. Work that runs is waited for, as the device does.
void DestroyContext(const std::shared_ptr<Context>& context) {
  State& state = State::Get();
  if (context->destroyed)
    return;
  SendContextDestroyed(*context);
  if (!Engine::Get().Poison())
    SynchronizeContext(*context);
  context->destroyed = true;
  FlushPrinted(*context);
  for (auto& module : state.modules.All())
    if (module->context == context) {
      SendModuleUnloading(*module);
      for (auto& function : module->functions)
        state.functions.Take(function.get());
      state.modules.Take(module.get());
    }
  for (auto& library : state.libraries.All()) {
    std::lock_guard lock(library->mutex);
    library->modules.erase(context.get());
  }
  for (auto& event : state.events.All())
    if (event->context == context.get())
      state.events.Take(event.get());
  {
    std::lock_guard lock(context->issue_mutex);
    for (auto& stream : context->streams) {
      state.streams.Take(stream.get());
      Engine::Get().Close(stream->queue);
    }
    context->streams.clear();
    for (auto& [thread, stream] : context->per_thread)
      Engine::Get().Close(stream->queue);
    context->per_thread.clear();
    Engine::Get().Close(context->legacy->queue);
  }
  Memory::Get().FreeAllOf(HandleOf(context));
  if (!context->primary)
    state.contexts.Take(context.get());
}

bool GoodFlags(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return !(flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) &&
         (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}

CUresult CreateContext(CUcontext* out, unsigned flags, CUdevice device) {
  if (!out || !GoodFlags(flags))
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  // Measured: a poisoned process gets no new context, on any device, also after a reset.
  if (const int poison = Engine::Get().Poison())
    return static_cast<CUresult>(poison);
  auto context = NewContext(device, flags, false);
  *out = HandleOf(context);
  stack.push_back(context);
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<Context> Current() {
  if (stack_is_gone)
    return nullptr;
  return stack.empty() ? nullptr : stack.back();
}

CUresult NeedContext(std::shared_ptr<Context>* context) {
  if (stack_is_gone)
    return CUDA_ERROR_DEINITIALIZED;
  if (stack.empty() || !stack.back())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.back()->destroyed)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = stack.back();
  return CUDA_SUCCESS;
}

namespace api {

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  State& state = State::Get();
  std::lock_guard lock(state.mutex);
  Device& d = state.devices[device];
  if (!d.primary || d.primary->destroyed) {
    if (const int poison = Engine::Get().Poison())
      return static_cast<CUresult>(poison);
    if (d.primary)
      Begin(*d.primary);
    else
      d.primary = NewContext(device, d.primary_flags, true);
  }
  ++d.primary_references;
  *out = HandleOf(d.primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const CUresult result = NeedDevice(device))
    return result;
  State& state = State::Get();
  std::lock_guard lock(state.mutex);
  Device& d = state.devices[device];
  if (!d.primary || !d.primary_references)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--d.primary_references == 0)
    DestroyContext(d.primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return api::cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (const CUresult result = NeedDevice(device))
    return result;
  State& state = State::Get();
  std::shared_ptr<Context> context;
  {
    std::lock_guard lock(state.mutex);
    context = state.devices[device].primary;
  }
  if (!context || context->destroyed)
    return CUDA_SUCCESS;
  // A kernel that never ends is waited for.
  Engine::Get().WaitForKernels(device);
  std::lock_guard lock(state.mutex);
  DestroyContext(context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return api::cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  if (!flags || !active)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  State& state = State::Get();
  std::lock_guard lock(state.mutex);
  *flags = state.devices[device].primary_flags;
  const auto& primary = state.devices[device].primary;
  *active = primary && !primary->destroyed;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  if (const CUresult result = NeedDevice(device))
    return result;
  if (!GoodFlags(flags))
    return CUDA_ERROR_INVALID_VALUE;
  State& state = State::Get();
  std::lock_guard lock(state.mutex);
  state.devices[device].primary_flags = flags;
  if (state.devices[device].primary)
    state.devices[device].primary->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return api::cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice device) {
  return CreateContext(out, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int affinities, unsigned int flags,
                        CUdevice device) {
  if (affinities)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return CreateContext(out, flags, device);
}

#if CUDA_VERSION >= 12050
CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned int flags,
                        CUdevice device) {
  if (params && params->numExecAffinityParams)
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (params && params->cigParams)
    return CUDA_ERROR_NOT_SUPPORTED;
  return CreateContext(out, flags, device);
}
#endif

CUresult cuCtxDestroy_v2(CUcontext handle) {
  if (!handle)
    return CUDA_ERROR_INVALID_VALUE;
  auto context = State::Get().contexts.Find(handle);
  if (!context || context->primary)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty() && stack.back() == context)
    stack.pop_back();
  DestroyContext(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext handle) {
  return api::cuCtxDestroy_v2(handle);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  if (!handle)
    return CUDA_ERROR_INVALID_VALUE;
  auto context = State::Get().contexts.Find(handle);
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(std::move(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  return api::cuCtxPushCurrent_v2(handle);
}

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  if (stack.empty())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (out)
    *out = HandleOf(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* out) {
  return api::cuCtxPopCurrent_v2(out);
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  if (!handle) {
    if (!stack.empty())
      stack.pop_back();
    return CUDA_SUCCESS;
  }
  auto context = State::Get().contexts.Find(handle);
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty())
    stack.push_back(std::move(context));
  else
    stack.back() = std::move(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = stack.empty() ? nullptr : HandleOf(stack.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  if (!Current())
    return CUDA_ERROR_INVALID_CONTEXT;
  *device = Current()->device;
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  if (!handle)
    return api::cuCtxGetDevice(device);
  auto context = State::Get().contexts.Find(handle);
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  if (!handle)
    return api::cuCtxSynchronize();
  auto context = State::Get().contexts.Find(handle);
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  return SynchronizeContext(*context);
}
#endif

CUresult cuCtxSynchronize() {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  return SynchronizeContext(*context);
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  if (!flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (!Current())
    return CUDA_ERROR_INVALID_CONTEXT;
  *flags = Current()->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  if (!GoodFlags(flags))
    return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  if (!id)
    return CUDA_ERROR_INVALID_VALUE;
  auto context = handle ? State::Get().contexts.Find(handle) : Current();
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  if (!version)
    return CUDA_ERROR_INVALID_VALUE;
  if (handle ? !State::Get().contexts.Find(handle) : !Current())
    return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  auto it = context->limits.find(limit);
  if (it == context->limits.end())
    return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
  *value = it->second;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  auto it = context->limits.find(limit);
  if (it == context->limits.end())
    return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
  it->second = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  if (!config)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  if (!config)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  *config = context->shared_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  context->shared_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache() {
  std::shared_ptr<Context> context;
  return NeedContext(&context);
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  auto peer = State::Get().contexts.Find(handle);
  if (!peer)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (peer->device == context->device)
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::lock_guard lock(context->issue_mutex);
  if (!context->peers.insert(peer.get()).second)
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  Memory::Get().SetPeer(peer->device, context->device, true);
  return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  auto peer = State::Get().contexts.Find(handle);
  if (!peer)
    return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->issue_mutex);
  if (!context->peers.erase(peer.get()))
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  Memory::Get().SetPeer(peer->device, context->device, false);
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace gpurecover::softgpu
