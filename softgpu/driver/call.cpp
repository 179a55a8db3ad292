// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/call.h"

#include <cupti_driver_cbid.h>

#include <stdio.h>
#include <string.h>

#include <string>

#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {

const ApiRow kApiRows[] = {
#include "driver_table.inc"
};
const size_t kApiRowCount = sizeof kApiRows / sizeof kApiRows[0];

std::atomic<uint8_t> driver_callbacks[kMaxCbid];
thread_local bool PerThreadDefaultStream::active_ = false;

namespace {

std::atomic<uint8_t> runtime_callbacks[kMaxCbid];
std::atomic<uint8_t> other_callbacks[8][64];  // RESOURCE, SYNCHRONIZE, NVTX, STATE

// A callback and its userdata are replaced together.
struct Subscriber {
  CUpti_CallbackFunc callback;
  void* userdata;
};
std::atomic<Subscriber*> subscriber{nullptr};
std::atomic<uint32_t> next_correlation{1};

std::atomic<uint8_t>* Flag(uint32_t domain, uint32_t cbid) {
  switch (domain) {
    case CUPTI_CB_DOMAIN_DRIVER_API:
      return cbid < kMaxCbid ? &driver_callbacks[cbid] : nullptr;
    case CUPTI_CB_DOMAIN_RUNTIME_API:
      return cbid < kMaxCbid ? &runtime_callbacks[cbid] : nullptr;
    default:
      return domain < 8 && cbid < 64 ? &other_callbacks[domain][cbid] : nullptr;
  }
}

bool Wanted(uint32_t domain, uint32_t cbid) {
  auto* flag = Flag(domain, cbid);
  return flag && flag->load(std::memory_order_relaxed);
}

void Send(CUpti_CallbackDomain domain, uint32_t cbid, const void* data) {
  if (Subscriber* s = subscriber.load(std::memory_order_acquire))
    s->callback(s->userdata, domain, cbid, data);
}

void SetSubscriber(CUpti_CallbackFunc callback, void* userdata) {
  // The old one may be in use by a thread in a callback: it is left to the process.
  subscriber.store(callback ? new Subscriber{callback, userdata} : nullptr,
                   std::memory_order_release);
}

void Enable(uint32_t domain, uint32_t cbid, uint32_t on) {
  // Row 0 of the driver domain is "no callback id".
  if (auto* flag = Flag(domain, cbid); flag && cbid != 0)
    flag->store(on ? 1 : 0, std::memory_order_relaxed);
}

uint32_t Enabled(uint32_t domain, uint32_t cbid) {
  return Wanted(domain, cbid);
}

const char* DriverName(uint32_t cbid) {
  for (size_t i = 0; i < kApiRowCount; ++i)
    if (kApiRows[i].cbid == cbid && cbid)
      return kApiRows[i].name;
  return nullptr;
}

uint32_t ContextId(CUcontext handle) {
  auto context = State::Get().contexts.Find(handle);
  return context ? context->id : 0;
}

uint32_t StreamId(CUcontext handle, CUstream stream) {
  if (!stream || stream == CU_STREAM_LEGACY)
    return 1;
  if (stream == CU_STREAM_PER_THREAD)
    return 2;
  (void)handle;
  auto found = State::Get().streams.Find(stream);
  return found ? static_cast<uint32_t>(found->id) : 0;
}

CUcontext CurrentHandle(uint32_t* id) {
  auto context = Current();
  *id = context ? context->id : 0;
  return reinterpret_cast<CUcontext>(context.get());
}

void RuntimeCallback(uint32_t site, uint32_t cbid, const char* name, const void* params,
                     void* result, const char* symbol, uint64_t* correlation_data,
                     uint32_t* correlation_id) {
  if (!Wanted(CUPTI_CB_DOMAIN_RUNTIME_API, cbid))
    return;
  CUpti_CallbackData data{};
  data.callbackSite = site ? CUPTI_API_EXIT : CUPTI_API_ENTER;
  data.functionName = name;
  data.functionParams = params;
  data.functionReturnValue = site ? result : nullptr;
  data.symbolName = symbol;
  data.context = CurrentHandle(&data.contextUid);
  data.correlationData = correlation_data;
  if (!site)
    *correlation_id = next_correlation++;
  data.correlationId = *correlation_id;
  Send(CUPTI_CB_DOMAIN_RUNTIME_API, cbid, &data);
}

int ArmFault(const SoftgpuFault* fault) {
  if (!fault || fault->size < sizeof(SoftgpuFault) || fault->kind > 3 || !fault->launch)
    return CUDA_ERROR_INVALID_VALUE;
  ArmedFault armed;
  armed.kernel = fault->kernel ? fault->kernel : "";
  armed.launches_left = fault->launch;
  armed.plan.kind = static_cast<FaultPlan::Kind>(fault->kind);
  armed.plan.block = fault->block;
  armed.plan.thread = fault->thread;
  armed.plan.instruction = fault->instruction;
  armed.plan.code = fault->code ? fault->code : kIllegalAddress;
  armed.plan.bit = fault->bit;
  armed.plan.address = fault->address;
  armed.healthy = fault->healthy;
  State& state = State::Get();
  std::lock_guard lock(state.tools_mutex);
  state.armed.push_back(std::move(armed));
  return CUDA_SUCCESS;
}

void DisarmFaults() {
  State& state = State::Get();
  std::lock_guard lock(state.tools_mutex);
  state.armed.clear();
}

void Report(SoftgpuReport* report) {
  State& state = State::Get();
  std::lock_guard lock(state.tools_mutex);
  report->code = state.last_code;
  report->fired = state.fired;
  report->launches = state.launches;
  report->stray_accesses = state.strays;
  snprintf(report->message, sizeof report->message, "%s", state.last_message.c_str());
}

void RecordAccesses(uint32_t on) {
  State::Get().record = on != 0;
}

size_t Accesses(uint32_t writes, SoftgpuRange* ranges, size_t capacity) {
  State& state = State::Get();
  std::lock_guard lock(state.tools_mutex);
  const auto& from = writes ? state.last_writes : state.last_reads;
  for (size_t i = 0; i < from.size() && i < capacity; ++i)
    ranges[i] = {from[i].begin, from[i].end};
  return from.size();
}

bool IsLaunch(uint32_t cbid) {
  switch (cbid) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
      return true;
    default:
      return false;
  }
}

const void* LaunchedHandle(uint32_t cbid, const void* params) {
  if (cbid == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx ||
      cbid == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz)
    return static_cast<const cuLaunchKernelEx_params*>(params)->f;
  return static_cast<const cuLaunchKernel_params*>(params)->f;
}

}  // namespace

CUresult NotSupported(const char* name) {
  if (State::Get().verbose)
    Say(std::string(name) + " is not supported");
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Admit(const ApiRow& row) {
  State& state = State::Get();
  if (row.early)
    return CUDA_SUCCESS;
  // A forked child has no device: memory, threads and streams stayed with its parent.
  if (!state.initialized.load(std::memory_order_acquire) ||
      state.forked.load(std::memory_order_relaxed))
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!row.faulted) {
    if (const int poison = Engine::Get().Poison()) {
      // A context that was reset or destroyed says so, also when a fault came before. A thread
      // without one learns of the fault through the objects that it names.
      if (auto context = Current())
        return context->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : static_cast<CUresult>(poison);
    }
  }
  return CUDA_SUCCESS;
}

CallbackScope::CallbackScope(const ApiRow& row, const void* params)
    : row_(row), params_(params), correlation_id_(next_correlation++) {
  if (IsLaunch(row.cbid))
    symbol_ = KernelName(LaunchedHandle(row.cbid, params));
  Send(0, nullptr);
}

void CallbackScope::Exit(CUresult* result) {
  Send(1, result);
}

void CallbackScope::Send(uint32_t site, CUresult* result) {
  CUpti_CallbackData data{};
  data.callbackSite = site ? CUPTI_API_EXIT : CUPTI_API_ENTER;
  data.functionName = row_.name;
  data.functionParams = params_;
  data.functionReturnValue = result;
  data.symbolName = symbol_;
  data.context = CurrentHandle(&data.contextUid);
  data.correlationData = &correlation_data_;
  data.correlationId = correlation_id_;
  softgpu::Send(CUPTI_CB_DOMAIN_DRIVER_API, row_.cbid, &data);
}

namespace {

void SendResource(uint32_t cbid, Context* context, CUstream stream, void* descriptor) {
  if (!Wanted(CUPTI_CB_DOMAIN_RESOURCE, cbid))
    return;
  CUpti_ResourceData data{};
  data.context = reinterpret_cast<CUcontext>(context);
  data.resourceHandle.stream = stream;
  data.resourceDescriptor = descriptor;
  Send(CUPTI_CB_DOMAIN_RESOURCE, cbid, &data);
}

void SendModule(uint32_t cbid, Module& module) {
  CUpti_ModuleResourceData data{};
  data.moduleId = module.id;
  data.cubinSize = module.image->cubin.size();
  data.pCubin = module.image->cubin.data();
  SendResource(cbid, module.context.get(), nullptr, &data);
}

void SendSynchronized(uint32_t cbid, Context& context, CUstream stream) {
  if (!Wanted(CUPTI_CB_DOMAIN_SYNCHRONIZE, cbid))
    return;
  CUpti_SynchronizeData data{};
  data.context = reinterpret_cast<CUcontext>(&context);
  data.stream = stream;
  Send(CUPTI_CB_DOMAIN_SYNCHRONIZE, cbid, &data);
}

}  // namespace

void SendContextCreated(Context& context) {
  SendResource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, &context, nullptr, nullptr);
}
void SendContextDestroyed(Context& context) {
  SendResource(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &context, nullptr, nullptr);
}
void SendStreamCreated(Context& context, Stream& stream) {
  SendResource(CUPTI_CBID_RESOURCE_STREAM_CREATED, &context, reinterpret_cast<CUstream>(&stream),
               nullptr);
}
void SendStreamDestroyed(Context& context, Stream& stream) {
  SendResource(CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, &context,
               reinterpret_cast<CUstream>(&stream), nullptr);
}
void SendModuleLoaded(Module& module) {
  SendModule(CUPTI_CBID_RESOURCE_MODULE_LOADED, module);
}
void SendModuleUnloading(Module& module) {
  SendModule(CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, module);
}
void SendInitFinished() {
  SendResource(CUPTI_CBID_RESOURCE_CU_INIT_FINISHED, nullptr, nullptr, nullptr);
}
void SendStreamSynchronized(Context& context, CUstream stream) {
  SendSynchronized(CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED, context, stream);
}
void SendContextSynchronized(Context& context) {
  SendSynchronized(CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED, context, nullptr);
}

void Say(const std::string& line) {
  const std::string text = "softgpu: " + line + "\n";
  fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace gpurecover::softgpu

using namespace gpurecover::softgpu;  // NOLINT: the table is C

SoftgpuHookTable softgpu_hook_table = {
    sizeof(SoftgpuHookTable),
    1,
    SetSubscriber,
    Enable,
    Enabled,
    DriverName,
    ContextId,
    StreamId,
    RuntimeCallback,
    ArmFault,
    DisarmFaults,
    Report,
    RecordAccesses,
    Accesses,
};
