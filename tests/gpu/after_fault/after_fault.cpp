// SPDX-License-Identifier: Apache-2.0
// Asks a driver what a process whose context is dead still answers, and what calls do whose
// parameters are all zero. Prints `section | question | answer` for each question; the answer is
// the driver's code, what was measured, or the signal that ended the process that asked.
//
//   after_fault              all sections
//   after_fault SECTION…     these; `after_fault --list` names them
//
// The questions of a section with `alone` have a process each; the others go on in one process
// until it dies, and then in a new one. Nothing of CUDA is used in the process that drives it.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cupti/driver_api/driver_api.h"

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// No driver handle, address or size is this; 0x6770_0000_0000 is beyond the arena of steering.
constexpr std::uintptr_t kUnknown = 0x677000000040;
template <class T>
T unknown() {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(kUnknown);
  } else {
    return static_cast<T>(kUnknown);
  }
}

const char* const kPtx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 g_word = 5;\n"
    ".visible .const .align 4 .u32 c_word = 6;\n"
    ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,"
    " .param .b64 e);\n"
    ".global .align 1 .b8 text[2] = {120, 0};\n"
    ".visible .entry k_empty() { ret; }\n"
    ".visible .entry k_trap() { trap; ret; }\n"
    ".visible .entry k_illegal() { .reg .b64 %rd1; .reg .b32 %r1; mov.u64 %rd1, 64;\n"
    "  mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret; }\n"
    ".visible .entry k_misaligned(.param .u64 p) { .reg .b64 %rd1; .reg .b32 %r1;\n"
    "  ld.param.u64 %rd1, [p]; add.u64 %rd1, %rd1, 1; mov.u32 %r1, 1;\n"
    "  st.global.u32 [%rd1], %r1; ret; }\n"
    ".visible .entry k_assert() { .reg .b64 %rd1; .reg .b32 %r1;\n"
    "  mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; mov.u32 %r1, 7;\n"
    "  { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;\n"
    "    st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], %r1;\n"
    "    st.param.b64 [d], %rd1; st.param.b64 [e], 1;\n"
    "    call.uni __assertfail, (a, b, c, d, e); }\n"
    "  ret; }\n"
    // Writes n words of the value, then traps where asked to.
    ".visible .entry k_fill(.param .u64 p, .param .u32 n, .param .u32 value, .param .u32 dies) {\n"
    "  .reg .b64 %rd<4>; .reg .b32 %r<9>; .reg .pred %p<4>;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [value];\n"
    "  ld.param.u32 %r3, [dies]; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ntid.x;\n"
    "  mov.u32 %r6, %tid.x; mad.lo.u32 %r7, %r4, %r5, %r6; setp.ge.u32 %p1, %r7, %r1;\n"
    "  @%p1 bra END; mul.wide.u32 %rd2, %r7, 4; add.u64 %rd3, %rd1, %rd2;\n"
    "  st.global.u32 [%rd3], %r2;\n"
    "END: setp.eq.u32 %p2, %r3, 0; @%p2 bra OUT; trap;\n"
    "OUT: ret; }\n"
    // Counts in host memory for so many ns or so far, then writes 1 behind the counter.
    ".visible .entry k_spin(.param .u64 p, .param .u64 ns, .param .u32 n) {\n"
    "  .reg .b64 %rd<8>; .reg .b32 %r<4>; .reg .pred %p<2>;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [ns]; ld.param.u32 %r3, [n];\n"
    "  mov.u64 %rd3, %globaltimer;\n"
    "  mov.u32 %r1, 0;\n"
    "AGAIN: add.u32 %r1, %r1, 1; st.volatile.global.u32 [%rd1], %r1;\n"
    "  mov.u64 %rd4, %globaltimer; sub.u64 %rd5, %rd4, %rd3; setp.lt.u64 %p1, %rd5, %rd2;\n"
    "  setp.lt.and.u32 %p1, %r1, %r3, %p1;\n"
    "  @%p1 bra AGAIN; mov.u32 %r2, 1; st.volatile.global.u32 [%rd1+4], %r2; ret; }\n";
// Never loaded before the fault.
const char* const kNewPtx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 h_word = 5;\n"
    ".visible .entry k_new() { ret; }\n";

// --- the process that asks -------------------------------------------------------------------

int answers_fd = STDOUT_FILENO;

void write_line(const std::string& line) {
  std::string text = line + "\n";
  if (write(answers_fd, text.data(), text.size()) < 0) {
    _exit(3);
  }
}
void say(const std::string& question, const std::string& answer) {
  write_line("=" + question + "\t" + answer);
}
void say(const std::string& question, long long answer) {
  say(question, std::to_string(answer));
}
void say_code(const std::string& question, CUresult code) {
  say(question, static_cast<long long>(code));
}

int set_mode(int mode) {
  const char* path = std::getenv("CUDA_INJECTION64_PATH");
  void* library = path != nullptr ? dlopen(path, RTLD_NOLOAD | RTLD_NOW) : nullptr;
  auto* set = library != nullptr
                  ? reinterpret_cast<int (*)(int)>(dlsym(library, "after_fault_mode"))
                  : nullptr;
  return set != nullptr ? set(mode) : -1;
}

struct World {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction empty = nullptr;
  CUfunction trap = nullptr;
  CUfunction fill = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr buffer = 0;
  CUmemoryPool pool = nullptr;
  std::uint32_t host[64] = {};
  bool dead = false;
} world;

void must(const char* what, CUresult code) {
  if (code != CUDA_SUCCESS) {
    say(std::string("SETUP ") + what, static_cast<long long>(code));
    _exit(4);
  }
}
#define MUST(call) must(#call, call)

void set_up() {
  World& w = world;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&w.device, 0));
  MUST(cuDevicePrimaryCtxRetain(&w.context, w.device));
  MUST(cuCtxSetCurrent(w.context));
  MUST(cuModuleLoadData(&w.module, kPtx));
  MUST(cuLibraryLoadData(&w.library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  MUST(cuLibraryGetKernel(&w.kernel, w.library, "k_empty"));
  MUST(cuModuleGetFunction(&w.empty, w.module, "k_empty"));
  MUST(cuModuleGetFunction(&w.trap, w.module, "k_trap"));
  MUST(cuModuleGetFunction(&w.fill, w.module, "k_fill"));
  MUST(cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&w.event, CU_EVENT_DISABLE_TIMING));
  MUST(cuEventRecord(w.event, w.stream));
  MUST(cuMemAlloc(&w.buffer, 1 << 20));
  MUST(cuDeviceGetDefaultMemPool(&w.pool, w.device));
  MUST(cuStreamSynchronize(w.stream));
}

CUresult launch(CUfunction function, CUstream stream, void** params = nullptr, unsigned grid = 1,
                unsigned block = 1) {
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params, nullptr);
}

void die() {
  MUST(launch(world.trap, world.stream));
  const CUresult code = cuStreamSynchronize(world.stream);
  if (code != CUDA_ERROR_LAUNCH_FAILED) {
    say("SETUP trap", static_cast<long long>(code));
    _exit(4);
  }
  world.dead = true;
}

// --- questions about handles -----------------------------------------------------------------

struct Question {
  std::string name;
  std::function<CUresult()> ask;
};
#define ASK(call)                                     \
  {                                                   \
#call, [] { return static_cast<CUresult>(call); } \
  }

CUlaunchConfig config_of(CUstream stream) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  return config;
}
CUresult launch_ex(CUfunction function, CUstream stream) {
  const CUlaunchConfig config = config_of(stream);
  return cuLaunchKernelEx(&config, function, nullptr, nullptr);
}

// Everything but the unknown handle is good.
std::vector<Question> handle_questions() {
  static int n = 0;
  static float ms = 0;
  static size_t size = 0, offset = 0;
  static CUfunction f = nullptr;
  static CUmodule m = nullptr;
  static CUkernel k = nullptr;
  static CUlibrary l = nullptr;
  static CUcontext c = nullptr;
  static CUdeviceptr d = 0;
  static unsigned flags = 0;
  static const char* text = nullptr;
  static CUstreamCaptureStatus status{};
  static CUgraph graph = nullptr;
  World& w = world;
  (void)w;
#define W world
#define S unknown<CUstream>()
#define E unknown<CUevent>()
#define F unknown<CUfunction>()
#define M unknown<CUmodule>()
#define K unknown<CUkernel>()
#define L unknown<CUlibrary>()
  return {
      ASK(launch(F, W.stream)),
      ASK(launch(W.empty, S)),
      ASK(launch((CUfunction)W.kernel, S)),
      ASK(launch_ex(F, W.stream)),
      ASK(launch_ex(W.empty, S)),
      ASK(cuLaunchCooperativeKernel(W.empty, 1, 1, 1, 1, 1, 1, 0, S, nullptr)),
      ASK(cuLaunchHostFunc(
          S, [](void*) {}, nullptr)),
      ASK(cuStreamSynchronize(S)),
      ASK(cuStreamQuery(S)),
      ASK(cuStreamGetFlags(S, &flags)),
      ASK(cuStreamGetPriority(S, &n)),
      ASK(cuStreamGetCtx(S, &c)),
      ASK(cuStreamIsCapturing(S, &status)),
      ASK(cuStreamBeginCapture(S, CU_STREAM_CAPTURE_MODE_RELAXED)),
      ASK(cuStreamEndCapture(S, &graph)),
      ASK(cuStreamWriteValue32(S, W.buffer, 1, 0)),
      ASK(cuStreamWaitValue32(S, W.buffer, 0, CU_STREAM_WAIT_VALUE_GEQ)),
      ASK(cuStreamWaitEvent(S, W.event, 0)),
      ASK(cuStreamWaitEvent(W.stream, E, 0)),
      ASK(cuStreamDestroy(S)),
      ASK(cuEventRecord(E, W.stream)),
      ASK(cuEventRecord(W.event, S)),
      ASK(cuEventQuery(E)),
      ASK(cuEventSynchronize(E)),
      ASK(cuEventElapsedTime(&ms, E, E)),
      ASK(cuEventDestroy(E)),
      ASK(cuModuleGetFunction(&f, M, "k_empty")),
      ASK(cuModuleGetGlobal(&d, &size, M, "g_word")),
      ASK(cuModuleUnload(M)),
      ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, F)),
      ASK(cuFuncSetAttribute(F, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024)),
      ASK(cuFuncSetCacheConfig(F, CU_FUNC_CACHE_PREFER_L1)),
      ASK(cuFuncGetModule(&m, F)),
      ASK(cuFuncGetName(&text, F)),
      ASK(cuFuncGetParamInfo(F, 0, &offset, &size)),
      ASK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, F, 32, 0)),
      ASK(cuLibraryGetKernel(&k, L, "k_empty")),
      ASK(cuLibraryGetModule(&m, L)),
      ASK(cuLibraryGetGlobal(&d, &size, L, "g_word")),
      ASK(cuLibraryUnload(L)),
      ASK(cuKernelGetFunction(&f, K)),
      ASK(cuKernelGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, K, W.device)),
      ASK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024, K, W.device)),
      ASK(cuKernelGetName(&text, K)),
      ASK(cuKernelGetParamInfo(K, 0, &offset, &size)),
      ASK(cuKernelGetLibrary(&l, K)),
      ASK(cuMemcpyHtoDAsync(W.buffer, W.host, sizeof W.host, S)),
      ASK(cuMemcpyDtoHAsync(W.host, W.buffer, sizeof W.host, S)),
      ASK(cuMemcpyDtoDAsync(W.buffer, W.buffer + 4096, 64, S)),
      ASK(cuMemsetD8Async(W.buffer, 1, 64, S)),
      ASK(cuMemAllocAsync(&d, 64, S)),
      ASK(cuMemFreeAsync(W.buffer, S)),
      ASK(cuMemFree(unknown<CUdeviceptr>())),
      ASK(cuMemFreeHost(unknown<void*>())),
      ASK(cuMemRelease(unknown<CUmemGenericAllocationHandle>())),
      ASK(cuMemPoolDestroy(unknown<CUmemoryPool>())),
      ASK(cuMemAllocFromPoolAsync(&d, 64, unknown<CUmemoryPool>(), W.stream)),
      ASK(cuGraphLaunch(unknown<CUgraphExec>(), W.stream)),
      ASK(cuGraphExecDestroy(unknown<CUgraphExec>())),
      ASK(cuGraphDestroy(unknown<CUgraph>())),
      ASK(cuCtxSetCurrent(unknown<CUcontext>())),
      ASK(cuCtxPushCurrent(unknown<CUcontext>())),
      ASK(cuCtxDestroy(unknown<CUcontext>())),
      // The same calls with handles that are good, to compare with.
      ASK(launch(W.empty, W.stream)),
      ASK(launch((CUfunction)W.kernel, W.stream)),
      ASK(launch_ex(W.empty, W.stream)),
      ASK(cuStreamSynchronize(W.stream)),
      ASK(cuStreamQuery(W.stream)),
      ASK(cuEventRecord(W.event, W.stream)),
      ASK(cuEventQuery(W.event)),
      ASK(cuEventSynchronize(W.event)),
      ASK(cuStreamWaitEvent(W.stream, W.event, 0)),
      ASK(cuModuleGetFunction(&f, W.module, "k_fill")),
      ASK(cuModuleGetGlobal(&d, &size, W.module, "g_word")),
      ASK(cuLibraryGetKernel(&k, W.library, "k_fill")),
      ASK(cuKernelGetFunction(&f, W.kernel)),
      ASK(cuKernelGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, W.kernel, W.device)),
      ASK(cuKernelGetName(&text, W.kernel)),
      ASK(cuMemcpyHtoDAsync(W.buffer, W.host, sizeof W.host, W.stream)),
      ASK(cuMemcpyHtoDAsync(unknown<CUdeviceptr>(), W.host, sizeof W.host, W.stream)),
      ASK(cuMemcpyHtoDAsync(W.buffer, unknown<void*>(), 64, W.stream)),
      ASK(cuMemsetD8Async(unknown<CUdeviceptr>(), 1, 64, W.stream)),
      ASK(cuEventDestroy(W.event)),
      ASK(cuStreamDestroy(W.stream)),
      ASK(cuModuleUnload(W.module)),
      ASK(cuLibraryUnload(W.library)),
  };
#undef W
#undef S
#undef E
#undef F
#undef M
#undef K
#undef L
}

std::vector<Question> size_questions() {
  static CUdeviceptr d = 0;
  static void* p = nullptr;
  static size_t pitch = 0;
  return {
      ASK(cuMemAlloc(&d, 0)),
      ASK(cuMemAlloc(nullptr, 16)),
      ASK(cuMemAlloc(nullptr, 0)),
      ASK(cuMemHostAlloc(&p, 0, 0)),
      ASK(cuMemHostAlloc(nullptr, 16, 0)),
      ASK(cuMemHostAlloc(nullptr, 0, 0)),
      ASK(cuMemHostAlloc(&p, 16, 0)),
      ASK(cuMemHostAlloc(&p, 0, CU_MEMHOSTALLOC_DEVICEMAP)),
      ASK(cuMemHostAlloc(&p, 16, 0x80)),
      ASK(cuMemAllocHost(&p, 0)),
      ASK(cuMemAllocHost(nullptr, 16)),
      ASK(cuMemAllocHost(nullptr, 0)),
      ASK(cuMemAllocHost(&p, 16)),
      ASK(cuMemHostRegister(nullptr, 0, 0)),
      ASK(cuMemHostRegister(world.host, 0, 0)),
      ASK(cuMemAllocAsync(&d, 0, world.stream)),
      ASK(cuMemAllocAsync(nullptr, 16, world.stream)),
      ASK(cuMemAllocAsync(nullptr, 0, nullptr)),
      ASK(cuMemAllocAsync(&d, 16, world.stream)),
      ASK(cuMemAllocFromPoolAsync(&d, 0, world.pool, world.stream)),
      ASK(cuMemAllocFromPoolAsync(nullptr, 16, world.pool, world.stream)),
      ASK(cuMemAllocFromPoolAsync(&d, 16, nullptr, world.stream)),
      ASK(cuMemAllocFromPoolAsync(nullptr, 0, nullptr, nullptr)),
      ASK(cuMemAllocFromPoolAsync(&d, 16, world.pool, world.stream)),
      ASK(cuMemAllocPitch(&d, &pitch, 0, 4, 4)),
      ASK(cuMemAllocPitch(&d, &pitch, 16, 0, 4)),
      ASK(cuMemAllocPitch(&d, &pitch, 16, 4, 0)),
      ASK(cuMemAllocPitch(nullptr, &pitch, 16, 4, 4)),
      ASK(cuMemAllocPitch(&d, nullptr, 16, 4, 4)),
      ASK(cuMemAllocPitch(nullptr, nullptr, 0, 0, 0)),
      ASK(cuMemAllocPitch(&d, &pitch, 16, 4, 4)),
      ASK(cuMemAllocManaged(&d, 0, CU_MEM_ATTACH_GLOBAL)),
      ASK(cuMemAllocManaged(nullptr, 16, CU_MEM_ATTACH_GLOBAL)),
      ASK(cuMemAllocManaged(&d, 16, 0)),
      ASK(cuMemAllocManaged(nullptr, 0, 0)),
      ASK(cuMemAllocManaged(&d, 16, CU_MEM_ATTACH_GLOBAL)),
      ASK(cuMemFree(0)),
      ASK(cuMemFreeHost(nullptr)),
      ASK(cuMemFreeAsync(0, world.stream)),
      ASK(cuEventCreate(nullptr, 0)),
      ASK(cuStreamCreate(nullptr, 0)),
      ASK(cuMemcpy(world.buffer, world.buffer + 64, 0)),
      ASK(cuMemcpy(0, 0, 0)),
      ASK(cuMemcpyHtoD(0, nullptr, 0)),
      ASK(cuMemcpyHtoDAsync(0, nullptr, 0, world.stream)),
      ASK(cuMemcpyHtoDAsync(0, nullptr, 0, unknown<CUstream>())),
      ASK(cuMemsetD8Async(0, 0, 0, world.stream)),
      ASK(cuStreamSynchronize(nullptr)),
      ASK(cuStreamQuery(nullptr)),
      ASK(cuCtxSynchronize()),
  };
}

// --- sweeps over all calls -------------------------------------------------------------------

struct Swept {
  std::string name;
  void* address;
};

std::vector<Swept> swept_calls() {
  std::vector<Swept> calls;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  for (std::uint32_t id = 1; id < gpurecover::driver_api::cbid_end(); ++id) {
    const std::string name(gpurecover::driver_api::name_of(id));
    // The other default stream's forms are the same code; a checkpoint acts on a whole process,
    // and process 0 may be any.
    if (name.empty() || name.ends_with("_ptsz") || name.ends_with("_ptds") ||
        name.starts_with("cuCheckpoint")) {
      continue;
    }
    if (void* address = dlsym(driver, name.c_str())) {
      calls.push_back({name, address});
    }
  }
  return calls;
}

CUresult call_with(void* address, std::uintptr_t value) {
  using Twelve = CUresult (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                              std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                              std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t);
  return reinterpret_cast<Twelve>(address)(value, value, value, value, value, value, value, value,
                                           value, value, value, value);
}

// Whether the context is as it was: a call that changed it has done something.
std::string change_of_world() {
  CUcontext current = nullptr;
  CUstreamCaptureStatus status{};
  std::string out;
  if (const CUresult code = cuCtxGetCurrent(&current); code != CUDA_SUCCESS) {
    return ", then cuCtxGetCurrent " + std::to_string(code);
  }
  if (current != world.context) {
    out += ", another context is current";
    cuCtxSetCurrent(world.context);
  }
  if (world.dead) {
    // Still the same fault, or what came of a reset?
    const CUresult code = cuStreamIsCapturing(world.stream, &status);
    return code == CUDA_ERROR_LAUNCH_FAILED
               ? out
               : out + ", then the context gives " + std::to_string(code);
  }
  CUresult code = launch(world.empty, world.stream);
  if (code == CUDA_SUCCESS) {
    code = cuStreamSynchronize(world.stream);
  }
  if (code != CUDA_SUCCESS) {
    out += ", then a launch gives " + std::to_string(code);
  }
  return out;
}

void sweep(std::size_t from, bool dead, std::uintptr_t value, int mode) {
  set_up();
  if (dead) {
    die();
  }
  const auto calls = swept_calls();
  write_line("#" + std::to_string(calls.size()));
  for (std::size_t i = from; i < calls.size(); ++i) {
    write_line("?" + std::to_string(i) + "\t" + calls[i].name);
    set_mode(mode);
    const CUresult code = call_with(calls[i].address, value);
    set_mode(0);
    const std::string change = change_of_world();
    say(calls[i].name, std::to_string(static_cast<long long>(code)) + change);
    if (change.find("then") != std::string::npos) {
      _exit(0);  // the next one goes on in a good process
    }
  }
  write_line("!");
}

// Questions, each in this one process or all of them.
void ask(std::vector<Question> (*questions)(), std::size_t from, bool dead, int mode, bool alone) {
  set_up();
  if (dead) {
    die();
  }
  const auto all = questions();
  write_line("#" + std::to_string(all.size()));
  for (std::size_t i = from; i < all.size(); ++i) {
    write_line("?" + std::to_string(i) + "\t" + all[i].name);
    set_mode(mode);
    const CUresult code = all[i].ask();
    set_mode(0);
    say_code(all[i].name, code);
    if (alone) {
      _exit(0);
    }
  }
  write_line("!");
}

// --- images after the fault ------------------------------------------------------------------

void images(bool dead) {
  set_up();
  // A cubin for the device at hand, from the driver's own linker.
  CUlinkState link = nullptr;
  void* made = nullptr;
  std::size_t size = 0;
  std::string cubin;
  CUresult code = cuLinkCreate(0, nullptr, nullptr, &link);
  if (code == CUDA_SUCCESS) {
    code = cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(kNewPtx),
                         std::strlen(kNewPtx) + 1, "new", 0, nullptr, nullptr);
  }
  if (code == CUDA_SUCCESS) {
    code = cuLinkComplete(link, &made, &size);
  }
  if (code == CUDA_SUCCESS) {
    cubin.assign(static_cast<const char*>(made), size);
  } else {
    say_code("no cubin could be made", code);
  }
  CUlibrary early = nullptr;
  CUkernel early_kernel = nullptr;
  MUST(cuLibraryLoadData(&early, kNewPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  if (dead) {
    die();
    set_mode(1);
  }
  CUfunction f = nullptr;
  CUdeviceptr d = 0;
  std::size_t bytes = 0;
  const char* text = nullptr;
  CUmodule m = nullptr;
  int n = 0;
  say_code("library loaded before: cuLibraryGetKernel, first time",
           cuLibraryGetKernel(&early_kernel, early, "k_new"));
  say_code("cuKernelGetName", cuKernelGetName(&text, early_kernel));
  say("name", text != nullptr ? text : "(none)");
  say_code("cuKernelGetFunction", cuKernelGetFunction(&f, early_kernel));
  say_code("cuKernelGetAttribute",
           cuKernelGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, early_kernel, world.device));
  say_code("cuLibraryGetGlobal", cuLibraryGetGlobal(&d, &bytes, early, "h_word"));
  say_code("cuLibraryGetModule", cuLibraryGetModule(&m, early));
  say_code("cuLibraryGetKernelCount",
           cuLibraryGetKernelCount(reinterpret_cast<unsigned*>(&n), early));
  for (const bool binary : {false, true}) {
    if (binary && cubin.empty()) {
      continue;
    }
    const std::string kind = binary ? "new cubin: " : "new PTX: ";
    const char* image = binary ? cubin.data() : kNewPtx;
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    text = nullptr;
    m = nullptr;
    say_code(kind + "cuLibraryLoadData",
             cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    say(kind + "a library was made", library != nullptr);
    if (library != nullptr) {
      say_code(kind + "cuLibraryGetKernel", cuLibraryGetKernel(&kernel, library, "k_new"));
      say_code(kind + "cuLibraryGetKernel of none",
               cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
      cuLibraryGetKernel(&kernel, library, "k_new");
      say(kind + "a kernel was made", kernel != nullptr);
      if (kernel != nullptr) {
        say_code(kind + "cuKernelGetName", cuKernelGetName(&text, kernel));
        say_code(kind + "cuKernelGetLibrary", cuKernelGetLibrary(&library, kernel));
        say_code(kind + "cuKernelGetFunction", cuKernelGetFunction(&f, kernel));
        say_code(kind + "cuKernelGetAttribute",
                 cuKernelGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, world.device));
        say_code(kind + "launch by the kernel",
                 launch(reinterpret_cast<CUfunction>(kernel), world.stream));
      }
      say_code(kind + "cuLibraryGetGlobal", cuLibraryGetGlobal(&d, &bytes, library, "h_word"));
      say_code(kind + "cuLibraryGetModule", cuLibraryGetModule(&m, library));
      say_code(kind + "cuLibraryUnload", cuLibraryUnload(library));
    }
    m = nullptr;
    say_code(kind + "cuModuleLoadData", cuModuleLoadData(&m, image));
  }
  CUlibrary library = nullptr;
  say_code("an image that is none: cuLibraryLoadData",
           cuLibraryLoadData(&library, "no image", nullptr, nullptr, 0, nullptr, nullptr, 0));
}

// --- memory handed over after the fault ------------------------------------------------------

void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (sendmsg(socket, &message, 0) < 0) {
    _exit(5);
  }
}
int receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, 0) <= 0 || CMSG_FIRSTHDR(&message) == nullptr) {
    return -1;
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

constexpr std::size_t kShared = 4 << 20;
constexpr std::uint32_t kWords = kShared / 4;
constexpr CUdeviceptr kPlace = 0x550000000000;

CUmemAllocationProp exportable() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}
CUmemAccessDesc access_of(CUdevice device) {
  CUmemAccessDesc a{};
  a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  a.location.id = device;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return a;
}

// The importing process. Words below kWords/2 hold 0x11111111, written by a kernel that completed;
// the rest holds 0x22222222, or what the dying kernel wrote (0x33333333).
void import_memory(int socket) {
  World w;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&w.device, 0));
  MUST(cuDevicePrimaryCtxRetain(&w.context, w.device));
  MUST(cuCtxSetCurrent(w.context));
  const char ready = 'r';
  if (write(socket, &ready, 1) != 1) {
    _exit(5);
  }
  const int descriptor = receive_descriptor(socket);
  if (descriptor < 0) {
    _exit(6);
  }
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr place = 0;
  say_code(
      "importer: cuMemImportFromShareableHandle",
      cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(std::intptr_t{descriptor}),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  say_code("importer: cuMemAddressReserve at the same address",
           cuMemAddressReserve(&place, 1ull << 38, 0, kPlace, 0));
  say("importer: got that address", place == kPlace);
  say_code("importer: cuMemMap", cuMemMap(place, kShared, 0, handle, 0));
  const CUmemAccessDesc access = access_of(w.device);
  say_code("importer: cuMemSetAccess", cuMemSetAccess(place, kShared, &access, 1));
  std::vector<std::uint32_t> words(kWords);
  say_code("importer: cuMemcpyDtoH", cuMemcpyDtoH(words.data(), place, kShared));
  std::size_t wrong = 0, dying = 0, before = 0;
  for (std::uint32_t i = 0; i < kWords; ++i) {
    if (i < kWords / 2) {
      wrong += words[i] != 0x11111111;
    } else if (words[i] == 0x33333333) {
      ++dying;
    } else if (words[i] == 0x22222222) {
      ++before;
    } else {
      ++wrong;
    }
  }
  say("importer: wrong words", static_cast<long long>(wrong));
  say("importer: words of the dying kernel", static_cast<long long>(dying));
  say("importer: words from before it", static_cast<long long>(before));
  _exit(0);
}

void export_memory() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) {
    _exit(5);
  }
  const pid_t importer = fork();
  if (importer == 0) {
    close(sockets[0]);
    import_memory(sockets[1]);
  }
  close(sockets[1]);
  set_up();
  char ready = 0;
  if (read(sockets[0], &ready, 1) != 1) {
    say("the importer did not start", -1);
    _exit(0);
  }
  const CUmemAllocationProp properties = exportable();
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr place = 0;
  MUST(cuMemAddressReserve(&place, 1ull << 38, 0, kPlace, 0));
  say("got the address", place == kPlace);
  MUST(cuMemCreate(&handle, kShared, &properties, 0));
  MUST(cuMemMap(place, kShared, 0, handle, 0));
  const CUmemAccessDesc access = access_of(world.device);
  MUST(cuMemSetAccess(place, kShared, &access, 1));
  MUST(cuMemRelease(handle));
  CUdeviceptr second_half = place + kShared / 2;
  std::uint32_t half = kWords / 2, first = 0x11111111, second = 0x22222222, third = 0x33333333,
                lives = 0, dies = 1;
  void* p1[] = {&place, &half, &first, &lives};
  void* p2[] = {&second_half, &half, &second, &lives};
  void* p3[] = {&second_half, &half, &third, &dies};
  const unsigned blocks = half / 256;
  MUST(launch(world.fill, world.stream, p1, blocks, 256));
  MUST(launch(world.fill, world.stream, p2, blocks, 256));
  MUST(launch(world.fill, world.stream, p3, blocks, 256));
  say_code("fault", cuStreamSynchronize(world.stream));
  set_mode(1);
  CUmemGenericAllocationHandle kept{};
  say_code("cuMemRetainAllocationHandle",
           cuMemRetainAllocationHandle(&kept, reinterpret_cast<void*>(place)));
  CUmemAllocationProp found{};
  say_code("cuMemGetAllocationPropertiesFromHandle",
           cuMemGetAllocationPropertiesFromHandle(&found, kept));
  auto start = Clock::now();
  say_code("cuMemUnmap", cuMemUnmap(place, kShared));
  say("cuMemUnmap, ms", std::to_string(ms_since(start)));
  CUmemGenericAllocationHandle late{};
  say_code("cuMemRetainAllocationHandle after unmap",
           cuMemRetainAllocationHandle(&late, reinterpret_cast<void*>(place)));
  int descriptor = -1;
  start = Clock::now();
  say_code(
      "cuMemExportToShareableHandle",
      cuMemExportToShareableHandle(&descriptor, kept, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  say("cuMemExportToShareableHandle, ms", std::to_string(ms_since(start)));
  int again = -1;
  say_code("the same once more",
           cuMemExportToShareableHandle(&again, kept, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  if (descriptor >= 0) {
    send_descriptor(sockets[0], descriptor);
  }
  close(sockets[0]);
  int status = 0;
  waitpid(importer, &status, 0);
  say("the importer's end", status);
  say_code("map it again here", cuMemMap(place, kShared, 0, kept, 0));
  say_code("cuMemUnmap again", cuMemUnmap(place, kShared));
  say_code("cuMemRelease", cuMemRelease(kept));
  say_code("cuMemAddressFree", cuMemAddressFree(place, 1ull << 38));
}

// --- markers and times -----------------------------------------------------------------------

void markers(int dies_at, bool registered) {
  set_up();
  const std::string label = std::string(registered ? "registered file" : "cuMemHostAlloc") +
                            ", trap at " + std::to_string(dies_at) + ": ";
  volatile std::uint32_t* word = nullptr;
  CUdeviceptr address = 0;
  if (registered) {
    const int file = memfd_create("markers", 0);
    if (file < 0 || ftruncate(file, 1 << 16) != 0) {
      _exit(5);
    }
    void* at = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(
        cuMemHostRegister(at, 1 << 16, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&address, at, 0));
    word = static_cast<std::uint32_t*>(at);
  } else {
    void* at = nullptr;
    MUST(cuMemHostAlloc(&at, 1 << 16, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&address, at, 0));
    word = static_cast<std::uint32_t*>(at);
  }
  *word = 0;
  std::uint32_t n = 1 << 18;
  CUresult last = CUDA_SUCCESS;
  for (int i = 1; i <= 8; ++i) {
    std::uint32_t value = static_cast<std::uint32_t>(i);
    std::uint32_t dies = i == dies_at ? 1 : 0;
    void* params[] = {&world.buffer, &n, &value, &dies};
    last = launch(world.fill, world.stream, params, n / 256, 256);
    if (last == CUDA_SUCCESS) {
      last = cuStreamWriteValue32(world.stream, address, static_cast<std::uint32_t>(i), 0);
    }
    if (last != CUDA_SUCCESS) {
      say_code(label + "enqueueing stops at " + std::to_string(i), last);
      break;
    }
  }
  const CUresult code = cuStreamSynchronize(world.stream);
  say(label + "code, last launch whose marker is there",
      std::to_string(code) + ", " + std::to_string(*word));
}

enum class Wait { kStream, kContext, kStreamQuery, kEventQuery, kEventSynchronize, kLaunch };

// The code by which a fault in world.stream that was just enqueued is met.
CUresult meet(Wait wait, Clock::time_point start, const char*& way, long long& polls) {
  CUresult code = CUDA_SUCCESS;
  switch (wait) {
    case Wait::kStream:
      way = "cuStreamSynchronize";
      code = cuStreamSynchronize(world.stream);
      break;
    case Wait::kContext:
      way = "cuCtxSynchronize";
      code = cuCtxSynchronize();
      break;
    case Wait::kEventSynchronize:
      way = "cuEventSynchronize";
      code = cuEventRecord(world.event, world.stream);
      code = code == CUDA_SUCCESS ? cuEventSynchronize(world.event) : code;
      break;
    case Wait::kStreamQuery:
      way = "polling cuStreamQuery";
      do {
        code = cuStreamQuery(world.stream);
        ++polls;
      } while (code == CUDA_ERROR_NOT_READY && ms_since(start) < 8000);
      break;
    case Wait::kEventQuery:
      way = "polling cuEventQuery";
      code = cuEventRecord(world.event, world.stream);
      code = code == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : code;
      while (code == CUDA_ERROR_NOT_READY && ms_since(start) < 8000) {
        code = cuEventQuery(world.event);
        ++polls;
      }
      break;
    case Wait::kLaunch:
      way = "launching again and again";
      do {
        code = launch(world.empty, world.stream);
        ++polls;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      } while (code == CUDA_SUCCESS && ms_since(start) < 8000);
      break;
  }
  return code;
}

void time_fault(const std::string& kernel, Wait wait) {
  set_up();
  CUfunction function = nullptr;
  MUST(cuModuleGetFunction(&function, world.module, kernel.c_str()));
  MUST(launch(world.empty, world.stream));
  MUST(cuStreamSynchronize(world.stream));
  void* params[] = {&world.buffer};
  const auto start = Clock::now();
  MUST(launch(function, world.stream, kernel == "k_misaligned" ? params : nullptr));
  long long polls = 0;
  const char* way = "";
  const CUresult code = meet(wait, start, way, polls);
  char text[96];
  std::snprintf(text, sizeof text, "%d after %.2f ms%s%s", code, ms_since(start),
                polls != 0 ? ", calls " : "", polls != 0 ? std::to_string(polls).c_str() : "");
  say(kernel + " by " + way, text);
}

// Whether what another stream has under way at the fault still runs once the fault is reported.
void drained(const std::string& kernel, Wait wait) {
  set_up();
  CUfunction function = nullptr, spin = nullptr;
  MUST(cuModuleGetFunction(&function, world.module, kernel.c_str()));
  MUST(cuModuleGetFunction(&spin, world.module, "k_spin"));
  MUST(launch(world.empty, world.stream));
  MUST(cuStreamSynchronize(world.stream));
  CUstream other = nullptr;
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  void* at = nullptr;
  CUdeviceptr counter = 0;
  MUST(cuMemHostAlloc(&at, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  MUST(cuMemHostGetDevicePointer(&counter, at, 0));
  volatile auto* words = static_cast<std::uint32_t*>(at);
  words[0] = 0;
  words[1] = 0;
  std::uint64_t ns = 1'500'000'000;
  const char* const limit = std::getenv("AFTER_FAULT_COUNT");  // for a device with another clock
  std::uint32_t n = limit != nullptr ? static_cast<std::uint32_t>(std::atoll(limit)) : ~0U;
  void* spin_params[] = {&counter, &ns, &n};
  MUST(launch(spin, other, spin_params));
  const auto start = Clock::now();
  while (words[0] == 0) {
    if (ms_since(start) > 5000) {
      say("SETUP the other kernel did not begin", 0);
      _exit(4);
    }
  }
  void* params[] = {&world.buffer};
  MUST(launch(function, world.stream, kernel == "k_misaligned" ? params : nullptr));
  long long polls = 0;
  const char* way = "";
  const CUresult code = meet(wait, start, way, polls);
  const double met = ms_since(start);
  // What it wrote before the report may still be on its way for a moment; that is not running.
  const std::uint32_t at_report = words[0];
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::uint32_t soon = words[0];
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const std::uint32_t later = words[0];
  char text[160];
  std::snprintf(text, sizeof text,
                "%d after %.0f ms, counted %u, then +%u in 20 ms, +%u in 500 ms, %s", code, met,
                at_report, soon - at_report, later - soon,
                words[1] != 0 ? "it had ended" : "it was stopped");
  say(kernel + " by " + way, text);
}

// --- addresses in another process ------------------------------------------------------------

// Loads modules in a fixed order; `extra` allocates between them what the other process does not.
std::vector<std::uint64_t> addresses_of_modules(bool extra) {
  std::vector<std::uint64_t> out;
  set_up();
  for (int i = 0; i < 12; ++i) {
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    if (extra) {
      MUST(cuMemAlloc(&memory, (i + 1) * (3u << 20)));
      MUST(cuEventCreate(&event, 0));
    }
    const std::string ptx =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 g" +
        std::to_string(i) + "[" + std::to_string(8 << (i * 2 % 20)) +
        "];\n.visible .const .align 4 .u32 c = 6;\n"
        ".visible .entry k() { ret; }\n";
    CUmodule module = nullptr;
    CUdeviceptr address = 0;
    std::size_t size = 0;
    if (i % 2 == 0) {
      MUST(cuModuleLoadData(&module, ptx.c_str()));
      MUST(cuModuleGetGlobal(&address, &size, module, ("g" + std::to_string(i)).c_str()));
    } else {
      CUlibrary library = nullptr;
      MUST(cuLibraryLoadData(&library, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
      MUST(cuLibraryGetGlobal(&address, &size, library, ("g" + std::to_string(i)).c_str()));
      MUST(cuLibraryGetModule(&module, library));
    }
    out.push_back(address);
    MUST(cuModuleGetGlobal(&address, &size, module, "c"));
    out.push_back(address);
    CUfunction function = nullptr;
    MUST(cuModuleGetFunction(&function, module, "k"));
    MUST(launch(function, world.stream));
    MUST(cuStreamSynchronize(world.stream));
  }
  return out;
}

void compare_addresses(bool extra) {
  int ends[2];
  if (pipe(ends) != 0) {
    _exit(5);
  }
  const pid_t other = fork();
  if (other == 0) {
    const auto theirs = addresses_of_modules(extra);
    const ssize_t wrote = write(ends[1], theirs.data(), theirs.size() * 8);
    _exit(wrote < 0 ? 5 : 0);
  }
  close(ends[1]);
  const auto mine = addresses_of_modules(false);
  std::vector<std::uint64_t> theirs(mine.size(), 0);
  std::size_t have = 0;
  while (have < theirs.size() * 8) {
    const ssize_t got =
        read(ends[0], reinterpret_cast<char*>(theirs.data()) + have, theirs.size() * 8 - have);
    if (got <= 0) {
      break;
    }
    have += static_cast<std::size_t>(got);
  }
  waitpid(other, nullptr, 0);
  std::size_t same_globals = 0, same_constants = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    (i % 2 == 0 ? same_globals : same_constants) += mine[i] == theirs[i];
  }
  const std::string how = extra ? "other allocations between them: " : "the same calls: ";
  say(how + "equal addresses of .global, of .const, of each",
      std::to_string(same_globals) + ", " + std::to_string(same_constants) + ", " +
          std::to_string(mine.size() / 2));
  char text[80];
  std::snprintf(text, sizeof text, "%llx %llx, %llx %llx", (unsigned long long)mine[0],
                (unsigned long long)theirs[0], (unsigned long long)mine[22],
                (unsigned long long)theirs[22]);
  say(how + "first and last .global, here and there", text);
}

// --- sections --------------------------------------------------------------------------------

struct Section {
  const char* name;
  bool alone;   // a process for each question
  bool timing;  // no other process beside it
  std::function<void(std::size_t from)> run;
};

const std::vector<Section>& sections() {
  static const std::vector<Section> all{
      {"a-handles-zeroed-faulted", true, false,
       [](std::size_t i) { ask(handle_questions, i, true, 2, true); }},
      {"a-handles-straight-faulted", true, false,
       [](std::size_t i) { ask(handle_questions, i, true, 1, true); }},
      {"a-handles-straight-healthy", true, false,
       [](std::size_t i) { ask(handle_questions, i, false, 1, true); }},
      {"b-handles-zeroed-healthy", true, false,
       [](std::size_t i) { ask(handle_questions, i, false, 2, true); }},
      {"b-sweep-zero-healthy", false, false, [](std::size_t i) { sweep(i, false, 0, 1); }},
      {"b-sweep-zero-faulted", false, false, [](std::size_t i) { sweep(i, true, 0, 1); }},
      {"b-sweep-unknown-zeroed-healthy", false, false,
       [](std::size_t i) { sweep(i, false, kUnknown, 2); }},
      {"b-sweep-unknown-zeroed-faulted", false, false,
       [](std::size_t i) { sweep(i, true, kUnknown, 2); }},
      {"c-sizes-healthy", true, false,
       [](std::size_t i) { ask(size_questions, i, false, 1, true); }},
      {"c-sizes-faulted", false, false,
       [](std::size_t i) { ask(size_questions, i, true, 1, false); }},
      {"d-images-healthy", false, false,
       [](std::size_t) { write_line("?0\timages"), images(false), write_line("!"); }},
      {"d-images-faulted", false, false,
       [](std::size_t) { write_line("?0\timages"), images(true), write_line("!"); }},
      {"e-export", false, false,
       [](std::size_t) { write_line("?0\texport"), export_memory(), write_line("!"); }},
      {"f-markers", true, true,
       [](std::size_t i) {
         write_line("#8");
         write_line("?" + std::to_string(i) + "\tmarkers");
         constexpr int kAt[] = {5, 1, 8, 4};
         markers(kAt[i % 4], i >= 4);
       }},
      {"f-times", true, true,
       [](std::size_t i) {
         static const std::pair<const char*, Wait> kinds[] = {
             {"k_trap", Wait::kStream},        {"k_trap", Wait::kStream},
             {"k_trap", Wait::kContext},       {"k_trap", Wait::kEventSynchronize},
             {"k_trap", Wait::kStreamQuery},   {"k_trap", Wait::kEventQuery},
             {"k_trap", Wait::kLaunch},        {"k_illegal", Wait::kStream},
             {"k_illegal", Wait::kStream},     {"k_illegal", Wait::kStreamQuery},
             {"k_illegal", Wait::kEventQuery}, {"k_misaligned", Wait::kStream},
             {"k_assert", Wait::kStream},      {"k_assert", Wait::kStream},
             {"k_assert", Wait::kStreamQuery}, {"k_assert", Wait::kEventQuery}};
         write_line("#" + std::to_string(std::size(kinds)));
         write_line("?" + std::to_string(i) + "\t" + kinds[i].first);
         time_fault(kinds[i].first, kinds[i].second);
       }},
      {"f-drained", true, false,
       [](std::size_t i) {
         static constexpr Wait kWaits[] = {Wait::kStream,      Wait::kContext,
                                           Wait::kStreamQuery, Wait::kEventQuery,
                                           Wait::kLaunch,      Wait::kEventSynchronize};
         static constexpr const char* kKernels[] = {"k_trap", "k_illegal", "k_misaligned"};
         constexpr std::size_t kEach = std::size(kWaits);
         write_line("#" + std::to_string(kEach * std::size(kKernels)));
         const char* const kernel = kKernels[i / kEach % std::size(kKernels)];
         write_line("?" + std::to_string(i) + "\t" + kernel);
         drained(kernel, kWaits[i % kEach]);
       }},
      {"g-addresses", false, false,
       [](std::size_t i) {
         write_line("#2");
         write_line("?" + std::to_string(i) + "\taddresses");
         compare_addresses(i == 1);
       }},
  };
  return all;
}

// --- the process that drives it --------------------------------------------------------------

std::mutex output_mutex;

void print(const Section& section, const std::string& question, const std::string& answer) {
  const std::lock_guard lock(output_mutex);
  std::printf("%s | %s | %s\n", section.name, question.c_str(), answer.c_str());
  std::fflush(stdout);
}

struct Outcome {
  std::size_t count = 0;  // of the section's questions, 0 if it did not say
  std::size_t last = 0;   // the last one begun
  bool began = false;
  bool finished = false;
};

// Runs the section from a question on in a process of its own.
Outcome run_child(const char* self, const Section& section, std::size_t from) {
  constexpr int kLimitMs = 25'000;
  Outcome outcome;
  outcome.last = from;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return outcome;
  }
  const std::string index = std::to_string(from);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], STDOUT_FILENO);
    execl("/proc/self/exe", self, "--one", section.name, index.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string pending, question;
  bool answered = true;
  const auto take = [&](const std::string& line) {
    const std::size_t tab = line.find('\t');
    switch (line.empty() ? '\0' : line[0]) {
      case '#':
        outcome.count = std::strtoul(line.c_str() + 1, nullptr, 10);
        break;
      case '?':
        outcome.last = std::strtoul(line.c_str() + 1, nullptr, 10);
        outcome.began = true;
        answered = false;
        question = tab != std::string::npos ? line.substr(tab + 1) : "";
        break;
      case '=':
        answered = true;
        if (tab != std::string::npos) {
          print(section, line.substr(1, tab - 1), line.substr(tab + 1));
        }
        break;
      case '!':
        outcome.finished = true;
        break;
      default:  // the driver's own output, e.g. of an assert
        break;
    }
  };
  const auto start = Clock::now();
  bool late = false;
  for (;;) {
    pollfd wait{ends[0], POLLIN, 0};
    const int left = kLimitMs - static_cast<int>(ms_since(start));
    if (left <= 0 || poll(&wait, 1, left) == 0) {
      late = true;
      kill(-child, SIGKILL);
      kill(child, SIGKILL);
      break;
    }
    char data[4096];
    const ssize_t got = read(ends[0], data, sizeof data);
    if (got <= 0) {
      break;
    }
    pending.append(data, static_cast<std::size_t>(got));
    for (std::size_t end; (end = pending.find('\n')) != std::string::npos;) {
      take(pending.substr(0, end));
      pending.erase(0, end + 1);
    }
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const std::string where = question.empty() ? "SETUP" : question;
  if (late) {
    print(section, where, "no answer in " + std::to_string(kLimitMs / 1000) + " s");
  } else if (WIFSIGNALED(status)) {
    print(section, where,
          "signal " + std::to_string(WTERMSIG(status)) + (answered ? " at exit" : ""));
  } else if (WEXITSTATUS(status) != 0) {
    print(section, where, "exit " + std::to_string(WEXITSTATUS(status)));
  }
  return outcome;
}

void run_section(const char* self, const Section& section, unsigned workers) {
  const Outcome first = run_child(self, section, 0);
  if (!first.began || first.finished) {
    return;
  }
  if (!section.alone) {
    for (std::size_t next = first.last + 1; next < first.count;) {
      const Outcome outcome = run_child(self, section, next);
      if (!outcome.began || outcome.finished) {
        return;
      }
      next = std::max(outcome.last, next) + 1;
    }
    return;
  }
  std::atomic<std::size_t> next{1};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < (section.timing ? 1 : workers); ++i) {
    threads.emplace_back([&] {
      for (std::size_t at; (at = next.fetch_add(1)) < first.count;) {
        run_child(self, section, at);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--one") == 0) {
    setpgid(0, 0);
    for (const Section& section : sections()) {
      if (std::strcmp(section.name, argv[2]) == 0) {
        section.run(std::strtoul(argv[3], nullptr, 10));
        // Tearing the driver down is not what is asked about, but for a crash in it.
        return 0;
      }
    }
    return 2;
  }
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Section& section : sections()) {
      std::printf("%s\n", section.name);
    }
    return 0;
  }
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length > 0 && std::getenv("CUDA_INJECTION64_PATH") == nullptr) {
    self[length] = '\0';
    const std::string path(self);
    setenv("CUDA_INJECTION64_PATH",
           (path.substr(0, path.rfind('/') + 1) + "after_fault_callbacks.so").c_str(), 1);
  }
  const char* jobs = std::getenv("AFTER_FAULT_JOBS");
  const unsigned workers = jobs != nullptr ? std::max(1, std::atoi(jobs)) : 6;
  // Sections without timing run side by side: each has long waits for the driver.
  std::vector<std::thread> beside;
  std::vector<const Section*> chosen;
  for (const Section& section : sections()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) {
      wanted |= std::strncmp(section.name, argv[i], std::strlen(argv[i])) == 0;
    }
    if (wanted) {
      chosen.push_back(&section);
    }
  }
  for (const Section* section : chosen) {
    if (section->timing) {
      run_section(argv[0], *section, 1);
    }
  }
  for (const Section* section : chosen) {
    if (!section->timing && !section->alone) {
      beside.emplace_back([=] { run_section(argv[0], *section, 1); });
    }
  }
  for (const Section* section : chosen) {
    if (!section->timing && section->alone) {
      run_section(argv[0], *section, workers);
    }
  }
  for (auto& thread : beside) {
    thread.join();
  }
  return 0;
}
