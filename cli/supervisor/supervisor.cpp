// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cli/exit_codes.h"
#include "cli/fault_options.h"
#include "cli/output.h"
#include "cli/report/events.h"
#include "cli/report/file.h"
#include "cli/report/renderer.h"
#include "cli/report/tally.h"
#include "cli/supervisor/child.h"
#include "cli/supervisor/device_probe.h"
#include "cli/supervisor/install.h"
#include "cli/supervisor/session_folder.h"
#include "cli/supervisor/session_server.h"
#include "cli/version.h"
#include "cupti/protocol/codec.h"

namespace gpurecover::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProbeTimeout{30};

// The device that the app will find.
struct Device {
  std::string kind;  // cuda, soft, none
  std::string cupti;
};

// A descriptor number that the app was started without must not become one of our files, where the
// app's or our own output would end up.
class StandardStreams {
 public:
  static void guard() {
    for (int fd = 0; fd <= 2; ++fd) {
      if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
        (void)::open("/dev/null", (fd == 0 ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
      }
    }
  }
};

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options), output_(options.verbosity), started_(std::chrono::system_clock::now()) {}

  int run();

 private:
  int give_up(const std::string& why) const { return fail(why); }
  bool choose_device(std::string& error);
  bool open_files(std::string& error);
  int start_session();
  std::map<std::string, std::string> environment() const;
  std::string repeat(const std::string& fault_options) const;
  // The first terminating signal that came before there was an app to get it, or 0.
  int early_signal() const;
  int spawn_error(const SpawnError& error);
  void watch();
  void take_signal(const signalfd_siginfo& info);
  void send(int signal, const signalfd_siginfo* info);
  // Reaps and follows the app's state; false once it has ended.
  bool follow_child();
  tl::expected<std::int32_t, std::string> start_standby(int fd, std::int64_t app);
  void reap_standbys();
  // Standbys end with the app, by themselves: only a moment has to be waited for its own.
  void see_standbys_off();
  RunSummary summary(bool ended) const;
  int finish(int code, int signal, const char* origin);

  const RunOptions& options_;
  Output output_;
  std::chrono::system_clock::time_point started_;
  Clock::time_point start_ = Clock::now();
  InheritedSignals inherited_;
  int signals_ = -1;
  Install install_;
  Device device_;
  ReportFile report_;
  EventLog events_;
  Tally tally_;
  SessionFolder folder_;
  std::unique_ptr<SessionServer> server_;
  std::unique_ptr<GroupWitness> witness_;
  ExitInfo exit_;
  pid_t child_ = -1;
  int child_status_ = 0;
  struct StandbyProcess {
    pid_t pid;
    std::int64_t app;
  };
  std::vector<StandbyProcess> standbys_;
  bool stop_asked_ = false;  // a SIGTSTP came since the app was last continued
};

bool Run::choose_device(std::string& error) {
  if (options_.device == DeviceChoice::kSoft) {
    if (install_.soft.empty()) {
      error = "--device soft: the software device is not installed (" + install_.expected +
              "/soft/libcuda.so.1 is not there); build and install it, or use --device cuda";
      return false;
    }
    device_.kind = "soft";
  }
  DeviceProbe probe;
  if (device_.kind.empty()) {
    ProbeRequest request;
    probe = probe_device(request, kProbeTimeout);
    if (probe.answered && probe.devices > 0) {
      device_.kind = "cuda";
    } else if (options_.device == DeviceChoice::kAuto && !install_.soft.empty()) {
      device_.kind = "soft";
    } else {
      device_.kind = "none";
    }
    const std::string why = !probe.answered ? probe.failure : probe.driver_error;
    if (device_.kind == "none") {
      output_.warning(
          fmt::format("no CUDA device here, the program runs unprotected ({}); use a machine with "
                      "an NVIDIA GPU and driver, see `gpurecover doctor`",
                      why));
    } else if (device_.kind == "soft") {
      output_.detail(
          fmt::format("device: soft, since the NVIDIA driver does not answer ({})", why));
    } else {
      output_.detail(fmt::format("device: cuda, {}, driver {}",
                                 probe.names.empty() ? "unnamed" : probe.names.front(),
                                 probe.driver_version));
    }
  } else {
    output_.detail("device: soft, as asked");
  }
  if (device_.kind != "soft") {
    if (options_.soft_memcheck) {
      error = "--soft-memcheck is for the device in software: add --device soft";
      return false;
    }
    for (const inject::Fault& fault : options_.plan) {
      if (error = why_soft_device(fault); !error.empty()) {
        return false;
      }
    }
  }
  if (device_.kind == "soft") {
    device_.cupti = install_.soft + "/libcupti.so.13";
    if (::access(device_.cupti.c_str(), R_OK) != 0) {
      device_.cupti.clear();
    }
  } else {
    device_.cupti = !probe.cupti_path.empty() ? probe.cupti_path : find_cupti_file();
    output_.detail("CUPTI: " + (device_.cupti.empty() ? "not found" : device_.cupti));
  }
  return true;
}

bool Run::open_files(std::string& error) {
  if (!options_.report.empty()) {
    auto file = ReportFile::prepare(options_.report);
    if (!file) {
      error = "--report: " + file.error();
      return false;
    }
    report_ = std::move(*file);
  }
  if (!options_.events.empty()) {
    if (auto opened = events_.open(options_.events); !opened) {
      error = "--events: " + opened.error();
      return false;
    }
  }
  return true;
}

std::string Run::repeat(const std::string& fault_options) const {
  std::string out = "gpurecover inject " + fault_options;
  if (!options_.repeated.empty()) {
    out += " " + shell_join(options_.repeated);
  }
  return out + " -- " + shell_join(options_.command);
}

// 0, or the exit status with which to end before the app is started.
int Run::start_session() {
  const auto unprotected = [&](const std::string& why) {
    if (!options_.plan.empty()) {
      return give_up("nothing can be injected: " + why);
    }
    output_.warning("the program runs unprotected: " + why);
    server_.reset();
    return int{kOk};
  };
  SessionSettings settings;
  settings.level = options_.level;
  settings.standby = options_.standby;
  settings.no_steer = options_.no_steer;
  settings.analysis_dir = options_.analysis_dir;
  settings.verbosity = static_cast<std::uint8_t>(options_.verbosity);
  settings.rules = protocol::encode(options_.rules);
  settings.repeat = [this](const std::string& text) { return repeat(text); };
  auto folder = SessionFolder::create(options_.name);
  if (!folder) {
    return options_.name.empty() ? unprotected(folder.error()) : give_up(folder.error());
  }
  folder_ = std::move(*folder);
  settings.name = folder_.name();
  server_ =
      std::make_unique<SessionServer>(std::move(settings), options_.plan, tally_, events_, output_);
  server_->on_standby([this](int fd, std::int64_t app) { return start_standby(fd, app); });
  server_->on_status([this] { return make_json_renderer()->render(summary(false)); });
  if (auto listening = server_->listen(folder_.socket_path()); !listening) {
    return unprotected(listening.error());
  }
  if (install_.agent.empty()) {
    return unprotected("its agent is missing: " + install_.expected + "/" + protocol::kAgentFile +
                       "; install gpurecover as a whole");
  }
  return kOk;
}

std::map<std::string, std::string> Run::environment() const {
  std::map<std::string, std::string> out;
  if (server_) {
    out[protocol::kEnvInjection] = install_.agent;
    out[protocol::kEnvSession] = folder_.socket_path();
    out[protocol::kEnvCupti] = device_.cupti;
  }
  if (device_.kind == "soft") {
    out["LD_LIBRARY_PATH"] = prepend_path(install_.soft, std::getenv("LD_LIBRARY_PATH"));
    if (options_.soft_memcheck) {
      out["GPURECOVER_SOFT_MEMCHECK"] = "1";
    }
  }
  return out;
}

int Run::early_signal() const {
  sigset_t waiting;
  ::sigpending(&waiting);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (::sigismember(&waiting, signal) == 1 && ::sigismember(&inherited_.mask, signal) == 0) {
      return signal;
    }
  }
  return 0;
}

int Run::spawn_error(const SpawnError& error) {
  const std::string why = std::strerror(error.error);
  if (!error.exec) {
    output_.error("cannot start a process: " + why);
    return finish(kOurError, 0, "gpurecover");
  }
  output_.error(fmt::format("cannot run {}: {}", shell_quote(options_.command.front()), why));
  return finish(error.error == ENOENT ? kNotFound : kNotExecutable, 0, "gpurecover");
}

void Run::send(int signal, const signalfd_siginfo* info) {
  if (info != nullptr && info->ssi_code == SI_QUEUE) {
    // sigqueue() carries a value: it is passed on with it.
    siginfo_t with_value{};
    with_value.si_signo = signal;
    with_value.si_code = SI_QUEUE;
    with_value.si_pid = static_cast<pid_t>(info->ssi_pid);
    with_value.si_uid = info->ssi_uid;
    with_value.si_value.sival_ptr = reinterpret_cast<void*>(info->ssi_ptr);
    if (::syscall(SYS_rt_sigqueueinfo, child_, signal, &with_value) == 0) {
      return;
    }
  }
  // The app is our unreaped child, so its pid cannot have become another process's.
  ::kill(child_, signal);
}

void Run::take_signal(const signalfd_siginfo& info) {
  const int signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) {
    return;  // follow_child() looks at every turn
  }
  if (signal == SIGTSTP) {
    stop_asked_ = true;
  }
  // Of the kernel's own making (si_code > 0): the terminal's keys, a change of its size, its
  // hang-up. They reach the app by themselves, as it is in our process group. The exception: a
  // hang-up is sent to the session's leader only.
  bool forward = info.ssi_code <= 0;
  if (!forward && signal == SIGHUP && ::getsid(0) == ::getpid()) {
    forward = true;
  }
  const pid_t sender = static_cast<pid_t>(info.ssi_pid);
  if (info.ssi_code <= 0) {
    // SIGPIPE from our own stderr, or the app's signal to its parent: not for the app.
    if (sender == ::getpid() || sender == child_) {
      forward = false;
    } else if (witness_ && witness_->saw(signal, sender)) {
      forward = false;
    }
  }
  events_.write(
      "signal",
      {{"signal", std::int64_t{signal}}, {"sender", std::int64_t{sender}}, {"forwarded", forward}});
  if (forward) {
    send(signal, &info);
  }
}

bool Run::follow_child() {
  for (;;) {
    int status = 0;
    const pid_t got = ::waitpid(child_, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return got == 0;
    }
    if (WIFCONTINUED(status)) {
      stop_asked_ = false;
    } else if (WIFSTOPPED(status)) {
      const int signal = WSTOPSIG(status);
      // A stop of job control is the whole job's: our parent, the shell, waits for us and not for
      // the app. A SIGSTOP sent to the app alone is not: who sent it continues the app alone.
      const bool of_job = signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU ||
                          (signal == SIGSTOP && stop_asked_);
      if (of_job) {
        stop_asked_ = false;
        stop_by_signal(signal);
      }
    } else {
      child_status_ = status;
      return false;
    }
  }
}

tl::expected<std::int32_t, std::string> Run::start_standby(int fd, std::int64_t app) {
  // A session has a process for each GPU or so, and each of them one standby after another.
  constexpr std::size_t kMaxStandbys = 256;
  if (install_.standby.empty()) {
    return failure(install_.expected + "/" + protocol::kStandbyFile +
                   " is missing; install gpurecover as a whole");
  }
  if (standbys_.size() >= kMaxStandbys) {
    return failure(std::string("too many standbys run already"));
  }
  auto variables = environment();
  // It is no process of the session, and has no agent.
  for (const char* name : {protocol::kEnvInjection, protocol::kEnvSession, protocol::kEnvCupti}) {
    variables[name] = "";
  }
  const auto pid = spawn_standby(install_.standby, fd, variables);
  if (!pid) {
    return failure(pid.error());
  }
  standbys_.push_back({*pid, app});
  return std::int32_t{*pid};
}

void Run::reap_standbys() {
  std::erase_if(standbys_, [](const StandbyProcess& standby) {
    int status = 0;
    const pid_t got = ::waitpid(standby.pid, &status, WNOHANG);
    return got == standby.pid || (got < 0 && errno != EINTR);
  });
}

void Run::see_standbys_off() {
  constexpr std::chrono::milliseconds kPatience{2000};
  const auto end = Clock::now() + kPatience;
  for (const StandbyProcess& standby : standbys_) {
    if (standby.app != child_) {
      continue;  // of a child of the app's, which may live on
    }
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, standby.pid, 0));
    if (fd < 0) {
      continue;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd entry{fd, POLLIN, 0};
    ::poll(&entry, 1, std::max(0, static_cast<int>(left.count())));
    ::close(fd);
  }
  reap_standbys();
}

void Run::watch() {
  const int child_fd = static_cast<int>(::syscall(SYS_pidfd_open, child_, 0));
  std::vector<pollfd> peers;
  std::vector<pollfd> entries;
  for (;;) {
    peers.clear();
    if (server_) {
      server_->add_to(peers);
    }
    entries.assign({{signals_, POLLIN, 0}, {child_fd, POLLIN, 0}});
    entries.insert(entries.end(), peers.begin(), peers.end());
    // Without a pidfd (an old kernel) SIGCHLD tells of the app's end.
    const int ready =
        ::poll(entries.data(), entries.size(), server_ && server_->pending() ? 0 : -1);
    if (ready < 0 && errno != EINTR) {
      // Out of memory: nothing is left to do but to wait for the app.
      while (::waitpid(child_, &child_status_, 0) < 0 && errno == EINTR) {
      }
      break;
    }
    signalfd_siginfo info{};
    while ((entries[0].revents & POLLIN) != 0 &&
           ::read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      take_signal(info);
    }
    if (server_) {
      std::copy(entries.begin() + 2, entries.end(), peers.begin());
      server_->handle(peers);
    }
    reap_standbys();
    if (!follow_child()) {
      break;
    }
  }
  if (child_fd >= 0) {
    ::close(child_fd);
  }
}

RunSummary Run::summary(bool ended) const {
  RunSummary out = tally_.summary(ended);
  out.tool = "gpurecover " + std::string(version());
  out.command = options_.command;
  out.session = folder_.name();
  out.level = word(options_.level);
  out.started = rfc3339(started_);
  if (out.device.kind.empty()) {
    out.device.kind = device_.kind;
  }
  out.exit = exit_;
  out.wall_s = std::chrono::duration<double>(Clock::now() - start_).count();
  return out;
}

int Run::finish(int code, int signal, const char* origin) {
  exit_.origin = origin;
  if (signal != 0) {
    exit_.signal = signal;
  } else {
    exit_.code = code;
  }
  const RunSummary last = summary(true);
  events_.write("exit", {{"code", std::int64_t{exit_.code.value_or(-1)}},
                         {"signal", std::int64_t{exit_.signal.value_or(0)}},
                         {"origin", std::string(origin)}});
  for (const FaultSummary& fault : last.faults) {
    if (fault.record.outcome == "not-fired") {
      events_.write_fault(fault.pid, fault.record);
      output_.warning(fmt::format("the fault was not injected: {}", fault.record.reason));
      output_.warning("it was asked for by: " + fault.record.repeat);
    }
  }
  std::uint64_t fired = 0;
  for (const Tally::Shots& shots : tally_.shots()) {
    fired += shots.fired;
  }
  std::uint64_t reported = 0;
  for (const FaultSummary& fault : last.faults) {
    reported += fault.record.injected && fault.record.outcome != "not-fired" ? 1 : 0;
  }
  if (fired > reported && last.faults.size() < Tally::kMaxFaults) {
    output_.warning(
        fmt::format("{} injected fault{} fired without a word of what became of it: the "
                    "process ended first",
                    fired - reported, fired - reported == 1 ? "" : "s"));
  }
  if (child_ > 0) {
    output_.info(human_summary(last));
  }
  if (report_.valid()) {
    if (auto written = report_.write(make_json_renderer()->render(last)); !written) {
      output_.error("no report: " + written.error());
    } else {
      output_.info("report: " + report_.path());
    }
  }
  server_.reset();
  folder_ = SessionFolder();
  witness_.reset();
  if (signal != 0) {
    die_by_signal(signal);
    return 128 + signal;
  }
  return code;
}

int Run::run() {
  StandardStreams::guard();
  install_ = find_install();
  if (const char* injection = std::getenv(protocol::kEnvInjection);
      injection != nullptr && *injection != '\0' && install_.agent != injection) {
    return give_up(fmt::format(
        "{} is set already, to {}: another tool wants to be in the program's driver, and there is "
        "room for one; unset it, or run without gpurecover",
        protocol::kEnvInjection, injection));
  }
  inherited_ = take_over_signals();
  std::string error;
  if (!open_files(error) || !choose_device(error)) {
    return give_up(error);
  }
  events_.write("start", {{"tool", "gpurecover " + std::string(version())},
                          {"command", options_.command},
                          {"device", device_.kind},
                          {"level", std::string(word(options_.level))}});
  if (const int status = start_session(); status != kOk) {
    return status;
  }
  sigset_t every;
  ::sigfillset(&every);
  signals_ = ::signalfd(-1, &every, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) {
    return give_up(std::string("no signalfd: ") + std::strerror(errno));
  }
  witness_ = std::make_unique<GroupWitness>();
  if (const int signal = early_signal(); signal != 0) {
    return finish(0, signal, "signal");
  }
  const auto child = spawn(options_.command, environment(), inherited_);
  if (!child) {
    return spawn_error(child.error());
  }
  child_ = *child;
  events_.write("app", {{"pid", std::int64_t{child_}}});
  if (server_) {
    output_.detail("session: " + folder_.name());
  }
  watch();
  if (server_) {
    server_->drain();
  }
  see_standbys_off();
  if (WIFSIGNALED(child_status_)) {
    return finish(0, WTERMSIG(child_status_), "signal");
  }
  return finish(WEXITSTATUS(child_status_), 0, "app");
}

}  // namespace

int run_app(const RunOptions& options) {
  return Run(options).run();
}

}  // namespace gpurecover::cli
