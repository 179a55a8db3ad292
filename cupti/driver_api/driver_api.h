// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// The one table of the driver's calls: whatever gpurecover knows about a call is in its row, and
// nowhere else. Rows are in calls.def. Reading the table is thread-safe and allocates nothing.
namespace gpurecover::driver_api {

// What a call is to us.
enum class Kind : std::uint8_t {
  kLaunch,
  kGraphLaunch,
  kHostFunction,
  kCopy,
  kSet,
  kAlloc,
  kFree,
  kMemoryMap,
  kSync,
  kEvent,
  kStreamMemory,
  kCapture,
  kGraph,
  kModule,
  kTensorMap,
  kContext,
  kObject,
  kQuery,
  kProcess,
};

// How a call orders streams, the host or devices against one another; a set of bits.
using Edges = std::uint16_t;
inline constexpr Edges kEdgeNone = 0;
inline constexpr Edges kEdgeEvent = 1 << 0;
inline constexpr Edges kEdgeLegacyBarrier = 1 << 1;  // like the legacy default stream
inline constexpr Edges kEdgeFreeAlloc = 1 << 2;      // memory changes its owner
inline constexpr Edges kEdgeHostFunction = 1 << 3;
inline constexpr Edges kEdgeStreamMemory = 1 << 4;
inline constexpr Edges kEdgeExternalSemaphore = 1 << 5;
inline constexpr Edges kEdgeHostVisible = 1 << 6;  // the host may see what was written before
inline constexpr Edges kEdgeSynchronize = 1 << 7;  // the host waits or polls

// What the call does while a stream captures (CUDA programming guide, "Prohibited and Unhandled
// Operations").
enum class Capture : std::uint8_t { kAllowed, kForbidden, kChanges };

// What a call that returned an error has done.
enum class OnError : std::uint8_t { kNothing, kPerhaps, kPart };

// The codes that a call may return by itself, as cuda.h's documentation lists them; see codes_of.
enum class Codes : std::uint8_t {
  kQuery,
  kLaunch,
  kEnqueue,
  kCopy,
  kAlloc,
  kSync,
  kObject,
  kModule,
};

// How the call is answered once the process's CUDA is dead and a standby has taken over.
enum class After : std::uint8_t {
  kServed,    // done by the standby
  kLocal,     // still answered by the dead process's driver
  kMirrored,  // done in both
  kRecord,    // answered from what the agent recorded
  kDeclined,  // cannot be carried over: a program that uses it is not taken over
};

// What the agent does at a call; kNone: it does not ask to be called back at all.
enum class Hook : std::uint8_t {
  kNone,
  kReports,  // see Call::reports
  kLaunchKernel,
  kLaunchKernelEx,
  kLaunchCooperative,
  kLaunchUnprotected,
  kGraphLaunch,
  kCopyLinear,  // parameters: dst, src, byte count, …
  kCopy2d,      // parameters: a pointer to CUDA_MEMCPY2D, …
  kCopy3d,
  kDelivers,      // work that cannot be kept from the device: returns an error that is held back
  kHostFunction,  // parameters: stream, function, …
  kSet1d,         // parameters: dst, value, count, …
  kSet2d,
  kAllocDevice,
  kAllocPitch,
  kAllocManaged,
  kAllocHost,
  kHostAlloc,
  kHostRegister,
  kAllocAsync,
  kAllocFromPool,
  kMap,
  kPoolImport,
  kIpcOpen,
  kShared,         // others get at the memory of an address
  kHandleShared,   // others get at the memory of a handle
  kHandleRetain,   // one more handle of what is mapped at an address
  kHandleImport,   // a handle of what others have
  kHandleRelease,  // the handle's number may come again
  kExternalBuffer,
  kCreate,
  kArrayCreate,
  kArrayDestroy,
  kPoolCreate,
  kPoolDestroy,
  kPoolAccess,
  kPeerEnable,
  kPeerDisable,
  kMemInfo,
  kAddressRange,
  kPointerAttribute,
  kPointerAttributes,
  kSetPointerAttribute,
  kHostFlags,
  kHostDevicePointer,
  kFreeDevice,
  kFreeHost,
  kHostUnregister,
  kFreeAsync,
  kUnmap,
  kIpcClose,
  kCaptureBegin,
  kCaptureEnd,
  kModuleLoadFile,
  kModuleLoadData,
  kModuleLoadDataEx,
  kModuleLoadFatbin,
  kModuleUnload,
  kLibraryLoadData,
  kLibraryLoadFile,
  kLibraryUnload,
  kModuleGetGlobal,
  kLibraryGetGlobal,
  kLibraryGetManaged,
  kLibraryGetModule,
  kKernelGetFunction,
  kContextDestroy,
  kPrimaryContextGone,
};

struct Call {
  std::string_view name;  // with its version, without `_ptsz` or `_ptds`
  Kind kind;
  Edges edge;
  Capture capture;
  OnError on_error;
  Codes codes;
  // The host waits, polls or hands back memory, so an error of earlier asynchronous work shows here
  // at the latest.
  bool reports;
  After after;
  Hook hook;
  // How the parameters travel to a standby, one word for each, in order; "" if the call does not
  // travel in this form, "-" if it has no parameters. See recovery/call_codec.h.
  std::string_view signature;
};

// All rows, in the order of calls.def.
std::span<const Call> all_calls();

// The row of a CUPTI driver callback id, or null: a call that we know nothing of.
const Call* find(std::uint32_t cbid);
// The row of a name as CUPTI and cuGetProcAddress spell it ("cuMemAlloc_v2",
// "cuLaunchKernel_ptsz"), or null.
const Call* find(std::string_view name);

// The name of a driver callback id as in cupti_driver_cbid.h, "" if there is none. `true` from
// per_thread_stream if stream 0 means the per-thread default stream in that form of the call.
std::string_view name_of(std::uint32_t cbid);
bool per_thread_stream(std::uint32_t cbid);

// All of it by callback id, for whoever keeps the span: then a row is found without a call.
struct Callback {
  const Call* call = nullptr;  // as `find` says
  bool per_thread = false;     // as `per_thread_stream` says
};
std::span<const Callback> callbacks();
// One more than the largest callback id.
std::uint32_t cbid_end();

// The codes of a set, ascending, without CUDA_SUCCESS and without the sticky codes of earlier
// asynchronous work, which nearly every call may return.
std::span<const std::int32_t> codes_of(Codes codes);

}  // namespace gpurecover::driver_api
