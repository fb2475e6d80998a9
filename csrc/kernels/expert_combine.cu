// g4_expert_combine: what a token's experts gave, summed, and the branch of both MLPs before its common norm.
//
//   acc = fma_rn(weight[rank], down[row * top + rank][d], acc) from +0 over ranks ascending;  e = bf16(acc)
//   y = bf16(RN(y; dense_weight) + RN(e; expert_weight))     RN to bf16, as in csrc/common/row.h
//
// y [rows][width] bf16 in place: before, the dense MLP's output; down [rows * top][width] bf16; expert [rows][top];
// weight [rows][top] f32; dense_weight, expert_weight [width]; bases 16-byte aligned. A pair without an expert (-1) was
// not computed and is not read.
// Reads rows * width * 2 * (top + 1) bytes, writes rows * width * 2: 56 KB a row at 8 x 2816.
// Grid: x = rows; 256 threads; 2048 bytes of shared memory (two sums, two scratches, one barrier each).
//
// Idea: one pass over the experts' rows, all of a group's loads independent; the sum, y and both weights stay in
// registers between the sums and the norms.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/expert_test.cpp
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

namespace {

G4_FN g4::Vec16 expert_sum(const G4ExpertCombineParams& p, long long row, int first, bool whole) {
  float acc[g4::kGroup] = {};
  for (int rank = 0; rank < p.top; rank++) {
    const long long pair = row * p.top + rank;
    if (p.expert[pair] < 0) continue;
    const float weight = p.weight[pair];
    float d[g4::kGroup];
    g4::group_unpack(g4::group_load(p.down + pair * p.width, first, p.width, whole), d);
    G4_UNROLL
    for (int j = 0; j < g4::kGroup; j++) acc[j] = g4::fma_rn(weight, d[j], acc[j]);
  }
  return g4::group_pack(acc);
}

G4_FN g4::Vec16 sum_groups(g4::Vec16 a, g4::Vec16 b) {
  float v[g4::kGroup], w[g4::kGroup];
  g4::group_unpack(a, v);
  g4::group_unpack(b, w);
  G4_UNROLL
  for (int j = 0; j < g4::kGroup; j++) v[j] = v[j] + w[j];
  return g4::group_pack(v);
}

}  // namespace

// Two blocks an SM: left to itself the compiler goes for more of them and spills.
#define G4_COMBINE_BOUNDS G4_ROW_THREADS, 2
G4_KERNEL(g4_expert_combine, G4ExpertCombineParams, G4_COMBINE_BOUNDS) {
  using g4::Vec16;
  G4_SHARED(float, scratch);
  const int width = p.width;
  const bool whole = g4::row_whole(width);
  const long long row = cta.block_x();
  uint16_t* y = p.y + row * width;

  Vec16 y_held[g4::kRowHeld], e_held[g4::kRowHeld], dense_held[g4::kRowHeld], expert_held[g4::kRowHeld];
  float y_acc = 0.0f, e_acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 yg = g4::group_load(y, first, width, whole), eg = expert_sum(p, row, first, whole);
    if (j >= 0) {
      y_held[j] = yg;
      e_held[j] = eg;
      dense_held[j] = g4::group_load(p.dense_weight, first, width, whole);
      expert_held[j] = g4::group_load(p.expert_weight, first, width, whole);
    }
    y_acc = g4::group_add_sq(y_acc, yg);
    e_acc = g4::group_add_sq(e_acc, eg);
  });
  const float y_scale = g4::norm_scale(g4::row_tree(cta, y_acc, scratch), width, p.eps);
  const float e_scale = g4::norm_scale(g4::row_tree(cta, e_acc, scratch + G4_ROW_LANES), width, p.eps);
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 yg = j >= 0 ? y_held[j] : g4::group_load(y, first, width, whole);
    const Vec16 eg = j >= 0 ? e_held[j] : expert_sum(p, row, first, whole);
    const Vec16 dw = j >= 0 ? dense_held[j] : g4::group_load(p.dense_weight, first, width, whole);
    const Vec16 ew = j >= 0 ? expert_held[j] : g4::group_load(p.expert_weight, first, width, whole);
    const Vec16 sum = sum_groups(g4::norm_group(yg, y_scale, dw), g4::norm_group(eg, e_scale, ew));
    g4::group_store(y, first, width, whole, sum);
  });
}
