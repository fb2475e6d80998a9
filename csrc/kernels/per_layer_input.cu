// g4_per_layer_input: what each layer is given of its token, once a token before layer 0 (E2B, E4B).
//
//   c = bf16(x[row][l][d] * context_scale)                     context_scale = hidden^-0.5
//   t = bf16(table[token[row]][l][d] * table_scale), or 0      table_scale = bf16(sqrt(width))
//   x[row][l][d] = bf16(bf16(RN(c; weight) + t) * 2^-0.5)      RN over the width values of a layer
//
// table [vocab][layers][width] bf16, row-major; token [rows]; weight [width]; x [rows][layers][width] in place: before,
// the product of per_layer_model_projection with the scaled embedding. width is a multiple of 8, at most 512; bases are
// 16-byte aligned. A negative token reads no row of the table.
// Reads layers * width * 4 bytes a row, writes layers * width * 2: 54 KB at 35 x 256, 65 KB at 42 x 256.
// Grid: x = rows, y = ceil(layers / 8); 256 threads; no shared memory.
//
// Idea: the table is never read whole, so it is not packed: a token's row is one contiguous 18 KB. A warp a layer, so
// no barrier; a lane's 16 bytes of x, table and weight are on their way together. The norm's sum is the row tree of
// csrc/common/row.h, whose warp form gives the bits of the block form.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/row_test.cpp (per_layer_input)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

namespace {

constexpr int kWarps = G4_ROW_THREADS / G4_WARP;
constexpr int kHeld = 2;  // groups of a lane: 8 i and 256 + 8 i
constexpr float kSumScale = 0.70710678118654752f;

G4_FN g4::Vec16 scaled(g4::Vec16 x, float scale) {
  float v[g4::kGroup];
  g4::group_unpack(x, v);
  G4_UNROLL
  for (int j = 0; j < g4::kGroup; j++) v[j] = v[j] * scale;
  return g4::group_pack(v);
}

G4_FN g4::Vec16 scaled_sum(g4::Vec16 a, g4::Vec16 b) {
  float v[g4::kGroup], w[g4::kGroup];
  g4::group_unpack(a, v);
  g4::group_unpack(b, w);
  G4_UNROLL
  for (int j = 0; j < g4::kGroup; j++) v[j] = g4::round_bf16(v[j] + w[j]) * kSumScale;
  return g4::group_pack(v);
}

}  // namespace

G4_KERNEL(g4_per_layer_input, G4PerLayerInputParams, G4_ROW_THREADS) {
  using g4::Vec16;
#if !G4_GPU
  if (p.width % g4::kGroup || p.width > kHeld * 256)
    cta.self->ops->trap(cta.self, "per_layer_input: width", __FILE__, __LINE__);
#endif
  const int layer = cta.block_y() * kWarps + cta.warp();
  if (layer >= p.layers) return;
  const long long row = cta.block_x(), slice = (long long)layer * p.width, stride = (long long)p.layers * p.width;
  const int token = p.token[row];
  uint16_t* x = p.x + row * stride + slice;
  const uint16_t* table = p.table + (token < 0 ? 0 : token) * stride + slice;
#if defined(G4_PLANT_NO_PLE_SCALE)
  const float table_scale = 1.0f;
#else
  const float table_scale = g4::bf16_to_f32((uint16_t)p.table_scale_bf16);
#endif

  Vec16 c[kHeld], t[kHeld], w[kHeld];
  G4_UNROLL
  for (int i = 0; i < kHeld; i++) {
    const int first = i * 256 + cta.lane() * g4::kGroup;
    const bool held = first < p.width;
    const Vec16 zero = {{0, 0, 0, 0}};
    c[i] = held ? g4::load16(x + first) : zero;
    t[i] = held && token >= 0 ? g4::load16(table + first) : zero;
    w[i] = held ? g4::load16(p.weight + first) : zero;
    c[i] = scaled(c[i], p.context_scale);
  }
  const float scale = g4::norm_scale(g4::row_sum_sq_warp(cta, c[0], c[1]), p.width, p.eps);
  G4_UNROLL
  for (int i = 0; i < kHeld; i++) {
    const int first = i * 256 + cta.lane() * g4::kGroup;
    if (first < p.width)
      g4::store16(x + first, scaled_sum(g4::norm_group(c[i], scale, w[i]), scaled(t[i], table_scale)));
  }
}
