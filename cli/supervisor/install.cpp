// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/install.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cupti/protocol/messages.h"

namespace gpurecover::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kCuptiFile[] = "libcupti.so.13";
constexpr char kSoftDriver[] = "libcuda.so.1";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

Install find_install() {
  Install install;
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    return install;
  }
  const fs::path bin = executable.parent_path();
  // The installed place first (GNUInstallDirs may say lib64 or lib/x86_64-linux-gnu), then the
  // build tree's.
  for (const char* relative : {GPURECOVER_LIBDIR_FROM_BIN, "../lib/gpurecover"}) {
    const fs::path libdir = (bin / relative).lexically_normal();
    if (install.expected.empty()) {
      install.expected = libdir.string();
    }
    if (!fs::is_directory(libdir, error)) {
      continue;
    }
    install.libdir = libdir.string();
    install.expected = libdir.string();
    if (is_file(libdir / protocol::kAgentFile)) {
      install.agent = (libdir / protocol::kAgentFile).string();
    }
    if (is_file(libdir / protocol::kStandbyFile)) {
      install.standby = (libdir / protocol::kStandbyFile).string();
    }
    if (is_file(libdir / "soft" / kSoftDriver)) {
      install.soft = (libdir / "soft").string();
    }
    break;
  }
  return install;
}

std::string find_cupti_file() {
  std::vector<fs::path> toolkits;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      toolkits.emplace_back(value);
    }
  }
  toolkits.emplace_back("/usr/local/cuda");
  std::vector<fs::path> versions;
  std::error_code error;
  for (fs::directory_iterator it("/usr/local", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with("cuda-13")) {
      versions.push_back(it->path());
    }
  }
  std::sort(versions.rbegin(), versions.rend());
  toolkits.insert(toolkits.end(), versions.begin(), versions.end());
  toolkits.emplace_back("/opt/cuda");
  for (const fs::path& toolkit : toolkits) {
    for (const char* folder : {"extras/CUPTI/lib64", "targets/x86_64-linux/lib", "lib64", "lib"}) {
      if (is_file(toolkit / folder / kCuptiFile)) {
        return (toolkit / folder / kCuptiFile).string();
      }
    }
  }
  return "";
}

std::string prepend_path(const std::string& folder, const char* current) {
  return current == nullptr || *current == '\0' ? folder : folder + ":" + current;
}

}  // namespace gpurecover::cli
