// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "cli/result.h"

namespace gpurecover::cli {

// A report file that is only ever seen whole: written beside its place, then renamed onto it. A
// place that is no regular file (a pipe, /dev/stderr) is written to directly and never removed.
class ReportFile {
 public:
  ReportFile() = default;
  // Removes an old report and makes sure that a new one can be written. A symbolic link is followed
  // now, so that its target is what gets replaced.
  static tl::expected<ReportFile, std::string> prepare(const std::string& path);

  tl::expected<void, std::string> write(std::string_view content) const;
  const std::string& path() const { return path_; }
  bool valid() const { return !path_.empty(); }

 private:
  std::string path_;    // as the user wrote it
  std::string target_;  // where it is written
  bool in_place_ = false;
};

// The whole content; the error says why not.
tl::expected<std::string, std::string> read_file(const std::string& path);

}  // namespace gpurecover::cli
