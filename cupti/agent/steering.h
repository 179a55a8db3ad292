// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cupti.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cupti/driver_api/driver.h"
#include "cupti/driver_api/driver_api.h"
#include "idempotency/memory_map.h"
#include "recovery/arena.h"

namespace gpurecover::agent {

// A piece of device memory that another process can map at the same address.
struct SteeredMemory {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  int device = 0;
  CUmemGenericAllocationHandle handle = 0;
};
// Pinned host memory that is a shared file, mapped at `address`. `flags`: of cuMemHostRegister.
struct SharedHost {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint32_t flags = 0;
  int fd = -1;
};

// One call of the app's that is dealt with, from its enter to its exit callback: what the app
// passed, to be put back, and what the driver is given instead.
struct SteeredCall {
  std::uint32_t correlation = 0;
  bool active = false;
  std::uint64_t saved[3] = {0, 0, 0};
  CUdeviceptr device_out = 0;
  std::size_t pitch_out = 0;
  void* host_out = nullptr;
  CUmemAllocationProp properties{};
};

// Makes the app's memory where a second process can map it too (DESIGN section 7): the app's
// allocation calls are made to do nothing in the driver and are answered with memory of cuMemCreate
// inside one arena; pinned host memory comes from shared files. What the app asks about such memory
// is answered as for plain memory. docs/steering.md says what a program may notice.
//
// Thread-safe. No lock is held across a driver call. Whatever fails inside, the app gets memory
// from the driver as without steering, and `obstacle` says that it cannot be carried over.
class Steering {
 public:
  // Told of every chunk and host block made or dropped; called without locks held. After `fence`
  // memory is in this process's name only, so a failure of `map_…` fails the app's allocation.
  struct Sink {
    virtual ~Sink() = default;
    virtual bool map_memory(const SteeredMemory& memory, std::string& error) = 0;
    virtual void unmap_memory(const SteeredMemory& memory) = 0;
    virtual bool map_host(const SharedHost& host, std::string& error) = 0;
    virtual void unmap_host(const SharedHost& host) = 0;
    // Waits for all work on the app's memory.
    virtual CUresult synchronize() = 0;
  };
  // Told, before a fault, of every chunk, mapping and host block made or dropped, so that another
  // process can be given a share of it beforehand. Called without locks held, by the app's threads.
  struct Watcher {
    virtual ~Watcher() = default;
    // Made and mapped; not in the app's hands yet.
    virtual void made(const SteeredMemory& memory) noexcept = 0;
    virtual void made(const SharedHost& host) noexcept = 0;
    // About to be unmade: its handle or file is not to be touched any more afterwards.
    virtual void gone(std::uint64_t address) noexcept = 0;
    // There is no room: whatever is gone already and still has a share elsewhere loses it before
    // this returns. Whether that may have made room since the last try.
    virtual bool let_go() noexcept = 0;
    // Bytes of a device that are freed for the app and not yet for the device.
    virtual std::uint64_t outstanding(int device) noexcept = 0;
  };
  struct Options {
    std::uint64_t arena = 0x5500'0000'0000;
    std::uint64_t arena_size = std::uint64_t{1} << 38;
    // For pinned host memory; below no sanitizer's and no program's own part of the address space.
    std::uint64_t host_arena = 0x5670'0000'0000;
    std::uint64_t host_arena_size = std::uint64_t{1} << 35;
  };
  using Notice = std::function<void(const std::string&)>;  // one line for the user

  // `memory` outlives this; it is only read.
  Steering(const idempotency::MemoryMap& memory, Notice notice);
  ~Steering();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  // Before the first callback. Takes a copy of the functions: these are the process's own driver's,
  // also when the agent's are replaced later.
  void start(const driver_api::Driver& driver, const Options& options);
  void enable(bool on) { enabled_.store(on, std::memory_order_release); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // --- the app's calls, in their callbacks ---
  // `capturing`: the call's stream captures; of a call without one, that any does.
  // `state.active` afterwards: `leave` is to be called at
  // the exit, before anybody else looks at the parameters or at the result.
  void enter(SteeredCall& state, const driver_api::Call& call, const CUpti_CallbackData& data,
             bool capturing);
  void leave(SteeredCall& state, const driver_api::Call& call, const CUpti_CallbackData& data,
             bool per_thread, CUresult& result);
  // At the exit of any call that has a hook here, steered or not: notes what it did, and corrects
  // what the driver says about steered memory.
  void after(const driver_api::Call& call, const CUpti_CallbackData& data, CUresult& result);
  // A context is gone, and what was allocated in it.
  void context_gone(CUcontext context);

  // Fills the gaps of an allocation that begins at steered memory; false if it does not.
  bool describe(idempotency::Allocation& allocation) const;

  // Memory for ourselves, as the app would get it: the driver's codes.
  CUresult allocate(CUdeviceptr* address, std::size_t size);
  CUresult free(CUdeviceptr address);

  // --- takeover ---
  // All chunks, cached ones too, and the app's own mappings of cuMemCreate memory.
  std::vector<SteeredMemory> memory() const;
  std::vector<SharedHost> hosts() const;
  // Why device or host memory that lives now cannot be carried over; empty if all can.
  std::string obstacle() const;
  // After a fault. Memory that is allocated from now on is made, not mapped, and told to the sink.
  // Nothing of the program's may write to the memory that there is any more: where it is known that
  // nothing runs, `drained`, it stays mapped here until it is unmade (30 us for each piece on an
  // H200); else all of it is unmapped, so that whatever still runs stops. The handles stay.
  bool fence(bool drained, std::string& error);
  bool fenced() const { return fenced_.load(std::memory_order_acquire); }
  // From now on the driver's answers to steered calls mean nothing, and waiting is the sink's.
  void set_taken_over(bool on) { taken_over_.store(on, std::memory_order_release); }
  void set_sink(Sink* sink) { sink_.store(sink, std::memory_order_release); }
  // Outlives this, or is taken back (null) while nobody calls.
  void set_watcher(Watcher* watcher) { watcher_.store(watcher, std::memory_order_release); }
  // A descriptor of the piece's memory, the caller's to close; -1 if there is none. Before and
  // after a fault.
  int export_fd(const SteeredMemory& memory) const;
  // A copy of the descriptor behind pinned memory, the caller's to close; -1 if the app has closed
  // it. Of a block that lives.
  int copy_fd(const SharedHost& host) const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Arena = recovery::Arena;

  // What the arena does not know of a block.
  struct Meta {
    CUcontext context = nullptr;
    int device = 0;
    std::uint64_t id = 0;         // buffer id
    CUmemoryPool pool = nullptr;  // stream-ordered
    bool stream_ordered = false;
    bool freeing = false;  // for the app it is free already
    int sync_memops = 0;
  };
  struct HostMeta {
    CUcontext context = nullptr;
    std::uint32_t flags = 0;  // as the app gave them
    std::uint64_t id = 0;
    bool freeing = false;
  };
  struct HostFile {
    SharedHost host;
    std::uint64_t inode = 0, device = 0;  // to see whether the descriptor is still ours
    CUcontext context = nullptr;
  };
  // Freed in stream order: goes when the event has passed.
  struct Deferred {
    std::uint64_t address = 0;
    std::uint64_t room = 0;
    std::uint64_t stream = 0;  // its unique id
    CUcontext context = nullptr;
    CUevent event = nullptr;
  };
  struct Created {  // by the app's cuMemCreate
    std::uint64_t size = 0;
    int device = -1;
  };
  struct Mapping {  // the app's own
    std::uint64_t size = 0;
    int device = -1;
    bool whole = false;                       // of a whole allocation of device memory
    bool here = true;                         // in this process too: the fence has not unmapped it
    CUmemGenericAllocationHandle handle = 0;  // retained by us; 0 if that failed
  };
  enum class State : std::uint8_t { kUntried, kOn, kOff };
  // No code of the driver's: the arena cannot serve this one, the driver may.
  static constexpr CUresult kNotHere = static_cast<CUresult>(1023);  // within the enumeration

  bool ready();
  std::optional<int> device_of(CUcontext context, CUcontext current);
  std::uint64_t total_memory(int device);

  CUresult take(std::uint64_t size, const Meta& meta, std::uint64_t& address);
  CUresult make(Arena::Chunk& chunk);
  void unmake(const std::vector<Arena::Chunk>& chunks);
  bool drain(int device);
  std::set<int> reaching(int device) const;  // mutex_ is held
  CUresult set_access(const Arena::Chunk& chunk, const std::set<int>& devices,
                      CUmemAccess_flags flags);
  CUresult widen(int device);
  CUresult allocate_device(CUdeviceptr* out, std::uint64_t size, Meta meta, CUstream stream);
  CUresult free_device(std::uint64_t address, CUcontext current);
  CUresult free_in_order(std::uint64_t address, CUstream stream, CUcontext current);
  void finish_free(std::uint64_t address);
  std::optional<Meta> begin_free(std::uint64_t address);
  void cancel_free(std::uint64_t address);
  CUresult synchronize(CUcontext context, CUcontext current);
  bool settle_deferred(bool wait);
  std::optional<std::uint64_t> reuse(std::uint64_t stream, std::uint64_t size, const Meta& meta);

  bool allocate_host(void** out, std::uint64_t size, std::uint32_t flags, CUcontext context);
  CUresult free_host(std::uint64_t address, CUcontext current);
  bool make_host(const Arena::Chunk& chunk, std::uint32_t flags, CUcontext context);
  void unmake_host(const std::vector<Arena::Chunk>& chunks);
  static bool ours(const HostFile& file);
  Watcher* watcher() const { return watcher_.load(std::memory_order_acquire); }

  CUresult after_map(const void* params);
  void after_unmap(const void* params);
  bool unmapped_by_fence(const void* params) const;
  CUresult after_peer(CUcontext context, CUcontext peer, bool enabled);
  bool steers(CUmemoryPool pool, int device);
  // The attribute of steered memory as plain memory has it, into `value`. kNotOurs: what the driver
  // said is right.
  // kNone: plain memory has no such value. kNobody: nothing is allocated there.
  enum class Said : std::uint8_t { kNotOurs, kValue, kNone, kNobody };
  static Said nobodys(CUpointer_attribute attribute, bool mapped, void* value);
  Said attribute(CUpointer_attribute attribute, std::uint64_t address, void* value) const;
  bool steered_address(std::uint64_t address) const;
  void say_once(std::atomic<bool>& said, const std::string& text);

  const idempotency::MemoryMap& memory_;
  const Notice notice_;
  driver_api::Driver driver_{};
  Options options_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> fenced_{false};
  std::atomic<bool> taken_over_{false};
  std::atomic<Sink*> sink_{nullptr};
  std::atomic<Watcher*> watcher_{nullptr};
  std::atomic<State> state_{State::kUntried};
  std::atomic<bool> capturing_{false};  // some stream captures: nothing may be waited for
  std::once_flag reserving_;
  std::atomic<bool> said_full_{false}, said_ipc_{false}, said_host_{false};
  std::atomic<std::int64_t> arrays_{0};

  mutable std::mutex mutex_;
  std::set<std::uint64_t> left_mapped_;      // chunks, by the fence
  std::optional<Arena> arena_, host_arena_;  // there once `state_` is kOn
  std::map<std::uint64_t, Meta> metas_;
  std::map<std::uint64_t, HostMeta> host_metas_;
  std::map<std::uint64_t, HostFile> files_;
  std::vector<Deferred> deferred_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<CUmemGenericAllocationHandle, Created> created_;
  std::map<CUcontext, int> devices_;
  std::map<int, std::uint64_t> totals_;
  // Who reaches whom: contexts, and their devices; then devices, by a pool's access.
  std::map<std::pair<CUcontext, CUcontext>, std::pair<int, int>> peers_;
  std::set<std::pair<int, int>> pool_peers_;
  std::map<CUmemoryPool, int> pools_;  // the app's, of device memory that is not shareable
  std::uint64_t next_id_ = std::uint64_t{1} << 32;  // the driver's own are small
};

}  // namespace gpurecover::agent
