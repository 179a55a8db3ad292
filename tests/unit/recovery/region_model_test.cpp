// SPDX-License-Identifier: Apache-2.0
//
// The rules of docs/regions.md against a model: random programs on a device of a few bytes, hit by
// a fault at a random point of their execution. The log under test is the real one; the model does
// what the agent does around a launch. After a recovery the memory must be that of the undisturbed
// program. Each rule, broken on purpose, must be found out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "recovery/launch_log.h"

namespace gpurecover::recovery {
namespace {

using idempotency::Range;

constexpr int kCells = 64;                 // device memory, bytes
constexpr int kHostCells = 8;              // the last of them: pinned, written by the host
constexpr int kAllocation = 8;             // cells
constexpr std::uint64_t kStore = 0x10000;  // where copies are; per stream
constexpr int kStreams = 4;                // stream 0 is the legacy default stream

enum class Break {
  kNone,
  kMarkerAfterTheWrongOperation,
  kLegacyEdgeIgnored,
  kSynchronizationIgnored,
  kSetsExchanged,           // a symmetric or reversed overlap for the join rule
  kCopyOverUnorderedWrite,  // copies are never void
  kFrontierIgnored,         // only the stream that failed is looked at
  kOrderTrusted,            // of two threads on one stream
  kMayWriteTakenForMust,
};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A kernel: what it does is a function of the bytes that it reads.
struct ModelKernel {
  std::uint64_t id = 0;
  std::vector<Range> reads, writes;  // cells, exactly
  std::vector<Range> must;           // some of `writes`: written whatever it reads
  AccessSets declared;               // whole allocations
  bool replayable = false;
};

bool touches(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (const Range& x : a) {
    for (const Range& y : b) {
      if (x.begin < y.end && y.begin < x.end) {
        return true;
      }
    }
  }
  return false;
}

using Memory = std::vector<std::uint8_t>;

// Runs the kernel; of a partial run only the writes that `some` picks take place.
template <class Some>
void execute(const ModelKernel& kernel, Memory& memory, Some&& some) {
  std::uint64_t h = mix(kernel.id);
  for (const Range& range : kernel.reads) {
    for (std::uint64_t i = range.begin; i < range.end; ++i) {
      h = mix(h ^ memory[i]);
    }
  }
  for (const Range& range : kernel.writes) {
    for (std::uint64_t i = range.begin; i < range.end; ++i) {
      const std::uint64_t value = mix(h + i);
      // What else it writes depends on the data too.
      if ((touches(kernel.must, {{i, i + 1}}) || (value >> 8 & 3) != 0) && some()) {
        memory[i] = static_cast<std::uint8_t>(value);
      }
    }
  }
}

struct Operation {
  enum Kind { kLaunch, kMark, kCopy } kind = kLaunch;
  const ModelKernel* kernel = nullptr;
  std::uint32_t number = 0;
  KeptCopy copy;
  std::vector<std::size_t> after;  // operations that it waits for
  bool done = false;
};

class Model {
 public:
  Model(std::uint64_t seed, Break broken) : random_(seed), broken_(broken) {
    std::fill_n(words(), kStreams * LaunchLog::kWordStride, std::byte{0});
    log_.set_words(words());
    memory_.resize(kCells);
    for (auto& cell : memory_) {
      cell = static_cast<std::uint8_t>(random_());
    }
    expected_ = memory_;
  }

  // Whether the memory ended as it should; nothing if the recovery was refused.
  std::optional<bool> run() {
    make_kernels();
    const std::size_t length = 4 + below(60);
    const std::size_t fault_after = below(length + 1);
    for (std::size_t i = 0; i < length && !faulted_; ++i) {
      step();
      device(below(4));
      if (i >= fault_after) {
        may_fault_ = true;
      }
    }
    may_fault_ = true;
    while (!faulted_ && device(1)) {
    }
    if (!faulted_) {
      EXPECT_EQ(memory_, expected_) << "the model itself";
      return memory_ == expected_;
    }
    return recover();
  }
  bool faulted() const { return faulted_; }
  std::string reason() const { return reason_; }
  std::size_t kept = 0;

 private:
  static std::byte* words() {
    alignas(64) static thread_local std::byte words[LaunchLog::kWordBytes];
    return words;
  }
  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

  // Some bytes of one allocation, and the allocation.
  Range some_range(bool host) {
    const int allocations = (host ? kCells : kCells - kHostCells) / kAllocation;
    const auto base = static_cast<std::uint64_t>(below(allocations)) * kAllocation;
    const std::uint64_t begin = base + below(kAllocation);
    return {begin, begin + 1 + below(base + kAllocation - begin)};
  }
  static void declare(std::vector<Range>& out, const Range& range) {
    const std::uint64_t base = range.begin / kAllocation * kAllocation;
    out.push_back({base, base + kAllocation});
    std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < out.size();) {
      if (out[i].begin <= out[i - 1].end) {
        out[i - 1].end = std::max(out[i - 1].end, out[i].end);
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }
  void add_kernel(std::vector<Range> reads, std::vector<Range> writes) {
    ModelKernel kernel;
    for (const Range& range : writes) {
      if (one_in(2)) {
        kernel.must.push_back(range);
      }
    }
    std::sort(kernel.must.begin(), kernel.must.end(),
              [](auto& a, auto& b) { return a.begin < b.begin; });
    for (const Range& range : kernel.must) {
      auto& known = kernel.declared.must_writes;
      if (!known.empty() && range.begin <= known.back().end) {
        known.back().end = std::max(known.back().end, range.end);
      } else {
        known.push_back(range);
      }
    }
    kernel.id = kernels_.size() + 1;
    for (const Range& range : reads) {
      declare(kernel.declared.reads, range);
    }
    for (const Range& range : writes) {
      declare(kernel.declared.writes, range);
    }
    kernel.reads = std::move(reads);
    kernel.writes = std::move(writes);
    kernel.declared.key = 10 * kernel.id;
    if (broken_ == Break::kMayWriteTakenForMust) {
      kernel.declared.must_writes = kernel.declared.writes;
    }
    kernel.replayable = !touches(kernel.declared.reads, kernel.declared.writes);
    if (broken_ == Break::kSetsExchanged) {
      std::swap(kernel.declared.reads, kernel.declared.writes);
    }
    kernels_.push_back(std::move(kernel));
  }
  // Two halves of allocations in turn, again and again, and another stream at work on the other
  // halves: what copies are for, and what makes them void.
  void make_ping_pong() {
    const std::uint64_t a = 0, b = kAllocation, c = 2 * kAllocation, half = kAllocation / 2;
    add_kernel({{a, a + half}}, {{b, b + half}});
    add_kernel({{b, b + half}}, {{a, a + half}});
    add_kernel({{c, c + half}}, {{a + half, a + 2 * half}});
    add_kernel({{c, c + half}}, {{b + half, b + 2 * half}});
    loop_ = {&kernels_[0], &kernels_[1]};
    const std::size_t stream = below(kStreams);
    streams_of_loop_ = {stream, stream};
  }
  void make_kernels() {
    if (one_in(3)) {
      make_ping_pong();
      return;
    }
    const std::size_t count = 2 + below(4);
    const bool any_unprotected = one_in(3);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<Range> reads, writes;
      for (std::size_t n = 1 + below(2); n > 0; --n) {
        reads.push_back(some_range(true));
      }
      for (std::size_t n = 1 + below(2); n > 0; --n) {
        writes.push_back(some_range(false));
      }
      add_kernel(std::move(reads), std::move(writes));
      if (!kernels_.back().replayable && !any_unprotected) {
        kernels_.pop_back();
      }
    }
    // Programs do the same again and again.
    for (std::size_t n = 1 + below(4); n > 0 && !kernels_.empty(); --n) {
      loop_.push_back(&kernels_[below(kernels_.size())]);
    }
    const std::size_t streams = 1 + below(kStreams);
    for (std::size_t n = 0; n < loop_.size(); ++n) {
      streams_of_loop_.push_back(one_in(3) ? 0 : below(streams));
    }
  }

  std::uint64_t handle(std::size_t stream) const {
    return stream == 0 ? LaunchLog::kLegacyStream : 100 + stream;
  }
  StreamLog& log_of(std::size_t stream) { return log_.stream(handle(stream), 0); }

  void enqueue(std::size_t stream, Operation operation) {
    const std::size_t number = operations_.size();
    if (last_[stream]) {
      operation.after.push_back(*last_[stream]);
    }
    for (std::size_t other = 0; other < kStreams; ++other) {
      if (other != stream && (stream == 0 || other == 0) && last_[other]) {
        operation.after.push_back(*last_[other]);
      }
    }
    operations_.push_back(std::move(operation));
    last_[stream] = number;
    stream_of_.push_back(stream);
  }

  // Whether the program would race: an operation under way that nothing orders before one on
  // `stream` touches the same bytes.
  bool races(const ModelKernel& kernel, std::size_t stream) const {
    // What only our own markers order is not the program's doing.
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      const auto& launch = launches_[i];
      if (launch.known_complete || ordered_by_program(launch.stream, i, stream)) {
        continue;
      }
      if (touches(launch.kernel->writes, kernel.reads) ||
          touches(launch.kernel->writes, kernel.writes) ||
          touches(launch.kernel->reads, kernel.writes)) {
        return true;
      }
    }
    return false;
  }
  // Launch i of `from` is before the next one on `to`: the same stream, or one of them the legacy
  // one, or by way of a legacy launch in between.
  bool ordered_by_program(std::size_t from, std::size_t i, std::size_t to) const {
    if (from == to || from == 0 || to == 0) {
      return true;
    }
    for (std::size_t k = i + 1; k < launches_.size(); ++k) {
      if (launches_[k].stream == 0) {
        return true;
      }
    }
    return false;
  }

  void finish(std::size_t stream) {
    // Waiting may well show the fault.
    while (!faulted_ && last_[stream] && !operations_[*last_[stream]].done && device(1)) {
    }
  }
  void synchronize(std::size_t stream) {
    StreamLog& log = log_of(stream);
    const std::uint64_t place = log.settled();
    finish(stream);
    if (faulted_) {
      return;
    }
    if (broken_ != Break::kSynchronizationIgnored) {
      log.complete_until(place);
    }
    for (auto& launch : launches_) {
      launch.known_complete |= launch.stream == stream;
    }
  }
  void synchronize_all() {
    for (std::size_t stream = 0; stream < kStreams && !faulted_; ++stream) {
      synchronize(stream);
    }
  }

  void step() {
    if (loop_.empty()) {
      return;
    }
    switch (below(24)) {
      case 0:
        synchronize(below(kStreams));
        return;
      case 1:
        synchronize_all();
        return;
      case 2: {  // a copy of the app's: waited for before and after
        synchronize_all();
        if (!faulted_) {
          const std::size_t cell = below(kCells - kHostCells);
          memory_[cell] = expected_[cell] = static_cast<std::uint8_t>(random_());
        }
        return;
      }
      case 3:
      case 4: {  // the host writes pinned memory that nobody is reading, as far as it knows
        const std::size_t cell = kCells - kHostCells + below(kHostCells);
        for (const auto& launch : launches_) {
          if (!launch.known_complete && touches(launch.kernel->reads, {{cell, cell + 1}})) {
            return;
          }
        }
        memory_[cell] = expected_[cell] = static_cast<std::uint8_t>(random_());
        return;
      }
      default:
        break;
    }
    // Mostly the next of the loop; sometimes something else, somewhere else, which may be done and
    // waited for while the loop goes on.
    const bool aside = one_in(10);
    const ModelKernel& kernel =
        aside ? kernels_[below(kernels_.size())] : *loop_[place_ % loop_.size()];
    const std::size_t stream = aside ? below(kStreams) : streams_of_loop_[place_ % loop_.size()];
    place_ += aside ? 0 : 1;
    if (races(kernel, stream)) {
      synchronize_all();
      if (faulted_) {
        return;
      }
    }
    const ModelKernel& second = kernels_[below(kernels_.size())];
    if (one_in(12) && !races(second, stream) && !touches(kernel.writes, second.reads) &&
        !touches(kernel.writes, second.writes) && !touches(kernel.reads, second.writes)) {
      launch_by_two_threads(kernel, second, stream);
    } else {
      launch(kernel, stream);
    }
    if (aside && one_in(2) && !faulted_) {
      synchronize(stream);
    }
  }

  LaunchTraits traits_of(const ModelKernel& kernel) const {
    LaunchTraits traits;
    traits.replayable = kernel.replayable;
    traits.sets = kernel.replayable ? &kernel.declared : nullptr;
    return traits;
  }
  void begin(const ModelKernel& kernel, std::size_t stream, Issue& issue) {
    StreamLog& log = log_of(stream);
    if (log.wants_store()) {
      log.give_store(kStore * (stream + 1), 2048);
    }
    const LaunchTraits traits = traits_of(kernel);
    log.begin(log_.next_order(), traits, issue, [&](LaunchRecord& entry) {
      entry.kernel = &kernel;
      entry.set_arguments({});
    });
  }
  void prepare(const ModelKernel& kernel, std::size_t stream, const Issue& issue) {
    const auto stream_of = [&](const StreamLog& log) {
      return log.stream() == LaunchLog::kLegacyStream ? 0 : log.stream() - 100;
    };
    const auto mark = [&](const StreamLog& log, std::uint32_t number) {
      if (broken_ == Break::kLegacyEdgeIgnored && &log != &log_of(stream)) {
        return true;
      }
      Operation operation;
      operation.kind = Operation::kMark;
      operation.number = number;
      if (broken_ == Break::kMarkerAfterTheWrongOperation && &log == &log_of(stream)) {
        operation.number = number + 1;
      }
      enqueue(stream_of(log), operation);
      return true;
    };
    const auto copy = [&](const StreamLog& log, const KeptCopy& one) {
      Operation operation;
      operation.kind = Operation::kCopy;
      operation.copy = one;
      enqueue(stream_of(log), operation);
      ++kept;
      return true;
    };
    if (broken_ == Break::kCopyOverUnorderedWrite) {
      static const AccessSets kNothing;
      log_.prepare(log_of(stream), &kNothing, issue, mark, copy);
      return;
    }
    log_.prepare(log_of(stream), traits_of(kernel).sets, issue, mark, copy);
  }
  void enqueue_launch(const ModelKernel& kernel, std::size_t stream) {
    Operation operation;
    operation.kernel = &kernel;
    enqueue(stream, operation);
    launches_.push_back({&kernel, stream, false});
    execute(kernel, expected_, [] { return true; });
  }
  void launch(const ModelKernel& kernel, std::size_t stream) {
    Issue issue;
    begin(kernel, stream, issue);
    prepare(kernel, stream, issue);
    enqueue_launch(kernel, stream);
    log_of(stream).end(issue.number, true, false);
  }
  void launch_by_two_threads(const ModelKernel& a, const ModelKernel& b, std::size_t stream) {
    Issue first, second;
    begin(a, stream, first);
    begin(b, stream, second);
    prepare(a, stream, first);
    prepare(b, stream, second);
    // Either may come first in the stream.
    const bool turned = one_in(2);
    enqueue_launch(turned ? b : a, stream);
    device(below(3));
    enqueue_launch(turned ? a : b, stream);
    const bool first_ends_first = one_in(2);
    log_of(stream).end(first_ends_first ? first.number : second.number, true, false);
    log_of(stream).end(first_ends_first ? second.number : first.number, true, false);
    two_threads_ = true;
  }

  void carry_out(Operation& operation, std::size_t stream) {
    switch (operation.kind) {
      case Operation::kLaunch:
        execute(*operation.kernel, memory_, [] { return true; });
        break;
      case Operation::kMark:
        log_of(stream).word()->store(operation.number);
        break;
      case Operation::kCopy: {
        Memory content(memory_.begin() + static_cast<std::ptrdiff_t>(operation.copy.range.begin),
                       memory_.begin() + static_cast<std::ptrdiff_t>(operation.copy.range.end));
        copies_[operation.copy.copy] = std::move(content);
        break;
      }
    }
    operation.done = true;
  }
  std::vector<std::size_t> ready() const {
    std::vector<std::size_t> out;
    for (std::size_t i = first_open_; i < operations_.size(); ++i) {
      if (!operations_[i].done &&
          std::all_of(operations_[i].after.begin(), operations_[i].after.end(),
                      [&](std::size_t before) { return operations_[before].done; })) {
        out.push_back(i);
      }
    }
    return out;
  }
  // Some operations take place; false if there are none, or no more.
  bool device(std::size_t count) {
    for (; count > 0 && !faulted_; --count) {
      while (first_open_ < operations_.size() && operations_[first_open_].done) {
        ++first_open_;
      }
      const auto can = ready();
      if (can.empty()) {
        return false;
      }
      const std::size_t at = can[below(can.size())];
      if (may_fault_ && operations_[at].kind == Operation::kLaunch && one_in(6)) {
        fault(at);
        return false;
      }
      carry_out(operations_[at], stream_of_[at]);
    }
    return true;
  }
  // Operation `at` fails; what else is running comes to some end.
  void fault(std::size_t at) {
    faulted_ = true;
    failed_stream_ = stream_of_[at];
    const auto some = [&] { return one_in(2); };
    for (const std::size_t running : ready()) {
      Operation& operation = operations_[running];
      if (operation.kind == Operation::kLaunch && (running == at || one_in(2))) {
        execute(*operation.kernel, memory_, some);
      } else if (running != at && one_in(2)) {
        carry_out(operation, stream_of_[running]);
      }
    }
  }

  std::optional<bool> recover() {
    if (broken_ == Break::kFrontierIgnored) {
      for (std::size_t stream = 0; stream < kStreams; ++stream) {
        if (stream != failed_stream_) {
          log_of(stream).clear();
        }
      }
    }
    Frontier frontier = frontier_of(
        log_, [](const void*) { return std::string("k"); },
        [](const LoggedLaunch&) { return std::string("not replayable"); });
    if (!frontier.recoverable && broken_ == Break::kOrderTrusted && two_threads_) {
      frontier.recoverable = std::all_of(
          frontier.to_do.begin(), frontier.to_do.end(),
          [](const LoggedLaunch& launch) { return launch.replayable && !launch.obstacle; });
    }
    if (!frontier.recoverable) {
      reason_ = frontier.reason;
      return std::nullopt;
    }
    for (const KeptCopy& copy : frontier.copies) {
      const Memory& content = copies_.at(copy.copy);
      std::copy(content.begin(), content.end(),
                memory_.begin() + static_cast<std::ptrdiff_t>(copy.range.begin));
    }
    for (const LoggedLaunch& launch : frontier.to_do) {
      const auto& kernel = *static_cast<const ModelKernel*>(launch.kernel);
      if (one_in(8)) {
        // The fault comes again; another attempt goes on where this one failed.
        execute(kernel, memory_, [&] { return one_in(2); });
        if (!launch.replayable) {
          reason_ = "not replayable";
          return std::nullopt;
        }
      }
      execute(kernel, memory_, [] { return true; });
    }
    return memory_ == expected_;
  }

  std::mt19937_64 random_;
  const Break broken_;
  LaunchLog log_;
  Memory memory_, expected_;
  std::map<std::uint64_t, Memory> copies_;
  std::deque<ModelKernel> kernels_;
  std::vector<const ModelKernel*> loop_;
  std::vector<std::size_t> streams_of_loop_;
  std::size_t place_ = 0;
  std::deque<Operation> operations_;
  std::vector<std::size_t> stream_of_;
  std::size_t first_open_ = 0;
  std::optional<std::size_t> last_[kStreams];
  struct Launch {
    const ModelKernel* kernel;
    std::size_t stream;
    bool known_complete;
  };
  std::vector<Launch> launches_;
  bool may_fault_ = false, faulted_ = false, two_threads_ = false;
  std::size_t failed_stream_ = 0;
  std::string reason_;
};

struct Tally {
  std::uint64_t faults = 0, recovered = 0, refused = 0, wrong = 0, kept = 0, first_wrong = 0;
};

Tally sweep(std::uint64_t seed, std::uint64_t programs, Break broken) {
  Tally tally;
  for (std::uint64_t i = 0; i < programs; ++i) {
    Model model(mix(seed + i), broken);
    const auto right = model.run();
    tally.kept += model.kept;
    if (!model.faulted()) {
      continue;
    }
    ++tally.faults;
    if (!right) {
      ++tally.refused;
    } else if (*right) {
      ++tally.recovered;
    } else if (tally.wrong++ == 0) {
      tally.first_wrong = i;
    }
  }
  return tally;
}

constexpr std::uint64_t kSeed = 20261130;

std::uint64_t programs(std::uint64_t usual) {
  // The sweep asks for a million.
  const char* wish = std::getenv("GPURECOVER_MODEL_PROGRAMS");
  return wish != nullptr ? std::strtoull(wish, nullptr, 10) : usual;
}

TEST(RegionModelTest, WhatIsRecoveredIsRight) {
  const std::uint64_t count = programs(20000);
  std::printf("seed %llu, %llu programs\n", static_cast<unsigned long long>(kSeed),
              static_cast<unsigned long long>(count));
  const Tally tally = sweep(kSeed, count, Break::kNone);
  std::printf("%llu faults: %llu recovered, %llu refused, %llu wrong; %llu copies\n",
              static_cast<unsigned long long>(tally.faults),
              static_cast<unsigned long long>(tally.recovered),
              static_cast<unsigned long long>(tally.refused),
              static_cast<unsigned long long>(tally.wrong),
              static_cast<unsigned long long>(tally.kept));
  EXPECT_EQ(tally.wrong, 0U) << "the first is program " << tally.first_wrong;
  EXPECT_GT(tally.faults, count / 2);
  EXPECT_GT(tally.recovered, tally.faults / 2) << "the model recovers too little to say anything";
  EXPECT_GT(tally.kept, count / 50) << "copies are hardly tried";
}

class BrokenRuleTest : public testing::TestWithParam<Break> {};

TEST_P(BrokenRuleTest, IsFoundOut) {
  std::uint64_t wrong = 0, done = 0;
  for (; wrong == 0 && done < 100000; done += 2000) {
    wrong = sweep(kSeed + done, 2000, GetParam()).wrong;
  }
  EXPECT_GT(wrong, 0U) << "in " << done << " programs";
}

INSTANTIATE_TEST_SUITE_P(Rules, BrokenRuleTest,
                         testing::Values(Break::kMarkerAfterTheWrongOperation,
                                         Break::kLegacyEdgeIgnored, Break::kSynchronizationIgnored,
                                         Break::kSetsExchanged, Break::kCopyOverUnorderedWrite,
                                         Break::kFrontierIgnored, Break::kOrderTrusted,
                                         Break::kMayWriteTakenForMust),
                         [](const auto& info) {
                           switch (info.param) {
                             case Break::kMarkerAfterTheWrongOperation:
                               return "MarkerAfterTheWrongOperation";
                             case Break::kLegacyEdgeIgnored:
                               return "LegacyEdgeIgnored";
                             case Break::kSynchronizationIgnored:
                               return "SynchronizationIgnored";
                             case Break::kSetsExchanged:
                               return "SetsExchanged";
                             case Break::kCopyOverUnorderedWrite:
                               return "CopyOverUnorderedWrite";
                             case Break::kFrontierIgnored:
                               return "FrontierIgnored";
                             case Break::kOrderTrusted:
                               return "OrderTrusted";
                             case Break::kMayWriteTakenForMust:
                               return "MayWriteTakenForMust";
                             case Break::kNone:
                               break;
                           }
                           return "None";
                         });

}  // namespace
}  // namespace gpurecover::recovery
