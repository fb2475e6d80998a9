// g4_pack: a row-major weight into fragment order, once at load.
//
//   dst[packed_offset(row, depth)] = src[row][depth], +0 where row >= n or depth >= k (csrc/common/pack_layout.h)
//
// src [n][k] bf16, dst [ceil(n/16)][ceil(k/16)][32][8] bf16. Reads n * k * 2 bytes, writes the padded size once.
// Grid: x = ceil(ceil(n/16) * ceil(k/16) / 8); 256 threads; no shared memory.
//
// Idea: a warp makes one 16x16 tile, a lane one 16-byte store of its whole fragment, so writes are contiguous; the
// eight warps of a block take tiles that are neighbours in depth, so that reads of one row are 256 contiguous bytes a
// block.
// Versions: one, not timed on a GPU (runs once a weight, at load).
// Test: csrc/tests/row_test.cpp (pack)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/pack_layout.h"

namespace {

constexpr int kTilesPerBlock = 8;

// src[row][depth .. depth + 3] as two words, +0 outside the weight. k a multiple of 4 makes the 8-byte load aligned.
G4_FN void load4(const G4PackParams& p, int row, int depth, uint32_t out[2]) {
  out[0] = out[1] = 0;
  if (row >= p.n) return;
  const uint16_t* s = p.src + (long long)row * p.k + depth;
  if (p.k % 4 == 0 && depth < p.k) {
    const uint32_t* w = reinterpret_cast<const uint32_t*>(s);
    out[0] = w[0];
    out[1] = w[1];
    return;
  }
  G4_UNROLL
  for (int j = 0; j < 4; j++)
    if (depth + j < p.k) out[j / 2] |= (uint32_t)s[j] << (j % 2 * 16);
}

}  // namespace

G4_KERNEL(g4_pack, G4PackParams, 256) {
  const int steps = (p.k + G4_TILE_K - 1) / G4_TILE_K;
  const long long tiles = (long long)((p.n + G4_TILE_M - 1) / G4_TILE_M) * steps;
  const long long tile = (long long)cta.block_x() * kTilesPerBlock + cta.warp();
  if (tile >= tiles) return;
  const int row = (int)(tile / steps) * G4_TILE_M + cta.lane() / 4;
  const int depth = (int)(tile % steps) * G4_TILE_K + cta.lane() % 4 * 4;
  uint32_t low[2], high[2];
  load4(p, row, depth, low);
  load4(p, row + 8, depth, high);
  // Words of a lane: depths 4t, 4t+1 of rows g and g+8, then depths 4t+2, 4t+3 of both.
  g4::store16(p.dst + (tile * G4_WARP + cta.lane()) * 8, g4::Vec16{{low[0], high[0], low[1], high[1]}});
}
