// SPDX-License-Identifier: Apache-2.0
#include "classifier/kernel_name.h"

#include <cxxabi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace gpurecover::classifier {
namespace {

struct Case {
  const char* mangled;
  const char* base;
};

// As nvcc and clang emit them.
const Case kCases[] = {
    {"vector_add", "vector_add"},
    {"_Z10vector_addPKfS0_Pfi", "vector_add"},
    {"_ZN4heat6detail4stepEPfPKfi", "step"},
    {"_Z5scaleIfEvPT_S0_i", "scale"},
    {"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_"
     "T1_",
     "vectorized_elementwise_kernel"},
    {"_ZN12_GLOBAL__N_16secretEi", "secret"},
    {"_ZL6staticPf", "static"},
    {"_ZN2nsL6staticEPf", "static"},
    {"_ZN8cudaaddsILb1ELin3EE3runEv", "run"},
    {"_Z3fooB5cxx11v", "foo"},
    {"_ZN1a1bB5cxx11Ev", "b"},
    {"_Z4kernIXadL_Z3addiiEEEvPi", "kern"},
    {"_ZN2ns4kernIXplLi1ELi2EEEEvPi", "kern"},
    {"_Z3runIZ4mainEUliE_EvT_i", "run"},
    {"_ZN2ns3runIZ4mainEUliE_EEvT_i", "run"},
    {"_ZN2ns3runIJfdiEEEvDpT_", "run"},
    {"_ZN2ns3runIPFiiEEEvT_", "run"},
    {"_ZN2ns3runIA3_iLPKc0EEEvv", "run"},
    {"_ZN2ns3runIDnLDn0EEEvv", "run"},
    {"_ZN2ns3runILNS_4EnumE3EEEvv", "run"},
    {"_ZN2ns3runINS_6PolicyINS_1AELb0EE5InnerEEEvv", "run"},
    {"_ZStL3foov", "foo"},
    {"_Z6stat_tILi4EZ4mainEUlPiE_EvT0_S0_", "stat_t"},
    {"_ZN1a1b4packIyJLy1ELy2EEEEvPT_", "pack"},
    {"_ZN34_GLOBAL__N__c8986001_5_kn_cu_cname6anon_tIMNS_3LocEiEEvT_", "anon_t"},
    {"_ZN34_GLOBAL__N__c8986001_5_kn_cu_cname6anon_tISt5arrayI6HolderIA3_PKcELm7EEEEvT_", "anon_t"},
    {"_ZZ4mainENKUliE_clEi", "operator()"},
    {"_ZN1SltERKS_", "operator<"},
    {"_ZN3std3fooEv", "foo"},
    // No C++ names: unchanged.
    {"", ""},
    {"_Z", "_Z"},
    {"_Zebra", "_Zebra"},
    {"_ZN", "_ZN"},
    {"_ZN4heat", "_ZN4heat"},
    {"_Z99short", "_Z99short"},
    {"_Z99999999999999999999999999999999x", "_Z99999999999999999999999999999999x"},
    {"ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"},
    {"operator weird name(", "operator weird name("},
};

TEST(KernelName, BaseNames) {
  for (const Case& c : kCases)
    EXPECT_EQ(kernel_base_name(c.mangled), c.base) << c.mangled;
}

TEST(KernelName, DemangledTextGivesTheSame) {
  for (const Case& c : kCases) {
    int status = 0;
    char* text = abi::__cxa_demangle(c.mangled, nullptr, nullptr, &status);
    if (status == 0 && std::string_view(c.mangled).starts_with("_Z")) {
      EXPECT_EQ(base_name_of_demangled(text), c.base) << text;
    }
    std::free(text);
  }
}

TEST(KernelName, OfDemangled) {
  const Case cases[] = {
      {"void at::native::reduce<float, (int)4>(float*)", "reduce"},
      {"(anonymous namespace)::secret(int)", "secret"},
      {"void (anonymous namespace)::secret<int>(int)", "secret"},
      {"step(float*, float const*) [clone .isra.0]", "step"},
      {"void run<main::{lambda(int)#1}>(main::{lambda(int)#1}, int)", "run"},
      {"main::{lambda(int)#1}::operator()(int) const", "operator()"},
      {"void kern<&(add(int, int))>(int*)", "kern"},
      {"void kern<(Cmp)1, (3 > 2)>(int*)", "kern"},
      {"S::operator<(S const&)", "operator<"},
      {"S::operator<<(S const&)", "operator<<"},
      {"S::operator->()", "operator->"},
      {"plain", "plain"},
      {"a::b::plain", "plain"},
      {"tmpl<int>", "tmpl"},
      {"", ""},
      {"(", "("},
      {"<", "<"},
      {"::", "::"},
      {")))>>>", ")))>>>"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(base_name_of_demangled(c.mangled), c.base) << c.mangled;
}

// Templates of linear algebra have names of many thousand bytes, on which the library's demangler
// gives up.
TEST(KernelName, VeryLongNames) {
  std::string type = "N7cutlass4gemm6PolicyILi128ELb1EEE";
  for (int i = 0; i < 8; ++i)
    type = "N7cutlass4PairI" + type + type + "EE";
  const std::string mangled = "_ZN7cutlass6KernelI" + type + "EEvNT_6ParamsE";
  ASSERT_GT(mangled.size(), 5000U);
  EXPECT_EQ(kernel_base_name(mangled), "Kernel");
}

TEST(KernelName, NestingIsBounded) {
  for (const char* piece : {"N1a", "I", "P", "LP", "F", "J", "Z", "Ul"}) {
    std::string mangled = "_ZN1kI";
    for (int i = 0; i < 100000; ++i)
      mangled += piece;
    EXPECT_FALSE(kernel_base_name(mangled).empty());
  }
  EXPECT_FALSE(base_name_of_demangled(std::string(100000, '(')).empty());
  EXPECT_FALSE(base_name_of_demangled(std::string(100000, '<')).empty());
}

TEST(KernelName, DamagedNames) {
  std::mt19937 random(20261130);
  for (const Case& c : kCases) {
    std::string name = c.mangled;
    for (int i = 0; i < 300 && !name.empty(); ++i) {
      std::string damaged = name;
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
      damaged.resize(random() % (damaged.size() + 1));
      EXPECT_EQ(kernel_base_name(damaged).empty(), damaged.empty());
      EXPECT_EQ(base_name_of_demangled(damaged).empty(), damaged.empty());
    }
  }
}

}  // namespace
}  // namespace gpurecover::classifier
