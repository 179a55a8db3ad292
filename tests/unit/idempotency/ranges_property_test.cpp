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
           "\nstatic writes" + text_of(verdict.writes, base) + "\nsurely" +
           text_of(verdict.must_writes, base) + "\nreads " + text_of(r.reads, base) + "\nwrites" +
           text_of(r.writes, base) + "\n" + r.message;
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
  if (r.code == 0) {
    for (const Range& m : verdict.must_writes) {
      const bool seen = std::any_of(r.writes.begin(), r.writes.end(), [&](const ByteRange& w) {
        return w.begin <= m.begin && m.end <= w.end;
      });
      if (!seen) {
        ADD_FAILURE() << "not all of it is written\n" << describe();
        return false;
      }
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
  int axes;               // of grid and block
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
    {"chunks", "oins", 1, 0},
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
    {"histogram", "xin", 1, 100},
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
    unsigned proved = 0, inside = 0, idempotent = 0, surely = 0;
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
        const std::uint64_t memory = one_pool ? buffers[0] + kBytes / 4 * (pointer % 4)
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
      surely += !verdict.must_writes.empty() && verdict.must_writes == verdict.writes;
      idempotent += verdict.kind == VerdictKind::kIdempotent;
    }
    char line[120];
    std::snprintf(line, sizeof line, "%-22s proved %3u of %3u, idempotent %3u, written whole %3u\n",
                  c.kernel, proved, inside, idempotent, surely);
    table += line;
    EXPECT_GE(proved * 100, inside * c.least_proved * 8 / 10) << c.kernel << "\n"
                                                              << to_text(summary);
  }
  std::printf("%s", table.c_str());
}

// --- Kernels that nobody would write ---

// Random code: address arithmetic of all widths, conditions as branches and as predicates, loops
// that count up and down. Every index is cut to the buffer at the end, so that it runs.
class Generator {
 public:
  explicit Generator(std::uint32_t seed) : random_(seed) {}

  std::string kernel() {
    body_.clear();
    words_.clear();
    predicates_.clear();
    registers_ = longs_ = predicate_count_ = labels_ = 0;
    for (const char* s : {"%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x", "%tid.y"}) {
      const std::string r = word();
      line("mov.u32 " + r + ", " + s + ";");
      words_.push_back(r);
    }
    for (const char* p : {"n", "m", "k"}) {
      const std::string r = word();
      line("ld.param.u32 " + r + ", [" + p + "];");
      words_.push_back(r);
    }
    if (chance(70)) {
      const std::string r = word();
      line("mad.lo.s32 " + r + ", " + words_[1] + ", " + words_[2] + ", " + words_[0] + ";");
      words_.push_back(r);
      words_.push_back(r);
    }
    block(0);
    std::string out =
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p, "
        ".param .u64 q, .param .u32 n, .param .u32 m, .param .u32 k)\n{\n.reg .b32 "
        "%r<" +
        std::to_string(registers_ + 1) + ">;\n.reg .b64 %rd<" + std::to_string(longs_ + 4) +
        ">;\n.reg .pred %p<" + std::to_string(predicate_count_ + 1) +
        ">;\nld.param.u64 %rd1, [p];\nld.param.u64 %rd2, [q];\n";
    return out + body_ + "ret;\n}\n";
  }
  std::uint32_t number(std::uint32_t below) {
    return static_cast<std::uint32_t>(random_() % below);
  }
  std::uint32_t argument() {
    static constexpr std::uint32_t kOdd[] = {0,          1,          2,          3,     7,
                                             8,          31,         100,        255,   0x7FFFFFFF,
                                             0x80000000, 0xFFFFFFFF, 0xFFFFFFF0, 65536, 0x40000001};
    return chance(60) ? number(70) : kOdd[number(std::size(kOdd))];
  }

 private:
  bool chance(std::uint32_t percent) { return number(100) < percent; }
  void line(const std::string& s) { body_ += s + "\n"; }
  std::string word() { return "%r" + std::to_string(++registers_); }
  std::string wide() { return "%rd" + std::to_string(++longs_ + 2); }
  std::string predicate() { return "%p" + std::to_string(++predicate_count_); }
  std::string any() { return words_[number(static_cast<std::uint32_t>(words_.size()))]; }
  std::string any_or_number() {
    return chance(65) ? any() : std::to_string(static_cast<std::int32_t>(argument()));
  }

  void arithmetic() {
    static constexpr const char* kTwo[] = {
        "add.s32", "sub.s32",    "mul.lo.s32", "add.u32",    "and.b32", "or.b32",  "xor.b32",
        "min.s32", "max.s32",    "min.u32",    "max.u32",    "div.u32", "rem.u32", "div.s32",
        "rem.s32", "mul.hi.u32", "mul.hi.s32", "mul.lo.u32", "sub.u32", "add.s32"};
    const std::string r = word();
    const std::uint32_t what = number(29);
    if (what < 20) {
      const std::string op = kTwo[what];
      // Division by zero gives what the device likes.
      const bool divides = op.starts_with("div") || op.starts_with("rem");
      const std::string b = divides ? std::to_string(1 + number(20)) : any_or_number();
      line(op + " " + r + ", " + any() + ", " + b + ";");
    } else if (what < 22) {
      line(std::string(chance(50) ? "shl.b32 " : "shr.u32 ") + r + ", " + any() + ", " +
           std::to_string(number(34)) + ";");
    } else if (what == 22) {
      line("shr.s32 " + r + ", " + any() + ", " + std::to_string(number(33)) + ";");
    } else if (what == 23) {
      line("and.b32 " + r + ", " + any() + ", " + std::to_string((1u << number(9)) - 1) + ";");
    } else if (what == 24) {
      line("mad.lo.s32 " + r + ", " + any() + ", " + any_or_number() + ", " + any() + ";");
    } else if (what == 25) {
      line("selp.b32 " + r + ", " + any_or_number() + ", " + any_or_number() + ", " + condition() +
           ";");
    } else if (what == 26) {
      line(std::string(chance(50)   ? "neg.s32 "
                       : chance(50) ? "not.b32 "
                                    : "abs.s32 ") +
           r + ", " + any() + ";");
    } else if (what == 27) {
      const std::string d = wide();
      line(std::string(chance(50) ? "mul.wide.s32 " : "mul.wide.u32 ") + d + ", " + any() + ", " +
           any_or_number() + ";");
      if (chance(40))
        line("shr.u64 " + d + ", " + d + ", " + std::to_string(number(40)) + ";");
      line("cvt.u32.u64 " + r + ", " + d + ";");
    } else {
      line(std::string(chance(50) ? "cvt.u32.u8 " : "cvt.s32.s8 ") + r + ", " + any() + ";");
    }
    words_.push_back(r);
  }

  std::string condition() {
    if (!predicates_.empty() && chance(20))
      return predicates_[number(static_cast<std::uint32_t>(predicates_.size()))];
    static constexpr const char* kCompare[] = {"lt.s32", "le.s32", "gt.s32", "ge.s32", "eq.s32",
                                               "ne.s32", "lt.u32", "le.u32", "gt.u32", "ge.u32"};
    const std::string p = predicate();
    const std::string compare = kCompare[number(10)];
    if (!predicates_.empty() && chance(30)) {
      const std::string other = predicates_[number(static_cast<std::uint32_t>(predicates_.size()))];
      line("setp." + compare.substr(0, 3) + (chance(50) ? "and" : "or") + compare.substr(2) + " " +
           p + ", " + any() + ", " + any_or_number() + ", " + other + ";");
    } else if (chance(20)) {
      const std::string a = wide(), b = wide();
      const bool is_signed = chance(50);
      line(std::string(is_signed ? "cvt.s64.s32 " : "cvt.u64.u32 ") + a + ", " + any() + ";");
      line("cvt.s64.s32 " + b + ", " + any() + ";");
      line("setp." + compare.substr(0, 3) + (is_signed ? "s64 " : "u64 ") + p + ", " + a + ", " +
           b + ";");
    } else {
      line("setp." + compare + " " + p + ", " + any() + ", " + any_or_number() + ";");
    }
    predicates_.push_back(p);
    return p;
  }

  void access() {
    // To less than 4096 elements.
    std::string index = any();
    const std::uint32_t how = number(5);
    const std::string cut = word();
    if (how == 0) {
      line("and.b32 " + cut + ", " + index + ", 4095;");
    } else if (how == 1) {
      line("min.u32 " + cut + ", " + index + ", 4095;");
    } else if (how == 2) {
      line("rem.u32 " + cut + ", " + index + ", 4093;");
    } else if (how == 3) {
      line("max.s32 " + cut + ", " + index + ", 0;");
      line("min.s32 " + cut + ", " + cut + ", 4095;");
    }
    std::string guard;
    if (how == 4) {
      const std::string p = predicate();
      line("setp.lt.u32 " + p + ", " + index + ", 4096;");
      guard = "@" + p + " ";
      line("mov.u32 " + cut + ", " + index + ";");
    } else if (chance(20)) {
      guard = (chance(50) ? "@" : "@!") + condition() + " ";
    }
    const std::string base = chance(50) ? "%rd1" : "%rd2";
    const std::string d = wide();
    switch (number(4)) {
      case 0:
        line("mad.wide.u32 " + d + ", " + cut + ", 4, " + base + ";");
        break;
      case 1:
        line("cvt.u64.u32 " + d + ", " + cut + ";");
        line("shl.b64 " + d + ", " + d + ", 2;");
        line("add.s64 " + d + ", " + base + ", " + d + ";");
        break;
      case 2: {
        // In halves, as machine code has it.
        const std::string lo = word(), hi = word(), offset = word();
        line("mov.b64 {" + lo + ", " + hi + "}, " + base + ";");
        line("shl.b32 " + offset + ", " + cut + ", 2;");
        line("add.cc.u32 " + lo + ", " + lo + ", " + offset + ";");
        line("addc.u32 " + hi + ", " + hi + ", 0;");
        line("mov.b64 " + d + ", {" + lo + ", " + hi + "};");
        break;
      }
      default:
        line("mul.wide.s32 " + d + ", " + cut + ", 4;");
        line("add.s64 " + d + ", " + d + ", " + base + ";");
    }
    const std::string v = word();
    if (chance(55)) {
      line(guard + "ld.global.u32 " + v + ", [" + d + "];");
      if (guard.empty() && chance(30))
        words_.push_back(v);
    } else {
      line(guard + "st.global.u32 [" + d + "], " + any() + ";");
    }
  }

  void block(int depth) {
    const std::uint32_t count = 3 + number(6);
    for (std::uint32_t s = 0; s < count; ++s) {
      const std::uint32_t what = number(100);
      if (what < 50 || depth > 2) {
        arithmetic();
      } else if (what < 72) {
        access();
      } else if (what < 80) {
        // Some words change where a condition holds.
        const std::string p = condition(), r = any();
        if (!is_source(r))
          line((chance(50) ? "@" : "@!") + p + " add.u32 " + r + ", " + r + ", " + any_or_number() +
               ";");
      } else if (what < 90) {
        const std::string p = condition(), skip = label();
        line((chance(50) ? "@" : "@!") + p + " bra " + skip + ";");
        scope(depth);
        line(skip + ":");
      } else {
        loop(depth);
      }
    }
    access();
  }

  // What is first written in there is not known to be written behind.
  void scope(int depth) {
    const auto words = words_.size(), predicates = predicates_.size();
    // One older register may be written again: a phi where the ways meet.
    const std::string r = any();
    if (!is_source(r) && chance(50))
      line("mov.u32 " + r + ", " + any_or_number() + ";");
    block(depth + 1);
    words_.resize(words);
    predicates_.resize(predicates);
  }

  void loop(int depth) {
    const std::string i = word(), again = label(), out = label(), count = word();
    const bool up = chance(60);
    const std::string start = any_or_number(), limit = any_or_number();
    const std::string step = chance(60) ? std::to_string(1 + number(5)) : any();
    line("mov.u32 " + i + ", " + start + ";");
    line("mov.u32 " + count + ", 0;");
    static constexpr const char* kUp[] = {"lt.s32", "lt.u32", "le.s32", "ne.s32", "le.u32"};
    static constexpr const char* kDown[] = {"gt.s32", "gt.u32", "ge.s32", "ne.s32", "ge.u32"};
    const std::string compare = (up ? kUp : kDown)[number(5)];
    const bool first_tested = chance(60);
    const std::string pointer = chance(40) ? wide() : "";
    if (!pointer.empty())
      line("mov.u64 " + pointer + ", %rd1;");
    line(again + ":");
    const std::string p = predicate();
    if (first_tested) {
      line("setp." + compare + " " + p + ", " + i + ", " + limit + ";");
      line("@!" + p + " bra " + out + ";");
    }
    const auto words = words_.size(), predicates = predicates_.size();
    words_.push_back(i);
    words_.push_back(i);
    sources_.push_back(i);
    if (!pointer.empty()) {
      // Far enough for as often as it goes round below.
      const std::string v = word();
      line("ld.global.u32 " + v + ", [" + pointer + "];");
      line("add.s64 " + pointer + ", " + pointer + ", 8;");
    }
    block(depth + 1);
    words_.resize(words);
    predicates_.resize(predicates);
    line(std::string(up ? "add" : "sub") + ".u32 " + i + ", " + i + ", " + step + ";");
    // Not too often, whatever else the condition says.
    const std::string enough = predicate();
    line("add.u32 " + count + ", " + count + ", 1;");
    line("setp.gt.u32 " + enough + ", " + count + ", " + std::to_string(20) + ";");
    line("@" + enough + " bra " + out + ";");
    if (!first_tested) {
      line("setp." + compare + " " + p + ", " + i + ", " + limit + ";");
      line("@" + p + " bra " + again + ";");
    } else {
      line("bra " + again + ";");
    }
    line(out + ":");
    words_.push_back(i);
    words_.push_back(i);
  }

  std::string label() { return "L" + std::to_string(++labels_); }
  // Loop counters and what the kernel starts from are written nowhere else.
  bool is_source(const std::string& r) const {
    return std::find(sources_.begin(), sources_.end(), r) != sources_.end();
  }

  std::mt19937 random_;
  std::string body_;
  std::vector<std::string> words_, predicates_, sources_;
  unsigned registers_ = 0, longs_ = 0, predicate_count_ = 0, labels_ = 0;
};

TEST(RangesProperty, RandomCodeStaysInsideWhatIsSaidOfIt) {
  const char* const from = std::getenv("GPURECOVER_TEST_SEED");
  const char* const many = std::getenv("GPURECOVER_TEST_KERNELS");
  const std::uint32_t first = from != nullptr ? static_cast<std::uint32_t>(std::atoll(from)) : 1;
  const std::uint32_t kernels =
      many != nullptr ? static_cast<std::uint32_t>(std::atoll(many)) : 400;
  std::printf("seeds %u to %u\n", first, first + kernels - 1);
  unsigned launches = 0, proved = 0;
  Verdict verdict;
  for (std::uint32_t seed = first; seed < first + kernels; ++seed) {
    Generator generator(seed);
    const std::string text = generator.kernel();
    TestDevice device(1);
    const auto module = image::ptx::parse(text);
    ASSERT_TRUE(module) << module.error().message("kernel") << text;
    ASSERT_EQ(device.Load(text), "") << text;
    MemoryMap map;
    std::uint64_t buffers[2];
    for (std::uint64_t& b : buffers) {
      b = device.memory.Allocate(4096 * 4);
      Allocation a;
      a.address = b;
      a.size = 4096 * 4;
      map.insert(a);
    }
    const KernelSummary summary = summarize(*module, module->functions.back());
    for (int run = 0; run < 8; ++run) {
      Launch launch;
      launch.dimensions = {{1 + generator.number(4), 1, 1},
                           {1 + generator.number(12), 1 + generator.number(3), 1},
                           0};
      const std::uint32_t n = generator.argument(), m = generator.argument(),
                          k = generator.argument();
      launch.arguments.resize(28);
      std::memcpy(launch.arguments.data(), buffers, 16);
      std::memcpy(launch.arguments.data() + 16, &n, 4);
      std::memcpy(launch.arguments.data() + 20, &m, 4);
      std::memcpy(launch.arguments.data() + 24, &k, 4);
      for (const std::uint64_t b : buffers)
        std::memset(reinterpret_cast<void*>(b), static_cast<int>(generator.number(256)), 4096 * 4);
      ++launches;
      if (!check(device, summary, launch, map, buffers[0], verdict)) {
        FAIL() << "seed " << seed << "\n" << text;
      }
      proved += verdict.all_in_bounds;
    }
  }
  std::printf("%u launches, %u proved in bounds\n", launches, proved);
  EXPECT_GT(proved * 4, launches);
}

}  // namespace
}  // namespace gpurecover::idempotency
