// SPDX-License-Identifier: Apache-2.0
// Streams, ordering and faults of the software device.
//
// A stream is a queue served by a thread of its own. Work is issued and waited for; errors of
// kernels appear at waiting. A fault (sticky code) poisons the whole process, as on a real device:
//   - no stream of any device starts anything more;
//   - what runs on the same device drains, with the markers and events behind it, and only then is
//     the fault published: waits return, and Poison() is the code;
//   - what runs on other devices goes on until it ends or its memory is unmapped.
//
// Thread-safe. One lock for all queues: streams wait for one another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gpurecover::softgpu {

class Queue;
using QueuePtr = std::shared_ptr<Queue>;

/// Everything issued to `queue` up to and including `ticket`.
struct Dependency {
  QueuePtr queue;
  uint64_t ticket = 0;
};

/// A point in a queue that may be waited for: what an event recorded.
struct Completion {
  std::atomic<bool> done{false};
  std::atomic<uint64_t> time_ns{0};
};

struct Operation {
  enum class Kind {
    kKernel,  // may fault; drains
    kCopy,    // copies, sets, host functions: finish once begun
    kMarker,  // event records and memory writes: still happen behind a draining kernel
    kWait,    // runs until its condition holds; given up at a fault
  };
  Kind kind = Kind::kCopy;
  std::function<void()> run;
  std::vector<Dependency> after;
  std::shared_ptr<Completion> completes;  // set done after run
};

/// What a fault was, for reports.
struct Fault {
  int code = 0;
  int device = -1;
  std::string message;
};

class Engine {
 public:
  static Engine& Get();

  QueuePtr Create(int device);
  /// No more work will come; the thread ends when the queue is empty.
  void Close(const QueuePtr& queue);

  /// Returns the ticket.
  uint64_t Submit(const QueuePtr& queue, Operation operation);
  uint64_t Issued(const QueuePtr& queue);
  bool Idle(const QueuePtr& queue);

  /// Waits until everything issued to `queue` up to `ticket` is done. 0, or the code of a fault.
  int Wait(const QueuePtr& queue, uint64_t ticket);
  int Wait(const Completion& completion);
  /// For waiting operations: returns when `completion` is done or a fault happened.
  void WaitAMoment(const Completion& completion);

  /// To be called by a running kernel operation of `queue` whose launch failed.
  void Raise(const QueuePtr& queue, int code, std::string message);
  /// The sticky code of this process; 0 when healthy.
  int Poison() const { return poison_.load(std::memory_order_acquire); }
  /// A fault has happened, published or not: waiting operations must give up.
  bool Faulting() const { return faulting_.load(std::memory_order_acquire); }
  Fault LastFault();

  /// Blocks until no kernel runs on `device` (also those that a fault left running).
  void WaitForKernels(int device);

  /// Wakes everybody who waits for a condition outside the queues (memory words).
  void Nudge();

 private:
  friend class Queue;
  void Serve(QueuePtr queue);
  void FinishDraining(Queue& queue);
  void PublishIfDrained();

  std::mutex mutex_;
  std::condition_variable progress_;
  std::atomic<int> poison_{0};
  std::atomic<bool> faulting_{false};
  Fault fault_;
  int draining_ = 0;
  std::vector<int> kernels_running_ = std::vector<int>(64, 0);
  std::vector<std::weak_ptr<Queue>> queues_;
};

class Queue {
 public:
  explicit Queue(int device) : device_(device) {}
  int device() const { return device_; }

 private:
  friend class Engine;
  const int device_;
  std::deque<Operation> operations_;
  uint64_t issued_ = 0;
  uint64_t completed_ = 0;
  bool serving_ = false;  // a thread exists
  bool closed_ = false;
  bool kernel_running_ = false;  // or a copy: something that will finish
  bool draining_ = false;
  bool failed_ = false;  // a kernel of it failed: nothing behind it happens
  std::condition_variable work_;
};

}  // namespace gpurecover::softgpu
