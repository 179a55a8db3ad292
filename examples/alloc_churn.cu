// SPDX-License-Identifier: Apache-2.0
// Every launch writes an allocation made just before it and reads one that is freed just after it;
// sizes change, addresses come back. Each launch is idempotent, but only a memory map that follows
// allocations and frees can tell.
#include "common/device.h"

KERNEL grow(const unsigned* in, unsigned in_count, unsigned* out, unsigned out_count);

#if EXAMPLE_KERNELS
KERNEL grow(const unsigned* in, unsigned in_count, unsigned* out, unsigned out_count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < out_count)
    out[i] = in[i % in_count] * 31 + i;
}
#endif

#if EXAMPLE_HOST
#define EXAMPLE_LAUNCH_FORM launch_ex
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 1u << 12;
  example::parse(argc, argv, "Allocates and frees between launches: idempotent.",
                 {{"--size", &n, 1, 1u << 24, "elements of the smallest allocation"}});
  constexpr unsigned kRounds = 16;
  const auto count_of = [n](unsigned round) { return n + (round * 5 % 7) * (n / 3 + 1); };
  std::vector<unsigned> values(count_of(0));
  for (unsigned i = 0; i < values.size(); ++i)
    values[i] = i;

  gpu::init();
  gpu::Buffer<unsigned> current(values);
  for (unsigned round = 1; round <= kRounds; ++round) {
    const unsigned count = count_of(round);
    // Never used; freed while the kernel runs, or waiting for it, as the driver likes.
    const gpu::Buffer<unsigned> unused(count / 2 + 1);
    gpu::Buffer<unsigned> next(count);
    LAUNCH(grow, gpu::blocks_for(count, 256), 256, 0, nullptr, current.data(),
           static_cast<unsigned>(current.count()), next.data(), count);
    current = std::move(next);
  }
  gpu::synchronize();
  const std::vector<unsigned> result = current.host();

  for (unsigned round = 1; round <= kRounds; ++round) {
    std::vector<unsigned> next(count_of(round));
    for (unsigned i = 0; i < next.size(); ++i)
      next[i] = values[i % values.size()] * 31 + i;
    values = std::move(next);
  }
  return example::finish(result, values);
}
#endif
