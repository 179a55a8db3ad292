// SPDX-License-Identifier: Apache-2.0
// Any instructions: the first byte says for which architecture, the rest is the code of a kernel
// with a few parameters, constants, a table of addresses and a jump table. It must be refused, or
// lifted to a module whose promises hold and that is summarized. With the first byte 0xff the rest
// is a cubin as it is.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "idempotency/access_summary.h"
#include "idempotency/memory_map.h"
#include "idempotency/verdict.h"
#include "image/cubin.h"
#include "image/sass/lift.h"

namespace {

using namespace gpurecover;

class NoSymbols : public idempotency::SymbolRanges {
 public:
  std::optional<idempotency::Range> find(std::string_view) const override { return std::nullopt; }
};

void require(bool condition) {
  if (!condition)
    std::abort();
}

struct Section {
  std::string name;
  std::uint32_t type = 1;
  std::string data;
  std::uint32_t link = 0, info = 0;
};

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::vector<std::byte> elf_of(std::uint32_t sm, std::vector<Section> sections) {
  sections.insert(sections.begin(), Section{"", 0, "", 0, 0});
  std::string names;
  std::vector<std::uint32_t> name_at;
  sections.push_back({".shstrtab", 3, "", 0, 0});
  for (const Section& s : sections) {
    name_at.push_back(static_cast<std::uint32_t>(names.size()));
    names += s.name + '\0';
  }
  sections.back().data = names;
  std::string out(64, '\0');
  std::vector<std::uint64_t> offsets;
  for (const Section& s : sections) {
    while (out.size() % 16 != 0)
      out += '\0';
    offsets.push_back(out.size());
    out += s.data;
  }
  while (out.size() % 16 != 0)
    out += '\0';
  const std::uint64_t table = out.size();
  for (std::size_t k = 0; k < sections.size(); ++k) {
    put<std::uint32_t>(out, name_at[k]);
    put<std::uint32_t>(out, sections[k].type);
    put<std::uint64_t>(out, 0);
    put<std::uint64_t>(out, 0);
    put<std::uint64_t>(out, offsets[k]);
    put<std::uint64_t>(out, sections[k].data.size());
    put<std::uint32_t>(out, sections[k].link);
    put<std::uint32_t>(out, sections[k].info);
    put<std::uint64_t>(out, 8);
    put<std::uint64_t>(out, 0);
  }
  auto at = [&](std::size_t offset, auto value) {
    std::memcpy(out.data() + offset, &value, sizeof value);
  };
  std::memcpy(out.data(),
              "\x7f"
              "ELF\x02\x01\x01",
              7);
  out[7] = 0x41;
  out[8] = 8;
  at(18, std::uint16_t{190});
  at(40, table);
  at(48, std::uint32_t{sm << 8});
  at(58, std::uint16_t{64});
  at(60, static_cast<std::uint16_t>(sections.size()));
  at(62, static_cast<std::uint16_t>(sections.size() - 1));
  std::vector<std::byte> bytes(out.size());
  std::memcpy(bytes.data(), out.data(), out.size());
  return bytes;
}

std::vector<std::byte> cubin_of(std::uint32_t sm, std::string code) {
  const std::uint16_t base = sm < 90 ? 0x160 : sm < 100 ? 0x210 : 0x380;
  std::string info;
  auto attribute = [&](std::uint8_t id, const std::string& payload) {
    info += '\x04';
    info += static_cast<char>(id);
    put<std::uint16_t>(info, static_cast<std::uint16_t>(payload.size()));
    info += payload;
  };
  std::string bank;
  put<std::uint32_t>(bank, 0);
  put<std::uint16_t>(bank, base);
  put<std::uint16_t>(bank, 48);
  attribute(0x0a, bank);
  // Three pointers, a struct of 16 bytes, two numbers.
  const std::uint16_t sizes[] = {8, 8, 8, 16, 4, 4};
  std::uint16_t offset = 0;
  for (std::uint16_t k = 0; k < 6; ++k) {
    std::string p;
    put<std::uint32_t>(p, 0);
    put<std::uint16_t>(p, k);
    put<std::uint16_t>(p, offset);
    put<std::uint32_t>(p, std::uint32_t{sizes[k]} << 18);
    attribute(0x17, p);
    offset = static_cast<std::uint16_t>(offset + sizes[k]);
  }
  std::string targets;
  put<std::uint32_t>(targets, 0x40);
  put<std::uint32_t>(targets, 0);
  put<std::uint32_t>(targets, 2);
  put<std::uint32_t>(targets, 0x50);
  put<std::uint32_t>(targets, 0);
  attribute(0x34, targets);

  std::string names{'\0'}, symbols(24, '\0');
  auto symbol = [&](const char* name, std::uint8_t type, std::uint16_t section, std::uint64_t value,
                    std::uint64_t size) {
    put<std::uint32_t>(symbols, static_cast<std::uint32_t>(names.size()));
    symbols += static_cast<char>(type);
    symbols += '\0';
    put<std::uint16_t>(symbols, section);
    put<std::uint64_t>(symbols, value);
    put<std::uint64_t>(symbols, size);
    names += name;
    names += '\0';
  };
  symbol("variable", 1, 9, 0, 4);
  symbol("constants", 1, 5, 0, 32);
  symbol("more", 1, 5, 32, 8);
  symbol("__assertfail", 18, 0, 0, 0);
  std::string relocations;
  for (std::uint64_t k = 0; k < 2; ++k) {
    put<std::uint64_t>(relocations, 8 * k);
    put<std::uint64_t>(relocations, (k == 0 ? std::uint64_t{1} : std::uint64_t{4}) << 32 | 2);
    put<std::uint64_t>(relocations, 0);
  }
  code.resize(code.size() / 16 * 16);
  return elf_of(sm, {{".text.k", 1, code, 0, 0},
                     {".nv.info.k", 0x70000000, info, 0, 1},
                     {".nv.constant0.k", 1, std::string(base + 48u, '\0'), 0, 1},
                     {".nv.constant2.k", 1, std::string("\x08\0\0\0\0\0\0\0\x50\0\0\0", 12), 0, 1},
                     {".nv.constant3", 1, std::string(40, '\0'), 0, 0},
                     {".nv.constant4", 1, std::string(16, '\0'), 0, 0},
                     {".strtab", 3, names, 0, 0},
                     {".symtab", 2, symbols, 7, 0},
                     {".nv.global", 8, "", 0, 0},
                     {".rela.nv.constant4", 4, relocations, 8, 6}});
}

void check(const image::ptx::Module& m) {
  const image::ptx::Function& f = m.functions.front();
  for (const image::ptx::Instruction& i : f.code) {
    require(std::uint64_t{i.first_operand} + i.operand_count <= f.operands.size());
    require(i.text < m.opcode_texts.size());
    require(i.guard == image::ptx::kNoIndex || i.guard < f.registers.size());
  }
  using Kind = image::ptx::OperandKind;
  for (const image::ptx::Operand& o : f.operands) {
    require(o.kind != Kind::kRegister || o.index < f.registers.size());
    require(o.kind != Kind::kLabel || o.index <= f.code.size());
    require(std::uint64_t{o.first} + o.count <= f.operands.size());
    if (o.kind == Kind::kAddress && o.base == image::ptx::AddressBase::kRegister)
      require(o.index < f.registers.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  static constexpr std::uint32_t kArchitectures[] = {75, 80, 86, 89, 90, 100, 120};
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::byte> cubin;
  if (data[0] == 0xff) {
    const auto* const first = reinterpret_cast<const std::byte*>(rest.data());
    cubin.assign(first, first + rest.size());
  } else {
    cubin = cubin_of(kArchitectures[data[0] % std::size(kArchitectures)], rest);
  }
  const auto code = image::sass::MachineCode::open(cubin);
  if (!code) {
    require(data[0] == 0xff && !code.error().what.empty());
    return 0;
  }
  const auto list = image::read_cubin(cubin);
  require(list.has_value());
  static const idempotency::MemoryMap map;
  for (const image::CubinKernel& kernel : list->kernels) {
    const auto module = code->lift(kernel.name);
    if (!module) {
      require(!module.error().empty());
      continue;
    }
    check(*module);
    const idempotency::KernelSummary summary =
        idempotency::summarize(*module, module->functions.front());
    require(summary.complete && summary.machine_code);
    require(!to_text(summary).empty());
    const std::byte args[64] = {};
    const auto verdict =
        idempotency::decide(summary, args, {{3, 2, 1}, {32, 4, 1}, 0}, map, NoSymbols());
    require(summary.defeats.empty() || verdict.kind == idempotency::VerdictKind::kUnknown);
  }
  return 0;
}
