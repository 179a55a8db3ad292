// SPDX-License-Identifier: Apache-2.0
// What the corpus' kernels need, for the two compilers that read them:
//
//   nvcc                               CUDA as it is
//   clang -x cuda --cuda-device-only   without NVIDIA's headers: the same names over clang's
//   builtins
//
// Kernels are named as in C, so that both compilers and the launches beside them call them alike.
#pragma once

#if defined(__clang__)

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

using size_t = decltype(sizeof 0);

// threadIdx.x and its kin: clang's own spelling of the special registers behind CUDA's.
#define CORPUS_INDEX(type, reg)                                                     \
  struct type {                                                                     \
    __declspec(property(get = get_x)) unsigned x;                                   \
    __declspec(property(get = get_y)) unsigned y;                                   \
    __declspec(property(get = get_z)) unsigned z;                                   \
    static __device__ unsigned get_x() { return __nvvm_read_ptx_sreg_##reg##_x(); } \
    static __device__ unsigned get_y() { return __nvvm_read_ptx_sreg_##reg##_y(); } \
    static __device__ unsigned get_z() { return __nvvm_read_ptx_sreg_##reg##_z(); } \
  }
CORPUS_INDEX(ThreadIndex, tid);
CORPUS_INDEX(BlockIndex, ctaid);
CORPUS_INDEX(BlockDim, ntid);
CORPUS_INDEX(GridDim, nctaid);
#undef CORPUS_INDEX
extern const __device__ ThreadIndex threadIdx;
extern const __device__ BlockIndex blockIdx;
extern const __device__ BlockDim blockDim;
extern const __device__ GridDim gridDim;
#define warpSize 32

struct __attribute__((aligned(8))) float2 {
  float x, y;
};
struct __attribute__((aligned(16))) float4 {
  float x, y, z, w;
};
struct __attribute__((aligned(8))) int2 {
  int x, y;
};
struct __attribute__((aligned(16))) int4 {
  int x, y, z, w;
};
struct __attribute__((aligned(16))) uint4 {
  unsigned x, y, z, w;
};
struct __attribute__((aligned(4))) uchar4 {
  unsigned char x, y, z, w;
};
struct __attribute__((aligned(16))) double2 {
  double x, y;
};
#define CORPUS_MAKE(name, type, ...) static inline __device__ name make_##name(__VA_ARGS__)
CORPUS_MAKE(float2, float, float x, float y) {
  return {x, y};
}
CORPUS_MAKE(float4, float, float x, float y, float z, float w) {
  return {x, y, z, w};
}
CORPUS_MAKE(int2, int, int x, int y) {
  return {x, y};
}
CORPUS_MAKE(int4, int, int x, int y, int z, int w) {
  return {x, y, z, w};
}
CORPUS_MAKE(uint4, unsigned, unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
CORPUS_MAKE(uchar4, char, unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
  return {x, y, z, w};
}
CORPUS_MAKE(double2, double, double x, double y) {
  return {x, y};
}
#undef CORPUS_MAKE

static inline __device__ void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  __nvvm_bar_warp_sync(mask);
}
static inline __device__ void __threadfence() {
  __nvvm_membar_gl();
}
static inline __device__ void __threadfence_block() {
  __nvvm_membar_cta();
}

#define CORPUS_SHUFFLE(kind, builtin, clamp)                                                \
  static inline __device__ int __shfl##kind##_sync(unsigned mask, int v, int a) {           \
    return __nvvm_shfl_sync_##builtin##_i32(mask, v, a, clamp);                             \
  }                                                                                         \
  static inline __device__ unsigned __shfl##kind##_sync(unsigned mask, unsigned v, int a) { \
    return static_cast<unsigned>(                                                           \
        __nvvm_shfl_sync_##builtin##_i32(mask, static_cast<int>(v), a, clamp));             \
  }                                                                                         \
  static inline __device__ float __shfl##kind##_sync(unsigned mask, float v, int a) {       \
    return __nvvm_shfl_sync_##builtin##_f32(mask, v, a, clamp);                             \
  }
CORPUS_SHUFFLE(, idx, 31)
CORPUS_SHUFFLE(_down, down, 31)
CORPUS_SHUFFLE(_up, up, 0)
CORPUS_SHUFFLE(_xor, bfly, 31)
#undef CORPUS_SHUFFLE
static inline __device__ unsigned __ballot_sync(unsigned mask, int predicate) {
  return __nvvm_vote_ballot_sync(mask, predicate != 0);
}
static inline __device__ int __any_sync(unsigned mask, int predicate) {
  return __nvvm_vote_any_sync(mask, predicate != 0);
}
static inline __device__ int __all_sync(unsigned mask, int predicate) {
  return __nvvm_vote_all_sync(mask, predicate != 0);
}
static inline __device__ int __popc(unsigned v) {
  return __builtin_popcount(v);
}
static inline __device__ int __ffs(int v) {
  return __builtin_ffs(v);
}
static inline __device__ int __clz(int v) {
  return v == 0 ? 32 : __builtin_clz(v);
}

#define CORPUS_ATOMIC(name, builtin, type, cast)                                                   \
  static inline __device__ type name(type* address, type value) {                                  \
    return static_cast<type>(builtin(reinterpret_cast<cast*>(address), static_cast<cast>(value))); \
  }
CORPUS_ATOMIC(atomicAdd, __nvvm_atom_add_gen_i, int, int)
CORPUS_ATOMIC(atomicAdd, __nvvm_atom_add_gen_i, unsigned, int)
CORPUS_ATOMIC(atomicAdd, __nvvm_atom_add_gen_f, float, float)
CORPUS_ATOMIC(atomicAdd, __nvvm_atom_add_gen_ll, unsigned long long, long long)
CORPUS_ATOMIC(atomicExch, __nvvm_atom_xchg_gen_i, int, int)
CORPUS_ATOMIC(atomicExch, __nvvm_atom_xchg_gen_i, unsigned, int)
CORPUS_ATOMIC(atomicMax, __nvvm_atom_max_gen_i, int, int)
CORPUS_ATOMIC(atomicMax, __nvvm_atom_max_gen_ui, unsigned, unsigned)
CORPUS_ATOMIC(atomicMin, __nvvm_atom_min_gen_i, int, int)
CORPUS_ATOMIC(atomicMin, __nvvm_atom_min_gen_ui, unsigned, unsigned)
CORPUS_ATOMIC(atomicOr, __nvvm_atom_or_gen_i, unsigned, int)
CORPUS_ATOMIC(atomicInc, __nvvm_atom_inc_gen_ui, unsigned, unsigned)
#undef CORPUS_ATOMIC
static inline __device__ int atomicCAS(int* address, int expected, int value) {
  return __nvvm_atom_cas_gen_i(address, expected, value);
}
static inline __device__ unsigned atomicCAS(unsigned* address, unsigned expected, unsigned value) {
  return static_cast<unsigned>(__nvvm_atom_cas_gen_i(
      reinterpret_cast<int*>(address), static_cast<int>(expected), static_cast<int>(value)));
}

static inline __device__ float fast_exp(float x) {
  return __nvvm_ex2_approx_f(x * 1.44269504f);
}
static inline __device__ float fast_log(float x) {
  return __nvvm_lg2_approx_f(x) * 0.69314718f;
}
static inline __device__ float rsqrtf(float x) {
  return __nvvm_rsqrt_approx_f(x);
}
static inline __device__ float sqrtf(float x) {
  return __nvvm_sqrt_rn_f(x);
}
static inline __device__ float fmaxf(float a, float b) {
  return __builtin_fmaxf(a, b);
}
static inline __device__ float fminf(float a, float b) {
  return __builtin_fminf(a, b);
}
static inline __device__ float fabsf(float a) {
  return __builtin_fabsf(a);
}
static inline __device__ int min(int a, int b) {
  return a < b ? a : b;
}
static inline __device__ int max(int a, int b) {
  return a > b ? a : b;
}
static inline __device__ unsigned min(unsigned a, unsigned b) {
  return a < b ? a : b;
}
static inline __device__ int __float_as_int(float v) {
  return __builtin_bit_cast(int, v);
}
static inline __device__ float __int_as_float(int v) {
  return __builtin_bit_cast(float, v);
}
static inline __device__ unsigned __float_as_uint(float v) {
  return __builtin_bit_cast(unsigned, v);
}

extern "C" __device__ int printf(const char*, ...);
extern "C" __device__ void* malloc(size_t);
extern "C" __device__ void free(void*);
extern "C" __device__ __attribute__((noreturn)) void __assertfail(const char*, const char*,
                                                                  unsigned, const char*, size_t);
#define assert(condition) \
  ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __func__, 1))

#else

#include <cassert>
#include <cstdio>

static __forceinline__ __device__ float fast_exp(float x) {
  return __expf(x);
}
static __forceinline__ __device__ float fast_log(float x) {
  return __logf(x);
}

#endif

#define KERNEL extern "C" __global__ void

// 16-bit floating point as programs hold it: conversions are single instructions.
using half_bits = unsigned short;
struct half2_bits {
  half_bits x, y;
};
static __forceinline__ __device__ float half_to_float(half_bits h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
static __forceinline__ __device__ half_bits float_to_half(float f) {
  half_bits h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
static __forceinline__ __device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2)
    v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}
static __forceinline__ __device__ float warp_max(float v) {
  for (int d = 16; d > 0; d /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, d));
  return v;
}
// The sum over a block of whole warps, in every thread; at most 1024 threads.
static __forceinline__ __device__ float block_sum(float v) {
  __shared__ float parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_sum(v);
  __syncthreads();
  if (lane == 0)
    parts[warp] = v;
  __syncthreads();
  v = lane < static_cast<int>(blockDim.x / 32) ? parts[lane] : 0.0f;
  return warp_sum(v);
}
