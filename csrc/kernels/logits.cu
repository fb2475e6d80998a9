// out[t][v] = cap * tanh(s / cap), s = sum over slabs of chains of w[v][k] x[t][k]; f32 throughout, cap 0: out = s.
//
// Shapes   weight: the tied embedding, packed [ceil(vocab/16)][ceil(k/16)][32][8] bf16; x [tokens][k] bf16 after the
//          final norm; out [tokens][vocab] f32, rows out_stride apart. Instances as in gemm.cu and gemm_tiled.cu. A
//          router's weight [experts][k] for the embedding, cap 0, and a prompt chunk for x: the logits of a router.
// Moves    2 vocab k bytes of weights once (2.0 GB at 262144 x 3840, the largest single read of a step), 4 tokens vocab
//          bytes of logits.
// Fast by  what gemm.cu does; here a block walks tens of row groups without a gap in its weight stream.
// Tried    12B on an H200, direct: t1 449 us, 105 % of a copy; t2 496; t4 762. Not timed: staged t4 (540 expected).
// Test     csrc/tests/gemm_test.cpp. G4_PLANT_NO_SOFTCAP is a planted bug: gates that compare logits must go red.
#include "../common/math.h"
#include "gemm.cuh"

namespace g4 {

struct GemmOutLogits {};
G4_FN void gemm_put(GemmOutLogits, const G4GemmParams& p, int token, int row, float total) {
#ifndef G4_PLANT_NO_SOFTCAP
  if (p.softcap != 0.0f) total = p.softcap * tanh(total / p.softcap);
#endif
  static_cast<float*>(p.out)[(long long)token * p.out_stride + row] = total;
}

}  // namespace g4

#define G4_LOGITS_INSTANCE(T) \
  G4_KERNEL_THAT_WAITS(g4_logits_t##T, G4GemmParams, G4_GEMM_BOUNDS_##T) { \
    g4::gemm_instance<T, g4::GemmOutLogits>(cta, p);                    \
  }

G4_LOGITS_INSTANCE(1)
G4_LOGITS_INSTANCE(2)
G4_LOGITS_INSTANCE(4)
G4_LOGITS_INSTANCE(8)
G4_LOGITS_INSTANCE(16)

G4_KERNEL(g4_logits_tiled, G4GemmParams, G4_GEMM_BOUNDS_8) { g4::gemm_tiled_instance<g4::GemmOutLogits>(cta, p); }
