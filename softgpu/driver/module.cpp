// SPDX-License-Identifier: Apache-2.0
// Modules, libraries, functions, kernels, occupancy.
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "driver_api.h"
#include "softgpu/driver/images.h"
#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {
namespace {

constexpr int kSharedPerBlock = 48 << 10;
constexpr int kSharedOptIn = 227 << 10;
constexpr int kSharedPerMultiprocessor = 228 << 10;
constexpr int kReservedShared = 1 << 10;
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr int kRegistersPerMultiprocessor = 65536;

uint64_t AllocateVariable(const VariableInfo& v, const Context& context) {
  return Memory::Get().Allocate(
      std::max<uint64_t>(v.size, 1), v.is_managed ? MemoryKind::kManaged : MemoryKind::kGlobal,
      context.device, reinterpret_cast<CUcontext>(const_cast<Context*>(&context)));
}

/// Loads a compiled image into a context: addresses for its variables, their first values.
CUresult Instantiate(const std::shared_ptr<const CompiledImage>& image,
                     const std::shared_ptr<Context>& context, Library* library,
                     std::shared_ptr<Module>* out) {
  State& state = State::Get();
  auto module = std::make_shared<Module>();
  module->id = state.next_module_id++;
  module->context = context;
  module->image = image;
  module->library = library;
  module->instance.program = image->program;
  const auto variables = image->program->variables();
  for (const VariableInfo& v : variables) {
    const uint64_t address = AllocateVariable(v, *context);
    if (!address)
      return CUDA_ERROR_OUT_OF_MEMORY;
    module->instance.addresses.push_back(address);
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    const auto bytes = image->program->InitialBytes(i, module->instance.addresses);
    char* at = reinterpret_cast<char*>(module->instance.addresses[i]);
    // Memory of a chunk that was in use before holds what it held.
    memset(at, 0, variables[i].size);
    memcpy(at, bytes.data(), std::min<uint64_t>(bytes.size(), variables[i].size));
  }
  const size_t kernels = image->program->kernels().size();
  for (size_t i = 0; i < kernels; ++i) {
    auto function = std::make_shared<Function>();
    function->module = module.get();
    function->index = i;
    if (library)
      function->attributes = library->kernels[i]->attributes;
    state.functions.Add(function);
    module->functions.push_back(std::move(function));
  }
  state.modules.Add(module);
  SendModuleLoaded(*module);
  *out = std::move(module);
  return CUDA_SUCCESS;
}

/// Options of the load calls that a program sees the effect of: the error log.
void WriteErrorLog(unsigned count, CUjit_option* options, void** values, const std::string& text) {
  char* buffer = nullptr;
  size_t* size_slot = nullptr;
  size_t size = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
      buffer = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      // In: the size, out: what was written, both in the value itself.
      size = reinterpret_cast<size_t>(values[i]);
      size_slot = reinterpret_cast<size_t*>(&values[i]);
    }
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
      values[i] = nullptr;
  }
  if (!size_slot)
    return;
  *size_slot = 0;
  if (!buffer || !size || text.empty())
    return;
  const size_t length = std::min(text.size(), size - 1);
  memcpy(buffer, text.data(), length);
  buffer[length] = 0;
  *size_slot = length;
}

CUresult Compile(const void* data, std::shared_ptr<const CompiledImage>* image, unsigned count,
                 CUjit_option* options, void** values) {
  std::string why;
  const CUresult result = CompileImage(data, image, &why);
  if (count && options && values)
    WriteErrorLog(count, options, values, why);
  if (result != CUDA_SUCCESS && !why.empty())
    Say(why);
  return result;
}

CUresult LoadModule(CUmodule* out, const void* data, unsigned count, CUjit_option* options,
                    void** values) {
  if (!out || !data)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  std::shared_ptr<const CompiledImage> image;
  if (const CUresult result = Compile(data, &image, count, options, values))
    return result;
  std::shared_ptr<Module> module;
  if (const CUresult result = Instantiate(image, context, nullptr, &module))
    return result;
  *out = reinterpret_cast<CUmodule>(module.get());
  return CUDA_SUCCESS;
}

CUresult ReadFile(const char* path, std::vector<char>* out) {
  if (!path)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return CUDA_ERROR_FILE_NOT_FOUND;
  struct stat status {};
  fstat(fd, &status);
  out->assign(static_cast<size_t>(status.st_size) + 1, 0);  // PTX ends at a NUL
  size_t got = 0;
  while (got + 1 < out->size()) {
    const ssize_t n = read(fd, out->data() + got, out->size() - 1 - got);
    if (n <= 0)
      break;
    got += static_cast<size_t>(n);
  }
  close(fd);
  return got + 1 == out->size() ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult LoadLibrary(CUlibrary* out, const void* data, unsigned count, CUjit_option* options,
                     void** values) {
  if (!out || !data)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const CompiledImage> image;
  if (const CUresult result = Compile(data, &image, count, options, values))
    return result;
  State& state = State::Get();
  auto library = std::make_shared<Library>();
  library->image = image;
  for (size_t i = 0; i < image->program->kernels().size(); ++i) {
    auto kernel = std::make_shared<Kernel>();
    kernel->library = library.get();
    kernel->index = i;
    state.kernels.Add(kernel);
    library->kernels.push_back(std::move(kernel));
  }
  state.libraries.Add(library);
  *out = reinterpret_cast<CUlibrary>(library.get());
  return CUDA_SUCCESS;
}

template <class List>
size_t IndexOf(const List& list, const char* name) {
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].name == name)
      return i;
  return list.size();
}

CUresult GetVariable(const Module& module, const char* name, bool managed, CUdeviceptr* address,
                     size_t* size) {
  const auto variables = module.instance.program->variables();
  const size_t i = IndexOf(variables, name);
  if (i == variables.size() || (managed && !variables[i].is_managed)) {
    if (address)
      *address = 0;
    return CUDA_ERROR_NOT_FOUND;
  }
  if (address)
    *address = module.instance.addresses[i];
  if (size)
    *size = variables[i].size;
  return CUDA_SUCCESS;
}

CUresult GetAttribute(int* value, CUfunction_attribute attribute, const KernelInfo& info,
                      const FunctionAttributes& a, const CompiledImage& image) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(info.max_threads);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(info.static_shared_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: {
      uint64_t bytes = 0;
      for (const VariableInfo& v : image.program->variables())
        bytes += v.is_const ? v.size : 0;
      *value = static_cast<int>(bytes);
      return CUDA_SUCCESS;
    }
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(info.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = static_cast<int>(info.registers);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = image.sm;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 90;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = a.max_dynamic_shared == kSharedPerBlock
                   ? kSharedPerBlock - static_cast<int>(info.static_shared_bytes)
                   : a.max_dynamic_shared;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = a.carveout;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *value = a.cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH];
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = a.non_portable_cluster;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = a.cluster_policy;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult SetAttribute(CUfunction_attribute attribute, int value, const KernelInfo& info,
                      FunctionAttributes& a) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > kSharedOptIn - static_cast<int>(info.static_shared_bytes))
        return CUDA_ERROR_INVALID_VALUE;
      a.max_dynamic_shared = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100)
        return CUDA_ERROR_INVALID_VALUE;
      a.carveout = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      if (value < 0)
        return CUDA_ERROR_INVALID_VALUE;
      a.cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      a.non_portable_cluster = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      a.cluster_policy = value;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult GetParameter(const KernelInfo& info, size_t index, size_t* offset, size_t* size) {
  if (!offset || index >= info.parameters.size())
    return CUDA_ERROR_INVALID_VALUE;
  *offset = info.parameters[index].offset;
  if (size)
    *size = info.parameters[index].size;
  return CUDA_SUCCESS;
}

/// Measured: a CUkernel is no CUfunction for the calls that ask or change functions, though it is
/// one for launches and occupancy.
CUresult NeedFunctionHandle(const void* handle, std::shared_ptr<Function>* function) {
  *function = State::Get().functions.Find(handle);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/// Attributes of either kind of handle, without loading anything.
CUresult Describe(const void* handle, const KernelInfo** info, FunctionAttributes** attributes) {
  State& state = State::Get();
  if (auto function = state.functions.Find(handle)) {
    *info = &function->info();
    *attributes = &function->attributes;
    return CUDA_SUCCESS;
  }
  if (auto kernel = state.kernels.Find(handle)) {
    *info = &kernel->info();
    *attributes = &kernel->attributes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

int BlocksPerMultiprocessor(const KernelInfo& info, int threads, size_t dynamic_shared) {
  if (threads <= 0 || threads > static_cast<int>(info.max_threads))
    return 0;
  const int warps = (threads + 31) / 32;
  int blocks = std::min(kBlocksPerMultiprocessor, kThreadsPerMultiprocessor / (warps * 32));
  const size_t shared = info.static_shared_bytes + dynamic_shared;
  if (shared > static_cast<size_t>(kSharedOptIn))
    return 0;
  blocks = std::min<int>(blocks,
                         static_cast<int>(kSharedPerMultiprocessor / (shared + kReservedShared)));
  if (info.registers) {
    const int per_warp = static_cast<int>((info.registers * 32 + 255) / 256 * 256);
    blocks = std::min(blocks, kRegistersPerMultiprocessor / (per_warp * warps));
  }
  return blocks;
}

CUresult PotentialBlockSize(int* grid, int* block, const void* handle, CUoccupancyB2DSize shared_of,
                            size_t shared, int limit) {
  const KernelInfo* info = nullptr;
  FunctionAttributes* attributes = nullptr;
  if (!grid || !block)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Describe(handle, &info, &attributes))
    return result;
  int most = static_cast<int>(info->max_threads);
  if (limit > 0)
    most = std::min(most, limit);
  int best_threads = 0, best_blocks = 0, best_size = 0;
  for (int threads = (most + 31) / 32 * 32; threads > 0; threads -= 32) {
    const int size = std::min(threads, most);
    const int blocks = BlocksPerMultiprocessor(*info, size, shared_of ? shared_of(size) : shared);
    if (blocks * size > best_threads) {
      best_threads = blocks * size;
      best_blocks = blocks;
      best_size = size;
    }
  }
  *block = best_size;
  *grid = best_blocks * 16;
  return CUDA_SUCCESS;
}

}  // namespace

const KernelInfo& Function::info() const {
  return module->instance.program->kernels()[index];
}
const KernelInfo& Kernel::info() const {
  return library->image->program->kernels()[index];
}

Module::~Module() {
  for (uint64_t address : instance.addresses)
    Memory::Get().Free(address,
                       Memory::Bit(MemoryKind::kGlobal) | Memory::Bit(MemoryKind::kManaged));
}

CUresult LoadLibraryInto(Library& library, const std::shared_ptr<Context>& context,
                         std::shared_ptr<Module>* module) {
  std::unique_lock lock(library.mutex);
  auto it = library.modules.find(context.get());
  if (it != library.modules.end()) {
    *module = it->second;
    return CUDA_SUCCESS;
  }
  // A callback of the load may use the library from inside: no lock meanwhile.
  lock.unlock();
  std::shared_ptr<Module> made;
  if (const CUresult result = Instantiate(library.image, context, &library, &made))
    return result;
  lock.lock();
  auto [at, added] = library.modules.emplace(context.get(), made);
  *module = at->second;
  lock.unlock();
  if (!added) {
    for (auto& function : made->functions)
      State::Get().functions.Take(function.get());
    State::Get().modules.Take(made.get());
  }
  return CUDA_SUCCESS;
}

CUresult NeedFunction(const void* handle, std::shared_ptr<Function>* function) {
  if (const int poison = Engine::Get().Poison())
    return static_cast<CUresult>(poison);
  State& state = State::Get();
  if (!handle)
    return CUDA_ERROR_INVALID_HANDLE;
  *function = state.functions.Find(handle);
  if (*function)
    return CUDA_SUCCESS;
  auto kernel = state.kernels.Find(handle);
  if (!kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  std::shared_ptr<Module> module;
  if (const CUresult result = LoadLibraryInto(*kernel->library, context, &module))
    return result;
  *function = module->functions[kernel->index];
  return CUDA_SUCCESS;
}

const char* KernelName(const void* handle) {
  State& state = State::Get();
  if (auto function = state.functions.Find(handle))
    return function->info().name.c_str();
  if (auto kernel = state.kernels.Find(handle))
    return kernel->info().name.c_str();
  return nullptr;
}

namespace api {

// --- modules ---

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  return LoadModule(out, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned int count,
                            CUjit_option* options, void** values) {
  return LoadModule(out, image, count, options, values);
}

CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return LoadModule(out, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  std::vector<char> bytes;
  if (const CUresult result = ReadFile(path, &bytes))
    return result;
  return LoadModule(out, bytes.data(), 0, nullptr, nullptr);
}

CUresult cuModuleUnload(CUmodule handle) {
  State& state = State::Get();
  auto module = state.modules.Find(handle);
  if (!module || module->library)
    return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = SynchronizeContext(*module->context))
    return result;
  SendModuleUnloading(*module);
  for (auto& function : module->functions)
    state.functions.Take(function.get());
  state.modules.Take(handle);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  if (!out || !name)
    return CUDA_ERROR_INVALID_VALUE;
  auto module = State::Get().modules.Find(handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  const size_t i = IndexOf(module->instance.program->kernels(), name);
  if (i == module->functions.size())
    return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<CUfunction>(module->functions[i].get());
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  auto module = State::Get().modules.Find(handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!count)
    return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->functions.size());
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* list, unsigned int count, CUmodule handle) {
  auto module = State::Get().modules.Find(handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!list && count)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < module->functions.size() && i < count; ++i)
    list[i] = reinterpret_cast<CUfunction>(module->functions[i].get());
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* size, CUmodule handle,
                              const char* name) {
  if (!name)
    return CUDA_ERROR_INVALID_VALUE;
  auto module = State::Get().modules.Find(handle);
  if (!module)
    return CUDA_ERROR_INVALID_HANDLE;
  return GetVariable(*module, name, false, address, size);
}

// --- libraries ---

CUresult cuLibraryLoadData(CUlibrary* out, const void* code, CUjit_option* options, void** values,
                           unsigned int count, CUlibraryOption*, void**, unsigned int) {
  return LoadLibrary(out, code, count, options, values);
}

CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option* options,
                               void** values, unsigned int count, CUlibraryOption*, void**,
                               unsigned int) {
  std::vector<char> bytes;
  if (const CUresult result = ReadFile(path, &bytes))
    return result;
  return LoadLibrary(out, bytes.data(), count, options, values);
}

CUresult cuLibraryUnload(CUlibrary handle) {
  State& state = State::Get();
  auto library = state.libraries.Find(handle);
  if (!library)
    return CUDA_ERROR_INVALID_HANDLE;
  std::map<Context*, std::shared_ptr<Module>> modules;
  {
    std::lock_guard lock(library->mutex);
    modules.swap(library->modules);
  }
  for (auto& [context, module] : modules) {
    SynchronizeContext(*context);
    SendModuleUnloading(*module);
    for (auto& function : module->functions)
      state.functions.Take(function.get());
    state.modules.Take(module.get());
  }
  for (auto& kernel : library->kernels)
    state.kernels.Take(kernel.get());
  state.libraries.Take(handle);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  if (!out || !name)
    return CUDA_ERROR_INVALID_VALUE;
  auto library = State::Get().libraries.Find(handle);
  if (!library)
    return CUDA_ERROR_INVALID_HANDLE;
  const size_t i = IndexOf(library->image->program->kernels(), name);
  if (i == library->kernels.size())
    return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<CUkernel>(library->kernels[i].get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  auto library = State::Get().libraries.Find(handle);
  if (!library)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!count)
    return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(library->kernels.size());
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* list, unsigned int count, CUlibrary handle) {
  auto library = State::Get().libraries.Find(handle);
  if (!library)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!list && count)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < library->kernels.size() && i < count; ++i)
    list[i] = reinterpret_cast<CUkernel>(library->kernels[i].get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  auto library = State::Get().libraries.Find(handle);
  if (!library)
    return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  std::shared_ptr<Module> module;
  if (const CUresult result = LoadLibraryInto(*library, context, &module))
    return result;
  *out = reinterpret_cast<CUmodule>(module.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* size, CUlibrary handle,
                            const char* name) {
  if (!name)
    return CUDA_ERROR_INVALID_VALUE;
  CUmodule module = nullptr;
  if (const CUresult result = api::cuLibraryGetModule(&module, handle))
    return result;
  return GetVariable(*State::Get().modules.Find(module), name, false, address, size);
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* size, CUlibrary handle,
                             const char* name) {
  if (!name)
    return CUDA_ERROR_INVALID_VALUE;
  CUmodule module = nullptr;
  if (const CUresult result = api::cuLibraryGetModule(&module, handle))
    return result;
  return GetVariable(*State::Get().modules.Find(module), name, true, address, size);
}

// --- kernels ---

CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (!State::Get().kernels.Find(handle))
    return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunction(handle, &function))
    return result;
  *out = reinterpret_cast<CUfunction>(function.get());
  return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  auto kernel = State::Get().kernels.Find(handle);
  if (!kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  *out = reinterpret_cast<CUlibrary>(kernel->library);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  if (!name)
    return CUDA_ERROR_INVALID_VALUE;
  auto kernel = State::Get().kernels.Find(handle);
  if (!kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->info().name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  auto kernel = State::Get().kernels.Find(handle);
  if (!kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  return GetParameter(kernel->info(), index, offset, size);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                              CUdevice device) {
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  auto kernel = State::Get().kernels.Find(handle);
  if (!kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = NeedDevice(device))
    return result;
  return GetAttribute(value, attribute, kernel->info(), kernel->attributes,
                      *kernel->library->image);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                              CUdevice device) {
  auto kernel = State::Get().kernels.Find(handle);
  if (!kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = NeedDevice(device))
    return result;
  if (const CUresult result = SetAttribute(attribute, value, kernel->info(), kernel->attributes))
    return result;
  std::lock_guard lock(kernel->library->mutex);
  for (auto& [context, module] : kernel->library->modules)
    if (context->device == device)
      SetAttribute(attribute, value, kernel->info(), module->functions[kernel->index]->attributes);
  return CUDA_SUCCESS;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice) {
  return State::Get().kernels.Find(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// --- functions ---

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  return GetAttribute(value, attribute, function->info(), function->attributes,
                      *function->module->image);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  return SetAttribute(attribute, value, function->info(), function->attributes);
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  std::shared_ptr<Function> function;
  return NeedFunctionHandle(handle, &function);
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  std::shared_ptr<Function> function;
  return NeedFunctionHandle(handle, &function);
}

CUresult cuFuncGetModule(CUmodule* out, CUfunction handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  *out = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  if (!name)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  *name = function->info().name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  return GetParameter(function->info(), index, offset, size);
}

CUresult cuFuncLoad(CUfunction handle) {
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  function->loaded = true;
  return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  if (!state)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult result = NeedFunctionHandle(handle, &function))
    return result;
  *state = function->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}

// --- occupancy ---

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     size_t dynamic_shared) {
  const KernelInfo* info = nullptr;
  FunctionAttributes* attributes = nullptr;
  if (!blocks || threads <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Describe(handle, &info, &attributes))
    return result;
  *blocks = BlocksPerMultiprocessor(*info, threads, dynamic_shared);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                              int threads, size_t dynamic_shared,
                                                              unsigned int flags) {
  if (flags > 1)
    return CUDA_ERROR_INVALID_VALUE;
  return api::cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, dynamic_shared);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle,
                                          CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return PotentialBlockSize(grid, block, handle, shared_of, shared, limit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                   CUoccupancyB2DSize shared_of, size_t shared,
                                                   int limit, unsigned int flags) {
  if (flags > 1)
    return CUDA_ERROR_INVALID_VALUE;
  return PotentialBlockSize(grid, block, handle, shared_of, shared, limit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks,
                                                 int threads) {
  const KernelInfo* info = nullptr;
  FunctionAttributes* attributes = nullptr;
  if (!bytes || blocks <= 0 || threads <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Describe(handle, &info, &attributes))
    return result;
  const int each = kSharedPerMultiprocessor / blocks - kReservedShared -
                   static_cast<int>(info->static_shared_bytes);
  *bytes = static_cast<size_t>(std::clamp(each, 0, kSharedOptIn));
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace gpurecover::softgpu
