// SPDX-License-Identifier: Apache-2.0
#include "recovery/launch_log.h"

#include <algorithm>
#include <new>

namespace gpurecover::recovery {
namespace {

// Numbers wrap after 2^32 launches of a stream.
bool reached(std::uint32_t word, std::uint32_t marker) {
  return static_cast<std::int32_t>(word - marker) >= 0;
}

}  // namespace

LoggedLaunch& StreamLog::append(std::uint64_t order) {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_ == ring_.size()) {
    std::vector<LoggedLaunch> larger(ring_.size() * 2);
    for (std::uint64_t at = head_; at != tail; ++at) {
      larger[at & (larger.size() - 1)] = std::move(ring_[index(at)]);
    }
    ring_ = std::move(larger);
  }
  LoggedLaunch& entry = ring_[index(tail)];
  entry.order = order;
  entry.marker = next_marker_++;
  entry.issued = false;
  entry.refused = false;
  entry.replayable = false;
  entry.unordered = false;
  entry.obstacle = nullptr;
  if (++issuing_ > 1) {
    // Whoever is issuing has a record among these.
    for (std::uint64_t at = head_; at != tail; ++at) {
      LoggedLaunch& other = ring_[index(at)];
      other.unordered |= !other.issued && !other.refused;
    }
    entry.unordered = true;
  }
  tail_.store(tail + 1, std::memory_order_release);
  return entry;
}

void StreamLog::end(std::uint32_t marker, bool taken) {
  const std::lock_guard lock(mutex_);
  --issuing_;
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  for (std::uint64_t at = tail; at != head_; --at) {
    LoggedLaunch& entry = ring_[index(at - 1)];
    if (entry.marker == marker) {
      entry.issued = taken;
      entry.refused = !taken;
      break;
    }
  }
}

bool StreamLog::copy_of(std::uint32_t marker, RemoteLaunch& out) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t at = tail_.load(std::memory_order_relaxed); at != head_; --at) {
    const LoggedLaunch& entry = ring_[index(at - 1)];
    if (entry.marker == marker) {
      out = entry.launch;
      return entry.obstacle == nullptr;
    }
  }
  return false;
}

void StreamLog::forget_complete() {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  const std::uint32_t word = word_ != nullptr ? word_->load(std::memory_order_acquire) : 0;
  while (head_ != tail) {
    const LoggedLaunch& oldest = ring_[index(head_)];
    if (!oldest.refused && !(oldest.issued && word_ != nullptr && reached(word, oldest.marker))) {
      break;
    }
    ++head_;
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

void StreamLog::all_complete() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  while (head_ != tail && (ring_[index(head_)].issued || ring_[index(head_)].refused)) {
    ++head_;
  }
  forgotten_.store(head_, std::memory_order_release);
}

void StreamLog::clear() {
  const std::lock_guard lock(mutex_);
  head_ = tail_.load(std::memory_order_relaxed);
  forgotten_.store(head_, std::memory_order_release);
  issuing_ = 0;
  if (word_ != nullptr) {
    word_->store(next_marker_ - 1, std::memory_order_release);
  }
}

std::vector<LoggedLaunch> StreamLog::incomplete() {
  const std::lock_guard lock(mutex_);
  forget_complete();
  std::vector<LoggedLaunch> launches;
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  for (std::uint64_t at = head_; at != tail; ++at) {
    const LoggedLaunch& entry = ring_[index(at)];
    if (entry.issued) {
      launches.push_back(entry);
    }
  }
  if (word_ == nullptr && launches.size() > 1) {
    for (LoggedLaunch& launch : launches) {
      launch.unordered = true;  // how far the stream came is not known
    }
  }
  return launches;
}

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
  auto made = std::make_unique<StreamLog>(stream, word);
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
    if (log->word() != nullptr && log->idle()) {
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

Frontier frontier_of(std::vector<std::vector<LoggedLaunch>> streams) {
  Frontier frontier;
  frontier.recoverable = true;
  std::vector<std::pair<LoggedLaunch, bool>> all;
  for (auto& launches : streams) {
    for (std::size_t i = 0; i < launches.size(); ++i) {
      all.emplace_back(std::move(launches[i]), i == 0);
    }
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
