// SPDX-License-Identifier: Apache-2.0
// y = a * x + y, in place, six times: a launch that ran in part and runs again adds twice, so it
// must not be re-executed.
#include "common/device.h"

KERNEL saxpy_inplace(float a, const float* x, float* y, unsigned n);

#if EXAMPLE_KERNELS
KERNEL saxpy_inplace(float a, const float* x, float* y, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = a * x[i] + y[i];
}
#endif

#if EXAMPLE_HOST
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 1u << 15;
  example::parse(argc, argv, "y = a * x + y in place: a kernel that clobbers its own input.",
                 {{"--size", &n, 1, 1u << 26, "elements"}});
  std::vector<float> x(n), y(n);
  for (unsigned i = 0; i < n; ++i) {
    x[i] = static_cast<float>(i % 509);
    y[i] = static_cast<float>(i % 251);
  }

  gpu::init();
  gpu::Stream stream;
  const gpu::Buffer<float> device_x(x);
  gpu::Buffer<float> device_y(y);
  gpu::synchronize();  // the copies went by another stream, which `stream` does not wait for
  constexpr unsigned kRounds = 6;
  for (unsigned round = 1; round <= kRounds; ++round) {
    LAUNCH(saxpy_inplace, gpu::blocks_for(n, 256), 256, 0, stream, static_cast<float>(round),
           device_x.data(), device_y.data(), n);
    gpu::synchronize(stream);
  }

  // 1 + 2 + … + 6 times x, in whole numbers.
  std::vector<float> expected(n);
  for (unsigned i = 0; i < n; ++i)
    expected[i] = static_cast<float>(kRounds * (kRounds + 1) / 2 * (i % 509) + i % 251);
  return example::finish(device_y.host(), expected);
}
#endif
