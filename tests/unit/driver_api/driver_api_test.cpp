// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/driver_api.h"

#include <cupti_driver_cbid.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "classifier/catalogue.h"

namespace gpurecover::driver_api {
namespace {

TEST(Calls, EachNameOnceAndKnownToCupti) {
  std::set<std::string_view> names;
  std::set<std::string_view> known;
  for (std::uint32_t cbid = 0; cbid < cbid_end(); ++cbid) {
    known.insert(name_of(cbid));
  }
  for (const Call& call : all_calls()) {
    EXPECT_TRUE(names.insert(call.name).second) << call.name;
    EXPECT_TRUE(known.contains(call.name) || known.contains(std::string(call.name) + "_ptds"))
        << call.name;
  }
}

TEST(Calls, FoundByCallbackIdWithTheirPerThreadForm) {
  const Call* launch = find(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
  ASSERT_NE(launch, nullptr);
  EXPECT_EQ(launch->name, "cuLaunchKernel");
  EXPECT_EQ(find(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz), launch);
  EXPECT_FALSE(per_thread_stream(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
  EXPECT_TRUE(per_thread_stream(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz));
  EXPECT_EQ(find(CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds)->name, "cuMemcpyDtoH_v2");
  EXPECT_EQ(find(cbid_end() + 7), nullptr);
  EXPECT_EQ(name_of(cbid_end() + 7), "");
}

// A call of another version has other parameters: it must not borrow the row of its namesake.
TEST(Calls, VersionsAreNotConfused) {
  EXPECT_EQ(find(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc), nullptr);
  EXPECT_EQ(find("cuMemAlloc_v2")->hook, Hook::kAllocDevice);
}

// The driver calls that a PyTorch training step was seen to make.
TEST(Calls, RowsForWhatPyTorchUses) {
  for (const char* name : {"cuCtxGetApiVersion",
                           "cuCtxGetCurrent",
                           "cuCtxGetDevice",
                           "cuCtxGetDevice_v2",
                           "cuCtxGetLimit",
                           "cuCtxGetStreamPriorityRange",
                           "cuCtxSetCurrent",
                           "cuCtxSynchronize_v2",
                           "cuDeviceGetAttribute",
                           "cuDevicePrimaryCtxGetState",
                           "cuEventCreate",
                           "cuFuncGetAttribute",
                           "cuFuncSetAttribute",
                           "cuGetProcAddress_v2",
                           "cuInit",
                           "cuKernelGetAttribute",
                           "cuKernelGetFunction",
                           "cuKernelSetAttribute",
                           "cuLaunchKernel",
                           "cuLaunchKernelEx",
                           "cuLibraryGetGlobal",
                           "cuLibraryGetKernel",
                           "cuLibraryLoadData",
                           "cuLibraryUnload",
                           "cuMemAlloc_v2",
                           "cuMemFree_v2",
                           "cuMemHostAlloc",
                           "cuMemHostGetDevicePointer_v2",
                           "cuMemcpyDtoHAsync_v2",
                           "cuMemcpyHtoDAsync_v2",
                           "cuMemsetD8Async",
                           "cuModuleGetFunction",
                           "cuModuleGetLoadingMode",
                           "cuModuleLoadData",
                           "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                           "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
                           "cuOccupancyMaxActiveClusters",
                           "cuStreamCreateWithPriority",
                           "cuStreamDestroy_v2",
                           "cuStreamIsCapturing",
                           "cuStreamSynchronize"}) {
    EXPECT_NE(find(std::string_view(name)), nullptr) << name;
  }
}

TEST(Calls, ColumnsAgreeWithEachOther) {
  for (const Call& call : all_calls()) {
    SCOPED_TRACE(call.name);
    if (call.kind == Kind::kLaunch || call.kind == Kind::kGraphLaunch) {
      EXPECT_NE(call.hook, Hook::kNone);
      EXPECT_EQ(call.on_error, OnError::kPerhaps);
    }
    if (call.kind == Kind::kCopy || call.kind == Kind::kSet) {
      EXPECT_EQ(call.on_error, OnError::kPart);
    }
    if (call.kind == Kind::kQuery) {
      EXPECT_EQ(call.edge, kEdgeNone);
      // Only questions about memory, which the agent may have made, are answered by it.
      EXPECT_TRUE(call.hook == Hook::kNone || call.name.starts_with("cuMem") ||
                  call.name.starts_with("cuPointer"));
    }
    if (call.edge & kEdgeSynchronize) {
      EXPECT_TRUE(call.reports);
    }
    // A call of which the agent must know afterwards has a hook by which it learns of it.
    if (call.kind == Kind::kFree || (call.kind == Kind::kSync && call.reports)) {
      EXPECT_TRUE(call.hook != Hook::kNone || call.name.starts_with("cuEventElapsedTime"));
    }
  }
}

TEST(Calls, EveryCodeIsInTheCatalogue) {
  for (const Codes set : {Codes::kQuery, Codes::kLaunch, Codes::kEnqueue, Codes::kCopy,
                          Codes::kAlloc, Codes::kSync, Codes::kObject, Codes::kModule}) {
    for (const std::int32_t code : codes_of(set)) {
      EXPECT_NE(classifier::find_code(code), nullptr) << code;
    }
  }
}

}  // namespace
}  // namespace gpurecover::driver_api
