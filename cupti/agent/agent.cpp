// SPDX-License-Identifier: Apache-2.0
//
// From CUPTI's callback to what each kind of call means to the agent.
#include "cupti/agent/agent.h"

#include "classifier/catalogue.h"

namespace gpurecover::agent {

using driver_api::Hook;
using driver_api::Kind;

ThreadState::ThreadState() = default;
ThreadState::~ThreadState() = default;

void Agent::pass_gate(ThreadState& state, const driver_api::Call* call, std::uint32_t correlation) {
  const Kind kind = call != nullptr ? call->kind : Kind::kProcess;
  if (kind == Kind::kModule) {
    return;  // may come from within another call, and touches no memory that a kernel writes
  }
  if (kind == Kind::kSync) {
    gate_.pass(state.lane);  // may take as long as the work of others does
  } else if (!state.lane.busy.load(std::memory_order_relaxed)) {
    gate_.enter(state.lane);
    state.entered = correlation;
  }
}

void Agent::dispatch(ThreadState& state, std::uint32_t cbid, const CUpti_CallbackData& data) {
  const driver_api::Call* call = cbid < callbacks_.size() ? callbacks_[cbid].call : nullptr;
  if (data.callbackSite == CUPTI_API_ENTER) {
    pass_gate(state, call, data.correlationId);
    if (latch_.in_use() && enter_latched(state, cbid, data)) [[unlikely]] {
      return;
    }
    if (call != nullptr) [[likely]] {
      if (takeover_.wanted()) {
        // What the call changes in our records must not have changed when a fault before it is met.
        wait_for_edge(state, *call, cbid, data);
        on_enter(state, *call, cbid, data);
        enter_takeover(state, *call, cbid, data);
      } else {
        on_enter(state, *call, cbid, data);
      }
    } else {
      session_.call_without_row(cbid, driver_api::name_of(cbid));
      takeover_.count_obstacle(driver_api::name_of(cbid));
    }
    return;
  }
  struct Leave {
    Agent& agent;
    ThreadState& state;
    const bool leaves;
    ~Leave() {
      if (leaves) {
        agent.gate_.leave(state.lane);
      }
    }
  } const leave{
      *this, state,
      state.entered == data.correlationId && state.lane.busy.load(std::memory_order_relaxed)};
  if (latch_.in_use() && latch_.exit(data)) [[unlikely]] {
    return;
  }
  if (call != nullptr) [[likely]] {
    auto& result = *static_cast<CUresult*>(data.functionReturnValue);
    if (takeover_.wanted()) {
      leave_takeover(state, *call, cbid, data, result);
      on_exit(state, *call, cbid, data, result);
      finish_takeover(state, *call, cbid, data, result);
    } else {
      on_exit(state, *call, cbid, data, result);
    }
  }
}

void Agent::on_enter(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                     const CUpti_CallbackData& data) {
  switch (call.kind) {
    case Kind::kLaunch:
    case Kind::kGraphLaunch:
      settle();
      if (!passive_.load(std::memory_order_relaxed)) {
        before_launch(state, call, cbid, data);
      }
      return;
    case Kind::kAlloc:
      steer_enter(state, call, data);
      break;
    case Kind::kFree:
      before_free(state, call, data.functionParams);
      steer_enter(state, call, data);
      break;
    case Kind::kModule:
      if (call.hook == Hook::kModuleUnload || call.hook == Hook::kLibraryUnload) {
        before_module_gone(call, data.functionParams);
      }
      return;
    case Kind::kMemoryMap:
      if (call.hook == Hook::kHandleRelease) {
        before_handle_gone(data.functionParams);
      }
      steer_enter(state, call, data);
      break;
    default:
      break;
  }
  if (held_back_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    state.call.correlation = data.correlationId;
    suppress_work(state, call, data.functionParams);
  }
}

void Agent::on_exit(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                    const CUpti_CallbackData& data, CUresult& result) {
  if (call.kind != Kind::kLaunch && call.kind != Kind::kGraphLaunch && !state.call.steered) {
    steer_exit(state, call, cbid, data, result);
  }
  switch (call.kind) {
    case Kind::kLaunch:
    case Kind::kGraphLaunch:
      if (state.call.correlation == data.correlationId) {
        after_launch(state, result);
      }
      return;
    case Kind::kFree:
      after_free(state, result);
      break;
    case Kind::kAlloc:
      if (result == CUDA_SUCCESS) {
        after_alloc(call, data);
      }
      break;
    case Kind::kModule:
      if (result == CUDA_SUCCESS) {
        after_module_call(call, data);
      }
      break;
    case Kind::kContext:
      if (result == CUDA_SUCCESS) {
        after_context_gone(call, data.functionParams);
      }
      break;
    case Kind::kObject:
    case Kind::kMemoryMap:
      if (result == CUDA_SUCCESS) {
        after_sharing(call, data.functionParams);
      }
      break;
    case Kind::kCapture:
      // A capture that the driver ends by itself (an invalidated one whose stream is destroyed)
      // leaves the count too high, which costs a question per launch and nothing else. Too low it
      // must never be: an end that was refused (another stream's, another thread's) ended nothing.
      if (call.hook == Hook::kCaptureBegin && result == CUDA_SUCCESS) {
        captures_.fetch_add(1, std::memory_order_relaxed);
      } else if (call.hook == Hook::kCaptureEnd &&
                 (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
                  result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) &&
                 captures_.load(std::memory_order_relaxed) > 0) {
        captures_.fetch_sub(1, std::memory_order_relaxed);
      }
      break;
    default:
      break;
  }
  if ((state.call.suppressed || state.call.delivers) &&
      state.call.correlation == data.correlationId) [[unlikely]] {
    restore_work(state, call, data.functionParams);
    result = state.call.delivers ? static_cast<CUresult>(state.call.code) : CUDA_SUCCESS;
    state.call.suppressed = false;
    state.call.delivers = false;
    return;
  }
  if (result != CUDA_SUCCESS) [[unlikely]] {
    after_any_call(state, result);
  }
}

}  // namespace gpurecover::agent
