// SPDX-License-Identifier: Apache-2.0
#include "cli/report/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace gpurecover::cli {
namespace {

// A rule file or a report is small; a mistaken argument (a core file, a device) is not.
constexpr std::size_t kMaxRead = 256U << 20;

std::string reason() {
  return std::strerror(errno);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

tl::expected<ReportFile, std::string> ReportFile::prepare(const std::string& path) {
  ReportFile file;
  file.path_ = path;
  file.target_ = path;
  if (path.empty()) {
    return failure("the file's name is empty");
  }
  if (char* resolved = ::realpath(path.c_str(), nullptr)) {
    file.target_ = resolved;
    std::free(resolved);
  }
  struct stat status {};
  if (::stat(file.target_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      return failure(path + " is a folder");
    }
    file.in_place_ = !S_ISREG(status.st_mode);
    if (!file.in_place_ && ::unlink(file.target_.c_str()) != 0) {
      return failure("cannot remove the old " + path + ": " + reason());
    }
  }
  if (!file.in_place_ && ::access(folder_of(file.target_).c_str(), W_OK | X_OK) != 0) {
    return failure("cannot write " + path + ": " + reason());
  }
  return file;
}

tl::expected<void, std::string> ReportFile::write(std::string_view content) const {
  const std::string failed = "cannot write " + path_ + ": ";
  if (in_place_) {
    const int fd = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
      return failure(failed + reason());
    }
    const bool good = write_all(fd, content);
    const std::string why = reason();
    ::close(fd);
    if (!good) {
      return failure(failed + why);
    }
    return {};
  }
  std::string temporary = target_ + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) {
    return failure(failed + reason());
  }
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool good = write_all(fd, content) && ::fchmod(fd, 0666 & ~mask) == 0;
  const std::string why = reason();
  if (::close(fd) != 0 || !good || ::rename(temporary.c_str(), target_.c_str()) != 0) {
    const std::string last = good ? reason() : why;
    ::unlink(temporary.c_str());
    return failure(failed + last);
  }
  return {};
}

tl::expected<std::string, std::string> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return failure(reason());
  }
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n > 0) {
      content.append(buffer, static_cast<std::size_t>(n));
      if (content.size() > kMaxRead) {
        ::close(fd);
        return failure("larger than 256 MiB");
      }
    } else if (n == 0) {
      ::close(fd);
      return content;
    } else if (errno != EINTR) {
      const std::string why = reason();
      ::close(fd);
      return failure(why);
    }
  }
}

}  // namespace gpurecover::cli
