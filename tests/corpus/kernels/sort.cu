// SPDX-License-Identifier: Apache-2.0
// Histograms, sorting, compaction, searching.
#include "device.h"

//! <<<4, 128>>> bins[1024] x[4000] 1000 -> clobbers: atomics in global memory
KERNEL histogram_global(unsigned* bins, const unsigned* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[x[i] % 256], 1u);
}

//! <<<4, 128>>> bins[1024] x[1000] 1000 -> clobbers: private in shared memory, then added
KERNEL histogram_shared(unsigned* bins, const unsigned char* x, int n) {
  __shared__ unsigned mine[256];
  for (int b = threadIdx.x; b < 256; b += blockDim.x)
    mine[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[x[i]], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x)
    if (mine[b] != 0)
      atomicAdd(&bins[b], mine[b]);
}

//! <<<4, 128>>> part[4096] x[1000] 1000 -> idempotent: a histogram for each block
//! <<<4, 128>>> p[5096]+0 p+4096 1000 -> idempotent: in front of the data
KERNEL histogram_per_block(unsigned* part, const unsigned char* x, int n) {
  __shared__ unsigned mine[256];
  for (int b = threadIdx.x; b < 256; b += blockDim.x)
    mine[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[x[i]], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x)
    part[blockIdx.x * 256 + b] = mine[b];
}

//! <<<2, 128>>> bins[1024] part[4096] 4 -> idempotent: the blocks' histograms summed
KERNEL histogram_merge(unsigned* bins, const unsigned* part, int blocks) {
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= 256)
    return;
  unsigned sum = 0;
  for (int k = 0; k < blocks; ++k)
    sum += part[k * 256 + b];
  bins[b] = sum;
}

//! <<<2, 128>>> x[1024] 8 4 -> clobbers: one step of a bitonic sort, in place
KERNEL bitonic_step(int* x, int k, int j) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ j;
  if (other > i) {
    const int a = x[i], b = x[other];
    if (((i & k) == 0) == (a > b)) {
      x[i] = b;
      x[other] = a;
    }
  }
}

//! <<<4, 64>>> out[1024] in[1024] -> idempotent: each block sorts its part into another buffer
//! <<<4, 64>>> x[1024] x+0 -> clobbers: in place
KERNEL bitonic_sort_blocks(int* out, const int* in) {
  __shared__ int s[64];
  const unsigned t = threadIdx.x;
  s[t] = in[blockIdx.x * 64 + t];
  __syncthreads();
  for (unsigned k = 2; k <= 64; k *= 2)
    for (unsigned j = k / 2; j > 0; j /= 2) {
      const unsigned other = t ^ j;
      if (other > t && ((t & k) == 0) == (s[t] > s[other])) {
        const int v = s[t];
        s[t] = s[other];
        s[other] = v;
      }
      __syncthreads();
    }
  out[blockIdx.x * 64 + t] = s[t];
}

//! <<<2, 64>>> x[1024] 256 1 -> clobbers: neighbours are exchanged
KERNEL odd_even_step(float* x, int n, int phase) {
  const int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + phase;
  if (i + 1 < n && x[i] > x[i + 1]) {
    const float v = x[i];
    x[i] = x[i + 1];
    x[i + 1] = v;
  }
}

//! <<<4, 64>>> counts[256] keys[1024] 256 8 -> idempotent: digits counted, for each block
KERNEL radix_count(unsigned* counts, const unsigned* keys, int n, int shift) {
  __shared__ unsigned mine[16];
  if (threadIdx.x < 16)
    mine[threadIdx.x] = 0;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    atomicAdd(&mine[keys[i] >> shift & 15], 1u);
  __syncthreads();
  if (threadIdx.x < 16)
    counts[threadIdx.x * gridDim.x + blockIdx.x] = mine[threadIdx.x];
}

//! <<<4, 64>>> out[1024] in[1024] place[1024]=permutation:256 256 -> idempotent: to places from
//! memory, another allocation
//! <<<4, 64>>> p[2048]+1024 p+0 place[1024]=permutation:256 256 -> unknown-ok: in one allocation,
//! the places decide
KERNEL radix_scatter(unsigned* out, const unsigned* in, const int* place, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[place[i]] = in[i];
}

//! <<<1, 32>>> out[1024] in[1024] 4 -> idempotent: one warp ranks and scatters
KERNEL radix_pass_one_warp(unsigned* out, const unsigned* in, int shift) {
  __shared__ unsigned first[16];
  const int lane = threadIdx.x;
  unsigned mine = 0;
  for (int i = 0; i < 256; ++i)
    mine += lane < 16 && (in[i] >> shift & 15) < static_cast<unsigned>(lane);
  if (lane < 16)
    first[lane] = mine;
  __syncwarp();
  if (lane == 0)
    for (int i = 0; i < 256; ++i)
      out[first[in[i] >> shift & 15]++] = in[i];
}

//! <<<4, 64>>> out[1024] x[512]=iota y[512]=iota 128 128 -> idempotent: merge by ranks
//! <<<4, 64>>> p[2048]+1024 p+0 p+512 128 128 -> idempotent: in one allocation; places stay below
//! nx + ny whatever the data
KERNEL merge_sorted(int* out, const int* x, const int* y, int nx, int ny) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= nx + ny)
    return;
  const bool first = i < nx;
  const int v = first ? x[i] : y[i - nx];
  const int* other = first ? y : x;
  int low = 0, high = first ? ny : nx;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (first ? other[middle] < v : other[middle] <= v)
      low = middle + 1;
    else
      high = middle;
  }
  out[(first ? i : i - nx) + low] = v;
}

//! <<<4, 128>>> out[4000] count[4]=zero x[4000] 1000 -> clobbers: the counter is added to
KERNEL compact_atomic(float* out, int* count, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0.0f)
    out[atomicAdd(count, 1)] = x[i];
}

//! <<<4, 128>>> out[4000] count[4]=zero x[4000] 1000 -> clobbers: one atomic for each warp
KERNEL compact_warp(float* out, int* count, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  const bool keep = i < n && x[i] > 0.0f;
  const unsigned votes = __ballot_sync(0xFFFFFFFFu, keep);
  int base = 0;
  if (lane == 0)
    base = atomicAdd(count, __popc(votes));
  base = __shfl_sync(0xFFFFFFFFu, base, 0);
  if (keep)
    out[base + __popc(votes & ((1u << lane) - 1))] = x[i];
}

//! <<<4, 128>>> out[2000] x[2000] keep[500] at[2000]=iota 500 -> idempotent: places from a scan
KERNEL compact_by_scan(float* out, const float* x, const unsigned char* keep, const int* at,
                       int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && keep[i])
    out[at[i]] = x[i];
}

//! <<<2, 128>>> flags[800] x[800] 200 -> idempotent: where a run begins
//! <<<2, 128>>> x[800] x+0 200 -> clobbers: in place
KERNEL mark_heads(int* flags, const int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    flags[i] = i == 0 || x[i] != x[i - 1];
}

//! <<<2, 64>>> at[400] sorted[1000]=iota query[400] 100 250 -> idempotent: binary search
//! <<<2, 64>>> p[1800]+0 p+800 p+400 100 250 -> idempotent: in one allocation; the search stays in
//! its array whatever the data
KERNEL lower_bound_each(int* at, const int* sorted, const int* query, int queries, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= queries)
    return;
  const int v = query[i];
  int low = 0, high = n;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (sorted[middle] < v)
      low = middle + 1;
    else
      high = middle;
  }
  at[i] = low;
}

//! <<<8, 32>>> values[128] places[128] x[3200] 100 4 -> idempotent: the largest of each row, one
//! after the other
KERNEL top_k_rows(float* values, int* places, const float* x, int columns, int k) {
  const float* row = x + blockIdx.x * columns;
  float limit = 1e30f;
  for (int j = 0; j < k; ++j) {
    float best = -1e30f;
    int at = 0;
    for (int c = threadIdx.x; c < columns; c += 32)
      if (row[c] < limit && row[c] > best) {
        best = row[c];
        at = c;
      }
    for (int d = 16; d > 0; d /= 2) {
      const float v = __shfl_xor_sync(0xFFFFFFFFu, best, d);
      const int w = __shfl_xor_sync(0xFFFFFFFFu, at, d);
      if (v > best) {
        best = v;
        at = w;
      }
    }
    limit = best;
    if (threadIdx.x == 0) {
      values[blockIdx.x * k + j] = best;
      places[blockIdx.x * k + j] = at;
    }
  }
}

//! <<<2, 64>>> keys[1024]=zero x[400] 100 256 -> clobbers: slots are claimed by compare and swap
KERNEL hash_insert(unsigned* keys, const unsigned* x, int n, unsigned slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  const unsigned key = x[i] | 1;
  unsigned slot = key * 2654435761u % slots;
  for (unsigned tries = 0; tries < slots; ++tries) {
    const unsigned old = atomicCAS(&keys[slot], 0u, key);
    if (old == 0 || old == key)
      return;
    slot = (slot + 1) % slots;
  }
}

//! <<<2, 64>>> found[400] keys[1024] x[400] 100 256 -> idempotent: look-ups only read the table
KERNEL hash_find(int* found, const unsigned* keys, const unsigned* x, int n, unsigned slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  const unsigned key = x[i] | 1;
  unsigned slot = key * 2654435761u % slots;
  int at = -1;
  for (unsigned tries = 0; tries < slots; ++tries) {
    const unsigned k = keys[slot];
    if (k == key)
      at = static_cast<int>(slot);
    if (k == key || k == 0)
      break;
    slot = (slot + 1) % slots;
  }
  found[i] = at;
}
