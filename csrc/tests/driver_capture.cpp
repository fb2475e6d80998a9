// Stream capture: what it records, what it refuses, and with which code.
#include "driver_api.h"

using namespace g4test;

namespace {

constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

void begin(CUstream s, CUstreamCaptureMode mode = kThreadLocal) { G4_OK(cuStreamBeginCapture_v2(s, mode)); }

CUgraph end(CUstream s) {
  CUgraph g = nullptr;
  G4_OK(cuStreamEndCapture(s, &g));
  G4_CHECK(g != nullptr, "no graph");
  return g;
}

// The capture is spoilt: status, later work and its end say so, and the stream is free again afterwards.
void is_invalidated(Driver& d, CUstream s, CUdeviceptr x) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  G4_OK(cuStreamIsCapturing(s, &status));
  G4_CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED, "status %d", (int)status);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, d.fill(x, 1, 64, s));
  CUgraph g = reinterpret_cast<CUgraph>(&d);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
  G4_CHECK(g == nullptr, "a graph from an invalid capture");
  G4_OK(cuStreamIsCapturing(s, &status));
  G4_CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE, "still capturing");
  G4_OK(d.fill(x, 1, 64, s));
  G4_OK(cuStreamSynchronize(s));
}

}  // namespace

G4_TEST(capture_executes_nothing) {
  Driver d;
  const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
  int32_t* slot = d.pinned<int32_t>(64);
  slot[0] = 0;
  static std::atomic<int> host_ran;
  host_ran = 0;
  begin(d.stream);
  G4_OK(cuMemsetD8Async(y, 0, 256, d.stream));
  G4_OK(d.fill(x, 3, 64, d.stream));
  G4_OK(cuMemcpyDtoHAsync_v2(slot, x, 256, d.stream));
  G4_OK(cuLaunchHostFunc(d.stream, [](void*) { host_ran++; }, nullptr));
  const CUgraph g = end(d.stream);
  G4_OK(cuCtxSynchronize());
  G4_CHECK(reinterpret_cast<volatile uint8_t*>(x)[0] == 0xFB && slot[0] == 0 && host_ran == 0, "something ran");
  G4_CHECK(g4soft_counter("launches") == 0 && g4soft_counter("kernels_run") == 0, "counted as run");
  size_t n = 0;
  G4_OK(cuGraphGetNodes(g, nullptr, &n));
  G4_CHECK(n == 4, "%zu nodes", n);
}

G4_TEST(a_capture_cannot_begin_on_the_null_stream_or_twice) {
  Driver d;
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(nullptr, kThreadLocal));
  begin(d.stream);
  G4_IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(d.stream, kThreadLocal));
  end(d.stream);
  CUgraph g;
  G4_IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(d.stream, &g));
}

G4_TEST(forbidden_calls_give_900_and_invalidate) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUevent outside = d.event();
  const CUstream other = d.new_stream();
  int32_t plain = 0;
  struct Case {
    const char* name;
    std::function<CUresult()> call;
  };
  CUdeviceptr p;
  void* h;
  CUmodule m;
  const std::vector<Case> cases = {
      {"cuMemAlloc", [&] { return cuMemAlloc_v2(&p, 4); }},
      {"cuMemFree", [&] { return cuMemFree_v2(x); }},
      {"cuMemHostAlloc", [&] { return cuMemHostAlloc(&h, 4, 0); }},
      {"cuMemAllocAsync", [&] { return cuMemAllocAsync(&p, 4, d.stream); }},
      {"cuModuleLoadData", [&] { return cuModuleLoadData(&m, &kTestImage); }},
      {"cuStreamSynchronize", [&] { return cuStreamSynchronize(d.stream); }},
      {"cuStreamQuery", [&] { return cuStreamQuery(d.stream); }},
      {"cuCtxSynchronize", [&] { return cuCtxSynchronize(); }},
      {"cuEventQuery of another stream's event", [&] { return cuEventQuery(outside); }},
      {"cuStreamSynchronize of another stream", [&] { return cuStreamSynchronize(other); }},
      {"cuMemcpyHtoD", [&] { return cuMemcpyHtoD_v2(x, &plain, 4); }},
      {"pageable cuMemcpyHtoDAsync", [&] { return cuMemcpyHtoDAsync_v2(x, &plain, 4, d.stream); }},
      {"pageable cuMemcpyDtoHAsync", [&] { return cuMemcpyDtoHAsync_v2(&plain, x, 4, d.stream); }},
      {"cuStreamAddCallback",
       [&] { return cuStreamAddCallback(d.stream, [](CUstream, CUresult, void*) {}, nullptr, 0); }},
  };
  for (const Case& c : cases) {
    begin(d.stream);
    const int got = (int)c.call();
    G4_CHECK(got == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s: %d", c.name, got);
    is_invalidated(d, d.stream, x);
  }
}

G4_TEST(a_relaxed_capture_allows_unsafe_calls) {
  Driver d;
  begin(d.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  d.alloc(4);
  end(d.stream);
  begin(d.stream);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  G4_OK(cuThreadExchangeStreamCaptureMode(&mode));
  d.alloc(4);
  G4_OK(cuThreadExchangeStreamCaptureMode(&mode));
  G4_CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "mode %d", (int)mode);
  end(d.stream);
}

G4_TEST(only_a_global_capture_forbids_calls_of_other_threads) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const auto elsewhere = [&] {
    CUresult got = CUDA_SUCCESS;
    std::thread([&] {
      CUdeviceptr p;
      cuCtxSetCurrent(d.ctx);
      got = cuMemAlloc_v2(&p, 4);
    }).join();
    return got;
  };
  begin(d.stream, kThreadLocal);
  G4_OK(elsewhere());
  end(d.stream);
  begin(d.stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, elsewhere());
  is_invalidated(d, d.stream, x);
}

G4_TEST(an_unjoined_fork_gives_904) {
  Driver d;
  const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
  const CUstream side = d.new_stream();
  const CUevent fork = d.event(), join = d.event();
  begin(d.stream);
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuEventRecord(fork, d.stream));
  G4_OK(cuStreamWaitEvent(side, fork, 0));
  G4_OK(d.fill(y, 2, 64, side));
  CUgraph g;
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(d.stream, &g));
  // Both streams are free again; with the join it is a graph of two nodes and one edge.
  begin(d.stream);
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuEventRecord(fork, d.stream));
  G4_OK(cuStreamWaitEvent(side, fork, 0));
  G4_OK(d.fill(y, 2, 64, side));
  G4_OK(cuEventRecord(join, side));
  G4_OK(cuStreamWaitEvent(d.stream, join, 0));
  g = end(d.stream);
  size_t edges = 0;
  G4_OK(cuGraphGetEdges_v2(g, nullptr, nullptr, nullptr, &edges));
  G4_CHECK(edges == 1, "%zu edges", edges);
  G4_OK(d.fill(y, 3, 64, side));  // executes: no longer part of a capture
  G4_OK(cuStreamSynchronize(side));
  G4_CHECK(d.read(y, 1)[0] == 3, "not executed");
}

G4_TEST(a_wait_for_work_outside_gives_905) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUstream other = d.new_stream();
  const CUevent outside = d.event();
  G4_OK(cuEventRecord(outside, other));
  G4_OK(cuStreamSynchronize(other));
  begin(d.stream);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(d.stream, outside, 0));
  is_invalidated(d, d.stream, x);
  // And the other way round: an event of an ended capture ties nothing.
  const CUevent inside = d.event();
  begin(d.stream);
  G4_OK(cuEventRecord(inside, d.stream));
  end(d.stream);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(other, inside, 0));
}

G4_TEST(two_captures_cannot_be_merged_902) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUstream other = d.new_stream();
  const CUevent e = d.event();
  begin(d.stream);
  begin(other);
  G4_OK(cuEventRecord(e, other));
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(d.stream, e, 0));
  CUgraph g;
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other, &g));
  is_invalidated(d, d.stream, x);
}

G4_TEST(a_capture_ends_where_it_began_903) {
  Driver d;
  const CUstream side = d.new_stream();
  const CUevent fork = d.event();
  begin(d.stream);
  G4_OK(cuEventRecord(fork, d.stream));
  G4_OK(cuStreamWaitEvent(side, fork, 0));
  CUgraph g;
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(side, &g));
}

G4_TEST(the_null_stream_may_not_meet_a_capturing_blocking_stream_906) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUstream blocking = d.new_stream(CU_STREAM_DEFAULT);
  begin(blocking);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, d.fill(x, 1, 64, nullptr));
  is_invalidated(d, blocking, x);
  // A non-blocking stream's capture does not care.
  begin(d.stream);
  G4_OK(d.fill(x, 1, 64, nullptr));
  end(d.stream);
}

G4_TEST(a_captured_event_cannot_be_queried_907) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUevent e = d.event();
  begin(d.stream);
  G4_OK(cuEventRecord(e, d.stream));
  G4_IS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));
  is_invalidated(d, d.stream, x);
  begin(d.stream);
  G4_OK(cuEventRecord(e, d.stream));
  G4_IS(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(e));
  is_invalidated(d, d.stream, x);
  G4_IS(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));  // until it is recorded again
  G4_OK(cuEventRecord(e, d.stream));
  G4_OK(cuEventSynchronize(e));
}

G4_TEST(a_capture_ends_in_its_own_thread_908) {
  Driver d;
  const auto elsewhere = [&] {
    CUresult got = CUDA_SUCCESS;
    std::thread([&] {
      CUgraph g;
      cuCtxSetCurrent(d.ctx);
      got = cuStreamEndCapture(d.stream, &g);
    }).join();
    return got;
  };
  begin(d.stream, kThreadLocal);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, elsewhere());
  end(d.stream);
  begin(d.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  G4_OK(elsewhere());
}

G4_TEST(a_kernel_first_used_inside_a_capture_is_refused) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUfunction f = d.function("test_copy");
  CopyParams p = {reinterpret_cast<int32_t*>(x), reinterpret_cast<const int32_t*>(x), 64};
  void* args[] = {&p};
  begin(d.stream);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, d.stream, args, nullptr));
  is_invalidated(d, d.stream, x);
  begin(d.stream);
  G4_IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuFuncLoad(f));
  is_invalidated(d, d.stream, x);
  G4_OK(cuFuncLoad(f));
  begin(d.stream);
  G4_OK(cuFuncLoad(f));
  G4_OK(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, d.stream, args, nullptr));
  end(d.stream);
}

G4_TEST(a_bad_launch_inside_a_capture_is_refused_like_outside) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUfunction f = d.loaded("test_fill");
  FillParams p = {reinterpret_cast<int32_t*>(x), 1, 64};
  void* args[] = {&p};
  begin(d.stream);
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 257, 1, 1, 0, d.stream, args, nullptr));
  end(d.stream);
}
