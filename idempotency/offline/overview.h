// SPDX-License-Identifier: Apache-2.0
//
// What a summary says, argument by argument, for people.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "idempotency/access_summary.h"
#include "idempotency/verdict.h"

namespace gpurecover::idempotency {

// What is done through one pointer.
struct PointerUse {
  std::string what;  // "arg0", "arg2.field@16", "global:counter", "loaded", "constant",
                     // "driver", "unknown pointer"
  bool reads = false, writes = false, read_modify_writes = false;
  bool must_writes = false;  // some write surely happens, for all that is known of its conditions
  // Of every access: its address could be expressed, so that the launch's numbers give its bytes.
  bool exact = true;
  std::uint32_t line = 0;  // of the first access (Access::line)
};

// In the order of the arguments, then variables, then what has no name.
std::vector<PointerUse> overview(const KernelSummary& summary,
                                 std::span<const ArgumentSlot> parameters);

// "read, write" …, "exact" or "bounded".
std::string words_of(const PointerUse& use);

}  // namespace gpurecover::idempotency
