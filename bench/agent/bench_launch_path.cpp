// SPDX-License-Identifier: Apache-2.0
// What the agent's code costs the CPU at one launch, enter and exit together: the callback that it
// has subscribed is called directly, as CUPTI would, in turn with an empty one. No kernel runs.
//
//   gpurecover run [--device soft] -- bench_launch_path [CALLS [ROUNDS]]
//
//   same     one kernel, the same arguments
//   changing one kernel, another of four sets of arguments at each launch
//   turns    one kernel, two buffers in turn: each launch overwrites what the one before has read
//   kernels  eight kernels in turn
//   cold     as `changing`, but before each launch as much other data is touched as the first-level
//            cache holds, as by a driver that does its work meanwhile
//
// Prints, for each, the medians over the rounds of the time per launch and of the difference to the
// empty callback in the same round. Exit status 1 if the agent has not subscribed.
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr int kKernels = 8;
constexpr int kSets = 4;
constexpr int kTurns = kSets;  // two more, of the same two buffers
constexpr std::size_t kEvicted = 64 << 10;

std::string kernels_ptx() {
  std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n";
  for (int k = 0; k < kKernels; ++k) {
    text += ".visible .entry copy" + std::to_string(k) + R"((
  .param .u64 in, .param .u64 out, .param .u32 n)
{
  .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<6>;
  ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; ld.param.u32 %r1, [n];
  cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2;
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r2, %r2, %r3, %r4;
  setp.ge.u32 %p, %r2, %r1;
  @%p bra DONE;
  mul.wide.u32 %d3, %r2, 4;
  add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
  ld.global.u32 %r5, [%d4]; st.global.u32 [%d5], %r5;
DONE:
  ret;
}
)";
  }
  return text;
}

void check(CUresult code, const char* call) {
  if (code != CUDA_SUCCESS) {
    std::fprintf(stderr, "bench_launch_path: %s fails with %d\n", call, static_cast<int>(code));
    std::exit(1);
  }
}

volatile std::uint64_t empty_calls = 0;
void CUPTIAPI empty_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {
  empty_calls = empty_calls + 1;
}

std::vector<unsigned char> evicted(kEvicted);
void evict() {
  for (std::size_t at = 0; at < kEvicted; at += 64) {
    auto* byte = static_cast<volatile unsigned char*>(&evicted[at]);
    *byte = static_cast<unsigned char>(*byte + 1);
  }
}

struct Arguments {
  CUdeviceptr in = 0;
  CUdeviceptr out = 0;
  unsigned n = 128;
  void* pointers[3] = {};
};

struct Launcher {
  CUcontext context = nullptr;
  CUfunction functions[kKernels] = {};
  Arguments sets[kSets + 2];
  std::uint32_t correlation = 1U << 30;  // not one that a real call has

  // One launch as CUPTI tells it.
  void launch(CUpti_CallbackFunc callback, void* userdata, CUfunction function, void** arguments) {
    cuLaunchKernel_params params{};
    params.f = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 128;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUresult result = CUDA_SUCCESS;
    std::uint64_t correlation_data = 0;
    CUpti_CallbackData data{};
    data.callbackSite = CUPTI_API_ENTER;
    data.functionName = "cuLaunchKernel";
    data.functionParams = &params;
    data.functionReturnValue = &result;
    data.symbolName = "copy";
    data.context = context;
    data.correlationData = &correlation_data;
    data.correlationId = ++correlation;
    callback(userdata, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &data);
    data.callbackSite = CUPTI_API_EXIT;
    callback(userdata, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &data);
  }
};

enum class Shape { kSame, kChanging, kTurns, kKernels, kCold };
constexpr struct {
  Shape shape;
  const char* name;
} kShapes[] = {{Shape::kSame, "same"},
               {Shape::kChanging, "changing"},
               {Shape::kTurns, "turns"},
               {Shape::kKernels, "kernels"},
               {Shape::kCold, "cold"}};

double ns_per_launch(Launcher& launcher, Shape shape, CUpti_CallbackFunc callback, void* userdata,
                     unsigned calls) {
  const auto start = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < calls; ++i) {
    if (shape == Shape::kCold) {
      evict();
    }
    CUfunction const function = launcher.functions[shape == Shape::kKernels ? i % kKernels : 0];
    Arguments& arguments = launcher.sets[shape == Shape::kSame    ? 0
                                         : shape == Shape::kTurns ? kTurns + i % 2
                                                                  : i % kSets];
    launcher.launch(callback, userdata, function, arguments.pointers);
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
             .count() /
         calls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned calls = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 20000;
  const unsigned rounds = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 21;
  if (calls == 0 || rounds == 0) {
    std::fprintf(stderr, "usage: bench_launch_path [CALLS [ROUNDS [SHAPE...]]]\n");
    return 2;
  }
  std::vector<std::pair<Shape, std::string>> shapes;
  for (int i = 3; i < argc; ++i) {
    for (const auto& [shape, name] : kShapes) {
      if (name == std::string_view(argv[i])) {
        shapes.emplace_back(shape, name);
      }
    }
    if (shapes.size() != static_cast<std::size_t>(i - 2)) {
      std::fprintf(stderr, "bench_launch_path: no shape '%s'\n", argv[i]);
      return 2;
    }
  }
  if (shapes.empty()) {
    for (const auto& [shape, name] : kShapes) {
      shapes.emplace_back(shape, name);
    }
  }
  std::string here = argv[0];
  here.resize(here.rfind('/') == std::string::npos ? 0 : here.rfind('/') + 1);
  // Before the driver loads the agent.
  void* tap = dlopen(((here.empty() ? "./" : here) + "libcupti_tap.so").c_str(), RTLD_NOW);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (tap == nullptr || driver == nullptr) {
    std::fprintf(stderr, "bench_launch_path: %s\n", dlerror());
    return 1;
  }
#define TEXT(name) #name
#define CALL(name, ...) \
  check(reinterpret_cast<decltype(&::name)>(dlsym(driver, TEXT(name)))(__VA_ARGS__), #name)

  Launcher launcher;
  CUdevice device = 0;
  CUmodule module = nullptr;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &launcher.context, device);
  CALL(cuCtxSetCurrent, launcher.context);
  CALL(cuModuleLoadData, &module, kernels_ptx().c_str());
  for (int k = 0; k < kKernels; ++k) {
    CALL(cuModuleGetFunction, &launcher.functions[k], module, ("copy" + std::to_string(k)).c_str());
  }
  for (Arguments& set : launcher.sets) {
    if (&set == &launcher.sets[kTurns + 1]) {
      set.in = launcher.sets[kTurns].out;
      set.out = launcher.sets[kTurns].in;
    } else {
      CALL(cuMemAlloc, &set.in, 4096);
      CALL(cuMemAlloc, &set.out, 4096);
    }
    set.pointers[0] = &set.in;
    set.pointers[1] = &set.out;
    set.pointers[2] = &set.n;
  }

  const auto callback = *static_cast<CUpti_CallbackFunc*>(dlsym(tap, "tap_callback"));
  void* userdata = *static_cast<void**>(dlsym(tap, "tap_userdata"));
  if (callback == nullptr) {
    std::fprintf(stderr, "bench_launch_path: no agent has subscribed; use `gpurecover run`\n");
    return 1;
  }
  std::printf("%-9s %10s %10s %14s   (ns per launch, median of %u rounds of %u)\n", "shape",
              "agent", "empty", "agent - empty", rounds, calls);
  for (const auto& [shape, name] : shapes) {
    ns_per_launch(launcher, shape, callback, userdata, 1000);
    std::vector<double> agent;
    std::vector<double> empty;
    std::vector<double> above;
    for (unsigned round = 0; round < rounds; ++round) {
      agent.push_back(ns_per_launch(launcher, shape, callback, userdata, calls));
      empty.push_back(ns_per_launch(launcher, shape, empty_callback, nullptr, calls));
      above.push_back(agent.back() - empty.back());
    }
    std::printf("%-9s %10.1f %10.1f %14.1f\n", name.c_str(), median(agent), median(empty),
                median(above));
  }
  return 0;
}
