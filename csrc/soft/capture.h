// Stream capture: what a stream is asked to do becomes nodes of a graph; nothing is executed.
//
// Life of a capture: (1) cuStreamBeginCapture on its origin; (2) further streams join by waiting for an event recorded
// in it; (3) a call it cannot hold invalidates it: that call has its own error, later ones on its streams get 901; (4)
// cuStreamEndCapture on the origin gives the graph, or the reason why there is none, and frees its streams.
#ifndef G4_SOFT_CAPTURE_H
#define G4_SOFT_CAPTURE_H

#include <memory>
#include <thread>
#include <vector>

#include "graph.h"
#include "stream.h"
#include "world.h"

namespace g4soft {

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  std::vector<std::shared_ptr<Stream>> streams;
  std::shared_ptr<Graph> graph;
  bool invalidated = false;
  bool ended = false;
};

// All with the world's lock held.
void invalidate(Capture&, const char* function);
// 900 and invalidation when the calling thread may not make potentially unsafe calls now.
CUresult check_unsafe(Lock&, const char* function);
// 906 when the stream is the legacy one and a blocking stream of its context captures.
CUresult check_legacy(Lock&, Stream&, const char* function);
// 900 when the stream captures (901 when that capture is already invalid).
CUresult check_not_capturing(Lock&, Stream&, const char* function);
// What a host wait for this stream, or for the whole context, may not meet.
CUresult check_wait(Lock&, Stream&, const char* function);
CUresult check_wait(Lock&, Context&, const char* function);

// The captured forms of stream calls.
CUresult capture_wait(Lock&, const std::shared_ptr<Stream>&, const std::shared_ptr<Event>&, bool external);
CUresult capture_record(Lock&, Stream&, const std::shared_ptr<Event>&, bool external);
CUresult capture_host(Lock&, Stream&, CUhostFn, void* user_data);
CUresult capture_kernel(Lock&, Stream&, KernelLaunch);
CUresult capture_copy(Lock&, Stream&, Copy, bool pageable);
CUresult capture_fill(Lock&, Stream&, Fill);
CUresult capture_child(Lock&, Stream&, std::shared_ptr<const Plan>);

}  // namespace g4soft

#endif
