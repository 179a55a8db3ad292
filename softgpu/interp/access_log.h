// SPDX-License-Identifier: Apache-2.0
// Which bytes of device memory a launch read and wrote, exactly.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "softgpu/device/launch.h"

namespace gpurecover::softgpu::interp {

// One bit for each byte of every page touched, for the whole launch. Any thread.
class AccessPages {
 public:
  static constexpr int kPageBits = 16;
  static constexpr uint64_t kWords = (1u << kPageBits) / 64;
  // Read, written: side by side, as atomic operations do both.
  struct Word {
    std::atomic<uint64_t> bits[2] = {};
  };
  struct Page {
    Word words[kWords];
  };

  Page* Find(uint64_t number) {
    {
      std::lock_guard lock(mutex_);
      if (const auto found = pages_.find(number); found != pages_.end())
        return found->second.get();
    }
    auto page = std::make_unique<Page>();
    std::lock_guard lock(mutex_);
    return pages_.try_emplace(number, std::move(page)).first->second.get();
  }

  // Sorted, merged. When no thread marks any more.
  void Collect(std::vector<ByteRange>& reads, std::vector<ByteRange>& writes) const {
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<ByteRange>& out = kind == 0 ? reads : writes;
      for (const auto& [number, page] : pages_)
        for (uint64_t word = 0; word < kWords; ++word) {
          uint64_t bits = page->words[word].bits[kind].load(std::memory_order_relaxed);
          uint64_t at = (number << kPageBits) + word * 64;
          while (bits) {
            const int skip = __builtin_ctzll(bits);
            bits >>= skip;
            at += static_cast<uint64_t>(skip);
            const int run = bits == ~0ull ? 64 : __builtin_ctzll(~bits);
            if (!out.empty() && out.back().end == at)
              out.back().end = at + static_cast<uint64_t>(run);
            else
              out.push_back({at, at + static_cast<uint64_t>(run)});
            if (run == 64)
              break;
            bits >>= run;
            at += static_cast<uint64_t>(run);
          }
        }
    }
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Page>> pages_;
};

// A worker's way to the pages: kernels walk several arrays at once, so that the pages last used are
// found without a lock. One thread at a time.
class AccessLog {
 public:
  explicit AccessLog(AccessPages& pages) : pages_(pages) {}

  void Read(uint64_t address, uint64_t bytes) { Mark(address, bytes, 0); }
  void Write(uint64_t address, uint64_t bytes) { Mark(address, bytes, 1); }
  // A naturally aligned access of up to 32 bytes: its bits lie in one word.
  __attribute__((always_inline)) void Small(uint64_t address, uint32_t bytes, bool read,
                                            bool write) {
    AccessPages::Page* page = Find(address >> AccessPages::kPageBits);
    const uint64_t offset = address & ((1u << AccessPages::kPageBits) - 1);
    const uint64_t bits = ((1ull << bytes) - 1) << (offset & 63);
    auto& word = page->words[offset >> 6];
    if (read)
      Set(word.bits[0], bits);
    if (write)
      Set(word.bits[1], bits);
  }

 private:
  static void Set(std::atomic<uint64_t>& word, uint64_t bits) {
    if ((word.load(std::memory_order_relaxed) & bits) != bits)
      word.fetch_or(bits, std::memory_order_relaxed);
  }
  void Mark(uint64_t address, uint64_t bytes, int kind) {
    while (bytes) {
      const uint64_t offset = address & ((1u << AccessPages::kPageBits) - 1);
      const uint64_t here = std::min<uint64_t>(bytes, (1u << AccessPages::kPageBits) - offset);
      AccessPages::Word* words = Find(address >> AccessPages::kPageBits)->words;
      uint64_t at = offset, left = here;
      while (left) {
        const uint64_t bit = at & 63, n = std::min<uint64_t>(left, 64 - bit);
        Set(words[at >> 6].bits[kind], (n == 64 ? ~0ull : (1ull << n) - 1) << bit);
        at += n;
        left -= n;
      }
      address += here;
      bytes -= here;
    }
  }
  AccessPages::Page* Find(uint64_t number) {
    Slot& slot = recent_[number % kRecent];
    if (slot.number != number) [[unlikely]]
      slot = {number, pages_.Find(number)};
    return slot.page;
  }

  static constexpr uint64_t kRecent = 256;
  struct Slot {
    uint64_t number = ~0ull;  // of no page
    AccessPages::Page* page = nullptr;
  };
  AccessPages& pages_;
  Slot recent_[kRecent];
};

}  // namespace gpurecover::softgpu::interp
