// Which memory a pointer stands in, and giving memory back.
#ifndef G4_SOFT_MEMORY_H
#define G4_SOFT_MEMORY_H

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "world.h"

namespace g4soft {

enum class Place { kDevice, kManaged, kPinned, kPageable };

// Where [p, p + bytes) stands; pageable is whatever the device does not know. A range that begins in device or pinned
// memory but is not wholly inside one live allocation is CUDA_ERROR_INVALID_VALUE.
CUresult place_of(uintptr_t p, size_t bytes, Place* out);
// At execution: is the range still there?
bool still_there(uintptr_t p, size_t bytes);
// The memory of a context that is torn down.
void free_owned(Lock&, const Context*);

}  // namespace g4soft

#endif
