// Kernels of the software device's tests.
#include "driver_api.h"

using namespace g4test;

G4_KERNEL(test_fill, FillParams, 256) {
  const int i = cta.block_x() * cta.threads() + cta.tid();
  if (i < p.count) p.x[i] = p.value;
}

G4_KERNEL(test_append, AppendParams, 32) {
  const int n = ++p.log[0];
  p.log[n] = p.value;
  (void)cta;
}

G4_KERNEL(test_copy, CopyParams, 256) {
  const int i = cta.block_x() * cta.threads() + cta.tid();
  if (i < p.count) p.to[i] = p.from[i];
}

// Blocks append their index: the order a seed permutes.
G4_KERNEL(test_block_order, AppendParams, 32) {
  const uint32_t at = g4::atomic_add(reinterpret_cast<uint32_t*>(p.log), 1);
  p.log[1 + at] = cta.block_x();
}

// Threads append theirs.
G4_KERNEL(test_thread_order, AppendParams, 64) {
  const uint32_t at = g4::atomic_add(reinterpret_cast<uint32_t*>(p.log), 1);
  p.log[1 + at] = cta.tid();
  G4_SYNC(cta);
}

// Half of the threads leave at one barrier, half at another.
G4_KERNEL(test_divergence, FillParams, 64) {
  if (cta.tid() < 32) {
    G4_SYNC(cta);
  } else {
    G4_SYNC(cta);
  }
  p.x[cta.tid()] = 1;
}

G4_KERNEL(test_trap, FillParams, 64) {
  if (cta.tid() == 3) cta.self->ops->trap(cta.self, "index out of range", __FILE__, __LINE__);
  p.x[0] = 1;
}

// Every thread would add one: the first to run ends the block.
G4_KERNEL(test_end_block, FillParams, 64) {
  g4::atomic_add(reinterpret_cast<uint32_t*>(p.x), 1);
  cta.self->ops->end_block(cta.self);
  p.x[0] = -1;
}

// The last thread ends the block while the others wait for it.
G4_KERNEL(test_end_block_of_waiting, FillParams, 64) {
  if (g4::atomic_add(reinterpret_cast<uint32_t*>(p.x), 1) == 63) cta.self->ops->end_block(cta.self);
  G4_SYNC(cta);
}

G4_KERNEL(test_wild_store, FillParams, 64) {
  *reinterpret_cast<volatile int32_t*>(16) = 1;
  p.x[0] = cta.tid();
}

// Writes one element past what it was given.
G4_KERNEL(test_overrun, FillParams, 1) {
  volatile int32_t* x = p.x;
  x[p.count] = p.value;
  (void)cta;
}

// Whether fresh shared memory is poison, and how much there is.
G4_KERNEL(test_shared, FillParams, 64) {
  G4_SHARED(uint8_t, shared);
  const uint32_t bytes = cta.self->shared_bytes;
  if (cta.tid() == 0) {
    p.x[0] = (int32_t)bytes;
    p.x[1] = bytes ? shared[0] : -1;
    p.x[2] = bytes ? shared[bytes - 1] : -1;
  }
  G4_SYNC(cta);
  for (uint32_t i = (uint32_t)cta.tid(); i < bytes; i += (uint32_t)cta.threads()) shared[i] = 1;
}

// A dependent launch: reads before the wait, writes after it.
G4_KERNEL_THAT_WAITS(test_early, EarlyParams, 32) {
  const int32_t early = *p.input;
  if (p.store_early) p.out[cta.block_x()] = early;
  g4::dependency_wait(cta);
  const int32_t late = *p.input;
  p.out[cta.block_x()] = early * 1000 + late;
}

static const G4SoftKernel kKernels[] = {
    {"test_fill", &test_fill, sizeof(FillParams), 256},
    {"test_append", &test_append, sizeof(AppendParams), 32},
    {"test_copy", &test_copy, sizeof(CopyParams), 256},
    {"test_block_order", &test_block_order, sizeof(AppendParams), 32},
    {"test_thread_order", &test_thread_order, sizeof(AppendParams), 64},
    {"test_divergence", &test_divergence, sizeof(FillParams), 64},
    {"test_trap", &test_trap, sizeof(FillParams), 64},
    {"test_end_block", &test_end_block, sizeof(FillParams), 64},
    {"test_end_block_of_waiting", &test_end_block_of_waiting, sizeof(FillParams), 64},
    {"test_wild_store", &test_wild_store, sizeof(FillParams), 64},
    {"test_overrun", &test_overrun, sizeof(FillParams), 1},
    {"test_shared", &test_shared, sizeof(FillParams), 64},
    {"test_early", &test_early, sizeof(EarlyParams), 32},
};

namespace g4test {
const G4SoftImage kTestImage = {G4_SOFT_IMAGE_MAGIC, 1, sizeof(kKernels) / sizeof(kKernels[0]), kKernels};
}
