// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cupti/protocol/messages.h"

// What an agent and its standby say to each other: the control socket's messages (MessageType says
// which goes with what), and the requests on a lane. One agent, one standby, installed together:
// kProtocolVersion holds here too. Who reads checks everything; a malformed message is answered by
// an error or ends the connection.
namespace gpurecover::protocol {

struct StandbyHello {
  std::uint32_t version = kProtocolVersion;
  std::uint64_t fingerprint = 0;  // of the table of calls, recovery/call_codec.h
  std::int32_t pid = 0;
  std::string error;  // why it cannot work; empty if it can
  template <class Archive>
  void fields(Archive& a) {
    a(version);
    a(fingerprint);
    a(pid);
    a(error);
  }
};

struct Setup {
  std::string device_uuid;  // 16 bytes
  std::int32_t device = 0;  // the app's ordinal
  std::uint32_t context_flags = 0;
  std::uint64_t arena = 0;  // 0: none
  std::uint64_t arena_size = 0;
  // The answer comes before the context is there; memory that is sent meanwhile is mapped when it
  // is. Whatever goes wrong is said by the answer to kFinishSetup.
  bool later = false;
  template <class Archive>
  void fields(Archive& a) {
    a(device_uuid);
    a(device);
    a(context_flags);
    a(arena);
    a(arena_size);
    a(later);
  }
};

struct MemoryRange {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint32_t flags = 0;  // kMapHost: of cuMemHostRegister
  template <class Archive>
  void fields(Archive& a) {
    a(address);
    a(size);
    a(flags);
  }
};

struct ImageLoad {
  std::uint64_t handle = 0;  // the app's
  std::uint64_t size = 0;    // of the image, bytes from the file's beginning
  template <class Archive>
  void fields(Archive& a) {
    a(handle);
    a(size);
  }
};

struct FindGlobal {
  std::uint64_t owner = 0;  // the app's handle
  bool library = false;     // of a library, else of a module
  std::string name;
  template <class Archive>
  void fields(Archive& a) {
    a(owner);
    a(library);
    a(name);
  }
};

struct StandbyAnswer {
  std::int32_t code = 0;  // CUresult
  std::string reason;     // of a code that is not 0
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  // Of kFinishSetup: how long the context took, and what was mapped after it.
  double context_ms = 0;
  double map_ms = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(code);
    a(reason);
    a(address);
    a(size);
    a(context_ms);
    a(map_ms);
  }
};

// The requests of a lane (recovery/standby/lane.h). The answer's payload is the reason of a code
// that is not 0, else what the comment says, else nothing.
enum class LaneRequest : std::uint32_t {
  kCall = 1,     // an encoded call; its results
  kLaunch = 2,   // recovery::RemoteLaunch
  kReplay = 3,   // recovery::RemoteReplay; ReplayResult
  kCopyIn = 4,   // LaneCopy: from the window's beginning to the device address `to`
  kCopyOut = 5,  // LaneCopy: from the device address `from` to the window's beginning
  kCopy = 6,     // LaneCopy
  kPrepare = 7,  // PrepareLaunch
};

struct LaneCopy {
  std::uint64_t to = 0;
  std::uint64_t from = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  bool async = false;
  template <class Archive>
  void fields(Archive& a) {
    a(to);
    a(from);
    a(size);
    a(stream);
    a(async);
  }
};

// Does beforehand what the first launch of a function would take time for; of function 0, what the
// first replay would. What of it fails is left to them.
struct PrepareLaunch {
  std::uint64_t function = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(function);
  }
};

struct ReplayResult {
  bool recovered = false;
  bool refused = false;
  std::int32_t code = 0;
  std::string reason;
  template <class Archive>
  void fields(Archive& a) {
    a(recovered);
    a(refused);
    a(code);
    a(reason);
  }
};

}  // namespace gpurecover::protocol
