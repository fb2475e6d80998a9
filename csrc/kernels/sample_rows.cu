// g4_sample_rows: second kernel of the sampler; one block a row chooses the token, advances the slot and publishes.
//
//   no legal logit: G4_TOKEN_MASKED; a NaN or plus infinity among the row's logits: G4_TOKEN_NAN; forced[slot] >= 0:
//   that token. Otherwise, with y = z / T (IEEE division), Y = max y, mass(y) = floor(exp(y - Y) 2^40):
//   greedy      T = 0: the lowest id among the maxima of z
//   plain       nothing else: group = argmax (max_g / T + ln group_sum[g]) + noise(g), lowest on ties; token = argmax
//               y + noise(id) in it
//   filtered    what is left of {y > -inf} after, in order: min-p y >= Y + ln m; the k-th greatest and above, ties
//               kept; top-p and typical by masses, ties kept; XTC behind its gate; token = argmax y + noise(id) over
//               it, lowest id on ties. top-p compares with p times the mass of what is left so far, or, when neither
//               min-p nor top-k came before, with p * floor(2^40 sum over groups of group_sum[g] exp(max_g / T - Y)).
//   then last_token = token, output_index += 1, counts and bad words; live = 0 on an EOS id (unless ignore_eos), a stop
//   id or the limit. A negative token: live = 0 and nothing else. Dead or padding rows: the record alone.
//
// group_max, group_sum [rows][groups] from g4_sample_groups; the rest as in G4SampleParams. Moves 4 bytes a group, then
// the groups that can hold a survivor again: about k of 1 KiB (6 % of a row at k = 64), mostly from L2.
// Grid: x = rows; 512 threads; G4_SAMPLE_SHARED_BYTES (45568) of shared memory.
//
// Idea: at least k groups have a maximum at or above the k-th greatest of them, so the top k stand in those groups: no
//   sort over the vocabulary, no pivot to guess. Masses are integers, so thresholds come out the same from shared
//   memory, from a radix over the row, in any order of adding; noise is drawn for survivors only. A nucleus too wide
//   for shared memory (flat rows without top-k, massive ties) takes the radix over the row itself, by the same block:
//   about ten reads of a megabyte from L2 at one SM's bandwidth, 100 us, in rows that ask for it and only them.
// Predicted on an H200: 6 to 10 us at one row for top-k and top-p (a dozen barriers and two trips to L2), the same for
//   up to 132 rows, which have an SM each.
// Tried    one version, not timed on a GPU.
// Test     cargo test --test sampler: tokens, records and slots against src/sampler/oracle.rs
#include "../common/sampling_logprobs.h"

namespace g4 {

// Candidates of top-p alone are sought among as many groups at first: nuclei are seldom wider.
constexpr int kNucleusGroups = 256;

enum Rule { kTopK, kTopP, kTypical, kXtc, kRules };

G4_FN float noisy(const Draw& d, Purpose purpose, float value, int element) {
  return value + gumbel(draw_word(d, purpose, (uint32_t)element));
}

// The lowest id among the maxima.
G4_FN int choose_greedy(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, int group) {
  u64 best = 0;
  if (cta.warp() == 0) {
    float z[kLaneLogits];
    load_logits(p, r.logits, group, cta.lane(), z);
    process_logits(p, r, group, cta.lane(), z);
    G4_UNROLL
    for (int j = 0; j < kLaneLogits; j++) {
      const u64 key = key_of(z[j]) > kKeyNegInf ? pick_key(z[j], logit_id(group, cta.lane(), j)) : 0;
      best = key > best ? key : best;
    }
  }
  return pick_id(block_max(cta, best, sh.scratch));
}

// A group by the noisy logarithm of its sum, then a token of it.
G4_FN int choose_plain(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh) {
  const Draw draw = sample_draw(r);
  const float* sums = p.group_sum + (long long)r.row * p.groups;
  u64 best = 0;
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS) {
    if (sh.group[g] <= kKeyNegInf) continue;
    const u64 key = pick_key(noisy(draw, kGroupNoise, key_value(sh.group[g]) + ln(sums[g]), g), g);
    best = key > best ? key : best;
  }
  const int group = pick_id(block_max(cta, best, sh.scratch));
  best = 0;
  if (cta.warp() == 0) {
    float z[kLaneLogits];
    load_logits(p, r.logits, group, cta.lane(), z);
    process_logits(p, r, group, cta.lane(), z);
    G4_UNROLL
    for (int j = 0; j < kLaneLogits; j++) {
      const int id = logit_id(group, cta.lane(), j);
      if (key_of(z[j]) <= kKeyNegInf) continue;
      const u64 key = pick_key(noisy(draw, kTokenNoise, z[j] / row_temperature(r), id), id);
      best = key > best ? key : best;
    }
  }
  return pick_id(block_max(cta, best, sh.scratch));
}

G4_FN bool rule_is_on(const G4Sampling& s, int rule) {
  return rule == kTopK ? s.top_k > 0 : rule == kTopP ? s.top_p < 1.0f
       : rule == kTypical ? s.typical_p < 1.0f : s.xtc_probability > 0.0f;
}

// Among the tokens that weigh at least `least` of what is left, if there are two, only the least likely stays.
G4_FN void exclude_top_choices(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, int count,
                               u64 least, Kept& kept) {
  u64 tokens = 0, lowest = 0;
  each(cta, p, r, sh, count, kept.low, [&](float y, int) {
    if (!is_kept(kept, y) || mass(kept.best - y) < least) return;
    tokens++;
    lowest = lowest > (uint32_t)~key_of(y) ? lowest : (uint32_t)~key_of(y);
  });
  tokens = block_sum(cta, tokens, sh.scratch);
  lowest = block_max(cta, lowest, sh.scratch);
  if (tokens >= 2) kept.high = ~(uint32_t)lowest;
}

// Applies the rules one after another to candidates that hold all that min-p left, or, when `bounded`, all that any
// rule can leave. False: they did not hold the nucleus after all. row_mass: of all legal tokens, for top-p alone.
G4_FN bool apply_rules(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, int count, bool bounded,
                       u64 row_mass, Kept& kept) {
  const G4Sampling& s = *r.s;
  const bool small = count >= 0 && count <= G4_SAMPLE_THREADS;
  if (small && cta.tid() < count) sh.mass[cta.tid()] = mass(kept.best - sh.y[cta.tid()]);
  G4_SYNC(cta);
  G4_NO_UNROLL
  for (int rule = kTopK; rule < kRules; rule++) {
    if (!rule_is_on(s, rule)) continue;
    if (rule == kXtc && !(uniform(draw_word(sample_draw(r), kXtcGate, 0)) < s.xtc_probability)) continue;
    u64 target = (u64)s.top_k;
    if (rule != kTopK) {
      u64 total = 0, moment = 0;
      each(cta, p, r, sh, count, kept.low, [&](float y, int) {
        if (!is_kept(kept, y)) return;
        total += mass(kept.best - y);
        if (rule == kTypical) moment += mass_distance(kept.best - y);
      });
      total = block_sum(cta, total, sh.scratch);
      const bool of_row = rule == kTopP && row_mass != 0;
      const float share = rule == kTopP ? s.top_p : rule == kTypical ? s.typical_p : s.xtc_threshold;
      target = mass_share(share, of_row ? row_mass : total);
      if (of_row && bounded && total < target) return false;
      if (rule == kTypical) kept.mean = (float)block_sum(cta, moment, sh.scratch) / (float)total;
    }
    if (rule == kXtc) {
      exclude_top_choices(cta, p, r, sh, count, target, kept);
      continue;
    }
    const auto key = [&](float y, int) {
      return !is_kept(kept, y) ? 0u : rule == kTypical ? near_key(kept, y) : key_of(y);
    };
    const uint32_t bound =
        small ? select_small(cta, sh, count, target, key, [&](int j) { return rule == kTopK ? 1ull : sh.mass[j]; })
              : select(cta, p, r, sh, count, kept.low, target, key,
                       [&](float y, int) { return rule == kTopK ? 1ull : mass(kept.best - y); });
    if (rule == kTypical) kept.near = bound;
    else kept.low = bound > kept.low ? bound : kept.low;
  }
  return true;
}

// What is left to draw from goes to `left`.
G4_FN int choose_filtered(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, float best,
                          Left& left) {
  const G4Sampling& s = *r.s;
  Kept kept = all_kept(best);
  if (s.min_p > 0.0f) {
    const uint32_t key = key_of(best + ln(s.min_p));
    kept.low = key > kept.low ? key : kept.low;
  }
  const bool of_row = s.top_p < 1.0f && s.top_k <= 0 && !(s.min_p > 0.0f);
  u64 row_mass = 0;
  if (of_row) {
    const float* sums = p.group_sum + (long long)r.row * p.groups;
    row_mass = (u64)(kMassOne * sum_groups(cta, p, sh, [&](int g) {
      return sh.group[g] <= kKeyNegInf ? 0.0f : sums[g] * exp_poly(key_value(sh.group[g]) - best);
    }));
  }
  const int groups_wanted = s.top_k > 0 ? s.top_k : of_row ? kNucleusGroups : 0;
  const uint32_t bound = groups_wanted ? groups_bound(cta, p, sh, best, (u64)groups_wanted) : 0;
  const bool bounded = bound > kept.low;
  const Kept unfiltered = kept;
  int count = gather(cta, p, r, sh, bounded ? bound : kept.low);
  if (!apply_rules(cta, p, r, sh, count, bounded && count != kWide, row_mass, kept)) {
    kept = unfiltered;
    count = kWide;
    apply_rules(cta, p, r, sh, count, false, row_mass, kept);
  }
  left = {true, count, kept};
  const Draw draw = sample_draw(r);
  u64 chosen = 0;
  each(cta, p, r, sh, count, kept.low, [&](float y, int id) {
    if (!is_kept(kept, y)) return;
    const u64 key = pick_key(noisy(draw, kTokenNoise, y, id), id);
    chosen = key > chosen ? key : chosen;
  });
  return pick_id(block_max(cta, chosen, sh.scratch));
}

// Token of a good row, or the status its logits ask for. Afterwards the groups' keys are of z / T.
G4_FN int choose(Cta cta, const G4SampleParams& p, const SampleRow& r, SampleShared& sh, Left& left) {
  const G4Sampling& s = *r.s;
  const uint32_t* group_max = p.group_max + (long long)r.row * p.groups;
  u64 best = 0;
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS) {
    const uint32_t key = group_max[g];
    sh.group[g] = key;
    const u64 pick = (u64)key << 32 | (uint32_t)~g;
    best = pick > best ? pick : best;
  }
  best = block_max(cta, best, sh.scratch);
  const uint32_t maximum = (uint32_t)(best >> 32);
  if (maximum == kKeyNan) return G4_TOKEN_NAN;
  if (maximum <= kKeyNegInf) return G4_TOKEN_MASKED;
  if (s.temperature == 0.0f) {
    return p.forced[r.slot] >= 0 ? p.forced[r.slot] : choose_greedy(cta, p, r, sh, pick_id(best));
  }
  for (int g = cta.tid(); g < p.groups; g += G4_SAMPLE_THREADS)
    if (sh.group[g] > kKeyNegInf) sh.group[g] = key_of(key_value(sh.group[g]) / s.temperature);
  G4_SYNC(cta);
  if (p.forced[r.slot] >= 0) return p.forced[r.slot];
  const bool filtered = s.top_k > 0 || s.top_p < 1.0f || s.min_p > 0.0f || s.typical_p < 1.0f ||
                        s.xtc_probability > 0.0f;
  if (!filtered) return choose_plain(cta, p, r, sh);
  return choose_filtered(cta, p, r, sh, key_value(maximum) / s.temperature, left);
}

G4_FN bool stops(const G4SampleParams& p, const G4Slot& slot, int token) {
  bool stop = slot.output_index >= slot.output_limit;
  for (int i = 0; i < slot.stop_count; i++) stop = stop || slot.stop_ids[i] == token;
  if (!slot.ignore_eos)
    for (int i = 0; i < p.eos_count; i++) stop = stop || p.eos_ids[i] == token;
  return stop;
}

// Words whose tokens but the last are the output's tail ban their last one.
G4_FN void watch_words(Cta cta, G4Words& words, int token) {
  if (cta.tid() == 0) {
    for (int i = G4_BAD_WORD_TOKENS_MAX - 1; i > 0; i--) words.tail[i] = words.tail[i - 1];
    words.tail[0] = token;
    words.active_count = 0;
  }
  fence_device();
  G4_SYNC(cta);
  for (int w = cta.tid(); w < words.count; w += G4_SAMPLE_THREADS) {
    const int first = words.begin[w], last = words.begin[w + 1] - 1;
    bool matches = true;
    for (int i = first; i < last; i++) matches = matches && words.ids[i] == words.tail[last - 1 - i];
    if (matches) words.active[atomic_add(&words.active_count, 1)] = words.ids[last];
  }
}

}  // namespace g4

// One block a SM: left to itself the compiler makes room for two, 64 registers a thread, and spills.
#define G4_SAMPLE_BOUNDS G4_SAMPLE_THREADS, 1

G4_KERNEL(g4_sample_rows, G4SampleParams, G4_SAMPLE_BOUNDS) {
  using namespace g4;
  G4_SHARED(SampleShared, sh);
  const int row = cta.block_x();
  int token = sample_status(p, row);
  float logprob = 0.0f;
  if (token == 0) {
    const SampleRow r = sample_row(p, row);
    Left left = {false, 0, all_kept(0.0f)};
    token = choose(cta, p, r, *sh, left);
    if (token >= 0) {
      if (r.s->flags & G4_SAMPLING_LOGPROBS) logprob = report_logprobs(cta, p, r, *sh, token, left);
      G4_SYNC(cta);  // the row's state changes from here on
      if (r.s->flags & G4_SAMPLING_WORDS) watch_words(cta, p.words[r.slot], token);
    }
    if (cta.tid() == 0) {
      G4Slot& slot = p.slots[r.slot];
      if (token >= 0) {
        slot.last_token = token;
        slot.output_index += 1;
        if (r.s->flags & G4_SAMPLING_PENALTIES) {
          uint16_t& count = p.counts[(long long)r.s->penalty_table * p.vocab + token];
          if (count != 0xffff) count++;
        }
      }
      if (token < 0 || stops(p, slot, token)) slot.live = 0;
      p.forced[r.slot] = -1;
    }
  }
  if (cta.tid() != 0) return;
  const int owner = p.row_slot[row];
  p.records[row] = G4Record{token, logprob, *p.step, owner >= 0 ? p.slots[owner].generation : 0u};
}
