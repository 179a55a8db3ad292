// SPDX-License-Identifier: Apache-2.0
//
// Kernels that fail for real; compiled as device_ops.cu is, into a module of its own, so that no
// program that is not to fail has them (an assert brings the driver's output buffer with it).

#define GLOBAL extern "C" __attribute__((global)) void

extern "C" __attribute__((device)) void __assertfail(const char* condition, const char* file,
                                                     unsigned line, const char* function,
                                                     unsigned long char_size);

__attribute__((device)) unsigned long long gpurecover_fault_words[2];

GLOBAL gpurecover_fault_trap() { asm volatile("trap;"); }

// `address` is in no allocation of any process: device memory lies far above it.
GLOBAL gpurecover_fault_illegal_address(unsigned long long address) {
  asm volatile("st.global.u32 [%0], 1;" ::"l"(address) : "memory");
}

GLOBAL gpurecover_fault_misaligned() {
  const auto address = (unsigned long long)&gpurecover_fault_words[0] + 1;
  asm volatile("st.u32 [%0], 1;" ::"l"(address) : "memory");
}

GLOBAL gpurecover_fault_assert() {
  __assertfail("injected by gpurecover", "device_faults.cu", 1, "gpurecover_fault_assert", 1);
}
