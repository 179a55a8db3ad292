// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles of softgpu's driver. A handle is the address of its object; a
// handle is only followed after it was found in its table, so a stale or foreign one is an error
// code and never a crash.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "softgpu/device/engine.h"
#include "softgpu/device/launch.h"
#include "softgpu/device/memory.h"
#include "softgpu/driver/call.h"
#include "softgpu/hooks.h"

namespace gpurecover::softgpu {

template <class T>
class HandleTable {
 public:
  void Add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    objects_.emplace(object.get(), std::move(object));
  }
  std::shared_ptr<T> Find(const void* handle) const {
    std::lock_guard lock(mutex_);
    auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> Take(const void* handle) {
    std::lock_guard lock(mutex_);
    auto it = objects_.find(handle);
    if (it == objects_.end())
      return nullptr;
    auto object = std::move(it->second);
    objects_.erase(it);
    return object;
  }
  std::vector<std::shared_ptr<T>> All() const {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (auto& [handle, object] : objects_)
      all.push_back(object);
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

struct Context;
struct Library;
struct Module;

/// What was made of an image once, whatever contexts it is loaded into.
struct CompiledImage {
  std::shared_ptr<const Program> program;
  std::vector<char> cubin;  // what MODULE_LOADED shows: machine code of the image, or a stand-in
  int ptx_version = 0;      // 10 * major + minor
  int sm = 0;
};

struct FunctionAttributes {
  int max_dynamic_shared = 48 << 10;
  int carveout = -1;
  int cluster[3] = {0, 0, 0};
  int non_portable_cluster = 0;
  int cluster_policy = 0;
};

/// CUfunction: a kernel of a module loaded in a context.
struct Function {
  Module* module = nullptr;
  size_t index = 0;
  FunctionAttributes attributes;
  std::atomic<bool> loaded{false};
  const KernelInfo& info() const;
};

/// CUmodule
struct Module {
  uint32_t id = 0;
  std::shared_ptr<Context> context;
  std::shared_ptr<const CompiledImage> image;
  ModuleInstance instance;
  std::vector<std::shared_ptr<Function>> functions;
  Library* library = nullptr;
  ~Module();
};

/// CUkernel
struct Kernel {
  Library* library = nullptr;
  size_t index = 0;
  FunctionAttributes attributes;
  const KernelInfo& info() const;
};

/// CUlibrary: loaded into a context when first used there.
struct Library {
  std::shared_ptr<const CompiledImage> image;
  std::vector<std::shared_ptr<Kernel>> kernels;
  std::mutex mutex;
  std::map<Context*, std::shared_ptr<Module>> modules;
  std::vector<uint64_t> managed;  // addresses of managed variables, shared by all contexts
};

/// CUstream
struct Stream {
  enum class Kind { kLegacy, kPerThread, kCreated };
  Kind kind = Kind::kCreated;
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  QueuePtr queue;
  std::map<int, std::vector<char>> attributes;
  bool blocking() const { return kind != Kind::kLegacy && !(flags & CU_STREAM_NON_BLOCKING); }
};

/// State of an event that other processes may open: lies in a shared file.
struct SharedEvent {
  std::atomic<uint64_t> recorded;   // number of the last record issued
  std::atomic<uint64_t> completed;  // number of the last record done
  std::atomic<uint64_t> time_ns;
};

/// CUevent
struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  int fd = -1;  // interprocess: the shared file
  SharedEvent* shared = nullptr;
  std::mutex mutex;
  std::shared_ptr<Completion> last;  // of the last record; null: never recorded
  ~Event();
};

/// CUgraph
struct Graph {};

/// CUmemoryPool
struct Pool {
  int device = 0;
  CUmemPoolProps properties{};
  std::atomic<uint64_t> used{0}, used_high{0}, reserved_high{0}, release_threshold{0};
  int reuse_event = 1, reuse_opportunistic = 1, reuse_internal = 1;
};

/// CUcontext
struct Context : std::enable_shared_from_this<Context> {
  uint32_t id = 0;
  int device = 0;
  bool primary = false;
  unsigned flags = 0;
  std::atomic<bool> destroyed{false};
  // Issuing is one step: what a legacy-stream operation waits for is decided under this lock.
  std::mutex issue_mutex;
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  std::set<std::shared_ptr<Stream>> streams;  // created ones
  std::atomic<uint64_t> next_stream_id{3};
  std::map<int, size_t> limits;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  std::atomic<bool> cancel{false};
  std::mutex print_mutex;
  std::string printed;
  std::set<Context*> peers;
};

struct Device {
  int index = 0;
  std::shared_ptr<Context> primary;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  std::shared_ptr<Pool> default_pool;
  std::shared_ptr<Pool> pool;
};

struct ArmedFault {
  std::string kernel;  // "": any
  uint64_t launches_left = 1;
  FaultPlan plan;
  bool healthy = false;
};

struct State {
  static State& Get();

  std::mutex init_mutex;
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};
  std::vector<Device> devices;
  std::mutex mutex;  // of primary contexts
  HandleTable<Context> contexts;
  HandleTable<Module> modules;
  HandleTable<Function> functions;
  HandleTable<Kernel> kernels;
  HandleTable<Library> libraries;
  HandleTable<Stream> streams;
  HandleTable<Event> events;
  HandleTable<Pool> pools;
  HandleTable<Graph> graphs;
  std::atomic<uint32_t> next_context_id{1};
  std::atomic<uint32_t> next_module_id{1};
  std::unique_ptr<Executor> executor;  // null: this build has no interpreter
  bool verbose = false;

  std::mutex tools_mutex;
  std::list<ArmedFault> armed;
  std::atomic<bool> record{false};
  std::atomic<uint64_t> step_budget{0};
  std::vector<ByteRange> last_reads, last_writes;
  std::atomic<uint64_t> fired{0}, launches{0}, strays{0};
  std::string last_message;
  int last_code = 0;
};

// --- shared by the files that implement calls ---
/// The thread's current context, or null.
std::shared_ptr<Context> Current();
/// CUDA_SUCCESS and the current context, or what a call without one answers.
CUresult NeedContext(std::shared_ptr<Context>* context);
CUresult NeedDevice(CUdevice device);
/// The stream that a handle means to this thread.
CUresult NeedStream(CUstream handle, std::shared_ptr<Stream>* stream);
/// Issues work in order with the legacy stream's rules; returns the ticket.
uint64_t Issue(const std::shared_ptr<Stream>& stream, Operation operation);
/// Issues and waits; prints what kernels printed.
CUresult IssueAndWait(const std::shared_ptr<Stream>& stream, Operation operation);
CUresult SynchronizeStream(const std::shared_ptr<Stream>& stream);
CUresult SynchronizeContext(Context& context);
CUresult SynchronizeDevice(int device);
void FlushPrinted(Context& context);
/// The module of a library in a context, loaded now if it was not.
CUresult LoadLibraryInto(Library& library, const std::shared_ptr<Context>& context,
                         std::shared_ptr<Module>* module);
/// The function of a CUfunction or CUkernel handle in the current context.
CUresult NeedFunction(const void* handle, std::shared_ptr<Function>* function);
/// Name of the kernel of either kind of handle, or null.
const char* KernelName(const void* handle);

// --- callbacks ---
void SendContextCreated(Context& context);
void SendContextDestroyed(Context& context);
void SendStreamCreated(Context& context, Stream& stream);
void SendStreamDestroyed(Context& context, Stream& stream);
void SendModuleLoaded(Module& module);
void SendModuleUnloading(Module& module);
void SendInitFinished();
void SendStreamSynchronized(Context& context, CUstream stream);
void SendContextSynchronized(Context& context);

/// Prints one line on stderr.
void Say(const std::string& line);

}  // namespace gpurecover::softgpu
