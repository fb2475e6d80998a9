// g4_synthetic: a tensor of made-up values, written where a loaded one would stand (--synthetic, and the cache of
// bench).
//
//   value(i) = (center + 2 (h >> (32 - bits)) - (2^bits - 1)) * scale,   h = mix(low(i) * 0x9e3779b9 + key +
//              high(i) * 0x7f4a7c15),   mix = the finaliser of MurmurHash3, low and high the words of i
//
// i = row * k + depth counts the elements of the row-major [n][k], so a value depends on its tensor (key) and its place
// there and on nothing else: not on the order it is stored in, the launch, or the device. The bracket is an integer of
// at most 256 and scale a power of two, so every value is an exact bf16: nothing rounds, so host and GPU cannot differ.
// dst: packed: [ceil(n/16)][ceil(k/16)][32][8] as g4_pack writes it, +0 where row >= n or depth >= k; else [n][k].
// Bytes moved: 2 n k written (packed: the padded size), nothing read.
// Grid: x = ceil(groups of 8 elements / 2048); 256 threads; no shared memory.
//
// Idea: no state and no source: a thread makes the eight elements of one 16-byte store, neighbours store neighbours, so
// a model of 24 GB is written at about the speed of memory instead of read from a disk. A thread makes eight groups, so
// that starting threads does not cost more than the values on the software device.
// Versions: one, not timed on a GPU (runs once a tensor, at start).
// Test: csrc/tests/synthetic_test.cpp
#include "../gemma4_kernels.h"
#include "../common/cta.h"

namespace {

constexpr int kGroupsPerThread = 8;

G4_FN uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

G4_FN uint32_t value(const G4SyntheticParams& p, long long i) {
  const uint64_t at = (uint64_t)i;
  const uint32_t h = mix((uint32_t)at * 0x9e3779b9u + p.key + (uint32_t)(at >> 32) * 0x7f4a7c15u);
  const int odd = 2 * (int)(h >> (32 - p.bits)) - ((1 << p.bits) - 1);
  return g4::f32_to_bf16((float)(p.center + odd) * p.scale);
}

// Row and depth of element j of a lane: the order of pack_layout.h, read backwards.
G4_FN uint32_t packed_value(const G4SyntheticParams& p, int row, int depth, int j) {
  row += j / 2 % 2 * 8;
  depth += j / 4 * 2 + j % 2;
  return row < p.n && depth < p.k ? value(p, (long long)row * p.k + depth) : 0;
}

}  // namespace

G4_KERNEL(g4_synthetic, G4SyntheticParams, 256) {
  const int steps = (p.k + G4_TILE_K - 1) / G4_TILE_K;
  const long long count = p.n * p.k;
  const long long groups = p.packed ? (p.n + G4_TILE_M - 1) / G4_TILE_M * steps * G4_WARP : (count + 7) / 8;
  for (int turn = 0; turn < kGroupsPerThread; turn++) {
    const long long group = ((long long)cta.block_x() * kGroupsPerThread + turn) * cta.threads() + cta.tid();
    if (group >= groups) return;
    uint32_t e[8];
    if (p.packed) {
      const long long tile = group / G4_WARP;
      const int lane = (int)(group % G4_WARP);
      const int row = (int)(tile / steps) * G4_TILE_M + lane / 4;
      const int depth = (int)(tile % steps) * G4_TILE_K + lane % 4 * 4;
      G4_UNROLL
      for (int j = 0; j < 8; j++) e[j] = packed_value(p, row, depth, j);
    } else {
      G4_UNROLL
      for (int j = 0; j < 8; j++) e[j] = value(p, group * 8 + j);
      if (group * 8 + 8 > count) {
        G4_UNROLL
        for (int j = 0; j < 8; j++)
          if (group * 8 + j < count) p.dst[group * 8 + j] = (uint16_t)e[j];
        return;
      }
    }
    const g4::Vec16 v = {{e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16}};
    g4::store16(p.dst + group * 8, v);
  }
}
