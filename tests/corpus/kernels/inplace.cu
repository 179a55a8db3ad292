// SPDX-License-Identifier: Apache-2.0
// Kernels that work on one buffer. Not all of them read what they write.
#include "device.h"

//! <<<4, 256>>> x[4000] 0.5f 1000 -> clobbers: read and rewritten
KERNEL scale_in_place(float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[i] *= a;
}

//! <<<4, 256>>> x[4000] 1000 -> clobbers: read and rewritten, if only where negative
KERNEL relu_in_place(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] < 0.0f)
    x[i] = 0.0f;
}

//! <<<1, 128>>> x[2000] y[2000] 125 -> clobbers: vectors read and rewritten
KERNEL add_into_float4(float4* x, const float4* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float4 a = x[i];
    const float4 b = y[i];
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
    x[i] = a;
  }
}

//! <<<2, 128>>> x[4000] 500 -> clobbers: what is swapped is read and written
KERNEL swap_halves(float* x, int half) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < half) {
    const float t = x[i];
    x[i] = x[i + half];
    x[i + half] = t;
  }
}

//! <<<2, 128>>> x[4000] 1000 -> clobbers: both ends are exchanged
KERNEL reverse_in_place(int* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 2; i += gridDim.x * blockDim.x) {
    const int t = x[i];
    x[i] = x[n - 1 - i];
    x[n - 1 - i] = t;
  }
}

//! <<<4, 256>>> x[4000] 1000 -> clobbers: atomic increments
KERNEL increment_atomic(int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    atomicAdd(&x[i], 1);
}

//! <<<4, 256>>> x[4000] m[1000] -1.0f 1000 -> idempotent: x is written here and there, never read
//! <<<4, 256>>> x[4000] x+0 -1.0f 1000 -> clobbers: the mask is the data itself
KERNEL mask_fill(float* x, const unsigned char* mask, float value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && mask[i])
    x[i] = value;
}

//! <<<1, 64>>> m[10000] 50 1.0f -> idempotent: only the diagonal is written
KERNEL set_diagonal(float* m, int n, float value) {
  const int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n)
    m[i * n + i] = value;
}

//! <<<1, 64>>> m[10000] 50 -> clobbers: the diagonal is read and written
KERNEL add_to_diagonal(float* m, int n) {
  const int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n)
    m[i * n + i] += 1.0f;
}

//! <<<4, 128>>> x[4000] 500 -> idempotent: reads even elements, writes odd ones
KERNEL copy_even_to_odd(float* x, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs)
    x[2 * i + 1] = x[2 * i];
}

//! <<<4, 128>>> x[4000] 999 -> clobbers: every element moves down by one
KERNEL shift_down(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[i] = x[i + 1];
}

//! <<<4, 128>>> x[4000] 400 500 -> idempotent: the target begins behind what is read
//! <<<4, 128>>> x[4000] 600 300 -> clobbers: target and source overlap
KERNEL move_up(float* x, int n, int by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[i + by] = x[i];
}

//! <<<1, 1>>> x[400] 100 -> clobbers: a running sum
KERNEL serial_prefix(float* x, int n) {
  for (int i = 1; i < n; ++i)
    x[i] += x[i - 1];
}

//! <<<(2, 8), 32>>> m[4096] 16 64 32 -> idempotent: left half of each row to its right half
//! <<<(2, 8), 32>>> m[4096] 16 64 16 -> clobbers: the halves overlap
KERNEL copy_left_to_right(float* m, int rows, int pitch, int right) {
  const int c = threadIdx.x;
  for (int r = blockIdx.y * gridDim.x + blockIdx.x; r < rows; r += gridDim.x * gridDim.y)
    m[r * pitch + right + c] = m[r * pitch + c];
}

//! <<<10, 64>>> m[2560] 10 64 -> clobbers: rows are normalised where they are
KERNEL normalise_rows(float* m, int rows, int columns) {
  float* row = m + blockIdx.x * columns;
  if (static_cast<int>(blockIdx.x) >= rows)
    return;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    sum += row[c];
  sum = block_sum(sum);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    row[c] /= sum;
}

struct Particle {
  float position[3];
  float velocity[3];
};
//! <<<2, 64>>> p[2400] 100 0.01f -> clobbers: positions are read and written
KERNEL advance_particles(Particle* p, int n, float dt) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    for (int d = 0; d < 3; ++d)
      p[i].position[d] += dt * p[i].velocity[d];
}

//! <<<2, 64>>> p[2400] 100 -> idempotent: velocities from positions, fields of one structure
KERNEL field_velocities(Particle* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    p[i].velocity[0] = -p[i].position[1];
    p[i].velocity[1] = p[i].position[0];
    p[i].velocity[2] = 0.0f;
  }
}

//! <<<2, 128>>> x[1000] 250 -> clobbers: bits are set in words that are read
KERNEL set_flag_bits(unsigned* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[i] |= 0x80000000u;
}

//! <<<1, 256>>> x[1024] 256 -> clobbers: a block sorts its own elements where they are
KERNEL rotate_in_block(int* x, int n) {
  const int i = threadIdx.x;
  int v = 0;
  if (i < n)
    v = x[(i + 1) % n];
  __syncthreads();
  if (i < n)
    x[i] = v;
}

//! <<<2, 128>>> x[4000] 500 3 -> clobbers: writes what the next pass reads
KERNEL ping_pong_in_kernel(float* x, int half, int passes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= half)
    return;
  for (int p = 0; p < passes; ++p) {
    const int from = p % 2 == 0 ? 0 : half, to = half - from;
    x[to + i] = x[from + i] + 1.0f;
  }
}
