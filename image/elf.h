// SPDX-License-Identifier: Apache-2.0
//
// A small bounded reader of ELF64 little-endian section tables. Internal to image/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "image/image.h"

namespace gpurecover::image {

inline constexpr std::uint16_t kMachineCuda = 190;

// A value of type T at `offset`; the caller has checked that it lies inside.
template <typename T>
T load_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

struct ElfSection {
  std::string_view name;
  std::uint32_t type = 0;
  std::uint64_t flags = 0;
  std::uint64_t offset = 0;
  std::uint32_t link = 0, info = 0;
  std::span<const std::byte> data;  // empty for NOBITS
};

struct Elf {
  std::uint8_t os_abi = 0, abi_version = 0;
  std::uint16_t machine = 0;
  std::uint32_t flags = 0;
  std::vector<ElfSection> sections;
};

bool is_elf(std::span<const std::byte> bytes);
// Every section that the result names lies inside `bytes`; at most 2^20 sections.
tl::expected<Elf, Error> read_elf(std::span<const std::byte> bytes);

}  // namespace gpurecover::image
