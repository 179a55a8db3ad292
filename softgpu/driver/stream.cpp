// SPDX-License-Identifier: Apache-2.0
// Streams, events, host functions, memory words in stream order, capture mode.
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "driver_api.h"
#include "softgpu/driver/state.h"

namespace gpurecover::softgpu {
namespace {

std::shared_ptr<Stream> PerThreadStream(Context& context) {
  std::lock_guard lock(context.issue_mutex);
  auto& stream = context.per_thread[std::this_thread::get_id()];
  if (!stream) {
    stream = std::make_shared<Stream>();
    stream->kind = Stream::Kind::kPerThread;
    stream->context = &context;
    stream->id = 2;
    stream->queue = Engine::Get().Create(context.device);
  }
  return stream;
}

void Pause() {
  const timespec t{0, 20'000};
  nanosleep(&t, nullptr);
}

/// A word that other threads and processes change.
template <class T>
T Load(uint64_t address) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(address)).load(std::memory_order_acquire);
}

template <class T>
bool Holds(T word, T value, unsigned flags) {
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<T>>(word - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return word == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (word & value) != 0;
    default:
      return ~(word | value) != 0;
  }
}

template <class T>
CUresult WaitValue(CUstream handle, CUdeviceptr address, T value, unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (address % sizeof(T) || (flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) ||
      !Memory::Get().Accessible(address, sizeof(T), stream->context->device, DeviceMemory::kRead))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_STREAM_WAIT_VALUE_FLUSH)
    return NotSupported("CU_STREAM_WAIT_VALUE_FLUSH");
  Operation operation;
  operation.kind = Operation::Kind::kWait;
  const int device = stream->context->device;
  operation.run = [=] {
    while (!Engine::Get().Faulting() &&
           Memory::Get().Accessible(address, sizeof(T), device, DeviceMemory::kRead) &&
           !Holds<T>(Load<T>(address), value, flags))
      Pause();
  };
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

template <class T>
CUresult WriteValue(CUstream handle, CUdeviceptr address, T value, unsigned flags) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  // Measured: CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER is refused like an unknown flag.
  if (address % sizeof(T) || flags ||
      !Memory::Get().Accessible(address, sizeof(T), stream->context->device, DeviceMemory::kWrite))
    return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.kind = Operation::Kind::kMarker;
  const int device = stream->context->device;
  operation.run = [=] {
    if (Memory::Get().Accessible(address, sizeof(T), device, DeviceMemory::kWrite))
      std::atomic_ref<T>(*reinterpret_cast<T*>(address)).store(value, std::memory_order_release);
  };
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

uint64_t Now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(t.tv_nsec);
}

bool MapShared(Event& event) {
  void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, event.fd, 0);
  if (at == MAP_FAILED)
    return false;
  event.shared = static_cast<SharedEvent*>(at);
  return true;
}

CUresult Record(const std::shared_ptr<Event>& event, const std::shared_ptr<Stream>& stream) {
  if (event->context && event->context->device != stream->context->device)
    return CUDA_ERROR_INVALID_HANDLE;
  Operation operation;
  operation.kind = Operation::Kind::kMarker;
  operation.completes = std::make_shared<Completion>();
  std::lock_guard lock(event->mutex);
  event->last = operation.completes;
  if (event->shared) {
    const uint64_t number = ++event->shared->recorded;
    operation.run = [event, number] {
      event->shared->time_ns = Now();
      // Records of several streams may finish in any order.
      uint64_t seen = event->shared->completed;
      while (seen < number && !event->shared->completed.compare_exchange_weak(seen, number)) {
      }
    };
  }
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult CreateStream(CUstream* out, unsigned flags, int priority) {
  if (!out || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)))
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  auto stream = std::make_shared<Stream>();
  stream->context = context.get();
  stream->flags = flags;
  stream->priority = std::max(-5, std::min(0, priority));
  stream->id = context->next_stream_id++;
  stream->queue = Engine::Get().Create(context->device);
  {
    std::lock_guard lock(context->issue_mutex);
    context->streams.insert(stream);
  }
  State::Get().streams.Add(stream);
  *out = reinterpret_cast<CUstream>(stream.get());
  SendStreamCreated(*context, *stream);
  return CUDA_SUCCESS;
}

CUresult NeedEvent(CUevent handle, std::shared_ptr<Event>* event) {
  if (const int poison = Engine::Get().Poison())
    return static_cast<CUresult>(poison);
  *event = State::Get().events.Find(handle);
  return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// What a handle of another process's event says.
struct IpcEvent {
  char magic[8];
  int pid;
  int fd;
};
constexpr char kIpcEventMagic[8] = {'s', 'o', 'f', 't', 'e', 'v', 't', '1'};

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace

Event::~Event() {
  if (shared)
    munmap(shared, 4096);
  if (fd >= 0)
    close(fd);
}

CUresult NeedStream(CUstream handle, std::shared_ptr<Stream>* stream) {
  std::shared_ptr<Context> context;
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    if (const CUresult result = NeedContext(&context))
      return result;
    const bool per_thread =
        handle == CU_STREAM_PER_THREAD || (!handle && PerThreadDefaultStream::active());
    *stream = per_thread ? PerThreadStream(*context) : context->legacy;
    return CUDA_SUCCESS;
  }
  if (const int poison = Engine::Get().Poison())
    return static_cast<CUresult>(poison);
  *stream = State::Get().streams.Find(handle);
  return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

uint64_t Issue(const std::shared_ptr<Stream>& stream, Operation operation) {
  Engine& engine = Engine::Get();
  Context& context = *stream->context;
  std::lock_guard lock(context.issue_mutex);
  // The legacy stream and the blocking ones wait for one another.
  if (stream->kind == Stream::Kind::kLegacy) {
    auto after = [&](const std::shared_ptr<Stream>& other) {
      if (other->blocking() && !engine.Idle(other->queue))
        operation.after.push_back({other->queue, engine.Issued(other->queue)});
    };
    for (auto& other : context.streams)
      after(other);
    for (auto& [thread, other] : context.per_thread)
      after(other);
  } else if (stream->blocking() && !engine.Idle(context.legacy->queue)) {
    operation.after.push_back({context.legacy->queue, engine.Issued(context.legacy->queue)});
  }
  return engine.Submit(stream->queue, std::move(operation));
}

CUresult IssueAndWait(const std::shared_ptr<Stream>& stream, Operation operation) {
  const uint64_t ticket = Issue(stream, std::move(operation));
  const int code = Engine::Get().Wait(stream->queue, ticket);
  FlushPrinted(*stream->context);
  return static_cast<CUresult>(code);
}

CUresult SynchronizeStream(const std::shared_ptr<Stream>& stream) {
  if (stream->kind == Stream::Kind::kLegacy)
    return IssueAndWait(stream, {});  // it waits for the blocking streams, too
  const int code = Engine::Get().Wait(stream->queue, Engine::Get().Issued(stream->queue));
  FlushPrinted(*stream->context);
  return static_cast<CUresult>(code);
}

CUresult SynchronizeContext(Context& context) {
  std::vector<Dependency> points;
  {
    std::lock_guard lock(context.issue_mutex);
    auto add = [&](const std::shared_ptr<Stream>& stream) {
      points.push_back({stream->queue, Engine::Get().Issued(stream->queue)});
    };
    add(context.legacy);
    for (auto& stream : context.streams)
      add(stream);
    for (auto& [thread, stream] : context.per_thread)
      add(stream);
  }
  int code = Engine::Get().Poison();
  for (const Dependency& point : points)
    if (!code)
      code = Engine::Get().Wait(point.queue, point.ticket);
  FlushPrinted(context);
  if (!code)
    SendContextSynchronized(context);
  return static_cast<CUresult>(code);
}

CUresult SynchronizeDevice(int device) {
  for (auto& context : State::Get().contexts.All())
    if (context->device == device)
      if (const CUresult result = SynchronizeContext(*context))
        return result;
  return CUDA_SUCCESS;
}

void FlushPrinted(Context& context) {
  std::string text;
  {
    std::lock_guard lock(context.print_mutex);
    text.swap(context.printed);
  }
  if (text.empty())
    return;
  // Through stdio, so that it comes in order with what the program prints.
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

namespace api {

CUresult cuStreamCreate(CUstream* out, unsigned int flags) {
  return CreateStream(out, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  return CreateStream(out, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  auto stream = State::Get().streams.Take(handle);
  if (!stream)
    return CUDA_ERROR_INVALID_HANDLE;
  SendStreamDestroyed(*stream->context, *stream);
  // What was issued still happens; whoever synchronizes the context waits for it.
  Context& context = *stream->context;
  if (Engine::Get().Idle(stream->queue)) {
    std::lock_guard lock(context.issue_mutex);
    context.streams.erase(stream);
  }
  Engine::Get().Close(stream->queue);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  return api::cuStreamDestroy_v2(handle);
}

CUresult cuStreamSynchronize(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  const CUresult result = SynchronizeStream(stream);
  if (result == CUDA_SUCCESS)
    SendStreamSynchronized(*stream->context, handle);
  return result;
}

CUresult cuStreamQuery(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  bool idle = Engine::Get().Idle(stream->queue);
  if (stream->kind == Stream::Kind::kLegacy) {
    std::lock_guard lock(stream->context->issue_mutex);
    for (auto& other : stream->context->streams)
      idle = idle && (!other->blocking() || Engine::Get().Idle(other->queue));
    for (auto& [thread, other] : stream->context->per_thread)
      idle = idle && Engine::Get().Idle(other->queue);
  }
  if (const int poison = Engine::Get().Poison())
    return static_cast<CUresult>(poison);
  return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!priority)
    return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!flags)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!id)
    return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!context)
    return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12050
CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  if (green)
    *green = nullptr;
  return api::cuStreamGetCtx(handle, context);
}
#endif

#if CUDA_VERSION >= 12080
CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!device)
    return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->device;
  return CUDA_SUCCESS;
}
#endif

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                              const CUstreamAttrValue* value) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  const char* bytes = reinterpret_cast<const char*>(value);
  std::lock_guard lock(stream->context->issue_mutex);
  stream->attributes[attribute].assign(bytes, bytes + sizeof *value);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!value)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(stream->context->issue_mutex);
  auto it = stream->attributes.find(attribute);
  if (it == stream->attributes.end()) {
    memset(value, 0, sizeof *value);
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
      value->priority = stream->priority;
    return CUDA_SUCCESS;
  }
  memcpy(value, it->second.data(), sizeof *value);
  return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  std::shared_ptr<Stream> a, b;
  if (const CUresult result = NeedStream(to, &a))
    return result;
  if (const CUresult result = NeedStream(from, &b))
    return result;
  a->attributes = b->attributes;
  return CUDA_SUCCESS;
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr, size_t, unsigned int) {
  std::shared_ptr<Stream> stream;
  return NeedStream(handle, &stream);
}

// --- capture: nothing is ever capturing ---

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  if (!status)
    return CUDA_ERROR_INVALID_VALUE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t*,
                                   CUgraph*, const CUgraphNode**, size_t*) {
  return api::cuStreamIsCapturing(handle, status);
}

#if CUDA_VERSION >= 12030
CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t*,
                                   CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
                                   size_t*) {
  return api::cuStreamIsCapturing(handle, status);
}
#endif

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t*) {
  return api::cuStreamIsCapturing(handle, status);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

// --- graphs: one can be made, but holds nothing and is never launched ---

CUresult cuGraphCreate(CUgraph* out, unsigned int flags) {
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  auto graph = std::make_shared<Graph>();
  State::Get().graphs.Add(graph);
  *out = reinterpret_cast<CUgraph>(graph.get());
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  return State::Get().graphs.Take(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode*, size_t* count) {
  if (!count || !State::Get().graphs.Find(handle))
    return CUDA_ERROR_INVALID_VALUE;
  *count = 0;
  return CUDA_SUCCESS;
}

// --- host functions and memory words ---

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  if (!function)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  Operation operation;
  operation.run = [function, data] { function(data); };
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  if (!callback || flags)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedStream(handle, &stream))
    return result;
  Operation operation;
  operation.run = [handle, callback, data] { callback(handle, CUDA_SUCCESS, data); };
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int f) {
  return WaitValue<uint32_t>(s, p, v, f);
}
CUresult cuStreamWaitValue32(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int f) {
  return WaitValue<uint32_t>(s, p, v, f);
}
CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int f) {
  return WaitValue<uint64_t>(s, p, v, f);
}
CUresult cuStreamWaitValue64(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int f) {
  return WaitValue<uint64_t>(s, p, v, f);
}
CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int f) {
  return WriteValue<uint32_t>(s, p, v, f);
}
CUresult cuStreamWriteValue32(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int f) {
  return WriteValue<uint32_t>(s, p, v, f);
}
CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int f) {
  return WriteValue<uint64_t>(s, p, v, f);
}
CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int f) {
  return WriteValue<uint64_t>(s, p, v, f);
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* list,
                               unsigned int flags) {
  if (flags || !list || count > 256)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& p = list[i];
    CUresult result = CUDA_SUCCESS;
    switch (p.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        result =
            WaitValue<uint32_t>(stream, p.waitValue.address, p.waitValue.value, p.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        result = WaitValue<uint64_t>(stream, p.waitValue.address, p.waitValue.value64,
                                     p.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        result = WriteValue<uint32_t>(stream, p.writeValue.address, p.writeValue.value,
                                      p.writeValue.flags);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        result = WriteValue<uint64_t>(stream, p.writeValue.address, p.writeValue.value64,
                                      p.writeValue.flags);
        break;
      case CU_STREAM_MEM_OP_BARRIER:
        break;
      default:
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result)
      return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* list,
                            unsigned int flags) {
  return api::cuStreamBatchMemOp_v2(stream, count, list, flags);
}

// --- events ---

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (!out || (flags & ~kKnown) ||
      ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  auto event = std::make_shared<Event>();
  event->context = context.get();
  event->flags = flags;
  if (flags & CU_EVENT_INTERPROCESS) {
    event->fd = memfd_create("softgpu.event", MFD_CLOEXEC);
    if (event->fd < 0 || ftruncate(event->fd, 4096) != 0 || !MapShared(*event))
      return CUDA_ERROR_OPERATING_SYSTEM;
  }
  State::Get().events.Add(event);
  *out = reinterpret_cast<CUevent>(event.get());
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return State::Get().events.Take(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventDestroy(CUevent handle) {
  return api::cuEventDestroy_v2(handle);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  std::shared_ptr<Event> event;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedEvent(handle, &event))
    return result;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  return Record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  if (flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL))
    return CUDA_ERROR_INVALID_VALUE;
  return api::cuEventRecord(event, stream);
}

CUresult cuEventQuery(CUevent handle) {
  std::shared_ptr<Event> event;
  if (const CUresult result = NeedEvent(handle, &event))
    return result;
  std::lock_guard lock(event->mutex);
  if (event->shared)
    return event->shared->completed >= event->shared->recorded ? CUDA_SUCCESS
                                                               : CUDA_ERROR_NOT_READY;
  return !event->last || event->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  std::shared_ptr<Event> event;
  if (const CUresult result = NeedEvent(handle, &event))
    return result;
  if (event->shared) {
    const uint64_t number = event->shared->recorded;
    while (event->shared->completed < number) {
      if (const int poison = Engine::Get().Poison())
        return static_cast<CUresult>(poison);
      Pause();
    }
    return static_cast<CUresult>(Engine::Get().Poison());
  }
  std::shared_ptr<Completion> last;
  {
    std::lock_guard lock(event->mutex);
    last = event->last;
  }
  const int code = last ? Engine::Get().Wait(*last) : 0;
  if (event->context)
    FlushPrinted(*event->context);
  return static_cast<CUresult>(code);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  if (flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL))
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event> event;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = NeedEvent(handle, &event))
    return result;
  if (const CUresult result = NeedStream(stream_handle, &stream))
    return result;
  std::lock_guard lock(event->mutex);
  Operation operation;
  operation.kind = Operation::Kind::kWait;
  if (event->shared) {
    const uint64_t number = event->shared->recorded;
    operation.run = [event, number] {
      while (event->shared->completed < number && !Engine::Get().Faulting())
        Pause();
    };
  } else if (event->last && !event->last->done) {
    operation.run = [last = event->last] {
      while (!last->done && !Engine::Get().Faulting())
        Engine::Get().WaitAMoment(*last);
    };
  } else {
    return CUDA_SUCCESS;
  }
  Issue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (!milliseconds)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event> a, b;
  if (NeedEvent(start, &a) || NeedEvent(end, &b))
    return CUDA_ERROR_INVALID_HANDLE;
  if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING)
    return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Completion> first, last;
  {
    std::lock_guard lock(a->mutex);
    first = a->last;
  }
  {
    std::lock_guard lock(b->mutex);
    last = b->last;
  }
  if (!first || !last)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!first->done || !last->done)
    return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(
      (static_cast<double>(last->time_ns) - static_cast<double>(first->time_ns)) / 1e6);
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12080
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return api::cuEventElapsedTime(milliseconds, start, end);
}
#endif

CUresult cuIpcGetEventHandle(CUipcEventHandle* out, CUevent handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event> event;
  if (const CUresult result = NeedEvent(handle, &event))
    return result;
  if (!event->shared)
    return CUDA_ERROR_INVALID_HANDLE;
  IpcEvent ipc{};
  memcpy(ipc.magic, kIpcEventMagic, sizeof ipc.magic);
  ipc.pid = getpid();
  ipc.fd = event->fd;
  static_assert(sizeof ipc <= sizeof *out);
  memset(out, 0, sizeof *out);
  memcpy(out, &ipc, sizeof ipc);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = NeedContext(&context))
    return result;
  IpcEvent ipc;
  memcpy(&ipc, &handle, sizeof ipc);
  if (memcmp(ipc.magic, kIpcEventMagic, sizeof ipc.magic) != 0)
    return CUDA_ERROR_INVALID_HANDLE;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc.pid, ipc.fd);
  auto event = std::make_shared<Event>();
  event->context = context.get();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->fd = open(path, O_RDWR | O_CLOEXEC);
  if (event->fd < 0 || !MapShared(*event))
    return CUDA_ERROR_MAP_FAILED;
  State::Get().events.Add(event);
  *out = reinterpret_cast<CUevent>(event.get());
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace gpurecover::softgpu
