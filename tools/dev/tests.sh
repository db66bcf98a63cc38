# shellcheck shell=bash disable=SC2154
# Of `dev`: unit, property and parity tests, sanitizers, fuzz targets.

asan_seconds=${SMLA_ASAN_SECONDS:-300}
tsan_seconds=${SMLA_TSAN_SECONDS:-300}
fuzz_seconds=${SMLA_FUZZ_SECONDS:-60}

# Arguments: label, build folder, further arguments of ctest. Counts the tests and keeps the reasons of failures and
# skips; stop_at: see part_asan.
run_ctest() {
  local label=$1 folder=$2 line p f s stopped=()
  shift 2
  local junit=$PWD/$folder/junit.xml
  rm -f "$junit"
  # ctest calls a test that the stop time ended failed; its own totals count it, the ones below do not.
  local words=()
  [[ -z ${stop_at:-} ]] || words=(-e 's/[*]{3}Timeout/stopped: out of time/' -e '/tests passed, .*failed out of/d'
    -e "/^The following tests FAILED:/,\$d" -e '/^Errors while running CTest/d')
  ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure --output-junit "$junit" "$@" 2>&1 |
    grep -vE ' Passed |^ +Start ' | sed -E -e '' "${words[@]}" || true
  if [[ ! -s $junit ]]; then
    fail "$label: ctest did not finish"
    return 0
  fi
  if [[ -n ${stop_at:-} ]] && ((SECONDS >= stop_at - 2)); then stopped=(stopped); fi
  while IFS= read -r line; do
    if [[ $line == COUNT* ]]; then
      read -r _ p f s <<<"$line"
      passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
      if ((f)); then notes+=("FAIL $label: $f of $((p + f)) tests"); else notes+=("PASS $label: $p tests"); fi
    else
      notes+=("$line")
    fi
  done < <(python3 tools/summarize_tests.py "$label" "$junit" "${stopped[@]}")
}

part_tests() {
  if ! build_all; then
    fail "build"
    return 0
  fi
  say "tests"
  run_ctest tests build/dev --no-tests=error
}

part_asan() {
  say "asan and ubsan (build/asan)"
  if ! need "${fuzz_packages[@]}" "${test_packages[@]}" || ! quietly cmake --preset asan ||
    ! quietly cmake --build build/asan --parallel "$jobs" --target test_unit test_parity test_property; then
    fail "asan: build"
    return 0
  fi
  export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0"
  run_ctest "asan: unit" build/asan -R '^unit\.' --no-tests=error
  # A few cases of each property are enough to meet stray reads and writes; the Release run looks for wrong numbers.
  local end=$((SECONDS + asan_seconds)) suite
  for suite in property parity; do
    if ((end - SECONDS < 20)); then
      skip "asan: $suite: no time left (SMLA_ASAN_SECONDS=$asan_seconds)"
    else
      stop_at=$end RC_PARAMS="max_success=5" run_ctest "asan: $suite" build/asan -R "^$suite\\." \
        --stop-time "$(date -d "+$((end - SECONDS)) seconds" +%T)"
    fi
  done
}

part_tsan() {
  say "tsan (build/tsan)"
  local log=build/tsan/threads.log
  if ! need "${fuzz_packages[@]}" "${test_packages[@]}" || ! quietly cmake --preset tsan ||
    ! quietly cmake --build build/tsan --parallel "$jobs" --target test_threads; then
    fail "tsan: build"
  # libarcher tells ThreadSanitizer what OpenMP synchronises; the OpenMP runtime itself is not instrumented.
  elif TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=0" OMP_NUM_THREADS=2 \
    timeout "$tsan_seconds" build/tsan/tests/test_threads >"$log" 2>&1; then
    pass "tsan: $(grep -c '^\[       OK' "$log") tests"
  else
    grep -A 25 -m 1 'WARNING: ThreadSanitizer' "$log" || tail -n 20 "$log"
    fail "tsan (the whole log: $log; limit $tsan_seconds s)"
  fi
}

part_fuzz() { # seconds over all targets
  local seconds=${1:-$fuzz_seconds} target log here=build/asan targets=(tests/fuzz/*_fuzz.cpp)
  say "fuzz (build/asan), $seconds s in all"
  targets=("${targets[@]#tests/fuzz/}")
  targets=("${targets[@]%_fuzz.cpp}")
  if ! need "${fuzz_packages[@]}" || ! quietly cmake --preset asan ||
    ! quietly cmake --build $here --parallel "$jobs" --target "${targets[@]/#/fuzz_}"; then
    fail "fuzz: build"
    return 0
  fi
  local each=$((seconds / ${#targets[@]})) before=$failed
  for target in "${targets[@]}"; do
    log=$here/logs/$target.log
    mkdir -p $here/logs $here/findings "$here/found/$target" "tests/fuzz/corpus/$target"
    if ! OMP_NUM_THREADS=1 "$here/tests/fuzz/fuzz_$target" -max_total_time=$((each > 0 ? each : 1)) -timeout=30 \
      -rss_limit_mb=4096 -max_len=16384 \
      -print_final_stats=1 -artifact_prefix="$here/findings/$target-" \
      "$here/found/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
      grep -aE '^fuzz: |runtime error|ERROR: |SUMMARY: |Test unit written' "$log" | head -n 10 || tail -n 20 "$log"
      fail "fuzz: $target (the whole log: $log; add what it found to tests/fuzz/corpus/$target)"
    fi
    printf '%-12s %9s executions, %s\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
      "$(grep -aoE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -n 1)"
  done
  ((failed > before)) || pass "fuzz: ${#targets[@]} targets, $each s each"
}
