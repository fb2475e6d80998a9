// g4_tail: last node of a decode graph; launched by hand after a prompt chunk.
//
//   slots[slot[r]].position += 1 for rows with slot[r] >= 0; *step += 1, once (modulo 2^32: a year of steps wraps)
//
// slot [rows], rows <= 128 (rows name different slots); step [1]. A few bytes a row.
// Grid: 1 block of 128 threads, thread = row; no shared memory.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/step_test.cpp (tail)
#include "../gemma4_kernels.h"
#include "../common/cta.h"

G4_KERNEL(g4_tail, G4TailParams, 128) {
  const int row = cta.tid();
  if (row < p.rows && p.slot[row] >= 0) p.slots[p.slot[row]].position += 1;
  if (row == 0) *p.step = (int32_t)((uint32_t)*p.step + 1u);
}
