// SPDX-License-Identifier: Apache-2.0
#include "recovery/launch_log.h"

#include <algorithm>
#include <new>
#include <utility>

namespace gpurecover::recovery {
namespace {

constexpr std::uint64_t kStoreAlignment = 256;  // bytes, of copies

constexpr char kWaitedForInPart[] =
    "a part of what it belongs to was waited for while another thread went on";
constexpr char kWrittenMeanwhile[] =
    "memory that would have to be put back was open to other streams meanwhile";

// Numbers wrap after 2^32 launches of a stream.
bool reached(std::uint32_t word, std::uint32_t number) {
  return static_cast<std::int32_t>(word - number) >= 0;
}

bool overlap(const AccessSets& sets, const idempotency::Range& range) {
  return std::any_of(sets.writes.begin(), sets.writes.end(), [&](const idempotency::Range& write) {
    return write.begin < range.end && range.begin < write.end;
  });
}

}  // namespace

// --- regions ---

void StreamLog::set_unmarked(bool unmarked) {
  if (unmarked_.load(std::memory_order_relaxed) != unmarked) {
    unmarked_.store(unmarked, std::memory_order_relaxed);
    unmarked ? all_.unmarked_.fetch_add(1, std::memory_order_relaxed)
             : all_.unmarked_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void StreamLog::end_region() {
  if (!open_) {
    return;
  }
  RegionRecord& region = region_at(region_tail_ - 1);
  region.end = tail_.load(std::memory_order_relaxed);
  region.last_number = next_number_ - 1;
  region_.end();
  open_ = false;
  closing_ = false;
}

void StreamLog::start_region(Issue& issue) {
  end_region();
  forget_complete();
  if (unmarked_.load(std::memory_order_relaxed) && issuing_ == 0 && word_ != nullptr) {
    // Whoever issues next is this thread, so it comes behind all that there is.
    issue.mark_before = next_number_ - 1;
    set_unmarked(false);
  }
  if (region_tail_ - region_head_ == regions_.size()) {
    std::vector<RegionRecord> larger(regions_.size() * 2);
    for (std::uint64_t i = region_head_; i != region_tail_; ++i) {
      larger[i & (larger.size() - 1)] = region_at(i);
    }
    regions_ = std::move(larger);
  }
  region_at(region_tail_) = RegionRecord{0, 0, 0, store_end_};
  ++region_tail_;
  open_ = true;
  closing_ = false;
}

bool StreamLog::place(const LaunchTraits& traits, Issue& issue, Keep keep) {
  issue.mark_before.reset();
  issue.keep.clear();
  issue.mark_behind = false;
  if (issuing_ > 0) {
    // Whoever is issuing has a record among these.
    for (std::uint64_t i = head_; i != tail_.load(std::memory_order_relaxed); ++i) {
      at(i).unordered_ |= !at(i).issued_ && !at(i).refused_;
    }
    start_region(issue);
    closing_ = true;
    return true;
  }
  if (!open_ || closing_) {
    start_region(issue);
  }
  if (!traits.shares() || word_ == nullptr) {
    if (region_.launches() != 0) {
      start_region(issue);
    }
    closing_ = true;
    issue.mark_behind = traits.mark_behind && word_ != nullptr;
    return true;
  }
  switch (region_.add(*traits.sets, store_size_ != 0 && keep != Keep::kNo)) {
    case Region::Join::kJoined:
      return true;
    case Region::Join::kKeep:
      if (keep == Keep::kAsk) {
        return false;
      }
      if (reserve(region_.to_keep(), issue.keep)) {
        region_.kept(*traits.sets);
        return true;
      }
      break;
    case Region::Join::kNew:
      break;
  }
  if (store_size_ == 0 && region_.wants_copies()) {
    wants_store_.store(true, std::memory_order_relaxed);
  }
  start_region(issue);
  if (region_.add(*traits.sets, false) != Region::Join::kJoined) {
    closing_ = true;
  }
  return true;
}

bool StreamLog::reserve(std::span<const idempotency::Range> ranges, std::vector<KeptCopy>& out) {
  std::uint64_t end = store_end_;
  for (const idempotency::Range& range : ranges) {
    const std::uint64_t size =
        (range.end - range.begin + kStoreAlignment - 1) / kStoreAlignment * kStoreAlignment;
    std::uint64_t at = end % store_size_;
    if (at + size > store_size_) {
      end += store_size_ - at;  // in one piece
      at = 0;
    }
    end += size;
    if (end - store_begin_ > store_size_) {
      out.clear();
      return false;
    }
    out.push_back({range, store_ + at, next_number_});
  }
  ++next_number_;
  store_end_ = end;
  RegionRecord& region = region_at(region_tail_ - 1);
  region.store_end = end;
  region.copies += static_cast<std::uint32_t>(out.size());
  copies_.insert(copies_.end(), out.begin(), out.end());
  copies_alive_.fetch_add(static_cast<std::uint32_t>(out.size()), std::memory_order_relaxed);
  all_.copies_.fetch_add(static_cast<std::uint32_t>(out.size()), std::memory_order_relaxed);
  return true;
}

bool StreamLog::others_idle() {
  for (StreamLog* other : all_.streams()) {
    if (other == this) {
      continue;
    }
    // By its lock, so that of two who look at each other one sees the other.
    const std::lock_guard lock(other->mutex_);
    other->forget_complete();
    if (other->head_ != other->tail_.load(std::memory_order_relaxed)) {
      return false;
    }
  }
  return true;
}

void StreamLog::copies_failed(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  for (KeptCopy& copy : copies_) {
    if (copy.marker == number) {
      copy.range = {};  // nothing to put back, whatever its marker says
    }
  }
  copies_failed_ = true;
  closing_ = true;
}

void StreamLog::void_copies(const AccessSets* writes) {
  const std::lock_guard lock(mutex_);
  std::size_t copy = 0;
  std::uint64_t begin = head_;
  for (std::uint64_t i = region_head_; i != region_tail_; ++i) {
    const RegionRecord& region = region_at(i);
    const bool is_open = open_ && i == region_tail_ - 1;
    const std::uint64_t end = is_open ? tail_.load(std::memory_order_relaxed) : region.end;
    bool touched = false;
    for (std::uint32_t n = 0; n < region.copies; ++n, ++copy) {
      touched |= writes == nullptr || overlap(*writes, copies_[copy].range);
    }
    for (; begin < end; ++begin) {
      if (touched) {
        at(begin).obstacle = kWrittenMeanwhile;
      }
    }
    if (touched && is_open) {
      closing_ = true;
    }
  }
}

void StreamLog::give_store(std::uint64_t address, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  wants_store_.store(false, std::memory_order_relaxed);
  if (store_size_ == 0) {
    store_ = address;
    store_size_ = size / kStoreAlignment * kStoreAlignment;
  }
}

void StreamLog::void_open_region() {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  const std::uint64_t begin =
      region_tail_ - region_head_ > 1 ? region_at(region_tail_ - 2).end : head_;
  for (std::uint64_t i = std::max(begin, head_); open_ && i != tail; ++i) {
    at(i).obstacle = kWrittenMeanwhile;
  }
}

// --- launches ---

void StreamLog::make_room() {
  forget_complete();
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_ < ring_.size()) {
    return;
  }
  std::vector<LaunchRecord> larger(ring_.size() * 2);
  for (std::uint64_t i = head_; i != tail; ++i) {
    larger[i & (larger.size() - 1)] = std::move(at(i));
  }
  ring_ = std::move(larger);
}

LoggedLaunch LaunchRecord::unpack(std::uint64_t stream,
                                  const std::atomic<std::uint32_t>* word) const {
  LoggedLaunch out;
  out.order = order_;
  out.marker = number_;
  out.issued = issued_;
  out.refused = refused_;
  out.replayable = replayable_;
  out.unordered = unordered_;
  out.obstacle = obstacle;
  out.kernel = kernel;
  out.launch.function = function;
  out.launch.stream = stream;
  std::copy_n(grid, 3, out.launch.grid);
  std::copy_n(block, 3, out.launch.block);
  out.launch.shared_bytes = shared_bytes;
  out.launch.cooperative = cooperative;
  if (has_attributes_) {
    out.launch.attributes = more_->attributes;
  }
  if (size_ <= sizeof inline_) {
    out.launch.arguments.assign(inline_, inline_ + size_);
  } else {
    out.launch.arguments = more_->arguments;
  }
  out.launch.marker = reinterpret_cast<std::uint64_t>(word);
  out.launch.marker_value = number_;
  return out;
}

void StreamLog::end_locked(std::uint32_t number, bool taken, bool marked) {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  for (std::uint64_t i = tail; i != head_; --i) {
    LaunchRecord& entry = at(i - 1);
    if (entry.number_ == number) {
      entry.issued_ = taken;
      entry.refused_ = !taken;
      if (std::exchange(copies_failed_, false) && taken) {
        void_open_region();
      }
      if (i == tail) {
        if (closing_) {
          end_region();
        }
        if (marked) {
          set_unmarked(false);
        }
      }
      break;
    }
  }
}

bool StreamLog::copy_of(std::uint32_t number, RemoteLaunch& out) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t i = tail_.load(std::memory_order_relaxed); i != head_; --i) {
    const LaunchRecord& entry = at(i - 1);
    if (entry.number_ == number) {
      out = entry.unpack(stream_, word_).launch;
      return entry.obstacle == nullptr;
    }
  }
  return false;
}

std::optional<std::uint32_t> StreamLog::begin_mark() {
  const std::lock_guard lock(mutex_);
  if (!unmarked_.load(std::memory_order_relaxed) || word_ == nullptr) {
    return std::nullopt;
  }
  end_region();
  if (issuing_ > 0) {
    // Its order against what we are about to do is not known, nor is that of what went before.
    for (std::uint64_t i = head_; i != tail_.load(std::memory_order_relaxed); ++i) {
      at(i).unordered_ = true;
    }
    return std::nullopt;
  }
  ++issuing_;
  return next_number_ - 1;
}

void StreamLog::end_mark(std::uint32_t number, bool written) {
  const std::lock_guard lock(mutex_);
  --issuing_;
  if (written && number == next_number_ - 1) {
    set_unmarked(false);
  }
}

// --- what is complete ---

void StreamLog::pop_region(bool is_open, std::uint64_t end) {
  RegionRecord& region = region_at(region_head_);
  head_ = end;
  if (region.copies != 0) {
    copies_.erase(copies_.begin(), copies_.begin() + region.copies);
    copies_alive_.fetch_sub(region.copies, std::memory_order_relaxed);
    all_.copies_.fetch_sub(region.copies, std::memory_order_relaxed);
  }
  store_begin_ = region.store_end;
  if (is_open) {
    end_region();
  }
  ++region_head_;
}

void StreamLog::forget_complete() {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  const std::uint32_t word = word_ != nullptr ? word_->load(std::memory_order_acquire) : 0;
  while (region_head_ != region_tail_ && !(open_ && region_head_ == region_tail_ - 1)) {
    const RegionRecord& region = region_at(region_head_);
    const bool complete = word_ != nullptr && reached(word, region.last_number);
    bool done = true;
    for (std::uint64_t i = head_; done && i != region.end; ++i) {
      done = at(i).refused_ || (complete && at(i).issued_);
    }
    if (!done) {
      break;
    }
    pop_region(false, region.end);
  }
  if (head_ == tail) {
    set_unmarked(false);
  }
  forgotten_.store(head_, std::memory_order_release);
}

bool StreamLog::idle() {
  if (forgotten_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire)) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  forget_complete();
  return head_ == tail_.load(std::memory_order_relaxed);
}

std::uint64_t StreamLog::settled() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  std::uint64_t place = head_;
  while (issuing_ > 0 && place != tail && (at(place).issued_ || at(place).refused_)) {
    ++place;
  }
  return issuing_ > 0 ? place : tail;
}

void StreamLog::complete_until(std::uint64_t place) {
  const std::lock_guard lock(mutex_);
  forget_complete();
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  while (region_head_ != region_tail_ && head_ < place) {
    const bool is_open = open_ && region_head_ == region_tail_ - 1;
    const RegionRecord& region = region_at(region_head_);
    const std::uint64_t end = is_open ? tail : region.end;
    if (end > place) {
      // The host may change what the first of them read, so they are not to be done again; copies
      // for their sake hold what was before them.
      head_ = place;
      for (std::uint64_t i = head_; region.copies != 0 && i != end; ++i) {
        at(i).obstacle = kWaitedForInPart;
      }
      closing_ |= is_open && region.copies != 0;
      break;
    }
    pop_region(is_open, end);
  }
  if (head_ == tail) {
    set_unmarked(false);
  }
  forgotten_.store(head_, std::memory_order_release);
}

bool StreamLog::is_complete(std::uint64_t place) {
  if (forgotten_.load(std::memory_order_acquire) >= place) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  forget_complete();
  return head_ >= place;
}

void StreamLog::clear() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  while (region_head_ != region_tail_) {
    const bool is_open = open_ && region_head_ == region_tail_ - 1;
    pop_region(is_open, is_open ? tail : region_at(region_head_).end);
  }
  head_ = tail;
  set_unmarked(false);
  forgotten_.store(head_, std::memory_order_release);
  issuing_ = 0;
  if (word_ != nullptr) {
    word_->store(next_number_ - 1, std::memory_order_release);
  }
}

StreamLog::Incomplete StreamLog::incomplete() {
  const std::lock_guard lock(mutex_);
  forget_complete();
  Incomplete out;
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  std::uint64_t first_end = tail;
  if (region_head_ != region_tail_ && !(open_ && region_head_ == region_tail_ - 1)) {
    first_end = region_at(region_head_).end;
  }
  for (std::uint64_t i = head_; i != tail; ++i) {
    if (at(i).issued_) {
      out.launches.push_back(at(i).unpack(stream_, word_));
      out.may_have_run += i < first_end ? 1 : 0;
    }
  }
  if (word_ == nullptr) {
    for (LoggedLaunch& launch : out.launches) {
      launch.unordered = true;  // how far the stream came is not known
    }
  } else if (region_head_ != region_tail_) {
    const std::uint32_t word = word_->load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < region_at(region_head_).copies; ++i) {
      if (copies_[i].range.begin != copies_[i].range.end && reached(word, copies_[i].marker)) {
        out.copies.push_back(copies_[i]);
      }
    }
  }
  return out;
}

// --- all streams ---

StreamLog& LaunchLog::stream(std::uint64_t stream, std::uint64_t thread) {
  const std::pair key{stream, thread};
  {
    const std::shared_lock lock(mutex_);
    if (const auto at = by_handle_.find(key); at != by_handle_.end()) {
      return *at->second;
    }
  }
  const std::lock_guard lock(mutex_);
  if (const auto at = by_handle_.find(key); at != by_handle_.end()) {
    return *at->second;
  }
  std::atomic<std::uint32_t>* word = nullptr;
  if (!free_words_.empty()) {
    word = free_words_.back();
  } else if (words_ != nullptr && used_words_ < kStreams) {
    word = std::launder(
        reinterpret_cast<std::atomic<std::uint32_t>*>(words_ + used_words_ * kWordStride));
  }
  auto made = std::make_unique<StreamLog>(*this, stream, word);
  StreamLog* log = made.get();
  all_.reserve(all_.size() + 1);
  by_handle_.emplace(key, log);
  all_.push_back(std::move(made));
  if (!free_words_.empty()) {
    free_words_.pop_back();
  } else if (word != nullptr) {
    ++used_words_;
  }
  if (word != nullptr) {
    word->store(0, std::memory_order_release);
  }
  return *log;
}

void LaunchLog::forget(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  for (auto at = by_handle_.lower_bound({stream, 0});
       at != by_handle_.end() && at->first.first == stream;) {
    // A marker of it may still be on its way to the word, which a new stream would take for its
    // own: only a word whose last number has arrived is used again.
    StreamLog* log = at->second;
    if (!log->idle()) {
      log->clear();
    } else if (log->word() != nullptr) {
      free_words_.push_back(log->word());
    }
    at = by_handle_.erase(at);
  }
}

std::vector<StreamLog*> LaunchLog::streams() {
  const std::shared_lock lock(mutex_);
  std::vector<StreamLog*> streams;
  for (const auto& [key, log] : by_handle_) {
    streams.push_back(log);
  }
  return streams;
}

namespace detail {

Frontier frontier_of(std::vector<StreamLog::Incomplete> streams) {
  Frontier frontier;
  frontier.recoverable = true;
  std::vector<std::pair<LoggedLaunch, bool>> all;
  for (auto& stream : streams) {
    for (std::size_t i = 0; i < stream.launches.size(); ++i) {
      all.emplace_back(std::move(stream.launches[i]), i < stream.may_have_run);
    }
    frontier.copies.insert(frontier.copies.end(), stream.copies.begin(), stream.copies.end());
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first.order < b.first.order; });
  for (auto& [launch, may_have_run] : all) {
    if (frontier.kernel == nullptr && may_have_run) {
      frontier.kernel = launch.kernel;
    }
    frontier.to_do.push_back(std::move(launch));
    frontier.may_have_run.push_back(may_have_run);
  }
  return frontier;
}

}  // namespace detail

}  // namespace gpurecover::recovery
