// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only list of the exit statuses that gpurecover itself gives (DESIGN section 9). Under `run`
// the app's own status passes through, so an app may also end with one of these: `exit.origin` of
// the run summary tells whose it was.
namespace gpurecover::cli {

enum ExitCode : int {
  kOk = 0,         // done, or a good verdict
  kBad = 1,        // a bad verdict
  kNoVerdict = 2,  // no verdict could be reached
  kHangTimeout = 124,
  kOurError = 125,       // bad usage, or gpurecover could not do its work
  kNotExecutable = 126,  // the app is there but cannot be executed
  kNotFound = 127,       // the app is not there
};

}  // namespace gpurecover::cli
