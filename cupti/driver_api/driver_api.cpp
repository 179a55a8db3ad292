// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/driver_api.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace gpurecover::driver_api {
namespace {

constexpr Call make(std::string_view name, Kind kind, Edges edge, Capture capture, OnError on_error,
                    Codes codes, bool reports, After after, Hook hook, std::string_view signature) {
  return {name, kind, edge, capture, on_error, codes, reports, after, hook, signature};
}

constexpr Call kCalls[] = {
#define ROW(name, kind, edge, capture, on_error, codes, reports, after, hook, signature)    \
  make(#name, Kind::kind, edge, Capture::capture, OnError::on_error, Codes::codes, reports, \
       After::after, Hook::hook, signature),
#include "cupti/driver_api/calls.def"
#undef ROW
};

struct CallbackName {
  std::uint32_t cbid;
  std::string_view name;
};

// Written by CMake from the toolkit's cupti_driver_cbid.h.
constexpr CallbackName kCallbackNames[] = {
#include "cupti/driver_api/cbid_names.inc"
};

std::string_view without_stream_suffix(std::string_view name) {
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (name.ends_with(suffix)) {
      return name.substr(0, name.size() - suffix.size());
    }
  }
  return name;
}

struct Index {
  std::vector<Callback> callback;
  std::vector<std::string_view> name;
  Index() {
    std::uint32_t end = 0;
    for (const auto& entry : kCallbackNames) {
      end = std::max(end, entry.cbid + 1);
    }
    callback.resize(end);
    name.resize(end);
    for (const auto& entry : kCallbackNames) {
      name[entry.cbid] = entry.name;
      callback[entry.cbid] = {find(entry.name),
                              without_stream_suffix(entry.name).size() != entry.name.size()};
    }
  }
};

// Never destroyed: callbacks may arrive while the process exits.
const Index& index() {
  static const Index* const instance = new Index;
  return *instance;
}

// cuda.h 13.0, "Returns" of the functions of each group.
constexpr std::array kQueryCodes{1, 3, 4, 101, 201};
constexpr std::array kLaunchCodes{1,   2,   3,   4,   98,  201, 208, 209, 218,
                                  220, 400, 701, 703, 719, 720, 902, 912};
constexpr std::array kEnqueueCodes{1, 3, 4, 201, 400, 600, 801};
constexpr std::array kCopyCodes{1, 3, 4, 201, 400, 717};
constexpr std::array kAllocCodes{1, 2, 3, 4, 101, 201, 801};
constexpr std::array kSyncCodes{1, 3, 4, 201, 400, 600, 900, 906, 907};
constexpr std::array kObjectCodes{1, 2, 3, 4, 201, 400, 801};
constexpr std::array kModuleCodes{1, 2, 3, 4, 200, 201, 209, 218, 222, 300, 301, 302, 303, 500};

}  // namespace

std::span<const Call> all_calls() {
  return kCalls;
}

const Call* find(std::string_view name) {
  name = without_stream_suffix(name);
  const auto* at = std::find_if(std::begin(kCalls), std::end(kCalls),
                                [&](const Call& call) { return call.name == name; });
  return at == std::end(kCalls) ? nullptr : at;
}

const Call* find(std::uint32_t cbid) {
  const auto all = callbacks();
  return cbid < all.size() ? all[cbid].call : nullptr;
}

std::span<const Callback> callbacks() {
  return index().callback;
}

std::string_view name_of(std::uint32_t cbid) {
  const auto& names = index().name;
  return cbid < names.size() ? names[cbid] : std::string_view();
}

bool per_thread_stream(std::uint32_t cbid) {
  const auto all = callbacks();
  return cbid < all.size() && all[cbid].per_thread;
}

std::uint32_t cbid_end() {
  return static_cast<std::uint32_t>(index().callback.size());
}

std::span<const std::int32_t> codes_of(Codes codes) {
  switch (codes) {
    case Codes::kQuery:
      return kQueryCodes;
    case Codes::kLaunch:
      return kLaunchCodes;
    case Codes::kEnqueue:
      return kEnqueueCodes;
    case Codes::kCopy:
      return kCopyCodes;
    case Codes::kAlloc:
      return kAllocCodes;
    case Codes::kSync:
      return kSyncCodes;
    case Codes::kObject:
      return kObjectCodes;
    case Codes::kModule:
      return kModuleCodes;
  }
  return {};
}

}  // namespace gpurecover::driver_api
