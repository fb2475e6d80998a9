// The tensor-core product and the loads that feed it, by name. Kernels on the host do not use them: their twins work at
// the level of a K slab (see the kernels).
#ifndef G4_MMA_H
#define G4_MMA_H

#include "cta.h"

#if !G4_GPU
#include <vector>
#endif

namespace g4 {

#if G4_GPU
// d[16x8] += a[16x16] b[16x8]: bf16 operands, f32 accumulators in place.
// a: {row g, row g+8} x {depth pair, depth pair + 8}; b: {depth pair, depth pair + 8}; d: rows g, g+8, columns 2t,
// 2t+1.
G4_FN void mma_16x8x16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
G4_FN void mma_16x8x16(Cta, float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) { mma_16x8x16(d, a, b0, b1); }

// Loads that stay where the source puts them among products and other such loads: a volatile asm is not moved across
// another, where the compiler would sink a plain load to just before its use and empty the pipeline.
G4_FN Vec16 load16_ordered(const void* p) {  // kept in L1: a second warp reads the same bytes soon
  Vec16 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
  return v;
}
G4_FN void load8_ordered_if(uint32_t v[2], const void* p, bool inside) {  // zeros when not inside; p is not read then
  asm volatile(
      "{ .reg .pred q; setp.ne.s32 q, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @q ld.global.v2.u32 {%0,%1}, [%2]; }"
      : "=&r"(v[0]), "=&r"(v[1]) : "l"(p), "r"((int)inside));
}

// cp.async: 16 bytes from global to shared memory, zeros when not `inside` (src is then only an address, not read).
G4_FN void copy16_async(Cta, void* shared, const void* src, bool inside) {
  const uint32_t dst = (uint32_t)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(inside ? 16 : 0) : "memory");
}
G4_FN void copy_async_commit(Cta) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
G4_FN void copy_async_wait(Cta) {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
#else
// The same words for tests that run GPU bodies on fibres. One product is a warp collective that adds its sixteen terms
// singly in the depth order of pack_layout.h, so a body that is right gives the bits of the kernels' host twins.
struct MmaOperands {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};
static inline void mma_warp(void* const* args, uint32_t) {
  float a[16][16], b[8][16];
  for (int lane = 0; lane < 32; lane++) {
    const MmaOperands& o = *static_cast<const MmaOperands*>(args[lane]);
    const int g = lane / 4, depth = lane % 4 * 4;
    for (int e = 0; e < 8; e++)  // register e / 2: rows g, g + 8 of the first depth pair, then of the second
      a[g + e / 2 % 2 * 8][depth + e / 4 * 2 + e % 2] = bf16_to_f32((uint16_t)(o.a[e / 2] >> e % 2 * 16));
    for (int e = 0; e < 4; e++) b[g][depth + e] = bf16_to_f32((uint16_t)(o.b[e / 2] >> e % 2 * 16));
  }
  for (int lane = 0; lane < 32; lane++)
    for (int e = 0; e < 4; e++) {
      float& d = static_cast<const MmaOperands*>(args[lane])->d[e];
      for (int k = 0; k < 16; k++) d += a[lane / 4 + e / 2 * 8][k] * b[lane % 4 * 2 + e % 2][k];
    }
}
static inline void mma_16x8x16(Cta cta, float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  MmaOperands o = {d, a, {b0, b1}};
  G4_JOIN(cta, G4_SCOPE_WARP, &o, mma_warp);
}
static inline Vec16 load16_ordered(const void* p) { return load16(p); }
static inline void load8_ordered_if(uint32_t v[2], const void* p, bool inside) {
  v[0] = v[1] = 0;
  if (inside) std::memcpy(v, p, 8);
}

// A copy lands at the wait that asks for its group and no earlier.
struct CopyQueue {
  struct Copy {
    void* shared;
    const void* src;
    int group;
  };
  std::vector<Copy> copies;
  int group = 0;
};
static inline CopyQueue& copy_queue(Cta cta) {
  static thread_local CopyQueue queues[1024];
  return queues[cta.tid()];
}
static inline void copy16_async(Cta cta, void* shared, const void* src, bool inside) {
  copy_queue(cta).copies.push_back({shared, inside ? src : nullptr, copy_queue(cta).group});
}
static inline void copy_async_commit(Cta cta) { copy_queue(cta).group++; }
template <int pending>
static inline void copy_async_wait(Cta cta) {
  CopyQueue& q = copy_queue(cta);
  size_t kept = 0;
  for (const CopyQueue::Copy& c : q.copies) {
    if (c.group >= q.group - pending) q.copies[kept++] = c;
    else if (c.src) std::memcpy(c.shared, c.src, 16);
    else std::memset(c.shared, 0, 16);
  }
  q.copies.resize(kept);
}
#endif

// Steps of a depth and the slab count S(K) of the numeric contract.
G4_FN int depth_steps(int k) { return (k + 15) / 16; }
G4_FN int slab_count(int k) {
  const int n = depth_steps(k);
  for (int s = 8; s > 1; s /= 2)
    if (n % s == 0 && n / s >= 11) return s;
  return 1;
}

}  // namespace g4

#endif
