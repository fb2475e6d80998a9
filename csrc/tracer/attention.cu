// Tracer twins of qkv_prep and of both attentions: cells are written and read through the page tables at the very
// addresses of the real kernels. See payload.h for what they compute.
//
// K and V of a cell are 64 bits each, in dims 0 to 3 of every KV head, in fragment order (kv_layout.h), so that the
// real kv_copy carries them. Nothing is read or written through a page -1; such a cell in sight changes the hash for
// good. A decode row whose work list (item_begin) is not that of its position gets a wrong hash too.
//
// Grids of the real kernels; the first thread of a block to run works, on whole rows: decode row r by block r mod grid,
// a prompt's tile of queries by its block of KV head 0. Bytes moved: 16 a visible cell and KV head. Host only.
// Test: gates/tracer.rs
#include "payload.h"

namespace g4 {

// First elements of K and V of a page's head; false where no page is granted.
static bool cell_base(const G4KvView& v, int slot, int position, int kv_head, uint16_t** k, uint16_t** value) {
  const int page = kv_page(v, slot, position);
  if (page < 0) return false;
  const long long base = kv_page_base(v, page, kv_head);
  *k = v.k + base;
  *value = v.v + base;
  return true;
}

static void write_cell(const G4KvView& v, int slot, int position, uint64_t payload) {
  const int key = position % v.page_tokens;
  for (int head = 0; head < v.kv_heads; head++) {
    uint16_t *k, *value;
    if (!cell_base(v, slot, position, head, &k, &value)) return;
    store_payload(k + k_offset(key, 0, v.head_dim), fold(fold(kKey, payload), (uint64_t)position));
    const uint64_t cell = fold(fold(kValue, payload), (uint64_t)position);
    for (int d = 0; d < 4; d++) value[v_offset(key, d, v.head_dim)] = (uint16_t)(cell >> (16 * d));
  }
}

// h and the cell of a position.
static uint64_t fold_cell(uint64_t h, const G4KvView& v, int slot, int position) {
  const int key = position % v.page_tokens;
  for (int head = 0; head < v.kv_heads; head++) {
    uint16_t *k, *value;
    if (!cell_base(v, slot, position, head, &k, &value)) return fold(h, kNoPage);
    uint64_t cell = 0;
    for (int d = 0; d < 4; d++) cell |= (uint64_t)value[v_offset(key, d, v.head_dim)] << (16 * d);
    h = fold(fold(h, load_payload(k + k_offset(key, 0, v.head_dim))), cell);
  }
  return h;
}

static int first_seen(int position, int window) { return window > 0 && position >= window ? position - window + 1 : 0; }

static void qkv_prep(Cta cta, const G4QkvPrepParams& p) {
  if (cta.block_y() != 0) return;
  const int row = cta.block_x(), slot = p.slot[row];
  const long long width = (p.heads + p.kv.kv_heads * (p.k_eq_v ? 1 : 2)) * p.kv.head_dim;
  uint16_t* q = p.q_out + (long long)row * p.heads * p.kv.head_dim;
  if (slot < 0) {
    std::memset(q, 0, (size_t)p.heads * p.kv.head_dim * 2);
    return;
  }
  const uint64_t payload = load_payload(p.qkv + row * width);
  store_payload(q, payload);
  write_cell(p.kv, slot, p.position[row], payload);
}

static void attn_decode(Cta cta, const G4AttnDecodeParams& p, int segment) {
  for (int row = cta.block_x(); row < p.rows; row += cta.grid_x()) {
    const long long at = (long long)row * p.heads * p.kv.head_dim;
    const int slot = p.slot[row], position = p.position[row];
    if (slot < 0) {
      std::memset(p.out + at, 0, (size_t)p.heads * p.kv.head_dim * 2);
      continue;
    }
    const int first = first_seen(position, p.window);
    uint64_t h = load_payload(p.q + at);
    for (int j = first; j <= position; j++) h = fold_cell(h, p.kv, slot, j);
    const int items = p.item_begin[row + 1] - p.item_begin[row];
    if (items != position / segment - first / segment + 1) h = fold(h, kWrongItems);
    store_payload(p.out + at, h);
  }
}

static void attn_prompt(Cta cta, const G4AttnPromptParams& p) {
  if (cta.block_y() != 0) return;
  const int queries = G4_ATTN_ROWS / (p.heads / p.kv.kv_heads), begin = cta.block_x() * queries;
  const int recent_begin = p.recent.k ? p.recent.first_page * p.recent.page_tokens : 0x7fffffff;
  for (int i = begin; i < p.rows && i < begin + queries; i++) {
    const long long at = (long long)i * p.heads * p.kv.head_dim;
    const int position = p.start + i;
    uint64_t h = load_payload(p.q + at);
    for (int j = first_seen(position, p.window); j <= position; j++)
      h = fold_cell(h, j < recent_begin ? p.kv : p.recent, p.slot, j);
    store_payload(p.out + at, h);
  }
}

}  // namespace g4

G4_TRACER_KERNEL(g4_qkv_prep, G4QkvPrepParams, G4_ROW_THREADS) { g4::qkv_prep(cta, p); }

#define G4_TRACER_ATTENTION(HD, SEG)                                                      \
  G4_TRACER_KERNEL(g4_attn_decode_h##HD##_s##SEG, G4AttnDecodeParams, G4_ATTN_THREADS) {  \
    g4::attn_decode(cta, p, SEG);                                                         \
  }                                                                                       \
  G4_TRACER_KERNEL(g4_attn_prompt_h##HD##_s##SEG, G4AttnPromptParams, G4_ATTN_THREADS) {  \
    g4::attn_prompt(cta, p);                                                              \
  }

// Nothing is left to fold.
G4_TRACER_KERNEL(g4_attn_decode_fold, G4AttnDecodeParams, 128) { (void)cta, (void)p; }

G4_TRACER_ATTENTION(256, 128)
G4_TRACER_ATTENTION(256, 32)
G4_TRACER_ATTENTION(512, 256)
G4_TRACER_ATTENTION(512, 32)
