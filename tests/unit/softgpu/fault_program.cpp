// SPDX-License-Identifier: Apache-2.0
// What a fault of a real kernel leaves behind, as a driver-level program sees it; one scenario a
// run, printing what it saw. Scenarios follow MEASUREMENTS, sections 2 to 4.
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "softgpu/hooks.h"

namespace {

const char* kPtx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 8 .u64 g_counter;\n"
    // p[i] = value + i
    ".visible .entry fill(.param .u64 p, .param .u32 value) {\n"
    "  .reg .b64 %rd<5>; .reg .b32 %r<8>;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [value]; cvta.to.global.u64 %rd2, %rd1;\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.s32 %r5, %r2, %r3, %r4; add.u32 %r7, %r1, %r5; mul.wide.u32 %rd3, %r5, 4;\n"
    "  add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], %r7; ret; }\n"
    ".visible .entry do_trap() { trap; ret; }\n"
    ".visible .entry wild(.param .u64 p) {\n"
    "  .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd2, %rd1;\n"
    "  st.global.u32 [%rd2], 1; ret; }\n"
    // *ready = 1, then counts in *p until *stop is not 0
    ".visible .entry spin(.param .u64 p, .param .u64 ready, .param .u64 stop) {\n"
    "  .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .pred %q;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [ready]; ld.param.u64 %rd3, [stop];\n"
    "  st.volatile.global.u32 [%rd2], 1; mov.u32 %r1, 0;\n"
    "LOOP: add.u32 %r1, %r1, 1; st.volatile.global.u32 [%rd1], %r1;\n"
    "  ld.volatile.global.u32 %r2, [%rd3]; setp.eq.u32 %q, %r2, 0; @%q bra LOOP; ret; }\n"
    // waits until *p is not 0
    ".visible .entry wait_for(.param .u64 p, .param .u64 ready) {\n"
    "  .reg .b64 %rd<3>; .reg .b32 %r<2>; .reg .pred %q;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [ready]; st.volatile.global.u32 [%rd2], 1;\n"
    "LOOP: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %q, %r1, 0; @%q bra LOOP; ret; }\n";

void Say(const char* what, long long value) {
  printf("%s = %lld\n", what, value);
  fflush(stdout);
}
#define ASK(call) Say(#call, static_cast<long long>(call))
#define MUST(call)                                          \
  do {                                                      \
    if (const int must = (call)) {                          \
      printf("line %d: %s -> %d\n", __LINE__, #call, must); \
      fflush(stdout);                                       \
      _exit(3);                                             \
    }                                                       \
  } while (0)

struct Gpu {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  std::map<std::string, CUfunction> functions;  // looked up before any fault
  explicit Gpu(int device = 0) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, kPtx));
    for (const char* name : {"fill", "do_trap", "wild", "spin", "wait_for"})
      MUST(cuModuleGetFunction(&functions[name], module, name));
  }
  template <class... Args>
  CUresult Launch(const char* name, CUstream stream, unsigned grid, unsigned block, Args... args) {
    void* params[] = {&args..., nullptr};
    return cuLaunchKernel(functions.at(name), grid, 1, 1, block, 1, 1, 0, stream, params, nullptr);
  }
};

CUstream NewStream() {
  CUstream s = nullptr;
  MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
}

/// Memory of cuMemCreate, mapped for one device.
struct Vmm {
  static constexpr size_t kSize = 2 << 20;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle{};
  explicit Vmm(int device = 0) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAccessDesc a{};
    a.location = p.location;
    a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST(cuMemCreate(&handle, kSize, &p, 0));
    MUST(cuMemAddressReserve(&address, kSize, 0, 0, 0));
    MUST(cuMemMap(address, kSize, 0, handle, 0));
    MUST(cuMemSetAccess(address, kSize, &a, 1));
  }
};

volatile uint32_t* Pinned() {
  void* p = nullptr;
  MUST(cuMemHostAlloc(&p, 4096, 0));
  memset(p, 0, 4096);
  return static_cast<volatile uint32_t*>(p);
}
CUdeviceptr Address(const volatile void* p) {
  return reinterpret_cast<CUdeviceptr>(const_cast<const void*>(p));
}
void WaitUntil(const volatile uint32_t* word) {
  while (!*word)
    std::this_thread::yield();
}

/// Words of a file that another process would see, through a mapping of our own.
class Outside {
 public:
  explicit Outside(const Vmm& memory) {
    int fd = -1;
    MUST(cuMemExportToShareableHandle(&fd, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      0));
    words_ =
        static_cast<volatile uint32_t*>(mmap(nullptr, Vmm::kSize, PROT_READ, MAP_SHARED, fd, 0));
  }
  uint32_t operator[](size_t i) const { return words_[i]; }

 private:
  volatile uint32_t* words_;
};

// A marker behind each kernel names the last completed one exactly, and every word that the
// completed kernels wrote is there.
void Markers(int fail_at) {
  Gpu gpu;
  Vmm memory;
  Outside outside(memory);
  volatile uint32_t* marker = Pinned();
  CUstream stream = NewStream();
  for (int k = 1; k <= 40; ++k) {
    if (k == fail_at)
      gpu.Launch("do_trap", stream, 1, 1);
    else
      gpu.Launch("fill", stream, 4, 64, memory.address + 4096ull * k, 1000u * k);
    cuStreamWriteValue32(stream, Address(marker), k, 0);
  }
  ASK(cuStreamSynchronize(stream));
  Say("marker", *marker);
  int bad = 0;
  for (int k = 1; k < fail_at; ++k)
    for (int i = 0; i < 256; ++i)
      bad += outside[1024 * k + i] != 1000u * k + i;
  Say("wrong words", bad);
  Say("words of later kernels", outside[1024 * (fail_at + 1)]);
}

// The report waits for a kernel of another stream of the same device, and its marker is written.
void Drain() {
  Gpu gpu;
  volatile uint32_t* words = Pinned();  // counter, ready, stop, marker
  CUstream busy = NewStream(), faulty = NewStream();
  MUST(gpu.Launch("spin", busy, 1, 1, Address(words), Address(words + 1), Address(words + 2)));
  MUST(cuStreamWriteValue32(busy, Address(words + 3), 7, 0));
  WaitUntil(words + 1);
  MUST(gpu.Launch("do_trap", faulty, 1, 1));
  std::atomic<int> code{-1};
  std::thread waiter([&] {
    cuCtxSetCurrent(gpu.context);
    code = cuStreamSynchronize(faulty);
  });
  // The kernel runs on while somebody waits for the faulty stream.
  for (int i = 0; i < 3; ++i) {
    const uint32_t before = words[0];
    while (words[0] == before)
      std::this_thread::yield();
  }
  Say("reported while it runs", code != -1);
  words[2] = 1;
  waiter.join();
  Say("code", code);
  Say("marker", words[3]);
}

// A kernel on another device goes on after the report, until its memory is unmapped; its marker
// stays unwritten.
void Fence() {
  Gpu first(0), second(1);
  Vmm memory(1);
  Outside outside(memory);
  volatile uint32_t* words = Pinned();
  CUstream stream = NewStream();
  MUST(second.Launch("spin", stream, 1, 1, memory.address, Address(words + 1), Address(words + 2)));
  MUST(cuStreamWriteValue32(stream, Address(words + 3), 7, 0));
  WaitUntil(words + 1);
  MUST(cuCtxSetCurrent(first.context));
  MUST(first.Launch("do_trap", nullptr, 1, 1));
  ASK(cuCtxSynchronize());
  MUST(cuCtxSetCurrent(second.context));
  CUdeviceptr d = 0;
  ASK(cuMemAlloc(&d, 16));
  const uint32_t before = outside[0];
  while (outside[0] == before)
    std::this_thread::yield();
  Say("goes on writing", 1);
  ASK(cuMemUnmap(memory.address, Vmm::kSize));
  const uint32_t after = outside[0];
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Say("writes after the fence", outside[0] != after);
  Say("marker", words[3]);
}

// A hang becomes a fault when the memory that it polls is unmapped.
void Hang() {
  Gpu gpu;
  Vmm memory;
  volatile uint32_t* words = Pinned();
  MUST(gpu.Launch("wait_for", nullptr, 1, 1, memory.address, Address(words)));
  WaitUntil(words);
  ASK(cuStreamQuery(nullptr));
  ASK(cuMemUnmap(memory.address, Vmm::kSize));
  ASK(cuCtxSynchronize());
}

// Memory exported after the fault, by a handle got back from its address, is whole in another
// process, also when its owner has gone.
void Export(const char* how) {
  int sockets[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[1]);
    Gpu gpu;
    Vmm memory;
    MUST(gpu.Launch("fill", nullptr, 1024, 512, memory.address, 5u));
    MUST(cuCtxSynchronize());
    if (strcmp(how, "trap") == 0)
      gpu.Launch("do_trap", nullptr, 1, 1);
    if (strcmp(how, "illegal") == 0)
      gpu.Launch("wild", nullptr, 1, 1, CUdeviceptr{0x7000});
    if (strcmp(how, "misaligned") == 0)
      gpu.Launch("wild", nullptr, 1, 1, memory.address + 1);
    ASK(cuCtxSynchronize());
    CUmemGenericAllocationHandle handle{};
    ASK(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(memory.address)));
    int fd = -1;
    ASK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    char byte = 'x';
    iovec io{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    MUST(sendmsg(sockets[0], &message, 0) != 1);
    _exit(0);
  }
  close(sockets[0]);
  char byte = 0;
  iovec io{&byte, 1};
  int fd = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  MUST(recvmsg(sockets[1], &message, 0) != 1);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  int status = 0;
  waitpid(child, &status, 0);  // the owner is gone
  Gpu gpu;
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr at = 0;
  CUmemAccessDesc a{};
  a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  MUST(cuMemAddressReserve(&at, Vmm::kSize, 0, 0, 0));
  MUST(cuMemMap(at, Vmm::kSize, 0, handle, 0));
  MUST(cuMemSetAccess(at, Vmm::kSize, &a, 1));
  std::vector<uint32_t> words(Vmm::kSize / 4);
  MUST(cuMemcpyDtoH(words.data(), at, Vmm::kSize));
  int bad = 0;
  for (size_t i = 0; i < words.size(); ++i)
    bad += words[i] != 5 + i;
  Say("wrong words in the importer", bad);
}

// Managed and pinned memory stay readable for the host.
void Readable() {
  Gpu gpu;
  CUdeviceptr managed = 0;
  volatile uint32_t* pinned = Pinned();
  MUST(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  MUST(gpu.Launch("fill", nullptr, 4, 64, managed, 3u));
  MUST(gpu.Launch("fill", nullptr, 4, 64, Address(pinned), 4u));
  MUST(cuCtxSynchronize());
  gpu.Launch("do_trap", nullptr, 1, 1);
  ASK(cuCtxSynchronize());
  Say("managed", reinterpret_cast<volatile uint32_t*>(managed)[200]);
  Say("pinned", pinned[200]);
}

// An interprocess event, opened elsewhere before the fault, still answers there.
void InterprocessEvent() {
  int to_child[2], to_parent[2];
  MUST(pipe(to_child));
  MUST(pipe(to_parent));
  const pid_t child = fork();
  if (child == 0) {
    Gpu gpu;
    CUipcEventHandle handles[2];
    CUevent events[2];
    char byte = 'o';
    MUST(read(to_child[0], handles, sizeof handles) != sizeof handles);
    MUST(cuIpcOpenEventHandle(&events[0], handles[0]));
    MUST(cuIpcOpenEventHandle(&events[1], handles[1]));
    MUST(write(to_parent[1], &byte, 1) != 1);
    MUST(read(to_child[0], &byte, 1) != 1);
    printf("before the fault = %d\nbehind the fault = %d\n", cuEventQuery(events[0]),
           cuEventQuery(events[1]));
    fflush(stdout);
    _exit(0);
  }
  Gpu gpu;
  CUevent events[2];
  CUipcEventHandle handles[2];
  for (int i = 0; i < 2; ++i) {
    MUST(cuEventCreate(&events[i], CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuIpcGetEventHandle(&handles[i], events[i]));
  }
  char byte = 'g';
  MUST(write(to_child[1], handles, sizeof handles) != sizeof handles);
  MUST(read(to_parent[0], &byte, 1) != 1);
  CUdeviceptr d = 0;
  MUST(cuMemAlloc(&d, 4096));
  gpu.Launch("fill", nullptr, 1, 64, d, 1u);
  cuEventRecord(events[0], nullptr);
  gpu.Launch("do_trap", nullptr, 1, 1);
  cuEventRecord(events[1], nullptr);
  ASK(cuCtxSynchronize());
  ASK(cuEventQuery(events[0]));
  MUST(write(to_child[1], &byte, 1) != 1);
  int status = 0;
  waitpid(child, &status, 0);
}

// A reset waits for a kernel that runs.
void ResetWaits() {
  Gpu gpu;
  volatile uint32_t* words = Pinned();
  MUST(gpu.Launch("wait_for", nullptr, 1, 1, Address(words + 1), Address(words)));
  WaitUntil(words);
  std::atomic<bool> reset{false};
  std::thread other([&] {
    cuDevicePrimaryCtxReset(0);
    reset = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Say("reset while it runs", reset);
  words[1] = 1;
  other.join();
  Say("reset after", reset);
}

// A fault of any code at a chosen point; what was written before it stays.
void Planned(bool healthy) {
  Gpu gpu;
  CUdeviceptr d = 0;
  MUST(cuMemAlloc(&d, 4 * 256));
  MUST(cuMemsetD8(d, 0, 4 * 256));
  auto* hooks = static_cast<SoftgpuHookTable*>(dlsym(RTLD_DEFAULT, "softgpu_hook_table"));
  SoftgpuFault fault{};
  fault.size = sizeof fault;
  fault.kernel = "fill";
  fault.launch = 2;
  fault.block = 2;
  fault.thread = 3;
  fault.instruction = 4;
  fault.code = CUDA_ERROR_ECC_UNCORRECTABLE;
  fault.healthy = healthy;
  MUST(hooks->arm_fault(&fault));
  MUST(gpu.Launch("fill", nullptr, 4, 64, d, 1u));
  MUST(cuCtxSynchronize());
  MUST(gpu.Launch("fill", nullptr, 4, 64, d, 1001u));
  ASK(cuCtxSynchronize());
  SoftgpuReport report{};
  report.size = sizeof report;
  hooks->report(&report);
  Say("code", report.code);
  Say("fired", static_cast<long long>(report.fired));
  const auto* words =
      reinterpret_cast<volatile uint32_t*>(d);  // a device address is a host address
  Say("the word of the thread that died is the first launch's",
      words[2 * 64 + 3] == 1 + 2 * 64 + 3);
  if (healthy) {
    MUST(gpu.Launch("fill", nullptr, 4, 64, d, 1001u));
    ASK(cuCtxSynchronize());
    Say("run again", words[2 * 64 + 3]);
  }
}

// Exact byte ranges.
void Record() {
  Gpu gpu;
  CUdeviceptr d = 0;
  MUST(cuMemAlloc(&d, 4096));
  auto* hooks = static_cast<SoftgpuHookTable*>(dlsym(RTLD_DEFAULT, "softgpu_hook_table"));
  hooks->record_accesses(1);
  MUST(gpu.Launch("fill", nullptr, 2, 50, d + 16, 1u));
  MUST(cuCtxSynchronize());
  SoftgpuRange ranges[4];
  Say("writes", static_cast<long long>(hooks->accesses(1, ranges, 4)));
  Say("begin", static_cast<long long>(ranges[0].begin - d));
  Say("end", static_cast<long long>(ranges[0].end - d));
  Say("reads", static_cast<long long>(hooks->accesses(0, ranges, 4)));
}

// Just past an allocation: harmless by default, 700 when checked at the byte.
void Stray() {
  Gpu gpu;
  CUdeviceptr d = 0;
  MUST(cuMemAlloc(&d, 256));
  MUST(gpu.Launch("fill", nullptr, 1, 65, d, 1u));
  ASK(cuCtxSynchronize());
}

// A kernel that never ends, under a step budget.
void Budget() {
  Gpu gpu;
  volatile uint32_t* words = Pinned();
  MUST(gpu.Launch("wait_for", nullptr, 1, 1, Address(words + 1), Address(words)));
  ASK(cuCtxSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const char* more = argc > 2 ? argv[2] : "";
  if (what == "markers")
    Markers(atoi(more));
  else if (what == "drain")
    Drain();
  else if (what == "fence")
    Fence();
  else if (what == "hang")
    Hang();
  else if (what == "export")
    Export(more);
  else if (what == "readable")
    Readable();
  else if (what == "event")
    InterprocessEvent();
  else if (what == "reset")
    ResetWaits();
  else if (what == "planned")
    Planned(strcmp(more, "healthy") == 0);
  else if (what == "record")
    Record();
  else if (what == "stray")
    Stray();
  else if (what == "budget")
    Budget();
  else
    return 2;
  fflush(stdout);
  _exit(0);
}
