// SPDX-License-Identifier: Apache-2.0
#include "idempotency/offline/analyse.h"

#include <algorithm>
#include <utility>

#include "image/cubin.h"
#include "image/ptx_parser.h"
#include "image/sass/lift.h"
#include "image/vendor_code.h"

namespace gpurecover::idempotency {
namespace {

void analyse_ptx(const image::Entry& entry, AnalysedImage& out) {
  const auto module = image::ptx::parse(entry.text());
  if (!module) {
    out.note = "PTX not understood: " + module.error().what;
    return;
  }
  for (const image::ptx::Function& f : module->functions) {
    if (!f.entry || !f.has_body)
      continue;
    AnalysedKernel kernel;
    kernel.name = f.name;
    for (const image::ptx::Parameter& p : f.params)
      kernel.parameters.push_back({p.offset, p.size});
    kernel.summary = summarize(*module, f);
    out.kernels.push_back(std::move(kernel));
  }
}

void analyse_code(const image::Entry& entry, std::string_view file, AnalysedImage& out) {
  if (image::is_vendor_library(file)) {
    out.note = "kernels of " + std::string(file) + ", a library of NVIDIA: not decoded";
    return;
  }
  const auto cubin = image::read_cubin(entry.data);
  if (!cubin) {
    out.note = "machine code not understood: " + cubin.error().what;
    return;
  }
  const auto code = image::sass::MachineCode::open(entry.data);
  if (!code) {
    out.note = code.error().what;
    return;
  }
  for (const image::CubinKernel& k : cubin->kernels) {
    AnalysedKernel kernel;
    kernel.name = k.name;
    for (const image::KernelParameter& p : k.parameters)
      kernel.parameters.push_back({p.offset, p.size});
    if (image::is_vendor_kernel(k.name)) {
      kernel.reason = "kernel of a library of NVIDIA, by its name: not decoded";
    } else if (auto module = code->lift(k.name)) {
      kernel.summary = summarize(*module, module->functions.front());
    } else {
      kernel.reason = module.error();
    }
    out.kernels.push_back(std::move(kernel));
  }
}

// Whether the agent takes PTX of the same image for this machine code, wherever that runs.
bool described_by_ptx(const image::Image& image, const image::Entry& code) {
  // As image::ptx_for_machine_code has it.
  return 1 == std::count_if(image.entries.begin(), image.entries.end(), [&](const image::Entry& e) {
           return e.kind == image::EntryKind::kPtx && e.sm == code.sm &&
                  (!e.suffix || !code.suffix || *e.suffix == *code.suffix);
         });
}

}  // namespace

AnalysedFile analyse(std::string_view name, const image::FileImages& images) {
  AnalysedFile file;
  file.name = std::string(name);
  for (const image::FoundImage& found : images.images) {
    for (const image::Entry& entry : found.image.entries) {
      AnalysedImage out;
      out.section = found.section;
      out.offset = found.offset;
      out.kind = entry.kind;
      out.architecture = entry.sm != 0 ? "sm_" + std::to_string(entry.sm) : "unknown";
      out.architecture += entry.suffix.value_or("");
      out.bytes = entry.data.size();
      out.hash = content_hash(entry.data);
      const bool known =
          std::any_of(file.images.begin(), file.images.end(), [&](const AnalysedImage& other) {
            return other.kind == out.kind && other.bytes == out.bytes && other.hash == out.hash;
          });
      if (known)
        continue;
      if (entry.kind == image::EntryKind::kPtx) {
        analyse_ptx(entry, out);
      } else if (described_by_ptx(found.image, entry)) {
        out.note = "its kernels are those of the PTX of the same compile";
      } else {
        analyse_code(entry, name, out);
      }
      file.images.push_back(std::move(out));
    }
  }
  return file;
}

}  // namespace gpurecover::idempotency
