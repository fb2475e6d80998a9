// The norms, RoPE and the stores of qkv_prep against plain code written from the rules.
#include <algorithm>

#include "kv_cache.h"

using namespace g4test;

namespace {

constexpr float kEps = 1e-6f;
constexpr int kPositions = 300;

float f32(uint16_t b) { return g4::bf16_to_f32(b); }
uint16_t bf16(float f) { return g4::f32_to_bf16(f); }

// RN by the row rule: 256 lanes of 8-element groups, then a halving tree.
std::vector<uint16_t> plain_norm(const uint16_t* x, const uint16_t* w, int n) {
  std::vector<float> lane(256, 0.0f);
  for (int i = 0; i < n; i++) lane[i / 8 % 256] = lane[i / 8 % 256] + f32(x[i]) * f32(x[i]);
  for (int half = 128; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
  const float scale = 1.0f / std::sqrt(lane[0] / (float)n + kEps);
  std::vector<uint16_t> y(n);
  for (int i = 0; i < n; i++) y[i] = w ? bf16(f32(x[i]) * scale * f32(w[i])) : bf16(f32(x[i]) * scale);
  return y;
}

// y = x cos + rot(x) sin, every product and the sum rounded; rot(x) = (-x[i + n/2], x[i - n/2]).
std::vector<uint16_t> plain_rope(const std::vector<uint16_t>& x, const uint16_t* cos, const uint16_t* sin, int pairs) {
  const int half = (int)x.size() / 2;
  std::vector<uint16_t> y = x;
  for (int i = 0; i < pairs; i++) {
    const float a = f32(x[i]), b = f32(x[i + half]), c = f32(cos[i]), s = f32(sin[i]);
    y[i] = bf16(f32(bf16(a * c)) + f32(bf16(-b * s)));
    y[i + half] = bf16(f32(bf16(b * c)) + f32(bf16(a * s)));
  }
  return y;
}

struct Shape {
  int hd, pairs, heads, kv_heads, page;
  bool k_eq_v;
};

struct Run {
  std::vector<uint16_t> qkv, q_weight, k_weight, cos, sin, q_out;
  int width;
};

Run run(const Shape& s, Cache& cache, const std::vector<int32_t>& position, const std::vector<int32_t>& slot,
        Random& random) {
  Run r;
  const int rows = (int)position.size();
  r.width = (s.heads + s.kv_heads * (s.k_eq_v ? 1 : 2)) * s.hd;
  const auto fill = [&](std::vector<uint16_t>& x, size_t n, float scale, float shift) {
    x.resize(n);
    for (auto& e : x) e = bf16(random.normal() * scale + shift);
  };
  fill(r.qkv, (size_t)rows * r.width, 3.0f, 0.0f);
  fill(r.q_weight, s.hd, 0.3f, 1.0f);
  fill(r.k_weight, s.hd, 0.3f, 0.5f);
  for (int i = 0; i < kPositions * s.pairs; i++) {
    const float angle = random.uniform() * 6.2831853f;
    r.cos.push_back(bf16(std::cos(angle)));
    r.sin.push_back(bf16(std::sin(angle)));
  }
  for (int i = 0; i < s.hd; i++) r.qkv[i] = 0;  // a head of zeros: eps carries it
  Buffer<uint16_t> qkv(r.qkv), qw(r.q_weight), kw(r.k_weight), cos(r.cos), sin(r.sin);
  Buffer<uint16_t> q_out((size_t)rows * s.heads * s.hd);
  Buffer<int32_t> dposition(position), dslot(slot);
  G4QkvPrepParams p{qkv.ptr(),   qw.ptr(),   kw.ptr(), cos.ptr(), sin.ptr(), dposition.ptr(), dslot.ptr(),
                    q_out.ptr(), cache.view, rows,     s.heads,   s.pairs,   s.k_eq_v,        kEps};
  const Dim grid{(uint32_t)rows, (uint32_t)(s.heads + 2 * s.kv_heads + 7) / 8, 1};
  G4_LAUNCH(g4_qkv_prep, p, grid, G4_ROW_THREADS, 8192);
  r.q_out = q_out.download();
  return r;
}

// Checks q_out and both pools, every element of them: what was not stored must be as it was.
void check(const Shape& s, const Run& r, const Cache& cache, std::vector<uint16_t> k, std::vector<uint16_t> v,
           const std::vector<int32_t>& position, const std::vector<int32_t>& slot) {
  for (size_t row = 0; row < position.size(); row++) {
    const uint16_t* x = &r.qkv[row * r.width];
    const int pos = position[row];
    const auto rope = [&](const std::vector<uint16_t>& head) {
      return plain_rope(head, &r.cos[pos * s.pairs], &r.sin[pos * s.pairs], s.pairs);
    };
    for (int h = 0; h < s.heads; h++) {
      std::vector<uint16_t> want(s.hd, 0);
      if (slot[row] >= 0)
        want = rope(plain_norm(x + h * s.hd, r.q_weight.data(), s.hd));
      for (int d = 0; d < s.hd; d++)
        G4_CHECK(r.q_out[(row * s.heads + h) * s.hd + d] == want[d], "q of row %zu head %d dim %d: %04x, want %04x",
                 row, h, d, r.q_out[(row * s.heads + h) * s.hd + d], want[d]);
    }
    if (slot[row] < 0) continue;
    const int page = cache.page(slot[row], pos);
    if (page < 0) continue;
    for (int h = 0; h < s.kv_heads; h++) {
      const uint16_t* k0 = x + (s.heads + h) * s.hd;
      const uint16_t* v0 = s.k_eq_v ? k0 : k0 + s.kv_heads * s.hd;
      const auto want_k = rope(plain_norm(k0, r.k_weight.data(), s.hd));
      const auto want_v = plain_norm(v0, nullptr, s.hd);
      for (int d = 0; d < s.hd; d++) {
        const long long base = ((long long)page * s.kv_heads + h) * s.page * s.hd;
        k[base + g4::k_offset(pos % s.page, d, s.hd)] = want_k[d];
        v[base + g4::v_offset(pos % s.page, d, s.hd)] = want_v[d];
      }
    }
  }
  const auto got_k = cache.k(), got_v = cache.v();
  for (size_t i = 0; i < k.size(); i++) {
    G4_CHECK(got_k[i] == k[i], "K element %zu: %04x, want %04x", i, got_k[i], k[i]);
    G4_CHECK(got_v[i] == v[i], "V element %zu: %04x, want %04x", i, got_v[i], v[i]);
  }
}

const Shape kShapes[] = {
    {256, 128, 16, 8, 32, false},  // sliding 12B
    {512, 64, 16, 1, 16, true},    // global 12B
    {512, 64, 8, 2, 32, false},    // global E4B
    {256, 128, 4, 2, 16, true},
    {128, 64, 2, 1, 16, false},
    {64, 8, 3, 1, 16, true},
    {32, 16, 1, 1, 32, false},
};

}  // namespace

G4_TEST(qkv_prep_is_norm_then_rope_then_the_fragment_order_for_every_shape) {
  for (const Shape& s : kShapes) {
    Random random(10 + s.hd + s.heads);
    Cache cache(4, kPositions / s.page + 1, s.page, s.kv_heads, s.hd, 0, random);
    const std::vector<int32_t> position{0, 1, 15, 16, 77, 299}, slot{3, 0, 1, 1, 2, 0};
    for (size_t i = 0; i < position.size(); i++) cache.grant(slot[i], position[i]);
    cache.upload();
    const auto k = cache.k(), v = cache.v();
    check(s, run(s, cache, position, slot, random), cache, k, v, position, slot);
  }
}

G4_TEST(qkv_prep_writes_nothing_for_padding_or_a_page_not_granted) {
  for (const Shape& s : kShapes) {
    Random random(20 + s.hd + s.heads);
    Cache cache(2, kPositions / s.page + 1, s.page, s.kv_heads, s.hd, 0, random);
    const std::vector<int32_t> position{-5, 40, 1000000, 41, 200}, slot{-1, 0, -1, 1, 1};
    cache.grant(0, 40);
    cache.upload();
    const auto k = cache.k(), v = cache.v();
    check(s, run(s, cache, position, slot, random), cache, k, v, position, slot);
  }
}

G4_TEST(qkv_prep_of_a_layer_that_shares_k_and_v_gives_q_alone) {
  // E2B and E4B, and fewer heads than a block has warps.
  for (const Shape& s : {Shape{256, 128, 8, 0, 16, false}, {512, 64, 8, 0, 16, false}, {256, 128, 3, 0, 16, false}}) {
    Random random(40 + s.hd);
    Cache cache(2, kPositions / s.page + 1, s.page, 1, s.hd, 0, random);
    const std::vector<int32_t> position{3, 0, 16, 299}, slot{0, -1, 1, 1};
    for (size_t i = 0; i < position.size(); i++)
      if (slot[i] >= 0) cache.grant(slot[i], position[i]);
    cache.upload();
    const auto k = cache.k(), v = cache.v();
    cache.view.kv_heads = 0;
    check(s, run(s, cache, position, slot, random), cache, k, v, position, slot);
  }
}

G4_TEST(qkv_prep_stores_into_a_ring_and_into_chunk_scratch) {
  const Shape s = kShapes[0];
  Random random(30);
  Cache ring(2, 3, s.page, s.kv_heads, s.hd, 0, random);
  std::vector<int32_t> position{250, 251, 280}, slot{1, 1, 1};
  for (int32_t p : position) ring.grant(1, p);
  ring.upload();
  auto k = ring.k(), v = ring.v();
  check(s, run(s, ring, position, slot, random), ring, k, v, position, slot);

  Cache scratch(0, 4, s.page, s.kv_heads, s.hd, 5, random);  // positions 160..
  position = {170, 171, 172, 270};
  slot = {0, 0, 0, 0};
  scratch.upload();
  k = scratch.k(), v = scratch.v();
  check(s, run(s, scratch, position, slot, random), scratch, k, v, position, slot);
}

G4_TEST(fragment_order_gives_every_cell_of_a_page_one_place) {
  for (int hd : {32, 64, 256, 512})
    for (int page : {16, 32}) {
      std::vector<int> seen_k(page * hd, 0), seen_v(page * hd, 0);
      for (int key = 0; key < page; key++)
        for (int d = 0; d < hd; d++) {
          seen_k.at(g4::k_offset(key, d, hd))++, seen_v.at(g4::v_offset(key, d, hd))++;
          // What attention relies on: 16 keys are one run.
          G4_CHECK(g4::k_offset(key, d, hd) / (16 * hd) == key / 16, "K of key %d", key);
          G4_CHECK(g4::v_offset(key, d, hd) / (16 * hd) == key / 16, "V of key %d", key);
        }
      G4_CHECK(std::count(seen_k.begin(), seen_k.end(), 1) == page * hd, "K of page %d, hd %d", page, hd);
      G4_CHECK(std::count(seen_v.begin(), seen_v.end(), 1) == page * hd, "V of page %d, hd %d", page, hd);
    }
}
