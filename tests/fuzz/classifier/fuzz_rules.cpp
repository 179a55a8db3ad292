// SPDX-License-Identifier: Apache-2.0
// Any bytes as a rule file: no crash, no hang, and what reads well survives a dump.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "classifier/catalogue.h"
#include "classifier/kernel_name.h"
#include "classifier/rules_toml.h"

using namespace gpurecover::classifier;

namespace {

void require(bool condition, const char* what) {
  if (condition)
    return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ParsedRules parsed = parse_rules(text, "fuzz.toml");
  for (const Problem& problem : parsed.problems)
    require(to_string(problem).find('\n') == std::string::npos, "a problem is one line");

  for (const std::int32_t code : {2, 214, 700})
    for (const Phase phase : {Phase::launch, Phase::run})
      (void)match(parsed.rules, {code, phase, "gemm_kernel", {{94, -100}}});

  if (parsed.ok()) {
    const RuleSet combined = combine(parsed, default_rules());
    const ParsedRules again = parse_rules(dump(combined, true), "fuzz.toml");
    require(again.ok(), "a dump of good rules is good");
    require(dump(again.rules, false) == dump(combined, false), "a dump reads back to the same");
  }

  // The other readers of untrusted text, on the same bytes.
  const auto pattern = Pattern::compile(text);
  if (pattern)
    (void)pattern->matches("gemm_kernel_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab");
  require(kernel_base_name(text).empty() == text.empty(), "a name keeps some text");
  require(base_name_of_demangled(text).empty() == text.empty(), "a name keeps some text");
  if (const auto ref = parse_arg_ref(text))
    require(parse_arg_ref(to_string(*ref)) == *ref, "an argument reads back to the same");
  (void)parse_error_kind(text);
  return 0;
}
