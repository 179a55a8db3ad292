// SPDX-License-Identifier: Apache-2.0
// What the verifier says of the corpus' launches: against the answers by hand, and against what
// softgpu sees the launches do. README.md says how to read what this prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "idempotency/offline/summary_codec.h"
#include "idempotency/verdict.h"
#include "image/cubin.h"
#include "image/image.h"
#include "image/ptx_parser.h"
#include "tests/corpus/launch_table.h"
#include "tests/unit/softgpu/interp/interp_device.h"
#if __has_include("image/sass/lift.h")
#include "image/elf.h"
#include "image/sass/lift.h"
#include "image/sass/trace.h"
#define CORPUS_MACHINE_CODE 1
#endif

namespace gpurecover::corpus {
namespace {

using idempotency::AllocationKind;
using idempotency::KernelSummary;
using idempotency::MemoryMap;
using idempotency::Range;
using idempotency::Trust;
using idempotency::Verdict;
using idempotency::VerdictKind;
using softgpu::ByteRange;
using softgpu::LaunchResult;

// The present state, in percent, rounded up. Only ever lowered.
struct Limit {
  const char* form;  // prefix of a form's name
  // Of the launches whose right answer is `idempotent`: those refused; the same with all buffers in
  // one allocation; and of all launches: those that machine code and its PTX see differently.
  double refused, pooled, differing;
};
constexpr Limit kLimits[] = {
    {"clang", 5.5, 12.5, 0},
    {"nvcc", 6, 13.5, 0},
    {"sm_", 8, 21, 3},
};
constexpr double kGoal = 5;  // percent refused

// Where machine code says `idempotent` and the PTX of its compile does not, rightly.
const std::map<std::string, std::string>& sees_more() {
  static const auto* const map = new std::map<std::string, std::string>{
      {"by_called_writer", "in machine code, functions are followed at each call"},
      {"copy_predicated",
       "the predicate that PTX makes a number and compares again is one register"},
  };
  return *map;
}

// Machine code that does not make all the reads of its PTX, which is what is executed.
const std::set<std::string>& reads_less_than_ptx() {
  static const auto* const set = new std::set<std::string>{
      "replicate_in_group",  // loads only where there is something to store
      "convolve_rows",       // reads a coefficient only where there is an element for it
      "convolve_columns",
  };
  return *set;
}

// Mistakes of the verifier that are known, for machine code: kernel and what is wrong. They are
// printed, and the test fails once they are gone, so that they are taken off the list.
const std::map<std::string, std::string>& known_mistakes() {
  static const auto* const map = new std::map<std::string, std::string>;
  return *map;
}

const std::vector<Kernel>& kernels() {
  static const auto* const list = [] {
    auto* kernels = new std::vector<Kernel>;
    std::vector<std::string> mistakes;
    std::set<std::filesystem::path> sources;
    for (const auto& entry : std::filesystem::directory_iterator(CORPUS_KERNELS))
      if (entry.path().extension() == ".cu")
        sources.insert(entry.path());
    for (const auto& source : sources)
      for (Kernel& k : read_source(source, mistakes))
        kernels->push_back(std::move(k));
    for (const std::string& m : mistakes)
      ADD_FAILURE() << m;
    return kernels;
  }();
  return *list;
}

// --- Compiled forms ---

struct Code {
  const Kernel* kernel = nullptr;
  const image::ptx::Module* module = nullptr;
  KernelSummary summary;
  std::vector<Slot> parameters;
  bool machine_code = false;
  std::string refusal;  // of machine code that is not understood; then no summary
};
struct Form {
  std::string name;
  std::uint32_t sm = 0;
  bool machine_code = false;
  std::string same_compile;  // of machine code: the form with its PTX
  std::vector<Code> codes;
  std::map<std::string, std::size_t> by_name;
  // By file.
  std::map<std::string, std::string> texts;
  std::map<std::string, std::shared_ptr<const softgpu::Program>> programs;
  std::vector<std::shared_ptr<const image::ptx::Module>> modules;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void add(Form& form, const Kernel& k, const std::shared_ptr<const image::ptx::Module>& module) {
  Code code;
  code.kernel = &k;
  code.module = module.get();
  const image::ptx::Function* f = module->find_function(k.name);
  if (f == nullptr || !f->has_body) {
    ADD_FAILURE() << k.name << " is not in " << form.name;
    return;
  }
  code.summary = idempotency::summarize(*module, *f);
  for (const image::ptx::Parameter& p : f->params)
    code.parameters.push_back({p.offset, p.size});
  form.by_name[k.name] = form.codes.size();
  form.codes.push_back(std::move(code));
}

bool belongs(const Kernel& k, const std::string& compiler, std::uint32_t sm) {
  return (k.only.empty() || k.only == compiler) && sm >= k.from_sm;
}

void add_ptx(Form& form, const std::string& compiler, const std::string& file,
             const std::string& text) {
  auto module = image::ptx::parse(text);
  if (!module) {
    ADD_FAILURE() << module.error().message(file);
    return;
  }
  form.modules.push_back(std::make_shared<const image::ptx::Module>(std::move(*module)));
  form.texts[file] = text;
  for (const Kernel& k : kernels())
    if (k.file == file && belongs(k, compiler, form.sm))
      add(form, k, form.modules.back());
}

#ifdef CORPUS_MACHINE_CODE
void add_machine_code(Form& form, const std::string& file, std::span<const std::byte> cubin) {
  const auto code = image::sass::MachineCode::open(cubin);
  if (!code) {
    ADD_FAILURE() << file << ": " << code.error().message();
    return;
  }
  const auto list = image::read_cubin(cubin);
  for (const Kernel& k : kernels()) {
    if (k.file != file || !belongs(k, "nvcc", form.sm))
      continue;
    // Where arguments lie is said by the cubin, as the driver says it to an agent.
    std::vector<Slot> parameters;
    if (const auto* entry = list ? list->find(k.name) : nullptr)
      for (const auto& p : entry->parameters)
        parameters.push_back({p.offset, p.size});
    auto module = code->lift(k.name);
    if (module) {
      form.modules.push_back(std::make_shared<const image::ptx::Module>(std::move(*module)));
      add(form, k, form.modules.back());
    } else {
      form.by_name[k.name] = form.codes.size();
      form.codes.emplace_back();
      form.codes.back().kernel = &k;
      form.codes.back().refusal = module.error();
    }
    form.codes.back().parameters = parameters;
    form.codes.back().machine_code = true;
  }
}
#endif

std::vector<std::string> files() {
  std::vector<std::string> files;
  for (const Kernel& k : kernels())
    if (files.empty() || files.back() != k.file)
      files.push_back(k.file);
  return files;
}

// With GPURECOVER_CORPUS_ALL: of every architecture, else of the one that is always built.
const std::vector<std::unique_ptr<Form>>& forms() {
  static const auto* const list = [] {
    auto* forms = new std::vector<std::unique_ptr<Form>>;
    auto form = [&](const std::string& name, std::uint32_t sm) -> Form& {
      for (const auto& f : *forms)
        if (f->name == name)
          return *f;
      forms->push_back(std::make_unique<Form>());
      forms->back()->name = name;
      forms->back()->sm = sm;
      return *forms->back();
    };
    const std::filesystem::path built = CORPUS_BUILT;
    const bool all = std::getenv("GPURECOVER_CORPUS_ALL") != nullptr;
    for (const std::string& file : files()) {
      const std::string text = read_file(built / (file + ".ptx"));
      EXPECT_FALSE(text.empty()) << file << ".ptx was not built";
      add_ptx(form("clang PTX sm_80", 80), "clang", file, text);
      const std::string fatbin = read_file(built / ((all ? "all/" : "") + file + ".fatbin"));
      if (fatbin.empty()) {
        EXPECT_FALSE(all) << "build the target corpus_images_all";
        continue;
      }
      const auto opened = image::open(std::as_bytes(std::span(fatbin)));
      if (!opened) {
        ADD_FAILURE() << file << ".fatbin: " << opened.error().message();
        continue;
      }
      for (const bool machine_code : {false, true}) {
        for (const image::Entry& e : opened->entries) {
          const std::string sm = std::to_string(e.sm);
          if (!machine_code && e.kind == image::EntryKind::kPtx)
            add_ptx(form("nvcc PTX sm_" + sm, e.sm), "nvcc", file, std::string(e.text()));
#ifdef CORPUS_MACHINE_CODE
          if (machine_code && e.kind == image::EntryKind::kCubin) {
            Form& f = form("sm_" + sm + " machine code", e.sm);
            f.machine_code = true;
            std::uint32_t ptx = 0;
            for (const image::Entry& other : opened->entries)
              if (other.kind == image::EntryKind::kPtx && other.sm <= e.sm)
                ptx = std::max(ptx, other.sm);
            f.same_compile = "nvcc PTX sm_" + std::to_string(ptx);
            add_machine_code(f, file, e.data);
          }
#endif
        }
      }
    }
    return forms;
  }();
  return *list;
}

// --- A launch, in memory ---

class Symbols : public idempotency::SymbolRanges {
 public:
  std::optional<Range> find(std::string_view name) const override {
    const auto at = ranges.find(std::string(name));
    return at == ranges.end() ? std::nullopt : std::optional(at->second);
  }
  std::map<std::string, Range> ranges;
};

struct Scene {
  softgpu::testing::TestMemory memory{true};
  MemoryMap map;
  Symbols symbols;
  std::vector<std::uint64_t> addresses;  // of the launch's buffers
  softgpu::ModuleInstance instance;
  std::vector<std::span<std::byte>> all;  // everything that has content
  std::vector<std::byte> arguments;
  std::string mistake;

  std::uint64_t allocate(std::uint64_t bytes, AllocationKind kind) {
    const std::uint64_t at = memory.Allocate(std::max<std::uint64_t>(bytes, 1));
    idempotency::Allocation a;
    a.address = at;
    a.size = std::max<std::uint64_t>(bytes, 1);
    a.kind = kind;
    map.insert(a);
    all.emplace_back(reinterpret_cast<std::byte*>(at), bytes);
    return at;
  }

  // `pooled`: all buffers side by side in one allocation, as sub-allocators place them.
  Scene(const Code& code, const Launch& launch, const softgpu::Program* program, bool pooled,
        std::uint32_t seed) {
    std::uint64_t sum = 0;
    std::vector<std::uint64_t> offsets;
    for (const Buffer& b : launch.buffers) {
      offsets.push_back(sum);
      sum += (b.bytes + 255) / 256 * 256;
    }
    const std::uint64_t pool = pooled ? allocate(sum, AllocationKind::kDevice) : 0;
    for (std::size_t k = 0; k < launch.buffers.size(); ++k)
      addresses.push_back(pooled ? pool + offsets[k]
                                 : allocate(launch.buffers[k].bytes, AllocationKind::kDevice));
    std::mt19937 random(seed);
    for (std::size_t k = 0; k < launch.buffers.size(); ++k)
      fill(launch, k, addresses, random,
           {reinterpret_cast<std::byte*>(addresses[k]), launch.buffers[k].bytes});
    auto variable = [&](const std::string& name, std::uint64_t bytes) {
      const std::uint64_t at = allocate(bytes, AllocationKind::kModuleGlobal);
      symbols.ranges[name] = {at, at + bytes};
      return at;
    };
    if (program != nullptr) {
      instance.program = {std::shared_ptr<const softgpu::Program>(), program};
      for (const softgpu::VariableInfo& v : program->variables())
        instance.addresses.push_back(variable(v.name, v.size));
      for (std::size_t k = 0; k < instance.addresses.size(); ++k) {
        const auto bytes = program->InitialBytes(k, instance.addresses);
        std::memcpy(reinterpret_cast<void*>(instance.addresses[k]), bytes.data(), bytes.size());
      }
    } else if (code.module != nullptr) {
      for (const image::ptx::Variable& v : code.module->variables)
        if (v.space == image::ptx::Space::kGlobal || v.space == image::ptx::Space::kConst)
          variable(v.name, v.size);
    }
    mistake = pack(launch, code.parameters, addresses, arguments);
  }
  std::vector<std::byte> content() const {
    std::vector<std::byte> out;
    for (const auto& a : all)
      out.insert(out.end(), a.begin(), a.end());
    return out;
  }
  void put(const std::vector<std::byte>& content) const {
    std::size_t at = 0;
    for (const auto& a : all) {
      std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(at), a.size(), a.begin());
      at += a.size();
    }
  }
};

idempotency::LaunchDimensions dimensions(const Launch& l) {
  idempotency::LaunchDimensions d;
  std::copy_n(l.grid, 3, d.grid);
  std::copy_n(l.block, 3, d.block);
  d.shared_bytes = l.shared_bytes;
  return d;
}

void decide(const Code& code, const Launch& launch, const Scene& scene, Verdict& verdict) {
  if (!code.refusal.empty()) {
    verdict = Verdict();
    verdict.reason = code.refusal;
    return;
  }
  idempotency::decide(code.summary, scene.arguments, dimensions(launch), scene.map, scene.symbols,
                      verdict);
}

std::string place(const Kernel& k, const Launch& l) {
  return k.file + ".cu:" + std::to_string(l.line) + " " + k.name;
}

// What is found of one launch, for people.
void show(const Code& code, const Launch& launch, const Scene& scene, const Verdict& verdict,
          const std::string& form) {
  std::printf("\n%s, %s\n%s\n%s %s: %s\n%s", place(*code.kernel, launch).c_str(), form.c_str(),
              launch.text.c_str(), std::string(name_of(verdict.kind)).c_str(),
              std::string(name_of(verdict.trust)).c_str(), verdict.reason.c_str(),
              to_text(code.summary).c_str());
  auto ranges = [&](const char* what, const std::vector<Range>& list) {
    for (const Range& r : list) {
      std::string where = "outside all buffers";
      for (std::size_t k = 0; k < scene.addresses.size(); ++k)
        if (r.begin >= scene.addresses[k] && r.begin - scene.addresses[k] < launch.buffers[k].bytes)
          where = launch.buffers[k].name + " [" + std::to_string(r.begin - scene.addresses[k]) +
                  ", " + std::to_string(r.end - scene.addresses[k]) + ")";
      std::printf("  %s %s%s\n", what, where.c_str(), r.exact ? "" : ", bounded");
    }
  };
  ranges("reads", verdict.reads);
  ranges("covered", verdict.covered);
  ranges("writes", verdict.writes);
  ranges("surely writes", verdict.must_writes);
  ranges("clobbers", verdict.clobbered);
}

// --- Verdicts against the answers ---

struct Row {
  unsigned kernels = 0, launches = 0;
  unsigned right = 0;  // launches whose right answer is idempotent
  unsigned false_idempotent = 0, refused = 0;
  unsigned exact = 0, bounded = 0, unknown = 0;
  unsigned pooled_right = 0, pooled_refused = 0;
  unsigned differing = 0;  // of machine code, from its PTX
};
double percent(unsigned part, unsigned whole) {
  return whole == 0 ? 0 : 100.0 * part / whole;
}

std::string markdown(const std::vector<std::pair<std::string, Row>>& rows) {
  std::string out =
      "| Code | Kernels | Launches | False `idempotent` | Wrongly refused | of all buffers in one "
      "allocation | `exact` | `bounded` | `unknown` |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const auto& [name, r] : rows) {
    char line[300];
    std::snprintf(line, sizeof line,
                  "| %s | %u | %u | %u | %u of %u (%.1f%%) | %u (%.1f%%) | %.1f%% | %.1f%% | "
                  "%.1f%% |\n",
                  name.c_str(), r.kernels, r.launches, r.false_idempotent, r.refused, r.right,
                  percent(r.refused, r.right), r.pooled_refused,
                  percent(r.pooled_refused, r.pooled_right), percent(r.exact, r.launches),
                  percent(r.bounded, r.launches), percent(r.unknown, r.launches));
    out += line;
  }
  return out;
}

// The answer for the launch with all its buffers in one allocation: the same, as buffers do not
// overlap, unless it rests on the bound that an allocation sets to an address from data. Those are
// left out; they are the kernels with an index or a pointer from memory.
bool rests_on_allocations(const Launch& l) {
  return std::any_of(l.buffers.begin(), l.buffers.end(), [](const Buffer& b) {
    static const std::set<std::string> kinds = {"index", "index8", "rows",    "permutation",
                                                "list",  "iota",   "pointers"};
    return !b.fill.empty() && kinds.contains(b.fill[0]);
  });
}

TEST(Corpus, IsLargeEnough) {
  std::size_t launches = 0;
  std::set<std::string> names;
  for (const Kernel& k : kernels()) {
    launches += k.launches.size();
    EXPECT_TRUE(names.insert(k.name).second) << k.name << " is there twice";
  }
  std::printf("%zu kernels, %zu launches\n", kernels().size(), launches);
  EXPECT_GE(kernels().size(), 120U);
}

TEST(Corpus, VerdictsAgainstAnswersByHand) {
  std::vector<std::pair<std::string, Row>> rows;
  std::string refused_list, differing;
  const char* const shown = std::getenv("GPURECOVER_CORPUS_SHOW");
  std::map<std::string, std::map<std::string, VerdictKind>> verdicts;  // form, launch
  Verdict verdict;
  for (const auto& form : forms()) {
    Row row;
    refused_list += "\n" + form->name + ", wrongly refused:\n";
    for (const Code& code : form->codes) {
      ++row.kernels;
      for (const Launch& launch : code.kernel->launches) {
        const std::string where = place(*code.kernel, launch);
        ++row.launches;
        const Scene scene(code, launch, nullptr, false, 1);
        ASSERT_EQ(scene.mistake, "") << where << ", " << form->name;
        decide(code, launch, scene, verdict);
        verdicts[form->name][where] = verdict.kind;
        if (shown != nullptr && code.kernel->name == shown)
          show(code, launch, scene, verdict, form->name);
        (verdict.kind == VerdictKind::kUnknown ? row.unknown
         : verdict.trust == Trust::kProved     ? row.exact
                                               : row.bounded) += 1;
        const bool says_so = verdict.kind == VerdictKind::kIdempotent;
        if (launch.answer != Answer::kIdempotent && says_so) {
          ++row.false_idempotent;
          ADD_FAILURE() << "false idempotent: " << where << ", " << form->name << "\n"
                        << launch.text << " -> " << name_of(launch.answer) << ": " << launch.why
                        << "\n"
                        << to_text(code.summary);
        }
        if (launch.answer == Answer::kIdempotent) {
          ++row.right;
          if (!says_so) {
            ++row.refused;
            refused_list += "  " + where + " " + launch.text + "\n      " +
                            std::string(name_of(verdict.kind)) + ": " + verdict.reason + "\n";
          }
        }
        if (form->machine_code) {
          const auto& ptx = verdicts[form->same_compile];
          const auto at = ptx.find(where);
          if (at != ptx.end() && says_so != (at->second == VerdictKind::kIdempotent)) {
            const auto reason = sees_more().find(code.kernel->name);
            const bool explained = says_so && reason != sees_more().end();
            row.differing += !explained;
            differing += "  " + form->name + " " + where + " " + launch.text + ": " +
                         std::string(name_of(verdict.kind)) +
                         (says_so ? "" : " (" + verdict.reason + ")") +
                         ", PTX: " + std::string(name_of(at->second)) +
                         (explained ? ": " + reason->second : "") + "\n";
            EXPECT_TRUE(!says_so || explained) << where << ": more is said of machine code";
          }
        }
        // The same with all buffers in one allocation.
        if (launch.answer == Answer::kUnknown || rests_on_allocations(launch))
          continue;
        const Scene pooled(code, launch, nullptr, true, 1);
        decide(code, launch, pooled, verdict);
        if (launch.answer == Answer::kIdempotent) {
          ++row.pooled_right;
          row.pooled_refused += verdict.kind != VerdictKind::kIdempotent;
        } else if (verdict.kind == VerdictKind::kIdempotent) {
          ++row.false_idempotent;
          ADD_FAILURE() << "false idempotent with all buffers in one allocation: " << where << ", "
                        << form->name << "\n"
                        << to_text(code.summary);
        }
      }
    }
    rows.emplace_back(form->name, row);
    const auto limit = std::find_if(std::begin(kLimits), std::end(kLimits),
                                    [&](const Limit& l) { return form->name.starts_with(l.form); });
    ASSERT_NE(limit, std::end(kLimits));
    EXPECT_LE(percent(row.refused, row.right), limit->refused) << form->name;
    EXPECT_LE(percent(row.pooled_refused, row.pooled_right), limit->pooled) << form->name;
    EXPECT_LE(percent(row.differing, row.launches), limit->differing) << form->name;
    if (percent(row.refused, row.right) > kGoal)
      std::printf("%s: more than the %.0f%% wanted are wrongly refused\n", form->name.c_str(),
                  kGoal);
  }
  std::printf("%s", refused_list.c_str());
  if (!differing.empty())
    std::printf("\nMachine code and the PTX of its compile disagree:\n%s", differing.c_str());
  for (const auto& [name, row] : rows)
    if (row.differing != 0)
      std::printf("%s: %u of %u launches (%.1f%%) refused that are idempotent by the PTX\n",
                  name.c_str(), row.differing, row.launches, percent(row.differing, row.launches));
  const std::string table = markdown(rows);
  std::printf("\n%s", table.c_str());
  if (const char* out = std::getenv("GPURECOVER_CORPUS_TABLE"))
    std::ofstream(out) << table;
}

// What a side file keeps of a summary says the same of every launch.
TEST(Corpus, StoredSummariesGiveTheSameVerdicts) {
  Verdict expected, verdict;
  std::size_t bytes = 0, summaries = 0, launches = 0;
  for (const auto& form : forms()) {
    for (const Code& code : form->codes) {
      if (!code.refusal.empty())
        continue;
      const std::string packed = idempotency::encode_summary(code.summary);
      auto back = idempotency::decode_summary(packed);
      ASSERT_TRUE(back.has_value()) << code.kernel->name << ", " << form->name;
      EXPECT_EQ(idempotency::encode_summary(*back), packed) << code.kernel->name;
      bytes += packed.size();
      ++summaries;
      Code stored = code;
      stored.summary = std::move(*back);
      for (const Launch& launch : code.kernel->launches) {
        for (const bool pooled : {false, true}) {
          const std::string where = place(*code.kernel, launch) + ", " + form->name;
          const Scene scene(code, launch, nullptr, pooled, 1);
          decide(code, launch, scene, expected);
          decide(stored, launch, scene, verdict);
          ++launches;
          ASSERT_EQ(verdict.kind, expected.kind) << where;
          EXPECT_EQ(verdict.trust, expected.trust) << where;
          EXPECT_EQ(verdict.reason, expected.reason) << where;
          EXPECT_EQ(verdict.reads, expected.reads) << where;
          EXPECT_EQ(verdict.writes, expected.writes) << where;
          EXPECT_EQ(verdict.clobbered, expected.clobbered) << where;
          EXPECT_EQ(verdict.covered, expected.covered) << where;
          EXPECT_EQ(verdict.must_writes, expected.must_writes) << where;
          EXPECT_EQ(verdict.all_in_bounds, expected.all_in_bounds) << where;
          EXPECT_EQ(verdict.ranges_complete, expected.ranges_complete) << where;
        }
      }
    }
  }
  EXPECT_GT(launches, 500U);
  std::printf("%zu summaries, %zu bytes each on average, %zu launches\n", summaries,
              summaries == 0 ? 0 : bytes / summaries, launches);
}

// --- Executions ---

// Sorted and merged, or two lists of which each is.
bool inside(const ByteRange& r, std::initializer_list<const std::vector<Range>*> lists) {
  std::uint64_t at = r.begin;
  for (bool moved = true; moved && at < r.end;) {
    moved = false;
    for (const auto* list : lists)
      for (const Range& s : *list)
        if (s.begin <= at && at < s.end) {
          at = s.end;
          moved = true;
        }
  }
  return at >= r.end;
}

class Executions {
 public:
  Executions() {
    softgpu::ExecutorOptions options;
    options.workers = 1;
    executor_ = softgpu::MakeInterpreter(options);
  }

  void compile(Form& form) {
    if (!form.programs.empty())
      return;
    for (const auto& [file, text] : form.texts) {
      if (std::none_of(form.codes.begin(), form.codes.end(), [&, &file = file](const Code& c) {
            return c.kernel->file == file && c.kernel->not_run.empty();
          }))
        continue;
      const auto module = image::ptx::parse(text);
      auto program = executor_->Compile(*module);
      if (!program) {
        ADD_FAILURE() << form.name << " " << file << ": " << program.error().message;
        continue;
      }
      form.programs[file] = *program;
    }
  }

  // `one` is called for each launch that can be executed. Machine code is held against what the PTX
  // of the same compile does.
  template <class F>
  void for_each_launch(const Form& form, const Form& executed, F&& one) {
    for (const Code& code : form.codes) {
      const auto program = executed.programs.find(code.kernel->file);
      if (program == executed.programs.end() || !code.kernel->not_run.empty())
        continue;
      for (const Launch& launch : code.kernel->launches)
        one(code, launch, *program->second);
    }
  }

  // The launches as they are written.
  unsigned run_form(Form& form, Form& executed) {
    unsigned count = 0;
    compile(executed);
    for_each_launch(form, executed,
                    [&](const Code& code, const Launch& launch, const softgpu::Program& program) {
                      for (std::uint32_t seed = 1; seed <= kSeeds; ++seed)
                        for (const bool pooled : {false, true}) {
                          where_ = place(*code.kernel, launch) + " " + launch.text + ", " +
                                   form.name + (pooled ? ", one allocation" : "") + ", seed " +
                                   std::to_string(seed);
                          run(code, launch, program, pooled, seed, !form.machine_code);
                          ++count;
                        }
                    });
    return count;
  }

  void tell_known() const {
    for (const auto& [name, what] : known_mistakes()) {
      std::printf("known mistake: machine code of %s: %s\n", name.c_str(), what.c_str());
      EXPECT_TRUE(known_.contains(name)) << name << ": not seen any more; take it off the list";
    }
  }

  // Launches like them: other dimensions, counts and pointers, some of which go wrong.
  struct Mutated {
    unsigned launches = 0, proved = 0, idempotent = 0, faulted = 0;
    // Faults of launches all of whose accesses are proved to be in bounds, that the proof does not
    // speak of.
    unsigned outside_shared = 0, misaligned = 0;
    std::string first_outside_shared, first_misaligned;
  };
  Mutated run_mutated(Form& form, Form& executed) {
    Mutated count;
    // GPURECOVER_CORPUS_LAUNCHES: how many for each launch of the table.
    const char* wanted = std::getenv("GPURECOVER_CORPUS_LAUNCHES");
    const unsigned mutations = wanted == nullptr ? 6 : static_cast<unsigned>(std::atoi(wanted));
    constexpr unsigned kSeed = 20240607;
    std::printf("seed %u, %u of each launch\n", kSeed, mutations);
    std::mt19937 random(kSeed);
    compile(executed);
    for_each_launch(form, executed,
                    [&](const Code& code, const Launch& original, const softgpu::Program& program) {
                      for (unsigned k = 0; k < mutations && !code.kernel->waits; ++k) {
                        Launch launch = original;
                        mutate(launch, code.parameters.size(), random);
                        Scene scene(code, launch, &program, k % 2 == 1, k);
                        if (!scene.mistake.empty())
                          continue;
                        where_ = "a launch like " + place(*code.kernel, launch) + " " +
                                 launch.text + ", " + form.name +
                                 (k % 2 == 1 ? ", one allocation" : "") + described(launch);
                        decide(code, launch, scene, verdict_);
                        const LaunchResult r = execute(code, launch, program, scene, 500'000);
                        ++count.launches;
                        count.proved += verdict_.all_in_bounds;
                        count.idempotent += verdict_.kind == VerdictKind::kIdempotent;
                        if (verdict_.all_in_bounds && r.code != 0)
                          hold_fault_against_proof(code, r, count);
                        // What goes astray is outside the assumption that bounded ranges rest on.
                        if (r.code == 0 || r.code == softgpu::kLaunchTimeout)
                          hold_against_static(code, r);
                        else
                          ++count.faulted;
                      }
                    });
    return count;
  }

  // A changed kernel, in the launches that are written for it. False: it is no PTX.
  bool run_mutant(const Form& form, const Code& original, const std::string& text,
                  std::mt19937& random, Mutated& count) {
    auto parsed = image::ptx::parse(text);
    if (!parsed)
      return false;
    const auto module = std::make_shared<const image::ptx::Module>(std::move(*parsed));
    const image::ptx::Function* const f = module->find_function(original.kernel->name);
    if (f == nullptr || !f->has_body || original.kernel->launches.empty())
      return false;
    Code code;
    code.kernel = original.kernel;
    code.module = module.get();
    code.summary = idempotency::summarize(*module, *f);
    for (const image::ptx::Parameter& p : f->params)
      code.parameters.push_back({p.offset, p.size});
    const auto program = executor_->Compile(*module);
    if (!program)
      return false;  // a form that the interpreter does not have
    const Launch& launch = original.kernel->launches[random() % original.kernel->launches.size()];
    const bool pooled = random() % 2 == 0;
    Scene scene(code, launch, program->get(), pooled, 1);
    if (!scene.mistake.empty())
      return false;
    where_ = "a mutant of " + place(*code.kernel, launch) + " " + launch.text + ", " + form.name +
             (pooled ? ", one allocation" : "") + "\n" + text.substr(text.rfind(".visible .entry"));
    decide(code, launch, scene, verdict_);
    const LaunchResult r = execute(code, launch, **program, scene, 300'000);
    ++count.launches;
    count.idempotent += verdict_.kind == VerdictKind::kIdempotent;
    if (verdict_.all_in_bounds && r.code != 0)
      hold_fault_against_proof(code, r, count);
    if (r.code == 0 || r.code == softgpu::kLaunchTimeout)
      hold_against_static(code, r);
    else
      ++count.faulted;
    return true;
  }

 private:
  static constexpr std::uint32_t kSeeds = 2;

  static void mutate(Launch& launch, std::size_t parameters, std::mt19937& random) {
    auto below = [&](std::uint64_t n) { return random() % std::max<std::uint64_t>(n, 1); };
    for (auto* axes : {&launch.grid, &launch.block})
      for (std::uint32_t& size : *axes)
        if (size > 1 && below(3) == 0)
          // Warps stay whole as a rule, since most kernels rely on it.
          size = size % 32 == 0 && below(4) != 0
                     ? 32 + static_cast<std::uint32_t>(below(size / 32 + 1)) * 32
                     : 1 + static_cast<std::uint32_t>(below(size + 2));
    for (std::size_t k = 0; k < std::min(parameters, launch.arguments.size()); ++k)
      for (Value& v : launch.arguments[k]) {
        if (v.is_pointer && below(4) == 0) {
          v.offset = below(launch.buffers[v.buffer].bytes + 1);
          v.offset = v.offset / 16 * 16 + (below(4) == 0 ? 4 * below(4) : 0);
        } else if (v.is_pointer && below(6) == 0) {
          v.buffer = below(launch.buffers.size());
          v.offset = 0;
        } else if (!v.is_pointer && below(3) == 0) {
          const std::uint64_t now = v.number;
          // Small whole numbers; floats are left as they are.
          if (static_cast<std::int32_t>(now) >= -4096 && static_cast<std::int32_t>(now) <= 4096)
            v.number = below(5) == 0 ? now - 1 : below(4) == 0 ? now + 1 : below(now + 2);
        }
      }
  }
  static std::string described(const Launch& launch) {
    std::string s = ", <<<";
    for (const auto* axes : {&launch.grid, &launch.block})
      for (const std::uint32_t size : *axes)
        s += std::to_string(size) + " ";
    s += ">>>";
    for (const Argument& a : launch.arguments)
      for (const Value& v : a)
        s += v.is_pointer ? " " + launch.buffers[v.buffer].name + "+" + std::to_string(v.offset)
                          : " " + std::to_string(static_cast<std::int64_t>(v.number));
    return s;
  }

  LaunchResult execute(const Code& code, const Launch& launch, const softgpu::Program& program,
                       Scene& scene, std::uint64_t steps = 50'000'000) {
    softgpu::LaunchRequest request;
    request.module = &scene.instance;
    const auto list = program.kernels();
    while (request.kernel < list.size() && list[request.kernel].name != code.kernel->name)
      ++request.kernel;
    request.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    request.block = {launch.block[0], launch.block[1], launch.block[2]};
    request.dynamic_shared_bytes = launch.shared_bytes;
    request.parameters = {reinterpret_cast<const std::uint8_t*>(scene.arguments.data()),
                          scene.arguments.size()};
    request.cooperative = code.kernel->cooperative;
    request.memory = &scene.memory;
    request.record_accesses = true;
    request.step_budget = steps;
    request.seed = 7;  // in one order, so that what races comes out the same
    request.print = request.print_error = [](std::string_view) {};
    return executor_->Run(request);
  }

  void note_outside_shared(const LaunchResult& r, Mutated& count) {
    if (count.outside_shared++ == 0)
      count.first_outside_shared = where_ + ": " + r.message;
  }

  // All accesses to memory that outlives the launch are proved to be inside it.
  void hold_fault_against_proof(const Code& code, const LaunchResult& r, Mutated& count) {
    if (r.code == softgpu::kMisalignedAddress) {
      if (count.misaligned++ == 0)
        count.first_misaligned = where_ + ": " + r.message;
    } else if (r.code == softgpu::kIllegalAddress) {
      if (code.machine_code && !r.access_was_write &&
          reads_less_than_ptx().contains(code.kernel->name))
        return;
      // Memory that does not outlive the launch.
      if (r.message.find("outside the block's shared memory") != std::string::npos ||
          r.message.find("outside the thread's local memory") != std::string::npos ||
          r.message.find("outside the kernel's parameters") != std::string::npos)
        note_outside_shared(r, count);
      else
        ADD_FAILURE() << "proved in bounds, but it went astray, " << where_ << "\n"
                      << r.message << "\n"
                      << to_text(code.summary);
    }
  }

  void run(const Code& code, const Launch& launch, const softgpu::Program& program, bool pooled,
           std::uint32_t seed, bool answers_too) {
    Scene scene(code, launch, &program, pooled, seed);
    decide(code, launch, scene, verdict_);
    const auto before = scene.content();
    const LaunchResult r = execute(code, launch, program, scene);
    ASSERT_EQ(r.code, 0) << where_ << ": " << r.message << " " << r.location;
    const auto after = scene.content();
    hold_against_static(code, r);
    if (answers_too && !pooled)
      hold_against_answer(code, launch, program, scene, before, after, r);
  }

  void hold_against_static(const Code& code, const LaunchResult& r) {
    // One report for each kernel is enough.
    if (verdict_.kind == VerdictKind::kUnknown || reported_.contains(&code))
      return;
    const Verdict& v = verdict_;
    auto describe = [&](const ByteRange& b) {
      reported_.insert(&code);
      char text[80];
      std::snprintf(text, sizeof text, ": [%#llx, %#llx)\n",
                    static_cast<unsigned long long>(b.begin),
                    static_cast<unsigned long long>(b.end));
      return where_ + text + to_text(code.summary);
    };
    const bool reads_less = code.machine_code && reads_less_than_ptx().contains(code.kernel->name);
    for (const ByteRange& b : r.reads)
      if (!reads_less && !inside(b, {&v.reads, &v.covered})) {
        if (code.machine_code && known_mistakes().contains(code.kernel->name)) {
          describe(b);
          known_.insert(code.kernel->name);
          return;
        }
        ADD_FAILURE() << "reads outside the static set, " << describe(b);
        return;
      }
    for (const ByteRange& b : r.writes)
      if (!inside(b, {&v.writes})) {
        ADD_FAILURE() << "writes outside the static set, " << describe(b);
        return;
      }
    for (const Range& m : v.must_writes)
      if (r.code == 0 && std::none_of(r.writes.begin(), r.writes.end(), [&](const ByteRange& w) {
            return w.begin <= m.begin && m.end <= w.end;
          })) {
        ADD_FAILURE() << "must-write, but it is not written, " << describe({m.begin, m.end});
        return;
      }
    if (v.kind != VerdictKind::kIdempotent)
      return;
    for (const ByteRange& w : r.writes)
      for (const ByteRange& x : r.reads) {
        const ByteRange both{std::max(w.begin, x.begin), std::min(w.end, x.end)};
        if (both.begin < both.end && !inside(both, {&v.covered})) {
          ADD_FAILURE() << "idempotent, but reads what it writes, " << describe(both);
          return;
        }
      }
  }

  // The answers are by hand: mistakes in them are found here.
  void hold_against_answer(const Code& code, const Launch& launch, const softgpu::Program& program,
                           Scene& scene, const std::vector<std::byte>& before,
                           const std::vector<std::byte>& after, const LaunchResult& r) {
    if (launch.answer == Answer::kClobbers) {
      const bool rewrites = std::any_of(r.writes.begin(), r.writes.end(), [&](const ByteRange& w) {
        return std::any_of(r.reads.begin(), r.reads.end(), [&](const ByteRange& x) {
          return std::max(w.begin, x.begin) < std::min(w.end, x.end);
        });
      });
      EXPECT_TRUE(rewrites) << where_ << ": the answer says clobbers, but nothing is rewritten";
      return;
    }
    if (launch.answer != Answer::kIdempotent)
      return;
    // Over noise on all that it wrote, an idempotent launch gives the same result.
    for (const std::uint8_t noise : {0x00, 0x55}) {
      scene.put(before);
      for (const ByteRange& w : r.writes)
        std::memset(reinterpret_cast<void*>(w.begin), noise, w.end - w.begin);
      const LaunchResult again = execute(code, launch, program, scene);
      ASSERT_EQ(again.code, 0) << where_ << ", over noise: " << again.message;
      EXPECT_TRUE(scene.content() == after)
          << where_ << ": the answer says idempotent, but over noise the result is another";
    }
  }

  std::unique_ptr<softgpu::Executor> executor_;
  std::set<const Code*> reported_;
  std::set<std::string> known_;
  Verdict verdict_;
  std::string where_;
};

Form& executed(Form& form) {
  for (const auto& f : forms())
    if (f->name == form.same_compile)
      return *f;
  return form;
}

TEST(Corpus, ExecutionsStayInsideTheStaticSets) {
  Executions executions;
  for (const auto& form : forms()) {
    const unsigned count = executions.run_form(*form, executed(*form));
    std::printf("%s: %u executions\n", form->name.c_str(), count);
    EXPECT_GT(count, 0U);
  }
  if (std::any_of(forms().begin(), forms().end(), [](const auto& f) { return f->machine_code; }))
    executions.tell_known();
}

TEST(Corpus, LaunchesLikeThemStayInsideTheStaticSets) {
  Executions executions;
  for (const auto& form : forms()) {
    const auto count = executions.run_mutated(*form, executed(*form));
    std::printf("%s: %u launches, %u proved in bounds, %u idempotent, %u faulted\n",
                form->name.c_str(), count.launches, count.proved, count.idempotent, count.faulted);
    // The proof speaks of memory that outlives the launch, and not of alignment.
    if (count.outside_shared != 0)
      std::printf(
          "  of those proved in bounds, %u leave shared or local memory, for example\n    %s\n",
          count.outside_shared, count.first_outside_shared.c_str());
    if (count.misaligned != 0)
      std::printf("  of those proved in bounds, %u are misaligned, for example\n    %s\n",
                  count.misaligned, count.first_misaligned.c_str());
    EXPECT_GT(count.launches, 0U);
  }
}

// --- Mutations ---

// A kernel's PTX with something changed in it: whatever is said of it must be true of what it does
// now. Most are still kernels.
std::string mutated_line(std::string line, std::mt19937& random) {
  auto below = [&](std::size_t n) { return random() % std::max<std::size_t>(n, 1); };
  static constexpr std::pair<const char*, const char*> kOther[] = {
      {"add.", "sub."},
      {"sub.", "add."},
      {"ld.global", "ld.const"},
      {".lt.", ".ge."},
      {".ge.", ".lt."},
      {".eq.", ".ne."},
      {".ne.", ".eq."},
      {".gt.", ".le."},
      {".u32", ".s32"},
      {".s32", ".u32"},
      {"shl.", "shr."},
      {"and.", "or."},
      {"or.", "xor."},
      {"min.", "max."},
      {"mul.wide", "mul.lo"},
      {"mad.lo", "mad.hi"},
      {".b32", ".b64"},
      {".u64", ".u32"},
      {"st.global", "st"},
      {"ld.global.nc", "ld"},
      {"@%p", "@!%p"},
      {"@!%p", "@%p"},
      {"bar.sync", "// "},
      {"atom.", "red."},
      {"ld.global", "ld.volatile.global"}};
  const std::size_t how = below(6);
  if (how == 0)
    return "";
  if (how == 1)
    return line + "\n" + line;
  if (how <= 3) {
    const std::size_t start = below(std::size(kOther));
    for (std::size_t k = 0; k < std::size(kOther); ++k) {
      const auto& [from, to] = kOther[(start + k) % std::size(kOther)];
      const std::size_t at = line.find(from);
      if (at != std::string::npos)
        return line.replace(at, std::strlen(from), to);
    }
  }
  // A number, or the number of a register.
  std::vector<std::size_t> digits;
  for (std::size_t k = 0; k < line.size(); ++k)
    if (std::isdigit(static_cast<unsigned char>(line[k])) != 0)
      digits.push_back(k);
  if (digits.empty())
    return "";
  line[digits[below(digits.size())]] = static_cast<char>('0' + below(10));
  return line;
}

unsigned wanted_mutations(unsigned usual) {
  const char* const wanted = std::getenv("GPURECOVER_CORPUS_MUTATIONS");
  return wanted == nullptr ? usual : static_cast<unsigned>(std::atoi(wanted));
}

TEST(Corpus, MutatedPtxIsJudgedByWhatItDoes) {
  Executions executions;
  constexpr unsigned kSeed = 20240715;
  const unsigned wanted = wanted_mutations(400);
  std::mt19937 random(kSeed);
  std::printf("seed %u\n", kSeed);
  for (const auto& form : forms()) {
    if (form->machine_code)
      continue;
    Executions::Mutated count;
    unsigned made = 0, rejected = 0;
    for (unsigned k = 0; k < wanted; ++k) {
      const Code& code = form->codes[random() % form->codes.size()];
      if (!code.kernel->not_run.empty() || code.kernel->waits)
        continue;
      // The head of the file and the one kernel.
      const std::string& text = form->texts.at(code.kernel->file);
      const std::size_t head = text.find(".entry"), name = text.find(".entry " + code.kernel->name);
      if (head == std::string::npos || name == std::string::npos)
        continue;
      const std::size_t begin = text.find('{', name), end = text.find("\n}", begin);
      if (begin == std::string::npos || end == std::string::npos)
        continue;
      std::vector<std::string> lines;
      std::istringstream body(text.substr(begin, end - begin));
      for (std::string line; std::getline(body, line);)
        lines.push_back(line);
      for (std::size_t n = 1 + random() % 2; n != 0; --n) {
        std::string& line = lines[random() % lines.size()];
        if (line.find(".reg") == std::string::npos && line.find('{') == std::string::npos)
          line = mutated_line(line, random);
      }
      std::string mutated = text.substr(0, text.rfind('\n', head) + 1) + ".visible " +
                            text.substr(name, begin - name);
      for (const std::string& line : lines)
        mutated += line + "\n";
      mutated += "}\n";
      ++made;
      rejected += !executions.run_mutant(*form, code, mutated, random, count);
    }
    std::printf(
        "%s: %u mutants, %u rejected by the parser, %u executed: %u idempotent, %u faulted\n",
        form->name.c_str(), made, rejected, count.launches, count.idempotent, count.faulted);
    EXPECT_GT(count.launches, 0U);
    EXPECT_GT(count.idempotent, 0U);
  }
}

#ifdef CORPUS_MACHINE_CODE
// Of machine code with a bit changed: where the decoder takes the same from every instruction, the
// verdict is the same; and whatever it takes, it survives. What the decoder does not look at is
// held against nvdisasm by nvdisasm_check.py.
TEST(Corpus, MutatedMachineCodeChangesNoVerdictUnseen) {
  constexpr unsigned kSeed = 20240716;
  const unsigned wanted = wanted_mutations(300);
  std::mt19937 random(kSeed);
  std::printf("seed %u\n", kSeed);
  const std::filesystem::path built = CORPUS_BUILT;
  auto told = [](const image::sass::TracedInstruction& t) {
    std::string s = std::to_string(t.offset) + " " + std::to_string(t.opcode) + t.guard + t.memory +
                    (t.opaque ? " opaque" : "");
    for (const auto* list : {&t.reads, &t.writes, &t.may_write})
      for (const std::string& r : *list)
        s += " " + r;
    for (const auto& [what, value] : t.numbers)
      s += " " + what + "=" + std::to_string(value);
    return s;
  };
  unsigned mutants = 0, unseen = 0, refused = 0, became_idempotent = 0;
  Verdict before, after;
  for (const std::string& file : files()) {
    const std::string fatbin = read_file(built / (file + ".fatbin"));
    const auto opened = image::open(std::as_bytes(std::span(fatbin)));
    if (!opened)
      continue;
    for (const image::Entry& e : opened->entries) {
      if (e.kind != image::EntryKind::kCubin)
        continue;
      std::vector<std::byte> bytes(e.data.begin(), e.data.end());
      const auto original = image::sass::MachineCode::open(e.data);
      const auto elf = image::read_elf(bytes);
      const auto list = image::read_cubin(e.data);
      ASSERT_TRUE(original && elf && list);
      const unsigned share = wanted / static_cast<unsigned>(files().size()) + 1;
      for (unsigned n = 0; n < share; ++n) {
        const auto& kernel = list->kernels[random() % list->kernels.size()];
        const auto known = std::find_if(kernels().begin(), kernels().end(), [&](const Kernel& k) {
          return k.name == kernel.name && !k.launches.empty();
        });
        const auto section =
            std::find_if(elf->sections.begin(), elf->sections.end(),
                         [&](const auto& s) { return s.name == ".text." + kernel.name; });
        if (known == kernels().end() || section == elf->sections.end())
          continue;
        std::vector<std::byte> changed = bytes;
        const std::size_t bit = random() % (section->data.size() * 8);
        changed[section->offset + bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
        const auto code = image::sass::MachineCode::open(changed);
        ASSERT_TRUE(code);
        ++mutants;
        std::string why_before, why_after;
        auto trace_of = [&](const image::sass::MachineCode& m, std::string& why) {
          std::string s;
          for (const auto& t : m.trace(kernel.name, why))
            s += told(t) + "\n";
          return s + why;
        };
        const bool same = trace_of(*original, why_before) == trace_of(*code, why_after);
        refused += !why_after.empty();
        auto judge = [&](const image::sass::MachineCode& m, Verdict& verdict) {
          verdict = Verdict();
          const auto module = m.lift(kernel.name);
          if (!module)
            return;
          Code c;
          c.kernel = &*known;
          c.module = &*module;
          c.summary = idempotency::summarize(*module, module->functions.front());
          for (const auto& p : kernel.parameters)
            c.parameters.push_back({p.offset, p.size});
          const Scene scene(c, known->launches[0], nullptr, false, 1);
          decide(c, known->launches[0], scene, verdict);
        };
        judge(*original, before);
        judge(*code, after);
        unseen += same;
        became_idempotent +=
            before.kind != VerdictKind::kIdempotent && after.kind == VerdictKind::kIdempotent;
        if (same) {
          EXPECT_TRUE(before.kind == after.kind)
              << kernel.name << ", bit " << bit << " of its code: " << name_of(before.kind)
              << " became " << name_of(after.kind);
        }
      }
    }
  }
  std::printf(
      "%u mutants, %u of which the decoder takes the same, %u refused, %u idempotent that "
      "were not\n",
      mutants, unseen, refused, became_idempotent);
  EXPECT_GT(mutants, 0U);
}
#endif

}  // namespace
}  // namespace gpurecover::corpus
