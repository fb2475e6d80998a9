// What a kernel image for the software device looks like, and what a kernel may ask of the device while it runs.
// Shared by the device (csrc/soft) and by kernels compiled for the host (csrc/common/cta.h); it knows nothing of Gemma.
#ifndef G4_SOFT_ABI_H
#define G4_SOFT_ABI_H

#include <stdint.h>

#define G4_SOFT_IMAGE_MAGIC 0x3154464f534b3447ull  // "G4KSOFT1"

enum { G4_SCOPE_WARP = 0, G4_SCOPE_BLOCK = 1 };

typedef struct G4SoftThread G4SoftThread;

// Runs once, on the last thread of the scope to arrive. args[i] is what thread i of the scope passed (ascending linear
// thread id within the warp or block); count is the number of threads of the scope.
typedef void (*G4SoftJoinFn)(void* const* args, uint32_t count);

typedef struct G4SoftOps {
  // Every thread of the scope must arrive at the same place (same file and line), or the device reports the divergence
  // with the places and fails the launch. fn may be null: a bare barrier.
  void (*join)(G4SoftThread* self, int scope, void* arg, G4SoftJoinFn fn, const char* file, int line);
  // Fails the launch as an illegal access would (sticky error); does not return.
  void (*trap)(G4SoftThread* self, const char* what, const char* file, int line);
  // griddepcontrol.wait and griddepcontrol.launch_dependents.
  void (*dependency_wait)(G4SoftThread* self);
  void (*dependency_launch)(G4SoftThread* self);
  // Ends the whole block; does not return. For kernels that are one thread's work whatever the block (csrc/tracer): the
  // threads that have not begun yet never do, and none may wait in a join.
  void (*end_block)(G4SoftThread* self);
} G4SoftOps;

struct G4SoftThread {
  const G4SoftOps* ops;
  void* shared;           // dynamic shared memory of the block, 128-byte aligned, poisoned at block start
  uint32_t shared_bytes;
  uint32_t tid;           // linear thread id in the block
  uint32_t thread_idx[3];
  uint32_t block_idx[3];
  uint32_t block_dim[3];
  uint32_t grid_dim[3];
};

typedef void (*G4SoftKernelFn)(G4SoftThread* self, const void* params);

typedef struct G4SoftKernel {
  const char* name;
  G4SoftKernelFn fn;
  uint32_t param_bytes;   // size of the single by-value parameter
  uint32_t threads_max;   // launch bound
} G4SoftKernel;

// The bytes given to cuModuleLoadData. The image must outlive the module.
typedef struct G4SoftImage {
  uint64_t magic;
  uint32_t version;       // 1
  uint32_t kernel_count;
  const G4SoftKernel* kernels;
} G4SoftImage;

#endif
