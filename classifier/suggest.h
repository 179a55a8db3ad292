// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace gpurecover::classifier {

// The candidate that `word` was most likely meant to be (least edit distance, swapped neighbours
// count once, letter case does not count; else the beginning of one or of the other), or nothing if
// none is near. Ties: the earlier candidate.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace gpurecover::classifier
