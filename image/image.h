// SPDX-License-Identifier: Apache-2.0
//
// Module images: what a program hands to cuModuleLoadData, cuLibraryLoadData and their kin, or what
// lies in its files: fatbin wrappers and containers, cubins (ELF machine code), PTX text.
//
// Sources of the formats: the container and its compression were read off the output of nvcc 13.0
// (fatbin wrapper 0x466243B1, container 0xBA55ED50) and agree with public readers of the format.
// Nothing here throws, blocks, calls CUDA or has shared state; all functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace gpurecover::image {

struct Error {
  std::string what;             // "entry 2 is cut short: header says 4096 bytes, 100 are left"
  std::uint64_t offset = 0;     // byte in the image, or 0
  std::string remedy;           // "build the file anew, or copy it completely"
  std::string message() const;  // "byte 64: what; remedy"
};

enum class EntryKind : std::uint8_t { kPtx, kCubin };
enum class Compression : std::uint8_t { kNone, kLz4, kZstd };

struct Entry {
  EntryKind kind = EntryKind::kPtx;
  std::uint32_t sm = 0;  // 90 for sm_90, 0 if it could not be told
  // "a" or "f" of arch-specific targets (sm_90a). nullopt: not known (a cubin does not tell).
  std::optional<std::string> suffix;
  std::uint64_t flags = 0;  // as in the container; 0 outside one
  Compression compression = Compression::kNone;
  std::vector<std::byte> data;  // decompressed; PTX without its trailing NULs

  std::string_view text() const {  // of PTX
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }
};

struct Image {
  enum class Form : std::uint8_t { kWrapper, kContainer, kCubin, kPtx };
  Form form = Form::kPtx;
  std::vector<Entry> entries;  // in file order; all containers of a version 2 wrapper
  // Entries that were not understood (other kinds, e.g. link-time intermediate code): why.
  std::vector<std::string> skipped;
};

inline constexpr std::uint64_t kMaxPtxBytes = 256ull << 20;
inline constexpr std::uint64_t kMaxEntryBytes = 1ull << 30;  // decompressed, each
inline constexpr std::uint64_t kMaxImageBytes = 4ull << 30;  // decompressed, all of one image

// Opens an image of known extent. Every read stays inside `bytes`. A wrapper is refused here (it
// holds pointers): use open_pointer.
tl::expected<Image, Error> open(std::span<const std::byte> bytes);

// Opens what a program handed to the driver: no size is known, so sizes come from the headers, and
// PTX ends at its NUL (within kMaxPtxBytes). `image` must point to what the driver would accept;
// the pointers in a wrapper are followed. Headers are checked before anything they lead to is read.
tl::expected<Image, Error> open_pointer(const void* image);

// Number of bytes that the image at `image` spans, by its own headers (a wrapper: 24).
tl::expected<std::uint64_t, Error> size_of_image(const void* image);

// An image found inside a file.
struct FoundImage {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t size = 0;    // stored bytes
  std::string section;       // ELF section, "" outside one
  Image image;
};
struct FileImages {
  std::vector<FoundImage> images;
  std::vector<Error> errors;  // what looked like an image and could not be read
};
// Finds all images in a file: the file itself may be one; in an ELF file (executable, library,
// object) every section is searched for containers, cubins and PTX. Error: the file is neither.
// A file may hold anything, so this is bounded: at most 65536 images.
tl::expected<FileImages, Error> find_images(std::span<const std::byte> file);

struct ComputeCapability {
  std::uint32_t major = 0, minor = 0;
  std::uint32_t sm() const { return major * 10 + minor; }
};

// The index of the entry that the driver loads on a device: machine code of the same major and the
// highest minor not above the device's (an 'a' entry only on exactly its device), else the PTX of
// the highest SM not above the device's, which is compiled at load time. Error: none fits.
// Source: CUDA programming guide, "Application Compatibility".
tl::expected<std::size_t, Error> select(const Image& image, ComputeCapability device);

// The PTX entry that describes exactly what runs on a device, or the reason why none does:
//  - the selected entry is PTX (compiled at load time): that one;
//  - the selected entry is machine code: the only PTX entry of the same SM number in the image,
//    if there is exactly one (nvcc puts both in one container when they come from one -gencode).
// The reason is fit for users: "machine code sm_90 without PTX of the same compile".
tl::expected<std::size_t, std::string> ptx_for_machine_code(const Image& image,
                                                            ComputeCapability device);

}  // namespace gpurecover::image
