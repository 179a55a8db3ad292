// SPDX-License-Identifier: Apache-2.0
#include "recovery/decision.h"

namespace gpurecover::recovery {

bool is_address_fault(std::int32_t code) {
  return code == 700 || (code >= 714 && code <= 719);
}

Decision decide(const Failure& f) {
  if (f.observe_only) {
    return {Step::kReturn, "--level observe records only"};
  }
  if (f.stopped) {
    return {Step::kReturn, "an earlier fault matched a rule with action `stop`"};
  }
  if (f.action == Action::kReturn || f.action == Action::kStop) {
    return {Step::kReturn, "the rule says so"};
  }
  if (f.max_attempts == 0) {
    return {Step::kReturn, "the rule allows no attempt (max_attempts = 0)"};
  }
  if (f.action == Action::kRetry) {
    if (f.phase != Phase::kLaunch) {
      return {Step::kReturn, "the rule retries launches that never ran; this kernel may have run"};
    }
    if (!f.context_healthy) {
      return {Step::kDecline, "the context does not work any more"};
    }
    if (!f.one_launch) {
      return {Step::kReturn, "only the launch of a single kernel is known not to have run"};
    }
    return {Step::kRetry, ""};
  }
  if (f.phase != Phase::kRun) {
    return {Step::kReturn, "the rule replays kernels that ran in part; this one never ran"};
  }
  if (is_address_fault(f.code) && (!f.injected || f.strict) && !f.exact_and_in_bounds) {
    return {Step::kReturn,
            "an address fault of a kernel whose accesses are not proved in bounds: it may have "
            "written anywhere, and the program itself may be the cause"};
  }
  if (!f.context_healthy) {
    if (f.can_take_over) {
      return {Step::kTakeOver, ""};
    }
    return {Step::kDecline,
            "the CUDA of this process is dead after this error, and a standby process to take over "
            "is not available (--standby off, or see the notice above)"};
  }
  if (!f.one_launch) {
    return {Step::kRefuse, "it is not known which launch failed"};
  }
  if (f.verdict != Verdict::kIdempotent) {
    return {Step::kRefuse, f.verdict_reason};
  }
  if (!f.trusted) {
    return {Step::kRefuse, "the verdict's trust `" + f.trust + "` is not among those that count"};
  }
  if (f.writes_host_visible) {
    return {Step::kRefuse, "the kernel writes memory that the host can see meanwhile"};
  }
  return {Step::kReplay, ""};
}

}  // namespace gpurecover::recovery
