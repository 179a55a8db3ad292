// SPDX-License-Identifier: Apache-2.0
//
// What a standby is sent and what an agent gets back, with a driver that says yes to everything:
// the first byte says which. A control message, a lane's request, or a call's results.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cupti/protocol/codec.h"
#include "recovery/standby/calls.h"
#include "recovery/standby/lane.h"
#include "recovery/standby/standby.h"

namespace gpurecover::recovery {
namespace {

template <class F>
struct Yes;
template <class R, class... A>
struct Yes<R (*)(A...)> {
  static R call(A... /*arguments*/) { return R{}; }
};

// Called with any parameters that a signature names.
int exported() {
  return 0;
}

const StandbyDriver& driver() {
  static const StandbyDriver instance = [] {
    StandbyDriver out;
#define X(name) out.name = &Yes<decltype(out.name)>::call;
    GPURECOVER_STANDBY_FUNCTIONS(X)
#undef X
#define X(name) out.common.name = &Yes<decltype(out.common.name)>::call;
    GPURECOVER_DRIVER_FUNCTIONS(X)
#undef X
    out.cuDeviceGetCount = [](int* count) {
      *count = 1;
      return CUDA_SUCCESS;
    };
    out.cuMemAddressReserve = [](CUdeviceptr* got, std::size_t, std::size_t, CUdeviceptr wanted,
                                 unsigned long long) {
      *got = wanted;
      return CUDA_SUCCESS;
    };
    out.common.cuFuncGetParamInfo = [](CUfunction, std::size_t index, std::size_t* offset,
                                       std::size_t* size) {
      *offset = index * 8;
      *size = 8;
      return index < 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    };
    out.symbol = [](const std::string& name) {
      return name.ends_with("_ptsz") ? nullptr : reinterpret_cast<void*>(&exported);
    };
    return out;
  }();
  return instance;
}

void control(Standby& standby, protocol::MessageType type, std::vector<std::byte> body) {
  protocol::Frame frame;
  frame.type = type;
  frame.body = std::move(body);
  (void)standby.control(frame);
}

// A stream and a kernel, both number 7 to the app.
void make_objects(Standby& standby, Standby::LaneThread& lane) {
  for (const char* name : {"cuStreamCreate", "cuLibraryGetKernel"}) {
    void* out = nullptr;
    void* params[4] = {&out};
    std::vector<std::byte> message;
    std::vector<std::byte> answer;
    encode_call(
        *driver_api::find(std::string_view(name)), params, false,
        [](char) { return std::uint64_t{7}; }, message);
    (void)standby.serve(lane, static_cast<std::uint32_t>(protocol::LaneRequest::kCall), message,
                        answer);
  }
}

}  // namespace
}  // namespace gpurecover::recovery

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpurecover;
  using namespace gpurecover::recovery;
  if (size < 2) {
    return 0;
  }
  const std::uint8_t what = data[0];
  const std::uint8_t type = data[1];
  const auto body = std::as_bytes(std::span(data + 2, size - 2));
  Standby standby(driver());
  if ((what & 0x80) == 0) {
    protocol::Setup setup;
    setup.device_uuid.assign(16, '\0');
    setup.arena = protocol::kDefaultArena;
    setup.arena_size = protocol::kDefaultArenaSize;
    control(standby, protocol::MessageType::kSetup, protocol::encode(setup));
  }
  switch (what & 3) {
    case 0:
      control(standby, static_cast<protocol::MessageType>(type),
              std::vector<std::byte>(body.begin(), body.end()));
      break;
    case 1: {
      static std::byte window[16];  // only its address is used
      Standby::LaneThread lane;
      lane.window = window;
      make_objects(standby, lane);
      std::vector<std::byte> answer;
      // Twice: objects that the first has made are there then.
      (void)standby.serve(lane, type, body, answer);
      (void)standby.serve(lane, type, body, answer);
      standby.leave(lane);
      break;
    }
    default: {
      const auto calls = driver_api::all_calls();
      const std::size_t row = type + ((what & 0x7c) << 6);
      if (row >= calls.size()) {
        break;
      }
      // The app's parameters: every pointer leads to room for the largest result.
      alignas(16) static std::byte room[64];
      alignas(16) std::byte params[128] = {};
      for (const Parameter& parameter : parameters_of(calls[row])) {
        std::byte* place = room;
        if (parameter.kind != ParameterKind::kNumber && parameter.kind != ParameterKind::kDevice) {
          std::memcpy(params + parameter.offset, &place, sizeof place);
        }
      }
      (void)store_results(calls[row], params, body, [](std::string_view) { return ""; });
      (void)protocol::decode<protocol::StandbyHello>(body);
      (void)protocol::decode<protocol::StandbyAnswer>(body);
      (void)protocol::decode<protocol::ReplayResult>(body);
      (void)protocol::decode<protocol::StandbyStarted>(body);
      break;
    }
  }
  return 0;
}
