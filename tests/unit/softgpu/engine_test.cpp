// SPDX-License-Identifier: Apache-2.0
// What a fault does to streams (MEASUREMENTS, section 2), without kernels: operations are functions
// here, and a "kernel" fails by raising a fault. Each test is a process of its own, since a fault
// ends the device of the process.
#include "softgpu/device/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <semaphore>
#include <thread>

namespace gpurecover::softgpu {
namespace {

using Kind = Operation::Kind;

uint64_t Submit(const QueuePtr& queue, Kind kind, std::function<void()> run,
                std::vector<Dependency> after = {}) {
  Operation operation;
  operation.kind = kind;
  operation.run = std::move(run);
  operation.after = std::move(after);
  return Engine::Get().Submit(queue, std::move(operation));
}

/// Runs `test` in a child; its return value is what the child found wrong ("" is good).
#define IN_CHILD(...)                              \
  EXPECT_EXIT(                                     \
      {                                            \
        const std::string wrong = (__VA_ARGS__)(); \
        if (!wrong.empty())                        \
          fprintf(stderr, "%s\n", wrong.c_str());  \
        _exit(wrong.empty() ? 0 : 1);              \
      },                                           \
      testing::ExitedWithCode(0), "")
#define REQUIRE(condition) \
  if (!(condition))        \
  return std::string("line " + std::to_string(__LINE__) + ": " #condition)

class EngineDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(EngineDeathTest, WorkOfAStreamIsInOrderAndIssueReturnsAtOnce) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto queue = engine.Create(0);
    std::binary_semaphore go(0);
    std::string order;
    Submit(queue, Kind::kKernel, [&] {
      go.acquire();
      order += 'a';
    });
    const uint64_t last = Submit(queue, Kind::kCopy, [&] { order += 'b'; });
    REQUIRE(!engine.Idle(queue));  // the kernel cannot have ended
    go.release();
    REQUIRE(engine.Wait(queue, last) == 0);
    REQUIRE(order == "ab");
    REQUIRE(engine.Idle(queue));
    return {};
  });
}

TEST_F(EngineDeathTest, DependenciesHoldAcrossStreams) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto a = engine.Create(0), b = engine.Create(0);
    std::binary_semaphore go(0);
    std::atomic<int> value{0};
    const uint64_t first = Submit(a, Kind::kKernel, [&] {
      go.acquire();
      value = 1;
    });
    int seen = -1;
    const uint64_t second = Submit(b, Kind::kKernel, [&] { seen = value; }, {{a, first}});
    go.release();
    REQUIRE(engine.Wait(b, second) == 0);
    REQUIRE(seen == 1);
    return {};
  });
}

TEST_F(EngineDeathTest, FaultIsSeenByWaitersAndDropsLaterWork) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto queue = engine.Create(0), other = engine.Create(0);
    std::binary_semaphore go(0);
    std::atomic<bool> ran{false};
    const uint64_t faulty = Submit(queue, Kind::kKernel, [&] {
      go.acquire();
      engine.Raise(queue, 719, "trap");
    });
    Submit(queue, Kind::kMarker, [&] { ran = true; });
    Submit(other, Kind::kWait, [&] {
      while (!engine.Faulting())
        std::this_thread::yield();
    });
    Submit(other, Kind::kCopy, [&] { ran = true; });
    REQUIRE(engine.Poison() == 0);
    go.release();
    REQUIRE(engine.Wait(queue, faulty) == 719);
    REQUIRE(engine.Wait(other, engine.Issued(other)) == 719);
    REQUIRE(engine.Poison() == 719);
    const uint64_t late = Submit(other, Kind::kCopy, [&] { ran = true; });
    REQUIRE(engine.Wait(other, late) == 719);
    REQUIRE(!ran);
    REQUIRE(engine.LastFault().message == "trap");
    return {};
  });
}

TEST_F(EngineDeathTest, KernelOfTheSameDeviceDrainsWithItsMarkerBeforeTheReport) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto faulty = engine.Create(0), busy = engine.Create(0);
    std::binary_semaphore started(0), finish(0), raise(0);
    std::atomic<bool> marker{false}, later_kernel{false}, later_marker{false};
    Submit(busy, Kind::kKernel, [&] {
      started.release();
      finish.acquire();
    });
    Submit(busy, Kind::kMarker, [&] { marker = true; });
    Submit(busy, Kind::kKernel, [&] { later_kernel = true; });
    Submit(busy, Kind::kMarker, [&] { later_marker = true; });
    started.acquire();
    Submit(faulty, Kind::kKernel, [&] {
      engine.Raise(faulty, 700, "illegal address");
      raise.release();
    });
    raise.acquire();
    // The report waits for the kernel that runs.
    REQUIRE(engine.Faulting());
    REQUIRE(engine.Poison() == 0);
    finish.release();
    REQUIRE(engine.Wait(faulty, 1) == 700);
    REQUIRE(marker);
    REQUIRE(!later_kernel);
    REQUIRE(!later_marker);
    return {};
  });
}

TEST_F(EngineDeathTest, KernelOfAnotherDeviceGoesOnAfterTheReport) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto faulty = engine.Create(0), busy = engine.Create(1);
    std::binary_semaphore started(0), finish(0), ended(0);
    std::atomic<bool> marker{false};
    Submit(busy, Kind::kKernel, [&] {
      started.release();
      finish.acquire();
      ended.release();
    });
    Submit(busy, Kind::kMarker, [&] { marker = true; });
    started.acquire();
    const uint64_t ticket =
        Submit(faulty, Kind::kKernel, [&] { engine.Raise(faulty, 719, "trap"); });
    REQUIRE(engine.Wait(faulty, ticket) == 719);  // does not wait for the other device
    REQUIRE(engine.Wait(busy, 1) == 719);         // whose context is dead, too
    finish.release();
    ended.acquire();
    engine.WaitForKernels(1);
    REQUIRE(!marker);  // nothing behind it begins
    return {};
  });
}

TEST_F(EngineDeathTest, TheFirstFaultIsTheProcesss) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto a = engine.Create(0), b = engine.Create(0);
    std::binary_semaphore started(0), finish(0);
    Submit(b, Kind::kKernel, [&] {
      started.release();
      finish.acquire();
      engine.Raise(b, 716, "second");
    });
    started.acquire();
    std::binary_semaphore raised(0);
    Submit(a, Kind::kKernel, [&] {
      engine.Raise(a, 710, "first");
      raised.release();
    });
    raised.acquire();
    finish.release();
    REQUIRE(engine.Wait(b, 1) == 710);
    return {};
  });
}

TEST_F(EngineDeathTest, EventOfAKernelThatFailedNeverCompletes) {
  IN_CHILD([]() -> std::string {
    Engine& engine = Engine::Get();
    auto queue = engine.Create(0);
    Submit(queue, Kind::kKernel, [&] { engine.Raise(queue, 719, "trap"); });
    Operation record;
    record.kind = Kind::kMarker;
    record.completes = std::make_shared<Completion>();
    auto completion = record.completes;
    engine.Submit(queue, std::move(record));
    REQUIRE(engine.Wait(*completion) == 719);
    REQUIRE(!completion->done);
    return {};
  });
}

}  // namespace
}  // namespace gpurecover::softgpu
