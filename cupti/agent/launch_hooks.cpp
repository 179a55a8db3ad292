// SPDX-License-Identifier: Apache-2.0
//
// The life of a launch: its record, its verdict, its counters.
#include <xxhash.h>

#include <cstring>

#include "cupti/agent/agent.h"

namespace gpurecover::agent {
namespace {

using idempotency::VerdictKind;

classifier::Trust to_classifier(idempotency::Trust trust) {
  switch (trust) {
    case idempotency::Trust::kProved:
      return classifier::Trust::proved;
    case idempotency::Trust::kBounded:
      return classifier::Trust::bounded;
    case idempotency::Trust::kDeclared:
      return classifier::Trust::declared;
    case idempotency::Trust::kObserved:
      return classifier::Trust::observed;
  }
  return classifier::Trust::observed;
}

// Reasons are counted, so what differs from launch to launch must not be in them: a part in
// parentheses that holds an address is left out.
std::string without_addresses(const std::string& reason) {
  std::string out;
  for (std::size_t at = 0; at < reason.size();) {
    if (reason[at] == '(') {
      const std::size_t end = reason.find(')', at);
      if (end != std::string::npos && reason.find("0x", at) < end) {
        at = end + 1;
        if (!out.empty() && out.back() == ' ' && (at == reason.size() || reason[at] == ' ')) {
          out.pop_back();
        }
        continue;
      }
    }
    out += reason[at++];
  }
  return out;
}

// "arg0", "arg2.field@16", "global:counter": which argument a root is, in the words of the rule
// file.
std::string word_for(const idempotency::Root& root, const Kernel& kernel) {
  switch (root.kind) {
    case idempotency::RootKind::kParameter:
    case idempotency::RootKind::kAnyParameter:
      for (std::size_t i = 0; i < kernel.layout.size(); ++i) {
        const auto& slot = kernel.layout[i];
        if (root.param_offset >= slot.offset && root.param_offset < slot.offset + slot.size) {
          const std::string argument = "arg" + std::to_string(i);
          if (slot.size <= 8) {
            return argument;
          }
          return root.kind == idempotency::RootKind::kAnyParameter
                     ? argument + ".field@*"
                     : argument + ".field@" + std::to_string(root.param_offset - slot.offset);
        }
      }
      return "arg?";
    case idempotency::RootKind::kGlobalSymbol:
    case idempotency::RootKind::kConstSymbol:
      return "global:" + (root.symbol < kernel.summary->symbols.size()
                              ? kernel.summary->symbols[root.symbol]
                              : std::string("?"));
    case idempotency::RootKind::kLoaded:
      return "loaded";
    default:
      return "unknown";
  }
}

idempotency::LaunchDimensions dimensions_of(const LaunchCall& launch) {
  return {{launch.grid[0], launch.grid[1], launch.grid[2]},
          {launch.block[0], launch.block[1], launch.block[2]},
          launch.shared_bytes};
}

// Field by field: the launch's own dimensions do not lie in one piece, and to put them together for
// every launch would cost more than to compare them.
bool same(const std::array<std::uint32_t, 7>& dimensions, const LaunchCall& launch) {
  return ((dimensions[0] ^ launch.grid[0]) | (dimensions[1] ^ launch.grid[1]) |
          (dimensions[2] ^ launch.grid[2]) | (dimensions[3] ^ launch.block[0]) |
          (dimensions[4] ^ launch.block[1]) | (dimensions[5] ^ launch.block[2]) |
          (dimensions[6] ^ launch.shared_bytes)) == 0;
}

void add_once(std::vector<std::string>& list, std::string word) {
  for (const auto& present : list) {
    if (present == word) {
      return;
    }
  }
  list.push_back(std::move(word));
}

}  // namespace

bool Agent::trusts(idempotency::Trust trust) const {
  return session_.rules().trusts(to_classifier(trust));
}

bool Agent::capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // An error here (a capture elsewhere makes the legacy stream unusable) is the app's to meet.
  return driver_.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Kernel* Agent::kernel_of(ThreadState& state, const LaunchCall& launch, CUcontext context,
                         const char* symbol) {
  if (launch.form == driver_api::Hook::kGraphLaunch) {
    return kernels_.graph();
  }
  const auto key = reinterpret_cast<std::uintptr_t>(launch.function);
  CachedHandle& cached = state.handles[((key >> 4) ^ (key >> 12)) & (ThreadState::kHandles - 1)];
  const std::uint64_t generation = kernels_.generation();
  if (cached.handle == launch.function && cached.context == context &&
      cached.generation == generation) [[likely]] {
    return cached.kernel;
  }
  note_context(context);
  const driver_api::RelaxedCapture relaxed(driver_);
  Kernel* kernel = kernels_.find(launch.function, context, symbol);
  cached = {launch.function, context, generation, kernel};
  return kernel;
}

void Agent::note_context(CUcontext context) {
  {
    const std::lock_guard lock(contexts_mutex_);
    if (context == nullptr || devices_.contains(context)) {
      return;
    }
  }
  CUdevice device = 0;
  if (driver_.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    const std::lock_guard lock(contexts_mutex_);
    devices_.emplace(context, device);
  }
}

bool Agent::decide(ThreadState& state, const Kernel& kernel, const LaunchCall& launch) {
  auto& verdict = state.verdict;
  verdict.clear();
  if (kernel.summary == nullptr && kernel.declared == nullptr) {
    verdict.kind = VerdictKind::kUnknown;
    verdict.reason = kernel.unknown_reason;
    return false;
  }
  if (!gather_arguments(kernel, launch.kernel_params, launch.extra, state.arguments)) {
    verdict.kind = VerdictKind::kUnknown;
    verdict.reason = "its arguments could not be read";
    return false;
  }
  judge_kernel(kernel, state.arguments, dimensions_of(launch), memory_, verdict);
  return true;
}

std::string Agent::unprotected_reason(const idempotency::Verdict& verdict) const {
  if (session_.config().level == protocol::Level::kObserve) {
    return "--level observe records only";
  }
  if (verdict.kind != VerdictKind::kIdempotent) {
    return without_addresses(verdict.reason);
  }
  if (!trusts(verdict.trust)) {
    return "trust `" + std::string(idempotency::name_of(verdict.trust)) + "` does not count";
  }
  if (verdict.writes_host_visible) {
    return "it writes memory that the host can see meanwhile";
  }
  return "";
}

void Agent::tell_kernel(Kernel& kernel, const idempotency::Verdict& verdict) {
  const std::uint32_t gravity = static_cast<std::uint32_t>(verdict.kind) + 1;
  std::uint32_t told = kernel.told.load(std::memory_order_relaxed);
  if (told >= gravity || !kernel.told.compare_exchange_strong(told, gravity)) {
    return;
  }
  protocol::KernelInfo info;
  info.row = kernel.row;
  info.name = kernel.name;
  info.symbol = kernel.symbol;
  info.verdict = static_cast<protocol::VerdictKind>(verdict.kind);
  if (verdict.kind == VerdictKind::kIdempotent) {
    info.trust = idempotency::name_of(verdict.trust);
  } else {
    info.reason = without_addresses(verdict.reason);
  }
  info.analysis = kernel.side_file;
  if (kernel.summary != nullptr) {
    for (const auto& access : kernel.summary->accesses) {
      for (const auto& alternative : access.alternatives) {
        for (const auto& root : alternative.roots) {
          const std::string word = word_for(root, kernel);
          if (access.kind != idempotency::AccessKind::kWrite) {
            add_once(info.reads, word);
          }
          if (access.kind != idempotency::AccessKind::kRead) {
            add_once(info.writes, word);
          }
        }
      }
    }
  }
  session_.kernel(info);
}

Judgement Agent::judge(ThreadState& state, Kernel& kernel, const LaunchCall& launch) {
  LaunchKey key;
  key.cacheable = gather_arguments(kernel, launch.kernel_params, launch.extra, state.arguments);
  state.call.gathered = key.cacheable;
  key.map_generation = memory_.generation();
  key.kernel_generation = kernels_.generation();
  if (key.cacheable) [[likely]] {
    key.arguments = judged_part(kernel, state.arguments, memory_, state.judged);
  }
  const auto holds = [&](const CachedJudgement& entry) {
    // memcmp because `==` of vectors of std::byte goes byte by byte.
    return entry.kernel == &kernel && entry.map_generation == key.map_generation &&
           entry.kernel_generation == key.kernel_generation && same(entry.dimensions, launch) &&
           entry.arguments.size() == key.arguments.size() &&
           (entry.arguments.empty() ||
            std::memcmp(entry.arguments.data(), key.arguments.data(), entry.arguments.size()) == 0);
  };
  if (key.cacheable) [[likely]] {
    for (const std::uint32_t place : state.recent) {
      if (const auto& entry = state.judgements[place]; holds(entry)) {
        return entry.with_sets();
      }
    }
  }
  const std::uint64_t hash = XXH3_64bits_withSeed(key.arguments.data(), key.arguments.size(),
                                                  reinterpret_cast<std::uint64_t>(&kernel));
  key.place = JudgementCache::place_of(hash);
  if (key.cacheable) [[likely]] {
    for (const std::size_t place : {key.place, key.place + 1}) {
      if (const auto& entry = state.judgements[place]; holds(entry)) {
        state.recent = {static_cast<std::uint32_t>(place), state.recent[0]};
        return entry.with_sets();
      }
    }
  }
  return judge_anew(state, kernel, launch, key);
}

Judgement Agent::judge_anew(ThreadState& state, Kernel& kernel, const LaunchCall& launch,
                            const LaunchKey& key) {
  decide(state, kernel, launch);
  const auto& verdict = state.verdict;
  Judgement judgement;
  judgement.kind = verdict.kind;
  const std::string reason = unprotected_reason(verdict);
  judgement.is_protected = reason.empty();
  if (!judgement.is_protected) {
    judgement.reason_id = session_.reason_id(reason);
  }
  tell_kernel(kernel, verdict);
  if (key.cacheable) {
    CachedJudgement& entry = state.judgements.make_room(key.place);
    entry.kernel = nullptr;  // what follows may fail for want of memory
    entry.arguments.assign(key.arguments.begin(), key.arguments.end());
    entry.map_generation = key.map_generation;
    entry.kernel_generation = key.kernel_generation;
    entry.dimensions = {launch.grid[0],  launch.grid[1],  launch.grid[2],     launch.block[0],
                        launch.block[1], launch.block[2], launch.shared_bytes};
    entry.sets.key = 0;
    if (judgement.is_protected && verdict.ranges_complete) {
      entry.sets.key = next_sets_.fetch_add(1, std::memory_order_relaxed) + 1;
      entry.sets.reads = verdict.reads;
      entry.sets.writes = verdict.writes;
      entry.sets.must_writes = verdict.must_writes;
    }
    entry.judgement = judgement;
    entry.kernel = &kernel;
    return entry.with_sets();
  }
  return judgement;
}

void Agent::count_unfollowed(const driver_api::Call& call) {
  // Launches of several kernels or of forgotten forms: counted under the call's own name.
  const std::string name = "(" + std::string(call.name) + ")";
  const std::uint32_t row = session_.kernel_row(name);
  if (session_.page().kernels[row].launches[2][0].load(std::memory_order_relaxed) == 0) {
    protocol::KernelInfo info;
    info.row = row;
    info.name = name;
    info.symbol = name;
    info.reason = "a form of launch that is not followed";
    session_.kernel(info);
  }
  session_.page().kernels[row].launches[2][0].fetch_add(1, std::memory_order_relaxed);
  session_.page().reasons[session_.reason_id("a form of launch that is not followed")].fetch_add(
      1, std::memory_order_relaxed);
}

void Agent::before_launch(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                          const CUpti_CallbackData& data) {
  auto& under_way = state.call;
  under_way.correlation = data.correlationId;
  under_way.ignored = true;
  under_way.suppressed = false;
  under_way.delivers = false;
  under_way.kernel = nullptr;
  under_way.injection.reset();
  if (dead_.load(std::memory_order_relaxed)) {
    return;
  }
  read_launch(call.hook, cbid, data.functionParams, under_way.launch);
  const bool capture_somewhere = captures_.load(std::memory_order_relaxed) > 0;
  if (capture_somewhere && capturing(under_way.launch.explicit_stream())) {
    return;  // recorded into a graph, not executed
  }
  if (call.hook == driver_api::Hook::kLaunchUnprotected) {
    count_unfollowed(call);
    return;
  }
  Kernel* const kernel = kernel_of(state, under_way.launch, data.context, data.symbolName);
  if (kernel == nullptr) {
    return;
  }
  under_way.ignored = false;
  under_way.kernel = kernel;
  if (takeover_.pending()) [[unlikely]] {
    start_takeover();
  }

  const Judgement judgement = judge(state, *kernel, under_way.launch);
  under_way.replayable = judgement.is_protected;
  under_way.sets = judgement.sets;
  auto& page = session_.page();
  page.kernels[kernel->row]
      .launches[static_cast<std::size_t>(judgement.kind)][judgement.is_protected ? 1 : 0]
      .fetch_add(1, std::memory_order_relaxed);
  if (!judgement.is_protected) {
    page.reasons[judgement.reason_id].fetch_add(1, std::memory_order_relaxed);
  }

  if (held_back_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    suppress(under_way.launch, under_way.suppressed_config);
    under_way.suppressed = true;
    return;
  }
  if (session_.plan_changed()) [[unlikely]] {
    take_new_plan();
  }
  // A capture in another stream forbids the synchronizing that an injection needs.
  if (plan_.load(std::memory_order_relaxed) != nullptr && !capture_somewhere) [[unlikely]] {
    look_for_fault(state, *kernel);
    if (held_back_.load(std::memory_order_relaxed) != 0 && under_way.injection == nullptr) {
      // Another thread's fault, met while this launch waited for its turn.
      suppress(under_way.launch, under_way.suppressed_config);
      under_way.suppressed = true;
    }
  }
}

void Agent::after_launch(ThreadState& state, CUresult& result) {
  auto& under_way = state.call;
  if (under_way.ignored) {
    if (result != CUDA_SUCCESS) {
      after_any_call(state, result);
    }
    return;
  }
  if (under_way.injection != nullptr) [[unlikely]] {
    const auto code = static_cast<CUresult>(under_way.injection->armed->fault.code);
    try {
      end_injection(state, result);
    } catch (...) {
      // Want of memory in the middle of it: what the kernel left is damaged, and its memory may
      // hold noise.
      result = code;
    }
    under_way.injection.reset();
    return;
  }
  if (under_way.suppressed) [[unlikely]] {
    restore(under_way.launch);
    under_way.suppressed = false;
    result = CUDA_SUCCESS;
    return;
  }
  if (result == CUDA_SUCCESS) [[likely]] {
    return;
  }
  after_real_failure(state, result);
}

}  // namespace gpurecover::agent
