// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor/client.h"

#include <unistd.h>

#include <chrono>

#include "cli/supervisor/session_folder.h"
#include "cupti/protocol/channel.h"
#include "cupti/protocol/codec.h"

namespace gpurecover::cli {
namespace {

constexpr std::chrono::seconds kTimeout{10};

}  // namespace

tl::expected<std::string, std::string> ask_session(const std::string& name,
                                                   protocol::MessageType question,
                                                   const std::vector<std::byte>& body,
                                                   protocol::MessageType answer) {
  const auto socket = find_session(name);
  if (!socket) {
    return failure(socket.error());
  }
  auto channel = protocol::Channel::connect(*socket);
  if (!channel.valid()) {
    return failure("the session has just ended");
  }
  if (!channel.send(question, body, kTimeout)) {
    return failure("the session does not take the question");
  }
  protocol::Frame frame;
  switch (channel.receive(frame, kTimeout)) {
    case protocol::Channel::Status::kNothing:
      return failure("the session does not answer: it is stopped, or very busy");
    case protocol::Channel::Status::kClosed:
      return failure("the session has just ended, or is of another version");
    case protocol::Channel::Status::kFrame:
      break;
  }
  if (frame.fd >= 0) {
    ::close(frame.fd);
  }
  const auto notice = protocol::decode<protocol::Notice>(frame.body);
  if (frame.type != answer || !notice) {
    return failure("the session is of another version");
  }
  return notice->text;
}

}  // namespace gpurecover::cli
