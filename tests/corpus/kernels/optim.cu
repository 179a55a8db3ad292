// SPDX-License-Identifier: Apache-2.0
// Optimizers, and kernels that work on many tensors by a structure of pointers.
#include "device.h"

//! <<<4, 128>>> w[2000] g[2000] 0.01f 500 -> clobbers: weights are updated
KERNEL sgd(float* w, const float* g, float rate, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    w[i] -= rate * g[i];
}

//! <<<4, 128>>> to[2000] w[2000] g[2000] 0.01f 500 -> idempotent: new weights in another buffer
//! <<<4, 128>>> p[6000]+4000 p+0 p+2000 0.01f 500 -> idempotent: all in one allocation
KERNEL sgd_to(float* to, const float* w, const float* g, float rate, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = w[i] - rate * g[i];
}

//! <<<4, 128>>> w[2000] m[2000] g[2000] 0.01f 0.9f 500 -> clobbers: weights and momentum
KERNEL sgd_momentum(float* w, float* m, const float* g, float rate, float momentum, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float v = momentum * m[i] + g[i];
    m[i] = v;
    w[i] -= rate * v;
  }
}

struct AdamOptions {
  float rate, beta1, beta2, epsilon, decay, correction1, correction2;
};
//! <<<2, 128>>> w[2000] m[2000] v[2000] g[2000] {0.001f 0.9f 0.99f 1e-8f 0.01f 0.1f 0.01f} 500 ->
//! clobbers: weights and both moments
KERNEL adam_w(float* w, float* m, float* v, const float* g, AdamOptions o, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float gradient = g[i];
    const float first = o.beta1 * m[i] + (1 - o.beta1) * gradient;
    const float second = o.beta2 * v[i] + (1 - o.beta2) * gradient * gradient;
    m[i] = first;
    v[i] = second;
    w[i] = w[i] * (1 - o.rate * o.decay) -
           o.rate * (first / o.correction1) / (sqrtf(second / o.correction2) + o.epsilon);
  }
}

//! <<<2, 128>>> w1[2000] m1[2000] v1[2000] w[2000] m[2000] v[2000] g[2000] {0.001f 0.9f 0.99f 1e-8f
//! 0.01f 0.1f 0.01f} 500 -> idempotent: the functional form, new state apart from the old one
KERNEL adam_functional(float* w1, float* m1, float* v1, const float* w, const float* m,
                       const float* v, const float* g, AdamOptions o, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float first = o.beta1 * m[i] + (1 - o.beta1) * g[i];
    const float second = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
    m1[i] = first;
    v1[i] = second;
    w1[i] = w[i] - o.rate * first / (sqrtf(second) + o.epsilon);
  }
}

//! <<<2, 128>>> e[2000] w[2000] 0.99f 500 -> clobbers: a moving average
KERNEL moving_average(float* average, const float* w, float decay, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = i; k < n; k += gridDim.x * blockDim.x)
    average[k] = decay * average[k] + (1 - decay) * w[k];
}

//! <<<2, 256>>> g[2000] norm[4] 1.0f 500 -> clobbers: gradients are scaled by a norm from memory
KERNEL clip_by_norm(float* g, const float* norm, float limit, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float scale = fminf(limit / (*norm + 1e-6f), 1.0f);
  if (i < n)
    g[i] *= scale;
}

//! <<<2, 256>>> to[2000] g[2000] inf[4]=zero 0.5f 500 -> idempotent: the flag is only set
//! <<<2, 256>>> g[2000] g+0 inf[4]=zero 0.5f 500 -> clobbers: gradients in place
KERNEL unscale(float* to, const float* g, float* found_infinite, float scale, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float v = g[i] * scale;
    if (!(fabsf(v) < 1e38f))
      *found_infinite = 1.0f;
    to[i] = v;
  }
}

//! <<<2, 128>>> w[1000] master[2000] g[1000] 0.1f 500 -> clobbers: master weights; the 16-bit copy
//! is only written
KERNEL sgd_master(half_bits* w, float* master, const half_bits* g, float rate, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const float v = master[i] - rate * half_to_float(g[i]);
    master[i] = v;
    w[i] = float_to_half(v);
  }
}

//! <<<4, 64>>> part[16] w[2000] u[2000] 500 -> idempotent: norms for a trust ratio
KERNEL lamb_norms(float* part, const float* w, const float* update, int n) {
  float a = 0, b = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    a += w[i] * w[i];
    b += update[i] * update[i];
  }
  a = block_sum(a);
  b = block_sum(b);
  if (threadIdx.x == 0)
    part[blockIdx.x] = sqrtf(a) / (sqrtf(b) + 1e-6f);
}

// --- Many tensors in one launch ---

struct TensorList {
  float* data[8];
  int size[8];
  int count;
};
//! <<<3, 64>>> {a[400] b[800] c[1200] null null null null null 100 200 300 0 0 0 0 0 3} ->
//! idempotent: all are set to zero
KERNEL zero_many(TensorList list) {
  const int t = blockIdx.x;
  if (t >= list.count)
    return;
  for (int i = threadIdx.x; i < list.size[t]; i += blockDim.x)
    list.data[t][i] = 0.0f;
}

//! <<<3, 64>>> {a[400] b[800] c[1200] null null null null null 100 200 300 0 0 0 0 0 3} 0.5f ->
//! clobbers: all are scaled where they are
KERNEL scale_many(TensorList list, float scale) {
  const int t = blockIdx.x;
  float* x = list.data[t];
  for (int i = threadIdx.x; i < list.size[t]; i += blockDim.x)
    x[i] *= scale;
}

struct TensorPairs {
  const float* from[4];
  float* to[4];
  int size[4];
};
//! <<<3, 64>>> {a[400] b[800] c[1200] null d[400] e[800] f[1200] null 100 200 300 0} 2.0f ->
//! idempotent: sources and targets are apart
//! <<<3, 64>>> {a[400] b[800] c[1200] null a+0 e[800] f[1200] null 100 200 300 0} 2.0f -> clobbers:
//! the first is its own target
//! <<<3, 64>>> {p[4800]+0 p+400 p+1200 null p+2400 p+2800 p+3600 null 100 200 300 0} 2.0f ->
//! idempotent: a flat buffer of parameters, one of results behind it
KERNEL scale_pairs(TensorPairs pairs, float scale) {
  const int t = blockIdx.x, n = pairs.size[t];
  const float* from = pairs.from[t];
  float* to = pairs.to[t];
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    to[i] = from[i] * scale;
}

struct Chunks {
  void* addresses[2][6];
  int sizes[6];
  unsigned char block_to_tensor[16];
  int block_to_chunk[16];
};
//! <<<5, 64>>> {a[1000] b[600] null null null null c[1000] d[600] null null null null 250 150 0 0 0
//! 0 0b 0b 0b 1b 1b 0b 0b 0b 0b 0b 0b 0b 0b 0b 0b 0b 0 1 2 0 1 0 0 0 0 0 0 0 0 0 0 0} 3.0f ->
//! idempotent: chunks of tensors, as multi-tensor appliers make them
//! <<<5, 64>>> {a[1000] b[600] null null null null a+0 b+0 null null null null 250 150 0 0 0 0
//! 0b 0b 0b 1b 1b 0b 0b 0b 0b 0b 0b 0b 0b 0b 0b 0b 0 1 2 0 1 0 0 0 0 0 0 0 0 0 0 0} 3.0f ->
//! clobbers: in place
KERNEL multi_tensor_scale(Chunks chunks, float scale) {
  const int tensor = chunks.block_to_tensor[blockIdx.x];
  const int first = chunks.block_to_chunk[blockIdx.x] * 100;
  const int n = min(chunks.sizes[tensor] - first, 100);
  const float* in = static_cast<const float*>(chunks.addresses[0][tensor]) + first;
  float* out = static_cast<float*>(chunks.addresses[1][tensor]) + first;
#pragma unroll 2
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    out[i] = in[i] * scale;
}

//! <<<2, 64>>> pw[16]=pointers:w0:w1 pg[16]=pointers:g0:g1 0.1f 100 w0[400] w1[400] g0[400] g1[400]
//! -> unknown-ok: pointers come from a table in memory
KERNEL sgd_by_table(float* const* w, const float* const* g, float rate, int n) {
  float* weights = w[blockIdx.x];
  const float* gradients = g[blockIdx.x];
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    weights[i] -= rate * gradients[i];
}

//! <<<4, 64>>> out[16] {a[400] b[800] c[1200] d[200] null null null null 100 200 300 50 0 0 0 0 4}
//! -> idempotent: a norm for each tensor
KERNEL norms_many(float* out, TensorList list) {
  const int t = blockIdx.x;
  float sum = 0;
  for (int i = threadIdx.x; i < list.size[t]; i += blockDim.x)
    sum += list.data[t][i] * list.data[t][i];
  sum = block_sum(sum);
  if (threadIdx.x == 0)
    out[t] = sqrtf(sum);
}

struct Fixed {
  float* out;
  const float* a;
  const float* b;
  int n;
  float scale;
};
//! <<<2, 64>>> {c[400] a[400] b[400] 100 2.0f} -> idempotent: pointers in a structure, not indexed
//! <<<2, 64>>> {a[400] a+0 b[400] 100 2.0f} -> clobbers: in place
//! <<<2, 64>>> {p[1200]+400 p+0 p+800 100 2.0f} -> idempotent: neighbours in one allocation
KERNEL add_by_struct(Fixed f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < f.n)
    f.out[i] = f.a[i] + f.scale * f.b[i];
}
