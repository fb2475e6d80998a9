// out[t][r] = bf16(sum over slabs of chains of w[r][k] x[t][k]): every linear layer of a decode step.
//
// Shapes   weight packed [ceil(n/16)][ceil(k/16)][32][8] bf16 (common/pack_layout.h), x [tokens][k] bf16 rows x_stride apart,
//          out [tokens][n] bf16 rows out_stride apart. Instances t1 t2 t4 t8 t16 hold up to 8, 16, 32, 64, 128 tokens.
// Moves    2 n k bytes of weights once, 2 tokens n of outputs; x comes from L2: 2 tokens k bytes for each block, that is
//          tokens / rows a block of the weight bytes.
// Fast by  the weight stream. A lane keeps D steps x R row tiles of 16-byte loads in flight, across row groups, so that
//          two blocks hold 32 to 64 KiB in flight an SM where about 20 are needed; no weight passes through shared memory.
//          Geometry, launch formulas and the two GPU bodies: gemm.cuh. Host twin: gemm_host.h.
// Tried    nothing has been timed on a GPU. On paper: one K split inside a block only; narrow n at t8 and t16 leaves SMs idle
//          (n = 3840: 30 blocks of 128 rows), a split across blocks by scratch and ticket would fill them.
// Test     scripts name it `gemm`: csrc/tests/gemm_test.cpp
#include "gemm.cuh"

#define G4_GEMM_INSTANCE(T) \
  G4_KERNEL(g4_gemm_t##T, G4GemmParams, G4_GEMM_BOUNDS_##T) { g4::gemm_instance<T, g4::GemmOutBf16>(cta, p); }

G4_GEMM_INSTANCE(1)
G4_GEMM_INSTANCE(2)
G4_GEMM_INSTANCE(4)
G4_GEMM_INSTANCE(8)
G4_GEMM_INSTANCE(16)
