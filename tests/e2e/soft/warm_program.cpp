// SPDX-License-Identifier: Apache-2.0
//
// A program that makes and drops what a warm standby has a share of, between launches, and looks at
// the standby (a child of what started this program) where it should be seen to have let go.
// Prints a checksum for each round; ends with 3 and the code if a call fails.
//
//   warm_program churn    chunks freed and allocated, modules, streams and events made and
//                         destroyed, pinned memory, at random (a fixed seed)
//   warm_program fork     forks while memory is handed over: a child that becomes another program
//                         has no descriptor but its three
//   warm_program oom      frees chunks that the standby has, and allocates until there is no room:
//                         the standby has nothing then that is free
//   warm_program kill     ends the standby before the last round
//   warm_program exit     exits right after it has allocated
//   warm_program threads  two threads make and drop memory while a third one launches
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

// clang-format off
#define FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuMemAlloc_v2) X(cuMemFree_v2) \
  X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemsetD32_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyHtoD_v2) \
  X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize) \
  X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord)
// clang-format on
#define X(name) decltype(&::name) p_##name;
FUNCTIONS(X)
#undef X

void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) {
    std::printf("failed=%s:%d\n", what, static_cast<int>(code));
    std::fflush(stdout);
    std::_Exit(3);
  }
}
#define MUST(call) must(p_##call, #call)

constexpr std::uint32_t kWords = 1024;
constexpr std::size_t kChunk = 2 << 20;
constexpr unsigned kModules = 6;
constexpr unsigned kRounds = 6;

std::string ptx_of(unsigned number) {
  return R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 out, .param .u64 in, .param .u32 v)
{
  .reg .b32 %r<8>;
  .reg .b64 %a<6>;
  ld.param.u64 %a1, [out];
  ld.param.u64 %a2, [in];
  ld.param.u32 %r1, [v];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mad.lo.u32 %r6, %r5, )" +
         std::to_string(number) + R"(, %r1;
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

struct Module {
  CUmodule module = nullptr;
  CUfunction work = nullptr;
};

Module load(unsigned number) {
  Module out;
  MUST(cuModuleLoadData(&out.module, ptx_of(number).c_str()));
  MUST(cuModuleGetFunction(&out.work, out.module, "work"));
  return out;
}

CUdeviceptr allocate(std::uint32_t pattern) {
  CUdeviceptr address = 0;
  MUST(cuMemAlloc_v2(&address, kChunk));
  MUST(cuMemsetD32_v2(address, pattern, kChunk / 4));
  return address;
}

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// The standby's process; 0: there is none.
int standby() {
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
      return pid;
    }
  }
  return 0;
}

// Where the standby has device memory of another process's, in the arena.
std::vector<std::uint64_t> shares_of(int pid) {
  std::vector<std::uint64_t> out;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::string line;
  while (std::getline(maps, line)) {
    const std::uint64_t at = std::strtoull(line.c_str(), nullptr, 16);
    if (line.find("softgpu.vmm") != std::string::npos && at >= 0x5500'0000'0000 &&
        at < 0x5540'0000'0000) {
      out.push_back(at);
    }
  }
  return out;
}

bool wait_for(const std::function<bool()>& what) {
  for (int i = 0; i < 500; ++i) {
    if (what()) {
      return true;
    }
    sleep_ms(10);
  }
  return false;
}

class Program {
 public:
  Program() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    context_ = context;
    for (unsigned i = 0; i < kModules; ++i) {
      modules_.push_back(load(i + 3));
      chunks_.push_back(allocate(i));
      outputs_.emplace_back();
      MUST(cuMemAlloc_v2(&outputs_.back(), kWords * 4));
    }
    MUST(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemHostAlloc(&pinned_, kWords * 4, 0));
    MUST(cuCtxSynchronize());
  }

  void round(unsigned number) {
    for (unsigned i = 0; i < kModules; ++i) {
      CUdeviceptr out = outputs_[i];
      CUdeviceptr in = chunks_[i];
      std::uint32_t v = number * 1009;
      void* params[] = {&out, &in, &v};
      MUST(cuLaunchKernel(modules_[i].work, kWords / 256, 1, 1, 256, 1, 1, 0, stream_, params,
                          nullptr));
    }
    MUST(cuEventRecord(event_, stream_));
    MUST(cuStreamSynchronize(stream_));
    std::uint64_t sum = 0xcbf29ce484222325;
    auto* const host = static_cast<std::uint32_t*>(pinned_);
    for (unsigned i = 0; i < kModules; ++i) {
      for (const CUdeviceptr from : {outputs_[i], chunks_[i] + kChunk - kWords * 4}) {
        MUST(cuMemcpyDtoH_v2(host, from, kWords * 4));
        for (unsigned w = 0; w < kWords; ++w) {
          sum = (sum ^ host[w]) * 0x100000001b3;
        }
      }
    }
    std::printf("round%u=%016llx\n", number, static_cast<unsigned long long>(sum));
    std::fflush(stdout);
  }

  void churn() {
    std::mt19937 random(7);
    for (unsigned number = 1; number <= kRounds; ++number) {
      for (int step = 0; step < 12; ++step) {
        const unsigned i = random() % kModules;
        switch (random() % 5) {
          case 0:
            MUST(cuMemFree_v2(chunks_[i]));
            chunks_[i] = allocate(random());
            break;
          case 1:
            MUST(cuModuleUnload(modules_[i].module));
            modules_[i] = load(random() % 100);
            break;
          case 2:
            MUST(cuStreamDestroy_v2(stream_));
            MUST(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
            break;
          case 3:
            MUST(cuEventDestroy_v2(event_));
            MUST(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
            break;
          default:
            MUST(cuMemFreeHost(pinned_));
            MUST(cuMemHostAlloc(&pinned_, (1 + random() % 64) * kWords * 4, 0));
            break;
        }
        // Sometimes what is new is handed over, sometimes it is not yet.
        if (random() % 4 == 0) {
          sleep_ms(static_cast<int>(random() % 40));
        }
      }
      MUST(cuCtxSynchronize());
      round(number);
    }
  }

  void fork_often() {
    for (unsigned number = 1; number <= kRounds; ++number) {
      // More than is kept when it is free: each of these is a chunk that is new.
      std::vector<CUdeviceptr> more;
      for (int i = 0; i < 40; ++i) {
        more.push_back(allocate(number));
      }
      int strangers = 0;
      for (int i = 0; i < 30; ++i) {
        const pid_t child = fork();
        if (child == 0) {
          execl("/proc/self/exe", "warm_program", "descriptors", nullptr);
          _exit(99);
        }
        int status = 0;
        waitpid(child, &status, 0);
        strangers += WIFEXITED(status) ? WEXITSTATUS(status) : 99;
        sleep_ms(2);
      }
      std::printf("descriptors=%d\n", strangers);
      for (const CUdeviceptr one : more) {
        MUST(cuMemFree_v2(one));
      }
      round(number);
    }
  }

  void run_out() {
    const int pid = standby();
    std::vector<CUdeviceptr> held;
    for (unsigned number = 1; number <= kRounds; ++number) {
      for (int i = 0; i < 24; ++i) {
        held.push_back(allocate(number));
      }
      round(number);
      // The standby has its share of all of it by now, and is to lose it.
      if (pid != 0 && number < kRounds - 1 && standby() == pid) {
        const bool all = wait_for([&] { return shares_of(pid).size() >= held.size(); });
        std::fprintf(stderr, "handed over: %s\n", all ? "yes" : "no");
      }
      for (const CUdeviceptr one : held) {
        MUST(cuMemFree_v2(one));
      }
      held.clear();
      std::vector<CUdeviceptr> taken;
      CUresult code = CUDA_SUCCESS;
      for (;;) {
        CUdeviceptr address = 0;
        code = p_cuMemAlloc_v2(&address, std::size_t{64} << 20);
        if (code != CUDA_SUCCESS) {
          break;
        }
        taken.push_back(address);
      }
      std::printf("ended=%d after %d\n", static_cast<int>(code), static_cast<int>(taken.size()));
      if (pid != 0 && standby() == pid) {
        int stray = 0;
        const auto lives = [&](std::uint64_t at) {
          const auto near = [&](CUdeviceptr one, std::size_t size) {
            return at <= one && one - at < (32 << 20) && size != 0;
          };
          for (const auto* list : {&chunks_, &outputs_, &taken}) {
            for (const CUdeviceptr one : *list) {
              // A large one has its own chunk, small ones share.
              if (list == &outputs_ ? near(one, 1) : at == one) {
                return true;
              }
            }
          }
          return false;
        };
        for (const std::uint64_t at : shares_of(pid)) {
          stray += lives(at) ? 0 : 1;
        }
        std::fprintf(stderr, "stray shares: %d\n", stray);
      }
      for (const CUdeviceptr one : taken) {
        MUST(cuMemFree_v2(one));
      }
    }
  }

  void kill_it() {
    for (unsigned number = 1; number <= kRounds; ++number) {
      if (number == kRounds - 1) {
        sleep_ms(60);
        if (const int pid = standby()) {
          kill(pid, SIGKILL);
        }
      }
      round(number);
    }
  }

  void with_threads() {
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; ++t) {
      threads.emplace_back([this, t, &over] {
        MUST(cuCtxSetCurrent(context_));
        std::mt19937 random(t);
        std::vector<CUdeviceptr> mine;
        while (!over) {
          if (mine.size() < 24 && random() % 2 == 0) {
            CUdeviceptr address = 0;
            MUST(cuMemAlloc_v2(&address, (16 + random() % 16) << 20));
            mine.push_back(address);
          } else if (!mine.empty()) {
            const std::size_t i = random() % mine.size();
            MUST(cuMemFree_v2(mine[i]));
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i));
          }
          sleep_ms(static_cast<int>(random() % 8));
        }
        for (const CUdeviceptr one : mine) {
          MUST(cuMemFree_v2(one));
        }
      });
    }
    for (unsigned number = 1; number <= kRounds; ++number) {
      sleep_ms(60);
      round(number);
    }
    over = true;
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void leave() {
    for (int i = 0; i < 200; ++i) {
      allocate(1);
    }
    round(1);
    sleep_ms(18);  // about when the first of them are handed over
    std::exit(0);
  }

 private:
  CUcontext context_ = nullptr;
  std::vector<Module> modules_;
  std::vector<CUdeviceptr> chunks_, outputs_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  void* pinned_ = nullptr;
};

int count_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error).string();
    // What else this program was started with is none of ours.
    count += target.find("softgpu") != std::string::npos ||
                     target.find("gpurecover") != std::string::npos
                 ? 1
                 : 0;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "descriptors") {
    return count_descriptors();
  }
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 77;
  }
#define X(name) p_##name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));
  FUNCTIONS(X)
#undef X
  Program program;
  program.round(0);
  // Until the standby is there, if there is to be one.
  if (std::getenv("WARM_PROGRAM_WAITS") != nullptr) {
    wait_for([] { return standby() != 0 && shares_of(standby()).size() >= kModules; });
  }
  const struct {
    const char* name;
    void (Program::*run)();
  } modes[] = {{"churn", &Program::churn}, {"fork", &Program::fork_often},
               {"oom", &Program::run_out}, {"kill", &Program::kill_it},
               {"exit", &Program::leave},  {"threads", &Program::with_threads}};
  for (const auto& one : modes) {
    if (mode == one.name) {
      (program.*one.run)();
      return 0;
    }
  }
  std::fprintf(stderr, "warm_program: unknown mode '%s'\n", mode.c_str());
  return 2;
}
