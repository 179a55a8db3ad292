// SPDX-License-Identifier: Apache-2.0
// Whatever changes in a parameter block: as long as what is said to matter of it is the same, so is
// the verdict.
#include "idempotency/argument_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "idempotency/verdict.h"
#include "image/ptx_parser.h"

namespace gpurecover::idempotency {
namespace {

constexpr std::uint64_t kMemory = 0x7f00'0000'0000;
constexpr std::uint64_t kSize = 1 << 16;
constexpr int kAllocations = 6;

class NoSymbols : public SymbolRanges {
 public:
  std::optional<Range> find(std::string_view) const override { return std::nullopt; }
};

bool alike(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Range& x, const Range& y) {
    return x.begin == y.begin && x.end == y.end && x.exact == y.exact;
  });
}
bool alike(const Verdict& a, const Verdict& b) {
  return a.kind == b.kind && a.trust == b.trust && a.reason == b.reason &&
         alike(a.reads, b.reads) && alike(a.writes, b.writes) && alike(a.covered, b.covered) &&
         alike(a.must_writes, b.must_writes) && alike(a.clobbered, b.clobbered) &&
         a.all_in_bounds == b.all_in_bounds && a.ranges_complete == b.ranges_complete;
}

TEST(ArgumentBytesTest, OtherBytesMakeNoDifference) {
  constexpr unsigned kSeed = 20261130;
  std::printf("seed %u\n", kSeed);
  std::mt19937_64 random(kSeed);
  MemoryMap map;
  for (int i = 0; i < kAllocations; ++i) {
    Allocation a;
    a.address = kMemory + 2 * kSize * static_cast<std::uint64_t>(i);
    a.size = kSize;
    map.insert(a);
  }
  const NoSymbols symbols;
  int unused = 0, matters = 0;
  for (const char* file : {"kernels_75.ptx", "kernels_90.ptx", "sass_80.ptx", "sass_90.ptx"}) {
    std::ifstream in(std::string(BUILT_DIR "/") + file, std::ios::binary);
    if (!in) {
      continue;  // made by nvcc, which is not here
    }
    std::stringstream text;
    text << in.rdbuf();
    const auto module = image::ptx::parse(text.str());
    ASSERT_TRUE(module) << module.error().message(file);
    for (const auto& function : module->functions) {
      if (!function.entry) {
        continue;
      }
      const KernelSummary summary = summarize(*module, function);
      const auto pieces = argument_bytes(summary);
      for (int round = 0; round < 20; ++round) {
        std::vector<std::byte> args(summary.param_bytes);
        for (std::size_t at = 0; at + 4 <= args.size(); at += 4) {
          const auto small = static_cast<std::uint32_t>(random() % 300);
          std::memcpy(args.data() + at, &small, 4);
        }
        for (std::size_t at = 0; at + 8 <= args.size(); at += 8) {
          if (random() % 4 != 0) {
            const std::uint64_t pointer =
                kMemory + 2 * kSize * (random() % kAllocations) + random() % 64 * 16;
            std::memcpy(args.data() + at, &pointer, 8);
          }
        }
        const LaunchDimensions dimensions{{1 + static_cast<std::uint32_t>(random() % 4), 1, 1},
                                          {32, 1, 1},
                                          static_cast<std::uint32_t>(random() % 2 * 1024)};
        const Verdict before = decide(summary, args, dimensions, map, symbols);
        std::vector<std::byte> key, other_key;
        put_together(pieces, args, map, key);
        for (int change = 0; change < 30 && !args.empty(); ++change) {
          std::vector<std::byte> others = args;
          const std::size_t at = random() % others.size();
          std::uint64_t junk = 0x7ffc'0000'0000 + random() % (1 << 20);
          std::memcpy(others.data() + at, &junk, std::min<std::size_t>(8, others.size() - at));
          put_together(pieces, others, map, other_key);
          const bool same = alike(before, decide(summary, others, dimensions, map, symbols));
          if (other_key == key) {
            unused += others != args;
            EXPECT_TRUE(same) << file << ": " << function.name << " at " << at;
          }
          matters += !same;
        }
      }
    }
  }
  EXPECT_GT(unused, 100) << "hardly any kernel has bytes that are not looked at";
  EXPECT_GT(matters, 100) << "arguments hardly matter: this test says nothing";
}

}  // namespace
}  // namespace gpurecover::idempotency
