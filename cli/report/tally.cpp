// SPDX-License-Identifier: Apache-2.0
#include "cli/report/tally.h"

#include <fmt/format.h>

#include <algorithm>

#include "classifier/catalogue.h"

namespace gpurecover::cli {
namespace {

using protocol::SharedPage;
using protocol::VerdictKind;

constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxList = 256;
constexpr std::size_t kNoSummary = static_cast<std::size_t>(-1);
constexpr char kOtherKernels[] = "(other kernels)";
constexpr char kOtherReasons[] = "(other reasons)";
constexpr char kOtherCalls[] = "(other calls)";

void cut(std::string& text) {
  if (text.size() > kMaxText) {
    text.resize(kMaxText);
  }
}

void cut(std::vector<std::string>& list) {
  if (list.size() > kMaxList) {
    list.resize(kMaxList);
  }
  std::for_each(list.begin(), list.end(), [](std::string& text) { cut(text); });
}

std::uint64_t load(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

std::string name_in(const std::map<std::uint32_t, std::string>& names, std::size_t id,
                    const char* otherwise) {
  const auto found = names.find(static_cast<std::uint32_t>(id));
  return found == names.end() ? otherwise : found->second;
}

}  // namespace

Tally::Process Tally::add_process(std::int64_t pid, std::string executable,
                                  const SharedPage* page) {
  cut(executable);
  const Process id = next_++;
  Live& live = live_[id];
  live.pid = pid;
  live.page = page;
  live.summary = kNoSummary;
  if (sums_.processes.size() < kMaxProcesses) {
    live.summary = sums_.processes.size();
    ProcessSummary summary;
    summary.pid = pid;
    summary.executable = std::move(executable);
    summary.reason = "ended before it reported";
    sums_.processes.push_back(std::move(summary));
  }
  return id;
}

void Tally::end_process(Process process) {
  const auto found = live_.find(process);
  if (found != live_.end()) {
    fold(sums_, found->second);
    live_.erase(found);
  }
}

void Tally::attached(Process process, const protocol::Attached& message) {
  const auto found = live_.find(process);
  if (found == live_.end()) {
    return;
  }
  if (found->second.summary != kNoSummary) {
    ProcessSummary& summary = sums_.processes[found->second.summary];
    summary.active = message.active;
    summary.reason = message.reason;
    cut(summary.reason);
    summary.cupti_version = message.cupti_version;
  }
  if (!message.device_kind.empty() && sums_.device.kind.empty()) {
    sums_.device = {message.device_kind, message.device_name, message.driver, message.cc};
    for (std::string* text :
         {&sums_.device.kind, &sums_.device.name, &sums_.device.driver, &sums_.device.cc}) {
      cut(*text);
    }
  }
}

bool Tally::kernel(Process process, protocol::KernelInfo message) {
  if (message.row >= protocol::kMaxKernels || message.verdict > VerdictKind::kUnknown) {
    return false;
  }
  if (message.row == 0) {
    return true;  // one of those beyond the table's end, which share that row
  }
  cut(message.name);
  cut(message.symbol);
  cut(message.trust);
  cut(message.reason);
  cut(message.reads);
  cut(message.writes);
  cut(message.analysis);
  if (const auto found = live_.find(process); found != live_.end()) {
    found->second.kernels[message.row] = std::move(message);
  }
  return true;
}

bool Tally::reason(Process process, protocol::ReasonInfo message) {
  if (message.id >= protocol::kMaxReasons) {
    return false;
  }
  cut(message.text);
  if (const auto found = live_.find(process); found != live_.end()) {
    found->second.reasons[message.id] = std::move(message.text);
  }
  return true;
}

bool Tally::call(Process process, protocol::CallInfo message) {
  if (message.id >= protocol::kMaxCalls) {
    return false;
  }
  cut(message.name);
  if (const auto found = live_.find(process); found != live_.end()) {
    found->second.calls[message.id] = std::move(message.name);
  }
  return true;
}

bool Tally::fault(Process process, protocol::FaultRecord message) {
  const auto total = outcome_total(message.outcome);
  if (total == nullptr || total == &Totals::not_fired) {
    return false;
  }
  ++(sums_.totals.*total);
  ++sums_.totals.faults;
  if (faults_.size() < kMaxFaults) {
    for (std::string* text : {&message.kernel, &message.stream, &message.name, &message.phase,
                              &message.rule, &message.cls, &message.verdict, &message.trust,
                              &message.action, &message.reason, &message.message}) {
      cut(*text);
    }
    const auto found = live_.find(process);
    faults_.push_back({found == live_.end() ? 0 : found->second.pid, std::move(message)});
  }
  return true;
}

void Tally::set_plan(const std::vector<inject::Fault>& plan,
                     const std::vector<std::string>& repeats) {
  plan_ = plan;
  repeats_ = repeats;
}

std::vector<Tally::Shots> Tally::shots() const {
  std::array<Shots, protocol::kMaxFaultSpecs> all = sums_.shots;
  for (const auto& [id, live] : live_) {
    if (live.page != nullptr) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].fired += load(live.page->fired[i]);
        all[i].matched += load(live.page->matched[i]);
      }
    }
  }
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(
                                         std::min(plan_.size(), protocol::kMaxFaultSpecs))};
}

void Tally::fold(Sums& sums, const Live& live) {
  if (live.page == nullptr) {
    return;
  }
  const SharedPage& page = *live.page;
  std::uint64_t of_process = 0;
  for (std::size_t row = 0; row < protocol::kMaxKernels; ++row) {
    const protocol::KernelCounters& counters = page.kernels[row];
    std::uint64_t launches = 0;
    VerdictKind gravest = VerdictKind::kIdempotent;
    for (std::size_t verdict = 0; verdict < 3; ++verdict) {
      const std::uint64_t unprotected = load(counters.launches[verdict][0]);
      const std::uint64_t is_protected = load(counters.launches[verdict][1]);
      const std::uint64_t both = unprotected + is_protected;
      sums.totals.unprotected += unprotected;
      sums.totals.protected_ += is_protected;
      std::uint64_t Totals::*const by_verdict[] = {&Totals::idempotent, &Totals::clobbers,
                                                   &Totals::unknown};
      sums.totals.*by_verdict[verdict] += both;
      sums.totals.launches += both;
      launches += both;
      if (both > 0) {
        gravest = static_cast<VerdictKind>(verdict);
      }
    }
    sums.totals.snapshotted += load(counters.snapshotted);
    of_process += launches;
    const auto info = live.kernels.find(static_cast<std::uint32_t>(row));
    if (launches == 0 && info == live.kernels.end()) {
      continue;
    }
    std::string name = kOtherKernels;
    if (info != live.kernels.end() &&
        (sums.kernels.size() < protocol::kMaxKernels || sums.kernels.contains(info->second.name))) {
      name = info->second.name;
    }
    const bool is_new = !sums.kernels.contains(name);
    KernelSum& kernel = sums.kernels[name];
    kernel.launches += launches;
    if (info != live.kernels.end() && name != kOtherKernels) {
      gravest = std::max(gravest, info->second.verdict);
      if (is_new || gravest > kernel.verdict) {
        kernel.trust = info->second.trust;
        kernel.reason = info->second.reason;
        kernel.reads = info->second.reads;
        kernel.writes = info->second.writes;
        kernel.analysis = info->second.analysis;
      }
    }
    kernel.verdict = std::max(kernel.verdict, gravest);
  }
  for (std::size_t i = 0; i < protocol::kMaxReasons; ++i) {
    if (const std::uint64_t count = load(page.reasons[i]); count > 0) {
      std::string name = name_in(live.reasons, i, kOtherReasons);
      if (sums.reasons.size() >= protocol::kMaxReasons && !sums.reasons.contains(name)) {
        name = kOtherReasons;
      }
      sums.reasons[name] += count;
    }
  }
  for (std::size_t i = 0; i < protocol::kMaxCalls; ++i) {
    if (const std::uint64_t count = load(page.calls[i]); count > 0) {
      std::string name = name_in(live.calls, i, kOtherCalls);
      if (sums.calls.size() >= protocol::kMaxCalls && !sums.calls.contains(name)) {
        name = kOtherCalls;
      }
      sums.calls[name] += count;
    }
  }
  for (std::size_t i = 0; i < sums.shots.size(); ++i) {
    sums.shots[i].fired += load(page.fired[i]);
    sums.shots[i].matched += load(page.matched[i]);
  }
  if (live.summary != kNoSummary) {
    sums.processes[live.summary].launches += of_process;
  }
}

RunSummary Tally::summary(bool ended) const {
  Sums sums = sums_;
  for (const auto& [id, live] : live_) {
    fold(sums, live);
  }
  RunSummary out;
  out.device = sums.device;
  out.totals = sums.totals;
  out.faults = faults_;
  if (ended) {
    const std::vector<Shots> all = shots();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].fired > 0) {
        continue;
      }
      const inject::Fault& fault = plan_[i];
      FaultSummary entry;
      entry.record.kernel = fault.kernel;
      entry.record.code = fault.code;
      entry.record.name = classifier::code_name(fault.code);
      entry.record.phase = fault.sticky ? "run" : "launch";
      entry.record.injected = true;
      entry.record.outcome = "not-fired";
      entry.record.reason =
          all[i].matched == 0
              ? fmt::format("no launch matched --kernel {}", fault.kernel)
              : fmt::format("{} launch{} matched --kernel {}, none was the one asked for",
                            all[i].matched, all[i].matched == 1 ? "" : "es", fault.kernel);
      entry.record.repeat = i < repeats_.size() ? repeats_[i] : "";
      out.faults.push_back(std::move(entry));
      ++out.totals.faults;
      ++out.totals.not_fired;
    }
  }
  for (auto& [name, kernel] : sums.kernels) {
    KernelSummary summary;
    summary.name = name;
    summary.launches = kernel.launches;
    summary.verdict = word(kernel.verdict);
    summary.trust = std::move(kernel.trust);
    summary.reason = std::move(kernel.reason);
    summary.reads = std::move(kernel.reads);
    summary.writes = std::move(kernel.writes);
    summary.analysis.text = std::move(kernel.analysis);
    out.kernels.push_back(std::move(summary));
  }
  std::stable_sort(
      out.kernels.begin(), out.kernels.end(),
      [](const KernelSummary& a, const KernelSummary& b) { return a.launches > b.launches; });
  out.totals.kernels = out.kernels.size();
  out.unprotected_reasons = std::move(sums.reasons);
  out.calls_without_row = std::move(sums.calls);
  out.processes = std::move(sums.processes);
  return out;
}

}  // namespace gpurecover::cli
