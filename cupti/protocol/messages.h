// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cupti/protocol/codec.h"

// What the agent, the supervisor and a controlling `gpurecover` say to each other over the session
// socket. Bump kProtocolVersion whenever a struct here, in standby.h, in classifier/rules.h, in
// inject/plan.h or in shared_page.h changes: a peer of another version is refused, never misread.
namespace gpurecover::protocol {

inline constexpr std::uint32_t kProtocolVersion = 4;

// Environment that a session hands to the app and its children.
inline constexpr char kEnvInjection[] = "CUDA_INJECTION64_PATH";  // read by the driver at cuInit
inline constexpr char kEnvSession[] = "GPURECOVER_SESSION";       // path of the session socket
inline constexpr char kEnvCupti[] = "GPURECOVER_CUPTI";           // libcupti to open, may be empty

inline constexpr char kAgentFile[] = "libgpurecover.so";
inline constexpr char kStandbyFile[] = "gpurecover-standby";

// Where the app's device memory is put, in every process of a session. Sanitizers own much of the
// address space; this range is free with them and without (docs/steering.md).
inline constexpr std::uint64_t kDefaultArena = 0x5500'0000'0000;
inline constexpr std::uint64_t kDefaultArenaSize = std::uint64_t{1} << 38;

enum class MessageType : std::uint16_t {
  // agent -> supervisor
  kHello = 1,     // Hello; answered by kConfig with the shared page's descriptor
  kAttached = 2,  // Attached
  kKernel = 3,    // KernelInfo; sent again when a launch of it got a new verdict
  kReason = 4,    // ReasonInfo
  kCall = 5,      // CallInfo
  kFault = 6,     // FaultRecord
  kNotice = 7,    // Notice
  // Empty, with one descriptor: the standby's end of a socket pair. Answered by kStandbyStarted.
  kStandby = 8,
  // supervisor -> agent
  kConfig = 32,          // Config, with one descriptor: the SharedPage
  kRefused = 33,         // Notice: why the supervisor does not take this peer
  kStandbyStarted = 34,  // StandbyStarted
  // controlling program -> supervisor
  kStatusRequest = 64,  // empty; answered by kStatus
  kStatus = 65,         // Notice: the run summary so far, as JSON
  kArm = 66,            // ArmRequest; answered by kArmed
  kArmed = 67,          // Notice: empty text, or why not
  // supervisor -> agent
  kPlan = 68,  // PlanUpdate
  // agent <-> standby, over the pair's other end: standby.h
  kStandbyHello = 128,  // StandbyHello, from the standby, once
  kSetup = 129,         // Setup; this and all that follow are answered by kAnswer
  kMapMemory = 130,     // MemoryRange, with the descriptor
  kUnmapMemory = 131,   // MemoryRange
  kMapHost = 132,       // MemoryRange, with the descriptor
  kUnmapHost = 133,     // MemoryRange
  kLoadModule = 134,    // ImageLoad, with the descriptor of a file that holds the image
  kLoadLibrary = 135,   // ImageLoad, the same
  kFindGlobal = 136,    // FindGlobal
  kAddLane = 137,       // empty, with the descriptor of the lane's shared memory
  kAnswer = 138,        // StandbyAnswer
  kFinishSetup = 139,   // empty: what kSetup with `later` has begun is over, and its queue
};

// `--standby`: no takeover at all; a standby started at the fault; one started with the app.
enum class Standby : std::uint8_t { kOff, kCold, kWarm };

// How much the agent does (`--level`).
enum class Level : std::uint8_t { kObserve, kReplay, kFull };

enum class Severity : std::uint8_t { kInfo, kWarning, kError };

struct Hello {
  std::uint32_t version = kProtocolVersion;
  std::int32_t pid = 0;
  std::string executable;
  template <class Archive>
  void fields(Archive& a) {
    a(version);
    a(pid);
    a(executable);
  }
};

// The rules and the plan travel as encoded classifier::RuleSet and std::vector<inject::Fault>:
// this folder moves them and does not know what they say.
struct Config {
  std::string session;
  Level level = Level::kFull;
  std::uint8_t verbosity = 1;  // 0 -q, 1 default, 2 -v
  Standby standby = Standby::kCold;
  bool no_steer = false;  // leave the app's allocations alone
  std::uint64_t arena = kDefaultArena;
  std::uint64_t arena_size = kDefaultArenaSize;  // bytes
  std::string analysis_dir;                      // `--analysis-dir`, absolute, or empty
  std::vector<std::byte> rules;
  std::vector<std::byte> plan;
  template <class Archive>
  void fields(Archive& a) {
    a(session);
    a(level);
    a(verbosity);
    a(standby);
    a(no_steer);
    a(arena);
    a(arena_size);
    a(analysis_dir);
    a(rules);
    a(plan);
  }
};

struct StandbyStarted {
  std::int32_t pid = 0;  // 0: none was started
  std::string error;
  template <class Archive>
  void fields(Archive& a) {
    a(pid);
    a(error);
  }
};

// Sent once per process, when the agent has settled whether it can work.
struct Attached {
  bool active = false;  // false: the app runs unprotected, `reason` says why
  std::string reason;
  std::string device_kind;  // "cuda" or "soft"
  std::string device_name;
  std::string driver;  // driver's CUDA version, "13.0"
  std::string cc;      // compute capability, "9.0"
  std::uint32_t cupti_version = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(active);
    a(reason);
    a(device_kind);
    a(device_name);
    a(driver);
    a(cc);
    a(cupti_version);
  }
};

// Words of the run summary (DESIGN section 10), in the order of gravity.
enum class VerdictKind : std::uint8_t { kIdempotent, kClobbers, kUnknown };

struct KernelInfo {
  std::uint32_t row = 0;                        // its row in SharedPage::kernels
  std::string name;                             // demangled base name
  std::string symbol;                           // as in the image
  VerdictKind verdict = VerdictKind::kUnknown;  // the gravest that a launch of it got
  std::string trust;                            // of an idempotent verdict, else empty
  std::string reason;                           // of a verdict that is not idempotent
  std::vector<std::string> reads;               // "arg0", "arg2.field@16", "global:counter"
  std::vector<std::string> writes;
  std::string analysis;  // the side file that its summary is from; empty: analysed in the app
  template <class Archive>
  void fields(Archive& a) {
    a(row);
    a(name);
    a(symbol);
    a(verdict);
    a(trust);
    a(reason);
    a(reads);
    a(writes);
    a(analysis);
  }
};

// Why launches are unprotected; counted in SharedPage::reasons[id].
struct ReasonInfo {
  std::uint32_t id = 0;
  std::string text;
  template <class Archive>
  void fields(Archive& a) {
    a(id);
    a(text);
  }
};

// A driver call without a row in cupti/driver_api; counted in SharedPage::calls[id].
struct CallInfo {
  std::uint32_t id = 0;
  std::string name;
  template <class Archive>
  void fields(Archive& a) {
    a(id);
    a(name);
  }
};

// A part of a takeover and how long it took. Parts of parts stand beside them ("start", and of it
// "start.spawn").
struct FaultStep {
  std::string name;
  double ms = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(name);
    a(ms);
  }
};

// One element of `faults[]` of the run summary; the same words.
struct FaultRecord {
  std::string kernel;
  std::uint64_t launch = 0;  // which launch of the process, from 1; 0 where it is not known
  std::string stream;        // "legacy", "per-thread" or the handle in hex
  std::int32_t code = 0;
  std::string name;   // CUDA_ERROR_…
  std::string phase;  // "launch" or "run"
  bool injected = false;
  std::string rule;
  std::string cls;  // the rule's class
  std::string verdict;
  std::string trust;
  std::string action;
  std::uint32_t attempts = 0;
  bool repeats = false;
  std::string outcome;
  std::string reason;   // of an outcome that is not a recovery
  std::string message;  // the rule's
  double detect_ms = 0;
  double recover_ms = 0;
  std::string repeat;  // the command line's injection options that repeat it; empty if not injected
  std::vector<FaultStep> steps;  // of a takeover, in their order
  template <class Archive>
  void fields(Archive& a) {
    a(kernel);
    a(launch);
    a(stream);
    a(code);
    a(name);
    a(phase);
    a(injected);
    a(rule);
    a(cls);
    a(verdict);
    a(trust);
    a(action);
    a(attempts);
    a(repeats);
    a(outcome);
    a(reason);
    a(message);
    a(detect_ms);
    a(recover_ms);
    a(repeat);
    a(steps);
  }
};

struct Notice {
  Severity severity = Severity::kInfo;
  std::string text;
  template <class Archive>
  void fields(Archive& a) {
    a(severity);
    a(text);
  }
};

// An encoded std::vector<inject::Fault>, to be armed in every process of the session.
struct ArmRequest {
  std::vector<std::byte> plan;
  template <class Archive>
  void fields(Archive& a) {
    a(plan);
  }
};
using PlanUpdate = ArmRequest;

}  // namespace gpurecover::protocol
