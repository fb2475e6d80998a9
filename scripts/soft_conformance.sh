#!/usr/bin/env bash
# Runs cudarc's own driver tests against the software device: soft_conformance.sh [libcuda.so]
#
# Without an argument the device is built first. Left out: tests that need NVRTC (they compile kernels), several GPUs,
# or that assert timings (test_pinned_copy_is_faster, test_default_pinned_host_reads_are_faster_than_write_combined).
# Prints "N passed"; the exit status is 0 when every test passed and there were at least MIN of them.
set -euo pipefail

VERSION=0.19.10
MIN=25
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $# -ge 1 ]; then
  cp "$1" "$work/libcuda.so"
else
  g++ -shared -fPIC -O2 -std=c++17 -ffp-contract=off -fvisibility=hidden "$root"/csrc/soft/*.cpp -o "$work/libcuda.so" \
    -static-libstdc++ -static-libgcc -Wl,-soname,libcuda.so -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,--no-undefined \
    -Wl,--version-script="$root/csrc/soft/exports.map" -lpthread
fi

source_of() { ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/cudarc-$VERSION 2>/dev/null | head -n 1; }
crate=$(source_of)
if [ -z "$crate" ]; then
  (cd "$root" && cargo fetch --locked)
  crate=$(source_of)
fi
cp -r "$crate" "$work/cudarc"
chmod -R u+w "$work/cudarc"
rm -rf "$work/cudarc/examples"
sed -i '/^\[\[example\]\]/,/^$/d' "$work/cudarc/Cargo.toml"
printf '\n[workspace]\n' >> "$work/cudarc/Cargo.toml"

# nvrtc compiles in the managed-memory tests; those that would call it are skipped below.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target/conformance}"
export LD_LIBRARY_PATH="$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
run() {
  (cd "$work/cudarc" && cargo test --quiet --lib --no-default-features \
    --features std,driver,nvrtc,dynamic-loading,cuda-13000 -- "$@") 2>&1 | tee -a "$work/log"
}
run driver:: --skip safe::launch:: --skip test_unified_memory_ \
  --skip test_pinned_copy_is_faster --skip test_default_pinned_host_reads_are_faster_than_write_combined
run driver::safe::core::tests::test_post_alloc_memory --exact --ignored

passed=$(grep -oE '[0-9]+ passed' "$work/log" | awk '{n += $1} END {print n + 0}')
failed=$(grep -oE '[0-9]+ failed' "$work/log" | awk '{n += $1} END {print n + 0}')
echo "cudarc $VERSION driver tests on the software device: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -ge "$MIN" ]
