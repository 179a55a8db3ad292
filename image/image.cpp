// SPDX-License-Identifier: Apache-2.0
#include "image/image.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "image/elf.h"
#include "image/ptx_parser.h"

namespace gpurecover::image {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kWrapperMagic = 0x466243B1, kContainerMagic = 0xBA55ED50;
constexpr std::uint64_t kContainerHeader = 16, kEntryHeader = 64, kWrapperBytes = 24;
constexpr std::uint16_t kKindPtx = 1, kKindElf = 2;
constexpr std::uint64_t kFlagLz4 = 0x2000, kFlagZstd = 0x8000;
// Seen in what nvcc 13.0 makes for sm_90a, sm_100a and sm_100f; not set for plain targets.
constexpr std::uint64_t kFlagArchSpecific = 0x100000, kFlagFamily = 0x200000;
constexpr std::size_t kMaxEntries = 65536, kMaxContainers = 4096, kMaxFound = 65536;
constexpr const char* kDamaged = "the image is damaged or cut short; build or copy it anew";

tl::unexpected<Error> fail(std::string what, std::uint64_t offset, std::string remedy = kDamaged) {
  return tl::make_unexpected(Error{std::move(what), offset, std::move(remedy)});
}

std::string hex(std::uint64_t value) {
  char buffer[24];
  std::snprintf(buffer, sizeof buffer, "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint32_t magic_of(Bytes bytes) {
  return bytes.size() >= 4 ? load_at<std::uint32_t>(bytes, 0) : 0;
}

bool may_be_ptx(Bytes bytes) {
  // What follows comments and blanks is .version; a look at the first bytes is enough to send
  // everything else away with a clear message.
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 64); ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    if (c == 0) {
      return i != 0;
    }
    if (c < 9 || (c > 13 && c < 32) || c == 127) {
      return false;
    }
  }
  return !bytes.empty();
}

// --- Decompression: the header's size must be exact, and memory grows with real output. ---

tl::expected<std::vector<std::byte>, Error> unpack_lz4(Bytes from, std::uint64_t size,
                                                       std::uint64_t at) {
  // LZ4 cannot expand a byte to more than 255.
  if (from.size() > LZ4_MAX_INPUT_SIZE || size > from.size() * 255 + 64) {
    return fail("LZ4 data of " + std::to_string(from.size()) + " bytes cannot hold the " +
                    std::to_string(size) + " bytes that its header promises",
                at);
  }
  std::vector<std::byte> out(size);
  const int n = LZ4_decompress_safe(reinterpret_cast<const char*>(from.data()),
                                    reinterpret_cast<char*>(out.data()),
                                    static_cast<int>(from.size()), static_cast<int>(size));
  if (n < 0 || static_cast<std::uint64_t>(n) != size) {
    return fail("LZ4 data does not decompress to " + std::to_string(size) + " bytes", at);
  }
  return out;
}

tl::expected<std::vector<std::byte>, Error> unpack_zstd(Bytes from, std::uint64_t size,
                                                        std::uint64_t at) {
  const unsigned long long content = ZSTD_getFrameContentSize(from.data(), from.size());
  if (content == ZSTD_CONTENTSIZE_ERROR ||
      (content != ZSTD_CONTENTSIZE_UNKNOWN && content != size)) {
    return fail(
        "zstd frame does not hold the " + std::to_string(size) + " bytes that its header promises",
        at);
  }
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                        &ZSTD_freeDCtx);
  if (!context) {
    return fail("out of memory", at, "free memory and try again");
  }
  std::vector<std::byte> out;
  ZSTD_inBuffer in{from.data(), from.size(), 0};
  for (;;) {
    const std::size_t filled = out.size();
    if (filled >= size) {
      return fail("zstd frame holds more than the " + std::to_string(size) +
                      " bytes that its header promises",
                  at);
    }
    out.resize(std::min<std::uint64_t>(size, std::max<std::size_t>(filled * 2, 1u << 16)));
    ZSTD_outBuffer to{out.data(), out.size(), filled};
    const std::size_t left = ZSTD_decompressStream(context.get(), &to, &in);
    if (ZSTD_isError(left)) {
      return fail(std::string("zstd: ") + ZSTD_getErrorName(left), at);
    }
    if (left == 0) {
      if (to.pos != size) {
        return fail("zstd frame holds " + std::to_string(to.pos) + " bytes, its header promises " +
                        std::to_string(size),
                    at);
      }
      return out;
    }
    if (to.pos < out.size()) {
      return fail("zstd frame is cut short", at + in.pos);
    }
  }
}

// --- Entries ---

void describe_ptx(Entry& entry) {
  while (!entry.data.empty() && entry.data.back() == std::byte{0}) {
    entry.data.pop_back();
  }
  if (const auto header = ptx::parse_header(entry.text())) {
    if (entry.sm == 0) {
      entry.sm = header->sm;
    }
    entry.suffix = header->suffix;
  }
}

// A bare cubin tells 'a' by attribute 9 of .nv.compat (output of ptxas 13.0); 'f' is not told.
std::optional<std::string> suffix_of_cubin(const Elf& elf) {
  for (const ElfSection& s : elf.sections) {
    if (s.name != ".nv.compat") {
      continue;
    }
    for (std::uint64_t at = 0; s.data.size() >= 4 && at <= s.data.size() - 4; at += 4) {
      const auto format = static_cast<std::uint8_t>(s.data[at]);
      if (format == 2 && s.data[at + 1] == std::byte{9} && s.data[at + 2] == std::byte{1}) {
        return "a";
      }
      if (format == 4) {
        at += load_at<std::uint16_t>(s.data, at + 2);
      }
    }
  }
  return std::nullopt;
}

tl::expected<void, Error> describe_cubin(Entry& entry, std::uint64_t at) {
  const auto elf = read_elf(entry.data);
  if (!elf) {
    Error e = elf.error();
    e.offset += at;
    return tl::make_unexpected(std::move(e));
  }
  if (elf->machine != kMachineCuda) {
    return fail(
        "ELF file for machine " + std::to_string(elf->machine) + ", not CUDA device code (190)",
        at + 18, "pass a fatbin, a cubin or PTX text");
  }
  if (entry.sm == 0) {
    entry.sm = elf->abi_version >= 8 ? (elf->flags >> 8) & 0xFF : elf->flags & 0xFF;
  }
  if (!entry.suffix) {
    entry.suffix = suffix_of_cubin(*elf);
  }
  return {};
}

tl::expected<void, Error> add_container(Bytes bytes, std::uint64_t base, std::uint64_t& total,
                                        Image& image) {
  if (bytes.size() < kContainerHeader) {
    return fail("fatbin header cut short", base);
  }
  const std::uint64_t header = load_at<std::uint16_t>(bytes, 6);
  const auto size = load_at<std::uint64_t>(bytes, 8);
  if (load_at<std::uint16_t>(bytes, 4) != 1 || header < kContainerHeader) {
    return fail("fatbin of unknown version " + std::to_string(load_at<std::uint16_t>(bytes, 4)),
                base + 4, "use a gpurecover that knows this toolkit, or PTX text");
  }
  if (header > bytes.size() || size > bytes.size() - header) {
    return fail("fatbin is cut short: its header says " + std::to_string(size) + " bytes, " +
                    std::to_string(bytes.size() - std::min<std::uint64_t>(header, bytes.size())) +
                    " are there",
                base + 8);
  }
  const std::uint64_t end = header + size;
  for (std::uint64_t at = header; at < end;) {
    const std::string number =
        "fatbin entry " + std::to_string(image.entries.size() + image.skipped.size());
    if (end - at < kEntryHeader) {
      return fail(number + " is cut short", base + at);
    }
    if (image.entries.size() + image.skipped.size() >= kMaxEntries) {
      return fail("more than 65536 fatbin entries", base + at);
    }
    const auto kind = load_at<std::uint16_t>(bytes, at);
    const std::uint64_t head = load_at<std::uint32_t>(bytes, at + 4);
    const auto stored = load_at<std::uint64_t>(bytes, at + 8);
    const auto packed = load_at<std::uint32_t>(bytes, at + 0x10);
    const auto flags = load_at<std::uint64_t>(bytes, at + 0x28);
    const auto full = load_at<std::uint64_t>(bytes, at + 0x38);
    if (head < kEntryHeader || head > end - at || stored > end - at - head) {
      return fail(number + " is cut short: its header says " + std::to_string(head) + " + " +
                      std::to_string(stored) + " bytes, " + std::to_string(end - at) + " are left",
                  base + at + 4);
    }
    const std::uint64_t payload_at = at + head;
    const Bytes payload = bytes.subspan(payload_at, stored);
    at = payload_at + stored;
    if (kind != kKindPtx && kind != kKindElf) {
      image.skipped.push_back(number + " is of kind " + std::to_string(kind) +
                              ", neither PTX nor machine code");
      continue;
    }
    Entry entry;
    entry.kind = kind == kKindPtx ? EntryKind::kPtx : EntryKind::kCubin;
    entry.sm = load_at<std::uint32_t>(bytes, payload_at - head + 0x1c);
    entry.flags = flags;
    if ((flags & (kFlagLz4 | kFlagZstd)) != 0) {
      entry.compression = (flags & kFlagZstd) != 0 ? Compression::kZstd : Compression::kLz4;
      if (packed > stored) {
        return fail(number + ": compressed size " + std::to_string(packed) +
                        " is more than the stored " + std::to_string(stored),
                    base + payload_at - head + 0x10);
      }
      if (full == 0 || full > kMaxEntryBytes || total + full > kMaxImageBytes) {
        return fail(number + ": uncompressed size " + std::to_string(full) +
                        " is 0 or beyond the limit of 1 GiB each and 4 GiB in all",
                    base + payload_at - head + 0x38);
      }
      const Bytes data = packed != 0 ? payload.first(packed) : payload;
      auto unpacked = entry.compression == Compression::kZstd
                          ? unpack_zstd(data, full, base + payload_at)
                          : unpack_lz4(data, full, base + payload_at);
      if (!unpacked) {
        unpacked.error().what.insert(0, number + ": ");
        return tl::make_unexpected(std::move(unpacked.error()));
      }
      entry.data = std::move(*unpacked);
    } else if (packed != 0) {
      image.skipped.push_back(number + " is compressed in an unknown way (flags " + hex(flags) +
                              ")");
      continue;
    } else {
      if (stored > kMaxEntryBytes || total + stored > kMaxImageBytes) {
        return fail(number + " is larger than 1 GiB, or all are larger than 4 GiB",
                    base + payload_at);
      }
      entry.data.assign(payload.begin(), payload.end());
    }
    total += entry.data.size();
    if (entry.kind == EntryKind::kPtx) {
      describe_ptx(entry);
    } else {
      entry.suffix = (flags & kFlagArchSpecific) != 0 ? "a" : (flags & kFlagFamily) != 0 ? "f" : "";
      if (auto ok = describe_cubin(entry, base + payload_at); !ok) {
        ok.error().what.insert(0, number + ": ");
        return ok;
      }
    }
    image.entries.push_back(std::move(entry));
  }
  return {};
}

tl::expected<std::uint64_t, Error> container_size(Bytes header16, std::uint64_t base) {
  const std::uint64_t header = load_at<std::uint16_t>(header16, 6);
  const auto size = load_at<std::uint64_t>(header16, 8);
  if (load_at<std::uint16_t>(header16, 4) != 1 || header < kContainerHeader ||
      size > kMaxImageBytes) {
    return fail("fatbin header is not one that we know", base,
                "use a gpurecover that knows this toolkit, or PTX text");
  }
  return header + size;
}

tl::expected<Image, Error> open_ptx(Bytes bytes) {
  if (bytes.size() > kMaxPtxBytes) {
    return fail("PTX text above 256 MiB", kMaxPtxBytes, "split the module into several");
  }
  Image image;
  image.form = Image::Form::kPtx;
  Entry entry;
  entry.kind = EntryKind::kPtx;
  std::size_t n = bytes.size();
  if (const void* nul = n == 0 ? nullptr : std::memchr(bytes.data(), 0, n)) {
    n = static_cast<std::size_t>(static_cast<const std::byte*>(nul) - bytes.data());
  }
  entry.data.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
  const auto header = ptx::parse_header(entry.text());
  if (!header) {
    const ptx::ParseError& e = header.error();
    return fail("line " + std::to_string(e.line) + ":" + std::to_string(e.column) + ": " + e.what,
                0, e.remedy);
  }
  describe_ptx(entry);
  image.entries.push_back(std::move(entry));
  return image;
}

tl::expected<Image, Error> open_span(Bytes bytes) {
  if (bytes.empty()) {
    return fail("the image is empty", 0, "pass a fatbin, a cubin or PTX text");
  }
  switch (magic_of(bytes)) {
    case kWrapperMagic:
      return fail("a fatbin wrapper holds addresses of a running process", 0,
                  "pass what it points to: the container in section .nv_fatbin");
    case kContainerMagic: {
      Image image;
      image.form = Image::Form::kContainer;
      std::uint64_t total = 0;
      if (auto ok = add_container(bytes, 0, total, image); !ok) {
        return tl::make_unexpected(std::move(ok.error()));
      }
      return image;
    }
    default:
      break;
  }
  if (is_elf(bytes)) {
    if (bytes.size() > kMaxEntryBytes) {
      return fail("machine code above 1 GiB", kMaxEntryBytes, "split the module into several");
    }
    Image image;
    image.form = Image::Form::kCubin;
    Entry entry;
    entry.kind = EntryKind::kCubin;
    entry.data.assign(bytes.begin(), bytes.end());
    if (auto ok = describe_cubin(entry, 0); !ok) {
      return tl::make_unexpected(std::move(ok.error()));
    }
    image.entries.push_back(std::move(entry));
    return image;
  }
  if (!may_be_ptx(bytes)) {
    return fail(
        "neither a fatbin, a cubin nor PTX text (it begins with " + hex(magic_of(bytes)) + ")", 0,
        "pass the output of nvcc -fatbin, -cubin or -ptx");
  }
  return open_ptx(bytes);
}

// --- Bare pointers ---

// The end of an ELF file by its own headers.
tl::expected<std::uint64_t, Error> elf_size(const std::byte* p) {
  const Bytes header(p, 64);
  if (header[4] != std::byte{2} || header[5] != std::byte{1}) {
    return fail("ELF file is not 64-bit little-endian", 4);
  }
  const auto sections = load_at<std::uint64_t>(header, 40);
  const auto segments = load_at<std::uint64_t>(header, 32);
  std::uint64_t count = load_at<std::uint16_t>(header, 60);
  const std::uint64_t segment_count = load_at<std::uint16_t>(header, 56);
  if (sections > kMaxEntryBytes || segments > kMaxEntryBytes) {
    return fail("ELF tables lie beyond 1 GiB", 32);
  }
  std::uint64_t end = 64;
  if (segments != 0) {
    end = std::max(end, segments + segment_count * load_at<std::uint16_t>(header, 54));
  }
  if (sections != 0) {
    if (load_at<std::uint16_t>(header, 58) != 64) {
      return fail("ELF section headers are not 64 bytes", 58);
    }
    if (count == 0) {
      std::memcpy(&count, p + sections + 32, sizeof count);
    }
    if (count > (1u << 20)) {
      return fail("ELF file with more than 2^20 sections", 60);
    }
    end = std::max(end, sections + count * 64);
    for (std::uint64_t i = 0; i < count; ++i) {
      const Bytes s(p + sections + i * 64, 64);
      const auto offset = load_at<std::uint64_t>(s, 24);
      const auto size = load_at<std::uint64_t>(s, 32);
      if (load_at<std::uint32_t>(s, 4) == 8) {
        continue;
      }
      if (offset > kMaxEntryBytes || size > kMaxEntryBytes) {
        return fail("ELF section " + std::to_string(i) + " lies beyond 1 GiB", sections + i * 64);
      }
      end = std::max(end, offset + size);
    }
  }
  if (end > kMaxEntryBytes) {
    return fail("machine code above 1 GiB", 0, "split the module into several");
  }
  return end;
}

tl::expected<std::uint64_t, Error> pointer_size(const void* image) {
  if (image == nullptr) {
    return fail("the image is a null pointer", 0, "pass a fatbin, a cubin or PTX text");
  }
  const auto* const p = static_cast<const std::byte*>(image);
  // Byte by byte: PTX text may be shorter than a magic number.
  std::uint32_t magic = 0;
  for (int i = 0; i < 4; ++i) {
    magic |= static_cast<std::uint32_t>(p[i]) << (8 * i);
    if (p[i] == std::byte{0}) {
      break;
    }
  }
  if (magic == kWrapperMagic) {
    return kWrapperBytes;
  }
  if (magic == kContainerMagic) {
    return container_size(Bytes(p, kContainerHeader), 0);
  }
  if (magic == 0x464C457F) {
    return elf_size(p);
  }
  const std::size_t n = strnlen(reinterpret_cast<const char*>(p), 64);
  if (!may_be_ptx(Bytes(p, n))) {
    return fail("neither a fatbin, a cubin nor PTX text (it begins with " + hex(magic) + ")", 0,
                "pass the output of nvcc -fatbin, -cubin or -ptx");
  }
  const std::size_t length = strnlen(reinterpret_cast<const char*>(p), kMaxPtxBytes + 1);
  if (length > kMaxPtxBytes) {
    return fail("PTX text without a NUL within 256 MiB", kMaxPtxBytes, "end the text with a NUL");
  }
  return length;
}

tl::expected<Image, Error> open_wrapper(const std::byte* p) {
  const Bytes wrapper(p, kWrapperBytes);
  const auto version = load_at<std::uint32_t>(wrapper, 4);
  const auto* const data = load_at<const std::byte*>(wrapper, 8);
  const auto* const more = load_at<const std::byte* const*>(wrapper, 16);
  if (version != 1 && version != 2) {
    return fail("fatbin wrapper of unknown version " + std::to_string(version), 4,
                "use a gpurecover that knows this toolkit");
  }
  Image image;
  image.form = Image::Form::kWrapper;
  std::uint64_t total = 0;
  auto add = [&](const std::byte* at) -> tl::expected<void, Error> {
    if (load_at<std::uint32_t>(Bytes(at, 4), 0) != kContainerMagic) {
      // Other things that the driver accepts here are opened by themselves.
      auto size = pointer_size(at);
      if (!size) {
        return tl::make_unexpected(std::move(size.error()));
      }
      auto inner = open_span(Bytes(at, *size));
      if (!inner) {
        return tl::make_unexpected(std::move(inner.error()));
      }
      for (Entry& e : inner->entries) {
        total += e.data.size();
        image.entries.push_back(std::move(e));
      }
      return {};
    }
    const auto size = container_size(Bytes(at, kContainerHeader), 0);
    if (!size) {
      return tl::make_unexpected(size.error());
    }
    return add_container(Bytes(at, *size), 0, total, image);
  };
  if (data != nullptr) {
    if (auto ok = add(data); !ok) {
      return tl::make_unexpected(std::move(ok.error()));
    }
  }
  if (version == 2 && more != nullptr) {
    for (std::size_t i = 0; more[i] != nullptr; ++i) {
      if (i >= kMaxContainers) {
        return fail("fatbin wrapper with more than 4096 containers", 16);
      }
      if (auto ok = add(more[i]); !ok) {
        return tl::make_unexpected(std::move(ok.error()));
      }
    }
  }
  if (image.entries.empty() && image.skipped.empty()) {
    return fail("fatbin wrapper points to nothing", 8);
  }
  return image;
}

// --- Files ---

// Finds image candidates in one stretch of a file, in order and without overlap.
class Scanner {
 public:
  Scanner(Bytes part, std::uint64_t base, std::string section, FileImages& out)
      : part_(part), base_(base), section_(std::move(section)), out_(out) {}

  void run() {
    static constexpr std::string_view kContainer{"\x50\xED\x55\xBA\x01\x00", 6};
    static constexpr std::string_view kElf{
        "\x7f"
        "ELF\x02\x01",
        6};
    static constexpr std::string_view kPtx{".version"};
    const std::string_view text = as_text(part_);
    std::size_t container = text.find(kContainer), elf = text.find(kElf), ptx = text.find(kPtx);
    std::size_t at = 0;
    while (out_.images.size() < kMaxFound) {
      if (container < at)
        container = text.find(kContainer, at);
      if (elf < at)
        elf = text.find(kElf, at);
      if (ptx < at)
        ptx = text.find(kPtx, at);
      const std::size_t next = std::min({container, elf, ptx});
      if (next == std::string_view::npos) {
        return;
      }
      at = next == ptx ? take_ptx(next, at) : next == elf ? take_elf(next) : take_container(next);
    }
  }

 private:
  void add(std::uint64_t offset, std::uint64_t size, tl::expected<Image, Error> image) {
    if (image) {
      out_.images.push_back({base_ + offset, size, section_, std::move(*image)});
    } else if (out_.errors.size() < kMaxFound) {
      image.error().offset += base_ + offset;
      out_.errors.push_back(std::move(image.error()));
    }
  }
  std::size_t take_container(std::size_t at) {
    const Bytes rest = part_.subspan(at);
    if (rest.size() < kContainerHeader) {
      return at + 1;
    }
    const std::uint64_t header = load_at<std::uint16_t>(rest, 6);
    const auto size = load_at<std::uint64_t>(rest, 8);
    if (header != kContainerHeader) {
      return at + 1;  // the magic number by chance, or in somebody's code
    }
    if (size > rest.size() - header) {
      add(at, 0,
          fail("fatbin is cut short: its header says " + std::to_string(size) + " bytes, " +
                   std::to_string(rest.size() - header) + " are left",
               8));
      return at + 1;
    }
    auto image = open_span(rest.first(header + size));
    const bool good = image.has_value();
    add(at, header + size, std::move(image));
    return good ? at + header + size : at + 1;
  }
  std::size_t take_elf(std::size_t at) {
    const Bytes rest = part_.subspan(at);
    if (rest.size() < 64 || load_at<std::uint16_t>(rest, 18) != kMachineCuda) {
      return at + 1;
    }
    const auto elf = read_elf(rest);
    if (!elf) {
      add(at, 0, tl::make_unexpected(elf.error()));
      return at + 1;
    }
    std::uint64_t end = 64;
    const auto table = load_at<std::uint64_t>(rest, 40);
    const auto segments = load_at<std::uint64_t>(rest, 32);
    const std::uint64_t segment_bytes =
        std::uint64_t{load_at<std::uint16_t>(rest, 54)} * load_at<std::uint16_t>(rest, 56);
    if (table != 0) {
      end = std::max<std::uint64_t>(end, table + elf->sections.size() * 64);
    }
    if (segments <= rest.size() && segment_bytes <= rest.size() - segments) {
      end = std::max(end, segments + segment_bytes);
    }
    for (const ElfSection& s : elf->sections) {
      if (!s.data.empty()) {
        end = std::max<std::uint64_t>(end, s.offset + s.data.size());
      }
    }
    end = std::min<std::uint64_t>(end, rest.size());
    add(at, end, open_span(rest.first(end)));
    return at + end;
  }
  std::size_t take_ptx(std::size_t at, std::size_t floor) {
    const std::string_view text = as_text(part_);
    // Comments and blanks before .version belong to it.
    auto is_text = [](char c) {
      return c == '\t' || c == '\n' || c == '\r' || static_cast<unsigned char>(c) >= 32;
    };
    std::size_t begin = at;
    while (begin > floor && at - begin < 4096 && is_text(text[begin - 1])) {
      --begin;
    }
    std::size_t end = at;
    while (end < text.size() && is_text(text[end])) {
      ++end;
    }
    if (!ptx::parse_header(text.substr(begin, end - begin))) {
      begin = at;  // something else stood before it
    }
    const std::string_view candidate = text.substr(begin, end - begin);
    // A program that only speaks of PTX (a compiler, a library like this) holds headers without
    // code.
    const bool has_code = candidate.find(".entry") != std::string_view::npos ||
                          candidate.find(".func") != std::string_view::npos;
    if (!has_code || !ptx::parse_header(candidate)) {
      return at + 1;
    }
    add(begin, end - begin, open_ptx(part_.subspan(begin, end - begin)));
    return end;
  }

  Bytes part_;
  std::uint64_t base_;
  std::string section_;
  FileImages& out_;
};

// An exception must not leave a library that lives in other people's programs.
template <typename T, typename Work>
tl::expected<T, Error> guarded(Work&& work) {
  try {
    return work();
  } catch (const std::exception&) {
    return fail("out of memory", 0, "free memory and try again");
  }
}

}  // namespace

std::string Error::message() const {
  return "byte " + std::to_string(offset) + ": " + what + "; " + remedy;
}

tl::expected<Image, Error> open(std::span<const std::byte> bytes) {
  return guarded<Image>([&] { return open_span(bytes); });
}

tl::expected<std::uint64_t, Error> size_of_image(const void* image) {
  return guarded<std::uint64_t>([&] { return pointer_size(image); });
}

tl::expected<Image, Error> open_pointer(const void* image) {
  return guarded<Image>([&]() -> tl::expected<Image, Error> {
    auto size = pointer_size(image);
    if (!size) {
      return tl::make_unexpected(std::move(size.error()));
    }
    const auto* const p = static_cast<const std::byte*>(image);
    if (*size == kWrapperBytes && load_at<std::uint32_t>(Bytes(p, 4), 0) == kWrapperMagic) {
      return open_wrapper(p);
    }
    return open_span(Bytes(p, *size));
  });
}

tl::expected<FileImages, Error> find_images(std::span<const std::byte> file) {
  return guarded<FileImages>([&]() -> tl::expected<FileImages, Error> {
    FileImages out;
    const bool elf = is_elf(file);
    const bool host = elf && file.size() >= 20 && load_at<std::uint16_t>(file, 18) != kMachineCuda;
    if (!host && !as_text(file).starts_with("!<arch>\n")) {
      auto image = open_span(file);
      if (!image) {
        return tl::make_unexpected(std::move(image.error()));
      }
      out.images.push_back({0, file.size(), "", std::move(*image)});
      return out;
    }
    const auto sections = elf ? read_elf(file) : tl::make_unexpected(Error{});
    bool any = false;
    if (sections) {
      for (const ElfSection& s : sections->sections) {
        if (!s.data.empty()) {
          any = true;
          Scanner(s.data, s.offset, std::string(s.name), out).run();
        }
      }
    }
    if (!any) {
      Scanner(file, 0, "", out).run();  // a library archive, or stripped of its sections
    }
    return out;
  });
}

tl::expected<std::size_t, Error> select(const Image& image, ComputeCapability device) {
  const std::uint32_t sm = device.sm();
  auto fits_suffix = [&](const Entry& e) {
    if (!e.suffix || e.suffix->empty())
      return true;
    if (*e.suffix == "a")
      return e.sm == sm;
    return e.sm / 10 == sm / 10;  // a family
  };
  std::optional<std::size_t> code, text;
  for (std::size_t i = 0; i < image.entries.size(); ++i) {
    const Entry& e = image.entries[i];
    if (e.sm == 0 || e.sm > sm || !fits_suffix(e)) {
      continue;
    }
    auto& best = e.kind == EntryKind::kCubin ? code : text;
    if (e.kind == EntryKind::kCubin && e.sm / 10 != device.major) {
      continue;
    }
    if (!best || image.entries[*best].sm < e.sm) {
      best = i;
    }
  }
  if (code) {
    return *code;
  }
  if (text) {
    return *text;
  }
  std::string have;
  for (std::size_t i = 0; i < image.entries.size() && i < 16; ++i) {
    const Entry& e = image.entries[i];
    have += (i == 0 ? "" : ", ") +
            std::string(e.kind == EntryKind::kPtx ? "PTX " : "machine code ") + "sm_" +
            std::to_string(e.sm) + e.suffix.value_or("");
  }
  return fail("nothing in the image runs on sm_" + std::to_string(sm) + " (it holds " +
                  (have.empty() ? "nothing" : have) + ")",
              0,
              "compile with -gencode arch=compute_" + std::to_string(sm) + ",code=[sm_" +
                  std::to_string(sm) + ",compute_" + std::to_string(sm) + "]");
}

tl::expected<std::size_t, std::string> ptx_for_machine_code(const Image& image,
                                                            ComputeCapability device) {
  const auto chosen = select(image, device);
  if (!chosen) {
    return tl::make_unexpected(chosen.error().what);
  }
  const Entry& code = image.entries[*chosen];
  if (code.kind == EntryKind::kPtx) {
    return *chosen;
  }
  const std::string name = "sm_" + std::to_string(code.sm) + code.suffix.value_or("");
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < image.entries.size(); ++i) {
    const Entry& e = image.entries[i];
    // An arch-specific compile sees other macros than the plain one: it is another compile.
    if (e.kind != EntryKind::kPtx || e.sm != code.sm ||
        (e.suffix && code.suffix && *e.suffix != *code.suffix)) {
      continue;
    }
    if (found) {
      return tl::make_unexpected("machine code " + name +
                                 " with more than one PTX of the same architecture");
    }
    found = i;
  }
  if (!found) {
    return tl::make_unexpected("machine code " + name + " without PTX of the same compile");
  }
  return *found;
}

}  // namespace gpurecover::image
