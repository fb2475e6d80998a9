// Plain references and helpers shared by the row and step tests: straight loops over elements, no groups, no threads.
#ifndef G4_TEST_REFERENCE_H
#define G4_TEST_REFERENCE_H

#include "../common/cta.h"
#include "../common/math.h"
#include "harness.h"

#include <algorithm>

namespace g4test {

typedef std::vector<uint16_t> Bf16s;

inline float widen(uint16_t b) { return g4::bf16_to_f32(b); }

// Round to nearest even by search between the two neighbours, in double: not the bit trick of cta.h.
inline uint16_t round_reference(double v) {
  if (v != v) return 0x7fc0;
  float f = (float)v;
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t low = (uint16_t)(u >> 16);  // towards zero
  if ((low & 0x7fff) == 0x7f80) return low;
  const double a = widen(low);
  const double b = (low & 0x7fff) == 0x7f7f ? std::ldexp(a < 0 ? -1.0 : 1.0, 128) : widen((uint16_t)(low + 1));
  const double da = std::fabs((double)f - a), db = std::fabs(b - (double)f);
  return da < db || (da == db && low % 2 == 0) ? low : (uint16_t)(low + 1);
}

// Bits of a bf16 as a number line, for distances in ulps.
inline int ordinal(uint16_t b) { return b & 0x8000 ? -(b & 0x7fff) : b & 0x7fff; }

inline Bf16s random_bf16(Random& r, size_t n, float scale = 1.0f) {
  Bf16s v(n);
  for (uint16_t& e : v) e = g4::f32_to_bf16(r.normal() * scale);
  return v;
}

// Sum of squares by the rule of numerics section 4, element by element.
inline float sum_sq_reference(const uint16_t* row, int width) {
  float lane[256] = {};
  for (int i = 0; i < width; i++) {
    const float v = widen(row[i]);
    const float square = v * v;
    lane[i / 8 % 256] += square;
  }
  for (int stride = 128; stride > 0; stride /= 2)
    for (int i = 0; i < stride; i++) lane[i] += lane[i + stride];
  return lane[0];
}

inline Bf16s norm_reference(const uint16_t* row, const uint16_t* weight, int width, float eps) {
  const float mean = sum_sq_reference(row, width) / (float)width;
  const float scale = 1.0f / std::sqrt(mean + eps);
  Bf16s out(width);
  for (int i = 0; i < width; i++) {
    const float scaled = widen(row[i]) * scale;
    const float value = scaled * widen(weight[i]);
    out[i] = round_reference(value);
  }
  return out;
}

// A buffer with poison behind it: a store past the end shows without a sanitizer.
template <class T>
struct Guarded {
  Buffer<T> memory;
  size_t n;
  explicit Guarded(size_t n_) : memory(n_ + 16), n(n_) {}
  explicit Guarded(const std::vector<T>& host) : Guarded(host.size()) {
    std::vector<T> all = memory.download();
    std::copy(host.begin(), host.end(), all.begin());
    memory.upload(all);
  }
  T* ptr() const { return memory.ptr(); }
  std::vector<T> download() const {
    std::vector<T> all = memory.download();
    T poison;
    std::memset(static_cast<void*>(&poison), 0xFB, sizeof poison);
    for (size_t i = n; i < all.size(); i++)
      G4_CHECK(!std::memcmp(&all[i], &poison, sizeof poison), "store past the end, element %zu of %zu", i, n);
    all.resize(n);
    return all;
  }
};

// Bit equality, with the place of the first difference.
template <class T>
inline void check_same(const std::vector<T>& got, const std::vector<T>& want, const char* what, long long a = 0,
                       long long b = 0) {
  G4_CHECK(got.size() == want.size(), "%s (%lld, %lld): %zu elements, want %zu", what, a, b, got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++)
    if (std::memcmp(&got[i], &want[i], sizeof(T))) {
      unsigned g = 0, w = 0;
      std::memcpy(&g, &got[i], std::min(sizeof(T), sizeof g));
      std::memcpy(&w, &want[i], std::min(sizeof(T), sizeof w));
      G4_CHECK(false, "%s (%lld, %lld): element %zu is %#x, want %#x", what, a, b, i, g, w);
    }
}

const int kOddSizes[] = {1, 7, 15, 16, 17, 31, 33, 255, 257, 1023, 1025};

}  // namespace g4test

#endif
