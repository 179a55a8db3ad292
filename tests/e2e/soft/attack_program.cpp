// SPDX-License-Identifier: Apache-2.0
//
// Ordinary but unpleasant CUDA programs, one a mode: what programs do around a fault, or at odds
// with what an agent in their process may have assumed. Each prints what it met as `key=value`
// lines and ends with 0 when its own results are right, 1 when they are wrong, 2 when a call failed
// that should not have.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// clang-format off
#define FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuCtxCreate_v2) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuMemAlloc_v2) X(cuMemFree_v2) \
  X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) \
  X(cuMemAllocHost_v2) X(cuMemsetD32Async) X(cuLaunchKernel) X(cuLaunchKernel_ptsz) \
  X(cuLaunchKernelEx) X(cuLaunchCooperativeKernel) X(cuLaunchHostFunc) X(cuStreamCreate) \
  X(cuStreamSynchronize) X(cuStreamQuery) X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) \
  X(cuMemCreate) X(cuMemAddressReserve) X(cuMemMap) X(cuMemSetAccess) \
  X(cuMemUnmap) X(cuMemRelease) X(cuMemAddressFree) \
  X(cuMemGetAllocationGranularity) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) \
  X(cuGraphInstantiateWithFlags) X(cuGraphLaunch)
// clang-format on
using CtxCreate = CUresult (*)(CUcontext*, unsigned, CUdevice);
#define X(name) void* name##_p;
FUNCTIONS(X)
#undef X
#define CU(name) (reinterpret_cast<decltype(&::name)>(name##_p))

void load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(77);
  }
#define X(name) name##_p = dlsym(library, #name);
  FUNCTIONS(X)
#undef X
}

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) {
    std::printf("failed=%s:%d\n", what, static_cast<int>(code));
    std::fflush(stdout);
    std::_Exit(2);
  }
}
#define MUST(call) must(call, #call)

// twice: out[i] = 2 * in[i]; add_to: out[i] += in[i].
const char kHead[] = ".version 7.0\n.target sm_70\n.address_size 64\n";
std::string kernel(const char* name, bool reads_output) {
  return std::string(".visible .entry ") + name +
         R"((.param .u64 out, .param .u64 in)
{
  .reg .b64 %a<8>;
  .reg .b32 %r<8>;
  ld.param.u64 %a1, [out];
  ld.param.u64 %a2, [in];
  cvta.to.global.u64 %a1, %a1;
  cvta.to.global.u64 %a2, %a2;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r1, %r1, %r2, %r3;
  mul.wide.u32 %a3, %r1, 4;
  add.u64 %a4, %a1, %a3;
  add.u64 %a5, %a2, %a3;
  ld.global.u32 %r4, [%a5];
)" + (reads_output ? "  ld.global.u32 %r5, [%a4];\n" : "  mov.u32 %r5, %r4;\n") +
         R"(  add.u32 %r4, %r4, %r5;
  st.global.u32 [%a4], %r4;
  ret;
}
)";
}

constexpr unsigned kThreads = 64;
constexpr unsigned kCount = 1024;
constexpr std::size_t kBytes = kCount * 4;
CUcontext context;
CUfunction twice;
CUfunction add_to;

void start() {
  load();
  MUST(CU(cuInit)(0));
  CUdevice device = 0;
  MUST(CU(cuDeviceGet)(&device, 0));
  must(reinterpret_cast<CtxCreate>(cuCtxCreate_v2_p)(&context, 0, device), "cuCtxCreate");
  CUmodule module = nullptr;
  static const std::string text = kHead + kernel("twice", false) + kernel("add_to", true);
  MUST(CU(cuModuleLoadData)(&module, text.c_str()));
  MUST(CU(cuModuleGetFunction)(&twice, module, "twice"));
  MUST(CU(cuModuleGetFunction)(&add_to, module, "add_to"));
}

std::vector<unsigned> numbers(unsigned factor = 1) {
  std::vector<unsigned> v(kCount);
  for (unsigned i = 0; i < kCount; ++i) {
    v[i] = factor * (i * 2654435761U + 1);
  }
  return v;
}

CUdeviceptr buffer(const std::vector<unsigned>& content) {
  CUdeviceptr p = 0;
  MUST(CU(cuMemAlloc_v2)(&p, kBytes));
  MUST(CU(cuMemcpyHtoD_v2)(p, content.data(), kBytes));
  MUST(CU(cuCtxSynchronize)());  // streams that do not block do not wait for it
  return p;
}

CUresult launch(CUfunction f, CUdeviceptr out, CUdeviceptr in, CUstream stream = nullptr) {
  void* arguments[] = {&out, &in};
  return CU(cuLaunchKernel)(f, kCount / kThreads, 1, 1, kThreads, 1, 1, 0, stream, arguments,
                            nullptr);
}

bool holds(CUdeviceptr p, const std::vector<unsigned>& wanted) {
  std::vector<unsigned> got(kCount);
  MUST(CU(cuMemcpyDtoH_v2)(got.data(), p, kBytes));
  return got == wanted;
}

int verdict(bool good) {
  std::printf("good=%d\n", good ? 1 : 0);
  return good ? 0 : 1;
}

// One thread launches a kernel that is hit again and again; another copies its output all the
// while, which never changes.
int threads() {
  start();
  const CUdeviceptr in = buffer(numbers());
  const CUdeviceptr out = buffer(numbers(2));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    MUST(CU(cuCtxSetCurrent)(context));
    CUstream stream = nullptr;
    MUST(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr copy = buffer(numbers());
    const CUdeviceptr sum = buffer(std::vector<unsigned>(kCount));
    std::vector<unsigned> got(kCount);
    while (!stop) {
      MUST(CU(cuMemcpyDtoDAsync_v2)(copy, out, kBytes, stream));
      MUST(launch(twice, sum, copy, stream));
      MUST(CU(cuMemcpyDtoHAsync_v2)(got.data(), sum, kBytes, stream));
      MUST(CU(cuStreamSynchronize)(stream));
      wrong += got != numbers(4);
    }
  });
  CUstream stream = nullptr;
  MUST(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 40; ++i) {
    MUST(launch(twice, out, in, stream));
  }
  MUST(CU(cuStreamSynchronize)(stream));
  stop = true;
  reader.join();
  std::printf("wrong=%d\n", wrong.load());
  return verdict(wrong == 0 && holds(out, numbers(2)));
}

// Every form of launch, every kind of stream.
int forms() {
  start();
  const CUdeviceptr in = buffer(numbers());
  CUstream blocking = nullptr;
  CUstream free_stream = nullptr;
  MUST(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  MUST(CU(cuStreamCreate)(&free_stream, CU_STREAM_NON_BLOCKING));
  bool good = true;
  for (CUstream stream :
       {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, blocking, free_stream}) {
    for (int form = 0; form < 5; ++form) {
      CUdeviceptr out = buffer(std::vector<unsigned>(kCount));
      CUdeviceptr from = in;
      void* arguments[] = {&out, &from};
      CUdeviceptr packed[] = {out, from};
      std::size_t size = sizeof packed;
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, packed,
                       CU_LAUNCH_PARAM_END};
      constexpr unsigned kBlocks = kCount / kThreads;
      switch (form) {
        case 0:
          MUST(launch(twice, out, in, stream));
          break;
        case 1:
          MUST(CU(cuLaunchKernel)(twice, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, nullptr, extra));
          break;
        case 2:
          MUST(CU(cuLaunchCooperativeKernel)(twice, kBlocks, 1, 1, kThreads, 1, 1, 0, stream,
                                             arguments));
          break;
        case 3: {
          CUlaunchConfig config{};
          config.gridDimX = kBlocks;
          config.gridDimY = config.gridDimZ = 1;
          config.blockDimX = kThreads;
          config.blockDimY = config.blockDimZ = 1;
          config.hStream = stream;
          MUST(CU(cuLaunchKernelEx)(&config, twice, arguments, nullptr));
          good &= config.gridDimX == kBlocks && config.hStream == stream;
          break;
        }
        default:
          MUST(reinterpret_cast<decltype(&::cuLaunchKernel)>(cuLaunchKernel_ptsz_p)(
              twice, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr));
          break;
      }
      MUST(CU(cuCtxSynchronize)());
      good &= holds(out, numbers(2));
      MUST(CU(cuMemFree_v2)(out));
    }
  }
  return verdict(good);
}

void CUDA_CB raise_flag(void* flag) {
  *static_cast<std::atomic<int>*>(flag) = 1;
}

// Goes on after the error of a kernel that cannot be replayed: the code comes once, by the first
// call that looks, and what was enqueued in between was not done.
int ignores(const std::string& looks_by) {
  start();
  const CUdeviceptr in = buffer(numbers());
  const CUdeviceptr out = buffer(numbers());
  const CUdeviceptr other = buffer(numbers());
  const CUdeviceptr freed = buffer(numbers());
  void* pinned = nullptr;
  MUST(CU(cuMemAllocHost_v2)(&pinned, kBytes));
  std::memset(pinned, 0, kBytes);
  CUevent event = nullptr;
  MUST(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  std::atomic<int> called{0};
  std::printf("launch=%d\n", launch(add_to, out, in));
  MUST(CU(cuMemcpyDtoHAsync_v2)(pinned, out, kBytes, nullptr));
  MUST(CU(cuMemsetD32Async)(other, 7, kCount, nullptr));
  MUST(CU(cuLaunchHostFunc)(nullptr, raise_flag, &called));
  MUST(CU(cuEventRecord)(event, nullptr));
  const auto look = [&] {
    if (looks_by == "stream-query" || looks_by == "event-query") {
      CUresult code = CUDA_ERROR_NOT_READY;
      while (code == CUDA_ERROR_NOT_READY) {
        code = looks_by == "stream-query" ? CU(cuStreamQuery)(nullptr) : CU(cuEventQuery)(event);
      }
      return code;
    }
    unsigned word = 0;
    return looks_by == "copy"   ? CU(cuMemcpyDtoH_v2)(&word, in, 4)
           : looks_by == "free" ? CU(cuMemFree_v2)(freed)
                                : CU(cuCtxSynchronize)();
  };
  std::printf("first=%d\n", look());
  std::printf("second=%d\n", looks_by == "free" ? CU(cuCtxSynchronize)() : look());
  std::printf("called=%d\n", called.load());
  bool untouched = true;
  for (unsigned i = 0; i < kCount; ++i) {
    untouched &= static_cast<unsigned*>(pinned)[i] == 0;
  }
  std::printf("copied=%d\n", untouched ? 0 : 1);
  return verdict(holds(other, numbers()) && holds(in, numbers()));
}

// One name, one handle perhaps, another kernel.
int reload() {
  load();
  MUST(CU(cuInit)(0));
  CUdevice device = 0;
  MUST(CU(cuDeviceGet)(&device, 0));
  must(reinterpret_cast<CtxCreate>(cuCtxCreate_v2_p)(&context, 0, device), "cuCtxCreate");
  const CUdeviceptr in = buffer(numbers());
  bool good = true;
  static char text[8192];  // used again for the next one, as some programs do
  for (int round = 0; round < 4; ++round) {
    const bool adds = round % 2 == 1;
    std::snprintf(text, sizeof text, "%s%s", kHead, kernel("same_name", adds).c_str());
    CUmodule module = nullptr;
    CUfunction f = nullptr;
    MUST(CU(cuModuleLoadData)(&module, text));
    std::memset(text, '\n', sizeof text - 1);
    MUST(CU(cuModuleGetFunction)(&f, module, "same_name"));
    const CUdeviceptr out = buffer(numbers());
    MUST(launch(f, out, in));
    const CUresult code = CU(cuCtxSynchronize)();
    std::printf("round%d=%d\n", round, code);
    good &= code != CUDA_SUCCESS || holds(out, numbers(2));
    MUST(CU(cuModuleUnload)(module));
    MUST(CU(cuMemFree_v2)(out));
  }
  return verdict(good);
}

// One memory, two addresses: the kernel reads by one what it writes by the other.
int alias() {
  start();
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  std::size_t size = 0;
  MUST(CU(cuMemGetAllocationGranularity)(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle handle = 0;
  MUST(CU(cuMemCreate)(&handle, size, &prop, 0));
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at[2] = {};
  for (CUdeviceptr& address : at) {
    MUST(CU(cuMemAddressReserve)(&address, size, 0, 0, 0));
    MUST(CU(cuMemMap)(address, size, 0, handle, 0));
    MUST(CU(cuMemSetAccess)(address, size, &access, 1));
  }
  MUST(CU(cuMemcpyHtoD_v2)(at[0], numbers().data(), kBytes));
  MUST(launch(twice, at[1], at[0]));
  const CUresult code = CU(cuCtxSynchronize)();
  std::printf("code=%d\n", code);
  return verdict(code != CUDA_SUCCESS || holds(at[0], numbers(2)));
}

struct Virtual {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  std::size_t size = 0;
};

Virtual make_virtual() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  Virtual v;
  MUST(CU(cuMemGetAllocationGranularity)(&v.size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  MUST(CU(cuMemCreate)(&v.handle, v.size, &prop, 0));
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(CU(cuMemAddressReserve)(&v.address, v.size, 0, 0, 0));
  MUST(CU(cuMemMap)(v.address, v.size, 0, v.handle, 0));
  MUST(CU(cuMemSetAccess)(v.address, v.size, &access, 1));
  return v;
}

void unmake(const Virtual& v) {
  MUST(CU(cuMemUnmap)(v.address, v.size));
  MUST(CU(cuMemRelease)(v.handle));
  MUST(CU(cuMemAddressFree)(v.address, v.size));
}

// Memory that the program maps itself, before and after a fault.
int mapped() {
  start();
  const Virtual in = make_virtual();
  const Virtual out = make_virtual();
  MUST(CU(cuMemcpyHtoD_v2)(in.address, numbers().data(), kBytes));
  MUST(launch(twice, out.address, in.address));
  const CUresult code = CU(cuCtxSynchronize)();
  bool good = code != CUDA_SUCCESS || holds(out.address, numbers(2));
  for (int i = 0; i < 3; ++i) {
    const Virtual next = make_virtual();
    MUST(launch(twice, next.address, out.address));
    MUST(CU(cuCtxSynchronize)());
    good = good && holds(next.address, numbers(4));
    unmake(next);
  }
  unmake(in);
  const Virtual again = make_virtual();
  MUST(launch(twice, again.address, out.address));
  good = good && holds(again.address, numbers(4));
  unmake(again);
  unmake(out);
  return verdict(good);
}

// Closes every descriptor but the standard ones, and opens its own on the same numbers.
int close_all() {
  start();
  const CUdeviceptr in = buffer(numbers());
  const CUdeviceptr out = buffer(numbers());
  MUST(launch(twice, out, in));
  MUST(CU(cuCtxSynchronize)());
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
    return 2;
  }
  std::vector<int> mine{pair[0]};
  for (int fd = pair[1] + 1; fd < 1024; ++fd) {
    if (::dup2(pair[0], fd) == fd) {
      mine.push_back(fd);
    }
  }
  std::printf("opened=%d\n", static_cast<int>(mine.size()));
  for (int i = 0; i < 3; ++i) {
    MUST(launch(twice, out, in));
    MUST(CU(cuCtxSynchronize)());
  }
  bool all_open = true;
  for (const int fd : mine) {
    all_open &= ::fcntl(fd, F_GETFD) >= 0;
  }
  char byte = 0;
  const bool written = ::recv(pair[1], &byte, 1, MSG_DONTWAIT) > 0;
  std::printf("open=%d\nwritten=%d\n", all_open, written);
  return verdict(all_open && !written && holds(out, numbers(2)));
}

// An object that works with CUDA when what other libraries keep for the thread is gone already.
struct Late {
  CUdeviceptr in = 0;
  CUdeviceptr out = 0;
  bool* good = nullptr;
  ~Late() {
    for (int i = 0; i < 20; ++i) {
      MUST(launch(twice, out, in));
      const std::vector<char> reuse(1 << 16, 'x');  // takes what was freed before
      *good &= holds(out, numbers(2)) && reuse[99] == 'x';
    }
  }
};

int late() {
  start();
  bool good = true;
  std::thread([&] {
    MUST(CU(cuCtxSetCurrent)(context));
    thread_local Late object;  // made before the thread's first work, so destroyed after
    object.good = &good;
    object.in = buffer(numbers());
    object.out = buffer(numbers());
    MUST(launch(twice, object.out, object.in));
  }).join();
  return verdict(good);
}

// While the error of a kernel is still to be met, a copy is recorded into a graph, which is
// launched when all is over.
int capture() {
  start();
  const CUdeviceptr in = buffer(numbers());
  const CUdeviceptr out = buffer(numbers());
  const CUdeviceptr copy = buffer(std::vector<unsigned>(kCount));
  CUstream stream = nullptr;
  MUST(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  MUST(launch(add_to, out, in, stream));
  const CUresult begun = CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (begun == CUDA_ERROR_NOT_SUPPORTED) {
    return 77;
  }
  MUST(begun);
  const CUresult recorded = CU(cuMemcpyDtoDAsync_v2)(copy, in, kBytes, stream);
  CUgraph graph = nullptr;
  MUST(CU(cuStreamEndCapture)(stream, &graph));
  const CUresult first = CU(cuStreamSynchronize)(stream);
  std::printf("recorded=%d\nfirst=%d\n", recorded, first);
  CUgraphExec exec = nullptr;
  MUST(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  MUST(CU(cuGraphLaunch)(exec, stream));
  MUST(CU(cuStreamSynchronize)(stream));
  return verdict(holds(copy, numbers()) && (recorded != CUDA_SUCCESS || first != CUDA_SUCCESS));
}

// Loses its supervisor.
int orphan() {
  start();
  const CUdeviceptr in = buffer(numbers());
  const CUdeviceptr out = buffer(numbers());
  MUST(launch(twice, out, in));
  ::kill(::getppid(), SIGKILL);
  bool good = true;
  for (int i = 0; i < 3; ++i) {
    MUST(launch(twice, out, in));
    good &= holds(out, numbers(2));
  }
  return verdict(good);
}

int ends(const std::string& how) {
  start();
  const CUdeviceptr in = buffer(numbers());
  const CUdeviceptr out = buffer(numbers());
  for (int i = 0; i < 3; ++i) {
    MUST(launch(twice, out, in));
  }
  const bool good = holds(out, numbers(2));
  std::printf("good=%d\n", good ? 1 : 0);
  std::fflush(stdout);
  if (how == "_exit") {
    ::_exit(23);
  } else if (how == "abort") {
    std::abort();
  } else if (how == "segv") {
    ::raise(SIGSEGV);
  } else if (how == "fork" || how == "exec") {
    const pid_t child = ::fork();
    if (child == 0) {
      if (how == "exec") {
        ::execl("/proc/self/exe", "attack_program", "forms", nullptr);
      }
      ::_exit(launch(twice, out, in) == CUDA_SUCCESS ? 5 : 4);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::printf("child=%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    MUST(launch(twice, out, in));
    return verdict(holds(out, numbers(2)));
  }
  return 9;
}

// A bug of the program's own: a kernel runs far past its buffers.
int stray() {
  start();
  const CUdeviceptr in = buffer(numbers(1));
  const CUdeviceptr out = buffer(std::vector<unsigned>(kCount));
  void* arguments[] = {const_cast<CUdeviceptr*>(&out), const_cast<CUdeviceptr*>(&in)};
  MUST(CU(cuLaunchKernel)(twice, 1 << 20, 1, 1, kThreads, 1, 1, 0, nullptr, arguments, nullptr));
  std::printf("first=%d\n", static_cast<int>(CU(cuCtxSynchronize)()));
  std::printf("second=%d\n", static_cast<int>(CU(cuCtxSynchronize)()));
  return 0;
}

}  // namespace

// Launches that write half of their output's allocation; the third overwrites what the first has
// read. Whatever is done again, and however often, the other halves are the program's.
int halves() {
  start();
  const std::vector<unsigned> before[] = {numbers(1), numbers(3), numbers(5)};
  const CUdeviceptr a = buffer(before[0]), b = buffer(before[1]), c = buffer(before[2]);
  CUstream stream = nullptr;
  MUST(CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT));
  const std::pair<CUdeviceptr, CUdeviceptr> steps[] = {{b, a}, {c, b}, {a, c}};
  for (auto [out, in] : steps) {
    void* arguments[] = {&out, &in};
    MUST(CU(cuLaunchKernel)(twice, kCount / kThreads / 2, 1, 1, kThreads, 1, 1, 0, stream,
                            arguments, nullptr));
  }
  MUST(CU(cuStreamSynchronize)(stream));
  std::vector<unsigned> wanted[] = {before[0], before[1], before[2]};
  for (unsigned i = 0; i < kCount / 2; ++i) {
    wanted[1][i] = 2 * before[0][i];
    wanted[2][i] = 4 * before[0][i];
    wanted[0][i] = 8 * before[0][i];
  }
  return verdict(holds(a, wanted[0]) && holds(b, wanted[1]) && holds(c, wanted[2]));
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string option = argc > 2 ? argv[2] : "";
  if (mode == "threads") {
    return threads();
  } else if (mode == "forms") {
    return forms();
  } else if (mode == "ignores") {
    return ignores(option);
  } else if (mode == "reload") {
    return reload();
  } else if (mode == "alias") {
    return alias();
  } else if (mode == "close-all") {
    return close_all();
  } else if (mode == "capture") {
    return capture();
  } else if (mode == "orphan") {
    return orphan();
  } else if (mode == "late") {
    return late();
  } else if (mode == "stray") {
    return stray();
  } else if (mode == "ends") {
    return ends(option);
  } else if (mode == "halves") {
    return halves();
  } else if (mode == "mapped") {
    return mapped();
  }
  std::fprintf(stderr, "usage: attack_program MODE [OPTION]\n");
  return 64;
}
