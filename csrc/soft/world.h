// Everything the device knows, behind one mutex: handles, contexts, streams. Work itself runs outside of the mutex, on
// the streams' threads and the grid's helpers; what they finish is published under it and announced on `progress`.
#ifndef G4_SOFT_WORLD_H
#define G4_SOFT_WORLD_H

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda_types.h"
#include "options.h"

namespace g4soft {

class Arena;
struct Context;
struct Stream;
struct Event;
struct Module;
struct Function;
struct Graph;
struct Node;
struct GraphExec;
struct Capture;

using Lock = std::unique_lock<std::mutex>;

// A handle is the address of the object; one that is not in the table is CUDA_ERROR_INVALID_HANDLE, never a crash.
template <class T>
class Handles {
 public:
  template <class H>
  std::shared_ptr<T> find(H handle) const {
    auto it = all_.find(reinterpret_cast<const void*>(handle));
    return it == all_.end() ? nullptr : it->second;
  }
  void add(std::shared_ptr<T> object) {
    const void* key = object.get();
    all_[key] = std::move(object);
  }
  template <class H>
  bool remove(H handle) {
    return all_.erase(reinterpret_cast<const void*>(handle)) != 0;
  }
  template <class F>
  void remove_if(F predicate) {
    for (auto it = all_.begin(); it != all_.end();) it = predicate(*it->second) ? all_.erase(it) : std::next(it);
  }
  template <class F>
  void each(F visit) const {
    for (const auto& entry : all_) visit(entry.second);
  }

 private:
  std::unordered_map<const void*, std::shared_ptr<T>> all_;
};

struct World {
  std::mutex mutex;
  std::condition_variable progress;  // some work has finished, some stream was released, some error stuck
  std::atomic<bool> initialized{false};
  std::shared_ptr<Context> primary;  // made by the first retain, kept for the life of the process
  unsigned primary_flags = 0;
  Handles<Context> contexts;
  Handles<Stream> streams;
  Handles<Event> events;
  Handles<Module> modules;
  Handles<Function> functions;
  Handles<Graph> graphs;
  Handles<GraphExec> execs;
  Handles<Capture> captures;  // those not ended
  uint64_t next_id = 1;

  Arena& device();  // made at first use, with the size the options say then
  Arena& pinned();
  bool has_memory() const { return device_ != nullptr; }
  uint64_t live_bytes = 0, live_pinned_bytes = 0;  // charged, under the mutex

 private:
  std::once_flag memory_once_;
  Arena* device_ = nullptr;
  Arena* pinned_ = nullptr;
  void make_memory();
};
World& world();

// ---- The gate every driver function passes first -------------------------------------------------------------------

enum Entry : unsigned {
  kAnytime = 0,       // no driver state needed
  kInitialized = 1,   // after cuInit
  kCurrent = 3,       // with a live current context, free of sticky errors
  kUnsafe = 7,        // and a call that captures may forbid (cuThreadExchangeStreamCaptureMode)
};
CUresult enter(const char* function, unsigned entry);

#define G4_ENTER(entry)                                                               \
  do {                                                                                \
    if (const CUresult g4_error = ::g4soft::enter(__func__, (entry))) return g4_error; \
  } while (0)
#define G4_TRY(expression)                                      \
  do {                                                          \
    if (const CUresult g4_error = (expression)) return g4_error; \
  } while (0)

// Set while a stream's thread runs a host function.
extern thread_local bool in_host_function;

}  // namespace g4soft

#endif
