// SPDX-License-Identifier: Apache-2.0
// From the IR to micro-operations.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>

#include "softgpu/interp/code.h"
#include "softgpu/interp/postdominators.h"

namespace gpurecover::softgpu::interp {
namespace {

using ptx::AddressBase;
using ptx::Function;
using ptx::Instruction;
using ptx::Modifier;
using ptx::Module;
using ptx::Opcode;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Rounding;
using ptx::Space;
using ptx::SymbolKind;
using ptx::Type;
using ptx::Variable;

constexpr uint64_t kMaxRegisterBytes = 16u << 20;
constexpr uint64_t kMaxLocalBytes = 16u << 20;
// Local memory of kernels whose call depth is not bounded by their text.
constexpr uint32_t kRecursiveStack = 64u << 10;

bool HostHasV3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
const bool kV3 = HostHasV3();

Shape Select(const Key& key) {
  return kV3 ? v3::Select(key) : baseline::Select(key);
}
Handler Resize(uint32_t from, uint32_t to, bool is_signed) {
  return kV3 ? v3::Resize(from, to, is_signed) : baseline::Resize(from, to, is_signed);
}
Handler ExpandHandler(Type type) {
  return kV3 ? v3::ExpandHandler(type) : baseline::ExpandHandler(type);
}

uint64_t AlignUp(uint64_t value, uint64_t align) {
  if (align <= 1)
    return value;
  return (value + align - 1) / align * align;
}

bool IsGlobal(Space space) {
  return space == Space::kGlobal || space == Space::kConst;
}
bool IsSharedSpace(Space space) {
  return space == Space::kShared || space == Space::kSharedCluster;
}

// Variables that a body declares and that live in the module: (function, local) of the module.
using LocalKey = std::pair<uint32_t, uint32_t>;

struct ModuleLayout {
  std::vector<uint32_t> variable_of;            // module variable -> program variable, or kNone
  std::map<LocalKey, uint32_t> local_variable;  // body variable -> program variable
};

struct SharedLayout {
  std::vector<uint64_t> variable_offset;  // by module variable; kNoOffset: not of this kernel
  std::map<LocalKey, uint64_t> local_offset;
  static constexpr uint64_t kNoOffset = ~0ull;
};

double ImmediateAsDouble(const Operand& o) {
  if (!o.is_float)
    return static_cast<double>(static_cast<int64_t>(o.imm));
  if (o.float_bits == 32)
    return std::bit_cast<float>(static_cast<uint32_t>(o.imm));
  return std::bit_cast<double>(o.imm);
}

uint16_t ToHalf(double x) {
  // Only for decimal literals of f16 and bf16 instructions, which compilers do not write: rounds
  // by way of float.
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000)
    return 0x7FFF;
  if (magnitude >= 0x477FF000)
    return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < 0x38800000) {
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(__builtin_rintf(scaled)));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}
uint16_t ToBf16(double x) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  if ((bits & 0x7FFFFFFF) > 0x7F800000)
    return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The bits of an immediate as an operand of this type.
uint64_t ImmediateBits(const Operand& o, Type type) {
  switch (type) {
    case Type::kF32:
      if (o.is_float && o.float_bits == 32)
        return o.imm;
      return std::bit_cast<uint32_t>(static_cast<float>(ImmediateAsDouble(o)));
    case Type::kF64:
      if (o.is_float && o.float_bits == 64)
        return o.imm;
      return std::bit_cast<uint64_t>(ImmediateAsDouble(o));
    case Type::kF16:
      return o.is_float ? ToHalf(ImmediateAsDouble(o)) : o.imm;
    case Type::kBf16:
      return o.is_float ? ToBf16(ImmediateAsDouble(o)) : o.imm;
    default:
      return o.imm;
  }
}

class FunctionCompiler {
 public:
  FunctionCompiler(const Module& module, uint32_t index, const ModuleLayout& layout,
                   const SharedLayout& shared, const KernelCode& kernel)
      : m_(module),
        f_(module.functions[index]),
        index_(index),
        layout_(layout),
        shared_(shared),
        kernel_(kernel) {}

  tl::expected<FunctionCode, CompileError> Compile();

 private:
  bool Fail(std::string what) {
    if (error_.message.empty()) {
      error_.line = static_cast<int>(i_ ? i_->line : f_.line);
      error_.message = "line " + std::to_string(error_.line) + ": " + std::move(what) +
                       (f_.name.empty() ? "" : " (in " + f_.name + ")");
    }
    return false;
  }
  bool Unsupported() { return Fail(std::string(m_.text_of(*i_)) + " is not supported by softgpu"); }
  bool Malformed(const char* what) { return Fail(std::string(m_.text_of(*i_)) + ": " + what); }

  bool LayOut();
  bool Instructions();
  bool One();
  bool Arithmetic();
  bool MovInstruction();
  bool SetInstruction();
  bool LoadStore(bool load);
  bool AtomInstruction(bool returns);
  bool CpInstruction();
  bool CvtaInstruction();
  bool CallInstruction();
  bool BarInstruction();
  bool SyncInstruction(SyncKind kind);
  bool BranchInstruction();

  Op& Emit(Handler fn) {
    Op op;
    op.fn = fn;
    op.guard = guard_;
    op.guard_negated = guard_negated_;
    op.source = source_;
    op.weight = first_ ? 1 : 0;
    first_ = false;
    out_.ops.push_back(op);
    return out_.ops.back();
  }
  // Begins an instruction that must be executed by all lanes at hand: a guard becomes a branch
  // around it, so that the lanes part before it and meet behind it.
  void BranchAround() {
    if (guard_ == kNone)
      return;
    Op& op = Emit(Branch);
    op.guard_negated = !op.guard_negated;
    op.target = source_ + 1;
    op.imm = source_ + 1;
    branches_.push_back(static_cast<uint32_t>(out_.ops.size() - 1));
    guard_ = kNone;
  }

  uint32_t Allocate(uint64_t bytes) {
    const uint64_t at = AlignUp(out_.register_bytes, bytes >= 64 ? 64 : 4);
    if (at + bytes > kMaxRegisterBytes) {
      Fail("the function has too many registers");
      return 0;
    }
    out_.register_bytes = static_cast<uint32_t>(at + bytes);
    return static_cast<uint32_t>(at);
  }
  // A register for intermediate values of this instruction. bytes 0: a predicate.
  uint32_t Temp(uint32_t bytes) {
    auto& pool = temps_[bytes];
    uint32_t& used = temps_used_[bytes];
    if (used == pool.size())
      pool.push_back(Allocate(bytes ? bytes * kLanes : 4));
    return pool[used++];
  }
  uint32_t Constant(uint64_t value, uint32_t bytes) {
    if (bytes == 0)
      value = value ? 1 : 0;
    else if (bytes < 8)
      value &= (1ull << (8 * bytes)) - 1;
    auto [it, added] = constants_.try_emplace({value, bytes}, 0);
    if (added)
      it->second = NewConstant(value, bytes);
    return it->second;
  }
  uint32_t NewConstant(uint64_t value, uint32_t bytes) {
    auto& pool = out_.constants;
    const size_t at = AlignUp(pool.size(), bytes ? 64 : 4);
    pool.resize(at + (bytes ? bytes * kLanes : 4));
    if (bytes == 0) {
      const uint32_t all = value ? kFull : 0;
      std::memcpy(pool.data() + at, &all, 4);
    } else {
      for (uint32_t lane = 0; lane < kLanes; ++lane)
        std::memcpy(pool.data() + at + lane * bytes, &value, std::min(bytes, 8u));
    }
    return static_cast<uint32_t>(at) | kConstBit;
  }
  // A constant of 8 or 4 bytes that becomes the address of a program variable.
  uint32_t AddressConstant(uint32_t variable, int64_t addend, uint32_t bytes) {
    auto [it, added] = address_constants_.try_emplace({variable, addend, bytes}, 0);
    if (added) {
      it->second = NewConstant(0, bytes);
      out_.relocations.push_back(
          {it->second & ~kConstBit, static_cast<uint8_t>(bytes), variable, addend});
    }
    return it->second;
  }

  std::span<const Operand> Operands() const { return f_.operands_of(*i_); }
  bool RegisterAt(const Operand& o, uint32_t& offset, Type& type);
  bool Source(const Operand& o, Type expected, bool relaxed, uint32_t& at);
  bool SymbolValue(const Operand& o, uint32_t bytes, uint32_t& at);
  // The register to write and, if it is wider than the value, what to do afterwards.
  struct Destination {
    uint32_t at = kNone;     // where the handler writes
    uint32_t final = kNone;  // where the value must go; kNone: it is there
    uint32_t from = 0, to = 0;
    bool is_signed = false;
  };
  bool Dest(const Operand& o, Type type, bool relaxed, Destination& d);
  void Widen(const Destination& d) {
    if (d.final == kNone)
      return;
    Op& op = Emit(Resize(d.from, d.to, d.is_signed));
    op.a = d.at;
    op.d = d.final;
  }
  bool PredicateDest(const Operand& o, uint32_t& at) {
    if (o.kind == OperandKind::kSink) {
      at = kNone;
      return true;
    }
    Destination d;
    if (!Dest(o, Type::kPred, false, d))
      return false;
    at = d.at;
    return true;
  }
  bool PairDest(uint32_t pair, uint32_t& at) {
    at = kNone;
    if (pair == ptx::kNoIndex)
      return true;
    Operand o;
    o.kind = OperandKind::kRegister;
    o.index = pair;
    return PredicateDest(o, at);
  }

  struct Address {
    uint32_t base = 0;
    bool address32 = false;
    int64_t displacement = 0;
    bool frame_relative = false;
    Where where = Where::kGeneric;
  };
  bool Resolve(const Operand& o, Space space, Address& a);
  void Place(Op& op, const Address& a, uint32_t Op::*field = &Op::a) {
    op.*field = a.base;
    op.imm = a.displacement;
    op.space = static_cast<uint8_t>(a.where);
    if (a.frame_relative)
      op.mode |= kMemFrameRelative;
    if (a.address32)
      op.mode |= kMemAddress32;
  }
  Key MakeKey() const;
  bool Callees(const Operand& list, const Function* callee, bool returns,
               std::vector<CallValue>& values);

  const Module& m_;
  const Function& f_;
  const uint32_t index_;
  const ModuleLayout& layout_;
  const SharedLayout& shared_;
  const KernelCode& kernel_;
  FunctionCode out_;
  CompileError error_;

  const Instruction* i_ = nullptr;
  uint32_t source_ = 0;
  bool first_ = false;
  uint32_t guard_ = kNone;
  bool guard_negated_ = false;

  std::vector<uint32_t> registers_;  // offsets
  std::vector<uint64_t> local_at_;   // of locals in the frame's local memory
  std::vector<uint64_t> param_at_, return_at_;
  std::map<uint32_t, std::vector<uint32_t>> temps_;
  std::map<uint32_t, uint32_t> temps_used_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constants_;
  std::map<std::tuple<uint32_t, int64_t, uint32_t>, uint32_t> address_constants_;
  uint32_t carry_ = kNone;

  std::vector<uint32_t> reconverge_;
  std::vector<uint8_t> join_at_;
  std::vector<uint32_t> start_of_;  // micro-op of each instruction
  std::vector<uint32_t> branches_;  // micro-ops whose target and imm are instruction indexes
};

bool FunctionCompiler::LayOut() {
  registers_.resize(f_.registers.size(), kNone);
  uint64_t total = 0;
  for (const auto& r : f_.registers)
    total += std::max<uint64_t>(64, uint64_t{LaneBytes(r.type)} * kLanes * r.vector);
  if (total > kMaxRegisterBytes)
    return Fail("the function has too many registers");
  // Predicates first, and together.
  for (size_t r = 0; r < registers_.size(); ++r)
    if (f_.registers[r].type == Type::kPred)
      registers_[r] = Allocate(4);
  for (size_t r = 0; r < registers_.size(); ++r) {
    const auto& reg = f_.registers[r];
    const uint32_t bytes = LaneBytes(reg.type);
    if (reg.type == Type::kPred || bytes == 0)
      continue;
    registers_[r] = Allocate(uint64_t{bytes} * kLanes * std::max<uint32_t>(1, reg.vector));
  }

  uint64_t at = 0;
  auto place = [&](uint64_t size, uint64_t align) {
    at = AlignUp(at, std::max<uint64_t>(1, align));
    const uint64_t here = at;
    at += size;
    return here;
  };
  auto parameters = [&](const std::vector<ptx::Parameter>& list, std::vector<uint64_t>& offsets,
                        std::vector<CallValue>& values) {
    for (const auto& p : list) {
      CallValue v;
      v.bytes = p.size;
      if (p.reg != ptx::kNoIndex) {
        v.in_memory = false;
        v.offset = registers_[p.reg];
        v.bytes = LaneBytes(f_.registers[p.reg].type);
        offsets.push_back(0);
      } else {
        offsets.push_back(place(p.size, std::min<uint32_t>(p.align, 4096)));
        v.offset = static_cast<uint32_t>(std::min<uint64_t>(offsets.back(), kMaxLocalBytes));
      }
      values.push_back(v);
      if (at > kMaxLocalBytes)
        return false;
    }
    return true;
  };
  if (!f_.entry)
    if (!parameters(f_.params, param_at_, out_.params) ||
        !parameters(f_.returns, return_at_, out_.returns))
      return Fail("the parameters are too large");
  local_at_.resize(f_.locals.size(), 0);
  for (size_t k = 0; k < f_.locals.size(); ++k) {
    const Variable& v = f_.locals[k];
    if (v.space != Space::kLocal && v.space != Space::kParam)
      continue;
    if (v.size > kMaxLocalBytes)
      return Fail("local variable " + v.name + " is too large");
    local_at_[k] = place(v.size, std::min<uint32_t>(v.align, 4096));
    if (at > kMaxLocalBytes)
      return Fail("the local variables are too large");
  }
  out_.local_bytes = static_cast<uint32_t>(AlignUp(at, 16));
  return true;
}

bool FunctionCompiler::RegisterAt(const Operand& o, uint32_t& offset, Type& type) {
  const auto& reg = f_.registers[o.index];
  type = reg.type;
  if (registers_[o.index] == kNone)
    return Malformed(("register " + reg.name + " has a type that softgpu cannot hold").c_str());
  offset = registers_[o.index];
  if (o.has_component) {
    if (o.component >= std::max<uint32_t>(1, reg.vector))
      return Malformed("no such component");
    offset += o.component * LaneBytes(type) * kLanes;
  }
  return true;
}

bool FunctionCompiler::SymbolValue(const Operand& o, uint32_t bytes, uint32_t& at) {
  if (bytes != 8 && bytes != 4)
    return Malformed("an address needs 32 or 64 bits");
  auto frame_address = [&](uint64_t offset) {
    Op& op = Emit(FrameAddress);
    op.imm = static_cast<int64_t>(offset) + o.offset;
    op.mode = bytes;
    op.d = at = Temp(bytes);
    return true;
  };
  switch (o.symbol_kind) {
    case SymbolKind::kVariable: {
      const Variable& v = m_.variables[o.index];
      if (IsSharedSpace(v.space)) {
        at = Constant(shared_.variable_offset[o.index] + static_cast<uint64_t>(o.offset), bytes);
        return true;
      }
      if (layout_.variable_of[o.index] == kNone)
        return Malformed(("variable " + v.name + " is not defined in the module").c_str());
      at = AddressConstant(layout_.variable_of[o.index], o.offset, bytes);
      return true;
    }
    case SymbolKind::kFunction:
      at = Constant(kFunctionWindow + kFunctionStep * (uint64_t{o.index} + 1), bytes);
      return true;
    case SymbolKind::kParameter:
      if (f_.entry) {
        at = Constant(f_.params[o.index].offset + static_cast<uint64_t>(o.offset), bytes);
        return true;
      }
      return frame_address(param_at_[o.index]);
    case SymbolKind::kReturn:
      return frame_address(o.index < return_at_.size() ? return_at_[o.index] : 0);
    case SymbolKind::kLocal: {
      const Variable& v = f_.locals[o.index];
      if (IsSharedSpace(v.space)) {
        at = Constant(shared_.local_offset.at({index_, o.index}) + static_cast<uint64_t>(o.offset),
                      bytes);
        return true;
      }
      if (IsGlobal(v.space)) {
        at = AddressConstant(layout_.local_variable.at({index_, o.index}), o.offset, bytes);
        return true;
      }
      return frame_address(local_at_[o.index]);
    }
    default:
      return Malformed("a table has no address");
  }
}

bool FunctionCompiler::Source(const Operand& o, Type expected, bool relaxed, uint32_t& at) {
  const uint32_t bytes = LaneBytes(expected);
  const bool predicate = expected == Type::kPred;
  switch (o.kind) {
    case OperandKind::kRegister: {
      Type type;
      if (!RegisterAt(o, at, type))
        return false;
      if (o.arithmetic_negated)
        return Malformed("a negated operand is not supported by softgpu");
      if ((type == Type::kPred) != predicate)
        return Malformed(
            ("register " + f_.registers[o.index].name + " has the wrong type").c_str());
      if (predicate) {
        if (o.negated) {
          Key key;
          key.opcode = Opcode::kNot;
          key.type = Type::kPred;
          const uint32_t temp = Temp(0);
          Op& op = Emit(Select(key).fn);
          op.a = at;
          op.d = at = temp;
        }
        return true;
      }
      const uint32_t have = LaneBytes(type);
      if (have == bytes)
        return true;
      if (!relaxed || have < bytes || have > 8)
        return Malformed(
            ("register " + f_.registers[o.index].name + " has the wrong size").c_str());
      const uint32_t temp = Temp(bytes);
      Op& op = Emit(Resize(have, bytes, false));
      op.a = at;
      op.d = at = temp;
      return true;
    }
    case OperandKind::kImmediate:
      at = Constant(ImmediateBits(o, expected), bytes);
      return true;
    case OperandKind::kSpecial: {
      if (predicate)
        return Malformed("a predicate is needed");
      const bool wide = o.special == ptx::SpecialRegister::kClock64 ||
                        o.special == ptx::SpecialRegister::kGlobaltimer ||
                        o.special == ptx::SpecialRegister::kPm64 ||
                        o.special == ptx::SpecialRegister::kCurrentGraphExec || bytes == 8;
      const uint32_t have = wide ? 8 : 4;
      const Handler fn = SpecialHandler(o.special, have);
      if (!fn)
        return Malformed("the special register is not supported by softgpu");
      Op& op = Emit(fn);
      op.mode = o.component;
      op.imm = o.offset;
      op.d = at = Temp(have);
      if (have != bytes) {
        const uint32_t from = at;
        Op& narrow = Emit(Resize(have, bytes, false));
        narrow.a = from;
        narrow.d = at = Temp(bytes);
      }
      return true;
    }
    case OperandKind::kSymbol:
      return SymbolValue(o, bytes, at);
    default:
      return Malformed("an operand of this form is not supported by softgpu");
  }
}

bool FunctionCompiler::Dest(const Operand& o, Type type, bool relaxed, Destination& d) {
  const uint32_t bytes = LaneBytes(type);
  if (o.kind == OperandKind::kSink) {
    d.at = Temp(bytes);
    return true;
  }
  if (o.kind != OperandKind::kRegister)
    return Malformed("the destination is not a register");
  Type have;
  uint32_t at;
  if (!RegisterAt(o, at, have))
    return false;
  if ((have == Type::kPred) != (type == Type::kPred))
    return Malformed(("register " + f_.registers[o.index].name + " has the wrong type").c_str());
  const uint32_t width = LaneBytes(have);
  if (width == bytes) {
    d.at = at;
    return true;
  }
  if (!relaxed || width < bytes || width > 8)
    return Malformed(("register " + f_.registers[o.index].name + " has the wrong size").c_str());
  d.at = Temp(bytes);
  d.final = at;
  d.from = bytes;
  d.to = width;
  d.is_signed = ptx::is_signed_integer(type);
  return true;
}

bool FunctionCompiler::Resolve(const Operand& o, Space space, Address& a) {
  if (o.kind != OperandKind::kAddress)
    return Malformed("the operand is not an address");
  if (o.count != 0)
    return Malformed("an address of this form is not supported by softgpu");
  switch (space) {
    case Space::kGeneric:
      a.where = Where::kGeneric;
      break;
    case Space::kGlobal:
    case Space::kConst:
      a.where = Where::kGlobal;
      break;
    case Space::kShared:
    case Space::kSharedCluster:
      a.where = Where::kShared;
      break;
    case Space::kLocal:
      a.where = Where::kLocal;
      break;
    case Space::kParam:
      a.where = f_.entry ? Where::kParam : Where::kLocal;
      break;
    default:
      return Unsupported();
  }
  a.displacement = o.offset;
  if (o.base == AddressBase::kNone) {
    a.base = Constant(0, 8);
    return true;
  }
  if (o.base == AddressBase::kRegister) {
    Operand reg;
    reg.kind = OperandKind::kRegister;
    reg.index = o.index;
    Type type;
    if (!RegisterAt(reg, a.base, type))
      return false;
    const uint32_t bytes = LaneBytes(type);
    if (bytes == 8)
      return true;
    if (bytes != 4)
      return Malformed("an address needs a register of 32 or 64 bits");
    if (a.where == Where::kShared) {
      a.address32 = true;
      return true;
    }
    Op& op = Emit(Resize(4, 8, false));
    op.a = a.base;
    op.d = a.base = Temp(8);
    return true;
  }
  a.base = Constant(0, 8);
  auto frame = [&](uint64_t offset) {
    a.where = Where::kLocal;
    a.frame_relative = true;
    a.displacement += static_cast<int64_t>(offset);
    return true;
  };
  switch (o.symbol_kind) {
    case SymbolKind::kVariable: {
      const Variable& v = m_.variables[o.index];
      if (IsSharedSpace(v.space)) {
        a.where = Where::kShared;
        a.displacement += static_cast<int64_t>(shared_.variable_offset[o.index]);
        return true;
      }
      if (layout_.variable_of[o.index] == kNone)
        return Malformed(("variable " + v.name + " is not defined in the module").c_str());
      a.where = Where::kGlobal;
      a.base = AddressConstant(layout_.variable_of[o.index], a.displacement, 8);
      a.displacement = 0;
      return true;
    }
    case SymbolKind::kParameter:
      if (f_.entry) {
        a.where = Where::kParam;
        a.displacement += f_.params[o.index].offset;
        return true;
      }
      return frame(param_at_[o.index]);
    case SymbolKind::kReturn:
      return frame(o.index < return_at_.size() ? return_at_[o.index] : 0);
    case SymbolKind::kLocal: {
      const Variable& v = f_.locals[o.index];
      if (IsSharedSpace(v.space)) {
        a.where = Where::kShared;
        a.displacement += static_cast<int64_t>(shared_.local_offset.at({index_, o.index}));
        return true;
      }
      if (IsGlobal(v.space)) {
        a.where = Where::kGlobal;
        a.base = AddressConstant(layout_.local_variable.at({index_, o.index}), a.displacement, 8);
        a.displacement = 0;
        return true;
      }
      return frame(local_at_[o.index]);
    }
    default:
      return Malformed("not the name of a variable");
  }
}

Key FunctionCompiler::MakeKey() const {
  Key k;
  const Instruction& i = *i_;
  k.opcode = i.opcode;
  k.type = i.type;
  k.type2 = i.type2;
  k.type3 = i.type3;
  k.compare = i.compare;
  k.bool_op = i.bool_op;
  k.rounding = i.rounding;
  k.ftz = i.has(Modifier::kFtz);
  k.sat = i.has(Modifier::kSat);
  k.satfinite = i.has(Modifier::kSatfinite);
  k.approx = i.has(Modifier::kApprox);
  k.full = i.has(Modifier::kFull);
  k.wide = i.has(Modifier::kWide);
  k.hi = i.has(Modifier::kHi) || i.compare == ptx::Compare::kHi;
  k.lo = i.has(Modifier::kLo) || i.compare == ptx::Compare::kLo;
  k.cc = i.has(Modifier::kCc);
  k.nan = i.has(Modifier::kNan);
  k.xorsign = i.has(Modifier::kXorsign);
  k.relu = i.has(Modifier::kRelu);
  k.clamp = i.has(Modifier::kClamp);
  k.wrap = i.has(Modifier::kWrap);
  k.left = i.has(Modifier::kL);
  k.right = i.has(Modifier::kR);
  k.shiftamt = i.has(Modifier::kShiftamt);
  k.operands = static_cast<uint8_t>(std::min<uint32_t>(i.operand_count, 255));
  const auto operands = f_.operands_of(i);
  k.pair = !operands.empty() && operands[0].pair != ptx::kNoIndex;
  for (Modifier w : {Modifier::kF4e, Modifier::kB4e, Modifier::kRc8, Modifier::kEcl, Modifier::kEcr,
                     Modifier::kRc16, Modifier::kFinite, Modifier::kInfinite, Modifier::kNumber,
                     Modifier::kNotanumber, Modifier::kNormal, Modifier::kSubnormal})
    if (i.has(w))
      k.word = w;
  return k;
}

bool FunctionCompiler::Arithmetic() {
  const auto operands = Operands();
  Shape shape = Select(MakeKey());
  if (!shape.fn)
    return Unsupported();
  const bool relaxed = i_->opcode == Opcode::kCvt;
  uint32_t needed = 1u + shape.sources;
  if (i_->opcode == Opcode::kLop3)
    ++needed;
  if (operands.size() != needed)
    return Malformed("the number of operands is not that of the instruction");
  uint32_t at[4] = {};
  for (uint32_t k = 0; k < shape.sources; ++k)
    if (!Source(operands[1 + k], shape.src[k], relaxed, at[k]))
      return false;
  Destination d;
  uint32_t pair = kNone;
  if (shape.dst == Type::kPred) {
    if (!PredicateDest(operands[0], d.at) || !PairDest(operands[0].pair, pair))
      return false;
    if (d.at == kNone && i_->opcode != Opcode::kSetp)
      d.at = Temp(0);
  } else {
    if (operands[0].pair != ptx::kNoIndex)
      return Unsupported();
    if (!Dest(operands[0], shape.dst, relaxed, d))
      return false;
  }
  if ((shape.carry_in || shape.carry_out) && carry_ == kNone)
    carry_ = Allocate(4);
  int64_t lut = 0;
  if (i_->opcode == Opcode::kLop3) {
    if (operands[4].kind != OperandKind::kImmediate)
      return Malformed("the table is not a constant");
    lut = static_cast<int64_t>(operands[4].imm & 0xFF);
  }
  Op& op = Emit(shape.fn);
  op.d = d.at;
  op.d2 = shape.carry_in || shape.carry_out ? carry_ : pair;
  op.a = at[0];
  op.b = at[1];
  op.c = at[2];
  op.e = shape.carry_in ? carry_ : at[3];
  op.mode = shape.mode;
  op.imm = lut;
  Widen(d);
  return true;
}

bool FunctionCompiler::SetInstruction() {
  const auto operands = Operands();
  const Type d_type = i_->type, s_type = i_->type2;
  Shape shape = Select(MakeKey());
  const Handler expand = ExpandHandler(d_type);
  if (!shape.fn || !expand)
    return Unsupported();
  if (operands.size() != 1u + shape.sources)
    return Malformed("the number of operands is not that of the instruction");
  const bool packed = s_type == Type::kF16x2 || s_type == Type::kBf16x2;
  const bool packed_result = d_type == Type::kF16x2 || d_type == Type::kBf16x2;
  if (packed != packed_result)
    return Unsupported();
  uint32_t at[4] = {};
  for (uint32_t k = 0; k < shape.sources; ++k)
    if (!Source(operands[1 + k], shape.src[k], false, at[k]))
      return false;
  Destination d;
  if (!Dest(operands[0], d_type, false, d))
    return false;
  const uint32_t low = Temp(0), high = packed ? Temp(0) : kNone;
  Op& compare = Emit(shape.fn);
  compare.d = low;
  compare.d2 = high;
  compare.a = at[0];
  compare.b = at[1];
  compare.c = at[2];
  compare.mode = shape.mode;
  Op& op = Emit(expand);
  op.d = d.at;
  op.a = low;
  op.b = packed ? high : low;
  switch (d_type) {
    case Type::kF32:
      op.imm = 0x3F800000;
      break;
    case Type::kF64:
      op.imm = 0x3FF0000000000000;
      break;
    case Type::kF16:
    case Type::kF16x2:
      op.imm = 0x3C00;
      break;
    case Type::kBf16:
    case Type::kBf16x2:
      op.imm = 0x3F80;
      break;
    default:
      op.imm = -1;
  }
  return true;
}

bool FunctionCompiler::MovInstruction() {
  const auto operands = Operands();
  if (operands.size() != 2)
    return Malformed("two operands are needed");
  const Operand &d = operands[0], &s = operands[1];
  const uint32_t bytes = LaneBytes(i_->type);
  auto members = [&](const Operand& o, std::vector<Operand>& list) {
    if (o.kind == OperandKind::kVector) {
      const auto span = f_.members_of(o);
      list.assign(span.begin(), span.end());
    } else if (o.kind == OperandKind::kRegister && !o.has_component &&
               f_.registers[o.index].vector > 1) {
      for (uint8_t k = 0; k < f_.registers[o.index].vector; ++k) {
        list.push_back(o);
        list.back().has_component = true;
        list.back().component = k;
      }
    }
  };
  std::vector<Operand> to, from;
  members(d, to);
  members(s, from);
  auto part_type = [](uint32_t size) {
    return size == 1   ? Type::kB8
           : size == 2 ? Type::kB16
           : size == 4 ? Type::kB32
           : size == 8 ? Type::kB64
                       : Type::kNone;
  };
  if (!to.empty() && !from.empty()) {  // one vector to another: element by element
    if (to.size() != from.size() || to.size() > 8)
      return Malformed("the vectors differ in length");
    std::vector<uint32_t> sources(from.size());
    Key key;
    key.opcode = Opcode::kMov;
    key.type = i_->type;
    const Handler fn = Select(key).fn;
    if (!fn)
      return Unsupported();
    std::vector<uint32_t> temps(from.size());
    for (size_t k = 0; k < from.size(); ++k) {
      if (!Source(from[k], i_->type, false, sources[k]))
        return false;
      temps[k] = Temp(bytes);
      Op& op = Emit(fn);
      op.a = sources[k];
      op.d = temps[k];
    }
    for (size_t k = 0; k < to.size(); ++k) {
      Destination dest;
      if (!Dest(to[k], i_->type, false, dest))
        return false;
      Op& op = Emit(fn);
      op.a = temps[k];
      op.d = dest.at;
    }
    return true;
  }
  if (!from.empty()) {
    const uint32_t parts = static_cast<uint32_t>(from.size());
    const Handler fn = SelectPack(bytes, parts);
    if (!fn)
      return Unsupported();
    const uint32_t extra = static_cast<uint32_t>(out_.extra.size());
    out_.extra.resize(extra + parts);
    for (uint32_t k = 0; k < parts; ++k) {
      uint32_t at;
      if (!Source(from[k], part_type(bytes / parts), false, at))
        return false;
      out_.extra[extra + k] = at;
    }
    Destination dest;
    if (!Dest(d, i_->type, false, dest))
      return false;
    Op& op = Emit(fn);
    op.d = dest.at;
    op.target = extra;
    return true;
  }
  if (!to.empty()) {
    const uint32_t parts = static_cast<uint32_t>(to.size());
    const Handler fn = SelectUnpack(bytes, parts);
    if (!fn)
      return Unsupported();
    uint32_t at;
    if (!Source(s, i_->type, false, at))
      return false;
    const uint32_t extra = static_cast<uint32_t>(out_.extra.size());
    out_.extra.resize(extra + parts);
    for (uint32_t k = 0; k < parts; ++k) {
      Destination dest;
      if (!Dest(to[k], part_type(bytes / parts), false, dest))
        return false;
      out_.extra[extra + k] = dest.at;
    }
    Op& op = Emit(fn);
    op.a = at;
    op.target = extra;
    return true;
  }
  if (s.kind == OperandKind::kSpecial && d.kind == OperandKind::kRegister && bytes != 0) {
    // Straight into the register, the common case.
    Destination dest;
    const bool wide = s.special == ptx::SpecialRegister::kClock64 ||
                      s.special == ptx::SpecialRegister::kGlobaltimer;
    if (bytes == (wide ? 8u : 4u)) {
      const Handler fn = SpecialHandler(s.special, bytes);
      if (!fn)
        return Malformed("the special register is not supported by softgpu");
      if (!Dest(d, i_->type, false, dest))
        return false;
      Op& op = Emit(fn);
      op.mode = s.component;
      op.imm = s.offset;
      op.d = dest.at;
      return true;
    }
  }
  return Arithmetic();
}

bool FunctionCompiler::LoadStore(bool load) {
  const auto operands = Operands();
  if (operands.size() < 2)
    return Malformed("two operands are needed");
  // A third operand can only be a cache policy, which changes nothing here.
  if (operands.size() > 2 && !(operands.size() == 3 && i_->has(Modifier::kL2CacheHint)))
    return Unsupported();
  const Operand& where = operands[load ? 1 : 0];
  const Operand& what = operands[load ? 0 : 1];
  const uint32_t bytes = LaneBytes(i_->type);
  const uint32_t count = i_->vector;
  if (bytes == 0 || i_->type == Type::kOther)
    return Unsupported();
  Address address;
  if (!Resolve(where, i_->space, address))
    return false;
  if (!load && (i_->space == Space::kConst || address.where == Where::kParam))
    return Malformed("the state space cannot be written");
  const Handler fn = load ? SelectLoad(address.where, bytes, count, address.address32)
                          : SelectStore(address.where, bytes, count, address.address32);
  if (!fn)
    return Unsupported();
  std::vector<Operand> parts;
  if (what.kind == OperandKind::kVector) {
    const auto span = f_.members_of(what);
    parts.assign(span.begin(), span.end());
  } else if (count > 1 && what.kind == OperandKind::kRegister && !what.has_component &&
             f_.registers[what.index].vector == count) {
    for (uint8_t k = 0; k < count; ++k) {
      parts.push_back(what);
      parts.back().has_component = true;
      parts.back().component = k;
    }
  } else {
    parts.push_back(what);
  }
  if (parts.size() != count)
    return Malformed("the vector has the wrong length");
  const bool poll = i_->has(Modifier::kVolatile) || i_->has(Modifier::kRelaxed) ||
                    i_->has(Modifier::kAcquire) || i_->has(Modifier::kMmio) ||
                    i_->has(Modifier::kCv);
  uint32_t at[8] = {};
  Destination dest[8];
  for (uint32_t k = 0; k < count; ++k) {
    if (load) {
      if (!Dest(parts[k], i_->type, true, dest[k]))
        return false;
      at[k] = dest[k].at;
    } else if (!Source(parts[k], i_->type, true, at[k])) {
      return false;
    }
  }
  uint32_t extra = 0;
  if (count > 1) {
    extra = static_cast<uint32_t>(out_.extra.size());
    out_.extra.insert(out_.extra.end(), at, at + count);
  }
  Op& op = Emit(fn);
  op.target = extra;
  op.count = static_cast<uint8_t>(count);
  if (load)
    op.d = at[0];
  else
    op.b = at[0];
  Place(op, address);
  if (poll && load)
    op.mode |= kMemPoll;
  if (load)
    for (uint32_t k = 0; k < count; ++k)
      Widen(dest[k]);
  return true;
}

bool FunctionCompiler::AtomInstruction(bool returns) {
  const auto operands = Operands();
  if (!i_->has_operation || i_->vector != 1 || i_->space_count > 1)
    return Unsupported();
  AtomOp op_kind;
  switch (i_->operation) {
    case Modifier::kAdd:
      op_kind = AtomOp::kAdd;
      break;
    case Modifier::kMin:
      op_kind = AtomOp::kMin;
      break;
    case Modifier::kMax:
      op_kind = AtomOp::kMax;
      break;
    case Modifier::kInc:
      op_kind = AtomOp::kInc;
      break;
    case Modifier::kDec:
      op_kind = AtomOp::kDec;
      break;
    case Modifier::kAnd:
      op_kind = AtomOp::kAnd;
      break;
    case Modifier::kOr:
      op_kind = AtomOp::kOr;
      break;
    case Modifier::kXor:
      op_kind = AtomOp::kXor;
      break;
    case Modifier::kExch:
      op_kind = AtomOp::kExch;
      break;
    case Modifier::kCas:
      op_kind = AtomOp::kCas;
      break;
    default:
      return Unsupported();
  }
  size_t needed = (returns ? 3 : 2) + (op_kind == AtomOp::kCas ? 1 : 0);
  if (operands.size() == needed + 1 && i_->has(Modifier::kL2CacheHint))
    ++needed;
  if (operands.size() != needed)
    return Malformed("the number of operands is not that of the instruction");
  const size_t first = returns ? 1 : 0;
  Address address;
  if (!Resolve(operands[first], i_->space, address))
    return false;
  if (address.where == Where::kParam || address.where == Where::kLocal)
    return Malformed("atomic operations need global or shared memory");
  if (address.address32) {
    Op& op = Emit(Resize(4, 8, false));
    op.a = address.base;
    op.d = address.base = Temp(8);
    address.address32 = false;
  }
  const Handler fn = SelectAtom(address.where, op_kind, i_->type, returns);
  if (!fn)
    return Unsupported();
  uint32_t b = 0, c = 0;
  if (!Source(operands[first + 1], i_->type, false, b))
    return false;
  if (op_kind == AtomOp::kCas && !Source(operands[first + 2], i_->type, false, c))
    return false;
  Destination dest;
  if (returns && !Dest(operands[0], i_->type, false, dest))
    return false;
  Op& op = Emit(fn);
  op.d = dest.at;
  op.b = b;
  op.c = c;
  Place(op, address);
  if (op_kind == AtomOp::kCas || op_kind == AtomOp::kExch || op_kind == AtomOp::kOr ||
      op_kind == AtomOp::kAnd || op_kind == AtomOp::kMax || op_kind == AtomOp::kMin ||
      op_kind == AtomOp::kAdd)
    op.mode |= kMemPoll;
  return true;
}

bool FunctionCompiler::CpInstruction() {
  const auto operands = Operands();
  if (!i_->has(Modifier::kAsync) || i_->has(Modifier::kBulk) || i_->has(Modifier::kTensor) ||
      i_->has(Modifier::kMbarrier) || i_->has(Modifier::kReduce))
    return Unsupported();
  if (i_->has(Modifier::kCommitGroup) || i_->has(Modifier::kWaitGroup) ||
      i_->has(Modifier::kWaitAll)) {
    Emit(Nothing);  // the copies are made at once
    return true;
  }
  // cp.async.{ca,cg}.shared.global [dst], [src], size{, src_size | ignore}{, policy}
  if (!IsSharedSpace(i_->space) || i_->space2 != Space::kGlobal || operands.size() < 3 ||
      operands[2].kind != OperandKind::kImmediate)
    return Unsupported();
  const Handler fn = SelectCpAsync(static_cast<uint32_t>(operands[2].imm));
  if (!fn)
    return Unsupported();
  Address to, from;
  if (!Resolve(operands[0], Space::kShared, to) || !Resolve(operands[1], Space::kGlobal, from))
    return false;
  auto widen = [&](Address& a) {
    if (!a.address32)
      return;
    Op& op = Emit(Resize(4, 8, false));
    op.a = a.base;
    op.d = a.base = Temp(8);
    a.address32 = false;
  };
  widen(to);
  widen(from);
  // Both displacements do not fit into one operation: the source's is added beforehand.
  if (from.displacement != 0) {
    Op& op = Emit(AddWindow);
    op.a = from.base;
    op.imm = from.displacement;
    op.d = from.base = Temp(8);
  }
  const size_t optional = operands.size() - (i_->has(Modifier::kL2CacheHint) ? 1 : 0);
  uint32_t size_at = kNone, ignore_at = kNone;
  if (optional > 3) {
    const Operand& o = operands[3];
    if (o.kind == OperandKind::kRegister && f_.registers[o.index].type == Type::kPred) {
      if (!Source(o, Type::kPred, false, ignore_at))
        return false;
    } else if (!Source(o, Type::kU32, false, size_at)) {
      return false;
    }
  }
  Op& op = Emit(fn);
  op.b = from.base;
  op.c = size_at;
  op.e = ignore_at;
  Place(op, to);
  return true;
}

bool FunctionCompiler::CvtaInstruction() {
  const auto operands = Operands();
  if (operands.size() != 2)
    return Malformed("two operands are needed");
  const uint32_t bytes = LaneBytes(i_->type);
  if (bytes != 8)
    return Unsupported();
  Space space = i_->space;
  int64_t window = 0;
  switch (space) {
    case Space::kShared:
    case Space::kSharedCluster:
      window = static_cast<int64_t>(kSharedWindow);
      break;
    case Space::kLocal:
      window = static_cast<int64_t>(kLocalWindow);
      break;
    case Space::kParam:
      // In a device function, parameters live in local memory.
      window = static_cast<int64_t>(f_.entry ? kParamWindow : kLocalWindow);
      break;
    case Space::kGlobal:
    case Space::kConst:
      break;
    default:
      return Unsupported();
  }
  uint32_t at;
  if (!Source(operands[1], i_->type, false, at))
    return false;
  Destination d;
  if (!Dest(operands[0], i_->type, false, d))
    return false;
  Op& op = Emit(AddWindow);
  op.a = at;
  op.d = d.at;
  op.imm = i_->has(Modifier::kTo) ? -window : window;
  return true;
}

bool FunctionCompiler::Callees(const Operand& list, const Function* callee, bool returns,
                               std::vector<CallValue>& values) {
  if (list.kind != OperandKind::kList)
    return Malformed("the call has an unknown form");
  const auto members = f_.members_of(list);
  const std::vector<ptx::Parameter>* formal =
      callee ? (returns ? &callee->returns : &callee->params) : nullptr;
  if (formal && formal->size() != members.size())
    return Malformed("the number of arguments is not that of the function");
  for (size_t k = 0; k < members.size(); ++k) {
    const Operand& o = members[k];
    CallValue v;
    if (o.kind == OperandKind::kSymbol &&
        (o.symbol_kind == SymbolKind::kLocal || o.symbol_kind == SymbolKind::kParameter ||
         o.symbol_kind == SymbolKind::kReturn)) {
      uint64_t at = 0;
      if (o.symbol_kind == SymbolKind::kLocal) {
        if (f_.locals[o.index].space != Space::kParam && f_.locals[o.index].space != Space::kLocal)
          return Malformed("an argument is not a parameter variable");
        at = local_at_[o.index];
        v.bytes = static_cast<uint32_t>(f_.locals[o.index].size);
      } else if (f_.entry) {
        return Malformed("a kernel's parameter cannot be handed on by name");
      } else if (o.symbol_kind == SymbolKind::kParameter) {
        at = param_at_[o.index];
        v.bytes = f_.params[o.index].size;
      } else {
        at = return_at_[o.index];
        v.bytes = f_.returns[o.index].size;
      }
      v.offset = static_cast<uint32_t>(at);
    } else if (o.kind == OperandKind::kRegister || o.kind == OperandKind::kImmediate) {
      v.in_memory = false;
      Type type = o.kind == OperandKind::kRegister ? f_.registers[o.index].type : Type::kNone;
      if (o.kind == OperandKind::kImmediate && formal)
        type = (*formal)[k].type;
      if (type == Type::kPred || LaneBytes(type) == 0)
        return Malformed("an argument of this form is not supported by softgpu");
      v.bytes = LaneBytes(type);
      if (returns) {
        Destination d;
        if (!Dest(o, type, false, d))
          return false;
        v.offset = d.at;
      } else if (!Source(o, type, false, v.offset)) {
        return false;
      }
    } else if (o.kind == OperandKind::kSink && returns) {
      v.bytes = 0;
    } else {
      return Malformed("an argument of this form is not supported by softgpu");
    }
    if (formal && v.bytes != 0 && v.bytes < (*formal)[k].size)
      return Malformed("an argument is smaller than the parameter");
    values.push_back(v);
  }
  return true;
}

bool FunctionCompiler::CallInstruction() {
  const auto operands = Operands();
  if (operands.size() < 3)
    return Malformed("the call has an unknown form");
  BranchAround();
  CallSite site;
  const Operand& target = operands[1];
  const Function* callee = nullptr;
  if (target.kind == OperandKind::kSymbol && target.symbol_kind == SymbolKind::kFunction) {
    callee = &m_.functions[target.index];
    if (!callee->has_body) {
      const std::string& name = callee->name;
      if (name == "vprintf")
        site.intrinsic = Intrinsic::kPrintf;
      else if (name == "__assertfail")
        site.intrinsic = Intrinsic::kAssertFail;
      else if (name == "malloc")
        site.intrinsic = Intrinsic::kMalloc;
      else if (name == "free")
        site.intrinsic = Intrinsic::kFree;
      else
        return Fail("call of " + name + ", which has no body, is not supported by softgpu");
    } else if (callee->entry) {
      return Malformed("a kernel cannot be called");
    } else {
      site.callee = kernel_.by_module_index[target.index];
    }
  } else if (target.kind == OperandKind::kRegister) {
    if (!Source(target, Type::kU64, false, site.target))
      return false;
  } else {
    return Malformed("the call has an unknown form");
  }
  if (!Callees(operands[0], callee, true, site.returns) ||
      !Callees(operands[2], callee, false, site.args))
    return false;
  if (site.intrinsic != Intrinsic::kNone) {
    const size_t args = site.intrinsic == Intrinsic::kPrintf       ? 2
                        : site.intrinsic == Intrinsic::kAssertFail ? 5
                                                                   : 1;
    const bool returns =
        site.intrinsic == Intrinsic::kPrintf || site.intrinsic == Intrinsic::kMalloc;
    if (site.args.size() != args || site.returns.size() > (returns ? 1u : 0u))
      return Malformed("the arguments are not those of the built-in function");
  }
  Op& op = Emit(site.intrinsic != Intrinsic::kNone ? Act<kActIntrinsic> : Act<kActCall>);
  op.target = static_cast<uint32_t>(out_.calls.size());
  out_.calls.push_back(std::move(site));
  return true;
}

bool FunctionCompiler::BarInstruction() {
  const auto operands = Operands();
  if (i_->has(Modifier::kWarp))
    return SyncInstruction(SyncKind::kWarpBarrier);
  BranchAround();
  BarrierSite site;
  if (i_->has(Modifier::kCluster)) {
    // One block is a cluster of its own (larger ones are refused at launch). Arriving waits for
    // nobody; waiting is where all threads meet.
    if (i_->has(Modifier::kArrive)) {
      Emit(Nothing);
      return true;
    }
    site.id = Constant(16, 4);
  } else {
    size_t next = 0;
    const bool red = i_->has(Modifier::kRed) || i_->operation == Modifier::kRed;
    if (red) {
      if (operands.size() < 3)
        return Malformed("the number of operands is not that of the instruction");
      if (i_->has(Modifier::kPopc) || (i_->has_operation && i_->operation == Modifier::kPopc)) {
        site.kind = BarrierKind::kRedPopc;
        Destination d;
        if (!Dest(operands[0], Type::kU32, false, d))
          return false;
        site.d = d.at;
      } else {
        const bool all =
            i_->has(Modifier::kAnd) || (i_->has_operation && i_->operation == Modifier::kAnd);
        site.kind = all ? BarrierKind::kRedAnd : BarrierKind::kRedOr;
        if (!PredicateDest(operands[0], site.d))
          return false;
        if (site.d == kNone)
          site.d = Temp(0);
      }
      next = 1;
    } else if (i_->has(Modifier::kArrive)) {
      site.kind = BarrierKind::kArrive;
    }
    const size_t last = operands.size() - (red ? 1 : 0);
    if (next >= last || last - next > 2)
      return Malformed("the number of operands is not that of the instruction");
    if (!Source(operands[next], Type::kU32, false, site.id))
      return false;
    if (last - next == 2 && !Source(operands[next + 1], Type::kU32, false, site.count))
      return false;
    if (site.kind == BarrierKind::kArrive && site.count == kNone)
      return Malformed("the number of threads is missing");
    if (red && !Source(operands[last], Type::kPred, false, site.predicate))
      return false;
  }
  Op& op = Emit(Act<kActBarrier>);
  op.target = static_cast<uint32_t>(out_.barriers.size());
  out_.barriers.push_back(site);
  return true;
}

bool FunctionCompiler::SyncInstruction(SyncKind kind) {
  const auto operands = Operands();
  BranchAround();
  SyncSite site;
  site.kind = kind;
  const bool sync = i_->has(Modifier::kSync) || kind == SyncKind::kWarpBarrier;
  const size_t members = sync ? 1 : 0;
  auto count = [&](size_t n) {
    return operands.size() == n + members ||
           Malformed("the number of operands is not that of the instruction");
  };
  Destination d;
  switch (kind) {
    case SyncKind::kShuffle:
      if (!count(4))
        return false;
      if (LaneBytes(i_->type) != 4)
        return Unsupported();
      site.variant = i_->has(Modifier::kUp)     ? 0
                     : i_->has(Modifier::kDown) ? 1
                     : i_->has(Modifier::kBfly) ? 2
                                                : 3;
      if (!Source(operands[1], Type::kB32, false, site.a) ||
          !Source(operands[2], Type::kU32, false, site.b) ||
          !Source(operands[3], Type::kU32, false, site.c) ||
          !Dest(operands[0], Type::kB32, false, d) || !PairDest(operands[0].pair, site.d2))
        return false;
      break;
    case SyncKind::kVote:
      if (!count(2))
        return false;
      site.variant = i_->has(Modifier::kBallot) ? 3
                     : i_->has(Modifier::kUni)  ? 2
                     : i_->has(Modifier::kAny)  ? 1
                                                : 0;
      if (!Source(operands[1], Type::kPred, false, site.a) ||
          !Dest(operands[0], site.variant == 3 ? Type::kB32 : Type::kPred, false, d))
        return false;
      break;
    case SyncKind::kMatchAny:
      if (!count(2))
        return false;
      if (i_->has(Modifier::kAll))
        site.kind = SyncKind::kMatchAll;
      site.wide = LaneBytes(i_->type) == 8;
      if (!site.wide && LaneBytes(i_->type) != 4)
        return Unsupported();
      if (!Source(operands[1], i_->type, false, site.a) ||
          !Dest(operands[0], Type::kB32, false, d) || !PairDest(operands[0].pair, site.d2))
        return false;
      break;
    case SyncKind::kRedux: {
      if (!count(2))
        return false;
      if (!i_->has_operation || LaneBytes(i_->type) != 4)
        return Unsupported();
      site.is_signed = i_->type == Type::kS32;
      site.is_float = i_->type == Type::kF32;
      site.abs = i_->has(Modifier::kAbs);
      site.nan = i_->has(Modifier::kNan);
      AtomOp op;
      switch (i_->operation) {
        case Modifier::kAdd:
          op = AtomOp::kAdd;
          break;
        case Modifier::kMin:
          op = AtomOp::kMin;
          break;
        case Modifier::kMax:
          op = AtomOp::kMax;
          break;
        case Modifier::kAnd:
          op = AtomOp::kAnd;
          break;
        case Modifier::kOr:
          op = AtomOp::kOr;
          break;
        case Modifier::kXor:
          op = AtomOp::kXor;
          break;
        default:
          return Unsupported();
      }
      if (site.is_float && op != AtomOp::kMin && op != AtomOp::kMax)
        return Unsupported();
      site.variant = static_cast<uint8_t>(op);
      if (!Source(operands[1], i_->type, false, site.a) || !Dest(operands[0], i_->type, false, d))
        return false;
      break;
    }
    case SyncKind::kElect:
      if (!count(1))
        return false;
      if (!Dest(operands[0], Type::kB32, false, d) || !PairDest(operands[0].pair, site.d2))
        return false;
      break;
    default:
      if (!count(0))
        return false;
      break;
  }
  site.d = d.at;
  if (sync && !Source(operands.back(), Type::kU32, false, site.member))
    return false;
  Op& op = Emit(Act<kActWarpSync>);
  op.target = static_cast<uint32_t>(out_.syncs.size());
  out_.syncs.push_back(site);
  return true;
}

bool FunctionCompiler::BranchInstruction() {
  const auto operands = Operands();
  const uint32_t n = static_cast<uint32_t>(f_.code.size());
  if (i_->opcode == Opcode::kBra) {
    if (operands.size() != 1 || operands[0].kind != OperandKind::kLabel)
      return Malformed("the target is not a label");
    Op& op = Emit(Branch);
    op.target = operands[0].index;
    op.imm = reconverge_[source_];
    branches_.push_back(static_cast<uint32_t>(out_.ops.size() - 1));
    return true;
  }
  if (i_->opcode == Opcode::kRet && !f_.entry) {
    Op& op = Emit(Branch);
    op.target = n;
    op.imm = reconverge_[source_];
    branches_.push_back(static_cast<uint32_t>(out_.ops.size() - 1));
    return true;
  }
  if (i_->opcode == Opcode::kRet || i_->opcode == Opcode::kExit) {
    Emit(Act<kActExit>);
    return true;
  }
  if (!i_->has(Modifier::kIdx) || operands.size() != 2 ||
      operands[1].kind != OperandKind::kSymbol ||
      operands[1].symbol_kind != SymbolKind::kBranchTable || f_.tables[operands[1].index].is_call)
    return Unsupported();
  // The lanes of a guarded brx that fall through are parted off first; all meet where brx's paths
  // meet.
  const uint32_t meet = reconverge_[source_];
  if (guard_ != kNone) {
    Op& op = Emit(Branch);
    op.guard_negated = !op.guard_negated;
    op.target = source_ + 1;
    op.imm = meet;
    branches_.push_back(static_cast<uint32_t>(out_.ops.size() - 1));
    guard_ = kNone;
  }
  uint32_t at;
  if (!Source(operands[0], Type::kU32, false, at))
    return false;
  Op& op = Emit(Act<kActBrx>);
  op.a = at;
  op.target = static_cast<uint32_t>(out_.tables.size());
  op.imm = meet;
  out_.tables.push_back(f_.tables[operands[1].index].targets);
  return true;
}

bool FunctionCompiler::One() {
  if (i_->has_unknown_modifier)
    return Unsupported();
  const auto operands = Operands();
  switch (i_->opcode) {
    case Opcode::kBra:
    case Opcode::kBrx:
    case Opcode::kRet:
    case Opcode::kExit:
      return BranchInstruction();
    case Opcode::kCall:
      return CallInstruction();
    case Opcode::kTrap:
      Emit(Act<kActTrap>);
      return true;
    case Opcode::kBar:
    case Opcode::kBarrier:
      return BarInstruction();
    case Opcode::kMembar:
    case Opcode::kFence:
      Emit(FenceAll);
      return true;
    case Opcode::kLd:
    case Opcode::kLdu:
      return LoadStore(true);
    case Opcode::kSt:
      if (i_->has(Modifier::kAsync) || i_->has(Modifier::kBulk))
        return Unsupported();
      return LoadStore(false);
    case Opcode::kAtom:
      return AtomInstruction(true);
    case Opcode::kRed:
      if (i_->has(Modifier::kAsync))
        return Unsupported();
      return AtomInstruction(false);
    case Opcode::kCp:
      return CpInstruction();
    case Opcode::kCvta:
      return CvtaInstruction();
    case Opcode::kMov:
      return MovInstruction();
    case Opcode::kSet:
      return SetInstruction();
    case Opcode::kShfl:
      return SyncInstruction(SyncKind::kShuffle);
    case Opcode::kVote:
      return SyncInstruction(SyncKind::kVote);
    case Opcode::kMatch:
      return SyncInstruction(SyncKind::kMatchAny);
    case Opcode::kRedux:
      return SyncInstruction(SyncKind::kRedux);
    case Opcode::kElect:
      return SyncInstruction(SyncKind::kElect);
    case Opcode::kActivemask: {
      Destination d;
      if (operands.size() != 1 || !Dest(operands[0], Type::kB32, false, d))
        return Malformed("one register of 32 bits is needed");
      Emit(ActiveMask).d = d.at;
      return true;
    }
    case Opcode::kIsspacep: {
      if (operands.size() != 2)
        return Malformed("two operands are needed");
      uint32_t at, d;
      if (!Source(operands[1], Type::kU64, false, at) || !PredicateDest(operands[0], d))
        return false;
      Op& op = Emit(IsSpace);
      op.a = at;
      op.d = d == kNone ? Temp(0) : d;
      switch (i_->space) {
        case Space::kGlobal:
          op.space = static_cast<uint8_t>(Where::kGlobal);
          break;
        case Space::kShared:
        case Space::kSharedCluster:
          op.space = static_cast<uint8_t>(Where::kShared);
          break;
        case Space::kLocal:
          op.space = static_cast<uint8_t>(Where::kLocal);
          break;
        case Space::kParam:
          op.space = static_cast<uint8_t>(Where::kParam);
          break;
        default:
          return Unsupported();
      }
      return true;
    }
    case Opcode::kNanosleep:
      Emit(Act<kActYield>);
      return true;
    case Opcode::kCreatepolicy: {
      Destination d;
      if (operands.empty() || !Dest(operands[0], Type::kB64, false, d))
        return Malformed("a register of 64 bits is needed");
      Op& op = Emit(AddWindow);
      op.a = Constant(0, 8);
      op.d = d.at;
      return true;
    }
    case Opcode::kGriddepcontrol:
    case Opcode::kPrefetch:
    case Opcode::kPrefetchu:
    case Opcode::kApplypriority:
    case Opcode::kDiscard:
    case Opcode::kPmevent:
    case Opcode::kSetmaxnreg:
    case Opcode::kBrkpt:
      if (i_->has(Modifier::kTensormap))
        return Unsupported();
      Emit(Nothing);
      return true;
    default:
      return Arithmetic();
  }
}

bool FunctionCompiler::Instructions() {
  const uint32_t n = static_cast<uint32_t>(f_.code.size());
  reconverge_ = ReconvergencePoints(f_);
  join_at_.assign(n + 1, 0);
  join_at_[n] = 1;
  for (uint32_t k = 0; k < n; ++k) {
    const Instruction& i = f_.code[k];
    if (i.opcode == Opcode::kBra || i.opcode == Opcode::kBrx || i.opcode == Opcode::kRet)
      join_at_[reconverge_[k]] = 1;
    if (i.guard != ptx::kNoIndex)
      switch (i.opcode) {
        case Opcode::kCall:
        case Opcode::kBar:
        case Opcode::kBarrier:
        case Opcode::kShfl:
        case Opcode::kVote:
        case Opcode::kMatch:
        case Opcode::kRedux:
        case Opcode::kElect:
          join_at_[k + 1] = 1;
          break;
        default:
          break;
      }
  }
  start_of_.assign(n + 1, 0);
  out_.lines.resize(n + 1, f_.line);
  out_.texts.resize(n + 1, kNone);
  for (uint32_t k = 0; k <= n; ++k) {
    source_ = k;
    i_ = k < n ? &f_.code[k] : nullptr;
    start_of_[k] = static_cast<uint32_t>(out_.ops.size());
    guard_ = kNone;
    guard_negated_ = false;
    if (join_at_[k]) {
      first_ = false;
      Emit(JoinPoint);
    }
    if (k == n) {
      Emit(f_.entry ? Act<kActExit> : Act<kActRet>);
      break;
    }
    out_.lines[k] = i_->line;
    out_.texts[k] = i_->text;
    first_ = true;
    for (auto& [bytes, used] : temps_used_)
      used = 0;
    if (i_->guard != ptx::kNoIndex) {
      if (f_.registers[i_->guard].type != Type::kPred)
        return Malformed("the guard is not a predicate");
      guard_ = registers_[i_->guard];
      guard_negated_ = i_->guard_negated;
    }
    if (!One())
      return false;
    if (!error_.message.empty())
      return false;
    if (out_.ops.size() > (64u << 20) || out_.constants.size() > kMaxRegisterBytes)
      return Fail("the function is too large");
  }
  for (uint32_t b : branches_) {
    Op& op = out_.ops[b];
    op.target = start_of_[op.target] - b;  // relative, wraps
    op.imm = start_of_[static_cast<size_t>(op.imm)];
  }
  for (auto& op : out_.ops)
    if (op.fn == Act<kActBrx>)
      op.imm = start_of_[static_cast<size_t>(op.imm)];
  for (auto& table : out_.tables)
    for (uint32_t& t : table)
      t = start_of_[t];
  // What an instruction writes, for faults that flip a bit of it.
  out_.destinations.resize(n + 1);
  for (uint32_t k = 0; k < n; ++k) {
    const Instruction& i = f_.code[k];
    const auto operands = f_.operands_of(i);
    if (operands.empty() || i.opcode == Opcode::kSt || i.opcode == Opcode::kRed ||
        i.opcode == Opcode::kBra || i.opcode == Opcode::kBrx || i.opcode == Opcode::kCall ||
        ((i.opcode == Opcode::kBar || i.opcode == Opcode::kBarrier) && !i.has(Modifier::kRed)))
      continue;
    const Operand* o = &operands[0];
    if (o->kind == OperandKind::kVector && o->count > 0)
      o = &f_.members_of(*o)[0];
    if (o->kind != OperandKind::kRegister || registers_[o->index] == kNone)
      continue;
    const uint32_t bytes = LaneBytes(f_.registers[o->index].type);
    const uint32_t component = o->has_component ? o->component : 0;
    out_.destinations[k] = {registers_[o->index] + component * bytes * kLanes, bytes};
  }
  return true;
}

tl::expected<FunctionCode, CompileError> FunctionCompiler::Compile() {
  out_.name = f_.name;
  if (!LayOut() || !Instructions())
    return tl::unexpected(error_);
  out_.register_bytes = static_cast<uint32_t>(AlignUp(out_.register_bytes, 64));
  return std::move(out_);
}

// Functions that the kernel may run, the kernel first.
std::vector<uint32_t> Reachable(const Module& m, uint32_t kernel, bool& indirect) {
  std::vector<uint32_t> list{kernel};
  std::vector<uint8_t> seen(m.functions.size(), 0);
  seen[kernel] = 1;
  indirect = false;
  auto add = [&](uint32_t f) {
    if (!seen[f] && m.functions[f].has_body && !m.functions[f].entry) {
      seen[f] = 1;
      list.push_back(f);
    }
  };
  bool taken_in_data = false;
  for (size_t at = 0; at < list.size(); ++at) {
    const Function& f = m.functions[list[at]];
    for (const Operand& o : f.operands)
      if (o.kind == OperandKind::kSymbol && o.symbol_kind == SymbolKind::kFunction)
        add(o.index);
    for (const auto& t : f.tables)
      if (t.is_call)
        for (uint32_t target : t.targets)
          add(target);
    for (const Instruction& i : f.code)
      if (i.opcode == Opcode::kCall && f.operands_of(i).size() > 1 &&
          f.operands_of(i)[1].kind == OperandKind::kRegister)
        indirect = true;
    if (indirect && !taken_in_data) {
      taken_in_data = true;
      for (const Variable& v : m.variables)
        for (const auto& r : v.relocations)
          if (r.symbol_kind == SymbolKind::kFunction)
            add(r.symbol);
    }
  }
  return list;
}

// An estimate of the registers that a compiler would need: what overlaps if each value lived from
// its first to its last mention.
uint32_t EstimateRegisters(const Function& f) {
  const size_t n = f.registers.size();
  std::vector<uint32_t> first(n, kNone), last(n, 0);
  auto mention = [&](uint32_t r, uint32_t at) {
    first[r] = std::min(first[r], at);
    last[r] = at;
  };
  for (uint32_t k = 0; k < f.code.size(); ++k) {
    auto visit = [&](const Operand& o, auto& self, int depth) -> void {
      if (o.kind == OperandKind::kRegister ||
          (o.kind == OperandKind::kAddress && o.base == AddressBase::kRegister))
        mention(o.index, k);
      if ((o.kind == OperandKind::kVector || o.kind == OperandKind::kList) && depth < 3)
        for (const Operand& member : f.members_of(o))
          self(member, self, depth + 1);
    };
    for (const Operand& o : f.operands_of(f.code[k]))
      visit(o, visit, 0);
  }
  std::vector<int64_t> change(f.code.size() + 2, 0);
  for (size_t r = 0; r < n; ++r) {
    if (first[r] == kNone || f.registers[r].type == Type::kPred)
      continue;
    const int64_t words = std::max<int64_t>(1, LaneBytes(f.registers[r].type) / 4);
    change[first[r]] += words;
    change[last[r] + 1] -= words;
  }
  int64_t now = 0, most = 0;
  for (int64_t c : change) {
    now += c;
    most = std::max(most, now);
  }
  return static_cast<uint32_t>(std::clamp<int64_t>(most + 6, 16, 255));
}

tl::expected<void, CompileError> LayOutVariables(const Module& m, ModuleLayout& layout,
                                                 CompiledProgram& program) {
  layout.variable_of.assign(m.variables.size(), kNone);
  std::vector<std::pair<const Variable*, std::string>> list;
  auto add = [&](const Variable& v, std::string name) {
    list.emplace_back(&v, std::move(name));
    return static_cast<uint32_t>(list.size() - 1);
  };
  for (uint32_t k = 0; k < m.variables.size(); ++k) {
    const Variable& v = m.variables[k];
    if (IsGlobal(v.space) && !v.is_extern)
      layout.variable_of[k] = add(v, v.name);
  }
  for (uint32_t f = 0; f < m.functions.size(); ++f)
    for (uint32_t k = 0; k < m.functions[f].locals.size(); ++k) {
      const Variable& v = m.functions[f].locals[k];
      if (IsGlobal(v.space))
        layout.local_variable[{f, k}] = add(v, m.functions[f].name + "$" + v.name);
    }
  for (const auto& [v, name] : list) {
    VariableInfo info;
    info.name = name;
    info.is_const = v->space == Space::kConst;
    info.is_managed = v->managed;
    info.size = v->size;
    info.align = std::max<uint64_t>(1, v->align);
    program.variables_.push_back(std::move(info));
    CompiledProgram::Initializer init;
    init.bytes.resize(v->init.size());
    if (!v->init.empty())
      std::memcpy(init.bytes.data(), v->init.data(), v->init.size());
    for (const auto& r : v->relocations) {
      CompiledProgram::Initializer::Relocation to;
      to.offset = r.offset;
      to.size = r.size;
      to.addend = r.addend;
      to.mask = r.mask;
      to.is_function = r.symbol_kind == SymbolKind::kFunction;
      to.symbol = r.symbol;
      if (!to.is_function) {
        to.symbol = layout.variable_of[r.symbol];
        if (to.symbol == kNone)
          return tl::unexpected(CompileError{"line " + std::to_string(v->line) +
                                                 ": the initializer of " + v->name +
                                                 " names a variable without a global address",
                                             static_cast<int>(v->line)});
      }
      init.relocations.push_back(to);
    }
    program.initializers_.push_back(std::move(init));
  }
  return {};
}

tl::expected<void, CompileError> LayOutShared(const Module& m,
                                              const std::vector<uint32_t>& functions,
                                              SharedLayout& shared, KernelCode& kernel) {
  shared.variable_offset.assign(m.variables.size(), SharedLayout::kNoOffset);
  std::set<uint32_t> used;
  for (uint32_t f : functions)
    for (const Operand& o : m.functions[f].operands)
      if ((o.kind == OperandKind::kSymbol ||
           (o.kind == OperandKind::kAddress && o.base == AddressBase::kSymbol)) &&
          o.symbol_kind == SymbolKind::kVariable && IsSharedSpace(m.variables[o.index].space))
        used.insert(o.index);
  uint64_t at = 0, dynamic_align = 16;
  auto place = [&](const Variable& v) {
    at = AlignUp(at, std::clamp<uint64_t>(v.align, 1, 4096));
    const uint64_t here = at;
    at += v.size;
    return here;
  };
  auto is_dynamic = [](const Variable& v) { return v.unsized || v.is_extern; };
  std::vector<uint64_t*> dynamic;
  for (uint32_t k : used) {
    const Variable& v = m.variables[k];
    if (is_dynamic(v)) {
      dynamic.push_back(&shared.variable_offset[k]);
      dynamic_align = std::max<uint64_t>(dynamic_align, std::min<uint32_t>(v.align, 4096));
    } else {
      shared.variable_offset[k] = place(v);
    }
  }
  for (uint32_t f : functions)
    for (uint32_t k = 0; k < m.functions[f].locals.size(); ++k) {
      const Variable& v = m.functions[f].locals[k];
      if (!IsSharedSpace(v.space))
        continue;
      uint64_t& offset = shared.local_offset[{f, k}];
      if (is_dynamic(v)) {
        dynamic.push_back(&offset);
        dynamic_align = std::max<uint64_t>(dynamic_align, std::min<uint32_t>(v.align, 4096));
      } else {
        offset = place(v);
      }
      if (at > (1u << 30))
        break;
    }
  if (at > (16u << 20))
    return tl::unexpected(CompileError{
        "kernel " + m.functions[functions[0]].name + " declares too much shared memory",
        static_cast<int>(m.functions[functions[0]].line)});
  kernel.static_shared = static_cast<uint32_t>(at);
  kernel.dynamic_offset = static_cast<uint32_t>(AlignUp(at, dynamic_align));
  for (uint64_t* offset : dynamic)
    *offset = kernel.dynamic_offset;
  return {};
}

// Local memory for the deepest chain of calls; 0: not bounded.
uint32_t StackBytes(const KernelCode& kernel, bool indirect) {
  const size_t n = kernel.functions.size();
  std::vector<uint64_t> depth(n, 0);
  std::vector<uint8_t> state(n, 0);  // 1: on the path, 2: done
  std::vector<std::pair<uint32_t, size_t>> stack{{0, 0}};
  if (indirect)
    return 0;
  state[0] = 1;
  while (!stack.empty()) {
    auto& [f, next] = stack.back();
    const auto& calls = kernel.functions[f].calls;
    if (next < calls.size()) {
      const uint32_t callee = calls[next++].callee;
      if (callee == kNone)
        continue;
      if (state[callee] == 1)
        return 0;
      if (state[callee] == 0) {
        state[callee] = 1;
        stack.emplace_back(callee, 0);
      }
    } else {
      uint64_t deepest = 0;
      for (const auto& c : calls)
        if (c.callee != kNone)
          deepest = std::max(deepest, depth[c.callee]);
      depth[f] = kernel.functions[f].local_bytes + deepest;
      state[f] = 2;
      stack.pop_back();
    }
  }
  return static_cast<uint32_t>(std::max<uint64_t>(16, std::min<uint64_t>(depth[0], 1u << 30)));
}

}  // namespace

tl::expected<std::shared_ptr<const CompiledProgram>, CompileError> CompileModule(const Module& m) {
  auto program = std::make_shared<CompiledProgram>();
  if (m.address_size != 64)
    return tl::unexpected(CompileError{"modules with 32-bit addresses are not supported", 0});
  program->texts_ = m.opcode_texts;
  ModuleLayout layout;
  if (auto ok = LayOutVariables(m, layout, *program); !ok)
    return tl::unexpected(ok.error());
  for (uint32_t k = 0; k < m.functions.size(); ++k) {
    const Function& f = m.functions[k];
    if (!f.entry || !f.has_body)
      continue;
    KernelCode code;
    bool indirect = false;
    const std::vector<uint32_t> functions = Reachable(m, k, indirect);
    code.by_module_index.assign(m.functions.size(), kNone);
    for (uint32_t at = 0; at < functions.size(); ++at)
      code.by_module_index[functions[at]] = at;
    SharedLayout shared;
    if (auto ok = LayOutShared(m, functions, shared, code); !ok)
      return tl::unexpected(ok.error());
    for (uint32_t index : functions) {
      auto compiled = FunctionCompiler(m, index, layout, shared, code).Compile();
      if (!compiled)
        return tl::unexpected(compiled.error());
      code.has_relocations |= !compiled->relocations.empty();
      code.functions.push_back(std::move(*compiled));
    }
    code.stack_bytes = StackBytes(code, indirect);
    if (code.stack_bytes == 0) {
      code.stack_bytes = kRecursiveStack;
      for (const auto& function : code.functions)
        code.stack_bytes = std::max(code.stack_bytes, 4 * function.local_bytes);
    }
    KernelInfo info;
    info.name = f.name;
    for (const auto& p : f.params)
      info.parameters.push_back({p.offset, p.size, p.align});
    info.parameter_bytes = f.param_bytes;
    info.static_shared_bytes = code.static_shared;
    info.local_bytes = 0;
    for (const auto& function : code.functions)
      info.local_bytes += function.local_bytes;
    auto product = [](const uint32_t(&d)[3]) {
      uint64_t all = 1;
      for (uint32_t x : d)
        all *= std::max<uint32_t>(1, x);
      return all;
    };
    if (f.max_threads[0] != 0)
      info.max_threads = static_cast<uint32_t>(std::min<uint64_t>(1024, product(f.max_threads)));
    if (f.required_threads[0] != 0)
      info.max_threads =
          static_cast<uint32_t>(std::min<uint64_t>(1024, product(f.required_threads)));
    // A real compiler keeps to what lets the largest block run.
    info.registers = std::min(EstimateRegisters(f),
                              65536 / AlignUp(std::max(1u, info.max_threads), 32) >= 256
                                  ? 255u
                                  : static_cast<uint32_t>(65536 / AlignUp(info.max_threads, 32)));
    program->kernels_.push_back(std::move(info));
    program->code_.push_back(std::move(code));
  }
  return std::shared_ptr<const CompiledProgram>(std::move(program));
}

std::vector<uint8_t> CompiledProgram::InitialBytes(size_t index,
                                                   std::span<const uint64_t> addresses) const {
  std::vector<uint8_t> bytes;
  if (index >= initializers_.size())
    return bytes;
  const Initializer& init = initializers_[index];
  bytes = init.bytes;
  bytes.resize(variables_[index].size, 0);
  for (const auto& r : init.relocations) {
    uint64_t value = r.is_function ? kFunctionWindow + kFunctionStep * (uint64_t{r.symbol} + 1)
                     : r.symbol < addresses.size() ? addresses[r.symbol]
                                                   : 0;
    value += static_cast<uint64_t>(r.addend);
    if (r.mask)
      value = (value & r.mask) >> std::countr_zero(r.mask);
    if (r.size <= 8 && r.offset <= bytes.size() && r.size <= bytes.size() - r.offset)
      std::memcpy(bytes.data() + r.offset, &value, r.size);
  }
  return bytes;
}

}  // namespace gpurecover::softgpu::interp
