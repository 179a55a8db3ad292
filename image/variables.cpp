// SPDX-License-Identifier: Apache-2.0
#include "image/variables.h"

#include <algorithm>
#include <exception>
#include <string_view>

#include "image/elf.h"

namespace gpurecover::image {
namespace {

constexpr std::uint64_t kSymbolBytes = 24, kMaxSymbols = 1u << 20;
constexpr std::uint32_t kSymbolTable = 2;  // section type SHT_SYMTAB
constexpr std::uint8_t kObject = 1;        // symbol type STT_OBJECT
constexpr std::uint16_t kUndefined = 0, kElsewhere = 0xFFFF;
// st_other of a `__managed__` variable in the output of nvcc 13.0.
constexpr std::uint8_t kManaged = 4;

// Names in the output of nvcc 13.0 that no source can spell, or that belong to CUDA's own headers.
bool is_compilers(std::string_view name) {
  return name.starts_with("$str") || name.starts_with("__unnamed_") ||
         name.starts_with("__cudart_");
}

std::string_view string_at(std::span<const std::byte> table, std::uint64_t offset) {
  if (offset >= table.size()) {
    return {};
  }
  const std::string_view rest{reinterpret_cast<const char*>(table.data()) + offset,
                              table.size() - offset};
  return rest.substr(0, rest.find('\0'));
}

bool is_heap_function(std::string_view name) {
  return name == "malloc" || name == "free";
}

}  // namespace

ModuleVariables variables_of(const ptx::Module& module) try {
  ModuleVariables out;
  for (const ptx::Variable& v : module.variables) {
    if ((v.space == ptx::Space::kGlobal || v.space == ptx::Space::kConst) && !v.is_extern) {
      out.variables.push_back(
          {v.name, v.size, v.space == ptx::Space::kConst, v.managed, is_compilers(v.name)});
    }
  }
  for (const ptx::Function& f : module.functions) {
    out.device_heap = out.device_heap || (!f.has_body && is_heap_function(f.name));
    out.nameless =
        out.nameless || std::any_of(f.locals.begin(), f.locals.end(), [](const ptx::Variable& v) {
          return v.space == ptx::Space::kGlobal;
        });
  }
  return out;
} catch (const std::exception&) {
  return {{}, true, true};
}

tl::expected<ModuleVariables, Error> variables_of_cubin(std::span<const std::byte> cubin) try {
  auto elf = read_elf(cubin);
  if (!elf) {
    return tl::make_unexpected(std::move(elf.error()));
  }
  if (elf->machine != kMachineCuda) {
    return tl::make_unexpected(Error{"not CUDA device code", 18, "pass a cubin"});
  }
  ModuleVariables out;
  bool has_storage = false;
  bool has_named_storage = false;
  const auto is_storage = [](std::string_view section) {
    return section.starts_with(".nv.global");
  };
  for (const ElfSection& section : elf->sections) {
    has_storage = has_storage || is_storage(section.name);
    if (section.type != kSymbolTable) {
      continue;
    }
    const std::uint64_t count = section.data.size() / kSymbolBytes;
    if (count > kMaxSymbols) {
      return tl::make_unexpected(
          Error{"more than 1048576 symbols", section.offset, "split the module into several"});
    }
    const std::span<const std::byte> names = section.link < elf->sections.size()
                                                 ? elf->sections[section.link].data
                                                 : std::span<const std::byte>{};
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t at = i * kSymbolBytes;
      const auto type = static_cast<std::uint8_t>(section.data[at + 4]) & 0xF;
      const auto other = static_cast<std::uint8_t>(section.data[at + 5]);
      const auto index = load_at<std::uint16_t>(section.data, at + 6);
      const std::string_view name = string_at(names, load_at<std::uint32_t>(section.data, at));
      if (index == kUndefined) {
        out.device_heap = out.device_heap || is_heap_function(name);
        continue;
      }
      if (type != kObject) {
        continue;
      }
      if (index == kElsewhere) {
        return tl::make_unexpected(
            Error{"a symbol's section is not told", section.offset, "split the module"});
      }
      const std::string_view where =
          index < elf->sections.size() ? elf->sections[index].name : std::string_view{};
      if (where.starts_with(".nv.shared") || where.starts_with(".nv.local")) {
        continue;
      }
      has_named_storage = has_named_storage || is_storage(where);
      if (name.empty()) {
        out.nameless = true;
        continue;
      }
      out.variables.push_back({std::string(name), load_at<std::uint64_t>(section.data, at + 16),
                               where.starts_with(".nv.constant"), (other & kManaged) != 0,
                               is_compilers(name)});
    }
  }
  out.nameless = out.nameless || (has_storage && !has_named_storage);
  return out;
} catch (const std::exception&) {
  return tl::make_unexpected(Error{"out of memory", 0, "free memory and try again"});
}

}  // namespace gpurecover::image
