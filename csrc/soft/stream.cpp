#include "stream.h"

#include <chrono>
#include <thread>

#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"

namespace g4soft {

bool Dependency::met() const { return record ? record->done : stream->completed >= seq; }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void seeded_delay(const Stream& s, uint64_t seq, bool copy) {
  const uint64_t max = options().delay_us.load(std::memory_order_relaxed);
  if (!max) return;
  const uint64_t draw = mix(options().seed ^ mix(s.id * 0x10001 + seq));
  // Copies are late half of the time; other work one time in eight, so that long runs stay short.
  if (draw % (copy ? 2 : 8) == 0) std::this_thread::sleep_for(std::chrono::microseconds((draw >> 8) % (max + 1)));
}

namespace {

void forget(const Stream& s) {
  auto& all = s.ctx->streams;
  for (size_t i = 0; i < all.size(); i++)
    if (all[i].get() == &s) {
      all.erase(all.begin() + (long)i);
      return;
    }
}

void run_stream(std::shared_ptr<Stream> s) {
  World& w = world();
  Lock lock(w.mutex);
  for (;;) {
    s->work.wait(lock, [&] { return !s->queue.empty() || s->closing; });
    if (s->queue.empty()) return forget(*s);
    Operation op = std::move(s->queue.front());
    s->queue.pop_front();
    const uint64_t seq = s->completed + 1;
    w.progress.wait(lock, [&] {
      for (const Dependency& d : op.after)
        if (!d.met()) return false;
      return !stalled(s.get());
    });
    lock.unlock();
    if (op.even_if_broken || !s->ctx->sticky) {
      seeded_delay(*s, seq, op.copy);
      op.run();
    }
    op = Operation();  // what it owned goes before its completion is seen
    lock.lock();
    s->completed = seq;
    w.progress.notify_all();
  }
}

}  // namespace

std::shared_ptr<Stream> make_stream(Lock&, const std::shared_ptr<Context>& ctx, unsigned flags, int priority) {
  auto s = std::make_shared<Stream>();
  s->ctx = ctx;
  s->flags = flags;
  s->priority = priority;
  s->id = world().next_id++;
  ctx->streams.push_back(s);
  world().streams.add(s);
  return s;
}

CUresult find_stream(Lock& lock, CUstream handle, std::shared_ptr<Stream>* out) {
  auto ctx = current();
  if (!ctx->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;  // by another thread since the call began
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    *out = ctx->null_stream;
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    thread_local std::weak_ptr<Stream> own;
    auto s = own.lock();
    if (!s || s->ctx != ctx || s->closing) own = s = make_stream(lock, ctx, CU_STREAM_DEFAULT, 0);
    *out = s;
    return CUDA_SUCCESS;
  }
  *out = world().streams.find(handle);
  if (!*out) return CUDA_ERROR_INVALID_HANDLE;
  return (*out)->ctx == ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

uint64_t submit(Lock&, Stream& s, Operation op) {
  const auto wait_on = [&](Stream& other) {
    if (&other != &s && !other.idle()) op.after.push_back({other.shared_from_this(), other.submitted, nullptr});
  };
  if (s.is_null) {
    for (const auto& other : s.ctx->streams)
      if (other->blocking()) wait_on(*other);
  } else if (s.blocking()) {
    wait_on(*s.ctx->null_stream);
  }
  s.queue.push_back(std::move(op));
  if (!s.started) {
    s.started = true;
    std::thread(run_stream, s.shared_from_this()).detach();
  }
  s.work.notify_one();
  return ++s.submitted;
}

void wait_for(Lock& lock, Stream& s, uint64_t seq) {
  G4_COUNT(synchronisations);
  world().progress.wait(lock, [&] { return s.completed >= seq; });
}

void wait_for(Lock& lock, const EventRecord& record) {
  G4_COUNT(synchronisations);
  world().progress.wait(lock, [&] { return record.done; });
}

void close_stream(Lock&, Stream& s) {
  s.closing = true;
  s.work.notify_one();
}

}  // namespace g4soft

using namespace g4soft;

// ---- Driver functions ----------------------------------------------------------------------------------------------

static CUresult create(CUstream* out, unsigned flags, int priority) {
  if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  *out = make_stream(lock, current(), flags, priority)->handle();
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  G4_ENTER(kCurrent);
  return create(out, flags, 0);
}

G4_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  G4_ENTER(kCurrent);
  return create(out, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
}

G4_API CUresult cuStreamDestroy_v2(CUstream handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s = world().streams.find(handle);
  if (!s || s->is_null) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) invalidate(*s->capture, "cuStreamDestroy of a capturing stream");
  world().streams.remove(handle);
  // Work already queued still runs; the context forgets the stream once it is idle.
  close_stream(lock, *s);
  if (!s->started) forget(*s);
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamSynchronize(CUstream handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, handle, &s));
  G4_TRY(check_wait(lock, *s, "cuStreamSynchronize"));
  G4_TRY(check_unsafe(lock, "cuStreamSynchronize"));
  if (s->is_null) {
    // The legacy stream stands for all blocking streams.
    for (const auto& other : std::vector<std::shared_ptr<Stream>>(s->ctx->streams))
      if (other->blocking()) wait_for(lock, *other, other->submitted);
  }
  wait_for(lock, *s, s->submitted);
  lock.unlock();
  check_guards_of(*s->ctx);
  return (CUresult)s->ctx->sticky.load();
}

G4_API CUresult cuStreamQuery(CUstream handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, handle, &s));
  G4_TRY(check_wait(lock, *s, "cuStreamQuery"));
  G4_TRY(check_unsafe(lock, "cuStreamQuery"));
  G4_COUNT(queries);
  if (!s->idle()) return CUDA_ERROR_NOT_READY;
  if (s->is_null)
    for (const auto& other : s->ctx->streams)
      if (other->blocking() && !other->idle()) return CUDA_ERROR_NOT_READY;
  return (CUresult)s->ctx->sticky.load();
}

G4_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  G4_ENTER(kCurrent);
  if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  std::shared_ptr<Event> e = world().events.find(event);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture || e->capture) return capture_wait(lock, s, e, flags & CU_EVENT_WAIT_EXTERNAL);
  G4_TRY(check_legacy(lock, *s, "cuStreamWaitEvent"));
  if (!e->record || e->record->done) return CUDA_SUCCESS;
  G4_COUNT(event_waits);
  Operation op;
  op.run = [] {};
  op.after.push_back({nullptr, 0, e->record});  // what the event holds now, whatever it records later
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;
}

G4_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void* user_data) {
  G4_ENTER(kCurrent);
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  if (s->capture) return capture_host(lock, *s, fn, user_data);
  G4_TRY(check_legacy(lock, *s, "cuLaunchHostFunc"));
  Operation op;
  op.run = [fn, user_data] {
    G4_COUNT(host_functions);
    in_host_function = true;
    fn(user_data);
    in_host_function = false;
  };
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* user_data, unsigned flags) {
  G4_ENTER(kCurrent);
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  G4_TRY(check_not_capturing(lock, *s, "cuStreamAddCallback"));
  G4_TRY(check_legacy(lock, *s, "cuStreamAddCallback"));
  Operation op;
  op.even_if_broken = true;
  op.run = [callback, stream, user_data, ctx = s->ctx] {
    G4_COUNT(host_functions);
    in_host_function = true;
    callback(stream, (CUresult)ctx->sticky.load(), user_data);
    in_host_function = false;
  };
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr, size_t, unsigned) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  return check_not_capturing(lock, *s, "cuStreamAttachMemAsync");
}

template <class T>
static CUresult get(CUstream handle, T* out, T (*read)(Stream&)) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, handle, &s));
  *out = read(*s);
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamGetFlags(CUstream handle, unsigned* out) {
  G4_ENTER(kCurrent);
  return get<unsigned>(handle, out, [](Stream& s) { return s.flags; });
}

G4_API CUresult cuStreamGetPriority(CUstream handle, int* out) {
  G4_ENTER(kCurrent);
  return get<int>(handle, out, [](Stream& s) { return s.priority; });
}

G4_API CUresult cuStreamGetId(CUstream handle, unsigned long long* out) {
  G4_ENTER(kCurrent);
  return get<unsigned long long>(handle, out, [](Stream& s) { return (unsigned long long)s.id; });
}

G4_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* out) {
  G4_ENTER(kCurrent);
  return get<CUcontext>(handle, out, [](Stream& s) { return s.ctx->handle(); });
}

G4_API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* out, CUgreenCtx* green) {
  G4_ENTER(kCurrent);
  if (green) *green = nullptr;
  return get<CUcontext>(handle, out, [](Stream& s) { return s.ctx->handle(); });
}

G4_API CUresult cuStreamGetDevice(CUstream handle, CUdevice* out) {
  G4_ENTER(kCurrent);
  return get<CUdevice>(handle, out, [](Stream&) { return 0; });
}
