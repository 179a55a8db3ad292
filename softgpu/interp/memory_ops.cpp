// SPDX-License-Identifier: Apache-2.0
// Loads, stores, atomic operations, and the handlers that are neither memory nor arithmetic.
//
// Device memory is shared with other workers and with the host: elements are accessed whole, as by
// relaxed atomics. The copies of whole rows are plain loops, which the compiler turns into vector
// moves; those of x86-64 do not tear aligned elements of up to 8 bytes.
#include <atomic>
#include <cstring>

#include "softgpu/interp/access_log.h"
#include "softgpu/interp/code.h"
#include "softgpu/interp/formats.h"

namespace gpurecover::softgpu::interp {
namespace {

using ptx::Type;
using u128 = unsigned __int128;

__attribute__((noinline)) uint32_t Fail(Ctx& c, int code, uint32_t lane, uint64_t address,
                                        uint32_t bytes, bool write, const char* what) {
  c.fault = {code, lane, address, bytes, write, what};
  return kActFault;
}

template <class T>
GPURECOVER_INLINE T LoadElement(const std::byte* p) {
  if constexpr (sizeof(T) == 16) {
    const uint64_t* q = reinterpret_cast<const uint64_t*>(p);
    return static_cast<T>(__atomic_load_n(q, __ATOMIC_RELAXED)) |
           static_cast<T>(__atomic_load_n(q + 1, __ATOMIC_RELAXED)) << 64;
  } else {
    return __atomic_load_n(reinterpret_cast<const T*>(p), __ATOMIC_RELAXED);
  }
}
template <class T>
GPURECOVER_INLINE void StoreElement(std::byte* p, T value) {
  if constexpr (sizeof(T) == 16) {
    uint64_t* q = reinterpret_cast<uint64_t*>(p);
    __atomic_store_n(q, static_cast<uint64_t>(value), __ATOMIC_RELAXED);
    __atomic_store_n(q + 1, static_cast<uint64_t>(value >> 64), __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(reinterpret_cast<T*>(p), value, __ATOMIC_RELAXED);
  }
}

constexpr const char* kOutOfShared = "outside the block's shared memory";
constexpr const char* kOutOfLocal = "outside the thread's local memory";
constexpr const char* kOutOfParam = "outside the kernel's parameters";

// Where the access of one lane goes; null: Ctx::fault says why not. `need` is 0 for spaces other
// than device memory.
template <Where kWhere>
GPURECOVER_INLINE std::byte* Locate(Ctx& c, uint64_t address, uint32_t bytes, uint32_t align,
                                    uint8_t need, uint32_t lane) {
  const bool write = need & DeviceMemory::kWrite;
  if (address & (align - 1)) [[unlikely]] {
    Fail(c, kMisalignedAddress, lane, address, bytes, write, "not aligned");
    return nullptr;
  }
  auto shared = [&](uint64_t offset) -> std::byte* {
    if (offset > c.shared_bytes || bytes > c.shared_bytes - offset) [[unlikely]] {
      Fail(c, kIllegalAddress, lane, address, bytes, write, kOutOfShared);
      return nullptr;
    }
    return c.shared + offset;
  };
  auto local = [&](uint64_t offset) -> std::byte* {
    if (offset > c.local_bytes || bytes > c.local_bytes - offset) [[unlikely]] {
      Fail(c, kIllegalAddress, lane, address, bytes, write, kOutOfLocal);
      return nullptr;
    }
    return c.local + c.local_bytes * lane + offset;
  };
  auto param = [&](uint64_t offset) -> std::byte* {
    if (write || offset > c.param_bytes || bytes > c.param_bytes - offset) [[unlikely]] {
      Fail(c, kIllegalAddress, lane, address, bytes, write, kOutOfParam);
      return nullptr;
    }
    return const_cast<std::byte*>(c.params) + offset;
  };
  if constexpr (kWhere == Where::kShared)
    return shared(address);
  if constexpr (kWhere == Where::kLocal)
    return local(address);
  if constexpr (kWhere == Where::kParam)
    return param(address);
  if constexpr (kWhere == Where::kGeneric) {
    switch (address & kWindowMask) {
      case 0:
        break;
      case kSharedWindow:
        return shared(address - kSharedWindow);
      case kLocalWindow:
        return local(address - kLocalWindow);
      case kParamWindow:
        return param(address - kParamWindow);
      default:
        Fail(c, kIllegalAddress, lane, address, bytes, write, "not mapped");
        return nullptr;
    }
  }
  for (uint32_t part = 0; part < bytes; part += 16) {
    switch (c.memory->Check(address + part, bytes - part < 16 ? bytes - part : 16, need)) {
      case DeviceMemory::Verdict::kOk:
        break;
      case DeviceMemory::Verdict::kStray:
        if (c.stray++ == 0)
          c.first_stray = address;
        break;
      default:
        Fail(c, kIllegalAddress, lane, address, bytes, write, "not mapped");
        return nullptr;
    }
  }
  c.last_address = address;
  if (c.log) [[unlikely]]
    c.log->Small(address, bytes, need & DeviceMemory::kRead, write);
  return reinterpret_cast<std::byte*>(address);
}

GPURECOVER_INLINE uint64_t Displacement(const Ctx& c, const Op& o) {
  return static_cast<uint64_t>(o.imm) + ((o.mode & kMemFrameRelative) ? c.frame_local : 0);
}

// True if the 32 addresses are consecutive elements of `stride` bytes.
template <class A>
GPURECOVER_INLINE bool Consecutive(const A* address, uint32_t stride) {
  A difference = 0;
  const A first = address[0];
  for (uint32_t i = 0; i < kLanes; ++i)
    difference |= static_cast<A>(address[i] - first - static_cast<A>(i * stride));
  return difference == 0;
}

// The row of a warp whose lanes access consecutive elements, checked as a whole; null: go lane by
// lane, which also finds out what is wrong.
template <Where kWhere, class A>
GPURECOVER_INLINE std::byte* LocateRow(Ctx& c, const A* base, uint64_t displacement, uint32_t bytes,
                                       uint8_t need) {
  if constexpr (kWhere == Where::kLocal || kWhere == Where::kParam)
    return nullptr;
  if (!Consecutive(base, bytes))
    return nullptr;
  const uint64_t first = base[0] + displacement;
  const uint64_t size = uint64_t{bytes} * kLanes;
  if (first & (bytes - 1))
    return nullptr;
  if constexpr (kWhere == Where::kShared) {
    if (first > c.shared_bytes || size > c.shared_bytes - first)
      return nullptr;
    return c.shared + first;
  }
  if (kWhere == Where::kGeneric && (first >> 48))
    return nullptr;
  if (!c.memory->CheckRow(first, size, need))
    return nullptr;
  c.last_address = first;
  if (c.log) [[unlikely]] {
    if (need & DeviceMemory::kRead)
      c.log->Read(first, size);
    if (need & DeviceMemory::kWrite)
      c.log->Write(first, size);
  }
  return reinterpret_cast<std::byte*>(first);
}

template <class T, uint32_t kCount, Where kWhere, class A>
uint32_t Load(Ctx& c, const Op& o, uint32_t mask) {
  constexpr uint32_t kBytes = sizeof(T) * kCount;
  const A* base = Src<A>(c, o.a);
  const uint64_t displacement = Displacement(c, o);
  T* d[kCount];
  if constexpr (kCount == 1)
    d[0] = Dst<T>(c, o.d);
  else
    for (uint32_t k = 0; k < kCount; ++k)
      d[k] = Dst<T>(c, c.extra[o.target + k]);
  if constexpr (kWhere == Where::kParam) {
    // Almost always at a fixed place: one value for all lanes.
    if ((o.a & kConstBit) && mask == kFull) {
      const std::byte* p = Locate<kWhere>(c, base[0] + displacement, kBytes, kBytes, 0, 0);
      if (!p)
        return kActFault;
      for (uint32_t k = 0; k < kCount; ++k) {
        T value;
        std::memcpy(&value, p + k * sizeof(T), sizeof(T));
        for (uint32_t i = 0; i < kLanes; ++i)
          d[k][i] = value;
      }
      return kNext;
    }
  }
  if (mask == kFull) {
    if (const std::byte* row =
            LocateRow<kWhere>(c, base, displacement, kBytes, DeviceMemory::kRead)) {
      const T* p = reinterpret_cast<const T*>(row);
      if constexpr (kCount == 1) {
        std::memcpy(d[0], p, sizeof(T) * kLanes);
      } else {
        for (uint32_t i = 0; i < kLanes; ++i)
          for (uint32_t k = 0; k < kCount; ++k)
            d[k][i] = p[i * kCount + k];
      }
      if ((o.mode & kMemPoll) && Polled(c, o, static_cast<uint64_t>(d[0][0]) + d[0][31]))
        return kActYield;
      return kNext;
    }
  }
  uint64_t hash = 0;
  for (uint32_t m = mask; m; m &= m - 1) {
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
    const uint64_t address = base[i] + displacement;
    const std::byte* p = Locate<kWhere>(c, address, kBytes, kBytes, DeviceMemory::kRead, i);
    if (!p) [[unlikely]]
      return kActFault;
    T value[kCount];
    for (uint32_t k = 0; k < kCount; ++k)
      value[k] = LoadElement<T>(p + k * sizeof(T));
    for (uint32_t k = 0; k < kCount; ++k) {
      d[k][i] = value[k];
      hash = hash * 31 + static_cast<uint64_t>(value[k]);
    }
  }
  if ((o.mode & kMemPoll) && Polled(c, o, hash))
    return kActYield;
  return kNext;
}

template <class T, uint32_t kCount, Where kWhere, class A>
uint32_t Store(Ctx& c, const Op& o, uint32_t mask) {
  constexpr uint32_t kBytes = sizeof(T) * kCount;
  const A* base = Src<A>(c, o.a);
  const uint64_t displacement = Displacement(c, o);
  const T* s[kCount];
  if constexpr (kCount == 1)
    s[0] = Src<T>(c, o.b);
  else
    for (uint32_t k = 0; k < kCount; ++k)
      s[k] = Src<T>(c, c.extra[o.target + k]);
  if (mask == kFull) {
    if (std::byte* row = LocateRow<kWhere>(c, base, displacement, kBytes, DeviceMemory::kWrite)) {
      T* p = reinterpret_cast<T*>(row);
      if constexpr (kCount == 1) {
        std::memcpy(p, s[0], sizeof(T) * kLanes);
      } else {
        for (uint32_t i = 0; i < kLanes; ++i)
          for (uint32_t k = 0; k < kCount; ++k)
            p[i * kCount + k] = s[k][i];
      }
      return kNext;
    }
  }
  for (uint32_t m = mask; m; m &= m - 1) {
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
    const uint64_t address = base[i] + displacement;
    std::byte* p = Locate<kWhere>(c, address, kBytes, kBytes, DeviceMemory::kWrite, i);
    if (!p) [[unlikely]]
      return kActFault;
    for (uint32_t k = 0; k < kCount; ++k)
      StoreElement<T>(p + k * sizeof(T), s[k][i]);
  }
  return kNext;
}

// ---- Atomic operations ----

template <class T, AtomOp kOp>
struct IntAtom {
  using Store = T;
  static constexpr bool kIsAdd = kOp == AtomOp::kAdd;
  GPURECOVER_INLINE static T Do(T old, T b, T c) {
    if constexpr (kOp == AtomOp::kAdd)
      return static_cast<T>(old + b);
    else if constexpr (kOp == AtomOp::kMin)
      return old < b ? old : b;
    else if constexpr (kOp == AtomOp::kMax)
      return old < b ? b : old;
    else if constexpr (kOp == AtomOp::kInc)
      return old >= b ? T(0) : static_cast<T>(old + 1);
    else if constexpr (kOp == AtomOp::kDec)
      return old == 0 || old > b ? b : static_cast<T>(old - 1);
    else if constexpr (kOp == AtomOp::kAnd)
      return old & b;
    else if constexpr (kOp == AtomOp::kOr)
      return old | b;
    else if constexpr (kOp == AtomOp::kXor)
      return old ^ b;
    else if constexpr (kOp == AtomOp::kExch)
      return b;
    else
      return old == b ? c : old;
  }
};
template <class S, class T, AtomOp kOp>
struct SignedAtom {  // stored as S, compared as T
  using Store = S;
  static constexpr bool kIsAdd = false;
  GPURECOVER_INLINE static S Do(S old, S b, S) {
    const bool less = static_cast<T>(old) < static_cast<T>(b);
    return (kOp == AtomOp::kMin) == less ? old : b;
  }
};
// On global memory, subnormal operands and results become zero (PTX ISA, atom; seen on an H200); on
// shared memory they are kept.
template <bool kFlush>
struct AtomAddF32 {
  using Store = uint32_t;
  static constexpr bool kIsAdd = false;
  GPURECOVER_INLINE static uint32_t Do(uint32_t old, uint32_t b, uint32_t) {
    auto load = [](uint32_t x) { return kFlush ? FlushF32(Bits<float>(x)) : Bits<float>(x); };
    float r = load(old) + load(b);
    if (kFlush)
      r = FlushF32(r);
    return r == r ? Bits<uint32_t>(r) : 0x7FFFFFFFu;
  }
};
struct AtomAddF64 {
  using Store = uint64_t;
  static constexpr bool kIsAdd = false;
  GPURECOVER_INLINE static uint64_t Do(uint64_t old, uint64_t b, uint64_t) {
    return Bits<uint64_t>(Bits<double>(old) + Bits<double>(b));
  }
};
GPURECOVER_LOCAL float BfToFloat(uint16_t x) {
  return Bits<float>(static_cast<uint32_t>(x) << 16);
}
// Half and bfloat16: add, min, max of one element.
template <bool kBf, AtomOp kOp>
GPURECOVER_INLINE uint16_t HalfOp(uint16_t old, uint16_t b) {
  const float x = kBf ? BfToFloat(old) : HalfToFloat(old);
  const float y = kBf ? BfToFloat(b) : HalfToFloat(b);
  if constexpr (kOp == AtomOp::kAdd)
    return kBf ? DoubleToBf(x + y, 0) : DoubleToHalf(x + y, 0);
  if (x != x)
    return y != y ? uint16_t{0x7FFF} : b;
  if (y != y)
    return old;
  return (kOp == AtomOp::kMin) == (x < y) ? old : b;
}
template <bool kBf, AtomOp kOp>
struct AtomHalf {
  using Store = uint16_t;
  static constexpr bool kIsAdd = false;
  GPURECOVER_INLINE static uint16_t Do(uint16_t old, uint16_t b, uint16_t) {
    return HalfOp<kBf, kOp>(old, b);
  }
};
template <bool kBf, AtomOp kOp>
struct AtomHalfX2 {
  using Store = uint32_t;
  static constexpr bool kIsAdd = false;
  GPURECOVER_INLINE static uint32_t Do(uint32_t old, uint32_t b, uint32_t) {
    const uint32_t low = HalfOp<kBf, kOp>(static_cast<uint16_t>(old), static_cast<uint16_t>(b));
    const uint32_t high =
        HalfOp<kBf, kOp>(static_cast<uint16_t>(old >> 16), static_cast<uint16_t>(b >> 16));
    return low | high << 16;
  }
};

// The old value. Additions in one instruction of the host: a loop would starve where many threads
// meet at one address.
template <class F, class T>
GPURECOVER_INLINE T Exchange(T* p, T b, T e) {
  if constexpr (F::kIsAdd) {
    return __atomic_fetch_add(p, b, __ATOMIC_SEQ_CST);
  } else {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, F::Do(old, b, e), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
    }
    return old;
  }
}

// InShared: the operation where a generic address leads to shared memory.
template <class F, Where kWhere, bool kReturns, bool kTernary, class InShared>
uint32_t Atom(Ctx& c, const Op& o, uint32_t mask) {
  using T = typename F::Store;
  const uint64_t* base = Src<uint64_t>(c, o.a);
  const uint64_t displacement = Displacement(c, o);
  const T* b = Src<T>(c, o.b);
  const T* e = Src<T>(c, kTernary ? o.c : o.b);
  T* d = kReturns ? Dst<T>(c, o.d) : nullptr;
  uint64_t hash = 0;
  for (uint32_t m = mask; m; m &= m - 1) {
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
    std::byte* at = Locate<kWhere>(c, base[i] + displacement, sizeof(T), sizeof(T),
                                   DeviceMemory::kRead | DeviceMemory::kWrite, i);
    if (!at) [[unlikely]]
      return kActFault;
    T* p = reinterpret_cast<T*>(at);
    T old;
    // Only one worker at a time runs a block.
    if (kWhere == Where::kShared ||
        (kWhere == Where::kGeneric && ((base[i] + displacement) & kWindowMask) != 0)) {
      old = *p;
      *p = InShared::Do(old, b[i], e[i]);
    } else {
      old = Exchange<F>(p, b[i], e[i]);
    }
    if constexpr (kReturns) {
      d[i] = old;
      hash = hash * 31 + static_cast<uint64_t>(old);
    }
  }
  if (kReturns && (o.mode & kMemPoll) && Polled(c, o, hash))
    return kActYield;
  return kNext;
}

template <class F, bool kTernary = false, class InShared = F>
Handler AtomHandler(Where where, bool returns) {
  switch (where) {
    case Where::kGlobal:
      return returns ? Atom<F, Where::kGlobal, true, kTernary, InShared>
                     : Atom<F, Where::kGlobal, false, kTernary, InShared>;
    case Where::kShared:
      return returns ? Atom<F, Where::kShared, true, kTernary, InShared>
                     : Atom<F, Where::kShared, false, kTernary, InShared>;
    case Where::kGeneric:
      return returns ? Atom<F, Where::kGeneric, true, kTernary, InShared>
                     : Atom<F, Where::kGeneric, false, kTernary, InShared>;
    default:
      return nullptr;
  }
}

template <class T, Where kWhere, class A>
Handler LoadStoreHandler(uint32_t count, bool load) {
  switch (count) {
    case 1:
      return load ? Load<T, 1, kWhere, A> : Store<T, 1, kWhere, A>;
    case 2:
      return load ? Load<T, 2, kWhere, A> : Store<T, 2, kWhere, A>;
    case 4:
      return load ? Load<T, 4, kWhere, A> : Store<T, 4, kWhere, A>;
    case 8:
      if constexpr (sizeof(T) <= 4)
        return load ? Load<T, 8, kWhere, A> : Store<T, 8, kWhere, A>;
      return nullptr;
    default:
      return nullptr;
  }
}
template <Where kWhere, class A>
Handler ByBytes(uint32_t bytes, uint32_t count, bool load) {
  switch (bytes) {
    case 1:
      return LoadStoreHandler<uint8_t, kWhere, A>(count, load);
    case 2:
      return LoadStoreHandler<uint16_t, kWhere, A>(count, load);
    case 4:
      return LoadStoreHandler<uint32_t, kWhere, A>(count, load);
    case 8:
      return LoadStoreHandler<uint64_t, kWhere, A>(count, load);
    case 16:
      return count == 1 ? (load ? Load<u128, 1, kWhere, A> : Store<u128, 1, kWhere, A>)
                        : Handler{nullptr};
    default:
      return nullptr;
  }
}
Handler SelectAccess(Where where, uint32_t bytes, uint32_t count, bool address32, bool load) {
  switch (where) {
    case Where::kGeneric:
      return ByBytes<Where::kGeneric, uint64_t>(bytes, count, load);
    case Where::kGlobal:
      return ByBytes<Where::kGlobal, uint64_t>(bytes, count, load);
    case Where::kShared:
      return address32 ? ByBytes<Where::kShared, uint32_t>(bytes, count, load)
                       : ByBytes<Where::kShared, uint64_t>(bytes, count, load);
    case Where::kLocal:
      return ByBytes<Where::kLocal, uint64_t>(bytes, count, load);
    default:
      return ByBytes<Where::kParam, uint64_t>(bytes, count, load);
  }
}

template <class T>
uint32_t CpAsync(Ctx& c, const Op& o, uint32_t mask) {
  const uint64_t* to = Src<uint64_t>(c, o.a);
  const uint64_t* from = Src<uint64_t>(c, o.b);
  const uint64_t displacement = Displacement(c, o);
  const uint32_t* size = o.c == kNone ? nullptr : Src<uint32_t>(c, o.c);
  const uint32_t ignored = o.e == kNone ? 0 : *Src<uint32_t>(c, o.e);
  for (uint32_t m = mask; m; m &= m - 1) {
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
    std::byte* d = Locate<Where::kShared>(c, to[i] + displacement, sizeof(T), sizeof(T),
                                          DeviceMemory::kWrite, i);
    if (!d)
      return kActFault;
    uint32_t bytes = size ? size[i] : sizeof(T);
    if ((ignored >> i) & 1)
      bytes = 0;
    if (bytes > sizeof(T))
      bytes = sizeof(T);
    std::byte whole[sizeof(T)] = {};
    if (bytes) {
      const std::byte* s =
          Locate<Where::kGlobal>(c, from[i], bytes, sizeof(T), DeviceMemory::kRead, i);
      if (!s)
        return kActFault;
      for (uint32_t k = 0; k < bytes; ++k)
        whole[k] = static_cast<std::byte>(
            __atomic_load_n(reinterpret_cast<const uint8_t*>(s) + k, __ATOMIC_RELAXED));
    }
    std::memcpy(d, whole, sizeof(T));
  }
  return kNext;
}

template <uint32_t kWhole, uint32_t kParts>
uint32_t Pack(Ctx& c, const Op& o, uint32_t mask) {
  constexpr uint32_t kPart = kWhole / kParts;
  std::byte* d = Dst<std::byte>(c, o.d);
  std::byte whole[kWhole * kLanes];
  for (uint32_t k = 0; k < kParts; ++k) {
    const std::byte* s = Src<std::byte>(c, c.extra[o.target + k]);
    for (uint32_t i = 0; i < kLanes; ++i)
      std::memcpy(whole + i * kWhole + k * kPart, s + i * kPart, kPart);
  }
  if (mask == kFull)
    std::memcpy(d, whole, sizeof whole);
  else
    for (uint32_t m = mask; m; m &= m - 1) {
      const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
      std::memcpy(d + i * kWhole, whole + i * kWhole, kWhole);
    }
  return kNext;
}
template <uint32_t kWhole, uint32_t kParts>
uint32_t Unpack(Ctx& c, const Op& o, uint32_t mask) {
  constexpr uint32_t kPart = kWhole / kParts;
  std::byte whole[kWhole * kLanes];
  std::memcpy(whole, Src<std::byte>(c, o.a), sizeof whole);
  for (uint32_t k = 0; k < kParts; ++k) {
    std::byte* d = Dst<std::byte>(c, c.extra[o.target + k]);
    for (uint32_t m = mask; m; m &= m - 1) {
      const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
      std::memcpy(d + i * kPart, whole + i * kWhole + k * kPart, kPart);
    }
  }
  return kNext;
}

// ---- Special registers ----

template <class T, class F>
GPURECOVER_INLINE uint32_t Fill(Ctx& c, const Op& o, uint32_t mask, F&& value) {
  T* d = Dst<T>(c, o.d);
  for (uint32_t m = mask; m; m &= m - 1) {
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
    d[i] = static_cast<T>(value(i));
  }
  return kNext;
}
uint32_t Component(const Dim3& d, uint32_t component, uint32_t other) {
  return component == 0 ? d.x : component == 1 ? d.y : component == 2 ? d.z : other;
}

template <ptx::SpecialRegister kWhich, class T>
uint32_t Special(Ctx& c, const Op& o, uint32_t mask) {
  using R = ptx::SpecialRegister;
  if constexpr (kWhich == R::kTid) {
    if (o.mode > 2)
      return Fill<T>(c, o, mask, [](uint32_t) { return 0u; });
    return Fill<T>(c, o, mask, [&](uint32_t i) { return c.tid[o.mode][i]; });
  } else if constexpr (kWhich == R::kLaneid) {
    return Fill<T>(c, o, mask, [](uint32_t i) { return i; });
  } else if constexpr (kWhich == R::kLanemaskEq) {
    return Fill<T>(c, o, mask, [](uint32_t i) { return 1u << i; });
  } else if constexpr (kWhich == R::kLanemaskLe) {
    return Fill<T>(c, o, mask, [](uint32_t i) { return (2u << i) - 1; });
  } else if constexpr (kWhich == R::kLanemaskLt) {
    return Fill<T>(c, o, mask, [](uint32_t i) { return (1u << i) - 1; });
  } else if constexpr (kWhich == R::kLanemaskGe) {
    return Fill<T>(c, o, mask, [](uint32_t i) { return ~((1u << i) - 1); });
  } else if constexpr (kWhich == R::kLanemaskGt) {
    return Fill<T>(c, o, mask, [](uint32_t i) { return ~((2u << i) - 1); });
  } else {
    uint64_t value = 0;
    switch (kWhich) {
      case R::kNtid:
        value = Component(c.ntid, o.mode, 0);
        break;
      case R::kCtaid:
      case R::kClusterid:
        value = Component(c.ctaid, o.mode, 0);
        break;
      case R::kNctaid:
      case R::kNclusterid:
        value = Component(c.nctaid, o.mode, 0);
        break;
      case R::kClusterNctaid:
        value = o.mode < 3 ? 1 : 0;
        break;
      case R::kClusterNctarank:
        value = 1;
        break;
      case R::kWarpid:
        value = c.warp_id;
        break;
      case R::kNwarpid:
        value = c.warps;
        break;
      case R::kSmid:
        value = c.block_linear % c.sm_count;
        break;
      case R::kNsmid:
        value = c.sm_count;
        break;
      case R::kGridid:
        value = c.grid_id;
        break;
      case R::kClock:
      case R::kClock64:
        value = c.clock_base + c.steps;
        break;
      case R::kClockHi:
        value = (c.clock_base + c.steps) >> 32;
        break;
      case R::kGlobaltimer:
      case R::kGlobaltimerLo:
        value = c.time_base + c.steps;
        break;
      case R::kGlobaltimerHi:
        value = (c.time_base + c.steps) >> 32;
        break;
      case R::kEnvreg:
        value = c.envreg && o.imm >= 0 && o.imm < 32 ? c.envreg[o.imm] : 0;
        break;
      case R::kTotalSmemSize:
      case R::kAggrSmemSize:
        value = c.shared_bytes;
        break;
      case R::kDynamicSmemSize:
        value = c.dynamic_shared;
        break;
      case R::kWarpSize:
        value = kLanes;
        break;
      default:
        break;
    }
    return Fill<T>(c, o, mask, [&](uint32_t) { return value; });
  }
}

}  // namespace

Handler SpecialHandler(ptx::SpecialRegister which, uint32_t bytes) {
  using R = ptx::SpecialRegister;
  switch (which) {
#define GPURECOVER_CASE(id) \
  case R::id:               \
    return bytes == 8 ? Special<R::id, uint64_t> : Special<R::id, uint32_t>;
    GPURECOVER_CASE(kTid)
    GPURECOVER_CASE(kNtid)
    GPURECOVER_CASE(kLaneid)
    GPURECOVER_CASE(kWarpid)
    GPURECOVER_CASE(kNwarpid)
    GPURECOVER_CASE(kCtaid)
    GPURECOVER_CASE(kNctaid)
    GPURECOVER_CASE(kSmid)
    GPURECOVER_CASE(kNsmid)
    GPURECOVER_CASE(kGridid)
    GPURECOVER_CASE(kClusterid)
    GPURECOVER_CASE(kNclusterid)
    GPURECOVER_CASE(kClusterCtaid)
    GPURECOVER_CASE(kClusterNctaid)
    GPURECOVER_CASE(kClusterCtarank)
    GPURECOVER_CASE(kClusterNctarank)
    GPURECOVER_CASE(kLanemaskEq)
    GPURECOVER_CASE(kLanemaskLe)
    GPURECOVER_CASE(kLanemaskLt)
    GPURECOVER_CASE(kLanemaskGe)
    GPURECOVER_CASE(kLanemaskGt)
    GPURECOVER_CASE(kClock)
    GPURECOVER_CASE(kClockHi)
    GPURECOVER_CASE(kClock64)
    GPURECOVER_CASE(kEnvreg)
    GPURECOVER_CASE(kGlobaltimer)
    GPURECOVER_CASE(kGlobaltimerLo)
    GPURECOVER_CASE(kGlobaltimerHi)
    GPURECOVER_CASE(kReservedSmemOffset)
    GPURECOVER_CASE(kTotalSmemSize)
    GPURECOVER_CASE(kAggrSmemSize)
    GPURECOVER_CASE(kDynamicSmemSize)
    GPURECOVER_CASE(kCurrentGraphExec)
    GPURECOVER_CASE(kWarpSize)
#undef GPURECOVER_CASE
    default:
      return nullptr;
  }
}

uint32_t Nothing(Ctx&, const Op&, uint32_t) {
  return kNext;
}
uint32_t FenceAll(Ctx&, const Op&, uint32_t) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return kNext;
}
uint32_t Branch(Ctx& c, const Op& o, uint32_t mask) {
  if (mask != c.active)
    return kActBranch;
  c.next = &o + static_cast<int32_t>(o.target);
  return kNext;
}
uint32_t JoinPoint(Ctx& c, const Op& o, uint32_t) {
  return c.join_op == &o ? kActJoin : kNext;
}
uint32_t FrameAddress(Ctx& c, const Op& o, uint32_t mask) {
  const uint64_t value = c.frame_local + static_cast<uint64_t>(o.imm);
  if (o.mode == 8)
    return Fill<uint64_t>(c, o, mask, [&](uint32_t) { return value; });
  return Fill<uint32_t>(c, o, mask, [&](uint32_t) { return value; });
}
uint32_t AddWindow(Ctx& c, const Op& o, uint32_t mask) {
  uint64_t* d = Dst<uint64_t>(c, o.d);
  const uint64_t* a = Src<uint64_t>(c, o.a);
  const uint64_t window = static_cast<uint64_t>(o.imm);
  if (mask == kFull) {
    for (uint32_t i = 0; i < kLanes; ++i)
      d[i] = a[i] + window;
    return kNext;
  }
  for (uint32_t m = mask; m; m &= m - 1) {
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(m));
    d[i] = a[i] + window;
  }
  return kNext;
}
uint32_t IsSpace(Ctx& c, const Op& o, uint32_t mask) {
  const uint64_t* a = Src<uint64_t>(c, o.a);
  uint32_t r = 0;
  for (uint32_t i = 0; i < kLanes; ++i) {
    const uint64_t window = a[i] & kWindowMask;
    Where where = Where::kGeneric;
    if (window == 0)
      where = Where::kGlobal;
    else if (window == kSharedWindow)
      where = Where::kShared;
    else if (window == kLocalWindow)
      where = Where::kLocal;
    else if (window == kParamWindow)
      where = Where::kParam;
    if (where == static_cast<Where>(o.space))
      r |= 1u << i;
  }
  uint32_t* d = Dst<uint32_t>(c, o.d);
  *d = (*d & ~mask) | (r & mask);
  return kNext;
}
uint32_t ActiveMask(Ctx& c, const Op& o, uint32_t mask) {
  return Fill<uint32_t>(c, o, mask, [&](uint32_t) { return mask; });
}

Handler SelectLoad(Where where, uint32_t bytes, uint32_t count, bool address32) {
  return SelectAccess(where, bytes, count, address32, true);
}
Handler SelectStore(Where where, uint32_t bytes, uint32_t count, bool address32) {
  return where == Where::kParam ? nullptr : SelectAccess(where, bytes, count, address32, false);
}

Handler SelectAtom(Where where, AtomOp op, Type type, bool returns) {
  const bool is32 = type == Type::kU32 || type == Type::kS32 || type == Type::kB32;
  const bool is64 = type == Type::kU64 || type == Type::kS64 || type == Type::kB64;
  const bool is_signed = type == Type::kS32 || type == Type::kS64;
  switch (op) {
#define GPURECOVER_BOTH(id)                                            \
  if (is32)                                                            \
    return AtomHandler<IntAtom<uint32_t, AtomOp::id>>(where, returns); \
  if (is64)                                                            \
    return AtomHandler<IntAtom<uint64_t, AtomOp::id>>(where, returns);
    case AtomOp::kAdd:
      GPURECOVER_BOTH(kAdd)
      if (type == Type::kF32)
        return where == Where::kShared
                   ? AtomHandler<AtomAddF32<false>>(where, returns)
                   : AtomHandler<AtomAddF32<true>, false, AtomAddF32<false>>(where, returns);
      if (type == Type::kF64)
        return AtomHandler<AtomAddF64>(where, returns);
      if (type == Type::kF16)
        return AtomHandler<AtomHalf<false, AtomOp::kAdd>>(where, returns);
      if (type == Type::kBf16)
        return AtomHandler<AtomHalf<true, AtomOp::kAdd>>(where, returns);
      if (type == Type::kF16x2)
        return AtomHandler<AtomHalfX2<false, AtomOp::kAdd>>(where, returns);
      if (type == Type::kBf16x2)
        return AtomHandler<AtomHalfX2<true, AtomOp::kAdd>>(where, returns);
      return nullptr;
    case AtomOp::kMin:
      if (is_signed && is32)
        return AtomHandler<SignedAtom<uint32_t, int32_t, AtomOp::kMin>>(where, returns);
      if (is_signed)
        return AtomHandler<SignedAtom<uint64_t, int64_t, AtomOp::kMin>>(where, returns);
      GPURECOVER_BOTH(kMin)
      return nullptr;
    case AtomOp::kMax:
      if (is_signed && is32)
        return AtomHandler<SignedAtom<uint32_t, int32_t, AtomOp::kMax>>(where, returns);
      if (is_signed)
        return AtomHandler<SignedAtom<uint64_t, int64_t, AtomOp::kMax>>(where, returns);
      GPURECOVER_BOTH(kMax)
      return nullptr;
    case AtomOp::kInc:
      return type == Type::kU32 ? AtomHandler<IntAtom<uint32_t, AtomOp::kInc>>(where, returns)
                                : Handler{nullptr};
    case AtomOp::kDec:
      return type == Type::kU32 ? AtomHandler<IntAtom<uint32_t, AtomOp::kDec>>(where, returns)
                                : Handler{nullptr};
    case AtomOp::kAnd:
      GPURECOVER_BOTH(kAnd)
      return nullptr;
    case AtomOp::kOr:
      GPURECOVER_BOTH(kOr)
      return nullptr;
    case AtomOp::kXor:
      GPURECOVER_BOTH(kXor)
      return nullptr;
    case AtomOp::kExch:
      GPURECOVER_BOTH(kExch)
      return nullptr;
    case AtomOp::kCas:
      if (type == Type::kB16)
        return AtomHandler<IntAtom<uint16_t, AtomOp::kCas>, true>(where, returns);
      if (is32)
        return AtomHandler<IntAtom<uint32_t, AtomOp::kCas>, true>(where, returns);
      if (is64)
        return AtomHandler<IntAtom<uint64_t, AtomOp::kCas>, true>(where, returns);
      return nullptr;
#undef GPURECOVER_BOTH
  }
  return nullptr;
}

Handler SelectCpAsync(uint32_t bytes) {
  switch (bytes) {
    case 4:
      return CpAsync<uint32_t>;
    case 8:
      return CpAsync<uint64_t>;
    case 16:
      return CpAsync<u128>;
    default:
      return nullptr;
  }
}

Handler SelectPack(uint32_t whole, uint32_t parts) {
  switch (whole * 16 + parts) {
    case 2 * 16 + 2:
      return Pack<2, 2>;
    case 4 * 16 + 2:
      return Pack<4, 2>;
    case 4 * 16 + 4:
      return Pack<4, 4>;
    case 8 * 16 + 2:
      return Pack<8, 2>;
    case 8 * 16 + 4:
      return Pack<8, 4>;
    case 16 * 16 + 2:
      return Pack<16, 2>;
    case 16 * 16 + 4:
      return Pack<16, 4>;
    default:
      return nullptr;
  }
}
Handler SelectUnpack(uint32_t whole, uint32_t parts) {
  switch (whole * 16 + parts) {
    case 2 * 16 + 2:
      return Unpack<2, 2>;
    case 4 * 16 + 2:
      return Unpack<4, 2>;
    case 4 * 16 + 4:
      return Unpack<4, 4>;
    case 8 * 16 + 2:
      return Unpack<8, 2>;
    case 8 * 16 + 4:
      return Unpack<8, 4>;
    case 16 * 16 + 2:
      return Unpack<16, 2>;
    case 16 * 16 + 4:
      return Unpack<16, 4>;
    default:
      return nullptr;
  }
}

}  // namespace gpurecover::softgpu::interp
