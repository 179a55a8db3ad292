// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "cupti/driver_api/driver_api.h"

namespace gpurecover::agent {

// An object of the driver's as the app knows it: what kind (the letters of a call's signature, with
// kernels counted as functions) and its handle.
struct ObjectKey {
  char kind = 0;
  std::uint64_t handle = 0;
  auto operator<=>(const ObjectKey&) const = default;
};

// How the app's objects came to be what they are, so that another process can make them again: the
// calls that made and changed each of them. Thread-safe; makes no driver call.
class Objects {
 public:
  struct Made {
    std::uint64_t order = 0;  // of creation, over all objects
    ObjectKey parent;         // kind 0: none
    // Another number: the object is to be made anew; of `version`, to be changed again.
    std::uint64_t identity = 0;
    std::uint64_t version = 0;
    bool by_image = false;        // a module or library: its image is in the image store
    std::vector<std::byte> call;  // else the encoded call (recovery/call_codec.h)
    std::vector<std::vector<std::byte>> changes;  // calls on it, in order
  };

  // After a successful call that has a signature: notes what it made, changed or destroyed.
  void note(const driver_api::Call& call, const void* params, bool per_thread);
  void note_image(ObjectKey key);

  std::optional<Made> find(ObjectKey key) const;
  ObjectKey parent(ObjectKey key) const;  // kind 0: unknown
  // All objects in the order in which they were made, without their calls.
  struct State {
    ObjectKey key;
    ObjectKey parent;
    std::uint64_t order = 0, identity = 0, version = 0;
    bool by_image = false;
  };
  std::vector<State> states() const;
  // Another number whenever `states` would say something else.
  std::uint64_t revision() const { return revision_.load(std::memory_order_acquire); }
  // Objects of a kind, in the order in which they were made.
  std::vector<ObjectKey> all(char kind) const;

  // Events keep when they were recorded last, for times between records in different processes.
  struct Recorded {
    std::chrono::steady_clock::time_point when;
    std::uint64_t epoch = 0;  // before which takeover, from 0
  };
  void note_record(std::uint64_t event, std::uint64_t epoch);
  std::optional<Recorded> recorded(std::uint64_t event) const;

 private:
  struct Change {
    const driver_api::Call* call = nullptr;
    std::uint64_t number = 0;  // the first of its numbers: which attribute
    std::vector<std::byte> bytes;
  };
  struct Entry {
    Made made;
    std::vector<Change> changes;
  };
  void erase(ObjectKey key);

  mutable std::mutex mutex_;
  std::uint64_t order_ = 0;
  std::uint64_t identities_ = 0;  // and versions
  std::atomic<std::uint64_t> revision_{0};
  std::map<ObjectKey, Entry> entries_;
  std::multimap<ObjectKey, ObjectKey> children_;
  std::map<std::uint64_t, Recorded> records_;
};

}  // namespace gpurecover::agent
