// Runs of words to many places of a GPU's memory: a thread block for each run.
#include "device/launch.cuh"
#include "device/word_runs.h"

namespace smla {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    write_runs(std::int32_t* memory, const WordRun* runs, const std::int32_t* words) {
  const WordRun run = runs[blockIdx.x];
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < run.count; i += kThreads)
    memory[run.to + i] = words[run.from + i];
}

}  // namespace

void cuda_write_runs(std::int32_t* memory, const void* staged, std::int64_t runs, Stream stream) {
  const auto* const first = static_cast<const WordRun*>(staged);
  write_runs<<<blocks_for(runs, 1), kThreads, 0, stream_of(stream)>>>(
      memory, first, reinterpret_cast<const std::int32_t*>(first + runs));
  check_launch("write_runs");
}

}  // namespace smla
