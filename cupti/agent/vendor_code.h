// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "image/vendor_code.h"

namespace gpurecover::agent {

using image::base_name;
using image::is_vendor_kernel;
using image::is_vendor_library;

// The name of a library of the vendor's that brings kernels with it and is loaded into this
// process; nullopt: none is. Walks the loader's list; does not wait for constructors of libraries.
std::optional<std::string> loaded_vendor_library();

}  // namespace gpurecover::agent
