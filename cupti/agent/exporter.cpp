// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/exporter.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "cupti/agent/standby_keeper.h"

namespace gpurecover::agent {
namespace {

constexpr std::size_t kPiecesOfAThread = 8;

}  // namespace

Exporter::Exporter(std::vector<SteeredMemory> memories, Options options)
    : memories_(std::move(memories)), options_(std::move(options)) {
  exported_.reserve(options_.at_hand);
  const std::size_t wanted =
      std::min<std::size_t>(options_.threads, memories_.size() / kPiecesOfAThread + 1);
  threads_.reserve(wanted);
  try {
    while (threads_.size() < (memories_.empty() ? 0 : wanted)) {
      threads_.push_back(quiet_thread([this] { run(); }));
    }
  } catch (const std::exception&) {
    // Fewer, or none: then `take` does it.
  }
}

Exporter::~Exporter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  for (const Exported& one : exported_) {
    if (one.fd >= 0) {
      ::close(one.fd);
    }
  }
}

Exporter::Exported Exporter::export_at(std::size_t place) {
  const auto begin = std::chrono::steady_clock::now();
  Exported one{memories_[place], -1};
  try {
    one.fd = options_.export_one(one.memory);
  } catch (...) {
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  busy_ms_ += took.count();
  return one;
}

void Exporter::run() {
  try {
    options_.quiet_this_thread();
  } catch (...) {
    return;  // whoever takes does it
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [&] {
      return stop_ || next_ == memories_.size() || exported_.size() + under_way_ < options_.at_hand;
    });
    if (stop_ || next_ == memories_.size()) {
      return;
    }
    const std::size_t place = next_++;
    ++under_way_;
    lock.unlock();
    const Exported one = export_at(place);
    lock.lock();
    --under_way_;
    exported_.push_back(one);  // there is room
    ready_.notify_one();
  }
}

std::vector<Exporter::Exported> Exporter::take(std::size_t most) {
  std::vector<Exported> out;
  out.reserve(most);
  std::unique_lock lock(mutex_);
  if (exported_.empty() && under_way_ == 0 && next_ < memories_.size()) {
    // The threads have only begun, or there are none.
    const std::size_t place = next_++;
    lock.unlock();
    out.push_back(export_at(place));
    return out;
  }
  ready_.wait(lock, [&] { return !exported_.empty() || under_way_ == 0; });
  while (out.size() < most && !exported_.empty()) {
    out.push_back(exported_.back());
    exported_.pop_back();
  }
  lock.unlock();
  room_.notify_all();
  return out;
}

double Exporter::busy_ms() const {
  const std::lock_guard lock(mutex_);
  return busy_ms_;
}

}  // namespace gpurecover::agent
