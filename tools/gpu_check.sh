#!/bin/sh
# The checks that need a GPU: sh gpu_check.sh [PART...], from a folder that `./dev gpu-check --bundle` made, or through `./dev gpu-check`.
#   tests      every op, layer and engine test against the reference (GPU tests that are built for this machine)
#   verify     every golden case and upstream dump through smla verify --device cuda
#   run        smla run --device cuda: the bundled trace with graphs, checked against float64, on each front-end
#   bench      smla bench --device cuda over a few cells of every group: whether results are right; the times mean little
#   ptx        tests once more from compute_80 PTX alone (the program in ptx/ is compiled by the driver)
#   small      tests once more with the shared memory of sm_86, sm_89 and sm_120 (99 KB)
#   sanitize   compute-sanitizer's four tools over a small grid, each with a fault planted first
# Without PART: tests verify run. Needs an NVIDIA driver, for `sanitize` compute-sanitizer.
set -u
here=$(cd "$(dirname "$0")" && pwd)
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH OMP_WAIT_POLICY=passive
failed=""

test_seconds=300 # of a test under a sanitizer
sanitize_jobs=8

part() { # NAME COMMAND...
  name=$1
  shift
  echo "== $name"
  if "$@"; then echo "PASS $name"; else
    echo "FAIL $name"
    failed="$failed $name"
  fi
}

verify() {
  "$here/smla" verify --device cuda --validate "$here"/golden/*.safetensors "$here"/golden/upstream/*.safetensors
}

run() {
  for options in "" "--front-end flashinfer --cache-dtype fp8_per_tensor" "--front-end sm120 --index-dtype mxfp4 --speculative 2" \
    "--gather-prefill --deterministic --output-projection fp8" "--no-graphs --max-requests 4"; do
    echo "-- smla run --device cuda $options"
    # shellcheck disable=SC2086
    "$here/smla" run --device cuda --quiet $options || return 1
  done
}

# All kernels, without the tests that take long even without a sanitizer.
small_grid='*-*Twenty*:*MoreThan65535*:CallsGpu.Slots*:TopkGpu.Wide*:TopkGpu.WidthsAndChoices:TopkGpu.LargeChoices:TopkGpu.CasesAreRef'
small_grid="$small_grid:IndexerLogitsGpu.LongContexts:IndexerLogitsGpu.RowsOfOne*:IndexerLogitsGpu.EveryNumber*:IndexerLogitsGpu.Paged*"
small_grid="$small_grid:ProjectionGpu.Every*:JointProjectionGpu.Every*:AttentionGpu.Grid*:AttentionGpu.HeadsBy*:AttentionGpu.Several*:AttentionGpu.Many*:AttentionGpu.Every*:AttentionGpu.OneLong*:AttentionGpu.Lse*:NormRopeGpu.QNormRopeInsertIsRef:NormRopeGpu.InsertRows*"
small_grid="$small_grid:EngineGpu.Every*:EngineGpu.TheBatch*:EngineGpu.Two*:EngineGpu.APlanted*:EngineGpu.Side*:CompressorGpu.CompressStoreIsRef"
small_grid="$small_grid:BenchGpu.*Cells*:BenchGpu.Ceilings*:BenchGpu.Layers*:BenchGpu.OpsAreRight:BenchGpu.Projections*:BenchGpu.TheTimer*"

# Many cases or wide rows, which racecheck follows access by access: their kernels have smaller tests too.
slow_races='AttentionGpu.Unused*:AttentionGpu.AGraph*:AttentionGpu.AnyBatch*:AttentionGpu.Partials*:TopkGpu.FewWide*:TopkGpu.RowsOfFew*:TopkGpu.Neighbours*:AttentionGpu.Rotating*:AttentionGpu.AnyWords*:AttentionGpu.NumbersPast*'
slow_races="$slow_races:CompressorGpu.SavingIn*:CompressorGpu.AnyStride*:NormRopeGpu.*Grid*:BenchGpu.*"

bench() {
  "$here/smla" bench attention indexer ops projection --device cuda --heads 8,64,128 --batch 1,33 --tokens 130 --next-n 1,2 --pool 8192 --keys 128,384,640,1152 \
    --min-time 0.01 --min-runs 8 --quiet &&
    "$here/smla" bench layer --device cuda --model tiny --batch 1,5 --context 3000 --prefill 300 --min-time 0.01 --min-runs 8 --quiet
}

# A test of the program under a tool, with a line of what came of it: TOOL TEST.
watched_test() {
  log=$here/$1.$2.log
  SMLA_PRINT_KERNELS=1 timeout "$test_seconds" compute-sanitizer --tool "$1" --error-exitcode 9 "$here/test_gpu" --gtest_filter="$2" >"$log" 2>&1
  code=$?
  case $code in
    0) echo "PASS $1 $2" ;;
    124) echo "FAIL $1 $2: no end after $test_seconds s" ;;
    *) echo "FAIL $1 $2: $(grep -h "SUMMARY\|Race reported\|^\[  FAILED" "$log" | head -n 4 | tr '\n' ' ')" ;;
  esac
  return "$code"
}

# Each test in a process of its own, several at once: one that is slow under a tool holds up none of the others.
sanitize() {
  for tool in memcheck racecheck initcheck synccheck; do
    echo "-- $tool: a planted fault must be found"
    if compute-sanitizer --tool "$tool" --error-exitcode 9 "$here/planted_fault" "$tool" >"$here/$tool.log" 2>&1; then
      echo "$tool did not find the planted fault"
      return 1
    fi
    grep -m 1 "ERROR SUMMARY\|RACECHECK SUMMARY" "$here/$tool.log"
    echo "-- $tool: the small grid"
    grid=$small_grid
    [ "$tool" = memcheck ] || grid="$grid:EngineGpu.*" # hundreds of small kernels a run: minutes under the slower tools
    [ "$tool" != racecheck ] || grid="$grid:AttentionGpu.Special*:AttentionGpu.AToken*:IndexerLogitsGpu.RaggedCases*:IndexerLogitsGpu.HostileLists:$slow_races"
    "$here/test_gpu" --gtest_list_tests --gtest_filter="$grid" | awk '/^[A-Z][A-Za-z0-9]*\.$/ { suite = $1 } /^  / { print suite $1 }' >"$here/tests.list"
    [ -s "$here/tests.list" ] || return 1
    rm -f "$here/$tool".*.log
    xargs -P "$sanitize_jobs" -I TEST sh "$here/run.sh" watch "$tool" TEST <"$here/tests.list" >"$here/$tool.results"
    code=$?
    cat "$here/$tool".*.log | grep "^kernel " | sort -u
    sort "$here/$tool.results" | grep -v "^PASS" || true
    echo "$tool: $(grep -c "^PASS" "$here/$tool.results") of $(wc -l <"$here/tests.list") tests without a finding"
    [ "$code" = 0 ] || return 1
  done
}

if [ "${1:-}" = watch ]; then # what sanitize() starts of itself
  watched_test "$2" "$3"
  exit
fi

[ $# -gt 0 ] || set -- tests verify run
for name in "$@"; do
  case $name in
    tests) part tests "$here/test_gpu" ;;
    verify | run | bench | sanitize) part "$name" "$name" ;;
    ptx) part ptx env CUDA_CACHE_DISABLE=1 "$here/ptx/test_gpu" ;;
    small) part small env SMLA_CUDA_SHARED_BYTES=101376 "$here/test_gpu" ;;
    *) echo "gpu_check: got \"$name\", expected tests, verify, run, bench, ptx, small or sanitize" >&2 && exit 2 ;;
  esac
done
[ -z "$failed" ] || echo "FAILED:$failed"
[ -z "$failed" ]
