// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cupti/driver_api/driver_api.h"

// A driver call on its way to a standby, by the signature of its row in cupti/driver_api: one
// description, read by the agent (which has CUPTI's parameter struct) and by the standby (which
// calls its own driver).
//
// A signature has one word for each parameter, in order, separated by spaces:
//
//   1 2 4 8    a number of so many bytes (enums, flags, sizes, device addresses)
//   d          a CUdevice
//   s e f m L c    the handle of a stream, event, function or kernel, module, library, context
//   s! …       the same, of an object that the call destroys
//   >4 >8 >64  a pointer to so many bytes that the call writes; may be null
//   >s >f …    a pointer to the handle of an object that the call makes
//   <64        a pointer to so many bytes that the call reads
//   $          a string that the call reads
//   >$         a pointer to a string that the call returns; the string stays the callee's
//   -          (alone) no parameters
namespace gpurecover::recovery {

enum class ParameterKind : std::uint8_t {
  kNumber,
  kDevice,
  kHandle,
  kDestroyedHandle,
  kOut,
  kOutHandle,
  kIn,
  kString,
  kOutString,
};

struct Parameter {
  ParameterKind kind = ParameterKind::kNumber;
  std::uint32_t size = 8;    // bytes of the number, or of what is pointed to
  char handle = 0;           // which, of a handle
  std::uint32_t offset = 0;  // in CUPTI's parameter struct, which has C's natural layout
};

// The parameters of a row; parsed once, valid for ever. Empty for a row without parameters and for
// one without a signature. Thread-safe.
std::span<const Parameter> parameters_of(const driver_api::Call& call);
// Whether the row has a signature.
bool travels(const driver_api::Call& call);
// Stands for the table of calls and their signatures: messages are understood only between two that
// have the same.
std::uint64_t table_fingerprint();

// The app's number for an object that a call makes: what the app gets as its handle.
using NewHandle = std::function<std::uint64_t(char kind)>;

// Appends the call as it stands in `params` (a cu…_params of CUPTI). A stream 0 is written as
// CU_STREAM_PER_THREAD if `per_thread`; a call without a stream parameter is made in its per-thread
// form there. `new_handle` is asked for each object to be made. Handles
// are the app's own numbers; the standby knows which of its objects each of them means.
// A null string or null input is an error of the app's, which the standby's driver will name.
void encode_call(const driver_api::Call& call, const void* params, bool per_thread,
                 const NewHandle& new_handle, std::vector<std::byte>& out);

// Writes what a successful call returned into the places that the app gave. `keep` returns a string
// that lives as long as the process. False if `reply` is malformed: nothing was written then.
bool store_results(const driver_api::Call& call, const void* params,
                   std::span<const std::byte> reply,
                   const std::function<const char*(std::string_view)>& keep);

// A call as the standby reads it. Views into the message, which must outlive it.
struct DecodedCall {
  const driver_api::Call* call = nullptr;
  bool per_thread = false;
  struct Value {
    std::uint64_t number = 0;          // numbers, handles, the new handle's number
    bool present = false;              // of pointers: not null
    std::span<const std::byte> bytes;  // inputs; strings with their final zero
  };
  std::vector<Value> values;  // one for each parameter
};

// Null-terminated error text, or null if `message` was a well-formed call (in all its bytes).
const char* decode_call(std::span<const std::byte> message, DecodedCall& out);

}  // namespace gpurecover::recovery
