// From the QKV product to what attention reads: norms of q, k and v, RoPE on q and k, K and V into the cache.
//
//   q = rope(RN(q0; q_norm)),  k = rope(RN(k0; k_norm)),  v = RN(v0) without weight;  v0 = k0 (raw) when k_eq_v
//   rope: y[i]        = bf16(bf16(x[i] cos)        - bf16(x[i + hd/2] sin))
//         y[i + hd/2] = bf16(bf16(x[i + hd/2] cos) + bf16(x[i] sin))
//         for i < pairs; the other dims pass through. cos and sin are those of the row's position, bf16.
//   RN rounds once to bf16, then RoPE starts from that.
//
// A layer that reads another's K and V has kv_heads 0: q alone.
//
// qkv [rows][(heads + kv_heads * (k_eq_v ? 1 : 2)) * hd]; q_out [rows][heads][hd]; K and V go to the page of (slot,
// position) in fragment order (kv_layout.h). Rows with slot -1: zeros to q_out, nothing to the cache. Page -1: q only.
// head_dim is a power of two from 32 to 512.
//
// Bytes moved: 2 hd (2 heads + 4 kv_heads) a row, 2.2 KB for each of them at most: latency, not bandwidth.
//
// Idea: one warp a head, so no barrier: lane i holds dims [8i, 8i+8) and [256 + 8i, 256 + 8i + 8), the lanes of the row
// tree. RoPE's partner dims stand hd/2 away: in the same lane at 512 dims, in lane ^ (hd/16) below that.
//
// Launch: 256 threads; grid (rows, ceil((heads + 2 kv_heads) / 8)); dynamic shared bytes 8192 (1 KB a warp).
// Versions: this is the first; not timed on a GPU.
// Test: csrc/tests/qkv_prep_test.cpp
#include "../common/kv_layout.h"
#include "../common/row.h"

namespace g4 {

constexpr int kHeadMax = 512;
constexpr int kWarps = G4_ROW_THREADS / 32;

// Which dims rotate: i < pairs with i + partner.
struct Rotation {
  int pairs;
  int partner;
};
G4_FN Rotation rotation_of(const G4QkvPrepParams& p) {
  const int hd = p.kv.head_dim;
#if defined(G4_PLANT_NO_GLOBAL_ROPE)
  if (hd == 512) return Rotation{0, hd / 2};
#elif defined(G4_PLANT_ROPE_FIRST_QUARTER_BLOCK)
  if (hd == 512) return Rotation{hd / 8, hd / 8};
#endif
  return Rotation{p.pairs, hd / 2};
}

// Eight elements of RN without a weight.
G4_FN Vec16 norm_group_unweighted(Vec16 x, float scale) {
  float v[kGroup];
  group_unpack(x, v);
  G4_UNROLL
  for (int j = 0; j < kGroup; j++) v[j] = norm_value(v[j], scale);
  return group_pack(v);
}

// Dims [first, first + 8) of the head in x (bf16, already normed), rotated. cos and sin: [pairs] of the row's position.
G4_FN Vec16 rope_group(const uint16_t* x, int first, Rotation rot, const uint16_t* cos, const uint16_t* sin) {
  float y[kGroup];
  G4_UNROLL
  for (int j = 0; j < kGroup; j++) {
    const int d = first + j;
    const bool high = d >= rot.partner;
    const int i = high ? d - rot.partner : d;
    const float own = bf16_to_f32(x[d]);
    y[j] = own;
    if (i >= rot.pairs) continue;
    const float c = bf16_to_f32(cos[i]), s = bf16_to_f32(sin[i]);
    const float other = bf16_to_f32(x[high ? i : i + rot.partner]);
    const float a = round_bf16(own * c), b = round_bf16(other * s);
    y[j] = high ? a + b : a - b;  // rounded to bf16 by the pack
  }
  return group_pack(y);
}

// K's fragment order keeps four neighbouring dims together, V's none.
G4_FN void store_k(uint16_t* page, int key, int first, int hd, Vec16 g) {
  G4_UNROLL
  for (int j = 0; j < 2; j++) {
    uint16_t* to = page + k_offset(key, first + 4 * j, hd);
#if G4_GPU
    *reinterpret_cast<uint2*>(to) = make_uint2(g.w[2 * j], g.w[2 * j + 1]);
#else
    std::memcpy(to, &g.w[2 * j], 8);
#endif
  }
}
G4_FN void store_v(uint16_t* page, int key, int first, int hd, Vec16 g) {
  G4_UNROLL
  for (int j = 0; j < kGroup; j++)
    page[v_offset(key, first + j, hd)] = (uint16_t)(g.w[j / 2] >> (j % 2 * 16));
}

// One head of one row by one warp. unit: q heads, then k heads, then v heads.
G4_FN void prepare_head(Cta cta, const G4QkvPrepParams& p, int row, int unit, uint16_t* scratch) {
  const int hd = p.kv.head_dim, kv_heads = p.kv.kv_heads, position = p.position[row];
  const bool is_q = unit < p.heads, is_k = !is_q && unit < p.heads + kv_heads, is_v = !is_q && !is_k;
  const int kv_head = is_q ? 0 : (unit - p.heads) % kv_heads;
  // With k_eq_v there is no third part of qkv: V starts from the raw K.
  const int part = is_v && p.k_eq_v ? unit - kv_heads : unit;
  const int width = (p.heads + kv_heads * (p.k_eq_v ? 1 : 2)) * hd;
  const uint16_t* x = p.qkv + (long long)row * width + (long long)part * hd;
  bool weighted = !is_v, rotated = !is_v, normed = true;
#if defined(G4_PLANT_NO_V_NORM)
  normed = !is_v;
#elif defined(G4_PLANT_V_IS_FINAL_K)
  if (p.k_eq_v) weighted = rotated = true;
#endif
  const uint16_t* weight = is_q ? p.q_weight : p.k_weight;

  const int first[2] = {cta.lane() * kGroup, 256 + cta.lane() * kGroup};
  Vec16 g[2];
  G4_UNROLL
  for (int i = 0; i < 2; i++) g[i] = first[i] < hd ? load16(x + first[i]) : Vec16{{0, 0, 0, 0}};
  const float scale = norm_scale(row_sum_sq_warp(cta, g[0], g[1]), hd, p.eps);
  G4_UNROLL
  for (int i = 0; i < 2; i++) {
    if (first[i] >= hd) continue;
    if (weighted) g[i] = norm_group(g[i], scale, load16(weight + first[i]));
    else if (normed) g[i] = norm_group_unweighted(g[i], scale);
    store16(scratch + first[i], g[i]);
  }
  G4_SYNC_WARP(cta);

  uint16_t* page = nullptr;
  int key = 0;
  if (!is_q) {
    const int id = kv_page(p.kv, p.slot[row], position);
    if (id < 0) return;
    key = position % p.kv.page_tokens;
    page = (is_k ? p.kv.k : p.kv.v) + kv_page_base(p.kv, id, kv_head);
  }
  const Rotation rot = rotation_of(p);
  const long long angle = (long long)position * p.pairs;
  G4_UNROLL
  for (int i = 0; i < 2; i++) {
    if (first[i] >= hd) continue;
    const Vec16 y = rotated ? rope_group(scratch, first[i], rot, p.cos + angle, p.sin + angle) : g[i];
    if (is_q) store16(p.q_out + ((long long)row * p.heads + unit) * hd + first[i], y);
    else if (is_k) store_k(page, key, first[i], hd, y);
    else store_v(page, key, first[i], hd, y);
  }
}

}  // namespace g4

G4_KERNEL(g4_qkv_prep, G4QkvPrepParams, G4_ROW_THREADS) {
  using namespace g4;
  G4_SHARED(uint16_t, scratch);
  const int row = cta.block_x(), unit = cta.block_y() * kWarps + cta.warp(), hd = p.kv.head_dim;
#if !G4_GPU
  if (hd < 32 || hd > kHeadMax || (hd & (hd - 1)) || cta.self->shared_bytes < kWarps * kHeadMax * 2)
    cta.self->ops->trap(cta.self, "qkv_prep: head_dim or shared bytes", __FILE__, __LINE__);
#endif
  if (unit >= p.heads + 2 * p.kv.kv_heads) return;
  if (p.slot[row] < 0) {
    if (unit >= p.heads) return;
    for (int d = cta.lane() * kGroup; d < hd; d += 32 * kGroup)
      store16(p.q_out + ((long long)row * p.heads + unit) * hd + d, Vec16{{0, 0, 0, 0}});
    return;
  }
  prepare_head(cta, p, row, unit, scratch + cta.warp() * kHeadMax);
}
