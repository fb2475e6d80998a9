// Element order inside a KV page: K and V stand in the order their tensor-core fragments want, so that one 16-byte load
// is what a lane feeds to two products. A page holds page_tokens (a multiple of 16) consecutive positions of one KV
// head.
//
// Logical depth order inside a 16-step of a product: lane quad position t = lane % 4 holds depths 4t .. 4t+3 of the
// step (instead of 2t, 2t+1, 2t+8, 2t+9), for A and B alike. A product sums over its depth, so this is the same
// product; it lets activations and Q be read by 8-byte loads. csrc/common/pack_layout.h uses the same order for
// weights.
//
//   K (B operand of Q K^T, n = key, depth = dim):
//     [key / 8][dim / 32][lane = (key % 8) * 4 + (dim % 16) / 4][(dim % 32) / 16 * 4 + dim % 4]
//   V (B operand of P V, n = dim, depth = key):
//     [key / 16][dim / 16][lane = (dim % 8) * 4 + (key % 16) / 4][(dim % 16) / 8 * 4 + key % 4]
#ifndef G4_KV_LAYOUT_H
#define G4_KV_LAYOUT_H

#include "../gemma4_kernels.h"
#include "cta.h"

namespace g4 {

// Offset in elements of (key in page, dim) inside one page of one KV head.
G4_FN int k_offset(int key, int dim, int head_dim) {
  return ((key / 8 * (head_dim / 32) + dim / 32) * 32 + (key % 8) * 4 + (dim % 16) / 4) * 8 + (dim % 32) / 16 * 4 +
         dim % 4;
}
G4_FN int v_offset(int key, int dim, int head_dim) {
  return ((key / 16 * (head_dim / 16) + dim / 16) * 32 + (dim % 8) * 4 + (key % 16) / 4) * 8 + (dim % 16) / 8 * 4 +
         key % 4;
}

// Page id of a position, -1 when none is granted.
G4_FN int kv_page(const G4KvView& v, int slot, int position) {
  const int page = position / v.page_tokens;
  if (!v.table) return page - v.first_page;
  return v.table[(long long)slot * v.table_pages + page % v.table_pages];
}

// First element of a page of one KV head.
G4_FN long long kv_page_base(const G4KvView& v, int page, int kv_head) {
  return ((long long)page * v.kv_heads + kv_head) * v.page_tokens * v.head_dim;
}

}  // namespace g4

#endif
