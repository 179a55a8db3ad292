// SPDX-License-Identifier: Apache-2.0
//
// The variables of a module that live as long as its context: what `__device__`, `__constant__` and
// `__managed__` declare, and statics of device code. Pure; thread-safe; never throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "image/image.h"
#include "image/ptx_ir.h"

namespace gpurecover::image {

struct ModuleVariable {
  std::string name;  // mangled, as cuModuleGetGlobal wants it
  std::uint64_t size = 0;
  bool constant = false;  // in the constant space, which a kernel writes only by address
  bool managed = false;
  // Made by the compiler for its own constants: string literals, tables of the math functions.
  bool compilers = false;
};

struct ModuleVariables {
  std::vector<ModuleVariable> variables;
  // There are statics that no name finds: declared in a function's body in PTX, or by a cubin whose
  // symbols are stripped.
  bool nameless = false;
  // Device code uses the heap of its context (malloc in device code).
  bool device_heap = false;
};

ModuleVariables variables_of(const ptx::Module& module);
// Of a cubin: by its symbols. Every read stays inside `cubin`; at most 2^20 symbols are read.
tl::expected<ModuleVariables, Error> variables_of_cubin(std::span<const std::byte> cubin);

}  // namespace gpurecover::image
