// SPDX-License-Identifier: Apache-2.0
// What was found before the run counts where image and version are the same, and nowhere else.
#include "cupti/agent/side_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "cupti/agent/image_store.h"
#include "idempotency/offline/analyse.h"

namespace gpurecover::agent {
namespace {

constexpr image::ComputeCapability kDevice{9, 0};
constexpr char kText[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from)
{
  .reg .b64 %rd<5>; .reg .b32 %r<2>;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from];
  ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry fill(.param .u64 to)
{
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [to]; st.global.u32 [%rd1], 1;
  ret;
}
)";

const void* owner(int n) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(n));
}

class SideFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("gpurecover-side-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    folder_ = std::filesystem::canonical(folder_);
    std::ofstream(folder_ / "k.ptx") << kText;
    side_ = folder_ / "k.ptx.gpurecover.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string made_of(std::string_view text) {
    const auto images = image::find_images(std::as_bytes(std::span(text)));
    return to_json(idempotency::analyse("k.ptx", *images), "test", idempotency::Detail::kComplete);
  }
  void put(const std::string& content) { std::ofstream(side_) << content; }

  KernelKnowledge summarize(const std::string& folder = "", const std::string& executable = "") {
    ImageStore store;
    store.use_side_files(folder, executable,
                         [this](const std::string& text) { told_.push_back(text); });
    store.add_file(owner(1), folder_ / "k.ptx");
    auto knowledge = store.summarize(owner(1), "copy", kDevice);
    // The second kernel of the image, and again: told once.
    const auto other = store.summarize(owner(1), "fill", kDevice);
    EXPECT_NE(other.summary, nullptr);
    EXPECT_EQ(other.side_file, knowledge.side_file);
    EXPECT_EQ(store.summarize(owner(1), "neither", kDevice).summary, nullptr);
    return knowledge;
  }
  void expect_ignored(const std::string& word) {
    told_.clear();
    const auto knowledge = summarize();
    ASSERT_NE(knowledge.summary, nullptr) << knowledge.reason;
    EXPECT_EQ(knowledge.side_file, "");
    ASSERT_EQ(told_.size(), 1u);
    EXPECT_NE(told_[0].find(side_), std::string::npos) << told_[0];
    EXPECT_NE(told_[0].find(word), std::string::npos) << told_[0];
  }

  std::filesystem::path folder_;
  std::string side_;
  std::vector<std::string> told_;
};

TEST_F(SideFilesTest, OneBesideTheImageIsUsed) {
  const auto alone = summarize();
  EXPECT_EQ(alone.side_file, "");
  put(made_of(kText));
  const auto knowledge = summarize();
  ASSERT_NE(knowledge.summary, nullptr) << knowledge.reason;
  EXPECT_EQ(knowledge.side_file, side_);
  EXPECT_EQ(to_text(*knowledge.summary), to_text(*alone.summary));
  EXPECT_TRUE(told_.empty()) << told_[0];
}

TEST_F(SideFilesTest, FromTheFolderOrBesideTheExecutable) {
  put(made_of(kText));
  const auto other = folder_ / "analysis";
  std::filesystem::create_directories(other);
  std::filesystem::rename(side_, other / "any.gpurecover.json");
  std::ofstream(other / "broken.gpurecover.json") << "{";
  std::ofstream(other / "no.json") << "{";
  EXPECT_EQ(summarize().side_file, "");
  EXPECT_EQ(summarize(other).side_file, other / "any.gpurecover.json");
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].find("broken"), std::string::npos);
  std::filesystem::rename(other / "any.gpurecover.json", folder_ / "app.gpurecover.json");
  told_.clear();
  EXPECT_EQ(summarize("", folder_ / "app").side_file, folder_ / "app.gpurecover.json");
  EXPECT_TRUE(told_.empty());
  summarize(folder_ / "missing");
  EXPECT_EQ(told_.size(), 1u);
}

TEST_F(SideFilesTest, OfAnotherImageIsNotUsed) {
  std::string text = kText;
  text.replace(text.find(", 1;"), 4, ", 2;");  // of the same size
  put(made_of(text));
  const auto knowledge = summarize();
  ASSERT_NE(knowledge.summary, nullptr);
  EXPECT_EQ(knowledge.side_file, "");
  EXPECT_TRUE(told_.empty());  // the program was built anew: nothing is wrong with the file
}

TEST_F(SideFilesTest, DamagedOrNotOursIsIgnoredWithOneLine) {
  const std::string good = made_of(kText);
  for (const std::string& bad : {std::string(), std::string("{}"), good.substr(0, good.size() / 2),
                                 std::string(1000, '['), std::string("\0\xff\xfe", 3)}) {
    put(bad);
    expect_ignored("analyze");
  }
  std::string text = good;
  text.replace(text.find("analysis/1"), 10, "analysis/9");
  put(text);
  expect_ignored("schema");
  text = good;
  const std::string revision(idempotency::analysis_revision());
  text.replace(text.find(revision), revision.size(), std::string(revision.size(), 'f'));
  put(text);
  expect_ignored("another version");
  text = good;
  text[text.find("\"summary\"") + 20] ^= 1;
  put(text);
  expect_ignored("changed");
}

TEST_F(SideFilesTest, WhatEverybodyMayWriteIsIgnored) {
  put(made_of(kText));
  ASSERT_EQ(::chmod(side_.c_str(), 0666), 0);
  expect_ignored("everybody");
  ASSERT_EQ(::chmod(side_.c_str(), 0664), 0);
  EXPECT_EQ(summarize().side_file, side_);
}

TEST_F(SideFilesTest, OfSomebodyElseIsIgnored) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a file away";
  put(made_of(kText));
  ASSERT_EQ(::chown(side_.c_str(), 12345, 12345), 0);
  expect_ignored("somebody else");
  // Who owns the program may say what it does.
  ASSERT_EQ(::chown((folder_ / "k.ptx").c_str(), 12345, 12345), 0);
  EXPECT_EQ(summarize().side_file, side_);
}

TEST_F(SideFilesTest, NoFileButAPipeOrAFolder) {
  ASSERT_EQ(::mkfifo(side_.c_str(), 0600), 0);
  expect_ignored("regular");
  std::filesystem::remove(side_);
  std::filesystem::create_directories(side_);
  expect_ignored("regular");
}

TEST_F(SideFilesTest, MachineCodeIsTheSameAsAnalysedHere) {
  std::ifstream in(IMAGES_DIR "/kernels_90.cubin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (bytes.empty())
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  const auto file =
      idempotency::analyse("k.cubin", *image::find_images(std::as_bytes(std::span(bytes))));
  ASSERT_EQ(file.images.size(), 1u);
  const auto path = folder_ / "k.cubin";
  std::ofstream(path, std::ios::binary) << bytes;
  const auto store_with = [&](const std::filesystem::path& image) {
    auto store = std::make_unique<ImageStore>();
    store->use_side_files("", "", [this](const std::string& text) { told_.push_back(text); });
    store->add_file(owner(1), image);
    return store;
  };
  const auto alone = store_with(path);
  // Read before the side file is there.
  alone->summarize(owner(1), "none", kDevice);
  std::ofstream(path.string() + ".gpurecover.json")
      << to_json(file, "test", idempotency::Detail::kComplete);
  const auto with = store_with(path);
  std::size_t stored = 0;
  for (const auto& kernel : file.images[0].kernels) {
    const auto expected = alone->summarize(owner(1), kernel.name, kDevice);
    const auto knowledge = with->summarize(owner(1), kernel.name, kDevice);
    ASSERT_EQ(expected.summary == nullptr, knowledge.summary == nullptr) << kernel.name;
    EXPECT_EQ(expected.reason, knowledge.reason);
    EXPECT_EQ(expected.side_file, "");
    if (expected.summary != nullptr) {
      ++stored;
      EXPECT_EQ(to_text(*knowledge.summary), to_text(*expected.summary));
      EXPECT_TRUE(knowledge.summary->machine_code);
      EXPECT_EQ(knowledge.side_file, path.string() + ".gpurecover.json");
    }
  }
  EXPECT_GT(stored, 5u);
  // The rules on whose code is looked at are the same with it.
  const auto vendor = folder_ / "libcublas.so.12";
  std::ofstream(vendor, std::ios::binary) << bytes;
  std::ofstream(vendor.string() + ".gpurecover.json")
      << to_json(file, "test", idempotency::Detail::kComplete);
  EXPECT_EQ(
      store_with(vendor)->summarize(owner(1), file.images[0].kernels[0].name, kDevice).summary,
      nullptr);
  EXPECT_TRUE(told_.empty());
}

// The driver compiles PTX for a device that has no machine code in the image; on one that has, the
// PTX beside it is not even parsed.
TEST_F(SideFilesTest, OfAFatbin) {
  std::ifstream in(IMAGES_DIR "/small_default.fatbin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (bytes.empty())
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  const auto images = image::find_images(std::as_bytes(std::span(bytes)));
  const auto file = idempotency::analyse("k.fatbin", *images);
  const auto path = folder_ / "k.fatbin";
  std::ofstream(path, std::ios::binary) << bytes;
  std::ofstream(path.string() + ".gpurecover.json")
      << to_json(file, "test", idempotency::Detail::kComplete);
  for (const image::ComputeCapability device : {image::ComputeCapability{9, 0}, {10, 0}}) {
    ImageStore with, alone;
    with.use_side_files("", "", nullptr);
    with.add_file(owner(1), path);
    alone.add_file(owner(1), path);
    for (const auto& image : file.images) {
      for (const auto& kernel : image.kernels) {
        const auto expected = alone.summarize(owner(1), kernel.name, device);
        const auto knowledge = with.summarize(owner(1), kernel.name, device);
        ASSERT_EQ(expected.summary == nullptr, knowledge.summary == nullptr) << kernel.name;
        if (expected.summary != nullptr) {
          EXPECT_EQ(to_text(*knowledge.summary), to_text(*expected.summary));
          EXPECT_NE(knowledge.side_file, "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpurecover::agent
