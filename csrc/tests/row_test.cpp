// Row kernels, the pack and the tables against plain references. The rule defines the bits, so equality is of bits;
// rows also stand beside a double reference once, so that rule and kernel cannot be wrong together.
#include "../common/pack_layout.h"
#include "../common/row.h"
#include "reference.h"
#include "words.h"

using namespace g4test;

extern "C" void test_row_sum_sq(G4SoftThread*, const void*);
extern "C" void test_row_sum_sq_warp(G4SoftThread*, const void*);

namespace {

constexpr float kEps = 1e-6f;

std::vector<int> widths() {
  std::vector<int> w(std::begin(kOddSizes), std::end(kOddSizes));
  // Heads, hidden sizes of the family, its largest intermediate size, and rows past what a thread holds in registers.
  for (int real : {64, 256, 512, 1536, 2560, 2816, 3840, 5376, 6144, 6152, 6145, 15360, 21504}) w.push_back(real);
  return w;
}

Dim grid(uint32_t x, uint32_t y = 1) { return Dim{x, y, 1}; }

}  // namespace

G4_TEST(a_row_sum_has_the_bits_of_the_rule_in_every_thread) {
  Random r(11);
  for (int width : widths()) {
    Guarded<uint16_t> x(random_bf16(r, width, 3.0f));
    Guarded<float> out(256);
    SumParams p = {x.ptr(), out.ptr(), width};
    launch(test_row_sum_sq, "test_row_sum_sq", &p, grid(1), 256, g4::kRowScratchBytes, r.next());
    check_same(out.download(), std::vector<float>(256, sum_sq_reference(x.download().data(), width)), "sum", width);
  }
}

G4_TEST(a_warp_sum_has_the_bits_of_the_block_sum) {
  Random r(12);
  for (int width : {1, 7, 8, 16, 31, 33, 64, 128, 255, 256, 257, 504, 511, 512}) {
    const Bf16s x = random_bf16(r, 8 * width, 3.0f);
    Guarded<uint16_t> buffer(x);
    Guarded<float> out(256);
    SumParams p = {buffer.ptr(), out.ptr(), width};
    launch(test_row_sum_sq_warp, "test_row_sum_sq_warp", &p, grid(1), 256, 0, r.next());
    std::vector<float> want(256);
    for (int t = 0; t < 256; t++) want[t] = sum_sq_reference(&x[t / 32 * width], width);
    check_same(out.download(), want, "warp sum", width);
  }
}

G4_TEST(rmsnorm_has_the_bits_of_the_rule) {
  Random r(13);
  for (int width : widths()) {
    const int rows = width > 4000 ? 2 : 3;
    const Bf16s x = random_bf16(r, (size_t)rows * width, 2.0f), w = random_bf16(r, width);
    Guarded<uint16_t> dx(x), dw(w), out((size_t)rows * width);
    G4RmsNormParams p = {dx.ptr(), dw.ptr(), out.ptr(), rows, width, kEps};
    launch(g4_rmsnorm, "g4_rmsnorm", &p, grid(rows), 256, g4::kRowScratchBytes, r.next());
    Bf16s want;
    for (int row = 0; row < rows; row++) {
      const Bf16s one = norm_reference(&x[(size_t)row * width], w.data(), width, kEps);
      want.insert(want.end(), one.begin(), one.end());
    }
    check_same(out.download(), want, "rmsnorm", width);
  }
}

G4_TEST(rmsnorm_agrees_with_double) {
  Random r(14);
  for (int width : {16, 3840, 15360}) {
    const Bf16s x = random_bf16(r, width, 2.0f), w = random_bf16(r, width);
    Guarded<uint16_t> dx(x), dw(w), out(width);
    G4RmsNormParams p = {dx.ptr(), dw.ptr(), out.ptr(), 1, width, kEps};
    launch(g4_rmsnorm, "g4_rmsnorm", &p, grid(1), 256, g4::kRowScratchBytes);
    const Bf16s got = out.download();
    double sum = 0;
    for (uint16_t e : x) sum += (double)widen(e) * widen(e);
    int off = 0;
    for (int i = 0; i < width; i++) {
      const uint16_t want = round_reference(widen(x[i]) / std::sqrt(sum / width + 1e-6) * widen(w[i]));
      const int d = std::abs(ordinal(got[i]) - ordinal(want));
      G4_CHECK(d <= 1, "width %d element %d: %d ulp", width, i, d);
      off += d;
    }
    G4_CHECK(off <= width / 100, "width %d: %d of %d round otherwise", width, off, width);
  }
}

G4_TEST(rmsnorm_of_zeros_is_zero_and_nan_stays_in_its_row) {
  const int width = 3840;
  Bf16s x(3 * width, 0);
  for (int i = 0; i < width; i++) x[i] = x[2 * width + i] = 0x3f80;
  x[2 * width + 17] = 0x7fc0;
  Guarded<uint16_t> dx(x), dw(Bf16s(width, 0x3f80)), out(3 * width);
  G4RmsNormParams p = {dx.ptr(), dw.ptr(), out.ptr(), 3, width, kEps};
  launch(g4_rmsnorm, "g4_rmsnorm", &p, grid(3), 256, g4::kRowScratchBytes);
  const Bf16s got = out.download();
  for (int i = 0; i < width; i++) {
    G4_CHECK(got[i] == 0x3f80 && got[width + i] == 0, "element %d", i);
    G4_CHECK(std::isnan(widen(got[2 * width + i])), "element %d", i);
  }
}

namespace {

// The end of a sublayer, step by step, each "to bf16" spelt out.
void add_norm_reference(uint16_t* x, const uint16_t* y, const uint16_t* post, const uint16_t* scalar,
                        const uint16_t* next, uint16_t* normed, int width) {
  const Bf16s branch = norm_reference(y, post, width, kEps);
  for (int i = 0; i < width; i++) x[i] = round_reference(widen(x[i]) + widen(branch[i]));
  if (scalar)
    for (int i = 0; i < width; i++) x[i] = round_reference(widen(x[i]) * widen(*scalar));
  if (!next) return;
  const Bf16s opened = norm_reference(x, next, width, kEps);
  std::copy(opened.begin(), opened.end(), normed);
}

void check_add_norm(Random& r, int rows, int width, bool scaled, bool opens, bool in_place) {
  const size_t n = (size_t)rows * width;
  Bf16s x = random_bf16(r, n, 4.0f), normed(opens ? n : 0);
  const Bf16s y = random_bf16(r, n, 0.3f), post = random_bf16(r, width), next = random_bf16(r, width);
  const Bf16s scalar = {g4::f32_to_bf16(0.7f)};
  Guarded<uint16_t> dx(x), dy(y), dpost(post), dnext(next), dscalar(scalar), dnormed(n);
  G4AddNormParams p = {dx.ptr(), dy.ptr(), dpost.ptr(), scaled ? dscalar.ptr() : nullptr, opens ? dnext.ptr() : nullptr,
                       opens ? (in_place ? dy.ptr() : dnormed.ptr()) : nullptr, rows, width, kEps};
  launch(g4_add_norm, "g4_add_norm", &p, grid(rows), 256, 2 * g4::kRowScratchBytes, r.next());
  for (int row = 0; row < rows; row++)
    add_norm_reference(&x[(size_t)row * width], &y[(size_t)row * width], post.data(), scaled ? scalar.data() : nullptr,
                       opens ? next.data() : nullptr, opens ? &normed[(size_t)row * width] : nullptr, width);
  check_same(dx.download(), x, "residual", width, scaled);
  if (opens) check_same((in_place ? dy : dnormed).download(), normed, "normed", width, scaled);
}

}  // namespace

G4_TEST(add_norm_has_every_rounding_point) {
  Random r(15);
  for (int width : widths())
    for (int form = 0; form < 4; form++) check_add_norm(r, width > 4000 ? 1 : 2, width, form & 1, form & 2, width % 2);
  check_add_norm(r, 9, 3840, true, true, true);
}

G4_TEST(a_fused_norm_gives_the_bits_of_the_plain_kernel) {
  Random r(16);
  const int rows = 4, width = 3840;
  Guarded<uint16_t> x(random_bf16(r, rows * width)), y(random_bf16(r, rows * width)), post(random_bf16(r, width));
  Guarded<uint16_t> next(random_bf16(r, width)), normed(rows * width), plain(rows * width);
  G4AddNormParams p = {x.ptr(), y.ptr(), post.ptr(), nullptr, next.ptr(), normed.ptr(), rows, width, kEps};
  launch(g4_add_norm, "g4_add_norm", &p, grid(rows), 256, 2 * g4::kRowScratchBytes);
  G4RmsNormParams q = {x.ptr(), next.ptr(), plain.ptr(), rows, width, kEps};
  launch(g4_rmsnorm, "g4_rmsnorm", &q, grid(rows), 256, g4::kRowScratchBytes);
  check_same(normed.download(), plain.download(), "fused against plain");
}

G4_TEST(gelu_gate_rounds_the_activation_before_the_product) {
  Random r(17);
  for (int width : widths()) {
    const int rows = width > 4000 ? 2 : 5;
    const Bf16s x = random_bf16(r, (size_t)rows * 2 * width, 2.0f);
    Guarded<uint16_t> dx(x), out((size_t)rows * width);
    G4GeluGateParams p = {dx.ptr(), dx.ptr() + width, out.ptr(), rows, width, 2 * width, 2 * width};
    launch(g4_gelu_gate, "g4_gelu_gate", &p, grid(rows, (width + 2047) / 2048), 256, 0, r.next());
    Bf16s want((size_t)rows * width);
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < width; i++) {
        const uint16_t* gate = &x[(size_t)row * 2 * width];
        const uint16_t act = round_reference(g4::gelu_tanh(widen(gate[i])));
        want[(size_t)row * width + i] = round_reference(widen(act) * widen(gate[width + i]));
      }
    check_same(out.download(), want, "gelu_gate", width);
  }
}

G4_TEST(gelu_gate_meets_one_layers_slice_of_a_row) {  // per-layer embeddings: gate [rows][width], up a slice
  Random r(20);
  for (int width : {1, 7, 8, 31, 32, 256})
    for (int layers : {1, 3, 35}) {
      const int rows = 3, layer = layers - 1;
      const Bf16s gate = random_bf16(r, (size_t)rows * width, 2.0f), up = random_bf16(r, (size_t)rows * layers * width);
      Guarded<uint16_t> dgate(gate), dup(up), out((size_t)rows * width);
      G4GeluGateParams p = {dgate.ptr(), dup.ptr() + layer * width, out.ptr(), rows, width, width, layers * width};
      launch(g4_gelu_gate, "g4_gelu_gate", &p, grid(rows, 1), 256, 0, r.next());
      Bf16s want((size_t)rows * width);
      for (int row = 0; row < rows; row++)
        for (int i = 0; i < width; i++) {
          const uint16_t act = round_reference(g4::gelu_tanh(widen(gate[(size_t)row * width + i])));
          const uint16_t entry = up[((size_t)row * layers + layer) * width + i];
          want[(size_t)row * width + i] = round_reference(widen(act) * widen(entry));
        }
      check_same(out.download(), want, "gelu_gate slice", width, layers);
    }
}

namespace {

// Spec 2.3, step by step, each "to bf16" spelt out. x is one layer's slice of the context projection.
Bf16s per_layer_reference(const uint16_t* x, const uint16_t* table, const uint16_t* weight, int hidden, int width) {
  const float context_scale = (float)(1.0 / std::sqrt((double)hidden)), sum_scale = (float)std::sqrt(0.5);
  const float table_scale = widen(round_reference(std::sqrt((double)width)));
  Bf16s context(width), out(width);
  for (int i = 0; i < width; i++) context[i] = round_reference(widen(x[i]) * context_scale);
  context = norm_reference(context.data(), weight, width, kEps);
  for (int i = 0; i < width; i++) {
    const uint16_t token = table ? round_reference(widen(table[i]) * table_scale) : 0;
    out[i] = round_reference(widen(round_reference(widen(context[i]) + widen(token))) * sum_scale);
  }
  return out;
}

void check_per_layer(Random& r, int hidden, int layers, int width) {
  const int rows = 4, vocab = 5;
  const size_t stride = (size_t)layers * width;
  const Bf16s x = random_bf16(r, rows * stride, 3.0f), table = random_bf16(r, vocab * stride, 0.05f);
  const Bf16s weight = random_bf16(r, width);
  const std::vector<int32_t> token = {vocab - 1, 0, -1, 2};
  Guarded<uint16_t> dx(x), dtable(table), dweight(weight);
  Guarded<int32_t> dtoken(token);
  G4PerLayerInputParams p = {dtable.ptr(), dtoken.ptr(), dweight.ptr(), dx.ptr(), rows, layers, width,
                             (float)(1.0 / std::sqrt((double)hidden)), round_reference(std::sqrt((double)width)), kEps};
  launch(g4_per_layer_input, "g4_per_layer_input", &p, grid(rows, (layers + 7) / 8), 256, 0, r.next());
  Bf16s want;
  for (int row = 0; row < rows; row++)
    for (int layer = 0; layer < layers; layer++) {
      const uint16_t* entry = token[row] < 0 ? nullptr : &table[token[row] * stride + (size_t)layer * width];
      const uint16_t* context = &x[row * stride + (size_t)layer * width];
      const Bf16s one = per_layer_reference(context, entry, weight.data(), hidden, width);
      want.insert(want.end(), one.begin(), one.end());
    }
  check_same(dx.download(), want, "per_layer_input", layers, width);
}

}  // namespace

G4_TEST(per_layer_input_has_every_rounding_point) {
  Random r(21);
  for (int width : {8, 16, 24, 32, 104, 248, 256, 264, 504, 512})
    for (int layers : {1, 3, 8, 9}) check_per_layer(r, 64, layers, width);
  check_per_layer(r, 1536, 35, 256);  // E2B
  check_per_layer(r, 2560, 42, 256);  // E4B
}

namespace {

Bf16s pack_reference(const Bf16s& src, int n, int k) {
  const int row_tiles = (n + 15) / 16, steps = (k + 15) / 16;
  Bf16s dst((size_t)row_tiles * steps * 256, 0);
  for (int row = 0; row < n; row++)
    for (int d = 0; d < k; d++) {
      // Lane and register of the fragment, from the words of pack_layout.h.
      const int g = row % 8, t = d % 16 / 4, lane = 4 * g + t;
      const int reg = (row % 16 >= 8 ? 1 : 0) + (d % 4 >= 2 ? 2 : 0);
      dst[(((size_t)(row / 16) * steps + d / 16) * 32 + lane) * 8 + reg * 2 + d % 2] = src[(size_t)row * k + d];
    }
  return dst;
}

Bf16s pack(const Bf16s& src, int n, int k) {
  const int tiles = ((n + 15) / 16) * ((k + 15) / 16);
  Guarded<uint16_t> in(src), out((size_t)tiles * 256);
  G4PackParams p = {in.ptr(), out.ptr(), n, k};
  launch(g4_pack, "g4_pack", &p, grid((tiles + 7) / 8), 256, 0);
  return out.download();
}

}  // namespace

G4_TEST(pack_places_every_element_and_pads_with_zeros) {
  Random r(18);
  for (int n : kOddSizes)
    for (int k : {1, 7, 15, 16, 17, 20, 31, 33, 255, 257}) {
      if ((long long)n * k > 70000) continue;
      const Bf16s src = random_bf16(r, (size_t)n * k);
      check_same(pack(src, n, k), pack_reference(src, n, k), "pack", n, k);
    }
  const Bf16s wide = random_bf16(r, 64 * 3840), tall = random_bf16(r, 1025 * 64);
  check_same(pack(wide, 64, 3840), pack_reference(wide, 64, 3840), "pack", 64, 3840);
  check_same(pack(tall, 1025, 64), pack_reference(tall, 1025, 64), "pack", 1025, 64);
}

G4_TEST(embed_gathers_scales_once_and_zeroes_padding) {
  Random r(19);
  for (int hidden : {1, 7, 15, 16, 17, 31, 33, 255, 257, 1023, 1025, 1536, 2560, 2816, 3840, 5376}) {
    const int vocab = 67, rows = 9;
    const Bf16s e = random_bf16(r, (size_t)vocab * hidden, 0.02f);
    std::vector<int32_t> token(rows);
    for (int32_t& t : token) t = (int32_t)r.below(vocab);
    token[0] = vocab - 1, token[3] = -1, token[7] = G4_TOKEN_BAD_STATE;
    const uint16_t scale = round_reference(std::sqrt((double)hidden));
    Guarded<uint16_t> table(pack_reference(e, vocab, hidden)), x((size_t)rows * hidden);
    Guarded<int32_t> dtoken(token);
    G4EmbedParams p = {table.ptr(), dtoken.ptr(), x.ptr(), rows, hidden, scale};
    launch(g4_embed, "g4_embed", &p, grid(rows), 256, 0, r.next());
    Bf16s want((size_t)rows * hidden, 0);
    for (int row = 0; row < rows; row++)
      for (int d = 0; d < hidden && token[row] >= 0; d++)
        want[(size_t)row * hidden + d] =
            round_reference(widen(e[(size_t)token[row] * hidden + d]) * (double)widen(scale));
    check_same(x.download(), want, "embed", hidden);
  }
}

G4_TEST(the_embedding_scale_is_rounded_to_bf16) {  // spec 2.1: 3840 -> 62.0 and not 61.97
  const float want[][2] = {{1536, 39.25f}, {2560, 50.5f}, {2816, 53.0f}, {3840, 62.0f}, {5376, 73.5f}};
  for (const auto& w : want) {
    const int hidden = (int)w[0];
    Guarded<uint16_t> table(pack_reference(Bf16s(hidden, 0x3f80), 1, hidden)), x(hidden);
    Guarded<int32_t> token(std::vector<int32_t>{0});
    G4EmbedParams p = {table.ptr(), token.ptr(), x.ptr(), 1, hidden, round_reference(std::sqrt((double)hidden))};
    launch(g4_embed, "g4_embed", &p, grid(1), 256, 0);
    for (uint16_t e : x.download()) G4_CHECK(widen(e) == w[1], "hidden %d: %f", hidden, widen(e));
  }
}

namespace {

void check_rope(double theta, int head_dim, int pairs, int positions, int stride) {
  Guarded<uint16_t> c((size_t)positions * pairs), s((size_t)positions * pairs);
  G4RopeTableParams p = {c.ptr(), s.ptr(), theta, positions, pairs, head_dim};
  launch(g4_rope_table, "g4_rope_table", &p, grid((positions + 63) / 64), 256, 0);
  const Bf16s cos = c.download(), sin = s.download();
  for (int i = 0; i < pairs; i++) {
    const float power = (float)powl((long double)theta, 2.0L * i / head_dim);
    const float inv_freq = 1.0f / power;
    for (int position = 0; position < positions; position += position + stride < positions - 3 ? stride : 1) {
      const float angle = (float)position * inv_freq;
      const size_t at = (size_t)position * pairs + i;
      const uint16_t wc = round_reference((float)cosl((long double)angle));
      const uint16_t ws = round_reference((float)sinl((long double)angle));
      G4_CHECK(cos[at] == wc && sin[at] == ws, "head_dim %d position %d pair %d: cos %#x want %#x, sin %#x want %#x",
               head_dim, position, i, cos[at], wc, sin[at], ws);
    }
  }
}

}  // namespace

G4_TEST(rope_tables_are_exact_to_the_last_position) {
  check_rope(1e4, 256, 128, 1, 1);
  check_rope(1e4, 256, 128, 1025, 1);
  check_rope(1e6, 512, 64, 1025, 1);
  check_rope(1e4, 64, 32, 257, 1);
  check_rope(1e4, 256, 128, 262144, 211);
  check_rope(1e6, 512, 64, 262144, 211);
}
