// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cupti/agent/image_store.h"
#include "cupti/agent/session.h"
#include "cupti/driver_api/driver.h"
#include "idempotency/argument_bytes.h"
#include "idempotency/verdict.h"

namespace gpurecover::agent {

struct GlobalsEffect;

// Where the variables of a kernel's module lie in its context, as far as its summary asks.
class ModuleSymbols : public idempotency::SymbolRanges {
 public:
  std::optional<idempotency::Range> find(std::string_view name) const override;
  std::vector<std::pair<std::string, idempotency::Range>> ranges;
};

// Everything that stays the same from launch to launch of one kernel in one context. Immutable once
// published, but for the atomics. Never freed: a launch may still look at one whose module goes.
struct Kernel {
  std::uint32_t row = 0;  // in the shared page
  std::string symbol;
  std::string name;  // base name, as rules and plans know it
  std::vector<idempotency::ArgumentSlot> layout;
  std::uint32_t param_bytes = 0;
  bool gaps = true;  // the layout may leave bytes of the block out
  std::shared_ptr<const idempotency::KernelSummary> summary;  // null: see unknown_reason
  std::shared_ptr<const idempotency::KernelSummary> declared;
  std::string unknown_reason;
  std::string side_file;  // that the summary is from, or empty
  // What of the parameter block verdicts can depend on; all of it if `judged_whole`.
  std::vector<idempotency::ArgumentBytes> judged;
  bool judged_whole = true;
  ModuleSymbols symbols;
  const void* owner = nullptr;  // CUmodule, or CUlibrary if `library`; null: not known
  bool library = false;
  bool incomplete = false;  // the driver did not answer, as when its context is dead
  mutable std::atomic<const GlobalsEffect*> globals{nullptr};  // see Globals

  // Which faults of the plan have a pattern that matches, as a bit set, and for which plan it was
  // worked out.
  std::atomic<std::uint64_t> plan_matches{0};
  std::atomic<std::uint32_t> plan_generation{~0U};
  // The gravest verdict told to the supervisor so far, plus one.
  std::atomic<std::uint32_t> told{0};
};

// The verdict of a launch of the kernel with these packed arguments; no CUDA call but what the
// kernel's symbols need.
//
// What is found in machine code has been compared with PTX only, not with what a device does: until
// it is, such an `idempotent` has the trust `observed`, which does not count by default, and proves
// nothing in bounds.
void judge_kernel(const Kernel& kernel, std::span<const std::byte> arguments,
                  const idempotency::LaunchDimensions& dimensions,
                  const idempotency::MemoryMap& memory, idempotency::Verdict& verdict);

// Kernels by handle. Thread-safe.
class KernelTable {
 public:
  KernelTable(const driver_api::Driver& driver, Session& session, ImageStore& images)
      : driver_(driver), session_(session), images_(images) {}

  // The record of a launched handle (CUfunction or CUkernel) in a context, made at its first
  // launch: then it asks the driver and reads the image. `symbol_hint` is CUPTI's symbolName or
  // null. Null only for want of memory.
  Kernel* find(CUfunction handle, CUcontext context, const char* symbol_hint);
  // The record that stands for graph launches.
  Kernel* graph();

  // The app asked for the function of a kernel: the function has the kernel's image.
  void add_function_of_kernel(CUfunction function, CUkernel kernel);
  // Handles of an unloaded module or a destroyed context may come again for something else.
  void invalidate();
  // Records of which the driver would not say whose they are, as when its context is dead: asked
  // for again, they are made anew.
  void forget_unknown();
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  std::unique_ptr<Kernel> make(CUfunction handle, CUcontext context, const char* symbol_hint);
  image::ComputeCapability device_of_current_context();

  const driver_api::Driver& driver_;
  Session& session_;
  ImageStore& images_;
  std::mutex mutex_;
  std::map<std::pair<CUfunction, CUcontext>, Kernel*> kernels_;
  std::map<CUfunction, CUkernel> functions_of_kernels_;
  std::vector<std::unique_ptr<Kernel>> all_;
  Kernel* graph_ = nullptr;
  std::atomic<std::uint64_t> generation_{1};
};

// The packed parameter block of a launch, gathered from `kernel_params` or `extra`. False if
// neither gives all of it.
bool gather_arguments(const Kernel& kernel, void* const* kernel_params, void* const* extra,
                      std::vector<std::byte>& out);

// What of the packed block `arguments` of a launch its verdict can depend on: the block itself, or
// what matters of it, put together in `scratch`. To be asked after the map's generation.
inline std::span<const std::byte> judged_part(const Kernel& kernel,
                                              const std::vector<std::byte>& arguments,
                                              const idempotency::MemoryMap& memory,
                                              std::vector<std::byte>& scratch) {
  if (kernel.judged_whole) [[likely]] {
    return arguments;
  }
  idempotency::put_together(kernel.judged, arguments, memory, scratch);
  return scratch;
}

}  // namespace gpurecover::agent
