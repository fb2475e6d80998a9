// The kernels of the sampler at a model's vocabulary, for kernel_bench.cpp, whose words these are.
#ifndef G4_TEST_KERNEL_BENCH_SAMPLER_H
#define G4_TEST_KERNEL_BENCH_SAMPLER_H

namespace {

// Greedy, the published defaults, and what costs most: sums of groups, and a nucleus sought in the whole row.
std::vector<std::pair<const char*, G4Sampling>> sampler_cases() {
  G4Sampling greedy = {};
  greedy.top_p = greedy.typical_p = greedy.repetition_penalty = 1.0f;
  G4Sampling gemma = greedy, plain = greedy, nucleus = greedy;
  gemma.temperature = plain.temperature = nucleus.temperature = 1.0f;
  gemma.top_k = 64, gemma.top_p = 0.95f;
  nucleus.top_p = 0.95f;
  plain.flags = nucleus.flags = G4_SAMPLING_SUMS;
  return {{"greedy", greedy}, {"top-k 64 top-p 0.95", gemma}, {"temperature", plain}, {"top-p 0.95", nucleus}};
}

// The logits are read from L2 where they fit, as in a step, whose head has just written them.
void bench_sampler(const Model& m, int rows) {
  const int groups = (m.vocab + G4_SAMPLE_GROUP - 1) / G4_SAMPLE_GROUP, count = options.rehearse ? 2 : 24;
  if (!wanted(join(m, "sample", rows, " rows"))) return;
  std::vector<float> host((size_t)rows * m.vocab);
  uint64_t state = 1;
  for (float& z : host) {  // near enough to normal, deviation 3: a nucleus of some thousands
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    z = ((float)(state >> 48 & 255) + (float)(state >> 40 & 255) + (float)(state >> 32 & 255) - 382.5f) / 42.5f;
  }
  Buffer<float> logits(host), sums((size_t)rows * groups);
  Buffer<uint32_t> maxima((size_t)rows * groups);
  std::vector<int32_t> numbers(rows);
  for (int r = 0; r < rows; r++) numbers[r] = r;
  Buffer<int32_t> row(numbers), forced(std::vector<int32_t>(rows, -1)), step(std::vector<int32_t>{0});
  Buffer<int32_t> suppressed(std::vector<int32_t>{m.vocab - 1, m.vocab - 2});
  Buffer<G4Record> records(rows);
  for (const auto& [what, sampling] : sampler_cases()) {
    std::vector<G4Slot> host_slots(rows);
    std::memset(static_cast<void*>(host_slots.data()), 0, rows * sizeof(G4Slot));
    for (G4Slot& s : host_slots) s.live = 1, s.output_limit = 1 << 30, s.ignore_eos = 1, s.sampling = sampling;
    Buffer<G4Slot> slots(host_slots);
    G4SampleParams p = {};
    p.logits = logits.ptr(), p.slot = p.row_slot = row.ptr(), p.step = step.ptr(), p.slots = slots.ptr();
    p.forced = forced.ptr(), p.suppressed = suppressed.ptr(), p.suppressed_count = 2;
    p.group_max = maxima.ptr(), p.group_sum = sums.ptr(), p.records = records.ptr();
    p.rows = rows, p.vocab = m.vocab, p.groups = groups, p.mask_words = (m.vocab + 31) / 32;
    const double bytes = (double)rows * m.vocab * 4;
    std::vector<Launch> launches;
    for (int i = 0; i < count; i++)
      launches.push_back(MAKE(g4_sample_groups, p, (Dim{(uint32_t)(groups + 7) / 8, (uint32_t)rows}), 256, 0));
    report(join(m, (std::string("sample_groups ") + what).c_str(), rows, " rows"), time_graph(launches), bytes);
    launches.clear();
    for (int i = 0; i < count; i++)
      launches.push_back(MAKE(g4_sample_rows, p, Dim{(uint32_t)rows}, G4_SAMPLE_THREADS, G4_SAMPLE_SHARED_BYTES));
    const std::string name = std::string("sample_rows ") + what;
    report(join(m, name.c_str(), rows, " rows"), time_graph(launches), 8.0 * rows * groups);
  }
}

}  // namespace

#endif
