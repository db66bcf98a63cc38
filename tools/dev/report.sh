# shellcheck shell=bash disable=SC2154
# Of `dev`: what passed, failed and was skipped, and the summary of it.

passed=0 failed=0 skipped=0
notes=() times=()

say() { printf '\n== %s\n' "$*"; }
pass() { passed=$((passed + 1)) && notes+=("PASS $*"); }
fail() { failed=$((failed + 1)) && notes+=("FAIL $*") && printf 'FAIL %s\n' "$*"; }
skip() { skipped=$((skipped + 1)) && notes+=("SKIP $*") && printf 'SKIP %s\n' "$*"; }

timed() { # PART [ARGS]: runs a part and notes its time
  local begin=$SECONDS part=$1
  shift
  "part_$part" "$@"
  times+=("$(printf 'TIME %-8s %3d:%02d' "$part" $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)))")
}

slow_seconds=${SMLA_SLOW_SECONDS:-1100}

shorten_budgets() { # seconds of part tests: what is cut off by time gets a third of it, for builds take long here too
  local budget
  for budget in tidy_seconds asan_seconds fuzz_seconds emulated_seconds; do
    printf -v "$budget" %d $((${!budget} / 3))
  done
  notes+=("NOTE slow machine: part tests took $1 s (SMLA_SLOW_SECONDS=$slow_seconds); clang-tidy has $tidy_seconds s, \
asan $asan_seconds, fuzz $fuzz_seconds, emulated $emulated_seconds")
}

summary() {
  say summary
  ((${#times[@]} == 0)) || printf '%s\n' "${times[@]}"
  ((${#notes[@]} == 0)) || printf '%s\n' "${notes[@]}"
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0))
}
