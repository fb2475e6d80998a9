// g4_expert_combine: what a token's experts gave, summed, and the branch of both MLPs before its common norm.
//
//   acc = fma_rn(weight[rank], down[row * top + rank][d], acc) from +0 over ranks ascending;  e = bf16(acc)
//   y = bf16(RN(y; dense_weight) + RN(e; expert_weight))     RN to bf16, as in csrc/common/row.h
//
// y [rows][width] bf16 in place: before, the dense MLP's output; down [rows * top][width] bf16; expert [rows][top];
// weight [rows][top] f32, top at most 16; dense_weight, expert_weight [width]; width a multiple of 8, bases 16-byte
// aligned. A pair without an expert (-1) was not computed and is not read.
// Reads rows * width * 2 * (top + 1) bytes, writes rows * width * 2: 56 KB a row at 8 x 2816.
// Grid: x = rows; 256 threads; 2176 bytes of shared memory (two scratches of a sum; experts and weights of the row).
//
// Idea: the experts' rows are the bytes: which of them there are is known first, in shared memory, then eight 16-byte
// loads of a group are on their way together. y and both norms' weights wait in registers meanwhile.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/expert_test.cpp
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

namespace {

constexpr int kAtOnce = 8;  // ranks whose rows are on their way together

struct Shared {
  float y_sum[G4_ROW_LANES], e_sum[G4_ROW_LANES];
  float weight[G4_EXPERTS_TOP_MAX];
  int32_t expert[G4_EXPERTS_TOP_MAX];
};

static_assert(sizeof(Shared) == 2176, "what the launcher gives");

// down: of the row's first pair, at this group.
G4_FN g4::Vec16 expert_sum(const Shared& sh, const uint16_t* down, int width, int top) {
  float acc[g4::kGroup] = {};
  for (int rank = 0; rank < top; rank += kAtOnce) {
    g4::Vec16 of[kAtOnce];
    G4_UNROLL
    for (int i = 0; i < kAtOnce; i++) {
      of[i] = {{0, 0, 0, 0}};
      if (rank + i < top && sh.expert[rank + i] >= 0) of[i] = g4::load16(down + (long long)(rank + i) * width);
    }
    G4_UNROLL
    for (int i = 0; i < kAtOnce; i++) {
      if (rank + i >= top || sh.expert[rank + i] < 0) continue;
      float d[g4::kGroup];
      g4::group_unpack(of[i], d);
      G4_UNROLL
      for (int j = 0; j < g4::kGroup; j++) acc[j] = g4::fma_rn(sh.weight[rank + i], d[j], acc[j]);
    }
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
  G4_SHARED(Shared, sh);
#if !G4_GPU
  if (p.width % g4::kGroup || p.top > G4_EXPERTS_TOP_MAX)
    cta.self->ops->trap(cta.self, "expert_combine: width or top", __FILE__, __LINE__);
#endif
  const int width = p.width, tid = cta.tid();
  const long long row = cta.block_x();
  uint16_t* y = p.y + row * width;
  const uint16_t* down = p.down + row * p.top * width;

  Vec16 y_held[g4::kRowHeld], e_held[g4::kRowHeld], dense_held[g4::kRowHeld], expert_held[g4::kRowHeld];
  if (tid < p.top) {
    sh->expert[tid] = p.expert[row * p.top + tid];
    sh->weight[tid] = p.weight[row * p.top + tid];
  }
  g4::row_each(cta, width, [&](int j, int first) {
    if (j < 0) return;
    y_held[j] = g4::load16(y + first);
    dense_held[j] = g4::load16(p.dense_weight + first);
    expert_held[j] = g4::load16(p.expert_weight + first);
  });
  G4_SYNC(cta);
  float y_acc = 0.0f, e_acc = 0.0f;
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 eg = expert_sum(*sh, down + first, width, p.top);
    if (j >= 0) e_held[j] = eg;
    y_acc = g4::group_add_sq(y_acc, j >= 0 ? y_held[j] : g4::load16(y + first));
    e_acc = g4::group_add_sq(e_acc, eg);
  });
  const float y_scale = g4::norm_scale(g4::row_tree(cta, y_acc, sh->y_sum), width, p.eps);
  const float e_scale = g4::norm_scale(g4::row_tree(cta, e_acc, sh->e_sum), width, p.eps);
  g4::row_each(cta, width, [&](int j, int first) {
    const Vec16 yg = j >= 0 ? y_held[j] : g4::load16(y + first);
    const Vec16 eg = j >= 0 ? e_held[j] : expert_sum(*sh, down + first, width, p.top);
    const Vec16 dw = j >= 0 ? dense_held[j] : g4::load16(p.dense_weight + first);
    const Vec16 ew = j >= 0 ? expert_held[j] : g4::load16(p.expert_weight + first);
    g4::store16(y + first, sum_groups(g4::norm_group(yg, y_scale, dw), g4::norm_group(eg, e_scale, ew)));
  });
}
