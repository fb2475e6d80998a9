// g4_expert_input: what a mixture of experts reads of the residual after attention (26B-A4B): once for the router, once
// for the experts.
//
//   n = bf16(x * r);  router_x = bf16(bf16(n * router_scale) * root)     r = rsqrt(mean(x^2) + eps), root = width^-0.5
//   expert_x = bf16((x * r) * expert_weight)
//
// x, router_x, expert_x [rows][width] bf16; router_scale, expert_weight [width]; bases 16-byte aligned.
// Reads rows * width * 2 bytes, writes rows * width * 4.
// Grid: x = rows; 256 threads; 1024 bytes of shared memory.
//
// Idea: both norms share one mean square, and the row is read once; both weights are on their way while it is folded.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/expert_test.cpp. G4_PLANT_ROUTER_ON_NORMED and G4_PLANT_NO_ROUTER_SCALE are planted bugs.
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

namespace {

G4_FN g4::Vec16 router_group(g4::Vec16 x, float scale, g4::Vec16 w, float root) {
  float v[g4::kGroup], f[g4::kGroup];
  g4::group_unpack(x, v);
  g4::group_unpack(w, f);
  G4_UNROLL
  for (int j = 0; j < g4::kGroup; j++) {
    v[j] = g4::round_bf16(g4::norm_value(v[j], scale));
#if !defined(G4_PLANT_NO_ROUTER_SCALE)
    v[j] = g4::round_bf16(v[j] * f[j]) * root;
#endif
  }
  return g4::group_pack(v);
}

}  // namespace

G4_KERNEL(g4_expert_input, G4ExpertInputParams, G4_ROW_THREADS) {
  using g4::Vec16;
  G4_SHARED(float, scratch);
  const int width = p.width;
  const bool whole = g4::row_whole(width);
  const long long at = (long long)cta.block_x() * width;
  const uint16_t* x = p.x + at;

  Vec16 x_held[g4::kRowHeld], router_held[g4::kRowHeld], expert_held[g4::kRowHeld];
  float acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 g = g4::group_load(x, first, width, whole);
    if (j >= 0) {
      x_held[j] = g;
      router_held[j] = g4::group_load(p.router_scale, first, width, whole);
      expert_held[j] = g4::group_load(p.expert_weight, first, width, whole);
    }
    acc = g4::group_add_sq(acc, g);
  });
  const float scale = g4::norm_scale(g4::row_tree(cta, acc, scratch), width, p.eps);
  float router_scale = scale;
#if defined(G4_PLANT_ROUTER_ON_NORMED)  // host only: the second tree asks for no shared memory there
  acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    if (j >= 0) x_held[j] = g4::norm_group(x_held[j], scale, expert_held[j]);
    acc = g4::group_add_sq(acc, x_held[j]);
  });
  router_scale = g4::norm_scale(g4::row_tree(cta, acc, scratch), width, p.eps);
#endif
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 g = j >= 0 ? x_held[j] : g4::group_load(x, first, width, whole);
    const Vec16 rw = j >= 0 ? router_held[j] : g4::group_load(p.router_scale, first, width, whole);
    const Vec16 ew = j >= 0 ? expert_held[j] : g4::group_load(p.expert_weight, first, width, whole);
    g4::group_store(p.router_x + at, first, width, whole, router_group(g, router_scale, rw, p.root));
#if defined(G4_PLANT_ROUTER_ON_NORMED)
    g4::group_store(p.expert_x + at, first, width, whole, g);
    (void)ew;
#else
    g4::group_store(p.expert_x + at, first, width, whole, g4::norm_group(g, scale, ew));
#endif
  });
}
