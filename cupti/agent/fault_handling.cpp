// SPDX-License-Identifier: Apache-2.0
//
// A failure was met: what it is, what the rules say, and what is done about it.

#include <cstdio>
#include <cstring>

#include "classifier/catalogue.h"
#include "cupti/agent/agent.h"
#include "recovery/replay.h"

namespace gpurecover::agent {
namespace {

using driver_api::Hook;
using driver_api::Kind;
using recovery::Phase;
using recovery::Step;

recovery::Action to_recovery(classifier::Action action) {
  switch (action) {
    case classifier::Action::replay:
      return recovery::Action::kReplay;
    case classifier::Action::retry:
      return recovery::Action::kRetry;
    case classifier::Action::return_:
      return recovery::Action::kReturn;
    case classifier::Action::stop:
      return recovery::Action::kStop;
  }
  return recovery::Action::kReturn;
}

const char* outcome_of(recovery::TakeoverEnd end) {
  switch (end) {
    case recovery::TakeoverEnd::kRecovered:
      return "recovered-takeover";
    case recovery::TakeoverEnd::kReturned:
      return "returned";
    case recovery::TakeoverEnd::kRefused:
      return "refused";
    case recovery::TakeoverEnd::kDeclined:
      return "declined";
  }
  return "declined";
}

std::string describe_stream(CUstream stream) {
  if (stream == CU_STREAM_LEGACY) {
    return "legacy";
  }
  if (stream == CU_STREAM_PER_THREAD) {
    return "per-thread";
  }
  char text[32];
  std::snprintf(text, sizeof text, "%p", static_cast<void*>(stream));
  return text;
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

void CUDA_CB do_nothing(void*) {}
void CUDA_CB call_nothing_back(CUstream, CUresult, void*) {}

// The parameter that says how much a copy or a set does; zero makes the driver do nothing.
// Layouts: generated_cuda_meta.h of CUDA 13.0.
std::size_t& amount_of(Hook hook, void* params) {
  switch (hook) {
    case Hook::kSet1d:
      return static_cast<cuMemsetD8Async_params*>(params)->N;
    case Hook::kSet2d:
      return static_cast<cuMemsetD2D8Async_params*>(params)->Width;
    default:
      return static_cast<cuMemcpyHtoD_v2_params*>(params)->ByteCount;
  }
}

}  // namespace

CUresult Agent::health_of_context(const LaunchCall& launch) {
  const driver_api::RelaxedCapture relaxed(driver_);
  // While a stream captures, the context may not be waited for; then the cheaper question must do,
  // which answers with a sticky code too (measured on an H200, driver 580).
  if (captures_.load(std::memory_order_relaxed) > 0) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return driver_.cuStreamIsCapturing(launch.explicit_stream(), &status);
  }
  // Waiting also keeps an out-of-memory from hiding a sticky error of earlier work.
  return driver_.cuCtxSynchronize();
}

void Agent::after_real_failure(ThreadState& state, CUresult& result) {
  if (classifier::is_sticky(static_cast<std::int32_t>(result)) &&
      dead_.load(std::memory_order_relaxed)) {
    return;  // a consequence of what has been told
  }
  state.call.entered = std::chrono::steady_clock::now();
  Incident incident;
  incident.code = static_cast<std::int32_t>(result);
  incident.kernel = state.call.kernel;
  incident.phase = Phase::kLaunch;
  incident.context_healthy = !classifier::is_sticky(incident.code);
  if (incident.context_healthy) {
    // Asked only where the answer counts: programs try launches out, and waiting costs them.
    classifier::Query query;
    query.code = incident.code;
    query.phase = classifier::Phase::launch;
    query.kernel = incident.kernel->name;
    if (classifier::match(session_.rules(), query).action == classifier::Action::retry) {
      const CUresult health = health_of_context(state.call.launch);
      incident.context_healthy = health == CUDA_SUCCESS;
      if (classifier::is_sticky(static_cast<std::int32_t>(health))) {
        incident.code = static_cast<std::int32_t>(health);
      }
    }
  }
  if (!incident.context_healthy) {
    // A launch also reports what failed before it.
    incident.phase = Phase::kRun;
    incident.kernel = nullptr;
  }
  const auto pending = incident.context_healthy ? std::nullopt : pending_fault_.take(incident.code);
  if (pending) {
    incident.pending = &*pending;
    incident.kernel = pending->kernel;
  }
  if (handle_failure(state, incident)) {
    result = CUDA_SUCCESS;
  }
}

bool Agent::handle_failure(ThreadState& state, const Incident& incident) {
  const auto met = std::chrono::steady_clock::now();
  const auto& launch = state.call.launch;
  const inject::Fault* forged =
      incident.injection != nullptr ? &incident.injection->armed->fault : nullptr;
  // Then the call under way is not the launch that failed.
  const PendingFault* pending = incident.pending;

  classifier::Query query;
  query.code = incident.code;
  query.phase =
      incident.phase == Phase::kLaunch ? classifier::Phase::launch : classifier::Phase::run;
  query.kernel = incident.kernel != nullptr ? incident.kernel->name : std::string_view();
  const classifier::Match match = classifier::match(session_.rules(), query);

  recovery::Failure failure;
  failure.code = incident.code;
  failure.phase = incident.phase;
  failure.action = to_recovery(match.action);
  failure.max_attempts = match.max_attempts;
  failure.injected = forged != nullptr || pending != nullptr;
  failure.strict = (forged != nullptr && forged->strict) || (pending != nullptr && pending->strict);
  failure.context_healthy = incident.context_healthy;
  failure.can_take_over = incident.alone && takeover_.enabled();
  // That a standby ended is no fault of the program's: its own would have come back as an error.
  failure.exact_and_in_bounds = incident.standby_lost;
  failure.one_launch =
      incident.kernel != nullptr &&
      (pending != nullptr ? pending->one_launch : launch.form != Hook::kGraphLaunch);
  failure.observe_only = session_.config().level == protocol::Level::kObserve;
  failure.stopped = stopped_.load();

  protocol::FaultRecord record;
  record.code = incident.code;
  record.name = classifier::code_name(incident.code);
  record.phase = incident.phase == Phase::kLaunch ? "launch" : "run";
  record.injected = failure.injected;
  record.rule = match.rule_id();
  record.cls = classifier::to_string(match.cls);
  record.action = classifier::to_string(match.action);
  record.message = incident.standby_lost ? "The standby process has ended." : match.message();
  record.detect_ms = std::chrono::duration<double, std::milli>(met - state.call.entered).count();
  if (incident.kernel != nullptr) {
    if (pending != nullptr) {
      state.verdict = pending->verdict;
    } else {
      decide(state, *incident.kernel, launch);
    }
    const auto& verdict = state.verdict;
    failure.verdict = static_cast<recovery::Verdict>(verdict.kind);
    failure.trusted = trusts(verdict.trust);
    failure.writes_host_visible = verdict.writes_host_visible;
    failure.exact_and_in_bounds |= verdict.all_in_bounds;
    failure.verdict_reason = verdict.reason;
    failure.trust = idempotency::name_of(verdict.trust);
    record.kernel = incident.kernel->name;
    record.launch = pending != nullptr ? pending->launch : session_.launches();
    record.stream =
        describe_stream(pending != nullptr ? pending->stream : launch.explicit_stream());
    record.verdict = idempotency::name_of(verdict.kind);
    if (verdict.kind == idempotency::VerdictKind::kIdempotent) {
      record.trust = failure.trust;
    }
  } else {
    failure.verdict_reason = "it is not known which launch failed";
    record.kernel = "(not known)";
    record.verdict = "unknown";
    if (const auto suspect = takeover_.enabled() ? takeover_.suspect() : Takeover::Suspect{};
        !suspect.kernels.empty()) {
      record.kernel = suspect.kernels;
      record.launch = suspect.launch;
      record.stream = describe_stream(reinterpret_cast<CUstream>(suspect.stream));
    }
  }
  if (forged != nullptr) {
    record.repeat = inject::repeat_options(*forged, incident.injection->match);
  } else if (pending != nullptr) {
    record.repeat = pending->repeat;
  }

  // Whatever else may have run is in question too, and all of it where no launch is named.
  const bool must_be_in_bounds = recovery::is_address_fault(incident.code) &&
                                 !incident.standby_lost && (!failure.injected || failure.strict);
  if (must_be_in_bounds && incident.code == CUDA_ERROR_MISALIGNED_ADDRESS) {
    failure.exact_and_in_bounds = false;  // in bounds says nothing of alignment
  } else if (must_be_in_bounds && !incident.context_healthy) {
    failure.exact_and_in_bounds = (incident.kernel == nullptr || failure.exact_and_in_bounds) &&
                                  takeover_.enabled() && takeover_.suspects_in_bounds();
  }
  const recovery::Decision decision = recovery::decide(failure);
  bool recovered = false;
  record.reason = decision.reason;
  switch (decision.step) {
    case Step::kReturn:
      record.outcome = "returned";
      break;
    case Step::kRefuse:
      record.outcome = "refused";
      break;
    case Step::kDecline:
      record.outcome = "declined";
      break;
    case Step::kTakeOver: {
      TakeoverRequest request;
      request.code = incident.code;
      request.max_attempts = match.max_attempts;
      request.must_be_in_bounds = must_be_in_bounds;
      request.seed = inject::mix(0x74616b65, incident.injection ? incident.injection->noise_seed
                                             : pending          ? pending->noise_seed
                                                       : static_cast<unsigned>(incident.code));
      request.obstacle = takeover_obstacle();
      request.drained = drained(incident);
      const TakeoverReport report = takeover_.take_over(request);
      recovered = report.result.end == recovery::TakeoverEnd::kRecovered;
      record.attempts = report.result.attempts;
      record.repeats = report.result.repeats;
      record.reason = report.result.reason;
      record.outcome = outcome_of(report.result.end);
      record.steps = report.steps;
      // Of a region the first launch stands for all, unless it is known which one failed.
      if (report.kernel != nullptr && (pending == nullptr || !recovered)) {
        record.kernel = report.kernel->name;
        record.verdict = report.verdict;
        record.trust = report.trust;
      }
      if (report.launch != 0 && pending == nullptr) {
        record.launch = report.launch;
        record.stream = describe_stream(reinterpret_cast<CUstream>(report.stream));
      }
      if (recovered) {
        latch_.release();
        enable_after_takeover();
      }
      break;
    }
    case Step::kRetry:
    case Step::kReplay: {
      const driver_api::RelaxedCapture relaxed(driver_);
      recovery::Relaunch again;
      again.launch = [&] {
        if (decision.step == Step::kReplay || !takeover_.enabled() || takeover_.active()) {
          return relaunch(driver_, launch);
        }
        // Nobody waits for it, so it is a launch like others.
        takeover_.begin_launch(state, *incident.kernel, launch);
        const CUresult code = relaunch(driver_, launch);
        takeover_.end_launch(state, code == CUDA_SUCCESS, true);
        return code;
      };
      again.stream = launch.explicit_stream();
      again.code = incident.code;
      again.max_attempts = match.max_attempts;
      again.wait_us = [&](std::uint32_t attempt) { return match.wait_us(attempt); };
      // Not the seed of the damage: noise that equals what the fault left would prove nothing.
      const std::uint64_t seed =
          inject::mix(0x6c617374, incident.injection ? incident.injection->noise_seed : 0);
      const recovery::Result result =
          decision.step == Step::kRetry
              ? recovery::retry(again)
              : recovery::replay(driver_, ops_, again, state.verdict.writes, seed);
      // Whoever lost patience and went in may have read the noise.
      const bool disturbed = incident.injection != nullptr && !gate_.undisturbed();
      recovered = result.recovered && !disturbed;
      record.attempts = result.attempts;
      record.repeats = result.repeats;
      record.reason = result.recovered && disturbed
                          ? "another thread could not be kept off the device meanwhile"
                          : result.reason;
      record.outcome = recovered                     ? "recovered-replay"
                       : result.refused || disturbed ? "refused"
                                                     : "returned";
      break;
    }
  }
  if (match.action == classifier::Action::stop) {
    stopped_ = true;
  }
  if (!incident.context_healthy && classifier::is_sticky(incident.code) && !recovered) {
    dead_ = true;
    takeover_.give_up();
  }
  record.recover_ms = milliseconds_since(met);
  session_.fault(record);
  return recovered;
}

// Whether the device has nothing under way any more: an H200 that reports one of these faults has
// let everything else of that process end, or has stopped it (docs/results/h200-11-drained.txt).
// The process has one context (`takeover_obstacle`). Of other codes, and of forged ones, that is
// not known.
bool Agent::drained(const Incident& incident) const {
  return latch_.code() == 0 && !incident.context_healthy &&
         (incident.code == CUDA_ERROR_ILLEGAL_ADDRESS ||
          incident.code == CUDA_ERROR_LAUNCH_FAILED ||
          incident.code == CUDA_ERROR_MISALIGNED_ADDRESS);
}

std::string Agent::takeover_obstacle() {
  if (captures_.load(std::memory_order_relaxed) > 0) {
    return "a stream captures";
  }
  const std::lock_guard lock(contexts_mutex_);
  return devices_.size() > 1 ? "the program uses more than one context" : "";
}

bool Agent::survive(ThreadState& state, CUresult result) {
  const auto code = static_cast<std::int32_t>(result);
  if (!classifier::is_sticky(code) || dead_.load(std::memory_order_relaxed)) {
    return false;
  }
  if (!takeover_.wanted()) {
    state.call.entered = std::chrono::steady_clock::now();
  }
  Incident incident;
  incident.code = code;
  incident.phase = Phase::kRun;
  std::optional<PendingFault> pending;
  const auto handle = [&] {
    pending = pending_fault_.take(code);
    if (pending) {
      incident.pending = &*pending;
      incident.kernel = pending->kernel;
    }
    return handle_failure(state, incident);
  };
  if (!takeover_.enabled()) {
    return handle();
  }
  // Nobody may be in the middle of a call while memory and calls move to another process.
  struct Work {
    WorkGate& gate;
    const bool begun;
    ~Work() {
      if (begun) {
        gate.end();
      }
    }
  } const work{gate_, gate_.begin(state.lane)};
  if (takeover_.epoch() != state.call.epoch) {
    // Another thread met the same error first.
    state.call.epoch = takeover_.epoch();
    return true;
  }
  if (dead_.load()) {
    return false;
  }
  incident.alone = work.begun;
  incident.standby_lost = takeover_.standby_lost();
  const bool survived = handle();
  state.call.epoch = takeover_.epoch();
  return survived;
}

void Agent::after_any_call(ThreadState& state, CUresult result) {
  // The first call that meets a real, sticky error. Everything after it fails with the same code,
  // which is a consequence and no further fault.
  if (!answered_by_the_dead(state)) {
    survive(state, result);
  }
}

bool Agent::answered_by_the_dead(const ThreadState& state) const {
  const auto& call = state.call;
  return takeover_.active() && !call.served && !call.steered && call.epoch == takeover_.epoch();
}

void Agent::suppress_work(ThreadState& state, const driver_api::Call& call, const void* params) {
  auto& under_way = state.call;
  under_way.suppressed = false;
  under_way.delivers = false;
  const bool work = call.kind == Kind::kCopy || call.kind == Kind::kSet ||
                    call.kind == Kind::kHostFunction || call.kind == Kind::kStreamMemory;
  // What may be recorded into a graph must be recorded as it is: the graph may outlive the fault.
  const bool as_it_is =
      call.hook == Hook::kDelivers || (work && captures_.load(std::memory_order_relaxed) > 0);
  if (call.reports || as_it_is) {
    // Once, by the first call that looks; of two threads that look at once, one gets it.
    under_way.code = held_back_.exchange(0);
    under_way.delivers = under_way.code != 0;
    if (!under_way.delivers || as_it_is) {
      return;
    }
  }
  auto* writable = const_cast<void*>(params);
  switch (call.hook) {
    case Hook::kCopyLinear:
    case Hook::kSet1d:
    case Hook::kSet2d: {
      std::size_t& amount = amount_of(call.hook, writable);
      under_way.saved[0] = amount;
      amount = 0;
      under_way.suppressed = true;
      break;
    }
    case Hook::kCopy2d: {
      auto& pointer = static_cast<cuMemcpy2DAsync_v2_params*>(writable)->pCopy;
      if (pointer != nullptr) {
        under_way.copy_2d = *pointer;
        under_way.copy_2d.WidthInBytes = 0;
        under_way.saved[0] = reinterpret_cast<std::uint64_t>(pointer);
        pointer = &under_way.copy_2d;
        under_way.suppressed = true;
      }
      break;
    }
    case Hook::kCopy3d: {
      auto& pointer = static_cast<cuMemcpy3DAsync_v2_params*>(writable)->pCopy;
      if (pointer != nullptr) {
        under_way.copy_3d = *pointer;
        under_way.copy_3d.WidthInBytes = 0;
        under_way.saved[0] = reinterpret_cast<std::uint64_t>(pointer);
        pointer = &under_way.copy_3d;
        under_way.suppressed = true;
      }
      break;
    }
    case Hook::kHostFunction: {
      // A function of ours runs in its place: the program's is not to see what was not done.
      auto& p = *static_cast<cuLaunchHostFunc_params*>(writable);
      under_way.saved[0] = reinterpret_cast<std::uint64_t>(p.fn);
      p.fn = call.name == "cuLaunchHostFunc"
                 ? &do_nothing
                 : reinterpret_cast<CUhostFn>(reinterpret_cast<void (*)()>(&call_nothing_back));
      under_way.suppressed = true;
      break;
    }
    default:
      break;
  }
}

void Agent::restore_work(ThreadState& state, const driver_api::Call& call, const void* params) {
  if (!state.call.suppressed) {
    return;
  }
  auto* writable = const_cast<void*>(params);
  switch (call.hook) {
    case Hook::kCopyLinear:
    case Hook::kSet1d:
    case Hook::kSet2d:
      amount_of(call.hook, writable) = state.call.saved[0];
      break;
    case Hook::kCopy2d:
      static_cast<cuMemcpy2DAsync_v2_params*>(writable)->pCopy =
          reinterpret_cast<const CUDA_MEMCPY2D*>(state.call.saved[0]);
      break;
    case Hook::kCopy3d:
      static_cast<cuMemcpy3DAsync_v2_params*>(writable)->pCopy =
          reinterpret_cast<const CUDA_MEMCPY3D*>(state.call.saved[0]);
      break;
    case Hook::kHostFunction:
      static_cast<cuLaunchHostFunc_params*>(writable)->fn =
          reinterpret_cast<CUhostFn>(state.call.saved[0]);
      break;
    default:
      break;
  }
}

}  // namespace gpurecover::agent
