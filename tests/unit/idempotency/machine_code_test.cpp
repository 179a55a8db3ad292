// SPDX-License-Identifier: Apache-2.0
// The analysis over machine code: what it finds in a kernel's instructions against what it finds in
// the PTX of the same kernel, for every architecture. Machine code may say more (a superset), and
// where it does, it is in a table here with the reason; it may never say less.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <cstring>

#include "idempotency/verdict.h"
#include "image/cubin.h"
#include "image/ptx_parser.h"
#include "image/sass/lift.h"
#include "tests/unit/idempotency/summary_signature.h"

namespace gpurecover::idempotency {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream in(std::string(BUILT_DIR "/") + name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The places that a kernel's accesses start from, by kind of access.
struct Roots {
  std::set<std::string> all;
  bool conservative = false;  // its verdict cannot be `idempotent`
  bool operator==(const Roots&) const = default;
};

std::string root_text(const KernelSummary& s, const Root& r) {
  switch (r.kind) {
    case RootKind::kParameter:
      return std::to_string(r.param_offset);
    case RootKind::kAnyParameter:
      return "any";
    case RootKind::kGlobalSymbol:
    case RootKind::kConstSymbol:
      return s.symbols.at(r.symbol);
    case RootKind::kLoaded:
      return "loaded";
    case RootKind::kDriver:
      return "driver";
    case RootKind::kConstant:
      return r.address == 0 ? "null" : "constant";
    case RootKind::kUnknown:
      break;
  }
  return "unknown";
}

Roots roots_of(const KernelSummary& s) {
  Roots roots;
  roots.conservative = !s.defeats.empty() || !s.complete;
  for (const Access& a : s.accesses) {
    for (const Alternative& alternative : a.alternatives) {
      for (const Root& r : alternative.roots) {
        const std::string text = root_text(s, r);
        roots.conservative |= text == "unknown" || text == "driver";
        // A read and a write of one place say more than either.
        if (a.kind != AccessKind::kWrite)
          roots.all.insert("r" + text);
        if (a.kind != AccessKind::kRead)
          roots.all.insert("w" + text);
        if (a.kind == AccessKind::kReadModifyWrite)
          roots.all.insert("u" + text);
      }
    }
  }
  return roots;
}

// Where machine code says more than PTX, and why.
const std::map<std::string, std::string>& supersets() {
  static const auto* const map = new std::map<std::string, std::string>{
      {"by_value", "constant memory indexed at run time: any variable of it"},
      {"indexed_struct", "parameters indexed at run time: any of them"},
      {"grid_constant", "parameters indexed at run time: any of them"},
      {"many_pointers", "parameters indexed at run time: any of them"},
      {"grid_sync", "driver words; or instructions that are not known"},
      {"mangled_pointer", "the shifts are one mask of the upper word"},
      {"two_ints", "two parameters put together"},
      {"halves_of_two_pointers", "not one pointer"},
  };
  return *map;
}
bool may_say_more(const std::string& kernel, std::uint32_t sm) {
  // sm_120 calls the driver for bulk copies that reach beyond the block.
  return supersets().contains(kernel) || (kernel == "bulk_copies" && sm == 120);
}
// Kernels that are refused, and on which architectures.
bool may_be_refused(const std::string& kernel, std::uint32_t sm) {
  return kernel == "recursion" || kernel == "indirect_call" ||
         (kernel == "grid_sync" && sm == 100) || (kernel == "long_index" && sm == 120);
}

class MachineCodeKernels : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(MachineCodeKernels, SayNoLessThanTheirPtx) {
  const std::uint32_t sm = GetParam();
  std::size_t seen = 0;
  for (const std::string source : {"kernels", "sass"}) {
    const std::string cubin = read_file(source + "_" + std::to_string(sm) + ".cubin");
    if (cubin.empty())
      GTEST_SKIP() << "no compiler for device code was there when the tests were built";
    const std::string level = sm < 80 ? "75" : source == "kernels" || sm >= 90 ? "90" : "80";
    const auto ptx = image::ptx::parse(read_file(source + "_" + level + ".ptx"));
    ASSERT_TRUE(ptx);
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(cubin.data()),
                                           cubin.size());
    const auto code = image::sass::MachineCode::open(bytes);
    ASSERT_TRUE(code) << code.error().message();
    EXPECT_EQ(code->sm(), sm);
    const auto list = image::read_cubin(bytes);
    ASSERT_TRUE(list);
    for (const image::CubinKernel& kernel : list->kernels) {
      SCOPED_TRACE(kernel.name + " of sm_" + std::to_string(sm));
      const image::ptx::Function* function = ptx->find_function(kernel.name);
      ASSERT_NE(function, nullptr);
      ++seen;
      const KernelSummary from_ptx = summarize(*ptx, *function);
      const Roots expected = roots_of(from_ptx);
      const auto module = code->lift(kernel.name);
      if (!module) {
        EXPECT_TRUE(may_be_refused(kernel.name, sm)) << module.error();
        EXPECT_NE(module.error().find("0x"), std::string::npos) << module.error();
        continue;
      }
      const KernelSummary s = summarize(*module, module->functions.front());
      const Roots found = roots_of(s);
      EXPECT_TRUE(s.machine_code);
      // A parameter that is aligned to 64 bytes is aligned in the constant bank, not in the block.
      if (kernel.name != "tensor_map") {
        EXPECT_EQ(s.param_bytes, from_ptx.param_bytes);
      }
      if (expected.conservative) {
        EXPECT_TRUE(found.conservative) << to_text(s) << to_text(from_ptx);
        continue;
      }
      for (const std::string& root : expected.all)
        EXPECT_TRUE(found.all.contains(root)) << root << "\n" << to_text(s) << to_text(from_ptx);
      if (!may_say_more(kernel.name, sm)) {
        EXPECT_EQ(found.all, expected.all) << to_text(s) << to_text(from_ptx);
        EXPECT_EQ(found.conservative, expected.conservative);
      }
    }
  }
  EXPECT_GE(seen, 62U);
}

class NoSymbols : public SymbolRanges {
 public:
  std::optional<Range> find(std::string_view) const override { return std::nullopt; }
};

// Lifted code is good enough for exact ranges: launches get the same ones from it as from PTX.
TEST_P(MachineCodeKernels, LaunchesGetTheSameExactRanges) {
  const std::uint32_t sm = GetParam();
  const std::string cubin = read_file("kernels_" + std::to_string(sm) + ".cubin");
  if (cubin.empty())
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  const auto ptx = image::ptx::parse(read_file(sm < 80 ? "kernels_75.ptx" : "kernels_90.ptx"));
  ASSERT_TRUE(ptx);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(cubin.data()),
                                         cubin.size());
  const auto code = image::sass::MachineCode::open(bytes);
  ASSERT_TRUE(code);
  const auto list = image::read_cubin(bytes);
  constexpr std::uint64_t kBase = 0x7f0000000000, kStep = 0x1000000;
  MemoryMap map;
  for (std::uint64_t k = 0; k < 8; ++k) {
    Allocation a;
    a.address = kBase + k * kStep;
    a.size = 0x100000;
    map.insert(a);
  }
  for (const char* name :
       {"vector_add", "saxpy", "gather", "vectors", "shuffles", "restrict_read", "optional_pointer",
        "select_pointer", "aligned_down", "async_copy", "spills", "pointers_in_shared",
        "_Z9templatedIdLi3EEvPT_PKS0_", "_Z9templatedIhLi4EEvPT_PKS0_"}) {
    const image::CubinKernel* kernel = list->find(name);
    const image::ptx::Function* function = ptx->find_function(name);
    ASSERT_TRUE(kernel != nullptr && function != nullptr) << name;
    const auto module = code->lift(name);
    ASSERT_TRUE(module) << name << ": " << module.error();
    const KernelSummary from_code = summarize(*module, module->functions.front());
    const KernelSummary from_ptx = summarize(*ptx, *function);
    for (const std::uint32_t n : {0u, 7u, 100u, 511u, 100'000u}) {
      for (const LaunchDimensions& dimensions : {LaunchDimensions{{4, 1, 1}, {64, 1, 1}, 0},
                                                 LaunchDimensions{{3, 2, 1}, {32, 4, 2}, 0}}) {
        SCOPED_TRACE(std::string(name) + " of sm_" + std::to_string(sm) +
                     ", n = " + std::to_string(n));
        std::vector<std::byte> args(kernel->param_bytes);
        std::uint64_t pointer = kBase + 0x40000;
        for (const image::KernelParameter& p : kernel->parameters) {
          if (p.size == 8) {
            std::memcpy(args.data() + p.offset, &pointer, 8);
            pointer += kStep;
          } else if (p.size == 4) {
            std::memcpy(args.data() + p.offset, &n, 4);
          }
        }
        const Verdict a = decide(from_ptx, args, dimensions, map, NoSymbols());
        const Verdict b = decide(from_code, args, dimensions, map, NoSymbols());
        EXPECT_EQ(a.kind, b.kind);
        EXPECT_EQ(a.trust, b.trust);
        EXPECT_EQ(a.reads, b.reads);
        EXPECT_EQ(a.writes, b.writes);
        EXPECT_EQ(a.must_writes, b.must_writes);
        EXPECT_EQ(a.all_in_bounds, b.all_in_bounds);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllArchitectures, MachineCodeKernels,
                         ::testing::Values(75, 80, 86, 89, 90, 100, 120),
                         [](const auto& info) { return "sm_" + std::to_string(info.param); });

}  // namespace
}  // namespace gpurecover::idempotency
