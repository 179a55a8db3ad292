// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpurecover::driver_api {

// Whether driver call `cbid` still does its work where a sticky error has ended the CUDA of the
// process; every other call returns that error's code and does nothing. What an H200 answered
// (driver 580, tests/unit/softgpu/driver_answers.h200.txt, "after trap"); a call that was not asked
// is taken to return the code, but for those that touch no context. Any thread.
bool answers_when_dead(std::uint32_t cbid);

}  // namespace gpurecover::driver_api
