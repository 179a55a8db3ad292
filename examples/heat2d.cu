// SPDX-License-Identifier: Apache-2.0
// Heat in a plate: some hundred launches, enqueued without waiting, each reading one grid and
// writing the other. Every launch is idempotent; two of them in a row are not, since the second
// overwrites what the first reads.
#include "common/device.h"

KERNEL heat2d(const float* in, float* out, int width, int height);

#if EXAMPLE_KERNELS
KERNEL heat2d(const float* in, float* out, int width, int height) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x >= width || y >= height)
    return;
  const int i = y * width + x;
  const float here = in[i];
  if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
    out[i] = here;
    return;
  }
  const float sum = ((in[i - 1] + in[i + 1]) + in[i - width]) + in[i + width];
  out[i] = 0.5f * here + 0.125f * sum;
}
#endif

#if EXAMPLE_HOST
#include "common/example.h"
#include "common/gpu.h"

namespace {

// The same operations in the same order, each rounded by itself (no fused multiply-add in any
// build), so that CPU and GPU agree in every bit.
void step(const std::vector<float>& in, std::vector<float>& out, unsigned size) {
  out = in;
  for (unsigned y = 1; y + 1 < size; ++y) {
    const float* row = &in[static_cast<std::size_t>(y) * size];
    for (unsigned x = 1; x + 1 < size; ++x) {
      float sum = row[x - 1] + row[x + 1];
      sum = sum + (row - size)[x];
      sum = sum + (row + size)[x];
      const float kept = 0.5f * row[x];
      const float received = 0.125f * sum;
      out[static_cast<std::size_t>(y) * size + x] = kept + received;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  unsigned size = 24, steps = 200;
  example::parse(argc, argv, "Diffuses heat in a square plate: many idempotent launches in a row.",
                 {{"--size", &size, 3, 1u << 13, "points along a side"},
                  {"--steps", &steps, 4, 1u << 20, "launches"}});
  // The middle is hot, one edge is warm, the rest is cold.
  std::vector<float> grid(static_cast<std::size_t>(size) * size);
  for (unsigned i = 0; i < size; ++i)
    grid[i] = 100.0f;
  grid[static_cast<std::size_t>(size / 2) * size + size / 2] = 4096.0f;

  gpu::init();
  gpu::Stream stream;
  gpu::Buffer<float> in(grid.size()), out(grid.size());
  gpu::copy_in_async(in.data(), grid.data(), in.bytes(), stream);
  const gpu::Dim block(16, 16);
  const gpu::Dim blocks(gpu::blocks_for(size, 16), gpu::blocks_for(size, 16));
  for (unsigned i = 0; i < steps; ++i) {
    LAUNCH(heat2d, blocks, block, 0, stream, in.data(), out.data(), static_cast<int>(size),
           static_cast<int>(size));
    std::swap(in, out);
  }
  gpu::synchronize(stream);
  const std::vector<float> result = in.host();

  std::vector<float> next;
  for (unsigned i = 0; i < steps; ++i) {
    step(grid, next, size);
    grid.swap(next);
  }
  return example::finish(result, grid);
}
#endif
