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

#ifdef SOFTGPU_HAS_INTERPRETER
// MEASUREMENTS, sections 2 to 4, line by line, with kernels that run.
std::string Scenario(const std::string& name, const std::string& environment = "") {
  return Execute(SOFTGPU_FAULT_PROGRAM, environment, name);
}

TEST(SoftgpuFault, AMarkerNamesTheLastCompletedKernelAndItsWritesAreThere) {
  for (const int at : {1, 7, 33}) {
    EXPECT_EQ(Scenario("markers " + std::to_string(at)),
              "cuStreamSynchronize(stream) = 719\nmarker = " + std::to_string(at - 1) +
                  "\nwrong words = 0\nwords of later kernels = 0\n");
  }
}

TEST(SoftgpuFault, TheReportWaitsForKernelsOfTheSameDevice) {
  EXPECT_EQ(Scenario("drain"), "reported while it runs = 0\ncode = 719\nmarker = 7\n");
}

TEST(SoftgpuFault, AnotherDevicesKernelGoesOnUntilItsMemoryIsUnmapped) {
  EXPECT_EQ(Scenario("fence", "GPURECOVER_SOFT_DEVICES=2"),
            "cuCtxSynchronize() = 719\ncuMemAlloc(&d, 16) = 719\ngoes on writing = 1\n"
            "cuMemUnmap(memory.address, Vmm::kSize) = 0\nwrites after the fence = 0\n"
            "marker = 0\n");
}

TEST(SoftgpuFault, AHangBecomesAFaultWhenItsMemoryIsUnmapped) {
  EXPECT_EQ(Scenario("hang"),
            "cuStreamQuery(nullptr) = 600\ncuMemUnmap(memory.address, Vmm::kSize) = 0\n"
            "cuCtxSynchronize() = 700\n");
}

TEST(SoftgpuFault, MemoryExportedAfterTheFaultIsWholeElsewhere) {
  const std::pair<const char*, int> kinds[] = {
      {"none", 0}, {"trap", 719}, {"illegal", 700}, {"misaligned", 716}};
  for (const auto& [kind, code] : kinds) {
    const std::string output = Scenario(std::string("export ") + kind);
    EXPECT_THAT(output, HasSubstr("cuCtxSynchronize() = " + std::to_string(code) + "\n")) << kind;
    EXPECT_THAT(output, HasSubstr("wrong words in the importer = 0\n")) << kind << output;
  }
}

TEST(SoftgpuFault, HostReadsManagedAndPinnedMemoryAfterTheFault) {
  EXPECT_EQ(Scenario("readable"), "cuCtxSynchronize() = 719\nmanaged = 203\npinned = 204\n");
}

TEST(SoftgpuFault, AnInterprocessEventAnswersElsewhere) {
  EXPECT_EQ(Scenario("event"),
            "cuCtxSynchronize() = 719\ncuEventQuery(events[0]) = 719\nbefore the fault = 0\n"
            "behind the fault = 600\n");
}

TEST(SoftgpuFault, AResetWaitsForAKernelThatRuns) {
  EXPECT_EQ(Scenario("reset"), "reset while it runs = 0\nreset after = 1\n");
}

TEST(SoftgpuFault, APlannedFaultHitsItsPointWithAnyCode) {
  EXPECT_EQ(Scenario("planned"),
            "cuCtxSynchronize() = 214\ncode = 214\nfired = 1\n"
            "the word of the thread that died is the first launch's = 1\n");
  EXPECT_EQ(Scenario("planned healthy"),
            "cuCtxSynchronize() = 0\ncode = 214\nfired = 1\n"
            "the word of the thread that died is the first launch's = 1\n"
            "cuCtxSynchronize() = 0\nrun again = 1132\n");
}

TEST(SoftgpuFault, PlansFromTheEnvironment) {
  EXPECT_THAT(
      Scenario("record", "GPURECOVER_SOFT_FAULT=launch=1,block=1,thread=0,instr=0,error=220"),
      HasSubstr("cuCtxSynchronize() -> 220\n"));
  EXPECT_THAT(Scenario("record", "GPURECOVER_SOFT_FAULT=launch=x"),
              HasSubstr("softgpu: GPURECOVER_SOFT_FAULT: cannot read 'launch=x'"));
}

TEST(SoftgpuFault, ExactRangesAreRecorded) {
  EXPECT_EQ(Scenario("record"), "writes = 1\nbegin = 16\nend = 416\nreads = 0\n");
}

TEST(SoftgpuFault, StrayAccessesFaultOnlyWhenCheckedAtTheByte) {
  EXPECT_EQ(Scenario("stray"), "cuCtxSynchronize() = 0\n");
  EXPECT_THAT(Scenario("stray", "GPURECOVER_SOFT_VERBOSE=1"),
              HasSubstr("1 accesses outside every allocation"));
  EXPECT_EQ(Scenario("stray", "GPURECOVER_SOFT_MEMCHECK=1"), "cuCtxSynchronize() = 700\n");
}

TEST(SoftgpuFault, AStepBudgetEndsALaunchWith702) {
  EXPECT_EQ(Scenario("budget", "GPURECOVER_SOFT_STEP_BUDGET=100000"), "cuCtxSynchronize() = 702\n");
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
