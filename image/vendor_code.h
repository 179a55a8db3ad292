// SPDX-License-Identifier: Apache-2.0
//
// Whose kernels are not decoded. The licence of the CUDA toolkit forbids disassembling "any portion
// of the SDK", and the libraries that ship with it, or beside it under licences with the same
// words, are such portions: their machine code is left alone. A kernel of theirs is analysed only
// if its PTX is there, which it is not. All functions are pure.
#pragma once

#include <string>
#include <string_view>

namespace gpurecover::image {

// "libcublas.so.12" of "/usr/lib/libcublas.so.12".
std::string base_name(std::string_view path);

// Whether the file at `path` is one of those libraries, by its name.
bool is_vendor_library(std::string_view path);

// Whether it is one of them that brings kernels of its own: a compiler loads none, what it makes
// belongs to the program.
bool is_vendor_library_with_kernels(std::string_view path);

// Whether a kernel is of one of those libraries by its name: one that is linked statically has no
// file of its own.
bool is_vendor_kernel(std::string_view symbol);

}  // namespace gpurecover::image
