// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

// What to make fail, where and how (DESIGN section 8). Pure data: the command line fills it, the
// session carries it, the agent acts on it.
namespace gpurecover::inject {

enum class How : std::uint8_t { kCode, kLatch, kFault };

// What the failed kernel leaves behind.
enum class Damage : std::uint8_t {
  kNone,      // it never ran
  kWhole,     // it ran
  kPartial,   // it ran, then a seeded subset of the bytes it changed was put back
  kScribble,  // the bytes it changed hold noise
};

// `--at` on softgpu: the kernel dies there and what it wrote before stays.
struct Point {
  std::uint64_t block = 0;
  std::uint32_t thread = 0;
  std::uint64_t instruction = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(block);
    a(thread);
    a(instruction);
  }
};

// One fault of a plan. Exactly one of nth, every and probability is set (non-zero).
struct Fault {
  std::string kernel;  // pattern: base name, `regex:…`, `*`; `graph` matches graph launches
  std::string kind;    // as the user wrote it: "ecc", "CUDA_ERROR_…"
  std::int32_t code = 0;
  bool sticky = false;  // run phase if true, launch phase if not
  How how = How::kCode;
  Damage damage = Damage::kScribble;
  std::uint64_t nth = 0;
  std::uint64_t every = 0;
  double probability = 0;
  std::uint64_t seed = 0;   // of the probability, of noise and of partial damage
  std::uint64_t times = 0;  // how often it fires at most; 0 without limit
  std::optional<Point> at;
  bool strict = false;  // withhold the token that lifts the address-fault rule

  template <class Archive>
  void fields(Archive& a) {
    a(kernel);
    a(kind);
    a(code);
    a(sticky);
    a(how);
    a(damage);
    a(nth);
    a(every);
    a(probability);
    a(seed);
    a(times);
    a(at);
    a(strict);
  }
};

// Whether a kernel on a real GPU can be made to end with this code: trap (719), illegal address
// (700), misaligned access (716), assert (710). Every other sticky code needs a device in software.
bool made_by_gpu(std::int32_t code);

// The words of the command line.
const char* word(How how);
const char* word(Damage damage);
std::optional<How> parse_how(const std::string& word);
std::optional<Damage> parse_damage(const std::string& word);

// The options of `gpurecover inject` that make this fault fire again at the launch that was the
// `match`-th of its pattern (from 1), e.g. `--kernel 'foo' --error ecc --how code … --nth 3`.
std::string repeat_options(const Fault& fault, std::uint64_t match);

}  // namespace gpurecover::inject
