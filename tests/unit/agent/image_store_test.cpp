// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/image_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace gpurecover::agent {
namespace {

constexpr image::ComputeCapability kDevice{9, 0};

constexpr char kText[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from)
{
  .reg .b64 %rd<5>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [to];
  ld.param.u64 %rd2, [from];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  ld.global.u32 %r1, [%rd4];
  st.global.u32 [%rd3], %r1;
  ret;
}
)";

const void* owner(int n) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(n));
}

TEST(ImageStore, KeepsACopyOfWhatTheAppMayFree) {
  ImageStore store;
  auto text = std::make_unique<std::string>(kText);
  store.add(owner(1), text->c_str());
  text->assign(text->size(), 'x');
  text.reset();
  const auto knowledge = store.summarize(owner(1), "copy", kDevice);
  ASSERT_NE(knowledge.summary, nullptr) << knowledge.reason;
  EXPECT_EQ(knowledge.summary->accesses.size(), 2U);
  EXPECT_TRUE(knowledge.summary->defeats.empty());
}

TEST(ImageStore, EveryLackHasItsReason) {
  ImageStore store;
  EXPECT_NE(store.summarize(owner(1), "copy", kDevice).reason, "");
  store.add(owner(1), kText);
  EXPECT_EQ(store.summarize(owner(1), "other", kDevice).summary, nullptr);
  EXPECT_NE(store.summarize(owner(1), "other", kDevice).reason, "");
  store.add(owner(2), std::string("this is no image").c_str());
  EXPECT_NE(store.summarize(owner(2), "copy", kDevice).reason, "");
  store.add_file(owner(3), "/nonexistent.ptx");
  EXPECT_NE(store.summarize(owner(3), "copy", kDevice).reason, "");
  store.add(owner(4), nullptr);
  store.add(nullptr, kText);
}

// A program compiles one kernel after the other into the same static buffer.
TEST(ImageStore, AVariableOfTheProgramIsCopied) {
  static char buffer[sizeof kText + 64];
  ImageStore store;
  std::strcpy(buffer, kText);
  store.add(owner(1), buffer);
  std::string other = kText;
  other.replace(other.find("st.global.u32"), 13, "red.global.add.u32");
  std::strcpy(buffer, other.c_str());
  store.add(owner(2), buffer);
  const auto first = store.summarize(owner(1), "copy", kDevice);
  ASSERT_NE(first.summary, nullptr) << first.reason;
  for (const auto& access : first.summary->accesses) {
    EXPECT_NE(access.kind, idempotency::AccessKind::kReadModifyWrite);
  }
}

TEST(ImageStore, OneReadForAnotherArchitectureSaysNothing) {
  ImageStore store;
  store.add(owner(1), kText);
  EXPECT_NE(store.summarize(owner(1), "copy", kDevice).summary, nullptr);
  EXPECT_EQ(store.summarize(owner(1), "copy", {8, 0}).summary, nullptr);
  EXPECT_NE(store.summarize(owner(1), "copy", {8, 0}).reason, "");
}

TEST(ImageStore, FilesAliasesAndRemoval) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("gpurecover-image-" + std::to_string(::getpid()) + ".ptx");
  std::ofstream(path) << kText;
  ImageStore store;
  store.add_file(owner(1), path);
  std::filesystem::remove(path);
  store.add_alias(owner(2), owner(1));
  EXPECT_NE(store.summarize(owner(2), "copy", kDevice).summary, nullptr);
  store.remove(owner(1));
  EXPECT_EQ(store.summarize(owner(1), "copy", kDevice).summary, nullptr);
  EXPECT_EQ(store.summarize(owner(2), "copy", kDevice).summary, nullptr);
}

}  // namespace
}  // namespace gpurecover::agent
