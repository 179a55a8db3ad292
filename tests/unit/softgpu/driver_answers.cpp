// SPDX-License-Identifier: Apache-2.0
// Asks the driver at hand many small questions and prints one line for each: what it answered. The
// same program runs on a real GPU and on softgpu; driver_answers.h200.txt is what an H200 (driver
// 580.159.04) said, and the test compares softgpu with it.
//
// Sections that need a kernel to run are left out with --no-kernels. Each section is a process of
// its own, since a fault ends a process's CUDA.
#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

// Exported by every driver, but not declared by headers that know newer forms.
extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

const char* section = "";

void Say(const char* what, long long answer) {
  printf("%s | %s | %lld\n", section, what, answer);
  fflush(stdout);
}
#define ASK(call) Say(#call, static_cast<long long>(call))
#define VALUE(text, value) Say(text, static_cast<long long>(value))

const char* kPtx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 g_word = 5;\n"
    ".visible .entry k_empty() { ret; }\n"
    ".visible .entry k_args(.param .u64 p, .param .u32 n) {\n"
    "  .reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
    "  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd2, %rd1;\n"
    "  st.global.u32 [%rd2], %r1; ret; }\n"
    ".visible .entry k_trap() { trap; ret; }\n"
    ".visible .entry k_bounded() .maxntid 64, 1, 1 { ret; }\n";

CUcontext context;
CUmodule module;
CUlibrary library;
CUkernel kernel;
CUfunction empty, args, trap, bounded;

bool Setup() {
  CUdevice device = 0;
  bool good = cuInit(0) == 0 && cuDeviceGet(&device, 0) == 0 &&
              cuDevicePrimaryCtxRetain(&context, device) == 0 && cuCtxSetCurrent(context) == 0;
  if (!good)
    Say("setup failed", -1);
  return good;
}

bool SetupKernels() {
  bool good = Setup() && cuModuleLoadData(&module, kPtx) == 0 &&
              cuModuleGetFunction(&empty, module, "k_empty") == 0 &&
              cuModuleGetFunction(&args, module, "k_args") == 0 &&
              cuModuleGetFunction(&trap, module, "k_trap") == 0 &&
              cuModuleGetFunction(&bounded, module, "k_bounded") == 0 &&
              cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0) == 0 &&
              cuLibraryGetKernel(&kernel, library, "k_args") == 0;
  if (!good)
    Say("kernel setup failed", -1);
  return good;
}

CUresult Launch(CUfunction f, void** params = nullptr, unsigned grid = 1, unsigned block = 1,
                unsigned shared = 0, CUstream stream = nullptr) {
  return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, stream, params, nullptr);
}

CUmemAllocationProp Properties(bool exportable) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.requestedHandleTypes =
      exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return p;
}
CUmemAccessDesc ReadWrite() {
  CUmemAccessDesc a{};
  a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return a;
}

void EntryPoints() {
  void* p = nullptr;
  CUdriverProcAddressQueryResult s{};
  int n = 0;
  CUcontext c = nullptr;
  CUdeviceptr d = 0;
  const char* text = nullptr;
  ASK(cuDeviceGetCount(&n));
  ASK(cuCtxGetCurrent(&c));
  ASK(cuMemAlloc(&d, 16));
  ASK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  ASK(cuGetErrorName(static_cast<CUresult>(12345), &text));
  VALUE("unknown error has a name", text != nullptr);
  ASK(cuGetProcAddress("cuMemAlloc", &p, 12000, 0, &s));
  VALUE("status", s);
  ASK(cuGetProcAddress("cuNoSuchCall", &p, 12000, 0, &s));
  VALUE("status", s);
  VALUE("pointer", p != nullptr);
  ASK(cuGetProcAddress("cuCtxCreate", &p, 1000, 0, &s));
  VALUE("status", s);
  VALUE("pointer", p != nullptr);
  ASK(cuGetProcAddress("", &p, 12000, 0, &s));
  ASK(cuGetProcAddress("cuMemAlloc", &p, 12000, 8, &s));
  ASK(cuInit(1));
  ASK(cuInit(0));
  ASK(cuCtxGetCurrent(&c));
  VALUE("context", c != nullptr);
  CUdevice dev = 0;
  ASK(cuCtxGetDevice(&dev));
  ASK(cuMemAlloc(&d, 16));
  size_t a = 0, b = 0;
  ASK(cuMemGetInfo(&a, &b));
  CUstream stream = nullptr;
  ASK(cuStreamCreate(&stream, 0));
  ASK(cuCtxSynchronize());
  ASK(cuStreamSynchronize(nullptr));
  ASK(Launch(nullptr));
  ASK(cuCtxPopCurrent(&c));
  ASK(cuCtxSetCurrent(nullptr));
  ASK(cuDeviceGet(&dev, -1));
  ASK(cuDeviceGet(&dev, 99));
  ASK(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 9;
  int active = 9;
  ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  VALUE("flags", flags);
  VALUE("active", active);
  CUmemAllocationProp properties = Properties(true);
  CUmemGenericAllocationHandle h{};
  ASK(cuMemCreate(&h, 2 << 20, &properties, 0));
  ASK(cuMemAddressReserve(&d, 2 << 20, 0, 0, 0));
}

void Memory() {
  if (!Setup())
    return;
  CUdeviceptr d = 0, e = 0;
  ASK(cuMemAlloc(&d, 0));
  ASK(cuMemAlloc(nullptr, 16));
  ASK(cuMemAlloc(&d, 1ull << 50));
  ASK(cuMemAlloc(&d, 1000));
  VALUE("aligned to 512", d % 512 == 0);
  ASK(cuMemAlloc(&e, 1000));
  VALUE("distance of two of 1000 bytes", static_cast<long long>(e - d));
  char host[4096] = {};
  ASK(cuMemcpyHtoD(d, host, 1001));
  ASK(cuMemcpyDtoH(host, d, 1001));
  ASK(cuMemcpyDtoH(host, d, 4096));
  ASK(cuMemsetD8(d, 0, 1001));
  ASK(cuMemcpyHtoD(d, host, 0));
  ASK(cuMemcpyHtoD(0, host, 16));
  ASK(cuMemcpyHtoD(d, nullptr, 16));
  ASK(cuMemcpyHtoD(0x1234, host, 16));
  ASK(cuMemcpyDtoH(host, 0x1234, 16));
  ASK(cuMemcpyDtoD(d, 0x1234, 16));
  ASK(cuMemsetD32(d + 1, 1, 1));
  ASK(cuMemsetD32(0x1234, 1, 1));
  ASK(cuMemsetD32(d, 1, 0));
  ASK(cuMemFree(0));
  ASK(cuMemFree(d + 16));
  ASK(cuMemFree(0x1234));
  CUdeviceptr base = 0;
  size_t size = 0, pitch = 0;
  ASK(cuMemGetAddressRange(&base, &size, d + 999));
  VALUE("offset", static_cast<long long>(d - base));
  VALUE("size", size);
  ASK(cuMemGetAddressRange(&base, &size, 0x1234));
  unsigned type = 0;
  int number = 0;
  void* pointer = nullptr;
  unsigned long long id = 0;
  ASK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d));
  VALUE("type", type);
  ASK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1234));
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_IS_MANAGED, d));
  VALUE("managed", number);
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_IS_MANAGED, 0x1234));
  ASK(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, d));
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, d));
  VALUE("ordinal", number);
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, d));
  VALUE("ipc capable", number);
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_MAPPED, d));
  VALUE("mapped", number);
  ASK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_RANGE_SIZE, d));
  VALUE("range size", id);
  {
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned t = 7;
    int o = 7, m = 7;
    void* q = &t;
    void* data[] = {&t, &o, &q, &m};
    ASK(cuPointerGetAttributes(4, which, data, 0x1234));
    VALUE("type", t);
    VALUE("ordinal", o);
    VALUE("host pointer", q != nullptr);
    VALUE("managed", m);
  }
  ASK(cuMemAllocPitch(&base, &pitch, 100, 10, 4));
  VALUE("pitch", pitch);
  ASK(cuMemAllocPitch(&base, &pitch, 100, 10, 3));
  ASK(cuMemAllocManaged(&base, 100, 0));
  ASK(cuMemAllocManaged(&base, 0, CU_MEM_ATTACH_GLOBAL));
  ASK(cuMemAllocManaged(&base, 4096, CU_MEM_ATTACH_GLOBAL));
  ASK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base));
  VALUE("managed memory's type", type);
  ASK(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, base));
  ASK(cuMemFree(base));
  void* pinned = nullptr;
  ASK(cuMemHostAlloc(&pinned, 0, 0));
  ASK(cuMemHostAlloc(&pinned, 4096, 64));
  ASK(cuMemHostAlloc(&pinned, 4096, 0));
  unsigned flags = 0;
  ASK(cuMemHostGetFlags(&flags, pinned));
  VALUE("flags", flags);
  ASK(cuMemHostGetDevicePointer(&base, pinned, 0));
  VALUE("same address", base == reinterpret_cast<CUdeviceptr>(pinned));
  ASK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base));
  VALUE("pinned memory's type", type);
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base));
  VALUE("pinned memory's ordinal", number);
  ASK(cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(pinned)));
  ASK(cuMemHostRegister(pinned, 4096, 0));
  ASK(cuMemFree(reinterpret_cast<CUdeviceptr>(pinned)));
  ASK(cuMemHostUnregister(pinned));
  ASK(cuMemFreeHost(static_cast<char*>(pinned) + 16));
  ASK(cuMemFreeHost(pinned));
  ASK(cuMemFreeHost(nullptr));
  ASK(cuMemFreeHost(host));
  void* mapped = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASK(cuMemHostRegister(mapped, 8192, CU_MEMHOSTREGISTER_DEVICEMAP));
  ASK(cuMemHostRegister(static_cast<char*>(mapped) + 4096, 8192, 0));
  ASK(cuMemHostRegister(nullptr, 8192, 0));
  ASK(cuMemHostGetDevicePointer(&base, mapped, 0));
  VALUE("same address", base == reinterpret_cast<CUdeviceptr>(mapped));
  ASK(cuMemFreeHost(mapped));
  ASK(cuMemHostUnregister(mapped));
  ASK(cuMemHostUnregister(mapped));
  ASK(cuMemHostGetFlags(&flags, host));
  ASK(cuMemHostGetDevicePointer(&base, host, 0));
  CUipcMemHandle ipc;
  ASK(cuIpcGetMemHandle(&ipc, d));
  ASK(cuIpcGetMemHandle(&ipc, 0x1234));
  ASK(cuIpcOpenMemHandle(&base, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  ASK(cuMemAllocAsync(&base, 0, nullptr));
  ASK(cuMemAllocAsync(&base, 4096, nullptr));
  ASK(cuMemFree(base));
  ASK(cuMemAllocAsync(&base, 4096, nullptr));
  ASK(cuMemFreeAsync(base, nullptr));
  ASK(cuMemFreeAsync(0x1234, nullptr));
  ASK(cuMemFreeAsync(d, nullptr));
  ASK(cuCtxSynchronize());
  ASK(cuMemFree(e));
}

void VirtualMemory() {
  if (!Setup())
    return;
  const size_t kSize = 4 << 20;
  CUmemAllocationProp properties = Properties(true), plain = Properties(false);
  CUmemAccessDesc access = ReadWrite();
  size_t granularity = 0;
  ASK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  VALUE("granularity", granularity);
  CUmemGenericAllocationHandle h{}, g{}, r{};
  ASK(cuMemCreate(&h, kSize + 1, &properties, 0));
  ASK(cuMemCreate(&h, 0, &properties, 0));
  ASK(cuMemCreate(&h, 1ull << 50, &properties, 0));
  ASK(cuMemCreate(&h, kSize, &properties, 0));
  ASK(cuMemCreate(&g, kSize, &plain, 0));
  CUdeviceptr a = 0, b = 0;
  ASK(cuMemAddressReserve(&a, 1, 0, 0, 0));
  ASK(cuMemAddressReserve(&a, 64 << 20, 0, 0x550000000000ull, 0));
  VALUE("at the wish", a == 0x550000000000ull);
  ASK(cuMemAddressReserve(&b, 64 << 20, 0, 0x550000000000ull, 0));
  VALUE("at the taken wish", b == 0x550000000000ull);
  ASK(cuMemMap(a, kSize, 0, h, 1));
  ASK(cuMemMap(a, kSize / 2, 0, h, 0));
  ASK(cuMemMap(a, kSize, kSize / 2, h, 0));
  ASK(cuMemMap(a + 4096, kSize, 0, h, 0));
  ASK(cuMemMap(a, kSize, 0, h, 0));
  ASK(cuMemMap(a, kSize, 0, g, 0));
  ASK(cuMemsetD8(a, 1, 16));
  unsigned long long flags = 9;
  ASK(cuMemGetAccess(&flags, &access.location, a));
  VALUE("access", flags);
  ASK(cuMemSetAccess(a, kSize * 2, &access, 1));
  ASK(cuMemSetAccess(a, kSize, &access, 1));
  ASK(cuMemSetAccess(a, kSize / 2, &access, 1));
  ASK(cuMemGetAccess(&flags, &access.location, a));
  VALUE("access", flags);
  ASK(cuMemGetAccess(&flags, &access.location, a + kSize));
  ASK(cuMemsetD8(a, 1, 16));
  ASK(cuCtxSynchronize());
  ASK(cuMemsetD8(a + kSize, 1, 16));
  ASK(cuMemMap(a + kSize, kSize, 0, h, 0));
  ASK(cuMemSetAccess(a + kSize, kSize, &access, 1));
  unsigned word = 0;
  ASK(cuMemcpyDtoH(&word, a + kSize, 4));
  VALUE("the same memory twice", word);
  ASK(cuMemcpyDtoH(&word, a + kSize - 2, 4));
  CUdeviceptr base = 0;
  size_t size = 0;
  ASK(cuMemGetAddressRange(&base, &size, a + 100));
  VALUE("offset", static_cast<long long>(a - base));
  VALUE("size", size);
  CUipcMemHandle ipc;
  ASK(cuIpcGetMemHandle(&ipc, a));
  ASK(cuMemFree(a));
  int number = 9;
  ASK(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
  VALUE("ipc capable", number);
  unsigned long long types = 9;
  ASK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a));
  VALUE("handle types", types);
  CUcontext owner = nullptr;
  ASK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, a));
  VALUE("has a context", owner != nullptr);
  ASK(cuMemRetainAllocationHandle(&r, reinterpret_cast<void*>(a + 100)));
  VALUE("the same handle", r == h);
  CUdeviceptr d = 0;
  cuMemAlloc(&d, 4096);
  CUmemGenericAllocationHandle none{};
  ASK(cuMemRetainAllocationHandle(&none, reinterpret_cast<void*>(d)));
  CUmemAllocationProp got{};
  ASK(cuMemGetAllocationPropertiesFromHandle(&got, h));
  VALUE("handle types", got.requestedHandleTypes);
  int fd = -1;
  ASK(cuMemExportToShareableHandle(&fd, g, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported{};
  ASK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  VALUE("the same handle", imported == h);
  ASK(cuMemMap(a + 2 * kSize, kSize, 0, imported, 0));
  ASK(cuMemSetAccess(a + 2 * kSize, kSize, &access, 1));
  word = 0;
  ASK(cuMemcpyDtoH(&word, a + 2 * kSize, 4));
  VALUE("the same memory", word);
  const int other = open("/dev/null", O_RDWR);
  ASK(cuMemImportFromShareableHandle(&imported,
                                     reinterpret_cast<void*>(static_cast<intptr_t>(other)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ASK(cuMemAddressFree(a, 64 << 20));
  ASK(cuMemUnmap(a, kSize / 2));
  ASK(cuMemRelease(h));
  ASK(cuMemRelease(r));
  word = 0;
  ASK(cuMemcpyDtoH(&word, a, 4));
  VALUE("released but mapped", word);
  ASK(cuMemUnmap(a, kSize * 2));
  ASK(cuMemUnmap(a, kSize));
  ASK(cuMemcpyDtoH(&word, a, 4));
  ASK(cuMemUnmap(a + 2 * kSize, kSize));
  ASK(cuMemAddressFree(a, 32 << 20));
  ASK(cuMemAddressFree(a, 64 << 20));
}

void StreamsAndEvents() {
  if (!Setup())
    return;
  CUstream s = nullptr, t = nullptr;
  CUevent e = nullptr, f = nullptr, g = nullptr;
  ASK(cuStreamCreate(&s, 8));
  ASK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  ASK(cuStreamCreateWithPriority(&t, 0, -100));
  int priority = 9, least = 9, greatest = 9;
  ASK(cuStreamGetPriority(t, &priority));
  VALUE("clamped priority", priority);
  ASK(cuCtxGetStreamPriorityRange(&least, &greatest));
  VALUE("least", least);
  VALUE("greatest", greatest);
  unsigned flags = 9;
  ASK(cuStreamGetFlags(s, &flags));
  VALUE("flags", flags);
  ASK(cuStreamGetFlags(nullptr, &flags));
  VALUE("flags", flags);
  ASK(cuStreamDestroy(nullptr));
  ASK(cuStreamQuery(s));
  ASK(cuStreamQuery(nullptr));
  ASK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  ASK(cuEventCreate(&e, 64));
  ASK(cuEventCreate(&e, CU_EVENT_INTERPROCESS));
  ASK(cuEventCreate(&e, 0));
  ASK(cuEventCreate(&f, 0));
  ASK(cuEventCreate(&g, CU_EVENT_DISABLE_TIMING));
  float ms = 0;
  ASK(cuEventQuery(e));
  ASK(cuEventSynchronize(e));
  ASK(cuStreamWaitEvent(s, e, 0));
  ASK(cuEventElapsedTime(&ms, e, f));
  ASK(cuEventRecord(e, s));
  ASK(cuEventRecord(f, s));
  ASK(cuEventSynchronize(f));
  ASK(cuEventElapsedTime(&ms, e, f));
  ASK(cuEventRecord(g, s));
  ASK(cuEventElapsedTime(&ms, e, g));
  ASK(cuStreamWaitEvent(t, f, 0));
  ASK(cuStreamWaitEvent(t, f, 4));
  ASK(cuEventRecord(nullptr, s));
  CUstreamCaptureStatus status{};
  ASK(cuStreamIsCapturing(s, &status));
  VALUE("capturing", status);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASK(cuThreadExchangeStreamCaptureMode(&mode));
  VALUE("mode", mode);
  void* pinned = nullptr;
  cuMemHostAlloc(&pinned, 4096, 0);
  memset(pinned, 0, 4096);
  const auto word = reinterpret_cast<CUdeviceptr>(pinned);
  ASK(cuStreamWriteValue32(s, word, 7, 0));
  ASK(cuStreamWriteValue32(s, word + 1, 7, 0));
  ASK(cuStreamWriteValue32(s, word, 7, 2));
  ASK(cuStreamWriteValue32(s, word + 8, 7, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
  ASK(cuStreamWriteValue32(s, 0x1234, 7, 0));
  ASK(cuStreamWaitValue32(s, word, 7, CU_STREAM_WAIT_VALUE_EQ));
  ASK(cuStreamWaitValue32(s, word + 1, 7, CU_STREAM_WAIT_VALUE_EQ));
  ASK(cuStreamSynchronize(s));
  VALUE("word", *static_cast<volatile unsigned*>(pinned));
  ASK(cuStreamWriteValue64(s, word, 8, 0));
  ASK(cuStreamSynchronize(s));
  ASK(cuLaunchHostFunc(s, nullptr, nullptr));
  CUcontext c = nullptr;
  ASK(cuStreamGetCtx(s, &c));
  VALUE("context", c == context);
  ASK(cuStreamDestroy(s));
  ASK(cuEventDestroy(e));
  unsigned version = 0;
  size_t limit = 0;
  ASK(cuCtxGetApiVersion(context, &version));
  VALUE("version", version);
  ASK(cuCtxGetApiVersion(nullptr, &version));
  ASK(cuCtxGetLimit(&limit, CU_LIMIT_PRINTF_FIFO_SIZE));
  ASK(cuCtxGetLimit(&limit, static_cast<CUlimit>(99)));
  ASK(cuCtxSetFlags(1 << 20));
  ASK(cuCtxDestroy(context));
  ASK(cuCtxDestroy(nullptr));
  ASK(cuCtxPushCurrent(nullptr));
  ASK(cuCtxPushCurrent(context));
  ASK(cuCtxPopCurrent(&c));
  ASK(cuCtxEnablePeerAccess(context, 0));
  CUcontext created = nullptr;
  ASK(cuCtxCreate_v2(&created, 0, 0));
  ASK(cuCtxGetCurrent(&c));
  VALUE("created is current", c == created);
  ASK(cuCtxDestroy(created));
  ASK(cuCtxGetCurrent(&c));
  VALUE("primary is current again", c == context);
}

void Kernels() {
  if (!SetupKernels())
    return;
  ASK(cuModuleLoadData(&module, nullptr));
  const char garbage[64] = "this is not an image";
  CUmodule m = nullptr;
  CUfunction f = nullptr;
  ASK(cuModuleLoadData(&m, garbage));
  ASK(cuModuleLoadData(&m, ".version 7.0\n.target sm_70\n.address_size 64\n.entry x( {"));
  ASK(cuModuleLoad(&m, "/no/such/file"));
  ASK(cuModuleGetFunction(&f, module, "nothing"));
  ASK(cuModuleGetFunction(&f, module, nullptr));
  CUdeviceptr d = 0, word = 0;
  size_t size = 0, offset = 0;
  ASK(cuModuleGetGlobal(&word, &size, module, "g_word"));
  VALUE("size", size);
  unsigned value = 0;
  ASK(cuMemcpyDtoH(&value, word, 4));
  VALUE("value", value);
  ASK(cuModuleGetGlobal(&word, &size, module, "nothing"));
  ASK(cuMemFree(word));
  CUmemGenericAllocationHandle h{};
  ASK(cuMemRetainAllocationHandle(&h, reinterpret_cast<void*>(word)));
  CUipcMemHandle ipc;
  ASK(cuIpcGetMemHandle(&ipc, word));
  ASK(cuFuncGetParamInfo(args, 0, &offset, &size));
  VALUE("offset", offset);
  VALUE("size", size);
  ASK(cuFuncGetParamInfo(args, 1, &offset, &size));
  VALUE("offset", offset);
  ASK(cuFuncGetParamInfo(args, 2, &offset, &size));
  ASK(cuFuncGetParamInfo(empty, 0, &offset, &size));
  ASK(cuKernelGetParamInfo(kernel, 1, &offset, &size));
  ASK(cuKernelGetParamInfo(kernel, 2, &offset, &size));
  const auto as_function = reinterpret_cast<CUfunction>(kernel);
  const char* name = nullptr;
  int n = 0;
  ASK(cuFuncGetParamInfo(as_function, 0, &offset, &size));
  ASK(cuFuncGetName(&name, as_function));
  ASK(cuFuncGetModule(&m, as_function));
  ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, as_function));
  ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, bounded));
  VALUE("threads", n);
  ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, empty));
  VALUE("dynamic shared", n);
  ASK(cuFuncGetAttribute(&n, static_cast<CUfunction_attribute>(99), empty));
  ASK(cuFuncSetAttribute(empty, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000));
  ASK(cuFuncSetAttribute(empty, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
  ASK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, empty, 0, 0));
  ASK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, as_function, 128, 0));
  cuMemAlloc(&d, 4096);
  unsigned seven = 7;
  void* params[] = {&d, &seven};
  ASK(Launch(nullptr));
  ASK(Launch(empty, nullptr, 0));
  ASK(Launch(empty, nullptr, 1, 0));
  ASK(Launch(empty, nullptr, 1, 1025));
  ASK(Launch(bounded, nullptr, 1, 65));
  ASK(Launch(empty, nullptr, 1, 1, 49153));
  ASK(Launch(empty, nullptr, 1, 1, 300000));
  ASK(cuFuncSetAttribute(empty, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  ASK(Launch(empty, nullptr, 1, 1, 100000));
  ASK(Launch(empty, nullptr, 1, 1, 100001));
  ASK(cuLaunchKernel(empty, 1, 70000, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  ASK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 128, 0, nullptr, nullptr, nullptr));
  ASK(Launch(args, nullptr));
  ASK(Launch(args, params));
  ASK(Launch(as_function, params));
  {
    struct {
      CUdeviceptr p;
      unsigned n;
    } packed = {d, 9};
    size_t bytes = 12;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    ASK(cuLaunchKernel(args, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
    ASK(cuLaunchKernel(args, 1, 1, 1, 1, 1, 1, 0, nullptr, params, extra));
    bytes = 8;
    ASK(cuLaunchKernel(args, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  }
  ASK(cuCtxSynchronize());
  ASK(cuLaunchCooperativeKernel(empty, 100000, 1, 1, 1024, 1, 1, 0, nullptr, nullptr));
  ASK(cuModuleUnload(module));
  ASK(cuLibraryUnload(library));
}

/// The calls that a program or an agent may make after a fault.
void AskAll(CUstream stream, CUevent event, CUdeviceptr memory, CUdeviceptr reserved,
            CUmemGenericAllocationHandle handle) {
  CUcontext c = nullptr;
  CUdevice dev = 0;
  CUdeviceptr d = 0;
  size_t a = 0, b = 0;
  int n = 0;
  unsigned u = 0;
  unsigned long long x = 0;
  const char* text = nullptr;
  void* pointer = nullptr;
  float ms = 0;
  CUmemoryPool pool = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUstreamCaptureStatus status{};
  CUmemAllocationProp properties = Properties(true);
  CUmemAccessDesc access = ReadWrite();
  ASK(cuInit(0));
  ASK(cuDriverGetVersion(&n));
  ASK(cuDeviceGetCount(&n));
  ASK(cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  ASK(cuDeviceTotalMem(&a, 0));
  ASK(cuDeviceGetDefaultMemPool(&pool, 0));
  ASK(cuCtxGetCurrent(&c));
  VALUE("there is one", c != nullptr);
  ASK(cuCtxGetDevice(&dev));
  ASK(cuCtxGetFlags(&u));
  ASK(cuCtxGetLimit(&a, CU_LIMIT_STACK_SIZE));
  ASK(cuCtxGetApiVersion(context, &u));
  ASK(cuCtxGetStreamPriorityRange(&n, &n));
  ASK(cuCtxGetId(context, &x));
  ASK(cuCtxSynchronize());
  ASK(cuCtxPushCurrent(context));
  ASK(cuCtxPopCurrent(&c));
  ASK(cuCtxSetCurrent(context));
  int active = 0;
  ASK(cuDevicePrimaryCtxGetState(0, &u, &active));
  VALUE("active", active);
  ASK(cuThreadExchangeStreamCaptureMode(&mode));
  ASK(cuMemGetInfo(&a, &b));
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuMemAllocManaged(&d, 4096, CU_MEM_ATTACH_GLOBAL));
  ASK(cuMemHostAlloc(&pointer, 4096, 0));
  ASK(cuMemAllocAsync(&d, 4096, stream));
  ASK(cuMemsetD8(memory, 0, 16));
  ASK(cuMemcpyDtoH(&u, memory, 4));
  ASK(cuMemGetAddressRange(&d, &a, memory));
  ASK(cuPointerGetAttribute(&u, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  {
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void* data[] = {&u};
    ASK(cuPointerGetAttributes(1, which, data, memory));
  }
  CUipcMemHandle ipc;
  ASK(cuIpcGetMemHandle(&ipc, memory));
  CUstream new_stream = nullptr;
  ASK(cuStreamCreate(&new_stream, 0));
  ASK(cuStreamQuery(nullptr));
  ASK(cuStreamQuery(stream));
  ASK(cuStreamSynchronize(stream));
  ASK(cuStreamIsCapturing(stream, &status));
  ASK(cuStreamGetFlags(stream, &u));
  ASK(cuStreamGetCtx(stream, &c));
  ASK(cuStreamWaitEvent(stream, event, 0));
  CUevent made = nullptr;
  ASK(cuEventCreate(&made, 0));
  ASK(cuEventRecord(event, stream));
  ASK(cuEventQuery(event));
  ASK(cuEventSynchronize(event));
  ASK(cuEventElapsedTime(&ms, event, event));
  CUfunction f = nullptr;
  CUkernel k = nullptr;
  CUmodule m = nullptr;
  ASK(Launch(empty));
  ASK(cuModuleGetFunction(&f, module, "k_empty"));
  ASK(cuModuleGetGlobal(&d, &a, module, "g_word"));
  ASK(cuModuleLoadData(&m, kPtx));
  ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, empty));
  ASK(cuFuncGetParamInfo(args, 0, &a, &b));
  ASK(cuFuncGetName(&text, empty));
  ASK(cuLibraryGetKernel(&k, library, "k_args"));
  ASK(cuKernelGetName(&text, kernel));
  ASK(cuKernelGetParamInfo(kernel, 0, &a, &b));
  ASK(cuKernelGetFunction(&f, kernel));
  ASK(cuKernelGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0));
  ASK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, empty, 128, 0));
  CUmemGenericAllocationHandle h{}, r{};
  int fd = -1;
  ASK(cuMemGetAllocationGranularity(&a, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ASK(cuMemCreate(&h, 2 << 20, &properties, 0));
  ASK(cuMemMap(reserved + (2 << 20), 2 << 20, 0, h, 0));
  ASK(cuMemSetAccess(reserved + (2 << 20), 2 << 20, &access, 1));
  ASK(cuMemGetAccess(&x, &access.location, reserved));
  ASK(cuMemRetainAllocationHandle(&r, reinterpret_cast<void*>(reserved)));
  ASK(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
  ASK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASK(cuMemImportFromShareableHandle(&h, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ASK(cuMemUnmap(reserved + (2 << 20), 2 << 20));
  ASK(cuMemUnmap(reserved, 2 << 20));
  ASK(cuMemRelease(handle));
  ASK(cuMemAddressFree(reserved, 16 << 20));
  ASK(cuMemAddressReserve(&d, 2 << 20, 0, 0, 0));
  CUgraph graph = nullptr;
  ASK(cuGraphCreate(&graph, 0));
  ASK(cuMemFree(memory));
  ASK(cuStreamDestroy(stream));
  ASK(cuEventDestroy(event));
  ASK(cuModuleUnload(module));
  ASK(cuLibraryUnload(library));
}

struct Objects {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0, reserved = 0;
  CUmemGenericAllocationHandle handle{};
};

bool SetupObjects(Objects* o) {
  CUmemAllocationProp properties = Properties(true);
  CUmemAccessDesc access = ReadWrite();
  bool good = SetupKernels() && cuStreamCreate(&o->stream, CU_STREAM_NON_BLOCKING) == 0 &&
              cuEventCreate(&o->event, 0) == 0 && cuMemAlloc(&o->memory, 4096) == 0 &&
              cuMemCreate(&o->handle, 2 << 20, &properties, 0) == 0 &&
              cuMemAddressReserve(&o->reserved, 16 << 20, 0, 0, 0) == 0 &&
              cuMemMap(o->reserved, 2 << 20, 0, o->handle, 0) == 0 &&
              cuMemSetAccess(o->reserved, 2 << 20, &access, 1) == 0 &&
              cuEventRecord(o->event, o->stream) == 0 && Launch(empty) == 0 &&
              cuCtxSynchronize() == 0;
  if (!good)
    Say("setup failed", -1);
  return good;
}

void AfterTrap() {
  Objects o;
  if (!SetupObjects(&o))
    return;
  ASK(Launch(trap));
  ASK(cuCtxSynchronize());
  AskAll(o.stream, o.event, o.memory, o.reserved, o.handle);
  CUcontext c = nullptr;
  ASK(cuDevicePrimaryCtxRetain(&c, 0));
  ASK(cuCtxCreate_v2(&c, 0, 0));
}

/// Is the fault seen by calls that do not wait?
void BeforeWaiting() {
  Objects o;
  if (!SetupObjects(&o))
    return;
  CUdeviceptr d = 0;
  int n = 0;
  ASK(Launch(trap, nullptr, 1, 1, 0, o.stream));
  sleep(2);
  ASK(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, empty));
  ASK(Launch(empty));
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuStreamQuery(o.stream));
  ASK(cuStreamQuery(nullptr));
  ASK(cuCtxSynchronize());
}

void AfterReset() {
  Objects o;
  if (!SetupObjects(&o))
    return;
  ASK(Launch(trap));
  ASK(cuCtxSynchronize());
  ASK(cuDevicePrimaryCtxReset(0));
  CUcontext c = nullptr;
  CUdevice dev = 0;
  CUdeviceptr d = 0;
  int active = 9, fd = -1;
  unsigned flags = 0;
  ASK(cuCtxGetCurrent(&c));
  VALUE("there is one", c != nullptr);
  ASK(cuCtxGetDevice(&dev));
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuCtxSynchronize());
  ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  VALUE("active", active);
  ASK(cuDevicePrimaryCtxRetain(&c, 0));
  ASK(cuCtxSetCurrent(context));
  ASK(cuCtxCreate_v2(&c, 0, 0));
  ASK(cuMemExportToShareableHandle(&fd, o.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASK(cuMemUnmap(o.reserved, 2 << 20));
  ASK(cuDevicePrimaryCtxRelease(0));
  ASK(cuDevicePrimaryCtxRelease(0));
}

void AfterDestroy() {
  CUcontext c = nullptr, again = nullptr;
  CUmodule m = nullptr;
  CUfunction f = nullptr;
  cuInit(0);
  ASK(cuCtxCreate_v2(&c, 0, 0));
  ASK(cuModuleLoadData(&m, kPtx));
  ASK(cuModuleGetFunction(&f, m, "k_trap"));
  ASK(Launch(f));
  ASK(cuCtxSynchronize());
  ASK(cuCtxDestroy(c));
  ASK(cuCtxCreate_v2(&again, 0, 0));
  ASK(cuDevicePrimaryCtxRetain(&again, 0));
  ASK(cuDevicePrimaryCtxReset(0));
  ASK(cuDevicePrimaryCtxRetain(&again, 0));
}

void SecondContext() {
  CUcontext first = nullptr, second = nullptr;
  CUmodule m = nullptr;
  CUfunction f = nullptr;
  CUdeviceptr d = 0;
  cuInit(0);
  ASK(cuCtxCreate_v2(&first, 0, 0));
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuCtxCreate_v2(&second, 0, 0));
  ASK(cuModuleLoadData(&m, kPtx));
  ASK(cuModuleGetFunction(&f, m, "k_trap"));
  ASK(Launch(f));
  ASK(cuCtxSynchronize());
  ASK(cuCtxSetCurrent(first));
  ASK(cuMemsetD8(d, 0, 16));
  ASK(cuCtxSynchronize());
}

void HealthyReset() {
  Objects o;
  if (!SetupObjects(&o))
    return;
  CUcontext c = nullptr;
  CUdevice dev = 0;
  CUdeviceptr d = 0;
  int active = 9, fd = -1;
  unsigned flags = 0, word = 0;
  ASK(cuMemsetD8(o.reserved, 1, 16));
  ASK(cuDevicePrimaryCtxReset(0));
  ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  VALUE("active", active);
  ASK(cuCtxGetCurrent(&c));
  VALUE("there is one", c == context);
  ASK(cuCtxGetDevice(&dev));
  ASK(cuCtxSynchronize());
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuMemcpyDtoH(&word, o.reserved, 4));
  ASK(cuDevicePrimaryCtxRetain(&c, 0));
  VALUE("the same handle", c == context);
  ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  VALUE("active", active);
  ASK(cuCtxSetCurrent(c));
  ASK(cuMemAlloc(&d, 4096));
  ASK(cuMemcpyDtoH(&word, o.reserved, 4));
  VALUE("mapped memory", word);
  ASK(cuMemFree(o.memory));
  ASK(cuMemExportToShareableHandle(&fd, o.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASK(cuMemUnmap(o.reserved, 2 << 20));
  ASK(cuDevicePrimaryCtxRelease(0));
  ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  VALUE("active", active);
  ASK(cuDevicePrimaryCtxRelease(0));
  ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  VALUE("active", active);
  ASK(cuDevicePrimaryCtxRelease(0));
  ASK(cuMemAlloc(&d, 4096));
}

/// A thread without a context in a process that a fault has ended.
void OtherThread() {
  Objects o;
  if (!SetupObjects(&o))
    return;
  ASK(Launch(trap));
  ASK(cuCtxSynchronize());
  std::thread([&] {
    CUdeviceptr d = 0;
    CUcontext c = nullptr;
    ASK(cuCtxGetCurrent(&c));
    VALUE("there is one", c != nullptr);
    ASK(cuMemAlloc(&d, 4096));
    ASK(cuStreamSynchronize(o.stream));
    ASK(cuStreamSynchronize(nullptr));
    ASK(cuCtxSynchronize());
    ASK(cuCtxSetCurrent(context));
    ASK(cuMemAlloc(&d, 4096));
  }).join();
}

struct Section {
  const char* name;
  void (*run)();
  bool kernels;
};
const Section kSections[] = {
    {"entry points", EntryPoints, false},
    {"memory", Memory, false},
    {"vmm", VirtualMemory, false},
    {"streams", StreamsAndEvents, false},
    {"kernels", Kernels, true},
    {"after trap", AfterTrap, true},
    {"before waiting", BeforeWaiting, true},
    {"after reset", AfterReset, true},
    {"after destroy", AfterDestroy, true},
    {"healthy reset", HealthyReset, true},
    {"other thread", OtherThread, true},
    {"second context", SecondContext, true},
};

}  // namespace

int main(int argc, char** argv) {
  bool kernels = true;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--no-kernels") == 0)
      kernels = false;
    else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
  }
  for (const Section& s : kSections) {
    if ((s.kernels && !kernels) || (only && strcmp(only, s.name) != 0))
      continue;
    const pid_t child = fork();
    if (child == 0) {
      section = s.name;
      s.run();
      fflush(stdout);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    section = s.name;
    if (!WIFEXITED(status))
      Say("ended by signal", WTERMSIG(status));
  }
}
