// SPDX-License-Identifier: Apache-2.0
//
// The intermediate representation of a PTX module. It keeps everything that an interpreter needs to
// execute the module and that an analysis needs to reason about it: resolved registers, labels and
// symbols, types, state spaces, modifiers, initialisers. Plain data; produced by ptx_parser.h, and
// by sass/lift.h from machine code. What only the latter makes is marked "machine code" below.
//
// Guarantees of a Module that the parser returned (a consumer may rely on them without checks):
//  - every register index in an operand is < Function::registers.size();
//  - every label (kLabel, BranchTable::targets) is <= Function::code.size(); a value equal to
//    code.size() means "end of the function" (an implicit ret/exit);
//  - every symbol reference is in range of the list that its kind names;
//  - every operand span lies inside Function::operands; vectors and lists never nest deeper than 2.
// Semantics (operand counts and types fitting the opcode) are NOT checked: a consumer must.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpurecover::image::ptx {

// Fundamental types. kOther is a type we have no name for (its text is in the opcode text).
enum class Type : std::uint8_t {
  kNone,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kU16x2,
  kS16x2,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kTf32,
  kF32,
  kF32x2,
  kF64,
  kE4m3,
  kE5m2,
  kE4m3x2,
  kE5m2x2,
  kPred,
  kTexref,
  kSamplerref,
  kSurfref,
  kOther,
};

// Bytes of one element; kPred is 1, kNone/kOther 0; opaque references are 8 (a handle).
std::uint32_t size_of(Type type);
// "u32", "f16x2", ...; "" for kNone.
std::string_view name_of(Type type);
constexpr bool is_float(Type t) {
  return t == Type::kF16 || t == Type::kF16x2 || t == Type::kBf16 || t == Type::kBf16x2 ||
         t == Type::kTf32 || t == Type::kF32 || t == Type::kF32x2 || t == Type::kF64;
}
constexpr bool is_signed_integer(Type t) {
  return t == Type::kS8 || t == Type::kS16 || t == Type::kS32 || t == Type::kS64 ||
         t == Type::kS16x2;
}

// State spaces. kGeneric: none was written (for ld/st/atom/red that means generic addressing).
enum class Space : std::uint8_t {
  kGeneric,
  kConst,
  kGlobal,
  kLocal,
  kParam,          // .param, .param::entry, .param::func
  kShared,         // .shared, .shared::cta
  kSharedCluster,  // .shared::cluster
  kTex,
};

// Base opcodes: the word before the first '.'. Everything after it is in Instruction's fields and
// modifiers, so `cp.async.bulk.tensor...` is kCp. kUnknown: a word that is not in this list; the
// instruction is kept with its text.
// clang-format off
#define GPURECOVER_PTX_OPCODES(X) \
  X(Abs, "abs") X(Activemask, "activemask") X(Add, "add") X(Addc, "addc") X(Alloca, "alloca") \
  X(And, "and") X(Applypriority, "applypriority") X(Atom, "atom") X(Bar, "bar") \
  X(Barrier, "barrier") X(Bfe, "bfe") X(Bfi, "bfi") X(Bfind, "bfind") X(Bmsk, "bmsk") \
  X(Bra, "bra") X(Brev, "brev") X(Brkpt, "brkpt") X(Brx, "brx") X(Call, "call") X(Clz, "clz") \
  X(Clusterlaunchcontrol, "clusterlaunchcontrol") X(Cnot, "cnot") X(Copysign, "copysign") \
  X(Cos, "cos") X(Cp, "cp") X(Createpolicy, "createpolicy") X(Cvt, "cvt") X(Cvta, "cvta") \
  X(Discard, "discard") X(Div, "div") X(Dp2a, "dp2a") X(Dp4a, "dp4a") X(Elect, "elect") \
  X(Ex2, "ex2") X(Exit, "exit") X(Fence, "fence") X(Fma, "fma") X(Fns, "fns") \
  X(Getctarank, "getctarank") X(Griddepcontrol, "griddepcontrol") X(Isspacep, "isspacep") \
  X(Istypep, "istypep") X(Ld, "ld") X(Ldmatrix, "ldmatrix") X(Ldu, "ldu") X(Lg2, "lg2") \
  X(Lop3, "lop3") X(Mad, "mad") X(Mad24, "mad24") X(Madc, "madc") X(Mapa, "mapa") \
  X(Match, "match") X(Max, "max") X(Mbarrier, "mbarrier") X(Membar, "membar") X(Min, "min") \
  X(Mma, "mma") X(Mov, "mov") X(Movmatrix, "movmatrix") X(Mul, "mul") X(Mul24, "mul24") \
  X(Multimem, "multimem") X(Nanosleep, "nanosleep") X(Neg, "neg") X(Not, "not") X(Or, "or") \
  X(Pmevent, "pmevent") X(Popc, "popc") X(Prefetch, "prefetch") X(Prefetchu, "prefetchu") \
  X(Prmt, "prmt") X(Rcp, "rcp") X(Red, "red") X(Redux, "redux") X(Rem, "rem") X(Ret, "ret") \
  X(Rsqrt, "rsqrt") X(Sad, "sad") X(Selp, "selp") X(Set, "set") X(Setmaxnreg, "setmaxnreg") \
  X(Setp, "setp") X(Shf, "shf") X(Shfl, "shfl") X(Shl, "shl") X(Shr, "shr") X(Sin, "sin") \
  X(Slct, "slct") X(Sqrt, "sqrt") X(St, "st") X(Stackrestore, "stackrestore") \
  X(Stacksave, "stacksave") X(Stmatrix, "stmatrix") X(Sub, "sub") X(Subc, "subc") \
  X(Suld, "suld") X(Suq, "suq") X(Sured, "sured") X(Sust, "sust") X(Szext, "szext") \
  X(Tanh, "tanh") X(Tcgen05, "tcgen05") X(Tensormap, "tensormap") X(Testp, "testp") \
  X(Tex, "tex") X(Tld4, "tld4") X(Trap, "trap") X(Txq, "txq") X(Vabsdiff, "vabsdiff") \
  X(Vabsdiff2, "vabsdiff2") X(Vabsdiff4, "vabsdiff4") X(Vadd, "vadd") X(Vadd2, "vadd2") \
  X(Vadd4, "vadd4") X(Vavrg2, "vavrg2") X(Vavrg4, "vavrg4") X(Vmad, "vmad") X(Vmax, "vmax") \
  X(Vmax2, "vmax2") X(Vmax4, "vmax4") X(Vmin, "vmin") X(Vmin2, "vmin2") X(Vmin4, "vmin4") \
  X(Vote, "vote") X(Vset, "vset") X(Vset2, "vset2") X(Vset4, "vset4") X(Vshl, "vshl") \
  X(Vshr, "vshr") X(Vsub, "vsub") X(Vsub2, "vsub2") X(Vsub4, "vsub4") X(Wgmma, "wgmma") \
  X(Wmma, "wmma") X(Xor, "xor")
// clang-format on

enum class Opcode : std::uint8_t {
  kUnknown,
#define GPURECOVER_X(id, text) k##id,
  GPURECOVER_PTX_OPCODES(GPURECOVER_X)
#undef GPURECOVER_X
  // Machine code only; no text names them.
  // opaque.TYPE d: d becomes any value. It may be made of anything that the thread has at hand, so
  // that no part of it can be told, but it is no whole pointer unless TYPE has 64 bits. No access
  // to memory. Types: b32, b64, pred.
  kOpaque,
  // uniform.TYPE d, a: d becomes the value that a has in one of the active lanes of the warp,
  // always the same one for all of them. A copy where a is the same in all. Types: b32, b64.
  kUniform,
};
std::string_view name_of(Opcode opcode);  // "ld"; "" for kUnknown

// Every dotted word after the opcode that is neither a type, nor a state space, nor .v2/.v4/.v8.
// Words that look like comparison operators are modifiers too (kLt, kLo, ...): see
// Instruction::compare for set/setp, and Instruction::operation for atom/red and reductions.
// clang-format off
#define GPURECOVER_PTX_MODIFIERS(X) \
  X(Rn, "rn") X(Rz, "rz") X(Rm, "rm") X(Rp, "rp") X(Rna, "rna") X(Rs, "rs") X(Rni, "rni") \
  X(Rzi, "rzi") X(Rmi, "rmi") X(Rpi, "rpi") X(Ftz, "ftz") X(Sat, "sat") \
  X(Satfinite, "satfinite") X(Approx, "approx") X(Full, "full") X(Wide, "wide") X(Cc, "cc") \
  X(Nan, "NaN") X(Xorsign, "xorsign") X(Abs, "abs") X(Relu, "relu") X(Oob, "oob") \
  X(Noftz, "noftz") X(L, "l") X(R, "r") X(Clamp, "clamp") X(Wrap, "wrap") \
  X(Shiftamt, "shiftamt") X(Scale, "scale") X(F4e, "f4e") X(B4e, "b4e") X(Rc8, "rc8") \
  X(Ecl, "ecl") X(Ecr, "ecr") X(Rc16, "rc16") X(Eq, "eq") X(Ne, "ne") X(Lt, "lt") X(Le, "le") \
  X(Gt, "gt") X(Ge, "ge") X(Lo, "lo") X(Ls, "ls") X(Hi, "hi") X(Hs, "hs") X(Equ, "equ") \
  X(Neu, "neu") X(Ltu, "ltu") X(Leu, "leu") X(Gtu, "gtu") X(Geu, "geu") X(Num, "num") \
  X(NanTest, "nan") X(Finite, "finite") X(Infinite, "infinite") X(Number, "number") \
  X(Notanumber, "notanumber") X(Normal, "normal") X(Subnormal, "subnormal") X(Add, "add") \
  X(Min, "min") X(Max, "max") X(Inc, "inc") X(Dec, "dec") X(And, "and") X(Or, "or") \
  X(Xor, "xor") X(Exch, "exch") X(Cas, "cas") X(Popc, "popc") X(Sync, "sync") X(Up, "up") \
  X(Down, "down") X(Bfly, "bfly") X(Idx, "idx") X(All, "all") X(Any, "any") X(Uni, "uni") \
  X(Ballot, "ballot") X(Arrive, "arrive") X(Red, "red") X(Warp, "warp") X(Cluster, "cluster") \
  X(Cta, "cta") X(Gl, "gl") X(Sys, "sys") X(Gpu, "gpu") X(Sc, "sc") X(AcqRel, "acq_rel") \
  X(Acquire, "acquire") X(Release, "release") X(Relaxed, "relaxed") X(Volatile, "volatile") \
  X(Weak, "weak") X(Mmio, "mmio") X(Aligned, "aligned") X(Wait, "wait") X(Proxy, "proxy") \
  X(Alias, "alias") X(Async, "async") X(Init, "init") X(Inval, "inval") X(ExpectTx, "expect_tx") \
  X(CompleteTx, "complete_tx") X(ArriveDrop, "arrive_drop") X(TestWait, "test_wait") \
  X(TryWait, "try_wait") X(PendingCount, "pending_count") X(NoComplete, "noComplete") \
  X(Noinc, "noinc") X(Parity, "parity") X(MbarrierInit, "mbarrier_init") \
  X(SyncRestrict, "sync_restrict") X(LaunchDependents, "launch_dependents") X(Ca, "ca") \
  X(Cg, "cg") X(Cs, "cs") X(Lu, "lu") X(Cv, "cv") X(Wb, "wb") X(Wt, "wt") X(Nc, "nc") \
  X(L1, "L1") X(L2, "L2") X(L1EvictNormal, "L1::evict_normal") \
  X(L1EvictUnchanged, "L1::evict_unchanged") X(L1EvictFirst, "L1::evict_first") \
  X(L1EvictLast, "L1::evict_last") X(L1NoAllocate, "L1::no_allocate") \
  X(L2EvictNormal, "L2::evict_normal") X(L2EvictFirst, "L2::evict_first") \
  X(L2EvictLast, "L2::evict_last") X(L2EvictUnchanged, "L2::evict_unchanged") \
  X(L2CacheHint, "L2::cache_hint") X(L264B, "L2::64B") X(L2128B, "L2::128B") \
  X(L2256B, "L2::256B") X(Level, "level") X(Fractional, "fractional") X(Range, "range") \
  X(Tensormap, "tensormap") X(LdStUnified, "unified") X(To, "to") X(Reg, "reg") X(Sreg, "sreg") \
  X(Bulk, "bulk") X(Tensor, "tensor") X(Reduce, "reduce") X(Prefetch, "prefetch") \
  X(CommitGroup, "commit_group") X(WaitGroup, "wait_group") X(WaitAll, "wait_all") \
  X(Mbarrier, "mbarrier") X(Read, "read") X(BulkGroup, "bulk_group") \
  X(MbarrierCompleteTxBytes, "mbarrier::complete_tx::bytes") \
  X(MulticastCluster, "multicast::cluster") X(CpMask, "cp_mask") X(Tile, "tile") \
  X(Im2col, "im2col") X(Dim1d, "1d") X(Dim2d, "2d") X(Dim3d, "3d") X(Dim4d, "4d") X(Dim5d, "5d") \
  X(Da1d, "a1d") X(Da2d, "a2d") X(Dcube, "cube") X(Dacube, "acube") \
  X(MbarrierArriveOne, "mbarrier::arrive::one") X(Row, "row") X(Col, "col") X(X1, "x1") \
  X(X2, "x2") X(X4, "x4") X(Trans, "trans") X(M8n8, "m8n8") X(M16n16k16, "m16n16k16") \
  X(M8n32k16, "m8n32k16") X(M32n8k16, "m32n8k16") X(M16n8k4, "m16n8k4") X(M16n8k8, "m16n8k8") \
  X(M16n8k16, "m16n8k16") X(M16n8k32, "m16n8k32") X(M8n8k4, "m8n8k4") X(M16n16k8, "m16n16k8") \
  X(Load, "load") X(Store, "store") X(Mma, "mma") X(A, "a") X(B, "b") X(C, "c") X(D, "d") \
  X(H0, "h0") X(H1, "h1") X(LdReduce, "ld_reduce") X(St, "st") X(Acc, "acc") X(Base, "base") \
  X(Grad, "grad") X(Width, "width") X(Height, "height") X(Depth, "depth") X(Zero, "zero") \
  X(Trap, "trap") X(P, "p") X(Fence, "fence")
// clang-format on

enum class Modifier : std::uint8_t {
#define GPURECOVER_X(id, text) k##id,
  GPURECOVER_PTX_MODIFIERS(GPURECOVER_X)
#undef GPURECOVER_X
      kCount,
};
std::string_view name_of(Modifier modifier);
using ModifierSet = std::bitset<static_cast<std::size_t>(Modifier::kCount)>;

enum class Compare : std::uint8_t {
  kNone,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLo,
  kLs,
  kHi,
  kHs,  // unsigned
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,  // true if an operand is NaN
  kNum,
  kNan,
};
enum class BoolOp : std::uint8_t { kNone, kAnd, kOr, kXor };
enum class Rounding : std::uint8_t {
  kNone,
  kRn,
  kRz,
  kRm,
  kRp,
  kRna,
  kRs,
  kRni,
  kRzi,
  kRmi,
  kRpi,  // round to an integral value
};

// Registers that the hardware or the driver fills in. Where the register is a vector (tid, ntid,
// ctaid, nctaid, ...), Operand::component is 0 for .x, 1 for .y, 2 for .z.
enum class SpecialRegister : std::uint8_t {
  kTid,
  kNtid,
  kLaneid,
  kWarpid,
  kNwarpid,
  kCtaid,
  kNctaid,
  kSmid,
  kNsmid,
  kGridid,
  kIsExplicitCluster,
  kClusterid,
  kNclusterid,
  kClusterCtaid,
  kClusterNctaid,
  kClusterCtarank,
  kClusterNctarank,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kClock,
  kClockHi,
  kClock64,
  kPm,
  kPm64,    // kPm, kPm64: Operand::offset is the number
  kEnvreg,  // Operand::offset is the number
  kGlobaltimer,
  kGlobaltimerLo,
  kGlobaltimerHi,
  kReservedSmemOffset,
  kTotalSmemSize,
  kAggrSmemSize,
  kDynamicSmemSize,
  kCurrentGraphExec,
  kWarpSize,    // the constant WARP_SZ (32)
  kDriverWord,  // machine code: 4 or 8 bytes that the driver puts into constant memory, at
                // Operand::offset: byte | bank << 20. What they are is not known
};

enum class SymbolKind : std::uint8_t {
  kVariable,     // Module::variables
  kFunction,     // Module::functions
  kParameter,    // Function::params of the function at hand
  kReturn,       // Function::returns of the function at hand
  kLocal,        // Function::locals: .local, .shared, .param, .global, .const in a body
  kBranchTable,  // Function::tables (.branchtargets, .calltargets)
  kPrototype,    // Function::prototypes (.callprototype)
};

inline constexpr std::uint32_t kNoIndex = 0xFFFFFFFFu;

enum class OperandKind : std::uint8_t {
  kRegister,  // index = register. pair = second register of `a|b` (kNoIndex: none)
  kImmediate,  // imm = value: integers as 64-bit two's complement, 0f… as its 32 bits, 0d… as 64;
               // is_float says which. A decimal 1.5 is stored as 64-bit double bits (float_bits 64)
  kSpecial,  // special, component
  kLabel,    // index = instruction index (branch target)
  kSymbol,   // symbol_kind/index (+ offset): the ADDRESS of the symbol as a value, a call target,
             // a table, or a call parameter
  kAddress,  // [base + offset]; base says what base is. first/count: coordinates or further
             // parts after the first comma in the brackets, as in [tmap, {x, y}]
  kVector,   // {a, b, …}: first/count in Function::operands
  kList,     // (a, b, …) of call: first/count in Function::operands
  kSink,     // `_`; pair as for kRegister
};

enum class AddressBase : std::uint8_t { kNone, kRegister, kSymbol };

struct Operand {
  OperandKind kind = OperandKind::kSink;
  AddressBase base = AddressBase::kNone;  // kAddress only
  SymbolKind symbol_kind = SymbolKind::kVariable;
  SpecialRegister special = SpecialRegister::kTid;
  std::uint8_t component = 0;       // .x .y .z .w; for kRegister see has_component
  bool has_component = false;       // `%v.x`: one component of a .v2/.v4 register (0…3 for
                                    // .x….w; 16+n for .bn, 32+n for .hn of video instructions)
  bool negated = false;             // `!%p`
  bool arithmetic_negated = false;  // `-%r` (rare, hand-written)
  bool is_float = false;            // kImmediate
  std::uint8_t float_bits = 0;      // 32 or 64
  std::uint32_t index = kNoIndex;   // see OperandKind; also the base of an address
  std::uint32_t pair = kNoIndex;
  std::uint32_t first = 0, count = 0;  // sub-operands in Function::operands
  std::int64_t offset = 0;             // displacement in bytes; number of %envreg, %pm
  std::uint64_t imm = 0;
};

struct Instruction {
  Opcode opcode = Opcode::kUnknown;
  Space space = Space::kGeneric;   // first state space written
  Space space2 = Space::kGeneric;  // second one (cp.async.shared.global: global)
  std::uint8_t space_count = 0;
  Type type = Type::kNone;   // first type written: cvt.f32.s32 → kF32
  Type type2 = Type::kNone;  //                                 → kS32
  Type type3 = Type::kNone, type4 = Type::kNone;
  std::uint8_t vector = 1;              // 2, 4, 8 for .v2 .v4 .v8
  Compare compare = Compare::kNone;     // set, setp
  BoolOp bool_op = BoolOp::kNone;       // set, setp with a combining predicate
  Rounding rounding = Rounding::kNone;  // the first rounding word
  bool has_operation = false;
  Modifier operation = Modifier::kAdd;  // the first operation word (add … popc) if any
  bool has_unknown_modifier = false;    // a word that we do not know: see text
  bool guard_negated = false;           // @!%p
  std::uint32_t guard = kNoIndex;       // register of @%p
  std::uint32_t text = 0;               // index in Module::opcode_texts
  std::uint32_t line = 0;               // line of the PTX text, from 1; of machine code: the
                                        // number of the instruction in its section, from 1
  std::uint32_t first_operand = 0;
  std::uint32_t operand_count = 0;
  ModifierSet modifiers;

  bool has(Modifier m) const { return modifiers[static_cast<std::size_t>(m)]; }
};
// Operands of kCall are always: [0] kList of return values, [1] the target (kSymbol of a function,
// or kRegister), [2] kList of arguments, and optionally [3] kSymbol of a table or a prototype.
// List members are kSymbol (call .param variables: kLocal; or the function's own parameters),
// kRegister or kImmediate.
// brx.idx: [0] the index register, [1] kSymbol of kBranchTable.

// A register. Registers are numbered densely per function; only registers that the code mentions
// exist (`.reg .b32 %r<100>` by itself creates none).
struct Register {
  Type type = Type::kNone;
  std::uint8_t vector = 1;
  std::string name;  // "%r12"; shadowed names in inner scopes repeat
};

// A symbol's address inside initialised data: at `offset`, `size` bytes are to be set to
// (address of the symbol + addend) as 1…8 bytes; with mask != 0, the byte(s) selected by the mask:
// ((address + addend) & mask) shifted down by the mask's trailing zeros.
struct Relocation {
  std::uint32_t offset = 0;
  std::uint8_t size = 8;
  bool generic = false;                            // generic(sym): the generic address
  SymbolKind symbol_kind = SymbolKind::kVariable;  // kVariable or kFunction
  std::uint32_t symbol = kNoIndex;
  std::int64_t addend = 0;
  std::uint64_t mask = 0;
};

// A variable of a module or of a function body.
struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kNone;
  std::uint8_t vector = 1;
  bool is_extern = false, visible = false, weak = false, common = false, managed = false;
  bool unsized = false;             // `x[]` without initialiser: dynamic shared memory
  std::uint32_t align = 1;          // bytes; natural if not written
  std::uint64_t size = 0;           // bytes
  std::vector<std::uint64_t> dims;  // as written; the first is 0 if unsized
  std::vector<std::byte> init;      // empty: zeros; else at most size bytes, rest zeros
  std::vector<Relocation> relocations;
  std::uint32_t line = 0;
};

// A parameter or return value of a function or prototype. Of a kernel lifted from machine code, the
// last one stands for the whole block of parameters (offset 0) and overlaps the others: what is
// read at an index computed at run time may be any of them.
struct Parameter {
  std::string name;
  Type type = Type::kNone;
  std::uint32_t align = 1;       // bytes
  std::uint32_t size = 0;        // bytes
  std::uint32_t offset = 0;      // in the parameter block, by order and alignment
  std::uint32_t reg = kNoIndex;  // `.reg` parameter (device functions): register
  bool is_pointer = false;       // `.ptr` written
  Space pointer_space = Space::kGeneric;
  std::uint32_t pointer_align = 0;
};

// .branchtargets: labels as instruction indexes. .calltargets: indexes of Module::functions.
struct BranchTable {
  std::string name;
  bool is_call = false;
  std::vector<std::uint32_t> targets;
};

struct Prototype {
  std::string name;
  std::vector<Parameter> returns, params;
  bool noreturn = false;
};

struct Label {
  std::string name;
  std::uint32_t instruction = 0;
};

struct Function {
  std::string name;
  bool entry = false;     // .entry: a kernel
  bool has_body = false;  // false: a prototype or an external function
  bool is_extern = false, visible = false, weak = false, noreturn = false;
  std::vector<Parameter> returns, params;
  std::uint32_t param_bytes = 0;  // size of the parameter block
  std::vector<Register> registers;
  std::vector<Variable> locals;  // all scopes, in order; names may repeat
  std::vector<Instruction> code;
  std::vector<Operand> operands;  // pool, see Instruction::first_operand
  std::vector<BranchTable> tables;
  std::vector<Prototype> prototypes;
  std::vector<Label> labels;                      // for messages
  std::uint32_t required_threads[3] = {0, 0, 0};  // .reqntid, 0 if absent
  std::uint32_t max_threads[3] = {0, 0, 0};       // .maxntid, 0 if absent
  // `.alias`: this name stands for that function; kNoIndex if it is no alias.
  std::uint32_t alias_of = kNoIndex;
  std::uint32_t line = 0;

  std::span<const Operand> operands_of(const Instruction& i) const {
    return std::span<const Operand>(operands).subspan(i.first_operand, i.operand_count);
  }
  std::span<const Operand> members_of(const Operand& o) const {
    return std::span<const Operand>(operands).subspan(o.first, o.count);
  }
};

struct Module {
  std::uint32_t version_major = 0, version_minor = 0;
  std::string target;               // "sm_90a"
  std::uint32_t sm = 0;             // 90
  std::string suffix;               // "a", "f" or ""
  std::uint32_t address_size = 64;  // bits
  bool machine_code = false;        // lifted, not parsed
  std::vector<Variable> variables;
  std::vector<Function> functions;        // one per name; a prototype merges with its body
  std::vector<std::string> opcode_texts;  // "ld.global.nc.v2.f64"

  const Function* find_function(std::string_view name) const;  // nullptr if absent; linear time
  const Variable* find_variable(std::string_view name) const;
  std::string_view text_of(const Instruction& i) const { return opcode_texts[i.text]; }
};

}  // namespace gpurecover::image::ptx
