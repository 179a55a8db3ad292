// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cupti/agent/kernel_table.h"
#include "cupti/agent/launch_call.h"
#include "cupti/agent/steering.h"
#include "cupti/agent/work_gate.h"
#include "idempotency/memory_map.h"
#include "idempotency/verdict.h"
#include "recovery/launch_log.h"

namespace gpurecover::agent {

struct Injection;
struct GlobalVariable;

// The verdict of a launch as far as the hot path needs it.
struct Judgement {
  idempotency::VerdictKind kind = idempotency::VerdictKind::kUnknown;
  bool is_protected = false;
  std::uint32_t reason_id = 0;  // why not protected
  // What it reads and writes, if it is protected. Lives in the cache of judgements: until the next
  // one is made.
  const recovery::AccessSets* sets = nullptr;
};

// What one thread has judged lately. An entry counts only if kernel, arguments (all bytes that the
// verdict can depend on), dimensions and the generations of memory map and kernel table are the
// same.
struct CachedJudgement {
  const Kernel* kernel = nullptr;
  std::uint64_t map_generation = 0;
  std::uint64_t kernel_generation = 0;
  std::array<std::uint32_t, 7> dimensions = {};
  std::vector<std::byte> arguments;  // judged_part
  recovery::AccessSets sets;
  Judgement judgement;  // without the pointer to `sets`, for entries move

  Judgement with_sets() const {
    Judgement out = judgement;
    out.sets = sets.key != 0 ? &sets : nullptr;
    return out;
  }
};

// Pairs of places: each judgement has one pair, of which the older one makes room.
class JudgementCache {
 public:
  static constexpr std::size_t kPlaces = 256;  // a power of two
  // The first place of the pair; the second is behind it.
  static std::size_t place_of(std::uint64_t hash) { return hash & (kPlaces - 1) & ~std::size_t{1}; }
  const CachedJudgement& operator[](std::size_t place) const { return entries_[place]; }
  // The entry to be written, at `place`; the pair's latest so far has moved behind it.
  CachedJudgement& make_room(std::size_t place) {
    std::swap(entries_[place], entries_[place + 1]);
    return entries_[place];
  }

 private:
  std::array<CachedJudgement, kPlaces> entries_;
};

// What a judgement is kept under beside the launch itself, and where.
struct LaunchKey {
  bool cacheable = false;                // all arguments could be read
  std::span<const std::byte> arguments;  // judged_part
  std::uint64_t map_generation = 0;
  std::uint64_t kernel_generation = 0;
  std::size_t place = 0;
};

struct CachedHandle {
  CUfunction handle = nullptr;
  CUcontext context = nullptr;
  std::uint64_t generation = 0;
  Kernel* kernel = nullptr;
};

// How the app's call under way is dealt with, from its enter to its exit callback.
struct CallUnderWay {
  // What every launch uses comes first, so that it lies together.
  // Of the call that the rest is about: the driver may call itself meanwhile.
  std::uint32_t correlation = 0;
  bool ignored = false;     // of a launch: capturing, or not to be looked at
  bool suppressed = false;  // the driver is made to refuse it
  bool delivers = false;    // the error held back is returned by it
  std::int32_t code = 0;    // which
  Kernel* kernel = nullptr;
  std::unique_ptr<Injection> injection;
  LaunchCall launch;

  CUlaunchConfig suppressed_config{};
  CUDA_MEMCPY2D copy_2d{};
  CUDA_MEMCPY3D copy_3d{};
  std::uint64_t saved[2] = {0, 0};  // what suppression overwrote
  std::chrono::steady_clock::time_point entered;
  std::vector<idempotency::Allocation> freed;  // to be put back if the free fails

  // Of a launch that is logged: where, and under which number.
  recovery::StreamLog* log = nullptr;
  recovery::Issue issue;
  bool gathered = false;  // ThreadState::arguments are its
  bool replayable = false;
  const recovery::AccessSets* sets = nullptr;  // of a replayable one, where they are known
  std::vector<GlobalVariable*> variables;      // of modules, that it may write; claimed
  bool followed = false;                       // what it does to variables is accounted for
  // Whether the standby is to do the call, what the app passed, and how many takeovers there had
  // been at its enter.
  std::uint32_t takeover = 0;  // the call that this is about: its correlation id
  bool served = false;
  bool steered = false;          // its exit has been dealt with by the steering
  bool undone = false;           // a launch that a forged fault leaves undone
  bool launch_in_doubt = false;  // served, but by a standby that is gone
  std::uint64_t epoch = 0;
  std::uint32_t served_size = 0;
  alignas(16) std::array<std::byte, 512> served_params;
};

// The agent's state of one thread. All of it is used inside the thread's own callbacks only.
struct alignas(64) ThreadState {
  ThreadState();
  ~ThreadState();

  bool inside = false;  // our own calls must not be taken for the app's
  WorkGate::Lane lane;
  std::uint32_t entered = 0;  // the call that has entered the gate: its correlation id
  CallUnderWay call;
  SteeredCall steered;
  struct {
    CUstream stream = nullptr;
    std::uint64_t generation = 0;
    recovery::StreamLog* log = nullptr;
  } stream_log;  // the last one used
  // Of a call that waits: each stream's log, and how far it was settled at the enter.
  std::vector<std::pair<recovery::StreamLog*, std::uint64_t>> settled;
  std::vector<std::byte> arguments;
  std::vector<std::byte> judged;  // see judged_part
  idempotency::Verdict verdict;
  // A power of two.
  static constexpr std::size_t kHandles = 256;
  // Where the last two were found: most launches are like one of those.
  std::array<std::uint32_t, 2> recent{};
  JudgementCache judgements;
  std::array<CachedHandle, kHandles> handles;
};

}  // namespace gpurecover::agent
