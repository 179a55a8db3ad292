// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

namespace gpurecover::cli {

std::string_view version() {
  return GPURECOVER_VERSION;
}

}  // namespace gpurecover::cli
