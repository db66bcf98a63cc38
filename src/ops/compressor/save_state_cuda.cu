// SaveState on any GPU: a block for each token.
#include "device/launch_pdl.cuh"
#include "ops/compressor/implementations.h"
#include "ops/compressor/state_row.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using compressor::Save;

constexpr int kThreads = 128;

template <bool kVector>
__global__ void __launch_bounds__(kThreads) save(const __grid_constant__ Save c) {
  device::pdl_wait_and_trigger();
  compressor::save_row<kVector>(c, blockIdx.x, 0, 2 * c.half, static_cast<int>(threadIdx.x), kThreads);
}

void run(const SaveState::Problem& p, const SaveState::Args& a, const RunContext& context) {
  const std::int64_t tokens = a.state_slots.size(0);
  if (tokens == 0) return;
  const Save c = compressor::save_of(p, a);
  const auto start =
      compressor::by_fours(c) ? device::launch_pdl<save<true>, Save> : device::launch_pdl<save<false>, Save>;
  start("save_state", blocks_for(tokens, 1), kThreads, 0, stream_of(context.stream), c);
}

}  // namespace

template <>
Implementation<SaveState> cuda_row() {
  return any_gpu_row<SaveState>(run);
}

}  // namespace smla
