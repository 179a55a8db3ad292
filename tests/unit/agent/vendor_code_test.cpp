// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/vendor_code.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cupti/agent/image_store.h"

namespace gpurecover::agent {
namespace {

TEST(VendorCode, LibrariesAreKnownByTheNameOfTheirFile) {
  for (const char* path :
       {"/usr/local/cuda/lib64/libcublas.so.12", "libcublasLt.so", "/a/b/libcudnn_ops.so.9.1.0",
        "libcudnn_engines_precompiled.so.9", "libcufft.so.11", "libcusparseLt.so.0",
        "libcusolverMg.so.11", "libcurand.so.10", "/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "libnvrtc.so.12", "libnvrtc-builtins.so.12.4", "libnppial.so.12", "libnvjpeg.so.12",
        "libcutensor.so.2", "libcutensornet.so.2", "libnvinfer_plugin.so.10", "libcuda.so.1",
        "libcublas-1a2b3c.so.12"}) {
    EXPECT_TRUE(is_vendor_library(path)) << path;
  }
  for (const char* path : {"/home/libcublas/app", "libtorch_cuda.so", "app", "", "/",
                           "libmycublas.so", "libcudf.so", "kernel.cubin", "/libcublas/"}) {
    EXPECT_FALSE(is_vendor_library(path)) << path;
  }
}

TEST(VendorCode, StaticallyLinkedKernelsAreKnownByTheirOwnNames) {
  for (const char* symbol :
       {"ampere_sgemm_128x64_nn", "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x128x8",
        "_ZN8cublasLt19splitKreduce_kernelILi32EEEvv", "_ZN5cudnn11ops6kernelEv",
        "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4", "ncclDevKernel_AllReduce_Sum_f32",
        "nvjet_hsh_128x128_64x4_2x1_v_bz_NNT"}) {
    EXPECT_TRUE(is_vendor_kernel(symbol)) << symbol;
  }
  for (const char* symbol :
       {"vector_add", "_ZN7cutlass6KernelI4GemmEEvNT_6ParamsE",
        "_ZN2at6native29vectorized_elementwise_kernelEv", "", "my_ampere_kernel"}) {
    EXPECT_FALSE(is_vendor_kernel(symbol)) << symbol;
  }
}

class CodeInFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(IMAGES_DIR "/kernels_90.cubin", std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    cubin_ = text.str();
    if (cubin_.empty())
      GTEST_SKIP() << "no compiler for device code was there when the tests were built";
    directory_ =
        std::filesystem::temp_directory_path() / ("gpurecover-code-" + std::to_string(::getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override {
    if (!directory_.empty())
      std::filesystem::remove_all(directory_);
  }
  KernelKnowledge from_file(const std::string& name, const std::string& kernel) {
    std::ofstream(directory_ / name, std::ios::binary) << cubin_;
    ImageStore store;
    store.add_file(this, directory_ / name);
    return store.summarize(this, kernel, {9, 0});
  }
  std::string cubin_;
  std::filesystem::path directory_;
};

TEST_F(CodeInFiles, TheProgramsOwnMachineCodeIsAnalysed) {
  const KernelKnowledge k = from_file("app.cubin", "vector_add");
  ASSERT_NE(k.summary, nullptr) << k.reason;
  EXPECT_TRUE(k.summary->machine_code);
  EXPECT_TRUE(k.summary->defeats.empty());
  EXPECT_EQ(k.summary->accesses.size(), 3U);
}

TEST_F(CodeInFiles, ThatOfALibraryOfNvidiaIsNot) {
  const KernelKnowledge k = from_file("libcublasLt.so.12", "vector_add");
  EXPECT_EQ(k.summary, nullptr);
  EXPECT_EQ(k.reason, "kernel of libcublasLt.so.12: not decoded, see docs/idempotency.md");
}

TEST_F(CodeInFiles, ACopyIsAnalysedWhereNoSuchLibraryIsLoaded) {
  ASSERT_FALSE(loaded_vendor_library());
  ImageStore store;
  {
    const std::vector<char> copy(cubin_.begin(), cubin_.end());
    store.add(this, copy.data());
  }
  const KernelKnowledge k = store.summarize(this, "vector_add", {9, 0});
  ASSERT_NE(k.summary, nullptr) << k.reason;
  EXPECT_TRUE(k.summary->machine_code);
}

TEST_F(CodeInFiles, EveryRefusalHasItsReason) {
  EXPECT_NE(from_file("app.cubin", "no such kernel").reason, "");
  const KernelKnowledge refused = from_file("app.cubin", "recursion");
  EXPECT_EQ(refused.summary, nullptr);
  EXPECT_NE(refused.reason.find("recursion"), std::string::npos) << refused.reason;
  EXPECT_NE(refused.reason.find("0x"), std::string::npos) << refused.reason;
}

}  // namespace
}  // namespace gpurecover::agent
