// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cupti/agent/kernel_table.h"

namespace gpurecover::agent {
namespace {

// void k(float* a, char c, struct {…12 bytes} s)
void fill(Kernel& kernel) {
  kernel.layout = {{0, 8}, {8, 1}, {12, 12}};
  kernel.param_bytes = 24;
}

TEST(Arguments, GatheredFromKernelParamsWithTheirPadding) {
  Kernel kernel;
  fill(kernel);
  std::uint64_t pointer = 0x1122334455667788;
  char c = 'x';
  const std::uint32_t s[3] = {1, 2, 3};
  void* params[] = {&pointer, &c, const_cast<std::uint32_t*>(s)};
  std::vector<std::byte> out(3, std::byte{0xff});
  ASSERT_TRUE(gather_arguments(kernel, params, nullptr, out));
  ASSERT_EQ(out.size(), 24U);
  EXPECT_EQ(std::memcmp(out.data(), &pointer, 8), 0);
  EXPECT_EQ(out[8], std::byte{'x'});
  EXPECT_EQ(out[9], std::byte{0});  // padding is not left over from an earlier launch
  EXPECT_EQ(std::memcmp(out.data() + 12, s, sizeof s), 0);
}

// Every size of argument, at every offset, without and with something between them; nothing before
// or behind the argument is read, which the address sanitizer sees.
TEST(Arguments, EverySizeIsGatheredWhole) {
  std::vector<std::byte> out;
  for (const bool gaps : {false, true}) {
    for (std::uint32_t size = 1; size <= 65; ++size) {
      Kernel kernel;
      std::vector<std::vector<std::byte>> arguments;
      std::vector<void*> params;
      for (std::uint32_t i = 0; i < 3; ++i) {
        kernel.layout.push_back({kernel.param_bytes + gaps, size});
        kernel.param_bytes += size + gaps;
        arguments.emplace_back(size, static_cast<std::byte>(16 * size + i + 1));
      }
      for (auto& argument : arguments) {
        params.push_back(argument.data());
      }
      kernel.gaps = gaps;
      ASSERT_TRUE(gather_arguments(kernel, params.data(), nullptr, out));
      std::vector<std::byte> expected;
      for (const auto& argument : arguments) {
        expected.insert(expected.end(), gaps, std::byte{0});
        expected.insert(expected.end(), argument.begin(), argument.end());
      }
      EXPECT_EQ(out, expected) << size << " " << gaps;
      out.assign(out.size(), std::byte{0xff});  // what an earlier launch left
    }
  }
}

TEST(Arguments, GatheredFromAnExtraBuffer) {
  Kernel kernel;
  fill(kernel);
  std::vector<std::byte> buffer(24, std::byte{7});
  std::size_t size = buffer.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &size, CU_LAUNCH_PARAM_END};
  std::vector<std::byte> out;
  ASSERT_TRUE(gather_arguments(kernel, nullptr, extra, out));
  EXPECT_EQ(out, buffer);
  size = 23;  // too short for the kernel: nothing is read beyond it
  EXPECT_FALSE(gather_arguments(kernel, nullptr, extra, out));
}

TEST(Arguments, MissingOnesAreSaidSo) {
  Kernel kernel;
  fill(kernel);
  std::vector<std::byte> out;
  EXPECT_FALSE(gather_arguments(kernel, nullptr, nullptr, out));
  void* params[] = {nullptr, nullptr, nullptr};
  EXPECT_FALSE(gather_arguments(kernel, params, nullptr, out));
  const Kernel none;
  EXPECT_TRUE(gather_arguments(none, nullptr, nullptr, out));
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace gpurecover::agent
