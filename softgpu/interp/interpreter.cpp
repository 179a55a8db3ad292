// SPDX-License-Identifier: Apache-2.0
// Launches: which blocks are resident, which worker runs which, and how a launch ends.
//
// The thread that calls Run works on its own launch, so that every launch makes progress whatever
// the others do; helper threads join in where a launch has more than one block. A block runs until
// its time is over or all its warps wait; then another one gets its turn, or a new one becomes
// resident: blocks that wait for others do not keep those from running.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "softgpu/interp/block.h"
#include "softgpu/interp/code.h"

namespace gpurecover::softgpu {
namespace interp {
namespace {

constexpr uint64_t kBlockQuantum = 50'000;  // warp instructions
constexpr uint64_t kWaitNs = 1000;          // device time that a fruitless turn takes
// What cooperative groups keep for a grid's barrier (CUDA's cooperative_groups/details/helpers.h:
// the grid workspace, whose address is in %envreg1, the high half, and %envreg2).
constexpr uint64_t kGridWorkspace = 512;
// Of a launch that is not cooperative; what a large device could hold at once.
constexpr uint64_t kResidentThreads = 132 * 2048;
constexpr uint64_t kResidentBytes = 1ull << 30;

class Launch {
 public:
  Launch(const LaunchRequest& request, const CompiledProgram& program, uint64_t grid_id);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Runs one block for a while; false: there is none to run now.
  bool Slice();
  // The caller's part: until the launch is over.
  void Finish(const std::function<void()>& want_help);
  LaunchResult TakeResult();
  bool parallel() const { return request_.seed == 0; }
  bool wants_help();

 private:
  struct Resident {
    std::unique_ptr<Block> block;
    bool waiting = false;
    bool stuck = false;
  };

  bool Take(Resident& r, AccessLog*& log);
  void Put(Resident r, AccessLog* log, Block::Outcome outcome, uint64_t finished);
  void EndWith(int code, std::string message);  // mutex_ held
  std::string Where(uint64_t block, uint32_t thread) const;

  const LaunchRequest& request_;
  LaunchShared shared_;
  std::vector<std::byte*> patched_;
  uint64_t blocks_ = 0;
  uint64_t max_resident_ = 1;
  uint64_t workspace_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Resident> ready_;
  std::vector<std::unique_ptr<Block>> idle_;
  AccessPages pages_;
  std::vector<std::unique_ptr<AccessLog>> logs_;
  std::vector<AccessLog*> idle_logs_;
  std::atomic<uint64_t> next_{0};  // block that is to start next; may run past the last
  uint64_t finished_ = 0;
  uint64_t running_ = 0;
  uint64_t resident_ = 0;
  uint64_t turns_ = 0;
  uint64_t fruitless_ = 0;  // turns in a row in which a block only waited
  bool over_ = false;
  LaunchResult result_;
};

Launch::Launch(const LaunchRequest& request, const CompiledProgram& program, uint64_t grid_id)
    : request_(request) {
  const KernelCode& kernel = program.code_[request.kernel];
  shared_.request = &request;
  shared_.program = &program;
  shared_.kernel = &kernel;
  shared_.info = &program.kernels_[request.kernel];
  shared_.threads = static_cast<uint32_t>(request.block.count());
  shared_.warps = (shared_.threads + kLanes - 1) / kLanes;
  shared_.shared_bytes = request.dynamic_shared_bytes
                             ? kernel.dynamic_offset + request.dynamic_shared_bytes
                             : kernel.static_shared;
  shared_.grid_id = grid_id;
  for (const FunctionCode& f : kernel.functions) {
    if (f.relocations.empty() && reinterpret_cast<uintptr_t>(f.constants.data()) % 16 == 0) {
      shared_.constants.push_back(f.constants.data());
      continue;
    }
    std::byte* copy = static_cast<std::byte*>(
        ::operator new (std::max<size_t>(64, f.constants.size()), std::align_val_t{64}));
    patched_.push_back(copy);
    if (!f.constants.empty())
      std::memcpy(copy, f.constants.data(), f.constants.size());
    for (const ConstantRelocation& r : f.relocations) {
      const uint64_t value =
          (r.variable < request.module->addresses.size() ? request.module->addresses[r.variable]
                                                         : 0) +
          static_cast<uint64_t>(r.addend);
      for (uint32_t lane = 0; lane < kLanes; ++lane)
        std::memcpy(copy + r.offset + lane * r.bytes, &value, r.bytes);
    }
    shared_.constants.push_back(copy);
  }
  blocks_ = request.grid.count();
  const uint64_t block_bytes =
      uint64_t{shared_.warps} * (kernel.functions[0].register_bytes +
                                 uint64_t{kernel.stack_bytes} * kLanes + sizeof(Warp)) +
      shared_.shared_bytes + 4096;
  max_resident_ = std::max<uint64_t>(
      2, std::min(kResidentThreads / std::max(32u, shared_.threads), kResidentBytes / block_bytes));
  if (request.cooperative) {
    max_resident_ = blocks_;
    workspace_ = request.memory->Malloc(kGridWorkspace);
    if (workspace_) {
      std::memset(reinterpret_cast<void*>(workspace_), 0, kGridWorkspace);
      shared_.envreg[1] = workspace_ >> 32;
      shared_.envreg[2] = workspace_ & 0xFFFFFFFF;
    }
  }
}

Launch::~Launch() {
  if (workspace_)
    request_.memory->Free(workspace_);
  for (std::byte* p : patched_)
    ::operator delete (p, std::align_val_t{64});
}

bool Launch::Take(Resident& r, AccessLog*& log) {
  std::unique_lock lock(mutex_);
  if (over_ || (!parallel() && running_ > 0))
    return false;
  const bool can_start = next_ < blocks_ && resident_ < max_resident_;
  // A block that has only waited may wait for one that has not started.
  const bool start = can_start && (ready_.empty() || ready_.front().waiting || ++turns_ % 4 == 0);
  log = nullptr;
  if (request_.record_accesses) {
    if (idle_logs_.empty()) {
      logs_.push_back(std::make_unique<AccessLog>(pages_));
      idle_logs_.push_back(logs_.back().get());
    }
    log = idle_logs_.back();
    idle_logs_.pop_back();
  }
  const uint64_t number = start ? next_.fetch_add(1, std::memory_order_relaxed) : blocks_;
  if (number < blocks_) {
    ++resident_;
    ++running_;
    if (!idle_.empty()) {
      r.block = std::move(idle_.back());
      idle_.pop_back();
    }
    lock.unlock();
    try {
      if (!r.block)
        r.block = std::make_unique<Block>(shared_);
      r.block->Start(number);
      return true;
    } catch (const std::bad_alloc&) {
      lock.lock();
      --running_;
      EndWith(kLaunchOutOfResources,
              "kernel " + shared_.info->name + ": no memory for another block");
      lock.unlock();
      changed_.notify_all();
      return false;
    }
  }
  // Blocks whose threads wait for threads that never come are left where they are.
  for (size_t k = 0; k < ready_.size() && ready_.front().stuck; ++k) {
    ready_.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  if (ready_.empty() || ready_.front().stuck) {
    if (log)
      idle_logs_.push_back(log);
    return false;
  }
  r = std::move(ready_.front());
  ready_.pop_front();
  ++running_;
  return true;
}

std::string Launch::Where(uint64_t block, uint32_t thread) const {
  const Dim3 &g = request_.grid, &b = request_.block;
  auto triple = [](uint64_t linear, const Dim3& d) {
    return "(" + std::to_string(linear % d.x) + "," + std::to_string(linear / d.x % d.y) + "," +
           std::to_string(linear / d.x / d.y) + ")";
  };
  return "kernel " + shared_.info->name + ", block " + triple(block, g) + ", thread " +
         triple(thread, b);
}

void Launch::EndWith(int code, std::string message) {
  if (over_)
    return;
  over_ = true;
  shared_.stop.store(true, std::memory_order_relaxed);
  result_.code = code;
  result_.message = std::move(message);
}

void Launch::Put(Resident r, AccessLog* log, Block::Outcome outcome, uint64_t finished) {
  const uint64_t threads = r.block->TakeThreadInstructions();
  shared_.warp_steps.fetch_add(r.block->TakeSteps(), std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  --running_;
  if (log)
    idle_logs_.push_back(log);
  result_.thread_instructions += threads;
  finished_ += finished;
  switch (outcome) {
    case Block::Outcome::kDone:
      fruitless_ = 0;
      --resident_;
      result_.stray_accesses += r.block->stray();
      if (r.block->stray() && !result_.first_stray)
        result_.first_stray = r.block->first_stray();
      r.block->ClearStray();
      idle_.push_back(std::move(r.block));
      if (finished_ == blocks_)
        over_ = true;
      break;
    case Block::Outcome::kFault:
      if (!over_) {
        const Fault& f = r.block->fault();
        result_.block = r.block->linear();
        result_.thread = f.thread;
        result_.instruction = f.instruction;
        result_.location = f.location;
        result_.address = f.address;
        result_.access_bytes = f.bytes;
        result_.access_was_write = f.write;
        std::string message = Where(r.block->linear(), f.thread) + ", " + f.location + ": ";
        if (f.bytes) {
          char access[96];
          std::snprintf(access, sizeof access,
                        "%s of %u bytes at 0x%llx: ", f.write ? "write" : "read", f.bytes,
                        static_cast<unsigned long long>(f.address));
          message += access;
        }
        EndWith(f.code, message + f.what);
      }
      break;
    default:
      r.waiting = outcome == Block::Outcome::kWaiting || outcome == Block::Outcome::kStuck;
      r.stuck = outcome == Block::Outcome::kStuck;
      if (r.waiting)
        ++fruitless_;
      else
        fruitless_ = 0;
      ready_.push_back(std::move(r));
  }
  if (request_.step_budget && !over_) {
    if (result_.thread_instructions > request_.step_budget)
      EndWith(kLaunchTimeout, "kernel " + shared_.info->name + ": more than " +
                                  std::to_string(request_.step_budget) +
                                  " thread instructions (step budget)");
    else if (running_ == 0 && next_ >= blocks_ &&
             std::all_of(ready_.begin(), ready_.end(), [](const Resident& x) { return x.stuck; }))
      EndWith(kLaunchTimeout, "kernel " + shared_.info->name +
                                  ": every thread waits at a barrier for threads that never come");
  }
  if (!over_ && request_.cancel && request_.cancel->load(std::memory_order_relaxed))
    EndWith(kLaunchFailed, "kernel " + shared_.info->name + ": cancelled");
  const bool wake = over_ || running_ == 0;
  lock.unlock();
  if (wake)
    changed_.notify_all();
}

bool Launch::Slice() {
  Resident r;
  AccessLog* log;
  if (!Take(r, log))
    return false;
  uint64_t quantum = kBlockQuantum;
  if (request_.step_budget)
    quantum = std::clamp<uint64_t>(request_.step_budget / kLanes, 1, kBlockQuantum);
  // Short blocks follow one another without asking anyone, until a block's time is used up.
  uint64_t done = 0, finished = 0;
  Block::Outcome outcome;
  while (true) {
    try {
      outcome = r.block->Run(quantum, log);
    } catch (const std::bad_alloc&) {
      outcome = r.block->OutOfMemory();
    }
    if (outcome != Block::Outcome::kDone)
      break;
    ++finished;
    done += r.block->steps();
    if (request_.step_budget || done >= kBlockQuantum ||
        shared_.stop.load(std::memory_order_relaxed))
      break;
    const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    if (number >= blocks_)
      break;
    r.block->Start(number);
  }
  if (outcome == Block::Outcome::kWaiting)
    shared_.waited_ns.fetch_add(kWaitNs, std::memory_order_relaxed);
  Put(std::move(r), log, outcome, finished);
  return true;
}

bool Launch::wants_help() {
  std::lock_guard lock(mutex_);
  // Blocks that only wait are left to the caller, who rests between turns.
  return !over_ && parallel() && fruitless_ <= 2 * resident_ &&
         ((next_ < blocks_ && resident_ < max_resident_) || ready_.size() > 1);
}

void Launch::Finish(const std::function<void()>& want_help) {
  bool helped = false;
  while (true) {
    const bool ran = Slice();
    std::unique_lock lock(mutex_);
    if (over_)
      break;
    const uint64_t blocks_left = blocks_ - std::min<uint64_t>(blocks_, next_) + ready_.size();
    const bool resting = fruitless_ > 2 * resident_;
    if (ran && !resting) {
      lock.unlock();
      if (!helped && blocks_left > 1 && parallel()) {
        want_help();
        helped = true;
      }
      continue;
    }
    // Every block waits for something outside (the host, another launch) or is being run by a
    // helper: do not burn the processor that may have to bring it about.
    changed_.wait_for(lock, std::chrono::microseconds(ran ? 50 : 500));
    if (!over_ && request_.cancel && request_.cancel->load(std::memory_order_relaxed))
      EndWith(kLaunchFailed, "kernel " + shared_.info->name + ": cancelled");
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
}

LaunchResult Launch::TakeResult() {
  std::lock_guard lock(mutex_);
  for (const Resident& r : ready_) {
    result_.stray_accesses += r.block->stray();
    if (r.block->stray() && !result_.first_stray)
      result_.first_stray = r.block->first_stray();
  }
  result_.fault_fired = shared_.fault_fired.load(std::memory_order_relaxed);
  if (request_.record_accesses)
    pages_.Collect(result_.reads, result_.writes);
  if (workspace_)  // not the program's memory
    for (auto* ranges : {&result_.reads, &result_.writes})
      std::erase_if(*ranges, [this](const ByteRange& r) {
        return r.begin >= workspace_ && r.end <= workspace_ + kGridWorkspace;
      });
  return std::move(result_);
}

class Interpreter : public Executor {
 public:
  explicit Interpreter(const ExecutorOptions& options)
      : workers_(options.workers ? options.workers
                                 : std::max(1u, std::thread::hardware_concurrency())) {}
  ~Interpreter() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wanted_.notify_all();
    for (std::thread& t : helpers_)
      t.join();
  }

  tl::expected<std::shared_ptr<const Program>, CompileError> Compile(
      const ptx::Module& module) override {
    try {
      auto program = CompileModule(module);
      if (!program)
        return tl::unexpected(program.error());
      return std::shared_ptr<const Program>(*program);
    } catch (const std::bad_alloc&) {
      return tl::unexpected(CompileError{"the module is too large to compile", 0});
    }
  }

  LaunchResult Run(const LaunchRequest& request) override;

 private:
  void Help();
  void WantHelp();

  const unsigned workers_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::list<std::shared_ptr<Launch>> launches_;
  std::vector<std::thread> helpers_;
  bool ending_ = false;
  std::atomic<uint64_t> next_grid_{1};
};

void Interpreter::WantHelp() {
  std::lock_guard lock(mutex_);
  try {
    while (helpers_.size() + 1 < workers_)
      helpers_.emplace_back([this] { Help(); });
  } catch (const std::system_error&) {
    // Without helpers the caller does all the work.
  }
  wanted_.notify_all();
}

void Interpreter::Help() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    std::shared_ptr<Launch> found;
    for (auto it = launches_.begin(); it != launches_.end(); ++it)
      if ((*it)->wants_help()) {
        found = *it;
        launches_.splice(launches_.end(), launches_, it);  // launches take turns
        break;
      }
    if (!found) {
      wanted_.wait_for(lock, std::chrono::milliseconds(launches_.empty() ? 1000 : 2));
      continue;
    }
    lock.unlock();
    for (int turn = 0; turn < 16 && found->wants_help() && found->Slice(); ++turn) {
    }
    found.reset();
    lock.lock();
  }
}

LaunchResult Interpreter::Run(const LaunchRequest& request) {
  LaunchResult bad;
  bad.code = kLaunchFailed;
  const auto* program = request.module
                            ? dynamic_cast<const CompiledProgram*>(request.module->program.get())
                            : nullptr;
  if (!program || request.kernel >= program->code_.size() || !request.memory) {
    bad.message = "the launch names no kernel";
    return bad;
  }
  const KernelInfo& info = program->kernels_[request.kernel];
  if (request.parameters.size() < info.parameter_bytes) {
    bad.message = "kernel " + info.name + ": too few parameter bytes";
    return bad;
  }
  const uint64_t threads = request.block.count();
  if (threads == 0 || threads > 1024 || request.grid.count() == 0) {
    bad.message = "kernel " + info.name + ": invalid dimensions";
    return bad;
  }
  if (request.cluster.count() > 1) {
    bad.code = kNotSupported;
    bad.message = "kernel " + info.name + ": thread block clusters are not supported by softgpu";
    return bad;
  }
  try {
    auto launch = std::make_shared<Launch>(request, *program, next_grid_.fetch_add(1));
    std::list<std::shared_ptr<Launch>>::iterator place;
    {
      std::lock_guard lock(mutex_);
      place = launches_.insert(launches_.end(), launch);
    }
    launch->Finish([this] { WantHelp(); });
    {
      std::lock_guard lock(mutex_);
      launches_.erase(place);
    }
    return launch->TakeResult();
  } catch (const std::bad_alloc&) {
    bad.code = kLaunchOutOfResources;
    bad.message = "kernel " + info.name + ": no memory for its blocks";
    return bad;
  }
}

}  // namespace
}  // namespace interp

std::unique_ptr<Executor> MakeInterpreter(const ExecutorOptions& options) {
  return std::make_unique<interp::Interpreter>(options);
}

}  // namespace gpurecover::softgpu
