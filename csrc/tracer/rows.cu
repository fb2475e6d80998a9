// Tracer twins of the kernels that work on rows: embed, rmsnorm, add_norm, gelu_gate, per_layer_input, the experts, the
// products and the logits. See payload.h for what they compute.
//
// Launched as the real ones are: a row kernel has one block a row, a product several blocks for all rows, of which the
// first works. The first thread of a block to run does its work and ends the block.
// Bytes moved: 16 a row and kernel, 4 vocab a row of logits. Host only, nothing here is meant to be timed.
// Test: gates/tracer.rs
#include "payload.h"

using namespace g4;

G4_TRACER_KERNEL(g4_embed, G4EmbedParams, G4_ROW_THREADS) {
  const int row = cta.block_x(), token = p.token[row];
  store_payload(p.x + (long long)row * p.hidden, token < 0 ? 0 : fold(kToken, (uint64_t)token));
}

G4_TRACER_KERNEL(g4_rmsnorm, G4RmsNormParams, G4_ROW_THREADS) {
  const long long at = (long long)cta.block_x() * p.width;
  store_payload(p.out + at, load_payload(p.x + at));
}

G4_TRACER_KERNEL(g4_add_norm, G4AddNormParams, G4_ROW_THREADS) {
  const long long at = (long long)cta.block_x() * p.width;
  const uint64_t x = fold(load_payload(p.x + at), load_payload(p.y + at));
  store_payload(p.x + at, x);
  if (p.normed) store_payload(p.normed + at, x);
}

G4_TRACER_KERNEL(g4_gelu_gate, G4GeluGateParams, G4_ROW_THREADS) {
  if (cta.block_y() != 0) return;
  const long long row = cta.block_x();
  store_payload(p.out + row * p.width, load_payload(p.gate + row * p.gate_stride));
}

// The gate's payload is the product's: nothing of a per-layer input is read.
G4_TRACER_KERNEL(g4_per_layer_input, G4PerLayerInputParams, G4_ROW_THREADS) { (void)cta, (void)p; }

// The dense branch carries the payload: a mixture of experts adds nothing to it.
G4_TRACER_KERNEL(g4_expert_input, G4ExpertInputParams, G4_ROW_THREADS) {
  const long long at = (long long)cta.block_x() * p.width;
  store_payload(p.router_x + at, load_payload(p.x + at));
}
G4_TRACER_KERNEL(g4_expert_route, G4ExpertRouteParams, 256) { (void)cta, (void)p; }
G4_TRACER_KERNEL(g4_expert_group, G4ExpertGroupParams, G4_EXPERTS_MAX) { (void)cta, (void)p; }
G4_TRACER_KERNEL(g4_expert_gemm_t1, G4ExpertGemmParams, G4_GEMM_THREADS) { (void)cta, (void)p; }
G4_TRACER_KERNEL(g4_expert_gemm_t8, G4ExpertGemmParams, G4_GEMM_THREADS) { (void)cta, (void)p; }
G4_TRACER_KERNEL(g4_expert_combine, G4ExpertCombineParams, G4_ROW_THREADS) { (void)cta, (void)p; }

// An instance launched for more tokens than it is made for (0: any number) is a wrong choice of the launcher.
static bool works(Cta cta, const G4GemmParams& p, int tokens_max) {
  if (cta.block_x() != 0) return false;
  if (tokens_max && p.tokens > tokens_max)
    cta.self->ops->trap(cta.self, "tracer product: more tokens than the instance holds", __FILE__, __LINE__);
  return true;
}

static void product(Cta cta, const G4GemmParams& p, int tokens_max) {
  if (!works(cta, p, tokens_max)) return;
  for (long long row = 0; row < p.tokens; row++)
    store_payload(static_cast<uint16_t*>(p.out) + row * p.out_stride, load_payload(p.x + row * p.x_stride));
}

static void logits(Cta cta, const G4GemmParams& p, int tokens_max) {
  if (!works(cta, p, tokens_max)) return;
  for (long long row = 0; row < p.tokens; row++) {
    float* out = static_cast<float*>(p.out) + row * p.out_stride;
    const uint64_t g = fold(load_payload(p.x + row * p.x_stride), kLogits);
    std::memset(out, 0, p.n * sizeof(float));
    out[(g ^ g >> 32) % (uint64_t)p.n] = 1.0f;
  }
}

#define G4_TRACER_PRODUCTS(T)                                                      \
  G4_TRACER_KERNEL(g4_gemm_t##T, G4GemmParams, G4_GEMM_THREADS) { product(cta, p, 8 * T); } \
  G4_TRACER_KERNEL(g4_logits_t##T, G4GemmParams, G4_GEMM_THREADS) { logits(cta, p, 8 * T); }

G4_TRACER_PRODUCTS(1)
G4_TRACER_PRODUCTS(2)
G4_TRACER_PRODUCTS(4)
G4_TRACER_PRODUCTS(8)
G4_TRACER_PRODUCTS(16)

G4_TRACER_KERNEL(g4_gemm_tiled, G4GemmParams, G4_GEMM_THREADS) { product(cta, p, 0); }
G4_TRACER_KERNEL(g4_logits_tiled, G4GemmParams, G4_GEMM_THREADS) { logits(cta, p, 0); }
