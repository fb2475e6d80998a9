// The block of a row in g4_sample_rows: its shared memory, how it visits candidates, and the one selection behind every
// filter.
//
// select(key, weight, target): over the candidates that are kept so far, the least key K such that the candidates with
// greater keys weigh less than target. Keeping key >= K keeps ties together. Weight 1 and target k is top-k; masses and
// p * total are top-p; masses, nearness and typical_p * total are typical. Weights are integers: every order of adding
// gives the same K, so it does not matter where candidates stand:
//
//   in shared memory   at most G4_SAMPLE_CANDIDATES, gathered from the groups that can hold any. Up to one a thread:
//                      each adds what weighs above it. More: radix, eight bits a pass, most significant first.
//   in the row         everything else (a flat nucleus, massive ties): the same radix over the row's groups, read again
#ifndef G4_SAMPLING_SELECT_H
#define G4_SAMPLING_SELECT_H

#include "sampling_row.h"

namespace g4 {

constexpr int kBins = 256;

struct SampleShared {
  uint32_t group[G4_SAMPLE_GROUPS_MAX];  // keys of the groups' maxima, of z / T once the temperature is applied
  float y[G4_SAMPLE_CANDIDATES];         // z / T of a candidate
  int32_t id[G4_SAMPLE_CANDIDATES];
  u64 mass[G4_SAMPLE_THREADS];           // masses of the candidates, while there is at most one a thread
  u64 bin[kBins];
  u64 scratch[G4_WARP];
  u64 below;                             // FoundBin, on its way to all threads
  int32_t found;
  uint32_t count;                        // entries of a list that is being filled
  uint32_t thread_key[G4_SAMPLE_THREADS];
};

static_assert(sizeof(SampleShared) <= G4_SAMPLE_SHARED_BYTES, "the launcher asks for too little shared memory");

constexpr int kWide = -1;  // instead of a count: candidates stand in the row

// Which candidates are left. A candidate is named by y = z / T.
struct Kept {
  uint32_t low, high;  // keys of y
  uint32_t near;       // least nearness, 0 while typical is off
  float best;          // greatest y of the row
  float mean;          // mean distance from it: the entropy less ln of the total mass
};

// Everything legal, in a row whose greatest y is `best`.
G4_FN Kept all_kept(float best) { return {kKeyNegInf + 1, kKeyNan - 1, 0, best, 0.0f}; }

// Nearness to the entropy, as a key: |-ln p - H| = |(best - y) - mean| exactly, ln of the total cancels.
G4_FN uint32_t near_key(const Kept& k, float y) {
  const float off = (k.best - y) - k.mean;
  return key_of(off > 0.0f ? -off : off);
}
G4_FN bool is_kept(const Kept& k, float y) {
  const uint32_t key = key_of(y);
  return key >= k.low && key <= k.high && (k.near == 0 || near_key(k, y) >= k.near);
}

// f(y, id) for every legal logit of the groups whose maximum reaches `low`, by the warps of the block.
template <class F>
G4_FN void each_of_row(Cta cta, const G4SampleParams& p, const SampleRow& r, const SampleShared& sh, uint32_t low,
                       F f) {
  for (int group = cta.warp(); group < p.groups; group += G4_SAMPLE_THREADS / G4_WARP) {
    if (sh.group[group] < low) continue;
    float z[kLaneLogits];
    load_logits(p, r.logits, group, cta.lane(), z);
    if (!r.raw) process_logits(p, r, group, cta.lane(), z);
    G4_UNROLL
    for (int j = 0; j < kLaneLogits; j++)
      if (key_of(z[j]) > kKeyNegInf) f(r.raw ? z[j] : z[j] / row_temperature(r), logit_id(group, cta.lane(), j));
  }
}

// f(y, id) for every candidate, wherever they stand; count: in shared memory, or kWide.
template <class F>
G4_FN void each(Cta cta, const G4SampleParams& p, const SampleRow& r, const SampleShared& sh, int count, uint32_t low,
                F f) {
  for (int i = cta.tid(); i < count; i += G4_SAMPLE_THREADS) f(sh.y[i], sh.id[i]);
  if (count == kWide) each_of_row(cta, p, r, sh, low, f);
}

// Gathers the candidates with keys of y from `low` up. Returns their count, or kWide when they do not fit.
G4_FN int gather(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, uint32_t low) {
  if (cta.tid() == 0) sh.count = 0;
  G4_SYNC(cta);
  each_of_row(cta, p, r, sh, low, [&](float y, int id) {
    if (key_of(y) < low) return;
    const uint32_t at = atomic_add(&sh.count, 1);
    if (at < G4_SAMPLE_CANDIDATES) sh.y[at] = y, sh.id[at] = id;
  });
  G4_SYNC(cta);
  return sh.count <= G4_SAMPLE_CANDIDATES ? (int)sh.count : kWide;
}

struct FoundBin {
  int bin;    // -1: all bins together weigh less than the target
  u64 below;  // weight of the bins before it
};

// First bin at which the running sum of bins reaches target.
G4_FN FoundBin find_bin(Cta cta, SampleShared& sh, u64 target) {
  G4_SYNC(cta);
  if (cta.warp() == 0) {
    u64 own = 0;
    for (int b = 0; b < kBins / G4_WARP; b++) own += sh.bin[cta.lane() * (kBins / G4_WARP) + b];
    const u64 through = warp_scan(cta, own);
    u64 before = through - own;
    if (before < target && through >= target) {
      int b = cta.lane() * (kBins / G4_WARP);
      while (before + sh.bin[b] < target) before += sh.bin[b++];
      sh.found = b, sh.below = before;
    }
    if (cta.lane() == G4_WARP - 1 && through < target) sh.found = -1;
  }
  G4_SYNC(cta);
  const FoundBin found = {sh.found, sh.below};
  G4_SYNC(cta);  // everyone has read it before anyone goes on to the next
  return found;
}

// See the file's head. key(y, id) and weight(y, id) of a kept candidate, 0 keys are none.
template <class Key, class Weight>
G4_FN uint32_t select(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, int count, uint32_t low,
                      u64 target, Key key, Weight weight) {
  uint32_t prefix = 0, mask = 0;
  G4_NO_UNROLL
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (cta.tid() < kBins) sh.bin[cta.tid()] = 0;
    G4_SYNC(cta);
    each(cta, p, r, sh, count, low, [&](float y, int id) {
      const uint32_t k = key(y, id);
      if (k && (k & mask) == prefix) shared_add(&sh.bin[255 - (k >> shift & 255)], weight(y, id));
    });
    const FoundBin found = find_bin(cta, sh, target);
    if (found.bin < 0) return 1;  // everything kept weighs less
    target -= found.below;
    prefix |= (uint32_t)(255 - found.bin) << shift;
    mask |= 255u << shift;
  }
  return prefix;
}

// The same where candidate i is thread i's: what weighs above a candidate is added by its thread.
template <class Key, class Weight>
G4_FN uint32_t select_small(Cta cta, SampleShared& sh, int count, u64 target, Key key, Weight weight) {
  const int i = cta.tid();
  const uint32_t own = i < count ? key(sh.y[i], sh.id[i]) : 0;
  sh.thread_key[i] = own;
  G4_SYNC(cta);
  u64 above = 0;
  if (own)
    for (int j = 0; j < count; j++) above += sh.thread_key[j] > own ? weight(j) : 0ull;
  const uint32_t least = own && above < target ? ~own : 0;
  return ~(uint32_t)block_max(cta, least, sh.scratch);
}

// A key with at least k groups' maxima at or above it, as high as 256 linear bins below `top`, the greatest of them,
// tell; 0 when there are fewer groups. It only narrows what is read again: the answer does not depend on it.
G4_FN uint32_t groups_bound(Cta cta, const G4SampleParams& p, SampleShared& sh, float top, u64 k) {
  u64 lowest = 0, legal = 0;
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS) {
    const uint32_t key = sh.group[g];
    if (key <= kKeyNegInf) continue;
    legal++;
    lowest = lowest > (uint32_t)~key ? lowest : (uint32_t)~key;
  }
  const float range = top - key_value(~(uint32_t)block_max(cta, lowest, sh.scratch));
  if (block_sum(cta, legal, sh.scratch) < k || !(range > 0.0f)) return 0;
  const float scale = (float)(kBins - 1) / range;
  const auto bin_of = [&](uint32_t key) {
    const float bin = (top - key_value(key)) * scale;
    return bin < (float)(kBins - 1) ? (int)bin : kBins - 1;
  };
  if (cta.tid() < kBins) sh.bin[cta.tid()] = 0;
  G4_SYNC(cta);
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS)
    if (sh.group[g] > kKeyNegInf) shared_add(&sh.bin[bin_of(sh.group[g])], 1);
  const int last = find_bin(cta, sh, k).bin;
  u64 edge = 0;  // least maximum of the bins up to the one found, inverted
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS) {
    const uint32_t key = sh.group[g];
    if (key > kKeyNegInf && bin_of(key) <= last) edge = edge > (uint32_t)~key ? edge : (uint32_t)~key;
  }
  return ~(uint32_t)block_max(cta, edge, sh.scratch);
}

// Sum over the groups of term(g): 256 lanes, lane t adds groups t, t + 256, ... ascending, then a tree, strides 128 to
// 1. The candidates' places hold the lanes, so it comes before any are gathered.
template <class Term>
G4_FN float sum_groups(Cta cta, const G4SampleParams& p, SampleShared& sh, Term term) {
  if (cta.tid() < G4_ROW_LANES) {
    float lane = 0.0f;
    for (int g = cta.tid(); g < p.groups; g += G4_ROW_LANES) lane = lane + term(g);
    sh.y[cta.tid()] = lane;
  }
  G4_SYNC(cta);
  const float* s = sh.y + cta.lane();  // every warp folds for itself
  const float a = (s[0] + s[128]) + (s[64] + s[192]);
  const float b = (s[32] + s[160]) + (s[96] + s[224]);
  const float sum = warp_sum(cta, a + b);
  G4_SYNC(cta);
  return sum;
}

}  // namespace g4

#endif
