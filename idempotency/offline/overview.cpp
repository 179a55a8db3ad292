// SPDX-License-Identifier: Apache-2.0
#include "idempotency/offline/overview.h"

#include <algorithm>
#include <map>
#include <utility>

#include "idempotency/address_program.h"

namespace gpurecover::idempotency {
namespace {

// In which order it is listed, and its name.
using Place = std::pair<std::uint64_t, std::string>;

Place place_of(const Root& root, const KernelSummary& summary,
               std::span<const ArgumentSlot> parameters) {
  constexpr std::uint64_t kVariables = 1ull << 40, kRest = 1ull << 41;
  switch (root.kind) {
    case RootKind::kParameter:
    case RootKind::kAnyParameter:
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        const ArgumentSlot& slot = parameters[k];
        if (root.param_offset < slot.offset || root.param_offset - slot.offset >= slot.size)
          continue;
        std::string name = "arg" + std::to_string(k);
        if (slot.size > 8) {
          name += ".field@" + (root.kind == RootKind::kAnyParameter
                                   ? std::string("*")
                                   : std::to_string(root.param_offset - slot.offset));
        }
        return {root.param_offset, std::move(name)};
      }
      return {root.param_offset, "byte " + std::to_string(root.param_offset) + " of the arguments"};
    case RootKind::kGlobalSymbol:
    case RootKind::kConstSymbol:
      return {kVariables + root.symbol,
              (root.kind == RootKind::kGlobalSymbol ? "global:" : "const:") +
                  (root.symbol < summary.symbols.size() ? summary.symbols[root.symbol] : "?")};
    case RootKind::kLoaded:
      return {kRest, "loaded"};
    case RootKind::kConstant:
      return {kRest + 1, "constant"};
    case RootKind::kDriver:
      return {kRest + 2, "driver"};
    case RootKind::kUnknown:
      break;
  }
  return {kRest + 3, "unknown pointer"};
}

}  // namespace

std::vector<PointerUse> overview(const KernelSummary& summary,
                                 std::span<const ArgumentSlot> parameters) {
  std::map<Place, PointerUse> uses;
  const AddressProgram* const program = summary.addresses.get();
  for (const Access& a : summary.accesses) {
    bool exact = program != nullptr && !a.sites.empty(), must = false;
    for (const std::uint32_t site : a.sites) {
      if (program == nullptr || site >= program->sites.size())
        continue;
      exact = exact && program->sites[site].address != kNoSlot;
      must |= program->sites[site].must_write;
    }
    for (const Alternative& alternative : a.alternatives) {
      for (const Root& root : alternative.roots) {
        Place place = place_of(root, summary, parameters);
        const auto [at, added] = uses.try_emplace(place);
        PointerUse& use = at->second;
        if (added) {
          use.what = place.second;
          use.line = a.line;
        }
        use.reads |= a.kind == AccessKind::kRead;
        use.writes |= a.kind == AccessKind::kWrite;
        use.read_modify_writes |= a.kind == AccessKind::kReadModifyWrite;
        use.must_writes |= must && a.kind == AccessKind::kWrite;
        use.exact = use.exact && exact;
      }
    }
  }
  std::vector<PointerUse> out;
  for (auto& [place, use] : uses)
    out.push_back(std::move(use));
  return out;
}

std::string words_of(const PointerUse& use) {
  std::string text;
  const auto add = [&](bool is, const char* word) {
    if (is)
      text += (text.empty() ? "" : ", ") + std::string(word);
  };
  add(use.reads, "read");
  add(use.writes, "write");
  add(use.must_writes, "must-write");
  add(use.read_modify_writes, "read-modify-write");
  return text + (use.exact ? "; exact" : "; bounded");
}

}  // namespace gpurecover::idempotency
