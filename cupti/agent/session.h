// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "classifier/rules.h"
#include "cupti/protocol/channel.h"
#include "cupti/protocol/messages.h"
#include "cupti/protocol/shared_page.h"
#include "inject/plan.h"

namespace gpurecover::agent {

// Of the process; empty if it cannot be told.
std::string executable_path();

// The agent's end of the session. Once started, every function is thread-safe, none of them fails
// for the caller: without a supervisor what they say is lost, and one line on stderr told so.
class Session {
 public:
  // Joins the session named by the environment and takes its configuration. False with the reason;
  // an empty reason: this process belongs to no session, so there is nothing to say.
  bool join(std::string& error);

  const protocol::Config& config() const { return config_; }
  const classifier::RuleSet& rules() const { return rules_; }
  std::vector<inject::Fault> initial_plan() const { return plan_; }
  protocol::SharedPage& page() { return *page_; }

  // The counter of a reason for which launches are unprotected; the same text, the same number.
  std::uint32_t reason_id(std::string_view text);
  // The kernel's row in the page; the same symbol, the same row. 0 if the table is full.
  std::uint32_t kernel_row(const std::string& symbol);

  void attached(const protocol::Attached& message);
  void kernel(const protocol::KernelInfo& message);
  void fault(const protocol::FaultRecord& message);
  void notice(protocol::Severity severity, std::string text);
  void call_without_row(std::uint32_t id, std::string_view name);

  // How many launches this process has counted.
  std::uint64_t launches() const;

  // Whether take_new_plan may have something: one relaxed load, for the hot path.
  bool plan_changed() const {
    return page_->plan_generation.load(std::memory_order_relaxed) !=
           plan_generation_.load(std::memory_order_relaxed);
  }
  // The faults that were armed since the last call, if any.
  bool take_new_plan(std::vector<inject::Fault>& plan);

  // Asks the supervisor for a standby process and returns our end of the socket to it, the caller's
  // own, or -1 with the reason. Waits at most some seconds.
  int start_standby(std::string& error);

  // One line on stderr, as only the agent can say it (no supervisor is there).
  static void complain(std::string_view text);

  // In a forked child: forgets the connection, which is the parent's.
  void abandon();

 private:
  void send(protocol::MessageType type, const std::vector<std::byte>& body);

  protocol::Config config_;
  classifier::RuleSet rules_;
  std::vector<inject::Fault> plan_;
  protocol::SharedPage* page_ = nullptr;

  std::mutex channel_mutex_;
  protocol::Channel channel_;
  bool lost_ = false;
  // Guarded by channel_mutex_: what came while something else was waited for.
  std::vector<protocol::Frame> early_;
  // The page is made for this process, so what was armed since has raised it from 0.
  std::atomic<std::uint32_t> plan_generation_{0};

  std::mutex names_mutex_;
  std::map<std::string, std::uint32_t, std::less<>> reasons_;
  std::map<std::string, std::uint32_t, std::less<>> rows_;
};

}  // namespace gpurecover::agent
