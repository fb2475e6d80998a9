#include "world.h"

#include "arena.h"
#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"

namespace g4soft {

thread_local bool in_host_function = false;

World& world() {
  static World* all = new World;  // never destroyed: stream threads outlive static destruction
  return *all;
}

void World::make_memory() {
  // Twice the budget of addresses, so that freed ones can rest before they are used again.
  constexpr size_t kSlack = 256 << 20;
  pinned_ = new Arena("pinned", 2 * options().pinned_bytes + kSlack);
  device_ = new Arena("device", 2 * options().memory_bytes + kSlack);
}

Arena& World::device() {
  std::call_once(memory_once_, [this] { make_memory(); });
  return *device_;
}

Arena& World::pinned() {
  std::call_once(memory_once_, [this] { make_memory(); });
  return *pinned_;
}

CUresult enter(const char* function, unsigned entry) {
  G4_COUNT(calls);
  const CUresult error = [&] {
    if (const CUresult fault = planned_call_fault(function)) return fault;
    if (in_host_function) {
      report("%s called from a host function", function);
      return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!(entry & kInitialized)) return CUDA_SUCCESS;
    if (!world().initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if ((entry & kCurrent) != kCurrent) return CUDA_SUCCESS;
    const auto ctx = current();
    if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (const int sticky = ctx->sticky) return (CUresult)sticky;
    if ((entry & kUnsafe) != kUnsafe) return CUDA_SUCCESS;
    Lock lock(world().mutex);
    return check_unsafe(lock, function);
  }();
  if (error) {
    G4_COUNT(calls_failed);
    entry_failed();
  }
  return error;
}

}  // namespace g4soft
