// g4_rmsnorm: out = bf16((x * r) * w), r = rsqrt(sum(x^2) / width + eps).
//
// x, out [rows][width] bf16, weight [width] bf16; bases 16-byte aligned. Reads and writes rows * width * 2 bytes.
// The sum and the norm are the row words of csrc/common/row.h, so a fused kernel gives the same bits.
// Grid: x = rows; 256 threads; 1024 bytes of shared memory.
//
// Idea: one block a row, everything loaded by 16-byte loads before the only barrier; rows of up to 6144 stay in
// registers.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/row_test.cpp (rmsnorm)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

G4_KERNEL(g4_rmsnorm, G4RmsNormParams, G4_ROW_THREADS) {
  using g4::Vec16;
  G4_SHARED(float, scratch);
  const int width = p.width;
  const bool whole = g4::row_whole(width);
  const uint16_t* x = p.x + (long long)cta.block_x() * width;
  uint16_t* out = p.out + (long long)cta.block_x() * width;

  Vec16 x_held[g4::kRowHeld], w_held[g4::kRowHeld];
  float acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 g = g4::group_load(x, first, width, whole);
    if (j >= 0) {
      x_held[j] = g;
      w_held[j] = g4::group_load(p.weight, first, width, whole);
    }
    acc = g4::group_add_sq(acc, g);
  });
  const float scale = g4::norm_scale(g4::row_tree(cta, acc, scratch), width, p.eps);
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 g = j >= 0 ? x_held[j] : g4::group_load(x, first, width, whole);
    const Vec16 w = j >= 0 ? w_held[j] : g4::group_load(p.weight, first, width, whole);
    g4::group_store(out, first, width, whole, g4::norm_group(g, scale, w));
  });
}
