// Row reductions and the row norm: one definition of the order, for every kernel that holds a row (numerics, 4).
//
// The order, which depends on the width only. There are 256 lanes; a group is 8 consecutive elements, the last one may
// be shorter. Lane t starts at +0 and adds the squares of groups t, t + 256, t + 512, ... one after another, elements
// of a group ascending: acc = acc + (x * x), two roundings. Then for stride = 128, 64, 32, 16, 8, 4, 2, 1:
// lane[i] = lane[i] + lane[i + stride] for i < stride. Lane 0 is the sum.
//
// Two freedoms follow and are used below. Squares are never -0, so adding a lane or an element that is +0 changes no
// bit: missing elements are read as +0, and a warp can reduce a head of up to 512 dims as lanes 0..63. And a + b is
// b + a, so a butterfly leaves the bits of lane 0 in every thread.
//
//   row_sum_sq        block of 256 threads; thread t is lane t
//   row_sum_sq_warp   one warp, width <= 512; thread i is lanes i and i + 32
//
// Test: csrc/tests/row_test.cpp
#ifndef G4_ROW_H
#define G4_ROW_H

#include "../gemma4_kernels.h"
#include "cta.h"
#include "folds.h"
#include "math.h"

namespace g4 {

constexpr int kGroup = 8;                                          // elements of a group: 16 bytes of bf16
constexpr int kRowStride = G4_ROW_LANES * kGroup;                  // elements one round of the lanes covers
constexpr int kRowScratchBytes = G4_ROW_LANES * (int)sizeof(float);  // shared memory of one row_sum_sq

static_assert(G4_ROW_LANES == G4_ROW_THREADS && G4_ROW_LANES == 256, "thread t of a row kernel is lane t");

// ---- Groups ----

// Eight bf16 of one 16-byte word, widened. Element 2j is the low half of word j.
G4_FN void group_unpack(Vec16 g, float v[kGroup]) {
  G4_UNROLL
  for (int j = 0; j < 4; j++) {
    v[2 * j] = bf16_to_f32((uint16_t)(g.w[j] & 0xffffu));
    v[2 * j + 1] = bf16_to_f32((uint16_t)(g.w[j] >> 16));
  }
}

// Eight floats rounded to bf16.
G4_FN Vec16 group_pack(const float v[kGroup]) {
  Vec16 g;
  G4_UNROLL
  for (int j = 0; j < 4; j++) g.w[j] = (uint32_t)f32_to_bf16(v[2 * j]) | (uint32_t)f32_to_bf16(v[2 * j + 1]) << 16;
  return g;
}

// Elements [first, first + 8) of a row; those at or past width are +0. `whole` says that width is a multiple of 8 and
// the row 16-byte aligned; otherwise elements are read singly.
G4_FN Vec16 group_load(const uint16_t* row, int first, int width, bool whole) {
  if (whole && first < width) return load16(row + first);
  Vec16 g = {{0, 0, 0, 0}};
  G4_UNROLL
  for (int j = 0; j < kGroup; j++)
    if (first + j < width) g.w[j / 2] |= (uint32_t)row[first + j] << (j % 2 * 16);
  return g;
}

G4_FN void group_store(uint16_t* row, int first, int width, bool whole, Vec16 g) {
  if (whole && first < width) return store16(row + first, g);
  G4_UNROLL
  for (int j = 0; j < kGroup; j++)
    if (first + j < width) row[first + j] = (uint16_t)(g.w[j / 2] >> (j % 2 * 16));
}

// One more group of a lane's chain.
G4_FN float group_add_sq(float acc, Vec16 g) {
  float v[kGroup];
  group_unpack(g, v);
  G4_UNROLL
  for (int j = 0; j < kGroup; j++) acc = acc + v[j] * v[j];
  return acc;
}

// ---- The tree ----

// The sum over the 256 lanes, in every thread of the block. scratch: kRowScratchBytes of shared memory that no other
// thread may still be reading: two sums of one kernel take two scratches, and one barrier each is enough.
G4_FN float row_tree(Cta cta, float lane_sum, float* scratch) {
#if G4_GPU
  scratch[cta.tid()] = lane_sum;
  G4_SYNC(cta);
  const float* s = scratch + cta.lane();  // every warp folds strides 128, 64 and 32 for itself
  const float a = (s[0] + s[128]) + (s[64] + s[192]);
  const float b = (s[32] + s[160]) + (s[96] + s[224]);
  return warp_sum(cta, a + b);
#else
  (void)scratch;
  if (cta.threads() != G4_ROW_LANES) cta.self->ops->trap(cta.self, "row kernel of not 256 threads", __FILE__, __LINE__);
  G4_JOIN(cta, G4_SCOPE_BLOCK, &lane_sum, float_tree_join);
  return lane_sum;
#endif
}

// The same sum when lanes 64.. hold nothing: thread i of the warp brings lanes i and i + 32. All 32 threads call it.
G4_FN float row_tree_warp(Cta cta, float lane_low, float lane_high) {
  return warp_sum(cta, lane_low + lane_high);  // stride 32; strides 128 and 64 add +0
}

// ---- A row and its threads ----

// Groups of a thread that a kernel keeps in registers between its passes: enough for rows of 6144 (hidden is at most
// 5376).
constexpr int kRowHeld = 3;

// Rows of a width that is not a multiple of 8 are not 16-byte aligned (bases are): their elements are read singly.
G4_FN bool row_whole(int width) { return width % kGroup == 0; }

// f(j, first) for each group of thread t in ascending order; j < kRowHeld numbers the held ones, -1 is a group past
// them.
template <class F>
G4_FN void row_each(Cta cta, int width, F f) {
  G4_UNROLL
  for (int j = 0; j < kRowHeld; j++) {
    const int first = (cta.tid() + j * G4_ROW_LANES) * kGroup;
    if (first < width) f(j, first);
  }
  for (int first = (cta.tid() + kRowHeld * G4_ROW_LANES) * kGroup; first < width; first += kRowStride) f(-1, first);
}

// ---- Sums of squares ----

// Sum of squares of a row in memory, in every thread of a block of 256.
G4_FN float row_sum_sq(Cta cta, const uint16_t* row, int width, bool whole, float* scratch) {
  float acc = 0.0f;
  for (int first = cta.tid() * kGroup; first < width; first += kRowStride)
    acc = group_add_sq(acc, group_load(row, first, width, whole));
  return row_tree(cta, acc, scratch);
}

// Sum of squares of a head whose groups i and i + 32 stand in thread i of the warp, +0 where the head is shorter.
G4_FN float row_sum_sq_warp(Cta cta, Vec16 low, Vec16 high) {
  return row_tree_warp(cta, group_add_sq(0.0f, low), group_add_sq(0.0f, high));
}

// ---- RMSNorm: RN(x; w) = bf16((x * r) * w), r = rsqrt(sum / width + eps) ----

G4_FN float norm_scale(float sum_sq, int width, float eps) { return rsqrt(sum_sq / (float)width + eps); }

// One element before its rounding to bf16. Gemma 4 stores plain w.
G4_FN float norm_value(float x, float scale, float w) {
#if defined(G4_PLANT_ONE_PLUS_W)
  return (x * scale) * (1.0f + w);
#else
  return (x * scale) * w;
#endif
}

// Without a weight (the norm of V).
G4_FN float norm_value(float x, float scale) { return x * scale; }

G4_FN Vec16 norm_group(Vec16 x, float scale, Vec16 w) {
  float v[kGroup], f[kGroup];
  group_unpack(x, v);
  group_unpack(w, f);
  G4_UNROLL
  for (int j = 0; j < kGroup; j++) v[j] = norm_value(v[j], scale, f[j]);
  return group_pack(v);
}

}  // namespace g4

#endif
