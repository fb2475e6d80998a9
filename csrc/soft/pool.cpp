// Memory pools: handles and attributes; all of them draw on the device's one budget.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "counters.h"
#include "world.h"

using namespace g4soft;

namespace {

struct Pool {
  uint64_t values[9] = {0, 1, 1, 1, 0, 0, 0, 0, 0};  // by CUmemPool_attribute
};

std::mutex mutex;
Pool* standard() {
  static Pool* pool = new Pool;
  return pool;
}
std::unordered_map<CUmemoryPool, std::unique_ptr<Pool>>& made() {
  static auto* all = new std::unordered_map<CUmemoryPool, std::unique_ptr<Pool>>;
  return *all;
}
CUmemoryPool in_use = nullptr;  // null: the standard one

Pool* find(CUmemoryPool handle) {
  if (handle == reinterpret_cast<CUmemoryPool>(standard())) return standard();
  auto it = made().find(handle);
  return it == made().end() ? nullptr : it->second.get();
}

}  // namespace

G4_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  *out = reinterpret_cast<CUmemoryPool>(standard());
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> lock(mutex);
  *out = in_use ? in_use : reinterpret_cast<CUmemoryPool>(standard());
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  G4_ENTER(kInitialized);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> lock(mutex);
  if (!find(pool)) return CUDA_ERROR_INVALID_VALUE;
  in_use = pool;
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemPoolCreate(CUmemoryPool* out, const void* properties) {
  G4_ENTER(kInitialized);
  if (!out || !properties) return CUDA_ERROR_INVALID_VALUE;
  auto pool = std::make_unique<Pool>();
  *out = reinterpret_cast<CUmemoryPool>(pool.get());
  std::lock_guard<std::mutex> lock(mutex);
  made()[*out] = std::move(pool);
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  G4_ENTER(kInitialized);
  std::lock_guard<std::mutex> lock(mutex);
  if (in_use == pool) in_use = nullptr;
  return made().erase(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

G4_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  G4_ENTER(kInitialized);
  std::lock_guard<std::mutex> lock(mutex);
  return find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Attributes 1 to 3 are int, the others 64-bit.
G4_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  G4_ENTER(kInitialized);
  uint64_t used;
  {
    Lock lock(world().mutex);
    used = world().live_bytes;
  }
  std::lock_guard<std::mutex> lock(mutex);
  Pool* p = find(pool);
  if (!p || !value || attribute < 1 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  if (attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) *static_cast<uint64_t*>(value) = used;
  else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) *static_cast<uint64_t*>(value) = p->values[attribute];
  else *static_cast<int*>(value) = (int)p->values[attribute];
  return CUDA_SUCCESS;
}

G4_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  G4_ENTER(kInitialized);
  std::lock_guard<std::mutex> lock(mutex);
  Pool* p = find(pool);
  if (!p || !value || attribute < 1 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  if (attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) return CUDA_SUCCESS;  // resets a high-water mark
  p->values[attribute] = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *static_cast<uint64_t*>(value)
                                                                        : (uint64_t) * static_cast<int*>(value);
  return CUDA_SUCCESS;
}
