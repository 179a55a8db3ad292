// SPDX-License-Identifier: Apache-2.0
#include "recovery/standby/standby.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "cupti/protocol/codec.h"
#include "recovery/replay.h"
#include "recovery/standby/calls.h"
#include "recovery/standby/lane.h"

namespace gpurecover::recovery {
namespace {

using protocol::LaneRequest;
using protocol::MessageType;

// More chunks than an arena can have are a mistake.
constexpr std::size_t kMaxQueued = 1 << 17;

constexpr std::uint64_t kStreamHandles = 3;  // 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD

// Beyond any address of the devices and of user space.
constexpr std::uint64_t kAddressEnd = std::uint64_t{1} << 56;

bool sensible(std::uint64_t address, std::uint64_t size) {
  return address != 0 && size != 0 && address < kAddressEnd && size < kAddressEnd - address;
}

bool file_has(int fd, std::uint64_t size) {
  struct stat status {};
  return fd >= 0 && ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) >= size;
}

Outcome bad(const char* what, CUresult code = CUDA_ERROR_INVALID_VALUE) {
  return {code, what};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A file's bytes, mapped.
class MappedFile {
 public:
  MappedFile(int fd, std::uint64_t size) : size_(size) {
    if (size != 0 && file_has(fd, size)) {
      // Private: what the app's side does to the file afterwards is not seen.
      void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
      data_ = memory != MAP_FAILED ? memory : nullptr;
    }
  }
  ~MappedFile() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const void* data() const { return data_; }

 private:
  std::uint64_t size_;
  void* data_ = nullptr;
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

CUdeviceptr device_pointer(std::uint64_t address) {
  return static_cast<CUdeviceptr>(address);
}

}  // namespace

Standby::LaneThread::LaneThread() : calls(std::make_unique<Calls>()) {}
Standby::LaneThread::~LaneThread() = default;

Standby::~Standby() {
  if (setting_up_.joinable()) {
    setting_up_.join();
  }
  for (const Queued& queued : queue_) {
    ::close(queued.fd);
  }
}

Outcome Standby::failed(CUresult code, const std::string& what) const {
  if (code == CUDA_SUCCESS) {
    return {};
  }
  const char* name = nullptr;
  if (driver_.common.cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) {
    name = "unknown error";
  }
  return {code, what + ": " + name};
}

bool Standby::inside_arena(std::uint64_t address, std::uint64_t size) const {
  return address >= arena_ && size <= arena_size_ && address - arena_ <= arena_size_ - size;
}

protocol::StandbyAnswer Standby::control(protocol::Frame& frame) {
  Descriptor fd(std::exchange(frame.fd, -1));
  protocol::StandbyAnswer answer;
  Outcome outcome = bad("a control message that is malformed or unknown");
  const auto map = [&](const protocol::MemoryRange& range, bool host) {
    if (setting_up_.joinable()) {
      if (fd.get() < 0 || queue_.size() >= kMaxQueued) {
        return bad("memory without a descriptor, or more than can be kept");
      }
      queue_.push_back({range, host, fd.release()});
      return Outcome{};
    }
    return host ? map_host(range, fd.get()) : map_memory(range, fd.get());
  };
  const auto with = [&]<class Message>(std::optional<Message> message, auto&& work) {
    if (message) {
      outcome = std::is_same_v<Message, protocol::Setup> || ready() ||
                        (std::is_same_v<Message, protocol::MemoryRange> && setting_up_.joinable())
                    ? work(*message)
                    : bad("the standby has no context yet", CUDA_ERROR_NOT_INITIALIZED);
    }
  };
  using protocol::MemoryRange;
  switch (frame.type) {
    case MessageType::kSetup:
      with(protocol::decode<protocol::Setup>(frame.body), [&](const protocol::Setup& m) {
        return m.later                  ? begin_setup(m)
               : setting_up_.joinable() ? bad("a setup is under way already")
                                        : this->setup(m);
      });
      break;
    case MessageType::kFinishSetup:
      outcome = finish_setup(answer);
      break;
    case MessageType::kMapMemory:
      with(protocol::decode<MemoryRange>(frame.body),
           [&](const MemoryRange& m) { return map(m, false); });
      break;
    case MessageType::kUnmapMemory:
      with(protocol::decode<MemoryRange>(frame.body),
           [&](const MemoryRange& m) { return unmap_memory(m); });
      break;
    case MessageType::kMapHost:
      with(protocol::decode<MemoryRange>(frame.body),
           [&](const MemoryRange& m) { return map(m, true); });
      break;
    case MessageType::kUnmapHost:
      with(protocol::decode<MemoryRange>(frame.body),
           [&](const MemoryRange& m) { return unmap_host(m); });
      break;
    case MessageType::kLoadModule:
    case MessageType::kLoadLibrary:
      with(protocol::decode<protocol::ImageLoad>(frame.body), [&](const protocol::ImageLoad& m) {
        return load_image(m, frame.type == MessageType::kLoadLibrary, fd.get());
      });
      break;
    case MessageType::kFindGlobal:
      with(protocol::decode<protocol::FindGlobal>(frame.body),
           [&](const protocol::FindGlobal& m) { return find_global(m, answer); });
      break;
    default:
      break;
  }
  answer.code = outcome.code;
  answer.reason = std::move(outcome.reason);
  return answer;
}

Outcome Standby::begin_setup(const protocol::Setup& setup) {
  if (ready() || setting_up_.joinable()) {
    return bad("the standby has its context already");
  }
  try {
    setting_up_ = std::thread([this, setup] {
      const auto begin = std::chrono::steady_clock::now();
      setup_outcome_ = this->setup(setup);
      setup_ms_ = milliseconds_since(begin);
    });
  } catch (const std::exception& error) {
    return {CUDA_ERROR_OUT_OF_MEMORY, std::string("no thread for a setup: ") + error.what()};
  }
  return {};
}

Outcome Standby::finish_setup(protocol::StandbyAnswer& answer) {
  if (!setting_up_.joinable()) {
    return bad("no setup has been begun");
  }
  setting_up_.join();
  setting_up_ = {};
  const std::vector<Queued> queue = std::exchange(queue_, {});
  Outcome outcome = std::exchange(setup_outcome_, {});
  answer.context_ms = setup_ms_;
  if (outcome.code == CUDA_SUCCESS) {
    outcome = failed(driver_.common.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const Queued& queued : queue) {
    const Descriptor fd(queued.fd);
    if (outcome.code == CUDA_SUCCESS) {
      outcome = queued.host ? map_host(queued.range, fd.get()) : map_memory(queued.range, fd.get());
    }
  }
  answer.map_ms = milliseconds_since(begin);
  return outcome;
}

Outcome Standby::setup(const protocol::Setup& setup) {
  if (ready()) {
    return bad("the standby has its context already");
  }
  CUuuid wanted{};
  if (setup.device_uuid.size() != sizeof wanted.bytes ||
      (setup.arena != 0 && !sensible(setup.arena, setup.arena_size))) {
    return bad("a device or an arena that cannot be");
  }
  std::memcpy(wanted.bytes, setup.device_uuid.data(), sizeof wanted.bytes);
  if (Outcome o = failed(driver_.cuInit(0), "cuInit"); o.code != CUDA_SUCCESS) {
    return o;
  }
  int count = 0;
  if (Outcome o = failed(driver_.cuDeviceGetCount(&count), "counting devices");
      o.code != CUDA_SUCCESS) {
    return o;
  }
  bool found = false;
  for (int i = 0; i < count && !found; ++i) {
    CUuuid uuid{};
    found = driver_.cuDeviceGet(&device_, i) == CUDA_SUCCESS &&
            driver_.cuDeviceGetUuid(&uuid, device_) == CUDA_SUCCESS &&
            std::memcmp(uuid.bytes, wanted.bytes, sizeof uuid.bytes) == 0;
  }
  if (!found) {
    return bad("the app's device is not visible to the standby", CUDA_ERROR_NO_DEVICE);
  }
  app_device_ = setup.device;
  // CU_CTX_MAP_HOST is always on and refused by cuDevicePrimaryCtxSetFlags.
  if (Outcome o = failed(driver_.cuDevicePrimaryCtxSetFlags(
                             device_, setup.context_flags & ~unsigned{CU_CTX_MAP_HOST}),
                         "the context's flags");
      o.code != CUDA_SUCCESS) {
    return o;
  }
  // Before the context, which takes addresses of its own.
  if (setup.arena != 0) {
    CUdeviceptr got = 0;
    const CUresult code =
        driver_.cuMemAddressReserve(&got, setup.arena_size, 0, device_pointer(setup.arena), 0);
    if (Outcome o = failed(code, "reserving the arena"); o.code != CUDA_SUCCESS) {
      return o;
    }
    if (got != device_pointer(setup.arena)) {
      driver_.cuMemAddressFree(got, setup.arena_size);
      return bad("the arena's addresses are taken in the standby", CUDA_ERROR_MAP_FAILED);
    }
    arena_ = setup.arena;
    arena_size_ = setup.arena_size;
  }
  if (Outcome o = failed(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "making a context");
      o.code != CUDA_SUCCESS) {
    return o;
  }
  if (Outcome o = failed(driver_.common.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
      o.code != CUDA_SUCCESS) {
    return o;
  }
  // So that a replay needs not wait for it.
  if (Outcome o = failed(ops_.prepare(), "loading gpurecover's own kernels");
      o.code != CUDA_SUCCESS) {
    return o;
  }
  ready_.store(true, std::memory_order_release);
  return {};
}

Outcome Standby::map_memory(const protocol::MemoryRange& range, int fd) {
  if (!sensible(range.address, range.size) || fd < 0) {
    return bad("memory without a range or a descriptor");
  }
  const bool inside = inside_arena(range.address, range.size);
  if (!inside && range.address < arena_ + arena_size_ && arena_ < range.address + range.size) {
    return bad("memory that lies partly in the arena");
  }
  const CUdeviceptr address = device_pointer(range.address);
  CUmemGenericAllocationHandle handle = 0;
  if (Outcome o = failed(driver_.cuMemImportFromShareableHandle(
                             &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                         "importing memory");
      o.code != CUDA_SUCCESS) {
    return o;
  }
  Outcome outcome;
  bool reserved = false;
  if (!inside) {
    CUdeviceptr got = 0;
    outcome = failed(driver_.cuMemAddressReserve(&got, range.size, 0, address, 0),
                     "reserving the addresses of memory outside the arena");
    if (outcome.code == CUDA_SUCCESS && got != address) {
      driver_.cuMemAddressFree(got, range.size);
      outcome = bad("addresses of the app's are taken in the standby", CUDA_ERROR_MAP_FAILED);
    }
    reserved = outcome.code == CUDA_SUCCESS;
  }
  if (outcome.code == CUDA_SUCCESS) {
    outcome = failed(driver_.cuMemMap(address, range.size, 0, handle, 0), "mapping memory");
    if (outcome.code == CUDA_SUCCESS) {
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device_;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      outcome = failed(driver_.cuMemSetAccess(address, range.size, &access, 1),
                       "giving the device access to memory");
      if (outcome.code != CUDA_SUCCESS) {
        driver_.cuMemUnmap(address, range.size);
      }
    }
  }
  // The mapping holds the memory; if there is none, nothing does.
  driver_.cuMemRelease(handle);
  if (outcome.code == CUDA_SUCCESS) {
    mappings_[range.address] = {range.size, reserved};
  } else if (reserved) {
    driver_.cuMemAddressFree(address, range.size);
  }
  return outcome;
}

Outcome Standby::unmap_memory(const protocol::MemoryRange& range) {
  const auto at = mappings_.find(range.address);
  if (at == mappings_.end() || at->second.size != range.size) {
    return bad("memory that was not mapped");
  }
  const CUdeviceptr address = device_pointer(range.address);
  Outcome outcome = failed(driver_.cuMemUnmap(address, range.size), "unmapping memory");
  if (outcome.code == CUDA_SUCCESS) {
    if (at->second.reserved) {
      driver_.cuMemAddressFree(address, range.size);
    }
    mappings_.erase(at);
  }
  return outcome;
}

Outcome Standby::map_host(const protocol::MemoryRange& range, int fd) {
  if (!sensible(range.address, range.size) || !file_has(fd, range.size)) {
    return bad("host memory without a range or a file of its size");
  }
  void* wanted = reinterpret_cast<void*>(range.address);
  void* got =
      ::mmap(wanted, range.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  if (got == MAP_FAILED) {
    return {CUDA_ERROR_MAP_FAILED,
            std::string("host memory cannot be mapped at its address in the standby: ") +
                std::strerror(errno)};
  }
  if (got != wanted) {
    ::munmap(got, range.size);  // a kernel that does not know MAP_FIXED_NOREPLACE
    return bad("host memory's addresses are taken in the standby", CUDA_ERROR_MAP_FAILED);
  }
  Outcome outcome =
      failed(driver_.cuMemHostRegister(wanted, range.size, range.flags), "registering host memory");
  if (outcome.code != CUDA_SUCCESS) {
    ::munmap(got, range.size);
    return outcome;
  }
  host_ranges_[range.address] = range.size;
  return outcome;
}

Outcome Standby::unmap_host(const protocol::MemoryRange& range) {
  // What is no mapping of ours may be anything of this process's.
  const auto at = host_ranges_.find(range.address);
  if (at == host_ranges_.end() || at->second != range.size) {
    return bad("host memory that was not mapped");
  }
  void* memory = reinterpret_cast<void*>(range.address);
  Outcome outcome = failed(driver_.cuMemHostUnregister(memory), "unregistering host memory");
  if (outcome.code == CUDA_SUCCESS) {
    ::munmap(memory, range.size);
    host_ranges_.erase(at);
  }
  return outcome;
}

Outcome Standby::load_image(const protocol::ImageLoad& load, bool library, int fd) {
  // A page more than the file holds is readable behind it: zeros, the end of a PTX text.
  const MappedFile image(fd, load.size);
  if (image.data() == nullptr) {
    return bad("a module without its image");
  }
  const void* data = image.data();
  // PTX must end with a zero, and a text that fills its last page has none after it.
  std::string text;
  if (load.size % 4096 == 0) {
    text.assign(static_cast<const char*>(data), load.size);
    data = text.c_str();
  }
  if (library) {
    CUlibrary own = nullptr;
    Outcome outcome =
        failed(driver_.cuLibraryLoadData(&own, data, nullptr, nullptr, 0, nullptr, nullptr, 0),
               "loading a library");
    if (outcome.code == CUDA_SUCCESS) {
      objects_.bind('L', load.handle, {.handle = reinterpret_cast<std::uint64_t>(own)});
    }
    return outcome;
  }
  CUmodule own = nullptr;
  Outcome outcome = failed(driver_.common.cuModuleLoadData(&own, data), "loading a module");
  if (outcome.code == CUDA_SUCCESS) {
    objects_.bind('m', load.handle, {.handle = reinterpret_cast<std::uint64_t>(own)});
  }
  return outcome;
}

Outcome Standby::find_global(const protocol::FindGlobal& wanted, protocol::StandbyAnswer& answer) {
  const auto owner = objects_.find(wanted.library ? 'L' : 'm', wanted.owner);
  if (!owner) {
    return bad("a variable of a module that the standby does not have", CUDA_ERROR_INVALID_HANDLE);
  }
  CUdeviceptr address = 0;
  std::size_t size = 0;
  const CUresult code =
      wanted.library
          ? driver_.common.cuLibraryGetGlobal(
                &address, &size, reinterpret_cast<CUlibrary>(owner->handle), wanted.name.c_str())
          : driver_.common.cuModuleGetGlobal(
                &address, &size, reinterpret_cast<CUmodule>(owner->handle), wanted.name.c_str());
  if (code == CUDA_SUCCESS) {
    answer.address = address;
    answer.size = size;
  }
  return failed(code, "finding " + wanted.name);
}

CUresult Standby::serve(LaneThread& lane, std::uint32_t type, std::span<const std::byte> payload,
                        std::vector<std::byte>& answer) {
  answer.clear();
  Outcome outcome = bad("a request that is malformed or unknown");
  if (!ready()) {
    outcome = bad("the standby has no context yet", CUDA_ERROR_NOT_INITIALIZED);
  } else if (!lane.current && driver_.common.cuCtxSetCurrent(context_) != CUDA_SUCCESS) {
    outcome = bad("the standby's context cannot be used", CUDA_ERROR_INVALID_CONTEXT);
  } else {
    lane.current = true;
    switch (static_cast<LaneRequest>(type)) {
      case LaneRequest::kCall: {
        DecodedCall decoded;
        if (const char* error = decode_call(payload, decoded)) {
          outcome = bad(error);
        } else {
          outcome = call(lane, decoded, answer);
        }
        break;
      }
      case LaneRequest::kLaunch:
        if (const auto message = protocol::decode<RemoteLaunch>(payload)) {
          outcome = launch(*message);
        }
        break;
      case LaneRequest::kPrepare:
        if (const auto message = protocol::decode<protocol::PrepareLaunch>(payload)) {
          outcome = prepare(message->function);
        }
        break;
      case LaneRequest::kReplay:
        if (const auto message = protocol::decode<RemoteReplay>(payload)) {
          protocol::ReplayResult result;
          outcome = replay(*message, result);
          if (outcome.code == CUDA_SUCCESS) {
            answer = protocol::encode(result);
          }
        }
        break;
      case LaneRequest::kCopyIn:
      case LaneRequest::kCopyOut:
      case LaneRequest::kCopy:
        if (const auto message = protocol::decode<protocol::LaneCopy>(payload)) {
          outcome = copy(lane, static_cast<LaneRequest>(type), *message);
        }
        break;
    }
  }
  if (outcome.code != CUDA_SUCCESS) {
    const auto* text = reinterpret_cast<const std::byte*>(outcome.reason.data());
    answer.assign(text, text + outcome.reason.size());
  }
  return outcome.code;
}

void Standby::leave(LaneThread& lane) {
  if (lane.window_registered) {
    driver_.cuMemHostUnregister(lane.window);
  }
}

Outcome Standby::stream_of(std::uint64_t number, CUstream& stream) {
  if (number < kStreamHandles) {
    stream = reinterpret_cast<CUstream>(number);
    return {};
  }
  const auto own = objects_.find('s', number);
  if (!own) {
    return bad("a stream that the standby does not have", CUDA_ERROR_INVALID_HANDLE);
  }
  stream = reinterpret_cast<CUstream>(own->handle);
  return {};
}

Outcome Standby::function_of(std::uint64_t number, CUfunction& function) {
  auto own = objects_.find('f', number);
  if (!own) {
    return bad("a function that the standby does not have", CUDA_ERROR_INVALID_HANDLE);
  }
  if (!own->kernel) {
    function = reinterpret_cast<CUfunction>(own->handle);
    return {};
  }
  if (own->function == 0) {
    CUfunction got = nullptr;
    const CUresult code =
        driver_.cuKernelGetFunction(&got, reinterpret_cast<CUkernel>(own->handle));
    if (code != CUDA_SUCCESS) {
      return failed(code, "getting a kernel's function");
    }
    own->function = reinterpret_cast<std::uint64_t>(got);
    objects_.bind('f', number, *own);
  }
  function = reinterpret_cast<CUfunction>(own->function);
  return {};
}

Outcome Standby::call(LaneThread& lane, const DecodedCall& call, std::vector<std::byte>& results) {
  const driver_api::Call& row = *call.call;
  const auto parameters = parameters_of(row);
  const bool wants_kernel = row.name.starts_with("cuKernel");
  Calls::Values values(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const DecodedCall::Value& sent = call.values[i];
    Calls::Value& value = values[i];
    value.number = sent.number;
    switch (parameter.kind) {
      case ParameterKind::kNumber:
      case ParameterKind::kOut:
      case ParameterKind::kOutHandle:
      case ParameterKind::kOutString:
        value.present = sent.present;
        break;
      case ParameterKind::kIn:
      case ParameterKind::kString:
        value.present = sent.present;
        value.bytes = sent.bytes;
        break;
      case ParameterKind::kDevice:
        if (static_cast<std::int32_t>(sent.number) != app_device_) {
          return bad("a device that the standby does not serve", CUDA_ERROR_INVALID_DEVICE);
        }
        value.number = static_cast<std::uint32_t>(device_);
        break;
      case ParameterKind::kHandle:
      case ParameterKind::kDestroyedHandle: {
        if (parameter.handle == 'c') {
          value.number = sent.number != 0 ? reinterpret_cast<std::uint64_t>(context_) : 0;
        } else if (sent.number == 0 || (parameter.handle == 's' && sent.number < kStreamHandles)) {
          // As it is: what it means, or that it is an error, the driver knows.
        } else if (parameter.handle == 'f' && !wants_kernel) {
          CUfunction function = nullptr;
          if (Outcome o = function_of(sent.number, function); o.code != CUDA_SUCCESS) {
            return o;
          }
          value.number = reinterpret_cast<std::uint64_t>(function);
        } else {
          const auto own = objects_.find(parameter.handle, sent.number);
          if (!own) {
            return bad("an object that the standby does not have", CUDA_ERROR_INVALID_HANDLE);
          }
          if (parameter.handle == 'f' && !own->kernel) {
            return bad("a function where a kernel is needed", CUDA_ERROR_INVALID_HANDLE);
          }
          value.number = own->handle;
        }
        break;
      }
    }
  }
  CUresult code = CUDA_SUCCESS;
  if (!lane.calls->make(driver_, row, call.per_thread, values, code)) {
    return bad("a call that the standby's driver does not have", CUDA_ERROR_NOT_SUPPORTED);
  }
  if (code != CUDA_SUCCESS) {
    return failed(code, std::string(row.name));
  }
  const auto append = [&](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    results.insert(results.end(), bytes, bytes + size);
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const Calls::Value& value = values[i];
    if (parameter.kind == ParameterKind::kDestroyedHandle) {
      objects_.forget(parameter.handle, call.values[i].number);
    }
    if (!value.present) {
      continue;
    }
    if (parameter.kind == ParameterKind::kOut) {
      append(value.out, parameter.size);
    } else if (parameter.kind == ParameterKind::kOutHandle) {
      Objects::Own own;
      std::memcpy(&own.handle, value.out, sizeof own.handle);
      own.kernel = row.name == "cuLibraryGetKernel";
      objects_.bind(parameter.handle, value.number, own);
      append(&value.number, sizeof value.number);
    } else if (parameter.kind == ParameterKind::kOutString) {
      const char* text = nullptr;
      std::memcpy(&text, value.out, sizeof text);
      const auto size = static_cast<std::uint32_t>(
          std::min<std::size_t>(text != nullptr ? std::strlen(text) : 0, kLanePayload / 2));
      append(&size, sizeof size);
      append(text, size);
    }
  }
  return {};
}

Outcome Standby::launch(const RemoteLaunch& launch) {
  CUfunction function = nullptr;
  CUstream stream = nullptr;
  Outcome outcome = function_of(launch.function, function);
  if (outcome.code == CUDA_SUCCESS) {
    outcome = stream_of(launch.stream, stream);
  }
  if (outcome.code != CUDA_SUCCESS) {
    return outcome;
  }
  if (launch.cooperative) {
    outcome = launch_cooperative(launch, function, stream);
  } else {
    if (launch.attributes.size() % sizeof(CUlaunchAttribute) != 0) {
      return bad("launch attributes that are cut");
    }
    std::vector<CUlaunchAttribute> attributes(launch.attributes.size() / sizeof(CUlaunchAttribute));
    if (!attributes.empty()) {
      std::memcpy(attributes.data(), launch.attributes.data(), launch.attributes.size());
    }
    CUlaunchConfig config{};
    config.gridDimX = launch.grid[0];
    config.gridDimY = launch.grid[1];
    config.gridDimZ = launch.grid[2];
    config.blockDimX = launch.block[0];
    config.blockDimY = launch.block[1];
    config.blockDimZ = launch.block[2];
    config.sharedMemBytes = launch.shared_bytes;
    config.hStream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    std::size_t size = launch.arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER,
                     const_cast<std::byte*>(launch.arguments.data()), CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &size, CU_LAUNCH_PARAM_END};
    outcome = failed(
        driver_.common.cuLaunchKernelEx(&config, function, nullptr, size != 0 ? extra : nullptr),
        "launch");
  }
  if (outcome.code == CUDA_SUCCESS && launch.marker != 0) {
    outcome = failed(
        driver_.cuStreamWriteValue32(stream, device_pointer(launch.marker), launch.marker_value, 0),
        "the marker of a launch");
  }
  return outcome;
}

Outcome Standby::launch_cooperative(const RemoteLaunch& launch, CUfunction function,
                                    CUstream stream) {
  if (!launch.attributes.empty()) {
    return bad("a cooperative launch with attributes");
  }
  // There is no form with packed arguments; parameter by parameter they lie at known offsets.
  std::vector<std::byte> arguments = launch.arguments;
  std::vector<void*> pointers;
  constexpr std::size_t kMaxParameters = 32764;  // no parameter is smaller than a byte
  for (std::size_t i = 0; i < kMaxParameters; ++i) {
    std::size_t offset = 0;
    std::size_t size = 0;
    if (driver_.common.cuFuncGetParamInfo(function, i, &offset, &size) != CUDA_SUCCESS) {
      break;
    }
    if (offset > arguments.size() || size > arguments.size() - offset) {
      return bad("fewer argument bytes than the kernel has");
    }
    pointers.push_back(arguments.data() + offset);
  }
  return failed(driver_.common.cuLaunchCooperativeKernel(
                    function, launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0],
                    launch.block[1], launch.block[2], launch.shared_bytes, stream, pointers.data()),
                "cooperative launch");
}

Outcome Standby::replay(const RemoteReplay& wanted, protocol::ReplayResult& result) {
  std::vector<idempotency::Range> writes;
  if (wanted.begins.size() != wanted.ends.size()) {
    return bad("write ranges that are cut");
  }
  for (std::size_t i = 0; i < wanted.begins.size(); ++i) {
    if (wanted.ends[i] <= wanted.begins[i] ||
        !sensible(wanted.begins[i], wanted.ends[i] - wanted.begins[i])) {
      return bad("a write range that cannot be");
    }
    idempotency::Range range{};
    range.begin = wanted.begins[i];
    range.end = wanted.ends[i];
    writes.push_back(range);
  }
  CUstream stream = nullptr;
  if (Outcome o = stream_of(wanted.launch.stream, stream); o.code != CUDA_SUCCESS) {
    return o;
  }
  if (wanted.keep != 0 && (!sensible(wanted.keep, saved_layout(writes).size) ||
                           !sensible(wanted.keep_word, sizeof(std::uint32_t)))) {
    return bad("a place for saved contents that cannot be");
  }
  // The marker stands for the whole of it.
  RemoteLaunch once = wanted.launch;
  once.marker = 0;
  Outcome last;
  Relaunch relaunch;
  relaunch.launch = [&] {
    last = launch(once);
    return last.code;
  };
  relaunch.stream = stream;
  relaunch.max_attempts = 1;
  const Keep keep{device_pointer(wanted.keep), device_pointer(wanted.keep_word), wanted.keep_value};
  // Replays come one at a time, by lanes of whichever thread.
  const std::lock_guard lock(replay_mutex_);
  const Result done =
      recovery::replay(driver_.common, ops_, relaunch, writes, wanted.seed, replay_buffers_, keep);
  result.recovered = done.recovered;
  result.refused = done.refused;
  result.reason = done.reason;
  if (!done.recovered) {
    result.code = last.code != CUDA_SUCCESS ? last.code : driver_.common.cuCtxSynchronize();
    if (last.code != CUDA_SUCCESS) {
      result.reason += " (" + last.reason + ")";
    }
    return {};
  }
  if (wanted.launch.marker != 0) {
    return failed(driver_.cuStreamWriteValue32(stream, device_pointer(wanted.launch.marker),
                                               wanted.launch.marker_value, 0),
                  "the marker of a replay");
  }
  return {};
}

Outcome Standby::prepare(std::uint64_t number) {
  if (number == 0) {
    return rehearse();
  }
  CUfunction function = nullptr;
  if (Outcome o = function_of(number, function); o.code != CUDA_SUCCESS) {
    return o;
  }
  // With lazy loading the code comes to the device by the first launch, or by this (CUDA 12.4).
  if (auto* const load = reinterpret_cast<decltype(&::cuFuncLoad)>(driver_.symbol("cuFuncLoad"))) {
    return failed(load(function), "loading a function");
  }
  return {};
}

// A replay of nothing, over memory of our own.
Outcome Standby::rehearse() {
  constexpr std::uint64_t kSize = 4096;
  driver_api::Scratch scratch(driver_.common);
  if (!scratch.allocate(kSize)) {
    return bad("no room for a rehearsal", CUDA_ERROR_OUT_OF_MEMORY);
  }
  idempotency::Range range{};
  range.begin = scratch.get();
  range.end = range.begin + kSize;
  Relaunch nothing;
  nothing.launch = [] { return CUDA_SUCCESS; };
  nothing.stream = CU_STREAM_LEGACY;
  nothing.max_attempts = 1;
  const Result done = recovery::replay(driver_.common, ops_, nothing, {&range, 1}, 1);
  return done.recovered ? Outcome{} : bad("a rehearsal failed", CUDA_ERROR_UNKNOWN);
}

Outcome Standby::copy(LaneThread& lane, LaneRequest type, const protocol::LaneCopy& copy) {
  CUstream stream = nullptr;
  if (Outcome o = stream_of(copy.stream, stream); o.code != CUDA_SUCCESS) {
    return o;
  }
  if (type == LaneRequest::kCopy) {
    const CUresult code = driver_.cuMemcpyAsync(device_pointer(copy.to), device_pointer(copy.from),
                                                copy.size, stream);
    if (code != CUDA_SUCCESS || copy.async) {
      return failed(code, "copy");
    }
    return failed(driver_.common.cuStreamSynchronize(stream), "copy");
  }
  if (copy.size > kLaneWindow) {
    return bad("a copy larger than the window");
  }
  if (!lane.window_registered) {
    // Without it copies are only slower.
    lane.window_registered = driver_.cuMemHostRegister(lane.window, kLaneWindow, 0) == CUDA_SUCCESS;
  }
  const CUresult code =
      type == LaneRequest::kCopyIn
          ? driver_.cuMemcpyHtoDAsync(device_pointer(copy.to), lane.window, copy.size, stream)
          : driver_.common.cuMemcpyDtoHAsync(lane.window, device_pointer(copy.from), copy.size,
                                             stream);
  if (code != CUDA_SUCCESS) {
    return failed(code, "copy");
  }
  return failed(driver_.common.cuStreamSynchronize(stream), "copy");
}

}  // namespace gpurecover::recovery
