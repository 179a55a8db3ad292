// SPDX-License-Identifier: Apache-2.0
// From what a program hands to a load call to something that can be executed.
#pragma once

#include <memory>
#include <string>

#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {

/// Reads a fatbin, cubin or PTX text of unknown extent, takes the PTX that fits the device and
/// compiles it. On failure, the code that the driver's load calls return, and in `why` a sentence.
CUresult CompileImage(const void* image, std::shared_ptr<const CompiledImage>* out,
                      std::string* why);

/// The machine-code file that stands for kernels that exist as PTX only: it describes their
/// parameters and holds no code.
std::vector<char> DescribeAsCubin(std::span<const KernelInfo> kernels, int sm);

}  // namespace gpurecover::softgpu
