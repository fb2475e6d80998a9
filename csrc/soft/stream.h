// Streams and events: work in order, and points in it.
//
// Life of an operation: (1) submit() numbers it and puts it in its stream's queue, with what it must wait for bound
// then; (2) the stream's thread takes it when its predecessor has finished, its dependencies are done and the stream
// is not stalled; (3) it runs, unless an error has stuck to the context; (4) `completed` rises and waiters are woken.
#ifndef G4_SOFT_STREAM_H
#define G4_SOFT_STREAM_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "world.h"

namespace g4soft {

// What an event recorded. done and time_ns under the world's mutex.
struct EventRecord {
  bool done = false;
  int64_t time_ns = 0;
};

struct Dependency {
  std::shared_ptr<Stream> stream;  // with seq: that many operations of it, or
  uint64_t seq = 0;
  std::shared_ptr<EventRecord> record;  // an event's record
  bool met() const;
};

struct Operation {
  std::function<void()> run;
  std::vector<Dependency> after;
  bool even_if_broken = false;  // runs though an error has stuck: event records, stream callbacks
  bool copy = false;            // delayed by a seed
};

struct Stream : std::enable_shared_from_this<Stream> {
  std::shared_ptr<Context> ctx;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool is_null = false;
  // Under the world's mutex:
  std::deque<Operation> queue;
  uint64_t submitted = 0, completed = 0;
  bool started = false, closing = false;
  std::condition_variable work;
  std::shared_ptr<Capture> capture;    // while it takes part in one
  std::vector<Node*> capture_after;    // what its next node will depend on

  CUstream handle() { return reinterpret_cast<CUstream>(this); }
  bool blocking() const { return !is_null && !(flags & CU_STREAM_NON_BLOCKING); }
  bool idle() const { return completed == submitted; }
};

struct Event {
  std::shared_ptr<Context> ctx;
  unsigned flags = 0;
  // Under the world's mutex. Last recorded into a stream, or into a capture, or never.
  std::shared_ptr<EventRecord> record;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> capture_nodes;
};

// Resolves a handle: null and 1 are the legacy stream, 2 the thread's own. CUDA_ERROR_INVALID_HANDLE if there is none.
CUresult find_stream(Lock&, CUstream handle, std::shared_ptr<Stream>* out);
std::shared_ptr<Stream> make_stream(Lock&, const std::shared_ptr<Context>&, unsigned flags, int priority);
// Queues the operation with the implied order of the legacy stream added. Returns its number.
uint64_t submit(Lock&, Stream&, Operation);
// Host waits.
void wait_for(Lock&, Stream&, uint64_t seq);
void wait_for(Lock&, const EventRecord&);
// Lets the thread end once its queue is empty.
void close_stream(Lock&, Stream&);
int64_t now_ns();
// Sleeps as a seed asks before work of this kind.
void seeded_delay(const Stream&, uint64_t seq, bool copy);

}  // namespace g4soft

#endif
