// SPDX-License-Identifier: Apache-2.0
// What softgpu's libcuda offers to its libcupti, its libcudart and to tools: one exported table,
// `softgpu_hook_table`, found with dlsym. A real driver has no such symbol.
#pragma once

#include <cuda.h>
#include <cupti_callbacks.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {

/// A fault to make at a chosen point (softgpu/device/launch.h, FaultPlan). Numbers count from 0,
/// launches from 1.
struct SoftgpuFault {
  uint32_t size;         // sizeof(SoftgpuFault)
  uint32_t kind;         // 0 error, 1 flip a register, 2 flip memory, 3 hang
  const char* kernel;    // exact name, or NULL for every kernel
  uint64_t launch;       // the how-manieth launch of such kernels from now on
  uint64_t block;        // linear
  uint32_t thread;       // linear in the block
  uint32_t bit;          // to flip
  uint64_t instruction;  // dynamic count in that thread
  uint64_t address;      // kind 2
  int32_t code;          // kind 0: CUresult
  uint32_t healthy;      // 1: the kernel ends there, but no error arises: the context stays healthy
};

/// What became of the last fault that was armed, or of the last launch that failed.
struct SoftgpuReport {
  uint32_t size;
  int32_t code;    // 0: none
  uint64_t fired;  // armed faults whose point was reached, in all
  uint64_t launches;
  uint64_t stray_accesses;  // out of every allocation, but where a device would not fault
  char message[512];
};

/// Exact byte ranges that the last recorded launch of a stream touched.
struct SoftgpuRange {
  uint64_t begin, end;
};

struct SoftgpuHookTable {
  uint32_t size;     // sizeof(SoftgpuHookTable)
  uint32_t version;  // 1

  // --- callbacks (libcupti) ---
  // One subscriber; NULL ends the subscription. Any thread.
  void (*set_subscriber)(CUpti_CallbackFunc callback, void* userdata);
  void (*enable)(uint32_t domain, uint32_t cbid, uint32_t on);
  uint32_t (*enabled)(uint32_t domain, uint32_t cbid);
  const char* (*driver_name)(uint32_t cbid);  // NULL: unknown
  uint32_t (*context_id)(CUcontext context);  // 0: unknown
  uint32_t (*stream_id)(CUcontext context, CUstream stream);
  // Runtime-level callbacks (libcudart). `site` 0 enter, 1 exit.
  void (*runtime_callback)(uint32_t site, uint32_t cbid, const char* name, const void* params,
                           void* result, const char* symbol, uint64_t* correlation_data,
                           uint32_t* correlation_id);

  // --- tools ---
  // Arms a fault; several may be armed. 0, or a CUresult.
  int (*arm_fault)(const SoftgpuFault* fault);
  void (*disarm_faults)(void);
  void (*report)(SoftgpuReport* report);
  // From now on every launch records what it reads and writes (1) or not (0).
  void (*record_accesses)(uint32_t on);
  // Copies at most `capacity` ranges of the last completed recorded launch; returns how many there
  // are. `writes` 0: reads.
  size_t (*accesses)(uint32_t writes, SoftgpuRange* ranges, size_t capacity);
};

/// Exported by softgpu's libcuda.
extern __attribute__((visibility("default"))) SoftgpuHookTable softgpu_hook_table;
}
