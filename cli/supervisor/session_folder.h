// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "cli/result.h"

namespace gpurecover::cli {

// A session's folder, owner only: <base>/NAME/ with `socket` and `lock`, where <base> is
// $XDG_RUNTIME_DIR/gpurecover or /tmp/gpurecover-UID. The lock is held while the session lives, so
// a folder whose lock can be had was left behind by a supervisor that was killed, and is cleared.
class SessionFolder {
 public:
  SessionFolder() = default;
  SessionFolder(SessionFolder&& other) noexcept;
  SessionFolder& operator=(SessionFolder&& other) noexcept;
  ~SessionFolder();  // removes the folder

  // Takes `name`, or makes one up if it is empty. Also clears what is left of dead sessions.
  static tl::expected<SessionFolder, std::string> create(const std::string& name);

  bool valid() const { return lock_ >= 0; }
  const std::string& name() const { return name_; }
  std::string socket_path() const { return path_ + "/socket"; }

 private:
  void remove();
  std::string name_;
  std::string path_;
  int lock_ = -1;
};

// Why `name` cannot be a session's name; empty if it can.
std::string check_session_name(const std::string& name);

// The names of the running sessions of this user, sorted.
std::vector<std::string> running_sessions();

// The socket of a running session. Without a name, of the only one there is. The error names the
// sessions that there are.
tl::expected<std::string, std::string> find_session(const std::string& name);

}  // namespace gpurecover::cli
