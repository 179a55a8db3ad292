// SPDX-License-Identifier: Apache-2.0
// cuInit, devices, error names, entry points by name.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "driver_api.h"
#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {

State& State::Get() {
  static State* state = new State;  // never destroyed: threads outlive main
  return *state;
}

namespace {

constexpr uint64_t kDefaultMemory = 4ull << 30;

/// A number from the environment; `fallback`, with a line on stderr, if it is none.
uint64_t Number(const char* name, uint64_t fallback, uint64_t low, uint64_t high) {
  const char* text = getenv(name);
  if (!text || !*text)
    return fallback;
  char* end = nullptr;
  const unsigned long long value = strtoull(text, &end, 0);
  if (*end || value < low || value > high) {
    Say(std::string(name) + "=" + text + ": not a number from " + std::to_string(low) + " to " +
        std::to_string(high) + "; using " + std::to_string(fallback));
    return fallback;
  }
  return value;
}

bool IsSet(const char* name) {
  const char* text = getenv(name);
  return text && *text && strcmp(text, "0") != 0;
}

/// GPURECOVER_SOFT_FAULT: "launch=2,block=0,thread=5,instr=17,error=700[,kernel=NAME][,healthy=1]",
/// or flip-register=BIT, or flip-memory=ADDRESS:BIT, or hang=1 instead of error. Several with ';'.
/// With first=FILE only in the one process that creates the file.
void ArmFromEnvironment() {
  const char* text = getenv("GPURECOVER_SOFT_FAULT");
  if (!text || !*text)
    return;
  std::string all = text;
  for (size_t at = 0; at <= all.size();) {
    const size_t semicolon = std::min(all.find(';', at), all.size());
    std::string one = all.substr(at, semicolon - at);
    at = semicolon + 1;
    SoftgpuFault fault{};
    fault.size = sizeof fault;
    fault.launch = 1;
    fault.code = CUDA_ERROR_ILLEGAL_ADDRESS;
    std::string kernel, first;
    bool good = !one.empty();
    for (size_t p = 0; p <= one.size() && good;) {
      const size_t comma = std::min(one.find(',', p), one.size());
      const std::string word = one.substr(p, comma - p);
      p = comma + 1;
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        good = false;
        break;
      }
      const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
      char* end = nullptr;
      const uint64_t number = strtoull(value.c_str(), &end, 0);
      bool numeric = end != value.c_str() && !*end;
      if (key == "kernel") {
        kernel = value;
        numeric = true;
      } else if (key == "first") {
        first = value;
        numeric = !value.empty();
      } else if (key == "launch") {
        fault.launch = number;
      } else if (key == "block") {
        fault.block = number;
      } else if (key == "thread") {
        fault.thread = static_cast<uint32_t>(number);
      } else if (key == "instr") {
        fault.instruction = number;
      } else if (key == "error") {
        fault.code = static_cast<int32_t>(number);
      } else if (key == "healthy") {
        fault.healthy = number != 0;
      } else if (key == "hang") {
        fault.kind = 3;
      } else if (key == "flip-register") {
        fault.kind = 1;
        fault.bit = static_cast<uint32_t>(number);
      } else if (key == "flip-memory") {
        fault.kind = 2;
        fault.address = number;
        numeric = *end == ':';
        if (numeric)
          fault.bit = static_cast<uint32_t>(strtoull(end + 1, &end, 0));
      } else {
        good = false;
      }
      good = good && numeric;
    }
    fault.kernel = kernel.empty() ? nullptr : kernel.c_str();
    if (good && !first.empty()) {
      const int file = open(first.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (file < 0)
        continue;
      close(file);
    }
    if (!good || softgpu_hook_table.arm_fault(&fault) != CUDA_SUCCESS)
      Say("GPURECOVER_SOFT_FAULT: cannot read '" + one + "'; no fault is armed for it");
  }
}

/// The documented hook of the driver: a library named by the environment is loaded when CUDA is
/// initialized, and its InitializeInjection called.
void LoadInjection() {
  const char* path = getenv("CUDA_INJECTION64_PATH");
  if (!path || !*path)
    return;
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    Say(std::string("CUDA_INJECTION64_PATH: ") + dlerror());
    return;
  }
  using Initialize = int (*)();
  auto initialize = reinterpret_cast<Initialize>(dlsym(library, "InitializeInjection"));
  if (!initialize) {
    Say(std::string("CUDA_INJECTION64_PATH: ") + path + " has no InitializeInjection");
    return;
  }
  initialize();
}

CUresult InitializeDevices() {
  State& state = State::Get();
  state.verbose = IsSet("GPURECOVER_SOFT_VERBOSE");
  const auto count = static_cast<int>(Number("GPURECOVER_SOFT_DEVICES", 1, 0, kMaxDevices));
  const uint64_t memory =
      Number("GPURECOVER_SOFT_MEMORY", kDefaultMemory, kGranularity, (kPlainEnd - kPlainBase) / 2);
  if (count == 0)
    return CUDA_ERROR_NO_DEVICE;
  std::string why;
  if (!Memory::Get().Init(count, memory / kGranularity * kGranularity,
                          IsSet("GPURECOVER_SOFT_MEMCHECK"), &why)) {
    Say("no device: " + why);
    return CUDA_ERROR_NO_DEVICE;
  }
  state.step_budget = Number("GPURECOVER_SOFT_STEP_BUDGET", 0, 0, ~0ull);
#ifdef GPURECOVER_SOFTGPU_HAS_INTERPRETER
  ExecutorOptions options;
  options.workers = static_cast<unsigned>(Number("GPURECOVER_SOFT_WORKERS", 0, 0, 1024));
  state.executor = MakeInterpreter(options);
#endif
  state.devices = std::vector<Device>(count);
  for (int i = 0; i < count; ++i) {
    Device& device = state.devices[i];
    device.index = i;
    device.default_pool = std::make_shared<Pool>();
    device.default_pool->device = i;
    device.default_pool->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    device.default_pool->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    device.default_pool->properties.location.id = i;
    device.pool = device.default_pool;
    state.pools.Add(device.default_pool);
  }
  pthread_atfork(nullptr, nullptr, [] { State::Get().forked = true; });
  ArmFromEnvironment();
  return CUDA_SUCCESS;
}

int Attribute(CUdevice_attribute attribute, int device, bool* known) {
  *known = true;
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 1000000;  // kHz; a nominal figure
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case 92:  // CAN_USE_STREAM_MEM_OPS_V1 and its 64-bit and NOR forms
    case 93:
    case 94:
    case 125:  // IPC_EVENT_SUPPORTED
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 16;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return CU_COMPUTEMODE_DEFAULT;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return 1 + device;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return 0;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 64;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 4 << 20;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return 1 << 10;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return 2;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return 0;
    default:
      // Everything else is a feature that this device does not have: textures, interop, clusters,
      // tensor maps, multicast, …
      *known = attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX;
      return 0;
  }
}

struct ProcRow {
  const char* base;
  int since;       // CUDA version in which this form appeared
  int per_thread;  // the per-thread-default-stream form
  void* address;
};
const ProcRow kProcRows[] = {
#include "driver_proc.inc"
};

void* FindEntry(const char* name, int version, bool per_thread, bool* known) {
  const ProcRow* best = nullptr;
  const ProcRow* best_plain = nullptr;
  *known = false;
  for (const ProcRow& row : kProcRows) {
    if (strcmp(row.base, name) != 0)
      continue;
    *known = true;
    if (row.since > version)
      continue;
    const ProcRow*& slot = row.per_thread ? best : best_plain;
    if (!slot || row.since >= slot->since)
      slot = &row;
  }
  if (per_thread && best)
    return best->address;
  return best_plain ? best_plain->address : nullptr;
}

struct ErrorRow {
  CUresult code;
  const char* name;
  const char* text;
};
const ErrorRow kErrors[] = {
#include "driver_errors.inc"
};

}  // namespace

CUresult NeedDevice(CUdevice device) {
  return device >= 0 && static_cast<size_t>(device) < State::Get().devices.size()
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_DEVICE;
}

namespace api {

CUresult cuInit(unsigned int flags) {
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  State& state = State::Get();
  if (state.forked)
    return CUDA_ERROR_NOT_INITIALIZED;
  // An injection library may call cuInit itself, from inside the first one.
  if (state.initialized.load(std::memory_order_acquire))
    return CUDA_SUCCESS;
  std::lock_guard lock(state.init_mutex);
  if (state.initialized)
    return CUDA_SUCCESS;
  if (const CUresult result = InitializeDevices(); result != CUDA_SUCCESS)
    return result;
  state.initialized.store(true, std::memory_order_release);
  LoadInjection();
  SendInitFinished();
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (!version)
    return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  if (!text)
    return CUDA_ERROR_INVALID_VALUE;
  for (const ErrorRow& row : kErrors) {
    if (row.code == error) {
      *text = row.name;
      return CUDA_SUCCESS;
    }
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text)
    return CUDA_ERROR_INVALID_VALUE;
  for (const ErrorRow& row : kErrors) {
    if (row.code == error) {
      *text = row.text;
      return CUDA_SUCCESS;
    }
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (!symbol || !address || (flags & ~3ull))
    return CUDA_ERROR_INVALID_VALUE;
  bool known = false;
  *address =
      FindEntry(symbol, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
  if (status)
    *status = *address ? CU_GET_PROC_ADDRESS_SUCCESS
              : known  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                       : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  // Measured: who asks for the status gets it and no error.
  return *address || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char* symbol, void** address, int version, cuuint64_t flags) {
  return api::cuGetProcAddress_v2(symbol, address, version, flags, nullptr);
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (!table || !id)
    return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  // Private tables of NVIDIA's driver. Whoever asks for one is NVIDIA's own runtime, which checks
  // that its driver is genuine and will refuse this one.
  static std::atomic<bool> told{false};
  if (!told.exchange(true))
    Say("this program carries NVIDIA's CUDA runtime, which works with NVIDIA's driver only; build "
        "it with 'nvcc -cudart shared' and put softgpu's libcudart first in LD_LIBRARY_PATH");
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode)
    return CUDA_ERROR_INVALID_VALUE;
  const char* text = getenv("CUDA_MODULE_LOADING");
  *mode = text && strcmp(text, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(ordinal))
    return result;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (!count)
    return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(State::Get().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!name || length <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  snprintf(name, static_cast<size_t>(length), "gpurecover softgpu");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!uuid)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  // A fixed value, the same in every process, different for each device.
  memcpy(uuid->bytes, "gpurecover-soft", 15);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return api::cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (!bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  *bytes = Memory::Get().capacity();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  bool known = false;
  *value = Attribute(attribute, device, &known);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetProperties(CUdevprop* p, CUdevice device) {
  if (!p)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  *p = {};
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 48 << 10;
  p->totalConstantMemory = 64 << 10;
  p->SIMDWidth = 32;
  p->memPitch = 0x7fffffff;
  p->regsPerBlock = 65536;
  p->clockRate = 1000000;
  p->textureAlign = 512;
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (!major || !minor)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  if (!text || length <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedDevice(device))
    return result;
  snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", 1 + device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  if (!device || !text)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2)
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (domain || slot || !bus || bus > State::Get().devices.size())
    return CUDA_ERROR_INVALID_DEVICE;
  *device = static_cast<CUdevice>(bus - 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (!can)
    return CUDA_ERROR_INVALID_VALUE;
  if (NeedDevice(device) || NeedDevice(peer))
    return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source,
                                 CUdevice destination) {
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  if (NeedDevice(source) || NeedDevice(destination) || source == destination)
    return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuProfilerStart() {
  return CUDA_SUCCESS;
}
CUresult cuProfilerStop() {
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace gpurecover::softgpu
