// SPDX-License-Identifier: Apache-2.0
// What the analysis says of a launch, against what softgpu sees it do: every byte that is read or
// written lies in the ranges given, whatever the arguments, the dimensions and the code.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "idempotency/verdict.h"
#include "image/ptx_parser.h"
#include "tests/unit/softgpu/interp/interp_device.h"

namespace gpurecover::idempotency {
namespace {

using softgpu::ByteRange;
using softgpu::LaunchResult;
using softgpu::testing::TestDevice;

class Symbols : public SymbolRanges {
 public:
  std::optional<Range> find(std::string_view) const override { return std::nullopt; }
};

bool inside(const ByteRange& r, std::span<const std::vector<Range>* const> lists) {
  // The lists are sorted and merged, but a byte may be in either of them.
  std::uint64_t at = r.begin;
  for (bool moved = true; moved && at < r.end;) {
    moved = false;
    for (const std::vector<Range>* list : lists) {
      for (const Range& s : *list) {
        if (s.begin <= at && at < s.end) {
          at = s.end;
          moved = true;
        }
      }
    }
  }
  return at >= r.end;
}
std::string text_of(const std::vector<ByteRange>& ranges, std::uint64_t base) {
  std::string out;
  for (const ByteRange& r : ranges) {
    out += " [" + std::to_string(static_cast<std::int64_t>(r.begin - base)) + ", " +
           std::to_string(static_cast<std::int64_t>(r.end - base)) + ")";
    if (out.size() > 600)
      return out + " …";
  }
  return out;
}
std::string text_of(const std::vector<Range>& ranges, std::uint64_t base) {
  std::string out;
  for (const Range& r : ranges) {
    out += std::string(r.exact ? " [" : " ~[") +
           std::to_string(static_cast<std::int64_t>(r.begin - base)) + ", " +
           std::to_string(static_cast<std::int64_t>(r.end - base)) + ")";
  }
  return out;
}

struct Launch {
  std::vector<std::byte> arguments;
  LaunchDimensions dimensions;
};

// Runs the launch and holds the verdict against it. Returns false if something was found.
bool check(TestDevice& device, const KernelSummary& summary, const Launch& launch,
           const MemoryMap& map, std::uint64_t base, Verdict& verdict) {
  decide(summary, launch.arguments, launch.dimensions, map, Symbols(), verdict);
  const auto& d = launch.dimensions;
  device.request.module = &device.instance;
  device.request.kernel = device.Kernel(summary.name);
  device.request.grid = {d.grid[0], d.grid[1], d.grid[2]};
  device.request.block = {d.block[0], d.block[1], d.block[2]};
  device.request.record_accesses = true;
  device.request.step_budget = 4'000'000;
  const std::span<const std::byte> args = launch.arguments;
  device.request.parameters = {reinterpret_cast<const uint8_t*>(args.data()), args.size()};
  const LaunchResult r = device.executor->Run(device.request);
  auto describe = [&] {
    std::string s = to_text(summary) + "grid " + std::to_string(d.grid[0]) + "," +
                    std::to_string(d.grid[1]) + "," + std::to_string(d.grid[2]) + " block " +
                    std::to_string(d.block[0]) + "," + std::to_string(d.block[1]) + "," +
                    std::to_string(d.block[2]) + "\narguments";
    for (std::size_t k = 0; k + 4 <= args.size(); k += 4) {
      std::uint32_t w = 0;
      std::memcpy(&w, args.data() + k, 4);
      s += " " + std::to_string(w);
    }
    return s + "\nverdict " + std::string(name_of(verdict.kind)) + " " +
           std::string(name_of(verdict.trust)) + " " + verdict.reason + "\nstatic reads" +
           text_of(verdict.reads, base) + "\nstatic covered" + text_of(verdict.covered, base) +
           "\nstatic writes" + text_of(verdict.writes, base) + "\nreads " +
           text_of(r.reads, base) + "\nwrites" + text_of(r.writes, base) + "\n" + r.message;
  };
  if (verdict.all_in_bounds && (r.code == softgpu::kIllegalAddress || r.stray_accesses != 0)) {
    ADD_FAILURE() << "proved in bounds, but it went astray\n" << describe();
    return false;
  }
  // What goes astray is outside the assumption that bounded ranges rest on.
  if ((r.code != 0 && r.code != softgpu::kLaunchTimeout) || r.stray_accesses != 0 ||
      verdict.kind == VerdictKind::kUnknown) {
    return true;
  }
  for (const ByteRange& range : r.reads) {
    const std::vector<Range>* lists[] = {&verdict.reads, &verdict.covered};
    if (!inside(range, lists)) {
      ADD_FAILURE() << "reads outside\n" << describe();
      return false;
    }
  }
  for (const ByteRange& range : r.writes) {
    const std::vector<Range>* lists[] = {&verdict.writes};
    if (!inside(range, lists)) {
      ADD_FAILURE() << "writes outside\n" << describe();
      return false;
    }
  }
  if (verdict.kind == VerdictKind::kIdempotent) {
    for (const ByteRange& w : r.writes) {
      for (const ByteRange& x : r.reads) {
        const ByteRange both{std::max(w.begin, x.begin), std::min(w.end, x.end)};
        const std::vector<Range>* lists[] = {&verdict.covered};
        if (both.begin < both.end && !inside(both, lists)) {
          ADD_FAILURE() << "idempotent, but reads what it writes\n" << describe();
          return false;
        }
      }
    }
  }
  return true;
}

// --- Kernels in the shapes that programs have ---

struct Case {
  const char* kernel;
  // Per parameter: o output, i input, x both (pointers); n a count; s a small number, 1 and up;
  // z any small number; f a float; l a 64-bit number; V a View.
  const char* signature;
  int axes;              // of grid and block
  unsigned least_proved;  // percent of the launches that must be proved, of those that stay inside
};

// clang-format off
const Case kCases[] = {
    {"vector_add", "oiin", 1, 100},
    {"vector_add_signed", "oiin", 1, 100},
    {"grid_stride", "oifn", 1, 100},
    {"grid_stride_signed", "oifn", 1, 100},
    {"grid_stride_wide", "oifl", 1, 100},
    {"chunk_of_four", "oin", 1, 100},
    {"quads", "oin", 1, 100},
    {"transpose", "oiss", 2, 100},
    {"stencil_clamped", "oin", 1, 100},
    {"heat", "oiss", 2, 100},
    {"volume", "oisss", 3, 100},
    {"pitched", "VV", 2, 100},
    {"row_loop", "ois", 1, 100},
    {"pointer_loop", "ois", 1, 100},
    {"reversed", "oin", 1, 100},
    {"even_to_odd", "xn", 1, 100},
    {"left_to_right", "xsss", 2, 30},
    {"gather", "oijn", 1, 0},
    {"by_quotient", "oiss", 1, 30},
    {"by_quotient_unsigned", "oisn", 1, 100},
    {"chunks", "oins", 1, 100},
    {"matrix_product", "oiis", 2, 100},
    {"accumulate", "oins", 1, 100},
    {"shifted", "oinl", 1, 100},
    {"downwards", "oin", 1, 100},
    {"bytes", "oiin", 1, 100},
    {"one_of_two", "ooinz", 1, 50},
    {"inner_points", "oin", 1, 100},
    {"increments", "oinss", 1, 100},
    {"until_found", "oin", 1, 90},
    {"halving", "oin", 1, 0},
    {"nested", "oiss", 1, 100},
    {"powers", "oinz", 1, 80},
    {"tiled_rows", "oiss", 1, 100},
    {"histogram", "xin", 1, 0},
    {"first_thread", "ois", 1, 100},
};
// clang-format on

TEST(RangesProperty, ShapesStayInsideWhatIsSaidOfThem) {
  std::ifstream in(SHAPES_PTX);
  ASSERT_TRUE(in);
  std::stringstream text;
  text << in.rdbuf();
  const auto module = image::ptx::parse(text.str());
  ASSERT_TRUE(module);
  TestDevice device(2);
  ASSERT_EQ(device.Load(text.str()), "");
  constexpr std::uint64_t kBytes = 24 << 10;
  constexpr unsigned kBuffers = 4, kLaunches = 60;
  MemoryMap map;
  std::uint64_t buffers[kBuffers];
  for (std::uint64_t& b : buffers) {
    b = device.memory.Allocate(kBytes);
    Allocation a;
    a.address = b;
    a.size = kBytes;
    map.insert(a);
    for (std::uint64_t k = 0; k < kBytes / 4; ++k)
      reinterpret_cast<std::uint32_t*>(b)[k] = static_cast<std::uint32_t>(k * 37 % 1000);
  }
  constexpr unsigned kSeed = 20240611;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  auto pick = [&](std::uint32_t low, std::uint32_t high) -> std::uint32_t {
    return static_cast<std::uint32_t>(low + random() % (high - low + 1));
  };
  Verdict verdict;
  std::string table;
  for (const Case& c : kCases) {
    const image::ptx::Function* f = module->find_function(c.kernel);
    ASSERT_NE(f, nullptr) << c.kernel;
    const KernelSummary summary = summarize(*module, *f);
    unsigned proved = 0, inside = 0, idempotent = 0;
    for (unsigned run = 0; run < kLaunches; ++run) {
      Launch launch;
      for (int axis = 0; axis < 3; ++axis) {
        launch.dimensions.block[axis] =
            axis < c.axes ? (c.axes == 1 ? pick(1, 40) : pick(1, 6)) : 1;
        launch.dimensions.grid[axis] = axis < c.axes ? pick(1, c.axes == 1 ? 8 : 4) : 1;
      }
      launch.arguments.resize(f->param_bytes);
      // All pointers into one allocation, side by side, or each into one of its own.
      const bool one_pool = run % 2 == 1;
      unsigned pointer = 0;
      std::size_t at = 0;
      for (const char* s = c.signature; *s != 0; ++s, ++at) {
        std::byte* const to = launch.arguments.data() + f->params[at].offset;
        auto put = [&](auto value, std::size_t offset = 0) {
          std::memcpy(to + offset, &value, sizeof value);
        };
        const std::uint64_t memory = one_pool
                                         ? buffers[0] + kBytes / 4 * (pointer % 4)
                                         : buffers[pointer % kBuffers] + 16 * pick(0, 3);
        switch (*s) {
          case 'o':
          case 'i':
          case 'x':
          case 'j':
            put(memory);
            ++pointer;
            break;
          case 'n':
            put(run % 16 == 15 ? pick(1000, 8000) : pick(0, 400));
            break;
          case 's':
            put(pick(1, 20));
            break;
          case 'z':
            put(pick(0, 6));
            break;
          case 'f':
            put(1.5f);
            break;
          case 'l':
            put(std::uint64_t{pick(0, 600)});
            break;
          case 'V':
            put(memory);
            put(pick(1, 20), 8);
            put(pick(1, 20), 12);
            put(pick(20, 30), 16);
            ++pointer;
            break;
        }
      }
      if (!check(device, summary, launch, map, buffers[0], verdict))
        break;
      inside += verdict.kind != VerdictKind::kUnknown;
      proved += verdict.all_in_bounds;
      idempotent += verdict.kind == VerdictKind::kIdempotent;
    }
    char line[120];
    std::snprintf(line, sizeof line, "%-22s proved %3u of %3u, idempotent %3u\n", c.kernel, proved,
                  inside, idempotent);
    table += line;
    EXPECT_GE(proved * 100, inside * c.least_proved * 8 / 10) << c.kernel << "\n" << to_text(summary);
  }
  std::printf("%s", table.c_str());
}

}  // namespace
}  // namespace gpurecover::idempotency
