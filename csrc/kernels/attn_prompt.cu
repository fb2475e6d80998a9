// Attention of a prompt chunk: positions [start, start + rows) of one sequence, causal, with an optional window.
//
//   out[i, h] = sum over keys j in (pos - W, pos] of softmax(q[i, h] . k[j, h / group]) v[j, h / group], bf16,
//   pos = start + i
//
// q, out [rows][heads][HD]; K, V in fragment order (kv_layout.h): positions before recent.first_page *
// recent.page_tokens from the pages of kv, later ones from the chunk scratch `recent`; all from kv when recent.k is
// null.
//
// Bytes moved: 4 HD for each (key, KV head, tile of 16 / group queries), from memory once and from L2 otherwise.
//
// Idea: the decode kernel's segment and merge, word for word, so a prompt token has the bits a decode step gives it.
// The 16 rows of a tile are 16 / group neighbouring queries times the group heads of one KV head; the block walks the
// segments any of them sees, ascending, and keeps O, m and l in registers. A segment a query does not see merges as a
// selection.
//
// A tile of 16 rows reads K and V once for 16 / group queries only; several tiles a block would read them less often
// without a change of bits. Wants a GPU to be worth tuning.
//
// A V of a later query of the tile that is infinite or NaN reaches an earlier one as 0 x NaN: such a sequence ends with
// a NaN record either way. V is a normed row, finite unless the model's state already overflowed.
//
// Launch: 256 threads; grid (ceil(rows / (16 / group)), kv_heads).
// Dynamic shared bytes = 32 HD + 98 SEG + 50432: h256_s128 71168, h256_s32 61760, h512_s256 91904, h512_s32 69952.
//
// Versions, 2048 tokens of the 12B on an H200, sliding / global:
//   K and V to registers     308 us / 813 us, 84 TFLOP/s
//   through a ring of copies not timed on a GPU; predicted half of that (attention.h says why)
// Test: csrc/tests/attention_test.cpp
#include "../common/attention.h"
#include "../common/attention_host.h"

namespace g4 {

// The window, unless a planted mistake changes it.
G4_FN int prompt_window(int window) {
#if defined(G4_PLANT_NO_WINDOW)
  (void)window;
  return 0;
#elif defined(G4_PLANT_WINDOW_PLUS_ONE)
  return window > 0 ? window + 1 : 0;
#else
  return window;
#endif
}

struct TileRange {
  AttnTile tile;
  int segment_first;
  int segment_last;
};

#if G4_ATTN_BY_LANES
template <int HD, int SEG>
G4_FN void run_tile(Cta cta, AttnShared<HD, SEG>& sh, const TileRange& work) {
  LaneSums<HD> sums, next;
  G4_UNROLL
  for (int half = 0; half < 2; half++) sums.m[half] = kMinusInfinity, sums.l[half] = 0.0f;
  G4_UNROLL
  for (int j = 0; j < sums.kTiles; j++)
    G4_UNROLL
    for (int e = 0; e < 4; e++) sums.o[j][e] = 0.0f;

  stage_q<HD, SEG>(cta, sh, work.tile);
  int parity = 0;
  for (int s = work.segment_first; s <= work.segment_last; s++, parity ^= 1) {
    segment<HD, SEG>(cta, sh, work.tile, s, parity, next);
    G4_UNROLL
    for (int half = 0; half < 2; half++) {
      const Merge g = merge_of(sums.m[half], sums.l[half], next.m[half], next.l[half]);
      G4_UNROLL
      for (int j = 0; j < sums.kTiles; j++)
        G4_UNROLL
        for (int e = half * 2; e < half * 2 + 2; e++) sums.o[j][e] = merge(g, sums.o[j][e], next.o[j][e]);
      sums.l[half] = merge(g, sums.l[half], next.l[half]);
      sums.m[half] = g.m;
    }
  }
  const int tid = cta.tid();
  G4_UNROLL
  for (int half = 0; half < 2; half++) {
    const int r = tid % 32 / 4 + half * 8;
    if (r >= work.tile.rows) continue;
    G4_UNROLL
    for (int j = 0; j < sums.kTiles; j++)
      store_pair(work.tile.out + row_offset(work.tile, r, HD) + lane_column<HD>(tid, j),
                 f32_to_bf16(sums.o[j][half * 2] / sums.l[half]) |
                     (uint32_t)f32_to_bf16(sums.o[j][half * 2 + 1] / sums.l[half]) << 16);
  }
}
#else
template <int HD, int SEG>
static void tile_join(void* const* args, uint32_t) {
  static thread_local TileSums sums, next;
  const TileRange& work = *static_cast<const TileRange*>(args[0]);
  const int rows = work.tile.rows;
  for (int r = 0; r < rows; r++) {
    sums.m[r] = kMinusInfinity, sums.l[r] = 0.0f;
    for (int d = 0; d < HD; d++) sums.o[r][d] = 0.0f;
  }
  for (int s = work.segment_first; s <= work.segment_last; s++) {
    segment_on_host(work.tile, HD, SEG, s, next);
    for (int r = 0; r < rows; r++) {
      const Merge g = merge_of(sums.m[r], sums.l[r], next.m[r], next.l[r]);
      for (int d = 0; d < HD; d++) sums.o[r][d] = merge(g, sums.o[r][d], next.o[r][d]);
      sums.l[r] = merge(g, sums.l[r], next.l[r]);
      sums.m[r] = g.m;
    }
  }
  for (int r = 0; r < rows; r++) {
    uint16_t* out = work.tile.out + row_offset(work.tile, r, HD);
    for (int d = 0; d < HD; d++) out[d] = f32_to_bf16(sums.o[r][d] / sums.l[r]);
  }
}
#endif

template <int HD, int SEG>
G4_FN void attn_prompt(Cta cta, const G4AttnPromptParams& p) {
  using Shared = AttnShared<HD, SEG>;
  static_assert(sizeof(Shared) <= kAttnSharedBytes<HD, SEG>, "what the launcher gives");
  G4_SHARED(Shared, sh);
#if !G4_GPU
  if (p.kv.head_dim != HD || cta.self->shared_bytes < sizeof(Shared))
    cta.self->ops->trap(cta.self, "attn_prompt: head_dim or shared bytes", __FILE__, __LINE__);
#endif
  const int group = p.heads / p.kv.kv_heads, queries = G4_ATTN_ROWS / group;
  const int kv_head = cta.block_y(), first = cta.block_x() * queries;
  if (first >= p.rows) return;
  const int count = p.rows - first < queries ? p.rows - first : queries;
  const long long at = ((long long)first * p.heads + kv_head * group) * HD;
  TileRange work;
  work.tile = AttnTile{p.q + at, p.out + at, &p.kv, &p.recent,
                       p.recent.k ? p.recent.first_page * p.recent.page_tokens : 0x7fffffff, p.slot, kv_head, p.heads,
                       group, count * group, p.start + first, prompt_window(p.window)};
  work.segment_first = tile_key_begin(work.tile) / SEG;
  work.segment_last = tile_key_last(work.tile) / SEG;
#if G4_ATTN_BY_LANES
  run_tile<HD, SEG>(cta, *sh, work);
#else
  (void)sh;
  G4_JOIN(cta, G4_SCOPE_BLOCK, &work, (tile_join<HD, SEG>));
#endif
}

}  // namespace g4

#define G4_ATTN_PROMPT(HD, SEG) \
  G4_KERNEL(g4_attn_prompt_h##HD##_s##SEG, G4AttnPromptParams, G4_ATTN_THREADS) { g4::attn_prompt<HD, SEG>(cta, p); }

G4_ATTN_PROMPT(256, 128)
G4_ATTN_PROMPT(256, 32)
G4_ATTN_PROMPT(512, 256)
G4_ATTN_PROMPT(512, 32)
