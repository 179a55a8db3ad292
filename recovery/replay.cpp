// SPDX-License-Identifier: Apache-2.0
#include "recovery/replay.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace gpurecover::recovery {
namespace {

using idempotency::Range;

void wait_before(const Relaunch& relaunch, std::uint32_t attempt) {
  if (const std::uint64_t us = relaunch.wait_us ? relaunch.wait_us(attempt) : 0; us != 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
}

std::string driver_error(const driver_api::Driver& driver, CUresult code) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) {
    name = "unknown error";
  }
  return std::string(name) + " (" + std::to_string(static_cast<int>(code)) + ")";
}

// The write ranges side by side in one buffer, each aligned to 256 bytes.
class Layout {
 public:
  explicit Layout(std::span<const Range> ranges) : ranges_(ranges), layout_(saved_layout(ranges)) {}
  std::uint64_t size() const { return layout_.size; }

  // Calls f(device address, offset in the buffer, bytes) for each range until one fails.
  template <class F>
  CUresult for_each(F&& f) const {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const CUresult code = f(static_cast<CUdeviceptr>(ranges_[i].begin), layout_.offsets[i],
                              ranges_[i].end - ranges_[i].begin);
      if (code != CUDA_SUCCESS) {
        return code;
      }
    }
    return CUDA_SUCCESS;
  }

 private:
  std::span<const Range> ranges_;
  SavedLayout layout_;
};

}  // namespace

SavedLayout saved_layout(std::span<const Range> ranges) {
  SavedLayout layout;
  for (const Range& range : ranges) {
    layout.offsets.push_back(layout.size);
    layout.size += (range.end - range.begin + 255) / 256 * 256;
  }
  return layout;
}

Result retry(const Relaunch& relaunch) {
  Result result;
  while (result.attempts < relaunch.max_attempts) {
    ++result.attempts;
    wait_before(relaunch, result.attempts);
    const CUresult code = relaunch.launch();
    if (code == CUDA_SUCCESS) {
      result.recovered = true;
      return result;
    }
    result.repeats = static_cast<std::int32_t>(code) == relaunch.code;
  }
  result.reason = "still failing after " + std::to_string(result.attempts) + " attempts";
  return result;
}

bool ReplayBuffers::grow_one(std::unique_ptr<driver_api::Scratch>& buffer, std::uint64_t& has,
                             std::uint64_t wanted) {
  wanted = std::max<std::uint64_t>(wanted, sizeof(std::uint64_t));
  if (buffer != nullptr && has >= wanted) {
    return true;
  }
  buffer.reset();  // first, for there may not be room for both
  has = 0;
  auto larger = std::make_unique<driver_api::Scratch>(driver_);
  if (!larger->allocate(wanted)) {
    return false;
  }
  buffer = std::move(larger);
  has = wanted;
  return true;
}

bool ReplayBuffers::grow(std::uint64_t saved, std::uint64_t first) {
  return grow_one(saved_, saved_size_, saved) && grow_one(first_, first_size_, first) &&
         grow_one(counter_, counter_size_, sizeof(std::uint64_t));
}

Result replay(const driver_api::Driver& driver, driver_api::DeviceOps& ops,
              const Relaunch& relaunch, std::span<const Range> writes, std::uint64_t seed) {
  ReplayBuffers buffers(driver);
  return replay(driver, ops, relaunch, writes, seed, buffers);
}

Result replay(const driver_api::Driver& driver, driver_api::DeviceOps& ops,
              const Relaunch& relaunch, std::span<const Range> writes, std::uint64_t seed,
              ReplayBuffers& buffers, const Keep& keep) {
  Result result;
  const CUstream stream = relaunch.stream;
  const Layout layout(writes);
  if (!buffers.grow(keep.memory == 0 ? layout.size() : 0, layout.size())) {
    result.refused = true;
    result.reason = "no scratch memory for the last check (" +
                    std::to_string(2 * layout.size() / (1 << 20)) + " MiB)";
    return result;
  }

  const CUdeviceptr saved = keep.memory != 0 ? keep.memory : buffers.saved();
  const CUdeviceptr first = buffers.first();
  const CUdeviceptr counter = buffers.counter();
  const auto copy_out = [&](CUdeviceptr to) {
    return layout.for_each([&](CUdeviceptr data, std::uint64_t at, std::uint64_t size) {
      return driver.cuMemcpyDtoDAsync(to + at, data, size, stream);
    });
  };
  const auto put_back = [&] {
    CUresult code = layout.for_each([&](CUdeviceptr data, std::uint64_t at, std::uint64_t size) {
      return driver.cuMemcpyDtoDAsync(data, saved + at, size, stream);
    });
    if (code == CUDA_SUCCESS) {
      code = driver.cuStreamSynchronize(stream);
    }
    return code;
  };
  const auto run_over_noise = [&](bool flip) {
    CUresult code = layout.for_each([&](CUdeviceptr data, std::uint64_t at, std::uint64_t size) {
      return ops.noise(stream, data, size, seed + at, flip);
    });
    return code == CUDA_SUCCESS ? relaunch.launch() : code;
  };

  CUresult code = copy_out(saved);
  if (code == CUDA_SUCCESS && keep.word != 0) {
    code =
        driver.cuStreamWriteValue32(stream, keep.word, keep.value, CU_STREAM_WRITE_VALUE_DEFAULT);
  }
  if (code != CUDA_SUCCESS) {
    result.refused = true;
    result.reason = "saving the kernel's output failed: " + driver_error(driver, code);
    return result;
  }

  while (result.attempts < relaunch.max_attempts) {
    ++result.attempts;
    wait_before(relaunch, result.attempts);
    // Waited for once, at the end: a region has many launches.
    code = run_over_noise(false);
    if (code == CUDA_SUCCESS) {
      code = copy_out(first);
    }
    if (code == CUDA_SUCCESS) {
      code = run_over_noise(true);
    }
    if (code == CUDA_SUCCESS) {
      code = driver.cuMemsetD8Async(counter, 0, sizeof(std::uint64_t), stream);
    }
    if (code == CUDA_SUCCESS) {
      code = layout.for_each([&](CUdeviceptr data, std::uint64_t at, std::uint64_t size) {
        return ops.merge(stream, data, first + at, saved + at, size, seed + at, counter);
      });
    }
    std::uint64_t differing = 0;
    if (code == CUDA_SUCCESS) {
      code = driver.cuMemcpyDtoHAsync(&differing, counter, sizeof differing, stream);
    }
    // Also after an error: what has been enqueued may still write.
    if (const CUresult waited = driver.cuStreamSynchronize(stream); code == CUDA_SUCCESS) {
      code = waited;
    }
    if (code != CUDA_SUCCESS) {
      result.repeats = static_cast<std::int32_t>(code) == relaunch.code;
      result.reason = "re-execution failed: " + driver_error(driver, code);
      if (put_back() != CUDA_SUCCESS) {
        return result;  // the context is dead now, and its memory with it
      }
      continue;
    }
    if (differing == 0) {
      result.recovered = true;
      result.reason.clear();
      return result;
    }
    put_back();
    result.refused = true;
    result.reason =
        "last check: two re-executions disagree in " + std::to_string(differing) + " bytes";
    return result;
  }
  return result;
}

}  // namespace gpurecover::recovery
