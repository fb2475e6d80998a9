// Times every kernel of a decode step and of a prompt chunk at the shapes of the 12B and the 31B, and those of experts
// at those of the 26B-A4B:
//   kernel_bench [--only TEXT] [--json FILE] [--seconds N] [--dependent] [--rehearse]
//
// A case is a graph of several launches that read different weights, pages or rows, so that nothing is found in L2 by
// luck; its time is the median of replays over the launches, gaps between nodes included: what a decode step pays. Each
// launch waits for the one before it, as the runtime's do; --dependent: its blocks may start while that one still runs.
// The bytes are those that had to move, each input read once and each output written once. Data is random. --rehearse
// runs everything at toy shapes (on the software device it shows that every launch is right, and times nothing). What
// the runtime does not launch, the candidates of gemm_wgmma.cuh, comes last.
#include <algorithm>
#include <chrono>
#include <memory>

#include "gemm_wgmma.cuh"
#include "harness.h"

using namespace g4test;
using driver::Session;

namespace {

struct Model {
  const char* name;
  int hidden, inter, vocab, heads, sliding_kv, global_kv, window;
};
const Model kModels[] = {{"12B", 3840, 15360, 262144, 16, 8, 1, 1024}, {"31B", 5376, 21504, 262144, 32, 16, 4, 1024}};
const Model kToy = {"toy", 256, 512, 4096, 4, 2, 1, 32};

struct Options {
  std::string only, json;
  double seconds = 40;
  bool rehearse = false, dependent = false;
};
Options options;

// ---- Memory ----

// Random weights, activations, pages: read by every case, at offsets that rotate. Numbers of about unit size.
struct Arena {
  size_t bytes;
  Buffer<uint8_t> memory;
  explicit Arena(size_t n) : bytes(n), memory(n) {
    Session& s = Session::get();
    const size_t seed_bytes = std::min<size_t>(n, 32 << 20);
    std::vector<uint16_t> host(seed_bytes / 2);
    Random r(1);
    for (size_t i = 0; i < host.size(); i += 4) {
      const uint64_t z = r.next();
      for (int e = 0; e < 4; e++) {
        const uint16_t v = (uint16_t)(z >> 16 * e);
        host[i + e] = (uint16_t)((v & 0x807f) | (124 + (v >> 8 & 3)) << 7);
      }
    }
    s.check(s.cuMemcpyHtoDAsync(at(0), host.data(), seed_bytes, s.stream), "fill");
    for (size_t done = seed_bytes; done < n; done += std::min(done, n - done))
      s.check(s.cuMemcpyDtoDAsync(at(done), at(0), std::min(done, n - done), s.stream), "fill");
    s.check(s.cuStreamSynchronize(s.stream), "fill");
  }
  CUdeviceptr at(size_t offset) const { return reinterpret_cast<CUdeviceptr>(memory.ptr()) + offset; }
  // The i-th of the places that hold n bytes, 4 KiB aligned, going around.
  template <class T = uint16_t>
  T* place(size_t n, size_t i) const {
    if (n > bytes) fail("the arena is smaller than one input");
    const size_t size = (n + 4095) & ~(size_t)4095, places = std::max<size_t>(bytes / size, 1);
    return reinterpret_cast<T*>(memory.ptr() + i % places * (n <= bytes && places > 1 ? size : 0));
  }
};

Arena* arena;              // read
Buffer<uint8_t>* scratch;  // written
template <class T = uint16_t>
T* out_at(size_t offset) { return reinterpret_cast<T*>(scratch->ptr() + offset); }

// ---- One case ----

struct Launch {
  CUfunction function;
  Dim grid;
  uint32_t threads, shared;
  std::vector<char> params;
  uint32_t cluster = 1;
};

template <class Params>
Launch make(G4SoftKernelFn fn, const char* name, const Params& p, Dim grid, uint32_t threads, uint32_t shared) {
  Session& s = Session::get();
  Launch l{s.function(fn, name, sizeof p), grid, threads, shared, std::vector<char>(sizeof p)};
  std::memcpy(l.params.data(), &p, sizeof p);
  if (shared > 48 * 1024)
    s.check(s.cuFuncSetAttribute(l.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared), name);
  return l;
}
#define MAKE(name, p, grid, threads, shared) make(&name, #name, p, grid, threads, shared)

struct Timing {
  double median, low, high;  // microseconds a launch; low and high are the 10th and 90th of 100 replays
};

CUevent event(int i) {
  static CUevent events[2] = {};
  Session& s = Session::get();
  if (!events[i]) s.check(s.cuEventCreate(&events[i], 0), "cuEventCreate");
  return events[i];
}

// The median time of `work`, which enqueues `count` things, over replays of at least 3 and about `budget_ms` in all.
template <class Work>
Timing time_of(int count, Work work, double budget_ms = 25) {
  Session& s = Session::get();
  std::vector<double> us;
  double total = 0;
  work();
  work();
  while (us.size() < 3 || (total < budget_ms && us.size() < 60)) {
    s.check(s.cuEventRecord(event(0), s.stream), "cuEventRecord");
    work();
    s.check(s.cuEventRecord(event(1), s.stream), "cuEventRecord");
    s.check(s.cuStreamSynchronize(s.stream), "a replay");
    float ms = 0;
    s.check(s.cuEventElapsedTime(&ms, event(0), event(1)), "cuEventElapsedTime");
    us.push_back(ms * 1e3 / count);
    total += ms;
    if (options.rehearse) break;
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[us.size() / 10], us[us.size() * 9 / 10]};
}

void enqueue(const Launch& l) {
  Session::get().check(driver::enqueue(l.function, l.grid, l.threads, l.shared, l.params.data(), l.cluster,
                                       options.dependent), "launch");
}

// `count` times are in it, or as many as there are launches.
Timing time_graph(const std::vector<Launch>& launches, int count = 0) {
  Session& s = Session::get();
  CUgraph graph;
  CUgraphExec exec;
  for (const Launch& l : launches) enqueue(l);  // loads the kernels: not possible in a capture
  s.check(s.cuStreamSynchronize(s.stream), "the first launch");
  s.check(s.cuStreamBeginCapture(s.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  for (const Launch& l : launches) enqueue(l);
  s.check(s.cuStreamEndCapture(s.stream, &graph), "cuStreamEndCapture");
  s.check(s.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
  const Timing t = time_of(count ? count : (int)launches.size(),
                           [&] { s.check(s.cuGraphLaunch(exec, s.stream), "cuGraphLaunch"); });
  s.cuGraphExecDestroy(exec);
  s.cuGraphDestroy(graph);
  return t;
}

// ---- The table ----

double copy_gbs = 0;  // device-to-device, bytes read and written
std::FILE* json = nullptr;

// The end of the list, which the next case writes over: a run that is cut off leaves a list, too.
void close_list() {
  std::fprintf(json, "\n]\n");
  std::fflush(json);
  std::fseek(json, -3, SEEK_END);
}

std::chrono::steady_clock::time_point begun;
int left_out = 0, cases = 0;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); }
bool wanted(const std::string& name) {
  if (!options.only.empty() && name.find(options.only) == std::string::npos) return false;
  if (seconds() < options.seconds) return true;
  left_out++;
  return false;
}

void report(const std::string& name, Timing t, double bytes, double flops = 0) {
  const double gbs = bytes / t.median * 1e-3;
  std::printf("%-44s %9.2f %8.2f %8.2f %9.2f %8.0f %5.1f%%", name.c_str(), t.median, t.low, t.high, bytes * 1e-6, gbs,
              copy_gbs > 0 ? 100 * gbs / copy_gbs : 0.0);
  if (flops > 0) std::printf(" %7.1f TFLOP/s", flops / t.median * 1e-6);
  std::printf("\n");
  std::fflush(stdout);
  cases++;
  if (json) {
    std::fprintf(json, ",\n{\"case\":\"%s\",\"us\":%.3f,\"us_low\":%.3f,\"us_high\":%.3f,\"bytes\":%.0f,\"gbs\":%.1f,"
                 "\"of_copy\":%.4f,\"flops\":%.0f}",
                 name.c_str(), t.median, t.low, t.high, bytes, gbs,
                 copy_gbs > 0 ? gbs / copy_gbs : 0.0, flops);
    close_list();
  }
}

// How many launches a graph has: enough that each reads other memory until about `target` bytes were read.
int rounds(double bytes, double target = 600e6, int most = 24) {
  if (options.rehearse) return 2;
  return std::min(most, std::max(4, (int)(target / std::max(bytes, 1.0))));
}

std::string join(const Model& m, const char* what, int a = -1, const char* unit = "") {
  std::string s = std::string(m.name) + " " + what;
  if (a >= 0) s += " " + std::to_string(a) + unit;
  return s;
}

// ---- Matrix products ----

struct Weight {
  const char* name;
  int n, k;
  bool logits;
};

// What the launcher gives on a device with 227 KiB of shared memory a block.
int stage_budget(int tiles, int n) {
  return (g4::gemm_staged_row_tiles(tiles, n) == 8 && tiles < 16 ? 112 : 200) << 10;
}

void bench_gemm(const Model& m, const Weight& w, int tokens) {
  const bool tiled = tokens > G4_ROWS_DECODE_MAX;
  int tiles = 1;
  while (tiles * 8 < tokens) tiles *= 2;
  const std::string name =
      join(m, w.name, tokens, " tokens") + (tiled ? " tiled" : " t" + std::to_string(tiles));
  if (!wanted(name)) return;
  const int slabs = g4::slab_count(w.k);
  const size_t weight_bytes = (size_t)g4::gemm_tiles(w.n) * g4::depth_steps(w.k) * 512;
  const size_t x_bytes = (size_t)tokens * w.k * 2;
  std::vector<Launch> launches;
  for (int i = 0; i < rounds((double)weight_bytes); i++) {
    G4GemmParams p = {};
    p.weight = arena->place(weight_bytes, i);
    p.x = arena->place(x_bytes, i * 7 + 3);
    p.out = out_at<void>(0);
    p.tokens = tokens, p.n = w.n, p.k = w.k, p.x_stride = w.k, p.out_stride = w.n, p.slabs = slabs;
    p.softcap = w.logits ? 30.0f : 0.0f;
    const G4SoftKernelFn gemm[] = {g4_gemm_t1, g4_gemm_t2, g4_gemm_t4, g4_gemm_t8, g4_gemm_t16};
    const G4SoftKernelFn logits[] = {g4_logits_t1, g4_logits_t2, g4_logits_t4, g4_logits_t8, g4_logits_t16};
    if (tiled) {
      launches.push_back(make(&g4_gemm_tiled, "g4_gemm_tiled", p, Dim{(uint32_t)g4::gemm_tiled_grid(tokens, w.n)},
                              G4_GEMM_THREADS, g4::gemm_tiled_shared_bytes(112 << 10)));
    } else {
      const int index = __builtin_ctz(tiles);
      launches.push_back(make(w.logits ? logits[index] : gemm[index], "gemm", p,
                              Dim{(uint32_t)g4::gemm_grid(tiles, w.n, slabs)}, G4_GEMM_THREADS,
                              g4::gemm_shared_bytes(tiles, w.n, slabs, stage_budget(tiles, w.n))));
    }
  }
  const double bytes = weight_bytes + x_bytes + (double)tokens * w.n * (w.logits ? 4 : 2);
  report(name, time_graph(launches), bytes, tokens >= 16 ? 2.0 * tokens * w.n * w.k : 0);
}

// Candidates: w2 to w16, a cluster a row block (split) or a block.
template <int T>
void bench_candidate(const Model& m, const Weight& w, int tokens, bool split, G4SoftKernelFn fn, const char* kernel) {
  const std::string name = join(m, w.name, tokens, " tokens w") + std::to_string(T) + (split ? " split" : "");
  if (!wanted(name)) return;
  const int slabs = g4::slab_count(w.k);
  const size_t weight_bytes = (size_t)g4::gemm_tiles(w.n) * g4::depth_steps(w.k) * 512;
  const size_t x_bytes = (size_t)tokens * w.k * 2;
  const int items = (g4::gemm_tiles(w.n) + 7) / 8 * ((tokens + T * 8 - 1) / (T * 8)), cluster = split ? slabs : 1;
  const int resident = (T == 16 ? 1 : 2) * (split ? 128 / slabs : 132), waves = (items + resident - 1) / resident;
  const uint32_t grid = (items + waves - 1) / waves * cluster;
  std::vector<Launch> launches;
  for (int i = 0; i < rounds((double)weight_bytes); i++) {
    G4GemmParams p = {};
    p.weight = arena->place(weight_bytes, i);
    p.x = arena->place(x_bytes, i * 7 + 3);
    p.out = out_at<void>(0);
    p.tokens = tokens, p.n = w.n, p.k = w.k, p.x_stride = w.k, p.out_stride = w.n, p.slabs = slabs;
    p.softcap = split;
    launches.push_back(make(fn, kernel, p, Dim{grid}, G4_GEMM_THREADS, g4::WgmmaShape<T>::kShared));
    launches.back().cluster = cluster;
  }
  const double bytes = weight_bytes + x_bytes + (double)tokens * w.n * 2;
  report(name, time_graph(launches), bytes, 2.0 * tokens * w.n * w.k);
}

void bench_candidates(const Model& m, const Weight& w) {
  for (bool split : {false, true}) {
    bench_candidate<2>(m, w, 16, split, test_gemm_w2, "test_gemm_w2");
    bench_candidate<4>(m, w, 32, split, test_gemm_w4, "test_gemm_w4");
    bench_candidate<8>(m, w, 64, split, test_gemm_w8, "test_gemm_w8");
    bench_candidate<16>(m, w, 128, split, test_gemm_w16, "test_gemm_w16");
    if (w.logits) continue;
    bench_candidate<16>(m, w, 512, split, test_gemm_w16, "test_gemm_w16");
    bench_candidate<16>(m, w, 2048, split, test_gemm_w16, "test_gemm_w16");
  }
}

std::vector<Weight> weights_of(const Model& m) {
  const int s_width = (m.heads + 2 * m.sliding_kv) * 256, g_width = (m.heads + m.global_kv) * 512;
  return {{"qkv sliding", s_width, m.hidden, false},     {"qkv global", g_width, m.hidden, false},
          {"o sliding", m.hidden, m.heads * 256, false}, {"o global", m.hidden, m.heads * 512, false},
          {"gate_up", 2 * m.inter, m.hidden, false},     {"down", m.hidden, m.inter, false},
          {"logits", m.vocab, m.hidden, true}};
}

void bench_gemms(const Model& m) {
  const std::vector<Weight> weights = weights_of(m);
  for (const Weight& w : weights)
    for (int tokens : {1, 8, 16, 32, 64, 128}) bench_gemm(m, w, tokens);
  for (const Weight& w : weights)
    for (int tokens : {512, 2048})
      if (!w.logits) bench_gemm(m, w, options.rehearse ? 130 : tokens);
}

// ---- Attention ----

struct Family {
  const char* name;
  int hd, seg, kv_heads, window;
  G4SoftKernelFn decode, prompt;
};
std::vector<Family> families(const Model& m) {
  return {{"sliding", 256, 128, m.sliding_kv, m.window, g4_attn_decode_h256_s128, g4_attn_prompt_h256_s128},
          {"global", 512, 256, m.global_kv, 0, g4_attn_decode_h512_s256, g4_attn_prompt_h512_s256}};
}
uint32_t attention_shared(const Family& f) { return 32 * f.hd + 98 * f.seg + 50432; }

const int kPage = 32;

// K in the first half of the arena, V in the second; the table's pages are spread over all of it.
struct Pages {
  std::vector<int32_t> host;
  Buffer<int32_t> table;
  G4KvView view;
  static std::vector<int32_t> spread(size_t entries, size_t pages) {
    std::vector<int32_t> t(entries);
    for (size_t i = 0; i < entries; i++) t[i] = (int32_t)(i * 40503 % pages);
    return t;
  }
  Pages(const Family& f, int slots, int table_pages)
      : host(spread((size_t)slots * table_pages, arena->bytes / 2 / ((size_t)kPage * f.hd * 2 * f.kv_heads))),
        table(host) {
    view = G4KvView{arena->place(2, 0), nullptr, table.ptr(), table_pages, 0, kPage, f.kv_heads, f.hd};
    view.v = reinterpret_cast<uint16_t*>(arena->at(arena->bytes / 2));
  }
};

int attention_blocks() {
  static int blocks = 0;
  if (blocks) return blocks;
  Session& s = Session::get();
  int sms = 0, occupancy = 99;
  s.check(s.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0), "SM count");
  for (const Family& f : families(kToy)) {
    int fit = 0;
    // `make` lets the function have that much shared memory; without, no block would fit.
    const Launch l = make(f.decode, "attn_decode", G4AttnDecodeParams{}, {}, G4_ATTN_THREADS, attention_shared(f));
    s.check(s.cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, l.function, l.threads, l.shared), "occupancy");
    if (fit < 1) fail("no block of attn_decode fits a multiprocessor");
    occupancy = std::min(occupancy, fit);
  }
  return blocks = sms * occupancy;
}

void bench_decode_attention(const Model& m, const Family& f, int rows, int context) {
  const std::string name =
      join(m, ("attn decode " + std::string(f.name)).c_str(), rows, " rows x ") + std::to_string(context);
  if (!wanted(name)) return;
  const int position = context - 1, first = f.window && position >= f.window ? position - f.window + 1 : 0;
  const int visible = context - first, segments = position / f.seg - first / f.seg + 1;
  const double bytes = (double)rows * visible * f.kv_heads * f.hd * 4 + 4.0 * rows * m.heads * f.hd;
  const int count = rounds(bytes, 400e6, 12);
  const int table_pages = f.window ? f.window / kPage + 2 : (context + kPage - 1) / kPage;
  Pages pages(f, rows * count, table_pages);
  std::vector<int32_t> begin{0}, slot(rows * count);
  for (int r = 0; r < rows; r++) begin.push_back(begin.back() + segments);
  for (int i = 0; i < rows * count; i++) slot[i] = i;
  Buffer<int32_t> dposition(std::vector<int32_t>(rows, position)), dslot(slot), dbegin(begin);
  Buffer<uint32_t> ticket(std::vector<uint32_t>(rows * f.kv_heads, 0));
  const size_t out_bytes = 1 << 22, ml_bytes = 16 << 20;
  if (out_bytes + ml_bytes + (size_t)rows * segments * m.heads * f.hd * 4 > scratch->size()) fail(name + ": scratch");
  std::vector<Launch> launches;
  for (int i = 0; i < count; i++) {
    G4AttnDecodeParams p = {arena->place((size_t)rows * m.heads * f.hd * 2, i), out_at(0), dposition.ptr(),
                            dslot.ptr() + i * rows, dbegin.ptr(), pages.view, out_at<float>(out_bytes + ml_bytes),
                            out_at<float>(out_bytes), f.window ? ticket.ptr() : nullptr, rows, m.heads, f.window};
    launches.push_back(make(f.decode, "attn_decode", p, Dim{(uint32_t)attention_blocks()}, G4_ATTN_THREADS,
                            attention_shared(f)));
    if (!p.ticket) launches.push_back(MAKE(g4_attn_decode_fold, p, (Dim{(uint32_t)rows, (uint32_t)m.heads}), 128, 0));
  }
  report(name, time_graph(launches, count), bytes);
}

void bench_prompt_attention(const Model& m, const Family& f, int rows) {
  const std::string name = join(m, ("attn prompt " + std::string(f.name)).c_str(), rows, " tokens");
  if (!wanted(name)) return;
  double keys = 0;
  for (int i = 0; i < rows; i++) keys += f.window ? std::min(i + 1, f.window) : i + 1;
  const int queries = G4_ATTN_ROWS / (m.heads / f.kv_heads);
  Pages pages(f, 1, 1);
  std::vector<Launch> launches;
  for (int i = 0; i < rounds(1, 1, 4); i++) {
    G4KvView recent = pages.view;
    recent.table = nullptr;
    G4AttnPromptParams p = {arena->place((size_t)rows * m.heads * f.hd * 2, i), out_at(0), pages.view, recent, 0, 0,
                            rows, m.heads, f.window};
    launches.push_back(make(f.prompt, "attn_prompt", p,
                            Dim{(uint32_t)((rows + queries - 1) / queries), (uint32_t)f.kv_heads}, G4_ATTN_THREADS,
                            attention_shared(f)));
  }
  report(name, time_graph(launches), 4.0 * rows * f.hd * (f.kv_heads + m.heads), 4.0 * keys * m.heads * f.hd);
}

void bench_attention(const Model& m) {
  for (const Family& f : families(m)) {
    for (int rows : {1, 8, 32, 64})
      for (int context : {1024, 8192, 32768}) {
        if (options.rehearse && (rows > 8 || context > 1024)) continue;
        bench_decode_attention(m, f, rows, context);
      }
    bench_prompt_attention(m, f, options.rehearse ? 64 : 2048);
  }
}

// ---- Row kernels and the step's own ----

void bench_rows(const Model& m, int rows) {
  const int h = m.hidden, count = options.rehearse ? 2 : 24;
  const size_t x_bytes = (size_t)rows * h * 2;
  std::vector<Launch> launches;
  const auto run = [&](const char* what, double bytes, auto one) {
    const std::string name = join(m, what, rows, " rows");
    if (!wanted(name)) return;
    launches.clear();
    for (int i = 0; i < count; i++) launches.push_back(one(i));
    report(name, time_graph(launches), bytes);
  };
  std::vector<int32_t> numbers(rows);
  for (int r = 0; r < rows; r++) numbers[r] = r;
  Buffer<int32_t> row(numbers), token(rows), position(std::vector<int32_t>(rows, 17)), slot(rows), status(rows);
  Buffer<int32_t> items_s(rows + 1), items_g(rows + 1), step(std::vector<int32_t>{0});
  std::vector<G4Slot> state(rows);
  std::memset(static_cast<void*>(state.data()), 0, rows * sizeof(G4Slot));
  for (G4Slot& s : state) s.live = 1, s.position = 17, s.output_limit = 1 << 30, s.position_limit = 1 << 20;
  Buffer<G4Slot> slots(state);
  Buffer<int32_t> table(std::vector<int32_t>((size_t)rows * 64, 1));
  run("step_begin", 200.0 * rows, [&](int) {
    G4StepBeginParams p = {row.ptr(), slots.ptr(), table.ptr(), table.ptr(), token.ptr(), position.ptr(), slot.ptr(),
                           status.ptr(), items_s.ptr(), items_g.ptr(), rows, 64, 64, kPage, kPage, m.window, 128, 256};
    return MAKE(g4_step_begin, p, Dim{1}, 128, 64);
  });
  position.upload(std::vector<int32_t>(rows, 17)), slot.upload(numbers);
  run("embed", 4.0 * rows * h, [&](int) {
    G4EmbedParams p = {arena->place((size_t)rows * h * 32, 0), row.ptr(), out_at(0), rows, h, 0x4278};
    return MAKE(g4_embed, p, Dim{(uint32_t)rows}, G4_ROW_THREADS, 0);
  });
  run("rmsnorm", 4.0 * rows * h, [&](int i) {
    G4RmsNormParams p = {arena->place(x_bytes, i), arena->place(h * 2, i), out_at(0), rows, h, 1e-6f};
    return MAKE(g4_rmsnorm, p, Dim{(uint32_t)rows}, G4_ROW_THREADS, 1024);
  });
  run("add_norm", 8.0 * rows * h, [&](int i) {
    G4AddNormParams p = {arena->place(x_bytes, i), arena->place(x_bytes, i + 100), arena->place(h * 2, i), nullptr,
                         arena->place(h * 2, i + 9), out_at(0), rows, h, 1e-6f};
    return MAKE(g4_add_norm, p, Dim{(uint32_t)rows}, G4_ROW_THREADS, 2048);
  });
  run("gelu_gate", 6.0 * rows * m.inter, [&](int i) {
    auto* gate = arena->place((size_t)rows * m.inter * 4, i);
    G4GeluGateParams p = {gate, gate + m.inter, out_at(0), rows, m.inter, 2 * m.inter, 2 * m.inter};
    return MAKE(g4_gelu_gate, p, (Dim{(uint32_t)rows, (uint32_t)(m.inter + 2047) / 2048}), G4_ROW_THREADS, 0);
  });
  for (const Family& f : families(m)) {
    const int same = f.window == 0, width = (m.heads + f.kv_heads * (same ? 1 : 2)) * f.hd;
    Pages pages(f, rows, 64);
    const double bytes = 2.0 * rows * (width + (m.heads + 2 * f.kv_heads) * f.hd);
    const Dim grid{(uint32_t)rows, (uint32_t)(m.heads + 2 * f.kv_heads + 7) / 8};
    run(("qkv_prep " + std::string(f.name)).c_str(), bytes, [&](int i) {
      G4QkvPrepParams p = {arena->place((size_t)rows * width * 2, i), arena->place(f.hd * 2, 1),
                           arena->place(f.hd * 2, 2), arena->place(18 * 1024, 3), arena->place(18 * 1024, 4),
                           position.ptr(), slot.ptr(), out_at(0), pages.view, rows, m.heads, same ? 64 : 128, same,
                           1e-6f};
      return MAKE(g4_qkv_prep, p, grid, G4_ROW_THREADS, 8192);
    });
  }
  run("tail", 8.0 * rows, [&](int) {
    G4TailParams p = {slot.ptr(), slots.ptr(), step.ptr(), rows};
    return MAKE(g4_tail, p, Dim{1}, 128, 0);
  });
}

}  // namespace

#include "kernel_bench_experts.h"
#include "kernel_bench_sampler.h"

// ---- Run ----

namespace {

void bench() {
  Session& s = Session::get();
  char name[128] = "";
  int sms = 0;
  s.check(s.cuDeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
  s.check(s.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0), "SM count");
  Arena memory(options.rehearse ? (size_t)64 << 20 : (size_t)8 << 30);
  Buffer<uint8_t> written(options.rehearse ? (size_t)64 << 20 : (size_t)2 << 30);
  arena = &memory, scratch = &written;
  const size_t half = std::min(written.size(), memory.bytes / 4);
  const CUdeviceptr to = reinterpret_cast<CUdeviceptr>(written.ptr());
  const auto copies = [&] {
    for (int i = 0; i < 4; i++) s.check(s.cuMemcpyDtoDAsync(to, memory.at(i * half), half, s.stream), "copy");
  };
  const Timing copy = time_of(4, copies, 100);
  copy_gbs = 2.0 * half / copy.median * 1e-3;
  std::printf("%s, %d SMs, attention grid %d; copy %.0f GB/s (%zu MiB, read and written)\n", name, sms,
              attention_blocks(), copy_gbs, half >> 20);
  if (json) {
    std::fprintf(json, "[\n{\"case\":\"copy\",\"device\":\"%s\",\"gbs\":%.1f}", name, copy_gbs);
    close_list();
  }
  std::printf("%-44s %9s %8s %8s %9s %8s %6s\n", "case", "us", "p10", "p90", "MB", "GB/s", "copy");
  std::vector<Model> models(std::begin(kModels), std::end(kModels));
  if (options.rehearse) models = {kToy};
  for (const Model& m : models) {
    bench_gemms(m);
    bench_attention(m);
    for (int rows : {1, 8, 64}) bench_rows(m, rows);
    for (int rows : {1, 8, 64, 128})
      if (!options.rehearse || rows == 1) bench_sampler(m, rows);
  }
  for (int rows : {1, 8, 64, 128, 2048})
    if (!options.rehearse || rows <= 64) bench_experts(options.rehearse ? kToyExperts : kExperts, rows);
  if (on_hopper())
    for (const Model& m : models)
      for (const Weight& w : weights_of(m)) bench_candidates(m, w);
  std::printf("numbers: %d cases in %.1f s, %d left out for time; copy %.0f GB/s\n", cases, seconds(), left_out,
              copy_gbs);
  if (!cases) throw std::string("no case was measured");
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    const std::string a = argv[i];
    if (a == "--rehearse") options.rehearse = true;
    else if (a == "--dependent") options.dependent = true;
    else if (a == "--only" && i + 1 < argc) options.only = argv[++i];
    else if (a == "--json" && i + 1 < argc) options.json = argv[++i];
    else if (a == "--seconds" && i + 1 < argc) options.seconds = std::atof(argv[++i]);
    else return std::fprintf(stderr, "see the first lines of kernel_bench.cpp\n"), 2;
  }
  if (!options.json.empty()) json = std::fopen(options.json.c_str(), "w");
  begun = std::chrono::steady_clock::now();
  int status = 0;
  try {
    bench();
  } catch (const std::string& what) {
    std::printf("FAIL %s\n", what.c_str());
    status = 1;
  } catch (const Skip& skip) {
    std::printf("FAIL %s\n", skip.why.c_str());
    status = 1;
  }
  if (json) std::fclose(json);
  return status;
}
