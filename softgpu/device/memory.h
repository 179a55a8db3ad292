// SPDX-License-Identifier: Apache-2.0
// The memory of the software device: address space, physical pages, allocations.
//
// Every device address is the host address of the same byte. Plain memory (cuMemAlloc, managed,
// pinned host) lies in one sparse shared file mapped at kPlainBase; each cuMemCreate has a file of
// its own, mapped where the program maps it, so that other processes can map it too. What kernels
// may touch is decided by a page table for each device, not by the host's protection.
//
// Thread-safe. Calls that change the address space take one lock; Check (DeviceMemory) takes none.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "softgpu/device/launch.h"

namespace gpurecover::softgpu {

// The window that page tables cover directly. It begins where sanitizers leave room and a recovery
// agent likes to place its own arena, and ends below the executables.
inline constexpr uint64_t kWindowBase = 0x5500'0000'0000;
inline constexpr uint64_t kWindowEnd = 0x5555'0000'0000;
inline constexpr uint64_t kPlainBase = 0x5540'0000'0000;
inline constexpr uint64_t kPlainEnd = 0x5550'0000'0000;
// Where reservations without a wish go: above plain memory, clear of [kWindowBase, kPlainBase).
inline constexpr uint64_t kReserveBase = kPlainEnd;
inline constexpr uint64_t kGranularity = 2ull << 20;  // of cuMemCreate, and of plain chunks
inline constexpr uint64_t kPlainAlignment = 512;      // of addresses of plain memory
inline constexpr int kMaxDevices = 16;

/// Physical memory of cuMemCreate: a shared file.
struct Physical {
  int fd = -1;
  uint64_t size = 0;
  int device = -1;  // -1: host
  CUmemAllocationProp properties{};
  bool imported = false;  // counted by the process that made it
  ~Physical();
};

// kGlobal: a module's variable, which only its module's unloading frees.
enum class MemoryKind { kDevice, kManaged, kHost, kRegistered, kMapped, kImported, kGlobal };

struct Allocation {
  uint64_t base = 0;
  uint64_t size = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  CUcontext context = nullptr;
  unsigned flags = 0;                  // of cuMemHostAlloc, cuMemHostRegister
  uint64_t id = 0;                     // CU_POINTER_ATTRIBUTE_BUFFER_ID
  void* pool = nullptr;                // stream-ordered: the pool
  bool sync_memops = false;            // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  std::shared_ptr<Physical> physical;  // kMapped
  uint64_t offset = 0;                 // kMapped: in physical
};

class Memory {
 public:
  static Memory& Get();

  /// Maps the arena and makes the page tables. False, with a reason, if the address space does not
  /// allow it. `capacity`: bytes of each device. `byte_exact`: see DeviceMemory::Check.
  bool Init(int devices, uint64_t capacity, bool byte_exact, std::string* why);

  DeviceMemory* view(int device);
  uint64_t capacity() const { return capacity_; }
  uint64_t used(int device) const { return used_[device].load(); }

  // --- plain memory ---
  /// 0 when there is no room.
  uint64_t Allocate(uint64_t bytes, MemoryKind kind, int device, CUcontext context,
                    unsigned flags = 0, void* pool = nullptr);
  /// False if `address` is not the base of a plain allocation of one of the kinds in `kinds`
  /// (bits).
  bool Free(uint64_t address, unsigned kinds);
  /// Frees what a context still owns.
  void FreeAllOf(CUcontext context);
  static constexpr unsigned Bit(MemoryKind kind) { return 1u << static_cast<int>(kind); }

  /// The allocation that holds the byte, if any (plain, registered, or mapped with cuMemMap).
  bool Find(uint64_t address, Allocation* out) const;
  /// Whether the byte lies in the same 2 MiB as live device memory.
  bool Beside(uint64_t address) const;
  void SetSyncMemops(uint64_t address, bool on);
  /// Is every byte of [address, address+size) in mapped memory that `device` may access so?
  bool Accessible(uint64_t address, uint64_t size, int device, uint8_t need) const;
  /// Does [address, address+size) lie in pinned memory as a whole?
  bool Pinned(uint64_t address, uint64_t size) const;
  /// Device memory of `owner` becomes accessible to `peer`, or no longer.
  void SetPeer(int owner, int peer, bool on);

  // --- host memory of the program ---
  CUresult Register(uint64_t address, uint64_t size, unsigned flags, CUcontext context);
  CUresult Unregister(uint64_t address);

  // --- legacy IPC ---
  /// Descriptor and offset of plain device memory, for a handle.
  bool PlainFile(uint64_t address, int* fd, uint64_t* offset, uint64_t* size, int* device) const;
  /// Maps another process's memory at an address of our choice; 0 if impossible.
  uint64_t MapImported(int fd, uint64_t offset, uint64_t size, int device, CUcontext context);
  bool UnmapImported(uint64_t address);

  // --- virtual memory management ---
  CUresult Create(uint64_t size, const CUmemAllocationProp& properties,
                  CUmemGenericAllocationHandle* out);
  CUresult Import(int fd, CUmemGenericAllocationHandle* out);
  CUresult Export(CUmemGenericAllocationHandle handle, int* fd);
  CUresult Release(CUmemGenericAllocationHandle handle);
  CUresult Retain(uint64_t address, CUmemGenericAllocationHandle* out);
  CUresult Properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp* out);
  CUresult Reserve(uint64_t size, uint64_t alignment, uint64_t wish, uint64_t* out);
  CUresult Unreserve(uint64_t address, uint64_t size);
  CUresult Map(uint64_t address, uint64_t size, uint64_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult Unmap(uint64_t address, uint64_t size);
  CUresult SetAccess(uint64_t address, uint64_t size, const CUmemAccessDesc* descriptors,
                     size_t count);
  CUresult GetAccess(uint64_t address, const CUmemLocation& location, unsigned long long* flags);

 private:
  struct View;
  struct Handle {
    std::shared_ptr<Physical> physical;
    unsigned references = 0;  // of the program; mappings count for themselves
    unsigned mappings = 0;
  };
  struct Mapping {
    uint64_t size = 0;
    uint64_t offset = 0;
    Handle* handle = nullptr;
    uint64_t id = 0;
    uint8_t access[kMaxDevices] = {};
    uint8_t host_access = 0;
  };
  struct Interval {
    uint64_t begin, end;
    uint8_t access[kMaxDevices];
  };
  using Intervals = std::vector<Interval>;

  uint64_t TakePlain(uint64_t bytes, int device, MemoryKind kind);
  void DropIfUnused(Handle* handle);
  void SetFlags(int device, uint64_t begin, uint64_t end, uint8_t flags);
  void SetAllFlags(const Allocation& allocation);
  void FillShadow(uint64_t begin, uint64_t size, bool valid);
  void PublishOutside();
  bool FindLocked(uint64_t address, Allocation* out) const;
  void FreeLocked(std::map<uint64_t, Allocation>::iterator it);

  mutable std::mutex mutex_;
  bool ready_ = false;
  int devices_ = 0;
  bool byte_exact_ = false;
  uint64_t capacity_ = 0;
  int plain_fd_ = -1;
  std::atomic<uint64_t> used_[kMaxDevices] = {};
  uint64_t next_id_ = 1;
  std::atomic<uint8_t>* shadow_ = nullptr;  // of the plain part
  std::vector<std::unique_ptr<View>> views_;
  bool peer_[kMaxDevices][kMaxDevices] = {};

  struct Chunk {
    uint64_t size = 0;  // multiple of kGranularity
    int device = 0;
    MemoryKind kind = MemoryKind::kDevice;
    std::map<uint64_t, uint64_t> holes;  // free address -> size
  };
  std::map<uint64_t, Chunk> chunks_;
  std::map<uint64_t, Allocation> allocations_;  // plain, registered and imported, by base
  std::map<uint64_t, uint64_t> reservations_;   // base -> size
  std::map<uint64_t, Mapping> mappings_;
  std::map<CUmemGenericAllocationHandle, std::unique_ptr<Handle>> handles_;
  // Readers take no lock, so an old list stays allocated.
  std::atomic<const Intervals*> outside_{nullptr};
  std::list<Intervals> outside_lists_;
};

}  // namespace gpurecover::softgpu
