// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "idempotency/access_summary.h"

namespace gpurecover::idempotency {

// A summary in a form that tests can name: "r8 w0" reads through the pointer at parameter byte 8
// and writes through that at 0; "u" is read-modify-write; alternatives are joined by '|', sums by
// '+'. Then the defeats, shortened to their first two words. Accesses are sorted.
inline std::string signature(const KernelSummary& s) {
  auto root = [&](const Root& r) -> std::string {
    switch (r.kind) {
      case RootKind::kParameter:
        return std::to_string(r.param_offset);
      case RootKind::kAnyParameter:
        return "any" + std::to_string(r.param_offset) + "-" +
               std::to_string(r.param_offset + r.param_size);
      case RootKind::kGlobalSymbol:
      case RootKind::kConstSymbol:
        return s.symbols.at(r.symbol);
      case RootKind::kLoaded:
        return "loaded";
      case RootKind::kDriver:
        return "driver";
      case RootKind::kConstant:
        return r.address == 0 ? "null" : "constant";
      case RootKind::kUnknown:
        break;
    }
    return "unknown";
  };
  std::set<std::string> out;
  for (const Access& a : s.accesses) {
    std::set<std::string> alternatives;
    for (const Alternative& alt : a.alternatives) {
      std::string sum;
      for (const Root& r : alt.roots)
        sum += (sum.empty() ? "" : "+") + root(r);
      for (const Root& r : alt.subtracted)
        sum += "-" + root(r);
      alternatives.insert(sum);
    }
    std::string text = a.kind == AccessKind::kRead ? "r" : a.kind == AccessKind::kWrite ? "w" : "u";
    bool first = true;
    for (const std::string& alt : alternatives) {
      text += (first ? "" : "|") + alt;
      first = false;
    }
    out.insert(text);
  }
  std::string text;
  for (const std::string& o : out)
    text += (text.empty() ? "" : " ") + o;
  for (const std::string& d : s.defeats) {
    text += (text.empty() ? "!" : " !") + d.substr(0, d.find(' ', d.find(' ') + 1));
  }
  return text;
}

}  // namespace gpurecover::idempotency
