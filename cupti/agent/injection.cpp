// SPDX-License-Identifier: Apache-2.0
//
// Forged faults: arming them, letting them fire, and the damage that they leave behind.
#include <chrono>

#include "classifier/catalogue.h"
#include "cupti/agent/agent.h"

namespace gpurecover::agent {
namespace {

using idempotency::Range;

}  // namespace

void Agent::arm(const std::vector<inject::Fault>& faults) {
  if (faults.empty()) {
    return;
  }
  const std::lock_guard lock(arm_mutex_);
  const Plan* old = plan_.load();
  auto* plan = new Plan;
  if (old != nullptr) {
    *plan = *old;
  }
  for (const auto& fault : faults) {
    const auto index = static_cast<std::uint32_t>(plan->size());
    auto pattern = classifier::Pattern::compile(fault.kernel);
    if (!pattern || index >= protocol::kMaxFaultSpecs) {
      session_.notice(protocol::Severity::kError, pattern ? "the plan holds too many faults"
                                                          : "bad kernel pattern `" + fault.kernel +
                                                                "`: " + pattern.error().what);
      continue;
    }
    plan->push_back(std::make_shared<ArmedFault>(fault, index, std::move(*pattern)));
  }
  plan_.store(plan);
  plan_generation_.fetch_add(1);
}

void Agent::take_new_plan() {
  std::vector<inject::Fault> faults;
  if (session_.take_new_plan(faults)) {
    arm(faults);
    enable_for_plan();
  }
}

void Agent::look_for_fault(ThreadState& state, Kernel& kernel) {
  // In this order: the plan is at least as new as the generation that its matches are kept under.
  const std::uint32_t generation = plan_generation_.load();
  const Plan& plan = *plan_.load();
  if (kernel.plan_generation.load() != generation) {
    std::uint64_t matches = 0;
    for (const auto& armed : plan) {
      // Graph launches match by their own word only: `*` means kernels.
      const bool graph = armed->fault.kernel == "graph";
      const bool is_graph = kernel.symbol == "graph";
      if (graph == is_graph && armed->pattern.matches(kernel.name)) {
        matches |= std::uint64_t{1} << armed->index;
      }
    }
    kernel.plan_matches.store(matches);
    kernel.plan_generation.store(generation);
  }
  const std::uint64_t matches = kernel.plan_matches.load();
  if (matches == 0) {
    return;
  }
  std::shared_ptr<ArmedFault> fires;
  std::uint64_t match = 0;
  for (const auto& armed : plan) {
    if ((matches >> armed->index & 1) == 0) {
      continue;
    }
    session_.page().matched[armed->index].fetch_add(1, std::memory_order_relaxed);
    // Each fault counts its matches, also where another one fires.
    const std::uint64_t at = armed->trigger.on_match();
    if (at != 0 && fires == nullptr) {
      fires = armed;
      match = at;
    }
  }
  if (fires != nullptr) {
    begin_injection(state, std::move(fires), match);
  }
}

CUresult Agent::drain() {
  CUresult code = driver_.cuCtxSynchronize();
  CUcontext current = nullptr;
  if (code != CUDA_SUCCESS || driver_.cuCtxGetCurrent(&current) != CUDA_SUCCESS) {
    return code;
  }
  std::vector<CUcontext> others;
  {
    const std::lock_guard lock(contexts_mutex_);
    for (const auto& [context, device] : devices_) {
      if (context != current) {
        others.push_back(context);
      }
    }
  }
  // A kernel of another context, on another device perhaps, may use the same memory.
  for (CUcontext const context : others) {
    if (driver_.cuCtxSetCurrent(context) == CUDA_SUCCESS) {
      const CUresult other = driver_.cuCtxSynchronize();
      code = code == CUDA_SUCCESS ? other : code;
    }
  }
  if (!others.empty()) {
    driver_.cuCtxSetCurrent(current);
  }
  return code;
}

bool Agent::save_for_damage(ThreadState& state, Injection& injection) {
  // What the kernel may change: its write ranges, or, where they are not known, all device memory.
  if (state.verdict.kind != idempotency::VerdictKind::kUnknown) {
    injection.ranges = state.verdict.writes;
  } else {
    for (const auto& allocation : memory_.snapshot()) {
      if (!allocation.host_visible && allocation.kind != idempotency::AllocationKind::kArray) {
        injection.ranges.push_back({allocation.address, allocation.end()});
      }
    }
  }
  std::uint64_t size = 0;
  for (const Range& range : injection.ranges) {
    injection.offsets.push_back(size);
    size += (range.end - range.begin + 255) / 256 * 256;
  }
  injection.before = std::make_unique<driver_api::Scratch>(driver_);
  injection.counter = std::make_unique<driver_api::Scratch>(driver_);
  CUstream const stream = state.call.launch.explicit_stream();
  bool saved = injection.before->allocate(size) && injection.counter->allocate(8) &&
               ops_.prepare() == CUDA_SUCCESS;
  for (std::size_t i = 0; saved && i < injection.ranges.size(); ++i) {
    saved = driver_.cuMemcpyDtoDAsync(
                injection.before->get() + injection.offsets[i], injection.ranges[i].begin,
                injection.ranges[i].end - injection.ranges[i].begin, stream) == CUDA_SUCCESS;
  }
  saved = saved && driver_.cuMemsetD8Async(injection.counter->get(), 0, 8, stream) == CUDA_SUCCESS;
  return driver_.cuStreamSynchronize(stream) == CUDA_SUCCESS && saved;
}

void Agent::begin_injection(ThreadState& state, std::shared_ptr<ArmedFault> armed,
                            std::uint64_t match) {
  auto& under_way = state.call;
  under_way.entered = std::chrono::steady_clock::now();
  if (!gate_.begin(state.lane)) {
    armed->trigger.take_back();
    session_.notice(protocol::Severity::kError,
                    "a fault did not fire: other threads did not come to rest");
    return;
  }
  // Ends the work, unless the fault has come to be: then the launch's exit does.
  struct Work {
    WorkGate* gate;
    ~Work() {
      if (gate != nullptr) {
        gate->end();
      }
    }
  } work{&gate_};
  const driver_api::RelaxedCapture relaxed(driver_);
  // Everything before is to be complete, so that this one launch is in question and nothing else.
  // If it is not, that is an error of the app's own, which its next call will meet; or another
  // thread has begun a capture or met a fault while this one waited for its turn.
  if (drain() != CUDA_SUCCESS || !gate_.undisturbed() || captures_.load() > 0 ||
      held_back_.load() != 0 || dead_.load()) {
    armed->trigger.take_back();
    return;
  }
  // The log is to know it too: what is done about a forged fault is not in it.
  if (takeover_.enabled() && takeover_.drain() != CUDA_SUCCESS) {
    armed->trigger.take_back();
    return;
  }
  auto injection = std::make_unique<Injection>();
  injection->match = match;
  injection->armed = armed;
  const bool real = armed->fault.how == inject::How::kFault;
  if (armed->fault.at || (real && soft_.available() && !takeover_.active())) {
    if (begin_fault_by_device(state, *injection)) {
      under_way.injection = std::move(injection);
      work.gate = nullptr;
    }
    return;
  }
  if (real && !driver_api::device_fault_of(armed->fault.code)) {
    session_.notice(protocol::Severity::kError,
                    "a fault did not fire: no program can make this device report `" +
                        armed->fault.kind + "`; use --how latch");
    return;
  }
  if (const CUresult code = real ? ops_.prepare_fault() : CUDA_SUCCESS; code != CUDA_SUCCESS) {
    session_.notice(protocol::Severity::kError,
                    "a fault did not fire: the kernel that makes it could not be loaded, error " +
                        std::to_string(static_cast<int>(code)));
    return;
  }
  injection->noise_seed = inject::mix(armed->fault.seed, match);
  const auto damage = armed->fault.damage;
  // A kind that is not sticky is the launch's own error: the kernel never ran.
  injection->runs = armed->fault.sticky && damage != inject::Damage::kNone;
  if (injection->runs && damage != inject::Damage::kWhole) {
    decide(state, *under_way.kernel, under_way.launch);
    if (!save_for_damage(state, *injection)) {
      injection->before.reset();
      session_.notice(protocol::Severity::kWarning,
                      "no room to save what the kernel changes: the injected fault leaves its "
                      "output whole instead of damaged");
    }
  }
  if (!injection->runs) {
    suppress(under_way.launch, under_way.suppressed_config);
  }
  session_.page().fired[armed->index].fetch_add(1, std::memory_order_relaxed);
  under_way.injection = std::move(injection);
  work.gate = nullptr;
}

CUresult Agent::do_damage(ThreadState& state, Injection& injection) {
  CUstream const stream = state.call.launch.explicit_stream();
  CUresult code = CUDA_SUCCESS;
  for (std::size_t i = 0; code == CUDA_SUCCESS && i < injection.ranges.size(); ++i) {
    const CUdeviceptr data = injection.ranges[i].begin;
    const std::uint64_t size = injection.ranges[i].end - injection.ranges[i].begin;
    const CUdeviceptr before = injection.before->get() + injection.offsets[i];
    const std::uint64_t seed = injection.noise_seed + injection.offsets[i];
    code = injection.armed->fault.damage == inject::Damage::kPartial
               ? ops_.undo_partly(stream, data, before, size, seed, injection.counter->get())
               : ops_.scribble(stream, data, before, size, seed, injection.counter->get());
  }
  std::uint64_t damaged = 0;
  if (code == CUDA_SUCCESS) {
    code = driver_.cuMemcpyDtoHAsync(&damaged, injection.counter->get(), sizeof damaged, stream);
  }
  if (code == CUDA_SUCCESS) {
    code = driver_.cuStreamSynchronize(stream);
  }
  if (code == CUDA_SUCCESS) {
    session_.notice(protocol::Severity::kInfo, "injected damage: " + std::to_string(damaged) +
                                                   " bytes of `" + state.call.kernel->name + "`");
  }
  // The copy is not needed any more, and the recovery may need the room.
  injection.before.reset();
  injection.counter.reset();
  return code;
}

bool Agent::begin_fault_by_device(ThreadState& state, Injection& injection) {
  const inject::Fault& fault = injection.armed->fault;
  if (!soft_.available()) {
    session_.notice(protocol::Severity::kError,
                    "a fault did not fire: --at needs a device in software, run with --device "
                    "soft");
    return false;
  }
  const LaunchCall& launch = state.call.launch;
  const bool graph = launch.form == driver_api::Hook::kGraphLaunch;
  // In the middle of the grid, so that part of the work is done and part is not; the point is in
  // every launch, whatever its kernel does. Of a graph, the first kernel's beginning.
  const inject::Point middle =
      graph ? inject::Point{}
            : inject::Point{std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2] / 2,
                            launch.block[0] * launch.block[1] * launch.block[2] / 2, 0};
  injection.by_device = true;
  injection.runs = true;
  injection.fired_before = soft_.fired();
  if (!soft_.arm(graph ? std::string() : state.call.kernel->symbol, fault.at.value_or(middle),
                 fault.code, fault.how != inject::How::kFault)) {
    session_.notice(protocol::Severity::kError, "a fault did not fire: softgpu refused it");
    return false;
  }
  return true;
}

void Agent::end_fault_by_device(ThreadState& state, CUresult& result) {
  auto& under_way = state.call;
  const Injection& injection = *under_way.injection;
  const inject::Fault& fault = injection.armed->fault;
  CUresult code = result;
  if (code == CUDA_SUCCESS) {
    code = driver_.cuStreamSynchronize(under_way.launch.explicit_stream());
  }
  if (soft_.fired() == injection.fired_before) {
    soft_.disarm();
    session_.notice(protocol::Severity::kWarning,
                    "a fault did not fire: launch " + std::to_string(injection.match) + " of `" +
                        under_way.kernel->name + "` never comes to the point that --at names");
    if (result != CUDA_SUCCESS) {
      after_real_failure(state, result);
    } else {
      after_any_call(state, code);
    }
    return;
  }
  session_.page().fired[injection.armed->index].fetch_add(1, std::memory_order_relaxed);
  if (fault.how != inject::How::kCode) {
    leave_pending(state, injection);
    return;
  }
  Incident incident;
  incident.kernel = under_way.kernel;
  incident.code = fault.code;
  incident.injection = &injection;
  incident.alone = true;
  incident.context_healthy = true;
  if (!handle_failure(state, incident)) {
    held_back_.store(incident.code);
  }
}

void Agent::leave_pending(ThreadState& state, const Injection& injection) {
  const inject::Fault& fault = injection.armed->fault;
  const auto& under_way = state.call;
  decide(state, *under_way.kernel, under_way.launch);
  PendingFault pending;
  pending.code = fault.code;
  pending.strict = fault.strict;
  pending.kernel = under_way.kernel;
  pending.launch = session_.launches();
  pending.stream = under_way.launch.explicit_stream();
  pending.one_launch = under_way.launch.form != driver_api::Hook::kGraphLaunch;
  pending.repeat = inject::repeat_options(fault, injection.match);
  pending.spec = injection.armed->index;
  pending.noise_seed = injection.noise_seed;
  pending.verdict = state.verdict;
  pending_fault_.add(std::move(pending));
  if (fault.how == inject::How::kLatch) {
    latch_.engage(fault.code);
  }
}

bool Agent::enter_latched(ThreadState& state, std::uint32_t cbid, const CUpti_CallbackData& data) {
  const std::int32_t code = latch_.code_for(cbid);
  if (code == 0) {
    return false;
  }
  // The first call meets the error; where a standby takes over, it is no error any more, and the
  // call goes the way of all calls from now on.
  state.call.entered = std::chrono::steady_clock::now();
  state.call.epoch = takeover_.epoch();
  return !survive(state, static_cast<CUresult>(code)) && latch_.enter(cbid, data);
}

void Agent::end_injection(ThreadState& state, CUresult& result) {
  auto& under_way = state.call;
  Injection& injection = *under_way.injection;
  struct EndWork {
    WorkGate& gate;
    ~EndWork() { gate.end(); }
  } const end{gate_};
  const driver_api::RelaxedCapture relaxed(driver_);

  if (injection.by_device) {
    end_fault_by_device(state, result);
    return;
  }
  Incident incident;
  incident.kernel = under_way.kernel;
  if (!injection.runs) {
    restore(under_way.launch);
    result = CUDA_SUCCESS;
  } else {
    // Where the launch fails by itself, that is what the app gets, and the forged fault did not
    // fire.
    auto& fired = session_.page().fired[injection.armed->index];
    if (result != CUDA_SUCCESS) {
      fired.fetch_sub(1, std::memory_order_relaxed);
      after_real_failure(state, result);
      return;
    }
    // Until regions exist, the launch in question is waited for, so that it is exactly one.
    CUresult code = driver_.cuStreamSynchronize(under_way.launch.explicit_stream());
    if (code == CUDA_SUCCESS && injection.before != nullptr) {
      code = do_damage(state, injection);
      if (code != CUDA_SUCCESS && !classifier::is_sticky(static_cast<std::int32_t>(code))) {
        // Ours alone. The kernel has run, so what it left is whole or damaged in part, and the
        // forged fault stands.
        session_.notice(protocol::Severity::kWarning,
                        "the damage of an injected fault was not done: error " +
                            std::to_string(static_cast<int>(code)));
        code = CUDA_SUCCESS;
      }
    }
    if (code != CUDA_SUCCESS) {
      // It has run, in part or whole, so this is not a launch to be tried again.
      fired.fetch_sub(1, std::memory_order_relaxed);
      result = code;
      incident.code = static_cast<std::int32_t>(code);
      handle_failure(state, incident);
      return;
    }
  }

  if (injection.armed->fault.how == inject::How::kFault) {
    const auto kind = driver_api::device_fault_of(injection.armed->fault.code);
    const CUresult code =
        kind ? ops_.fault(under_way.launch.explicit_stream(), *kind) : CUDA_ERROR_NOT_SUPPORTED;
    if (code != CUDA_SUCCESS) {
      session_.page().fired[injection.armed->index].fetch_sub(1, std::memory_order_relaxed);
      session_.notice(protocol::Severity::kError,
                      "a fault did not fire: the kernel that makes it could not be launched, "
                      "error " +
                          std::to_string(static_cast<int>(code)));
      after_any_call(state, code);
      return;
    }
  }
  if (injection.armed->fault.how != inject::How::kCode) {
    leave_pending(state, injection);
    return;
  }
  incident.code = injection.armed->fault.code;
  incident.injection = &injection;
  incident.phase = injection.armed->fault.sticky ? recovery::Phase::kRun : recovery::Phase::kLaunch;
  incident.context_healthy = true;
  if (handle_failure(state, incident)) {
    return;
  }
  if (incident.phase == recovery::Phase::kLaunch) {
    result = static_cast<CUresult>(incident.code);
  } else {
    // As after a real one: the next call that looks finds it, and nothing runs until then.
    held_back_.store(incident.code);
  }
}

}  // namespace gpurecover::agent
