// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/kernel_table.h"

#include <algorithm>
#include <cstring>

#include "classifier/catalogue.h"
#include "classifier/kernel_name.h"

namespace gpurecover::agent {
namespace {

// CUDA programming guide: kernel parameters take at most 32764 bytes; anything more is an answer
// that we misunderstand.
constexpr std::size_t kMaxParamBytes = 32764;
constexpr std::size_t kMaxParams = 8192;

template <class Query, class Handle>
std::vector<idempotency::ArgumentSlot> layout_of(Query query, Handle handle, bool& incomplete) {
  std::vector<idempotency::ArgumentSlot> slots;
  std::size_t offset = 0;
  std::size_t size = 0;
  // The end of the parameters is where the driver answers "invalid value" (cuda.h,
  // cuFuncGetParamInfo).
  CUresult code = CUDA_SUCCESS;
  while (slots.size() < kMaxParams &&
         (code = query(handle, slots.size(), &offset, &size)) == CUDA_SUCCESS &&
         offset + size <= kMaxParamBytes) {
    slots.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
  }
  incomplete |= classifier::is_sticky(static_cast<std::int32_t>(code));
  return slots;
}

}  // namespace

std::optional<idempotency::Range> ModuleSymbols::find(std::string_view name) const {
  for (const auto& [symbol, range] : ranges) {
    if (symbol == name) {
      return range;
    }
  }
  return std::nullopt;
}

image::ComputeCapability KernelTable::device_of_current_context() {
  image::ComputeCapability cc;
  CUdevice device = 0;
  int major = 0;
  int minor = 0;
  if (driver_.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
      driver_.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ==
          CUDA_SUCCESS &&
      driver_.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) ==
          CUDA_SUCCESS) {
    cc.major = static_cast<std::uint32_t>(major);
    cc.minor = static_cast<std::uint32_t>(minor);
  }
  return cc;
}

namespace {

void note_judged_bytes(Kernel& kernel) {
  std::vector<idempotency::ArgumentBytes> all;
  for (const auto& summary : {kernel.summary, kernel.declared}) {
    if (summary != nullptr) {
      const auto some = idempotency::argument_bytes(*summary);
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  // What both name is copied twice, which does no harm.
  std::uint64_t bytes = 0;
  bool pointers = false;
  for (auto& piece : all) {
    piece.end = std::min(piece.end, kernel.param_bytes);
    piece.begin = std::min(piece.begin, piece.end);
    bytes += piece.end - piece.begin;
    pointers |= piece.pointers;
  }
  kernel.judged_whole = !pointers && bytes >= kernel.param_bytes;
  if (!kernel.judged_whole) {
    kernel.judged = std::move(all);
  }
}

}  // namespace

std::unique_ptr<Kernel> KernelTable::make(CUfunction handle, CUcontext context,
                                          const char* symbol_hint) {
  (void)context;
  auto kernel = std::make_unique<Kernel>();
  // `<<<>>>` in CUDA 13 launches a CUkernel in the place of a CUfunction. The function's questions
  // come first: asked of a CUkernel they fail, which is how one is told from the other.
  CUkernel as_kernel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = functions_of_kernels_.find(handle); at != functions_of_kernels_.end()) {
      as_kernel = at->second;
    }
  }
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  const char* name = nullptr;
  const void* owner = nullptr;
  if (as_kernel == nullptr && driver_.cuFuncGetModule(&module, handle) == CUDA_SUCCESS) {
    owner = module;
    driver_.cuFuncGetName(&name, handle);
    kernel->layout = layout_of(driver_.cuFuncGetParamInfo, handle, kernel->incomplete);
  } else {
    if (as_kernel == nullptr) {
      as_kernel = reinterpret_cast<CUkernel>(handle);
    }
    if (driver_.cuKernelGetLibrary(&library, as_kernel) == CUDA_SUCCESS) {
      owner = library;
    }
    driver_.cuKernelGetName(&name, as_kernel);
    kernel->layout = layout_of(driver_.cuKernelGetParamInfo, as_kernel, kernel->incomplete);
  }
  if (name == nullptr) {
    name = symbol_hint;
  }
  kernel->owner = owner;
  kernel->incomplete |= owner == nullptr;
  kernel->library = library != nullptr;
  kernel->symbol = name != nullptr ? name : "(unnamed kernel)";
  kernel->name = classifier::kernel_base_name(kernel->symbol);
  kernel->gaps = false;
  for (const auto& slot : kernel->layout) {
    kernel->gaps |= slot.offset > kernel->param_bytes;
    kernel->param_bytes = std::max(kernel->param_bytes, slot.offset + slot.size);
  }
  kernel->row = session_.kernel_row(kernel->symbol);

  auto knowledge = images_.summarize(owner, kernel->symbol, device_of_current_context());
  kernel->summary = std::move(knowledge.summary);
  kernel->unknown_reason = std::move(knowledge.reason);
  kernel->side_file = std::move(knowledge.side_file);

  if (const auto* fact = classifier::find_fact(session_.rules(), kernel->name)) {
    idempotency::Declaration declaration;
    declaration.idempotent = fact->idempotent.value_or(false);
    for (const auto& ref : fact->reads) {
      declaration.reads.push_back(classifier::to_string(ref));
    }
    for (const auto& ref : fact->writes) {
      declaration.writes.push_back(classifier::to_string(ref));
    }
    if (auto declared = idempotency::declare(kernel->symbol, declaration, kernel->layout)) {
      kernel->declared = std::make_shared<const idempotency::KernelSummary>(std::move(*declared));
    } else {
      session_.notice(protocol::Severity::kWarning, fact->file + ":" + std::to_string(fact->line) +
                                                        ": [[kernel]] for `" + kernel->name +
                                                        "` is ignored: " + declared.error());
    }
  }

  note_judged_bytes(*kernel);
  if (kernel->summary != nullptr) {
    for (const std::string& symbol : kernel->summary->symbols) {
      CUdeviceptr address = 0;
      std::size_t size = 0;
      const CUresult code =
          module != nullptr
              ? driver_.cuModuleGetGlobal(&address, &size, module, symbol.c_str())
              : (library != nullptr
                     ? driver_.cuLibraryGetGlobal(&address, &size, library, symbol.c_str())
                     : CUDA_ERROR_NOT_FOUND);
      if (code == CUDA_SUCCESS) {
        kernel->symbols.ranges.emplace_back(symbol, idempotency::Range{address, address + size});
      }
    }
  }
  return kernel;
}

Kernel* KernelTable::find(CUfunction handle, CUcontext context, const char* symbol_hint) {
  const std::uint64_t generation = this->generation();
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = kernels_.find({handle, context}); at != kernels_.end()) {
      return at->second;
    }
  }
  // Without the lock: this asks the driver, which may load the module and call other threads back.
  auto made = make(handle, context, symbol_hint);
  const std::lock_guard lock(mutex_);
  Kernel* kernel = made.get();
  all_.push_back(std::move(made));
  if (generation == this->generation()) {
    // If another thread was faster, its record stays.
    kernel = kernels_.emplace(std::pair{handle, context}, kernel).first->second;
  }
  return kernel;
}

Kernel* KernelTable::graph() {
  const std::lock_guard lock(mutex_);
  if (graph_ == nullptr) {
    auto kernel = std::make_unique<Kernel>();
    kernel->symbol = "graph";
    kernel->name = "graph";
    kernel->row = session_.kernel_row("graph launch");
    kernel->unknown_reason = "a graph launch: its nodes are not followed in this version";
    graph_ = kernel.get();
    all_.push_back(std::move(kernel));
  }
  return graph_;
}

void KernelTable::add_function_of_kernel(CUfunction function, CUkernel kernel) {
  const std::lock_guard lock(mutex_);
  functions_of_kernels_[function] = kernel;
}

void KernelTable::invalidate() {
  const std::lock_guard lock(mutex_);
  kernels_.clear();
  functions_of_kernels_.clear();
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void KernelTable::forget_unknown() {
  const std::lock_guard lock(mutex_);
  std::erase_if(kernels_, [](const auto& entry) { return entry.second->incomplete; });
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

bool gather_arguments(const Kernel& kernel, void* const* kernel_params, void* const* extra,
                      std::vector<std::byte>& out) {
  if (out.size() != kernel.param_bytes) {
    out.resize(kernel.param_bytes);
  }
  if (kernel.param_bytes == 0) {
    return true;
  }
  if (kernel_params != nullptr) {
    if (kernel.gaps) {
      std::memset(out.data(), 0, out.size());
    }
    std::byte* const block = out.data();
    for (const auto& slot : kernel.layout) {
      const void* const argument = *kernel_params++;
      if (argument == nullptr) {
        return false;
      }
      // The usual sizes by one move; a call for each argument would cost more than all the rest.
      switch (slot.size) {
        case 8:
          std::memcpy(block + slot.offset, argument, 8);
          break;
        case 4:
          std::memcpy(block + slot.offset, argument, 4);
          break;
        default:
          std::memcpy(block + slot.offset, argument, slot.size);
          break;
      }
    }
    return true;
  }
  if (extra == nullptr) {
    return false;
  }
  // cuda.h, cuLaunchKernel: pairs of a name and a value, ended by CU_LAUNCH_PARAM_END.
  const void* buffer = nullptr;
  std::size_t size = 0;
  constexpr int kMaxPairs = 16;
  for (int i = 0; i < kMaxPairs && extra[2 * i] != CU_LAUNCH_PARAM_END; ++i) {
    if (extra[2 * i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[2 * i + 1];
    } else if (extra[2 * i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = *static_cast<const std::size_t*>(extra[2 * i + 1]);
    }
  }
  if (buffer == nullptr || size < kernel.param_bytes) {
    return false;
  }
  std::memcpy(out.data(), buffer, kernel.param_bytes);
  return true;
}

void judge_kernel(const Kernel& kernel, std::span<const std::byte> arguments,
                  const idempotency::LaunchDimensions& dimensions,
                  const idempotency::MemoryMap& memory, idempotency::Verdict& verdict) {
  verdict.clear();
  if (kernel.declared != nullptr) {
    idempotency::decide_with_declaration(kernel.summary.get(), *kernel.declared, arguments,
                                         dimensions, memory, kernel.symbols, verdict);
  } else if (kernel.summary != nullptr) {
    idempotency::decide(*kernel.summary, arguments, dimensions, memory, kernel.symbols, verdict);
    if (kernel.summary->machine_code && verdict.kind == idempotency::VerdictKind::kIdempotent) {
      verdict.trust = idempotency::Trust::kObserved;
    }
  } else {
    verdict.reason = kernel.unknown_reason;
  }
  if (kernel.summary != nullptr && kernel.summary->machine_code) {
    verdict.all_in_bounds = false;
  }
}

}  // namespace gpurecover::agent
