#!/usr/bin/env bash
# What decides whether a change lands: gates.sh [--full] [--no-skips] [NAME...]
#
# Builds once, runs each gate in a process of its own, and prints a line for each and a table last. Gates are every file
# of gates/, the C++ tests (kernels), the same under sanitizers (sanitizers), the bindings of gemma4_kernels.h
# (bindings), and the instructions of a decode step under valgrind (step_cost).
# --full runs each gate's whole matrix, curl and the openai client against the server (clients), and cudarc's own driver
# tests (conformance), and writes gates/results/full.md. --no-skips: a gate that could not run here is a failure
# (clients runs too). NAME keeps the gates so named: "gates.sh golden tidy".
# A gate that executes no test, ends without its closing line or overruns its time is a failure. Logs: target/gates/.
set -euo pipefail
cd "$(dirname "$0")/.."
full= no_skips= names=()
for argument in "$@"; do
  case $argument in
    --full) full=--full ;;
    --no-skips) no_skips=yes ;;
    -*) echo "gates.sh [--full] [--no-skips] [NAME...]" >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done
limit_s=$([ -n "$full" ] && echo 14400 || echo 900)
logs=target/gates
mkdir -p "$logs"

# tidy first: it takes a second, and what it finds is not worth waiting for.
gates=(tidy)
for file in gates/*.rs; do
  name=${file##*/}
  name=${name%.rs}
  [ "$name" = tidy ] || gates+=("$name")
done
gates+=(bindings kernels sanitizers step_cost)
# What a client sees needs the network once, for the openai package.
[ -z "$full$no_skips" ] || gates+=(clients)
[ -z "$full" ] || gates+=(conformance)

wanted() {
  [ ${#names[@]} -eq 0 ] && return 0
  local name
  for name in "${names[@]}"; do [ "$name" = "$1" ] && return 0; done
  return 1
}
for name in ${names[@]+"${names[@]}"}; do
  [[ " ${gates[*]} " == *" $name "* ]] || { echo "no gate is named $name: ${gates[*]}" >&2; exit 2; }
done

# One build for all. Kernel images with planted mistakes exist under this feature alone; the shipped binary has none.
declare -A program=()
targets=()
for name in "${gates[@]}"; do
  wanted "$name" || continue
  case $name in
    kernels | sanitizers | conformance | clients | step_cost) ;;
    bindings) targets+=(--test bindings) ;;
    *) targets+=(--test "gate_$name") ;;
  esac
done
if [ ${#targets[@]} -gt 0 ]; then
  start=$SECONDS
  cargo test --quiet --no-run --features planted-mistakes "${targets[@]}" --message-format=json-render-diagnostics \
    > "$logs/build.json" || { echo "the gates do not build"; echo "0 passed, 1 failed"; exit 1; }
  while read -r target executable; do program[${target#gate_}]=$executable; done < <(python3 -c '
import json, sys
for line in sys.stdin:
    built = json.loads(line)
    if built["reason"] == "compiler-artifact" and built.get("executable") and "test" in built["target"]["kind"]:
        print(built["target"]["name"], built["executable"])' < "$logs/build.json")
  echo "built in $((SECONDS - start)) s"
fi

command_of() { # NAME; sets run
  case $1 in
    kernels) run=(scripts/kernel_tests.sh $full) ;;
    sanitizers) run=(scripts/sanitize.sh $full) ;;
    conformance) run=(scripts/soft_conformance.sh) ;;
    step_cost)
      # Without GPU kernels and profiler ranges, so that the count is the same whatever toolkit is here.
      GEMMA4_NVCC=off cargo build --quiet --features planted-mistakes
      run=(scripts/bench_step.py check bench/results/2026-11-29-cpu2/step_cost.json target/debug/gemma4-serve)
      ;;
    clients)
      cargo build --quiet --features planted-mistakes
      run=(scripts/client_check.sh target/debug/gemma4-serve)
      ;;
    bindings) run=("${program[bindings]}" --nocapture) ;;
    *) run=("${program[$1]}" $full) ;;
  esac
}

rows=()
passed_gates=0 failed_gates=0
for name in "${gates[@]}"; do
  wanted "$name" || continue
  log="$logs/$name.log" start=$SECONDS status=0
  command_of "$name"
  timeout "$limit_s" "${run[@]}" > "$log" 2>&1 || status=$?
  # "N passed, N failed", or cargo's "N passed; N failed".
  closing=$(grep -E '(^|[^0-9])[0-9]+ passed[,;] [0-9]+ failed' "$log" | tail -n 1 || true)
  passed=$(sed -nE 's/.*(^|[^0-9])([0-9]+) passed[,;].*/\2/p' <<< "$closing")
  failed=$(sed -nE 's/.* ([0-9]+) failed.*/\1/p' <<< "$closing")
  verdict=pass
  if [ "$status" -eq 124 ]; then
    verdict=FAIL closing="still running after $limit_s s"
  elif [ -z "$closing" ]; then
    verdict=FAIL closing="exit $status without a closing line"
  elif [ "$status" -ne 0 ] || [ "$failed" -ne 0 ]; then
    verdict=FAIL
  elif grep -q '^skipped:' "$log"; then
    closing=$(grep -m 1 '^skipped:' "$log")
    verdict=$([ -n "$no_skips" ] && echo FAIL || echo skip)
  elif [ "$passed" -eq 0 ]; then
    verdict=FAIL closing="no test was executed"
  fi
  row=$(printf '%-12s %-4s %5d s  %s' "$name" "$verdict" $((SECONDS - start)) "$closing")
  echo "$row"
  rows+=("$row")
  if [ "$verdict" = FAIL ]; then
    failed_gates=$((failed_gates + 1))
    {
      grep -E -A 4 '^(FAIL|error|thread .* panicked)' "$log" | head -n 60 || true
      echo "..."
      tail -n 15 "$log"
    } | sed 's/^/    | /'
  elif [ "$verdict" = pass ]; then
    passed_gates=$((passed_gates + 1))
  fi
done

echo
echo "gate         verdict seconds closing line"
printf '%s\n' "${rows[@]}"
if [ -n "$full" ] && [ ${#names[@]} -eq 0 ]; then
  mkdir -p gates/results
  {
    echo "# The last full run of the gates"
    echo
    echo "\`scripts/gates.sh --full\`, $(date -u +%F), on the software device."
    echo
    echo "| gate | verdict | closing line |"
    echo "|---|---|---|"
    printf '%s\n' "${rows[@]}" | sed -E 's/^([^ ]+) +([^ ]+) +[0-9]+ s  (.*)$/| \1 | \2 | \3 |/'
  } > gates/results/full.md
fi
echo "gates: $passed_gates passed, $failed_gates failed"
[ "$failed_gates" -eq 0 ] && [ "$passed_gates" -gt 0 ]
