#include "context.h"

#include <algorithm>

#include "arena.h"
#include "capture.h"
#include "counters.h"
#include "faults.h"
#include "memory.h"
#include "module.h"
#include "stream.h"

namespace g4soft {
namespace {

// The calling thread's stack of current contexts; the last is current.
thread_local std::vector<std::shared_ptr<Context>> stack;

std::shared_ptr<Context> make_context(Lock& lock, unsigned flags, bool primary) {
  auto ctx = std::make_shared<Context>();
  ctx->flags = flags;
  ctx->primary = primary;
  ctx->id = world().next_id++;
  ctx->null_stream = make_stream(lock, ctx, CU_STREAM_DEFAULT, 0);
  ctx->null_stream->is_null = true;
  world().contexts.add(ctx);
  return ctx;
}

void drain(Lock& lock, const std::shared_ptr<Context>& ctx) {
  for (const auto& s : std::vector<std::shared_ptr<Stream>>(ctx->streams)) wait_for(lock, *s, s->submitted);
}

// Waits for the context's work, then takes back everything it owned.
void tear_down(Lock& lock, const std::shared_ptr<Context>& ctx) {
  ctx->alive = false;  // first: the drain below lets others in
  for (const auto& s : ctx->streams)
    if (s->capture) invalidate(*s->capture, "destruction of the context");
  drain(lock, ctx);
  World& w = world();
  const auto owned = [&](const auto& object) { return object.ctx == ctx; };
  w.execs.remove_if(owned);
  w.events.remove_if(owned);
  w.modules.remove_if([&](Module& m) {
    if (m.ctx != ctx) return false;
    for (auto& entry : m.functions) {
      entry.second->unloaded = true;
      w.functions.remove(entry.second.get());
    }
    return true;
  });
  for (const auto& s : ctx->streams) {
    if (s->capture) {
      s->capture->streams.clear();
      s->capture->ended = true;
      w.captures.remove(s->capture.get());
      s->capture = nullptr;
    }
    w.streams.remove(s.get());
    close_stream(lock, *s);
  }
  ctx->streams.clear();
  ctx->null_stream = nullptr;
  free_owned(lock, ctx.get());
}

CUresult destroy(const std::shared_ptr<Context>& ctx) {
  Lock lock(world().mutex);
  if (!ctx->alive) return CUDA_ERROR_INVALID_CONTEXT;
  tear_down(lock, ctx);
  world().contexts.remove(ctx.get());
  stack.erase(std::remove(stack.begin(), stack.end(), ctx), stack.end());
  return CUDA_SUCCESS;
}

CUresult find(Lock&, CUcontext handle, std::shared_ptr<Context>* out) {
  *out = world().contexts.find(handle);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

std::shared_ptr<Context> current() { return stack.empty() ? nullptr : stack.back(); }

void make_sticky(Context& ctx, CUresult error, const std::string& what) {
  Lock lock(world().mutex);
  if (ctx.sticky) return;
  report("%s", what.c_str());
  G4_COUNT(sticky_errors);
  ctx.sticky = error;
  world().progress.notify_all();
}

void check_guards_of(Context& ctx) {
  if (!options().check_guards || !world().has_memory()) return;
  if (world().device().check_guards() + world().pinned().check_guards())
    make_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS, "guard zones are broken (see above)");
}

CUresult synchronize(const std::shared_ptr<Context>& ctx) {
  {
    Lock lock(world().mutex);
    drain(lock, ctx);
  }
  check_guards_of(*ctx);
  return (CUresult)ctx->sticky.load();
}

}  // namespace g4soft

using namespace g4soft;

extern "C" __attribute__((visibility("default"))) int g4soft_check_guards(void) {
  if (!world().has_memory()) return 0;
  return world().device().check_guards() + world().pinned().check_guards();
}

// ---- Driver functions: the primary context -------------------------------------------------------------------------

G4_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock(world().mutex);
  auto& primary = world().primary;
  if (!primary || !primary->alive) {
    // After a reset old handles stay dead; a revived primary is a new context without the old one's errors.
    primary = make_context(lock, world().primary_flags, true);
  }
  primary->retained++;
  *out = primary->handle();
  return CUDA_SUCCESS;
}

G4_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  G4_ENTER(kInitialized);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock(world().mutex);
  const auto primary = world().primary;
  if (!primary || !primary->alive || !primary->retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary->retained == 0) tear_down(lock, primary);
  return CUDA_SUCCESS;
}

G4_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  G4_ENTER(kInitialized);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock(world().mutex);
  const auto primary = world().primary;
  if (primary && primary->alive) tear_down(lock, primary);
  return CUDA_SUCCESS;
}

G4_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  G4_ENTER(kInitialized);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  *flags = world().primary_flags;
  *active = world().primary && world().primary->alive;
  return CUDA_SUCCESS;
}

G4_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  G4_ENTER(kInitialized);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  Lock lock(world().mutex);
  world().primary_flags = flags;
  if (world().primary) world().primary->flags = flags;
  return CUDA_SUCCESS;
}

// ---- Contexts of one's own, and which is current -------------------------------------------------------------------

G4_API CUresult cuCtxCreate_v4(CUcontext* out, void* params, unsigned flags, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  (void)params;  // execution affinity and graphics sharing: nothing to share here
  Lock lock(world().mutex);
  stack.push_back(make_context(lock, flags, false));
  *out = stack.back()->handle();
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxDestroy_v2(CUcontext handle) {
  G4_ENTER(kInitialized);
  std::shared_ptr<Context> ctx;
  {
    Lock lock(world().mutex);
    G4_TRY(find(lock, handle, &ctx));
  }
  if (ctx->primary) return CUDA_ERROR_INVALID_CONTEXT;
  return destroy(ctx);
}

G4_API CUresult cuCtxSetCurrent(CUcontext handle) {
  G4_ENTER(kInitialized);
  if (!handle) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Context> ctx;
  Lock lock(world().mutex);
  G4_TRY(find(lock, handle, &ctx));
  if (stack.empty()) stack.push_back(ctx);
  else stack.back() = ctx;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  G4_ENTER(kInitialized);
  std::shared_ptr<Context> ctx;
  Lock lock(world().mutex);
  G4_TRY(find(lock, handle, &ctx));
  stack.push_back(ctx);
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  G4_ENTER(kInitialized);
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = stack.back()->handle();
  stack.pop_back();
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetCurrent(CUcontext* out) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = stack.empty() ? nullptr : stack.back()->handle();
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetDevice(CUdevice* out) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = 0;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxSynchronize(void) {
  G4_ENTER(kCurrent);
  const auto ctx = current();
  {
    Lock lock(world().mutex);
    G4_TRY(check_wait(lock, *ctx, "cuCtxSynchronize"));
    G4_TRY(check_unsafe(lock, "cuCtxSynchronize"));
  }
  return synchronize(ctx);
}

G4_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
  G4_ENTER(kCurrent);
  std::shared_ptr<Context> ctx;
  {
    Lock lock(world().mutex);
    G4_TRY(find(lock, handle, &ctx));
    G4_TRY(check_wait(lock, *ctx, "cuCtxSynchronize"));
    G4_TRY(check_unsafe(lock, "cuCtxSynchronize"));
  }
  return synchronize(ctx);
}

G4_API CUresult cuCtxGetFlags(unsigned* out) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = current()->flags;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxSetFlags(unsigned flags) {
  G4_ENTER(kCurrent);
  if (flags & ~0xFFu) return CUDA_ERROR_INVALID_VALUE;
  current()->flags = flags;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetId(CUcontext handle, unsigned long long* out) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  std::shared_ptr<Context> ctx = current();
  if (handle) G4_TRY(find(lock, handle, &ctx));
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  *out = ctx->id;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetApiVersion(CUcontext, unsigned* out) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = 3020;  // what every driver since 3.2 says
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  G4_ENTER(kCurrent);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetLimit(size_t* out, int limit) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (limit < 0 || limit >= CU_LIMIT_COUNT) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *out = current()->limits[limit];
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxSetLimit(int limit, size_t value) {
  G4_ENTER(kCurrent);
  if (limit < 0 || limit >= CU_LIMIT_COUNT) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  current()->limits[limit] = value;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxGetCacheConfig(int* out) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = current()->cache_config;
  return CUDA_SUCCESS;
}

G4_API CUresult cuCtxSetCacheConfig(int config) {
  G4_ENTER(kCurrent);
  if (config < 0 || config > 3) return CUDA_ERROR_INVALID_VALUE;
  current()->cache_config = config;
  return CUDA_SUCCESS;
}
