// SPDX-License-Identifier: Apache-2.0
// The contract between the device core (contexts, memory, streams) and whatever executes kernels.
//
// The core owns memory, loads modules, orders launches and turns fault codes into the poisoned
// process of a real device. The executor owns threads, blocks, registers, shared and local memory.
// Nothing here knows PTX beyond the module handed to Executor::Compile, and nothing here is CUDA
// API: codes are the numeric values of CUresult, 0 is success.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace gpurecover::image::ptx {
struct Module;
}

namespace gpurecover::softgpu {

// Codes an execution may end with (cuda.h, CUresult). 214, 220 and 226 arise by fault plan only.
inline constexpr int kOk = 0;
inline constexpr int kEccUncorrectable = 214;
inline constexpr int kNotSupported = 801;
inline constexpr int kIllegalAddress = 700;
inline constexpr int kLaunchOutOfResources = 701;
inline constexpr int kLaunchTimeout = 702;
inline constexpr int kAssert = 710;
inline constexpr int kMisalignedAddress = 716;
inline constexpr int kLaunchFailed = 719;

// Generic addresses of shared and local memory. Above every host address (47 bits), so that they
// can be told from device memory, managed memory and pinned host memory by one comparison.
inline constexpr uint64_t kSharedWindow = 1ull << 48;
inline constexpr uint64_t kLocalWindow = 1ull << 49;

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

/// Device memory as running threads see it. A device address is the host address of the same byte:
/// after a check the executor reads and writes through `reinterpret_cast<T*>(address)`; device
/// threads race as the program makes them race, so use relaxed atomics of the access's own width.
///
/// Protection is by 64 KiB page, as a device protects whole pages; pages of which some bytes belong
/// to no allocation carry kPartial, and a shadow says, for each 16 bytes, how many leading ones are
/// allocated. Pages change under running kernels (an unmap is the fence of a recovery), so check
/// every access, and never keep a verdict. A page unmapped between check and access stays backed
/// by scratch memory until the kernel has ended: no signal, no write into the unmapped memory.
///
/// Any thread. Allocation-free.
class DeviceMemory {
 public:
  enum Flag : uint8_t { kRead = 1, kWrite = 2, kPartial = 4 };
  enum class Verdict {
    kOk,
    kStray,  // the page is mapped, the bytes belong to no allocation; harmless on a device
    kFault,  // 700
  };

  virtual ~DeviceMemory() = default;

  /// May `size` bytes (1..16, not crossing a 64 KiB boundary, i.e. naturally aligned) at `address`
  /// be accessed as `need` (kRead, kWrite or both)? With byte-exact checking a stray access is
  /// kFault. Misalignment is the caller's to find (716 comes before 700).
  Verdict Check(uint64_t address, uint32_t size, uint8_t need) const {
    const uint64_t page = (address - base_) >> kPageBits;
    if (page < page_count_) [[likely]] {
      const uint8_t flags = page_flags_[page].load(std::memory_order_relaxed);
      if ((flags & need) != need) [[unlikely]]
        return Verdict::kFault;
      if (!(flags & kPartial)) [[likely]]
        return Verdict::kOk;
      const uint64_t offset = address - base_;
      // 16-byte granules; an access of up to 16 aligned bytes lies inside one.
      if ((offset & 15) + size <= shadow_[offset >> 4].load(std::memory_order_relaxed))
        return Verdict::kOk;
      return byte_exact_ ? Verdict::kFault : Verdict::kStray;
    }
    return CheckOutside(address, size, need);
  }

  /// True if all of [address, address + size) is allocated and may be accessed as `need`; false
  /// says nothing, then ask access by access. For the row of a warp's consecutive elements.
  bool CheckRow(uint64_t address, uint64_t size, uint8_t need) const {
    const uint64_t first = address - base_, last = first + size - 1;
    if (last < first || (last >> kPageBits) >= page_count_)
      return false;
    bool partial = false;
    for (uint64_t page = first >> kPageBits; page <= last >> kPageBits; ++page) {
      const uint8_t flags = page_flags_[page].load(std::memory_order_relaxed);
      if ((flags & need) != need)
        return false;
      partial |= (flags & kPartial) != 0;
    }
    if (!partial) [[likely]]
      return true;
    for (uint64_t granule = first >> 4; granule <= last >> 4; ++granule) {
      const uint64_t used = granule == last >> 4 ? (last & 15) + 1 : 16;
      if (shadow_[granule].load(std::memory_order_relaxed) < used)
        return false;
    }
    return true;
  }

  /// Device-side malloc and free; 0 when there is no room. Free of anything else is ignored.
  virtual uint64_t Malloc(uint64_t /*bytes*/) { return 0; }
  virtual void Free(uint64_t /*address*/) {}

  static constexpr int kPageBits = 16;

 protected:
  /// Addresses outside the fast table: pinned host memory, reservations made elsewhere.
  virtual Verdict CheckOutside(uint64_t address, uint32_t size, uint8_t need) const = 0;

  uint64_t base_ = 0;
  uint64_t page_count_ = 0;
  const std::atomic<uint8_t>* page_flags_ = nullptr;
  const std::atomic<uint8_t>* shadow_ = nullptr;
  bool byte_exact_ = false;
};

struct ParameterInfo {
  uint32_t offset = 0, size = 0, align = 1;
};

struct KernelInfo {
  std::string name;
  std::vector<ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;      // of the packed parameter block
  uint32_t static_shared_bytes = 0;  // without extern (dynamic) shared memory
  uint32_t local_bytes = 0;          // per thread
  uint32_t registers = 0;            // 32-bit registers per thread, an estimate for attributes
  uint32_t max_threads = 1024;       // .maxntid, .reqntid or 1024
};

struct VariableInfo {
  std::string name;
  bool is_const = false;  // .const: read-only to kernels
  bool is_managed = false;
  uint64_t size = 0;
  uint64_t align = 1;
};

/// A compiled module: immutable, shared by every load of it and by concurrent launches.
class Program {
 public:
  virtual ~Program() = default;
  virtual std::span<const KernelInfo> kernels() const = 0;
  /// .global and .const variables of the module, in a fixed order. The core gives each an address.
  virtual std::span<const VariableInfo> variables() const = 0;
  /// The `variables()[index].size` bytes a fresh load starts with; initializers that name variables
  /// or functions are resolved with `addresses` (one for each variable).
  virtual std::vector<uint8_t> InitialBytes(size_t index,
                                            std::span<const uint64_t> addresses) const = 0;
};

/// One load of a program into a context.
struct ModuleInstance {
  std::shared_ptr<const Program> program;
  std::vector<uint64_t> addresses;  // of program->variables()
};

/// A fault on demand: thread `thread` (linear in its block) of block `block` (linear in the grid),
/// just before its `instruction`-th dynamic instruction (from 0, counting that thread only).
struct FaultPlan {
  enum class Kind { kError, kFlipRegister, kFlipMemory, kHang };
  Kind kind = Kind::kError;
  uint64_t block = 0;
  uint32_t thread = 0;
  uint64_t instruction = 0;
  int code = kIllegalAddress;  // kError: the launch ends with it; earlier writes stay
  // kFlipRegister: flips `bit` of the destination of that instruction, after it.
  // kFlipMemory: flips `bit` of the byte at `address` before it (if mapped).
  uint32_t bit = 0;
  uint64_t address = 0;
};

struct LaunchRequest {
  const ModuleInstance* module = nullptr;
  size_t kernel = 0;  // index into module->program->kernels()
  Dim3 grid, block, cluster;
  uint32_t dynamic_shared_bytes = 0;
  std::span<const uint8_t> parameters;  // parameter_bytes long, packed by KernelInfo::parameters
  bool cooperative = false;             // all blocks must be resident together (grid barriers)
  DeviceMemory* memory = nullptr;
  uint64_t clock_ns = 0;  // what %globaltimer starts from; the executor advances it by steps
  std::optional<FaultPlan> fault;
  bool record_accesses = false;
  uint64_t step_budget = 0;  // thread-instructions of the whole launch, then 702; 0: no limit
  uint64_t seed = 0;
  /// Set when the launch must end early (context destroyed); it then answers kLaunchFailed.
  const std::atomic<bool>* cancel = nullptr;
  /// Where device printf goes; called from any thread, in the order of one thread's calls. Never
  /// null.
  std::function<void(std::string_view)> print;
  /// Where the text of a failed assert goes, as whole lines. Never null.
  std::function<void(std::string_view)> print_error;
};

/// [begin, end)
struct ByteRange {
  uint64_t begin = 0, end = 0;
};

struct LaunchResult {
  int code = kOk;
  std::string message;  // for a person: what went wrong, where
  // Of the thread that failed first, when code != kOk.
  uint64_t block = 0;
  uint32_t thread = 0;
  uint64_t instruction = 0;  // dynamic count in that thread
  std::string location;      // PTX source position or instruction text
  uint64_t address = 0;      // of 700 and 716
  uint32_t access_bytes = 0;
  bool access_was_write = false;
  // Sorted, merged, exact, for global, const and generic accesses that are not shared or local;
  // only when asked for. Atomics count as both.
  std::vector<ByteRange> reads, writes;
  uint64_t thread_instructions = 0;
  uint64_t stray_accesses = 0;  // Verdict::kStray seen
  uint64_t first_stray = 0;     // its address
  bool fault_fired = false;     // the plan's point was reached
};

struct CompileError {
  std::string message;  // names the unsupported instruction or the malformed construct
  int line = 0;         // of the PTX, 0 when unknown
};

struct ExecutorOptions {
  unsigned workers = 0;  // 0: one for each core
};

/// Any thread; Run may be called concurrently and every concurrent launch must make progress, since
/// kernels of different streams may wait for one another.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Fails, by name, on what it cannot execute. Must survive any input.
  virtual tl::expected<std::shared_ptr<const Program>, CompileError> Compile(
      const image::ptx::Module& module) = 0;
  /// Executes the launch to its end. The core has checked dimensions against the device's limits.
  virtual LaunchResult Run(const LaunchRequest& request) = 0;
};

/// Defined by softgpu/interp; the core links it when that folder is part of the build.
std::unique_ptr<Executor> MakeInterpreter(const ExecutorOptions& options);

}  // namespace gpurecover::softgpu
