// SPDX-License-Identifier: Apache-2.0
// cuda.h with every form of every function visible under its exported name (cuMemAlloc_v2 and
// cuMemAlloc are two functions, not a macro), and the parameter structs that CUPTI hands out.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#error "softgpu's driver is compiled with __CUDA_API_VERSION_INTERNAL"
#endif
// Order matters: the meta header wants the types.
#include <cuda.h>
// clang-format off
#include <cudaProfiler.h>
#include <generated_cuda_meta.h>
// clang-format on
