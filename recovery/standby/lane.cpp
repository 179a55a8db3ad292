// SPDX-License-Identifier: Apache-2.0
#include "recovery/standby/lane.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

namespace gpurecover::recovery {
namespace {

using Clock = std::chrono::steady_clock;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::chrono::nanoseconds spin_time() {
  cpu_set_t set;
  const int cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // Where there are few, the other side needs the processor that we would spin on.
  return std::chrono::microseconds(cpus >= 4 ? 50 : cpus >= 2 ? 5 : 0);
}

}  // namespace

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = timeout_ns / 1'000'000'000;
  timeout.tv_nsec = timeout_ns % 1'000'000'000;
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected,
            timeout_ns < 0 ? nullptr : &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool spin_while(const std::atomic<std::uint32_t>& state, std::uint32_t current) {
  static const auto time = spin_time();
  if (state.load(std::memory_order_acquire) != current) {
    return true;
  }
  if (time.count() == 0) {
    return false;
  }
  const auto end = Clock::now() + time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (state.load(std::memory_order_acquire) != current) {
        return true;
      }
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace gpurecover::recovery
