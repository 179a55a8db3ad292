// SPDX-License-Identifier: Apache-2.0
//
// Side files: what `gpurecover analyze` has found of the kernels in a file, beside that file as
// NAME.gpurecover.json (docs/schema/analysis.schema.json). Each image is named by the hash of its
// content, so that what was found counts for that image alone, wherever it is met again; and the
// file by the revision of the analysis, so that it counts for no other.
//
// A side file is trusted like a rule file: whoever can write it can make a launch count as
// idempotent. What is checked here is that it is whole and of this revision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "idempotency/access_summary.h"
#include "idempotency/verdict.h"
#include "image/image.h"

namespace gpurecover::idempotency {

inline constexpr std::string_view kSideFileSchema = "gpurecover.analysis/1";
inline constexpr std::string_view kSideFileSuffix = ".gpurecover.json";
// A larger one is not read by the agent.
inline constexpr std::uint64_t kMaxSideFileBytes = 256ull << 20;

// Changes with every change of the sources that a summary depends on.
std::string_view analysis_revision();

// 32 hexadecimal digits: XXH3, 128 bits, canonical. Tells images apart; is no protection against
// somebody who makes two alike.
std::string content_hash(std::span<const std::byte> bytes);

// --- Read, by the agent ---

struct StoredKernel {
  std::string name;
  std::string packed;  // unpack_summary
};
struct StoredImage {
  image::EntryKind kind = image::EntryKind::kPtx;
  std::uint64_t bytes = 0;
  std::string hash;                   // content_hash
  std::vector<StoredKernel> kernels;  // sorted by name; those with a summary
  const StoredKernel* find(std::string_view name) const;
};
struct SideFile {
  std::vector<StoredImage> images;
};
// Any bytes are safe. The error is one line for the user, without the file's name. Throws
// std::bad_alloc only.
tl::expected<SideFile, std::string> read_side_file(std::string_view text);
// nullopt: damaged.
std::optional<KernelSummary> unpack_summary(const StoredKernel& kernel);

// --- Written, by the program ---

struct AnalysedKernel {
  std::string name;
  std::vector<ArgumentSlot> parameters;  // in order
  std::optional<KernelSummary> summary;  // nullopt: `reason`
  std::string reason;
};
struct AnalysedImage {
  std::string section;       // of the file, may be empty
  std::uint64_t offset = 0;  // of the container in the file
  image::EntryKind kind = image::EntryKind::kPtx;
  std::string architecture;  // "sm_90a"
  std::uint64_t bytes = 0;
  std::string hash;
  std::string note;  // why no kernels are listed, or empty
  std::vector<AnalysedKernel> kernels;
};
struct AnalysedFile {
  std::string name;  // without folder
  std::vector<AnalysedImage> images;
};

enum class Detail : std::uint8_t {
  kComplete,  // the side file
  kReadable,  // without what only the agent reads
};
// One JSON object and a newline.
std::string to_json(const AnalysedFile& file, std::string_view tool, Detail detail);
// The same for people; `name_of` makes what stands for a kernel of the name in the image.
std::string to_text(const AnalysedFile& file,
                    const std::function<std::string(const std::string&)>& name_of);

}  // namespace gpurecover::idempotency
