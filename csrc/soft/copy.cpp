// Copies and fills: when the host's memory is read and written, and who waits.
//
//            asynchronous call                        synchronous call (legacy stream)
//   H -> D   pageable: read at the call               pageable: waits for the stream, reads, returns before it arrives
//            pinned: read when the copy runs          pinned: waits for the copy
//   D -> H   pageable: waits for the copy             waits for the copy
//            pinned: written when the copy runs
//   D -> D   never waits                              never waits
#include <cstring>

#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"
#include "memory.h"
#include "stream.h"
#include "work.h"

namespace g4soft {
namespace {

std::string text_of(uintptr_t p, size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%zu bytes at 0x%zx", bytes, (size_t)p);
  return text;
}

void count_copy(const Copy& c) {
  switch (c.direction) {
    case Direction::kHostToDevice: G4_COUNT(copies_h2d); G4_COUNT(bytes_h2d, c.bytes); break;
    case Direction::kDeviceToHost: G4_COUNT(copies_d2h); G4_COUNT(bytes_d2h, c.bytes); break;
    case Direction::kDeviceToDevice: G4_COUNT(copies_d2d); G4_COUNT(bytes_d2d, c.bytes); break;
    case Direction::kHostToHost: G4_COUNT(copies_h2h); G4_COUNT(bytes_h2h, c.bytes); break;
  }
}

bool on_device(Place p) { return p == Place::kDevice || p == Place::kManaged; }

struct Request {
  uintptr_t dst, src;
  size_t bytes;
  bool src_is_device, dst_is_device, inferred;  // what the name of the call says; inferred: from the pointers
  bool async;
  const char* function;
};

// Fills in the direction; says whether a host side is pageable.
CUresult classify(const Request& r, Copy* copy, bool* pageable_src, bool* pageable_dst) {
  Place src, dst;
  G4_TRY(place_of(r.src, r.bytes, &src));
  G4_TRY(place_of(r.dst, r.bytes, &dst));
  if (!r.inferred) {
    // A pinned pointer passes as a device pointer (unified addresses); plain host memory never does, nor the reverse.
    if (r.src_is_device ? src == Place::kPageable : src == Place::kDevice) return CUDA_ERROR_INVALID_VALUE;
    if (r.dst_is_device ? dst == Place::kPageable : dst == Place::kDevice) return CUDA_ERROR_INVALID_VALUE;
  }
  const bool from_device = r.inferred ? on_device(src) : r.src_is_device;
  const bool to_device = r.inferred ? on_device(dst) : r.dst_is_device;
  copy->direction = from_device ? (to_device ? Direction::kDeviceToDevice : Direction::kDeviceToHost)
                                : (to_device ? Direction::kHostToDevice : Direction::kHostToHost);
  *pageable_src = src == Place::kPageable;
  *pageable_dst = dst == Place::kPageable;
  return CUDA_SUCCESS;
}

CUresult copy(const Request& r, CUstream stream) {
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  if (!r.bytes) return CUDA_SUCCESS;
  if (!r.dst || !r.src) return CUDA_ERROR_INVALID_VALUE;
  Copy c;
  c.dst = r.dst, c.src = r.src, c.bytes = r.bytes;
  bool pageable_src, pageable_dst;
  G4_TRY(classify(r, &c, &pageable_src, &pageable_dst));
  if (s->capture) return capture_copy(lock, *s, std::move(c), pageable_src || pageable_dst);
  G4_TRY(check_legacy(lock, *s, r.function));
  const bool device_only = c.direction == Direction::kDeviceToDevice;
  const bool wait = r.async ? pageable_dst : !device_only && !(pageable_src && c.direction == Direction::kHostToDevice);
  if (pageable_src) {
    if (!r.async) wait_for(lock, *s, s->submitted);
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(r.src);
    c.staged.assign(bytes, bytes + r.bytes);
    G4_COUNT(pageable_h2d);
  }
  if (pageable_dst) G4_COUNT(pageable_d2h);
  Operation op;
  op.copy = true;
  op.run = [ctx = s->ctx, c = std::move(c)] { execute(*ctx, c); };
  const uint64_t seq = submit(lock, *s, std::move(op));
  if (!wait) return CUDA_SUCCESS;
  wait_for(lock, *s, seq);
  return (CUresult)s->ctx->sticky.load();
}

CUresult fill(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned element, size_t width, size_t height,
              CUstream stream, const char* function) {
  Lock lock(world().mutex);
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, stream, &s));
  if (!width || !height) return CUDA_SUCCESS;
  if (dst % element || (height > 1 && (pitch < width * element || pitch % element))) return CUDA_ERROR_INVALID_VALUE;
  Place place;
  G4_TRY(place_of(dst, (height - 1) * pitch + width * element, &place));
  if (place == Place::kPageable) return CUDA_ERROR_INVALID_VALUE;
  Fill f;
  f.dst = dst, f.pitch = pitch, f.value = value, f.element_bytes = element, f.width = width, f.height = height;
  if (s->capture) return capture_fill(lock, *s, f);
  G4_TRY(check_legacy(lock, *s, function));
  Operation op;
  op.copy = true;
  op.run = [ctx = s->ctx, f] { execute(*ctx, f); };
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;  // fills never wait for the device
}

}  // namespace

void execute(Context& ctx, const Copy& c) {
  std::shared_lock<std::shared_mutex> executing(execution());
  const uintptr_t src = c.staged.empty() ? c.src : reinterpret_cast<uintptr_t>(c.staged.data());
  if (c.staged.empty() && !still_there(c.src, c.bytes))
    return make_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS, "a copy reads freed memory: " + text_of(c.src, c.bytes));
  if (!still_there(c.dst, c.bytes))
    return make_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS, "a copy writes freed memory: " + text_of(c.dst, c.bytes));
  std::memmove(reinterpret_cast<void*>(c.dst), reinterpret_cast<const void*>(src), c.bytes);
  count_copy(c);
}

void execute(Context& ctx, const Fill& f) {
  std::shared_lock<std::shared_mutex> executing(execution());
  const size_t span = (f.height - 1) * f.pitch + f.width * f.element_bytes;
  if (!still_there(f.dst, span))
    return make_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS, "a fill writes freed memory: " + text_of(f.dst, span));
  for (size_t row = 0; row < f.height; row++) {
    void* p = reinterpret_cast<void*>(f.dst + row * f.pitch);
    switch (f.element_bytes) {
      case 1: std::memset(p, (int)(f.value & 0xFF), f.width); break;
      case 2: std::fill_n(static_cast<uint16_t*>(p), f.width, (uint16_t)f.value); break;
      default: std::fill_n(static_cast<uint32_t*>(p), f.width, f.value); break;
    }
  }
  G4_COUNT(memsets);
}

}  // namespace g4soft

using namespace g4soft;

// ---- Driver functions ----------------------------------------------------------------------------------------------

static uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

G4_API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t n) {
  G4_ENTER(kUnsafe);
  return copy({dst, address(src), n, false, true, false, false, "cuMemcpyHtoD"}, nullptr);
}
G4_API CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t n) {
  G4_ENTER(kUnsafe);
  return copy({address(dst), src, n, true, false, false, false, "cuMemcpyDtoH"}, nullptr);
}
G4_API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  G4_ENTER(kUnsafe);
  return copy({dst, src, n, true, true, false, false, "cuMemcpyDtoD"}, nullptr);
}
G4_API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  G4_ENTER(kUnsafe);
  return copy({dst, src, n, false, false, true, false, "cuMemcpy"}, nullptr);
}
G4_API CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n) {
  G4_ENTER(kUnsafe);
  return copy({dst, src, n, true, true, false, false, "cuMemcpyPeer"}, nullptr);
}
G4_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, CUstream stream) {
  G4_ENTER(kCurrent);
  return copy({dst, address(src), n, false, true, false, true, "cuMemcpyHtoDAsync"}, stream);
}
G4_API CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, CUstream stream) {
  G4_ENTER(kCurrent);
  return copy({address(dst), src, n, true, false, false, true, "cuMemcpyDtoHAsync"}, stream);
}
G4_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
  G4_ENTER(kCurrent);
  return copy({dst, src, n, true, true, false, true, "cuMemcpyDtoDAsync"}, stream);
}
G4_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
  G4_ENTER(kCurrent);
  return copy({dst, src, n, false, false, true, true, "cuMemcpyAsync"}, stream);
}
G4_API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n, CUstream stream) {
  G4_ENTER(kCurrent);
  return copy({dst, src, n, true, true, false, true, "cuMemcpyPeerAsync"}, stream);
}

#define G4_MEMSET(bits, Value)                                                                                     \
  G4_API CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, Value value, size_t n) {                                   \
    G4_ENTER(kUnsafe);                                                                                             \
    return fill(dst, 0, value, bits / 8, n, 1, nullptr, "cuMemsetD" #bits);                                        \
  }                                                                                                                \
  G4_API CUresult cuMemsetD##bits##Async(CUdeviceptr dst, Value value, size_t n, CUstream stream) {                \
    G4_ENTER(kCurrent);                                                                                            \
    return fill(dst, 0, value, bits / 8, n, 1, stream, "cuMemsetD" #bits "Async");                                 \
  }                                                                                                                \
  G4_API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, Value value, size_t w, size_t h) {         \
    G4_ENTER(kUnsafe);                                                                                             \
    return fill(dst, pitch, value, bits / 8, w, h, nullptr, "cuMemsetD2D" #bits);                                  \
  }                                                                                                                \
  G4_API CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, Value value, size_t w, size_t h,         \
                                           CUstream stream) {                                                      \
    G4_ENTER(kCurrent);                                                                                            \
    return fill(dst, pitch, value, bits / 8, w, h, stream, "cuMemsetD2D" #bits "Async");                           \
  }
G4_MEMSET(8, unsigned char)
G4_MEMSET(16, unsigned short)
G4_MEMSET(32, unsigned int)
#undef G4_MEMSET
