// SPDX-License-Identifier: Apache-2.0
#include "cli/run_options.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "classifier/rules_toml.h"
#include "cli/report/file.h"
#include "cli/supervisor/session_folder.h"

namespace gpurecover::cli {
namespace {

// Options of the contract that this version cannot honour, and what to do instead. They are refused
// and not ignored: a run that looks protected in a way that it is not would be a lie.
constexpr std::pair<std::string_view, std::string_view> kLater[] = {
    {"--epoch", "declare what kernels read and write by [[kernel]] in a rule file"},
    {"--hang-timeout", "use timeout(1): gpurecover run -- timeout 60 APP"},
    {"--profile", "declare what kernels read and write by [[kernel]] in a rule file"},
    {"--max-overhead", "no snapshots are taken, so there is nothing to limit; leave it out"},
};

}  // namespace

const std::vector<Option>& run_option_list() {
  static const std::vector<Option> options{
      {.names = {"--device"},
       .kind = Kind::kChoice,
       .metavar = "DEVICE",
       .choices = {"auto", "cuda", "soft"}},
      {.names = {"--rules"}, .metavar = "FILE"},
      {.names = {"--analysis-dir"}, .metavar = "DIR"},
      {.names = {"--level"},
       .kind = Kind::kChoice,
       .metavar = "LEVEL",
       .choices = {"observe", "replay", "full"}},
      {.names = {"--report"}, .metavar = "FILE"},
      {.names = {"--events"}, .metavar = "FILE"},
      {.names = {"--name"}, .metavar = "NAME"},
      {.names = {"-q", "--quiet"}, .kind = Kind::kFlag},
      {.names = {"-v", "--verbose"}, .kind = Kind::kFlag},
      {.names = {"--standby"},
       .kind = Kind::kChoice,
       .metavar = "MODE",
       .choices = {"off", "cold", "warm"}},
      {.names = {"--epoch"}, .metavar = "TIME"},
      {.names = {"--hang-timeout"}, .metavar = "TIME"},
      {.names = {"--profile"}, .metavar = "FILE"},
      {.names = {"--max-overhead"}, .metavar = "PCT"},
      {.names = {"--no-steer"}, .kind = Kind::kFlag},
      {.names = {"--soft-memcheck"}, .kind = Kind::kFlag},
  };
  return options;
}

tl::expected<RunOptions, std::string> read_run_options(const Invocation& invocation) {
  for (const auto& [name, instead] : kLater) {
    if (invocation.has(name)) {
      return failure(std::string(name) +
                     " is not available in this version: " + std::string(instead));
    }
  }
  RunOptions options;
  options.command = invocation.app;
  const std::string device = invocation.value("--device", "auto");
  options.device = device == "cuda"   ? DeviceChoice::kCuda
                   : device == "soft" ? DeviceChoice::kSoft
                                      : DeviceChoice::kAuto;
  const std::string level = invocation.value("--level", "full");
  options.level = level == "observe"  ? protocol::Level::kObserve
                  : level == "replay" ? protocol::Level::kReplay
                                      : protocol::Level::kFull;
  const std::string standby = invocation.value("--standby", "cold");
  options.standby = standby == "off"    ? protocol::Standby::kOff
                    : standby == "warm" ? protocol::Standby::kWarm
                                        : protocol::Standby::kCold;
  options.no_steer = invocation.has("--no-steer");
  if (options.no_steer && options.standby == protocol::Standby::kWarm) {
    return failure(
        "--no-steer and --standby warm exclude each other: memory that was not steered cannot be "
        "handed to a standby");
  }
  options.soft_memcheck = invocation.has("--soft-memcheck");
  if (invocation.has("--analysis-dir")) {
    // Absolute: the program may change its folder.
    const std::string given = invocation.value("--analysis-dir");
    std::error_code error;
    const auto folder = std::filesystem::canonical(given, error);
    if (error || !std::filesystem::is_directory(folder, error)) {
      return failure("--analysis-dir " + given + ": " +
                     (error ? error.message() : std::string("is no folder")) +
                     "; give the folder that `gpurecover analyze -o DIR` has written to");
    }
    options.analysis_dir = folder.string();
  }
  options.report = invocation.value("--report");
  options.events = invocation.value("--events");
  for (const char* name : {"--report", "--events"}) {
    if (invocation.has(name) && (invocation.value(name).empty() || invocation.value(name) == "-")) {
      return failure(std::string(name) + " takes a file: stdout and stdin belong to the program");
    }
  }
  if (!options.report.empty() && options.report == options.events) {
    return failure("--report and --events must be different files");
  }
  options.name = invocation.value("--name");
  if (invocation.has("--name")) {
    if (const std::string wrong = check_session_name(options.name); !wrong.empty()) {
      return failure("--name: " + wrong);
    }
  }
  if (invocation.has("--quiet")) {
    options.verbosity = 0;
  }
  if (invocation.has("--verbose")) {
    if (options.verbosity == 0) {
      return failure("-q and -v exclude each other");
    }
    options.verbosity = 2;
  }
  options.rules = classifier::default_rules();
  if (invocation.has("--rules")) {
    const std::string path = invocation.value("--rules");
    const auto text = read_file(path);
    if (!text) {
      return failure("--rules " + path + ": " + text.error());
    }
    const classifier::ParsedRules parsed = classifier::parse_rules(*text, path);
    if (!parsed.ok()) {
      std::string problems;
      for (const classifier::Problem& problem : parsed.problems) {
        problems += (problems.empty() ? "" : "\n") + classifier::to_string(problem);
      }
      return failure(problems);
    }
    options.rules = classifier::combine(parsed, classifier::default_rules());
  }
  for (const char* name : {"--device", "--level", "--rules", "--standby", "--analysis-dir"}) {
    if (invocation.has(name)) {
      options.repeated.emplace_back(name);
      options.repeated.push_back(invocation.value(name));
    }
  }
  if (options.no_steer) {
    options.repeated.emplace_back("--no-steer");
  }
  if (options.soft_memcheck) {
    options.repeated.emplace_back("--soft-memcheck");
  }
  return options;
}

}  // namespace gpurecover::cli
