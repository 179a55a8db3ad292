// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/standby_keeper.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

#include "cupti/driver_api/driver_api.h"
#include "recovery/call_codec.h"

namespace gpurecover::agent {
namespace {

using recovery::Answer;
using recovery::StandbyLink;
using std::chrono::milliseconds;

// What lives shorter is not handed over. An export takes some 0.7 ms, during which the driver may
// keep others waiting, so a program that allocates and frees in turn had better not cause any.
constexpr milliseconds kSettle{20};
// How long an allocation waits for the standby before the standby is ended instead.
constexpr milliseconds kLetGo{2000};
constexpr milliseconds kForkPatience{100};
constexpr milliseconds kExitPatience{2000};

// One agent, one keeper in a process.
StandbyKeeper* the_keeper = nullptr;

const driver_api::Call* destroyer_of(char kind) {
  switch (kind) {
    case 's':
      return driver_api::find("cuStreamDestroy_v2");
    case 'e':
      return driver_api::find("cuEventDestroy_v2");
    case 'm':
      return driver_api::find("cuModuleUnload");
    case 'L':
      return driver_api::find("cuLibraryUnload");
    default:
      return nullptr;  // ends with its parent
  }
}

bool same(const HeldObjects& held, const Objects::State& state) {
  const auto at = held.find(state.key);
  return at != held.end() && at->second.identity == state.identity &&
         at->second.version == state.version;
}

}  // namespace

ObjectPlan plan_objects(const HeldObjects& held, const std::vector<Objects::State>& now,
                        const HeldObjects& failed) {
  ObjectPlan plan;
  std::map<ObjectKey, const Objects::State*> current;
  std::set<ObjectKey> used;  // libraries that something has been asked of
  for (const Objects::State& state : now) {
    current[state.key] = &state;
    if (state.parent.kind == 'L') {
      used.insert(state.parent);
    }
  }
  std::set<ObjectKey> dropped;
  for (const auto& [key, object] : held) {
    const auto at = current.find(key);
    if (at == current.end() || at->second->identity != object.identity) {
      dropped.insert(key);
    }
  }
  // What is made from another goes with it, and before it.
  for (const auto& [key, object] : held) {
    const auto at = current.find(key);
    if (at != current.end() && dropped.contains(at->second->parent)) {
      dropped.insert(key);
    }
  }
  plan.drop.assign(dropped.begin(), dropped.end());
  std::stable_sort(plan.drop.begin(), plan.drop.end(), [](const ObjectKey& a, const ObjectKey& b) {
    return (a.kind == 'f') > (b.kind == 'f');
  });

  std::set<ObjectKey> there;  // and what will be, by then
  for (const Objects::State& state : now) {
    const bool wanted = state.key.kind != 'L' || used.contains(state.key);
    const bool rooted =
        state.parent.kind == 0 || state.parent.kind == 'c' || there.contains(state.parent);
    if (!wanted || !rooted || same(failed, state)) {
      continue;
    }
    if (!same(held, state) || dropped.contains(state.key)) {
      plan.make.push_back(state);
    }
    there.insert(state.key);
  }
  return plan;
}

StandbyKeeper::StandbyKeeper(Parts parts) : parts_(std::move(parts)), upkeep_(kSettle) {}
StandbyKeeper::~StandbyKeeper() = default;

void StandbyKeeper::start(const driver_api::Driver& driver, const recovery::StandbySetup& setup,
                          std::vector<SharedHost> own, milliseconds patience) {
  driver_ = driver;
  setup_ = setup;
  own_ = std::move(own);
  patience_ = patience;
  owner_ = ::getpid();
  driver_.cuCtxGetCurrent(&context_);
  the_keeper = this;
  try {
    std::thread thread = quiet_thread([this] { run(); });
    thread.detach();
  } catch (const std::exception&) {
    through_ = true;  // there is no warm standby, then; a cold one does
    return;
  }
  // Before those that the driver has registered.
  std::atexit(&StandbyKeeper::at_exit);
  pthread_atfork(&StandbyKeeper::before_fork, &StandbyKeeper::after_fork, nullptr);
  started_.store(true, std::memory_order_release);
}

void StandbyKeeper::at_exit() {
  if (the_keeper != nullptr && the_keeper->owner_ == ::getpid()) {
    the_keeper->upkeep_.pause();
    the_keeper->upkeep_.wait_for_reader(kExitPatience);
  }
}

void StandbyKeeper::before_fork() {
  if (the_keeper->owner_ == ::getpid()) {
    the_keeper->upkeep_.begin_fork(kForkPatience);
  }
}

void StandbyKeeper::after_fork() {
  if (the_keeper->owner_ == ::getpid()) {
    the_keeper->upkeep_.end_fork();
  }
}

// --- the thread ---

void StandbyKeeper::run() {
  ::prctl(PR_SET_NAME, "gpurecover-warm");
  try {
    parts_.quiet_this_thread();
    if (bring_up()) {
      work();
    } else {
      lost_ = true;
    }
  } catch (...) {
    lost_ = true;  // want of memory: what it was doing is not known to be done
  }
  if (lost_) {
    end_link();
  }
  {
    const std::lock_guard lock(mutex_);
    through_ = true;
  }
  idle_.notify_all();
}

bool StandbyKeeper::bring_up() {
  // Whatever goes wrong here is looked at when a standby is needed.
  std::string error;
  const int fd = parts_.session.start_standby(error);
  std::unique_ptr<StandbyLink> link = fd >= 0 ? StandbyLink::open(fd, patience_, error) : nullptr;
  if (link == nullptr || !link->setup(setup_).ok()) {
    return false;
  }
  link->prepare(0);
  const std::lock_guard lock(mutex_);
  if (given_up_) {
    return false;
  }
  link_ = std::move(link);
  return true;
}

void StandbyKeeper::work() {
  parts_.steering.set_watcher(this);
  upkeep_.adopt([this] {
    std::vector<Piece> pieces;
    for (const SteeredMemory& m : parts_.steering.memory()) {
      if (m.handle != 0) {
        pieces.push_back({m.address, m.size, false, m.device, m.handle, 0, -1});
      }
    }
    std::vector<SharedHost> hosts = parts_.steering.hosts();
    hosts.insert(hosts.end(), own_.begin(), own_.end());
    for (const SharedHost& h : hosts) {
      pieces.push_back({h.address, h.size, true, 0, 0, h.flags, h.fd});
    }
    return pieces;
  });
  upkeep_.touch();
  while (!lost_) {
    const Task task = upkeep_.next();
    switch (task.what) {
      case Task::What::kEnd:
        return;
      case Task::What::kLetGo:
        let_go_of(task);
        break;
      case Task::What::kHandOver:
        hand_over(task);
        break;
      case Task::What::kNothing: {
        recovery::Upkeep::Clock::time_point due;
        if (upkeep_.touched(due)) {
          plan_ = plan_objects(held_, parts_.objects.states(), failed_);
          planned_ = 0;
        }
        if (!next_object()) {
          upkeep_.wait(std::min(task.until, due));
        }
        break;
      }
    }
  }
}

int StandbyKeeper::descriptor_of(const Piece& piece) {
  if (!piece.host) {
    if (!std::exchange(relaxed_, true)) {
      // For good: the thread ends with its work.
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      driver_.cuThreadExchangeStreamCaptureMode(&mode);
    }
    const SteeredMemory memory{piece.address, piece.size, piece.device, piece.handle};
    int fd = parts_.steering.export_fd(memory);
    if (fd < 0 && !std::exchange(tried_context_, true) && context_ != nullptr &&
        driver_.cuCtxSetCurrent(context_) == CUDA_SUCCESS) {
      fd = parts_.steering.export_fd(memory);  // a driver that wants a context for it
    }
    // Low numbers are what programs hand out by themselves.
    const int moved = fd >= 0 ? ::fcntl(fd, F_DUPFD_CLOEXEC, 512) : -1;
    if (moved >= 0) {
      ::close(fd);
      return moved;
    }
    if (fd >= 0) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    return fd;
  }
  const bool own = std::any_of(own_.begin(), own_.end(), [&](const SharedHost& host) {
    return host.address == piece.address;
  });
  return own ? ::fcntl(piece.fd, F_DUPFD_CLOEXEC, 512)
             : parts_.steering.copy_fd({piece.address, piece.size, piece.flags, piece.fd});
}

void StandbyKeeper::hand_over(const Task& task) {
  const Piece& piece = task.piece;
  struct Done {  // also where something throws
    recovery::Upkeep& upkeep;
    const std::uint64_t serial;
    bool has_it = false;
    ~Done() { upkeep.handed_over(serial, has_it); }
  } done{upkeep_, task.serial};
  const int fd = descriptor_of(piece);
  const bool wanted = upkeep_.read(task.serial);
  if (fd < 0) {
    return;  // at the fault it is tried again
  }
  Answer answer;
  answer.sent = true;
  if (wanted) {
    answer = piece.host ? link_->map_host(piece.address, piece.size, piece.flags, fd)
                        : link_->map_memory(piece.address, piece.size, fd);
    done.has_it = answer.ok();
  }
  ::close(fd);
  alive(answer);
}

void StandbyKeeper::let_go_of(const Task& task) {
  const Piece& piece = task.piece;
  const Answer answer = piece.host ? link_->unmap_host(piece.address, piece.size)
                                   : link_->unmap_memory(piece.address, piece.size);
  if (!answer.ok()) {
    lost_ = true;  // it must not keep what is gone
    end_link();
    return;
  }
  upkeep_.let_go_of(task.serial);
}

bool StandbyKeeper::next_object() {
  const std::size_t drops = plan_.drop.size();
  if (planned_ < drops) {
    const ObjectKey key = plan_.drop[planned_++];
    held_.erase(key);
    if (!drop(key)) {
      lost_ = true;
    }
    return true;
  }
  if (planned_ - drops < plan_.make.size()) {
    const Objects::State state = plan_.make[planned_++ - drops];
    const auto made = parts_.objects.find(state.key);
    if (!made || made->identity != state.identity ||
        (state.parent.kind != 0 && state.parent.kind != 'c' && !held_.contains(state.parent))) {
      return true;  // another one by now, of which the next plan says what is to be done
    }
    const Answer answer = parts_.make_object(*link_, state.key, *made, held_.contains(state.key));
    if (alive(answer)) {
      (answer.ok() ? held_ : failed_)[state.key] = {made->identity, made->version};
      if (answer.ok() && state.key.kind == 'f') {
        alive(link_->prepare(state.key.handle));
      }
    }
    return true;
  }
  return false;
}

bool StandbyKeeper::drop(ObjectKey key) {
  const driver_api::Call* call = destroyer_of(key.kind);
  if (call == nullptr) {
    return true;
  }
  // All of them have the handle and nothing else.
  std::vector<std::byte> encoded;
  recovery::encode_call(
      *call, &key.handle, false, [](char) { return std::uint64_t{0}; }, encoded);
  std::vector<std::byte> results;
  return link_->call(encoded, results).ok();
}

bool StandbyKeeper::alive(const Answer& answer) {
  if (!answer.sent) {
    lost_ = true;
  }
  return answer.sent;
}

void StandbyKeeper::end_link() {
  StandbyLink* link = nullptr;
  {
    const std::lock_guard lock(mutex_);
    link = link_.get();
  }
  if (link != nullptr) {
    link->kill();  // before anybody is told that nothing is held any more
  }
  upkeep_.close();
}

// --- at the fault ---

void StandbyKeeper::pause() {
  upkeep_.pause();
}

std::optional<StandbyKeeper::Ready> StandbyKeeper::take() {
  if (!started()) {
    return std::nullopt;
  }
  upkeep_.pause();
  std::unique_lock lock(mutex_);
  // Each of its questions to the standby ends within its patience.
  idle_.wait_for(lock, 2 * patience_, [&] { return through_; });
  if (!through_ || link_ == nullptr || given_up_) {
    given_up_ = true;  // should it come up yet
    if (link_ != nullptr) {
      link_->kill();
    }
    return std::nullopt;
  }
  Ready ready;
  ready.link = std::move(link_);
  ready.kept = upkeep_.kept();
  ready.stale = upkeep_.stale();
  ready.objects = held_;
  upkeep_.close();
  if (lost_ || !ready.link->alive()) {
    return std::nullopt;
  }
  return ready;
}

void StandbyKeeper::give_up() {
  if (!started()) {
    return;
  }
  upkeep_.pause();
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    if (link_ != nullptr) {
      link_->kill();
    }
  }
  upkeep_.close();
}

// --- Steering::Watcher ---

void StandbyKeeper::made(const SteeredMemory& memory) noexcept {
  try {
    upkeep_.made({memory.address, memory.size, false, memory.device, memory.handle, 0, -1});
  } catch (...) {
    // It is handed over at the fault.
  }
}

void StandbyKeeper::made(const SharedHost& host) noexcept {
  try {
    upkeep_.made({host.address, host.size, true, 0, 0, host.flags, host.fd});
  } catch (...) {
  }
}

void StandbyKeeper::gone(std::uint64_t address) noexcept {
  upkeep_.gone(address);
}

bool StandbyKeeper::let_go() noexcept {
  if (!upkeep_.working()) {
    return false;  // at a fault: whoever takes over lets go of it
  }
  if (!upkeep_.let_go(kLetGo)) {
    give_up();
  }
  return true;
}

std::uint64_t StandbyKeeper::outstanding(int device) noexcept {
  return upkeep_.outstanding(device);
}

}  // namespace gpurecover::agent
