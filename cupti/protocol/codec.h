// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// One description of a struct serves both directions: a struct lists its members once, in
// `template <class Archive> void fields(Archive& a) { a(member); … }`, and the two archives below
// carry it over the wire. Integers are little-endian as on every platform CUDA 13 supports.
namespace gpurecover::protocol {

namespace detail {
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
}  // namespace detail

// Appends values to a byte string. Never fails but by running out of memory. Not thread-safe.
class Writer {
 public:
  template <class T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      (*this)(static_cast<std::uint32_t>(value.size()));
      append(value.data(), value.size());
    } else if constexpr (std::is_same_v<T, std::vector<std::byte>>) {
      (*this)(static_cast<std::uint32_t>(value.size()));
      append(value.data(), value.size());
    } else if constexpr (detail::IsVector<T>::value) {
      (*this)(static_cast<std::uint32_t>(value.size()));
      for (const auto& element : value) {
        (*this)(static_cast<const typename T::value_type&>(element));
      }
    } else if constexpr (detail::IsOptional<T>::value) {
      (*this)(static_cast<std::uint8_t>(value.has_value()));
      if (value) {
        (*this)(*value);
      }
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      append(&value, sizeof value);
    } else {
      // fields() is not const because the same function also reads; writing changes nothing.
      const_cast<T&>(value).fields(*this);
    }
  }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  void append(const void* data, std::size_t size) {
    if (size == 0) {
      return;
    }
    const auto* bytes = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), bytes, bytes + size);
  }
  std::vector<std::byte> out_;
};

// Reads what Writer wrote. Any bytes at all are safe to read: a value that does not fit leaves the
// reader failed and the target default-valued, and every later read fails too.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      std::uint32_t size = 0;
      (*this)(size);
      if (!take(size)) {
        return;
      }
      value.assign(reinterpret_cast<const char*>(in_.data() + at_ - size), size);
    } else if constexpr (std::is_same_v<T, std::vector<std::byte>>) {
      std::uint32_t size = 0;
      (*this)(size);
      if (take(size)) {
        const auto bytes = in_.subspan(at_ - size, size);
        value.assign(bytes.begin(), bytes.end());
      }
    } else if constexpr (detail::IsVector<T>::value) {
      std::uint32_t size = 0;
      (*this)(size);
      // Every element takes at least a byte: a count beyond what is left is a lie, not a reserve.
      if (failed_ || size > in_.size() - at_) {
        failed_ = true;
        return;
      }
      value.clear();
      for (std::uint32_t i = 0; i < size && !failed_; ++i) {
        typename T::value_type element{};
        (*this)(element);
        value.push_back(std::move(element));
      }
    } else if constexpr (detail::IsOptional<T>::value) {
      std::uint8_t present = 0;
      (*this)(present);
      if (present != 0 && !failed_) {
        value.emplace();
        (*this)(*value);
      } else {
        value.reset();
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      (*this)(byte);
      value = byte != 0;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      if (take(sizeof value)) {
        std::memcpy(&value, in_.data() + at_ - sizeof value, sizeof value);
      }
    } else {
      value.fields(*this);
    }
  }
  // True when everything read so far was there.
  bool ok() const { return !failed_; }
  // True when nothing is left over: a longer message than expected is of another version.
  bool at_end() const { return !failed_ && at_ == in_.size(); }

 private:
  bool take(std::size_t size) {
    if (failed_ || size > in_.size() - at_) {
      failed_ = true;
      return false;
    }
    at_ += size;
    return true;
  }
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

template <class T>
std::vector<std::byte> encode(const T& value) {
  Writer writer;
  writer(value);
  return writer.take();
}

// The decoded value, or nothing if the bytes are not exactly one T.
template <class T>
std::optional<T> decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  T value{};
  reader(value);
  if (!reader.at_end()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace gpurecover::protocol
