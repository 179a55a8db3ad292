// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/session_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "cli/options.h"

namespace gpurecover::cli {
namespace {

constexpr std::size_t kMaxName = 48;
constexpr int kLockAttempts = 20;

// A folder that is ours alone. /tmp is anybody's: a link, or a folder that another user made
// beforehand, is refused.
tl::expected<void, std::string> make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return failure("cannot make " + path + ": " + std::strerror(errno));
  }
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return failure("cannot read " + path + ": " + std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
    return failure(path + " is not a folder of this user");
  }
  if ((status.st_mode & 0777) != 0700 && ::chmod(path.c_str(), 0700) != 0) {
    return failure("cannot make " + path + " private: " + std::strerror(errno));
  }
  return {};
}

bool fits_a_socket(const std::string& base) {
  return base.size() + 1 + kMaxName + sizeof "/socket" <= sizeof(sockaddr_un::sun_path);
}

std::string base_folder() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR");
      runtime != nullptr && runtime[0] == '/') {
    const std::string base = std::string(runtime) + "/gpurecover";
    struct stat status {};
    if (fits_a_socket(base) && ::stat(runtime, &status) == 0 && S_ISDIR(status.st_mode) &&
        status.st_uid == ::geteuid() && ::access(runtime, W_OK | X_OK) == 0) {
      return base;
    }
  }
  return "/tmp/gpurecover-" + std::to_string(::geteuid());
}

// The lock of the session folder at `path`; -1 with errno EWOULDBLOCK if a living session has it.
// The file may be removed by its last holder between open and lock: then it is not the lock any
// more, and the caller tries again.
int take_lock(const std::string& path) {
  const std::string file = path + "/lock";
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return -1;
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    return -1;
  }
  struct stat mine {};
  struct stat there {};
  if (::fstat(fd, &mine) != 0 || ::stat(file.c_str(), &there) != 0 || mine.st_ino != there.st_ino ||
      mine.st_dev != there.st_dev) {
    ::close(fd);
    errno = ESTALE;
    return -1;
  }
  return fd;
}

void clear_folder(const std::string& path) {
  ::unlink((path + "/socket").c_str());
  ::unlink((path + "/lock").c_str());
  ::rmdir(path.c_str());
}

std::vector<std::string> folders_in(const std::string& base) {
  std::vector<std::string> names;
  if (DIR* folder = ::opendir(base.c_str())) {
    while (const dirent* entry = ::readdir(folder)) {
      if (std::string name = entry->d_name; check_session_name(name).empty()) {
        names.push_back(std::move(name));
      }
    }
    ::closedir(folder);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_alive(const std::string& path) {
  const int fd = ::open((path + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    return false;
  }
  const bool alive = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return alive;
}

// Held while a session's folder is made: what one process has just made, and not locked yet, would
// look dead to another that clears up. Who cannot have it soon goes on without: a stopped process
// that holds it must not keep programs from starting.
class MakersLock {
 public:
  explicit MakersLock(const std::string& base)
      : fd_(::open((base + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    constexpr int kAttempts = 2000;
    const timespec moment{0, 1'000'000};
    for (int attempt = 0; fd_ >= 0 && attempt < kAttempts; ++attempt) {
      if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
        return;
      }
      ::nanosleep(&moment, nullptr);
    }
  }
  ~MakersLock() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  MakersLock(const MakersLock&) = delete;
  MakersLock& operator=(const MakersLock&) = delete;

 private:
  int fd_;
};

}  // namespace

SessionFolder::SessionFolder(SessionFolder&& other) noexcept
    : name_(std::move(other.name_)),
      path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)) {}

SessionFolder& SessionFolder::operator=(SessionFolder&& other) noexcept {
  if (this != &other) {
    remove();
    name_ = std::move(other.name_);
    path_ = std::move(other.path_);
    lock_ = std::exchange(other.lock_, -1);
  }
  return *this;
}

SessionFolder::~SessionFolder() {
  remove();
}

void SessionFolder::remove() {
  if (lock_ >= 0) {
    clear_folder(path_);
    ::close(std::exchange(lock_, -1));
  }
}

tl::expected<SessionFolder, std::string> SessionFolder::create(const std::string& name) {
  const std::string base = base_folder();
  if (auto made = make_private_folder(base); !made) {
    return failure(made.error());
  }
  const MakersLock makers(base);
  for (const std::string& left : folders_in(base)) {
    const std::string path = base + "/" + left;
    if (left != name && !is_alive(path)) {
      if (const int lock = take_lock(path); lock >= 0) {
        clear_folder(path);
        ::close(lock);
      }
    }
  }
  SessionFolder folder;
  for (int attempt = 0; attempt < 100; ++attempt) {
    folder.name_ = !name.empty() ? name
                   : attempt == 0
                       ? "run-" + std::to_string(::getpid())
                       : "run-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    folder.path_ = base + "/" + folder.name_;
    if (auto made = make_private_folder(folder.path_); !made) {
      return failure(made.error());
    }
    folder.lock_ = take_lock(folder.path_);
    if (folder.lock_ >= 0) {
      ::unlink(folder.socket_path().c_str());
      return folder;
    }
    // A lock that is only being looked at (is_alive) or cleared is free again at once; one that
    // stays is a living session's.
    if (errno == EWOULDBLOCK && !name.empty() && attempt >= kLockAttempts) {
      return failure("a session named '" + name + "' is running; choose another --name");
    }
    const timespec moment{0, 1'000'000};
    ::nanosleep(&moment, nullptr);
  }
  return failure("cannot lock a session folder in " + base + ": " + std::strerror(errno));
}

std::string check_session_name(const std::string& name) {
  if (name.empty()) {
    return "a session's name must not be empty";
  }
  if (name.size() > kMaxName) {
    return "a session's name has at most " + std::to_string(kMaxName) + " characters";
  }
  const bool good = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (!good || name[0] == '.' || name[0] == '-') {
    return "a session's name is made of letters, digits, '-', '_' and '.', and begins with a "
           "letter, a digit or '_'";
  }
  return "";
}

std::vector<std::string> running_sessions() {
  const std::string base = base_folder();
  std::vector<std::string> names = folders_in(base);
  std::erase_if(names, [&](const std::string& name) { return !is_alive(base + "/" + name); });
  return names;
}

tl::expected<std::string, std::string> find_session(const std::string& name) {
  const std::vector<std::string> names = running_sessions();
  const auto socket = [](const std::string& session) {
    return base_folder() + "/" + session + "/socket";
  };
  std::string list;
  for (const std::string& running : names) {
    list += (list.empty() ? "" : ", ") + running;
  }
  if (name.empty()) {
    if (names.size() == 1) {
      return socket(names.front());
    }
    return failure(names.empty()
                       ? "no session is running; start one with `gpurecover run`"
                       : "several sessions are running; name one with --session: " + list);
  }
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return socket(name);
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  return failure("no session named '" + name + "' is running" + did_you_mean(name, candidates) +
                 (names.empty() ? "" : "; running: " + list));
}

}  // namespace gpurecover::cli
