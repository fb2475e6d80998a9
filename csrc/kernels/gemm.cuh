// Words shared by the matrix products (gemm.cu, logits.cu, gemm_tiled.cu, expert_gemm.cu): geometry, policies for rows
// and outputs, two GPU bodies.
//
//   out[t][r] = round(sum over slabs s ascending of chain_s), chain_s = one ascending chain of m16n8k16 products over
//   the steps [s * L, (s + 1) * L) from +0, L = ceil(k/16) / S(k). The total starts as chain_0, not as zero plus it.
//
// direct (1 or 2 token tiles of 8): bound by the weight stream. A block is S slabs x 8/S row sets; a warp owns R row
//   tiles of 16 and one slab. Weights go straight to registers, one 16-byte load a lane = one A fragment, D steps ahead
//   of the products; activations (8 bytes a lane, from L1 or L2) ride in the same slots. A block walks row groups
//   blockIdx.x, + gridDim.x, ... and loads the next group's first steps before it folds this one, so the stream has no
//   gap. Slab sums meet in shared memory as raw fragments (16-byte accesses) and are added in ascending order.
// staged (4, 8 or 16 token tiles, and the prompt GEMM): a block is RB row tiles x all its tokens; slabs run one after
//   the other with totals in registers. Weights and activations pass through shared memory by cp.async, chunks of 64
//   depths in as many stages as the launch gives bytes for. RB = 8: a warp 2 row tiles x half the token tiles; RB = 4
//   or 2 for small n, where 128 rows a block would leave most of the machine idle: more L2 reads of x for more blocks.
//
//   Why not weights to registers, as it was and as direct does: ptxas gives every global load of a loop the same
//   scoreboard, and a wait for one is a wait for all. With a refill after every step each step paid a whole latency:
//   2.2 us a chunk of 4 on an H200 (t8 `down` 525 us, t4 69 us, against 28 of memory time), whatever the load.
//
// Launch, mirrored by the Rust launcher. 256 threads; T = token tiles of the instance; all integer arithmetic:
//   tiles = ceil(n / 16)
//   direct, T in {1, 2}:
//     R            = largest of 4 (2 when T = 1), 2, 1 with ceil(tiles / (R * 8 / S)) >= 112 (132 when T = 1), else 1
//     groups       = ceil(tiles / (R * 8 / S)), turns = ceil(groups / 264)   264 = 2 blocks on each SM of an H200
//     grid.x       = groups when turns = 1, ceil(groups / 2) when 2 (no block has two groups while others have one),
//                    else 264
//     shared bytes = 4096 * R * T                                 4 KiB .. 32 KiB
//   staged, T in {4, 8, 16}:
//     RB           = 8 if ceil(tiles / 8) >= 200, else 2 when T = 4, 4 when T = 8 or 16
//     grid.x       = ceil(tiles / RB)
//     stage        = 2048 * RB + 1280 * T bytes
//     shared bytes = stage * (10, 8, 6, 5, 4 or 3: the most that fit the budget); the kernel reads the count off the
//                    bytes it was given. Budget: 96 KiB anywhere; where a block may have 227 KiB, 112 KiB at RB = 8 and
//                    T < 16 (two blocks an SM), else 200 KiB (one).
//   g4_gemm_tiled, g4_logits_tiled: T = 8, RB = 8, grid.x = ceil(tiles / 8) * ceil(tokens / 64)
// Grids are one-dimensional; that of expert_gemm.cu has the tiles of pairs for a second dimension. Above 48 KiB the
// function needs its dynamic shared memory attribute.
#ifndef G4_GEMM_CUH
#define G4_GEMM_CUH

#include "../common/cta.h"
#include "../common/mma.h"
#include "../common/pack_layout.h"
#include "../gemma4_kernels.h"

namespace g4 {

// ---- Geometry -------------------------------------------------------------------------------------------------------

constexpr int kGemmWarps = G4_GEMM_THREADS / G4_WARP;
constexpr int kGemmBlocksMin = 112;       // fewer row groups than this: fewer rows a block
constexpr int kGemmBlocksMinOne = 132;    // the same at T = 1
constexpr int kGemmBlocksMax = 264;       // more row groups than this: a block walks several
constexpr int kGemmChunkSteps = 4;        // steps of one staged buffer (128 bytes a token)
constexpr int kGemmStageBudget = 96 * 1024;  // fits every device; a launcher that knows better gives more
constexpr int kGemmRowBlocksMin = 200;    // fewer blocks of 128 rows than this: fewer rows a block
constexpr int kGemmTokenBytes = 160;      // a token's row of a staged buffer: 128 + 32, so that 8-byte reads of four
                                          // tokens by a half-warp touch all 32 banks once
constexpr int kGemmTiledRowTiles = 8;
constexpr int kGemmTileElements = G4_TILE_M * G4_TILE_K;

static_assert(kGemmWarps == 8, "slabs (at most 8) times row sets fill the warps of a block");
static_assert(kGemmTiledRowTiles * G4_TILE_M == G4_GEMM_TILED_ROWS, "4 warps of 2 row tiles");
static_assert(G4_GEMM_TILED_TOKENS == 64 && G4_ROWS_DECODE_MAX == 16 * G4_TILE_N, "instances hold up to 128 tokens");
static_assert(kGemmTokenBytes % 16 == 0 && kGemmTokenBytes % 128 == 32, "16-byte copies, conflict-free 8-byte reads");
static_assert(kGemmChunkSteps * G4_TILE_K * 2 == 128, "eight 16-byte pieces a token and buffer");

G4_FN int gemm_tiles(int n) { return (n + G4_TILE_M - 1) / G4_TILE_M; }

// Row tiles of one group of a direct block whose warps own `row_tiles` each.
G4_FN int gemm_group_tiles(int row_tiles, int slabs) { return row_tiles * (kGemmWarps / slabs); }
G4_FN int gemm_groups(int n, int row_tiles, int slabs) {
  const int group = gemm_group_tiles(row_tiles, slabs);
  return (gemm_tiles(n) + group - 1) / group;
}

// R of a direct instance.
G4_FN int gemm_row_tiles(int token_tiles, int n, int slabs) {
  int r = token_tiles == 1 ? 2 : 4;
  const int least = token_tiles == 1 ? kGemmBlocksMinOne : kGemmBlocksMin;
  while (r > 1 && gemm_groups(n, r, slabs) < least) r /= 2;
  return r;
}

// RB of a staged instance.
G4_FN int gemm_staged_row_tiles(int token_tiles, int n) {
  if ((gemm_tiles(n) + kGemmTiledRowTiles - 1) / kGemmTiledRowTiles >= kGemmRowBlocksMin) return kGemmTiledRowTiles;
  return token_tiles == 4 ? 2 : 4;
}

G4_FN int gemm_grid(int token_tiles, int n, int slabs) {
  if (token_tiles >= 4) {
    const int rows = gemm_staged_row_tiles(token_tiles, n);
    return (gemm_tiles(n) + rows - 1) / rows;
  }
  const int groups = gemm_groups(n, gemm_row_tiles(token_tiles, n, slabs), slabs);
  return groups <= kGemmBlocksMax ? groups : groups <= 2 * kGemmBlocksMax ? (groups + 1) / 2 : kGemmBlocksMax;
}

template <int TT, int RB>
constexpr int gemm_stage_bytes = RB * kGemmChunkSteps * kGemmTileElements * 2 + TT * G4_TILE_N * kGemmTokenBytes;

// Stages that fit: of the counts the body can wait for, the largest.
G4_FN int gemm_stage_count(int bytes, int stage_bytes) {
  const int fit = bytes / stage_bytes;
  return fit >= 10 ? 10 : fit >= 8 ? 8 : fit > 6 ? 6 : fit;
}
G4_FN int gemm_staged_bytes(int token_tiles, int row_tiles, int budget) {
  const int stage = row_tiles * kGemmChunkSteps * kGemmTileElements * 2 + token_tiles * G4_TILE_N * kGemmTokenBytes;
  const int count = gemm_stage_count(budget, stage);
  return stage * (count < 3 ? 3 : count);
}

G4_FN int gemm_shared_bytes(int token_tiles, int n, int slabs, int budget = kGemmStageBudget) {
  if (token_tiles >= 4) return gemm_staged_bytes(token_tiles, gemm_staged_row_tiles(token_tiles, n), budget);
  return kGemmWarps * G4_WARP * 16 * gemm_row_tiles(token_tiles, n, slabs) * token_tiles;
}

G4_FN int gemm_tiled_token_blocks(int tokens) { return (tokens + G4_GEMM_TILED_TOKENS - 1) / G4_GEMM_TILED_TOKENS; }
G4_FN int gemm_tiled_grid(int tokens, int n) {
  return (gemm_tiles(n) + kGemmTiledRowTiles - 1) / kGemmTiledRowTiles * gemm_tiled_token_blocks(tokens);
}
G4_FN int gemm_tiled_shared_bytes(int budget = kGemmStageBudget) {
  return gemm_staged_bytes(8, kGemmTiledRowTiles, budget);
}

// Launch bounds: two blocks an SM (128 registers) where accumulators leave room.
#define G4_GEMM_BOUNDS_1 G4_GEMM_THREADS, 2
#define G4_GEMM_BOUNDS_2 G4_GEMM_THREADS, 2
#define G4_GEMM_BOUNDS_4 G4_GEMM_THREADS, 2
#define G4_GEMM_BOUNDS_8 G4_GEMM_THREADS, 2
#define G4_GEMM_BOUNDS_16 G4_GEMM_THREADS

// ---- Output policies: what happens to a total -----------------------------------------------------------------------

struct GemmOutBf16 {};
G4_FN void gemm_put(GemmOutBf16, const G4GemmParams& p, int token, int row, float total) {
  static_cast<uint16_t*>(p.out)[(long long)token * p.out_stride + row] = f32_to_bf16(total);
}

// ---- Row policies: where the matrix begins, the row of x that a token reads, the row of out that it writes ----------

struct GemmRowsSame {};
G4_FN int gemm_first_tile(const GemmRowsSame&) { return 0; }
G4_FN int gemm_x_row(const GemmRowsSame&, int, int token) { return token; }
G4_FN int gemm_out_row(const GemmRowsSame&, int token) { return token; }

// A tile of pairs (expert_gemm.cu): experts' matrices are one, row tile after row tile; a thread holds the rows of x it
// loads, by the place of the load in its code.
template <int Loads>
struct GemmRowsOfPairs {
  int first_tile;
  const int32_t* pair;  // [tokens]
  int x_row[Loads];
};
template <int Loads>
G4_FN int gemm_first_tile(const GemmRowsOfPairs<Loads>& rows) { return rows.first_tile; }
template <int Loads>
G4_FN int gemm_x_row(const GemmRowsOfPairs<Loads>& rows, int load, int) { return rows.x_row[load]; }
template <int Loads>
G4_FN int gemm_out_row(const GemmRowsOfPairs<Loads>& rows, int token) { return rows.pair[token]; }

}  // namespace g4

// G4_GEMM_BODIES: the host build runs the GPU bodies on fibres, product by product (mma.h), for gemm_test.cpp.
#if G4_GPU || defined(G4_GEMM_BODIES)

namespace g4 {

struct alignas(16) GemmSums {
  float v[4];
};
struct alignas(8) GemmPair {
  uint32_t v[2];
};

// Rows g and g + 8, tokens 2t and 2t + 1 of one fragment of totals.
template <class Out, class Rows>
G4_FN void gemm_put_fragment(const G4GemmParams& p, const Rows& rows, int row_tile, int token_tile, int lane,
                             const float total[4]) {
  G4_UNROLL
  for (int e = 0; e < 4; e++) {
    const int row = row_tile * G4_TILE_M + lane / 4 + (e >> 1) * 8;
    const int token = token_tile * G4_TILE_N + (lane & 3) * 2 + (e & 1);
    if (row < p.n && token < p.tokens) gemm_put(Out(), p, gemm_out_row(rows, token), row, total[e]);
  }
}

// ---- direct ---------------------------------------------------------------------------------------------------------

// Operands of one step on their way to the tensor cores.
template <int T, int R>
struct GemmSlot {
  Vec16 w[R];
  uint32_t b[T][2];
};

template <int T, int R, class Out, class Rows = GemmRowsSame>
G4_FN void gemm_direct(Cta cta, const G4GemmParams& p, const Rows& rows = Rows()) {
  // Steps in flight: at least 8 weight loads a lane (32 KiB a block) where the registers allow it.
  constexpr int D = R == 1 ? (T == 4 ? 4 : 8) : R == 2 ? (T == 4 ? 3 : 4) : (T == 4 ? 3 : 2);
  static_assert(R * T <= 16, "accumulators stay within 64 registers");
  G4_SHARED(GemmSums, sums);  // [warp][R][T][lane]

  const int lane = cta.lane(), slab = cta.warp() & (p.slabs - 1), row_set = cta.warp() / p.slabs;
  const int steps = depth_steps(p.k), per = steps / p.slabs, tiles = gemm_tiles(p.n);
  const int group_tiles = gemm_group_tiles(R, p.slabs), groups = gemm_groups(p.n, R, p.slabs);
  // Steps whose four depths of this lane lie below k: all but, in the last slab, the last step of some lanes.
  const int deep = (p.k - slab * per * G4_TILE_K - (lane & 3) * 4 + G4_TILE_K - 1) / G4_TILE_K;

  // Where the next D steps of weights and activations are read: advanced by D steps, reset at each new group.
  const uint16_t* w[R];
  const uint16_t* x[T];
  auto point = [&](int group) {
    G4_UNROLL
    for (int r = 0; r < R; r++) {  // a row tile past the end reads the last one; its sums are not stored
      int tile = group * group_tiles + row_set * R + r;
      if (tile >= tiles) tile = tiles - 1;
      tile += gemm_first_tile(rows);
      w[r] = p.weight + ((long long)tile * steps + slab * per) * kGemmTileElements + lane * 8;
    }
    G4_UNROLL
    for (int t = 0; t < T; t++)
      x[t] = p.x + (long long)gemm_x_row(rows, t, t * G4_TILE_N + lane / 4) * p.x_stride + slab * per * G4_TILE_K +
             (lane & 3) * 4;
  };
  // Slot i: step j = j0 + i of the slab, where j0 is the step the pointers stand at.
  auto load_weights = [&](GemmSlot<T, R>& slot, int i) {
    G4_UNROLL
    for (int r = 0; r < R; r++) slot.w[r] = load16_streaming(w[r] + i * kGemmTileElements);
  };
  auto load_x = [&](GemmSlot<T, R>& slot, int i, int j) {
    G4_UNROLL
    for (int t = 0; t < T; t++)  // tokens and depths past the end are +0
      load8_ordered_if(slot.b[t], x[t] + i * G4_TILE_K, t * G4_TILE_N + lane / 4 < p.tokens && j < deep);
  };
  auto load = [&](GemmSlot<T, R>& slot, int i, int j) {
    load_weights(slot, i);
    load_x(slot, i, j);
  };

  GemmSlot<T, R> slots[D];
  int group = cta.block_x();
  if (group >= groups) return;
  point(group);
  G4_UNROLL
  for (int i = 0; i < D; i++)
    if (i < per) load_weights(slots[i], i);
  dependency_wait(cta);  // the weights of the first steps are on their way while the kernel before this one ends
  G4_UNROLL
  for (int i = 0; i < D; i++)
    if (i < per) load_x(slots[i], i, i);

  for (; group < groups; group += cta.grid_x()) {
    const int next = group + (int)cta.grid_x();
    float acc[R][T][4] = {};
    for (int j0 = 0; j0 < per; j0 += D) {
      // What the slots are filled with while their steps are multiplied: the next D steps, or the next group's first.
      int load_j0 = j0 + D, load_end = per;
      if (load_j0 < per) {
        G4_UNROLL
        for (int r = 0; r < R; r++) w[r] += D * kGemmTileElements;
        G4_UNROLL
        for (int t = 0; t < T; t++) x[t] += D * G4_TILE_K;
      } else {
        load_j0 = 0;
        if (next < groups) point(next);
        else load_end = 0;
      }
      G4_UNROLL
      for (int i = 0; i < D; i++) {
        if (j0 + i < per) {
          G4_UNROLL
          for (int r = 0; r < R; r++)
            G4_UNROLL
            for (int t = 0; t < T; t++)
              mma_16x8x16(cta, acc[r][t], slots[i].w[r].w, slots[i].b[t][0], slots[i].b[t][1]);
        }
        if (load_j0 + i < load_end) load(slots[i], i, load_j0 + i);
      }
    }
    G4_UNROLL
    for (int r = 0; r < R; r++)
      G4_UNROLL
      for (int t = 0; t < T; t++)
        sums[((cta.warp() * R + r) * T + t) * G4_WARP + lane] =
            GemmSums{{acc[r][t][0], acc[r][t][1], acc[r][t][2], acc[r][t][3]}};
    G4_SYNC(cta);
    for (int f = cta.warp(); f < group_tiles * T; f += kGemmWarps) {  // one fragment of totals a warp and turn
      const int t = f % T, r = f / T % R, set = f / (T * R);
      const GemmSums* sum = sums + ((set * p.slabs * R + r) * T + t) * G4_WARP + lane;
      GemmSums total = sum[0];
      G4_UNROLL
      for (int s = 1; s < kGemmWarps; s++)
        if (s < p.slabs) {
          const GemmSums next_slab = sum[s * R * T * G4_WARP];
          G4_UNROLL
          for (int e = 0; e < 4; e++) total.v[e] += next_slab.v[e];
        }
      gemm_put_fragment<Out>(p, rows, group * group_tiles + set * R + r, t, lane, total.v);
    }
    G4_SYNC(cta);  // the sums are read before the next group's are written
  }
}

// ---- staged ---------------------------------------------------------------------------------------------------------

// Weight rows [row_block * 16 RB, + 16 RB), tokens [token0, token0 + TT * 8).
template <int TT, int RB, class Out, class Rows = GemmRowsSame>
G4_FN void gemm_staged(Cta cta, const G4GemmParams& p, int row_block, int token0, const Rows& rows = Rows()) {
  constexpr int WR = RB == 2 ? 2 : 4, WT = kGemmWarps / WR, R = RB / WR, TW = TT / WT, C = kGemmChunkSteps;
  constexpr int kWeights = RB * C * kGemmTileElements * 2, kStage = kWeights + TT * G4_TILE_N * kGemmTokenBytes;
  static_assert(TT % WT == 0 && R * TW <= 16, "accumulators and totals stay within 128 registers");
  static_assert(kStage == gemm_stage_bytes<TT, RB>, "what the launcher counts with");
  G4_SHARED(uint8_t, staged);  // [stage]: weights [row tile][step][lane][16 bytes], then x [token][160 bytes]

  const int tid = cta.tid(), lane = cta.lane();
  const int row_tile0 = cta.warp() % WR * R, token_tile0 = cta.warp() / WR * TW;  // of this warp, inside the block
  const int steps = depth_steps(p.k), per = steps / p.slabs, tiles = gemm_tiles(p.n), chunks = (steps + C - 1) / C;
  const int stages = gemm_stage_count(dynamic_shared_bytes(cta), kStage);

  // A thread's pieces of a chunk, 16 bytes each: weights of one lane and step, x of 8 depths. What lies past the last
  // row tile, step, token or depth becomes +0, and a product with zeros returns its accumulator.
  const int step_of = tid / G4_WARP % C;
  const uint16_t* w[(RB * C * G4_WARP) / G4_GEMM_THREADS];
  bool w_inside[(RB * C * G4_WARP) / G4_GEMM_THREADS];
  G4_UNROLL
  for (int i = 0; i < RB * C * G4_WARP / G4_GEMM_THREADS; i++) {
    const int tile = row_block * RB + (tid + i * G4_GEMM_THREADS) / (C * G4_WARP);
    w_inside[i] = tile < tiles;
    const long long step = (long long)(gemm_first_tile(rows) + tile) * steps + step_of;
    w[i] = w_inside[i] ? p.weight + step * kGemmTileElements + lane * 8 : p.weight;
  }
  const auto stage = [&](uint8_t* buffer, int chunk) {
    G4_UNROLL
    for (int i = 0; i < RB * C * G4_WARP / G4_GEMM_THREADS; i++) {
      const bool inside = w_inside[i] && chunk * C + step_of < steps;
      const uint16_t* src = inside ? w[i] + (long long)chunk * C * kGemmTileElements : p.weight;
      copy16_async(cta, buffer + (tid + i * G4_GEMM_THREADS) * 16, src, inside);
    }
    G4_UNROLL
    for (int i = 0; i < TT * G4_TILE_N * 8 / G4_GEMM_THREADS; i++) {
      const int piece = tid + i * G4_GEMM_THREADS, token = piece >> 3, depth = chunk * C * G4_TILE_K + (piece & 7) * 8;
      const bool inside = token0 + token < p.tokens && depth < p.k;
      const uint16_t* src =
          inside ? p.x + (long long)gemm_x_row(rows, i, token0 + token) * p.x_stride + depth : p.x;
      copy16_async(cta, buffer + kWeights + token * kGemmTokenBytes + (piece & 7) * 16, src, inside);
    }
  };
  const auto wait_for_oldest = [&] {  // all but the youngest stages - 2 groups have landed
    switch (stages) {
      case 3: return copy_async_wait<1>(cta);
      case 4: return copy_async_wait<2>(cta);
      case 5: return copy_async_wait<3>(cta);
      case 6: return copy_async_wait<4>(cta);
      case 8: return copy_async_wait<6>(cta);
      default: return copy_async_wait<8>(cta);
    }
  };

  for (int c = 0; c < stages - 1; c++) {
    if (c < chunks) stage(staged + c * kStage, c);
    copy_async_commit(cta);
  }
  float acc[R][TW][4] = {}, total[R][TW][4];
  int slab_end = per, at = 0, free = stages - 1;  // buffers of this chunk and of the one to be asked for
  for (int c = 0; c < chunks; c++) {
    wait_for_oldest();
    G4_SYNC(cta);  // chunk c has landed for all, and all have left the buffer that the next copies fill
    if (c + stages - 1 < chunks) stage(staged + free * kStage, c + stages - 1);
    copy_async_commit(cta);
    const uint8_t* buffer = staged + at * kStage;
    at = at + 1 == stages ? 0 : at + 1, free = free + 1 == stages ? 0 : free + 1;
    G4_UNROLL
    for (int i = 0; i < C; i++) {
      Vec16 a[R];
      GemmPair b[TW];
      G4_UNROLL
      for (int r = 0; r < R; r++) a[r] = load16(buffer + (((row_tile0 + r) * C + i) * G4_WARP + lane) * 16);
      G4_UNROLL
      for (int t = 0; t < TW; t++)
        b[t] = *reinterpret_cast<const GemmPair*>(
            buffer + kWeights + ((token_tile0 + t) * G4_TILE_N + lane / 4) * kGemmTokenBytes + (lane & 3) * 8 + i * 32);
      G4_UNROLL
      for (int t = 0; t < TW; t++)
        G4_UNROLL
        for (int r = 0; r < R; r++) mma_16x8x16(cta, acc[r][t], a[r].w, b[t].v[0], b[t].v[1]);
      if (c * C + i + 1 == slab_end) {
        G4_UNROLL
        for (int r = 0; r < R; r++)
          G4_UNROLL
          for (int t = 0; t < TW; t++)
            G4_UNROLL
            for (int e = 0; e < 4; e++) {
              total[r][t][e] = slab_end == per ? acc[r][t][e] : total[r][t][e] + acc[r][t][e];
              acc[r][t][e] = 0.0f;
            }
        slab_end += per;
      }
    }
  }
  copy_async_wait<0>(cta);
  G4_UNROLL
  for (int r = 0; r < R; r++)
    G4_UNROLL
    for (int t = 0; t < TW; t++)
      gemm_put_fragment<Out>(p, rows, row_block * RB + row_tile0 + r, token0 / G4_TILE_N + token_tile0 + t, lane,
                             total[r][t]);
}

}  // namespace g4

#endif
#if !G4_GPU
#include "gemm_host.h"
#endif

namespace g4 {

// One small-GEMM instance of T token tiles.
template <int T, class Out>
G4_FN void gemm_instance(Cta cta, const G4GemmParams& p) {
#if !G4_GPU
  gemm_check(cta, p, T * G4_TILE_N, gemm_shared_bytes(T, p.n, p.slabs, 0));
#endif
#if G4_GPU || defined(G4_GEMM_BODIES)
  if constexpr (T >= 4) {
    dependency_wait(cta);
    if (gemm_staged_row_tiles(T, p.n) == kGemmTiledRowTiles)
      gemm_staged<T, kGemmTiledRowTiles, Out>(cta, p, cta.block_x(), 0);
    else
      gemm_staged<T, T == 4 ? 2 : 4, Out>(cta, p, cta.block_x(), 0);
  } else {
    switch (gemm_row_tiles(T, p.n, p.slabs)) {
      case 4:
        if constexpr (T > 1) gemm_direct<T, 4, Out>(cta, p);
        break;
      case 2: gemm_direct<T, 2, Out>(cta, p); break;
      default: gemm_direct<T, 1, Out>(cta, p); break;
    }
  }
#else
  dependency_wait(cta);
  GemmHostTask task;
  task.params = &p;
  task.token_begin = 0;
  task.token_end = p.tokens;
  if (T >= 4) {
    task.group_begin = cta.block_x();
    task.group_end = task.group_begin + 1;
    task.group_stride = 1;
    task.group_tiles = gemm_staged_row_tiles(T, p.n);
  } else {
    const int row_tiles = gemm_row_tiles(T, p.n, p.slabs);
    task.group_begin = cta.block_x();
    task.group_stride = cta.grid_x();
    task.group_end = gemm_groups(p.n, row_tiles, p.slabs);
    task.group_tiles = gemm_group_tiles(row_tiles, p.slabs);
  }
  G4_JOIN(cta, G4_SCOPE_BLOCK, &task, gemm_host_block<Out>);
#endif
}

// Any number of tokens: block b holds row block b / token_blocks and token block b % token_blocks.
template <class Out>
G4_FN void gemm_tiled_instance(Cta cta, const G4GemmParams& p) {
  const int token_blocks = gemm_tiled_token_blocks(p.tokens);
  const int row_block = cta.block_x() / token_blocks;
  const int token0 = cta.block_x() % token_blocks * G4_GEMM_TILED_TOKENS;
#if !G4_GPU
  gemm_check(cta, p, INT32_MAX, gemm_tiled_shared_bytes(0));
#endif
#if G4_GPU || defined(G4_GEMM_BODIES)
  gemm_staged<8, kGemmTiledRowTiles, Out>(cta, p, row_block, token0);
#else
  const int token_end = token0 + G4_GEMM_TILED_TOKENS;
  GemmHostTask task = {&p, row_block, row_block + 1, 1, kGemmTiledRowTiles, token0,
                       token_end < p.tokens ? token_end : p.tokens};
  G4_JOIN(cta, G4_SCOPE_BLOCK, &task, gemm_host_block<Out>);
#endif
}

}  // namespace g4

#endif
