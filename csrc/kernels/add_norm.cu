// g4_add_norm: the end of a sublayer and the norm that opens the next one.
//
//   x = bf16(x + RN(y; post));  x = bf16(x * layer_scalar) if given;  normed = RN(x; next) if given
//
// x [rows][width] bf16 in place; y [rows][width]; post, next [width]; layer_scalar [1]; normed [rows][width] (may be y,
// not x); bases 16-byte aligned. RN is the one of csrc/common/row.h: to bf16, like every sum and product above.
// Reads rows * width * 4 bytes, writes rows * width * 4.
// Grid: x = rows; 256 threads; 2048 bytes of shared memory (two sums, two scratches, one barrier each).
//
// Idea: fusing post norm, residual, layer scalar and next norm saves three kernel boundaries (1.3 us each) a sublayer
// and keeps the row in registers; both weights and x are on their way while the first sum is folded.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/row_test.cpp (add_norm)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

namespace {

// bf16(bf16(x + n) * scalar); the product only where there is a scalar.
G4_FN g4::Vec16 add_group(g4::Vec16 x, g4::Vec16 n, bool scaled, float scalar) {
  float a[g4::kGroup], b[g4::kGroup];
  g4::group_unpack(x, a);
  g4::group_unpack(n, b);
  G4_UNROLL
  for (int j = 0; j < g4::kGroup; j++) {
    a[j] = g4::round_bf16(a[j] + b[j]);
    if (scaled) a[j] = a[j] * scalar;
  }
  return g4::group_pack(a);
}

}  // namespace

G4_KERNEL(g4_add_norm, G4AddNormParams, G4_ROW_THREADS) {
  using g4::Vec16;
  G4_SHARED(float, scratch);
  const int width = p.width;
  const bool whole = g4::row_whole(width);
  uint16_t* x = p.x + (long long)cta.block_x() * width;
  const uint16_t* y = p.y + (long long)cta.block_x() * width;
#if defined(G4_PLANT_NO_LAYER_SCALAR)
  const bool scaled = false;
#else
  const bool scaled = p.layer_scalar != nullptr;
#endif
  const float scalar = scaled ? g4::bf16_to_f32(p.layer_scalar[0]) : 1.0f;

  Vec16 x_held[g4::kRowHeld], y_held[g4::kRowHeld], post_held[g4::kRowHeld], next_held[g4::kRowHeld];
  float acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 g = g4::group_load(y, first, width, whole);
    if (j >= 0) {
      y_held[j] = g;
      x_held[j] = g4::group_load(x, first, width, whole);
      post_held[j] = g4::group_load(p.post_weight, first, width, whole);
      if (p.next_weight) next_held[j] = g4::group_load(p.next_weight, first, width, whole);
    }
    acc = g4::group_add_sq(acc, g);
  });
  const float post_scale = g4::norm_scale(g4::row_tree(cta, acc, scratch), width, p.eps);

  acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 yg = j >= 0 ? y_held[j] : g4::group_load(y, first, width, whole);
    const Vec16 wg = j >= 0 ? post_held[j] : g4::group_load(p.post_weight, first, width, whole);
    const Vec16 xg = j >= 0 ? x_held[j] : g4::group_load(x, first, width, whole);
    const Vec16 sum = add_group(xg, g4::norm_group(yg, post_scale, wg), scaled, scalar);
    g4::group_store(x, first, width, whole, sum);
    if (j >= 0) x_held[j] = sum;
    acc = g4::group_add_sq(acc, sum);
  });
  if (!p.next_weight) return;

  const float next_scale = g4::norm_scale(g4::row_tree(cta, acc, scratch + G4_ROW_LANES), width, p.eps);
  uint16_t* normed = p.normed + (long long)cta.block_x() * width;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 xg = j >= 0 ? x_held[j] : g4::group_load(x, first, width, whole);  // written by this very thread
    const Vec16 wg = j >= 0 ? next_held[j] : g4::group_load(p.next_weight, first, width, whole);
    g4::group_store(normed, first, width, whole, g4::norm_group(xg, next_scale, wg));
  });
}
