// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <ffi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cupti/driver_api/driver_api.h"
#include "recovery/standby/standby_driver.h"

namespace gpurecover::recovery {

// Calls of driver functions by the signatures of cupti/driver_api, through libffi. Not thread-safe:
// each thread has its own.
class Calls {
 public:
  struct Value {
    std::uint64_t number = 0;  // numbers and handles, in the driver's own terms
    bool present = false;      // of pointers
    std::span<const std::byte> bytes;
    alignas(16) std::byte out[64] = {};  // what the call wrote through a pointer
  };
  using Values = std::vector<Value>;

  // False if the driver has no such function.
  bool make(const StandbyDriver& driver, const driver_api::Call& call, bool per_thread,
            Values& values, CUresult& code);

 private:
  struct Prepared {
    void* function = nullptr;
    ffi_cif cif{};
    std::vector<ffi_type*> types;
  };
  const Prepared& prepared(const StandbyDriver& driver, const driver_api::Call& call,
                           bool per_thread);

  std::unordered_map<std::uint64_t, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace gpurecover::recovery
