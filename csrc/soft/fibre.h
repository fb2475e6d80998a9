// A thread block as a set of fibres on one worker thread: the executor under every kernel of the software device.
//
// Life of a block: (1) every fibre starts at the kernel's entry; (2) a fibre runs until it arrives at a join (barrier
// or collective) or returns; (3) when all live fibres of a scope stand at the same join, its function runs once and
// they become ready; (4) the block ends when all fibres have returned. A join that not all live fibres reach, a
// collective reached by less than its whole scope, and a trap end the block with an error text that names file and
// line. So does an access to memory that is not there, once catch_faults() has run (x86-64): the text then names the
// address.
//
// A dependent launch is run in two parts: begin() up to griddepcontrol.wait, finish() from there.
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
  // Runs a block until each of its threads has returned or stands before griddepcontrol.wait or a join with such
  // threads. launch must outlive finish(), which runs the rest on the same OS thread. An error ends the block: no
  // finish() then.
  std::string begin(const BlockLaunch& launch, const uint32_t block_idx[3]);
  std::string finish();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// Turns faults of memory access inside fibres into errors of their block; others go to the handler installed before.
// Call once a thread before it runs blocks.
void catch_faults();

}  // namespace g4soft

#endif
