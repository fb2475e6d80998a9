// g4_embed: token embeddings, gathered from the packed table that is also the lm_head.
//
//   x[row][d] = bf16(E[token[row]][d] * scale), scale = bf16(sqrt(hidden)); zeros where token[row] < 0
//
// table packed [ceil(vocab/16)][ceil(hidden/16)][32][8] bf16, token [rows], x [rows][hidden] bf16.
// Reads rows * hidden * 2 useful bytes (a quarter of each 32-byte sector touched: 8 rows share it), writes the same.
// Grid: x = rows; 256 threads; no shared memory.
//
// Idea: storing the table once saves 2 GB on the 12B; the gather's waste is 30 KB a token. A thread takes four depths:
// two 4-byte loads, since a lane's fragment keeps depths 4t, 4t+1 and 4t+2, 4t+3 of a row apart (pack_layout.h).
// Versions: one, not timed on a GPU.
// Test: csrc/tests/row_test.cpp (embed)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/math.h"
#include "../common/pack_layout.h"

G4_KERNEL(g4_embed, G4EmbedParams, G4_ROW_THREADS) {
  const int row = cta.block_x(), token = p.token[row];
  const int steps = (p.hidden + G4_TILE_K - 1) / G4_TILE_K;
#if defined(G4_PLANT_NO_EMBED_SCALE)
  const float scale = 1.0f;
#elif defined(G4_PLANT_EMBED_SCALE_F32)
  const float scale = g4::sqrt((float)p.hidden);
#else
  const float scale = g4::bf16_to_f32((uint16_t)p.scale_bf16);
#endif
  uint16_t* x = p.x + (long long)row * p.hidden;
  for (int depth = cta.tid() * 4; depth < p.hidden; depth += cta.threads() * 4) {
    uint32_t pair[2] = {0, 0};
    if (token >= 0) {
      const uint32_t* e = reinterpret_cast<const uint32_t*>(p.table + g4::packed_offset(token, depth, steps));
      pair[0] = e[0];
      pair[1] = e[2];  // depth + 2 stands four elements on
    }
    G4_UNROLL
    for (int j = 0; j < 4; j++) {
      const float v = g4::bf16_to_f32((uint16_t)(pair[j / 2] >> (j % 2 * 16)));
      if (depth + j < p.hidden) x[depth + j] = token >= 0 ? g4::f32_to_bf16(v * scale) : (uint16_t)0;
    }
  }
}
