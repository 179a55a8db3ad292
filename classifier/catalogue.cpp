// SPDX-License-Identifier: Apache-2.0
#include "classifier/catalogue.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "classifier/suggest.h"

namespace gpurecover::classifier {
namespace {

struct KindWord {
  std::string_view word;
  std::int32_t code;
  ErrorKind::Special special = ErrorKind::Special::none;
};

constexpr KindWord kKinds[] = {
    {"oom", 2},
    {"ecc", 214},
    {"nvlink", 220},
    {"contained", 226},
    {"illegal-address", 700},
    {"timeout", 702},
    {"assert", 710},
    {"misaligned", 716},
    {"launch-failure", 719},
    {"hang", 0, ErrorKind::Special::hang},
    {"bitflip", 0, ErrorKind::Special::bitflip},
};

constexpr std::string_view kKindWords[] = {
    "oom",    "ecc",        "nvlink",         "contained", "illegal-address", "timeout",
    "assert", "misaligned", "launch-failure", "hang",      "bitflip"};
static_assert(std::size(kKinds) == std::size(kKindWords));

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equal_ignoring_case(std::string_view a, const char* name) {
  if (!name)
    return false;
  const std::string_view b = name;
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::int32_t> whole_number(std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

ErrorKind kind_of(const CodeInfo& info) {
  ErrorKind kind{std::string(info.name()), info.code, is_sticky(info.code), {}};
  for (const KindWord& k : kKinds)
    if (k.code == info.code)
      kind.name = k.word;
  return kind;
}

}  // namespace

std::string_view to_string(Sticky value) {
  switch (value) {
    case Sticky::no:
      return "no";
    case Sticky::documented:
      return "documented";
    case Sticky::measured:
      return "measured";
    case Sticky::silent:
      return "silent";
  }
  return "?";
}

std::string_view to_string(Nature value) {
  switch (value) {
    case Nature::none:
      return "none";
    case Nature::hardware:
      return "hardware";
    case Nature::program:
      return "program";
    case Nature::either:
      return "program or hardware";
    case Nature::resource:
      return "resource";
    case Nature::environment:
      return "environment";
    case Nature::consequence:
      return "consequence";
    case Nature::unknown:
      return "unknown";
  }
  return "?";
}

std::string_view to_string(Rerun value) {
  switch (value) {
    case Rerun::same_gpu:
      return "same-gpu";
    case Rerun::same_gpu_once:
      return "same-gpu-once";
    case Rerun::after_reset:
      return "after-reset";
    case Rerun::after_reboot:
      return "after-reboot";
    case Rerun::no_effect:
      return "no-effect";
    case Rerun::companion:
      return "companion";
    case Rerun::varies:
      return "varies";
    case Rerun::unknown:
      return "unknown";
  }
  return "?";
}

std::string_view advice(Rerun value) {
  switch (value) {
    case Rerun::same_gpu:
      return "Run the job again; the same GPU will do.";
    case Rerun::same_gpu_once:
      return "Run the job again once: if the fault comes again on other GPUs too, it is the "
             "program; if only on this one, the hardware.";
    case Rerun::after_reset:
      return "Run the job again after a reset of this GPU, or on another one.";
    case Rerun::after_reboot:
      return "Run the job elsewhere; this node must restart first.";
    case Rerun::no_effect:
      return "By itself it does not harm the job.";
    case Rerun::companion:
      return "The Xid that came with it decides.";
    case Rerun::varies:
      return "It depends on the details in the message.";
    case Rerun::unknown:
      return "It is not known whether running the job again helps.";
  }
  return "?";
}

const CodeInfo* find_code(std::int32_t code) {
  const auto codes = all_codes();
  const auto it =
      std::lower_bound(codes.begin(), codes.end(), code,
                       [](const CodeInfo& info, std::int32_t c) { return info.code < c; });
  return it != codes.end() && it->code == code ? &*it : nullptr;
}

const CodeInfo* find_code(std::string_view spelling) {
  if (const auto number = whole_number(spelling))
    return find_code(*number);
  for (const CodeInfo& info : all_codes())
    if (equal_ignoring_case(spelling, info.driver_name) ||
        equal_ignoring_case(spelling, info.runtime_name))
      return &info;
  return nullptr;
}

std::string_view nearest_code_name(std::string_view word) {
  std::vector<std::string_view> names;
  names.reserve(2 * all_codes().size());
  for (const CodeInfo& info : all_codes()) {
    if (info.driver_name)
      names.emplace_back(info.driver_name);
    if (info.runtime_name)
      names.emplace_back(info.runtime_name);
  }
  if (const std::string_view found = nearest(word, names); !found.empty())
    return found;
  // The prefix left out: "ECC_UNCORRECTABLE".
  const std::string full = "CUDA_ERROR_" + std::string(word.substr(0, 64));
  for (const CodeInfo& info : all_codes())
    if (equal_ignoring_case(full, info.driver_name))
      return info.driver_name;
  return {};
}

std::string code_name(std::int32_t code) {
  if (const CodeInfo* info = find_code(code))
    return std::string(info->name());
  return "CUDA error " + std::to_string(code);
}

bool is_sticky(std::int32_t code) {
  const CodeInfo* info = find_code(code);
  return info && info->sticky != Sticky::no;
}

Class class_of_code(std::int32_t code) {
  const CodeInfo* info = find_code(code);
  switch (info ? info->nature : Nature::unknown) {
    case Nature::hardware:
      return Class::hardware;
    case Nature::resource:
      return Class::resource;
    case Nature::environment:
    case Nature::unknown:
      return Class::environment;
    case Nature::consequence:
      return Class::consequence;
    case Nature::none:
    case Nature::program:
    case Nature::either:
      break;
  }
  return Class::program;
}

Scope scope_of_code(std::int32_t code) {
  return is_sticky(code) ? Scope::context : Scope::launch;
}

const XidInfo* find_xid(std::int32_t xid) {
  const auto xids = all_xids();
  const auto it =
      std::lower_bound(xids.begin(), xids.end(), xid,
                       [](const XidInfo& info, std::int32_t x) { return info.xid < x; });
  return it != xids.end() && it->xid == xid ? &*it : nullptr;
}

tl::expected<ErrorKind, std::string> parse_error_kind(std::string_view text) {
  for (const KindWord& k : kKinds)
    if (k.word == text)
      return ErrorKind{std::string(k.word), k.code, is_sticky(k.code), k.special};
  const CodeInfo* info = find_code(text);
  if (info && info->code == 0)
    return tl::unexpected(std::string("0 is success, which is no error kind"));
  if (info && !info->driver_name)
    return tl::unexpected(std::string(info->runtime_name) + " (" + std::to_string(info->code) +
                          ") is made by the CUDA runtime itself; the driver never returns it");
  if (info)
    return kind_of(*info);

  const std::string shown(text.substr(0, 80));
  if (whole_number(text))
    return tl::unexpected("no CUDA error has the number " + shown);
  std::string message = "unknown error kind '" + shown + "'";
  std::string_view near = nearest(text, {std::begin(kKindWords), std::end(kKindWords)});
  if (near.empty())
    near = nearest_code_name(text);
  if (!near.empty())
    return tl::unexpected(message + "; did you mean '" + std::string(near) + "'?");
  message += "; it is one of";
  for (std::string_view word : kKindWords)
    message.append(word == kKindWords[0] ? " " : ", ").append(word);
  return tl::unexpected(message + ", or the name or number of a CUDA error");
}

std::span<const std::string_view> error_kind_words() {
  return kKindWords;
}

}  // namespace gpurecover::classifier
