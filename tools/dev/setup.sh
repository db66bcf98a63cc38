# shellcheck shell=bash disable=SC2034,SC2154
# Of `dev`: packages from apt, configuring and building.

# What each command needs from Debian: "command:package", or "package" alone for a library.
# ccache is among the first, so that what `run` compiled is still there for `test`.
run_packages=(g++:g++ cmake:cmake ninja:ninja-build ccache:ccache
  libcli11-dev nlohmann-json3-dev libfmt-dev libdnnl-dev)
test_packages=(libgtest-dev libgmock-dev librapidcheck-dev python3:python3 pkg-config:pkg-config)
lint_packages=(git:git clang-format:clang-format clang-tidy:clang-tidy codespell:codespell shellcheck:shellcheck
  libomp-dev doxygen:doxygen)
package_packages=(python3:python3 pkg-config:pkg-config dpkg-shlibdeps:dpkg-dev)
# Of the builds with clang: asan, tsan, fuzz.
fuzz_packages=(cmake:cmake ninja:ninja-build ccache:ccache clang++:clang libclang-rt-dev libomp-dev nlohmann-json3-dev)

installed() { # "command:package" or "package"
  if [[ $1 == *:* ]]; then
    command -v "${1%%:*}" >/dev/null 2>&1
  else
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
  fi
}

need() { # installs what is missing of its arguments
  # Not Debian: CMake says what it lacks.
  command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1 || return 0
  local missing=() entry as_root=()
  for entry in "$@"; do installed "$entry" || missing+=("${entry##*:}"); done
  ((${#missing[@]})) || return 0
  if [[ $(id -u) != 0 ]]; then
    as_root=(sudo)
    if ! command -v sudo >/dev/null 2>&1; then
      echo "These packages are missing and there is no sudo to install them; as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
  fi
  echo "Installing with apt what this command needs: ${missing[*]}" >&2
  local log apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  log=$(mktemp)
  if "${apt[@]}" update >"$log" 2>&1 &&
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    rm -f "$log"
  else
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt could not install: ${missing[*]}" >&2
    return 1
  fi
}

quietly() { # runs a command; shows its warnings and SKIPs, and all of its end when it fails
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    grep -E '^-- SKIP|warning:' "$log" | sed 's/^-- //' || true
    rm -f "$log"
  else
    grep -E 'error:|Error' "$log" | head -n 20 || true
    tail -n 40 "$log"
    rm -f "$log"
    return 1
  fi
}

configure_and_build() { # preset, build folder, then arguments of the configure step
  local preset=$1 folder=$2
  shift 2
  quietly cmake --preset "$preset" "$@" && quietly cmake --build "$folder" --parallel "$jobs"
}

wants_cuda() { # whether a command line of smla says --device cuda
  local word before=""
  for word in "$@"; do
    if [[ $word == --device=cuda || ($before == --device && $word == cuda) ]]; then return 0; fi
    before=$word
  done
  return 1
}

card_architectures() { # of this machine's cards, as CMake takes them: "90-real" or "86-real;90-real"
  { nvidia-smi --query-gpu=compute_cap --format="csv,noheader" 2>/dev/null || true; } |
    tr -d ' .' | sort -un | sed 's/$/-real/' | paste -sd ';'
}

build_program() { # [ARGS of smla]: builds what they need and sets `program`
  need "${run_packages[@]}"
  local folder=build/dev configure=(--preset cpu) tests=OFF nvcc cards
  if wants_cuda "$@" && nvcc=$(find_nvcc); then
    cards=$(card_architectures)
    if [[ -z $cards ]]; then
      echo "dev: --device cuda: nvidia-smi shows no card on this machine" >&2
      exit 1
    fi
    folder=build/gpu configure=(--preset gpu "-DCMAKE_CUDA_ARCHITECTURES=$cards")
    export CUDACXX=$nvcc
  elif wants_cuda "$@"; then
    echo "dev: --device cuda: no nvcc on PATH nor in /usr/local/cuda/bin, which builds the CUDA parts" >&2
    exit 1
  else
    # A tree that has its tests keeps them.
    if grep -qs '^SMLA_BUILD_TESTS:BOOL=ON' build/dev/CMakeCache.txt; then tests=ON; fi
    configure+=("-DSMLA_BUILD_TESTS=$tests")
  fi
  program=$folder/apps/smla/smla
  quietly cmake "${configure[@]}" >&2
  if [[ -t 2 ]]; then
    cmake --build "$folder" --parallel "$jobs" --target smla >&2
  else
    quietly cmake --build "$folder" --parallel "$jobs" --target smla >&2
  fi
}

build_all() {
  need "${run_packages[@]}" "${test_packages[@]}" && say "build (Release, build/dev)" &&
    configure_and_build cpu build/dev -DSMLA_BUILD_TESTS=ON
}
