// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "recovery/standby_link.h"

// Which launches are under way on each stream, as far as a fault may leave them undone.
//
// Behind each launch the agent puts a marker: the device writes the launch's number into a word of
// host memory that belongs to the stream, when the launch is complete (exact after a fault:
// MEASUREMENTS section 4). So after a fault the first launch of each stream whose number was not
// reached may have run in part, those behind it never began, and those before it are complete.
//
// Here each launch is a region of its own. Everything else that is done in streams is waited for
// by the agent, so the log holds launches only, and replaying them one after the other in the order
// of their issue respects whatever order the program had asked for.
namespace gpurecover::recovery {

struct LoggedLaunch {
  std::uint64_t order = 0;   // of issue, over all streams
  std::uint32_t marker = 0;  // the number that says it is complete
  bool issued = false;       // the driver has taken it; else it is being issued, or was refused
  bool refused = false;
  bool replayable = false;  // by its verdict
  // Where it stands in its stream is not known: another thread was issuing to the stream at the
  // same time, or the stream has no marker and more launches than this one.
  bool unordered = false;
  const char* obstacle = nullptr;  // why another process cannot do it
  const void* kernel = nullptr;    // the agent's record
  RemoteLaunch launch;
};

// The launches of one stream. Thread-safe.
class StreamLog {
 public:
  // `word`: where the device writes; null: this stream has no marker, so its work is never known to
  // be complete but by `all_complete`.
  StreamLog(std::uint64_t stream, std::atomic<std::uint32_t>* word)
      : stream_(stream), word_(word) {}
  StreamLog(const StreamLog&) = delete;
  StreamLog& operator=(const StreamLog&) = delete;

  std::uint64_t stream() const { return stream_; }
  std::atomic<std::uint32_t>* word() const { return word_; }

  // Around a launch: `begin` before the driver gets it, filled in by `fill(LoggedLaunch&)` while
  // the log is locked; `end` after it, with whether it took it. Between the two the record stays
  // where it is. Returns the number of the marker to write behind the launch.
  template <class Fill>
  std::uint32_t begin(std::uint64_t order, Fill&& fill) {
    const std::lock_guard lock(mutex_);
    forget_complete();
    LoggedLaunch& entry = append(order);
    fill(entry);
    return entry.marker;
  }
  void end(std::uint32_t marker, bool taken);
  // The launch of a record that is being issued; false if another process cannot do it.
  bool copy_of(std::uint32_t marker, RemoteLaunch& out);

  // Whether all launches are known to be complete; one load where there are none.
  bool idle();
  // The stream was waited for, or asked and found empty: what it had is complete, but for launches
  // that another thread is issuing just now.
  void all_complete();
  // Drops everything, as after a takeover that has made it all up.
  void clear();

  // The incomplete launches, oldest first, as they are when no thread is issuing.
  std::vector<LoggedLaunch> incomplete();

 private:
  LoggedLaunch& append(std::uint64_t order);
  void forget_complete();
  std::size_t index(std::uint64_t position) const { return position & (ring_.size() - 1); }

  const std::uint64_t stream_;
  std::atomic<std::uint32_t>* const word_;
  std::mutex mutex_;
  // A ring whose entries keep their buffers, so that a launch allocates nothing once warm.
  std::vector<LoggedLaunch> ring_{8};
  std::uint64_t head_ = 0;  // the oldest
  std::atomic<std::uint64_t> tail_{0};
  std::atomic<std::uint64_t> forgotten_{0};  // equals tail_: none
  std::uint32_t next_marker_ = 1;
  std::uint32_t issuing_ = 0;
};

class LaunchLog {
 public:
  static constexpr std::size_t kStreams = 1024;
  static constexpr std::size_t kWordStride = 64;  // bytes: words of streams do not share a line
  static constexpr std::size_t kWordBytes = kStreams * kWordStride;

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

 private:
  std::byte* words_ = nullptr;
  std::atomic<std::uint64_t> order_{0};
  std::shared_mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, StreamLog*> by_handle_;
  std::vector<std::unique_ptr<StreamLog>> all_;
  std::vector<std::atomic<std::uint32_t>*> free_words_;
  std::size_t used_words_ = 0;
};

// What a fault has left to do.
struct Frontier {
  bool recoverable = false;
  std::string reason;               // why not; names the launch
  const void* kernel = nullptr;     // of the launch that the reason is about, or of the first
  std::vector<LoggedLaunch> to_do;  // in the order of issue
  std::vector<bool> may_have_run;   // of each: replayed with the last check; else issued anew
};
// To be asked when no thread issues launches. `name_of` gives a kernel's name for reasons, and
// `why_not` why a launch is not replayable.
template <class NameOf, class WhyNot>
Frontier frontier_of(LaunchLog& log, NameOf&& name_of, WhyNot&& why_not);

namespace detail {
Frontier frontier_of(std::vector<std::vector<LoggedLaunch>> streams);
}

template <class NameOf, class WhyNot>
Frontier frontier_of(LaunchLog& log, NameOf&& name_of, WhyNot&& why_not) {
  std::vector<std::vector<LoggedLaunch>> streams;
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
