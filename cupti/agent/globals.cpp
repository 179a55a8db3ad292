// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/globals.h"

#include <cupti.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "classifier/catalogue.h"
#include "idempotency/access_summary.h"

namespace gpurecover::agent {
namespace {

using driver_api::Hook;
using driver_api::Kind;
using idempotency::RootKind;
using recovery::Answer;
using State = GlobalVariable::State;

template <class T>
const T& as(const void* params) {
  return *static_cast<const T*>(params);
}

bool sticky(CUresult code) {
  return code != CUDA_SUCCESS && classifier::is_sticky(static_cast<std::int32_t>(code));
}

std::string lost(const std::string& name) {
  return "variable `" + name +
         "` of a module may have been changed, and its content is lost with the context";
}

std::uint64_t end_of(std::uint64_t begin, std::uint64_t size) {
  return size > ~std::uint64_t{0} - begin ? ~std::uint64_t{0} : begin + size;
}

// Bytes from the first to the last of a box of rows.
std::uint64_t span_of(std::uint64_t width, std::uint64_t height, std::uint64_t depth,
                      std::uint64_t pitch, std::uint64_t slice_height) {
  if (width == 0 || height == 0 || depth == 0) {
    return 0;
  }
  if (pitch == 0) {
    pitch = width;
  }
  return ((depth - 1) * slice_height + height - 1) * pitch + width;
}

}  // namespace

std::pair<std::uint64_t, std::uint64_t> written_by(const driver_api::Call& call,
                                                   const void* params) {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  switch (call.hook) {
    case Hook::kCopyLinear: {
      // All of them begin with destination, source, byte count. A destination of the host's is in
      // no variable.
      const auto& p = as<cuMemcpyHtoD_v2_params>(params);
      begin = p.dstDevice;
      size = p.ByteCount;
      break;
    }
    case Hook::kCopy2d: {
      const CUDA_MEMCPY2D* copy = as<cuMemcpy2D_v2_params>(params).pCopy;
      if (copy != nullptr && (copy->dstMemoryType == CU_MEMORYTYPE_DEVICE ||
                              copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED)) {
        const std::uint64_t pitch = copy->dstPitch != 0 ? copy->dstPitch : copy->WidthInBytes;
        begin = copy->dstDevice + copy->dstY * pitch + copy->dstXInBytes;
        size = span_of(copy->WidthInBytes, copy->Height, 1, pitch, 0);
      }
      break;
    }
    case Hook::kCopy3d: {
      const CUDA_MEMCPY3D* copy = as<cuMemcpy3D_v2_params>(params).pCopy;
      if (copy != nullptr && (copy->dstMemoryType == CU_MEMORYTYPE_DEVICE ||
                              copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED)) {
        const std::uint64_t pitch = copy->dstPitch != 0 ? copy->dstPitch : copy->WidthInBytes;
        begin = copy->dstDevice + (copy->dstZ * copy->dstHeight + copy->dstY) * pitch +
                copy->dstXInBytes;
        size = span_of(copy->WidthInBytes, copy->Height, copy->Depth, pitch, copy->dstHeight);
      }
      break;
    }
    case Hook::kSet1d: {
      // The count stands at the same place whatever the size of the value.
      static_assert(offsetof(cuMemsetD8_v2_params, N) == offsetof(cuMemsetD32_v2_params, N) &&
                    offsetof(cuMemsetD8_v2_params, N) == offsetof(cuMemsetD16_v2_params, N));
      const auto& p = as<cuMemsetD8_v2_params>(params);
      begin = p.dstDevice;
      size = p.N * (call.name.find("D32") != std::string_view::npos   ? 4
                    : call.name.find("D16") != std::string_view::npos ? 2
                                                                      : 1);
      break;
    }
    case Hook::kSet2d: {
      static_assert(
          offsetof(cuMemsetD2D8_v2_params, Width) == offsetof(cuMemsetD2D32_v2_params, Width) &&
          offsetof(cuMemsetD2D8_v2_params, Width) == offsetof(cuMemsetD2D16_v2_params, Width));
      const auto& p = as<cuMemsetD2D8_v2_params>(params);
      const std::uint64_t element = call.name.find("D2D32") != std::string_view::npos   ? 4
                                    : call.name.find("D2D16") != std::string_view::npos ? 2
                                                                                        : 1;
      begin = p.dstDevice;
      size = span_of(p.Width * element, p.Height, 1, p.dstPitch, 0);
      break;
    }
    default:
      break;
  }
  return size == 0 ? std::pair<std::uint64_t, std::uint64_t>{0, 0}
                   : std::pair{begin, end_of(begin, size)};
}

Globals::Globals(Parts parts) : parts_(std::move(parts)) {}
Globals::~Globals() = default;

void Globals::count_obstacle(const std::string& why) {
  const std::unique_lock lock(mutex_);
  if (obstacle_.empty()) {
    obstacle_ = why;
  }
  has_obstacle_ = true;
}

// --- what there is ---

GlobalVariable* Globals::record(ObjectKey owner, std::string_view name, std::uint64_t address,
                                std::uint64_t size) {
  const bool known = parts_.objects.find(owner).has_value();
  const std::unique_lock lock(mutex_);
  GlobalVariable*& entry = by_address_[address];
  // The same variable goes by the library's name and by its module's.
  if (entry != nullptr && !entry->gone && entry->size == size && entry->name == name) {
    return entry;
  }
  if (entry != nullptr) {
    entry->gone = true;
    std::erase(taken_, entry);
    taken_count_ = taken_.size();
  }
  auto made = std::make_unique<GlobalVariable>();
  made->owner = owner;
  made->name = name;
  made->address = address;
  made->size = size;
  made->owner_known = known;
  entry = made.get();
  all_.push_back(std::move(made));
  return entry;
}

void Globals::note_address(ObjectKey owner, const char* name, std::uint64_t address,
                           std::uint64_t size, bool managed, bool by_runtime) {
  if (name == nullptr || address == 0) {
    return;
  }
  if (size == 0) {
    // The app has not asked.
    CUdeviceptr at = 0;
    std::size_t bytes = 0;
    const CUresult code = owner.kind == 'L'
                              ? parts_.driver.cuLibraryGetGlobal(
                                    &at, &bytes, reinterpret_cast<CUlibrary>(owner.handle), name)
                              : parts_.driver.cuModuleGetGlobal(
                                    &at, &bytes, reinterpret_cast<CUmodule>(owner.handle), name);
    if (code != CUDA_SUCCESS || at != address) {
      count_obstacle("variable `" + std::string(name) +
                     "` of a module, whose size could not be told, may have been changed");
      return;
    }
    size = bytes;
  }
  if (managed) {
    count_obstacle("the program uses the managed variable `" + std::string(name) +
                   "`, which cannot be carried over");
  }
  GlobalVariable* const variable = record(owner, name, address, size);
  const std::unique_lock lock(mutex_);
  lowest_ = std::min(lowest_.load(), address);
  highest_ = std::max(highest_.load(), end_of(address, size));
  if (by_runtime) {
    ++untaken_;
  } else {
    take(variable);
  }
}

template <class F>
bool Globals::for_each_candidate(std::span<const std::byte> bytes, F&& f) const {
  const std::uint64_t lowest = lowest_.load(std::memory_order_relaxed);
  const std::uint64_t highest = highest_.load(std::memory_order_relaxed);
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    if (value >= lowest && value < highest && f(value)) {
      return true;
    }
  }
  return false;
}

void Globals::take_addresses_in(std::span<const std::byte> bytes) {
  for_each_candidate(bytes, [&](std::uint64_t value) {
    const std::unique_lock lock(mutex_);
    const auto next = by_address_.upper_bound(value);
    if (next != by_address_.begin()) {
      GlobalVariable* const variable = std::prev(next)->second;
      if (value - variable->address < variable->size && !variable->taken) {
        take(variable);
      }
    }
    return false;
  });
}

void Globals::translate_arguments(std::span<std::byte> arguments) const {
  {
    const std::shared_lock lock(mutex_);
    if (moved_.empty()) {
      return;
    }
  }
  for (std::size_t at = 0; at + 8 <= arguments.size(); at += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, arguments.data() + at, sizeof value);
    if (const std::uint64_t there = translate(value, 1); there != value) {
      std::memcpy(arguments.data() + at, &there, sizeof there);
    }
  }
}

void Globals::look_for_addresses_at(const void* host, std::size_t size) {
  if (untaken_.load(std::memory_order_relaxed) == 0 || size > kMaxSearched) {
    return;
  }
  // By way of the kernel: a pointer that leads nowhere is for the driver to refuse.
  std::array<std::byte, 16384> piece;
  for (std::size_t at = 0; at < size; at += piece.size()) {
    const std::size_t length = std::min(piece.size(), size - at);
    const iovec to{piece.data(), length};
    const iovec from{const_cast<std::byte*>(static_cast<const std::byte*>(host)) + at, length};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(length)) {
      return;
    }
    take_addresses_in(std::span(piece).first(length));
  }
}

bool Globals::holds_moved(std::span<const std::byte> bytes) const {
  if (untaken_.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  return for_each_candidate(bytes,
                            [&](std::uint64_t value) { return translate(value, 1) != value; });
}

void Globals::take(GlobalVariable* variable) {
  variable->taken = true;
  const auto at = std::lower_bound(
      taken_.begin(), taken_.end(), variable,
      [](const GlobalVariable* a, const GlobalVariable* b) { return a->address < b->address; });
  if (at == taken_.end() || *at != variable) {
    taken_.insert(at, variable);
    taken_count_ = taken_.size();
  }
}

void Globals::note_unload(std::uint64_t owner) {
  std::vector<CUdeviceptr> shadows;
  {
    const std::unique_lock lock(mutex_);
    std::erase_if(by_address_, [&](const auto& entry) {
      GlobalVariable* const variable = entry.second;
      if (variable->owner.handle != owner) {
        return false;
      }
      variable->gone = true;
      if (variable->shadow != 0) {
        shadows.push_back(std::exchange(variable->shadow, 0));
      }
      return true;
    });
    std::erase_if(taken_, [](const GlobalVariable* variable) { return variable->gone.load(); });
    taken_count_ = taken_.size();
  }
  for (const CUdeviceptr shadow : shadows) {
    parts_.free(shadow);
  }
}

const GlobalsEffect& Globals::effect_of(const Kernel& kernel) {
  auto made = make_effect(kernel);
  const std::unique_lock lock(mutex_);
  const GlobalsEffect* present = kernel.globals.load(std::memory_order_relaxed);
  if (present == nullptr) {
    present = made.get();
    effects_.push_back(std::move(made));
    kernel.globals.store(present, std::memory_order_release);
  }
  return *present;
}

std::unique_ptr<GlobalsEffect> Globals::make_effect(const Kernel& kernel) {
  auto effect = std::make_unique<GlobalsEffect>();
  const ObjectKey owner{kernel.library ? 'L' : 'm', reinterpret_cast<std::uint64_t>(kernel.owner)};
  // What its verdicts rest on has to lie where it lies; also what it only reads.
  for (const auto& [name, range] : kernel.symbols.ranges) {
    record(owner, name, range.begin, range.end - range.begin);
  }
  const auto* summary = kernel.summary.get();
  if (summary == nullptr || !summary->complete || !summary->defeats.empty()) {
    effect->wild = true;
  } else {
    for (const auto& access : summary->accesses) {
      if (access.kind == idempotency::AccessKind::kRead) {
        continue;
      }
      for (const auto& alternative : access.alternatives) {
        effect->wild |= alternative.roots.empty() || alternative.may_hide_pointer;
        for (const auto& root : alternative.roots) {
          switch (root.kind) {
            case RootKind::kParameter:
            case RootKind::kAnyParameter:
              effect->pointers.emplace_back(root.param_offset,
                                            std::max<std::uint32_t>(root.param_size, 8));
              break;
            case RootKind::kGlobalSymbol:
            case RootKind::kConstSymbol: {
              const std::string name = root.symbol < summary->symbols.size()
                                           ? summary->symbols[root.symbol]
                                           : std::string("?");
              if (const auto range = kernel.symbols.find(name)) {
                effect->writes.push_back(
                    record(owner, name, range->begin, range->end - range->begin));
              } else {
                effect->obstacle = lost(name);
              }
              break;
            }
            default:
              effect->wild = true;
              break;
          }
        }
      }
    }
  }
  const auto variables = parts_.images.variables(kernel.owner);
  if (variables != nullptr) {
    for (const auto& variable : variables->variables) {
      if (variable.managed && effect->obstacle.empty()) {
        effect->obstacle = "`" + kernel.name + "` is of a module with the managed variable `" +
                           variable.name + "`, which cannot be carried over";
      }
    }
  }
  if (effect->wild) {
    add_own_variables(kernel, *effect);
  }
  std::sort(effect->writes.begin(), effect->writes.end(),
            [](const auto* a, const auto* b) { return a->address < b->address; });
  effect->writes.erase(std::unique(effect->writes.begin(), effect->writes.end()),
                       effect->writes.end());
  return effect;
}

void Globals::add_own_variables(const Kernel& kernel, GlobalsEffect& effect) {
  const auto decline = [&](std::string why) {
    if (effect.obstacle.empty()) {
      effect.obstacle = std::move(why);
    }
  };
  const auto variables = parts_.images.variables(kernel.owner);
  if (variables == nullptr) {
    decline("`" + kernel.name +
            "`, of which nothing is known, may have changed variables of its module, and these are "
            "not known either");
    return;
  }
  if (variables->nameless) {
    decline("`" + kernel.name +
            "` may have changed a variable of its module that has no name, and its content is lost "
            "with the context");
  }
  if (variables->device_heap) {
    decline("`" + kernel.name +
            "` is of a module that uses malloc in device code, and that memory is lost with the "
            "context");
  }
  const ObjectKey owner{kernel.library ? 'L' : 'm', reinterpret_cast<std::uint64_t>(kernel.owner)};
  std::uint64_t bytes = 0;
  for (const auto& variable : variables->variables) {
    if (variable.constant || variable.compilers || variable.size == 0) {
      continue;
    }
    CUdeviceptr address = 0;
    std::size_t size = 0;
    const CUresult code =
        kernel.library
            ? parts_.driver.cuLibraryGetGlobal(
                  &address, &size, static_cast<CUlibrary>(const_cast<void*>(kernel.owner)),
                  variable.name.c_str())
            : parts_.driver.cuModuleGetGlobal(
                  &address, &size, static_cast<CUmodule>(const_cast<void*>(kernel.owner)),
                  variable.name.c_str());
    if (code != CUDA_SUCCESS) {
      decline(lost(variable.name));
      return;
    }
    bytes += size;
    if (bytes > kMaxImageBytes) {
      decline("`" + kernel.name +
              "`, of which nothing is known, may have changed the variables of its module, which "
              "are too large to be kept");
      effect.writes.clear();
      return;
    }
    effect.writes.push_back(record(owner, variable.name, address, size));
  }
}

void Globals::affected(const GlobalsEffect& effect, std::span<const std::byte> arguments,
                       std::vector<GlobalVariable*>& out) const {
  out.insert(out.end(), effect.writes.begin(), effect.writes.end());
  if (taken_count_.load(std::memory_order_relaxed) != 0) {
    const std::shared_lock lock(mutex_);
    if (effect.wild || (arguments.empty() && !effect.pointers.empty())) {
      out.insert(out.end(), taken_.begin(), taken_.end());
    } else {
      for (const auto& [offset, size] : effect.pointers) {
        // Those that the verdict looks at: 8 bytes at every fourth.
        for (std::uint64_t at = offset; at + 8 <= std::uint64_t{offset} + size; at += 4) {
          if (at + 8 > arguments.size()) {
            break;
          }
          std::uint64_t value = 0;
          std::memcpy(&value, arguments.data() + at, sizeof value);
          const auto next = std::upper_bound(
              taken_.begin(), taken_.end(), value,
              [](std::uint64_t v, const GlobalVariable* a) { return v < a->address; });
          if (next != taken_.begin() && value - (*(next - 1))->address < (*(next - 1))->size) {
            out.push_back(*(next - 1));
          }
        }
      }
    }
  }
  // The order in which they are claimed.
  std::sort(out.begin(), out.end(), [](const auto* a, const auto* b) {
    return a->address != b->address ? a->address < b->address : a < b;
  });
  out.erase(std::unique(out.begin(), out.end()), out.end());
  std::erase_if(out, [](const GlobalVariable* v) { return v->gone.load(); });
}

// --- shadows ---

bool Globals::claim(GlobalVariable& variable) {
  while (variable.claimed.exchange(true, std::memory_order_acquire)) {
    // Another thread is in the driver, with a launch.
    if (!parts_.needed()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
  return true;
}

void Globals::release(std::vector<GlobalVariable*>& variables) {
  for (GlobalVariable* variable : variables) {
    variable->claimed.store(false, std::memory_order_release);
  }
  variables.clear();
}

bool Globals::has_shadow(GlobalVariable& variable) {
  if (variable.shadow == 0 && parts_.allocate(&variable.shadow, variable.size) != CUDA_SUCCESS) {
    variable.shadow = 0;
  }
  return variable.shadow != 0;
}

// The content before the first launch that may write: of that launch it may never be known whether
// its own copy was made, so there has to be one that is complete.
void Globals::take_first(GlobalVariable& variable, CUstream stream) {
  if (!has_shadow(variable)) {
    variable.state = State::kLost;
    return;
  }
  variable.state = State::kTaking;
  CUresult code =
      parts_.driver.cuMemcpyDtoDAsync(variable.shadow, variable.address, variable.size, stream);
  if (code == CUDA_SUCCESS) {
    code = parts_.settle(stream);
  }
  // A context that is dead by now has not changed the variable, and will not.
  variable.state = code == CUDA_SUCCESS ? State::kHeld
                   : sticky(code)       ? State::kInitial
                                        : State::kLost;
}

void Globals::claim_all(const GlobalsEffect& effect, std::span<const std::byte> arguments,
                        CUstream stream, recovery::StreamLog& log,
                        std::vector<GlobalVariable*>& out) {
  out.clear();
  std::vector<GlobalVariable*> wanted;
  affected(effect, arguments, wanted);
  if (wanted.empty()) {
    return;
  }
  const driver_api::RelaxedCapture relaxed(parts_.driver);
  for (GlobalVariable* variable : wanted) {
    if (variable->state == State::kLost) {
      continue;
    }
    if (!claim(*variable)) {
      variable->state = State::kLost;
      continue;
    }
    out.push_back(variable);
    // The copy of another stream's launch could bring back what this one has overwritten.
    if (variable->last != nullptr && variable->last != &log && !variable->last->idle()) {
      parts_.wait_for(*variable->last);
    }
    if (variable->state == State::kInitial) {
      take_first(*variable, stream);
    }
    variable->last = &log;
  }
}

// By one launch instead of a call for each. False if that is not possible or does not pay.
bool Globals::copy_together(std::span<GlobalVariable* const> variables, CUstream stream) {
  constexpr std::size_t kFew = 2;
  constexpr std::uint64_t kLarge = 64 << 10;  // a block alone copies slowly
  if (variables.size() < kFew || !parts_.copy_each ||
      parts_.copy_each(stream, 0, 0) != CUDA_SUCCESS) {
    return false;
  }
  std::vector<std::uint64_t> entries;
  entries.reserve(3 * variables.size());
  for (const GlobalVariable* variable : variables) {
    if (variable->state != State::kHeld || variable->size > kLarge) {
      return false;
    }
    entries.insert(entries.end(), {variable->address, variable->shadow, variable->size});
  }
  const auto count = static_cast<std::uint32_t>(variables.size());
  CUdeviceptr list = 0;
  {
    const std::lock_guard lock(lists_mutex_);
    if (const auto at = lists_.find(entries); at != lists_.end()) {
      list = at->second;
    } else if (lists_.size() >= kMaxLists) {
      return false;
    }
  }
  if (list == 0) {
    const std::size_t bytes = entries.size() * sizeof entries[0];
    if (parts_.allocate(&list, bytes) != CUDA_SUCCESS) {
      return false;
    }
    // Complete before another stream's launch uses it.
    if (parts_.driver.cuMemcpyHtoDAsync(list, entries.data(), bytes, stream) != CUDA_SUCCESS ||
        parts_.settle(stream) != CUDA_SUCCESS) {
      return false;  // the memory may be written still: it is not given back
    }
    const std::lock_guard lock(lists_mutex_);
    lists_.emplace(std::move(entries), list);  // another thread's of the same content is as good
  }
  return parts_.copy_each(stream, list, count) == CUDA_SUCCESS;
}

void Globals::copy(std::span<GlobalVariable* const> variables, CUstream stream) {
  if (copy_together(variables, stream)) {
    return;
  }
  for (GlobalVariable* variable : variables) {
    if (variable->state == State::kLost) {
      continue;
    }
    const CUresult code = variable->state == State::kHeld
                              ? parts_.driver.cuMemcpyDtoDAsync(variable->shadow, variable->address,
                                                                variable->size, stream)
                              : CUDA_ERROR_UNKNOWN;
    if (code != CUDA_SUCCESS && !sticky(code)) {
      variable->state = State::kLost;
    }
  }
}

CUresult Globals::copy_written(GlobalVariable& variable, std::uint64_t begin, std::uint64_t end,
                               CUstream stream) {
  if (!claim(variable)) {
    variable.state = State::kLost;
    return CUDA_SUCCESS;
  }
  struct Release {
    GlobalVariable& variable;
    ~Release() { variable.claimed.store(false, std::memory_order_release); }
  } const release{variable};
  const State before = variable.state.exchange(State::kLost);
  if (before == State::kLost || !has_shadow(variable)) {
    return CUDA_SUCCESS;
  }
  if (variable.last != nullptr && !variable.last->idle()) {
    parts_.wait_for(*variable.last);
  }
  begin = before == State::kHeld ? std::max(begin, variable.address) : variable.address;
  end = before == State::kHeld ? std::min(end, variable.address + variable.size)
                               : variable.address + variable.size;
  CUresult code = parts_.driver.cuMemcpyDtoDAsync(variable.shadow + (begin - variable.address),
                                                  begin, end - begin, stream);
  if (code == CUDA_SUCCESS) {
    code = parts_.settle(stream);
  }
  if (code == CUDA_SUCCESS) {
    variable.state = State::kHeld;
  }
  return sticky(code) ? code : CUDA_SUCCESS;
}

CUresult Globals::after_write(std::uint64_t begin, std::uint64_t end, CUstream stream) {
  std::vector<GlobalVariable*> written;
  {
    const std::shared_lock lock(mutex_);
    for (auto at = by_address_.lower_bound(begin); at != by_address_.begin();) {
      // Variables do not overlap: at most one begins before and reaches in.
      if (--at; at->second->address + at->second->size > begin) {
        written.push_back(at->second);
      }
      break;
    }
    for (auto at = by_address_.lower_bound(begin); at != by_address_.end() && at->first < end;
         ++at) {
      written.push_back(at->second);
    }
  }
  if (written.empty()) {
    return CUDA_SUCCESS;
  }
  const driver_api::RelaxedCapture relaxed(parts_.driver);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (parts_.driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
      status != CU_STREAM_CAPTURE_STATUS_NONE) {
    return CUDA_SUCCESS;  // recorded, not done; graphs are not carried over
  }
  for (GlobalVariable* variable : written) {
    if (const CUresult code = copy_written(*variable, begin, end, stream); code != CUDA_SUCCESS) {
      // The others may have been written too.
      for (GlobalVariable* other : written) {
        other->state = State::kLost;
      }
      return code;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Globals::after_launch(const Kernel& kernel, std::span<const std::byte> arguments,
                               CUstream stream) {
  const GlobalsEffect* effect = kernel.globals.load(std::memory_order_acquire);
  if (effect == nullptr) {
    effect = &effect_of(kernel);
  }
  launched(kernel);
  std::vector<GlobalVariable*> variables;
  affected(*effect, arguments, variables);
  if (variables.empty()) {
    return CUDA_SUCCESS;
  }
  const driver_api::RelaxedCapture relaxed(parts_.driver);
  CUresult first = CUDA_SUCCESS;
  for (GlobalVariable* variable : variables) {
    const CUresult code =
        copy_written(*variable, variable->address, variable->address + variable->size, stream);
    if (first == CUDA_SUCCESS) {
      first = code;
    }
  }
  return first;
}

// --- takeover ---

std::string Globals::obstacle() const {
  const std::shared_lock lock(mutex_);
  if (!obstacle_.empty()) {
    return obstacle_;
  }
  for (const auto& [address, variable] : by_address_) {
    const State state = variable->state;
    if (state == State::kLost || state == State::kTaking) {
      return lost(variable->name);
    }
  }
  return "";
}

std::uint64_t Globals::translate(std::uint64_t address, std::uint64_t size) const {
  const std::shared_lock lock(mutex_);
  const auto next = moved_.upper_bound(address);
  if (next == moved_.begin()) {
    return address;
  }
  const auto& [begin, moved] = *std::prev(next);
  const std::uint64_t at = address - begin;
  return at < moved.size && size <= moved.size - at ? moved.to + at : address;
}

bool Globals::known(ObjectKey owner, std::string_view name, std::uint64_t& address,
                    std::uint64_t& size) const {
  const std::shared_lock lock(mutex_);
  for (const auto& [at, variable] : by_address_) {
    if (variable->owner == owner && variable->name == name) {
      address = at;
      size = variable->size;
      return true;
    }
  }
  return false;
}

bool Globals::collides(std::uint64_t address, std::uint64_t size) const {
  const std::shared_lock lock(mutex_);
  const auto next = moved_.lower_bound(end_of(address, size));
  return next != moved_.begin() && std::prev(next)->first + std::prev(next)->second.size > address;
}

std::string Globals::restore(const Standby& standby) {
  std::vector<GlobalVariable*> variables;
  {
    const std::unique_lock lock(mutex_);
    moved_.clear();
    for (const auto& [address, variable] : by_address_) {
      // Of an object that is gone by another's end (a library's module) nothing is left.
      if (!variable->owner_known || parts_.objects.find(variable->owner)) {
        variables.push_back(variable);
      }
    }
  }
  if (variables.empty()) {
    return "";
  }
  // Addresses come out the same where the same modules are loaded in the same order.
  std::vector<std::pair<std::uint64_t, ObjectKey>> owners;
  for (const char kind : {'m', 'L'}) {
    for (const ObjectKey key : parts_.objects.all(kind)) {
      // A library is loaded into the context when something of it is first used.
      const bool needed =
          kind == 'm' || std::any_of(variables.begin(), variables.end(),
                                     [&](const auto* v) { return v->owner == key; });
      if (const auto made = parts_.objects.find(key); made && needed) {
        owners.emplace_back(made->order, key);
      }
    }
  }
  std::sort(owners.begin(), owners.end());
  std::vector<bool> done(variables.size(), false);
  const auto give = [&](const GlobalVariable& variable) -> std::string {
    const std::string name = "variable `" + variable.name + "` of a module";
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    if (const Answer answer = standby.find(variable, address, size); !answer.ok()) {
      return name + " could not be found again: " + answer.reason;
    }
    if (size != variable.size || (address != variable.address && variable.taken)) {
      return name + " lies elsewhere in the standby, and its address may be in use";
    }
    if (address != variable.address) {
      const std::unique_lock lock(mutex_);
      moved_[variable.address] = {variable.size, address};
    }
    if (variable.state == State::kHeld) {
      if (const Answer answer = standby.copy(address, variable.shadow, variable.size);
          !answer.ok()) {
        return name + " could not be given its content: " + answer.reason;
      }
    }
    return "";
  };
  for (const auto& entry : owners) {
    const ObjectKey owner = entry.second;
    const bool needed = std::any_of(variables.begin(), variables.end(),
                                    [&](const auto* v) { return v->owner == owner; });
    if (const Answer answer = standby.ensure(owner); needed && !answer.ok()) {
      return "a module with variables could not be loaded again: " + answer.reason;
    }
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (variables[i]->owner == owner) {
        done[i] = true;
        if (std::string why = give(*variables[i]); !why.empty()) {
          return why;
        }
      }
    }
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!done[i]) {
      return "variable `" + variables[i]->name +
             "` is of a module that is not known how it was loaded";
    }
  }
  return "";
}

std::string Globals::refresh(const Standby& standby, const Kernel& kernel,
                             std::span<const std::byte> arguments) {
  const GlobalsEffect* effect = kernel.globals.load(std::memory_order_acquire);
  if (effect == nullptr) {
    return "";
  }
  std::vector<GlobalVariable*> variables;
  affected(*effect, arguments, variables);
  for (GlobalVariable* variable : variables) {
    if (variable->state != State::kHeld) {
      continue;  // lost already, or its address was not known yet when this was launched
    }
    if (const Answer answer = standby.copy(
            variable->shadow, translate(variable->address, variable->size), variable->size);
        !answer.ok()) {
      return "variable `" + variable->name + "` could not be kept: " + answer.reason;
    }
  }
  return "";
}

}  // namespace gpurecover::agent
