// The arithmetic of the sampler: ln, Philox4x32-10, noise, order-preserving keys and fixed-point masses. Every word
// gives the same bits on the host, on a GPU and in src/sampler/math.rs and philox.rs, which mirror it line by line: a
// token is then a function of logits, parameters, seed and output index alone, and the Rust oracle repeats it.
//
//   word        operations                              against double, as seen by the tests
//   exp_poly    math.h: IEEE mul and add                0.95 ulp
//   ln          IEEE mul, add and one division          below 1 ulp, x a normal number
//   uniform     (w + 1/2) 2^-32 rounded once            the scaling is exact, so the add is the only rounding
//   gumbel      -ln(-ln(1 - u)); a series for small u   u = 2^-33 gives 22.87, u = 1 gives minus infinity
//   mass        floor(e^d 2^40), d <= 0                 integers: their sums have one value in any order
//
// No fma: IEEE multiplications and additions vectorise on the host and mirror in Rust without a library call.
// Test: src/sampler/{math,philox}.rs with the known answers of Random123, and cargo test --test sampler for the mirror.
#ifndef G4_SAMPLING_MATH_H
#define G4_SAMPLING_MATH_H

#include "cta.h"
#include "math.h"

namespace g4 {

// ---- Logarithm ----

// Natural logarithm of a normal positive number; 0 gives minus infinity, plus infinity and NaN pass through.
// x = 2^k m, m in [sqrt 1/2, sqrt 2); ln m = 2 atanh(s), s = (m - 1) / (m + 1).
G4_FN float ln(float x) {
  const uint32_t bits = f32_bits(x);
  if (!(x > 0.0f)) return x == 0.0f ? f32_from_bits(0xff800000u) : f32_from_bits(0x7fc00000u);
  if (bits >= 0x7f800000u) return x;
  const uint32_t shifted = bits + (0x3f800000u - 0x3f3504f3u);
  const float k = (float)((int)(shifted >> 23) - 127);
  const float f = f32_from_bits((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f / (2.0f + f), z = s * s, w = z * z;
  const float even = w * (0.400009721f + w * 0.242790788f);
  const float odd = z * (0.666666627f + w * 0.284987867f);
  const float half = (0.5f * f) * f;
  return k * 0.693138123f - ((half - (s * (half + (odd + even)) + k * 9.05800061e-06f)) - f);
}

// ---- Philox4x32-10 (Random123) ----

struct Words4 {
  uint32_t w[4];
};

G4_FN Words4 philox(const uint32_t counter[4], uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  G4_UNROLL
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ key0, c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ key1, c3 = (uint32_t)a;
    key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
  }
  return Words4{{c0, c1, c2, c3}};
}

// What a draw is for; draws of different purposes are independent. 2 to 4 and 6 belong to speculation.
enum Purpose { kTokenNoise = 0, kGroupNoise = 1, kXtcGate = 5 };

// Who draws: one request's choice at one output index.
struct Draw {
  uint32_t key0, key1, output_index, choice;
};

constexpr uint32_t kDrawVersion = 1, kDrawDomain = 0x67346476u;

// The random word of an element: a token id, a group, or 0 for a scalar draw. Four elements share a block.
G4_FN uint32_t draw_word(const Draw& d, Purpose purpose, uint32_t element) {
  const uint32_t counter[4] = {element >> 2, d.output_index,
                               (uint32_t)purpose | (d.choice & 0xffffu) << 8 | kDrawVersion << 24, kDrawDomain};
  const Words4 r = philox(counter, d.key0, d.key1);
  const uint32_t low = element & 1 ? r.w[1] : r.w[0], high = element & 1 ? r.w[3] : r.w[2];
  return element & 2 ? high : low;
}

// ---- Noise ----

G4_FN float uniform(uint32_t word) { return (float)word * 2.32830644e-10f + 1.16415322e-10f; }

// Standard Gumbel noise; small words win.
G4_FN float gumbel(uint32_t word) {
  const float u = uniform(word);
  const float series = (((0.25f * u + 0.333333343f) * u + 0.5f) * u + 1.0f) * u;
  return -ln(u < 0.015625f ? series : -ln(1.0f - u));
}

// ---- Keys: the order of floats as unsigned integers ----

constexpr uint32_t kKeyNan = 0xffffffffu, kKeyNegInf = 0x007fffffu;

// NaN and plus infinity, which no good row holds, are above all; -0 and +0 share a key.
G4_FN uint32_t key_of(float v) {
  const uint32_t u = f32_bits(v + 0.0f);
  if ((u & 0x7fffffffu) > 0x7f800000u || u == 0x7f800000u) return kKeyNan;
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
G4_FN float key_value(uint32_t key) { return f32_from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Greatest value, then lowest id, as one integer; 0 stands for no candidate.
G4_FN unsigned long long pick_key(float v, int id) { return (unsigned long long)key_of(v) << 32 | (uint32_t)~id; }
G4_FN int pick_id(unsigned long long key) { return (int)~(uint32_t)key; }

// ---- Masses: probabilities in 40-bit fixed point, relative to the best token ----

constexpr float kMassOne = 1099511627776.0f;

G4_FN unsigned long long mass(float distance) { return (unsigned long long)(exp_poly(-distance) * kMassOne); }
// The same, times the distance: sums of it over sums of masses are mean distances.
G4_FN unsigned long long mass_distance(float distance) {
  return (unsigned long long)((exp_poly(-distance) * distance) * kMassOne);
}

// The least whole number not below share * total, at least 1: "mass < share * total" as a test on integers.
G4_FN unsigned long long mass_share(float share, unsigned long long total) {
  const double product = (double)share * (double)total;
  unsigned long long whole = (unsigned long long)product;
  if ((double)whole < product) whole++;
  return whole ? whole : 1;
}

}  // namespace g4

#endif
