// SPDX-License-Identifier: Apache-2.0
#include "image/ptx_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>

namespace gpurecover::image::ptx {
namespace {

using ::testing::HasSubstr;

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

const std::string kHead = ".version 8.0\n.target sm_70\n.address_size 64\n";

Module good(const std::string& text) {
  auto m = parse(text);
  EXPECT_TRUE(m) << m.error().message("test");
  return m ? std::move(*m) : Module{};
}
std::string error_of(const std::string& text) {
  auto m = parse(text);
  EXPECT_FALSE(m) << text;
  return m ? "" : m.error().message("t.ptx");
}
Module body(const std::string& text) {
  return good(kHead +
              ".visible .entry k(.param .u64 a, .param .align 8 .b8 s[24], .param .u32 n)\n{" +
              text + "}\n");
}
const Instruction& at(const Module& m, std::size_t i) {
  return m.functions.back().code.at(i);
}
const Operand& operand(const Module& m, std::size_t i, std::size_t k) {
  return m.functions.back().operands_of(at(m, i))[k];
}

// What the header promises of every module that parse() returns.
void check_invariants(const Module& m) {
  for (const Function& f : m.functions) {
    auto check = [&](const Operand& o, int level, auto&& self) -> void {
      ASSERT_LE(level, 3);
      switch (o.kind) {
        case OperandKind::kRegister:
          ASSERT_LT(o.index, f.registers.size());
          break;
        case OperandKind::kLabel:
          ASSERT_LE(o.index, f.code.size());
          break;
        case OperandKind::kAddress:
          if (o.base == AddressBase::kRegister) {
            ASSERT_LT(o.index, f.registers.size());
          }
          break;
        default:
          break;
      }
      const bool symbol = o.kind == OperandKind::kSymbol ||
                          (o.kind == OperandKind::kAddress && o.base == AddressBase::kSymbol);
      if (symbol) {
        const std::size_t limit = o.symbol_kind == SymbolKind::kVariable      ? m.variables.size()
                                  : o.symbol_kind == SymbolKind::kFunction    ? m.functions.size()
                                  : o.symbol_kind == SymbolKind::kParameter   ? f.params.size()
                                  : o.symbol_kind == SymbolKind::kReturn      ? f.returns.size()
                                  : o.symbol_kind == SymbolKind::kLocal       ? f.locals.size()
                                  : o.symbol_kind == SymbolKind::kBranchTable ? f.tables.size()
                                                                              : f.prototypes.size();
        ASSERT_LT(o.index, limit);
      }
      if (o.pair != kNoIndex) {
        ASSERT_LT(o.pair, f.registers.size());
      }
      ASSERT_LE(std::uint64_t{o.first} + o.count, f.operands.size());
      for (std::uint32_t k = 0; k < o.count; ++k)
        self(f.operands[o.first + k], level + 1, self);
    };
    for (const Instruction& i : f.code) {
      ASSERT_LE(std::uint64_t{i.first_operand} + i.operand_count, f.operands.size());
      ASSERT_LT(i.text, m.opcode_texts.size());
      if (i.guard != kNoIndex) {
        ASSERT_LT(i.guard, f.registers.size());
      }
      for (std::uint32_t k = 0; k < i.operand_count; ++k) {
        check(f.operands[i.first_operand + k], 0, check);
      }
    }
    for (const BranchTable& t : f.tables) {
      for (const std::uint32_t target : t.targets) {
        ASSERT_LE(target, t.is_call ? m.functions.size() : f.code.size());
      }
    }
  }
}

TEST(PtxParser, ReadsTheHeader) {
  const Module m =
      good("// comment\n/* another\n */ .version 8.7\n.target sm_90a, debug\n.address_size 64\n");
  EXPECT_EQ(m.version_major, 8u);
  EXPECT_EQ(m.version_minor, 7u);
  EXPECT_EQ(m.target, "sm_90a");
  EXPECT_EQ(m.sm, 90u);
  EXPECT_EQ(m.suffix, "a");
  const auto h = parse_header(".version 9.0 .target sm_100f");
  ASSERT_TRUE(h);
  EXPECT_EQ(h->sm, 100u);
  EXPECT_EQ(h->suffix, "f");
}

// The offsets are those that ptxas 13 puts into EIATTR_KPARAM_INFO for these parameters.
TEST(PtxParser, LargeAlignmentsAreMetInTheConstantBank) {
  struct Case {
    int sm, align;
    std::uint32_t offset;
  };
  for (const Case& c : {Case{75, 16, 16}, Case{75, 32, 32}, Case{80, 64, 32}, Case{80, 128, 32},
                        Case{89, 64, 32}, Case{90, 16, 16}, Case{90, 32, 16}, Case{90, 64, 48},
                        Case{90, 128, 112}, Case{100, 64, 64}, Case{120, 128, 128}}) {
    SCOPED_TRACE(std::to_string(c.sm) + ", " + std::to_string(c.align));
    const std::string a = std::to_string(c.align);
    const Module m = good(".version 8.0\n.target sm_" + std::to_string(c.sm) +
                          "\n.address_size 64\n.visible .entry k(.param .u64 p, .param .align " +
                          a + " .b8 s[128], .param .u32 n) { ret; }\n.func f(.param .align " + a +
                          " .b8 s[128], .param .align " + a + " .b8 t[128]) { ret; }\n");
    const auto& params = m.functions[0].params;
    EXPECT_EQ(params[1].offset, c.offset);
    EXPECT_EQ(params[2].offset, c.offset + 128);
    EXPECT_EQ(m.functions[0].param_bytes, c.offset + 132);
    EXPECT_EQ(m.functions[1].params[0].offset, 0U);  // of a function: in no bank
    EXPECT_EQ(m.functions[1].params[1].offset, 128U);
  }
}

TEST(PtxParser, ToleratesTrailingNuls) {
  std::string text = kHead;
  text.append(13, '\0');
  EXPECT_EQ(good(text).sm, 70u);
  text.insert(20, 1, '\0');
  EXPECT_FALSE(parse(text));
}

TEST(PtxParser, RegistersAreDenseAndOnlyThoseThatAreUsed) {
  const Module m = body(
      ".reg .b32 %r<4000000000>; .reg .b64 %rd<3>; .reg .pred p;"
      "add.s32 %r3999999999, %r7, %r7; cvt.u64.u32 %rd2, %r7;");
  const Function& f = m.functions.back();
  ASSERT_EQ(f.registers.size(), 4u);  // p is declared by name
  EXPECT_EQ(operand(m, 0, 1).index, operand(m, 0, 2).index);
  EXPECT_EQ(f.registers[operand(m, 0, 0).index].name, "%r3999999999");
  EXPECT_EQ(f.registers[operand(m, 1, 0).index].type, Type::kB64);
}

TEST(PtxParser, RegistersOutOfTheirRangeAreErrors) {
  EXPECT_THAT(error_of(kHead + ".entry k() { .reg .b32 %r<3>;\n mov.u32 %r3, 1; }"),
              HasSubstr("t.ptx:5:10: unknown name '%r3'; declare"));
  EXPECT_THAT(error_of(kHead + ".entry k() { .reg .b32 %r<3>;\n mov.u32 %r01, 1; }"),
              HasSubstr("%r01"));
}

TEST(PtxParser, InnerScopesShadow) {
  const Module m = body(
      ".reg .b32 %r<4>; { .reg .u32 %r1; mov.u32 %r1, 1; { .reg .f32 %r<2>; mov.f32 %r1, %r0; } "
      "mov.u32 %r1, 3; } mov.u32 %r1, 2;");
  EXPECT_EQ(operand(m, 0, 0).index, operand(m, 2, 0).index);
  EXPECT_NE(operand(m, 0, 0).index, operand(m, 1, 0).index);
  EXPECT_NE(operand(m, 0, 0).index, operand(m, 3, 0).index);
  EXPECT_EQ(m.functions.back().registers[operand(m, 1, 0).index].type, Type::kF32);
}

TEST(PtxParser, LabelsOfInnerBlocksAreTheirOwn) {
  const Module m = body("bra L; { L: bra L; } { bra L; L: ret; bra OUT; } L: trap; OUT: ");
  EXPECT_EQ(operand(m, 0, 0).index, 5u);
  EXPECT_EQ(operand(m, 1, 0).index, 1u);
  EXPECT_EQ(operand(m, 2, 0).index, 3u);
  EXPECT_EQ(operand(m, 4, 0).index, 6u);  // one past the end
  EXPECT_EQ(m.functions.back().code.size(), 6u);
}

TEST(PtxParser, ModifiersTypesAndSpaces) {
  const Module m = body(
      ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>; .reg .f32 %f<9>;"
      "ld.global.nc.L1::no_allocate.v2.f32 {%f1, %f2}, [%rd1+-8];"
      "@!%p1 setp.ltu.and.f32 %p1|%p2, %f1, 0f3F800000, !%p2;"
      "cvt.rni.sat.u8.f32 %r1, %f1;"
      "atom.shared::cluster.acq_rel.gpu.cas.b32 %r1, [%r2], 1, 2;"
      "cp.async.ca.shared.global.L2::128B [%r1], [%rd1], 16;"
      "mad.wide.s32 %rd1, %r1, -4, %rd2;"
      "new.op.b32 %r1, %r2; add.newmod.u32 %r1, %r2, 3;");
  EXPECT_EQ(at(m, 0).opcode, Opcode::kLd);
  EXPECT_EQ(at(m, 0).space, Space::kGlobal);
  EXPECT_TRUE(at(m, 0).has(Modifier::kNc));
  EXPECT_TRUE(at(m, 0).has(Modifier::kL1NoAllocate));
  EXPECT_EQ(at(m, 0).vector, 2);
  EXPECT_EQ(at(m, 0).type, Type::kF32);
  EXPECT_EQ(m.functions.back().members_of(operand(m, 0, 0)).size(), 2u);
  EXPECT_EQ(operand(m, 0, 1).kind, OperandKind::kAddress);
  EXPECT_EQ(operand(m, 0, 1).offset, -8);
  EXPECT_EQ(at(m, 1).compare, Compare::kLtu);
  EXPECT_EQ(at(m, 1).bool_op, BoolOp::kAnd);
  EXPECT_TRUE(at(m, 1).guard_negated);
  EXPECT_NE(operand(m, 1, 0).pair, kNoIndex);
  EXPECT_TRUE(operand(m, 1, 2).is_float);
  EXPECT_EQ(operand(m, 1, 2).imm, 0x3F800000u);
  EXPECT_TRUE(operand(m, 1, 3).negated);
  EXPECT_EQ(at(m, 2).rounding, Rounding::kRni);
  EXPECT_EQ(at(m, 2).type, Type::kU8);
  EXPECT_EQ(at(m, 2).type2, Type::kF32);
  EXPECT_EQ(at(m, 3).operation, Modifier::kCas);
  EXPECT_EQ(at(m, 3).space, Space::kSharedCluster);
  EXPECT_EQ(at(m, 4).space, Space::kShared);
  EXPECT_EQ(at(m, 4).space2, Space::kGlobal);
  EXPECT_EQ(static_cast<std::int64_t>(operand(m, 5, 2).imm), -4);
  EXPECT_EQ(at(m, 6).opcode, Opcode::kUnknown);
  EXPECT_EQ(m.text_of(at(m, 6)), "new.op.b32");
  EXPECT_EQ(at(m, 7).opcode, Opcode::kAdd);
  EXPECT_TRUE(at(m, 7).has_unknown_modifier);
}

TEST(PtxParser, SpecialRegisters) {
  const Module m = body(
      ".reg .b32 %r<9>; mov.u32 %r1, %ctaid.z; mov.u32 %r1, %envreg31;"
      "mov.u32 %r1, WARP_SZ; mov.u32 %r1, %laneid;");
  EXPECT_EQ(operand(m, 0, 1).special, SpecialRegister::kCtaid);
  EXPECT_EQ(operand(m, 0, 1).component, 2);
  EXPECT_EQ(operand(m, 1, 1).special, SpecialRegister::kEnvreg);
  EXPECT_EQ(operand(m, 1, 1).offset, 31);
  EXPECT_EQ(operand(m, 2, 1).special, SpecialRegister::kWarpSize);
  EXPECT_FALSE(parse(kHead + ".entry k() { .reg .b32 %r; mov.u32 %r, %envreg32; }"));
}

TEST(PtxParser, ParametersHaveTheirPlaceInTheBlock) {
  const Module m = good(kHead +
                        ".entry k(.param .u8 a, .param .u64 .ptr .global .align 16 b,"
                        ".param .align 4 .b8 c[6], .param .f64 d) {}");
  const Function& f = m.functions.back();
  ASSERT_EQ(f.params.size(), 4u);
  EXPECT_EQ(f.params[0].offset, 0u);
  EXPECT_EQ(f.params[1].offset, 8u);
  EXPECT_TRUE(f.params[1].is_pointer);
  EXPECT_EQ(f.params[1].pointer_space, Space::kGlobal);
  EXPECT_EQ(f.params[1].pointer_align, 16u);
  EXPECT_EQ(f.params[2].offset, 16u);
  EXPECT_EQ(f.params[2].size, 6u);
  EXPECT_EQ(f.params[3].offset, 24u);
  EXPECT_EQ(f.param_bytes, 32u);
}

std::vector<int> bytes_of(const Variable& v) {
  std::vector<int> r;
  for (const std::byte b : v.init)
    r.push_back(static_cast<int>(b));
  return r;
}

TEST(PtxParser, Initialisers) {
  const Module m = good(kHead +
                        ".global .b8 a[8] = {1, 0x2, 03, 0b100, 5U, -1, ~0, (7)};"
                        ".global .u32 nested[2][2] = {{1}, {2, 3}};"
                        ".const .s16 open[] = {1, 2, -3};"
                        ".global .f32 f[3] = {0f3F800000, 1.5, -2};"
                        ".global .f64 d = 0d4000000000000000;"
                        ".global .v2 .b16 v[2] = {{1, 2}, {3}};"
                        ".global .u64 p[3] = {a+4, generic(a), 9};"
                        ".global .u8 m[2] = {0xFF(a), 0xFF00(a)};"
                        ".extern .shared .align 16 .b8 dyn[];"
                        ".global .align 4 .b8 zero[100];");
  auto var = [&](std::string_view n) -> const Variable& { return *m.find_variable(n); };
  EXPECT_EQ(bytes_of(var("a")), (std::vector{1, 2, 3, 4, 5, 255, 255, 7}));
  EXPECT_EQ(bytes_of(var("nested")), (std::vector{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}));
  EXPECT_EQ(var("open").size, 6u);
  EXPECT_EQ(bytes_of(var("open")), (std::vector{1, 0, 2, 0, 253, 255}));
  EXPECT_EQ(var("open").dims, std::vector<std::uint64_t>{3});
  float f[3];
  std::memcpy(f, var("f").init.data(), sizeof f);
  EXPECT_EQ(f[0], 1.f);
  EXPECT_EQ(f[1], 1.5f);
  EXPECT_EQ(f[2], -2.f);
  double d;
  std::memcpy(&d, var("d").init.data(), sizeof d);
  EXPECT_EQ(d, 2.0);
  EXPECT_EQ(bytes_of(var("v")), (std::vector{1, 0, 2, 0, 3, 0}));
  ASSERT_EQ(var("p").relocations.size(), 2u);
  EXPECT_EQ(m.variables[var("p").relocations[0].symbol].name, "a");
  EXPECT_EQ(var("p").relocations[0].addend, 4);
  EXPECT_FALSE(var("p").relocations[0].generic);
  EXPECT_TRUE(var("p").relocations[1].generic);
  EXPECT_EQ(var("p").relocations[1].offset, 8u);
  ASSERT_EQ(var("m").relocations.size(), 2u);
  EXPECT_EQ(var("m").relocations[1].mask, 0xFF00u);
  EXPECT_EQ(var("m").relocations[1].size, 1);
  EXPECT_TRUE(var("dyn").unsized);
  EXPECT_EQ(var("zero").size, 100u);
  EXPECT_TRUE(var("zero").init.empty());
}

TEST(PtxParser, CallsAndTables) {
  const Module m =
      good(kHead +
           ".func (.param .b32 r) f(.param .b64 x);\n"
           ".func (.param .b32 r) f(.param .b64 x) { ret; }\n"
           ".extern .func vprintf(.param .b64 x);\n"
           ".entry k(.param .u64 a) { .reg .b64 %rd<3>; .reg .b32 %r<3>;"
           "{ .param .b64 p; .param .b32 q; st.param.b64 [p+0], %rd1; call.uni (q), f, (p);"
           "  ld.param.b32 %r1, [q+0]; }"
           "proto: .callprototype (.param .b32 _) _ (.param .b64 _);"
           "{ .param .b64 p; .param .b32 q; call (q), %rd1, (p), proto; }"
           "call vprintf, (a);"
           "T: .branchtargets A, B; A: brx.idx %r1, T; B: ret; }");
  ASSERT_EQ(m.functions.size(), 3u);  // prototype and body are one
  EXPECT_TRUE(m.functions[0].has_body);
  EXPECT_TRUE(m.functions[1].is_extern);
  const Function& k = m.functions[2];
  const Operand& target = operand(m, 1, 1);
  EXPECT_EQ(target.symbol_kind, SymbolKind::kFunction);
  EXPECT_EQ(target.index, 0u);
  EXPECT_EQ(k.members_of(operand(m, 1, 2))[0].symbol_kind, SymbolKind::kLocal);
  EXPECT_EQ(operand(m, 3, 1).kind, OperandKind::kRegister);
  EXPECT_EQ(operand(m, 3, 3).symbol_kind, SymbolKind::kPrototype);
  EXPECT_EQ(k.members_of(operand(m, 4, 2))[0].symbol_kind, SymbolKind::kParameter);
  ASSERT_EQ(k.tables.size(), 1u);
  EXPECT_EQ(k.tables[0].targets, (std::vector<std::uint32_t>{5, 6}));
}

TEST(PtxParser, SkipsDebugInformation) {
  const Module m =
      good(kHead +
           ".file 1 \"a b.cu\", 12, 13\n"
           ".entry k() {\n.loc 1 2 3, function_name $L__info, inlined_at 1 2 3\nret;\n}\n"
           ".section .debug_loc { $L: .b8 1,2 .b64 {x} }\n"
           "@@DWARF .byte 1\n.entry l() {}");
  EXPECT_EQ(m.functions.size(), 2u);
  EXPECT_EQ(m.functions[0].code.at(0).line, 7u);
}

TEST(PtxParser, ReadsTheSeeds) {
  for (const char* name : {"clang.ptx", "handwritten.ptx"}) {
    const Module m = good(file(std::string(CORPUS_DIR "/ptx/") + name));
    check_invariants(m);
    EXPECT_GE(m.functions.size(), 4u) << name;
  }
}

TEST(PtxParser, ReadsWhatNvccWrites) {
  for (const char* name : {"kernels_75.ptx", "kernels_90.ptx"}) {
    const std::string text = file(std::string(BUILT_DIR "/") + name);
    const Module m = good(text);
    check_invariants(m);
    std::size_t entries = 0;
    for (const Function& f : m.functions) {
      entries += f.entry;
      for (const Instruction& i : f.code) {
        EXPECT_NE(i.opcode, Opcode::kUnknown) << m.text_of(i);
        EXPECT_FALSE(i.has_unknown_modifier) << m.text_of(i);
      }
    }
    EXPECT_GE(entries, 40u) << name;
  }
}

TEST(PtxParser, ErrorsNamePlaceAndRemedy) {
  const struct {
    std::string text;
    const char* wanted;
  } kCases[] = {
      {"hello", "t.ptx:1:1: PTX must begin with .version, found 'hello'; pass PTX text"},
      {"", "t.ptx:1:1: PTX must begin with .version, found the end of the text;"},
      {".version x", "t.ptx:1:10: expected a version"},
      {".version 8.0 .target foo", ".target names no sm_NN"},
      {kHead + "\x01", "t.ptx:4:1: a character that PTX does not have"},
      {kHead + "/* no end", "comment without an end"},
      {kHead + ".entry k() {\n ret\n}", "t.ptx:6:1: expected"},
      {kHead + ".entry k() {\n bra X; }", "t.ptx:5:6: unknown label 'X'"},
      {kHead + ".entry k() { A: A: ret; }", "second label 'A'"},
      {kHead + ".entry k() { ret;", "t.ptx:4:12: function body without an end"},
      {kHead + ".entry k() {} .entry k() {}", "second body of function 'k'"},
      {kHead + ".global .u32 a; .global .u32 a;", "second declaration of 'a'"},
      {kHead + ".global .u32 a[2] = {1,2,3};", "too many values"},
      {kHead + ".global .u32 a[1048576][1048576][1048576];", "larger than 2^48"},
      {kHead + ".global .u64 a = b;", "unknown symbol 'b'"},
      {kHead + ".global .u8 a = 99999999999999999999;", "malformed number"},
      {kHead + ".global .u8 a = 0f12;", "malformed number"},
      {kHead + ".global .align 3 .u8 a;", "not a power of two"},
      {kHead + ".wrong", "unknown directive '.wrong'"},
      {kHead + ".section .x { {", ".section without an end"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(error_of(c.text), HasSubstr(c.wanted)) << c.text;
  }
}

TEST(PtxParser, NestingIsBounded) {
  for (const char* open : {"{", "["}) {
    std::string text = kHead + ".entry k() { ";
    if (*open == '[')
      text += "mov.u32 ";
    for (int i = 0; i < 200000; ++i)
      text += open;
    EXPECT_FALSE(parse(text));
  }
  std::string operands = kHead + ".entry k() { add.u32 ";
  for (int i = 0; i < 200000; ++i)
    operands += "{";
  EXPECT_FALSE(parse(operands));
  std::string numbers = kHead + ".global .u32 a = ";
  for (int i = 0; i < 200000; ++i)
    numbers += "(";
  EXPECT_FALSE(parse(numbers));
  std::string braces = kHead + ".global .u32 a[1] = ";
  for (int i = 0; i < 200000; ++i)
    braces += "{";
  EXPECT_FALSE(parse(braces));
}

TEST(PtxParser, EveryCutTextIsRefusedOrRead) {
  const std::string text = file(CORPUS_DIR "/ptx/handwritten.ptx");
  for (std::size_t n = 0; n < text.size(); ++n) {
    if (auto m = parse(std::string_view(text).substr(0, n))) {
      check_invariants(*m);
    }
  }
}

TEST(PtxParser, TimeGrowsLinearly) {
  auto seconds = [](std::size_t copies) {
    std::string text = kHead + ".entry k(.param .u64 a) { .reg .b32 %r<99>; .reg .b64 %rd<9>;\n";
    for (std::size_t i = 0; i < copies; ++i) {
      const std::string n = std::to_string(i);
      text += "L" + n + ": { .reg .b32 t" + n + "; add.s32 t" + n + ", %r1, %r2; bra L" + n +
              "; ld.global.u32 %r3, [%rd1+" + n + "]; }\n";
    }
    text += "}";
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(parse(text));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double small = seconds(5000), large = seconds(50000);
  // 10 times the text; quadratic would be 100 times.
  EXPECT_LT(large, 40 * small + 0.05);
}

TEST(PtxParser, AliasesPointToTheirFunction) {
  const Module m = good(file(CORPUS_DIR "/ptx/handwritten.ptx"));
  const Function* alias = m.find_function("alias_of_plus");
  ASSERT_NE(alias, nullptr);
  ASSERT_NE(alias->alias_of, kNoIndex);
  EXPECT_EQ(m.functions[alias->alias_of].name, "plus");
}

}  // namespace
}  // namespace gpurecover::image::ptx
