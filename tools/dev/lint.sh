# shellcheck shell=bash disable=SC2154
# Of `dev`: clang-format, codespell, shellcheck, clang-tidy, doxygen.

tidy_seconds=${SMLA_TIDY_SECONDS:-300}

tracked() { # files of the tree that fit the patterns, also those not yet added
  git ls-files --cached --others --exclude-standard -- "$@" |
    while IFS= read -r file; do [[ ! -f $file ]] || echo "$file"; done
}

lint_format() {
  local version
  version=$(clang-format --version | grep -oE '[0-9]+' | head -n 1)
  if [[ $version != 14 ]]; then
    skip "lint: clang-format is version $version; the tree is formatted with 14"
  elif tracked '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror; then
    pass "lint: clang-format"
  else
    fail "lint: clang-format (clang-format -i FILE mends it)"
  fi
}

lint_words() {
  if tracked | grep -vE '\.(safetensors|jsonl|png|svg)$|^tests/fuzz/corpus/' | xargs codespell; then
    pass "lint: codespell"
  else
    fail "lint: codespell"
  fi
}

lint_shell() {
  local scripts
  scripts=$(tracked dev .ci/run '*.sh')
  if ! xargs -n 1 bash -n <<<"$scripts"; then
    fail "lint: bash -n"
  elif xargs shellcheck <<<"$scripts"; then
    pass "lint: shellcheck"
  else
    fail "lint: shellcheck"
  fi
}

tidy() { # build, label: clang-tidy over the sources on standard input that the build knows, until the time is used up
  local log reached total
  log=$(mktemp)
  if python3 tools/run_tidy.py "$1" "$tidy_seconds" "$jobs" >"$log"; then
    pass "lint: clang-tidy$2"
  else
    cat "$log"
    fail "lint: clang-tidy$2"
  fi
  read -r reached total < <(sed -n 's/^REACHED //p' "$log") || true
  rm -f "$log"
  ((${reached:-0} == ${total:-0})) ||
    skip "lint: clang-tidy$2 did not reach $((total - reached)) of $total files in $tidy_seconds s (SMLA_TIDY_SECONDS)"
}

lint_tidy() { # changed files first, then all others
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse -q --verify HEAD~1 || git rev-parse HEAD)
  { git diff --name-only "$base" -- '*.cpp' && tracked '*.cpp'; } | tidy build/dev ""
}

lint_python_tidy() { # the module's sources, which build/dev does not compile; their build is configured, not made
  local python=$PWD/build/python-tools/bin/python
  if ! "$python" -c 'import nanobind' 2>/dev/null; then
    skip "lint: clang-tidy of bindings/python needs nanobind, which ./dev python brings"
  elif quietly cmake -G Ninja -S . -B build/tidy-python -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DSMLA_PYTHON=ON -DSMLA_CUDA=OFF -DSMLA_BUILD_TESTS=OFF -DPython_EXECUTABLE="$python"; then
    tracked 'bindings/python/*.cpp' | tidy build/tidy-python " of bindings/python"
  else
    fail "lint: configure of bindings/python"
  fi
}

lint_apidocs() {
  mkdir -p build/apidocs
  if ! command -v doxygen >/dev/null 2>&1; then
    skip "lint: doxygen is not installed; the reference of the public headers is not checked"
  elif doxygen docs/Doxyfile; then
    pass "lint: doxygen"
  else
    fail "lint: doxygen"
  fi
}

part_lint() {
  say "lint"
  if ! need "${run_packages[@]}" "${test_packages[@]}" "${lint_packages[@]}"; then
    fail "lint: tools are missing"
  elif ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    skip "lint: git does not see a checkout here, so the list of files is not known"
  else
    lint_format
    lint_words
    lint_shell
    lint_apidocs
    if [[ -f build/dev/compile_commands.json ]] || quietly cmake --preset cpu -DSMLA_BUILD_TESTS=ON; then
      lint_tidy
      lint_python_tidy
    else
      fail "lint: configure"
    fi
  fi
}
