// The kernels of a mixture of experts against plain references, bit for bit; their products against g4_gemm on one row
// alone with one expert's matrix. With every file built with -DG4_GEMM_BODIES the same tests check the index arithmetic
// of the products' GPU bodies.
#include <algorithm>
#include <map>

#include "../common/pack_layout.h"
#include "../kernels/gemm.cuh"
#include "reference.h"

using namespace g4test;

namespace {

constexpr float kEps = 1e-6f;

Dim grid(uint32_t x, uint32_t y = 1) { return Dim{x, y, 1}; }

float inverse_root(int width) { return (float)(1.0 / std::sqrt((double)width)); }

}  // namespace

// ---- expert_input ----

namespace {

// Spec 2.5, step by step, each "to bf16" spelt out.
Bf16s router_reference(const uint16_t* x, const uint16_t* scale, int width) {
  const float mean = sum_sq_reference(x, width) / (float)width, r = 1.0f / std::sqrt(mean + kEps);
  Bf16s out(width);
  for (int i = 0; i < width; i++) {
    const uint16_t n = round_reference(widen(x[i]) * r);
    const uint16_t scaled = round_reference(widen(n) * widen(scale[i]));
    out[i] = round_reference(widen(scaled) * inverse_root(width));
  }
  return out;
}

void check_input(Random& r, int rows, int width) {
  const size_t n = (size_t)rows * width;
  const Bf16s x = random_bf16(r, n, 3.0f), scale = random_bf16(r, width), weight = random_bf16(r, width);
  Guarded<uint16_t> dx(x), dscale(scale), dweight(weight), router(n), expert(n);
  G4ExpertInputParams p = {dx.ptr(),     dscale.ptr(), dweight.ptr(),        router.ptr(),
                           expert.ptr(), rows,         width,         inverse_root(width), kEps};
  launch(g4_expert_input, "g4_expert_input", &p, grid(rows), 256, 1024, r.next());
  Bf16s want_router, want_expert;
  for (int row = 0; row < rows; row++) {
    const uint16_t* of = &x[(size_t)row * width];
    const Bf16s a = router_reference(of, scale.data(), width), b = norm_reference(of, weight.data(), width, kEps);
    want_router.insert(want_router.end(), a.begin(), a.end());
    want_expert.insert(want_expert.end(), b.begin(), b.end());
  }
  check_same(router.download(), want_router, "router input", rows, width);
  check_same(expert.download(), want_expert, "expert input", rows, width);
}

}  // namespace

G4_TEST(expert_input_has_every_rounding_point) {
  Random r(1);
  for (int width : {1, 7, 8, 31, 64, 257, 2048, 2056, 6152, 6145}) check_input(r, 3, width);
  for (int rows : {1, 3, 40, 129}) check_input(r, rows, 2816);
}

// ---- expert_route ----

namespace {

struct Routes {
  std::vector<int32_t> expert;
  std::vector<float> weight;
};

// One row by the rule. Logits are finite.
void route_reference(const float* logits, const Bf16s& scale, int top, Routes& out) {
  const int experts = (int)scale.size();
  std::vector<int> order(experts);
  for (int e = 0; e < experts; e++) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const float largest = logits[order[0]];
  float lane[32] = {};
  for (int e = 0; e < experts; e++) lane[e % 32] += g4::exp_poly(logits[e] - largest);
  for (int stride = 16; stride > 0; stride /= 2)
    for (int i = 0; i < stride; i++) lane[i] += lane[i + stride];
  std::vector<float> probability(top);
  float chosen = 0;
  for (int rank = 0; rank < top; rank++) {
    probability[rank] = g4::exp_poly(logits[order[rank]] - largest) / lane[0];
    chosen += probability[rank];
  }
  for (int rank = 0; rank < top; rank++) {
    const float renormalised = probability[rank] / chosen;
    out.expert.push_back(order[rank]);
    out.weight.push_back(renormalised * widen(scale[order[rank]]));
  }
}

Routes route(const std::vector<float>& logits, const std::vector<int32_t>& slot, const Bf16s& scale, int top,
             uint64_t seed) {
  const int rows = (int)slot.size(), experts = (int)scale.size();
  Guarded<float> dlogits(logits), weight((size_t)rows * top);
  Guarded<int32_t> dslot(slot), expert((size_t)rows * top);
  Guarded<uint16_t> dscale(scale);
  G4ExpertRouteParams p = {dlogits.ptr(), dslot.ptr(), dscale.ptr(), expert.ptr(),
                           weight.ptr(),  rows,        experts,      top};
  launch(g4_expert_route, "g4_expert_route", &p, grid((rows + 7) / 8), 256, 0, seed);
  return {expert.download(), weight.download()};
}

std::vector<float> random_logits(Random& r, size_t n, float scale) {
  std::vector<float> v(n);
  for (float& f : v) f = r.normal() * scale;
  return v;
}

std::vector<float> row_of(const std::vector<float>& all, int row, int width) {
  return std::vector<float>(all.begin() + (size_t)row * width, all.begin() + (size_t)(row + 1) * width);
}

}  // namespace

G4_TEST(expert_route_follows_the_rule) {
  Random r(2);
  for (int experts : {1, 2, 16, 31, 33, 100, 128, 256})
    for (int top : {1, 4, 8, 16}) {
      if (top > experts) continue;
      const Bf16s scale = random_bf16(r, experts);
      for (int rows : {1, 3, 40, 129}) {
        const std::vector<float> logits = random_logits(r, (size_t)rows * experts, rows == 3 ? 30.0f : 2.0f);
        Routes want;
        for (int row = 0; row < rows; row++) route_reference(&logits[(size_t)row * experts], scale, top, want);
        const Routes got = route(logits, std::vector<int32_t>(rows, 5), scale, top, r.next());
        check_same(got.expert, want.expert, "experts", experts, top);
        check_same(got.weight, want.weight, "weights", experts, top);
      }
    }
}

G4_TEST(expert_weights_agree_with_double) {  // also: softmax over all, renormalised, is softmax over the chosen
  Random r(3);
  const int experts = 128, top = 8, rows = 50;
  const Bf16s scale = random_bf16(r, experts);
  const std::vector<float> logits = random_logits(r, rows * experts, 3.0f);
  const Routes got = route(logits, std::vector<int32_t>(rows, 0), scale, top, 0);
  for (int row = 0; row < rows; row++) {
    const int32_t* chosen = &got.expert[row * top];
    double sum = 0;
    for (int i = 0; i < top; i++) sum += std::exp((double)logits[row * experts + chosen[i]]);
    for (int i = 0; i < top; i++) {
      const double want = std::exp((double)logits[row * experts + chosen[i]]) / sum * widen(scale[chosen[i]]);
      const double off = std::fabs(got.weight[row * top + i] - want);
      G4_CHECK(off <= 2e-6 * std::fabs(want), "row %d rank %d: %g, want %g", row, i, got.weight[row * top + i], want);
    }
  }
}

G4_TEST(expert_ties_go_to_the_lower_id) {
  const int experts = 128, top = 8;
  const Bf16s scale(experts, 0x3f80);
  std::vector<float> logits(3 * experts, 0.0f);  // row 0: all alike; +0 and -0 are one value
  for (int e = 0; e < experts; e += 2) logits[e] = -0.0f;
  for (int e = 0; e < experts; e++) logits[experts + e] = (float)(e % 32 / 4);  // row 1: sixteen share the largest
  for (int e = 0; e < experts; e++) logits[2 * experts + e] = e >= 120 ? 1.0f : 2.0f - (e == 3);
  const Routes got = route(logits, {0, 1, 2}, scale, top, 1);
  const std::vector<int32_t> want = {0,  1,  2,  3,  4,  5,  6,  7,   //
                                     28, 29, 30, 31, 60, 61, 62, 63,  //
                                     0,  1,  2,  4,  5,  6,  7,  8};
  check_same(got.expert, want, "ties");
  for (float w : got.weight) G4_CHECK(std::fabs(w - 0.125f) < 1e-7f, "a weight of %g among eight alike", w);
}

G4_TEST(padding_rows_go_to_no_expert_and_no_row_sees_another) {
  Random r(4);
  const int experts = 128, top = 8, rows = 43;
  const Bf16s scale = random_bf16(r, experts);
  std::vector<float> logits = random_logits(r, rows * experts, 2.0f);
  std::vector<int32_t> slot(rows);
  for (int row = 0; row < rows; row++) slot[row] = row % 5 == 2 ? -1 : row;
  for (int row = 0; row < rows; row++)
    if (slot[row] < 0) logits[row * experts + 7] = std::nanf("");
  const Routes got = route(logits, slot, scale, top, r.next());
  for (int row = 0; row < rows; row++) {
    const Routes alone = route(row_of(logits, row, experts), {slot[row]}, scale, top, r.next());
    for (int i = 0; i < top; i++) {
      const size_t at = (size_t)row * top + i;
      G4_CHECK(got.expert[at] == alone.expert[i] && !std::memcmp(&got.weight[at], &alone.weight[i], 4), "row %d", row);
      if (slot[row] >= 0) continue;
      G4_CHECK(got.expert[at] == -1 && got.weight[at] == 0, "padding row %d: %d", row, got.expert[at]);
    }
  }
}

G4_TEST(logits_that_are_no_numbers_leave_experts_in_range_and_weights_nan) {
  Random r(5);
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (int experts : {16, 128})
    for (int form = 0; form < 5; form++) {
      const int top = 4;
      std::vector<float> logits = random_logits(r, experts, 2.0f);
      if (form == 0) logits[experts - 1] = nan;
      if (form == 1) std::fill(logits.begin(), logits.end(), nan);
      if (form == 2) logits[3] = inf, logits[9] = -nan;
      if (form == 3) std::fill(logits.begin(), logits.end(), -inf);
      if (form == 4) logits[1] = inf;
      const Routes got = route(logits, {0}, Bf16s(experts, 0x3f80), top, r.next());
      for (int i = 0; i < top; i++) {
        G4_CHECK(got.expert[i] >= 0 && got.expert[i] < experts, "form %d: expert %d", form, got.expert[i]);
        G4_CHECK(std::isnan(got.weight[i]), "form %d: weight %g", form, got.weight[i]);
        for (int j = 0; j < i; j++) G4_CHECK(got.expert[i] != got.expert[j], "form %d: one expert twice", form);
      }
    }
  // Minus infinity beside numbers is a logit like another: never chosen while there are others, and then of weight 0.
  std::vector<float> logits(16, -inf);
  logits[12] = 1.0f, logits[5] = 2.0f;
  const Routes got = route(logits, {0}, Bf16s(16, 0x3f80), 4, 0);
  check_same(got.expert, {5, 12, 0, 1}, "infinities");
  G4_CHECK(got.weight[2] == 0 && got.weight[3] == 0, "weights %g %g", got.weight[2], got.weight[3]);
}

// ---- expert_group ----

namespace {

struct Groups {
  std::vector<int32_t> list;
  std::vector<G4ExpertTile> tile;
};

int tiles_max(int pairs, int experts, int tile_tokens) {
  return pairs <= experts ? pairs : experts + (pairs - experts) / tile_tokens;
}

Groups group(const std::vector<int32_t>& expert, int experts, int tile_tokens, uint64_t seed) {
  const int pairs = (int)expert.size();
  Guarded<int32_t> dexpert(expert), list(pairs), count(1);
  Guarded<G4ExpertTile> tile(tiles_max(pairs, experts, tile_tokens));
  G4ExpertGroupParams p = {dexpert.ptr(), list.ptr(), tile.ptr(), count.ptr(), pairs, experts, tile_tokens};
  launch(g4_expert_group, "g4_expert_group", &p, grid(1), 256, 2112, seed);
  const int tiles = count.download()[0];
  G4_CHECK(tiles >= 0 && tiles <= (int)tile.n, "%d tiles of at most %zu", tiles, tile.n);
  Groups g = {list.download(), tile.download()};
  g.tile.resize(tiles);
  return g;
}

void check_groups(const std::vector<int32_t>& expert, int experts, int tile_tokens, uint64_t seed) {
  const Groups g = group(expert, experts, tile_tokens, seed);
  std::map<int, int> held, left;
  for (int32_t e : expert)
    if (e >= 0) held[e]++, left[e]++;
  std::vector<bool> seen(expert.size());
  int next = 0, before = -1;
  for (const G4ExpertTile& t : g.tile) {
    G4_CHECK(t.expert >= before && t.first == next, "tile of %d at %d, expected at %d", t.expert, t.first, next);
    G4_CHECK(t.count == std::min(tile_tokens, left[t.expert]) && t.count > 0, "expert %d: %d", t.expert, t.count);
    left[t.expert] -= t.count;
    before = t.expert, next += t.count;
    for (int i = t.first; i < t.first + t.count; i++) {
      const int pair = g.list[i];
      G4_CHECK(pair >= 0 && pair < (int)expert.size() && !seen[pair], "pair %d", pair);
      G4_CHECK(expert[pair] == t.expert, "pair %d of expert %d in a tile of %d", pair, expert[pair], t.expert);
      seen[pair] = true;
    }
  }
  for (const auto& [e, count] : left) G4_CHECK(count == 0, "%d of %d pairs of expert %d in no tile", count, held[e], e);
}

// Distinct experts for each row, as the router gives them; every fifth row is padding where `padded`.
std::vector<int32_t> random_routes(Random& r, int rows, int experts, int top, bool padded) {
  std::vector<int32_t> out;
  std::vector<int32_t> order(experts);
  for (int e = 0; e < experts; e++) order[e] = e;
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < top; i++) {
      std::swap(order[i], order[i + r.below(experts - i)]);
      out.push_back(padded && row % 5 == 1 ? -1 : order[i]);
    }
  return out;
}

}  // namespace

G4_TEST(expert_group_puts_every_pair_into_one_tile_of_its_expert) {
  Random r(6);
  for (int experts : {1, 16, 128, 256})
    for (int top : {1, 4, 8})
      for (int rows : {1, 3, 40, 129, 700})
        for (int tile : {8, 64}) {
          if (top > experts) continue;
          check_groups(random_routes(r, rows, experts, top, rows % 2), experts, tile, r.next());
        }
}

G4_TEST(expert_group_at_its_bounds) {
  Random r(7);
  for (int tile : {1, 8, 64}) {
    check_groups(std::vector<int32_t>(40, -1), 16, tile, r.next());   // nobody
    check_groups(std::vector<int32_t>(129, 15), 16, tile, r.next());  // all to one
    // As many tiles as there can be: one pair for every expert, and whole tiles and one more for the rest.
    std::vector<int32_t> most;
    for (int e = 0; e < 16; e++) most.insert(most.end(), 1 + 3 * tile, e);
    G4_CHECK((int)group(most, 16, tile, 1).tile.size() == tiles_max((int)most.size(), 16, tile), "tile %d", tile);
    check_groups(most, 16, tile, r.next());
    std::vector<int32_t> few = {9, 2, 5};
    G4_CHECK(group(few, 16, tile, 1).tile.size() == 3, "three pairs of three experts");
  }
}

// ---- expert_gemm ----

namespace {

int packed_len(int n, int k) { return g4::gemm_tiles(n) * g4::depth_steps(k) * 256; }

Bf16s pack(const Bf16s& rows, int n, int k) {
  Bf16s packed(packed_len(n, k), 0);
  for (int r = 0; r < n; r++)
    for (int d = 0; d < k; d++)
      packed[(size_t)g4::packed_offset(r, d, g4::depth_steps(k))] = rows[(size_t)r * k + d];
  return packed;
}

// What g4_gemm gives one row alone.
Bf16s single(const uint16_t* packed, int n, int k, const uint16_t* x) {
  Guarded<uint16_t> weight(Bf16s(packed, packed + packed_len(n, k))), dx(Bf16s(x, x + k)), out(n);
  const int slabs = g4::slab_count(k);
  G4GemmParams p = {weight.ptr(), dx.ptr(), out.ptr(), 1, n, k, k, n, slabs, 0.0f};
  launch(&g4_gemm_t1, "g4_gemm_t1", &p, grid(g4::gemm_grid(1, n, slabs)), 256, g4::gemm_shared_bytes(1, n, slabs));
  return out.download();
}

struct Experts {
  int count, n, k;
  Bf16s packed;  // one after another
  Experts(Random& r, int count, int n, int k) : count(count), n(n), k(k) {
    for (int e = 0; e < count; e++) {
      const Bf16s one = pack(random_bf16(r, (size_t)n * k), n, k);
      packed.insert(packed.end(), one.begin(), one.end());
    }
  }
};

// Every pair of `expert` through tiles of `token_tiles` * 8; x has a row a token (top > 1) or a row a pair.
Bf16s products(const Experts& w, const std::vector<int32_t>& expert, int pairs_a_row, const Bf16s& x, int token_tiles,
               uint64_t seed) {
  const int pairs = (int)expert.size(), tile_tokens = token_tiles * 8, slabs = g4::slab_count(w.k), gap = 8;
  const int tiles = tiles_max(pairs, w.count, tile_tokens), x_rows = pairs / pairs_a_row;
  Bf16s spread((size_t)x_rows * (w.k + gap), 0x7fc0);
  for (int row = 0; row < x_rows; row++)
    std::copy_n(x.begin() + (size_t)row * w.k, w.k, spread.begin() + (size_t)row * (w.k + gap));
  Guarded<uint16_t> weight(w.packed), dx(spread), out((size_t)pairs * (w.n + 3));
  Guarded<int32_t> dexpert(expert), list(pairs), count(1);
  Guarded<G4ExpertTile> tile(tiles);
  G4ExpertGroupParams g = {dexpert.ptr(), list.ptr(), tile.ptr(), count.ptr(), pairs, w.count, tile_tokens};
  launch(g4_expert_group, "g4_expert_group", &g, grid(1), 256, 2112, seed);
  G4ExpertGemmParams p = {weight.ptr(), dx.ptr(), out.ptr(),  tile.ptr(), count.ptr(), list.ptr(),
                          w.n,          w.k,      w.k + gap, w.n + 3,    slabs,       pairs_a_row};
  if (token_tiles == 1) {
    launch(g4_expert_gemm_t1, "g4_expert_gemm_t1", &p, grid(g4::gemm_groups(w.n, 2, slabs), tiles), 256, 8192, seed);
  } else {
    const int blocks = (g4::gemm_tiles(w.n) + 7) / 8;
    launch(g4_expert_gemm_t8, "g4_expert_gemm_t8", &p, grid(blocks, tiles), 256, g4::gemm_tiled_shared_bytes(), seed);
  }
  const Bf16s all = out.download();
  Bf16s used;
  for (int pair = 0; pair < pairs; pair++)
    for (int i = 0; i < w.n + 3; i++) {
      const uint16_t v = all[(size_t)pair * (w.n + 3) + i];
      if (i < w.n) used.push_back(v);
      if (i >= w.n || expert[pair] < 0) G4_CHECK(v == 0xfbfb, "store outside: pair %d, row %d", pair, i);
    }
  return used;
}

void check_products(Random& r, const Experts& w, const std::vector<int32_t>& expert, int pairs_a_row) {
  const int pairs = (int)expert.size();
  const Bf16s x = random_bf16(r, (size_t)(pairs / pairs_a_row) * w.k);
  std::map<std::pair<int, int>, Bf16s> alone;
  for (int token_tiles : {1, 8}) {
    const Bf16s got = products(w, expert, pairs_a_row, x, token_tiles, r.next());
    for (int pair = 0; pair < pairs; pair++) {
      if (expert[pair] < 0) continue;
      const int row = pair / pairs_a_row;
      Bf16s& want = alone[{row, expert[pair]}];
      if (want.empty()) {
        want = single(&w.packed[(size_t)expert[pair] * packed_len(w.n, w.k)], w.n, w.k, &x[(size_t)row * w.k]);
      }
      const Bf16s mine(got.begin() + (size_t)pair * w.n, got.begin() + (size_t)(pair + 1) * w.n);
      check_same(mine, want, "product of a pair", pair, token_tiles);
    }
  }
}

}  // namespace

G4_TEST(a_pairs_product_has_the_bits_of_its_row_alone_with_its_expert) {
  Random r(8);
  // n and k: tiny gate | up and down, tiles of rows and depth that end early, every slab count.
  const int shapes[][2] = {{64, 64}, {64, 32}, {17, 8}, {130, 24}, {33, 352}, {40, 704}, {272, 176}, {20, 1408}};
  for (const auto& [n, k] : shapes) {
    const Experts w(r, 16, n, k);
    for (int rows : {1, 3, 40}) check_products(r, w, random_routes(r, rows, 16, 4, rows == 40), 4);
    check_products(r, w, random_routes(r, 129, 16, 1, true), 1);
  }
}

G4_TEST(all_pairs_of_one_expert_and_of_none) {
  Random r(9);
  const Experts w(r, 5, 40, 72);
  for (int pairs : {1, 8, 9, 64, 65, 129}) {
    check_products(r, w, std::vector<int32_t>(pairs, 4), 1);
    check_products(r, w, std::vector<int32_t>(pairs, -1), 1);
  }
}

G4_TEST(expert_products_at_the_real_depths) {  // 26B-A4B: gate | up 1408 x 2816, down 2816 x 704; fewer rows here
  Random r(10);
  const Experts gate_up(r, 3, 144, 2816), down(r, 3, 176, 704);
  check_products(r, gate_up, random_routes(r, 5, 3, 2, false), 2);
  check_products(r, down, random_routes(r, 12, 3, 1, false), 1);
}

// The table of the launcher's test (src/model/kernels/geometry.rs): pairs, experts, tokens a tile, the most tiles; then
// n, S, blocks a tile, and shared bytes where a block may have 227 KiB and where it may have 99.
G4_TEST(expert_geometry_is_that_of_the_launcher) {
  const int table[][9] = {{8, 128, 8, 8, 1408, 8, 44, 8192, 8192},
                          {8, 128, 8, 8, 2816, 4, 44, 8192, 8192},
                          {1024, 128, 8, 240, 2816, 4, 44, 8192, 8192},
                          {16384, 128, 64, 382, 1408, 8, 11, 106496, 79872},
                          {16384, 128, 64, 382, 2816, 4, 22, 106496, 79872}};
  for (const auto& e : table) {
    const bool few = e[2] == G4_EXPERT_TILE_TOKENS;
    G4_CHECK(few == (e[0] <= G4_EXPERT_TILE_TOKENS * e[1]) && (few || e[2] == G4_EXPERT_TILE_TOKENS_MANY), "%d", e[0]);
    G4_CHECK(tiles_max(e[0], e[1], e[2]) == e[3], "%d pairs", e[0]);
    G4_CHECK((few ? g4::gemm_groups(e[4], 2, e[5]) : (g4::gemm_tiles(e[4]) + 7) / 8) == e[6], "n %d", e[4]);
    G4_CHECK((few ? 8192 : g4::gemm_tiled_shared_bytes(112 << 10)) == e[7], "n %d", e[4]);
    G4_CHECK((few ? 8192 : g4::gemm_tiled_shared_bytes()) == e[8], "n %d", e[4]);
  }
}

G4_TEST(nan_of_one_pair_touches_no_other) {
  Random r(11);
  const Experts w(r, 2, 33, 72);
  const std::vector<int32_t> expert = {0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0};
  Bf16s x = random_bf16(r, expert.size() * w.k);
  for (int token_tiles : {1, 8}) {
    const Bf16s clean = products(w, expert, 1, x, token_tiles, 3);
    Bf16s dirty = x;
    for (int d = 0; d < w.k; d++) dirty[(size_t)4 * w.k + d] = d % 2 ? 0x7fc0 : 0x7f80;
    const Bf16s got = products(w, expert, 1, dirty, token_tiles, 4);
    for (size_t i = 0; i < got.size(); i++) {
      if ((int)i / w.n == 4) G4_CHECK(std::isnan(widen(got[i])), "element %zu", i);
      else G4_CHECK(got[i] == clean[i], "element %zu of pair %zu", i, i / w.n);
    }
  }
}

// ---- expert_combine ----

namespace {

void check_combine(Random& r, int rows, int width, int top) {
  const size_t n = (size_t)rows * width;
  Bf16s y = random_bf16(r, n, 2.0f), down = random_bf16(r, n * top, 0.7f);
  const Bf16s dense = random_bf16(r, width), expert_weight = random_bf16(r, width);
  std::vector<int32_t> expert((size_t)rows * top);
  std::vector<float> weight((size_t)rows * top);
  for (size_t i = 0; i < expert.size(); i++) {
    expert[i] = i % 7 == 5 || (rows > 2 && i / top == 1) ? -1 : (int32_t)r.below(128);
    weight[i] = expert[i] < 0 ? 0 : r.normal();
    if (expert[i] < 0) std::fill_n(down.begin() + i * width, width, 0x7fc0);  // never computed: not to be read
  }
  Guarded<uint16_t> dy(y), ddown(down), ddense(dense), dweight2(expert_weight);
  Guarded<int32_t> dexpert(expert);
  Guarded<float> dweight(weight);
  G4ExpertCombineParams p = {dy.ptr(),       ddown.ptr(), dexpert.ptr(), dweight.ptr(), ddense.ptr(),
                             dweight2.ptr(), rows,        width,         top,           kEps};
  launch(g4_expert_combine, "g4_expert_combine", &p, grid(rows), 256, 2176, r.next());
  for (int row = 0; row < rows; row++) {
    Bf16s sum(width);
    for (int i = 0; i < width; i++) {
      float acc = 0;
      for (int rank = 0; rank < top; rank++) {
        const size_t pair = (size_t)row * top + rank;
        if (expert[pair] >= 0) acc = std::fmaf(weight[pair], widen(down[pair * width + i]), acc);
      }
      sum[i] = round_reference(acc);
    }
    uint16_t* own = &y[(size_t)row * width];
    const Bf16s a = norm_reference(own, dense.data(), width, kEps);
    const Bf16s b = norm_reference(sum.data(), expert_weight.data(), width, kEps);
    for (int i = 0; i < width; i++) own[i] = round_reference(widen(a[i]) + widen(b[i]));
  }
  check_same(dy.download(), y, "combine", width, top);
}

}  // namespace

G4_TEST(expert_combine_sums_in_rank_order_and_has_every_rounding_point) {
  Random r(12);
  for (int width : {8, 24, 64, 2048, 2056, 6144, 6152, 8200})
    for (int top : {1, 4, 8, 9, 16}) check_combine(r, 3, width, top);
  for (int rows : {1, 3, 40}) check_combine(r, rows, 2816, 8);
}

G4_TEST(expert_combine_rounds_a_term_once) {  // w x - fl(w x) is not zero: a product rounded before its sum would be
  const int width = 8;
  const float w = 1.0f + std::ldexp(1.0f, -20);
  Bf16s x(width), y(width, 0);
  for (int i = 0; i < width; i++) x[i] = g4::f32_to_bf16(1.0f + i / 128.0f);
  Bf16s down = x;
  down.insert(down.end(), x.begin(), x.end());
  Guarded<uint16_t> dy(y), ddown(down), ones(Bf16s(width, 0x3f80));
  Guarded<int32_t> expert(std::vector<int32_t>{3, 1});
  Guarded<float> weight(std::vector<float>{-w, w});
  G4ExpertCombineParams p = {dy.ptr(),   ddown.ptr(), expert.ptr(), weight.ptr(), ones.ptr(),
                             ones.ptr(), 1,           width,        2,            kEps};
  launch(g4_expert_combine, "g4_expert_combine", &p, grid(1), 256, 2176);
  const Bf16s got = dy.download();
  for (int i = 0; i < width; i++) {
    const double exact = (double)w * widen(x[i]), rest = exact - (float)exact;
    G4_CHECK((widen(got[i]) != 0) == (rest != 0), "element %d: %g, rest %g", i, widen(got[i]), rest);
  }
  G4_CHECK(got[1] != 0, "no element has a rest");
}
