// SPDX-License-Identifier: Apache-2.0
//
// Before and during a takeover: the log of what is under way, and the steps. What follows a
// takeover is in serving.cpp.
#include "cupti/agent/takeover.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "classifier/catalogue.h"
#include "cupti/agent/exporter.h"
#include "recovery/call_codec.h"
#include "recovery/replay.h"

namespace gpurecover::agent {
namespace {

using driver_api::Hook;
using driver_api::Kind;
using recovery::Answer;
using recovery::LoggedLaunch;
using recovery::ParameterKind;
using recovery::StepResult;
using Clock = std::chrono::steady_clock;

// Beyond this a wait for work of the app's is taken for one without end: the work may itself wait
// for the thread that we hold up.
constexpr auto kPatience = std::chrono::seconds(20);
constexpr auto kShortPatience = std::chrono::milliseconds(50);
constexpr auto kStandbyPatience = std::chrono::seconds(30);
// Larger images are loaded into a warm standby at the fault only: they are copied twice on the way.
constexpr std::size_t kKeptImage = std::size_t{64} << 20;

// For the words of the log, and one more for Keep.
constexpr std::size_t kPage = 4096;

// Of each stream that rewrites the same memory again and again, for copies of it.
constexpr std::size_t kStoreBytes = 4 << 20;

// Attributes of a launch that say how it runs, and hold neither handles nor pointers. The others
// either order the launch against its neighbours, which markers do, or hold events.
bool attribute_travels(CUlaunchAttributeID id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      return true;
    default:
      return false;
  }
}
bool attribute_holds_event(CUlaunchAttributeID id) {
  return id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
         id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ||
         id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
}

// Whether what is under way has to be complete before the call is made.
bool is_edge(const driver_api::Call& call) {
  switch (call.kind) {
    case Kind::kCopy:
    case Kind::kSet:
    case Kind::kHostFunction:
    case Kind::kStreamMemory:
    case Kind::kGraphLaunch:
    case Kind::kEvent:
    case Kind::kCapture:
    case Kind::kFree:
      return true;
    case Kind::kLaunch:
      return call.hook == Hook::kLaunchUnprotected;
    case Kind::kModule:
      return call.hook == Hook::kModuleUnload || call.hook == Hook::kLibraryUnload;
    case Kind::kContext:
      return call.edge != driver_api::kEdgeNone;
    default:
      return std::any_of(
          recovery::parameters_of(call).begin(), recovery::parameters_of(call).end(),
          [](const auto& parameter) { return parameter.kind == ParameterKind::kDestroyedHandle; });
  }
}

// Whether the call leaves work in a stream that is not a launch.
bool leaves_work(const driver_api::Call& call) {
  switch (call.kind) {
    case Kind::kCopy:
    case Kind::kSet:
      return true;
    case Kind::kHostFunction:
    case Kind::kStreamMemory:
    case Kind::kGraphLaunch:
      return true;
    case Kind::kLaunch:
      return call.hook == Hook::kLaunchUnprotected;
    default:
      return false;
  }
}

CUstream stream_of(const driver_api::Call& call, std::uint32_t cbid, const void* params) {
  for (const auto& parameter : recovery::parameters_of(call)) {
    if (parameter.kind == ParameterKind::kHandle && parameter.handle == 's') {
      CUstream stream = nullptr;
      std::memcpy(&stream, static_cast<const std::byte*>(params) + parameter.offset, sizeof stream);
      if (stream != nullptr) {
        return stream;
      }
      break;
    }
  }
  return driver_api::per_thread_stream(cbid) ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

bool sticky(CUresult code) {
  return code != CUDA_SUCCESS && classifier::is_sticky(static_cast<std::int32_t>(code));
}

std::string words(const Answer& answer) {
  if (!answer.sent) {
    return "the standby is gone (" + answer.reason + ")";
  }
  return (answer.reason.empty() ? std::string("error") : answer.reason) + " (" +
         classifier::code_name(answer.code) + ")";
}

// A shared file of zeros, mapped where no other process of ours is likely to have something.
bool make_shared_block(std::size_t size, SharedHost& out) {
  const int fd = memfd_create("gpurecover-markers", MFD_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
    close(fd);
    return false;
  }
  void* at = MAP_FAILED;
  // Below the arena, beside nothing; with the thread sanitizer above it, for it owns what is below.
#if defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t kHighest = 0x567f'0000'0000;
  constexpr std::uint64_t kLowest = 0x5679'0000'0000;
#else
  constexpr std::uint64_t kHighest = 0x54f0'0000'0000;
  constexpr std::uint64_t kLowest = 0x54e0'0000'0000;
#endif
  for (std::uint64_t wish = kHighest; at == MAP_FAILED && wish >= kLowest; wish -= 0x1'0000'0000) {
    at = mmap(reinterpret_cast<void*>(wish), size, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  }
  if (at == MAP_FAILED) {
    close(fd);
    return false;
  }
  out.address = reinterpret_cast<std::uint64_t>(at);
  out.size = size;
  out.flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  out.fd = fd;
  return true;
}

}  // namespace

const char* append_attributes(const CUlaunchConfig& config, std::vector<std::byte>& out) {
  const char* obstacle = nullptr;
  for (unsigned i = 0; i < config.numAttrs && config.attrs != nullptr; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    if (attribute_holds_event(attribute.id)) {
      obstacle = "it is launched with an event of its own";
    } else if (attribute_travels(attribute.id)) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&attribute);
      out.insert(out.end(), bytes, bytes + sizeof attribute);
    }
  }
  return obstacle;
}

Takeover::Takeover(const Parts& parts)
    : parts_(parts),
      globals_({parts.driver, parts.images, objects_,
                [this](CUdeviceptr* address, std::size_t size) {
                  return parts_.steering.allocate(address, size);
                },
                [this](CUdeviceptr address) { parts_.steering.free(address); },
                [this](CUstream stream) { return settle(stream); },
                [this](recovery::StreamLog& log) { return wait_for(log); },
                [this] { return wanted() && (enabled() || !launched_); },
                [this](CUstream stream, CUdeviceptr entries, std::uint32_t count) {
                  if (active()) {
                    return CUDA_ERROR_NOT_SUPPORTED;
                  }
                  const driver_api::RelaxedCapture relaxed(parts_.driver);
                  return parts_.ops.copy_each(stream, entries, count);
                }}),
      keeper_({parts.session, parts.steering, objects_, parts.quiet_this_thread,
               [this](recovery::StandbyLink& link, ObjectKey key, const Objects::Made& made,
                      bool there) { return make_object(link, key, made, there, kKeptImage); }}) {}
Takeover::~Takeover() = default;

bool Takeover::enable() {
  auto& driver = parts_.driver;
  const auto impossible = [&](const std::string& why) {
    parts_.session.notice(protocol::Severity::kWarning,
                          "a sticky error cannot be recovered in this process: " + why);
    return false;
  };
  CUdevice device = 0;
  CUuuid uuid{};
  if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return true;  // no context yet
  }
  if (!pending_.exchange(false)) {
    return enabled();  // another thread is at it
  }
  if (driver.cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) {
    return impossible("its device could not be told");
  }
  if (!make_shared_block(recovery::LaunchLog::kWordBytes + kPage, words_)) {
    return impossible("no memory for its markers");
  }
  const CUresult code =
      driver.cuMemHostRegister(reinterpret_cast<void*>(words_.address), words_.size, words_.flags);
  if (code != CUDA_SUCCESS) {
    return impossible("the memory of its markers could not be registered, error " +
                      std::to_string(static_cast<int>(code)));
  }
  log_.set_words(reinterpret_cast<std::byte*>(words_.address));
  setup_.device = device;
  setup_.device_uuid.assign(uuid.bytes, sizeof uuid.bytes);
  unsigned flags = 0;
  int active = 0;
  if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS) {
    setup_.context_flags = flags;
  }
  setup_.arena = parts_.session.config().arena;
  setup_.arena_size = parts_.session.config().arena_size;
  local_ = driver;
  if (parts_.session.config().standby == protocol::Standby::kWarm) {
    keeper_.start(local_, setup_, {words_}, kStandbyPatience);
  }
  enabled_.store(true, std::memory_order_release);
  return true;
}

// --- the log ---

recovery::StreamLog& Takeover::log_of(ThreadState& state, CUstream stream) {
  auto& cache = state.stream_log;
  const std::uint64_t generation = log_generation_.load(std::memory_order_acquire);
  if (cache.log == nullptr || cache.stream != stream || cache.generation != generation) {
    const std::uint64_t thread =
        stream == CU_STREAM_PER_THREAD ? reinterpret_cast<std::uint64_t>(&state) : 0;
    cache.log = &log_.stream(reinterpret_cast<std::uint64_t>(stream), thread);
    cache.stream = stream;
    cache.generation = generation;
  }
  return *cache.log;
}

bool Takeover::mark(const recovery::StreamLog& log, std::uint32_t number) {
  return parts_.driver.cuStreamWriteValue32(reinterpret_cast<CUstream>(log.stream()),
                                            reinterpret_cast<CUdeviceptr>(log.word()), number,
                                            CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

void Takeover::begin_launch(ThreadState& state, const Kernel& kernel, const LaunchCall& launch) {
  auto& under_way = state.call;
  CUstream const stream = launch.explicit_stream();
  recovery::StreamLog& log = log_of(state, stream);
  launched_.store(true, std::memory_order_relaxed);
  // Judged a moment ago; only the work on a fault may have come between.
  const bool gathered =
      under_way.injection == nullptr && !active()
          ? under_way.gathered
          : gather_arguments(kernel, launch.kernel_params, launch.extra, state.arguments);
  if (!under_way.variables.empty()) {
    Globals::release(under_way.variables);
  }
  globals_.begin_launch(kernel, gathered ? state.arguments : std::span<const std::byte>{}, stream,
                        log, under_way.variables);
  if (log.wants_store() && !active()) [[unlikely]] {
    const driver_api::RelaxedCapture relaxed(parts_.driver);
    CUdeviceptr store = 0;
    const bool made = parts_.steering.allocate(&store, kStoreBytes) == CUDA_SUCCESS;
    log.give_store(store, made ? kStoreBytes : 0);
  }
  recovery::LaunchTraits traits;
  traits.replayable = under_way.replayable;
  traits.sets = under_way.sets;
  traits.alone = !under_way.variables.empty();
  // Nobody else could write a marker to another thread's default stream; and the standby writes
  // one behind each.
  traits.mark_behind = stream == CU_STREAM_PER_THREAD || active();
  under_way.log = &log;
  log.begin(log_.next_order(), traits, under_way.issue, [&](recovery::LaunchRecord& record) {
    record.kernel = &kernel;
    record.function = reinterpret_cast<std::uint64_t>(launch.function);
    std::copy_n(launch.grid, 3, record.grid);
    std::copy_n(launch.block, 3, record.block);
    record.shared_bytes = launch.shared_bytes;
    record.cooperative = launch.form == Hook::kLaunchCooperative;
    record.set_arguments(gathered ? std::span<const std::byte>(state.arguments)
                                  : std::span<const std::byte>());
    if (!gathered) {
      record.obstacle = "its arguments could not be read";
    }
    if (launch.config != nullptr && launch.config->numAttrs != 0) {
      if (const char* why = append_attributes(*launch.config, record.attributes())) {
        record.obstacle = why;
      }
    }
  });
  if (active()) {
    return;
  }
  log_.prepare(
      log, traits.sets, under_way.issue,
      [this](const recovery::StreamLog& of, std::uint32_t number) { return mark(of, number); },
      [&](const recovery::StreamLog&, const recovery::KeptCopy& copy) {
        return parts_.driver.cuMemcpyDtoDAsync(copy.copy, copy.range.begin,
                                               copy.range.end - copy.range.begin,
                                               stream) == CUDA_SUCCESS;
      });
}

void Takeover::end_launch(ThreadState& state, bool taken, bool mark) {
  recovery::StreamLog* log = std::exchange(state.call.log, nullptr);
  if (log == nullptr) {
    return;
  }
  auto& variables = state.call.variables;
  if (!variables.empty() && taken && mark && !active()) {
    globals_.copy(variables, reinterpret_cast<CUstream>(log->stream()));
  }
  state.call.followed = taken;
  if (taken && state.call.kernel != nullptr) {
    globals_.launched(*state.call.kernel);
  }
  const bool marked = taken && mark && state.call.issue.mark_behind &&
                      (active() || this->mark(*log, state.call.issue.number));
  log->end(state.call.issue.number, taken, marked);
  if (!variables.empty()) {
    Globals::release(variables);
  }
}

CUresult Takeover::follow_launch(ThreadState& state, const Kernel& kernel,
                                 const LaunchCall& launch) {
  const bool gathered =
      gather_arguments(kernel, launch.kernel_params, launch.extra, state.arguments);
  return globals_.after_launch(kernel, gathered ? state.arguments : std::span<const std::byte>{},
                               launch.explicit_stream());
}

void Takeover::note_globals(const driver_api::Call& call, const void* params) {
  const auto note = [&](ObjectKey owner, const char* name, const CUdeviceptr* address,
                        const std::size_t* size, bool managed, bool by_runtime) {
    if (address != nullptr) {
      globals_.note_address(owner, name, *address, size != nullptr ? *size : 0, managed,
                            by_runtime);
    }
  };
  switch (call.hook) {
    case Hook::kModuleGetGlobal: {
      const auto& p = *static_cast<const cuModuleGetGlobal_v2_params*>(params);
      note({'m', reinterpret_cast<std::uint64_t>(p.hmod)}, p.name, p.dptr, p.bytes, false, false);
      break;
    }
    case Hook::kLibraryGetGlobal: {
      const auto& p = *static_cast<const cuLibraryGetGlobal_params*>(params);
      note({'L', reinterpret_cast<std::uint64_t>(p.library)}, p.name, p.dptr, p.bytes, false, true);
      break;
    }
    case Hook::kLibraryGetManaged: {
      const auto& p = *static_cast<const cuLibraryGetManaged_params*>(params);
      note({'L', reinterpret_cast<std::uint64_t>(p.library)}, p.name, p.dptr, p.bytes, true, false);
      break;
    }
    case Hook::kModuleUnload:
    case Hook::kLibraryUnload: {
      std::uint64_t owner = 0;
      std::memcpy(&owner, params, sizeof owner);
      globals_.note_unload(owner);
      break;
    }
    default:
      break;
  }
}

bool Takeover::patient(Clock::time_point since) {
  const auto waited = Clock::now() - since;
  if (impatient_.load(std::memory_order_relaxed) ? waited < kShortPatience : waited < kPatience) {
    return true;
  }
  impatient_ = true;
  unfinished_ = true;
  return false;
}

CUresult Takeover::wait_for(recovery::StreamLog& log) {
  const auto begin = Clock::now();
  auto* const stream = reinterpret_cast<CUstream>(log.stream());
  const driver_api::RelaxedCapture relaxed(parts_.driver);
  // What others go on to launch meanwhile is not waited for.
  const std::uint64_t wanted = log.settled();
  for (auto nap = std::chrono::microseconds(5); !log.is_complete(wanted);) {
    const bool soon = Clock::now() - begin < std::chrono::microseconds(30);
    // The default stream of another thread can only be watched.
    if (stream != CU_STREAM_PER_THREAD && (!soon || log.unmarked())) {
      const std::uint64_t place = log.settled();
      const CUresult code = parts_.driver.cuStreamQuery(stream);
      if (code == CUDA_SUCCESS) {
        log.complete_until(place);
        continue;
      }
      if (code != CUDA_ERROR_NOT_READY) {
        return code;
      }
    }
    if (soon) {
      continue;
    }
    if (!patient(begin)) {
      break;
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(100));
  }
  return CUDA_SUCCESS;
}

CUresult Takeover::drain() {
  if (!launched_.exchange(false, std::memory_order_relaxed)) {
    return CUDA_SUCCESS;
  }
  for (recovery::StreamLog* log : log_.streams()) {
    if (!log->idle()) {
      if (const CUresult code = wait_for(*log); code != CUDA_SUCCESS) {
        launched_.store(true, std::memory_order_relaxed);
        return code;
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult Takeover::settle(CUstream stream) {
  const driver_api::RelaxedCapture relaxed(parts_.driver);
  const auto begin = Clock::now();
  auto nap = std::chrono::microseconds(5);
  for (;;) {
    const CUresult code = parts_.driver.cuStreamQuery(stream);
    if (code != CUDA_ERROR_NOT_READY) {
      // An error that is not the fault's (the stream captures) is none of the app's call.
      return code == CUDA_SUCCESS || sticky(code) ? code : CUDA_SUCCESS;
    }
    if (Clock::now() - begin > std::chrono::microseconds(30)) {
      if (!patient(begin)) {
        return CUDA_SUCCESS;
      }
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 2, std::chrono::microseconds(100));
    }
  }
}

void Takeover::note_settled(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                            const void* params) {
  const bool all = call.name.starts_with("cuCtxSynchronize");
  if (!all && !call.name.starts_with("cuStream")) {
    return;  // events: what went before them was waited for when they were recorded
  }
  CUstream const stream = all ? nullptr : stream_of(call, cbid, params);
  for (recovery::StreamLog* log : log_.streams()) {
    // Another thread's default stream bears the same handle.
    if (all || (log->stream() == reinterpret_cast<std::uint64_t>(stream) &&
                (stream != CU_STREAM_PER_THREAD || log == &log_of(state, stream)))) {
      state.settled.emplace_back(log, log->settled());
    }
  }
}

CUresult Takeover::before_call(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                               const void* params) {
  state.settled.clear();
  if (call.kind == Kind::kSync) {
    note_settled(state, call, cbid, params);
  }
  if (call.hook == Hook::kCopyLinear && call.name.starts_with("cuMemcpyHtoD")) {
    const auto& p = *static_cast<const cuMemcpyHtoD_v2_params*>(params);
    globals_.look_for_addresses_at(p.srcHost, p.ByteCount);
  }
  if (call.kind == Kind::kGraphLaunch || call.hook == Hook::kLaunchUnprotected) {
    count_obstacle(call.name);  // what it does is not followed
  }
  return is_edge(call) ? drain() : CUDA_SUCCESS;
}

void Takeover::count_obstacle(std::string_view call) {
  const std::lock_guard lock(obstacles_mutex_);
  obstacles_.emplace(call);
}

CUresult Takeover::after_call(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                              const void* params, CUcontext context) {
  (void)context;
  if (call.kind == Kind::kSync) {
    // From here on the host may change what these launches have read.
    for (const auto& [log, place] : state.settled) {
      log->complete_until(place);
    }
    state.settled.clear();
  }
  const bool per_thread = driver_api::per_thread_stream(cbid);
  if (call.kind == Kind::kEvent && call.name.starts_with("cuEventRecord")) {
    std::uint64_t event = 0;
    std::memcpy(&event, params, sizeof event);
    objects_.note_record(event, epoch());
  } else if (call.kind == Kind::kModule) {
    switch (call.hook) {
      case Hook::kModuleLoadFile:
      case Hook::kModuleLoadData:
      case Hook::kModuleLoadDataEx:
      case Hook::kModuleLoadFatbin:
      case Hook::kLibraryLoadData:
      case Hook::kLibraryLoadFile: {
        // All of them return the handle by their first parameter.
        const void* const* where = nullptr;
        std::memcpy(&where, params, sizeof where);
        const bool library =
            call.hook == Hook::kLibraryLoadData || call.hook == Hook::kLibraryLoadFile;
        if (where != nullptr) {
          objects_.note_image({library ? 'L' : 'm', reinterpret_cast<std::uint64_t>(*where)});
        }
        break;
      }
      default:
        break;
    }
  }
  if (recovery::travels(call)) {
    for (const auto& parameter : recovery::parameters_of(call)) {
      if (parameter.kind == ParameterKind::kDestroyedHandle) {
        std::uint64_t handle = 0;
        std::memcpy(&handle, static_cast<const std::byte*>(params) + parameter.offset,
                    sizeof handle);
        if (parameter.handle == 's') {
          log_.forget(handle);
          log_generation_.fetch_add(1, std::memory_order_acq_rel);
        }
        const std::lock_guard lock(restore_mutex_);
        sent_.erase({parameter.handle, handle});
      }
    }
    objects_.note(call, params, per_thread);
  }
  keeper_.look_at_objects();
  if (call.after == driver_api::After::kDeclined && call.kind != Kind::kProcess &&
      call.kind != Kind::kQuery) {
    count_obstacle(call.name);
  }
  if (call.kind == Kind::kGraph && call.name.starts_with("cuGraphInstantiate")) {
    count_obstacle(call.name);
  }
  if (call.hook == Hook::kReports && call.name.starts_with("cuCtxSynchronize")) {
    unfinished_ = false;
  }
  if (call.kind == Kind::kModule) {
    note_globals(call, params);
  } else if (const auto [begin, end] = written_by(call, params); end != 0) {
    if (const CUresult code = globals_.after_write(begin, end, stream_of(call, cbid, params));
        code != CUDA_SUCCESS) {
      return code;
    }
  }
  if (leaves_work(call)) {
    return settle(stream_of(call, cbid, params));
  }
  return CUDA_SUCCESS;
}

void Takeover::thread_gone(const ThreadState& state) {
  (void)state;
  log_generation_.fetch_add(1, std::memory_order_acq_rel);
}

std::string Takeover::obstacle() const {
  if (std::string why = parts_.steering.obstacle(); !why.empty()) {
    return why;
  }
  if (unfinished_.load()) {
    return "work that waits for the host, or took longer than " +
           std::to_string(std::chrono::seconds(kPatience).count()) +
           " s, was under way, and what it has done is not known";
  }
  if (std::string why = globals_.obstacle(); !why.empty()) {
    return why;
  }
  const std::lock_guard lock(obstacles_mutex_);
  if (!obstacles_.empty()) {
    return "the program has used " + *obstacles_.begin() + ", which cannot be carried over";
  }
  return "";
}

// --- the takeover ---

// A standby that is started now, while this process's memory is exported: neither waits for the
// other.
class Takeover::ColdStandby {
 public:
  using Times = std::map<std::string, double>;  // in ms, by step and part

  explicit ColdStandby(Takeover& takeover)
      : t_(takeover),
        exporter_(takeover.parts_.steering.memory(),
                  {[&takeover](const SteeredMemory& memory) {
                     return takeover.parts_.steering.export_fd(memory);
                   },
                   takeover.parts_.quiet_this_thread}) {}

  // Null until `start` has got so far.
  recovery::StandbyLink* link() const { return link_; }

  // The process is there and makes its context.
  StepResult start(Times& times) {
    const auto begin = Clock::now();
    std::string error;
    const int fd = t_.parts_.session.start_standby(error);
    const auto spawned = Clock::now();
    times["start.spawn"] += ms(spawned - begin);
    if (fd < 0) {
      return StepResult::decline("no standby could be started: " + error);
    }
    auto link = recovery::StandbyLink::open(fd, kStandbyPatience, error);
    times["start.hello"] += ms(Clock::now() - spawned);
    if (link == nullptr) {
      return StepResult::decline("the standby did not start: " + error);
    }
    link_ = link.get();
    t_.links_.push_back(std::move(link));
    const Answer answer = link_->begin_setup(t_.setup_);
    return answer.ok() ? StepResult::done()
                       : StepResult::decline("the standby has no device: " + words(answer));
  }

  // Hands everything over, and waits until it is mapped.
  StepResult finish(Times& times) {
    const auto begin = Clock::now();
    double send_ms = 0;
    for (;;) {
      const std::vector<Exporter::Exported> some = exporter_.take(kAtOnce);
      if (some.empty()) {
        break;
      }
      const auto sending = Clock::now();
      StepResult result = send(some);
      send_ms += ms(Clock::now() - sending);
      if (result.end != recovery::StepEnd::kDone) {
        return result;
      }
    }
    const auto exported = Clock::now();
    std::vector<SharedHost> hosts = t_.parts_.steering.hosts();
    hosts.push_back(t_.words_);
    for (const SharedHost& host : hosts) {
      const Answer answer = link_->map_host(host.address, host.size, host.flags, host.fd);
      if (!answer.ok()) {
        return StepResult::decline("the standby could not map pinned host memory: " +
                                   words(answer));
      }
    }
    const auto sent = Clock::now();
    recovery::StandbyLink::SetupTimes setup;
    const Answer answer = link_->finish_setup(&setup);
    times["map.export"] += ms(exported - begin) - send_ms;
    times["map.send"] += send_ms + ms(sent - exported);
    times["map.wait"] += ms(Clock::now() - sent);
    // Beside all this: exports, by the time of all threads together; the context and the mapping
    // behind it, by the standby's clock.
    times["map.exports"] += exporter_.busy_ms();
    times["map.context"] += setup.context_ms;
    times["map.standby"] += setup.map_ms;
    return answer.ok() ? StepResult::done()
                       : StepResult::decline("the standby could not be set up: " + words(answer));
  }

 private:
  static constexpr std::size_t kAtOnce = 16;

  template <class Duration>
  static double ms(Duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  }

  StepResult send(const std::vector<Exporter::Exported>& some) {
    std::vector<recovery::StandbyLink::Memory> memories;
    std::vector<SteeredMemory> failed;
    memories.reserve(some.size());
    for (const auto& [memory, fd] : some) {
      if (fd >= 0) {
        memories.push_back({memory.address, memory.size, fd});
      } else {
        failed.push_back(memory);
      }
    }
    Answer answer = link_->map_memories(memories);
    for (const auto& memory : memories) {
      close(memory.fd);
    }
    for (std::size_t i = 0; answer.ok() && i < failed.size(); ++i) {
      // Once more: there are fewer descriptors now, and this thread has a context, if a dead one.
      const int fd = t_.parts_.steering.export_fd(failed[i]);
      if (fd < 0) {
        return StepResult::decline("device memory could not be handed over");
      }
      answer = link_->map_memory(failed[i].address, failed[i].size, fd);
      close(fd);
    }
    return answer.ok()
               ? StepResult::done()
               : StepResult::decline("the standby could not map device memory: " + words(answer));
  }

  Takeover& t_;
  recovery::StandbyLink* link_ = nullptr;
  Exporter exporter_;
};

namespace {

void judge_launch(const LoggedLaunch& launch, const idempotency::MemoryMap& memory,
                  idempotency::Verdict& verdict) {
  idempotency::LaunchDimensions dimensions;
  std::copy_n(launch.launch.grid, 3, dimensions.grid);
  std::copy_n(launch.launch.block, 3, dimensions.block);
  dimensions.shared_bytes = launch.launch.shared_bytes;
  judge_kernel(*static_cast<const Kernel*>(launch.kernel), launch.launch.arguments, dimensions,
               memory, verdict);
}

}  // namespace

class Takeover::Steps final : public recovery::TakeoverSteps {
 public:
  Steps(Takeover& takeover, const TakeoverRequest& request, TakeoverReport& report)
      : t_(takeover), request_(request), report_(report) {}

  StepResult check() override {
    if (!request_.obstacle.empty()) {
      return StepResult::decline(request_.obstacle);
    }
    std::string why = t_.obstacle();
    return why.empty() ? StepResult::done() : StepResult::decline(std::move(why));
  }

  StepResult fence() override {
    if (t_.active()) {
      // The end of its process stops whatever it had under way.
      if (auto* link = t_.link_.exchange(nullptr)) {
        link->kill();
      }
      return StepResult::done();
    }
    std::string error;
    return t_.parts_.steering.fence(request_.drained, error) ? StepResult::done()
                                                             : StepResult::decline(error);
  }

  StepResult read_frontier() override {
    frontier_ = recovery::frontier_of(
        t_.log_, [](const void* kernel) { return static_cast<const Kernel*>(kernel)->name; },
        [&](const LoggedLaunch& launch) { return why_not(launch); });
    if (frontier_.kernel != nullptr) {
      report_.kernel = static_cast<const Kernel*>(frontier_.kernel);
    }
    for (std::size_t i = 0; i < frontier_.to_do.size(); ++i) {
      if (frontier_.may_have_run[i]) {
        report_.launch = frontier_.to_do[i].order;
        report_.stream = frontier_.to_do[i].launch.stream;
        idempotency::Verdict verdict;
        judge(frontier_.to_do[i], verdict);
        report_.verdict = idempotency::name_of(verdict.kind);
        if (verdict.kind == idempotency::VerdictKind::kIdempotent) {
          report_.trust = idempotency::name_of(verdict.trust);
        }
        break;
      }
    }
    if (!frontier_.recoverable) {
      return StepResult::refuse(frontier_.reason);
    }
    for (std::size_t i = 0; i < frontier_.to_do.size(); ++i) {
      writes_.emplace_back();
      if (!frontier_.may_have_run[i]) {
        continue;
      }
      idempotency::Verdict verdict;
      judge(frontier_.to_do[i], verdict);
      if (verdict.kind != idempotency::VerdictKind::kIdempotent || verdict.writes_host_visible) {
        return StepResult::refuse(why_not(frontier_.to_do[i]));
      }
      if (request_.must_be_in_bounds && !verdict.all_in_bounds) {
        return StepResult::refuse(
            "an address fault, and not every access of what would be replayed is proved in bounds");
      }
      writes_.back() = verdict.writes;
    }
    make_keep();
    return StepResult::done();
  }

  StepResult start() override {
    // A warm one is used once.
    if (auto ready = t_.active() ? std::nullopt : t_.keeper_.take()) {
      warm_ = std::move(ready);
      t_.links_.push_back(std::move(warm_->link));
      link_ = t_.links_.back().get();
      return StepResult::done();
    }
    return start_cold();
  }

  StepResult map() override {
    if (!warm_) {
      return cold_->finish(link_times_);
    }
    if (StepResult result = catch_up(); result.end != recovery::StepEnd::kDone) {
      return go_cold();
    }
    return StepResult::done();
  }

  StepResult check_memory() override {
    // After an error of the memory itself, some of it may not be readable; that must not kill the
    // standby that is to go on.
    if (request_.code != CUDA_ERROR_ECC_UNCORRECTABLE &&
        request_.code != CUDA_ERROR_NVLINK_UNCORRECTABLE && request_.code != CUDA_ERROR_CONTAINED) {
      return StepResult::done();
    }
    ColdStandby disposable(t_);
    ColdStandby::Times times;
    StepResult result = disposable.start(times);
    if (result.end == recovery::StepEnd::kDone) {
      result = disposable.finish(times);
    }
    if (result.end == recovery::StepEnd::kDone) {
      result = read_all(*disposable.link());
    }
    if (disposable.link() != nullptr) {
      disposable.link()->kill();
    }
    return result;
  }

  StepResult restore() override {
    StepResult result = restore_into();
    if (result.end != recovery::StepEnd::kDone && warm_) {
      // What was loaded while the program ran may lie elsewhere than what is loaded in one go.
      result = go_cold();
      if (result.end == recovery::StepEnd::kDone) {
        result = restore_into();
      }
    }
    return result;
  }

  StepResult restore_into() {
    {
      const std::lock_guard lock(t_.restore_mutex_);
      t_.sent_.clear();
      if (warm_) {
        for (const Objects::State& state : t_.objects_.states()) {
          const auto at = warm_->objects.find(state.key);
          if (at != warm_->objects.end() && at->second.identity == state.identity &&
              at->second.version == state.version) {
            t_.sent_.insert(state.key);
          }
        }
      }
    }
    t_.link_.store(link_);
    for (const char kind : {'c', 's', 'e'}) {
      for (const ObjectKey key : t_.objects_.all(kind)) {
        if (const Answer answer = t_.ensure(key); !answer.ok()) {
          return StepResult::decline("an object of the program's could not be made again: " +
                                     words(answer));
        }
        if (kind == 'e' && t_.objects_.recorded(key.handle)) {
          cuEventRecord_params params{};
          params.hEvent = reinterpret_cast<CUevent>(key.handle);
          std::vector<std::byte> results;
          if (const Answer answer =
                  t_.send(*driver_api::find("cuEventRecord"), &params, false, {}, results);
              !answer.ok()) {
            return StepResult::decline("an event could not be recorded again: " + words(answer));
          }
        }
      }
    }
    std::string why = t_.globals_.restore(t_.standby_for_globals());
    return why.empty() ? StepResult::done() : StepResult::decline(std::move(why));
  }

  StepResult replay() override {
    // Each of these goes on where an attempt before left off: what it made complete is not touched
    // again, for what follows may have changed what it read.
    if (!put_back_) {
      for (const recovery::KeptCopy& copy : frontier_.copies) {
        if (StepResult result = copy_now(copy.range.begin, copy.copy, copy.range);
            result.end != recovery::StepEnd::kDone) {
          return result;
        }
      }
      put_back_ = true;
    }
    if (saved_) {
      const auto layout = recovery::saved_layout(writes_[next_]);
      for (std::size_t i = 0; i < writes_[next_].size(); ++i) {
        const idempotency::Range& range = writes_[next_][i];
        if (StepResult result =
                copy_now(t_.globals_.translate(range.begin, range.end - range.begin),
                         keep_ + layout.offsets[i], range);
            result.end != recovery::StepEnd::kDone) {
          return result;
        }
      }
      saved_ = false;
    }
    // What was issued anew runs on. The last check of another stream's launch fills what that may
    // write with noise, bounded by whole allocations: nothing else may run then.
    for (std::size_t i = next_; i < frontier_.to_do.size(); ++i) {
      LoggedLaunch launch = frontier_.to_do[i];
      t_.globals_.translate_arguments(launch.launch.arguments);
      const auto& name = static_cast<const Kernel*>(launch.kernel)->name;
      if (const Answer answer = t_.ensure({'f', launch.launch.function}); !answer.ok()) {
        return StepResult::decline("`" + name + "` could not be loaded: " + words(answer));
      }
      if (!frontier_.may_have_run[i]) {
        running_ = true;
        const Answer answer = link_->launch(launch.launch);
        if (!answer.ok()) {
          return failed(answer.sent, answer.code, "`" + name + "`: " + words(answer));
        }
        continue;
      }
      if (StepResult result = wait_until(i); result.end != recovery::StepEnd::kDone) {
        return result;
      }
      if (StepResult result = replay_one(i, launch.launch);
          result.end != recovery::StepEnd::kDone) {
        return result;
      }
      next_ = i + 1;
    }
    if (StepResult result = wait_until(frontier_.to_do.size());
        result.end != recovery::StepEnd::kDone) {
      return result;
    }
    for (const LoggedLaunch& launch : frontier_.to_do) {
      if (std::string why = t_.globals_.refresh(t_.standby_for_globals(),
                                                *static_cast<const Kernel*>(launch.kernel),
                                                launch.launch.arguments);
          !why.empty()) {
        return StepResult::decline(std::move(why));
      }
    }
    return StepResult::done();
  }

  StepResult commit() override {
    for (recovery::StreamLog* log : t_.log_.streams()) {
      log->clear();
    }
    t_.launched_ = false;
    t_.code_ = request_.code;
    t_.replace_driver();
    t_.parts_.kernels.forget_unknown();
    t_.parts_.ops.forget_all();
    t_.parts_.steering.set_sink(&t_);
    t_.parts_.steering.set_taken_over(true);
    t_.epoch_.fetch_add(1);
    if (keep_ != 0) {
      t_.parts_.steering.free(keep_);
    }
    return StepResult::done();
  }

  const ColdStandby::Times& link_times() const { return link_times_; }

  void abandon() noexcept override {
    warm_.reset();
    t_.link_.store(nullptr);
    if (link_ != nullptr) {
      link_->kill();
      link_ = nullptr;
    }
  }

 private:
  // What was issued anew before the i-th is complete.
  StepResult wait_until(std::size_t i) {
    if (running_) {
      if (const Answer answer = wait_for_all(); !answer.ok()) {
        return failed(answer.sent, answer.code, words(answer));
      }
      running_ = false;
    }
    next_ = i;
    return StepResult::done();
  }

  StepResult copy_now(std::uint64_t to, std::uint64_t from, const idempotency::Range& range) {
    const Answer answer = link_->copy(to, from, range.end - range.begin,
                                      reinterpret_cast<std::uint64_t>(CU_STREAM_LEGACY), false);
    return answer.ok() ? StepResult::done()
                       : failed(answer.sent, answer.code,
                                "memory could not be put back or saved: " + words(answer));
  }

  StepResult replay_one(std::size_t i, const recovery::RemoteLaunch& launch) {
    recovery::RemoteReplay replay;
    replay.launch = launch;
    replay.seed = request_.seed + i;
    // What the last check overwrites must outlive a standby that ends in the middle of it.
    if (keep_ != 0 && !writes_[i].empty()) {
      replay.keep = keep_;
      replay.keep_word = t_.words_.address + recovery::LaunchLog::kWordBytes;
      replay.keep_value = ++t_.keep_value_;
    }
    for (const auto& range : writes_[i]) {
      const std::uint64_t size = range.end - range.begin;
      replay.begins.push_back(t_.globals_.translate(range.begin, size));
      replay.ends.push_back(replay.begins.back() + size);
    }
    const recovery::ReplayAnswer answer = link_->replay(replay);
    saved_ = replay.keep != 0 && keep_word() == replay.keep_value;
    lost_ = replay.keep == 0 && !writes_[i].empty();
    if (!answer.sent) {
      return failed(false, 0, answer.reason);
    }
    if (answer.refused) {
      return StepResult::refuse(answer.reason);
    }
    if (!answer.recovered) {
      return failed(true, answer.code, answer.reason);
    }
    saved_ = false;
    lost_ = false;
    return StepResult::done();
  }

  std::uint32_t keep_word() const {
    return std::launder(reinterpret_cast<std::atomic<std::uint32_t>*>(
                            t_.words_.address + recovery::LaunchLog::kWordBytes))
        ->load(std::memory_order_acquire);
  }

  // Memory in the arena for what a last check overwrites; without it there is one attempt.
  void make_keep() {
    std::uint64_t size = 0;
    for (const auto& writes : writes_) {
      size = std::max(size, recovery::saved_layout(writes).size);
    }
    CUdeviceptr address = 0;
    if (size != 0 && request_.max_attempts > 1 &&
        t_.parts_.steering.allocate(&address, size) == CUDA_SUCCESS) {
      keep_ = address;
    }
  }

  Answer wait_for_all() {
    cuCtxSynchronize_v2_params params{};
    std::vector<std::byte> results;
    return t_.send(*driver_api::find("cuCtxSynchronize"), &params, false, {}, results);
  }

  StepResult failed(bool sent, std::int32_t code, const std::string& why) const {
    if (sent && code == request_.code) {
      // How far those came that nobody waited for is not known.
      return StepResult::repeats("the same error came again: " + why, running_ || lost_);
    }
    return sent ? StepResult::refuse("re-execution failed: " + why)
                : StepResult::decline("the standby ended during the re-execution: " + why);
  }

  void judge(const LoggedLaunch& launch, idempotency::Verdict& verdict) const {
    judge_launch(launch, t_.parts_.memory, verdict);
  }

  std::string why_not(const LoggedLaunch& launch) const {
    idempotency::Verdict verdict;
    judge(launch, verdict);
    if (verdict.kind != idempotency::VerdictKind::kIdempotent) {
      return verdict.reason;
    }
    if (verdict.writes_host_visible) {
      return "the kernel writes memory that the host can see meanwhile";
    }
    return "the verdict's trust `" + std::string(idempotency::name_of(verdict.trust)) +
           "` is not among those that count";
  }

  StepResult start_cold() {
    cold_.emplace(t_);
    StepResult result = cold_->start(link_times_);
    link_ = cold_->link();
    return result;
  }

  // The warm standby will not do.
  StepResult go_cold() {
    warm_.reset();
    t_.link_.store(nullptr);
    link_->kill();
    StepResult result = start_cold();
    return result.end == recovery::StepEnd::kDone ? cold_->finish(link_times_) : result;
  }

  // What the warm standby does not have yet, or has no longer to have. Nobody else changes anything
  // now.
  StepResult catch_up() {
    std::vector<SharedHost> hosts = t_.parts_.steering.hosts();
    hosts.push_back(t_.words_);
    const std::vector<SteeredMemory> memories = t_.parts_.steering.memory();
    const auto lives = [&](const recovery::Upkeep::Piece& piece) {
      return piece.host
                 ? std::any_of(hosts.begin(), hosts.end(),
                               [&](const SharedHost& host) {
                                 return host.address == piece.address && host.size == piece.size &&
                                        host.fd == piece.fd;
                               })
                 : std::any_of(memories.begin(), memories.end(), [&](const SteeredMemory& memory) {
                     return memory.address == piece.address && memory.size == piece.size &&
                            memory.handle == piece.handle;
                   });
    };
    std::vector<recovery::Upkeep::Piece> gone = warm_->stale;
    std::set<std::uint64_t> kept;
    for (const auto& piece : warm_->kept) {
      if (lives(piece)) {
        kept.insert(piece.address);
      } else {
        gone.push_back(piece);
      }
    }
    for (const auto& piece : gone) {
      const Answer answer = piece.host ? link_->unmap_host(piece.address, piece.size)
                                       : link_->unmap_memory(piece.address, piece.size);
      if (!answer.ok()) {
        return StepResult::decline("the standby could not let go of memory: " + words(answer));
      }
    }
    for (const SteeredMemory& memory : memories) {
      if (kept.contains(memory.address)) {
        continue;
      }
      const int fd = t_.parts_.steering.export_fd(memory);
      if (fd < 0) {
        return StepResult::decline("device memory could not be handed over");
      }
      const Answer answer = link_->map_memory(memory.address, memory.size, fd);
      close(fd);
      if (!answer.ok()) {
        return StepResult::decline("the standby could not map device memory: " + words(answer));
      }
    }
    for (const SharedHost& host : hosts) {
      if (kept.contains(host.address)) {
        continue;
      }
      const Answer answer = link_->map_host(host.address, host.size, host.flags, host.fd);
      if (!answer.ok()) {
        return StepResult::decline("the standby could not map pinned host memory: " +
                                   words(answer));
      }
    }
    return StepResult::done();
  }

  StepResult read_all(recovery::StandbyLink& link) {
    constexpr std::uint64_t kPiece = 64 << 20;
    recovery::StandbyLink* const before = t_.link_.exchange(&link);
    struct PutBack {
      std::atomic<recovery::StandbyLink*>& where;
      recovery::StandbyLink* what;
      ~PutBack() { where.store(what); }
    } const put_back{t_.link_, before};
    CUdeviceptr scratch = 0;
    cuMemAlloc_v2_params alloc{&scratch, kPiece};
    std::vector<std::byte> results;
    const auto& call = *driver_api::find("cuMemAlloc_v2");
    Answer answer = t_.send(call, &alloc, false, {}, results);
    if (answer.ok() &&
        !recovery::store_results(call, &alloc, results, [](std::string_view) { return nullptr; })) {
      return StepResult::decline("the standby's answer was not understood");
    }
    for (const SteeredMemory& memory : t_.parts_.steering.memory()) {
      for (std::uint64_t at = 0; at < memory.size && answer.ok(); at += kPiece) {
        answer = link.copy(scratch, memory.address + at, std::min(kPiece, memory.size - at),
                           reinterpret_cast<std::uint64_t>(CU_STREAM_LEGACY), true);
      }
    }
    if (answer.ok()) {
      cuCtxSynchronize_v2_params params{};
      answer = t_.send(*driver_api::find("cuCtxSynchronize"), &params, false, {}, results);
    }
    return answer.ok()
               ? StepResult::done()
               : StepResult::decline("device memory can no longer be read: " + words(answer));
  }

  Takeover& t_;
  const TakeoverRequest& request_;
  TakeoverReport& report_;
  recovery::Frontier frontier_;
  std::vector<std::vector<idempotency::Range>> writes_;  // of each to do
  recovery::StandbyLink* link_ = nullptr;
  bool put_back_ = false;  // the copies of the frontier
  std::size_t next_ = 0;   // so many of those to do are complete
  bool running_ = false;   // some behind these have been issued anew
  std::uint64_t keep_ = 0;
  bool saved_ = false;                        // what the next one overwrites is there
  bool lost_ = false;                         // it is nowhere
  std::optional<StandbyKeeper::Ready> warm_;  // what link_ leads to, unless it is a cold one
  std::optional<ColdStandby> cold_;
  ColdStandby::Times link_times_;
};

TakeoverReport Takeover::take_over(const TakeoverRequest& request) {
  keeper_.pause();
  TakeoverReport report;
  Steps steps(*this, request, report);
  report.result = recovery::take_over(steps, request.max_attempts);
  for (const auto& [name, ms] : report.result.times) {
    report.steps.push_back({name, ms});
    for (const auto& [part, part_ms] : steps.link_times()) {
      if (part.starts_with(std::string(name) + ".")) {
        report.steps.push_back({part, part_ms});
      }
    }
  }
  if (report.result.end != recovery::TakeoverEnd::kRecovered) {
    give_up();
  }
  return report;
}

Takeover::Suspect Takeover::suspect() {
  Suspect suspect;
  std::vector<const Kernel*> kernels;
  for (recovery::StreamLog* log : log_.streams()) {
    const auto incomplete = log->incomplete();
    for (std::size_t i = 0; i < incomplete.may_have_run; ++i) {
      const LoggedLaunch& launch = incomplete.launches[i];
      const auto* kernel = static_cast<const Kernel*>(launch.kernel);
      if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) {
        kernels.push_back(kernel);
      }
      if (suspect.launch == 0) {
        suspect.launch = launch.order;
        suspect.stream = launch.launch.stream;
      }
    }
  }
  constexpr std::size_t kNamed = 4;
  for (std::size_t i = 0; i < std::min(kernels.size(), kNamed); ++i) {
    suspect.kernels += (i == 0 ? "" : " or ") + kernels[i]->name;
  }
  if (kernels.size() > kNamed) {
    suspect.kernels += " or another";
  }
  return suspect;
}

bool Takeover::suspects_in_bounds() {
  bool any = false;
  idempotency::Verdict verdict;
  for (recovery::StreamLog* log : log_.streams()) {
    const auto incomplete = log->incomplete();
    for (std::size_t i = 0; i < incomplete.may_have_run; ++i) {
      judge_launch(incomplete.launches[i], parts_.memory, verdict);
      if (!verdict.all_in_bounds) {
        return false;
      }
      any = true;
    }
  }
  return any;
}

void Takeover::give_up() {
  keeper_.give_up();
  if (auto* link = link_.exchange(nullptr)) {
    link->kill();
  }
  // Once calls are served, they still are: by the error.
  if (!active()) {
    enabled_ = false;
  }
}

bool Takeover::standby_lost() const {
  const auto* link = link_.load();
  return active() && link != nullptr && !link->alive();
}

}  // namespace gpurecover::agent
