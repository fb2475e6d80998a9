// The words of csrc/common as kernels of their own (words.cu), for tests that run them where the kernels run.
#ifndef G4_TEST_WORDS_H
#define G4_TEST_WORDS_H

#include <stdint.h>

// Every thread writes the sum it was given: of one row, or, with eight warps, of a row a warp.
typedef struct SumParams {
  const uint16_t* x;
  float* out;
  int32_t width;
} SumParams;

enum MathWord { kWordFma, kWordSqrt, kWordRsqrt, kWordExp, kWordTanh, kWordGelu, kWordBf16, kWordDivide };
// out[i] = word(a[i], b[i], c[i]), those that the word takes.
typedef struct MathWordParams {
  const float* a;
  const float* b;
  const float* c;
  float* out;
  int32_t n;
  int32_t word;
} MathWordParams;

// Block i: d[i] = c[i] + a[i] b[i], `steps` products in a chain. Fragments as a warp holds them.
typedef struct ProductParams {
  const uint32_t* a;  // [cases][steps][32][4]
  const uint32_t* b;  // [cases][steps][32][2]
  const float* c;     // [cases][32][4]
  float* d;           // [cases][32][4]
  int32_t steps;
} ProductParams;

// The same chain by the two instructions a Hopper GPU has, 64 rows and 8 columns a block of 128 threads.
typedef struct ChainParams {
  const uint16_t* a;  // [cases][steps][64][16]
  const uint16_t* b;  // [cases][steps][8][16], column by column
  float* by_warps;    // [cases][64][8], mma.sync
  float* by_group;    // [cases][64][8], wgmma
  int32_t steps;      // at most 32
} ChainParams;

#endif
