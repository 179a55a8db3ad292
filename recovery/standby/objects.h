// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

namespace gpurecover::recovery {

// The standby's own object for each number by which the app knows one, by the kinds of
// call_codec.h. Thread-safe.
class Objects {
 public:
  struct Own {
    std::uint64_t handle = 0;
    bool kernel = false;         // of kind 'f': a CUkernel, else a CUfunction
    std::uint64_t function = 0;  // of a kernel, once it was asked for
  };

  void bind(char kind, std::uint64_t number, const Own& own) {
    const std::unique_lock lock(mutex_);
    map(kind)[number] = own;
  }
  void forget(char kind, std::uint64_t number) {
    const std::unique_lock lock(mutex_);
    map(kind).erase(number);
  }
  std::optional<Own> find(char kind, std::uint64_t number) {
    const std::shared_lock lock(mutex_);
    const auto& all = map(kind);
    const auto at = all.find(number);
    return at != all.end() ? std::optional<Own>(at->second) : std::nullopt;
  }

 private:
  std::unordered_map<std::uint64_t, Own>& map(char kind) {
    switch (kind) {
      case 's':
        return maps_[0];
      case 'e':
        return maps_[1];
      case 'f':
        return maps_[2];
      case 'm':
        return maps_[3];
      default:
        return maps_[4];  // 'L'
    }
  }
  std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, Own> maps_[5];
};

}  // namespace gpurecover::recovery
