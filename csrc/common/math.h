// exp, tanh, square roots, gelu, sine and cosine: the only places where they live (numerics, section 1). No libm: glibc
// picks its variant by CPU.
//
//   word       host                                 GPU                        max error seen against double
//   fma_rn     by doubles, rounded to odd           __fmaf_rn                  the bits of std::fma, 2e6 triples
//   sqrt       IEEE                                 __fsqrt_rn                 0.5 ulp by definition
//   rsqrt      1 / sqrt(x), both IEEE               the same operations        1.48 ulp
//   exp        polynomial, mul and add only         ex2.approx, split product  0.95 ulp; 3.45 on an H200
//   tanh       polynomial, or exp_poly and division the same operations        1.39 ulp
//   gelu_tanh  on tanh                              the same operations        1 bf16 input >= -3 rounds otherwise
//   sin_cos    double, three-part pi/2, Taylor      the same operations        2.9 * 2^-53, relative
//
// All but exp give the same bits on the host and on a GPU, so row kernels can be compared across devices bit for bit.
// exp on the GPU serves attention only, where a bf16 rounding follows.
//
// Test: csrc/tests/math_test.cpp
#ifndef G4_MATH_H
#define G4_MATH_H

#include "cta.h"

namespace g4 {

G4_FN uint32_t f32_bits(float f) {
#if G4_GPU
  return __float_as_uint(f);
#else
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
#endif
}
G4_FN float f32_from_bits(uint32_t u) {
#if G4_GPU
  return __uint_as_float(u);
#else
  float f;
  std::memcpy(&f, &u, 4);
  return f;
#endif
}

// ---- IEEE operations ----

// a * b + c rounded once.
G4_FN float fma_rn(float a, float b, float c) {
#if G4_GPU
  return __fmaf_rn(a, b, c);
#else
  // The product of two floats is exact in double. The sum is rounded to odd there (53 bits hold more than 24 + 2), so
  // the rounding to float is the only one that counts.
  const double p = (double)a * (double)b, s = p + (double)c;
  const double t = s - p, err = (p - (s - t)) + ((double)c - t);
  uint64_t u;
  std::memcpy(&u, &s, 8);
  const bool inexact = err < 0 || err > 0;  // false for NaN: s is then infinite or NaN
  if (inexact && !(u & 1)) u += (err > 0) == (s > 0) ? 1 : ~(uint64_t)0;
  double odd;
  std::memcpy(&odd, &u, 8);
  return (float)odd;
#endif
}

G4_FN float sqrt(float x) {
#if G4_GPU
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// 1 / sqrt(x), each operation rounded: called once a row, so the hardware approximation would buy nothing.
G4_FN float rsqrt(float x) {
#if G4_GPU
  return __frcp_rn(__fsqrt_rn(x));
#else
  return 1.0f / __builtin_sqrtf(x);
#endif
}

// ---- exp ----

// exp by IEEE mul and add, branch-free so that a loop over it vectorises. 0 below -104, +inf above 89, NaN stays NaN.
G4_FN float exp_poly(float x) {
  // Outside [-104, 89] the result is 0 or infinite anyway; comparisons are false for NaN, which passes through.
  const float c = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits
  const float shifted = c * 1.44269502f + kRound;
  const float n = shifted - kRound;
  const float r = (c - n * 0.693145752f) - n * 1.42860677e-06f;  // ln 2 in two parts; the first has 16 bits: exact
  float q = 0.00138144311f;
  q = q * r + 0.00836879667f;
  q = q * r + 0.0416683964f;
  q = q * r + 0.166665196f;
  q = q * r + 0.49999994f;
  const float y = 1.0f + (r + (r * r) * q);
  // 2^n as two normal powers: only the last product rounds when the result is subnormal. Unsigned: NaN gives any bits.
  const uint32_t k = f32_bits(shifted) - 0x4b400000u + 512u;
  const uint32_t low = k / 2 - 256u, high = k - k / 2 - 256u;
  return (y * f32_from_bits((low + 127u) << 23)) * f32_from_bits((high + 127u) << 23);
}

G4_FN float exp(float x) {
#if G4_GPU
  // x * log2(e) in two floats: rounding it to one would cost 60 ulp at x = -80.
  const float c = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float high = c * 1.44269502f;
  const float low = fma_rn(c, 1.92596303e-08f, fma_rn(c, 1.44269502f, -high));
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(high));
  return y * fma_rn(low, 0.693147182f, 1.0f);
#else
  return exp_poly(x);
#endif
}

// ---- tanh, gelu ----

// The same IEEE operations everywhere: softcapped logits and activations agree between devices bit for bit.
G4_FN float tanh(float x) {
  const uint32_t sign = f32_bits(x) & 0x80000000u;
  const float a = f32_from_bits(f32_bits(x) ^ sign);
  if (a < 0.55f) {
    const float z = a * a;
    float q = -0.00628179777f;
    q = q * z + 0.0210773125f;
    q = q * z - 0.0538537577f;
    q = q * z + 0.133326009f;
    q = q * z - 0.333333194f;
    return f32_from_bits(f32_bits(a + (a * z) * q) | sign);
  }
  const float y = 1.0f - 2.0f / (exp_poly(a + a) + 1.0f);  // 1 from a = 9.02 on; NaN stays NaN
  return f32_from_bits(f32_bits(y) | sign);
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), operations in the order of the reference.
G4_FN float gelu_tanh(float x) {
  const float inner = 0.797884561f * (x + 0.044715f * ((x * x) * x));
  return (0.5f * x) * (1.0f + tanh(inner));
}

// ---- sine and cosine, for the RoPE tables ----

// sin and cos of 0 <= x <= 3e5 in double. x must be a float's value: then x - k * P1 is exact.
G4_FN void sin_cos(double x, double* sine, double* cosine) {
  // pi / 2 in parts of 33, 33 and 53 bits; k has at most 18 bits, so its products with the first two are exact.
  const double kPart1 = 0x1.921fb544p+0, kPart2 = 0x1.0b4611a6p-34, kPart3 = 0x1.3198a2e037073p-69;
  const double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double k = (x * 0.6366197723675814 + kRound) - kRound;
  const double r = ((x - k * kPart1) - k * kPart2) - k * kPart3;
  const double z = r * r;
  // Taylor series on |r| <= pi / 4: the first term left out is below 2^-58.
  double s = 1.0 / 355687428096000.0;  // 1 / 17!
  s = s * z - 1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = r + (r * z) * s;
  double c = 1.0 / 20922789888000.0;  // 1 / 16!
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = (1.0 - 0.5 * z) + (z * z) * c;
  const int quadrant = (int)k & 3;
  const double sv = quadrant & 1 ? c : s, cv = quadrant & 1 ? s : c;
  *sine = quadrant & 2 ? -sv : sv;
  *cosine = quadrant == 1 || quadrant == 2 ? -cv : cv;
}

}  // namespace g4

#endif
