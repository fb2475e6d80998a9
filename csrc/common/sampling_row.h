// What both kernels of the sampler see of a row: its processed logits by groups.
//
// A group is 256 consecutive logits, one warp's work. Element j of lane t is id 256 g + 128 (j / 4) + 4 t + j % 4, so a
// lane's eight are two 16-byte words. Past the vocabulary a logit reads as minus infinity.
//
// Processing, in this order (ids outside a hard mask become minus infinity, which no later step revives):
//   suppressed ids of the model, the slot's mask, EOS and stop ids while output_index < min_tokens, active bad words,
//   z += bias; ids of prompt or output: z = z > 0 ? z / r : z * r; ids of the output, c times: z -= c * frequency,
//   z -= presence
//
// Folds are maxima, integer sums, or float sums over a tree that the vocabulary alone fixes: tokens do not depend on
// grids, batches or arrival.
#ifndef G4_SAMPLING_ROW_H
#define G4_SAMPLING_ROW_H

#include "../gemma4_kernels.h"
#include "folds.h"
#include "sampling_math.h"

#if G4_GPU
#define G4_NO_UNROLL _Pragma("unroll 1")
#else
#define G4_NO_UNROLL
#endif

namespace g4 {

constexpr int kLaneLogits = G4_SAMPLE_GROUP / G4_WARP;
constexpr int kWarpsMax = G4_SAMPLE_THREADS / G4_WARP;

// ---- A row ----

struct SampleRow {
  const float* logits;  // [vocab]
  const G4Sampling* s;
  int row, slot, output_index;
  bool raw;             // logits as they stand, at T = 1
};

// Token status of a row before anything is sampled: 0 when it is to be sampled.
G4_FN int sample_status(const G4SampleParams& p, int row) {
  return p.status ? p.status[row] : p.slot[row] < 0 ? G4_TOKEN_NONE : 0;
}

G4_FN SampleRow sample_row(const G4SampleParams& p, int row) {
  const int slot = p.slot[row];
  return {p.logits + (long long)row * p.vocab, &p.slots[slot].sampling, row, slot, p.slots[slot].output_index, false};
}

// What logits are divided by: 1 in greedy rows. Read where it is used: a register saved.
G4_FN float row_temperature(const SampleRow& r) {
  const float temperature = r.s->temperature;
  return temperature == 0.0f ? 1.0f : temperature;
}

G4_FN Draw sample_draw(const SampleRow& r) {
  return {r.s->seed[0], r.s->seed[1], (uint32_t)r.output_index, r.s->choice};
}

// ---- Groups ----

G4_FN int logit_id(int group, int lane, int j) { return group * G4_SAMPLE_GROUP + (j >> 2) * 128 + lane * 4 + (j & 3); }

G4_FN void load_logits(const G4SampleParams& p, const float* logits, int group, int lane, float z[kLaneLogits]) {
  const float negative_infinity = f32_from_bits(0xff800000u);
  // Rows of a vocabulary that is not a multiple of 4 are not 16-byte aligned: their logits are read singly.
  if (p.vocab % 4 == 0 && (group + 1) * G4_SAMPLE_GROUP <= p.vocab) {
    const float* at = logits + group * G4_SAMPLE_GROUP + lane * 4;
    const Vec16 low = load16(at), high = load16(at + 128);
    G4_UNROLL
    for (int j = 0; j < 4; j++) z[j] = f32_from_bits(low.w[j]), z[j + 4] = f32_from_bits(high.w[j]);
    return;
  }
  G4_UNROLL
  for (int j = 0; j < kLaneLogits; j++) {
    const int id = logit_id(group, lane, j);
    z[j] = id < p.vocab ? logits[id] : negative_infinity;
  }
}

// Adds `value` to the logit of `id` where this lane holds it, or puts it there.
G4_FN void change_logit(int group, int lane, int id, float value, bool put, float z[kLaneLogits]) {
  const int local = id - group * G4_SAMPLE_GROUP;
  if ((uint32_t)local >= G4_SAMPLE_GROUP || (local & 127) >> 2 != lane) return;
  const int at = local >> 7 << 2 | (local & 3);
  G4_UNROLL
  for (int j = 0; j < kLaneLogits; j++)  // j is a constant: z stays in registers
    if (j == at) z[j] = put ? value : z[j] + value;
}

G4_FN void ban(int group, int lane, const int32_t* ids, int count, float z[kLaneLogits]) {
  for (int i = 0; i < count; i++) change_logit(group, lane, ids[i], f32_from_bits(0xff800000u), true, z);
}

G4_FN void add_bias(const G4Bias* bias, int count, int group, int lane, float z[kLaneLogits]) {
  int low = 0, high = count;  // first entry of the group
  while (low < high) {
    const int middle = (low + high) / 2;
    if (bias[middle].id < group * G4_SAMPLE_GROUP) low = middle + 1;
    else high = middle;
  }
  for (; low < count && bias[low].id < (group + 1) * G4_SAMPLE_GROUP; low++)
    change_logit(group, lane, bias[low].id, bias[low].value, false, z);
}

G4_FN void penalise(const G4SampleParams& p, const G4Sampling& s, int group, int lane, float z[kLaneLogits]) {
  const uint16_t* counts = p.counts + (long long)s.penalty_table * p.vocab;
  const uint32_t* prompt = p.prompt_bits + (long long)s.penalty_table * p.mask_words;
  G4_UNROLL
  for (int j = 0; j < kLaneLogits; j++) {
    const int id = logit_id(group, lane, j);
    if (id >= p.vocab) continue;
    const int count = counts[id];
    if (count || prompt[id / 32] >> (id % 32) & 1)
      z[j] = z[j] > 0.0f ? z[j] / s.repetition_penalty : z[j] * s.repetition_penalty;
    if (count) z[j] = (z[j] - (float)count * s.frequency_penalty) - s.presence_penalty;
  }
}

G4_FN void process_logits(const G4SampleParams& p, const SampleRow& r, int group, int lane, float z[kLaneLogits]) {
  const G4Sampling& s = *r.s;
  ban(group, lane, p.suppressed, p.suppressed_count, z);
  if (s.flags & G4_SAMPLING_MASK) {
    const uint32_t* mask = p.mask + (long long)r.slot * p.mask_words;
    G4_UNROLL
    for (int half = 0; half < 2; half++) {
      const int word = group * 8 + half * 4 + lane / 8;
      const uint32_t bits = word < p.mask_words ? mask[word] >> (lane % 8 * 4) : 0;
      G4_UNROLL
      for (int j = 0; j < 4; j++)
        if (!(bits >> j & 1)) z[half * 4 + j] = f32_from_bits(0xff800000u);
    }
  }
  if (r.output_index < s.min_tokens) {
    ban(group, lane, p.eos_ids, p.eos_count, z);
    ban(group, lane, p.slots[r.slot].stop_ids, p.slots[r.slot].stop_count, z);
  }
  if (s.flags & G4_SAMPLING_WORDS) ban(group, lane, p.words[r.slot].active, (int)p.words[r.slot].active_count, z);
  if (s.flags & G4_SAMPLING_BIAS) add_bias(p.bias + (long long)r.slot * G4_BIAS_MAX, s.bias_count, group, lane, z);
  if (s.flags & G4_SAMPLING_PENALTIES) penalise(p, s, group, lane, z);
}

// Key of the greatest logit of a lane's eight; NaN above all.
G4_FN uint32_t lane_max(const float z[kLaneLogits]) {
  uint32_t best = 0;
  G4_UNROLL
  for (int j = 0; j < kLaneLogits; j++) {
    const uint32_t key = key_of(z[j]);
    best = key > best ? key : best;
  }
  return best;
}

}  // namespace g4

#endif
