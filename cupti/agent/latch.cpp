// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/latch.h"

#include <cstddef>
#include <cstring>

#include "cupti/driver_api/dead_context.h"
#include "cupti/driver_api/driver_api.h"
#include "cupti/driver_api/params_size.h"

namespace gpurecover::agent {
namespace {

// The thread's call that the latch answers, from its enter to its exit callback. Not in
// ThreadState, whose size counts: hardly any program ever latches.
struct LatchedCall {
  bool active;
  std::uint32_t correlation;
  std::uint32_t size;
  std::byte saved[512];  // what the app passed; the driver sees zeros meanwhile
};
thread_local LatchedCall call;

}  // namespace

void Latch::engage(std::int32_t code) {
  last_code_.store(code);
  std::int32_t none = 0;
  // Before the callbacks are on, so that none of them comes too early to be answered.
  code_.compare_exchange_strong(none, code);
  in_use_.store(true);
  for (std::uint32_t cbid = 1; cbid < driver_api::cbid_end(); ++cbid) {
    if (driver_api::find(cbid) != nullptr) {
      cupti_.cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, cbid);
    }
  }
}

std::int32_t Latch::code_for(std::uint32_t cbid) const {
  return driver_api::find(cbid) == nullptr || driver_api::answers_when_dead(cbid) ? 0 : code();
}

bool Latch::enter(std::uint32_t cbid, const CUpti_CallbackData& data) const {
  if (code_for(cbid) == 0 || call.active) {
    return false;
  }
  const std::uint32_t size = driver_api::params_size(cbid);
  if (size > sizeof call.saved) {
    return false;
  }
  if (size != 0 && data.functionParams != nullptr) {
    // The pointer is declared const; the driver reads through it after the callback (measured on an
    // H200, driver 580, and tried out before the first launch).
    auto* params = const_cast<void*>(data.functionParams);
    std::memcpy(call.saved, params, size);
    std::memset(params, 0, size);
    call.size = size;
  } else {
    call.size = 0;
  }
  call.correlation = data.correlationId;
  call.active = true;
  return true;
}

bool Latch::exit(const CUpti_CallbackData& data) const {
  if (!call.active || call.correlation != data.correlationId) {
    return false;
  }
  call.active = false;
  if (call.size != 0) {
    std::memcpy(const_cast<void*>(data.functionParams), call.saved, call.size);
  }
  const std::int32_t now = code();
  *static_cast<CUresult*>(data.functionReturnValue) =
      static_cast<CUresult>(now != 0 ? now : last_code_.load());
  return true;
}

}  // namespace gpurecover::agent
