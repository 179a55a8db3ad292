// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpurecover::cli {

// Where this installation keeps what goes into the app, found relative to the running executable,
// so that an installation can be moved and a build tree works like one. Empty: not there.
struct Install {
  std::string libdir;    // …/lib/gpurecover
  std::string agent;     // the agent's file
  std::string standby;   // the standby's file
  std::string soft;      // the folder with softgpu's libcuda.so.1
  std::string expected;  // where libdir was looked for, for messages
};
Install find_install();

// libcupti.so.13 where a CUDA toolkit or Python's packages put it; empty if nowhere. Looks at files
// only; what the dynamic loader knows is DeviceProbe's to tell.
std::string find_cupti_file();

// `LD_LIBRARY_PATH` with `folder` first.
std::string prepend_path(const std::string& folder, const char* current);

}  // namespace gpurecover::cli
