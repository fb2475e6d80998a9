// Instances of the wgmma body that the kernel library has no name for, for gemm_test and kernel_bench.
#include "gemm_wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define G4_CANDIDATE(T, blocks)                                                              \
  G4_KERNEL_THAT_WAITS(test_gemm_w##T, G4GemmParams, G4_CANDIDATE_BOUNDS_##blocks) {                    \
    g4::gemm_wgmma<T, g4::GemmOutBf16>(cta, p, p.softcap != 0.0f);                           \
  }
#else
#define G4_CANDIDATE(T, blocks) \
  G4_KERNEL_THAT_WAITS(test_gemm_w##T, G4GemmParams, G4_GEMM_THREADS) { (void)cta, (void)p; }
#endif
#define G4_CANDIDATE_BOUNDS_1 G4_GEMM_THREADS, 1
#define G4_CANDIDATE_BOUNDS_2 G4_GEMM_THREADS, 2

G4_CANDIDATE(2, 2)
G4_CANDIDATE(4, 2)
G4_CANDIDATE(8, 2)
G4_CANDIDATE(16, 1)
