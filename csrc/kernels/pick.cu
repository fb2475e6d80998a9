// g4_pick: folds a row's tiles into its token, advances the slot and publishes the 16-byte record.
//
//   status != 0 (dead or padding): record token = status, the slot is left alone
//   otherwise token = id of the greatest tile_best, lowest id on ties; G4_TOKEN_NAN if any tile says so;
//   G4_TOKEN_MASKED if all do. A token: last_token = token, output_index += 1, live = 0 when it is an EOS id (unless
//   ignore_eos), one of the slot's stop_ids, or output_index reached output_limit. A negative one: live = 0 and nothing
//   else.
//   record = {token, 0, *step, generation of slots[row_slot[r]], or 0 where row_slot[r] = -1}
//
// tile_best, tile_id [rows][tiles]; records [rows]. Reads 8 bytes a tile (512 a row at 262144).
// Grid: 1 block of 128 threads, thread = row; no shared memory.
//
// Idea: 16 tiles are loaded before any is compared, so 64 tiles cost four trips to L2.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/step_test.cpp (pick)
#include "../gemma4_kernels.h"
#include "../common/cta.h"

namespace {

constexpr int kBatch = 16;

// Token of a row, or the status its logits ask for.
G4_FN int fold_tiles(const float* best, const int32_t* id, int tiles) {
  int token = G4_TOKEN_MASKED;
  bool nan = false;
  float value = 0.0f;
  for (int first = 0; first < tiles; first += kBatch) {
    float v[kBatch];
    int t[kBatch];
    G4_UNROLL
    for (int j = 0; j < kBatch; j++) {
      v[j] = first + j < tiles ? best[first + j] : 0.0f;
      t[j] = first + j < tiles ? id[first + j] : G4_TOKEN_MASKED;
    }
    G4_UNROLL
    for (int j = 0; j < kBatch; j++) {
      nan = nan || t[j] == G4_TOKEN_NAN;
      const bool wins = t[j] >= 0 && (token < 0 || v[j] > value);  // ascending ids: a tie keeps the earlier tile
      token = wins ? t[j] : token;
      value = wins ? v[j] : value;
    }
  }
  return nan ? G4_TOKEN_NAN : token;
}

G4_FN bool stops(const G4PickParams& p, const G4Slot& slot, int token) {
  bool stop = slot.output_index >= slot.output_limit;
  for (int i = 0; i < slot.stop_count; i++) stop = stop || slot.stop_ids[i] == token;
  if (!slot.ignore_eos)
    for (int i = 0; i < p.eos_count; i++) stop = stop || p.eos_ids[i] == token;
  return stop;
}

}  // namespace

G4_KERNEL(g4_pick, G4PickParams, 128) {
  const int row = cta.tid();
  if (row >= p.rows) return;
  const int slot = p.slot[row];
  int token = p.status ? p.status[row] : slot < 0 ? G4_TOKEN_NONE : 0;
  if (token == 0) {
    const long long at = (long long)row * p.tiles;
    token = fold_tiles(p.tile_best + at, p.tile_id + at, p.tiles);
    G4Slot& s = p.slots[slot];
    if (token >= 0) {
      s.last_token = token;
      s.output_index += 1;
    }
    if (token < 0 || stops(p, s, token)) s.live = 0;
  }
  const int owner = p.row_slot[row];
  p.records[row] = G4Record{token, 0.0f, *p.step, owner >= 0 ? p.slots[owner].generation : 0u};
}
