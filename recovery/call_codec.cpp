// SPDX-License-Identifier: Apache-2.0
#include "recovery/call_codec.h"

#include <algorithm>
#include <cstring>

namespace gpurecover::recovery {
namespace {

using driver_api::Call;

constexpr std::uint64_t kPerThreadStream = 2;  // CU_STREAM_PER_THREAD

std::uint32_t digits(std::string_view text) {
  std::uint32_t value = 0;
  for (const char c : text) {
    value = value * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return value;
}

// One word of a signature. The table is ours; the tests read every row of it.
Parameter parse(std::string_view word) {
  Parameter out;
  const bool pointer = word[0] == '>' || word[0] == '<';
  const char mark = pointer ? word[0] : '\0';
  const std::string_view rest = pointer ? word.substr(1) : word;
  const char first = rest[0];
  if (first >= '0' && first <= '9') {
    out.kind = mark == '>'   ? ParameterKind::kOut
               : mark == '<' ? ParameterKind::kIn
                             : ParameterKind::kNumber;
    out.size = digits(rest);
  } else if (first == '$') {
    out.kind = mark == '>' ? ParameterKind::kOutString : ParameterKind::kString;
  } else if (first == 'd') {
    out.kind = ParameterKind::kDevice;
    out.size = 4;
  } else {
    out.handle = first;
    out.kind = mark == '>'        ? ParameterKind::kOutHandle
               : rest.size() == 2 ? ParameterKind::kDestroyedHandle
                                  : ParameterKind::kHandle;
  }
  return out;
}

// Bytes that the parameter takes in the struct; its alignment is the same.
std::uint32_t room(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kNumber || parameter.kind == ParameterKind::kDevice
             ? parameter.size
             : 8;
}

std::vector<std::vector<Parameter>> parse_table() {
  std::vector<std::vector<Parameter>> out;
  for (const Call& call : driver_api::all_calls()) {
    std::vector<Parameter>& list = out.emplace_back();
    std::string_view left = call.signature == "-" ? std::string_view() : call.signature;
    std::uint32_t offset = 0;
    while (!left.empty()) {
      const std::size_t end = std::min(left.find(' '), left.size());
      Parameter parameter = parse(left.substr(0, end));
      const std::uint32_t size = room(parameter);
      offset = (offset + size - 1) / size * size;
      parameter.offset = offset;
      offset += size;
      list.push_back(parameter);
      left.remove_prefix(std::min(end + 1, left.size()));
    }
  }
  return out;
}

std::size_t row_of(const Call& call) {
  return static_cast<std::size_t>(&call - driver_api::all_calls().data());
}

template <class T>
T read_at(const void* params, std::uint32_t offset) {
  T value{};
  std::memcpy(&value, static_cast<const std::byte*>(params) + offset, sizeof value);
  return value;
}

class Sink {
 public:
  explicit Sink(std::vector<std::byte>& out) : out_(out) {}
  void bytes(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), from, from + size);
  }
  template <class T>
  void value(T v) {
    bytes(&v, sizeof v);
  }

 private:
  std::vector<std::byte>& out_;
};

class Source {
 public:
  explicit Source(std::span<const std::byte> in) : in_(in) {}
  bool bytes(std::size_t size, std::span<const std::byte>& out) {
    if (size > in_.size()) {
      return false;
    }
    out = in_.first(size);
    in_ = in_.subspan(size);
    return true;
  }
  template <class T>
  bool value(T& out) {
    std::span<const std::byte> raw;
    if (!bytes(sizeof out, raw)) {
      return false;
    }
    std::memcpy(&out, raw.data(), sizeof out);
    return true;
  }
  bool flag(bool& out) {
    std::uint8_t byte = 0;
    if (!value(byte) || byte > 1) {
      return false;
    }
    out = byte == 1;
    return true;
  }
  bool at_end() const { return in_.empty(); }

 private:
  std::span<const std::byte> in_;
};

// A message's head: the row, and whether it is the call's per-thread form.
struct Head {
  std::uint16_t row;
  std::uint8_t per_thread;
  std::uint8_t zero;
};
static_assert(sizeof(Head) == 4);

}  // namespace

std::span<const Parameter> parameters_of(const Call& call) {
  // Never destroyed: calls are made while the process exits.
  static const auto* const all = new std::vector<std::vector<Parameter>>(parse_table());
  const std::size_t row = row_of(call);
  return row < all->size() ? std::span<const Parameter>((*all)[row]) : std::span<const Parameter>();
}

bool travels(const Call& call) {
  return !call.signature.empty();
}

std::uint64_t table_fingerprint() {
  // FNV-1a.
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::string_view text) {
    for (const char c : text) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    hash = (hash ^ 0xff) * 0x100000001b3;
  };
  for (const Call& call : driver_api::all_calls()) {
    add(call.name);
    add(call.signature);
  }
  return hash;
}

void encode_call(const Call& call, const void* params, bool per_thread, const NewHandle& new_handle,
                 std::vector<std::byte>& out) {
  Sink sink(out);
  sink.value(Head{static_cast<std::uint16_t>(row_of(call)), std::uint8_t{per_thread}, 0});
  for (const Parameter& parameter : parameters_of(call)) {
    const auto* place = static_cast<const std::byte*>(params) + parameter.offset;
    const auto pointer = [&] { return read_at<const char*>(params, parameter.offset); };
    switch (parameter.kind) {
      case ParameterKind::kNumber:
      case ParameterKind::kDevice:
        sink.bytes(place, parameter.size);
        break;
      case ParameterKind::kHandle:
      case ParameterKind::kDestroyedHandle: {
        auto handle = read_at<std::uint64_t>(params, parameter.offset);
        if (parameter.handle == 's' && handle == 0 && per_thread) {
          handle = kPerThreadStream;
        }
        sink.value(handle);
        break;
      }
      case ParameterKind::kOut:
      case ParameterKind::kOutString:
        sink.value(std::uint8_t{pointer() != nullptr});
        break;
      case ParameterKind::kOutHandle:
        sink.value(std::uint8_t{pointer() != nullptr});
        if (pointer() != nullptr) {
          sink.value(new_handle(parameter.handle));
        }
        break;
      case ParameterKind::kIn:
        sink.value(std::uint8_t{pointer() != nullptr});
        if (pointer() != nullptr) {
          sink.bytes(pointer(), parameter.size);
        }
        break;
      case ParameterKind::kString:
        sink.value(std::uint8_t{pointer() != nullptr});
        if (pointer() != nullptr) {
          const std::size_t size = std::strlen(pointer()) + 1;
          sink.value(static_cast<std::uint32_t>(size));
          sink.bytes(pointer(), size);
        }
        break;
    }
  }
}

bool store_results(const Call& call, const void* params, std::span<const std::byte> reply,
                   const std::function<const char*(std::string_view)>& keep) {
  struct Result {
    const Parameter* parameter;
    std::span<const std::byte> bytes;
  };
  std::vector<Result> results;
  Source source(reply);
  for (const Parameter& parameter : parameters_of(call)) {
    if (parameter.kind != ParameterKind::kOut && parameter.kind != ParameterKind::kOutHandle &&
        parameter.kind != ParameterKind::kOutString) {
      continue;
    }
    if (read_at<const void*>(params, parameter.offset) == nullptr) {
      continue;
    }
    std::uint32_t size = parameter.kind == ParameterKind::kOut ? parameter.size : 8;
    if (parameter.kind == ParameterKind::kOutString && !source.value(size)) {
      return false;
    }
    Result& result = results.emplace_back(Result{&parameter, {}});
    if (!source.bytes(size, result.bytes)) {
      return false;
    }
  }
  if (!source.at_end()) {
    return false;
  }
  for (const Result& result : results) {
    void* place = read_at<void*>(params, result.parameter->offset);
    if (result.parameter->kind == ParameterKind::kOutString) {
      const char* kept = keep(std::string_view(reinterpret_cast<const char*>(result.bytes.data()),
                                               result.bytes.size()));
      std::memcpy(place, &kept, sizeof kept);
    } else {
      std::memcpy(place, result.bytes.data(), result.bytes.size());
    }
  }
  return true;
}

const char* decode_call(std::span<const std::byte> message, DecodedCall& out) {
  out = {};
  Source source(message);
  Head head{};
  const auto calls = driver_api::all_calls();
  if (!source.value(head) || head.row >= calls.size() || head.per_thread > 1 || head.zero != 0) {
    return "a message that begins with no call of the table";
  }
  const Call& call = calls[head.row];
  if (!travels(call)) {
    return "a call that does not travel";
  }
  out.call = &call;
  out.per_thread = head.per_thread == 1;
  constexpr const char* kShort = "a call that lacks parameters";
  for (const Parameter& parameter : parameters_of(call)) {
    DecodedCall::Value& value = out.values.emplace_back();
    switch (parameter.kind) {
      case ParameterKind::kNumber:
      case ParameterKind::kDevice: {
        std::span<const std::byte> raw;
        if (!source.bytes(parameter.size, raw)) {
          return kShort;
        }
        std::memcpy(&value.number, raw.data(), std::min(raw.size(), sizeof value.number));
        break;
      }
      case ParameterKind::kHandle:
      case ParameterKind::kDestroyedHandle:
        if (!source.value(value.number)) {
          return kShort;
        }
        break;
      case ParameterKind::kOut:
      case ParameterKind::kOutString:
        if (!source.flag(value.present)) {
          return kShort;
        }
        break;
      case ParameterKind::kOutHandle:
        if (!source.flag(value.present) || (value.present && !source.value(value.number))) {
          return kShort;
        }
        break;
      case ParameterKind::kIn:
        if (!source.flag(value.present) ||
            (value.present && !source.bytes(parameter.size, value.bytes))) {
          return kShort;
        }
        break;
      case ParameterKind::kString: {
        std::uint32_t size = 0;
        if (!source.flag(value.present) ||
            (value.present && (!source.value(size) || !source.bytes(size, value.bytes)))) {
          return kShort;
        }
        if (value.present && (value.bytes.empty() || value.bytes.back() != std::byte{0})) {
          return "a string without an end";
        }
        break;
      }
    }
  }
  return source.at_end() ? nullptr : "a call with more than its parameters";
}

}  // namespace gpurecover::recovery
