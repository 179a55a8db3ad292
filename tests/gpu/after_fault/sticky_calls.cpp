// SPDX-License-Identifier: Apache-2.0
// Launches the kernel `victim`, waits for it, and then makes many calls of every kind, whatever
// they answer: `call | code` for each. Under `gpurecover inject --kernel victim` it shows what a
// program sees after a fault; a latched error must look like a real one, line by line.
#include <cuda.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

const char* const kPtx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 g_word = 5;\n"
    ".visible .entry k_empty() { ret; }\n"
    ".visible .entry k_args(.param .u64 p, .param .u32 n) { ret; }\n"
    ".visible .entry victim(.param .u64 p, .param .u32 n) {\n"
    "  .reg .b64 %rd<4>; .reg .b32 %r<7>; .reg .pred %p<2>;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd1, %rd1;\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.s32 %r5, %r2, %r3, %r4; setp.ge.u32 %p1, %r5, %r1; @%p1 bra END;\n"
    "  mul.wide.u32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r5;\n"
    "END: ret; }\n";

void must(const char* what, CUresult code) {
  if (code != CUDA_SUCCESS) {
    std::printf("setup: %s | %d\n", what, static_cast<int>(code));
    std::exit(3);
  }
}
#define MUST(call) must(#call, call)
#define ASK(call)                                            \
  do {                                                       \
    std::printf("%s | %d\n", #call, static_cast<int>(call)); \
    std::fflush(stdout);                                     \
  } while (false)

CUresult launch(CUfunction f, CUstream stream, void** params = nullptr, unsigned grid = 1,
                unsigned block = 1) {
  return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, params, nullptr);
}

}  // namespace

int main() {
  constexpr std::size_t kChunk = 2 << 20;
  CUdevice device = 0, dev = 0;
  CUcontext context = nullptr, c = nullptr;
  CUmodule module = nullptr, m = nullptr;
  CUlibrary library = nullptr, l = nullptr;
  CUkernel kernel = nullptr, k = nullptr;
  CUfunction empty = nullptr, args = nullptr, victim = nullptr, f = nullptr;
  CUstream stream = nullptr, s = nullptr;
  CUevent event = nullptr, e = nullptr;
  CUdeviceptr memory = 0, reserved = 0, d = 0;
  CUmemoryPool pool = nullptr;
  CUmemGenericAllocationHandle handle{}, h{}, r{};
  CUgraph graph = nullptr;
  CUipcMemHandle ipc{};
  void *pinned = nullptr, *p = nullptr;
  const char* text = nullptr;
  std::uint32_t word = 0;
  unsigned u = 0;
  int n = 0, active = 0;
  float ms = 0;
  std::size_t a = 0, b = 0;
  unsigned long long x = 0;
  CUstreamCaptureStatus status{};
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, kPtx));
  MUST(cuModuleGetFunction(&empty, module, "k_empty"));
  MUST(cuModuleGetFunction(&args, module, "k_args"));
  MUST(cuModuleGetFunction(&victim, module, "victim"));
  MUST(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  MUST(cuLibraryGetKernel(&kernel, library, "k_args"));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, 0));
  MUST(cuEventRecord(event, stream));
  MUST(cuMemAlloc(&memory, 1 << 16));
  MUST(cuMemHostAlloc(&pinned, 4096, 0));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemAddressReserve(&reserved, 4 * kChunk, 0, 0, 0));
  MUST(cuMemCreate(&handle, kChunk, &properties, 0));
  MUST(cuMemMap(reserved, kChunk, 0, handle, 0));
  MUST(cuMemSetAccess(reserved, kChunk, &access, 1));

  unsigned count = 1 << 14;
  void* params[] = {&memory, &count};
  ASK(launch(victim, stream, params, count / 256, 256));
  ASK(cuStreamSynchronize(stream));
  ASK(cuStreamSynchronize(stream));
  ASK(cuCtxSynchronize());

  ASK(cuInit(0));
  ASK(cuDriverGetVersion(&n));
  ASK(cuDeviceGetCount(&n));
  ASK(cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  ASK(cuDeviceTotalMem(&a, 0));
  ASK(cuDeviceGetDefaultMemPool(&pool, 0));
  ASK(cuGetErrorName(CUDA_ERROR_ASSERT, &text));
  ASK(cuCtxGetCurrent(&c));
  std::printf("is current | %d\n", c == context);
  ASK(cuCtxGetDevice(&dev));
  ASK(cuCtxGetFlags(&u));
  ASK(cuCtxGetLimit(&a, CU_LIMIT_STACK_SIZE));
  ASK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  ASK(cuCtxGetCacheConfig(reinterpret_cast<CUfunc_cache*>(&n)));
  ASK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  ASK(cuCtxGetApiVersion(context, &u));
  ASK(cuCtxGetStreamPriorityRange(&n, &n));
  ASK(cuCtxGetId(context, &x));
  ASK(cuCtxPushCurrent(context));
  ASK(cuCtxPopCurrent(&c));
  ASK(cuCtxSetCurrent(context));
  ASK(cuDevicePrimaryCtxGetState(0, &u, &active));
  ASK(cuThreadExchangeStreamCaptureMode(&mode));

  ASK(cuMemGetInfo(&a, &b));
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuMemAllocPitch(&d, &a, 64, 4, 4));
  ASK(cuMemAllocManaged(&d, 4096, CU_MEM_ATTACH_GLOBAL));
  ASK(cuMemHostAlloc(&p, 4096, 0));
  ASK(cuMemAllocHost(&p, 4096));
  ASK(cuMemAllocAsync(&d, 4096, stream));
  ASK(cuMemHostGetDevicePointer(&d, pinned, 0));
  ASK(cuMemsetD8(memory, 0, 16));
  ASK(cuMemsetD32Async(memory, 0, 16, stream));
  ASK(cuMemcpyHtoD(memory, &word, 4));
  ASK(cuMemcpyDtoH(&word, memory, 4));
  ASK(cuMemcpyDtoDAsync(memory, memory + 4096, 64, stream));
  ASK(cuMemcpyHtoDAsync(memory, &word, 4, stream));
  ASK(cuMemcpyDtoHAsync(&word, memory, 4, stream));
  ASK(cuMemGetAddressRange(&d, &a, memory));
  ASK(cuPointerGetAttribute(&u, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  ASK(cuIpcGetMemHandle(&ipc, memory));
  std::printf("untouched | %u\n", word);

  ASK(cuStreamCreate(&s, 0));
  ASK(cuStreamCreateWithPriority(&s, 0, 0));
  ASK(cuStreamQuery(nullptr));
  ASK(cuStreamQuery(stream));
  ASK(cuStreamSynchronize(nullptr));
  ASK(cuStreamIsCapturing(stream, &status));
  ASK(cuStreamGetFlags(stream, &u));
  ASK(cuStreamGetPriority(stream, &n));
  ASK(cuStreamGetCtx(stream, &c));
  ASK(cuStreamWaitEvent(stream, event, 0));
  ASK(cuLaunchHostFunc(
      stream, [](void*) { std::printf("a host function ran\n"); }, nullptr));
  ASK(cuStreamWriteValue32(stream, memory, 1, 0));
  ASK(cuEventCreate(&e, 0));
  ASK(cuEventRecord(event, stream));
  ASK(cuEventQuery(event));
  ASK(cuEventSynchronize(event));
  ASK(cuEventElapsedTime(&ms, event, event));
  ASK(launch(empty, stream));
  ASK(launch(reinterpret_cast<CUfunction>(kernel), stream, params));
  ASK(launch(victim, stream, params, count / 256, 256));
  ASK(cuLaunchCooperativeKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, nullptr));

  ASK(cuModuleGetFunction(&f, module, "k_empty"));
  ASK(cuModuleGetGlobal(&d, &a, module, "g_word"));
  ASK(cuModuleLoadData(&m, kPtx));
  ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, empty));
  ASK(cuFuncSetAttribute(empty, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
  ASK(cuFuncGetParamInfo(args, 0, &a, &b));
  ASK(cuFuncGetName(&text, empty));
  ASK(cuFuncGetModule(&m, empty));
  ASK(cuLibraryGetKernel(&k, library, "k_args"));
  ASK(cuLibraryGetGlobal(&d, &a, library, "g_word"));
  ASK(cuLibraryLoadData(&l, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  ASK(cuKernelGetName(&text, kernel));
  ASK(cuKernelGetParamInfo(kernel, 0, &a, &b));
  ASK(cuKernelGetFunction(&f, kernel));
  ASK(cuKernelGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0));
  ASK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, empty, 128, 0));

  ASK(cuMemGetAllocationGranularity(&a, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ASK(cuMemCreate(&h, kChunk, &properties, 0));
  ASK(cuMemMap(reserved + kChunk, kChunk, 0, h, 0));
  ASK(cuMemSetAccess(reserved + kChunk, kChunk, &access, 1));
  ASK(cuMemGetAccess(&x, &access.location, reserved));
  ASK(cuMemRetainAllocationHandle(&r, reinterpret_cast<void*>(reserved)));
  ASK(cuMemExportToShareableHandle(&n, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASK(cuMemUnmap(reserved + kChunk, kChunk));
  ASK(cuMemUnmap(reserved, kChunk));
  ASK(cuMemRelease(handle));
  ASK(cuMemAddressFree(reserved, 4 * kChunk));
  ASK(cuGraphCreate(&graph, 0));

  ASK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(cuStreamEndCapture(stream, &graph));
  ASK(cuMemFree(memory));
  ASK(cuMemFreeHost(pinned));
  ASK(cuStreamDestroy(stream));
  ASK(cuEventDestroy(event));
  ASK(cuModuleUnload(module));
  ASK(cuLibraryUnload(library));
  std::fflush(stdout);
  // Not what is asked about, and not the same with every driver: the tearing down.
  _exit(0);
}
