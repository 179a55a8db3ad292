// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cupti/driver_api/device_ops.h"
#include "cupti/driver_api/driver.h"
#include "idempotency/verdict.h"

// Re-execution inside the process, for failures that left its context alive.
namespace gpurecover::recovery {

struct Relaunch {
  // Enqueues the launch again, with the app's own arguments; called within the app's launch call,
  // while these are still there.
  std::function<CUresult()> launch;
  CUstream stream = nullptr;
  std::int32_t code = 0;  // the failure's
  std::uint32_t max_attempts = 0;
  // Microseconds to wait before attempt n, from 1.
  std::function<std::uint64_t(std::uint32_t)> wait_us;
};

struct Result {
  bool recovered = false;
  std::uint32_t attempts = 0;  // re-executions begun; the two runs of a last check are one
  bool repeats = false;        // the same code came back
  std::string reason;          // why not, if it was not recovered
  bool refused = false;        // for safety, rather than for want of success
};

// The kernel never ran: launches it again until that succeeds. The calling thread waits.
Result retry(const Relaunch& relaunch);

// Where each of `ranges` lies in a buffer that holds their contents, and the buffer's size, bytes.
struct SavedLayout {
  std::vector<std::uint64_t> offsets;
  std::uint64_t size = 0;
};
SavedLayout saved_layout(std::span<const idempotency::Range> ranges);

// Buffers of a replay, kept for the next one by whoever does many. Used by one thread at a time.
class ReplayBuffers {
 public:
  explicit ReplayBuffers(const driver_api::Driver& driver) : driver_(driver) {}
  // Makes room, bytes; false if there is none.
  bool grow(std::uint64_t saved, std::uint64_t first);
  CUdeviceptr saved() const { return saved_->get(); }
  CUdeviceptr first() const { return first_->get(); }
  CUdeviceptr counter() const { return counter_->get(); }

 private:
  bool grow_one(std::unique_ptr<driver_api::Scratch>& buffer, std::uint64_t& has,
                std::uint64_t wanted);
  const driver_api::Driver& driver_;
  std::unique_ptr<driver_api::Scratch> saved_, first_, counter_;
  std::uint64_t saved_size_ = 0, first_size_ = 0, counter_size_ = 0;
};

// Memory of the caller's that outlives the context, for what a last check overwrites.
struct Keep {
  CUdeviceptr memory =
      0;                 // saved_layout's size; 0: none, what is overwritten dies with the context
  CUdeviceptr word = 0;  // is given `value` when the contents are there
  std::uint32_t value = 0;
};

// The kernel may have run in part and does not read what it writes: executes it again with the last
// check of DESIGN section 5. `writes` are all bytes that it may write; nothing else may use them
// meanwhile, so the caller has drained the device. On anything but success these bytes hold again
// what they held at the call, unless the context is lost. The calling thread waits for the device.
Result replay(const driver_api::Driver& driver, driver_api::DeviceOps& ops,
              const Relaunch& relaunch, std::span<const idempotency::Range> writes,
              std::uint64_t seed, ReplayBuffers& buffers, const Keep& keep = {});
Result replay(const driver_api::Driver& driver, driver_api::DeviceOps& ops,
              const Relaunch& relaunch, std::span<const idempotency::Range> writes,
              std::uint64_t seed);

}  // namespace gpurecover::recovery
