// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// The order of a takeover (DESIGN section 7), apart from how its steps are done: so that what
// happens when any of them fails is tested without a device.
namespace gpurecover::recovery {

enum class StepEnd : std::uint8_t {
  kDone,
  kDecline,  // it cannot be carried over
  kRefuse,   // it would not be safe
  kRepeats,  // of the replay: the fault came back
};
struct StepResult {
  StepEnd end = StepEnd::kDone;
  std::string reason;     // of anything but kDone
  bool for_good = false;  // of kRepeats: what was begun cannot be begun again
  static StepResult done() { return {}; }
  static StepResult decline(std::string why) { return {StepEnd::kDecline, std::move(why)}; }
  static StepResult refuse(std::string why) { return {StepEnd::kRefuse, std::move(why)}; }
  static StepResult repeats(std::string why, bool for_good = false) {
    return {StepEnd::kRepeats, std::move(why), for_good};
  }
};

// What the steps do. None of them may wait without end; one that throws has declined.
class TakeoverSteps {
 public:
  virtual ~TakeoverSteps() = default;
  // What is known beforehand to be impossible, before anything is touched.
  virtual StepResult check() = 0;
  // Stops whatever of the dead process still runs on any device.
  virtual StepResult fence() = 0;
  // What is left to do, and whether it may be done again.
  virtual StepResult read_frontier() = 0;
  // A standby with a context of its own.
  virtual StepResult start() = 0;
  // The app's memory in it, at the same addresses.
  virtual StepResult map() = 0;
  // Whether all of that memory can be read (after errors of the memory itself).
  virtual StepResult check_memory() = 0;
  // Streams, events, and what is pending of them.
  virtual StepResult restore() = 0;
  // Another attempt goes on where the one before failed.
  virtual StepResult replay() = 0;
  // From here on the app's calls go to the standby.
  virtual StepResult commit() = 0;
  // Ends the standby, if there is one. Called after every failure, and before another attempt.
  virtual void abandon() noexcept = 0;
};

struct StepTime {
  const char* name = "";
  double ms = 0;
};

enum class TakeoverEnd : std::uint8_t { kRecovered, kReturned, kRefused, kDeclined };
struct TakeoverResult {
  TakeoverEnd end = TakeoverEnd::kDeclined;
  std::uint32_t attempts = 0;  // replays begun
  bool repeats = false;
  std::string reason;  // why not, if it was not recovered
  // What was done, in its order, and how long each took; of several attempts, all together.
  std::vector<StepTime> times;
};

// Runs the steps in order, the standby's ones again while the fault comes back and attempts are
// left. Never throws. Unless the result is kRecovered, no standby is left.
TakeoverResult take_over(TakeoverSteps& steps, std::uint32_t max_attempts) noexcept;

}  // namespace gpurecover::recovery
