// What numerics section 5 assumes of the tensor cores, asked of the instruction itself, and the words of math.h where
// the kernels run them. On the host the product is the twin of mma.h, which must keep the same promises.
#include "reference.h"
#include "words.h"

using namespace g4test;

extern "C" void test_math_word(G4SoftThread*, const void*);
extern "C" void test_product_chain(G4SoftThread*, const void*);
extern "C" void test_wgmma_chain(G4SoftThread*, const void*);

namespace {

float bits(uint32_t u) { return g4::f32_from_bits(u); }

// One case: d [16][8] = c + a b, a chain of steps.
struct Case {
  int steps;
  Bf16s a, b;            // [steps][16 rows][16 depths], [steps][8 columns][16 depths]
  std::vector<float> c;  // [16][8]
  explicit Case(int steps_) : steps(steps_), a(steps * 256), b(steps * 128), c(128) {}
  uint16_t& at_a(int s, int row, int depth) { return a[(s * 16 + row) * 16 + depth]; }
  uint16_t& at_b(int s, int column, int depth) { return b[(s * 8 + column) * 16 + depth]; }
};

// Products of all cases, in the depth order of pack_layout.h: a lane holds depths 4t .. 4t + 3 of rows g and g + 8.
std::vector<std::vector<float>> run(const std::vector<Case>& cases) {
  const int steps = cases[0].steps;
  std::vector<uint32_t> a, b;
  std::vector<float> c;
  for (const Case& one : cases) {
    G4_CHECK(one.steps == steps, "one chain length a launch");
    for (int s = 0; s < steps; s++)
      for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 8; e += 2) {
          const uint16_t* pair = &one.a[(s * 16 + g + e / 2 % 2 * 8) * 16 + t * 4 + e / 4 * 2];
          a.push_back(pair[0] | (uint32_t)pair[1] << 16);
        }
        for (int e = 0; e < 4; e += 2) {
          const uint16_t* pair = &one.b[(s * 8 + g) * 16 + t * 4 + e];
          b.push_back(pair[0] | (uint32_t)pair[1] << 16);
        }
      }
    for (int lane = 0; lane < 32; lane++)
      for (int e = 0; e < 4; e++) c.push_back(one.c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2]);
  }
  Buffer<uint32_t> da(a), db(b);
  Buffer<float> dc(c), dd(c.size());
  ProductParams p = {da.ptr(), db.ptr(), dc.ptr(), dd.ptr(), steps};
  launch(test_product_chain, "test_product_chain", &p, Dim{(uint32_t)cases.size()}, 32, 0);
  const std::vector<float> d = dd.download();
  std::vector<std::vector<float>> out(cases.size(), std::vector<float>(128));
  for (size_t i = 0; i < d.size(); i++) {
    const int lane = i / 4 % 32, e = i % 4;
    out[i / 128][(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = d[i];
  }
  return out;
}

// A finite bf16 of any exponent, denormals included.
uint16_t wild(Random& r) {
  uint16_t v;
  do v = (uint16_t)r.next();
  while ((v & 0x7f80) == 0x7f80);
  return v;
}

// Accumulators of every kind a chain from +0 can hold: both signs, denormals, the largest, infinities, +0.
float accumulator(Random& r) {
  switch (r.below(6)) {
    case 0: return 0.0f;
    case 1: return bits((uint32_t)(r.next() & 0x807fffff) | 1u);
    case 2: return r.below(2) ? INFINITY : -INFINITY;
    case 3: return r.normal();
    default: return bits((uint32_t)r.next() & 0xff7fffff);
  }
}

void same_bits(float got, float want, const char* what, int at) {
  G4_CHECK(g4::f32_bits(got) == g4::f32_bits(want), "%s, element %d: %08x (%a), want %08x (%a)", what, at,
           g4::f32_bits(got), got, g4::f32_bits(want), want);
}

// 40 cases with one operand zero throughout and accumulators from `make`.
template <class Make>
void check_zero_operand(uint64_t seed, bool zero_a, uint16_t zero, Make make) {
  Random r(seed);
  std::vector<Case> cases;
  for (int i = 0; i < 40; i++) {
    Case one(1);
    for (uint16_t& v : one.a) v = zero_a ? zero : wild(r);
    for (uint16_t& v : one.b) v = zero_a ? wild(r) : zero;
    for (float& v : one.c) v = make(r);
    cases.push_back(one);
  }
  const auto d = run(cases);
  for (size_t i = 0; i < cases.size(); i++)
    for (int e = 0; e < 128; e++) same_bits(d[i][e], cases[i].c[e], zero_a ? "zero A" : "zero B", e);
}

std::vector<int> shuffled(Random& r, int n) {
  std::vector<int> order(n);
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n; i > 1; i--) std::swap(order[i - 1], order[r.below(i)]);
  return order;
}

Case random_case(Random& r, int steps, bool wide) {
  Case one(steps);
  for (Bf16s* side : {&one.a, &one.b})
    for (uint16_t& v : *side) {
      const float f = r.normal() * (wide ? std::ldexp(1.0f, (int)r.below(41) - 20) : 1.0f);
      v = g4::f32_to_bf16(f);
    }
  for (float& v : one.c) v = r.below(3) ? r.normal() : 0.0f;
  return one;
}

}  // namespace

G4_TEST(a_zero_operand_returns_the_accumulator_bit_for_bit) {
  check_zero_operand(1, true, 0x0000, accumulator);
  check_zero_operand(2, false, 0x0000, accumulator);
}

// A masked key's P is +0, but its V may have either sign, and so may products of a padded depth.
G4_TEST(a_negative_zero_operand_returns_the_accumulator_bit_for_bit) {
  check_zero_operand(3, true, 0x8000, accumulator);
  check_zero_operand(4, false, 0x8000, accumulator);
}

G4_TEST(a_negative_zero_accumulator_keeps_its_sign_or_never_stands_in_a_chain_from_zero) {
  Random r(5);
  std::vector<Case> cases;
  for (int i = 0; i < 200; i++) {  // cancellation, underflow from both sides, zeros of both signs
    Case one(4);
    for (Bf16s* side : {&one.a, &one.b})
      for (uint16_t& v : *side) {
        const uint16_t pool[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x0080, 0x8080, 0x3f80, 0xbf80, 0x1f80, 0x9f80};
        v = pool[r.below(i % 2 ? 10 : 6)];
      }
    cases.push_back(one);
  }
  int negative_zeros = 0;
  for (const auto& d : run(cases))
    for (float v : d) negative_zeros += g4::f32_bits(v) == 0x80000000u;
  std::printf("     -0 in chains from +0: %d of %d\n", negative_zeros, 200 * 128);
  if (negative_zeros) check_zero_operand(6, true, 0x0000, [](Random&) { return -0.0f; });
}

G4_TEST(permuting_rows_and_columns_permutes_the_products) {
  Random r(7);
  std::vector<Case> cases, moved;
  std::vector<std::vector<int>> rows, columns;
  for (int i = 0; i < 100; i++) {
    Case one = random_case(r, 6, i % 2), other(6);
    rows.push_back(shuffled(r, 16)), columns.push_back(shuffled(r, 8));
    for (int s = 0; s < 6; s++)
      for (int depth = 0; depth < 16; depth++) {
        for (int row = 0; row < 16; row++) other.at_a(s, row, depth) = one.at_a(s, rows[i][row], depth);
        for (int column = 0; column < 8; column++)
          other.at_b(s, column, depth) = one.at_b(s, columns[i][column], depth);
      }
    for (int e = 0; e < 128; e++) other.c[e] = one.c[rows[i][e / 8] * 8 + columns[i][e % 8]];
    cases.push_back(one), moved.push_back(other);
  }
  const auto d = run(cases), m = run(moved);
  for (int i = 0; i < 100; i++)
    for (int e = 0; e < 128; e++) same_bits(m[i][e], d[i][rows[i][e / 8] * 8 + columns[i][e % 8]], "permuted", e);
}

G4_TEST(nan_and_infinity_in_a_column_or_row_touch_no_other) {
  Random r(8);
  std::vector<Case> cases, dirty;
  for (int i = 0; i < 100; i++) {
    Case one = random_case(r, 3, false);
    cases.push_back(one);
    for (int depth = 0; depth < 16; depth++) {
      one.at_b(1, i % 8, depth) = depth % 2 ? 0x7fc0 : 0x7f80;
      one.at_a(1, i % 16, depth) = depth % 3 ? 0xffc0 : 0xff80;
    }
    dirty.push_back(one);
  }
  const auto clean = run(cases), d = run(dirty);
  for (int i = 0; i < 100; i++)
    for (int e = 0; e < 128; e++) {
      if (e / 8 == i % 16 || e % 8 == i % 8) G4_CHECK(std::isnan(d[i][e]), "NaN vanished, element %d", e);
      else same_bits(d[i][e], clean[i][e], "beside a NaN", e);
    }
}

G4_TEST(a_product_is_the_sum_of_its_terms) {
  Random r(9);
  double worst = 0;
  std::vector<Case> cases;
  for (int i = 0; i < 100; i++) cases.push_back(random_case(r, 1, i % 2));
  const auto d = run(cases);
  for (int i = 0; i < 100; i++)
    for (int e = 0; e < 128; e++) {
      double exact = cases[i].c[e], largest = std::fabs(exact);
      for (int k = 0; k < 16; k++) {
        const double term = (double)widen(cases[i].at_a(0, e / 8, k)) * widen(cases[i].at_b(0, e % 8, k));
        exact += term, largest = std::max(largest, std::fabs(term));
      }
      worst = std::max(worst, std::fabs(d[i][e] - exact) / largest);
    }
  std::printf("     error of one product: %.3f * 2^-24 of the largest term\n", worst * 0x1p24);
  G4_CHECK(worst <= 17 * 0x1p-23, "%g", worst);
}

// Information: whether the prompt GEMM could use wgmma and keep the bits of the decode GEMM.
G4_TEST(wgmma_computes_the_chain_and_the_bits_are_counted) {
  const int cases = 256, steps = 16;
  for (int wide = 0; wide < 2; wide++) {
    Random r(10 + wide);
    Bf16s a((size_t)cases * steps * 64 * 16), b((size_t)cases * steps * 8 * 16);
    for (Bf16s* side : {&a, &b})
      for (uint16_t& v : *side)
        v = g4::f32_to_bf16(r.normal() * (wide ? std::ldexp(1.0f, (int)r.below(31) - 15) : 1.0f));
    Buffer<uint16_t> da(a), db(b);
    Buffer<float> warps((size_t)cases * 512), group((size_t)cases * 512);
    ChainParams p = {da.ptr(), db.ptr(), warps.ptr(), group.ptr(), steps};
    launch(test_wgmma_chain, "test_wgmma_chain", &p, Dim{(uint32_t)cases}, 128, steps * 256);
    const std::vector<float> w = warps.download(), g = group.download();
    if (g4::f32_bits(g[0]) == 0xfbfbfbfbu) throw Skip{"an instruction of Hopper GPUs (sm_90a)"};
    int differ = 0;
    double worst = 0;
    for (size_t i = 0; i < w.size(); i++) {
      double exact = 0, magnitude = 0;
      for (int s = 0; s < steps; s++)
        for (int k = 0; k < 16; k++) {
          const double term = (double)widen(a[((i / 512 * steps + s) * 64 + i / 8 % 64) * 16 + k]) *
                              widen(b[((i / 512 * steps + s) * 8 + i % 8) * 16 + k]);
          exact += term, magnitude += std::fabs(term);
        }
      for (float v : {w[i], g[i]})
        G4_CHECK(std::fabs(v - exact) <= steps * magnitude * 0x1p-22, "element %zu: mma %g, wgmma %g, exact %g", i,
                 w[i], g[i], exact);
      differ += g4::f32_bits(w[i]) != g4::f32_bits(g[i]);
      worst = std::max(worst, std::fabs((double)w[i] - g[i]) / std::max(magnitude, 1e-300));
    }
    std::printf("     wgmma against mma.sync, %s: bits %s, %d of %zu elements differ, at most %g of the magnitudes\n",
                wide ? "wide exponents" : "unit normal", differ ? "DIFFER" : "EQUAL", differ, w.size(), worst);
  }
}

namespace {

std::vector<float> word(MathWord which, const std::vector<float>& a, const std::vector<float>& b = {},
                        const std::vector<float>& c = {}) {
  Buffer<float> da(a), db(b.empty() ? a : b), dc(c.empty() ? a : c), out(a.size());
  MathWordParams p = {da.ptr(), db.ptr(), dc.ptr(), out.ptr(), (int)a.size(), which};
  launch(test_math_word, "test_math_word", &p, Dim{on_gpu() ? 1024u : 1u}, 256, 0);
  return out.download();
}

// NaN has many bit patterns and each device its own.
void same_words(const char* name, const std::vector<float>& got, const std::function<float(size_t)>& want) {
  for (size_t i = 0; i < got.size(); i++) {
    const float w = want(i);
    G4_CHECK(g4::f32_bits(got[i]) == g4::f32_bits(w) || (std::isnan(got[i]) && std::isnan(w)),
             "%s, input %zu: %a, want %a", name, i, got[i], w);
  }
}

// Any bits, and numbers of common size.
std::vector<float> inputs(Random& r) {
  std::vector<float> v(on_gpu() ? 1 << 22 : 1 << 16);
  for (size_t i = 0; i < v.size(); i++) v[i] = i % 2 ? bits((uint32_t)r.next()) : r.normal() * 8;
  return v;
}

}  // namespace

G4_TEST(every_word_but_exp_has_the_bits_of_the_host) {
  Random r(12);
  const std::vector<float> a = inputs(r), b = inputs(r), c = inputs(r);
  same_words("fma", word(kWordFma, a, b, c), [&](size_t i) { return g4::fma_rn(a[i], b[i], c[i]); });
  same_words("divide", word(kWordDivide, a, b), [&](size_t i) { return a[i] / b[i]; });
  same_words("sqrt", word(kWordSqrt, a), [&](size_t i) { return g4::sqrt(a[i]); });
  same_words("rsqrt", word(kWordRsqrt, a), [&](size_t i) { return g4::rsqrt(a[i]); });
  same_words("tanh", word(kWordTanh, a), [&](size_t i) { return g4::tanh(a[i]); });
  same_words("gelu", word(kWordGelu, a), [&](size_t i) { return g4::gelu_tanh(a[i]); });
  same_words("bf16", word(kWordBf16, a), [&](size_t i) { return g4::round_bf16(a[i]); });
}

G4_TEST(exp_where_the_kernels_run_is_within_3_ulp) {
  std::vector<float> a;
  for (float x = -103.9f; x < 0.0f; x += on_gpu() ? 2.5e-5f : 1e-3f) a.push_back(x);
  for (float x : {0.0f, -0.0f, -INFINITY, -1e30f, -105.0f, -1e-9f, 88.0f}) a.push_back(x);
  const std::vector<float> got = word(kWordExp, a);
  double worst = 0, subnormal = 0;
  for (size_t i = 0; i < a.size(); i++) {
    const double want = std::exp((double)a[i]);
    int e;
    std::frexp((float)want, &e);
    const double ulps = std::fabs(got[i] - want) / std::ldexp(1.0, std::max(e - 24, -149));
    (want < 0x1p-126 ? subnormal : worst) = std::max(want < 0x1p-126 ? subnormal : worst, ulps);
  }
  std::printf("     exp: %.3f ulp; %.3f of the smallest subnormal below 2^-126\n", worst, subnormal);
  G4_CHECK(worst < 3.0 && subnormal < 3.0, "%f ulp, subnormal %f", worst, subnormal);
  G4_CHECK(word(kWordExp, {0.0f})[0] == 1.0f && word(kWordExp, {-INFINITY})[0] == 0.0f, "exp(0) and exp(-inf)");
}
