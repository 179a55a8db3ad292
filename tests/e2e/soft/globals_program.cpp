// SPDX-License-Identifier: Apache-2.0
//
// A program whose results hang on variables of its modules, changed in every way that there is: by
// kernels by name, through an address that the host passes, through one that no analysis follows,
// in halves on two streams, by copies (linear and 2D) and by memsets. Prints each round's result.
// Ends with 3 and the code if a call fails.
//
// globals_program moved: a module that is gone when the fault comes makes the others lie where a
// second process would not put them.
// globals_program overlap: after a takeover, two slow launches on one stream and a third on
// another, all into one buffer, with the standby killed before the third. globals_program kill N:
// ends the session's standby, if there is one, before the Nth launch.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace {

// clang-format off
#define FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) \
  X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuLibraryGetGlobal) X(cuMemAlloc_v2) \
  X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpy2D_v2) X(cuMemsetD32_v2) X(cuMemsetD8Async) \
  X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamSynchronize)
// clang-format on
#define X(name) decltype(&::name) p_##name;
FUNCTIONS(X)
#undef X

void load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(77);
  }
#define X(name) p_##name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));
  FUNCTIONS(X)
#undef X
}

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) {
    std::printf("failed=%s:%d\n", what, static_cast<int>(code));
    std::fflush(stdout);
    std::_Exit(3);
  }
}
#define MUST(call) must(p_##call, #call)

constexpr unsigned kN = 64;

// `put`, `fill` and `part` may be executed again; `mystery` writes through an address that it loads
// and to `hidden`.
const char kModule[] = R"(.version 7.0
.target sm_70
.address_size 64
.global .align 4 .u32 state[64];
.global .align 4 .u32 hidden[64];
.global .align 4 .u32 halves[64];
.global .align 4 .u32 filled[64] = {7, 7, 7};
.global .align 4 .u32 target[64];
.global .align 4 .u32 untouched[4] = {11, 22, 33, 44};
.const .align 4 .u32 factors[64] = {1, 2, 3};
.visible .entry put(.param .u32 v)
{
  .reg .b32 %r<6>;
  .reg .b64 %a<4>;
  ld.param.u32 %r1, [v];
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r1, %r2, 5;
  mul.wide.u32 %a1, %r2, 4;
  mov.u64 %a2, state;
  add.u64 %a3, %a2, %a1;
  st.global.u32 [%a3], %r3;
  ret;
}
.visible .entry part(.param .u32 v, .param .u32 from)
{
  .reg .b32 %r<6>;
  .reg .b64 %a<4>;
  ld.param.u32 %r1, [v];
  ld.param.u32 %r4, [from];
  mov.u32 %r2, %tid.x;
  add.u32 %r2, %r2, %r4;
  mad.lo.u32 %r3, %r1, %r2, 9;
  mul.wide.u32 %a1, %r2, 4;
  mov.u64 %a2, halves;
  add.u64 %a3, %a2, %a1;
  st.global.u32 [%a3], %r3;
  ret;
}
.visible .entry slow(.param .u64 to, .param .u32 v, .param .u32 from, .param .u32 turns)
{
  .reg .b32 %r<8>;
  .reg .b64 %a<4>;
  .reg .pred %p;
  ld.param.u64 %a2, [to];
  ld.param.u32 %r1, [v];
  ld.param.u32 %r4, [from];
  ld.param.u32 %r5, [turns];
  cvta.to.global.u64 %a2, %a2;
  mov.u32 %r6, 0;
AGAIN:
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p, %r6, %r5;
  @%p bra AGAIN;
  mov.u32 %r2, %tid.x;
  add.u32 %r2, %r2, %r4;
  mad.lo.u32 %r3, %r1, %r2, %r6;
  mul.wide.u32 %a1, %r2, 4;
  add.u64 %a3, %a2, %a1;
  st.global.u32 [%a3], %r3;
  ret;
}
.visible .entry fill(.param .u64 to, .param .u32 v)
{
  .reg .b32 %r<6>;
  .reg .b64 %a<4>;
  ld.param.u64 %a2, [to];
  ld.param.u32 %r1, [v];
  cvta.to.global.u64 %a2, %a2;
  mov.u32 %r2, %tid.x;
  xor.b32 %r3, %r1, %r2;
  mul.wide.u32 %a1, %r2, 4;
  add.u64 %a3, %a2, %a1;
  st.global.u32 [%a3], %r3;
  ret;
}
.visible .entry mystery(.param .u64 table, .param .u32 v)
{
  .reg .b32 %r<6>;
  .reg .b64 %a<6>;
  ld.param.u64 %a2, [table];
  ld.param.u32 %r1, [v];
  cvta.to.global.u64 %a2, %a2;
  ld.global.u64 %a4, [%a2];
  cvta.to.global.u64 %a4, %a4;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %a1, %r2, 4;
  add.u64 %a3, %a4, %a1;
  add.u32 %r3, %r1, %r2;
  st.global.u32 [%a3], %r3;
  mov.u64 %a2, hidden;
  add.u64 %a3, %a2, %a1;
  ld.global.u32 %r4, [%a3];
  add.u32 %r4, %r4, %r3;
  st.global.u32 [%a3], %r4;
  ret;
}
.visible .entry gather(.param .u64 out)
{
  .reg .b32 %r<12>;
  .reg .b64 %a<8>;
  ld.param.u64 %a1, [out];
  cvta.to.global.u64 %a1, %a1;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %a2, %r1, 4;
  mov.u64 %a3, state;
  add.u64 %a3, %a3, %a2;
  ld.global.u32 %r2, [%a3];
  mov.u64 %a3, factors;
  add.u64 %a3, %a3, %a2;
  ld.const.u32 %r3, [%a3];
  mul.lo.u32 %r2, %r2, %r3;
  mov.u64 %a3, filled;
  add.u64 %a3, %a3, %a2;
  ld.global.u32 %r3, [%a3];
  mad.lo.u32 %r2, %r2, 3, %r3;
  mov.u64 %a3, target;
  add.u64 %a3, %a3, %a2;
  ld.global.u32 %r3, [%a3];
  mad.lo.u32 %r2, %r2, 3, %r3;
  mov.u64 %a3, hidden;
  add.u64 %a3, %a3, %a2;
  ld.global.u32 %r3, [%a3];
  mad.lo.u32 %r2, %r2, 3, %r3;
  mov.u64 %a3, halves;
  add.u64 %a3, %a3, %a2;
  ld.global.u32 %r3, [%a3];
  mad.lo.u32 %r2, %r2, 3, %r3;
  and.b32 %r4, %r1, 3;
  mul.wide.u32 %a4, %r4, 4;
  mov.u64 %a3, untouched;
  add.u64 %a3, %a3, %a4;
  ld.global.u32 %r3, [%a3];
  mad.lo.u32 %r2, %r2, 3, %r3;
  add.u64 %a3, %a1, %a2;
  st.global.u32 [%a3], %r2;
  ret;
}
)";
const char kLibrary[] = R"(.version 7.0
.target sm_70
.address_size 64
.global .align 4 .u32 sum[64] = {100};
.visible .entry keep(.param .u64 from)
{
  .reg .b32 %r<6>;
  .reg .b64 %a<6>;
  ld.param.u64 %a2, [from];
  cvta.to.global.u64 %a2, %a2;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %a1, %r2, 4;
  add.u64 %a3, %a2, %a1;
  ld.global.u32 %r3, [%a3];
  mov.u64 %a2, sum;
  add.u64 %a3, %a2, %a1;
  st.global.u32 [%a3], %r3;
  ret;
}
.visible .entry give(.param .u64 to)
{
  .reg .b32 %r<6>;
  .reg .b64 %a<6>;
  ld.param.u64 %a2, [to];
  cvta.to.global.u64 %a2, %a2;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %a1, %r2, 4;
  mov.u64 %a3, sum;
  add.u64 %a3, %a3, %a1;
  ld.global.u32 %r3, [%a3];
  add.u64 %a3, %a2, %a1;
  st.global.u32 [%a3], %r3;
  ret;
}
)";

CUfunction function(CUmodule module, const char* name) {
  CUfunction f = nullptr;
  MUST(cuModuleGetFunction(&f, module, name));
  return f;
}

int launches_left = 0;

// The standby is a child of what started this program.
void kill_standby() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const int pid = std::atoi(entry.path().filename().c_str());
    std::string line;
    std::ifstream stat(entry.path() / "stat");
    if (pid <= 0 || !std::getline(stat, line) || line.rfind(')') == std::string::npos) {
      continue;
    }
    char state = 0;
    int parent = 0;
    std::sscanf(line.c_str() + line.rfind(')') + 1, " %c %d", &state, &parent);
    const auto program = std::filesystem::read_symlink(entry.path() / "exe", error);
    if (parent == getppid() && program.filename() == "gpurecover-standby") {
      kill(pid, SIGKILL);
    }
  }
}

void launch(CUfunction f, CUstream stream, std::vector<void*> arguments, unsigned threads = kN) {
  if (launches_left > 0 && --launches_left == 0) {
    kill_standby();
  }
  must(p_cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, 0, stream, arguments.data(), nullptr), "launch");
}

CUdeviceptr variable(CUmodule module, const char* name) {
  CUdeviceptr address = 0;
  std::size_t size = 0;
  MUST(cuModuleGetGlobal_v2(&address, &size, module, name));
  return address;
}

void say(const char* what, unsigned round, CUdeviceptr from) {
  std::vector<std::uint32_t> host(kN);
  MUST(cuMemcpyDtoH_v2(host.data(), from, kN * 4));
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::uint32_t value : host) {
    hash = (hash ^ value) * 1099511628211ULL;
  }
  std::printf("%s%u=%016llx\n", what, round, static_cast<unsigned long long>(hash));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "kill" && argc > 2) {
    launches_left = std::atoi(argv[2]);
  }
  load();
  CUdevice device = 0;
  CUcontext context = nullptr;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  CUmodule module = nullptr;
  if (mode == "moved") {
    // A module that is not there any more when the fault comes.
    CUmodule before = nullptr;
    MUST(cuModuleLoadData(&before, kLibrary));
    MUST(cuModuleLoadData(&module, kModule));
    MUST(cuModuleUnload(before));
  } else {
    MUST(cuModuleLoadData(&module, kModule));
  }
  CUlibrary library = nullptr;
  CUkernel keep = nullptr;
  CUkernel give = nullptr;
  MUST(cuLibraryLoadData(&library, kLibrary, nullptr, nullptr, 0, nullptr, nullptr, 0));
  MUST(cuLibraryGetKernel(&keep, library, "keep"));
  MUST(cuLibraryGetKernel(&give, library, "give"));
  CUfunction const put = function(module, "put");
  CUfunction const part = function(module, "part");
  CUfunction const fill = function(module, "fill");
  CUfunction const mystery = function(module, "mystery");
  CUfunction const gather = function(module, "gather");
  CUdeviceptr factors = variable(module, "factors");
  CUdeviceptr filled = variable(module, "filled");
  CUdeviceptr target = variable(module, "target");

  CUdeviceptr out = 0;
  CUdeviceptr other = 0;
  CUdeviceptr table = 0;
  MUST(cuMemAlloc_v2(&out, kN * 4));
  MUST(cuMemAlloc_v2(&other, kN * 4));
  MUST(cuMemAlloc_v2(&table, 8));
  MUST(cuMemsetD32_v2(other, 0, kN));
  MUST(cuMemcpyHtoD_v2(table, &other, 8));
  CUstream one = nullptr;
  CUstream two = nullptr;
  MUST(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));

  if (mode == "overlap") {
    CUfunction const slow = function(module, "slow");
    std::uint32_t value = 3;
    std::uint32_t low = 0;
    std::uint32_t high = kN / 2;
    std::uint32_t many = 600000;
    launch(put, one, {&value});
    MUST(cuStreamSynchronize(one));
    launch(slow, one, {&other, &value, &low, &many}, kN / 2);
    launch(slow, one, {&out, &value, &low, &many}, kN / 2);
    launches_left = 1;
    launch(slow, two, {&out, &value, &high, &many}, kN / 2);
    MUST(cuStreamSynchronize(one));
    MUST(cuStreamSynchronize(two));
    say("out", 0, out);
    say("other", 0, other);
    return 0;
  }

  for (unsigned round = 1; round <= 3; ++round) {
    std::vector<std::uint32_t> host(kN);
    std::iota(host.begin(), host.end(), round * 1000);
    std::uint32_t value = round * 17;
    std::uint32_t low = 0;
    std::uint32_t high = kN / 2;
    if (round == 1) {
      MUST(cuMemcpyHtoD_v2(factors, host.data(), kN * 4));
    } else if (round == 2) {
      // A column of two of the 16 words in each of 4 rows.
      CUDA_MEMCPY2D copy{};
      copy.srcMemoryType = CU_MEMORYTYPE_HOST;
      copy.srcHost = host.data();
      copy.srcPitch = 64;
      copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      copy.dstDevice = factors;
      copy.dstPitch = 64;
      copy.dstXInBytes = 8;
      copy.WidthInBytes = 8;
      copy.Height = 4;
      MUST(cuMemcpy2D_v2(&copy));
      MUST(cuMemsetD8Async(filled + 40, 0x5a, 33, one));
    } else {
      MUST(cuMemsetD32_v2(filled, 0x01020304, 10));
    }
    launch(put, one, {&value});
    launch(part, one, {&value, &low}, kN / 2);
    launch(part, two, {&value, &high}, kN / 2);
    if (round != 2) {
      launch(fill, two, {&target, &value});
    }
    if (round != 3) {
      launch(mystery, one, {&table, &value});
    }
    MUST(cuStreamSynchronize(one));
    MUST(cuStreamSynchronize(two));
    launch(gather, one, {&out});
    if (round != 3) {
      launch(reinterpret_cast<CUfunction>(keep), one, {&out});
    }
    MUST(cuStreamSynchronize(one));
    say("out", round, out);
    launch(reinterpret_cast<CUfunction>(give), two, {&other});
    MUST(cuStreamSynchronize(two));
    say("kept", round, other);
  }
  say("target", 0, target);
  say("factors", 0, factors);
  MUST(cuCtxSynchronize());
  return 0;
}
