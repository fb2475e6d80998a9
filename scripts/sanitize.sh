#!/usr/bin/env bash
# Kernels and software device under the address and undefined-behaviour sanitizers: sanitize.sh [--full] [NAME...]
#
# The programs of kernel_tests.sh with -fsanitize=address,undefined and no recovery: the first report ends the program,
# and that is a failure. Default: the driver rules, the row, step and KV kernels whole, and of the products and of
# attention the tests named in SUBSET (under two minutes on two idle cores, build included). --full: everything, through
# the driver API too, and the GPU bodies, of whose products the tests named in FULL_SUBSET. A planted store past the end
# of a buffer must be caught, or the script fails.
#
# Leaks are not looked for: the device keeps its world until the process ends, as a driver does.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/sanitize
targets=(bare device)
full=
names=()
for argument in "$@"; do
  case $argument in
    --full) full=yes targets+=(bodies driver) ;;
    -*) echo "sanitize.sh [--full] [NAME...]" >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done
# Tests of the two slow programs that the default runs, by a part of their names.
declare -A SUBSET=(
  [bare/gemm]="zero_operand permuting nan_and_infinity signed_zeros order_of_threads grids_cover breaks_a_promise"
  [bare/attention]="padding_rows not_granted ring_that_wrapped prompt_gives_the_bits"
)
# The GPU bodies of the products, on fibres under two sanitizers, take over ten minutes for all sizes, so --full leaves
# out the matrix of 60 shapes and 22 token counts, and the published widths (widths_test) everywhere. No path is left
# out with them: every instance (t1 to t16, as layer and as logits, and the tiled one) meets every slab count and
# partial tiles of rows, of depth and of tokens in every_instance_that, every count of stages in number_of_stages,
# blocks that walk several groups of rows in order_of_threads, the cap in soft_capped. kernel_tests.sh --full runs both
# without sanitizers, and bare/gemm and driver/gemm run the matrix here by the host's body.
declare -A FULL_SUBSET=(
  [bodies/gemm]="slab_counts every_instance_that number_of_stages neighbours nan_and_infinity signed_zeros zero_operand
    permuting order_of_threads soft_capped grids_cover geometry breaks_a_promise"
)

flags="-O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
make -s -f scripts/kernel_tests.mk "OUT=$out" "FLAGS=$flags" -j "${JOBS:-2}" "${targets[@]}" "$out/planted" \
  2> "$out.log" || {
  cat "$out.log"
  echo "0 passed, 1 failed: the tests do not build"
  exit 1
}
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
source scripts/programs.sh

# The planted store is caught, where it stands; its twin that keeps inside is not: the catch is no accident.
caught=0
"$out/planted" inside > "$out/planted.log" 2>&1 || caught=twin
if [ "$caught" = 0 ] && ! "$out/planted" > "$out/planted.log" 2>&1 \
  && grep -q 'heap-buffer-overflow.*planted_overrun.cpp:15 ' "$out/planted.log"; then
  total_passed=$((total_passed + 1))
  echo "ok   the planted store past the end is caught"
else
  total_failed=$((total_failed + 1))
  echo "FAIL the planted store past the end is not caught, or the twin that keeps inside is"
  tail -n 20 "$out/planted.log"
fi

for target in "${targets[@]}"; do
  for program in $(programs "$out" "$target"); do
    wanted "$program" ${names[@]+"${names[@]}"} || continue
    # The paths of gemm at sizes that take minutes here.
    [[ $program != */widths ]] || continue
    filters=${SUBSET[$program]:-}
    [ -z "$full" ] || filters=${FULL_SUBSET[$program]:-}
    [ -n "$filters" ] || run_program "$out" "$program"
    for filter in $filters; do run_program "$out" "$program" "$filter"; done
  done
done
close_programs
