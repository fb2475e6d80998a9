// Streams, events and the legacy stream: what is ordered, and what is not.
#include "driver_api.h"

using namespace g4test;

G4_TEST(a_launch_only_enqueues) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  int32_t* slot = d.pinned<int32_t>(1);
  *slot = 0;
  Gate gate(d.stream);
  G4_OK(d.fill(x, 5, 64, d.stream));
  G4_OK(cuMemcpyDtoHAsync_v2(slot, x, 4, d.stream));
  nap(5);
  G4_CHECK(*slot == 0, "slot %d", *slot);
  G4_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(d.stream));
  gate.open();
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(*slot == 5, "slot %d", *slot);
  G4_OK(cuStreamQuery(d.stream));
}

G4_TEST(a_stream_runs_in_order) {
  for (uint64_t seed : {0, 1, 2}) {
    Driver d(seed);
    const CUdeviceptr log = d.alloc(4 * 65);
    G4_OK(cuMemsetD8Async(log, 0, 4, d.stream));
    for (int i = 0; i < 64; i++) G4_OK(d.append(log, i, d.stream));
    G4_OK(cuStreamSynchronize(d.stream));
    const auto got = d.read(log, 65);
    for (int i = 0; i < 64; i++)
      G4_CHECK(got[(size_t)i + 1] == i, "seed %d: %d at %d", (int)seed, got[(size_t)i + 1], i);
  }
}

G4_TEST(streams_run_concurrently) {
  Driver d;
  const CUstream other = d.new_stream();
  const CUdeviceptr x = d.alloc(256);
  Gate held(d.stream);
  held.wait_until_reached();
  G4_OK(d.fill(x, 3, 64, other));
  G4_OK(cuStreamSynchronize(other));  // would hang if streams shared a queue
  G4_CHECK(reinterpret_cast<int32_t*>(x)[63] == 3, "not run");
}

G4_TEST(an_event_covers_the_work_before_it_only) {
  Driver d;
  const CUevent e = d.event();
  G4_OK(cuEventQuery(e));  // never recorded: complete
  Gate first(d.stream);
  G4_OK(cuEventRecord(e, d.stream));
  Gate second(d.stream);
  G4_IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
  first.open();
  G4_OK(cuEventSynchronize(e));
  G4_OK(cuEventQuery(e));
  G4_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(d.stream));
}

G4_TEST(a_stream_waits_for_an_event_of_another) {
  for (uint64_t seed : {0, 7}) {
    Driver d(seed);
    const CUstream other = d.new_stream();
    const CUevent e = d.event();
    const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
    Gate gate(d.stream);
    G4_OK(d.fill(x, 9, 64, d.stream));
    G4_OK(cuEventRecord(e, d.stream));
    G4_OK(cuStreamWaitEvent(other, e, 0));
    G4_OK(cuMemcpyDtoDAsync_v2(y, x, 256, other));
    nap(2);
    G4_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(other));
    gate.open();
    G4_OK(cuStreamSynchronize(other));
    G4_CHECK(d.read(y, 64)[0] == 9, "copied before the event");
  }
}

G4_TEST(a_wait_binds_to_the_record_of_its_call) {
  Driver d;
  const CUstream other = d.new_stream();
  const CUevent e = d.event();
  G4_OK(cuEventRecord(e, d.stream));
  G4_OK(cuStreamWaitEvent(other, e, 0));
  Gate gate(d.stream);
  G4_OK(cuEventRecord(e, d.stream));  // a later record: the wait does not follow it
  G4_OK(cuStreamSynchronize(other));
  G4_IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
}

G4_TEST(a_wait_for_an_event_never_recorded_waits_for_nothing) {
  Driver d;
  G4_OK(cuStreamWaitEvent(d.stream, d.event(), 0));
  G4_OK(cuStreamSynchronize(d.stream));
}

G4_TEST(the_null_stream_orders_blocking_streams) {
  for (uint64_t seed : {0, 3}) {
    Driver d(seed);
    const CUstream a = d.new_stream(CU_STREAM_DEFAULT), b = d.new_stream(CU_STREAM_DEFAULT);
    const CUdeviceptr log = d.alloc(64);
    G4_OK(cuMemsetD8_v2(log, 0, 64));
    G4_OK(cuCtxSynchronize());
    Gate gate(a);
    G4_OK(d.append(log, 1, a));
    G4_OK(d.append(log, 2, nullptr));
    G4_OK(d.append(log, 3, b));
    nap(2);
    G4_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    gate.open();
    G4_OK(cuStreamSynchronize(b));
    const auto got = d.read(log, 4);
    G4_CHECK(got[0] == 3 && got[1] == 1 && got[2] == 2 && got[3] == 3, "%d %d %d", got[1], got[2], got[3]);
  }
}

G4_TEST(the_null_stream_does_not_order_non_blocking_streams) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  Gate held(nullptr);
  G4_OK(d.fill(x, 4, 64, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));  // does not wait for the held null stream
  Gate own(d.stream);
  held.open();
  G4_OK(cuStreamSynchronize(nullptr));  // nor the null stream for a held non-blocking one
  G4_IS(CUDA_ERROR_NOT_READY, cuStreamQuery(d.stream));
}

G4_TEST(a_host_function_may_not_call_the_api) {
  Driver d;
  static CUresult got;
  got = CUDA_SUCCESS;
  G4_OK(cuLaunchHostFunc(d.stream, [](void*) { got = cuCtxSynchronize(); }, nullptr));
  G4_OK(cuStreamSynchronize(d.stream));
  G4_IS(CUDA_ERROR_NOT_PERMITTED, got);
}

G4_TEST(a_callback_runs_after_the_work_before_it) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  static std::atomic<int> seen;
  static int32_t* memory;
  seen = -1;
  memory = reinterpret_cast<int32_t*>(x);
  G4_OK(d.fill(x, 6, 64, d.stream));
  const CUstreamCallback look = [](CUstream, CUresult status, void*) { seen = status ? -2 : memory[0]; };
  G4_OK(cuStreamAddCallback(d.stream, look, nullptr, 0));
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(seen == 6, "saw %d", seen.load());
}

G4_TEST(a_destroyed_stream_still_finishes_its_work) {
  Driver d;
  const CUstream s = d.new_stream();
  const CUdeviceptr x = d.alloc(256);
  {
    Gate gate(s);
    G4_OK(d.fill(x, 8, 64, s));
    G4_OK(cuStreamDestroy_v2(s));
  }
  G4_OK(cuCtxSynchronize());
  G4_CHECK(reinterpret_cast<int32_t*>(x)[0] == 8, "lost");
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(s));
}

G4_TEST(an_event_without_timing_has_no_elapsed_time) {
  Driver d;
  const CUevent a = d.event(CU_EVENT_DEFAULT), b = d.event(CU_EVENT_DEFAULT), plain = d.event();
  float ms = -1;
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&ms, a, b));  // not recorded
  G4_OK(cuEventRecord(a, d.stream));
  {
    Gate gate(d.stream);
    G4_OK(cuEventRecord(b, d.stream));
    G4_OK(cuEventRecord(plain, d.stream));
    G4_IS(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, a, b));
    gate.wait_until_reached();  // a is recorded
    nap(5);
  }
  G4_OK(cuStreamSynchronize(d.stream));
  G4_OK(cuEventElapsedTime_v2(&ms, a, b));
  G4_CHECK(ms >= 4 && ms < 5000, "%f ms", (double)ms);
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&ms, a, plain));
}

G4_TEST(handles_that_are_not_are_refused) {
  Driver d;
  int local = 0;
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(reinterpret_cast<CUstream>(&local)));
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(reinterpret_cast<CUevent>(&local), d.stream));
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuFuncLoad(reinterpret_cast<CUfunction>(&local)));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(reinterpret_cast<CUgraphExec>(&local), d.stream));
}

G4_TEST(a_thread_without_a_context_is_refused) {
  Driver d;
  CUresult got = CUDA_SUCCESS;
  std::thread([&] {
    CUdeviceptr p;
    got = cuMemAlloc_v2(&p, 4);
  }).join();
  G4_IS(CUDA_ERROR_INVALID_CONTEXT, got);
}

G4_TEST(a_destroyed_context_is_refused) {
  Driver d;
  CUcontext other = nullptr, top = nullptr;
  G4_OK(cuCtxCreate_v4(&other, nullptr, 0, 0));
  std::atomic<bool> bound{false}, destroyed{false};
  CUresult got = CUDA_SUCCESS;
  std::thread thread([&] {
    if (cuCtxSetCurrent(other)) return;
    bound = true;
    while (!destroyed) std::this_thread::yield();
    got = cuCtxSynchronize();
  });
  while (!bound) std::this_thread::yield();
  G4_OK(cuCtxDestroy_v2(other));
  destroyed = true;
  thread.join();
  G4_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, got);
  G4_OK(cuCtxGetCurrent(&top));
  G4_CHECK(top == d.ctx, "the context below is current again");
  G4_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(other));
}
