// The products of a layer at the widths of each published size, those of experts with one expert's matrix: 64 rows of
// the outputs against the rule, and the tiled product against the small one whole; narrow ones by every small instance.
// kernel_tests.sh runs one size, --full all, and that one by the GPU bodies.
#include "gemm_rig.h"

using namespace g4test;

namespace {

struct Width {
  int n, k;
  Kind kind = kGemm;
};

// Where more tokens than two cost little: 4 M weights.
const int64_t kNarrow = 1 << 22;

void check(const Width& width, Random& r) {
  Weights w(width.n, width.k);
  w.packed = quick_bf16(r, w.packed.size());
  const Bf16s x = quick_bf16(r, (size_t)120 * w.k);
  Run run;
  run.kind = width.kind;
  for (int tokens : {1, 9, 30, 60, 120}) {
    if (tokens > 9 && (int64_t)w.n * w.k > kNarrow) break;
    const std::vector<uint32_t> small = product(smallest(tokens), w, first_tokens(x, tokens, w.k), run);
    for (int i = 0; i < 64; i++) {
      const int row = i == 0 ? 0 : i == 1 ? w.n - 1 : (int)r.below(w.n);
      for (int t = 0; t < tokens; t++) {
        const uint16_t* token = x.data() + (size_t)t * w.k;
        const uint32_t got = small[(size_t)t * w.n + row];
        G4_CHECK(right(w, row, token, width.kind, got), "n %d, k %d, token %d, row %d: %04x, rule gives %g", w.n, w.k,
                 t, row, got, rule(w, row, token));
      }
    }
    same(product(kTiled, w, first_tokens(x, tokens, w.k), run), small, w, "tiled against small", kTiled);
  }
}

void check(std::initializer_list<Width> widths) {
  Random r(13);
  for (const Width& width : widths) check(width, r);
}

}  // namespace

// q | k | v and o of a sliding and of a global layer, gate | up, down; what else the size has.

G4_TEST(widths_e2b) {
  check({{2560, 1536}, {1536, 2048}, {5120, 1536}, {1536, 4096}, {12288, 1536}, {1536, 6144}});
  // Layers that share K and V: q alone, a wider MLP. Per-layer embeddings: their context, a layer's gate and back.
  check({{2048, 1536}, {4096, 1536}, {24576, 1536}, {1536, 12288}, {8960, 1536}, {256, 1536}, {1536, 256}});
}

G4_TEST(widths_e4b) {
  check({{3072, 2560}, {2560, 2048}, {6144, 2560}, {2560, 4096}, {20480, 2560}, {2560, 10240}});
  check({{2048, 2560}, {4096, 2560}, {10752, 2560}, {256, 2560}, {2560, 256}});
}

G4_TEST(widths_12b) {
  check({{8192, 3840}, {3840, 4096}, {8704, 3840}, {3840, 8192}, {30720, 3840}, {3840, 15360}});
}

G4_TEST(widths_26b_a4b) {
  check({{8192, 2816}, {2816, 4096}, {9216, 2816}, {2816, 8192}, {4224, 2816}, {2816, 2112}});
  check({{128, 2816, kLogits}, {1408, 2816}, {2816, 704}});  // router; an expert
}

G4_TEST(widths_31b) {
  check({{16384, 5376}, {5376, 8192}, {18432, 5376}, {5376, 16384}, {43008, 5376}, {5376, 21504}});
}
