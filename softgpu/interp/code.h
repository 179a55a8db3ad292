// SPDX-License-Identifier: Apache-2.0
// A compiled module: what compile.cpp makes and exec.cpp runs. Immutable after compilation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "softgpu/device/launch.h"
#include "softgpu/interp/op.h"

namespace gpurecover::softgpu::interp {

enum class Intrinsic : uint8_t { kNone, kPrintf, kAssertFail, kMalloc, kFree };

// A value that a call hands over: bytes of the thread's local memory, from the start of the
// frame's part, or one register.
struct CallValue {
  bool in_memory = true;
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

struct CallSite {
  Intrinsic intrinsic = Intrinsic::kNone;
  uint32_t callee = kNone;  // index into KernelCode::functions; kNone: by the register `target`
  uint32_t target = 0;      // of 64 bits
  std::vector<CallValue> args, returns;
};

enum class SyncKind : uint8_t {
  kShuffle,
  kVote,
  kMatchAny,
  kMatchAll,
  kRedux,
  kElect,
  kWarpBarrier,
};

// Warp-wide operations. `member` is the operand with the member mask, kNone for the forms without.
struct SyncSite {
  SyncKind kind = SyncKind::kWarpBarrier;
  uint8_t variant = 0;  // shfl: 0 up 1 down 2 bfly 3 idx; vote: 0 all 1 any 2 uni 3 ballot;
                        // redux: AtomOp
  bool is_signed = false, wide = false;
  bool is_float = false, abs = false, nan = false;
  bool negated = false;  // of the predicate of a vote
  uint32_t d = kNone, d2 = kNone, a = 0, b = 0, c = 0;
  uint32_t member = kNone;
};

enum class BarrierKind : uint8_t { kSync, kArrive, kRedPopc, kRedAnd, kRedOr };
struct BarrierSite {
  BarrierKind kind = BarrierKind::kSync;
  uint32_t id = 0;         // operand
  uint32_t count = kNone;  // operand
  uint32_t d = kNone;      // of a reduction
  uint32_t predicate = 0;
  bool negated = false;
};

struct ConstantRelocation {
  uint32_t offset = 0;  // into FunctionCode::constants: 32 elements of 8 (or 4) bytes
  uint8_t bytes = 8;
  uint32_t variable = 0;
  int64_t addend = 0;
};

struct FunctionCode {
  std::string name;
  std::vector<Op> ops;
  std::vector<uint32_t> extra;
  std::vector<std::byte> constants;
  std::vector<ConstantRelocation> relocations;
  std::vector<CallSite> calls;
  std::vector<SyncSite> syncs;
  std::vector<BarrierSite> barriers;
  std::vector<std::vector<uint32_t>> tables;  // micro-ops, of brx.idx
  std::vector<CallValue> params, returns;     // of the function; of a kernel: empty
  uint32_t register_bytes = 0;
  uint32_t local_bytes = 0;  // of one frame, a multiple of 16
  // By PTX instruction: the register that it writes (the first, of a vector), and line and text for
  // messages.
  struct Destination {
    uint32_t offset = kNone;
    uint32_t bytes = 0;  // of a lane; 0: a predicate
  };
  std::vector<Destination> destinations;
  std::vector<uint32_t> lines;
  std::vector<uint32_t> texts;
};

struct KernelCode {
  std::vector<FunctionCode> functions;    // [0] is the kernel
  std::vector<uint32_t> by_module_index;  // of a module's function: index into functions, or kNone
  uint32_t static_shared = 0;
  uint32_t dynamic_offset = 0;  // where dynamic shared memory begins
  uint32_t stack_bytes = 0;     // of local memory for each thread
  bool has_relocations = false;
};

class CompiledProgram : public Program {
 public:
  std::span<const KernelInfo> kernels() const override { return kernels_; }
  std::span<const VariableInfo> variables() const override { return variables_; }
  std::vector<uint8_t> InitialBytes(size_t index,
                                    std::span<const uint64_t> addresses) const override;

  struct Initializer {
    std::vector<uint8_t> bytes;
    struct Relocation {
      uint32_t offset = 0;
      uint8_t size = 8;
      bool is_function = false;
      uint32_t symbol = 0;  // variable, or function of the module
      int64_t addend = 0;
      uint64_t mask = 0;
    };
    std::vector<Relocation> relocations;
  };

  std::vector<KernelInfo> kernels_;
  std::vector<KernelCode> code_;
  std::vector<VariableInfo> variables_;
  std::vector<Initializer> initializers_;
  std::vector<std::string> texts_;
};

tl::expected<std::shared_ptr<const CompiledProgram>, CompileError> CompileModule(
    const ptx::Module& module);

// Handlers of memory operations; null: no such form.
Handler SelectLoad(Where where, uint32_t bytes, uint32_t count, bool address32);
Handler SelectStore(Where where, uint32_t bytes, uint32_t count, bool address32);
Handler SelectAtom(Where where, AtomOp op, ptx::Type type, bool returns);
Handler SelectCpAsync(uint32_t bytes);
Handler SelectPack(uint32_t whole_bytes, uint32_t parts);
Handler SelectUnpack(uint32_t whole_bytes, uint32_t parts);

// Handlers of everything else that is not arithmetic.
Handler SpecialHandler(ptx::SpecialRegister which, uint32_t bytes);
uint32_t Nothing(Ctx&, const Op&, uint32_t);
uint32_t FenceAll(Ctx&, const Op&, uint32_t);
uint32_t Branch(Ctx&, const Op&, uint32_t);
uint32_t JoinPoint(Ctx&, const Op&, uint32_t);
uint32_t FrameAddress(Ctx&, const Op&, uint32_t);  // d = frame's local memory + imm
uint32_t AddWindow(Ctx&, const Op&, uint32_t);     // d = a + imm, 64 bits
uint32_t IsSpace(Ctx&, const Op&, uint32_t);       // d = a lies in Op::space
uint32_t ActiveMask(Ctx&, const Op&, uint32_t);
template <uint32_t kAction>
uint32_t Act(Ctx&, const Op&, uint32_t) {
  return kAction;
}

}  // namespace gpurecover::softgpu::interp
