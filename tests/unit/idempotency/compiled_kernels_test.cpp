// SPDX-License-Identifier: Apache-2.0
// The analysis over what the toolkit's compiler makes of tests/corpus/image/kernels.cu.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "image/ptx_parser.h"
#include "tests/unit/idempotency/summary_signature.h"

namespace gpurecover::idempotency {
namespace {

const std::map<std::string, std::string>& expected() {
  static const auto* const map = new std::map<std::string, std::string>{
      {"vector_add", "r16 r8 w0"},
      {"saxpy", "r0 r8 w0"},
      {"gemm_tiled", "r16 r8 w0"},
      {"histogram", "r8 u0"},
      {"by_value", "r8 rcoefficients w0"},
      {"indexed_struct", "r48 wany0-56"},
      {"grid_constant", "r48 wany0-56"},
      {"select_pointer", "r16 w0|8"},
      {"swap_pointers", "r0|8 w0|8"},
      {"gather", "r16 r8 w0"},
      {"pointer_table", "r0 r8 wloaded"},
      {"tree_walk", "r8|loaded w0"},
      {"two_ints", "r8 wunknown"},
      {"mangled_pointer", "r8 wunknown"},
      {"tail_of_range", "r16 w0"},
      {"noinline_calls", "r16 w0 w8"},
      {"recursion", "r8 w0 !recursion through"},
      {"indirect_call", "rfunctions w0 !a call"},
      {"prints", "r0 !device printf"},
      {"asserts", "r8 w0"},
      {"allocates", "w0 !device malloc"},
      {"globals", "rsmall_table ucounter w0"},
      {"through_global_pointer", "rpointer_to_counter wloaded"},
      {"through_constant_pointer", "rconstant_pointer wloaded"},
      {"vectors", "r8 w0"},
      {"shuffles", "r8 w0"},
      {"slow_math", "r24 r8 r__cudart_i2opi_d r__cudart_i2opi_f r__cudart_sin_cos_coeffs w0 w16"},
      {"compare_and_swap", "u0 u8"},
      {"spills", "r0 w8"},
      {"pointers_in_shared", "r16 w0|8"},
      {"grid_sync", "r8 runknown uunknown w0 !grid-wide synchronization"},
      {"switches", "r8 w0"},
      {"optional_pointer", "r8 w0 w16"},
      {"restrict_read", "r8 w0"},
      {"texture_read", "w0 !texture reads"},
      {"surface_write", "!surface accesses"},
      {"aligned_down", "r8 w0"},
      {"tensor_core", "r16 r8 w0"},
      {"async_copy", "r8 w0"},
      {"_Z9templatedIdLi3EEvPT_PKS0_", "r8 w0"},
      {"_Z9templatedIhLi4EEvPT_PKS0_", "r8 w0"},
  };
  return *map;
}

class CompiledKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(CompiledKernels, AreSummarizedAsExpected) {
  std::ifstream in(std::string(BUILT_DIR "/") + GetParam(), std::ios::binary);
  ASSERT_TRUE(in);
  std::stringstream text;
  text << in.rdbuf();
  const auto module = image::ptx::parse(text.str());
  ASSERT_TRUE(module) << module.error().message(GetParam());
  std::size_t seen = 0;
  for (const image::ptx::Function& f : module->functions) {
    if (!f.entry)
      continue;
    const KernelSummary s = summarize(*module, f);
    EXPECT_TRUE(s.complete);
    const auto it = expected().find(f.name);
    ASSERT_NE(it, expected().end()) << f.name;
    EXPECT_EQ(signature(s), it->second) << to_text(s);
    ++seen;
  }
  EXPECT_EQ(seen, expected().size());
}

INSTANTIATE_TEST_SUITE_P(Nvcc, CompiledKernels,
                         ::testing::Values("kernels_75.ptx", "kernels_90.ptx"));

}  // namespace
}  // namespace gpurecover::idempotency
