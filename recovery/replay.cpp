// SPDX-License-Identifier: Apache-2.0
#include "recovery/replay.h"

#include <chrono>
#include <thread>
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

Result replay(const driver_api::Driver& driver, driver_api::DeviceOps& ops,
              const Relaunch& relaunch, std::span<const Range> writes, std::uint64_t seed,
              CUdeviceptr already_saved) {
  Result result;
  const CUstream stream = relaunch.stream;
  const Layout layout(writes);
  driver_api::Scratch own(driver);
  driver_api::Scratch first(driver);
  driver_api::Scratch counter(driver);
  if ((already_saved == 0 && !own.allocate(layout.size())) || !first.allocate(layout.size()) ||
      !counter.allocate(sizeof(std::uint64_t))) {
    result.refused = true;
    result.reason = "no scratch memory for the last check (" +
                    std::to_string(2 * layout.size() / (1 << 20)) + " MiB)";
    return result;
  }

  const CUdeviceptr saved = already_saved != 0 ? already_saved : own.get();
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
    if (code == CUDA_SUCCESS) {
      code = relaunch.launch();
    }
    // Synchronized each time: if the kernel fails again, this says at which run.
    if (code == CUDA_SUCCESS) {
      code = driver.cuStreamSynchronize(stream);
    }
    return code;
  };

  CUresult code = already_saved == 0 ? copy_out(saved) : CUDA_SUCCESS;
  if (code == CUDA_SUCCESS) {
    code = driver.cuStreamSynchronize(stream);
  }
  if (code != CUDA_SUCCESS) {
    result.refused = true;
    result.reason = "saving the kernel's output failed: " + driver_error(driver, code);
    return result;
  }

  while (result.attempts < relaunch.max_attempts) {
    ++result.attempts;
    wait_before(relaunch, result.attempts);
    code = run_over_noise(false);
    if (code == CUDA_SUCCESS) {
      code = copy_out(first.get());
    }
    if (code == CUDA_SUCCESS) {
      code = run_over_noise(true);
    }
    if (code != CUDA_SUCCESS) {
      result.repeats = static_cast<std::int32_t>(code) == relaunch.code;
      result.reason = "re-execution failed: " + driver_error(driver, code);
      if (put_back() != CUDA_SUCCESS) {
        return result;  // the context is dead now, and its memory with it
      }
      continue;
    }

    std::uint64_t differing = 0;
    code = driver.cuMemsetD8Async(counter.get(), 0, sizeof differing, stream);
    if (code == CUDA_SUCCESS) {
      code = layout.for_each([&](CUdeviceptr data, std::uint64_t at, std::uint64_t size) {
        return ops.merge(stream, data, first.get() + at, saved + at, size, seed + at,
                         counter.get());
      });
    }
    if (code == CUDA_SUCCESS) {
      code = driver.cuMemcpyDtoHAsync(&differing, counter.get(), sizeof differing, stream);
    }
    if (code == CUDA_SUCCESS) {
      code = driver.cuStreamSynchronize(stream);
    }
    if (code == CUDA_SUCCESS && differing == 0) {
      result.recovered = true;
      result.reason.clear();
      return result;
    }
    put_back();
    result.refused = true;
    result.reason = code != CUDA_SUCCESS ? "the last check failed: " + driver_error(driver, code)
                                         : "last check: two re-executions disagree in " +
                                               std::to_string(differing) + " bytes";
    return result;
  }
  return result;
}

}  // namespace gpurecover::recovery
