// One segment on the host: the last thread to arrive at a block's join runs the chains of attention.h for the whole
// tile.
//
// Every product is exact (bf16 times bf16 fits f32) and is added singly: scores in ascending dims, 32 keys side by
// side; O in ascending keys, all dims side by side. Vectors never split a sum, and there is no fma, so the clones for
// different CPUs give the same bits.
#ifndef G4_ATTENTION_HOST_H
#define G4_ATTENTION_HOST_H

#include "attention.h"

#if !G4_ATTN_BY_LANES

namespace g4 {

// What the host keeps of a segment, or of a fold.
struct TileSums {
  float m[16], l[16];
  float o[16][512];
};

typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));

// s[0..31] = chains over ascending dims of q[d] * k[d][0..31]: 32 sums side by side, none of them split.
__attribute__((target_clones("avx2", "default")))
static void score_chain(float* s, const float* q, const float* k, int hd) {
  V8 a0 = {}, a1 = {}, a2 = {}, a3 = {};
  for (int d = 0; d < hd; d++) {
    const V8* x = reinterpret_cast<const V8*>(k + d * 32);
    a0 += q[d] * x[0], a1 += q[d] * x[1], a2 += q[d] * x[2], a3 += q[d] * x[3];
  }
  V8* to = reinterpret_cast<V8*>(s);
  to[0] = a0, to[1] = a1, to[2] = a2, to[3] = a3;
}

// o[0..hd) += p[0] * v[0], then p[1] * v[1], ...: sixteen steps of a chain, hd chains side by side.
__attribute__((target_clones("avx2", "default")))
static void value_chain(float* o, const float* p, const float* v, int hd) {
  for (int d = 0; d < hd; d += 32) {
    V8* to = reinterpret_cast<V8*>(o + d);
    V8 a0 = to[0], a1 = to[1], a2 = to[2], a3 = to[3];
    for (int key = 0; key < 16; key++) {
      const V8* x = reinterpret_cast<const V8*>(v + key * hd + d);
      a0 += p[key] * x[0], a1 += p[key] * x[1], a2 += p[key] * x[2], a3 += p[key] * x[3];
    }
    to[0] = a0, to[1] = a1, to[2] = a2, to[3] = a3;
  }
}

// One segment of a tile.
static void segment_on_host(const AttnTile& t, int hd, int seg, int index, TileSums& sums) {
  static thread_local float q[16][512], k[512 * 32], v[16 * 512], score[16][512], p[16][16];
  const int key0 = index * seg, key_begin = tile_key_begin(t), key_last = tile_key_last(t);
  const auto seen_by_tile = [&](int key) { return key >= key_begin && key <= key_last; };
  const auto group_of = [&](int key) {  // a group no row sees is not looked up
    return key + 15 >= key_begin && key <= key_last ? key_group(t, key) : KeyGroup{nullptr, nullptr};
  };
  bool granted[512 / 16];
  for (int r = 0; r < t.rows; r++)
    for (int d = 0; d < hd; d++) q[r][d] = bf16_to_f32(t.q[row_offset(t, r, hd) + d]);
  for (int j0 = 0; j0 < seg; j0 += 32) {
    if (key0 + j0 > key_last || key0 + j0 + 31 < key_begin) {  // nobody sees these keys: their scores are not read
      granted[j0 / 16] = granted[j0 / 16 + 1] = false;
      continue;
    }
    for (int j = j0; j < j0 + 32; j += 16) {
      const KeyGroup g = group_of(key0 + j);
      granted[j / 16] = g.k != nullptr;
      for (int i = 0; i < 16; i++) {
        const bool load = g.k && seen_by_tile(key0 + j + i);
        for (int d = 0; d < hd; d++) k[d * 32 + j - j0 + i] = load ? bf16_to_f32(g.k[k_offset(i, d, hd)]) : 0.0f;
      }
    }
    for (int r = 0; r < t.rows; r++) score_chain(&score[r][j0], q[r], k, hd);
  }
  const auto seen = [&](int r, int j) {
    const int last = row_position(t, r), key = key0 + j;
    return granted[j / 16] && key <= last && key >= first_visible(last, t.window);
  };
  for (int r = 0; r < t.rows; r++) {
    sums.m[r] = kMinusInfinity;
    sums.l[r] = 0.0f;
    for (int d = 0; d < hd; d++) sums.o[r][d] = 0.0f;
    for (int j = 0; j < seg; j++) {
      if (!seen(r, j)) continue;
      score[r][j] = attn_score(score[r][j], hd);
      if (score[r][j] > sums.m[r]) sums.m[r] = score[r][j];
    }
  }
  for (int j = 0; j < seg; j += 16) {
    if (!granted[j / 16]) continue;  // +0 added to a chain from +0 changes no bit
    const KeyGroup g = group_of(key0 + j);
    for (int i = 0; i < 16; i++) {
      const bool load = seen_by_tile(key0 + j + i);
      for (int d = 0; d < hd; d++) v[i * hd + d] = load ? bf16_to_f32(g.v[v_offset(i, d, hd)]) : 0.0f;
      for (int r = 0; r < t.rows; r++) {
        p[r][i] = seen(r, j + i) ? round_bf16(g4::exp(score[r][j + i] - sums.m[r])) : 0.0f;
        sums.l[r] += p[r][i];
      }
    }
    for (int r = 0; r < t.rows; r++) value_chain(sums.o[r], p[r], v, hd);
  }
}

}  // namespace g4

#endif  // !G4_ATTN_BY_LANES

#endif
