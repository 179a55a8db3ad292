// SPDX-License-Identifier: Apache-2.0
#include "idempotency/argument_bytes.h"

#include <algorithm>

#include "idempotency/address_program.h"

namespace gpurecover::idempotency {

std::vector<ArgumentBytes> argument_bytes(const KernelSummary& summary) {
  std::vector<ArgumentBytes> all;
  const auto add = [&](std::uint64_t begin, std::uint64_t bytes) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + bytes, summary.param_bytes);
    if (begin < end) {
      all.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
    }
  };
  const auto add_roots = [&](const std::vector<Root>& roots) {
    for (const Root& root : roots) {
      if (root.kind == RootKind::kParameter) {
        add(root.param_offset, 8);
      } else if (root.kind == RootKind::kAnyParameter) {
        add(root.param_offset, root.param_size);
      }
    }
  };
  for (const Access& access : summary.accesses) {
    for (const Alternative& alternative : access.alternatives) {
      add_roots(alternative.roots);
      add_roots(alternative.subtracted);
    }
  }
  if (summary.addresses != nullptr) {
    for (const Step& step : summary.addresses->steps) {
      if (step.kind == StepKind::kParam) {
        add(step.a, step.bytes);
      }
    }
  }
  std::sort(all.begin(), all.end(),
            [](const ArgumentBytes& a, const ArgumentBytes& b) { return a.begin < b.begin; });
  std::vector<ArgumentBytes> merged;
  for (const ArgumentBytes& one : all) {
    if (!merged.empty() && one.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, one.end);
    } else {
      merged.push_back(one);
    }
  }
  return merged;
}

}  // namespace gpurecover::idempotency
