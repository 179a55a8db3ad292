// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <unistd.h>

#include <cerrno>

#include "cli/exit_codes.h"

namespace gpurecover::cli {
namespace {

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

void Output::write(std::string_view text) {
  std::string lines;
  while (!text.empty() && text.back() == '\n') {
    text.remove_suffix(1);
  }
  for (;;) {
    const std::size_t end = text.find('\n');
    lines += "gpurecover: ";
    for (const char c : text.substr(0, end)) {
      // Kernel names and reasons come from the app: they must not drive the terminal.
      lines += (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f ? '?' : c;
    }
    lines += '\n';
    if (end == std::string_view::npos) {
      break;
    }
    text.remove_prefix(end + 1);
  }
  write_all(STDERR_FILENO, lines);
}

void Output::info(std::string_view text) const {
  if (verbosity_ >= 1) {
    write(text);
  }
}

void Output::detail(std::string_view text) const {
  if (verbosity_ >= 2) {
    write(text);
  }
}

void Output::say(protocol::Severity severity, std::string_view text) const {
  if (severity == protocol::Severity::kInfo) {
    info(text);
  } else {
    write(text);
  }
}

int fail(std::string_view text) {
  Output().error(text);
  return kOurError;
}

bool print(std::string_view text) {
  return write_all(STDOUT_FILENO, text);
}

std::string shell_quote(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string shell_join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : " ") + shell_quote(word);
  }
  return out;
}

}  // namespace gpurecover::cli
