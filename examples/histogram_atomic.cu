// SPDX-License-Identifier: Apache-2.0
// Counts bytes: each block in (dynamic) shared memory, then by atomic additions into the counts of
// all blocks and all launches. Atomic additions read what they write: not to be re-executed.
#include "common/device.h"

KERNEL histogram_atomic(const unsigned char* bytes, unsigned n, unsigned* counts);

#if EXAMPLE_KERNELS
KERNEL histogram_atomic(const unsigned char* bytes, unsigned n, unsigned* counts) {
  extern __shared__ unsigned block_counts[];
  for (unsigned bin = threadIdx.x; bin < 256; bin += blockDim.x)
    block_counts[bin] = 0;
  __syncthreads();
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&block_counts[bytes[i]], 1);
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < 256; bin += blockDim.x) {
    if (block_counts[bin] != 0)
      atomicAdd(&counts[bin], block_counts[bin]);
  }
}
#endif

#if EXAMPLE_HOST
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 1u << 18;
  example::parse(argc, argv, "Counts bytes by atomic additions: a kernel that clobbers.",
                 {{"--size", &n, 1, 1u << 28, "bytes"}});
  std::vector<unsigned char> bytes(n);
  unsigned state = 1;
  for (unsigned char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>((state >> 24) & (state >> 16));
  }

  gpu::init();
  const gpu::Buffer<unsigned char> device_bytes(bytes);
  gpu::Buffer<unsigned> counts(256);
  gpu::set_zero(counts.data(), counts.bytes());
  constexpr unsigned kParts = 5;
  for (unsigned part = 0; part < kParts; ++part) {
    const unsigned long long first = 1ull * n * part / kParts;
    const unsigned long long last = 1ull * n * (part + 1) / kParts;
    LAUNCH(histogram_atomic, 16, 128, 256 * sizeof(unsigned), nullptr, device_bytes.data() + first,
           static_cast<unsigned>(last - first), counts.data());
    gpu::synchronize();
  }

  std::vector<unsigned> expected(256);
  for (const unsigned char byte : bytes)
    ++expected[byte];
  return example::finish(counts.host(), expected);
}
#endif
