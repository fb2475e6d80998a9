#include "module.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "capture.h"
#include "context.h"
#include "counters.h"
#include "faults.h"

using namespace g4soft;

namespace g4soft {
namespace {

CUresult load(CUmodule* out, const void* image_bytes) {
  if (!out || !image_bytes) return CUDA_ERROR_INVALID_VALUE;
  G4_TRY(armed(Startup::kModuleLoad, "cuModuleLoadData"));
  // Kernels for a GPU are recognised and refused as a driver refuses those of another architecture.
  uint32_t word;
  std::memcpy(&word, image_bytes, 4);
  if (word == 0xba55ed50u || word == 0x464c457fu) return CUDA_ERROR_NO_BINARY_FOR_GPU;  // fat binary, ELF
  uint64_t magic;
  std::memcpy(&magic, image_bytes, 8);
  if (magic != G4_SOFT_IMAGE_MAGIC) return CUDA_ERROR_INVALID_IMAGE;
  const auto* image = static_cast<const G4SoftImage*>(image_bytes);
  if (image->version != 1 || (!image->kernels && image->kernel_count)) return CUDA_ERROR_INVALID_IMAGE;
  auto m = std::make_shared<Module>();
  m->ctx = current();
  m->image = image;
  Lock lock(world().mutex);
  G4_COUNT(module_loads);
  world().modules.add(m);
  *out = reinterpret_cast<CUmodule>(m.get());
  return CUDA_SUCCESS;
}

// Loading at first use is something a capture may not meet.
CUresult load_function(Function& f, const char* function) {
  if (f.loaded) return CUDA_SUCCESS;
  {
    Lock lock(world().mutex);
    if (options().lazy_loading) G4_TRY(check_unsafe(lock, function));
  }
  if (!f.loaded.exchange(true)) G4_COUNT(functions_loaded);
  return CUDA_SUCCESS;
}

CUresult find_function(CUfunction handle, std::shared_ptr<Function>* out) {
  Lock lock(world().mutex);
  *out = world().functions.find(handle);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Blocks of this size that one multiprocessor holds: threads, blocks and shared memory; registers are not modelled.
int blocks_a_multiprocessor(const Function& f, int threads, size_t shared) {
  if (threads <= 0 || (uint32_t)threads > f.kernel->threads_max || shared > f.shared_max) return 0;
  const int warps = (threads + 31) / 32;
  const int by_threads = 64 / warps;
  const int by_shared = (int)((kSharedOptIn + 1024) / (shared + 1024));
  return std::min({32, by_threads, by_shared});
}

}  // namespace
}  // namespace g4soft

G4_API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  G4_ENTER(kUnsafe);
  return load(out, image);
}

G4_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, void*, void*) {
  G4_ENTER(kUnsafe);
  return load(out, image);
}

G4_API CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  G4_ENTER(kUnsafe);
  return load(out, image);
}

// An image holds addresses of this process: it cannot come from a file.
G4_API CUresult cuModuleLoad(CUmodule* out, const char* path) {
  G4_ENTER(kUnsafe);
  if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(path, "rb");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::fclose(file);
  return CUDA_ERROR_INVALID_IMAGE;
}

G4_API CUresult cuModuleUnload(CUmodule handle) {
  G4_ENTER(kUnsafe);
  Lock lock(world().mutex);
  const auto m = world().modules.find(handle);
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& entry : m->functions) {
    entry.second->unloaded = true;
    world().functions.remove(entry.second.get());
  }
  world().modules.remove(handle);
  return CUDA_SUCCESS;
}

G4_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  G4_ENTER(kCurrent);
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  const auto m = world().modules.find(handle);
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  auto& f = m->functions[name];
  if (!f) {
    const G4SoftKernel* kernel = nullptr;
    for (uint32_t i = 0; i < m->image->kernel_count; i++)
      if (!std::strcmp(m->image->kernels[i].name, name)) kernel = &m->image->kernels[i];
    if (!kernel) {
      m->functions.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    f = std::make_shared<Function>();
    f->kernel = kernel;
    f->module = handle;
    world().functions.add(f);
  }
  *out = reinterpret_cast<CUfunction>(f.get());
  return CUDA_SUCCESS;
}

G4_API CUresult cuModuleGetFunctionCount(unsigned* out, CUmodule handle) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  const auto m = world().modules.find(handle);
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  *out = m->image->kernel_count;
  return CUDA_SUCCESS;
}

G4_API CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule handle, const char* name) {
  G4_ENTER(kCurrent);
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world().mutex);
  return world().modules.find(handle) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;  // images have no globals
}

G4_API CUresult cuModuleGetLoadingMode(int* out) {
  G4_ENTER(kAnytime);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = options().lazy_loading ? 2 : 1;
  return CUDA_SUCCESS;
}

// ---- Functions -----------------------------------------------------------------------------------------------------

G4_API CUresult cuFuncLoad(CUfunction handle) {
  G4_ENTER(kCurrent);
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  return load_function(*f, "cuFuncLoad");
}

G4_API CUresult cuFuncIsLoaded(int* out, CUfunction handle) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  *out = f->loaded;
  return CUDA_SUCCESS;
}

G4_API CUresult cuFuncGetModule(CUmodule* out, CUfunction handle) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  *out = f->module;
  return CUDA_SUCCESS;
}

G4_API CUresult cuFuncGetName(const char** out, CUfunction handle) {
  G4_ENTER(kCurrent);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  *out = f->kernel->name;
  return CUDA_SUCCESS;
}

G4_API CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
  G4_ENTER(kCurrent);
  if (!offset) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  if (index != 0 || !f->kernel->param_bytes) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  if (bytes) *bytes = f->kernel->param_bytes;
  return CUDA_SUCCESS;
}

G4_API CUresult cuFuncGetAttribute(int* out, int attribute, CUfunction handle) {
  G4_ENTER(kCurrent);
  if (!out || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  G4_TRY(load_function(*f, "cuFuncGetAttribute"));
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = (int)f->kernel->threads_max; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *out = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *out = (int)f->shared_max; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *out = -1; break;
    default: *out = 0;
  }
  return CUDA_SUCCESS;
}

G4_API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  G4_ENTER(kCurrent);
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  G4_TRY(load_function(*f, "cuFuncSetAttribute"));
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || (uint32_t)value > kSharedOptIn) return CUDA_ERROR_INVALID_VALUE;
      f->shared_max = (uint32_t)value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

G4_API CUresult cuFuncSetCacheConfig(CUfunction handle, int config) {
  G4_ENTER(kCurrent);
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// ---- Occupancy -----------------------------------------------------------------------------------------------------

static CUresult occupancy(int* out, CUfunction handle, int threads, size_t shared) {
  if (!out || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  *out = blocks_a_multiprocessor(*f, threads, shared);
  return CUDA_SUCCESS;
}

G4_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, CUfunction handle, int threads, size_t shared) {
  G4_ENTER(kCurrent);
  return occupancy(out, handle, threads, shared);
}

G4_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, CUfunction handle, int threads,
                                                                     size_t shared, unsigned flags) {
  G4_ENTER(kCurrent);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  return occupancy(out, handle, threads, shared);
}

static CUresult best_block(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of, size_t shared,
                           int limit) {
  if (!grid || !block) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  const int max = limit > 0 ? std::min(limit, (int)f->kernel->threads_max) : (int)f->kernel->threads_max;
  int best = 0;
  for (int threads = max; threads > 0; threads = threads % 32 ? threads / 32 * 32 : threads - 32) {
    const int blocks = blocks_a_multiprocessor(*f, threads, shared_of ? shared_of(threads) : shared);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *grid = blocks * (int)options().sms;
  }
  return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

G4_API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of,
                                                 size_t shared, int limit) {
  G4_ENTER(kCurrent);
  return best_block(grid, block, handle, shared_of, shared, limit);
}

G4_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                          CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                          unsigned flags) {
  G4_ENTER(kCurrent);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  return best_block(grid, block, handle, shared_of, shared, limit);
}

G4_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* out, CUfunction handle, int blocks, int threads) {
  G4_ENTER(kCurrent);
  if (!out || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> f;
  G4_TRY(find_function(handle, &f));
  const uint32_t whole = (kSharedOptIn + 1024) / (uint32_t)blocks;
  *out = std::min<size_t>(f->shared_max, whole > 1024 ? whole - 1024 : 0);
  return CUDA_SUCCESS;
}
