// A context: owner of streams, memory and modules, and the place errors stick to.
#ifndef G4_SOFT_CONTEXT_H
#define G4_SOFT_CONTEXT_H

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "world.h"

namespace g4soft {

struct Context {
  bool primary = false;
  unsigned flags = 0;
  uint64_t id = 0;
  // Under the world's mutex:
  uint64_t retained = 0;                         // primary only
  std::atomic<bool> alive{true};
  std::shared_ptr<Stream> null_stream;
  std::vector<std::shared_ptr<Stream>> streams;  // all, the null stream and per-thread streams too
  size_t limits[8] = {1024, 1 << 20, 8 << 20, 0, 0, 128, 0, 0};
  int cache_config = 0;
  // The first error that stuck; written once under the mutex, read anywhere.
  std::atomic<int> sticky{0};

  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
};

// The calling thread's current context, or null.
std::shared_ptr<Context> current();
// Makes an error stick and wakes everybody who waits. With the world's lock not held.
void make_sticky(Context& ctx, CUresult error, const std::string& what);
// Waits until every stream of the context is idle, then checks guard zones. Returns the sticky error.
CUresult synchronize(const std::shared_ptr<Context>& ctx);
// Guard zones after a host wait; a broken one sticks.
void check_guards_of(Context& ctx);

}  // namespace g4soft

#endif
