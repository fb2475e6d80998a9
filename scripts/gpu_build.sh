#!/usr/bin/env bash
# Builds everything gpu_check.sh runs on a machine with a GPU and no Rust, in one folder: gpu_build.sh [--soft]
#
# target/gpu holds the server, the gates, the kernel tests with their fat binaries, the reference data and the check
# itself; it needs glibc 2.36 (and gcc's unwinder beside it) and a driver, nothing else, which is checked. What is
# carried is target/gpu.tar.xz, below 60 MB: unpack it and run gpu/gpu_check.sh gpu. GEMMA4_GPU_ARCHS (default 90a)
# names the architectures; nvcc is looked for in $CUDA_HOME/bin and $PATH.
# --soft: the same folder for the rehearsal `gpu_check.sh --soft`, without GPU code and in the profile of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/gpu
soft=
[ "${1:-}" != --soft ] || soft=yes
gates=(golden same_bits graphs sampler shapes)
rm -rf "$out"
mkdir -p "$out/bin" "$out/tests/data"

targets=(--bin gemma4-serve)
for gate in "${gates[@]}"; do targets+=(--test "gate_$gate"); done
if [ -n "$soft" ]; then
  # What gates.sh and the tests build too, so that CI builds nothing twice.
  cargo=(cargo test --features planted-mistakes)
  export GEMMA4_NVCC=off
else
  # The gates in the profile of the server: GPU code is compiled once. LTO buys the device nothing.
  cargo=(cargo test --release --config profile.release.lto=false)
  export GEMMA4_NVCC=on GEMMA4_GPU_ARCHS="${GEMMA4_GPU_ARCHS:-90a}"
  export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target/gpu-build}"
fi
"${cargo[@]}" --quiet --locked --no-run "${targets[@]}" --message-format=json-render-diagnostics > "$out/build.json"
python3 - "$out/build.json" <<'PY' | while read -r name program; do cp "$program" "$out/bin/$name"; done
import json, sys
for line in open(sys.argv[1]):
    built = json.loads(line)
    if built["reason"] != "compiler-artifact" or not built.get("executable"):
        continue
    target, is_test = built["target"], built["profile"]["test"]
    # The server itself, not its unit tests; the gates are test targets.
    if is_test == target["name"].startswith("gate_"):
        print(target["name"], built["executable"])
PY
rm "$out/build.json"
[ -x "$out/bin/gemma4-serve" ] || {
  "${cargo[@]/test/build}" --quiet --locked --bin gemma4-serve
  cp "${CARGO_TARGET_DIR:-target}/$([ -n "$soft" ] && echo debug || echo release)/gemma4-serve" "$out/bin/"
}
strip "$out"/bin/*

mkdir "$out/kernels"
make=(make -s -f scripts/kernel_tests.mk OUT=target/kernel-tests "FLAGS=-O2 -Werror" -j "${JOBS:-2}")
if [ -n "$soft" ]; then
  "${make[@]}" driver
  for program in $(find target/kernel-tests/driver -maxdepth 1 -type f -executable); do
    cp "$program" "$out/kernels/${program##*/}_test"
  done
  cp target/kernel-tests/driver-bench/kernel_bench "$out/kernels/"
else
  # shellcheck disable=SC2046
  cp $("${make[@]}" "ARCH=$GEMMA4_GPU_ARCHS" gpu_files) "$out/kernels/"
fi

cp -r tests/data/reference "$out/tests/data/"
# What the figures will be of; "with changes" where the tree is not what the commit says.
echo "$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ' with changes')" > "$out/COMMIT"
cp scripts/gpu_check.sh scripts/serve_check.py scripts/bench_torch.py scripts/bench_sampler_torch.py "$out/"
du -sh "$out"/* | sed 's/^/  /'
echo "$out: $(($(du -sb "$out" | cut -f 1) / 1000000)) MB"
# Nothing is carried to a rehearsal.
[ -z "$soft" ] || exit 0
for program in "$out"/bin/* "$out"/kernels/*_test "$out"/kernels/kernel_bench; do
  foreign=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxE 'ld-linux-x86-64\.so\.2|lib(c|m)\.so\.6|libgcc_s\.so\.1' || true)
  newest=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  [ -z "$foreign" ] || { echo "$program needs $foreign" >&2; exit 1; }
  [ "$(printf '%s\nGLIBC_2.36\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.36 ] ||
    { echo "$program needs $newest, and the machine may have 2.36" >&2; exit 1; }
done
# The programs hold the same kernel images and the same crates: a window over all of them packs those once.
tar -C target -c gpu | xz -T 2 --lzma2=preset=6,dict=128MiB > "$out.tar.xz"
bytes=$(stat -c %s "$out.tar.xz")
echo "$out.tar.xz: $((bytes / 1000000)) MB of at most 60"
[ "$bytes" -lt 60000000 ]
