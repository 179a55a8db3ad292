// SPDX-License-Identifier: Apache-2.0
// Copies of whole blocks of memory by one instruction, and tensor maps; from sm_90 on.
#include "device.h"

#if !defined(__clang__) && __CUDA_ARCH__ >= 900
//! @only nvcc
//! @from 90
//! @not-run bulk copies are not in every device
//! <<<4, 32>>> out[4096] in[4096] -> idempotent: bulk copies to shared memory and back
//! <<<4, 32>>> x[4096] x+0 -> clobbers: in place
KERNEL copy_bulk(float* out, const float* in) {
  __shared__ __align__(128) float tile[256];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned tile_at = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  const unsigned barrier_at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier_at));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(barrier_at)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, "
        "[%2];" ::"r"(tile_at),
        "l"(in + blockIdx.x * 256), "r"(barrier_at)
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{.reg .pred p;\nagain:\n mbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n @!p bra "
      "again;}" ::"r"(barrier_at)
      : "memory");
  for (int k = threadIdx.x; k < 256; k += 32)
    tile[k] += 1.0f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(
                     out + blockIdx.x * 256),
                 "r"(tile_at)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

//! @only nvcc
//! @from 90
//! @not-run bulk copies are not in every device
//! <<<1, 32>>> sum[1024] x[1024] -> clobbers: a bulk reduction adds to memory
KERNEL reduce_bulk(float* sum, const float* x) {
  __shared__ __align__(128) float tile[256];
  for (int k = threadIdx.x; k < 256; k += 32)
    tile[k] = x[k];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 1024;" ::"l"(sum),
        "r"(static_cast<unsigned>(__cvta_generic_to_shared(tile)))
        : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};
//! @only nvcc
//! @from 90
//! @not-run a tensor map is made by the driver
//! <<<1, 32>>> {0l 0l 0l 0l 0l 0l 0l 0l 0l 0l 0l 0l 0l 0l 0l 0l} out[1024] -> unknown-ok: the
//! memory behind a tensor map is not in the arguments
KERNEL load_by_tensor_map(const __grid_constant__ TensorMap map, float* out) {
  __shared__ __align__(128) float tile[256];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned barrier_at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier_at));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(barrier_at)
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], [%4];" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(tile))),
        "l"(&map), "r"(0), "r"(0), "r"(barrier_at)
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{.reg .pred p;\nagain:\n mbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n @!p bra "
      "again;}" ::"r"(barrier_at)
      : "memory");
  for (int k = threadIdx.x; k < 256; k += 32)
    out[k] = tile[k];
}
#endif
