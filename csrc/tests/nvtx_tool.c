// The smallest NVTX tool: counts ranges by name and checks that they nest, printed on stderr at exit.
// NVTX loads it by NVTX_INJECTION64_PATH; scripts/nvtx_check.sh builds it and holds its count against the steps.
#include <nvtx3/nvToolsExt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 16 };
static struct {
  const char* name;
  long count;
} ranges[NAMES_MAX];
static int depth, depth_max, unmatched;

static int push(const char* name) {
  for (int i = 0; i < NAMES_MAX; i++) {
    if (!ranges[i].name) ranges[i].name = strdup(name);
    if (strcmp(ranges[i].name, name)) continue;
    ranges[i].count++;
    break;
  }
  depth++;
  if (depth > depth_max) depth_max = depth;
  return depth - 1;
}

static int pop(void) {
  if (depth == 0) unmatched++;
  else depth--;
  return depth;
}

static void report(void) {
  for (int i = 0; i < NAMES_MAX && ranges[i].name; i++)
    fprintf(stderr, "range %s %ld\n", ranges[i].name, ranges[i].count);
  fprintf(stderr, "open %d unmatched %d deepest %d\n", depth, unmatched, depth_max);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  uint32_t size = 0;
  NvtxExportTableCallbacks* callbacks = (NvtxExportTableCallbacks*)table_of(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  atexit(report);
  return 1;
}
