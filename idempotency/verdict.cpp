// SPDX-License-Identifier: Apache-2.0
#include "idempotency/verdict.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "idempotency/address_program.h"

namespace gpurecover::idempotency {

namespace {

// What one access may touch; `site` if that is by its expression, and then a stride may be found.
struct Touched {
  ByteSet set;
  std::uint32_t site = kNoSlot;
  bool refined = false;
};

}  // namespace

class Workshop {
 public:
  AddressEvaluator evaluator;
  std::vector<std::uint64_t> addresses;
  std::vector<Touched> reads, writes;
};

WorkshopHolder::~WorkshopHolder() {
  delete workshop_;
}

Workshop& WorkshopHolder::get() {
  if (workshop_ == nullptr)
    workshop_ = new Workshop;
  return *workshop_;
}

namespace {

std::string hex(std::uint64_t value) {
  char buffer[24];
  std::snprintf(buffer, sizeof buffer, "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

// Sorted, and those that overlap made one; also those that touch and are equally exact.
void merge(std::vector<Range>& ranges) {
  if (ranges.size() < 2) {
    return;
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::size_t last = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[last].end ||
        (ranges[i].begin == ranges[last].end && ranges[i].exact == ranges[last].exact)) {
      ranges[last].exact = ranges[last].exact && ranges[i].exact;
      ranges[last].end = std::max(ranges[last].end, ranges[i].end);
    } else {
      ranges[++last] = ranges[i];
    }
  }
  ranges.resize(last + 1);
}

// Whether two merged lists overlap.
bool intersect(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (std::max(a[i].begin, b[j].begin) < std::min(a[i].end, b[j].end)) {
      return true;
    }
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return false;
}

// Module variables whose address nobody can tell are put where no memory is, so that what is read
// of them can still be seen to stay inside them.
constexpr std::uint64_t kNowhere = 0x6b00'0000'0000'0000, kNowhereStep = std::uint64_t{1} << 40;

class Decider {
 public:
  Decider(const KernelSummary& summary, std::span<const std::byte> args,
          const LaunchDimensions& dimensions, const MemoryMap& map, const SymbolRanges& symbols,
          Verdict& out)
      : summary_(summary),
        args_(args),
        symbols_(addresses(summary, symbols)),
        memory_(map),
        out_(out),
        shop_(out.workshop.get()) {
    shop_.reads.clear();
    shop_.writes.clear();
    if (summary.addresses == nullptr || !dimensions.known()) {
      return;
    }
    program_ = summary.addresses.get();
    shop_.addresses.clear();
    for (std::size_t k = 0; k < symbols_.size(); ++k) {
      const std::uint64_t bytes = k < summary.symbol_bytes.size() ? summary.symbol_bytes[k] : 0;
      shop_.addresses.push_back(symbols_[k]                              ? symbols_[k]->begin
                                : bytes != 0 && bytes < kNowhereStep / 2 ? nowhere(k)
                                                                         : 0);
    }
    shop_.evaluator.run(*program_, args, dimensions, shop_.addresses);
  }

  void run() {
    all_exact_ = true;
    for (const Access& a : summary_.accesses) {
      visit(a);
    }
    merge(out_.reads);
    merge(out_.writes);
    merge(out_.clobbered);
    merge(out_.covered);
    add_must_writes();
    out_.all_in_bounds = all_exact_ && !unknown_;
    out_.ranges_complete = !unknown_;
    if (out_.all_in_bounds && summary_.origin == Origin::kAnalysis) {
      out_.trust = Trust::kProved;
    }
    if (out_.proved_clobber) {
      // It stands whatever else is not known.
      add_overlaps();
      out_.kind = VerdictKind::kClobbers;
      out_.reason = "reads and rewrites memory in one atomic step (at " +
                    hex(out_.clobbered.front().begin) + ")";
      return;
    }
    if (unknown_) {
      out_.kind = VerdictKind::kUnknown;
      return;
    }
    const bool rewrites = !out_.clobbered.empty();
    add_overlaps();
    if (!out_.clobbered.empty()) {
      out_.kind = VerdictKind::kClobbers;
      out_.reason = (rewrites ? "reads and rewrites memory in one atomic step (at "
                              : "may write memory that it also reads (at ") +
                    hex(out_.clobbered.front().begin) + ")";
      return;
    }
    out_.kind = VerdictKind::kIdempotent;
    out_.reason.clear();
  }

 private:
  static std::vector<std::optional<Range>> addresses(const KernelSummary& summary,
                                                     const SymbolRanges& symbols) {
    std::vector<std::optional<Range>> found;
    found.reserve(summary.symbols.size());
    for (const std::string& name : summary.symbols) {
      found.push_back(symbols.find(name));
    }
    return found;
  }

  void unknown(std::string reason) {
    if (!unknown_) {
      unknown_ = true;
      out_.reason = std::move(reason);
    }
  }

  bool word(std::uint32_t offset, std::uint64_t& value) const {
    if (offset > args_.size() || args_.size() - offset < 8) {
      return false;
    }
    std::memcpy(&value, args_.data() + offset, 8);
    return true;
  }

  static std::uint64_t nowhere(std::size_t symbol) {
    return kNowhere + kNowhereStep * static_cast<std::uint64_t>(symbol);
  }

  // The bytes that may be both written and read.
  void add_overlaps() {
    if (!intersect(out_.writes, out_.reads)) {
      return;
    }
    const bool few = shop_.reads.size() * shop_.writes.size() <= 65'536;
    for (Touched& w : shop_.writes) {
      for (Touched& r : shop_.reads) {
        const std::uint64_t begin = std::max(w.set.begin, r.set.begin);
        const std::uint64_t end = std::min(w.set.end, r.set.end);
        if (begin >= end) {
          continue;
        }
        if (few) {
          refine(w);
          refine(r);
          if (!may_overlap(w.set, r.set)) {
            continue;
          }
        }
        out_.clobbered.push_back({begin, end, w.site != kNoSlot && r.site != kNoSlot});
        if (out_.clobbered.size() > 1024) {
          merge(out_.clobbered);
        }
      }
    }
    merge(out_.clobbered);
  }

  // Whether two writes happen in the same passes of the same threads.
  bool happens_with(const Site& a, const Site& b) const {
    return b.must_write && a.block == b.block && a.must_count == b.must_count &&
           std::equal(program_->musts.begin() + a.first_must,
                      program_->musts.begin() + a.first_must + a.must_count,
                      program_->musts.begin() + b.first_must);
  }

  // Unrolled code writes a run of bytes in several places.
  void add_must_writes() {
    const std::size_t count = std::min<std::size_t>(shop_.writes.size(), 64);
    for (std::size_t k = 0; k < count; ++k) {
      const Touched& first = shop_.writes[k];
      if (first.site == kNoSlot || !program_->sites[first.site].must_write) {
        continue;
      }
      const Site& site = program_->sites[first.site];
      std::uint32_t bytes = site.bytes;
      for (bool grew = true; grew;) {
        grew = false;
        for (std::size_t j = 0; j < count; ++j) {
          const std::uint32_t other = shop_.writes[j].site;
          if (j == k || other == kNoSlot || !happens_with(site, program_->sites[other])) {
            continue;
          }
          const auto distance = shop_.evaluator.distance(*program_, first.site, other);
          if (distance && *distance > 0 && *distance <= bytes &&
              *distance + program_->sites[other].bytes > bytes && bytes < 4096) {
            bytes = static_cast<std::uint32_t>(*distance) + program_->sites[other].bytes;
            grew = true;
          }
        }
      }
      ByteSet set;
      if (shop_.evaluator.written(*program_, first.site, bytes, set)) {
        out_.must_writes.push_back({set.begin, set.end, true});
      }
    }
    merge(out_.must_writes);
  }

  void refine(Touched& t) {
    if (!t.refined && t.site != kNoSlot) {
      shop_.evaluator.refine(*program_, t.site, t.set);
    }
    t.refined = true;
  }

  // Where the code makes the access, one place after the other; what cannot be expressed, or not be
  // shown to stay inside an allocation, by the pointers that the address may start from.
  void visit(const Access& a) {
    clip_.reset();
    bool by_pointer = program_ == nullptr || a.sites.empty(), clipped = true;
    const bool certain = a.alternatives.size() == 1 && a.alternatives[0].roots.size() == 1;
    if (!by_pointer) {
      for (const std::uint32_t site : a.sites) {
        ByteSet set;
        switch (shop_.evaluator.find(*program_, site, set)) {
          case AddressEvaluator::Found::kNothing:
            continue;
          case AddressEvaluator::Found::kUnknown:
            by_pointer = true;
            clipped = false;
            continue;
          case AddressEvaluator::Found::kRange:
            break;
        }
        if (add_exact(a, site, set, certain)) {
          continue;
        }
        by_pointer = true;
        if (!clip_) {
          clip_ = Range{set.begin, set.end};
        } else {
          clip_->begin = std::min(clip_->begin, set.begin);
          clip_->end = std::max(clip_->end, set.end);
        }
      }
      if (!clipped) {
        clip_.reset();
      }
    }
    if (!by_pointer) {
      return;
    }
    all_exact_ = false;
    for (const Alternative& alternative : a.alternatives) {
      visit(a, alternative);
    }
  }

  // False if the set is not inside one live allocation or module variable.
  bool add_exact(const Access& a, std::uint32_t site, const ByteSet& set, bool certain) {
    const Range range{set.begin, set.end, true};
    if (set.begin >= kNowhere && set.begin - kNowhere < kNowhereStep * symbols_.size()) {
      const std::size_t k = (set.begin - kNowhere) / kNowhereStep;
      const std::uint64_t bytes = k < summary_.symbol_bytes.size() ? summary_.symbol_bytes[k] : 0;
      // See visit_symbol: what nobody else knows is harmless to read.
      return a.kind == AccessKind::kRead && !symbols_[k] && set.end - nowhere(k) <= bytes;
    }
    bool host_visible = false, inside = false;
    const FindResult found = memory_.find(set.begin);
    for (const Allocation& allocation : found.all()) {
      if (set.begin >= allocation.address && set.end <= allocation.end()) {
        inside = true;
        host_visible |= allocation.host_visible;
      }
    }
    for (std::size_t k = 0; k < symbols_.size() && !inside; ++k) {
      inside = symbols_[k] && set.begin >= symbols_[k]->begin && set.end <= symbols_[k]->end;
    }
    if (!inside) {
      return false;
    }
    if (a.kind == AccessKind::kRead) {
      for (const std::uint32_t earlier : program_->sites[site].earlier_writes) {
        if (shop_.evaluator.covers(*program_, earlier, site)) {
          out_.covered.push_back(range);
          return true;
        }
      }
    }
    add(a, range, host_visible, certain, site, set);
    return true;
  }

  void add(const Access& a, Range range, bool host_visible, bool certain) {
    if (range.begin >= range.end) {
      return;
    }
    if (clip_ && a.range_end == 0) {
      // Nothing outside is touched. (If nothing would be left, the pointer is not what it seems.)
      const Range cut{std::max(range.begin, clip_->begin), std::min(range.end, clip_->end)};
      if (cut.begin < cut.end) {
        range = cut;
      }
    }
    ByteSet set;
    set.begin = range.begin;
    set.end = range.end;
    add(a, range, host_visible, certain, kNoSlot, set);
  }

  void add(const Access& a, Range range, bool host_visible, bool certain, std::uint32_t site,
           const ByteSet& set) {
    if (a.kind != AccessKind::kWrite) {
      shop_.reads.push_back({set, site, false});
    }
    if (a.kind != AccessKind::kRead) {
      shop_.writes.push_back({set, site, false});
    }
    switch (a.kind) {
      case AccessKind::kRead:
        out_.reads.push_back(range);
        return;
      case AccessKind::kReadModifyWrite:
        out_.reads.push_back(range);
        out_.clobbered.push_back(range);
        out_.proved_clobber |= certain;
        break;
      case AccessKind::kWrite:
        break;
    }
    out_.writes.push_back(range);
    out_.writes_host_visible |= host_visible;
    out_.writes_anything = true;
  }

  // The allocations around `value`; false if there are none.
  bool add_live(const Access& a, std::uint64_t value, bool certain) {
    const FindResult found = memory_.find(value);
    for (const Allocation& allocation : found.all()) {
      Range r{allocation.address, allocation.end()};
      if (a.range_end != 0) {
        r.begin = std::max(r.begin, value + std::min(a.range_begin, ~value));
        r.end = std::min(r.end, value + std::min(a.range_end, ~value));
      }
      add(a, r, allocation.host_visible, certain);
    }
    return found.count != 0;
  }

  bool is_live(std::uint64_t value) const { return memory_.find(value).count != 0; }

  bool any_subtracted_is_live(const Alternative& alternative) const {
    for (const Root& r : alternative.subtracted) {
      std::uint64_t value = 0;
      switch (r.kind) {
        case RootKind::kParameter:
          if (!word(r.param_offset, value) || is_live(value))
            return true;
          break;
        case RootKind::kAnyParameter:
          for (std::uint32_t at = 0; at + 8 <= r.param_size; at += 4) {
            if (!word(r.param_offset + at, value) || is_live(value))
              return true;
          }
          break;
        default:
          return true;
      }
    }
    return false;
  }

  void visit(const Access& a, const Alternative& alternative) {
    if (!alternative.subtracted.empty() && alternative.has_other_terms &&
        any_subtracted_is_live(alternative)) {
      return unknown("address computed from the difference of pointers and other values");
    }
    const bool certain = a.alternatives.size() == 1 && alternative.roots.size() == 1;
    bool live = false, all_null = true, loaded = false;
    std::uint32_t stray_offset = 0;
    std::uint64_t stray_value = 0;
    for (const Root& r : alternative.roots) {
      switch (r.kind) {
        case RootKind::kParameter: {
          std::uint64_t value = 0;
          if (!word(r.param_offset, value)) {
            return unknown("the launch has fewer argument bytes than the kernel reads");
          }
          if (value == 0)
            break;
          if (add_live(a, value, certain)) {
            live = true;
          } else {
            all_null = false;
            stray_offset = r.param_offset;
            stray_value = value;
          }
          break;
        }
        case RootKind::kAnyParameter: {
          bool any = false, nonzero = false;
          for (std::uint32_t at = 0; at + 8 <= r.param_size; at += 4) {
            std::uint64_t value = 0;
            if (!word(r.param_offset + at, value)) {
              return unknown("the launch has fewer argument bytes than the kernel reads");
            }
            if (value == 0)
              continue;
            nonzero = true;
            any |= add_live(a, value, false);
          }
          live |= any;
          if (!any && nonzero) {
            all_null = false;
            stray_offset = r.param_offset;
          }
          break;
        }
        case RootKind::kGlobalSymbol:
        case RootKind::kConstSymbol: {
          live = true;
          visit_symbol(a, r, certain);
          break;
        }
        case RootKind::kLoaded:
          all_null = false;
          loaded = true;
          break;
        case RootKind::kConstant:
          if (r.address == 0)
            break;
          if (add_live(a, r.address, certain)) {
            live = true;
          } else {
            return unknown("address " + hex(r.address) +
                           " in the kernel's code is in no known allocation");
          }
          break;
        case RootKind::kDriver:
          return unknown("address supplied by the driver");
        case RootKind::kUnknown:
          return unknown("address that the analysis cannot follow" + at_line(a));
      }
    }
    if (live) {
      return;
    }
    if (loaded) {
      return unknown("address loaded from memory" + at_line(a));
    }
    if (!all_null) {
      return unknown("pointer argument at byte " + std::to_string(stray_offset) +
                     (stray_value != 0 ? " (" + hex(stray_value) + ")" : "") +
                     " is in no known allocation");
    }
    if (alternative.may_hide_pointer) {
      return unknown("address that the analysis cannot follow" + at_line(a));
    }
    // Every possible base is a null pointer: the kernel does not get here, or faults.
  }

  void visit_symbol(const Access& a, const Root& r, bool certain) {
    if (r.symbol >= summary_.symbols.size()) {
      return unknown("a module variable without a name");
    }
    const std::string& name = summary_.symbols[r.symbol];
    if (const auto& range = symbols_[r.symbol]) {
      return add(a, *range, false, certain);
    }
    // A variable that only its module knows cannot be reached through a pointer of the program's:
    // reading it is harmless as long as the kernel does not write it.
    if (a.kind != AccessKind::kRead) {
      unknown("module variable " + name + ", which is written, has no known address");
    }
  }

  std::string at_line(const Access& a) const {
    if (a.line == 0)
      return {};
    if (summary_.machine_code)
      return " (machine code offset " + hex((a.line - 1) * 16) + ")";
    return " (PTX line " + std::to_string(a.line) + ")";
  }

  const KernelSummary& summary_;
  std::span<const std::byte> args_;
  // Asked for before the map is locked: the answer may need a driver call.
  const std::vector<std::optional<Range>> symbols_;
  const MemoryReader memory_;
  Verdict& out_;
  Workshop& shop_;
  const AddressProgram* program_ = nullptr;  // null: nothing is exact
  // What the access at hand stays in, whatever its pointers say.
  std::optional<Range> clip_;
  bool unknown_ = false, all_exact_ = false;
};

}  // namespace

std::string_view name_of(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kIdempotent:
      return "idempotent";
    case VerdictKind::kClobbers:
      return "clobbers";
    case VerdictKind::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view name_of(Trust trust) {
  switch (trust) {
    case Trust::kProved:
      return "proved";
    case Trust::kBounded:
      return "bounded";
    case Trust::kDeclared:
      return "declared";
    case Trust::kObserved:
      break;
  }
  return "observed";
}

void Verdict::clear() {
  kind = VerdictKind::kUnknown;
  trust = Trust::kBounded;
  reason.clear();
  reads.clear();
  writes.clear();
  clobbered.clear();
  covered.clear();
  must_writes.clear();
  all_in_bounds = false;
  ranges_complete = false;
  proved_clobber = writes_host_visible = writes_anything = false;
}

void decide(const KernelSummary& summary, std::span<const std::byte> args,
            const LaunchDimensions& dimensions, const MemoryMap& map, const SymbolRanges& symbols,
            Verdict& out) {
  out.clear();
  try {
    out.trust = summary.origin == Origin::kDeclaration ? Trust::kDeclared : Trust::kBounded;
    if (!summary.complete) {
      out.reason = "the kernel was not analysed";
      return;
    }
    if (!summary.defeats.empty()) {
      out.reason = summary.defeats.front();
      return;
    }
    if (summary.exact_param_bytes && args.size() != summary.param_bytes) {
      out.reason = "the launch's arguments are laid out in another way than in the analysed code";
      return;
    }
    if (summary.declared_idempotent) {
      out.kind = VerdictKind::kIdempotent;
      return;
    }
    Decider(summary, args, dimensions, map, symbols, out).run();
  } catch (const std::exception&) {
    out.clear();  // out of memory; the reason stays empty because it may not fit either
  }
}

Verdict decide(const KernelSummary& summary, std::span<const std::byte> args,
               const LaunchDimensions& dimensions, const MemoryMap& map,
               const SymbolRanges& symbols) {
  Verdict v;
  decide(summary, args, dimensions, map, symbols, v);
  return v;
}

void decide_with_declaration(const KernelSummary* analysed, const KernelSummary& declared,
                             std::span<const std::byte> args, const LaunchDimensions& dimensions,
                             const MemoryMap& map, const SymbolRanges& symbols, Verdict& out) {
  bool in_bounds = false;
  if (analysed != nullptr) {
    decide(*analysed, args, dimensions, map, symbols, out);
    in_bounds = out.all_in_bounds;
    if (out.kind == VerdictKind::kClobbers && out.proved_clobber) {
      return;
    }
  }
  if (declared.declared_idempotent && analysed != nullptr) {
    // What is known of the ranges is still of use to whoever saves or checks them.
    out.kind = VerdictKind::kIdempotent;
    out.trust = Trust::kDeclared;
    out.reason.clear();
    out.clobbered.clear();
    return;
  }
  decide(declared, args, dimensions, map, symbols, out);
  out.all_in_bounds = in_bounds;  // a declaration proves nothing
}

// --- Declared facts ---

namespace {

struct DeclaredRange {
  std::uint32_t argument = 0;
  bool field = false;
  std::uint32_t field_offset = 0;
  std::uint64_t begin = 0, end = 0;
};

std::optional<std::string> parse_declared(std::string_view text, DeclaredRange& r) {
  static constexpr const char* kForms =
      "write \"arg0\", \"arg1[0:4096]\" or \"arg2.field@16\" (numbers in bytes, counted from 0)";
  const std::string quoted = "\"" + std::string(text.substr(0, 80)) + "\"";
  std::string_view rest = text;
  auto number = [&rest](auto& value) {
    const auto [end, ec] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (ec != std::errc()) {
      return false;
    }
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return true;
  };
  auto bad = [&](const std::string& what) { return quoted + ": " + what + "; " + kForms; };
  if (!rest.starts_with("arg")) {
    return bad("does not begin with \"arg\" and a number");
  }
  rest.remove_prefix(3);
  if (!number(r.argument)) {
    return bad("\"arg\" needs a number");
  }
  static constexpr std::string_view kField = ".field@";
  if (rest.starts_with(kField)) {
    rest.remove_prefix(kField.size());
    r.field = true;
    if (!number(r.field_offset)) {
      return bad("\".field@\" needs a byte offset");
    }
  }
  if (rest.starts_with("[")) {
    rest.remove_prefix(1);
    if (!number(r.begin) || !rest.starts_with(":")) {
      return bad("\"[\" needs BEGIN:END]");
    }
    rest.remove_prefix(1);
    if (!number(r.end) || !rest.starts_with("]")) {
      return bad("\"[\" needs BEGIN:END]");
    }
    rest.remove_prefix(1);
    if (r.begin >= r.end) {
      return bad("the range is empty");
    }
  }
  if (!rest.empty()) {
    return bad("\"" + std::string(rest.substr(0, 20)) + "\" is not understood");
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_declared_range(std::string_view text) {
  DeclaredRange r;
  return parse_declared(text, r);
}

tl::expected<KernelSummary, std::string> declare(std::string_view kernel, const Declaration& facts,
                                                 std::span<const ArgumentSlot> layout) {
  KernelSummary s;
  s.name = std::string(kernel);
  s.origin = Origin::kDeclaration;
  s.complete = true;
  for (const ArgumentSlot& slot : layout) {
    s.param_bytes = std::max(s.param_bytes, slot.offset + slot.size);
  }
  if (facts.idempotent) {
    if (!facts.reads.empty() || !facts.writes.empty()) {
      return tl::make_unexpected(
          std::string("idempotent = true together with reads or writes; keep one of the two"));
    }
    s.declared_idempotent = true;
    return s;
  }
  auto add = [&](const std::vector<std::string>& words,
                 AccessKind kind) -> std::optional<std::string> {
    for (const std::string& w : words) {
      DeclaredRange r;
      if (auto error = parse_declared(w, r)) {
        return error;
      }
      if (r.argument >= layout.size()) {
        return "\"" + w + "\": " + std::string(kernel) + " has " + std::to_string(layout.size()) +
               " arguments; count them from arg0";
      }
      const ArgumentSlot& slot = layout[r.argument];
      if (r.field_offset > slot.size || slot.size - r.field_offset < 8) {
        return "\"" + w + "\": argument " + std::to_string(r.argument) + " of " +
               std::string(kernel) + " is " + std::to_string(slot.size) +
               " bytes, too small for a pointer at byte " + std::to_string(r.field_offset) +
               "; name an argument that is a pointer, or a field inside a struct";
      }
      if (!r.field && slot.size != 8) {
        return "\"" + w + "\": argument " + std::to_string(r.argument) + " of " +
               std::string(kernel) + " is a struct of " + std::to_string(slot.size) +
               " bytes; say which field, as in arg" + std::to_string(r.argument) + ".field@0";
      }
      Access a;
      a.kind = kind;
      a.space = MemorySpace::kGlobal;
      a.range_begin = r.begin;
      a.range_end = r.end;
      Root root;
      root.kind = RootKind::kParameter;
      root.param_offset = slot.offset + r.field_offset;
      a.alternatives.push_back(Alternative{{root}, {}, false, false});
      s.accesses.push_back(std::move(a));
    }
    return std::nullopt;
  };
  if (auto error = add(facts.reads, AccessKind::kRead)) {
    return tl::make_unexpected(std::move(*error));
  }
  if (auto error = add(facts.writes, AccessKind::kWrite)) {
    return tl::make_unexpected(std::move(*error));
  }
  if (s.accesses.empty()) {
    return tl::make_unexpected(std::string(
        "neither idempotent = true nor reads and writes are given; say what the kernel touches"));
  }
  return s;
}

}  // namespace gpurecover::idempotency
