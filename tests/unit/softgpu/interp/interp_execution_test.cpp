// SPDX-License-Identifier: Apache-2.0
// Control flow, synchronisation, memory and calls.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/unit/softgpu/interp/interp_device.h"

namespace gpurecover::softgpu::testing {
namespace {

const std::string kHead = ".version 8.0\n.target sm_90\n.address_size 64\n";
// Declarations that most kernels here share; %rd9 points at the thread's word of `out`.
const std::string kRegs =
    "{\n.reg .pred %p<9>;\n.reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n.reg .f32 %f<9>;\n.reg .b16 "
    "%h<9>;\nmov.u32 %r10, %tid.x;\nmov.u32 %r11, %ctaid.x;\nmov.u32 %r12, %ntid.x;\n"
    "mad.lo.u32 %r13, %r11, %r12, %r10;\nld.param.u64 %rd8, [out];\nmad.wide.u32 %rd9, %r13, 4, "
    "%rd8;\n";
std::string Kernel(const std::string& body, const std::string& module = "") {
  return kHead + module + ".visible .entry k(.param .u64 out, .param .u64 in)\n" + kRegs + body +
         "\nret;\n}\n";
}

// Runs `body` over the threads; word i of the result is what thread i stored at [%rd9].
std::vector<uint32_t> Words(const std::string& body, uint32_t blocks, uint32_t threads,
                            const std::string& module = "", uint32_t dynamic_shared = 0,
                            unsigned workers = 2) {
  TestDevice device(workers);
  const std::string problem = device.Load(Kernel(body, module));
  EXPECT_EQ(problem, "");
  if (!problem.empty())
    return std::vector<uint32_t>(blocks * threads);
  const uint64_t out = device.memory.Allocate(blocks * threads * 4);
  device.request.dynamic_shared_bytes = dynamic_shared;
  const LaunchResult r = device.Run("k", {blocks}, {threads}, out, uint64_t{0});
  EXPECT_EQ(r.code, 0) << r.message;
  return device.Download<uint32_t>(out, blocks * threads);
}

TEST(InterpControl, LanesPartAndMeetAtThePostDominator) {
  // Loops of different lengths on both sides; behind them, all lanes are together again.
  const auto out = Words(R"(
    mov.u32 %r1, 0;
    and.b32 %r2, %r10, 1; setp.eq.u32 %p1, %r2, 0;
    mov.u32 %r3, 0;
    @%p1 bra EVEN;
  ODD: add.u32 %r1, %r1, 3; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r10; @%p2 bra ODD;
    bra MEET;
  EVEN: add.u32 %r1, %r1, 5; add.u32 %r3, %r3, 1; setp.le.u32 %p2, %r3, %r10; @%p2 bra EVEN;
  MEET:
    activemask.b32 %r4;
    setp.ne.u32 %p3, %r4, -1;
    @%p3 mov.u32 %r1, 12345;
    st.global.u32 [%rd9], %r1;)",
                         1, 32);
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i % 2 ? 3 * i : 5 * (i + 1)) << i;
}

TEST(InterpControl, ColdCodeAfterTheEndOfTheFunctionMeetsInItsMiddle) {
  const auto out = Words(R"(
    setp.gt.u32 %p1, %r10, 20; mov.u32 %r1, 1;
    @%p1 bra COLD;
  BACK: activemask.b32 %r4; st.global.u32 [%rd9], %r4; ret;
  COLD: mov.u32 %r1, 2; bra BACK;)",
                         1, 32);
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], 0xFFFFFFFFu) << i;
}

TEST(InterpControl, EarlyExitsLeaveTheOthers) {
  const auto out = Words(R"(
    setp.lt.u32 %p1, %r10, 7; @%p1 ret;
    rem.u32 %r1, %r10, 3; setp.eq.u32 %p2, %r1, 0; @%p2 bra SIDE;
    st.global.u32 [%rd9], 1; ret;
  SIDE: st.global.u32 [%rd9], 2; exit;)",
                         2, 50);
  for (uint32_t i = 0; i < 100; ++i) {
    const uint32_t t = i % 50;
    EXPECT_EQ(out[i], t < 7 ? 0 : t % 3 == 0 ? 2 : 1) << i;
  }
}

TEST(InterpControl, IndexedBranches) {
  const auto out = Words(R"(
    and.b32 %r1, %r10, 3; mov.u32 %r2, 0;
    TABLE: .branchtargets A, B, C, B;
    brx.idx %r1, TABLE;
  A: mov.u32 %r2, 10; bra END;
  B: mov.u32 %r2, 20; bra END;
  C: mov.u32 %r2, 30;
  END: activemask.b32 %r4; and.b32 %r4, %r4, 1; add.u32 %r2, %r2, %r4; st.global.u32 [%rd9], %r2;)",
                         1, 32);
  const uint32_t want[4] = {11, 21, 31, 21};
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], want[i % 4]) << i;
}

TEST(InterpControl, SpinLockAmongTheLanesOfAWarp) {
  // Every lane takes the lock in turn; the holder is on the other side of the loop's branch.
  const auto out = Words(R"(
    mov.u64 %rd1, lock; mov.u64 %rd2, total;
  TRY: atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra TRY;
    ld.volatile.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%rd2], %r2;
    membar.gl;
    atom.global.exch.b32 %r3, [%rd1], 0;
    bar.sync 0;
    ld.volatile.global.u32 %r2, [%rd2]; st.global.u32 [%rd9], %r2;)",
                         1, 96, ".global .u32 lock;\n.global .u32 total;\n");
  for (uint32_t v : out)
    EXPECT_EQ(v, 96u);
}

TEST(InterpControl, LanesWaitForLanesOnTheOtherSideAndBehindTheMeetingPoint) {
  // Lane 0 waits inside the branch for what lane 1 writes only behind it.
  const auto out = Words(R"(
    mov.u64 %rd1, flag; setp.ne.u32 %p1, %r10, 0;
    @%p1 bra MEET;
  WAIT: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p2, %r1, 0; @%p2 bra WAIT;
  MEET: setp.eq.u32 %p3, %r10, 1;
    @%p3 st.volatile.global.u32 [%rd1], 77;
    st.global.u32 [%rd9], 5;)",
                         1, 32, ".global .u32 flag;\n");
  for (uint32_t v : out)
    EXPECT_EQ(v, 5u);
}

TEST(InterpControl, WarpsOfABlockWaitForOneAnother) {
  const auto out = Words(R"(
    mov.u64 %rd1, flag; setp.ge.u32 %p1, %r10, 32; @%p1 bra SET;
  WAIT: ld.volatile.global.u32 %r1, [%rd1]; setp.ne.u32 %p2, %r1, 3; @%p2 bra WAIT;
    bra END;
  SET: setp.eq.u32 %p3, %r10, 40; @!%p3 bra END;
    st.volatile.global.u32 [%rd1], 3;
  END: st.global.u32 [%rd9], 1;)",
                         1, 64, ".global .u32 flag;\n");
  EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0u), 64u);
}

TEST(InterpControl, BlocksWaitForLaterBlocks) {
  // With a single worker, and more blocks than any worker count.
  for (unsigned workers : {1u, 2u}) {
    const auto out = Words(R"(
    mov.u64 %rd1, flag; setp.eq.u32 %p1, %r11, 99; @%p1 bra SET;
  WAIT: ld.acquire.gpu.global.u32 %r1, [%rd1]; setp.eq.u32 %p2, %r1, 0; @%p2 bra WAIT;
    bra END;
  SET: st.release.gpu.global.u32 [%rd1], 3;
  END: st.global.u32 [%rd9], 1;)",
                           100, 32, ".global .u32 flag;\n", 0, workers);
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0u), 3200u);
  }
}

TEST(InterpControl, GridBarrierOfACooperativeLaunch) {
  TestDevice device(2);
  ASSERT_EQ(device.Load(Kernel(R"(
    mov.u64 %rd1, arrived; mov.u32 %r5, 0; mov.u32 %r6, 0;
  ROUND:
    st.global.u32 [%rd9], %r5;
    bar.sync 0;
    setp.ne.u32 %p1, %r10, 0; @%p1 bra WAITED;
    membar.gl;
    atom.global.add.u32 %r1, [%rd1], 1;
    add.u32 %r6, %r6, 40;
  SPIN: ld.acquire.gpu.global.u32 %r2, [%rd1]; setp.lt.u32 %p2, %r2, %r6; @%p2 bra SPIN;
  WAITED: bar.sync 0;
    // The neighbour block's word of this round.
    add.u32 %r7, %r11, 1; rem.u32 %r7, %r7, 40; mad.lo.u32 %r7, %r7, %r12, %r10;
    mad.wide.u32 %rd2, %r7, 4, %rd8; ld.volatile.global.u32 %r8, [%rd2];
    setp.lt.u32 %p3, %r8, %r5; @%p3 trap;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 20; @%p4 bra ROUND;)",
                               ".global .u32 arrived;\n")),
            "");
  device.request.cooperative = true;
  const uint64_t out = device.memory.Allocate(40 * 64 * 4);
  const LaunchResult r = device.Run("k", {40}, {64}, out, uint64_t{0});
  ASSERT_EQ(r.code, 0) << r.message;
  for (uint32_t v : device.Download<uint32_t>(out, 40 * 64))
    EXPECT_EQ(v, 19u);
}

TEST(InterpControl, AGridWorkspaceForCooperativeGroups) {
  // The barrier that cooperative groups build on the workspace: an arrival counter whose top bit
  // flips when all blocks have come.
  TestDevice device(2);
  ASSERT_EQ(device.Load(Kernel(R"(
    mov.u32 %r1, %envreg2; mov.u32 %r2, %envreg1; cvt.u64.u32 %rd1, %r1; cvt.u64.u32 %rd2, %r2;
    bfi.b64 %rd1, %rd2, %rd1, 32, 32; setp.eq.u64 %p1, %rd1, 0; @%p1 trap;
    st.global.u32 [%rd9], 1;
    bar.sync 0; setp.ne.u32 %p2, %r10, 0; @%p2 bra WAITED;
    setp.eq.u32 %p3, %r11, 0; sub.u32 %r3, 0x80000000, 29; selp.b32 %r3, %r3, 1, %p3;
    membar.gl; atom.add.u32 %r4, [%rd1+4], %r3;
  SPIN: ld.volatile.u32 %r5, [%rd1+4]; xor.b32 %r5, %r5, %r4; setp.ge.s32 %p4, %r5, 0; @%p4 bra SPIN;
  WAITED: bar.sync 0;
    add.u32 %r7, %r13, 32; rem.u32 %r7, %r7, 960; mad.wide.u32 %rd3, %r7, 4, %rd8;
    ld.global.u32 %r8, [%rd3]; setp.ne.u32 %p5, %r8, 1; @%p5 trap;)")),
            "");
  device.request.cooperative = true;
  device.request.record_accesses = true;
  const uint64_t out = device.memory.Allocate(30 * 32 * 4);
  const LaunchResult r = device.Run("k", {30}, {32}, out, uint64_t{0});
  ASSERT_EQ(r.code, 0) << r.message;
  ASSERT_EQ(r.writes.size(), 1u);
  EXPECT_EQ(r.writes[0].begin, out);
  EXPECT_EQ(device.memory.frees(), 1);
}

TEST(InterpControl, Barriers) {
  // Reversal through shared memory.
  auto out = Words(R"(
    mov.u32 %r1, tile; mad.lo.u32 %r2, %r10, 4, %r1; st.shared.u32 [%r2], %r10;
    barrier.sync 0;
    sub.u32 %r3, 99, %r10; mad.lo.u32 %r2, %r3, 4, %r1; ld.shared.u32 %r4, [%r2];
    st.global.u32 [%rd9], %r4;)",
                   3, 100, ".shared .align 4 .b8 tile[400];\n");
  for (uint32_t i = 0; i < 300; ++i)
    EXPECT_EQ(out[i], 99 - i % 100) << i;
  // Reductions; threads that have ended do not count.
  out = Words(R"(
    setp.ge.u32 %p1, %r10, 70; @%p1 ret;
    setp.lt.u32 %p2, %r10, 41;
    barrier.red.popc.u32 %r1, 0, %p2;
    barrier.red.or.pred %p3, 1, %p2; barrier.red.and.pred %p4, 2, !%p2;
    selp.u32 %r2, 100, 0, %p3; selp.u32 %r3, 1000, 0, %p4;
    add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; st.global.u32 [%rd9], %r1;)",
              1, 96);
  for (uint32_t i = 0; i < 70; ++i)
    EXPECT_EQ(out[i], 141u) << i;
  // Producer and consumer warps by arrive and sync on a counted barrier.
  out = Words(R"(
    mov.u32 %r1, word; setp.lt.u32 %p1, %r10, 32; @%p1 bra CONSUMER;
    st.shared.u32 [%r1], 42; barrier.arrive 1, 64; bra END;
  CONSUMER: barrier.sync 1, 64; ld.shared.u32 %r2, [%r1]; st.global.u32 [%rd9], %r2;
  END:)",
              1, 64, ".shared .u32 word;\n");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], 42u);
}

TEST(InterpWarp, Shuffles) {
  const auto run = [](const std::string& op) {
    return Words(
        "mul.lo.u32 %r1, %r10, 10; mov.u32 %r2, 99;" + op +
            " selp.u32 %r3, 1000, 0, %p1; add.u32 %r2, %r2, %r3; st.global.u32 [%rd9], %r2;",
        1, 32);
  };
  auto out = run("shfl.sync.down.b32 %r2|%p1, %r1, 5, 31, -1;");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i + 5 < 32 ? (i + 5) * 10 + 1000 : i * 10);
  out = run("shfl.sync.up.b32 %r2|%p1, %r1, 3, 0, -1;");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i >= 3 ? (i - 3) * 10 + 1000 : i * 10);
  out = run("shfl.sync.bfly.b32 %r2|%p1, %r1, 6, 31, -1;");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], (i ^ 6) * 10 + 1000);
  // Segments of 8 lanes: c = (32 - 8) << 8 | 31.
  out = run("shfl.sync.idx.b32 %r2|%p1, %r1, 2, 0x181f, -1;");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], (i / 8 * 8 + 2) * 10 + 1000);
  out = run("shfl.sync.down.b32 %r2|%p1, %r1, 4, 0x181f, -1;");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i % 8 < 4 ? (i + 4) * 10 + 1000 : i * 10);
}

TEST(InterpWarp, ASyncFromBothSidesOfABranch) {
  const auto out = Words(R"(
    setp.lt.u32 %p1, %r10, 16; mov.u32 %r1, %r10;
    @%p1 bra LOW;
    shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1; bra MEET;
  LOW: add.u32 %r1, %r1, 100; shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;
  MEET: st.global.u32 [%rd9], %r2;)",
                         1, 32);
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i < 16 ? i + 16 : i - 16 + 100) << i;
}

TEST(InterpWarp, LanesWithDifferentMemberMasksInOneInstruction) {
  const auto out = Words(R"(
    setp.lt.u32 %p1, %r10, 8; selp.b32 %r3, 0x000000FF, 0xFFFFFF00, %p1;
    setp.ge.u32 %p2, %r10, 0; vote.sync.ballot.b32 %r2, %p2, %r3; st.global.u32 [%rd9], %r2;)",
                         1, 32);
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i < 8 ? 0xFFu : 0xFFFFFF00u);
}

TEST(InterpWarp, VotesMatchesReductions) {
  auto word = [](const std::string& body) {
    return Words(body + "st.global.u32 [%rd9], %r2;", 1, 32);
  };
  auto out = word("setp.gt.u32 %p1, %r10, 20; vote.sync.ballot.b32 %r2, %p1, -1;");
  EXPECT_EQ(out[3], 0xFFE00000u);
  out = word(
      "setp.gt.u32 %p1, %r10, 20; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;"
      "vote.sync.uni.pred %p4, %p1, -1; vote.sync.all.pred %p5, !%p1, 0xFF;"
      "selp.u32 %r2, 1, 0, %p2; @%p3 add.u32 %r2, %r2, 2; @%p4 add.u32 %r2, %r2, 4;"
      "@%p5 add.u32 %r2, %r2, 8;");
  EXPECT_EQ(out[3], 9u);
  out = word("shr.u32 %r1, %r10, 3; match.any.sync.b32 %r2, %r1, -1;");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], 0xFFu << (i / 8 * 8));
  out = word("mov.u64 %rd1, 7; match.all.sync.b64 %r2|%p1, %rd1, -1; @!%p1 mov.u32 %r2, 3;");
  EXPECT_EQ(out[9], 0xFFFFFFFFu);
  out = word("match.all.sync.b32 %r2|%p1, %r10, -1; @!%p1 add.u32 %r2, %r2, 3;");
  EXPECT_EQ(out[9], 3u);
  out = word("redux.sync.add.u32 %r2, %r10, -1;");
  EXPECT_EQ(out[0], 496u);
  out = word("sub.u32 %r1, %r10, 16; redux.sync.min.s32 %r2, %r1, -1;");
  EXPECT_EQ(out[0], static_cast<uint32_t>(-16));
  out = word("redux.sync.xor.b32 %r2, %r10, 0xFF00; ");
  EXPECT_EQ(out[8], 8u ^ 9 ^ 10 ^ 11 ^ 12 ^ 13 ^ 14 ^ 15);
  out = word("elect.sync %r2|%p1, -1; @%p1 mov.u32 %r2, 500;");
  EXPECT_EQ(out[0], 500u);
  EXPECT_EQ(out[1], 0u);
}

TEST(InterpMemory, AtomicsFromManyBlocks) {
  TestDevice device(2);
  ASSERT_EQ(device.Load(Kernel(R"(
    atom.global.add.u32 %r1, [%rd8], 1;
    red.global.add.u64 [%rd8+8], 3;
    red.global.max.s32 [%rd8+16], %r13;
    red.global.min.u32 [%rd8+20], %r13;
    red.global.or.b32 [%rd8+24], %r10;
    atom.global.inc.u32 %r2, [%rd8+28], 9;
    red.global.add.f32 [%rd8+32], 0f3F000000;
    red.global.add.f64 [%rd8+40], 0d3FD0000000000000;
    atom.add.noftz.f16x2 %r3, [%rd8+48], 0;
    red.global.xor.b64 [%rd8+56], 255;
    // One more by compare and swap.
  AGAIN: ld.volatile.global.u32 %r4, [%rd8+64]; add.u32 %r5, %r4, 2;
    atom.global.cas.b32 %r6, [%rd8+64], %r4, %r5; setp.ne.u32 %p1, %r6, %r4; @%p1 bra AGAIN;)")),
            "");
  const uint64_t out = device.memory.Allocate(4096);
  auto* words = reinterpret_cast<uint32_t*>(out);
  words[5] = 0xFFFFFFFF;
  words[12] = 0x3C003C00;
  const LaunchResult r = device.Run("k", {50}, {64}, out, uint64_t{0});
  ASSERT_EQ(r.code, 0) << r.message;
  EXPECT_EQ(words[0], 3200u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(out + 8), 9600u);
  EXPECT_EQ(words[4], 3199u);
  EXPECT_EQ(words[5], 0u);
  EXPECT_EQ(words[6], 63u);
  EXPECT_EQ(words[7], 0u);  // 3200 steps of a counter of 10
  EXPECT_EQ(*reinterpret_cast<float*>(out + 32), 1600.0f);
  EXPECT_EQ(*reinterpret_cast<double*>(out + 40), 800.0);
  EXPECT_EQ(words[12], 0x3C003C00u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(out + 56), 0u);
  EXPECT_EQ(words[16], 6400u);
}

TEST(InterpMemory, SubnormalAtomicsAreFlushedInGlobalMemoryOnly) {
  const auto out = Words(R"(
    mov.f32 %f1, 0f00000001; st.global.f32 [%rd9], %f1; st.shared.f32 [word], %f1; bar.sync 0;
    atom.shared.add.f32 %f2, [word], %f1;
    mov.u64 %rd1, word; cvta.shared.u64 %rd1, %rd1; atom.add.f32 %f2, [%rd1], %f1;
    red.global.add.f32 [%rd9], %f1; ld.global.u32 %r1, [%rd9]; bar.sync 0;
    ld.shared.u32 %r2, [word]; mad.lo.u32 %r1, %r1, 1000, %r2; st.global.u32 [%rd9], %r1;)",
                         1, 32, ".shared .u32 word;\n");
  for (uint32_t v : out)
    EXPECT_EQ(v, 65u);
}

TEST(InterpMemory, VectorsAndNarrowTypes) {
  TestDevice device(1);
  ASSERT_EQ(device.Load(Kernel(R"(
    ld.param.u64 %rd1, [in]; mad.wide.u32 %rd2, %r10, 16, %rd1; mad.wide.u32 %rd3, %r10, 16, %rd8;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2];
    st.global.v4.u32 [%rd3], {%r4, %r3, %r2, %r1};
    ld.global.v2.u64 {%rd4, %rd5}, [%rd2];
    st.global.v2.u64 [%rd3+1024], {%rd5, %rd4};
    ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%rd2];
    st.global.v4.u8 [%rd3+2048], {%h4, %h3, %h2, %h1};
    ld.global.s8 %r5, [%rd2+3]; st.global.u32 [%rd3+2052], %r5;
    ld.global.u16 %rd6, [%rd2+2]; st.global.u64 [%rd3+2056], %rd6;)")),
            "");
  std::vector<uint8_t> in(64 * 16);
  for (size_t k = 0; k < in.size(); ++k)
    in[k] = static_cast<uint8_t>(k * 37 + 11);
  const uint64_t pin = device.Upload(in), out = device.memory.Allocate(3072);
  // 40 threads: one full warp and one of 8 lanes.
  const LaunchResult r = device.Run("k", {1}, {40}, out, pin);
  ASSERT_EQ(r.code, 0) << r.message;
  for (uint32_t t = 0; t < 40; ++t) {
    const auto* i = in.data() + 16 * t;
    const auto* o = reinterpret_cast<uint8_t*>(out) + 16 * t;
    for (int w = 0; w < 4; ++w)
      EXPECT_EQ(std::memcmp(o + 4 * w, i + 4 * (3 - w), 4), 0);
    EXPECT_EQ(std::memcmp(o + 1024, i + 8, 8), 0);
    EXPECT_EQ(std::memcmp(o + 1032, i, 8), 0);
    for (int b = 0; b < 4; ++b)
      EXPECT_EQ(o[2048 + b], i[3 - b]);
    int32_t s;
    std::memcpy(&s, o + 2052, 4);
    EXPECT_EQ(s, static_cast<int8_t>(i[3]));
    uint64_t u;
    std::memcpy(&u, o + 2056, 8);
    EXPECT_EQ(u, i[2] | static_cast<uint64_t>(i[3]) << 8);
  }
}

TEST(InterpMemory, LocalArraysAndGenericAddresses) {
  const auto out = Words(R"(
    .local .align 8 .b8 depot[128];
    mov.u64 %rd1, depot; cvta.local.u64 %rd2, %rd1;
    mov.u32 %r1, 0;
  FILL: mad.wide.u32 %rd3, %r1, 4, %rd2; mul.lo.u32 %r2, %r1, %r10; st.u32 [%rd3], %r2;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 32; @%p1 bra FILL;
    mad.wide.u32 %rd3, %r10, 4, %rd1; rem.u32 %r3, %r10, 32; mad.wide.u32 %rd3, %r3, 4, %rd1;
    ld.local.u32 %r4, [%rd3];
    cvta.to.local.u64 %rd4, %rd2; setp.ne.u64 %p2, %rd4, %rd1; @%p2 mov.u32 %r4, 1;
    isspacep.local %p3, %rd2; @!%p3 mov.u32 %r4, 2;
    isspacep.shared %p4, %rd2; @%p4 mov.u32 %r4, 3;
    isspacep.global %p5, %rd9; @!%p5 mov.u32 %r4, 4;
    mov.u64 %rd5, word; cvta.shared.u64 %rd6, %rd5; isspacep.shared %p6, %rd6; @!%p6 mov.u32 %r4, 5;
    atom.add.u32 %r5, [%rd6], 1; bar.sync 0; ld.u32 %r6, [%rd6];
    setp.ne.u32 %p7, %r6, 64; @%p7 mov.u32 %r4, 6;
    st.u32 [%rd9], %r4;)",
                         2, 64, ".shared .u32 word;\n");
  for (uint32_t i = 0; i < 128; ++i)
    EXPECT_EQ(out[i], (i % 64) * ((i % 64) % 32)) << i;
}

TEST(InterpMemory, StaticAndDynamicSharedMemory) {
  const auto out = Words(
      R"(
    mov.u32 %r1, fixed; mov.u32 %r2, dynamic; mad.lo.u32 %r3, %r10, 4, %r2;
    st.shared.u32 [%r3], %r10; st.shared.u32 [fixed+4], 7;
    bar.sync 0;
    ld.shared.u32 %r4, [%r2+124]; ld.shared.u32 %r5, [fixed+4];
    mov.u32 %r6, %dynamic_smem_size; mad.lo.u32 %r4, %r5, 100, %r4; mad.lo.u32 %r4, %r6, 10000, %r4;
    st.global.u32 [%rd9], %r4;)",
      2, 32, ".shared .align 4 .b8 fixed[12];\n.extern .shared .align 16 .b8 dynamic[];\n", 128);
  for (uint32_t v : out)
    EXPECT_EQ(v, 1280731u);
}

TEST(InterpMemory, VariablesWithInitializers) {
  const auto out = Words(R"(
    ld.const.u32 %r1, [table+8]; ld.global.u64 %rd1, [pointer]; ld.global.u32 %r2, [%rd1];
    mad.lo.u32 %r1, %r1, 1000, %r2; st.global.u32 [%rd9], %r1;)",
                         1, 32,
                         ".const .align 4 .u32 table[4] = {1, 2, 3, 4};\n"
                         ".global .align 4 .u32 numbers[3] = {10, 20, 30};\n"
                         ".global .u64 pointer = numbers+4;\n");
  for (uint32_t v : out)
    EXPECT_EQ(v, 3020u);
}

TEST(InterpMemory, AsynchronousCopies) {
  TestDevice device(1);
  ASSERT_EQ(device.Load(Kernel(R"(
    ld.param.u64 %rd1, [in]; mad.wide.u32 %rd2, %r10, 16, %rd1;
    mov.u32 %r1, tile; mad.lo.u32 %r2, %r10, 16, %r1;
    mov.u32 %r3, 12;
    cp.async.cg.shared.global [%r2], [%rd2+16], 16, %r3;
    cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2];
    add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6; mad.lo.u32 %r4, %r7, 1000000, %r4;
    st.global.u32 [%rd9], %r4;)",
                               ".shared .align 16 .b8 tile[512];\n")),
            "");
  std::vector<uint32_t> in(33 * 4);
  std::iota(in.begin(), in.end(), 1);
  const uint64_t pin = device.Upload(in), out = device.memory.Allocate(128);
  const LaunchResult r = device.Run("k", {1}, {32}, out, pin);
  ASSERT_EQ(r.code, 0) << r.message;
  const auto got = device.Download<uint32_t>(out, 32);
  for (uint32_t t = 0; t < 32; ++t)
    EXPECT_EQ(got[t], in[4 * t + 4] + in[4 * t + 5] + in[4 * t + 6]) << t;
}

TEST(InterpCalls, ArgumentsResultsRecursionAndPointers) {
  const std::string functions = R"(
.func (.param .b32 result) factorial(.param .b32 n)
{ .reg .b32 %r<5>; .reg .pred %p<2>;
  ld.param.u32 %r1, [n]; setp.le.u32 %p1, %r1, 1; @%p1 bra ONE;
  sub.u32 %r2, %r1, 1;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), factorial, (a);
    ld.param.b32 %r3, [b]; }
  mul.lo.u32 %r4, %r3, %r1; st.param.b32 [result], %r4; ret;
ONE: st.param.b32 [result], 1; ret; }
.func (.reg .b32 result) twice(.reg .b32 x) { add.u32 result, x, x; ret; }
.func (.param .b32 result) sum(.param .align 8 .b8 s[16])
{ .reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .pred %p<2>;
  mov.b64 %rd1, s; cvta.param.u64 %rd2, %rd1; ld.u32 %r1, [%rd2+12]; ld.param.u32 %r2, [s];
  setp.eq.u32 %p1, %r2, 4; @%p1 ret;
  add.u32 %r1, %r1, %r2; st.param.b32 [result], %r1; ret; }
.func (.param .b32 r) plus(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; add.u32 %r1, %r1, 1000; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) minus(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; sub.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
.global .u64 table[2] = {plus, minus};
)";
  auto out = Words(R"(
    rem.u32 %r1, %r10, 6; add.u32 %r1, %r1, 1;
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), factorial, (a);
      ld.param.b32 %r2, [b]; }
    activemask.b32 %r3; setp.ne.u32 %p1, %r3, -1; @%p1 mov.u32 %r2, 0;
    call (%r2), twice, (%r2);
    st.global.u32 [%rd9], %r2;)",
                   1, 64, functions);
  const uint32_t factorials[] = {1, 2, 6, 24, 120, 720};
  for (uint32_t i = 0; i < 64; ++i)
    EXPECT_EQ(out[i], 2 * factorials[i % 6]) << i;
  out = Words(R"(
    { .param .align 8 .b8 s[16]; .param .b32 b;
      st.param.u32 [s], %r10; mul.lo.u32 %r1, %r10, 3; st.param.u32 [s+12], %r1;
      st.param.b32 [b], 5;
      call.uni (b), sum, (s); ld.param.b32 %r2, [b]; }
    st.global.u32 [%rd9], %r2;)",
              1, 32, functions);
  for (uint32_t i = 0; i < 32; ++i) {
    if (i != 4) {
      EXPECT_EQ(out[i], 4 * i) << i;
    }
  }
  out = Words(R"(
    and.b32 %r1, %r10, 1; mov.u64 %rd1, table; mad.wide.u32 %rd2, %r1, 8, %rd1; ld.global.u64 %rd3, [%rd2];
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r10;
      prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (b), %rd3, (a), prototype; ld.param.b32 %r2, [b]; }
    st.global.u32 [%rd9], %r2;)",
              1, 32, functions);
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i % 2 ? i - 1 : i + 1000) << i;
}

TEST(InterpCalls, GuardedCallsComeBackTogether) {
  const auto out =
      Words(R"(
    mov.u32 %r2, 7; setp.lt.u32 %p1, %r10, 9;
    @%p1 call (%r2), twice, (%r10);
    activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 mov.u32 %r2, 999;
    st.global.u32 [%rd9], %r2;)",
            1, 32, ".func (.reg .b32 result) twice(.reg .b32 x) { add.u32 result, x, x; ret; }\n");
  for (uint32_t i = 0; i < 32; ++i)
    EXPECT_EQ(out[i], i < 9 ? 2 * i : 7) << i;
}

TEST(InterpCalls, Printf) {
  TestDevice device(1);
  ASSERT_EQ(device.Load(kHead + R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 format[40] = {105,61,37,100,32,117,61,37,48,52,120,32,108,61,37,108,108,117,32,102,61,37,46,50,102,32,115,61,37,115,32,37,99,37,37,10,0};
.global .align 1 .b8 name[4] = {97,98,99,0};
.visible .entry k(.param .u64 out, .param .u64 in)
)" + kRegs + R"(
  .local .align 8 .b8 buffer[48];
  mov.u64 %rd1, buffer; cvta.local.u64 %rd2, %rd1;
  sub.u32 %r1, %r10, 1; st.local.u32 [%rd1], %r1; st.local.u32 [%rd1+4], 171;
  mov.u64 %rd3, 12345678901234; st.local.u64 [%rd1+8], %rd3; mov.u64 %rd4, 0x4009000000000000;
  st.local.u64 [%rd1+16], %rd4; mov.u64 %rd5, name; st.local.u64 [%rd1+24], %rd5; st.local.u32 [%rd1+32], 90;
  mov.u64 %rd6, format;
  { .param .b64 a; .param .b64 b; .param .b32 r; st.param.b64 [a], %rd6; st.param.b64 [b], %rd2;
    call.uni (r), vprintf, (a, b); ld.param.b32 %r2, [r]; }
  st.global.u32 [%rd9], %r2; ret; })"),
            "");
  const uint64_t out = device.memory.Allocate(8);
  const LaunchResult r = device.Run("k", {1}, {2}, out, uint64_t{0});
  ASSERT_EQ(r.code, 0) << r.message;
  EXPECT_EQ(device.printed,
            "i=-1 u=00ab l=12345678901234 f=3.12 s=abc Z%\ni=0 u=00ab l=12345678901234 f=3.12 "
            "s=abc Z%\n");
  EXPECT_EQ(device.Download<uint32_t>(out, 1)[0], 6u);
}

TEST(InterpCalls, Malloc) {
  TestDevice device(1);
  ASSERT_EQ(device.Load(kHead + R"(
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.visible .entry k(.param .u64 out, .param .u64 in)
)" + kRegs + R"(
  { .param .b64 a; .param .b64 r; st.param.b64 [a], 64; call.uni (r), malloc, (a); ld.param.b64 %rd1, [r]; }
  st.u32 [%rd1], %r10; ld.u32 %r1, [%rd1]; st.global.u32 [%rd9], %r1;
  { .param .b64 a; st.param.b64 [a], %rd1; call.uni free, (a); }
  ret; })"),
            "");
  const uint64_t out = device.memory.Allocate(32);
  const LaunchResult r = device.Run("k", {1}, {8}, out, uint64_t{0});
  ASSERT_EQ(r.code, 0) << r.message;
  EXPECT_EQ(device.Download<uint32_t>(out, 8)[7], 7u);
  EXPECT_EQ(device.memory.frees(), 8);
}

TEST(InterpControl, SpecialRegisters) {
  TestDevice device(1);
  ASSERT_EQ(device.Load(kHead + R"(
.visible .entry k(.param .u64 out, .param .u64 in)
{ .reg .b32 %r<20>; .reg .b64 %rd<9>;
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
  mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z;
  mad.lo.u32 %r7, %r3, %ntid.y, %r2; mad.lo.u32 %r7, %r7, %ntid.x, %r1;
  mov.u32 %r8, %nctaid.y; mad.lo.u32 %r9, %r6, %r8, %r5; mov.u32 %r8, %nctaid.x; mad.lo.u32 %r9, %r9, %r8, %r4;
  mul.lo.u32 %r10, %ntid.x, %ntid.y; mul.lo.u32 %r10, %r10, %ntid.z; mad.lo.u32 %r11, %r9, %r10, %r7;
  ld.param.u64 %rd1, [out]; mad.wide.u32 %rd2, %r11, 8, %rd1;
  mov.u32 %r12, %laneid; mov.u32 %r13, %warpid; mad.lo.u32 %r12, %r13, 32, %r12;
  mov.u32 %r14, %lanemask_lt; popc.b32 %r14, %r14;
  st.global.v2.u32 [%rd2], {%r12, %r14}; ret; })"),
            "");
  const uint64_t out = device.memory.Allocate(24 * 60 * 8);
  const LaunchResult r = device.Run("k", {2, 3, 4}, {5, 4, 3}, out, uint64_t{0});
  ASSERT_EQ(r.code, 0) << r.message;
  const auto words = device.Download<uint32_t>(out, 24 * 60 * 2);
  for (uint32_t i = 0; i < 24 * 60; ++i) {
    EXPECT_EQ(words[2 * i], i % 60);
    EXPECT_EQ(words[2 * i + 1], i % 60 % 32);
  }
}

TEST(InterpControl, ClocksMoveOn) {
  // A wait by the clock ends.
  const auto out = Words(R"(
    mov.u64 %rd1, %globaltimer;
  WAIT: nanosleep.u32 20; mov.u64 %rd2, %globaltimer; sub.u64 %rd2, %rd2, %rd1;
    setp.lt.u64 %p1, %rd2, 100000; @%p1 bra WAIT;
    mov.u64 %rd3, %clock64; setp.eq.u64 %p2, %rd3, 0; @%p2 trap; st.global.u32 [%rd9], 1;)",
                         1, 32);
  EXPECT_EQ(out[0], 1u);
}

TEST(InterpControl, TheSameSeedGivesTheSameRun) {
  auto order = [](uint64_t seed) {
    TestDevice device(2);
    EXPECT_EQ(device.Load(Kernel("atom.global.add.u32 %r1, [%rd8], 1; shr.u32 %r2, %r13, 5;"
                                 "mad.wide.u32 %rd1, %r1, 4, %rd8; st.global.u32 [%rd1+4], %r2;")),
              "");
    device.request.seed = seed;
    const uint64_t out = device.memory.Allocate(4 * 1025);
    EXPECT_EQ(device.Run("k", {4}, {256}, out, uint64_t{0}).code, 0);
    return device.Download<uint32_t>(out, 1025);
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(5));
}

}  // namespace
}  // namespace gpurecover::softgpu::testing
