// Named ranges for profilers: two calls of the header-only NVTX v3, which Rust has no header for.
//
// Compiled where the toolkit's nvtx3/nvToolsExt.h is found (build.rs), left out elsewhere. Without a tool attached a
// call is a test of a pointer: NVTX looks for a tool once, by NVTX_INJECTION64_PATH, which nsys sets.
// Check: scripts/nvtx_check.sh
#include <nvtx3/nvToolsExt.h>

void g4_range_push(const char* name) { nvtxRangePushA(name); }
void g4_range_pop(void) { nvtxRangePop(); }
