// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "cupti/agent/steering.h"

namespace gpurecover::agent {

// Exports many pieces of memory, an operation that takes the driver 0.6 to 0.7 ms each, by threads
// of its own, while its owner does something else and takes the descriptors as they come. Only so
// many of them exist at a time: they are the app's to have.
class Exporter {
 public:
  struct Options {
    // A descriptor of the piece, or -1. Called by several threads.
    std::function<int(const SteeredMemory&)> export_one;
    // Called by each of them first: its driver calls are not the app's.
    std::function<void()> quiet_this_thread;
    unsigned threads = 4;      // at most; where there are few pieces, fewer
    std::size_t at_hand = 32;  // descriptors that nobody has taken yet, at most
  };
  struct Exported {
    SteeredMemory memory;
    int fd = -1;  // -1: a thread of ours could not; it may be tried again
  };

  // Begins.
  Exporter(std::vector<SteeredMemory> memories, Options options);
  // Stops, and closes what nobody has taken.
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // At most `most` of those that are ready; waits for the first. The descriptors are the caller's.
  // Empty: there are no more.
  std::vector<Exported> take(std::size_t most);
  // How long exports have taken so far, all together.
  double busy_ms() const;

 private:
  void run();
  Exported export_at(std::size_t place);

  const std::vector<SteeredMemory> memories_;
  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable ready_, room_;
  std::size_t next_ = 0;       // to be exported
  std::size_t under_way_ = 0;  // in threads
  std::vector<Exported> exported_;
  double busy_ms_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace gpurecover::agent
