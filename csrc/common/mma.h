// The tensor-core product of the GPU build, by name. The host twin works at the level of a K slab (see the kernels).
#ifndef G4_MMA_H
#define G4_MMA_H

#include "cta.h"

namespace g4 {

#if G4_GPU
// d[16x8] += a[16x16] b[16x8]: bf16 operands, f32 accumulators in place.
// a: {row g, row g+8} x {depth pair, depth pair + 8}; b: {depth pair, depth pair + 8}; d: rows g, g+8, columns 2t, 2t+1.
G4_FN void mma_16x8x16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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
