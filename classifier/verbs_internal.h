// SPDX-License-Identifier: Apache-2.0
// What the verbs found out, before it is rendered.
#pragma once

#include <string>
#include <vector>

#include "classifier/catalogue.h"
#include "classifier/rules.h"

namespace gpurecover::classifier::verbs {

// One rule's part in a decision.
struct Contender {
  const Rule* rule;
  bool wins;
  std::string why;  // why it lost; empty for the winner
  bool other_code;  // lost because it is about other codes
};

struct Explanation {
  Query query;
  bool phase_assumed = false;
  Match match;
  std::vector<Contender> contenders;  // in the order in which they are asked
};

// Of one code: the launch phase too, where the code can come from a launch.
struct CodeAnswer {
  const CodeInfo* info;
  std::vector<Explanation> decisions;
};

struct XidAnswer {
  std::int32_t xid;
  const XidInfo* info;  // null: not in the catalogue
};

struct Classification {
  std::vector<CodeAnswer> codes;
  std::vector<XidAnswer> xids;
};

// "file:line".
std::string place_of(const Rule& rule);
std::string_view meaning_of(const XidAnswer& answer);
std::string_view bucket_of(const XidAnswer& answer);
Rerun rerun_of(const XidAnswer& answer);

// verbs_json.cpp; ends with a newline.
std::string to_json(const Explanation& explanation);
std::string to_json(const Classification& classification);

}  // namespace gpurecover::classifier::verbs
