// SPDX-License-Identifier: Apache-2.0
#include "recovery/call_codec.h"

#include <cuda.h>
#include <cupti.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "cupti/driver_api/params_size.h"

namespace gpurecover::recovery {
namespace {

using driver_api::Call;

const Call& row(std::string_view name) {
  const Call* call = driver_api::find(name);
  EXPECT_NE(call, nullptr) << name;
  return *call;
}

std::uint32_t end_of(const Call& call) {
  std::uint32_t end = 0;
  std::uint32_t alignment = 1;
  for (const Parameter& parameter : parameters_of(call)) {
    const std::uint32_t size =
        parameter.kind == ParameterKind::kNumber || parameter.kind == ParameterKind::kDevice
            ? parameter.size
            : 8;
    end = parameter.offset + size;
    alignment = std::max(alignment, size);
  }
  return (end + alignment - 1) / alignment * alignment;
}

// Every word of every signature is one that the header names.
TEST(Signatures, AreAllOfTheAlphabet) {
  const std::set<std::string_view> words{"1",  "2",  "4",  "8",  "d",  "s",  "e",   "f",  "m",
                                         "L",  "c",  "s!", "e!", "m!", "L!", ">4",  ">8", ">64",
                                         ">s", ">e", ">f", ">m", ">L", "$",  "<64", ">$"};
  std::size_t travelling = 0;
  for (const Call& call : driver_api::all_calls()) {
    EXPECT_EQ(travels(call), !call.signature.empty()) << call.name;
    travelling += travels(call) ? 1 : 0;
    std::string_view left = call.signature == "-" ? std::string_view() : call.signature;
    std::size_t count = 0;
    while (!left.empty()) {
      const std::size_t end = std::min(left.find(' '), left.size());
      EXPECT_TRUE(words.contains(left.substr(0, end))) << call.name << ": " << left.substr(0, end);
      left.remove_prefix(std::min(end + 1, left.size()));
      ++count;
    }
    EXPECT_EQ(parameters_of(call).size(), count) << call.name;
  }
  EXPECT_GT(travelling, 60U);
}

// Every form of every call that travels has the struct that its signature says.
TEST(Signatures, HaveTheSizeOfCuptisStructs) {
  std::size_t checked = 0;
  for (std::uint32_t cbid = 1; cbid < driver_api::cbid_end(); ++cbid) {
    const Call* call = driver_api::find(cbid);
    if (call != nullptr && travels(*call)) {
      EXPECT_EQ(end_of(*call), driver_api::params_size(cbid)) << driver_api::name_of(cbid);
      ++checked;
    }
  }
  EXPECT_GT(checked, 60U);
}

// A macro, as only it can name a struct and its members after a call.
#define OFFSET(name, index, member)                                                   \
  EXPECT_EQ(parameters_of(row(#name))[index].offset, offsetof(name##_params, member)) \
      << #name " " #member;

TEST(Signatures, HaveTheOffsetsOfCuptisStructs){
    OFFSET(cuMemsetD8_v2, 0, dstDevice) OFFSET(cuMemsetD8_v2, 1, uc) OFFSET(cuMemsetD8_v2, 2, N)
        OFFSET(cuMemsetD16Async, 1, us) OFFSET(cuMemsetD16Async, 2, N) OFFSET(cuMemsetD16Async, 3,
                                                                              hStream)
            OFFSET(cuMemsetD2D32Async, 2, ui) OFFSET(cuMemsetD2D32Async, 3,
                                                     Width) OFFSET(cuMemsetD2D32Async, 5, hStream)
                OFFSET(cuStreamCreateWithPriority, 0,
                       phStream) OFFSET(cuStreamCreateWithPriority, 1,
                                        flags) OFFSET(cuStreamCreateWithPriority, 2, priority)
                    OFFSET(cuKernelSetAttribute, 0, attrib) OFFSET(cuKernelSetAttribute, 1, val)
                        OFFSET(cuKernelSetAttribute, 2, kernel) OFFSET(cuKernelSetAttribute, 3, dev)
                            OFFSET(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 1, func)
                                OFFSET(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 2,
                                       blockSize)
                                    OFFSET(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 3,
                                           dynamicSMemSize)
                                        OFFSET(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
                                               4, flags) OFFSET(cuLibraryGetKernel, 0, pKernel)
                                            OFFSET(cuLibraryGetKernel, 1,
                                                   library) OFFSET(cuLibraryGetKernel, 2, name)
                                                OFFSET(cuFuncGetParamInfo, 1, paramIndex)
                                                    OFFSET(cuFuncGetParamInfo, 3, paramSize)
                                                        OFFSET(cuCtxSetLimit, 1, value)
                                                            OFFSET(cuStreamSetAttribute, 1, attr)}
#undef OFFSET

std::vector<std::byte> encoded(
    const Call& call, const void* params, bool per_thread = false,
    const NewHandle& make = [](char) { return std::uint64_t{0}; }) {
  std::vector<std::byte> out;
  encode_call(call, params, per_thread, make, out);
  return out;
}

TEST(CallCodec, CarriesNumbersAndHandles) {
  cuMemsetD2D16Async_params params{};
  params.dstDevice = 0x5500'1234'5678;
  params.dstPitch = 512;
  params.us = 0xbeef;
  params.Width = 77;
  params.Height = 3;
  params.hStream = reinterpret_cast<CUstream>(0x1234);
  const auto message = encoded(row("cuMemsetD2D16Async"), &params);
  DecodedCall decoded;
  ASSERT_EQ(decode_call(message, decoded), nullptr);
  EXPECT_EQ(decoded.call->name, "cuMemsetD2D16Async");
  const std::uint64_t wanted[] = {0x5500'1234'5678, 512, 0xbeef, 77, 3, 0x1234};
  ASSERT_EQ(decoded.values.size(), std::size(wanted));
  for (std::size_t i = 0; i < std::size(wanted); ++i) {
    EXPECT_EQ(decoded.values[i].number, wanted[i]) << i;
  }
}

TEST(CallCodec, TheDefaultStreamOfAPerThreadFormIsNamed) {
  cuStreamSynchronize_params params{};
  DecodedCall decoded;
  const auto plain = encoded(row("cuStreamSynchronize"), &params);
  ASSERT_EQ(decode_call(plain, decoded), nullptr);
  EXPECT_EQ(decoded.values[0].number, 0U);
  EXPECT_FALSE(decoded.per_thread);
  const auto per_thread = encoded(row("cuStreamSynchronize"), &params, true);
  ASSERT_EQ(decode_call(per_thread, decoded), nullptr);
  EXPECT_EQ(decoded.values[0].number, 2U);
  EXPECT_TRUE(decoded.per_thread);
}

TEST(CallCodec, StringsInputsAndNewHandles) {
  CUkernel kernel = nullptr;
  cuLibraryGetKernel_params params{};
  params.pKernel = &kernel;
  params.library = reinterpret_cast<CUlibrary>(0x77);
  params.name = "gemm";
  char asked = 0;
  const auto message = encoded(row("cuLibraryGetKernel"), &params, false, [&](char kind) {
    asked = kind;
    return std::uint64_t{0xabc};
  });
  EXPECT_EQ(asked, 'f');
  DecodedCall decoded;
  ASSERT_EQ(decode_call(message, decoded), nullptr);
  EXPECT_EQ(decoded.values[0].number, 0xabcU);
  EXPECT_TRUE(decoded.values[0].present);
  EXPECT_STREQ(reinterpret_cast<const char*>(decoded.values[2].bytes.data()), "gemm");

  // What is null stays null, and no handle is asked for.
  params.pKernel = nullptr;
  params.name = nullptr;
  const auto nulls = encoded(row("cuLibraryGetKernel"), &params, false,
                             [](char) -> std::uint64_t { throw std::runtime_error("asked"); });
  ASSERT_EQ(decode_call(nulls, decoded), nullptr);
  EXPECT_FALSE(decoded.values[0].present);
  EXPECT_FALSE(decoded.values[2].present);

  CUstreamAttrValue value{};
  std::memset(&value, 0x5a, sizeof value);
  cuStreamSetAttribute_params set{};
  set.param = &value;
  const auto with_input = encoded(row("cuStreamSetAttribute"), &set);
  ASSERT_EQ(decode_call(with_input, decoded), nullptr);
  ASSERT_EQ(decoded.values[2].bytes.size(), sizeof value);
  EXPECT_EQ(std::memcmp(decoded.values[2].bytes.data(), &value, sizeof value), 0);
}

TEST(CallCodec, ResultsGoWhereTheAppWantsThem) {
  std::size_t offset = 0;
  std::size_t size = 0;
  cuFuncGetParamInfo_params params{nullptr, 3, &offset, &size};
  const std::uint64_t reply[] = {16, 8};
  const auto bytes = std::as_bytes(std::span(reply));
  const auto keep = [](std::string_view) -> const char* { return nullptr; };
  ASSERT_TRUE(store_results(row("cuFuncGetParamInfo"), &params, bytes, keep));
  EXPECT_EQ(offset, 16U);
  EXPECT_EQ(size, 8U);
  // Only what the app asked for.
  params.paramSize = nullptr;
  ASSERT_TRUE(store_results(row("cuFuncGetParamInfo"), &params, bytes.first(8), keep));
  // A reply of another length writes nothing at all.
  params.paramSize = &size;
  offset = size = 1;
  for (std::size_t n = 0; n < 16; ++n) {
    EXPECT_FALSE(store_results(row("cuFuncGetParamInfo"), &params, bytes.first(n), keep)) << n;
  }
  EXPECT_EQ(offset, 1U);
  EXPECT_EQ(size, 1U);

  const char* name = nullptr;
  cuFuncGetName_params named{&name, nullptr};
  std::vector<std::byte> text(4 + 4);
  const std::uint32_t length = 4;
  std::memcpy(text.data(), &length, 4);
  std::memcpy(text.data() + 4, "gemm", 4);
  static std::string kept;
  const auto keep_it = [](std::string_view s) {
    kept = s;
    return kept.c_str();
  };
  ASSERT_TRUE(store_results(row("cuFuncGetName"), &named, text, keep_it));
  EXPECT_STREQ(name, "gemm");

  CUstream stream = nullptr;
  cuStreamCreate_params create{&stream, 0};
  const std::uint64_t number = 0xf00;
  ASSERT_TRUE(
      store_results(row("cuStreamCreate"), &create, std::as_bytes(std::span(&number, 1)), keep));
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(stream), number);
}

TEST(CallCodec, CutAndLongerMessagesAreRefused) {
  CUkernel kernel = nullptr;
  cuLibraryGetKernel_params params{&kernel, nullptr, "gemm"};
  auto message = encoded(row("cuLibraryGetKernel"), &params);
  DecodedCall decoded;
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_NE(decode_call(std::span(message).first(size), decoded), nullptr) << size;
  }
  message.push_back(std::byte{0});
  EXPECT_NE(decode_call(message, decoded), nullptr);
  message.pop_back();
  message.back() = std::byte{'x'};
  EXPECT_NE(decode_call(message, decoded), nullptr) << "a string without its end";
}

// Whatever is decoded has all its parameters; nothing is read beyond the message (ASan watches).
TEST(CallCodec, RandomMessagesAreNeverMoreThanRefused) {
  constexpr unsigned kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto calls = driver_api::all_calls();
  std::size_t good = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::vector<std::byte> message(random() % 64);
    for (auto& byte : message) {
      byte = static_cast<std::byte>(random() % 3 == 0 ? random() : random() % 2);
    }
    if (message.size() >= 4) {
      const auto head = static_cast<std::uint16_t>(random() % (calls.size() + 2));
      std::memcpy(message.data(), &head, 2);
      message[3] = std::byte{0};
    }
    DecodedCall decoded;
    if (decode_call(message, decoded) == nullptr) {
      ++good;
      ASSERT_EQ(decoded.values.size(), parameters_of(*decoded.call).size());
    }
  }
  EXPECT_GT(good, 100U) << "the generator no longer reaches what is well-formed";
}

}  // namespace
}  // namespace gpurecover::recovery
