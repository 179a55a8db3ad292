// SPDX-License-Identifier: Apache-2.0
//
// The standby program, on softgpu: this process is the app, with device memory of its own.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "cupti/protocol/channel.h"
#include "cupti/protocol/standby.h"
#include "recovery/call_codec.h"
#include "recovery/standby_link.h"

namespace gpurecover::recovery {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
constexpr milliseconds kPatience{20'000};
constexpr std::uint64_t kArena = protocol::kDefaultArena;
constexpr std::uint64_t kArenaSize = std::uint64_t{1} << 34;
constexpr std::uint64_t kChunk = 16 << 20;

// fill: x[i] = i * factor. increment: x[i] += 1. die: a trap. wait: until *x is not 0.
constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 table[256];
.visible .entry fill(.param .u64 x, .param .u32 n, .param .u32 factor)
{
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [x];
  ld.param.u32 %r1, [n];
  ld.param.u32 %r2, [factor];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r6, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd2, %r6, 4;
  add.s64 %rd3, %rd1, %rd2;
  mul.lo.s32 %r7, %r6, %r2;
  st.global.u32 [%rd3], %r7;
DONE:
  ret;
}
.visible .entry increment(.param .u64 x)
{
  .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [x];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r2, [%rd3];
  add.s32 %r3, %r2, 1;
  st.global.u32 [%rd3], %r3;
  ret;
}
.visible .entry die()
{
  trap;
  ret;
}
.visible .entry wait(.param .u64 x)
{
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [x];
AGAIN:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.s32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}
)";

std::span<const std::byte> ptx() {
  return std::as_bytes(std::span(kPtx));
}

// This process's own driver.
struct Cuda {
  void* library = nullptr;
  template <class F>
  F* get(const char* name) const {
    void* address = dlsym(library, name);
    EXPECT_NE(address, nullptr) << name;
    return reinterpret_cast<F*>(address);
  }
};
#define STRING(text) STRING_OF(text)
#define STRING_OF(text) #text
// By the name that it is exported under, which cuda.h's macros may have changed.
#define DRIVER(name) cuda().get<decltype(::name)>(STRING(name))

const Cuda& cuda() {
  static const Cuda instance = [] {
    Cuda out;
    out.library = dlopen(SOFTGPU_DIR "/libcuda.so.1", RTLD_NOW);
    EXPECT_NE(out.library, nullptr) << dlerror();
    return out;
  }();
  return instance;
}

std::string device_uuid() {
  static const std::string uuid = [] {
    CUcontext context = nullptr;
    CUuuid id{};
    EXPECT_EQ(DRIVER(cuInit)(0), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(context), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuDeviceGetUuid)(&id, 0), CUDA_SUCCESS);
    CUdeviceptr arena = 0;
    EXPECT_EQ(DRIVER(cuMemAddressReserve)(&arena, kArenaSize, 0, kArena, 0), CUDA_SUCCESS);
    EXPECT_EQ(arena, kArena);
    return std::string(id.bytes, sizeof id.bytes);
  }();
  return uuid;
}

// Returns when it is done: sets of device memory do not by themselves.
void set_words(std::uint64_t address, std::uint32_t value, std::size_t count) {
  EXPECT_EQ(DRIVER(cuMemsetD32)(address, value, count), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxSynchronize)(), CUDA_SUCCESS);
}

// A piece of device memory of this process, in the arena or elsewhere.
class Chunk {
 public:
  explicit Chunk(std::uint64_t address) : address_(address) {
    device_uuid();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(DRIVER(cuMemCreate)(&handle, kChunk, &properties, 0), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuMemMap)(address, kChunk, 0, handle, 0), CUDA_SUCCESS);
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(DRIVER(cuMemSetAccess)(address, kChunk, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuMemExportToShareableHandle)(&fd_, handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuMemRelease)(handle), CUDA_SUCCESS);
    set_words(address, 0, kChunk / 4);
  }
  ~Chunk() {
    ::close(fd_);
    EXPECT_EQ(DRIVER(cuMemUnmap)(address_, kChunk), CUDA_SUCCESS);
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  std::uint64_t address() const { return address_; }
  int fd() const { return fd_; }
  std::vector<std::uint32_t> words(std::size_t count) const {
    std::vector<std::uint32_t> out(count);
    EXPECT_EQ(DRIVER(cuMemcpyDtoH)(out.data(), address_, count * 4), CUDA_SUCCESS);
    return out;
  }

 private:
  std::uint64_t address_;
  int fd_ = -1;
};

// Starts the program as the supervisor does; the caller reaps it.
pid_t spawn(int socket) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(socket, 3);
    ::fcntl(3, F_SETFD, 0);
    ::setenv("LD_LIBRARY_PATH", SOFTGPU_DIR, 1);
    // It must not load an agent, whatever it inherits.
    ::setenv("CUDA_INJECTION64_PATH", "/no/such/agent.so", 1);
    ::execl(STANDBY_PROGRAM, STANDBY_PROGRAM, nullptr);
    ::_exit(127);
  }
  return pid;
}

int pidfd_of(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

bool ends_within(int pidfd, milliseconds time) {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(time.count())) == 1;
}

class StandbyTest : public testing::Test {
 protected:
  void start() {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = spawn(ends[1]);
    ::close(ends[1]);
    socket_ = ends[0];
  }
  void open() {
    start();
    std::string error;
    link_ = StandbyLink::open(socket_, kPatience, error);
    ASSERT_NE(link_, nullptr) << error;
    EXPECT_EQ(link_->pid(), pid_);
    EXPECT_TRUE(link_->alive());
  }
  void set_up() {
    open();
    StandbySetup setup;
    setup.device_uuid = device_uuid();
    setup.arena = kArena;
    setup.arena_size = kArenaSize;
    good(link_->setup(setup));
  }
  void load() {
    set_up();
    good(link_->load_module(kModule, ptx()));
    for (const auto& [name, number] :
         {std::pair{"fill", kFill}, {"increment", kIncrement}, {"die", kDie}, {"wait", kWait}}) {
      CUfunction out = nullptr;
      cuModuleGetFunction_params params{&out, reinterpret_cast<CUmodule>(kModule), name};
      good(call("cuModuleGetFunction", &params, number));
      EXPECT_EQ(reinterpret_cast<std::uint64_t>(out), number);
    }
  }
  void TearDown() override {
    link_.reset();
    if (pid_ > 0) {
      int status = 0;
      ASSERT_EQ(::waitpid(pid_, &status, 0), pid_);
      EXPECT_TRUE(WIFEXITED(status) || WTERMSIG(status) == SIGKILL)
          << "the standby died of signal " << WTERMSIG(status);
    }
  }

  static void good(const Answer& answer) {
    EXPECT_TRUE(answer.ok()) << answer.sent << " " << answer.code << " " << answer.reason;
  }
  // Makes the call as the agent does.
  Answer call(std::string_view name, const void* params, std::uint64_t new_number = 0,
              bool per_thread = false) {
    const driver_api::Call* row = driver_api::find(name);
    EXPECT_NE(row, nullptr) << name;
    std::vector<std::byte> message;
    encode_call(
        *row, params, per_thread, [&](char) { return new_number; }, message);
    std::vector<std::byte> results;
    Answer answer = link_->call(message, results);
    if (answer.ok()) {
      EXPECT_TRUE(store_results(*row, params, results, [&](std::string_view text) {
        return kept_.emplace_back(text).c_str();
      })) << name;
    }
    return answer;
  }
  Answer synchronize(std::uint64_t stream = 0) {
    cuStreamSynchronize_params params{reinterpret_cast<CUstream>(stream)};
    return call("cuStreamSynchronize", &params);
  }
  static RemoteLaunch fill(std::uint64_t to, std::uint32_t n, std::uint32_t factor) {
    RemoteLaunch launch;
    launch.function = kFill;
    launch.grid[0] = (n + 255) / 256;
    launch.block[0] = 256;
    launch.arguments.resize(16);
    std::memcpy(launch.arguments.data(), &to, 8);
    std::memcpy(launch.arguments.data() + 8, &n, 4);
    std::memcpy(launch.arguments.data() + 12, &factor, 4);
    return launch;
  }
  static RemoteLaunch with_pointer(std::uint64_t function, std::uint64_t pointer,
                                   std::uint32_t threads = 1) {
    RemoteLaunch launch;
    launch.function = function;
    launch.block[0] = threads;
    launch.arguments.resize(8);
    std::memcpy(launch.arguments.data(), &pointer, 8);
    return launch;
  }

  // Numbers that are no addresses: the app's handles mean nothing to the standby's driver.
  static constexpr std::uint64_t kModule = 0x10001;
  static constexpr std::uint64_t kFill = 0x20001;
  static constexpr std::uint64_t kIncrement = 0x20002;
  static constexpr std::uint64_t kDie = 0x20003;
  static constexpr std::uint64_t kWait = 0x20004;
  int socket_ = -1;
  pid_t pid_ = -1;
  std::unique_ptr<StandbyLink> link_;
  std::deque<std::string> kept_;
};

TEST_F(StandbyTest, WorksOnTheAppsMemory) {
  Chunk chunk(kArena + kChunk);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  good(link_->launch(fill(chunk.address(), 1000, 3)));
  good(synchronize());
  const auto words = chunk.words(1001);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(words[i], i * 3);
  }
  EXPECT_EQ(words[1000], 0U);
  good(link_->unmap_memory(chunk.address(), kChunk));
  const Answer again = link_->unmap_memory(chunk.address(), kChunk);
  EXPECT_TRUE(again.sent);
  EXPECT_NE(again.code, 0);
  EXPECT_THAT(again.reason, HasSubstr("not mapped"));
}

TEST_F(StandbyTest, MemoryOutsideTheArenaGetsItsOwnAddress) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer owns these addresses";
#endif
  const std::uint64_t address = kArena - (std::uint64_t{1} << 36);
  device_uuid();
  CUdeviceptr reserved = 0;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&reserved, kChunk, 0, address, 0), CUDA_SUCCESS);
  ASSERT_EQ(reserved, address);
  {
    Chunk chunk(address);
    load();
    good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
    good(link_->launch(fill(chunk.address(), 100, 5)));
    good(synchronize());
    EXPECT_EQ(chunk.words(100)[99], 495U);
    good(link_->unmap_memory(chunk.address(), kChunk));
    // The addresses are free again.
    good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
    // Partly in the arena is nowhere.
    EXPECT_EQ(link_->map_memory(kArena + kArenaSize - kChunk / 2, kChunk, chunk.fd()).code,
              CUDA_ERROR_INVALID_VALUE);
  }
  DRIVER(cuMemAddressFree)(address, kChunk);
}

TEST_F(StandbyTest, CopiesOfAnySize) {
  Chunk chunk(kArena);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  for (const std::size_t size : {1UL, 4096UL, (4UL << 20) + 1, 11UL << 20}) {
    std::vector<unsigned char> data(size);
    std::mt19937 random(static_cast<unsigned>(size));
    for (auto& byte : data) {
      byte = static_cast<unsigned char>(random());
    }
    good(link_->copy_in(chunk.address() + 3, data.data(), size, 0));
    std::vector<unsigned char> back(size);
    EXPECT_EQ(DRIVER(cuMemcpyDtoH)(back.data(), chunk.address() + 3, size), CUDA_SUCCESS);
    EXPECT_EQ(back, data) << size;
    std::fill(back.begin(), back.end(), 0);
    good(link_->copy_out(back.data(), chunk.address() + 3, size, 0));
    EXPECT_EQ(back, data) << size;
  }
  good(link_->launch(fill(chunk.address(), 256, 7)));
  good(link_->copy(chunk.address() + (8 << 20), chunk.address(), 1024, 0, true));
  std::uint32_t last = 0;
  good(link_->copy_out(&last, chunk.address() + (8 << 20) + 1020, 4, 0));
  EXPECT_EQ(last, 255U * 7);
  // Nothing is an answer too.
  good(link_->copy_in(chunk.address(), &last, 0, 0));
  EXPECT_EQ(link_->copy_in(chunk.address() + kChunk, &last, 4, 0).code, CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StandbyTest, MarkersGoToSharedHostMemory) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer owns these addresses";
#endif
  Chunk chunk(kArena);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  const int fd = ::memfd_create("host", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 8192), 0);
  const std::uint64_t address = kArena - (std::uint64_t{1} << 37);
  void* memory = ::mmap(reinterpret_cast<void*>(address), 8192, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  ASSERT_NE(memory, MAP_FAILED);
  good(link_->map_host(address, 8192, 0, fd));
  RemoteLaunch launch = fill(chunk.address(), 10, 1);
  launch.marker = address + 64;
  launch.marker_value = 4711;
  good(link_->launch(launch));
  good(synchronize());
  EXPECT_EQ(static_cast<std::uint32_t*>(memory)[16], 4711U);
  EXPECT_EQ(link_->map_host(address, 8192, 0, fd).code, CUDA_ERROR_MAP_FAILED) << "it is there";
  EXPECT_EQ(link_->map_host(address + (1 << 20), 16384, 0, fd).code, CUDA_ERROR_INVALID_VALUE)
      << "the file is shorter";
  good(link_->unmap_host(address, 8192));
  EXPECT_NE(link_->unmap_host(address, 8192).code, 0);
  ::munmap(memory, 8192);
  ::close(fd);
}

TEST_F(StandbyTest, ReplaysWithTheLastCheck) {
  Chunk chunk(kArena);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  set_words(chunk.address(), 0x1234, 1024);
  RemoteReplay replay;
  replay.launch = fill(chunk.address(), 1000, 9);
  replay.begins = {chunk.address()};
  replay.ends = {chunk.address() + 4096};
  replay.seed = 1;
  const ReplayAnswer done = link_->replay(replay);
  EXPECT_TRUE(done.sent && done.recovered) << done.reason;
  auto words = chunk.words(1024);
  EXPECT_EQ(words[999], 8991U);
  EXPECT_EQ(words[1000], 0x1234U) << "what was not written is as it was";

  replay.launch = with_pointer(kIncrement, chunk.address(), 32);
  const ReplayAnswer refused = link_->replay(replay);
  EXPECT_TRUE(refused.sent && refused.refused && !refused.recovered);
  EXPECT_THAT(refused.reason, HasSubstr("disagree"));
  EXPECT_EQ(chunk.words(1024), words);

  // Cut and impossible ranges.
  replay.ends.clear();
  EXPECT_EQ(link_->replay(replay).code, CUDA_ERROR_INVALID_VALUE);
  replay.ends = {chunk.address()};
  EXPECT_EQ(link_->replay(replay).code, CUDA_ERROR_INVALID_VALUE);

  // The fault comes back: the code is the driver's, and the standby's context is dead.
  replay.ends = {chunk.address() + 4096};
  replay.launch = RemoteLaunch{};
  replay.launch.function = kDie;
  const ReplayAnswer repeats = link_->replay(replay);
  EXPECT_TRUE(repeats.sent && !repeats.recovered);
  EXPECT_EQ(repeats.code, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(synchronize().code, CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(StandbyTest, ServesObjectsByTheAppsNumbers) {
  Chunk chunk(kArena);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  constexpr std::uint64_t kStream = 0x30001;
  constexpr std::uint64_t kEvent = 0x40001;
  CUstream stream = nullptr;
  cuStreamCreate_params create{&stream, CU_STREAM_NON_BLOCKING};
  good(call("cuStreamCreate", &create, kStream));
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(stream), kStream);
  CUevent event = nullptr;
  cuEventCreate_params create_event{&event, 0};
  good(call("cuEventCreate", &create_event, kEvent));
  RemoteLaunch launch = fill(chunk.address(), 64, 2);
  launch.stream = kStream;
  good(link_->launch(launch));
  cuEventRecord_params record{event, stream};
  good(call("cuEventRecord", &record));
  cuEventSynchronize_params wait{event};
  good(call("cuEventSynchronize", &wait));
  EXPECT_EQ(chunk.words(64)[63], 126U);
  unsigned flags = 99;
  cuStreamGetFlags_params get{stream, &flags};
  good(call("cuStreamGetFlags", &get));
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  // An answer of a query that is no error.
  good(link_->launch([&] {
    RemoteLaunch forever = with_pointer(kWait, chunk.address() + 4096);
    forever.stream = kStream;
    return forever;
  }()));
  cuStreamQuery_params query{stream};
  const Answer running = call("cuStreamQuery", &query);
  EXPECT_TRUE(running.sent);
  EXPECT_EQ(running.code, CUDA_ERROR_NOT_READY);
  set_words(chunk.address() + 4096, 1, 1);
  good(synchronize(kStream));

  // The legacy and the per-thread default stream are themselves.
  launch.stream = 2;
  good(link_->launch(launch));
  good(synchronize(2));
  cuMemsetD32_v2_params set{chunk.address(), 0x77, 64};
  good(call("cuMemsetD32_v2", &set, 0, true));
  good(call("cuMemsetD32_v2", &set, 0, false));
  good(synchronize());
  EXPECT_EQ(chunk.words(1)[0], 0x77U);

  cuStreamDestroy_v2_params destroy{stream};
  good(call("cuStreamDestroy_v2", &destroy));
  const Answer gone = synchronize(kStream);
  EXPECT_TRUE(gone.sent);
  EXPECT_EQ(gone.code, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_NE(gone.reason, "");
  launch.stream = kStream;
  EXPECT_EQ(link_->launch(launch).code, CUDA_ERROR_INVALID_HANDLE);
  launch.stream = 0;
  launch.function = 0x999;
  EXPECT_EQ(link_->launch(launch).code, CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StandbyTest, KernelsAndFunctionsAndGlobals) {
  Chunk chunk(kArena);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  constexpr std::uint64_t kLibrary = 0x50001;
  constexpr std::uint64_t kKernel = 0x60001;
  good(link_->load_library(kLibrary, ptx()));
  CUkernel kernel = nullptr;
  cuLibraryGetKernel_params params{&kernel, reinterpret_cast<CUlibrary>(kLibrary), "fill"};
  good(call("cuLibraryGetKernel", &params, kKernel));
  // A kernel where a function is wanted, as cudart hands them out.
  RemoteLaunch launch = fill(chunk.address(), 8, 11);
  launch.function = kKernel;
  good(link_->launch(launch));
  good(synchronize());
  EXPECT_EQ(chunk.words(8)[7], 77U);
  const char* name = nullptr;
  cuFuncGetName_params of_function{&name, reinterpret_cast<CUfunction>(kKernel)};
  good(call("cuFuncGetName", &of_function));
  EXPECT_STREQ(name, "fill");
  name = nullptr;
  cuKernelGetName_params of_kernel{&name, kernel};
  good(call("cuKernelGetName", &of_kernel));
  EXPECT_STREQ(name, "fill");
  of_kernel.hfunc = reinterpret_cast<CUkernel>(kFill);
  EXPECT_EQ(call("cuKernelGetName", &of_kernel).code, CUDA_ERROR_INVALID_HANDLE);
  int threads = 0;
  cuKernelGetAttribute_params attribute{&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel,
                                        0};
  good(call("cuKernelGetAttribute", &attribute));
  EXPECT_GE(threads, 256);
  attribute.dev = 5;
  EXPECT_EQ(call("cuKernelGetAttribute", &attribute).code, CUDA_ERROR_INVALID_DEVICE);
  // The driver's own word on a null pointer of the app's.
  cuFuncGetAttribute_params null{nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                 reinterpret_cast<CUfunction>(kFill)};
  EXPECT_EQ(call("cuFuncGetAttribute", &null).code, CUDA_ERROR_INVALID_VALUE);

  std::uint64_t address = 0;
  std::uint64_t size = 0;
  good(link_->find_global(kModule, false, "table", address, size));
  EXPECT_NE(address, 0U);
  EXPECT_EQ(size, 1024U);
  good(link_->find_global(kLibrary, true, "table", address, size));
  EXPECT_EQ(link_->find_global(kModule, false, "nothing", address, size).code,
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(link_->find_global(0x1, false, "table", address, size).code, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_NE(link_->load_module(0x1, ptx().first(10)).code, 0);
  EXPECT_TRUE(link_->alive());
}

TEST_F(StandbyTest, SetupIsRefusedWhereItMust) {
  open();
  std::vector<std::byte> results;
  EXPECT_EQ(link_->launch(fill(kArena, 1, 1)).code, CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(link_->map_memory(kArena, kChunk, 0).code, CUDA_ERROR_NOT_INITIALIZED);
  StandbySetup setup;
  setup.device_uuid = std::string(16, 'x');
  EXPECT_EQ(link_->setup(setup).code, CUDA_ERROR_NO_DEVICE);
  setup.device_uuid = "short";
  EXPECT_EQ(link_->setup(setup).code, CUDA_ERROR_INVALID_VALUE);
  // An arena where something is already: the program's own text.
  setup.device_uuid = device_uuid();
  std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
  std::string line;
  ASSERT_TRUE(std::getline(maps, line));
  setup.arena = std::stoull(line, nullptr, 16) & ~((std::uint64_t{2} << 20) - 1);
  setup.arena_size = std::uint64_t{64} << 20;
  const Answer taken = link_->setup(setup);
  EXPECT_EQ(taken.code, CUDA_ERROR_MAP_FAILED);
  EXPECT_THAT(taken.reason, HasSubstr("taken"));
  setup.arena = kArena;
  setup.arena_size = kArenaSize;
  good(link_->setup(setup));
  EXPECT_EQ(link_->setup(setup).code, CUDA_ERROR_INVALID_VALUE) << "once is enough";
}

TEST_F(StandbyTest, MemoryCanBeSentBeforeTheContextIsThere) {
  Chunk first(kArena);
  Chunk second(kArena + 2 * kChunk);
  open();
  StandbySetup setup;
  setup.device_uuid = device_uuid();
  setup.arena = kArena;
  setup.arena_size = kArenaSize;
  EXPECT_EQ(link_->finish_setup().code, CUDA_ERROR_INVALID_VALUE) << "nothing has been begun";
  good(link_->begin_setup(setup));
  EXPECT_EQ(link_->begin_setup(setup).code, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(link_->setup(setup).code, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(link_->map_memory(kArena, kChunk, -1).code, CUDA_ERROR_INVALID_VALUE);
  const StandbyLink::Memory memories[] = {{first.address(), kChunk, first.fd()},
                                          {second.address(), kChunk, second.fd()}};
  good(link_->map_memories(memories));
  StandbyLink::SetupTimes times;
  good(link_->finish_setup(&times));
  EXPECT_GT(times.context_ms, 0);
  EXPECT_EQ(link_->finish_setup().code, CUDA_ERROR_INVALID_VALUE);
  good(link_->prepare(0));
  EXPECT_EQ(link_->prepare(kFill).code, CUDA_ERROR_INVALID_HANDLE);
  good(link_->load_module(kModule, ptx()));
  CUfunction out = nullptr;
  cuModuleGetFunction_params params{&out, reinterpret_cast<CUmodule>(kModule), "fill"};
  good(call("cuModuleGetFunction", &params, kFill));
  good(link_->prepare(kFill));
  for (Chunk* const chunk : {&first, &second}) {
    good(link_->launch(fill(chunk->address(), 100, 7)));
    good(synchronize());
    EXPECT_EQ(chunk->words(100)[99], 99U * 7);
    good(link_->unmap_memory(chunk->address(), kChunk));
  }
}

TEST_F(StandbyTest, WhatGoesWrongBehindASetupIsSaidAtItsEnd) {
  StandbySetup setup;
  setup.arena = kArena;
  setup.arena_size = kArenaSize;
  open();
  setup.device_uuid = std::string(16, 'x');
  good(link_->begin_setup(setup));
  EXPECT_EQ(link_->finish_setup().code, CUDA_ERROR_NO_DEVICE);
  setup.device_uuid = device_uuid();
  good(link_->begin_setup(setup));
  good(link_->map_memory(kArena, kChunk, 0));  // whatever that is, it is no memory
  EXPECT_NE(link_->finish_setup().code, 0);
}

// As many messages as there may be chunks, and one among them that fails.
TEST_F(StandbyTest, ManyPiecesOfMemory) {
  constexpr std::size_t kPieces = 200;
  set_up();
  Chunk chunk(kArena + (std::uint64_t{1} << 32));
  std::vector<StandbyLink::Memory> memories;
  for (std::size_t i = 0; i < kPieces; ++i) {
    memories.push_back({kArena + i * 2 * kChunk, kChunk, chunk.fd()});
  }
  good(link_->map_memories(memories));
  good(link_->map_memories({}));
  for (const auto& memory : memories) {
    good(link_->unmap_memory(memory.address, kChunk));
  }
  memories[70].fd = -1;
  EXPECT_EQ(link_->map_memories(memories).code, CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(link_->alive());
  good(link_->unmap_memory(memories[0].address, kChunk));
  link_->kill();
  EXPECT_FALSE(link_->map_memories(memories).sent);
}

TEST_F(StandbyTest, EveryThreadHasItsOwnLaneWhichEndsWithIt) {
  Chunk chunk(kArena);
  load();
  good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
  good(synchronize());
  // One thread waits for ever; the others go on.
  std::jthread waiting([&] {
    RemoteLaunch launch = with_pointer(kWait, chunk.address());
    launch.stream = 2;
    good(link_->launch(launch));
    good(synchronize(2));
  });
  std::vector<std::jthread> threads;
  for (std::uint32_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      RemoteLaunch launch = fill(chunk.address() + (t << 20), 200, t);
      launch.stream = 2;
      for (int i = 0; i < 50; ++i) {
        good(link_->launch(launch));
      }
      good(synchronize(2));
      std::uint32_t last = 0;
      good(link_->copy_out(&last, chunk.address() + (t << 20) + 199 * 4, 4, 2));
      EXPECT_EQ(last, 199 * t);
    });
  }
  threads.clear();
  set_words(chunk.address(), 1, 1);
  waiting.join();
  const auto lanes = [&] {
    std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("gpurecover-lane") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (lanes() > 1 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(lanes(), 1) << "this thread's";
}

// kill() and a death of its own, while a call waits for a kernel that never ends.
TEST_F(StandbyTest, ADeathWhileACallWaitsIsSeenAtOnce) {
  for (const bool by_us : {true, false}) {
    SCOPED_TRACE(by_us);
    Chunk chunk(kArena);
    load();
    good(link_->map_memory(chunk.address(), kChunk, chunk.fd()));
    good(link_->launch(with_pointer(kWait, chunk.address())));
    std::chrono::steady_clock::time_point returned;
    std::atomic<bool> begun{false};
    Answer answer;
    std::jthread waiting([&] {
      begun = true;
      begun.notify_all();
      answer = synchronize();
      returned = std::chrono::steady_clock::now();
    });
    begun.wait(false);
    const int pidfd = pidfd_of(pid_);
    const auto killed = std::chrono::steady_clock::now();
    if (by_us) {
      link_->kill();
      EXPECT_TRUE(ends_within(pidfd, milliseconds(0))) << "kill() waits for the end";
    } else {
      ::kill(pid_, SIGKILL);
    }
    waiting.join();
    EXPECT_FALSE(answer.sent);
    EXPECT_NE(answer.reason, "");
    EXPECT_LT(returned - killed, milliseconds(500));
    EXPECT_TRUE(ends_within(pidfd, kPatience));
    EXPECT_FALSE(link_->alive());
    EXPECT_FALSE(link_->launch(fill(chunk.address(), 1, 1)).sent);
    EXPECT_FALSE(link_->map_memory(chunk.address(), kChunk, chunk.fd()).sent);
    ::close(pidfd);
    TearDown();
    pid_ = -1;
  }
}

// The app is killed while the standby runs a kernel without end, and a child of the app's still
// holds the socket.
TEST_F(StandbyTest, EndsWithTheApp) {
  const std::string uuid = device_uuid();
  int report[2];
  ASSERT_EQ(::pipe2(report, O_CLOEXEC), 0);
  int hold[2];
  ASSERT_EQ(::pipe2(hold, O_CLOEXEC), 0);
  for (const bool child_holds : {false, true}) {
    SCOPED_TRACE(child_holds);
    const pid_t app = ::fork();
    if (app == 0) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        ::_exit(1);
      }
      const pid_t standby = spawn(ends[1]);
      ::close(ends[1]);
      std::string error;
      auto link = StandbyLink::open(ends[0], kPatience, error);
      StandbySetup setup;
      setup.device_uuid = uuid;
      if (!link || !link->setup(setup).ok()) {
        ::_exit(1);
      }
      if (child_holds && ::fork() == 0) {
        ::close(hold[1]);
        char byte = 0;
        [[maybe_unused]] const ssize_t n = ::read(hold[0], &byte, 1);
        ::_exit(0);
      }
      if (::write(report[1], &standby, sizeof standby) != sizeof standby) {
        ::_exit(1);
      }
      for (;;) {
        ::pause();
      }
    }
    pid_t standby = -1;
    ASSERT_EQ(::read(report[0], &standby, sizeof standby), static_cast<ssize_t>(sizeof standby));
    const int pidfd = pidfd_of(standby);
    ASSERT_GE(pidfd, 0);
    EXPECT_FALSE(ends_within(pidfd, milliseconds(0)));
    ::kill(app, SIGKILL);
    EXPECT_TRUE(ends_within(pidfd, milliseconds(20000)));
    ::close(pidfd);
    int status = 0;
    ::waitpid(app, &status, 0);
  }
  ::close(hold[1]);
  ::close(hold[0]);
  ::close(report[0]);
  ::close(report[1]);
}

TEST_F(StandbyTest, AForkedChildForgetsIt) {
  set_up();
  good(synchronize());
  const pid_t child = ::fork();
  if (child == 0) {
    link_->abandon();
    const bool quiet = !link_->alive() && !synchronize().sent && !link_->unmap_memory(1, 1).sent;
    link_->kill();  // not its own to kill
    link_.reset();
    ::_exit(quiet ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(link_->alive());
  good(synchronize());
}

// Signals of a terminal and of a service manager are the app's.
TEST_F(StandbyTest, SignalsOfTheGroupDoNotEndIt) {
  open();
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGTERM, SIGTSTP, SIGPIPE}) {
    ::kill(pid_, signal);
  }
  StandbySetup setup;
  setup.device_uuid = device_uuid();
  good(link_->setup(setup));
  EXPECT_EQ(::getsid(pid_), pid_);
  // Nothing of ours is open in it but the error output and its socket.
  for (const auto& [fd, expected] : {std::pair{0, "/dev/null"}, {3, "socket:"}}) {
    char text[256] = "";
    const std::string path = "/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(fd);
    EXPECT_GT(::readlink(path.c_str(), text, sizeof text - 1), 0);
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

// Whatever comes over the control socket is answered or ends the connection; TearDown sees that no
// signal ended the process.
TEST_F(StandbyTest, MalformedControlMessagesAreAnswered) {
  start();
  protocol::Channel channel(socket_);
  protocol::Frame frame;
  ASSERT_EQ(channel.receive(frame, kPatience), protocol::Channel::Status::kFrame);
  constexpr unsigned kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  protocol::Setup setup;
  setup.device_uuid = device_uuid();
  setup.arena = kArena;
  setup.arena_size = kArenaSize;
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int round = 0; round < 3000; ++round) {
    if (round == 1000) {
      ASSERT_TRUE(channel.send(protocol::MessageType::kSetup, protocol::encode(setup), kPatience));
      ASSERT_EQ(channel.receive(frame, kPatience), protocol::Channel::Status::kFrame);
      EXPECT_EQ(protocol::decode<protocol::StandbyAnswer>(frame.body)->code, 0);
    }
    std::vector<std::byte> body(random() % 48);
    for (auto& byte : body) {
      byte = static_cast<std::byte>(random() % 2 == 0 ? 0 : random());
    }
    const auto type = static_cast<protocol::MessageType>(125 + random() % 16);
    ASSERT_TRUE(channel.send(type, body, kPatience, random() % 2 == 0 ? null : -1));
    ASSERT_EQ(channel.receive(frame, kPatience), protocol::Channel::Status::kFrame) << round;
    const auto answer = protocol::decode<protocol::StandbyAnswer>(frame.body);
    ASSERT_TRUE(answer);
    EXPECT_EQ(frame.type, protocol::MessageType::kAnswer);
  }
  ::close(null);
  ASSERT_EQ(::write(channel.fd(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
  const int pidfd = pidfd_of(pid_);
  EXPECT_TRUE(ends_within(pidfd, kPatience));
  ::close(pidfd);
}

TEST_F(StandbyTest, MalformedCallsAreAnswered) {
  set_up();
  std::vector<std::byte> results;
  const Answer large = link_->call(std::vector<std::byte>(70'000), results);
  EXPECT_TRUE(large.sent);
  EXPECT_NE(large.code, 0);
  const Answer cut = link_->call(std::vector<std::byte>(2), results);
  EXPECT_TRUE(cut.sent);
  EXPECT_EQ(cut.code, CUDA_ERROR_INVALID_VALUE);
  RemoteLaunch launch;
  launch.attributes.resize(7);
  EXPECT_NE(link_->launch(launch).code, 0);
  EXPECT_TRUE(link_->alive());
}

TEST(StandbyLinkTest, WhatIsNoStandbyIsRefused) {
  std::string error;
  EXPECT_EQ(StandbyLink::open(-1, milliseconds(10), error), nullptr);
  EXPECT_NE(error, "");
  int ends[2];
  // Silent, gone, of another version, and one that says why it cannot work.
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_EQ(StandbyLink::open(ends[0], milliseconds(10), error), nullptr);
  EXPECT_THAT(error, HasSubstr("in time"));
  ::close(ends[1]);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ::close(ends[1]);
  EXPECT_EQ(StandbyLink::open(ends[0], kPatience, error), nullptr);
  EXPECT_THAT(error, HasSubstr("ended"));
  protocol::StandbyHello hello;
  hello.pid = ::getpid();
  for (const bool right_table : {false, true}) {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    protocol::Channel other(ends[1]);
    hello.fingerprint = right_table ? table_fingerprint() : 1;
    hello.error = right_table ? "no driver" : "";
    ASSERT_TRUE(
        other.send(protocol::MessageType::kStandbyHello, protocol::encode(hello), kPatience));
    EXPECT_EQ(StandbyLink::open(ends[0], kPatience, error), nullptr);
    EXPECT_THAT(error, HasSubstr(right_table ? "no driver" : "version"));
  }
}

}  // namespace
}  // namespace gpurecover::recovery
