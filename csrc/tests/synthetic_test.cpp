// The made-up tensors against a plain reference: one element after the other, in double, placed by pack_layout.h.
#include "../common/pack_layout.h"
#include "reference.h"

using namespace g4test;

namespace {

double value_reference(uint32_t key, int center, int bits, double scale, uint64_t i) {
  uint32_t h = (uint32_t)(i & 0xffffffff) * 2654435769u + key + (uint32_t)(i >> 32) * 2135587861u;
  h = (h ^ h >> 16) * 2246822507u;
  h = (h ^ h >> 13) * 3266489909u;
  h ^= h >> 16;
  const long long levels = 1ll << bits;
  return (center + 2.0 * (double)(h / (uint32_t)(0x100000000ll / levels)) - (double)(levels - 1)) * scale;
}

Bf16s run(G4SyntheticParams p, size_t len) {
  Guarded<uint16_t> dst(len);
  p.dst = dst.ptr();
  launch(g4_synthetic, "g4_synthetic", &p, Dim{(uint32_t)((len / 8 + 2048) / 2048), 1, 1}, 256, 0);
  return dst.download();
}

uint16_t exact(double v) {
  const uint16_t b = round_reference(v);
  G4_CHECK(widen(b) == v, "%g is not a bf16", v);
  return b;
}

}  // namespace

G4_TEST(a_packed_synthetic_tensor_is_the_row_major_one_in_fragment_order) {
  for (int n : {1, 16, 17, 33, 256})
    for (int k : {8, 16, 40, 256, 3840}) {
      const uint32_t key = 0x1234567u * (uint32_t)(n + k);
      const G4SyntheticParams p = {nullptr, n, k, 1, key, 0, 7, 0x1p-13f};
      const int steps = (k + 15) / 16;
      Bf16s want((size_t)((n + 15) / 16) * steps * 256, 0);
      for (int row = 0; row < n; row++)
        for (int depth = 0; depth < k; depth++)
          want[g4::packed_offset(row, depth, steps)] =
              exact(value_reference(key, 0, 7, 0x1p-13, (uint64_t)row * k + depth));
      check_same(run(p, want.size()), want, "packed", n, k);
    }
}

G4_TEST(a_synthetic_vector_has_its_values_and_its_length) {
  for (int k : kOddSizes) {
    const G4SyntheticParams p = {nullptr, k, 1, 0, 99u, 128, 4, 0x1p-7f};
    Bf16s want(k);
    for (int i = 0; i < k; i++) want[i] = exact(value_reference(99u, 128, 4, 0x1p-7, i));
    check_same(run(p, want.size()), want, "vector", k);
  }
}

G4_TEST(synthetic_values_are_spread_evenly_and_tensors_differ) {
  const int count = 1 << 16;
  const G4SyntheticParams p = {nullptr, count, 1, 0, 1u, 0, 7, 1.0f}, q = {nullptr, count, 1, 0, 2u, 0, 7, 1.0f};
  const Bf16s a = run(p, count), b = run(q, count);
  double sum = 0, squares = 0, product = 0;
  int levels[256] = {};
  for (int i = 0; i < count; i++) {
    const double x = widen(a[i]), y = widen(b[i]);
    sum += x, squares += x * x, product += x * y;
    levels[(int)x + 128]++;
  }
  // 128 levels of 512 +- 23 (one sigma) each; a mean and a correlation of zero within five sigmas.
  for (int v = -127; v <= 127; v += 2) G4_CHECK(std::abs(levels[v + 128] - 512) < 140, "%d: %d", v, levels[v + 128]);
  G4_CHECK(std::fabs(sum / count) < 5 * 73.9 / 256, "mean %g", sum / count);
  G4_CHECK(std::fabs(squares / count - 5461) < 5 * 4884 / 256.0, "mean square %g", squares / count);
  G4_CHECK(std::fabs(product / count) < 5 * 5461 / 256.0, "correlation %g", product / count);
}
