#!/usr/bin/env bash
# Everything that wants a GPU, in one call of eight minutes at most: gpu_check.sh [--soft] [--out DIR] [--only
# STAGE,STAGE...] FOLDER
#
# FOLDER is what gpu_build.sh made; logs and figures go to FOLDER/results. Each stage has a time limit, a log, a verdict
# line with its numbers; a short table comes last. A stage gets at most what is left of the eight minutes, and is "late"
# where nothing is. After each stage DIR/table.txt (the table so far) and DIR/results.tgz (every log and figure so far)
# are written anew (default: FOLDER/results), so that a call which is cut off leaves what it found. Exit 0 when every
# stage passed. What is asked for comes before what would be good to know:
#   assumptions  what the kernels take for granted of the tensor cores (numerics, section 5)
#   kernels      every kernel beside its plain reference, at odd and real shapes
#   golden, same_bits, graphs, sampler   the gates of these names, on the reference checkpoints
#   shapes       the gate of this name: one layer of every kind of the five published sizes
#   memcheck, racecheck   compute-sanitizer on the default model and on two reference checkpoints
#   ab           the step switches on the 12B's shapes, alternating rounds
#   decode       decode and prompt benchmark of the 12B's shapes
#   serve        the server: streams, eight requests at once, metrics, SIGTERM
#   kernel_bench each kernel at the shapes of the 12B and 31B, beside the copy bandwidth
#   torch        the same shapes in transformers, beside the figures of `decode` (where torch is)
#   compiled     the same with torch.compile, of six layers (compiling takes its time), beside a bench of six layers
#   torch_sampler   the sampler's kernels beside PyTorch's top-k and top-p sampling and one read of the logits
#   real_shapes  many layers of the 12B and E2B: prefill, decode by graphs and eager, and chunks give one set of bytes,
#                and so does a table of per-layer embeddings on the host
# --soft rehearses the stages on the software device, with smaller benchmarks, without compute-sanitizer and torch.
set -uo pipefail
soft= out= only=
while [ $# -gt 0 ]; do
  case $1 in
    --soft) soft=yes ;;
    --out) out=$2 && shift ;;
    --only) only=$2 && shift ;;
    -*) echo "gpu_check.sh [--soft] [--out DIR] [--only STAGE,STAGE...] FOLDER" >&2; exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done
folder=$(cd "${folder:?the folder that gpu_build.sh made}" && pwd) || exit 2
work=$folder/results
out=${out:-$work}
[ -n "$only" ] || rm -rf "$work"
mkdir -p "$work" "$out"
device=$([ -n "$soft" ] && echo soft || echo cuda:0)
kind=${device%%:*}
server=$folder/bin/gemma4-serve
# Where the toolkit puts its sanitizer, which need not be in the path.
for bin in /usr/local/cuda*/bin; do [ ! -d "$bin" ] || PATH=$PATH:$bin; done
rows=() failed=0 stages=
# Seconds of the whole check on a GPU: eight minutes, less what ends the last stage and packs its results.
whole=470

keep() { # The table and the archive of everything, as they stand
  local title="stage         verdict      numbers"
  { cat "$work/machine.txt"; printf '%s\n' "" "$title" "${rows[@]}"; } > "$work/table.txt"
  (shopt -s nullglob && cd "$work" && tar czf results.new -- *.log *.json *.txt && mv results.new results.tgz)
  [ "$out" -ef "$work" ] || cp "$work/table.txt" "$work/results.tgz" "$out/"
}

stage() { # NAME LIMIT_S COMMAND...: runs it, keeps its log, prints its verdict and its last line of numbers
  local name=$1 limit=$2 start=$SECONDS status=0 verdict=pass line
  shift 2
  stages+=" $name"
  [ -z "$only" ] || [[ ",$only," == *",$name,"* ]] || return 0
  # The software device takes its time; a rehearsal is not about limits.
  if [ -n "$soft" ]; then
    limit=$((limit * 10))
  elif [ $((whole - start)) -lt "$limit" ]; then
    limit=$((whole - start))
  fi
  if [ "$limit" -lt 5 ]; then
    rows+=("$(printf '%-13s late %4d s  %s' "$name" 0 "$start of $whole s were over")") failed=$((failed + 1))
    echo "${rows[-1]}"
    keep
    return
  fi
  timeout -k 5 "$limit" "$@" > "$work/$name.log" 2>&1 || status=$?
  line=$(grep -E '(^|[^0-9])[0-9]+ passed, [0-9]+ failed|(ERROR|RACECHECK) SUMMARY|^(numbers|skipped):' \
    "$work/$name.log" | tail -n 1)
  [ "$status" -ne 124 ] || line="still running after $limit s"
  if [ "$status" -ne 0 ]; then
    verdict=FAIL failed=$((failed + 1))
    { grep -E '^(FAIL|error|thread .* panicked)' -A 3 "$work/$name.log" | head -n 30; tail -n 8 "$work/$name.log"; } |
      cut -c 1-300 | sed 's/^/    | /'
  elif [[ $line == skipped:* ]]; then
    verdict=skip
  elif [ -z "$line" ]; then
    # A stage that says nothing of what it did has shown nothing.
    verdict=FAIL failed=$((failed + 1)) line="exit 0 without a line of numbers"
  fi
  rows+=("$(printf '%-13s %-4s %4d s  %s' "$name" "$verdict" $((SECONDS - start)) "${line:-exit $status}")")
  echo "${rows[-1]}"
  keep
}

# Prompt and decode kernels, and graphs, under compute-sanitizer: of the default model (wider steps and an engine's
# loop, too), of one with experts, of one with per-layer embeddings.
sanitizer() { # TOOL
  local wrap=() runs=0 clean path model
  [ -n "$soft" ] || wrap=(compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20)
  echo '[2, 17, 400, 33, 99, 5, 71, 210, 8, 345, 12, 77, 190, 3, 64, 28, 301, 54, 9, 130]' > "$work/ids.json"
  sanitized() { # COMMAND...
    echo "== $*"
    "${wrap[@]}" "$@" && runs=$((runs + 1))
  }
  for model in "" moe ple; do
    for path in chunks:7 decode; do
      sanitized "$server" score --device "$device" ${model:+--model "$folder/tests/data/reference/$model"} \
        --ids "$work/ids.json" --out "$work/$1.safetensors" --path $path || return
    done
  done
  sanitized "$server" bench --device "$device" --rows 3,16 --contexts 80 --prompts 100 --switch-rows 2 --copy-mib 1 \
    --measure decode,prompt,switches --rounds 1 --steps 2 || return
  rm "$work/$1.safetensors"
  [ -z "$soft" ] || { echo "numbers: $runs runs rehearsed, without compute-sanitizer" && return; }
  # The tool's own word on every run: one that did not instrument the program says nothing.
  clean=$(grep -cE '(ERROR|RACECHECK) SUMMARY: 0 ' "$work/$1.log")
  echo "numbers: $runs runs, $clean of them reported clean"
  [ "$clean" -eq "$runs" ]
}

# The programs of the kernel tests side by side, since most of their time is that of references on the host; the sum
# comes last. One that hangs ends alone, and with the stage (--foreground: in its process group).
kernels() { # PROGRAM...
  local program passed=0 failed=0 skipped line log status
  local most=$([ -n "$soft" ] && echo 500 || echo 60)
  for program in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    log=$work/test_${program##*/}
    { timeout --foreground "$most" "$program" > "$log.out" 2>&1; echo $? > "$log.exit"; } &
  done
  wait
  for program in "$@"; do
    echo "== ${program##*/}"
    log=$work/test_${program##*/} status=$(cat "$work/test_${program##*/}.exit")
    cat "$log.out"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log.out" | tail -n 1)
    # A kernel that no image holds is skipped by the test and is no pass here.
    if grep 'is in none of the fat binaries' "$log.out" || [ -z "$line" ]; then
      echo "FAIL ${program##*/}: a kernel without an image, or no closing line" && failed=$((failed + 1))
    elif [ "$status" -ne 0 ] && [[ $line == *", 0 failed"* ]]; then
      echo "FAIL ${program##*/}: exit $status behind \"$line\"" && failed=$((failed + 1))
    else
      passed=$((passed + ${line%% *}))
      line=${line#*, }
      failed=$((failed + ${line%% *}))
    fi
  done
  skipped=$(cat "$work"/test_*.out | grep -c '^skip ' || true)
  rm "$work"/test_*.out "$work"/test_*.exit
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# The logits of one list of token ids, by every path: equal files. Gate `shapes` looks at the logits, of every size;
# here are many layers and longer prompts, so that grids and offsets are those of the real models.
real_shapes() {
  export GEMMA4_SOFT_MEMORY_BYTES=4G
  # Hundreds of megabytes that nobody needs after a difference is named.
  trap 'rm -f "$work"/real_*.safetensors' EXIT
  if [ -n "$soft" ]; then
    one_set_of_bytes 4 12b 2 prefill decode "decode --no-graphs" chunks:1 chunks:64 || return
    one_set_of_bytes 4 e2b 5 prefill "decode --per-layer-table host"
  else
    one_set_of_bytes 300 12b 12 prefill decode "decode --no-graphs" chunks:64 &&
      one_set_of_bytes 80 e2b 35 prefill "decode --per-layer-table host"
  fi
}

one_set_of_bytes() { # TOKENS SIZE LAYERS PATH...
  local count=$1 size=$2 layers=$3 path first=$work/real_first.safetensors next=$work/real_next.safetensors
  shift 3
  python3 -c "import json; print(json.dumps([2] + [(7919 * i + 13) % 262144 for i in range(1, $count)]))" \
    > "$work/real_ids.json"
  rm -f "$first"
  for path in "$@"; do
    # shellcheck disable=SC2086
    "$server" score --device "$device" --synthetic "$size" --synthetic-layers "$layers" --ids "$work/real_ids.json" \
      --out "$next" --path $path || return
    [ -f "$first" ] || mv "$next" "$first"
    [ ! -f "$next" ] || cmp "$first" "$next" || { echo "FAIL $size: $path differs from $1"; return 1; }
  done
  echo "numbers: $# paths, $count tokens, $layers layers of the $size: one set of bytes"
}

# Flags that make a benchmark a rehearsal on the software device.
shape=(--synthetic 12b)
[ -z "$soft" ] || shape=(--rows 1,4 --switch-rows 1,4 --rounds 2 --steps 4)

torch() {
  torch_or_skip || return 0
  [ -f "$work/bench.json" ] || { echo "skipped: no figures of stage decode to lay beside"; return; }
  python3 "$folder/bench_torch.py" --synthetic 12b --rows 1,16 --contexts 1024 --json "$work/torch.json" \
    --ours "$work/bench.json"
}

# With the mode that servers of PyTorch use, on the last six layers of the pattern.
compiled() {
  torch_or_skip || return 0
  "$server" bench --device "$device" --synthetic 12b --synthetic-layers 6 --rows 1,16 --contexts 1024 --measure decode \
    --rounds 3 --json "$work/bench_6.json" &&
    python3 "$folder/bench_torch.py" --synthetic 12b --synthetic-layers 6 --modes graph,compile --rows 1,16 \
      --contexts 1024 --prompts "" --rounds 3 --json "$work/torch_6.json" --ours "$work/bench_6.json"
}

torch_or_skip() {
  [ -z "$soft" ] || { echo "skipped: transformers at these shapes is for a GPU"; return 1; }
  python3 -c 'import torch, transformers.models.gemma4' 2> /dev/null ||
    { echo "skipped: torch, or transformers with Gemma 4, is not here"; return 1; }
}

# Figures of `kernel_bench` beside those of PyTorch.
torch_sampler() {
  [ -z "$soft" ] || { echo "skipped: PyTorch's sampling is for a GPU"; return; }
  python3 -c 'import torch' 2> /dev/null || { echo "skipped: torch is not here"; return; }
  [ -f "$work/kernel_bench.json" ] || { echo "skipped: no figures of stage kernel_bench to lay beside"; return; }
  python3 "$folder/bench_sampler_torch.py" --json "$work/sampler.json" --ours "$work/kernel_bench.json"
}

gate() { # NAME [FLAG...]
  # Minutes there, of what gates.sh has run on the same device.
  [ -z "$soft" ] || [[ $1 != same_bits && $1 != shapes ]] ||
    { echo "skipped: gates.sh runs it on the software device"; return; }
  "$folder/bin/gate_$1" --device "$device" --root "$folder" "${@:2}"
}

# A stage runs below `timeout`, so functions are called through a shell of their own.
export -f sanitizer kernels gate real_shapes one_set_of_bytes torch compiled torch_or_skip torch_sampler
G4_TEST_FATBINS=$(printf ':%s' "$folder"/kernels/*.fatbin)
export G4_TEST_FATBINS=${G4_TEST_FATBINS:1}
export soft work device folder server PATH
{
  echo "built from $(cat "$folder/COMMIT"), $(date -u +%F)"
  [ -n "$soft" ] || timeout 20 nvidia-smi --format=csv,noheader \
    --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu || echo "nvidia-smi says nothing"
} 2>&1 | tee "$work/machine.txt"
stage assumptions 30 bash -c 'kernels "$folder/kernels/mma_test"'
stage kernels 90 bash -c 'kernels $(ls "$folder"/kernels/*_test | grep -v /mma_test)'
stage golden 40 bash -c 'gate golden'
stage same_bits 80 bash -c 'gate same_bits'
stage graphs 30 bash -c 'gate graphs'
stage sampler 30 bash -c 'gate sampler'
stage shapes 60 bash -c 'gate shapes --full'
stage memcheck 70 bash -c 'sanitizer memcheck'
stage racecheck 70 bash -c 'sanitizer racecheck'
stage ab 60 "$server" bench --device "$device" "${shape[@]}" --measure switches $([ -n "$soft" ] || echo --rounds 2) \
  --json "$work/ab.json"
stage decode 90 "$server" bench --device "$device" "${shape[@]}" --json "$work/bench.json"
stage serve 30 python3 "$folder/serve_check.py" "$server" "$kind" --device "$device"
stage kernel_bench 50 "$folder/kernels/kernel_bench" $([ -n "$soft" ] && echo --rehearse) --seconds 40 \
  --json "$work/kernel_bench.json"
stage torch 90 bash -c torch
stage compiled 90 bash -c compiled
stage torch_sampler 60 bash -c torch_sampler
stage real_shapes 90 bash -c real_shapes

echo
cat "$work/table.txt"
for name in ${only//,/ }; do
  [[ " $stages " == *" $name "* ]] || { echo "no stage is named $name:$stages" >&2; failed=$((failed + 1)); }
done
[ "$failed" -eq 0 ] && [ ${#rows[@]} -gt 0 ]
