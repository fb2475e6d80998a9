// Folds over the threads of a warp or a block, for whole warps: maxima, integer sums, and float sums over a fixed tree.
//
// Test: csrc/tests/row_test.cpp, tests/sampler, csrc/tests/step_test.cpp (step_begin), csrc/tests/expert_test.cpp
#ifndef G4_FOLDS_H
#define G4_FOLDS_H

#include "../gemma4_kernels.h"
#include "cta.h"

namespace g4 {

typedef unsigned long long u64;

// Two sums at once.
struct IntPair {
  int first, second;
};

#if G4_GPU
G4_FN uint32_t warp_max(Cta, uint32_t v) { return __reduce_max_sync(0xffffffffu, v); }
G4_FN u64 warp_max(Cta, u64 v) {
  G4_UNROLL
  for (int stride = 16; stride > 0; stride /= 2) {
    const u64 other = __shfl_xor_sync(0xffffffffu, v, stride);
    v = other > v ? other : v;
  }
  return v;
}
// Binary tree over the lanes, strides 16 to 1.
G4_FN float warp_sum(Cta, float v) {
  G4_UNROLL
  for (int stride = 16; stride > 0; stride /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, stride);
  return v;
}
G4_FN u64 warp_scan(Cta cta, u64 v) {
  G4_UNROLL
  for (int stride = 1; stride < G4_WARP; stride *= 2) {
    const u64 other = __shfl_up_sync(0xffffffffu, v, stride);
    if (cta.lane() >= stride) v += other;
  }
  return v;
}
G4_FN u64 block_max(Cta cta, u64 v, u64* scratch) {
  v = warp_max(cta, v);
  if (cta.lane() == 0) scratch[cta.warp()] = v;
  G4_SYNC(cta);
  v = warp_max(cta, cta.lane() < cta.threads() / G4_WARP ? scratch[cta.lane()] : 0ull);
  G4_SYNC(cta);
  return v;
}
G4_FN u64 block_sum(Cta cta, u64 v, u64* scratch) {
  v = warp_scan(cta, v);
  if (cta.lane() == G4_WARP - 1) scratch[cta.warp()] = v;
  G4_SYNC(cta);
  v = 0;
  for (int w = 0; w < cta.threads() / G4_WARP; w++) v += scratch[w];
  G4_SYNC(cta);
  return v;
}
G4_FN void shared_add(u64* p, u64 v) { atomicAdd(p, v); }
// Sums over the threads before this one. scratch: shared memory, one pair a warp, that nobody may still be reading.
G4_FN IntPair block_scan_before(Cta cta, IntPair own, IntPair* scratch) {
  IntPair sum = own;  // inclusive within the warp
  G4_UNROLL
  for (int stride = 1; stride < G4_WARP; stride *= 2) {
    const int a = __shfl_up_sync(0xffffffffu, sum.first, stride), b = __shfl_up_sync(0xffffffffu, sum.second, stride);
    if (cta.lane() >= stride) sum.first += a, sum.second += b;
  }
  if (cta.lane() == G4_WARP - 1) scratch[cta.warp()] = sum;
  G4_SYNC(cta);
  IntPair before = {sum.first - own.first, sum.second - own.second};
  for (int w = 0; w < cta.warp(); w++) before.first += scratch[w].first, before.second += scratch[w].second;
  return before;
}
#else
template <class T>
static void max_join(void* const* args, uint32_t count) {
  T best = 0;
  for (uint32_t i = 0; i < count; i++) best = *static_cast<T*>(args[i]) > best ? *static_cast<T*>(args[i]) : best;
  for (uint32_t i = 0; i < count; i++) *static_cast<T*>(args[i]) = best;
}
static inline void sum_join(void* const* args, uint32_t count) {
  u64 sum = 0;
  for (uint32_t i = 0; i < count; i++) sum += *static_cast<u64*>(args[i]);
  for (uint32_t i = 0; i < count; i++) *static_cast<u64*>(args[i]) = sum;
}
static inline void scan_join(void* const* args, uint32_t count) {
  u64 sum = 0;
  for (uint32_t i = 0; i < count; i++) sum = *static_cast<u64*>(args[i]) += sum;
}
static inline void pair_scan_join(void* const* args, uint32_t count) {
  IntPair sum = {0, 0};
  for (uint32_t i = 0; i < count; i++) {
    IntPair* at = static_cast<IntPair*>(args[i]);
    const IntPair own = *at;
    *at = sum;
    sum.first += own.first, sum.second += own.second;
  }
}
// A binary tree over a power of two of floats, the sum given to everyone.
static inline void float_tree_join(void* const* args, uint32_t count) {
  float lane[G4_ROW_LANES];
  for (uint32_t i = 0; i < count; i++) lane[i] = *static_cast<float*>(args[i]);
  for (uint32_t stride = count / 2; stride > 0; stride /= 2)
    for (uint32_t i = 0; i < stride; i++) lane[i] = lane[i] + lane[i + stride];
  for (uint32_t i = 0; i < count; i++) *static_cast<float*>(args[i]) = lane[0];
}
G4_FN uint32_t warp_max(Cta cta, uint32_t v) { return G4_JOIN(cta, G4_SCOPE_WARP, &v, max_join<uint32_t>), v; }
G4_FN u64 warp_max(Cta cta, u64 v) { return G4_JOIN(cta, G4_SCOPE_WARP, &v, max_join<u64>), v; }
G4_FN float warp_sum(Cta cta, float v) { return G4_JOIN(cta, G4_SCOPE_WARP, &v, float_tree_join), v; }
G4_FN u64 warp_scan(Cta cta, u64 v) { return G4_JOIN(cta, G4_SCOPE_WARP, &v, scan_join), v; }
G4_FN u64 block_max(Cta cta, u64 v, u64*) { return G4_JOIN(cta, G4_SCOPE_BLOCK, &v, max_join<u64>), v; }
G4_FN u64 block_sum(Cta cta, u64 v, u64*) { return G4_JOIN(cta, G4_SCOPE_BLOCK, &v, sum_join), v; }
G4_FN IntPair block_scan_before(Cta cta, IntPair v, IntPair*) {
  return G4_JOIN(cta, G4_SCOPE_BLOCK, &v, pair_scan_join), v;
}
G4_FN void shared_add(u64* p, u64 v) { *p += v; }  // fibres of a block share one thread
#endif

}  // namespace g4

#endif
