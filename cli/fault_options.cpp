// SPDX-License-Identifier: Apache-2.0
#include "cli/fault_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "classifier/catalogue.h"
#include "classifier/rules.h"
#include "cli/output.h"

namespace gpurecover::cli {

const std::vector<Option>& fault_option_list() {
  static const std::vector<Option> options{
      {.names = {"-k", "--kernel", "--kernel-name"}, .metavar = "PATTERN", .required = true},
      {.names = {"--error"}, .metavar = "KIND", .required = true},
      {.names = {"--how"},
       .kind = Kind::kChoice,
       .metavar = "HOW",
       .choices = {"code", "latch", "fault"}},
      {.names = {"--damage"},
       .kind = Kind::kChoice,
       .metavar = "DAMAGE",
       .choices = {"none", "whole", "partial", "scribble"}},
      {.names = {"--nth"}, .kind = Kind::kCount, .metavar = "N"},
      {.names = {"--every"}, .kind = Kind::kCount, .metavar = "K"},
      {.names = {"--prob"}, .kind = Kind::kReal, .metavar = "P"},
      {.names = {"--seed"}, .kind = Kind::kCount, .metavar = "S"},
      {.names = {"--times"}, .kind = Kind::kCount, .metavar = "T"},
      {.names = {"--at"}, .metavar = "POINT"},
      {.names = {"--strict"}, .kind = Kind::kFlag},
  };
  return options;
}

namespace {

// "block=1,thread=2,instr=30", in any order; what is left out is 0.
tl::expected<inject::Point, std::string> parse_point(const std::string& text) {
  inject::Point point;
  const std::string remedy = "; write e.g. --at block=0,thread=5,instr=17";
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string digits = equals == std::string::npos ? "" : part.substr(equals + 1);
    std::uint64_t value = 0;
    const auto [rest, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || problem != std::errc() || rest != digits.data() + digits.size()) {
      return failure(fmt::format("--at: '{}' is not a name and a number{}", part, remedy));
    }
    if (key == "block") {
      point.block = value;
    } else if (key == "thread" && value <= UINT32_MAX) {
      point.thread = static_cast<std::uint32_t>(value);
    } else if (key == "instr") {
      point.instruction = value;
    } else {
      return failure(fmt::format("--at: '{}' is none of block, thread and instr{}", part, remedy));
    }
    begin = end + 1;
  }
  return point;
}

}  // namespace

std::string why_soft_device(const inject::Fault& fault) {
  if (fault.at) {
    return "--at needs the device in software: add --device soft";
  }
  if (fault.how == inject::How::kFault && !inject::made_by_gpu(fault.code)) {
    return fmt::format(
        "--how fault: no program can make a real GPU report '{}'; add --device soft, or use --how "
        "latch, or one of launch-failure, illegal-address, misaligned and assert",
        fault.kind);
  }
  return "";
}

tl::expected<FaultRequest, std::string> read_fault(const Invocation& invocation) {
  FaultRequest request;
  inject::Fault& fault = request.fault;
  fault.kernel = invocation.value("--kernel");
  if (auto pattern = classifier::Pattern::compile(fault.kernel); !pattern) {
    return failure(fmt::format("--kernel '{}': {} (at byte {})", fault.kernel, pattern.error().what,
                               pattern.error().offset));
  }
  const auto kind = classifier::parse_error_kind(invocation.value("--error"));
  if (!kind) {
    return failure("--error: " + kind.error());
  }
  fault.kind = kind->name;
  fault.code = kind->code;
  fault.sticky = kind->sticky;
  fault.how = inject::parse_how(invocation.value("--how", "code")).value_or(inject::How::kCode);
  fault.damage =
      inject::parse_damage(invocation.value("--damage", "scribble")).value_or(fault.damage);
  // What is impossible is said before what is only not there yet.
  if (fault.how != inject::How::kCode && kind->special == classifier::ErrorKind::Special::none &&
      !fault.sticky) {
    return failure(
        fmt::format("--how {}: '{}' leaves the context healthy, so it is no device "
                    "fault and no later call reports it; use --how code",
                    inject::word(fault.how), fault.kind));
  }
  if (kind->special != classifier::ErrorKind::Special::none) {
    return failure(
        fmt::format("--error {} is not available in this version; use a kind that is reported as "
                    "an error code, e.g. ecc",
                    fault.kind));
  }
  if (invocation.has("--at")) {
    auto point = parse_point(invocation.value("--at"));
    if (!point) {
      return failure(point.error());
    }
    fault.at = *point;
    if (!fault.sticky) {
      return failure(fmt::format(
          "--at: a kernel that fails with '{}' never runs, so it has no point to die at",
          fault.kind));
    }
  }
  const int triggers = (invocation.has("--nth") ? 1 : 0) + (invocation.has("--every") ? 1 : 0) +
                       (invocation.has("--prob") ? 1 : 0);
  if (triggers > 1) {
    return failure("--nth, --every and --prob exclude each other: give one");
  }
  fault.times = invocation.count("--times", 0);
  if (invocation.has("--times") && fault.times == 0) {
    return failure("--times counts from 1; leave it out for no limit");
  }
  if (invocation.has("--every")) {
    fault.every = invocation.count("--every", 0);
    if (fault.every == 0) {
      return failure("--every counts from 1");
    }
  } else if (invocation.has("--prob")) {
    fault.probability = invocation.real("--prob", 0);
    if (!(fault.probability > 0 && fault.probability <= 1)) {
      return failure("--prob takes a probability above 0 and up to 1");
    }
  } else {
    fault.nth = invocation.count("--nth", 1);
    if (fault.nth == 0) {
      return failure("--nth counts from 1");
    }
    if (fault.times > 1) {
      return failure("--nth names one launch, so --times can only be 1; use --every");
    }
    fault.times = 1;
  }
  if (invocation.has("--seed")) {
    fault.seed = invocation.count("--seed", 0);
  } else {
    std::random_device random;
    // 32 bits are short enough to be typed again.
    fault.seed = random();
    request.seed_drawn = true;
  }
  fault.strict = invocation.has("--strict");
  return request;
}

std::string fault_options(const inject::Fault& fault) {
  std::string out =
      fmt::format("--kernel {} --error {} --how {} --damage {}", shell_quote(fault.kernel),
                  shell_quote(fault.kind), inject::word(fault.how), inject::word(fault.damage));
  if (fault.nth > 0) {
    out += fmt::format(" --nth {}", fault.nth);
  } else if (fault.every > 0) {
    out += fmt::format(" --every {}", fault.every);
  } else {
    out += fmt::format(" --prob {}", fault.probability);
  }
  out += fmt::format(" --seed {}", fault.seed);
  if (fault.times > 0 && fault.nth == 0) {
    out += fmt::format(" --times {}", fault.times);
  }
  if (fault.at) {
    out += fmt::format(" --at block={},thread={},instr={}", fault.at->block, fault.at->thread,
                       fault.at->instruction);
  }
  if (fault.strict) {
    out += " --strict";
  }
  return out;
}

}  // namespace gpurecover::cli
