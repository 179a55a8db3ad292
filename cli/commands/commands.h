// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "cli/options.h"

namespace gpurecover::cli {

// Every verb, in the order in which the general help lists them. A file of this folder defines one
// (rules.cpp its three).
const std::vector<Verb>& all_verbs();

Verb run_verb();
Verb inject_verb();
Verb verify_verb();
Verb analyze_verb();
Verb classify_verb();
std::vector<Verb> rules_verbs();
Verb campaign_verb();
Verb report_verb();
Verb status_verb();
Verb doctor_verb();

// The whole command line without the program's name; the exit status.
int dispatch(const std::vector<std::string>& arguments);

}  // namespace gpurecover::cli
