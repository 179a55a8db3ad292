// SPDX-License-Identifier: Apache-2.0
// softgpu's libcuda and libcupti from outside, each test in a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using testing::HasSubstr;

std::string Execute(const std::string& program, const std::string& environment,
                    const std::string& arguments) {
  const std::string command =
      environment + " LD_LIBRARY_PATH=" SOFTGPU_DIR " " + program + " " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (size_t n = fread(buffer, 1, sizeof buffer, pipe))
    output.append(buffer, n);
  pclose(pipe);
  return output;
}

std::string Ask(const std::string& environment, const std::string& arguments) {
  return Execute(SOFTGPU_ANSWERS, environment, arguments);
}

std::map<std::string, std::vector<std::string>> BySection(std::istream&& in) {
  std::map<std::string, std::vector<std::string>> sections;
  for (std::string line; std::getline(in, line);)
    if (const size_t bar = line.find(" | "); bar != std::string::npos)
      sections[line.substr(0, bar)].push_back(line);
  return sections;
}

// Everything that the questions ask, answered as an H200 answers it. Sections that run kernels are
// asked where there is an interpreter.
TEST(SoftgpuDriver, AnswersAsAnH200Does) {
#ifdef SOFTGPU_HAS_INTERPRETER
  const auto soft = BySection(std::istringstream(Ask("", "")));
#else
  const auto soft = BySection(std::istringstream(Ask("", "--no-kernels")));
#endif
  const auto golden = BySection(std::ifstream(SOFTGPU_GOLDEN));
  ASSERT_GE(golden.size(), 10u);
  ASSERT_GE(soft.size(), 4u);
  for (const auto& [section, lines] : soft) {
    ASSERT_TRUE(golden.contains(section)) << section;
    EXPECT_EQ(lines, golden.at(section)) << section;
  }
}

std::string Injected(const std::string& mode, const std::string& section) {
  return Ask("CUDA_INJECTION64_PATH=" SOFTGPU_INJECTION " SOFTGPU_TEST_INJECTION=" + mode,
             "--only '" + section + "'");
}

TEST(SoftgpuCallbacks, EnterAndExitOfEveryCallWithOneSubscriber) {
  const std::string log = Injected("log", "memory");
  EXPECT_THAT(log, HasSubstr("subscribed 0, again 39\n"));
  EXPECT_THAT(log, HasSubstr("resource 1 context 1\n"));
  EXPECT_THAT(log, HasSubstr("cuMemAlloc_v2 enter -\ncuMemAlloc_v2 exit 0 same 1 -\n"));
  EXPECT_THAT(log, HasSubstr("cuMemFreeHost exit 1 same 1"));
}

TEST(SoftgpuCallbacks, ReturnValuesAreTheSubscribers) {
  EXPECT_THAT(Injected("exit=214", "memory"), HasSubstr("cuMemFree(0) | 214\n"));
  EXPECT_THAT(Injected("exit=0", "memory"), HasSubstr("cuMemFree(0x1234) | 0\n"));
}

TEST(SoftgpuCallbacks, ParametersChangedAtEnterTakeEffect) {
  EXPECT_THAT(Injected("size=5000", "memory"), HasSubstr("memory | size | 5000\n"));
}

TEST(SoftgpuCallbacks, AllocationCanBeSuppressedAndAnswered) {
  const std::string log = Injected("suppress", "memory");
  EXPECT_THAT(log, HasSubstr("driver said 1\nmemory | cuMemAlloc(&d, 1000) | 0\n"));
}

TEST(SoftgpuCallbacks, DriverMayBeCalledInsideACallback) {
  EXPECT_THAT(Injected("nested", "memory"),
              HasSubstr("nested enter\nnested exit\nown allocation 0\n"));
}

TEST(SoftgpuDriver, AMissingInjectionLibraryIsOneLineAndNoHarm) {
  const std::string output = Ask("CUDA_INJECTION64_PATH=/no/such/lib.so", "--only streams");
  EXPECT_THAT(output, HasSubstr("softgpu: CUDA_INJECTION64_PATH: "));
  EXPECT_THAT(output, HasSubstr("capturing | 0\n"));
}

TEST(SoftgpuRuntime, ErrorsAreTheThreadsAndAreClearedByAsking) {
  const std::string output = Execute(SOFTGPU_RUNTIME_PROGRAM, "", "");
  EXPECT_THAT(output, HasSubstr("free nothing = 0\nbad free = 1\npeek = 1\nlast = 1\n"
                                "last again = 0\nmalloc 0 = 0\nmalloc = 0\nbad kind = 21\n"
                                "copy = 0\ncopy back = 0\nword = 16843009\n"));
  EXPECT_THAT(output, HasSubstr("attributes = 0\ntype = 2\nattributes of host memory = 0\n"
                                "type = 0\nproperties = 0\ngpurecover softgpu 9.0\n"
                                "bad device = 101\ngraph = 801\nlast = 801\n"
                                "cudaErrorIllegalAddress: illegal address\n"));
}

#ifdef SOFTGPU_HAS_INTERPRETER
TEST(SoftgpuRuntime, RegisteredKernelsAndSymbolsWork) {
  const std::string output = Execute(SOFTGPU_RUNTIME_PROGRAM, "", "kernels");
  EXPECT_THAT(output, HasSubstr("bad configuration = 9\nlast = 9\nlaunch = 0\nsynchronize = 0\n"
                                "words[1023] = 1124\nto symbol = 0\nlaunch = 0\n"
                                "from symbol = 0\ng_last = 1100\nno symbol = 13\n"
                                "function = 0\nthreads = 1024\noccupancy = 0\n"));
  EXPECT_THAT(output, HasSubstr("reset = 0\nmalloc after reset = 0\nlaunch after reset = 0\n"
                                "from symbol = 0\ng_last has its first addend again = 101\n"));
}

// MEASUREMENTS, section 2: after a fault cudaDeviceReset returns 0 and then nothing but 46 comes.
TEST(SoftgpuRuntime, AFaultIsStickyAndAResetBringsNoContextBack) {
  EXPECT_THAT(Execute(SOFTGPU_RUNTIME_PROGRAM, "", "kernels"),
              HasSubstr("trap = 0\nsynchronize = 719\nlast = 719\nmalloc = 719\nreset = 0\n"
                        "malloc = 46\n"));
}
#endif

TEST(SoftgpuDriver, EverySymbolOfTheDriverIsExported) {
  // The toolkit's stub has every function of the real driver.
  auto symbols = [](const std::string& file) {
    std::set<std::string> names;
    FILE* pipe = popen(("nm -D --defined-only " + file).c_str(), "r");
    char name[512], type[8];
    while (fscanf(pipe, "%*s %7s %511s", type, name) == 2)
      if (std::string(name).rfind("cu", 0) == 0)
        names.insert(name);
    pclose(pipe);
    return names;
  };
  const auto ours = symbols(SOFTGPU_DIR "/libcuda.so.1");
  EXPECT_GE(ours.size(), 600u);
  for (const std::string& name : symbols(SOFTGPU_STUB))
    EXPECT_TRUE(ours.contains(name)) << name;
}

}  // namespace
