// SPDX-License-Identifier: Apache-2.0
// A memory and a loader around the interpreter, for its tests and benchmarks.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "image/ptx_parser.h"
#include "softgpu/device/launch.h"

namespace gpurecover::softgpu::testing {

// One arena of pages; allocations start on a page of their own, so that a page after the last byte
// of an allocation is not mapped.
class TestMemory : public DeviceMemory {
 public:
  explicit TestMemory(bool byte_exact = false, uint64_t pages = 512)
      : flags_(Zeros(pages)), granules_(Zeros(pages << (kPageBits - 4))) {
    const uint64_t bytes = (pages + 1) << kPageBits;
    raw_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    raw_bytes_ = bytes;
    base_ = (reinterpret_cast<uint64_t>(raw_) + (1u << kPageBits) - 1) >> kPageBits << kPageBits;
    page_count_ = pages;
    page_flags_ = flags_.get();
    DeviceMemory::shadow_ = granules_.get();
    byte_exact_ = byte_exact;
    next_ = base_ + (1u << kPageBits);
  }
  ~TestMemory() override { munmap(raw_, raw_bytes_); }

  uint64_t Allocate(uint64_t bytes, uint8_t access = kRead | kWrite) {
    std::lock_guard lock(mutex_);
    const uint64_t at = next_;
    const uint64_t pages = (bytes + (1u << kPageBits) - 1) >> kPageBits;
    next_ += (pages + 1) << kPageBits;  // and a gap
    for (uint64_t k = 0; k < pages; ++k) {
      const uint64_t page = ((at - base_) >> kPageBits) + k;
      const bool whole = ((k + 1) << kPageBits) <= bytes;
      flags_[page].store(static_cast<uint8_t>(access | (whole ? 0 : kPartial)));
    }
    for (uint64_t done = 0; done < bytes; done += 16)
      granules_[(at - base_ + done) >> 4].store(
          static_cast<uint8_t>(bytes - done < 16 ? bytes - done : 16));
    return at;
  }
  void Unmap(uint64_t at, uint64_t bytes) {
    for (uint64_t page = (at - base_) >> kPageBits; page <= (at + bytes - 1 - base_) >> kPageBits;
         ++page)
      flags_[page].store(0);
  }
  uint64_t Malloc(uint64_t bytes) override { return bytes > (1u << 20) ? 0 : Allocate(bytes); }
  void Free(uint64_t) override { ++frees_; }
  int frees() const { return frees_; }

 protected:
  Verdict CheckOutside(uint64_t, uint32_t, uint8_t) const override { return Verdict::kFault; }

 private:
  // From calloc, which has zeroed pages at hand: tests make thousands of these.
  struct Freeing {
    void operator()(std::atomic<uint8_t>* p) const { std::free(static_cast<void*>(p)); }
  };
  using Bytes = std::unique_ptr<std::atomic<uint8_t>[], Freeing>;
  static Bytes Zeros(uint64_t count) {
    return Bytes(static_cast<std::atomic<uint8_t>*>(std::calloc(count, 1)));
  }

  Bytes flags_, granules_;
  void* raw_ = nullptr;
  uint64_t raw_bytes_ = 0;
  uint64_t next_ = 0;
  std::mutex mutex_;
  std::atomic<int> frees_{0};
};

class TestDevice {
 public:
  explicit TestDevice(unsigned workers = 0, bool byte_exact = false) : memory(byte_exact) {
    ExecutorOptions options;
    options.workers = workers;
    executor = MakeInterpreter(options);
    request.memory = &memory;
    request.print = [this](std::string_view text) {
      std::lock_guard lock(mutex_);
      printed += text;
    };
  }

  // "" or what is wrong.
  std::string Load(std::string_view text) {
    auto module = image::ptx::parse(text);
    if (!module)
      return "parser: " + module.error().message("text");
    auto program = executor->Compile(*module);
    if (!program)
      return program.error().message;
    instance.program = *program;
    instance.addresses.clear();
    for (const VariableInfo& v : (*program)->variables())
      instance.addresses.push_back(memory.Allocate(std::max<uint64_t>(1, v.size)));
    for (size_t k = 0; k < instance.addresses.size(); ++k) {
      const auto bytes = (*program)->InitialBytes(k, instance.addresses);
      std::memcpy(reinterpret_cast<void*>(instance.addresses[k]), bytes.data(), bytes.size());
    }
    return "";
  }
  size_t Kernel(std::string_view name) const {
    const auto kernels = instance.program->kernels();
    for (size_t k = 0; k < kernels.size(); ++k)
      if (kernels[k].name == name)
        return k;
    return SIZE_MAX;
  }
  uint64_t Variable(std::string_view name) const {
    const auto variables = instance.program->variables();
    for (size_t k = 0; k < variables.size(); ++k)
      if (variables[k].name == name)
        return instance.addresses[k];
    return 0;
  }

  // Arguments are placed by the kernel's parameter offsets.
  template <class... Args>
  LaunchResult Run(std::string_view kernel, Dim3 grid, Dim3 block, Args... args) {
    request.module = &instance;
    request.kernel = Kernel(kernel);
    request.grid = grid;
    request.block = block;
    if (request.kernel == SIZE_MAX) {
      LaunchResult r;
      r.code = -1;
      r.message = "no such kernel";
      return r;
    }
    const KernelInfo& info = instance.program->kernels()[request.kernel];
    std::vector<uint8_t> block_bytes(info.parameter_bytes);
    size_t at = 0;
    auto put = [&](auto value) {
      if (at < info.parameters.size())
        std::memcpy(block_bytes.data() + info.parameters[at].offset, &value,
                    std::min<size_t>(sizeof value, info.parameters[at].size));
      ++at;
    };
    (put(args), ...);
    request.parameters = block_bytes;
    return executor->Run(request);
  }

  template <class T>
  uint64_t Upload(const std::vector<T>& values) {
    const uint64_t at = memory.Allocate(std::max<size_t>(1, values.size() * sizeof(T)));
    std::memcpy(reinterpret_cast<void*>(at), values.data(), values.size() * sizeof(T));
    return at;
  }
  template <class T>
  std::vector<T> Download(uint64_t at, size_t count) const {
    std::vector<T> values(count);
    std::memcpy(values.data(), reinterpret_cast<const void*>(at), count * sizeof(T));
    return values;
  }

  TestMemory memory;
  std::unique_ptr<Executor> executor;
  ModuleInstance instance;
  LaunchRequest request;
  std::string printed;

 private:
  std::mutex mutex_;
};

}  // namespace gpurecover::softgpu::testing
