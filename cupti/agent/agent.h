// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "classifier/rules.h"
#include "cupti/agent/cupti_api.h"
#include "cupti/agent/image_store.h"
#include "cupti/agent/kernel_table.h"
#include "cupti/agent/latch.h"
#include "cupti/agent/launch_call.h"
#include "cupti/agent/pending_fault.h"
#include "cupti/agent/session.h"
#include "cupti/agent/soft_device.h"
#include "cupti/agent/steering.h"
#include "cupti/agent/takeover.h"
#include "cupti/agent/thread_state.h"
#include "cupti/agent/work_gate.h"
#include "cupti/driver_api/device_ops.h"
#include "cupti/driver_api/driver.h"
#include "cupti/driver_api/driver_api.h"
#include "idempotency/memory_map.h"
#include "inject/plan.h"
#include "inject/trigger.h"
#include "recovery/decision.h"

namespace gpurecover::agent {

// A fault of the plan, ready to fire.
struct ArmedFault {
  ArmedFault(const inject::Fault& fault, std::uint32_t index, classifier::Pattern pattern)
      : fault(fault), index(index), pattern(std::move(pattern)), trigger(fault) {}
  const inject::Fault fault;
  const std::uint32_t index;  // in the session's plan, later plans appended
  const classifier::Pattern pattern;
  inject::Trigger trigger;
};
using Plan = std::vector<std::shared_ptr<ArmedFault>>;

// A forged fault at work, from the enter to the exit of its launch.
struct Injection {
  std::shared_ptr<ArmedFault> armed;
  std::uint64_t match = 0;  // which match of the pattern
  bool runs = false;        // the driver really launches the kernel
  std::uint64_t noise_seed = 0;
  std::vector<idempotency::Range> ranges;       // whose content was saved for the damage
  std::vector<std::uint64_t> offsets;           // of each in the copy
  std::unique_ptr<driver_api::Scratch> before;  // null: no damage beyond what the kernel does
  std::unique_ptr<driver_api::Scratch> counter;
  // The device itself makes the fault, at a point inside the kernel.
  bool by_device = false;
  std::uint64_t fired_before = 0;
};

// The part of gpurecover that lives in the app's process: one object, made when the driver loads
// the agent, never destroyed, since callbacks may come until the process is gone.
//
// Discipline: a callback of the agent's own calls does nothing (ThreadState::inside); no lock of
// the agent's is held across a driver call; nothing throws out of a callback; whatever goes wrong
// inside, the app's call is made as the app made it.
class Agent {
 public:
  // Called once, from InitializeInjection.
  static void start();

 private:
  Agent() = default;

  static void CUPTIAPI on_callback(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId cbid,
                                   const void* data);
  ThreadState& new_state_of_thread();
  // The calling thread is the agent's own: none of its driver calls are the app's.
  static void quiet_this_thread();
  void dispatch(ThreadState& state, std::uint32_t cbid, const CUpti_CallbackData& data);
  void pass_gate(ThreadState& state, const driver_api::Call* call, std::uint32_t correlation);
  void on_enter(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                const CUpti_CallbackData& data);
  void on_exit(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
               const CUpti_CallbackData& data, CUresult& result);

  // attach.cpp
  bool subscribe(std::string& error);
  void enable_callbacks();
  void enable_for_plan();
  // Tries out, at the first launch, that return values and parameters can be changed; the agent
  // stays passive if not.
  void settle() {
    // A call_once that has run still costs two thread-local accesses and a call.
    if (!settled_.load(std::memory_order_acquire)) [[unlikely]] {
      settle_now();
    }
  }
  void settle_now();
  bool probe();
  void give_up(const std::string& reason);
  protocol::Attached describe();

  // memory_hooks.cpp: keeps the memory map and the image store true.
  // What becomes visible to others than this process's streams, or under a second address, so that
  // its writers and readers are not all known.
  void after_sharing(const driver_api::Call& call, const void* params);
  void before_handle_gone(const void* params);
  void mark_shared(std::uint64_t address);
  // Notes where a handle is mapped; whether it is visible to others.
  bool note_mapping(std::uint64_t handle, std::uint64_t address);
  void share_handle(std::uint64_t handle);
  // Of every call but launches, around what else is done at it: see Steering.
  void steer_enter(ThreadState& state, const driver_api::Call& call,
                   const CUpti_CallbackData& data);
  void steer_exit(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                  const CUpti_CallbackData& data, CUresult& result);
  void before_free(ThreadState& state, const driver_api::Call& call, const void* params);
  void after_free(ThreadState& state, CUresult result);
  void after_alloc(const driver_api::Call& call, const CUpti_CallbackData& data);
  void after_module_call(const driver_api::Call& call, const CUpti_CallbackData& data);
  void before_module_gone(const driver_api::Call& call, const void* params);
  void after_context_gone(const driver_api::Call& call, const void* params);
  void insert(std::uint64_t address, std::uint64_t size, idempotency::AllocationKind kind,
              bool host_visible, CUcontext context);
  void insert_global(const void* owner, std::uint64_t address, std::uint64_t size,
                     bool host_visible, CUcontext context);

  // launch_hooks.cpp
  void before_launch(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                     const CUpti_CallbackData& data);
  void after_launch(ThreadState& state, CUresult& result);
  Kernel* kernel_of(ThreadState& state, const LaunchCall& launch, CUcontext context,
                    const char* symbol);
  // Remembers the current context and its device.
  void note_context(CUcontext context);
  Judgement judge(ThreadState& state, Kernel& kernel, const LaunchCall& launch);
  Judgement judge_anew(ThreadState& state, Kernel& kernel, const LaunchCall& launch,
                       const LaunchKey& key);
  void count_unfollowed(const driver_api::Call& call);
  // Fills state.verdict. False if there is neither summary nor declaration.
  bool decide(ThreadState& state, const Kernel& kernel, const LaunchCall& launch);
  void tell_kernel(Kernel& kernel, const idempotency::Verdict& verdict);
  // Why a launch with this verdict is not protected; empty if it is.
  std::string unprotected_reason(const idempotency::Verdict& verdict) const;
  bool capturing(CUstream stream);
  bool trusts(idempotency::Trust trust) const;

  // injection.cpp
  void take_new_plan();
  void arm(const std::vector<inject::Fault>& faults);
  void look_for_fault(ThreadState& state, Kernel& kernel);
  void begin_injection(ThreadState& state, std::shared_ptr<ArmedFault> armed, std::uint64_t match);
  void end_injection(ThreadState& state, CUresult& result);
  bool save_for_damage(ThreadState& state, Injection& injection);
  // Waits for all work of every context that is known to have any.
  CUresult drain();
  CUresult do_damage(ThreadState& state, Injection& injection);
  bool begin_fault_by_device(ThreadState& state, Injection& injection);
  void end_fault_by_device(ThreadState& state, CUresult& result);
  // The fault has come to be, and the app is to meet it as it meets a real one.
  void leave_pending(ThreadState& state, const Injection& injection);
  // At the enter of a call while an error is latched: true if the call is to return it.
  bool enter_latched(ThreadState& state, std::uint32_t cbid, const CUpti_CallbackData& data);

  // fault_handling.cpp
  struct Incident {
    std::int32_t code = 0;
    recovery::Phase phase = recovery::Phase::kRun;
    const Injection* injection = nullptr;
    const PendingFault* pending = nullptr;  // an injected fault that is met after its launch
    bool context_healthy = false;
    bool standby_lost = false;  // the error only says that the standby is gone
    bool alone = false;         // no other thread is in a driver call (WorkGate)
    Kernel* kernel = nullptr;   // null: it is not known which
  };
  // Deals with a failure met at the exit of a launch; true if it was recovered.
  bool handle_failure(ThreadState& state, const Incident& incident);
  // A launch returned an error that nobody forged; `result` becomes success if it was recovered.
  void after_real_failure(ThreadState& state, CUresult& result);
  // Any other call did.
  void after_any_call(ThreadState& state, CUresult result);
  // A sticky error was met. True if the process goes on in spite of it: then the call is to be done
  // again, by the standby.
  bool survive(ThreadState& state, CUresult result);
  // After a takeover, of the call under way: nobody serves it, so its error is the dead driver's.
  bool answered_by_the_dead(const ThreadState& state) const;
  std::string takeover_obstacle();
  bool drained(const Incident& incident) const;

  // takeover_hooks.cpp: the takeover's part in the app's calls.
  void start_takeover();
  void enable_after_takeover();
  // At the enter, first: waits for what the call depends on, which may show a fault.
  void wait_for_edge(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                     const CUpti_CallbackData& data);
  // At the enter, after all others have looked at the parameters.
  void enter_takeover(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                      const CUpti_CallbackData& data);
  // At the exit, before anybody else looks at parameters or result.
  void leave_takeover(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                      const CUpti_CallbackData& data, CUresult& result);
  static bool leaves_launch_undone(const CallUnderWay& call);
  CUresult do_again(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                    const CUpti_CallbackData& data, CUresult result);
  // At the exit, last.
  void finish_takeover(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                       const CUpti_CallbackData& data, CUresult& result);
  // CUDA_SUCCESS if later calls of the context still work, else what they return.
  CUresult health_of_context(const LaunchCall& launch);
  void suppress_work(ThreadState& state, const driver_api::Call& call, const void* params);
  void restore_work(ThreadState& state, const driver_api::Call& call, const void* params);

  // What every launch looks at and hardly anything writes, in lines of its own.
  alignas(64) std::atomic<bool> passive_{false};
  std::atomic<bool> settled_{false};
  std::atomic<bool> dead_{false};          // a sticky error has been met
  std::atomic<bool> stopped_{false};       // a `stop` rule has won
  std::atomic<std::int32_t> captures_{0};  // streams that capture now, as far as is known
  // The code of a forged error that was not recovered and that no call has returned yet.
  std::atomic<std::int32_t> held_back_{0};
  std::atomic<std::uint64_t> next_sets_{0};  // keys of AccessSets given out
  std::atomic<const Plan*> plan_{nullptr};   // superseded plans are kept: a thread may look at one
  const std::span<const driver_api::Callback> callbacks_ = driver_api::callbacks();
  // A host function that waits for a thread which is held up could otherwise keep a stream from
  // ever draining.
  WorkGate gate_{std::chrono::seconds(20)};

  Session session_;
  SoftDevice soft_;
  Cupti cupti_{};
  CUpti_SubscriberHandle subscriber_ = nullptr;
  driver_api::Driver driver_{};
  driver_api::DeviceOps ops_{driver_};
  idempotency::MemoryMap memory_;
  ImageStore images_;
  KernelTable kernels_{driver_, session_, images_};
  Steering steering_{memory_, [this](const std::string& text) {
                       session_.notice(protocol::Severity::kWarning, text);
                     }};
  Takeover takeover_{
      {driver_, session_, steering_, memory_, images_, kernels_, ops_, &Agent::quiet_this_thread}};

  std::once_flag settling_;
  std::atomic<int> probe_step_{0};  // of the probe under way
  int probe_target_ = 0;
  std::mutex contexts_mutex_;
  std::map<CUcontext, CUdevice> devices_;  // of contexts that have been seen

  // Memory handles (cuMemCreate) and where they are mapped.
  struct Mapped {
    bool shared = false;
    int references = 0;  // beyond the first, by cuMemRetainAllocationHandle
    std::vector<std::uint64_t> addresses;
  };
  std::mutex handles_mutex_;
  std::map<std::uint64_t, Mapped> handles_;
  // Variables of modules and libraries that the app has asked for.
  std::set<std::pair<const void*, std::uint64_t>> globals_;  // by handles_mutex_

  std::atomic<std::uint32_t> plan_generation_{0};
  std::mutex arm_mutex_;
  std::once_flag plan_callbacks_;
  PendingFaults pending_fault_;
  std::atomic<const driver_api::Call*> not_served_{nullptr};  // the last one told of
  Latch latch_{cupti_, subscriber_};

  friend struct AtThreadEnd;
};

}  // namespace gpurecover::agent
