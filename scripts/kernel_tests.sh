#!/usr/bin/env bash
# Builds and runs the C++ tests of the kernels and of the software device: kernel_tests.sh [--full] [NAME...]
#
# Default: every csrc/tests/*_test.cpp on the bare fibre executor, and the driver rules (csrc/tests/driver_*.cpp).
# --full adds the same kernel tests through the driver API, and those of GPU code that the host build replaces (about
# two minutes more). NAME keeps the programs whose path contains it: "kernel_tests.sh gemm". Objects stay in
# target/kernel-tests. The closing line is the sum, "N passed, N failed"; a program that runs nothing or dies is a
# failure.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/kernel-tests
targets=(bare device)
names=()
for argument in "$@"; do
  case $argument in
    --full) targets+=(bodies driver) ;;
    -*) echo "kernel_tests.sh [--full] [NAME...]" >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done

make -s -f scripts/kernel_tests.mk "OUT=$out" "FLAGS=-O2 -Werror" -j "${JOBS:-2}" "${targets[@]}" 2> "$out.log" || {
  cat "$out.log"
  echo "0 passed, 1 failed: the tests do not build"
  exit 1
}
source scripts/programs.sh
for target in "${targets[@]}"; do
  for program in $(programs "$out" "$target"); do
    wanted "$program" ${names[@]+"${names[@]}"} || continue
    # One published size of five here and by the GPU bodies; --full runs all of them through the driver API.
    filter=
    [[ $program != */widths || $program = driver/* ]] || filter=e2b
    run_program "$out" "$program" "$filter"
  done
done
close_programs
