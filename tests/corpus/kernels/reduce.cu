// SPDX-License-Identifier: Apache-2.0
// Reductions, and scans.
#include "device.h"

//! <<<8, 128>>> sums[32] x[4000] 1000 -> idempotent: one sum for each block
//! <<<8, 128>>> x[4000] x+0 1000 -> clobbers: the sums overwrite the first elements
//! <<<8, 128>>> p[4032]+0 p+32 1000 -> idempotent: sums before the data in one allocation
KERNEL block_sums(float* sums, const float* x, int n) {
  __shared__ float part[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (threadIdx.x < static_cast<unsigned>(s))
      part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0)
    sums[blockIdx.x] = part[0];
}

//! <<<4, (64), 256>>> sums[16] x[4000] 1000 -> idempotent: dynamic shared memory, two loads each
KERNEL block_sums_dynamic(float* sums, const float* x, unsigned n) {
  extern __shared__ float dynamic_part[];
  const unsigned tid = threadIdx.x;
  float mine = 0;
  for (unsigned i = blockIdx.x * (blockDim.x * 2) + tid; i < n; i += blockDim.x * 2 * gridDim.x) {
    mine += x[i];
    if (i + blockDim.x < n)
      mine += x[i + blockDim.x];
  }
  dynamic_part[tid] = mine;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 32; s >>= 1) {
    if (tid < s)
      dynamic_part[tid] = mine = mine + dynamic_part[tid + s];
    __syncthreads();
  }
  if (tid < 32) {
    if (blockDim.x >= 64)
      mine += dynamic_part[tid + 32];
    mine = warp_sum(mine);
    if (tid == 0)
      sums[blockIdx.x] = mine;
  }
}

//! <<<2, 256>>> sums[64] x[4000] 1000 -> idempotent: one sum for each warp
KERNEL warp_sums(float* sums, const float* x, int n) {
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    v += x[i];
  v = warp_sum(v);
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0)
    sums[warp] = v;
}

//! <<<1, 256>>> total[4] sums[400] 100 -> idempotent: the second stage
//! <<<1, 256>>> sums[400] sums+0 100 -> clobbers: the total replaces the first partial sum
//! <<<1, 256>>> p[404]+400 p+0 100 -> idempotent: the total behind the partial sums
KERNEL final_sum(float* total, const float* sums, int n) {
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    v += sums[i];
  v = block_sum(v);
  if (threadIdx.x == 0)
    *total = v;
}

//! <<<4, 256>>> total[4] x[4000] 1000 -> clobbers: blocks add to the total
KERNEL sum_atomic(float* total, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float v = block_sum(i < n ? x[i] : 0.0f);
  if (threadIdx.x == 0)
    atomicAdd(total, v);
}

//! <<<4, 128>>> total[4] sums[16] ticket[4]=zero x[4000] 1000 -> clobbers: the ticket counts on
KERNEL sum_last_block(float* total, float* sums, unsigned* ticket, const float* x, int n) {
  __shared__ bool last;
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    v += x[i];
  v = block_sum(v);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    float w = 0;
    for (int i = threadIdx.x; i < static_cast<int>(gridDim.x); i += blockDim.x)
      w += reinterpret_cast<volatile float*>(sums)[i];
    w = block_sum(w);
    if (threadIdx.x == 0)
      *total = w;
  }
}

//! <<<4, 64>>> best[16] where[16] x[4000] 1000 -> idempotent: value and place, for each block
KERNEL block_argmax(float* best, int* where, const float* x, int n) {
  __shared__ float values[64];
  __shared__ int places[64];
  float v = -1e30f;
  int at = -1;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    if (x[i] > v) {
      v = x[i];
      at = i;
    }
  values[threadIdx.x] = v;
  places[threadIdx.x] = at;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    const int other = threadIdx.x + s;
    if (static_cast<int>(threadIdx.x) < s && values[other] > values[threadIdx.x]) {
      values[threadIdx.x] = values[other];
      places[threadIdx.x] = places[other];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    best[blockIdx.x] = values[0];
    where[blockIdx.x] = places[0];
  }
}

//! <<<4, 256>>> best[4] x[4000] 1000 -> clobbers: an atomic maximum
KERNEL max_atomic(int* best, const int* x, int n) {
  int v = -2147483647;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    v = max(v, x[i]);
  for (int d = 16; d > 0; d /= 2)
    v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, d));
  if (threadIdx.x % 32 == 0)
    atomicMax(best, v);
}

//! <<<4, 128>>> sums[16] x[4000] y[4000] 1000 -> idempotent: partial products
//! <<<4, 128>>> sums[16] x[4000] x+0 1000 -> idempotent: the square of a norm
KERNEL dot_product(float* sums, const float* x, const float* y, int n) {
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    v += x[i] * y[i];
  v = block_sum(v);
  if (threadIdx.x == 0)
    sums[blockIdx.x] = v;
}

//! <<<12, 64>>> out[48] m[4800] 12 100 -> idempotent: a sum for each row
KERNEL row_sums(float* out, const float* m, int rows, int columns) {
  const int row = blockIdx.x;
  if (row >= rows)
    return;
  float v = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    v += m[row * columns + c];
  v = block_sum(v);
  if (threadIdx.x == 0)
    out[row] = v;
}

//! <<<2, 64>>> out[400] m[4800] 12 100 -> idempotent: a sum for each column
//! <<<2, 64>>> m[4800] m+0 12 100 -> clobbers: the sums replace the first row
KERNEL column_sums(float* out, const float* m, int rows, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= columns)
    return;
  float v = 0;
  for (int r = 0; r < rows; ++r)
    v += m[r * columns + c];
  out[c] = v;
}

//! <<<10, 32>>> out[40] x[4000] first[44]=rows:10:90 10 -> idempotent: segments by offsets
KERNEL segment_sums(float* out, const float* x, const int* first, int segments) {
  const int s = blockIdx.x;
  if (s >= segments)
    return;
  float v = 0;
  for (int i = first[s] + threadIdx.x; i < first[s + 1]; i += 32)
    v += x[i];
  v = warp_sum(v);
  if (threadIdx.x == 0)
    out[s] = v;
}

//! <<<6, 64>>> mean[24] var[24] x[1536] 64 -> idempotent: mean and variance of each row
KERNEL row_moments(float* mean, float* variance, const float* x, int columns) {
  const float* row = x + static_cast<size_t>(blockIdx.x) * columns;
  float m = 0, s = 0;
  int count = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    ++count;
    const float d = row[c] - m;
    m += d / count;
    s += d * (row[c] - m);
  }
  const float sum = block_sum(m * count);
  const float squares = block_sum(s);
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = sum / columns;
    variance[blockIdx.x] = squares / columns;
  }
}

//! <<<4, 256>>> counts[16] x[4000] 0.0f 1000 -> idempotent: how many are above, for each block
KERNEL count_above(int* counts, const float* x, float limit, int n) {
  __shared__ int total;
  if (threadIdx.x == 0)
    total = 0;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned votes = __ballot_sync(0xFFFFFFFFu, i < n && x[i] > limit);
  if (threadIdx.x % 32 == 0)
    atomicAdd(&total, __popc(votes));
  __syncthreads();
  if (threadIdx.x == 0)
    counts[blockIdx.x] = total;
}

//! <<<4, 256>>> found[4]=zero x[4000] 7 1000 -> idempotent: the flag is only ever set
KERNEL any_equal(int* found, const int* x, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (__any_sync(0xFFFFFFFFu, i < n && x[i] == value) && threadIdx.x % 32 == 0)
    *found = 1;
}

// --- Scans ---

//! <<<4, 256>>> out[4000] sums[16] in[4000] 1000 -> idempotent: each block scans its part
//! <<<4, 256>>> in[4000] sums[16] in+0 1000 -> clobbers: in place
KERNEL scan_blocks(int* out, int* sums, const int* in, int n) {
  __shared__ int two[2][256];
  const int t = threadIdx.x, i = blockIdx.x * 256 + t;
  int from = 0;
  two[0][t] = i < n ? in[i] : 0;
  __syncthreads();
  for (int d = 1; d < 256; d *= 2) {
    const int to = 1 - from;
    two[to][t] = t >= d ? two[from][t] + two[from][t - d] : two[from][t];
    from = to;
    __syncthreads();
  }
  if (i < n)
    out[i] = two[from][t];
  if (t == 255)
    sums[blockIdx.x] = two[from][t];
}

//! <<<2, 64, 512>>> out[1024] in[1024] 256 -> idempotent: up-sweep and down-sweep in shared memory
KERNEL scan_work_efficient(int* out, const int* in, int n) {
  extern __shared__ int tree[];
  const int t = threadIdx.x, width = 2 * blockDim.x, base = blockIdx.x * width;
  tree[2 * t] = base + 2 * t < n ? in[base + 2 * t] : 0;
  tree[2 * t + 1] = base + 2 * t + 1 < n ? in[base + 2 * t + 1] : 0;
  int offset = 1;
  for (int d = width / 2; d > 0; d /= 2) {
    __syncthreads();
    if (t < d)
      tree[offset * (2 * t + 2) - 1] += tree[offset * (2 * t + 1) - 1];
    offset *= 2;
  }
  if (t == 0)
    tree[width - 1] = 0;
  for (int d = 1; d < width; d *= 2) {
    offset /= 2;
    __syncthreads();
    if (t < d) {
      const int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
      const int v = tree[a];
      tree[a] = tree[b];
      tree[b] += v;
    }
  }
  __syncthreads();
  if (base + 2 * t < n)
    out[base + 2 * t] = tree[2 * t];
  if (base + 2 * t + 1 < n)
    out[base + 2 * t + 1] = tree[2 * t + 1];
}

//! <<<4, 256>>> x[4000] offsets[16] 1000 -> clobbers: offsets are added where the parts are
KERNEL add_block_offsets(int* x, const int* offsets, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && blockIdx.x > 0)
    x[i] += offsets[blockIdx.x - 1];
}

//! <<<4, 256>>> out[4000] x[4000] offsets[16] 1000 -> idempotent: the same, out of place
KERNEL add_block_offsets_to(int* out, const int* x, const int* offsets, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = x[i] + (blockIdx.x > 0 ? offsets[blockIdx.x - 1] : 0);
}

//! <<<2, 128>>> out[1000] in[1000] 250 -> idempotent: warps scan by shuffles
KERNEL scan_warps(int* out, const int* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  int v = i < n ? in[i] : 0;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, v, d);
    if (lane >= d)
      v += other;
  }
  if (i < n)
    out[i] = v;
}

//! @waits
//! <<<4, 64>>> out[1024] state[32]=zero next[4]=zero in[1024] 256 -> clobbers: a ticket, and states
//! that blocks leave for those behind them
KERNEL scan_look_back(int* out, volatile int* state, unsigned* next, const int* in, int n) {
  __shared__ int block, before;
  __shared__ int part[64];
  const int t = threadIdx.x;
  if (t == 0)
    block = static_cast<int>(atomicAdd(next, 1u));
  __syncthreads();
  const int i = block * 64 + t;
  part[t] = i < n ? in[i] : 0;
  __syncthreads();
  for (int d = 1; d < 64; d *= 2) {
    const int v = t >= d ? part[t - d] : 0;
    __syncthreads();
    part[t] += v;
    __syncthreads();
  }
  if (t == 0) {
    int sum = 0;
    if (block > 0) {
      while (state[2 * (block - 1)] == 0)
        ;
      __threadfence();
      sum = state[2 * (block - 1) + 1];
    }
    before = sum;
    state[2 * block + 1] = sum + part[63];
    __threadfence();
    state[2 * block] = 1;
  }
  __syncthreads();
  if (i < n)
    out[i] = before + part[t];
}

//! <<<1, 128>>> out[4000] in[4000] 1000 -> idempotent: one block, a carry from tile to tile
KERNEL scan_serial_tiles(float* out, const float* in, int n) {
  __shared__ float part[128];
  float carry = 0;
  for (int base = 0; base < n; base += 128) {
    const int i = base + threadIdx.x;
    part[threadIdx.x] = i < n ? in[i] : 0.0f;
    __syncthreads();
    for (int d = 1; d < 128; d <<= 1) {
      const float v = static_cast<int>(threadIdx.x) >= d ? part[threadIdx.x - d] : 0.0f;
      __syncthreads();
      part[threadIdx.x] += v;
      __syncthreads();
    }
    if (i < n)
      out[i] = carry + part[threadIdx.x];
    carry += part[127];
    __syncthreads();
  }
}
