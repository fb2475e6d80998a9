#!/usr/bin/env bash
# What nvcc makes of every kernel: kernel_report.sh [ARCH...]      (default: the four that ship, 80 90a 100 120)
#
# Prints registers, shared memory, the threads that are resident with them, global loads of 16 bytes and of fewer and
# tensor-core products of every kernel and architecture, and fails on a warning, a spill, a stack frame, a block that
# does not fit, and on a kernel that streams weights without tensor-core products or with a load below 16 bytes that is
# not of the few it is known to need for something else (NARROW_LOADS). nvcc is taken from $CUDA_HOME/bin, else from
# $PATH; so is cuobjdump. Dynamic shared memory is what the launchers of src/ ask for: rustc says it. The bytes of every
# kernel and size, in csrc/README.md, are compared with what kernel_bytes.py says.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 80 90a 100 120
python3 scripts/kernel_bytes.py --check
exec python3 scripts/kernel_report.py --jobs "${JOBS:-2}" "$@"
