// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "recovery/region.h"
#include "recovery/standby_link.h"

// Which launches are under way on each stream, as far as a fault may leave them undone, and what
// has to be done so that they can be done again. The rules, and why they are enough:
// docs/regions.md.
//
// The launches of a stream form regions, runs that may be replayed together. Behind a region the
// device writes a number, its marker, into a word of host memory that belongs to the stream (exact
// after a fault: MEASUREMENTS section 4). After a fault the first region of each stream whose
// number was not reached may have run in part; those behind it never began.
//
// Everything else that is done in streams is waited for by the agent, so the log holds launches
// only.
namespace gpurecover::recovery {

struct LoggedLaunch {
  std::uint64_t order = 0;   // of issue, over all streams
  std::uint32_t marker = 0;  // a marker of this number or a later one says that it is complete
  bool issued = false;       // the driver has taken it; else it is being issued, or was refused
  bool refused = false;
  bool replayable = false;  // by its verdict
  // Where it stands in its stream is not known: another thread was issuing to the stream at the
  // same time, or the stream has no marker.
  bool unordered = false;
  const char* obstacle = nullptr;  // why another process cannot do it
  const void* kernel = nullptr;    // the agent's record
  RemoteLaunch launch;
};

// A launch as the log keeps it: in two lines of the cache, for at every launch another one is
// written.
class alignas(64) LaunchRecord {
 public:
  // What the caller gives; everything else is the log's.
  const void* kernel = nullptr;
  const char* obstacle = nullptr;
  std::uint64_t function = 0;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;
  bool cooperative = false;
  void set_arguments(std::span<const std::byte> arguments) {
    size_ = static_cast<std::uint32_t>(arguments.size());
    if (size_ <= sizeof inline_) [[likely]] {
      std::copy_n(arguments.data(), size_, inline_);
    } else {
      more().arguments.assign(arguments.begin(), arguments.end());
    }
  }
  // Empty at the beginning of each launch. Asked for only where there are any.
  std::vector<std::byte>& attributes() {
    has_attributes_ = true;
    return more().attributes;
  }

 private:
  friend class StreamLog;
  // What hardly any launch has: allocated once for a place in the log.
  struct More {
    std::vector<std::byte> arguments, attributes;
  };
  More& more() {
    if (more_ == nullptr) {
      more_ = std::make_unique<More>();
    }
    return *more_;
  }
  LoggedLaunch unpack(std::uint64_t stream, const std::atomic<std::uint32_t>* word) const;

  std::uint64_t order_ = 0;
  std::uint32_t number_ = 0;
  std::uint32_t size_ = 0;  // of the arguments
  bool issued_ = false, refused_ = false, replayable_ = false, unordered_ = false;
  bool has_attributes_ = false;
  std::unique_ptr<More> more_;
  std::byte inline_[40];
};
static_assert(sizeof(LaunchRecord) == 128);

// Bytes as they were before a launch of a region changed them.
struct KeptCopy {
  idempotency::Range range;
  std::uint64_t copy = 0;    // where it is
  std::uint32_t marker = 0;  // the number that says it is there
};

// What there is to do for a launch, in its stream: the marker, then the copies and theirs, then the
// launch, then the marker behind it.
struct Issue {
  std::uint32_t number = 0;  // the launch's
  std::optional<std::uint32_t> mark_before;
  std::vector<KeptCopy> keep;  // all of one marker
  bool mark_behind = false;
};

// How a launch is to be logged.
struct LaunchTraits {
  bool replayable = false;           // by its verdict
  const AccessSets* sets = nullptr;  // of a replayable one; null: not known, it shares no region
  bool alone = false;                // it shares no region
  bool mark_behind = false;          // its region ends with it, and the marker is written at once
  bool shares() const { return sets != nullptr && !alone && !mark_behind; }
};

class LaunchLog;

// Held for some tens of instructions, at every launch: a mutex costs more than what it guards.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; locked_.exchange(true, std::memory_order_acquire);) {
      while (locked_.load(std::memory_order_relaxed)) {
        if (++spins > 100) {
          std::this_thread::yield();  // its holder may not be running
        }
      }
    }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

// The launches of one stream. Thread-safe. The functions that come in pairs enclose what the caller
// does in the stream; a thread that does both is in the stream between them, and what two threads
// do there at the same time has no known order.
class StreamLog {
 public:
  // `word`: where the device writes; null: this stream has no marker, so its work is never known to
  // be complete but by `complete_until`.
  StreamLog(LaunchLog& log, std::uint64_t stream, std::atomic<std::uint32_t>* word)
      : all_(log), stream_(stream), word_(word) {}
  StreamLog(const StreamLog&) = delete;
  StreamLog& operator=(const StreamLog&) = delete;

  std::uint64_t stream() const { return stream_; }
  std::atomic<std::uint32_t>* word() const { return word_; }

  // Around a launch: `begin` before the driver gets it, filled in by `fill(LaunchRecord&)` while
  // the log is locked; `end` after it, with whether it took it, and whether the marker behind it
  // was written. Between the two the record stays where it is. `issue` is overwritten.
  template <class Fill>
  void begin(std::uint64_t order, const LaunchTraits& traits, Issue& issue, Fill&& fill) {
    bool keep = false;
    {
      const std::lock_guard lock(mutex_);
      if (open_ && !closing_ && issuing_ == 0 && traits.shares() &&
          region_.joins_again(traits.sets->key)) [[likely]] {
        issue.mark_before.reset();
        issue.keep.clear();
        issue.mark_behind = false;
        fill(append(order, traits, issue));
        return;
      }
      if (place(traits, issue, Keep::kAsk)) {
        fill(append(order, traits, issue));
        return;
      }
    }
    // Copies are of use only if nobody else may be writing there now: asked without our lock, and
    // once more when the copies can be seen by whoever begins a launch meanwhile.
    keep = others_idle();
    {
      const std::lock_guard lock(mutex_);
      place(traits, issue, keep ? Keep::kYes : Keep::kNo);
      fill(append(order, traits, issue));
    }
    if (!issue.keep.empty() && !others_idle()) {
      void_copies(nullptr);
    }
  }
  void end(std::uint32_t number, bool taken, bool marked) {
    const std::lock_guard lock(mutex_);
    --issuing_;
    LaunchRecord& last = at(tail_.load(std::memory_order_relaxed) - 1);
    if (last.number_ == number && taken && !closing_ && !marked && !copies_failed_) [[likely]] {
      last.issued_ = true;
      return;
    }
    end_locked(number, taken, marked);
  }
  // The launch of a record that is being issued; false if another process cannot do it.
  bool copy_of(std::uint32_t number, RemoteLaunch& out);

  // Ends the region for the sake of another stream: the number of the marker to write, if one is
  // due, and the end of writing it.
  std::optional<std::uint32_t> begin_mark();
  void end_mark(std::uint32_t number, bool written);
  // Whether there are launches that no marker is behind; a hint, without the lock.
  bool unmarked() const { return unmarked_.load(std::memory_order_relaxed); }

  // Whether all launches are known to be complete; one load where there are none.
  bool idle();
  // A place in the log up to which nobody is issuing any more. If the stream is waited for, or
  // asked and found empty, after this was asked, `complete_until` may be told so.
  std::uint64_t settled();
  void complete_until(std::uint64_t place);
  // Whether everything up to a place is known to be complete.
  bool is_complete(std::uint64_t place);
  // Drops everything, as after a takeover that has made it all up.
  void clear();

  // Memory for copies: device memory that another process can map. Wanted at most once.
  bool wants_store() const { return wants_store_.load(std::memory_order_relaxed); }
  void give_store(std::uint64_t address, std::uint64_t size);
  std::uint32_t copies() const { return copies_alive_.load(std::memory_order_relaxed); }
  // Those of this number could not be made: if the launch that they are for is taken all the same,
  // its region is not to be replayed.
  void copies_failed(std::uint32_t number);
  // Somebody outside the stream writes to `writes` (null: to anything): copies of that are void.
  void void_copies(const AccessSets* writes);

  // The incomplete launches, oldest first, as they are when no thread is issuing.
  struct Incomplete {
    std::vector<LoggedLaunch> launches;
    std::size_t may_have_run = 0;  // so many of them, from the first
    std::vector<KeptCopy> copies;  // to be put back before these are done again; there for sure
  };
  Incomplete incomplete();

 private:
  struct RegionRecord {
    std::uint64_t end = 0;  // the place behind its last launch; of the open one: unknown yet
    std::uint32_t last_number = 0;  // of its last launch
    std::uint32_t copies = 0;       // so many of `copies_` are its
    std::uint64_t store_end = 0;    // what of the store it and those before it use
  };

  enum class Keep : std::uint8_t { kAsk, kYes, kNo };
  // Finds the region of a launch. False, and nothing has changed, if copies would have to be made
  // and `keep` says to ask first.
  bool place(const LaunchTraits& traits, Issue& issue, Keep keep);
  void start_region(Issue& issue);
  void end_region();
  bool others_idle();
  void void_open_region();
  bool reserve(std::span<const idempotency::Range> ranges, std::vector<KeptCopy>& out);
  LaunchRecord& append(std::uint64_t order, const LaunchTraits& traits, Issue& issue) {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_ == ring_.size()) [[unlikely]] {
      make_room();
    }
    LaunchRecord& entry = at(tail);
    // The next one's lines come while the driver launches this one.
    const LaunchRecord* next = &at(tail + 1);
    __builtin_prefetch(next, 1);
    __builtin_prefetch(reinterpret_cast<const std::byte*>(next) + 64, 1);
    entry.order_ = order;
    entry.number_ = issue.number = next_number_++;
    entry.issued_ = false;
    entry.refused_ = false;
    entry.replayable_ = traits.replayable;
    entry.unordered_ = ++issuing_ > 1;
    entry.obstacle = nullptr;
    if (entry.has_attributes_) [[unlikely]] {
      entry.has_attributes_ = false;
      entry.more_->attributes.clear();
    }
    if (!unmarked_.load(std::memory_order_relaxed)) [[unlikely]] {
      set_unmarked(true);
    }
    tail_.store(tail + 1, std::memory_order_release);
    return entry;
  }
  void make_room();
  void end_locked(std::uint32_t number, bool taken, bool marked);
  void forget_complete();
  void pop_region(bool is_open, std::uint64_t end);
  void set_unmarked(bool unmarked);
  std::size_t index(std::uint64_t position) const { return position & (ring_.size() - 1); }
  LaunchRecord& at(std::uint64_t position) { return ring_[index(position)]; }

  LaunchLog& all_;
  const std::uint64_t stream_;
  std::atomic<std::uint32_t>* const word_;
  // What every launch uses comes first.
  SpinLock mutex_;
  bool open_ = false;
  bool closing_ = false;        // the open region takes nobody else
  bool copies_failed_ = false;  // of the launch being issued
  std::atomic<bool> unmarked_{false};
  std::atomic<bool> wants_store_{false};
  std::uint32_t next_number_ = 1;
  std::uint32_t issuing_ = 0;
  std::uint64_t head_ = 0;  // the oldest
  std::atomic<std::uint64_t> tail_{0};
  // A ring whose entries keep their buffers, so that a launch allocates nothing once warm.
  std::vector<LaunchRecord> ring_{8};
  Region region_;  // the open one's rules
  std::atomic<std::uint32_t> copies_alive_{0};
  std::atomic<std::uint64_t> forgotten_{0};  // equals tail_: none

  // Closed ones and the open one, oldest first.
  std::vector<RegionRecord> regions_{8};
  std::uint64_t region_head_ = 0, region_tail_ = 0;
  RegionRecord& region_at(std::uint64_t i) { return regions_[i & (regions_.size() - 1)]; }

  std::vector<KeptCopy> copies_;  // of the regions, in their order
  std::uint64_t store_ = 0, store_size_ = 0;
  std::uint64_t store_begin_ = 0, store_end_ = 0;  // in use, counted on without end
};

class LaunchLog {
 public:
  static constexpr std::size_t kStreams = 1024;
  static constexpr std::size_t kWordStride = 64;  // bytes: words of streams do not share a line
  static constexpr std::size_t kWordBytes = kStreams * kWordStride;
  static constexpr std::uint64_t kLegacyStream = 1;  // CU_STREAM_LEGACY of cuda.h

  // Memory for the words, kWordBytes of zeros that the device can write. Before the first stream.
  void set_words(std::byte* words) { words_ = words; }

  // The log of a stream; `thread` tells per-thread default streams apart, and is 0 for others. A
  // stream without a word left is logged without marker. Stays valid for ever.
  StreamLog& stream(std::uint64_t stream, std::uint64_t thread);
  // A stream that was destroyed: its handle may come again. What it had was waited for.
  void forget(std::uint64_t stream);

  std::uint64_t next_order() { return order_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Of all streams, without holding a lock while they are used.
  std::vector<StreamLog*> streams();

  // After StreamLog::begin and before the launch: puts into the streams what the launch needs.
  // `mark(log, number)` writes a number to the log's word, `copy(log, copy)` makes a copy, each in
  // the log's stream and with whether it was enqueued.
  template <class Mark, class Copy>
  void prepare(StreamLog& log, const AccessSets* sets, const Issue& issue, Mark&& mark,
               Copy&& copy);

  // Streams with launches that no marker is behind, and copies that are kept, over all streams.
  std::uint32_t unmarked() const { return unmarked_.load(std::memory_order_relaxed); }
  std::uint32_t copies() const { return copies_.load(std::memory_order_relaxed); }

 private:
  friend class StreamLog;
  std::byte* words_ = nullptr;
  std::atomic<std::uint64_t> order_{0};
  std::atomic<std::uint32_t> unmarked_{0};
  std::atomic<std::uint32_t> copies_{0};
  std::shared_mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, StreamLog*> by_handle_;
  std::vector<std::unique_ptr<StreamLog>> all_;
  std::vector<std::atomic<std::uint32_t>*> free_words_;
  std::size_t used_words_ = 0;
};

template <class Mark, class Copy>
void LaunchLog::prepare(StreamLog& log, const AccessSets* sets, const Issue& issue, Mark&& mark,
                        Copy&& copy) {
  if (unmarked() > 1 || copies() > log.copies()) [[unlikely]] {
    for (StreamLog* other : streams()) {
      if (other == &log) {
        continue;
      }
      // The legacy default stream waits for the others and they for it: what went before this
      // launch there must not be done again once this one has run.
      if (other->unmarked() &&
          (log.stream() == kLegacyStream || other->stream() == kLegacyStream)) {
        if (const auto number = other->begin_mark()) {
          other->end_mark(*number, mark(*other, *number));
        }
      }
      if (other->copies() != 0) {
        other->void_copies(sets);
      }
    }
  }
  if (issue.mark_before) {
    mark(log, *issue.mark_before);
  }
  if (!issue.keep.empty()) [[unlikely]] {
    bool kept = true;
    for (const KeptCopy& one : issue.keep) {
      kept = kept && copy(log, one);
    }
    if (!kept || !mark(log, issue.keep.front().marker)) {
      log.copies_failed(issue.keep.front().marker);
    }
  }
}

// What a fault has left to do.
struct Frontier {
  bool recoverable = false;
  std::string reason;               // why not; names the launch
  const void* kernel = nullptr;     // of the launch that the reason is about, or of the first
  std::vector<KeptCopy> copies;     // to be put back first
  std::vector<LoggedLaunch> to_do;  // in the order of issue
  std::vector<bool> may_have_run;   // of each: replayed with the last check; else issued anew
};
// To be asked when no thread issues launches. `name_of` gives a kernel's name for reasons, and
// `why_not` why a launch is not replayable.
template <class NameOf, class WhyNot>
Frontier frontier_of(LaunchLog& log, NameOf&& name_of, WhyNot&& why_not);

namespace detail {
Frontier frontier_of(std::vector<StreamLog::Incomplete> streams);
}

template <class NameOf, class WhyNot>
Frontier frontier_of(LaunchLog& log, NameOf&& name_of, WhyNot&& why_not) {
  std::vector<StreamLog::Incomplete> streams;
  for (StreamLog* stream : log.streams()) {
    streams.push_back(stream->incomplete());
  }
  Frontier frontier = detail::frontier_of(std::move(streams));
  for (std::size_t i = 0; i < frontier.to_do.size() && frontier.recoverable; ++i) {
    const LoggedLaunch& launch = frontier.to_do[i];
    if (launch.unordered) {
      frontier.recoverable = false;
      frontier.kernel = launch.kernel;
      frontier.reason = "`" + std::string(name_of(launch.kernel)) +
                        "` was launched on a stream by two threads at once, or on one without a "
                        "marker, so it is not known how far that stream came";
    } else if (launch.obstacle != nullptr) {
      frontier.recoverable = false;
      frontier.kernel = launch.kernel;
      frontier.reason = "`" + std::string(name_of(launch.kernel)) + "`: " + launch.obstacle;
    } else if (frontier.may_have_run[i] && !launch.replayable) {
      frontier.recoverable = false;
      frontier.kernel = launch.kernel;
      frontier.reason = why_not(launch);
    }
  }
  return frontier;
}

}  // namespace gpurecover::recovery
