// SPDX-License-Identifier: Apache-2.0
// Stencils, ping-pong between two grids, and image filters.
#include "device.h"

//! <<<4, 128>>> out[2000] in[2000] 500 -> idempotent: halo by shared memory
//! <<<4, 128>>> p[4000]+2000 p+0 500 -> idempotent: the two grids in one allocation
//! <<<4, 128>>> p[4000]+0 p+2000 500 -> idempotent: the next step of the ping-pong
//! <<<4, 128>>> x[2000] x+0 500 -> clobbers: in place
KERNEL jacobi_1d(float* out, const float* in, int n) {
  __shared__ float tile[130];
  const int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x + 1;
  tile[t] = i < n ? in[i] : 0.0f;
  if (threadIdx.x == 0)
    tile[0] = i > 0 ? in[i - 1] : 0.0f;
  if (threadIdx.x == 127)
    tile[129] = i + 1 < n ? in[i + 1] : 0.0f;
  __syncthreads();
  if (i < n)
    out[i] = 0.25f * tile[t - 1] + 0.5f * tile[t] + 0.25f * tile[t + 1];
}

//! <<<(2, 3), (16, 8)>>> out[2400] in[2400] 30 20 0.1f -> idempotent: the inner points
//! <<<(2, 3), (16, 8)>>> p[4800]+2400 p+0 30 20 0.1f -> idempotent: the two grids in one allocation
//! <<<(2, 3), (16, 8)>>> x[2400] x+0 30 20 0.1f -> clobbers: in place
KERNEL heat_2d(float* out, const float* in, int width, int height, float k) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x > 0 && x < width - 1 && y > 0 && y < height - 1) {
    const int i = y * width + x;
    out[i] = in[i] + k * (in[i - 1] + in[i + 1] + in[i - width] + in[i + width] - 4.0f * in[i]);
  }
}

//! <<<(1, 2), (16, 8)>>> out[5760] in[5760] 12 10 12 -> idempotent: planes one after the other
KERNEL laplace_3d(float* out, const float* in, int nx, int ny, int nz) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= nx - 1 || y >= ny - 1)
    return;
  const int plane = nx * ny;
  int i = y * nx + x;
  float below = in[i], here = in[i + plane];
  for (int z = 1; z < nz - 1; ++z) {
    i += plane;
    const float above = in[i + plane];
    out[i] = here +
             0.1f * (below + above + in[i - 1] + in[i + 1] + in[i - nx] + in[i + nx] - 6.0f * here);
    below = here;
    here = above;
  }
}

//! <<<2, 128>>> u[800] v[800] 200 0.1f -> clobbers: the old field, two steps back, is overwritten
KERNEL wave_step(float* previous, const float* current, int n, float c) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 1 && i < n - 1)
    previous[i] =
        2.0f * current[i] - previous[i] + c * (current[i - 1] - 2.0f * current[i] + current[i + 1]);
}

//! <<<2, 128>>> w[800] u[800] v[800] 200 0.1f -> idempotent: the new field has its own memory
//! <<<2, 128>>> u[800] u+0 v[800] 200 0.1f -> clobbers: it takes the place of the oldest
KERNEL wave_step_three(float* next, const float* previous, const float* current, int n, float c) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 1 && i < n - 1)
    next[i] =
        2.0f * current[i] - previous[i] + c * (current[i - 1] - 2.0f * current[i] + current[i + 1]);
}

//! <<<(1, 4), (16, 8)>>> u[2048] 16 32 0 -> idempotent: red points from black ones only
//! <<<(1, 4), (16, 8)>>> u[2048] 16 32 1 -> idempotent: black points from red ones only
KERNEL red_black(float* u, int width, int height, int colour) {
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int x = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + ((y + colour) & 1);
  if (x > 0 && x < width - 1 && y > 0 && y < height - 1) {
    const int i = y * width + x;
    u[i] = 0.25f * (u[i - 1] + u[i + 1] + u[i - width] + u[i + width]);
  }
}

//! <<<(1, 4), (16, 8)>>> u[2048] f[2048] 16 32 0 1.5f -> clobbers: with relaxation the point itself
//! enters
KERNEL red_black_sor(float* u, const float* f, int width, int height, int colour, float omega) {
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int x = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + ((y + colour) & 1);
  if (x > 0 && x < width - 1 && y > 0 && y < height - 1) {
    const int i = y * width + x;
    const float r = u[i - 1] + u[i + 1] + u[i - width] + u[i + width] - 4.0f * u[i] - f[i];
    u[i] += omega * 0.25f * r;
  }
}

__constant__ float filter_taps[9] = {0.05f, 0.1f, 0.15f, 0.2f, 0.25f, 0.1f, 0.08f, 0.05f, 0.02f};

//! <<<(2, 6), 64>>> out[2400] in[2400] 100 6 -> idempotent: taps in constant memory
//! <<<(2, 6), 64>>> p[4800]+0 p+2400 100 6 -> idempotent: neighbours in one allocation
KERNEL convolve_rows(float* out, const float* in, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= width || y >= height)
    return;
  float sum = 0;
  for (int k = -4; k <= 4; ++k) {
    const int at = min(max(x + k, 0), width - 1);
    sum += filter_taps[k + 4] * in[y * width + at];
  }
  out[y * width + x] = sum;
}

//! <<<(2, 1), (64, 4)>>> out[2400] in[2400] 100 6 -> idempotent: the same for columns
KERNEL convolve_columns(float* out, const float* in, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  if (x >= width)
    return;
  for (int y = threadIdx.y; y < height; y += blockDim.y) {
    float sum = 0;
    for (int k = -4; k <= 4; ++k) {
      const int at = y + k;
      if (at >= 0 && at < height)
        sum += filter_taps[k + 4] * in[at * width + x];
    }
    out[y * width + x] = sum;
  }
}

//! <<<(2, 2), (16, 16)>>> out[3600] in[3600] k[36] 30 30 -> idempotent: tile with a rim of one
KERNEL convolve_2d_tiled(float* out, const float* in, const float* kernel, int width, int height) {
  __shared__ float tile[18][18];
  const int x0 = blockIdx.x * 16 - 1, y0 = blockIdx.y * 16 - 1;
  for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) {
    const int x = x0 + i % 18, y = y0 + i / 18;
    tile[i / 18][i % 18] = x >= 0 && x < width && y >= 0 && y < height ? in[y * width + x] : 0.0f;
  }
  __syncthreads();
  const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x < width && y < height) {
    float sum = 0;
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 3; ++k)
        sum += kernel[j * 3 + k] * tile[threadIdx.y + j][threadIdx.x + k];
    out[y * width + x] = sum;
  }
}

//! <<<(2, 4), (32, 4)>>> out[960] in[960] 60 16 2 -> idempotent: bytes, window clamped at the edges
//! <<<(2, 4), (32, 4)>>> in[960] in+0 60 16 2 -> clobbers: in place
KERNEL box_blur_bytes(unsigned char* out, const unsigned char* in, int width, int height, int r) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height)
    return;
  int sum = 0, count = 0;
  for (int v = max(y - r, 0); v <= min(y + r, height - 1); ++v)
    for (int u = max(x - r, 0); u <= min(x + r, width - 1); ++u) {
      sum += in[v * width + u];
      ++count;
    }
  out[y * width + x] = static_cast<unsigned char>(sum / count);
}

//! <<<(2, 4), (32, 4)>>> out[960] in[960] 60 16 -> idempotent: gradients of bytes
KERNEL sobel(unsigned char* out, const unsigned char* in, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height)
    return;
  int v = 0;
  if (x > 0 && y > 0 && x + 1 < width && y + 1 < height) {
    const unsigned char* p = in + y * width + x;
    const int gx =
        p[1 - width] + 2 * p[1] + p[1 + width] - p[-1 - width] - 2 * p[-1] - p[-1 + width];
    const int gy =
        p[width - 1] + 2 * p[width] + p[width + 1] - p[-width - 1] - 2 * p[-width] - p[-width + 1];
    v = min((gx < 0 ? -gx : gx) + (gy < 0 ? -gy : gy), 255);
  }
  out[y * width + x] = static_cast<unsigned char>(v);
}

//! <<<(4, 4), (8, 8)>>> out[1024] in[1024] 32 -> idempotent: a torus, by remainders
//! <<<(4, 4), (8, 8)>>> p[2048]+1024 p+0 32 -> idempotent: two boards in one allocation
KERNEL game_of_life(unsigned char* out, const unsigned char* in, int n) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n)
    return;
  int alive = 0;
  for (int dy = -1; dy <= 1; ++dy)
    for (int dx = -1; dx <= 1; ++dx)
      if (dx != 0 || dy != 0)
        alive += in[(y + dy + n) % n * n + (x + dx + n) % n] & 1;
  out[y * n + x] = alive == 3 || (alive == 2 && (in[y * n + x] & 1) != 0);
}

//! <<<(2, 2), (16, 8)>>> ez[2048] hx[2048] hy[2048] 32 16 0.5f -> clobbers: the field is updated
KERNEL fdtd_e(float* ez, const float* hx, const float* hy, int width, int height, float c) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x > 0 && y > 0 && x < width && y < height) {
    const int i = y * width + x;
    ez[i] += c * (hy[i] - hy[i - 1] - hx[i] + hx[i - width]);
  }
}

//! <<<2, 64>>> out[3600] in[3600] 100 -> idempotent: nine populations stream in from neighbours
//! <<<2, 64>>> p[7200]+3600 p+0 100 -> idempotent: both sets in one allocation
KERNEL lattice_stream(float* out, const float* in, int cells) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= cells)
    return;
  const int x = c % 10, y = c / 10;
#pragma unroll
  for (int d = 0; d < 9; ++d) {
    const int sx = (x - (d % 3 - 1) + 10) % 10, sy = (y - (d / 3 - 1) + 10) % 10;
    out[d * cells + c] = in[d * cells + sy * 10 + sx];
  }
}

//! <<<1, 64>>> left[256] right[256] u[4096] 16 64 -> idempotent: border columns into send buffers
KERNEL pack_halo(float* left, float* right, const float* u, int width, int height) {
  const int y = blockIdx.x * blockDim.x + threadIdx.x;
  if (y < height) {
    left[y] = u[y * width + 1];
    right[y] = u[y * width + width - 2];
  }
}

//! <<<1, 64>>> u[4096] left[256] right[256] 16 64 -> idempotent: only written
//! <<<1, 64>>> u[4608] u+4096 u+4352 16 64 -> idempotent: buffers behind the grid
KERNEL unpack_halo(float* u, const float* left, const float* right, int width, int height) {
  const int y = blockIdx.x * blockDim.x + threadIdx.x;
  if (y < height) {
    u[y * width] = left[y];
    u[y * width + width - 1] = right[y];
  }
}

//! <<<1, 64>>> u[4096] 16 64 -> idempotent: outer columns from the ones beside them
KERNEL mirror_boundary(float* u, int width, int height) {
  const int y = blockIdx.x * blockDim.x + threadIdx.x;
  if (y < height) {
    u[y * width] = u[y * width + 1];
    u[y * width + width - 1] = u[y * width + width - 2];
  }
}

//! <<<(2, 4), (8, 4)>>> out[960] in[3840] 16 15 -> idempotent: averages of four
KERNEL restrict_half(float* coarse, const float* fine, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < width && y < height) {
    const float* p = fine + 2 * y * 2 * width + 2 * x;
    coarse[y * width + x] = 0.25f * (p[0] + p[1] + p[2 * width] + p[2 * width + 1]);
  }
}

//! <<<(4, 4), (8, 8)>>> fine[3840] coarse[960] 32 30 -> clobbers: the correction is added
KERNEL prolong_add(float* fine, const float* coarse, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < width && y < height)
    fine[y * width + x] += coarse[y / 2 * (width / 2) + x / 2];
}
