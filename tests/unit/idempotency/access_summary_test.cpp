// SPDX-License-Identifier: Apache-2.0
// Each rule of the analysis, in PTX.
#include "idempotency/access_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "image/ptx_parser.h"
#include "tests/unit/idempotency/summary_signature.h"

namespace gpurecover::idempotency {
namespace {

const std::string kHead = ".version 8.7\n.target sm_90a\n.address_size 64\n";
const std::string kRegisters =
    ".reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<9>; .reg .f32 %f<20>; .reg .f64 %fd<9>;"
    ".reg .b16 %h<9>; .reg .b128 %q<3>;"
    "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;"
    "cvt.s64.s32 %rd3, %r1; ";

KernelSummary summary_of(const std::string& text) {
  const auto m = image::ptx::parse(text);
  EXPECT_TRUE(m) << m.error().message("test") << "\n" << text;
  if (!m)
    return {};
  for (const auto& f : m->functions) {
    if (f.entry)
      return summarize(*m, f);
  }
  return {};
}
// A kernel with pointers p (byte 0) and q (8), an int n (16), a struct s (24 … 64).
std::string run(const std::string& code, const std::string& before = "") {
  return signature(summary_of(kHead + before +
                              ".visible .entry k(.param .u64 p, .param .u64 q, .param .u32 n, "
                              ".param .align 8 .b8 s[40])\n{" +
                              kRegisters + code + " ret; }\n"));
}

TEST(Arithmetic, AddingKeepsTheBase) {
  EXPECT_EQ(run("mul.wide.s32 %rd4, %r2, 4; add.s64 %rd5, %rd1, %rd4; ld.global.f32 %f1, [%rd5];"),
            "r0");
  EXPECT_EQ(run("mad.wide.u32 %rd5, %r2, 8, %rd1; st.global.f32 [%rd5+4], %f1;"), "w0");
  EXPECT_EQ(run("mad.lo.s64 %rd5, %rd3, 24, %rd1; st.global.f32 [%rd5], %f1;"), "w0");
  EXPECT_EQ(run("cvta.to.global.u64 %rd5, %rd1; cvta.global.u64 %rd6, %rd5; st.f32 [%rd6], %f1;"),
            "w0");
  EXPECT_EQ(run("sub.s64 %rd5, %rd1, %rd3; st.global.f32 [%rd5], %f1;"), "w0");
  EXPECT_EQ(run("mul.lo.s64 %rd5, %rd1, 1; st.global.f32 [%rd5], %f1;"), "w0");
}
TEST(Arithmetic, DifferencesCancel) {
  // p + (q - p) is q; p + (q - p) * 4 stays with p.
  EXPECT_EQ(run("sub.s64 %rd4, %rd2, %rd1; add.s64 %rd5, %rd1, %rd4; st.global.f32 [%rd5], %f1;"),
            "w8");
  EXPECT_EQ(run("sub.s64 %rd4, %rd2, %rd1; shl.b64 %rd4, %rd4, 2; add.s64 %rd5, %rd1, %rd4;"
                "st.global.f32 [%rd5], %f1;"),
            "w0");
  EXPECT_EQ(run("neg.s64 %rd4, %rd1; add.s64 %rd5, %rd4, %rd2; add.s64 %rd5, %rd5, %rd1;"
                "st.global.f32 [%rd5], %f1;"),
            "w8");
  EXPECT_EQ(run("mul.lo.s64 %rd4, %rd1, -1; add.s64 %rd5, %rd4, %rd2; add.s64 %rd6, %rd5, %rd1;"
                "st.global.f32 [%rd6], %f1;"),
            "w8");
}
TEST(Arithmetic, TwoPointersInASumAreBothCandidates) {
  EXPECT_EQ(run("add.s64 %rd5, %rd1, %rd2; st.global.f32 [%rd5], %f1;"), "w0+8");
  EXPECT_EQ(run("sub.s64 %rd5, %rd1, %rd2; add.s64 %rd5, %rd5, %rd3; st.global.f32 [%rd5], %f1;"),
            "w0-8");
}
TEST(Arithmetic, ScaledTermsAreNoBase) {
  for (const char* op : {"shl.b64 %rd5, %rd1, 3;", "mul.lo.s64 %rd5, %rd1, 12;",
                         "mul.lo.s64 %rd5, %rd1, %rd3;", "mad.lo.s64 %rd5, %rd1, 2, 8;"}) {
    EXPECT_EQ(run(std::string(op) + "st.global.f32 [%rd5], %f1;"), "wunknown") << op;
    EXPECT_EQ(run(std::string(op) + "add.s64 %rd5, %rd5, %rd2; st.global.f32 [%rd5], %f1;"), "w8")
        << op;
  }
}
TEST(Arithmetic, PointersPutTogetherFromPiecesAreUnknown) {
  const char* kTricks[] = {
      "mov.b64 {%r3, %r4}, %rd1; mov.b64 %rd5, {%r3, %r4};",
      "ld.param.u32 %r3, [p]; ld.param.u32 %r4, [p+4]; mov.b64 %rd5, {%r3, %r4};",
      "ld.param.v2.u32 {%r3, %r4}, [p]; mov.b64 %rd5, {%r3, %r4};",
      "shl.b64 %rd5, %rd1, 8; shr.u64 %rd5, %rd5, 8;",
      "shr.u64 %rd5, %rd1, 3; shl.b64 %rd5, %rd5, 3;",
      "shr.u64 %rd5, %rd1, 32; shl.b64 %rd5, %rd5, 32; cvt.u32.u64 %r3, %rd1; cvt.u64.u32 %rd6, "
      "%r3;"
      "or.b64 %rd5, %rd5, %rd6;",
      "xor.b64 %rd5, %rd1, %rd2;",
      "bfi.b64 %rd5, %rd1, %rd2, 32, 32;",
      "cvt.rn.f64.u64 %fd1, %rd1; cvt.rzi.u64.f64 %rd5, %fd1;",
      "div.u64 %rd5, %rd1, 3; mul.lo.u64 %rd5, %rd5, 3;",
      "add.cc.u32 %r3, %r1, 1; addc.u32 %r4, %r2, 0; mov.b64 %rd5, {%r3, %r4};",
      "mov.b128 %q1, {%rd1, %rd2}; mov.b128 {%rd5, %rd6}, %q1;",
  };
  for (const char* trick : kTricks) {
    EXPECT_EQ(run(std::string(trick) + "st.global.f32 [%rd5], %f1;"), "wunknown") << trick;
  }
}
TEST(Arithmetic, LowBitsOfAPointerMayBeMasked) {
  EXPECT_EQ(run("and.b64 %rd5, %rd1, -128; st.global.f32 [%rd5], %f1;"), "w0");
  EXPECT_EQ(run("or.b64 %rd5, %rd1, 8; st.global.f32 [%rd5], %f1;"), "w0");
  EXPECT_EQ(run("and.b64 %rd5, %rd1, -1048576; st.global.f32 [%rd5], %f1;"), "wunknown");
  // A 32-bit mask that was extended without its sign is no mask of low bits.
  EXPECT_EQ(run("mov.u32 %r3, -16; cvt.u64.u32 %rd6, %r3; and.b64 %rd5, %rd1, %rd6; st.global.f32 "
                "[%rd5], %f1;"),
            "wunknown");
}
TEST(Arithmetic, NarrowValuesAreNoBase) {
  EXPECT_EQ(run("cvt.u64.u32 %rd5, %r1; st.global.f32 [%rd5], %f1;"), "wunknown");
  EXPECT_EQ(run("ld.global.u32 %r3, [%rd1]; mul.wide.u32 %rd4, %r3, 4; add.s64 %rd5, %rd2, %rd4;"
                "st.global.f32 [%rd5], %f1;"),
            "r0 w8");
  EXPECT_EQ(run("ld.param.u32 %rd5, [n]; add.s64 %rd6, %rd5, %rd1; st.global.f32 [%rd6], %f1;"),
            "w0");
}
TEST(Arithmetic, LoadedIndexesDoNotHideTheBase) {
  EXPECT_EQ(run("ld.global.s64 %rd4, [%rd1]; add.s64 %rd5, %rd2, %rd4; st.global.u8 [%rd5], %r1;"),
            "r0 w8+loaded");
  EXPECT_EQ(run("ld.global.s64 %rd4, [%rd1]; shl.b64 %rd4, %rd4, 2; add.s64 %rd5, %rd2, %rd4;"
                "st.global.u8 [%rd5], %r1;"),
            "r0 w8");
}

TEST(Flow, SelectionsAndLoopsGiveAlternatives) {
  for (const char* op : {"selp.b64", "selp.u64"}) {
    EXPECT_EQ(run(std::string("setp.ne.s32 %p1, %r1, 0; ") + op +
                  " %rd5, %rd1, %rd2, %p1; st.global.f32 [%rd5], %f1;"),
              "w0|8");
  }
  EXPECT_EQ(run("min.u64 %rd5, %rd1, %rd2; st.global.f32 [%rd5], %f1;"), "w0|8");
  EXPECT_EQ(run("mov.u64 %rd5, %rd1; L: st.global.f32 [%rd5], %f1; mov.u64 %rd5, %rd2; bra L;"),
            "w0|8");
  EXPECT_EQ(run("mov.u64 %rd5, %rd1; L: st.global.f32 [%rd5], %f1; add.s64 %rd5, %rd5, 4; bra L;"),
            "w0");
  EXPECT_EQ(run("mov.u64 %rd5, 0; @%p1 mov.u64 %rd5, %rd1; st.global.f32 [%rd5], %f1;"), "w0|null");
}
TEST(Flow, LinkedDataAreLoadedPointers) {
  EXPECT_EQ(run("mov.u64 %rd5, %rd1; L: ld.global.u64 %rd6, [%rd5]; mov.u64 %rd5, %rd6; bra L;"),
            "r0|loaded");
  // The first alternative must not hide the second.
  EXPECT_EQ(run("L: ld.global.u64 %rd1, [%rd1+8]; @%p1 bra L; st.global.u64 [%rd1], %rd2;"),
            "r0|loaded w0|loaded");
}
TEST(Flow, AStrideByParameterEnds) {
  EXPECT_EQ(
      run("mov.u64 %rd5, %rd1; L: st.global.f32 [%rd5], %f1; add.s64 %rd5, %rd5, %rd2; bra L;"),
      "w0|0+8");
  EXPECT_EQ(
      run("mov.u64 %rd5, %rd1; L: st.global.f32 [%rd5], %f1; sub.s64 %rd5, %rd5, %rd2; bra L;"),
      "w0|0-8");
}
TEST(Flow, AReusedRegisterIsWhatItWasLastGiven) {
  EXPECT_EQ(run("mov.u64 %rd5, %rd1; ld.global.f32 %f1, [%rd5]; mov.u64 %rd5, %rd2; st.global.f32 "
                "[%rd5], %f1;"),
            "r0 w8");
  // Under a guard, or from another block, the old value may be in force.
  EXPECT_EQ(run("mov.u64 %rd5, %rd1; @%p1 mov.u64 %rd5, %rd2; st.global.f32 [%rd5], %f1;"), "w0|8");
  EXPECT_EQ(
      run("mov.u64 %rd5, %rd1; @%p1 bra L; mov.u64 %rd5, %rd2; L: st.global.f32 [%rd5], %f1;"),
      "w0|8");
  EXPECT_EQ(run("mov.u64 %rd5, %rd1; @%p1 bra L; mov.u64 %rd5, %rd2; mov.u64 %rd5, %rd1; L: "
                "st.global.f32 [%rd5], %f1;"),
            "w0");
  EXPECT_EQ(run("ld.global.u64 %rd1, [%rd1]; st.global.u64 [%rd2], %rd1;"), "r0 w8");
}
TEST(Flow, TooManyAlternativesAreUnknown) {
  std::string params = ".param .u64 p, .param .u64 q, .param .u32 n", code;
  for (int i = 0; i < 40; ++i) {
    const std::string k = std::to_string(i);
    params += ", .param .u64 x" + k;
    code += "ld.param.u64 %rd6, [x" + k + "]; @%p1 mov.u64 %rd5, %rd6;";
  }
  EXPECT_EQ(signature(summary_of(kHead + ".entry k(" + params + ") {" + kRegisters + code +
                                 "st.global.f32 [%rd5], %f1; ret; }")),
            "wunknown");
}

TEST(Parameters, StructFieldsHaveTheirOffset) {
  EXPECT_EQ(run("ld.param.u64 %rd5, [s+16]; st.global.f32 [%rd5], %f1;"), "w40");
  EXPECT_EQ(run("ld.param.v2.u64 {%rd5, %rd6}, [s+8]; ld.global.f32 %f1, [%rd5]; st.global.f32 "
                "[%rd6], %f1;"),
            "r32 w40");
  EXPECT_EQ(run("mov.b64 %rd4, s; ld.param.u64 %rd5, [%rd4+8]; st.global.f32 [%rd5], %f1;"), "w32");
  EXPECT_EQ(
      run("mov.b64 %rd4, s; cvta.param.u64 %rd4, %rd4; add.s64 %rd4, %rd4, 16; ld.u64 %rd5, [%rd4];"
          "st.global.f32 [%rd5], %f1;"),
      "w40");
}
TEST(Parameters, IndexedStructsAreAnyWord) {
  EXPECT_EQ(run("mov.b64 %rd4, s; mul.wide.u32 %rd6, %r2, 8; add.s64 %rd4, %rd4, %rd6;"
                "ld.param.u64 %rd5, [%rd4]; st.global.f32 [%rd5], %f1;"),
            "wany24-64");
  EXPECT_EQ(run("mov.b64 %rd4, p; ld.param.u64 %rd5, [%rd4+4]; st.global.f32 [%rd5], %f1;"),
            "wany0-8");
}
TEST(Parameters, TheirStoresDefeat) {
  EXPECT_EQ(run("mov.b64 %rd4, s; cvta.param.u64 %rd4, %rd4; st.u64 [%rd4], %rd1;"), "!a store");
}

TEST(OnChipMemory, IsNoGlobalAccess) {
  const std::string vars = ".shared .align 8 .b8 sh[64]; .local .align 8 .b8 lo[64];";
  EXPECT_EQ(
      run(vars + "st.shared.f32 [sh+4], %f1; st.local.f32 [lo], %f1; ld.shared.f32 %f1, [%r2];"),
      "");
  EXPECT_EQ(run(vars + "mov.u64 %rd4, sh; cvta.shared.u64 %rd5, %rd4; st.f32 [%rd5+8], %f1;"
                       "mov.u64 %rd6, lo; cvta.local.u64 %rd7, %rd6; ld.f32 %f2, [%rd7];"),
            "");
  EXPECT_EQ(
      run(vars + "cvt.u64.u32 %rd4, %r1; cvta.shared.u64 %rd5, %rd4; atom.add.u32 %r3, [%rd5], 1;"),
      "");
}
TEST(OnChipMemory, GivesBackWhatWasStored) {
  const std::string vars = ".shared .align 8 .b8 sh[64]; .local .align 8 .b8 lo[64];";
  EXPECT_EQ(run(vars +
                "st.shared.u64 [sh], %rd1; ld.shared.u64 %rd5, [sh+8]; st.global.f32 [%rd5], %f1;"),
            "w0");
  EXPECT_EQ(run(vars + "st.local.v2.u64 [lo], {%rd1, %rd2}; ld.local.u64 %rd5, [lo+8]; "
                       "st.global.f32 [%rd5], %f1;"),
            "w8");
  EXPECT_EQ(run(vars + "mov.u64 %rd4, lo; cvta.local.u64 %rd6, %rd4; st.u64 [%rd6], %rd1; "
                       "ld.local.u64 %rd5, [%rd4]; st.global.f32 [%rd5], %f1;"),
            "w0");
  // Stored later in the text, in a loop.
  EXPECT_EQ(
      run(vars +
          "L: ld.local.u64 %rd5, [lo]; st.global.f32 [%rd5], %f1; st.local.u64 [lo], %rd2; bra L;"),
      "w8");
}
TEST(OnChipMemory, PiecesAreUnknown) {
  const std::string vars =
      ".shared .align 8 .b8 sh[64]; .local .align 8 .b8 lo[64];"
      "cvt.u32.u64 %r3, %rd1; shr.u64 %rd4, %rd1, 32; cvt.u32.u64 %r4, %rd4;";
  EXPECT_EQ(
      run(vars + "st.shared.u32 [sh], %r3; st.shared.u32 [sh+4], %r4; ld.shared.u64 %rd5, [sh];"
                 "st.global.f32 [%rd5], %f1;"),
      "wunknown");
  EXPECT_EQ(
      run(vars +
          "st.local.v2.u32 [lo], {%r3, %r4}; ld.local.u64 %rd5, [lo]; st.global.f32 [%rd5], %f1;"),
      "wunknown");
  EXPECT_EQ(
      run(vars + "st.local.v2.u32 [lo], {%r3, %r4}; mov.u64 %rd6, lo; add.s64 %rd6, %rd6, %rd3;"
                 "ld.local.u64 %rd5, [%rd6]; st.global.f32 [%rd5], %f1;"),
      "wunknown");
}
TEST(OnChipMemory, ANarrowStoreKeepsNoPointer) {
  EXPECT_EQ(run(".local .align 8 .b8 lo[8]; st.local.u32 [lo], %rd1; ld.local.u32 %rd5, [lo];"
                "st.global.f32 [%rd5], %f1;"),
            "wunknown");
}
TEST(OnChipMemory, SoManyPlacesThatNoneIsKnownStayUnknown) {
  // More cells than are kept apart: what is loaded may be anything, and other facts still settle.
  std::string code = ".local .align 8 .b8 lo[16384]; L: st.global.f32 [%rd7], %f1;";
  for (int i = 0; i < 1100; ++i)
    code += "st.local.u64 [lo+" + std::to_string(8 * i) + "], %rd1;\n";
  EXPECT_EQ(run(code + "ld.local.u64 %rd5, [lo]; st.global.f32 [%rd5], %f1; mov.u64 %rd7, %rd8;"
                       "mov.u64 %rd8, %rd2; bra L;"),
            "w8 wunknown");
}
TEST(OnChipMemory, ACopiedStructKeepsItsPointers) {
  const std::string copy =
      ".local .align 8 .b8 lo[40]; mov.u64 %rd4, lo;"
      "ld.param.u64 %rd6, [s]; st.local.u64 [%rd4], %rd6; ld.param.u64 %rd7, [s+8]; st.local.u64 "
      "[%rd4+8], %rd7;"
      "ld.param.u32 %r5, [s+16]; st.local.u32 [%rd4+16], %r5; ld.param.u32 %r6, [s+20];";
  const std::string use =
      "mul.wide.u32 %rd8, %r2, 8; add.s64 %rd9, %rd4, %rd8; ld.local.u64 %rd5, [%rd9]; "
      "st.global.f32 [%rd5], %f1;";
  EXPECT_EQ(run(copy + "st.local.u32 [%rd4+20], %r6;" + use), "wany24-64");
  // Something else in between: no copy any more, and two ints may form a word.
  EXPECT_EQ(run(copy + "add.s32 %r6, %r6, 1; st.local.u32 [%rd4+20], %r6;" + use),
            "w24|32|unknown");
  EXPECT_EQ(run(copy + "st.local.u32 [%rd4+24], %r6;" + use), "w24|32");
}
TEST(OnChipMemory, WhatAsynchronousCopiesBringIsLoaded) {
  EXPECT_EQ(run(".shared .align 16 .b8 sh[64]; cp.async.ca.shared.global [sh], [%rd1], 16;"
                "ld.shared.u64 %rd5, [sh]; st.global.f32 [%rd5], %f1;"),
            "r0 wloaded");
}

TEST(Kinds, AtomicsReadWhatTheyWrite) {
  EXPECT_EQ(run("atom.global.add.u32 %r3, [%rd1], 1;"), "u0");
  EXPECT_EQ(run("atom.exch.b64 %rd5, [%rd1], %rd2;"), "u0");
  EXPECT_EQ(run("red.global.add.f32 [%rd1+4], %f1;"), "u0");
  EXPECT_EQ(run("red.relaxed.gpu.global.max.s32 [%rd1], %r1;"), "u0");
  EXPECT_EQ(run("atom.global.cas.b64 %rd5, [%rd1], 0, %rd2; st.global.f32 [%rd5], %f1;"),
            "u0 wloaded");
}
TEST(Kinds, Copies) {
  const std::string sh = ".shared .align 16 .b8 sh[64]; mov.u32 %r3, sh;";
  EXPECT_EQ(run(sh + "cp.async.cg.shared.global.L2::128B [%r3], [%rd1], 16;"), "r0");
  EXPECT_EQ(run(sh + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
                     "[%rd1], 16, [%r3];"),
            "r0");
  EXPECT_EQ(run(sh + "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 16;"), "w0");
  EXPECT_EQ(
      run(sh + "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r3], 16;"),
      "u0");
  EXPECT_EQ(run("cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;"), "");
  EXPECT_EQ(run("discard.global.L2 [%rd1], 128;"), "w0");
  EXPECT_EQ(run("prefetch.global.L2 [%rd1];"), "");
}
TEST(Kinds, ElementSizes) {
  const KernelSummary s =
      summary_of(kHead + ".entry k(.param .u64 p, .param .u64 q, .param .u32 n) {" + kRegisters +
                 "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]; st.global.u8 [%rd2], %h1; ret; }");
  ASSERT_EQ(s.accesses.size(), 2u);
  EXPECT_EQ(s.accesses[0].element_bytes, 16u);
  EXPECT_EQ(s.accesses[1].element_bytes, 1u);
  EXPECT_EQ(s.param_bytes, 20u);
}

TEST(Symbols, AreRoots) {
  const std::string vars = ".global .u32 g[4]; .const .u32 c[4]; .global .u64 ptr = g;\n";
  EXPECT_EQ(run("ld.global.u32 %r3, [g+4]; st.global.u32 [g], %r3; ld.const.u32 %r4, [c];", vars),
            "rc rg wg");
  EXPECT_EQ(run("mov.u64 %rd4, g; cvta.global.u64 %rd5, %rd4; atom.add.u32 %r3, [%rd5], 1;", vars),
            "ug");
  EXPECT_EQ(run("mov.u64 %rd4, c; cvta.const.u64 %rd5, %rd4; ld.u32 %r3, [%rd5+8];", vars), "rc");
  EXPECT_EQ(run("ld.global.u64 %rd5, [ptr]; st.u32 [%rd5], %r1;", vars), "rptr wloaded");
}

TEST(Calls, AreFollowedWithTheirArguments) {
  const std::string f =
      ".func (.param .b64 r) at(.param .b64 x, .param .b32 i) { .reg .b64 %rd<5>; .reg .b32 %r<3>;"
      "ld.param.b64 %rd1, [x]; ld.param.b32 %r1, [i]; mad.wide.s32 %rd2, %r1, 4, %rd1;"
      "st.param.b64 [r], %rd2; ret; }\n";
  auto call = [](const char* arg, const char* result) {
    return std::string("{ .param .b64 a; .param .b32 b; .param .b64 o; st.param.b64 [a], ") + arg +
           "; st.param.b32 [b], %r2; call (o), at, (a, b); ld.param.b64 " + result + ", [o]; }";
  };
  EXPECT_EQ(run(call("%rd1", "%rd5") + call("%rd2", "%rd6") +
                    "ld.global.f32 %f1, [%rd5]; st.global.f32 [%rd6], %f1;",
                f),
            "r0 w8");
  EXPECT_EQ(run(call("%rd1", "%rd5") + "st.global.f32 [%rd5], %f1;",
                f + ".func (.param .b64 r) x(.param .b64 y);"),
            "w0");
}
TEST(Calls, RegisterParametersAreFollowed) {
  EXPECT_EQ(run("call put, (%rd1, %f1);",
                ".func put(.reg .b64 x, .reg .f32 v) { st.global.f32 [x], v; ret; }\n"),
            "w0");
}
TEST(Calls, AliasesAreFollowed) {
  EXPECT_EQ(run("{ .param .b64 a; st.param.b64 [a], %rd2; call other, (a); }",
                ".func put(.param .b64 x) { .reg .b64 %rd<2>; ld.param.b64 %rd1, [x]; "
                "st.global.u32 [%rd1], 1; ret; }\n"
                ".func other(.param .b64 x);\n.alias other, put;\n"),
            "w8");
}
TEST(Calls, WhatCannotBeFollowedDefeats) {
  EXPECT_EQ(run("call f;", ".func f() { call f; ret; }"), "!recursion through");
  EXPECT_EQ(run("call f;", ".extern .func f();"), "!a call");
  EXPECT_EQ(run("P: .callprototype _ (.param .b64 _); { .param .b64 a; call %rd1, (a), P; }"),
            "!a call");
  EXPECT_EQ(run("call malloc;", ".extern .func malloc();"), "!device malloc");
  EXPECT_EQ(run("call cudaLaunchDeviceV2;", ".extern .func cudaLaunchDeviceV2();"),
            "!dynamic parallelism");
  EXPECT_EQ(run("call __assertfail;", ".extern .func __assertfail();"), "");
}
TEST(Calls, DepthAndNumberAreBounded) {
  // Each function calls the next one twice: 2^40 paths.
  std::string f = ".func f40() { ret; }\n";
  for (int i = 39; i >= 0; --i) {
    const std::string n = std::to_string(i + 1);
    f += ".func f" + std::to_string(i) + "() { call f" + n + "; call f" + n + "; ret; }\n";
  }
  EXPECT_EQ(run("call f0;", f), "!the kernel");
}

TEST(Defeats, EachSaysWhy) {
  const struct {
    const char* code;
    const char* reason;
  } kCases[] = {
      {"mov.u32 %r3, %envreg1;", "grid-wide synchronization"},
      {"griddepcontrol.wait;", "programmatic dependent launch"},
      {"frobnicate.b32 %r3, %r4;", "an instruction that is not known: frobnicate.b32"},
      {"ld.global.strange.u32 %r3, [%rd1];", "unknown form of a load"},
      {"st.global.strange.u32 [%rd1], %r3;", "unknown form of a store"},
      {"suld.b.1d.b32.trap %r3, [%rd1, {%r2}];", "surface accesses"},
      {"sust.b.1d.b32.trap [%rd1, {%r2}], %r3;", "surface accesses"},
      {"tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r2}];", "texture reads"},
      {"multimem.red.relaxed.sys.global.add.f32 [%rd1], %f1;", "multimem"},
      {"cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r2}], [%r3];", "tensor map"},
      {"cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%rd1, {%r2}], [%r3];",
       "tensor map"},
      {"tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;", "tensor map"},
      {"clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], "
       "[%r2];",
       "clusterlaunchcontrol"},
      {"tcgen05.fence::before_thread_sync;", "tcgen05"},
  };
  for (const auto& c : kCases) {
    const KernelSummary s =
        summary_of(kHead + ".entry k(.param .u64 p, .param .u64 q, .param .u32 n) {" + kRegisters +
                   c.code + " ret; }");
    ASSERT_FALSE(s.defeats.empty()) << c.code;
    EXPECT_THAT(s.defeats[0], ::testing::HasSubstr(c.reason)) << c.code;
    EXPECT_THAT(s.defeats[0], ::testing::HasSubstr("PTX line 4")) << c.code;
  }
}
TEST(Defeats, HarmlessInstructionsDoNot) {
  EXPECT_EQ(
      run("bar.sync 0; membar.gl; fence.acq_rel.gpu; nanosleep.u32 100; vote.sync.any.pred %p1, "
          "%p2, -1;"
          "shfl.sync.idx.b32 %r3|%p1, %r2, 0, 31, -1; activemask.b32 %r4; redux.sync.add.s32 %r5, "
          "%r2, -1;"
          "mbarrier.init.shared.b64 [%r3], 1; elect.sync %r3|%p1, -1; "
          "setmaxnreg.inc.sync.aligned.u32 240;"
          "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; trap;"
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1,%f2,%f3,%f4}, "
          "{%r1,%r2,%r3,%r4}, {%r5,%r6},"
          " {%f1,%f2,%f3,%f4}; ex2.approx.f32 %f1, %f2; dp4a.u32.u32 %r3, %r1, %r2, %r4; brkpt;"),
      "");
}
TEST(Defeats, FunctionsWithoutBodyAndOldAddresses) {
  EXPECT_FALSE(summary_of(".version 8.0 .target sm_70 .address_size 32 .entry k() { ret; }")
                   .defeats.empty());
}

TEST(Seeds, ClangsKernels) {
  std::ifstream in(CORPUS_DIR "/ptx/clang.ptx");
  std::stringstream text;
  text << in.rdbuf();
  const auto m = image::ptx::parse(text.str());
  ASSERT_TRUE(m);
  EXPECT_EQ(signature(summarize(*m, *m->find_function("k1"))), "r16 rcoef rgp ucnt w0 wloaded");
  EXPECT_EQ(signature(summarize(*m, *m->find_function("k2"))), "r0 r8 w0");
  EXPECT_EQ(signature(summarize(*m, *m->find_function("k3"))), "r8 w8 !a call");
}

}  // namespace
}  // namespace gpurecover::idempotency
