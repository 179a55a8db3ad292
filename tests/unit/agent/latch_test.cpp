// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/latch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "cupti/agent/pending_fault.h"
#include "cupti/driver_api/driver_api.h"

namespace gpurecover::agent {
namespace {

std::set<std::uint32_t> enabled;

CUptiResult CUPTIAPI enable(std::uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                            CUpti_CallbackId cbid) {
  if (on != 0) {
    enabled.insert(cbid);
  }
  return CUPTI_SUCCESS;
}

class LatchTest : public testing::Test {
 protected:
  LatchTest() { cupti_.cuptiEnableCallback = &enable; }

  CUpti_CallbackData call(const void* params, std::uint32_t correlation) {
    CUpti_CallbackData data{};
    data.functionParams = params;
    data.functionReturnValue = &result_;
    data.correlationId = correlation;
    return data;
  }

  Cupti cupti_{};
  CUpti_SubscriberHandle subscriber_ = nullptr;
  Latch latch_{cupti_, subscriber_};
  CUresult result_ = CUDA_SUCCESS;
};

constexpr std::uint32_t kSynchronize = CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize;
constexpr std::uint32_t kAlloc = CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2;

TEST_F(LatchTest, ACallSeesZerosAndItsCallerTheCode) {
  CUdeviceptr address = 7;
  cuMemAlloc_v2_params params{&address, 64};
  EXPECT_FALSE(latch_.in_use());
  EXPECT_FALSE(latch_.enter(kAlloc, call(&params, 1)));
  latch_.engage(214);
  EXPECT_TRUE(latch_.in_use());
  ASSERT_TRUE(latch_.enter(kAlloc, call(&params, 2)));
  EXPECT_EQ(params.dptr, nullptr);
  EXPECT_EQ(params.bytesize, 0u);
  result_ = CUDA_ERROR_INVALID_VALUE;
  ASSERT_TRUE(latch_.exit(call(&params, 2)));
  EXPECT_EQ(params.dptr, &address);
  EXPECT_EQ(params.bytesize, 64u);
  EXPECT_EQ(result_, CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(address, 7u);
}

TEST_F(LatchTest, CallsThatAnswerAfterAFaultAndCallsWithoutARowAreTheDriversOwn) {
  latch_.engage(700);
  CUcontext context = nullptr;
  cuCtxGetCurrent_params params{&context};
  EXPECT_FALSE(latch_.enter(CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent, call(&params, 1)));
  EXPECT_EQ(params.pctx, &context);
  EXPECT_FALSE(latch_.exit(call(&params, 1)));
  for (std::uint32_t id = 1; id < driver_api::cbid_end() + 5; ++id) {
    EXPECT_FALSE(driver_api::find(id) == nullptr && latch_.code_for(id) != 0) << id;
  }
}

TEST_F(LatchTest, TheFirstCodeStaysUntilTheRelease) {
  latch_.engage(214);
  latch_.engage(719);
  EXPECT_EQ(latch_.code(), 214);
  latch_.release();
  EXPECT_EQ(latch_.code_for(kAlloc), 0);
  latch_.engage(719);
  EXPECT_EQ(latch_.code(), 719);
}

TEST_F(LatchTest, ACallUnderWayAtTheReleaseEndsAsItBegan) {
  CUstream stream = reinterpret_cast<CUstream>(0x40);
  cuStreamSynchronize_params params{stream};
  latch_.engage(220);
  ASSERT_TRUE(latch_.enter(kSynchronize, call(&params, 5)));
  latch_.release();
  ASSERT_TRUE(latch_.exit(call(&params, 5)));
  EXPECT_EQ(params.hStream, stream);
  EXPECT_EQ(result_, CUDA_ERROR_NVLINK_UNCORRECTABLE);
}

TEST_F(LatchTest, ACallWithinALatchedCallIsLeftAlone) {
  cuStreamSynchronize_params outer{reinterpret_cast<CUstream>(0x40)};
  cuStreamSynchronize_params inner{reinterpret_cast<CUstream>(0x80)};
  latch_.engage(220);
  ASSERT_TRUE(latch_.enter(kSynchronize, call(&outer, 5)));
  EXPECT_FALSE(latch_.enter(kSynchronize, call(&inner, 6)));
  EXPECT_FALSE(latch_.exit(call(&inner, 6)));
  EXPECT_EQ(inner.hStream, reinterpret_cast<CUstream>(0x80));
  EXPECT_TRUE(latch_.exit(call(&outer, 5)));
}

TEST_F(LatchTest, ACallWithoutParametersIsAnsweredToo) {
  latch_.engage(226);
  ASSERT_TRUE(latch_.enter(CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, call(nullptr, 9)));
  ASSERT_TRUE(latch_.exit(call(nullptr, 9)));
  EXPECT_EQ(static_cast<int>(result_), 226);
}

TEST_F(LatchTest, EveryCallOfTheTableIsSeen) {
  enabled.clear();
  latch_.engage(214);
  for (std::uint32_t id = 1; id < driver_api::cbid_end(); ++id) {
    EXPECT_EQ(driver_api::find(id) != nullptr, enabled.contains(id)) << driver_api::name_of(id);
  }
}

TEST(PendingFaults, AreTakenOnceAndByTheirCode) {
  PendingFaults faults;
  for (const std::int32_t code : {214, 719, 214}) {
    PendingFault fault;
    fault.code = code;
    fault.launch = static_cast<std::uint64_t>(code);
    faults.add(fault);
  }
  PendingFault last;
  last.code = 719;
  last.launch = 1;
  faults.add(last);
  EXPECT_FALSE(faults.take(700));
  EXPECT_EQ(faults.take(719)->launch, 719u);  // the older of the two
  EXPECT_EQ(faults.take(719)->launch, 1u);
  EXPECT_FALSE(faults.take(719));
  EXPECT_TRUE(faults.take(214));
  EXPECT_TRUE(faults.take(214));
  EXPECT_FALSE(faults.take(214));
}

}  // namespace
}  // namespace gpurecover::agent
