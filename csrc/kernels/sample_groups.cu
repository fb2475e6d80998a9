// g4_sample_groups: first kernel of the sampler; the greatest logit of every group of 256, and its sum where wanted.
//
//   z = processed logits of the row (csrc/common/sampling_row.h); for group g
//   group_max[g] = key of max z, or kKeyNan where a logit, banned or not, is NaN or plus infinity
//   group_sum[g] = sum of exp(z / T - max / T)                   rows with G4_SAMPLING_SUMS; T = 1 where greedy
//   raw_max, raw_sum: the same of the logits as they stand, T = 1   rows with raw log-probabilities
//   The order of a sum: a lane adds its eight elements ascending from +0, then a tree over the lanes, strides 16 to 1.
//
// logits [rows][vocab] f32 (row bases 16-byte aligned when vocab is a multiple of 4), the rest [rows][groups].
// Moves 4 vocab bytes a row once, the floor of any sampler, and writes 4 to 16 bytes a group (0.4 to 1.6 %).
// Grid: x = ceil(groups / 8), y = rows; 256 threads, one warp a group; no shared memory.
//
// Fast by: the eight logits of a lane are two 16-byte loads issued before anything else is known of the row, so at one
//   row the whole megabyte is in flight at once; maxima are integers of one warp instruction; exp is computed only in
//   rows that need the sums, which the default of Gemma 4 (top-k 64, top-p 0.95) does not.
// Predicted on an H200 (4.8 TB/s nominal, 4.3 by copies): 0.24 us a row at many rows; one row is a launch's latency,
//   about 3 us. With sums about 25 instructions a logit, 0.2 us a row over 132 SMs: still below the reads.
// Tried    one version, not timed on a GPU.
// Test     cargo test --test sampler
#include "../common/sampling_row.h"

namespace g4 {

// Sum of a group; maximum: its key, the same in every lane.
G4_FN float group_sum(Cta cta, const float z[kLaneLogits], uint32_t maximum, float temperature) {
  if (maximum <= kKeyNegInf || maximum == kKeyNan) return 0.0f;
  const float top = key_value(maximum) / temperature;
  float sum = 0.0f;
  G4_UNROLL
  for (int j = 0; j < kLaneLogits; j++) sum = sum + exp_poly(z[j] / temperature - top);
  return warp_sum(cta, sum);
}

}  // namespace g4

G4_KERNEL(g4_sample_groups, G4SampleParams, 256) {
  using namespace g4;
  const int row = cta.block_y(), group = cta.block_x() * 8 + cta.warp(), lane = cta.lane();
  if (group >= p.groups) return;
  float z[kLaneLogits];
  load_logits(p, p.logits + (long long)row * p.vocab, group, lane, z);
  if (sample_status(p, row) != 0) return;
  const SampleRow r = sample_row(p, row);
  const long long at = (long long)row * p.groups + group;
  uint32_t own = lane_max(z);
  const bool nan = own == kKeyNan;
  if ((r.s->flags & (G4_SAMPLING_LOGPROBS | G4_SAMPLING_PROCESSED)) == G4_SAMPLING_LOGPROBS) {
    const uint32_t maximum = warp_max(cta, own);
    const float sum = group_sum(cta, z, maximum, 1.0f);
    if (lane == 0) p.raw_max[at] = maximum, p.raw_sum[at] = sum;
  }
  process_logits(p, r, group, lane, z);
  own = nan ? kKeyNan : lane_max(z);
  const uint32_t maximum = warp_max(cta, own);
  if (lane == 0) p.group_max[at] = maximum;
  if (!(r.s->flags & G4_SAMPLING_SUMS)) return;
  const float sum = group_sum(cta, z, maximum, row_temperature(r));
  if (lane == 0) p.group_sum[at] = sum;
}
