#!/usr/bin/env bash
# Profiles the server with Nsight Systems: nsys_profile.sh OUT [SERVER ARGUMENTS...]
#
# For a machine with a GPU and nsys; the binary is target/release/gemma4-serve, built with CUDA_HOME set (then it has
# NVTX ranges around plan, stage, launch, collect and settle of every step, on the thread "engine"). The server runs
# until it is told to stop (SIGINT); send it requests meanwhile. Graphs are traced node by node, so that a decode step
# shows its kernels; that slows steps down: take times from `bench`, not from here. Writes OUT.nsys-rep and prints the
# time by range and by kernel.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { echo "nsys_profile.sh OUT [SERVER ARGUMENTS...]" >&2; exit 2; }
command -v nsys > /dev/null || { echo "nsys is not in PATH" >&2; exit 2; }
out=$1
shift
nsys profile --output "$out" --force-overwrite true --trace cuda,nvtx,osrt --cuda-graph-trace node \
  --sample none --cpuctxsw none -- target/release/gemma4-serve "$@" || true
nsys stats --report nvtx_sum,cuda_gpu_kern_sum,cuda_api_sum "$out.nsys-rep"
