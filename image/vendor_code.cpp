// SPDX-License-Identifier: Apache-2.0
#include "image/vendor_code.h"

#include <algorithm>
#include <iterator>

namespace gpurecover::image {
namespace {

struct Library {
  std::string_view prefix;  // of the file's name
  // It loads kernels of its own. A compiler loads none: what it makes belongs to the program, and
  // images whose origin is not known need not be its.
  bool brings_kernels;
};
// The one table; a new library of NVIDIA's is a row here.
constexpr Library kLibraries[] = {
    {"libcublas", true},    // also cublasLt, cublasMp
    {"libcudnn", true},     // the whole family: ops, cnn, engines, graph …
    {"libcufft", true},     // also cufftw, cufftMp
    {"libcusparse", true},  // also cusparseLt
    {"libcusolver", true},  // also cusolverMg, cusolverMp
    {"libcurand", true},
    {"libnccl", true},    // its source is public, its binaries come under the same terms
    {"libnpp", true},     // all of NPP
    {"libnvjpeg", true},  // also nvjpeg2k
    {"libnvtiff", true},
    {"libnvcomp", true},
    {"libcutensor", true},  // also cutensorMg, cutensornet
    {"libcustatevec", true},
    {"libcudensitymat", true},
    {"libcudss", true},
    {"libnvshmem", true},
    {"libnvinfer", true},  // TensorRT and its plugins
    {"libnvoptix", true},
    {"libnvcuvid", true},
    {"libnvidia-", true},  // parts of the driver
    {"libcuda.", true},    // the driver's own kernels (memset, copies)
    {"libcudart", true},
    {"libcudadevrt", true},
    {"libcupti", true},
    {"libnvrtc", false},  // compilers
    {"libnvJitLink", false},
    {"libnvfatbin", false},
    {"libnvvm", false},
};

// How kernels of those libraries are called where they are linked statically: names of the
// libraries' own namespaces, and the schemes of their hand-written matrix products.
constexpr std::string_view kAnywhere[] = {"cublas",  "cudnn",    "cufft", "cusparse", "cusolver",
                                          "curand_", "cutensor", "xmma",  "nvjpeg",   "nvinfer"};
constexpr std::string_view kAtTheBegin[] = {"ampere_",    "hopper_",       "turing_",    "volta_",
                                            "maxwell_",   "pascal_",       "blackwell_", "ada_",
                                            "cutlass_75", "cutlass_80",    "cutlass_90", "nvjet_",
                                            "ncclKernel", "ncclDevKernel", "ncclSymk"};

}  // namespace

std::string base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

bool is_vendor_library(std::string_view path) {
  const std::string name = base_name(path);
  return std::any_of(std::begin(kLibraries), std::end(kLibraries),
                     [&](const Library& l) { return name.starts_with(l.prefix); });
}

bool is_vendor_library_with_kernels(std::string_view path) {
  const std::string name = base_name(path);
  return std::any_of(std::begin(kLibraries), std::end(kLibraries), [&](const Library& l) {
    return l.brings_kernels && name.starts_with(l.prefix);
  });
}

bool is_vendor_kernel(std::string_view symbol) {
  return std::any_of(std::begin(kAnywhere), std::end(kAnywhere),
                     [&](std::string_view s) { return symbol.find(s) != symbol.npos; }) ||
         std::any_of(std::begin(kAtTheBegin), std::end(kAtTheBegin),
                     [&](std::string_view s) { return symbol.starts_with(s); });
}

}  // namespace gpurecover::image
