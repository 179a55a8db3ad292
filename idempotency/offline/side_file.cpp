// SPDX-License-Identifier: Apache-2.0
#include "idempotency/offline/side_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "analysis_revision.h"
#include "idempotency/offline/overview.h"
#include "idempotency/offline/summary_codec.h"

namespace gpurecover::idempotency {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < n ? static_cast<unsigned char>(bytes[at + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      out += k <= n ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  static constexpr auto kValues = [] {
    std::array<std::uint8_t, 256> values{};
    values.fill(0xFF);
    for (std::uint8_t k = 0; k < 64; ++k)
      values[static_cast<unsigned char>(kDigits[k])] = k;
    return values;
  }();
  if (text.size() % 4 != 0)
    return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::size_t n = 4;
    while (at + 4 == text.size() && n > 2 && text[at + n - 1] == '=')
      --n;
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const std::uint8_t value = k < n ? kValues[static_cast<unsigned char>(text[at + k])] : 0;
      if (value > 63)
        return std::nullopt;
      word = word << 6 | value;
    }
    for (std::size_t k = 0; k + 1 < n; ++k)
      out += static_cast<char>(word >> (16 - 8 * k) & 0xFF);
  }
  return out;
}

std::string hash_of(const void* data, std::size_t size) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
  std::string out;
  for (const unsigned char byte : canonical.digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

// The end of a side file: the hash of all that is before it, so that half a file, or one with a bit
// gone over, is none.
constexpr std::string_view kEndBegin = ",\n\"checksum\": \"", kEndEnd = "\"\n}\n";
constexpr std::size_t kHashDigits = 32;

const char* word_of(image::EntryKind kind) {
  return kind == image::EntryKind::kPtx ? "ptx" : "machine code";
}

// Takes from the text what the agent needs as it comes by, so that the memory used is that of what
// is kept. Anything else may stand there too.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  SideFile file;
  std::string schema, revision, trouble;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (is_member() && place_ == Place::kImage && key_ == "bytes")
      file.images.back().bytes = value;
    return true;
  }
  bool string(string_t& value) override {
    if (!is_member())
      return true;
    switch (place_) {
      case Place::kTop:
        if (key_ == "schema")
          schema = std::move(value);
        else if (key_ == "revision")
          revision = std::move(value);
        break;
      case Place::kImage:
        if (key_ == "hash")
          file.images.back().hash = std::move(value);
        else if (key_ == "kind")
          file.images.back().kind =
              value == "ptx" ? image::EntryKind::kPtx : image::EntryKind::kCubin;
        break;
      case Place::kKernel:
        if (key_ == "name")
          file.images.back().kernels.back().name = std::move(value);
        else if (key_ == "summary")
          file.images.back().kernels.back().packed = std::move(value);
        break;
      default:
        break;
    }
    return true;
  }
  bool key(string_t& value) override {
    if (is_member())
      key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override {
    return enter(depth_ == 0                                ? Place::kTop
                 : place_ == Place::kImages && depth_ == 2  ? Place::kImage
                 : place_ == Place::kKernels && depth_ == 4 ? Place::kKernel
                                                            : place_);
  }
  bool start_array(std::size_t) override {
    return enter(place_ == Place::kTop && depth_ == 1 && key_ == "images"      ? Place::kImages
                 : place_ == Place::kImage && depth_ == 3 && key_ == "kernels" ? Place::kKernels
                                                                               : place_);
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    trouble = "is no JSON (byte " + std::to_string(position) + ")";
    return false;
  }

 private:
  enum class Place : std::uint8_t { kOutside, kTop, kImages, kImage, kKernels, kKernel };
  static constexpr std::size_t kMaxDepth = 64;

  // Of the place itself, not of something inside that is passed over: the places lie inside one
  // another, in their order.
  bool is_member() const { return depth_ == static_cast<std::size_t>(place_); }

  bool enter(Place place) {
    if (++depth_ > kMaxDepth) {
      trouble = "is nested too deeply";
      return false;
    }
    if (place != place_) {
      place_ = place;
      key_.clear();
      if (place == Place::kImage)
        file.images.emplace_back();
      else if (place == Place::kKernel)
        file.images.back().kernels.emplace_back();
    }
    return true;
  }
  bool leave() {
    if (is_member()) {
      place_ = static_cast<Place>(static_cast<int>(place_) - 1);
      key_.clear();
    }
    --depth_;
    return true;
  }

  Place place_ = Place::kOutside;
  std::size_t depth_ = 0;
  std::string key_;
};

Json readable(const AnalysedKernel& kernel) {
  Json out;
  out["name"] = kernel.name;
  if (!kernel.summary) {
    out["reason"] = kernel.reason;
    return out;
  }
  Json& parameters = out["parameters"] = Json::array();
  for (const ArgumentSlot& slot : kernel.parameters)
    parameters.push_back({{"offset", slot.offset}, {"size", slot.size}});
  Json& accesses = out["accesses"] = Json::array();
  for (const PointerUse& use : overview(*kernel.summary, kernel.parameters)) {
    accesses.push_back({{"through", use.what},
                        {"read", use.reads},
                        {"write", use.writes},
                        {"must_write", use.must_writes},
                        {"read_modify_write", use.read_modify_writes},
                        {"range", use.exact ? "exact" : "bounded"}});
  }
  out["defeats"] = kernel.summary->defeats;
  return out;
}

std::string dump(const Json& json) {
  // Names come from files, and need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string_view analysis_revision() {
  return kAnalysisRevision;
}

std::string content_hash(std::span<const std::byte> bytes) {
  return hash_of(bytes.data(), bytes.size());
}

const StoredKernel* StoredImage::find(std::string_view name) const {
  const auto at =
      std::lower_bound(kernels.begin(), kernels.end(), name,
                       [](const StoredKernel& k, std::string_view name) { return k.name < name; });
  return at != kernels.end() && at->name == name ? &*at : nullptr;
}

tl::expected<SideFile, std::string> read_side_file(std::string_view text) {
  const auto bad = [](std::string why) {
    return tl::make_unexpected(std::move(why) + "; make it anew by `gpurecover analyze`");
  };
  Handler handler;
  try {
    // No exceptions of the parser's own; what is left is want of memory.
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &handler)) {
      return bad(handler.trouble.empty() ? "is no JSON" : handler.trouble);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return bad("is no JSON");
  }
  if (handler.schema != kSideFileSchema) {
    return bad(handler.schema.empty() ? "is no side file"
                                      : "has the schema " + handler.schema.substr(0, 40) +
                                            ", not " + std::string(kSideFileSchema));
  }
  if (handler.revision != analysis_revision()) {
    return bad("was made by another version of gpurecover");
  }
  const std::size_t end = kEndBegin.size() + kHashDigits + kEndEnd.size();
  if (text.size() < end || !text.ends_with(kEndEnd) ||
      text.substr(text.size() - end, kEndBegin.size()) != kEndBegin ||
      text.substr(text.size() - end + kEndBegin.size(), kHashDigits) !=
          hash_of(text.data(), text.size() - end)) {
    return bad("was changed since it was made, or is damaged");
  }
  for (StoredImage& image : handler.file.images) {
    std::erase_if(image.kernels, [](const StoredKernel& k) { return k.packed.empty(); });
    std::sort(image.kernels.begin(), image.kernels.end(),
              [](const StoredKernel& a, const StoredKernel& b) { return a.name < b.name; });
  }
  return std::move(handler.file);
}

std::optional<KernelSummary> unpack_summary(const StoredKernel& kernel) {
  const auto bytes = from_base64(kernel.packed);
  auto summary = bytes ? decode_summary(*bytes) : std::nullopt;
  if (!summary || summary->name != kernel.name)
    return std::nullopt;
  return summary;
}

std::string to_json(const AnalysedFile& file, std::string_view tool, Detail detail) {
  const auto member = [](const char* name, const Json& value) {
    return "\"" + std::string(name) + "\": " + dump(value);
  };
  std::string text = "{\n" + member("schema", kSideFileSchema) + ",\n" + member("tool", tool) +
                     ",\n" + member("revision", analysis_revision()) + ",\n" +
                     member("file", file.name) + ",\n\"images\": [";
  bool first_image = true;
  for (const AnalysedImage& image : file.images) {
    text += first_image ? "\n{" : ",\n{";
    first_image = false;
    text += member("kind", word_of(image.kind)) + ", " +
            member("architecture", image.architecture) + ", " + member("bytes", image.bytes) +
            ", " + member("hash", image.hash) + ", " + member("section", image.section) + ", " +
            member("offset", image.offset) + ", " + member("note", image.note) + ", \"kernels\": [";
    bool first = true;
    for (const AnalysedKernel& kernel : image.kernels) {
      Json json = readable(kernel);
      if (detail == Detail::kComplete && kernel.summary)
        json["summary"] = to_base64(encode_summary(*kernel.summary));
      text += (first ? "\n" : ",\n") + dump(json);
      first = false;
    }
    text += "]}";
  }
  text += "]";
  if (detail == Detail::kReadable)
    return text + "\n}\n";
  const std::string hash = hash_of(text.data(), text.size());
  return text + std::string(kEndBegin) + hash + std::string(kEndEnd);
}

std::string to_text(const AnalysedFile& file,
                    const std::function<std::string(const std::string&)>& name_of) {
  std::string out = file.name + "\n";
  for (const AnalysedImage& image : file.images) {
    out += "  " +
           (image.kind == image::EntryKind::kPtx ? "PTX for " + image.architecture
                                                 : "machine code for " + image.architecture) +
           ", " + std::to_string(image.bytes) + " bytes";
    if (!image.section.empty())
      out += ", in " + image.section;
    out += image.note.empty() ? "\n" : ": " + image.note + "\n";
    for (const AnalysedKernel& kernel : image.kernels) {
      out += "    " + name_of(kernel.name) + ": " + std::to_string(kernel.parameters.size()) +
             (kernel.parameters.size() == 1 ? " parameter\n" : " parameters\n");
      if (!kernel.summary) {
        out += "      unknown: " + kernel.reason + "\n";
        continue;
      }
      for (const PointerUse& use : overview(*kernel.summary, kernel.parameters))
        out += "      " + use.what + ": " + words_of(use) + "\n";
      for (const std::string& defeat : kernel.summary->defeats)
        out += "      unknown: " + defeat + "\n";
    }
  }
  return out;
}

}  // namespace gpurecover::idempotency
