// SPDX-License-Identifier: Apache-2.0
#define GPURECOVER_LANES_NAMESPACE v3
#include "softgpu/interp/lanes.inc"
