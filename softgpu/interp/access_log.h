// SPDX-License-Identifier: Apache-2.0
// Which bytes of device memory a launch read and wrote, exactly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "softgpu/device/launch.h"

namespace gpurecover::softgpu::interp {

// One bit for each byte of every page touched. One thread; a launch keeps one for each worker and
// merges them at its end.
class AccessLog {
 public:
  void Read(uint64_t address, uint64_t bytes) { Mark(address, bytes, 0); }
  void Write(uint64_t address, uint64_t bytes) { Mark(address, bytes, 1); }
  // A naturally aligned access of up to 32 bytes: its bits lie in one word.
  void Small(uint64_t address, uint32_t bytes, bool read, bool write) {
    Page* page = Find(address >> kPageBits);
    const uint64_t offset = address & ((1u << kPageBits) - 1);
    const uint64_t bits = ((1ull << bytes) - 1) << (offset & 63);
    if (read)
      page->bits[0][offset >> 6] |= bits;
    if (write)
      page->bits[1][offset >> 6] |= bits;
  }

  // Sorted, merged.
  static void Collect(std::span<const std::unique_ptr<AccessLog>> logs,
                      std::vector<ByteRange>& reads, std::vector<ByteRange>& writes) {
    for (int kind = 0; kind < 2; ++kind) {
      std::map<uint64_t, std::vector<const Page*>> pages;
      for (const auto& log : logs)
        for (const auto& [number, page] : log->pages_)
          pages[number].push_back(page.get());
      std::vector<ByteRange>& out = kind == 0 ? reads : writes;
      for (const auto& [number, parts] : pages)
        for (uint64_t word = 0; word < kWords; ++word) {
          uint64_t bits = 0;
          for (const Page* p : parts)
            bits |= p->bits[kind][word];
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
  static constexpr int kPageBits = 16;
  static constexpr uint64_t kWords = (1u << kPageBits) / 64;
  struct Page {
    uint64_t bits[2][kWords] = {};
  };

  void Mark(uint64_t address, uint64_t bytes, int kind) {
    while (bytes) {
      const uint64_t number = address >> kPageBits;
      const uint64_t offset = address & ((1u << kPageBits) - 1);
      const uint64_t here = std::min<uint64_t>(bytes, (1u << kPageBits) - offset);
      uint64_t* words = Find(number)->bits[kind];
      uint64_t at = offset, left = here;
      while (left) {
        const uint64_t bit = at & 63, n = std::min<uint64_t>(left, 64 - bit);
        words[at >> 6] |= (n == 64 ? ~0ull : (1ull << n) - 1) << bit;
        at += n;
        left -= n;
      }
      address += here;
      bytes -= here;
    }
  }
  // Kernels walk several arrays at once: the few pages last used are found without the map.
  Page* Find(uint64_t number) {
    Slot& slot = recent_[number % kRecent];
    if (slot.page == nullptr || slot.number != number) {
      auto& page = pages_[number];
      if (!page)
        page = std::make_unique<Page>();
      slot = {number, page.get()};
    }
    return slot.page;
  }

  static constexpr uint64_t kRecent = 256;
  struct Slot {
    uint64_t number = 0;
    Page* page = nullptr;
  };
  Slot recent_[kRecent];
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
};

}  // namespace gpurecover::softgpu::interp
