// SPDX-License-Identifier: Apache-2.0
//
// The graph as IR: each value that is used becomes a register, a join becomes copies at the ends of
// the blocks before it.
#include <algorithm>
#include <optional>

#include "image/sass/graph.h"

namespace gpurecover::image::sass {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::Opcode;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::SymbolKind;
using ptx::Type;

// The stack of a thread as a variable: displacements in it are positive, and it is larger than any.
constexpr std::int64_t kStackSpan = 1 << 20;
constexpr std::size_t kMaxCode = 1u << 20;
constexpr std::uint32_t kUnnamedConstant = Code::kNoConstant;

Type type_of(std::uint8_t width) {
  return width == 1 ? Type::kPred : width == 32 ? Type::kB32 : Type::kB64;
}

class Emitter {
 public:
  Emitter(Graph& graph, ptx::Module& module) : g_(graph), m_(module) {}

  std::string run() {
    prepare();
    mark();
    assign_registers();
    std::vector<std::uint32_t> begin(g_.blocks.size(), 0);
    for (std::uint32_t b = 0; b < g_.blocks.size(); ++b) {
      begin[b] = static_cast<std::uint32_t>(f_.code.size());
      emit_block(b);
      if (f_.code.size() > kMaxCode)
        return "the kernel is too large or too tangled to be analysed";
    }
    for (const auto& [operand, block] : labels_)
      f_.operands[operand].index = begin[block];
    m_.functions.insert(m_.functions.begin(), std::move(f_));
    return {};
  }

 private:
  // --- The module around the code ---

  void prepare() {
    m_.machine_code = true;
    m_.sm = g_.code->sm;
    m_.target = "sm_" + std::to_string(m_.sm);
    f_.name = g_.kernel->name;
    f_.entry = f_.has_body = f_.visible = true;
    for (const KernelParameter& p : g_.kernel->parameters) {
      ptx::Parameter q;
      q.name = "param" + std::to_string(p.ordinal);
      q.type = p.size == 1   ? Type::kB8
               : p.size == 2 ? Type::kB16
               : p.size == 4 ? Type::kB32
               : p.size == 8 ? Type::kB64
                             : Type::kB8;
      q.size = p.size;
      q.offset = p.offset;
      q.is_pointer = p.space != 0;
      f_.params.push_back(q);
    }
    ptx::Parameter block;
    block.name = "(parameters)";
    block.type = Type::kB8;
    block.size = g_.kernel->param_bytes;
    f_.params.push_back(block);
    f_.param_bytes = g_.kernel->param_bytes;
    ptx::Variable stack;
    stack.name = "(stack)";
    stack.space = Space::kLocal;
    stack.type = Type::kB8;
    stack.align = 16;
    stack.size = kStackSpan;
    f_.locals.push_back(stack);
  }

  // The variable of the module that a symbol is; kNoId: it is a function or unknown.
  std::uint32_t variable(std::uint32_t symbol) {
    const auto it = variables_.find(symbol);
    if (it != variables_.end())
      return it->second;
    ptx::Variable v;
    v.type = Type::kB8;
    if (symbol == kUnnamedConstant) {
      v.name = "(constant memory)";
      v.space = Space::kConst;
    } else {
      const Symbol& s = g_.code->symbols[symbol];
      const auto& sections = g_.code->elf.sections;
      const std::string_view section =
          s.section < sections.size() ? sections[s.section].name : std::string_view{};
      if (s.function || s.name.empty())
        return kNoId;
      v.name = std::string(s.name);
      v.size = s.size;
      v.is_extern = s.section == 0;
      if (section == ".nv.constant3") {
        v.space = Space::kConst;
      } else if (section.starts_with(".nv.shared")) {
        v.space = Space::kShared;
      } else {
        v.space = Space::kGlobal;
      }
    }
    m_.variables.push_back(std::move(v));
    return variables_[symbol] = static_cast<std::uint32_t>(m_.variables.size() - 1);
  }
  std::uint32_t function(std::uint32_t symbol) {
    const auto it = functions_.find(symbol);
    if (it != functions_.end())
      return it->second;
    ptx::Function f;
    f.name = std::string(g_.code->symbols[symbol].name);
    f.is_extern = true;
    m_.functions.push_back(std::move(f));
    // The kernel goes in front of them at the end.
    return functions_[symbol] = static_cast<std::uint32_t>(m_.functions.size());
  }

  // --- What is used ---

  void mark() {
    used_.assign(g_.nodes.size(), false);
    std::vector<Id> open;
    auto use = [&](Id id) {
      if (id == kNoId)
        return;
      id = g_.resolve(id);
      if (!used_[id]) {
        used_[id] = true;
        open.push_back(id);
      }
    };
    for (const Effect& e : g_.effects) {
      use(e.guard);
      use(e.address);
      use(e.address2);
      for (const Id d : e.data)
        use(d);
    }
    for (const Block& b : g_.blocks)
      use(b.condition);
    while (!open.empty()) {
      const Id id = open.back();
      open.pop_back();
      const Node& n = g_[id];
      if (n.op == Op::kPhi) {
        for (const Id a : g_.phis[n.imm])
          use(a);
        continue;
      }
      for (int k = 0; k < n.count; ++k)
        use(n.args[k]);
    }
    results_.assign(g_.effects.size(), {});
    for (Id id = 0; id < g_.nodes.size(); ++id) {
      if (used_[id] && g_[id].op == Op::kResult && g_[id].replaced == kNoId) {
        auto& r = results_[g_[g_.resolve(g_[id].args[0])].imm];
        if (r.size() <= g_[id].imm)
          r.resize(g_[id].imm + 1, kNoId);
        r[g_[id].imm] = id;
      }
    }
  }

  std::uint32_t new_register(std::uint8_t width) {
    ptx::Register r;
    r.type = type_of(width);
    r.name = "%v" + std::to_string(f_.registers.size());
    f_.registers.push_back(std::move(r));
    return static_cast<std::uint32_t>(f_.registers.size() - 1);
  }
  void assign_registers() {
    registers_.assign(g_.nodes.size(), kNoId);
    incoming_.assign(g_.phis.size(), kNoId);
    for (Id id = 0; id < g_.nodes.size(); ++id) {
      const Node& n = g_[id];
      if (!used_[id] || n.replaced != kNoId || n.op == Op::kConst || n.op == Op::kEffect)
        continue;
      registers_[id] = new_register(n.width);
      if (n.op == Op::kPhi)
        incoming_[n.imm] = new_register(n.width);
    }
  }

  // --- Instructions and operands ---

  static Operand reg(std::uint32_t r) {
    Operand o;
    o.kind = OperandKind::kRegister;
    o.index = r;
    return o;
  }
  static Operand immediate(std::uint64_t v) {
    Operand o;
    o.kind = OperandKind::kImmediate;
    o.imm = v;
    return o;
  }
  Operand value(Id id) {
    id = g_.resolve(id);
    const Node& n = g_[id];
    if (n.op != Op::kConst)
      return reg(registers_[id]);
    // As PTX writes them: 32-bit constants by their sign.
    return immediate(n.width == 32 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(
                                         static_cast<std::int32_t>(n.imm)))
                                   : n.imm);
  }
  static Operand symbol(SymbolKind kind, std::uint32_t index, std::int64_t offset) {
    Operand o;
    o.kind = OperandKind::kSymbol;
    o.symbol_kind = kind;
    o.index = index;
    o.offset = offset;
    return o;
  }
  static Operand address_of_symbol(SymbolKind kind, std::uint32_t index, std::int64_t offset) {
    Operand o = symbol(kind, index, offset);
    o.kind = OperandKind::kAddress;
    o.base = ptx::AddressBase::kSymbol;
    return o;
  }
  static Operand address_of_register(std::uint32_t r, std::int64_t offset) {
    Operand o;
    o.kind = OperandKind::kAddress;
    o.base = ptx::AddressBase::kRegister;
    o.index = r;
    o.offset = offset;
    return o;
  }
  Operand vector(const std::vector<Operand>& parts) {
    Operand o;
    o.kind = OperandKind::kVector;
    o.first = static_cast<std::uint32_t>(f_.operands.size());
    o.count = static_cast<std::uint32_t>(parts.size());
    f_.operands.insert(f_.operands.end(), parts.begin(), parts.end());
    return o;
  }
  Operand list() {
    Operand o;
    o.kind = OperandKind::kList;
    o.first = static_cast<std::uint32_t>(f_.operands.size());
    return o;
  }

  std::uint32_t text(const Instruction& i, std::string given = {}) {
    if (given.empty()) {
      given = std::string(ptx::name_of(i.opcode));
      if (i.type != Type::kNone)
        given += "." + std::string(ptx::name_of(i.type));
    }
    const auto [it, is_new] =
        texts_.try_emplace(given, static_cast<std::uint32_t>(m_.opcode_texts.size()));
    if (is_new)
      m_.opcode_texts.push_back(given);
    return it->second;
  }
  void add(Instruction i, std::initializer_list<Operand> operands, std::string given = {}) {
    i.text = text(i, std::move(given));
    i.line = line_;
    i.first_operand = static_cast<std::uint32_t>(f_.operands.size());
    i.operand_count = static_cast<std::uint32_t>(operands.size());
    f_.operands.insert(f_.operands.end(), operands.begin(), operands.end());
    f_.code.push_back(std::move(i));
  }
  static Instruction instruction(Opcode opcode, Type type, Type type2 = Type::kNone) {
    Instruction i;
    i.opcode = opcode;
    i.type = type;
    i.type2 = type2;
    return i;
  }
  static Instruction with(Instruction i, Modifier m) {
    i.modifiers.set(static_cast<std::size_t>(m));
    return i;
  }
  void compute(Opcode opcode, Type type, std::uint32_t to, std::initializer_list<Operand> sources) {
    Instruction i = instruction(opcode, type);
    i.text = text(i);
    i.line = line_;
    i.first_operand = static_cast<std::uint32_t>(f_.operands.size());
    i.operand_count = static_cast<std::uint32_t>(sources.size() + 1);
    f_.operands.push_back(reg(to));
    f_.operands.insert(f_.operands.end(), sources.begin(), sources.end());
    f_.code.push_back(std::move(i));
  }
  void convert(std::uint32_t to, Type to_type, Operand from, Type from_type) {
    add(instruction(Opcode::kCvt, to_type, from_type), {reg(to), from});
  }

  // --- Values ---

  void copy(std::uint32_t to, std::uint8_t width, const Operand& from) {
    compute(Opcode::kMov, type_of(width), to, {from});
  }

  // Displacement in the stack, if the value is the stack's end and a constant.
  std::optional<std::int64_t> stack_displacement(Id id, int depth = 0) {
    id = g_.resolve(id);
    const Node& n = g_[id];
    if (n.op == Op::kStackEnd)
      return kStackSpan;
    if (n.op != Op::kAdd3 || (n.imm & kExtended) != 0 || depth > 64)
      return std::nullopt;
    std::optional<std::int64_t> base;
    std::int64_t sum = 0;
    for (int k = 0; k < 3; ++k) {
      const Id a = g_.resolve(n.args[k]);
      const bool minus = (n.imm >> k & 1) != 0;
      if (g_[a].op == Op::kConst) {
        const std::int64_t v = static_cast<std::int32_t>(g_[a].imm);
        sum += minus ? -v : v;
        continue;
      }
      const auto inner = base || minus ? std::nullopt : stack_displacement(a, depth + 1);
      if (!inner)
        return std::nullopt;
      base = inner;
    }
    if (!base)
      return std::nullopt;
    const std::int64_t at = *base + sum;
    return at >= 0 && at <= kStackSpan ? std::optional(at) : std::nullopt;
  }

  void leaf(Id id) {
    const Node& n = g_[id];
    const std::uint32_t to = registers_[id];
    switch (n.op) {
      case Op::kParam: {
        Instruction i = instruction(Opcode::kLd, type_of(n.width));
        i.space = Space::kParam;
        i.space_count = 1;
        add(i, {reg(to), parameter(static_cast<std::int64_t>(n.imm), n.width / 8)});
        break;
      }
      case Op::kConstantWord: {
        Instruction i = instruction(Opcode::kLd, type_of(n.width));
        i.space = Space::kConst;
        i.space_count = 1;
        const std::uint32_t at = g_.code->constant_at(n.imm);
        const auto offset =
            static_cast<std::int64_t>(n.imm) -
            (at == kUnnamedConstant ? 0 : static_cast<std::int64_t>(g_.code->symbols[at].value));
        add(i, {reg(to), address_of_symbol(SymbolKind::kVariable, variable(at), offset)},
            "ld.const");
        break;
      }
      case Op::kDriver: {
        const DriverWords& words = driver_words(g_.code->sm);
        const bool local = n.imm == words.local_window;
        if (n.width == 64 &&
            (local || (words.shared_window != 0 && n.imm == words.shared_window))) {
          // The window itself: the generic address of what lies at zero.
          Instruction i = instruction(Opcode::kCvta, Type::kU64);
          i.space = local ? Space::kLocal : Space::kShared;
          i.space_count = 1;
          add(i, {reg(to), immediate(0)}, local ? "cvta.local.u64" : "cvta.shared.u64");
          break;
        }
        Operand o;
        o.kind = OperandKind::kSpecial;
        o.special = ptx::SpecialRegister::kDriverWord;
        o.offset = static_cast<std::int64_t>(n.imm);
        copy(to, n.width, o);
        break;
      }
      case Op::kSpecial: {
        Operand o;
        o.kind = OperandKind::kSpecial;
        o.special = static_cast<ptx::SpecialRegister>(n.imm & 0xFF);
        o.component = static_cast<std::uint8_t>(n.imm >> 8);
        o.has_component = o.special != ptx::SpecialRegister::kLaneid;
        compute(Opcode::kMov, Type::kU32, to, {o});
        break;
      }
      case Op::kStackEnd:
        copy(to, 32, symbol(SymbolKind::kLocal, 0, kStackSpan));
        break;
      case Op::kSymbol: {
        const auto at = static_cast<std::uint32_t>(n.imm);
        if (const std::uint32_t v = variable(at); v != kNoId) {
          copy(to, 64, symbol(SymbolKind::kVariable, v, 0));
        } else {
          copy(to, 64, symbol(SymbolKind::kFunction, function(at), 0));
        }
        break;
      }
      case Op::kSharedHigh:
        opaque(to, 32);
        break;
      default:
        break;
    }
  }
  void opaque(std::uint32_t to, std::uint8_t width) {
    add(instruction(Opcode::kOpaque, type_of(width)), {reg(to)});
  }
  Operand parameter(std::int64_t at, std::uint32_t size) {
    for (std::uint32_t k = 0; k + 1 < f_.params.size(); ++k) {
      const ptx::Parameter& p = f_.params[k];
      if (at >= p.offset && at + size <= std::int64_t{p.offset} + p.size)
        return address_of_symbol(SymbolKind::kParameter, k, at - p.offset);
    }
    return address_of_symbol(SymbolKind::kParameter,
                             static_cast<std::uint32_t>(f_.params.size() - 1), at);
  }

  void add3(Id id, std::uint32_t to) {
    const Node& n = g_[id];
    const bool extended = (n.imm & kExtended) != 0;
    std::vector<std::pair<Operand, bool>> terms;
    for (int k = 0; k < 3; ++k) {
      const bool minus = (n.imm >> k & 1) != 0;
      if (g_.is_const(n.args[k], 0) && !(minus && extended))
        continue;
      if (minus && extended) {
        const std::uint32_t t = new_register(32);
        compute(Opcode::kNot, Type::kB32, t, {value(n.args[k])});
        terms.emplace_back(reg(t), false);
      } else {
        terms.emplace_back(value(n.args[k]), minus);
      }
    }
    for (int k = 3; extended && k < 5; ++k) {
      const Id c = g_.resolve(n.args[k]);
      if (g_[c].op == Op::kConst) {
        if (g_[c].imm != 0)
          terms.emplace_back(immediate(1), false);
        continue;
      }
      const std::uint32_t t = new_register(32);
      compute(Opcode::kSelp, Type::kB32, t, {immediate(1), immediate(0), value(c)});
      terms.emplace_back(reg(t), false);
    }
    std::stable_sort(terms.begin(), terms.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    if (terms.empty())
      return copy(to, 32, immediate(0));
    Operand sum = terms[0].first;
    if (terms[0].second) {
      const std::uint32_t t = terms.size() == 1 ? to : new_register(32);
      compute(Opcode::kNeg, Type::kS32, t, {sum});
      sum = reg(t);
      if (terms.size() == 1)
        return;
    } else if (terms.size() == 1) {
      return copy(to, 32, sum);
    }
    for (std::size_t k = 1; k < terms.size(); ++k) {
      const std::uint32_t t = k + 1 == terms.size() ? to : new_register(32);
      compute(terms[k].second ? Opcode::kSub : Opcode::kAdd, Type::kS32, t, {sum, terms[k].first});
      sum = reg(t);
    }
  }

  // The sum in 64 bits tells the carry; where three words are added, only both carries together
  // are certain.
  void carry(Id id, std::uint32_t to) {
    const Id of = g_.resolve(g_[id].args[0]);
    const Node& n = g_[of];
    std::uint32_t sum = kNoId;
    unsigned terms = 0;
    for (int k = 0; k < 3; ++k) {
      const bool minus = (n.imm >> k & 1) != 0;
      if (g_.is_const(n.args[k], 0) && !minus)
        continue;
      ++terms;
      const std::uint32_t wide = new_register(64);
      convert(wide, Type::kU64, value(n.args[k]), Type::kU32);
      std::uint32_t term = wide;
      if (minus) {
        term = new_register(64);
        compute(Opcode::kSub, Type::kS64, term, {immediate(std::uint64_t{1} << 32), reg(wide)});
      }
      if (sum != kNoId) {
        const std::uint32_t t = new_register(64);
        compute(Opcode::kAdd, Type::kS64, t, {reg(sum), reg(term)});
        term = t;
      }
      sum = term;
    }
    if (sum == kNoId || terms > 2)
      return opaque(to, 1);
    Instruction i = instruction(Opcode::kSetp, Type::kU64);
    i.compare = ptx::Compare::kGe;
    add(i, {reg(to), reg(sum), immediate((g_[id].imm + 1) << 32)}, "setp.ge.u64");
  }

  void compare_float(Id id, std::uint32_t to) {
    using C = ptx::Compare;
    static constexpr C kHow[16] = {C::kNone, C::kLt,  C::kEq,  C::kLe,  C::kGt,  C::kNe,
                                   C::kGe,   C::kNum, C::kNan, C::kLtu, C::kEqu, C::kLeu,
                                   C::kGtu,  C::kNeu, C::kGeu, C::kNone};
    const Node& n = g_[id];
    Instruction i = instruction(Opcode::kSetp, Type::kF32);
    i.compare = kHow[n.imm & 15];
    add(i, {reg(to), value(n.args[0]), value(n.args[1])}, "setp.f32");
  }
  void compare(Id id, std::uint32_t to) {
    const Node& n = g_[id];
    static constexpr ptx::Compare kHow[8] = {
        ptx::Compare::kNone, ptx::Compare::kLt, ptx::Compare::kEq, ptx::Compare::kLe,
        ptx::Compare::kGt,   ptx::Compare::kNe, ptx::Compare::kGe, ptx::Compare::kNone};
    static constexpr const char* kNames[8] = {"", "lt", "eq", "le", "gt", "ne", "ge", ""};
    const bool is_signed = (n.imm & kCompareSigned) != 0, wide = (n.imm & kCompare64) != 0;
    Instruction i = instruction(Opcode::kSetp, wide ? (is_signed ? Type::kS64 : Type::kU64)
                                                    : (is_signed ? Type::kS32 : Type::kU32));
    i.compare = kHow[n.imm & 7];
    add(i, {reg(to), value(n.args[0]), value(n.args[1])},
        std::string("setp.") + kNames[n.imm & 7] + "." + std::string(ptx::name_of(i.type)));
  }

  void logic(Id id, std::uint32_t to) {
    const Node& n = g_[id];
    const auto table = static_cast<std::uint32_t>(n.imm);
    struct Two {
      std::uint32_t table;
      int a, b;
      Opcode opcode;
    };
    static constexpr Two kTwo[] = {
        {0xC0, 0, 1, Opcode::kAnd}, {0xA0, 0, 2, Opcode::kAnd}, {0x88, 1, 2, Opcode::kAnd},
        {0xFC, 0, 1, Opcode::kOr},  {0xFA, 0, 2, Opcode::kOr},  {0xEE, 1, 2, Opcode::kOr},
        {0x3C, 0, 1, Opcode::kXor}, {0x5A, 0, 2, Opcode::kXor}, {0x66, 1, 2, Opcode::kXor},
    };
    for (const Two& t : kTwo) {
      if (t.table == table)
        return compute(t.opcode, Type::kB32, to, {value(n.args[t.a]), value(n.args[t.b])});
    }
    static constexpr std::pair<std::uint32_t, int> kOne[] = {{0x0F, 0}, {0x33, 1}, {0x55, 2}};
    for (const auto& [t, k] : kOne) {
      if (t == table)
        return compute(Opcode::kNot, Type::kB32, to, {value(n.args[k])});
    }
    compute(Opcode::kLop3, Type::kB32, to,
            {value(n.args[0]), value(n.args[1]), value(n.args[2]), immediate(table)});
  }

  void select(Id id, std::uint32_t to) {
    const Node& n = g_[id];
    if (n.width != 1)
      return compute(Opcode::kSelp, type_of(n.width), to,
                     {value(n.args[1]), value(n.args[2]), value(n.args[0])});
    const std::uint32_t yes = new_register(1), not_p = new_register(1), no = new_register(1);
    compute(Opcode::kAnd, Type::kPred, yes, {value(n.args[0]), value(n.args[1])});
    compute(Opcode::kNot, Type::kPred, not_p, {value(n.args[0])});
    compute(Opcode::kAnd, Type::kPred, no, {reg(not_p), value(n.args[2])});
    compute(Opcode::kOr, Type::kPred, to, {reg(yes), reg(no)});
  }

  void node(Id id) {
    const Node& n = g_[id];
    const std::uint32_t to = registers_[id];
    auto arg = [&](int k) { return value(n.args[k]); };
    switch (n.op) {
      case Op::kAdd3:
        return add3(id, to);
      case Op::kMad: {
        Operand c = arg(2);
        const bool no_addend = g_.is_const(n.args[2], 0);
        if (n.imm == 0 && !no_addend)
          return add(with(instruction(Opcode::kMad, Type::kS32), Modifier::kLo),
                     {reg(to), arg(0), arg(1), c}, "mad.lo.s32");
        const std::uint32_t product = n.imm == 0 ? to : new_register(32);
        add(with(instruction(Opcode::kMul, Type::kS32), Modifier::kLo),
            {reg(product), arg(0), arg(1)}, "mul.lo.s32");
        if (n.imm == 0)
          return;
        if ((n.imm & 1) == 0)
          return compute(Opcode::kSub, Type::kS32, to, {reg(product), c});
        if ((n.imm & 2) == 0)
          return compute(Opcode::kSub, Type::kS32, to, {c, reg(product)});
        const std::uint32_t sum = new_register(32);
        compute(Opcode::kAdd, Type::kS32, sum, {reg(product), c});
        return compute(Opcode::kNeg, Type::kS32, to, {reg(sum)});
      }
      case Op::kLogic:
        return logic(id, to);
      case Op::kShiftLeft:
      case Op::kShiftRight: {
        Operand amount = arg(1);
        if ((n.imm & 1) != 0) {
          const std::uint32_t t = new_register(32);
          compute(Opcode::kAnd, Type::kB32, t, {amount, immediate(31)});
          amount = reg(t);
        }
        if (n.op == Op::kShiftLeft)
          return compute(Opcode::kShl, Type::kB32, to, {arg(0), amount});
        return compute(Opcode::kShr, (n.imm & 2) != 0 ? Type::kS32 : Type::kU32, to,
                       {arg(0), amount});
      }
      case Op::kFunnel:
        return add(with(with(instruction(Opcode::kShf, Type::kB32), Modifier::kR), Modifier::kWrap),
                   {reg(to), arg(0), arg(1), immediate(n.imm)}, "shf.r.wrap.b32");
      case Op::kMin:
      case Op::kMax:
        return compute(n.op == Op::kMin ? Opcode::kMin : Opcode::kMax,
                       (n.imm & 2) != 0 ? Type::kS32 : Type::kU32, to, {arg(0), arg(1)});
      case Op::kSelect:
        return select(id, to);
      case Op::kPermute:
        return compute(Opcode::kPrmt, Type::kB32, to, {arg(0), arg(2), arg(1)});
      case Op::kUniform:
        return compute(Opcode::kUniform, type_of(n.width), to, {arg(0)});
      case Op::kLow:
        return convert(to, Type::kU32, arg(0), Type::kU64);
      case Op::kHigh: {
        const std::uint32_t t = new_register(64);
        compute(Opcode::kShr, Type::kU64, t, {arg(0), immediate(32)});
        return convert(to, Type::kU32, reg(t), Type::kU64);
      }
      case Op::kOpaque:
      case Op::kCompareHigh:
        return opaque(to, n.width);
      case Op::kCarry:
        return carry(id, to);
      case Op::kCompare:
        return compare(id, to);
      case Op::kCompareFloat:
        return compare_float(id, to);
      case Op::kNot:
        return compute(Opcode::kNot, Type::kPred, to, {arg(0)});
      case Op::kAnd:
        return compute(Opcode::kAnd, Type::kPred, to, {arg(0), arg(1)});
      case Op::kOr:
        return compute(Opcode::kOr, Type::kPred, to, {arg(0), arg(1)});
      case Op::kXor:
        return compute(Opcode::kXor, Type::kPred, to, {arg(0), arg(1)});
      case Op::kPack:
        return compute(Opcode::kMov, Type::kB64, to, {vector({arg(0), arg(1)})});
      case Op::kAdd:
        return compute(Opcode::kAdd, Type::kS64, to, {arg(0), arg(1)});
      case Op::kSub:
        return compute(Opcode::kSub, Type::kS64, to, {arg(0), arg(1)});
      case Op::kWide: {
        const bool is_signed = (n.imm & 2) != 0;
        return add(
            with(instruction(Opcode::kMul, is_signed ? Type::kS32 : Type::kU32), Modifier::kWide),
            {reg(to), arg(0), arg(1)}, is_signed ? "mul.wide.s32" : "mul.wide.u32");
      }
      case Op::kMultiply:
        return add(with(instruction(Opcode::kMul, Type::kS64), Modifier::kLo),
                   {reg(to), arg(0), arg(1)}, "mul.lo.s64");
      case Op::kLeft:
        return compute(Opcode::kShl, Type::kB64, to, {arg(0), immediate(n.imm)});
      case Op::kRight:
        return compute(Opcode::kShr, n.flag ? Type::kS64 : Type::kU64, to,
                       {arg(0), immediate(n.imm)});
      case Op::kBits: {
        static constexpr Opcode kHow[] = {Opcode::kAnd, Opcode::kOr, Opcode::kXor};
        return compute(kHow[n.imm], Type::kB64, to, {arg(0), arg(1)});
      }
      case Op::kSigned:
        return convert(to, Type::kS64, arg(0), Type::kS32);
      case Op::kUnsigned:
        return convert(to, Type::kU64, arg(0), Type::kU32);
      case Op::kLocal:
      case Op::kShared: {
        const std::uint32_t t = new_register(64);
        const auto at =
            n.op == Op::kLocal ? stack_displacement(n.args[0]) : std::optional<std::int64_t>();
        if (at) {
          copy(t, 64, symbol(SymbolKind::kLocal, 0, *at));
        } else {
          convert(t, Type::kU64, arg(0), Type::kU32);
        }
        Instruction i = instruction(Opcode::kCvta, Type::kU64);
        i.space = n.op == Op::kLocal ? Space::kLocal : Space::kShared;
        i.space_count = 1;
        return add(i, {reg(to), reg(t)}, n.op == Op::kLocal ? "cvta.local.u64" : "cvta.shared.u64");
      }
      case Op::kEffect:
        return effect(id);
      default:
        return;  // leaves, joins, results
    }
  }

  // --- Effects ---

  Operand memory(Id address, std::int64_t offset, bool local) {
    const Node& n = g_[g_.resolve(address)];
    if (local) {
      const auto at = stack_displacement(address);
      if (at && *at + offset >= 0 && *at + offset < kStackSpan)
        return address_of_symbol(SymbolKind::kLocal, 0, *at + offset);
    }
    if (n.op == Op::kConst) {
      Operand o;
      o.kind = OperandKind::kAddress;
      o.base = ptx::AddressBase::kNone;
      o.offset = static_cast<std::int64_t>(n.imm) + offset;
      return o;
    }
    return address_of_register(registers_[g_.resolve(address)], offset);
  }
  // symbol + index + offset.
  Operand indexed(Operand base, Id index, std::int64_t offset) {
    const std::uint32_t start = new_register(64), wide = new_register(64), sum = new_register(64);
    base.kind = OperandKind::kSymbol;
    base.offset = 0;
    copy(start, 64, base);
    convert(wide, Type::kU64, value(index), Type::kU32);
    compute(Opcode::kAdd, Type::kS64, sum, {reg(start), reg(wide)});
    return address_of_register(sum, offset);
  }

  void effect(Id id) {
    const Effect& e = g_.effects[g_[id].imm];
    Instruction i;
    i.opcode = e.opcode;
    i.space = e.space;
    i.space2 = e.space2;
    i.space_count = static_cast<std::uint8_t>((e.space != Space::kGeneric ? 1 : 0) +
                                              (e.space2 != Space::kGeneric ? 1 : 0));
    i.type = e.type;
    i.vector = e.vector;
    i.modifiers = e.modifiers;
    i.has_operation = e.has_operation;
    i.operation = e.operation;
    if (e.guard != kNoId) {
      const Id guard = g_.resolve(e.guard);
      i.guard_negated = g_[guard].op == Op::kNot;
      i.guard = registers_[i.guard_negated ? g_.resolve(g_[guard].args[0]) : guard];
      if (i.guard == kNoId) {
        i.guard_negated = false;
        i.guard = registers_[guard];
      }
    }
    std::vector<Operand> operands;
    auto results = [&] {
      std::vector<Operand> parts;
      for (std::uint32_t k = 0; k < e.results; ++k) {
        const auto& r = results_[g_[id].imm];
        const bool is_used = k < r.size() && r[k] != kNoId;
        parts.push_back(reg(is_used ? registers_[r[k]] : new_register(e.result_width)));
      }
      operands.push_back(parts.size() == 1 ? parts[0] : vector(parts));
    };
    auto place = [&]() -> Operand {
      if (e.whole_block) {
        if (e.address == kNoId)
          return parameter(e.offset, ptx::size_of(e.type) * e.vector);
        return indexed(
            symbol(SymbolKind::kParameter, static_cast<std::uint32_t>(f_.params.size() - 1), 0),
            e.address, e.offset);
      }
      if (e.symbol != kNoId) {
        std::uint32_t v = variable(e.symbol);
        if (v == kNoId)
          v = variable(kUnnamedConstant);
        if (e.address == kNoId)
          return address_of_symbol(SymbolKind::kVariable, v, e.offset);
        return indexed(symbol(SymbolKind::kVariable, v, 0), e.address, e.offset);
      }
      return memory(e.address, e.offset, e.space == Space::kLocal);
    };
    switch (e.opcode) {
      case Opcode::kLd:
        if (e.results == 0)
          return;
        results();
        operands.push_back(place());
        break;
      case Opcode::kSt: {
        operands.push_back(place());
        // Pairs that are no values of their own are stored word by word.
        const bool words = std::all_of(e.data.begin(), e.data.end(),
                                       [&](Id d) { return g_[g_.resolve(d)].op == Op::kPack; });
        std::vector<Operand> parts;
        for (const Id d : e.data) {
          const Node& n = g_[g_.resolve(d)];
          if (words) {
            parts.push_back(value(n.args[0]));
            parts.push_back(value(n.args[1]));
          } else {
            parts.push_back(value(d));
          }
        }
        if (words && !e.data.empty()) {
          i.type = Type::kB32;
          i.vector = static_cast<std::uint8_t>(parts.size());
        }
        operands.push_back(parts.size() == 1 ? parts[0] : vector(parts));
        break;
      }
      case Opcode::kAtom:
        if (e.results == 0) {
          // The result is set apart from it.
          operands.push_back(reg(new_register(64)));
        } else {
          results();
        }
        [[fallthrough]];
      case Opcode::kRed:
        operands.push_back(place());
        for (const Id d : e.data)
          operands.push_back(value(d));
        break;
      case Opcode::kCp:
        if (e.address == kNoId)
          break;
        operands.push_back(memory(e.address, e.offset, false));
        operands.push_back(memory(e.address2, e.offset2, false));
        for (const Id d : e.data)
          operands.push_back(value(d));
        break;
      case Opcode::kDiscard:
        operands.push_back(memory(e.address, e.offset, false));
        break;
      case Opcode::kCall: {
        operands.push_back(list());
        const Id to = g_.resolve(e.address);
        if (g_[to].op == Op::kSymbol && variable(static_cast<std::uint32_t>(g_[to].imm)) == kNoId) {
          operands.push_back(
              symbol(SymbolKind::kFunction, function(static_cast<std::uint32_t>(g_[to].imm)), 0));
        } else {
          operands.push_back(value(to));
        }
        operands.push_back(list());
        break;
      }
      default:
        break;
    }
    i.text = text(i, e.text);
    i.line = e.line;
    i.first_operand = static_cast<std::uint32_t>(f_.operands.size());
    i.operand_count = static_cast<std::uint32_t>(operands.size());
    f_.operands.insert(f_.operands.end(), operands.begin(), operands.end());
    f_.code.push_back(std::move(i));
  }

  // --- Blocks ---

  void emit_block(std::uint32_t b) {
    const Block& block = g_.blocks[b];
    line_ = block.lines.empty() ? 0 : block.lines[0];
    if (b == 0) {
      for (Id id = 0; id < g_.nodes.size(); ++id) {
        if (registers_[id] != kNoId)
          leaf(id);
      }
    }
    for (std::size_t s = 0; s < block.slots.size(); ++s) {
      line_ = block.lines[s];
      for (const Id id : block.slots[s]) {
        const Node& n = g_[id];
        if (n.replaced != kNoId)
          continue;
        if (n.op == Op::kEffect) {
          node(id);
        } else if (used_[id] && n.op == Op::kPhi) {
          copy(registers_[id], n.width, reg(incoming_[n.imm]));
        } else if (used_[id]) {
          node(id);
        }
      }
    }
    if (block.target != kNoId)
      flow_into(b, block.target);
    if (block.next != kNoId && block.next != block.target)
      flow_into(b, block.next);
    switch (block.end) {
      case End::kExit:
        add(instruction(Opcode::kExit, Type::kNone), {});
        break;
      case End::kTrap:
        add(instruction(Opcode::kTrap, Type::kNone), {});
        break;
      case End::kBranch: {
        const Id condition = g_.resolve(block.condition);
        if (g_[condition].op == Op::kConst) {
          branch(g_[condition].imm != 0 ? block.target : block.next, kNoId, b);
          break;
        }
        branch(block.target, registers_[condition], b);
        [[fallthrough]];
      }
      case End::kNext:
        branch(block.next, kNoId, b);
        break;
    }
  }
  void flow_into(std::uint32_t from, std::uint32_t to) {
    const auto& predecessors = g_.blocks[to].predecessors;
    const auto at = std::find(predecessors.begin(), predecessors.end(), from);
    if (at == predecessors.end())
      return;
    const auto k = static_cast<std::size_t>(at - predecessors.begin());
    for (const Id id : g_.blocks[to].slots[0]) {
      const Node& n = g_[id];
      if (n.op != Op::kPhi || n.replaced != kNoId || !used_[id] || g_.phis[n.imm].size() <= k)
        continue;
      const Id a = g_.resolve(g_.phis[n.imm][k]);
      if (g_[a].op != Op::kUndef)
        copy(incoming_[n.imm], n.width, value(a));
    }
  }
  void branch(std::uint32_t to, std::uint32_t guard, std::uint32_t from) {
    if (guard == kNoId && to == from + 1)
      return;
    Instruction i = instruction(Opcode::kBra, Type::kNone);
    i.guard = guard;
    Operand o;
    o.kind = OperandKind::kLabel;
    labels_.emplace_back(static_cast<std::uint32_t>(f_.operands.size()), to);
    o.index = 0;
    add(i, {o});
  }

  Graph& g_;
  ptx::Module& m_;
  ptx::Function f_;
  std::vector<bool> used_;
  std::vector<std::uint32_t> registers_, incoming_;
  std::vector<std::vector<Id>> results_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> labels_;  // operand, block
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::unordered_map<std::uint32_t, std::uint32_t> variables_, functions_;
  std::uint32_t line_ = 0;
};

}  // namespace

std::string emit(Graph& graph, ptx::Module& module) {
  if (graph.too_large)
    return "the kernel is too large or too tangled to be analysed";
  return Emitter(graph, module).run();
}

}  // namespace gpurecover::image::sass
