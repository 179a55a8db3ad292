// SPDX-License-Identifier: Apache-2.0
//
// What allocating costs: for each size the median time of cuMemAlloc and cuMemFree, for memory
// asked for the first time ("fresh": many held at once, more than anybody keeps) and for memory
// that was just given back ("again"); and how much of the device is gone with a given load. Lines
// of `name size alloc_us free_us`, and `memory load_bytes taken_bytes`.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

#define FUNCTIONS(X)                                                                     \
  X(cuInit)                                                                              \
  X(cuDeviceGet)                                                                         \
  X(cuDevicePrimaryCtxRetain)                                                            \
  X(cuCtxSetCurrent)                                                                     \
  X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemGetInfo_v2) X(cuMemHostAlloc) X(cuMemFreeHost) \
      X(cuCtxSynchronize)
#define X(name) decltype(&::name) name##_p;
FUNCTIONS(X)
#undef X

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) {
    std::fprintf(stderr, "%s: error %d\n", what, static_cast<int>(code));
    std::exit(1);
  }
}
#define MUST(call) must(call, #call)

double now() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  MUST(cuMemGetInfo_v2_p(&free, &total));
  return free;
}

}  // namespace

int main() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 77;
  }
#define X(name) name##_p = reinterpret_cast<decltype(name##_p)>(dlsym(library, #name));
  FUNCTIONS(X)
#undef X
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(cuInit_p(0));
  MUST(cuDeviceGet_p(&device, 0));
  MUST(cuDevicePrimaryCtxRetain_p(&context, device));
  MUST(cuCtxSetCurrent_p(context));
  CUdeviceptr warm = 0;
  MUST(cuMemAlloc_v2_p(&warm, 1024));

  const std::size_t room = free_bytes();
  for (const std::size_t size :
       {std::size_t{256}, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20,
        std::size_t{256} << 20, std::size_t{1} << 30}) {
    // Up to a quarter of the device at once.
    const std::size_t count = std::min<std::size_t>(64, room / 4 / size);
    if (count < 2) {
      continue;
    }
    std::vector<double> alloc, release;
    std::vector<CUdeviceptr> all(count);
    for (auto& one : all) {
      const double start = now();
      MUST(cuMemAlloc_v2_p(&one, size));
      alloc.push_back(now() - start);
    }
    for (const auto one : all) {
      const double start = now();
      MUST(cuMemFree_v2_p(one));
      release.push_back(now() - start);
    }
    std::printf("fresh %zu %.2f %.2f\n", size, median(alloc), median(release));
    alloc.clear();
    release.clear();
    for (int i = 0; i < 50; ++i) {
      CUdeviceptr one = 0;
      double start = now();
      MUST(cuMemAlloc_v2_p(&one, size));
      alloc.push_back(now() - start);
      start = now();
      MUST(cuMemFree_v2_p(one));
      release.push_back(now() - start);
    }
    std::printf("again %zu %.2f %.2f\n", size, median(alloc), median(release));
  }
  for (const std::size_t size : {std::size_t{4096}, std::size_t{16} << 20}) {
    std::vector<double> alloc, release;
    for (int i = 0; i < 20; ++i) {
      void* one = nullptr;
      double start = now();
      MUST(cuMemHostAlloc_p(&one, size, 0));
      alloc.push_back(now() - start);
      start = now();
      MUST(cuMemFreeHost_p(one));
      release.push_back(now() - start);
    }
    std::printf("pinned %zu %.2f %.2f\n", size, median(alloc), median(release));
  }
  // A load as of a training: many small pieces, some large ones.
  const std::size_t before = free_bytes();
  std::vector<CUdeviceptr> load;
  std::size_t asked = 0;
  const auto take = [&](std::size_t count, std::size_t size) {
    for (std::size_t i = 0; i < count && asked + size < room / 2; ++i) {
      CUdeviceptr one = 0;
      MUST(cuMemAlloc_v2_p(&one, size + i * 4));
      load.push_back(one);
      asked += size + i * 4;
    }
  };
  take(4000, 1000);
  take(500, 100000);
  take(100, 1500000);
  take(20, 20000000);
  std::printf("memory %zu %zu\n", asked, before - free_bytes());
  for (const auto one : load) {
    MUST(cuMemFree_v2_p(one));
  }
  std::printf("left %zu %zu\n", std::size_t{0}, before - std::min(before, free_bytes()));
}
