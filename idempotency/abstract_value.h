// SPDX-License-Identifier: Apache-2.0
//
// The domain of the access analysis: what a register may hold, as far as it can be an address.
// Internal to idempotency/.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace gpurecover::idempotency {

// What a term of a sum stands for. Each stands for ONE value per launch and thread's view, so that
// x - x cancels, except kAnyParameter, shared and local (see Form::add).
enum class TermKind : std::uint8_t {
  kParameter,         // 8 bytes of the parameter block
  kAnyParameter,      // some 8 bytes of a parameter
  kParameterAddress,  // where a parameter lies (its address, not its value)
  kGlobalSymbol,
  kConstSymbol,
  kShared,           // an address in shared memory, whichever
  kLocal,            // an address in local memory; symbol says of which variable
  kNarrowParameter,  // fewer than 8 bytes of the parameter block: no address
  kDriver,           // a word that the driver supplies, whichever
};
struct TermInfo {
  TermKind kind = TermKind::kParameter;
  std::uint32_t offset = 0, size = 8;  // of parameters, bytes
  std::uint32_t symbol = 0;            // of symbols: index in the summary's list
  bool operator==(const TermInfo&) const = default;
};

// One alternative of a value: a sum of terms with small coefficients, plus things that are only
// remembered as flags. Plain scalars (thread indices, sums of constants) leave no trace.
struct Form {
  static constexpr int kMaxTerms = 4;
  static constexpr std::int8_t kManyPositive = 2, kManyNegative = -2;  // "2 or more", "-2 or less"

  // kScaled: multiples, pieces, narrow data: cannot be an address by itself.
  // kDark: may be an address by itself, of unknown origin.
  // kLoaded: kDark, and it was read from memory.
  enum Flag : std::uint8_t { kScaled = 1, kDark = 2, kLoaded = 4 };

  struct Term {
    std::uint16_t id = 0;
    std::int8_t coefficient = 0;
    bool operator==(const Term&) const = default;
  };
  std::array<Term, kMaxTerms> terms{};  // sorted by id; the rest zero
  std::uint8_t count = 0;
  std::uint8_t flags = 0;
  bool constant = false;  // exactly `value`; then no terms, no flags
  // A lone kParameterAddress or kLocal with a known displacement, in `value`.
  bool exact = false;
  std::uint64_t value = 0;

  bool operator==(const Form&) const = default;
  bool clean() const { return count == 0 && flags == 0; }
};

// A bounded set of forms; `top` means anything at all.
struct Value {
  static constexpr std::size_t kMaxForms = 24;
  bool top = false;
  bool coarse = false;      // constants and displacements are no longer kept apart
  std::vector<Form> forms;  // empty and not top: never assigned

  bool empty() const { return !top && forms.empty(); }
  // Both return whether the value grew.
  bool add(const Form& form);
  bool join(const Value& other);
  void set_top() {
    top = true;
    forms.clear();
  }
};

}  // namespace gpurecover::idempotency
