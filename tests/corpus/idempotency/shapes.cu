// SPDX-License-Identifier: Apache-2.0
// Kernels in the shapes that programs have, for the analysis of addresses. Compiled by clang to PTX.
#include "common/device.h"

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

struct View {
  float* data;
  int rows, columns, pitch;
};
struct __attribute__((aligned(16))) Quad {
  float x, y, z, w;
};

KERNEL vector_add(float* c, const float* a, const float* b, unsigned n) {
  const unsigned i = INDEX;
  if (i < n)
    c[i] = a[i] + b[i];
}
KERNEL vector_add_signed(float* c, const float* a, const float* b, int n) {
  const int i = static_cast<int>(INDEX);
  if (i >= n)
    return;
  c[i] = a[i] + b[i];
}
KERNEL grid_stride(float* y, const float* x, float a, unsigned n) {
  for (unsigned i = INDEX; i < n; i += gridDim.x * blockDim.x)
    y[i] = a * x[i];
}
KERNEL grid_stride_signed(float* y, const float* x, float a, int n) {
  for (int i = static_cast<int>(INDEX); i < n; i += static_cast<int>(gridDim.x * blockDim.x))
    y[i] = a * x[i];
}
KERNEL grid_stride_wide(float* y, const float* x, float a, unsigned long n) {
  for (unsigned long i = static_cast<unsigned long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<unsigned long>(gridDim.x) * blockDim.x)
    y[i] = a * x[i];
}
KERNEL chunk_of_four(float* y, const float* x, int n) {
  const int first = static_cast<int>(INDEX) * 4;
  for (int k = 0; k < 4; ++k)
    if (first + k < n)
      y[first + k] = x[first + k] + 1;
}
KERNEL quads(Quad* y, const Quad* x, int n) {
  const int i = static_cast<int>(INDEX);
  if (i < n / 4) {
    Quad q = x[i];
    q.x += q.w;
    y[i] = q;
  }
}
KERNEL transpose(float* to, const float* from, int rows, int columns) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x < columns && y < rows)
    to[x * rows + y] = from[y * columns + x];
}
KERNEL stencil_clamped(float* to, const float* from, int n) {
  const int i = static_cast<int>(INDEX);
  if (i >= n)
    return;
  const int left = i > 0 ? i - 1 : 0, right = i < n - 1 ? i + 1 : n - 1;
  to[i] = from[left] + from[i] + from[right];
}
KERNEL heat(float* out, const float* in, int width, int height) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x >= width || y >= height)
    return;
  const int i = y * width + x;
  const float here = in[i];
  if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
    out[i] = here;
    return;
  }
  out[i] = here + in[i - 1] + in[i + 1] + in[i - width] + in[i + width];
}
KERNEL volume(float* out, const float* in, int nx, int ny, int nz) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  const int z = static_cast<int>(blockIdx.z * blockDim.z + threadIdx.z);
  if (x < nx && y < ny && z < nz)
    out[(z * ny + y) * nx + x] = 2 * in[(z * ny + y) * nx + x];
}
KERNEL pitched(View to, View from) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x < to.columns && y < to.rows)
    to.data[y * to.pitch + x] = from.data[y * from.pitch + x];
}
KERNEL row_loop(float* out, const float* in, int columns) {
  const int row = static_cast<int>(blockIdx.x);
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x))
    sum += in[row * columns + c];
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x))
    out[row * columns + c] = in[row * columns + c] - sum;
}
KERNEL pointer_loop(float* out, const float* in, int per_thread) {
  const float* p = in + INDEX * per_thread;
  const float* end = p + per_thread;
  float sum = 0;
  while (p < end)
    sum += *p++;
  out[INDEX] = sum;
}
KERNEL reversed(float* out, const float* in, int n) {
  const int i = static_cast<int>(INDEX);
  if (i < n)
    out[n - 1 - i] = in[i];
}
KERNEL even_to_odd(float* x, int n) {
  const int i = static_cast<int>(INDEX);
  if (2 * i + 1 < n)
    x[2 * i + 1] = x[2 * i];
}
KERNEL left_to_right(float* m, int width, int height, int pitch) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x < width && y < height)
    m[y * pitch + width + x] = m[y * pitch + x];
}
KERNEL gather(float* out, const float* in, const int* index, int n) {
  const int i = static_cast<int>(INDEX);
  if (i < n)
    out[i] = in[index[i]];
}
KERNEL by_quotient(float* out, const float* in, int width, int height) {
  const int i = static_cast<int>(INDEX);
  if (i >= width * height)
    return;
  const int y = i / width, x = i % width;
  out[x * height + y] = in[y * width + x];
}
KERNEL by_quotient_unsigned(float* out, const float* in, unsigned width, unsigned n) {
  const unsigned i = INDEX;
  if (i >= n)
    return;
  const unsigned y = i / width, x = i - y * width;
  out[i] = in[y * width + x];
}
KERNEL chunks(float* out, const float* in, int n, int chunk) {
  const int start = static_cast<int>(INDEX) * chunk;
  const int end = start + chunk < n ? start + chunk : n;
  for (int i = start; i < end; ++i)
    out[i] = in[i] * 3;
}
KERNEL matrix_product(float* c, const float* a, const float* b, int n) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (row >= n || column >= n)
    return;
  float sum = 0;
  for (int k = 0; k < n; ++k)
    sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}
KERNEL accumulate(float* c, const float* a, int n, int terms) {
  const int i = static_cast<int>(INDEX);
  if (i >= n)
    return;
  volatile float* to = c + i;
  *to = 0;
  for (int k = 0; k < terms; ++k)
    *to = *to + a[i];
}
KERNEL shifted(float* out, const float* in, int n, long offset) {
  const int i = static_cast<int>(INDEX);
  if (i < n)
    out[i + offset] = in[i];
}
KERNEL downwards(float* out, const float* in, int n) {
  for (int i = n - 1 - static_cast<int>(INDEX); i >= 0;
       i -= static_cast<int>(gridDim.x * blockDim.x))
    out[i] = in[i];
}
KERNEL bytes(unsigned char* out, const unsigned char* table, const unsigned char* in, int n) {
  const int i = static_cast<int>(INDEX);
  if (i < n)
    out[i] = table[in[i]];
}
KERNEL one_of_two(float* a, float* b, const float* in, int n, int which) {
  const int i = static_cast<int>(INDEX);
  float* to = which ? a : b;
  if (i < n)
    to[i] = in[i];
}
KERNEL inner_points(float* out, const float* in, int n) {
  const int i = static_cast<int>(INDEX);
  if (static_cast<unsigned>(i - 1) < static_cast<unsigned>(n - 2) && n > 2)
    out[i] = in[i - 1] + in[i + 1];
}
KERNEL increments(float* out, const float* in, int n, int out_step, int in_step) {
  const int i = static_cast<int>(INDEX);
  if (i < n)
    out[i * out_step] = in[i * in_step];
}
KERNEL until_found(int* out, const int* in, int n) {
  const int i = static_cast<int>(INDEX);
  int k = 0;
  while (k < n && in[k] != i)
    ++k;
  if (i < n)
    out[i] = k;
}
KERNEL halving(float* out, const float* in, int n) {
  float sum = 0;
  for (int s = n / 2; s > 0; s >>= 1)
    sum += in[s - 1];
  if (INDEX == 0)
    out[0] = sum;
}
KERNEL nested(float* out, const float* in, int rows, int columns) {
  for (int y = static_cast<int>(blockIdx.x); y < rows; y += static_cast<int>(gridDim.x))
    for (int x = static_cast<int>(threadIdx.x); x < columns; x += static_cast<int>(blockDim.x))
      out[y * columns + x] = in[y * columns + x];
}
KERNEL powers(float* out, const float* in, unsigned n, unsigned shift) {
  const unsigned i = INDEX;
  const unsigned high = i >> shift, low = i & ((1u << shift) - 1);
  if (i < n)
    out[i] = in[(high << shift) | low];
}
KERNEL tiled_rows(float* out, const float* in, int rows, int columns) {
  for (int first = 0; first < columns; first += 8) {
    const int x = first + static_cast<int>(threadIdx.x), y = static_cast<int>(blockIdx.x);
    if (y < rows && x < columns)
      out[x * rows + y] = in[y * columns + x];
  }
}
KERNEL histogram(unsigned* bins, const unsigned char* in, int n) {
  for (int i = static_cast<int>(INDEX); i < n; i += static_cast<int>(gridDim.x * blockDim.x))
    atomicAdd(&bins[in[i]], 1);
}
KERNEL first_thread(float* out, const float* in, int n) {
  if (threadIdx.x == 0)
    out[blockIdx.x] = in[blockIdx.x * n];
}
