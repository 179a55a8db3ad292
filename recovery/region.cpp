// SPDX-License-Identifier: Apache-2.0
#include "recovery/region.h"

#include <algorithm>

namespace gpurecover::recovery {
namespace {

using idempotency::Range;

constexpr std::uint32_t kShort = 4;         // launches
constexpr std::uint32_t kShortRegions = 3;  // so many in a row before copies are tried
constexpr std::uint32_t kPause = 64;        // regions without copies after they did not pay

// Sorted, merged lists throughout. `out` must be none of the others.
void unite(const std::vector<Range>& a, const std::vector<Range>& b, std::vector<Range>& out) {
  out.clear();
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const bool first = j == b.size() || (i < a.size() && a[i].begin <= b[j].begin);
    const Range next = first ? a[i++] : b[j++];
    if (!out.empty() && next.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, next.end);
    } else {
      out.push_back(next);
    }
  }
}

void intersect(const std::vector<Range>& a, const std::vector<Range>& b, std::vector<Range>& out) {
  out.clear();
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint64_t begin = std::max(a[i].begin, b[j].begin);
    const std::uint64_t end = std::min(a[i].end, b[j].end);
    if (begin < end) {
      out.push_back({begin, end});
    }
    (a[i].end < b[j].end ? i : j) += 1;
  }
}

bool overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (std::max(a[i].begin, b[j].begin) < std::min(a[i].end, b[j].end)) {
      return true;
    }
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return false;
}

// What of `a` is not in `b`.
void subtract(const std::vector<Range>& a, const std::vector<Range>& b, std::vector<Range>& out) {
  out.clear();
  std::size_t j = 0;
  for (Range left : a) {
    while (j < b.size() && b[j].end <= left.begin) {
      ++j;
    }
    for (std::size_t k = j; k < b.size() && b[k].begin < left.end; ++k) {
      if (left.begin < b[k].begin) {
        out.push_back({left.begin, b[k].begin});
      }
      left.begin = std::max(left.begin, b[k].end);
    }
    if (left.begin < left.end) {
      out.push_back(left);
    }
  }
}

}  // namespace

Region::Join Region::add(const AccessSets& sets, bool may_keep) {
  if (launches_ == kMaxLaunches) {
    if (copies_ == 0) {
      short_regions_ = 0;
    }
    return Join::kNew;
  }
  if (joins_again(sets.key)) {
    return Join::kJoined;
  }
  if (overlap(sets.writes, sets.reads)) {
    return Join::kNew;  // not to be replayed at all
  }
  if (exposed_.size() + sets.reads.size() > kMaxRanges) {
    if (launches_ != 0) {
      return Join::kNew;
    }
    // By itself it needs no list.
    launches_ = kMaxLaunches;
    return Join::kJoined;
  }
  // Its own reads are not among what it writes, so only those of others count.
  intersect(sets.writes, exposed_, scratch_);
  subtract(scratch_, copied_, to_keep_);
  if (to_keep_.empty()) {
    join(sets);
    return Join::kJoined;
  }
  std::uint64_t bytes = 0;
  for (const Range& range : to_keep_) {
    bytes += range.end - range.begin;
  }
  wants_copies_ = no_copies_for_ == 0 && short_regions_ >= kShortRegions && bytes <= kMaxKept &&
                  to_keep_.size() <= 4 && copied_.size() + to_keep_.size() <= kMaxRanges;
  if (wants_copies_ && may_keep) {
    return Join::kKeep;
  }
  short_regions_ = launches_ < kShort ? short_regions_ + 1 : 0;
  return Join::kNew;
}

void Region::kept(const AccessSets& sets) {
  unite(copied_, to_keep_, scratch_);
  std::swap(copied_, scratch_);
  copies_ += static_cast<std::uint32_t>(to_keep_.size());
  known_.fill(0);
  join(sets);
}

void Region::join(const AccessSets& sets) {
  subtract(sets.reads, written_, reads_);
  unite(exposed_, reads_, scratch_);
  if (scratch_ != exposed_) {
    std::swap(exposed_, scratch_);
    known_.fill(0);
  }
  if (!sets.must_writes.empty()) {
    // To know of more only lets more join, so what is known already holds.
    unite(written_, sets.must_writes, scratch_);
    if (scratch_.size() <= kMaxRanges) {
      std::swap(written_, scratch_);
    }
  }
  known_[sets.key % known_.size()] = sets.key;
  ++launches_;
}

void Region::end() {
  if (copies_ != 0 && launches_ < 4 * copies_) {
    no_copies_for_ = kPause;
    short_regions_ = 0;
  } else if (no_copies_for_ != 0 && launches_ != 0) {
    --no_copies_for_;
  }
  exposed_.clear();
  written_.clear();
  copied_.clear();
  launches_ = 0;
  copies_ = 0;
  known_.fill(0);
}

}  // namespace gpurecover::recovery
