# Sourced by kernel_tests.sh and sanitize.sh: runs test programs one process each and adds their closing lines up.
total_passed=0
total_failed=0

# The programs of a make target of kernel_tests.mk, as paths below its OUT.
programs() { # OUT TARGET
  local test
  case $2 in
    device) echo device ;;
    bodies) for test in attention expert gemm widths; do echo "bodies/$test"; done ;;
    *) for test in csrc/tests/*_test.cpp; do test=${test##*/}; echo "$2/${test%_test.cpp}"; done ;;
  esac
}

wanted() { # PROGRAM NAME...
  local program=$1 name
  shift
  [ $# -eq 0 ] && return 0
  for name in "$@"; do [[ $program == *$name* ]] && return 0; done
  return 1
}

# Runs OUT/PROGRAM and prints its verdict; its output is shown when it failed.
run_program() { # OUT PROGRAM [FILTER]
  local log="$1/$2.log" start=$SECONDS status=0 line passed failed
  "$1/$2" ${3:+"$3"} > "$log" 2>&1 || status=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1 || true)
  passed=$(sed -nE 's/^([0-9]+) passed.*/\1/p' <<< "$line")
  failed=$(sed -nE 's/.*, ([0-9]+) failed.*/\1/p' <<< "$line")
  if [ -z "$line" ] || [ "$((passed + failed))" -eq 0 ] || { [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; }; then
    # It ended before its closing line, ran nothing, or a sanitizer spoke at exit.
    failed=$((${failed:-0} + 1))
  fi
  total_passed=$((total_passed + ${passed:-0}))
  total_failed=$((total_failed + failed))
  if [ "$failed" -eq 0 ]; then
    printf 'ok   %-24s %4d s  %s\n' "$2${3:+ $3}" $((SECONDS - start)) "$line"
  else
    printf 'FAIL %-24s %4d s  exit %d  %s\n' "$2${3:+ $3}" $((SECONDS - start)) "$status" "$line"
    grep -vE '^(ok  |software device:)' "$log" | tail -n 40 || true
  fi
}

# The closing line and the verdict.
close_programs() {
  echo "$total_passed passed, $total_failed failed"
  [ "$total_failed" -eq 0 ] && [ "$total_passed" -gt 0 ]
}
