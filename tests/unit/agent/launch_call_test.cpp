// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/launch_call.h"

#include <cupti.h>
#include <gtest/gtest.h>

#include <cstring>

namespace gpurecover::agent {
namespace {

using driver_api::Hook;

template <class T>
T handle(std::uintptr_t value) {
  return reinterpret_cast<T>(value);
}

// Over what an earlier launch left, as the agent does.
LaunchCall read(Hook form, std::uint32_t cbid, const void* params) {
  LaunchCall call;
  call.graph = handle<CUgraphExec>(0xbad0);
  call.function = handle<CUfunction>(0xbad1);
  call.stream = handle<CUstream>(0xbad2);
  call.grid[0] = call.grid[1] = call.grid[2] = 77;
  call.block[0] = call.block[1] = call.block[2] = 78;
  call.shared_bytes = 79;
  call.config = handle<const CUlaunchConfig*>(0xbad3);
  call.kernel_params = call.extra = handle<void**>(0xbad4);
  read_launch(form, cbid, params, call);
  return call;
}

cuLaunchKernel_params launch_params() {
  cuLaunchKernel_params p{};
  p.f = handle<CUfunction>(0x1000);
  p.gridDimX = 3;
  p.gridDimY = 4;
  p.gridDimZ = 5;
  p.blockDimX = 32;
  p.blockDimY = 2;
  p.blockDimZ = 1;
  p.sharedMemBytes = 48;
  p.hStream = handle<CUstream>(0x2000);
  return p;
}

TEST(LaunchCall, ReadsEveryForm) {
  const cuLaunchKernel_params plain = launch_params();
  const LaunchCall a = read(Hook::kLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &plain);
  EXPECT_EQ(a.function, plain.f);
  EXPECT_EQ(a.grid[2], 5U);
  EXPECT_EQ(a.block[1], 2U);
  EXPECT_EQ(a.shared_bytes, 48U);
  EXPECT_EQ(a.stream, plain.hStream);

  CUlaunchConfig config{};
  config.gridDimX = 7;
  config.hStream = handle<CUstream>(0x3000);
  cuLaunchKernelEx_params ex{};
  ex.config = &config;
  ex.f = handle<CUfunction>(0x1008);
  const LaunchCall b = read(Hook::kLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, &ex);
  EXPECT_EQ(b.function, ex.f);
  EXPECT_EQ(b.grid[0], 7U);
  EXPECT_EQ(b.stream, config.hStream);

  cuGraphLaunch_params graph{handle<CUgraphExec>(0x4000), nullptr};
  const LaunchCall c = read(Hook::kGraphLaunch, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, &graph);
  EXPECT_EQ(c.graph, graph.hGraph);
}

TEST(LaunchCall, NothingOfAnEarlierLaunchIsLeft) {
  void* arguments[1] = {};
  void* extra[1] = {};
  CUlaunchConfig config{};
  cuLaunchKernel_params plain = launch_params();
  plain.kernelParams = arguments;
  plain.extra = extra;
  const cuLaunchCooperativeKernel_params cooperative{};
  const cuLaunchKernelEx_params ex{&config, nullptr, nullptr, nullptr};
  const cuLaunchKernelEx_params without_config{};
  const cuGraphLaunch_params graph{};
  const cuLaunchGrid_params other{};
  const struct {
    Hook form;
    const void* params;
  } calls[] = {{Hook::kLaunchKernel, &plain}, {Hook::kLaunchCooperative, &cooperative},
               {Hook::kLaunchKernelEx, &ex},  {Hook::kLaunchKernelEx, &without_config},
               {Hook::kGraphLaunch, &graph},  {Hook::kLaunchUnprotected, &other}};
  for (const auto& [form, params] : calls) {
    const LaunchCall call = read(form, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, params);
    LaunchCall fresh;
    read_launch(form, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, params, fresh);
    SCOPED_TRACE(static_cast<int>(form));
    EXPECT_EQ(call.form, form);
    EXPECT_EQ(call.params, params);
    EXPECT_EQ(call.function, fresh.function);
    EXPECT_EQ(call.graph, fresh.graph);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(call.grid[i], fresh.grid[i]);
      EXPECT_EQ(call.block[i], fresh.block[i]);
    }
    EXPECT_EQ(call.shared_bytes, fresh.shared_bytes);
    EXPECT_EQ(call.stream, fresh.stream);
    EXPECT_EQ(call.kernel_params, fresh.kernel_params);
    EXPECT_EQ(call.extra, fresh.extra);
    EXPECT_EQ(call.config, fresh.config);
  }
}

TEST(LaunchCall, StreamZeroMeansWhatTheFormOfTheCallMeans) {
  cuLaunchKernel_params p = launch_params();
  p.hStream = nullptr;
  EXPECT_EQ(read(Hook::kLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &p).explicit_stream(),
            CU_STREAM_LEGACY);
  EXPECT_EQ(
      read(Hook::kLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, &p).explicit_stream(),
      CU_STREAM_PER_THREAD);
}

// Suppressing must be undone without a trace, and must never write through a pointer of the app's.
TEST(LaunchCall, SuppressAndRestoreLeaveTheAppsDataAsItWas) {
  CUlaunchConfig scratch{};

  cuLaunchKernel_params plain = launch_params();
  const cuLaunchKernel_params plain_before = plain;
  LaunchCall call = read(Hook::kLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &plain);
  suppress(call, scratch);
  EXPECT_EQ(plain.gridDimX, 0U);
  restore(call);
  EXPECT_EQ(std::memcmp(&plain, &plain_before, sizeof plain), 0);

  CUlaunchConfig config{};
  config.gridDimX = 7;
  config.gridDimY = 1;
  const CUlaunchConfig config_before = config;
  cuLaunchKernelEx_params ex{};
  ex.config = &config;
  call = read(Hook::kLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, &ex);
  suppress(call, scratch);
  EXPECT_EQ(ex.config->gridDimX, 0U);
  EXPECT_EQ(ex.config->gridDimY, 1U);
  EXPECT_EQ(std::memcmp(&config, &config_before, sizeof config), 0);
  restore(call);
  EXPECT_EQ(ex.config, &config);

  cuGraphLaunch_params graph{handle<CUgraphExec>(0x4000), nullptr};
  call = read(Hook::kGraphLaunch, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, &graph);
  suppress(call, scratch);
  EXPECT_EQ(graph.hGraph, nullptr);
  restore(call);
  EXPECT_EQ(graph.hGraph, handle<CUgraphExec>(0x4000));
}

TEST(LaunchCall, AnExLaunchWithoutAConfigIsNotOurProblem) {
  cuLaunchKernelEx_params ex{};
  CUlaunchConfig scratch{};
  const LaunchCall call =
      read(Hook::kLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, &ex);
  suppress(call, scratch);
  EXPECT_EQ(ex.config, nullptr);
  restore(call);
  EXPECT_EQ(relaunch(driver_api::Driver{}, call), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gpurecover::agent
