// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gpurecover::cli {

// What a short-lived process found out by loading the driver, CUPTI and the agent: gpurecover
// itself never loads any of them.
struct DeviceProbe {
  bool answered = false;      // the probing process ended well
  std::string failure;        // why not
  bool driver_found = false;  // libcuda.so.1 could be opened
  std::string driver_error;   // why it could not, or what cuInit or cuDeviceGetCount said
  std::string driver_version;
  int devices = 0;
  std::vector<std::string> names;  // "NVIDIA H200, compute capability 9.0"
  std::string cupti_path;  // what the dynamic loader takes for libcupti.so.13, or the given path
  std::string cupti_error;
  std::string cupti_version;
  bool agent_loads = false;
  std::string agent_error;
};

struct ProbeRequest {
  bool devices = true;
  std::string driver = "libcuda.so.1";  // name or path
  std::string cupti;                    // path to try if the loader knows none
  bool cupti_version = false;
  std::string agent;  // path; empty: not asked
};

// Takes as long as the driver's start (0.1 s to some seconds), at most `timeout`.
DeviceProbe probe_device(const ProbeRequest& request, std::chrono::milliseconds timeout);

}  // namespace gpurecover::cli
