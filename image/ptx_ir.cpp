// SPDX-License-Identifier: Apache-2.0
#include "image/ptx_ir.h"

namespace gpurecover::image::ptx {

std::uint32_t size_of(Type type) {
  switch (type) {
    case Type::kNone:
    case Type::kOther:
      return 0;
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
    case Type::kE4m3:
    case Type::kE5m2:
    case Type::kPred:
      return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBf16:
    case Type::kE4m3x2:
    case Type::kE5m2x2:
      return 2;
    case Type::kB32:
    case Type::kU32:
    case Type::kS32:
    case Type::kU16x2:
    case Type::kS16x2:
    case Type::kF16x2:
    case Type::kBf16x2:
    case Type::kTf32:
    case Type::kF32:
      return 4;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF32x2:
    case Type::kF64:
    case Type::kTexref:
    case Type::kSamplerref:
    case Type::kSurfref:
      return 8;
    case Type::kB128:
      return 16;
  }
  return 0;
}

std::string_view name_of(Type type) {
  static constexpr std::string_view kNames[] = {
      "",       "b8",     "b16",    "b32",        "b64",     "b128",  "u8",    "u16",  "u32",
      "u64",    "s8",     "s16",    "s32",        "s64",     "u16x2", "s16x2", "f16",  "f16x2",
      "bf16",   "bf16x2", "tf32",   "f32",        "f32x2",   "f64",   "e4m3",  "e5m2", "e4m3x2",
      "e5m2x2", "pred",   "texref", "samplerref", "surfref", "?"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Type::kOther) + 1);
  return kNames[static_cast<std::size_t>(type)];
}

std::string_view name_of(Opcode opcode) {
  static constexpr std::string_view kNames[] = {"",
#define GPURECOVER_X(id, text) text,
                                                GPURECOVER_PTX_OPCODES(GPURECOVER_X)
#undef GPURECOVER_X
                                                    "opaque",
                                                "uniform"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Opcode::kUniform) + 1);
  return kNames[static_cast<std::size_t>(opcode)];
}

std::string_view name_of(Modifier modifier) {
  static constexpr std::string_view kNames[] = {
#define GPURECOVER_X(id, text) text,
      GPURECOVER_PTX_MODIFIERS(GPURECOVER_X)
#undef GPURECOVER_X
          ""};
  return kNames[static_cast<std::size_t>(modifier)];
}

const Function* Module::find_function(std::string_view name) const {
  for (const Function& f : functions) {
    if (f.name == name) {
      return &f;
    }
  }
  return nullptr;
}

const Variable* Module::find_variable(std::string_view name) const {
  for (const Variable& v : variables) {
    if (v.name == name) {
      return &v;
    }
  }
  return nullptr;
}

}  // namespace gpurecover::image::ptx
