// g4_scatter: the words of one packed upload to their places.
//
//   run j, word i:  dst[(index ? index[i] : i) * stride] = src[first + i];  negative index[i]: the word is dropped
//
// src [words of the upload]; index [count]. 8 bytes a word, 12 with an index; 64 KB for the page table row of a context
// of 262144 tokens. Indices of a run differ, so no two threads write one word.
// Grid: 1 block a run used, 256 threads; no shared memory.
//
// Idea: what a step needs of the host comes in one copy from one pinned buffer, whatever arrays it belongs to; a second
// copy costs the engine thread more than this launch.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/step_test.cpp (scatter)
#include "../gemma4_kernels.h"
#include "../common/cta.h"

G4_KERNEL(g4_scatter, G4ScatterParams, 256) {
  if (cta.block_x() >= p.runs_used) return;
  const G4ScatterRun& run = p.runs[cta.block_x()];
  for (int i = cta.tid(); i < run.count; i += 256) {
    const int place = run.index ? run.index[i] : i;
    if (place >= 0) run.dst[(long long)place * run.stride] = p.src[run.first + i];
  }
}
