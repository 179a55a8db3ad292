// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/exit_codes.h"
#include "cli/fault_options.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/run_options.h"
#include "cli/supervisor/client.h"
#include "cli/supervisor/supervisor.h"
#include "cupti/protocol/codec.h"

namespace gpurecover::cli {
namespace {

// Arms the fault in a running session.
int arm(const Invocation& invocation, const inject::Fault& fault) {
  for (const Option& option : run_option_list()) {
    if (invocation.has(option.key()) && option.kind != Kind::kFlag) {
      return fail(std::string(option.key()) +
                  " is for a program that is started; to start one: gpurecover inject … -- APP");
    }
  }
  protocol::ArmRequest request;
  request.plan = protocol::encode(std::vector<inject::Fault>{fault});
  const auto answer = ask_session(invocation.value("--session"), protocol::MessageType::kArm,
                                  protocol::encode(request), protocol::MessageType::kArmed);
  if (!answer) {
    return fail(answer.error());
  }
  if (!answer->empty()) {
    return fail("not armed: " + *answer);
  }
  Output(invocation.has("--quiet") ? 0 : 1).info("armed: " + fault_options(fault));
  return kOk;
}

int run(const Invocation& invocation) {
  auto request = read_fault(invocation);
  if (!request) {
    return fail(request.error());
  }
  if (invocation.app.empty()) {
    return arm(invocation, request->fault);
  }
  if (invocation.has("--session")) {
    return fail(
        "--session arms a fault in a running session, and a program after `--` starts one: "
        "give one of the two");
  }
  auto options = read_run_options(invocation);
  if (!options) {
    return fail(options.error());
  }
  if (request->seed_drawn) {
    Output().info(fmt::format("seed {}", request->fault.seed));
  }
  options->plan = {std::move(request->fault)};
  return run_app(*options);
}

}  // namespace

Verb inject_verb() {
  Verb verb{.name = "inject", .help = help::inject, .app = Tail::kOptional, .run = run};
  verb.options = fault_option_list();
  verb.options.push_back({.names = {"--session"}, .metavar = "NAME"});
  verb.options.insert(verb.options.end(), run_option_list().begin(), run_option_list().end());
  return verb;
}

}  // namespace gpurecover::cli
