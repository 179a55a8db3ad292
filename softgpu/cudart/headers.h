// SPDX-License-Identifier: Apache-2.0
// The runtime's types and prototypes, every per-thread-stream form under its exported name. Before
// it, cuda.h may have been read with the names that programs use.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
// clang-format off
#include <cuda_runtime_api.h>
#include <cuda_profiler_api.h>
// clang-format on
