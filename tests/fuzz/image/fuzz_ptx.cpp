// SPDX-License-Identifier: Apache-2.0
// Any text: the parser must answer with a module whose promises hold, and every kernel in it must
// be summarized.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "idempotency/access_summary.h"
#include "idempotency/memory_map.h"
#include "idempotency/verdict.h"
#include "image/ptx_parser.h"

namespace {

using namespace gpurecover;

class NoSymbols : public idempotency::SymbolRanges {
 public:
  std::optional<idempotency::Range> find(std::string_view) const override { return std::nullopt; }
};

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto module = image::ptx::parse({reinterpret_cast<const char*>(data), size});
  if (!module) {
    require(!module.error().what.empty() && !module.error().remedy.empty());
    return 0;
  }
  static const idempotency::MemoryMap map;
  for (const image::ptx::Function& f : module->functions) {
    for (const image::ptx::Instruction& i : f.code) {
      require(std::uint64_t{i.first_operand} + i.operand_count <= f.operands.size());
    }
    for (const image::ptx::Operand& o : f.operands) {
      require(o.kind != image::ptx::OperandKind::kRegister || o.index < f.registers.size());
      require(o.kind != image::ptx::OperandKind::kLabel || o.index <= f.code.size());
      require(std::uint64_t{o.first} + o.count <= f.operands.size());
    }
    const idempotency::KernelSummary summary = idempotency::summarize(*module, f);
    require(summary.complete);
    require(!to_text(summary).empty());
    const std::byte args[64] = {};
    const auto verdict =
        idempotency::decide(summary, args, {{3, 2, 1}, {32, 4, 1}, 0}, map, NoSymbols());
    require(summary.defeats.empty() || verdict.kind == idempotency::VerdictKind::kUnknown);
  }
  return 0;
}
