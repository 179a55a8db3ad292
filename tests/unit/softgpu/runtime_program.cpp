// SPDX-License-Identifier: Apache-2.0
// A runtime-level program as nvcc's stubs make one, written by hand: it registers an image and its
// symbols, launches through the configuration stack, and prints what the runtime answers.
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <vector>

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name,
                            int limit, void* tid, void* bid, void* block, void* grid, int* warp);
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int ext,
                       size_t size, int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream);
}

namespace {

const char kPtx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .const .align 4 .u32 c_add = 1;\n"
    ".visible .global .align 4 .u32 g_last;\n"
    ".visible .entry fill(.param .u64 p, .param .u32 value) {\n"
    "  .reg .b64 %rd<5>; .reg .b32 %r<8>;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [value]; cvta.to.global.u64 %rd2, %rd1;\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.s32 %r5, %r2, %r3, %r4; ld.const.u32 %r6, [c_add]; add.u32 %r1, %r1, %r6;\n"
    "  add.u32 %r7, %r1, %r5; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd2, %rd3;\n"
    "  st.global.u32 [%rd4], %r7; st.global.u32 [g_last], %r1; ret; }\n"
    ".visible .entry stop() { trap; ret; }\n";

void fill() {}  // the host stubs: only their addresses matter
void stop() {}
uint32_t c_add;
uint32_t g_last;

/// A container as nvcc lays it out, with one uncompressed PTX entry.
std::vector<uint64_t> Container() {
  const size_t text = (sizeof kPtx + 7) / 8 * 8;
  std::vector<uint64_t> words((16 + 0x50 + text) / 8);
  auto* b = reinterpret_cast<uint8_t*>(words.data());
  auto put = [&](size_t at, uint64_t value, size_t size) { memcpy(b + at, &value, size); };
  put(0, 0xBA55ED50, 4);
  put(4, 1, 2);
  put(6, 16, 2);
  put(8, 0x50 + text, 8);
  put(16 + 0, 1, 2);  // PTX
  put(16 + 2, 0x0101, 2);
  put(16 + 4, 0x50, 4);
  put(16 + 8, text, 8);
  put(16 + 0x14, 0x40, 4);
  put(16 + 0x1c, 70, 4);
  put(16 + 0x28, 0x11, 8);
  memcpy(b + 16 + 0x50, kPtx, sizeof kPtx);
  return words;
}

void Say(const char* what, long long value) {
  printf("%s = %lld\n", what, value);
}

template <class F>
cudaError_t Launch(F* stub, dim3 grid, dim3 block, void** args) {
  __cudaPushCallConfiguration(grid, block, 0, nullptr);
  cudaKernel_t kernel = nullptr;
  __cudaGetKernel(&kernel, reinterpret_cast<const void*>(stub));
  dim3 g, b;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
  if (const cudaError_t result = __cudaPopCallConfiguration(&g, &b, &shared, &stream))
    return result;
  return __cudaLaunchKernel(kernel, g, b, args, shared, stream);
}

}  // namespace

int main(int argc, char** argv) {
  const bool kernels = argc > 1 && strcmp(argv[1], "kernels") == 0;
  static std::vector<uint64_t> container = Container();
  static struct {
    uint32_t magic, version;
    void* data;
    void* file;
  } wrapper = {0x466243B1, 1, container.data(), nullptr};
  void** handle = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(handle, reinterpret_cast<const char*>(fill), nullptr, "fill", -1, nullptr,
                         nullptr, nullptr, nullptr, nullptr);
  __cudaRegisterFunction(handle, reinterpret_cast<const char*>(stop), nullptr, "stop", -1, nullptr,
                         nullptr, nullptr, nullptr, nullptr);
  __cudaRegisterVar(handle, reinterpret_cast<char*>(&c_add), nullptr, "c_add", 0, 4, 1, 0);
  __cudaRegisterVar(handle, reinterpret_cast<char*>(&g_last), nullptr, "g_last", 0, 4, 0, 1);
  __cudaRegisterFatBinaryEnd(handle);

  // The last error is the thread's, is cleared by asking, and is not set by "not ready".
  void* p = nullptr;
  Say("free nothing", cudaFree(nullptr));
  Say("bad free", cudaFree(reinterpret_cast<void*>(0x1234)));
  Say("peek", cudaPeekAtLastError());
  Say("last", cudaGetLastError());
  Say("last again", cudaGetLastError());
  Say("malloc 0", cudaMalloc(&p, 0));
  Say("malloc", cudaMalloc(&p, 4096));
  uint32_t words[1024];
  memset(words, 1, sizeof words);
  Say("bad kind", cudaMemcpy(p, words, 16, static_cast<cudaMemcpyKind>(9)));
  Say("copy", cudaMemcpy(p, words, sizeof words, cudaMemcpyHostToDevice));
  memset(words, 0, sizeof words);
  Say("copy back", cudaMemcpy(words, p, sizeof words, cudaMemcpyDefault));
  Say("word", words[1023]);
  cudaPointerAttributes attributes{};
  Say("attributes", cudaPointerGetAttributes(&attributes, p));
  Say("type", attributes.type);
  Say("attributes of host memory", cudaPointerGetAttributes(&attributes, words));
  Say("type", attributes.type);
  cudaDeviceProp properties{};
  Say("properties", cudaGetDeviceProperties(&properties, 0));
  printf("%s %d.%d\n", properties.name, properties.major, properties.minor);
  Say("bad device", cudaSetDevice(7));
  Say("graph", cudaGraphInstantiate(nullptr, nullptr, 0));
  Say("last", cudaGetLastError());
  printf("%s: %s\n", cudaGetErrorName(cudaErrorIllegalAddress),
         cudaGetErrorString(cudaErrorIllegalAddress));
  if (!kernels)
    return 0;

  uint32_t value = 100;
  void* args[] = {&p, &value};
  Say("bad configuration", Launch(fill, dim3(0), dim3(1), args));
  Say("last", cudaGetLastError());
  Say("launch", Launch(fill, dim3(16), dim3(64), args));
  Say("synchronize", cudaDeviceSynchronize());
  cudaMemcpy(words, p, sizeof words, cudaMemcpyDeviceToHost);
  Say("words[1023]", words[1023]);
  uint32_t add = 1000, last = 0;
  Say("to symbol", cudaMemcpyToSymbol(&c_add, &add, 4, 0, cudaMemcpyHostToDevice));
  Say("launch", Launch(fill, dim3(16), dim3(64), args));
  Say("from symbol", cudaMemcpyFromSymbol(&last, &g_last, 4, 0, cudaMemcpyDeviceToHost));
  Say("g_last", last);
  Say("no symbol", cudaMemcpyToSymbol(&add, &add, 4, 0, cudaMemcpyHostToDevice));
  cudaFuncAttributes function{};
  Say("function", cudaFuncGetAttributes(&function, reinterpret_cast<const void*>(fill)));
  Say("threads", function.maxThreadsPerBlock);
  int blocks = 0;
  Say("occupancy", cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                       &blocks, reinterpret_cast<const void*>(fill), 256, 0));
  Say("reset", cudaDeviceReset());
  Say("malloc after reset", cudaMalloc(&p, 4096));
  Say("launch after reset", Launch(fill, dim3(16), dim3(64), args));
  Say("from symbol", cudaMemcpyFromSymbol(&last, &g_last, 4, 0, cudaMemcpyDeviceToHost));
  Say("g_last has its first addend again", last);

  // After a fault: sticky, and no context any more after a reset.
  Say("trap", Launch(stop, dim3(1), dim3(1), nullptr));
  Say("synchronize", cudaDeviceSynchronize());
  Say("last", cudaGetLastError());
  Say("malloc", cudaMalloc(&p, 16));
  Say("reset", cudaDeviceReset());
  Say("malloc", cudaMalloc(&p, 16));
}
