// SPDX-License-Identifier: Apache-2.0
#include "recovery/takeover.h"

#include <exception>
#include <span>

namespace gpurecover::recovery {
namespace {

using Step = StepResult (TakeoverSteps::*)();

StepResult run(TakeoverSteps& steps, std::span<const Step> list) noexcept {
  for (const Step step : list) {
    try {
      if (StepResult result = (steps.*step)(); result.end != StepEnd::kDone) {
        return result;
      }
    } catch (const std::exception& error) {
      // Short of room even for the words, the words are left out.
      StepResult result;
      result.end = StepEnd::kDecline;
      try {
        result.reason = std::string("a step of the takeover failed: ") + error.what();
      } catch (...) {
      }
      return result;
    } catch (...) {
      StepResult result;
      result.end = StepEnd::kDecline;
      return result;
    }
  }
  return StepResult::done();
}

}  // namespace

TakeoverResult take_over(TakeoverSteps& steps, std::uint32_t max_attempts) noexcept {
  static constexpr Step kBefore[] = {&TakeoverSteps::check, &TakeoverSteps::fence,
                                     &TakeoverSteps::read_frontier};
  static constexpr Step kStandby[] = {&TakeoverSteps::start, &TakeoverSteps::map,
                                      &TakeoverSteps::check_memory, &TakeoverSteps::restore};
  static constexpr Step kReplay[] = {&TakeoverSteps::replay};
  static constexpr Step kAfter[] = {&TakeoverSteps::commit};

  TakeoverResult result;
  StepResult step = run(steps, kBefore);
  if (step.end == StepEnd::kDone && max_attempts == 0) {
    step.end = StepEnd::kDecline;
  }
  while (step.end == StepEnd::kDone && result.attempts < max_attempts) {
    step = run(steps, kStandby);
    if (step.end == StepEnd::kDone) {
      ++result.attempts;
      step = run(steps, kReplay);
    }
    if (step.end == StepEnd::kDone) {
      step = run(steps, kAfter);
      if (step.end == StepEnd::kDone) {
        result.end = TakeoverEnd::kRecovered;
        return result;
      }
    }
    steps.abandon();
    if (step.end == StepEnd::kRepeats) {
      result.repeats = true;
      if (result.attempts < max_attempts && !step.for_good) {
        step.end = StepEnd::kDone;
      }
    }
  }
  switch (step.end) {
    case StepEnd::kRepeats:
      result.end = TakeoverEnd::kReturned;
      break;
    case StepEnd::kRefuse:
      result.end = TakeoverEnd::kRefused;
      break;
    default:
      result.end = TakeoverEnd::kDeclined;
      break;
  }
  result.reason = std::move(step.reason);
  return result;
}

}  // namespace gpurecover::recovery
