// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "cupti/driver_api/driver.h"

// Work on the contents of device memory: noise, comparison, damage. All of it runs on the device,
// in the stream given, as kernels of our own.
namespace gpurecover::driver_api {

// Device memory that is freed with its owner. To be used with the context it was made in current.
class Scratch {
 public:
  explicit Scratch(const Driver& driver) : driver_(driver) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // False if there is no such room; the object then stays empty. Bytes, at least one.
  bool allocate(std::uint64_t size);
  CUdeviceptr get() const { return address_; }

 private:
  const Driver& driver_;
  CUdeviceptr address_ = 0;
};

// What a kernel can be made to fail with on any device.
enum class DeviceFault : std::uint8_t {
  kTrap,            // 719
  kIllegalAddress,  // 700
  kMisaligned,      // 716
  kAssert,          // 710; the driver prints the assertion on stderr, as any
};
// The fault that is reported as this driver code; none for every other code.
std::optional<DeviceFault> device_fault_of(std::int32_t code);

// Thread-safe; the context of the call must be current. `data` may begin anywhere, the other
// buffers must be aligned to 8 bytes. Every function only enqueues (but for loading its kernels
// once per context) and returns the driver's code.
class DeviceOps {
 public:
  explicit DeviceOps(const Driver& driver) : driver_(driver) {}

  // Loads the kernels into the current context, so that later calls only enqueue.
  CUresult prepare();
  // Overwrites with noise; the noises of flip false and true differ in every byte.
  CUresult noise(CUstream stream, CUdeviceptr data, std::uint64_t size, std::uint64_t seed,
                 bool flip);
  // The last check of a replay (DESIGN section 5): `data` after a run over flipped noise, `first`
  // after a run over plain noise of the same seed. Bytes written by neither get `saved`; the number
  // of other bytes that do not agree is added to the 64-bit word at `differing`.
  CUresult merge(CUstream stream, CUdeviceptr data, CUdeviceptr first, CUdeviceptr saved,
                 std::uint64_t size, std::uint64_t seed, CUdeviceptr differing);
  // Spoils the bytes that differ from `before`: noise that is neither value (scribble), or the old
  // value for a seeded half of them (partial). Adds their number to the word at `damaged`.
  CUresult scribble(CUstream stream, CUdeviceptr data, CUdeviceptr before, std::uint64_t size,
                    std::uint64_t seed, CUdeviceptr damaged);
  CUresult undo_partly(CUstream stream, CUdeviceptr data, CUdeviceptr before, std::uint64_t size,
                       std::uint64_t seed, CUdeviceptr damaged);

  // Copies of device memory by one launch: `entries` in device memory, three 64-bit words for each:
  // from, to, bytes. No two overlap; each is done by one block, so they should be small.
  CUresult copy_each(CUstream stream, CUdeviceptr entries, std::uint32_t count);

  // Loads the kernels that fail, so that fault() only enqueues.
  CUresult prepare_fault();
  // Enqueues a kernel that really fails: the context is lost once it has run.
  CUresult fault(CUstream stream, DeviceFault kind);

  // Forgets the kernels of a context that is gone: its handle may come again.
  void forget(CUcontext context);
  // Forgets those of all contexts: the driver is another one now.
  void forget_all();

 private:
  struct Kernels {
    CUfunction noise = nullptr;
    CUfunction merge = nullptr;
    CUfunction damage = nullptr;
    CUfunction copy_each = nullptr;
  };
  struct FaultKernels {
    CUfunction by_kind[4] = {};
  };
  CUresult kernels(Kernels& out);
  CUresult fault_kernels(FaultKernels& out);
  CUresult launch(CUfunction function, CUstream stream, std::uint64_t size, void** arguments);
  CUresult damage(CUstream stream, CUdeviceptr data, CUdeviceptr before, std::uint64_t size,
                  std::uint64_t seed, std::uint64_t subset, CUdeviceptr damaged);

  const Driver& driver_;
  std::mutex mutex_;
  std::map<CUcontext, Kernels> loaded_;
  std::map<CUcontext, FaultKernels> loaded_faults_;
};

}  // namespace gpurecover::driver_api
