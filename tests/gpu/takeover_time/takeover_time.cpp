// SPDX-License-Identifier: Apache-2.0
//
// A program whose takeover has much to carry over: many chunks of device memory and many modules.
// All chunks are filled with a pattern. Each module's kernel reads a piece of one and writes a
// piece of its own, round by round. At the end all of it is read back and compared with what the
// host has worked out.
//
//   takeover_time [--chunks N] [--mib N] [--modules N] [--rounds N] [--wait MS] [--churn N]
//                 [--large-outputs 0|1]
//
// --wait: how long after the first round it does nothing, which is when a background may catch up.
// --churn: so many chunks are freed and made again in each round, and as many modules are unloaded
// and loaded again.
// --large-outputs: the kernels write into the chunks, not into small allocations of their own; what
// a kernel may write is saved and compared at a takeover.
// Prints checksum=…; ends with 3 if a call fails, with 1 if a result is wrong.
#include <cuda.h>
#include <dlfcn.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

// clang-format off
#define FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuMemAlloc_v2) X(cuMemFree_v2) \
  X(cuMemsetD32_v2) X(cuMemcpyDtoH_v2) X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamSynchronize) \
  X(cuEventCreate) X(cuEventRecord)
// clang-format on
#define X(name) decltype(&::name) p_##name;
FUNCTIONS(X)
#undef X

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) {
    std::printf("failed=%s:%d\n", what, static_cast<int>(code));
    std::fprintf(stderr, "CUDA error %d (%s)\n", static_cast<int>(code), what);
    std::fflush(nullptr);
    std::_Exit(3);
  }
}
#define MUST(call) must(p_##call, #call)

void load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(77);
  }
#define X(name)                                                          \
  p_##name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (p_##name == nullptr) {                                             \
    std::fprintf(stderr, "the driver has no %s\n", #name);               \
    std::exit(77);                                                       \
  }
  FUNCTIONS(X)
#undef X
}

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocks = 4;
constexpr unsigned kWords = kThreads * kBlocks;  // that a kernel writes

// out[i] = in[i] + i * FACTOR + v
std::string ptx_of(unsigned module) {
  const std::string number = std::to_string(module);
  const std::string factor = std::to_string(2 * module + 3);
  return ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry work" + number +
         R"((.param .u64 out, .param .u64 in, .param .u32 v)
{
  .reg .b32 %r<8>;
  .reg .b64 %a<6>;
  ld.param.u64 %a1, [out];
  ld.param.u64 %a2, [in];
  ld.param.u32 %r1, [v];
  cvta.to.global.u64 %a1, %a1;
  cvta.to.global.u64 %a2, %a2;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mad.lo.u32 %r6, %r5, )" +
         factor + R"(, %r1;
  mul.wide.u32 %a3, %r5, 4;
  add.u64 %a4, %a2, %a3;
  ld.global.u32 %r7, [%a4];
  add.u32 %r6, %r6, %r7;
  add.u64 %a5, %a1, %a3;
  st.global.u32 [%a5], %r6;
  ret;
}
)";
}

std::uint32_t pattern_of(std::size_t chunk, unsigned round) {
  return static_cast<std::uint32_t>(chunk * 2654435761U) ^ (round * 0x9e3779b9U);
}

struct Chunk {
  CUdeviceptr address = 0;
  std::uint32_t pattern = 0;
};
struct Module {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
};

struct Options {
  unsigned chunks = 64, mib = 1024, modules = 100, rounds = 3, wait = 0, churn = 0;
  unsigned large_outputs = 0;
};

class Program {
 public:
  explicit Program(const Options& options)
      : o_(options), chunks_(o_.chunks), modules_(o_.modules), outputs_(o_.modules) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      make(i, 0);
    }
    for (unsigned i = 0; i < o_.modules; ++i) {
      load(i);
      if (o_.large_outputs == 0) {
        MUST(cuMemAlloc_v2(&outputs_[i], kWords * 4));
      }
    }
    MUST(cuCtxSynchronize());  // the kernels' stream does not wait for the patterns
  }

  void run() {
    for (unsigned round = 1; round <= o_.rounds; ++round) {
      for (unsigned i = 0; i < o_.churn; ++i) {
        const std::size_t chunk = (round * 7 + i) % chunks_.size();
        MUST(cuMemFree_v2(chunks_[chunk].address));
        make(chunk, round);
        const unsigned module = (round * 5 + i) % o_.modules;
        MUST(cuModuleUnload(modules_[module].module));
        load(module);
      }
      MUST(cuCtxSynchronize());
      for (unsigned i = 0; i < o_.modules; ++i) {
        launch(i, round);
      }
      MUST(cuEventRecord(event_, stream_));
      MUST(cuStreamSynchronize(stream_));
      if (round == 1 && o_.wait != 0) {
        const timespec time{static_cast<time_t>(o_.wait / 1000),
                            static_cast<long>(o_.wait % 1000) * 1000000};
        nanosleep(&time, nullptr);
      }
    }
  }

  // The exit status.
  int check() {
    std::uint64_t sum = 0xcbf29ce484222325;
    std::size_t wrong = 0;
    std::vector<std::uint32_t> got(kWords);
    const auto look = [&](CUdeviceptr at, auto&& wanted) {
      MUST(cuMemcpyDtoH_v2(got.data(), at, kWords * 4));
      for (unsigned i = 0; i < kWords; ++i) {
        sum = (sum ^ got[i]) * 0x100000001b3;
        wrong += got[i] != wanted(i) ? 1 : 0;
      }
    };
    for (unsigned i = 0; i < o_.modules; ++i) {
      const std::uint32_t v = o_.rounds * 1000003U + i + source_of(i).pattern;
      look(place_of(i), [&](unsigned at) { return at * (2 * i + 3) + v; });
    }
    const std::uint64_t bytes = std::uint64_t{o_.mib} << 20;
    for (const Chunk& chunk : chunks_) {
      // The kernels write in the first half.
      for (const std::uint64_t at : {bytes / 2, bytes / 4 * 3, bytes - kWords * 4}) {
        look(chunk.address + at, [&](unsigned) { return chunk.pattern; });
      }
    }
    std::printf("checksum=%016llx\n", static_cast<unsigned long long>(sum));
    if (wrong != 0) {
      std::printf("wrong=%zu\n", wrong);
    }
    return wrong == 0 ? 0 : 1;
  }

 private:
  void make(std::size_t chunk, unsigned round) {
    const std::size_t bytes = std::size_t{o_.mib} << 20;
    chunks_[chunk].pattern = pattern_of(chunk, round);
    MUST(cuMemAlloc_v2(&chunks_[chunk].address, bytes));
    MUST(cuMemsetD32_v2(chunks_[chunk].address, chunks_[chunk].pattern, bytes / 4));
  }
  void load(unsigned i) {
    const std::string text = ptx_of(i);
    MUST(cuModuleLoadData(&modules_[i].module, text.c_str()));
    MUST(cuModuleGetFunction(&modules_[i].kernel, modules_[i].module,
                             ("work" + std::to_string(i)).c_str()));
  }
  CUdeviceptr place_of(unsigned module) const {
    if (o_.large_outputs == 0) {
      return outputs_[module];
    }
    const Chunk& chunk = chunks_[module % chunks_.size()];
    return chunk.address + std::uint64_t{module / o_.chunks} * kWords * 4;
  }
  // Never the chunk that it may write.
  const Chunk& source_of(unsigned module) const { return chunks_[(module + 1) % chunks_.size()]; }
  void launch(unsigned i, unsigned round) {
    CUdeviceptr out = place_of(i);
    CUdeviceptr in = source_of(i).address + (std::uint64_t{o_.mib} << 20) - kWords * 4;
    std::uint32_t v = round * 1000003U + i;
    void* params[] = {&out, &in, &v};
    MUST(cuLaunchKernel(modules_[i].kernel, kBlocks, 1, 1, kThreads, 1, 1, 0, stream_, params,
                        nullptr));
  }

  const Options o_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::vector<Chunk> chunks_;
  std::vector<Module> modules_;
  std::vector<CUdeviceptr> outputs_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const struct {
    const char* name;
    unsigned& value;
    unsigned low, high;
  } known[] = {{"--chunks", options.chunks, 2, 1 << 16},
               {"--mib", options.mib, 1, 1 << 16},
               {"--modules", options.modules, 1, 1000},
               {"--rounds", options.rounds, 1, 1000},
               {"--wait", options.wait, 0, 60000},
               {"--churn", options.churn, 0, 1000},
               {"--large-outputs", options.large_outputs, 0, 1}};
  for (int i = 1; i < argc; i += 2) {
    bool good = false;
    for (const auto& option : known) {
      if (std::strcmp(argv[i], option.name) == 0 && i + 1 < argc) {
        char* end = nullptr;
        const unsigned long value = std::strtoul(argv[i + 1], &end, 10);
        good = *end == '\0' && value >= option.low && value <= option.high;
        option.value = static_cast<unsigned>(value);
      }
    }
    if (!good) {
      std::fprintf(stderr, "takeover_time: bad argument '%s'\n", argv[i]);
      return 2;
    }
  }
  // The pieces of the kernels of a chunk lie in its first half.
  if (options.modules / options.chunks * kWords * 8 > (options.mib << 20)) {
    std::fprintf(stderr, "takeover_time: more modules than the chunks have room for\n");
    return 2;
  }
  load_driver();
  Program program(options);
  program.run();
  return program.check();
}
