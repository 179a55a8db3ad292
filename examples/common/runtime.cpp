// SPDX-License-Identifier: Apache-2.0
// gpu.h by the runtime API; the launches themselves are nvcc's <<<>>>.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "common/gpu.h"

namespace gpu {
namespace {

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess)
    return;
  if (code == cudaErrorInsufficientDriver)
    std::fprintf(stderr, "no CUDA driver (libcuda.so.1), or one too old for this program\n");
  std::fprintf(stderr, "CUDA error %d (%s) in %s\n", static_cast<int>(code), cudaGetErrorName(code),
               call);
  std::exit(1);
}

#define EXAMPLE_CHECK(call, ...) check(call(__VA_ARGS__), #call)

}  // namespace

void check_launch();
void check_launch() {
  check(cudaGetLastError(), "cudaLaunchKernel");
}

void init() {
  EXAMPLE_CHECK(cudaSetDevice, 0);
}

void* allocate(std::size_t bytes) {
  void* p = nullptr;
  EXAMPLE_CHECK(cudaMalloc, &p, bytes);
  return p;
}

void release(void* device) {
  EXAMPLE_CHECK(cudaFree, device);
}

void* allocate_pinned(std::size_t bytes) {
  void* p = nullptr;
  EXAMPLE_CHECK(cudaHostAlloc, &p, bytes, cudaHostAllocDefault);
  return p;
}

void release_pinned(void* host) {
  EXAMPLE_CHECK(cudaFreeHost, host);
}

void copy_in(void* device, const void* host, std::size_t bytes) {
  EXAMPLE_CHECK(cudaMemcpy, device, host, bytes, cudaMemcpyHostToDevice);
}

void copy_out(void* host, const void* device, std::size_t bytes) {
  EXAMPLE_CHECK(cudaMemcpy, host, device, bytes, cudaMemcpyDeviceToHost);
}

void copy_in_async(void* device, const void* host, std::size_t bytes, CUstream_st* stream) {
  EXAMPLE_CHECK(cudaMemcpyAsync, device, host, bytes, cudaMemcpyHostToDevice, stream);
}

void copy_out_async(void* host, const void* device, std::size_t bytes, CUstream_st* stream) {
  EXAMPLE_CHECK(cudaMemcpyAsync, host, device, bytes, cudaMemcpyDeviceToHost, stream);
}

void set_zero(void* device, std::size_t bytes) {
  EXAMPLE_CHECK(cudaMemset, device, 0, bytes);
}

CUstream_st* create_stream() {
  cudaStream_t stream;
  EXAMPLE_CHECK(cudaStreamCreateWithFlags, &stream, cudaStreamNonBlocking);
  return stream;
}

void destroy_stream(CUstream_st* stream) {
  EXAMPLE_CHECK(cudaStreamDestroy, stream);
}

void synchronize(CUstream_st* stream) {
  EXAMPLE_CHECK(cudaStreamSynchronize, stream);
}

void synchronize() {
  EXAMPLE_CHECK(cudaDeviceSynchronize);
}

CUevent_st* create_event() {
  cudaEvent_t event;
  EXAMPLE_CHECK(cudaEventCreateWithFlags, &event, cudaEventDisableTiming);
  return event;
}

void destroy_event(CUevent_st* event) {
  EXAMPLE_CHECK(cudaEventDestroy, event);
}

void record(CUevent_st* event, CUstream_st* stream) {
  EXAMPLE_CHECK(cudaEventRecord, event, stream);
}

void wait(CUstream_st* stream, CUevent_st* event) {
  EXAMPLE_CHECK(cudaStreamWaitEvent, stream, event, 0);
}

}  // namespace gpu
