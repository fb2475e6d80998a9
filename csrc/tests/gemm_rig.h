// What the tests of the products are made of: packed weights, launches of every instance as the launcher makes them,
// and the rule of numerics section 2, written out per output.
#ifndef G4_GEMM_RIG_H
#define G4_GEMM_RIG_H

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "gemm_wgmma.cuh"
#include "reference.h"

namespace g4test {

#if defined(G4_TEST_DRIVER)
typedef Buffer<uint16_t> Input;
#else
// Read-only input that ends where its memory ends: one element further faults.
class Input {
 public:
  explicit Input(const Bf16s& v) : bytes_(v.size() * 2) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    mapped_ = (bytes_ + page - 1) / page * page;
    void* p = mmap(nullptr, mapped_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    G4_CHECK(p != MAP_FAILED, "mmap of %zu bytes", mapped_);
    base_ = static_cast<uint8_t*>(p);
    mprotect(base_ + mapped_, page, PROT_NONE);
    mapped_ += page;
    at_ = reinterpret_cast<uint16_t*>(base_ + mapped_ - page - bytes_);
    std::memcpy(at_, v.data(), bytes_);
  }
  Input(const Input&) = delete;
  ~Input() { munmap(base_, mapped_); }
  const uint16_t* ptr() const { return at_; }

 private:
  size_t bytes_, mapped_;
  uint8_t* base_;
  uint16_t* at_;
};
#endif

struct Instance {
  int token_tiles;
  G4SoftKernelFn gemm, logits;
};
const Instance kInstances[] = {{1, &g4_gemm_t1, &g4_logits_t1},
                               {2, &g4_gemm_t2, &g4_logits_t2},
                               {4, &g4_gemm_t4, &g4_logits_t4},
                               {8, &g4_gemm_t8, &g4_logits_t8},
                               {16, &g4_gemm_t16, &g4_logits_t16}};
// Instances of the wgmma body that have no name in the library.
struct Candidate {
  int token_tiles;
  G4SoftKernelFn kernel;
  const char* name;
  uint32_t shared;
};
const Candidate kCandidates[] = {{2, &test_gemm_w2, "test_gemm_w2", g4::WgmmaShape<2>::kShared},
                                 {4, &test_gemm_w4, "test_gemm_w4", g4::WgmmaShape<4>::kShared},
                                 {8, &test_gemm_w8, "test_gemm_w8", g4::WgmmaShape<8>::kShared},
                                 {16, &test_gemm_w16, "test_gemm_w16", g4::WgmmaShape<16>::kShared}};
enum Kind { kGemm, kLogits };
const int kTiled = 0;  // token_tiles of the prompt GEMM

inline int smallest(int tokens) {
  int t = 1;
  while (t * 8 < tokens) t *= 2;
  return t;
}

struct Weights {
  int n, k;
  Bf16s packed;
  Weights(int n, int k) : n(n), k(k), packed((size_t)g4::gemm_tiles(n) * g4::depth_steps(k) * 256, 0) {}
  Weights(int n, int k, const Bf16s& rows) : Weights(n, k) {
    for (int r = 0; r < n; r++)
      for (int d = 0; d < k; d++) at(r, d) = rows[(size_t)r * k + d];
  }
  uint16_t& at(int row, int depth) { return packed[(size_t)g4::packed_offset(row, depth, g4::depth_steps(k))]; }
  uint16_t at(int row, int depth) const { return const_cast<Weights*>(this)->at(row, depth); }
};

// Normal numbers of about unit size from few random bits: sign, 7 mantissa bits, exponent 2^-3 .. 2^0.
inline Bf16s quick_bf16(Random& r, size_t n) {
  Bf16s v(n);
  for (uint16_t& e : v) {
    const uint64_t z = r.next();
    e = (uint16_t)((z & 0x807f) | ((124 + (z >> 20 & 3)) << 7));
  }
  return v;
}

// The rule. Total of one output.
inline float rule(const Weights& w, int row, const uint16_t* x) {
  const int steps = (w.k + 15) / 16;
  int slabs = 8;
  while (slabs > 1 && (steps % slabs || steps / slabs < 11)) slabs /= 2;
  float total = 0;
  for (int s = 0; s < slabs; s++) {
    float chain = 0.0f;
    for (int d = s * (steps / slabs) * 16; d < (s + 1) * (steps / slabs) * 16 && d < w.k; d++) {
      const float product = widen(w.at(row, d)) * widen(x[d]);
      chain += product;
    }
    total = s == 0 ? chain : total + chain;
  }
  return total;
}

// Whether `got` can be the output: on the host the bits of the rule. The tensor cores align the sixteen products of a
// step and the accumulator to the largest and cut what lies below: two units of 2^-23 of the sum of all magnitudes a
// step are more than that, and far less than one wrong product; below the normal numbers each product may vanish.
inline bool right(const Weights& w, int row, const uint16_t* x, Kind kind, uint32_t got) {
  if (!on_gpu()) {
    const float total = rule(w, row, x);
    return got == (kind == kGemm ? round_reference(total) : g4::f32_bits(total));
  }
  const int steps = (w.k + 15) / 16;
  double exact = 0, magnitude = 0;
  for (int d = 0; d < w.k; d++) {
    const double product = (double)widen(w.at(row, d)) * widen(x[d]);
    exact += product, magnitude += std::fabs(product);
  }
  double slack = (steps / g4::slab_count(w.k) + 8) * std::ldexp(magnitude, -22) + std::ldexp(steps, -144);
  if (kind == kGemm) slack = slack * 1.01 + std::fabs(exact) * std::ldexp(1, -8) + std::ldexp(1, -134);
  const double value = kind == kGemm ? widen((uint16_t)got) : g4::f32_from_bits(got);
  return std::fabs(value - exact) <= slack;
}

// Totals [tokens][n].
inline std::vector<float> rule(const Weights& w, const Bf16s& x) {
  const int tokens = (int)(x.size() / w.k);
  std::vector<float> out((size_t)tokens * w.n);
  for (int t = 0; t < tokens; t++)
    for (int r = 0; r < w.n; r++) out[(size_t)t * w.n + r] = rule(w, r, x.data() + (size_t)t * w.k);
  return out;
}

struct Run {
  Kind kind = kGemm;
  float softcap = 0;
  uint64_t seed = 0;
  int budget = g4::kGemmStageBudget;  // of the stages
  int clusters = 0;    // of a candidate: blocks, or clusters of S blocks when `split`
  bool split = false;
  int x_gap = 8, out_gap = 3;  // elements between rows: NaN before the product, untouched poison after it
};

// Launches one instance as the launcher does; x is [tokens][k]. Returns [tokens][n] of what out holds, as raw bits.
inline std::vector<uint32_t> product(int token_tiles, const Weights& w, const Bf16s& x, Run run = Run()) {
  const int tokens = (int)(x.size() / w.k), slabs = g4::slab_count(w.k);
  const int x_stride = w.k + run.x_gap, out_stride = w.n + run.out_gap, guard_rows = 2;
  Bf16s spread((size_t)(tokens - 1) * x_stride + w.k, 0x7fc0);
  for (int t = 0; t < tokens; t++)
    std::copy_n(x.begin() + (size_t)t * w.k, w.k, spread.begin() + (size_t)t * x_stride);
  const Input xs(spread), ws(w.packed);
  const size_t outs = (size_t)(tokens + guard_rows) * out_stride;
  Buffer<uint16_t> bf16(run.kind == kGemm ? outs : 1);
  Buffer<uint32_t> f32(run.kind == kLogits ? outs : 1);

  G4GemmParams p = {};
  p.weight = ws.ptr();
  p.x = xs.ptr();
  p.out = run.kind == kGemm ? static_cast<void*>(bf16.ptr()) : f32.ptr();
  p.tokens = tokens;
  p.n = w.n;
  p.k = w.k;
  p.x_stride = x_stride;
  p.out_stride = out_stride;
  p.slabs = slabs;
  p.softcap = run.softcap;
  if (run.clusters) {
    const uint32_t cluster = run.split ? slabs : 1;
    p.softcap = run.split;
    const Candidate* c = kCandidates;
    while (c->token_tiles != token_tiles) c++;
    launch(c->kernel, c->name, &p, {run.clusters * cluster}, G4_GEMM_THREADS, c->shared, 0, cluster);
  } else if (token_tiles == kTiled) {
    const uint32_t grid = g4::gemm_tiled_grid(tokens, w.n), shared = g4::gemm_tiled_shared_bytes(run.budget);
    launch(run.kind == kGemm ? g4_gemm_tiled : g4_logits_tiled, "tiled", &p, {grid}, G4_GEMM_THREADS, shared, run.seed);
  } else {
    const Instance* i = kInstances;
    while (i->token_tiles != token_tiles) i++;
    const uint32_t grid = g4::gemm_grid(token_tiles, w.n, slabs);
    launch(run.kind == kGemm ? i->gemm : i->logits, "small GEMM", &p, {grid}, G4_GEMM_THREADS,
           g4::gemm_shared_bytes(token_tiles, w.n, slabs, run.budget), run.seed);
  }
  std::vector<uint32_t> all(outs), out;
  const std::vector<uint16_t> low = bf16.download();
  const std::vector<uint32_t> wide = f32.download();
  for (size_t i = 0; i < outs; i++) all[i] = run.kind == kGemm ? low[i] : wide[i];
  for (int t = 0; t < tokens + guard_rows; t++)
    for (int r = 0; r < out_stride; r++) {
      const uint32_t v = all[(size_t)t * out_stride + r];
      if (t < tokens && r < w.n) out.push_back(v);
      else G4_CHECK(v == (run.kind == kGemm ? 0xfbfbu : 0xfbfbfbfbu), "store outside: token %d row %d", t, r);
    }
  return out;
}

inline std::vector<uint32_t> rounded(const std::vector<float>& totals) {
  std::vector<uint32_t> v;
  for (float f : totals) v.push_back(round_reference(f));
  return v;
}
inline std::vector<uint32_t> raw(const std::vector<float>& totals) {
  std::vector<uint32_t> v;
  for (float f : totals) v.push_back(g4::f32_bits(f));
  return v;
}
inline void same(const std::vector<uint32_t>& got, const std::vector<uint32_t>& want, const Weights& w,
                 const char* what, int token_tiles) {
  G4_CHECK(got.size() <= want.size(), "%zu outputs, %zu expected", got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++)
    G4_CHECK(got[i] == want[i], "%s, t%d, n %d, k %d, token %zu of %zu, row %zu: %08x, want %08x", what, token_tiles,
             w.n, w.k, i / w.n, got.size() / w.n, i % w.n, got[i], want[i]);
}

// What the outputs of w and the tokens of x must be, whatever computes them. On a GPU the first product that shows an
// output must be right; it is then what the others must give, bit for bit.
class Expected {
 public:
  Expected(const Weights& w, const Bf16s& x, Kind kind)
      : w_(w), x_(x), kind_(kind), bits_(x.size() / w.k * w.n), known_(bits_.size(), !on_gpu()) {
    if (!on_gpu()) bits_ = kind == kGemm ? rounded(rule(w, x)) : raw(rule(w, x));
  }
  void check(const std::vector<uint32_t>& got, const char* what, int token_tiles) {
    G4_CHECK(got.size() <= bits_.size(), "%zu outputs, %zu expected", got.size(), bits_.size());
    for (size_t i = 0; i < got.size(); i++) {
      if (known_[i]) continue;
      G4_CHECK(right(w_, (int)(i % w_.n), x_.data() + i / w_.n * w_.k, kind_, got[i]),
               "%s, t%d, n %d, k %d, token %zu, row %zu: %08x, rule gives %g", what, token_tiles, w_.n, w_.k, i / w_.n,
               i % w_.n, got[i], rule(w_, (int)(i % w_.n), x_.data() + i / w_.n * w_.k));
      bits_[i] = got[i], known_[i] = true;
    }
    same(got, bits_, w_, what, token_tiles);
  }

 private:
  const Weights& w_;
  const Bf16s& x_;
  Kind kind_;
  std::vector<uint32_t> bits_;
  std::vector<bool> known_;
};

inline Bf16s first_tokens(const Bf16s& x, int tokens, int k) {
  return Bf16s(x.begin(), x.begin() + (size_t)tokens * k);
}

}  // namespace g4test

#endif
