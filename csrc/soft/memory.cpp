#include "memory.h"

#include <cstring>
#include <map>

#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"
#include "stream.h"

namespace g4soft {
namespace {

// Host ranges of cuMemHostRegister, by start. Under the world's mutex.
std::map<uintptr_t, size_t>& registered() {
  static auto* all = new std::map<uintptr_t, size_t>;
  return *all;
}

size_t charge(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

CUresult allocate(Lock&, CUdeviceptr* out, size_t bytes, bool managed) {
  World& w = world();
  if (w.live_bytes + charge(bytes) > options().memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* p = w.device().alloc(bytes, current().get(), 0, managed);
  if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
  w.live_bytes += charge(bytes);
  G4_COUNT(allocations);
  G4_COUNT(live_allocations);
  G4_COUNT(live_bytes, bytes);
  *out = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

// Takes the allocation back; a broken guard zone sticks.
void release_device(Context& ctx, uintptr_t p) {
  Allocation a;
  int broken = 0;
  {
    Lock lock(world().mutex);
    Arena& arena = world().device();
    if (!arena.find(p, 1, &a, true) || !arena.release(reinterpret_cast<void*>(p), &broken)) return;
    world().live_bytes -= a.charged();
  }
  G4_COUNT(frees);
  G4_UNCOUNT(live_allocations);
  G4_UNCOUNT(live_bytes, a.bytes);
  if (broken && options().check_guards)
    make_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS, "guard zones of a freed allocation are broken (see above)");
}

bool is_registered(uintptr_t p, size_t bytes) {
  auto it = registered().upper_bound(p);
  if (it == registered().begin()) return false;
  --it;
  return p - it->first < it->second && it->second - (p - it->first) >= bytes;
}

}  // namespace

CUresult place_of(uintptr_t p, size_t bytes, Place* out) {
  World& w = world();
  Allocation a;
  if (w.device().contains(p)) {
    if (!w.device().find(p, bytes, &a)) return CUDA_ERROR_INVALID_VALUE;
    *out = a.managed ? Place::kManaged : Place::kDevice;
    return CUDA_SUCCESS;
  }
  if (w.pinned().contains(p)) {
    if (!w.pinned().find(p, bytes, &a)) return CUDA_ERROR_INVALID_VALUE;
    *out = Place::kPinned;
    return CUDA_SUCCESS;
  }
  *out = is_registered(p, bytes) ? Place::kPinned : Place::kPageable;
  return CUDA_SUCCESS;
}

bool still_there(uintptr_t p, size_t bytes) {
  World& w = world();
  if (w.device().contains(p)) return w.device().find(p, bytes, nullptr, true);
  if (w.pinned().contains(p)) return w.pinned().find(p, bytes, nullptr, true);
  return true;
}

void free_owned(Lock&, const Context* ctx) {
  World& w = world();
  if (!w.has_memory()) return;
  const Arena::Released device = w.device().release_owner(ctx), pinned = w.pinned().release_owner(ctx);
  w.live_bytes -= device.charged;
  w.live_pinned_bytes -= pinned.charged;
  G4_UNCOUNT(live_allocations, device.count);
  G4_UNCOUNT(live_bytes, device.bytes);
  G4_UNCOUNT(live_pinned_bytes, pinned.bytes);
}

}  // namespace g4soft

using namespace g4soft;

// ---- Device memory -------------------------------------------------------------------------------------------------

static CUresult allocate_now(CUdeviceptr* out, size_t bytes, bool managed, const char* function) {
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(armed(Startup::kAllocation, function));
  Lock lock(world().mutex);
  return allocate(lock, out, bytes, managed);
}

G4_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  G4_ENTER(kUnsafe);
  return allocate_now(out, bytes, false, "cuMemAlloc");
}

G4_API CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  G4_ENTER(kUnsafe);
  if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE;  // attach global, attach host
  return allocate_now(out, bytes, true, "cuMemAllocManaged");
}

G4_API CUresult cuMemFree_v2(CUdeviceptr p) {
  G4_ENTER(kUnsafe);
  if (!p) return CUDA_SUCCESS;
  G4_TRY(armed(Startup::kFree, "cuMemFree"));
  const auto ctx = current();
  Allocation a;
  if (!world().device().find(p, 1, &a) || a.address != p) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(synchronize(ctx));  // work in flight may use it
  release_device(*ctx, p);
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  G4_ENTER(kCurrent);
  if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  const uint64_t total = options().memory_bytes;
  *total_bytes = total;
  *free_bytes = total > world().live_bytes ? total - world().live_bytes : 0;
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr p) {
  G4_ENTER(kCurrent);
  Allocation a;
  if (!world().device().find(p, 1, &a) && !world().pinned().find(p, 1, &a)) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = a.address;
  if (bytes) *bytes = a.bytes;
  return CUDA_SUCCESS;
}

G4_API CUresult cuPointerGetAttribute(void* out, int attribute, CUdeviceptr p) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Allocation a;
  const bool device = world().device().find(p, 1, &a), pinned = !device && world().pinned().find(p, 1, &a);
  if (!device && !pinned) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<const void**>(out) = a.owner; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(out) = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(out) = p; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (device && !a.managed) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(out) = p;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned char*>(out) = a.managed; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(out) = 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(out) = a.address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(out) = a.bytes; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t bytes, CUmemLocation, unsigned, CUstream stream) {
  G4_ENTER(kCurrent);
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  Allocation a;
  if (!world().device().find(p, bytes, &a) || !a.managed) return CUDA_ERROR_INVALID_VALUE;
  return check_not_capturing(lock, *s, "cuMemPrefetchAsync");
}

G4_API CUresult cuMemAdvise_v2(CUdeviceptr p, size_t bytes, int, CUmemLocation) {
  G4_ENTER(kCurrent);
  Allocation a;
  return world().device().find(p, bytes, &a) && a.managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- Stream-ordered allocation: the address is given at once, freeing waits for its turn ---------------------------

static CUresult allocate_async(CUdeviceptr* out, size_t bytes, CUstream stream, const char* function) {
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(armed(Startup::kAllocation, function));
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  G4_TRY(check_not_capturing(lock, *s, function));  // no allocation nodes here
  G4_TRY(check_legacy(lock, *s, function));
  return allocate(lock, out, bytes, false);
}

G4_API CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  G4_ENTER(kCurrent);
  return allocate_async(out, bytes, stream, "cuMemAllocAsync");
}

G4_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  G4_ENTER(kCurrent);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  return allocate_async(out, bytes, stream, "cuMemAllocFromPoolAsync");
}

G4_API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream) {
  G4_ENTER(kCurrent);
  G4_TRY(armed(Startup::kFree, "cuMemFreeAsync"));
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  G4_TRY(check_not_capturing(lock, *s, "cuMemFreeAsync"));
  G4_TRY(check_legacy(lock, *s, "cuMemFreeAsync"));
  if (!world().device().retire(reinterpret_cast<void*>(p))) return CUDA_ERROR_INVALID_VALUE;
  Operation op;
  op.even_if_broken = true;
  op.run = [ctx = s->ctx, p] { release_device(*ctx, p); };
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;
}

// ---- Pinned host memory --------------------------------------------------------------------------------------------

static CUresult allocate_pinned(void** out, size_t bytes, unsigned flags) {
  if (!out || !bytes || (flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(armed(Startup::kAllocation, "cuMemHostAlloc"));
  Lock lock(world().mutex);
  World& w = world();
  if (w.live_pinned_bytes + charge(bytes) > options().pinned_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!(*out = w.pinned().alloc(bytes, current().get(), flags, false))) return CUDA_ERROR_OUT_OF_MEMORY;
  w.live_pinned_bytes += charge(bytes);
  G4_COUNT(pinned_allocations);
  G4_COUNT(live_pinned_bytes, bytes);
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  G4_ENTER(kUnsafe);
  return allocate_pinned(out, bytes, flags);
}

G4_API CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  G4_ENTER(kUnsafe);
  return allocate_pinned(out, bytes, 0);
}

G4_API CUresult cuMemFreeHost(void* p) {
  G4_ENTER(kUnsafe);
  G4_TRY(armed(Startup::kFree, "cuMemFreeHost"));
  const auto ctx = current();
  Allocation a;
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  if (!world().pinned().find(address, 1, &a) || a.address != address) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(synchronize(ctx));
  int broken = 0;
  {
    Lock lock(world().mutex);
    if (!world().pinned().release(p, &broken)) return CUDA_ERROR_INVALID_VALUE;
    world().live_pinned_bytes -= a.charged();
  }
  G4_COUNT(pinned_frees);
  G4_UNCOUNT(live_pinned_bytes, a.bytes);
  if (broken && options().check_guards)
    make_sticky(*ctx, CUDA_ERROR_ILLEGAL_ADDRESS, "guard zones of freed pinned memory are broken (see above)");
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* p, unsigned flags) {
  G4_ENTER(kCurrent);
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  Place place;
  G4_TRY(place_of(reinterpret_cast<uintptr_t>(p), 1, &place));
  if (place != Place::kPinned) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemHostGetFlags(unsigned* flags, void* p) {
  G4_ENTER(kCurrent);
  Allocation a;
  if (!flags || !world().pinned().find(reinterpret_cast<uintptr_t>(p), 1, &a)) return CUDA_ERROR_INVALID_VALUE;
  *flags = a.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemHostRegister_v2(void* p, size_t bytes, unsigned flags) {
  G4_ENTER(kUnsafe);
  if (!p || !bytes || (flags & ~15u)) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(armed(Startup::kAllocation, "cuMemHostRegister"));
  Lock lock(world().mutex);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  for (const auto& range : registered())
    if (begin < range.first + range.second && range.first < begin + bytes)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  registered()[begin] = bytes;
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemHostUnregister(void* p) {
  G4_ENTER(kUnsafe);
  G4_TRY(synchronize(current()));
  Lock lock(world().mutex);
  return registered().erase(reinterpret_cast<uintptr_t>(p)) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
