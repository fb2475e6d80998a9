// The kernels around a step (step_begin, tail, scatter, the sampler's) against plain models over random tables.
#include <deque>

#include "reference.h"

using namespace g4test;

namespace {

Dim grid(uint32_t x, uint32_t y = 1) { return Dim{x, y, 1}; }

typedef std::vector<int32_t> Ints;

const float kInfinity = INFINITY;

// ---- step_begin ----

// A random roster: slots in any state, rows that name them (each at most once) or padding.
struct Roster {
  int rows, slots, sliding_pages, global_pages, page_sliding, page_global, window, seg_sliding, seg_global;
  std::vector<G4Slot> slot;
  Ints row_slot, sliding, global;

  explicit Roster(Random& r, int rows_) : rows(rows_) {
    slots = rows + (int)r.below(5);
    page_sliding = 16 << r.below(2), page_global = 16 << r.below(3);
    window = r.below(8) ? 1 + (int)r.below(100) : 0;
    seg_sliding = 32 << r.below(3), seg_global = 64 << r.below(3);
    sliding_pages = (window + page_sliding) / page_sliding + 1;
    global_pages = 4 + (int)r.below(30);
    const int positions = global_pages * page_global;
    slot.resize(slots);
    sliding.resize((size_t)slots * sliding_pages);
    global.resize((size_t)slots * global_pages);
    for (int32_t& e : sliding) e = r.below(12) ? (int)r.below(1000) : -1;
    for (int32_t& e : global) e = r.below(12) ? (int)r.below(1000) : -1;
    for (G4Slot& s : slot) {
      std::memset(&s, 0, sizeof s);
      s.live = r.below(6) != 0;
      s.position_limit = 1 + (int)r.below(positions + positions / 8);  // some past the table: it must not wrap
      s.position = r.below(8) ? (int)r.below(s.position_limit) : s.position_limit + (int)r.below(40) - 2;
      if (r.below(40) == 0) s.position = -1;
      s.last_token = (int)r.below(262144);
    }
    Ints order(slots);
    for (int i = 0; i < slots; i++) order[i] = i;
    for (int i = slots; i > 1; i--) std::swap(order[i - 1], order[r.below(i)]);
    row_slot.assign(order.begin(), order.begin() + rows);
    for (int32_t& s : row_slot)
      if (r.below(6) == 0) s = -1;
  }
};

// Segments that hold a key in (position - window, position], by asking every key.
int segments_reference(int position, int window, int segment) {
  int count = 0, last = -1;
  for (int key = 0; key <= position; key++) {
    if (window && key <= position - window) continue;
    if (key / segment != last) count++;
    last = key / segment;
  }
  return count;
}

void check_step_begin(Random& r, int rows) {
  const Roster t(r, rows);
  Ints token(rows), position(rows), slot(rows), status(rows), sliding_items(rows + 1), global_items(rows + 1);
  for (int row = 0; row < rows; row++) {
    const int s = t.row_slot[row];
    int state = 0;
    if (s < 0 || !t.slot[s].live) {
      state = G4_TOKEN_NONE;
    } else {
      const int q = t.slot[s].position;
      if (q < 0 || q >= t.slot[s].position_limit || q / t.page_global >= t.global_pages) state = G4_TOKEN_BAD_STATE;
      else if (t.global[s * t.global_pages + q / t.page_global] == -1) state = G4_TOKEN_BAD_STATE;
      else if (t.sliding[s * t.sliding_pages + q / t.page_sliding % t.sliding_pages] == -1) state = G4_TOKEN_BAD_STATE;
    }
    status[row] = state;
    slot[row] = state ? -1 : s;
    token[row] = state ? -1 : t.slot[s].last_token;
    position[row] = state ? 0 : t.slot[s].position;
    const int q = position[row];
    sliding_items[row + 1] = sliding_items[row] + (state ? 0 : segments_reference(q, t.window, t.seg_sliding));
    global_items[row + 1] = global_items[row] + (state ? 0 : segments_reference(q, 0, t.seg_global));
  }
  Guarded<G4Slot> slots(t.slot);
  Guarded<int32_t> row_slot(t.row_slot), sliding(t.sliding), global(t.global);
  Guarded<int32_t> out_token(rows), out_position(rows), out_slot(rows), out_status(rows);
  Guarded<int32_t> out_s(rows + 1), out_g(rows + 1);
  G4StepBeginParams p = {row_slot.ptr(), slots.ptr(), sliding.ptr(), global.ptr(), out_token.ptr(), out_position.ptr(),
                         out_slot.ptr(), out_status.ptr(), out_s.ptr(), out_g.ptr(), rows, t.sliding_pages,
                         t.global_pages, t.page_sliding, t.page_global, t.window, t.seg_sliding, t.seg_global};
  launch(g4_step_begin, "g4_step_begin", &p, grid(1), 128, 64, r.next());
  check_same(out_status.download(), status, "status", rows);
  check_same(out_slot.download(), slot, "slot", rows);
  check_same(out_token.download(), token, "token", rows);
  check_same(out_position.download(), position, "position", rows);
  check_same(out_s.download(), sliding_items, "sliding_item_begin", rows);
  check_same(out_g.download(), global_items, "global_item_begin", rows);
  check_same(slots.download(), t.slot, "slots are only read", rows);
}

}  // namespace

G4_TEST(step_begin_agrees_with_a_plain_model_over_random_tables) {
  for (uint64_t seed = 1; seed <= 600; seed++) {
    Random r(seed);
    const int rows = seed % 5 == 0 ? 128 : seed % 7 == 0 ? 1 : 1 + (int)r.below(128);
    try {
      check_step_begin(r, rows);
    } catch (const std::string& what) {
      fail(what + ", seed " + std::to_string(seed));
    }
  }
}

// ---- tail ----

G4_TEST(tail_advances_rows_with_a_slot_and_the_step_once) {
  Random r(21);
  for (int rows : {1, 2, 31, 33, 127, 128}) {
    const int slots = rows + 3;  // the first stands before the table: slot -1 must not reach it
    std::vector<G4Slot> state(slots);
    std::memset(static_cast<void*>(state.data()), 0, slots * sizeof(G4Slot));
    for (G4Slot& s : state) s.position = (int)r.below(1000), s.generation = (uint32_t)r.next(), s.live = 1;
    Ints slot(rows);
    for (int row = 0; row < rows; row++) slot[row] = r.below(4) ? slots - 2 - row : -1;
    Guarded<G4Slot> dstate(state);
    Guarded<int32_t> dslot(slot), step(Ints{41});
    G4TailParams p = {dslot.ptr(), dstate.ptr() + 1, step.ptr(), rows};
    launch(g4_tail, "g4_tail", &p, grid(1), 128, 0, r.next());
    for (int s : slot)
      if (s >= 0) state[s + 1].position++;
    check_same(dstate.download(), state, "slots", rows);
    check_same(step.download(), Ints{42}, "step", rows);
  }
}

G4_TEST(the_step_counter_wraps) {
  Guarded<G4Slot> slots(std::vector<G4Slot>(1));
  Guarded<int32_t> slot(Ints{-1}), step(Ints{0x7fffffff});
  G4TailParams p = {slot.ptr(), slots.ptr(), step.ptr(), 1};
  launch(g4_tail, "g4_tail", &p, grid(1), 128, 0, 1);
  check_same(step.download(), Ints{INT32_MIN}, "step", 1);
}

// ---- scatter ----

G4_TEST(scatter_puts_every_run_in_its_place_and_nothing_elsewhere) {
  for (uint64_t seed = 1; seed <= 60; seed++) {
    Random r(seed);
    const int used = 1 + (int)r.below(G4_SCATTER_RUNS);
    Ints src;
    std::vector<Ints> want, index(used);
    std::deque<Guarded<int32_t>> dst, places;
    G4ScatterParams p = {};
    p.runs_used = used;
    for (int j = 0; j < used; j++) {
      const int count = (int)r.below(700), stride = 1 + (int)r.below(30), first = (int)src.size();
      const bool indexed = r.below(2);
      for (int i = 0; i < count; i++) src.push_back((int)r.next());
      Ints order(count + 3);
      for (int i = 0; i < (int)order.size(); i++) order[i] = i;
      for (int i = (int)order.size(); i > 1; i--) std::swap(order[i - 1], order[r.below(i)]);
      Ints target((size_t)(count + 3) * stride);
      for (int32_t& word : target) word = (int)r.next();
      dst.emplace_back(target);
      order.resize(count);
      for (int i = 0; i < count; i++) {
        if (indexed && r.below(5) == 0) order[i] = -1;
        const int place = indexed ? order[i] : i;
        if (place >= 0) target[(size_t)place * stride] = src[first + i];
      }
      want.push_back(target);
      places.emplace_back(order);
      p.runs[j] = {dst.back().ptr(), indexed ? places.back().ptr() : nullptr, first, count, stride};
    }
    src.push_back(0);
    Guarded<int32_t> source(src);
    p.src = source.ptr();
    launch(g4_scatter, "g4_scatter", &p, grid(used), 256, 0, r.next());
    for (int j = 0; j < used; j++) check_same(dst[j].download(), want[j], "run", (int)seed);
  }
}

// ---- The sampler, greedy: tests/sampler compares every rule with the oracle, these run on a GPU too ----

namespace {

// Lowest id of the greatest logit that competes, by one loop.
int argmax_reference(const float* logits, int vocab, const Ints& suppressed) {
  int best = G4_TOKEN_MASKED;
  for (int id = 0; id < vocab; id++) {
    if (std::isnan(logits[id])) return G4_TOKEN_NAN;
    if (std::count(suppressed.begin(), suppressed.end(), id) || logits[id] == -kInfinity) continue;
    if (best < 0 || logits[id] > logits[best]) best = id;
  }
  return best;
}

// Slot r belongs to row r unless said otherwise; every row is good and greedy.
struct Pick {
  std::vector<G4Slot> slots;
  Ints slot, row_slot, status;
  std::vector<G4Record> records;
  Ints eos, suppressed;
  int step = 7;

  explicit Pick(int rows) : slots(rows), slot(rows), row_slot(rows), status(rows, 0) {
    std::memset(static_cast<void*>(slots.data()), 0, rows * sizeof(G4Slot));
    for (int row = 0; row < rows; row++) {
      slots[row].live = 1, slots[row].output_limit = 100;
      slots[row].generation = 1000 + row, slots[row].last_token = -77;
      slot[row] = row_slot[row] = row;
    }
  }
  void run(const std::vector<float>& logits, int vocab, uint64_t seed = 0, bool with_status = true) {
    const int rows = (int)slot.size(), groups = (vocab + G4_SAMPLE_GROUP - 1) / G4_SAMPLE_GROUP;
    Guarded<float> in(logits), sums((size_t)rows * groups);
    Guarded<uint32_t> maxima((size_t)rows * groups);
    Guarded<int32_t> dslot(slot), dstatus(status), drow(row_slot), dstep(Ints{step}), banned(suppressed);
    Guarded<int32_t> forced(Ints(rows, -1));
    Guarded<G4Slot> dslots(slots);
    Guarded<G4Record> out(rows);
    G4SampleParams p = {};
    p.logits = in.ptr(), p.slot = dslot.ptr(), p.status = with_status ? dstatus.ptr() : nullptr;
    p.row_slot = drow.ptr(), p.step = dstep.ptr();
    p.slots = dslots.ptr(), p.forced = forced.ptr(), p.suppressed = banned.ptr();
    p.group_max = maxima.ptr(), p.group_sum = sums.ptr(), p.records = out.ptr();
    p.rows = rows, p.vocab = vocab, p.groups = groups, p.mask_words = (vocab + 31) / 32;
    p.suppressed_count = (int)suppressed.size(), p.eos_count = (int)eos.size();
    std::copy(eos.begin(), eos.end(), p.eos_ids);
    launch(g4_sample_groups, "g4_sample_groups", &p, grid((groups + 7) / 8, rows), 256, 0, seed);
    launch(g4_sample_rows, "g4_sample_rows", &p, grid(rows), G4_SAMPLE_THREADS, G4_SAMPLE_SHARED_BYTES, seed);
    slots = dslots.download();
    records = out.download();
  }
  // Rows of a small vocabulary in which `id` is the best.
  void run_ids(const Ints& id, bool with_status = true) {
    const int vocab = 300;
    std::vector<float> logits(id.size() * vocab, -5.0f);
    for (size_t row = 0; row < id.size(); row++) logits[row * vocab + id[row]] = -1.0f;
    run(logits, vocab, 0, with_status);
  }
  void check(int row, int token, int live, int output_index, int last_token, uint32_t generation) const {
    const G4Record& r = records[row];
    G4_CHECK(r.token == token && r.logprob == 0.0f && r.step == step && r.generation == generation,
             "row %d: token %d (want %d) step %d generation %u (want %u)", row, r.token, token, r.step, r.generation,
             generation);
    const G4Slot& s = slots[row];
    G4_CHECK(s.live == live && s.output_index == output_index && s.last_token == last_token,
             "row %d: live %d (want %d) output_index %d (want %d) last_token %d (want %d)", row, s.live, live,
             s.output_index, output_index, s.last_token, last_token);
  }
};

}  // namespace

G4_TEST(a_greedy_token_is_the_lowest_id_of_the_maximum) {
  Random r(22);
  for (int vocab : {1, 7, 15, 16, 17, 31, 33, 255, 257, 1023, 1025, 4095, 4096, 4097, 12289}) {
    const int rows = 4;
    std::vector<float> logits((size_t)rows * vocab);
    for (float& v : logits) v = std::floor(r.normal() * 3);  // many ties
    for (float& v : logits)
      if (r.below(20) == 0) v = -kInfinity;
    for (int i = 0; i < vocab; i++) logits[vocab + i] = i % 3 ? -0.0f : 0.0f;  // zeros of both signs tie
    if (vocab > 4) logits[2 * vocab + vocab / 2] = NAN;
    for (int i = 0; i < vocab; i++) logits[3 * vocab + i] = i == vocab - 1 ? -1e30f : -kInfinity;
    Pick pick(rows);
    for (int i = (int)r.below(3); i > 0; i--) pick.suppressed.push_back((int)r.below(vocab));
    if (vocab % 2) pick.suppressed.push_back(vocab / 2);  // a suppressed NaN still counts
    pick.run(logits, vocab, r.next());
    for (int row = 0; row < rows; row++) {
      const int want = argmax_reference(&logits[(size_t)row * vocab], vocab, pick.suppressed);
      G4_CHECK(pick.records[row].token == want, "vocab %d row %d: %d, want %d", vocab, row, pick.records[row].token,
               want);
    }
  }
}

G4_TEST(a_greedy_token_is_found_in_a_real_vocabulary) {
  Random r(23);
  const int vocab = 262144, rows = 6;
  std::vector<float> logits((size_t)rows * vocab);
  for (float& v : logits) v = std::floor(r.normal() * 64) / 64;
  for (int id : {5000, 200000, 262143}) logits[vocab + id] = 30.0f;             // a tie across groups
  logits[2 * vocab + 258883] = 31.0f, logits[2 * vocab + 258882] = 31.0f;       // suppressed
  logits[3 * vocab + 261000] = NAN;                                             // in one of the last groups only
  for (int i = 0; i < vocab; i++) logits[4 * vocab + i] = -kInfinity;           // nothing to choose
  for (int i = 0; i < vocab; i++) logits[5 * vocab + i] = -kInfinity;
  logits[5 * vocab + 262143] = -29.0f;                                          // one survivor
  Pick pick(rows);
  pick.suppressed = {258883, 258882};
  pick.run(logits, vocab, 5);
  for (int row = 0; row < rows; row++) {
    const int want = argmax_reference(&logits[(size_t)row * vocab], vocab, pick.suppressed);
    pick.check(row, want, want >= 0, want >= 0, want >= 0 ? want : -77, 1000 + row);
  }
  G4_CHECK(pick.records[1].token == 5000, "lowest id of a tie");
  G4_CHECK(pick.records[3].token == G4_TOKEN_NAN && pick.records[4].token == G4_TOKEN_MASKED, "statuses");
  G4_CHECK(pick.records[5].token == 262143, "the survivor");
}

G4_TEST(a_nan_in_any_group_wins_and_masked_needs_all_groups) {
  const int groups = 17, vocab = groups * G4_SAMPLE_GROUP;
  for (int at = 0; at < groups; at++) {
    std::vector<float> logits(2 * vocab, 1.0f);
    logits[at * G4_SAMPLE_GROUP + 3] = NAN;
    for (int i = 0; i < vocab; i++) logits[vocab + i] = -kInfinity;
    logits[vocab + at * G4_SAMPLE_GROUP + 3] = -1e30f;
    Pick pick(2);
    pick.run(logits, vocab);
    pick.check(0, G4_TOKEN_NAN, 0, 0, -77, 1000);
    pick.check(1, at * G4_SAMPLE_GROUP + 3, 1, 1, at * G4_SAMPLE_GROUP + 3, 1001);
  }
}

G4_TEST(a_row_stops_on_eos_stop_ids_and_the_limit) {
  Pick pick(8);
  pick.eos = {1, 106, 50};
  pick.slots[1].ignore_eos = 1;
  pick.slots[2].stop_count = 2, pick.slots[2].stop_ids[0] = 9, pick.slots[2].stop_ids[1] = 8;
  pick.slots[3].output_index = 99;
  pick.slots[4].ignore_eos = 1, pick.slots[4].stop_count = 1, pick.slots[4].stop_ids[0] = 106;
  pick.slots[5].stop_ids[0] = 5;  // not counted
  pick.slots[6].output_index = 98;
  pick.slots[7].stop_count = G4_SLOT_STOP_IDS;
  pick.slots[7].stop_ids[G4_SLOT_STOP_IDS - 1] = 12;
  pick.run_ids({106, 1, 8, 5, 106, 5, 5, 12});
  pick.check(0, 106, 0, 1, 106, 1000);
  pick.check(1, 1, 1, 1, 1, 1001);
  pick.check(2, 8, 0, 1, 8, 1002);
  pick.check(3, 5, 0, 100, 5, 1003);
  pick.check(4, 106, 0, 1, 106, 1004);
  pick.check(5, 5, 1, 1, 5, 1005);
  pick.check(6, 5, 1, 99, 5, 1006);
  pick.check(7, 12, 0, 1, 12, 1007);
}

G4_TEST(dead_padding_and_bad_rows_publish_their_status_and_change_nothing) {
  Pick pick(4);
  pick.slots[0].live = 0, pick.slot[0] = -1, pick.status[0] = G4_TOKEN_NONE;
  pick.slot[1] = pick.row_slot[1] = -1, pick.status[1] = G4_TOKEN_NONE;
  pick.slot[2] = -1, pick.status[2] = G4_TOKEN_BAD_STATE;
  const std::vector<G4Slot> before = pick.slots;
  pick.run_ids({4, 4, 4, 4});
  pick.check(0, G4_TOKEN_NONE, 0, 0, -77, 1000);
  pick.check(1, G4_TOKEN_NONE, 1, 0, -77, 0);
  pick.check(2, G4_TOKEN_BAD_STATE, 1, 0, -77, 1002);
  pick.check(3, 4, 1, 1, 4, 1003);
  check_same(std::vector<G4Slot>(pick.slots.begin(), pick.slots.begin() + 3),
             std::vector<G4Slot>(before.begin(), before.begin() + 3), "slots");
}

G4_TEST(without_a_status_every_row_with_a_slot_is_good) {
  Pick pick(3);
  pick.slot[1] = pick.row_slot[1] = -1;
  pick.status = {G4_TOKEN_NAN, G4_TOKEN_NAN, G4_TOKEN_NAN};  // must not be read
  pick.run_ids({4, 4, 6}, false);
  pick.check(0, 4, 1, 1, 4, 1000);
  pick.check(1, G4_TOKEN_NONE, 1, 0, -77, 0);
  pick.check(2, 6, 1, 1, 6, 1002);
}

G4_TEST(rows_pick_alike_in_any_number_and_order) {
  Random r(24);
  const int rows = 128, vocab = 9000;
  std::vector<float> logits((size_t)rows * vocab);
  for (float& v : logits) v = r.normal();
  Pick pick(rows);
  for (int row = 0; row < rows; row++) pick.slot[row] = pick.row_slot[row] = (row * 37 + 5) % rows;
  pick.run(logits, vocab, 9);
  for (int row = 0; row < rows; row++) {
    const int want = argmax_reference(&logits[(size_t)row * vocab], vocab, {}), slot = pick.slot[row];
    G4_CHECK(pick.records[row].token == want && pick.records[row].generation == 1000u + slot, "row %d", row);
    G4_CHECK(pick.slots[slot].last_token == want && pick.slots[slot].output_index == 1, "slot %d", slot);
  }
}
