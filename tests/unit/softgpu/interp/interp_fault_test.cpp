// SPDX-License-Identifier: Apache-2.0
// How launches end: faults of the program, planned faults, budgets, cancellation, what is recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/softgpu/interp/interp_device.h"

namespace gpurecover::softgpu::testing {
namespace {

using ::testing::HasSubstr;

std::string Kernel(const std::string& body, const std::string& module = "") {
  return ".version 8.0\n.target sm_90\n.address_size 64\n" + module +
         ".visible .entry k(.param .u64 out, .param .u64 in)\n"
         "{\n.reg .pred %p<9>;\n.reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n"
         "mov.u32 %r10, %tid.x;\nmov.u32 %r11, %ctaid.x;\nmov.u32 %r12, %ntid.x;\n"
         "mad.lo.u32 %r13, %r11, %r12, %r10;\nld.param.u64 %rd8, [out];\n"
         "mad.wide.u32 %rd9, %r13, 4, %rd8;\n" +
         body + "\nret;\n}\n";
}

struct Fixture {
  explicit Fixture(const std::string& body, const std::string& module = "", bool byte_exact = false)
      : device(2, byte_exact) {
    EXPECT_EQ(device.Load(Kernel(body, module)), "");
    out = device.memory.Allocate(1 << 16);
  }
  LaunchResult operator()(uint32_t blocks, uint32_t threads) {
    return device.Run("k", {blocks}, {threads}, out, in);
  }
  uint32_t word(size_t k) const { return reinterpret_cast<const uint32_t*>(out)[k]; }
  TestDevice device;
  uint64_t out = 0, in = 0;
};

TEST(InterpFault, IllegalAddressNamesThreadPlaceAndAddress) {
  Fixture run(
      "st.global.u32 [%rd9], 1;\n"
      "setp.eq.u32 %p1, %r13, 37; @!%p1 bra END;\n"
      "mov.u64 %rd1, 0x123456789000;\n"
      "st.global.v2.u32 [%rd1], {%r1, %r2};\nEND:");
  const LaunchResult r = run(1, 64);
  EXPECT_EQ(r.code, kIllegalAddress);
  EXPECT_EQ(r.block, 0u);
  EXPECT_EQ(r.thread, 37u);
  EXPECT_EQ(r.address, 0x123456789000u);
  EXPECT_EQ(r.access_bytes, 8u);
  EXPECT_TRUE(r.access_was_write);
  EXPECT_THAT(r.location, HasSubstr("st.global.v2.u32"));
  EXPECT_THAT(r.message, HasSubstr("kernel k, block (0,0,0), thread (37,0,0)"));
  // Six instructions of the preamble, st, setp, bra, mov.
  EXPECT_EQ(r.instruction, 10u);
  EXPECT_EQ(run.word(37), 1u) << "earlier writes stay";
}

// The codes are those that an H200 gave to the same programs.
TEST(InterpFault, EveryKindHasItsCode) {
  struct Case {
    const char* body;
    int code;
  };
  for (const Case& c :
       {Case{"ld.global.u32 %r1, [%rd9+2];", kMisalignedAddress},
        Case{"ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd8+8];", kMisalignedAddress},
        Case{"mov.u64 %rd1, 0; ld.u32 %r1, [%rd1];", kIllegalAddress},
        Case{"mov.u64 %rd1, 0xFFFF000000000000; ld.u32 %r1, [%rd1];", kIllegalAddress},
        Case{"red.global.add.u32 [%rd8+0x1000000], 1;", kIllegalAddress},
        Case{"mov.u32 %r1, 65536; ld.shared.u32 %r2, [%r1];", kIllegalAddress},
        Case{".local .b8 l[16]; mov.u64 %rd1, l; ld.local.u32 %r2, [%rd1+4096];", kIllegalAddress},
        Case{"trap;", kLaunchFailed},
        Case{"st.global.u32 [table], 1; mov.u64 %rd1, 64; add.u64 %rd1, %rd1, %rd8; @%p1 bra L; L: "
             "trap;",
             kLaunchFailed},
        Case{"bar.sync 20;", kLaunchFailed}}) {
    Fixture run(c.body, ".global .u32 table;\n");
    const LaunchResult r = run(1, 32);
    EXPECT_EQ(r.code, c.code) << c.body << ": " << r.message;
    EXPECT_FALSE(r.message.empty());
  }
}

TEST(InterpFault, MemoryThatMayNotBeWritten) {
  Fixture run("ld.param.u64 %rd1, [in]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], 5;");
  run.in = run.device.memory.Allocate(64, DeviceMemory::kRead);
  const LaunchResult r = run(1, 1);
  EXPECT_EQ(r.code, kIllegalAddress);
  EXPECT_TRUE(r.access_was_write);
}

TEST(InterpFault, StrayAccessesAreCountedOrFault) {
  const char* body =
      "ld.param.u64 %rd1, [in]; ld.global.u32 %r1, [%rd1+100]; st.global.u32 [%rd9], %r1;";
  Fixture page(body);
  page.in = page.device.memory.Allocate(100);
  LaunchResult r = page(1, 32);
  EXPECT_EQ(r.code, 0) << r.message;
  EXPECT_EQ(r.stray_accesses, 32u);
  EXPECT_EQ(r.first_stray, page.in + 100);
  Fixture byte(body, "", true);
  byte.in = byte.device.memory.Allocate(100);
  r = byte(1, 32);
  EXPECT_EQ(r.code, kIllegalAddress);
  EXPECT_EQ(r.address, byte.in + 100);
}

TEST(InterpFault, FailedAssertionIsReportedAsCudaDoes) {
  // message "x > 0", file "f.cu", function "g"
  Fixture run(
      R"(
    setp.ne.u32 %p1, %r10, 2; @%p1 bra OK;
    mov.u64 %rd1, message; mov.u64 %rd2, file; mov.u64 %rd3, function;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
      st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; st.param.b32 [c], 12; st.param.b64 [d], %rd3;
      st.param.b64 [e], 1;
      call.uni __assertfail, (a, b, c, d, e); }
  OK: st.global.u32 [%rd9], 3;)",
      ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, "
      ".param .b64 e);\n"
      ".global .b8 message[6] = {120,32,62,32,48,0};\n.global .b8 file[5] = {102,46,99,117,0};\n"
      ".global .b8 function[2] = {103,0};\n");
  const LaunchResult r = run(1, 4);
  EXPECT_EQ(r.code, kAssert);
  EXPECT_EQ(r.thread, 2u);
  EXPECT_EQ(run.device.printed,
            "f.cu:12: g: block: [0,0,0], thread: [2,0,0] Assertion `x > 0` failed.\n");
}

TEST(InterpFault, EndlessRecursionEnds) {
  Fixture run("call f, ();",
              ".func f() { .local .b8 l[64]; .reg .b64 %rd<2>; mov.u64 %rd1, l; st.local.u32 "
              "[%rd1], 1; call f, (); ret; }\n");
  const LaunchResult r = run(1, 32);
  EXPECT_EQ(r.code, kIllegalAddress);
  EXPECT_THAT(r.message, HasSubstr("stack overflow"));
}

TEST(InterpFault, CallOfNoFunction) {
  Fixture run("mov.u64 %rd1, 4096; P: .callprototype _ (); call %rd1, (), P;");
  EXPECT_EQ(run(1, 32).code, 715);
}

TEST(InterpFault, StepBudget) {
  Fixture run("L: add.u32 %r1, %r1, 1; bra L;");
  run.device.request.step_budget = 1'000'000;
  LaunchResult r = run(4, 64);
  EXPECT_EQ(r.code, kLaunchTimeout);
  EXPECT_GT(r.thread_instructions, 1'000'000u);
  // A budget that suffices changes nothing.
  Fixture fine("st.global.u32 [%rd9], 9;");
  fine.device.request.step_budget = 4 * 64 * 8;
  r = fine(4, 64);
  EXPECT_EQ(r.code, 0) << r.message;
  EXPECT_EQ(r.thread_instructions, 4u * 64 * 8);
}

TEST(InterpFault, ABarrierThatIsNeverCompleteUsesUpTheBudget) {
  Fixture run(
      "setp.lt.u32 %p1, %r10, 32; @%p1 bra A; barrier.sync 1; bra B; A: barrier.sync 2; B:");
  run.device.request.step_budget = 1'000'000'000;
  const LaunchResult r = run(1, 64);
  EXPECT_EQ(r.code, kLaunchTimeout);
  EXPECT_THAT(r.message, HasSubstr("barrier"));
}

TEST(InterpFault, CancelEndsALaunch) {
  for (const char* body :
       {"L: bra L;",
        "setp.lt.u32 %p1, %r10, 32; @%p1 bra A; barrier.sync 1; bra B; A: barrier.sync 2; B:"}) {
    Fixture run(body);
    std::atomic<bool> cancel{false};
    run.device.request.cancel = &cancel;
    std::thread other([&] { cancel = true; });
    EXPECT_EQ(run(3, 64).code, kLaunchFailed);
    other.join();
  }
}

TEST(InterpFault, ARunningKernelFaultsWhenItsMemoryGoesAway) {
  Fixture run(
      "L: ld.global.u32 %r1, [%rd9]; add.u32 %r1, %r1, 1; st.global.u32 [%rd9], %r1; bra L;");
  std::thread other([&] {
    while (reinterpret_cast<std::atomic<uint32_t>*>(run.out)->load() < 10)
      std::this_thread::yield();
    run.device.memory.Unmap(run.out, 1 << 16);
  });
  const LaunchResult r = run(4, 64);
  other.join();
  EXPECT_EQ(r.code, kIllegalAddress);
}

// Five instructions that each add to what the ones before stored.
const char* const kSteps =
    "mov.u32 %r1, 1; st.global.u32 [%rd9], %r1;\n"
    "add.u32 %r1, %r1, 1; st.global.u32 [%rd9], %r1;\n"
    "add.u32 %r1, %r1, 1; st.global.u32 [%rd9], %r1;\n";

TEST(InterpFaultPlan, KillsOneThreadBeforeEachOfItsInstructions) {
  Fixture whole(kSteps);
  ASSERT_EQ(whole(2, 64).code, 0);
  constexpr uint64_t kCount = 13;  // of each thread, `ret` included
  for (uint64_t at = 0; at <= kCount; ++at) {
    Fixture run(kSteps);
    FaultPlan plan;
    plan.block = 1;
    plan.thread = 40;
    plan.instruction = at;
    plan.code = kEccUncorrectable;
    run.device.request.fault = plan;
    const LaunchResult r = run(2, 64);
    if (at == kCount) {
      EXPECT_EQ(r.code, 0);
      EXPECT_FALSE(r.fault_fired);
      continue;
    }
    EXPECT_EQ(r.code, kEccUncorrectable) << at;
    EXPECT_TRUE(r.fault_fired);
    EXPECT_EQ(r.block, 1u);
    EXPECT_EQ(r.thread, 40u);
    EXPECT_EQ(r.instruction, at);
    const uint32_t written = at < 8 ? 0 : at < 10 ? 1 : at < 12 ? 2 : 3;
    EXPECT_EQ(run.word(104), written) << at;
  }
}

TEST(InterpFaultPlan, CountsTheThreadsOwnInstructionsThroughDivergence) {
  // Thread 5 makes 5 turns of the loop; the store is its instruction 6 + 1 + 5 * 3 + 1.
  const char* body =
      "mov.u32 %r1, 0; L: setp.ge.u32 %p1, %r1, %r10; @%p1 bra E; add.u32 %r1, %r1, 1; bra L;\n"
      "E: st.global.u32 [%rd9], 7;";
  Fixture run(body);
  FaultPlan plan;
  plan.thread = 5;
  plan.instruction = 6 + 1 + 5 * 4 + 2;
  run.device.request.fault = plan;
  const LaunchResult r = run(1, 32);
  EXPECT_EQ(r.code, kIllegalAddress);
  EXPECT_THAT(r.location, HasSubstr("st.global.u32"));
  EXPECT_EQ(r.instruction, plan.instruction);
}

TEST(InterpFaultPlan, FlipsABitOfARegisterOrOfMemory) {
  Fixture run(kSteps);
  FaultPlan plan;
  plan.kind = FaultPlan::Kind::kFlipRegister;
  plan.block = 0;
  plan.thread = 3;
  plan.instruction = 8;  // the first add
  plan.bit = 4;
  run.device.request.fault = plan;
  LaunchResult r = run(1, 32);
  EXPECT_EQ(r.code, 0) << r.message;
  EXPECT_TRUE(r.fault_fired);
  EXPECT_EQ(run.word(3), (2u ^ 16) + 1);
  EXPECT_EQ(run.word(2), 3u);
  // Of a predicate.
  Fixture other(
      "setp.eq.u32 %p1, %r10, 1000; mov.u32 %r1, 5; @%p1 mov.u32 %r1, 6; st.global.u32 [%rd9], "
      "%r1;");
  plan.instruction = 6;
  other.device.request.fault = plan;
  ASSERT_EQ(other(1, 32).code, 0);
  EXPECT_EQ(other.word(3), 6u);
  EXPECT_EQ(other.word(4), 5u);
  // Of a byte in memory, before the instruction.
  Fixture memory("ld.param.u64 %rd1, [in]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd9], %r1;");
  memory.in = memory.device.Upload(std::vector<uint32_t>{0x100});
  plan.kind = FaultPlan::Kind::kFlipMemory;
  plan.thread = 0;
  plan.instruction = 7;
  plan.address = memory.in + 1;
  plan.bit = 7;
  memory.device.request.fault = plan;
  r = memory(1, 1);
  EXPECT_TRUE(r.fault_fired);
  EXPECT_EQ(memory.word(0), 0x8100u);
}

TEST(InterpFaultPlan, AHangEndsWithItsMemoryOrTheBudget) {
  FaultPlan plan;
  plan.kind = FaultPlan::Kind::kHang;
  plan.block = 1;
  plan.thread = 7;
  plan.instruction = 9;
  Fixture run(kSteps);
  run.device.request.fault = plan;
  run.device.request.step_budget = 2'000'000;
  LaunchResult r = run(2, 32);
  EXPECT_EQ(r.code, kLaunchTimeout);
  EXPECT_TRUE(r.fault_fired);
  Fixture fenced(kSteps);
  fenced.device.request.fault = plan;
  std::thread other([&] {
    while (reinterpret_cast<std::atomic<uint32_t>*>(fenced.out + 4 * 39)->load() == 0)
      std::this_thread::yield();
    fenced.device.memory.Unmap(fenced.out, 1 << 16);
  });
  r = fenced(2, 32);
  other.join();
  EXPECT_EQ(r.code, kIllegalAddress);
}

TEST(InterpRecord, ExactBytesReadAndWritten) {
  // Thread i reads 2 bytes at 6 * i and writes 4 at 8 * i; atomics count as both.
  Fixture run(
      "ld.param.u64 %rd1, [in]; mad.wide.u32 %rd2, %r13, 6, %rd1; ld.global.u16 %r1, [%rd2];\n"
      "mad.wide.u32 %rd3, %r13, 8, %rd8; st.global.u32 [%rd3], %r1;\n"
      "setp.eq.u32 %p1, %r13, 3; @%p1 atom.global.add.u32 %r2, [%rd1+2000], 1;\n"
      "mov.u32 %r4, s; mad.lo.u32 %r4, %r10, 4, %r4; st.shared.u32 [%r4], %r1; @%p1 "
      "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd8+32768];",
      ".shared .b8 s[256];\n");
  run.device.request.record_accesses = true;
  run.in = run.device.memory.Allocate(4096);
  const LaunchResult r = run(3, 50);
  ASSERT_EQ(r.code, 0) << r.message;
  std::vector<std::pair<uint64_t, uint64_t>> reads, writes, want_reads, want_writes;
  for (const ByteRange& x : r.reads)
    reads.emplace_back(x.begin, x.end);
  for (const ByteRange& x : r.writes)
    writes.emplace_back(x.begin, x.end);
  for (uint64_t i = 0; i < 150; ++i) {
    want_reads.emplace_back(run.in + 6 * i, run.in + 6 * i + 2);
    want_writes.emplace_back(run.out + 8 * i, run.out + 8 * i + 4);
  }
  want_reads.emplace_back(run.in + 2000, run.in + 2004);
  want_writes.emplace_back(run.in + 2000, run.in + 2004);
  want_reads.emplace_back(run.out + 32768, run.out + 32784);
  std::sort(want_reads.begin(), want_reads.end());
  std::sort(want_writes.begin(), want_writes.end());
  EXPECT_EQ(reads, want_reads);
  EXPECT_EQ(writes, want_writes);
}

TEST(InterpRecord, RowsOfWarpsMergeIntoOneRange) {
  Fixture run("st.global.u32 [%rd9], %r13;");
  run.device.request.record_accesses = true;
  const LaunchResult r = run(64, 256);
  ASSERT_EQ(r.code, 0);
  ASSERT_EQ(r.writes.size(), 1u);
  EXPECT_EQ(r.writes[0].begin, run.out);
  EXPECT_EQ(r.writes[0].end, run.out + 65536);
  EXPECT_TRUE(r.reads.empty());
}

TEST(InterpCompile, WhatIsNotSupportedIsNamed) {
  struct Case {
    const char* body;
    const char* says;
  };
  for (const Case& c :
       {Case{"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, "
             "{%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, "
             "{%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1};",
             "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 is not supported by softgpu"},
        Case{"frobnicate.u32 %r1, %r2;", "frobnicate.u32 is not supported by softgpu"},
        Case{"add.u32 %r1, %rd1, %r2;", "wrong size"},
        Case{"add.u32 %r1, %r2;", "number of operands"},
        Case{"add.u32 %p1, %r2, %r1;", "wrong type"},
        Case{"add.banana.u32 %r1, %r1, %r2;", "is not supported"},
        Case{"st.const.u32 [%rd1], %r1;", "cannot be written"},
        Case{"atom.local.add.u32 %r1, [%rd1], 1;", "global or shared"},
        Case{"call nowhere, ();", "nowhere"},
        Case{"mov.b64 {%r1, %r2, %r3}, %rd1;", "is not supported"},
        Case{"ld.global.v2.u32 %r1, [%rd1];", "length"}}) {
    TestDevice device(1);
    const std::string problem = device.Load(Kernel(c.body, ".extern .func nowhere();\n"));
    EXPECT_THAT(problem, HasSubstr(c.says)) << c.body;
    EXPECT_THAT(problem, HasSubstr("line 16")) << c.body;
  }
}

// Texts with words exchanged, lost or doubled: whatever still compiles is run, with a budget.
TEST(InterpCompile, MutatedModulesDoNoHarm) {
  const std::string whole = Kernel(
      "ld.param.u64 %rd1, [in]; mad.wide.u32 %rd2, %r13, 4, %rd1; ld.global.u32 %r1, [%rd2];\n"
      "setp.lt.u32 %p1, %r1, 77; @%p1 bra L;\n"
      "shfl.sync.down.b32 %r2|%p2, %r1, 4, 31, -1; add.cc.u32 %r3, %r1, %r2; addc.u32 %r4, %r3, "
      "0;\n"
      "st.shared.v2.u32 [s+8], {%r3, %r4}; bar.sync 0; ld.shared.u64 %rd3, [s+8];\n"
      "cvt.rn.f32.u64 %r5, %rd3; mov.b64 {%r6, %r7}, %rd3; call (%r8), f, (%r7);\n"
      "L: atom.global.cas.b32 %r9, [%rd9], %r1, %r8; selp.b32 %r9, %r9, %r1, !%p1;\n"
      "T: .branchtargets A, B; and.b32 %r2, %r10, 1; brx.idx %r2, T;\n"
      "A: vote.sync.ballot.b32 %r3, %p1, -1; bra C; B: match.any.sync.b32 %r3, %r1, -1;\n"
      "C: bfe.u32 %r3, %r3, 3, 5; st.global.u32 [%rd9], %r3; @%p1 exit; barrier.red.popc.u32 %r4, "
      "0, %p1;",
      ".shared .align 8 .b8 s[64];\n.func (.reg .b32 o) f(.reg .b32 i) { .reg .pred %p; .local .b8 "
      "l[16];"
      " setp.gt.u32 %p, i, 3; @%p ret; st.local.u32 [l], i; ld.local.u32 o, [l]; ret; }\n");
  std::vector<std::string> words;
  std::string word;
  for (char c : whole) {
    const bool separates = std::strchr(" \n\t,;{}[]()", c) != nullptr;
    if (separates && !word.empty()) {
      words.push_back(word);
      word.clear();
    }
    if (separates)
      words.emplace_back(1, c);
    else
      word.push_back(c);
  }
  uint64_t state = 20240611;  // the seed
  auto next = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  TestDevice device(2);
  const uint64_t out = device.memory.Allocate(4096), in = device.memory.Allocate(4096);
  device.request.step_budget = 20'000;
  int ran = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<std::string> changed = words;
    for (uint64_t k = 0, n = 1 + next(3); k < n; ++k) {
      const size_t at = 60 + next(changed.size() - 60);
      switch (next(3)) {
        case 0:
          changed[at] = words[60 + next(words.size() - 60)];
          break;
        case 1:
          changed.erase(changed.begin() + static_cast<ptrdiff_t>(at));
          break;
        default:
          changed.insert(changed.begin() + static_cast<ptrdiff_t>(at), words[next(words.size())]);
      }
    }
    std::string text;
    for (const std::string& w : changed)
      text += w;
    if (!device.Load(text).empty() || device.Kernel("k") == SIZE_MAX)
      continue;
    const LaunchResult r = device.Run("k", {2}, {40}, out, in);
    EXPECT_THAT(r.code, ::testing::AnyOf(0, kIllegalAddress, kLaunchTimeout, kMisalignedAddress,
                                         715, kLaunchFailed))
        << r.message;
    ++ran;
  }
  EXPECT_GT(ran, 100);
}

TEST(InterpCompile, KernelInfo) {
  TestDevice device(1);
  ASSERT_EQ(device.Load(
                ".version 8.0\n.target sm_90\n.address_size 64\n"
                ".global .align 8 .b8 g[24];\n.const .f32 c;\n.extern .shared .align 16 .b8 d[];\n"
                ".visible .entry k(.param .u32 a, .param .u64 b, .param .align 4 .b8 s[12])\n"
                ".maxntid 128, 2, 1\n{\n.shared .align 4 .b8 t[100];\n.local .b8 l[40];\n"
                ".reg .b64 %rd<4>;\nmov.u64 %rd1, d; mov.u64 %rd2, t; mov.u64 %rd3, l;\nret;\n}\n"),
            "");
  const KernelInfo& k = device.instance.program->kernels()[0];
  EXPECT_EQ(k.name, "k");
  ASSERT_EQ(k.parameters.size(), 3u);
  EXPECT_EQ(k.parameters[1].offset, 8u);
  EXPECT_EQ(k.parameters[2].offset, 16u);
  EXPECT_EQ(k.parameters[2].size, 12u);
  EXPECT_EQ(k.parameter_bytes, 28u);
  EXPECT_EQ(k.static_shared_bytes, 100u);
  EXPECT_EQ(k.local_bytes, 48u);
  EXPECT_EQ(k.max_threads, 256u);
  const auto variables = device.instance.program->variables();
  ASSERT_EQ(variables.size(), 2u);
  EXPECT_EQ(variables[0].size, 24u);
  EXPECT_EQ(variables[0].align, 8u);
  EXPECT_TRUE(variables[1].is_const);
}

TEST(InterpRun, LaunchesThatWaitForEachOtherRunTogether) {
  Fixture run(
      "ld.param.u64 %rd1, [in];\nsetp.eq.u64 %p1, %rd1, 0; @%p1 bra SET;\n"
      "W: ld.volatile.global.u32 %r1, [%rd8]; setp.eq.u32 %p2, %r1, 0; @%p2 bra W; ret;\n"
      "SET: st.volatile.global.u32 [%rd8], 1;");
  std::vector<uint8_t> waits(16, 0), sets(16, 0);
  std::memcpy(waits.data(), &run.out, 8);
  std::memcpy(sets.data(), &run.out, 8);
  waits[8] = 1;
  LaunchRequest a = run.device.request;
  a.module = &run.device.instance;
  a.grid = {20};
  a.block = {64};
  LaunchRequest b = a;
  a.parameters = waits;
  b.parameters = sets;
  LaunchResult ra;
  std::thread other([&] { ra = run.device.executor->Run(a); });
  const LaunchResult rb = run.device.executor->Run(b);
  other.join();
  EXPECT_EQ(ra.code, 0) << ra.message;
  EXPECT_EQ(rb.code, 0) << rb.message;
}

}  // namespace
}  // namespace gpurecover::softgpu::testing
