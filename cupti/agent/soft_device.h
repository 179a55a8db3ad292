// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "inject/plan.h"

struct SoftgpuHookTable;

namespace gpurecover::agent {

// Faults that only a device in software makes on demand: at a chosen instruction, of any code. A
// real driver lacks the table that this works through, and then there is none of it. Thread-safe.
class SoftDevice {
 public:
  // Looks for the table in the driver that the process has loaded.
  SoftDevice();

  bool available() const { return table_ != nullptr; }
  // Arms a fault for the next launch of the kernel `symbol`, or of any if that is empty: at `point`
  // it dies with `code`, and what it wrote before stays. With `healthy` no error arises from it and
  // the context goes on working. False if the device refuses.
  bool arm(const std::string& symbol, const inject::Point& point, std::int32_t code, bool healthy);
  void disarm();
  // How many armed faults have come to their point so far.
  std::uint64_t fired() const;

 private:
  const SoftgpuHookTable* table_ = nullptr;
};

}  // namespace gpurecover::agent
