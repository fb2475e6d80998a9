#!/usr/bin/env bash
# Runs the kernel tests on this machine's GPU: run_tests.sh [NAME...], in the folder that the target gpu of
# kernel_tests.mk made (OUT/gpu; there this script is run_tests.sh).
#
# The programs run side by side: their time is that of references on the host. Each one's output is printed with its
# closing line last; the last line counts programs that failed. A test whose kernel stands in no fat binary fails here.
set -uo pipefail
cd "$(dirname "$0")"
fatbins=$(printf ':%s' *.fatbin)
export G4_TEST_FATBINS=${fatbins:1}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
programs=()
for program in *_test; do
  wanted=$#
  for name in "$@"; do [[ $program == *$name* ]] && wanted=0; done
  [ "$wanted" -eq 0 ] && programs+=("$program")
done
for program in "${programs[@]}"; do
  { timeout "${TEST_TIMEOUT_S:-90}" "./$program" > "$logs/$program" 2>&1; echo $? > "$logs/$program.status"; } &
done
wait
failed=()
for program in "${programs[@]}"; do
  echo "== $program"
  tail -n 60 "$logs/$program"
  status=$(cat "$logs/$program.status")
  if [ "$status" -ne 0 ] || grep -q 'is in none of the fat binaries' "$logs/$program"; then
    failed+=("$program (exit $status)")
  fi
done
echo "programs that failed: ${#failed[@]} of ${#programs[@]} ${failed[*]-}"
[ ${#failed[@]} -eq 0 ] && [ ${#programs[@]} -gt 0 ]
