#include "counters.h"

#include <cstring>

namespace g4soft {

std::atomic<uint64_t> counters[G4SOFT_COUNTER_COUNT];

namespace {
const char* const kNames[] = {
#define X(name) #name,
    G4SOFT_COUNTERS(X)
#undef X
};
}  // namespace

}  // namespace g4soft

using namespace g4soft;

#define G4_CONTROL extern "C" __attribute__((visibility("default")))

G4_CONTROL int64_t g4soft_counter(const char* name) {
  for (int i = 0; i < G4SOFT_COUNTER_COUNT; i++)
    if (!std::strcmp(kNames[i], name)) return (int64_t)counters[i].load(std::memory_order_relaxed);
  return -1;
}

G4_CONTROL uint64_t g4soft_counter_at(int id) {
  return id >= 0 && id < G4SOFT_COUNTER_COUNT ? counters[id].load(std::memory_order_relaxed) : 0;
}

G4_CONTROL const char* g4soft_counter_name(int id) {
  return id >= 0 && id < G4SOFT_COUNTER_COUNT ? kNames[id] : nullptr;
}

G4_CONTROL void g4soft_counters_reset(void) {
  for (int i = 0; i < G4SOFT_COUNTER_COUNT; i++)
    if (std::strncmp(kNames[i], "live_", 5)) counters[i] = 0;
}
