// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cupti/agent/objects.h"
#include "cupti/agent/session.h"
#include "cupti/agent/steering.h"
#include "cupti/driver_api/driver.h"
#include "recovery/standby_link.h"
#include "recovery/upkeep.h"

namespace gpurecover::agent {

// A thread of ours in the app's process: none of the app's signals are handled by it. Throws
// std::system_error if there can be none.
template <class F>
std::thread quiet_thread(F&& work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{before};
  return std::thread(std::forward<F>(work));
}

// What a standby has of an object of the app's.
struct HeldObject {
  std::uint64_t identity = 0;
  std::uint64_t version = 0;
};
using HeldObjects = std::map<ObjectKey, HeldObject>;

// What is to be done so that a standby has the objects that the app has now, in this order. Objects
// in `failed` are left alone. Libraries without a function that the app has asked for are not made:
// runtimes register far more than is used.
struct ObjectPlan {
  std::vector<ObjectKey> drop;
  std::vector<Objects::State> make;
};
ObjectPlan plan_objects(const HeldObjects& held, const std::vector<Objects::State>& now,
                        const HeldObjects& failed);

// Keeps a warm standby up to date while the app runs: a thread of its own in the app's process
// starts it, hands over memory, modules, streams and events as they come to be, and takes them back
// as they go. At the fault whoever takes over goes on from there.
//
// The thread makes one kind of driver call, the export of a descriptor, which needs no context, and
// none once the process has begun to exit. It has at most one descriptor at hand, and none during a
// fork.
class StandbyKeeper final : public Steering::Watcher {
 public:
  // What it works with. All of it outlives the process's last callback.
  struct Parts {
    Session& session;
    Steering& steering;
    const Objects& objects;
    // Makes the calling thread one whose driver calls are not the app's.
    std::function<void()> quiet_this_thread;
    // Makes an object in a standby that has its parent already, unless the app has another one of
    // that handle meanwhile; of one that is there already, only its changes.
    std::function<recovery::Answer(recovery::StandbyLink&, ObjectKey, const Objects::Made&,
                                   bool there)>
        make_object;
  };
  explicit StandbyKeeper(Parts parts);
  ~StandbyKeeper() override;

  // Begins, once; returns at once. `own`: host blocks that steering does not know of, which live
  // as long as the process. `driver`: the process's own.
  void start(const driver_api::Driver& driver, const recovery::StandbySetup& setup,
             std::vector<SharedHost> own, std::chrono::milliseconds patience);
  bool started() const { return started_.load(std::memory_order_acquire); }
  // An object of the app's has been made, changed or destroyed.
  void look_at_objects() {
    if (!started()) [[likely]] {
      return;
    }
    const std::uint64_t revision = parts_.objects.revision();
    if (seen_revision_.load(std::memory_order_relaxed) != revision &&
        seen_revision_.exchange(revision) != revision) {
      upkeep_.touch();
    }
  }

  // --- at the fault ---
  // It is to stop where it is. Returns at once.
  void pause();
  // What there is of a warm standby, once the thread is through with what it was doing; none if it
  // never came up, has died, or takes too long. The first call only.
  struct Ready {
    std::unique_ptr<recovery::StandbyLink> link;
    std::vector<recovery::Upkeep::Piece> kept;   // what it has
    std::vector<recovery::Upkeep::Piece> stale;  // what it is to let go of first
    HeldObjects objects;
  };
  std::optional<Ready> take();
  // There will be no takeover: the standby is ended.
  void give_up();

  // Steering::Watcher
  void made(const SteeredMemory& memory) noexcept override;
  void made(const SharedHost& host) noexcept override;
  void gone(std::uint64_t address) noexcept override;
  bool let_go() noexcept override;
  std::uint64_t outstanding(int device) noexcept override;

 private:
  using Piece = recovery::Upkeep::Piece;
  using Task = recovery::Upkeep::Task;

  void run();
  bool bring_up();
  void work();
  void hand_over(const Task& task);
  void let_go_of(const Task& task);
  // Goes on with what is to be done for the objects; false once nothing is left.
  bool next_object();
  bool drop(ObjectKey key);
  int descriptor_of(const Piece& piece);
  // False: the standby is gone, and the work with it.
  bool alive(const recovery::Answer& answer);
  void end_link();

  static void at_exit();
  static void before_fork();
  static void after_fork();

  const Parts parts_;
  driver_api::Driver driver_{};
  recovery::StandbySetup setup_;
  std::vector<SharedHost> own_;
  std::chrono::milliseconds patience_{0};
  std::int32_t owner_ = 0;       // the process that it was started in
  CUcontext context_ = nullptr;  // that was current then
  std::atomic<bool> started_{false};
  std::atomic<std::uint64_t> seen_revision_{0};
  recovery::Upkeep upkeep_;

  // Of the thread.
  HeldObjects held_;
  HeldObjects failed_;
  ObjectPlan plan_;
  std::size_t planned_ = 0;
  bool relaxed_ = false;  // its capture mode
  bool tried_context_ = false;
  bool lost_ = false;

  std::mutex mutex_;
  std::condition_variable idle_;
  std::unique_ptr<recovery::StandbyLink> link_;  // set once, taken once
  bool through_ = false;                         // the thread has ended, or never was
  bool given_up_ = false;
};

}  // namespace gpurecover::agent
