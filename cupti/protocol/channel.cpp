// SPDX-License-Identifier: Apache-2.0
#include "cupti/protocol/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpurecover::protocol {
namespace {

using Clock = std::chrono::steady_clock;

struct Header {
  std::uint32_t magic;
  std::uint16_t type;
  std::uint16_t descriptors;  // 0 or 1
  std::uint32_t size;
};
// More descriptors than messages that are waiting to be read can have.
constexpr std::size_t kMaxPendingFds = 64;
constexpr std::uint32_t kMagic = 0x31525047;
// A run summary of tens of thousands of kernels fits; anything larger is not ours.
constexpr std::uint32_t kMaxBody = 64U << 20;

int milliseconds_left(Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) {
    return -1;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return left.count() > 0 ? static_cast<int>(left.count()) : 0;
}

bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, milliseconds_left(deadline));
    if (ready > 0) {
      return true;
    }
    if (ready == 0 || errno != EINTR) {
      return false;
    }
  }
}

}  // namespace

int move_out_of_the_way(int fd) {
  // Not at the very limit: the kernel's table grows with the highest number.
  constexpr rlim_t kHigh = 1000;
  rlimit limit{};
  const rlim_t end = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
  const auto wanted = static_cast<int>(std::min(kHigh, end > 0 ? end - 1 : 0));
  int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, std::max(wanted, STDERR_FILENO + 1));
  if (moved < 0) {
    if (fd > STDERR_FILENO) {
      return fd;
    }
    moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  }
  ::close(fd);
  return moved;
}

Channel::Channel(int fd) : fd_(fd) {
  struct stat status {};
  if (fd >= 0 && ::fstat(fd, &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
}

bool Channel::still_ours() {
  struct stat status {};
  if (fd_ >= 0 && ::fstat(fd_, &status) == 0 && status.st_dev == device_ &&
      status.st_ino == inode_) {
    return true;
  }
  fd_ = -1;
  return false;
}

Channel::Channel(Channel&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      device_(other.device_),
      inode_(other.inode_),
      pending_(std::move(other.pending_)),
      pending_fds_(std::move(other.pending_fds_)) {
  other.pending_fds_.clear();
}

Channel& Channel::operator=(Channel&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    device_ = other.device_;
    inode_ = other.inode_;
    pending_ = std::move(other.pending_);
    pending_fds_ = std::exchange(other.pending_fds_, {});
  }
  return *this;
}

Channel::~Channel() {
  close();
}

void Channel::close() {
  if (still_ours()) {
    ::close(fd_);
    fd_ = -1;
  }
  for (const int fd : pending_fds_) {
    ::close(fd);
  }
  pending_fds_.clear();
  pending_.clear();
}

Channel Channel::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Channel();
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    fd = move_out_of_the_way(fd);
  }
  if (fd < 0) {
    return Channel();
  }
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return Channel();
  }
  return Channel(fd);
}

bool Channel::send(MessageType type, const std::vector<std::byte>& body,
                   std::chrono::milliseconds timeout, int fd) {
  if (!still_ours() || body.size() > kMaxBody) {
    return false;
  }
  const auto deadline = Clock::now() + timeout;
  const Header header{kMagic, static_cast<std::uint16_t>(type), std::uint16_t{fd >= 0},
                      static_cast<std::uint32_t>(body.size())};
  std::vector<std::byte> bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!body.empty()) {
    std::memcpy(bytes.data() + sizeof header, body.data(), body.size());
  }
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    iovec part{bytes.data() + sent, bytes.size() - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd >= 0 && sent == 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* item = CMSG_FIRSTHDR(&message);
      item->cmsg_level = SOL_SOCKET;
      item->cmsg_type = SCM_RIGHTS;
      item->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
    }
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd_, POLLOUT, deadline)) {
        close();
        return false;
      }
    } else if (errno != EINTR) {
      close();
      return false;
    }
  }
  return true;
}

Channel::Status Channel::receive(Frame& frame, std::chrono::milliseconds timeout) {
  if (!still_ours()) {
    return Status::kClosed;
  }
  const auto deadline = timeout.count() < 0 ? Clock::time_point::max() : Clock::now() + timeout;
  for (;;) {
    if (pending_.size() >= sizeof(Header)) {
      Header header{};
      std::memcpy(&header, pending_.data(), sizeof header);
      if (header.magic != kMagic || header.size > kMaxBody || header.descriptors > 1) {
        close();
        return Status::kClosed;
      }
      const std::size_t whole = sizeof header + header.size;
      if (pending_.size() >= whole) {
        frame.type = static_cast<MessageType>(header.type);
        frame.body.assign(pending_.begin() + sizeof header,
                          pending_.begin() + static_cast<std::ptrdiff_t>(whole));
        frame.fd = -1;
        if (header.descriptors != 0 && !pending_fds_.empty()) {
          frame.fd = pending_fds_.front();
          pending_fds_.erase(pending_fds_.begin());
        }
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(whole));
        return Status::kFrame;
      }
    }
    std::byte buffer[16384];
    iovec part{buffer, sizeof buffer};
    msghdr message{};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0) {
      for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
           item = CMSG_NXTHDR(&message, item)) {
        if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(item), sizeof fd);
          pending_fds_.push_back(fd);
        }
      }
      pending_.insert(pending_.end(), buffer, buffer + n);
      if (pending_fds_.size() > kMaxPendingFds) {
        close();
        return Status::kClosed;
      }
    } else if (n == 0) {
      close();
      return Status::kClosed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd_, POLLIN, deadline)) {
        return Status::kNothing;
      }
    } else if (errno != EINTR) {
      close();
      return Status::kClosed;
    }
  }
}

}  // namespace gpurecover::protocol
