// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "classifier/rules.h"
#include "cli/options.h"
#include "cupti/protocol/messages.h"
#include "inject/plan.h"

namespace gpurecover::cli {

enum class DeviceChoice : std::uint8_t { kAuto, kCuda, kSoft };

// What `run` and `inject` ask of the supervisor.
struct RunOptions {
  std::vector<std::string> command;
  DeviceChoice device = DeviceChoice::kAuto;
  bool soft_memcheck = false;  // softgpu faults at the byte, not at the page
  protocol::Level level = protocol::Level::kFull;
  protocol::Standby standby = protocol::Standby::kCold;
  bool no_steer = false;
  std::string analysis_dir;  // absolute, or empty
  classifier::RuleSet rules;
  std::string report;  // path, or empty
  std::string events;
  std::string name;
  int verbosity = 1;
  std::vector<inject::Fault> plan;
  std::vector<std::string> repeated;  // run options that belong to a repetition, e.g. --rules FILE
};

// The options that every verb that runs an app takes.
const std::vector<Option>& run_option_list();

// The run options of a parsed command line; reads the rule file. The error is ready to be shown,
// several lines for a rule file with several problems.
tl::expected<RunOptions, std::string> read_run_options(const Invocation& invocation);

}  // namespace gpurecover::cli
