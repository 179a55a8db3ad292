// SPDX-License-Identifier: Apache-2.0
// Side files, as the agent reads them. By the first byte: 't', the rest is a side file as it is;
// 'j', it is the members behind the revision, and the end is made to fit; else it is a packed
// summary. Whatever is accepted must be fit to give verdicts, and come out as it went in.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "idempotency/offline/overview.h"
#include "idempotency/offline/side_file.h"
#include "idempotency/offline/summary_codec.h"
#include "idempotency/verdict.h"

namespace {

using namespace gpurecover;

class NoSymbols : public idempotency::SymbolRanges {
 public:
  std::optional<idempotency::Range> find(std::string_view) const override { return std::nullopt; }
};

void require(bool condition) {
  if (!condition)
    std::abort();
}

void use(const idempotency::KernelSummary& summary) {
  static const idempotency::MemoryMap* const map = [] {
    auto* map = new idempotency::MemoryMap;
    idempotency::Allocation a;
    a.address = 0x10'0000;
    a.size = 1 << 20;
    map->insert(a);
    return map;
  }();
  std::byte args[64] = {};
  for (const std::uint64_t address : {0x10'0000ull, 0x18'0000ull, ~0ull}) {
    std::memcpy(args + 8 * (address >> 19 & 1), &address, 8);
    (void)idempotency::decide(summary, args, {{3, 2, 1}, {32, 4, 1}, 0}, *map, NoSymbols());
  }
  (void)to_text(summary);
  (void)idempotency::overview(summary, {});
  // Numbers can be written in longer ways than ours, so the first time may shorten.
  const std::string bytes = idempotency::encode_summary(summary);
  const auto again = idempotency::decode_summary(bytes);
  require(again && idempotency::encode_summary(*again) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] != 't' && data[0] != 'j') {
    if (const auto summary = idempotency::decode_summary(rest))
      use(*summary);
    return 0;
  }
  if (data[0] == 'j') {
    rest = "{\"schema\": \"gpurecover.analysis/1\", \"revision\": \"" +
           std::string(idempotency::analysis_revision()) + "\"" + rest;
    const std::string hash = idempotency::content_hash(std::as_bytes(std::span(rest)));
    rest += ",\n\"checksum\": \"" + hash + "\"\n}\n";
  }
  const auto file = idempotency::read_side_file(rest);
  if (!file) {
    require(!file.error().empty() && file.error().find('\n') == std::string::npos);
    return 0;
  }
  for (const auto& image : file->images) {
    for (const auto& kernel : image.kernels) {
      require(image.find(kernel.name) != nullptr);
      if (const auto summary = idempotency::unpack_summary(kernel))
        use(*summary);
    }
  }
  return 0;
}
