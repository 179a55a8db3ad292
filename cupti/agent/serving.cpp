// SPDX-License-Identifier: Apache-2.0
//
// After a takeover: the app's calls, and the agent's own, done by the standby.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "classifier/catalogue.h"
#include "cupti/agent/takeover.h"
#include "cupti/driver_api/params_size.h"
#include "image/image.h"
#include "recovery/call_codec.h"

namespace gpurecover::agent {
namespace {

using driver_api::After;
using driver_api::Hook;
using driver_api::Kind;
using recovery::Answer;
using recovery::ParameterKind;

// Whose calls the replaced driver makes. One agent, one takeover in a process.
Takeover* serving = nullptr;

template <class T>
const T& as(const void* params) {
  return *static_cast<const T*>(params);
}

std::uint64_t number(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

CUstream explicit_stream(CUstream stream, std::uint32_t cbid) {
  if (stream != nullptr) {
    return stream;
  }
  return driver_api::per_thread_stream(cbid) ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

// No handle of a driver's, which are addresses of its objects; CUDA programs do not look into them.
constexpr std::uint64_t kFirstHandle = 0x6770'0000'0000;
constexpr std::uint64_t kEndOfHandles = 0x6771'0000'0000;

}  // namespace

std::uint64_t Takeover::new_handle() {
  return kFirstHandle + 64 * (next_handle_.fetch_add(1, std::memory_order_relaxed) + 1);
}

CUresult Takeover::answer_code(const Answer& answer) {
  // A standby that is gone has the meaning that the dead context had.
  return static_cast<CUresult>(answer.sent ? answer.code : code_);
}

// --- objects, on demand ---

Answer Takeover::ensure(ObjectKey key) {
  auto* link = link_.load();
  Answer answer;
  if (link == nullptr) {
    answer.reason = "there is no standby";
    return answer;
  }
  {
    const std::lock_guard lock(restore_mutex_);
    if (sent_.contains(key)) {
      answer.sent = true;
      return answer;
    }
  }
  const auto made = objects_.find(key);
  if (!made) {
    answer.sent = true;
    answer.code = CUDA_ERROR_INVALID_HANDLE;
    answer.reason = "it is not known how the object was made";
    return answer;
  }
  if (made->parent.kind != 0) {
    if (answer = ensure(made->parent); !answer.ok()) {
      return answer;
    }
  }
  answer = make_object(*link, key, *made, false, ~std::size_t{0});
  if (answer.ok()) {
    const std::lock_guard lock(restore_mutex_);
    sent_.insert(key);
  }
  return answer;
}

Answer Takeover::make_object(recovery::StandbyLink& link, ObjectKey key, const Objects::Made& made,
                             bool there, std::size_t image_limit) {
  Answer answer;
  answer.sent = true;
  std::vector<std::byte> results;
  if (there) {
    // Its changes are all that is to be done.
  } else if (made.by_image) {
    const auto image = images_bytes(key, image_limit);
    // The image goes before its object does, and comes before it: one that belongs to the next
    // object of that handle is noticed.
    const auto still = objects_.find(key);
    if (image.empty() || !still || still->identity != made.identity) {
      answer.code = CUDA_ERROR_INVALID_IMAGE;
      answer.reason = "its image was not kept";
      return answer;
    }
    answer = key.kind == 'L' ? link.load_library(key.handle, image)
                             : link.load_module(key.handle, image);
  } else if (!made.call.empty()) {
    answer = link.call(made.call, results);
  }
  for (std::size_t i = 0; answer.ok() && i < made.changes.size(); ++i) {
    answer = link.call(made.changes[i], results);
  }
  return answer;
}

std::vector<std::byte> Takeover::images_bytes(ObjectKey key, std::size_t limit) const {
  std::vector<std::byte> image =
      parts_.images.image_of(reinterpret_cast<const void*>(key.handle), limit);
  if (!image.empty()) {
    image.push_back(std::byte{0});  // where PTX text ends
  }
  return image;
}

Answer Takeover::ensure_handles(const driver_api::Call& call, const void* params) {
  Answer answer;
  answer.sent = true;
  for (const auto& parameter : recovery::parameters_of(call)) {
    if (parameter.kind != ParameterKind::kHandle &&
        parameter.kind != ParameterKind::kDestroyedHandle) {
      continue;
    }
    std::uint64_t handle = 0;
    std::memcpy(&handle, static_cast<const std::byte*>(params) + parameter.offset, sizeof handle);
    // Contexts and default streams are there already; of an unknown handle the standby's driver
    // says what it says of one.
    if (parameter.handle == 'c' || handle <= 2) {
      continue;
    }
    if (answer = ensure({parameter.handle, handle}); !answer.sent) {
      return answer;
    }
  }
  answer = {};
  answer.sent = true;
  return answer;
}

Answer Takeover::send(const driver_api::Call& call, const void* params, bool per_thread,
                      const recovery::NewHandle& new_handle, std::vector<std::byte>& results) {
  auto* link = link_.load();
  Answer answer;
  if (link == nullptr) {
    return answer;
  }
  if (answer = ensure_handles(call, params); !answer.ok()) {
    return answer;
  }
  std::vector<std::byte> encoded;
  recovery::encode_call(
      call, params, per_thread,
      new_handle ? new_handle : [this](char) { return this->new_handle(); }, encoded);
  return link->call(encoded, results);
}

CUresult Takeover::serve_generic(const driver_api::Call& call, std::uint32_t cbid,
                                 const void* params) {
  std::vector<ObjectKey> made;
  std::vector<std::byte> results;
  const Answer answer = send(
      call, params, driver_api::per_thread_stream(cbid),
      [&](char kind) {
        made.push_back({kind, new_handle()});
        return made.back().handle;
      },
      results);
  if (!answer.ok()) {
    return answer_code(answer);
  }
  const auto keep = [this](std::string_view text) {
    const std::lock_guard lock(strings_mutex_);
    return strings_.emplace(text).first->c_str();
  };
  if (!recovery::store_results(call, params, results, keep)) {
    return static_cast<CUresult>(code_);
  }
  const std::lock_guard lock(restore_mutex_);
  sent_.insert(made.begin(), made.end());
  return CUDA_SUCCESS;
}

// --- the app's calls ---

bool Takeover::serves(const driver_api::Call& call) const {
  switch (call.hook) {
    case Hook::kLaunchKernel:
    case Hook::kLaunchKernelEx:
    case Hook::kLaunchCooperative:
    case Hook::kCopyLinear:
    case Hook::kCopy2d:
    case Hook::kCopy3d:
    case Hook::kHostFunction:
    case Hook::kModuleLoadFile:
    case Hook::kModuleLoadData:
    case Hook::kModuleLoadDataEx:
    case Hook::kModuleLoadFatbin:
    case Hook::kModuleGetGlobal:
    case Hook::kLibraryGetGlobal:
    case Hook::kPrimaryContextGone:
    case Hook::kContextDestroy:
      return true;
    default:
      return call.after == After::kServed && recovery::travels(call) && call.kind != Kind::kAlloc &&
             call.kind != Kind::kFree && call.kind != Kind::kGraphLaunch;
  }
}

void Takeover::begin_served(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                            const void* params) {
  (void)call;
  auto& under_way = state.call;
  const std::size_t size = driver_api::params_size(cbid);
  under_way.served_size = size <= under_way.served_params.size() ? size : 0;
  if (under_way.served_size == 0) {
    return;  // there may be no structure either
  }
  // Nothing of it is the dead driver's to look at, handles that only the standby knows least of
  // all.
  std::memcpy(under_way.served_params.data(), params, under_way.served_size);
  std::memset(const_cast<void*>(params), 0, under_way.served_size);
}

void Takeover::restore_params(ThreadState& state, const void* params) {
  if (state.call.served_size != 0) {
    std::memcpy(const_cast<void*>(params), state.call.served_params.data(), state.call.served_size);
  }
}

CUresult Takeover::serve(ThreadState& state, const driver_api::Call& call, std::uint32_t cbid,
                         const void* params, CUcontext context) {
  switch (call.hook) {
    case Hook::kLaunchKernel:
    case Hook::kLaunchKernelEx:
    case Hook::kLaunchCooperative:
      if (state.call.kernel != nullptr && state.call.kernel->incomplete) {
        // First seen when the context was dead already.
        state.call.kernel = parts_.kernels.find(state.call.launch.function, context, nullptr);
      }
      return serve_launch(state);
    case Hook::kCopyLinear: {
      const auto& p = as<cuMemcpyHtoDAsync_v2_params>(params);
      const bool async = call.name.find("Async") != std::string_view::npos;
      return serve_copy(p.dstDevice, number(p.srcHost), p.ByteCount,
                        explicit_stream(async ? p.hStream : nullptr, cbid), async);
    }
    case Hook::kCopy2d: {
      const auto& p = as<cuMemcpy2DAsync_v2_params>(params);
      const bool async = call.name.find("Async") != std::string_view::npos;
      return p.pCopy == nullptr
                 ? CUDA_ERROR_INVALID_VALUE
                 : serve_copy_2d(*p.pCopy, explicit_stream(async ? p.hStream : nullptr, cbid),
                                 async);
    }
    case Hook::kCopy3d: {
      const auto& p = as<cuMemcpy3DAsync_v2_params>(params);
      const bool async = call.name.find("Async") != std::string_view::npos;
      return p.pCopy == nullptr
                 ? CUDA_ERROR_INVALID_VALUE
                 : serve_copy_3d(*p.pCopy, explicit_stream(async ? p.hStream : nullptr, cbid),
                                 async);
    }
    case Hook::kHostFunction:
      return serve_host_function(call, cbid, params);
    case Hook::kModuleLoadFile:
    case Hook::kModuleLoadData:
    case Hook::kModuleLoadDataEx:
    case Hook::kModuleLoadFatbin:
      return serve_load(call, params);
    case Hook::kModuleGetGlobal: {
      const auto& p = as<cuModuleGetGlobal_v2_params>(params);
      return serve_global({'m', number(p.hmod)}, p.name, p.dptr, p.bytes);
    }
    case Hook::kLibraryGetGlobal: {
      const auto& p = as<cuLibraryGetGlobal_params>(params);
      return serve_global({'L', number(p.library)}, p.name, p.dptr, p.bytes);
    }
    case Hook::kPrimaryContextGone:
    case Hook::kContextDestroy:
      // The program is done with the device; whatever it does with it next, it does not do here.
      return synchronize();
    default:
      break;
  }
  (void)context;
  // A function that is launched must be one that this process's CUPTI knows, for it looks the name
  // up before any callback: a kernel, which a dead process's driver still makes, stands for it.
  if (call.name == "cuKernelGetFunction") {
    const auto& p = as<cuKernelGetFunction_params>(params);
    if (p.pFunc == nullptr || p.kernel == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *p.pFunc = reinterpret_cast<CUfunction>(p.kernel);
    return CUDA_SUCCESS;
  }
  if (call.name == "cuModuleGetFunction") {
    const auto& p = as<cuModuleGetFunction_params>(params);
    return serve_function(p.hfunc, p.hmod, p.name);
  }
  if (call.hook == Hook::kSet1d || call.hook == Hook::kSet2d) {
    // All of them begin with the destination.
    std::array<std::byte, 64> moved{};
    std::memcpy(moved.data(), params,
                std::min<std::size_t>(moved.size(), driver_api::params_size(cbid)));
    const auto [begin, end] = written_by(call, params);
    const std::uint64_t to = globals_.translate(begin, end - begin);
    if (to != begin) {
      std::memcpy(moved.data(), &to, sizeof to);
    }
    return serve_generic(call, cbid, moved.data());
  }
  if (call.name.starts_with("cuEventElapsedTime")) {
    return serve_elapsed(call, cbid, params);
  }
  for (const auto& parameter : recovery::parameters_of(call)) {
    if (parameter.kind != ParameterKind::kDestroyedHandle) {
      continue;
    }
    // What was never needed in the standby has no end there: it is not made for that, and of a
    // module the image is gone by now.
    ObjectKey key{parameter.handle, 0};
    std::memcpy(&key.handle, static_cast<const std::byte*>(params) + parameter.offset,
                sizeof key.handle);
    const std::lock_guard lock(restore_mutex_);
    if (!sent_.contains(key) && objects_.find(key)) {
      return CUDA_SUCCESS;
    }
  }
  return serve_generic(call, cbid, params);
}

CUresult Takeover::serve_launch(ThreadState& state) {
  auto& under_way = state.call;
  auto* link = link_.load();
  if (link == nullptr || under_way.kernel == nullptr) {
    return static_cast<CUresult>(code_);
  }
  const LaunchCall& launch = under_way.launch;
  recovery::RemoteLaunch remote;
  const Answer known = ensure({'f', number(launch.function)});
  if (!known.ok()) {
    return answer_code(known);
  }
  if (const auto stream = number(launch.stream); stream > 2) {
    if (const Answer made = ensure({'s', stream}); !made.ok()) {
      return answer_code(made);
    }
  }
  begin_launch(state, *under_way.kernel, launch);
  if (!under_way.log->copy_of(under_way.issue.number, remote)) {
    end_launch(state, false, false);
    return CUDA_ERROR_NOT_SUPPORTED;  // its obstacle; it must not run as something else
  }
  globals_.translate_arguments(remote.arguments);
  const std::uint64_t marker = std::exchange(remote.marker, 0);
  if (!under_way.undone && under_way.issue.mark_behind && under_way.variables.empty()) {
    remote.marker = marker;
  }
  const Answer answer = link->launch(remote);
  // Of a standby that died meanwhile it is not known whether it has launched; the log then says
  // what became of it, and it is not to be launched once more.
  under_way.launch_in_doubt = !answer.sent;
  bool marked = answer.ok() && remote.marker != 0;
  if (answer.ok() && !under_way.undone && !under_way.variables.empty()) {
    auto* const stream = reinterpret_cast<CUstream>(remote.stream);
    globals_.copy(under_way.variables, stream);
    cuStreamWriteValue32_v2_params mark{stream, marker, remote.marker_value,
                                        CU_STREAM_WRITE_VALUE_DEFAULT};
    if (marker != 0 && under_way.issue.mark_behind) {
      marked = serve_own("cuStreamWriteValue32_v2", &mark) == CUDA_SUCCESS;
    }
  }
  end_launch(state, answer.ok() || !answer.sent, marked);
  return answer_code(answer);
}

bool Takeover::shared_with_standby(std::uint64_t address, std::uint64_t size) const {
  const auto found = parts_.memory.find(address);
  for (const auto& allocation : found.all()) {
    if (address < allocation.address || address + size > allocation.end()) {
      continue;
    }
    switch (allocation.kind) {
      case idempotency::AllocationKind::kDevice:
      case idempotency::AllocationKind::kPitched:
      case idempotency::AllocationKind::kStreamOrdered:
      case idempotency::AllocationKind::kVirtual:
      case idempotency::AllocationKind::kModuleGlobal:
        return true;
      case idempotency::AllocationKind::kPinnedHost: {
        const auto hosts = parts_.steering.hosts();
        return std::any_of(hosts.begin(), hosts.end(), [&](const SharedHost& host) {
          return address >= host.address && address + size <= host.address + host.size;
        });
      }
      default:
        return false;
    }
  }
  return false;
}

CUresult Takeover::serve_copy(std::uint64_t to, std::uint64_t from, std::uint64_t size,
                              CUstream stream, bool async) {
  auto* link = link_.load();
  if (link == nullptr) {
    return static_cast<CUresult>(code_);
  }
  if (size == 0) {
    return CUDA_SUCCESS;
  }
  if (to == 0 || from == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (number(stream) > 2) {
    if (const Answer made = ensure({'s', number(stream)}); !made.ok()) {
      return answer_code(made);
    }
  }
  const bool to_shared = shared_with_standby(to, size);
  const bool from_shared = shared_with_standby(from, size);
  if (to_shared) {
    to = globals_.translate(to, size);
  }
  if (from_shared) {
    from = globals_.translate(from, size);
  }
  if (to_shared && from_shared) {
    return answer_code(link->copy(to, from, size, number(stream), async));
  }
  if (to_shared && globals_.holds_moved({reinterpret_cast<const std::byte*>(from), size})) {
    return static_cast<CUresult>(code_);  // an address that means something else now
  }
  if (to_shared) {
    return answer_code(
        link->copy_in(to, reinterpret_cast<const void*>(from), size, number(stream)));
  }
  if (from_shared) {
    return answer_code(link->copy_out(reinterpret_cast<void*>(to), from, size, number(stream)));
  }
  // Neither is the standby's. Between two places of the host the order of the stream still holds.
  if (parts_.memory.find(to) || parts_.memory.find(from)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult code = parts_.driver.cuStreamSynchronize(stream); code != CUDA_SUCCESS) {
    return code;
  }
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
  return CUDA_SUCCESS;
}

CUresult Takeover::serve_copy_2d(const CUDA_MEMCPY2D& copy, CUstream stream, bool async) {
  CUDA_MEMCPY3D whole{};
  whole.srcXInBytes = copy.srcXInBytes;
  whole.srcY = copy.srcY;
  whole.srcMemoryType = copy.srcMemoryType;
  whole.srcHost = copy.srcHost;
  whole.srcDevice = copy.srcDevice;
  whole.srcArray = copy.srcArray;
  whole.srcPitch = copy.srcPitch;
  whole.dstXInBytes = copy.dstXInBytes;
  whole.dstY = copy.dstY;
  whole.dstMemoryType = copy.dstMemoryType;
  whole.dstHost = copy.dstHost;
  whole.dstDevice = copy.dstDevice;
  whole.dstArray = copy.dstArray;
  whole.dstPitch = copy.dstPitch;
  whole.WidthInBytes = copy.WidthInBytes;
  whole.Height = copy.Height;
  whole.Depth = 1;
  return serve_copy_3d(whole, stream, async);
}

CUresult Takeover::serve_copy_3d(const CUDA_MEMCPY3D& copy, CUstream stream, bool async) {
  // Row by row: slow, and right for every shape (cuda.h, cuMemcpy3D: how addresses follow).
  const auto base = [](CUmemorytype type, const void* host, CUdeviceptr device) -> std::uint64_t {
    switch (type) {
      case CU_MEMORYTYPE_HOST:
        return number(host);
      case CU_MEMORYTYPE_DEVICE:
      case CU_MEMORYTYPE_UNIFIED:
        return device;
      default:
        return 0;  // arrays are not carried over
    }
  };
  const std::uint64_t from = base(copy.srcMemoryType, copy.srcHost, copy.srcDevice);
  const std::uint64_t to = base(copy.dstMemoryType, copy.dstHost, copy.dstDevice);
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) {
    return CUDA_SUCCESS;
  }
  if (from == 0 || to == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t from_pitch = copy.srcPitch != 0 ? copy.srcPitch : copy.WidthInBytes;
  const std::uint64_t to_pitch = copy.dstPitch != 0 ? copy.dstPitch : copy.WidthInBytes;
  for (std::size_t z = 0; z < copy.Depth; ++z) {
    for (std::size_t y = 0; y < copy.Height; ++y) {
      const std::uint64_t from_row =
          from + ((copy.srcZ + z) * copy.srcHeight + copy.srcY + y) * from_pitch + copy.srcXInBytes;
      const std::uint64_t to_row =
          to + ((copy.dstZ + z) * copy.dstHeight + copy.dstY + y) * to_pitch + copy.dstXInBytes;
      if (const CUresult code = serve_copy(to_row, from_row, copy.WidthInBytes, stream, true);
          code != CUDA_SUCCESS) {
        return code;
      }
    }
  }
  return async ? CUDA_SUCCESS : parts_.driver.cuStreamSynchronize(stream);
}

CUresult Takeover::serve_host_function(const driver_api::Call& call, std::uint32_t cbid,
                                       const void* params) {
  // The function is the app's, so it is called here, once what comes before it is done.
  const auto& p = as<cuLaunchHostFunc_params>(params);
  if (p.fn == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult code = parts_.driver.cuStreamSynchronize(explicit_stream(p.hStream, cbid));
      code != CUDA_SUCCESS) {
    return code;
  }
  if (call.name == "cuLaunchHostFunc") {
    p.fn(p.userData);
  } else {
    const auto& callback = as<cuStreamAddCallback_params>(params);
    callback.callback(callback.hStream, CUDA_SUCCESS, callback.userData);
  }
  return CUDA_SUCCESS;
}

CUresult Takeover::serve_load(const driver_api::Call& call, const void* params) {
  auto* link = link_.load();
  if (link == nullptr) {
    return static_cast<CUresult>(code_);
  }
  // The handle is the first parameter of all forms, the image or file the second.
  const auto& p = as<cuModuleLoadData_params>(params);
  if (p.module == nullptr || p.image == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t handle = new_handle();
  auto* const owner = reinterpret_cast<void*>(handle);
  if (call.hook == Hook::kModuleLoadFile) {
    parts_.images.add_file(owner, static_cast<const char*>(p.image));
  } else {
    parts_.images.add(owner, p.image);
  }
  const std::vector<std::byte> image = images_bytes({'m', handle});
  if (image.empty()) {
    parts_.images.remove(owner);
    return call.hook == Hook::kModuleLoadFile ? CUDA_ERROR_FILE_NOT_FOUND
                                              : CUDA_ERROR_INVALID_IMAGE;
  }
  const Answer answer = link->load_module(handle, image);
  if (!answer.ok()) {
    parts_.images.remove(owner);
    return answer_code(answer);
  }
  *p.module = static_cast<CUmodule>(owner);
  const std::lock_guard lock(restore_mutex_);
  sent_.insert({'m', handle});
  return CUDA_SUCCESS;
}

CUresult Takeover::serve_global(ObjectKey owner, const char* name, CUdeviceptr* address,
                                std::size_t* bytes) {
  auto* link = link_.load();
  if (link == nullptr) {
    return static_cast<CUresult>(code_);
  }
  if (name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // What the app has been told once stays what it is told.
  std::uint64_t at = 0;
  std::uint64_t size = 0;
  if (globals_.known(owner, name, at, size)) {
    if (address != nullptr) {
      *address = at;
    }
    if (bytes != nullptr) {
      *bytes = size;
    }
    return CUDA_SUCCESS;
  }
  if (const Answer known = ensure(owner); !known.ok()) {
    return answer_code(known);
  }
  const Answer answer = link->find_global(owner.handle, owner.kind == 'L', name, at, size);
  if (!answer.ok()) {
    return answer_code(answer);
  }
  if (globals_.collides(at, size)) {
    return static_cast<CUresult>(code_);  // one address for two variables
  }
  if (address != nullptr) {
    *address = at;
  }
  if (bytes != nullptr) {
    *bytes = size;
  }
  return CUDA_SUCCESS;
}

Globals::Standby Takeover::standby_for_globals() {
  return {
      [this](ObjectKey key) { return ensure(key); },
      [this](const GlobalVariable& variable, std::uint64_t& address, std::uint64_t& size) {
        auto* link = link_.load();
        return link == nullptr
                   ? Answer{}
                   : link->find_global(variable.owner.handle, variable.owner.kind == 'L',
                                       variable.name, address, size);
      },
      [this](std::uint64_t to, std::uint64_t from, std::uint64_t size) {
        auto* link = link_.load();
        return link == nullptr ? Answer{}
                               : link->copy(to, from, size, number(CU_STREAM_LEGACY), false);
      },
  };
}

CUresult Takeover::serve_function(CUfunction* function, CUmodule module, const char* name) {
  if (function == nullptr || name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUlibrary library = nullptr;
  {
    const std::lock_guard lock(own_mutex_);
    if (const auto at = libraries_.find(module); at != libraries_.end()) {
      library = at->second;
    }
  }
  if (library == nullptr) {
    const std::vector<std::byte> image = images_bytes({'m', number(module)});
    if (image.empty()) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult code = local_.cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0,
                                                       nullptr, nullptr, 0);
        code != CUDA_SUCCESS) {
      // This process's own driver says so; it is no word of the standby's.
      return classifier::is_sticky(static_cast<std::int32_t>(code)) ? CUDA_ERROR_NOT_SUPPORTED
                                                                    : code;
    }
    const std::lock_guard lock(own_mutex_);
    libraries_.emplace(module, library);
  }
  CUkernel kernel = nullptr;
  if (const CUresult code = local_.cuLibraryGetKernel(&kernel, library, name);
      code != CUDA_SUCCESS) {
    return code;
  }
  const ObjectKey key{'f', number(kernel)};
  cuModuleGetFunction_params params{function, module, name};
  {
    const std::lock_guard lock(restore_mutex_);
    if (sent_.contains(key)) {
      *function = reinterpret_cast<CUfunction>(kernel);
      return CUDA_SUCCESS;
    }
  }
  std::vector<std::byte> results;
  const Answer answer = send(
      *driver_api::find("cuModuleGetFunction"), &params, false, [&](char) { return key.handle; },
      results);
  if (answer.ok()) {
    *function = reinterpret_cast<CUfunction>(kernel);
    const std::lock_guard lock(restore_mutex_);
    sent_.insert(key);
  }
  return answer_code(answer);
}

void Takeover::hide_new_handles(std::uint32_t cbid, void* params) {
  auto* bytes = static_cast<std::byte*>(params);
  for (std::uint32_t at = 0; at + 8 <= driver_api::params_size(cbid); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof word);
    if (word >= kFirstHandle && word < kEndOfHandles) {
      std::memset(bytes + at, 0, sizeof word);
    }
  }
}

CUresult Takeover::serve_elapsed(const driver_api::Call& call, std::uint32_t cbid,
                                 const void* params) {
  const auto& p = as<cuEventElapsedTime_params>(params);
  const auto start = objects_.recorded(number(p.hStart));
  const auto end = objects_.recorded(number(p.hEnd));
  if (p.pMilliseconds == nullptr || !start || !end ||
      (start->epoch == epoch() && end->epoch == epoch())) {
    return serve_generic(call, cbid, params);
  }
  // One of them was recorded in a process that is gone: the time between the calls, as everything
  // before a record was waited for.
  *p.pMilliseconds = std::chrono::duration<float, std::milli>(end->when - start->when).count();
  return CUDA_SUCCESS;
}

// --- memory ---

bool Takeover::map_memory(const SteeredMemory& memory, std::string& error) {
  auto* link = link_.load();
  const int fd = link != nullptr ? parts_.steering.export_fd(memory) : -1;
  if (fd < 0) {
    error = "new memory could not be handed over to the standby";
    return false;
  }
  const Answer answer = link->map_memory(memory.address, memory.size, fd);
  close(fd);
  if (!answer.ok()) {
    error = "the standby could not map new memory: " + answer.reason;
  }
  return answer.ok();
}

void Takeover::unmap_memory(const SteeredMemory& memory) {
  if (auto* link = link_.load()) {
    link->unmap_memory(memory.address, memory.size);
  }
}

bool Takeover::map_host(const SharedHost& host, std::string& error) {
  auto* link = link_.load();
  if (link == nullptr) {
    error = "there is no standby";
    return false;
  }
  const Answer answer = link->map_host(host.address, host.size, host.flags, host.fd);
  if (!answer.ok()) {
    error = "the standby could not map new pinned memory: " + answer.reason;
  }
  return answer.ok();
}

void Takeover::unmap_host(const SharedHost& host) {
  if (auto* link = link_.load()) {
    link->unmap_host(host.address, host.size);
  }
}

CUresult Takeover::synchronize() {
  cuCtxSynchronize_v2_params params{};
  return serve_own("cuCtxSynchronize", &params);
}

// --- the agent's own calls ---

CUresult Takeover::serve_own(std::string_view name, const void* params) {
  const driver_api::Call* call = driver_api::find(name);
  return call == nullptr ? CUDA_ERROR_NOT_SUPPORTED : serve_generic(*call, 0, params);
}

CUresult Takeover::launch_own(CUfunction function, const unsigned (&grid)[3],
                              const unsigned (&block)[3], unsigned shared, CUstream stream,
                              void** params, void** extra, const CUlaunchConfig* config,
                              bool cooperative) {
  auto* link = link_.load();
  if (link == nullptr) {
    return static_cast<CUresult>(code_);
  }
  if (const Answer known = ensure({'f', number(function)}); !known.ok()) {
    return answer_code(known);
  }
  Kernel shape;  // for its layout alone
  {
    const std::lock_guard lock(own_mutex_);
    const auto at = own_layouts_.find(function);
    if (at != own_layouts_.end()) {
      shape.layout = at->second;
    }
  }
  if (shape.layout.empty() && params != nullptr) {
    std::size_t offset = 0;
    std::size_t size = 0;
    for (std::size_t i = 0;; ++i) {
      cuFuncGetParamInfo_params p{function, i, &offset, &size};
      if (serve_own("cuFuncGetParamInfo", &p) != CUDA_SUCCESS) {
        break;
      }
      shape.layout.push_back(
          {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
    }
    const std::lock_guard lock(own_mutex_);
    own_layouts_[function] = shape.layout;
  }
  for (const auto& slot : shape.layout) {
    shape.param_bytes = std::max(shape.param_bytes, slot.offset + slot.size);
  }
  recovery::RemoteLaunch remote;
  if (!gather_arguments(shape, params, extra, remote.arguments)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  remote.function = number(function);
  remote.stream = number(explicit_stream(stream, 0));
  std::copy_n(grid, 3, remote.grid);
  std::copy_n(block, 3, remote.block);
  remote.shared_bytes = shared;
  remote.cooperative = cooperative;
  if (config != nullptr) {
    append_attributes(*config, remote.attributes);
  }
  return answer_code(link->launch(remote));
}

CUresult Takeover::load_own(CUmodule* module, const void* image) {
  auto* link = link_.load();
  const auto size = image::size_of_image(image);
  if (link == nullptr || !size) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const std::uint64_t handle = new_handle();
  const auto* bytes = static_cast<const std::byte*>(image);
  std::vector<std::byte> copy(bytes, bytes + *size);
  copy.push_back(std::byte{0});
  const Answer answer = link->load_module(handle, copy);
  if (answer.ok()) {
    *module = reinterpret_cast<CUmodule>(handle);
    const std::lock_guard lock(restore_mutex_);
    sent_.insert({'m', handle});
  }
  return answer_code(answer);
}

CUresult Takeover::copy_to_host(void* host, CUdeviceptr device, std::size_t size, CUstream stream) {
  auto* link = link_.load();
  return link == nullptr
             ? static_cast<CUresult>(code_)
             : answer_code(link->copy_out(host, device, size, number(explicit_stream(stream, 0))));
}

CUresult Takeover::copy_own(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  auto* link = link_.load();
  return link == nullptr
             ? static_cast<CUresult>(code_)
             : answer_code(link->copy(globals_.translate(to, size), globals_.translate(from, size),
                                      size, number(explicit_stream(stream, 0)), true));
}

void Takeover::replace_driver() {
  serving = this;
  auto& d = parts_.driver;
  d.cuCtxSynchronize = [] { return serving->synchronize(); };
  d.cuStreamSynchronize = [](CUstream stream) {
    cuStreamSynchronize_params p{stream};
    return serving->serve_own("cuStreamSynchronize", &p);
  };
  d.cuStreamQuery = [](CUstream stream) {
    cuStreamQuery_params p{stream};
    return serving->serve_own("cuStreamQuery", &p);
  };
  d.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  d.cuModuleLoadData = [](CUmodule* module, const void* image) {
    return serving->load_own(module, image);
  };
  d.cuModuleGetFunction = [](CUfunction* function, CUmodule module, const char* name) {
    cuModuleGetFunction_params p{function, module, name};
    return serving->serve_own("cuModuleGetFunction", &p);
  };
  d.cuModuleGetGlobal = [](CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                           const char* name) {
    return serving->serve_global({'m', number(module)}, name, address, bytes);
  };
  d.cuLibraryGetGlobal = [](CUdeviceptr* address, std::size_t* bytes, CUlibrary library,
                            const char* name) {
    return serving->serve_global({'L', number(library)}, name, address, bytes);
  };
  d.cuFuncGetModule = [](CUmodule* module, CUfunction function) {
    const ObjectKey parent = serving->parent_of({'f', number(function)});
    if (parent.kind != 'm') {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *module = reinterpret_cast<CUmodule>(parent.handle);
    return CUDA_SUCCESS;
  };
  d.cuKernelGetLibrary = [](CUlibrary* library, CUkernel kernel) {
    const ObjectKey parent = serving->parent_of({'f', number(kernel)});
    if (parent.kind != 'L') {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *library = reinterpret_cast<CUlibrary>(parent.handle);
    return CUDA_SUCCESS;
  };
  d.cuFuncGetName = [](const char** name, CUfunction function) {
    cuFuncGetName_params p{name, function};
    return serving->serve_own("cuFuncGetName", &p);
  };
  d.cuFuncGetParamInfo = [](CUfunction function, std::size_t i, std::size_t* offset,
                            std::size_t* size) {
    cuFuncGetParamInfo_params p{function, i, offset, size};
    return serving->serve_own("cuFuncGetParamInfo", &p);
  };
  d.cuKernelGetParamInfo = [](CUkernel kernel, std::size_t i, std::size_t* offset,
                              std::size_t* size) {
    cuKernelGetParamInfo_params p{kernel, i, offset, size};
    return serving->serve_own("cuKernelGetParamInfo", &p);
  };
  d.cuLaunchKernel = [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params,
                        void** extra) {
    return serving->launch_own(f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, extra,
                               nullptr, false);
  };
  d.cuLaunchKernelEx = [](const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
    return serving->launch_own(f, {c->gridDimX, c->gridDimY, c->gridDimZ},
                               {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes,
                               c->hStream, params, extra, c, false);
  };
  d.cuLaunchCooperativeKernel = [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                   void** params) {
    return serving->launch_own(f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, nullptr,
                               nullptr, true);
  };
  d.cuMemAlloc = [](CUdeviceptr* address, std::size_t size) {
    cuMemAlloc_v2_params p{address, size};
    return serving->serve_own("cuMemAlloc_v2", &p);
  };
  d.cuMemFree = [](CUdeviceptr address) {
    cuMemFree_v2_params p{address};
    return serving->serve_own("cuMemFree_v2", &p);
  };
  d.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
    return serving->copy_own(to, from, size, stream);
  };
  d.cuMemcpyDtoHAsync = [](void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
    return serving->copy_to_host(to, from, size, stream);
  };
  d.cuMemsetD8Async = [](CUdeviceptr to, unsigned char value, std::size_t n, CUstream stream) {
    cuMemsetD8Async_params p{to, value, n, stream};
    return serving->serve_own("cuMemsetD8Async", &p);
  };
}

}  // namespace gpurecover::agent
