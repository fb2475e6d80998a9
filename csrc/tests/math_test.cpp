// The words of csrc/common/math.h against double (libm), over dense sweeps; each bound is what was seen, rounded up.
#include "reference.h"

#include <cfloat>

using namespace g4test;

namespace {

// Distance of an f32 result from a double, in ulps of the f32 the double rounds to.
double ulps(float got, double want) {
  const float near = (float)want;
  int e;
  std::frexp(near, &e);
  const double ulp = std::ldexp(1.0, std::max(e - 24, -149));
  return std::fabs((double)got - want) / ulp;
}

// Visits every `step`-th float of [from, to], both of one sign, by bits.
template <class F>
void sweep(float from, float to, uint32_t step, F f) {
  const uint32_t a = g4::f32_bits(from), b = g4::f32_bits(to), low = std::min(a, b), high = std::max(a, b);
  for (uint64_t u = low; u <= high; u += step) f(g4::f32_from_bits((uint32_t)u));
}

const float kInfinity = INFINITY;

}  // namespace

G4_TEST(fma_rounds_once) {
  Random r(1);
  for (int i = 0; i < 2000000; i++) {
    float a = g4::f32_from_bits((uint32_t)r.next()), b = g4::f32_from_bits((uint32_t)r.next());
    float c = g4::f32_from_bits((uint32_t)r.next());
    if (i % 2) {  // near cancellation: c close to -a * b
      a = r.normal(), b = r.normal();
      c = g4::f32_from_bits(g4::f32_bits(-(a * b)) + r.below(5) - 2);
    }
    const float got = g4::fma_rn(a, b, c), want = std::fma(a, b, c);
    const bool same = (got != got && want != want) || g4::f32_bits(got) == g4::f32_bits(want);
    G4_CHECK(same, "fma(%a, %a, %a) = %a, want %a", a, b, c, got, want);
  }
  // A tie of f32 that the double sum hides: 1 + 2^-24 + 2^-80 rounds up, by two roundings it would round to even.
  const float tiny = 0x1p-80f, half = 0x1p-24f;
  G4_CHECK(g4::fma_rn(0x1p-40f, 0x1p-40f, 1.0f) == 1.0f, "below half an ulp");
  G4_CHECK(g4::fma_rn(1.0f + half * 2, 1.0f, half) == 1.0f + half * 4, "tie to even");
  G4_CHECK(g4::fma_rn(1.0f + 0x1p-23f, 1.0f + 0x1p-23f, -tiny) == 1.0f + 0x1p-22f, "tail decides");
}

G4_TEST(rsqrt_is_within_1_5_ulp) {
  double worst = 0;
  sweep(1e-30f, 1e30f, 997, [&](float x) { worst = std::max(worst, ulps(g4::rsqrt(x), 1.0 / std::sqrt((double)x))); });
  std::printf("     rsqrt: %.3f ulp\n", worst);
  G4_CHECK(worst < 1.5, "%f ulp", worst);
}

G4_TEST(exp_is_within_1_ulp) {
  double worst = 0, at = 0, subnormal = 0;
  auto visit = [&](float x) {
    const double want = std::exp((double)x);
    if (want > FLT_MAX) return;
    const double d = ulps(g4::exp(x), want);
    if (want < FLT_MIN) subnormal = std::max(subnormal, d);
    else if (d > worst) worst = d, at = x;
  };
  sweep(1e-9f, 88.73f, 61, visit);
  sweep(-1e-9f, -104.0f, 61, visit);
  std::printf("     exp: %.3f ulp at %a; %.3f ulp of the smallest subnormal below 2^-126\n", worst, at, subnormal);
  G4_CHECK(worst < 1.0 && subnormal < 1.0, "%f ulp at %a, subnormal %f", worst, at, subnormal);
}

G4_TEST(exp_of_special_values) {
  G4_CHECK(g4::exp(0.0f) == 1.0f && g4::exp(-0.0f) == 1.0f, "exp(0)");
  G4_CHECK(g4::exp(-kInfinity) == 0.0f && !std::signbit(g4::exp(-kInfinity)), "exp(-inf)");
  G4_CHECK(g4::exp(kInfinity) == kInfinity && g4::exp(1e30f) == kInfinity && g4::exp(89.5f) == kInfinity, "overflow");
  G4_CHECK(g4::exp(-1e30f) == 0.0f && g4::exp(-105.0f) == 0.0f && g4::exp(-104.0f) == 0.0f, "underflow");
  G4_CHECK(std::isnan(g4::exp(NAN)) && std::isnan(g4::exp(-NAN)), "exp(NaN)");
  G4_CHECK(g4::exp(-103.0f) > 0.0f && g4::exp(88.7f) < kInfinity, "edges");
}

G4_TEST(tanh_is_within_2_ulp) {
  double worst = 0, at = 0;
  sweep(1e-30f, 20.0f, 61, [&](float x) {
    const double d = ulps(g4::tanh(x), std::tanh((double)x));
    if (d > worst) worst = d, at = x;
    G4_CHECK(g4::f32_bits(g4::tanh(-x)) == (g4::f32_bits(g4::tanh(x)) ^ 0x80000000u), "tanh is odd, %a", x);
  });
  std::printf("     tanh: %.3f ulp at %a\n", worst, at);
  G4_CHECK(worst < 2.0, "%f ulp at %a", worst, at);
}

G4_TEST(tanh_of_special_values) {
  G4_CHECK(g4::tanh(kInfinity) == 1.0f && g4::tanh(-kInfinity) == -1.0f && g4::tanh(9.1f) == 1.0f, "saturates");
  G4_CHECK(std::isnan(g4::tanh(NAN)), "NaN");
  G4_CHECK(g4::tanh(0.0f) == 0.0f && std::signbit(g4::tanh(-0.0f)), "signed zero");
  G4_CHECK(g4::tanh(1e-40f) == 1e-40f, "subnormal");
}

// Every bf16 gate there is.
G4_TEST(gelu_of_every_bf16_rounds_like_double) {
  int off = 0, worst = 0;
  for (int b = 0; b < 65536; b++) {
    const float x = widen((uint16_t)b);
    if (!std::isfinite(x)) continue;
    const double inner = 0.7978845608028654 * (x + 0.044715 * (double)x * x * x);
    const double want = 0.5 * x * (1.0 + std::tanh(inner));
    const uint16_t got = g4::f32_to_bf16(g4::gelu_tanh(x)), near = round_reference(want);
    if (x < -3.0f) {  // 1 + tanh cancels in f32, in the reference too: what is left is an absolute error
      G4_CHECK(std::fabs(widen(got) - want) <= 2e-7 * std::fabs(x) + std::fabs(want) / 256, "gelu(%a) = %a, want %a", x,
               widen(got), want);
      continue;
    }
    const int d = std::abs(ordinal(got) - ordinal(near));
    off += d != 0, worst = std::max(worst, d);
  }
  std::printf("     gelu: %d bf16 values at or above -3 round otherwise, at most %d ulp away\n", off, worst);
  G4_CHECK(worst <= 1 && off < 100, "%d off, %d ulp", off, worst);
  G4_CHECK(std::isnan(g4::gelu_tanh(NAN)) && g4::gelu_tanh(kInfinity) == kInfinity, "special values");
}

G4_TEST(sine_and_cosine_are_accurate_to_3_units_of_2_to_minus_53) {
  Random r(2);
  double worst = 0;
  auto visit = [&](float x) {
    double s, c;
    g4::sin_cos(x, &s, &c);
    const long double ws = sinl((long double)x), wc = cosl((long double)x);
    worst = std::max(worst, (double)(fabsl(s - ws) / fabsl(ws)) * 0x1p53);
    worst = std::max(worst, (double)(fabsl(c - wc) / fabsl(wc)) * 0x1p53);
  };
  sweep(1e-6f, 3e5f, 401, visit);
  for (int i = 0; i < 300000; i++) visit((float)r.below(300000));
  for (int i = 1; i < 190000; i++) visit((float)(i * 1.5707963267948966));  // nearest floats to multiples of pi / 2
  std::printf("     sin_cos: relative error %.3f * 2^-53\n", worst);
  G4_CHECK(worst < 3.0, "%f * 2^-53", worst);
  double s, c;
  g4::sin_cos(0.0, &s, &c);
  G4_CHECK(s == 0.0 && c == 1.0, "at 0");
}
