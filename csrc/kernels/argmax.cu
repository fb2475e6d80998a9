// g4_argmax: best logit of each tile of 4096 a row; g4_pick folds the tiles.
//
//   tile_best[row][tile] = max, tile_id[row][tile] = lowest id that has it, over ids of the tile that are not
//   suppressed and not minus infinity; a NaN anywhere in the tile, suppressed or not: id G4_TOKEN_NAN; no competitor:
//   G4_TOKEN_MASKED (tile_best is then minus infinity; a best of -0 is written as +0, which equals it)
//
// logits [rows][vocab] f32, tile_best and tile_id [rows][tiles], tiles = ceil(vocab / 4096).
// Reads rows * vocab * 4 bytes (1 MB a row), writes 8 bytes a tile.
// Grid: x = tiles, y = rows; 256 threads; 64 bytes of shared memory.
//
// Idea: a candidate is one 64-bit key, value in order-preserving bits above the inverted id, so "greatest value, then
// lowest id, NaN above all" is an integer maximum: any order of folding gives the same answer. 64 blocks a row at
// 262144.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/step_test.cpp (argmax)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/math.h"

namespace {

typedef unsigned long long Key;  // 0: does not compete; all ones: NaN

constexpr Key kKeyNan = ~0ull;
constexpr uint32_t kNegativeInfinity = 0xff800000u;
constexpr int kPerThread = G4_ARGMAX_TILE / 256;

G4_FN Key key_of(float logit, int id) {
  if (logit != logit) return kKeyNan;
  const uint32_t u = g4::f32_bits(logit + 0.0f);  // -0 becomes +0: they tie
  if (u == kNegativeInfinity) return 0;
  const uint32_t ordered = u & 0x80000000u ? ~u : u | 0x80000000u;
  return (Key)ordered << 32 | (uint32_t)~id;
}

G4_FN float key_value(Key key) {
  const uint32_t ordered = (uint32_t)(key >> 32);
  return g4::f32_from_bits(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

G4_FN Key max_key(Key a, Key b) { return a > b ? a : b; }

G4_FN bool suppressed(const G4ArgmaxParams& p, int id) {
  for (int i = 0; i < p.suppressed_count; i++)
    if (p.suppressed[i] == id) return true;
  return false;
}

#if !G4_GPU
void max_join(void* const* args, uint32_t count) {
  Key best = 0;
  for (uint32_t i = 0; i < count; i++) best = max_key(best, *static_cast<Key*>(args[i]));
  for (uint32_t i = 0; i < count; i++) *static_cast<Key*>(args[i]) = best;
}
#endif

// Greatest key of the block, in every thread; shared: one Key a warp.
G4_FN Key block_max(g4::Cta cta, Key key, Key* shared) {
#if G4_GPU
  G4_UNROLL
  for (int stride = 16; stride > 0; stride /= 2) key = max_key(key, __shfl_xor_sync(0xffffffffu, key, stride));
  if (cta.lane() == 0) shared[cta.warp()] = key;
  G4_SYNC(cta);
  G4_UNROLL
  for (int w = 0; w < 8; w++) key = max_key(key, shared[w]);
  return key;
#else
  (void)shared;
  G4_JOIN(cta, G4_SCOPE_BLOCK, &key, max_join);
  return key;
#endif
}

}  // namespace

G4_KERNEL(g4_argmax, G4ArgmaxParams, 256) {
  G4_SHARED(Key, shared);
  const int begin = cta.block_x() * G4_ARGMAX_TILE;
  const float* logits = p.logits + (long long)cta.block_y() * p.vocab;
  float logit[kPerThread];
  G4_UNROLL
  for (int j = 0; j < kPerThread; j++) {  // all loads first: one trip to L2 for the sixteen
    const int id = begin + j * 256 + cta.tid();
    logit[j] = id < p.vocab ? logits[id] : g4::f32_from_bits(kNegativeInfinity);
  }
  Key best = 0;
  G4_UNROLL
  for (int j = 0; j < kPerThread; j++) {
    const int id = begin + j * 256 + cta.tid();
    const Key key = key_of(logit[j], id);
    if (key > best && (key == kKeyNan || !suppressed(p, id))) best = key;
  }
  best = block_max(cta, best, shared);
  if (cta.tid() != 0) return;
  const long long at = (long long)cta.block_y() * p.tiles + cta.block_x();
  const bool good = best != 0 && best != kKeyNan;
  p.tile_best[at] = good ? key_value(best) : g4::f32_from_bits(kNegativeInfinity);
  p.tile_id[at] = good ? (int)~(uint32_t)best : best == 0 ? G4_TOKEN_MASKED : G4_TOKEN_NAN;
}
