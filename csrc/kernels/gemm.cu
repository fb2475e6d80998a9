// out[t][r] = bf16(sum over slabs of chains of w[r][k] x[t][k]): every linear layer of a decode step.
//
// Shapes   weight packed [ceil(n/16)][ceil(k/16)][32][8] bf16 (common/pack_layout.h); x [tokens][k] bf16, rows x_stride
//          apart; out [tokens][n] bf16, rows out_stride apart. t1 t2 t4 t8 t16 hold up to 8, 16, 32, 64, 128 tokens.
// Moves    2 n k bytes of weights once, 2 tokens n of outputs; each block reads x, 2 tokens k bytes, from L2: tokens
//          over rows a block times the weight bytes in all.
// Fast by  the weight stream. t1, t2: a lane keeps D steps x R row tiles of 16-byte loads in flight, across row groups:
//          32 KiB and more an SM, where about 20 are needed. t4, t8, t16: stages of copies in shared memory.
//          Geometry, launch formulas and the two GPU bodies: gemm.cuh. Host twin: gemm_host.h.
// Tried    us on an H200 (12B: qkv sliding, o sliding, gate_up, down; a copy's time for the bytes 15, 7.4, 55, 28):
//            t1   direct, R = 2               16.8   10.4   55.5   32.0
//            t2   direct                      23.2   11.6   62.1   37.3
//            t4   direct, D = 3               24.5   20.1   90.6   68.7   replaced
//            t8   weights to registers         132    140    148    525   replaced: a latency a step (gemm.cuh)
//            t16  weights to registers         150    160    301    588   replaced
//          Not timed, with what is expected of it: t1 with R = 1 at n = 3840 and turns evened out: 16.8, 9.3, 55.5, 30
//          (qkv global, 288 groups on 144 blocks: 21.3 -> 18.8). Staged t4: 20, 11, 62, 36; t8: 24, 15, 75, 48;
//          t16: 40, 26, 110, 90, bound by mma.sync on the 60 blocks that n = 3840 has there.
//          A slot of direct refilled just before its products, from a copy: 124 registers for 95 at t1; dropped.
// Test     csrc/tests/gemm_test.cpp, as it is and with every file built with -DG4_GEMM_BODIES.
#include "gemm.cuh"

#define G4_GEMM_INSTANCE(T) \
  G4_KERNEL_THAT_WAITS(g4_gemm_t##T, G4GemmParams, G4_GEMM_BOUNDS_##T) { \
    g4::gemm_instance<T, g4::GemmOutBf16>(cta, p);                    \
  }

G4_GEMM_INSTANCE(1)
G4_GEMM_INSTANCE(2)
G4_GEMM_INSTANCE(4)
G4_GEMM_INSTANCE(8)
G4_GEMM_INSTANCE(16)
