#!/usr/bin/env bash
# What decides whether a change lands: gates.sh [--full] [--no-skips] [--jobs N] [NAME...]
#
# Builds once, runs each gate in a process of its own, and prints a line for each and a table last. Gates are every file
# of gates/, the C++ tests (kernels), the same under sanitizers (sanitizers), the bindings of gemma4_kernels.h
# (bindings), and the instructions of a decode step under valgrind (step_cost).
# --full runs each gate's whole matrix, curl and the openai client against the server (clients), and cudarc's own driver
# tests (conformance), and writes the rows of gates/results/full.md. --no-skips: a gate that could not run here is a
# failure (clients runs too). --jobs N: up to N gates at a time (default 1), the long ones first. NAME keeps the gates
# so named: "gates.sh golden tidy".
# A gate that executes no test, ends without its closing line or overruns its time is a failure. Logs: target/gates/.
set -euo pipefail
cd "$(dirname "$0")/.."
full= no_skips= names=() jobs=1
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=--full ;;
    --no-skips) no_skips=yes ;;
    --jobs) jobs=${2:-} && shift ;;
    -*) jobs= ;;
    *) names+=("$1") ;;
  esac
  [[ $jobs =~ ^[1-9][0-9]?$ ]] || { echo "gates.sh [--full] [--no-skips] [--jobs N] [NAME...]" >&2; exit 2; }
  shift
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
      # Without GPU kernels and profiler ranges, so that the count is the same whatever toolkit is here. As one unit:
      # where the compiler cuts a crate depends on all of it, and where it cuts it does not inline, so a change
      # elsewhere cost a step 68 instructions of 1,691.
      CARGO_INCREMENTAL=0 GEMMA4_NVCC=off cargo build --quiet --features planted-mistakes \
        --config 'profile.dev.package.gemma4-serve.codegen-units=1'
      run=(scripts/bench_step.py check bench/results/2026-11-30-cpu2/step_cost.json target/debug/gemma4-serve)
      ;;
    clients)
      cargo build --quiet --features planted-mistakes
      run=(scripts/client_check.sh target/debug/gemma4-serve)
      ;;
    bindings) run=("${program[bindings]}" --nocapture) ;;
    *) run=("${program[$1]}" $full) ;;
  esac
}

# Runs one gate: its line and what it has to say go to stdout, its row and verdict to LOGS/NAME.row.
run_gate() { # NAME
  local name=$1 log="$logs/$1.log" start=$SECONDS status=0 closing passed failed verdict=pass row
  command_of "$name"
  timeout "$limit_s" "${run[@]}" > "$log" 2>&1 || status=$?
  # "N passed, N failed", or cargo's "N passed; N failed".
  closing=$(grep -E '(^|[^0-9])[0-9]+ passed[,;] [0-9]+ failed' "$log" | tail -n 1 || true)
  passed=$(sed -nE 's/.*(^|[^0-9])([0-9]+) passed[,;].*/\2/p' <<< "$closing")
  failed=$(sed -nE 's/.* ([0-9]+) failed.*/\1/p' <<< "$closing")
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
  if [ "$verdict" = FAIL ]; then
    {
      grep -E -A 4 '^(FAIL|error|thread .* panicked)' "$log" | head -n 60 || true
      echo "..."
      tail -n 15 "$log"
    } | sed 's/^/    | /'
  fi
  echo "$row" > "$logs/$name.row"
}

order=("${gates[@]}")
# The longest first, so that they do not end up alone.
[ "$jobs" -eq 1 ] || order=(tracer same_bits $(printf '%s\n' "${gates[@]}" | grep -vxE 'tracer|same_bits'))
rm -f "$logs"/*.row
for name in "${order[@]}"; do
  wanted "$name" || continue
  if [ "$jobs" -eq 1 ]; then
    run_gate "$name"
  else
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    run_gate "$name" &
  fi
done
wait

rows=() passed_gates=0 failed_gates=0
for name in "${gates[@]}"; do
  wanted "$name" || continue
  row=$(cat "$logs/$name.row" 2> /dev/null || printf '%-12s FAIL %5d s  %s' "$name" 0 "it left no verdict")
  rows+=("$row")
  read -r _ verdict _ <<< "$row"
  case $verdict in
    pass) passed_gates=$((passed_gates + 1)) ;;
    skip) ;;
    *) failed_gates=$((failed_gates + 1)) ;;
  esac
done

echo
echo "gate         verdict seconds closing line"
printf '%s\n' "${rows[@]}"
if [ -n "$full" ]; then
  # A gate's row stands until the gate is run in full again.
  table=gates/results/full.md
  stamp="\`$(git rev-parse --short HEAD)\` | $(date -u +%F)"
  mkdir -p gates/results
  old=$(cat "$table" 2> /dev/null || true)
  {
    echo "# The last full run of each gate"
    echo
    echo "\`scripts/gates.sh --full\` on the software device, the commit it ran on, and when."
    echo
    echo "| gate | verdict | closing line | commit | date |"
    echo "|---|---|---|---|---|"
    for name in "${gates[@]}"; do
      if wanted "$name"; then
        read -r _ verdict _ _ closing < "$logs/$name.row" || true
        echo "| $name | $verdict | $closing | $stamp |"
      else
        grep "^| $name |" <<< "$old" || true
      fi
    done
  } > "$table"
fi
echo "gates: $passed_gates passed, $failed_gates failed"
[ "$failed_gates" -eq 0 ] && [ "$passed_gates" -gt 0 ]
