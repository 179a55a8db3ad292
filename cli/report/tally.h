// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/report/summary.h"
#include "cupti/protocol/messages.h"
#include "cupti/protocol/shared_page.h"
#include "inject/plan.h"

namespace gpurecover::cli {

// Gathers what the processes of a session report, and makes the run summary from it. Memory is
// bounded whatever they send: names are cut, tables have the size of the shared page's, and beyond
// kMaxFaults faults only the totals grow. Single-threaded.
class Tally {
 public:
  static constexpr std::size_t kMaxFaults = 10000;
  static constexpr std::size_t kMaxProcesses = 4096;
  using Process = std::uint64_t;

  // `page` must stay mapped until end_process(), and is read with relaxed loads only.
  Process add_process(std::int64_t pid, std::string executable, const protocol::SharedPage* page);
  void end_process(Process process);

  void attached(Process process, const protocol::Attached& message);
  // False for a message that no agent of this version sends.
  bool kernel(Process process, protocol::KernelInfo message);
  bool reason(Process process, protocol::ReasonInfo message);
  bool call(Process process, protocol::CallInfo message);
  bool fault(Process process, protocol::FaultRecord message);

  // The plan so far, in the order of the shared page's fired[]; `repeat` says how each is repeated.
  void set_plan(const std::vector<inject::Fault>& plan, const std::vector<std::string>& repeats);
  // How often the i-th fault of the plan fired and matched, in all processes.
  struct Shots {
    std::uint64_t fired = 0;
    std::uint64_t matched = 0;
  };
  std::vector<Shots> shots() const;

  // device, totals, reasons, kernels, faults, calls and processes; the rest is the caller's. With
  // `ended`, faults of the plan that never fired are among the faults.
  RunSummary summary(bool ended) const;

 private:
  struct Live {
    std::int64_t pid = 0;
    const protocol::SharedPage* page = nullptr;
    std::size_t summary = 0;  // index in sums_.processes, or npos
    std::map<std::uint32_t, protocol::KernelInfo> kernels;
    std::map<std::uint32_t, std::string> reasons;
    std::map<std::uint32_t, std::string> calls;
  };
  struct KernelSum {
    std::uint64_t launches = 0;
    protocol::VerdictKind verdict = protocol::VerdictKind::kIdempotent;
    std::string trust;
    std::string reason;
    std::vector<std::string> reads;
    std::vector<std::string> writes;
    std::string analysis;
  };
  struct Sums {
    Totals totals;
    DeviceInfo device;
    std::map<std::string, KernelSum> kernels;
    std::map<std::string, std::uint64_t> reasons;
    std::map<std::string, std::uint64_t> calls;
    std::vector<ProcessSummary> processes;
    std::array<Shots, protocol::kMaxFaultSpecs> shots;
  };

  static void fold(Sums& sums, const Live& live);

  std::map<Process, Live> live_;
  Process next_ = 1;
  Sums sums_;
  std::vector<FaultSummary> faults_;
  std::vector<inject::Fault> plan_;
  std::vector<std::string> repeats_;
};

}  // namespace gpurecover::cli
