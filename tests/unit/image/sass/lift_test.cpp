// SPDX-License-Identifier: Apache-2.0
// Machine code as IR: what the module promises, and instruction by instruction what becomes of code
// that is put into a compiled kernel's place.
#include "image/sass/lift.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "image/cubin.h"
#include "image/elf.h"
#include "tests/unit/image/sass/assembler.h"

namespace gpurecover::image::sass {
namespace {

using ptx::Instruction;
using ptx::Opcode;
using ptx::Operand;
using ptx::OperandKind;

std::vector<std::byte> read_built(const std::string& name) {
  std::ifstream in(std::string(BUILT_DIR "/") + name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string s = text.str();
  std::vector<std::byte> bytes(s.size());
  std::memcpy(bytes.data(), s.data(), s.size());
  return bytes;
}

void check_promises(const ptx::Module& m) {
  ASSERT_TRUE(m.machine_code);
  for (const ptx::Function& f : m.functions) {
    const std::function<void(const Operand&, int)> check = [&](const Operand& o, int depth) {
      ASSERT_LE(depth, 2);
      switch (o.kind) {
        case OperandKind::kRegister:
          ASSERT_LT(o.index, f.registers.size());
          break;
        case OperandKind::kLabel:
          ASSERT_LE(o.index, f.code.size());
          break;
        case OperandKind::kAddress:
          if (o.base == ptx::AddressBase::kRegister) {
            ASSERT_LT(o.index, f.registers.size());
          }
          if (o.base != ptx::AddressBase::kSymbol)
            break;
          [[fallthrough]];
        case OperandKind::kSymbol:
          switch (o.symbol_kind) {
            case ptx::SymbolKind::kVariable:
              ASSERT_LT(o.index, m.variables.size());
              break;
            case ptx::SymbolKind::kFunction:
              ASSERT_LT(o.index, m.functions.size());
              break;
            case ptx::SymbolKind::kParameter:
              ASSERT_LT(o.index, f.params.size());
              break;
            default:
              ASSERT_LT(o.index, f.locals.size());
              break;
          }
          break;
        case OperandKind::kVector:
        case OperandKind::kList:
          ASSERT_LE(std::uint64_t{o.first} + o.count, f.operands.size());
          for (const Operand& member : f.members_of(o))
            check(member, depth + 1);
          break;
        default:
          break;
      }
    };
    for (const Instruction& i : f.code) {
      ASSERT_LE(std::uint64_t{i.first_operand} + i.operand_count, f.operands.size());
      ASSERT_LT(i.text, m.opcode_texts.size());
      if (i.guard != ptx::kNoIndex) {
        ASSERT_LT(i.guard, f.registers.size());
        EXPECT_EQ(f.registers[i.guard].type, ptx::Type::kPred);
      }
      for (const Operand& o : f.operands_of(i))
        check(o, 0);
    }
  }
}

class Architectures : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Architectures, ModulesKeepThePromisesOfTheIr) {
  for (const std::string source : {"kernels", "sass"}) {
    const auto cubin = read_built(source + "_" + std::to_string(GetParam()) + ".cubin");
    if (cubin.empty())
      GTEST_SKIP() << "no compiler for device code was there when the tests were built";
    const auto code = MachineCode::open(cubin);
    ASSERT_TRUE(code);
    const auto list = read_cubin(cubin);
    ASSERT_TRUE(list);
    for (const CubinKernel& k : list->kernels) {
      SCOPED_TRACE(k.name);
      if (const auto m = code->lift(k.name)) {
        check_promises(*m);
        EXPECT_EQ(m->functions.front().name, k.name);
      }
    }
    EXPECT_FALSE(code->lift("no such kernel"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Architectures, ::testing::Values(75, 80, 86, 89, 90, 100, 120));

// --- Code of one's own in the place of a compiled kernel's ---

using namespace assembler;

constexpr unsigned kBase = 0x160;  // of the parameters, on sm_80

class Patched : public ::testing::Test {
 protected:
  // `vector_add(c, a, b, n)` of sm_80 with this code instead.
  tl::expected<ptx::Module, std::string> lift(std::initializer_list<Word> code,
                                              const char* kernel = "vector_add") {
    bytes_ = read_built("kernels_80.cubin");
    if (bytes_.empty())
      return tl::make_unexpected(std::string("no compiler"));
    const auto elf = read_elf(bytes_);
    for (const ElfSection& s : elf->sections) {
      if (s.name != std::string(".text.") + kernel)
        continue;
      std::size_t at = s.offset;
      EXPECT_LE(code.size() * 16, s.data.size());
      for (const Word& w : code) {
        std::memcpy(bytes_.data() + at, &w.low, 8);
        std::memcpy(bytes_.data() + at + 8, &w.high, 8);
        at += 16;
      }
    }
    return MachineCode::open(bytes_)->lift(kernel);
  }
  static bool has(const ptx::Module& m, Opcode opcode) {
    for (const Instruction& i : m.functions.front().code) {
      if (i.opcode == opcode)
        return true;
    }
    return false;
  }
  // The instruction that writes what the operand reads.
  static const Instruction* writer(const ptx::Function& f, std::uint32_t reg) {
    const Instruction* found = nullptr;
    for (const Instruction& i : f.code) {
      if (i.operand_count == 0 || i.opcode == Opcode::kSt)
        continue;
      const Operand& o = f.operands[i.first_operand];
      if (o.kind == OperandKind::kRegister && o.index == reg)
        found = &i;
    }
    return found;
  }
  // What computes the address of the first store.
  static const Instruction* address_of_store(const ptx::Module& m) {
    const ptx::Function& f = m.functions.front();
    for (const Instruction& i : f.code) {
      if (i.opcode == Opcode::kSt)
        return writer(f, f.operands[i.first_operand].index);
    }
    return nullptr;
  }
  std::vector<std::byte> bytes_;
};

TEST_F(Patched, BothWordsOfAParameterAreThePointer) {
  const auto m =
      lift({mov_const(2, kBase), mov_const(3, kBase + 4), store_global(2, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  const Instruction* a = address_of_store(*m);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->opcode, Opcode::kLd);
  EXPECT_EQ(a->type, ptx::Type::kB64);
}

TEST_F(Patched, WordsOfTwoParametersAreNoPointer) {
  const auto m =
      lift({mov_const(2, kBase), mov_const(3, kBase + 12), store_global(2, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kMov);  // of a pair
}

TEST_F(Patched, ACarryMakesOneSum) {
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), add_low(4, 0, 2, 64),
                       add_high(5, 0, 3, 0), store_global(4, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kAdd);
  EXPECT_EQ(address_of_store(*m)->type, ptx::Type::kS64);
}

TEST_F(Patched, TheCarryOfAnotherSumMakesNone) {
  // P1 is the carry of an unrelated sum; it is no part of R4's.
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), add_low(4, 0, 2, 64),
                       add_low(6, 1, 3, 8), add_high(5, 1, 3, 0), store_global(4, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kMov);
}

TEST_F(Patched, AGuardedWriteKeepsTheOldValueBesideTheNew) {
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), mov_const(6, kBase + 24),
                       set_predicate(0, 6, 255), mov_const(2, kBase + 8, 0),
                       mov_const(3, kBase + 12, 0), store_global(2, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kSelp);
  EXPECT_EQ(address_of_store(*m)->type, ptx::Type::kB64);
}

TEST_F(Patched, UnderTheSameGuardOnlyTheNewValueIsThere) {
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), mov_const(6, kBase + 24),
                       set_predicate(0, 6, 255), mov_const(2, kBase + 8, 0),
                       mov_const(3, kBase + 12, 0), store_global(2, 255, 0), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kLd);
}

TEST_F(Patched, UnderTheOppositeGuardOnlyTheOldValueIsThere) {
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), mov_const(6, kBase + 24),
                       set_predicate(0, 6, 255), mov_imm(2, 1, 0), mov_imm(3, 1, 0),
                       store_global(2, 255, 8), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kLd);
}

TEST_F(Patched, APredicateWrittenAnewIsAnotherGuard) {
  const auto m =
      lift({mov_const(2, kBase), mov_const(3, kBase + 4), mov_const(6, kBase + 24),
            set_predicate(0, 6, 255), mov_const(2, kBase + 8, 0), mov_const(3, kBase + 12, 0),
            set_predicate(0, 255, 6), store_global(2, 255, 0), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kSelp);
}

// FCHK has no register result; its field for one is 0.
TEST_F(Patched, AnInstructionWithoutRegisterResultWritesNone) {
  const auto m =
      lift({mov_const(0, kBase), mov_const(1, kBase + 4),
            op(0x302, {{24, 8, 6}, {32, 8, 7}, {81, 3, 0}}), store_global(0, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kLd);
}

// Instructions that write several registers: a pointer in the last of them is gone.
TEST_F(Patched, EveryRegisterOfAResultIsWritten) {
  struct Case {
    const char* name;
    Word w;
    unsigned registers;  // from R4 on
  };
  const Case cases[] = {
      {"LDG.64", load_global(4, 10, 5), 2},
      {"LDG.128", load_global(4, 10, 6), 4},
      {"DADD", op(0x229, {{16, 8, 4}, {24, 8, 12}, {64, 8, 14}}), 2},
      {"F2I.S64", op(0x311, {{16, 8, 4}, {32, 8, 12}, {75, 2, 3}}), 2},
      {"I2F.F32.S64", op(0x312, {{16, 8, 4}, {32, 8, 12}, {75, 2, 2}}), 1},
      {"IMAD.WIDE",
       op(0x225, {{16, 8, 4}, {24, 8, 12}, {32, 8, 13}, {64, 8, 255}, {81, 3, 7}, {87, 4, 15}}), 2},
      {"HMMA.16816.F32", op(0x23c, {{16, 8, 4}, {24, 8, 12}, {32, 8, 16}, {64, 8, 20}, {75, 2, 3}}),
       4},
      {"LDSM.4", op(0x83b, {{16, 8, 4}, {24, 8, 12}, {72, 2, 2}}), 4},
      {"CS2R", op(0x805, {{16, 8, 4}, {72, 8, 0x50}, {80, 1, 1}}), 2},
      {"LDS.128", op(0x984, {{16, 8, 4}, {24, 8, 12}, {73, 3, 6}}), 4},
      {"S2R", op(0x919, {{16, 8, 4}, {72, 8, 0x43}}), 1},
      {"FADD", op(0x221, {{16, 8, 4}, {24, 8, 12}, {32, 8, 13}}), 1},
  };
  for (const Case& c : cases) {
    for (unsigned low = 3; low <= 8; ++low) {
      SCOPED_TRACE(std::string(c.name) + ", pointer in R" + std::to_string(low));
      const auto m =
          lift({mov_const(10, kBase + 16), mov_const(11, kBase + 20), mov_const(low, kBase),
                mov_const(low + 1, kBase + 4), c.w, store_global(low, 255), exit_()});
      if (!m && m.error() == "no compiler")
        GTEST_SKIP() << "no compiler for device code was there when the tests were built";
      ASSERT_TRUE(m) << m.error();
      const Instruction* a = address_of_store(*m);
      const bool intact = a != nullptr && a->opcode == Opcode::kLd &&
                          a->space == ptx::Space::kParam && a->type == ptx::Type::kB64;
      const bool overlaps = low + 1 >= 4 && low < 4 + c.registers;
      EXPECT_EQ(intact, !overlaps);
    }
  }
}

// Where there is no uniform register, the displacement of LD and ST takes its place too.
TEST_F(Patched, GenericAccessesHaveLongDisplacements) {
  const std::int32_t far = 0x1234404;
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), mov_const(9, kBase + 24),
                       op(0x980, {{16, 8, 4},
                                  {24, 8, 2},
                                  {32, 32, static_cast<std::uint32_t>(far)},
                                  {72, 1, 1},
                                  {73, 3, 4}}),
                       op(0x385, {{24, 8, 2},
                                  {32, 32, static_cast<std::uint32_t>(-far)},
                                  {64, 8, 9},
                                  {72, 1, 1},
                                  {73, 3, 4}}),
                       exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  const ptx::Function& f = m->functions.front();
  int seen = 0;
  for (const Instruction& i : f.code) {
    if (i.space != ptx::Space::kGeneric || (i.opcode != Opcode::kLd && i.opcode != Opcode::kSt))
      continue;
    const bool stores = i.opcode == Opcode::kSt;
    const Operand& a = f.operands[i.first_operand + (stores ? 0 : 1)];
    ASSERT_EQ(a.kind, OperandKind::kAddress);
    EXPECT_EQ(a.offset, stores ? -far : far);
    if (stores) {
      const Instruction* data = writer(f, f.operands[i.first_operand + 1].index);
      ASSERT_NE(data, nullptr);
      EXPECT_EQ(data->space, ptx::Space::kParam);
    }
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

// Whatever becomes of the value, the variable is read.
TEST_F(Patched, OperandsInConstantMemoryAreReads) {
  struct Case {
    const char* name;
    Word w;
    unsigned bytes;  // 0: none are read
  };
  const std::uint64_t bank = 3u << 14, at = 0x10;  // bits 38-58
  const Case cases[] = {
      {"FADD", op(0xa21, {{16, 8, 4}, {24, 8, 12}, {38, 21, bank << 2 | at}}), 4},
      {"FFMA, last operand",
       op(0x623, {{16, 8, 4}, {24, 8, 12}, {64, 8, 13}, {38, 21, bank << 2 | at}}), 4},
      {"DADD", op(0x629, {{16, 8, 4}, {24, 8, 12}, {38, 21, bank << 2 | at}}), 8},
      {"FSETP", op(0xa0b, {{24, 8, 12}, {38, 21, bank << 2 | at}, {81, 3, 7}, {84, 3, 7}}), 4},
      {"MUFU", op(0xb08, {{16, 8, 4}, {38, 21, bank << 2 | at}}), 4},
      {"LDC.64", op(0xb82, {{16, 8, 4}, {24, 8, 255}, {38, 21, bank << 2 | at}, {73, 3, 5}}), 8},
      {"FADD of a parameter", op(0xa21, {{16, 8, 4}, {24, 8, 12}, {38, 16, kBase}}), 0},
      {"FADD of a constant", op(0x421, {{16, 8, 4}, {24, 8, 12}, {38, 21, bank << 2 | at}}), 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto m = lift({c.w, exit_()});
    if (!m && m.error() == "no compiler")
      GTEST_SKIP() << "no compiler for device code was there when the tests were built";
    ASSERT_TRUE(m) << m.error();
    unsigned bytes = 0;
    for (const Instruction& i : m->functions.front().code)
      if (i.opcode == Opcode::kLd && i.space == ptx::Space::kConst)
        bytes += ptx::size_of(i.type) * i.vector;
    EXPECT_EQ(bytes, c.bytes);
  }
}

// Parameters that a uniform register points into may be any of them.
TEST_F(Patched, AUniformLoadIndexedAtRunTimeMayBeOfAnyParameter) {
  const auto m = lift({op(0x9c3, {{16, 8, 6}, {72, 8, 0x25}}),  // S2UR UR6, SR_CTAID.X
                       op(0xabb, {{16, 8, 4}, {24, 8, 6}, {38, 16, kBase}, {73, 3, 5}, {91, 1, 1}}),
                       op(0xc02, {{16, 8, 2}, {32, 8, 4}, {72, 4, 15}, {91, 1, 1}}),
                       op(0xc02, {{16, 8, 3}, {32, 8, 5}, {72, 4, 15}, {91, 1, 1}}),
                       store_global(2, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  const Instruction* a = address_of_store(*m);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->opcode, Opcode::kLd);
  EXPECT_EQ(a->space, ptx::Space::kParam);
  EXPECT_EQ(m->functions.front().operands[a->first_operand + 1].base, ptx::AddressBase::kRegister);
}

TEST_F(Patched, AnUnknownInstructionRefusesTheKernel) {
  const auto m = lift({mov_imm(0, 1), op(0x1ff, {}), exit_()});
  ASSERT_FALSE(m);
  if (m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  EXPECT_EQ(m.error(), "instruction 0x1ff of sm_80 is not known (machine code offset 0x10)");
}

TEST_F(Patched, AnUnknownBitOfAKnownInstructionRefusesTheKernel) {
  struct Case {
    const char* name;
    Word w;
  };
  const Case cases[] = {
      {"MOV", op(0x202, {{16, 8, 2}, {32, 8, 4}, {72, 4, 15}, {80, 1, 1}})},
      {"MOV of some lanes", op(0x202, {{16, 8, 2}, {32, 8, 4}, {72, 4, 7}})},
      {"ISETP", op(0x20c, {{24, 8, 2}, {32, 8, 4}, {68, 3, 7}, {79, 1, 1}, {87, 3, 7}})},
      {"IADD3", op(0x210, {{16, 8, 2}, {24, 8, 4}, {73, 1, 1}, {77, 14, 0x3FFF}})},
      {"LDG",
       op(0x981,
          {{16, 8, 2}, {24, 8, 4}, {72, 1, 1}, {73, 3, 4}, {76, 1, 1}, {87, 1, 1}, {90, 2, 3}})},
      {"LDG of 32-bit addresses", op(0x981, {{16, 8, 2}, {24, 8, 4}, {73, 3, 4}, {90, 2, 3}})},
      {"LDG.size 7", load_global(2, 4, 7)},
      {"LDC indexed otherwise", op(0xb82, {{16, 8, 2}, {24, 8, 255}, {73, 3, 4}, {78, 2, 1}})},
      {"reserved bits", op(0x221, {{16, 8, 2}, {24, 8, 4}, {100, 1, 1}})},
      {"LDG without its uniform register",
       op(0x981, {{16, 8, 2}, {24, 8, 4}, {72, 1, 1}, {73, 3, 4}, {90, 1, 1}})},
      {"STG with a uniform register",
       op(0x386, {{24, 8, 4}, {32, 8, 2}, {72, 1, 1}, {73, 3, 4}, {90, 2, 3}})},
      {"STL with a descriptor",
       op(0x987, {{24, 8, 2}, {32, 8, 4}, {64, 8, 4}, {73, 3, 4}, {76, 1, 1}, {91, 1, 1}})},
      {"LD of a predicate",
       op(0x980, {{16, 8, 2}, {24, 8, 4}, {72, 1, 1}, {73, 3, 4}, {81, 3, 2}})},
      {"ULDC of a bank that a register chooses",
       op(0xab9, {{16, 8, 4}, {24, 8, 5}, {73, 3, 4}, {91, 1, 1}})},
      {"SHF of a negated operand", op(0x219, {{16, 8, 2}, {24, 8, 4}, {32, 8, 5}, {63, 1, 1}})},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto m = lift({c.w, exit_()});
    ASSERT_FALSE(m);
    if (m.error() == "no compiler")
      GTEST_SKIP() << "no compiler for device code was there when the tests were built";
    EXPECT_NE(m.error().find("form of instruction 0x"), std::string::npos) << m.error();
    EXPECT_NE(m.error().find("offset 0x0"), std::string::npos) << m.error();
  }
}

TEST_F(Patched, ControlThatIsNotFollowedRefusesTheKernel) {
  const Word cases[] = {
      op(0x949, {{24, 8, 2}, {87, 3, 7}}),          // BRX without a table
      op(0x943, {{87, 3, 7}}),                      // CALL.ABS
      op(0x344, {{24, 8, 2}, {87, 3, 7}}),          // CALL.REL by register
      op(0x950, {{24, 8, 2}, {87, 3, 7}}),          // RET of the kernel itself
      op(0x947, {{34, 48, 0x100000}, {87, 3, 7}}),  // out of the section
      op(0x941, {{16, 4, 5}, {87, 3, 7}}),          // BSYNC without BSSY
  };
  for (const Word& w : cases) {
    const auto m = lift({w, exit_()});
    ASSERT_FALSE(m);
    if (m.error() == "no compiler")
      GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  }
}

// A subroutine whose return address is not the one of its call.
TEST_F(Patched, AReturnMustLeadBackToItsCall) {
  auto with_return_address = [&](std::uint32_t address) {
    return lift({mov_imm(20, address), mov_imm(21, 0),
                 op(0x944, {{34, 48, 4}, {84, 3, 4}, {87, 3, 7}}),  // to 0x40
                 exit_(),
                 op(0x950, {{24, 8, 20},
                            {34, 48, static_cast<std::uint64_t>(-0x50 / 4)},
                            {84, 3, 4},
                            {87, 3, 7}})});
  };
  const auto good = with_return_address(0x30);
  if (!good && good.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  EXPECT_TRUE(good) << good.error();
  const auto bad = with_return_address(0x20);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().find("a return to a place that is not known"), std::string::npos);
}

// A call of what never returns is how ptxas leaves a loop.
TEST_F(Patched, ACallThatNeverReturnsIsAJump) {
  const auto m = lift({mov_const(2, kBase), mov_const(3, kBase + 4), mov_const(6, kBase + 24),
                       set_predicate(0, 6, 255),
                       op(0x944, {{34, 48, 4}, {84, 3, 4}, {87, 3, 7}}, 0),  // @P0 to 0x60
                       op(0x947, {{34, 48, static_cast<std::uint64_t>(-0x30 / 4)}, {87, 3, 7}}),
                       store_global(2, 255), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_EQ(address_of_store(*m)->opcode, Opcode::kLd);
}

TEST_F(Patched, ALoopOfAPointerIsAJoinOf64Bits) {
  // R2:R3 = c; do { *R2 = 0; R2 += 4; } while (R6 < R7)
  const auto m =
      lift({mov_const(2, kBase), mov_const(3, kBase + 4), store_global(2, 255), add_low(2, 1, 2, 4),
            add_high(3, 1, 3, 0), set_predicate(0, 6, 7),
            op(0x947, {{34, 48, static_cast<std::uint64_t>(-0x50 / 4)}, {87, 3, 7}}, 0), exit_()});
  if (!m && m.error() == "no compiler")
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  ASSERT_TRUE(m) << m.error();
  EXPECT_FALSE(has(*m, Opcode::kOpaque));
  EXPECT_EQ(address_of_store(*m)->type, ptx::Type::kB64);
}

TEST(MachineCodeImages, OtherThingsAreRefused) {
  EXPECT_FALSE(MachineCode::open({}));
  std::vector<std::byte> rubbish(4096, std::byte{0x5a});
  EXPECT_FALSE(MachineCode::open(rubbish));
  auto cubin = read_built("kernels_80.cubin");
  if (cubin.empty())
    GTEST_SKIP() << "no compiler for device code was there when the tests were built";
  // Another architecture in the header: its instructions are not known.
  for (const unsigned sm : {50, 60, 70, 72, 101, 130}) {
    cubin[49] = static_cast<std::byte>(sm);
    const auto code = MachineCode::open(cubin);
    ASSERT_FALSE(code);
    EXPECT_NE(code.error().what.find("sm_" + std::to_string(sm)), std::string::npos);
  }
}

}  // namespace
}  // namespace gpurecover::image::sass
