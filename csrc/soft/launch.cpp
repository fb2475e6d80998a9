// Kernel launches: what a launch must satisfy, and the copy of its arguments.
#include <cstring>

#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"
#include "module.h"
#include "stream.h"
#include "work.h"

namespace g4soft {
namespace {

CUresult check(const KernelLaunch& l) {
  const G4SoftKernel& k = *l.function->kernel;
  const uint32_t grid_max[3] = {0x7fffffff, 65535, 65535}, block_max[3] = {1024, 1024, 64};
  for (int i = 0; i < 3; i++) {
    if (!l.grid[i] || l.grid[i] > grid_max[i]) return CUDA_ERROR_INVALID_VALUE;
    if (!l.block[i] || l.block[i] > block_max[i]) return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t threads = (uint64_t)l.block[0] * l.block[1] * l.block[2];
  if (threads > 1024 || threads > k.threads_max) return CUDA_ERROR_INVALID_VALUE;
  if (l.shared_bytes > l.function->shared_max) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// Attributes that change nothing here are accepted; those that would change the result are refused.
CUresult read_attributes(const CUlaunchConfig& config, KernelLaunch* l) {
  for (unsigned i = 0; i < config.numAttrs; i++) {
    const CUlaunchAttribute& a = config.attrs[i];
    switch ((int)a.id) {
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        l->dependent = a.value.programmaticStreamSerializationAllowed != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        if (a.value.cooperative) return CUDA_ERROR_NOT_SUPPORTED;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (a.value.clusterDim.x * a.value.clusterDim.y * a.value.clusterDim.z > 1) return CUDA_ERROR_NOT_SUPPORTED;
        break;
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      case 14:  // preferred shared memory carve-out
        break;
      default: return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUresult launch(const CUlaunchConfig& config, CUfunction handle, void** params, void** extra) {
  Lock lock(world().mutex);
  KernelLaunch l;
  l.function = world().functions.find(handle);
  if (!l.function) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Stream> s;
  G4_TRY(find_stream(lock, config.hStream, &s));
  l.grid[0] = config.gridDimX, l.grid[1] = config.gridDimY, l.grid[2] = config.gridDimZ;
  l.block[0] = config.blockDimX, l.block[1] = config.blockDimY, l.block[2] = config.blockDimZ;
  l.shared_bytes = config.sharedMemBytes;
  G4_TRY(check(l));
  G4_TRY(read_attributes(config, &l));
  if (extra) return CUDA_ERROR_NOT_SUPPORTED;
  if (const uint32_t bytes = l.function->kernel->param_bytes) {
    if (!params || !params[0]) return CUDA_ERROR_INVALID_VALUE;
    l.params.resize((bytes + 7) / 8);
    std::memcpy(l.params.data(), params[0], bytes);
  }
  if (s->capture) return capture_kernel(lock, *s, std::move(l));
  G4_TRY(check_legacy(lock, *s, "cuLaunchKernel"));
  if (!l.function->loaded.exchange(true)) G4_COUNT(functions_loaded);
  G4_COUNT(launches);
  const uint64_t salt = mix(s->id * 0x10001 + s->submitted + 1);
  Operation op;
  op.run = [ctx = s->ctx, l = std::move(l), salt] { execute(*ctx, l, salt); };
  submit(lock, *s, std::move(op));
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace g4soft

using namespace g4soft;

G4_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  G4_ENTER(kCurrent);
  return launch({gx, gy, gz, bx, by, bz, shared, stream, nullptr, 0}, f, params, extra);
}

G4_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  G4_ENTER(kCurrent);
  if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  return launch(*config, f, params, extra);
}
