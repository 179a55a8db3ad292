// SPDX-License-Identifier: Apache-2.0
#define GPURECOVER_LANES_NAMESPACE baseline
#include "softgpu/interp/lanes.inc"
