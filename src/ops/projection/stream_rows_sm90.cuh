#pragma once

#include "ops/projection/stream_consumer_sm90.cuh"
#include "ops/projection/stream_inputs_sm90.cuh"
#include "ops/projection/stream_weights_sm90.cuh"

namespace smla::projection::sm90 {

// Weights that are streamed past up to some hundred rows of bf16 x by wgmma: docs/kernels/projection.md.

/// Registers of a thread at the launch and of the roles: what warpgroups give up is all that others can get. Blocks of
/// 128 outputs leave half of a multiprocessor to the next kernel, or to another block.
template <class Shape>
struct Registers {
  static constexpr int kBlocks = Shape::kOutputs == 128 ? 2 : 1;  ///< of a multiprocessor
  static constexpr int kLaunch = kBlocks == 2 ? 64 : 128;
  static constexpr int kConsumer = kBlocks == 2 ? 80 : 192;
  static constexpr int kInputs = 64;
  static constexpr int kWeights = kBlocks == 2 ? 32 : 48;
  static_assert(kThreads * kLaunch * kBlocks <= 65536);
  static_assert(kConsumers * kConsumer + kInputs + kWeights <= (kConsumers + 2) * kLaunch);
};

template <int kOutputs, int kRows, int kDeep>
__global__ void __launch_bounds__(kThreads, (Registers<StreamShape<kOutputs, kRows, kDeep>>::kBlocks))
    stream_rows(const __grid_constant__ StreamCall call) {
  using Shape = StreamShape<kOutputs, kRows, kDeep>;
  extern __shared__ __align__(1024) std::uint8_t stream_shared[];
  const std::uint32_t shared = device::shared_address(stream_shared);
  const int group = __shfl_sync(0xFFFF'FFFFU, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (threadIdx.x < kDeep) {
    const int slot = static_cast<int>(threadIdx.x);
    device::mbarrier_init(shared + Shape::weights_there(slot), kGroupThreads);
    device::mbarrier_init(shared + Shape::inputs_there(slot), kGroupWarps);
    device::mbarrier_init(shared + Shape::free(slot), kConsumers * kGroupWarps);
  }
  __syncthreads();
  if (group < kConsumers) {
    device::more_registers<Registers<Shape>::kConsumer>();
    Consumer<Shape>(call, shared).run();
  } else if (group == kConsumers) {
    device::fewer_registers<Registers<Shape>::kInputs>();
    InputProducer<Shape>(call, shared).run();
  } else {
    device::fewer_registers<Registers<Shape>::kWeights>();
    WeightProducer<Shape>(call, shared).run();
  }
}

}  // namespace smla::projection::sm90
