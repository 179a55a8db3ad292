// SPDX-License-Identifier: Apache-2.0
#include "recovery/takeover.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>

namespace gpurecover::recovery {
namespace {

struct Step {
  const char* name;
  StepResult (TakeoverSteps::*run)();
};

// Adds the time from its making to its end to a step's.
class Timed {
 public:
  Timed(std::vector<StepTime>& times, const char* name)
      : times_(times), name_(name), begin_(Clock::now()) {}
  ~Timed() {
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin_).count();
    const auto at = std::find_if(times_.begin(), times_.end(),
                                 [&](const StepTime& time) { return time.name == name_; });
    if (at != times_.end()) {
      at->ms += ms;
      return;
    }
    try {
      times_.push_back({name_, ms});
    } catch (...) {
    }
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<StepTime>& times_;
  const char* name_;
  const Clock::time_point begin_;
};

StepResult run(TakeoverSteps& steps, std::span<const Step> list,
               std::vector<StepTime>& times) noexcept {
  for (const Step& step : list) {
    const Timed timed(times, step.name);
    try {
      if (StepResult result = (steps.*step.run)(); result.end != StepEnd::kDone) {
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
  static constexpr Step kBefore[] = {{"check", &TakeoverSteps::check},
                                     {"fence", &TakeoverSteps::fence},
                                     {"frontier", &TakeoverSteps::read_frontier}};
  static constexpr Step kStandby[] = {{"start", &TakeoverSteps::start},
                                      {"map", &TakeoverSteps::map},
                                      {"check_memory", &TakeoverSteps::check_memory},
                                      {"restore", &TakeoverSteps::restore}};
  static constexpr Step kReplay[] = {{"replay", &TakeoverSteps::replay}};
  static constexpr Step kAfter[] = {{"commit", &TakeoverSteps::commit}};

  TakeoverResult result;
  StepResult step = run(steps, kBefore, result.times);
  if (step.end == StepEnd::kDone && max_attempts == 0) {
    step.end = StepEnd::kDecline;
  }
  while (step.end == StepEnd::kDone && result.attempts < max_attempts) {
    step = run(steps, kStandby, result.times);
    if (step.end == StepEnd::kDone) {
      ++result.attempts;
      step = run(steps, kReplay, result.times);
    }
    if (step.end == StepEnd::kDone) {
      step = run(steps, kAfter, result.times);
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
