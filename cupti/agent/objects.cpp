// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/objects.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "recovery/call_codec.h"

namespace gpurecover::agent {
namespace {

using driver_api::Kind;
using recovery::Parameter;
using recovery::ParameterKind;

std::uint64_t number_at(const void* params, const Parameter& parameter) {
  std::uint64_t value = 0;
  std::memcpy(&value, static_cast<const std::byte*>(params) + parameter.offset,
              std::min<std::size_t>(parameter.size, sizeof value));
  return value;
}

std::uint64_t pointer_at(const void* params, const Parameter& parameter) {
  std::uint64_t value = 0;
  std::memcpy(&value, static_cast<const std::byte*>(params) + parameter.offset, sizeof value);
  return value;
}

// Settings of the context belong to no object of their own.
constexpr ObjectKey kContext{'c', 0};

}  // namespace

void Objects::note(const driver_api::Call& call, const void* params, bool per_thread) {
  ObjectKey made;
  ObjectKey first;  // the first handle that the call is given
  ObjectKey destroyed;
  std::optional<std::uint64_t> number;
  for (const Parameter& parameter : recovery::parameters_of(call)) {
    switch (parameter.kind) {
      case ParameterKind::kOutHandle:
        if (const std::uint64_t at = pointer_at(params, parameter); at != 0) {
          std::memcpy(&made.handle, reinterpret_cast<const void*>(at), sizeof made.handle);
          made.kind = parameter.handle;
        }
        break;
      case ParameterKind::kHandle:
        if (first.kind == 0) {
          first = {parameter.handle, pointer_at(params, parameter)};
        }
        break;
      case ParameterKind::kDestroyedHandle:
        destroyed = {parameter.handle, pointer_at(params, parameter)};
        break;
      case ParameterKind::kNumber:
        if (!number) {
          number = number_at(params, parameter);
        }
        break;
      default:
        break;
    }
  }
  if (destroyed.kind != 0) {
    const std::lock_guard lock(mutex_);
    erase(destroyed);
    return;
  }
  const bool changes = call.kind == Kind::kObject || call.kind == Kind::kContext;
  if (made.kind == 0 && !changes) {
    return;
  }
  std::vector<std::byte> bytes;
  recovery::encode_call(
      call, params, per_thread, [&](char) { return made.handle; }, bytes);

  const std::lock_guard lock(mutex_);
  if (made.kind != 0) {
    if (made == first) {
      return;  // a kernel that stands for its own function
    }
    // Asked for again, most of these give the same handle again: what was set on it stays.
    Entry& entry = entries_[made];
    if (entry.made.order == 0) {
      entry.made.order = ++order_;
    }
    if (entry.made.identity == 0 || entry.made.call != bytes || entry.made.parent != first) {
      entry.made.identity = ++identities_;
      revision_.fetch_add(1, std::memory_order_acq_rel);
    }
    if (entry.made.parent != first || entry.made.parent.kind == 0) {
      if (first.kind != 0) {
        children_.emplace(first, made);
      }
      entry.made.parent = first;
    }
    entry.made.call = std::move(bytes);
    entry.made.by_image = false;
    if (made.kind == 'e') {
      records_.erase(made.handle);
    }
    return;
  }
  const ObjectKey target = first.kind != 0 ? first : kContext;
  Entry& entry = entries_[target];
  std::erase_if(entry.changes, [&](const Change& change) {
    return change.call == &call && change.number == number.value_or(0);
  });
  entry.changes.push_back({&call, number.value_or(0), std::move(bytes)});
  entry.made.version = ++identities_;
  revision_.fetch_add(1, std::memory_order_acq_rel);
}

void Objects::note_image(ObjectKey key) {
  const std::lock_guard lock(mutex_);
  erase(key);
  Entry& entry = entries_[key];
  entry.made.order = ++order_;
  entry.made.identity = ++identities_;
  revision_.fetch_add(1, std::memory_order_acq_rel);
  entry.made.by_image = true;
}

void Objects::erase(ObjectKey key) {
  const auto [begin, end] = children_.equal_range(key);
  std::vector<ObjectKey> gone;
  for (auto at = begin; at != end; ++at) {
    gone.push_back(at->second);
  }
  children_.erase(begin, end);
  entries_.erase(key);
  revision_.fetch_add(1, std::memory_order_acq_rel);
  if (key.kind == 'e') {
    records_.erase(key.handle);
  }
  for (const ObjectKey child : gone) {
    const auto at = entries_.find(child);
    if (at != entries_.end() && at->second.made.parent == key) {
      erase(child);
    }
  }
}

std::optional<Objects::Made> Objects::find(ObjectKey key) const {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) {
    return std::nullopt;
  }
  Made made = at->second.made;
  for (const Change& change : at->second.changes) {
    made.changes.push_back(change.bytes);
  }
  return made;
}

ObjectKey Objects::parent(ObjectKey key) const {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(key);
  return at != entries_.end() ? at->second.made.parent : ObjectKey{};
}

std::vector<Objects::State> Objects::states() const {
  std::vector<State> all;
  {
    const std::lock_guard lock(mutex_);
    all.reserve(entries_.size());
    for (const auto& [key, entry] : entries_) {
      const Made& made = entry.made;
      all.push_back({key, made.parent, made.order, made.identity, made.version, made.by_image});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const State& a, const State& b) { return a.order < b.order; });
  return all;
}

std::vector<ObjectKey> Objects::all(char kind) const {
  std::vector<std::pair<std::uint64_t, ObjectKey>> ordered;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = entries_.lower_bound({kind, 0}); at != entries_.end() && at->first.kind == kind;
         ++at) {
      ordered.emplace_back(at->second.made.order, at->first);
    }
  }
  std::sort(ordered.begin(), ordered.end());
  std::vector<ObjectKey> keys;
  for (const auto& [order, key] : ordered) {
    keys.push_back(key);
  }
  return keys;
}

void Objects::note_record(std::uint64_t event, std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  records_[event] = {std::chrono::steady_clock::now(), epoch};
}

std::optional<Objects::Recorded> Objects::recorded(std::uint64_t event) const {
  const std::lock_guard lock(mutex_);
  const auto at = records_.find(event);
  return at != records_.end() ? std::optional(at->second) : std::nullopt;
}

}  // namespace gpurecover::agent
