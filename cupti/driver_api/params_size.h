// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpurecover::driver_api {

// Bytes of the parameter structure that CUPTI hands to the callbacks of driver call `cbid`, as the
// toolkit's generated_cuda_meta.h declares it; 0 for a call without parameters and for an id that
// the toolkit does not know. Any thread.
std::uint32_t params_size(std::uint32_t cbid);

}  // namespace gpurecover::driver_api
