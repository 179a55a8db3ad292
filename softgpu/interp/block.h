// SPDX-License-Identifier: Apache-2.0
// One resident thread block: warps, groups of lanes, barriers. Run by one worker at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "softgpu/device/launch.h"
#include "softgpu/interp/access_log.h"
#include "softgpu/interp/code.h"

namespace gpurecover::softgpu::interp {

// What all blocks of a launch share and only read, but for the counters.
struct LaunchShared {
  const LaunchRequest* request = nullptr;
  const CompiledProgram* program = nullptr;
  const KernelCode* kernel = nullptr;
  const KernelInfo* info = nullptr;
  // Constants of each function, with the addresses of this load of the module put in.
  std::vector<const std::byte*> constants;
  uint32_t threads = 0, warps = 0;
  uint32_t shared_bytes = 0;
  uint64_t grid_id = 0;
  uint64_t envreg[32] = {};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> warp_steps{0};  // of finished slices
  std::atomic<uint64_t> waited_ns{0};   // time that passed in waits
  std::atomic<bool> fault_fired{false};
};

// A point where lanes that parted meet again.
struct Frame;
struct Join {
  const Op* pc = nullptr;
  Frame* frame = nullptr;
  Join* parent = nullptr;
  uint32_t pending = 0;  // lanes that are to arrive, those that have included
  uint32_t arrived = 0;
  uint64_t since = 0;  // the warp's clock at the first arrival
};

struct Frame {
  uint32_t function = 0;
  const FunctionCode* code = nullptr;
  std::byte* registers = nullptr;
  uint64_t local = 0;  // offset in the threads' local memory
  const CallSite* call = nullptr;
  Frame* caller = nullptr;
  const Op* return_to = nullptr;
  uint32_t live = 0;  // lanes that have not returned
  uint32_t depth = 0;
};

enum class GroupState : uint8_t { kRun, kBarrier, kSync, kHung };

// Lanes that execute in lockstep.
struct Group {
  const Op* pc = nullptr;
  uint32_t mask = 0;
  GroupState state = GroupState::kRun;
  Frame* frame = nullptr;
  Join* join = nullptr;
  uint32_t barrier = 0;  // kBarrier
  const BarrierSite* barrier_site = nullptr;
  const SyncSite* sync = nullptr;  // kSync
  uint32_t member = 0;
};

struct Warp {
  uint32_t id = 0;
  uint32_t live = 0;
  std::vector<Group> groups;
  uint32_t turn = 0;
  uint64_t clock = 0;
  uint32_t waiting_joins = 0;  // joins at which lanes wait
  std::vector<Join*> joins;    // in use
  Frame root;
  uint64_t count[kLanes] = {};  // instructions of each thread
  uint32_t tid[3][kLanes] = {};
  const Op* poll_op = nullptr;
  uint64_t poll_hash = 0;
  uint32_t poll_count = 0;
  uint64_t last_address = 0;
};

struct Fault {
  int code = 0;
  uint32_t thread = 0;
  uint64_t instruction = 0;
  std::string what, location;
  uint64_t address = 0;
  uint32_t bytes = 0;
  bool write = false;
};

class Block {
 public:
  enum class Outcome {
    kDone,
    kMore,     // its time is over
    kWaiting,  // every warp waits for what other blocks or the host do
    kStuck,    // every warp waits for threads that will never come
    kFault,
  };

  explicit Block(LaunchShared& launch);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void Start(uint64_t linear);
  // Runs up to `steps` warp instructions.
  Outcome Run(uint64_t steps, AccessLog* log);

  // The host has no memory left for what the block needs (frames of calls, text of a printf).
  Outcome OutOfMemory() {
    fault_ = {};
    fault_.code = kLaunchOutOfResources;
    fault_.what = "no memory left on the host";
    return Outcome::kFault;
  }

  uint64_t linear() const { return linear_; }
  const Fault& fault() const { return fault_; }
  // Since the last call.
  uint64_t TakeThreadInstructions() { return std::exchange(thread_instructions_, 0); }
  uint64_t steps() const { return steps_; }
  uint64_t TakeSteps() { return std::exchange(steps_, 0); }
  uint64_t stray() const { return ctx_.stray; }
  uint64_t first_stray() const { return ctx_.first_stray; }
  void ClearStray() { ctx_.stray = ctx_.first_stray = 0; }

 private:
  enum class Stop { kDone, kMore, kBlocked, kYield, kFault };

  Stop RunWarp(Warp& w, uint64_t& steps);
  template <bool kTraced>
  Stop RunGroup(Warp& w, uint32_t index, uint64_t limit, uint64_t& used);
  void Enter(Warp& w, const Group& g);
  void SetFrame(const Frame& f);
  void Count(Warp& w, uint32_t mask, uint64_t& segment);

  Join* NewJoin(Warp& w, const Op* pc, Frame* frame, uint32_t pending, Join* parent);
  void FreeJoin(Warp& w, Join* j);
  // Lanes arrive; true: the join is complete and gone, `g` goes on with all of them.
  bool Arrive(Warp& w, Group& g, uint32_t lanes);
  void Detach(Warp& w, Join* from, uint32_t lanes, const Frame* only);
  bool ReleaseJoin(Warp& w, uint64_t older_than);

  Frame* NewFrame(uint32_t function);
  void FreeFrame(Frame* f);
  bool Call(Warp& w, Group& g, const CallSite& site, const Op* pc);
  void Return(Warp& w, Group& g);
  void Exit(Warp& w, Frame* frame, Join* join, uint32_t lanes);
  bool Intrinsics(Warp& w, Group& g, const CallSite& site);
  std::string Format(uint32_t lane, uint64_t format, uint64_t args, bool& ok, int& count);
  bool ReadGeneric(uint32_t lane, uint64_t address, void* to, uint32_t bytes);
  bool ReadString(uint32_t lane, uint64_t address, std::string& text);
  std::byte* Local(uint32_t lane, uint64_t offset, uint32_t bytes);

  bool Synchronise(Warp& w, uint32_t index);
  void Collective(Warp& w, std::span<const uint32_t> parts);
  bool ArriveAtBarrier(Warp& w, Group& g, const BarrierSite& site, bool& bad);
  void ReleaseBarrier(uint32_t id);
  void RecheckBarriers();
  void RecheckSyncs(Warp& w);

  void SetFault(Warp& w, const Group& g, const Op& op, uint32_t lane, uint64_t segment, int code,
                std::string what);

  LaunchShared& launch_;
  uint64_t linear_ = 0;
  Ctx ctx_;
  std::vector<Warp> warps_;
  std::byte* registers_ = nullptr;
  std::byte* shared_ = nullptr;
  std::byte* local_ = nullptr;
  uint64_t local_per_warp_ = 0;
  uint32_t root_bytes_ = 0;
  uint32_t live_threads_ = 0;
  uint32_t live_warps_ = 0;
  uint32_t first_warp_ = 0;
  uint64_t thread_instructions_ = 0;
  uint64_t steps_ = 0;

  struct BarrierState {
    uint32_t arrived = 0, expected = 0;  // expected 0: all threads of the block
    uint32_t popc = 0;
    bool all = true, any = false;
  };
  std::array<BarrierState, 17> barriers_;

  std::vector<std::unique_ptr<Join>> join_pool_;
  std::vector<Join*> free_joins_;
  std::vector<std::unique_ptr<Frame>> frame_pool_;
  std::vector<Frame*> free_frames_;

  Fault fault_;
  // A planned fault.
  uint32_t traced_warp_ = kNone;
  uint32_t traced_lane_ = 0;
  uint64_t traced_at_ = 0;
  std::byte* flip_ = nullptr;  // register to flip, once the instruction is over
  uint32_t flip_bytes_ = 0;
};

}  // namespace gpurecover::softgpu::interp
