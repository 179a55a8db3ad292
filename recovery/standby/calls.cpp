// SPDX-License-Identifier: Apache-2.0
#include "recovery/standby/calls.h"

#include <algorithm>
#include <string>

#include "recovery/call_codec.h"

namespace gpurecover::recovery {
namespace {

ffi_type* type_of(const Parameter& parameter) {
  if (parameter.kind == ParameterKind::kDevice) {
    return &ffi_type_sint32;
  }
  if (parameter.kind != ParameterKind::kNumber) {
    return &ffi_type_pointer;
  }
  switch (parameter.size) {
    case 1:
      return &ffi_type_uint8;
    case 2:
      return &ffi_type_uint16;
    case 4:
      return &ffi_type_uint32;
    default:
      return &ffi_type_uint64;
  }
}

}  // namespace

const Calls::Prepared& Calls::prepared(const StandbyDriver& driver, const driver_api::Call& call,
                                       bool per_thread) {
  const auto row = static_cast<std::uint64_t>(&call - driver_api::all_calls().data());
  std::unique_ptr<Prepared>& entry = prepared_[row * 2 + (per_thread ? 1 : 0)];
  if (entry) {
    return *entry;
  }
  auto made = std::make_unique<Prepared>();
  const auto parameters = parameters_of(call);
  const std::string name(call.name);
  // With a stream among the parameters, that says it all.
  const bool has_stream = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) {
    return p.handle == 's' && p.kind == ParameterKind::kHandle;
  });
  if (per_thread && !has_stream) {
    for (const char* suffix : {"_ptds", "_ptsz"}) {
      if (made->function == nullptr) {
        made->function = driver.symbol(name + suffix);
      }
    }
  }
  if (made->function == nullptr) {
    made->function = driver.symbol(name);
  }
  for (const Parameter& parameter : parameters) {
    made->types.push_back(type_of(parameter));
  }
  if (ffi_prep_cif(&made->cif, FFI_DEFAULT_ABI, static_cast<unsigned>(made->types.size()),
                   &ffi_type_sint32, made->types.data()) != FFI_OK) {
    made->function = nullptr;
  }
  entry = std::move(made);
  return *entry;
}

bool Calls::make(const StandbyDriver& driver, const driver_api::Call& call, bool per_thread,
                 Values& values, CUresult& code) {
  const Prepared& ready = prepared(driver, call, per_thread);
  if (ready.function == nullptr) {
    return false;
  }
  const auto parameters = parameters_of(call);
  // libffi takes the address of each argument; numbers are read from their low bytes, as on every
  // platform that CUDA 13 supports.
  std::vector<const void*> pointers(parameters.size(), nullptr);
  std::vector<void*> arguments(parameters.size(), nullptr);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Value& value = values[i];
    switch (parameters[i].kind) {
      case ParameterKind::kNumber:
      case ParameterKind::kDevice:
      case ParameterKind::kHandle:
      case ParameterKind::kDestroyedHandle:
        arguments[i] = &value.number;
        break;
      case ParameterKind::kOut:
      case ParameterKind::kOutHandle:
      case ParameterKind::kOutString:
        pointers[i] = value.present ? value.out : nullptr;
        arguments[i] = &pointers[i];
        break;
      case ParameterKind::kIn:
      case ParameterKind::kString:
        // Inputs are copied: the driver may want them aligned.
        if (value.present && parameters[i].kind == ParameterKind::kIn) {
          std::copy(value.bytes.begin(), value.bytes.end(), value.out);
          pointers[i] = value.out;
        } else {
          pointers[i] = value.present ? value.bytes.data() : nullptr;
        }
        arguments[i] = &pointers[i];
        break;
    }
  }
  // Results narrower than a register come back widened.
  ffi_sarg result = 0;
  ffi_call(const_cast<ffi_cif*>(&ready.cif), FFI_FN(ready.function), &result, arguments.data());
  code = static_cast<CUresult>(result);
  return true;
}

}  // namespace gpurecover::recovery
