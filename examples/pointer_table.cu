// SPDX-License-Identifier: Apache-2.0
// The kernel finds its rows through a table of pointers in device memory, so its arguments do not
// tell what it touches: the verdict is unknown. (In truth it clobbers: running one launch twice
// gives another result, which the self-check finds.)
#include "common/device.h"

KERNEL scale_rows(unsigned* const* rows, unsigned factor, unsigned n);

#if EXAMPLE_KERNELS
KERNEL scale_rows(unsigned* const* rows, unsigned factor, unsigned n) {
  unsigned* row = rows[blockIdx.y];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    row[i] = row[i] * factor + blockIdx.y;
}
#endif

#if EXAMPLE_HOST
#define EXAMPLE_LAUNCH_FORM extra
#include "common/example.h"
#include "common/gpu.h"

int main(int argc, char** argv) {
  unsigned n = 1u << 12;
  example::parse(argc, argv, "Works through a table of pointers: a kernel that nobody can judge.",
                 {{"--size", &n, 1, 1u << 22, "elements of a row"}});
  constexpr unsigned kRows = 8;
  constexpr unsigned kRounds = 4;
  std::vector<unsigned> row(n);

  gpu::init();
  std::vector<gpu::Buffer<unsigned>> rows;
  std::vector<unsigned*> pointers;
  for (unsigned r = 0; r < kRows; ++r) {
    for (unsigned i = 0; i < n; ++i)
      row[i] = r * n + i;
    rows.emplace_back(row);
    pointers.push_back(rows.back().data());
  }
  const gpu::Buffer<unsigned*> table(pointers);
  for (unsigned round = 0; round < kRounds; ++round) {
    LAUNCH(scale_rows, gpu::Dim(gpu::blocks_for(n, 128), kRows), 128, 0, nullptr, table.data(),
           2 * round + 3, n);
    gpu::synchronize();
  }
  std::vector<unsigned> result;
  for (const gpu::Buffer<unsigned>& r : rows) {
    const std::vector<unsigned> host = r.host();
    result.insert(result.end(), host.begin(), host.end());
  }

  std::vector<unsigned> expected;
  for (unsigned r = 0; r < kRows; ++r) {
    for (unsigned i = 0; i < n; ++i) {
      unsigned value = r * n + i;
      for (const unsigned factor : {3u, 5u, 7u, 9u})
        value = value * factor + r;
      expected.push_back(value);
    }
  }
  return example::finish(result, expected);
}
#endif
