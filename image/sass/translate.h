// SPDX-License-Identifier: Apache-2.0
//
// From instructions to values in single-assignment form. Internal to image/sass/.
#pragma once

#include <string>

#include "image/sass/graph.h"

namespace gpurecover::image::sass {

// Fills `graph` with the kernel's code. Empty result: done; else why not.
struct TracedInstruction;

// Empty result: done; else why not. `trace`, if any, receives each instruction that is reached.
std::string translate(const Code& code, const CubinKernel& kernel, Graph& graph,
                      std::vector<TracedInstruction>* trace = nullptr);

}  // namespace gpurecover::image::sass
