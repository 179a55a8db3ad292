// SPDX-License-Identifier: Apache-2.0
// Layers of neural networks: normalisation, softmax, attention, pooling, losses, dropout.
#include "device.h"

//! <<<6, 64>>> y[2400] x[2400] 100 -> idempotent: three passes over each row
//! <<<6, 64>>> p[4800]+2400 p+0 100 -> idempotent: neighbours in one allocation
//! <<<6, 64>>> x[2400] x+0 100 -> clobbers: in place, and other threads' exponents are read again
KERNEL softmax_rows(float* y, const float* x, int columns) {
  const float* in = x + blockIdx.x * columns;
  float* out = y + blockIdx.x * columns;
  __shared__ float shared_max[2];
  float m = -1e30f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    m = fmaxf(m, in[c]);
  m = warp_max(m);
  if (threadIdx.x % 32 == 0)
    shared_max[threadIdx.x / 32] = m;
  __syncthreads();
  m = fmaxf(shared_max[0], shared_max[1]);
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    sum += fast_exp(in[c] - m);
  sum = block_sum(sum);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    out[c] = fast_exp(in[c] - m) / sum;
}

//! <<<2, 128>>> y[2400] x[2400] 6 100 -> idempotent: a warp for each row, one pass with a running
//! maximum
KERNEL softmax_online(float* __restrict__ y, const float* __restrict__ x, int rows, int columns) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows)
    return;
  float m = -1e30f, sum = 0;
  for (int c = lane; c < columns; c += 32) {
    const float v = x[row * columns + c];
    const float next = fmaxf(m, v);
    sum = sum * fast_exp(m - next) + fast_exp(v - next);
    m = next;
  }
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, m, d);
    const float other_sum = __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    const float next = fmaxf(m, other);
    sum = sum * fast_exp(m - next) + other_sum * fast_exp(other - next);
    m = next;
  }
  for (int c = lane; c < columns; c += 32)
    y[row * columns + c] = fast_exp(x[row * columns + c] - m) / sum;
}

//! <<<6, 32>>> y[2400] x[2400] 100 -> idempotent: what is read of y is what this thread put there
//! <<<6, 32>>> x[2400] x+0 100 -> clobbers: the input is y itself
KERNEL softmax_two_steps(float* y, const float* x, int columns) {
  const float* in = x + blockIdx.x * columns;
  float* out = y + blockIdx.x * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += 32) {
    const float e = fast_exp(in[c]);
    out[c] = e;
    sum += e;
  }
  sum = warp_sum(sum);
  for (int c = threadIdx.x; c < columns; c += 32)
    out[c] = out[c] / sum;
}

//! <<<6, 32>>> y[2400] x[2400] 100 -> idempotent: log of the softmax
KERNEL log_softmax(float* y, const float* x, int columns) {
  const size_t base = static_cast<size_t>(blockIdx.x) * columns;
  float m = -1e30f;
  for (int c = threadIdx.x; c < columns; c += warpSize)
    m = fmaxf(m, x[base + c]);
  m = warp_max(m);
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += warpSize)
    sum += fast_exp(x[base + c] - m);
  const float shift = m + fast_log(warp_sum(sum));
  for (int c = threadIdx.x; c < columns; c += warpSize)
    y[base + c] = x[base + c] - shift;
}

//! <<<8, 64>>> y[4096] x[4096] g[512] b[512] 128 -> idempotent: out of place
//! <<<8, 64>>> x[4096] x+0 g[512] b[512] 128 -> clobbers: in place
//! <<<8, 64>>> p[9216]+5120 p+0 p+4096 p+4608 128 -> idempotent: all in one allocation
KERNEL layer_norm(float* y, const float* x, const float* gain, const float* bias, int width) {
  const float* in = x + blockIdx.x * width;
  float sum = 0, squares = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const float v = in[c];
    sum += v;
    squares += v * v;
  }
  const float mean = block_sum(sum) / width;
  const float scale = rsqrtf(block_sum(squares) / width - mean * mean + 1e-5f);
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    y[blockIdx.x * width + c] = (in[c] - mean) * scale * gain[c] + bias[c];
}

//! <<<8, 32>>> y[4096] r[4096] x[4096] g[512] 32 -> clobbers: the residual stream is added to
KERNEL add_rms_norm(float4* y, float4* residual, const float4* x, const float4* gain, int vectors) {
  const int base = blockIdx.x * vectors + threadIdx.x;
  float4 v = residual[base];
  const float4 a = x[base];
  v.x += a.x;
  v.y += a.y;
  v.z += a.z;
  v.w += a.w;
  residual[base] = v;
  const float sum = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
  const float s = rsqrtf(sum / (4 * vectors) + 1e-6f);
  const float4 g = gain[threadIdx.x];
  y[base] = make_float4(v.x * s * g.x, v.y * s * g.y, v.z * s * g.z, v.w * s * g.w);
}

//! <<<8, 32>>> y[2048] x[2048] g[256] 128 -> idempotent: 16-bit data
//! <<<8, 32>>> p[4352]+2304 p+256 p+0 128 -> idempotent: all in one allocation
KERNEL rms_norm_half(half_bits* y, const half_bits* x, const half_bits* gain, int width) {
  float sum = 0;
  const half_bits* row = x + static_cast<size_t>(blockIdx.x) * width;
  for (int c = threadIdx.x; c < width; c += 32) {
    const float v = half_to_float(row[c]);
    sum += v * v;
  }
  const float s = rsqrtf(warp_sum(sum) / width + 1e-6f);
  for (int c = threadIdx.x; c < width; c += 32)
    y[static_cast<size_t>(blockIdx.x) * width + c] =
        float_to_half(half_to_float(row[c]) * s * half_to_float(gain[c]));
}

//! <<<(2, 3, 2), 64>>> y[2400] x[2400] m[12] v[12] g[12] b[12] 3 100 -> idempotent: inference
KERNEL batch_norm(float* y, const float* x, const float* mean, const float* variance,
                  const float* gain, const float* bias, int channels, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y;
  if (i >= size)
    return;
  const float scale = gain[c] * rsqrtf(fabsf(variance[c]) + 1e-5f);
  const int at = (blockIdx.z * channels + c) * size + i;
  y[at] = (x[at] - mean[c]) * scale + bias[c];
}

//! <<<3, 64>>> y[2400] x[2400] rm[12] rv[12] 2 3 100 0.1f -> clobbers: the running statistics move
KERNEL batch_norm_training(float* y, const float* x, float* running_mean, float* running_variance,
                           int batch, int channels, int size, float momentum) {
  const int c = blockIdx.x;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < batch * size; i += blockDim.x) {
    const float v = x[(i / size * channels + c) * size + i % size];
    sum += v;
    squares += v * v;
  }
  const float mean = block_sum(sum) / (batch * size);
  const float variance = block_sum(squares) / (batch * size) - mean * mean;
  for (int i = threadIdx.x; i < batch * size; i += blockDim.x) {
    const int at = (i / size * channels + c) * size + i % size;
    y[at] = (x[at] - mean) * rsqrtf(variance + 1e-5f);
  }
  if (threadIdx.x == 0) {
    running_mean[c] = (1 - momentum) * running_mean[c] + momentum * mean;
    running_variance[c] = (1 - momentum) * running_variance[c] + momentum * variance;
  }
}

//! <<<4, 128>>> y[2000] x[2000] 500 1234 0.1f -> idempotent: the mask is a function of seed and
//! place
//! <<<4, 128>>> x[2000] x+0 500 1234 0.1f -> clobbers: in place
KERNEL dropout_stateless(float* y, const float* x, int n, unsigned seed, float rate) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  unsigned h = seed ^ static_cast<unsigned>(i) * 0x9E3779B9u;
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  h ^= h >> 16;
  y[i] = h * (1.0f / 4294967296.0f) < rate ? 0.0f : x[i] / (1.0f - rate);
}

//! <<<2, 64>>> y[2000] x[2000] s[512] 500 0.1f -> clobbers: the generators' states move on
KERNEL dropout_with_state(float* y, const float* x, unsigned* state, int n, float rate) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned s = state[t];
  for (int i = t; i < n; i += gridDim.x * blockDim.x) {
    s ^= s << 13;
    s ^= s >> 17;
    s ^= s << 5;
    y[i] = (s >> 8) * (1.0f / 16777216.0f) < rate ? 0.0f : x[i];
  }
  state[t] = s;
}

//! <<<4, 128>>> gx[2000] gy[2000] m[500] 2.0f 500 -> idempotent: backwards by a stored mask
KERNEL dropout_backward(float* gx, const float* gy, const unsigned char* mask, float scale, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    gx[i] = mask[i] ? gy[i] * scale : 0.0f;
}

//! <<<6, 32>>> out[3072] table[12800] ids[48]=index8:25 128 -> idempotent: 64-bit ids
KERNEL embedding(float* out, const float* table, const long long* ids, int width) {
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    out[blockIdx.x * width + c] = table[ids[blockIdx.x] * width + c];
}

//! <<<6, 32>>> g[12800] gy[3072] ids[48]=index8:25 128 -> clobbers: gradients are summed by atomics
KERNEL embedding_backward(float* table_gradient, const float* gy, const long long* ids, int width) {
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    atomicAdd(&table_gradient[ids[blockIdx.x] * width + c], gy[blockIdx.x * width + c]);
}

//! <<<6, 32>>> loss[24] x[2400] t[24]=index:100 100 -> idempotent: a loss for each row
KERNEL cross_entropy(float* loss, const float* x, const int* target, int classes) {
  const float* row = x + blockIdx.x * classes;
  float sum = 0;
  for (int c = threadIdx.x; c < classes; c += 32)
    sum += fast_exp(row[c]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0)
    loss[blockIdx.x] = fast_log(sum) - row[target[blockIdx.x]];
}

//! <<<6, 32>>> x[2400] t[24]=index:100 100 -> clobbers: the gradient replaces the logits
KERNEL cross_entropy_backward(float* x, const int* target, int classes) {
  float* row = x + blockIdx.x * classes;
  float sum = 0;
  for (int c = threadIdx.x; c < classes; c += 32)
    sum += fast_exp(row[c]);
  sum = warp_sum(sum);
  for (int c = threadIdx.x; c < classes; c += 32)
    row[c] = fast_exp(row[c]) / sum - (c == target[blockIdx.x] ? 1.0f : 0.0f);
}

//! <<<(2, 2, 3), (8, 8)>>> s[3072] q[3072] k[3072] 16 16 0.25f -> idempotent: scores of all heads
KERNEL attention_scores(float* scores, const float* q, const float* k, int length, int depth,
                        float scale) {
  const int j = blockIdx.x * 8 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y, h = blockIdx.z;
  if (i >= length || j >= length)
    return;
  float sum = 0;
  for (int d = 0; d < depth; ++d)
    sum += q[(h * length + i) * depth + d] * k[(h * length + j) * depth + d];
  scores[(h * length + i) * length + j] = j <= i ? sum * scale : -1e30f;
}

//! <<<(4, 2), 32>>> out[4096] q[4096] k[4096] v[4096] 16 32 -> idempotent: queries tile by tile,
//! keys and values through shared memory
//! <<<(4, 2), 32>>> p[16384]+12288 p+0 p+4096 p+8192 16 32 -> idempotent: all in one allocation
//! <<<(4, 2), 32>>> q[4096] q+0 k[4096] v[4096] 16 32 -> clobbers: the output replaces the queries
KERNEL attention_flash(float* out, const float* q, const float* k, const float* v, int length,
                       int depth) {
  __shared__ float ks[4][32], vs[4][32];
  const int d = threadIdx.x, h = blockIdx.y;
  const size_t head = static_cast<size_t>(h) * length * depth;
  float acc[4] = {}, m[4], sum[4] = {};
  for (int r = 0; r < 4; ++r)
    m[r] = -1e30f;
  for (int j0 = 0; j0 < length; j0 += 4) {
    for (int j = 0; j < 4; ++j) {
      ks[j][d] = k[head + (j0 + j) * depth + d];
      vs[j][d] = v[head + (j0 + j) * depth + d];
    }
    __syncwarp();
    for (int r = 0; r < 4; ++r) {
      const int i = blockIdx.x * 4 + r;
      for (int j = 0; j < 4; ++j) {
        const float s = warp_sum(q[head + i * depth + d] * ks[j][d]) * 0.17f;
        const float next = fmaxf(m[r], s);
        const float scale = fast_exp(m[r] - next), p = fast_exp(s - next);
        sum[r] = sum[r] * scale + p;
        acc[r] = acc[r] * scale + p * vs[j][d];
        m[r] = next;
      }
    }
    __syncwarp();
  }
  for (int r = 0; r < 4; ++r)
    out[head + (blockIdx.x * 4 + r) * depth + d] = acc[r] / sum[r];
}

//! <<<3, 32>>> out[384] q[384] cache[24576] 10 32 -> idempotent: one query against the cache
KERNEL attention_decode(float* out, const float* q, const float* cache, int length, int depth) {
  const int h = blockIdx.x, d = threadIdx.x;
  const float* keys = cache + h * 2 * 32 * depth;
  const float* values = keys + 32 * depth;
  float acc = 0, sum = 0, m = -1e30f;
  for (int j = 0; j < length; ++j) {
    const float s = warp_sum(q[h * depth + d] * keys[j * depth + d]);
    const float next = fmaxf(m, s);
    acc = acc * fast_exp(m - next) + values[j * depth + d] * fast_exp(s - next);
    sum = sum * fast_exp(m - next) + fast_exp(s - next);
    m = next;
  }
  out[h * depth + d] = acc / sum;
}

//! <<<3, 32>>> cache[24576] k[384] v[384] 10 32 -> idempotent: one position of the cache is written
//! <<<3, 32>>> p[25344]+768 p+0 p+384 10 32 -> idempotent: the cache behind the new vectors
KERNEL cache_append(float* cache, const float* k, const float* v, int position, int depth) {
  const int h = blockIdx.x, d = threadIdx.x;
  cache[(h * 2 * 32 + position) * depth + d] = k[h * depth + d];
  cache[(h * 2 * 32 + 32 + position) * depth + d] = v[h * depth + d];
}

//! <<<4, 32>>> cache[16384] 10 32 -> idempotent: the last position is copied to the next one
//! <<<4, 32>>> cache[16384] 0 32 -> idempotent: the first one to the second
KERNEL cache_repeat_last(float* cache, int position, int depth) {
  float* head = cache + blockIdx.x * 32 * depth;
  head[(position + 1) * depth + threadIdx.x] = head[position * depth + threadIdx.x];
}

//! <<<(4, 3), 16>>> y[1536] x[1536] 32 7 -> idempotent: pairs are turned, out of place
//! <<<(4, 3), 16>>> x[1536] x+0 32 7 -> clobbers: in place
KERNEL rotary(float* y, const float* x, int depth, int position) {
  const int d = threadIdx.x, base = (blockIdx.x * gridDim.y + blockIdx.y) * depth;
  const float angle = static_cast<float>(position) / static_cast<float>(d + 1);
  const float c = 1.0f - 0.5f * angle * angle, s = angle;
  const float a = x[base + d], b = x[base + d + depth / 2];
  y[base + d] = a * c - b * s;
  y[base + d + depth / 2] = a * s + b * c;
}

//! <<<(1, 6), (8, 8)>>> y[1536] at[1536] x[6144] 16 16 -> idempotent: maxima and their places
KERNEL max_pool(float* y, int* places, const float* x, int height, int width) {
  const int c = blockIdx.y, px = threadIdx.x, py = threadIdx.y;
  const float* in = x + c * height * width;
  float best = -1e30f;
  int at = 0;
  for (int j = 0; j < 2; ++j)
    for (int i = 0; i < 2; ++i) {
      const int k = (2 * py + j) * width + 2 * px + i;
      if (in[k] > best) {
        best = in[k];
        at = k;
      }
    }
  const int o = (c * height / 2 + py) * (width / 2) + px;
  y[o] = best;
  places[o] = at;
}

//! <<<(1, 6), 64>>> gx[6144] gy[1536] at[1536]=index:256 256 64 -> clobbers: gradients are added to
//! places from memory
KERNEL max_pool_backward(float* gx, const float* gy, const int* places, int in_size, int out_size) {
  const int c = blockIdx.y, o = threadIdx.x;
  if (o < out_size)
    atomicAdd(&gx[c * in_size + places[c * out_size + o]], gy[c * out_size + o]);
}

//! <<<(2, 2, 4), (8, 8)>>> y[4096] x[3072] w[432] 3 16 16 -> idempotent: direct convolution
//! <<<(2, 2, 4), (8, 8)>>> p[7600]+0 p+4096 p+7168 3 16 16 -> idempotent: all in one allocation
KERNEL conv_3x3(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                int channels, int height, int width) {
  const int ox = blockIdx.x * 8 + threadIdx.x, oy = blockIdx.y * 8 + threadIdx.y, o = blockIdx.z;
  if (ox >= width || oy >= height)
    return;
  float sum = 0;
  for (int c = 0; c < channels; ++c)
    for (int j = -1; j <= 1; ++j)
      for (int i = -1; i <= 1; ++i) {
        const int ix = ox + i, iy = oy + j;
        if (ix >= 0 && iy >= 0 && ix < width && iy < height)
          sum +=
              w[((o * channels + c) * 3 + j + 1) * 3 + i + 1] * x[(c * height + iy) * width + ix];
      }
  y[(o * height + oy) * width + ox] = sum;
}

//! <<<2, 64>>> gx[400] x[400] gy[400] 100 -> idempotent: backwards through an activation
//! <<<2, 64>>> gy[400] x[400] gy+0 100 -> clobbers: the incoming gradient is overwritten
KERNEL silu_backward(float* gx, const float* x, const float* gy, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float s = 1.0f / (1.0f + fast_exp(-x[i]));
    gx[i] = gy[i] * s * (1.0f + x[i] * (1.0f - s));
  }
}

//! <<<2, 64>>> y[512] x[1024] 8 16 -> idempotent: gate and value are halves of each row
KERNEL gated_linear(float* y, const float* x, int rows, int width) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int r = i / width, c = i % width;
  if (r >= rows)
    return;
  const float g = x[r * 2 * width + c], v = x[r * 2 * width + width + c];
  y[i] = v * g / (1.0f + fast_exp(-g));
}

//! <<<6, 64>>> q[768] s[24] x[3072] 128 -> idempotent: 8-bit values and a scale for each row
KERNEL quantise_rows(signed char* q, float* scale, const float* x, int width) {
  __shared__ float parts[2];
  const float* row = x + blockIdx.x * width;
  float m = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    m = fmaxf(m, fabsf(row[c]));
  m = warp_max(m);
  if (threadIdx.x % 32 == 0)
    parts[threadIdx.x / 32] = m;
  __syncthreads();
  m = fmaxf(parts[0], parts[1]) + 1e-9f;
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    q[blockIdx.x * width + c] = static_cast<signed char>(row[c] / m * 127.0f);
  if (threadIdx.x == 0)
    scale[blockIdx.x] = m / 127.0f;
}
