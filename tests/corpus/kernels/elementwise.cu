// SPDX-License-Identifier: Apache-2.0
// One output for each input, in the forms that programs and frameworks write them.
#include "device.h"

//! <<<4, 256>>> c[4000] a[4000] b[4000] 1000 -> idempotent: c is apart from a and b
//! <<<4, 256>>> a[4000] a+0 b[4000] 1000 -> clobbers: c is a, so a is summed into itself
//! <<<4, 256>>> p[12000]+8000 p+0 p+4000 1000 -> idempotent: neighbours in one allocation
//! <<<4, 256>>> p[12000]+2000 p+0 p+6000 1000 -> clobbers: c covers the second half of a
KERNEL vector_add(float* c, const float* a, const float* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    c[i] = a[i] + b[i];
}

//! <<<2, 128>>> y[4000] x[4000] 2.5f 1000 -> clobbers: y is read and rewritten
//! <<<2, 128>>> p[8000]+4000 p+0 2.5f 1000 -> clobbers: the same inside one allocation
KERNEL saxpy(float* y, const float* x, float a, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    y[i] = a * x[i] + y[i];
}

//! <<<3, 64>>> y[4000] x[4000] 2.5f 1000l -> idempotent: y is only written
//! <<<3, 64>>> p[8000]+4000 p+0 2.5f 1000l -> idempotent: neighbours in one allocation
//! <<<3, 64>>> p[8000]+3996 p+0 2.5f 1000l -> clobbers: y begins with x's last element
KERNEL scale_grid_stride(float* __restrict__ y, const float* __restrict__ x, float a, size_t n) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
    y[i] = a * x[i];
}

//! <<<2, 128>>> y[2000] x[2000] 250 -> idempotent: y is apart from x
//! <<<2, 128>>> x[2000] x+0 250 -> clobbers: in place
KERNEL conjugate_float2(float2* y, const float2* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float2 v = x[i];
    y[i] = make_float2(v.x, -v.y);
  }
}

//! <<<2, 64>>> y[2012] x[2012] 3.0f 503 -> idempotent: vectors, then a tail of three
//! <<<2, 64>>> p[4032]+2016 p+0 3.0f 503 -> idempotent: neighbours, the tail ends before y
//! <<<1, 64>>> p[4032]+1008 p+0 3.0f 503 -> clobbers: y begins in the middle of x
KERNEL scale_float4_tail(float* y, const float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int vectors = n / 4;
  for (int v = i; v < vectors; v += gridDim.x * blockDim.x) {
    float4 q = reinterpret_cast<const float4*>(x)[v];
    q.x *= a;
    q.y *= a;
    q.z *= a;
    q.w *= a;
    reinterpret_cast<float4*>(y)[v] = q;
  }
  if (i < n - vectors * 4)
    y[vectors * 4 + i] = a * x[vectors * 4 + i];
}

//! <<<4, 256>>> y[4000] x[4000] 1000 -> idempotent: out of place
//! <<<4, 256>>> x[4000] x+0 1000 -> clobbers: in place, and what was negative is lost
KERNEL relu(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  const float v = x[i];
  y[i] = v > 0.0f ? v : 0.0f;
}

//! <<<6, 128>>> y[3072] x[3072] b[128] 24 32 -> idempotent: y apart from x and the bias
KERNEL bias_gelu(float* y, const float* x, const float* bias, int rows, int columns) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * columns) {
    const float v = x[i] + bias[i % columns];
    const float t = 1.0f - 2.0f / (fast_exp(1.595769f * (v + 0.044715f * v * v * v)) + 1.0f);
    y[i] = 0.5f * v * (1.0f + t);
  }
}

//! <<<(3, 5), (16, 8)>>> y[6080] x[6080] 0.5f 40 38 -> idempotent: two dimensions, ragged edges
//! <<<(3, 5), (16, 8)>>> x[6080] x+0 0.5f 40 38 -> clobbers: in place
KERNEL scale_2d(float* y, const float* x, float a, int width, int height) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column < width && row < height)
    y[row * width + column] = a * x[row * width + column];
}

//! <<<(2, 3, 2), (8, 4, 4)>>> c[3960] a[3960] b[3960] 15 11 6 -> idempotent: c apart from a and b
KERNEL add_3d(float* c, const float* a, const float* b, int nx, int ny, int nz) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x >= nx || y >= ny || z >= nz)
    return;
  const size_t i = (static_cast<size_t>(z) * ny + y) * nx + x;
  c[i] = a[i] + b[i];
}

//! <<<4, 256>>> out[1000] in[1000] 1000 -> idempotent: bytes, out of place
//! <<<4, 256>>> p[2001]+1001 p+0 1000 -> idempotent: two rows of bytes in one allocation
//! <<<4, 256>>> p[2001]+999 p+0 1000 -> clobbers: the first byte written is the last one read
KERNEL invert_bytes(unsigned char* out, const unsigned char* in, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = 255 - in[i];
}

//! <<<(2, 4), (16, 8)>>> out[3200] in[3200] 128 25 32 9 -> idempotent: pitched image, out of place
//! <<<(2, 4), (16, 8)>>> in[3200] in+0 128 25 32 9 -> clobbers: in place
KERNEL brighten_rgba(unsigned char* out, const unsigned char* in, int pitch, int rows, int columns,
                     int by) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < columns && y < rows) {
    uchar4 p = reinterpret_cast<const uchar4*>(in + y * pitch)[x];
    p.x = min(p.x + by, 255);
    p.y = min(p.y + by, 255);
    p.z = min(p.z + by, 255);
    reinterpret_cast<uchar4*>(out + y * pitch)[x] = p;
  }
}

//! <<<4, 256>>> z[2000] x[2000] y[2000] 0.5f 1000 -> idempotent: 16-bit data, z apart
//! <<<4, 256>>> y[2000] x[2000] y+0 0.5f 1000 -> clobbers: z is y
KERNEL half_axpy(half_bits* z, const half_bits* x, const half_bits* y, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    z[i] = float_to_half(a * half_to_float(x[i]) + half_to_float(y[i]));
}

//! <<<2, 256>>> z[2002] x[2002] 1001 -> idempotent: pairs of halves, and the odd one
KERNEL half2_square(half_bits* z, const half_bits* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) {
    const half2_bits v = reinterpret_cast<const half2_bits*>(x)[i];
    const float a = half_to_float(v.x), b = half_to_float(v.y);
    reinterpret_cast<half2_bits*>(z)[i] = {float_to_half(a * a), float_to_half(b * b)};
  }
  if (i == 0 && n % 2 == 1) {
    const float a = half_to_float(x[n - 1]);
    z[n - 1] = float_to_half(a * a);
  }
}

//! <<<4, 128>>> y[4000] x[4000] -0.5d 0.5d 500 -> idempotent: doubles, out of place
KERNEL clamp_double(double* y, const double* x, double low, double high, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const double v = x[i];
    y[i] = v < low ? low : v > high ? high : v;
  }
}

//! <<<(2, 7), 32>>> y[1680] x[1680] b[240] 7 60 -> idempotent: a row added to all rows
//! <<<(2, 7), 32>>> p[1920]+240 p+240 p+0 7 60 -> clobbers: x in place, beside the row
KERNEL add_row(float* y, const float* x, const float* row, int rows, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (r < rows && c < columns)
    y[r * columns + c] = x[r * columns + c] + row[c];
}

//! <<<4, 256>>> y[4000] m[1000] a[4000] b[4000] 1000 -> idempotent: y apart from all inputs
KERNEL where(float* y, const unsigned char* mask, const float* a, const float* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = mask[i] ? a[i] : b[i];
}

//! <<<2, 64>>> y[400] x[2000] 100 5 -> idempotent: every fifth element
//! <<<2, 64>>> p[2400]+2000 p+0 100 5 -> idempotent: y behind x in one allocation
KERNEL take_strided(float* y, const float* x, int n, int stride) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = x[i * stride];
}

//! <<<4, 256>>> y[4000] x[2000] 1000 -> idempotent: widening conversion
KERNEL short_to_float(float* y, const short* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = x[i] * (1.0f / 32768.0f);
}

//! <<<2, 128>>> c[1600] a[1600] b[1600] 200 -> idempotent: complex product
//! <<<2, 128>>> a[1600] a+0 b[1600] 200 -> clobbers: in place
KERNEL complex_multiply(float2* c, const float2* a, const float2* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    c[i] = make_float2(a[i].x * b[i].x - a[i].y * b[i].y, a[i].x * b[i].y + a[i].y * b[i].x);
}

//! <<<4, 256>>> y[4000] x[4000] 2.0f 0.0f 1000 -> idempotent: beta is 0 and y is not read
//! <<<4, 256>>> y[4000] x[4000] 2.0f 0.5f 1000 -> clobbers: y enters the result
KERNEL axpby(float* y, const float* x, float alpha, float beta, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  if (beta == 0.0f)
    y[i] = alpha * x[i];
  else
    y[i] = alpha * x[i] + beta * y[i];
}

//! <<<2, 64>>> y[2000] x[2000] 500 -> idempotent: four elements of each thread, a block apart
KERNEL square_unrolled(float* y, const float* x, int n) {
  const int base = blockIdx.x * blockDim.x * 4 + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = base + k * blockDim.x;
    if (i < n)
      y[i] = x[i] * x[i];
  }
}

//! <<<2, 64>>> y[4000] x[4000] 1000 8 -> idempotent: consecutive elements of each thread
//! <<<2, 64>>> p[8000]+4000 p+0 1000 8 -> idempotent: neighbours in one allocation
KERNEL negate_chunks(float* y, const float* x, int n, int chunk) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * chunk;
  const int last = min(first + chunk, n);
  for (int i = first; i < last; ++i)
    y[i] = -x[i];
}

//! <<<4, 128>>> s[2000] c[2000] x[2000] 500 -> idempotent: two outputs
//! <<<4, 128>>> s[2000] x[2000] x+0 500 -> clobbers: the second output is the input
KERNEL split_sign(float* magnitude, float* sign, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const float v = x[i];
    magnitude[i] = fabsf(v);
    sign[i] = v < 0 ? -1.0f : 1.0f;
  }
}

//! <<<2, 128>>> y[2000] a[2000] b[2000] c[2000] d[2000] 500 -> idempotent: four inputs
//! <<<2, 128>>> d[2000] a[2000] b[2000] c[2000] d+0 500 -> clobbers: the last input is the output
KERNEL fused_four(float* y, const float* a, const float* b, const float* c, const float* d, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = (a[i] + b[i]) * (c[i] - d[i]);
}

struct Shape4 {
  int size[4];
  int stride_in[4];
};
//! <<<2, 64>>> y[480] x[960] {2 3 4 5 120 40 10 2} 120 -> idempotent: strided view to contiguous
KERNEL make_contiguous(float* y, const float* x, Shape4 shape, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    int rest = i, at = 0;
#pragma unroll
    for (int d = 3; d >= 0; --d) {
      at += rest % shape.size[d] * shape.stride_in[d];
      rest /= shape.size[d];
    }
    y[i] = x[at];
  }
}

//! <<<3, 64>>> y[1200] 0.0f 0.25f 300 -> idempotent: nothing is read
KERNEL linspace(float* y, float start, float step, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = start + step * static_cast<float>(i);
}
