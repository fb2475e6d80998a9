// What a stream or a graph can execute: a kernel, a copy, a fill, a host function. Plain values, copied at the call.
#ifndef G4_SOFT_WORK_H
#define G4_SOFT_WORK_H

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "world.h"

namespace g4soft {

struct KernelLaunch {
  std::shared_ptr<Function> function;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  bool dependent = false;        // programmatic stream serialization: may begin before its predecessor has ended
  std::vector<uint64_t> params;  // words: the struct starts aligned
};

enum class Direction { kHostToDevice, kDeviceToHost, kDeviceToDevice, kHostToHost };

struct Copy {
  uintptr_t dst = 0, src = 0;
  size_t bytes = 0;
  Direction direction = Direction::kDeviceToDevice;
  std::vector<uint8_t> staged;  // pageable source, read at the call
};

struct Fill {
  uintptr_t dst = 0;
  size_t pitch = 0, width = 0, height = 1;  // width in elements
  uint32_t value = 0;
  unsigned element_bytes = 1;
};

struct HostCall {
  CUhostFn fn = nullptr;
  void* user_data = nullptr;
};

// Held shared by whatever reads or writes device memory, alone by whoever changes its protection.
std::shared_mutex& execution();
// These run on a stream's thread, outside of the lock; what goes wrong sticks to the context. salt: who asks, for
// seeds.
void execute(Context&, const KernelLaunch&, uint64_t salt);
void execute(Context&, const Copy&);
void execute(Context&, const Fill&);
void execute(Context&, const HostCall&);
// The second is a dependent launch: some of its blocks run up to griddepcontrol.wait before the first begins (as early
// as hardware could), with device memory read-only; the rest runs when the first has ended.
void execute_pair(Context&, const KernelLaunch& first, const KernelLaunch& second, uint64_t salt);

}  // namespace g4soft

#endif
