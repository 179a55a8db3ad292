// SPDX-License-Identifier: Apache-2.0
// The decoded form of a kernel: micro-operations that each work on the 32 lanes of a warp.
//
// Registers are arrays of 32 elements, one for each lane, of the register's own width; a predicate
// is one 32-bit mask. A micro-operation names its operands by byte offsets into the register file
// of the current frame or, with kConstBit, into the function's pool of constants (which has the
// same layout), so that a handler never asks what kind of operand it has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image/ptx_ir.h"
#include "softgpu/device/launch.h"

namespace gpurecover::softgpu::interp {

namespace ptx = image::ptx;

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kFull = 0xFFFFFFFFu;
inline constexpr uint32_t kConstBit = 0x80000000u;
inline constexpr uint32_t kNone = 0xFFFFFFFFu;

// Generic addresses of kernel parameters (cvta.param) and the values of function pointers; both lie
// beyond the windows of launch.h.
inline constexpr uint64_t kParamWindow = 3ull << 48;
inline constexpr uint64_t kFunctionWindow = 5ull << 48;
inline constexpr uint64_t kWindowMask = 0xFFFFull << 48;
// Distance of two function pointers; an address in between is no function.
inline constexpr uint64_t kFunctionStep = 16;

struct Op;
struct Ctx;

// Executes `op` for the lanes in `mask` (never 0). Returns 0 to go on at Ctx::next (preset to the
// following micro-operation), else an Action.
using Handler = uint32_t (*)(Ctx&, const Op&, uint32_t mask);

enum Action : uint32_t {
  kNext = 0,
  kActFault,      // Ctx::fault is filled in
  kActBranch,     // conditional, not uniform
  kActJoin,       // a point of reconvergence
  kActBrx,        // indexed branch
  kActCall,       //
  kActRet,        //
  kActExit,       //
  kActBarrier,    // bar, barrier
  kActWarpSync,   // shfl, vote, match, redux, elect, bar.warp with a member mask
  kActYield,      // the lanes wait for something: let others run
  kActIntrinsic,  // vprintf, __assertfail, malloc, free
  kActTrap,
};

// A small record of what matters to the choice of a handler.
struct Key {
  ptx::Opcode opcode = ptx::Opcode::kUnknown;
  ptx::Type type = ptx::Type::kNone, type2 = ptx::Type::kNone, type3 = ptx::Type::kNone;
  ptx::Compare compare = ptx::Compare::kNone;
  ptx::BoolOp bool_op = ptx::BoolOp::kNone;
  ptx::Rounding rounding = ptx::Rounding::kNone;
  bool ftz = false, sat = false, approx = false, full = false, wide = false, hi = false, lo = false;
  bool cc = false, nan = false, xorsign = false, abs = false, relu = false, clamp = false,
       wrap = false;
  bool left = false, right = false, shiftamt = false, satfinite = false;
  bool pair = false;     // `p|q`
  uint8_t operands = 0;  // as written, without those of `.cc`
  // Of testp, prmt, dp2a: the remaining word as written.
  ptx::Modifier word = ptx::Modifier::kCount;
};

// How to hand the operands of an instruction to its handler.
struct Shape {
  Handler fn = nullptr;              // null: not supported
  ptx::Type dst = ptx::Type::kNone;  // kNone: no destination
  bool pair = false;                 // a second destination, a predicate (or a sink)
  uint8_t sources = 0;
  ptx::Type src[5] = {};
  uint32_t mode = 0;  // for Op::mode
  bool carry_in = false, carry_out = false;
};

struct Op {
  Handler fn = nullptr;
  uint32_t d = kNone;                   // destination
  uint32_t d2 = kNone;                  // second destination
  uint32_t a = 0, b = 0, c = 0, e = 0;  // sources
  uint32_t guard = kNone;               // predicate's offset; kNone: unconditional
  uint32_t mode = 0;                    // meaning belongs to the handler
  int64_t imm = 0;                      // displacement of an address, or the handler's
  uint32_t target = 0;                  // branch: micro-op index; others: index of a table entry
  uint32_t source = 0;                  // index of the PTX instruction
  uint8_t weight = 0;                   // 1 on the first micro-op of an instruction
  bool guard_negated = false;
  uint8_t count = 1;  // elements of a vector access; operands then are Ctx::extra[target...]
  uint8_t space = 0;  // of a memory access: Where
};

// Where a memory access goes, as known at compile time.
enum class Where : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// Flags of memory operations in Op::mode.
enum MemMode : uint32_t {
  kMemPoll = 1,           // volatile, relaxed, acquire, atomic: a loop over it may be a wait
  kMemFrameRelative = 2,  // the displacement counts from the frame's local memory
  kMemAddress32 = 4,      // the address register has 32 bits
  kMemFence = 8,          // sequentially consistent
  kMemShift = 8,          // atomic operation from here on
};

enum class AtomOp : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };

struct FaultInfo {
  int code = 0;
  uint32_t lane = 0;
  uint64_t address = 0;
  uint32_t bytes = 0;
  bool write = false;
  const char* what = "";
};

class AccessLog;

// What a handler sees of the warp. Filled in when a group of lanes starts to run.
struct Ctx {
  std::byte* base[2] = {};  // registers of the frame, constants of the function
  const Op* next = nullptr;
  const uint32_t* extra = nullptr;
  DeviceMemory* memory = nullptr;
  std::byte* shared = nullptr;
  uint64_t shared_bytes = 0;
  std::byte* local = nullptr;  // of lane 0; lanes are local_bytes apart
  uint64_t local_bytes = 0;
  uint64_t frame_local = 0;  // start of the frame's variables in local memory
  const std::byte* params = nullptr;
  uint32_t param_bytes = 0;
  uint32_t active = 0;          // lanes of the running group
  const Op* join_op = nullptr;  // where the group meets the lanes that it parted from
  AccessLog* log = nullptr;
  FaultInfo fault;
  uint64_t stray = 0, first_stray = 0;
  uint64_t last_address = 0;  // a device address that this warp has used
  // Waiting by polling: the same operation with the same result again and again.
  const Op* poll_op = nullptr;
  uint64_t poll_hash = 0;
  uint32_t poll_count = 0;
  // Special registers.
  const uint32_t (*tid)[kLanes] = nullptr;
  uint32_t warp_id = 0, warps = 0, block_linear = 0, sm_count = 1;
  Dim3 ctaid, ntid, nctaid;
  uint32_t dynamic_shared = 0;
  uint64_t steps = 0;  // micro-ops of this warp in the running stretch; %clock counts them
  uint64_t clock_base = 0, time_base = 0;
  uint64_t grid_id = 0;
  const uint64_t* envreg = nullptr;
};

inline constexpr uint32_t kPollLimit = 6;

// Tells that `op` observed `hash`; true: it has been the same for long enough to let others run.
inline bool Polled(Ctx& c, const Op& op, uint64_t hash) {
  if (c.poll_op == &op && c.poll_hash == hash)
    return ++c.poll_count >= kPollLimit;
  c.poll_op = &op;
  c.poll_hash = hash;
  c.poll_count = 0;
  return false;
}

template <class T>
inline T* Dst(Ctx& c, uint32_t offset) {
  return reinterpret_cast<T*>(c.base[0] + offset);
}
template <class T>
inline const T* Src(Ctx& c, uint32_t offset) {
  return reinterpret_cast<const T*>(c.base[offset >> 31] + (offset & ~kConstBit));
}

// Bytes of one lane's element of a register of this type; a predicate is 0 (one word in all).
inline uint32_t LaneBytes(ptx::Type type) {
  return type == ptx::Type::kPred ? 0 : ptx::size_of(type);
}

// Handlers of arithmetic; two builds of lanes.inc. The one in `v3` needs AVX2 and FMA.
#define GPURECOVER_LANES_INTERFACE                                             \
  Shape Select(const Key& key); /* Shape::fn is null: not supported */         \
  Handler ExpandHandler(ptx::Type type);                                       \
  /* Elements of `from` bytes to elements of `to` bytes, by Op::a and Op::d */ \
  Handler Resize(uint32_t from, uint32_t to, bool is_signed);
namespace baseline {
GPURECOVER_LANES_INTERFACE
}
namespace v3 {
GPURECOVER_LANES_INTERFACE
}
#undef GPURECOVER_LANES_INTERFACE

}  // namespace gpurecover::softgpu::interp
