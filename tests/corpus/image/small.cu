// SPDX-License-Identifier: Apache-2.0
struct Large {
  float* pointer;
  char rest[7992];
};
extern "C" __global__ void twice(float* to, const float* from) {
  to[threadIdx.x] = 2 * from[threadIdx.x];
}
extern "C" __global__ void large_parameter(const __grid_constant__ Large large, float* to) {
  to[threadIdx.x] = large.pointer[threadIdx.x];
}
