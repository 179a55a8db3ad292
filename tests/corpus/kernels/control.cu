// SPDX-License-Identifier: Apache-2.0
// Control flow, device functions, templates, structures by value, calls.
#include "device.h"

//! <<<2, 64>>> out[400] in[400] 100 0 -> idempotent: an operation by its number
//! <<<2, 64>>> x[400] x+0 100 2 -> clobbers: in place
KERNEL apply_operation(float* out, const float* in, int n, int operation) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  float v = in[i];
  switch (operation) {
    case 0:
      v = -v;
      break;
    case 1:
      v = fabsf(v);
      break;
    case 2:
      v = v * v;
      break;
    case 3:
      v = sqrtf(fabsf(v));
      break;
    case 4:
      v = fast_exp(v);
      break;
    case 5:
      v = v > 0 ? v : 0.1f * v;
      break;
    case 6:
      v = 1.0f / (v + 2.0f);
      break;
    default:
      v = 0;
  }
  out[i] = v;
}

//! <<<2, 64>>> a[400] b[400] c[400] 100 0 -> idempotent: a to b
//! <<<2, 64>>> a[400] b[400] c[400] 100 1 -> idempotent: b to c
//! <<<2, 64>>> a[400] b[400] c[400] 100 2 -> clobbers: c is doubled where it is
KERNEL stages(float* a, float* b, float* c, int n, int stage) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  switch (stage) {
    case 0:
      b[i] = a[i] + 1.0f;
      break;
    case 1:
      c[i] = b[i] * 3.0f;
      break;
    default:
      c[i] *= 2.0f;
  }
}

//! <<<(4, 4), (8, 8)>>> out[4096] 32 32 20 -> idempotent: the number of passes depends on the point
KERNEL mandelbrot(int* out, int width, int height, int limit) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height)
    return;
  const float cx = 3.0f * x / width - 2.0f, cy = 2.0f * y / height - 1.0f;
  float a = 0, b = 0;
  int k = 0;
  while (k < limit && a * a + b * b < 4.0f) {
    const float t = a * a - b * b + cx;
    b = 2 * a * b + cy;
    a = t;
    ++k;
  }
  out[y * width + x] = k;
}

//! <<<2, 64>>> steps[400] 100 -> idempotent: a loop whose end no one knows
KERNEL collatz(int* steps, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  unsigned v = i + 1;
  int k = 0;
  while (v != 1 && k < 1000) {
    v = v % 2 == 0 ? v / 2 : 3 * v + 1;
    ++k;
  }
  steps[i] = k;
}

//! <<<2, 64>>> at[400] x[6400] 100 16 -> idempotent: leaves the loop at the first match
KERNEL find_first(int* at, const int* x, int rows, int columns) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows)
    return;
  int found = -1;
  for (int c = 0; c < columns; ++c) {
    if (x[r * columns + c] < 0) {
      found = c;
      break;
    }
  }
  at[r] = found;
}

//! <<<1, 32>>> packed[1984] m[4096] 32 -> idempotent: a triangle, packed
KERNEL pack_triangle(float* packed, const float* m, int n) {
  const int c = threadIdx.x;
  for (int r = 0; r < n - 1; ++r) {
    if (c > r && c < n)
      packed[r * (2 * n - r - 1) / 2 + c - r - 1] = m[r * n + c];
  }
}

static __device__ __noinline__ float weigh(const float* x, int n, int from) {
  float sum = 0;
  for (int k = 0; k < n; ++k)
    sum += x[from + k] * (k + 1);
  return sum;
}
//! <<<2, 64>>> out[400] x[416] 100 -> idempotent: a device function that is called, and reads
//! <<<2, 64>>> x[800] x+0 100 -> clobbers: into its own input
KERNEL by_called_reader(float* out, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = weigh(x, 4, i);
}

static __device__ __noinline__ void put_pair(float* to, float a, float b) {
  to[0] = a;
  to[1] = b;
}
//! <<<2, 64>>> out[800] x[400] 100 -> idempotent: a device function that is called, and writes
//! <<<2, 64>>> p[1200]+400 p+0 100 -> idempotent: neighbours in one allocation
KERNEL by_called_writer(float* out, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    put_pair(out + 2 * i, x[i], -x[i]);
}

static __device__ __noinline__ void accumulate(float* to, const float* from, int n) {
  for (int k = threadIdx.x; k < n; k += blockDim.x)
    to[k] += from[k];
}
//! <<<1, 64>>> y[400] x[400] 100 -> clobbers: the called function reads what it writes
KERNEL by_called_updater(float* y, const float* x, int n) {
  accumulate(y, x, n);
}

static __device__ int depth_of(const int* parent, int at, int limit) {
  if (limit == 0 || parent[at] == at)
    return 0;
  return 1 + depth_of(parent, parent[at], limit - 1);
}
//! <<<2, 32>>> out[200] parent[200]=index:50 50 -> idempotent: recursion; a refusal would be
//! honest, but the right answer is this
KERNEL by_recursion(int* out, const int* parent, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = depth_of(parent, i, 5);
}

using Operation = float (*)(float);
static __device__ float twice(float v) {
  return 2 * v;
}
static __device__ float square(float v) {
  return v * v;
}
static __device__ float negate(float v) {
  return -v;
}
__device__ Operation operations[3] = {twice, square, negate};
//! <<<2, 64>>> out[400] in[400] 100 1 -> unknown-ok: calls through a table of functions; what runs
//! there is not in the code
KERNEL by_function_pointer(float* out, const float* in, int n, int which) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = operations[which](in[i]);
}

template <class T, int kEach, class F>
static __device__ __forceinline__ void transform(T* out, const T* in, int n, F f) {
  const int base = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (base + k < n)
      out[base + k] = f(in[base + k]);
}
struct Affine {
  float a, b;
  __device__ float operator()(float v) const { return a * v + b; }
};
//! <<<2, 32>>> out[1000] in[1000] 250 {2.0f 1.0f} -> idempotent: a template with a functor by value
//! <<<2, 32>>> x[1000] x+0 250 {2.0f 1.0f} -> clobbers: in place
KERNEL transform_affine(float* out, const float* in, int n, Affine f) {
  transform<float, 4>(out, in, n, f);
}
//! <<<2, 32>>> out[1600] in[1600] 200 7l -> idempotent: a template with a lambda that captures
KERNEL transform_lambda(long long* out, const long long* in, int n, long long add) {
  transform<long long, 4>(out, in, n, [=] __device__(long long v) { return v * v + add; });
}

template <class T, unsigned kBlock>
__global__ void reduce_template(T* out, const T* in, unsigned n) {
  __shared__ T part[kBlock];
  T v = 0;
  for (unsigned i = blockIdx.x * kBlock + threadIdx.x; i < n; i += kBlock * gridDim.x)
    v += in[i];
  part[threadIdx.x] = v;
  __syncthreads();
#pragma unroll
  for (unsigned s = kBlock / 2; s > 0; s /= 2) {
    if (threadIdx.x < s)
      part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0)
    out[blockIdx.x] = part[0];
}
//! @name _Z15reduce_templateIfLj64EEvPT_PKS0_j
//! <<<3, 64>>> out[12] in[4000] 1000 -> idempotent: an instantiated template, floats
template __global__ void reduce_template<float, 64>(float*, const float*, unsigned);
//! @name _Z15reduce_templateIdLj128EEvPT_PKS0_j
//! <<<3, 128>>> out[24] in[4000] 500 -> idempotent: the same for doubles
//! <<<3, 128>>> p[4024]+4000 p+0 500 -> idempotent: behind its input in one allocation
//! <<<3, 128>>> x[4000] x+0 500 -> clobbers: over its input
template __global__ void reduce_template<double, 128>(double*, const double*, unsigned);

struct Weights {
  float w[16];
};
//! <<<2, 64>>> out[400] in[400] 100 {1f 2f 3f 4f 5f 6f 7f 8f 9f 10f 11f 12f 13f 14f 15f 16f} ->
//! idempotent: an array inside a structure, indexed at run time
KERNEL weigh_by_struct(float* out, const float* in, int n, Weights w) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = in[i] * w.w[__float_as_uint(in[i]) % 16];
}

struct Ray {
  float origin[3], direction[3];
};
struct Sphere {
  float centre[3], radius;
};
static __device__ bool hit(const Ray& ray, const Sphere& s, float& t) {
  float b = 0, c = -s.radius * s.radius;
  for (int k = 0; k < 3; ++k) {
    const float o = ray.origin[k] - s.centre[k];
    b += o * ray.direction[k];
    c += o * o;
  }
  const float d = b * b - c;
  if (d < 0)
    return false;
  t = -b - sqrtf(d);
  return t > 0;
}
//! <<<(2, 2), (8, 8)>>> image[1024] spheres[160] 10 16 -> idempotent: rays against a few spheres
KERNEL trace_rays(float* image, const Sphere* spheres, int count, int side) {
  const int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  if (x >= side || y >= side)
    return;
  const Ray ray = {{0, 0, -2}, {x * 0.1f - 0.8f, y * 0.1f - 0.8f, 1}};
  float nearest = 1e30f;
  for (int k = 0; k < count; ++k) {
    float t;
    const Sphere s = spheres[k];
    if (hit(ray, s, t) && t < nearest)
      nearest = t;
  }
  image[y * side + x] = nearest < 1e30f ? 1.0f / (1.0f + nearest) : 0.0f;
}

//! <<<4, 64>>> force[3200] body[3200] 200 -> idempotent: all pairs, through a shared tile
//! <<<4, 64>>> p[6400]+0 p+3200 200 -> idempotent: neighbours in one allocation
KERNEL n_body_forces(float4* force, const float4* body, int n) {
  __shared__ float4 tile[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float4 me = i < n ? body[i] : make_float4(0, 0, 0, 0);
  float4 sum = make_float4(0, 0, 0, 0);
  for (int first = 0; first < n; first += 64) {
    const int j = first + threadIdx.x;
    tile[threadIdx.x] = j < n ? body[j] : make_float4(0, 0, 0, 0);
    __syncthreads();
    for (int k = 0; k < 64; ++k) {
      const float dx = tile[k].x - me.x, dy = tile[k].y - me.y, dz = tile[k].z - me.z;
      const float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
      const float s = tile[k].w * inverse * inverse * inverse;
      sum.x += dx * s;
      sum.y += dy * s;
      sum.z += dz * s;
    }
    __syncthreads();
  }
  if (i < n)
    force[i] = sum;
}

//! <<<3, 64>>> out[1200] in[1200] work[4]=zero 300 -> clobbers: blocks take work by a counter
KERNEL persistent_blocks(float* out, const float* in, int* next, int n) {
  __shared__ int first;
  for (;;) {
    if (threadIdx.x == 0)
      first = atomicAdd(next, 64);
    __syncthreads();
    const int base = first;
    __syncthreads();
    if (base >= n)
      return;
    const int i = base + threadIdx.x;
    if (i < n)
      out[i] = 2.0f * in[i];
  }
}

//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: two roles in one block
KERNEL two_warp_roles(float* out, const float* in, int n) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int base = blockIdx.x * 32; base < n; base += gridDim.x * 32) {
    if (warp == 0)
      tile[lane] = base + lane < n ? in[base + lane] : 0.0f;
    __syncthreads();
    if (warp == 1 && base + lane < n)
      out[base + lane] = tile[lane] + tile[31 - lane];
    __syncthreads();
  }
}

//! <<<6, 32>>> out[768] in[768] 2 3 -> idempotent: block indices are folded to two dimensions
KERNEL swizzled_blocks(float* out, const float* in, int rows, int columns) {
  const int r = blockIdx.x % rows, c = blockIdx.x / rows;
  const int i = (r * columns + c) * 32 + threadIdx.x;
  out[i] = in[i] + 1.0f;
}

//! <<<2, 64>>> out[400] 100 -> unknown-ok: device printf
KERNEL print_some(float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = i;
  if (i == 3)
    printf("element %d\n", i);
}

//! <<<1, 8>>> out[32] 4 -> unknown-ok: memory from the device heap
KERNEL with_heap(int* out, int n) {
  int* mine = static_cast<int*>(malloc(n * sizeof(int)));
  if (mine == nullptr)
    return;
  int sum = 0;
  for (int k = 0; k < n; ++k)
    mine[k] = k + threadIdx.x;
  for (int k = 0; k < n; ++k)
    sum += mine[k];
  free(mine);
  out[threadIdx.x] = sum;
}

//! <<<2, 64>>> out[400] in[400] 100 -> idempotent: an assertion ends the kernel or does nothing
KERNEL with_assert(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  assert(n > 0);
  if (i < n)
    out[i] = in[i];
}

//! <<<2, 64>>> out[400] in[400] 100 0 -> idempotent: writes only where a loop was left early
//! <<<2, 64>>> x[400] x+0 100 0 -> clobbers: in place
KERNEL leave_by_goto(float* out, const float* in, int n, int skip) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v;
  if (i >= n)
    goto done;
  v = in[i];
  for (int k = 0; k < 8; ++k) {
    v *= 0.5f;
    if (v > 100.0f)
      goto done;
    if (k == 5 + skip)
      break;
  }
  out[i] = v;
done:
  return;
}

//! <<<2, 64>>> out[400] in[400] 3 7 100 -> idempotent: coefficients of a polynomial in a local
//! array
KERNEL polynomial(float* out, const float* in, int a, int b, int n) {
  const float c[5] = {1.0f, 0.5f * a, -0.25f * b, 0.125f, 2.0f};
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  float v = 0;
  for (int k = 4; k >= 0; --k)
    v = v * in[i] + c[k];
  out[i] = v;
}

//! <<<2, 32>>> price[256] 100.0f 0.2f 16 -> idempotent: a tree in local memory
KERNEL option_tree(float* price, float spot, float up, int steps) {
  float v[17];
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k <= steps; ++k)
    v[k] = fmaxf(spot * (1.0f + up * (2 * k - steps)) - 100.0f - t, 0.0f);
  for (int s = steps; s > 0; --s)
    for (int k = 0; k < s; ++k)
      v[k] = 0.5f * (v[k] + v[k + 1]);
  price[t] = v[0];
}
