// SPDX-License-Identifier: Apache-2.0
// Any bytes, as an image and as a file that may hold images.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "image/cubin.h"
#include "image/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpurecover::image;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto image = open(bytes);
  if (image) {
    for (const Entry& e : image->entries) {
      if (e.kind == EntryKind::kCubin) {
        (void)read_cubin(e.data);
      }
    }
    for (const std::uint32_t major : {7u, 9u, 12u}) {
      const auto chosen = select(*image, {major, 0});
      if (chosen && *chosen >= image->entries.size()) {
        std::abort();
      }
      const auto ptx = ptx_for_machine_code(*image, {major, 0});
      if (ptx && image->entries.at(*ptx).kind != EntryKind::kPtx) {
        std::abort();
      }
    }
  } else if (image.error().what.empty() || image.error().remedy.empty()) {
    std::abort();
  }
  (void)read_cubin(bytes);
  const auto found = find_images(bytes);
  if (found) {
    for (const FoundImage& f : found->images) {
      if (f.offset > size || f.size > size - f.offset) {
        std::abort();
      }
    }
  }
  return 0;
}
