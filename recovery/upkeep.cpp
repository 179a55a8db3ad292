// SPDX-License-Identifier: Apache-2.0
#include "recovery/upkeep.h"

namespace gpurecover::recovery {

using std::chrono::milliseconds;

void Upkeep::add(const Piece& piece) {
  if (closed_ || alive_.contains(piece.address)) {
    return;
  }
  const std::uint64_t serial = next_serial_++;
  // In this order: what was entered half is nothing.
  alive_[piece.address] = {piece, serial, Clock::now()};
  due_.emplace(serial, piece.address);
  ++changes_;
}

void Upkeep::made(const Piece& piece) {
  {
    const std::lock_guard lock(mutex_);
    add(piece);
  }
  worker_.notify_one();
}

void Upkeep::gone(std::uint64_t address) {
  Lock lock(mutex_);
  auto at = alive_.find(address);
  if (at == alive_.end()) {
    return;
  }
  const std::uint64_t serial = at->second.serial;
  program_.wait(lock, [&] { return reading_ != serial; });
  at = alive_.find(address);
  if (at == alive_.end() || at->second.serial != serial) {
    return;
  }
  alive_.erase(at);
  due_.erase(serial);
  if (held_.contains(serial)) {
    stale_.insert(serial);
    ++changes_;
    lock.unlock();
    worker_.notify_one();
  }
}

bool Upkeep::let_go(milliseconds patience) {
  Lock lock(mutex_);
  return program_.wait_for(lock, patience, [&] { return stale_.empty(); });
}

std::uint64_t Upkeep::outstanding(int device) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const std::uint64_t serial : stale_) {
    const Piece& piece = held_.at(serial);
    if (!piece.host && piece.device == device) {
      bytes += piece.size;
    }
  }
  return bytes;
}

void Upkeep::touch() {
  {
    const std::lock_guard lock(mutex_);
    if (touched_ || ended()) {
      return;
    }
    touched_ = true;
    touched_since_ = Clock::now();
    ++changes_;
  }
  worker_.notify_one();
}

bool Upkeep::touched(Clock::time_point& due) {
  const std::lock_guard lock(mutex_);
  due = Clock::time_point::max();
  if (!touched_) {
    return false;
  }
  if (const auto when = touched_since_ + settle_; when > Clock::now()) {
    due = when;
    return false;
  }
  touched_ = false;
  return true;
}

void Upkeep::begin_fork(milliseconds patience) {
  Lock lock(mutex_);
  ++forks_;
  // A file of pinned memory is the program's, and open in its children anyway.
  program_.wait_for(lock, patience, [&] { return in_hand_ == 0 || in_hand_host_; });
}

void Upkeep::end_fork() {
  {
    const std::lock_guard lock(mutex_);
    --forks_;
    ++changes_;
  }
  worker_.notify_one();
}

Upkeep::Task Upkeep::next() {
  const std::lock_guard lock(mutex_);
  Task task;
  if (ended()) {
    task.what = Task::What::kEnd;
    return task;
  }
  if (!stale_.empty()) {
    task.what = Task::What::kLetGo;
    task.serial = *stale_.begin();
    task.piece = held_.at(task.serial);
    return task;
  }
  if (due_.empty() || forks_ > 0) {
    return task;
  }
  const auto [serial, address] = *due_.begin();
  const Entry& entry = alive_.at(address);
  if (const auto when = entry.since + settle_; when > Clock::now()) {
    task.until = when;
    return task;
  }
  task.what = Task::What::kHandOver;
  task.serial = serial;
  task.piece = entry.piece;
  due_.erase(serial);
  reading_ = serial;
  in_hand_ = serial;
  in_hand_address_ = address;
  in_hand_host_ = entry.piece.host;
  return task;
}

bool Upkeep::read(std::uint64_t serial) {
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    if (reading_ == serial) {
      reading_ = 0;
    }
    const auto at = alive_.find(in_hand_address_);
    if (in_hand_ == serial && at != alive_.end() && at->second.serial == serial) {
      held_[serial] = at->second.piece;
      wanted = true;
    }
  }
  program_.notify_all();
  return wanted;
}

void Upkeep::handed_over(std::uint64_t serial, bool has_it) {
  {
    const std::lock_guard lock(mutex_);
    if (reading_ == serial) {
      reading_ = 0;
    }
    if (in_hand_ == serial) {
      in_hand_ = 0;
    }
    if (!has_it) {
      held_.erase(serial);
      stale_.erase(serial);
    }
  }
  program_.notify_all();
}

void Upkeep::let_go_of(std::uint64_t serial) {
  {
    const std::lock_guard lock(mutex_);
    held_.erase(serial);
    stale_.erase(serial);
  }
  program_.notify_all();
}

void Upkeep::wait(Clock::time_point until) {
  Lock lock(mutex_);
  const auto changed = [&] { return changes_ != seen_ || ended(); };
  if (until == Clock::time_point::max()) {
    worker_.wait(lock, changed);
  } else {
    worker_.wait_until(lock, until, changed);
  }
  seen_ = changes_;
}

void Upkeep::pause() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = true;
  }
  worker_.notify_all();
}

bool Upkeep::wait_for_reader(milliseconds patience) {
  Lock lock(mutex_);
  return program_.wait_for(lock, patience, [&] { return reading_ == 0; });
}

void Upkeep::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    alive_.clear();
    due_.clear();
    held_.clear();
    stale_.clear();
    in_hand_ = 0;
  }
  worker_.notify_all();
  program_.notify_all();
}

std::vector<Upkeep::Piece> Upkeep::kept() const {
  const std::lock_guard lock(mutex_);
  std::vector<Piece> all;
  for (const auto& [serial, piece] : held_) {
    if (!stale_.contains(serial)) {
      all.push_back(piece);
    }
  }
  return all;
}

std::vector<Upkeep::Piece> Upkeep::stale() const {
  const std::lock_guard lock(mutex_);
  std::vector<Piece> all;
  for (const std::uint64_t serial : stale_) {
    all.push_back(held_.at(serial));
  }
  return all;
}

}  // namespace gpurecover::recovery
