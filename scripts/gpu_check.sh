#!/usr/bin/env bash
# Everything that wants a GPU, in one call: gpu_check.sh [--soft] [--out DIR] [--only STAGE,STAGE...] FOLDER
#
# FOLDER is what gpu_build.sh made. Each stage has a time limit, a log below DIR (default FOLDER/results), a verdict
# line with its numbers; a short table comes last, and DIR/results.tgz holds every log and figure. A stage that would
# begin after eight minutes is late and not run. Exit 0 when every stage passed.
#   assumptions  what the kernels take for granted of the tensor cores (numerics, section 5)
#   kernels      every kernel beside its plain reference, at odd and real shapes
#   golden, same_bits, graphs   the gates of these names, on the reference checkpoints
#   real_shapes  the shapes of the 12B, E2B and 26B-A4B: prefill, decode by graphs and eager, and chunks give one set of
#                bytes, and so does a table of per-layer embeddings on the host
#   serve        the server: streams, eight requests at once, metrics, SIGTERM
#   memcheck, racecheck   compute-sanitizer on the default model and on two reference checkpoints
#   kernel_bench each kernel at the shapes of the 12B and 31B, beside the copy bandwidth
#   ab           the step switches on the 12B's shapes, alternating rounds
#   decode       decode and prompt benchmark of the 12B's shapes
#   sampler      the sampler's kernels beside PyTorch's top-k and top-p sampling and one read of the logits
#   torch        the same shapes in transformers, beside the figures of `decode` (where torch is)
# --soft rehearses every stage on the software device, with smaller benchmarks and no compute-sanitizer.
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
out=${out:-$folder/results}
mkdir -p "$out"
device=$([ -n "$soft" ] && echo soft || echo cuda:0)
kind=${device%%:*}
server=$folder/bin/gemma4-serve
rows=() failed=0
# Seconds of the whole check on a GPU.
whole=480

stage() { # NAME LIMIT_S COMMAND...: runs it, keeps its log, prints its verdict and its last line of numbers
  local name=$1 limit=$2 start=$SECONDS status=0 verdict=pass line
  shift 2
  [ -z "$only" ] || [[ ",$only," == *",$name,"* ]] || return 0
  if [ -z "$soft" ] && [ "$start" -ge "$whole" ]; then
    rows+=("$(printf '%-12s late %4d s  %s' "$name" 0 "$start of $whole s were over")") failed=$((failed + 1))
    echo "${rows[-1]}"
    return
  fi
  # The software device takes its time; a rehearsal is not about limits.
  [ -z "$soft" ] || limit=$((limit * 10))
  timeout -k 5 "$limit" "$@" > "$out/$name.log" 2>&1 || status=$?
  line=$(grep -E '(^|[^0-9])[0-9]+ passed, [0-9]+ failed|(ERROR|RACECHECK) SUMMARY|^(numbers|skipped):' \
    "$out/$name.log" | tail -n 1)
  [ "$status" -ne 124 ] || line="still running after $limit s"
  if [ "$status" -ne 0 ]; then
    verdict=FAIL failed=$((failed + 1))
    { grep -E '^(FAIL|error|thread .* panicked)' -A 3 "$out/$name.log" | head -n 30; tail -n 8 "$out/$name.log"; } |
      cut -c 1-300 | sed 's/^/    | /'
  elif [[ $line == skipped:* ]]; then
    verdict=skip
  fi
  rows+=("$(printf '%-12s %-4s %4d s  %s' "$name" "$verdict" $((SECONDS - start)) "${line:-exit $status}")")
  echo "${rows[-1]}"
}

# Prompt and decode kernels, and graphs, under compute-sanitizer: of the default model, of one with experts, of one with
# per-layer embeddings.
sanitizer() { # TOOL
  local wrap=()
  [ -n "$soft" ] || wrap=(compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20)
  echo '[2, 17, 400, 33, 99, 5, 71, 210, 8, 345, 12, 77, 190, 3, 64, 28, 301, 54, 9, 130]' > "$out/ids.json"
  local path model
  for model in "" moe ple; do
    for path in chunks:7 decode; do
      "${wrap[@]}" "$server" score --device "$device" ${model:+--model "$folder/tests/data/reference/$model"} \
        --ids "$out/ids.json" --out "$out/$1.safetensors" --path $path || return
    done
  done
  rm "$out/$1.safetensors"
}

# The programs of the kernel tests side by side, since most of their time is that of references on the host; the sum
# comes last. One that hangs ends alone.
kernels() { # PROGRAM...
  local program passed=0 failed=0 line log
  for program in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    timeout $([ -n "$soft" ] && echo 500 || echo 50) "$program" > "$out/test_${program##*/}.log" 2>&1 &
  done
  wait
  for program in "$@"; do
    echo "== ${program##*/}"
    log=$out/test_${program##*/}.log
    cat "$log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    rm "$log"
    if [ -z "$line" ]; then
      echo "FAIL ${program##*/} has no closing line" && failed=$((failed + 1))
      continue
    fi
    passed=$((passed + ${line%% *}))
    line=${line#*, }
    failed=$((failed + ${line%% *}))
  done
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# The logits of one list of token ids, by every path: equal files. The shapes are published ones, so that tiles, grids
# and offsets are those of the real models.
real_shapes() {
  export GEMMA4_SOFT_MEMORY_BYTES=4G
  # Hundreds of megabytes that nobody needs after a difference is named.
  trap 'rm -f "$out"/real_*.safetensors' EXIT
  if [ -n "$soft" ]; then
    one_set_of_bytes 4 12b 2 prefill decode "decode --no-graphs" chunks:1 chunks:64 || return
    one_set_of_bytes 4 e2b 5 prefill "decode --per-layer-table host"
  else
    one_set_of_bytes 300 12b 12 prefill decode "decode --no-graphs" chunks:1 chunks:64 &&
      one_set_of_bytes 80 e2b 35 prefill decode "decode --per-layer-table host" chunks:7 &&
      one_set_of_bytes 80 26b-a4b 6 prefill decode chunks:7
  fi
}

one_set_of_bytes() { # TOKENS SIZE LAYERS PATH...
  local count=$1 size=$2 layers=$3 path first=$out/real_first.safetensors next=$out/real_next.safetensors
  shift 3
  python3 -c "import json; print(json.dumps([2] + [(7919 * i + 13) % 262144 for i in range(1, $count)]))" \
    > "$out/real_ids.json"
  rm -f "$first"
  for path in "$@"; do
    # shellcheck disable=SC2086
    "$server" score --device "$device" --synthetic "$size" --synthetic-layers "$layers" --ids "$out/real_ids.json" \
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
  [ -z "$soft" ] || { echo "skipped: transformers at these shapes is for a GPU"; return; }
  python3 -c 'import torch, transformers' 2> /dev/null || { echo "skipped: torch or transformers is not here"; return; }
  python3 "$folder/bench_torch.py" --synthetic 12b --rows 1,16 --contexts 1024 --json "$out/torch.json" \
    --ours "$out/bench.json"
}

# Figures of `kernel_bench` beside those of PyTorch.
sampler() {
  [ -z "$soft" ] || { echo "skipped: PyTorch's sampling is for a GPU"; return; }
  python3 -c 'import torch' 2> /dev/null || { echo "skipped: torch is not here"; return; }
  python3 "$folder/bench_sampler_torch.py" --json "$out/sampler.json" --ours "$out/kernel_bench.json"
}

gate() {
  # Two minutes there, of what gates.sh has run on the same device.
  [ -z "$soft" ] || [ "$1" != same_bits ] || { echo "skipped: gates.sh runs it on the software device"; return; }
  "$folder/bin/gate_$1" --device "$device" --root "$folder"
}

# A stage runs below `timeout`, so functions are called through a shell of their own.
export -f sanitizer kernels gate real_shapes one_set_of_bytes torch sampler
G4_TEST_FATBINS=$(printf ':%s' "$folder"/kernels/*.fatbin)
export G4_TEST_FATBINS=${G4_TEST_FATBINS:1}
export soft out device folder server
[ -n "$soft" ] || nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader
stage assumptions 30 bash -c 'kernels "$folder/kernels/mma_test"'
stage kernels 90 bash -c 'kernels $(ls "$folder"/kernels/*_test | grep -v /mma_test)'
stage golden 40 bash -c 'gate golden'
stage same_bits 80 bash -c 'gate same_bits'
stage graphs 30 bash -c 'gate graphs'
stage real_shapes 90 bash -c real_shapes
stage serve 30 python3 "$folder/serve_check.py" "$server" "$kind" --device "$device"
stage kernel_bench 50 "$folder/kernels/kernel_bench" $([ -n "$soft" ] && echo --rehearse) --seconds 40 \
  --json "$out/kernel_bench.json"
stage sampler 60 bash -c sampler
stage ab 60 "$server" bench --device "$device" "${shape[@]}" --measure switches $([ -n "$soft" ] || echo --rounds 2) \
  --json "$out/ab.json"
stage decode 90 "$server" bench --device "$device" "${shape[@]}" --json "$out/bench.json"
stage torch 90 bash -c torch
stage memcheck 70 bash -c 'sanitizer memcheck'
stage racecheck 70 bash -c 'sanitizer racecheck'

echo
echo "stage        verdict      numbers"
printf '%s\n' "${rows[@]}" | tee "$out/table.txt"
(shopt -s nullglob && cd "$out" && tar czf results.tgz -- *.log *.json *.txt)
[ "$failed" -eq 0 ] && [ ${#rows[@]} -gt 0 ]
