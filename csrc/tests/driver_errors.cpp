// Errors that stick, launches that are refused, faults on demand, counters, seeds.
#include <algorithm>
#include <set>

#include "driver_api.h"

using namespace g4test;

namespace {

CUresult launch(Driver& d, const char* name, CUdeviceptr x, unsigned threads = 64, unsigned shared = 0,
                unsigned grid = 1) {
  FillParams p = {reinterpret_cast<int32_t*>(x), 1, 64};
  void* args[] = {&p};
  return cuLaunchKernel(d.loaded(name), grid, 1, 1, threads, 1, 1, shared, d.stream, args, nullptr);
}

std::string last_report() {
  char text[512];
  g4soft_last_report(text, sizeof text);
  return text;
}

std::vector<int32_t> order_of(const char* kernel, uint64_t seed, unsigned grid, unsigned threads, int workers) {
  Driver d(seed);
  g4soft_set("workers", (uint64_t)workers);
  const CUdeviceptr log = d.alloc(4 * 257);
  G4_OK(cuMemsetD8Async(log, 0, 4, d.stream));
  AppendParams p = {reinterpret_cast<int32_t*>(log), 0};
  void* args[] = {&p};
  G4_OK(cuLaunchKernel(d.function(kernel), grid, 1, 1, threads, 1, 1, 0, d.stream, args, nullptr));
  G4_OK(cuStreamSynchronize(d.stream));
  return d.read(log, 1 + grid * threads);
}

}  // namespace

// ---- Sticky errors -------------------------------------------------------------------------------------------------

G4_TEST(an_error_sticks_to_the_context) {
  Driver d;
  const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
  const CUevent e = d.event();
  int32_t* slot = d.pinned<int32_t>(1);
  {
    Gate gate(d.stream);
    G4_OK(launch(d, "test_trap", x));
    G4_OK(d.fill(y, 1, 64, d.stream));  // does not run
    G4_OK(cuEventRecord(e, d.stream));
  }
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
  CUdeviceptr p;
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&p, 4));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(x));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventQuery(e));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventSynchronize(e));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(d.stream));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoHAsync_v2(slot, y, 4, d.stream));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.fill(y, 1, 64, d.stream));
  G4_CHECK(reinterpret_cast<volatile uint8_t*>(y)[0] == 0xFB, "work ran after the error");
  G4_CHECK(g4soft_counter("sticky_errors") == 1, "%lld", (long long)g4soft_counter("sticky_errors"));
  // Another context is whole; binding contexts works all the same.
  CUcontext other;
  G4_OK(cuCtxCreate_v4(&other, nullptr, 0, 0));
  G4_OK(cuMemAlloc_v2(&p, 4));
  G4_OK(cuCtxDestroy_v2(other));
}

G4_TEST(a_reset_of_the_primary_context_ends_its_error) {
  Driver d;
  CUcontext primary, again;
  G4_OK(cuDevicePrimaryCtxRetain(&primary, 0));
  G4_OK(cuDevicePrimaryCtxRetain(&again, 0));
  G4_CHECK(primary == again, "one primary context");
  G4_OK(cuCtxPushCurrent_v2(primary));
  g4soft_fail_launch(1, CUDA_ERROR_ECC_UNCORRECTABLE);
  CUmodule m;
  CUfunction f;
  G4_OK(cuModuleLoadData(&m, &kTestImage));
  G4_OK(cuModuleGetFunction(&f, m, "test_shared"));
  CUdeviceptr x;
  G4_OK(cuMemAlloc_v2(&x, 64));
  FillParams p = {reinterpret_cast<int32_t*>(x), 0, 0};
  void* args[] = {&p};
  G4_OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, args, nullptr));
  G4_IS(CUDA_ERROR_ECC_UNCORRECTABLE, cuCtxSynchronize());
  G4_OK(cuDevicePrimaryCtxReset_v2(0));
  G4_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  CUcontext popped;
  G4_OK(cuCtxPopCurrent_v2(&popped));
  G4_OK(cuDevicePrimaryCtxRetain(&primary, 0));
  G4_OK(cuCtxPushCurrent_v2(primary));
  G4_OK(cuCtxSynchronize());
  G4_OK(cuCtxPopCurrent_v2(&popped));
  G4_OK(cuDevicePrimaryCtxRelease_v2(0));
}

// Met in cudarc's tests, which share the primary context between threads.
G4_TEST(a_primary_context_being_destroyed_is_not_given_out_again) {
  Driver d;
  CUcontext primary, again, popped;
  CUstream s;
  G4_OK(cuDevicePrimaryCtxRetain(&primary, 0));
  G4_OK(cuCtxPushCurrent_v2(primary));
  G4_OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  Gate gate(s);
  CUresult released = CUDA_ERROR_UNKNOWN;
  std::thread last([&] { released = cuDevicePrimaryCtxRelease_v2(0); });  // waits for the gate
  unsigned flags;
  int active = 1;
  while (active) G4_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  const CUresult dead = cuCtxSynchronize();
  const CUresult retained = cuDevicePrimaryCtxRetain(&again, 0);
  gate.open();
  last.join();
  G4_OK(released);
  G4_OK(retained);
  G4_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, dead);
  G4_OK(cuCtxPopCurrent_v2(&popped));
  G4_OK(cuCtxPushCurrent_v2(again));
  CUdeviceptr p;
  G4_OK(cuMemAlloc_v2(&p, 4));
  G4_OK(cuMemFree_v2(p));
  G4_OK(cuCtxPopCurrent_v2(&popped));
  G4_OK(cuDevicePrimaryCtxRelease_v2(0));
}

G4_TEST(a_barrier_that_not_all_threads_reach_is_reported_with_its_places) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  G4_OK(launch(d, "test_divergence", x));
  G4_IS(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(d.stream));
  const std::string text = last_report();
  G4_CHECK(text.find("test_divergence") != std::string::npos && text.find("driver_kernels.cpp:") != std::string::npos,
           "%s", text.c_str());
}

G4_TEST(a_trap_is_reported_with_its_place) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  G4_OK(launch(d, "test_trap", x));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
  const std::string text = last_report();
  G4_CHECK(text.find("index out of range at") != std::string::npos, "%s", text.c_str());
}

G4_TEST(a_block_ends_when_its_thread_says_so) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  G4_OK(cuMemsetD32Async(x, 0, 1, d.stream));
  for (int again = 0; again < 3; again++) G4_OK(launch(d, "test_end_block", x));
  int32_t count = 0;
  G4_OK(cuMemcpyDtoHAsync_v2(&count, x, 4, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(count == 3, "%d threads ran", count);
  G4_OK(cuMemsetD32Async(x, 0, 1, d.stream));
  G4_OK(launch(d, "test_end_block_of_waiting", x));
  G4_IS(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(d.stream));
  G4_CHECK(last_report().find("a block ended while threads wait") != std::string::npos, "%s", last_report().c_str());
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
G4_TEST(an_access_to_no_memory_is_an_illegal_address) {
  for (int again = 0; again < 3; again++) {
    Driver d;
    const CUdeviceptr x = d.alloc(256);
    G4_OK(launch(d, "test_wild_store", x, 64, 0, 8));
    G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
    G4_CHECK(last_report().find("store of 0x10") != std::string::npos, "%s", last_report().c_str());
  }
}
#endif

// ---- Launches and modules ------------------------------------------------------------------------------------------

G4_TEST(a_launch_beyond_the_limits_is_refused) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  G4_IS(CUDA_ERROR_INVALID_VALUE, launch(d, "test_fill", x, 0));
  G4_IS(CUDA_ERROR_INVALID_VALUE, launch(d, "test_fill", x, 257));    // launch bound 256
  G4_IS(CUDA_ERROR_INVALID_VALUE, launch(d, "test_fill", x, 64, 0, 0));
  G4_IS(CUDA_ERROR_INVALID_VALUE, launch(d, "test_shared", x, 64, 48 * 1024 + 1));
  void* none[] = {nullptr};
  const CUfunction f = d.loaded("test_fill");
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, d.stream, nullptr, nullptr));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, d.stream, none, nullptr));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 65536, 1, 64, 1, 1, 0, d.stream, none, nullptr));
  G4_OK(cuStreamSynchronize(d.stream));  // none of this sticks
}

G4_TEST(more_than_48_kib_of_shared_memory_must_be_asked_for) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUfunction f = d.loaded("test_shared");
  const int most = 227 * 1024, attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  int value = 0;
  G4_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0));
  G4_CHECK(value == most, "%d", value);
  G4_IS(CUDA_ERROR_INVALID_VALUE, launch(d, "test_shared", x, 64, 50000));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, attribute, most + 1));
  G4_OK(cuFuncSetAttribute(f, attribute, most));
  G4_OK(cuFuncGetAttribute(&value, attribute, f));
  G4_CHECK(value == most, "%d", value);
  G4_OK(launch(d, "test_shared", x, 64, (unsigned)most));
  G4_OK(cuStreamSynchronize(d.stream));
  auto got = d.read(x, 3);
  G4_CHECK(got[0] == most && got[1] == 0xFB && got[2] == 0xFB, "%d bytes, %x %x", got[0], got[1], got[2]);
  G4_IS(CUDA_ERROR_INVALID_VALUE, launch(d, "test_shared", x, 64, (unsigned)most + 1));
  int blocks = 0;
  G4_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 64, (size_t)most));
  G4_CHECK(blocks == 1, "%d", blocks);
  G4_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 64, 0));
  G4_CHECK(blocks == 32, "%d", blocks);
}

G4_TEST(shared_memory_starts_as_poison_in_every_block) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  for (int i = 0; i < 3; i++) {
    G4_OK(launch(d, "test_shared", x, 64, 1000, 4));
    G4_OK(cuStreamSynchronize(d.stream));
    const auto got = d.read(x, 3);
    G4_CHECK(got[0] == 1000 && got[1] == 0xFB && got[2] == 0xFB, "%d %x %x", got[0], got[1], got[2]);
  }
}

G4_TEST(an_image_for_a_gpu_or_none_is_refused) {
  Driver d;
  CUmodule m;
  CUfunction f;
  const uint32_t fat[4] = {0xba55ed50u, 1, 0, 0}, junk[4] = {1, 2, 3, 4};
  G4SoftImage future = kTestImage;
  future.version = 2;
  G4_IS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, fat));
  G4_IS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, junk));
  G4_IS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, &future));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&m, nullptr));
  G4_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, d.module, "no_such_kernel"));
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&f, reinterpret_cast<CUmodule>(&d), "test_fill"));
}

G4_TEST(a_kernel_of_an_unloaded_module_fails) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  const CUfunction f = d.loaded("test_fill");
  Gate gate(d.stream);
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuModuleUnload(d.module));
  G4_IS(CUDA_ERROR_INVALID_HANDLE, cuFuncLoad(f));
  gate.open();
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
}

// ---- Faults on demand ----------------------------------------------------------------------------------------------

G4_TEST(the_nth_call_fails) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  g4soft_fail_call(3, CUDA_ERROR_UNKNOWN);
  G4_OK(cuStreamQuery(d.stream));
  G4_OK(cuStreamQuery(d.stream));
  G4_IS(CUDA_ERROR_UNKNOWN, cuStreamQuery(d.stream));
  G4_OK(cuStreamQuery(d.stream));  // once
  g4soft_fail_named("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr p;
  G4_OK(cuMemAlloc_v2(&p, 4));
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 4));
  G4_OK(cuMemAlloc_v2(&p, 4));
  G4_CHECK(g4soft_counter("faults") == 2, "%lld", (long long)g4soft_counter("faults"));
}

G4_TEST(the_nth_kernel_goes_sticky) {
  Driver d;
  const CUdeviceptr log = d.alloc(64);
  G4_OK(cuMemsetD8Async(log, 0, 64, d.stream));
  g4soft_fail_launch(3, CUDA_ERROR_LAUNCH_TIMEOUT);
  for (int i = 1; i <= 4; i++) G4_OK(d.append(log, i, d.stream));
  G4_IS(CUDA_ERROR_LAUNCH_TIMEOUT, cuStreamSynchronize(d.stream));
  G4_CHECK(reinterpret_cast<int32_t*>(log)[0] == 2, "%d ran", reinterpret_cast<int32_t*>(log)[0]);
}

G4_TEST(a_stream_stalls_until_released) {
  Driver d;
  const CUstream other = d.new_stream();
  const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
  const CUevent e = d.event();
  g4soft_stall(d.stream);
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuEventRecord(e, d.stream));
  G4_OK(d.fill(y, 1, 64, other));
  G4_OK(cuStreamSynchronize(other));
  nap(3);
  G4_IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
  g4soft_release();
  G4_OK(cuEventSynchronize(e));
}

G4_TEST(calls_after_start_up_are_counted_and_refused) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  g4soft_arm(0);
  const CUdeviceptr p = d.alloc(4);
  G4_OK(cuStreamBeginCapture_v2(d.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUgraph g;
  G4_OK(cuStreamEndCapture(d.stream, &g));
  d.instantiate(g);
  G4_OK(cuMemFree_v2(p));
  for (const char* name : {"armed_allocations", "armed_captures", "armed_instantiations", "armed_frees"})
    G4_CHECK(g4soft_counter(name) == 1, "%s: %lld", name, (long long)g4soft_counter(name));
  G4_CHECK(g4soft_counter("armed_module_loads") == 0, "module loads");
  g4soft_arm(1);
  CUdeviceptr q;
  CUmodule m;
  CUgraphExec e;
  void* h;
  G4_IS(CUDA_ERROR_NOT_PERMITTED, cuMemAlloc_v2(&q, 4));
  G4_IS(CUDA_ERROR_NOT_PERMITTED, cuMemHostAlloc(&h, 4, 0));
  G4_IS(CUDA_ERROR_NOT_PERMITTED, cuModuleLoadData(&m, &kTestImage));
  G4_IS(CUDA_ERROR_NOT_PERMITTED, cuStreamBeginCapture_v2(d.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  G4_IS(CUDA_ERROR_NOT_PERMITTED, cuGraphInstantiateWithFlags(&e, g, 0));
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
}

// ---- Counters and seeds --------------------------------------------------------------------------------------------

G4_TEST(counters_count) {
  Driver d;
  const int64_t live = g4soft_counter("live_bytes");
  const CUdeviceptr x = d.alloc(256), y = d.alloc(256);
  int32_t* slot = d.pinned<int32_t>(64);
  g4soft_counters_reset();
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuMemcpyHtoDAsync_v2(x, slot, 100, d.stream));
  G4_OK(cuMemcpyDtoHAsync_v2(slot, x, 50, d.stream));
  G4_OK(cuMemcpyDtoDAsync_v2(y, x, 25, d.stream));
  G4_OK(cuMemsetD8Async(x, 0, 10, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  const struct {
    const char* name;
    int64_t value;
  } expected[] = {{"launches", 2},   {"kernels_run", 2}, {"copies_h2d", 1}, {"bytes_h2d", 100}, {"copies_d2h", 1},
                  {"bytes_d2h", 50}, {"copies_d2d", 1},  {"bytes_d2d", 25}, {"memsets", 1},     {"synchronisations", 1},
                  {"allocations", 0}, {"pageable_h2d", 0}, {"graph_launches", 0}, {"unsupported", 0}};
  for (const auto& e : expected)
    G4_CHECK(g4soft_counter(e.name) == e.value, "%s: %lld", e.name, (long long)g4soft_counter(e.name));
  G4_CHECK(g4soft_counter("calls") == 7, "calls: %lld", (long long)g4soft_counter("calls"));
  G4_CHECK(g4soft_counter("live_bytes") == live + 512, "live: %lld", (long long)g4soft_counter("live_bytes"));
  G4_OK(cuMemFree_v2(y));
  G4_CHECK(g4soft_counter("live_bytes") == live + 256 && g4soft_counter("frees") == 1, "after a free");
  G4_CHECK(g4soft_counter("no_such_counter") == -1, "unknown names");
  std::set<std::string> names;
  for (int i = 0; g4soft_counter_name(i); i++) names.insert(g4soft_counter_name(i));
  G4_CHECK(names.size() == G4SOFT_COUNTER_COUNT, "%zu names", names.size());
}

G4_TEST(what_is_not_implemented_says_so_and_is_counted) {
  Driver d;
  G4_IS(CUDA_ERROR_NOT_SUPPORTED, cuArrayCreate_v2(nullptr, nullptr));
  G4_CHECK(g4soft_counter("unsupported") == 1, "not counted");
  void* address = nullptr;
  int status = -1;
  G4_OK(cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, &status));
  G4_CHECK(address == reinterpret_cast<void*>(&cuMemAlloc_v2) && status == 0, "the newest version");
  G4_IS(CUDA_ERROR_NOT_FOUND, cuGetProcAddress_v2("cuNoSuch", &address, 13000, 0, &status));
  const char* name = nullptr;
  G4_OK(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &name));
  G4_CHECK(!std::strcmp(name, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"), "%s", name);
}

G4_TEST(kernels_can_be_skipped) {
  Driver d;
  const CUdeviceptr x = d.alloc(256);
  g4soft_set("skip_kernels", 1);
  G4_OK(d.fill(x, 1, 64, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(reinterpret_cast<volatile uint8_t*>(x)[0] == 0xFB && g4soft_counter("kernels_run") == 1, "ran");
}

G4_TEST(a_seed_permutes_blocks_and_threads_and_repeats) {
  std::vector<int32_t> ascending_blocks = order_of("test_block_order", 0, 64, 1, 1);
  std::vector<int32_t> ascending_threads = order_of("test_thread_order", 0, 1, 64, 1);
  for (int i = 0; i < 64; i++)
    G4_CHECK(ascending_blocks[(size_t)i + 1] == i && ascending_threads[(size_t)i + 1] == i, "at %d", i);
  std::set<std::vector<int32_t>> blocks, threads;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    auto b = order_of("test_block_order", seed, 64, 1, 1);
    auto t = order_of("test_thread_order", seed, 1, 64, 1);
    blocks.insert(b);
    threads.insert(t);
    std::sort(b.begin() + 1, b.end());
    std::sort(t.begin() + 1, t.end());
    G4_CHECK(b == ascending_blocks && t == ascending_threads, "seed %d: not a permutation", (int)seed);
  }
  G4_CHECK(blocks.size() == 4 && threads.size() == 4, "seeds agree");
}

G4_TEST(every_block_runs_once_whatever_the_workers) {
  for (int workers : {1, 2, 5}) {
    auto got = order_of("test_block_order", 0, 256, 1, workers);
    G4_CHECK(got[0] == 256, "%d blocks", got[0]);
    std::sort(got.begin() + 1, got.end());
    for (int i = 0; i < 256; i++) G4_CHECK(got[(size_t)i + 1] == i, "workers %d: block %d", workers, i);
  }
}

G4_TEST(the_device_says_what_it_is) {
  Driver d;
  char name[64];
  int version = 0, value = 0;
  G4_OK(cuDeviceGetName(name, sizeof name, 0));
  G4_CHECK(!std::strcmp(name, "Software CUDA device"), "%s", name);
  G4_OK(cuDriverGetVersion(&version));
  G4_CHECK(version == 13000, "%d", version);
  g4soft_set("sms", 5);
  G4_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  g4soft_set("sms", 8);
  G4_CHECK(value == 5, "%d", value);
  G4_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, 16, 1));
  G4_CHECK(g4soft_version() == 1, "version");
}
