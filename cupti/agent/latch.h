// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "cupti/agent/cupti_api.h"

namespace gpurecover::agent {

// Makes a healthy context look like one that a sticky error has ended: every driver call returns
// the latched code and does nothing, but for those that still answer after such an error
// (driver_api/dead_context.h) and those without a row in the driver table.
class Latch {
 public:
  // Both outlive the latch; the subscriber may be made later.
  Latch(const Cupti& cupti, const CUpti_SubscriberHandle& subscriber)
      : cupti_(cupti), subscriber_(subscriber) {}

  // From now on. Also asks CUPTI for the callbacks of the whole driver domain, which stay on. The
  // first code stays until release(). Any thread, also from within a callback.
  void engage(std::int32_t code);
  // Calls are the driver's own again; one under way still ends as it began.
  void release() { code_.store(0); }

  // Whether it ever was engaged: if not, enter() and exit() need not be called.
  bool in_use() const { return in_use_.load(std::memory_order_relaxed); }
  // The code, 0 while not engaged.
  std::int32_t code() const { return code_.load(std::memory_order_relaxed); }

  // The code that this call has to return; 0: it is the driver's own.
  std::int32_t code_for(std::uint32_t cbid) const;
  // At a call's enter: true if the latch answers it. The parameters are then zero until exit(), so
  // that the driver refuses the call or does nothing.
  bool enter(std::uint32_t cbid, const CUpti_CallbackData& data) const;
  // At a call's exit: true if enter() was for this call; the parameters are back and the return
  // value is the code.
  bool exit(const CUpti_CallbackData& data) const;

 private:
  const Cupti& cupti_;
  const CUpti_SubscriberHandle& subscriber_;
  std::atomic<bool> in_use_{false};
  std::atomic<std::int32_t> code_{0};
  std::atomic<std::int32_t> last_code_{0};  // of calls that were under way at release()
};

}  // namespace gpurecover::agent
