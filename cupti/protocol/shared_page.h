// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// Counters that the agent raises on its hot path and the supervisor reads. They live in a memfd
// made by the supervisor, so that what a process counted is known even when it is killed or ends
// by _exit(); a launch costs one or two relaxed additions and no system call.
namespace gpurecover::protocol {

inline constexpr std::uint32_t kSharedPageMagic = 0x47505231;  // "GPR1"
inline constexpr std::size_t kMaxKernels = 32768;
inline constexpr std::size_t kMaxReasons = 512;
inline constexpr std::size_t kMaxCalls = 1024;
inline constexpr std::size_t kMaxFaultSpecs = 64;

// Row 0 takes the launches of kernels beyond the table's end ("(other kernels)").
struct KernelCounters {
  // [VerdictKind][0 unprotected, 1 protected]; the sum over all is the kernel's launches.
  std::atomic<std::uint64_t> launches[3][2];
  std::atomic<std::uint64_t> snapshotted;
};

struct SharedPage {
  std::uint32_t magic;
  std::uint32_t version;  // kProtocolVersion
  // Raised by the supervisor after it has sent a kPlan message: the agent then reads its socket.
  std::atomic<std::uint32_t> plan_generation;
  std::atomic<std::uint32_t> active;  // 1 once the agent protects the process
  KernelCounters kernels[kMaxKernels];
  std::atomic<std::uint64_t> reasons[kMaxReasons];
  std::atomic<std::uint64_t> calls[kMaxCalls];
  // How often each fault of the plan fired: index in the plan, later plans appended.
  std::atomic<std::uint64_t> fired[kMaxFaultSpecs];
  // How many launches matched each fault's pattern.
  std::atomic<std::uint64_t> matched[kMaxFaultSpecs];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace gpurecover::protocol
