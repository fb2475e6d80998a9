#include "capture.h"

#include <algorithm>
#include <set>

#include "context.h"
#include "counters.h"
#include "faults.h"
#include "module.h"

namespace g4soft {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult refuse(Capture& c, const char* function, CUresult error) {
  invalidate(c, function);
  return error;
}

// 901 once the capture of the stream is invalid.
CUresult check_valid(const Stream& s) {
  return s.capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult add(Stream& s, NodeWork work) {
  G4_TRY(check_valid(s));
  Node* node = s.capture->graph->add(std::move(work), s.capture_after);
  s.capture_after = {node};
  return CUDA_SUCCESS;
}

void merge(std::vector<Node*>& into, const std::vector<Node*>& nodes) {
  for (Node* n : nodes)
    if (std::find(into.begin(), into.end(), n) == into.end()) into.push_back(n);
}

void join(Capture& c, const std::shared_ptr<Capture>& shared, const std::shared_ptr<Stream>& s) {
  s->capture = shared;
  c.streams.push_back(s);
}

void end(Capture& c) {
  for (const auto& s : c.streams) {
    s->capture = nullptr;
    s->capture_after.clear();
  }
  c.streams.clear();
  c.ended = true;
  world().captures.remove(&c);
}

// Every node must be reachable from where the origin stands, or some forked stream has work nobody waits for.
bool joined(const Capture& c) {
  std::set<const Node*> seen;
  std::vector<const Node*> todo(c.origin->capture_after.begin(), c.origin->capture_after.end());
  while (!todo.empty()) {
    const Node* n = todo.back();
    todo.pop_back();
    if (!seen.insert(n).second) continue;
    todo.insert(todo.end(), n->after.begin(), n->after.end());
  }
  return seen.size() == c.graph->nodes.size();
}

}  // namespace

void invalidate(Capture& c, const char* function) {
  if (c.ended || c.invalidated) return;
  c.invalidated = true;
  G4_COUNT(captures_invalidated);
  report("%s invalidates the running capture", function);
}

CUresult check_unsafe(Lock&, const char* function) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult error = CUDA_SUCCESS;
  world().captures.each([&](const std::shared_ptr<Capture>& c) {
    const bool own = c->thread == std::this_thread::get_id();
    const bool forbids = own ? c->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                             : c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) return;
    error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    invalidate(*c, function);
  });
  return error;
}

CUresult check_legacy(Lock&, Stream& s, const char* function) {
  if (!s.is_null) return CUDA_SUCCESS;
  for (const auto& other : s.ctx->streams)
    if (other->capture && other->blocking())
      return refuse(*other->capture, function, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return CUDA_SUCCESS;
}

CUresult check_not_capturing(Lock&, Stream& s, const char* function) {
  if (!s.capture) return CUDA_SUCCESS;
  G4_TRY(check_valid(s));
  return refuse(*s.capture, function, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult check_wait(Lock& lock, Stream& s, const char* function) {
  G4_TRY(check_not_capturing(lock, s, function));
  return check_legacy(lock, s, function);
}

CUresult check_wait(Lock& lock, Context& ctx, const char* function) {
  CUresult error = CUDA_SUCCESS;
  for (const auto& s : ctx.streams)
    if (s->capture) {
      invalidate(*s->capture, function);
      error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  (void)lock;
  return error;
}

CUresult capture_wait(Lock&, const std::shared_ptr<Stream>& s, const std::shared_ptr<Event>& e, bool external) {
  const std::shared_ptr<Capture> own = s->capture, theirs = e->capture;
  if (!own) {
    if (theirs->ended) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (theirs->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->is_null) return refuse(*theirs, "cuStreamWaitEvent", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    join(*theirs, theirs, s);
    s->capture_after = e->capture_nodes;
    return CUDA_SUCCESS;
  }
  G4_TRY(check_valid(*s));
  if (external) {
    NodeWork work;
    work.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    work.event = e;
    return add(*s, std::move(work));
  }
  if (!theirs || theirs->ended) return refuse(*own, "cuStreamWaitEvent", CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (theirs != own) {
    invalidate(*theirs, "cuStreamWaitEvent");
    return refuse(*own, "cuStreamWaitEvent", CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  merge(s->capture_after, e->capture_nodes);
  return CUDA_SUCCESS;
}

CUresult capture_record(Lock&, Stream& s, const std::shared_ptr<Event>& e, bool external) {
  G4_TRY(check_valid(s));
  if (external) {
    NodeWork work;
    work.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    work.event = e;
    return add(s, std::move(work));
  }
  e->record = nullptr;
  e->capture = s.capture;
  e->capture_nodes = s.capture_after;
  return CUDA_SUCCESS;
}

CUresult capture_host(Lock&, Stream& s, CUhostFn fn, void* user_data) {
  NodeWork work;
  work.type = CU_GRAPH_NODE_TYPE_HOST;
  work.host = {fn, user_data};
  return add(s, std::move(work));
}

CUresult capture_kernel(Lock&, Stream& s, KernelLaunch launch) {
  G4_TRY(check_valid(s));
  if (!launch.function->loaded && options().lazy_loading) {
    report("%s is first used inside a capture: load it before (cuFuncLoad)", launch.function->kernel->name);
    return refuse(*s.capture, "lazy loading", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  NodeWork work;
  work.type = CU_GRAPH_NODE_TYPE_KERNEL;
  work.kernel = std::move(launch);
  return add(s, std::move(work));
}

CUresult capture_copy(Lock&, Stream& s, Copy copy, bool pageable) {
  G4_TRY(check_valid(s));
  if (pageable) return refuse(*s.capture, "a copy of pageable memory", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  NodeWork work;
  work.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  work.copy = std::move(copy);
  return add(s, std::move(work));
}

CUresult capture_fill(Lock&, Stream& s, Fill fill) {
  NodeWork work;
  work.type = CU_GRAPH_NODE_TYPE_MEMSET;
  work.fill = fill;
  return add(s, std::move(work));
}

CUresult capture_child(Lock&, Stream& s, std::shared_ptr<const Plan> plan) {
  NodeWork work;
  work.type = CU_GRAPH_NODE_TYPE_GRAPH;
  work.child = std::move(plan);
  return add(s, std::move(work));
}

}  // namespace g4soft

using namespace g4soft;

// ---- Driver functions ----------------------------------------------------------------------------------------------

G4_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  G4_ENTER(kCurrent);
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(armed(Startup::kCapture, "cuStreamBeginCapture"));
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  if (s->is_null) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  G4_COUNT(captures);
  auto c = std::make_shared<Capture>();
  c->id = world().next_id++;
  c->mode = mode;
  c->thread = std::this_thread::get_id();
  c->origin = s.get();
  c->graph = std::make_shared<Graph>();
  join(*c, c, s);
  s->capture_after.clear();
  world().captures.add(c);
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* out) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  const std::shared_ptr<Capture> c = s->capture;
  if (!c) return CUDA_ERROR_ILLEGAL_STATE;
  if (c->origin != s.get())
    return refuse(*c, "cuStreamEndCapture on a joined stream", CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const bool is_joined = joined(*c);
  if (!c->invalidated && !is_joined) invalidate(*c, "cuStreamEndCapture with unjoined work");
  end(*c);
  if (!is_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (c->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  world().graphs.add(c->graph);
  *out = c->graph->handle();
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* out) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  G4_TRY(check_legacy(lock, *s, "cuStreamIsCapturing"));
  *out = !s->capture                ? CU_STREAM_CAPTURE_STATUS_NONE
         : s->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

G4_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                          const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                                          size_t* dependencies_count) {
  G4_ENTER(kCurrent);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  G4_TRY(check_legacy(lock, *s, "cuStreamGetCaptureInfo"));
  const std::shared_ptr<Capture> c = s->capture;
  *status = !c ? CU_STREAM_CAPTURE_STATUS_NONE
               : c->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = c->id;
  if (graph) *graph = c->graph->handle();
  if (dependencies) *dependencies = reinterpret_cast<const CUgraphNode*>(s->capture_after.data());
  if (edges) *edges = nullptr;
  if (dependencies_count) *dependencies_count = s->capture_after.size();
  return CUDA_SUCCESS;
}

G4_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  G4_ENTER(kInitialized);
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}
