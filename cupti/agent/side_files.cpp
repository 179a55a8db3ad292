// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/side_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gpurecover::agent {
namespace {

// A program has few libraries with kernels.
constexpr std::size_t kMaxFilesOfFolder = 4096;
constexpr std::uint64_t kMaxBytesOfFolder = 1ull << 30;

// As the program that wrote the side file has resolved it.
std::string real_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  std::string out = resolved != nullptr ? resolved : path;
  std::free(resolved);
  return out;
}

}  // namespace

void SideFiles::configure(std::string folder, std::string executable, Tell tell) {
  folder_ = std::move(folder);
  executable_ = std::move(executable);
  tell_ = std::move(tell);
}

void SideFiles::read(const std::string& path, const std::string* beside) {
  if (!seen_.insert(path).second)
    return;
  const auto ignored = [&](const std::string& why) {
    tell("side file " + path + " is ignored: " + why);
  };
  // Not blocking: it may be a pipe.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno != ENOENT && errno != ENOTDIR)
      ignored(std::strerror(errno));
    return;
  }
  struct Close {
    const int fd;
    ~Close() { ::close(fd); }
  } const close{fd};
  struct stat status {
  }, origin{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    return ignored("it is no regular file");
  // What is said here is believed, as a rule file is: it must not be for others to say.
  if ((status.st_mode & S_IWOTH) != 0)
    return ignored("everybody may write it; `chmod o-w` it");
  if (beside != nullptr && status.st_uid != 0 && status.st_uid != ::geteuid() &&
      (::stat(beside->c_str(), &origin) != 0 || status.st_uid != origin.st_uid)) {
    return ignored("it belongs to somebody else than the file that it lies beside");
  }
  if (static_cast<std::uint64_t>(status.st_size) > idempotency::kMaxSideFileBytes)
    return ignored("it is larger than 256 MiB");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd, text.data() + done, text.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (n == 0 || errno != EINTR)
      return ignored("it could not be read");
  }
  auto file = idempotency::read_side_file(text);
  if (!file)
    return ignored("it " + file.error());
  for (idempotency::StoredImage& image : file->images) {
    if (!image.kernels.empty()) {
      known_.push_back({std::make_shared<const idempotency::StoredImage>(std::move(image)), path});
    }
  }
}

SideFiles::Found SideFiles::find(image::EntryKind kind, std::span<const std::byte> data,
                                 const std::string& origin) {
  if (!folder_.empty() && !folder_read_) {
    folder_read_ = true;
    if (DIR* folder = ::opendir(folder_.c_str())) {
      std::vector<std::string> names;
      while (const dirent* entry = ::readdir(folder)) {
        if (std::string_view(entry->d_name).ends_with(idempotency::kSideFileSuffix))
          names.emplace_back(entry->d_name);
      }
      ::closedir(folder);
      std::sort(names.begin(), names.end());
      std::uint64_t bytes = 0;
      for (std::size_t k = 0; k < names.size(); ++k) {
        const std::string path = folder_ + "/" + names[k];
        struct stat status {};
        if (::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode))
          bytes += static_cast<std::uint64_t>(status.st_size);
        if (k == kMaxFilesOfFolder || bytes > kMaxBytesOfFolder) {
          tell("of the side files in " + folder_ + " only " + std::to_string(k) +
               " are read: 4,096 and 1 GiB are the limit");
          break;
        }
        read(path, nullptr);
      }
    } else {
      tell("the folder of side files " + folder_ + " cannot be read: " + std::strerror(errno));
    }
  }
  for (const std::string& file : {executable_, origin}) {
    if (!file.empty()) {
      const std::string real = real_path(file);
      read(real + std::string(idempotency::kSideFileSuffix), &real);
    }
  }
  std::string hash;
  for (const Found& known : known_) {
    if (known.image->kind != kind || known.image->bytes != data.size())
      continue;
    if (hash.empty())
      hash = idempotency::content_hash(data);
    if (known.image->hash == hash)
      return known;
  }
  return {};
}

}  // namespace gpurecover::agent
