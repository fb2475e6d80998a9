// Every name a binding may look up. Those the device implements override the weak bodies made here; the others answer
// 801 and are counted, so that a missing function is an error value and never a missing symbol.
#include "exports.h"

#include <cstring>

#include "counters.h"
#include "faults.h"
#include "world.h"

namespace g4soft {

static CUresult unsupported(const char* function) {
  G4_COUNT(calls);
  G4_COUNT(unsupported);
  report("%s is not implemented", function);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace g4soft

using namespace g4soft;

// The arguments do not matter: the caller cleans up, whatever it passed.
#define X(name) \
  extern "C" __attribute__((visibility("default"), weak)) CUresult name() { return g4soft::unsupported(#name); }
#include "exports.inc"
#undef X

namespace {

struct Export {
  const char* name;
  void* address;
};

const Export kExports[] = {
#define X(name) {#name, reinterpret_cast<void*>(&name)},
#include "exports.inc"
#undef X
};

}  // namespace

void* g4soft::export_address(const char* name) {
  for (const Export& e : kExports)
    if (!std::strcmp(e.name, name)) return e.address;
  return nullptr;
}
