// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "cli/result.h"
#include "cupti/protocol/messages.h"

namespace gpurecover::cli {

// One question to a running session (empty name: the only one there is), and its answer's text.
tl::expected<std::string, std::string> ask_session(const std::string& name,
                                                   protocol::MessageType question,
                                                   const std::vector<std::byte>& body,
                                                   protocol::MessageType answer);

}  // namespace gpurecover::cli
