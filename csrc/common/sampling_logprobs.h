// Log-probabilities of a row that asked: of the chosen token, of the most likely ones, and the token's rank.
//
//   y = z raw, or with G4_SAMPLING_PROCESSED z / T of the processed logits; over the candidates:
//   raw, or processed and nothing filtered (greedy with T = 1, plain, a forced token): all legal ones,
//     lse = Y + ln sum over groups of sum[g] exp(max[g] - Y), Y = max y
//   processed and filtered: those that were left to draw from, lse = Y + ln (sum of their masses / 2^40)
//   logprob(id) = y[id] - lse
//   rank = number of candidates not below the token
//   the N most likely: greatest y first, lowest id on ties, by two selections, one on y and one on the ids of the ties
//
// Called after the choice, which leaves its candidates and the groups' keys in the shared memory of the row.
#ifndef G4_SAMPLING_LOGPROBS_H
#define G4_SAMPLING_LOGPROBS_H

#include "sampling_select.h"

namespace g4 {

// What a choice left to draw from.
struct Left {
  bool filtered;  // false: everything legal, and the rest is unused
  int count;      // in shared memory, or kWide
  Kept kept;
};

// Up to N candidates with (key of y, inverted id) at or above (value, inverted): written out by their ranks.
G4_FN void write_top(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, const Left& left,
                     uint32_t value, uint32_t inverted, float lse, G4Logprobs& out) {
  if (cta.tid() == 0) sh.count = 0;
  G4_SYNC(cta);
  each(cta, p, r, sh, left.count, value > left.kept.low ? value : left.kept.low, [&](float y, int id) {
    const uint32_t key = key_of(y);
    if (!is_kept(left.kept, y) || key < value || (key == value && (uint32_t)~id < inverted)) return;
    sh.mass[atomic_add(&sh.count, 1)] = pick_key(y, id);
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

// Entry of a row that asks: how many rows before it do, by the slots the host gave, dead ones included, so that the
// host knows it. It decides where the entry stands, never what it says.
G4_FN int logprobs_entry(Cta cta, const G4SampleParams& p, int row, SampleShared& sh) {
  u64 before = 0;
  if (cta.tid() < row) {
    const int slot = p.row_slot[cta.tid()];
    before = slot >= 0 && p.slots[slot].sampling.flags & G4_SAMPLING_LOGPROBS;
  }
  return (int)block_sum(cta, before, sh.scratch);
}

static_assert(G4_ROWS_DECODE_MAX <= G4_SAMPLE_THREADS, "a thread a row");

// y of one token, legal or not.
G4_FN float token_value(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, int token) {
  u64 own = 0;
  if (cta.warp() == 0) {
    const int group = token / G4_SAMPLE_GROUP;
    float z[kLaneLogits];
    load_logits(p, r.logits, group, cta.lane(), z);
    if (!r.raw) process_logits(p, r, group, cta.lane(), z);
    G4_UNROLL
    for (int j = 0; j < kLaneLogits; j++)
      if (logit_id(group, cta.lane(), j) == token) own = key_of(r.raw ? z[j] : z[j] / row_temperature(r));
  }
  return key_value((uint32_t)block_max(cta, own, sh.scratch));
}

// Logarithm of the sum over everything legal; best: the greatest y. The groups' keys are of y.
G4_FN float lse_of_groups(Cta cta, const G4SampleParams& p, SampleShared& sh, const float* sums, float& best) {
  u64 greatest = 0;
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS)
    greatest = greatest > sh.group[g] ? greatest : sh.group[g];
  best = key_value((uint32_t)block_max(cta, greatest, sh.scratch));
  return best + ln(sum_groups(cta, p, sh, [&](int g) {
    return sh.group[g] <= kKeyNegInf ? 0.0f : sums[g] * exp_poly(key_value(sh.group[g]) - best);
  }));
}

// The same over what was left to draw from.
G4_FN float lse_of_left(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, const Left& left) {
  u64 total = 0;
  each(cta, p, r, sh, left.count, left.kept.low, [&](float y, int) {
    if (is_kept(left.kept, y)) total += mass(left.kept.best - y);
  });
  return left.kept.best + ln((float)block_sum(cta, total, sh.scratch) / kMassOne);
}

// Fills the row's G4Logprobs; returns the token's log-probability.
G4_FN float report_logprobs(Cta cta, const G4SampleParams& p, SampleRow r, SampleShared& sh, int token, Left left) {
  G4Logprobs& out = p.logprobs[logprobs_entry(cta, p, r.row, sh)];
  const long long first = (long long)r.row * p.groups;
  r.raw = !(r.s->flags & G4_SAMPLING_PROCESSED);
  if (r.raw) {
    left.filtered = false;
    for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS) sh.group[g] = p.raw_max[first + g];
    G4_SYNC(cta);
  }
  float lse, best = left.kept.best;
  if (left.filtered) lse = lse_of_left(cta, p, r, sh, left);
  else lse = lse_of_groups(cta, p, sh, (r.raw ? p.raw_sum : p.group_sum) + first, best);
  // A banned token can only be chosen by force; raw, its logit stands in the row all the same.
  const float chosen = token_value(cta, p, r, sh, token);
  const uint32_t key = key_of(chosen);
  u64 not_below = 0;
  const auto count_one = [&](float y, int) {
    not_below += key_of(y) >= key && (!left.filtered || is_kept(left.kept, y));
  };
  if (left.filtered) each(cta, p, r, sh, left.count, left.kept.low, count_one);
  else each_of_row(cta, p, r, sh, key, count_one);
  not_below = block_sum(cta, not_below, sh.scratch);
  const int wanted = r.s->logprobs;
  if (cta.tid() == 0) {
    out.step = *p.step, out.generation = p.slots[r.slot].generation;
    out.rank = (int)not_below, out.token_logprob = chosen - lse;
  }
  if (cta.tid() < G4_LOGPROBS_MAX) out.id[cta.tid()] = -1, out.logprob[cta.tid()] = f32_from_bits(0xff800000u);
  if (wanted > 0) {
    if (!left.filtered) {
      left.kept = all_kept(best);
      const uint32_t bound = groups_bound(cta, p, sh, best, (u64)wanted);
      left.kept.low = bound > kKeyNegInf ? bound : kKeyNegInf + 1;
      left.count = gather(cta, p, r, sh, left.kept.low);
    }
    const auto one = [](float, int) { return 1ull; };
    const auto by_value = [&](float y, int) { return is_kept(left.kept, y) ? key_of(y) : 0u; };
    const uint32_t value = select(cta, p, r, sh, left.count, left.kept.low, (u64)wanted, by_value, one);
    u64 above = 0;
    each(cta, p, r, sh, left.count, left.kept.low, [&](float y, int) { above += by_value(y, 0) > value; });
    above = block_sum(cta, above, sh.scratch);
    const auto by_id = [&](float y, int id) { return by_value(y, id) == value ? (uint32_t)~id : 0u; };
    const uint32_t inverted =
        select(cta, p, r, sh, left.count, left.kept.low, (u64)wanted - above, by_id, one);
    write_top(cta, p, r, sh, left, value, inverted, lse, out);
  }
  return chosen - lse;
}

}  // namespace g4

#endif
