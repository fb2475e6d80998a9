// g4_rope_table: cos and sin of every position and rotating pair, rounded to bf16, once at load.
//
//   inv_freq_i = 1 / float(theta^(2i / head_dim)); angle = float(position) * inv_freq_i; both f32
//   cos[position][i] = bf16(float(cos(angle))), sin likewise
//
// The power is rounded to f32 and the reciprocal is an f32 division, because the reference does so (spec/gemma4.md 2.1,
// "inv_freq fp32"): rounding the exact reciprocal once would differ in the last bit of a third of the frequencies,
// which is an angle of 0.02 at position 200000.
//
// cos, sin [positions][pairs] bf16: writes positions * pairs * 4 bytes, reads nothing.
// Grid: x = ceil(positions / 64); 256 threads; no shared memory. positions * inv_freq_0 must stay below 3e5.
//
// Idea: head_dim is a power of two, so 2i / head_dim is a short binary fraction and theta to it a product of the square
// roots of theta, each within one ulp: no pow. A thread makes it once and walks 64 positions; neighbours write
// neighbours.
// Versions: one, not timed on a GPU (runs twice, at load).
// Test: csrc/tests/row_test.cpp (rope)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/math.h"

namespace {

constexpr int kPositionsPerBlock = 64;

G4_FN double sqrt_rn(double x) {
#if G4_GPU
  return __dsqrt_rn(x);
#else
  return __builtin_sqrt(x);
#endif
}

// theta^(2i / denominator), denominator a power of two: bit b of i (from the top) contributes theta^(1 / 2^(b+1)).
G4_FN double theta_power(double theta, int i, int denominator) {
  double product = 1.0, root = theta;
  for (int bit = denominator / 4; bit > 0; bit /= 2) {
    root = sqrt_rn(root);
    if (i & bit) product = product * root;
  }
  return product;
}

}  // namespace

G4_KERNEL(g4_rope_table, G4RopeTableParams, 256) {
#if defined(G4_PLANT_ROPE_DENOMINATOR_ROTARY_DIM)
  const int denominator = 2 * p.pairs;
#else
  const int denominator = p.head_dim;
#endif
  const int begin = cta.block_x() * kPositionsPerBlock;
  const int end = begin + kPositionsPerBlock < p.positions ? begin + kPositionsPerBlock : p.positions;
  for (int i = cta.tid(); i < p.pairs; i += cta.threads()) {
    const float inv_freq = 1.0f / (float)theta_power(p.theta, i, denominator);
    for (int position = begin; position < end; position++) {
      double s, c;
      g4::sin_cos((double)((float)position * inv_freq), &s, &c);
      const long long at = (long long)position * p.pairs + i;
      p.cos[at] = g4::f32_to_bf16((float)c);
      p.sin[at] = g4::f32_to_bf16((float)s);
    }
  }
}
