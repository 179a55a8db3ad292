// SPDX-License-Identifier: Apache-2.0
// c = a + b, four times, each sum the input of the next; two output buffers take turns. No launch
// reads what it writes: idempotent.
#include "common/device.h"

KERNEL vector_add(const float* a, const float* b, float* c, unsigned n);

#if EXAMPLE_KERNELS
KERNEL vector_add(const float* a, const float* b, float* c, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    c[i] = a[i] + b[i];
}
#endif

#if EXAMPLE_HOST
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 1u << 15;
  example::parse(argc, argv, "Adds vectors: the smallest idempotent kernel.",
                 {{"--size", &n, 1, 1u << 26, "elements"}});
  // Whole numbers below 2^24: the sums are exact.
  std::vector<float> a(n), b(n);
  for (unsigned i = 0; i < n; ++i) {
    a[i] = static_cast<float>(i % 1009);
    b[i] = static_cast<float>(i % 4093);
  }

  gpu::init();
  const gpu::Buffer<float> device_a(a);
  gpu::Buffer<float> in(b), out(n);
  constexpr unsigned kRounds = 4;
  for (unsigned round = 0; round < kRounds; ++round) {
    LAUNCH(vector_add, gpu::blocks_for(n, 256), 256, 0, nullptr, device_a.data(), in.data(),
           out.data(), n);
    gpu::synchronize();
    std::swap(in, out);
  }

  std::vector<float> expected(n);
  for (unsigned i = 0; i < n; ++i)
    expected[i] = static_cast<float>(kRounds * (i % 1009) + i % 4093);
  return example::finish(in.host(), expected);
}
#endif
