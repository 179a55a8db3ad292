// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/images.h"

#include <elf.h>
#include <string.h>

#include <algorithm>

#include "image/image.h"
#include "image/ptx_parser.h"

namespace gpurecover::softgpu {
namespace {

constexpr image::ComputeCapability kDevice{9, 0};

/// The PTX to run: what was compiled together with the machine code that a real device would take,
/// else the newest that the device reports to understand.
const image::Entry* ChoosePtx(const image::Image& image) {
  if (auto exact = image::ptx_for_machine_code(image, kDevice))
    return &image.entries[*exact];
  const image::Entry* best = nullptr;
  for (const image::Entry& entry : image.entries) {
    if (entry.kind != image::EntryKind::kPtx || entry.sm > kDevice.sm())
      continue;
    if (entry.suffix && !entry.suffix->empty() && entry.sm != kDevice.sm())
      continue;  // sm_90a runs on 9.0 only
    if (!best || entry.sm > best->sm)
      best = &entry;
  }
  return best;
}

template <class T>
void Append(std::vector<char>& out, const T& value) {
  const char* bytes = reinterpret_cast<const char*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

}  // namespace

CUresult CompileImage(const void* data, std::shared_ptr<const CompiledImage>* out,
                      std::string* why) {
  if (!data)
    return CUDA_ERROR_INVALID_VALUE;
  State& state = State::Get();
  auto opened = image::open_pointer(data);
  if (!opened) {
    *why = "cannot read the module image: " + opened.error().message();
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const image::Entry* ptx = ChoosePtx(*opened);
  if (!ptx) {
    *why =
        "the module image has no PTX for compute_90 or lower; build it with, for example, "
        "-gencode arch=compute_80,code=compute_80";
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  auto module = image::ptx::parse(ptx->text());
  if (!module) {
    *why = "cannot read the PTX: " + module.error().message("ptx");
    return CUDA_ERROR_INVALID_PTX;
  }
  if (!state.executor) {
    *why = "this build of softgpu has no interpreter and cannot load kernels";
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto program = state.executor->Compile(*module);
  if (!program) {
    *why = program.error().message;
    if (program.error().line)
      *why += " (PTX line " + std::to_string(program.error().line) + ")";
    return CUDA_ERROR_INVALID_PTX;
  }
  auto compiled = std::make_shared<CompiledImage>();
  compiled->program = *program;
  compiled->ptx_version = static_cast<int>(module->version_major * 10 + module->version_minor);
  compiled->sm = static_cast<int>(module->sm);
  if (auto chosen = image::select(*opened, kDevice);
      chosen && opened->entries[*chosen].kind == image::EntryKind::kCubin) {
    const auto& bytes = opened->entries[*chosen].data;
    const char* begin = reinterpret_cast<const char*>(bytes.data());
    compiled->cubin.assign(begin, begin + bytes.size());
  } else {
    compiled->cubin = DescribeAsCubin(compiled->program->kernels(), kDevice.sm());
  }
  *out = std::move(compiled);
  return CUDA_SUCCESS;
}

std::vector<char> DescribeAsCubin(std::span<const KernelInfo> kernels, int sm) {
  constexpr uint16_t kMachineCuda = 190, kParameterBase = 0x210;
  constexpr uint32_t kInfoSection = 0x70000000;
  struct Section {
    std::string name;
    uint32_t type;
    std::vector<char> data;
  };
  std::vector<Section> sections;
  for (const KernelInfo& kernel : kernels) {
    Section info{".nv.info." + kernel.name, kInfoSection, {}};
    auto record = [&](uint8_t format, uint8_t attribute, uint16_t value) {
      Append(info.data, format);
      Append(info.data, attribute);
      Append(info.data, value);
    };
    // PARAM_CBANK, CBANK_PARAM_SIZE, then a KPARAM_INFO (12 bytes) for each parameter.
    record(4, 0x0a, 8);
    Append(info.data, uint32_t{0});
    Append(info.data, kParameterBase);
    Append(info.data, static_cast<uint16_t>(kernel.parameter_bytes));
    record(3, 0x19, static_cast<uint16_t>(kernel.parameter_bytes));
    for (size_t i = 0; i < kernel.parameters.size(); ++i) {
      const ParameterInfo& p = kernel.parameters[i];
      const bool wide = p.size >= 1u << 14;
      record(4, wide ? 0x45 : 0x17, 12);
      Append(info.data, uint32_t{0});
      Append(info.data, static_cast<uint16_t>(i));
      Append(info.data, static_cast<uint16_t>(p.offset));
      if (wide) {
        Append(info.data, static_cast<uint16_t>(p.size));
        Append(info.data, uint16_t{0});
      } else {
        uint32_t log2_align = 0;
        while (log2_align < 7 && (1u << (log2_align + 1)) <= p.align)
          ++log2_align;
        Append(info.data, log2_align | 0x1fu << 12 | p.size << 18);
      }
    }
    sections.push_back(std::move(info));
    sections.push_back({".nv.constant0." + kernel.name, SHT_PROGBITS,
                        std::vector<char>(kParameterBase + kernel.parameter_bytes)});
    sections.push_back({".text." + kernel.name, SHT_PROGBITS, {}});
  }
  Section names{".shstrtab", SHT_STRTAB, {}};
  names.data.push_back(0);
  std::vector<Elf64_Shdr> headers(1);
  std::vector<char> body;
  auto add = [&](const std::string& name, uint32_t type, const std::vector<char>& data) {
    Elf64_Shdr header{};
    header.sh_name = static_cast<uint32_t>(names.data.size());
    names.data.insert(names.data.end(), name.c_str(), name.c_str() + name.size() + 1);
    header.sh_type = type;
    header.sh_offset = sizeof(Elf64_Ehdr) + body.size();
    header.sh_size = data.size();
    header.sh_addralign = 4;
    body.insert(body.end(), data.begin(), data.end());
    body.resize((body.size() + 7) / 8 * 8);
    headers.push_back(header);
  };
  for (const Section& s : sections)
    add(s.name, s.type, s.data);
  names.data.reserve(names.data.size() + names.name.size() + 1);
  const auto name_of_names = static_cast<uint32_t>(names.data.size());
  names.data.insert(names.data.end(), names.name.c_str(),
                    names.name.c_str() + names.name.size() + 1);
  Elf64_Shdr last{};
  last.sh_name = name_of_names;
  last.sh_type = SHT_STRTAB;
  last.sh_offset = sizeof(Elf64_Ehdr) + body.size();
  last.sh_size = names.data.size();
  last.sh_addralign = 1;
  body.insert(body.end(), names.data.begin(), names.data.end());
  body.resize((body.size() + 7) / 8 * 8);
  headers.push_back(last);

  Elf64_Ehdr elf{};
  memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_CLASS] = ELFCLASS64;
  elf.e_ident[EI_DATA] = ELFDATA2LSB;
  elf.e_ident[EI_VERSION] = EV_CURRENT;
  elf.e_ident[EI_OSABI] = 0x41;  // CUDA 13's form: the SM number in bits 8 to 15 of the flags
  elf.e_ident[EI_ABIVERSION] = 8;
  elf.e_type = ET_EXEC;
  elf.e_machine = kMachineCuda;
  elf.e_version = 1;
  elf.e_flags = 0x06000004u | static_cast<uint32_t>(sm) << 8;
  elf.e_ehsize = sizeof(Elf64_Ehdr);
  elf.e_shentsize = sizeof(Elf64_Shdr);
  // More sections than the header can count: their number is in the first section header.
  const uint64_t count = headers.size();
  elf.e_shoff = sizeof elf + body.size();
  if (count >= SHN_LORESERVE) {
    headers[0].sh_size = count;
    headers[0].sh_link = static_cast<uint32_t>(count - 1);
    elf.e_shstrndx = SHN_XINDEX;
  } else {
    elf.e_shnum = static_cast<uint16_t>(count);
    elf.e_shstrndx = static_cast<uint16_t>(count - 1);
  }
  std::vector<char> out;
  Append(out, elf);
  out.insert(out.end(), body.begin(), body.end());
  for (const Elf64_Shdr& header : headers)
    Append(out, header);
  return out;
}

}  // namespace gpurecover::softgpu
