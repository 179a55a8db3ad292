// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cupti/agent/image_store.h"
#include "cupti/agent/kernel_table.h"
#include "cupti/agent/objects.h"
#include "cupti/driver_api/driver.h"
#include "cupti/driver_api/driver_api.h"
#include "recovery/launch_log.h"
#include "recovery/standby_link.h"

namespace gpurecover::agent {

// A variable of a module as it lies in the app's context. Never freed: records of kernels point to
// it.
struct GlobalVariable {
  ObjectKey owner;   // the module or library by which it was found
  std::string name;  // mangled
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  bool owner_known = false;  // the owner was an object of the app's when the variable was found

  // What a fresh load of its module would have to be given for it.
  enum class State : std::uint8_t {
    kInitial,  // nothing: it holds its initial value
    kTaking,   // a thread takes its first shadow
    kHeld,     // the shadow, with what is under way in streams done to it
    kLost,     // nobody knows
  };
  std::atomic<State> state{State::kInitial};
  std::atomic<bool> claimed{false};  // a launch that writes it is being issued
  std::atomic<bool> gone{false};     // its module was unloaded
  // The program has its address, and may keep it anywhere. False: it was asked for by the call by
  // which the runtime registers every variable, which uses it for copies; and it has been seen in
  // nothing that went to the device.
  std::atomic<bool> taken{false};
  // By whoever has claimed it:
  CUdeviceptr shadow = 0;
  recovery::StreamLog* last = nullptr;  // of the last launch that writes it
};

// What launches of one kernel do to variables; see Kernel::globals.
struct GlobalsEffect {
  std::vector<GlobalVariable*> writes;  // at every launch
  // It may write through addresses that nobody follows: then also whatever the host has an address
  // of.
  bool wild = false;
  // Bytes of the parameter block where addresses stand that it writes through: offset and size.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pointers;
  std::string obstacle;  // why a process that has launched it is not taken over; empty: it may be
};

// The variables of modules (`__device__`, `__constant__`): they live in the context and are lost
// with it, so what may have changed them is followed by a copy of the variable in memory that
// outlives the context, its shadow. A takeover gives the shadows to the freshly loaded modules.
//
// Assumed: kernels reach the variables of other modules only by addresses that the host has asked
// for.
//
// Thread-safe. No lock is held across a driver call.
class Globals {
 public:
  struct Parts {
    driver_api::Driver& driver;
    ImageStore& images;
    const Objects& objects;
    // Device memory that a standby can map; its codes.
    std::function<CUresult(CUdeviceptr*, std::size_t)> allocate;
    std::function<void(CUdeviceptr)> free;
    // Wait for the work of a stream, as long as that is sensible.
    std::function<CUresult(CUstream)> settle;
    std::function<CUresult(recovery::StreamLog&)> wait_for;
    // False: nobody will ever need a shadow any more.
    std::function<bool()> needed;
    // DeviceOps::copy_each; of no entries, whether it can be used.
    std::function<CUresult(CUstream, CUdeviceptr, std::uint32_t)> copy_each;
  };
  explicit Globals(Parts parts);
  ~Globals();

  // Of (c) in the words of a launch that nothing is known of: all writable variables of its image,
  // up to so many bytes together.
  static constexpr std::uint64_t kMaxImageBytes = 16 << 20;

  // --- the app's calls, in their callbacks ---
  // The app has been told where a variable lies; `managed`: it may then use it without any call;
  // `by_runtime`: it was asked as the runtime asks for every variable of its images.
  void note_address(ObjectKey owner, const char* name, std::uint64_t address, std::uint64_t size,
                    bool managed, bool by_runtime);
  // The program copies its memory, which may not be there, to the device: addresses of variables in
  // it, at multiples of 8, are taken from now on. Larger blocks than a table of
  // pointers is are not searched.
  static constexpr std::size_t kMaxSearched = 1 << 20;
  void look_for_addresses_at(const void* host, std::size_t size);
  // Whether the bytes hold an address that means something else in the standby.
  bool holds_moved(std::span<const std::byte> bytes) const;
  // Puts the standby's addresses in the place of the app's, in the arguments of a launch.
  void translate_arguments(std::span<std::byte> arguments) const;
  // A module or library is unloaded.
  void note_unload(std::uint64_t owner);

  // Before a launch on a stream that does not capture: the variables that it may write are ready to
  // be copied, and `out` has them, claimed until `release`. `arguments`: the packed block; empty if
  // it could not be read.
  void begin_launch(const Kernel& kernel, std::span<const std::byte> arguments, CUstream stream,
                    recovery::StreamLog& log, std::vector<GlobalVariable*>& out) {
    const GlobalsEffect* effect = kernel.globals.load(std::memory_order_acquire);
    if (effect == nullptr) [[unlikely]] {
      effect = &effect_of(kernel);
    }
    if (effect->writes.empty() && taken_count_.load(std::memory_order_relaxed) == 0) [[likely]] {
      return;
    }
    claim_all(*effect, arguments, stream, log, out);
  }
  // The driver has taken a launch.
  void launched(const Kernel& kernel) {
    const GlobalsEffect* effect = kernel.globals.load(std::memory_order_relaxed);
    if (effect != nullptr && !effect->obstacle.empty() &&
        !has_obstacle_.load(std::memory_order_relaxed)) [[unlikely]] {
      count_obstacle(effect->obstacle);
    }
  }
  // Copies them to their shadows, behind the launch in its stream and before its marker.
  void copy(std::span<GlobalVariable* const> variables, CUstream stream);
  static void release(std::vector<GlobalVariable*>& variables);
  // What the host has done on a stream may have written [begin, end): the shadows follow. Returns
  // an error of the work itself.
  CUresult after_write(std::uint64_t begin, std::uint64_t end, CUstream stream);
  // As after_write, for a launch that was not followed while it was issued.
  CUresult after_launch(const Kernel& kernel, std::span<const std::byte> arguments,
                        CUstream stream);

  // --- takeover ---
  // Why a takeover would lose content; empty if it would not.
  std::string obstacle() const;
  // The other process as it is needed here.
  struct Standby {
    std::function<recovery::Answer(ObjectKey)> ensure;
    std::function<recovery::Answer(const GlobalVariable&, std::uint64_t& address,
                                   std::uint64_t& size)>
        find;
    std::function<recovery::Answer(std::uint64_t to, std::uint64_t from, std::uint64_t size)> copy;
  };
  // Loads the modules whose variables are known, in the order in which the app did, and gives the
  // variables their content. Why that cannot be; empty: done.
  // A variable whose address the program cannot have may lie elsewhere from now on.
  std::string restore(const Standby& standby);
  // Where [address, address + size) lies in the standby, if it is in a variable.
  std::uint64_t translate(std::uint64_t address, std::uint64_t size) const;
  // The address by which the app knows a variable; false if it does not.
  bool known(ObjectKey owner, std::string_view name, std::uint64_t& address,
             std::uint64_t& size) const;
  // Whether an address of the standby's is one that the app knows as something else.
  bool collides(std::uint64_t address, std::uint64_t size) const;
  // Brings the shadows of what a launch may write up to date after the standby has done it.
  std::string refresh(const Standby& standby, const Kernel& kernel,
                      std::span<const std::byte> arguments);

 private:
  const GlobalsEffect& effect_of(const Kernel& kernel);
  bool copy_together(std::span<GlobalVariable* const> variables, CUstream stream);
  std::unique_ptr<GlobalsEffect> make_effect(const Kernel& kernel);
  void add_own_variables(const Kernel& kernel, GlobalsEffect& effect);
  GlobalVariable* record(ObjectKey owner, std::string_view name, std::uint64_t address,
                         std::uint64_t size);
  void affected(const GlobalsEffect& effect, std::span<const std::byte> arguments,
                std::vector<GlobalVariable*>& out) const;
  void claim_all(const GlobalsEffect& effect, std::span<const std::byte> arguments, CUstream stream,
                 recovery::StreamLog& log, std::vector<GlobalVariable*>& out);
  bool claim(GlobalVariable& variable);
  void take_first(GlobalVariable& variable, CUstream stream);
  bool has_shadow(GlobalVariable& variable);
  CUresult copy_written(GlobalVariable& variable, std::uint64_t begin, std::uint64_t end,
                        CUstream stream);
  void count_obstacle(const std::string& why);
  void take(GlobalVariable* variable);  // mutex_ is held
  void take_addresses_in(std::span<const std::byte> bytes);
  // Of each word that may be in a variable; until it returns true.
  template <class F>
  bool for_each_candidate(std::span<const std::byte> bytes, F&& f) const;

  const Parts parts_;
  std::atomic<std::size_t> taken_count_{0};
  std::atomic<std::size_t> untaken_{0};  // recorded by `by_runtime`, ever
  // Between which all variables lie.
  std::atomic<std::uint64_t> lowest_{~std::uint64_t{0}};
  std::atomic<std::uint64_t> highest_{0};
  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, GlobalVariable*> by_address_;
  std::vector<GlobalVariable*> taken_;  // whose address the host knows; sorted by address
  // Of the standby at hand: variables that lie elsewhere, by the address that the app knows.
  struct Moved {
    std::uint64_t size = 0;
    std::uint64_t to = 0;
  };
  std::map<std::uint64_t, Moved> moved_;
  std::vector<std::unique_ptr<GlobalVariable>> all_;
  std::vector<std::unique_ptr<GlobalsEffect>> effects_;
  std::string obstacle_;  // the first
  std::atomic<bool> has_obstacle_{false};
  // Lists of copies that lie in device memory, by their content. A vendor's module may have dozens
  // of variables, all of which each launch of its kernels may write.
  static constexpr std::size_t kMaxLists = 256;
  std::mutex lists_mutex_;
  std::map<std::vector<std::uint64_t>, CUdeviceptr> lists_;
};

// The device memory that a successful copy or set may have written, [begin, end), by its row; 0, 0
// for none, and for calls that are not followed.
std::pair<std::uint64_t, std::uint64_t> written_by(const driver_api::Call& call,
                                                   const void* params);

}  // namespace gpurecover::agent
