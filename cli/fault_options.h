// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "cli/options.h"
#include "inject/plan.h"

namespace gpurecover::cli {

// The options of `inject` that describe a fault.
const std::vector<Option>& fault_option_list();

struct FaultRequest {
  inject::Fault fault;
  bool seed_drawn = false;  // nobody chose the seed: it is to be echoed
};
// The fault that the options ask for. The error says what is wrong and what would be right.
tl::expected<FaultRequest, std::string> read_fault(const Invocation& invocation);

// Why only a device in software can make the fault, and what to do about it; empty if a GPU can.
std::string why_soft_device(const inject::Fault& fault);

// The options that ask for `fault` again, as a shell reads them.
std::string fault_options(const inject::Fault& fault);

}  // namespace gpurecover::cli
