// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a file's images, all of them, summarized as the agent would summarize them at
// their first launch.
#pragma once

#include <string_view>

#include "idempotency/offline/side_file.h"
#include "image/image.h"

namespace gpurecover::idempotency {

// `name` is the file's, without folder: machine code in the vendor's libraries is left alone
// (image/vendor_code.h). Machine code whose PTX, of the same compile, is beside it is listed with a
// note and without kernels, since the agent uses that PTX. Throws std::bad_alloc only.
AnalysedFile analyse(std::string_view name, const image::FileImages& images);

}  // namespace gpurecover::idempotency
