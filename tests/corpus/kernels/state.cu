// SPDX-License-Identifier: Apache-2.0
// Variables of the module, random numbers, counters, locks, barriers between blocks.
#include "device.h"

__constant__ float coefficients[8] = {1, 2, 3, 4, 5, 6, 7, 8};
//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: constant memory, which the host changes between
//! launches, is only read
//! <<<2, 64>>> x[400] x+0 100 -> clobbers: in place
KERNEL by_constants(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float v = 0;
    for (int k = 7; k >= 0; --k)
      v = v * in[i] + coefficients[k];
    out[i] = v;
  }
}
//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: an index from memory into constant memory
KERNEL by_constant_index(float* out, const unsigned char* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = coefficients[in[i] & 7];
}

__constant__ struct {
  float scale;
  int offset;
  int count;
} settings = {2.0f, 3, 50};
//! <<<2, 64>>> out[400] in[400] -> idempotent: how much and where is in constant memory
KERNEL by_constant_settings(float* out, const float* in) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < settings.count)
    out[i + settings.offset] = settings.scale * in[i];
}

__device__ unsigned calls;
//! <<<1, 32>>> out[4] -> clobbers: a counter of the module
KERNEL count_calls(unsigned* out) {
  if (threadIdx.x == 0) {
    calls = calls + 1;
    *out = calls;
  }
}
//! <<<4, 32>>> -> clobbers: the same by atomics
KERNEL count_blocks() {
  if (threadIdx.x == 0)
    atomicAdd(&calls, 1u);
}

__device__ float lookup[64];
//! <<<1, 64>>> 0.5f -> idempotent: a table of the module is filled
KERNEL fill_lookup(float step) {
  lookup[threadIdx.x] = step * threadIdx.x * threadIdx.x;
}
//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: a table of the module is read
KERNEL use_lookup(float* out, const int* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = lookup[in[i] & 63];
}
//! <<<1, 32>>> -> idempotent: the upper half of the table from the lower one
KERNEL extend_lookup() {
  lookup[32 + threadIdx.x] = 2.0f * lookup[threadIdx.x];
}
//! <<<1, 63>>> -> clobbers: every entry from the one behind it
KERNEL shift_lookup() {
  lookup[threadIdx.x] = lookup[threadIdx.x + 1];
}

__device__ float exchange[128];
//! <<<1, 128>>> out[512] in[512] -> idempotent: a temporary of the module, written whole before it
//! is read, by one block
KERNEL through_module_temporary(float* out, const float* in) {
  volatile float* tmp = exchange;
  tmp[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tmp[127 - threadIdx.x];
}

__device__ float* module_target;
//! <<<2, 64>>> in[400] 100 -> unknown-ok: the target is a pointer in a variable of the module
//! @not-run the variable is null here
KERNEL write_to_module_pointer(const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    module_target[i] = in[i];
}

static __device__ __forceinline__ unsigned next_random(unsigned& s) {
  s = s * 1664525u + 1013904223u;
  return s;
}
//! <<<2, 64>>> s[512] 42 -> idempotent: states are set from a seed
KERNEL seed_states(unsigned* state, unsigned seed) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned s = seed ^ t * 0x9E3779B9u;
  for (int k = 0; k < 4; ++k)
    next_random(s);
  state[t] = s;
}
//! <<<2, 64>>> hits[512] s[512] 20 -> clobbers: states move on
KERNEL monte_carlo_pi(int* hits, unsigned* state, int tries) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned s = state[t];
  int inside = 0;
  for (int k = 0; k < tries; ++k) {
    const float x = (next_random(s) >> 8) / 16777216.0f, y = (next_random(s) >> 8) / 16777216.0f;
    inside += x * x + y * y < 1.0f;
  }
  hits[t] = inside;
  state[t] = s;
}
//! <<<2, 64>>> to[512] hits[512] s[512] 20 -> idempotent: new states go elsewhere
KERNEL monte_carlo_functional(unsigned* to, int* hits, const unsigned* state, int tries) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned s = state[t];
  int inside = 0;
  for (int k = 0; k < tries; ++k)
    inside += (next_random(s) & 0x80000000u) != 0;
  hits[t] = inside;
  to[t] = s;
}
struct State48 {
  unsigned d, v[5];
  int flag;
  float extra;
  double spare;
};
//! <<<1, 64>>> out[256] s[2560] -> clobbers: a structure of state is copied in and out
KERNEL draw_with_struct(float* out, State48* states) {
  State48 s = states[threadIdx.x];
  const unsigned t = s.v[0] ^ s.v[0] >> 2;
  for (int k = 0; k < 4; ++k)
    s.v[k] = s.v[k + 1];
  s.v[4] = s.v[4] ^ s.v[4] << 4 ^ t ^ t << 1;
  s.d += 362437;
  states[threadIdx.x] = s;
  out[threadIdx.x] = (s.v[4] + s.d) * 2.3283064e-10f;
}
//! <<<2, 64>>> out[512] in[4]=zero 7 3 -> idempotent: a counter-based generator; its offset is an
//! argument
KERNEL philox_like(unsigned* out, const unsigned* key, unsigned counter, int rounds) {
  unsigned a = counter, b = blockIdx.x * blockDim.x + threadIdx.x, k = *key;
  for (int r = 0; r < rounds; ++r) {
    const unsigned long long p = static_cast<unsigned long long>(a) * 0xD2511F53u;
    a = static_cast<unsigned>(p >> 32) ^ b ^ k;
    b = static_cast<unsigned>(p);
    k += 0x9E3779B9u;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a;
}

//! <<<2, 64>>> log[4096] end[4]=zero x[400] 100 -> clobbers: entries are appended
KERNEL append_to_log(int2* log, int* end, const int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] % 3 == 0)
    log[atomicAdd(end, 1)] = make_int2(i, x[i]);
}

//! @waits
//! <<<3, 32>>> sum[4] lock[4]=zero x[384] -> clobbers: a sum under a lock
KERNEL sum_under_lock(float* sum, int* lock, const float* x) {
  const float v = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0)
      ;
    __threadfence();
    *reinterpret_cast<volatile float*>(sum) += v;
    __threadfence();
    atomicExch(lock, 0);
  }
}

//! @waits
//! <<<3, 32>>> b[384] a[384] count[4]=zero -> clobbers: a barrier of all blocks made of atomics
KERNEL with_grid_barrier(volatile float* b, volatile float* a, unsigned* count) {
  const int i = blockIdx.x * 32 + threadIdx.x, n = gridDim.x * 32;
  b[i] = a[i] + 1.0f;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(count, 1u);
    while (*reinterpret_cast<volatile unsigned*>(count) < gridDim.x)
      ;
  }
  __syncthreads();
  a[i] = b[(i + 32) % n];
}

//! <<<1, 32>>> flag[4]=zero data[128] 5 -> idempotent: data, then a flag, both only written
KERNEL publish(volatile int* flag, float* data, int value) {
  data[threadIdx.x] = value;
  __threadfence();
  __syncwarp();
  if (threadIdx.x == 0)
    *flag = value;
}

//! @waits
//! <<<1, 32>>> out[128] flag[4]=ones data[128] -> idempotent: waits for a flag, then reads
KERNEL consume(float* out, volatile const int* flag, volatile const float* data) {
  while (*flag == 0)
    ;
  __threadfence();
  out[threadIdx.x] = data[threadIdx.x];
}

#if !defined(__clang__)
#include <cooperative_groups.h>
//! @only nvcc
//! @cooperative
//! <<<3, 32>>> b[384] a[384] 4 -> clobbers: steps with a barrier of the grid between them
KERNEL with_cooperative_grid(float* b, float* a, int steps) {
  const auto grid = cooperative_groups::this_grid();
  const int i = blockIdx.x * 32 + threadIdx.x, n = gridDim.x * 32;
  for (int s = 0; s < steps; ++s) {
    b[i] = a[(i + 1) % n];
    grid.sync();
    a[i] = b[i];
    grid.sync();
  }
}
#endif
