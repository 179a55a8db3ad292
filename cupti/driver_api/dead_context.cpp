// SPDX-License-Identifier: Apache-2.0
#include "cupti/driver_api/dead_context.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "cupti/driver_api/driver_api.h"

namespace gpurecover::driver_api {
namespace {

// Without the version, which changes nothing here.
constexpr std::string_view kAnswering[] = {
    // Questions to the driver or about a device.
    "cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetErrorName", "cuGetErrorString",
    "cuGetExportTable", "cuModuleGetLoadingMode", "cuDeviceGet", "cuDeviceGetCount",
    "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetLuid", "cuDeviceTotalMem",
    "cuDeviceGetAttribute", "cuDeviceGetProperties", "cuDeviceComputeCapability",
    "cuDeviceGetPCIBusId", "cuDeviceGetByPCIBusId", "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute", "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool",
    // Which context is current, and what it is.
    "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetDevice",
    "cuCtxGetFlags", "cuCtxGetApiVersion", "cuCtxGetId", "cuCtxDestroy", "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxSetFlags", "cuThreadExchangeStreamCaptureMode",
    // Memory that is mapped by hand, and what an address is.
    "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap",
    "cuMemUnmap", "cuMemSetAccess", "cuMemGetAccess", "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle", "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle", "cuMemRetainAllocationHandle",
    "cuPointerGetAttribute", "cuPointerGetAttributes",
    // What is kept on the host.
    "cuGraphCreate", "cuGraphGetNodes", "cuLibraryUnload", "cuLibraryGetKernel",
    "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetKernelCount",
    "cuLibraryEnumerateKernels", "cuKernelGetName", "cuKernelGetLibrary", "cuKernelGetAttribute"};

std::string_view without_version(std::string_view name) {
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
    }
  }
  const std::size_t size = name.size();
  if (size > 3 && name[size - 3] == '_' && name[size - 2] == 'v' && name[size - 1] >= '0' &&
      name[size - 1] <= '9') {
    name.remove_suffix(3);
  }
  return name;
}

}  // namespace

bool answers_when_dead(std::uint32_t cbid) {
  static const std::vector<bool> answers = [] {
    std::vector<bool> all(cbid_end());
    for (std::uint32_t id = 0; id < all.size(); ++id) {
      all[id] = std::find(std::begin(kAnswering), std::end(kAnswering),
                          without_version(name_of(id))) != std::end(kAnswering);
    }
    return all;
  }();
  return cbid < answers.size() && answers[cbid];
}

}  // namespace gpurecover::driver_api
