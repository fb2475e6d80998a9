// g4_step_begin: first node of a decode graph; from the row index and the slot table to what the rows' kernels read.
//
//   slot s = row_slot[r]; position q = slots[s].position
//   status  G4_TOKEN_NONE       s < 0, or slots[s].live = 0
//           G4_TOKEN_BAD_STATE  q outside [0, position_limit), or the page entry of q is -1 in either family
//           0                   otherwise; only then slot[r] = s, token[r] = last_token, position[r] = q
//   padding rows get token -1, position 0, slot -1 and no items
//   items of a row = segments that hold a visible key: q / SEG - max(0, q - window + 1) / SEG + 1
//   (from 0 if window = 0, as for global)
//   item_begin[r] = sum of the items of rows before r; item_begin[rows] = their total
//
// Shapes in G4StepBeginParams; up to 128 rows, a few hundred bytes a row.
// Grid: 1 block of 128 threads (thread = row); 64 bytes of shared memory.
//
// Idea: a step uploads nothing, so all that follows from the positions is made here; both prefix sums are one scan of
// warp shuffles and four warp totals, integers, so any order gives the same result.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/step_test.cpp (step_begin)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/folds.h"

namespace {

// Page of a position in a ring of `pages` entries; a global table never wraps, so an entry past it is no page.
G4_FN int page_of(const int32_t* table, int slot, int pages, int page_tokens, int position, bool ring) {
  const int entry = position / page_tokens;
  if (pages <= 0 || (!ring && entry >= pages)) return -1;
  return table[(long long)slot * pages + entry % pages];
}

G4_FN int row_status(const G4StepBeginParams& p, int slot) {
  if (slot < 0 || !p.slots[slot].live) return G4_TOKEN_NONE;
  const int position = p.slots[slot].position;
  if (position < 0 || position >= p.slots[slot].position_limit) return G4_TOKEN_BAD_STATE;
  if (page_of(p.sliding_table, slot, p.sliding_pages, p.page_tokens_sliding, position, true) < 0 ||
      page_of(p.global_table, slot, p.global_pages, p.page_tokens_global, position, false) < 0)
    return G4_TOKEN_BAD_STATE;
  return 0;
}

G4_FN int segments(int position, int window, int segment) {
  const int first = window > 0 && position >= window ? position - window + 1 : 0;
  return position / segment - first / segment + 1;
}

}  // namespace

G4_KERNEL(g4_step_begin, G4StepBeginParams, 128) {
  G4_SHARED(g4::IntPair, scratch);
  const int row = cta.tid();
  g4::IntPair own = {0, 0};  // items of the sliding and of the global family
  if (row < p.rows) {
    const int slot = p.row_slot[row], status = row_status(p, slot);
    const bool good = status == 0;
    const int position = good ? p.slots[slot].position : 0;
    p.token[row] = good ? p.slots[slot].last_token : -1;
    p.position[row] = position;
    p.slot[row] = good ? slot : -1;
    p.status[row] = status;
    if (good) own = {segments(position, p.window, p.segment_sliding), segments(position, 0, p.segment_global)};
  }
  const g4::IntPair before = g4::block_scan_before(cta, own, scratch);
  if (row >= p.rows) return;
  p.sliding_item_begin[row] = before.first;
  p.global_item_begin[row] = before.second;
  if (row != p.rows - 1) return;
  p.sliding_item_begin[p.rows] = before.first + own.first;
  p.global_item_begin[p.rows] = before.second + own.second;
}
