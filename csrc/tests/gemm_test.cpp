// The matrix products against the rule of numerics section 2, written out per output: unpacked weights, one ascending
// chain a slab, slab sums added ascending, one rounding. On the host every comparison is of bits; on a GPU an output
// stands within a bound of the exact value, and every instance has the bits of the first one that showed it.
// With every file built with -DG4_GEMM_BODIES the same tests check the index arithmetic of the GPU bodies (about 50 s).
#include "gemm_rig.h"

using namespace g4test;

namespace {

const int kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128};
const int kRows[] = {1, 15, 16, 17, 64, 257};
const int kDepths[] = {8, 16, 24, 64, 176, 352, 512, 704, 1024, 3840};

}  // namespace

G4_TEST(gemm_slab_counts_are_those_of_the_rule) {
  const int want[][2] = {{8, 1},    {64, 1},   {176, 1},  {344, 2},  {352, 2},  {512, 2},  {704, 4},   {1024, 4},
                         {1400, 8}, {1408, 8}, {1536, 8}, {2112, 4}, {2560, 8}, {3840, 8}, {15360, 8}, {21504, 8}};
  for (const auto& e : want) G4_CHECK(g4::slab_count(e[0]) == e[1], "S(%d) = %d", e[0], g4::slab_count(e[0]));
}

G4_TEST(gemm_follows_the_rule_at_every_size) {
  Random r(11);
  for (int n : kRows)
    for (int k : kDepths) {
      const Weights w(n, k, quick_bf16(r, (size_t)n * k));
      const Bf16s x = quick_bf16(r, (size_t)200 * k);
      Expected want(w, x, kGemm);
      for (int tokens : kTokens) {
        const Bf16s some = first_tokens(x, tokens, k);
        want.check(product(smallest(tokens), w, some), "small", smallest(tokens));
        want.check(product(kTiled, w, some), "tiled", kTiled);
      }
      for (int tokens : {129, 200}) want.check(product(kTiled, w, first_tokens(x, tokens, k)), "tiled", kTiled);
    }
}

// Every slab count, and small shapes where tiles of rows, depth and tokens end: sanitized bodies run it whole.
G4_TEST(gemm_every_instance_that_holds_the_tokens_gives_the_same_bits) {
  const int shapes[][3] = {{257, 24, 33}, {257, 352, 33}, {257, 704, 33}, {257, 1408, 33},  // S = 1, 2, 4, 8
                           {1, 8, 129},   {15, 24, 129},  {17, 72, 129},  {130, 72, 129}};
  Random r(12);
  const Run logits = {kLogits};
  for (const auto& [n, k, most] : shapes) {
    const Weights w(n, k, random_bf16(r, (size_t)n * k));
    const Bf16s x = random_bf16(r, (size_t)most * k);
    Expected want(w, x, kGemm), want_logits(w, x, kLogits);
    for (int tokens : {1, 5, 8, 13, 16, 31, 33, 63, 65, 128, 129}) {
      if (tokens > most) continue;
      const Bf16s some = first_tokens(x, tokens, k);
      want.check(product(kTiled, w, some), "tiled", kTiled);
      want_logits.check(product(kTiled, w, some, logits), "tiled logits", kTiled);
      for (const Instance& i : kInstances) {
        if (tokens > i.token_tiles * 8) continue;
        want.check(product(i.token_tiles, w, some), "gemm", i.token_tiles);
        want_logits.check(product(i.token_tiles, w, some, logits), "logits", i.token_tiles);
      }
    }
  }
}

G4_TEST(gemm_wgmma_has_the_bits_of_the_small_instances) {
  if (!on_hopper()) throw Skip{"an instruction of Hopper GPUs (sm_90a)"};
  Random r(21);
  for (int k : {24, 352, 704, 1408, 3840})  // S = 1, 2, 4, 8; the last two have slabs of 11 and 30 steps
    for (int n : {40, 257, 1000}) {
      const Weights w(n, k, quick_bf16(r, (size_t)n * k));
      const Bf16s x = quick_bf16(r, (size_t)300 * k);
      for (int tokens : {3, 16, 30, 64, 100, 128, 300}) {
        const Bf16s some = first_tokens(x, tokens, k);
        const std::vector<uint32_t> want = product(tokens <= 128 ? smallest(tokens) : kTiled, w, some);
        for (const Candidate& c : kCandidates)
          for (int clusters : {1, 2, 5}) {
            Run run;
            run.clusters = clusters;
            if (tokens > 128 && c.token_tiles < 8) continue;
            same(product(c.token_tiles, w, some, run), want, w, "wgmma", c.token_tiles);
            run.split = true;
            same(product(c.token_tiles, w, some, run), want, w, "wgmma, split", c.token_tiles);
          }
      }
    }
}

// The counts a launcher may give bytes for, in the middle of slabs and at their ends.
G4_TEST(gemm_the_number_of_stages_does_not_matter) {
  Random r(22);
  for (int k : {24, 352, 1408}) {
    const Weights w(300, k, quick_bf16(r, (size_t)300 * k));
    const Bf16s x = quick_bf16(r, (size_t)100 * k);
    for (int tokens : {20, 40, 100}) {
      const Bf16s some = first_tokens(x, tokens, k);
      const std::vector<uint32_t> want = product(smallest(tokens), w, some);
      for (int budget : {40 << 10, 72 << 10, 100 << 10, 128 << 10, 150 << 10, 220 << 10}) {
        Run run;
        run.budget = budget;
        for (const Instance& i : kInstances)
          if (i.token_tiles >= 4 && tokens <= i.token_tiles * 8)
            same(product(i.token_tiles, w, some, run), want, w, "stages", i.token_tiles);
        same(product(kTiled, w, some, run), want, w, "stages", kTiled);
      }
    }
  }
}

G4_TEST(gemm_a_token_does_not_depend_on_its_neighbours_or_its_column) {
  Random r(14);
  for (int k : {24, 704, 1408})
    for (int tokens : {7, 16, 40, 65}) {
      const Weights w(40, k, random_bf16(r, (size_t)40 * k));
      const Bf16s x = random_bf16(r, (size_t)tokens * k);
      for (int tiles : {smallest(tokens), kTiled}) {
        const std::vector<uint32_t> base = product(tiles, w, x);
        std::vector<int> order(tokens);
        for (int i = 0; i < tokens; i++) order[i] = i;
        for (int i = tokens; i > 1; i--) std::swap(order[i - 1], order[r.below(i)]);
        Bf16s moved(x.size());
        for (int t = 0; t < tokens; t++)
          std::copy_n(x.begin() + (size_t)order[t] * k, k, moved.begin() + (size_t)t * k);
        const std::vector<uint32_t> got = product(tiles, w, moved);
        for (int t = 0; t < tokens; t++) {
          const Bf16s alone(moved.begin() + (size_t)t * k, moved.begin() + (size_t)(t + 1) * k);
          const std::vector<uint32_t> solo = product(1, w, alone);
          for (int row = 0; row < w.n; row++) {
            const uint32_t v = got[(size_t)t * w.n + row];
            G4_CHECK(v == base[(size_t)order[t] * w.n + row] && v == solo[row],
                     "k %d, %d tokens, t%d, token %d, row %d", k, tokens, tiles, order[t], row);
          }
        }
      }
    }
}

G4_TEST(gemm_nan_and_infinity_of_one_token_touch_no_other) {
  Random r(15);
  for (int k : {24, 704}) {
    const Weights w(33, k, random_bf16(r, (size_t)33 * k));
    for (int tokens : {3, 20, 66}) {
      const Bf16s x = random_bf16(r, (size_t)tokens * k);
      for (int tiles : {smallest(tokens), kTiled}) {
        const std::vector<uint32_t> clean = product(tiles, w, x);
        for (int bad : {0, tokens / 2, tokens - 1}) {
          Bf16s dirty = x;
          for (int d = 0; d < k; d++) dirty[(size_t)bad * k + d] = d % 2 ? 0x7fc0 : 0x7f80;
          const std::vector<uint32_t> got = product(tiles, w, dirty);
          for (int t = 0; t < tokens; t++)
            for (int row = 0; row < w.n; row++) {
              const size_t i = (size_t)t * w.n + row;
              if (t == bad) G4_CHECK(widen((uint16_t)got[i]) != widen((uint16_t)got[i]), "NaN vanished: row %d", row);
              else G4_CHECK(got[i] == clean[i], "token %d changed by token %d, t%d, row %d", t, bad, tiles, row);
            }
        }
      }
    }
  }
}

G4_TEST(gemm_signed_zeros_denormals_and_extremes_follow_the_rule) {
  Random r(16);
  // Zeros of both signs, denormals, numbers whose products underflow, large ones whose sums cancel.
  const uint16_t pool[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x1f80, 0x9f80,
                           0x2000, 0x3f80, 0xbf80, 0x5c00, 0xdc00, 0x4049, 0xc049};
  const Run logits = {kLogits};
  for (int used : {2, 6, 11, 16})
    for (int k : {8, 24, 176, 352, 1408}) {
      Weights w(17, k);
      for (int row = 0; row < w.n; row++)
        for (int d = 0; d < k; d++) w.at(row, d) = pool[r.below(used)];
      Bf16s x((size_t)9 * k);
      for (uint16_t& e : x) e = pool[r.below(used)];
      const std::vector<float> totals = rule(w, x);
      for (float f : totals) G4_CHECK(g4::f32_bits(f) != 0x80000000u, "a chain from +0 gave -0, k %d", k);
      Expected want(w, x, kGemm), want_logits(w, x, kLogits);
      want.check(product(2, w, x), "extremes", 2);
      want_logits.check(product(2, w, x, logits), "extremes, f32", 2);
      want.check(product(kTiled, w, x), "extremes", kTiled);
    }
}

// numerics, section 5. On the host a chain from +0 never holds -0 (a product that underflows is rounded before it is
// added), so the accumulators seen here are all that can stand there.
G4_TEST(gemm_a_zero_operand_returns_the_accumulators_bit_for_bit) {
  Random r(17);
  const Run logits = {kLogits};
  for (float scale : {1.0f, 1e-19f, 3e-20f, 1e15f}) {  // 1e-19: sums are denormal
    const int head = 16, k = 176;                      // S(176) = 1: one chain
    const Weights first(32, head, random_bf16(r, (size_t)32 * head, scale));
    const Bf16s x = random_bf16(r, (size_t)9 * head, scale);
    const std::vector<uint32_t> want = product(2, first, x, logits);
    for (int zero_weights = 0; zero_weights < 2; zero_weights++) {
      Weights w(32, k);
      Bf16s longer((size_t)9 * k);
      for (int d = 0; d < k; d++) {
        for (int row = 0; row < 32; row++)
          w.at(row, d) = d < head ? first.at(row, d) : zero_weights ? 0 : random_bf16(r, 1)[0];
        for (int t = 0; t < 9; t++)
          longer[(size_t)t * k + d] = d < head ? x[(size_t)t * head + d] : zero_weights ? random_bf16(r, 1)[0] : 0;
      }
      same(product(2, w, longer, logits), want, w, zero_weights ? "zero weights" : "zero activations", 2);
    }
  }
}

G4_TEST(gemm_permuting_weight_rows_permutes_the_outputs) {
  Random r(18);
  const int n = 100, k = 704;
  const Weights w(n, k, random_bf16(r, (size_t)n * k));
  const Bf16s x = random_bf16(r, (size_t)11 * k);
  std::vector<int> order(n);
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n; i > 1; i--) std::swap(order[i - 1], order[r.below(i)]);
  Weights moved(n, k);
  for (int row = 0; row < n; row++)
    for (int d = 0; d < k; d++) moved.at(row, d) = w.at(order[row], d);
  for (int tiles : {2, 8, kTiled}) {
    const std::vector<uint32_t> base = product(tiles, w, x), got = product(tiles, moved, x);
    for (int t = 0; t < 11; t++)
      for (int row = 0; row < n; row++)
        G4_CHECK(got[t * n + row] == base[t * n + order[row]], "t%d, row %d", tiles, row);
  }
}

G4_TEST(gemm_the_order_of_threads_does_not_matter) {
  Random r(19);
  const Weights w(257, 1408, random_bf16(r, (size_t)257 * 1408));
  const Bf16s x = random_bf16(r, (size_t)9 * 1408);
  const std::vector<uint32_t> want = product(2, w, x);
  for (uint64_t seed : {1, 2, 3}) {
    Run run;
    run.seed = seed;
    same(product(2, w, x, run), want, w, "seeded", 2);
    same(product(kTiled, w, x, run), want, w, "seeded", kTiled);
  }
  const Weights tall(8480, 1408, quick_bf16(r, (size_t)8480 * 1408));  // 265 row groups on 133 blocks: they walk two
  const Bf16s token = quick_bf16(r, 1408);
  Run run;
  run.seed = 4;
  Expected(tall, token, kGemm).check(product(1, tall, token, run), "seeded", 1);
}

G4_TEST(gemm_logits_are_soft_capped_in_f32) {
  Random r(20);
  const Weights w(65, 352, random_bf16(r, (size_t)65 * 352));
  const Bf16s x = random_bf16(r, (size_t)3 * 352, 2.0f);
  const std::vector<uint32_t> bits = product(1, w, x, Run{kLogits});
  Expected(w, x, kLogits).check(bits, "no cap", 1);
  std::vector<float> totals;
  for (uint32_t b : bits) totals.push_back(g4::f32_from_bits(b));
  float largest = 0;
  for (float f : totals) largest = std::max(largest, std::fabs(f));
  G4_CHECK(largest > 60.0f, "the test needs logits beyond the cap, largest %g", largest);
  for (float cap : {0.0f, 30.0f, 50.0f}) {
    std::vector<float> want;
    for (float f : totals) want.push_back(cap == 0.0f ? f : cap * g4::tanh(f / cap));
    Run run;
    run.kind = kLogits;
    run.softcap = cap;
    const std::vector<uint32_t> got = product(1, w, x, run);
    same(got, raw(want), w, "soft-cap", 1);
    for (size_t i = 0; i < got.size(); i++) {  // and against libm, so that a wrong tanh shows too
      const double exact = cap == 0.0f ? totals[i] : cap * std::tanh((double)totals[i] / cap);
      const double error = std::fabs(g4::f32_from_bits(got[i]) - exact);
      G4_CHECK(error <= 1e-6 * std::fabs(exact), "cap %g, logit %g: off by %g", cap, totals[i], error);
    }
  }
}

G4_TEST(gemm_grids_cover_every_row_once) {
  for (int tiles : {1, 2, 4, 8, 16})
    for (int slabs : {1, 2, 4, 8})
      for (int n : {1, 16, 257, 1536, 3840, 9216, 30720, 262144}) {
        const int grid = g4::gemm_grid(tiles, n, slabs), shared = g4::gemm_shared_bytes(tiles, n, slabs);
        G4_CHECK(grid >= 1 && shared <= (tiles == 16 ? 112 : 96) * 1024, "grid %d, %d shared bytes", grid, shared);
        if (tiles >= 4) {
          const int rows = 16 * g4::gemm_staged_row_tiles(tiles, n);
          G4_CHECK(grid * rows >= n && (grid - 1) * rows < n, "t%d, n %d: grid %d", tiles, n, grid);
          G4_CHECK(rows < 128 || grid >= 200, "t%d, n %d: %d blocks of %d rows", tiles, n, grid, rows);
          for (int budget : {49152, 98304, 114688, 204800}) {
            const int bytes = g4::gemm_shared_bytes(tiles, n, slabs, budget), stage = rows * 128 + tiles * 1280;
            const int stages = g4::gemm_stage_count(bytes, stage);
            G4_CHECK(stages * stage == bytes && stages >= 3 && stages <= 10 && stages != 7 && stages != 9,
                     "t%d, n %d, budget %d: %d stages of %d in %d", tiles, n, budget, stages, stage, bytes);
            G4_CHECK(bytes <= budget || stages == 3, "t%d, n %d: %d bytes of %d", tiles, n, bytes, budget);
          }
          continue;
        }
        const int row_tiles = g4::gemm_row_tiles(tiles, n, slabs), rows = g4::gemm_group_tiles(row_tiles, slabs) * 16;
        const int groups = g4::gemm_groups(n, row_tiles, slabs);
        G4_CHECK(groups * rows >= n && (groups - 1) * rows < n && grid <= groups && grid <= 264,
                 "t%d, n %d, S %d: grid %d", tiles, n, slabs, grid);
        G4_CHECK(grid * 2 >= groups || grid == 264, "t%d, n %d: %d groups on %d blocks", tiles, n, groups, grid);
        G4_CHECK(groups >= (tiles == 1 ? 132 : 112) || row_tiles == 1, "t%d, n %d: %d groups of %d row tiles", tiles, n,
                 groups, row_tiles);
      }
}

// The table of the launcher's test (src/model/kernels/mod.rs).
G4_TEST(gemm_geometry_is_that_of_the_launcher) {
  const int table[][6] = {{1, 3840, 8, 240, 4096, 4096},      {1, 9216, 8, 144, 8192, 8192},
                          {1, 30720, 8, 264, 8192, 8192},     {2, 8192, 8, 128, 32768, 32768},
                          {4, 3840, 8, 120, 92160, 92160},    {4, 30720, 8, 240, 107520, 86016},
                          {8, 3840, 8, 60, 184320, 92160},    {8, 30720, 8, 240, 106496, 79872},
                          {16, 3840, 8, 60, 172032, 86016},   {16, 262144, 8, 2048, 184320, 110592}};
  for (const auto& e : table) {
    const int rows = e[0] >= 4 ? g4::gemm_staged_row_tiles(e[0], e[1]) : 0;
    const int large = (rows == 8 && e[0] < 16 ? 112 : 200) * 1024;
    G4_CHECK(g4::gemm_grid(e[0], e[1], e[2]) == e[3], "t%d, n %d", e[0], e[1]);
    G4_CHECK(g4::gemm_shared_bytes(e[0], e[1], e[2], large) == e[4], "t%d, n %d", e[0], e[1]);
    G4_CHECK(g4::gemm_shared_bytes(e[0], e[1], e[2]) == e[5], "t%d, n %d", e[0], e[1]);
  }
}

G4_TEST(gemm_a_launch_that_breaks_a_promise_is_refused) {
  if (on_gpu()) throw Skip{"promises are checked on the host"};
  const Weights w(16, 64);
  const Bf16s x((size_t)9 * 64);
  auto refused = [&](int tokens, int slabs, int k, uint32_t threads, uint32_t shared, const char* why) {
    Buffer<uint16_t> out(9 * 16), xs(x), ws(w.packed);
    G4GemmParams p = {ws.ptr(), xs.ptr(), out.ptr(), tokens, 16, k, 64, 16, slabs, 0.0f};
    try {
      launch(&g4_gemm_t1, "g4_gemm_t1", &p, {1}, threads, shared);
    } catch (const std::string& what) {
      return what.find(why) != std::string::npos;
    }
    return false;
  };
  const uint32_t shared = g4::gemm_shared_bytes(1, 16, 1);
  G4_CHECK(refused(9, 1, 64, 256, shared, "token count"), "nine tokens in t1");
  G4_CHECK(refused(1, 2, 64, 256, shared, "slabs"), "two slabs at k 64");
  G4_CHECK(refused(1, 1, 60, 256, shared, "multiple of 8"), "k 60");
  G4_CHECK(refused(1, 1, 64, 128, shared, "256 threads"), "128 threads");
  G4_CHECK(refused(1, 1, 64, 256, shared - 1, "shared"), "shared memory");
  G4_CHECK(!refused(8, 1, 64, 256, shared, ""), "eight tokens in t1 are fine");
}
