// SPDX-License-Identifier: Apache-2.0
#include "image/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "image/cubin.h"
#include "image/ptx_parser.h"

namespace gpurecover::image {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  const std::string s((std::istreambuf_iterator<char>(in)), {});
  Bytes b(s.size());
  std::memcpy(b.data(), s.data(), s.size());
  return b;
}
Bytes bytes(std::string_view s) {
  Bytes b(s.size());
  std::memcpy(b.data(), s.data(), s.size());
  return b;
}
Image good(std::span<const std::byte> b) {
  auto i = open(b);
  EXPECT_TRUE(i) << i.error().message();
  return i ? std::move(*i) : Image{};
}
std::string built(const std::string& name) {
  return std::string(BUILT_DIR "/") + name;
}

constexpr std::string_view kPtx =
    ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n";

TEST(Image, FatbinsOfEveryCompressionHoldTheSame) {
  const Image raw = good(file(built("small_none.fatbin")));
  ASSERT_EQ(raw.entries.size(), 2u);
  EXPECT_EQ(raw.form, Image::Form::kContainer);
  EXPECT_EQ(raw.entries[0].kind, EntryKind::kCubin);
  EXPECT_EQ(raw.entries[1].kind, EntryKind::kPtx);
  for (const Entry& e : raw.entries) {
    EXPECT_EQ(e.sm, 90u);
    EXPECT_EQ(e.suffix, "");
    EXPECT_EQ(e.compression, Compression::kNone);
  }
  EXPECT_TRUE(ptx::parse(raw.entries[1].text()));
  EXPECT_TRUE(read_cubin(raw.entries[0].data));
  bool zstd = false, lz4 = false;
  for (const char* mode : {"default", "size", "speed", "balance"}) {
    const Image image = good(file(built(std::string("small_") + mode + ".fatbin")));
    ASSERT_EQ(image.entries.size(), 2u) << mode;
    EXPECT_EQ(image.entries[1].text(), raw.entries[1].text()) << mode;
    EXPECT_TRUE(read_cubin(image.entries[0].data)) << mode;
    for (const Entry& e : image.entries) {
      zstd |= e.compression == Compression::kZstd;
      lz4 |= e.compression == Compression::kLz4;
    }
  }
  EXPECT_TRUE(zstd);
  EXPECT_TRUE(lz4);
}

TEST(Image, ArchSpecificTargetsAreTold) {
  const Image image = good(file(built("small_90a.fatbin")));
  ASSERT_EQ(image.entries.size(), 2u);
  EXPECT_EQ(image.entries[0].suffix, "a");
  EXPECT_EQ(image.entries[1].suffix, "a");
  const Image bare = good(image.entries[0].data);
  EXPECT_EQ(bare.form, Image::Form::kCubin);
  EXPECT_EQ(bare.entries[0].suffix, "a");
  EXPECT_EQ(bare.entries[0].sm, 90u);
  EXPECT_EQ(select(image, {9, 0}), 0u);
  EXPECT_FALSE(select(image, {10, 0}));  // neither code nor PTX of sm_90a runs elsewhere
}

TEST(Image, PointersAreSizedFromTheirHeaders) {
  const Bytes container = file(built("small_default.fatbin"));
  EXPECT_EQ(size_of_image(container.data()), container.size());
  const Image from_pointer = open_pointer(container.data()).value();
  EXPECT_EQ(from_pointer.entries.size(), 2u);
  const Image cubin = good(file(built("small_none.fatbin")));
  const Bytes& code = cubin.entries[0].data;
  const auto size = size_of_image(code.data());
  ASSERT_TRUE(size);
  EXPECT_LE(*size, code.size());
  EXPECT_GT(*size + 8, code.size());  // the container pads to 8
  EXPECT_EQ(open_pointer(code.data())->entries[0].kind, EntryKind::kCubin);
  const std::string text(kPtx);
  EXPECT_EQ(size_of_image(text.c_str()), text.size());
  EXPECT_EQ(open_pointer(text.c_str())->entries[0].text(), text);
  EXPECT_FALSE(open_pointer(nullptr));
  EXPECT_FALSE(open_pointer(""));
  EXPECT_FALSE(open_pointer("x"));
}

TEST(Image, WrappersAreFollowed) {
  const Bytes container = file(built("small_default.fatbin"));
  struct Wrapper {
    std::uint32_t magic, version;
    const void* data;
    const void* more;
  };
  const Wrapper one{0x466243B1, 1, container.data(), nullptr};
  const Image image = open_pointer(&one).value();
  EXPECT_EQ(image.form, Image::Form::kWrapper);
  EXPECT_EQ(image.entries.size(), 2u);
  const void* const list[] = {container.data(), container.data(), nullptr};
  const Wrapper many{0x466243B1, 2, container.data(), list};
  EXPECT_EQ(open_pointer(&many)->entries.size(), 6u);
  const Wrapper none{0x466243B1, 2, nullptr, nullptr};
  EXPECT_FALSE(open_pointer(&none));
  const Wrapper future{0x466243B1, 3, container.data(), nullptr};
  EXPECT_THAT(open_pointer(&future).error().message(), HasSubstr("version 3"));
  // Bytes of a file cannot hold a wrapper.
  Bytes b(24);
  std::memcpy(b.data(), &one, 24);
  EXPECT_THAT(open(b).error().message(), HasSubstr("wrapper"));
}

TEST(Image, ErrorsNamePlaceAndRemedy) {
  EXPECT_THAT(open({}).error().message(), HasSubstr("empty"));
  EXPECT_THAT(open(bytes("\x01\x02\x03\x04\x05")).error().message(),
              HasSubstr("neither a fatbin, a cubin nor PTX text"));
  EXPECT_THAT(open(bytes("hello world")).error().message(), HasSubstr("PTX must begin"));
  Bytes b = file(built("small_default.fatbin"));
  const Bytes whole = b;
  b.resize(b.size() - 10);
  EXPECT_THAT(open(b).error().message(), HasSubstr("cut short"));
  b = whole;
  b[4] = std::byte{9};
  EXPECT_THAT(open(b).error().message(), HasSubstr("unknown version 9"));
  b = whole;
  b[16] = std::byte{7};  // kind of the first entry
  const Image skipped = good(b);
  EXPECT_EQ(skipped.entries.size(), 1u);
  ASSERT_EQ(skipped.skipped.size(), 1u);
  EXPECT_THAT(skipped.skipped[0], HasSubstr("kind 7"));
  // A host program is not an image.
  EXPECT_THAT(open(file("/proc/self/exe")).error().message(), HasSubstr("machine 62"));
}

// Offset of the PTX entry's header in a container with machine code first.
std::size_t second_entry(const Bytes& b) {
  std::uint32_t head;
  std::uint64_t stored;
  std::memcpy(&head, b.data() + 16 + 4, 4);
  std::memcpy(&stored, b.data() + 16 + 8, 8);
  return 16 + head + stored;
}
void put64(Bytes& b, std::size_t at, std::uint64_t v) {
  std::memcpy(b.data() + at, &v, 8);
}

TEST(Image, UncompressedSizesMustBeExact) {
  for (const char* mode : {"small_default.fatbin", "small_speed.fatbin"}) {
    const Bytes whole = file(built(mode));
    const std::size_t entry = second_entry(whole);
    std::uint64_t size;
    std::memcpy(&size, whole.data() + entry + 0x38, 8);
    ASSERT_GT(size, 100u) << mode;
    for (const std::uint64_t wrong : {size - 1, size + 1, std::uint64_t{0}, std::uint64_t{1},
                                      std::uint64_t{1} << 29, ~std::uint64_t{0}}) {
      Bytes b = whole;
      put64(b, entry + 0x38, wrong);
      EXPECT_FALSE(open(b)) << mode << " " << wrong;
    }
  }
}

TEST(Image, DamagedBytesNeverCrash) {
  const unsigned seed = 20240607;
  std::mt19937 random(seed);
  SCOPED_TRACE(seed);
  for (const char* mode : {"small_none.fatbin", "small_default.fatbin", "small_speed.fatbin"}) {
    const Bytes whole = file(built(mode));
    for (int round = 0; round < 300; ++round) {
      Bytes b = whole;
      for (int k = 0; k < 4; ++k) {
        // Mostly in headers, where it matters.
        const std::size_t at = random() % (round % 2 == 0 ? b.size() : 400);
        b[at] = static_cast<std::byte>(random());
      }
      if (round % 3 == 0)
        b.resize(random() % b.size());
      if (auto image = open(b)) {
        for (const Entry& e : image->entries) {
          if (e.kind == EntryKind::kCubin)
            (void)read_cubin(e.data);
        }
      }
    }
  }
}

TEST(Image, FindsImagesInAHostObject) {
  const Bytes object = file(built("small.o"));
  const FileImages found = find_images(object).value();
  EXPECT_TRUE(found.errors.empty());
  ASSERT_GE(found.images.size(), 1u);
  EXPECT_EQ(found.images[0].section, ".nv_fatbin");
  EXPECT_EQ(found.images[0].image.entries.size(), 2u);
  EXPECT_FALSE(find_images(file(built("CMakeCache.none"))));
}

TEST(Image, FindsRawPtxAndCubinsInAnySection) {
  const Image fat = good(file(built("small_none.fatbin")));
  const Bytes& code = fat.entries[0].data;
  // An ELF file for the host whose section .rodata has all kinds, with other bytes between.
  Bytes content = bytes("some text.\n");
  content.push_back(std::byte{0});
  const std::string ptx = "// Generated\n" + std::string(kPtx);
  const std::size_t ptx_at = content.size();
  for (const std::byte x : bytes(ptx))
    content.push_back(x);
  content.push_back(std::byte{0});
  for (const std::byte x : bytes(".version 7.0\n.target sm_80\n"))
    content.push_back(x);  // a header only
  content.push_back(std::byte{0});
  const std::size_t code_at = content.size();
  content.insert(content.end(), code.begin(), code.end());
  Bytes elf(64);
  std::memcpy(elf.data(),
              "\x7f"
              "ELF\2\1\1",
              7);
  elf[18] = std::byte{62};
  const std::size_t base = elf.size();
  elf.insert(elf.end(), content.begin(), content.end());
  const std::size_t names_at = elf.size();
  for (const std::byte x : bytes(std::string_view("\0.rodata\0.names\0", 16)))
    elf.push_back(x);
  const std::size_t table = elf.size();
  elf.resize(table + 3 * 64);
  auto section = [&](int n, std::uint32_t name, std::uint64_t offset, std::uint64_t size) {
    std::byte* s = elf.data() + table + 64 * n;
    const std::uint32_t type = 1;
    std::memcpy(s, &name, 4);
    std::memcpy(s + 4, &type, 4);
    std::memcpy(s + 24, &offset, 8);
    std::memcpy(s + 32, &size, 8);
  };
  section(1, 1, base, content.size());
  section(2, 9, names_at, 16);
  put64(elf, 40, table);
  elf[58] = std::byte{64};
  elf[60] = std::byte{3};
  elf[62] = std::byte{2};
  const FileImages found = find_images(elf).value();
  ASSERT_EQ(found.images.size(), 2u);
  EXPECT_EQ(found.images[0].offset, base + ptx_at);
  EXPECT_EQ(found.images[0].image.entries[0].text(), ptx);
  EXPECT_EQ(found.images[0].section, ".rodata");
  EXPECT_EQ(found.images[1].offset, base + code_at);
  EXPECT_EQ(found.images[1].image.entries[0].kind, EntryKind::kCubin);
  // Without its section table, the same is found.
  put64(elf, 40, 0);
  EXPECT_EQ(find_images(elf)->images.size(), 2u);
}

Entry entry(EntryKind kind, std::uint32_t sm, std::optional<std::string> suffix = "") {
  Entry e;
  e.kind = kind;
  e.sm = sm;
  e.suffix = std::move(suffix);
  return e;
}
constexpr auto kCode = EntryKind::kCubin;
constexpr auto kText = EntryKind::kPtx;

TEST(Select, MachineCodeOfTheSameMajorGoesFirst) {
  Image i;
  i.entries = {entry(kCode, 80), entry(kCode, 86), entry(kCode, 90), entry(kText, 70),
               entry(kText, 86)};
  EXPECT_EQ(select(i, {8, 0}), 0u);
  EXPECT_EQ(select(i, {8, 6}), 1u);
  EXPECT_EQ(select(i, {8, 9}), 1u);
  EXPECT_EQ(select(i, {9, 0}), 2u);
  EXPECT_EQ(select(i, {7, 0}), 3u);
  EXPECT_EQ(select(i, {10, 0}), 4u);  // newest PTX is compiled
  EXPECT_THAT(select(i, {6, 1}).error().message(), HasSubstr("sm_61"));
}
TEST(Select, ArchSpecificNeedsItsArch) {
  Image i;
  i.entries = {entry(kCode, 90, "a"), entry(kText, 90, "a"), entry(kText, 80)};
  EXPECT_EQ(select(i, {9, 0}), 0u);
  EXPECT_EQ(select(i, {10, 0}), 2u);
  i.entries = {entry(kCode, 100, "f"), entry(kCode, 100, "a")};
  EXPECT_EQ(select(i, {10, 3}), 0u);
  EXPECT_FALSE(select(i, {12, 0}));
}
TEST(PtxForMachineCode, OnlyOfTheSameCompile) {
  Image i;
  i.entries = {entry(kCode, 80), entry(kCode, 90), entry(kText, 90)};
  EXPECT_EQ(ptx_for_machine_code(i, {9, 0}), 2u);
  EXPECT_EQ(ptx_for_machine_code(i, {12, 0}), 2u);  // compiled from it
  EXPECT_EQ(ptx_for_machine_code(i, {8, 0}).error(),
            "machine code sm_80 without PTX of the same compile");
  i.entries.push_back(entry(kText, 90));
  EXPECT_THAT(ptx_for_machine_code(i, {9, 0}).error(), HasSubstr("more than one PTX"));
  i.entries = {entry(kCode, 90, "a"), entry(kText, 90)};
  EXPECT_FALSE(ptx_for_machine_code(i, {9, 0}));
  i.entries = {entry(kCode, 90, std::nullopt), entry(kText, 90)};
  EXPECT_EQ(ptx_for_machine_code(i, {9, 0}), 1u);
}

TEST(Cubin, ParametersAgreeWithThePtxOfTheSameCompile) {
  const Cubin cubin = read_cubin(file(built("kernels_90.cubin"))).value();
  EXPECT_EQ(cubin.sm, 90u);
  const Bytes text = file(built("kernels_90.ptx"));
  const auto module = ptx::parse({reinterpret_cast<const char*>(text.data()), text.size()}).value();
  std::size_t kernels = 0;
  for (const ptx::Function& f : module.functions) {
    if (!f.entry) {
      EXPECT_EQ(cubin.find(f.name), nullptr) << f.name;
      continue;
    }
    ++kernels;
    const CubinKernel* k = cubin.find(f.name);
    ASSERT_NE(k, nullptr) << f.name;
    ASSERT_EQ(k->parameters.size(), f.params.size()) << f.name;
    EXPECT_EQ(k->param_bytes, f.param_bytes) << f.name;
    for (std::size_t n = 0; n < f.params.size(); ++n) {
      EXPECT_EQ(k->parameters[n].ordinal, n);
      EXPECT_EQ(k->parameters[n].offset, f.params[n].offset) << f.name << " " << n;
      EXPECT_EQ(k->parameters[n].size, f.params[n].size) << f.name << " " << n;
    }
    EXPECT_EQ(k->has_externs, f.name == "prints" || f.name == "allocates" || f.name == "asserts")
        << f.name;
  }
  EXPECT_EQ(cubin.kernels.size(), kernels);
}

TEST(Cubin, ReadsLargeParameters) {
  const Cubin cubin = read_cubin(good(file(built("small_none.fatbin"))).entries[0].data).value();
  const CubinKernel* k = cubin.find("large_parameter");
  ASSERT_NE(k, nullptr);
  ASSERT_EQ(k->parameters.size(), 2u);
  EXPECT_EQ(k->parameters[0].size, 8000u);
  EXPECT_EQ(k->parameters[1].offset, 8000u);
  EXPECT_EQ(k->param_bytes, 8008u);
}

TEST(Cubin, BothFormsOfTheArchitectureField) {
  Bytes b = good(file(built("small_none.fatbin"))).entries[0].data;
  b[8] = std::byte{7};
  const std::uint32_t flags = 0x00560556;
  std::memcpy(b.data() + 48, &flags, 4);
  EXPECT_EQ(read_cubin(b)->sm, 0x56u);
}

}  // namespace
}  // namespace gpurecover::image
