// SPDX-License-Identifier: Apache-2.0
//
// From instructions to values in single-assignment form. Internal to image/sass/.
#pragma once

#include <string>

#include "image/sass/graph.h"

namespace gpurecover::image::sass {

// Fills `graph` with the kernel's code. Empty result: done; else why not.
std::string translate(const Code& code, const CubinKernel& kernel, Graph& graph);

}  // namespace gpurecover::image::sass
