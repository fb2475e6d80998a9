// Attention against its rules in plain code, decode against prompt, and everything that must not matter. With the
// kernels built with -DG4_ATTN_BODIES the same tests check the index arithmetic of the GPU code on fibres (about 35 s).
// Under an address sanitizer a key that no row sees must not even be read.
#include <algorithm>

#include "../common/math.h"
#include "kv_cache.h"

using namespace g4test;

namespace {

struct Kernels {
  int hd, seg;
  G4SoftKernelFn decode, prompt;
};
const Kernels kKernels[] = {
    {256, 32, g4_attn_decode_h256_s32, g4_attn_prompt_h256_s32},
    {256, 128, g4_attn_decode_h256_s128, g4_attn_prompt_h256_s128},
    {512, 32, g4_attn_decode_h512_s32, g4_attn_prompt_h512_s32},
    {512, 256, g4_attn_decode_h512_s256, g4_attn_prompt_h512_s256},
};
uint32_t shared_bytes(const Kernels& k) { return 32 * k.hd + 98 * k.seg + 1280; }

int first_key(int pos, int window) { return window ? std::max(0, pos - window + 1) : 0; }

// Queries with scores of standard deviation about 2: a softmax that neither one key nor the mean decides.
std::vector<uint16_t> random_q(size_t n, int hd, Random& random) {
  std::vector<uint16_t> q(n);
  for (auto& x : q) x = g4::f32_to_bf16(random.normal() * 2.0f / std::sqrt((float)hd));
  return q;
}

// ---- Plain references, one (query, head) ----

// The segment rule, step by step; keys of pages not granted are masked.
std::vector<uint16_t> segment_rule(const uint16_t* q, const Sequence& s, int h, int pos, int window, int seg,
                                   const std::function<bool(int)>& granted = [](int) { return true; }) {
  const int hd = s.head_dim;
  std::vector<float> o(hd, 0.0f), os(hd);
  float m = 0, l = 0;
  bool empty = true;
  for (int begin = 0; begin <= pos; begin += seg) {
    std::vector<int> keys;
    for (int key = begin; key < begin + seg; key++)
      if (key <= pos && key >= first_key(pos, window) && granted(key)) keys.push_back(key);
    if (keys.empty()) continue;
    std::vector<float> score;
    for (int key : keys) {
      float acc = 0;
      for (int d = 0; d < hd; d++) acc = acc + g4::bf16_to_f32(q[d]) * g4::bf16_to_f32(s.k[s.at(key, h) + d]);
      score.push_back(acc);
    }
    const float ms = *std::max_element(score.begin(), score.end());
    float ls = 0;
    std::fill(os.begin(), os.end(), 0.0f);
    for (size_t i = 0; i < keys.size(); i++) {
      const float p = g4::round_bf16(g4::exp(score[i] - ms));
      ls = ls + p;
      for (int d = 0; d < hd; d++) os[d] = os[d] + p * g4::bf16_to_f32(s.v[s.at(keys[i], h) + d]);
    }
    if (empty) {
      m = ms, l = ls, o = os, empty = false;
      continue;
    }
    const float top = std::max(m, ms), a = g4::exp(m - top), b = g4::exp(ms - top);
    for (int d = 0; d < hd; d++) o[d] = std::fmaf(os[d], b, o[d] * a);
    l = std::fmaf(ls, b, l * a);
    m = top;
  }
  std::vector<uint16_t> out(hd);
  for (int d = 0; d < hd; d++) out[d] = g4::f32_to_bf16(o[d] / l);
  return out;
}

// Softmax attention in double. Returns the value and, a dim, how far a right answer may stand from it. Rounding to bf16
// is off by at most 2^-8 of the value: once for p, which moves O and l, and once for the output. A score is off by what
// its chain of f32 sums lost, and moves p by that share.
void softmax_double(const uint16_t* q, const Sequence& s, int h, int pos, int window, std::vector<double>& out,
                    std::vector<double>& slack, const std::function<bool(int)>& granted) {
  const int hd = s.head_dim;
  std::vector<double> score;
  std::vector<int> keys;
  double top = -1e300, l = 0, score_slack = 0;
  for (int key = first_key(pos, window); key <= pos; key++) {
    if (!granted(key)) continue;
    double acc = 0, magnitude = 0;
    for (int d = 0; d < hd; d++) {
      const double product = (double)g4::bf16_to_f32(q[d]) * g4::bf16_to_f32(s.k[s.at(key, h) + d]);
      acc += product, magnitude += std::fabs(product);
    }
    keys.push_back(key);
    score.push_back(acc);
    top = std::max(top, acc);
    score_slack = std::max(score_slack, std::ldexp(magnitude, -22) * (hd / 16));
  }
  out.assign(hd, 0.0);
  slack.assign(hd, 0.0);
  for (size_t i = 0; i < score.size(); i++) {
    const double p = std::exp(score[i] - top);
    l += p;
    for (int d = 0; d < hd; d++) {
      const double v = g4::bf16_to_f32(s.v[s.at(keys[i], h) + d]);
      out[d] += p * v, slack[d] += p * std::fabs(v);
    }
  }
  for (int d = 0; d < hd; d++) {
    out[d] /= l;
    slack[d] = slack[d] / l * (std::ldexp(1, -8) + 4 * score_slack) + std::fabs(out[d]) * std::ldexp(1, -7) + 1e-4;
  }
}

// ---- A decode step ----

struct Row {
  int slot, position;
  const Sequence* sequence;
};

struct Step {
  const Kernels* kernels;
  int heads, window, grid = 3;
  uint64_t seed = 0;

  // q, result [rows][heads][hd].
  std::vector<uint16_t> run(const Cache& cache, const std::vector<Row>& rows, const std::vector<uint16_t>& q) const {
    const int n = (int)rows.size(), hd = kernels->hd, kv_heads = cache.view.kv_heads;
    std::vector<int32_t> position, slot, item_begin{0};
    for (const Row& r : rows) {
      position.push_back(r.position);
      slot.push_back(r.slot);
      const int items = r.slot < 0 ? 0 : r.position / kernels->seg - first_key(r.position, window) / kernels->seg + 1;
      item_begin.push_back(item_begin.back() + items);
    }
    const size_t items = item_begin.back(), group = heads / kv_heads;
    Buffer<uint16_t> dq(q), out(q.size());
    Buffer<int32_t> dposition(position), dslot(slot), dbegin(item_begin);
    Buffer<float> part_o(items * kv_heads * group * hd), part_ml(items * kv_heads * group * 2);
    Buffer<uint32_t> ticket(std::vector<uint32_t>(n * kv_heads, 0));
    G4AttnDecodeParams p{dq.ptr(),     out.ptr(),    dposition.ptr(), dslot.ptr(), dbegin.ptr(), cache.view,
                         part_o.ptr(), part_ml.ptr(), ticket.ptr(),    n,           heads,        window};
    launch(kernels->decode, "attn_decode", &p, Dim{(uint32_t)grid, 1, 1}, G4_ATTN_THREADS, shared_bytes(*kernels),
           seed);
    for (uint32_t t : ticket.download()) G4_CHECK(t == 0, "a ticket was left at %u", t);
    return out.download();
  }
};

bool always(int) { return true; }

void check_bits(const char* what, const std::vector<uint16_t>& out, size_t row_head, const std::vector<uint16_t>& want,
                int position) {
  const size_t hd = want.size();
  for (size_t d = 0; d < hd; d++)
    G4_CHECK(out[row_head * hd + d] == want[d], "%s: row*heads+head %zu position %d dim %zu: %04x, want %04x", what,
             row_head, position, d, out[row_head * hd + d], want[d]);
}

// One (query, head) of `out`: the bits of the rule on the host. On a GPU, and on the host when `loose` asks for it too,
// the distance from softmax attention in double.
void check_row(const char* what, const std::vector<uint16_t>& out, size_t row_head, const uint16_t* q,
               const Sequence& s, int kv_head, int position, int window, int seg, bool loose = false,
               const std::function<bool(int)>& granted = always) {
  const size_t hd = s.head_dim;
  if (!on_gpu()) check_bits(what, out, row_head, segment_rule(q, s, kv_head, position, window, seg, granted), position);
  if (!on_gpu() && !loose) return;
  std::vector<double> want, slack;
  softmax_double(q, s, kv_head, position, window, want, slack, granted);
  for (size_t d = 0; d < hd; d++) {
    const float got = g4::bf16_to_f32(out[row_head * hd + d]);
    G4_CHECK(std::fabs(got - want[d]) <= slack[d],
             "%s: row*heads+head %zu position %d dim %zu is %g, softmax gives %g +- %g", what, row_head, position, d,
             got, want[d], slack[d]);
  }
}

void check_against_rule(const char* what, const std::vector<uint16_t>& out, const std::vector<Row>& rows,
                        const std::vector<uint16_t>& q, int heads, int window, int seg, bool loose = false) {
  for (size_t r = 0; r < rows.size(); r++)
    for (int h = 0; h < heads; h++) {
      const Sequence& s = *rows[r].sequence;
      const size_t at = r * heads + h, hd = s.head_dim;
      const int kv_head = h / (heads / s.kv_heads);
      check_row(what, out, at, &q[at * hd], s, kv_head, rows[r].position, window, seg, loose);
    }
}

// One slot and one sequence a row, filled with exactly the keys the row sees.
struct Batch {
  std::vector<Sequence> sequences;
  Cache cache;
  std::vector<Row> rows;
  std::vector<uint16_t> q;
  Batch(const std::vector<int>& positions, int table_pages, int page_tokens, int heads, int kv_heads, int hd,
        int window, Random& random)
      : cache((int)positions.size(), table_pages, page_tokens, kv_heads, hd, 0, random) {
    sequences.reserve(positions.size());
    for (size_t i = 0; i < positions.size(); i++) {
      sequences.emplace_back(positions[i] + 1, kv_heads, hd, random);
      cache.fill((int)i, sequences.back(), first_key(positions[i], window), positions[i] + 1);
      rows.push_back(Row{(int)i, positions[i], &sequences.back()});
    }
    cache.upload_and_forbid_the_rest();
    q = random_q(positions.size() * heads * hd, hd, random);
  }
};

std::vector<uint16_t> slice(const std::vector<uint16_t>& x, size_t at, size_t n) {
  return std::vector<uint16_t>(x.begin() + at, x.begin() + at + n);
}

int pages_for(int positions, int page) { return (positions + page - 1) / page; }

}  // namespace

G4_TEST(decode_follows_the_segment_rule_bit_for_bit_for_every_group_size) {
  for (const Kernels& k : kKernels)
    for (int group : {1, 2, 4, 8, 16}) {
      Random random(100 + group);
      const int kv_heads = group == 16 ? 1 : 2, heads = group * kv_heads, seg = k.seg;
      for (int window : {0, seg + 8}) {
        const std::vector<int> positions{0, 5, seg - 1, seg, seg + 1, 2 * seg + 17};
        const int page = window ? 16 : 32;
        Batch b(positions, pages_for(3 * seg, page), page, heads, kv_heads, k.hd, window, random);
        const auto out = Step{&k, heads, window}.run(b.cache, b.rows, b.q);
        check_against_rule("decode", out, b.rows, b.q, heads, window, seg, true);
      }
    }
}

G4_TEST(every_offset_around_window_and_segment_borders_is_right) {
  const Kernels& k = kKernels[0];
  for (int window : {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
    Random random(200 + window);
    std::vector<int> positions;
    for (int p = 0; p < 100; p++) positions.push_back(p);
    Batch b(positions, 7, 16, 1, 1, k.hd, window, random);
    const auto out = Step{&k, 1, window}.run(b.cache, b.rows, b.q);
    check_against_rule("decode", out, b.rows, b.q, 1, window, k.seg);
  }
}

G4_TEST(a_ring_that_wrapped_reads_like_a_dense_table) {
  for (const Kernels& k : {kKernels[0], kKernels[1]})
    for (int page : {16, 32})
      for (int window : {48, 100}) {
        Random random(300 + window);
        const std::vector<int> positions{500, 511, 512, 640, 777};
        const int ring = pages_for(window + 1, page) + 1;  // fewer tokens than the positions
        Batch b(positions, ring, page, 2, 1, k.hd, window, random);
        const auto out = Step{&k, 2, window}.run(b.cache, b.rows, b.q);
        check_against_rule("decode", out, b.rows, b.q, 2, window, k.seg);
      }
}

G4_TEST(the_head_counts_of_the_12b_follow_the_rule_at_long_contexts) {
  const std::vector<int> positions{0, 16, 127, 1024, 2499};
  for (int family = 0; family < 2; family++) {
    const Kernels& k = kKernels[family ? 3 : 1];
    const int kv_heads = family ? 1 : 8, window = family ? 0 : 1024;
    Random random(400 + family);
    Batch b(positions, pages_for(2500, 32), 32, 16, kv_heads, k.hd, window, random);
    const auto out = Step{&k, 16, window, 132}.run(b.cache, b.rows, b.q);
    check_against_rule("decode", out, b.rows, b.q, 16, window, k.seg, true);
  }
}

G4_TEST(grid_size_thread_order_row_order_and_neighbours_do_not_matter) {
  for (const Kernels& k : kKernels) {
    Random random(500 + k.seg + k.hd);
    const int heads = 4, kv_heads = 2, window = k.hd == 256 ? k.seg + 40 : 0;
    const std::vector<int> positions{3 * k.seg + 1, 0, k.seg, 2 * k.seg - 1, 7};
    Batch b(positions, pages_for(4 * k.seg, 16), 16, heads, kv_heads, k.hd, window, random);
    const auto out = Step{&k, heads, window, 1}.run(b.cache, b.rows, b.q);
    for (int grid : {3, 132})
      G4_CHECK((Step{&k, heads, window, grid}.run(b.cache, b.rows, b.q)) == out, "grid %d", grid);
    G4_CHECK((Step{&k, heads, window, 2, 7}.run(b.cache, b.rows, b.q)) == out, "permuted threads");
    const size_t width = (size_t)heads * k.hd;
    for (size_t r = 0; r < b.rows.size(); r++) {  // alone, and in reversed order
      const auto q = slice(b.q, r * width, width), want = slice(out, r * width, width);
      G4_CHECK((Step{&k, heads, window}.run(b.cache, {b.rows[r]}, q)) == want, "row %zu alone", r);
    }
    std::vector<Row> rows(b.rows.rbegin(), b.rows.rend());
    std::vector<uint16_t> q, want;
    for (size_t r = b.rows.size(); r-- > 0;) {
      q.insert(q.end(), &b.q[r * width], &b.q[r * width] + width);
      want.insert(want.end(), &out[r * width], &out[r * width] + width);
    }
    G4_CHECK((Step{&k, heads, window}.run(b.cache, rows, q)) == want, "reversed rows");
  }
}

G4_TEST(padding_rows_become_zeros_and_disturb_nobody) {
  const Kernels& k = kKernels[0];
  Random random(600);
  Batch b({0, 40, 90}, 6, 16, 2, 1, k.hd, 0, random);
  b.rows.insert(b.rows.begin(), Row{-1, 12345, nullptr});
  b.rows.insert(b.rows.begin() + 2, 2, Row{-1, -7, nullptr});
  b.rows.push_back(Row{-1, 0, nullptr});
  const auto q = random_q(b.rows.size() * 2 * k.hd, k.hd, random);
  for (int grid : {1, 3, 132}) {
    const auto out = Step{&k, 2, 0, grid}.run(b.cache, b.rows, q);
    for (size_t r = 0; r < b.rows.size(); r++)
      for (int h = 0; h < 2; h++) {
        const size_t at = r * 2 + h;
        const int position = b.rows[r].position;
        if (b.rows[r].slot < 0) check_bits("padding", out, at, std::vector<uint16_t>(k.hd, 0), position);
        else check_row("padding", out, at, &q[at * k.hd], *b.rows[r].sequence, 0, position, 0, k.seg);
      }
  }
  const auto none = Step{&k, 2, 0}.run(b.cache, {Row{-1, 0, nullptr}}, std::vector<uint16_t>(2 * k.hd, 0x3f80));
  G4_CHECK(none == std::vector<uint16_t>(2 * k.hd, 0), "a step of padding only");
}

G4_TEST(keys_of_a_page_not_granted_are_masked) {
  for (const Kernels& k : {kKernels[0], kKernels[1]}) {
    Random random(700);
    const int pos = 2 * k.seg + 20;
    Batch b({pos}, pages_for(pos + 1, 16), 16, 2, 1, k.hd, 0, random);
    b.cache.revoke(0, 16);
    for (int key = k.seg; key < 2 * k.seg; key += 16) b.cache.revoke(0, key);  // a whole segment
    b.cache.upload_table();
    const auto out = Step{&k, 2, 0}.run(b.cache, b.rows, b.q);
    const auto granted = [&](int key) { return key / 16 != 1 && key / k.seg != 1; };
    for (int h = 0; h < 2; h++)
      check_row("revoked", out, h, &b.q[h * k.hd], b.sequences[0], 0, pos, 0, k.seg, false, granted);
  }
}

G4_TEST(scores_of_equal_size_and_of_great_size_keep_the_rule) {
  for (const Kernels& k : {kKernels[0], kKernels[3]}) {
    Random random(800);
    Batch b({k.seg + 9, 2 * k.seg + 30}, pages_for(3 * k.seg, 16), 16, 2, 1, k.hd, 0, random);
    for (float scale : {0.0f, 8.0f, -300.0f}) {  // uniform weights; one key decides; scores in the thousands
      auto q = b.q;
      for (auto& x : q) x = g4::f32_to_bf16(g4::bf16_to_f32(x) * scale);
      const auto out = Step{&k, 2, 0}.run(b.cache, b.rows, q);
      check_against_rule("scaled", out, b.rows, q, 2, 0, k.seg);
    }
  }
}

// ---- Prompt ----

namespace {

// Attention of positions [start, start + rows), keys before the chunk from pages that hold only what its first query's
// window needs, later ones from scratch, or all from the pages.
std::vector<uint16_t> run_prompt(const Kernels& k, const Sequence& s, const std::vector<uint16_t>& q_all, int heads,
                                 int window, int start, int rows, int page, bool scratch, Random& random) {
  const int width = heads * k.hd, end = start + rows;
  const int first_page = start / page, recent_begin = scratch ? first_page * page : end;
  const int oldest = first_key(start, window);
  Cache cache(4, pages_for(s.positions, page), page, s.kv_heads, k.hd, 0, random);
  cache.fill(2, s, std::min(oldest, recent_begin), scratch ? recent_begin : end);
  Cache recent(0, pages_for(rows + page, page) + 1, page, s.kv_heads, k.hd, first_page, random);
  recent.fill(0, s, recent_begin, scratch ? end : recent_begin);
  cache.upload_and_forbid_the_rest();
  recent.upload_and_forbid_the_rest();
  Buffer<uint16_t> q(slice(q_all, (size_t)start * width, (size_t)rows * width));
  Buffer<uint16_t> out((size_t)rows * width);
  G4AttnPromptParams p{q.ptr(), out.ptr(), cache.view, recent.view, 2, start, rows, heads, window};
  if (!scratch) p.recent = G4KvView{};
  const uint32_t queries = 16 / (heads / s.kv_heads);
  launch(k.prompt, "attn_prompt", &p, Dim{(rows + queries - 1) / queries, (uint32_t)s.kv_heads, 1}, G4_ATTN_THREADS,
         shared_bytes(k));
  return out.download();
}

}  // namespace

G4_TEST(prompt_gives_the_bits_of_decode_for_every_group_size) {
  for (const Kernels& k : kKernels)
    for (int group : {1, 2, 4, 8, 16}) {
      Random random(900 + group);
      const int kv_heads = group == 2 ? 2 : 1, heads = group * kv_heads, n = 2 * k.seg + 21;
      const int window = k.hd == 256 ? k.seg / 2 + 13 : 0;
      const Sequence s(n, kv_heads, k.hd, random);
      Cache cache(1, pages_for(n, 16), 16, kv_heads, k.hd, 0, random);
      cache.fill(0, s, 0, n);
      cache.upload_and_forbid_the_rest();
      const auto q = random_q((size_t)n * heads * k.hd, k.hd, random);
      const int start = n - 60, rows = 60;  // crosses a segment border
      std::vector<Row> step;
      for (int i = 0; i < rows; i++) step.push_back(Row{0, start + i, &s});
      const size_t width = (size_t)heads * k.hd;
      const auto q_step = slice(q, start * width, rows * width);
      const auto want = Step{&k, heads, window, 2}.run(cache, step, q_step);
      const auto got = run_prompt(k, s, q, heads, window, start, rows, 16, true, random);
      for (size_t i = 0; i < want.size(); i++)
        G4_CHECK(got[i] == want[i], "h%d s%d group %d: position %zu: prompt %04x, decode %04x", k.hd, k.seg, group,
                 start + i / width, got[i], want[i]);
    }
}

G4_TEST(prompt_follows_the_segment_rule_wherever_the_chunk_starts) {
  for (const Kernels& k : {kKernels[0], kKernels[2]})
    for (int window : {0, 16, 33, 100}) {
      Random random(1000 + window);
      const int n = 150, heads = 4, kv_heads = 2;
      const Sequence s(n, kv_heads, k.hd, random);
      const auto q = random_q((size_t)n * heads * k.hd, k.hd, random);
      const size_t width = (size_t)heads * k.hd;
      std::vector<uint16_t> want;  // on a GPU: what the whole prompt in one chunk gave, once seen to be right
      for (int pos = 0; pos < n && !on_gpu(); pos++)
        for (int h = 0; h < heads; h++) {
          const auto row = segment_rule(&q[pos * width + h * k.hd], s, h / 2, pos, window, k.seg);
          want.insert(want.end(), row.begin(), row.end());
        }
      for (int chunk : {n, 64, 37, 7, 1})
        for (int page : {16, 32})
          for (bool scratch : {true, false}) {
            if (chunk < 37 && !(page == 16 && scratch)) continue;
            for (int start = chunk < 37 ? 90 : 0; start < n; start += chunk) {
              const int rows = std::min(chunk, n - start);
              const auto out = run_prompt(k, s, q, heads, window, start, rows, page, scratch, random);
              if (want.empty()) {
                for (int i = 0; i < n * heads; i++)
                  check_row("prompt", out, i, &q[i * k.hd], s, i % heads / 2, i / heads, window, k.seg);
                want = out;
              }
              for (size_t i = 0; i < out.size(); i++)
                G4_CHECK(out[i] == want[start * width + i],
                         "h%d window %d chunk %d page %d scratch %d: position %zu element %zu: %04x, want %04x", k.hd,
                         window, chunk, page, scratch, start + i / width, i % width, out[i], want[start * width + i]);
            }
          }
    }
}

G4_TEST(prompt_at_the_segments_served_is_softmax_attention) {
  for (const Kernels& k : {kKernels[1], kKernels[3]}) {
    Random random(1100);
    const int n = 3 * k.seg + 5, rows = 24, start = n - rows, kv_heads = k.hd == 256 ? 2 : 1, heads = 4;
    const int window = k.hd == 256 ? k.seg + 11 : 0;
    const Sequence s(n, kv_heads, k.hd, random);
    const auto q = random_q((size_t)n * heads * k.hd, k.hd, random);
    const auto out = run_prompt(k, s, q, heads, window, start, rows, 32, true, random);
    std::vector<Row> row_list;
    for (int i = 0; i < rows; i++) row_list.push_back(Row{0, start + i, &s});
    const auto q_rows = slice(q, (size_t)start * heads * k.hd, (size_t)rows * heads * k.hd);
    check_against_rule("prompt", out, row_list, q_rows, heads, window, k.seg, true);
  }
}
