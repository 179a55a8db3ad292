// SPDX-License-Identifier: Apache-2.0
#include "classifier/suggest.h"

#include <algorithm>
#include <cstddef>

namespace gpurecover::classifier {
namespace {

// Longer words are not typing mistakes of anything that we know.
constexpr std::size_t kMaxWord = 80;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Optimal string alignment distance; any number from `limit` on once it cannot be less.
std::size_t distance(std::string_view a, std::string_view b, std::size_t limit) {
  std::size_t before[kMaxWord + 1], previous[kMaxWord + 1], row[kMaxWord + 1];
  for (std::size_t j = 0; j <= b.size(); ++j)
    previous[j] = before[j] = j;
  std::size_t least_before = 0;  // of the row above
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (same ? 0U : 1U)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    // A value comes from one of the two rows above it.
    const std::size_t least = *std::min_element(row, row + b.size() + 1);
    if (std::min(least, least_before) >= limit)
      return limit;
    least_before = least;
    std::copy(previous, previous + b.size() + 1, before);
    std::copy(row, row + b.size() + 1, previous);
  }
  return previous[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.empty() || word.size() > kMaxWord)
    return {};
  std::string_view best;
  // A third of the letters may be wrong, and at least one.
  std::size_t limit = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    if (candidate.empty() || candidate.size() > kMaxWord)
      continue;
    const std::size_t apart = word.size() > candidate.size() ? word.size() - candidate.size()
                                                             : candidate.size() - word.size();
    if (apart >= limit)  // the distance is at least that
      continue;
    const std::size_t d = distance(word, candidate, limit);
    if (d < limit && d < candidate.size()) {
      limit = d;
      best = candidate;
    }
  }
  if (!best.empty() || word.size() < 3)
    return best;
  // An abbreviation, or an ending too much: "bound", "running".
  for (std::string_view candidate : candidates)
    if (candidate.size() >= 3 && (candidate.starts_with(word) || word.starts_with(candidate)))
      return candidate;
  return best;
}

}  // namespace gpurecover::classifier
