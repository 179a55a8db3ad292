// SPDX-License-Identifier: Apache-2.0
// Summaries as bytes and side files: complete, and refused when anything about them is wrong.
#include "idempotency/offline/side_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "idempotency/address_program.h"
#include "idempotency/offline/analyse.h"
#include "idempotency/offline/overview.h"
#include "idempotency/offline/summary_codec.h"
#include "idempotency/verdict.h"
#include "image/ptx_parser.h"

namespace gpurecover::idempotency {
namespace {

constexpr char kPtx[] = R"(.version 7.0
.target sm_70
.address_size 64
.global .align 4 .b8 counter[4];
.visible .entry copy(.param .u64 in, .param .u64 out, .param .u32 n)
{
  .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<6>;
  ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r2, %r2, %r3, %r4;
LOOP:
  setp.ge.u32 %p, %r2, %r1;
  @%p bra DONE;
  mul.wide.u32 %d3, %r2, 4;
  add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
  ld.global.u32 %r5, [%d4]; st.global.u32 [%d5], %r5;
  add.s32 %r2, %r2, 128;
  bra LOOP;
DONE:
  ret;
}
.visible .entry count(.param .u64 in)
{
  .reg .b32 %r<3>; .reg .b64 %d<3>;
  ld.param.u64 %d1, [in]; ld.global.u32 %r1, [%d1];
  mov.u64 %d2, counter; atom.global.add.u32 %r2, [%d2], %r1;
  ret;
}
.visible .entry indirect(.param .u64 table)
{
  .reg .b32 %r<3>; .reg .b64 %d<3>;
  ld.param.u64 %d1, [table]; ld.global.u64 %d2, [%d1]; st.global.u32 [%d2], 1;
  ret;
}
)";

class NoSymbols : public SymbolRanges {
 public:
  std::optional<Range> find(std::string_view) const override { return std::nullopt; }
};

image::FileImages images_of(std::string_view text) {
  auto found = image::find_images(std::as_bytes(std::span(text)));
  EXPECT_TRUE(found.has_value());
  return std::move(*found);
}
AnalysedFile analysed() {
  return analyse("program", images_of(kPtx));
}
KernelSummary summary_of(const char* name) {
  const auto module = image::ptx::parse(kPtx);
  return summarize(*module, *module->find_function(name));
}

void expect_same(const Verdict& a, const Verdict& b, const std::string& what) {
  EXPECT_EQ(a.kind, b.kind) << what;
  EXPECT_EQ(a.trust, b.trust) << what;
  EXPECT_EQ(a.reason, b.reason) << what;
  EXPECT_EQ(a.reads, b.reads) << what;
  EXPECT_EQ(a.writes, b.writes) << what;
  EXPECT_EQ(a.must_writes, b.must_writes) << what;
  EXPECT_EQ(a.all_in_bounds, b.all_in_bounds) << what;
}

// Launches with arguments that the kernels above can have.
void for_each_launch(const KernelSummary& summary, const std::function<void(Verdict&&)>& visit) {
  MemoryMap map;
  for (const std::uint64_t at : {0x1000'0000ull, 0x2000'0000ull}) {
    Allocation a;
    a.address = at;
    a.size = 1 << 20;
    map.insert(a);
  }
  for (const std::uint64_t out : {0x2000'0000ull, 0x1000'0000ull, 0x1000'0100ull, 0x3000'0000ull}) {
    for (const std::uint32_t n : {0u, 1u, 1000u, 1u << 20}) {
      std::byte args[20] = {};
      const std::uint64_t in = 0x1000'0000;
      std::memcpy(args, &in, 8);
      std::memcpy(args + 8, &out, 8);
      std::memcpy(args + 16, &n, 4);
      visit(decide(summary, args, {{4, 1, 1}, {128, 1, 1}, 0}, map, NoSymbols()));
    }
  }
}

TEST(SummaryCodec, VerdictsAreTheSame) {
  for (const char* name : {"copy", "count", "indirect"}) {
    const KernelSummary summary = summary_of(name);
    ASSERT_TRUE(well_formed(summary)) << name;
    const std::string bytes = encode_summary(summary);
    const auto back = decode_summary(bytes);
    ASSERT_TRUE(back.has_value()) << name;
    EXPECT_EQ(encode_summary(*back), bytes);
    EXPECT_EQ(to_text(*back), to_text(summary));
    std::vector<Verdict> expected;
    for_each_launch(summary, [&](Verdict&& v) { expected.push_back(std::move(v)); });
    std::size_t at = 0;
    for_each_launch(*back, [&](Verdict&& v) { expect_same(v, expected[at++], name); });
  }
  EXPECT_NE(summary_of("copy").addresses, nullptr);
}

TEST(SummaryCodec, EveryPrefixIsRefused) {
  const std::string bytes = encode_summary(summary_of("copy"));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_summary(std::string_view(bytes).substr(0, size))) << size;
  EXPECT_FALSE(decode_summary(bytes + '\0'));
}

TEST(SummaryCodec, WhateverIsReadCanBeEvaluated) {
  std::mt19937 random(7);
  unsigned accepted = 0;
  for (const char* name : {"copy", "count"}) {
    const std::string bytes = encode_summary(summary_of(name));
    for (int k = 0; k < 20'000; ++k) {
      std::string changed = bytes;
      for (unsigned n = 1 + random() % 3; n > 0; --n)
        changed[random() % changed.size()] = static_cast<char>(random());
      if (const auto back = decode_summary(changed)) {
        ++accepted;
        for_each_launch(*back, [](Verdict&&) {});
        (void)to_text(*back);
        (void)overview(*back, {});
      }
    }
  }
  EXPECT_GT(accepted, 100u);  // else nothing was tried
}

TEST(SummaryCodec, IndexesOutsideAreRefused) {
  const KernelSummary good = summary_of("copy");
  const auto refused = [&](auto change) {
    KernelSummary bad = good;
    auto program = std::make_shared<AddressProgram>(*good.addresses);
    change(bad, *program);
    bad.addresses = program;
    return !decode_summary(encode_summary(bad));
  };
  EXPECT_FALSE(refused([](KernelSummary&, AddressProgram&) {}));
  EXPECT_TRUE(refused([](KernelSummary& s, AddressProgram&) { s.accesses[0].sites = {99}; }));
  EXPECT_TRUE(
      refused([](KernelSummary& s, AddressProgram&) { s.accesses[0].alternatives.clear(); }));
  EXPECT_TRUE(refused([](KernelSummary& s, AddressProgram&) { s.origin = Origin::kDeclaration; }));
  EXPECT_TRUE(refused([](KernelSummary& s, AddressProgram&) { s.accesses[0].range_end = 4; }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.sites[0].address = 9999; }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.symbols.resize(5); }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.contexts.clear(); }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.contexts.back() = 5000; }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.steps[0].width = 0; }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.steps[0].width = 65; }));
  ASSERT_FALSE(good.addresses->loops.empty());
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.loops[0].parent = 0; }));
  EXPECT_TRUE(refused([](KernelSummary&, AddressProgram& p) { p.loops[0].symbol = 9999; }));
  for (std::size_t k = 0; k < good.addresses->steps.size(); ++k) {
    const Step& step = good.addresses->steps[k];
    if (step.kind == StepKind::kAdd) {
      // A step that takes what comes later.
      EXPECT_TRUE(refused([&](KernelSummary&, AddressProgram& p) {
        p.steps[k].a = static_cast<std::uint32_t>(k);
      }));
    }
  }
}

TEST(SideFile, HoldsEveryKernelWithItsSummary) {
  const AnalysedFile file = analysed();
  ASSERT_EQ(file.images.size(), 1u);
  EXPECT_EQ(file.images[0].bytes, std::strlen(kPtx));
  const std::string text = to_json(file, "gpurecover test", Detail::kComplete);
  const auto read = read_side_file(text);
  ASSERT_TRUE(read.has_value()) << read.error();
  ASSERT_EQ(read->images.size(), 1u);
  const StoredImage& image = read->images[0];
  EXPECT_EQ(image.kind, image::EntryKind::kPtx);
  EXPECT_EQ(image.hash, content_hash(std::as_bytes(std::span(std::string_view(kPtx)))));
  EXPECT_EQ(image.bytes, std::strlen(kPtx));
  ASSERT_EQ(image.kernels.size(), 3u);
  for (const char* name : {"copy", "count", "indirect"}) {
    const StoredKernel* kernel = image.find(name);
    ASSERT_NE(kernel, nullptr) << name;
    const auto summary = unpack_summary(*kernel);
    ASSERT_TRUE(summary.has_value()) << name;
    EXPECT_EQ(encode_summary(*summary), encode_summary(summary_of(name)));
  }
  EXPECT_EQ(image.find("cop"), nullptr);
}

TEST(SideFile, AnotherRevisionSchemaOrContentDoesNotCount) {
  const std::string good = to_json(analysed(), "t", Detail::kComplete);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const auto error = [](const std::string& text) {
    const auto read = read_side_file(text);
    return read ? std::string("accepted") : read.error();
  };
  EXPECT_EQ(error(good), "accepted");
  EXPECT_NE(error(with("analysis/1", "analysis/2")).find("schema"), std::string::npos);
  EXPECT_NE(error(with(std::string(analysis_revision()), std::string(32, '0'))).find("version"),
            std::string::npos);
  EXPECT_NE(error(with("\"copy\"", "\"CopY\"")).find("changed"), std::string::npos);
  EXPECT_NE(error(to_json(analysed(), "t", Detail::kReadable)).find("changed"), std::string::npos);
  EXPECT_NE(error("").find("JSON"), std::string::npos);
  EXPECT_NE(error("{}").find("no side file"), std::string::npos);
  EXPECT_NE(error("[[[[").find("JSON"), std::string::npos);
  EXPECT_NE(error(std::string(100'000, '[')).find("deep"), std::string::npos);
  for (std::size_t size = 0; size < good.size(); size += 7)
    EXPECT_NE(error(good.substr(0, size)), "accepted") << size;
  // Every byte counts, in the parts for people too.
  for (std::size_t at = 0; at < good.size(); at += 5) {
    std::string text = good;
    text[at] = static_cast<char>(text[at] ^ 1);
    EXPECT_NE(error(text), "accepted") << at;
  }
}

TEST(SideFile, MembersOfTheSameNameDeeperDownAreOthers) {
  const auto read = [](const std::string& images) {
    const std::string text = std::string(R"({"schema": "gpurecover.analysis/1", "revision": ")") +
                             std::string(analysis_revision()) + R"(", "images": )" + images;
    const std::string hash = content_hash(std::as_bytes(std::span(text)));
    return read_side_file(text + ",\n\"checksum\": \"" + hash + "\"\n}\n");
  };
  const auto found = read(
      R"([{"hash": "h", "x": {"hash": "no", "kernels": [{"name": "no", "summary": "no"}]},
           "kernels": [{"name": "yes", "summary": "s", "accesses": [{"name": "no"}],
                        "y": [{"summary": "no"}]}, 7, {"name": "without"}]}, [], "x"])");
  ASSERT_TRUE(found.has_value()) << found.error();
  ASSERT_EQ(found->images.size(), 1u);
  EXPECT_EQ(found->images[0].hash, "h");
  ASSERT_EQ(found->images[0].kernels.size(), 1u);
  EXPECT_EQ(found->images[0].kernels[0].name, "yes");
  EXPECT_EQ(found->images[0].kernels[0].packed, "s");
  EXPECT_FALSE(unpack_summary(found->images[0].kernels[0]));
}

TEST(SideFile, SaysWhatIsDoneThroughEachArgument) {
  const std::string text = to_text(analysed(), [](const std::string& name) { return name; });
  EXPECT_NE(text.find("copy: 3 parameters"), std::string::npos) << text;
  EXPECT_NE(text.find("arg0: read; exact"), std::string::npos) << text;
  EXPECT_NE(text.find("arg1: write, must-write; exact"), std::string::npos) << text;
  EXPECT_NE(text.find("global:counter: read-modify-write; exact"), std::string::npos) << text;
  EXPECT_NE(text.find("loaded: write; bounded"), std::string::npos) << text;
}

TEST(SideFile, MachineCodeOfTheVendorsLibrariesIsLeftAlone) {
  // By the file's name, before anything of it is read.
  image::FileImages images;
  images.images.emplace_back();
  image::Entry entry;
  entry.kind = image::EntryKind::kCubin;
  entry.sm = 80;
  images.images[0].image.entries.push_back(entry);
  const AnalysedFile file = analyse("libcublas.so.12", images);
  ASSERT_EQ(file.images.size(), 1u);
  EXPECT_TRUE(file.images[0].kernels.empty());
  EXPECT_NE(file.images[0].note.find("not decoded"), std::string::npos);
  EXPECT_EQ(analyse("libmine.so", images).images[0].note.find("not decoded"), std::string::npos);
}

}  // namespace
}  // namespace gpurecover::idempotency
