#!/usr/bin/env bash
# Whether a profiler sees the step: nvtx_check.sh, with CUDA_HOME naming a folder that has include/nvtx3/nvToolsExt.h
#
# Builds the binary with the ranges and the smallest tool (csrc/tests/nvtx_tool.c), runs bench-step under it, and holds
# the tool's counts against the number of steps: one plan, stage, launch, collect and settle each, all closed. Without
# that header there is nothing to check. Ends with "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
header=${CUDA_HOME:-}/include/nvtx3/nvToolsExt.h
[ -f "$header" ] || { echo "skipped: $header is not there"; echo "0 passed, 0 failed"; exit 0; }
out=target/nvtx
mkdir -p "$out"
cc -O1 -Wall -Wextra -shared -fPIC -I "$CUDA_HOME/include" csrc/tests/nvtx_tool.c -o "$out/tool.so"
GEMMA4_NVCC=off GEMMA4_NVTX=on cargo build --quiet --target-dir "$out"
NVTX_INJECTION64_PATH=$PWD/$out/tool.so "$out/debug/gemma4-serve" bench-step --rows 4 --context 40 --steps 50 \
  > "$out/points" 2> "$out/ranges"
cat "$out/ranges"
passed=0 failed=0
fact() { # TEXT COMMAND...
  local text=$1
  shift
  if "$@"; then passed=$((passed + 1)) text="ok   $text"; else failed=$((failed + 1)) text="FAIL $text"; fi
  echo "$text"
}
count() { sed -nE "s/^range $1 ([0-9]+)$/\1/p" "$out/ranges"; }
# 4 prompts, 20 steps of warm-up, 50 that count, and what follows; the last plan finds nothing to do.
steps=$(count launch)
fact "more than 74 steps were launched: $steps" [ "${steps:-0}" -gt 74 ]
for name in stage collect settle; do fact "as many $name as launches" [ "$(count $name)" = "$steps" ]; done
fact "a plan a step at least" [ "$(count plan)" -ge "$steps" ]
fact "every range is closed, and none is inside of another" grep -qx 'open 0 unmatched 0 deepest 1' "$out/ranges"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
