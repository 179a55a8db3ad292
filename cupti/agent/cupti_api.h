// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cupti.h>

#include <string>

namespace gpurecover::agent {

// The CUPTI functions that the agent uses. CUPTI is the user's own, opened at run time: where it is
// missing, the app runs unprotected instead of not at all.
#define GPURECOVER_CUPTI_FUNCTIONS(X) \
  X(cuptiSubscribe)                   \
  X(cuptiEnableCallback)              \
  X(cuptiGetVersion)                  \
  X(cuptiGetResultString)

struct Cupti {
#define X(name) decltype(&::name) name = nullptr;
  GPURECOVER_CUPTI_FUNCTIONS(X)
#undef X
};

// Opens the CUPTI that the process has loaded already, else the file `path` (may be empty), else
// what the dynamic loader finds. False with the reason and what to do about it.
bool load_cupti(Cupti& cupti, const std::string& path, std::string& error);

}  // namespace gpurecover::agent
