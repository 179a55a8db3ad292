// SPDX-License-Identifier: Apache-2.0
#include "image/elf.h"

#include <new>
#include <string>

namespace gpurecover::image {
namespace {

constexpr std::uint64_t kHeaderBytes = 64, kSectionBytes = 64, kMaxSections = 1u << 20;
constexpr std::uint32_t kNoBits = 8;

tl::unexpected<Error> bad(std::string what, std::uint64_t offset) {
  return tl::make_unexpected(
      Error{std::move(what), offset, "the file is damaged or cut short; build or copy it anew"});
}

std::string_view string_at(std::span<const std::byte> table, std::uint64_t offset) {
  if (offset >= table.size()) {
    return {};
  }
  const char* const begin = reinterpret_cast<const char*>(table.data()) + offset;
  const std::size_t left = table.size() - offset;
  const void* const end = std::memchr(begin, 0, left);
  return {begin,
          end == nullptr ? left : static_cast<std::size_t>(static_cast<const char*>(end) - begin)};
}

}  // namespace

bool is_elf(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && std::memcmp(bytes.data(),
                                          "\x7f"
                                          "ELF",
                                          4) == 0;
}

tl::expected<Elf, Error> read_elf(std::span<const std::byte> bytes) {
  if (!is_elf(bytes)) {
    return bad("not an ELF file", 0);
  }
  if (bytes.size() < kHeaderBytes) {
    return bad("ELF header cut short", bytes.size());
  }
  if (bytes[4] != std::byte{2} || bytes[5] != std::byte{1}) {
    return bad("ELF file is not 64-bit little-endian", 4);
  }
  Elf elf;
  elf.os_abi = static_cast<std::uint8_t>(bytes[7]);
  elf.abi_version = static_cast<std::uint8_t>(bytes[8]);
  elf.machine = load_at<std::uint16_t>(bytes, 18);
  elf.flags = load_at<std::uint32_t>(bytes, 48);
  const auto table = load_at<std::uint64_t>(bytes, 40);
  const auto entry_bytes = load_at<std::uint16_t>(bytes, 58);
  std::uint64_t count = load_at<std::uint16_t>(bytes, 60);
  std::uint64_t names = load_at<std::uint16_t>(bytes, 62);
  if (table == 0) {
    return elf;  // no sections
  }
  if (entry_bytes != kSectionBytes) {
    return bad("ELF section headers are " + std::to_string(entry_bytes) + " bytes, not 64", 58);
  }
  if (table > bytes.size() || bytes.size() - table < kSectionBytes) {
    return bad("ELF section table lies outside the file", 40);
  }
  // With 65280 sections or more, the true numbers are in the first section header.
  if (count == 0) {
    count = load_at<std::uint64_t>(bytes, table + 32);
  }
  if (names == 0xFFFF) {
    names = load_at<std::uint32_t>(bytes, table + 40);
  }
  if (count > kMaxSections || count > (bytes.size() - table) / kSectionBytes) {
    return bad("ELF section table of " + std::to_string(count) + " entries is cut short", table);
  }
  try {
    elf.sections.reserve(count);
  } catch (const std::bad_alloc&) {
    return bad("out of memory", table);
  }
  std::span<const std::byte> strings;
  auto extent = [&](std::uint64_t header) -> std::span<const std::byte> {
    const auto offset = load_at<std::uint64_t>(bytes, header + 24);
    const auto size = load_at<std::uint64_t>(bytes, header + 32);
    if (load_at<std::uint32_t>(bytes, header + 4) == kNoBits || offset > bytes.size() ||
        size > bytes.size() - offset) {
      return {};
    }
    return bytes.subspan(offset, size);
  };
  if (names < count) {
    strings = extent(table + names * kSectionBytes);
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t header = table + i * kSectionBytes;
    ElfSection s;
    s.name = string_at(strings, load_at<std::uint32_t>(bytes, header));
    s.type = load_at<std::uint32_t>(bytes, header + 4);
    s.flags = load_at<std::uint64_t>(bytes, header + 8);
    s.offset = load_at<std::uint64_t>(bytes, header + 24);
    s.link = load_at<std::uint32_t>(bytes, header + 40);
    s.info = load_at<std::uint32_t>(bytes, header + 44);
    s.data = extent(header);
    if (i != 0 && s.type != 0 && s.type != kNoBits && s.data.empty() &&
        load_at<std::uint64_t>(bytes, header + 32) != 0) {
      return bad("ELF section " + std::to_string(i) + " lies outside the file", header);
    }
    elf.sections.push_back(s);
  }
  return elf;
}

}  // namespace gpurecover::image
