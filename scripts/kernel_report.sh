#!/usr/bin/env bash
# What nvcc makes of every kernel: kernel_report.sh [--full] [ARCH...]      (default: 80 90a 120; --full adds 100)
#
# Prints registers, static shared memory, the threads that fit by registers, 16-byte global loads and tensor-core
# products of every kernel and architecture, and fails on a warning, a spill, a stack frame, and on a kernel that
# streams weights without 16-byte global loads or tensor-core products in its machine code. nvcc is taken from
# $CUDA_HOME/bin, else from $PATH; so is cuobjdump. Dynamic shared memory is the launcher's: csrc/README.md, where the
# bytes of every kernel and size also stand: they are compared with what kernel_bytes.py says.
set -euo pipefail
cd "$(dirname "$0")/.."
archs=()
for argument in "$@"; do
  case $argument in
    --full) archs+=(80 90a 100 120) ;;
    -*) echo "kernel_report.sh [--full] [ARCH...]" >&2; exit 2 ;;
    *) archs+=("$argument") ;;
  esac
done
[ ${#archs[@]} -gt 0 ] || archs=(80 90a 120)
python3 scripts/kernel_bytes.py --check
exec python3 scripts/kernel_report.py --jobs "${JOBS:-2}" "${archs[@]}"
