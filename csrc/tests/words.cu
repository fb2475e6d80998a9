// The words of csrc/common as kernels: see words.h. Not part of the shipped image; on a GPU, a fat binary of its own.
#include "words.h"

#include "../common/math.h"
#include "../common/mma.h"
#include "../common/row.h"

G4_KERNEL(test_row_sum_sq, SumParams, 256) {
  G4_SHARED(float, scratch);
  p.out[cta.tid()] = g4::row_sum_sq(cta, p.x, p.width, g4::row_whole(p.width), scratch);
}

// Eight warps, each reducing a head of its own.
G4_KERNEL(test_row_sum_sq_warp, SumParams, 256) {
  const uint16_t* x = p.x + cta.warp() * p.width;
  const bool whole = g4::row_whole(p.width);
  const g4::Vec16 low = g4::group_load(x, cta.lane() * 8, p.width, whole);
  const g4::Vec16 high = g4::group_load(x, (cta.lane() + 32) * 8, p.width, whole);
  p.out[cta.tid()] = g4::row_sum_sq_warp(cta, low, high);
}

G4_KERNEL(test_math_word, MathWordParams, 256) {
  for (int i = cta.block_x() * cta.threads() + cta.tid(); i < p.n; i += cta.grid_x() * cta.threads()) {
    const float a = p.a[i];
    float y = 0.0f;
    switch (p.word) {
      case kWordFma: y = g4::fma_rn(a, p.b[i], p.c[i]); break;
      case kWordSqrt: y = g4::sqrt(a); break;
      case kWordRsqrt: y = g4::rsqrt(a); break;
      case kWordExp: y = g4::exp(a); break;
      case kWordTanh: y = g4::tanh(a); break;
      case kWordGelu: y = g4::gelu_tanh(a); break;
      case kWordBf16: y = g4::round_bf16(a); break;
      case kWordDivide: y = a / p.b[i]; break;
    }
    p.out[i] = y;
  }
}

G4_KERNEL(test_product_chain, ProductParams, 32) {
  const long long lane = (long long)cta.block_x() * 32 + cta.lane();
  float d[4] = {p.c[lane * 4], p.c[lane * 4 + 1], p.c[lane * 4 + 2], p.c[lane * 4 + 3]};
  for (int s = 0; s < p.steps; s++) {
    const long long at = ((long long)cta.block_x() * p.steps + s) * 32 + cta.lane();
    const uint32_t* b = p.b + at * 2;
    g4::mma_16x8x16(cta, d, p.a + at * 4, b[0], b[1]);
  }
  for (int e = 0; e < 4; e++) p.d[lane * 4 + e] = d[e];
}

// wgmma takes the block's columns from shared memory: a step is two core matrices of 8 columns x 16 bytes, depths 0..7
// and 8..15. A stands in registers, laid out as for mma.sync, a warp 16 rows.
G4_KERNEL(test_wgmma_chain, ChainParams, 128) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  G4_SHARED(uint16_t, columns);  // [step][depth / 8][column][depth % 8]
  const int g = cta.lane() / 4, t = cta.lane() % 4;
  const uint16_t* a = p.a + ((long long)cta.block_x() * p.steps * 64 + cta.warp() * 16 + g) * 16 + t * 2;
  const uint16_t* b = p.b + (long long)cta.block_x() * p.steps * 128;
  for (int i = cta.tid(); i < p.steps * 128; i += 128)
    columns[i / 128 * 128 + i % 16 / 8 * 64 + i / 16 % 8 * 8 + i % 8] = b[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  G4_SYNC(cta);

  float d[4] = {}, w[4] = {};
  const uint32_t base = (uint32_t)__cvta_generic_to_shared(columns);
  for (int s = 0; s < p.steps; s++) {
    const uint16_t* row = a + s * 64 * 16;
    const uint32_t r[4] = {*reinterpret_cast<const uint32_t*>(row), *reinterpret_cast<const uint32_t*>(row + 8 * 16),
                           *reinterpret_cast<const uint32_t*>(row + 8),
                           *reinterpret_cast<const uint32_t*>(row + 8 * 16 + 8)};
    const uint16_t* column = columns + s * 128 + g * 8 + t * 2;
    g4::mma_16x8x16(d, r, *reinterpret_cast<const uint32_t*>(column), *reinterpret_cast<const uint32_t*>(column + 64));
    // No swizzle; the leading offset leads from one core matrix to the next in depth; offsets in units of 16 bytes.
    const uint64_t descriptor =
        (uint64_t)((base + s * 256) >> 4) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
        : "+f"(w[0]), "+f"(w[1]), "+f"(w[2]), "+f"(w[3])
        : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(descriptor));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int e = 0; e < 4; e++) {
    const long long at = ((long long)cta.block_x() * 64 + cta.warp() * 16 + g + e / 2 * 8) * 8 + t * 2 + e % 2;
    p.by_warps[at] = d[e];
    p.by_group[at] = w[e];
  }
#else
  (void)cta, (void)p;
#endif
}
