// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/agent.h"

// Called by the driver, once, when it has loaded the library that CUDA_INJECTION64_PATH names. The
// driver expects 1.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  try {
    gpurecover::agent::Agent::start();
  } catch (...) {
    // Only want of memory throws; the app runs unprotected.
  }
  return 1;
}
