// SPDX-License-Identifier: Apache-2.0
#include "image/variables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "image/ptx_parser.h"

namespace gpurecover::image {
namespace {

std::vector<std::byte> built(const std::string& name) {
  std::ifstream in(std::string(BUILT_DIR) + "/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(text.empty()) << name;
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void expect_all(const ModuleVariables& found) {
  std::map<std::string, ModuleVariable> by_name;
  for (const auto& variable : found.variables) {
    by_name[variable.name] = variable;
    EXPECT_EQ(variable.compilers, variable.name.starts_with("$str")) << variable.name;
    EXPECT_EQ(variable.constant, variable.name == "factors") << variable.name;
    EXPECT_EQ(variable.managed, variable.name == "shared_with_host") << variable.name;
  }
  EXPECT_EQ(by_name.at("counter").size, 4U);
  EXPECT_EQ(by_name.at("initialised").size, 16U);
  EXPECT_EQ(by_name.at("factors").size, 32U);
  EXPECT_EQ(by_name.at("shared_with_host").size, 4U);
  // The names of statics are mangled, so they are counted: hidden, calls and the format.
  EXPECT_EQ(by_name.size(), 7U);
  EXPECT_TRUE(found.device_heap);
  EXPECT_FALSE(found.nameless);
}

TEST(Variables, OfACubin) {
  const auto found = variables_of_cubin(built("variables_90.cubin"));
  ASSERT_TRUE(found) << found.error().message();
  expect_all(*found);
}

TEST(Variables, OfPtx) {
  const auto bytes = built("variables_90.ptx");
  const auto module = ptx::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ASSERT_TRUE(module);
  expect_all(variables_of(*module));
}

TEST(Variables, WhatNoNameFindsIsSaid) {
  const auto module = ptx::parse(R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry k()
{
  .global .u32 inner;
  ret;
}
)");
  ASSERT_TRUE(module);
  EXPECT_TRUE(variables_of(*module).nameless);
}

TEST(Variables, StorageWithoutSymbolsIsNameless) {
  auto bytes = built("variables_90.cubin");
  // Section headers: offset at byte 40, number at 60; the type of each at its byte 4.
  std::uint64_t table = 0;
  std::uint16_t count = 0;
  std::memcpy(&table, bytes.data() + 40, 8);
  std::memcpy(&count, bytes.data() + 60, 2);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t type = 0;
    std::memcpy(&type, bytes.data() + table + 64 * i + 4, 4);
    if (type == 2) {
      type = 1;
      std::memcpy(bytes.data() + table + 64 * i + 4, &type, 4);
    }
  }
  const auto found = variables_of_cubin(bytes);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->nameless);
}

TEST(Variables, DamagedCubinsAreSurvived) {
  const auto whole = built("variables_90.cubin");
  std::mt19937 random(20260);
  for (int i = 0; i < 3000; ++i) {
    auto bytes = whole;
    for (int k = 0; k < 4; ++k) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    bytes.resize(i % 3 == 0 ? random() % bytes.size() : bytes.size());
    (void)variables_of_cubin(bytes);
  }
}

}  // namespace
}  // namespace gpurecover::image
