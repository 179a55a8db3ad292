// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cupti/agent/side_files.h"
#include "idempotency/access_summary.h"
#include "image/image.h"
#include "image/ptx_ir.h"
#include "image/sass/lift.h"
#include "image/variables.h"

namespace gpurecover::agent {

// What is known of a kernel from its image: a summary, or why there is none.
struct KernelKnowledge {
  std::shared_ptr<const idempotency::KernelSummary> summary;
  std::string reason;
  std::string side_file;  // that the summary is from; empty: it was made here
};

// A file that the dynamic loader has mapped, and where.
struct LoadedFile {
  std::string path;
  std::uintptr_t base = 0;
  bool operator==(const LoadedFile&) const = default;
};

// The images of the modules and libraries that the app has loaded. Thread-safe. Never throws but
// for want of memory; makes no driver call. Images are read when the first kernel of theirs is
// launched: large programs load far more than they launch.
class ImageStore {
 public:
  // Where to look for what was found before the run; before the first summarize. Without it,
  // everything is analysed here.
  void use_side_files(std::string folder, std::string executable, SideFiles::Tell tell);

  // Keeps what was handed to the driver as `owner` (a CUmodule or CUlibrary). Images in the
  // constant part of a loaded file are referred to, for they stay what they are as long as the file
  // is loaded; others are copied, since the app may free them or write other images over them.
  void add(const void* owner, const void* image);
  void add_file(const void* owner, const std::string& path);
  // `alias` (the CUmodule of a CUlibrary) has the image of `owner`.
  void add_alias(const void* alias, const void* owner);
  void remove(const void* owner);
  // The image as another process can load it; empty if it was not kept, cannot be, or has more than
  // `limit` bytes.
  std::vector<std::byte> image_of(const void* owner, std::size_t limit = ~std::size_t{0});

  KernelKnowledge summarize(const void* owner, const std::string& symbol,
                            image::ComputeCapability device);
  // The variables of what the device runs of an image, after `summarize` has read it. Null if they
  // cannot be told.
  std::shared_ptr<const image::ModuleVariables> variables(const void* owner);

 private:
  // Machine code, and the bytes that it refers to.
  struct DecodedCode {
    std::vector<std::byte> bytes;
    std::optional<image::sass::MachineCode> code;
  };
  struct Stored {
    const void* in_file = nullptr;
    std::uint64_t size = 0;  // of what is there; 0: not understood
    LoadedFile file;         // which that is
    bool wrapper = false;    // of several containers, each with its address
    std::vector<std::byte> copy;
    std::string path;     // of the file that it was read from
    std::string problem;  // why it could not be kept
    bool opened = false;
    image::ComputeCapability device;  // for which it was
    std::string reason;               // why neither PTX nor machine code speaks for it
    // The PTX, or machine code where there is no PTX, that speaks for the kernels; until it is
    // parsed, for which there may be no need.
    std::vector<std::byte> entry;
    image::EntryKind kind = image::EntryKind::kPtx;
    bool parsed = false;
    std::string no_ptx;  // why it is machine code
    SideFiles::Found stored;
    std::shared_ptr<const image::ptx::Module> module;
    std::shared_ptr<const DecodedCode> code;
    std::shared_ptr<const image::ModuleVariables> variables;
  };
  void open(Stored& stored, image::ComputeCapability device);
  static bool may_decode(Stored& stored);
  static void parse(Stored& stored);

  std::mutex mutex_;
  SideFiles side_files_;
  std::map<const void*, std::shared_ptr<Stored>> images_;
};

}  // namespace gpurecover::agent
