// What the device counts. Relaxed atomics: a counter is exact once the work it counts has been waited for.
#ifndef G4_SOFT_COUNTERS_H
#define G4_SOFT_COUNTERS_H

#include <atomic>
#include <cstdint>

#include "control.h"

namespace g4soft {

extern std::atomic<uint64_t> counters[G4SOFT_COUNTER_COUNT];

inline void count(G4SoftCounter c, uint64_t n = 1) { counters[c].fetch_add(n, std::memory_order_relaxed); }
inline void uncount(G4SoftCounter c, uint64_t n = 1) { counters[c].fetch_sub(n, std::memory_order_relaxed); }

}  // namespace g4soft

#define G4_COUNT(name, ...) ::g4soft::count(G4SOFT_COUNTER_##name, ##__VA_ARGS__)
#define G4_UNCOUNT(name, ...) ::g4soft::uncount(G4SOFT_COUNTER_##name, ##__VA_ARGS__)

#endif
