// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/soft_device.h"

#include <dlfcn.h>

// The interface of a device that the agent may find itself on, as cuda.h is of another:
// declarations only, nothing of softgpu is linked.
#include "softgpu/hooks.h"

namespace gpurecover::agent {

SoftDevice::SoftDevice() {
  if (void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW)) {
    const auto* table = static_cast<const SoftgpuHookTable*>(dlsym(library, "softgpu_hook_table"));
    if (table != nullptr && table->version == 1 && table->size >= sizeof *table) {
      table_ = table;
    }
  }
}

bool SoftDevice::arm(const std::string& symbol, const inject::Point& point, std::int32_t code,
                     bool healthy) {
  SoftgpuFault fault{};
  fault.size = sizeof fault;
  fault.kernel = symbol.empty() ? nullptr : symbol.c_str();
  fault.launch = 1;
  fault.block = point.block;
  fault.thread = point.thread;
  fault.instruction = point.instruction;
  fault.code = code;
  fault.healthy = healthy ? 1 : 0;
  return table_->arm_fault(&fault) == 0;
}

void SoftDevice::disarm() {
  table_->disarm_faults();
}

std::uint64_t SoftDevice::fired() const {
  SoftgpuReport report{};
  report.size = sizeof report;
  table_->report(&report);
  return report.fired;
}

}  // namespace gpurecover::agent
