// SPDX-License-Identifier: Apache-2.0
#include "softgpu/device/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace gpurecover::softgpu {
namespace {

constexpr uint64_t kPage = 1ull << DeviceMemory::kPageBits;

uint64_t RoundUp(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

/// A descriptor for `bytes` of shared memory, or -1. Names are what an importing process knows the
/// memory by.
int MakeFile(const std::string& name, uint64_t bytes) {
  int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0 && errno == EMFILE) {
    // A device's memory handles are no file descriptors; do not let the default soft limit matter.
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
      fd = memfd_create(name.c_str(), MFD_CLOEXEC);
    }
  }
  if (fd < 0)
    return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

template <class T>
T* MakeTable(uint64_t count) {
  void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<T*>(p);
}

bool InWindow(uint64_t begin, uint64_t size) {
  return begin >= kWindowBase && begin < kWindowEnd && size <= kWindowEnd - begin;
}

/// Puts scratch memory where pages were. A kernel that checked its access just before still finds
/// memory there, but no longer the old one; the swap is atomic for it.
void ReplaceByScratch(uint64_t address, uint64_t size) {
  mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace

Physical::~Physical() {
  if (fd >= 0)
    close(fd);
}

struct Memory::View : DeviceMemory {
  View(Memory* owner, int number, std::atomic<uint8_t>* table, bool exact)
      : memory(owner), device(number), flags(table) {
    base_ = kWindowBase;
    page_count_ = (kWindowEnd - kWindowBase) >> kPageBits;
    page_flags_ = table;
    // Only plain pages are ever partial, so only their part of the shadow exists.
    shadow_ = reinterpret_cast<const std::atomic<uint8_t>*>(
        reinterpret_cast<uint64_t>(owner->shadow_) - ((kPlainBase - kWindowBase) >> 4));
    byte_exact_ = exact;
  }

  Verdict CheckOutside(uint64_t address, uint32_t size, uint8_t need) const override {
    const Intervals* list = memory->outside_.load(std::memory_order_acquire);
    if (!list)
      return Verdict::kFault;
    auto it = std::upper_bound(list->begin(), list->end(), address,
                               [](uint64_t a, const Interval& i) { return a < i.begin; });
    if (it == list->begin())
      return Verdict::kFault;
    --it;
    if (address + size > it->end || (it->access[device] & need) != need)
      return Verdict::kFault;
    return Verdict::kOk;
  }

  uint64_t Malloc(uint64_t bytes) override {
    return bytes ? memory->Allocate(bytes, MemoryKind::kDevice, device, nullptr) : 0;
  }
  void Free(uint64_t address) override { memory->Free(address, Memory::Bit(MemoryKind::kDevice)); }

  Memory* memory;
  int device;
  std::atomic<uint8_t>* flags;
};

Memory& Memory::Get() {
  static Memory* memory = new Memory;  // never destroyed: kernels may run while the process exits
  return *memory;
}

bool Memory::Init(int devices, uint64_t capacity, bool byte_exact, std::string* why) {
  std::lock_guard lock(mutex_);
  if (ready_)
    return true;
  plain_fd_ = MakeFile("softgpu.plain", kPlainEnd - kPlainBase);
  if (plain_fd_ < 0) {
    *why = std::string("no shared memory file: ") + strerror(errno);
    return false;
  }
  void* wanted = reinterpret_cast<void*>(kPlainBase);
  void* got = mmap(wanted, kPlainEnd - kPlainBase, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, plain_fd_, 0);
  if (got != wanted) {
    char text[160];
    snprintf(text, sizeof text, "the device's addresses 0x%llx to 0x%llx are taken: %s",
             static_cast<unsigned long long>(kPlainBase),
             static_cast<unsigned long long>(kPlainEnd), strerror(errno));
    *why = text;
    if (got != MAP_FAILED)
      munmap(got, kPlainEnd - kPlainBase);
    close(plain_fd_);
    return false;
  }
  madvise(wanted, kPlainEnd - kPlainBase, MADV_DONTDUMP);
  shadow_ = MakeTable<std::atomic<uint8_t>>((kPlainEnd - kPlainBase) >> 4);
  if (!shadow_) {
    *why = "no address space for the allocation shadow";
    return false;
  }
  devices_ = devices;
  capacity_ = capacity;
  byte_exact_ = byte_exact;
  for (int i = 0; i < devices; ++i) {
    auto* flags =
        MakeTable<std::atomic<uint8_t>>((kWindowEnd - kWindowBase) >> DeviceMemory::kPageBits);
    if (!flags) {
      *why = "no address space for the page table";
      return false;
    }
    views_.push_back(std::make_unique<View>(this, i, flags, byte_exact));
  }
  ready_ = true;
  return true;
}

DeviceMemory* Memory::view(int device) {
  return views_[device].get();
}

void Memory::SetFlags(int device, uint64_t begin, uint64_t end, uint8_t flags) {
  std::atomic<uint8_t>* table = views_[device]->flags;
  for (uint64_t page = (begin - kWindowBase) / kPage; page < (end - kWindowBase) / kPage; ++page)
    table[page].store(flags, std::memory_order_relaxed);
}

void Memory::FillShadow(uint64_t begin, uint64_t size, bool valid) {
  std::atomic<uint8_t>* shadow = shadow_ + ((begin - kPlainBase) >> 4);
  const uint64_t whole = size / 16;
  // Of an allocation with a chunk of its own, the first and the last page are the only ones whose
  // shadow is looked at: the middle is marked whole in the page table.
  const uint64_t edge = 2 * kPage / 16;
  for (uint64_t i = 0; i < whole; ++i) {
    if (size > kGranularity / 2 && whole > 2 * edge && i == edge)
      i = whole - edge;
    shadow[i].store(valid ? 16 : 0, std::memory_order_relaxed);
  }
  if (size % 16)
    shadow[whole].store(valid ? size % 16 : 0, std::memory_order_relaxed);
}

void Memory::SetAllFlags(const Allocation& a) {
  constexpr uint8_t kRw = DeviceMemory::kRead | DeviceMemory::kWrite;
  auto chunk = std::prev(chunks_.upper_bound(a.base));
  const uint64_t begin = chunk->first, end = begin + chunk->second.size;
  const uint64_t full_begin = RoundUp(a.base, kPage);
  const uint64_t full_end = std::max(full_begin, (a.base + a.size) / kPage * kPage);
  for (int d = 0; d < devices_; ++d) {
    const bool everywhere = a.kind == MemoryKind::kManaged || a.kind == MemoryKind::kHost;
    if (!everywhere && d != a.device && !peer_[a.device][d]) {
      SetFlags(d, begin, end, 0);
      continue;
    }
    SetFlags(d, begin, end, kRw | DeviceMemory::kPartial);
    if (a.size > kGranularity / 2 && full_end > full_begin)
      SetFlags(d, full_begin, full_end, kRw);
  }
}

uint64_t Memory::TakePlain(uint64_t bytes, int device, MemoryKind kind) {
  const uint64_t size = RoundUp(bytes, kPlainAlignment);
  if (size <= kGranularity / 2) {
    for (auto& [base, chunk] : chunks_) {
      if (chunk.device != device || chunk.kind != kind)
        continue;
      for (auto hole = chunk.holes.begin(); hole != chunk.holes.end(); ++hole) {
        if (hole->second < size)
          continue;
        const uint64_t address = hole->first, left = hole->second - size;
        chunk.holes.erase(hole);
        if (left)
          chunk.holes.emplace(address + size, left);
        return address;
      }
    }
  }
  const uint64_t chunk_size = RoundUp(size, kGranularity);
  if (device >= 0 && kind != MemoryKind::kHost && used_[device] + chunk_size > capacity_)
    return 0;
  uint64_t at = kPlainBase;
  for (auto& [base, chunk] : chunks_) {
    if (base - at >= chunk_size)
      break;
    at = base + chunk.size;
  }
  if (kPlainEnd - at < chunk_size)
    return 0;
  Chunk chunk;
  chunk.size = chunk_size;
  chunk.device = device;
  chunk.kind = kind;
  // Only small ones share a chunk: an allocation's neighbours are what a stray access hits.
  if (size <= kGranularity / 2)
    chunk.holes.emplace(at + size, chunk_size - size);
  chunks_.emplace(at, std::move(chunk));
  if (device >= 0 && kind != MemoryKind::kHost)
    used_[device] += chunk_size;
  return at;
}

uint64_t Memory::Allocate(uint64_t bytes, MemoryKind kind, int device, CUcontext context,
                          unsigned flags, void* pool) {
  if (!bytes || bytes > kPlainEnd - kPlainBase)
    return 0;
  std::lock_guard lock(mutex_);
  const uint64_t address = TakePlain(bytes, device, kind);
  if (!address)
    return 0;
  Allocation a;
  a.base = address;
  a.size = bytes;
  a.kind = kind;
  a.device = device;
  a.context = context;
  a.flags = flags;
  a.id = next_id_++;
  a.pool = pool;
  FillShadow(address, bytes, true);
  SetAllFlags(a);
  allocations_.emplace(address, std::move(a));
  return address;
}

void Memory::FreeLocked(std::map<uint64_t, Allocation>::iterator it) {
  const Allocation a = it->second;
  allocations_.erase(it);
  FillShadow(a.base, a.size, false);
  auto at = std::prev(chunks_.upper_bound(a.base));
  Chunk& chunk = at->second;
  const uint64_t size = RoundUp(a.size, kPlainAlignment);
  bool empty = size > kGranularity / 2;
  if (!empty) {
    auto [hole, added] = chunk.holes.emplace(a.base, size);
    if (auto next = std::next(hole);
        next != chunk.holes.end() && next->first == hole->first + hole->second) {
      hole->second += next->second;
      chunk.holes.erase(next);
    }
    if (hole != chunk.holes.begin()) {
      auto before = std::prev(hole);
      if (before->first + before->second == hole->first) {
        before->second += hole->second;
        chunk.holes.erase(hole);
      }
    }
    empty = chunk.holes.size() == 1 && chunk.holes.begin()->second == chunk.size;
  }
  if (!empty)
    return;
  for (int d = 0; d < devices_; ++d)
    SetFlags(d, at->first, at->first + chunk.size, 0);
  fallocate(plain_fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(at->first - kPlainBase), static_cast<off_t>(chunk.size));
  if (chunk.device >= 0 && chunk.kind != MemoryKind::kHost)
    used_[chunk.device] -= chunk.size;
  chunks_.erase(at);
}

bool Memory::Free(uint64_t address, unsigned kinds) {
  std::lock_guard lock(mutex_);
  auto it = allocations_.find(address);
  if (it == allocations_.end() || !(Bit(it->second.kind) & kinds))
    return false;
  FreeLocked(it);
  return true;
}

void Memory::FreeAllOf(CUcontext context) {
  std::lock_guard lock(mutex_);
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    auto here = it++;
    if (here->second.context != context)
      continue;
    if (here->second.kind == MemoryKind::kRegistered) {
      allocations_.erase(here);
      PublishOutside();
    } else if (here->second.kind != MemoryKind::kImported) {
      FreeLocked(here);
    }
  }
}

bool Memory::FindLocked(uint64_t address, Allocation* out) const {
  if (auto it = allocations_.upper_bound(address); it != allocations_.begin()) {
    --it;
    if (address - it->first < it->second.size) {
      *out = it->second;
      return true;
    }
  }
  if (auto it = mappings_.upper_bound(address); it != mappings_.begin()) {
    --it;
    const Mapping& m = it->second;
    if (address - it->first < m.size) {
      Allocation a;
      a.base = it->first;
      a.size = m.size;
      a.kind = MemoryKind::kMapped;
      a.device = m.handle->physical->device;
      a.id = m.id;
      a.physical = m.handle->physical;
      a.offset = m.offset;
      *out = std::move(a);
      return true;
    }
  }
  return false;
}

bool Memory::Find(uint64_t address, Allocation* out) const {
  std::lock_guard lock(mutex_);
  return FindLocked(address, out);
}

bool Memory::Beside(uint64_t address) const {
  constexpr uint64_t kMapped = 2 << 20;
  std::lock_guard lock(mutex_);
  const uint64_t page = address / kMapped;
  auto it = allocations_.lower_bound((page + 1) * kMapped);
  while (it != allocations_.begin()) {
    --it;
    const Allocation& a = it->second;
    const bool host = a.kind == MemoryKind::kHost || a.kind == MemoryKind::kRegistered;
    if (!host)
      return (a.base + a.size - 1) / kMapped >= page;
  }
  return false;
}

void Memory::SetSyncMemops(uint64_t address, bool on) {
  std::lock_guard lock(mutex_);
  auto it = allocations_.upper_bound(address);
  if (it != allocations_.begin() && address - std::prev(it)->first < std::prev(it)->second.size)
    std::prev(it)->second.sync_memops = on;
}

bool Memory::Accessible(uint64_t address, uint64_t size, int device, uint8_t need) const {
  if (!size)
    return true;
  if (address + size < address)
    return false;
  if (!InWindow(address, size))
    return views_[device]->Check(address, 1, need) == DeviceMemory::Verdict::kOk &&
           views_[device]->Check(address + size - 1, 1, need) == DeviceMemory::Verdict::kOk;
  const std::atomic<uint8_t>* table = views_[device]->flags;
  for (uint64_t page = (address - kWindowBase) / kPage;
       page <= (address + size - 1 - kWindowBase) / kPage; ++page)
    if ((table[page].load(std::memory_order_relaxed) & need) != need)
      return false;
  return true;
}

bool Memory::Pinned(uint64_t address, uint64_t size) const {
  std::lock_guard lock(mutex_);
  Allocation a;
  return FindLocked(address, &a) && size <= a.size - (address - a.base);
}

void Memory::SetPeer(int owner, int peer, bool on) {
  std::lock_guard lock(mutex_);
  constexpr unsigned kOwned = Bit(MemoryKind::kDevice) | Bit(MemoryKind::kGlobal);
  peer_[owner][peer] = on;
  for (auto& [base, chunk] : chunks_)
    if ((Bit(chunk.kind) & kOwned) && chunk.device == owner)
      SetFlags(peer, base, base + chunk.size, 0);
  for (auto& [base, a] : allocations_)
    if ((Bit(a.kind) & kOwned) && a.device == owner)
      SetAllFlags(a);
}

CUresult Memory::Register(uint64_t address, uint64_t size, unsigned flags, CUcontext context) {
  if (!address || !size || address + size < address)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  if (address >= kPlainBase && address < kPlainEnd)
    return CUDA_ERROR_INVALID_VALUE;
  auto next = allocations_.lower_bound(address);
  if ((next != allocations_.end() && next->first < address + size) ||
      (next != allocations_.begin() &&
       address - std::prev(next)->first < std::prev(next)->second.size))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  // Asking the kernel for residency tells whether the whole range is mapped.
  const uint64_t first = address & ~4095ull, last = RoundUp(address + size, 4096);
  std::vector<unsigned char> pages((last - first) / 4096);
  if (mincore(reinterpret_cast<void*>(first), last - first, pages.data()) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Allocation a;
  a.base = address;
  a.size = size;
  a.kind = MemoryKind::kRegistered;
  a.device = -1;
  a.context = context;
  a.flags = flags;
  a.id = next_id_++;
  allocations_.emplace(address, std::move(a));
  PublishOutside();
  return CUDA_SUCCESS;
}

CUresult Memory::Unregister(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto it = allocations_.find(address);
  if (it == allocations_.end())
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (it->second.kind != MemoryKind::kRegistered)
    return CUDA_ERROR_INVALID_VALUE;
  allocations_.erase(it);
  PublishOutside();
  return CUDA_SUCCESS;
}

void Memory::PublishOutside() {
  constexpr uint8_t kRw = DeviceMemory::kRead | DeviceMemory::kWrite;
  Intervals list;
  for (auto& [base, a] : allocations_) {
    if (a.kind != MemoryKind::kRegistered && a.kind != MemoryKind::kImported)
      continue;
    Interval i{base, base + a.size, {}};
    if (a.kind == MemoryKind::kRegistered) {
      // Pinning protects whole host pages, too.
      i.begin &= ~4095ull;
      i.end = RoundUp(i.end, 4096);
    }
    const bool read_only = a.flags & CU_MEMHOSTREGISTER_READ_ONLY;
    std::fill(i.access, i.access + devices_, read_only ? uint8_t{DeviceMemory::kRead} : kRw);
    list.push_back(i);
  }
  for (auto& [base, m] : mappings_) {
    if (InWindow(base, m.size))
      continue;
    Interval i{base, base + m.size, {}};
    std::copy(m.access, m.access + devices_, i.access);
    list.push_back(i);
  }
  std::sort(list.begin(), list.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  // Registered neighbours may share a host page.
  Intervals merged;
  for (const Interval& i : list) {
    if (!merged.empty() && i.begin < merged.back().end &&
        std::equal(i.access, i.access + devices_, merged.back().access))
      merged.back().end = std::max(merged.back().end, i.end);
    else
      merged.push_back(i);
  }
  outside_lists_.push_back(std::move(merged));
  outside_.store(&outside_lists_.back(), std::memory_order_release);
}

bool Memory::PlainFile(uint64_t address, int* fd, uint64_t* offset, uint64_t* size,
                       int* device) const {
  std::lock_guard lock(mutex_);
  Allocation a;
  if (!FindLocked(address, &a) || a.kind != MemoryKind::kDevice)
    return false;
  *fd = plain_fd_;
  *offset = a.base - kPlainBase;
  *size = a.size;
  *device = a.device;
  return true;
}

uint64_t Memory::MapImported(int fd, uint64_t offset, uint64_t size, int device,
                             CUcontext context) {
  std::lock_guard lock(mutex_);
  const uint64_t inside = offset % 4096;
  const uint64_t bytes = RoundUp(inside + size, 4096);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                  static_cast<off_t>(offset - inside));
  if (at == MAP_FAILED)
    return 0;
  Allocation a;
  a.base = reinterpret_cast<uint64_t>(at) + inside;
  a.size = size;
  a.kind = MemoryKind::kImported;
  a.device = device;
  a.context = context;
  a.id = next_id_++;
  const uint64_t base = a.base;
  allocations_.emplace(base, std::move(a));
  PublishOutside();
  return base;
}

bool Memory::UnmapImported(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto it = allocations_.find(address);
  if (it == allocations_.end() || it->second.kind != MemoryKind::kImported)
    return false;
  const uint64_t begin = address & ~4095ull;
  ReplaceByScratch(begin, RoundUp(address + it->second.size, 4096) - begin);
  allocations_.erase(it);
  PublishOutside();
  return true;
}

// --- virtual memory management ---

CUresult Memory::Create(uint64_t size, const CUmemAllocationProp& properties,
                        CUmemGenericAllocationHandle* out) {
  int device = -1;
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED || !size || size % kGranularity)
    return CUDA_ERROR_INVALID_VALUE;
  switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      device = properties.location.id;
      if (device < 0 || device >= devices_)
        return CUDA_ERROR_INVALID_DEVICE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(mutex_);
  if (device >= 0 && used_[device] + size > capacity_)
    return CUDA_ERROR_OUT_OF_MEMORY;
  auto physical = std::make_shared<Physical>();
  physical->fd = MakeFile("softgpu.vmm." + std::to_string(device), size);
  if (physical->fd < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  physical->size = size;
  physical->device = device;
  physical->properties = properties;
  auto handle = std::make_unique<Handle>();
  handle->physical = std::move(physical);
  handle->references = 1;
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(handle.get());
  handles_.emplace(*out, std::move(handle));
  if (device >= 0)
    used_[device] += size;
  return CUDA_SUCCESS;
}

CUresult Memory::Import(int fd, CUmemGenericAllocationHandle* out) {
  char link[64], name[256];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, name, sizeof name - 1);
  int device = 0;
  struct stat status {};
  if (length <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  name[length] = 0;
  if (sscanf(name, "/memfd:softgpu.vmm.%d", &device) != 1 || fstat(fd, &status) != 0)
    return CUDA_ERROR_UNKNOWN;
  std::lock_guard lock(mutex_);
  auto physical = std::make_shared<Physical>();
  physical->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (physical->fd < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  physical->size = static_cast<uint64_t>(status.st_size);
  physical->device = device < devices_ ? device : 0;
  physical->imported = true;
  physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  physical->properties.location.type =
      device >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  physical->properties.location.id = device >= 0 ? physical->device : 0;
  auto handle = std::make_unique<Handle>();
  handle->physical = std::move(physical);
  handle->references = 1;
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(handle.get());
  handles_.emplace(*out, std::move(handle));
  return CUDA_SUCCESS;
}

CUresult Memory::Export(CUmemGenericAllocationHandle handle, int* fd) {
  std::lock_guard lock(mutex_);
  auto it = handles_.find(handle);
  if (it == handles_.end())
    return CUDA_ERROR_INVALID_VALUE;
  if (!(it->second->physical->properties.requestedHandleTypes &
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_INVALID_VALUE;
  const int copy = fcntl(it->second->physical->fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  *fd = copy;
  return CUDA_SUCCESS;
}

void Memory::DropIfUnused(Handle* handle) {
  if (handle->references || handle->mappings)
    return;
  const Physical& physical = *handle->physical;
  if (physical.device >= 0 && !physical.imported)
    used_[physical.device] -= physical.size;
  handles_.erase(reinterpret_cast<CUmemGenericAllocationHandle>(handle));
}

CUresult Memory::Release(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  auto it = handles_.find(handle);
  if (it == handles_.end() || !it->second->references)
    return CUDA_ERROR_INVALID_VALUE;
  --it->second->references;
  DropIfUnused(it->second.get());
  return CUDA_SUCCESS;
}

CUresult Memory::Retain(uint64_t address, CUmemGenericAllocationHandle* out) {
  std::lock_guard lock(mutex_);
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin() || address - std::prev(it)->first >= std::prev(it)->second.size)
    return CUDA_ERROR_INVALID_VALUE;
  Handle* handle = std::prev(it)->second.handle;
  ++handle->references;
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(handle);
  return CUDA_SUCCESS;
}

CUresult Memory::Properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp* out) {
  std::lock_guard lock(mutex_);
  auto it = handles_.find(handle);
  if (it == handles_.end())
    return CUDA_ERROR_INVALID_VALUE;
  *out = it->second->physical->properties;
  return CUDA_SUCCESS;
}

CUresult Memory::Reserve(uint64_t size, uint64_t alignment, uint64_t wish, uint64_t* out) {
  if (!size || size % kGranularity || (alignment & (alignment - 1)))
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  const uint64_t align = std::max(alignment, kGranularity);
  auto take = [&](uint64_t at) {
    void* got = mmap(reinterpret_cast<void*>(at), size, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED)
      return false;
    if (got == reinterpret_cast<void*>(at))
      return true;
    munmap(got, size);  // a kernel that does not know MAP_FIXED_NOREPLACE
    return false;
  };
  uint64_t at = 0;
  if (wish && wish % align == 0 && take(wish))
    at = wish;
  if (!at) {
    uint64_t candidate = RoundUp(kReserveBase, align);
    auto it = reservations_.lower_bound(candidate);
    while (candidate < kWindowEnd && kWindowEnd - candidate >= size) {
      while (it != reservations_.end() && it->first + it->second <= candidate)
        ++it;
      if (it != reservations_.end() && it->first < candidate + size) {
        candidate = RoundUp(it->first + it->second, align);
        continue;
      }
      if (take(candidate))
        at = candidate;
      break;
    }
  }
  if (!at) {
    // Nowhere in the window: anywhere, aligned by reserving too much.
    void* got =
        mmap(nullptr, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED)
      return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t begin = reinterpret_cast<uint64_t>(got);
    at = RoundUp(begin, align);
    if (at > begin)
      munmap(got, at - begin);
    munmap(reinterpret_cast<void*>(at + size), begin + align - at);
  }
  madvise(reinterpret_cast<void*>(at), size, MADV_DONTDUMP);
  reservations_.emplace(at, size);
  *out = at;
  return CUDA_SUCCESS;
}

CUresult Memory::Unreserve(uint64_t address, uint64_t size) {
  std::lock_guard lock(mutex_);
  auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second != size)
    return CUDA_ERROR_INVALID_VALUE;
  auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + size)
    return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), size);
  reservations_.erase(it);
  return CUDA_SUCCESS;
}

CUresult Memory::Map(uint64_t address, uint64_t size, uint64_t offset,
                     CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  auto h = handles_.find(handle);
  if (h == handles_.end() || !size || size % kGranularity || address % kGranularity)
    return CUDA_ERROR_INVALID_VALUE;
  if (offset || size != h->second->physical->size)
    return CUDA_ERROR_NOT_SUPPORTED;  // a part of physical memory
  auto reserved = reservations_.upper_bound(address);
  if (reserved == reservations_.begin())
    return CUDA_ERROR_INVALID_VALUE;
  --reserved;
  if (address - reserved->first >= reserved->second ||
      size > reserved->second - (address - reserved->first))
    return CUDA_ERROR_INVALID_VALUE;
  auto next = mappings_.upper_bound(address);
  if (next != mappings_.end() && next->first < address + size)
    return CUDA_ERROR_INVALID_VALUE;
  if (next != mappings_.begin() && address - std::prev(next)->first < std::prev(next)->second.size)
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           h->second->physical->fd, 0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  Mapping m;
  m.size = size;
  m.handle = h->second.get();
  m.id = next_id_++;
  ++m.handle->mappings;
  mappings_.emplace(address, m);
  if (!InWindow(address, size))
    PublishOutside();
  return CUDA_SUCCESS;
}

CUresult Memory::Unmap(uint64_t address, uint64_t size) {
  std::lock_guard lock(mutex_);
  // The range lies in a reservation and cuts no mapping; parts of it may be unmapped already.
  auto reserved = reservations_.upper_bound(address);
  if (!size || size % kGranularity || address % kGranularity || reserved == reservations_.begin() ||
      address + size - std::prev(reserved)->first > std::prev(reserved)->second)
    return CUDA_ERROR_INVALID_VALUE;
  auto first = mappings_.lower_bound(address);
  if (first != mappings_.begin() &&
      address - std::prev(first)->first < std::prev(first)->second.size)
    return CUDA_ERROR_INVALID_VALUE;
  auto last = first;
  while (last != mappings_.end() && last->first < address + size) {
    if (last->second.size > address + size - last->first)
      return CUDA_ERROR_INVALID_VALUE;
    ++last;
  }
  // Take the permission first: kernels that run stop at their next access.
  if (InWindow(address, size))
    for (int d = 0; d < devices_; ++d)
      SetFlags(d, address, address + size, 0);
  for (auto it = first; it != last;) {
    Handle* handle = it->second.handle;
    const uint64_t begin = it->first, bytes = it->second.size;
    it = mappings_.erase(it);
    ReplaceByScratch(begin, bytes);
    --handle->mappings;
    DropIfUnused(handle);
  }
  if (!InWindow(address, size))
    PublishOutside();
  return CUDA_SUCCESS;
}

CUresult Memory::SetAccess(uint64_t address, uint64_t size, const CUmemAccessDesc* descriptors,
                           size_t count) {
  if (!descriptors || !count)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto it = mappings_.find(address);
  uint64_t at = address;
  for (auto m = it; m != mappings_.end() && m->first == at && at < address + size; ++m)
    at += m->second.size;
  if (!size || at != address + size)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& d = descriptors[i];
    uint8_t flags = 0;
    switch (d.flags) {
      case CU_MEM_ACCESS_FLAGS_PROT_NONE:
        break;
      case CU_MEM_ACCESS_FLAGS_PROT_READ:
        flags = DeviceMemory::kRead;
        break;
      case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
        flags = DeviceMemory::kRead | DeviceMemory::kWrite;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (d.location.type == CU_MEM_LOCATION_TYPE_HOST ||
        d.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      for (auto m = it; m != mappings_.end() && m->first < address + size; ++m)
        m->second.host_access = flags;
      continue;
    }
    if (d.location.type != CU_MEM_LOCATION_TYPE_DEVICE || d.location.id < 0 ||
        d.location.id >= devices_)
      return CUDA_ERROR_INVALID_VALUE;
    for (auto m = it; m != mappings_.end() && m->first < address + size; ++m)
      m->second.access[d.location.id] = flags;
    if (InWindow(address, size))
      SetFlags(d.location.id, address, address + size, flags);
  }
  if (!InWindow(address, size))
    PublishOutside();
  return CUDA_SUCCESS;
}

CUresult Memory::GetAccess(uint64_t address, const CUmemLocation& location,
                           unsigned long long* flags) {
  std::lock_guard lock(mutex_);
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin() || address - std::prev(it)->first >= std::prev(it)->second.size)
    return CUDA_ERROR_INVALID_VALUE;
  const Mapping& m = std::prev(it)->second;
  uint8_t access = 0;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (location.id < 0 || location.id >= devices_)
      return CUDA_ERROR_INVALID_DEVICE;
    access = m.access[location.id];
  } else {
    access = m.host_access;
  }
  *flags = access & DeviceMemory::kWrite  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : access & DeviceMemory::kRead ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                          : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace gpurecover::softgpu
