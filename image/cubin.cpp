// SPDX-License-Identifier: Apache-2.0
#include "image/cubin.h"

#include <algorithm>
#include <exception>
#include <unordered_map>

#include "image/elf.h"

namespace gpurecover::image {
namespace {

constexpr std::size_t kMaxKernels = 65536, kMaxParameters = 4096;

// .nv.info record: u8 format, u8 attribute, then a value of 2 bytes; format 4: its length, and a
// payload of that length follows.
constexpr std::uint8_t kFormatPayload = 4;
enum Attribute : std::uint8_t {
  kParamCbank = 0x0a,
  kExterns = 0x0f,
  kKparamInfo = 0x17,
  kCbankParamSize = 0x19,
  kKparamInfoV2 = 0x45,
};

tl::expected<void, Error> read_info(const ElfSection& section, CubinKernel& kernel) {
  const std::span<const std::byte> d = section.data;
  auto bad = [&](std::uint64_t at, std::string what) {
    return tl::make_unexpected(Error{"section " + std::string(section.name) + ": " + what,
                                     section.offset + at, "the cubin is damaged; build it anew"});
  };
  for (std::uint64_t at = 0; at < d.size();) {
    if (d.size() - at < 4) {
      return bad(at, "attribute record cut short");
    }
    const auto format = static_cast<std::uint8_t>(d[at]);
    const auto attribute = static_cast<std::uint8_t>(d[at + 1]);
    const auto value = load_at<std::uint16_t>(d, at + 2);
    const std::uint64_t payload_at = at + 4;
    std::span<const std::byte> payload;
    at = payload_at;
    if (format == kFormatPayload) {
      if (value > d.size() - payload_at) {
        return bad(payload_at, "attribute payload cut short");
      }
      payload = d.subspan(payload_at, value);
      at += value;
    } else if (format == 0 || format > kFormatPayload) {
      return bad(payload_at - 4, "unknown attribute format " + std::to_string(format));
    }
    switch (attribute) {
      case kParamCbank:
        if (payload.size() >= 8) {
          kernel.param_base = load_at<std::uint16_t>(payload, 4);
          kernel.param_bytes =
              std::max<std::uint32_t>(kernel.param_bytes, load_at<std::uint16_t>(payload, 6));
        }
        break;
      case kCbankParamSize:
        kernel.param_bytes = std::max<std::uint32_t>(kernel.param_bytes, value);
        break;
      case kExterns:
        kernel.has_externs = kernel.has_externs || payload.size() >= 4;
        break;
      case kKparamInfo:
      case kKparamInfoV2: {
        if (payload.size() < 12) {
          return bad(payload_at, "parameter record cut short");
        }
        if (kernel.parameters.size() >= kMaxParameters) {
          return bad(payload_at, "more than 4096 parameters");
        }
        KernelParameter p;
        p.ordinal = load_at<std::uint16_t>(payload, 4);
        p.offset = load_at<std::uint16_t>(payload, 6);
        if (attribute == kKparamInfo) {
          const auto bits = load_at<std::uint32_t>(payload, 8);
          p.space = (bits >> 8) & 0xF;
          p.size = bits >> 18;
        } else {
          p.size = load_at<std::uint16_t>(payload, 8);
          p.space = static_cast<std::uint8_t>(payload[11]);
        }
        kernel.parameters.push_back(p);
        break;
      }
      default:
        break;
    }
  }
  std::sort(
      kernel.parameters.begin(), kernel.parameters.end(),
      [](const KernelParameter& a, const KernelParameter& b) { return a.ordinal < b.ordinal; });
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    if (kernel.parameters[i].ordinal != i) {
      return bad(0, "parameter " + std::to_string(i) + " is missing or there twice");
    }
  }
  if (kernel.param_bytes == 0 && !kernel.parameters.empty()) {
    for (const KernelParameter& p : kernel.parameters) {
      kernel.param_bytes = std::max(kernel.param_bytes, p.offset + p.size);
    }
  }
  return {};
}

}  // namespace

const CubinKernel* Cubin::find(std::string_view name) const {
  for (const CubinKernel& k : kernels) {
    if (k.name == name) {
      return &k;
    }
  }
  return nullptr;
}

tl::expected<Cubin, Error> read_cubin(std::span<const std::byte> bytes) try {
  auto elf = read_elf(bytes);
  if (!elf) {
    return tl::make_unexpected(std::move(elf.error()));
  }
  if (elf->machine != kMachineCuda) {
    return tl::make_unexpected(Error{
        "ELF file for machine " + std::to_string(elf->machine) + ", not CUDA device code (190)", 18,
        "pass a cubin"});
  }
  Cubin cubin;
  cubin.toolkit_form = elf->abi_version;
  cubin.sm = elf->abi_version >= 8 ? (elf->flags >> 8) & 0xFF : elf->flags & 0xFF;

  // A kernel is a function whose constant bank 0 holds parameters: device functions have .nv.info
  // sections too, but no .nv.constant0.
  static constexpr std::string_view kInfo = ".nv.info.", kBank = ".nv.constant0.";
  std::unordered_map<std::string_view, bool> banks;
  for (const ElfSection& s : elf->sections) {
    if (s.name.starts_with(kBank)) {
      banks[s.name.substr(kBank.size())] = true;
    }
  }
  for (const ElfSection& s : elf->sections) {
    if (!s.name.starts_with(kInfo)) {
      continue;
    }
    const std::string_view name = s.name.substr(kInfo.size());
    if (!banks.contains(name)) {
      continue;
    }
    if (cubin.kernels.size() >= kMaxKernels) {
      return tl::make_unexpected(
          Error{"more than 65536 kernels", s.offset, "split the module into several"});
    }
    CubinKernel kernel;
    kernel.name = std::string(name);
    if (auto ok = read_info(s, kernel); !ok) {
      return tl::make_unexpected(std::move(ok.error()));
    }
    cubin.kernels.push_back(std::move(kernel));
  }
  return cubin;
} catch (const std::exception&) {
  return tl::make_unexpected(Error{"out of memory", 0, "free memory and try again"});
}

}  // namespace gpurecover::image
