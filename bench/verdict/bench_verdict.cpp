// SPDX-License-Identifier: Apache-2.0
// What a verdict costs, over the launches of tests/corpus, beside an empty look-up in a hash table.
//
//   bench_verdict [--json] [--rounds N] [--form clang|nvcc|sass]   verdicts
//   bench_verdict --verdicts [--form clang|nvcc|sass]              what is decided
//   bench_verdict [--json] --analyse FILE                          time and memory of an analysis
//
//   look-up   the arguments are hashed and looked up in the agent's cache, which is empty
//   repeated  the same, and the launch is found: kernel, dimensions and all arguments are compared
//   first     the verdict is computed: arguments that were not seen before
//   in turn   as `first`, but each launch of the corpus once before the next round begins, so that
//             code and data of a kernel are as cold as between launches of different kernels
//
// All are measured in turn in each round; each launch counts with the median of its rounds.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cupti/agent/thread_state.h"
#include "idempotency/offline/analyse.h"
#include "idempotency/verdict.h"
#include "image/cubin.h"
#include "image/image.h"
#include "image/ptx_parser.h"
#include "image/sass/lift.h"
#include "tests/corpus/launch_table.h"

namespace {

using namespace gpurecover;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

template <class T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

class Symbols : public idempotency::SymbolRanges {
 public:
  std::optional<idempotency::Range> find(std::string_view name) const override {
    for (const auto& [symbol, range] : ranges) {
      if (symbol == name)
        return range;
    }
    return std::nullopt;
  }
  std::vector<std::pair<std::string, idempotency::Range>> ranges;
};

struct Case {
  std::string name;
  std::shared_ptr<const idempotency::KernelSummary> summary;
  std::vector<std::byte> arguments;
  idempotency::LaunchDimensions dimensions;
  Symbols symbols;
  std::vector<double> lookup, repeated, first, turn;  // of each round, ns
};

// All buffers of all launches, as a program with some thousand allocations has them.
struct Memory {
  idempotency::MemoryMap map;
  std::uint64_t next = 0x5500'0000'0000;
  std::uint64_t add(std::uint64_t bytes) {
    idempotency::Allocation a;
    a.address = next;
    a.size = std::max<std::uint64_t>(bytes, 1);
    map.insert(a);
    next += (a.size + 511) / 512 * 512;
    return a.address;
  }
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void add_kernel(std::vector<Case>& cases, Memory& memory, const corpus::Kernel& kernel,
                const image::ptx::Module& module, const image::ptx::Function& function,
                const std::vector<corpus::Slot>& slots) {
  const auto summary =
      std::make_shared<const idempotency::KernelSummary>(idempotency::summarize(module, function));
  for (const corpus::Launch& launch : kernel.launches) {
    Case c;
    c.name = kernel.name;
    c.summary = summary;
    std::vector<std::uint64_t> addresses;
    for (const corpus::Buffer& b : launch.buffers)
      addresses.push_back(memory.add(b.bytes));
    if (!corpus::pack(launch, slots, addresses, c.arguments).empty())
      continue;
    std::copy_n(launch.grid, 3, c.dimensions.grid);
    std::copy_n(launch.block, 3, c.dimensions.block);
    c.dimensions.shared_bytes = launch.shared_bytes;
    for (const std::string& symbol : summary->symbols) {
      const std::uint64_t at = memory.add(4096);
      c.symbols.ranges.emplace_back(symbol, idempotency::Range{at, at + 4096});
    }
    cases.push_back(std::move(c));
  }
}

std::vector<Case> read_corpus(const std::string& form, Memory& memory) {
  std::vector<Case> cases;
  std::vector<std::string> mistakes;
  std::vector<std::filesystem::path> sources;
  for (const auto& entry : std::filesystem::directory_iterator(CORPUS_KERNELS)) {
    if (entry.path().extension() == ".cu")
      sources.push_back(entry.path());
  }
  std::sort(sources.begin(), sources.end());
  for (const auto& source : sources) {
    const auto kernels = corpus::read_source(source, mistakes);
    const std::filesystem::path built =
        std::filesystem::path(CORPUS_BUILT) / source.filename().replace_extension();
    image::Image image;
    const std::string bytes = read_file(built.string() + (form == "clang" ? ".ptx" : ".fatbin"));
    if (auto opened = image::open(std::as_bytes(std::span(bytes))))
      image = std::move(*opened);
    for (const image::Entry& entry : image.entries) {
      if ((entry.kind == image::EntryKind::kCubin) != (form == "sass"))
        continue;
      if (form == "sass") {
        const auto code = image::sass::MachineCode::open(entry.data);
        const auto list = image::read_cubin(entry.data);
        for (const corpus::Kernel& k : kernels) {
          const auto module = code ? code->lift(k.name)
                                   : tl::expected<image::ptx::Module, std::string>(
                                         tl::make_unexpected(std::string("")));
          const auto* info = list ? list->find(k.name) : nullptr;
          if (!module || info == nullptr)
            continue;
          std::vector<corpus::Slot> slots;
          for (const auto& p : info->parameters)
            slots.push_back({p.offset, p.size});
          add_kernel(cases, memory, k, *module, module->functions.front(), slots);
        }
        continue;
      }
      const auto module = image::ptx::parse(entry.text());
      for (const corpus::Kernel& k : kernels) {
        const auto* function = module ? module->find_function(k.name) : nullptr;
        if (function == nullptr || !function->has_body)
          continue;
        std::vector<corpus::Slot> slots;
        for (const auto& p : function->params)
          slots.push_back({p.offset, p.size});
        add_kernel(cases, memory, k, *module, *function, slots);
      }
    }
  }
  return cases;
}

// As Agent::judge looks up what it does not find among the latest two.
class Cache {
 public:
  bool find(const Case& c, std::uint64_t generation) const {
    const std::size_t place = place_of(c);
    for (const std::size_t at : {place, place + 1}) {
      const agent::CachedJudgement& e = cache_[at];
      const auto& d = c.dimensions;
      if (e.kernel == kernel_of(c) && e.map_generation == generation &&
          ((e.dimensions[0] ^ d.grid[0]) | (e.dimensions[1] ^ d.grid[1]) |
           (e.dimensions[2] ^ d.grid[2]) | (e.dimensions[3] ^ d.block[0]) |
           (e.dimensions[4] ^ d.block[1]) | (e.dimensions[5] ^ d.block[2]) |
           (e.dimensions[6] ^ d.shared_bytes)) == 0 &&
          e.arguments.size() == c.arguments.size() &&
          std::memcmp(e.arguments.data(), c.arguments.data(), c.arguments.size()) == 0) {
        return true;
      }
    }
    return false;
  }
  void put(const Case& c, std::uint64_t generation) {
    agent::CachedJudgement& e = cache_.make_room(place_of(c));
    const auto& d = c.dimensions;
    e.kernel = kernel_of(c);
    e.map_generation = generation;
    e.dimensions = {d.grid[0],  d.grid[1],  d.grid[2],     d.block[0],
                    d.block[1], d.block[2], d.shared_bytes};
    e.arguments = c.arguments;
  }

 private:
  // Only compared.
  static const agent::Kernel* kernel_of(const Case& c) {
    return reinterpret_cast<const agent::Kernel*>(c.summary.get());
  }
  static std::size_t place_of(const Case& c) {
    return agent::JudgementCache::place_of(XXH3_64bits_withSeed(
        c.arguments.data(), c.arguments.size(), reinterpret_cast<std::uint64_t>(c.summary.get())));
  }
  agent::JudgementCache cache_;
};

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class F>
double each_ns(unsigned calls, F&& call) {
  const auto start = Clock::now();
  for (unsigned k = 0; k < calls; ++k)
    call();
  return ns_since(start) / calls;
}

// What is decided, to be compared with what another build decides.
void print(const Case& c, const idempotency::Verdict& v) {
  std::printf("%s %s %s %s %d%d%d\n", c.name.c_str(), std::string(name_of(v.kind)).c_str(),
              std::string(name_of(v.trust)).c_str(), v.reason.c_str(), v.all_in_bounds,
              v.ranges_complete, v.proved_clobber);
  for (const auto& [what, list] : {std::pair{"reads", &v.reads},
                                   {"writes", &v.writes},
                                   {"clobbered", &v.clobbered},
                                   {"covered", &v.covered},
                                   {"must-writes", &v.must_writes}}) {
    for (const idempotency::Range& r : *list)
      std::printf("  %s %llx %llx %d\n", what, static_cast<unsigned long long>(r.begin),
                  static_cast<unsigned long long>(r.end), r.exact);
  }
}

int verdicts(const std::string& form, unsigned rounds, bool json, bool list, bool show) {
  Memory memory;
  std::vector<Case> cases = read_corpus(form, memory);
  if (cases.empty()) {
    std::fprintf(stderr, "bench_verdict: no kernels of form %s in %s; build corpus_images\n",
                 form.c_str(), CORPUS_BUILT);
    return 1;
  }
  if (show) {
    idempotency::Verdict verdict;
    for (const Case& c : cases) {
      idempotency::decide(*c.summary, c.arguments, c.dimensions, memory.map, c.symbols, verdict);
      print(c, verdict);
    }
    return 0;
  }
  const auto empty = std::make_unique<Cache>();
  const auto full = std::make_unique<Cache>();
  idempotency::Verdict verdict;
  const std::uint64_t generation = memory.map.generation();
  double clock = 1e9;
  for (int k = 0; k < 1000; ++k)
    clock = std::min(clock, ns_since(Clock::now()));
  for (unsigned round = 0; round <= rounds; ++round) {
    for (Case& c : cases) {
      full->put(c, generation);
      const auto decide = [&] {
        idempotency::decide(*c.summary, c.arguments, c.dimensions, memory.map, c.symbols, verdict);
        keep(verdict);
      };
      const double lookup = each_ns(64, [&] { keep(empty->find(c, generation)); });
      const double repeated = each_ns(64, [&] { keep(full->find(c, generation)); });
      const double first = each_ns(16, decide);
      if (round > 0) {  // the first one warms up
        c.lookup.push_back(lookup);
        c.repeated.push_back(repeated);
        c.first.push_back(first);
      }
    }
    for (Case& c : cases) {
      const auto start = Clock::now();
      idempotency::decide(*c.summary, c.arguments, c.dimensions, memory.map, c.symbols, verdict);
      keep(verdict);
      const double ns = ns_since(start) - clock;
      if (round > 0)
        c.turn.push_back(ns);
    }
  }
  Json out;
  out["form"] = form;
  out["launches"] = cases.size();
  out["allocations"] = memory.map.size();
  out["rounds"] = rounds;
  if (!json)
    std::printf(
        "%zu launches of the corpus, %s, %zu allocations, %u rounds; ns\n%-9s %9s %9s %9s "
        "%9s %14s\n",
        cases.size(), form.c_str(), memory.map.size(), rounds, "", "median", "90%", "99%", "most",
        "per look-up");
  double base = 0;
  for (const auto& [name, of] : {std::pair{"look-up", &Case::lookup},
                                 {"repeated", &Case::repeated},
                                 {"first", &Case::first},
                                 {"in turn", &Case::turn}}) {
    std::vector<double> medians;
    for (const Case& c : cases)
      medians.push_back(median(c.*of));
    std::sort(medians.begin(), medians.end());
    const auto at = [&](double share) {
      return medians[static_cast<std::size_t>(share * static_cast<double>(medians.size() - 1))];
    };
    if (base == 0)
      base = at(0.5);
    if (json) {
      out[name] = {{"median_ns", at(0.5)},
                   {"p90_ns", at(0.9)},
                   {"p99_ns", at(0.99)},
                   {"max_ns", at(1)},
                   {"per_lookup", at(0.5) / base}};
    } else {
      std::printf("%-9s %9.1f %9.1f %9.1f %9.1f %14.1f\n", name, at(0.5), at(0.9), at(0.99), at(1),
                  at(0.5) / base);
    }
  }
  if (list) {
    for (const Case& c : cases)
      std::printf("%9.1f  %s\n", median(c.first), c.name.c_str());
  }
  if (json)
    std::printf("%s\n", out.dump(2).c_str());
  return 0;
}

// In a child of its own, whose peak is that of nothing else.
int analyse(const std::string& path, bool json) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const std::string bytes = read_file(path);
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    const auto images = image::find_images(std::as_bytes(std::span(bytes)));
    if (!images || images->images.empty()) {
      std::fprintf(stderr, "bench_verdict: %s: no kernels in it\n", path.c_str());
      _exit(1);
    }
    auto start = Clock::now();
    const idempotency::AnalysedFile file = idempotency::analyse("large", *images);
    const double analysis_s = ns_since(start) / 1e9;
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    std::size_t kernels = 0, summaries = 0;
    for (const auto& image : file.images) {
      kernels += image.kernels.size();
      for (const auto& kernel : image.kernels)
        summaries += kernel.summary.has_value();
    }
    const std::string text = to_json(file, "bench", idempotency::Detail::kComplete);
    start = Clock::now();
    const auto read = idempotency::read_side_file(text);
    const double read_s = ns_since(start) / 1e9;
    start = Clock::now();
    std::size_t unpacked = 0;
    if (read) {
      for (const auto& image : read->images) {
        for (const auto& kernel : image.kernels)
          unpacked += idempotency::unpack_summary(kernel).has_value();
      }
    }
    const double unpack_s = ns_since(start) / 1e9;
    Json out;
    out["file_bytes"] = bytes.size();
    out["kernels"] = kernels;
    out["summaries"] = summaries;
    out["analysis_s"] = analysis_s;
    out["analysis_us_per_kernel"] =
        kernels == 0 ? 0 : analysis_s * 1e6 / static_cast<double>(kernels);
    out["peak_rss_mib"] = static_cast<double>(after.ru_maxrss) / 1024;
    out["peak_before_mib"] = static_cast<double>(before.ru_maxrss) / 1024;
    out["side_file_bytes"] = text.size();
    out["side_file_read_s"] = read_s;
    out["unpacked"] = unpacked;
    out["unpack_us_per_kernel"] =
        unpacked == 0 ? 0 : unpack_s * 1e6 / static_cast<double>(unpacked);
    if (json) {
      std::printf("%s\n", out.dump(2).c_str());
    } else {
      std::printf("%s\n", path.c_str());
      for (const auto& [name, value] : out.items())
        std::printf("  %-24s %s\n", name.c_str(), value.dump().c_str());
    }
    std::fflush(nullptr);
    _exit(unpacked == summaries ? 0 : 1);
  }
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child)
    return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, list = false, show = false;
  unsigned rounds = 21;
  std::string form = "nvcc", file;
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    const bool more = k + 1 < argc;
    if (word == "--json") {
      json = true;
    } else if (word == "--list") {
      list = true;
    } else if (word == "--verdicts") {
      show = true;
    } else if (word == "--rounds" && more) {
      rounds = static_cast<unsigned>(std::max(1, std::atoi(argv[++k])));
    } else if (word == "--form" && more) {
      form = argv[++k];
    } else if (word == "--analyse" && more) {
      file = argv[++k];
    } else {
      std::fprintf(stderr,
                   "usage: bench_verdict [--json] [--list] [--rounds N] [--form clang|nvcc|sass]\n"
                   "       bench_verdict --verdicts [--form clang|nvcc|sass]\n"
                   "       bench_verdict [--json] --analyse FILE\n");
      return 2;
    }
  }
  return file.empty() ? verdicts(form, rounds, json, list, show) : analyse(file, json);
}
