// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>

#include "idempotency/address_program.h"

namespace gpurecover::idempotency {

namespace {

using Wide = __int128;

// No loop goes round more often within the life of a machine.
constexpr std::int64_t kUnboundedCount = std::int64_t{1} << 60;
constexpr Wide kTooWide = Wide{1} << 100;
constexpr int kMaxConstraintsTried = 48, kMaxConstraintsSeen = 512;
// Less than any bound.
constexpr Wide kNever = -(Wide{1} << 110);

std::int64_t wrap(std::uint64_t value, unsigned width) {
  if (width >= 64)
    return static_cast<std::int64_t>(value);
  const unsigned unused = 64 - width;
  return static_cast<std::int64_t>(value << unused) >> unused;
}
std::uint64_t zero_extended(std::int64_t value, unsigned width) {
  const auto bits = static_cast<std::uint64_t>(value);
  return width >= 64 ? bits : bits & ((std::uint64_t{1} << width) - 1);
}
Wide value_of(std::int64_t value, unsigned width, bool is_signed) {
  return is_signed ? Wide{wrap(static_cast<std::uint64_t>(value), width)}
                   : Wide{zero_extended(value, width)};
}
bool fits(Wide v) {
  return v >= INT64_MIN && v <= INT64_MAX;
}
Wide floor_div(Wide a, Wide b) {  // b > 0
  if (fits(a) && fits(b)) {
    // The wide division is a call, and many times slower.
    const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
    return x / y - (x % y < 0 ? 1 : 0);
  }
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
Wide least(unsigned width, bool is_signed) {
  return is_signed ? -(Wide{1} << (width - 1)) : Wide{0};
}
Wide greatest(unsigned width, bool is_signed) {
  return (Wide{1} << (is_signed ? width - 1 : width)) - 1;
}
// The least 2^n - 1 that is not below v.
Wide all_ones(Wide v) {
  Wide ones = 0;
  while (ones < v)
    ones = ones * 2 + 1;
  return ones;
}
template <class T>
bool holds_of(Relation r, T a, T b) {
  switch (r) {
    case Relation::kLess:
      return a < b;
    case Relation::kLessEqual:
      return a <= b;
    case Relation::kGreater:
      return a > b;
    case Relation::kGreaterEqual:
      return a >= b;
    case Relation::kEqual:
      return a == b;
    case Relation::kNotEqual:
      break;
  }
  return a != b;
}
bool holds(Relation r, Wide a, Wide b) {
  return holds_of(r, a, b);
}
// Of floating-point numbers; nullopt: of values so small that hardware may take them for zero.
template <class T, class Bits>
std::optional<bool> holds_of_floats(Relation r, FloatCompare how, Bits a_bits, Bits b_bits) {
  const auto a = std::bit_cast<T>(a_bits), b = std::bit_cast<T>(b_bits);
  if (std::isnan(a) || std::isnan(b))
    return how == kUnordered;
  if (std::fpclassify(a) == FP_SUBNORMAL || std::fpclassify(b) == FP_SUBNORMAL)
    return std::nullopt;
  return holds_of(r, a, b);
}

}  // namespace

// --- Sums ---

AddressEvaluator::Form AddressEvaluator::number(std::int64_t value) {
  Form f;
  f.constant = value;
  return f;
}

// a + factor * b modulo 2^width; false: too many terms. `out` may be a or b; after a failure it is
// of no use.
bool AddressEvaluator::combine(const Form& a, const Form& b, std::int64_t factor, unsigned width,
                               Form& out) {
  if (&out == &a || &out == &b) {
    Form r;
    const bool good = combine(a, b, factor, width, r);
    out = r;
    return good;
  }
  const auto m = static_cast<std::uint64_t>(factor);
  out.constant = wrap(
      static_cast<std::uint64_t>(a.constant) + m * static_cast<std::uint64_t>(b.constant), width);
  std::uint32_t i = 0, j = 0, count = 0;
  while (i < a.count || j < b.count) {
    Term t;
    if (j == b.count || (i < a.count && a.terms[i].symbol < b.terms[j].symbol)) {
      t = a.terms[i++];
    } else {
      std::uint64_t sum = m * static_cast<std::uint64_t>(b.terms[j].factor);
      t.symbol = b.terms[j].symbol;
      if (i < a.count && a.terms[i].symbol == t.symbol)
        sum += static_cast<std::uint64_t>(a.terms[i++].factor);
      ++j;
      t.factor = wrap(sum, width);
    }
    if (t.factor == 0)
      continue;
    if (count == kMaxTerms) {
      out.count = 0;
      return false;
    }
    out.terms[count++] = t;
  }
  out.count = count;
  return true;
}

// The same over the integers; false also where a number would not fit.
bool AddressEvaluator::combine_exactly(const Form& a, const Form& b, std::int64_t factor,
                                       Form& out) {
  if (&out == &a || &out == &b) {
    Form r;
    if (!combine_exactly(a, b, factor, r))
      return false;
    out = r;
    return true;
  }
  std::int64_t product = 0;
  out.count = 0;
  if (__builtin_mul_overflow(b.constant, factor, &product) ||
      __builtin_add_overflow(a.constant, product, &out.constant)) {
    return false;
  }
  std::uint32_t i = 0, j = 0, count = 0;
  while (i < a.count || j < b.count) {
    Term t;
    if (j == b.count || (i < a.count && a.terms[i].symbol < b.terms[j].symbol)) {
      t = a.terms[i++];
    } else {
      t.symbol = b.terms[j].symbol;
      if (__builtin_mul_overflow(b.terms[j++].factor, factor, &t.factor))
        return false;
      if (i < a.count && a.terms[i].symbol == t.symbol &&
          __builtin_add_overflow(t.factor, a.terms[i++].factor, &t.factor)) {
        return false;
      }
    }
    if (t.factor == 0)
      continue;
    if (count == kMaxTerms)
      return false;
    out.terms[count++] = t;
  }
  out.count = count;
  return true;
}

// -a over the integers; false where a number would not fit.
bool AddressEvaluator::negate(const Form& a, Form& out) {
  if (a.constant == INT64_MIN)
    return false;
  out.constant = -a.constant;
  out.count = a.count;
  for (std::uint32_t k = 0; k < a.count; ++k) {
    if (a.terms[k].factor == INT64_MIN)
      return false;
    out.terms[k] = {a.terms[k].symbol, -a.terms[k].factor};
  }
  return true;
}

std::uint64_t AddressEvaluator::mask_of(const Form& form) {
  std::uint64_t mask = 0;
  for (std::uint32_t k = 0; k < form.count; ++k)
    mask |= std::uint64_t{1} << (form.terms[k].symbol & 63);
  return mask;
}

bool AddressEvaluator::equal(const Form& a, const Form& b) {
  return a.constant == b.constant && equal_terms(a, b);
}

bool AddressEvaluator::equal_terms(const Form& a, const Form& b) {
  if (a.count != b.count)
    return false;
  for (std::uint32_t k = 0; k < a.count; ++k) {
    if (a.terms[k].symbol != b.terms[k].symbol || a.terms[k].factor != b.terms[k].factor)
      return false;
  }
  return true;
}

void AddressEvaluator::scale(Form& form, std::int64_t factor, unsigned width) const {
  const auto m = static_cast<std::uint64_t>(factor);
  form.constant = wrap(static_cast<std::uint64_t>(form.constant) * m, width);
  std::uint32_t kept = 0;
  for (std::uint32_t k = 0; k < form.count; ++k) {
    Term t = form.terms[k];
    t.factor = wrap(static_cast<std::uint64_t>(t.factor) * m, width);
    if (t.factor != 0)
      form.terms[kept++] = t;
  }
  form.count = kept;
}

AddressEvaluator::Form AddressEvaluator::symbol(std::uint32_t id, Wide low, Wide high) {
  if (!fits(low) || !fits(high)) {
    low = INT64_MIN;  // of 64 bits anything
    high = INT64_MAX;
  }
  if (low >= high)  // above: nobody comes here
    return number(static_cast<std::int64_t>(low));
  bounds_[id] = {static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)};
  Form f;
  f.count = 1;
  f.terms[0] = {id, 1};
  return f;
}

AddressEvaluator::Form AddressEvaluator::anything(const Step& step) {
  return step.width >= 64 ? symbol(step.symbol, INT64_MIN, INT64_MAX)
                          : symbol(step.symbol, least(step.width, step.is_signed),
                                   greatest(step.width, step.is_signed));
}

// --- Bounds ---

// By the bounds of the symbols alone; false: beyond what is worth telling apart.
bool AddressEvaluator::box(const Form& form, Wide& low, Wide& high) const {
  low = high = form.constant;
  for (std::uint32_t k = 0; k < form.count; ++k) {
    const Bounds& b = bounds_[form.terms[k].symbol];
    Wide x = Wide{form.terms[k].factor} * b.low, y = Wide{form.terms[k].factor} * b.high;
    if (x > y)
      std::swap(x, y);
    if (x < -kTooWide || y > kTooWide)
      return false;
    low += x;
    high += y;
  }
  return true;
}

bool AddressEvaluator::box_high(const Form& form, Wide& high) const {
  high = form.constant;
  for (std::uint32_t k = 0; k < form.count; ++k) {
    const Term& t = form.terms[k];
    const Bounds& b = bounds_[t.symbol];
    const Wide x = Wide{t.factor} * (t.factor > 0 ? b.high : b.low);
    if (x > kTooWide)
      return false;
    // Below, the other terms cannot bring it back into reach; cutting it is an over-estimate.
    high += std::max(x, -kTooWide);
  }
  return true;
}

// box_high of a + factor * b, without making the sum; false also where it cannot be made.
bool AddressEvaluator::combined_high(const Form& a, const Form& b, std::int64_t factor,
                                     Wide& high) const {
  std::int64_t constant = 0;
  if (__builtin_mul_overflow(b.constant, factor, &constant) ||
      __builtin_add_overflow(a.constant, constant, &constant)) {
    return false;
  }
  high = constant;
  std::uint32_t i = 0, j = 0, count = 0;
  while (i < a.count || j < b.count) {
    Term t;
    if (j == b.count || (i < a.count && a.terms[i].symbol < b.terms[j].symbol)) {
      t = a.terms[i++];
    } else {
      t.symbol = b.terms[j].symbol;
      if (__builtin_mul_overflow(b.terms[j++].factor, factor, &t.factor))
        return false;
      if (i < a.count && a.terms[i].symbol == t.symbol &&
          __builtin_add_overflow(t.factor, a.terms[i++].factor, &t.factor)) {
        return false;
      }
    }
    if (t.factor == 0)
      continue;
    const Bounds& bounds = bounds_[t.symbol];
    const Wide x = Wide{t.factor} * (t.factor > 0 ? bounds.high : bounds.low);
    if (x > kTooWide || ++count > kMaxTerms)
      return false;
    high += std::max(x, -kTooWide);
  }
  return true;
}

// An upper bound of `form` where the conditions of `context` hold. For F ≤ 0 and m ≥ 0,
// form ≤ form - m·F; each condition is tried with those m that cancel a term. Nothing better is
// looked for than `enough`.
__int128 AddressEvaluator::upper(Form form, std::uint32_t context, Wide enough) const {
  Wide best = 0;
  bool known = box_high(form, best);
  if (!known)
    best = 2 * kTooWide;
  std::uint64_t mask = mask_of(form);
  for (int round = 0; round < 2; ++round) {
    bool better = false;
    int tried = 0, seen = 0;
    for (std::uint32_t c = context;; c = contexts_[c].parent) {
      const Context& here = contexts_[c];
      for (std::uint32_t k = (here.mask & mask) != 0 ? here.first : kNoSlot; k != kNoSlot;
           k = constraints_[k].next) {
        if (best <= enough || ++seen > kMaxConstraintsSeen)
          return best;
        if ((constraints_[k].mask & mask) == 0)
          continue;
        if (++tried > kMaxConstraintsTried)
          return best;
        const Form& f = constraints_[k].form;
        std::int64_t chosen = 0;
        for (std::uint32_t i = 0, j = 0; i < form.count && j < f.count;) {
          const Term &x = form.terms[i], &y = f.terms[j];
          if (x.symbol != y.symbol) {
            x.symbol < y.symbol ? ++i : ++j;
            continue;
          }
          ++i;
          ++j;
          if ((x.factor > 0) != (y.factor > 0) || x.factor == INT64_MIN)
            continue;
          // Nearly always one or the other; a division costs as much as all the rest.
          std::int64_t m = 0;
          if (y.factor == 1 || x.factor == y.factor) {
            m = y.factor == 1 ? x.factor : 1;
          } else if (x.factor % y.factor == 0) {
            m = x.factor / y.factor;
          } else {
            continue;
          }
          Wide high = 0;
          if (!combined_high(form, f, -m, high) || high >= best)
            continue;
          best = high;
          chosen = m;
        }
        Form sum;
        if (chosen != 0 && combine_exactly(form, f, -chosen, sum)) {
          form = sum;
          mask = mask_of(form);
          better = true;
          if (form.count == 0)
            return best;
        }
      }
      if (c == 0)
        break;
    }
    if (!better)
      break;
  }
  return best;
}

bool AddressEvaluator::range(const Form& form, std::uint32_t context, Wide& low, Wide& high) const {
  if (form.count == 0) {
    low = high = form.constant;
    return true;
  }
  Form negated;
  if (!negate(form, negated))
    return false;
  high = upper(form, context, kNever);
  low = -upper(negated, context, kNever);
  // Values lie a multiple of what all factors have in common apart.
  std::uint64_t apart = 0;
  for (std::uint32_t k = 0; k < form.count && apart != 1; ++k) {
    const std::int64_t f = form.terms[k].factor;
    apart =
        std::gcd(apart, f < 0 ? 0 - static_cast<std::uint64_t>(f) : static_cast<std::uint64_t>(f));
  }
  if (apart > 1 && apart <= INT64_MAX && high < kTooWide && low > -kTooWide) {
    const Wide g = static_cast<std::int64_t>(apart);
    high = form.constant + g * floor_div(high - form.constant, g);
    low = form.constant - g * floor_div(form.constant - low, g);
  }
  return high < kTooWide && low > -kTooWide;
}

// The same after all steps were taken, when no constraint is added any more: the arrays that a
// kernel goes through side by side differ by a constant.
bool AddressEvaluator::known_range(const Form& form, std::uint32_t context, Wide& low, Wide& high) {
  Known* found = nullptr;
  for (std::uint32_t k = 0; k < std::min(known_count_, kKnown) && found == nullptr; ++k) {
    if (known_[k].context == context && equal_terms(known_[k].form, form))
      found = &known_[k];
  }
  if (found == nullptr) {
    found = &known_[known_count_++ % kKnown];
    found->form = form;
    found->form.constant = 0;
    found->context = context;
    found->bounded = range(found->form, context, found->low, found->high);
  }
  low = found->low + form.constant;
  high = found->high + form.constant;
  return found->bounded;
}

// The sum as the value that the register has for all threads, if all are in one period.
bool AddressEvaluator::window(const Form& form, unsigned width, bool is_signed,
                              std::uint32_t context, Form& out, Wide& low, Wide& high) const {
  if (form.count == 0) {
    low = high = value_of(form.constant, width, is_signed);
    if (!fits(low))
      return false;
    out.count = 0;
    out.constant = static_cast<std::int64_t>(low);
    return true;
  }
  const Wide bottom = least(width, is_signed);
  for (const bool by_conditions : {false, true}) {
    if (!(by_conditions ? range(form, context, low, high) : box(form, low, high)))
      continue;
    if (low > high)
      high = low;  // nobody comes here
    // Periods below the one meant; shifts round down.
    const Wide turns = (low - bottom) >> width;
    if (turns != (high - bottom) >> width)
      continue;
    const Wide moved = turns << width, constant = form.constant - moved;
    if (!fits(constant))
      return false;
    out = form;
    out.constant = static_cast<std::int64_t>(constant);
    low -= moved;
    high -= moved;
    return true;
  }
  return false;
}

// --- Conditions ---

bool AddressEvaluator::is_dead(std::uint32_t context) const {
  for (std::uint32_t c = context;; c = contexts_[c].parent) {
    if (contexts_[c].dead)
      return true;
    if (c == 0)
      return false;
  }
}

void AddressEvaluator::demand(std::uint32_t context, const Form& f) {
  Form negated;
  if (negate(f, negated) && upper(negated, context, -1) < 0) {
    contexts_[context].dead = true;
    return;
  }
  if (f.count == 0)
    return;
  Constraint c;
  c.form = f;
  c.mask = mask_of(f);
  contexts_[context].mask |= c.mask;
  c.next = contexts_[context].first;
  contexts_[context].first = static_cast<std::uint32_t>(constraints_.size());
  constraints_.push_back(c);
}

void AddressEvaluator::condition(const Step& step) {
  Form a = forms_[step.a], b = forms_[step.b];
  Relation relation = step.relation;
  const unsigned w = step.width;
  if (step.from != kNotFloat) {
    if (a.count != 0 || b.count != 0 || (w != 32 && w != 64))
      return;
    const auto how = static_cast<FloatCompare>(step.from);
    const std::optional<bool> truth =
        w == 32 ? holds_of_floats<float>(relation, how, static_cast<std::uint32_t>(a.constant),
                                         static_cast<std::uint32_t>(b.constant))
                : holds_of_floats<double>(relation, how, static_cast<std::uint64_t>(a.constant),
                                          static_cast<std::uint64_t>(b.constant));
    if (truth == false)
      contexts_[step.context].dead = true;
    return;
  }
  if (a.count == 0 && b.count == 0) {
    if (!holds(relation, value_of(a.constant, w, step.is_signed),
               value_of(b.constant, w, step.is_signed))) {
      contexts_[step.context].dead = true;
    }
    return;
  }
  Form x, y;
  Wide xl = 0, xh = 0, yl = 0, yh = 0;
  bool has_x = window(a, w, step.is_signed, step.context, x, xl, xh);
  bool has_y = window(b, w, step.is_signed, step.context, y, yl, yh);
  if (!has_x && !has_y)
    return;
  if (!has_y) {
    std::swap(a, b);
    std::swap(x, y);
    std::swap(xl, yl);
    std::swap(xh, yh);
    std::swap(has_x, has_y);
    static constexpr Relation kSwapped[] = {Relation::kGreater, Relation::kGreaterEqual,
                                            Relation::kLess,    Relation::kLessEqual,
                                            Relation::kEqual,   Relation::kNotEqual};
    relation = kSwapped[static_cast<int>(relation)];
  }
  auto at_most = [&](const Form& p, const Form& q, std::int64_t slack) {  // p ≤ q + slack
    Form f;
    if (combine_exactly(p, q, -1, f) && !__builtin_sub_overflow(f.constant, slack, &f.constant))
      demand(step.context, f);
  };
  if (!has_x) {
    // a lies in several periods, but may meet the condition in one only: the idiom of a range
    // check, (unsigned)(i - 1) < n - 2.
    Wide low = 0, high = 0;
    if (!range(a, step.context, low, high))
      return;
    Wide first = least(w, step.is_signed), last = greatest(w, step.is_signed);
    switch (relation) {
      case Relation::kLess:
        last = yh - 1;
        break;
      case Relation::kLessEqual:
        last = yh;
        break;
      case Relation::kGreater:
        first = yl + 1;
        break;
      case Relation::kGreaterEqual:
        first = yl;
        break;
      case Relation::kEqual:
        first = yl;
        last = yh;
        break;
      case Relation::kNotEqual:
        return;
    }
    const Wide period = Wide{1} << w;
    const Wide turns = -floor_div(last - low, period);  // the first period that reaches `low`
    if (turns > floor_div(high - first, period) || first > last) {
      contexts_[step.context].dead = true;
      return;
    }
    if (turns != floor_div(high - first, period))
      return;
    const Wide constant = a.constant - turns * period;
    if (!fits(constant) || !fits(first) || !fits(last))
      return;
    x = a;
    x.constant = static_cast<std::int64_t>(constant);
    at_most(x, number(static_cast<std::int64_t>(last)), 0);
    at_most(number(static_cast<std::int64_t>(first)), x, 0);
  }
  switch (relation) {
    case Relation::kLess:
      return at_most(x, y, -1);
    case Relation::kLessEqual:
      return at_most(x, y, 0);
    case Relation::kGreater:
      return at_most(y, x, -1);
    case Relation::kGreaterEqual:
      return at_most(y, x, 0);
    case Relation::kEqual:
      at_most(x, y, 0);
      return at_most(y, x, 0);
    case Relation::kNotEqual:
      break;
  }
  // Only an end of what is possible can be cut off.
  Form difference;
  Wide low = 0, high = 0;
  if (!combine_exactly(x, y, -1, difference) || !range(difference, step.context, low, high))
    return;
  if (low == 0)
    at_most(y, x, -1);
  if (high == 0)
    at_most(x, y, -1);
}

bool AddressEvaluator::moves_in(const AddressProgram& program, const Form& form,
                                std::uint32_t loop) const {
  for (std::uint32_t k = 0; k < form.count; ++k) {
    for (std::uint32_t l = program.symbols[form.terms[k].symbol].loop; l != kNoSlot;
         l = program.loops[l].parent) {
      if (l == loop)
        return true;
    }
  }
  return false;
}

void AddressEvaluator::bound(const AddressProgram& program, std::uint32_t id) {
  const LoopInfo& loop = program.loops[id];
  bool entered = loop.ways == 0;
  for (std::uint32_t k = 0; k < loop.ways && !entered; ++k)
    entered = !is_dead(program.parts[loop.first_way + k].context);
  if (!entered) {
    contexts_[loop.context].dead = true;
    return;
  }
  for (std::uint32_t k = 0; k < loop.count; ++k)
    bounded_by(program, loop, id, program.conditions[loop.first + k]);
}

// `moving` is X(k) = X(0) + d·k in the k-th pass, modulo 2^width. To have gone back k times, the
// condition held for X(0) … X(k-1). While it holds, X cannot have wrapped if the last value that
// meets it is at least |d| away from the end of its type; so X(k) is a true value too, and at most
// d beyond that last value, or X(0) if the loop never went back.
void AddressEvaluator::bounded_by(const AddressProgram& program, const LoopInfo& loop,
                                  std::uint32_t id, const LoopCondition& c) {
  const Form& x = forms_[c.moving];
  const Form& u = forms_[c.fixed];
  Form start = x;
  std::int64_t d = 0;
  start.count = 0;
  for (std::uint32_t k = 0; k < x.count; ++k) {
    if (x.terms[k].symbol == loop.symbol) {
      d = x.terms[k].factor;
    } else {
      start.terms[start.count++] = x.terms[k];
    }
  }
  if (d == 0 || d == INT64_MIN || moves_in(program, start, id) || moves_in(program, u, id))
    return;
  Form x0, limit;
  Wide xl = 0, xh = 0, ul = 0, uh = 0;
  if (!window(start, c.width, c.is_signed, loop.entry, x0, xl, xh) ||
      !window(u, program.steps[c.fixed].width, c.fixed_signed, loop.entry, limit, ul, uh)) {
    return;
  }
  const bool up = d > 0;
  // Of the last value that keeps the loop going, seen from the limit; then one step further.
  std::int64_t beyond = 0;
  Wide end = 0;
  switch (c.relation) {
    case Relation::kLess:
    case Relation::kLessEqual:
      if (!up)
        return;
      beyond = d - (c.relation == Relation::kLess ? 1 : 0);
      if (uh + beyond > greatest(c.width, c.is_signed))
        return;
      end = std::max(xh, uh + beyond);
      break;
    case Relation::kGreater:
    case Relation::kGreaterEqual:
      if (up)
        return;
      beyond = d + (c.relation == Relation::kGreater ? 1 : 0);
      if (ul + beyond < least(c.width, c.is_signed))
        return;
      end = std::min(xl, ul + beyond);
      break;
    case Relation::kNotEqual: {
      // X meets the limit exactly, if it begins on the right side of it, whole steps away.
      Form distance;
      Wide low = 0, high = 0;
      if (!combine_exactly(limit, x0, -1, distance) || distance.constant == INT64_MIN ||
          distance.constant % d != 0 || !range(distance, loop.entry, low, high) ||
          (up ? low < 0 : high > 0)) {
        return;
      }
      for (std::uint32_t k = 0; k < distance.count; ++k) {
        if (distance.terms[k].factor == INT64_MIN || distance.terms[k].factor % d != 0)
          return;
      }
      end = up ? uh : ul;
      break;
    }
    case Relation::kEqual:
      return;
  }
  // X(k) on the near side of `end`, and of limit + beyond if X(0) is already.
  const std::int64_t sign = up ? 1 : -1;
  Form moving = x0;
  Form counter;
  counter.count = 1;
  counter.terms[0] = {loop.symbol, 1};
  if (!combine_exactly(x0, counter, d, moving))
    return;
  Bounds& count = bounds_[loop.symbol];
  const Wide passes = up ? floor_div(end - xl, d) : floor_div(xh - end, -Wide{d});
  count.high = static_cast<std::int64_t>(std::min<Wide>(count.high, std::max<Wide>(passes, 0)));
  Form f;
  if (fits(end) && combine_exactly(Form(), moving, sign, f) &&
      !__builtin_sub_overflow(f.constant, sign * static_cast<std::int64_t>(end), &f.constant)) {
    demand(loop.context, f);
  }
  if (limit.count != 0) {
    Form relative, at_start;
    Wide low = 0, high = 0;
    if (combine_exactly(x0, limit, -1, at_start) && range(at_start, loop.entry, low, high) &&
        (up ? high <= beyond : low >= beyond) && combine_exactly(moving, limit, -1, relative) &&
        !__builtin_sub_overflow(relative.constant, beyond, &relative.constant) &&
        combine_exactly(Form(), relative, sign, f)) {
      demand(loop.context, f);
    }
  }
}

// --- Steps ---

// x / divisor, rounded down (or towards zero). divisor > 0.
AddressEvaluator::Form AddressEvaluator::divide(const Step& step, const Form& value,
                                                std::int64_t divisor, bool is_signed, bool floor,
                                                bool& good) {
  Form x;
  Wide low = 0, high = 0;
  good = window(value, step.width, is_signed, step.context, x, low, high);
  if (!good)
    return anything(step);
  if (low < 0 && !floor)
    return symbol(step.symbol, low / divisor, high / divisor);
  Form quotient, rest;
  const Wide whole = floor_div(x.constant, divisor);
  quotient.constant = static_cast<std::int64_t>(whole);
  rest.constant = static_cast<std::int64_t>(x.constant - whole * divisor);
  for (std::uint32_t k = 0; k < x.count; ++k) {
    const Term& t = x.terms[k];
    if (t.factor % divisor == 0) {
      quotient.terms[quotient.count++] = {t.symbol, t.factor / divisor};
    } else {
      rest.terms[rest.count++] = t;
    }
  }
  Wide rest_low = 0, rest_high = 0;
  if (!range(rest, step.context, rest_low, rest_high))
    return symbol(step.symbol, floor_div(low, divisor), floor_div(high, divisor));
  if (rest_low > rest_high)
    rest_high = rest_low;
  const Form s = symbol(step.symbol, floor_div(rest_low, divisor), floor_div(rest_high, divisor));
  Form result;
  if (!combine(quotient, s, 1, step.width, result))
    return symbol(step.symbol, floor_div(low, divisor), floor_div(high, divisor));
  if (s.count != 0) {
    // divisor · s ≤ rest ≤ divisor · s + divisor - 1
    Form f, g;
    if (combine_exactly(rest, s, -divisor, f) && combine_exactly(Form(), f, -1, g)) {
      demand(step.context, g);
      if (!__builtin_sub_overflow(f.constant, divisor - 1, &f.constant))
        demand(step.context, f);
    }
  }
  return result;
}

AddressEvaluator::Form AddressEvaluator::join(const AddressProgram& program, const Step& step) {
  MergePart pair[2];
  std::span<const MergePart> parts;
  if (step.kind == StepKind::kSelect) {
    pair[0] = {step.a, step.c};
    pair[1] = {step.b, step.d};
    parts = pair;
  } else {
    parts = std::span<const MergePart>(program.parts).subspan(step.a, step.b);
  }
  // The terms that all have in common stay; what is left of each is a number between bounds.
  Form common;
  const Form* first = nullptr;
  bool same = true;
  for (const MergePart& p : parts) {
    if (is_dead(p.context))
      continue;
    const Form& f = forms_[p.slot];
    if (first == nullptr) {
      first = &f;
      common = f;
      common.constant = 0;
      continue;
    }
    same = same && equal(*first, f);
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0, j = 0; i < common.count && j < f.count;) {
      const Term &x = common.terms[i], &y = f.terms[j];
      if (x.symbol == y.symbol) {
        if (x.factor == y.factor)
          common.terms[kept++] = x;
        ++i;
        ++j;
      } else {
        x.symbol < y.symbol ? ++i : ++j;
      }
    }
    common.count = kept;
  }
  if (first == nullptr)
    return anything(step);  // nobody comes here
  if (same)
    return *first;
  Wide low = 0, high = 0;
  bool begun = false;
  Form rests[kMaxJoined];
  std::uint32_t live = 0;
  for (const MergePart& p : parts) {
    if (is_dead(p.context))
      continue;
    Form rest;
    Wide l = 0, h = 0;
    if (!combine(forms_[p.slot], common, -1, step.width, rest) || !range(rest, p.context, l, h))
      return anything(step);
    if (live < kMaxJoined)
      rests[live] = rest;
    ++live;
    if (l > h)
      continue;
    low = begun ? std::min(low, l) : l;
    high = begun ? std::max(high, h) : h;
    begun = true;
  }
  if (!begun || high - low >= (Wide{1} << step.width) || !fits(low) || !fits(high))
    return anything(step);
  Form r, rest;
  if (live > kMaxJoined || !join_by_steps(step, std::span(rests, live), low, high, rest))
    rest = symbol(step.symbol, low, high);
  if (!combine(common, rest, 1, step.width, r))
    return anything(step);
  return r;
}

// Where one of the rests is a number, the others lie whole steps away from it: a symbol for how
// many. Other values that come together in the same place and move by the same steps have the same
// one, so that they stay related: a pointer and the counter of what is left, after a loop.
bool AddressEvaluator::join_by_steps(const Step& step, std::span<const Form> rests, Wide low,
                                     Wide high, Form& out) {
  if (step.d == kNoSlot)
    return false;
  std::uint32_t base = 0;
  while (base < rests.size() && rests[base].count != 0)
    ++base;
  if (base == rests.size())
    return false;
  const std::int64_t start = rests[base].constant;
  std::uint64_t apart = 0;
  Join join;
  join.kind = step.kind;
  join.first = step.kind == StepKind::kSelect ? step.c : step.d;
  join.second = step.kind == StepKind::kSelect ? step.d : 0;
  join.count = static_cast<std::uint32_t>(rests.size());
  auto include = [&](std::int64_t v) {
    apart =
        std::gcd(apart, v < 0 ? 0 - static_cast<std::uint64_t>(v) : static_cast<std::uint64_t>(v));
  };
  for (std::size_t k = 0; k < rests.size(); ++k) {
    Form& f = join.parts[k];
    f = rests[k];
    if (__builtin_sub_overflow(f.constant, start, &f.constant))
      return false;
    include(f.constant);
    for (std::uint32_t t = 0; t < f.count; ++t)
      include(f.terms[t].factor);
  }
  if (apart == 0 || apart > INT64_MAX)
    return false;
  // The same steps as of another value here, times a number.
  for (std::size_t n = 0; n < join_count_; ++n) {
    const Join& other = joins_[n];
    if (other.kind != join.kind || other.first != join.first || other.second != join.second ||
        other.count != join.count) {
      continue;
    }
    std::int64_t times = 0;
    bool same = true;
    for (std::uint32_t k = 0; k < join.count && same; ++k) {
      const Form &x = join.parts[k], &y = other.parts[k];
      same = x.count == y.count;
      auto compare = [&](std::int64_t a, std::int64_t b) {
        if (b == 0 || a == 0) {
          same = same && a == b;
          return;
        }
        if (times == 0) {
          same = same && a % b == 0;
          times = same ? a / b : 0;
        }
        std::int64_t product = 0;
        same = same && !__builtin_mul_overflow(times, b, &product) && product == a;
      };
      compare(x.constant, y.constant);
      for (std::uint32_t t = 0; t < x.count && same; ++t) {
        same = x.terms[t].symbol == y.terms[t].symbol;
        compare(x.terms[t].factor, y.terms[t].factor);
      }
    }
    if (same && times != 0) {
      out.constant = start;
      out.count = 1;
      out.terms[0] = {other.symbol, times};
      return true;
    }
  }
  const auto g = static_cast<std::int64_t>(apart);
  const Form t = symbol(step.symbol, floor_div(low - start, g), floor_div(high - start, g));
  if (!combine_exactly(number(start), t, g, out))
    return false;
  if (t.count == 1 && t.terms[0].symbol == step.symbol) {
    join.symbol = step.symbol;
    for (std::uint32_t k = 0; k < join.count; ++k) {
      Form& f = join.parts[k];
      f.constant /= g;
      for (std::uint32_t n = 0; n < f.count; ++n)
        f.terms[n].factor /= g;
    }
    if (joins_.size() == join_count_)
      joins_.emplace_back();
    joins_[join_count_++] = join;
  }
  return true;
}

AddressEvaluator::Form AddressEvaluator::evaluate(const AddressProgram& program, const Step& step) {
  const unsigned w = step.width;
  auto a = [&]() -> const Form& { return forms_[step.a]; };
  auto b = [&]() -> const Form& { return forms_[step.b]; };
  auto both_unsigned = [&](Wide& al, Wide& ah, Wide& bl, Wide& bh) {
    Form x;
    return window(a(), w, false, step.context, x, al, ah) &&
           window(b(), w, false, step.context, x, bl, bh);
  };
  // x modulo 2^bits, for bits below the width.
  auto low_bits = [&](const Form& x, unsigned bits) {
    Form cut = x, out;
    Wide l = 0, h = 0;
    if (bits == 0)
      return number(0);
    scale(cut, 1, bits);
    if (window(cut, bits, false, step.context, out, l, h))
      return out;
    return symbol(step.symbol, 0, (Wide{1} << bits) - 1);
  };
  switch (step.kind) {
    case StepKind::kOpaque:
      return symbol(step.symbol, step.low, step.high);
    case StepKind::kConst:
      return number(wrap(static_cast<std::uint64_t>(step.low), w));
    case StepKind::kParam: {
      std::uint64_t bits = 0;
      if (step.a > args_.size() || args_.size() - step.a < step.bytes)
        return anything(step);
      std::memcpy(&bits, args_.data() + step.a, step.bytes);
      const auto value = static_cast<std::int64_t>(bits);
      return number(
          wrap(static_cast<std::uint64_t>(value_of(value, step.bytes * 8u, step.is_signed)), w));
    }
    case StepKind::kSpecial: {
      const auto special = static_cast<image::ptx::SpecialRegister>(step.a);
      const std::uint32_t component = step.b;
      if (component < 3) {
        switch (special) {
          case image::ptx::SpecialRegister::kTid:
          case image::ptx::SpecialRegister::kCtaid: {
            const bool tid = special == image::ptx::SpecialRegister::kTid;
            const std::uint32_t id = component + (tid ? 0 : 3);
            const std::uint32_t n =
                tid ? dimensions_.block[component] : dimensions_.grid[component];
            return symbol(id, 0, Wide{n} - 1);
          }
          case image::ptx::SpecialRegister::kNtid:
            return number(wrap(dimensions_.block[component], w));
          case image::ptx::SpecialRegister::kNctaid:
            return number(wrap(dimensions_.grid[component], w));
          default:
            break;
        }
      }
      return anything(step);
    }
    case StepKind::kSymbol:
      if (step.a >= addresses_.size() || addresses_[step.a] == 0)
        return anything(step);
      return number(
          static_cast<std::int64_t>(addresses_[step.a] + static_cast<std::uint64_t>(step.low)));
    case StepKind::kAdd:
    case StepKind::kSub: {
      Form r;
      return combine(a(), b(), step.kind == StepKind::kAdd ? 1 : -1, w, r) ? r : anything(step);
    }
    case StepKind::kMul: {
      const bool left = a().count == 0;
      if (!left && b().count != 0)
        break;
      Form r = left ? b() : a();
      scale(r, left ? a().constant : b().constant, w);
      return r;
    }
    case StepKind::kMulWide:
    case StepKind::kMulHigh: {
      const bool high_half = step.kind == StepKind::kMulHigh;
      const unsigned half = high_half ? w : w / 2;
      Form x, y;
      Wide xl = 0, xh = 0, yl = 0, yh = 0;
      if (half > 32 || !window(a(), half, step.is_signed, step.context, x, xl, xh) ||
          !window(b(), half, step.is_signed, step.context, y, yl, yh)) {
        break;
      }
      if (x.count != 0 && y.count != 0) {
        if (high_half)
          break;
        const auto [low, high] = std::minmax({xl * yl, xl * yh, xh * yl, xh * yh});
        return symbol(step.symbol, low, high);
      }
      Form r;
      if (!combine_exactly(Form(), x.count == 0 ? y : x, x.count == 0 ? x.constant : y.constant,
                           r)) {
        break;
      }
      if (!high_half)
        return r;
      Step wide = step;
      wide.width = static_cast<std::uint8_t>(2 * w);
      bool good = false;
      const Form q = divide(wide, r, std::int64_t{1} << w, step.is_signed, true, good);
      if (!good)
        break;
      return q;
    }
    case StepKind::kShl: {
      if (b().count != 0)
        break;
      const std::uint64_t n = zero_extended(b().constant, 32);
      Form r = a();
      scale(r, n >= w ? 0 : static_cast<std::int64_t>(std::uint64_t{1} << n), w);
      return r;
    }
    case StepKind::kShr: {
      if (b().count != 0)
        break;
      std::uint64_t n = zero_extended(b().constant, 32);
      if (n >= w) {
        if (!step.is_signed)
          return number(0);
        n = w - 1;
      }
      if (n == 0)
        return a();
      if (n == 63)
        break;
      bool good = false;
      return divide(step, a(), std::int64_t{1} << n, step.is_signed, true, good);
    }
    case StepKind::kDiv: {
      if (b().count != 0)
        break;
      const Wide d = value_of(b().constant, w, step.is_signed);
      if (d <= 0 || !fits(d))
        break;
      bool good = false;
      return divide(step, a(), static_cast<std::int64_t>(d), step.is_signed, false, good);
    }
    case StepKind::kRem: {
      // x - d · (x / d), the quotient being in c: so both are known to belong together.
      if (b().count != 0)
        break;
      const Wide d = value_of(b().constant, w, step.is_signed);
      Form x, r;
      Wide low = 0, high = 0;
      if (d <= 0 || !fits(d) || !window(a(), w, step.is_signed, step.context, x, low, high))
        break;
      const Wide least_rest = low < 0 ? std::max(low, 1 - d) : 0;
      const Wide most_rest = high > 0 ? std::min(high, d - 1) : 0;
      const Wide turns = floor_div(low, d);
      if (low >= 0 && turns == floor_div(high, d) &&
          !__builtin_sub_overflow(x.constant, static_cast<std::int64_t>(turns * d), &x.constant)) {
        return x;
      }
      if (low < 0 || !combine(x, forms_[step.c], -static_cast<std::int64_t>(d), w, r))
        return symbol(step.symbol, least_rest, most_rest);
      return r;
    }
    case StepKind::kAnd: {
      if (a().count == 0 && b().count == 0)
        return number(a().constant & b().constant);
      if (a().count == 0 || b().count == 0) {
        const Form& x = a().count == 0 ? b() : a();
        const std::uint64_t mask = zero_extended(a().count == 0 ? a().constant : b().constant, w);
        if ((mask & (mask + 1)) == 0)
          return mask == zero_extended(-1, w)
                     ? x
                     : low_bits(x, static_cast<unsigned>(std::popcount(mask)));
        const std::uint64_t cleared = zero_extended(static_cast<std::int64_t>(~mask), w);
        Form r;
        if ((cleared & (cleared + 1)) == 0 &&
            combine(x, low_bits(x, static_cast<unsigned>(std::popcount(cleared))), -1, w, r)) {
          return r;
        }
        Form y;
        Wide low = 0, high = Wide{mask};
        if (window(x, w, false, step.context, y, low, high))
          high = std::min(high, Wide{mask});
        else
          high = Wide{mask};
        return symbol(step.symbol, 0, high);
      }
      Wide al = 0, ah = 0, bl = 0, bh = 0;
      if (!both_unsigned(al, ah, bl, bh))
        break;
      return symbol(step.symbol, 0, std::min(ah, bh));
    }
    case StepKind::kOr: {
      if (a().count == 0 && b().count == 0)
        return number(a().constant | b().constant);
      Wide al = 0, ah = 0, bl = 0, bh = 0;
      if (!both_unsigned(al, ah, bl, bh))
        break;
      for (const bool swapped : {false, true}) {
        const Form& high_part = swapped ? b() : a();
        const Form& low_part = swapped ? a() : b();
        std::uint64_t bits = static_cast<std::uint64_t>(high_part.constant);
        for (std::uint32_t k = 0; k < high_part.count; ++k)
          bits |= static_cast<std::uint64_t>(high_part.terms[k].factor);
        const int zeros = std::min(62, std::countr_zero(bits));
        Form r;
        if ((swapped ? ah : bh) < (Wide{1} << zeros) && combine(high_part, low_part, 1, w, r))
          return r;
      }
      return symbol(step.symbol, std::max(al, bl), all_ones(std::max(ah, bh)));
    }
    case StepKind::kXor: {
      if (a().count == 0 && b().count == 0)
        return number(a().constant ^ b().constant);
      for (const bool swapped : {false, true}) {
        const Form& x = swapped ? b() : a();
        const Form& ones = swapped ? a() : b();
        Form r;
        if (ones.count == 0 && ones.constant == -1 && combine(number(-1), x, -1, w, r))
          return r;
      }
      Wide al = 0, ah = 0, bl = 0, bh = 0;
      if (!both_unsigned(al, ah, bl, bh))
        break;
      return symbol(step.symbol, 0, all_ones(std::max(ah, bh)));
    }
    case StepKind::kMin:
    case StepKind::kMax: {
      Form x, y;
      Wide xl = 0, xh = 0, yl = 0, yh = 0;
      if (!window(a(), w, step.is_signed, step.context, x, xl, xh) ||
          !window(b(), w, step.is_signed, step.context, y, yl, yh)) {
        break;
      }
      const bool least_of = step.kind == StepKind::kMin;
      if (xh <= yl || yh <= xl)
        return (xh <= yl) == least_of ? x : y;
      const Form s = least_of ? symbol(step.symbol, std::min(xl, yl), std::min(xh, yh))
                              : symbol(step.symbol, std::max(xl, yl), std::max(xh, yh));
      if (s.count == 1 && s.terms[0].symbol == step.symbol &&
          bounds_[step.symbol].high < INT64_MAX) {
        for (const Form* other : {&x, &y}) {
          Form f;
          if (least_of ? combine_exactly(s, *other, -1, f) : combine_exactly(*other, s, -1, f))
            demand(step.context, f);
        }
      }
      return s;
    }
    case StepKind::kAbs: {
      Form x;
      Wide low = 0, high = 0;
      if (!window(a(), w, true, step.context, x, low, high))
        break;
      if (low >= 0)
        return x;
      return symbol(step.symbol, high < 0 ? -high : 0, std::max(high, -low));
    }
    case StepKind::kExtend: {
      Form x;
      Wide low = 0, high = 0;
      if (window(a(), step.from, step.is_signed, step.context, x, low, high))
        return x;
      return symbol(step.symbol, least(step.from, step.is_signed),
                    greatest(step.from, step.is_signed));
    }
    case StepKind::kTruncate: {
      Form r = a();
      scale(r, 1, w);
      return r;
    }
    case StepKind::kPack: {
      Form lower, r;
      Wide low = 0, high = 0;
      if (!window(a(), w / 2, false, step.context, lower, low, high) ||
          !combine(lower, b(), std::int64_t{1} << (w / 2), w, r)) {
        break;
      }
      return r;
    }
    case StepKind::kSelect:
    case StepKind::kMerge:
      return join(program, step);
    case StepKind::kInduction: {
      const LoopInfo& loop = program.loops[step.c];
      if (b().count != 0)
        break;
      Form counter, r;
      counter.count = 1;
      counter.terms[0] = {loop.symbol, 1};
      if (!combine(a(), counter, b().constant, w, r))
        break;
      return r;
    }
    case StepKind::kLoop:
      bound(program, step.a);
      return number(0);
    case StepKind::kCondition:
      condition(step);
      return number(0);
    case StepKind::kEither: {
      const bool first = !contexts_[step.c].dead, second = !contexts_[step.d].dead;
      if (!first && !second)
        contexts_[step.context].dead = true;
      if (first == second)
        return number(0);
      for (std::uint32_t k = contexts_[first ? step.c : step.d].first; k != kNoSlot;
           k = constraints_[k].next) {
        const Form f = constraints_[k].form;
        demand(step.context, f);
      }
      return number(0);
    }
  }
  return anything(step);
}

void AddressEvaluator::run(const AddressProgram& program, std::span<const std::byte> args,
                           const LaunchDimensions& dimensions,
                           std::span<const std::uint64_t> addresses) {
  args_ = args;
  addresses_ = addresses;
  dimensions_ = dimensions;
  if (forms_.size() < program.steps.size())
    forms_.resize(program.steps.size());
  if (bounds_.size() < program.symbols.size())
    bounds_.resize(program.symbols.size());
  for (const LoopInfo& l : program.loops)
    bounds_[l.symbol] = {0, kUnboundedCount};
  constraints_.clear();
  join_count_ = 0;
  contexts_.resize(program.contexts.size());
  for (std::size_t c = 0; c < program.contexts.size(); ++c)
    contexts_[c] = {program.contexts[c], kNoSlot, 0, false};
  known_count_ = 0;
  // Made in its place: a step looks at earlier ones only.
  for (std::size_t k = 0; k < program.steps.size(); ++k)
    ::new (static_cast<void*>(&forms_[k])) Form(evaluate(program, program.steps[k]));
}

// --- Answers ---

AddressEvaluator::Found AddressEvaluator::find(const AddressProgram& program, std::uint32_t index,
                                               ByteSet& out) {
  const Site& site = program.sites[index];
  if (site.address == kNoSlot)
    return Found::kUnknown;
  if (is_dead(site.context))
    return Found::kNothing;
  Form address;
  Wide low = 0, high = 0;
  if (!known_range(forms_[site.address], site.context, low, high))
    return Found::kUnknown;
  if (low > high)
    return Found::kNothing;
  const Wide period = Wide{1} << 64;
  const Wide turns = low >> 64;
  if (turns != high >> 64)
    return Found::kUnknown;
  Wide bytes = site.bytes;
  if (site.byte_slot != kNoSlot) {
    Wide least_size = 0;
    if (!window(forms_[site.byte_slot], 32, false, site.context, address, least_size, bytes))
      return Found::kUnknown;
    if (bytes == 0)
      return Found::kNothing;
  }
  low -= turns * period;
  high -= turns * period;
  if (bytes <= 0 || high + bytes >= period)
    return Found::kUnknown;
  out = {};
  out.begin = static_cast<std::uint64_t>(low);
  out.end = static_cast<std::uint64_t>(high + bytes);
  return Found::kRange;
}

void AddressEvaluator::refine(const AddressProgram& program, std::uint32_t index, ByteSet& set) {
  const Site& site = program.sites[index];
  if (site.byte_slot != kNoSlot)
    return;
  Form form = forms_[site.address];
  std::uint32_t kept = 0;
  for (std::uint32_t k = 0; k < form.count; ++k) {
    const Term t = form.terms[k];
    const Bounds& b = bounds_[t.symbol];
    std::int64_t fixed = 0;
    if (b.low != b.high) {
      form.terms[kept++] = t;
    } else if (__builtin_mul_overflow(t.factor, b.low, &fixed) ||
               __builtin_add_overflow(form.constant, fixed, &form.constant)) {
      return;
    }
  }
  form.count = kept;
  std::sort(form.terms, form.terms + form.count, [](const Term& x, const Term& y) {
    return std::abs(static_cast<double>(x.factor)) > std::abs(static_cast<double>(y.factor));
  });
  // The terms with the largest factors make the stride, the rest the run of bytes that it repeats.
  // Of all ways to part them the sparsest is taken.
  std::uint64_t stride = 0;
  for (std::uint32_t k = 0; k < form.count; ++k) {
    const std::int64_t factor = form.terms[k].factor;
    stride = std::gcd(stride, factor < 0 ? 0 - static_cast<std::uint64_t>(factor)
                                         : static_cast<std::uint64_t>(factor));
    Form inner;
    inner.count = form.count - k - 1;
    std::copy(form.terms + k + 1, form.terms + form.count, inner.terms);
    std::sort(inner.terms, inner.terms + inner.count,
              [](const Term& x, const Term& y) { return x.symbol < y.symbol; });
    Wide low = 0, high = 0;
    if (!range(inner, site.context, low, high) || low > high)
      continue;
    const Wide width = high - low + site.bytes, origin = form.constant + low;
    // Where the sum had to be moved by 2^64 to be an address, its residues are others.
    if (width >= Wide{stride} || set.end > INT64_MAX || origin < 0 || origin > INT64_MAX)
      continue;
    if (set.stride == 0 || width * Wide{set.stride} < Wide{set.width} * Wide{stride}) {
      set.stride = stride;
      set.width = static_cast<std::uint64_t>(width);
      set.origin = static_cast<std::uint64_t>(origin);
    }
  }
}

std::optional<std::int64_t> AddressEvaluator::distance(const AddressProgram& program,
                                                       std::uint32_t from,
                                                       std::uint32_t site) const {
  Form a = forms_[program.sites[from].address];
  const Form& b = forms_[program.sites[site].address];
  const Wide apart = Wide{b.constant} - a.constant;
  a.constant = b.constant;
  return fits(apart) && equal(a, b) ? std::optional(static_cast<std::int64_t>(apart))
                                    : std::nullopt;
}

// The address is c + Σ m·v, where each v runs through all whole numbers between two bounds,
// whatever the others are: the index that a condition is about, or a thread's own index. Then the
// bytes are without holes if each m is at most as large as what the smaller ones fill.
bool AddressEvaluator::written(const AddressProgram& program, std::uint32_t index,
                               std::uint32_t bytes, ByteSet& out) {
  const Site& site = program.sites[index];
  if (!site.must_write || is_dead(site.context))
    return false;
  struct Variable {
    Form form;  // without constant; the first factor is positive
    Wide low = 0, high = 0;
  };
  static constexpr std::size_t kMaxVariables = 6;
  Variable variables[kMaxVariables];
  std::size_t count = 0;
  auto runs_free = [&](std::uint32_t s) {
    if (s < 6)
      return true;
    for (std::uint32_t l = site.loop; l != kNoSlot; l = program.loops[l].parent) {
      if (program.loops[l].symbol == s)
        return true;
    }
    return false;
  };
  auto counts_loop = [&](const Form& f) {
    for (std::uint32_t k = 0; k < f.count; ++k) {
      if (!runs_free(f.terms[k].symbol))
        return true;
    }
    return false;
  };
  // f ≤ 0
  auto limit = [&](const Form& f) {
    Wide high = 0;
    if (f.count == 0)
      return f.constant <= 0;
    if (counts_loop(f))
      return false;
    // Always so; but of a loop it says how often it goes round.
    const bool counts = f.terms[f.count - 1].symbol >= 6;
    if (!counts && box_high(f, high) && high <= 0)
      return true;
    Form terms = f;
    const bool up = f.terms[0].factor > 0;
    if (!up && !negate(f, terms))
      return false;
    terms.constant = 0;
    std::int64_t common = 0;
    for (std::uint32_t k = 0; k < terms.count; ++k) {
      if (terms.terms[k].factor == INT64_MIN)
        return false;
      common = std::gcd(common, terms.terms[k].factor);
    }
    for (std::uint32_t k = 0; k < terms.count; ++k)
      terms.terms[k].factor /= common;
    Variable* v = nullptr;
    for (std::size_t k = 0; k < count; ++k) {
      if (equal(variables[k].form, terms))
        v = &variables[k];
    }
    if (v == nullptr) {
      if (count == kMaxVariables)
        return false;
      v = &variables[count++];
      v->form = terms;
      // All numbers between the bounds, if each factor is at most as large as what the smaller
      // fill.
      Form sorted = terms;
      std::sort(sorted.terms, sorted.terms + sorted.count, [](const Term& x, const Term& y) {
        return std::abs(static_cast<double>(x.factor)) < std::abs(static_cast<double>(y.factor));
      });
      Wide filled = 1;
      for (std::uint32_t k = 0; k < sorted.count; ++k) {
        const Wide factor = sorted.terms[k].factor < 0 ? -Wide{sorted.terms[k].factor}
                                                       : Wide{sorted.terms[k].factor};
        const Bounds& b = bounds_[sorted.terms[k].symbol];
        if (factor > filled)
          return false;
        filled = std::min(kTooWide, filled + factor * (Wide{b.high} - b.low));
      }
      if (!box(terms, v->low, v->high))
        return false;
    }
    if (up) {
      v->high = std::min(v->high, floor_div(-Wide{f.constant}, common));
    } else {
      v->low = std::max(v->low, -floor_div(-Wide{f.constant}, common));
    }
    return true;
  };
  Form demands[2 * kMaxVariables];
  std::size_t demanded = 0;
  for (std::uint32_t k = 0; k < site.must_count; ++k) {
    const MustCondition& c = program.musts[site.first_must + k];
    Form x, y, f, g;
    Wide xl = 0, xh = 0, yl = 0, yh = 0;
    if (!window(forms_[c.a], c.width, c.is_signed, c.context, x, xl, xh) ||
        !window(forms_[c.b], c.width, c.is_signed, c.context, y, yl, yh) ||
        !combine_exactly(x, y, -1, f) || !combine_exactly(y, x, -1, g)) {
      return false;
    }
    bool both = false;
    std::int64_t slack = 0;
    switch (c.relation) {
      case Relation::kLess:
        slack = 1;
        break;
      case Relation::kLessEqual:
        break;
      case Relation::kGreater:
        slack = 1;
        std::swap(f, g);
        break;
      case Relation::kGreaterEqual:
        std::swap(f, g);
        break;
      case Relation::kEqual:
        both = true;
        break;
      case Relation::kNotEqual: {
        Wide low = 0, high = 0;
        if (!range(f, c.context, low, high) || (low < 0 && high > 0))
          return false;
        slack = 1;
        if (low >= 0)
          std::swap(f, g);
        break;
      }
    }
    if (__builtin_add_overflow(f.constant, slack, &f.constant))
      return false;
    if (c.loop != kNoSlot) {
      // Once it fails it must go on failing, so that it says of each pass alone whether it happens.
      const LoopInfo& loop = program.loops[c.loop];
      std::int64_t d = 0;
      Form start = f;
      start.count = 0;
      for (std::uint32_t t = 0; t < f.count; ++t) {
        if (f.terms[t].symbol == loop.symbol) {
          d = f.terms[t].factor;
        } else {
          start.terms[start.count++] = f.terms[t];
        }
      }
      if (both || d < 0 || (c.behind && d == 0))
        return false;
      if (c.behind) {
        // The first pass always happens: it must be as if the condition had held before it.
        Wide low = 0, high = 0;
        if (__builtin_sub_overflow(start.constant, d, &start.constant) ||
            __builtin_sub_overflow(f.constant, d, &f.constant) ||
            !range(start, loop.entry, low, high) || high > 0) {
          return false;
        }
      }
    }
    if (demanded + 2 > std::size(demands))
      return false;
    demands[demanded++] = f;
    if (both)
      demands[demanded++] = g;
  }
  bool implied[2 * kMaxVariables] = {};
  for (std::size_t k = 0; k < demanded; ++k) {
    // What another one, still there, says already is no condition of its own.
    for (std::size_t j = 0; j < demanded && !implied[k]; ++j) {
      Form weaker;
      Wide high = 0;
      implied[k] = j != k && !implied[j] && demands[j].count != 0 &&
                   combine_exactly(demands[k], demands[j], -1, weaker) && box_high(weaker, high) &&
                   high <= 0;
    }
    if (!implied[k] && !limit(demands[k]))
      return false;
  }
  Form address = forms_[site.address];
  if (counts_loop(address))
    return false;
  struct Axis {
    Wide factor = 0, low = 0, high = 0;
  };
  Axis axes[kMaxVariables + kMaxTerms];
  std::size_t axis_count = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const Variable& v = variables[k];
    if (v.low > v.high)
      return false;  // nothing is written
    // No index may be in two of them.
    for (std::size_t j = 0; j < k; ++j) {
      for (std::uint32_t s = 0; s < v.form.count; ++s) {
        for (std::uint32_t t = 0; t < variables[j].form.count; ++t) {
          if (v.form.terms[s].symbol == variables[j].form.terms[t].symbol)
            return false;
        }
      }
    }
    std::int64_t m = 0;
    for (std::uint32_t t = 0; t < address.count; ++t) {
      if (address.terms[t].symbol == v.form.terms[0].symbol &&
          address.terms[t].factor % v.form.terms[0].factor == 0) {
        m = address.terms[t].factor / v.form.terms[0].factor;
      }
    }
    if (m != 0) {
      if (!combine_exactly(address, v.form, -m, address))
        return false;
      axes[axis_count++] = {m, v.low, v.high};
    }
    for (std::uint32_t t = 0; t < address.count; ++t) {
      for (std::uint32_t s = 0; s < v.form.count; ++s) {
        if (address.terms[t].symbol == v.form.terms[s].symbol)
          return false;
      }
    }
  }
  for (std::uint32_t t = 0; t < address.count; ++t) {
    const Bounds& b = bounds_[address.terms[t].symbol];
    // How often a loop goes round is known by its condition only, unless it never goes back.
    if (address.terms[t].symbol >= 6 && b.low != b.high)
      return false;
    axes[axis_count++] = {address.terms[t].factor, b.low, b.high};
  }
  auto size = [](const Axis& x) { return x.factor < 0 ? -x.factor : x.factor; };
  for (std::size_t k = 1; k < axis_count; ++k) {
    for (std::size_t j = k; j > 0 && size(axes[j]) < size(axes[j - 1]); --j)
      std::swap(axes[j], axes[j - 1]);
  }
  Wide filled = bytes, begin = address.constant;
  for (std::size_t k = 0; k < axis_count; ++k) {
    const Axis& a = axes[k];
    const Wide factor = a.factor < 0 ? -a.factor : a.factor, span = a.high - a.low;
    if (span == 0) {
      begin += a.factor * a.low;
      continue;
    }
    if (factor > filled || factor * span > kTooWide)
      return false;
    filled += factor * span;
    begin += a.factor > 0 ? a.factor * a.low : a.factor * a.high;
  }
  if (begin < 0 || begin + filled > INT64_MAX)
    return false;
  out = {};
  out.begin = static_cast<std::uint64_t>(begin);
  out.end = static_cast<std::uint64_t>(begin + filled);
  return true;
}

bool AddressEvaluator::covers(const AddressProgram& program, std::uint32_t earlier,
                              std::uint32_t index) const {
  const Site& w = program.sites[earlier];
  const Site& r = program.sites[index];
  if (w.address == kNoSlot || r.address == kNoSlot || w.byte_slot != kNoSlot ||
      r.byte_slot != kNoSlot) {
    return false;
  }
  Form moved = forms_[r.address];
  const Form& from = forms_[w.address];
  const Wide ahead = Wide{moved.constant} - from.constant;
  moved.constant = from.constant;
  return equal(moved, from) && ahead >= 0 && ahead + r.bytes <= w.bytes;
}

bool may_overlap(const ByteSet& a, const ByteSet& b) {
  const std::uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  if (begin >= end)
    return false;
  if (a.stride == 0 && b.stride == 0)
    return true;
  // Both as runs of bytes that come again after `period`.
  const std::uint64_t period = std::gcd(a.stride, b.stride);
  auto run = [&](const ByteSet& s, std::uint64_t& origin, std::uint64_t& width) {
    origin = s.stride == 0 ? begin : s.origin;
    width = s.stride == 0 ? end - begin : s.width;
  };
  std::uint64_t ao = 0, aw = 0, bo = 0, bw = 0;
  run(a, ao, aw);
  run(b, bo, bw);
  if (aw >= period || bw >= period)
    return true;
  const std::uint64_t ahead = (bo % period + period - ao % period) % period;
  return ahead < aw || (period - ahead) % period < bw || ahead == 0;
}

}  // namespace gpurecover::idempotency
