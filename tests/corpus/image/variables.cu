// SPDX-License-Identifier: Apache-2.0
//
// Every kind of variable that a module can have.
#include <cstdio>

__device__ int counter;
__device__ float initialised[4] = {1, 2, 3, 4};
__constant__ float factors[8];
static __device__ int hidden;
__managed__ int shared_with_host;

extern "C" __global__ void uses_all(float* out, int i) {
  __shared__ int scratch[4];
  static int calls;
  scratch[i & 3] = i;
  hidden += 1;
  atomicAdd(&counter, scratch[0]);
  shared_with_host = i;
  calls++;
  out[0] = initialised[i] + factors[i];
  printf("%d\n", calls);
  int* p = static_cast<int*>(malloc(4));
  *p = i;
  out[1] = *p;
}
