// out[pair][r] = bf16(sum over slabs of chains of w[e][r][k] x[row of pair][k]): the products of a mixture of experts,
// each pair (a row at one of its experts) with the bits that gemm.cu gives that row alone with that expert's matrix.
//
// Shapes   weight [experts] of packed [ceil(n/16)][ceil(k/16)][32][8] bf16; x [rows][k] (gate | up: row pair / top) or
//          [pairs][k] (down: row pair), rows x_stride apart; out [pairs][n], rows out_stride apart; tiles and list as
//          expert_group.cu makes them. t1: tiles of at most 8 pairs; t8: of at most 64.
// Grid     (t1: groups of 2 row tiles a warp, 8/S row sets a block; t8: blocks of 8 row tiles; the most tiles there
//          can be). A block beyond the tile count ends at once, so one grid serves every routing of a bucket or chunk.
// Moves    2 n k bytes of weights for each tile, the second and further ones of an expert from L2; 2 k + 2 n a pair.
//          One token of the 26B-A4B reads 8 experts a layer: 63 MB gate | up, 32 MB down.
// Fast by  what gemm.cuh does: direct (t1) where a step's tokens leave an expert about 8 or fewer, staged (t8) for
//          chunks. Only the row of x that a lane loads and the row of out that it stores differ, looked up once a
//          block. Tiles of one expert are neighbours in the grid: they share its weights in L2.
// Tried    one version each, not timed on a GPU. t1 keeps 32 weight rows a block at S = 8 (64 at S = 4): 352 blocks for
//          one token's gate | up, 352 for its down. A block's first weights wait for count, tile and pair, one after
//          the other; asked for at once (volatile), count and tile cost t8 a spill on sm_90a.
// Test     csrc/tests/expert_test.cpp, as it is and with every file built with -DG4_GEMM_BODIES.
#include "gemm.cuh"

namespace g4 {

constexpr int kExpertRowTiles = 2;  // of a warp of t1

// Token tiles of 8: 1 or 8.
template <int T>
G4_FN void expert_gemm(Cta cta, const G4ExpertGemmParams& p) {
  if (cta.block_y() >= *p.tile_count) return;
  const G4ExpertTile tile = p.tile[cta.block_y()];
  const int32_t* pair = p.list + tile.first;
  G4GemmParams g;
  g.weight = p.weight;
  g.x = p.x;
  g.out = p.out;
  g.tokens = tile.count;
  g.n = p.n;
  g.k = p.k;
  g.x_stride = p.x_stride;
  g.out_stride = p.out_stride;
  g.slabs = p.slabs;
  g.softcap = 0.0f;
#if !G4_GPU
  const int shared = T == 1 ? kGemmWarps * G4_WARP * 16 * kExpertRowTiles : gemm_tiled_shared_bytes(0);
  gemm_check(cta, g, T * G4_TILE_N, shared);
#endif
#if G4_GPU || defined(G4_GEMM_BODIES)
  constexpr int kLoads = T == 1 ? 1 : T * G4_TILE_N * 8 / G4_GEMM_THREADS;
  GemmRowsOfPairs<kLoads> rows;
  rows.first_tile = tile.expert * gemm_tiles(p.n);
  rows.pair = pair;
  G4_UNROLL
  for (int i = 0; i < kLoads; i++) {
    const int token = T == 1 ? cta.lane() / 4 : (cta.tid() + i * G4_GEMM_THREADS) / 8;  // as the body's loads have it
    rows.x_row[i] = token < tile.count ? pair[token] / p.pairs_a_row : 0;
  }
  if constexpr (T == 1) gemm_direct<1, kExpertRowTiles, GemmOutBf16>(cta, g, rows);
  else gemm_staged<T, kGemmTiledRowTiles, GemmOutBf16>(cta, g, cta.block_x(), 0, rows);
#else
  g.weight += (long long)tile.expert * gemm_tiles(p.n) * depth_steps(p.k) * kGemmTileElements;
  const int group_tiles = T == 1 ? gemm_group_tiles(kExpertRowTiles, p.slabs) : kGemmTiledRowTiles;
  GemmHostTask task = {&g, cta.block_x(), cta.block_x() + 1, 1, group_tiles, 0, tile.count, pair, p.pairs_a_row};
  G4_JOIN(cta, G4_SCOPE_BLOCK, &task, gemm_host_block<GemmOutBf16>);
#endif
}

}  // namespace g4

G4_KERNEL(g4_expert_gemm_t1, G4ExpertGemmParams, G4_GEMM_BOUNDS_1) { g4::expert_gemm<1>(cta, p); }
G4_KERNEL(g4_expert_gemm_t8, G4ExpertGemmParams, G4_GEMM_BOUNDS_8) { g4::expert_gemm<8>(cta, p); }
