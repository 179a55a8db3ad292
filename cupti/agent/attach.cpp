// SPDX-License-Identifier: Apache-2.0
//
// Joining the session and CUPTI, and finding out whether the agent can work in this process.
#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "cupti/agent/agent.h"

namespace gpurecover::agent {
namespace {

using driver_api::Hook;
using driver_api::Kind;

Agent* the_agent = nullptr;
std::atomic<bool>* the_passive_flag = nullptr;
Session* the_session = nullptr;

void in_forked_child() {
  // CUDA does not work in a forked child (cuda.h, cuInit); the session is the parent's.
  the_passive_flag->store(true);
  the_session->abandon();
}

// A code that no driver call returns, for the probe.
constexpr int kProbeCode = 0x6a7e;

// Work that only has to be seen when an error is held back: without a plan there never is one.
bool needed_for_plan_only(const driver_api::Call& call) {
  return (call.kind == Kind::kCopy || call.kind == Kind::kSet || call.kind == Kind::kHostFunction ||
          call.kind == Kind::kStreamMemory) &&
         !call.reports;
}

// What makes objects, leaves work in streams or returns a sticky error. What a dead process's
// driver still answers is not among it, and programs ask it at every turn.
bool needed_for_takeover(const driver_api::Call& call) {
  return call.after != driver_api::After::kLocal && call.after != driver_api::After::kRecord;
}

}  // namespace

void Agent::start() {
  if (the_agent != nullptr) {
    return;
  }
  auto* agent = new Agent;  // never destroyed, see the class
  the_agent = agent;
  std::string error;
  if (!agent->session_.join(error)) {
    if (!error.empty()) {
      Session::complain(error);
    }
    return;
  }
  the_passive_flag = &agent->passive_;
  the_session = &agent->session_;
  pthread_atfork(nullptr, nullptr, in_forked_child);

  const char* path = std::getenv(protocol::kEnvCupti);
  if (!driver_api::load_driver(agent->driver_, error) ||
      !load_cupti(agent->cupti_, path != nullptr ? path : "", error) || !agent->subscribe(error)) {
    agent->give_up(error);
    return;
  }
  const protocol::Config& config = agent->session_.config();
  agent->images_.use_side_files(config.analysis_dir, executable_path(),
                                [agent](const std::string& text) {
                                  agent->session_.notice(protocol::Severity::kWarning, text);
                                });
  Steering::Options steering;
  steering.arena = config.arena;
  steering.arena_size = config.arena_size;
  agent->steering_.start(agent->driver_, steering);
  agent->steering_.enable(config.level != protocol::Level::kObserve &&
                          config.standby != protocol::Standby::kOff && !config.no_steer);
  if (agent->steering_.enabled()) {
    agent->takeover_.want();
  }
  agent->arm(agent->session_.initial_plan());
  agent->enable_callbacks();
}

void Agent::give_up(const std::string& reason) {
  passive_ = true;
  protocol::Attached message;
  message.active = false;
  message.reason = reason;
  session_.attached(message);
}

bool Agent::subscribe(std::string& error) {
  const CUptiResult code = cupti_.cuptiSubscribe(&subscriber_, &Agent::on_callback, this);
  if (code == CUPTI_SUCCESS) {
    return true;
  }
  if (code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    error =
        "another tool holds CUPTI in this process (a profiler or debugger); run without it to "
        "be protected";
    return false;
  }
  const char* text = nullptr;
  cupti_.cuptiGetResultString(code, &text);
  error = std::string("CUPTI refused the agent: ") + (text != nullptr ? text : "unknown error");
  return false;
}

void Agent::enable_callbacks() {
  for (std::uint32_t cbid = 1; cbid < driver_api::cbid_end(); ++cbid) {
    const driver_api::Call* call = driver_api::find(cbid);
    const bool wanted = call == nullptr
                            ? !driver_api::name_of(cbid).empty()
                            : (call->hook != Hook::kNone && !needed_for_plan_only(*call)) ||
                                  (takeover_.wanted() && needed_for_takeover(*call));
    if (wanted) {
      cupti_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, cbid);
    }
  }
  const Plan* plan = plan_.load();
  if (plan != nullptr && !plan->empty()) {
    enable_for_plan();
  }
}

void Agent::enable_for_plan() {
  std::call_once(plan_callbacks_, [this] {
    for (std::uint32_t cbid = 1; cbid < driver_api::cbid_end(); ++cbid) {
      const driver_api::Call* call = driver_api::find(cbid);
      if (call != nullptr && call->hook != Hook::kNone && needed_for_plan_only(*call)) {
        cupti_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, cbid);
      }
    }
  });
}

// The pointer is trivial, so that callbacks may still come after the thread's destructors have run:
// programs call CUDA from destructors of their own, the static ones among them.
// Initial-exec: two instructions instead of a call. The agent's few bytes fit into what the loader
// keeps free for libraries that are loaded later.
[[gnu::tls_model("initial-exec")]] thread_local ThreadState* this_threads_state = nullptr;

struct AtThreadEnd {
  bool armed = false;
  ~AtThreadEnd() {
    if (ThreadState* state = std::exchange(this_threads_state, nullptr)) {
      the_agent->gate_.remove(state->lane);
      delete state;
    }
  }
};
thread_local AtThreadEnd at_thread_end;

ThreadState& Agent::new_state_of_thread() {
  auto state = std::make_unique<ThreadState>();
  gate_.add(state->lane);
  this_threads_state = state.release();
  // Constructs it, which registers its destructor; one made after that has run is never freed.
  at_thread_end.armed = true;
  return *this_threads_state;
}

void Agent::quiet_this_thread() {
  ThreadState* const known = this_threads_state;
  (known != nullptr ? *known : the_agent->new_state_of_thread()).inside = true;
}

// The probe's own call of cuDriverGetVersion comes back here: the answer is sent elsewhere at the
// enter, and the code exchanged at the exit.
void Agent::on_callback(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId cbid,
                        const void* data) {
  auto* agent = static_cast<Agent*>(self);
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || agent->passive_.load(std::memory_order_relaxed)) {
    return;
  }
  try {
    ThreadState* const known = this_threads_state;
    ThreadState& state = known != nullptr ? *known : agent->new_state_of_thread();
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    if (state.inside) {
      if (cbid == CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion &&
          agent->probe_step_.load(std::memory_order_relaxed) != 0) {
        if (call.callbackSite == CUPTI_API_ENTER) {
          auto* params =
              static_cast<cuDriverGetVersion_params*>(const_cast<void*>(call.functionParams));
          params->driverVersion = &agent->probe_target_;
        } else {
          *static_cast<CUresult*>(call.functionReturnValue) = static_cast<CUresult>(kProbeCode);
        }
      }
      return;
    }
    state.inside = true;
    struct Reset {
      bool& flag;
      ~Reset() { flag = false; }
    } const reset{state.inside};
    agent->dispatch(state, cbid, call);
  } catch (...) {
    // Want of memory. The app's call goes on as the app made it.
  }
}

bool Agent::probe() {
  cupti_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API,
                             CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
  int untouched = 0;
  probe_target_ = 0;
  probe_step_ = 1;
  const int code = static_cast<int>(driver_.cuDriverGetVersion(&untouched));
  probe_step_ = 0;
  cupti_.cuptiEnableCallback(0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API,
                             CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion);
  return code == kProbeCode && untouched == 0 && probe_target_ != 0;
}

protocol::Attached Agent::describe() {
  protocol::Attached message;
  message.active = true;
  message.device_kind = soft_.available() ? "soft" : "cuda";
  CUdevice device = 0;
  char name[256] = "";
  int major = 0;
  int minor = 0;
  if (driver_.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    driver_.cuDeviceGetName(name, sizeof name, device);
    driver_.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    driver_.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    message.cc = std::to_string(major) + "." + std::to_string(minor);
  }
  message.device_name = name;
  int version = 0;
  driver_.cuDriverGetVersion(&version);
  message.driver = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  cupti_.cuptiGetVersion(&message.cupti_version);
  return message;
}

void Agent::settle_now() {
  std::call_once(settling_, [this] {
    const driver_api::RelaxedCapture relaxed(driver_);
    if (probe()) {
      session_.attached(describe());
      start_takeover();
    } else {
      give_up("this driver does not let a CUPTI callback change calls, so the agent stays passive");
    }
    settled_.store(true, std::memory_order_release);
  });
}

}  // namespace gpurecover::agent
