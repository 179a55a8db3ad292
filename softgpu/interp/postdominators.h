// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "image/ptx_ir.h"

namespace gpurecover::softgpu::interp {

// For each instruction that may branch, where its paths meet again: the index of the first
// instruction of the immediate post-dominator, or code.size() if they meet only at the function's
// end. Entries of other instructions are code.size(). Never recursive; near linear time.
std::vector<uint32_t> ReconvergencePoints(const image::ptx::Function& function);

}  // namespace gpurecover::softgpu::interp
