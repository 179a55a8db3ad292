// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/exit_codes.h"
#include "cli/help/help.h"
#include "cli/output.h"
#include "cli/supervisor/device_probe.h"
#include "cli/supervisor/install.h"
#include "cli/version.h"
#include "cupti/protocol/messages.h"

namespace gpurecover::cli {
namespace {

constexpr std::chrono::seconds kTimeout{60};

// The lines of the answer; what is missing makes it bad and says how to get it.
class Findings {
 public:
  void good(std::string_view what, const std::string& text) { add("ok", what, text); }
  void note(std::string_view what, const std::string& text) { add("note", what, text); }
  void bad(std::string_view what, const std::string& text, const std::string& remedy) {
    good_ = false;
    add("missing", what, text);
    out_ += fmt::format("{:9}{:8}{}\n", "", "", remedy);
  }
  bool all_good() const { return good_; }
  const std::string& text() const { return out_; }

 private:
  void add(std::string_view state, std::string_view what, const std::string& text) {
    out_ += fmt::format("{:9}{:8}{}\n", state, what, text);
  }
  bool good_ = true;
  std::string out_;
};

int run(const Invocation& invocation) {
  if (!invocation.app.empty()) {
    return fail(
        "`doctor -- APP` is not available in this version: `gpurecover run --report FILE -- APP` "
        "says afterwards what was not protected, and why; plain `gpurecover doctor` looks at this "
        "machine");
  }
  const Install install = find_install();
  ProbeRequest request;
  request.cupti = find_cupti_file();
  request.cupti_version = true;
  request.agent = install.agent;
  const DeviceProbe probe = probe_device(request, kTimeout);
  Findings findings;
  findings.good("tool",
                fmt::format("gpurecover {}, protocol {}", version(), protocol::kProtocolVersion));
  if (install.agent.empty()) {
    findings.bad("agent", install.expected + "/" + protocol::kAgentFile + " is not there",
                 "install gpurecover as a whole: cmake --install BUILD --prefix PREFIX");
  } else if (probe.answered && !probe.agent_loads) {
    findings.bad("agent", probe.agent_error, "build gpurecover on this machine, or a like one");
  } else if (probe.answered) {
    findings.good("agent", install.agent);
  }
  const bool has_device = probe.answered && probe.devices > 0;
  if (has_device) {
    findings.good("driver", fmt::format("CUDA {}", probe.driver_version));
    for (const std::string& name : probe.names) {
      findings.good("device", name);
    }
  } else {
    const std::string why = probe.answered ? probe.driver_error : probe.failure;
    const std::string remedy =
        probe.driver_found
            ? "is a GPU there (`nvidia-smi`), and may this user or container use it?"
            : "install NVIDIA's driver, or start the container with the GPU (--gpus all)";
    if (install.soft.empty()) {
      findings.bad("device", why, remedy);
    } else {
      findings.note("device", "no NVIDIA device: " + why);
    }
  }
  if (!install.soft.empty()) {
    findings.good("soft", install.soft);
  }
  if (!probe.cupti_path.empty()) {
    findings.good("cupti", probe.cupti_version.empty()
                               ? probe.cupti_path
                               : fmt::format("{} ({})", probe.cupti_version, probe.cupti_path));
  } else if (has_device || install.soft.empty()) {
    findings.bad(
        "cupti", probe.answered ? probe.cupti_error : "not looked for",
        "install CUPTI 13 (Debian and Ubuntu: cuda-cupti-13-0 of NVIDIA's repository; pip: "
        "nvidia-cuda-cupti), or set CUDA_HOME to the toolkit");
  }
  if (const char* injection = std::getenv(protocol::kEnvInjection);
      injection != nullptr && *injection != '\0' && install.agent != injection) {
    findings.bad("env", fmt::format("{} is set to {}", protocol::kEnvInjection, injection),
                 "unset it: another tool's agent takes the place of ours");
  }
  if (!print(findings.text())) {
    return kOurError;
  }
  return findings.all_good() ? kOk : kBad;
}

}  // namespace

Verb doctor_verb() {
  return {.name = "doctor", .help = help::doctor, .app = Tail::kOptional, .run = run};
}

}  // namespace gpurecover::cli
