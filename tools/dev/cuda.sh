# shellcheck shell=bash disable=SC2154
# Of `dev`: the CUDA build and its tests, the same without a GPU, and the checks that need one.

# What the build has that others do not; the suites for the CPU are those of build/dev.
cuda_targets=(smla sparsemla_shared test_gpu planted_fault attention_test draft_test layer_test plan_test pool_test)

emulated_seconds=${SMLA_EMULATED_SECONDS:-240}
late_seconds=${SMLA_LATE_SECONDS:-2700}

find_nvcc() { command -v nvcc 2>/dev/null || { [[ -x /usr/local/cuda/bin/nvcc ]] && echo /usr/local/cuda/bin/nvcc; }; }

part_cuda() {
  say "cuda (build/cuda)"
  # -U: all architectures, also where an earlier run came late.
  local nvcc architectures=-UCMAKE_CUDA_ARCHITECTURES
  if ((SECONDS > late_seconds)) && find_nvcc >/dev/null; then
    architectures="-DCMAKE_CUDA_ARCHITECTURES=80;90-real"
    notes+=("NOTE slow machine: cuda began after $SECONDS s (SMLA_LATE_SECONDS=$late_seconds); it is built for sm_80 and \
sm_90 alone")
  fi
  if ! nvcc=$(find_nvcc); then
    skip "cuda: no nvcc on PATH nor in /usr/local/cuda/bin"
  elif ! need "${run_packages[@]}" "${test_packages[@]}" ||
    ! CUDACXX=$nvcc quietly cmake --preset cuda "$architectures" ||
    ! quietly cmake --build build/cuda --parallel "$jobs" --target "${cuda_targets[@]}"; then
    fail "cuda: build with $nvcc"
  else
    pass "cuda: built with $nvcc"
    run_ctest "cuda" build/cuda -R '^(gpu|abi|package)\.' --no-tests=error
  fi
}

# The kernels' own code without a GPU: what the time does not reach is counted as skipped.
part_emulated() {
  say "emulated (build/emulated)"
  local nvcc
  if ! nvcc=$(find_nvcc); then
    skip "emulated: no nvcc on PATH nor in /usr/local/cuda/bin"
  elif ! need "${run_packages[@]}" "${test_packages[@]}" || ! CUDACXX=$nvcc quietly cmake --preset emulated ||
    ! quietly cmake --build build/emulated --parallel "$jobs" --target test_gpu test_emulator planted_fault; then
    fail "emulated: build with $nvcc"
  else
    stop_at=$((SECONDS + emulated_seconds)) run_ctest "emulated" build/emulated -R '^(gpu|emulator)\.' --no-tests=error \
      --stop-time "$(date -d "+$emulated_seconds seconds" +%T)"
  fi
}

# [--bundle DIR [--ptx] | PART...]: the checks on a GPU, here or in a folder for a machine that has a GPU and nothing
# else.
gpu_check() {
  local nvcc folder=build/gpu-check ptx=""
  if [[ ${1:-} == --bundle ]]; then
    [[ $# == 2 || ($# == 3 && $3 == --ptx) ]] ||
      { echo "dev: gpu-check: got \"$*\", expected --bundle DIR [--ptx]" >&2 && exit 2; }
    folder=$2 ptx=${3:-}
    shift $#
    set -- --no-run
  fi
  nvcc=$(find_nvcc) || { echo "dev: gpu-check: no nvcc on PATH nor in /usr/local/cuda/bin" >&2 && exit 1; }
  need "${run_packages[@]}" "${test_packages[@]}"
  CUDACXX=$nvcc quietly cmake --preset cuda -UCMAKE_CUDA_ARCHITECTURES -DSMLA_BUILD_TESTS=ON
  quietly cmake --build build/cuda --parallel "$jobs" --target smla test_gpu planted_fault
  rm -rf "$folder"
  mkdir -p "$folder/lib" "$folder/golden/upstream"
  cp build/cuda/apps/smla/smla build/cuda/tests/test_gpu build/cuda/tests/planted_fault "$folder/"
  cp tests/golden/*.safetensors "$folder/golden/"
  cp tests/golden/upstream/*.safetensors "$folder/golden/upstream/"
  cp tools/gpu_check.sh "$folder/run.sh"
  ldd "$folder/smla" "$folder/test_gpu" | awk '$2 == "=>" { print $3 }' |
    grep -vE '/(libc|libm|libdl|librt|libpthread)\.so' | sort -u | xargs cp -L -t "$folder/lib"
  if [[ $ptx == --ptx ]]; then # one image, for the driver to compile
    CUDACXX=$nvcc quietly cmake --preset cuda -B build/cuda-ptx -DSMLA_BUILD_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES=80-virtual
    quietly cmake --build build/cuda-ptx --parallel "$jobs" --target test_gpu
    mkdir -p "$folder/ptx"
    cp build/cuda-ptx/tests/test_gpu "$folder/ptx/"
  fi
  if [[ ${1:-} == --no-run ]]; then du -sh "$folder"; else exec sh "$folder/run.sh" "$@"; fi
}
