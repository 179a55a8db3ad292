// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace gpurecover::recovery {

// What a warm standby has of a program's memory, and what it should have, while the program goes on
// allocating and freeing: the bookkeeping between the program's threads, which say what is made and
// what goes, and one worker, which hands pieces over and lets go of them. Makes no system call but
// for its own waits, and no CUDA call. All functions are thread-safe; those of the worker are for
// one thread.
//
// What it promises, whatever the order of events:
//  - a piece's handle or descriptor is read by the worker only between `made` and the return of
//    `gone`: afterwards it may be another's;
//  - what the standby has of a piece that is gone is let go of before anything else is handed over,
//    so that a piece never lies where an older one still does;
//  - `kept` names exactly the pieces that live and that the standby has.
class Upkeep {
 public:
  using Clock = std::chrono::steady_clock;

  struct Piece {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    bool host = false;         // pinned host memory, else device memory
    int device = 0;            // of device memory
    std::uint64_t handle = 0;  // of device memory
    std::uint32_t flags = 0;   // of host memory: of cuMemHostRegister
    int fd = -1;               // of host memory: its file, the program's to close
  };

  struct Task {
    enum class What : std::uint8_t {
      kNothing,   // until `until`, or until `wait` says that something has changed
      kHandOver,  // begins to read the piece: `read` is due
      kLetGo,     // `let_go_of` is due
      kEnd,       // paused or closed: there will be nothing more
    };
    What what = What::kNothing;
    std::uint64_t serial = 0;
    Piece piece;
    Clock::time_point until = Clock::time_point::max();
  };

  // A piece is handed over once it is that old: what lives shorter costs nothing.
  explicit Upkeep(std::chrono::milliseconds settle) : settle_(settle) {}
  Upkeep(const Upkeep&) = delete;
  Upkeep& operator=(const Upkeep&) = delete;

  // --- the program's threads ---
  // A piece has been made. One that is known already stays what it is.
  void made(const Piece& piece);
  // A piece is about to be unmade. Waits while the worker reads it, some 1 ms at most.
  void gone(std::uint64_t address);
  // Calls `list` (which may take locks that are not held in any other call of this class) for the
  // pieces that live now, and counts them as made. A piece that goes meanwhile is not missed.
  template <class List>
  void adopt(List&& list) {
    const std::lock_guard lock(mutex_);
    for (const Piece& piece : list()) {
      add(piece);
    }
  }
  // Waits until the standby has nothing any more that is gone. False if that took too long.
  bool let_go(std::chrono::milliseconds patience);
  // Bytes of a device that are gone for the program and that the standby still has.
  std::uint64_t outstanding(int device) const;
  // Something else has changed that the worker looks after: see `touched`.
  void touch();

  // Around a fork: the worker has no descriptor of device memory at hand then. Waits for at most
  // `patience`.
  void begin_fork(std::chrono::milliseconds patience);
  void end_fork();

  // --- the worker ---
  Task next();
  // The piece has been read: false if it is gone meanwhile, and is to be dropped. Else it counts as
  // the standby's until `handed_over` says otherwise.
  bool read(std::uint64_t serial);
  // What came of a hand-over, dropped ones too. One that failed is not tried again.
  void handed_over(std::uint64_t serial, bool has_it);
  void let_go_of(std::uint64_t serial);
  // Until something has changed, or a time.
  void wait(Clock::time_point until);
  // Whether `touch` was called, so long ago that things may have settled; resets it. Else the time
  // when that will be so.
  bool touched(Clock::time_point& due);

  // --- at the end ---
  // The worker is to do nothing more, and gets kEnd from now on. Returns at once.
  void pause();
  // Whether the worker reads nothing any more; waits for that.
  bool wait_for_reader(std::chrono::milliseconds patience);
  // There is no standby any more: nothing is kept, nobody waits.
  void close();
  // Whether the worker still does anything.
  bool working() const {
    const std::lock_guard lock(mutex_);
    return !ended();
  }
  // After `pause`, when the worker is through: what it has handed over and still lives, and what it
  // has not let go of yet.
  std::vector<Piece> kept() const;
  std::vector<Piece> stale() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Entry {
    Piece piece;
    std::uint64_t serial = 0;
    Clock::time_point since;
  };
  void add(const Piece& piece);  // mutex_ is held
  bool ended() const { return paused_ || closed_; }

  const std::chrono::milliseconds settle_;
  mutable std::mutex mutex_;
  std::condition_variable worker_;   // something to do
  std::condition_variable program_;  // something done
  std::uint64_t next_serial_ = 1;
  std::map<std::uint64_t, Entry> alive_;        // by address
  std::map<std::uint64_t, std::uint64_t> due_;  // serial -> address: to be handed over
  std::map<std::uint64_t, Piece> held_;         // by serial: what the standby has
  std::set<std::uint64_t> stale_;               // serials in held_ that are gone
  std::uint64_t reading_ = 0;                   // serial
  std::uint64_t in_hand_ = 0;                   // serial, from kHandOver to `handed_over`
  std::uint64_t in_hand_address_ = 0;
  bool in_hand_host_ = false;
  int forks_ = 0;
  std::uint64_t changes_ = 0;  // counts what `wait` waits for
  std::uint64_t seen_ = 0;
  bool touched_ = false;
  Clock::time_point touched_since_;
  bool paused_ = false;
  bool closed_ = false;
};

}  // namespace gpurecover::recovery
