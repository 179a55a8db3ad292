// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/globals.h"

#include <cupti.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cupti/driver_api/driver_api.h"

namespace gpurecover::agent {
namespace {

using recovery::Answer;

constexpr image::ComputeCapability kDevice{9, 0};

// `sets` writes a variable by name, `through` by its argument, `unknown` by an address in memory.
constexpr char kText[] = R"(.version 7.0
.target sm_70
.address_size 64
.global .align 4 .u32 x[4];
.global .align 4 .u32 y[4];
.const .align 4 .u32 c[4];
.visible .entry sets()
{
  .reg .b32 %r<2>;
  mov.u32 %r1, 1;
  st.global.u32 [x], %r1;
  ret;
}
.visible .entry through(.param .u64 unused, .param .u64 to)
{
  .reg .b64 %a<2>;
  .reg .b32 %r<2>;
  mov.u32 %r1, 1;
  ld.param.u64 %a1, [to];
  st.global.u32 [%a1], %r1;
  ret;
}
.visible .entry unknown(.param .u64 table)
{
  .reg .b64 %a<3>;
  .reg .b32 %r<2>;
  mov.u32 %r1, 1;
  ld.param.u64 %a1, [table];
  ld.global.u64 %a2, [%a1];
  st.global.u32 [%a2], %r1;
  ret;
}
)";

// A device whose memory is this process's, and which does a copy when it is told to.
struct Device {
  std::map<std::string, std::vector<std::byte>> variables;
  std::map<CUdeviceptr, std::vector<std::byte>> blocks;
  CUresult copy_code = CUDA_SUCCESS;
  CUresult settle_code = CUDA_SUCCESS;
  bool full = false;
  std::size_t copied = 0;  // bytes
};
Device* device = nullptr;

CUdeviceptr address_of(const std::string& name) {
  return reinterpret_cast<CUdeviceptr>(device->variables.at(name).data());
}

class GlobalsTest : public testing::Test {
 protected:
  GlobalsTest() {
    device = &device_;
    for (const char* name : {"x", "y", "c"}) {
      device_.variables[name].resize(16);
    }
    driver_.cuModuleGetGlobal = [](CUdeviceptr* address, std::size_t* size, CUmodule,
                                   const char* name) {
      const auto at = device->variables.find(name);
      if (at == device->variables.end()) {
        return CUDA_ERROR_NOT_FOUND;
      }
      *address = address_of(name);
      *size = at->second.size();
      return CUDA_SUCCESS;
    };
    driver_.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream) {
      if (device->copy_code == CUDA_SUCCESS) {
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
        device->copied += size;
      }
      return device->copy_code;
    };
    driver_.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
    driver_.cuStreamIsCapturing = [](CUstream stream, CUstreamCaptureStatus* status) {
      *status =
          stream == kCapturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
    images_.add(kModule, kText);
    objects_.note_image(key());
  }

  static ObjectKey key() { return {'m', reinterpret_cast<std::uint64_t>(kModule)}; }

  Globals make() {
    return Globals({driver_, images_, objects_,
                    [](CUdeviceptr* address, std::size_t size) {
                      if (device->full) {
                        return CUDA_ERROR_OUT_OF_MEMORY;
                      }
                      std::vector<std::byte> block(size);
                      *address = reinterpret_cast<CUdeviceptr>(block.data());
                      device->blocks[*address] = std::move(block);
                      return CUDA_SUCCESS;
                    },
                    [](CUdeviceptr address) { device->blocks.erase(address); },
                    [](CUstream) { return device->settle_code; },
                    [](recovery::StreamLog&) { return CUDA_SUCCESS; }, [] { return true; }});
  }

  // As the table of kernels makes it.
  void describe(Kernel& kernel, const std::string& name) {
    kernel.name = name;
    kernel.owner = kModule;
    kernel.summary = images_.summarize(kModule, name, kDevice).summary;
    ASSERT_NE(kernel.summary, nullptr);
    for (const std::string& symbol : kernel.summary->symbols) {
      kernel.symbols.ranges.emplace_back(
          symbol, idempotency::Range{address_of(symbol), address_of(symbol) + 16});
    }
  }

  // The names of the variables that the launch is followed for.
  std::vector<std::string> launch(Globals& globals, const Kernel& kernel,
                                  std::span<const std::byte> arguments = {}) {
    std::vector<GlobalVariable*> variables;
    globals.begin_launch(kernel, arguments, nullptr, log_, variables);
    if (work_) {
      work_();
    }
    globals.copy(variables, nullptr);
    globals.launched(kernel);
    std::vector<std::string> names;
    for (const auto* variable : variables) {
      names.push_back(variable->name);
    }
    Globals::release(variables);
    std::sort(names.begin(), names.end());
    return names;
  }

  static Globals::Standby standby(std::uint64_t shift = 0) {
    return {[](ObjectKey) { return ok(); },
            [shift](const GlobalVariable& variable, std::uint64_t& address, std::uint64_t& size) {
              address = variable.address + shift;
              size = variable.size;
              return ok();
            },
            [](std::uint64_t to, std::uint64_t from, std::uint64_t size) {
              std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
              return ok();
            }};
  }
  static Answer ok() {
    Answer answer;
    answer.sent = true;
    return answer;
  }

  void fill(const std::string& name, int value) {
    std::memset(device_.variables[name].data(), value, 16);
  }
  std::byte first(const std::string& name) { return device_.variables[name][0]; }

  static inline const void* const kModule = reinterpret_cast<const void*>(0x1000);
  static inline CUstream const kCapturing = reinterpret_cast<CUstream>(0x77);
  Device device_;
  driver_api::Driver driver_{};
  ImageStore images_;
  Objects objects_;
  std::atomic<std::uint32_t> word_{0};
  recovery::LaunchLog all_;
  recovery::StreamLog log_{all_, 1, &word_};
  std::function<void()> work_;
};

TEST_F(GlobalsTest, WhatAKernelWritesByNameIsGivenToTheStandby) {
  Globals globals = make();
  Kernel sets;
  describe(sets, "sets");
  work_ = [&] { fill("x", 5); };
  EXPECT_EQ(launch(globals, sets), std::vector<std::string>{"x"});
  EXPECT_EQ(globals.obstacle(), "");
  fill("x", 0);  // as after a fresh load
  EXPECT_EQ(globals.restore(standby()), "");
  EXPECT_EQ(first("x"), std::byte{5});
  // What a launch leaves in the standby is kept too.
  fill("x", 6);
  EXPECT_EQ(globals.refresh(standby(), sets, {}), "");
  fill("x", 0);
  EXPECT_EQ(globals.restore(standby()), "");
  EXPECT_EQ(first("x"), std::byte{6});
}

TEST_F(GlobalsTest, TheStateBeforeTheFirstLaunchIsKnown) {
  Globals globals = make();
  Kernel sets;
  describe(sets, "sets");
  fill("x", 3);
  std::vector<GlobalVariable*> variables;
  globals.begin_launch(sets, {}, nullptr, log_, variables);
  fill("x", 9);  // the launch ran in part, and the context died
  Globals::release(variables);
  EXPECT_EQ(globals.restore(standby()), "");
  EXPECT_EQ(first("x"), std::byte{3});
}

TEST_F(GlobalsTest, AnUnknownKernelMayWriteWhatIsWritableAndWhatTheHostKnows) {
  Globals globals = make();
  Kernel unknown;
  describe(unknown, "unknown");
  EXPECT_EQ(launch(globals, unknown), (std::vector<std::string>{"x", "y"}));
  globals.note_address(key(), "c", address_of("c"), 16, false, false);
  EXPECT_EQ(launch(globals, unknown), (std::vector<std::string>{"c", "x", "y"}));
  EXPECT_EQ(globals.obstacle(), "");
}

TEST_F(GlobalsTest, AnArgumentThatPointsIntoAVariable) {
  Globals globals = make();
  Kernel through;
  describe(through, "through");
  std::vector<std::byte> block(16);
  const auto pass = [&](std::size_t at, std::uint64_t value) {
    std::memcpy(block.data() + at, &value, sizeof value);
  };
  pass(0, address_of("y"));  // which it does not write
  pass(8, address_of("x") + 15);
  EXPECT_TRUE(launch(globals, through, block).empty());  // nobody has its address
  globals.note_address(key(), "x", address_of("x"), 0, false, false);
  globals.note_address(key(), "y", address_of("y"), 16, false, false);
  EXPECT_EQ(launch(globals, through, block), std::vector<std::string>{"x"});
  pass(8, address_of("x") + 16);
  EXPECT_TRUE(launch(globals, through, block).empty());
}

TEST_F(GlobalsTest, WhatTheHostWrites) {
  Globals globals = make();
  globals.note_address(key(), "c", address_of("c"), 16, false, false);
  fill("c", 1);
  EXPECT_EQ(globals.after_write(address_of("c") + 4, address_of("c") + 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(device_.copied, 16U);  // there was no shadow yet
  fill("c", 2);
  EXPECT_EQ(globals.after_write(address_of("c") - 4, address_of("c") + 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(device_.copied, 24U);
  EXPECT_EQ(globals.after_write(address_of("c") + 16, address_of("c") + 20, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(globals.after_write(address_of("c"), address_of("c") + 8, kCapturing), CUDA_SUCCESS);
  EXPECT_EQ(device_.copied, 24U);
  fill("c", 0);
  EXPECT_EQ(globals.restore(standby()), "");
  EXPECT_EQ(device_.variables["c"][7], std::byte{2});
  EXPECT_EQ(device_.variables["c"][8], std::byte{1});
}

TEST_F(GlobalsTest, ContentThatCannotBeKeptStandsInTheWay) {
  const auto lost = [](const std::string& why) {
    return why.find("`x`") != std::string::npos && why.find("lost") != std::string::npos;
  };
  for (int way = 0; way < 4; ++way) {
    Globals globals = make();
    Kernel sets;
    describe(sets, "sets");
    EXPECT_EQ(globals.obstacle(), "");
    device_.full = way == 0;
    device_.copy_code = way == 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    work_ = [&] { device_.copy_code = way == 2 ? CUDA_ERROR_INVALID_VALUE : device_.copy_code; };
    device_.settle_code = way == 3 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    if (way == 3) {
      globals.note_address(key(), "x", address_of("x"), 16, false, false);
      globals.after_write(address_of("x"), address_of("x") + 4, nullptr);
    } else {
      launch(globals, sets);
    }
    EXPECT_TRUE(lost(globals.obstacle())) << way << globals.obstacle();
    device_.full = false;
    device_.copy_code = CUDA_SUCCESS;
    device_.settle_code = CUDA_SUCCESS;
    // A later good copy of a part does not bring the rest back.
    globals.note_address(key(), "x", address_of("x"), 16, false, false);
    globals.after_write(address_of("x"), address_of("x") + 4, nullptr);
    EXPECT_TRUE(lost(globals.obstacle())) << way;
  }
}

TEST_F(GlobalsTest, AnUnknownKernelOfAnUnknownImage) {
  Globals globals = make();
  Kernel kernel;
  kernel.name = "k";
  kernel.owner = reinterpret_cast<const void*>(0x2000);
  std::vector<GlobalVariable*> variables;
  globals.begin_launch(kernel, {}, nullptr, log_, variables);
  EXPECT_EQ(globals.obstacle(), "");  // the driver may refuse it
  globals.launched(kernel);
  EXPECT_NE(globals.obstacle(), "");
}

TEST_F(GlobalsTest, TooMuchToKeep) {
  device_.variables["y"].resize(Globals::kMaxImageBytes);
  Globals globals = make();
  Kernel unknown;
  describe(unknown, "unknown");
  launch(globals, unknown);
  EXPECT_NE(globals.obstacle().find("too large"), std::string::npos) << globals.obstacle();
}

TEST_F(GlobalsTest, AddressesThatChangeAndManagedVariables) {
  Globals globals = make();
  globals.note_address(key(), "x", address_of("x"), 16, false, false);
  EXPECT_EQ(globals.restore(standby()), "");
  EXPECT_NE(globals.restore(standby(256)).find("elsewhere"), std::string::npos);
  globals.note_address(key(), "y", address_of("y"), 16, true, false);
  EXPECT_NE(globals.obstacle().find("managed"), std::string::npos);
}

TEST_F(GlobalsTest, UnloadingForgets) {
  Globals globals = make();
  globals.note_address(key(), "x", address_of("x"), 16, false, false);
  globals.after_write(address_of("x"), address_of("x") + 4, nullptr);
  EXPECT_EQ(device_.blocks.size(), 1U);
  globals.note_unload(key().handle);
  EXPECT_TRUE(device_.blocks.empty());
  EXPECT_EQ(globals.restore(standby(256)), "");
  Kernel unknown;
  describe(unknown, "unknown");
  globals.after_write(address_of("x"), address_of("x") + 4, nullptr);
  EXPECT_TRUE(device_.blocks.empty());
}

TEST(WrittenBy, EveryFormOfCopyAndSet) {
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  const auto of = [](const char* name, const void* params) {
    return written_by(*driver_api::find(name), params);
  };
  cuMemcpyHtoD_v2_params copy{0x1000, nullptr, 24};
  EXPECT_EQ(of("cuMemcpyHtoD_v2", &copy), (Range{0x1000, 0x1018}));
  cuMemcpyAsync_params unified{0x2000, 0x1000, 8, nullptr};
  EXPECT_EQ(of("cuMemcpyAsync", &unified), (Range{0x2000, 0x2008}));
  copy.ByteCount = 0;
  EXPECT_EQ(of("cuMemcpyHtoD_v2", &copy), (Range{0, 0}));
  copy.ByteCount = ~std::size_t{0};
  EXPECT_EQ(of("cuMemcpyHtoD_v2", &copy), (Range{0x1000, ~std::uint64_t{0}}));
  cuMemsetD8_v2_params set8{0x1000, 1, 3};
  cuMemsetD16Async_params set16{0x1000, 1, 3, nullptr};
  cuMemsetD32_v2_params set32{0x1000, 1, 3};
  EXPECT_EQ(of("cuMemsetD8_v2", &set8), (Range{0x1000, 0x1003}));
  EXPECT_EQ(of("cuMemsetD16Async", &set16), (Range{0x1000, 0x1006}));
  EXPECT_EQ(of("cuMemsetD32_v2", &set32), (Range{0x1000, 0x100c}));
  cuMemsetD2D32_v2_params set2d{0x1000, 64, 1, 2, 3};
  EXPECT_EQ(of("cuMemsetD2D32_v2", &set2d), (Range{0x1000, 0x1000 + 128 + 8}));
  cuMemsetD2D8Async_params set2d8{0x1000, 64, 1, 2, 3, nullptr};
  EXPECT_EQ(of("cuMemsetD2D8Async", &set2d8), (Range{0x1000, 0x1000 + 128 + 2}));
  CUDA_MEMCPY2D two{};
  two.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  two.dstDevice = 0x1000;
  two.dstPitch = 32;
  two.dstY = 2;
  two.dstXInBytes = 4;
  two.WidthInBytes = 8;
  two.Height = 3;
  cuMemcpy2D_v2_params copy2d{&two};
  EXPECT_EQ(of("cuMemcpy2D_v2", &copy2d), (Range{0x1044, 0x1044 + 64 + 8}));
  two.dstMemoryType = CU_MEMORYTYPE_HOST;
  EXPECT_EQ(of("cuMemcpy2D_v2", &copy2d), (Range{0, 0}));
  CUDA_MEMCPY3D three{};
  three.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  three.dstDevice = 0x1000;
  three.dstPitch = 32;
  three.dstHeight = 4;
  three.dstZ = 1;
  three.dstY = 1;
  three.WidthInBytes = 8;
  three.Height = 2;
  three.Depth = 2;
  cuMemcpy3D_v2_params copy3d{&three};
  EXPECT_EQ(of("cuMemcpy3D_v2", &copy3d),
            (Range{0x1000 + 5 * 32, 0x1000 + 5 * 32 + (4 + 1) * 32 + 8}));
  // Every copy or set that is served is understood.
  for (const auto& call : driver_api::all_calls()) {
    if ((call.kind == driver_api::Kind::kCopy || call.kind == driver_api::Kind::kSet) &&
        call.after == driver_api::After::kServed) {
      using driver_api::Hook;
      EXPECT_TRUE(call.hook == Hook::kCopyLinear || call.hook == Hook::kCopy2d ||
                  call.hook == Hook::kCopy3d || call.hook == Hook::kSet1d ||
                  call.hook == Hook::kSet2d)
          << call.name;
    }
  }
}

}  // namespace
}  // namespace gpurecover::agent
