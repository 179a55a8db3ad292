// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpurecover::classifier {

// The base name of a kernel, by which rules and fault plans know it: the function's own name, with
// no namespaces, template arguments, parameters or return type, as Nsight Compute's
// `--kernel-name-base function`. `_ZN2at6native6reduceIfEEvPT_` gives `reduce`. C names, and names
// that no rule of the C++ ABI explains, come back unchanged. Never fails on any bytes.
//
// Thread-safe; allocates; a microsecond for usual names: keep the answer per kernel.
std::string kernel_base_name(std::string_view mangled);

// The same for a name that is demangled already, e.g. `void at::native::reduce<float>(float*)`.
std::string base_name_of_demangled(std::string_view demangled);

}  // namespace gpurecover::classifier
