// Fragment order of packed weights: [row / 16][depth / 16][lane 0..31][8]. One 16-byte load is one lane's whole A
// fragment of a 16x16 tile (mma.m16n8k16, A row-major): lane = (row % 8) * 4 + (depth % 16) / 4; inside a lane the
// eight elements are registers a0 a1 a2 a3 of two bf16 each. With the depth order of kv_layout.h (quad position t holds
// depths 4t..4t+3; a0/a1 hold 4t, 4t+1 of rows g and g+8; a2/a3 hold 4t+2, 4t+3 of rows g and g+8):
//     element = (depth % 4) / 2 * 4 + (row % 16) / 8 * 2 + depth % 2
#ifndef G4_PACK_LAYOUT_H
#define G4_PACK_LAYOUT_H

#include "cta.h"

namespace g4 {

// Offset in elements of (row, depth) of a packed weight with ceil(k/16) = steps.
G4_FN long long packed_offset(int row, int depth, int steps) {
  const long long tile = (long long)(row / 16) * steps + depth / 16;
  return (tile * 32 + (row % 8) * 4 + (depth % 16) / 4) * 8 + (depth % 4) / 2 * 4 + (row % 16) / 8 * 2 + depth % 2;
}

}  // namespace g4

#endif
