// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/dead_context.h"

#include <cupti.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "cupti/driver_api/device_ops.h"
#include "cupti/driver_api/driver_api.h"
#include "cupti/driver_api/params_size.h"
#include "inject/plan.h"

namespace gpurecover::driver_api {
namespace {

std::uint32_t id_of(std::string_view name) {
  for (std::uint32_t id = 0; id < cbid_end(); ++id) {
    if (name_of(id) == name) {
      return id;
    }
  }
  ADD_FAILURE() << "no callback id: " << name;
  return 0;
}

TEST(DeadContext, AVersionAnswersAsItsOtherVersions) {
  for (const std::string_view name :
       {"cuCtxGetCurrent", "cuDevicePrimaryCtxRelease_v2", "cuGetProcAddress_v2", "cuMemMap",
        "cuLibraryGetKernel", "cuDeviceTotalMem_v2"}) {
    EXPECT_TRUE(answers_when_dead(id_of(name))) << name;
  }
  for (const std::string_view name :
       {"cuCtxSynchronize", "cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchKernel",
        "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuStreamSynchronize_ptsz", "cuMemGetInfo_v2",
        "cuCtxCreate_v4", "cuModuleLoadData", "cuMemHostAlloc"}) {
    EXPECT_FALSE(answers_when_dead(id_of(name))) << name;
  }
  EXPECT_FALSE(answers_when_dead(cbid_end()));
}

TEST(DeadContext, NoCallThatWorksInStreamsAnswers) {
  for (std::uint32_t id = 0; id < cbid_end(); ++id) {
    const Call* call = find(id);
    if (call != nullptr && answers_when_dead(id)) {
      for (const Kind kind : {Kind::kLaunch, Kind::kGraphLaunch, Kind::kHostFunction, Kind::kCopy,
                              Kind::kSet, Kind::kSync, Kind::kEvent, Kind::kStreamMemory}) {
        EXPECT_NE(call->kind, kind) << call->name;
      }
    }
  }
}

TEST(ParamsSize, IsThatOfCuptisStruct) {
  EXPECT_EQ(params_size(id_of("cuLaunchKernel")), sizeof(cuLaunchKernel_params));
  EXPECT_EQ(params_size(id_of("cuMemAlloc_v2")), sizeof(cuMemAlloc_v2_params));
  EXPECT_EQ(params_size(id_of("cuCtxSynchronize")), 0u);  // has no parameters
  EXPECT_EQ(params_size(cbid_end()), 0u);
  EXPECT_EQ(params_size(UINT32_MAX), 0u);
}

// What a latched call keeps aside (cupti/agent/latch.cpp) must hold every struct.
TEST(ParamsSize, EveryCallOfTheTableHasOneThatFits) {
  // These have no parameters; CUPTI's header has no struct of the last ones either.
  constexpr std::string_view kNone[] = {"cuCtxSynchronize",     "cuCtxResetPersistingL2Cache",
                                        "cuProfilerStart",      "cuProfilerStop",
                                        "cuProfilerInitialize", "cuMemHostAlloc_v2"};
  for (std::uint32_t id = 1; id < cbid_end(); ++id) {
    if (const Call* call = find(id); call != nullptr) {
      EXPECT_LE(params_size(id), 512u) << name_of(id);
      const bool none =
          std::find(std::begin(kNone), std::end(kNone), name_of(id)) != std::end(kNone);
      EXPECT_EQ(params_size(id) == 0, none) << name_of(id);
    }
  }
}

TEST(DeviceFault, ThePlanAndTheKernelsKnowTheSameCodes) {
  for (std::int32_t code = 0; code < 1000; ++code) {
    EXPECT_EQ(device_fault_of(code).has_value(), inject::made_by_gpu(code)) << code;
  }
}

}  // namespace
}  // namespace gpurecover::driver_api
