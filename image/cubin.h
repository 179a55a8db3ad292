// SPDX-License-Identifier: Apache-2.0
//
// Reads what a cubin (ELF64, machine 190) says about its kernels, from .nv.info sections; no code
// is decoded. Source of the attributes: output of ptxas 13.0 for sm_75 … sm_120.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "image/image.h"

namespace gpurecover::image {

struct KernelParameter {
  std::uint32_t ordinal = 0;
  std::uint32_t offset = 0;  // bytes from the start of the parameter block
  std::uint32_t size = 0;    // bytes
  // What the compiler recorded of the pointer's space (4 bits); 0: generic or not a pointer.
  std::uint32_t space = 0;
};

struct CubinKernel {
  std::string name;                         // mangled
  std::vector<KernelParameter> parameters;  // sorted by ordinal
  std::uint32_t param_bytes = 0;            // CBANK_PARAM_SIZE, else the end of the last parameter
  std::uint32_t param_base = 0;             // offset in constant bank 0 (PARAM_CBANK), 0 if absent
  bool has_externs = false;  // calls functions that the driver supplies (printf, malloc…)
};

struct Cubin {
  std::uint32_t sm = 0;
  std::uint32_t toolkit_form = 0;  // ELF ABI version: 7 (before CUDA 13), 8 (CUDA 13)
  std::vector<CubinKernel> kernels;
  const CubinKernel* find(std::string_view name) const;
};

// Never throws; reads only inside `bytes`; at most 65536 kernels with 4096 parameters each.
tl::expected<Cubin, Error> read_cubin(std::span<const std::byte> bytes);

}  // namespace gpurecover::image
