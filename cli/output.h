// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cupti/protocol/messages.h"

namespace gpurecover::cli {

// What gpurecover says to its user: lines on stderr with the prefix "gpurecover: ", each by one
// write, so that they do not mix with the app's. Errors of writing are ignored: a closed stderr is
// no reason to disturb the app.
class Output {
 public:
  // 0: warnings and errors only (-q); 1: the default; 2: details too (-v).
  explicit Output(int verbosity = 1) : verbosity_(verbosity) {}

  void error(std::string_view text) const { write(text); }
  void warning(std::string_view text) const { write(text); }
  void info(std::string_view text) const;
  void detail(std::string_view text) const;
  void say(protocol::Severity severity, std::string_view text) const;
  int verbosity() const { return verbosity_; }

 private:
  static void write(std::string_view text);
  int verbosity_;
};

// Prints an error and gives the exit status for bad usage and for our own errors.
int fail(std::string_view text);

// Writes to stdout, whole. False if it could not.
bool print(std::string_view text);

// The word as a POSIX shell reads it back; quoted only where needed.
std::string shell_quote(std::string_view word);
std::string shell_join(const std::vector<std::string>& words);

}  // namespace gpurecover::cli
