// SPDX-License-Identifier: Apache-2.0
// Transposes, permutations of dimensions, slices, and other moves of whole tensors.
#include "device.h"

//! <<<(3, 2), (16, 16)>>> to[4720] from[4720] 29 40 -> idempotent: out of place
//! <<<(3, 2), (16, 16)>>> p[9440]+4720 p+0 29 40 -> idempotent: neighbours in one allocation
//! <<<(3, 2), (16, 16)>>> m[4720] m+0 29 40 -> clobbers: in place
KERNEL transpose_naive(float* to, const float* from, int rows, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  const int r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < columns && r < rows)
    to[c * rows + r] = from[r * columns + c];
}

//! <<<(2, 3), (32, 8)>>> to[17280] from[17280] 60 72 -> idempotent: by shared tiles
//! <<<(2, 3), (32, 8)>>> p[34560]+0 p+17280 60 72 -> idempotent: neighbours in one allocation
KERNEL transpose_tiled(float* __restrict__ to, const float* __restrict__ from, int width,
                       int height) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < width && y + j < height)
      tile[threadIdx.y + j][threadIdx.x] = from[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < height && y + j < width)
      to[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

//! <<<(2, 2), (16, 16)>>> m[4096] 32 -> clobbers: tiles change places
KERNEL transpose_square_in_place(float* m, int n) {
  __shared__ float a[16][17], b[16][17];
  const int bx = blockIdx.x, by = blockIdx.y, x = threadIdx.x, y = threadIdx.y;
  if (bx > by)
    return;
  a[y][x] = m[(by * 16 + y) * n + bx * 16 + x];
  b[y][x] = m[(bx * 16 + y) * n + by * 16 + x];
  __syncthreads();
  m[(by * 16 + y) * n + bx * 16 + x] = b[x][y];
  m[(bx * 16 + y) * n + by * 16 + x] = a[x][y];
}

//! <<<(2, 2, 3), (8, 8)>>> to[2040] from[2040] 10 17 -> idempotent: a batch of matrices
KERNEL transpose_batch(float* to, const float* from, int rows, int columns) {
  const int c = blockIdx.y * 8 + threadIdx.x + (blockIdx.x * 16);
  const int r = threadIdx.y;
  const size_t base = static_cast<size_t>(blockIdx.z) * rows * columns;
  for (int row = r; row < rows; row += 8)
    if (c < columns)
      to[base + c * rows + row] = from[base + row * columns + c];
}

//! <<<4, 128>>> to[3360] from[3360] 4 5 6 7 -> idempotent: [a, b, c, d] to [a, c, b, d]
//! <<<4, 128>>> from[3360] from+0 4 5 6 7 -> clobbers: in place
KERNEL permute_0213(float* to, const float* from, int a, int b, int c, int d) {
  const int n = a * b * c * d;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int id = i % d, ib = i / d % b, ic = i / (d * b) % c, ia = i / (d * b * c);
    to[i] = from[((ia * b + ib) * c + ic) * d + id];
  }
}

//! <<<(1, 3, 2), 32>>> to[2304] from[2304] 3 8 12 -> idempotent: channels to the back
KERNEL nchw_to_nhwc(float* to, const float* from, int channels, int height, int width) {
  const int n = blockIdx.z, c = blockIdx.y;
  const int hw = height * width;
  for (int i = threadIdx.x; i < hw; i += blockDim.x)
    to[(n * hw + i) * channels + c] = from[(n * channels + c) * hw + i];
}

//! <<<(2, 6), 32>>> to[1440] from[2400] 6 60 -> idempotent: pitched rows to dense ones
//! <<<(2, 6), 32>>> from[2400] from+0 6 60 -> clobbers: rows move down over those behind them
KERNEL compact_pitch(float* to, const float* from, int rows, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (r < rows && c < columns)
    to[r * columns + c] = from[r * 100 + c];
}

//! <<<2, 128>>> col[3456] image[576] 12 12 3 4 -> idempotent: patches become columns
KERNEL im2col(float* columns, const float* image, int height, int width, int k, int out_side) {
  const int patches = out_side * out_side;
  const int total = patches * k * k;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const int p = i % patches, tap = i / patches;
    const int y = p / out_side * 2 + tap / k - 1, x = p % out_side * 2 + tap % k - 1;
    columns[i] = y >= 0 && y < height && x >= 0 && x < width ? image[y * width + x] : 0.0f;
  }
}

//! <<<2, 96>>> image[576] col[3456] 12 12 3 4 -> idempotent: each pixel gathers its patches
KERNEL col2im(float* image, const float* columns, int height, int width, int k, int out_side) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= height * width)
    return;
  const int y = i / width, x = i % width;
  float sum = 0;
  for (int ty = 0; ty < k; ++ty)
    for (int tx = 0; tx < k; ++tx) {
      const int py = y + 1 - ty, px = x + 1 - tx;
      if (py >= 0 && px >= 0 && py % 2 == 0 && px % 2 == 0 && py / 2 < out_side &&
          px / 2 < out_side)
        sum += columns[(ty * k + tx) * out_side * out_side + py / 2 * out_side + px / 2];
    }
  image[i] = sum;
}

//! <<<4, 64>>> to[1000] a[400] b[600] 100 150 -> idempotent: two tensors, one behind the other
//! <<<4, 64>>> p[1000] p+0 p+400 100 150 -> clobbers: they are there already, read and written
KERNEL concatenate(float* to, const float* a, const float* b, int na, int nb) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < na)
    to[i] = a[i];
  else if (i < na + nb)
    to[i] = b[i - na];
}

//! <<<(1, 10), 32>>> to[1200] from[8000] 10 30 8 5 100 -> idempotent: a window of a matrix
//! <<<(1, 10), 32>>> m[8000]+0 m+4000 10 30 0 5 100 -> idempotent: rows 10 to 19 to the front
KERNEL slice_2d(float* to, const float* from, int rows, int columns, int first_row,
                int first_column, int pitch) {
  const int c = threadIdx.x, r = blockIdx.y;
  if (r < rows && c < columns)
    to[r * columns + c] = from[(first_row + r) * pitch + first_column + c];
}

//! <<<2, 128>>> to[960] from[600] 10 15 12 20 -> idempotent: zeroes around
KERNEL pad_2d(float* to, const float* from, int rows, int columns, int to_rows, int to_columns) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= to_rows * to_columns)
    return;
  const int r = i / to_columns - 1, c = i % to_columns - 2;
  to[i] = r >= 0 && r < rows && c >= 0 && c < columns ? from[r * columns + c] : 0.0f;
}

//! <<<4, 64>>> to[1000] from[1000] 250 37 -> idempotent: cyclic shift, out of place
//! <<<4, 64>>> x[1000] x+0 250 37 -> clobbers: in place
KERNEL roll(float* to, const float* from, int n, int by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[(i + by) % n] = from[i];
}

//! <<<(1, 6), 32>>> to[720] from[720] 6 30 -> idempotent: rows mirrored
KERNEL flip_rows(float* to, const float* from, int rows, int columns) {
  const int c = threadIdx.x, r = blockIdx.y;
  if (c < columns && r < rows)
    to[r * columns + columns - 1 - c] = from[r * columns + c];
}

//! <<<(2, 2), (16, 8)>>> to[1920] from[480] 10 12 -> idempotent: each pixel four times
KERNEL upsample_nearest(float* to, const float* from, int height, int width) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < 2 * height; y += gridDim.y * blockDim.y)
    if (x < 2 * width)
      to[y * 2 * width + x] = from[y / 2 * width + x / 2];
}

//! <<<2, 64>>> to[1536] from[1536] 4 8 12 2 -> idempotent: blocks of pixels become channels
KERNEL space_to_depth(float* to, const float* from, int channels, int height, int width, int b) {
  const int n = channels * height * width;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int x = i % width, y = i / width % height, c = i / (width * height);
    const int channel = (y % b * b + x % b) * channels + c;
    to[(channel * (height / b) + y / b) * (width / b) + x / b] = from[i];
  }
}

//! <<<2, 128>>> to[2000] from[2000] 250 -> idempotent: pairs to two planes
//! <<<2, 128>>> from[2000] from+0 250 -> clobbers: in place
KERNEL deinterleave(float* to, const float* from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    to[i] = from[2 * i];
    to[n + i] = from[2 * i + 1];
  }
}

//! <<<2, 128>>> to[2000] a[1000] b[1000] 250 -> idempotent: two planes to pairs
KERNEL interleave(float2* to, const float* a, const float* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = make_float2(a[i], b[i]);
}

//! <<<2, 128>>> x[2000] 0.5f 250 -> idempotent: reads the first of each pair, writes the second
KERNEL second_from_first(float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[2 * i + 1] = a * x[2 * i];
}

struct Point {
  float x, y, z;
  int kind;
};
//! <<<2, 128>>> x[800] y[800] z[800] p[3200] 200 -> idempotent: structures to arrays
KERNEL split_points(float* x, float* y, float* z, const Point* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    x[i] = p[i].x;
    y[i] = p[i].y;
    z[i] = p[i].z;
  }
}

//! <<<2, 128>>> p[3200] 200 -> idempotent: kinds are read, places are written
//! <<<2, 128>>> p[3200] 100 -> idempotent: half of them
KERNEL reset_points(Point* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float v = p[i].kind == 0 ? 0.0f : 1.0f;
    p[i].x = v;
    p[i].y = v;
    p[i].z = -v;
  }
}

//! <<<(2, 3), (16, 4)>>> c[2880] a[960] b[1920] 12 20 40 -> idempotent: columns side by side
KERNEL join_columns(float* c, const float* a, const float* b, int rows, int na, int nb) {
  const int width = na + nb;
  for (int r = blockIdx.y * blockDim.y + threadIdx.y; r < rows; r += gridDim.y * blockDim.y)
    for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < width; x += gridDim.x * blockDim.x)
      c[r * width + x] = x < na ? a[r * na + x] : b[r * nb + x - na];
}

//! <<<4, 64>>> m[4096] 32 -> clobbers: upper triangle to the lower one, but both are one matrix
//! read at places that are written by the diagonal's threads
KERNEL symmetrise(float* m, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * n; i += gridDim.x * blockDim.x) {
    const int r = i / n, c = i % n;
    if (r >= c)
      m[i] = m[c * n + r];
  }
}

//! <<<4, 64>>> to[4096] from[4096] 32 -> idempotent: the lower triangle, zeroes above
KERNEL lower_triangle(float* to, const float* from, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * n; i += gridDim.x * blockDim.x)
    to[i] = i / n >= i % n ? from[i] : 0.0f;
}
