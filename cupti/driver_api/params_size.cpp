// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/params_size.h"

// The calls of graphics interoperation have headers of their own, which not every machine can
// compile; their size is 0 here.
//
// The structures name types of withdrawn forms too, which cuda.h declares under this name only.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <generated_cuda_meta.h>

#include <algorithm>
#include <array>

namespace gpurecover::driver_api {
namespace {

struct Size {
  std::uint32_t cbid;
  std::uint32_t bytes;
};
constexpr Size kSizes[] = {
#include "cupti/driver_api/params_sizes.inc"
};

constexpr std::uint32_t end_of_ids() {
  std::uint32_t end = 0;
  for (const Size& size : kSizes) {
    end = std::max(end, size.cbid + 1);
  }
  return end;
}

constexpr auto kBytes = [] {
  std::array<std::uint32_t, end_of_ids()> bytes{};
  for (const Size& size : kSizes) {
    bytes[size.cbid] = size.bytes;
  }
  return bytes;
}();

}  // namespace

std::uint32_t params_size(std::uint32_t cbid) {
  return cbid < kBytes.size() ? kBytes[cbid] : 0;
}

}  // namespace gpurecover::driver_api
