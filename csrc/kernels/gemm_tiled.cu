// The product of gemm.cu for any number of tokens, bit for bit: the linear layers of a prompt chunk.
//
// Shapes   as gemm.cu. A block is 128 weight rows x 64 tokens; block b holds row block b / token_blocks and token block
//          b % token_blocks, so that blocks running at one time share weight rows: the weights, larger than L2, are
//          read once, and x, which fits L2, many times.
// Moves    from memory 2 n k + 2 tokens k + 2 tokens n bytes; from L2 to the SMs 2 k (128 + 64) bytes a block.
// Fast by  reuse in registers: 32 rows x 32 tokens a warp are 8 products for 6 shared-memory reads. Weights and x are
//          copied by cp.async, stages of 64 depths ahead. Body: gemm_staged in gemm.cuh.
// Tried    weights to registers: 125 TFLOP/s at 512 tokens, 145 at 2048 (gate_up of the 12B, H200); a latency a step.
//          Staged weights: not timed; 300 expected. wgmma gives the bits of mma.sync (mma_test, H200) and would give
//          about 600: a candidate that has never run stands in csrc/tests/gemm_wgmma.cuh.
// Test     csrc/tests/gemm_test.cpp, as it is and with every file built with -DG4_GEMM_BODIES.
#include "gemm.cuh"

G4_KERNEL(g4_gemm_tiled, G4GemmParams, G4_GEMM_BOUNDS_8) { g4::gemm_tiled_instance<g4::GemmOutBf16>(cta, p); }
