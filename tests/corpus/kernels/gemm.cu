// SPDX-License-Identifier: Apache-2.0
// Dense products: matrix by matrix in several schemes, matrix by vector, triangular ones.
#include "device.h"

//! <<<(3, 2), (16, 16)>>> c[4800] a[3000] b[4000] 30 40 25 1.0f 0.0f -> idempotent: beta is 0, c is
//! not read
//! <<<(3, 2), (16, 16)>>> c[4800] a[3000] b[4000] 30 40 25 1.0f 0.5f -> clobbers: c enters
KERNEL gemm_beta(float* c, const float* a, const float* b, int m, int n, int k, float alpha,
                 float beta) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n)
    return;
  float sum = 0;
  for (int i = 0; i < k; ++i)
    sum += a[row * k + i] * b[i * n + column];
  if (beta == 0.0f)
    c[row * n + column] = alpha * sum;
  else
    c[row * n + column] = alpha * sum + beta * c[row * n + column];
}

//! <<<(3, 2), (16, 16)>>> c[4800] a[3000] b[4000] 30 40 25 -> idempotent: c = a b
//! <<<(3, 2), (16, 16)>>> p[11800]+7000 p+0 p+3000 30 40 25 -> idempotent: all in one allocation
//! <<<(2, 2), (16, 16)>>> a[2500] a+0 b[2500] 25 25 25 -> clobbers: c is a
KERNEL gemm_naive(float* c, const float* a, const float* b, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < m && column < n) {
    float sum = 0;
    for (int i = 0; i < k; ++i)
      sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
  }
}

//! <<<(3, 2), (16, 16)>>> c[4800] a[3000] b[4000] 30 40 25 -> idempotent: tiles with edges
//! <<<(3, 2), (16, 16)>>> p[11800]+0 p+4800 p+7800 30 40 25 -> idempotent: all in one allocation
KERNEL gemm_tiled(float* c, const float* a, const float* b, int m, int n, int k) {
  __shared__ float ta[16][16], tb[16][17];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int column = blockIdx.x * 16 + tx, row = blockIdx.y * 16 + ty;
  float sum = 0;
  for (int t = 0; t < (k + 15) / 16; ++t) {
    const int ka = t * 16 + tx, kb = t * 16 + ty;
    ta[ty][tx] = row < m && ka < k ? a[row * k + ka] : 0.0f;
    tb[ty][tx] = kb < k && column < n ? b[kb * n + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < 16; ++i)
      sum += ta[ty][i] * tb[i][tx];
    __syncthreads();
  }
  if (row < m && column < n)
    c[row * n + column] = sum;
}

//! <<<(2, 2), 64>>> c[16384] a[8192] b[8192] 64 64 32 -> idempotent: registers of 4 by 4, vectors
//! <<<(2, 2), 64>>> p[32768]+16384 p+0 p+8192 64 64 32 -> idempotent: all in one allocation
KERNEL gemm_vectorised(float* __restrict__ c, const float* __restrict__ a,
                       const float* __restrict__ b, int m, int n, int k) {
  __shared__ float ta[8][32];
  __shared__ float tb[8][32];
  const int t = threadIdx.x, tx = t % 8, ty = t / 8;
  const int row0 = blockIdx.y * 32, column0 = blockIdx.x * 32;
  float sums[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += 8) {
    const float4 va = *reinterpret_cast<const float4*>(&a[(row0 + t / 2) * k + k0 + t % 2 * 4]);
    ta[t % 2 * 4 + 0][t / 2] = va.x;
    ta[t % 2 * 4 + 1][t / 2] = va.y;
    ta[t % 2 * 4 + 2][t / 2] = va.z;
    ta[t % 2 * 4 + 3][t / 2] = va.w;
    *reinterpret_cast<float4*>(&tb[t / 8][t % 8 * 4]) =
        *reinterpret_cast<const float4*>(&b[(k0 + t / 8) * n + column0 + t % 8 * 4]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int y = 0; y < 4; ++y)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          sums[y][x] += ta[i][ty * 4 + y] * tb[i][tx * 4 + x];
    __syncthreads();
  }
#pragma unroll
  for (int y = 0; y < 4; ++y)
    if (row0 + ty * 4 + y < m)
      *reinterpret_cast<float4*>(&c[(row0 + ty * 4 + y) * n + column0 + tx * 4]) =
          make_float4(sums[y][0], sums[y][1], sums[y][2], sums[y][3]);
}

//! <<<(2, 1, 4), (16, 16)>>> c[1920] a[3840] b[7680] 16 30 60 -> clobbers: slices add to c
KERNEL gemm_split_k_atomic(float* c, const float* a, const float* b, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int slice = (k + gridDim.z - 1) / gridDim.z;
  if (row >= m || column >= n)
    return;
  float sum = 0;
  for (int i = blockIdx.z * slice; i < min(k, static_cast<int>(blockIdx.z + 1) * slice); ++i)
    sum += a[row * k + i] * b[i * n + column];
  atomicAdd(&c[row * n + column], sum);
}

//! <<<(2, 1, 4), (16, 16)>>> w[7680] a[3840] b[7200] 16 30 60 -> idempotent: a workspace by slices
//! <<<(2, 1, 4), (16, 16)>>> p[18720]+11040 p+0 p+3840 16 30 60 -> idempotent: all in one
//! allocation
KERNEL gemm_split_k_workspace(float* workspace, const float* a, const float* b, int m, int n,
                              int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n)
    return;
  const int slice = k / gridDim.z;
  const int first = blockIdx.z * slice;
  float sum = 0;
  for (int i = 0; i < slice; ++i)
    sum += a[row * k + first + i] * b[(first + i) * n + column];
  workspace[(blockIdx.z * m + row) * n + column] = sum;
}

//! <<<4, 128>>> c[1920] w[7680] 480 4 -> idempotent: the slices are summed
//! <<<4, 128>>> p[9600]+7680 p+0 480 4 -> idempotent: the result behind the workspace
//! <<<4, 128>>> w[7680] w+0 480 4 -> clobbers: into the first slice
KERNEL split_k_finish(float* c, const float* workspace, int count, int slices) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count)
    return;
  float sum = 0;
  for (int s = 0; s < slices; ++s)
    sum += workspace[s * count + i];
  c[i] = sum;
}

//! <<<(1, 1, 5), (8, 8)>>> c[1280] a[1280] b[1280] 8 64l 64l 64l -> idempotent: strided batch
//! <<<(1, 1, 5), (8, 8)>>> c[1280] a[1280] b[256] 8 64l 0l 64l -> idempotent: one b for all
//! <<<(1, 1, 4), (8, 8)>>> p[3840]+0 p+256 p+512 8 192l 192l 192l -> idempotent: a, b and c of each
//! product side by side
KERNEL gemm_batched(float* c, const float* a, const float* b, int n, long long stride_a,
                    long long stride_b, long long stride_c) {
  a += blockIdx.z * stride_a;
  b += blockIdx.z * stride_b;
  c += blockIdx.z * stride_c;
  const int x = threadIdx.x, y = threadIdx.y;
  float sum = 0;
  for (int i = 0; i < n; ++i)
    sum += a[y * n + i] * b[i * n + x];
  c[y * n + x] = sum;
}

//! <<<3, (8, 8)>>> pc[24]=pointers:c:c2:c3 pa[24]=pointers:a:a2:a3 pb[24]=pointers:b 8 b[256]
//! c[256] c2[256] c3[256] a[256] a2[256] a3[256] -> unknown-ok: matrices by pointers from memory
KERNEL gemm_pointer_batch(float* const* c, const float* const* a, const float* const* b, int n) {
  const int x = threadIdx.x, y = threadIdx.y;
  const float* pa = a[blockIdx.x];
  const float* pb = b[blockIdx.x];
  float sum = 0;
  for (int i = 0; i < n; ++i)
    sum += pa[y * n + i] * pb[i * n + x];
  c[blockIdx.x][y * n + x] = sum;
}

//! <<<10, 64>>> y[40] m[4000] x[400] 10 100 -> idempotent: a block for each row
//! <<<10, 64>>> p[4440]+4400 p+0 p+4000 10 100 -> idempotent: all in one allocation
//! <<<10, 64>>> x[400] m[4000] x+0 10 100 -> clobbers: the result replaces the vector
KERNEL gemv_rows(float* y, const float* m, const float* x, int rows, int columns) {
  const int row = blockIdx.x;
  if (row >= rows)
    return;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    sum += m[row * columns + c] * x[c];
  sum = block_sum(sum);
  if (threadIdx.x == 0)
    y[row] = sum;
}

//! <<<3, 128>>> y[40] m[4160] x[416] 10 104 -> idempotent: a warp for each row, vectors of four
KERNEL gemv_warp_float4(float* y, const float* m, const float* x, int rows, int columns) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (warp >= rows)
    return;
  const float4* row = reinterpret_cast<const float4*>(m + warp * columns);
  float sum = 0;
  for (int c = lane; c < columns / 4; c += 32) {
    const float4 a = row[c], b = reinterpret_cast<const float4*>(x)[c];
    sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
  }
  sum = warp_sum(sum);
  if (lane == 0)
    y[warp] = sum;
}

//! <<<2, 64>>> y[400] m[4000] x[40] 10 100 1.0f 0.0f -> idempotent: transposed, y overwritten
//! <<<2, 64>>> y[400] m[4000] x[40] 10 100 1.0f 1.0f -> clobbers: y accumulates
KERNEL gemv_transposed(float* y, const float* m, const float* x, int rows, int columns, float alpha,
                       float beta) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= columns)
    return;
  float sum = 0;
  for (int r = 0; r < rows; ++r)
    sum += m[r * columns + c] * x[r];
  y[c] = alpha * sum + (beta != 0.0f ? beta * y[c] : 0.0f);
}

//! <<<(2, 2), (16, 16)>>> c[3600] a[1200] 30 10 -> idempotent: the lower triangle of a a'
KERNEL syrk_lower(float* c, const float* a, int n, int k) {
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row >= n || column > row)
    return;
  float sum = 0;
  for (int i = 0; i < k; ++i)
    sum += a[row * k + i] * a[column * k + i];
  c[row * n + column] = sum;
}

//! <<<1, 32>>> l[1024] b[2048] 16 32 -> clobbers: right-hand sides are solved where they are
KERNEL solve_lower(const float* l, float* b, int n, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= columns)
    return;
  for (int r = 0; r < n; ++r) {
    float v = b[r * columns + c];
    for (int i = 0; i < r; ++i)
      v -= l[r * n + i] * b[i * columns + c];
    b[r * columns + c] = v / (l[r * n + r] + 2.0f);
  }
}

//! <<<(2, 2), (16, 16)>>> a[3600] x[120] y[120] 30 30 -> clobbers: a rank-one update
KERNEL rank_one_update(float* a, const float* x, const float* y, int m, int n) {
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row < m && column < n)
    a[row * n + column] += x[row] * y[column];
}

//! <<<(2, 2), (16, 16)>>> c[3600] x[120] y[120] 30 30 -> idempotent: the outer product alone
//! <<<(2, 2), (16, 16)>>> p[3840]+240 p+0 p+120 30 30 -> idempotent: all in one allocation
KERNEL outer_product(float* c, const float* x, const float* y, int m, int n) {
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row < m && column < n)
    c[row * n + column] = x[row] * y[column];
}

//! <<<(3, 2), (16, 16)>>> c[4800] a[3000] b[4000] bias[160] r[4800] 30 40 25 -> idempotent: bias
//! and a residual from elsewhere
//! <<<(3, 2), (16, 16)>>> r[4800] a[3000] b[4000] bias[160] r+0 30 40 25 -> clobbers: the residual
//! is the output
KERNEL gemm_bias_residual(float* c, const float* a, const float* b, const float* bias,
                          const float* residual, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n)
    return;
  float sum = bias[column];
  for (int i = 0; i < k; ++i)
    sum += a[row * k + i] * b[i * n + column];
  c[row * n + column] = fmaxf(sum, 0.0f) + residual[row * n + column];
}

//! <<<(1, 2), (16, 16)>>> c[1024] a[256] b[256] s[4] 16 16 16 -> idempotent: 8-bit integers, scaled
KERNEL gemm_int8(float* c, const signed char* a, const signed char* b, const float* scale, int m,
                 int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n)
    return;
  int sum = 0;
  for (int i = 0; i < k; ++i)
    sum += a[row * k + i] * b[column * k + i];
  c[row * n + column] = sum * scale[0];
}

//! <<<2, 32>>> m[1024] 16 3 -> clobbers: one step of an elimination, in place
KERNEL eliminate_column(float* m, int n, int pivot) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = pivot + 1 + i / n, column = i % n;
  if (row < n && column > pivot)
    m[row * n + column] -=
        m[row * n + pivot] / (m[pivot * n + pivot] + 2.0f) * m[pivot * n + column];
}
