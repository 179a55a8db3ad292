// SPDX-License-Identifier: Apache-2.0
#include "softgpu/device/engine.h"

#include <time.h>

#include <algorithm>
#include <thread>

namespace gpurecover::softgpu {
namespace {

uint64_t Now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

Engine& Engine::Get() {
  static Engine* engine = new Engine;  // never destroyed: threads outlive main
  return *engine;
}

QueuePtr Engine::Create(int device) {
  auto queue = std::make_shared<Queue>(device);
  std::lock_guard lock(mutex_);
  std::erase_if(queues_, [](const std::weak_ptr<Queue>& q) { return q.expired(); });
  queues_.push_back(queue);
  return queue;
}

void Engine::Close(const QueuePtr& queue) {
  std::lock_guard lock(mutex_);
  queue->closed_ = true;
  queue->work_.notify_all();
}

uint64_t Engine::Submit(const QueuePtr& queue, Operation operation) {
  std::lock_guard lock(mutex_);
  const uint64_t ticket = ++queue->issued_;
  if (faulting_)
    return ticket;  // accepted, never begun
  queue->operations_.push_back(std::move(operation));
  if (!queue->serving_) {
    queue->serving_ = true;
    std::thread(&Engine::Serve, this, queue).detach();
  } else {
    queue->work_.notify_one();
  }
  return ticket;
}

uint64_t Engine::Issued(const QueuePtr& queue) {
  std::lock_guard lock(mutex_);
  return queue->issued_;
}

bool Engine::Idle(const QueuePtr& queue) {
  std::lock_guard lock(mutex_);
  return queue->completed_ >= queue->issued_;
}

int Engine::Wait(const QueuePtr& queue, uint64_t ticket) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return queue->completed_ >= ticket || Poison(); });
  return Poison();
}

int Engine::Wait(const Completion& completion) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return completion.done || Poison(); });
  return Poison();
}

void Engine::WaitAMoment(const Completion& completion) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return completion.done || faulting_; });
}

void Engine::FinishDraining(Queue& queue) {
  if (!queue.draining_)
    return;
  queue.draining_ = false;
  --draining_;
  PublishIfDrained();
}

void Engine::PublishIfDrained() {
  if (faulting_ && !Poison() && draining_ == 0) {
    poison_.store(fault_.code, std::memory_order_release);
    progress_.notify_all();
  }
}

void Engine::Raise(const QueuePtr& failed, int code, std::string message) {
  std::lock_guard lock(mutex_);
  const int device = failed->device_;
  failed->failed_ = true;
  if (faulting_)
    return;  // the first one is what the process sees
  fault_ = {code, device, std::move(message)};
  faulting_.store(true, std::memory_order_release);
  for (auto& weak : queues_) {
    auto queue = weak.lock();
    if (!queue)
      continue;
    if (queue->device_ == device && queue->kernel_running_) {
      // The one that raised it counts, too: it ends with its current operation.
      queue->draining_ = true;
      ++draining_;
    }
    queue->work_.notify_all();
  }
  progress_.notify_all();
}

Fault Engine::LastFault() {
  std::lock_guard lock(mutex_);
  return fault_;
}

void Engine::WaitForKernels(int device) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return kernels_running_[device] == 0; });
}

void Engine::Nudge() {
  std::lock_guard lock(mutex_);
  progress_.notify_all();
}

void Engine::Serve(QueuePtr queue) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (faulting_) {
      // Behind a kernel that drained come its markers, up to the next real work.
      if (!queue->draining_ || queue->failed_ || queue->operations_.empty() ||
          queue->operations_.front().kind != Operation::Kind::kMarker) {
        FinishDraining(*queue);
        queue->operations_.clear();
      }
    }
    if (queue->operations_.empty()) {
      if (queue->closed_ || faulting_) {
        queue->serving_ = false;
        return;
      }
      queue->work_.wait(lock);
      continue;
    }
    Operation operation = std::move(queue->operations_.front());
    queue->operations_.pop_front();
    for (const Dependency& d : operation.after) {
      progress_.wait(lock, [&] { return d.queue->completed_ >= d.ticket || faulting_; });
    }
    if (faulting_ && !queue->draining_)
      continue;
    const bool finishes =
        operation.kind == Operation::Kind::kKernel || operation.kind == Operation::Kind::kCopy;
    const bool is_kernel = operation.kind == Operation::Kind::kKernel;
    queue->kernel_running_ = finishes;
    if (is_kernel)
      ++kernels_running_[queue->device_];
    lock.unlock();
    if (operation.run)
      operation.run();
    operation.run = nullptr;  // what it holds is released without the lock
    lock.lock();
    queue->kernel_running_ = false;
    if (is_kernel)
      --kernels_running_[queue->device_];
    const bool given_up = operation.kind == Operation::Kind::kWait && faulting_;
    if (!queue->failed_ && !given_up) {
      ++queue->completed_;
      if (operation.completes) {
        operation.completes->time_ns = Now();
        operation.completes->done = true;
      }
    }
    progress_.notify_all();
  }
}

}  // namespace gpurecover::softgpu
