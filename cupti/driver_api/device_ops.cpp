// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/device_ops.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace gpurecover::embedded {
extern const std::string_view device_ops_ptx;
extern const std::string_view device_faults_ptx;
}  // namespace gpurecover::embedded

namespace gpurecover::driver_api {

std::optional<DeviceFault> device_fault_of(std::int32_t code) {
  switch (code) {
    case CUDA_ERROR_LAUNCH_FAILED:
      return DeviceFault::kTrap;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      return DeviceFault::kIllegalAddress;
    case CUDA_ERROR_MISALIGNED_ADDRESS:
      return DeviceFault::kMisaligned;
    case CUDA_ERROR_ASSERT:
      return DeviceFault::kAssert;
    default:
      return std::nullopt;
  }
}

Scratch::~Scratch() {
  if (address_ != 0) {
    driver_.cuMemFree(address_);
  }
}

bool Scratch::allocate(std::uint64_t size) {
  return driver_.cuMemAlloc(&address_, std::max<std::uint64_t>(size, 1)) == CUDA_SUCCESS;
}

CUresult DeviceOps::kernels(Kernels& out) {
  CUcontext context = nullptr;
  if (const CUresult code = driver_.cuCtxGetCurrent(&context); code != CUDA_SUCCESS) {
    return code;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = loaded_.find(context); at != loaded_.end()) {
      out = at->second;
      return CUDA_SUCCESS;
    }
  }
  // Loaded without the lock, for it is a driver call; two threads at once load it twice, and the
  // second module is as good as the first.
  const std::string text(embedded::device_ops_ptx);
  CUmodule module = nullptr;
  Kernels kernels;
  CUresult code = driver_.cuModuleLoadData(&module, text.c_str());
  if (code == CUDA_SUCCESS) {
    code = driver_.cuModuleGetFunction(&kernels.noise, module, "gpurecover_noise");
  }
  if (code == CUDA_SUCCESS) {
    code = driver_.cuModuleGetFunction(&kernels.merge, module, "gpurecover_merge");
  }
  if (code == CUDA_SUCCESS) {
    code = driver_.cuModuleGetFunction(&kernels.damage, module, "gpurecover_damage");
  }
  if (code == CUDA_SUCCESS) {
    code = driver_.cuModuleGetFunction(&kernels.copy_each, module, "gpurecover_copy_each");
  }
  if (code != CUDA_SUCCESS) {
    return code;
  }
  const std::lock_guard lock(mutex_);
  loaded_.emplace(context, kernels);
  out = kernels;
  return CUDA_SUCCESS;
}

CUresult DeviceOps::prepare() {
  Kernels ignored;
  return kernels(ignored);
}

CUresult DeviceOps::launch(CUfunction function, CUstream stream, std::uint64_t size,
                           void** arguments) {
  constexpr unsigned kThreads = 256;
  // Enough blocks to fill any device; the kernels stride over the rest.
  constexpr std::uint64_t kMaxBlocks = 4096;
  const std::uint64_t words = (size + 7) / 8;
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::uint64_t>((words + kThreads - 1) / kThreads, 1, kMaxBlocks));
  return driver_.cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments,
                                nullptr);
}

CUresult DeviceOps::noise(CUstream stream, CUdeviceptr data, std::uint64_t size, std::uint64_t seed,
                          bool flip) {
  Kernels k;
  if (const CUresult code = kernels(k); code != CUDA_SUCCESS) {
    return code;
  }
  std::uint64_t mask = flip ? ~std::uint64_t{0} : 0;
  void* arguments[] = {&data, &size, &seed, &mask};
  return launch(k.noise, stream, size, arguments);
}

CUresult DeviceOps::merge(CUstream stream, CUdeviceptr data, CUdeviceptr first, CUdeviceptr saved,
                          std::uint64_t size, std::uint64_t seed, CUdeviceptr differing) {
  Kernels k;
  if (const CUresult code = kernels(k); code != CUDA_SUCCESS) {
    return code;
  }
  void* arguments[] = {&data, &first, &saved, &size, &seed, &differing};
  return launch(k.merge, stream, size, arguments);
}

CUresult DeviceOps::damage(CUstream stream, CUdeviceptr data, CUdeviceptr before,
                           std::uint64_t size, std::uint64_t seed, std::uint64_t subset,
                           CUdeviceptr damaged) {
  Kernels k;
  if (const CUresult code = kernels(k); code != CUDA_SUCCESS) {
    return code;
  }
  void* arguments[] = {&data, &before, &size, &seed, &subset, &damaged};
  return launch(k.damage, stream, size, arguments);
}

CUresult DeviceOps::scribble(CUstream stream, CUdeviceptr data, CUdeviceptr before,
                             std::uint64_t size, std::uint64_t seed, CUdeviceptr damaged) {
  return damage(stream, data, before, size, seed, 0, damaged);
}

CUresult DeviceOps::undo_partly(CUstream stream, CUdeviceptr data, CUdeviceptr before,
                                std::uint64_t size, std::uint64_t seed, CUdeviceptr damaged) {
  return damage(stream, data, before, size, seed, 1, damaged);
}

CUresult DeviceOps::copy_each(CUstream stream, CUdeviceptr entries, std::uint32_t count) {
  Kernels k;
  if (const CUresult code = kernels(k); code != CUDA_SUCCESS || count == 0) {
    return code;
  }
  void* arguments[] = {&entries};
  return driver_.cuLaunchKernel(k.copy_each, count, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr);
}

CUresult DeviceOps::fault_kernels(FaultKernels& out) {
  CUcontext context = nullptr;
  if (const CUresult code = driver_.cuCtxGetCurrent(&context); code != CUDA_SUCCESS) {
    return code;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = loaded_faults_.find(context); at != loaded_faults_.end()) {
      out = at->second;
      return CUDA_SUCCESS;
    }
  }
  static constexpr const char* kNames[] = {
      "gpurecover_fault_trap", "gpurecover_fault_illegal_address", "gpurecover_fault_misaligned",
      "gpurecover_fault_assert"};
  const std::string text(embedded::device_faults_ptx);
  CUmodule module = nullptr;
  FaultKernels kernels;
  CUresult code = driver_.cuModuleLoadData(&module, text.c_str());
  for (std::size_t i = 0; code == CUDA_SUCCESS && i < std::size(kNames); ++i) {
    code = driver_.cuModuleGetFunction(&kernels.by_kind[i], module, kNames[i]);
  }
  if (code != CUDA_SUCCESS) {
    return code;
  }
  const std::lock_guard lock(mutex_);
  loaded_faults_.emplace(context, kernels);
  out = kernels;
  return CUDA_SUCCESS;
}

CUresult DeviceOps::prepare_fault() {
  FaultKernels ignored;
  return fault_kernels(ignored);
}

CUresult DeviceOps::fault(CUstream stream, DeviceFault kind) {
  FaultKernels k;
  if (const CUresult code = fault_kernels(k); code != CUDA_SUCCESS) {
    return code;
  }
  // In the first page, which no device maps.
  std::uint64_t address = 64;
  void* arguments[] = {&address};
  return driver_.cuLaunchKernel(k.by_kind[static_cast<std::size_t>(kind)], 1, 1, 1, 1, 1, 1, 0,
                                stream, arguments, nullptr);
}

void DeviceOps::forget_all() {
  const std::lock_guard lock(mutex_);
  loaded_.clear();
  loaded_faults_.clear();
}

void DeviceOps::forget(CUcontext context) {
  const std::lock_guard lock(mutex_);
  loaded_.erase(context);
  loaded_faults_.erase(context);
}

}  // namespace gpurecover::driver_api
