// Log-probabilities of a row that asked: of the chosen token, of the most likely ones, and the token's rank.
//
//   lse = max + ln sum over groups of raw_sum[g] exp(raw_max[g] - max), logprob(id) = z[id] - lse, z the raw logits
//   rank = number of logits not below the token's, minus infinities aside
//   the N most likely: greatest z first, lowest id on ties, by two selections, one on z and one on the ids of the ties
//
// Called after the choice, when the shared memory of the row is free again.
#ifndef G4_SAMPLING_LOGPROBS_H
#define G4_SAMPLING_LOGPROBS_H

#include "sampling_select.h"

namespace g4 {

// Up to N candidates with (key of y, inverted id) at or above (value, inverted): written out by their ranks.
G4_FN void write_top(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, int count, uint32_t value,
                     uint32_t inverted, float lse, G4Logprobs& out) {
  if (cta.tid() == 0) sh.count = 0;
  G4_SYNC(cta);
  each(cta, p, r, sh, count, value, [&](float z, int id) {
    const uint32_t key = key_of(z);
    if (key < value || (key == value && (uint32_t)~id < inverted)) return;
    sh.mass[atomic_add(&sh.count, 1)] = pick_key(z, id);
  });
  G4_SYNC(cta);
  const int found = (int)sh.count;
  if (cta.tid() >= found) return;
  const u64 own = sh.mass[cta.tid()];
  int above = 0;
  for (int i = 0; i < found; i++) above += sh.mass[i] > own;
  out.id[above] = pick_id(own);
  out.logprob[above] = key_value((uint32_t)(own >> 32)) - lse;
}

// Fills the row's G4Logprobs; returns the token's log-probability.
G4_FN float report_logprobs(Cta cta, const G4SampleParams& p, SampleRow r, SampleShared& sh, int token) {
  G4Logprobs& out = p.logprobs[r.row];
  const uint32_t* raw_max = p.raw_max + (long long)r.row * p.groups;
  const float* raw_sum = p.raw_sum + (long long)r.row * p.groups;
  u64 best = 0;
  G4_SYNC(cta);
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS) {
    const uint32_t key = sh.group[g] = raw_max[g];
    best = best > key ? best : key;
  }
  const float top = key_value((uint32_t)block_max(cta, best, sh.scratch));
  const float total = sum_groups(cta, p, sh, [&](int g) {
    return sh.group[g] <= kKeyNegInf ? 0.0f : raw_sum[g] * exp_poly(key_value(sh.group[g]) - top);
  });
  const float lse = top + ln(total);
  r.raw = true;
  // A banned token can only be chosen by force; its logit stands in the row all the same.
  const float chosen = r.logits[token] + 0.0f;
  const uint32_t key = key_of(chosen);
  u64 not_below = 0;
  each_of_row(cta, p, r, sh, key, [&](float z, int) { not_below += key_of(z) >= key; });
  not_below = block_sum(cta, not_below, sh.scratch);
  const int wanted = r.s->logprobs;
  if (cta.tid() == 0) out.count = wanted, out.rank = (int)not_below;
  if (cta.tid() < G4_LOGPROBS_MAX) out.id[cta.tid()] = -1, out.logprob[cta.tid()] = f32_from_bits(0xff800000u);
  if (wanted > 0) {
    const uint32_t bound = groups_bound(cta, p, sh, top, (u64)wanted);
    const uint32_t low = bound > kKeyNegInf ? bound : kKeyNegInf + 1;
    const int count = gather(cta, p, r, sh, low);
    const auto one = [](float, int) { return 1ull; };
    const auto by_value = [](float z, int) { return key_of(z); };
    const uint32_t value = select(cta, p, r, sh, count, low, (u64)wanted, by_value, one);
    u64 above = 0;
    each(cta, p, r, sh, count, low, [&](float z, int) { above += key_of(z) > value; });
    above = block_sum(cta, above, sh.scratch);
    const auto by_id = [&](float z, int id) { return key_of(z) == value ? (uint32_t)~id : 0u; };
    const uint32_t inverted = select(cta, p, r, sh, count, value, (u64)wanted - above, by_id, one);
    write_top(cta, p, r, sh, count, value, inverted, lse, out);
  }
  return chosen - lse;
}

}  // namespace g4

#endif
