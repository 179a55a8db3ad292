// SPDX-License-Identifier: Apache-2.0
// The little of CUDA that the examples use, written once and implemented twice: by the driver API
// (driver.cpp, kernels from PTX in the executable) and by the runtime API (runtime.cpp, kernels by
// nvcc). Each function is one CUDA call of the same purpose. A CUDA error is printed as
//   CUDA error 214 (CUDA_ERROR_ECC_UNCORRECTABLE) in cuStreamSynchronize
// and ends the program with status 1. One thread only.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

// Both APIs name the same opaque types.
struct CUstream_st;
struct CUevent_st;

namespace gpu {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
  Dim(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Blocks of `block` threads that cover `count` elements.
inline unsigned blocks_for(std::size_t count, unsigned block) {
  return static_cast<unsigned>((count + block - 1) / block);
}

// Takes device 0. Call first.
void init();

void* allocate(std::size_t bytes);
void release(void* device);
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* host);
void copy_in(void* device, const void* host, std::size_t bytes);
void copy_out(void* host, const void* device, std::size_t bytes);
void copy_in_async(void* device, const void* host, std::size_t bytes, CUstream_st* stream);
void copy_out_async(void* host, const void* device, std::size_t bytes, CUstream_st* stream);
void set_zero(void* device, std::size_t bytes);
CUstream_st* create_stream();
void destroy_stream(CUstream_st* stream);
void synchronize(CUstream_st* stream);
// Waits for the whole device (context).
void synchronize();
CUevent_st* create_event();
void destroy_event(CUevent_st* event);
void record(CUevent_st* event, CUstream_st* stream);
void wait(CUstream_st* stream, CUevent_st* event);

template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t count)
      : data_(static_cast<T*>(allocate(count * sizeof(T)))), count_(count) {}
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) {
    copy_in(data_, host.data(), host.size() * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr)
      release(data_);
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  // The content, fetched by one synchronous copy.
  std::vector<T> host() const {
    std::vector<T> result(count_);
    copy_out(result.data(), data_, bytes());
    return result;
  }

 private:
  T* data_;
  std::size_t count_;
};

// Page-locked host memory, which asynchronous copies need to be asynchronous.
template <class T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t count)
      : data_(static_cast<T*>(allocate_pinned(count * sizeof(T)))), count_(count) {}
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { release_pinned(data_); }
  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  std::vector<T> host() const { return std::vector<T>(data_, data_ + count_); }

 private:
  T* data_;
  std::size_t count_;
};

class Stream {
 public:
  Stream() : handle_(create_stream()) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { destroy_stream(handle_); }
  operator CUstream_st*() const { return handle_; }

 private:
  CUstream_st* handle_;
};

class Event {
 public:
  Event() : handle_(create_event()) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { destroy_event(handle_); }
  operator CUevent_st*() const { return handle_; }

 private:
  CUevent_st* handle_;
};

}  // namespace gpu

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)
#if defined(__NVCC__)

#include <cuda_runtime.h>

namespace gpu {
void check_launch();
inline dim3 dim(const Dim& d) {
  return dim3(d.x, d.y, d.z);
}
}  // namespace gpu

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                          \
  do {                                                                                  \
    kernel<<<gpu::dim(grid), gpu::dim(block), (shared_bytes), (stream)>>>(__VA_ARGS__); \
    gpu::check_launch();                                                                \
  } while (0)

#else

#include <tuple>

// The driver has several ways to launch; an example may pick one by defining this before it
// includes this file, so that together they use all of them.
#ifndef EXAMPLE_LAUNCH_FORM
#define EXAMPLE_LAUNCH_FORM kernel_params
#endif

namespace gpu {

enum class LaunchForm {
  kernel_params,   // cuLaunchKernel of a CUfunction, array of pointers to the arguments
  extra,           // the same, arguments packed in a buffer
  launch_ex,       // cuLaunchKernelEx
  library_kernel,  // cuLaunchKernel of a CUkernel, from a library instead of a module
};

struct LaunchSize {
  Dim grid, block;
  unsigned shared_bytes;
  CUstream_st* stream;
};

// The handle of a kernel of the embedded PTX, in the form that `form` launches.
void* find_kernel(const char* name, LaunchForm form);
// Launches with `count` arguments; sizes[i] bytes each, naturally aligned in `extra`'s buffer.
void launch(void* kernel, LaunchForm form, const LaunchSize& size, void** arguments,
            const std::size_t* sizes, const std::size_t* alignments, std::size_t count);

template <class Signature>
class Kernel;

// Converts each argument to the kernel's own parameter type, as a call would.
template <class... P>
class Kernel<void (*)(P...)> {
 public:
  Kernel(const char* name, LaunchForm form) : handle_(find_kernel(name, form)), form_(form) {}
  template <class... A>
  void operator()(const LaunchSize& size, A&&... arguments) const {
    static_assert(sizeof...(A) == sizeof...(P), "number of kernel arguments");
    std::tuple<P...> values(std::forward<A>(arguments)...);
    std::apply(
        [&](auto&... value) {
          void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
          static constexpr std::size_t sizes[] = {sizeof(P)...};
          static constexpr std::size_t alignments[] = {alignof(P)...};
          launch(handle_, form_, size, pointers, sizes, alignments, sizeof...(P));
        },
        values);
  }

 private:
  void* handle_;
  LaunchForm form_;
};

}  // namespace gpu

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                  \
  do {                                                                                          \
    static const gpu::Kernel<decltype(&kernel)> launched(#kernel,                               \
                                                         gpu::LaunchForm::EXAMPLE_LAUNCH_FORM); \
    launched({gpu::Dim(grid), gpu::Dim(block), static_cast<unsigned>(shared_bytes), (stream)},  \
             __VA_ARGS__);                                                                      \
  } while (0)

#endif
