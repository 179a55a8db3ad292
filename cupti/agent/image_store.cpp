// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/image_store.h"

#include <dlfcn.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "image/ptx_parser.h"

namespace gpurecover::agent {
namespace {

// An image larger than this is not copied; its kernels are `unknown`.
constexpr std::uint64_t kMaxCopy = 512ULL << 20;

bool lies_in_loaded_file(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr;
}

}  // namespace

void ImageStore::add(const void* owner, const void* image) {
  if (owner == nullptr || image == nullptr) {
    return;
  }
  auto stored = std::make_shared<Stored>();
  if (lies_in_loaded_file(image)) {
    stored->in_file = image;
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
  stored->copy.resize(bytes.size());
  std::memcpy(stored->copy.data(), bytes.data(), bytes.size());
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

void ImageStore::open(Stored& stored, image::ComputeCapability device) {
  stored.opened = true;
  if (!stored.problem.empty()) {
    stored.reason = stored.problem;
    return;
  }
  const auto image =
      stored.in_file != nullptr ? image::open_pointer(stored.in_file) : image::open(stored.copy);
  if (!image) {
    stored.reason = "image not understood: " + image.error().what;
    return;
  }
  const auto entry = image::ptx_for_machine_code(*image, device);
  if (!entry) {
    stored.reason = entry.error();
    return;
  }
  auto module = image::ptx::parse(image->entries[*entry].text());
  if (!module) {
    stored.reason = "PTX not understood: " + module.error().what;
    return;
  }
  stored.module = std::make_shared<const image::ptx::Module>(std::move(*module));
  // The text has served its purpose.
  stored.copy = {};
}

KernelKnowledge ImageStore::summarize(const void* owner, const std::string& symbol,
                                      image::ComputeCapability device) {
  std::shared_ptr<const image::ptx::Module> module;
  {
    const std::lock_guard lock(mutex_);
    const auto at = images_.find(owner);
    if (at == images_.end()) {
      return {nullptr, "no image of this kernel was seen"};
    }
    Stored& stored = *at->second;
    if (!stored.opened) {
      open(stored, device);
    }
    if (stored.module == nullptr) {
      return {nullptr, stored.reason};
    }
    module = stored.module;
  }
  const image::ptx::Function* function = module->find_function(symbol);
  if (function == nullptr || !function->entry || !function->has_body) {
    return {nullptr, "the kernel is not in its module's PTX"};
  }
  return {std::make_shared<const idempotency::KernelSummary>(
              idempotency::summarize(*module, *function)),
          ""};
}

}  // namespace gpurecover::agent
