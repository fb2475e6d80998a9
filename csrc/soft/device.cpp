// The device itself: one of it, what it is like, and the calls that need no context.
#include <cstdio>
#include <cstring>

#include "counters.h"
#include "faults.h"
#include "module.h"
#include "world.h"

using namespace g4soft;

G4_API CUresult cuInit(unsigned flags) {
  G4_ENTER(kAnytime);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  world().initialized = true;
  return CUDA_SUCCESS;
}

G4_API CUresult cuDriverGetVersion(int* version) {
  G4_ENTER(kAnytime);
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceGetCount(int* count) {
  G4_ENTER(kInitialized);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = 1;
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  G4_ENTER(kInitialized);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!name || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, (size_t)bytes, "Software CUDA device");
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "software-device", 16);
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!text || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, (size_t)bytes, "0000:00:00.0");
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = options().memory_bytes;
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  *major = 9, *minor = 0;
  return CUDA_SUCCESS;
}

// The limits of compute capability 9.0; sizes and rates of a small part.
static int attribute(int which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return (int)kSharedDefault;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP: return 1;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return (int)options().sms;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: return 1;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 1000000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 64;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 32 << 20;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return (int)(kSharedOptIn + 1024);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: return 1;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return (int)kSharedOptIn;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    default: return 0;
  }
}

G4_API CUresult cuDeviceGetAttribute(int* out, int which, CUdevice device) {
  G4_ENTER(kInitialized);
  if (!out || which < 1 || which > CU_DEVICE_ATTRIBUTE_LAST) return CUDA_ERROR_INVALID_VALUE;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  *out = attribute(which);
  return CUDA_SUCCESS;
}

G4_API CUresult cuDeviceCanAccessPeer(int* out, CUdevice, CUdevice) {
  G4_ENTER(kInitialized);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = 0;
  return CUDA_SUCCESS;
}

G4_API CUresult cuProfilerStart(void) {
  G4_ENTER(kCurrent);
  return CUDA_SUCCESS;
}

G4_API CUresult cuProfilerStop(void) {
  G4_ENTER(kCurrent);
  return CUDA_SUCCESS;
}

static const char* describe(CUresult error, bool name) {
  switch ((int)error) {
#define X(code, value, text) \
  case value: return name ? #code : text;
#include "errors.inc"
#undef X
    default: return nullptr;
  }
}

G4_API CUresult cuGetErrorName(CUresult error, const char** out) {
  G4_COUNT(calls);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return (*out = describe(error, true)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

G4_API CUresult cuGetErrorString(CUresult error, const char** out) {
  G4_COUNT(calls);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return (*out = describe(error, false)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
