// SPDX-License-Identifier: Apache-2.0
#include "idempotency/access_summary.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "idempotency/abstract_value.h"
#include "idempotency/address_program.h"
#include "idempotency/written_registers.h"

namespace gpurecover::idempotency {

namespace ptx = image::ptx;
using ptx::Function;
using ptx::Instruction;
using ptx::Modifier;
using ptx::Module;
using ptx::Opcode;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::SymbolKind;
using ptx::Type;

namespace {

// Without displacements and constants, except the null pointer.
Form coarse_form(Form f) {
  f.exact = false;
  if (f.constant && f.value != 0)
    return Form{};
  if (!f.constant)
    f.value = 0;
  return f;
}

}  // namespace

bool Value::add(const Form& added) {
  if (top) {
    return false;
  }
  const Form form = coarse ? coarse_form(added) : added;
  if (std::find(forms.begin(), forms.end(), form) != forms.end()) {
    return false;
  }
  if (forms.size() >= kMaxForms) {
    if (coarse) {
      set_top();
      return true;
    }
    // Forgetting displacements may bring the forms together before everything is given up.
    coarse = true;
    std::vector<Form> old;
    old.swap(forms);
    for (const Form& f : old)
      add(f);
    add(form);
    return true;
  }
  forms.push_back(form);
  return true;
}

bool Value::join(const Value& other) {
  if (top) {
    return false;
  }
  if (other.top) {
    set_top();
    return true;
  }
  bool grew = false;
  for (const Form& f : other.forms) {
    grew |= add(f);
    if (top)
      break;
  }
  return grew;
}

namespace {

constexpr std::uint32_t kNone = ptx::kNoIndex;
constexpr std::size_t kMaxFrames = 2048, kMaxNodes = 4u << 20, kMaxCells = 1024,
                      kMaxTermInfos = 4096, kMaxPlaces = 2000;
constexpr std::uint32_t kMaxDepth = 24;
constexpr std::uint64_t kMaxSteps = 8'000'000;

const Value& scalar() {
  static const Value* const v = new Value{false, false, {Form{}}};
  return *v;
}
Value flagged(std::uint8_t flags) {
  Form f;
  f.flags = flags;
  return Value{false, false, {f}};
}
Value constant(std::uint64_t bits) {
  Form f;
  f.constant = true;
  f.value = bits;
  return Value{false, false, {f}};
}
Value unknown() {
  Value v;
  v.top = true;
  return v;
}

// Only flags, or nothing: a sum of constants is no longer a known constant, so that loop counters
// do not grow without end.
Form normalized(Form f) {
  if (f.count != 0 || f.flags != 0) {
    f.constant = false;
  }
  const bool lone = f.count == 1 && f.flags == 0;
  if (!f.constant && !(f.exact && lone)) {
    f.exact = false;
    f.value = 0;
  }
  return f;
}

// --- What the code looks like, once per function ---

// Registers of compiled code are assigned once or as the arms of a phi, so that the union over all
// assignments is exact enough. Hand-written code reuses registers: an assignment that is surely the
// one in force (same basic block, not guarded, later than all others) is used alone.
struct FunctionInfo {
  const Function* function = nullptr;
  std::uint32_t nodes = 0;
  std::vector<std::uint32_t> node_of;    // per operand in the pool: the node read or written
  std::vector<std::uint32_t> also_into;  // per node: register node that it flows into, or kNone
  std::vector<bool> never_written;       // per register
};

FunctionInfo inspect(const Function& f) {
  FunctionInfo info;
  info.function = &f;
  const auto registers = static_cast<std::uint32_t>(f.registers.size());
  info.node_of.assign(f.operands.size(), kNone);
  std::vector<std::uint32_t> definitions(registers, 0);
  for (const Instruction& i : f.code) {
    for_each_written(f, i, [&](std::uint32_t, const Operand& o) { ++definitions[o.index]; });
  }
  std::vector<bool> leader(f.code.size() + 1, false);
  for (const Operand& o : f.operands) {
    if (o.kind == OperandKind::kLabel)
      leader[o.index] = true;
  }
  for (const ptx::BranchTable& t : f.tables) {
    if (t.is_call)
      continue;
    for (const std::uint32_t target : t.targets)
      leader[target] = true;
  }
  for (const ptx::Parameter& p : f.params) {
    if (p.reg != kNone)
      ++definitions[p.reg];  // and so is never assigned once
  }
  info.never_written.resize(registers);
  for (std::uint32_t r = 0; r < registers; ++r) {
    info.never_written[r] = definitions[r] == 0;
  }
  info.nodes = registers;
  info.also_into.assign(registers, kNone);
  // The node of the assignment in force, valid while its block lasts.
  std::vector<std::uint32_t> current(registers, kNone), block_of(registers, 0);
  std::uint32_t block = 1;
  auto read = [&](std::uint32_t operand) {
    const Operand& o = f.operands[operand];
    const bool is_register =
        o.kind == OperandKind::kRegister ||
        (o.kind == OperandKind::kAddress && o.base == ptx::AddressBase::kRegister);
    if (!is_register)
      return;
    info.node_of[operand] =
        block_of[o.index] == block && current[o.index] != kNone ? current[o.index] : o.index;
  };
  auto read_all = [&](std::uint32_t operand, auto&& self, int level) -> void {
    read(operand);
    const Operand& o = f.operands[operand];
    if (level < 3 && (o.kind == OperandKind::kVector || o.kind == OperandKind::kList ||
                      o.kind == OperandKind::kAddress)) {
      for (std::uint32_t k = 0; k < o.count; ++k)
        self(o.first + k, self, level + 1);
    }
  };
  for (std::uint32_t n = 0; n < f.code.size(); ++n) {
    const Instruction& i = f.code[n];
    if (leader[n])
      ++block;
    for (std::uint32_t k = 0; k < i.operand_count; ++k) {
      read_all(i.first_operand + k, read_all, 0);
    }
    const bool kills = i.guard == kNone && !may_not_write_first_operand(i);
    for_each_written(f, i, [&](std::uint32_t operand, const Operand& o) {
      if (definitions[o.index] <= 1) {
        info.node_of[operand] = o.index;
        return;
      }
      const std::uint32_t node = info.nodes++;
      info.also_into.push_back(o.index);
      info.node_of[operand] = node;
      if (kills && !o.has_component && f.registers[o.index].vector == 1) {
        // The older assignment of this block is dead: it does not reach any other block.
        if (block_of[o.index] == block && current[o.index] != kNone) {
          info.also_into[current[o.index]] = kNone;
        }
        current[o.index] = node;
        block_of[o.index] = block;
      } else {
        // Either value may be in force from here on.
        current[o.index] = kNone;
        block_of[o.index] = 0;
      }
    });
    if (i.opcode == Opcode::kBra || i.opcode == Opcode::kBrx)
      ++block;
  }
  return info;
}

// --- The analysis ---

struct Cell {
  std::uint32_t offset = 0, width = 0;
  Value value;
};
using Cells = std::vector<Cell>;

struct Frame {
  const FunctionInfo* info = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t parent = kNone;
  std::vector<Value> values;  // per node
  std::vector<Cells> params;  // of a device function
  std::vector<Cells> returns;
  std::unordered_map<std::uint32_t, Cells> locals;         // .param variables of the body
  std::unordered_map<std::uint32_t, std::uint32_t> calls;  // instruction → frame
};

class Analysis {
 public:
  Analysis(const Module& module, const Function& kernel) : module_(module), kernel_(kernel) {}

  KernelSummary run() {
    out_.complete = true;
    out_.name = kernel_.name;
    out_.param_bytes = kernel_.param_bytes;
    for (const ptx::Parameter& p : kernel_.params)
      out_.exact_param_bytes |= !module_.machine_code && p.align > 16;
    out_.machine_code = module_.machine_code;
    if (!kernel_.has_body) {
      defeat("its body is not in the module", 0);
      return std::move(out_);
    }
    if (module_.address_size != 64) {
      defeat("32-bit addresses", 0);
      return std::move(out_);
    }
    new_frame(kernel_, kNone);
    if (over_budget_) {
      defeat("the kernel is too large or too tangled for the analysis", 0);
      return std::move(out_);
    }
    for (const bool settled : {false, true}) {
      settled_ = settled;
      do {
        changed_ = false;
        for (std::uint32_t f = 0; f < frames_.size() && !over_budget_; ++f) {
          walk(f);
        }
      } while (changed_ && !over_budget_);
    }
    if (over_budget_) {
      defeat("the kernel is too large or too tangled for the analysis", 0);
      return std::move(out_);
    }
    recording_ = true;
    for (std::uint32_t f = 0; f < frames_.size(); ++f) {
      walk(f);
    }
    finish();
    return std::move(out_);
  }

 private:
  // --- Results ---

  void defeat(const std::string& why, std::uint32_t line) {
    if (!defeats_seen_.insert(why).second || out_.defeats.size() >= 64) {
      return;
    }
    out_.defeats.push_back(line == 0 ? why : why + place(line));
  }

  std::string place(std::uint32_t line) const {
    if (!module_.machine_code)
      return " (PTX line " + std::to_string(line) + ")";
    char text[48];
    std::snprintf(text, sizeof text, " (machine code offset 0x%x)", (line - 1) * 16);
    return text;
  }

  std::uint32_t symbol(const std::string& name) {
    const auto [it, is_new] =
        symbols_.try_emplace(name, static_cast<std::uint32_t>(out_.symbols.size()));
    if (is_new)
      out_.symbols.push_back(name);
    return it->second;
  }

  Root root_of(const TermInfo& t) const {
    Root r;
    r.param_size = 8;
    switch (t.kind) {
      case TermKind::kParameter:
        r.kind = RootKind::kParameter;
        r.param_offset = t.offset;
        break;
      case TermKind::kAnyParameter:
        r.kind = RootKind::kAnyParameter;
        r.param_offset = t.offset;
        r.param_size = t.size;
        break;
      case TermKind::kGlobalSymbol:
        r.kind = RootKind::kGlobalSymbol;
        r.symbol = t.symbol;
        break;
      case TermKind::kConstSymbol:
        r.kind = RootKind::kConstSymbol;
        r.symbol = t.symbol;
        break;
      case TermKind::kDriver:
        r.kind = RootKind::kDriver;
        break;
      case TermKind::kParameterAddress:
      case TermKind::kShared:
      case TermKind::kLocal:
      case TermKind::kNarrowParameter:
        break;  // never an address in device memory: stays kUnknown
    }
    return r;
  }

  Alternative alternative_of(const Form& f) const {
    Alternative a;
    for (int k = 0; k < f.count; ++k) {
      if (terms_[f.terms[k].id].kind == TermKind::kNarrowParameter) {
        a.has_other_terms = true;
        continue;
      }
      const Root r = root_of(terms_[f.terms[k].id]);
      if (f.terms[k].coefficient == 1) {
        a.roots.push_back(r);
      } else {
        if (f.terms[k].coefficient < 0)
          a.subtracted.push_back(r);
        a.has_other_terms |= f.terms[k].coefficient == Form::kManyNegative ||
                             f.terms[k].coefficient == Form::kManyPositive;
      }
    }
    a.has_other_terms |= f.flags != 0;
    a.may_hide_pointer = (f.flags & (Form::kDark | Form::kLoaded)) != 0;
    if ((f.flags & Form::kLoaded) != 0) {
      Root r;
      r.kind = RootKind::kLoaded;
      a.roots.push_back(r);
    }
    if (a.roots.empty()) {
      Root r;
      if (f.constant) {
        r.kind = RootKind::kConstant;
        r.address = f.value;
      }
      a.roots.push_back(r);
    }
    return a;
  }

  // The place of `i` in the kernel's own code: of its address operand `pool`, `size_pool` being
  // that of its size where `bytes` is 0.
  void record_place(std::uint32_t frame, const Instruction& i, std::uint32_t pool, AccessKind kind,
                    std::uint32_t bytes, std::uint32_t size_pool = kNone) {
    place_ = kNone;
    if (frame != 0 || !recording_ || places_.size() >= kMaxPlaces ||
        (bytes == 0 && size_pool == kNone)) {
      return;
    }
    AccessPlace p;
    p.instruction = static_cast<std::uint32_t>(&i - kernel_.code.data());
    p.operand = pool;
    p.bytes = bytes;
    p.size = size_pool;
    p.reads = kind != AccessKind::kWrite;
    p.writes = kind != AccessKind::kRead;
    place_ = static_cast<std::uint32_t>(places_.size());
    places_.push_back(p);
  }

  void record(AccessKind kind, Space space, const Value& address, std::uint32_t bytes,
              std::uint32_t line) {
    Access a;
    const std::uint32_t place = place_;
    place_ = kNone;
    a.kind = kind;
    a.space = space == Space::kConst    ? MemorySpace::kConst
              : space == Space::kGlobal ? MemorySpace::kGlobal
                                        : MemorySpace::kGeneric;
    a.element_bytes = bytes;
    a.line = line;
    if (address.top || address.empty()) {
      a.alternatives.push_back(Alternative{{Root{}}, {}, false, false});
    }
    for (const Form& f : address.forms) {
      Alternative alt = alternative_of(f);
      if (std::find(a.alternatives.begin(), a.alternatives.end(), alt) == a.alternatives.end()) {
        a.alternatives.push_back(std::move(alt));
      }
    }
    for (Access& old : out_.accesses) {
      if (old.kind == a.kind && old.space == a.space && old.alternatives == a.alternatives) {
        old.element_bytes = std::min(old.element_bytes, bytes);
        old.line = std::min(old.line, line);
        // One place that cannot be expressed: the access as a whole cannot.
        if (place == kNone) {
          old.sites.clear();
        } else if (!old.sites.empty()) {
          old.sites.push_back(place);
        }
        return;
      }
    }
    if (out_.accesses.size() >= 4096) {
      defeat("more than 4096 different memory accesses", 0);
      return;
    }
    if (place != kNone)
      a.sites.push_back(place);
    out_.accesses.push_back(std::move(a));
  }

  void finish() {
    for (const std::string& name : out_.symbols) {
      std::uint64_t bytes = 0;
      for (const ptx::Variable& v : module_.variables) {
        if (v.name == name && !v.unsized)
          bytes = v.size;
      }
      out_.symbol_bytes.push_back(bytes);
    }
    if (out_.defeats.empty())
      out_.addresses = build_address_program(module_, kernel_, places_, out_.symbols);
    if (out_.addresses == nullptr) {
      for (Access& a : out_.accesses)
        a.sites.clear();
    }
    std::sort(out_.accesses.begin(), out_.accesses.end(),
              [](const Access& a, const Access& b) { return a.line < b.line; });
  }

  // --- Frames ---

  const FunctionInfo* info_of(const Function& f) {
    auto& slot = infos_[&f];
    if (!slot)
      slot = std::make_unique<FunctionInfo>(inspect(f));
    return slot.get();
  }

  std::uint32_t new_frame(const Function& f, std::uint32_t parent) {
    const std::uint32_t depth = parent == kNone ? 0 : frames_[parent]->depth + 1;
    const FunctionInfo* const info = info_of(f);
    total_nodes_ += info->nodes;
    if (frames_.size() >= kMaxFrames || depth > kMaxDepth || total_nodes_ > kMaxNodes) {
      over_budget_ = true;
      return kNone;
    }
    auto frame = std::make_unique<Frame>();
    frame->info = info;
    frame->depth = depth;
    frame->parent = parent;
    frame->values.resize(info->nodes);
    // A register that is never written holds rubbish, but no pointer of the program's.
    for (std::uint32_t r = 0; r < f.registers.size(); ++r) {
      if (info->never_written[r])
        frame->values[r] = scalar();
    }
    frame->params.resize(f.params.size());
    frame->returns.resize(f.returns.size());
    frames_.push_back(std::move(frame));
    changed_ = true;
    return static_cast<std::uint32_t>(frames_.size() - 1);
  }

  // --- Forms ---

  std::optional<std::uint16_t> term(const TermInfo& t) {
    for (std::size_t k = 0; k < terms_.size(); ++k) {
      if (terms_[k] == t)
        return static_cast<std::uint16_t>(k);
    }
    if (terms_.size() >= kMaxTermInfos)
      return std::nullopt;
    terms_.push_back(t);
    return static_cast<std::uint16_t>(terms_.size() - 1);
  }
  Value value_of(const TermInfo& t, std::optional<std::uint64_t> exact = std::nullopt) {
    const auto id = term(t);
    if (!id)
      return unknown();
    Form f;
    f.terms[0] = {*id, 1};
    f.count = 1;
    if (exact) {
      f.exact = true;
      f.value = *exact;
    }
    return Value{false, false, {f}};
  }
  Value shared_address() { return value_of({TermKind::kShared, 0, 0, 0}); }
  // Variable 0: local memory of which nothing more is known.
  Value local_address(const ptx::Variable* variable = nullptr, std::uint64_t displacement = 0) {
    if (variable == nullptr)
      return value_of({TermKind::kLocal, 0, 0, 0});
    const auto [it, is_new] = local_ids_.try_emplace(variable, local_ids_.size() + 1);
    return value_of({TermKind::kLocal, 0, 0, static_cast<std::uint32_t>(it->second)}, displacement);
  }

  // a + sign * b; nullopt: too many terms.
  std::optional<Form> sum(const Form& a, const Form& b, int sign) const {
    if (a.clean() && b.clean()) {
      return Form{};
    }
    Form r;
    r.flags = a.flags | b.flags;
    int i = 0, j = 0;
    while (i < a.count || j < b.count) {
      Form::Term t;
      if (j >= b.count || (i < a.count && a.terms[i].id < b.terms[j].id)) {
        t = a.terms[i++];
      } else if (i >= a.count || b.terms[j].id < a.terms[i].id) {
        t = {b.terms[j].id, static_cast<std::int8_t>(sign * b.terms[j].coefficient)};
        ++j;
      } else {
        const int x = a.terms[i].coefficient, y = sign * b.terms[j].coefficient;
        int c = x + y;
        // "2 or more" minus something may be anything: no cancelling from there on.
        const bool many = std::abs(x) >= 2 || std::abs(y) >= 2;
        const TermKind kind = terms_[a.terms[i].id].kind;
        const bool one_value = kind == TermKind::kParameter || kind == TermKind::kGlobalSymbol ||
                               kind == TermKind::kConstSymbol;
        if (many || !one_value) {
          r.flags |= Form::kDark;
          if (many)
            c = y < 0 || x < 0 ? Form::kManyNegative : Form::kManyPositive;
          // Two words of which only the parameter is known: either may be the base.
          if (!one_value)
            c = x > 0 || y > 0 ? 1 : -1;
        }
        t = {a.terms[i].id, static_cast<std::int8_t>(std::clamp(c, -2, 2))};
        ++i;
        ++j;
      }
      if (t.coefficient == 0)
        continue;
      if (r.count == Form::kMaxTerms)
        return std::nullopt;
      r.terms[r.count++] = t;
    }
    // A parameter's address plus a constant is still exact.
    const Form& base = a.exact ? a : b;
    const Form& other = a.exact ? b : a;
    if (base.exact && other.constant && (sign > 0 || a.exact)) {
      r.exact = true;
      r.value = sign > 0 ? base.value + other.value : base.value - other.value;
    }
    return normalized(r);
  }

  Value add(const Value& a, const Value& b, int sign) const {
    if (a.empty() || b.empty())
      return {};
    if (a.top || b.top)
      return unknown();
    Value r;
    for (const Form& x : a.forms) {
      for (const Form& y : b.forms) {
        const auto s = sum(x, y, sign);
        if (!s)
          return unknown();
        r.add(*s);
        if (r.top)
          return r;
      }
    }
    return r;
  }

  static bool tainted(const Value& v) {
    return v.top ||
           std::any_of(v.forms.begin(), v.forms.end(), [](const Form& f) { return !f.clean(); });
  }
  static std::optional<std::uint64_t> constant_of(const Value& v) {
    if (v.top || v.forms.size() != 1 || !v.forms[0].constant)
      return std::nullopt;
    return v.forms[0].value;
  }

  // Values of at most 32 bits: no address by themselves.
  static Value narrow(const Value& v) {
    if (v.empty())
      return {};
    // Whether it is extended by zeros or by its sign matters for the others.
    if (const auto c = constant_of(v); c && *c <= 0x7FFFFFFF)
      return v;
    return tainted(v) ? flagged(Form::kScaled) : scalar();
  }
  // A result that depends on its sources in another way than by adding.
  static Value mixed(std::uint32_t bytes, std::initializer_list<const Value*> sources) {
    bool dirty = false;
    for (const Value* v : sources) {
      if (v->empty())
        return {};
      if (v->top && bytes >= 8)
        return unknown();
      dirty |= tainted(*v);
    }
    if (!dirty)
      return scalar();
    return flagged(bytes >= 8 ? Form::kDark : Form::kScaled);
  }
  static Value scaled(std::initializer_list<const Value*> sources) {
    bool dirty = false;
    for (const Value* v : sources) {
      if (v->empty())
        return {};
      dirty |= tainted(*v);
    }
    return dirty ? flagged(Form::kScaled) : scalar();
  }

  // --- Memory that is one abstract cell ---

  // Shared and local memory: pointers of 8 bytes that were stored come back as they are; anything
  // narrower may be a piece of a pointer.
  struct Memory {
    Value wide;
    bool pieces = false;
    bool written = false;
  };

  void store_memory(Memory& m, std::uint32_t bytes, const Value& v) {
    if (v.empty())
      return;
    if (!m.written) {
      m.written = true;
      changed_ = true;
    }
    if (bytes == 8) {
      changed_ |= m.wide.join(v);
    } else if (!m.pieces && constant_of(v) != 0u) {
      m.pieces = true;
      changed_ = true;
    }
  }
  // Memory that nobody wrote holds rubbish, but no pointer of the program's. Whether anybody wrote
  // it is known only when nothing changes any more.
  Value never_written() const { return settled_ ? scalar() : Value{}; }

  Value load_memory(const Memory& m, std::uint32_t bytes) const {
    Value v;
    if (bytes == 8) {
      v.join(m.wide);
      if (m.pieces)
        v.join(flagged(Form::kDark));
    } else if (m.pieces || tainted(m.wide)) {
      v.join(flagged(bytes > 8 ? Form::kDark : Form::kScaled));
    }
    return v.empty() ? never_written() : v;
  }

  // Local memory: one cell per variable and known displacement, and one for all else of a variable.
  // Compilers copy by-value structs here to index them at run time.
  struct LocalVariable {
    Cells cells;
    Memory anywhere;
  };

  // Calls `visit(variable, displacement or nullopt)` for each place that a local address may be.
  template <typename F>
  void for_each_local(const Value& address, F&& visit) const {
    for (const Form& f : address.forms) {
      bool found = false;
      for (int k = 0; k < f.count; ++k) {
        const TermInfo& t = terms_[f.terms[k].id];
        if (t.kind != TermKind::kLocal || f.terms[k].coefficient != 1)
          continue;
        found = true;
        visit(t.symbol, f.exact && f.value < (1u << 24) ? std::optional(f.value) : std::nullopt);
      }
      if (!found)
        visit(0u, std::nullopt);
    }
    if (address.top)
      visit(0u, std::nullopt);
  }

  void store_local(const Value& address, std::uint64_t displacement, std::uint32_t bytes,
                   const Value& v) {
    if (v.empty())
      return;
    for_each_local(address, [&](std::uint32_t variable, std::optional<std::uint64_t> at) {
      LocalVariable& l = locals_[variable];
      if (variable != 0 && at && bytes != 0) {
        store_cells(l.cells, static_cast<std::uint32_t>(*at + displacement), bytes, v);
      } else {
        store_memory(l.anywhere, bytes == 0 ? 4 : bytes, v);
      }
    });
  }

  // The parameter whose bytes, unmoved against each other, are all that the variable ever holds.
  std::optional<TermInfo> copied_parameter(const LocalVariable& l) const {
    if (l.anywhere.written || l.cells.empty())
      return std::nullopt;
    std::optional<std::uint32_t> shift;
    std::uint32_t first = kNone, last = 0;
    for (const Cell& c : l.cells) {
      if (c.value.top || c.value.forms.size() != 1)
        return std::nullopt;
      const Form& f = c.value.forms[0];
      if (f.count != 1 || f.flags != 0 || f.terms[0].coefficient != 1)
        return std::nullopt;
      const TermInfo& t = terms_[f.terms[0].id];
      if ((t.kind != TermKind::kParameter && t.kind != TermKind::kNarrowParameter) ||
          t.size != c.width || (shift && *shift != t.offset - c.offset))
        return std::nullopt;
      shift = t.offset - c.offset;
      first = std::min(first, t.offset);
      last = std::max(last, t.offset + t.size);
    }
    for (const ptx::Parameter& p : kernel_.params) {
      if (p.size >= 8 && first >= p.offset && last <= p.offset + p.size)
        return TermInfo{TermKind::kAnyParameter, p.offset, p.size, 0};
    }
    return std::nullopt;
  }

  // A word of 8 bytes made of narrower stores.
  static bool pieces_form_word(const LocalVariable& l) {
    for (const Cell& c : l.cells) {
      if (c.width >= 8 || constant_of(c.value) == 0u)
        continue;
      if (c.width != 4 || c.offset % 4 != 0)
        return true;
      for (const Cell& d : l.cells) {
        if (d.width < 8 && (d.offset ^ c.offset) == 4)
          return true;
      }
    }
    return false;
  }

  // Stored and loaded narrower than the register: only a piece of it comes back.
  Value fit(const Value& v, std::uint32_t bytes) const {
    return bytes >= 8 || is_narrow_parameter(v) ? v : narrow(v);
  }

  void load_variable(Value& v, const LocalVariable& l, std::optional<std::uint64_t> at,
                     std::uint32_t bytes) {
    if (l.anywhere.written)
      v.join(load_memory(l.anywhere, bytes));
    if (at && *at < (1u << 24)) {
      v.join(fit(load_cells(l.cells, static_cast<std::uint32_t>(*at), bytes), bytes));
      return;
    }
    if (l.cells.empty())
      return;
    if (bytes != 8) {
      v.join(flagged(bytes > 8 ? Form::kDark : Form::kScaled));
      return;
    }
    if (const auto copy = copied_parameter(l)) {
      v.join(value_of(*copy));
      return;
    }
    for (const Cell& c : l.cells) {
      if (c.width == 8 || c.width == 0) {
        v.join(c.value);
      } else if (c.width > 8) {
        v.join(flagged(Form::kDark));
      }
    }
    if (pieces_form_word(l))
      v.join(flagged(Form::kDark));
  }

  Value load_local(const Value& address, std::uint64_t displacement, std::uint32_t bytes) {
    Value v;
    for_each_local(address, [&](std::uint32_t variable, std::optional<std::uint64_t> at) {
      if (variable == 0) {
        for (const auto& [id, l] : locals_)
          load_variable(v, l, std::nullopt, bytes);
        return;
      }
      if (at)
        *at += displacement;
      load_variable(v, locals_[variable], at, bytes);
      load_variable(v, locals_[0], std::nullopt, bytes);
    });
    return v.empty() ? never_written() : v;
  }

  // Parameters and return values of device functions: cells by offset.
  void store_cells(Cells& cells, std::uint32_t offset, std::uint32_t width, const Value& v) {
    for (Cell& c : cells) {
      if (c.offset == offset && c.width == width) {
        changed_ |= c.value.join(v);
        return;
      }
    }
    if (cells.size() == 1 && cells[0].width == 0)
      return;  // anything already
    changed_ = true;
    if (cells.size() >= kMaxCells) {
      cells.assign(1, Cell{0, 0, unknown()});  // width 0: overlaps everything
      return;
    }
    cells.push_back({offset, width, v});
  }
  static Value load_cells(const Cells& cells, std::uint32_t offset, std::uint32_t width) {
    Value v;
    for (const Cell& c : cells) {
      if (c.width == 0)
        return unknown();
      if (c.offset == offset && c.width == width) {
        v.join(c.value);
      } else if (c.offset < offset + width && offset < c.offset + c.width && !c.value.empty()) {
        v.join(flagged(width >= 8 ? Form::kDark : Form::kScaled));
      }
    }
    return v;
  }
  void join_cells(Cells& into, const Cells& from) {
    for (std::size_t k = 0; k < from.size(); ++k) {
      if (from[k].width == 0) {
        if (into.size() != 1 || into[0].width != 0) {
          into.assign(1, Cell{0, 0, unknown()});
          changed_ = true;
        }
        return;
      }
      store_cells(into, from[k].offset, from[k].width, from[k].value);
    }
  }

  // --- Operands ---

  Value symbol_value(std::uint32_t frame, const Operand& o) {
    const Function& f = *frames_[frame]->info->function;
    switch (o.symbol_kind) {
      case SymbolKind::kVariable:
        return variable_address(module_.variables[o.index], o.offset);
      case SymbolKind::kLocal: {
        const ptx::Variable& v = f.locals[o.index];
        return v.space == Space::kParam ? unknown() : variable_address(v, o.offset);
      }
      case SymbolKind::kParameter:
        if (frame == 0) {
          const ptx::Parameter& p = f.params[o.index];
          return value_of({TermKind::kParameterAddress, p.offset, p.size, 0},
                          static_cast<std::uint64_t>(o.offset));
        }
        return unknown();
      case SymbolKind::kFunction:
        return flagged(Form::kDark);
      case SymbolKind::kReturn:
      case SymbolKind::kBranchTable:
      case SymbolKind::kPrototype:
        break;
    }
    return unknown();
  }
  Value variable_address(const ptx::Variable& v, std::int64_t displacement) {
    switch (v.space) {
      case Space::kShared:
      case Space::kSharedCluster:
        return shared_address();
      case Space::kLocal:
        return local_address(&v, static_cast<std::uint64_t>(displacement));
      case Space::kConst:
        return value_of({TermKind::kConstSymbol, 0, 0, symbol(v.name)});
      case Space::kGlobal:
        return value_of({TermKind::kGlobalSymbol, 0, 0, symbol(v.name)});
      default:
        return unknown();
    }
  }

  // The operand at `pool` as a value; registers only, for addresses their base + displacement.
  Value read(std::uint32_t frame, std::uint32_t pool) {
    const FunctionInfo& info = *frames_[frame]->info;
    const Operand& o = info.function->operands[pool];
    switch (o.kind) {
      case OperandKind::kRegister: {
        const Value& v = frames_[frame]->values[info.node_of[pool]];
        if (o.arithmetic_negated)
          return add(constant(0), v, -1);
        if (info.function->registers[o.index].vector != 1)
          return mixed(8, {&v});
        return v;
      }
      case OperandKind::kImmediate:
        return constant(o.imm);
      case OperandKind::kSpecial:
        if (o.special == ptx::SpecialRegister::kEnvreg) {
          defeat("grid-wide synchronization or other driver words (%envreg)", line_);
        }
        if (o.special == ptx::SpecialRegister::kDriverWord)
          return value_of({TermKind::kDriver, 0, 0, 0});
        return scalar();
      case OperandKind::kSymbol:
        return symbol_value(frame, o);
      case OperandKind::kAddress: {
        Value base = constant(0);
        if (o.base == ptx::AddressBase::kRegister) {
          base = frames_[frame]->values[info.node_of[pool]];
        } else if (o.base == ptx::AddressBase::kSymbol) {
          Operand symbol_only = o;
          symbol_only.offset = 0;
          base = symbol_value(frame, symbol_only);
        }
        if (o.base == ptx::AddressBase::kNone)
          return constant(static_cast<std::uint64_t>(o.offset));
        if (o.offset == 0)
          return base;
        // A known constant keeps its place: a null pointer plus a field offset is still null.
        Value r;
        if (base.top)
          return base;
        for (const Form& f : base.forms) {
          if (f.constant) {
            r.add(f);
            continue;
          }
          Form g = f;
          if (g.exact)
            g.value += static_cast<std::uint64_t>(o.offset);
          r.add(g);
        }
        return r;
      }
      case OperandKind::kVector: {
        // Packed: only zero upper parts leave the lower one what it is.
        if (o.count == 0)
          return scalar();
        Value low = read(frame, o.first);
        bool zero_above = true, any_empty = low.empty();
        for (std::uint32_t k = 1; k < o.count; ++k) {
          const Value part = read(frame, o.first + k);
          any_empty |= part.empty();
          zero_above &= constant_of(part) == 0u;
        }
        if (any_empty)
          return {};
        return zero_above ? narrow(low) : flagged(Form::kDark);
      }
      case OperandKind::kSink:
      case OperandKind::kLabel:
      case OperandKind::kList:
        break;
    }
    return scalar();
  }

  void write_node(std::uint32_t frame, std::uint32_t pool, const Value& v) {
    Frame& fr = *frames_[frame];
    const std::uint32_t node = fr.info->node_of[pool];
    if (node == kNone)
      return;
    if (fr.values[node].join(v)) {
      changed_ = true;
    }
    if (const std::uint32_t reg = fr.info->also_into[node]; reg != kNone) {
      changed_ |= fr.values[reg].join(v);
    }
  }
  void write(std::uint32_t frame, const Instruction& i, const Value& v) {
    for_each_written(*frames_[frame]->info->function, i,
                     [&](std::uint32_t pool, const Operand&) { write_node(frame, pool, v); });
  }

  // --- Memory accesses ---

  // Parts of an address by where they point.
  struct Split {
    Value device;  // global, constant, generic: reaches device memory
    bool shared = false, local = false;
    Value local_address;
    Value parameters;  // addresses of the kernel's own parameters
  };
  Split split(const Value& address, Space space) const {
    Split s;
    if (space == Space::kShared || space == Space::kSharedCluster) {
      s.shared = true;
      return s;
    }
    if (space == Space::kLocal) {
      s.local = true;
      s.local_address = address;
      return s;
    }
    if (space != Space::kGeneric) {
      s.device = address;
      return s;
    }
    if (address.top) {
      s.device = address;
      return s;
    }
    for (const Form& f : address.forms) {
      bool inside = false;
      for (int k = 0; k < f.count; ++k) {
        const TermKind kind = terms_[f.terms[k].id].kind;
        if (f.terms[k].coefficient != 1)
          continue;
        if (kind == TermKind::kShared)
          s.shared = inside = true;
        if (kind == TermKind::kLocal) {
          s.local = inside = true;
          s.local_address.add(f);
        }
        if (kind == TermKind::kParameterAddress) {
          s.parameters.add(f);
          inside = true;
        }
      }
      // Sums with a device pointer and an on-chip address in them are no pointers at all.
      if (!inside || f.count > 1)
        s.device.add(f);
    }
    return s;
  }

  std::uint32_t line_ = 0;

  Value load_kernel_parameter(const Value& address, std::uint32_t bytes) {
    if (address.top)
      return unknown();
    Value v;
    for (const Form& f : address.forms) {
      if (f.count != 1 || terms_[f.terms[0].id].kind != TermKind::kParameterAddress ||
          f.terms[0].coefficient != 1) {
        v.join(unknown());
        continue;
      }
      const TermInfo t = terms_[f.terms[0].id];
      if (bytes < 8) {
        v.join(f.exact && f.value < t.size
                   ? value_of({TermKind::kNarrowParameter,
                               t.offset + static_cast<std::uint32_t>(f.value), bytes, 0})
                   : flagged(Form::kScaled));
      } else if (bytes > 8) {
        v.join(flagged(Form::kDark));
      } else if (f.exact && f.value <= t.size && t.size - f.value >= 8) {
        v.join(
            value_of({TermKind::kParameter, t.offset + static_cast<std::uint32_t>(f.value), 8, 0}));
      } else if (t.size >= 8) {
        v.join(value_of({TermKind::kAnyParameter, t.offset, t.size, 0}));
      } else {
        v.join(unknown());
      }
    }
    return v;
  }

  static std::uint32_t element_bytes(const Instruction& i) {
    // The widest of the types written: `ld.global.nc.L2::128B.v2.f64` has one, cvt has none here.
    return ptx::size_of(i.type);
  }

  void load(std::uint32_t frame, const Instruction& i) {
    const Function& f = *frames_[frame]->info->function;
    if (i.operand_count < 2)
      return malformed(i);
    const std::uint32_t bytes = element_bytes(i);
    if (bytes == 0)
      return defeat("unknown type in " + text(i), i.line);
    const std::uint32_t pool = i.first_operand + 1;
    const Operand& a = f.operands[pool];
    if (a.kind != OperandKind::kAddress)
      return malformed(i);
    auto each_destination = [&](auto&& value_of_element) {
      const Operand& d = f.operands[i.first_operand];
      if (d.kind == OperandKind::kVector) {
        for (std::uint32_t k = 0; k < d.count; ++k) {
          write_node(frame, d.first + k, value_of_element(k));
        }
      } else {
        Value v = value_of_element(0);
        if (i.vector > 1 && !v.empty())
          v = mixed(8, {&v});  // into one vector register
        write_node(frame, i.first_operand, v);
      }
    };
    if (i.space == Space::kParam && a.base == ptx::AddressBase::kSymbol) {
      const auto at = static_cast<std::uint64_t>(a.offset);
      if (a.symbol_kind == SymbolKind::kLocal ||
          (a.symbol_kind == SymbolKind::kParameter && frame != 0)) {
        if (at > 0xFFFFFF)
          return malformed(i);
        const Cells& cells = a.symbol_kind == SymbolKind::kLocal ? frames_[frame]->locals[a.index]
                                                                 : frames_[frame]->params[a.index];
        each_destination([&](std::uint32_t k) {
          Value v =
              fit(load_cells(cells, static_cast<std::uint32_t>(at) + k * bytes, bytes), bytes);
          return v.empty() ? never_written() : v;
        });
        return;
      }
      if (a.symbol_kind != SymbolKind::kParameter)
        return malformed(i);
      const ptx::Parameter& p = f.params[a.index];
      each_destination([&](std::uint32_t k) {
        return load_kernel_parameter(value_of({TermKind::kParameterAddress, p.offset, p.size, 0},
                                              at + std::uint64_t{k} * bytes),
                                     bytes);
      });
      return;
    }
    const Value address = read(frame, pool);
    if (address.empty())
      return no_address(i);
    if (i.space == Space::kParam) {
      if (frame != 0)
        return defeat("the address of a device function's parameter", i.line);
      each_destination([&](std::uint32_t k) {
        Value moved = address;
        for (Form& form : moved.forms) {
          if (form.exact)
            form.value += std::uint64_t{k} * bytes;
        }
        return load_kernel_parameter(moved, bytes);
      });
      return;
    }
    const Split s = split(address, i.space);
    Value loaded;
    if (s.shared)
      loaded.join(load_memory(shared_, bytes));
    if (!s.device.empty()) {
      loaded.join(flagged(bytes < 8 ? Form::kScaled : Form::kDark | Form::kLoaded));
      if (recording_) {
        record_place(frame, i, pool, AccessKind::kRead, bytes * i.vector);
        record(AccessKind::kRead, i.space, s.device, bytes * i.vector, i.line);
      }
    }
    each_destination([&](std::uint32_t k) {
      Value v = loaded;
      if (s.local)
        v.join(load_local(s.local_address, std::uint64_t{k} * bytes, bytes));
      if (!s.parameters.empty()) {
        Value moved = s.parameters;
        for (Form& form : moved.forms) {
          if (form.exact)
            form.value += std::uint64_t{k} * bytes;
        }
        v.join(load_kernel_parameter(moved, bytes));
      }
      return v;
    });
  }

  void store(std::uint32_t frame, const Instruction& i) {
    const Function& f = *frames_[frame]->info->function;
    if (i.operand_count < 2)
      return malformed(i);
    const std::uint32_t bytes = element_bytes(i);
    if (bytes == 0)
      return defeat("unknown type in " + text(i), i.line);
    const std::uint32_t pool = i.first_operand;
    const Operand& a = f.operands[pool];
    if (a.kind != OperandKind::kAddress)
      return malformed(i);
    const Operand& source = f.operands[pool + 1];
    auto each_source = [&](auto&& take) {
      if (source.kind == OperandKind::kVector) {
        for (std::uint32_t k = 0; k < source.count; ++k)
          take(k, read(frame, source.first + k));
      } else {
        take(0, read(frame, pool + 1));
      }
    };
    if (i.space == Space::kParam && a.base == ptx::AddressBase::kSymbol &&
        (a.symbol_kind == SymbolKind::kLocal || a.symbol_kind == SymbolKind::kReturn)) {
      const auto at = static_cast<std::uint64_t>(a.offset);
      if (at > 0xFFFFFF)
        return malformed(i);
      each_source([&](std::uint32_t k, const Value& v) {
        Cells& cells = a.symbol_kind == SymbolKind::kLocal ? frames_[frame]->locals[a.index]
                                                           : frames_[frame]->returns[a.index];
        store_cells(cells, static_cast<std::uint32_t>(at) + k * bytes, bytes, v);
      });
      return;
    }
    if (i.space == Space::kParam || i.space == Space::kConst) {
      return defeat("a store to parameters or constant memory", i.line);
    }
    const Value address = read(frame, pool);
    if (address.empty())
      return no_address(i);
    const Split s = split(address, i.space);
    if (!s.parameters.empty())
      defeat("a store to the kernel's own parameters", i.line);
    each_source([&](std::uint32_t k, const Value& v) {
      if (s.shared)
        store_memory(shared_, bytes, v);
      if (s.local)
        store_local(s.local_address, std::uint64_t{k} * bytes, bytes, v);
    });
    if (!s.device.empty() && recording_) {
      record_place(frame, i, pool, AccessKind::kWrite, bytes * i.vector);
      record(AccessKind::kWrite, i.space, s.device, bytes * i.vector, i.line);
    }
  }

  // atom, red: a read and a write of one place.
  void atomic(std::uint32_t frame, const Instruction& i) {
    const Function& f = *frames_[frame]->info->function;
    const bool returns = i.opcode == Opcode::kAtom;
    const std::uint32_t pool = i.first_operand + (returns ? 1 : 0);
    if (i.operand_count < (returns ? 3u : 2u) || f.operands[pool].kind != OperandKind::kAddress) {
      return malformed(i);
    }
    const std::uint32_t bytes = element_bytes(i);
    if (bytes == 0)
      return defeat("unknown type in " + text(i), i.line);
    const Value address = read(frame, pool);
    if (address.empty())
      return no_address(i);
    const Split s = split(address, i.space);
    if (!s.parameters.empty())
      defeat("a store to the kernel's own parameters", i.line);
    Value stored;
    for (std::uint32_t k = pool + 1; k < i.first_operand + i.operand_count; ++k) {
      stored.join(read(frame, k));
    }
    const bool moves =
        i.has_operation && (i.operation == Modifier::kExch || i.operation == Modifier::kCas);
    if (s.shared)
      store_memory(shared_, bytes, moves ? stored : mixed(bytes, {&stored}));
    if (s.local)
      store_local(s.local_address, 0, 0, moves ? stored : mixed(bytes, {&stored}));
    Value result;
    if (s.shared)
      result.join(load_memory(shared_, bytes));
    if (s.local)
      result.join(load_local(s.local_address, 0, bytes));
    if (!s.device.empty()) {
      result.join(flagged(bytes < 8 ? Form::kScaled : Form::kDark | Form::kLoaded));
      if (recording_) {
        record_place(frame, i, pool, AccessKind::kReadModifyWrite, bytes * i.vector);
        record(AccessKind::kReadModifyWrite, i.space, s.device, bytes * i.vector, i.line);
      }
    }
    if (returns)
      write(frame, i, result);
  }

  // An access of unknown width through the address operand `pool`.
  void touch(std::uint32_t frame, const Instruction& i, std::uint32_t pool, AccessKind kind,
             Space space, std::uint32_t bytes, std::uint32_t size_pool = kNone) {
    const Value address = read(frame, pool);
    if (address.empty())
      return no_address(i);
    const Split s = split(address, space);
    if (!s.parameters.empty() && kind != AccessKind::kRead) {
      defeat("a store to the kernel's own parameters", i.line);
    }
    if (kind != AccessKind::kRead) {
      const Value pieces = flagged(Form::kScaled);
      if (s.shared)
        store_memory(shared_, 4, pieces);
      if (s.local)
        store_local(s.local_address, 0, 0, pieces);
    }
    if (!s.device.empty() && recording_) {
      record_place(frame, i, pool, kind, 0, size_pool);
      record(kind, space, s.device, bytes, i.line);
    }
  }

  void fill_shared_from_memory() { store_memory(shared_, 8, flagged(Form::kDark | Form::kLoaded)); }

  void copy(std::uint32_t frame, const Instruction& i) {
    if (i.has_unknown_modifier)
      return defeat("unknown form of a copy: " + text(i), i.line);
    if (i.has(Modifier::kTensor)) {
      if (i.has(Modifier::kPrefetch))
        return;
      return defeat("a tensor map, whose memory is not known (" + text(i) + ")", i.line);
    }
    if (i.has(Modifier::kPrefetch) || i.has(Modifier::kCommitGroup) ||
        i.has(Modifier::kWaitGroup) || i.has(Modifier::kWaitAll) ||
        (i.has(Modifier::kMbarrier) && i.has(Modifier::kArrive))) {
      return;
    }
    const Function& f = *frames_[frame]->info->function;
    if (i.operand_count < 2 || f.operands[i.first_operand].kind != OperandKind::kAddress ||
        f.operands[i.first_operand + 1].kind != OperandKind::kAddress || i.space_count < 2) {
      return malformed(i);
    }
    const bool to_device = i.space == Space::kGlobal, from_device = i.space2 == Space::kGlobal;
    const std::uint32_t to = i.first_operand, from = i.first_operand + 1;
    if (!to_device)
      fill_shared_from_memory();
    const std::uint32_t size = i.operand_count > 2 ? i.first_operand + 2 : kNone;
    if (from_device)
      touch(frame, i, from, AccessKind::kRead, Space::kGlobal, 0, size);
    if (to_device) {
      touch(frame, i, to,
            i.has(Modifier::kReduce) ? AccessKind::kReadModifyWrite : AccessKind::kWrite,
            Space::kGlobal, 0, size);
    }
  }

  // --- Calls ---

  void call(std::uint32_t frame, std::uint32_t index, const Instruction& i) {
    const Function& caller = *frames_[frame]->info->function;
    if (i.operand_count < 3)
      return malformed(i);
    const Operand& returns = caller.operands[i.first_operand];
    const Operand& target = caller.operands[i.first_operand + 1];
    const Operand& arguments = caller.operands[i.first_operand + 2];
    if (target.kind != OperandKind::kSymbol || target.symbol_kind != SymbolKind::kFunction) {
      return defeat("a call through a function pointer", i.line);
    }
    const Function* callee = &module_.functions[target.index];
    for (int hop = 0; callee->alias_of != kNone && hop < 16; ++hop) {
      callee = &module_.functions[callee->alias_of];
    }
    if (!callee->has_body)
      return call_outside(*callee, i);

    std::uint32_t child = kNone;
    if (const auto it = frames_[frame]->calls.find(index); it != frames_[frame]->calls.end()) {
      child = it->second;
    } else {
      for (std::uint32_t up = frame; up != kNone; up = frames_[up]->parent) {
        if (frames_[up]->info->function == callee) {
          return defeat("recursion through " + callee->name, i.line);
        }
      }
      child = new_frame(*callee, frame);
      if (child == kNone)
        return;
      frames_[frame]->calls.emplace(index, child);
    }
    if (arguments.count != callee->params.size() || returns.count != callee->returns.size()) {
      return defeat("a call of " + callee->name + " with other parameters than it has", i.line);
    }
    for (std::uint32_t k = 0; k < arguments.count; ++k) {
      const std::uint32_t pool = arguments.first + k;
      const Operand& o = caller.operands[pool];
      const ptx::Parameter& p = callee->params[k];
      Cells cells;
      if (o.kind == OperandKind::kSymbol && o.symbol_kind == SymbolKind::kLocal) {
        cells = frames_[frame]->locals[o.index];
      } else if (o.kind == OperandKind::kSymbol && o.symbol_kind == SymbolKind::kParameter &&
                 frame != 0) {
        cells = frames_[frame]->params[o.index];
      } else {
        const Value v = read(frame, pool);
        if (!v.empty())
          cells.push_back({0, std::max<std::uint32_t>(p.size, 1), v});
      }
      if (p.reg != kNone) {
        Frame& inside = *frames_[child];
        for (const Cell& c : cells)
          changed_ |= inside.values[p.reg].join(c.value);
      } else {
        join_cells(frames_[child]->params[k], cells);
      }
    }
    for (std::uint32_t k = 0; k < returns.count; ++k) {
      const std::uint32_t pool = returns.first + k;
      const Operand& o = caller.operands[pool];
      if (callee->returns[k].reg != kNone) {
        const Value& v = frames_[child]->values[callee->returns[k].reg];
        if (o.kind == OperandKind::kRegister) {
          assign_call_result(frame, o, v);
        } else if (o.kind == OperandKind::kSymbol && o.symbol_kind == SymbolKind::kLocal) {
          store_cells(frames_[frame]->locals[o.index], 0,
                      std::max<std::uint32_t>(callee->returns[k].size, 1), v);
        } else {
          return malformed(i);
        }
      } else if (o.kind == OperandKind::kSymbol && o.symbol_kind == SymbolKind::kLocal) {
        join_cells(frames_[frame]->locals[o.index], frames_[child]->returns[k]);
      } else if (o.kind == OperandKind::kRegister) {
        assign_call_result(frame, o,
                           load_cells(frames_[child]->returns[k], 0,
                                      std::max<std::uint32_t>(callee->returns[k].size, 1)));
      } else {
        return malformed(i);
      }
    }
  }
  // A call result in a register is not among the assignments that inspect() saw, so every read of
  // the register must see it: those that stand alone do not. Old code only.
  void assign_call_result(std::uint32_t frame, const Operand& o, const Value& v) {
    changed_ |= frames_[frame]->values[o.index].join(v);
    defeat("a call that returns its result in a register", line_);
  }

  void call_outside(const Function& callee, const Instruction& i) {
    const std::string& n = callee.name;
    if (n == "__assertfail" || n == "__assert_fail")
      return;  // ends the kernel
    std::string why = "a call of " + n + ", whose code is not in the module";
    if (n == "vprintf")
      why = "device printf";
    if (n == "malloc" || n == "free" || n == "__cuda_sys_malloc")
      why = "device " + n;
    if (n.starts_with("cudaLaunchDevice") || n.starts_with("cudaGetParameterBuffer") ||
        n.starts_with("cudaDeviceSynchronize") || n.starts_with("__cudaCDP") ||
        n.starts_with("cudaCDP")) {
      why = "dynamic parallelism (" + n + ")";
    }
    if (n.starts_with("cudaCG"))
      why = "grid-wide synchronization (" + n + ")";
    defeat(why, i.line);
  }

  // --- Instructions ---

  std::string text(const Instruction& i) const { return module_.opcode_texts[i.text]; }
  void malformed(const Instruction& i) {
    defeat("operands of " + text(i) + " are not understood", i.line);
  }

  void no_address(const Instruction& i) {
    if (recording_)
      defeat("an address that is never given a value", i.line);
  }

  // Bytes of a result.
  static std::uint32_t width(Type t) { return ptx::size_of(t); }

  void walk(std::uint32_t frame) {
    const Function& f = *frames_[frame]->info->function;
    steps_ += f.code.size();
    if (steps_ > kMaxSteps) {
      over_budget_ = true;
      return;
    }
    for (std::uint32_t n = 0; n < f.code.size() && !over_budget_; ++n) {
      line_ = f.code[n].line;
      step(frame, n, f.code[n]);
    }
  }

  void step(std::uint32_t frame, std::uint32_t index, const Instruction& i) {
    const Function& f = *frames_[frame]->info->function;
    const std::uint32_t first = i.first_operand;
    auto operand = [&](std::uint32_t k) -> Value {
      return k < i.operand_count ? read(frame, first + k) : scalar();
    };
    switch (i.opcode) {
      case Opcode::kUnknown:
        return defeat("an instruction that is not known: " + text(i), i.line);

      case Opcode::kLd:
      case Opcode::kLdu:
        if (i.has_unknown_modifier)
          return defeat("unknown form of a load: " + text(i), i.line);
        return load(frame, i);
      case Opcode::kSt:
        if (i.has_unknown_modifier)
          return defeat("unknown form of a store: " + text(i), i.line);
        if (i.has(Modifier::kBulk))
          return touch_first_address(frame, i, AccessKind::kWrite);
        return store(frame, i);
      case Opcode::kAtom:
      case Opcode::kRed:
        if (i.has_unknown_modifier)
          return defeat("unknown form of an atomic: " + text(i), i.line);
        return atomic(frame, i);
      case Opcode::kCp:
        return copy(frame, i);
      case Opcode::kCall:
        return call(frame, index, i);

      // No effect on memory, no result.
      case Opcode::kApplypriority:
      case Opcode::kBra:
      case Opcode::kBrkpt:
      case Opcode::kBrx:
      case Opcode::kExit:
      case Opcode::kFence:
      case Opcode::kMembar:
      case Opcode::kNanosleep:
      case Opcode::kPmevent:
      case Opcode::kPrefetch:
      case Opcode::kPrefetchu:
      case Opcode::kRet:
      case Opcode::kSetmaxnreg:
      case Opcode::kStackrestore:
      case Opcode::kTrap:
        for (std::uint32_t k = 0; k < i.operand_count; ++k)
          operand(k);
        return;
      case Opcode::kDiscard:
        // The contents are lost: as good as a write of anything.
        return touch_first_address(frame, i, AccessKind::kWrite);

      // Results that are no part of an address.
      case Opcode::kActivemask:
      case Opcode::kBar:
      case Opcode::kBarrier:
      case Opcode::kCreatepolicy:
      case Opcode::kElect:
      case Opcode::kFns:
      case Opcode::kGetctarank:
      case Opcode::kIsspacep:
      case Opcode::kIstypep:
      case Opcode::kMatch:
      case Opcode::kRedux:
      case Opcode::kSet:
      case Opcode::kSetp:
      case Opcode::kSuq:
      case Opcode::kTestp:
      case Opcode::kTxq:
      case Opcode::kVote:
        for (std::uint32_t k = 1; k < i.operand_count; ++k)
          operand(k);
        return write(frame, i, scalar());
      case Opcode::kMbarrier:
        return write(frame, i, scalar());

      case Opcode::kOpaque:
        return write(frame, i,
                     i.type == Type::kPred ? scalar()
                     : width(i.type) >= 8  ? flagged(Form::kDark)
                                           : flagged(Form::kScaled));
      case Opcode::kUniform:
        return write(frame, i, width(i.type) >= 8 ? operand(1) : narrow(operand(1)));

      case Opcode::kMov:
        return move(frame, i);
      case Opcode::kCvta: {
        if (i.has(Modifier::kTo))
          return write(frame, i, operand(1));
        if (i.space == Space::kShared || i.space == Space::kSharedCluster) {
          return write(frame, i, shared_address());
        }
        if (i.space == Space::kLocal)
          return write(frame, i, generic_local(operand(1)));
        return write(frame, i, operand(1));
      }
      case Opcode::kMapa:
        return write(
            frame, i,
            width(i.type) >= 8 && i.space == Space::kGeneric ? shared_address() : scalar());
      case Opcode::kAlloca:
      case Opcode::kStacksave:
        return write(frame, i, local_address());

      case Opcode::kCvt: {
        const Value v = operand(1);
        const std::uint32_t to = width(i.type), from = width(i.type2);
        const bool integers = !is_float(i.type) && !is_float(i.type2);
        if (integers && to == 8 && from == 8)
          return write(frame, i, v);
        if (integers && to == 8 && from < 8)
          return write(frame, i, narrow(v));
        return write(frame, i, mixed(to, {&v}));
      }
      case Opcode::kAdd:
      case Opcode::kSub: {
        const Value a = operand(1), b = operand(2);
        if (width(i.type) != 8 || is_float(i.type))
          return write(frame, i, mixed(width(i.type), {&a, &b}));
        return write(frame, i, add(a, b, i.opcode == Opcode::kAdd ? 1 : -1));
      }
      case Opcode::kNeg: {
        const Value a = operand(1);
        if (width(i.type) != 8 || is_float(i.type))
          return write(frame, i, mixed(width(i.type), {&a}));
        return write(frame, i, add(constant(0), a, -1));
      }
      case Opcode::kMul:
        return write(frame, i, product(i, operand(1), operand(2)));
      case Opcode::kMad: {
        const Value c = operand(3), p = product(i, operand(1), operand(2));
        const bool wide = width(i.type) == 8 || (i.has(Modifier::kWide) && width(i.type) == 4);
        if (!wide || is_float(i.type) || i.has(Modifier::kHi))
          return write(frame, i, mixed(wide ? 8 : 4, {&p, &c}));
        return write(frame, i, add(p, c, 1));
      }
      case Opcode::kShl: {
        const Value a = operand(1), n = operand(2);
        if (constant_of(n) == 0u)
          return write(frame, i, a);
        return write(frame, i, scaled({&a, &n}));
      }
      case Opcode::kAnd:
      case Opcode::kOr:
      case Opcode::kXor: {
        Value a = operand(1), b = operand(2);
        if (width(i.type) != 8)
          return write(frame, i, mixed(width(i.type), {&a, &b}));
        if (constant_of(a))
          std::swap(a, b);
        if (const auto c = constant_of(b)) {
          // Low bits cleared, set or toggled: an offset of less than a page within the object.
          const bool small = i.opcode == Opcode::kAnd ? *c >= 0 - std::uint64_t{4096} : *c < 4096;
          if (small)
            return write(frame, i, forget_exact(a));
          if (i.opcode == Opcode::kAnd && *c <= 0xFFFFFFFFu)
            return write(frame, i, narrow(a));
        }
        return write(frame, i, mixed(8, {&a, &b}));
      }
      case Opcode::kMin:
      case Opcode::kMax:
      case Opcode::kSelp:
      case Opcode::kSlct: {
        Value a = operand(1), b = operand(2);
        if (width(i.type) != 8 || is_float(i.type))
          return write(frame, i, mixed(width(i.type), {&a, &b}));
        a.join(b);  // one may still be without a value: what is known holds in any case
        return write(frame, i, a);
      }
      case Opcode::kShfl: {
        const Value a = operand(1);
        return write(frame, i, narrow(a));
      }

      case Opcode::kLdmatrix:
        return write(frame, i, load_memory(shared_, 4));
      case Opcode::kStmatrix: {
        const Value v = flagged(Form::kScaled);
        return store_memory(shared_, 4, v);
      }
      case Opcode::kWmma:
        return wmma(frame, i);
      case Opcode::kWgmma:
        return write(frame, i, flagged(Form::kScaled));

      case Opcode::kTex:
      case Opcode::kTld4:
        return defeat("texture reads", i.line);
      case Opcode::kSuld:
      case Opcode::kSust:
      case Opcode::kSured:
        return defeat("surface accesses", i.line);
      case Opcode::kMultimem:
        return defeat("multi-device memory (multimem)", i.line);
      case Opcode::kTensormap:
        return defeat("a tensor map made on the device", i.line);
      case Opcode::kTcgen05:
        return defeat("tensor memory instructions (tcgen05)", i.line);
      case Opcode::kClusterlaunchcontrol:
        return defeat("clusters that take over each other's work (clusterlaunchcontrol)", i.line);
      case Opcode::kGriddepcontrol:
        return defeat("programmatic dependent launch (griddepcontrol)", i.line);

      default:
        break;
    }
    // Everything else computes its result from its operands, in a way that makes no pointer.
    bool dirty = false, empty = false, top = false;
    std::uint32_t bytes = std::max(width(i.type), i.type == Type::kOther ? 8u : 0u);
    for (std::uint32_t k = 1; k < i.operand_count; ++k) {
      const Operand& o = f.operands[first + k];
      if (o.kind == OperandKind::kAddress) {
        return defeat("an instruction with a memory operand that is not known: " + text(i), i.line);
      }
      const Value v = operand(k);
      dirty |= tainted(v);
      empty |= v.empty();
      top |= v.top;
    }
    if (i.operand_count > 0 && f.operands[first].kind == OperandKind::kAddress) {
      return defeat("an instruction with a memory operand that is not known: " + text(i), i.line);
    }
    if (empty)
      return;
    if (top && bytes >= 8)
      return write(frame, i, unknown());
    write(frame, i, !dirty ? scalar() : bytes >= 8 ? flagged(Form::kDark) : flagged(Form::kScaled));
  }

  void touch_first_address(std::uint32_t frame, const Instruction& i, AccessKind kind) {
    const Function& f = *frames_[frame]->info->function;
    if (i.operand_count == 0 || f.operands[i.first_operand].kind != OperandKind::kAddress) {
      return malformed(i);
    }
    touch(frame, i, i.first_operand, kind, i.space, 0);
  }

  // The address itself where it is known to be local, so that its displacement is not lost.
  Value generic_local(const Value& v) {
    if (v.empty())
      return v;
    const bool local = !v.top && std::all_of(v.forms.begin(), v.forms.end(), [&](const Form& f) {
      return f.count == 1 && terms_[f.terms[0].id].kind == TermKind::kLocal;
    });
    return local ? v : local_address();
  }

  static Value forget_exact(Value v) {
    for (Form& f : v.forms) {
      f.exact = false;
      if (!f.constant)
        f.value = 0;
      if (f.constant)
        f = Form{};
    }
    Value r;
    r.top = v.top;
    for (const Form& f : v.forms)
      r.add(f);
    return r;
  }

  Value product(const Instruction& i, const Value& a, const Value& b) {
    if (is_float(i.type))
      return mixed(width(i.type), {&a, &b});
    if (width(i.type) == 8 && !i.has(Modifier::kHi)) {
      for (const auto& [factor, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        const auto c = constant_of(*factor);
        if (c == 1u)
          return *other;
        if (c == ~std::uint64_t{0})
          return add(constant(0), *other, -1);
      }
    }
    if (i.has(Modifier::kHi) && width(i.type) == 8)
      return mixed(8, {&a, &b});
    return scaled({&a, &b});
  }

  bool is_narrow_parameter(const Value& v) const {
    return !v.top && v.forms.size() == 1 && v.forms[0].count == 1 && v.forms[0].flags == 0 &&
           terms_[v.forms[0].terms[0].id].kind == TermKind::kNarrowParameter;
  }

  void move(std::uint32_t frame, const Instruction& i) {
    const Function& f = *frames_[frame]->info->function;
    if (i.operand_count < 2)
      return malformed(i);
    const Operand& to = f.operands[i.first_operand];
    const Value v = read(frame, i.first_operand + 1);
    if (v.empty())
      return;
    if (to.kind == OperandKind::kVector) {
      // Taken apart.
      const Operand& from = f.operands[i.first_operand + 1];
      if (from.kind == OperandKind::kVector && from.count == to.count) {
        for (std::uint32_t k = 0; k < to.count; ++k) {
          write_node(frame, to.first + k, read(frame, from.first + k));
        }
        return;
      }
      const std::uint32_t bytes = to.count == 0 ? 8 : width(i.type) / to.count;
      return write(frame, i, mixed(bytes >= 8 || i.vector > 1 ? 8 : 4, {&v}));
    }
    const std::uint32_t bytes = width(i.type);
    if (bytes < 8 && is_narrow_parameter(v))
      return write(frame, i, v);  // only copied: it keeps its name
    if (bytes < 8 && i.type != Type::kOther)
      return write(frame, i, narrow(v));
    if (bytes > 8)
      return write(frame, i, mixed(8, {&v}));
    write(frame, i, v);
  }

  void wmma(std::uint32_t frame, const Instruction& i) {
    const Function& f = *frames_[frame]->info->function;
    if (i.has_unknown_modifier)
      return defeat("unknown form of a matrix access: " + text(i), i.line);
    if (i.has(Modifier::kLoad)) {
      if (i.operand_count < 2 || f.operands[i.first_operand + 1].kind != OperandKind::kAddress) {
        return malformed(i);
      }
      touch(frame, i, i.first_operand + 1, AccessKind::kRead, i.space, 0);
      return write(frame, i, flagged(Form::kScaled));
    }
    if (i.has(Modifier::kStore))
      return touch_first_address(frame, i, AccessKind::kWrite);
    write(frame, i, flagged(Form::kScaled));
  }

  const Module& module_;
  const Function& kernel_;
  KernelSummary out_;
  std::unordered_set<std::string> defeats_seen_;
  std::unordered_map<std::string, std::uint32_t> symbols_;
  std::unordered_map<const Function*, std::unique_ptr<FunctionInfo>> infos_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<TermInfo> terms_;
  std::vector<AccessPlace> places_;  // of `out_`'s accesses: their sites, once these are made
  std::uint32_t place_ = kNone;      // of the access about to be recorded
  Memory shared_;
  std::unordered_map<const ptx::Variable*, std::size_t> local_ids_;
  std::unordered_map<std::uint32_t, LocalVariable> locals_;  // by the ids above; 0: anywhere
  std::size_t total_nodes_ = 0;
  std::uint64_t steps_ = 0;
  bool changed_ = false, over_budget_ = false, recording_ = false, settled_ = false;
};

}  // namespace

KernelSummary summarize(const Module& module, const Function& kernel) {
  try {
    return Analysis(module, kernel).run();
  } catch (const std::exception&) {
    return {};  // not complete: its verdict is unknown
  }
}

namespace {

std::string text_of(const Root& r, const KernelSummary& s) {
  switch (r.kind) {
    case RootKind::kParameter:
      return "param[" + std::to_string(r.param_offset) + "]";
    case RootKind::kAnyParameter:
      return "param[" + std::to_string(r.param_offset) + ".." +
             std::to_string(r.param_offset + r.param_size) + ")";
    case RootKind::kGlobalSymbol:
    case RootKind::kConstSymbol:
      return r.symbol < s.symbols.size() ? s.symbols[r.symbol] : "?";
    case RootKind::kLoaded:
      return "loaded";
    case RootKind::kDriver:
      return "driver";
    case RootKind::kConstant:
      return r.address == 0 ? "null" : std::to_string(r.address);
    case RootKind::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace

std::string to_text(const KernelSummary& summary) {
  std::string out = summary.name + "\n";
  for (const Access& a : summary.accesses) {
    static constexpr const char* kKinds[] = {"read", "write", "rmw"};
    static constexpr const char* kSpaces[] = {"global", "const", "generic"};
    out += std::string("  ") + kKinds[static_cast<int>(a.kind)] + " " +
           kSpaces[static_cast<int>(a.space)] + " ";
    bool first_alternative = true;
    for (const Alternative& alt : a.alternatives) {
      if (!first_alternative)
        out += " | ";
      first_alternative = false;
      bool first_root = true;
      for (const Root& r : alt.roots) {
        out += (first_root ? "" : " + ") + text_of(r, summary);
        first_root = false;
      }
      for (const Root& r : alt.subtracted)
        out += " - " + text_of(r, summary);
      if (alt.may_hide_pointer) {
        out += " + ?";
      } else if (alt.has_other_terms) {
        out += " + …";
      }
    }
    if (a.range_end != 0) {
      out += " [" + std::to_string(a.range_begin) + ":" + std::to_string(a.range_end) + "]";
    }
    if (a.element_bytes != 0)
      out += ", " + std::to_string(a.element_bytes) + " bytes";
    if (a.line != 0)
      out += ", line " + std::to_string(a.line);
    out += "\n";
  }
  for (const std::string& d : summary.defeats)
    out += "  defeated by: " + d + "\n";
  if (!summary.complete)
    out += "  defeated by: out of memory\n";
  return out;
}

}  // namespace gpurecover::idempotency
