// Attention of decode rows over the paged cache: one query a row, every head.
//
//   out[row, h] = sum over keys j in (pos - W, pos] of softmax(q[row, h] . k[j, h / group]) v[j, h / group], bf16
//
// q, out [rows][heads][HD]; K, V pages in fragment order (kv_layout.h); part_o [items * kv_heads][group][HD] f32,
// part_ml [items * kv_heads][group][2] f32; ticket [rows * kv_heads], zero before and after.
//
// Bytes moved: 4 HD for each visible (key, KV head), once, whatever the number of heads; with more than one segment a
// row another 8 HD for each (segment, head) through L2 (written, then read by the fold): 1/8 of
// the keys' bytes at 16 heads a KV head and SEG = 256.
//
// Idea: cut keys at absolute multiples of SEG, so that a segment's sums are the same bits whoever computes them, and
// spread (row, segment, KV head) items over a grid that fills the machine: block b takes items b, b + grid, ... A KV
// head's query heads are the 16 rows of the products' A operand, so K and V are loaded once for all of them, straight
// into fragments.
// The last block to finish a (row, KV head), known by an integer ticket, folds its partials in ascending order; or,
// with no ticket, g4_attn_decode_fold does, a block a (row, head): the global family's segments grow with the context.
//
// Launch: 256 threads; grid.x any number (bits do not depend on it), best = SM count times occupancy; rows <= 128.
// Dynamic shared bytes = 32 HD + 98 SEG + 50432: h256_s128 71168, h256_s32 61760, h512_s256 91904, h512_s32 69952.
// Rows with slot -1, or without items, have no work: block b writes zeros to such rows b, b + grid, ...
//
// Versions; nvcc 13.0, registers of h512_s256 at sm_90a; us on an H200, 12B global, 1 x 1024 / 1 x 32768 / 64 x 1024:
//   item in registers, fold of 8 with early exits   197, one block an SM; not timed
//   item in shared memory, fold in whole batches     128, two blocks an SM: 26.6 / 152 / 52
//   K and V through a ring of copies, fold apart     120, not timed on a GPU. Predicted 16 / 35 / 45: an item 22 -> 10
//                                                    us (attention.h), the fold of 4 MB from one block to sixteen
// Known cost: one row has one block a segment and KV head, 4 of them at 1024 keys of the 12B's global layers.
// Test: csrc/tests/attention_test.cpp
#include "../common/attention.h"
#include "../common/attention_host.h"

namespace g4 {

// The row whose items contain `item`: the first r with item_begin[r + 1] > item.
G4_FN int row_of_item(const int32_t* item_begin, int rows, int item) {
  int low = 0, high = rows - 1;
  while (low < high) {
    const int mid = (low + high) / 2;
    if (item_begin[mid + 1] > item) high = mid;
    else low = mid + 1;
  }
  return low;
}

// What another block of this launch may have written: read from L2.
G4_FN Vec16 load16_of_any_block(const float* p) {
#if G4_GPU
  const uint4 v = __ldcg(reinterpret_cast<const uint4*>(p));
  return Vec16{{v.x, v.y, v.z, v.w}};
#else
  return load16(p);
#endif
}
G4_FN void load_ml(const float* p, float& m, float& l) {
#if G4_GPU
  const float2 v = __ldcg(reinterpret_cast<const float2*>(p));
  m = v.x, l = v.y;
#else
  m = p[0], l = p[1];
#endif
}

// Four columns of one (row, head): its partial sums, ascending, kAhead of them in flight.
template <int HD, int kAhead>
G4_FN void fold_columns(const G4AttnDecodeParams& p, int row, int head, int d, int item_first, int count) {
  const long long at = (long long)item_first * p.heads + head;  // of the first segment
  const float *part_o = p.part_o + at * HD + d, *part_ml = p.part_ml + at * 2;
  float m = kMinusInfinity, l = 0.0f, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const auto fold = [&](const Vec16& os, float ms, float ls) {
    const Merge g = merge_of(m, l, ms, ls);
    G4_UNROLL
    for (int i = 0; i < 4; i++) o[i] = merge(g, o[i], f32_from_bits(os.w[i]));
    l = merge(g, l, ls);
    m = g.m;
  };
  const int step = p.heads;  // (item, head) pairs from one segment to the next
  int s = 0;
  for (; s + kAhead <= count; s += kAhead) {
    Vec16 os[kAhead];
    float ms[kAhead], ls[kAhead];
    G4_UNROLL
    for (int u = 0; u < kAhead; u++, part_o += (long long)step * HD, part_ml += step * 2) {
      os[u] = load16_of_any_block(part_o);
      load_ml(part_ml, ms[u], ls[u]);
    }
    G4_UNROLL
    for (int u = 0; u < kAhead; u++) fold(os[u], ms[u], ls[u]);
  }
  for (; s < count; s++, part_o += (long long)step * HD, part_ml += step * 2) {
    float ms, ls;
    load_ml(part_ml, ms, ls);
    fold(load16_of_any_block(part_o), ms, ls);
  }
  uint16_t* out = p.out + ((long long)row * p.heads + head) * HD + d;
  G4_UNROLL
  for (int i = 0; i < 4; i++) out[i] = f32_to_bf16(o[i] / l);
}

// By the last arriver: all heads of a (row, KV head).
template <int HD>
G4_FN void fold_partials(Cta cta, const G4AttnDecodeParams& p, int row, int kv_head, int item_first, int count) {
  const int group = p.heads / p.kv.kv_heads;
  for (int e = cta.tid(); e < group * (HD / 4); e += cta.threads())
    fold_columns<HD, 8>(p, row, kv_head * group + e / (HD / 4), e % (HD / 4) * 4, item_first, count);
}

// By a kernel of its own: a block a (row, head).
template <int HD>
G4_FN void attn_fold(Cta cta, const G4AttnDecodeParams& p) {
  const int row = cta.block_x(), d = cta.tid() * 4;
  const int first = p.item_begin[row], count = p.item_begin[row + 1] - first;
  if (p.slot[row] < 0 || count <= 1 || d >= HD) return;  // zeros, or written by the only segment
  fold_columns<HD, 16>(p, row, cta.block_y(), d, first, count);
}

// One item: a segment of a tile, and where its sums go. It stands in shared memory: in registers it would cost a
// resident block (128 registers a thread are what two blocks leave).
struct DecodeItem {
  AttnTile tile;
  int segment;
  int row, item_first, count;  // the row's items are [item_first, item_first + count); a single one writes `out` itself
  float* part_o;               // [group][HD]
  float* part_ml;              // [group][2]
};

template <int HD, int SEG>
struct DecodeShared : AttnShared<HD, SEG> {
  DecodeItem item;
  int32_t item_begin[G4_ROWS_DECODE_MAX + 1];
  int32_t last_arriver;
};

#if G4_ATTN_BY_LANES
template <int HD, int SEG>
G4_FN void run_item(Cta cta, DecodeShared<HD, SEG>& sh, int parity) {
  const DecodeItem& item = sh.item;
  LaneSums<HD> sums;
  stage_q<HD, SEG>(cta, sh, item.tile);
  segment<HD, SEG>(cta, sh, item.tile, item.segment, parity, sums);
  const int tid = cta.tid();
  G4_UNROLL
  for (int half = 0; half < 2; half++) {
    const int r = tid % 32 / 4 + half * 8;
    if (r >= item.tile.rows) continue;
    G4_UNROLL
    for (int j = 0; j < sums.kTiles; j++) {
      const int d = lane_column<HD>(tid, j);
      const float a = sums.o[j][half * 2], b = sums.o[j][half * 2 + 1];
      if (item.count == 1)
        store_pair(item.tile.out + row_offset(item.tile, r, HD) + d,
                   f32_to_bf16(a / sums.l[half]) | (uint32_t)f32_to_bf16(b / sums.l[half]) << 16);
      else
        store_pair(item.part_o + r * HD + d, a, b);
    }
    if (item.count > 1 && tid < 32 && tid % 4 == 0)
      store_pair(item.part_ml + r * 2, sums.m[half], sums.l[half]);
  }
}
#else
template <int HD, int SEG>
static void item_join(void* const* args, uint32_t) {
  static thread_local TileSums sums;
  const DecodeItem& item = *static_cast<const DecodeItem*>(args[0]);
  segment_on_host(item.tile, HD, SEG, item.segment, sums);
  for (int r = 0; r < item.tile.rows; r++) {
    uint16_t* out = item.tile.out + row_offset(item.tile, r, HD);
    for (int d = 0; d < HD; d++) {
      if (item.count == 1) out[d] = f32_to_bf16(sums.o[r][d] / sums.l[r]);
      else item.part_o[r * HD + d] = sums.o[r][d];
    }
    if (item.count > 1) item.part_ml[r * 2] = sums.m[r], item.part_ml[r * 2 + 1] = sums.l[r];
  }
}
#endif

template <int HD, int SEG>
G4_FN DecodeItem decode_item(const G4AttnDecodeParams& p, const int32_t* item_begin, int w) {
  const int index = w / p.kv.kv_heads, kv_head = w % p.kv.kv_heads, group = p.heads / p.kv.kv_heads;
  const int row = row_of_item(item_begin, p.rows, index), position = p.position[row];
  const long long at = ((long long)row * p.heads + kv_head * group) * HD;
  DecodeItem item;
  item.tile = AttnTile{p.q + at, p.out + at, &p.kv, &p.kv, 0x7fffffff, p.slot[row], kv_head, p.heads, group, group,
                       position, p.window};
  item.segment = first_visible(position, p.window) / SEG + index - item_begin[row];
  item.row = row;
  item.item_first = item_begin[row];
  item.count = item_begin[row + 1] - item_begin[row];
  item.part_o = p.part_o + (long long)w * group * HD;
  item.part_ml = p.part_ml + (long long)w * group * 2;
  return item;
}

// Releases what the block wrote and takes a ticket; the taker of the last one sees what every other taker wrote.
G4_FN bool is_last_arriver(Cta cta, uint32_t* ticket, int count, int32_t* last) {
  fence_device();
  G4_SYNC(cta);
  if (cta.tid() == 0) {
    *last = atomic_add(ticket, 1u) == (uint32_t)count - 1;
    if (*last) *ticket = 0;  // nobody else comes in this launch
  }
  G4_SYNC(cta);
  fence_device();
  return *last != 0;
}

template <int HD, int SEG>
G4_FN void attn_decode(Cta cta, const G4AttnDecodeParams& p) {
  using Shared = DecodeShared<HD, SEG>;
  static_assert(sizeof(Shared) <= kAttnSharedBytes<HD, SEG>, "what the launcher gives");
  G4_SHARED(Shared, sh);
#if !G4_GPU
  if (p.rows > G4_ROWS_DECODE_MAX || p.kv.head_dim != HD || cta.self->shared_bytes < sizeof(Shared))
    cta.self->ops->trap(cta.self, "attn_decode: rows, head_dim or shared bytes", __FILE__, __LINE__);
#endif
  for (int i = cta.tid(); i <= p.rows; i += cta.threads()) sh->item_begin[i] = p.item_begin[i];
  G4_SYNC(cta);

  for (int row = cta.block_x(); row < p.rows; row += cta.grid_x()) {
    if (p.slot[row] >= 0 && sh->item_begin[row] < sh->item_begin[row + 1]) continue;
    uint16_t* out = p.out + (long long)row * p.heads * HD;
    for (int i = cta.tid(); i < p.heads * (HD / 8); i += cta.threads()) store16(out + i * 8, Vec16{{0, 0, 0, 0}});
  }

  DecodeItem& item = sh->item;
  const int kv_heads = p.kv.kv_heads, work = sh->item_begin[p.rows] * kv_heads;
  int parity = 0;
  for (int w = cta.block_x(); w < work; w += cta.grid_x(), parity ^= 1) {
    if (cta.tid() == 0) item = decode_item<HD, SEG>(p, sh->item_begin, w);
    G4_SYNC(cta);
    if (item.tile.slot >= 0) {
#if G4_ATTN_BY_LANES
      run_item<HD, SEG>(cta, *sh, parity);
#else
      G4_JOIN(cta, G4_SCOPE_BLOCK, &item, (item_join<HD, SEG>));
#endif
      const long long pair = (long long)item.row * kv_heads + item.tile.kv_head;
      if (item.count > 1 && p.ticket && is_last_arriver(cta, p.ticket + pair, item.count, &sh->last_arriver))
        fold_partials<HD>(cta, p, item.row, item.tile.kv_head, item.item_first, item.count);
    }
    G4_SYNC(cta);  // the item is read until here
  }
}

}  // namespace g4

#define G4_TWO_BLOCKS 256, 2  // launch bounds: threads, resident blocks
#define G4_ATTN_DECODE(HD, SEG) \
  G4_KERNEL(g4_attn_decode_h##HD##_s##SEG, G4AttnDecodeParams, G4_TWO_BLOCKS) { g4::attn_decode<HD, SEG>(cta, p); }

G4_ATTN_DECODE(256, 128)
G4_ATTN_DECODE(256, 32)
G4_ATTN_DECODE(512, 256)
G4_ATTN_DECODE(512, 32)

// Grid (rows, heads), 128 threads: four columns each.
G4_KERNEL(g4_attn_decode_fold, G4AttnDecodeParams, 128) {
  if (p.kv.head_dim == 512) g4::attn_fold<512>(cta, p);
  else g4::attn_fold<256>(cta, p);
}
