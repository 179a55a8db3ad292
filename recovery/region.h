// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "idempotency/verdict.h"

// Which launches of one stream may be replayed together (docs/regions.md).
namespace gpurecover::recovery {

// What a launch may read and write, and what it surely writes (of `writes`), as its verdict has it:
// sorted, merged. `key` names the content: two of the same key, which is never 0, have the same
// ranges.
struct AccessSets {
  std::uint64_t key = 0;
  std::vector<idempotency::Range> reads;
  std::vector<idempotency::Range> writes;
  std::vector<idempotency::Range> must_writes;
};

// A run of idempotent launches of one stream that is replayed from its start, whatever part of it
// ran. A launch may join if it writes nothing that it or an earlier one of the run reads, except
// for bytes that were surely written by a member before that, and bytes of which a copy was kept
// before they could change.
//
// Not thread-safe; no CUDA call; allocates nothing once warm.
class Region {
 public:
  static constexpr std::uint32_t kMaxLaunches = 512;  // what a replay has to do again at most
  static constexpr std::size_t kMaxRanges = 64;
  // A copy of more than this takes longer than a marker (MEASUREMENTS section 5).
  static constexpr std::uint64_t kMaxKept = 256 << 10;

  enum class Join : std::uint8_t {
    kJoined,
    kKeep,  // it belongs to the region if `to_keep` is copied before it; tell `kept()` or `end()`
    kNew,   // it does not: `end()`, then ask again
  };
  // Whether the launch belongs to the region. An empty region takes every launch that does not
  // write what it reads. `may_keep`: copies can be made.
  Join add(const AccessSets& sets, bool may_keep);
  // As kJoined of `add`, where one of the same kind has joined and nothing has changed since: what
  // nearly every launch of a loop is.
  bool joins_again(std::uint64_t key) {
    if (known_[key % known_.size()] != key || launches_ == kMaxLaunches) {
      return false;
    }
    ++launches_;
    return true;
  }
  std::span<const idempotency::Range> to_keep() const { return to_keep_; }
  // The copies that `add` asked for are enqueued: the launch is a member.
  void kept(const AccessSets& sets);
  // Nothing can join any more.
  void end();

  std::uint32_t launches() const { return launches_; }
  // Whether the last `add` would have asked for copies, had they been possible.
  bool wants_copies() const { return wants_copies_; }

 private:
  void join(const AccessSets& sets);

  // What every launch looks at comes first.
  std::uint32_t launches_ = 0;
  // Members whose kind has joined since `exposed_` or `copied_` last changed, by key: another such
  // one changes nothing.
  std::array<std::uint64_t, 8> known_{};
  std::vector<idempotency::Range> exposed_;  // that a member reads as they were before the region
  std::vector<idempotency::Range> written_;  // that a member has surely written
  std::vector<idempotency::Range> copied_;   // of which there is a copy
  std::vector<idempotency::Range> to_keep_, scratch_, reads_;
  std::uint32_t copies_ = 0;
  bool wants_copies_ = false;
  // A copy pays where the same memory is written again and again; else a marker costs less. So
  // copies begin after regions that conflicts have kept short, and stop where they do not help.
  std::uint32_t short_regions_ = 0;
  std::uint32_t no_copies_for_ = 0;  // regions
};

}  // namespace gpurecover::recovery
