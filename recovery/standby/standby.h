// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cupti/driver_api/device_ops.h"
#include "cupti/protocol/channel.h"
#include "cupti/protocol/standby.h"
#include "recovery/call_codec.h"
#include "recovery/replay.h"
#include "recovery/standby/objects.h"
#include "recovery/standby/standby_driver.h"
#include "recovery/standby_link.h"

namespace gpurecover::recovery {

// What an operation came to, in the words of the driver.
struct Outcome {
  CUresult code = CUDA_SUCCESS;
  std::string reason;  // of a code that is not success
};

// Prepared libffi calls; one cache for each thread.
class Calls;

// The standby's work, without its process: what it does for control messages (one thread) and for
// lane requests (any thread, one at a time each). Nothing it is sent makes it do anything
// undefined, but for what the app's own call would have made the driver do.
class Standby {
 public:
  explicit Standby(const StandbyDriver& driver)
      : driver_(driver), ops_(driver.common), replay_buffers_(driver_.common) {}
  ~Standby();

  // One control message but kAddLane. Takes over the frame's descriptor.
  protocol::StandbyAnswer control(protocol::Frame& frame);

  // One lane request; `window` is the lane's. Results or the reason are put into `answer`.
  struct LaneThread {
    LaneThread();
    ~LaneThread();
    std::byte* window = nullptr;
    bool window_registered = false;
    bool current = false;  // the context, on this thread
    std::unique_ptr<Calls> calls;
  };
  CUresult serve(LaneThread& lane, std::uint32_t type, std::span<const std::byte> payload,
                 std::vector<std::byte>& answer);
  // When the lane ends.
  void leave(LaneThread& lane);

 private:
  Outcome setup(const protocol::Setup& setup);
  // In a thread of its own, so that memory can be received meanwhile.
  Outcome begin_setup(const protocol::Setup& setup);
  Outcome finish_setup(protocol::StandbyAnswer& answer);
  Outcome prepare(std::uint64_t function);
  Outcome rehearse();
  Outcome map_memory(const protocol::MemoryRange& range, int fd);
  Outcome unmap_memory(const protocol::MemoryRange& range);
  Outcome map_host(const protocol::MemoryRange& range, int fd);
  Outcome unmap_host(const protocol::MemoryRange& range);
  Outcome load_image(const protocol::ImageLoad& load, bool library, int fd);
  Outcome find_global(const protocol::FindGlobal& wanted, protocol::StandbyAnswer& answer);

  Outcome call(LaneThread& lane, const DecodedCall& call, std::vector<std::byte>& results);
  Outcome launch(const RemoteLaunch& launch);
  Outcome launch_cooperative(const RemoteLaunch& launch, CUfunction function, CUstream stream);
  Outcome replay(const RemoteReplay& replay, protocol::ReplayResult& result);
  Outcome copy(LaneThread& lane, protocol::LaneRequest type, const protocol::LaneCopy& copy);

  Outcome stream_of(std::uint64_t number, CUstream& stream);
  Outcome function_of(std::uint64_t number, CUfunction& function);
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  bool inside_arena(std::uint64_t address, std::uint64_t size) const;
  Outcome failed(CUresult code, const std::string& what) const;

  const StandbyDriver& driver_;
  driver_api::DeviceOps ops_;
  std::mutex replay_mutex_;
  ReplayBuffers replay_buffers_;
  Objects objects_;

  // Written by setup before ready_, then only read.
  std::atomic<bool> ready_{false};
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  std::int32_t app_device_ = 0;
  std::uint64_t arena_ = 0;
  std::uint64_t arena_size_ = 0;

  // Of the control thread: the setup under way, and what came meanwhile.
  std::thread setting_up_;
  Outcome setup_outcome_;  // of that thread, until it is joined
  double setup_ms_ = 0;    // the same
  struct Queued {
    protocol::MemoryRange range;
    bool host = false;
    int fd = -1;
  };
  std::vector<Queued> queue_;

  struct Mapping {
    std::uint64_t size = 0;
    bool reserved = false;  // outside the arena: its addresses are reserved for it alone
  };
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<std::uint64_t, std::uint64_t> host_ranges_;
};

}  // namespace gpurecover::recovery
