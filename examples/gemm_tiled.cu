// SPDX-License-Identifier: Apache-2.0
// C = A * B by 16 x 16 tiles in shared memory, for four different A. Idempotent.
#include "common/device.h"

KERNEL gemm_tiled(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                  int n);

#if EXAMPLE_KERNELS
KERNEL gemm_tiled(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                  int n) {
  constexpr int kTile = 16;
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int tx = static_cast<int>(threadIdx.x);
  const int ty = static_cast<int>(threadIdx.y);
  const int row = static_cast<int>(blockIdx.y) * kTile + ty;
  const int column = static_cast<int>(blockIdx.x) * kTile + tx;
  float sum = 0;
  for (int first = 0; first < n; first += kTile) {
    const bool a_inside = row < n && first + tx < n;
    const bool b_inside = column < n && first + ty < n;
    tile_a[ty][tx] = a_inside ? a[row * n + first + tx] : 0.0f;
    tile_b[ty][tx] = b_inside ? b[(first + ty) * n + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k)
      sum += tile_a[ty][k] * tile_b[k][tx];
    __syncthreads();
  }
  if (row < n && column < n)
    c[row * n + column] = sum;
}
#endif

#if EXAMPLE_HOST
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 56;
  example::parse(argc, argv, "Multiplies square matrices by tiles in shared memory: idempotent.",
                 {{"--size", &n, 1, 1u << 12, "rows and columns"}});
  // Whole numbers from -8 to 8: sums of up to 4,096 products stay exact.
  constexpr unsigned kProducts = 4;
  const std::size_t elements = static_cast<std::size_t>(n) * n;
  unsigned state = 7;
  const auto matrix = [&] {
    std::vector<float> m(elements);
    for (float& v : m) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(static_cast<int>((state >> 16) % 17) - 8);
    }
    return m;
  };
  const std::vector<float> b = matrix();
  std::vector<std::vector<float>> a;
  for (unsigned i = 0; i < kProducts; ++i)
    a.push_back(matrix());

  gpu::init();
  const gpu::Buffer<float> device_b(b);
  std::vector<float> result;
  const gpu::Dim blocks(gpu::blocks_for(n, 16), gpu::blocks_for(n, 16));
  for (const std::vector<float>& m : a) {
    const gpu::Buffer<float> device_a(m);
    gpu::Buffer<float> c(elements);
    LAUNCH(gemm_tiled, blocks, gpu::Dim(16, 16), 0, nullptr, device_a.data(), device_b.data(),
           c.data(), static_cast<int>(n));
    gpu::synchronize();
    const std::vector<float> product = c.host();
    result.insert(result.end(), product.begin(), product.end());
  }

  std::vector<float> expected;
  for (const std::vector<float>& m : a) {
    std::vector<int> sums(elements);
    for (unsigned i = 0; i < n; ++i)
      for (unsigned k = 0; k < n; ++k)
        for (unsigned j = 0; j < n; ++j)
          sums[static_cast<std::size_t>(i) * n + j] +=
              static_cast<int>(m[static_cast<std::size_t>(i) * n + k]) *
              static_cast<int>(b[static_cast<std::size_t>(k) * n + j]);
    for (const int sum : sums)
      expected.push_back(static_cast<float>(sum));
  }
  return example::finish(result, expected);
}
#endif
