// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "cli/output.h"
#include "cli/report/events.h"
#include "cli/report/tally.h"
#include "cupti/protocol/channel.h"
#include "cupti/protocol/messages.h"
#include "inject/plan.h"

namespace gpurecover::cli {

struct SessionSettings {
  std::string name;
  protocol::Level level = protocol::Level::kFull;
  std::uint8_t verbosity = 1;
  protocol::Standby standby = protocol::Standby::kCold;
  bool no_steer = false;
  std::string analysis_dir;
  std::vector<std::byte> rules;  // encoded classifier::RuleSet
  // The command line that repeats a fault, from the options of `inject` that say which.
  std::function<std::string(const std::string&)> repeat;
};

// The session's socket: agents report here, and other gpurecover processes of the same user ask for
// the status or arm faults. Single-threaded; nothing here waits for a peer longer than
// kSendTimeout. A peer that sends what is no message of this protocol loses its connection, nobody
// else's. What agents say goes into the tally, the event log, and to the user.
class SessionServer {
 public:
  SessionServer(SessionSettings settings, std::vector<inject::Fault> plan, Tally& tally,
                EventLog& events, const Output& output);
  ~SessionServer();
  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;

  tl::expected<void, std::string> listen(const std::string& path);

  // Adds what to poll for; handle() then takes the same entries back.
  void add_to(std::vector<pollfd>& entries) const;
  void handle(const std::vector<pollfd>& entries);
  // True if messages are left that poll() does not see: poll with timeout 0.
  bool pending() const { return pending_; }

  // After the app's end: takes all that was sent, waits for nobody, and closes every connection.
  void drain();

  // Starts a standby for the process `app`, with the descriptor as its socket; the descriptor stays
  // the caller's.
  using StartStandby =
      std::function<tl::expected<std::int32_t, std::string>(int fd, std::int64_t app)>;
  void on_standby(StartStandby start) { start_standby_ = std::move(start); }

  // Answers status requests.
  void on_status(std::function<std::string()> status) { status_ = std::move(status); }

  const std::vector<inject::Fault>& plan() const { return plan_; }

 private:
  struct Page;
  struct Peer {
    protocol::Channel channel;
    std::int64_t pid = 0;
    bool is_agent = false;
    Tally::Process process = 0;
    std::unique_ptr<Page> page;
    int pidfd = -1;
  };
  // A process that has closed its connection, or lost it, and may go on launching until it ends.
  struct Leaver {
    Tally::Process process = 0;
    std::int64_t pid = 0;
    std::unique_ptr<Page> page;
    int pidfd = -1;
  };

  void accept_peers();
  // Handles what `peer` has sent, at most `limit` messages; false if its connection is to end.
  bool serve(Peer& peer, std::size_t limit);
  // The frame's descriptor stays the caller's.
  bool handle_message(Peer& peer, const protocol::Frame& frame);
  bool standby(Peer& peer, const protocol::Frame& frame);
  bool hello(Peer& peer, const protocol::Frame& frame);
  bool fault(Peer& peer, const protocol::Frame& frame);
  bool arm(Peer& peer, const protocol::Frame& frame);
  void attached(Peer& peer, const protocol::Attached& message);
  bool refuse(Peer& peer, const std::string& why);
  void drop(int fd);
  void end(Leaver& leaver);
  void update_plan();

  SessionSettings settings_;
  std::vector<inject::Fault> plan_;
  Tally& tally_;
  EventLog& events_;
  const Output& output_;
  std::function<std::string()> status_;
  StartStandby start_standby_;
  int listener_ = -1;
  bool accepting_ = true;
  bool pending_ = false;
  std::map<int, Peer> peers_;
  std::vector<Leaver> leavers_;
  std::map<std::string, std::uint64_t> said_;
  std::uint64_t faults_said_ = 0;
};

}  // namespace gpurecover::cli
