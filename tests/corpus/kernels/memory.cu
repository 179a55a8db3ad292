// SPDX-License-Identifier: Apache-2.0
// Setting and copying memory, temporaries in global memory, interleaved and neighbouring data.
#include "device.h"

//! <<<2, 64>>> p[1000] 250 7u -> idempotent: only written
KERNEL set_words(unsigned* p, int n, unsigned value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    p[i] = value;
}

//! <<<2, 64>>> p[1003] 1003l 7u -> idempotent: vectors of 16 bytes, then bytes
KERNEL set_bytes(unsigned char* p, size_t n, unsigned value) {
  const size_t t = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  const unsigned word = (value & 255) * 0x01010101u;
  for (size_t i = t; i < n / 16; i += stride)
    reinterpret_cast<uint4*>(p)[i] = make_uint4(word, word, word, word);
  for (size_t i = n / 16 * 16 + t; i < n; i += stride)
    p[i] = static_cast<unsigned char>(value);
}

//! <<<2, 64>>> to[2005] from[2005] 2005l -> idempotent: vectors of 16 bytes, then bytes
//! <<<2, 64>>> p[4096]+2048 p+0 2005l -> idempotent: the target behind the source
//! <<<2, 64>>> p[4096]+1024 p+0 2005l -> clobbers: they overlap
KERNEL copy_bytes(unsigned char* to, const unsigned char* from, size_t n) {
  const size_t t = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = t; i < n / 16; i += stride)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  for (size_t i = n / 16 * 16 + t; i < n; i += stride)
    to[i] = from[i];
}

//! <<<2, 32>>> to[4096] from[4096] 256 -> idempotent: four vectors in flight for each thread
KERNEL copy_unrolled(uint4* __restrict__ to, const uint4* __restrict__ from, int n) {
  const int t = threadIdx.x + blockIdx.x * blockDim.x * 4;
  uint4 v[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (t + k * 32 < n)
      v[k] = from[t + k * 32];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (t + k * 32 < n)
      to[t + k * 32] = v[k];
}

//! <<<(2, 3), (16, 4)>>> to[1920] from[3072] 160l 256l 120 12 -> idempotent: two pitches
KERNEL copy_pitched(char* to, const char* from, size_t to_pitch, size_t from_pitch, int width,
                    int height) {
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (y < height)
    for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < width; x += gridDim.x * blockDim.x)
      to[y * to_pitch + x] = from[y * from_pitch + x];
}

//! <<<2, 64>>> p[800] 100 -> idempotent: a pattern of 8 bytes
KERNEL fill_pairs(int2* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    p[i] = make_int2(i, -i);
}

//! <<<2, 64>>> out[400] tmp[400] in[400] 100 -> idempotent: a temporary that each thread writes
//! before it reads it
//! <<<2, 64>>> p[1200]+0 p+400 p+800 100 -> idempotent: all in one allocation
//! <<<2, 64>>> out[400] in[400] in+0 100 -> clobbers: the temporary is the input
KERNEL own_temporary(float* out, volatile float* tmp, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    tmp[i] = in[i] * in[i];
    out[i] = tmp[i] + 1.0f;
  }
}

//! <<<3, 64>>> out[768] tmp[768] in[768] -> idempotent: a block's own part of a temporary, written
//! whole before a barrier and read after it
KERNEL block_temporary(float* out, volatile float* tmp, const float* in) {
  const int base = blockIdx.x * blockDim.x, t = threadIdx.x;
  tmp[base + t] = 2.0f * in[base + t];
  __syncthreads();
  out[base + t] = tmp[base + (t + 1) % blockDim.x];
}

//! <<<2, 64>>> c[400] a[4000] 100 10 -> idempotent: set to zero, then summed into by the same
//! thread
//! <<<2, 64>>> p[4400]+4000 p+0 100 10 -> idempotent: behind the data in one allocation
KERNEL zero_then_accumulate(volatile float* c, const float* a, int n, int each) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  c[i] = 0.0f;
  for (int k = 0; k < each; ++k)
    c[i] = c[i] + a[k * n + i];
}

//! <<<2, 32>>> out[256] scratch[4096] in[256] 16 -> idempotent: an array of each thread in global
//! memory, filled before it is read
KERNEL thread_scratch(float* out, float* scratch, const float* in, int each) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  float* mine = scratch + t * each;
  for (int k = 0; k < each; ++k)
    mine[k] = in[t] + k;
  __threadfence_block();
  float sum = 0;
  for (int k = each - 1; k >= 0; --k)
    sum += mine[k] * mine[k ^ 1];
  out[t] = sum;
}

//! <<<2, 64>>> ring[4096] in[512] 3 8 -> idempotent: one slot of a ring is written
//! <<<2, 64>>> ring[4096] ring+0 3 8 -> idempotent: the first slot is copied to the fourth
//! <<<2, 64>>> ring[4096] ring+0 0 8 -> clobbers: onto itself
KERNEL push_to_ring(float* ring, const float* in, int slot, int slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  ring[slot % slots * 128 + i] = in[i];
}

//! <<<2, 64>>> buf[1024] 128 0 -> idempotent: the first half to the second one
//! <<<2, 64>>> buf[1024] 128 1 -> idempotent: and back
KERNEL swap_roles(float* both, int half, int phase) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float* from = both + (phase != 0 ? half : 0);
  float* to = both + (phase != 0 ? 0 : half);
  if (i < half)
    to[i] = from[i] * 0.5f;
}

//! <<<2, 64>>> x[1600] 100 -> idempotent: fields 0 and 1 of four are read, 2 and 3 written
KERNEL fields_of_four(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float2 v = reinterpret_cast<const float2*>(x)[2 * i];
    reinterpret_cast<float2*>(x)[2 * i + 1] = make_float2(v.x + v.y, v.x - v.y);
  }
}

//! <<<2, 64>>> x[1600] 100 4 2 -> idempotent: column 0 to column 2
//! <<<2, 64>>> x[1600] 100 4 0 -> clobbers: column 0 to itself
KERNEL column_to_column(float* x, int rows, int pitch, int column) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < rows)
    x[r * pitch + column] = x[r * pitch] + 1.0f;
}

//! <<<3, 64>>> p[3072] 64 4 -> idempotent: each block reads tensor 0 of its group and writes tensor
//! 1 to 3
KERNEL replicate_in_group(float* p, int width, int group) {
  float* base = p + blockIdx.x * group * width;
  const float v = base[threadIdx.x];
  for (int k = 1; k < group; ++k)
    base[k * width + threadIdx.x] = v;
}

//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: bytes in reverse order
KERNEL swap_endian(unsigned* out, const unsigned* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const unsigned v = in[i];
    out[i] = v << 24 | (v << 8 & 0xFF0000u) | (v >> 8 & 0xFF00u) | v >> 24;
  }
}

//! <<<1, 32>>> out[128] in[1024] -> idempotent: registers spill to an indexed local array
KERNEL local_array(float* out, const float* in) {
  float v[8];
  for (int k = 0; k < 8; ++k)
    v[k] = in[threadIdx.x * 8 + k];
  int at = 0;
  for (int k = 0; k < 8; ++k)
    if (v[k] > v[at])
      at = k;
  for (int k = 0; k < at; ++k)
    v[(at + k) & 7] += v[k];
  out[threadIdx.x] = v[at];
}

//! <<<2, 32>>> out[64] in[512] 64 -> idempotent: bits are packed by ballots
KERNEL pack_bits(unsigned* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned bits = __ballot_sync(0xFFFFFFFFu, i < n && in[i] > 0.0f);
  if (threadIdx.x == 0)
    out[blockIdx.x] = bits;
}

//! <<<2, 64>>> out[300] in[100] 100 -> idempotent: three bytes for each one
//! <<<2, 64>>> p[400]+100 p+0 100 -> idempotent: behind the source
KERNEL grey_to_rgb(unsigned char* out, const unsigned char* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    out[3 * i] = in[i];
    out[3 * i + 1] = in[i];
    out[3 * i + 2] = in[i];
  }
}

struct Header {
  int magic, version, count, flags;
};
//! <<<1, 32>>> h[16] sizes[128] 32 -> idempotent: a header is written by one thread
KERNEL write_header(Header* h, const int* sizes, int n) {
  int v = static_cast<int>(threadIdx.x) < n ? sizes[threadIdx.x] & 255 : 0;
  for (int d = 16; d > 0; d /= 2)
    v += __shfl_down_sync(0xFFFFFFFFu, v, d);
  if (threadIdx.x == 0)
    *h = {0x1234, 1, v, 0};
}

//! <<<1, 32>>> h[144] -> idempotent: the header says how much is to be set; it lies before the data
KERNEL clear_after_header(Header* h) {
  float* data = reinterpret_cast<float*>(h + 1);
  for (unsigned i = threadIdx.x; i < (static_cast<unsigned>(h->count) & 31u); i += 32)
    data[i] = 0.0f;
}

//! <<<2, 64>>> out[1200] a[400] b[400] c[400] 100 -> idempotent: one loop over three inputs
KERNEL stack_three(float* out, const float* a, const float* b, const float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < 3; ++k) {
    const float* from = k == 0 ? a : k == 1 ? b : c;
    if (i < n)
      out[k * n + i] = from[i];
  }
}

//! <<<2, 64>>> x[400] y[400] 100 -> clobbers: two buffers are exchanged
KERNEL swap_buffers(float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float t = x[i];
    x[i] = y[i];
    y[i] = t;
  }
}
