// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace gpurecover::cli {

// The signal state that gpurecover was started with, which the app must find again: a mask, and
// whether SIGCHLD was ignored (the one disposition that gpurecover has to change for itself).
struct InheritedSignals {
  sigset_t mask{};
  bool child_ignored = false;
};
// Blocks every signal that can be, so that they arrive by signalfd only.
InheritedSignals take_over_signals();

struct SpawnError {
  int error = 0;      // errno
  bool exec = false;  // of the exec, not of the fork
};

// Starts the app in our process group, with our stdin, stdout and stderr, `environment` set on top
// of ours, and the inherited signal state. Returns when the exec has succeeded or failed.
tl::expected<pid_t, SpawnError> spawn(const std::vector<std::string>& command,
                                      const std::map<std::string, std::string>& environment,
                                      const InheritedSignals& signals);

// Starts a standby: `fd` becomes its descriptor 3, `environment` is set on top of ours, an empty
// value removes the variable. It is in a session of its own, so that neither the terminal nor
// whoever signals our group reaches it.
tl::expected<pid_t, std::string> spawn_standby(
    const std::string& program, int fd, const std::map<std::string, std::string>& environment);

// Tells a signal that was sent to our whole process group (a shell's `kill %1`, a service manager
// that ends every process of a unit) from one that was sent to us alone: only the latter must be
// forwarded, or the app would get it twice. The kernel does not say which it was; so a second
// process of ours sits in the group and reports the signals that reach it.
class GroupWitness {
 public:
  GroupWitness();
  ~GroupWitness();
  GroupWitness(const GroupWitness&) = delete;
  GroupWitness& operator=(const GroupWitness&) = delete;

  // Whether the witness got the same signal from the same sender; waits some milliseconds for it.
  bool saw(int signal, pid_t sender);

 private:
  pid_t pid_ = -1;
  int reports_ = -1;   // we read
  int lifeline_ = -1;  // the witness ends when this closes
  struct Report {
    int signal;
    pid_t sender;
  };
  std::vector<Report> seen_;
};

// Ends this process by `signal`, as the app ended, without leaving a second core file. Returns only
// if the signal does not end processes.
void die_by_signal(int signal);

// Stops this process as the app was stopped, and returns when it is continued.
void stop_by_signal(int signal);

}  // namespace gpurecover::cli
