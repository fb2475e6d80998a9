// A paged cache for tests of the attention path: every cell that no test filled holds a NaN, pages stand in random
// order, and a page nobody was granted has id -1.
#ifndef G4_TEST_KV_CACHE_H
#define G4_TEST_KV_CACHE_H

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>

#include "../common/kv_layout.h"
#include "harness.h"

namespace g4test {

constexpr uint16_t kNanBits = 0xffc0;

// K and V of one sequence as plain tensors [positions][kv_heads][head_dim].
struct Sequence {
  int positions, kv_heads, head_dim;
  std::vector<uint16_t> k, v;
  Sequence(int n, int kv_heads_, int hd, Random& random) : positions(n), kv_heads(kv_heads_), head_dim(hd) {
    k.resize((size_t)n * kv_heads * hd);
    v.resize(k.size());
    for (auto& x : k) x = g4::f32_to_bf16(random.normal());
    for (auto& x : v) x = g4::f32_to_bf16(random.normal());
  }
  size_t at(int position, int kv_head) const { return ((size_t)position * kv_heads + kv_head) * head_dim; }
};

class Cache {
 public:
  // A table of table_pages entries a slot (a ring when positions pass it), or a scratch when slots is 0.
  Cache(int slots, int table_pages, int page_tokens, int kv_heads, int hd, int first_page, Random& random)
      : pages_(std::max(slots, 1) * table_pages + 3),
        host_k_((size_t)pages_ * kv_heads * page_tokens * hd, kNanBits),
        host_v_(host_k_.size(), kNanBits),
        host_table_((size_t)std::max(slots, 1) * table_pages, -1),
        k_(host_k_.size()),
        v_(host_v_.size()),
        table_(host_table_.size()) {
    for (int i = 0; i < pages_; i++) free_.push_back(i);
    for (size_t i = free_.size(); i > 1; i--) std::swap(free_[i - 1], free_[random.below((uint32_t)i)]);
    view = G4KvView{k_.ptr(),   v_.ptr(),    slots ? table_.ptr() : nullptr, table_pages, first_page, page_tokens,
                    kv_heads, hd};
  }

  // Fill, grant and revoke change the host's copy; upload() brings it to the device.
  void fill(int slot, const Sequence& s, int begin, int end) {
    for (int pos = begin; pos < end; pos++) {
      const int page = grant(slot, pos);
      for (int h = 0; h < s.kv_heads; h++)
        for (int d = 0; d < s.head_dim; d++) {
          const long long base = g4::kv_page_base(view, page, h);
          host_k_[base + g4::k_offset(pos % view.page_tokens, d, s.head_dim)] = s.k[s.at(pos, h) + d];
          host_v_[base + g4::v_offset(pos % view.page_tokens, d, s.head_dim)] = s.v[s.at(pos, h) + d];
        }
    }
  }
  int page(int slot, int pos) const {
    if (!view.table) return pos / view.page_tokens - view.first_page;
    return host_table_[(size_t)slot * view.table_pages + pos / view.page_tokens % view.table_pages];
  }
  int grant(int slot, int pos) {
    if (page(slot, pos) >= 0) return page(slot, pos);
    entry(slot, pos) = free_.back();
    free_.pop_back();
    return page(slot, pos);
  }
  void revoke(int slot, int pos) { entry(slot, pos) = -1; }

  void upload() {
    k_.upload(host_k_);
    v_.upload(host_v_);
    upload_table();
  }
  void upload_table() { table_.upload(host_table_); }
  // Under an address sanitizer, reading a cell that fill() did not write is an error from here on: of K 8 bytes, which
  // are one key's, of V the 16 bytes that hold four keys, when none of the four was written.
  void upload_and_forbid_the_rest() {
    upload();
#if defined(__SANITIZE_ADDRESS__) && !defined(G4_TEST_DRIVER)
    const auto forbid = [](const Buffer<uint16_t>& b, size_t run) {
      for (size_t i = 0; i < b.size(); i += run)
        if (std::all_of(b.ptr() + i, b.ptr() + i + run, [](uint16_t x) { return x == kNanBits; }))
          __asan_poison_memory_region(b.ptr() + i, run * 2);
    };
    forbid(k_, 4);
    forbid(v_, 8);
#endif
  }
  std::vector<uint16_t> k() const { return k_.download(); }
  std::vector<uint16_t> v() const { return v_.download(); }

  G4KvView view;

 private:
  int32_t& entry(int slot, int pos) {
    return host_table_[(size_t)slot * view.table_pages + pos / view.page_tokens % view.table_pages];
  }

  int pages_;
  std::vector<uint16_t> host_k_, host_v_;
  std::vector<int32_t> host_table_;
  Buffer<uint16_t> k_, v_;
  Buffer<int32_t> table_;
  std::vector<int32_t> free_;
};

}  // namespace g4test

#endif
