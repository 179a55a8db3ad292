// SPDX-License-Identifier: Apache-2.0
//
// What `gpurecover analyze` has found before the run, for images that are met in it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "idempotency/offline/side_file.h"

namespace gpurecover::agent {

// Reads side files when they are first of use: those of the session's folder (--analysis-dir), that
// of the executable, and that beside the file which an image came from. Whatever is wrong with one
// is told once, and then it is as if it were not there. Not thread-safe: ImageStore's lock is
// around it. Throws std::bad_alloc only.
class SideFiles {
 public:
  using Tell = std::function<void(const std::string&)>;

  // `folder` may be empty. Before the first find.
  void configure(std::string folder, std::string executable, Tell tell);
  const std::string& executable() const { return executable_; }

  struct Found {
    std::shared_ptr<const idempotency::StoredImage> image;  // null: none
    std::string path;                                       // of the side file
  };
  // What is stored of the PTX text or cubin `data`; `origin` is the file that it came from, or
  // empty. The content is hashed only if an image of the same size is known.
  Found find(image::EntryKind kind, std::span<const std::byte> data, const std::string& origin);

  void tell(const std::string& text) const {
    if (tell_)
      tell_(text);
  }

 private:
  // `beside`: the file beside which it lies, whose owner may have written it too; null: one that
  // the user has pointed to.
  void read(const std::string& path, const std::string* beside);

  std::string folder_, executable_;
  Tell tell_;
  bool folder_read_ = false;
  std::set<std::string> seen_;  // paths
  std::vector<Found> known_;
};

}  // namespace gpurecover::agent
