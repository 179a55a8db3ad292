// SPDX-License-Identifier: Apache-2.0
// Instructions by hand: caches, asynchronous copies, bulk copies, vectors, packed atomics.
#include "device.h"

//! <<<2, 64>>> out[1600] in[1600] 100 -> idempotent: loads past the first cache, streaming stores
//! <<<2, 64>>> x[1600] x+0 100 -> clobbers: in place
KERNEL copy_streaming(float4* out, const float4* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(in + i));
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(out + i), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w));
  }
}

//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: a load under a predicate, as libraries write it
//! <<<2, 64>>> p[800]+400 p+0 100 -> idempotent: neighbours in one allocation
KERNEL copy_predicated(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v;
  asm volatile(
      "{.reg .pred p;\n setp.ne.s32 p, %2, 0;\n mov.f32 %0, 0f00000000;\n"
      " @p ld.global.f32 %0, [%1];}"
      : "=f"(v)
      : "l"(in + i), "r"(i < n ? 1 : 0));
  asm volatile(
      "{.reg .pred p;\n setp.ne.s32 p, %2, 0;\n @p st.global.f32 [%0], %1;}" ::"l"(out + i), "f"(v),
      "r"(i < n ? 1 : 0)
      : "memory");
}

//! <<<2, 32>>> out[256] in[256] 64 -> idempotent: a prefetch touches nothing
KERNEL with_prefetch(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(in + (i + 32) % n));
  out[i] = in[i] + 1.0f;
}

//! <<<2, 64>>> sum[4] x[512] 128 -> clobbers: a reduction by hand
KERNEL reduce_by_hand(float* sum, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sum), "f"(x[i]) : "memory");
}

//! <<<2, 64>>> out[512] x[512] 128 -> idempotent: an acquire load, a release store
KERNEL copy_ordered(int* out, const int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(x + i) : "memory");
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(out + i), "r"(v) : "memory");
  }
}

//! <<<2, 64>>> out[2048] in[2048] 256 -> idempotent: pairs of 64-bit words
KERNEL copy_pairs64(unsigned long long* out, const unsigned long long* in, int n) {
  for (int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += 2 * gridDim.x * blockDim.x) {
    unsigned long long a, b;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(in + i));
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(out + i), "l"(a), "l"(b) : "memory");
  }
}

#if defined(__clang__) || __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void copy_async16(void* shared, const void* global) {
  unsigned long long generic = reinterpret_cast<unsigned long long>(shared);
  asm volatile(
      "{.reg .u64 a; .reg .u32 s;\n cvta.to.shared.u64 a, %0;\n cvt.u32.u64 s, a;\n"
      " cp.async.cg.shared.global [s], [%1], 16;}" ::"l"(generic),
      "l"(global)
      : "memory");
}
//! @from 80
//! <<<4, 32>>> out[4096] in[4096] 256 -> idempotent: tiles come by asynchronous copies
//! <<<4, 32>>> p[8192]+4096 p+0 256 -> idempotent: neighbours in one allocation
//! <<<4, 32>>> x[4096] x+0 256 -> clobbers: in place
KERNEL scale_async(float4* out, const float4* in, int n) {
  __shared__ float4 tile[2][32];
  const int t = threadIdx.x, step = gridDim.x * 32;
  int stage = 0, i = blockIdx.x * 32 + t;
  if (i < n)
    copy_async16(&tile[0][t], in + i);
  asm volatile("cp.async.commit_group;");
  for (; i - t < n; i += step) {
    if (i + step < n)
      copy_async16(&tile[stage ^ 1][t], in + i + step);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    if (i < n) {
      float4 v = tile[stage][t];
      v.x *= 2;
      v.y *= 2;
      v.z *= 2;
      v.w *= 2;
      out[i] = v;
    }
    __syncthreads();
    stage ^= 1;
  }
}
#endif
