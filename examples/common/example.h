// SPDX-License-Identifier: Apache-2.0
// Command line, result line and self-check, the same for every example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace example {

struct Option {
  const char* name;   // with its dashes
  unsigned* value;    // holds the default
  unsigned min, max;  // a flag (no value, sets 1) where both are 0
  const char* help;
};

// `--help` prints and exits 0; anything that is not an option of the example exits 2.
void parse(int argc, char** argv, const char* about, std::initializer_list<Option> options);

// FNV-1a, 64 bits.
std::uint64_t hash(const void* data, std::size_t bytes);

// Prints `checksum=…` of the result's bytes, compares it with what the CPU computed, bit for bit,
// and returns the exit status: 0, or 1 with the first difference on stderr.
template <class T>
int finish(const std::vector<T>& result, const std::vector<T>& expected) {
  std::printf("checksum=%016llx\n",
              static_cast<unsigned long long>(hash(result.data(), result.size() * sizeof(T))));
  std::fflush(stdout);
  if (result.size() != expected.size()) {
    std::fprintf(stderr, "wrong result: %zu elements, expected %zu\n", result.size(),
                 expected.size());
    return 1;
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (std::memcmp(&result[i], &expected[i], sizeof(T)) != 0) {
      std::fprintf(stderr, "wrong result: element %zu is %.9g, expected %.9g\n", i,
                   static_cast<double>(result[i]), static_cast<double>(expected[i]));
      return 1;
    }
  }
  return 0;
}

}  // namespace example
