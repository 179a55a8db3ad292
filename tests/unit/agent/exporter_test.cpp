// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/exporter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <stdexcept>

namespace gpurecover::agent {
namespace {

std::vector<SteeredMemory> memories(std::size_t count) {
  std::vector<SteeredMemory> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back({0x1000 * (i + 1), 0x1000, 0, i + 1});
  }
  return all;
}

std::size_t descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

int make(const SteeredMemory&) {
  return ::dup(0);
}

TEST(ExporterTest, EachPieceOnceWhateverTheNumbers) {
  const std::size_t before = descriptors();
  for (const std::size_t count : {0, 1, 7, 8, 9, 200}) {
    for (const unsigned threads : {0U, 1U, 4U}) {
      for (const std::size_t at_hand : {1, 3, 64}) {
        SCOPED_TRACE(std::to_string(count) + " pieces, " + std::to_string(threads) + " threads, " +
                     std::to_string(at_hand) + " at hand");
        std::atomic<unsigned> quiet{0};
        std::set<std::uint64_t> seen;
        Exporter exporter(memories(count), {make, [&] { ++quiet; }, threads, at_hand});
        for (;;) {
          const auto some = exporter.take(5);
          if (some.empty()) {
            break;
          }
          EXPECT_LE(some.size(), 5U);
          for (const auto& one : some) {
            EXPECT_GE(one.fd, 0);
            ::close(one.fd);
            EXPECT_TRUE(seen.insert(one.memory.address).second) << "twice";
          }
        }
        EXPECT_EQ(seen.size(), count);
        EXPECT_LE(quiet, threads);
        EXPECT_TRUE(exporter.take(5).empty());
      }
    }
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(ExporterTest, WhatNobodyTakesIsClosed) {
  const std::size_t before = descriptors();
  for (int i = 0; i < 20; ++i) {
    Exporter exporter(memories(100), {make, [] {}, 4, 16});
    if (i % 2 == 0) {
      for (const auto& one : exporter.take(3)) {
        ::close(one.fd);
      }
    }
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(ExporterTest, ThereAreNeverMoreThanSoMany) {
  std::atomic<int> open{0};
  std::atomic<int> most{0};
  Exporter exporter(memories(100),
                    {[&](const SteeredMemory& memory) {
                       const int now = ++open;
                       int before = most;
                       while (now > before && !most.compare_exchange_weak(before, now)) {
                       }
                       return make(memory);
                     },
                     [] {}, 4, 8});
  for (;;) {
    const auto some = exporter.take(4);
    if (some.empty()) {
      break;
    }
    for (const auto& one : some) {
      --open;
      ::close(one.fd);
    }
  }
  // And what one `take` has, which nobody counts as at hand.
  EXPECT_LE(most, 8 + 4);
}

TEST(ExporterTest, FailuresAreTheTakersToSee) {
  const std::size_t before = descriptors();
  Exporter exporter(memories(50), {[](const SteeredMemory& memory) {
                                     if (memory.handle % 3 == 0) {
                                       throw std::bad_alloc();
                                     }
                                     return memory.handle % 2 == 0 ? -1 : make(memory);
                                   },
                                   [] {}, 4, 8});
  std::size_t count = 0;
  for (;;) {
    const auto some = exporter.take(8);
    if (some.empty()) {
      break;
    }
    for (const auto& one : some) {
      EXPECT_EQ(one.fd >= 0, one.memory.handle % 3 != 0 && one.memory.handle % 2 != 0);
      if (one.fd >= 0) {
        ::close(one.fd);
      }
      ++count;
    }
  }
  EXPECT_EQ(count, 50U);
  EXPECT_EQ(descriptors(), before);
}

TEST(ExporterTest, ThreadsThatCannotBeOursDoNothing) {
  Exporter exporter(memories(40), {make, [] { throw std::runtime_error("no"); }, 4, 8});
  std::size_t count = 0;
  for (auto some = exporter.take(8); !some.empty(); some = exporter.take(8)) {
    for (const auto& one : some) {
      ::close(one.fd);
      ++count;
    }
  }
  EXPECT_EQ(count, 40U);
}

}  // namespace
}  // namespace gpurecover::agent
