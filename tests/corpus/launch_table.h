// SPDX-License-Identifier: Apache-2.0
//
// The launches that stand beside each kernel of tests/corpus/kernels, in comments `//!`, with the
// right answer by hand. The notation is in README.md. Needs nothing of the project, so that a
// driver for a real device can use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpurecover::corpus {

enum class Answer : std::uint8_t {
  kIdempotent,
  kClobbers,
  kUnknown,  // no analysis of the code and the arguments can know
};
std::string_view name_of(Answer answer);

struct Buffer {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::string> fill;  // kind, then its words; empty: random floats in [-1, 1)
};

struct Value {
  bool is_pointer = false;
  std::uint32_t bytes = 0;  // size, and its alignment inside a structure
  std::uint64_t number = 0;
  std::size_t buffer = 0;  // of a pointer: index in Launch::buffers
  std::uint64_t offset = 0;
};
using Argument = std::vector<Value>;  // one value, or the members of a structure

struct Launch {
  std::uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared_bytes = 0;
  std::vector<Buffer> buffers;
  std::vector<Argument> arguments;
  // Of those, values beyond the kernel's parameters: buffers that only memory leads to.
  Answer answer = Answer::kUnknown;
  std::string why;
  std::string text;  // as written, up to the answer
  unsigned line = 0;
};

struct Kernel {
  std::string name;  // as in the image
  std::string file;  // without folder and extension
  std::string only;  // "nvcc", "clang": the compiler that makes it; empty: both
  std::uint32_t from_sm = 0;
  bool cooperative = false;
  bool waits = false;   // for what other threads write, for ever if they do not
  std::string not_run;  // why it is not executed on the device in software
  std::vector<Launch> launches;
  unsigned line = 0;
};

// Reads one source. Mistakes of the table are added to `mistakes` as "file:line: what".
std::vector<Kernel> read_source(const std::string& path, std::vector<std::string>& mistakes);

struct Slot {
  std::uint32_t offset = 0, bytes = 0;  // of a parameter, in the parameter block
};
// The parameter block of a launch whose buffers lie at `addresses`. Empty result: done; else what
// does not fit.
std::string pack(const Launch& launch, std::span<const Slot> parameters,
                 std::span<const std::uint64_t> addresses, std::vector<std::byte>& block);

// The content of a buffer before the launch.
void fill(const Launch& launch, std::size_t buffer, std::span<const std::uint64_t> addresses,
          std::mt19937& random, std::span<std::byte> bytes);

}  // namespace gpurecover::corpus
