// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cupti/protocol/messages.h"

namespace gpurecover::protocol {

// Moves a descriptor to a high number where the limit allows, never that of a standard stream, and
// returns the new one (closed on exec); -1, and the old one closed, if there is no room. A
// program's own descriptors then get the numbers that they get alone.
int move_out_of_the_way(int fd);

// A received message. `fd` is an owned descriptor that came with it, or -1.
struct Frame {
  MessageType type{};
  std::vector<std::byte> body;
  int fd = -1;
};

// One end of a session connection: framed messages over a connected Unix stream socket. It owns
// the descriptor. Not thread-safe: the agent guards it by one mutex, the supervisor has one thread.
// No call raises SIGPIPE and none waits longer than it is told to.
//
// The agent's end lives among the app's descriptors, and a program may close them all and open its
// own under the same numbers. So before each use the number is checked to be the socket still; one
// that is not is forgotten, neither written to nor closed.
class Channel {
 public:
  Channel() = default;
  explicit Channel(int fd);
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  // Connects to the socket at `path`; an invalid channel if nobody listens there. The descriptor is
  // out of the way.
  static Channel connect(const std::string& path);

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();

  // Sends one message whole, with a descriptor if `fd` >= 0 (it stays the caller's). False, and the
  // channel closed, if the peer is gone or did not take it within `timeout`.
  bool send(MessageType type, const std::vector<std::byte>& body, std::chrono::milliseconds timeout,
            int fd = -1);

  enum class Status : std::uint8_t { kFrame, kNothing, kClosed };
  // Takes one message, waiting at most `timeout` for the whole of it; negative: without end. The
  // frame's descriptor is the caller's. kClosed (and the channel
  // closed) on end of stream or on bytes that are no message.
  Status receive(Frame& frame, std::chrono::milliseconds timeout);

 private:
  // Whether fd_ is still the socket; if not, it is forgotten.
  bool still_ours();

  int fd_ = -1;
  // Which socket it is: device and inode of the socket file system, not used twice.
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
  std::vector<std::byte> pending_;
  std::vector<int> pending_fds_;
};

}  // namespace gpurecover::protocol
