// Events: a point in a stream, or in a capture.
#include "capture.h"
#include "context.h"
#include "counters.h"
#include "stream.h"

using namespace g4soft;

G4_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  G4_ENTER(kCurrent);
  if (!out || (flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_EVENT_INTERPROCESS) return CUDA_ERROR_NOT_SUPPORTED;
  auto e = std::make_shared<Event>();
  e->ctx = current();
  e->flags = flags;
  Lock lock(world().mutex);
  world().events.add(e);
  *out = reinterpret_cast<CUevent>(e.get());
  return CUDA_SUCCESS;
}

G4_API CUresult cuEventDestroy_v2(CUevent handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  return world().events.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record(CUevent event, CUstream stream, unsigned flags) {
  if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  std::shared_ptr<Event> e = world().events.find(event);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (e->ctx != s->ctx) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return capture_record(lock, *s, e, flags & CU_EVENT_RECORD_EXTERNAL);
  G4_TRY(check_legacy(lock, *s, "cuEventRecord"));
  G4_COUNT(event_records);
  e->capture = nullptr;
  e->capture_nodes.clear();
  e->record = std::make_shared<EventRecord>();
  Operation op;
  op.even_if_broken = true;
  op.run = [r = e->record] {
    Lock lock(world().mutex);
    r->time_ns = now_ns();
    r->done = true;
    world().progress.notify_all();
  };
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;
}

G4_API CUresult cuEventRecord(CUevent event, CUstream stream) {
  G4_ENTER(kCurrent);
  return record(event, stream, 0);
}

G4_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  G4_ENTER(kCurrent);
  return record(event, stream, flags);
}

// An event last recorded in a capture cannot be asked for; asking spoils a capture that still runs.
static CUresult find_askable(Lock&, CUevent handle, const char* function, std::shared_ptr<Event>* out) {
  *out = world().events.find(handle);
  if (!*out) return CUDA_ERROR_INVALID_HANDLE;
  if (!(*out)->capture) return CUDA_SUCCESS;
  invalidate(*(*out)->capture, function);
  return CUDA_ERROR_CAPTURED_EVENT;
}

G4_API CUresult cuEventQuery(CUevent handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Event> e;
  G4_TRY(find_askable(lock, handle, "cuEventQuery", &e));
  G4_TRY(check_unsafe(lock, "cuEventQuery"));
  G4_COUNT(queries);
  if (e->record && !e->record->done) return CUDA_ERROR_NOT_READY;
  return (CUresult)e->ctx->sticky.load();
}

G4_API CUresult cuEventSynchronize(CUevent handle) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Event> e;
  G4_TRY(find_askable(lock, handle, "cuEventSynchronize", &e));
  G4_TRY(check_unsafe(lock, "cuEventSynchronize"));
  if (const auto r = e->record) wait_for(lock, *r);
  return (CUresult)e->ctx->sticky.load();
}

G4_API CUresult cuEventElapsedTime_v2(float* ms, CUevent start, CUevent end) {
  G4_ENTER(kCurrent);
  if (!ms) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Event> a, b;
  G4_TRY(find_askable(lock, start, "cuEventElapsedTime", &a));
  G4_TRY(find_askable(lock, end, "cuEventElapsedTime", &b));
  if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!a->record || !b->record) return CUDA_ERROR_INVALID_HANDLE;
  if (!a->record->done || !b->record->done) return CUDA_ERROR_NOT_READY;
  *ms = (float)(b->record->time_ns - a->record->time_ns) * 1e-6f;
  return (CUresult)a->ctx->sticky.load();
}
