// Graphs: what a replay reads, in which order it runs, what overlaps.
#include "driver_api.h"

using namespace g4test;

namespace {

template <class Body>
CUgraph captured(Driver& d, Body body) {
  G4_OK(cuStreamBeginCapture_v2(d.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  body();
  CUgraph g = nullptr;
  G4_OK(cuStreamEndCapture(d.stream, &g));
  return g;
}

}  // namespace

G4_TEST(arguments_are_copied_at_capture_and_memory_is_read_at_replay) {
  Driver d;
  const CUdeviceptr from = d.alloc(256), to = d.alloc(256);
  CopyParams p = {reinterpret_cast<int32_t*>(to), reinterpret_cast<const int32_t*>(from), 64};
  void* args[] = {&p};
  const CUfunction copy = d.loaded("test_copy");
  const CUgraph g = captured(
      d, [&] { G4_OK(cuLaunchKernel(copy, 1, 1, 1, 64, 1, 1, 0, d.stream, args, nullptr)); });
  p.count = 0;  // the launch keeps its own copy
  p.to = nullptr;
  const CUgraphExec e = d.instantiate(g);
  G4_OK(cuGraphDestroy(g));  // the executable graph stands alone
  for (int value : {4, 5}) {
    G4_OK(cuMemsetD32Async(from, (unsigned)value, 64, d.stream));
    G4_OK(cuGraphLaunch(e, d.stream));
    G4_OK(cuStreamSynchronize(d.stream));
    G4_CHECK(d.read(to, 64)[63] == value, "%d", d.read(to, 64)[63]);
  }
  G4_CHECK(g4soft_counter("graph_launches") == 2 && g4soft_counter("nodes_run") == 2, "counters");
}

G4_TEST(pinned_memory_of_a_graph_is_read_at_replay) {
  Driver d;
  const CUdeviceptr x = d.alloc(4);
  int32_t* slot = d.pinned<int32_t>(1);
  *slot = 1;
  const CUgraphExec e = d.instantiate(captured(d, [&] { G4_OK(cuMemcpyHtoDAsync_v2(x, slot, 4, d.stream)); }));
  *slot = 2;
  G4_OK(cuGraphLaunch(e, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(d.read(x, 1)[0] == 2, "%d", d.read(x, 1)[0]);
}

G4_TEST(a_graph_launch_only_enqueues_and_keeps_stream_order) {
  Driver d;
  const CUdeviceptr log = d.alloc(64);
  G4_OK(cuMemsetD8Async(log, 0, 64, d.stream));
  const CUgraphExec e = d.instantiate(captured(d, [&] {
    G4_OK(d.append(log, 2, d.stream));
    G4_OK(d.append(log, 3, d.stream));
  }));
  {
    Gate gate(d.stream);
    G4_OK(d.append(log, 1, d.stream));
    G4_OK(cuGraphLaunch(e, d.stream));
    G4_OK(d.append(log, 4, d.stream));
    G4_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(d.stream));
  }
  G4_OK(cuStreamSynchronize(d.stream));
  const auto got = d.read(log, 5);
  for (int i = 0; i < 4; i++) G4_CHECK(got[(size_t)i + 1] == i + 1, "%d at %d", got[(size_t)i + 1], i);
}

G4_TEST(two_replays_of_one_graph_do_not_overlap) {
  Driver d;
  const CUstream other = d.new_stream();
  static std::atomic<int> inside, overlaps;
  inside = overlaps = 0;
  const CUgraphExec e = d.instantiate(captured(d, [&] {
    G4_OK(cuLaunchHostFunc(d.stream, [](void*) {
      if (++inside > 1) overlaps++;
      nap(3);
      inside--;
    }, nullptr));
  }));
  for (int i = 0; i < 4; i++) G4_OK(cuGraphLaunch(e, i % 2 ? other : d.stream));
  G4_OK(cuCtxSynchronize());
  G4_CHECK(overlaps == 0 && g4soft_counter("host_functions") == 4, "%d overlaps", overlaps.load());
}

G4_TEST(different_graphs_on_two_streams_do_overlap) {
  Driver d;
  const CUstream other = d.new_stream();
  static std::atomic<int> met;
  met = 0;
  const auto meet = [](void*) {
    met++;
    for (int i = 0; i < 2000 && met < 2; i++) nap(1);
  };
  const CUgraph g = captured(d, [&] { G4_OK(cuLaunchHostFunc(d.stream, meet, nullptr)); });
  G4_OK(cuGraphLaunch(d.instantiate(g), d.stream));
  G4_OK(cuGraphLaunch(d.instantiate(g), other));
  G4_OK(cuCtxSynchronize());
  G4_CHECK(met == 2, "did not meet");
}

G4_TEST(branches_run_in_any_order_and_joins_hold) {
  // Two chains of two between a common start and end; a seed mixes the chains.
  std::vector<std::vector<int32_t>> orders;
  for (uint64_t seed = 0; seed < 12; seed++) {
    Driver d(seed);
    g4soft_set("delay_us", 0);
    const CUstream side = d.new_stream();
    const CUevent fork = d.event(), join = d.event();
    const CUdeviceptr log = d.alloc(64);
    G4_OK(cuMemsetD8Async(log, 0, 64, d.stream));
    const CUgraphExec e = d.instantiate(captured(d, [&] {
      G4_OK(d.append(log, 0, d.stream));
      G4_OK(cuEventRecord(fork, d.stream));
      G4_OK(cuStreamWaitEvent(side, fork, 0));
      G4_OK(d.append(log, 11, side));
      G4_OK(d.append(log, 12, side));
      G4_OK(d.append(log, 21, d.stream));
      G4_OK(d.append(log, 22, d.stream));
      G4_OK(cuEventRecord(join, side));
      G4_OK(cuStreamWaitEvent(d.stream, join, 0));
      G4_OK(d.append(log, 9, d.stream));
    }));
    G4_OK(cuGraphLaunch(e, d.stream));
    G4_OK(cuStreamSynchronize(d.stream));
    auto got = d.read(log, 7);
    G4_CHECK(got[0] == 6 && got[1] == 0 && got[6] == 9, "seed %d", (int)seed);
    const auto at = [&](int32_t v) { return std::find(got.begin() + 1, got.end(), v) - got.begin(); };
    G4_CHECK(at(11) < at(12) && at(21) < at(22) && at(12) < 6 && at(22) < 6, "seed %d", (int)seed);
    if (std::find(orders.begin(), orders.end(), got) == orders.end()) orders.push_back(got);
  }
  G4_CHECK(orders.size() > 1, "every seed gave the same order");
}

G4_TEST(a_graph_launched_inside_a_capture_is_a_child) {
  Driver d;
  const CUdeviceptr log = d.alloc(64);
  G4_OK(cuMemsetD8Async(log, 0, 64, d.stream));
  const CUgraphExec inner = d.instantiate(captured(d, [&] {
    G4_OK(d.append(log, 2, d.stream));
    G4_OK(d.append(log, 3, d.stream));
  }));
  const CUgraph outer = captured(d, [&] {
    G4_OK(d.append(log, 1, d.stream));
    G4_OK(cuGraphLaunch(inner, d.stream));
    G4_OK(d.append(log, 4, d.stream));
  });
  size_t n = 3;
  CUgraphNode nodes[3];
  CUgraphNodeType type;
  G4_OK(cuGraphGetNodes(outer, nodes, &n));
  G4_OK(cuGraphNodeGetType(nodes[1], &type));
  G4_CHECK(n == 3 && type == CU_GRAPH_NODE_TYPE_GRAPH, "%zu nodes, type %d", n, (int)type);
  G4_OK(cuGraphLaunch(d.instantiate(outer), d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  const auto got = d.read(log, 5);
  for (int i = 0; i < 4; i++) G4_CHECK(got[(size_t)i + 1] == i + 1, "%d at %d", got[(size_t)i + 1], i);
}

G4_TEST(an_external_event_record_belongs_to_the_replay) {
  Driver d;
  const CUevent e = d.event();
  const CUdeviceptr x = d.alloc(256);
  const CUgraphExec exec = d.instantiate(captured(d, [&] {
    G4_OK(d.fill(x, 1, 64, d.stream));
    G4_OK(cuEventRecordWithFlags(e, d.stream, CU_EVENT_RECORD_EXTERNAL));
  }));
  G4_OK(cuEventQuery(e));
  Gate gate(d.stream);
  G4_OK(cuGraphLaunch(exec, d.stream));
  G4_IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
  gate.open();
  G4_OK(cuEventSynchronize(e));
  G4_CHECK(d.read(x, 1)[0] == 1, "not run");
}

G4_TEST(a_graph_in_flight_may_be_destroyed) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUgraph g = captured(d, [&] { G4_OK(d.fill(x, 5, 64, d.stream)); });
  const CUgraphExec e = d.instantiate(g);
  Gate gate(d.stream);
  G4_OK(cuGraphLaunch(e, d.stream));
  G4_OK(cuGraphExecDestroy(e));
  G4_OK(cuGraphDestroy(g));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(e, d.stream));
  gate.open();
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(d.read(x, 1)[0] == 5, "not run");
}

G4_TEST(a_replay_that_copies_freed_memory_is_an_illegal_address) {
  Driver d;
  const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
  const CUgraphExec e = d.instantiate(captured(d, [&] { G4_OK(cuMemcpyDtoDAsync_v2(y, x, 256, d.stream)); }));
  G4_OK(cuMemFree_v2(x));
  G4_OK(cuGraphLaunch(e, d.stream));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
}

G4_TEST(kernel_node_parameters_are_those_captured) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUgraph g = captured(d, [&] { G4_OK(d.fill(x, 5, 64, d.stream)); });
  size_t n = 1;
  CUgraphNode node;
  CUDA_KERNEL_NODE_PARAMS k;
  G4_OK(cuGraphGetNodes(g, &node, &n));
  G4_OK(cuGraphKernelNodeGetParams_v2(node, &k));
  const auto* p = static_cast<const FillParams*>(k.kernelParams[0]);
  G4_CHECK(k.func == d.function("test_fill") && k.blockDimX == 64 && k.gridDimX == 1, "launch");
  G4_CHECK(p->value == 5 && p->count == 64 && p->x == reinterpret_cast<int32_t*>(x), "arguments");
}

G4_TEST(instantiation_flags_are_checked) {
  Driver d;
  const CUgraph g = captured(d, [] {});
  CUgraphExec e;
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&e, g, 1 | 4));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&e, g, 64));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&e, reinterpret_cast<CUgraph>(&d), 0));
  G4_OK(cuGraphInstantiateWithFlags(&e, g, 1 | 8));
  G4_OK(cuGraphUpload(e, d.stream));
  G4_OK(cuGraphLaunch(e, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
}

// ---- Dependent launch ----------------------------------------------------------------------------------------------

namespace {

// fill(x, value), then a dependent kernel that reads x before and after its wait.
CUgraph dependent_pair(Driver& d, CUdeviceptr x, CUdeviceptr early_input, CUdeviceptr out, int store_early) {
  EarlyParams p = {reinterpret_cast<int32_t*>(early_input), reinterpret_cast<int32_t*>(out), store_early};
  const CUfunction early = d.loaded("test_early");
  return captured(d, [&] {
    G4_OK(d.fill(x, 7, 64, d.stream));
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {4, 1, 1, 32, 1, 1, 0, d.stream, &attribute, 1};
    void* args[] = {&p};
    G4_OK(cuLaunchKernelEx(&config, early, args, nullptr));
  });
}

}  // namespace

G4_TEST(a_dependent_launch_begins_before_its_predecessor_ends) {
  Driver d;
  const CUdeviceptr x = d.alloc(256), out = d.alloc(16);
  G4_OK(cuMemsetD32Async(x, 1, 64, d.stream));
  G4_OK(cuGraphLaunch(d.instantiate(dependent_pair(d, x, x, out, 0)), d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  const auto got = d.read(out, 4);
  int early = 0;
  for (int32_t v : got) {
    G4_CHECK(v % 1000 == 7, "after the wait: %d", v);  // always the predecessor's result
    early += v / 1000 == 1;                            // before it: what stood there
  }
  G4_CHECK(early == 2 && g4soft_counter("kernels_early") == 1, "%d blocks early", early);
}

#if !defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
G4_TEST(a_store_before_the_wait_is_trapped) {
  Driver d;
  g4soft_set("early_trap", 1);
  const CUdeviceptr x = d.alloc(256), out = d.alloc(16);
  G4_OK(cuGraphLaunch(d.instantiate(dependent_pair(d, x, x, out, 1)), d.stream));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
  char text[256];
  g4soft_last_report(text, sizeof text);
  G4_CHECK(std::strstr(text, "test_early") && std::strstr(text, "before griddepcontrol.wait"), "%s", text);
}
#endif
