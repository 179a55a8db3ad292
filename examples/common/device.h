// SPDX-License-Identifier: Apache-2.0
// What a kernel needs, for each of the three compilers that read an example:
//
//   clang -x cuda --cuda-device-only   the kernels alone, to PTX, without NVIDIA's headers
//   nvcc                               kernels and host code, the <<<>>> form
//   the host compiler                  the host code alone; kernels are prototypes, for their types
//
// A kernel is declared with KERNEL for all three and defined under `#if EXAMPLE_KERNELS`.
#pragma once

#if defined(__NVCC__)

#define EXAMPLE_KERNELS 1
#define EXAMPLE_HOST 1
#define KERNEL __global__ void

#elif defined(__CUDA__)

#define EXAMPLE_KERNELS 1
#define EXAMPLE_HOST 0
// The driver finds a kernel by its name, so that form keeps the names unmangled.
#define KERNEL extern "C" __attribute__((global)) void

#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))

// threadIdx.x and its kin: clang's own spelling of the special registers behind CUDA's.
#define EXAMPLE_INDEX(type, reg)                                                    \
  struct type {                                                                     \
    __declspec(property(get = get_x)) unsigned x;                                   \
    __declspec(property(get = get_y)) unsigned y;                                   \
    __declspec(property(get = get_z)) unsigned z;                                   \
    static __device__ unsigned get_x() { return __nvvm_read_ptx_sreg_##reg##_x(); } \
    static __device__ unsigned get_y() { return __nvvm_read_ptx_sreg_##reg##_y(); } \
    static __device__ unsigned get_z() { return __nvvm_read_ptx_sreg_##reg##_z(); } \
  }
EXAMPLE_INDEX(ThreadIndex, tid);
EXAMPLE_INDEX(BlockIndex, ctaid);
EXAMPLE_INDEX(BlockDim, ntid);
EXAMPLE_INDEX(GridDim, nctaid);
#undef EXAMPLE_INDEX
extern const __device__ ThreadIndex threadIdx;
extern const __device__ BlockIndex blockIdx;
extern const __device__ BlockDim blockDim;
extern const __device__ GridDim gridDim;

static inline __device__ unsigned atomicAdd(unsigned* address, unsigned value) {
  return static_cast<unsigned>(
      __nvvm_atom_add_gen_i(reinterpret_cast<int*>(address), static_cast<int>(value)));
}

#else

#define EXAMPLE_KERNELS 0
#define EXAMPLE_HOST 1
#define KERNEL extern "C" void

#endif
