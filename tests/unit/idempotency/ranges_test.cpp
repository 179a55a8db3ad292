// SPDX-License-Identifier: Apache-2.0
// Exact ranges of launches whose addresses are known by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "idempotency/verdict.h"
#include "image/ptx_parser.h"

namespace gpurecover::idempotency {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Symbols : public SymbolRanges {
 public:
  std::optional<Range> find(std::string_view name) const override {
    const auto it = known.find(std::string(name));
    return it == known.end() ? std::nullopt : std::optional(it->second);
  }
  std::map<std::string, Range> known;
};

constexpr std::uint64_t kPool = 0x7f0000000000, kOther = 0x7f0000800000, kSize = 0x100000;

// Parameters: p and q at bytes 0 and 8, n, m and k at 16, 20 and 24. %r1 is the global index, %rd1
// is p, %rd2 q, %r2 to %r4 are n, m and k.
class RangesTest : public ::testing::Test {
 protected:
  RangesTest() {
    for (const std::uint64_t base : {kPool, kOther}) {
      Allocation a;
      a.address = base;
      a.size = kSize;
      map.insert(a);
    }
  }
  static std::string text(const std::string& code, const std::string& before = "") {
    return ".version 8.0 .target sm_90 .address_size 64 " + before +
           ".entry k(.param .u64 p, .param .u64 q, .param .u32 n, .param .u32 m, .param .u32 k) {"
           ".reg .b64 %rd<20>; .reg .b32 %r<30>; .reg .pred %p<9>;"
           "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; ld.param.u32 %r2, [n];"
           "ld.param.u32 %r3, [m]; ld.param.u32 %r4, [k]; mov.u32 %r10, %tid.x;"
           "mov.u32 %r11, %ctaid.x; mov.u32 %r12, %ntid.x; mad.lo.s32 %r1, %r11, %r12, %r10;" +
           code + " ret; }";
  }
  Verdict of(const std::string& code, std::uint32_t n = 0, std::uint32_t m = 0, std::uint32_t k = 0,
             const std::string& before = "") {
    const auto module = image::ptx::parse(text(code, before));
    EXPECT_TRUE(module) << module.error().message("kernel");
    if (!module)
      return {};
    std::byte args[28];
    const std::uint32_t words[] = {n, m, k};
    std::memcpy(args, &p, 8);
    std::memcpy(args + 8, &q, 8);
    std::memcpy(args + 16, words, 12);
    return decide(summarize(*module, module->functions.back()), args, dimensions, map, symbols);
  }
  static Range at(std::uint64_t base, std::uint64_t begin, std::uint64_t end) {
    return {base + begin, base + end};
  }

  std::uint64_t p = kPool, q = kOther;
  LaunchDimensions dimensions{{4, 1, 1}, {64, 1, 1}, 0};
  MemoryMap map;
  Symbols symbols;
};

const std::string kGuard = "setp.ge.s32 %p1, %r1, %r2; @%p1 bra END;";
const std::string kAddress = "mul.wide.s32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3;";

TEST_F(RangesTest, AGuardCutsTheGrid) {
  const std::string code = kGuard + kAddress + "ld.global.u32 %r5, [%rd4]; END:";
  for (const auto& [n, bytes] : {std::pair(100u, 400u), {256u, 1024u}, {5000u, 1024u}}) {
    const Verdict v = of(code, n);
    EXPECT_EQ(v.trust, Trust::kProved);
    EXPECT_TRUE(v.all_in_bounds);
    EXPECT_THAT(v.reads, ElementsAre(at(kPool, 0, bytes))) << n;
    EXPECT_TRUE(v.reads[0].exact);
  }
  // Nobody is left.
  for (const std::uint32_t n : {0u, 0xFFFFFFFFu}) {
    EXPECT_THAT(of(code, n).reads, IsEmpty());
    EXPECT_TRUE(of(code, n).all_in_bounds);
  }
}

TEST_F(RangesTest, NeighboursInOneAllocationAreToldApart) {
  const std::string code = kGuard + kAddress +
                           "add.s64 %rd5, %rd2, %rd3; ld.global.u32 %r5, [%rd4];"
                           "st.global.u32 [%rd5], %r5; END:";
  q = kPool + 1024;
  Verdict v = of(code, 256);
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_EQ(v.trust, Trust::kProved);
  EXPECT_THAT(v.must_writes, ElementsAre(at(kPool, 1024, 2048)));
  q = kPool + 1020;
  v = of(code, 256);
  EXPECT_EQ(v.kind, VerdictKind::kClobbers);
  EXPECT_THAT(v.clobbered, ElementsAre(at(kPool, 1020, 1024)));
  EXPECT_TRUE(v.clobbered[0].exact);
  EXPECT_FALSE(v.proved_clobber);
}

TEST_F(RangesTest, WithoutDimensionsOrOutOfBoundsNothingIsExact) {
  const std::string code = kGuard + kAddress + "ld.global.u32 %r5, [%rd4]; END:";
  p = kPool + kSize - 400;
  EXPECT_TRUE(of(code, 100).all_in_bounds);
  const Verdict v = of(code, 101);  // one element too far
  EXPECT_FALSE(v.all_in_bounds);
  EXPECT_EQ(v.trust, Trust::kBounded);
  // Still no more than what the address can be, inside the allocation.
  EXPECT_THAT(v.reads, ElementsAre(at(kPool, kSize - 400, kSize)));
  EXPECT_FALSE(v.reads[0].exact);
  dimensions = {};
  p = kPool;
  EXPECT_THAT(of(code, 100).reads, ElementsAre(at(kPool, 0, kSize)));
}

TEST_F(RangesTest, WrapAroundIsNoSmallNumber) {
  // i * m wraps for the last threads: no one knows where they go.
  const std::string code =
      "mul.lo.s32 %r5, %r1, %r3; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd1, %rd3;"
      "ld.global.u32 %r6, [%rd4];";
  EXPECT_TRUE(of(code, 0, 3).all_in_bounds);
  EXPECT_FALSE(of(code, 0, 0x1000001).all_in_bounds);
  EXPECT_THAT(of(code, 0, 0x1000001).reads, ElementsAre(at(kPool, 0, kSize)));
  // All threads wrap alike: i + m - 2^32.
  const std::string moved =
      "add.s32 %r5, %r1, %r3; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd1, %rd3;"
      "setp.lt.u32 %p1, %r1, 16; @%p1 bra END; ld.global.u32 %r6, [%rd4]; END:";
  const Verdict v = of(moved, 0, 0xFFFFFFF0);
  EXPECT_THAT(v.reads, ElementsAre(at(kPool, 0, kSize)));  // hoisted above its guard
  const std::string guarded =
      "setp.lt.u32 %p1, %r1, 16; @%p1 bra END; add.s32 %r5, %r1, %r3; mul.wide.u32 %rd3, %r5, 4;"
      "add.s64 %rd4, %rd1, %rd3; ld.global.u32 %r6, [%rd4]; END:";
  EXPECT_THAT(of(guarded, 0, 0xFFFFFFF0).reads, ElementsAre(at(kPool, 0, 4 * 240)));
}

TEST_F(RangesTest, OneExpressionUnderTwoConditionsIsTwoValues) {
  // Widened without a sign: only under its own guard is i - m known not to wrap.
  const std::string use = "sub.s32 %r5, %r1, %r3; cvt.u64.u32 %rd3, %r5; shl.b64 %rd3, %rd3, 2;";
  const Verdict v =
      of("setp.lt.u32 %p1, %r1, %r3; @%p1 bra LOW;" + use +
             "add.s64 %rd4, %rd1, %rd3; ld.global.u32 %r6, [%rd4]; bra END; LOW:" + use +
             "add.s64 %rd5, %rd2, %rd3; ld.global.u32 %r6, [%rd5]; END:",
         0, 56);
  EXPECT_FALSE(v.all_in_bounds);
  EXPECT_THAT(v.reads, ElementsAre(at(kPool, 0, 800), at(kOther, 0, kSize)));
}

TEST_F(RangesTest, GridStrideLoops) {
  const std::string code =
      "mov.u32 %r5, %nctaid.x; mul.lo.s32 %r5, %r5, %r12; mov.u32 %r6, %r1;"
      "setp.ge.u32 %p1, %r6, %r2; @%p1 bra END; LOOP: mul.wide.u32 %rd3, %r6, 4;"
      "add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], %r6; add.u32 %r6, %r6, %r5;"
      "setp.lt.u32 %p2, %r6, %r2; @%p2 bra LOOP; END:";
  for (const std::uint32_t n : {1u, 255u, 256u, 257u, 12345u, 0x40000u}) {
    const Verdict v = of(code, n);
    EXPECT_TRUE(v.all_in_bounds) << n;
    EXPECT_THAT(v.writes, ElementsAre(at(kPool, 0, 4 * n)));
    EXPECT_EQ(v.must_writes, v.writes) << n;
  }
  // The counter itself may wrap before it meets the end.
  EXPECT_FALSE(of(code, 0xFFFFFFF0).all_in_bounds);
}

TEST_F(RangesTest, CountedLoopsThatMovePointers) {
  // Down to zero, as compilers turn loops; the pointer has a step of its own.
  const std::string code =
      "mov.u64 %rd3, %rd1; mov.u32 %r5, %r2; LOOP: ld.global.u32 %r6, [%rd3+8];"
      "add.s64 %rd3, %rd3, 16; add.s32 %r5, %r5, -4; setp.ne.s32 %p1, %r5, 0; @%p1 bra LOOP;";
  EXPECT_THAT(of(code, 40).reads, ElementsAre(at(kPool, 8, 8 + 9 * 16 + 4)));
  // Never meets zero exactly.
  EXPECT_FALSE(of(code, 42).all_in_bounds);
}

TEST_F(RangesTest, HalvesOf64BitAddresses) {
  // As machine code computes them: carry chains, and a pointer in two registers round a loop.
  const std::string code =
      "mov.b64 {%r5, %r6}, %rd1; mul.lo.u32 %r7, %r1, 4; mul.hi.u32 %r8, %r1, 4;"
      "add.cc.u32 %r5, %r5, %r7; addc.u32 %r6, %r6, %r8; mov.b64 %rd3, {%r5, %r6};"
      "ld.global.u32 %r9, [%rd3];";
  EXPECT_THAT(of(code).reads, ElementsAre(at(kPool, 0, 1024)));
  p = kPool + 0xF0000;
  const std::string loop =
      "mov.b64 {%r5, %r6}, %rd1; mov.u32 %r7, 0; LOOP: mov.b64 %rd3, {%r5, %r6};"
      "ld.global.u32 %r9, [%rd3]; add.cc.u32 %r5, %r5, 16; addc.u32 %r6, %r6, 0;"
      "add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, %r2; @%p1 bra LOOP;";
  EXPECT_THAT(of(loop, 100).reads, ElementsAre(at(kPool, 0xF0000, 0xF0000 + 99 * 16 + 4)));
  // A carry of another addition is none of this one's.
  const std::string wrong =
      "mov.b64 {%r5, %r6}, %rd1; add.cc.u32 %r5, %r5, %r1; add.cc.u32 %r7, %r1, %r1;"
      "addc.u32 %r6, %r6, 0; mov.b64 %rd3, {%r5, %r6}; ld.global.u8 %r9, [%rd3];";
  EXPECT_FALSE(of(wrong).all_in_bounds);
}

TEST_F(RangesTest, ConditionsOfAllKinds) {
  struct {
    const char* code;
    std::uint64_t begin, end;  // of the index
  } const cases[] = {
      {"setp.eq.s32 %p1, %r1, 7; @!%p1 bra END;", 7, 8},
      {"setp.ne.s32 %p1, %r1, 0; @!%p1 bra END;", 1, 256},
      {"setp.ne.s32 %p1, %r1, 255; @!%p1 bra END;", 0, 255},
      {"add.s32 %r5, %r1, -1; setp.lt.u32 %p1, %r5, 10; @!%p1 bra END;", 1, 11},
      {"setp.lt.s32 %p1, %r1, 90; setp.gt.s32 %p2, %r1, 20; and.pred %p3, %p1, %p2; @!%p3 bra END;",
       21, 90},
      {"setp.ge.s32 %p1, %r1, 90; setp.le.or.s32 %p2, %r1, 20, %p1; @%p2 bra END;", 21, 90},
      {"setp.lt.s32 %p1, %r1, 90; setp.gt.s32 %p2, %r1, 20; or.pred %p3, %p1, %p2; @!%p3 bra END;",
       0, 256},
      {"shr.u32 %r5, %r1, 4; setp.lt.u32 %p1, %r5, 3; @!%p1 bra END;", 0, 48},
      {"min.s32 %r1, %r1, 9;", 0, 10},
      {"max.s32 %r1, %r1, 9;", 9, 256},
      {"and.b32 %r1, %r1, 15;", 0, 16},
      {"rem.u32 %r1, %r1, 10;", 0, 10},
      {"div.u32 %r1, %r1, 10;", 0, 26},
      {"setp.gt.s32 %p1, %r1, 9; selp.b32 %r1, 9, %r1, %p1;", 0, 10},
      {"setp.gt.s32 %p1, %r1, 9; @%p1 mov.u32 %r1, 9;", 0, 10},
  };
  for (const auto& c : cases) {
    const Verdict v = of(std::string(c.code) + kAddress + "ld.global.u32 %r6, [%rd4]; END:");
    EXPECT_THAT(v.reads, ElementsAre(at(kPool, 4 * c.begin, 4 * c.end))) << c.code;
    EXPECT_TRUE(v.all_in_bounds) << c.code;
  }
}

TEST_F(RangesTest, WhatIsSurelyWritten) {
  const std::string store = kAddress + "st.global.u32 [%rd4], %r1; END:";
  EXPECT_THAT(of(kGuard + store, 100).must_writes, ElementsAre(at(kPool, 0, 400)));
  EXPECT_THAT(of(store).must_writes, ElementsAre(at(kPool, 0, 1024)));
  // With holes, by chance, or as data wants it.
  EXPECT_THAT(of("mul.wide.s32 %rd3, %r1, 8; add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], %r1;")
                  .must_writes,
              IsEmpty());
  EXPECT_THAT(of("setp.lt.s32 %p1, %r1, 90; setp.gt.s32 %p2, %r1, 200; or.pred %p3, %p1, %p2;"
                 "@!%p3 bra END;" +
                 store)
                  .must_writes,
              IsEmpty());
  EXPECT_THAT(
      of("ld.global.u32 %r5, [%rd2]; setp.eq.s32 %p1, %r5, 0; @%p1 bra END;" + store).must_writes,
      IsEmpty());
  // Some threads leave before, or may.
  EXPECT_THAT(of("setp.eq.s32 %p1, %r1, 5; @%p1 exit;" + store).must_writes, IsEmpty());
  EXPECT_THAT(
      of("ld.global.u32 %r5, [%rd2]; setp.eq.s32 %p1, %r5, 0; @%p1 trap;" + store).must_writes,
      IsEmpty());
  // Unrolled: each store has holes, all together have none.
  EXPECT_THAT(
      of("mul.wide.s32 %rd3, %r1, 16; add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4+8], %r1;"
         "st.global.u32 [%rd4], %r1; st.global.v2.u32 [%rd4+4], {%r1, %r1};"
         "st.global.u32 [%rd4+12], %r1;")
          .must_writes,
      ElementsAre(at(kPool, 0, 4096)));
  // A loop that may be left early.
  EXPECT_THAT(
      of("mov.u32 %r5, 0; LOOP: mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd1, %rd3;"
         "st.global.u32 [%rd4], %r5; ld.global.u32 %r6, [%rd2]; setp.eq.s32 %p1, %r6, 0;"
         "@%p1 bra END; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, %r2; @%p2 bra LOOP; END:",
         10)
          .must_writes,
      IsEmpty());
}

TEST_F(RangesTest, WhatAThreadHasWrittenItselfIsNoInput) {
  const std::string both = kAddress + "st.global.u32 [%rd4], 0; LATER: ld.global.u32 %r5, [%rd4];";
  Verdict v = of(both);
  EXPECT_EQ(v.kind, VerdictKind::kIdempotent);
  EXPECT_THAT(v.reads, IsEmpty());
  EXPECT_THAT(v.covered, ElementsAre(at(kPool, 0, 1024)));
  // Another thread's, or only if something holds, or too narrow, or past a cache.
  EXPECT_EQ(of(kAddress + "st.global.u32 [%rd4], 0; ld.global.u32 %r5, [%rd4+4];").kind,
            VerdictKind::kClobbers);
  EXPECT_EQ(of("setp.eq.s32 %p1, %r1, %r2;" + kAddress +
               "@%p1 st.global.u32 [%rd4], 0; ld.global.u32 %r5, [%rd4];")
                .kind,
            VerdictKind::kClobbers);
  EXPECT_EQ(of(kAddress + "st.global.u16 [%rd4], 0; ld.global.u32 %r5, [%rd4];").kind,
            VerdictKind::kClobbers);
  EXPECT_EQ(of(kAddress + "st.global.u32 [%rd4], 0; ld.global.nc.u32 %r5, [%rd4];").kind,
            VerdictKind::kClobbers);
  EXPECT_EQ(of(kAddress + "ld.global.u32 %r5, [%rd4]; st.global.u32 [%rd4], 0;").kind,
            VerdictKind::kClobbers);
}

TEST_F(RangesTest, InterleavedElements) {
  const std::string code =
      "mul.wide.s32 %rd3, %r1, 8; add.s64 %rd4, %rd1, %rd3;"
      "ld.global.u32 %r5, [%rd4]; st.global.u32 [%rd4+";
  EXPECT_EQ(of(code + "4], %r5;").kind, VerdictKind::kIdempotent);
  EXPECT_EQ(of(code + "12], %r5;").kind, VerdictKind::kIdempotent);
  EXPECT_EQ(of(code + "8], %r5;").kind, VerdictKind::kClobbers);
  EXPECT_EQ(of(code + "2], %r5;").kind, VerdictKind::kClobbers);
}

TEST_F(RangesTest, ModuleVariables) {
  const std::string variable = ".global .align 4 .b8 table[64];";
  const std::string code =
      "and.b32 %r5, %r1, 15; mul.wide.u32 %rd3, %r5, 4; mov.u64 %rd4, table;"
      "add.s64 %rd5, %rd4, %rd3; ld.global.u32 %r6, [%rd5];"
      "st.global.u32 [%rd1], %r6;";
  // Known to nobody, but read only inside.
  EXPECT_TRUE(of(code, 0, 0, 0, variable).all_in_bounds);
  EXPECT_FALSE(of(code, 0, 0, 0, ".global .align 4 .b8 table[60];").all_in_bounds);
  symbols.known["table"] = at(kOther, 256, 320);
  const Verdict v = of(code, 0, 0, 0, variable);
  EXPECT_TRUE(v.all_in_bounds);
  EXPECT_THAT(v.reads, ElementsAre(at(kOther, 256, 320)));
}

// y = alpha * x + beta * y reads y only if beta is not 0: the launch's numbers decide, no number
// (NaN) and what hardware may take for 0 included.
TEST_F(RangesTest, ConditionsOnFloatingPointArguments) {
  struct How {
    const char* name;
    bool (*holds)(float, float);
    bool unordered;
  };
  static const How kAll[] = {
      {"eq", [](float a, float b) { return a == b; }, false},
      {"ne", [](float a, float b) { return a < b || a > b; }, false},
      {"lt", [](float a, float b) { return a < b; }, false},
      {"le", [](float a, float b) { return a <= b; }, false},
      {"gt", [](float a, float b) { return a > b; }, false},
      {"ge", [](float a, float b) { return a >= b; }, false},
      {"equ", [](float a, float b) { return a == b; }, true},
      {"neu", [](float a, float b) { return a < b || a > b; }, true},
      {"ltu", [](float a, float b) { return a < b; }, true},
      {"geu", [](float a, float b) { return a >= b; }, true},
  };
  const float numbers[] = {0.0F, -0.0F, 1.0F, -2.5F, INFINITY, NAN, 1e-40F};
  for (const How& how : kAll) {
    for (const bool negated : {false, true}) {
      for (const float value : numbers) {
        for (const float other : {0.0F, 1.0F}) {
          SCOPED_TRACE(std::string(negated ? "!" : "") + how.name + " " + std::to_string(value) +
                       " " + std::to_string(other));
          const Verdict v =
              of(kAddress + "mov.b32 %r5, " + std::to_string(std::bit_cast<std::int32_t>(other)) +
                     "; setp." + how.name + ".f32 %p1, %r2, %r5; @" + (negated ? "!" : "") +
                     "%p1 ld.global.u32 %r6, [%rd4]; st.global.u32 [%rd4], %r6;",
                 std::bit_cast<std::uint32_t>(value));
          const bool nan = std::isnan(value);
          const bool reads = (nan ? how.unordered : how.holds(value, other)) != negated;
          const bool tiny = std::fpclassify(value) == FP_SUBNORMAL;
          EXPECT_EQ(v.kind, reads || tiny ? VerdictKind::kClobbers : VerdictKind::kIdempotent);
        }
      }
    }
  }
}

// Of two conditions one holds; where the launch rules one out, it is the other.
TEST_F(RangesTest, OneOfTwoConditions) {
  const std::string code =
      kAddress +
      "setp.lt.s32 %p1, %r1, %r2; setp.gt.s32 %p2, %r3, 5; or.pred %p3, %p1, %p2; @!%p3 bra END;"
      "st.global.u32 [%rd4], %r1; END:";
  EXPECT_THAT(of(code, 10, 5).writes, ElementsAre(at(kPool, 0, 40)));
  EXPECT_THAT(of(code, 10, 6).writes, ElementsAre(at(kPool, 0, 1024)));
  EXPECT_THAT(of(code, 0, 5).writes, IsEmpty());
}

// A predicate that became a number and is compared again is that predicate.
TEST_F(RangesTest, PredicatesAsNumbers) {
  for (const bool swapped : {false, true}) {
    for (const bool equal : {false, true}) {
      SCOPED_TRACE((swapped ? "0 or 1, " : "1 or 0, ") + std::string(equal ? "eq" : "ne"));
      const Verdict v =
          of(kAddress + "setp.lt.s32 %p1, %r1, %r2; selp.s32 %r5, " + (swapped ? "0, 1" : "1, 0") +
                 ", %p1; setp." + (equal ? "eq" : "ne") +
                 ".s32 %p2, %r5, 0; @!%p2 bra END; st.global.u32 [%rd4], %r1; END:",
             10);
      EXPECT_THAT(v.writes, ElementsAre(swapped == equal ? at(kPool, 0, 40) : at(kPool, 40, 1024)));
    }
  }
}

}  // namespace
}  // namespace gpurecover::idempotency
