// SPDX-License-Identifier: Apache-2.0
// Thread instructions per second and core of softgpu's PTX interpreter.
//
//   bench_softgpu [--json] [--workers N] [--instructions]
//
// Kernels: a vector addition, a matrix product by tiles in shared memory, a histogram by atomics, a
// stencil; each with and without the access record. --instructions: what one warp instruction
// costs, by kind: where the time goes. Exit status 1 if a result is wrong or a budget is missed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/unit/softgpu/interp/interp_device.h"

namespace {

using namespace gpurecover::softgpu;
using gpurecover::softgpu::testing::TestDevice;

constexpr double kBudget = 50e6;       // thread instructions per second and core
constexpr double kRecordFactor = 2.0;  // what the access record may cost

const char kKernels[] = R"(
.version 8.0
.target sm_70
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3; ld.param.u32 %r5, [n];
  setp.ge.u32 %p1, %r4, %r5; @%p1 bra END;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];
  mul.wide.u32 %rd4, %r4, 4;
  add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4; add.s64 %rd7, %rd3, %rd4;
  ld.global.f32 %f1, [%rd5]; ld.global.f32 %f2, [%rd6]; add.rn.f32 %f3, %f1, %f2;
  st.global.f32 [%rd7], %f3;
END: ret;
}
.visible .entry gemm(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .shared .align 4 .b8 ta[1024]; .shared .align 4 .b8 tb[1024];
  .reg .pred %p<4>; .reg .b32 %r<24>; .reg .b64 %rd<12>; .reg .f32 %f<6>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y;
  mad.lo.u32 %r6, %r5, 16, %r3; mad.lo.u32 %r7, %r4, 16, %r2;
  mov.u32 %r8, ta; mov.u32 %r9, tb; mad.lo.u32 %r10, %r3, 16, %r2;
  mad.lo.u32 %r11, %r10, 4, %r8; mad.lo.u32 %r12, %r10, 4, %r9;
  mad.lo.u32 %r13, %r3, 64, %r8; mad.lo.u32 %r14, %r2, 4, %r9;
  mov.f32 %f1, 0f00000000; mov.u32 %r15, 0;
TILE:
  mad.lo.u32 %r16, %r6, %r1, %r15; add.u32 %r16, %r16, %r2;
  mul.wide.u32 %rd4, %r16, 4; add.u64 %rd4, %rd4, %rd1; ld.global.f32 %f2, [%rd4];
  st.shared.f32 [%r11], %f2;
  add.u32 %r17, %r15, %r3; mad.lo.u32 %r17, %r17, %r1, %r7;
  mul.wide.u32 %rd5, %r17, 4; add.u64 %rd5, %rd5, %rd2; ld.global.f32 %f3, [%rd5];
  st.shared.f32 [%r12], %f3;
  bar.sync 0;
  mov.u32 %r18, 0; mov.u32 %r19, %r13; mov.u32 %r20, %r14;
PRODUCT:
  ld.shared.f32 %f4, [%r19]; ld.shared.f32 %f5, [%r20]; fma.rn.f32 %f1, %f4, %f5, %f1;
  add.u32 %r19, %r19, 4; add.u32 %r20, %r20, 64; add.u32 %r18, %r18, 1;
  setp.lt.u32 %p1, %r18, 16; @%p1 bra PRODUCT;
  bar.sync 0;
  add.u32 %r15, %r15, 16; setp.lt.u32 %p2, %r15, %r1; @%p2 bra TILE;
  mad.lo.u32 %r21, %r6, %r1, %r7; mul.wide.u32 %rd6, %r21, 4; add.u64 %rd6, %rd6, %rd3;
  st.global.f32 [%rd6], %f1;
  ret;
}
.visible .entry histogram(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .reg .pred %p<3>; .reg .b32 %r<10>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [c]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
  mov.u32 %r6, %nctaid.x; mul.lo.u32 %r6, %r6, %r3;
NEXT:
  setp.ge.u32 %p1, %r5, %r1; @%p1 bra END;
  cvt.u64.u32 %rd3, %r5; add.u64 %rd3, %rd3, %rd1; ld.global.u8 %r7, [%rd3];
  mul.wide.u32 %rd4, %r7, 4; add.u64 %rd4, %rd4, %rd2; red.global.add.u32 [%rd4], 1;
  add.u32 %r5, %r5, %r6; bra NEXT;
END: ret;
}
)";

struct Timing {
  double seconds = 0;
  uint64_t instructions = 0;
  double rate() const { return static_cast<double>(instructions) / seconds; }
};

template <class F>
Timing Best(int repeats, F&& run) {
  Timing best;
  for (int k = 0; k < repeats; ++k) {
    const auto from = std::chrono::steady_clock::now();
    const LaunchResult r = run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
    if (r.code != 0) {
      std::fprintf(stderr, "bench_softgpu: %s\n", r.message.c_str());
      std::exit(1);
    }
    if (k == 0 || took.count() < best.seconds)
      best = {took.count(), r.thread_instructions};
  }
  return best;
}

bool json = false;

// Prints a line; false if a budget is missed.
bool Report(const char* name, unsigned workers, bool record, const Timing& t, double plain_seconds,
            bool budget) {
  const double per_core = t.rate() / workers;
  const double factor = record ? t.seconds / plain_seconds : 1;
  // Atomics of all cores at the same few addresses cost what the host's caches take; merging the
  // record is done by one core, so that its factor is judged for one.
  const bool good = !budget || (per_core >= (record ? kBudget / kRecordFactor : kBudget) &&
                                (!record || workers > 1 || factor <= kRecordFactor));
  if (json)
    std::printf(
        "{\"kernel\":\"%s\",\"workers\":%u,\"record\":%s,\"thread_instructions\":%llu,"
        "\"seconds\":%.6f,\"per_second_and_core\":%.0f,\"record_factor\":%.2f,\"ok\":%s}\n",
        name, workers, record ? "true" : "false", static_cast<unsigned long long>(t.instructions),
        t.seconds, per_core, factor, good ? "true" : "false");
  else
    std::printf("%-12s %2u worker%s %-8s %8.1f M thread instructions/s/core  x%.2f  %s\n", name,
                workers, workers == 1 ? " " : "s", record ? "recorded" : "", per_core / 1e6, factor,
                good ? "" : "BUDGET MISSED");
  return good;
}

bool Kernels(unsigned workers) {
  TestDevice device(workers);
  const std::string problem = device.Load(kKernels);
  if (!problem.empty()) {
    std::fprintf(stderr, "bench_softgpu: %s\n", problem.c_str());
    std::exit(1);
  }
  bool good = true;
  auto measure = [&](const char* name, Dim3 grid, Dim3 block, uint64_t a, uint64_t b, uint64_t c,
                     uint32_t n) {
    double plain = 0;
    for (bool record : {false, true}) {
      device.request.record_accesses = record;
      const Timing t = Best(3, [&] { return device.Run(name, grid, block, a, b, c, n); });
      if (!record)
        plain = t.seconds;
      good &= Report(name, workers, record, t, plain, std::strcmp(name, "histogram") != 0);
    }
  };
  constexpr uint32_t kElements = 1 << 20;
  std::vector<float> x(kElements), y(kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    x[i] = static_cast<float>(i % 1000);
    y[i] = static_cast<float>(i % 77);
  }
  const uint64_t a = device.Upload(x), b = device.Upload(y),
                 c = device.memory.Allocate(kElements * 4);
  measure("vector_add", {kElements / 256}, {256}, a, b, c, kElements);
  const auto sum = device.Download<float>(c, kElements);
  for (uint32_t i = 0; i < kElements; ++i)
    good &= sum[i] == x[i] + y[i];

  constexpr uint32_t kSize = 256;
  measure("gemm", {kSize / 16, kSize / 16}, {16, 16}, a, b, c, kSize);
  const auto product = device.Download<float>(c, kSize * kSize);
  for (uint32_t row = 0; row < kSize; row += 37)
    for (uint32_t column = 0; column < kSize; ++column) {
      float want = 0;
      for (uint32_t k = 0; k < kSize; ++k)
        want = __builtin_fmaf(x[row * kSize + k], y[k * kSize + column], want);
      good &= product[row * kSize + column] == want;
    }

  std::vector<uint8_t> bytes(kElements);
  for (uint32_t i = 0; i < kElements; ++i)
    bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  const uint64_t data = device.Upload(bytes), bins = device.memory.Allocate(1024);
  measure("histogram", {64}, {256}, data, b, bins, kElements);
  if (!good)
    std::fprintf(stderr, "bench_softgpu: a result is wrong or a budget was missed\n");
  return good;
}

// Unrolled copies of one instruction in a loop, a single warp: nanoseconds for each.
void Instructions() {
  struct Case {
    const char* name;
    const char* text;
  };
  for (const Case& c : {Case{"nothing (branch)", ""},
                        Case{"add.u32", "add.u32 %r1, %r2, %r3;"},
                        Case{"add.u64", "add.u64 %rd1, %rd2, %rd3;"},
                        Case{"mad.lo.u32", "mad.lo.u32 %r1, %r2, %r3, %r4;"},
                        Case{"mul.wide.u32", "mul.wide.u32 %rd1, %r2, %r3;"},
                        Case{"fma.f32", "fma.rn.f32 %f1, %f2, %f3, %f1;"},
                        Case{"add.f64", "add.rn.f64 %d1, %d2, %d3;"},
                        Case{"div.f32", "div.rn.f32 %f1, %f2, %f3;"},
                        Case{"sin.f32", "sin.approx.f32 %f1, %f2;"},
                        Case{"ex2.f32", "ex2.approx.f32 %f1, %f2;"},
                        Case{"setp.lt.u32", "setp.lt.u32 %p1, %r2, %r3;"},
                        Case{"setp.lt.f32", "setp.lt.f32 %p1, %f2, %f3;"},
                        Case{"selp.b32", "selp.b32 %r1, %r2, %r3, %p1;"},
                        Case{"cvt.f32.s32", "cvt.rn.f32.s32 %f1, %r2;"},
                        Case{"cvt.f16.f32", "cvt.rn.f16.f32 %h1, %f2;"},
                        Case{"fma.f16x2", "fma.rn.f16x2 %r1, %r2, %r3, %r4;"},
                        Case{"rem.u32", "rem.u32 %r1, %r2, %r9;"},
                        Case{"shfl.bfly", "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;"},
                        Case{"ld.global row", "ld.global.u32 %r1, [%rd9];"},
                        Case{"st.global row", "st.global.u32 [%rd9], %r1;"},
                        Case{"ld.global spread", "ld.global.u32 %r1, [%rd10];"},
                        Case{"ld.shared row", "ld.shared.u32 %r1, [%r8];"},
                        Case{"ld.shared one", "ld.shared.u32 %r1, [tile];"},
                        Case{"red.global spread", "red.global.add.u32 [%rd10], 1;"},
                        Case{"atom.shared", "atom.shared.add.u32 %r1, [%rd11], 1;"},
                        Case{"bar.warp.sync", "bar.warp.sync -1;"},
                        Case{"bar.sync", "bar.sync 0;"}}) {
    std::string body;
    for (int k = 0; k < 64; ++k)
      body += std::string(c.text) + "\n";
    TestDevice device(1);
    const std::string problem = device.Load(
        ".version 8.0\n.target sm_90\n.address_size 64\n.shared .align 16 .b8 tile[4096];\n"
        ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 "
        "%rd<12>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .b16 %h<4>;\n"
        "ld.param.u64 %rd8, [out]; mov.u32 %r7, %tid.x; mad.wide.u32 %rd9, %r7, 4, %rd8;\n"
        "mad.wide.u32 %rd10, %r7, 68, %rd8; mov.u32 %r8, tile; mad.lo.u32 %r8, %r7, 4, %r8;\n"
        "mov.u64 %rd11, tile; mov.u32 %r9, 7; mov.u32 %r2, %r7; mov.u32 %r3, 5; mov.u32 %r4, 3;\n"
        "mov.f32 %f2, 0f3F000000; mov.f32 %f3, 0f3F400000; mov.f32 %f1, 0f00000000;\n"
        "mov.u32 %r10, 0;\nL:\n" +
        body + "add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 2000; @%p3 bra L;\nret;\n}\n");
    if (!problem.empty()) {
      std::fprintf(stderr, "bench_softgpu: %s: %s\n", c.name, problem.c_str());
      std::exit(1);
    }
    const uint64_t out = device.memory.Allocate(1 << 17);
    const Timing t = Best(3, [&] { return device.Run("k", {1}, {32}, out); });
    const double count = *c.text ? 64.0 * 2000 : 3 * 2000;
    std::printf("%-18s %7.2f ns a warp instruction, %8.1f M thread instructions/s\n", c.name,
                t.seconds / count * 1e9, count * 32 / t.seconds / 1e6);
  }
}

}  // namespace

int main(int argc, char** argv) {
  unsigned workers = 0;
  bool instructions = false;
  for (int k = 1; k < argc; ++k) {
    if (std::strcmp(argv[k], "--json") == 0)
      json = true;
    else if (std::strcmp(argv[k], "--instructions") == 0)
      instructions = true;
    else if (std::strcmp(argv[k], "--workers") == 0 && k + 1 < argc)
      workers = static_cast<unsigned>(std::atoi(argv[++k]));
    else {
      std::fprintf(stderr, "usage: bench_softgpu [--json] [--workers N] [--instructions]\n");
      return 2;
    }
  }
  if (instructions) {
    Instructions();
    return 0;
  }
  bool good = true;
  if (workers) {
    good = Kernels(workers);
  } else {
    good = Kernels(1);
    const unsigned all = std::max(1u, std::thread::hardware_concurrency());
    if (all > 1)
      good &= Kernels(all);
  }
  return good ? 0 : 1;
}
