// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The agent's side of a standby process: a second process with a context of its own, which maps the
// app's memory at the same addresses and makes the driver calls that the app's own driver no longer
// makes.
//
// Two ways lead to it. The control socket carries what sets it up, with descriptors; one mutex, one
// message and its answer at a time. Lanes carry the app's calls: shared memory, one lane and one
// thread of the standby's for each thread of the app, so that a call that waits holds up nobody
// else, and what is per-thread in the driver (the per-thread default stream) stays so.
namespace gpurecover::recovery {

// What a question to the standby came to. `sent` false: the standby is gone, broken or too slow; it
// has been killed, and every later question gets the same answer.
struct Answer {
  bool sent = false;
  std::int32_t code = 0;  // CUresult of the standby's driver
  std::string reason;     // why it was not sent, or the standby's words on a code that is not 0
  bool ok() const { return sent && code == 0; }
};

struct StandbySetup {
  std::string device_uuid;          // 16 bytes; the device to use
  std::int32_t device = 0;          // its ordinal in the app, which is how the app's calls name it
  std::uint32_t context_flags = 0;  // of the app's context
  std::uint64_t arena = 0;          // the range to reserve, bytes; 0: none
  std::uint64_t arena_size = 0;
};

// A launch, self-contained. Handles are the app's.
struct RemoteLaunch {
  std::uint64_t function = 0;
  std::uint64_t stream = 0;  // with CU_STREAM_LEGACY and CU_STREAM_PER_THREAD as themselves
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t shared_bytes = 0;
  bool cooperative = false;           // by cuLaunchCooperativeKernel
  std::vector<std::byte> attributes;  // CUlaunchAttribute[], none that holds a handle or pointer
  std::vector<std::byte> arguments;   // packed, as by CU_LAUNCH_PARAM_BUFFER_POINTER
  // After the launch the standby writes `marker_value` to `marker` in stream order; 0: no marker.
  std::uint64_t marker = 0;
  std::uint32_t marker_value = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(function);
    a(stream);
    for (auto* three : {grid, block}) {
      a(three[0]);
      a(three[1]);
      a(three[2]);
    }
    a(shared_bytes);
    a(cooperative);
    a(attributes);
    a(arguments);
    a(marker);
    a(marker_value);
  }
};

// A re-execution with the last check (recovery::replay), done wholly in the standby.
struct RemoteReplay {
  RemoteLaunch launch;
  std::vector<std::uint64_t> begins;  // of the ranges that it may write
  std::vector<std::uint64_t> ends;
  std::uint64_t seed = 0;
  // Where the contents of the ranges are to be saved (Keep of replay.h), and the word of shared
  // host memory that is given `value` when they are there; 0: if the replay ends with the standby,
  // they are lost.
  std::uint64_t keep = 0;
  std::uint64_t keep_word = 0;
  std::uint32_t keep_value = 0;
  template <class Archive>
  void fields(Archive& a) {
    a(launch);
    a(begins);
    a(ends);
    a(seed);
    a(keep);
    a(keep_word);
    a(keep_value);
  }
};
struct ReplayAnswer {
  bool sent = false;
  bool recovered = false;
  bool refused = false;
  std::int32_t code = 0;  // what the standby's driver said when it did not recover
  std::string reason;
};

// All functions may be called from any thread and make no CUDA call. None of them waits for ever: a
// standby that does not answer within `patience` of a control question, or that ends, is dead; the
// calls on lanes wait as long as the standby lives, since the work they wait for is the app's.
class StandbyLink {
 public:
  // Takes over the descriptor (a connected SOCK_STREAM Unix socket to a standby) and waits for its
  // hello. Null with the reason if none came.
  static std::unique_ptr<StandbyLink> open(int socket, std::chrono::milliseconds patience,
                                           std::string& error);
  ~StandbyLink();  // as kill()
  StandbyLink(const StandbyLink&) = delete;
  StandbyLink& operator=(const StandbyLink&) = delete;

  std::int32_t pid() const;
  bool alive() const;
  // Ends the process and waits until the kernel has let go of it: afterwards nothing of it runs, on
  // any device. Lanes that wait get `sent` false.
  void kill();
  // In a forked child: forgets everything without a word to the standby.
  void abandon();

  // --- control ---
  // Makes the context. May be sent while the app still runs (warm).
  Answer setup(const StandbySetup& setup);
  // The same in two parts, between which memory can be sent (map_memory, map_host), to be mapped
  // once the context is there. The second waits for all of it and says what went wrong; what each
  // part took goes into `times`, if it is given.
  struct SetupTimes {
    double context_ms = 0;
    double map_ms = 0;
  };
  Answer begin_setup(const StandbySetup& setup);
  Answer finish_setup(SetupTimes* times = nullptr);
  // Imports a descriptor of cuMemCreate memory and maps it at its address, accessible to the
  // device.
  Answer map_memory(std::uint64_t address, std::uint64_t size, int fd);
  // Several, without waiting for each. The first failure's answer; the rest may be mapped or not.
  struct Memory {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    int fd = -1;
  };
  Answer map_memories(std::span<const Memory> memories);
  Answer unmap_memory(std::uint64_t address, std::uint64_t size);
  // Maps a shared file at the same address and registers it with `flags` of cuMemHostRegister.
  Answer map_host(std::uint64_t address, std::uint64_t size, std::uint32_t flags, int fd);
  Answer unmap_host(std::uint64_t address, std::uint64_t size);
  // Loads an image as the module or library that the app knows as `handle`. Options of the app's
  // load call do not travel.
  Answer load_module(std::uint64_t handle, std::span<const std::byte> image);
  Answer load_library(std::uint64_t handle, std::span<const std::byte> image);
  // Where a variable of a loaded module or library lies in the standby.
  Answer find_global(std::uint64_t owner, bool library, const std::string& name,
                     std::uint64_t& address, std::uint64_t& size);

  // --- lanes: the calling thread's own ---
  // An encoded call (call_codec.h); `results` for store_results.
  Answer call(std::span<const std::byte> encoded, std::vector<std::byte>& results);
  Answer launch(const RemoteLaunch& launch);
  ReplayAnswer replay(const RemoteReplay& replay);
  // Loads what a launch of the function needs before there is one; of function 0, what a replay
  // needs. Changes no memory of the app's.
  Answer prepare(std::uint64_t function);
  // Copies in stream order between the standby's memory and ordinary memory of this process, which
  // the standby does not share; return when the copy is done. Pieces go through the lane's window.
  Answer copy_in(std::uint64_t device, const void* host, std::uint64_t size, std::uint64_t stream);
  Answer copy_out(void* host, std::uint64_t device, std::uint64_t size, std::uint64_t stream);
  // Between memory that the standby has under the same addresses (device and shared host memory).
  // Only enqueued if `async`.
  Answer copy(std::uint64_t to, std::uint64_t from, std::uint64_t size, std::uint64_t stream,
              bool async);

 private:
  StandbyLink();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpurecover::recovery
