// Host twin of the matrix products: the same rule on the CPU, one call a block (numerics, section 2).
//
// Per output: products of bf16 values added singly in ascending k in f32, a multiply and an add each, slab sums added
// ascending. Vectors run over the 16 rows of a weight tile, up to four tokens at a time, never over depth: every vector
// width gives the same bits. A tile's weights are widened once into [depth][row] and reused by all tokens.
// Padded depths are multiplied like the others: they add +0, and a sum that started at +0 is never -0.
// Included by gemm.cuh only.
#ifndef G4_GEMM_HOST_H
#define G4_GEMM_HOST_H

#include <algorithm>
#include <vector>

#ifndef G4_HOST_CLONES
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define G4_HOST_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define G4_HOST_CLONES
#endif
#endif
#define G4_HOST_INLINE static inline __attribute__((always_inline))
#define G4_HOST_UNROLL _Pragma("GCC unroll 8")  // -O2 leaves these loops rolled and their vectors in memory

namespace g4 {

// What the fibres of a block pass to their join: row groups group_begin, + group_stride, ... below group_end.
struct GemmHostTask {
  const G4GemmParams* params;
  int group_begin, group_end, group_stride, group_tiles;
  int token_begin, token_end;
  const int32_t* pair = nullptr;  // tokens are a tile's pairs: rows pair / pairs_a_row of x, rows pair of out
  int pairs_a_row = 1;
};

constexpr int kGemmHostChunk = 16;  // steps widened at a time: 16 KiB, half of an L1

typedef uint32_t GemmWords8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float GemmFloats8 __attribute__((vector_size(32), aligned(4), may_alias));

// One packed 16x16 tile -> f32 [depth 16][row 16]. The tile is eight rows g of 16 words; word 4u + 2p + h of row g
// holds depths 4u + 2p (low half) and 4u + 2p + 1 of row g + 8h: two 8x8 transposes of words.
G4_HOST_INLINE void gemm_host_widen(const uint16_t* tile, float* out) {
  G4_HOST_UNROLL
  for (int half = 0; half < 2; half++) {
    GemmWords8 a[8], b[8];
    G4_HOST_UNROLL
    for (int g = 0; g < 8; g++) a[g] = *reinterpret_cast<const GemmWords8*>(tile + g * 32 + half * 16);
    G4_HOST_UNROLL
    for (int g = 0; g < 8; g += 2) {
      b[g] = __builtin_shufflevector(a[g], a[g + 1], 0, 8, 1, 9, 4, 12, 5, 13);
      b[g + 1] = __builtin_shufflevector(a[g], a[g + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    G4_HOST_UNROLL
    for (int g = 0; g < 8; g += 4) {
      a[g] = __builtin_shufflevector(b[g], b[g + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[g + 1] = __builtin_shufflevector(b[g], b[g + 2], 2, 3, 10, 11, 6, 7, 14, 15);
      a[g + 2] = __builtin_shufflevector(b[g + 1], b[g + 3], 0, 1, 8, 9, 4, 5, 12, 13);
      a[g + 3] = __builtin_shufflevector(b[g + 1], b[g + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    G4_HOST_UNROLL
    for (int c = 0; c < 4; c++) {
      b[c] = __builtin_shufflevector(a[c], a[c + 4], 0, 1, 2, 3, 8, 9, 10, 11);
      b[c + 4] = __builtin_shufflevector(a[c], a[c + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    G4_HOST_UNROLL
    for (int c = 0; c < 8; c++) {  // column c = 4 (u % 2) + 2p + h, u = 2 * half + c / 4
      float* to = out + (half * 8 + c / 4 * 4 + c % 4 / 2 * 2) * 16 + c % 2 * 8;
      *reinterpret_cast<GemmWords8*>(to) = b[c] << 16;
      *reinterpret_cast<GemmWords8*>(to + 16) = b[c] & 0xffff0000u;
    }
  }
}

// acc[N][16] += the chain over `depths` depths of weights [depth][16] and activations x[N], rows x_stride apart.
template <int N>
G4_HOST_INLINE void gemm_host_chain(const float* weight, int depths, const float* x, long x_stride, float* acc) {
  GemmFloats8 a[N][2];
  G4_HOST_UNROLL
  for (int i = 0; i < N; i++)
    G4_HOST_UNROLL
    for (int h = 0; h < 2; h++) a[i][h] = *reinterpret_cast<const GemmFloats8*>(acc + i * 16 + h * 8);
  for (int d = 0; d < depths; d++) {
    const GemmFloats8 w0 = *reinterpret_cast<const GemmFloats8*>(weight + d * 16);
    const GemmFloats8 w1 = *reinterpret_cast<const GemmFloats8*>(weight + d * 16 + 8);
    G4_HOST_UNROLL
    for (int i = 0; i < N; i++) {
      const float v = x[i * x_stride + d];
      a[i][0] += w0 * v;
      a[i][1] += w1 * v;
    }
  }
  G4_HOST_UNROLL
  for (int i = 0; i < N; i++)
    G4_HOST_UNROLL
    for (int h = 0; h < 2; h++) *reinterpret_cast<GemmFloats8*>(acc + i * 16 + h * 8) = a[i][h];
}

// One slab of one row tile: acc[tokens][16] += chain over `steps` steps. tile and x stand at the slab's first depth.
G4_HOST_CLONES
static void gemm_host_slab(const uint16_t* tile, int steps, const float* x, long x_stride, int tokens, float* weight,
                           float* acc) {
  for (int s = 0; s < steps; s += kGemmHostChunk) {
    const int count = steps - s < kGemmHostChunk ? steps - s : kGemmHostChunk, depths = count * G4_TILE_K;
    for (int i = 0; i < count; i++)
      gemm_host_widen(tile + (long)(s + i) * kGemmTileElements, weight + i * kGemmTileElements);
    const float* xs = x + s * G4_TILE_K;
    int t = 0;
    for (; t + 4 <= tokens; t += 4) gemm_host_chain<4>(weight, depths, xs + t * x_stride, x_stride, acc + t * 16);
    for (; t + 2 <= tokens; t += 2) gemm_host_chain<2>(weight, depths, xs + t * x_stride, x_stride, acc + t * 16);
    for (; t < tokens; t++) gemm_host_chain<1>(weight, depths, xs + t * x_stride, x_stride, acc + t * 16);
  }
}

// One token, S slabs of a row tile at once: acc[S][16]. A chain waits for each of its adds; slabs do not wait for one
// another, and the widening runs in their shadow: 1.4 times faster than one slab after the other.
template <int S>
G4_HOST_INLINE void gemm_host_slabs(const uint16_t* tile, int steps, const float* x, float* acc) {
  GemmFloats8 a[S][2] = {};
  float weight[kGemmTileElements];
  for (int step = 0; step < steps; step++)
    G4_HOST_UNROLL
    for (int s = 0; s < S; s++) {
      gemm_host_widen(tile + (long)(s * steps + step) * kGemmTileElements, weight);
      const float* xs = x + (s * steps + step) * G4_TILE_K;
      for (int d = 0; d < G4_TILE_K; d++) {
        a[s][0] += *reinterpret_cast<const GemmFloats8*>(weight + d * 16) * xs[d];
        a[s][1] += *reinterpret_cast<const GemmFloats8*>(weight + d * 16 + 8) * xs[d];
      }
    }
  G4_HOST_UNROLL
  for (int s = 0; s < S; s++)
    for (int h = 0; h < 2; h++) *reinterpret_cast<GemmFloats8*>(acc + s * 16 + h * 8) = a[s][h];
}
G4_HOST_CLONES
static void gemm_host_slabs_one_token(const uint16_t* tile, int slabs, int steps, const float* x, float* acc) {
  int s = 0;
  for (; s + 2 <= slabs; s += 2)
    gemm_host_slabs<2>(tile + (long)s * steps * kGemmTileElements, steps, x + s * steps * G4_TILE_K, acc + s * 16);
  for (; s < slabs; s++)
    gemm_host_slabs<1>(tile + (long)s * steps * kGemmTileElements, steps, x + s * steps * G4_TILE_K, acc + s * 16);
}

// bf16 -> f32, zeros from k to k_pad.
G4_HOST_CLONES
static void gemm_host_widen_row(const uint16_t* x, int k, int k_pad, float* out) {
  uint32_t* bits = reinterpret_cast<uint32_t*>(out);
  for (int d = 0; d < k; d++) bits[d] = (uint32_t)x[d] << 16;
  for (int d = k; d < k_pad; d++) out[d] = 0.0f;
}

// Memory of a worker thread, kept from block to block.
struct GemmHostScratch {
  std::vector<float> x, acc, total;  // [tokens][k_pad], [tokens or slabs][16], [tokens][16]
  float weight[kGemmHostChunk * kGemmTileElements];
};

// Totals [tokens][16] of one row tile.
static inline void gemm_host_tile(const uint16_t* tile, int slabs, int per, int tokens, GemmHostScratch& m) {
  if (tokens == 1) {
    gemm_host_slabs_one_token(tile, slabs, per, m.x.data(), m.acc.data());
    for (int r = 0; r < 16; r++) {
      m.total[r] = m.acc[r];
      for (int s = 1; s < slabs; s++) m.total[r] += m.acc[s * 16 + r];
    }
    return;
  }
  for (int s = 0; s < slabs; s++) {
    std::fill(m.acc.begin(), m.acc.end(), 0.0f);
    gemm_host_slab(tile + (long)s * per * kGemmTileElements, per, m.x.data() + s * per * G4_TILE_K,
                   (long)slabs * per * G4_TILE_K, tokens, m.weight, m.acc.data());
    for (int i = 0; i < tokens * 16; i++) m.total[i] = s == 0 ? m.acc[i] : m.total[i] + m.acc[i];
  }
}

// Join function of a block: all its row groups, all its tokens.
template <class Out>
static void gemm_host_block(void* const* args, uint32_t) {
  const GemmHostTask& task = *static_cast<const GemmHostTask*>(args[0]);
  const G4GemmParams& p = *task.params;
  const int steps = depth_steps(p.k), k_pad = steps * G4_TILE_K, tiles = gemm_tiles(p.n);
  const int tokens = task.token_end - task.token_begin;

  static thread_local GemmHostScratch m;
  m.x.resize((size_t)tokens * k_pad);
  m.acc.resize((size_t)std::max(tokens, p.slabs) * 16);
  m.total.resize((size_t)tokens * 16);
  for (int t = 0; t < tokens; t++) {
    const int token = task.token_begin + t, row = task.pair ? task.pair[token] / task.pairs_a_row : token;
    gemm_host_widen_row(p.x + (long)row * p.x_stride, p.k, k_pad, m.x.data() + (long)t * k_pad);
  }

  for (int group = task.group_begin; group < task.group_end; group += task.group_stride)
    for (int tile = group * task.group_tiles; tile < (group + 1) * task.group_tiles && tile < tiles; tile++) {
      gemm_host_tile(p.weight + (long)tile * steps * kGemmTileElements, p.slabs, steps / p.slabs, tokens, m);
      for (int t = 0; t < tokens; t++) {
        const int token = task.token_begin + t, row = task.pair ? task.pair[token] : token;
        for (int r = 0; r < 16 && tile * 16 + r < p.n; r++) gemm_put(Out(), p, row, tile * 16 + r, m.total[t * 16 + r]);
      }
    }
}

// What the launcher promised; a broken promise fails the launch, on a GPU it would be silent.
G4_FN void gemm_check(Cta cta, const G4GemmParams& p, int tokens_max, int shared_bytes) {
  const char* broken = nullptr;
  if (cta.threads() != G4_GEMM_THREADS) broken = "GEMM: 256 threads a block";
  else if (p.tokens < 1 || p.tokens > tokens_max) broken = "GEMM: token count outside the instance";
  else if (p.n < 1 || p.k < 8 || p.k % 8) broken = "GEMM: n positive, k a positive multiple of 8";
  else if (p.x_stride < p.k || p.x_stride % 8 || p.out_stride < p.n) broken = "GEMM: stride";
  else if ((reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.weight)) % 16) broken = "GEMM: alignment";
  else if (p.slabs != slab_count(p.k)) broken = "GEMM: slabs is not S(K)";
  else if ((int)cta.self->shared_bytes < shared_bytes) broken = "GEMM: dynamic shared memory too small";
  if (broken) cta.self->ops->trap(cta.self, broken, __FILE__, __LINE__);
}

}  // namespace g4

#endif
