// SPDX-License-Identifier: Apache-2.0
//
// What a kernel may read and write, found by a sound dataflow analysis of its PTX: computed once
// per kernel, offline or when its module is loaded, and turned into a verdict per launch by
// verdict.h.
//
// Sound means: if `defeats` is empty, every byte of device memory that an execution of the kernel
// touches through global, constant or generic addressing is reached from one of the roots listed
// (pointer arithmetic stays inside the allocation that it started from: the `bounded` assumption).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "image/ptx_ir.h"

namespace gpurecover::idempotency {

enum class AccessKind : std::uint8_t {
  kRead,
  kWrite,
  kReadModifyWrite,  // atom, red, and every other operation that reads what it writes
};

enum class MemorySpace : std::uint8_t { kGlobal, kConst, kGeneric };

enum class RootKind : std::uint8_t {
  kParameter,     // the 8 bytes at param_offset in the kernel's parameter block
  kAnyParameter,  // some 8 bytes, 4-byte aligned, in [param_offset, param_offset + param_size):
                  // a by-value struct or array indexed at run time
  kGlobalSymbol,  // the module's global variable symbols[symbol]
  kConstSymbol,   // the module's constant variable symbols[symbol]
  kLoaded,        // a value loaded from global or constant memory, or returned by an atomic
  kDriver,        // a word that the driver supplies
  kConstant,      // an address written into the code
  kUnknown,       // anything else
};

struct Root {
  RootKind kind = RootKind::kUnknown;
  std::uint32_t param_offset = 0;  // bytes
  std::uint32_t param_size = 8;    // bytes; 8 for kParameter
  std::uint32_t symbol = 0;        // index in KernelSummary::symbols
  std::uint64_t address = 0;       // kConstant
  bool operator==(const Root&) const = default;
};

// One way in which an address may have been formed: a sum. Each of `roots` has the coefficient 1 in
// it and can be the base pointer; everything else is an offset. At run time those roots count whose
// value lies in a live allocation; if none does, the address is unknown, or null.
struct Alternative {
  std::vector<Root> roots;
  // Roots that are subtracted. A live pointer among them cancels a base, so that another term
  // may be the real one.
  std::vector<Root> subtracted;
  // The sum has a term made in other ways than by adding (scaled, masked, narrow, loaded …).
  bool has_other_terms = false;
  // One of those may be a pointer by itself (loaded, or put together from pieces).
  bool may_hide_pointer = false;
  bool operator==(const Alternative&) const = default;
};

// Addresses as expressions of thread and block indices, loop counters and scalar parameters.
struct AddressProgram;

// Of a launch. All zero: not known, and then nothing is exact.
struct LaunchDimensions {
  std::uint32_t grid[3] = {0, 0, 0};   // blocks
  std::uint32_t block[3] = {0, 0, 0};  // threads of a block
  std::uint32_t shared_bytes = 0;      // dynamic shared memory

  bool known() const {
    return grid[0] != 0 && grid[1] != 0 && grid[2] != 0 && block[0] != 0 && block[1] != 0 &&
           block[2] != 0;
  }
};

struct Access {
  AccessKind kind = AccessKind::kRead;
  MemorySpace space = MemorySpace::kGlobal;
  // Of one thread's access, vectors whole; the smallest of those put together here; 0: varies.
  std::uint32_t element_bytes = 0;
  std::vector<Alternative> alternatives;  // any of these; never empty
  // Of the PTX text, of the first such access; of machine code the number of the instruction,
  // from 1.
  std::uint32_t line = 0;
  // A declared range relative to the root's value, in bytes: [begin, end). end == 0: the whole
  // allocation. Analysis always leaves it 0.
  std::uint64_t range_begin = 0, range_end = 0;
  // Where the code makes this access: indexes of KernelSummary::addresses' sites. Empty: places
  // whose addresses cannot be expressed are among them.
  std::vector<std::uint32_t> sites;
};

enum class Origin : std::uint8_t { kAnalysis, kDeclaration };

struct KernelSummary {
  std::string name;
  Origin origin = Origin::kAnalysis;
  std::uint32_t param_bytes = 0;            // size of the parameter block
  std::vector<Access> accesses;             // no two alike
  std::vector<std::string> symbols;         // names of module variables that accesses start from
  std::vector<std::uint64_t> symbol_bytes;  // their sizes; 0: not known
  std::shared_ptr<const AddressProgram> addresses;  // null: none could be expressed
  // Why the analysis says nothing about this kernel; fit for users ("calls a function through a
  // pointer (line 120)"). Not empty: the verdict is `unknown` with the first one.
  std::vector<std::string> defeats;
  bool machine_code = false;  // found in machine code, not in PTX
  // The launch's parameter block must have param_bytes bytes. Where parameters of an alignment
  // above 16 bytes lie depends on the architecture that the driver compiles PTX for, and so does
  // the block's length.
  bool exact_param_bytes = false;
  bool complete = false;             // false: no analysis took place; verdict unknown
  bool declared_idempotent = false;  // Origin::kDeclaration with idempotent = true
};

// Summarizes `kernel`, a function of `module` with a body. Never throws, never crashes on any
// module that the parser returned; time and memory are bounded, and where a bound is hit a defeat
// says so. Thread-safe.
KernelSummary summarize(const image::ptx::Module& module, const image::ptx::Function& kernel);

// A text form for people: one line per access, then the defeats.
std::string to_text(const KernelSummary& summary);

}  // namespace gpurecover::idempotency
