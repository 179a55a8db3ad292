// SPDX-License-Identifier: Apache-2.0
#include "idempotency/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "image/ptx_parser.h"

namespace gpurecover::idempotency {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Symbols : public SymbolRanges {
 public:
  std::optional<Range> find(std::string_view name) const override {
    const auto it = known.find(std::string(name));
    return it == known.end() ? std::nullopt : std::optional(it->second);
  }
  std::map<std::string, Range> known;
};

constexpr std::uint64_t kA = 0x7f0000000000, kB = 0x7f0000100000, kC = 0x7f0000200000,
                        kSize = 0x1000;

class VerdictTest : public ::testing::Test {
 protected:
  VerdictTest() {
    for (const std::uint64_t base : {kA, kB, kC}) {
      Allocation a;
      a.address = base;
      a.size = kSize;
      map.insert(a);
    }
  }
  Verdict of(const KernelSummary& s, std::vector<std::uint64_t> args) {
    return decide(s, std::as_bytes(std::span(args)), LaunchDimensions{}, map, symbols);
  }
  // p at byte 0, q at 8, r at 16, a struct of 4 words at 24.
  static KernelSummary analysed(const std::string& code, const std::string& before = "") {
    const auto m = image::ptx::parse(
        ".version 8.0 .target sm_90 .address_size 64 " + before +
        ".entry k(.param .u64 p, .param .u64 q, .param .u64 r, .param .align 8 .b8 s[32]) {"
        ".reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<2>;"
        "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; ld.param.u64 %rd3, [r];" +
        code + "ret; }");
    EXPECT_TRUE(m) << m.error().message("t");
    return m ? summarize(*m, m->functions.back()) : KernelSummary{};
  }

  MemoryMap map;
  Symbols symbols;
};

// Compiled for another architecture, the parameters lie elsewhere.
TEST_F(VerdictTest, LargeAlignmentsNeedTheSameLayout) {
  for (const int align : {16, 32, 64}) {
    const auto m = image::ptx::parse(
        ".version 8.0 .target sm_90 .address_size 64 .entry k(.param .u64 p, .param .align " +
        std::to_string(align) +
        " .b8 s[64]) { .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p];"
        "ld.param.u64 %rd2, [s]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1; ret; }");
    ASSERT_TRUE(m) << m.error().message("t");
    const KernelSummary s = summarize(*m, m->functions.back());
    std::vector<std::uint64_t> args(s.param_bytes / 8, kB);
    args[0] = kA;
    EXPECT_EQ(of(s, args).kind, VerdictKind::kIdempotent);
    args.resize(args.size() + 2, kB);
    EXPECT_EQ(of(s, args).kind, align > 16 ? VerdictKind::kUnknown : VerdictKind::kIdempotent);
  }
}

TEST_F(VerdictTest, ReadOneWriteAnother) {
  const KernelSummary s = analysed("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;");
  const Verdict v = of(s, {kA + 16, kB, 0, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_EQ(v.trust, Trust::kBounded);
  EXPECT_EQ(v.reason, "");
  EXPECT_THAT(v.reads, ElementsAre(Range{kA, kA + kSize}));
  EXPECT_THAT(v.writes, ElementsAre(Range{kB, kB + kSize}));
  EXPECT_TRUE(v.writes_anything);
  const Verdict same = of(s, {kA, kA + 2048, 0, 0, 0, 0, 0});
  EXPECT_EQ(same.kind, VerdictKind::kClobbers);
  EXPECT_THAT(same.clobbered, ElementsAre(Range{kA, kA + kSize}));
  EXPECT_FALSE(same.proved_clobber);
  EXPECT_THAT(same.reason, HasSubstr("0x7f0000000000"));
}

TEST_F(VerdictTest, AtomicsClobberAndThatIsProved) {
  const KernelSummary s = analysed("red.global.add.u32 [%rd1], 1; ld.global.u32 %r1, [%rd2];");
  const Verdict v = of(s, {kA, kB, 0, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kClobbers);
  EXPECT_TRUE(v.proved_clobber);
  EXPECT_THAT(v.reason, HasSubstr("atomic"));
  EXPECT_THAT(v.clobbered, ElementsAre(Range{kA, kA + kSize}));
  // Also when another address is unknown.
  const Verdict w = of(s, {kA, 5, 0, 0, 0, 0, 0});
  EXPECT_EQ(w.kind, VerdictKind::kClobbers);
}

TEST_F(VerdictTest, StrayPointersAreUnknown) {
  const KernelSummary s = analysed("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd3], %r1;");
  const Verdict v = of(s, {kA, 0, 0x1234, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kUnknown);
  EXPECT_EQ(v.reason, "pointer argument at byte 16 (0x1234) is in no known allocation");
  map.erase(kA);
  EXPECT_EQ(of(s, {kA, 0, kB, 0, 0, 0, 0}).kind, VerdictKind::kUnknown);
}

TEST_F(VerdictTest, NullPointersTouchNothing) {
  const KernelSummary s = analysed("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2+8], %r1;");
  const Verdict v = of(s, {kA, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_THAT(v.writes, IsEmpty());
  EXPECT_FALSE(v.writes_anything);
  const KernelSummary hidden =
      analysed("ld.global.u64 %rd5, [%rd1]; add.s64 %rd6, %rd2, %rd5; st.global.u32 [%rd6], 1;");
  EXPECT_EQ(of(hidden, {kA, kB, 0, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
  EXPECT_EQ(of(hidden, {kA, 0, 0, 0, 0, 0, 0}).reason, "address loaded from memory (PTX line 1)");
}

TEST_F(VerdictTest, TooFewArgumentBytesAreUnknown) {
  const KernelSummary s = analysed("ld.global.u32 %r1, [%rd3];");
  EXPECT_EQ(of(s, {kA, kB}).kind, VerdictKind::kUnknown);
  EXPECT_EQ(of(s, {}).kind, VerdictKind::kUnknown);
}

TEST_F(VerdictTest, EveryAlternativeCounts) {
  const KernelSummary s = analysed(
      "ld.global.u32 %r1, [%rd1]; selp.b64 %rd5, %rd2, %rd3, %p1; st.global.u32 [%rd5], %r1;");
  const Verdict v = of(s, {kA, kB, kC, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_EQ(v.writes.size(), 2u);
  EXPECT_EQ(of(s, {kA, kB, kA, 0, 0, 0, 0}).kind, VerdictKind::kClobbers);
  EXPECT_EQ(of(s, {kA, kB, 77, 0, 0, 0, 0}).kind, VerdictKind::kUnknown);
  EXPECT_EQ(of(s, {kA, kB, 0, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
}

TEST_F(VerdictTest, ATreeWalkIsUnknown) {
  const KernelSummary s =
      analysed("L: ld.global.u64 %rd1, [%rd1]; @%p1 bra L; st.global.u64 [%rd2], %rd1;");
  const Verdict v = of(s, {kA, kB, 0, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kUnknown);
  EXPECT_THAT(v.reason, HasSubstr("loaded from memory"));
}

TEST_F(VerdictTest, AnyParameterTakesWhatIsLive) {
  const KernelSummary s = analysed(
      "ld.global.u32 %r1, [%rd1]; mov.u32 %r2, %tid.x; mul.wide.u32 %rd5, %r2, 8; mov.b64 %rd6, s;"
      "add.s64 %rd6, %rd6, %rd5; ld.param.u64 %rd7, [%rd6]; st.global.u32 [%rd7], %r1;");
  const Verdict v = of(s, {kA, 0, 0, kB, 12345, kC + 4, 0});
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_EQ(v.writes.size(), 2u);
  EXPECT_EQ(of(s, {kA, 0, 0, kB, 12345, kA, 0}).kind, VerdictKind::kClobbers);
  EXPECT_EQ(of(s, {kA, 0, 0, 1, 2, 3, 4}).kind, VerdictKind::kUnknown);
  EXPECT_EQ(of(s, {kA, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
}

TEST_F(VerdictTest, SubtractedPointersMakeOtherTermsSuspicious) {
  // q + loaded - p: what was loaded may be the base if p is a pointer.
  const KernelSummary s = analysed(
      "ld.global.u64 %rd5, [%rd3]; add.s64 %rd6, %rd2, %rd5; sub.s64 %rd6, %rd6, %rd1; "
      "st.global.u32 [%rd6], 1;");
  EXPECT_EQ(of(s, {kA, kB, kC, 0, 0, 0, 0}).kind, VerdictKind::kUnknown);
  EXPECT_EQ(of(s, {16, kB, kC, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
}

TEST_F(VerdictTest, SizesThatAreAddedAreNoBase) {
  const KernelSummary s =
      analysed("add.s64 %rd5, %rd1, %rd2; st.global.u32 [%rd5], 1; ld.global.u32 %r1, [%rd3];");
  const Verdict v = of(s, {kA, 4096, kC, 0, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_THAT(v.writes, ElementsAre(Range{kA, kA + kSize}));
}

TEST_F(VerdictTest, ModuleVariables) {
  const std::string vars = ".global .u32 g; .const .u32 c; ";
  const KernelSummary reads =
      analysed("ld.global.u32 %r1, [g]; ld.const.u32 %r2, [c]; st.global.u32 [%rd1], %r1;", vars);
  EXPECT_EQ(of(reads, {kA, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
  const KernelSummary writes = analysed("st.global.u32 [g], 1;", vars);
  EXPECT_EQ(of(writes, {0, 0, 0, 0, 0, 0, 0}).reason,
            "module variable g, which is written, has no known address");
  symbols.known["g"] = {kC, kC + 4};
  EXPECT_EQ(of(writes, {0, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
  EXPECT_THAT(of(writes, {0, 0, 0, 0, 0, 0, 0}).writes, ElementsAre(Range{kC, kC + 4}));
  const KernelSummary both = analysed("ld.global.u32 %r1, [g]; st.global.u32 [g], %r1;", vars);
  EXPECT_EQ(of(both, {0, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kClobbers);
  // A pointer argument into the variable is the same memory.
  const KernelSummary mixed = analysed("ld.global.u32 %r1, [g]; st.global.u32 [%rd1], %r1;", vars);
  EXPECT_EQ(of(mixed, {kC, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kClobbers);
}

TEST_F(VerdictTest, GapsBelongToBothNeighbours) {
  Allocation a = map.find(kA).found[0], b;
  a.gap_after = 0x1000;
  b.address = kA + 0x2000;
  b.size = 0x1000;
  b.gap_before = 0x1000;
  map.insert(a);
  map.insert(b);
  const KernelSummary s = analysed("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;");
  EXPECT_EQ(of(s, {kA, kA + 0x1800, 0, 0, 0, 0, 0}).kind, VerdictKind::kClobbers);
}

TEST_F(VerdictTest, HostVisibleWritesAreTold) {
  Allocation a = map.find(kB).found[0];
  a.kind = AllocationKind::kManaged;
  a.host_visible = true;
  map.insert(a);
  const KernelSummary s = analysed("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;");
  EXPECT_TRUE(of(s, {kA, kB, 0, 0, 0, 0, 0}).writes_host_visible);
  EXPECT_FALSE(of(s, {kB, kA, 0, 0, 0, 0, 0}).writes_host_visible);
}

TEST_F(VerdictTest, DefeatsAndWhatWasNotAnalysedAreUnknown) {
  EXPECT_EQ(of(KernelSummary{}, {}).kind, VerdictKind::kUnknown);
  const KernelSummary s = analysed("mov.u32 %r1, %envreg2;");
  EXPECT_EQ(of(s, {0, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kUnknown);
  EXPECT_THAT(of(s, {0, 0, 0, 0, 0, 0, 0}).reason, HasSubstr("grid-wide"));
  EXPECT_EQ(of(analysed(""), {0, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kIdempotent);
}

TEST_F(VerdictTest, AUsedVerdictIsWhollyOverwritten) {
  const KernelSummary atomic = analysed("red.global.add.u32 [%rd1], 1;"), nothing = analysed("");
  const std::uint64_t args[7] = {kA};
  Verdict v;
  decide(atomic, std::as_bytes(std::span(args)), LaunchDimensions{}, map, symbols, v);
  EXPECT_TRUE(v.proved_clobber);
  decide(nothing, std::as_bytes(std::span(args)), LaunchDimensions{}, map, symbols, v);
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_FALSE(v.proved_clobber);
  EXPECT_FALSE(v.writes_anything);
  EXPECT_THAT(v.reads, IsEmpty());
  EXPECT_THAT(v.reason, IsEmpty());
}

// --- Declarations ---

constexpr ArgumentSlot kLayout[] = {{0, 8}, {8, 8}, {16, 8}, {24, 32}, {56, 4}};

Declaration facts(std::vector<std::string> reads, std::vector<std::string> writes) {
  Declaration d;
  d.reads = std::move(reads);
  d.writes = std::move(writes);
  return d;
}

TEST_F(VerdictTest, DeclaredRanges) {
  const KernelSummary s =
      declare("k", facts({"arg0[0:1024]"}, {"arg0[1024:2048]", "arg3.field@8"}), kLayout).value();
  const Verdict v = of(s, {kA, 0, 0, 0, kB + 8, 0, 0, 0});
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_EQ(v.trust, Trust::kDeclared);
  EXPECT_THAT(v.reads, ElementsAre(Range{kA, kA + 1024}));
  EXPECT_THAT(v.writes, ElementsAre(Range{kA + 1024, kA + 2048}, Range{kB, kB + kSize}));
  // Ranges are relative to the pointer, and end with its allocation.
  const Verdict shifted = of(s, {kA + 3500, 0, 0, 0, kB, 0, 0, 0});
  EXPECT_THAT(shifted.reads, ElementsAre(Range{kA + 3500, kA + kSize}));
  const KernelSummary overlap =
      declare("k", facts({"arg0[0:1025]"}, {"arg0[1024:2048]"}), kLayout).value();
  EXPECT_EQ(of(overlap, {kA, 0, 0, 0, 0, 0, 0, 0}).kind, VerdictKind::kClobbers);
  EXPECT_THAT(of(overlap, {kA, 0, 0, 0, 0, 0, 0, 0}).clobbered,
              ElementsAre(Range{kA + 1024, kA + 1025}));
}

TEST_F(VerdictTest, MalformedDeclarationsSayWhatIsWrong) {
  const struct {
    const char* word;
    const char* wanted;
  } kCases[] = {
      {"", "does not begin with \"arg\""},
      {"x", "does not begin with \"arg\""},
      {"arg", "needs a number"},
      {"arg-1", "needs a number"},
      {"arg99999999999", "needs a number"},
      {"arg0x", "\"x\" is not understood"},
      {"arg0[", "BEGIN:END"},
      {"arg0[1]", "BEGIN:END"},
      {"arg0[1:2", "BEGIN:END"},
      {"arg0[2:2]", "the range is empty"},
      {"arg0[5:2]", "the range is empty"},
      {"arg0.field", "is not understood"},
      {"arg0.field@", "needs a byte offset"},
      {"arg0[0:1]z", "\"z\" is not understood"},
      {"arg9", "has 5 arguments"},
      {"arg4", "is 4 bytes, too small for a pointer"},
      {"arg3", "say which field, as in arg3.field@0"},
      {"arg3.field@25", "too small for a pointer at byte 25"},
  };
  for (const auto& c : kCases) {
    const auto s = declare("k", facts({c.word}, {}), kLayout);
    ASSERT_FALSE(s) << c.word;
    EXPECT_THAT(s.error(), HasSubstr(c.wanted)) << c.word;
    EXPECT_THAT(s.error(), HasSubstr(std::string("\"") + c.word)) << c.word;
  }
  EXPECT_TRUE(check_declared_range("arg0[2:2]"));
  EXPECT_FALSE(check_declared_range("arg12.field@16[0:8]"));
  EXPECT_FALSE(declare("k", Declaration{}, kLayout));
  Declaration both = facts({"arg0"}, {});
  both.idempotent = true;
  EXPECT_THAT(declare("k", both, kLayout).error(), HasSubstr("together"));
}

TEST_F(VerdictTest, ADeclarationNeverOverridesAProvedClobber) {
  Declaration d;
  d.idempotent = true;
  const KernelSummary declared = declare("k", d, kLayout).value();
  const std::uint64_t args[8] = {kA, kB, kC};
  auto with = [&](const KernelSummary* analysis) {
    Verdict v;
    decide_with_declaration(analysis, declared, std::as_bytes(std::span(args)), LaunchDimensions{},
                            map, symbols, v);
    return v;
  };
  EXPECT_EQ(with(nullptr).kind, VerdictKind::kIdempotent);
  EXPECT_EQ(with(nullptr).trust, Trust::kDeclared);
  // It says nothing of what is read and written, so empty lists must not pass for all of it.
  EXPECT_FALSE(with(nullptr).ranges_complete);
  const KernelSummary atomic = analysed("red.global.add.u32 [%rd1], 1;");
  EXPECT_EQ(with(&atomic).kind, VerdictKind::kClobbers);
  const KernelSummary unknown = analysed("mov.u32 %r1, %envreg2;");
  EXPECT_FALSE(with(&unknown).ranges_complete);
  EXPECT_EQ(with(&unknown).kind, VerdictKind::kIdempotent);
  // Only bounded: two halves of one allocation may well be apart.
  const KernelSummary in_place =
      analysed("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1+2048], %r1;");
  EXPECT_EQ(with(&in_place).kind, VerdictKind::kIdempotent);
  EXPECT_THAT(with(&in_place).writes, ElementsAre(Range{kA, kA + kSize}));
}

TEST(Names, AreTheReportsWords) {
  EXPECT_EQ(name_of(VerdictKind::kIdempotent), "idempotent");
  EXPECT_EQ(name_of(VerdictKind::kClobbers), "clobbers");
  EXPECT_EQ(name_of(VerdictKind::kUnknown), "unknown");
  EXPECT_EQ(name_of(Trust::kProved), "proved");
  EXPECT_EQ(name_of(Trust::kBounded), "bounded");
  EXPECT_EQ(name_of(Trust::kDeclared), "declared");
  EXPECT_EQ(name_of(Trust::kObserved), "observed");
}

}  // namespace
}  // namespace gpurecover::idempotency
