// g4_expert_group: pairs (a row at one of its experts) by expert, cut into tiles that one block of a product takes.
//
//   list   pairs of expert 0, of expert 1, ...; tiles of expert e: ceil(count_e / tile_tokens), each tile_tokens pairs
//   tile   {expert, first, count}: pairs list[first] to list[first + count - 1], experts ascending; *tile_count of them
//
// expert [pairs] i32, -1 for a pair without one; list [pairs]; tile: as many as there can be, which is pairs where
// pairs <= experts, else at most experts + (pairs - experts) / tile_tokens (a tile that is not full is its expert's
// last). Where a pair stands among its expert's is left to the order of arrival: a product does not depend on it.
// Reads pairs * 8 bytes, writes pairs * 4 and 12 a tile.
// Grid: 1 block of 256 threads; 2112 bytes of shared memory (256 counts, 256 places, 8 pairs of sums).
//
// Idea: no host: the grid of the products is what tiles there can be, and blocks beyond the count end at once. Counting
// and placing are integer atomics in shared memory, both prefix sums one scan. A thread asks for eight pairs at once:
// a step's 8 to 1024 pairs cost one latency of memory a pass, a chunk's 16384 eight.
// Versions: one, not timed on a GPU. More blocks would need a second launch.
// Test: csrc/tests/expert_test.cpp
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/folds.h"

namespace {

constexpr int kThreads = G4_EXPERTS_MAX;  // thread e makes the tiles of expert e

struct Shared {
  uint32_t count[G4_EXPERTS_MAX];
  uint32_t place[G4_EXPERTS_MAX];  // where the next pair of an expert goes
  g4::IntPair scratch[kThreads / G4_WARP];
};

static_assert(sizeof(Shared) == 2112, "what the launcher gives");

constexpr int kAtOnce = 8;

// f(pair, expert) for every pair of this thread that has one.
template <class F>
G4_FN void each_pair(g4::Cta cta, const G4ExpertGroupParams& p, F f) {
  for (int first = cta.tid(); first < p.pairs; first += kAtOnce * kThreads) {
    int expert[kAtOnce];
    G4_UNROLL
    for (int i = 0; i < kAtOnce; i++) expert[i] = first + i * kThreads < p.pairs ? p.expert[first + i * kThreads] : -1;
    G4_UNROLL
    for (int i = 0; i < kAtOnce; i++)
      if (expert[i] >= 0) f(first + i * kThreads, expert[i]);
  }
}

}  // namespace

G4_KERNEL(g4_expert_group, G4ExpertGroupParams, G4_EXPERTS_MAX) {
  G4_SHARED(Shared, sh);
  const int tid = cta.tid();
#if !G4_GPU
  if (cta.threads() != kThreads || p.experts < 1 || p.experts > G4_EXPERTS_MAX || p.tile_tokens < 1)
    cta.self->ops->trap(cta.self, "expert_group: threads, experts or tile", __FILE__, __LINE__);
#endif
  sh->count[tid] = 0;
  G4_SYNC(cta);
  each_pair(cta, p, [&](int, int expert) { g4::atomic_add(&sh->count[expert], 1); });
  G4_SYNC(cta);
  const int count = (int)sh->count[tid], tiles = (count + p.tile_tokens - 1) / p.tile_tokens;
  const g4::IntPair before = g4::block_scan_before(cta, {count, tiles}, sh->scratch);
  sh->place[tid] = (uint32_t)before.first;
  for (int t = 0; t < tiles; t++) {
    const int first = t * p.tile_tokens, left = count - first;
    p.tile[before.second + t] = {tid, before.first + first, left < p.tile_tokens ? left : p.tile_tokens};
  }
  if (tid == kThreads - 1) *p.tile_count = before.second + tiles;
  G4_SYNC(cta);
  each_pair(cta, p, [&](int pair, int expert) { p.list[g4::atomic_add(&sh->place[expert], 1)] = pair; });
}
