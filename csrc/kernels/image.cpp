// The kernels compiled for the host as one image for the software device: the name table of gemma4_kernels.h with
// functions.
#include "../gemma4_kernels.h"
#include "../soft/abi.h"

#define G4_DECLARE(name, Params, threads) extern "C" void name(G4SoftThread*, const void*);
G4_KERNEL_TABLE(G4_DECLARE)
#undef G4_DECLARE

static const G4SoftKernel kKernels[] = {
#define G4_ENTRY(name, Params, threads) {#name, &name, sizeof(Params), threads},
    G4_KERNEL_TABLE(G4_ENTRY)
#undef G4_ENTRY
};

extern "C" __attribute__((visibility("default"))) const G4SoftImage g4_kernel_image = {
    G4_SOFT_IMAGE_MAGIC, 1, sizeof(kKernels) / sizeof(kKernels[0]), kKernels};
