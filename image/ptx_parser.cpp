// SPDX-License-Identifier: Apache-2.0
#include "image/ptx_parser.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "image/ptx_lexer.h"

namespace gpurecover::image::ptx {
namespace {

constexpr std::uint32_t kMaxNesting = 256;
constexpr std::size_t kMaxInstructions = 8u << 20;
constexpr std::size_t kMaxOperands = 32u << 20;
constexpr std::uint64_t kMaxInitBytes = 16u << 20;
constexpr std::uint64_t kMaxVariableBytes = 1ull << 48;
constexpr std::uint32_t kMaxParamBytes = 1u << 24;

// --- Words ---

const std::unordered_map<std::string_view, Opcode>& opcodes() {
  static const auto* const map = new std::unordered_map<std::string_view, Opcode>{
#define GPURECOVER_X(id, text) {text, Opcode::k##id},
      GPURECOVER_PTX_OPCODES(GPURECOVER_X)
#undef GPURECOVER_X
  };
  return *map;
}

const std::unordered_map<std::string_view, Modifier>& modifiers() {
  static const auto* const map = new std::unordered_map<std::string_view, Modifier>{
#define GPURECOVER_X(id, text) {text, Modifier::k##id},
      GPURECOVER_PTX_MODIFIERS(GPURECOVER_X)
#undef GPURECOVER_X
  };
  return *map;
}

const std::unordered_map<std::string_view, Type>& types() {
  static const auto* const map = [] {
    auto* m = new std::unordered_map<std::string_view, Type>;
    for (std::size_t i = 1; i < static_cast<std::size_t>(Type::kOther); ++i) {
      m->emplace(name_of(static_cast<Type>(i)), static_cast<Type>(i));
    }
    for (const char* other :
         {"b1",    "s4",     "u4",        "b4",        "b6",     "e2m1",    "e2m1x2",
          "e2m3",  "e3m2",   "e2m3x2",    "e3m2x2",    "ue8m0",  "ue8m0x2", "ue4m3",
          "f8x4",  "e4m3x4", "e5m2x4",    "e2m1x4",    "e2m3x4", "e3m2x4",  "b4x16",
          "b6x16", "b8x16",  "b4x16_p64", "b6x16_p32", "b6p2x16"}) {
      m->emplace(other, Type::kOther);
    }
    return m;
  }();
  return *map;
}

std::optional<Space> space_of(std::string_view word) {
  if (word == "global")
    return Space::kGlobal;
  if (word == "shared" || word == "shared::cta")
    return Space::kShared;
  if (word == "shared::cluster")
    return Space::kSharedCluster;
  if (word == "local")
    return Space::kLocal;
  if (word == "const")
    return Space::kConst;
  if (word == "param" || word == "param::entry" || word == "param::func")
    return Space::kParam;
  if (word == "tex")
    return Space::kTex;
  return std::nullopt;
}

Compare compare_of(Modifier m) {
  switch (m) {
    case Modifier::kEq:
      return Compare::kEq;
    case Modifier::kNe:
      return Compare::kNe;
    case Modifier::kLt:
      return Compare::kLt;
    case Modifier::kLe:
      return Compare::kLe;
    case Modifier::kGt:
      return Compare::kGt;
    case Modifier::kGe:
      return Compare::kGe;
    case Modifier::kLo:
      return Compare::kLo;
    case Modifier::kLs:
      return Compare::kLs;
    case Modifier::kHi:
      return Compare::kHi;
    case Modifier::kHs:
      return Compare::kHs;
    case Modifier::kEqu:
      return Compare::kEqu;
    case Modifier::kNeu:
      return Compare::kNeu;
    case Modifier::kLtu:
      return Compare::kLtu;
    case Modifier::kLeu:
      return Compare::kLeu;
    case Modifier::kGtu:
      return Compare::kGtu;
    case Modifier::kGeu:
      return Compare::kGeu;
    case Modifier::kNum:
      return Compare::kNum;
    case Modifier::kNanTest:
      return Compare::kNan;
    default:
      return Compare::kNone;
  }
}

Rounding rounding_of(Modifier m) {
  switch (m) {
    case Modifier::kRn:
      return Rounding::kRn;
    case Modifier::kRz:
      return Rounding::kRz;
    case Modifier::kRm:
      return Rounding::kRm;
    case Modifier::kRp:
      return Rounding::kRp;
    case Modifier::kRna:
      return Rounding::kRna;
    case Modifier::kRs:
      return Rounding::kRs;
    case Modifier::kRni:
      return Rounding::kRni;
    case Modifier::kRzi:
      return Rounding::kRzi;
    case Modifier::kRmi:
      return Rounding::kRmi;
    case Modifier::kRpi:
      return Rounding::kRpi;
    default:
      return Rounding::kNone;
  }
}

bool is_operation(Modifier m) {
  switch (m) {
    case Modifier::kAdd:
    case Modifier::kMin:
    case Modifier::kMax:
    case Modifier::kInc:
    case Modifier::kDec:
    case Modifier::kAnd:
    case Modifier::kOr:
    case Modifier::kXor:
    case Modifier::kExch:
    case Modifier::kCas:
    case Modifier::kPopc:
      return true;
    default:
      return false;
  }
}

struct Special {
  SpecialRegister reg;
  std::int64_t number = 0;
};

std::optional<Special> special_of(std::string_view name) {
  using R = SpecialRegister;
  static const auto* const map = new std::unordered_map<std::string_view, Special>{
      {"%tid", {R::kTid}},
      {"%ntid", {R::kNtid}},
      {"%laneid", {R::kLaneid}},
      {"%warpid", {R::kWarpid}},
      {"%nwarpid", {R::kNwarpid}},
      {"%ctaid", {R::kCtaid}},
      {"%nctaid", {R::kNctaid}},
      {"%smid", {R::kSmid}},
      {"%nsmid", {R::kNsmid}},
      {"%gridid", {R::kGridid}},
      {"%is_explicit_cluster", {R::kIsExplicitCluster}},
      {"%clusterid", {R::kClusterid}},
      {"%nclusterid", {R::kNclusterid}},
      {"%cluster_ctaid", {R::kClusterCtaid}},
      {"%cluster_nctaid", {R::kClusterNctaid}},
      {"%cluster_ctarank", {R::kClusterCtarank}},
      {"%cluster_nctarank", {R::kClusterNctarank}},
      {"%lanemask_eq", {R::kLanemaskEq}},
      {"%lanemask_le", {R::kLanemaskLe}},
      {"%lanemask_lt", {R::kLanemaskLt}},
      {"%lanemask_ge", {R::kLanemaskGe}},
      {"%lanemask_gt", {R::kLanemaskGt}},
      {"%clock", {R::kClock}},
      {"%clock_hi", {R::kClockHi}},
      {"%clock64", {R::kClock64}},
      {"%globaltimer", {R::kGlobaltimer}},
      {"%globaltimer_lo", {R::kGlobaltimerLo}},
      {"%globaltimer_hi", {R::kGlobaltimerHi}},
      {"%reserved_smem_offset_begin", {R::kReservedSmemOffset, 0}},
      {"%reserved_smem_offset_end", {R::kReservedSmemOffset, 1}},
      {"%reserved_smem_offset_cap", {R::kReservedSmemOffset, 2}},
      {"%reserved_smem_offset_0", {R::kReservedSmemOffset, 3}},
      {"%reserved_smem_offset_1", {R::kReservedSmemOffset, 4}},
      {"%total_smem_size", {R::kTotalSmemSize}},
      {"%aggr_smem_size", {R::kAggrSmemSize}},
      {"%dynamic_smem_size", {R::kDynamicSmemSize}},
      {"%current_graph_exec", {R::kCurrentGraphExec}},
      {"WARP_SZ", {R::kWarpSize}},
  };
  if (const auto it = map->find(name); it != map->end()) {
    return it->second;
  }
  auto numbered = [&](std::string_view prefix, std::string_view suffix, SpecialRegister reg,
                      std::uint32_t limit) -> std::optional<Special> {
    if (!name.starts_with(prefix) || !name.ends_with(suffix) ||
        name.size() <= prefix.size() + suffix.size()) {
      return std::nullopt;
    }
    const std::string_view digits =
        name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    std::uint32_t n = 0;
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (ec != std::errc() || end != digits.data() + digits.size() || n >= limit) {
      return std::nullopt;
    }
    return Special{reg, n};
  };
  if (auto r = numbered("%envreg", "", R::kEnvreg, 32))
    return r;
  if (auto r = numbered("%pm", "_64", R::kPm64, 8))
    return r;
  if (auto r = numbered("%pm", "", R::kPm, 8))
    return r;
  return std::nullopt;
}

// --- Numbers ---

struct Number {
  std::uint64_t bits = 0;
  bool is_float = false;
  std::uint8_t float_bits = 0;
};

std::optional<Number> number_of(std::string_view text) {
  auto integer = [](std::string_view digits, int base) -> std::optional<Number> {
    if (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) {
      digits.remove_suffix(1);
    }
    Number n;
    const auto [end, ec] =
        std::from_chars(digits.data(), digits.data() + digits.size(), n.bits, base);
    if (digits.empty() || ec != std::errc() || end != digits.data() + digits.size()) {
      return std::nullopt;
    }
    return n;
  };
  if (text.size() > 1 && text[0] == '0') {
    const char c = text[1];
    const std::string_view rest = text.substr(2);
    if (c == 'f' || c == 'F' || c == 'd' || c == 'D') {
      const bool is_double = c == 'd' || c == 'D';
      if (rest.size() != (is_double ? 16u : 8u)) {
        return std::nullopt;
      }
      auto n = integer(rest, 16);
      if (n) {
        n->is_float = true;
        n->float_bits = is_double ? 64 : 32;
      }
      return n;
    }
    if (c == 'x' || c == 'X')
      return integer(rest, 16);
    if (c == 'b' || c == 'B')
      return integer(rest, 2);
  }
  if (text.find('.') != std::string_view::npos) {
    double value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size()) {
      return std::nullopt;
    }
    return Number{std::bit_cast<std::uint64_t>(value), true, 64};
  }
  if (text.size() > 1 && text[0] == '0' && text != "0U" && text != "0u") {
    return integer(text.substr(1), 8);
  }
  return integer(text, 10);
}

// --- Parser ---

struct Failure {
  ParseError error;
};

// What a name stands for.
struct Entity {
  enum class Kind : std::uint8_t {
    kRegister,
    kVariable,
    kFunction,
    kParameter,
    kReturn,
    kLocal,
    kBranchTable,
    kPrototype,
  };
  Kind kind = Kind::kRegister;
  std::uint32_t index = 0;
  std::uint32_t depth = 0;
};

// `.reg .b32 %r<100>`
struct RegisterRange {
  std::uint32_t id = 0;
  std::uint32_t count = 0;
  std::uint32_t depth = 0;
  Type type = Type::kNone;
  std::uint8_t vector = 1;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text), text_size_(text.size()) { advance(); }

  Module run() {
    parse_header();
    while (token_.kind != TokenKind::kEnd) {
      parse_top_level();
    }
    finish_module();
    return std::move(module_);
  }

  Header run_header() {
    parse_header();
    return {module_.version_major, module_.version_minor, module_.sm, module_.suffix};
  }

 private:
  // The parser reports errors by an exception that never leaves parse(): its functions nest, and
  // every one of them can fail.
  [[noreturn]] void fail(const Token& at, std::string what, std::string remedy) const {
    throw Failure{{at.line, at.column, std::move(what), std::move(remedy)}};
  }
  [[noreturn]] void fail_expected(std::string_view wanted) const {
    fail(token_, std::string("expected ") + std::string(wanted) + ", found " + shown(token_),
         "check the text around this place, or rebuild the PTX with its compiler");
  }

  static std::string shown(const Token& t) {
    if (t.kind == TokenKind::kEnd)
      return "the end of the text";
    std::string s;
    for (const char c : t.text.substr(0, 40)) {
      s += (c >= ' ' && c < 127) ? c : '?';
    }
    if (t.kind == TokenKind::kDotWord)
      s.insert(0, ".");
    return "'" + s + "'";
  }

  void advance() {
    token_ = lexer_.next();
    if (token_.kind == TokenKind::kBad) {
      fail(token_,
           token_.text == "/*"   ? "comment without an end"
           : token_.text == "\"" ? "string without an end on its line"
                                 : "a character that PTX does not have",
           "this is not PTX text, or it was cut off or overwritten");
    }
  }
  Token take() {
    const Token t = token_;
    advance();
    return t;
  }
  bool accept(char c) {
    if (!token_.is(c))
      return false;
    advance();
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      fail_expected(std::string("'") + c + "'");
  }
  bool accept_word(std::string_view w) {
    if (!token_.is_word(w))
      return false;
    advance();
    return true;
  }
  Token expect_identifier(std::string_view what) {
    if (token_.kind != TokenKind::kIdentifier)
      fail_expected(what);
    return take();
  }
  std::uint64_t expect_integer(std::string_view what) {
    if (token_.kind != TokenKind::kNumber)
      fail_expected(what);
    const Token t = token_;
    const auto n = number_of(t.text);
    if (!n || n->is_float) {
      fail(t, "malformed number " + shown(t), "write a decimal or 0x… integer of at most 64 bits");
    }
    advance();
    return n->bits;
  }
  // Without the look-ahead: the directive's arguments are not tokens of PTX in every case.
  void skip_line_directive() {
    lexer_.skip_line();
    advance();
  }

  void parse_header() {
    while (token_.is('#')) {
      skip_line_directive();
    }
    if (!token_.is_word("version")) {
      fail(token_, "PTX must begin with .version, found " + shown(token_),
           "pass PTX text (nvcc -ptx, clang -S), not something else");
    }
    advance();
    if (token_.kind != TokenKind::kNumber)
      fail_expected("a version such as 9.0");
    const std::string_view v = token_.text;
    const char* const end = v.data() + v.size();
    auto r = std::from_chars(v.data(), end, module_.version_major);
    if (r.ec != std::errc() || r.ptr == end || *r.ptr != '.' ||
        (r = std::from_chars(r.ptr + 1, end, module_.version_minor)).ec != std::errc() ||
        r.ptr != end) {
      fail(token_, "malformed version " + shown(token_), "write .version MAJOR.MINOR");
    }
    advance();
    if (!accept_word("target"))
      fail_expected(".target");
    bool have_sm = false;
    do {
      const Token t = expect_identifier("a target such as sm_90");
      if (!t.text.starts_with("sm_") && !t.text.starts_with("compute_"))
        continue;
      const std::string_view digits = t.text.substr(t.text.find('_') + 1);
      const auto d = std::from_chars(digits.data(), digits.data() + digits.size(), module_.sm);
      module_.suffix = std::string(d.ptr, digits.data() + digits.size() - d.ptr);
      if (d.ec != std::errc() || module_.suffix.size() > 4) {
        fail(t, "malformed target " + shown(t), "write .target sm_NN");
      }
      module_.target = std::string(t.text);
      have_sm = true;
    } while (accept(','));
    if (!have_sm)
      fail(token_, ".target names no sm_NN", "write .target sm_NN");
    if (accept_word("address_size")) {
      module_.address_size = static_cast<std::uint32_t>(expect_integer("32 or 64"));
      if (module_.address_size != 32 && module_.address_size != 64) {
        fail(token_, ".address_size is neither 32 nor 64", "write .address_size 64");
      }
    } else {
      module_.address_size = 32;  // the default of the language
    }
  }

  // --- Names ---

  struct UndoName {
    std::string_view name;
    std::optional<Entity> before;
  };
  struct UndoRange {
    std::string_view prefix;
    std::optional<RegisterRange> before;
  };
  struct Scope {
    std::size_t names, ranges;
    std::uint32_t label_scope;
  };

  std::uint32_t depth() const { return static_cast<std::uint32_t>(scopes_.size()); }

  void open_scope(const Token& at) {
    if (scopes_.size() >= kMaxNesting) {
      fail(at, "blocks nest deeper than 256", "this is no compiler's output");
    }
    scopes_.push_back({undo_names_.size(), undo_ranges_.size(), label_scope_});
    label_parents_.push_back(label_scope_);
    label_scope_ = static_cast<std::uint32_t>(label_parents_.size() - 1);
  }
  void close_scope() {
    const Scope s = scopes_.back();
    scopes_.pop_back();
    while (undo_names_.size() > s.names) {
      const UndoName& u = undo_names_.back();
      if (u.before) {
        names_[u.name] = *u.before;
      } else {
        names_.erase(u.name);
      }
      undo_names_.pop_back();
    }
    while (undo_ranges_.size() > s.ranges) {
      const UndoRange& u = undo_ranges_.back();
      if (u.before) {
        ranges_[u.prefix] = *u.before;
      } else {
        ranges_.erase(u.prefix);
      }
      undo_ranges_.pop_back();
    }
    label_scope_ = s.label_scope;
  }
  void declare(const Token& at, Entity::Kind kind, std::size_t index) {
    const Entity e{kind, static_cast<std::uint32_t>(index), depth()};
    const auto it = names_.find(at.text);
    std::optional<Entity> before;
    if (it != names_.end()) {
      // Call parameters are declared anew in one scope by some compilers' inlined assembly.
      if (it->second.depth == e.depth && it->second.kind != kind) {
        fail(at, "second declaration of " + shown(at), "give one of the two another name");
      }
      before = it->second;
      it->second = e;
    } else {
      names_.emplace(at.text, e);
    }
    if (depth() != 0)
      undo_names_.push_back({at.text, before});
  }
  void declare_range(std::string_view prefix, RegisterRange r) {
    r.id = next_range_id_++;
    r.depth = depth();
    const auto it = ranges_.find(prefix);
    std::optional<RegisterRange> before;
    if (it != ranges_.end()) {
      before = it->second;
      it->second = r;
    } else {
      ranges_.emplace(prefix, r);
    }
    undo_ranges_.push_back({prefix, before});
  }

  std::uint32_t new_register(Type type, std::uint8_t vector, std::string_view name) {
    function_->registers.push_back({type, vector, std::string(name)});
    return static_cast<std::uint32_t>(function_->registers.size() - 1);
  }

  // What `name` means here: the innermost of an explicit name and a register range.
  std::optional<Entity> resolve(std::string_view name) {
    std::optional<Entity> found;
    if (const auto it = names_.find(name); it != names_.end()) {
      found = it->second;
    }
    std::size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9' &&
           name.size() - digits < 10) {
      --digits;
      if (name[digits] == '0' && digits + 1 != name.size())
        continue;  // no leading zeros
      if (function_ == nullptr)
        break;
      const auto it = ranges_.find(name.substr(0, digits));
      if (it == ranges_.end() || (found && found->depth >= it->second.depth))
        continue;
      std::uint32_t n = 0;
      const auto r = std::from_chars(name.data() + digits, name.data() + name.size(), n);
      if (r.ec != std::errc() || n >= it->second.count)
        continue;
      const std::uint64_t key = (std::uint64_t{it->second.id} << 32) | n;
      const auto [slot, is_new] = range_registers_.try_emplace(key, 0);
      if (is_new)
        slot->second = new_register(it->second.type, it->second.vector, name);
      found = Entity{Entity::Kind::kRegister, slot->second, it->second.depth};
    }
    return found;
  }

  // --- Module level ---

  void parse_top_level() {
    if (token_.is('#'))
      return skip_line_directive();
    if (accept(';'))
      return;
    if (token_.is('@'))
      return skip_line_directive();  // @@DWARF of old compilers
    if (token_.kind != TokenKind::kDotWord)
      fail_expected("a directive such as .func or .global");
    const std::string_view w = token_.text;
    if (w == "file" || w == "loc")
      return skip_line_directive();
    if (w == "section")
      return skip_section();
    if (w == "pragma")
      return skip_pragma();
    if (w == "alias")
      return parse_alias();
    if (w == "version" || w == "target" || w == "address_size") {
      fail(token_, "second ." + std::string(w), "a module has one header; split joined texts");
    }
    bool is_extern = false, visible = false, weak = false, common = false;
    for (;;) {
      if (accept_word("extern"))
        is_extern = true;
      else if (accept_word("visible"))
        visible = true;
      else if (accept_word("weak"))
        weak = true;
      else if (accept_word("common"))
        common = true;
      else
        break;
    }
    if (token_.is_word("func") || token_.is_word("entry")) {
      parse_function(is_extern, visible, weak);
      return;
    }
    if (token_.kind == TokenKind::kDotWord) {
      if (const auto space = space_of(token_.text);
          space && *space != Space::kParam && *space != Space::kLocal) {
        advance();
        Variable prefix;
        prefix.is_extern = is_extern;
        prefix.visible = visible;
        prefix.weak = weak;
        prefix.common = common;
        prefix.space = *space;
        parse_variables(prefix, module_.variables, Entity::Kind::kVariable);
        return;
      }
    }
    fail(token_, "unknown directive " + shown(token_),
         "a newer PTX than this reader knows; report it with the text");
  }

  void skip_section() {
    const Token at = take();
    while (!token_.is('{')) {
      if (token_.kind == TokenKind::kEnd || token_.is('}') || token_.is(';')) {
        fail(at, ".section without a block", "write .section NAME { … }");
      }
      advance();
    }
    std::uint64_t open = 0;
    do {
      if (token_.kind == TokenKind::kEnd) {
        fail(at, ".section without an end", "the text was cut off");
      }
      if (token_.is('{'))
        ++open;
      if (token_.is('}'))
        --open;
      advance();
    } while (open != 0);
  }
  void skip_pragma() {
    advance();
    while (token_.kind == TokenKind::kString || token_.is(','))
      advance();
    expect(';');
  }
  void parse_alias() {
    advance();
    const Token alias = expect_identifier("a function name");
    expect(',');
    const Token target = expect_identifier("a function name");
    expect(';');
    const std::uint32_t a = function_index(alias);
    const std::uint32_t t = function_index(target);
    if (a != t && !module_.functions[a].has_body)
      aliases_.push_back({a, t});
  }
  std::uint32_t function_index(const Token& name) const {
    const auto it = names_.find(name.text);
    if (it == names_.end() || it->second.kind != Entity::Kind::kFunction) {
      fail(name, "unknown function " + shown(name), "declare it before its use");
    }
    return it->second.index;
  }

  std::uint32_t parse_align() {
    const Token at = token_;
    const std::uint64_t a = expect_integer("an alignment");
    if (a == 0 || a > (1u << 20) || (a & (a - 1)) != 0) {
      fail(at, "alignment is not a power of two up to 2^20", "write 1, 2, 4, 8, 16, …");
    }
    return static_cast<std::uint32_t>(a);
  }

  // .attribute(.managed), .attribute(.unified(1, 2))
  void parse_attribute(bool& managed) {
    expect('(');
    std::uint32_t open = 1;
    while (open != 0) {
      if (token_.kind == TokenKind::kEnd || token_.is(';') || token_.is('{'))
        fail_expected("')'");
      if (token_.is_word("managed"))
        managed = true;
      if (token_.is('('))
        ++open;
      if (token_.is(')'))
        --open;
      advance();
    }
  }

  std::optional<Type> accept_type() {
    if (token_.kind != TokenKind::kDotWord)
      return std::nullopt;
    const auto it = types().find(token_.text);
    if (it == types().end())
      return std::nullopt;
    advance();
    return it->second;
  }
  std::uint8_t accept_vector() {
    if (accept_word("v2"))
      return 2;
    if (accept_word("v4"))
      return 4;
    if (accept_word("v8"))
      return 8;
    return 1;
  }

  // After the state space: [.align N] [.attribute()] [.vN] .type name[dims] [= init] {, …} ;
  void parse_variables(const Variable& prefix, std::vector<Variable>& list, Entity::Kind kind) {
    Variable base = prefix;
    std::uint32_t align = 0;
    std::optional<Type> type;
    for (;;) {
      if (accept_word("align")) {
        align = parse_align();
      } else if (accept_word("attribute")) {
        parse_attribute(base.managed);
      } else if (const std::uint8_t v = accept_vector(); v != 1) {
        base.vector = v;
      } else if (!type && (type = accept_type())) {
        base.type = *type;
      } else {
        break;
      }
    }
    if (!type)
      fail_expected("a type such as .b32");
    const std::uint64_t element = std::uint64_t{size_of(base.type)} * base.vector;
    if (element == 0 || base.type == Type::kPred) {
      fail(token_, "a variable cannot have this type", "use .b8 … .b64, .f32 or .f64");
    }
    do {
      Variable v = base;
      const Token name = expect_identifier("a variable name");
      v.name = std::string(name.text);
      v.line = name.line;
      v.align = align != 0 ? align : static_cast<std::uint32_t>(element);
      std::uint64_t count = 1;
      bool open = false;
      while (accept('[')) {
        if (v.dims.size() >= 16)
          fail(name, "more than 16 dimensions", "declare fewer");
        if (accept(']')) {
          if (!v.dims.empty())
            fail(name, "only the first dimension may be open", "give its size");
          v.dims.push_back(0);
          open = true;
          continue;
        }
        const std::uint64_t d = parse_constant();
        expect(']');
        if (d != 0 && count > kMaxVariableBytes / element / d) {
          fail(name, "the variable is larger than 2^48 bytes", "check its dimensions");
        }
        count *= d;
        v.dims.push_back(d);
      }
      if (accept('='))
        parse_initializer(v, element, open, name);
      if (open) {
        v.unsized = v.size == 0;
      } else {
        v.size = element * count;
      }
      add_variable(std::move(v), list, kind, name);
    } while (accept(','));
    expect(';');
  }

  void add_variable(Variable v, std::vector<Variable>& list, Entity::Kind kind, const Token& name) {
    if (kind == Entity::Kind::kVariable) {
      if (const auto it = names_.find(name.text); it != names_.end()) {
        Variable* old = it->second.kind == kind ? &module_.variables[it->second.index] : nullptr;
        if (old == nullptr || (!old->is_extern && !v.is_extern)) {
          fail(name, "second declaration of " + shown(name), "give one of the two another name");
        }
        if (old->is_extern && !v.is_extern) {
          finish_relocations(it->second.index, false);
          *old = std::move(v);
        }
        new_relocations_.clear();
        return;
      }
      finish_relocations(module_.variables.size(), false);
    } else {
      finish_relocations(list.size(), true);
    }
    list.push_back(std::move(v));
    declare(name, kind, list.size() - 1);
  }

  // --- Initialisers ---

  struct PendingRelocation {
    std::string_view symbol;
    Token at;
    Relocation relocation;
    bool local = false;          // of a variable in a function body
    std::uint32_t function = 0;  // then: of which
    std::uint32_t variable = 0;
  };

  void finish_relocations(std::size_t variable, bool local) {
    for (PendingRelocation& r : new_relocations_) {
      r.local = local;
      r.variable = static_cast<std::uint32_t>(variable);
      r.function = function_index_;
      relocations_.push_back(r);
    }
    new_relocations_.clear();
  }

  void parse_initializer(Variable& v, std::uint64_t element, bool open, const Token& name) {
    // Sizes in scalars of the sub-aggregate that a brace at each level encloses.
    std::vector<std::uint64_t> extent;
    std::uint64_t n = v.vector;
    if (v.vector > 1)
      extent.push_back(n);
    for (std::size_t i = v.dims.size(); i-- > 0;) {
      n = (i == 0 && open) ? kMaxVariableBytes : n * v.dims[i];
      extent.push_back(n);
    }
    std::reverse(extent.begin(), extent.end());
    const std::uint64_t scalar = size_of(v.type);
    const std::uint64_t scalars = extent.empty() ? v.vector : extent.front();
    std::uint64_t cursor = 0;
    std::vector<std::uint64_t> ends;  // of the open braces
    const bool braced = token_.is('{');
    for (;;) {
      if (accept('{')) {
        const std::size_t level = ends.size();
        if (level > extent.size() || level > 17) {
          fail(token_, "more braces than dimensions in the initialiser of " + shown(name),
               "match the braces to the dimensions");
        }
        const std::uint64_t size = level < extent.size() ? extent[level] : 1;
        ends.push_back(cursor + size);
        if (!token_.is('}'))
          continue;
      } else if (!token_.is('}')) {
        if (cursor >= scalars || (!ends.empty() && cursor >= ends.back())) {
          fail(token_, "too many values in the initialiser of " + shown(name),
               "give at most as many values as the variable has");
        }
        parse_init_value(v, cursor * scalar, static_cast<std::uint32_t>(scalar), name);
        ++cursor;
      }
      // After a value, or at '}': close what closes, then a comma goes on.
      bool more = false;
      while (!ends.empty() && !more) {
        if (accept(',')) {
          more = true;
        } else if (accept('}')) {
          const bool outermost = ends.size() == 1;
          if (!(outermost && open))
            cursor = ends.back();
          ends.pop_back();
        } else {
          fail_expected("',' or '}'");
        }
      }
      if (!more)
        break;
      if (token_.is('}')) {
        // A trailing comma; the loop above goes on to close.
        continue;
      }
    }
    if (open) {
      if (!braced)
        fail(name, "an open array needs a list in braces", "write = { … }");
      const std::uint64_t elements = (cursor * scalar + element - 1) / element;
      // Whole rows, when there are further dimensions.
      std::uint64_t row = 1;
      for (std::size_t i = 1; i < v.dims.size(); ++i)
        row *= std::max<std::uint64_t>(v.dims[i], 1);
      const std::uint64_t rows = (elements + row - 1) / row;
      v.dims[0] = rows;
      v.size = rows * row * element;
    }
  }

  void parse_init_value(Variable& v, std::uint64_t offset, std::uint32_t size, const Token& name) {
    if (offset + size > init_bytes_left_) {
      fail(name, "more than 16 MiB of initialised data beyond the text's own size",
           "this is no compiler's output");
    }
    auto symbol = [&](bool generic, std::uint64_t mask) {
      const Token at = expect_identifier("a symbol");
      PendingRelocation p;
      p.symbol = at.text;
      p.at = at;
      p.relocation.offset = static_cast<std::uint32_t>(offset);
      p.relocation.size = static_cast<std::uint8_t>(size);
      p.relocation.generic = generic;
      p.relocation.mask = mask;
      if (generic || mask != 0) {
        parse_addend(p.relocation.addend);
        expect(')');
      }
      parse_addend(p.relocation.addend);
      new_relocations_.push_back(p);
    };
    if (size > 8 && token_.kind == TokenKind::kIdentifier) {
      fail(token_, "an address does not fit this type", "use .u64");
    }
    if (token_.kind == TokenKind::kIdentifier) {
      if (token_.text == "generic") {
        const Token word = take();
        if (accept('('))
          return symbol(true, 0);
        fail(word, "expected generic(symbol)", "write generic(NAME)");
      }
      if (token_.text == "mask") {
        advance();
        expect('(');
        const std::uint64_t mask = parse_constant();
        if (!accept(',') && !accept('('))
          fail_expected("','");
        return symbol(false, mask);
      }
      return symbol(false, 0);
    }
    const Token at = token_;
    const Number n = parse_number();
    if (!n.is_float && accept('('))
      return symbol(false, n.bits);  // 0xFF(symbol)
    if (v.init.size() < offset + size)
      v.init.resize(offset + size);
    write_scalar(v.init.data() + offset, size, v.type, n, at);
  }
  void parse_addend(std::int64_t& addend) {
    while (token_.is('+') || token_.is('-')) {
      const bool minus = take().is('-');
      std::uint64_t value = expect_integer("a number");
      if (minus)
        value = 0 - value;
      addend = static_cast<std::int64_t>(static_cast<std::uint64_t>(addend) + value);
    }
  }
  void write_scalar(std::byte* to, std::uint32_t size, Type type, const Number& n,
                    const Token& at) const {
    std::uint64_t bits = n.bits;
    if (type == Type::kF32) {
      if (!n.is_float) {
        bits = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int64_t>(n.bits)));
      } else if (n.float_bits == 64) {
        bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(n.bits)));
      }
    } else if (type == Type::kF64) {
      if (!n.is_float) {
        bits = std::bit_cast<std::uint64_t>(static_cast<double>(static_cast<std::int64_t>(n.bits)));
      } else if (n.float_bits == 32) {
        bits = std::bit_cast<std::uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(n.bits))));
      }
    } else if (n.is_float && size < n.float_bits / 8u) {
      fail(at, "a floating-point value does not fit this type", "use .f32 or .f64");
    }
    std::memset(to, 0, size);
    std::memcpy(to, &bits, std::min<std::size_t>(size, 8));
  }

  // [-~!] number, or (constant)
  Number parse_number() {
    std::uint32_t parentheses = 0;
    bool minus = false, invert = false;
    for (;;) {
      if (accept('(')) {
        if (++parentheses > 16)
          fail_expected("a number");
      } else if (accept('-')) {
        minus = !minus;
      } else if (accept('~')) {
        invert = !invert;
      } else if (!accept('+')) {
        break;
      }
    }
    if (token_.kind != TokenKind::kNumber)
      fail_expected("a number");
    const Token t = token_;
    auto n = number_of(t.text);
    if (!n) {
      fail(t, "malformed number " + shown(t),
           "write an integer of at most 64 bits, 0f and 8 digits, or 0d and 16 digits");
    }
    advance();
    if (invert)
      n->bits = ~n->bits;
    if (minus) {
      if (!n->is_float) {
        n->bits = 0 - n->bits;
      } else {
        n->bits ^= std::uint64_t{1} << (n->float_bits - 1);
      }
    }
    while (parentheses-- > 0)
      expect(')');
    return *n;
  }
  std::uint64_t parse_constant() {
    const Token at = token_;
    const Number n = parse_number();
    if (n.is_float)
      fail(at, "an integer is needed here", "write an integer");
    return n.bits;
  }

  void finish_module() {
    for (const PendingRelocation& p : relocations_) {
      Relocation r = p.relocation;
      const auto it = names_.find(p.symbol);
      if (it == names_.end() || (it->second.kind != Entity::Kind::kVariable &&
                                 it->second.kind != Entity::Kind::kFunction)) {
        fail(p.at, "unknown symbol " + shown(p.at) + " in an initialiser",
             "declare the variable or function in this module");
      }
      r.symbol = it->second.index;
      r.symbol_kind = it->second.kind == Entity::Kind::kVariable ? SymbolKind::kVariable
                                                                 : SymbolKind::kFunction;
      auto& list = p.local ? module_.functions[p.function].locals : module_.variables;
      list[p.variable].relocations.push_back(r);
    }
    for (const auto& [alias, target] : aliases_) {
      module_.functions[alias].alias_of = target;
    }
  }

  // --- Functions ---

  // Where the driver puts the parameters of a kernel in constant bank 0, by architecture: as
  // EIATTR_PARAM_CBANK of cubins says.
  static std::uint64_t parameter_base(std::uint32_t sm) {
    return sm >= 100 ? 0x380 : sm >= 90 ? 0x210 : 0x160;
  }

  // One parameter, after '(' or ','. `function` is null in a prototype.
  Parameter parse_parameter(std::uint32_t& block, Entity::Kind kind, std::size_t index,
                            std::vector<std::pair<Token, Entity>>* names, Function* function) {
    Parameter p;
    const Token at = token_;
    bool is_reg = false;
    if (accept_word("reg")) {
      is_reg = true;
    } else if (!accept_word("param")) {
      fail_expected(".param or .reg");
    }
    std::uint32_t align = 0;
    std::optional<Type> type;
    std::uint8_t vector = 1;
    bool managed = false;
    for (;;) {
      if (accept_word("align")) {
        const std::uint32_t a = parse_align();
        if (p.is_pointer) {
          p.pointer_align = a;
        } else {
          align = a;
        }
      } else if (accept_word("attribute")) {
        parse_attribute(managed);
      } else if (accept_word("ptr")) {
        p.is_pointer = true;
      } else if (const std::uint8_t v = accept_vector(); v != 1) {
        vector = v;
      } else if (p.is_pointer && token_.kind == TokenKind::kDotWord && space_of(token_.text)) {
        p.pointer_space = *space_of(token_.text);
        advance();
      } else if (!type && (type = accept_type())) {
        p.type = *type;
      } else {
        break;
      }
    }
    if (!type)
      fail_expected("a type such as .b64");
    const Token name = expect_identifier("a parameter name");
    p.name = std::string(name.text);
    std::uint64_t size = std::uint64_t{size_of(p.type)} * vector;
    p.align = align != 0 ? align : std::max<std::uint32_t>(static_cast<std::uint32_t>(size), 1);
    while (accept('[')) {
      std::uint64_t d = 0;
      if (!token_.is(']'))
        d = parse_constant();
      expect(']');
      if (d > kMaxParamBytes || size * d > kMaxParamBytes) {
        fail(name, "parameter larger than 2^24 bytes", "this is no compiler's output");
      }
      size *= d;
    }
    p.size = static_cast<std::uint32_t>(size);
    // The block of a kernel lies in a constant bank, where its first byte is aligned to 16 bytes
    // only: a larger alignment is met by the address in the bank.
    const std::uint64_t base =
        function != nullptr && function->entry ? parameter_base(module_.sm) : 0;
    const std::uint64_t mask = std::uint64_t{p.align} - 1;
    const std::uint64_t offset = ((base + block + mask) & ~mask) - base;
    if (offset + size > kMaxParamBytes) {
      fail(name, "parameters larger than 2^24 bytes", "this is no compiler's output");
    }
    p.offset = static_cast<std::uint32_t>(offset);
    block = static_cast<std::uint32_t>(offset + size);
    if (is_reg) {
      if (function != nullptr) {
        function->registers.push_back({p.type, vector, p.name});
        p.reg = static_cast<std::uint32_t>(function->registers.size() - 1);
        names->push_back({name, {Entity::Kind::kRegister, p.reg, 0}});
      }
    } else if (names != nullptr && name.text != "_") {
      names->push_back({name, {kind, static_cast<std::uint32_t>(index), 0}});
    }
    if (p.size == 0 && p.type == Type::kOther) {
      fail(at, "a parameter cannot have this type", "use .b8 … .b64, .f32 or .f64");
    }
    return p;
  }

  std::vector<Parameter> parse_parameters(Entity::Kind kind,
                                          std::vector<std::pair<Token, Entity>>* names,
                                          Function* function, std::uint32_t* bytes) {
    std::vector<Parameter> list;
    std::uint32_t block = 0;
    expect('(');
    if (!token_.is(')')) {
      do {
        list.push_back(parse_parameter(block, kind, list.size(), names, function));
      } while (accept(','));
    }
    expect(')');
    if (bytes != nullptr)
      *bytes = block;
    return list;
  }

  void parse_function(bool is_extern, bool visible, bool weak) {
    Function f;
    f.is_extern = is_extern;
    f.visible = visible;
    f.weak = weak;
    f.entry = take().text == "entry";
    std::vector<std::pair<Token, Entity>> names;
    bool ignored = false;
    while (accept_word("attribute"))
      parse_attribute(ignored);
    if (token_.is('(')) {
      f.returns = parse_parameters(Entity::Kind::kReturn, &names, &f, nullptr);
    }
    const Token name = expect_identifier("a function name");
    f.name = std::string(name.text);
    f.line = name.line;
    if (token_.is('(')) {
      f.params = parse_parameters(Entity::Kind::kParameter, &names, &f, &f.param_bytes);
    }
    parse_function_directives(f);

    // The function's place in the module: a prototype and its body are one.
    std::uint32_t index = 0;
    if (const auto it = names_.find(name.text); it != names_.end()) {
      if (it->second.kind != Entity::Kind::kFunction) {
        fail(name, "second declaration of " + shown(name), "give one of the two another name");
      }
      index = it->second.index;
      Function& old = module_.functions[index];
      if (old.has_body && token_.is('{')) {
        fail(name, "second body of function " + shown(name), "remove one of the two");
      }
      f.noreturn |= old.noreturn;
    } else {
      index = static_cast<std::uint32_t>(module_.functions.size());
      module_.functions.emplace_back();
      module_.functions.back().name = f.name;
      declare(name, Entity::Kind::kFunction, index);
    }
    if (!token_.is('{')) {
      expect(';');
      if (!module_.functions[index].has_body) {
        f.registers.clear();
        module_.functions[index] = std::move(f);
      }
      return;
    }
    f.has_body = true;
    f.is_extern = false;
    function_ = &f;
    function_index_ = index;
    range_registers_.clear();
    label_parents_.assign(1, kNoIndex);
    label_scope_ = 0;
    labels_.clear();
    label_uses_.clear();
    const Token open = take();
    open_scope(open);
    for (const auto& [token, entity] : names) {
      declare(token, entity.kind, entity.index);
    }
    parse_body(open);
    resolve_labels();
    total_instructions_ += f.code.size();
    total_operands_ += f.operands.size();
    function_ = nullptr;
    module_.functions[index] = std::move(f);
  }

  void parse_function_directives(Function& f) {
    while (token_.kind == TokenKind::kDotWord) {
      const std::string_view w = token_.text;
      if (w == "noreturn")
        f.noreturn = true;
      std::uint32_t* into = w == "maxntid"   ? f.max_threads
                            : w == "reqntid" ? f.required_threads
                                             : nullptr;
      if (w == "loc" || w == "file") {
        skip_line_directive();
        continue;
      }
      const bool pragma = w == "pragma";
      advance();
      for (std::uint32_t i = 0;
           token_.kind == TokenKind::kNumber || token_.kind == TokenKind::kString; ++i) {
        if (token_.kind == TokenKind::kNumber) {
          const auto n = static_cast<std::uint32_t>(expect_integer("a number"));
          if (into != nullptr && i < 3)
            into[i] = n;
        } else {
          advance();
        }
        if (!accept(','))
          break;
        if (into != nullptr && i == 0)
          into[1] = into[2] = 1;
      }
      if (into != nullptr) {
        for (int i = 1; i < 3; ++i)
          into[i] = std::max<std::uint32_t>(into[i], 1);
      }
      if (pragma)
        accept(';');
    }
  }

  void parse_body(const Token& open) {
    const std::uint32_t outside = depth() - 1;
    while (depth() > outside) {
      if (token_.kind == TokenKind::kEnd) {
        fail(open, "function body without an end", "the text was cut off");
      }
      if (token_.is('{')) {
        open_scope(take());
      } else if (accept('}')) {
        close_scope();
      } else if (accept(';')) {
      } else if (token_.kind == TokenKind::kDotWord) {
        parse_body_directive();
      } else if (token_.is('#')) {
        skip_line_directive();
      } else {
        parse_statement();
      }
    }
  }

  void parse_body_directive() {
    const std::string_view w = token_.text;
    if (w == "loc" || w == "file")
      return skip_line_directive();
    if (w == "pragma")
      return skip_pragma();
    if (w == "section")
      return skip_section();
    if (w == "reg")
      return parse_registers();
    if (const auto space = space_of(w); space && *space != Space::kTex) {
      advance();
      Variable prefix;
      prefix.space = *space;
      parse_variables(prefix, function_->locals, Entity::Kind::kLocal);
      return;
    }
    if (w == "extern" || w == "visible" || w == "weak" || w == "common") {
      advance();
      return;
    }
    fail(token_, "unknown directive " + shown(token_) + " in a function",
         "a newer PTX than this reader knows; report it with the text");
  }

  void parse_registers() {
    advance();
    std::uint8_t vector = 1;
    std::optional<Type> type;
    for (;;) {
      if (const std::uint8_t v = accept_vector(); v != 1) {
        vector = v;
      } else if (accept_word("align")) {
        parse_align();
      } else if (!type && (type = accept_type())) {
      } else {
        break;
      }
    }
    if (!type)
      fail_expected("a type such as .b32");
    do {
      const Token name = expect_identifier("a register name");
      if (accept('<')) {
        const std::uint64_t count = expect_integer("the number of registers");
        expect('>');
        RegisterRange r;
        r.count = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, kNoIndex));
        r.type = *type;
        r.vector = vector;
        declare_range(name.text, r);
      } else {
        declare(name, Entity::Kind::kRegister, new_register(*type, vector, name.text));
      }
    } while (accept(','));
    expect(';');
  }

  // --- Labels ---

  struct LabelKey {
    std::string_view name;
    std::uint32_t scope;
    bool operator==(const LabelKey&) const = default;
  };
  struct LabelHash {
    std::size_t operator()(const LabelKey& k) const {
      return std::hash<std::string_view>()(k.name) * 31 + k.scope;
    }
  };
  struct LabelUse {
    Token at;
    std::uint32_t scope = 0;
    std::uint32_t operand = kNoIndex;  // in Function::operands
    std::uint32_t table = 0, target = 0;
  };

  void define_label(const Token& name) {
    const auto here = static_cast<std::uint32_t>(function_->code.size());
    if (!labels_.emplace(LabelKey{name.text, label_scope_}, here).second) {
      fail(name, "second label " + shown(name) + " in one block", "give it another name");
    }
    function_->labels.push_back({std::string(name.text), here});
  }
  void resolve_labels() {
    for (const LabelUse& use : label_uses_) {
      std::optional<std::uint32_t> target;
      for (std::uint32_t s = use.scope; s != kNoIndex && !target; s = label_parents_[s]) {
        if (const auto it = labels_.find({use.at.text, s}); it != labels_.end()) {
          target = it->second;
        }
      }
      if (!target) {
        fail(use.at, "unknown label " + shown(use.at), "define the label in this function");
      }
      if (use.operand != kNoIndex) {
        function_->operands[use.operand].index = *target;
      } else {
        function_->tables[use.table].targets[use.target] = *target;
      }
    }
  }

  // --- Statements ---

  void parse_statement() {
    Instruction instruction;
    if (accept('@')) {
      if (token_.is('@'))
        return skip_line_directive();
      instruction.guard_negated = accept('!');
      const Token name = expect_identifier("a predicate register");
      const auto e = resolve(name.text);
      if (!e || e->kind != Entity::Kind::kRegister) {
        fail(name, "unknown register " + shown(name), "declare it with .reg before its use");
      }
      instruction.guard = e->index;
      if (token_.kind != TokenKind::kIdentifier)
        fail_expected("an instruction");
      parse_instruction(take(), instruction);
      return;
    }
    const Token word = expect_identifier("an instruction, a label or a directive");
    if (!accept(':')) {
      parse_instruction(word, instruction);
      return;
    }
    if (token_.is_word("branchtargets")) {
      parse_table(word, false);
    } else if (token_.is_word("calltargets")) {
      parse_table(word, true);
    } else if (token_.is_word("callprototype")) {
      parse_prototype(word);
    } else {
      define_label(word);
    }
  }

  void parse_table(const Token& name, bool is_call) {
    advance();
    BranchTable t;
    t.name = std::string(name.text);
    t.is_call = is_call;
    const auto index = static_cast<std::uint32_t>(function_->tables.size());
    do {
      const Token target = expect_identifier(is_call ? "a function" : "a label");
      if (is_call) {
        t.targets.push_back(function_index(target));
      } else {
        LabelUse use;
        use.at = target;
        use.scope = label_scope_;
        use.table = index;
        use.target = static_cast<std::uint32_t>(t.targets.size());
        label_uses_.push_back(use);
        t.targets.push_back(0);
      }
    } while (accept(','));
    expect(';');
    declare(name, Entity::Kind::kBranchTable, index);
    function_->tables.push_back(std::move(t));
  }

  void parse_prototype(const Token& name) {
    advance();
    Prototype p;
    p.name = std::string(name.text);
    if (token_.is('(')) {
      p.returns = parse_parameters(Entity::Kind::kReturn, nullptr, nullptr, nullptr);
    }
    expect_identifier("_");
    if (token_.is('(')) {
      p.params = parse_parameters(Entity::Kind::kParameter, nullptr, nullptr, nullptr);
    }
    while (token_.kind == TokenKind::kDotWord) {
      p.noreturn |= token_.text == "noreturn";
      advance();
      while (token_.kind == TokenKind::kNumber) {
        advance();
        if (!accept(','))
          break;
      }
    }
    expect(';');
    declare(name, Entity::Kind::kPrototype, function_->prototypes.size());
    function_->prototypes.push_back(std::move(p));
  }

  // The fields that follow from the words of an instruction are worked out once per distinct text.
  const Instruction& decode(const Token& word) {
    text_buffer_.assign(word.text);
    while (token_.kind == TokenKind::kDotWord) {
      text_buffer_ += '.';
      text_buffer_ += token_.text;
      advance();
    }
    if (const auto it = decoded_.find(text_buffer_); it != decoded_.end()) {
      return it->second;
    }
    Instruction i;
    i.text = static_cast<std::uint32_t>(module_.opcode_texts.size());
    module_.opcode_texts.push_back(text_buffer_);
    std::string_view rest = text_buffer_;
    auto pop = [&rest] {
      const std::size_t dot = rest.find('.');
      const std::string_view w = rest.substr(0, dot);
      rest.remove_prefix(dot == std::string_view::npos ? rest.size() : dot + 1);
      return w;
    };
    if (const auto it = opcodes().find(pop()); it != opcodes().end()) {
      i.opcode = it->second;
    }
    const bool compares = i.opcode == Opcode::kSet || i.opcode == Opcode::kSetp ||
                          i.opcode == Opcode::kVset || i.opcode == Opcode::kVset2 ||
                          i.opcode == Opcode::kVset4;
    while (!rest.empty()) {
      const std::string_view w = pop();
      if (const auto space = space_of(w)) {
        if (i.space_count == 0)
          i.space = *space;
        if (i.space_count == 1)
          i.space2 = *space;
        if (i.space_count < 255)
          ++i.space_count;
      } else if (const auto t = types().find(w); t != types().end()) {
        if (i.type == Type::kNone)
          i.type = t->second;
        else if (i.type2 == Type::kNone)
          i.type2 = t->second;
        else if (i.type3 == Type::kNone)
          i.type3 = t->second;
        else
          i.type4 = t->second;
      } else if (w == "v2" || w == "v4" || w == "v8") {
        i.vector = static_cast<std::uint8_t>(w[1] - '0');
      } else if (const auto m = modifiers().find(w); m != modifiers().end()) {
        i.modifiers.set(static_cast<std::size_t>(m->second));
        if (i.rounding == Rounding::kNone)
          i.rounding = rounding_of(m->second);
        if (compares) {
          if (i.compare == Compare::kNone)
            i.compare = compare_of(m->second);
          if (m->second == Modifier::kAnd)
            i.bool_op = BoolOp::kAnd;
          if (m->second == Modifier::kOr)
            i.bool_op = BoolOp::kOr;
          if (m->second == Modifier::kXor)
            i.bool_op = BoolOp::kXor;
        } else if (is_operation(m->second) && !i.has_operation) {
          i.has_operation = true;
          i.operation = m->second;
        }
      } else {
        i.has_unknown_modifier = true;
      }
    }
    return decoded_.emplace(text_buffer_, i).first->second;
  }

  void parse_instruction(const Token& word, Instruction guard) {
    Instruction i = decode(word);
    i.guard = guard.guard;
    i.guard_negated = guard.guard_negated;
    i.line = word.line;
    if (total_instructions_ + function_->code.size() >= kMaxInstructions ||
        total_operands_ + function_->operands.size() >= kMaxOperands) {
      fail(word, "more than 8 million instructions in the module",
           "this is larger than any compiler's output");
    }
    operand_stack_.clear();
    if (i.opcode == Opcode::kCall) {
      parse_call();
    } else if ((i.opcode == Opcode::kUnknown || i.has_unknown_modifier) &&
               i.opcode != Opcode::kBra) {
      parse_unknown_operands(i);
    } else if (!token_.is(';')) {
      do {
        operand_stack_.push_back(parse_operand(i, 0));
      } while (accept(','));
    }
    if (!token_.is(';'))
      fail_expected("',' or ';' after an operand");
    advance();
    const std::size_t first = function_->operands.size();
    i.first_operand = static_cast<std::uint32_t>(first);
    i.operand_count = static_cast<std::uint32_t>(operand_stack_.size());
    for (const Operand& o : operand_stack_) {
      if (o.kind == OperandKind::kLabel) {
        // index holds the place in label_uses_ until the label is known.
        label_uses_[o.index].operand = static_cast<std::uint32_t>(function_->operands.size());
      }
      function_->operands.push_back(o);
    }
    function_->code.push_back(i);
  }

  // A newer instruction may have operands of a form that we do not know either. It must not cost
  // the whole module: it is kept as kUnknown, without operands.
  void parse_unknown_operands(Instruction& i) {
    try {
      if (!token_.is(';')) {
        do {
          operand_stack_.push_back(parse_operand(i, 0));
        } while (accept(','));
      }
      if (token_.is(';'))
        return;
    } catch (const Failure&) {
    }
    i.opcode = Opcode::kUnknown;
    operand_stack_.clear();
    while (!token_.is(';')) {
      if (token_.kind == TokenKind::kEnd || token_.is('@') || token_.is(':')) {
        fail_expected("';' after an instruction");
      }
      advance();
    }
  }

  void parse_call() {
    auto list = [this]() {
      std::vector<Operand> members;
      if (!accept(')')) {
        do {
          members.push_back(parse_operand(Instruction{}, 1));
        } while (accept(','));
        expect(')');
      }
      return pooled(OperandKind::kList, members);
    };
    Operand returns = pooled(OperandKind::kList, {});
    Operand arguments = returns;
    if (accept('(')) {
      returns = list();
      expect(',');
    }
    const Operand target = parse_operand(Instruction{}, 1);
    std::optional<Operand> table;
    if (accept(',')) {
      bool more = true;
      if (accept('(')) {
        arguments = list();
        more = accept(',');
      }
      if (more)
        table = parse_operand(Instruction{}, 1);
    }
    operand_stack_.push_back(returns);
    operand_stack_.push_back(target);
    operand_stack_.push_back(arguments);
    if (table)
      operand_stack_.push_back(*table);
  }

  Operand pooled(OperandKind kind, const std::vector<Operand>& members) {
    Operand o;
    o.kind = kind;
    o.first = static_cast<std::uint32_t>(function_->operands.size());
    o.count = static_cast<std::uint32_t>(members.size());
    function_->operands.insert(function_->operands.end(), members.begin(), members.end());
    return o;
  }

  Operand parse_operand(const Instruction& i, std::uint32_t level) {
    const Token at = token_;
    Operand o;
    switch (token_.kind) {
      case TokenKind::kNumber:
        return parse_immediate();
      case TokenKind::kIdentifier:
        return parse_named(i, level);
      case TokenKind::kPunct:
        break;
      default:
        fail_expected("an operand");
    }
    if (accept('!')) {
      o = parse_operand_register("a predicate register");
      o.negated = true;
      return o;
    }
    if (token_.is('-')) {
      advance();
      if (token_.kind == TokenKind::kIdentifier) {
        o = parse_operand_register("a register");
        o.arithmetic_negated = true;
        return o;
      }
      o = parse_immediate();
      o.imm = o.is_float ? o.imm ^ (std::uint64_t{1} << (o.float_bits - 1)) : 0 - o.imm;
      return o;
    }
    if (token_.is('~') || token_.is('(') || token_.is('+'))
      return parse_immediate();
    if (level >= 2)
      fail_expected("a register, a number or a symbol");
    if (accept('{')) {
      std::vector<Operand> members;
      if (!accept('}')) {
        do {
          members.push_back(parse_operand(i, level + 1));
        } while (accept(','));
        expect('}');
      }
      o = pooled(OperandKind::kVector, members);
      parse_pair(o);
      return o;
    }
    if (accept('[')) {
      o = parse_address(i, level);
      return o;
    }
    fail(at, "expected an operand, found " + shown(at),
         "check the text around this place, or rebuild the PTX with its compiler");
  }

  Operand parse_immediate() {
    const Number n = parse_number();
    Operand o;
    o.kind = OperandKind::kImmediate;
    o.imm = n.bits;
    o.is_float = n.is_float;
    o.float_bits = n.float_bits;
    return o;
  }

  Operand parse_operand_register(std::string_view what) {
    const Token name = expect_identifier(what);
    const auto e = resolve(name.text);
    if (!e || e->kind != Entity::Kind::kRegister) {
      fail(name, "unknown register " + shown(name), "declare it with .reg before its use");
    }
    Operand o;
    o.kind = OperandKind::kRegister;
    o.index = e->index;
    return o;
  }

  void parse_pair(Operand& o) {
    if (!accept('|'))
      return;
    if (token_.kind == TokenKind::kIdentifier && token_.text == "_") {
      advance();
      return;
    }
    o.pair = parse_operand_register("a predicate register after '|'").index;
  }

  static bool component_of(std::string_view w, std::uint8_t& component) {
    if (w.size() == 1) {
      static constexpr std::string_view kXyzw = "xyzw", kRgba = "rgba";
      std::size_t n = kXyzw.find(w[0]);
      if (n == std::string_view::npos)
        n = kRgba.find(w[0]);
      if (n == std::string_view::npos)
        return false;
      component = static_cast<std::uint8_t>(n);
      return true;
    }
    if (w.size() >= 2 && w.size() <= 3 && (w[0] == 'b' || w[0] == 'h') && w[1] >= '0' &&
        w[1] <= '3') {
      component = static_cast<std::uint8_t>((w[0] == 'b' ? 16 : 32) + (w[1] - '0'));
      return true;
    }
    return false;
  }
  bool parse_component(Operand& o) {
    if (token_.kind != TokenKind::kDotWord || !component_of(token_.text, o.component))
      return false;
    advance();
    return true;
  }

  Operand parse_named(const Instruction& i, std::uint32_t level) {
    const Token name = take();
    Operand o;
    if (name.text == "_") {
      o.kind = OperandKind::kSink;
      parse_pair(o);
      return o;
    }
    const bool branch = i.opcode == Opcode::kBra && level == 0;
    const auto e = branch ? std::nullopt : resolve(name.text);
    if (e && e->kind == Entity::Kind::kRegister) {
      o.kind = OperandKind::kRegister;
      o.index = e->index;
      o.has_component = parse_component(o);
      parse_pair(o);
      return o;
    }
    if (e) {
      o.kind = OperandKind::kSymbol;
      o.symbol_kind = symbol_kind_of(e->kind);
      o.index = e->index;
      parse_addend(o.offset);
      return o;
    }
    if (const auto s = branch ? std::nullopt : special_of(name.text)) {
      o.kind = OperandKind::kSpecial;
      o.special = s->reg;
      o.offset = s->number;
      o.has_component = parse_component(o);
      return o;
    }
    if (branch) {
      o.kind = OperandKind::kLabel;
      o.index = static_cast<std::uint32_t>(label_uses_.size());
      LabelUse use;
      use.at = name;
      use.scope = label_scope_;
      label_uses_.push_back(use);
      return o;
    }
    fail(name, "unknown name " + shown(name), "declare the register or symbol before its use");
  }

  static SymbolKind symbol_kind_of(Entity::Kind kind) {
    switch (kind) {
      case Entity::Kind::kVariable:
        return SymbolKind::kVariable;
      case Entity::Kind::kFunction:
        return SymbolKind::kFunction;
      case Entity::Kind::kParameter:
        return SymbolKind::kParameter;
      case Entity::Kind::kReturn:
        return SymbolKind::kReturn;
      case Entity::Kind::kBranchTable:
        return SymbolKind::kBranchTable;
      case Entity::Kind::kPrototype:
        return SymbolKind::kPrototype;
      case Entity::Kind::kRegister:
      case Entity::Kind::kLocal:
        break;
    }
    return SymbolKind::kLocal;
  }

  // After '['.
  Operand parse_address(const Instruction& i, std::uint32_t level) {
    Operand o;
    o.kind = OperandKind::kAddress;
    if (token_.kind == TokenKind::kIdentifier) {
      const Token name = take();
      const auto e = resolve(name.text);
      if (!e) {
        fail(name, "unknown name " + shown(name) + " in an address",
             "declare the register or symbol before its use");
      }
      o.index = e->index;
      if (e->kind == Entity::Kind::kRegister) {
        o.base = AddressBase::kRegister;
        o.has_component = parse_component(o);
      } else {
        o.base = AddressBase::kSymbol;
        o.symbol_kind = symbol_kind_of(e->kind);
      }
    } else {
      o.offset = static_cast<std::int64_t>(parse_constant());
    }
    // "+-4" is how some compilers write a negative displacement.
    while (token_.is('+') || token_.is('-')) {
      const bool minus = take().is('-');
      std::uint64_t value = parse_constant();
      if (minus)
        value = 0 - value;
      o.offset = static_cast<std::int64_t>(static_cast<std::uint64_t>(o.offset) + value);
    }
    if (accept(',')) {
      std::vector<Operand> parts;
      do {
        parts.push_back(parse_operand(i, level + 1));
      } while (accept(','));
      const Operand p = pooled(OperandKind::kList, parts);
      o.first = p.first;
      o.count = p.count;
    }
    expect(']');
    return o;
  }

  Lexer lexer_;
  std::size_t text_size_;
  Token token_;
  Module module_;
  Function* function_ = nullptr;
  std::uint32_t function_index_ = 0;
  std::uint64_t init_bytes_left_ = kMaxInitBytes + text_size_ * 8;
  std::size_t total_operands_ = 0, total_instructions_ = 0;

  std::unordered_map<std::string_view, Entity> names_;
  std::unordered_map<std::string_view, RegisterRange> ranges_;
  std::vector<UndoName> undo_names_;
  std::vector<UndoRange> undo_ranges_;
  std::vector<Scope> scopes_;
  std::uint32_t next_range_id_ = 0;
  std::unordered_map<std::uint64_t, std::uint32_t> range_registers_;

  std::uint32_t label_scope_ = 0;
  std::vector<std::uint32_t> label_parents_;
  std::unordered_map<LabelKey, std::uint32_t, LabelHash> labels_;
  std::vector<LabelUse> label_uses_;

  std::vector<PendingRelocation> new_relocations_, relocations_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> aliases_;
  std::unordered_map<std::string, Instruction> decoded_;
  std::string text_buffer_;
  std::vector<Operand> operand_stack_;
};

template <typename Result, typename Work>
tl::expected<Result, ParseError> guarded(Work&& work) {
  try {
    return work();
  } catch (Failure& f) {
    return tl::make_unexpected(std::move(f.error));
  } catch (const std::bad_alloc&) {
    return tl::make_unexpected(ParseError{0, 0, "out of memory", "free memory and try again"});
  } catch (const std::length_error&) {
    return tl::make_unexpected(ParseError{0, 0, "the text is too large", "split the module"});
  }
}

}  // namespace

std::string ParseError::message(std::string_view file) const {
  return std::string(file) + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " +
         what + "; " + remedy;
}

tl::expected<Module, ParseError> parse(std::string_view text) {
  if (text.size() > std::numeric_limits<std::uint32_t>::max() / 4) {
    return tl::make_unexpected(ParseError{1, 1, "PTX text above 1 GiB", "split the module"});
  }
  return guarded<Module>([&] { return Parser(text).run(); });
}

tl::expected<Header, ParseError> parse_header(std::string_view text) {
  return guarded<Header>([&] { return Parser(text).run_header(); });
}

}  // namespace gpurecover::image::ptx
