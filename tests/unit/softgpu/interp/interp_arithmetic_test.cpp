// SPDX-License-Identifier: Apache-2.0
// Each arithmetic instruction over the edge values of its types, against a reference that is
// written another way (wide integers, long arithmetic, exact rationals by __float128).
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <functional>

#include "tests/unit/softgpu/interp/gpu_oracle.h"
#include "tests/unit/softgpu/interp/interp_device.h"

namespace gpurecover::softgpu::testing {
namespace {

using i128 = __int128;
using u128 = unsigned __int128;

struct TypeInfo {
  const char* name;
  const char* reg;  // type of the register that holds it
  const char* mem;  // type that loads and stores it
  int bits;
};
const TypeInfo kTypes[] = {{"u8", "u16", "u8", 8},
                           {"s8", "s16", "s8", 8},
                           {"u16", "u16", "u16", 16},
                           {"s16", "s16", "s16", 16},
                           {"b16", "b16", "b16", 16},
                           {"u32", "u32", "u32", 32},
                           {"s32", "s32", "s32", 32},
                           {"b32", "b32", "b32", 32},
                           {"u64", "u64", "u64", 64},
                           {"s64", "s64", "s64", 64},
                           {"b64", "b64", "b64", 64},
                           {"f32", "f32", "f32", 32},
                           {"f64", "f64", "f64", 64},
                           {"f16", "b16", "b16", 16},
                           {"bf16", "b16", "b16", 16},
                           {"f16x2", "b32", "b32", 32},
                           {"bf16x2", "b32", "b32", 32},
                           {"u16x2", "b32", "b32", 32},
                           {"s16x2", "b32", "b32", 32},
                           // Positions and lengths: what is above 255 is not defined.
                           {"len", "u32", "u32", 8}};
const TypeInfo& Info(const std::string& name) {
  for (const TypeInfo& t : kTypes)
    if (name == t.name)
      return t;
  ADD_FAILURE() << "no type " << name;
  return kTypes[0];
}
uint64_t Mask(int bits) {
  return bits == 64 ? ~0ull : (1ull << bits) - 1;
}
int64_t Signed(uint64_t v, int bits) {
  return static_cast<int64_t>(v << (64 - bits)) >> (64 - bits);
}

std::vector<uint64_t> Values(const std::string& type) {
  const int bits = Info(type).bits;
  if (type == "f32") {
    std::vector<uint64_t> v;
    for (float f : {0.0f,     1.0f,     1.5f,        2.5f,        3.5f,          0.5f,
                    0.1f,     3.14159f, 1e10f,       1e-10f,      3.4e38f,       1.2e-38f,
                    1e-45f,   5e-39f,   16777216.0f, 16777217.0f, 2147483648.0f, 4294967296.0f,
                    65504.0f, 65520.0f, 6e-8f,       100.25f,     INFINITY}) {
      v.push_back(std::bit_cast<uint32_t>(f));
      v.push_back(std::bit_cast<uint32_t>(-f));
    }
    v.push_back(0x7FC00000);
    v.push_back(0xFF812345);
    v.push_back(0x3F7FFFFF);
    return v;
  }
  if (type == "f64") {
    std::vector<uint64_t> v;
    for (double f : {0.0, 1.0, 1.5, 2.5, 0.1, 1e300, 1e-300, 5e-324, 2.2250738585072014e-308,
                     1.0000000596046448, 9007199254740993.0, 9.3e18, 1e38, 3.5e38, 65519.99,
                     1.0 + 1.0 / 2048, 1.0 + 1.0 / 2048 + 1e-12, static_cast<double>(INFINITY)}) {
      v.push_back(std::bit_cast<uint64_t>(f));
      v.push_back(std::bit_cast<uint64_t>(-f));
    }
    return v;
  }
  if (type == "f16" || type == "f16x2") {
    std::vector<uint64_t> half{0x0000, 0x8000, 0x3C00, 0xBC00, 0x3E00, 0x0001, 0x8001, 0x03FF,
                               0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x3555,
                               0x5640, 0xD640, 0x1234, 0x2E66, 0x3BFF, 0x4001};
    if (type == "f16")
      return half;
    std::vector<uint64_t> v;
    for (size_t k = 0; k < half.size(); ++k)
      v.push_back(half[k] | half[(k * 7 + 3) % half.size()] << 16);
    return v;
  }
  if (type == "bf16" || type == "bf16x2") {
    std::vector<uint64_t> half{0x0000, 0x8000, 0x3F80, 0xBF80, 0x3FC0, 0x0001, 0x8001,
                               0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0,
                               0x3DCD, 0x4049, 0x3F81, 0x3B80, 0x0D01, 0x4380};
    if (type == "bf16")
      return half;
    std::vector<uint64_t> v;
    for (size_t k = 0; k < half.size(); ++k)
      v.push_back(half[k] | half[(k * 7 + 3) % half.size()] << 16);
    return v;
  }
  std::vector<uint64_t> v{0,
                          1,
                          2,
                          3,
                          5,
                          7,
                          31,
                          32,
                          33,
                          63,
                          64,
                          255,
                          256,
                          0x55,
                          0xAA,
                          0x1234567890ABCDEF,
                          0x8000000080008080,
                          0x7FFFFFFF7FFF7F7F,
                          0xFFFFFFFFFFFFFFFF,
                          0xFFFFFFFFFFFFFFFE,
                          0x8000000000000000,
                          0x7FFFFFFFFFFFFFFF,
                          0x80000000,
                          0x7FFFFFFF,
                          0x8000,
                          0x7FFF,
                          0x80,
                          0x7F,
                          0xFFFF0000,
                          0x00FF00FF00FF00FF,
                          0xDEADBEEF};
  for (uint64_t& x : v)
    x &= Mask(bits);
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
  return v;
}

std::string Hex(uint64_t v) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

// `text` has $d, $a, $b, $c for the operands. Types: destination, then sources.
using Reference = std::function<uint64_t(uint64_t, uint64_t, uint64_t)>;
void Check(const std::string& text, const std::vector<std::string>& types,
           const Reference& reference, const std::string& before = "") {
  SCOPED_TRACE(text);
  std::string body = text;
  std::string ptx =
      ".version 8.0\n.target sm_90\n.address_size 64\n"
      ".visible .entry k(.param .u64 pd, .param .u64 pa, .param .u64 pb,"
      " .param .u64 pc, .param .u32 pn)\n{\n"
      ".reg .pred %p<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .b16 %h<9>;\n";
  const char* names[4] = {"%d", "%a", "%b", "%c"};
  for (size_t k = 0; k < types.size(); ++k)
    ptx += std::string(".reg .") + Info(types[k]).reg + " " + names[k] + ";\n";
  ptx +=
      "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;\n"
      "mad.lo.s32 %r0, %r0, %r1, %r2; ld.param.u32 %r3, [pn]; setp.ge.u32 %p0, %r0, %r3;\n"
      "@%p0 ret;\n cvt.u64.u32 %rd0, %r0; shl.b64 %rd0, %rd0, 3;\n";
  const char* params[4] = {"pd", "pa", "pb", "pc"};
  for (size_t k = 1; k < types.size(); ++k)
    ptx += std::string("ld.param.u64 %rd1, [") + params[k] +
           "]; add.u64 %rd1, %rd1, %rd0; ld.global." + Info(types[k]).mem + " " + names[k] +
           ", [%rd1];\n";
  ptx += before + "\n";
  for (size_t at; (at = body.find('$')) != std::string::npos;)
    body.replace(at, 1, "%");
  ptx += body + "\nld.param.u64 %rd1, [pd]; add.u64 %rd1, %rd1, %rd0; st.global." +
         std::string(Info(types[0]).mem) + " [%rd1], %d;\nret;\n}\n";

  TestDevice device(1);
  ASSERT_EQ(device.Load(ptx), "") << ptx;
  std::vector<uint64_t> a, b, c;
  const std::vector<uint64_t> none{0};
  const auto va = types.size() > 1 ? Values(types[1]) : none;
  const auto vb = types.size() > 2 ? Values(types[2]) : none;
  const auto vc = types.size() > 3 ? Values(types[3]) : none;
  for (size_t x = 0; x < va.size(); ++x)
    for (size_t y = 0; y < vb.size(); ++y)
      for (size_t z = 0; z < vc.size(); ++z) {
        if (types.size() > 3 && (x * 31 + y * 17 + z * 7) % 5 != 0)
          continue;  // a fifth of the triples
        a.push_back(va[x]);
        b.push_back(vb[y]);
        c.push_back(vc[z]);
      }
  const uint32_t n = static_cast<uint32_t>(a.size());
  const uint64_t pd = device.memory.Allocate(n * 8), pa = device.Upload(a), pb = device.Upload(b),
                 pc = device.Upload(c);
  const LaunchResult result = device.Run("k", {(n + 127) / 128}, {128}, pd, pa, pb, pc, n);
  ASSERT_EQ(result.code, 0) << result.message;
  const auto d = device.Download<uint64_t>(pd, n);
  int shown = 0;
  for (uint32_t i = 0; i < n && shown < 5; ++i) {
    const uint64_t want = reference(a[i], b[i], c[i]) & Mask(Info(types[0]).bits);
    if (d[i] != want) {
      ++shown;
      ADD_FAILURE() << text << " of " << Hex(a[i]) << ", " << Hex(b[i]) << ", " << Hex(c[i])
                    << " is " << Hex(d[i]) << ", expected " << Hex(want);
    }
  }
  if (GpuOracle* gpu = GpuOracle::Get()) {
    std::vector<uint64_t> real(n);
    const std::string problem = gpu->Run(ptx, "k", (n + 127) / 128, 128, {&real, &a, &b, &c}, n);
    ASSERT_EQ(problem, "") << ptx;
    shown = 0;
    for (uint32_t i = 0; i < n && shown < 4; ++i)
      if (real[i] != d[i]) {
        ++shown;
        ADD_FAILURE() << text << " of " << Hex(a[i]) << ", " << Hex(b[i]) << ", " << Hex(c[i])
                      << " is " << Hex(d[i]) << ", on the GPU " << Hex(real[i]);
      }
  }
}

TEST(InterpArithmetic, IntegersOfAllWidths) {
  for (const char* t : {"u16", "s16", "u32", "s32", "u64", "s64"}) {
    const std::string type = t;
    const int bits = Info(type).bits;
    const bool is_signed = t[0] == 's';
    auto wide = [=](uint64_t v) -> i128 {
      return is_signed ? static_cast<i128>(Signed(v, bits)) : static_cast<i128>(v);
    };
    const std::vector<std::string> two{type, type, type}, one{type, type};
    auto op = [&](const char* name) { return std::string(name) + "." + type; };
    Check(op("add") + " $d, $a, $b;", two, [](auto a, auto b, auto) { return a + b; });
    Check(op("sub") + " $d, $a, $b;", two, [](auto a, auto b, auto) { return a - b; });
    Check(op("mul.lo") + " $d, $a, $b;", two, [](auto a, auto b, auto) { return a * b; });
    Check(op("mul.hi") + " $d, $a, $b;", two, [=](auto a, auto b, auto) {
      return is_signed ? static_cast<uint64_t>((wide(a) * wide(b)) >> bits)
                       : static_cast<uint64_t>((static_cast<u128>(a) * b) >> bits);
    });
    Check(op("mad.lo") + " $d, $a, $b, $c;", {type, type, type, type},
          [](auto a, auto b, auto c) { return a * b + c; });
    Check(op("mad.hi") + " $d, $a, $b, $c;", {type, type, type, type}, [=](auto a, auto b, auto c) {
      return (is_signed ? static_cast<uint64_t>((wide(a) * wide(b)) >> bits)
                        : static_cast<uint64_t>((static_cast<u128>(a) * b) >> bits)) +
             c;
    });
    Check(op("sad") + " $d, $a, $b, $c;", {type, type, type, type}, [=](auto a, auto b, auto c) {
      const i128 difference = wide(a) - wide(b);
      return c + static_cast<uint64_t>(difference < 0 ? -difference : difference);
    });
    Check(op("min") + " $d, $a, $b;", two,
          [=](auto a, auto b, auto) { return wide(a) < wide(b) ? a : b; });
    Check(op("max") + " $d, $a, $b;", two,
          [=](auto a, auto b, auto) { return wide(a) < wide(b) ? b : a; });
    // Division by zero is not defined; what a device was seen to give is in the reference.
    Check(op("div") + " $d, $a, $b;", two, [=](auto a, auto b, auto) -> uint64_t {
      return b == 0 ? ~0ull : static_cast<uint64_t>(wide(a) / wide(b));
    });
    Check(op("rem") + " $d, $a, $b;", two, [=](auto a, auto b, auto) -> uint64_t {
      return b == 0 ? ~0ull : static_cast<uint64_t>(wide(a) % wide(b));
    });
    if (is_signed) {
      Check(op("abs") + " $d, $a;", one, [=](auto a, auto, auto) {
        return static_cast<uint64_t>(wide(a) < 0 ? -wide(a) : wide(a));
      });
      Check(op("neg") + " $d, $a;", one, [=](auto a, auto, auto) { return 0 - a; });
    }
    if (bits < 64) {
      const std::string twice = std::string(is_signed ? "s" : "u") + std::to_string(2 * bits);
      Check(op("mul.wide") + " $d, $a, $b;", {twice, type, type},
            [=](auto a, auto b, auto) { return static_cast<uint64_t>(wide(a) * wide(b)); });
      Check(op("mad.wide") + " $d, $a, $b, $c;", {twice, type, type, twice},
            [=](auto a, auto b, auto c) { return static_cast<uint64_t>(wide(a) * wide(b)) + c; });
    }
  }
  Check("add.sat.s32 $d, $a, $b;", {"s32", "s32", "s32"}, [](auto a, auto b, auto) {
    const int64_t r = Signed(a, 32) + Signed(b, 32);
    return static_cast<uint64_t>(std::clamp<int64_t>(r, INT32_MIN, INT32_MAX));
  });
  Check("sub.sat.s32 $d, $a, $b;", {"s32", "s32", "s32"}, [](auto a, auto b, auto) {
    const int64_t r = Signed(a, 32) - Signed(b, 32);
    return static_cast<uint64_t>(std::clamp<int64_t>(r, INT32_MIN, INT32_MAX));
  });
  Check("mul24.lo.s32 $d, $a, $b;", {"s32", "s32", "s32"}, [](auto a, auto b, auto) {
    return static_cast<uint64_t>(Signed(a & 0xFFFFFF, 24) * Signed(b & 0xFFFFFF, 24));
  });
  Check("mul24.hi.u32 $d, $a, $b;", {"u32", "u32", "u32"},
        [](auto a, auto b, auto) { return ((a & 0xFFFFFF) * (b & 0xFFFFFF)) >> 16; });
}

TEST(InterpArithmetic, CarryChains) {
  Check("add.cc.u32 %r4, $a, $b; addc.u32 $d, 0, 0;", {"u32", "u32", "u32"},
        [](auto a, auto b, auto) { return (a + b) >> 32; });
  Check("sub.cc.u32 %r4, $a, $b; subc.u32 $d, 10, 0;", {"u32", "u32", "u32"},
        [](auto a, auto b, auto) -> uint64_t { return 10 - (a < b ? 1 : 0); });
  Check("add.cc.u64 %rd4, $a, $b; addc.cc.u64 %rd5, $a, $b; addc.u64 $d, 0, 0;",
        {"u64", "u64", "u64"}, [](auto a, auto b, auto) -> uint64_t {
          const u128 sum = static_cast<u128>(a) + b;
          return static_cast<uint64_t>((sum + static_cast<uint64_t>(sum >> 64)) >> 64);
        });
  Check("mad.lo.cc.u32 %r4, $a, $b, $c; madc.hi.u32 $d, $a, $b, 0;", {"u32", "u32", "u32", "u32"},
        [](auto a, auto b, auto c) { return (a * b + c) >> 32; });
  Check("mad.lo.cc.u64 %rd4, $a, $b, $c; madc.hi.u64 $d, $a, $b, 0;", {"u64", "u64", "u64", "u64"},
        [](auto a, auto b, auto c) {
          return static_cast<uint64_t>((static_cast<u128>(a) * b + c) >> 64);
        });
}

TEST(InterpArithmetic, BitsAndShifts) {
  for (int bits : {16, 32, 64}) {
    const std::string b = "b" + std::to_string(bits), u = "u" + std::to_string(bits),
                      s = "s" + std::to_string(bits);
    Check("and." + b + " $d, $a, $b;", {b, b, b}, [](auto x, auto y, auto) { return x & y; });
    Check("or." + b + " $d, $a, $b;", {b, b, b}, [](auto x, auto y, auto) { return x | y; });
    Check("xor." + b + " $d, $a, $b;", {b, b, b}, [](auto x, auto y, auto) { return x ^ y; });
    Check("not." + b + " $d, $a;", {b, b}, [](auto x, auto, auto) { return ~x; });
    Check("cnot." + b + " $d, $a;", {b, b}, [](auto x, auto, auto) -> uint64_t { return x == 0; });
    Check("shl." + b + " $d, $a, $b;", {b, b, "u32"}, [=](auto x, auto n, auto) -> uint64_t {
      return n >= static_cast<uint64_t>(bits) ? 0 : x << n;
    });
    Check("shr." + u + " $d, $a, $b;", {u, u, "u32"}, [=](auto x, auto n, auto) -> uint64_t {
      return n >= static_cast<uint64_t>(bits) ? 0 : x >> n;
    });
    Check("shr." + s + " $d, $a, $b;", {s, s, "u32"}, [=](auto x, auto n, auto) -> uint64_t {
      return static_cast<uint64_t>(Signed(x, bits) >> std::min<uint64_t>(n, 63));
    });
  }
  for (int bits : {32, 64}) {
    const std::string b = "b" + std::to_string(bits), u = "u" + std::to_string(bits),
                      s = "s" + std::to_string(bits);
    Check("popc." + b + " $d, $a;", {"u32", b},
          [](auto x, auto, auto) { return static_cast<uint64_t>(std::popcount(x)); });
    Check("clz." + b + " $d, $a;", {"u32", b}, [=](auto x, auto, auto) {
      return static_cast<uint64_t>(std::countl_zero(x) - (64 - bits));
    });
    Check("brev." + b + " $d, $a;", {b, b}, [=](auto x, auto, auto) {
      uint64_t r = 0;
      for (int k = 0; k < bits; ++k)
        r |= (x >> k & 1) << (bits - 1 - k);
      return r;
    });
    auto find = [=](uint64_t x, bool is_signed) -> uint64_t {
      if (is_signed && Signed(x, bits) < 0)
        x = ~x & Mask(bits);
      for (int k = bits - 1; k >= 0; --k)
        if (x >> k & 1)
          return static_cast<uint64_t>(k);
      return 0xFFFFFFFF;
    };
    Check("bfind." + u + " $d, $a;", {"u32", u},
          [=](auto x, auto, auto) { return find(x, false); });
    Check("bfind." + s + " $d, $a;", {"u32", s}, [=](auto x, auto, auto) { return find(x, true); });
    Check("bfind.shiftamt." + s + " $d, $a;", {"u32", s}, [=](auto x, auto, auto) -> uint64_t {
      const uint64_t at = find(x, true);
      return at == 0xFFFFFFFF ? at : static_cast<uint64_t>(bits) - 1 - at;
    });
    // By the loop that the PTX ISA gives.
    auto extract = [=](uint64_t a, uint64_t b, uint64_t c, bool is_signed) {
      const int msb = bits - 1, pos = static_cast<int>(b & 0xFF), len = static_cast<int>(c & 0xFF);
      const uint64_t sign = !is_signed || len == 0 ? 0 : a >> std::min(pos + len - 1, msb) & 1;
      uint64_t d = 0;
      for (int i = 0; i <= msb; ++i)
        d |= (i < len && pos + i <= msb ? a >> (pos + i) & 1 : sign) << i;
      return d;
    };
    Check("bfe." + u + " $d, $a, $b, $c;", {u, u, "len", "len"},
          [=](auto a, auto b2, auto c) { return extract(a, b2, c, false); });
    Check("bfe." + s + " $d, $a, $b, $c;", {s, s, "len", "len"},
          [=](auto a, auto b2, auto c) { return extract(a, b2, c, true); });
    Check("bfi." + b + " $d, $a, 0x123456789ABCDEF, $b, $c;", {b, b, "len", "len"},
          [=](auto a, auto p, auto l) {
            const int msb = bits - 1, pos = static_cast<int>(p & 0xFF),
                      len = static_cast<int>(l & 0xFF);
            uint64_t f = 0x123456789ABCDEF & Mask(bits);
            for (int i = 0; i < len && pos + i <= msb; ++i)
              f = (f & ~(1ull << (pos + i))) | (a >> i & 1) << (pos + i);
            return f;
          });
  }
  Check("lop3.b32 $d, $a, $b, $c, 0xE8;", {"b32", "b32", "b32", "b32"},
        [](auto a, auto b, auto c) { return (a & b) | (b & c) | (a & c); });
  Check("lop3.b32 $d, $a, $b, $c, 0x1B;", {"b32", "b32", "b32", "b32"}, [](auto a, auto b, auto c) {
    uint64_t d = 0;
    for (int k = 0; k < 32; ++k)
      d |= uint64_t{0x1Bu >> ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1)) & 1} << k;
    return d;
  });
  auto funnel = [](uint64_t a, uint64_t b, uint64_t n, bool left) {
    const u128 both = static_cast<u128>(b) << 32 | a;
    return static_cast<uint64_t>(left ? (both << n) >> 32 : both >> n);
  };
  Check("shf.l.wrap.b32 $d, $a, $b, $c;", {"b32", "b32", "b32", "u32"},
        [=](auto a, auto b, auto c) { return funnel(a, b, c & 31, true); });
  Check("shf.r.wrap.b32 $d, $a, $b, $c;", {"b32", "b32", "b32", "u32"},
        [=](auto a, auto b, auto c) { return funnel(a, b, c & 31, false); });
  Check("shf.l.clamp.b32 $d, $a, $b, $c;", {"b32", "b32", "b32", "u32"},
        [=](auto a, auto b, auto c) { return funnel(a, b, std::min<uint64_t>(c, 32), true); });
  Check("shf.r.clamp.b32 $d, $a, $b, $c;", {"b32", "b32", "b32", "u32"},
        [=](auto a, auto b, auto c) { return funnel(a, b, std::min<uint64_t>(c, 32), false); });
  Check("prmt.b32 $d, $a, $b, $c;", {"b32", "b32", "b32", "b32"}, [](auto a, auto b, auto c) {
    const uint64_t bytes = b << 32 | a;
    uint64_t d = 0;
    for (int k = 0; k < 4; ++k) {
      const int s = static_cast<int>(c >> (4 * k)) & 15;
      uint64_t byte = bytes >> (8 * (s & 7)) & 0xFF;
      if (s & 8)
        byte = byte >> 7 ? 0xFF : 0;
      d |= byte << (8 * k);
    }
    return d;
  });
  Check("prmt.b32.f4e $d, $a, $b, $c;", {"b32", "b32", "b32", "b32"},
        [](auto a, auto b, auto c) { return (b << 32 | a) >> (8 * (c & 3)) & 0xFFFFFFFF; });
  Check("prmt.b32.ecr $d, $a, $b, $c;", {"b32", "b32", "b32", "b32"}, [](auto a, auto, auto c) {
    uint64_t d = 0;
    for (uint64_t k = 0; k < 4; ++k)
      d |= (a >> (8 * std::min<uint64_t>(k, c & 3)) & 0xFF) << (8 * k);
    return d;
  });
  Check("dp4a.s32.u32 $d, $a, $b, $c;", {"s32", "s32", "u32", "s32"}, [](auto a, auto b, auto c) {
    int64_t sum = static_cast<int64_t>(c);
    for (int k = 0; k < 4; ++k)
      sum += Signed(a >> (8 * k) & 0xFF, 8) * static_cast<int64_t>(b >> (8 * k) & 0xFF);
    return static_cast<uint64_t>(sum);
  });
  Check(
      "dp2a.hi.u32.s32 $d, $a, $b, $c;", {"s32", "u32", "s32", "s32"}, [](auto a, auto b, auto c) {
        int64_t sum = static_cast<int64_t>(c);
        for (int k = 0; k < 2; ++k)
          sum += static_cast<int64_t>(a >> (16 * k) & 0xFFFF) * Signed(b >> (16 + 8 * k) & 0xFF, 8);
        return static_cast<uint64_t>(sum);
      });
  Check("bmsk.clamp.b32 $d, $a, $b;", {"b32", "u32", "u32"}, [](auto a, auto b, auto) -> uint64_t {
    uint64_t d = 0;
    for (uint64_t k = 0; k < 32; ++k)
      if (k >= a && k - a < b)
        d |= 1ull << k;
    return d;
  });
}

TEST(InterpArithmetic, ComparisonsAndSelections) {
  struct Comparison {
    const char* name;
    bool (*holds)(double, double);
  };
  const Comparison floats[] = {
      {"eq", [](double a, double b) { return a == b; }},
      {"ne", [](double a, double b) { return a == a && b == b && a != b; }},
      {"lt", [](double a, double b) { return a < b; }},
      {"le", [](double a, double b) { return a <= b; }},
      {"gt", [](double a, double b) { return a > b; }},
      {"ge", [](double a, double b) { return a >= b; }},
      {"equ", [](double a, double b) { return a != a || b != b || a == b; }},
      {"neu", [](double a, double b) { return !(a == b); }},
      {"ltu", [](double a, double b) { return !(a >= b); }},
      {"geu", [](double a, double b) { return !(a < b); }},
      {"num", [](double a, double b) { return a == a && b == b; }},
      {"nan", [](double a, double b) { return a != a || b != b; }}};
  for (const auto& f : floats) {
    Check(std::string("setp.") + f.name + ".f32 %p1, $a, $b; selp.u32 $d, 1, 0, %p1;",
          {"u32", "f32", "f32"}, [&](auto a, auto b, auto) -> uint64_t {
            return f.holds(std::bit_cast<float>(static_cast<uint32_t>(a)),
                           std::bit_cast<float>(static_cast<uint32_t>(b)));
          });
    Check(std::string("setp.") + f.name + ".f64 %p1, $a, $b; selp.u32 $d, 1, 0, %p1;",
          {"u32", "f64", "f64"}, [&](auto a, auto b, auto) -> uint64_t {
            return f.holds(std::bit_cast<double>(a), std::bit_cast<double>(b));
          });
  }
  Check("setp.lt.s32 %p1, $a, $b; selp.b32 $d, $a, $b, %p1;", {"s32", "s32", "s32"},
        [](auto a, auto b, auto) { return Signed(a, 32) < Signed(b, 32) ? a : b; });
  Check("setp.lo.u32 %p1, $a, $b; selp.b32 $d, $a, $b, %p1;", {"u32", "u32", "u32"},
        [](auto a, auto b, auto) { return a < b ? a : b; });
  Check("setp.ge.s64 %p1, $a, $b; selp.b64 $d, $a, $b, %p1;", {"s64", "s64", "s64"},
        [](auto a, auto b, auto) {
          return static_cast<int64_t>(a) >= static_cast<int64_t>(b) ? a : b;
        });
  Check("setp.gt.s16 %p1, $a, $b; selp.b16 $d, $a, $b, %p1;", {"s16", "s16", "s16"},
        [](auto a, auto b, auto) { return Signed(a, 16) > Signed(b, 16) ? a : b; });
  // The combining predicate, and both results.
  Check(
      "setp.gt.u32 %p3, $c, 100; setp.lt.and.u32 %p1|%p2, $a, $b, !%p3; selp.u32 %r4, 1, 0, %p1;"
      "selp.u32 %r5, 2, 0, %p2; add.u32 $d, %r4, %r5;",
      {"u32", "u32", "u32", "u32"}, [](auto a, auto b, auto c) -> uint64_t {
        const bool q = !(c > 100);
        return (a < b && q ? 1 : 0) + (!(a < b) && q ? 2 : 0);
      });
  Check("set.lt.u32.s32 $d, $a, $b;", {"u32", "s32", "s32"},
        [](auto a, auto b, auto) -> uint64_t { return Signed(a, 32) < Signed(b, 32) ? ~0ull : 0; });
  Check("set.ge.f32.u32 $d, $a, $b;", {"f32", "u32", "u32"},
        [](auto a, auto b, auto) -> uint64_t { return a >= b ? 0x3F800000 : 0; });
  Check("slct.s32.s32 $d, $a, $b, $c;", {"s32", "s32", "s32", "s32"},
        [](auto a, auto b, auto c) { return Signed(c, 32) >= 0 ? a : b; });
  Check("slct.b64.f32 $d, $a, $b, $c;", {"b64", "b64", "b64", "f32"}, [](auto a, auto b, auto c) {
    return std::bit_cast<float>(static_cast<uint32_t>(c)) >= 0 ? a : b;
  });
  Check("testp.subnormal.f32 %p1, $a; selp.u32 $d, 1, 0, %p1;", {"u32", "f32"},
        [](auto a, auto, auto) -> uint64_t {
          return std::fpclassify(std::bit_cast<float>(static_cast<uint32_t>(a))) == FP_SUBNORMAL;
        });
}

// ---- Floating point: references by wider formats, rounded once ----

uint32_t F32Bits(float f) {
  return f != f ? 0x7FFFFFFF : std::bit_cast<uint32_t>(f);
}
float AsF32(uint64_t v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v));
}
double AsF64(uint64_t v) {
  return std::bit_cast<double>(v);
}

uint64_t F64Bits(double f) {
  // Invalid operations give the same NaN on an H200 and on x86.
  return f != f ? 0xFFF8000000000000 : std::bit_cast<uint64_t>(f);
}
float Flush(float f) {
  return std::fpclassify(f) == FP_SUBNORMAL ? std::copysign(0.0f, f) : f;
}

class HostRounding {
 public:
  explicit HostRounding(const std::string& mode) {
    fesetround(mode == "rz"   ? FE_TOWARDZERO
               : mode == "rm" ? FE_DOWNWARD
               : mode == "rp" ? FE_UPWARD
                              : FE_TONEAREST);
  }
  ~HostRounding() { fesetround(FE_TONEAREST); }
};

// Rounds a value held exactly in long double arithmetic, by searching the two neighbours.
float RoundToFloat(__float128 exact, const std::string& mode) {
  float near = static_cast<float>(exact);
  if (near != near || exact == static_cast<__float128>(near) || mode == "rn")
    return near;
  float below = static_cast<__float128>(near) > exact ? std::nextafterf(near, -INFINITY) : near;
  float above = static_cast<__float128>(near) < exact ? std::nextafterf(near, INFINITY) : near;
  if (mode == "rm")
    return below;
  if (mode == "rp")
    return above;
  return exact > 0 ? below : above;
}
double RoundToDouble(__float128 exact, const std::string& mode) {
  double near = static_cast<double>(exact);
  if (near != near || exact == static_cast<__float128>(near) || mode == "rn")
    return near;
  double below = static_cast<__float128>(near) > exact ? std::nextafter(near, -INFINITY) : near;
  double above = static_cast<__float128>(near) < exact ? std::nextafter(near, INFINITY) : near;
  if (mode == "rm")
    return below;
  if (mode == "rp")
    return above;
  return exact > 0 ? below : above;
}
bool Finite(float f) {
  return f - f == 0;
}

TEST(InterpArithmetic, SinglePrecision) {
  for (const std::string mode : {"rn", "rz", "rm", "rp"}) {
    Check("add." + mode + ".f32 $d, $a, $b;", {"f32", "f32", "f32"},
          [=](auto a, auto b, auto) -> uint64_t {
            HostRounding scope(mode);
            volatile float x = AsF32(a), y = AsF32(b);
            volatile float r = x + y;
            return F32Bits(r);
          });
    Check("mul." + mode + ".f32 $d, $a, $b;", {"f32", "f32", "f32"},
          [=](auto a, auto b, auto) -> uint64_t {
            const float x = AsF32(a), y = AsF32(b);
            const __float128 exact = static_cast<__float128>(x) * y;
            if (!Finite(x) || !Finite(y) || exact == 0)
              return F32Bits(x * y);
            float r = RoundToFloat(exact, mode);
            return r == 0 ? (exact < 0 ? 0x80000000 : 0) : F32Bits(r);
          });
    Check("fma." + mode + ".f32 $d, $a, $b, $c;", {"f32", "f32", "f32", "f32"},
          [=](auto a, auto b, auto c) -> uint64_t {
            HostRounding scope(mode);
            volatile float x = AsF32(a), y = AsF32(b), z = AsF32(c);
            volatile float r = std::fmaf(x, y, z);
            return F32Bits(r);
          });
    Check("div." + mode + ".f32 $d, $a, $b;", {"f32", "f32", "f32"},
          [=](auto a, auto b, auto) -> uint64_t {
            HostRounding scope(mode);
            volatile float x = AsF32(a), y = AsF32(b);
            volatile float r = x / y;
            return F32Bits(r);
          });
    Check("sqrt." + mode + ".f32 $d, $a;", {"f32", "f32"}, [=](auto a, auto, auto) -> uint64_t {
      HostRounding scope(mode);
      volatile float x = AsF32(a);
      volatile float r = std::sqrt(x);
      return F32Bits(r);
    });
    Check("rcp." + mode + ".f32 $d, $a;", {"f32", "f32"}, [=](auto a, auto, auto) -> uint64_t {
      HostRounding scope(mode);
      volatile float x = AsF32(a);
      volatile float r = 1.0f / x;
      return F32Bits(r);
    });
  }
  // Without a rounding word: to nearest even. Flushed: subnormal operands and results become zero.
  Check("add.f32 $d, $a, $b;", {"f32", "f32", "f32"},
        [](auto a, auto b, auto) -> uint64_t { return F32Bits(AsF32(a) + AsF32(b)); });
  Check("mul.ftz.f32 $d, $a, $b;", {"f32", "f32", "f32"}, [](auto a, auto b, auto) -> uint64_t {
    return F32Bits(Flush(Flush(AsF32(a)) * Flush(AsF32(b))));
  });
  Check("sub.sat.f32 $d, $a, $b;", {"f32", "f32", "f32"}, [](auto a, auto b, auto) -> uint64_t {
    const float r = AsF32(a) - AsF32(b);
    return r > 0 ? F32Bits(std::min(r, 1.0f)) : 0;
  });
  Check("fma.rn.ftz.sat.f32 $d, $a, $b, $c;", {"f32", "f32", "f32", "f32"},
        [](auto a, auto b, auto c) -> uint64_t {
          const float r = Flush(std::fmaf(Flush(AsF32(a)), Flush(AsF32(b)), Flush(AsF32(c))));
          return r > 0 ? F32Bits(std::min(r, 1.0f)) : 0;
        });
  Check("neg.f32 $d, $a;", {"f32", "f32"},
        [](auto a, auto, auto) -> uint64_t { return F32Bits(-AsF32(a)); });
  Check("abs.f32 $d, $a;", {"f32", "f32"},
        [](auto a, auto, auto) -> uint64_t { return F32Bits(std::fabs(AsF32(a))); });
  Check("copysign.f32 $d, $a, $b;", {"f32", "f32", "f32"},
        [](auto a, auto b, auto) -> uint64_t { return (a & 0x80000000) | (b & 0x7FFFFFFF); });
  auto least = [](uint64_t a, uint64_t b, bool max, bool nan) -> uint64_t {
    const float x = AsF32(a), y = AsF32(b);
    if (x != x || y != y)
      return nan || (x != x && y != y) ? 0x7FFFFFFF : x != x ? b : a;
    if (x == 0 && y == 0)
      return max ? a & b : a | b;
    return (x < y) != max ? a : b;
  };
  Check("min.f32 $d, $a, $b;", {"f32", "f32", "f32"},
        [=](auto a, auto b, auto) { return least(a, b, false, false); });
  Check("max.f32 $d, $a, $b;", {"f32", "f32", "f32"},
        [=](auto a, auto b, auto) { return least(a, b, true, false); });
  Check("max.NaN.f32 $d, $a, $b;", {"f32", "f32", "f32"},
        [=](auto a, auto b, auto) { return least(a, b, true, true); });
  Check("min.xorsign.abs.f32 $d, $a, $b;", {"f32", "f32", "f32"}, [=](auto a, auto b, auto) {
    const uint64_t r = least(a & 0x7FFFFFFF, b & 0x7FFFFFFF, false, false);
    const float x = AsF32(a), y = AsF32(b);
    return x != x && y != y ? r : r | ((a ^ b) & 0x80000000);
  });
}

TEST(InterpArithmetic, DoublePrecision) {
  for (const std::string mode : {"rn", "rz", "rm", "rp"}) {
    auto host = [=](auto f) {
      return [=](uint64_t a, uint64_t b, uint64_t c) -> uint64_t {
        HostRounding scope(mode);
        volatile double x = AsF64(a), y = AsF64(b), z = AsF64(c);
        volatile double r = f(x, y, z);
        return F64Bits(r);
      };
    };
    const std::string t = "." + mode + ".f64 $d, $a, $b";
    Check("add" + t + ";", {"f64", "f64", "f64"},
          host([](double x, double y, double) { return x + y; }));
    Check("sub" + t + ";", {"f64", "f64", "f64"},
          host([](double x, double y, double) { return x - y; }));
    Check("mul" + t + ";", {"f64", "f64", "f64"},
          host([](double x, double y, double) { return x * y; }));
    Check("div" + t + ";", {"f64", "f64", "f64"},
          host([](double x, double y, double) { return x / y; }));
    Check("fma" + t + ", $c;", {"f64", "f64", "f64", "f64"},
          host([](double x, double y, double z) { return std::fma(x, y, z); }));
    Check("sqrt." + mode + ".f64 $d, $a;", {"f64", "f64"},
          host([](double x, double, double) { return std::sqrt(x); }));
    Check("rcp." + mode + ".f64 $d, $a;", {"f64", "f64"},
          host([](double x, double, double) { return 1.0 / x; }));
  }
  Check("min.f64 $d, $a, $b;", {"f64", "f64", "f64"}, [](auto a, auto b, auto) -> uint64_t {
    const double x = AsF64(a), y = AsF64(b);
    return x == 0 && y == 0 ? (a | b) : x < y ? a : b;
  });
  Check("abs.f64 $d, $a;", {"f64", "f64"}, [](auto a, auto, auto) { return a & ~0ull >> 1; });
  Check("neg.f64 $d, $a;", {"f64", "f64"}, [](auto a, auto, auto) { return a ^ 1ull << 63; });
}

// The 16-bit formats by brute force: of all finite values, the nearest one.
struct Small {
  int mantissa, bias, top;
  __float128 Value(uint32_t bits) const {
    const int code = static_cast<int>(bits >> mantissa) & ((1 << (15 - mantissa)) - 1);
    const int fraction = static_cast<int>(bits & ((1u << mantissa) - 1));
    __float128 v = code ? fraction + (1 << mantissa) : fraction;
    int exponent = (code ? code : 1) - bias - mantissa;
    for (; exponent > 0; --exponent)
      v *= 2;
    for (; exponent < 0; ++exponent)
      v /= 2;
    return bits & 0x8000 ? -v : v;
  }
  bool Nan(uint64_t b) const { return (b & 0x7FFF) > static_cast<uint64_t>(top) << mantissa; }
  bool Inf(uint64_t b) const { return (b & 0x7FFF) == static_cast<uint64_t>(top) << mantissa; }
  // `negative`: the sign of a zero.
  uint64_t Round(__float128 v, bool negative, const std::string& mode = "rn") const {
    const bool minus = v < 0 || (v == 0 && negative);
    if (v < 0)
      v = -v;
    uint32_t low = 0, high = static_cast<uint32_t>(top) << mantissa;  // Value(high): one step more
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (Value(middle) <= v ? low : high) = middle;
    }
    const __float128 below = v - Value(low), above = Value(high) - v;
    uint32_t r = low;
    if (below != 0) {
      if (mode == "rn")
        r = above < below || (above == below && (low & 1)) ? high : low;
      else if ((mode == "rp" && !minus) || (mode == "rm" && minus))
        r = high;
    }
    if (v >= Value(high))
      r = mode == "rn" || (mode == "rp" && !minus) || (mode == "rm" && minus) ? high : low;
    return r | (minus ? 0x8000 : 0);
  }
};
constexpr Small kHalf{10, 15, 31}, kBf{7, 127, 255};

TEST(InterpArithmetic, HalfAndBfloat16) {
  for (const auto& [type, f] : {std::pair<std::string, Small>{"f16", kHalf}, {"bf16", kBf}}) {
    const Small format = f;
    auto as_float = [=](uint64_t b) -> double {
      if (format.Nan(b))
        return NAN;
      if (format.Inf(b))
        return b & 0x8000 ? -INFINITY : INFINITY;
      return static_cast<double>(format.Value(static_cast<uint32_t>(b)));
    };
    auto finish = [=](double special, __float128 exact, bool negative_zero) -> uint64_t {
      if (special != special)
        return 0x7FFF;
      if (special - special != 0)
        return (special < 0 ? 0x8000u : 0u) | static_cast<uint32_t>(format.top) << format.mantissa;
      return format.Round(exact, negative_zero);
    };
    auto add = [=](uint64_t a, uint64_t b, uint64_t) {
      const double x = as_float(a), y = as_float(b);
      return finish(x + y, static_cast<__float128>(x) + y, std::signbit(x) && std::signbit(y));
    };
    auto mul = [=](uint64_t a, uint64_t b, uint64_t) {
      const double x = as_float(a), y = as_float(b);
      return finish(x * y, static_cast<__float128>(x) * y, std::signbit(x) != std::signbit(y));
    };
    auto fma = [=](uint64_t a, uint64_t b, uint64_t c) {
      const double x = as_float(a), y = as_float(b), z = as_float(c);
      const bool finite = x - x == 0 && y - y == 0 && z - z == 0;
      const __float128 product = static_cast<__float128>(x) * y;
      __float128 sum = product + z;
      // What 113 bits cannot hold decides only on which side of a tie the sum lies.
      if (finite && product != 0 && z != 0) {
        const __float128 part = sum - product;
        const __float128 error = (product - (sum - part)) + (z - part);
        if (error != 0)
          sum += (error > 0 ? 1 : -1) * (sum < 0 ? -sum : sum) * static_cast<__float128>(1e-30);
      }
      return finish(x * y + z, sum, (std::signbit(x) != std::signbit(y)) && std::signbit(z));
    };
    Check("add.rn." + type + " $d, $a, $b;", {type, type, type}, add);
    Check("mul.rn." + type + " $d, $a, $b;", {type, type, type}, mul);
    Check("fma.rn." + type + " $d, $a, $b, $c;", {type, type, type, type}, fma);
    auto both = [](auto one) {
      return [=](uint64_t a, uint64_t b, uint64_t c) {
        return one(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) | one(a >> 16, b >> 16, c >> 16) << 16;
      };
    };
    const std::string two = type + "x2";
    Check("add.rn." + two + " $d, $a, $b;", {two, two, two}, both(add));
    Check("mul.rn." + two + " $d, $a, $b;", {two, two, two}, both(mul));
    Check("fma.rn." + two + " $d, $a, $b, $c;", {two, two, two, two}, both(fma));
    auto max = [=](uint64_t a, uint64_t b, uint64_t) -> uint64_t {
      const double x = as_float(a), y = as_float(b);
      if (x != x || y != y)
        return x != x && y != y ? 0x7FFF : x != x ? b : a;
      return x == 0 && y == 0 ? (a & b) : x < y ? b : a;
    };
    Check("max." + type + " $d, $a, $b;", {type, type, type}, max);
    Check("max." + two + " $d, $a, $b;", {two, two, two}, both(max));
    Check("neg." + two + " $d, $a;", {two, two},
          both([=](uint64_t a, uint64_t, uint64_t) -> uint64_t {
            return format.Nan(a) ? 0x7FFF : a ^ 0x8000;
          }));
    for (const std::string mode : {"rn", "rz"})
      Check("cvt." + mode + "." + type + ".f32 $d, $a;", {type, "f32"},
            [=](auto a, auto, auto) -> uint64_t {
              const float x = AsF32(a);
              if (x != x || x - x != 0)
                return finish(x, 0, false);
              return format.Round(x, std::signbit(x), mode);
            });
    Check("cvt.f32." + type + " $d, $a;", {"f32", type}, [=](auto a, auto, auto) -> uint64_t {
      if (format.mantissa == 7)
        return a << 16;  // of a NaN too
      return F32Bits(static_cast<float>(as_float(a)));
    });
    Check("cvt.rn." + two + ".f32 $d, $a, $b;", {two, "f32", "f32"},
          [=](auto a, auto b, auto) -> uint64_t {
            auto one = [=](uint64_t v) -> uint64_t {
              const float x = AsF32(v);
              return x != x || x - x != 0 ? finish(x, 0, false) : format.Round(x, std::signbit(x));
            };
            return one(a) << 16 | one(b);
          });
  }
}

TEST(InterpArithmetic, ConversionsBetweenIntegers) {
  for (const char* from : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"})
    for (const char* to : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
      const int fb = Info(from).bits, tb = Info(to).bits;
      const bool fs = from[0] == 's', ts = to[0] == 's';
      auto value = [=](uint64_t v) {
        return fs ? static_cast<i128>(Signed(v, fb)) : static_cast<i128>(v);
      };
      Check(std::string("cvt.") + to + "." + from + " $d, $a;", {to, from},
            [=](auto a, auto, auto) { return static_cast<uint64_t>(value(a)); });
      // Where nothing can be out of range, `.sat` is not allowed.
      if ((fs == ts && tb >= fb) || (ts && !fs && tb > fb))
        continue;
      Check(std::string("cvt.sat.") + to + "." + from + " $d, $a;", {to, from},
            [=](auto a, auto, auto) {
              const i128 low = ts ? -(static_cast<i128>(1) << (tb - 1)) : 0;
              const i128 high = (static_cast<i128>(1) << (ts ? tb - 1 : tb)) - 1;
              return static_cast<uint64_t>(std::clamp(value(a), low, high));
            });
    }
  // A destination wider than the type takes its sign.
  Check("cvt.s8.s32 %h1, $a; cvt.s32.s16 $d, %h1;", {"s32", "s32"},
        [](auto a, auto, auto) { return static_cast<uint64_t>(Signed(a & 0xFF, 8)); });
}

TEST(InterpArithmetic, ConversionsBetweenIntegersAndFloats) {
  for (const char* integer : {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}) {
    const std::string type = integer;
    const int bits = Info(type).bits;
    const bool is_signed = integer[0] == 's';
    auto value = [=](uint64_t v) {
      return is_signed ? static_cast<__float128>(Signed(v, bits)) : static_cast<__float128>(v);
    };
    for (const std::string mode : {"rn", "rz", "rm", "rp"}) {
      Check("cvt." + mode + ".f32." + type + " $d, $a;", {"f32", type},
            [=](auto a, auto, auto) -> uint64_t { return F32Bits(RoundToFloat(value(a), mode)); });
      Check("cvt." + mode + ".f64." + type + " $d, $a;", {"f64", type},
            [=](auto a, auto, auto) { return F64Bits(RoundToDouble(value(a), mode)); });
      Check("cvt." + mode + ".f16." + type + " $d, $a;", {"f16", type},
            [=](auto a, auto, auto) { return kHalf.Round(value(a), false, mode); });
    }
    struct Mode {
      const char* word;
      double (*round)(double);
    };
    const Mode modes[] = {{"rni", [](double x) { return std::nearbyint(x); }},
                          {"rzi", [](double x) { return std::trunc(x); }},
                          {"rmi", [](double x) { return std::floor(x); }},
                          {"rpi", [](double x) { return std::ceil(x); }}};
    const __float128 low =
        is_signed ? -static_cast<__float128>(static_cast<i128>(1) << (bits - 1)) : 0;
    const __float128 high =
        static_cast<__float128>((static_cast<u128>(1) << (is_signed ? bits - 1 : bits)) - 1);
    for (const Mode& m : modes) {
      auto to_int = [=](double x, bool wide) -> uint64_t {
        if (x != x)  // PTX ISA, cvt: 0, or the top bit where 64 bits are involved
          return wide || bits == 64 ? 1ull << (bits - 1) : 0;
        __float128 r = m.round(x);
        r = r < low ? low : r > high ? high : r;
        return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(r))
                         : static_cast<uint64_t>(r);
      };
      Check(std::string("cvt.") + m.word + "." + type + ".f32 $d, $a;", {type, "f32"},
            [=](auto a, auto, auto) { return to_int(AsF32(a), false); });
      Check(std::string("cvt.") + m.word + "." + type + ".f64 $d, $a;", {type, "f64"},
            [=](auto a, auto, auto) { return to_int(AsF64(a), true); });
    }
  }
}

TEST(InterpArithmetic, ConversionsBetweenFloats) {
  for (const std::string mode : {"rn", "rz", "rm", "rp"}) {
    Check("cvt." + mode + ".f32.f64 $d, $a;", {"f32", "f64"}, [=](auto a, auto, auto) -> uint64_t {
      HostRounding scope(mode);
      volatile double x = AsF64(a);
      volatile float r = static_cast<float>(x);
      return F32Bits(r);
    });
    Check("cvt." + mode + ".f16.f64 $d, $a;", {"f16", "f64"}, [=](auto a, auto, auto) -> uint64_t {
      const double x = AsF64(a);
      if (x != x)
        return 0x7FFF;
      if (x - x != 0)
        return x < 0 ? 0xFC00 : 0x7C00;
      return kHalf.Round(x, std::signbit(x), mode);
    });
  }
  Check("cvt.f64.f32 $d, $a;", {"f64", "f32"}, [](auto a, auto, auto) -> uint64_t {
    if (AsF32(a) != AsF32(a))  // the payload is kept, and made quiet
      return (a >> 31) << 63 | 0x7FF8000000000000 | (a & 0x7FFFFF) << 29;
    return F64Bits(static_cast<double>(AsF32(a)));
  });
  Check("cvt.rmi.f32.f32 $d, $a;", {"f32", "f32"},
        [](auto a, auto, auto) -> uint64_t { return F32Bits(std::floor(AsF32(a))); });
  Check("cvt.rni.f32.f32 $d, $a;", {"f32", "f32"},
        [](auto a, auto, auto) -> uint64_t { return F32Bits(std::nearbyint(AsF32(a))); });
  Check("cvt.rpi.f64.f64 $d, $a;", {"f64", "f64"},
        [](auto a, auto, auto) { return F64Bits(std::ceil(AsF64(a))); });
  Check("cvt.sat.f32.f32 $d, $a;", {"f32", "f32"}, [](auto a, auto, auto) -> uint64_t {
    const float x = AsF32(a);
    return x > 0 ? F32Bits(std::min(x, 1.0f)) : 0;
  });
  Check("cvt.ftz.f64.f32 $d, $a;", {"f64", "f32"}, [](auto a, auto, auto) -> uint64_t {
    const float x = AsF32(a);
    return x != x ? 0x7FFFFFFFE0000000 : F64Bits(static_cast<double>(Flush(x)));
  });
}

// Bits that an H200 gave.
TEST(InterpArithmetic, NotANumberKeepsItsPayloadInDouble) {
  const uint64_t nan = 0xFFF4567812345678;
  auto one = [&](const char* text, const char* to, uint64_t want) {
    Check(
        std::string("mov.f64 $d0, 0dFFF4567812345678; mov.f64 $d1, 0d7FF8000000000001; ") + text,
        {to, "u32"}, [=](auto, auto, auto) { return want; }, ".reg .f64 %d0, %d1;");
  };
  one("add.rn.f64 $d, $d0, 0d3FF0000000000000;", "f64", nan | 1ull << 51);
  one("sqrt.rn.f64 $d, $d0;", "f64", nan | 1ull << 51);
  one("neg.f64 $d, $d0;", "f64", nan & ~(1ull << 63));
  one("min.f64 $d, $d0, $d1;", "f64", nan | 1ull << 51);
  one("cvt.rn.f32.f64 $d, $d0;", "f32", 0xFFE2B3C0);
}

// Approximate functions: within the error that the PTX ISA documents, here checked against double.
TEST(InterpArithmetic, ApproximateFunctions) {
  struct Function {
    const char* text;
    double (*exact)(double);
    double relative, absolute;
  };
  const Function functions[] = {
      {"rcp.approx.f32", [](double x) { return 1 / x; }, 1.2e-7, 0},
      {"rsqrt.approx.f32", [](double x) { return 1 / std::sqrt(x); }, 1.7e-7, 0},
      {"sqrt.approx.f32", [](double x) { return std::sqrt(x); }, 1.7e-7, 0},
      {"sin.approx.f32", [](double x) { return std::sin(x); }, 0, 5e-7},
      {"cos.approx.f32", [](double x) { return std::cos(x); }, 0, 5e-7},
      {"lg2.approx.f32", [](double x) { return std::log2(x); }, 2.4e-7, 2.4e-7},
      {"ex2.approx.f32", [](double x) { return std::exp2(x); }, 2.4e-7, 0},
      {"tanh.approx.f32", [](double x) { return std::tanh(x); }, 5e-4, 0}};
  for (const Function& f : functions) {
    SCOPED_TRACE(f.text);
    TestDevice device(1);
    ASSERT_EQ(
        device.Load(std::string(".version 8.0\n.target sm_90\n.address_size 64\n"
                                ".visible .entry k(.param .u64 p)\n{\n.reg .f32 %f<3>;\n"
                                ".reg .b64 %rd<3>;\n.reg .b32 %r<3>;\n"
                                "ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x;\n"
                                "mad.wide.u32 %rd1, %r0, 4, %rd0; ld.global.f32 %f0, [%rd1];\n") +
                    f.text + " %f1, %f0; st.global.f32 [%rd1], %f1;\nret;\n}\n"),
        "");
    std::vector<float> values;
    for (float x = 0.01f; x < 3.0f; x *= 1.07f) {
      values.push_back(x);
      if (std::string(f.text).find("sqrt") == std::string::npos &&
          std::string(f.text).find("lg2") == std::string::npos)
        values.push_back(-x);
    }
    values.resize(std::min<size_t>(values.size(), 1024));
    const uint64_t at = device.Upload(values);
    ASSERT_EQ(device.Run("k", {1}, {static_cast<uint32_t>(values.size())}, at).code, 0);
    const auto got = device.Download<float>(at, values.size());
    for (size_t k = 0; k < values.size(); ++k) {
      const double want = f.exact(values[k]);
      EXPECT_LE(std::abs(got[k] - want), f.relative * std::abs(want) + f.absolute) << values[k];
    }
  }
}

}  // namespace
}  // namespace gpurecover::softgpu::testing
