/* The device's own controls, beside the driver API: options, faults on demand, counters. C, found by dlsym.
 * Every function may be called from any thread at any time and is never refused. */
#ifndef G4_SOFT_CONTROL_H
#define G4_SOFT_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options, X(name): g4soft_set("name", v), or GEMMA4_SOFT_NAME in the environment before the first driver call.
 * README.md has the table of meanings and defaults. */
#define G4SOFT_OPTIONS(X) \
  X(memory_bytes)         \
  X(pinned_bytes)         \
  X(seed)                 \
  X(workers)              \
  X(sms)                  \
  X(delay_us)             \
  X(skip_kernels)         \
  X(check_guards)         \
  X(lazy_loading)         \
  X(early_blocks)         \
  X(early_trap)

/* Counters, X(name). All grow until g4soft_counters_reset, except the live_ ones, which are levels. */
#define G4SOFT_COUNTERS(X)                                                              \
  X(calls)              /* driver calls of any kind */                                  \
  X(calls_failed)       /* calls refused at the entry: faults, no context, sticky error */ \
  X(unsupported)        /* calls of functions the device does not implement */          \
  X(launches)           /* kernels launched into a stream, outside of capture */        \
  X(graph_launches)                                                                     \
  X(kernels_run)        /* kernels executed, from launches and from graphs */           \
  X(kernels_early)      /* of these, begun before their predecessor (dependent launch) */ \
  X(nodes_run)          /* graph nodes executed */                                      \
  X(copies_h2d) X(copies_d2h) X(copies_d2d) X(copies_h2h)                               \
  X(bytes_h2d) X(bytes_d2h) X(bytes_d2d) X(bytes_h2h)                                   \
  X(pageable_h2d)       /* of the copies, those staged at the call */                   \
  X(pageable_d2h)       /* of the copies, those that blocked the caller */              \
  X(memsets)                                                                            \
  X(synchronisations)   /* host waits for context, stream or event, implied ones too */ \
  X(queries)            /* event and stream queries */                                  \
  X(event_records) X(event_waits)                                                       \
  X(host_functions)                                                                     \
  X(allocations) X(frees) X(live_allocations) X(live_bytes)                             \
  X(pinned_allocations) X(pinned_frees) X(live_pinned_bytes)                            \
  X(module_loads) X(functions_loaded)                                                   \
  X(captures) X(captures_invalidated) X(instantiations)                                 \
  X(armed_allocations)  /* of the above, those after g4soft_arm: device and pinned memory */ \
  X(armed_frees) X(armed_module_loads) X(armed_captures) X(armed_instantiations)        \
  X(faults)             /* faults on demand that have fired */                          \
  X(guard_errors)       /* broken guard zones and writes to free memory found */        \
  X(sticky_errors)

enum G4SoftCounter {
#define X(name) G4SOFT_COUNTER_##name,
  G4SOFT_COUNTERS(X)
#undef X
  G4SOFT_COUNTER_COUNT
};

/* 0, or -1: no such name. memory_bytes and pinned_bytes reserve addresses (twice their value) when the first context is
 * made; later they only move the budget. */
int g4soft_set(const char* option, uint64_t value);
int g4soft_get(const char* option, uint64_t* value);

/* -1 where there is no such counter. */
int64_t g4soft_counter(const char* name);
uint64_t g4soft_counter_at(int id); /* enum G4SoftCounter of this header */
const char* g4soft_counter_name(int id); /* null past the last */
void g4soft_counters_reset(void);

/* The n-th driver call from now (1: the next one) does nothing and returns code; n = 0 cancels. With a name only calls
 * of that function count ("cuMemAlloc_v2"). One plan for all calls, and one for a named function. */
void g4soft_fail_call(uint64_t n, int code);
void g4soft_fail_named(const char* function, uint64_t n, int code);
/* The n-th kernel executed from now fails and code sticks to its context; n = 0 cancels. */
void g4soft_fail_launch(uint64_t n, int code);
/* A stream (null: every stream) finishes what it executes and starts nothing more until released. */
void g4soft_stall(void* stream);
void g4soft_release(void);
/* End of start-up. From here allocations, frees, module loads, captures and instantiations are counted as armed_ ones;
 * with refuse they also fail, with CUDA_ERROR_NOT_PERMITTED. g4soft_disarm ends it. */
void g4soft_arm(int refuse);
void g4soft_disarm(void);

/* Number of broken guard zones in device and pinned memory, each reported on stderr; makes nothing sticky. */
int g4soft_check_guards(void);
/* Copies the last error report (kernel failure, guard zone, refused capture call); returns its length. */
size_t g4soft_last_report(char* text, size_t bytes);
/* Version of this interface, 1. That dlsym finds it tells a host that the driver is this device. */
int g4soft_version(void);

#ifdef __cplusplus
}
#endif

#endif
