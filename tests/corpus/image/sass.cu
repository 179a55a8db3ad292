// SPDX-License-Identifier: Apache-2.0
// Kernels whose machine code uses what reading it must get right: forms of addresses, of 64-bit
// arithmetic, of predication, of calls, and the instructions around them. What is expected of each
// is in tests/unit/idempotency/machine_code_test.cpp.
#include <cuda.h>
#include <cuda_fp16.h>

#include <cuda/barrier>

#define KERNEL extern "C" __global__ void

KERNEL dimensions(int* o) {
  o[0] = blockDim.x + blockDim.y + blockDim.z + gridDim.x + gridDim.y + gridDim.z;
  o[1 + threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z] = 1;
}
__noinline__ __device__ void write_two(int* p, int v) {
  p[0] = v;
  p[1] = v * v;
}
__noinline__ __device__ int read_two(const int* p) {
  return p[0] + p[1];
}
KERNEL generic_local(int* o) {
  int a[2];
  write_two(a, o[5]);
  o[0] = read_two(a);
}
KERNEL generic_shared(int* o, int k) {
  __shared__ int s[64];
  write_two(s + threadIdx.x, o[5]);
  __syncthreads();
  o[0] = read_two(s + k);
}
KERNEL generic_either(int* o, int k) {
  __shared__ int s[64];
  int* p = k ? s : o;
  p[threadIdx.x] = k;
  atomicAdd(p + 1, k);
}
KERNEL long_index(long long* o, const long long* a, long long n, long long step) {
  long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  for (; i < n; i += step)
    o[i * 3] = a[i * n] + 1;
}
KERNEL long_shifts(unsigned long long* o, const unsigned long long* a, int s) {
  o[0] = a[1] << s;
  o[1] = a[2] >> s;
  o[2] = static_cast<long long>(a[3]) >> s;
  o[(a[4] >> 40) + ((a[5] << 40) >> 50)] = a[6] * a[7];
}
KERNEL backwards(int* o, const int* p, int n) {
  const int* q = p + n;
  while (q != p) {
    --q;
    o[q - p] = *q;
  }
}
KERNEL guarded_pointer(float* a, float* b, float* c, int n) {
  float* p = c;
  if (n & 1)
    p = a;
  if (n & 2)
    p = b;
  p[threadIdx.x] = 1;
}
KERNEL halves_of_two_pointers(unsigned* a, unsigned* b, const unsigned* c) {
  // The lower word of one and the upper word of another: a pointer to neither.
  const unsigned long long low = reinterpret_cast<unsigned long long>(a) & 0xFFFFFFFFull;
  const unsigned long long high = reinterpret_cast<unsigned long long>(b) >> 32;
  reinterpret_cast<unsigned*>((high << 32) | low)[threadIdx.x] = c[threadIdx.x];
}
KERNEL conversions(double* d, const float* f, long long* l, const int* i) {
  d[0] = f[0];
  l[0] = f[1];
  l[1] = static_cast<unsigned long long>(f[2]);
  d[1] = l[2];
  d[2] = i[0] / f[3];
  d[3] = floor(d[4]) + sqrt(d[5]) / d[6];
}
KERNEL halves(__half2* o, const __half2* a, float* f) {
  o[0] = __hfma2(a[1], a[2], a[3]);
  o[1] = __hmax2(a[4], a[5]);
  o[2] = __float2half2_rn(f[1]);
  f[0] = __half2float(a[0].x);
}
KERNEL bits(int* o, const int* a, int b) {
  o[0] = __popc(a[0]) + __clz(a[1]) + __brev(a[2]) + __ffs(a[3]);
  o[1] = __byte_perm(a[4], b, 0x1302) ^ __funnelshift_l(a[5], b, a[6]);
  o[2] = __dp4a(a[7], b, a[8]) + static_cast<signed char>(a[9]) + __mulhi(a[10], b);
  o[3] = min(a[11], b) + max(a[12] + 3, b) + abs(a[13]);
}
KERNEL votes(int* o, const int* a) {
  o[0] = __ballot_sync(~0u, a[1] > 2) + __any_sync(~0u, a[2]) + __all_sync(~0u, a[3]);
  o[1] = __match_any_sync(~0u, a[4]) + __syncthreads_count(a[5]) + __activemask();
  o[2] = __shfl_down_sync(~0u, a[6], 2);
  __nanosleep(100);
  __threadfence();
  __threadfence_system();
}
KERNEL atomics(int* o, unsigned long long* q, float* f, double* d, __half2* h, int* old) {
  atomicAdd(o, 1);
  old[0] = atomicAdd(o + 1, 2);
  old[1] = atomicMax(o + 3, 4);
  old[2] = atomicCAS(o + 4, 1, 2);
  old[3] = static_cast<int>(atomicCAS(q, 1ull, 2ull));
  atomicExch(q + 2, 7ull);
  atomicAdd(f, 1.f);
  old[4] = static_cast<int>(atomicAdd(f + 1, 2.f));
  atomicAdd(d - 3, 1.);
  atomicAdd(h, __half2());
}
KERNEL shared_atomics(int* o) {
  __shared__ int s[8];
  __shared__ unsigned long long t[4];
  __shared__ float f[2];
  atomicAdd(s, 1);
  o[0] = atomicAdd(s + 1, o[1]) + atomicCAS(s + 2, 1, 2);
  atomicExch(t, static_cast<unsigned long long>(o[3]));
  atomicAdd(f, 1.f);
  __syncthreads();
  o[1] = s[1] + static_cast<int>(t[0] + f[0]);
}
__constant__ int constants[40];
__constant__ int more_constants[8];
__device__ int variable;
KERNEL constant_memory(int* o, int k) {
  o[0] = constants[3] + more_constants[2];
  o[1] = constants[k];
  o[2] = variable;
  variable = k;
}
struct Many {
  int* p[40];
  int n;
};
KERNEL many_pointers(const __grid_constant__ Many b, int k, float* z) {
  b.p[k - 1][0] = k;
  z[b.n] = 2;
}
KERNEL sizes(char* c, const short* s, int4* i4, const double2* d2) {
  c[0] = static_cast<char>(s[1]);
  i4[0] = make_int4(1, 2, 3, static_cast<int>(d2[1].y));
}
KERNEL jump_table(int* o, const int* a, int k) {
  switch (k) {
    case 0:
      o[0] = 1;
      break;
    case 1:
      o[1] = a[2] * 3;
      break;
    case 2:
      o[3] = a[4] / 7;
      break;
    case 3:
      o[5] = a[6] % 9;
      break;
    case 4:
      o[7] = a[8] ^ 3;
      break;
    case 5:
      o[9] = __popc(a[10]);
      break;
    case 6:
      o[12] += 5;
      break;
    default:
      o[13] = 9;
  }
}
KERNEL nested_loops(float* o, const float* a, int n, int m) {
  for (int i = blockIdx.x; i < n; i += gridDim.x) {
    float sum = 0;
    for (int j = 0; j < m; ++j)
      sum += a[i * m + j] * a[j];
    if (sum > 0)
      o[i] = sum;
  }
}
KERNEL list_walk(int* o, int** list, int n) {
  for (int i = 0; i < n; ++i)
    list = reinterpret_cast<int**>(*list);
  o[0] = static_cast<int>(reinterpret_cast<unsigned long long>(list));
}
KERNEL pointers_through_local(int** out, int* a, int* b, int k) {
  int* p[4];
  for (int i = 0; i < 4; ++i)
    p[i] = i & k ? a : b;
  p[k & 3][threadIdx.x] = 1;
  out[0] = nullptr;
}
#if __CUDA_ARCH__ >= 800 || !defined(__CUDA_ARCH__)
KERNEL async_copies(float* o, const float4* p, int n) {
  __shared__ float4 s[256];
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(s + threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0+-0x110], [%1+-0x230], 16;" ::"r"(to), "l"(p + n));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(p));
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;");
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x ^ 1].x;
}
KERNEL matrix_loads(unsigned* o) {
  __shared__ __align__(16) unsigned s[512];
  s[threadIdx.x] = o[threadIdx.x];
  __syncthreads();
  unsigned a, b, c, d;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(s + threadIdx.x * 4));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(at));
  o[0] = a + b * c ^ d;
}
KERNEL barriers(int* o) {
  __shared__ cuda::barrier<cuda::thread_scope_block> b;
  if (threadIdx.x == 0)
    init(&b, blockDim.x);
  __syncthreads();
  auto token = b.arrive();
  o[threadIdx.x] = 1;
  b.wait(std::move(token));
  o[1] = 2;
}
#endif
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
KERNEL bulk_copies(int* o, const int* p) {
  __shared__ __align__(128) int s[256];
  __shared__ __align__(8) unsigned long long bar;
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(s));
  const unsigned b = static_cast<unsigned>(__cvta_generic_to_shared(&bar));
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(b));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::
          "r"(to),
      "l"(p), "r"(b)
      : "memory");
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(o), "r"(to));
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 1024;" ::"l"(o + 256),
      "r"(to));
}
KERNEL tensor_map(const __grid_constant__ CUtensorMap m, int* o) {
  __shared__ __align__(128) int s[256];
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(s));
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&m),
      "r"(1), "r"(2), "r"(from));
  o[0] = 1;
}
KERNEL dependent_launch(int* o) {
  asm volatile("griddepcontrol.wait;");
  o[0] = 1;
}
#endif
