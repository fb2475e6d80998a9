// The kernels of a mixture of experts at the shapes of the 26B-A4B, for kernel_bench.cpp, whose words these are.
// Tokens go to experts at random, each launch to others: its bytes are the matrices of those that have any.
#ifndef G4_TEST_KERNEL_BENCH_EXPERTS_H
#define G4_TEST_KERNEL_BENCH_EXPERTS_H

namespace {

struct ExpertShape {
  const char* name;
  int hidden, experts, top, width;
};
const ExpertShape kExperts = {"26B", 2816, 128, 8, 704};
const ExpertShape kToyExperts = {"toy", 64, 16, 4, 32};

// One launch's routes, grouped by the kernel.
struct Routes {
  int distinct = 0, tiles_max, tile_tokens;
  Buffer<int32_t> expert, list, count;
  Buffer<float> weight;
  Buffer<G4ExpertTile> tile;
  Routes(const ExpertShape& m, int rows, uint64_t seed)
      : expert(rows * m.top), list(rows * m.top), count(1), weight(std::vector<float>(rows * m.top, 0.125f)),
        tile(rows * m.top) {
    Random r(seed);
    std::vector<int32_t> order(m.experts), host;
    std::vector<bool> seen(m.experts);
    for (int e = 0; e < m.experts; e++) order[e] = e;
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < m.top; i++) {
        std::swap(order[i], order[i + r.below(m.experts - i)]);
        host.push_back(order[i]);
        distinct += !seen[order[i]];
        seen[order[i]] = true;
      }
    expert.upload(host);
    const int pairs = rows * m.top;
    tile_tokens = pairs <= G4_EXPERT_TILE_TOKENS * m.experts ? G4_EXPERT_TILE_TOKENS : G4_EXPERT_TILE_TOKENS_MANY;
    tiles_max = pairs <= m.experts ? pairs : m.experts + (pairs - m.experts) / tile_tokens;
    enqueue(group(m, pairs));
    Session::get().check(Session::get().cuStreamSynchronize(Session::get().stream), "g4_expert_group");
  }
  Launch group(const ExpertShape& m, int pairs) const {
    G4ExpertGroupParams p = {expert.ptr(), list.ptr(), tile.ptr(), count.ptr(), pairs, m.experts, tile_tokens};
    return MAKE(g4_expert_group, p, Dim{1}, G4_EXPERTS_MAX, 2112);
  }
};

// by_pair: x has a row a pair (down).
Launch expert_product(const ExpertShape& m, const Routes& r, int rows, int n, int k, bool by_pair, int i) {
  const int slabs = g4::slab_count(k), tiles = g4::gemm_tiles(n);
  const size_t weight_bytes = (size_t)m.experts * tiles * g4::depth_steps(k) * 512;
  const size_t x_bytes = (size_t)rows * (by_pair ? m.top : 1) * k * 2;
  G4ExpertGemmParams p = {arena->place(weight_bytes, i), arena->place(x_bytes, i * 7 + 3), out_at(0), r.tile.ptr(),
                          r.count.ptr(), r.list.ptr(), n, k, k, n, slabs, by_pair ? 1 : m.top};
  const uint32_t most = r.tiles_max;
  if (r.tile_tokens == G4_EXPERT_TILE_TOKENS)
    return MAKE(g4_expert_gemm_t1, p, (Dim{(uint32_t)g4::gemm_groups(n, 2, slabs), most}), G4_GEMM_THREADS, 8192);
  const uint32_t shared = g4::gemm_tiled_shared_bytes(112 << 10);
  return MAKE(g4_expert_gemm_t8, p, (Dim{(uint32_t)(tiles + 7) / 8, most}), G4_GEMM_THREADS, shared);
}

void bench_experts(const ExpertShape& m, int rows) {
  const int pairs = rows * m.top, h = m.hidden, count = options.rehearse ? 2 : 8;
  std::vector<std::unique_ptr<Routes>> routes;
  for (int i = 0; i < count; i++) routes.push_back(std::make_unique<Routes>(m, rows, i + 1));
  double distinct = 0;
  for (const auto& r : routes) distinct += (double)r->distinct / count;
  const auto run = [&](const char* what, double bytes, double flops, auto one) {
    const std::string name = std::string(m.name) + " " + what + " " + std::to_string(rows) + " rows";
    if (!wanted(name)) return;
    std::vector<Launch> launches;
    for (int i = 0; i < count; i++) launches.push_back(one(i));
    report(name, time_graph(launches), bytes, flops);
  };
  const auto product = [&](const char* what, int n, int k, bool by_pair) {
    const double bytes = distinct * 2 * n * k + 2.0 * pairs * (k + n);
    run(what, bytes, rows >= 16 ? 2.0 * pairs * n * k : 0,
        [&](int i) { return expert_product(m, *routes[i], rows, n, k, by_pair, i); });
  };
  run("expert_input", 6.0 * rows * h, 0, [&](int i) {
    G4ExpertInputParams p = {arena->place((size_t)rows * h * 2, i), arena->place(h * 2, i), arena->place(h * 2, i + 9),
                             out_at(0), out_at((size_t)rows * h * 2), rows, h, 0.02f, 1e-6f};
    return MAKE(g4_expert_input, p, Dim{(uint32_t)rows}, G4_ROW_THREADS, 1024);
  });
  Buffer<int32_t> slot(std::vector<int32_t>(rows, 0));
  Buffer<float> logits(std::vector<float>((size_t)rows * m.experts, 0.5f));
  run("expert_route", 4.0 * rows * m.experts + 8.0 * pairs, 0, [&](int i) {
    G4ExpertRouteParams p = {logits.ptr(), slot.ptr(), arena->place(m.experts * 2, i), out_at<int32_t>(0),
                             out_at<float>((size_t)pairs * 4), rows, m.experts, m.top};
    return MAKE(g4_expert_route, p, Dim{(uint32_t)(rows + 7) / 8}, 256, 0);
  });
  run("expert_group", 12.0 * pairs, 0, [&](int i) { return routes[i]->group(m, pairs); });
  product("expert_gemm gate up", 2 * m.width, h, false);
  product("expert_gemm down", h, m.width, true);
  run("expert_combine", 2.0 * rows * h * (m.top + 2), 0, [&](int i) {
    G4ExpertCombineParams p = {out_at(0), arena->place((size_t)pairs * h * 2, i), routes[i]->expert.ptr(),
                               routes[i]->weight.ptr(), arena->place(h * 2, i), arena->place(h * 2, i + 9), rows, h,
                               m.top, 1e-6f};
    return MAKE(g4_expert_combine, p, Dim{(uint32_t)rows}, G4_ROW_THREADS, 2176);
  });
}

}  // namespace

#endif
