// SPDX-License-Identifier: Apache-2.0
//
// The takeover's part in the app's calls: what is logged before a fault, and who answers after it.
#include "classifier/catalogue.h"
#include "cupti/agent/agent.h"

namespace gpurecover::agent {
namespace {

using driver_api::After;
using driver_api::Hook;
using driver_api::Kind;

bool is_launch(const driver_api::Call& call) {
  return call.kind == Kind::kLaunch && call.hook != Hook::kLaunchUnprotected;
}

constexpr int kMaxFaultsOfACall = 3;

bool sticky(CUresult code) {
  return code != CUDA_SUCCESS && classifier::is_sticky(static_cast<std::int32_t>(code));
}

}  // namespace

void Agent::start_takeover() {
  if (takeover_.wanted() && !passive_.load() && !takeover_.enable()) {
    takeover_.give_up();
  }
}

void Agent::enable_after_takeover() {
  // Whatever the app asks is answered by somebody else now.
  for (std::uint32_t cbid = 1; cbid < driver_api::cbid_end(); ++cbid) {
    const driver_api::Call* call = driver_api::find(cbid);
    if (call != nullptr && call->after != After::kLocal) {
      cupti_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, cbid);
    }
  }
}

void Agent::wait_for_edge(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                          const CUpti_CallbackData& data) {
  auto& under_way = state.call;
  under_way.takeover = data.correlationId;
  under_way.served = false;
  under_way.steered = false;
  under_way.launch_in_doubt = false;
  under_way.followed = false;
  under_way.epoch = takeover_.epoch();
  if (is_launch(call)) {
    return;
  }
  under_way.entered = std::chrono::steady_clock::now();
  if (!takeover_.enabled()) {
    return;
  }
  if (const CUresult code = takeover_.before_call(state, call, cbid, data.functionParams);
      code != CUDA_SUCCESS) {
    survive(state, code);
  }
}

void Agent::enter_takeover(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                           const CUpti_CallbackData& data) {
  auto& under_way = state.call;
  if (!takeover_.enabled()) {
    return;
  }
  if (is_launch(call)) {
    // A forged fault that only later calls are to see leaves its launch undone.
    under_way.undone = leaves_launch_undone(under_way);
    if (!takeover_.active()) {
      if (under_way.ignored || under_way.kernel == nullptr) {
        return;
      }
      if (!under_way.suppressed &&
          (under_way.injection == nullptr || under_way.injection->runs || under_way.undone)) {
        takeover_.begin_launch(state, *under_way.kernel, under_way.launch);
      }
      return;
    }
  }
  if (takeover_.active() && takeover_.serves(call)) {
    takeover_.begin_served(state, call, cbid, data.functionParams);
    under_way.served = true;
  } else if (takeover_.active() && call.after == After::kDeclined) {
    Takeover::hide_new_handles(cbid, const_cast<void*>(data.functionParams));
  }
}

CUresult Agent::do_again(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                         const CUpti_CallbackData& data, CUresult result) {
  switch (call.hook) {
    case Hook::kAllocDevice: {
      const auto& p = *static_cast<const cuMemAlloc_v2_params*>(data.functionParams);
      return steering_.allocate(p.dptr, p.bytesize);
    }
    case Hook::kFreeDevice:
      return steering_.free(static_cast<const cuMemFree_v2_params*>(data.functionParams)->dptr);
    default:
      return takeover_.serves(call)
                 ? takeover_.serve(state, call, cbid, data.functionParams, data.context)
                 : result;
  }
}

void Agent::leave_takeover(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                           const CUpti_CallbackData& data, CUresult& result) {
  auto& under_way = state.call;
  if (under_way.takeover != data.correlationId || (!under_way.served && !takeover_.enabled())) {
    return;
  }
  if (under_way.served) {
    takeover_.restore_params(state, data.functionParams);
    if (is_launch(call) &&
        (under_way.suppressed || (under_way.injection != nullptr && !under_way.injection->runs))) {
      // A forged fault keeps it from running.
      if (under_way.undone) {
        takeover_.begin_launch(state, *under_way.kernel, under_way.launch);
        takeover_.end_launch(state, true, false);
      }
      return;
    }
    result = takeover_.serve(state, call, cbid, data.functionParams, data.context);
  } else if (is_launch(call)) {
    takeover_.end_launch(state, under_way.undone || result == CUDA_SUCCESS, !under_way.undone);
    if (result == CUDA_SUCCESS) [[likely]] {
      return;
    }
  }
  if (state.steered.active && state.steered.correlation == data.correlationId) {
    // The driver was made to refuse it; only an error of the context says something.
    if (!takeover_.active() && sticky(result)) {
      survive(state, result);
    }
    steer_exit(state, call, cbid, data, result);
    under_way.steered = true;
  }
  if (sticky(result) && answered_by_the_dead(state)) {
    if (call.after == After::kDeclined && not_served_.exchange(&call) != &call) {
      session_.notice(protocol::Severity::kWarning,
                      std::string(call.name) + " is not carried over: it returns the error");
    }
    return;
  }
  // Each time round is another fault; whoever meets so many in one call is not to be helped.
  for (int i = 0; i < kMaxFaultsOfACall && sticky(result) && survive(state, result); ++i) {
    if (under_way.launch_in_doubt) {
      // It was in the log, and what the log held has been done.
      under_way.launch_in_doubt = false;
      result = CUDA_SUCCESS;
      break;
    }
    result = do_again(state, call, cbid, data, result);
    if (!takeover_.serves(call) && sticky(result)) {
      break;
    }
  }
}

void Agent::finish_takeover(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                            const CUpti_CallbackData& data, CUresult& result) {
  if (state.call.takeover != data.correlationId || result != CUDA_SUCCESS) {
    return;
  }
  if (is_launch(call)) {
    // Launched again in place, or not yet: whatever it was, the shadows are to say what is.
    if (!state.call.followed && takeover_.enabled() && !state.call.ignored &&
        state.call.kernel != nullptr) {
      takeover_.follow_launch(state, *state.call.kernel, state.call.launch);
    }
    return;
  }
  CUresult code = takeover_.after_call(state, call, cbid, data.functionParams, data.context);
  for (int i = 0; i < kMaxFaultsOfACall && code != CUDA_SUCCESS; ++i) {
    // The call was taken, and what it began has failed.
    if (call.kind == Kind::kHostFunction || call.kind == Kind::kStreamMemory) {
      takeover_.count_obstacle(call.name);  // it may have happened, and must not happen twice
    }
    if (!survive(state, code)) {
      return;  // the app's next call meets it, as it would have
    }
    code = takeover_.serves(call)
               ? takeover_.serve(state, call, cbid, data.functionParams, data.context)
               : code;
    if (!takeover_.serves(call)) {
      return;
    }
  }
}

bool Agent::leaves_launch_undone(const CallUnderWay& call) {
  return call.injection != nullptr && !call.injection->by_device &&
         (call.injection->armed->fault.how == inject::How::kFault ||
          call.injection->armed->fault.how == inject::How::kLatch);
}

}  // namespace gpurecover::agent
