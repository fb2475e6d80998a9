// A thread block as a set of fibres on one worker thread: the executor under every kernel of the software device.
//
// Life of a block: (1) every fibre starts at the kernel's entry; (2) a fibre runs until it arrives at a join (barrier or
// collective) or returns; (3) when all live fibres of a scope stand at the same join, its function runs once and they
// become ready; (4) the block ends when all fibres have returned. A join that not all live fibres reach, a collective
// reached by less than its whole scope, and a trap end the block with an error text that names file and line.
#ifndef G4_SOFT_FIBRE_H
#define G4_SOFT_FIBRE_H

#include <cstdint>
#include <memory>
#include <string>

#include "abi.h"

namespace g4soft {

struct BlockLaunch {
  G4SoftKernelFn fn = nullptr;
  const void* params = nullptr;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  uint64_t seed = 0;  // 0: ascending thread order; otherwise permutes fibres between joins
  void (*dependency_wait)(void*) = nullptr;  // what griddepcontrol.wait does; null: nothing
  void* dependency_arg = nullptr;
};

// Owns the stacks of one worker thread. Not thread-safe; a fibre never leaves the thread its runner lives on.
class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  // Runs one block to its end. Returns "" or what went wrong, with the place.
  std::string run(const BlockLaunch& launch, const uint32_t block_idx[3]);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace g4soft

#endif
