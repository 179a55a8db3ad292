// SPDX-License-Identifier: Apache-2.0
// One stream produces, another consumes; events order them both ways. Asynchronous copies from and
// to page-locked memory. Every launch is idempotent, but the streams overlap.
#include "common/device.h"

// Passed by value: the pointers lie inside a parameter.
struct Span {
  unsigned* data;
  unsigned count;
};

KERNEL produce(const unsigned* seed, Span out, unsigned round);
KERNEL consume(Span in, const unsigned* sums, unsigned* new_sums);

#if EXAMPLE_KERNELS
KERNEL produce(const unsigned* seed, Span out, unsigned round) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < out.count)
    out.data[i] = (seed[i] ^ (round * 0x9e3779b9u)) * 2654435761u;
}

KERNEL consume(Span in, const unsigned* sums, unsigned* new_sums) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < in.count)
    new_sums[i] = 3 * sums[i] + (in.data[i] >> 7);
}
#endif

#if EXAMPLE_HOST
#define EXAMPLE_LAUNCH_FORM library_kernel
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 1u << 13;
  example::parse(argc, argv, "A producer and a consumer stream, ordered by events: idempotent.",
                 {{"--size", &n, 1, 1u << 25, "elements"}});
  constexpr unsigned kRounds = 6;
  const auto seed_of = [](unsigned i) { return i * i + 17; };

  gpu::init();
  gpu::Stream producer, consumer;
  gpu::Event produced, consumed;
  gpu::PinnedBuffer<unsigned> seeds(n), result(n);
  for (unsigned i = 0; i < n; ++i)
    seeds[i] = seed_of(i);
  gpu::Buffer<unsigned> seed(n), item(n), sums(n), new_sums(n);
  gpu::set_zero(sums.data(), sums.bytes());
  gpu::synchronize();
  gpu::copy_in_async(seed.data(), seeds.data(), seed.bytes(), producer);
  const unsigned blocks = gpu::blocks_for(n, 128);
  for (unsigned round = 0; round < kRounds; ++round) {
    if (round > 0)
      gpu::wait(producer, consumed);
    LAUNCH(produce, blocks, 128, 0, producer, seed.data(), Span{item.data(), n}, round);
    gpu::record(produced, producer);
    gpu::wait(consumer, produced);
    LAUNCH(consume, blocks, 128, 0, consumer, Span{item.data(), n}, sums.data(), new_sums.data());
    gpu::record(consumed, consumer);
    std::swap(sums, new_sums);
  }
  gpu::copy_out_async(result.data(), sums.data(), sums.bytes(), consumer);
  gpu::synchronize(consumer);
  gpu::synchronize(producer);

  std::vector<unsigned> expected(n);
  for (unsigned i = 0; i < n; ++i) {
    for (unsigned round = 0; round < kRounds; ++round)
      expected[i] = 3 * expected[i] + (((seed_of(i) ^ (round * 0x9e3779b9u)) * 2654435761u) >> 7);
  }
  return example::finish(result.host(), expected);
}
#endif
