// Memory and copies: poison, guard zones, budget; when host memory is read and written.
#include "driver_api.h"

using namespace g4test;

namespace {

uint8_t byte_at(CUdeviceptr p, size_t i) { return reinterpret_cast<volatile uint8_t*>(p)[i]; }

}  // namespace

G4_TEST(fresh_memory_is_poison) {
  Driver d;
  for (size_t bytes : {1, 5, 512, 4096, 5 << 20}) {
    const CUdeviceptr p = d.alloc(bytes);
    G4_CHECK(p % 512 == 0, "alignment");
    for (size_t i : {(size_t)0, bytes / 2, bytes - 1}) G4_CHECK(byte_at(p, i) == 0xFB, "byte %zu of %zu", i, bytes);
  }
  uint8_t* host = d.pinned<uint8_t>(100);
  G4_CHECK(host[0] == 0xFB && host[99] == 0xFB, "pinned memory");
}

#if !defined(__SANITIZE_ADDRESS__)
G4_TEST(freed_memory_is_poison) {
  Driver d;
  for (size_t bytes : {4096, 5 << 20}) {
    const CUdeviceptr p = d.alloc(bytes);
    G4_OK(cuMemsetD8_v2(p, 1, bytes));
    G4_OK(cuCtxSynchronize());
    G4_CHECK(byte_at(p, 0) == 1 && byte_at(p, bytes - 1) == 1, "set");
    G4_OK(cuMemFree_v2(p));
    for (size_t i : {(size_t)0, (size_t)bytes / 2, (size_t)bytes - 1})
      G4_CHECK(byte_at(p, i) == 0xFB, "byte %zu of %zu", i, (size_t)bytes);
  }
}

G4_TEST(freed_addresses_rest_before_they_are_used_again) {
  Driver d;
  const CUdeviceptr p = d.alloc(4096);
  G4_OK(cuMemFree_v2(p));
  for (int i = 0; i < 100; i++) G4_CHECK(d.alloc(4096) != p, "used again at once");
}

G4_TEST(a_write_past_the_end_is_found_when_waiting) {
  Driver d;
  const CUdeviceptr p = d.alloc(100);
  reinterpret_cast<volatile uint8_t*>(p)[100] = 7;  // the first byte of the guard, inside the rounded size
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  char text[256];
  g4soft_last_report(text, sizeof text);
  G4_CHECK(g4soft_counter("guard_errors") == 1, "%lld", (long long)g4soft_counter("guard_errors"));
}

G4_TEST(a_write_before_the_start_is_found_at_free) {
  Driver d;
  const CUdeviceptr p = d.alloc(4096);
  g4soft_set("check_guards", 0);  // no checks at waits
  reinterpret_cast<volatile uint8_t*>(p)[-1] = 7;
  G4_OK(cuCtxSynchronize());
  g4soft_set("check_guards", 1);
  G4_CHECK(g4soft_check_guards() == 1, "guard not found");
  reinterpret_cast<volatile uint8_t*>(p)[-2] = 7;
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(p));  // the wait inside finds it
}

G4_TEST(a_kernel_that_overruns_its_buffer_breaks_the_context) {
  Driver d;
  const CUdeviceptr p = d.alloc(4 * 100);
  FillParams params = {reinterpret_cast<int32_t*>(p), 1, 100};
  void* args[] = {&params};
  G4_OK(cuLaunchKernel(d.function("test_overrun"), 1, 1, 1, 1, 1, 1, 0, d.stream, args, nullptr));
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(d.stream));
}

G4_TEST(a_write_to_free_memory_is_found) {
  Driver d;
  const CUdeviceptr p = d.alloc(4096);
  G4_OK(cuMemFree_v2(p));
  reinterpret_cast<volatile uint8_t*>(p)[8] = 1;
  // The addresses come back when the reserved range has been used up once.
  const int64_t before = g4soft_counter("guard_errors");
  for (int i = 0; i < 400 && g4soft_counter("guard_errors") == before; i++) {
    const CUdeviceptr big = d.alloc(15 << 20);
    G4_OK(cuMemFree_v2(big));
  }
  G4_CHECK(g4soft_counter("guard_errors") == before + 1, "not found");
}
#endif

G4_TEST(copies_stay_inside_one_allocation) {
  Driver d;
  const CUdeviceptr p = d.alloc(1000);
  std::vector<uint8_t> host(2000);
  G4_OK(cuMemcpyHtoD_v2(p, host.data(), 1000));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(p, host.data(), 1001));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host.data(), p + 1, 1000));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync_v2(host.data(), p + 1000, 1, d.stream));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(p, 0, 1001, d.stream));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(p + 2, 0, 4, d.stream));                    // misaligned
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(host.data()), host.data(), 1));
  const CUdeviceptr freed = d.alloc(100);
  G4_OK(cuMemFree_v2(freed));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(freed, host.data(), 100));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(freed));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 1));
  G4_OK(cuMemcpyHtoD_v2(p, host.data(), 0));
}

G4_TEST(memory_runs_out) {
  Driver d;
  size_t free_bytes, total;
  g4soft_set("memory_bytes", 1 << 20);
  G4_OK(cuMemGetInfo_v2(&free_bytes, &total));
  G4_CHECK(free_bytes == 1 << 20 && total == 1 << 20, "%zu of %zu", free_bytes, total);
  const CUdeviceptr p = d.alloc(1 << 19);
  G4_OK(cuMemGetInfo_v2(&free_bytes, &total));
  G4_CHECK(free_bytes == 1 << 19, "%zu", free_bytes);
  CUdeviceptr q;
  G4_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&q, (1 << 19) + 1));
  G4_OK(cuMemFree_v2(p));
  G4_OK(cuMemAlloc_v2(&q, 1 << 20));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&q, 0));
}

G4_TEST(pinned_memory_is_read_when_the_copy_runs) {
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  int32_t* slot = d.pinned<int32_t>(1);
  *slot = 1;
  {
    Gate gate(d.stream);
    G4_OK(cuMemcpyHtoDAsync_v2(p, slot, 4, d.stream));
    *slot = 2;  // too early on any device; here it is what arrives
  }
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(d.read(p, 1)[0] == 2, "%d", d.read(p, 1)[0]);
}

G4_TEST(pageable_memory_is_read_at_the_call) {
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  int32_t plain = 1;
  {
    Gate gate(d.stream);
    G4_OK(cuMemcpyHtoDAsync_v2(p, &plain, 4, d.stream));
    plain = 2;
  }
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(d.read(p, 1)[0] == 1, "%d", d.read(p, 1)[0]);
  G4_CHECK(g4soft_counter("pageable_h2d") == 1, "counter");
}

G4_TEST(a_copy_to_pageable_memory_blocks) {
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  int32_t plain = 0;
  Gate gate(d.stream);
  G4_OK(cuMemsetD32Async(p, 77, 1, d.stream));
  std::thread opener([&] {
    nap(10);
    gate.open();
  });
  G4_OK(cuMemcpyDtoHAsync_v2(&plain, p, 4, d.stream));
  const int32_t seen = plain;
  opener.join();
  G4_CHECK(seen == 77, "returned before the copy: %d", seen);
}

G4_TEST(a_copy_to_pinned_memory_does_not_block) {
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  int32_t* slot = d.pinned<int32_t>(1);
  *slot = 0;
  G4_OK(cuMemsetD32Async(p, 77, 1, d.stream));
  Gate gate(d.stream);
  G4_OK(cuMemcpyDtoHAsync_v2(slot, p, 4, d.stream));
  G4_CHECK(*slot == 0, "already there");
  gate.open();
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(*slot == 77, "%d", *slot);
}

G4_TEST(registered_memory_counts_as_pinned) {
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  std::vector<int32_t> host(1024, 1);
  G4_OK(cuMemHostRegister_v2(host.data(), 4096, 0));
  G4_IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(host.data() + 10, 4, 0));
  {
    Gate gate(d.stream);
    G4_OK(cuMemcpyHtoDAsync_v2(p, host.data(), 4, d.stream));
    host[0] = 2;
  }
  G4_OK(cuStreamSynchronize(d.stream));
  G4_CHECK(d.read(p, 1)[0] == 2, "staged");
  G4_OK(cuMemHostUnregister(host.data()));
  G4_IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(host.data()));
}

G4_TEST(a_synchronous_upload_may_still_be_on_its_way) {
  // Only later work of the null stream and of blocking streams is ordered behind a pageable upload.
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  G4_OK(cuMemsetD8_v2(p, 0, 4));
  G4_OK(cuCtxSynchronize());
  const int32_t one = 1;
  g4soft_stall(nullptr);
  // The wait before the copy is for earlier work: none is left.
  G4_OK(cuMemcpyHtoD_v2(p, &one, 4));
  G4_CHECK(*reinterpret_cast<volatile int32_t*>(p) == 0, "arrived while the device stood still");
  g4soft_release();
  G4_OK(cuCtxSynchronize());
  G4_CHECK(d.read(p, 1)[0] == 1, "lost");
}

G4_TEST(a_fill_does_not_block) {
  Driver d;
  const CUdeviceptr p = d.alloc(4);
  Gate gate(nullptr);
  G4_OK(cuMemsetD8_v2(p, 0, 4));  // would hang
  gate.open();
  G4_OK(cuCtxSynchronize());
}

G4_TEST(free_waits_for_work_in_flight) {
  Driver d;
  const CUdeviceptr x = d.alloc(256), y = d.alloc(4);
  Gate gate(d.stream);
  G4_OK(d.fill(x, 1, 64, d.stream));
  std::thread opener([&] {
    nap(10);
    gate.open();
  });
  const int64_t before = g4soft_counter("synchronisations");
  const CUresult freed = cuMemFree_v2(y);
  const CUresult state = cuStreamQuery(d.stream);
  opener.join();
  G4_OK(freed);
  G4_OK(state);
  G4_CHECK(g4soft_counter("synchronisations") > before, "not counted");
  int32_t* slot = d.pinned<int32_t>(1);
  G4_OK(cuMemFreeHost(slot));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(slot));
}

G4_TEST(an_asynchronous_free_waits_for_its_turn) {
  Driver d;
  CUdeviceptr p;
  G4_OK(cuMemAllocAsync(&p, 256, d.stream));
  size_t before, after, total;
  G4_OK(cuMemGetInfo_v2(&before, &total));
  Gate gate(d.stream);
  G4_OK(d.fill(p, 1, 64, d.stream));
  G4_OK(cuMemcpyDtoDAsync_v2(p, p + 128, 64, d.stream));
  G4_OK(cuMemFreeAsync(p, d.stream));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, d.stream));
  G4_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(p, 0, 4, d.stream));
  G4_OK(cuMemGetInfo_v2(&after, &total));
  G4_CHECK(after == before, "returned before its turn");
  gate.open();
  G4_OK(cuStreamSynchronize(d.stream));  // the copy queued before the free is fine
  G4_OK(cuMemGetInfo_v2(&after, &total));
  G4_CHECK(after > before, "not returned");
}

G4_TEST(a_copy_that_runs_after_its_memory_went_is_an_illegal_address) {
  Driver d;
  const CUstream other = d.new_stream();
  CUdeviceptr p, q = d.alloc(256);
  G4_OK(cuMemAllocAsync(&p, 256, d.stream));
  Gate gate(other);
  G4_OK(cuMemcpyDtoDAsync_v2(q, p, 256, other));
  G4_OK(cuMemFreeAsync(p, d.stream));
  G4_OK(cuStreamSynchronize(d.stream));
  gate.open();
  G4_IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(other));
}
