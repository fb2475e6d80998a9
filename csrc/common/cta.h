// The words a kernel is written in that differ between nvcc and the host compiler: how it is declared, who a thread is,
// barriers, shared memory, atomics, fences and 16-byte accesses. Kernel files include this and nothing of CUDA's own.
//
//   G4_KERNEL(g4_name, G4NameParams, 256) {   // p: const G4NameParams&, cta: Cta
//     G4_SHARED(float, scratch);              // dynamic shared memory
//     scratch[cta.tid()] = ...;
//     G4_SYNC(cta);
//   }
//
// On the host a thread is a fibre; every barrier and every collective goes through G4SoftOps::join.
#ifndef G4_CTA_H
#define G4_CTA_H

#include <stdint.h>

#if defined(__CUDACC__)

#define G4_FN __device__ __forceinline__
#define G4_GPU 1
#define G4_UNROLL _Pragma("unroll")

namespace g4 {
struct Cta {
  G4_FN int tid() const { return threadIdx.x; }
  G4_FN int lane() const { return threadIdx.x & 31; }
  G4_FN int warp() const { return threadIdx.x >> 5; }
  G4_FN int threads() const { return blockDim.x; }
  G4_FN int block_x() const { return blockIdx.x; }
  G4_FN int block_y() const { return blockIdx.y; }
  G4_FN int grid_x() const { return gridDim.x; }
  G4_FN int grid_y() const { return gridDim.y; }
};

G4_FN void fence_device() { __threadfence(); }
G4_FN uint32_t atomic_add(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }

// Dynamic shared memory of the launch.
G4_FN int dynamic_shared_bytes(Cta) {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return (int)bytes;
}

G4_FN void dependency_launch(Cta) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
G4_FN void dependency_wait(Cta) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
}  // namespace g4

#define G4_KERNEL_BODY(name, Params, enter, ...)                                          \
  static __device__ __forceinline__ void name##_body(g4::Cta cta, const Params& p);       \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                               \
      name(const __grid_constant__ Params p) { enter(g4::Cta{}); name##_body(g4::Cta{}, p); } \
  static __device__ __forceinline__ void name##_body(g4::Cta cta, const Params& p)

#define G4_SHARED(type, name)                                      \
  extern __shared__ __align__(128) unsigned char g4_shared_base[]; \
  type* name = reinterpret_cast<type*>(g4_shared_base)

#define G4_SYNC(cta) __syncthreads()
#define G4_SYNC_WARP(cta) __syncwarp()

#else

#include <cstring>

#include "../soft/abi.h"

#define G4_FN static inline
#define G4_GPU 0
#define G4_UNROLL

namespace g4 {
struct Cta {
  G4SoftThread* self;
  int tid() const { return (int)self->tid; }
  int lane() const { return (int)(self->tid & 31); }
  int warp() const { return (int)(self->tid >> 5); }
  int threads() const { return (int)self->block_dim[0]; }
  int block_x() const { return (int)self->block_idx[0]; }
  int block_y() const { return (int)self->block_idx[1]; }
  int grid_x() const { return (int)self->grid_dim[0]; }
  int grid_y() const { return (int)self->grid_dim[1]; }
};

static inline void fence_device() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline uint32_t atomic_add(uint32_t* p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }

static inline int dynamic_shared_bytes(Cta cta) { return (int)cta.self->shared_bytes; }

static inline void dependency_launch(Cta cta) { cta.self->ops->dependency_launch(cta.self); }
static inline void dependency_wait(Cta cta) { cta.self->ops->dependency_wait(cta.self); }

// A named collective on the host: every thread of the scope passes its argument, the last to arrive runs `fn` once.
#define G4_JOIN(cta, scope, arg, fn) (cta).self->ops->join((cta).self, scope, arg, fn, __FILE__, __LINE__)
}  // namespace g4

#define G4_KERNEL_BODY(name, Params, enter, ...)                                               \
  static void name##_body(g4::Cta cta, const Params& p);                                       \
  extern "C" void name(G4SoftThread* self, const void* params) {                               \
    enter(g4::Cta{self});                                                                      \
    name##_body(g4::Cta{self}, *static_cast<const Params*>(params));                           \
  }                                                                                            \
  static void name##_body(g4::Cta cta, const Params& p)

#define G4_SHARED(type, name) type* name = static_cast<type*>(cta.self->shared)

#define G4_SYNC(cta) G4_JOIN(cta, G4_SCOPE_BLOCK, nullptr, nullptr)
#define G4_SYNC_WARP(cta) G4_JOIN(cta, G4_SCOPE_WARP, nullptr, nullptr)

#endif

namespace g4 {

// Dependent launch: a kernel's blocks may start while the kernel before it in the stream still runs. Until
// dependency_wait returns nothing may be read that another kernel of the stream writes (weights may), and nothing may
// be written. Every kernel waits, also one that needs nothing: else the kernel after it could pass the one before it.
// The next kernel's blocks may start as soon as all blocks of this one have: they take what room is left and wait in
// turn. A launch that is not dependent, and the runtime makes no other today, waits for nothing here.
G4_FN void kernel_enter(Cta cta) {
  dependency_launch(cta);
  dependency_wait(cta);
}

// A kernel, and one that waits by itself, after it has asked for weights.
#define G4_KERNEL(name, Params, threads_max) G4_KERNEL_BODY(name, Params, g4::kernel_enter, threads_max)
#define G4_KERNEL_THAT_WAITS(name, Params, threads_max) \
  G4_KERNEL_BODY(name, Params, g4::dependency_launch, threads_max)

// 16 bytes moved by one instruction.
struct alignas(16) Vec16 {
  uint32_t w[4];
};

#if G4_GPU
G4_FN Vec16 load16(const void* p) {
  const uint4 v = *static_cast<const uint4*>(p);
  return Vec16{{v.x, v.y, v.z, v.w}};
}
// Weights are read once a step: keep them out of L1.
G4_FN Vec16 load16_streaming(const void* p) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
  return v;
}
G4_FN void store16(void* p, Vec16 v) { *static_cast<uint4*>(p) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]); }
#else
static inline Vec16 load16(const void* p) { return *static_cast<const Vec16*>(p); }
static inline Vec16 load16_streaming(const void* p) { return *static_cast<const Vec16*>(p); }
static inline void store16(void* p, Vec16 v) { *static_cast<Vec16*>(p) = v; }
#endif

// ---- bf16 ----

// Widening is exact.
G4_FN float bf16_to_f32(uint16_t b) {
  const uint32_t u = (uint32_t)b << 16;
#if G4_GPU
  return __uint_as_float(u);
#else
  float f;
  std::memcpy(&f, &u, 4);
  return f;
#endif
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
G4_FN uint16_t f32_to_bf16(float f) {
  uint32_t u;
#if G4_GPU
  u = __float_as_uint(f);
#else
  std::memcpy(&u, &f, 4);
#endif
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// The value a float has after a rounding point "to bf16".
G4_FN float round_bf16(float f) { return bf16_to_f32(f32_to_bf16(f)); }

}  // namespace g4

#endif
