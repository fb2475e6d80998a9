// cuGetProcAddress: the exported functions by the name a header gives them, without version suffix.
#include <string>

#include "exports.h"
#include "world.h"

using namespace g4soft;

G4_API CUresult cuGetProcAddress_v2(const char* symbol, void** out, int version, uint64_t flags, int* status) {
  G4_ENTER(kAnytime);
  if (!symbol || !out || (flags & ~3ull)) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  // The newest version wins, as in a driver asked for its own version.
  for (const char* suffix : {"_v4", "_v3", "_v2", ""})
    if ((*out = export_address((std::string(symbol) + suffix).c_str()))) break;
  const bool too_old = *out && version > 0 && version < 2000;
  if (too_old) *out = nullptr;
  if (status) *status = *out ? 0 : too_old ? 2 : 1;  // success, version not sufficient, not found
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
