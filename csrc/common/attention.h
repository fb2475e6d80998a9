// The words both attention kernels are written in: which keys a query sees, one segment of one tile, and the merge of
// segments. Bits of a (query, head) depend on nothing but its position, Q, K and V (numerics, section 3), because
// decode and prompt share these three.
//
//   segment s = keys [s SEG, (s+1) SEG), at absolute multiples:
//     score_j = sum over ascending dims of q k_j            one chain of hd/16 products
//     m       = max over unmasked j of score_j              exact
//     p_j     = bf16(exp(score_j - m)), +0 where masked     by selection
//     O, l    = sum over ascending 16-key groups of p v, of p  chains from +0
//   merge:  m' = max(m, ms), O = fma(Os, exp(ms - m'), O exp(m - m')), l likewise; with an empty side a selection.
//   A segment without an unmasked key has l = +0, and no other has: the key that attains m has p = 1.
//
// A tile is 16 rows of one KV head: row r is query r / group, head r % group, group = heads / kv_heads. 16 keys of one
// page are one contiguous run of 16 * head_dim elements in K and in V alike (kv_layout.h): a "key group" below.
//
// GPU: 8 warps. Scores: a warp takes key groups w, w+8, ..., two products a 16-byte load of K. Softmax: a warp takes
// two rows. O: a warp takes hd/8 columns and walks the key groups, so no reduction across warps exists. Loads of K and
// V pass through a ring in shared memory that each thread has for itself, 12 copies in flight (48 KB a block) and no
// barrier; the first ones of V are issued before the softmax barrier. (Loads to registers share one scoreboard, and a
// wait for one is a wait for all: with a rolling window of 8 registers an item of h512_s256 took 22 us on an H200, a
// latency a load. About 10 are expected of the ring; it has not been timed.) Key groups no row of the tile sees are
// skipped: their P is +0, and a product with a zero operand returns its accumulator bit for bit (numerics, section 5).
// Host: the twin in attention_host.h.
#ifndef G4_ATTENTION_H
#define G4_ATTENTION_H

#include "cta.h"
#include "kv_layout.h"
#include "math.h"
#include "mma.h"
#include "pack_layout.h"

// The lanes' code below runs on a GPU, and on fibres when G4_ATTN_BODIES is defined: slow, but the same tests then
// check its indices bit for bit. Otherwise the host has attention_host.h.
#if G4_GPU || defined(G4_ATTN_BODIES)
#define G4_ATTN_BY_LANES 1
#else
#define G4_ATTN_BY_LANES 0
#endif

#if G4_GPU
#define G4_NO_UNROLL _Pragma("unroll 1")
#else
#define G4_NO_UNROLL
#endif

namespace g4 {

constexpr float kMinusInfinity = -__builtin_huge_valf();

// ---- Which keys a query sees ----------------------------------------------------------------------------------------

// A query at `position` sees keys [first_visible, position].
G4_FN int first_visible(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

struct AttnTile {
  const uint16_t* q;       // row r at row_offset(r)
  uint16_t* out;           // same order
  const G4KvView* kv;      // positions below recent_begin
  const G4KvView* recent;  // positions from recent_begin on
  int recent_begin;
  int slot;
  int kv_head;
  int heads;
  int group;               // heads a KV head: 1, 2, 4, 8 or 16
  int rows;                // rows in use, queries * group; the others are padding and reach no output
  int position;            // of the first query
  int window;
};

G4_FN long long row_offset(const AttnTile& t, int r, int hd) {
  return ((long long)(r / t.group) * t.heads + r % t.group) * hd;
}
G4_FN int row_position(const AttnTile& t, int r) { return t.position + r / t.group; }
// First and last key that any row sees; each between them is seen by some row.
G4_FN int tile_key_begin(const AttnTile& t) { return first_visible(t.position, t.window); }
G4_FN int tile_key_last(const AttnTile& t) { return row_position(t, t.rows - 1); }

struct KeyGroup {
  const uint16_t* k;  // [16 * head_dim], null where no page is granted: such keys are masked
  const uint16_t* v;
};

// `key`, a multiple of 16, begins the group.
G4_FN KeyGroup key_group(const AttnTile& t, int key) {
  const G4KvView& view = key < t.recent_begin ? *t.kv : *t.recent;
  const int page = kv_page(view, t.slot, key);
  if (page < 0) return KeyGroup{nullptr, nullptr};
  const long long at = kv_page_base(view, page, t.kv_head) + (long long)(key % view.page_tokens) * view.head_dim;
  return KeyGroup{view.k + at, view.v + at};
}

// Scale 1.0: Gemma 4 has none (its q_norm takes that part).
G4_FN float attn_score(float s, int head_dim) {
#if defined(G4_PLANT_ATTN_SCALE)
  return s * (head_dim == 512 ? 0.044194173824f : 0.0625f);
#else
  (void)head_dim;
  return s;
#endif
}

// ---- Merge ----------------------------------------------------------------------------------------------------------

// How one (query, head) goes from state (m, l, O) over segment (ms, ls, Os). NaN sums are not empty and stay NaN.
struct Merge {
  float m, a, b;
  bool keep, take;
};

G4_FN Merge merge_of(float m, float l, float ms, float ls) {
  Merge g;
  g.keep = ls == 0.0f;
  g.take = l == 0.0f;
  g.m = m > ms ? m : ms;  // an empty side has m = -inf
  g.a = g.b = 1.0f;
  if (!g.keep && !g.take) {
    g.a = g4::exp(m - g.m);
    g.b = g4::exp(ms - g.m);
  }
  return g;
}
// One element of O, or l.
G4_FN float merge(const Merge& g, float o, float os) { return g.keep ? o : g.take ? os : fma_rn(os, g.b, o * g.a); }

// ---- Segment --------------------------------------------------------------------------------------------------------

// 16-byte loads of K or V a thread has in flight: 48 KiB a block; with the rest at most 92 KB, which every GPU has.
constexpr int kAttnRing = 12;

// Dynamic shared memory of both kernels in bytes, what a launcher gives; 1280 is for scalars and decode's row table.
template <int HD, int SEG>
constexpr int kAttnSharedBytes = 32 * HD + 98 * SEG + 1280 + kAttnRing * G4_ATTN_THREADS * 16;

template <int HD, int SEG>
struct AttnShared {
  static_assert(HD % 128 == 0 && SEG % 32 == 0, "a warp takes hd/8 columns in blocks of 16");
  static constexpr int kScoreStride = SEG + 8;  // + 8: four rows of a half-warp's stores meet four bank octets
  uint16_t q[16 * HD];                          // A fragments, packed_offset(row, dim)
  float score[16 * kScoreStride];
  uint16_t p[16 * SEG];                         // A fragments, packed_offset(row, key)
  float m[16];
  KeyGroup groups[2][SEG / 16];                 // two: a slow warp still reads the last segment's
  Vec16 ring[kAttnRing][G4_ATTN_THREADS];       // a thread's own loads on their way: no other reads them
};
#if G4_ATTN_BY_LANES

// Two neighbours by one store.
G4_FN void store_pair(float* p, float a, float b) {
#if G4_GPU
  *reinterpret_cast<float2*>(p) = make_float2(a, b);
#else
  p[0] = a, p[1] = b;
#endif
}
G4_FN void store_pair(uint16_t* p, uint32_t pair) {
#if G4_GPU
  *reinterpret_cast<uint32_t*>(p) = pair;
#else
  p[0] = (uint16_t)pair, p[1] = (uint16_t)(pair >> 16);
#endif
}

#if !G4_GPU
static inline void warp_max_join(void* const* args, uint32_t count) {
  float m = kMinusInfinity;
  for (uint32_t i = 0; i < count; i++) m = *static_cast<float*>(args[i]) > m ? *static_cast<float*>(args[i]) : m;
  for (uint32_t i = 0; i < count; i++) *static_cast<float*>(args[i]) = m;
}
#endif
G4_FN float warp_max(Cta cta, float m) {
#if G4_GPU
  (void)cta;
  G4_UNROLL
  for (int o = 16; o > 0; o /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, m, o);
    m = other > m ? other : m;
  }
#else
  G4_JOIN(cta, G4_SCOPE_WARP, &m, warp_max_join);
#endif
  return m;
}

// Q of a tile into A fragments; padding rows are +0. The caller's next segment() puts a barrier behind it.
template <int HD, int SEG>
G4_FN void stage_q(Cta cta, AttnShared<HD, SEG>& sh, const AttnTile& t) {
  for (int i = cta.tid(); i < 16 * HD / 8; i += G4_ATTN_THREADS) {
    const int r = i / (HD / 8), d = i % (HD / 8) * 8;
    const Vec16 x = r < t.rows ? load16(t.q + row_offset(t, r, HD) + d) : Vec16{{0, 0, 0, 0}};
    G4_UNROLL
    for (int j = 0; j < 4; j++)
      store_pair(&sh.q[packed_offset(r, d + 2 * j, HD / 16)], x.w[j]);
  }
}

// What a lane keeps of a segment: rows lane/4 and lane/4 + 8, columns warp * HD/8 + 8 j + lane%4 * 2 and the next.
template <int HD>
struct LaneSums {
  static constexpr int kTiles = HD / 64;
  float m[2], l[2];
  float o[kTiles][4];  // [column tile][row half * 2 + column]
};

template <int HD>
G4_FN int lane_column(int tid, int tile) { return tid / 32 * (HD / 8) + tile * 8 + tid % 4 * 2; }

// Scores of key groups [group_begin, group_end) into sh.score. Unseen keys read as +0 and are masked by the softmax.
template <int HD, int SEG>
G4_FN void segment_scores(Cta cta, AttnShared<HD, SEG>& sh, const AttnTile& t, const KeyGroup* groups, int key0,
                          int group_begin, int group_end) {
  constexpr int kSteps = HD / 32;       // 16-byte loads a key tile: two product steps each
  constexpr int kAhead = kAttnRing / 2;  // steps in flight, of two key tiles
  const int tid = cta.tid(), lane = tid % 32;
  int first = tid / 32;
  if (first < group_begin) first += (group_begin - first + 7) / 8 * 8;

  // The stream of this warp's steps, group after group.
  int ask_g = first, ask_c = 0, ask_slot = 0, slot = 0;
  const uint16_t* at[2] = {nullptr, nullptr};
  bool live[2] = {false, false};
  const auto ask = [&] {
    if (ask_g < group_end) {
      if (ask_c == 0) {
        const uint16_t* k = groups[ask_g].k;
        G4_UNROLL
        for (int j = 0; j < 2; j++) {
          const int key = key0 + ask_g * 16 + j * 8 + lane / 4;
          live[j] = k != nullptr && key >= tile_key_begin(t) && key <= tile_key_last(t);
          at[j] = live[j] ? k + (j * kSteps * 32 + lane) * 8 : t.kv->k;
        }
      }
      G4_UNROLL
      for (int j = 0; j < 2; j++)
        copy16_async(cta, &sh.ring[ask_slot * 2 + j][tid], live[j] ? at[j] + ask_c * 256 : at[j], live[j]);
      if (++ask_c == kSteps) ask_c = 0, ask_g += G4_ATTN_THREADS / 32;
    }
    copy_async_commit(cta);
    ask_slot = ask_slot + 1 == kAhead ? 0 : ask_slot + 1;
  };
  G4_UNROLL
  for (int i = 0; i < kAhead; i++) ask();
  for (int g = first; g < group_end; g += G4_ATTN_THREADS / 32) {
    float d[2][4] = {};
    G4_UNROLL
    for (int c = 0; c < kSteps; c++) {
      copy_async_wait<kAhead - 1>(cta);
      const Vec16 b[2] = {sh.ring[slot * 2][tid], sh.ring[slot * 2 + 1][tid]};
      slot = slot + 1 == kAhead ? 0 : slot + 1;
      G4_UNROLL
      for (int half = 0; half < 2; half++) {
        const Vec16 a = load16(&sh.q[((c * 2 + half) * 32 + lane) * 8]);
        G4_UNROLL
        for (int j = 0; j < 2; j++) mma_16x8x16(cta, d[j], a.w, b[j].w[2 * half], b[j].w[2 * half + 1]);
      }
      ask();
    }
    G4_UNROLL
    for (int j = 0; j < 2; j++)
      G4_UNROLL
      for (int half = 0; half < 2; half++)
        store_pair(&sh.score[(lane / 4 + half * 8) * sh.kScoreStride + g * 16 + j * 8 + lane % 4 * 2], d[j][half * 2],
                   d[j][half * 2 + 1]);
  }
}

// m and P of two rows a warp.
template <int HD, int SEG>
G4_FN void segment_softmax(Cta cta, AttnShared<HD, SEG>& sh, const AttnTile& t, const KeyGroup* groups, int key0) {
  constexpr int kPairs = (SEG + 63) / 64;  // key pairs a lane
  const int tid = cta.tid(), lane = tid % 32;
  G4_NO_UNROLL  // V's first loads are waiting in registers
  for (int half = 0; half < 2; half++) {
    const int r = tid / 32 + half * 8;
    const int last = r < t.rows ? row_position(t, r) : -1;  // a padding row sees nothing
    const int first = first_visible(last, t.window);
    float s[kPairs][2], m = kMinusInfinity;
    bool seen[kPairs][2];
    G4_UNROLL
    for (int i = 0; i < kPairs; i++)
      G4_UNROLL
      for (int e = 0; e < 2; e++) {
        const int j = i * 64 + lane * 2 + e;
        const int key = key0 + j;
        seen[i][e] = j < SEG && key >= first && key <= last && groups[j / 16].k != nullptr;
        s[i][e] = seen[i][e] ? attn_score(sh.score[r * sh.kScoreStride + j], HD) : kMinusInfinity;
        m = s[i][e] > m ? s[i][e] : m;
      }
    m = warp_max(cta, m);
    G4_UNROLL
    for (int i = 0; i < kPairs; i++) {
      const int j = i * 64 + lane * 2;
      if (j >= SEG) continue;
      uint32_t pair = 0;
      G4_UNROLL
      for (int e = 0; e < 2; e++)
        if (seen[i][e]) pair |= (uint32_t)f32_to_bf16(g4::exp(s[i][e] - m)) << (16 * e);
      store_pair(&sh.p[packed_offset(r, j, SEG / 16)], pair);
    }
    if (lane == 0) sh.m[r] = m;
  }
}

// One segment of a tile whose Q is staged. `parity` alternates from call to call.
template <int HD, int SEG>
G4_FN void segment(Cta cta, AttnShared<HD, SEG>& sh, const AttnTile& t, int index, int parity, LaneSums<HD>& sums) {
  constexpr int kBlocks = HD / 128;       // 16-column blocks a warp: one 16-byte load of V, two column tiles
  constexpr int kAhead = kAttnRing / kBlocks;  // key groups in flight
  const int tid = cta.tid(), lane = tid % 32, key0 = index * SEG;
  const int key_begin = tile_key_begin(t), key_last = tile_key_last(t);
  const int group_begin = (key_begin > key0 ? key_begin - key0 : 0) / 16;
  const int group_end = (key_last - key0 < SEG ? key_last - key0 : SEG - 1) / 16 + 1;
  KeyGroup* groups = sh.groups[parity];
  if (tid < SEG / 16)
    groups[tid] = tid >= group_begin && tid < group_end ? key_group(t, key0 + tid * 16)
                                                                            : KeyGroup{nullptr, nullptr};
  G4_SYNC(cta);  // Q and groups are there
  segment_scores<HD, SEG>(cta, sh, t, groups, key0, group_begin, group_end);

  int slot = 0;
  const auto ask = [&](int g, int to) {
    if (g < group_end) {
      const uint16_t* v = groups[g].v;
      const int key = key0 + g * 16 + lane % 4 * 4;  // of the first of the four keys this lane holds
      const bool live = v != nullptr && key + 3 >= key_begin && key <= key_last;
      const uint16_t* at = live ? v + (tid / 32 * kBlocks * 32 + lane) * 8 : t.kv->v;
      G4_UNROLL
      for (int b = 0; b < kBlocks; b++)
        copy16_async(cta, &sh.ring[to * kBlocks + b][tid], live ? at + b * 256 : at, live);
    }
    copy_async_commit(cta);
  };
  G4_UNROLL
  for (int u = 0; u < kAhead; u++) ask(group_begin + u, u);

  G4_SYNC(cta);  // scores are there, and no warp reads the last segment's P and m any more
  segment_softmax<HD, SEG>(cta, sh, t, groups, key0);
  G4_SYNC(cta);  // P and m are there

  float l[4] = {};
  G4_UNROLL
  for (int j = 0; j < sums.kTiles; j++)
    G4_UNROLL
    for (int e = 0; e < 4; e++) sums.o[j][e] = 0.0f;
  for (int g = group_begin; g < group_end; g++) {
    copy_async_wait<kAhead - 1>(cta);
    Vec16 b[kBlocks];
    G4_UNROLL
    for (int i = 0; i < kBlocks; i++) b[i] = sh.ring[slot * kBlocks + i][tid];
    const int key = key0 + g * 16;
    if (key < key_begin || key + 15 > key_last) {  // an edge: a lane's four keys may be seen in part
      uint32_t mask[2] = {0, 0};
      G4_UNROLL
      for (int e = 0; e < 4; e++) {
        const int at = key + lane % 4 * 4 + e;
        if (at >= key_begin && at <= key_last) mask[e / 2] |= 0xffffu << (e % 2 * 16);
      }
      G4_UNROLL
      for (int i = 0; i < kBlocks; i++)
        G4_UNROLL
        for (int w = 0; w < 4; w++) b[i].w[w] &= mask[w % 2];
    }
    const Vec16 a = load16(&sh.p[(g * 32 + lane) * 8]);
    mma_16x8x16(cta, l, a.w, 0x3f803f80u, 0x3f803f80u);
    G4_UNROLL
    for (int i = 0; i < kBlocks; i++) {
      mma_16x8x16(cta, sums.o[2 * i], a.w, b[i].w[0], b[i].w[1]);
      mma_16x8x16(cta, sums.o[2 * i + 1], a.w, b[i].w[2], b[i].w[3]);
    }
    ask(g + kAhead, slot);
    slot = slot + 1 == kAhead ? 0 : slot + 1;
  }
  G4_UNROLL
  for (int half = 0; half < 2; half++) {
    sums.m[half] = sh.m[lane / 4 + half * 8];
    sums.l[half] = l[half * 2];
  }
}

#endif  // G4_ATTN_BY_LANES

}  // namespace g4

#endif
