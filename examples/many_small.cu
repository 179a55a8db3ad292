// SPDX-License-Identifier: Apache-2.0
// Launch bound: kernels so short that the launches are all there is to measure. Two buffers take
// turns, so that each launch is idempotent and a lost, doubled or reordered one shows.
#include "common/device.h"

KERNEL many_small(const unsigned* in, unsigned* out, unsigned n);

#if EXAMPLE_KERNELS
KERNEL many_small(const unsigned* in, unsigned* out, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = in[i] * 1664525u + 1013904223u;
}
#endif

#if EXAMPLE_HOST
#include <algorithm>
#include <chrono>

#include "common/example.h"
#include "common/gpu.h"

namespace {

double now_ns() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

int main(int argc, char** argv) {
  unsigned n = 128, launches = 64, batch = 0, warmup = 0, time = 0;
  example::parse(
      argc, argv, "Launches a very small idempotent kernel many times.",
      {{"--size", &n, 1, 1u << 16, "elements"},
       {"--launches", &launches, 4, 10000000, "launches"},
       {"--batch", &batch, 0, 10000000, "waits after each N launches; 0: once, at the end"},
       {"--warmup", &warmup, 0, 10000000, "the first N launches are not timed"},
       {"--time", &time, 0, 0, "prints the time per launch on stderr"}});
  if (warmup >= launches) {
    std::fprintf(stderr, "many_small: --warmup must be less than --launches\n");
    return 2;
  }
  std::vector<unsigned> values(n);
  for (unsigned i = 0; i < n; ++i)
    values[i] = i;

  gpu::init();
  gpu::Stream stream;
  gpu::Buffer<unsigned> in(values), out(n);
  gpu::synchronize();  // the copy went by another stream, which `stream` does not wait for
  const unsigned blocks = gpu::blocks_for(n, 128);
  const auto enqueue = [&](unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      LAUNCH(many_small, blocks, 128, 0, stream, in.data(), out.data(), n);
      std::swap(in, out);
    }
  };
  enqueue(warmup);
  gpu::synchronize(stream);

  // Two times: from the first launch to the end of the last kernel, and that of the launch calls
  // alone, which is the CPU's cost as long as a batch is shorter than the driver's queue.
  const unsigned timed = launches - warmup;
  double launching_ns = 0;
  const double start = now_ns();
  for (unsigned done = 0; done < timed;) {
    const unsigned count = batch == 0 ? timed : std::min(batch, timed - done);
    const double before = now_ns();
    enqueue(count);
    launching_ns += now_ns() - before;
    gpu::synchronize(stream);
    done += count;
  }
  const double total_ns = now_ns() - start;
  if (time != 0)
    std::fprintf(stderr, "timed_launches=%u ns_per_launch=%.1f call_ns_per_launch=%.1f\n", timed,
                 total_ns / timed, launching_ns / timed);
  const std::vector<unsigned> result = in.host();

  for (unsigned& value : values) {
    for (unsigned k = 0; k < launches; ++k)
      value = value * 1664525u + 1013904223u;
  }
  return example::finish(result, values);
}
#endif
