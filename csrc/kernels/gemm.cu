// out[t][r] = bf16(sum over slabs of chains of w[r][k] x[t][k]): every linear layer of a decode step.
//
// Shapes   weight packed [ceil(n/16)][ceil(k/16)][32][8] bf16 (common/pack_layout.h); x [tokens][k] bf16, rows x_stride
//          apart; out [tokens][n] bf16, rows out_stride apart. t1 t2 t4 t8 t16 hold up to 8, 16, 32, 64, 128 tokens.
// Moves    2 n k bytes of weights once, 2 tokens n of outputs; each block reads x, 2 tokens k bytes, from L2: tokens
//          over rows a block times the weight bytes in all.
// Fast by  the weight stream. A lane keeps D steps x R row tiles of 16-byte loads in flight, across row groups: 32 KiB
//          and more an SM, where about 20 are needed. No weight passes through shared memory.
//          Geometry, launch formulas and the two GPU bodies: gemm.cuh. Host twin: gemm_host.h.
// Tried    nothing has been timed on a GPU. A slot is refilled right after its products; refilled just before them,
//          from a copy, it took 124 registers for 95 at t1 and 180 for 128 at t2, for one step more in flight.
//          Known weak: n = 3840 at t8 and t16 is 30 blocks of 128 rows; a K split across blocks needs scratch.
// Test     csrc/tests/gemm_test.cpp, as it is and with every file built with -DG4_GEMM_BODIES.
#include "gemm.cuh"

#define G4_GEMM_INSTANCE(T) \
  G4_KERNEL(g4_gemm_t##T, G4GemmParams, G4_GEMM_BOUNDS_##T) { g4::gemm_instance<T, g4::GemmOutBf16>(cta, p); }

G4_GEMM_INSTANCE(1)
G4_GEMM_INSTANCE(2)
G4_GEMM_INSTANCE(4)
G4_GEMM_INSTANCE(8)
G4_GEMM_INSTANCE(16)
