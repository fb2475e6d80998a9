// g4_expert_route: which experts a token goes to, and what each of them weighs.
//
//   s = sum over all experts e of exp(l_e - m), m = max l;  p_e = exp(l_e - m) / s
//   rank 0, 1, ... top - 1: the experts by descending logit l, ties to the lower id;  t = ((p_0 + p_1) + p_2) + ...
//   expert[row][rank] = e,  weight[row][rank] = (p_e / t) * scale[e]
//
// logits [rows][experts] f32; slot [rows]; scale [experts] bf16; expert [rows][top] i32; weight [rows][top] f32.
// At most 256 experts and a top of 16. Order of s: lane i adds experts i, i + 32, ... ascending from +0, then a binary
// tree over the lanes. All in f32. Rows of padding (slot -1) go to no expert: expert -1, weight 0, or each of them
// would have the step read `top` experts' weights for nothing. A row whose logits hold a NaN or plus infinity has
// experts in range and weights that are NaN, so the row's own logits tell.
// Reads rows * experts * 4 bytes, writes rows * top * 8.
// Grid: x = ceil(rows / 8); 256 threads, a warp a row; no shared memory.
//
// Idea: a lane keeps up to eight logits in registers, and value and id are one integer, so a rank is one maximum over
// the warp; all lanes follow the running sum, so nothing is passed around at the end. exp is the polynomial, which has
// the same bits on every device: routing is a matter of which expert, not of accuracy.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/expert_test.cpp. G4_PLANT_NO_PER_EXPERT_SCALE and G4_PLANT_ROUTER_OF_ROW_ZERO are planted bugs.
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/folds.h"
#include "../common/math.h"
#include "../common/sampling_math.h"

namespace {

constexpr int kWarps = 256 / G4_WARP;
constexpr int kLane = G4_EXPERTS_MAX / G4_WARP;  // experts of a lane

static_assert(G4_EXPERTS_TOP_MAX <= G4_WARP, "lane r keeps rank r");

}  // namespace

G4_KERNEL(g4_expert_route, G4ExpertRouteParams, 256) {
#if !G4_GPU
  if (p.experts < 1 || p.experts > G4_EXPERTS_MAX || p.top < 1 || p.top > G4_EXPERTS_TOP_MAX || p.top > p.experts)
    cta.self->ops->trap(cta.self, "expert_route: experts or top", __FILE__, __LINE__);
#endif
  const int row = cta.block_x() * kWarps + cta.warp(), lane = cta.lane();
  if (row >= p.rows) return;
  int own_expert = -1;
  float own_weight = 0.0f;
  if (p.slot[row] >= 0) {  // the whole warp
#if defined(G4_PLANT_ROUTER_OF_ROW_ZERO)
    const float* logits = p.logits;
#else
    const float* logits = p.logits + (long long)row * p.experts;
#endif
    float l[kLane];
    g4::u64 pick[kLane];  // 0: none, or taken
    G4_UNROLL
    for (int j = 0; j < kLane; j++) {
      const int id = lane + j * G4_WARP;
      l[j] = id < p.experts ? logits[id] : 0.0f;
      pick[j] = id < p.experts ? g4::pick_key(l[j], id) : 0;
    }
    float largest = 0.0f, sum = 0.0f, chosen = 0.0f;
    for (int rank = 0; rank < p.top; rank++) {
      g4::u64 best = 0;
      G4_UNROLL
      for (int j = 0; j < kLane; j++) best = pick[j] > best ? pick[j] : best;
      best = g4::warp_max(cta, best);
      G4_UNROLL
      for (int j = 0; j < kLane; j++) pick[j] = pick[j] == best ? 0 : pick[j];
      const float logit = g4::key_value((uint32_t)(best >> 32));
      if (rank == 0) {
        largest = logit;
        float lane_sum = 0.0f;
        G4_UNROLL
        for (int j = 0; j < kLane; j++)
          if (lane + j * G4_WARP < p.experts) lane_sum = lane_sum + g4::exp_poly(l[j] - largest);
        sum = g4::warp_sum(cta, lane_sum);
      }
      const float probability = g4::exp_poly(logit - largest) / sum;
      chosen = rank == 0 ? probability : chosen + probability;
      if (lane == rank) own_expert = g4::pick_id(best), own_weight = probability;
    }
    own_weight = own_weight / chosen;
#if !defined(G4_PLANT_NO_PER_EXPERT_SCALE)
    if (lane < p.top) own_weight = own_weight * g4::bf16_to_f32(p.scale[own_expert]);
#endif
  }
  if (lane >= p.top) return;
  p.expert[(long long)row * p.top + lane] = own_expert;
  p.weight[(long long)row * p.top + lane] = own_weight;
}
