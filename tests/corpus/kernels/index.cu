// SPDX-License-Identifier: Apache-2.0
// Index arithmetic: offsets of both signs, masks, wrap-around, narrow types, loops in all
// directions, wavefronts through one matrix, butterflies.
#include "device.h"

//! <<<2, 64>>> x[800] 100 0 100 -> idempotent: the upper half from the lower one
//! <<<2, 64>>> x[800] 100 100 -100 -> idempotent: the lower half from the upper one
//! <<<2, 64>>> x[800] 100 50 -50 -> clobbers: they overlap
//! <<<2, 64>>> x[800] 100 0 99 -> clobbers: they overlap in one element
KERNEL copy_with_offset(float* x, int n, int from, int by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[from + i + by] = x[from + i];
}

//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: neighbours by unsigned arithmetic that wraps
//! <<<2, 64>>> x[400] x+0 100 -> clobbers: in place
KERNEL left_neighbour(float* out, const float* in, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned left = i - 1;
  if (i < n)
    out[i] = left < n ? in[left] : 0.0f;
}

//! <<<2, 64>>> x[400] 100 4294967295u -> clobbers: an unsigned -1: every element from the next one
//! <<<2, 64>>> x[400] 50 50u -> idempotent: the lower half to the upper one
KERNEL move_unsigned(float* x, unsigned n, unsigned by) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && i + by < 100)
    x[i + by] = x[i];
}

//! <<<1, 1>>> out[400] in[400] 100 -> idempotent: one thread, backwards
//! <<<1, 1>>> p[800]+400 p+0 100 -> idempotent: neighbours in one allocation
KERNEL copy_downwards(float* out, const float* in, int n) {
  for (int i = n - 1; i >= 0; --i)
    out[i] = in[i];
}

//! <<<1, 32>>> out[400] in[400] 100 -> idempotent: counts down in strides
//! <<<1, 32>>> p[796]+396 p+0 100 -> clobbers: the last element read is the first one written
KERNEL copy_strides_down(float* out, const float* in, unsigned n) {
  for (unsigned i = n - threadIdx.x; i-- > 0 && i < n;) {
    out[i] = in[i];
    if (i < blockDim.x - 1)
      break;
    i -= blockDim.x - 1;
  }
}

//! <<<1, 64>>> out[256] in[1024] 256 -> idempotent: two counters, one twice as fast as the other
KERNEL halve_two_counters(float* out, const float* in, int n) {
  int to = threadIdx.x, from = 4 * threadIdx.x;
  do {
    out[to] = in[from] + in[from + 3];
    to += 64;
    from += 256;
  } while (from < n);
}

//! <<<2, 64>>> out[512] in[512] 128 -> idempotent: partners by exclusive or
//! <<<2, 64>>> x[512] x+0 128 -> clobbers: in place
KERNEL exchange_partners(int* out, const int* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = in[i ^ 1];
}

//! <<<2, 64>>> x[1024] 128 -> idempotent: 128 entries of a ring by a mask to the other ring behind
//! it
//! <<<2, 64>>> x[1024] 64 -> clobbers: the second ring begins in the middle of the first
KERNEL ring_to_ring(float* x, int second) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[second + (i + 7 & 127)] = x[i & 127];
}

//! <<<2, 256>>> out[1024] in[1024] 10 -> idempotent: an index of 8 bits that wraps
//! <<<2, 256>>> x[2048]+1024 x+0 10 -> idempotent: it stays below 256
//! <<<2, 256>>> x[2048]+1000 x+0 10 -> clobbers: that is not enough
KERNEL wrap_in_a_byte(float* out, const float* in, int by) {
  const unsigned char i = static_cast<unsigned char>(blockIdx.x * blockDim.x + threadIdx.x + by);
  out[i] = in[static_cast<unsigned char>(i * 3)];
}

//! <<<2, 64>>> out[512] in[512] 64 -> idempotent: pairs by shifts
KERNEL double_by_shift(float* out, const float* in, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >> 1 < pairs)
    out[i] = in[i >> 1 << 1];
}

//! <<<2, 64>>> out[400] in[208] 100 -> idempotent: quotients of numbers of both signs
KERNEL signed_quotients(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = in[(i - 3) / 2 + 1] + in[(i - 3) % 2 + 1];
}

//! <<<(2, 2), (16, 16)>>> out[3600] in[3600] 30 30 2 -3 -> idempotent: a shifted image, by one
//! unsigned comparison for each axis
KERNEL shift_image(float* out, const float* in, int width, int height, int dx, int dy) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height)
    return;
  const int sx = x - dx, sy = y - dy;
  const bool inside = static_cast<unsigned>(sx) < static_cast<unsigned>(width) &&
                      static_cast<unsigned>(sy) < static_cast<unsigned>(height);
  out[y * width + x] = inside ? in[sy * width + sx] : 0.0f;
}

//! <<<1, 32>>> m[4096] 32 10 -> idempotent: one anti-diagonal from the two before it, in one matrix
//! <<<1, 32>>> m[4096] 32 40 -> idempotent: one beyond the middle
KERNEL wavefront(int* m, int n, int diagonal) {
  const int first = max(1, diagonal - n + 1);
  const int r = first + threadIdx.x, c = diagonal - r;
  if (r < n && c >= 1)
    m[r * n + c] = max(m[(r - 1) * n + c - 1] + 1, max(m[(r - 1) * n + c], m[r * n + c - 1]));
}

//! <<<1, 32>>> m[4096] 32 5 -> idempotent: a row from the row above it
//! <<<1, 32>>> m[4096] 32 31 -> idempotent: the last one
KERNEL row_from_above(int* m, int n, int row) {
  const int c = threadIdx.x;
  if (c < n)
    m[row * n + c] = m[(row - 1) * n + c] + (c > 0 ? m[(row - 1) * n + c - 1] : 0);
}

//! <<<(2, 2), (16, 16)>>> d[4096] 32 7 -> clobbers: a step of all-pairs shortest paths, in place
KERNEL floyd_warshall(int* d, int n, int k) {
  const int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
  const int through = d[r * n + k] + d[k * n + c];
  if (through < d[r * n + c])
    d[r * n + c] = through;
}

//! <<<1, 64>>> x[2048] 8 -> clobbers: butterflies of one stage, in place
KERNEL fft_stage_in_place(float2* x, int half) {
  const int t = threadIdx.x;
  const int a = (t / half) * half * 2 + t % half, b = a + half;
  const float2 u = x[a], v = x[b];
  x[a] = make_float2(u.x + v.x, u.y + v.y);
  x[b] = make_float2(u.x - v.x, u.y - v.y);
}

//! <<<1, 64>>> y[1024] x[1024] w[512] 64 4 -> idempotent: a stage from one buffer to another
//! <<<1, 64>>> p[2560]+1536 p+512 p+0 64 4 -> idempotent: both behind the factors in one allocation
//! <<<1, 64>>> x[1024] x+0 w[512] 64 4 -> clobbers: in place
KERNEL fft_stage(float2* y, const float2* x, const float2* factors, int half, int stride) {
  const int t = threadIdx.x;
  if (t >= half)
    return;
  const int k = t % stride, j = t / stride;
  const float2 u = x[t], v = x[t + half], w = factors[j * stride];
  const float2 d = make_float2(u.x - v.x, u.y - v.y);
  y[2 * j * stride + k] = make_float2(u.x + v.x, u.y + v.y);
  y[(2 * j + 1) * stride + k] = make_float2(d.x * w.x - d.y * w.y, d.x * w.y + d.y * w.x);
}

//! <<<1, 256>>> y[2048] x[2048] 8 -> idempotent: bits of the index in reverse order
KERNEL bit_reverse(float2* y, const float2* x, int bits) {
  unsigned r = 0, i = threadIdx.x;
  for (int b = 0; b < bits; ++b)
    r |= (i >> b & 1) << (bits - 1 - b);
  y[r] = x[i];
}

//! <<<2, 64>>> x[1024] 128 -> clobbers: partial sums in place, the distance doubles
KERNEL sum_in_place_doubling(float* x, int n) {
  const int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  for (int s = 1; s < 8; s *= 2)
    if (i % (2 * s) == 0 && i + s < n)
      x[i] += x[i + s];
}

//! <<<1, 32>>> out[1984] x[128] 32 -> idempotent: pairs i < j, packed
KERNEL pair_distances(float* out, const float* x, int n) {
  const int i = threadIdx.x;
  for (int j = i + 1; j < n; ++j)
    out[i * n - i * (i + 1) / 2 + j - i - 1] = fabsf(x[i] - x[j]);
}

//! <<<(2, 2), (16, 16)>>> out[4096] in[4096] -> idempotent: rows and columns interleaved bit by bit
KERNEL morton_order(float* out, const float* in) {
  const unsigned x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  unsigned z = 0;
  for (unsigned b = 0; b < 5; ++b)
    z |= (x >> b & 1) << (2 * b) | (y >> b & 1) << (2 * b + 1);
  out[z] = in[y * 32 + x];
}

//! <<<3, 64>>> out[1000] in[1000] 250 -> idempotent: the last tile is cut to what is left
//! <<<3, 64>>> p[2000]+1000 p+0 250 -> idempotent: neighbours in one allocation
KERNEL tiles_with_rest(float* out, const float* in, int n) {
  for (int base = blockIdx.x * 96; base < n; base += gridDim.x * 96) {
    const int count = min(n - base, 96);
    for (int k = threadIdx.x; k < count; k += blockDim.x)
      out[base + k] = in[base + k] * 2.0f;
  }
}

//! <<<3, 64>>> out[1000] in[1000] 250 -> idempotent: even shares, the first ones larger by one
//! <<<3, 64>>> p[2000]+0 p+1000 250 -> idempotent: neighbours in one allocation
KERNEL balanced_shares(float* out, const float* in, int n) {
  const int share = n / gridDim.x, rest = n % gridDim.x, b = blockIdx.x;
  const int first = b * share + min(b, rest);
  const int last = first + share + (b < rest ? 1 : 0);
  for (int i = first + threadIdx.x; i < last; i += blockDim.x)
    out[i] = in[i] - 1.0f;
}

//! <<<2, 64>>> out[800] in[400] 100 0 -> idempotent: the first of two halves of the output
//! <<<2, 64>>> out[800] out+0 100 1 -> idempotent: the second half from the first one
//! <<<2, 64>>> out[800] out+0 100 0 -> clobbers: the first one onto itself
KERNEL write_half(float* out, const float* in, int n, int which) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float* to = out + static_cast<long long>(which) * n;
  if (i < n)
    to[i] = in[i] + 1.0f;
}

//! <<<2, 64>>> x[4000] 100 10 3 7 -> idempotent: one column of a table from another
//! <<<2, 64>>> x[4000] 100 10 3 3 -> clobbers: from itself
KERNEL column_from_column(float* table, int rows, int columns, int from, int to) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < rows)
    table[r * columns + to] = table[r * columns + from] * 2.0f;
}

struct Mixed {
  float a, b;
  double sum;
  int n, spare;
};
//! <<<2, 64>>> x[2400] 100 -> idempotent: of each structure the double from the two floats
KERNEL field_from_fields(Mixed* x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    x[i].sum = static_cast<double>(x[i].a) + x[i].b;
}

//! <<<(2, 3, 2), (4, 4, 4)>>> out[6144] in[6144] 8 12 16 -> idempotent: dimensions in another order
KERNEL permute_zyx(float* out, const float* in, int nx, int ny, int nz) {
  const int x = blockIdx.x * 4 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
  for (int z = blockIdx.z * 4 + threadIdx.z; z < nz; z += gridDim.z * 4)
    if (x < nx && y < ny)
      out[(x * ny + y) * nz + z] = in[(z * ny + y) * nx + x];
}

//! <<<2, 64>>> out[400] in[400] 100 3 -> idempotent: every third element, others are left
//! <<<2, 64>>> x[400] x+4 99 3 -> idempotent: elements 0, 3, 6 from elements 1, 4, 7
//! <<<2, 64>>> x[400] x+12 97 3 -> clobbers: elements 0, 3, 6 from elements 3, 6, 9
KERNEL every_third(float* out, const float* in, int n, int step) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * step;
  if (i < n)
    out[i] = in[i];
}

//! <<<4, 64>>> out[1024] in[1024] 0 256 -> idempotent: a range from begin to end
//! <<<4, 64>>> x[1024]+512 x+0 0 128 -> idempotent: half of it
//! <<<4, 64>>> x[1024]+256 x+0 0 128 -> clobbers: overlapping ranges
//! <<<4, 64>>> x[1024] x+0 100 100 -> idempotent: an empty range, in place
KERNEL copy_range(float* out, const float* in, int begin, int end) {
  for (int i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += gridDim.x * blockDim.x)
    out[i] = in[i];
}
