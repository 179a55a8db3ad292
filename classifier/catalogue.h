// SPDX-License-Identifier: Apache-2.0
// What is known of CUDA error codes and Xids, as data. Pure, no allocation except where a string is
// returned; thread-safe; linked into the agent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "classifier/rules.h"

namespace gpurecover::classifier {

// Whether the error stays: every later call of the process fails with it.
enum class Sticky : std::uint8_t {
  no,
  documented,  // cuda.h says that the process must be relaunched
  measured,    // documented, and seen on a device
  silent,      // cuda.h does not say; treated as sticky until measured
};

enum class Nature : std::uint8_t {
  none,         // not an error
  hardware,     // the device, a link
  program,      // the program's own mistake: comes again with the same input
  either,       // program or hardware; the code alone does not tell
  resource,     // too little of something; may pass
  environment,  // installation, configuration, other processes
  consequence,  // follows from an earlier error
  unknown,
};

std::string_view to_string(Sticky value);
std::string_view to_string(Nature value);

struct CodeInfo {
  std::int32_t code;
  const char* driver_name;   // "CUDA_ERROR_…"; null: a code of the runtime only
  const char* runtime_name;  // "cudaError…"; null: a code of the driver only
  const char* meaning;
  Sticky sticky;
  Nature nature;
  const char* source;
  const char* date;  // of the source, YYYY-MM-DD or YYYY-MM

  // The driver's name where there is one.
  std::string_view name() const { return driver_name ? driver_name : runtime_name; }
};

// Every code of cuda.h and of the runtime's header, by ascending number.
std::span<const CodeInfo> all_codes();

const CodeInfo* find_code(std::int32_t code);
// Any spelling: "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable" (letter case does not
// count), "214". A number that is no code gives null.
const CodeInfo* find_code(std::string_view spelling);
// The name that a misspelt one was most likely meant to be; empty if none is near.
std::string_view nearest_code_name(std::string_view word);
// "CUDA_ERROR_ECC_UNCORRECTABLE"; "CUDA error 12345" for a number that is no code.
std::string code_name(std::int32_t code);

// True also where cuda.h is silent (Sticky::silent): the careful reading.
bool is_sticky(std::int32_t code);
// What the code alone says; used where a rule does not say.
Class class_of_code(std::int32_t code);
Scope scope_of_code(std::int32_t code);

// Whether running the job again helps, after an Xid.
enum class Rerun : std::uint8_t {
  same_gpu,       // a new process on the same GPU
  same_gpu_once,  // the same, once, to tell program from hardware
  after_reset,    // after a reset, or on another GPU
  after_reboot,
  no_effect,  // the Xid does not harm the job
  companion,  // the Xid that came with it decides
  varies,
  unknown,
};
std::string_view to_string(Rerun value);

struct XidInfo {
  std::int32_t xid;
  const char* meaning;
  const char* bucket;  // NVIDIA's immediate action, and "; then …" where it names one
  Rerun rerun;
  const char* source;
  const char* date;
};

inline constexpr std::int32_t kLastXid = 176;

// The Xids that the catalogue uses, by ascending number. A number from 1 to kLastXid that is not
// among them is unused there: contact support.
std::span<const XidInfo> all_xids();
const XidInfo* find_xid(std::int32_t xid);
// What to do about a rerun, as a sentence.
std::string_view advice(Rerun value);

// What an injection pretends (DESIGN section 8).
struct ErrorKind {
  enum class Special : std::uint8_t { none, hang, bitflip };
  std::string name;       // the short word where there is one ("ecc"), else the code's name
  std::int32_t code = 0;  // 0 for hang and bitflip
  bool sticky = false;    // reported in the run phase, latched
  Special special = Special::none;

  template <class Archive>
  void fields(Archive& a) {
    a(name);
    a(code);
    a(sticky);
    a(special);
  }
  bool operator==(const ErrorKind&) const = default;
};

// A short word, or any spelling of a code of the driver. The error is a sentence with the nearest
// valid word.
tl::expected<ErrorKind, std::string> parse_error_kind(std::string_view text);
// "ecc", "nvlink", …, in the order of their codes, then "hang" and "bitflip".
std::span<const std::string_view> error_kind_words();

}  // namespace gpurecover::classifier
