// g4_kv_copy: K and V of positions [begin, end) of one sequence from one view to another, bit for bit (a prompt chunk's
// last tokens from scratch to the ring, after that layer's attention).
//
// Views as in csrc/common/kv_layout.h; both have the same heads and head_dim (a multiple of 32), page sizes may differ.
// Nothing is read or written through a page -1. Moves 4 * (end - begin) * kv_heads * head_dim bytes, read and written.
// Grid: x = ceil(end / 16) - begin / 16 (groups of 16 positions touched), y = kv_heads; 256 threads; no shared memory.
//
// Idea: 16 positions that start at a multiple of 16 are one contiguous piece of 16 * head_dim elements in K and in V
// alike, whatever the page size, so a whole group is copied by 16-byte cells. At the ends of the range a K cell belongs
// to one position and moves or stays; a V cell mixes four positions and moves element by element.
// Versions: one block a position was dropped unwritten: V would move by 2-byte accesses. Not timed on a GPU.
// Test: csrc/tests/kv_test.cpp (kv_copy)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/kv_layout.h"

namespace {

constexpr int kSpan = 16;  // positions of a group

// First element of a group of positions of one head, -1 when its page is not granted.
G4_FN long long group_base(const G4KvView& v, int slot, int position, int kv_head) {
  const int page = g4::kv_page(v, slot, position);
  if (page < 0) return -1;
  return g4::kv_page_base(v, page, kv_head) + (long long)(position % v.page_tokens) * v.head_dim;
}

}  // namespace

G4_KERNEL(g4_kv_copy, G4KvCopyParams, 256) {
  const int start = (p.begin / kSpan + cta.block_x()) * kSpan, head_dim = p.src.head_dim;
  const int low = p.begin - start, high = p.end - start;  // keys low <= key < high of the group move
  const long long from = group_base(p.src, p.slot, start, cta.block_y());
  const long long to = group_base(p.dst, p.slot, start, cta.block_y());
  if (from < 0 || to < 0) return;
  for (int cell = cta.tid(); cell < 2 * head_dim; cell += cta.threads()) {
    const long long at = cell * 8;
    const int k_key = cell / head_dim * 8 + cell % G4_WARP / 4;
    if (k_key >= low && k_key < high) g4::store16(p.dst.k + to + at, g4::load16(p.src.k + from + at));
    const int v_key = cell % 4 * 4;  // and the three after it
    if (v_key >= low && v_key + 4 <= high) {
      g4::store16(p.dst.v + to + at, g4::load16(p.src.v + from + at));
      continue;
    }
    for (int e = 0; e < 8; e++)
      if (v_key + e % 4 >= low && v_key + e % 4 < high) p.dst.v[to + at + e] = p.src.v[from + at + e];
  }
}
