// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/vendor_code.h"

#include <link.h>

namespace gpurecover::agent {

std::optional<std::string> loaded_vendor_library() {
  std::optional<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        const std::string name = base_name(info->dlpi_name != nullptr ? info->dlpi_name : "");
        // These are in every program that uses CUDA, and keep their kernels to themselves: they do
        // not hand images to the driver's public calls.
        if (name.starts_with("libcuda.") || name.starts_with("libcudart") ||
            name.starts_with("libcupti") || name.starts_with("libnvidia-"))
          return 0;
        if (!image::is_vendor_library_with_kernels(name))
          return 0;
        *static_cast<std::optional<std::string>*>(data) = name;
        return 1;
      },
      &found);
  return found;
}

}  // namespace gpurecover::agent
