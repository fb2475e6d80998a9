// g4_kv_copy against a plain model of both memories: every element of every page is compared after every copy.
#include "../common/kv_layout.h"
#include "reference.h"

using namespace g4test;

namespace {

typedef std::vector<int32_t> Ints;

Dim grid(uint32_t x, uint32_t y = 1) { return Dim{x, y, 1}; }

// A family's memory with its page table, every element of every page with a value of its own.
struct Family {
  int pages, page_tokens, heads, head_dim, table_pages;
  Bf16s k, v;
  Ints table;  // empty: contiguous scratch
  int first_page = 0;

  Family(Random& r, int pages_, int page_tokens_, int heads_, int head_dim_)
      : pages(pages_), page_tokens(page_tokens_), heads(heads_), head_dim(head_dim_), table_pages(0) {
    const size_t n = (size_t)pages * heads * page_tokens * head_dim;
    for (Bf16s* side : {&k, &v}) {
      side->resize(n);
      for (uint16_t& e : *side) e = (uint16_t)r.next();
    }
  }
  long long page_of(int slot, int position) const {
    if (table.empty()) return position / page_tokens - first_page;
    return table[(size_t)slot * table_pages + position / page_tokens % table_pages];
  }
  // Index of (position, head, dim), written from the words of kv_layout.h: [..][lane][8] with lane and element of the
  // fragment a lane holds. -1 without a page.
  long long k_at(int slot, int position, int head, int dim) const {
    const int key = position % page_tokens, lane = key % 8 * 4 + dim % 16 / 4, element = dim % 32 / 16 * 4 + dim % 4;
    return at(slot, position, head, ((long long)(key / 8) * (head_dim / 32) + dim / 32) * 256 + lane * 8 + element);
  }
  long long v_at(int slot, int position, int head, int dim) const {
    const int key = position % page_tokens, lane = dim % 8 * 4 + key % 16 / 4, element = dim % 16 / 8 * 4 + key % 4;
    return at(slot, position, head, ((long long)(key / 16) * (head_dim / 16) + dim / 16) * 256 + lane * 8 + element);
  }
  long long at(int slot, int position, int head, long long inside) const {
    const long long page = page_of(slot, position);
    return page < 0 ? -1 : (page * heads + head) * page_tokens * head_dim + inside;
  }
};

struct DeviceFamily {
  Guarded<uint16_t> k, v;
  Guarded<int32_t> table;
  G4KvView view;
  explicit DeviceFamily(const Family& f)
      : k(f.k), v(f.v), table(f.table),
        view{k.ptr(), v.ptr(), f.table.empty() ? nullptr : table.ptr(), f.table_pages, f.first_page, f.page_tokens,
             f.heads, f.head_dim} {}
};

void check_kv_copy(const Family& src, Family dst, int slot, int begin, int end, uint64_t seed) {
  DeviceFamily from(src), to(dst);
  G4KvCopyParams p = {from.view, to.view, slot, begin, end};
  launch(g4_kv_copy, "g4_kv_copy", &p, grid((end + 15) / 16 - begin / 16, src.heads), 256, 0, seed);
  for (int position = begin; position < end; position++)
    for (int head = 0; head < src.heads; head++)
      for (int dim = 0; dim < src.head_dim; dim++) {
        const long long sk = src.k_at(slot, position, head, dim), dk = dst.k_at(slot, position, head, dim);
        if (sk < 0 || dk < 0) continue;
        dst.k[dk] = src.k[sk];
        dst.v[dst.v_at(slot, position, head, dim)] = src.v[src.v_at(slot, position, head, dim)];
      }
  check_same(to.k.download(), dst.k, "K", begin, end);
  check_same(to.v.download(), dst.v, "V", begin, end);
  check_same(from.k.download(), src.k, "source K", begin, end);
}

}  // namespace

G4_TEST(kv_copy_moves_chunk_scratch_to_a_ring_and_nothing_else) {
  Random r(25);
  for (int round = 0; round < 60; round++) {
    const int head_dim = round % 6 == 0 ? 512 : round % 6 == 1 ? 256 : 32 << r.below(3), heads = 1 + (int)r.below(3);
    const int chunk = 16 << r.below(2), ring_pages = 3 + (int)r.below(4), page = 16 << r.below(2);
    Family src(r, 14, chunk, heads, head_dim), dst(r, ring_pages + 3, page, heads, head_dim);
    src.first_page = (int)r.below(50);
    dst.table_pages = ring_pages;
    for (int i = 0; i < 2 * ring_pages; i++)
      dst.table.push_back(r.below(9) ? i % ring_pages + (i >= ring_pages ? 1 : 0) : -1);
    // No more than the ring holds, or an entry would be written twice.
    const int length = (int)r.below(std::min((ring_pages - 1) * page, 14 * chunk - 32)) + 1;
    const int begin = src.first_page * chunk + (int)r.below(14 * chunk - length);
    check_kv_copy(src, dst, (int)r.below(2), begin, begin + length, r.next());
  }
}

G4_TEST(kv_copy_of_single_positions_touches_no_neighbour) {
  Random r(26);
  Family src(r, 3, 32, 2, 64), dst(r, 4, 16, 2, 64);
  dst.table_pages = 4;
  dst.table = {2, 0, 3, 1};
  src.table_pages = 3;
  src.table = {1, 2, 0};
  for (int position = 0; position < 64; position++) check_kv_copy(src, dst, 0, position, position + 1, 0);
  for (int begin = 14; begin < 18; begin++)
    for (int end = begin + 1; end < 36; end++) check_kv_copy(src, dst, 0, begin, end, 0);
}
