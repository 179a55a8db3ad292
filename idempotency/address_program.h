// SPDX-License-Identifier: Apache-2.0
//
// The addresses of a kernel's accesses as functions of thread and block indices, dimensions, loop
// counters and arguments: compiled once per kernel into a straight sequence of steps, which a
// launch's real numbers turn into byte ranges. Internal to idempotency/.
//
// Dimensions and arguments are numbers when the steps are taken, so that every value is a sum
//     c + Σ coefficient · symbol        modulo 2^width
// where a symbol is an index that differs from thread to thread or from iteration to iteration and
// has bounds that are numbers. Sums, differences and products with numbers keep that form whatever
// wraps around. What depends on the true value of a register (widening it, comparing it, dividing
// it) is followed only if all values that the sum can take lie in one period of 2^width: then it is
// known how often it has wrapped, which is the same for all threads. Else the result is a new
// symbol that may be anything.
//
// Conditions that a thread must have met to come to a place (guards, loop conditions) are
// inequalities between such sums. They form a tree of contexts along the tree of dominators.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "idempotency/access_summary.h"
#include "image/ptx_ir.h"

namespace gpurecover::idempotency {

inline constexpr std::uint32_t kNoSlot = 0xFFFFFFFFu;

enum class StepKind : std::uint8_t {
  kOpaque,   // a new symbol with the bounds `low`, `high`
  kConst,    // `low`
  kParam,    // `bytes` bytes at byte a of the arguments; `is_signed`
  kSpecial,  // special register a, component b
  kSymbol,   // address of module variable a of the summary, plus `low`
  kAdd,
  kSub,
  kMul,
  kMulWide,  // of operands half as wide
  kMulHigh,
  kShl,
  kShr,
  kDiv,
  kRem,
  kAnd,
  kOr,
  kXor,
  kMin,
  kMax,
  kAbs,
  kExtend,  // from `from` bits
  kTruncate,
  kPack,       // a is the lower half, b the upper one
  kSelect,     // a or b; contexts c and d
  kMerge,      // of the values in `parts` [a, a + b); equal d: where others come together too
  kInduction,  // a + counter of loop c times b
  kLoop,       // bounds the counter of loop a by its conditions
  kCondition,  // puts a condition into `context`
  kEither,     // what holds in context c, or what holds in d, holds in `context`
};

enum class Relation : std::uint8_t {
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual
};

// How floating-point numbers are compared, in Step::from of a condition.
enum FloatCompare : std::uint8_t {
  kNotFloat = 0,
  kOrdered = 1,    // false where one is no number
  kUnordered = 2,  // true there
};

struct Step {
  StepKind kind = StepKind::kOpaque;
  Relation relation = Relation::kLess;  // kCondition
  std::uint8_t width = 32;              // bits of the result; kCondition: of what is compared
  std::uint8_t from = 0;                // kExtend; kCondition: see FloatCompare
  std::uint8_t bytes = 0;               // kParam
  bool is_signed = false;
  std::uint32_t a = kNoSlot, b = kNoSlot, c = kNoSlot, d = kNoSlot;
  std::uint32_t context = 0;
  std::uint32_t symbol = kNoSlot;  // that this step may have to introduce
  std::int64_t low = 0, high = 0;
};

// A condition under which a loop goes on, between a value that moves with the loop's counter and
// one that does not.
struct LoopCondition {
  std::uint32_t moving = kNoSlot, fixed = kNoSlot;  // slots
  Relation relation = Relation::kLess;              // moving RELATION fixed
  std::uint8_t width = 32;                          // of `moving`
  bool is_signed = false;                           // `moving` is compared as
  bool fixed_signed = false;                        // and `fixed`
};

struct LoopInfo {
  std::uint32_t symbol = kNoSlot;  // its counter: how often it has gone back
  std::uint32_t context = 0;       // of its header, where its bounds are put
  std::uint32_t entry = 0;         // the context in which it is entered
  std::uint32_t parent = kNoSlot;
  std::uint32_t first = 0, count = 0;  // in AddressProgram::conditions
  // In AddressProgram::parts: the contexts of all ways into it. None: not known.
  std::uint32_t first_way = 0, ways = 0;
};

struct MergePart {
  std::uint32_t slot = kNoSlot, context = 0;
};

// One of the conditions that say, all together, exactly when a thread makes a write.
struct MustCondition {
  std::uint32_t a = kNoSlot, b = kNoSlot;  // a RELATION b
  Relation relation = Relation::kLess;
  std::uint8_t width = 32;
  bool is_signed = false;
  std::uint32_t context = 0;
  // The loop that goes on while it holds. `behind`: it is tested at the end of a pass, so that it
  // says of the pass after that one whether it happens.
  std::uint32_t loop = kNoSlot;
  bool behind = false;
  bool operator==(const MustCondition&) const = default;
};

// One access of the code.
struct Site {
  std::uint32_t address = kNoSlot;  // slot; 64 bits
  std::uint32_t context = 0;
  std::uint32_t bytes = 0;            // of one thread's access
  std::uint32_t byte_slot = kNoSlot;  // if the size is a register
  // Sites that write surely before this one in the same thread, whenever it is reached.
  std::vector<std::uint32_t> earlier_writes;
  // A write of which it is known exactly when it happens: AddressProgram::musts.
  bool must_write = false;
  std::uint32_t first_must = 0, must_count = 0;
  std::uint32_t block = 0, loop = kNoSlot;
};

struct SymbolInfo {
  std::uint32_t loop = kNoSlot;  // in which its value may differ from iteration to iteration
};

struct AddressProgram {
  std::vector<Step> steps;  // in the order in which they are taken; a slot is an index here
  std::vector<MergePart> parts;
  std::vector<LoopCondition> conditions;
  std::vector<MustCondition> musts;
  std::vector<LoopInfo> loops;
  std::vector<std::uint32_t> contexts;  // parent of each; 0 is the root
  std::vector<SymbolInfo> symbols;      // the first six are %tid and %ctaid
  std::vector<Site> sites;
};

// An access of the code, as the analysis found it.
struct AccessPlace {
  std::uint32_t instruction = 0;
  std::uint32_t operand = 0;  // of the address, in the function's pool
  std::uint32_t bytes = 0;    // of one thread's access; 0: operand `size` says
  std::uint32_t size = image::ptx::kNoIndex;
  bool reads = false, writes = false;
};

// Finds the addresses of `places` in `kernel`, one site for each, in order; a site whose address
// could not be followed has no slot. nullptr: of none. `symbols` are the summary's. Bounded in time
// and memory.
std::shared_ptr<const AddressProgram> build_address_program(const image::ptx::Module& module,
                                                            const image::ptx::Function& kernel,
                                                            std::span<const AccessPlace> places,
                                                            std::span<const std::string> symbols);

// The bytes that all threads together may touch at a site: those of [begin, end) whose distance
// from `origin` modulo `stride` is below `width`. stride 0: all of them.
struct ByteSet {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t origin = 0, stride = 0, width = 0;
};
// Whether some byte may be in both.
bool may_overlap(const ByteSet& a, const ByteSet& b);

// Takes the steps for one launch. Kept for the next one, it allocates nothing.
class AddressEvaluator {
 public:
  // `addresses`: of the summary's symbols; 0 where unknown.
  void run(const AddressProgram& program, std::span<const std::byte> args,
           const LaunchDimensions& dimensions, std::span<const std::uint64_t> addresses);

  enum class Found : std::uint8_t {
    kRange,    // within [begin, end)
    kNothing,  // no thread comes there
    kUnknown,  // may be anywhere
  };
  // The hull only: `stride` is 0.
  Found find(const AddressProgram& program, std::uint32_t site, ByteSet& out);
  // Finds a stride in what `find` gave, if there is one.
  void refine(const AddressProgram& program, std::uint32_t site, ByteSet& set);
  // The bytes that the launch surely writes at `sites`, which are equal but for a displacement and
  // then count as one access of `bytes` bytes from the first one on. False: not known.
  bool written(const AddressProgram& program, std::uint32_t site, std::uint32_t bytes,
               ByteSet& out);
  // How far `site`'s address lies behind `from`'s, in all threads alike; nullopt: it differs.
  std::optional<std::int64_t> distance(const AddressProgram& program, std::uint32_t from,
                                       std::uint32_t site) const;
  // Whether one thread's access at `site` lies inside its own access at `earlier`.
  bool covers(const AddressProgram& program, std::uint32_t earlier, std::uint32_t site) const;

 private:
  using Wide = __int128;
  static constexpr std::uint32_t kMaxTerms = 8;
  struct Term {  // without initializers: sums are made by the dozen, and few have many terms
    std::uint32_t symbol;
    std::int64_t factor;
  };
  struct Form {
    std::int64_t constant = 0;
    std::uint32_t count = 0;
    Term terms[kMaxTerms];  // sorted by symbol, no factor 0

    Form() {}
    Form(const Form& o) { *this = o; }
    Form& operator=(const Form& o) {
      if (this == &o)
        return *this;
      constant = o.constant;
      count = o.count;
      // Of fixed sizes: a few moves in the place of a call.
      constexpr std::uint32_t kUsual = 4;
      std::memcpy(terms, o.terms, kUsual * sizeof(Term));
      if (count > kUsual) [[unlikely]]
        std::memcpy(terms + kUsual, o.terms + kUsual, (kMaxTerms - kUsual) * sizeof(Term));
      return *this;
    }
  };
  struct Bounds {
    std::int64_t low = 0, high = 0;
  };
  struct Constraint {
    Form form;               // ≤ 0, over the integers
    std::uint64_t mask = 0;  // of its symbols
    std::uint32_t next = kNoSlot;
  };
  struct Context {
    std::uint32_t parent = 0, first = kNoSlot;
    std::uint64_t mask = 0;  // of its constraints' symbols
    bool dead = false;       // no thread comes there
  };
  // What was found for a sum without its constant, once all constraints are there.
  struct Known {
    Form form;
    std::uint32_t context = 0;
    bool bounded = false;
    Wide low = 0, high = 0;
  };

  static Form number(std::int64_t value);
  static bool combine(const Form& a, const Form& b, std::int64_t factor, unsigned width, Form& out);
  static bool combine_exactly(const Form& a, const Form& b, std::int64_t factor, Form& out);
  static bool negate(const Form& a, Form& out);
  static bool equal(const Form& a, const Form& b);
  static bool equal_terms(const Form& a, const Form& b);
  static std::uint64_t mask_of(const Form& form);
  void scale(Form& form, std::int64_t factor, unsigned width) const;
  Form symbol(std::uint32_t id, Wide low, Wide high);
  Form anything(const Step& step);
  bool box(const Form& form, Wide& low, Wide& high) const;
  bool box_high(const Form& form, Wide& high) const;
  bool combined_high(const Form& a, const Form& b, std::int64_t factor, Wide& high) const;
  Wide upper(Form form, std::uint32_t context, Wide enough) const;
  bool range(const Form& form, std::uint32_t context, Wide& low, Wide& high) const;
  bool window(const Form& form, unsigned width, bool is_signed, std::uint32_t context, Form& out,
              Wide& low, Wide& high) const;
  bool known_range(const Form& form, std::uint32_t context, Wide& low, Wide& high);
  bool is_dead(std::uint32_t context) const;
  void demand(std::uint32_t context, const Form& at_most_zero);
  void condition(const Step& step);
  void bound(const AddressProgram& program, std::uint32_t loop);
  void bounded_by(const AddressProgram& program, const LoopInfo& loop, std::uint32_t id,
                  const LoopCondition& c);
  bool moves_in(const AddressProgram& program, const Form& form, std::uint32_t loop) const;
  Form divide(const Step& step, const Form& x, std::int64_t divisor, bool is_signed, bool floor,
              bool& good);
  Form evaluate(const AddressProgram& program, const Step& step);
  Form join(const AddressProgram& program, const Step& step);
  // What comes together at a join: base + step · t, where t is what `parts` say, by the way taken.
  static constexpr std::uint32_t kMaxJoined = 6;
  struct Join {
    StepKind kind = StepKind::kMerge;
    std::uint32_t first = 0, second = 0, count = 0;  // the place, and ways
    std::uint32_t symbol = kNoSlot;                  // t
    Form parts[kMaxJoined];
  };
  bool join_by_steps(const Step& step, std::span<const Form> rests, Wide low, Wide high, Form& out);

  std::vector<Form> forms_;
  std::vector<Bounds> bounds_;
  std::vector<Constraint> constraints_;
  std::vector<Context> contexts_;
  static constexpr std::uint32_t kKnown = 4;
  Known known_[kKnown];
  std::uint32_t known_count_ = 0;
  std::vector<Join> joins_;
  std::size_t join_count_ = 0;
  std::span<const std::byte> args_;
  std::span<const std::uint64_t> addresses_;
  LaunchDimensions dimensions_;
};

}  // namespace gpurecover::idempotency
