// SPDX-License-Identifier: Apache-2.0
#include "image/sass/code.h"

#include <algorithm>
#include <cstring>

namespace gpurecover::image::sass {
namespace {

constexpr std::uint32_t kSymbolTable = 2, kRela = 4, kRel = 9;
constexpr std::uint64_t kSymbolBytes = 24, kMaxSymbols = 1u << 20;
constexpr std::uint8_t kObject = 1, kFunction = 2;
// R_CUDA_64: the address of the symbol as 8 bytes.
constexpr std::uint32_t kAbsolute64 = 2;

std::string_view string_at(std::span<const std::byte> table, std::uint64_t offset) {
  if (offset >= table.size())
    return {};
  const char* const begin = reinterpret_cast<const char*>(table.data()) + offset;
  return {begin, strnlen(begin, table.size() - offset)};
}

}  // namespace

tl::expected<Code, Error> read_code(std::span<const std::byte> bytes) {
  Code code;
  auto cubin = read_cubin(bytes);
  if (!cubin)
    return tl::make_unexpected(std::move(cubin.error()));
  auto elf = read_elf(bytes);
  if (!elf)
    return tl::make_unexpected(std::move(elf.error()));
  code.cubin = std::move(*cubin);
  code.elf = std::move(*elf);
  code.sm = code.cubin.sm;
  switch (code.sm) {
    case 75:
    case 80:
    case 86:
    case 87:
    case 89:
    case 90:
    case 100:
    case 103:
    case 120:
      break;
    default:
      return tl::make_unexpected(Error{
          "machine code for sm_" + std::to_string(code.sm) + ", whose instructions are not known",
          48, "add PTX of the same compile to the program"});
  }
  const auto& sections = code.elf.sections;
  for (std::uint32_t i = 0; i < sections.size(); ++i) {
    code.sections.emplace(sections[i].name, i);
    if (sections[i].name == ".nv.constant3")
      code.constant_section = i;
    if (sections[i].type != kSymbolTable || !code.symbols.empty())
      continue;
    const std::span<const std::byte> names = sections[i].link < sections.size()
                                                 ? sections[sections[i].link].data
                                                 : std::span<const std::byte>{};
    const std::uint64_t count =
        std::min<std::uint64_t>(sections[i].data.size() / kSymbolBytes, kMaxSymbols);
    code.symbols.reserve(count);
    for (std::uint64_t k = 0; k < count; ++k) {
      const std::uint64_t at = k * kSymbolBytes;
      Symbol s;
      s.name = string_at(names, load_at<std::uint32_t>(sections[i].data, at));
      s.function = (static_cast<std::uint8_t>(sections[i].data[at + 4]) & 0xF) == kFunction;
      s.section = load_at<std::uint16_t>(sections[i].data, at + 6);
      s.value = load_at<std::uint64_t>(sections[i].data, at + 8);
      s.size = load_at<std::uint64_t>(sections[i].data, at + 16);
      code.symbols.push_back(s);
      if ((static_cast<std::uint8_t>(sections[i].data[at + 4]) & 0xF) > kFunction)
        code.symbols.back().name = {};  // a section or a file: no name of the program's
    }
  }
  static_assert(kObject < kFunction);
  if (code.constant_section != 0) {
    for (std::uint32_t k = 0; k < code.symbols.size(); ++k) {
      const Symbol& s = code.symbols[k];
      if (s.section == code.constant_section && s.size != 0 && !s.name.empty())
        code.constants.push_back(k);
    }
    std::stable_sort(code.constants.begin(), code.constants.end(),
                     [&](std::uint32_t a, std::uint32_t b) {
                       return code.symbols[a].value < code.symbols[b].value;
                     });
  }
  for (const ElfSection& s : sections) {
    if ((s.type != kRela && s.type != kRel) || s.info >= sections.size() ||
        sections[s.info].name != ".nv.constant4")
      continue;
    const std::uint64_t step = s.type == kRela ? 24 : 16;
    for (std::uint64_t at = 0; at + step <= s.data.size(); at += step) {
      const auto info = load_at<std::uint64_t>(s.data, at + 8);
      const bool plain = s.type == kRel || load_at<std::int64_t>(s.data, at + 16) == 0;
      if ((info & 0xFFFFFFFF) != kAbsolute64 || (info >> 32) >= code.symbols.size() || !plain)
        continue;
      code.addresses[load_at<std::uint64_t>(s.data, at)] = static_cast<std::uint32_t>(info >> 32);
    }
  }
  return code;
}

std::uint32_t Code::constant_at(std::uint64_t offset) const {
  // The last that begins at or before it.
  auto it =
      std::upper_bound(constants.begin(), constants.end(), offset,
                       [&](std::uint64_t at, std::uint32_t k) { return at < symbols[k].value; });
  if (it == constants.begin())
    return kNoConstant;
  const Symbol& s = symbols[*--it];
  return offset - s.value < s.size ? *it : kNoConstant;
}

const DriverWords& driver_words(std::uint32_t sm) {
  static constexpr DriverWords kTuring{0x0, 0xc, 0x28, 0x20, 0x18, 0};
  static constexpr DriverWords kAmpere{0x0, 0xc, 0x28, 0x20, 0x18, 0x118};
  static constexpr DriverWords kHopper{0x0, 0xc, 0x28, 0x20, 0, 0x208};
  static constexpr DriverWords kBlackwell{0x360, 0x370, 0x37c, 0x2f8, 0, 0x358};
  return sm < 80 ? kTuring : sm < 90 ? kAmpere : sm < 100 ? kHopper : kBlackwell;
}

}  // namespace gpurecover::image::sass
