// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cupti/agent/globals.h"
#include "cupti/agent/image_store.h"
#include "cupti/agent/kernel_table.h"
#include "cupti/agent/launch_call.h"
#include "cupti/agent/objects.h"
#include "cupti/agent/session.h"
#include "cupti/agent/standby_keeper.h"
#include "cupti/agent/steering.h"
#include "cupti/agent/thread_state.h"
#include "cupti/driver_api/device_ops.h"
#include "cupti/driver_api/driver.h"
#include "cupti/driver_api/driver_api.h"
#include "idempotency/memory_map.h"
#include "recovery/call_codec.h"
#include "recovery/launch_log.h"
#include "recovery/standby_link.h"
#include "recovery/takeover.h"

namespace gpurecover::agent {

// Appends the attributes of a launch that another process can give it. Why there are others that it
// cannot do without; null if none.
const char* append_attributes(const CUlaunchConfig& config, std::vector<std::byte>& out);

// A sticky fault as the takeover is asked about it.
struct TakeoverRequest {
  std::int32_t code = 0;
  std::uint32_t max_attempts = 0;
  std::uint64_t seed = 0;  // of the last check's noise
  std::string obstacle;    // that the agent knows of; empty: none
  // The fault may be a stray access of what is replayed: all of that must be proved in bounds.
  bool must_be_in_bounds = false;
  // Nothing of the process's runs on any device: no fence is needed.
  bool drained = false;
};
struct TakeoverReport {
  recovery::TakeoverResult result;
  const Kernel* kernel = nullptr;  // of the launch that was replayed, or stands in the way
  std::string verdict, trust;      // of that launch
  std::uint64_t launch = 0;        // which of the process
  std::uint64_t stream = 0;
  std::vector<protocol::FaultStep> steps;  // how long each took
};

// The survival of a sticky fault in this process: beforehand, the log of what is under way and of
// how objects were made; then the takeover by a standby; afterwards, the app's calls served by it.
//
// Launches are protected in regions (docs/regions.md); everything else that is done in streams is
// waited for in this version, before it (the launches that it may depend on) and after it.
//
// Unless it says otherwise, a function is called within the app's call, by the thread that makes
// it, with ThreadState::inside set.
class Takeover final : public Steering::Sink {
 public:
  // What of the agent it works with. All of it outlives the takeover.
  struct Parts {
    driver_api::Driver& driver;  // replaced, after a takeover, by calls that the standby serves
    Session& session;
    Steering& steering;
    idempotency::MemoryMap& memory;
    ImageStore& images;
    KernelTable& kernels;
    driver_api::DeviceOps& ops;
    void (*quiet_this_thread)();  // see StandbyKeeper
  };
  explicit Takeover(const Parts& parts);
  ~Takeover() override;

  // Makes what the log needs, once the app's context is current; until then, does nothing and is to
  // be called again. False, with a notice, if takeover is not possible in this process.
  bool enable();
  // Whether the session asks for it: then objects are recorded from the first call on.
  void want() {
    wanted_.store(true, std::memory_order_release);
    pending_.store(true, std::memory_order_release);
  }
  // Whether `enable` has still to be called, with a context at hand.
  bool pending() const { return pending_.load(std::memory_order_relaxed); }
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_acquire); }

  // How many takeovers there have been. From 1 on, calls are served by the standby.
  std::uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  bool active() const { return epoch() != 0; }

  // --- the log ---
  // Before a launch that is executed (not captured), and after it; `taken`: the driver's answer was
  // success. They put markers and copies around it as its region needs them, none behind it if the
  // launch is to count as undone (`mark` false).
  void begin_launch(ThreadState& state, const Kernel& kernel, const LaunchCall& launch);
  void end_launch(ThreadState& state, bool taken, bool mark);
  // After a launch that succeeded in another way than between those two.
  CUresult follow_launch(ThreadState& state, const Kernel& kernel, const LaunchCall& launch);
  // Waits until every launch is known to be complete. The error that this met.
  CUresult drain();
  // Before any other call: waits for the launches under way where the call is an edge. The error
  // that this met, which may be the fault.
  CUresult before_call(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                       const void* params);
  // After any other call that succeeded: waits for what it has begun, and notes what it did.
  CUresult after_call(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                      const void* params, CUcontext context);
  void thread_gone(const ThreadState& state);
  // The app has made a call that cannot be carried over, or that nothing is known about.
  void count_obstacle(std::string_view call);

  // --- the takeover ---
  // Nobody else is in a driver call (WorkGate).
  TakeoverReport take_over(const TakeoverRequest& request);
  // What a sticky error may be about; for words, not for decisions.
  struct Suspect {
    std::string kernels;       // names; empty: not known
    std::uint64_t launch = 0;  // the first of them
    std::uint64_t stream = 0;
  };
  Suspect suspect();
  // Whether every access of every launch that may have run in part is proved in bounds (and there
  // is such a launch): then no access of the program's can have caused the error.
  bool suspects_in_bounds();
  // The standby has failed and is not replaced: from now on calls get the error.
  void give_up();
  // Whether the error that a served call just returned says no more than that the standby is gone,
  // by no fault of the program's.
  bool standby_lost() const;

  // --- afterwards ---
  // Of calls that nobody serves: handles that only the standby knows crash the dead driver.
  static void hide_new_handles(std::uint32_t cbid, void* params);
  // At the enter: makes the dead driver refuse the call, whatever it is given. At the exit: undoes
  // that, and does the call. `serves` tells whether it is one of those; else the call is the dead
  // driver's own.
  bool serves(const driver_api::Call& call) const;
  void begin_served(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                    const void* params);
  void restore_params(ThreadState& state, const void* params);
  CUresult serve(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                 const void* params, CUcontext context);

  // A call of the agent's own, by its row and a parameter struct: what the replaced driver does.
  CUresult serve_own(std::string_view name, const void* params);
  CUresult launch_own(CUfunction function, const unsigned (&grid)[3], const unsigned (&block)[3],
                      unsigned shared, CUstream stream, void** params, void** extra,
                      const CUlaunchConfig* config, bool cooperative);
  CUresult load_own(CUmodule* module, const void* image);
  CUresult copy_to_host(void* host, CUdeviceptr device, std::size_t size, CUstream stream);
  CUresult copy_own(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream);
  ObjectKey parent_of(ObjectKey key) const { return objects_.parent(key); }

  CUresult serve_global(ObjectKey owner, const char* name, CUdeviceptr* address,
                        std::size_t* bytes);

  // Steering::Sink
  bool map_memory(const SteeredMemory& memory, std::string& error) override;
  void unmap_memory(const SteeredMemory& memory) override;
  bool map_host(const SharedHost& host, std::string& error) override;
  void unmap_host(const SharedHost& host) override;
  CUresult synchronize() override;

 private:
  class ColdStandby;
  class Steps;
  friend class Steps;

  recovery::StreamLog& log_of(ThreadState& state, CUstream stream);
  bool mark(const recovery::StreamLog& log, std::uint32_t number);
  void note_settled(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                    const void* params);
  CUresult wait_for(recovery::StreamLog& log);
  // Waits for what a stream has; an endless wait becomes `unfinished_`.
  CUresult settle(CUstream stream);
  bool patient(std::chrono::steady_clock::time_point since);
  std::string obstacle() const;
  void note_globals(const driver_api::Call& call, const void* params);
  Globals::Standby standby_for_globals();

  // Makes sure that the standby has an object of the app's.
  recovery::Answer ensure(ObjectKey key);
  recovery::Answer ensure_handles(const driver_api::Call& call, const void* params);
  recovery::Answer send(const driver_api::Call& call, const void* params, bool per_thread,
                        const recovery::NewHandle& new_handle, std::vector<std::byte>& results);
  std::uint64_t new_handle();
  // Makes an object in a standby that has its parent; `there`: only its changes.
  recovery::Answer make_object(recovery::StandbyLink& link, ObjectKey key,
                               const Objects::Made& made, bool there, std::size_t image_limit);
  std::vector<std::byte> images_bytes(ObjectKey key, std::size_t limit = ~std::size_t{0}) const;
  CUresult answer_code(const recovery::Answer& answer);
  CUresult serve_generic(const driver_api::Call& call, std::uint32_t cbid, const void* params);
  CUresult serve_launch(ThreadState& state);
  CUresult serve_copy(std::uint64_t to, std::uint64_t from, std::uint64_t size, CUstream stream,
                      bool async);
  CUresult serve_copy_2d(const CUDA_MEMCPY2D& copy, CUstream stream, bool async);
  CUresult serve_copy_3d(const CUDA_MEMCPY3D& copy, CUstream stream, bool async);
  CUresult serve_host_function(const driver_api::Call& call, std::uint32_t cbid,
                               const void* params);
  CUresult serve_load(const driver_api::Call& call, const void* params);
  CUresult serve_function(CUfunction* function, CUmodule module, const char* name);
  CUresult serve_elapsed(const driver_api::Call& call, std::uint32_t cbid, const void* params);
  bool shared_with_standby(std::uint64_t address, std::uint64_t size) const;
  void replace_driver();

  Parts parts_;
  driver_api::Driver local_;  // the process's own driver
  std::atomic<bool> wanted_{false};
  std::atomic<bool> pending_{false};
  std::atomic<bool> enabled_{false};
  std::atomic<std::uint64_t> epoch_{0};
  recovery::LaunchLog log_;
  Objects objects_;
  Globals globals_;
  StandbyKeeper keeper_;  // of a warm standby
  // The words of the log, shared with the standby.
  SharedHost words_{};
  std::uint32_t keep_value_ = 0;         // the last one given out (recovery::Keep)
  std::atomic<bool> launched_{false};    // since the last drain
  std::atomic<bool> unfinished_{false};  // work that was not waited for to its end
  std::atomic<bool> impatient_{false};   // an endless wait has been met before
  std::atomic<std::uint64_t> log_generation_{1};

  mutable std::mutex obstacles_mutex_;
  std::set<std::string, std::less<>> obstacles_;  // calls that cannot be carried over

  recovery::StandbySetup setup_;
  std::atomic<recovery::StandbyLink*> link_{nullptr};
  // All that there ever were: threads may still look at a dead one.
  std::vector<std::unique_ptr<recovery::StandbyLink>> links_;
  std::int32_t code_ = 0;  // of the last fault, for a standby that is lost
  std::mutex restore_mutex_;
  std::set<ObjectKey> sent_;
  std::atomic<std::uint64_t> next_handle_{0};
  std::mutex own_mutex_;
  std::map<CUmodule, CUlibrary> libraries_;  // this process's, of modules that the standby has
  std::map<CUfunction, std::vector<idempotency::ArgumentSlot>> own_layouts_;
  std::mutex strings_mutex_;
  std::set<std::string, std::less<>> strings_;  // that the app was given pointers to
};

}  // namespace gpurecover::agent
