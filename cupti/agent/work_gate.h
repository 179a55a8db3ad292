// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace gpurecover::agent {

// Keeps the app's threads off the device while one of them works on a fault, so that they neither
// see its noise nor write into what it compares. Nobody is kept out for ever: a thread that has
// waited for too long goes on, and the worker is told that it was disturbed.
//
// Where nobody works, a call costs two plain stores of a word of the thread's own: the barrier that
// the two sides need between their store and their look at the other is the worker's alone, who
// makes the kernel run one on every thread (membarrier(2)). Where the kernel does not offer that, a
// call pays for its own barrier.
// All functions are noexcept but `add`, and safe from any thread.
class WorkGate {
 public:
  // One thread's part. The thread alone uses it; the gate reads it.
  struct Lane {
    std::atomic<bool> busy{false};
  };

  // Whose barrier: see above. kWorkers is only asked for; see `barriers`.
  enum class Barriers : std::uint8_t { kWorkers, kEveryCalls };

  explicit WorkGate(std::chrono::milliseconds patience, Barriers wanted = Barriers::kWorkers);
  WorkGate(const WorkGate&) = delete;
  WorkGate& operator=(const WorkGate&) = delete;

  // Makes a thread known; to be done before its first call. `remove` before the lane is gone.
  void add(Lane& lane);
  void remove(Lane& lane) noexcept;

  // Around a call that may touch the device's memory: waits while another thread works. Between the
  // two, nobody begins to work.
  void enter(Lane& lane) noexcept {
    // Of a thread that enters and one that begins, at least one sees the other: here and there, the
    // store comes before the look at the other.
    if (barriers_ == Barriers::kWorkers) [[likely]] {
      lane.busy.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler too keeps the order
    } else {
      lane.busy.store(true);
    }
    if (const Lane* worker = worker_.load(); worker != nullptr && worker != &lane) [[unlikely]] {
      wait_and_enter(lane);
    }
  }
  void leave(Lane& lane) noexcept { lane.busy.store(false, std::memory_order_release); }
  // For a call that only waits itself: holds it up, but does not count it as under way.
  void pass(const Lane& lane) noexcept {
    if (const Lane* worker = worker_.load(); worker != nullptr && worker != &lane) [[unlikely]] {
      wait(lane);
    }
  }

  // Within a call that has entered: becomes the only one under way. False if others worked or were
  // under way for too long, or if the kernel takes its barrier back; the call then goes on as one
  // that has entered. Whatever the others have done meanwhile, a fault of their own included, is to
  // be looked at again.
  bool begin(Lane& own) noexcept;
  void end() noexcept {
    // Not at the next `begin`, which others may see before it is through.
    disturbed_.store(false);
    worker_.store(nullptr);
  }
  // Whether everybody has kept out since the last `begin`; for the one who works.
  bool undisturbed() const noexcept { return !disturbed_.load(); }
  Barriers barriers() const noexcept { return barriers_; }

 private:
  // False when its patience was at an end.
  bool wait(const Lane& lane) noexcept;
  void wait_and_enter(Lane& lane) noexcept;
  bool others_are_out(const Lane& own) noexcept;

  std::atomic<const Lane*> worker_{nullptr};
  const Barriers barriers_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> disturbed_{false};
  std::mutex mutex_;
  std::vector<const Lane*> lanes_;
};

}  // namespace gpurecover::agent
