// Faults on demand, and the texts of errors met.
#ifndef G4_SOFT_FAULTS_H
#define G4_SOFT_FAULTS_H

#include <cstdint>

#include "cuda_types.h"

namespace g4soft {

// One line on stderr, kept for g4soft_last_report.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The fault planned for this call, or CUDA_SUCCESS.
CUresult planned_call_fault(const char* function);
// The fault planned for this kernel execution, or CUDA_SUCCESS.
CUresult planned_launch_fault();
// A call was refused at its entry. After an ARMED_ plan of the environment each later call is reported on stderr.
void entry_failed();

// After g4soft_arm: counts what should no longer happen, and says whether to refuse it.
enum class Startup { kAllocation, kFree, kModuleLoad, kCapture, kInstantiation };
CUresult armed(Startup what, const char* function);

// Whether streams may start work; the engine asks under its lock.
bool stalled(const void* stream);

}  // namespace g4soft

#endif
