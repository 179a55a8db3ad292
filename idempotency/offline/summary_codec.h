// SPDX-License-Identifier: Apache-2.0
//
// A kernel's summary as bytes and back, complete: what comes back gives the same verdict for every
// launch. The bytes have no version of their own: whoever stores them stores the analysis' revision
// beside them (side_file.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "idempotency/access_summary.h"

namespace gpurecover::idempotency {

// Throws std::bad_alloc only.
std::string encode_summary(const KernelSummary& summary);

// nullopt: not what encode_summary writes, or what it describes could not be evaluated safely. Any
// bytes are safe; memory is bounded by a small multiple of their number. Throws std::bad_alloc
// only.
std::optional<KernelSummary> decode_summary(std::string_view bytes);

// Whether every index of a summary lies where it points to and every number is one that the
// evaluation can work with, in bounded time. So it is of what `summarize` returns.
bool well_formed(const KernelSummary& summary);

}  // namespace gpurecover::idempotency
