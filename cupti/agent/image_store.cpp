// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/image_store.h"

#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "cupti/agent/vendor_code.h"
#include "image/ptx_parser.h"

namespace gpurecover::agent {
namespace {

// An image larger than this is not copied; its kernels are `unknown`.
constexpr std::uint64_t kMaxCopy = 512ULL << 20;

// The file in whose constant part an address lies. Not by dladdr: that waits for constructors and
// destructors of libraries, which may be waiting for us.
std::optional<LoadedFile> file_with_constant(const void* address, bool wrapper) {
  struct Search {
    std::uintptr_t address;
    bool wrapper;
    std::optional<LoadedFile> found;
  } search{reinterpret_cast<std::uintptr_t>(address), wrapper, std::nullopt};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        bool constant = false;
        // Its segment is writable, and nobody writes it: the linker's table of containers.
        const bool wrapper = search.wrapper;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (search.address >= begin && search.address - begin < segment.p_memsz) {
            constant |= wrapper || (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0) ||
                        segment.p_type == PT_GNU_RELRO;
          }
        }
        if (constant) {
          search.found = LoadedFile{info->dlpi_name != nullptr ? info->dlpi_name : "",
                                    static_cast<std::uintptr_t>(info->dlpi_addr)};
        }
        return constant ? 1 : 0;
      },
      &search);
  return search.found;
}

// The version of the wrapper that `image` is, 0 if it is none (image/image.cpp).
std::uint32_t wrapper_version(const void* image) {
  constexpr std::uint32_t kWrapper = 0x466243B1;
  std::uint32_t magic = 0;
  // PTX text may be shorter than a magic number, and then ends in a NUL.
  const auto* bytes = static_cast<const unsigned char*>(image);
  for (int i = 0; i < 4 && (i == 0 || bytes[i - 1] != 0); ++i) {
    magic |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  }
  std::uint32_t version = 0;
  if (magic == kWrapper) {
    std::memcpy(&version, bytes + 4, sizeof version);
  }
  return version;
}

bool is_wrapper_of_many(const void* image) {
  return wrapper_version(image) > 1;
}

// nvcc's output hands over a wrapper, which lies among the variables; the one container that it
// points to is constant, and all there is to it. Anything else is returned as it is.
const void* content_of(const void* image) {
  const void* container = nullptr;
  if (wrapper_version(image) == 1) {
    std::memcpy(&container, static_cast<const unsigned char*>(image) + 8, sizeof container);
  }
  return container != nullptr ? container : image;
}

// By the kernel where it does that: the file may be unloaded by another thread meanwhile.
std::vector<std::byte> copy_of(const void* data, std::size_t size) {
  std::vector<std::byte> copy(size);
  std::size_t done = 0;
  while (done < size) {
    const iovec to{copy.data() + done, size - done};
    const iovec from{const_cast<std::byte*>(static_cast<const std::byte*>(data)) + done,
                     size - done};
    const ssize_t n = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n < 0 && (errno == EPERM || errno == ENOSYS) && done == 0) {
      std::memcpy(copy.data(), data, size);  // a filter of system calls
      return copy;
    } else {
      return {};
    }
  }
  return copy;
}

KernelKnowledge summarize_code(const image::sass::MachineCode& code, const std::string& symbol) {
  if (is_vendor_kernel(symbol)) {
    return {nullptr,
            "kernel of a library of NVIDIA, by its name: not decoded, see "
            "docs/idempotency.md",
            ""};
  }
  auto module = code.lift(symbol);
  if (!module) {
    return {nullptr, "machine code without PTX of the same compile: " + module.error(), ""};
  }
  return {std::make_shared<const idempotency::KernelSummary>(
              idempotency::summarize(*module, module->functions.front())),
          "", ""};
}

}  // namespace

void ImageStore::use_side_files(std::string folder, std::string executable, SideFiles::Tell tell) {
  const std::lock_guard lock(mutex_);
  side_files_.configure(std::move(folder), std::move(executable), std::move(tell));
}

void ImageStore::add(const void* owner, const void* image) {
  if (owner == nullptr || image == nullptr) {
    return;
  }
  auto stored = std::make_shared<Stored>();
  const bool wrapper = is_wrapper_of_many(image);
  image = content_of(image);
  if (auto file = file_with_constant(image, wrapper)) {
    stored->in_file = image;
    stored->wrapper = wrapper;
    stored->file = std::move(*file);
    // Now, for the file may be unloaded at any time later.
    stored->size = image::size_of_image(image).value_or(0);
  } else if (const auto size = image::size_of_image(image); !size) {
    stored->problem = "image not understood: " + size.error().what;
  } else if (*size > kMaxCopy) {
    stored->problem = "image of more than 512 MiB";
  } else {
    stored->copy.resize(*size);
    std::memcpy(stored->copy.data(), image, *size);
  }
  const std::lock_guard lock(mutex_);
  images_[owner] = std::move(stored);
}

void ImageStore::add_file(const void* owner, const std::string& path) {
  auto stored = std::make_shared<Stored>();
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (bytes.empty()) {
    stored->problem = "its file could not be read: " + path;
  }
  stored->path = path;
  stored->copy.resize(bytes.size());
  std::transform(bytes.begin(), bytes.end(), stored->copy.begin(),
                 [](char byte) { return static_cast<std::byte>(byte); });
  const std::lock_guard lock(mutex_);
  images_[owner] = std::move(stored);
}

void ImageStore::add_alias(const void* alias, const void* owner) {
  const std::lock_guard lock(mutex_);
  if (const auto at = images_.find(owner); at != images_.end()) {
    images_[alias] = at->second;
  }
}

void ImageStore::remove(const void* owner) {
  const std::lock_guard lock(mutex_);
  const auto at = images_.find(owner);
  if (at == images_.end()) {
    return;
  }
  const auto stored = at->second;
  std::erase_if(images_, [&](const auto& entry) { return entry.second == stored; });
}

std::vector<std::byte> ImageStore::image_of(const void* owner, std::size_t limit) {
  std::shared_ptr<const Stored> kept;
  {
    const std::lock_guard lock(mutex_);
    const auto at = images_.find(owner);
    if (at == images_.end()) {
      return {};
    }
    kept = at->second;
  }
  // What is read here is written before it is in the map. A large image is not copied under the
  // lock that launches need.
  const Stored& stored = *kept;
  if (stored.in_file == nullptr) {
    return stored.copy.size() <= limit ? stored.copy : std::vector<std::byte>{};
  }
  // A wrapper of several holds addresses, which mean nothing elsewhere.
  if (stored.wrapper || file_with_constant(stored.in_file, stored.wrapper) != stored.file) {
    return {};
  }
  if (stored.size == 0 || stored.size > limit) {
    return {};
  }
  std::vector<std::byte> copy = copy_of(stored.in_file, stored.size);
  // Another file may have come to lie there.
  return file_with_constant(stored.in_file, false) == stored.file ? std::move(copy)
                                                                  : std::vector<std::byte>{};
}

void ImageStore::open(Stored& stored, image::ComputeCapability device) {
  stored.opened = true;
  stored.device = device;
  if (stored.in_file != nullptr &&
      file_with_constant(stored.in_file, stored.wrapper) != stored.file) {
    stored.problem = "its image was unloaded before it was launched";
  }
  if (!stored.problem.empty()) {
    stored.reason = stored.problem;
    return;
  }
  auto image =
      stored.in_file != nullptr ? image::open_pointer(stored.in_file) : image::open(stored.copy);
  if (!image) {
    stored.reason = "image not understood: " + image.error().what;
    return;
  }
  const auto runs = image::select(*image, device);
  if (runs && image->entries[*runs].kind == image::EntryKind::kCubin) {
    if (auto variables = image::variables_of_cubin(image->entries[*runs].data)) {
      stored.variables = std::make_shared<const image::ModuleVariables>(std::move(*variables));
    }
  }
  const auto entry = image::ptx_for_machine_code(*image, device);
  if (entry) {
    stored.entry = std::move(image->entries[*entry].data);
  } else {
    stored.reason = stored.no_ptx = entry.error();
    if (!runs || image->entries[*runs].kind != image::EntryKind::kCubin)
      return;
    stored.kind = image::EntryKind::kCubin;
    stored.entry = std::move(image->entries[*runs].data);
    if (!may_decode(stored))
      return;
  }
  const std::string& origin = stored.in_file == nullptr  ? stored.path
                              : stored.file.path.empty() ? side_files_.executable()
                                                         : stored.file.path;
  stored.stored = side_files_.find(stored.kind, stored.entry, origin);
  const bool runs_itself = entry && runs && *runs == *entry;
  if (stored.stored.image == nullptr || runs_itself)
    parse(stored);
  if (runs_itself && stored.module != nullptr) {
    stored.variables =
        std::make_shared<const image::ModuleVariables>(image::variables_of(*stored.module));
  }
}

// Of machine code, by where it came from.
bool ImageStore::may_decode(Stored& stored) {
  if (stored.in_file != nullptr || !stored.path.empty()) {
    const std::string& file = stored.in_file != nullptr ? stored.file.path : stored.path;
    if (is_vendor_library(file)) {
      stored.reason = "kernel of " + base_name(file) + ": not decoded, see docs/idempotency.md";
      return false;
    }
  } else if (const auto library = loaded_vendor_library()) {
    // Where a copy came from cannot be told.
    stored.reason = "kernel of unknown origin while " + *library +
                    " is loaded: not decoded, see docs/idempotency.md";
    return false;
  }
  return true;
}

void ImageStore::parse(Stored& stored) {
  stored.parsed = true;
  std::vector<std::byte> entry = std::exchange(stored.entry, {});
  if (stored.kind == image::EntryKind::kPtx) {
    auto module = image::ptx::parse(
        std::string_view(reinterpret_cast<const char*>(entry.data()), entry.size()));
    if (module) {
      stored.module = std::make_shared<const image::ptx::Module>(std::move(*module));
    } else {
      stored.reason = "PTX not understood: " + module.error().what;
    }
    return;
  }
  auto decoded = std::make_shared<DecodedCode>();
  decoded->bytes = std::move(entry);
  auto code = image::sass::MachineCode::open(decoded->bytes);
  if (!code) {
    stored.reason = stored.no_ptx + ": " + code.error().what;
    return;
  }
  decoded->code = std::move(*code);
  stored.code = std::move(decoded);
}

std::shared_ptr<const image::ModuleVariables> ImageStore::variables(const void* owner) {
  const std::lock_guard lock(mutex_);
  const auto at = images_.find(owner);
  return at != images_.end() ? at->second->variables : nullptr;
}

KernelKnowledge ImageStore::summarize(const void* owner, const std::string& symbol,
                                      image::ComputeCapability device) {
  std::shared_ptr<Stored> kept;
  SideFiles::Found found;
  {
    const std::lock_guard lock(mutex_);
    const auto at = images_.find(owner);
    if (at == images_.end()) {
      return {nullptr, "no image of this kernel was seen", ""};
    }
    kept = at->second;
    if (!kept->opened) {
      open(*kept, device);
    }
    if (kept->device.sm() != device.sm()) {
      return {nullptr, "its image was read for a device of another architecture", ""};
    }
    found = kept->stored;
  }
  if (found.image != nullptr) {
    if (const idempotency::StoredKernel* kernel = found.image->find(symbol)) {
      if (auto summary = idempotency::unpack_summary(*kernel)) {
        return {std::make_shared<const idempotency::KernelSummary>(std::move(*summary)), "",
                found.path};
      }
      side_files_.tell("side file " + found.path + ": what it says of the kernel " + symbol +
                       " is damaged and ignored; make it anew by `gpurecover analyze`");
    }
  }
  std::shared_ptr<const image::ptx::Module> module;
  std::shared_ptr<const DecodedCode> code;
  {
    const std::lock_guard lock(mutex_);
    if (!kept->parsed && !kept->entry.empty() && found.image != nullptr) {
      parse(*kept);
    }
    if (kept->module == nullptr && kept->code == nullptr) {
      return {nullptr, kept->reason, ""};
    }
    module = kept->module;
    code = kept->code;
  }
  if (module == nullptr) {
    return summarize_code(*code->code, symbol);
  }
  const image::ptx::Function* function = module->find_function(symbol);
  if (function == nullptr || !function->entry || !function->has_body) {
    return {nullptr, "the kernel is not in its module's PTX", ""};
  }
  return {std::make_shared<const idempotency::KernelSummary>(
              idempotency::summarize(*module, *function)),
          "", ""};
}

}  // namespace gpurecover::agent
