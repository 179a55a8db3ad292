// SPDX-License-Identifier: Apache-2.0
//
// What the app's calls say about its memory and its modules.

#include "cupti/agent/agent.h"

namespace gpurecover::agent {
namespace {

using driver_api::Hook;
using idempotency::AllocationKind;

template <class T>
const T& as(const void* params) {
  return *static_cast<const T*>(params);
}

}  // namespace

void Agent::insert(std::uint64_t address, std::uint64_t size, AllocationKind kind,
                   bool host_visible, CUcontext context) {
  if (address == 0) {
    return;
  }
  note_context(context);
  idempotency::Allocation allocation;
  allocation.address = address;
  allocation.size = size;
  allocation.kind = kind;
  allocation.host_visible = host_visible;
  allocation.owner = reinterpret_cast<std::uint64_t>(context);
  steering_.describe(allocation);
  memory_.insert(allocation);
}

void Agent::insert_global(const void* owner, std::uint64_t address, std::uint64_t size,
                          bool host_visible, CUcontext context) {
  {
    const std::lock_guard lock(handles_mutex_);
    if (!globals_.emplace(owner, address).second) {
      return;  // asked for again
    }
  }
  insert(address, size, AllocationKind::kModuleGlobal, host_visible, context);
}

void Agent::steer_enter(ThreadState& state, const driver_api::Call& call,
                        const CUpti_CallbackData& data) {
  if (!steering_.enabled()) {
    return;
  }
  // Only where calls can be changed at all.
  settle();
  if (passive_.load(std::memory_order_relaxed)) {
    return;
  }
  if (takeover_.pending()) [[unlikely]] {
    start_takeover();
  }
  bool captures = captures_.load(std::memory_order_relaxed) > 0;
  if (captures) {
    switch (call.hook) {
      case Hook::kAllocAsync:
        captures = capturing(as<cuMemAllocAsync_params>(data.functionParams).hStream);
        break;
      case Hook::kAllocFromPool:
        captures = capturing(as<cuMemAllocFromPoolAsync_params>(data.functionParams).hStream);
        break;
      case Hook::kFreeAsync:
        captures = capturing(as<cuMemFreeAsync_params>(data.functionParams).hStream);
        break;
      default:
        break;
    }
  }
  steering_.enter(state.steered, call, data, captures);
}

void Agent::steer_exit(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                       const CUpti_CallbackData& data, CUresult& result) {
  if (state.steered.active && state.steered.correlation == data.correlationId) {
    steering_.leave(state.steered, call, data, driver_api::per_thread_stream(cbid), result);
  }
  steering_.after(call, data, result);
}

void Agent::after_alloc(const driver_api::Call& call, const CUpti_CallbackData& data) {
  const void* params = data.functionParams;
  CUcontext const context = data.context;
  switch (call.hook) {
    case Hook::kAllocDevice: {
      const auto& p = as<cuMemAlloc_v2_params>(params);
      insert(*p.dptr, p.bytesize, AllocationKind::kDevice, false, context);
      break;
    }
    case Hook::kAllocPitch: {
      const auto& p = as<cuMemAllocPitch_v2_params>(params);
      insert(*p.dptr, *p.pPitch * p.Height, AllocationKind::kPitched, false, context);
      break;
    }
    case Hook::kAllocManaged: {
      const auto& p = as<cuMemAllocManaged_params>(params);
      insert(*p.dptr, p.bytesize, AllocationKind::kManaged, true, context);
      break;
    }
    // Pinned and registered memory has the same address on the device as on the host where unified
    // addressing is there, which is everywhere that CUDA 13 runs; where a registration has another
    // device address, a kernel's pointer is in no known allocation, and the verdict `unknown`.
    case Hook::kAllocHost: {
      const auto& p = as<cuMemAllocHost_v2_params>(params);
      insert(reinterpret_cast<std::uint64_t>(*p.pp), p.bytesize, AllocationKind::kPinnedHost, true,
             context);
      break;
    }
    case Hook::kHostAlloc: {
      const auto& p = as<cuMemHostAlloc_params>(params);
      insert(reinterpret_cast<std::uint64_t>(*p.pp), p.bytesize, AllocationKind::kPinnedHost, true,
             context);
      break;
    }
    case Hook::kHostRegister: {
      const auto& p = as<cuMemHostRegister_v2_params>(params);
      insert(reinterpret_cast<std::uint64_t>(p.p), p.bytesize, AllocationKind::kHostRegistered,
             true, context);
      break;
    }
    case Hook::kAllocAsync: {
      const auto& p = as<cuMemAllocAsync_params>(params);
      if (captures_.load(std::memory_order_relaxed) != 0 && capturing(p.hStream)) {
        break;  // a node of a graph: there only while the graph says so
      }
      insert(*p.dptr, p.bytesize, AllocationKind::kStreamOrdered, false, context);
      break;
    }
    case Hook::kAllocFromPool: {
      const auto& p = as<cuMemAllocFromPoolAsync_params>(params);
      if (captures_.load(std::memory_order_relaxed) != 0 && capturing(p.hStream)) {
        break;
      }
      insert(*p.dptr, p.bytesize, AllocationKind::kStreamOrdered, false, context);
      break;
    }
    case Hook::kMap: {
      // Not of a context: it stays when contexts go (cuda.h, cuCtxDestroy).
      const auto& p = as<cuMemMap_params>(params);
      insert(p.ptr, p.size, AllocationKind::kVirtual, note_mapping(p.handle, p.ptr), nullptr);
      break;
    }
    case Hook::kPoolImport:
    case Hook::kIpcOpen: {
      // Another process has it too. The driver knows how far it goes.
      const CUdeviceptr address = call.hook == Hook::kIpcOpen
                                      ? *as<cuIpcOpenMemHandle_v2_params>(params).pdptr
                                      : *as<cuMemPoolImportPointer_params>(params).ptr_out;
      CUdeviceptr base = 0;
      std::size_t size = 0;
      if (driver_.cuMemGetAddressRange(&base, &size, address) == CUDA_SUCCESS) {
        insert(base, size, AllocationKind::kIpcImport, true, context);
      }
      break;
    }
    case Hook::kExternalBuffer: {
      const auto& p = as<cuExternalMemoryGetMappedBuffer_params>(params);
      if (p.bufferDesc != nullptr) {
        insert(*p.devPtr, p.bufferDesc->size, AllocationKind::kExternal, true, context);
      }
      break;
    }
    default:
      break;
  }
}

// A free is recorded before it happens: afterwards another thread may have been given the same
// address already. What it removed is put back if the driver refuses.
void Agent::before_free(ThreadState& state, const driver_api::Call& call, const void* params) {
  std::uint64_t address = 0;
  switch (call.hook) {
    case Hook::kFreeDevice:
      address = as<cuMemFree_v2_params>(params).dptr;
      break;
    case Hook::kFreeHost:
      address = reinterpret_cast<std::uint64_t>(as<cuMemFreeHost_params>(params).p);
      break;
    case Hook::kHostUnregister:
      address = reinterpret_cast<std::uint64_t>(as<cuMemHostUnregister_params>(params).p);
      break;
    case Hook::kFreeAsync:
      if (captures_.load(std::memory_order_relaxed) != 0 &&
          capturing(as<cuMemFreeAsync_params>(params).hStream)) {
        return;  // recorded into a graph, not done
      }
      address = as<cuMemFreeAsync_params>(params).dptr;
      break;
    case Hook::kIpcClose: {
      const auto found = memory_.find(as<cuIpcCloseMemHandle_params>(params).dptr);
      address = found ? found.found[0].address : 0;
      break;
    }
    case Hook::kUnmap: {
      const auto& p = as<cuMemUnmap_params>(params);
      for (std::uint64_t at = p.ptr; at < p.ptr + p.size;) {
        const auto found = memory_.find(at);
        if (!found) {
          break;
        }
        at = found.found[0].end();
        state.call.freed.push_back(found.found[0]);
      }
      memory_.erase_range(p.ptr, p.size);
      return;
    }
    default:
      return;
  }
  if (address != 0) {
    if (const auto erased = memory_.erase(address)) {
      state.call.freed.push_back(*erased);
    }
  }
}

void Agent::after_free(ThreadState& state, CUresult result) {
  if (result != CUDA_SUCCESS) {
    for (const auto& allocation : state.call.freed) {
      memory_.insert(allocation);
    }
  }
  state.call.freed.clear();
}

void Agent::after_module_call(const driver_api::Call& call, const CUpti_CallbackData& data) {
  const void* params = data.functionParams;
  switch (call.hook) {
    case Hook::kModuleLoadFile: {
      const auto& p = as<cuModuleLoad_params>(params);
      images_.add_file(*p.module, p.fname);
      break;
    }
    case Hook::kModuleLoadData: {
      const auto& p = as<cuModuleLoadData_params>(params);
      images_.add(*p.module, p.image);
      break;
    }
    case Hook::kModuleLoadDataEx: {
      const auto& p = as<cuModuleLoadDataEx_params>(params);
      images_.add(*p.module, p.image);
      break;
    }
    case Hook::kModuleLoadFatbin: {
      const auto& p = as<cuModuleLoadFatBinary_params>(params);
      images_.add(*p.module, p.fatCubin);
      break;
    }
    case Hook::kLibraryLoadData: {
      const auto& p = as<cuLibraryLoadData_params>(params);
      images_.add(*p.library, p.code);
      break;
    }
    case Hook::kLibraryLoadFile: {
      const auto& p = as<cuLibraryLoadFromFile_params>(params);
      images_.add_file(*p.library, p.fileName);
      break;
    }
    case Hook::kLibraryGetModule: {
      const auto& p = as<cuLibraryGetModule_params>(params);
      images_.add_alias(*p.pMod, p.library);
      break;
    }
    case Hook::kKernelGetFunction: {
      const auto& p = as<cuKernelGetFunction_params>(params);
      kernels_.add_function_of_kernel(*p.pFunc, p.kernel);
      break;
    }
    // The app holds the address of a module's variable: pointers into it may be kernel arguments.
    case Hook::kModuleGetGlobal: {
      const auto& p = as<cuModuleGetGlobal_v2_params>(params);
      if (p.dptr != nullptr && p.bytes != nullptr) {
        insert_global(p.hmod, *p.dptr, *p.bytes, false, data.context);
      }
      break;
    }
    case Hook::kLibraryGetGlobal: {
      const auto& p = as<cuLibraryGetGlobal_params>(params);
      if (p.dptr != nullptr && p.bytes != nullptr) {
        insert_global(p.library, *p.dptr, *p.bytes, false, data.context);
      }
      break;
    }
    case Hook::kLibraryGetManaged: {
      const auto& p = as<cuLibraryGetManaged_params>(params);
      if (p.dptr != nullptr && p.bytes != nullptr) {
        insert_global(p.library, *p.dptr, *p.bytes, true, data.context);
      }
      break;
    }
    default:
      break;
  }
}

// Before, as with frees: afterwards the handle may be another module's.
void Agent::before_module_gone(const driver_api::Call& call, const void* params) {
  const void* owner = call.hook == Hook::kModuleUnload
                          ? static_cast<const void*>(as<cuModuleUnload_params>(params).hmod)
                          : static_cast<const void*>(as<cuLibraryUnload_params>(params).library);
  images_.remove(owner);
  kernels_.invalidate();
  const std::lock_guard lock(handles_mutex_);
  const auto begin = globals_.lower_bound({owner, 0});
  auto at = begin;
  for (; at != globals_.end() && at->first == owner; ++at) {
    const auto found = memory_.find(at->second);
    if (found && found.found[0].address == at->second &&
        found.found[0].kind == AllocationKind::kModuleGlobal) {
      memory_.erase(at->second);
    }
  }
  globals_.erase(begin, at);
}

void Agent::mark_shared(std::uint64_t address) {
  const auto found = memory_.find(address);
  for (idempotency::Allocation allocation : found.all()) {
    allocation.host_visible = true;
    memory_.insert(allocation);
  }
}

bool Agent::note_mapping(std::uint64_t handle, std::uint64_t address) {
  std::vector<std::uint64_t> others;
  bool shared = false;
  {
    const std::lock_guard lock(handles_mutex_);
    Mapped& mapped = handles_[handle];
    std::erase_if(mapped.addresses, [&](std::uint64_t other) {
      const auto found = memory_.find(other);
      return other == address || !found || found.found[0].address != other;
    });
    // The same memory under two addresses: what is written through one is read through the other.
    mapped.shared |= !mapped.addresses.empty();
    others = mapped.addresses;
    mapped.addresses.push_back(address);
    shared = mapped.shared;
  }
  for (const std::uint64_t other : others) {
    mark_shared(other);
  }
  return shared;
}

void Agent::share_handle(std::uint64_t handle) {
  std::vector<std::uint64_t> addresses;
  {
    const std::lock_guard lock(handles_mutex_);
    Mapped& mapped = handles_[handle];
    mapped.shared = true;
    addresses = mapped.addresses;
  }
  for (const std::uint64_t address : addresses) {
    mark_shared(address);
  }
}

void Agent::after_sharing(const driver_api::Call& call, const void* params) {
  switch (call.hook) {
    case Hook::kShared:
      if (call.name == "cuIpcGetMemHandle") {
        mark_shared(as<cuIpcGetMemHandle_params>(params).dptr);
      } else if (call.name == "cuMemPoolExportPointer") {
        mark_shared(as<cuMemPoolExportPointer_params>(params).ptr);
      } else if (call.name == "cuMulticastBindAddr") {
        mark_shared(as<cuMulticastBindAddr_params>(params).memptr);
      } else {
        mark_shared(as<cuMemGetHandleForAddressRange_params>(params).dptr);
      }
      break;
    case Hook::kHandleShared:
      share_handle(call.name == "cuMulticastBindMem"
                       ? as<cuMulticastBindMem_params>(params).memHandle
                       : as<cuMemExportToShareableHandle_params>(params).handle);
      break;
    case Hook::kHandleRetain: {
      const auto& p = as<cuMemRetainAllocationHandle_params>(params);
      const auto address = reinterpret_cast<std::uint64_t>(p.addr);
      if (const auto found = memory_.find(address)) {
        note_mapping(*p.handle, found.found[0].address);
        const std::lock_guard lock(handles_mutex_);
        ++handles_[*p.handle].references;
      }
      break;
    }
    case Hook::kHandleImport:  // both forms return the handle by their first parameter
      share_handle(*as<cuMemImportFromShareableHandle_params>(params).handle);
      break;
    default:
      break;
  }
}

// Before, as with frees.
void Agent::before_handle_gone(const void* params) {
  const std::lock_guard lock(handles_mutex_);
  const auto at = handles_.find(as<cuMemRelease_params>(params).handle);
  if (at != handles_.end() && --at->second.references < 0) {
    handles_.erase(at);
  }
}

void Agent::after_context_gone(const driver_api::Call& call, const void* params) {
  std::vector<CUcontext> gone;
  if (call.hook == Hook::kContextDestroy) {
    gone.push_back(as<cuCtxDestroy_v2_params>(params).ctx);
  } else if (call.hook == Hook::kPrimaryContextGone) {
    // The primary context of a device: gone if it is not active any more.
    const CUdevice device = as<cuDevicePrimaryCtxReset_v2_params>(params).dev;
    unsigned flags = 0;
    int active = 1;
    if (driver_.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
        active == 0) {
      const std::lock_guard lock(contexts_mutex_);
      for (const auto& [context, on] : devices_) {
        if (on == device) {
          gone.push_back(context);
        }
      }
    }
  }
  for (CUcontext const context : gone) {
    memory_.erase_owner(reinterpret_cast<std::uint64_t>(context));
    steering_.context_gone(context);
    ops_.forget(context);
    const std::lock_guard lock(contexts_mutex_);
    devices_.erase(context);
  }
  if (!gone.empty()) {
    kernels_.invalidate();
  }
}

}  // namespace gpurecover::agent
