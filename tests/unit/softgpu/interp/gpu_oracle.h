// SPDX-License-Identifier: Apache-2.0
// Runs a test's PTX on a real GPU, where there is one and GPURECOVER_TEST_GPU is set: the reference
// of the references.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpurecover::softgpu::testing {

class GpuOracle {
 public:
  static GpuOracle* Get() {
    static GpuOracle oracle;
    return oracle.ready_ ? &oracle : nullptr;
  }

  // Buffers are copied in, the kernel is run with their addresses and `n`, and they are copied out.
  // "" or what went wrong.
  std::string Run(const std::string& ptx, const char* kernel, uint32_t grid, uint32_t block,
                  std::vector<std::vector<uint64_t>*> buffers, uint32_t n) {
    void *module = nullptr, *function = nullptr;
    char log[4096] = "";
    int options[] = {5, 6};  // CU_JIT_ERROR_LOG_BUFFER and its size
    void* values[] = {log, reinterpret_cast<void*>(uintptr_t{sizeof log})};
    if (int r = load_(&module, ptx.c_str(), 2, options, values))
      return "load " + std::to_string(r) + " " + log;
    if (int r = get_function_(&function, module, kernel))
      return "function " + std::to_string(r);
    std::vector<uint64_t> device(buffers.size());
    std::vector<void*> args;
    for (size_t k = 0; k < buffers.size(); ++k) {
      const size_t bytes = buffers[k]->size() * 8;
      if (int r = alloc_(&device[k], bytes))
        return "alloc " + std::to_string(r);
      to_device_(device[k], buffers[k]->data(), bytes);
      args.push_back(&device[k]);
    }
    args.push_back(&n);
    if (int r = launch_(function, grid, 1, 1, block, 1, 1, 0, nullptr, args.data(), nullptr))
      return "launch " + std::to_string(r);
    if (int r = synchronize_())
      return "synchronize " + std::to_string(r);
    for (size_t k = 0; k < buffers.size(); ++k) {
      to_host_(buffers[k]->data(), device[k], buffers[k]->size() * 8);
      free_(device[k]);
    }
    unload_(module);
    return "";
  }

 private:
  GpuOracle() {
    if (!std::getenv("GPURECOVER_TEST_GPU"))
      return;
    void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda)
      return;
    auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(cuda, name));
      return f != nullptr;
    };
    int (*init)(unsigned) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*set)(void*) = nullptr;
    void* context = nullptr;
    ready_ = find(init, "cuInit") && find(retain, "cuDevicePrimaryCtxRetain") &&
             find(set, "cuCtxSetCurrent") && find(load_, "cuModuleLoadDataEx") &&
             find(get_function_, "cuModuleGetFunction") && find(alloc_, "cuMemAlloc_v2") &&
             find(free_, "cuMemFree_v2") && find(to_device_, "cuMemcpyHtoD_v2") &&
             find(to_host_, "cuMemcpyDtoH_v2") && find(launch_, "cuLaunchKernel") &&
             find(synchronize_, "cuCtxSynchronize") && find(unload_, "cuModuleUnload") &&
             init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0;
  }
  bool ready_ = false;
  int (*load_)(void**, const void*, unsigned, int*, void**) = nullptr;
  int (*get_function_)(void**, void*, const char*) = nullptr;
  int (*alloc_)(uint64_t*, size_t) = nullptr;
  int (*free_)(uint64_t) = nullptr;
  int (*to_device_)(uint64_t, const void*, size_t) = nullptr;
  int (*to_host_)(void*, uint64_t, size_t) = nullptr;
  int (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                 void**, void**) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*unload_)(void*) = nullptr;
};

}  // namespace gpurecover::softgpu::testing
