// Options of the device: atomics that any thread reads, set from the environment once and by g4soft_set.
#ifndef G4_SOFT_OPTIONS_H
#define G4_SOFT_OPTIONS_H

#include <atomic>
#include <cstdint>

#include "control.h"

namespace g4soft {

struct Options {
#define X(name) std::atomic<uint64_t> name{0};
  G4SOFT_OPTIONS(X)
#undef X
  Options();  // defaults, then GEMMA4_SOFT_*
};
Options& options();

// splitmix64: every random choice of the device is a hash of the seed and of what is chosen.
inline uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace g4soft

#endif
