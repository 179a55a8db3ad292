// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace gpurecover::cli {

// The failed side of a tl::expected<…, std::string>; also from a literal, which tl::unexpected
// would take for an array.
inline tl::unexpected<std::string> failure(std::string text) {
  return tl::unexpected<std::string>(std::move(text));
}

}  // namespace gpurecover::cli
