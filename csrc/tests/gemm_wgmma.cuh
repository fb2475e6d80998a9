// A candidate for the matrix products of 9 to 128 tokens a block on Hopper: wgmma, with the bits of the mma.sync chain
// (asked of an H200 by csrc/tests/mma_test.cpp: none of 131072 chains of random values differ). It compiles and has
// never run: gemm_test and kernel_bench run it on the next GPU, and the library does not use it before that.
//
//   A block is 128 weight rows x T tiles of 8 tokens, two warpgroups of 64 rows; a warp's 16 rows are one packed row
//   tile, whose 16-byte lanes are wgmma's A registers as they stand. Work is a stream of chunks of 4 steps (64 depths):
//     weights    a row tile's chunk is 2 KiB in one run: a bulk copy a warp into a ring of buffers, onto an mbarrier
//     x          16-byte loads a chunk ahead, stored in the depth order of the packed registers, 128-byte swizzle
//     products   4 wgmma m64n(8T)k16 a warpgroup and chunk, A from registers, B from shared memory
//   Blocks walk items (row block, token block) blockIdx, + gridDim, ...; the stream runs across them without a gap.
//
//   split      a cluster of S blocks computes one item, a slab each: raw slab sums stand in shared memory, and each
//              block adds its share of the fragments over the cluster's memory, slabs ascending. Fills the machine
//              when row blocks are few (n = 3840 has 30); no scratch in memory, no tickets.
#ifndef G4_GEMM_WGMMA_CUH
#define G4_GEMM_WGMMA_CUH

#include "../kernels/gemm.cuh"

namespace g4 {

// Shared bytes of the body of T token tiles: weights ring, x pair, sums, barriers.
constexpr int kWgmmaWeightBytes = kGemmTiledRowTiles * kGemmChunkSteps * kGemmTileElements * 2;  // 16 KiB
template <int T>
struct WgmmaShape {
  static constexpr int kStages = T == 16 ? 6 : 4;
  static constexpr int kX = T * G4_TILE_N * 128;
  static constexpr int kSums = kGemmTiledRowTiles * T * G4_WARP * 16;
  static constexpr int kShared = kStages * kWgmmaWeightBytes + 2 * kX + kSums + kStages * kGemmWarps * 8;
};

}  // namespace g4

#if !G4_GPU
extern "C" void test_gemm_w2(G4SoftThread*, const void*);
extern "C" void test_gemm_w4(G4SoftThread*, const void*);
extern "C" void test_gemm_w8(G4SoftThread*, const void*);
extern "C" void test_gemm_w16(G4SoftThread*, const void*);
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace g4 {

// ---- Words of Hopper ------------------------------------------------------------------------------------------------

G4_FN uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

G4_FN void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
G4_FN void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
G4_FN void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra ready;\nbra wait;\n"
      "ready:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// A run of bytes from memory that is read once: first to leave L2.
G4_FN void copy_bulk(uint32_t shared, const void* src, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
      ::"r"(shared), "l"(src), "r"(bytes), "r"(barrier), "l"(0x12f0000000000000ull) : "memory");
}
G4_FN void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

G4_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
G4_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
G4_FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

G4_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
G4_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
G4_FN GemmSums cluster_load(uint32_t shared, int rank) {
  GemmSums v;
  asm volatile(
      "{\n.reg .u32 at;\nmapa.shared::cluster.u32 at, %4, %5;\nld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [at];\n}"
      : "=f"(v.v[0]), "=f"(v.v[1]), "=f"(v.v[2]), "=f"(v.v[3])
      : "r"(shared), "r"(rank)
      : "memory");
  return v;
}

// Operands of products to come are written before this point: the compiler does not see wgmma_fence as their reader.
G4_FN void registers_settle(Vec16& v) {
  asm volatile("" : "+r"(v.w[0]), "+r"(v.w[1]), "+r"(v.w[2]), "+r"(v.w[3])::"memory");
}

// Eight columns of K-major B: 128 bytes a token, 8 tokens an atom, 1024 bytes from atom to atom.
G4_FN uint64_t wgmma_descriptor(uint32_t shared) {
  return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define G4_D4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define G4_D16(d, i) G4_D4(d, i), G4_D4(d, (i) + 4), G4_D4(d, (i) + 8), G4_D4(d, (i) + 12)
#define G4_WGMMA_IN(a, descriptor) "r"((a).w[0]), "r"((a).w[1]), "r"((a).w[2]), "r"((a).w[3]), "l"(descriptor)

// d[T * 4] += a[64 x 16] b[16 x 8 T]; fragment t of d is that of mma_16x8x16.
G4_FN void wgmma(float (&d)[8], const Vec16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, "
      "0;"
      : G4_D4(d, 0), G4_D4(d, 4)
      : G4_WGMMA_IN(a, b));
}
G4_FN void wgmma(float (&d)[16], const Vec16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
      : G4_D16(d, 0)
      : G4_WGMMA_IN(a, b));
}
G4_FN void wgmma(float (&d)[32], const Vec16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
      : G4_D16(d, 0), G4_D16(d, 16)
      : G4_WGMMA_IN(a, b));
}
G4_FN void wgmma(float (&d)[64], const Vec16& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,"
      "%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, "
      "1, 1, 1, 0;"
      : G4_D16(d, 0), G4_D16(d, 16), G4_D16(d, 32), G4_D16(d, 48)
      : G4_WGMMA_IN(a, b));
}

// ---- The body -------------------------------------------------------------------------------------------------------

// Where a block stands in its stream of chunks.
struct GemmChunk {
  int item, slab, chunk;  // chunk of the slab
};

template <int T, class Out>
G4_FN void gemm_wgmma(Cta cta, const G4GemmParams& p, bool split) {
  constexpr int C = kGemmChunkSteps, kStages = WgmmaShape<T>::kStages, kX = WgmmaShape<T>::kX;
  constexpr int kPairs = T * G4_TILE_N * C, kPairsEach = (kPairs + G4_GEMM_THREADS - 1) / G4_GEMM_THREADS;
  extern __shared__ __align__(1024) unsigned char g4_shared_atoms[];
  uint8_t* const base = g4_shared_atoms;
  const uint32_t ring = shared_address(base), xs = ring + kStages * kWgmmaWeightBytes;
  GemmSums* const sums = reinterpret_cast<GemmSums*>(base + kStages * kWgmmaWeightBytes + 2 * kX);
  const uint32_t barriers = ring + kStages * kWgmmaWeightBytes + 2 * kX + WgmmaShape<T>::kSums;

  const int tid = cta.tid(), lane = cta.lane(), warp = cta.warp();
  const int steps = depth_steps(p.k), per = steps / p.slabs, tiles = gemm_tiles(p.n), chunks = (per + C - 1) / C;
  const int blocks = split ? p.slabs : 1, rank = split ? cta.block_x() % p.slabs : 0;
  const int slab_begin = rank, slab_end = split ? rank + 1 : p.slabs;
  const int token_blocks = (p.tokens + T * G4_TILE_N - 1) / (T * G4_TILE_N);
  const int items = (tiles + kGemmTiledRowTiles - 1) / kGemmTiledRowTiles * token_blocks;
  const int item_begin = cta.block_x() / blocks, item_step = cta.grid_x() / blocks;

  const auto advance = [&](GemmChunk& at) {
    if (++at.chunk < chunks) return;
    at.chunk = 0;
    if (++at.slab < slab_end) return;
    at.slab = slab_begin;
    at.item += item_step;
  };

  // Weights: each warp asks for its own row tile, 2 KiB a chunk in one run of memory, and waits for it alone. A row
  // tile past the end reads the last one; its products are not stored.
  GemmChunk next_w = {item_begin, slab_begin, 0};
  const uint16_t* w_at = nullptr;
  const auto load_weights = [&](int buffer) {  // by one lane
    if (next_w.item >= items) return;
    if (next_w.chunk == 0 && next_w.slab == slab_begin) {
      int tile = next_w.item / token_blocks * kGemmTiledRowTiles + warp;
      if (tile >= tiles) tile = tiles - 1;
      w_at = p.weight + ((long long)tile * steps + slab_begin * per) * kGemmTileElements;
    }
    const int count = per - next_w.chunk * C < C ? per - next_w.chunk * C : C;
    const uint32_t barrier = barriers + (buffer * kGemmWarps + warp) * 8;
    const uint32_t bytes = count * kGemmTileElements * 2;
    mbarrier_expect(barrier, bytes);
    copy_bulk(ring + buffer * kWgmmaWeightBytes + warp * C * kGemmTileElements * 2, w_at, bytes, barrier);
    w_at += count * kGemmTileElements;
    advance(next_w);
  };

  // x: a thread owns pairs of 16-byte pieces, 16 depths of a token. Past the last token, depth and step of the slab
  // stand zeros.
  GemmChunk next_x = next_w;
  Vec16 piece[kPairsEach][2];
  const uint16_t* x_at[kPairsEach];
  bool x_inside[kPairsEach];
  int depth_left = 0;  // depths of x from this thread's first piece to k
  const auto load_x = [&] {
    if (next_x.item < items && next_x.chunk == 0 && next_x.slab == slab_begin) {
      const int token0 = next_x.item % token_blocks * T * G4_TILE_N;
      const int depth = (slab_begin * per + tid % C) * G4_TILE_K;
      depth_left = p.k - depth;
      G4_UNROLL
      for (int i = 0; i < kPairsEach; i++) {
        const int token = token0 + (tid + i * G4_GEMM_THREADS) / C;
        x_inside[i] = token < p.tokens && (kPairs % G4_GEMM_THREADS == 0 || tid < kPairs);
        x_at[i] = p.x + (long long)token * p.x_stride + depth;
      }
    }
    const bool in_slab = next_x.item < items && next_x.chunk * C + tid % C < per;
    const int count = per - next_x.chunk * C < C ? per - next_x.chunk * C : C;
    G4_UNROLL
    for (int i = 0; i < kPairsEach; i++) {
      G4_UNROLL
      for (int h = 0; h < 2; h++) {
        piece[i][h] = Vec16{{0, 0, 0, 0}};
        if (x_inside[i] && in_slab && depth_left > h * 8) piece[i][h] = load16(x_at[i] + h * 8);
      }
      x_at[i] += count * G4_TILE_K;
    }
    depth_left -= count * G4_TILE_K;
    if (next_x.item < items) advance(next_x);
  };
  // In the order of the packed registers: the words of even index of 16 depths first, then the odd ones.
  const auto store_x = [&](int buffer) {
    G4_UNROLL
    for (int i = 0; i < kPairsEach; i++) {
      const int pair = tid + i * G4_GEMM_THREADS, token = pair / C, block = pair % C;
      if (kPairs % G4_GEMM_THREADS != 0 && pair >= kPairs) break;
      uint8_t* row = base + kStages * kWgmmaWeightBytes + buffer * kX + token * 128;
      const Vec16 *a = &piece[i][0], *b = &piece[i][1];
      store16(row + ((2 * block) ^ (token & 7)) * 16, Vec16{{a->w[0], a->w[2], b->w[0], b->w[2]}});
      store16(row + ((2 * block + 1) ^ (token & 7)) * 16, Vec16{{a->w[1], a->w[3], b->w[1], b->w[3]}});
    }
  };

  if (lane == 0) {
    for (int i = 0; i < kStages; i++) mbarrier_init(barriers + (i * kGemmWarps + warp) * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_shared();
    for (int i = 0; i < kStages; i++) load_weights(i);
  }
  G4_SYNC_WARP(cta);
  dependency_wait(cta);
  load_x();
  store_x(0);
  fence_async_shared();
  load_x();
  G4_SYNC(cta);  // the first x

  int q = 0;          // chunk of the stream
  bool read = false;  // the cluster may still read this block's sums
  for (int item = item_begin; item < items; item += item_step) {
    for (int slab = slab_begin; slab < slab_end; slab++) {
      float acc[T * 4];
      G4_UNROLL
      for (int i = 0; i < T * 4; i++) acc[i] = 0.0f;
      for (int chunk = 0; chunk < chunks; chunk++, q++) {
        const int buffer = q % kStages;
        mbarrier_wait(barriers + (buffer * kGemmWarps + warp) * 8, q / kStages & 1);
        const uint8_t* a = base + buffer * kWgmmaWeightBytes + (warp * C * G4_WARP + lane) * 16;
        Vec16 w[C];  // a step past the slab's end: a zero operand, which returns the accumulators bit for bit
        G4_UNROLL
        for (int i = 0; i < C; i++) {
          w[i] = load16(a + i * G4_WARP * 16);
          G4_UNROLL
          for (int e = 0; e < 4; e++) w[i].w[e] = chunk * C + i < per ? w[i].w[e] : 0u;
        }
        const uint64_t b = wgmma_descriptor(xs + q % 2 * kX);
        G4_UNROLL
        for (int i = 0; i < C; i++) registers_settle(w[i]);
        wgmma_fence();
        G4_UNROLL
        for (int i = 0; i < C; i++) wgmma(acc, w[i], b + i * 2);
        wgmma_commit();
        if (lane == 0) load_weights(buffer);  // the warp's weights stand in registers
        G4_SYNC_WARP(cta);
        store_x((q + 1) % 2);  // read last by chunk q - 1, which is over for all
        fence_async_shared();
        load_x();
        wgmma_wait();
        G4_SYNC(cta);  // all are through with x of chunk q, and x of the next is there
      }
      if (read) cluster_wait();
      read = false;
      G4_UNROLL
      for (int t = 0; t < T; t++) {  // each lane its own fragments: no barrier until a cluster reads them
        GemmSums* const at = sums + (warp * T + t) * G4_WARP + lane;
        GemmSums sum = {{acc[t * 4], acc[t * 4 + 1], acc[t * 4 + 2], acc[t * 4 + 3]}};
        if (slab > slab_begin) {
          const GemmSums before = *at;
          G4_UNROLL
          for (int e = 0; e < 4; e++) sum.v[e] = before.v[e] + sum.v[e];
        }
        *at = sum;
      }
    }
    const int row_tile0 = item / token_blocks * kGemmTiledRowTiles, token_tile0 = item % token_blocks * T;
    if (!split) {
      G4_UNROLL
      for (int t = 0; t < T; t++)
        gemm_put_fragment<Out>(p, GemmRowsSame(), row_tile0 + warp, token_tile0 + t, lane,
                               sums[(warp * T + t) * G4_WARP + lane].v);
      continue;
    }
    cluster_arrive();
    cluster_wait();
    for (int f = warp * p.slabs + rank; f < kGemmTiledRowTiles * T; f += kGemmWarps * p.slabs) {
      const uint32_t at = shared_address(sums + f * G4_WARP + lane);
      GemmSums sum = cluster_load(at, 0), other[kGemmWarps];
      G4_UNROLL
      for (int s = 1; s < kGemmWarps; s++)
        if (s < p.slabs) other[s] = cluster_load(at, s);
      G4_UNROLL
      for (int s = 1; s < kGemmWarps; s++)
        if (s < p.slabs) {
          G4_UNROLL
          for (int e = 0; e < 4; e++) sum.v[e] += other[s].v[e];
        }
      gemm_put_fragment<Out>(p, GemmRowsSame(), row_tile0 + f / T, token_tile0 + f % T, lane, sum.v);
    }
    cluster_arrive();
    read = true;
  }
  if (read) cluster_wait();  // nobody leaves while its sums are read
}

}  // namespace g4

#endif

#endif
