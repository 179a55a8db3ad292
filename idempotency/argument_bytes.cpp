// SPDX-License-Identifier: Apache-2.0
#include "idempotency/argument_bytes.h"

#include <algorithm>
#include <cstring>

#include "idempotency/address_program.h"

namespace gpurecover::idempotency {

std::vector<ArgumentBytes> argument_bytes(const KernelSummary& summary) {
  std::vector<ArgumentBytes> all;
  if (!summary.complete || !summary.defeats.empty() || summary.declared_idempotent) {
    return all;  // decided before any argument is looked at
  }
  const auto add = [&](std::uint64_t begin, std::uint64_t bytes, bool pointers = false) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + bytes, summary.param_bytes);
    if (begin < end) {
      all.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), pointers});
    }
  };
  const auto add_roots = [&](const std::vector<Root>& roots) {
    for (const Root& root : roots) {
      if (root.kind == RootKind::kParameter) {
        add(root.param_offset, 8);
      } else if (root.kind == RootKind::kAnyParameter) {
        add(root.param_offset, root.param_size, true);
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
  std::sort(all.begin(), all.end(), [](const ArgumentBytes& a, const ArgumentBytes& b) {
    return a.pointers != b.pointers ? b.pointers : a.begin < b.begin;
  });
  std::vector<ArgumentBytes> merged;
  for (const ArgumentBytes& one : all) {
    // Pointers that lie at other fourth bytes are others.
    if (!merged.empty() && one.pointers == merged.back().pointers &&
        one.begin <= merged.back().end &&
        (!one.pointers || (one.begin - merged.back().begin) % 4 == 0)) {
      merged.back().end = std::max(merged.back().end, one.end);
    } else {
      merged.push_back(one);
    }
  }
  return merged;
}

void put_together(std::span<const ArgumentBytes> pieces, std::span<const std::byte> args,
                  const MemoryMap& map, std::vector<std::byte>& out) {
  out.clear();
  for (const ArgumentBytes& piece : pieces) {
    const auto begin = args.begin() + piece.begin;
    if (!piece.pointers) {
      out.insert(out.end(), begin, args.begin() + piece.end);
      continue;
    }
    for (std::uint32_t at = piece.begin; at + 8 <= piece.end; at += 4) {
      std::uint64_t word = 0;
      std::memcpy(&word, args.data() + at, sizeof word);
      if (word != 0 && !map.may_find(word)) {
        word = 1;  // leads nowhere, whatever it is
      }
      const std::size_t size = out.size();
      out.resize(size + sizeof word);
      std::memcpy(out.data() + size, &word, sizeof word);
    }
  }
}

}  // namespace gpurecover::idempotency
