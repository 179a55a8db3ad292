// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cupti/protocol/standby.h"

// A lane: shared memory by which one thread of the app asks one thread of the standby. Requests and
// answers alternate. Either side may be damaged by the other's program: what is read here is copied
// first and then checked, and sizes are read once.
namespace gpurecover::recovery {

inline constexpr std::uint32_t kLaneMagic = 0x4c525047;  // "GPRL"
// A launch with the largest arguments that CUDA allows (32,764 bytes) fits well.
inline constexpr std::uint32_t kLanePayload = 64U << 10;
// For copies; its pages exist once they are used.
inline constexpr std::uint32_t kLaneWindow = 4U << 20;

struct LaneShared {
  enum State : std::uint32_t { kIdle, kRequest, kAnswer, kClosed };

  std::uint32_t magic;
  std::uint32_t version;  // protocol::kProtocolVersion
  // The futex word. kRequest and kClosed are written by the app, kAnswer by the standby.
  alignas(64) std::atomic<std::uint32_t> state;
  // Whether that side is, or is about to be, in FUTEX_WAIT: only then it has to be woken.
  alignas(64) std::atomic<std::uint32_t> app_sleeps;
  alignas(64) std::atomic<std::uint32_t> standby_sleeps;
  // Of the request, then of the answer.
  alignas(64) std::uint32_t type;  // protocol::LaneRequest
  std::uint32_t size;              // of the payload, bytes
  std::int32_t code;               // CUresult, of the answer
  alignas(4096) std::byte payload[kLanePayload];
  alignas(4096) std::byte window[kLaneWindow];
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// FUTEX_WAIT between processes, for at most `timeout_ns` (negative: without end). Returns for no
// reason at times.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns);
void futex_wake(std::atomic<std::uint32_t>& word);

// Waits actively while `state` is `current`, for a time that suits the number of processors: a
// launch's round trip takes 1-2 us so, some 10 us with two sleeps. True if it has changed.
bool spin_while(const std::atomic<std::uint32_t>& state, std::uint32_t current);

// Writes the new state and wakes the other side if it sleeps.
inline void hand_over(std::atomic<std::uint32_t>& state, std::uint32_t value,
                      const std::atomic<std::uint32_t>& other_sleeps) {
  // Sequentially consistent on both sides: either we see it sleeping, or it sees the new state
  // before it sleeps.
  state.store(value);
  if (other_sleeps.load() != 0) {
    futex_wake(state);
  }
}

}  // namespace gpurecover::recovery
