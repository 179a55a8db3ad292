// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/work_gate.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace gpurecover::agent {
namespace {

using Clock = std::chrono::steady_clock;

// Naps rather than a wait without end: whoever is waited for may itself be waiting for us.
void nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// 0 if done.
long membarrier(int command) {
  return ::syscall(SYS_membarrier, command, 0, 0);
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#else
constexpr bool kThreadSanitizer = false;
#endif

WorkGate::Barriers offered(WorkGate::Barriers wanted) {
  // Thread sanitizer knows nothing of the kernel's barrier.
  return wanted == WorkGate::Barriers::kWorkers && !kThreadSanitizer &&
                 membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
             ? WorkGate::Barriers::kWorkers
             : WorkGate::Barriers::kEveryCalls;
}

}  // namespace

WorkGate::WorkGate(std::chrono::milliseconds patience, Barriers wanted)
    : barriers_(offered(wanted)), patience_(patience) {}

void WorkGate::add(Lane& lane) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(&lane);
}

void WorkGate::remove(Lane& lane) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(lanes_, &lane);
}

bool WorkGate::wait(const Lane& lane) noexcept {
  const auto deadline = Clock::now() + patience_;
  for (;;) {
    const Lane* worker = worker_.load();
    if (worker == nullptr || worker == &lane) {
      return true;
    }
    if (Clock::now() > deadline) {
      disturbed_.store(true);
      return false;
    }
    nap();
  }
}

void WorkGate::wait_and_enter(Lane& lane) noexcept {
  for (;;) {
    lane.busy.store(false);
    const bool patient = wait(lane);
    lane.busy.store(true);
    const Lane* worker = worker_.load();
    if (worker == nullptr || worker == &lane) {
      return;
    }
    if (!patient) {
      // Once more, now that the lane is busy: what it lost patience with may be over, and this a
      // later work that has begun while the lane was not.
      disturbed_.store(true);
      return;
    }
  }
}

bool WorkGate::others_are_out(const Lane& own) noexcept {
  const std::lock_guard lock(mutex_);
  return std::none_of(lanes_.begin(), lanes_.end(),
                      [&](const Lane* lane) { return lane != &own && lane->busy.load(); });
}

bool WorkGate::begin(Lane& own) noexcept {
  const auto deadline = Clock::now() + patience_;
  // Two that wish to begin at once must not wait for one another's call.
  own.busy.store(false);
  bool begun = false;
  while (!begun) {
    const Lane* nobody = nullptr;
    begun = worker_.compare_exchange_strong(nobody, &own);
    if (!begun) {
      if (Clock::now() > deadline) {
        break;
      }
      nap();
    }
  }
  // From here on, whoever enters without our seeing it sees us. The kernel may have become
  // unwilling since the start (a filter of system calls that the app has put on itself): then
  // nobody works.
  if (begun && barriers_ == Barriers::kWorkers &&
      membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    end();
    begun = false;
  }
  if (begun) {
    while (!others_are_out(own)) {
      if (Clock::now() > deadline) {
        end();
        begun = false;
        break;
      }
      nap();
    }
  }
  if (begun) {
    own.busy.store(true);
  } else {
    enter(own);
  }
  return begun;
}

}  // namespace gpurecover::agent
