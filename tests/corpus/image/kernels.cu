// SPDX-License-Identifier: Apache-2.0
// One kernel for each thing that the PTX reader and the access analysis must understand. Built by
// nvcc in the tests; what is expected of each is in
// tests/unit/idempotency/compiled_kernels_test.cpp.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cassert>
#include <cstdio>

struct Pair {
  float* to;
  const float* from;
  int n;
};
struct Table {
  float* to[6];
  const float* from;
};
struct Tree {
  Tree* left;
  int value;
};

__constant__ float coefficients[16];
__constant__ float* constant_pointer;
__device__ int counter;
__device__ double small_table[2][3] = {{1, 2, 3}, {4, 5, 6}};
__device__ int* pointer_to_counter = &counter;

extern "C" __global__ void vector_add(float* c, const float* a, const float* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    c[i] = a[i] + b[i];
}
extern "C" __global__ void saxpy(float* y, const float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = a * x[i] + y[i];
}
extern "C" __global__ void gemm_tiled(float* c, const float* a, const float* b, int n) {
  __shared__ float ta[16][17], tb[16][17];
  float sum = 0;
  const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  for (int t = 0; t < n; t += 16) {
    ta[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
    tb[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
    __syncthreads();
    for (int k = 0; k < 16; ++k)
      sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}
extern "C" __global__ void histogram(unsigned* bins, const unsigned char* data, int n) {
  __shared__ unsigned local[256];
  local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    atomicAdd(&local[data[i]], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}
extern "C" __global__ void by_value(Pair p) {
  const int i = threadIdx.x;
  if (i < p.n)
    p.to[i] = p.from[i] * coefficients[i & 15];
}
extern "C" __global__ void indexed_struct(Table t, int k) {
  t.to[k][threadIdx.x] = t.from[threadIdx.x];
}
extern "C" __global__ void grid_constant(const __grid_constant__ Table t, int k) {
  t.to[k][threadIdx.x] = t.from[threadIdx.x];
}
extern "C" __global__ void select_pointer(float* a, float* b, const float* c, int which) {
  float* to = which ? a : b;
  to[threadIdx.x] = c[threadIdx.x];
}
extern "C" __global__ void swap_pointers(float* a, float* b, int steps) {
  for (int s = 0; s < steps; ++s) {
    b[threadIdx.x] = a[threadIdx.x] + 1;
    float* t = a;
    a = b;
    b = t;
    __syncthreads();
  }
}
extern "C" __global__ void gather(float* to, const float* from, const long long* index) {
  to[threadIdx.x] = from[index[threadIdx.x]];
}
extern "C" __global__ void pointer_table(float** table, const float* from) {
  table[threadIdx.x][0] = from[threadIdx.x];
}
extern "C" __global__ void tree_walk(int* out, Tree* node, int depth) {
  for (int i = 0; i < depth && node; ++i)
    node = node->left;
  *out = node ? node->value : 0;
}
extern "C" __global__ void two_ints(unsigned lo, unsigned hi, const float* from) {
  float* to = reinterpret_cast<float*>((static_cast<unsigned long long>(hi) << 32) | lo);
  to[threadIdx.x] = from[threadIdx.x];
}
extern "C" __global__ void mangled_pointer(unsigned long long p, const float* from) {
  reinterpret_cast<float*>((p << 8) >> 8)[threadIdx.x] = from[threadIdx.x];
}
extern "C" __global__ void tail_of_range(float* begin, float* end, const float* from) {
  begin[(end - begin) - 1 - threadIdx.x] = from[threadIdx.x];
}
__noinline__ __device__ float scaled_read(const float* p, int i) {
  return p[i] * 2.f;
}
__noinline__ __device__ float* pick(float* a, int i) {
  return a + i;
}
extern "C" __global__ void noinline_calls(float* a, float* b, const float* c) {
  *pick(a, threadIdx.x) = scaled_read(c, threadIdx.x);
  *pick(b, threadIdx.x) = 1;
}
__noinline__ __device__ int recursive(int* p, int n) {
  return n < 2 ? p[n] : recursive(p, n - 1) + recursive(p, n - 2);
}
extern "C" __global__ void recursion(int* to, int* p, int n) {
  *to = recursive(p, n);
}
typedef float (*Function)(const float*, int);
__device__ Function functions[2] = {scaled_read, scaled_read};
extern "C" __global__ void indirect_call(float* to, const float* from, int k) {
  to[threadIdx.x] = functions[k](from, threadIdx.x);
}
extern "C" __global__ void prints(const int* p) {
  printf("%d\n", *p);
}
extern "C" __global__ void asserts(int* to, const int* p) {
  assert(p[threadIdx.x] > 0);
  to[threadIdx.x] = p[threadIdx.x];
}
extern "C" __global__ void allocates(int** to) {
  *to = static_cast<int*>(malloc(4));
}
extern "C" __global__ void globals(int* to) {
  atomicAdd(&counter, 1);
  to[0] = static_cast<int>(small_table[threadIdx.x & 1][1]);
}
extern "C" __global__ void through_global_pointer(int v) {
  *pointer_to_counter = v;
}
extern "C" __global__ void through_constant_pointer(float v) {
  *constant_pointer = v;
}
extern "C" __global__ void vectors(float4* to, const float4* from) {
  float4 v = from[threadIdx.x];
  v.x += v.w;
  to[threadIdx.x] = v;
}
extern "C" __global__ void shuffles(float* to, const float* from) {
  float v = from[threadIdx.x];
  for (int d = 16; d > 0; d /= 2)
    v += __shfl_xor_sync(~0u, v, d);
  if (__any_sync(~0u, v > 1))
    to[threadIdx.x] = v + __popc(__ballot_sync(~0u, v > 2));
}
extern "C" __global__ void slow_math(double* to, const double* from, float* tof,
                                     const float* fromf) {
  to[threadIdx.x] = sin(from[threadIdx.x]) / cos(from[1]) + sqrt(pow(from[2], from[3]));
  tof[threadIdx.x] = sinf(fromf[threadIdx.x]) + expf(fromf[1]) + fmodf(fromf[2], fromf[3]);
}
extern "C" __global__ void compare_and_swap(int* p, unsigned long long* q) {
  atomicCAS(p, 1, 2);
  atomicExch(q, 1ull);
}
extern "C" __global__ void spills(const int* from, int* to, int k) {
  int a[32];
  for (int i = 0; i < 32; ++i)
    a[i] = from[i];
  to[k] = a[k & 31];
}
extern "C" __global__ void pointers_in_shared(float* a, float* b, const float* c) {
  __shared__ float* where[2];
  if (threadIdx.x == 0) {
    where[0] = a;
    where[1] = b;
  }
  __syncthreads();
  where[threadIdx.x & 1][threadIdx.x] = c[threadIdx.x];
}
extern "C" __global__ void grid_sync(float* to, const float* from) {
  to[threadIdx.x] = from[threadIdx.x];
  cooperative_groups::this_grid().sync();
}
extern "C" __global__ void switches(int* to, const int* from, int k) {
  switch (k) {
    case 0:
      to[0] = from[1];
      break;
    case 1:
      to[1] = from[2] * 3;
      break;
    case 2:
      to[2] = from[5] / 7;
      break;
    case 3:
      to[3] = 4;
      break;
    case 4:
      to[4] = from[9] % 11;
      break;
    default:
      to[5] = 1;
  }
}
extern "C" __global__ void optional_pointer(float* to, const float* from, float* maybe) {
  to[threadIdx.x] = from[threadIdx.x];
  if (maybe)
    maybe[threadIdx.x] = 1;
}
extern "C" __global__ void restrict_read(float* __restrict__ to, const float* __restrict__ from) {
  to[threadIdx.x] = __ldg(from + threadIdx.x);
}
extern "C" __global__ void texture_read(float* to, cudaTextureObject_t t) {
  to[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x);
}
extern "C" __global__ void surface_write(cudaSurfaceObject_t s) {
  surf1Dwrite(1.f, s, threadIdx.x * 4);
}
extern "C" __global__ void aligned_down(float* to, const float* from) {
  float* base = reinterpret_cast<float*>(reinterpret_cast<unsigned long long>(to) & ~127ull);
  base[threadIdx.x] = from[threadIdx.x];
}
#if __CUDA_ARCH__ >= 700 || !defined(__CUDA_ARCH__)
extern "C" __global__ void tensor_core(float* c, const half* a, const half* b) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, half, col_major> fb;
  fragment<accumulator, 16, 16, 16, float> fc;
  fill_fragment(fc, 0.f);
  load_matrix_sync(fa, a, 16);
  load_matrix_sync(fb, b, 16);
  mma_sync(fc, fa, fb, fc);
  store_matrix_sync(c, fc, 16, mem_row_major);
}
#endif
extern "C" __global__ void async_copy(float* to, const float* from) {
  __shared__ alignas(16) float buffer[128];
  __pipeline_memcpy_async(&buffer[threadIdx.x * 4], &from[threadIdx.x * 4], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  to[threadIdx.x] = buffer[threadIdx.x];
}
template <typename T, int N>
__global__ void templated(T* to, const T* from) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    to[threadIdx.x * N + i] = from[threadIdx.x * N + i] * T(2);
}
template __global__ void templated<double, 3>(double*, const double*);
template __global__ void templated<unsigned char, 4>(unsigned char*, const unsigned char*);
