// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

// May a failed launch be executed again? The rules of the promise (DESIGN sections 4 and 5), apart
// from any CUDA call, so that each of them is tested by itself.
namespace gpurecover::recovery {

enum class Phase : std::uint8_t { kLaunch, kRun };
enum class Action : std::uint8_t { kReplay, kRetry, kReturn, kStop };
enum class Verdict : std::uint8_t { kIdempotent, kClobbers, kUnknown };

// What is known of a failure when it is met.
struct Failure {
  std::int32_t code = 0;
  Phase phase = Phase::kRun;
  Action action = Action::kReturn;  // the winning rule's
  std::uint32_t max_attempts = 0;   // the winning rule's
  bool injected = false;
  bool strict = false;           // of an injected one: judge it like a real one
  bool context_healthy = false;  // later calls work
  // The process's CUDA is dead, but another process can go on with its memory. Whether it may is
  // then for what is under way to say, launch by launch.
  bool can_take_over = false;
  bool one_launch = true;     // the call was of one kernel, and no other work is in question
  bool observe_only = false;  // --level observe
  bool stopped = false;       // a `stop` rule has ended all recovery of this process
  Verdict verdict = Verdict::kUnknown;
  bool trusted = false;              // the verdict's trust is among those that count
  bool exact_and_in_bounds = false;  // every access proved to stay inside live allocations
  bool writes_host_visible = false;
  std::string verdict_reason;  // why it is not idempotent
  std::string trust;           // "bounded", for messages
};

enum class Step : std::uint8_t {
  kRetry,     // launch again: the kernel never ran
  kReplay,    // execute again, with the last check
  kTakeOver,  // the same, in a standby process that goes on in this one's place
  kReturn,    // outcome `returned`
  kRefuse,    // outcome `refused`
  kDecline,   // outcome `declined`
};

struct Decision {
  Step step = Step::kReturn;
  std::string reason;  // for people; empty for kRetry and kReplay
};

// Codes whose meaning is that some access went astray, so that what died may have written anywhere
// (DESIGN section 5): 700 and 714 to 719.
bool is_address_fault(std::int32_t code);

Decision decide(const Failure& failure);

}  // namespace gpurecover::recovery
