// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

extern char** environ;

namespace gpurecover::cli {
namespace {

// A group signal reaches all members within microseconds; a loaded machine takes longer to run the
// witness. Only signals sent by hand wait for this.
constexpr int kWitnessWaitMs = 50;

sigset_t blockable() {
  sigset_t set;
  ::sigfillset(&set);
  // A fault of our own must end us.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    ::sigdelset(&set, signal);
  }
  return set;
}

// Our environment with `changes` on top; an empty value takes the variable out.
std::vector<std::string> variables_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) {
      out.emplace_back(text);
    }
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) {
      out.push_back(name + "=" + value);
    }
  }
  return out;
}

}  // namespace

InheritedSignals take_over_signals() {
  InheritedSignals inherited;
  struct sigaction old {};
  ::sigaction(SIGCHLD, nullptr, &old);
  inherited.child_ignored = old.sa_handler == SIG_IGN;
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &standard, nullptr);
  const sigset_t all = blockable();
  ::sigprocmask(SIG_BLOCK, &all, &inherited.mask);
  return inherited;
}

tl::expected<pid_t, SpawnError> spawn(const std::vector<std::string>& command,
                                      const std::map<std::string, std::string>& environment,
                                      const InheritedSignals& signals) {
  // Everything that allocates is done before the fork.
  std::vector<std::string> variables = variables_with(environment);
  for (const auto& [name, value] : environment) {
    if (value.empty()) {
      variables.push_back(name + "=");
    }
  }
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& variable : variables) {
    envp.push_back(variable.data());
  }
  envp.push_back(nullptr);

  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) {
    return tl::unexpected(SpawnError{errno, false});
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (signals.child_ignored) {
      ::signal(SIGCHLD, SIG_IGN);
    }
    ::sigprocmask(SIG_SETMASK, &signals.mask, nullptr);
    ::execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(report[1], &error, sizeof error);
    ::_exit(127);
  }
  const int fork_error = errno;
  ::close(report[1]);
  if (pid < 0) {
    ::close(report[0]);
    return tl::unexpected(SpawnError{fork_error, false});
  }
  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(report[0], &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  ::close(report[0]);
  if (n == static_cast<ssize_t>(sizeof error)) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return tl::unexpected(SpawnError{error, true});
  }
  return pid;
}

tl::expected<pid_t, std::string> spawn_standby(
    const std::string& program, int fd, const std::map<std::string, std::string>& environment) {
  std::vector<std::string> variables = variables_with(environment);
  std::vector<char*> envp;
  for (std::string& variable : variables) {
    envp.push_back(variable.data());
  }
  envp.push_back(nullptr);
  std::string name = program;
  char* argv[] = {name.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, fd, 3);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, envp.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return tl::unexpected(program + ": " + std::strerror(error));
  }
  return pid;
}

GroupWitness::GroupWitness() {
  int reports[2];
  int lifeline[2];
  if (::pipe2(reports, O_CLOEXEC | O_NONBLOCK) != 0) {
    return;
  }
  if (::pipe2(lifeline, O_CLOEXEC) != 0) {
    ::close(reports[0]);
    ::close(reports[1]);
    return;
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    // Nothing of the app's or of the session's may stay open because of the witness.
    const int kept[2] = {std::min(reports[1], lifeline[0]), std::max(reports[1], lifeline[0])};
    if (kept[0] > 0) {
      ::close_range(0, static_cast<unsigned>(kept[0] - 1), 0);
    }
    if (kept[1] > kept[0] + 1) {
      ::close_range(static_cast<unsigned>(kept[0] + 1), static_cast<unsigned>(kept[1] - 1), 0);
    }
    ::close_range(static_cast<unsigned>(kept[1] + 1), ~0U, 0);
    ::prctl(PR_SET_NAME, "gpurecover-sig");
    const sigset_t all = blockable();
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    const int signals = ::signalfd(-1, &all, SFD_CLOEXEC);
    for (;;) {
      pollfd entries[2] = {{signals, POLLIN, 0}, {lifeline[0], POLLIN, 0}};
      if (::poll(entries, 2, -1) < 0 && errno != EINTR) {
        ::_exit(0);
      }
      if (entries[1].revents != 0) {
        ::_exit(0);
      }
      signalfd_siginfo info{};
      if ((entries[0].revents & POLLIN) != 0 &&
          ::read(signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
        const Report report{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
        [[maybe_unused]] const ssize_t n = ::write(reports[1], &report, sizeof report);
      }
    }
  }
  ::close(reports[1]);
  ::close(lifeline[0]);
  if (pid_ < 0) {
    ::close(reports[0]);
    ::close(lifeline[1]);
    return;
  }
  reports_ = reports[0];
  lifeline_ = lifeline[1];
}

GroupWitness::~GroupWitness() {
  if (pid_ > 0) {
    ::close(lifeline_);
    ::close(reports_);
    int status = 0;
    // It may be stopped (SIGSTOP to the group reaches it too).
    ::kill(pid_, SIGCONT);
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
}

bool GroupWitness::saw(int signal, pid_t sender) {
  if (reports_ < 0) {
    return false;
  }
  const auto take = [&] {
    const auto found = std::find_if(seen_.begin(), seen_.end(), [&](const Report& report) {
      return report.signal == signal && report.sender == sender;
    });
    if (found == seen_.end()) {
      return false;
    }
    seen_.erase(found);
    return true;
  };
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto milliseconds = [](const timespec& time) {
    return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  const auto deadline = milliseconds(now) + kWitnessWaitMs;
  for (;;) {
    Report report{};
    while (::read(reports_, &report, sizeof report) == static_cast<ssize_t>(sizeof report)) {
      if (seen_.size() >= 64) {
        seen_.erase(seen_.begin());
      }
      seen_.push_back(report);
    }
    if (take()) {
      return true;
    }
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const auto left = deadline - milliseconds(now);
    pollfd entry{reports_, POLLIN, 0};
    if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) == 0 ||
        (entry.revents & (POLLHUP | POLLERR)) != 0) {
      return false;
    }
  }
}

void die_by_signal(int signal) {
  // The app has left its core file, if any; ours would overwrite it.
  ::prctl(PR_SET_DUMPABLE, 0);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(signal, SIG_DFL);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::kill(::getpid(), signal);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
}

void stop_by_signal(int signal) {
  // Continued already, between the app's stop and our learning of it: stopping now would leave us
  // stopped beside a running app.
  sigset_t waiting;
  ::sigpending(&waiting);
  if (::sigismember(&waiting, SIGCONT) == 1) {
    return;
  }
  if (signal == SIGSTOP) {
    ::raise(SIGSTOP);
    return;
  }
  struct sigaction standard {};
  struct sigaction old {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, &old);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
  // Stopped here, until SIGCONT.
  ::sigprocmask(SIG_BLOCK, &only, nullptr);
  ::sigaction(signal, &old, nullptr);
}

}  // namespace gpurecover::cli
